/* SPDX-License-Identifier: Apache-2.0
 *
 * The facts in NVRTC's log and in a cubin's ELF header. Both are outside input: every number is
 * bounded, and nothing is read past the end. What the log does not say is -1, never 0, since a log
 * without a line about spills is not a kernel without spills.
 */
#include "jit/compile_report.h"

#include <ctype.h>
#include <elf.h>
#include <limits.h>
#include <stdio.h>

/* Advisories that cost speed: setmaxnreg ignored, wgmma serialised, an arrive injected; whatever
 * their number, most say so in words. */
static const char *const advisories[] = { "Potential Performance Loss",
                                          "(C7504)",
                                          "(C7508)",
                                          "(C7509)",
                                          "(C7510)",
                                          "(C7512)",
                                          "(C7514)",
                                          "(C7515)",
                                          "(C7519)" };

/* The number that stands before `words` in the line [line, end), or -1. */
static int32_t number_before(const char *line, const char *end, const char *words)
{
    const char *at = memmem(line, (size_t)(end - line), words, strlen(words));
    const char *first = at;
    int64_t value = 0;

    while (first && first > line && isdigit((unsigned char)first[-1]))
        first--;
    if (!at || first == at)
        return -1;
    for (; first < at; first++)
        value = value < INT32_MAX / 16 ? value * 10 + (*first - '0') : value;
    return (int32_t)value;
}

static bool has(const char *line, const char *end, const char *words)
{
    return memmem(line, (size_t)(end - line), words, strlen(words)) != NULL;
}

static void read_line(struct report *report, const char *line, const char *end, bool of_entry)
{
    int32_t stores = number_before(line, end, " bytes spill stores");
    int32_t loads = number_before(line, end, " bytes spill loads");

    if (stores >= 0 && loads >= 0)
        report->spill_bytes = (report->spill_bytes < 0 ? 0 : report->spill_bytes) + stores + loads;
    if (of_entry && has(line, end, "Used ") && report->registers < 0) {
        int32_t shared = number_before(line, end, " bytes smem");

        report->registers = number_before(line, end, " registers");
        report->shared_bytes = shared < 0 ? 0 : shared;
    }
    for (size_t i = 0; i < sizeof advisories / sizeof *advisories; i++)
        if (has(line, end, advisories[i])) {
            report->advisory_count++;
            break;
        }
}

struct report report_read(const char *log, const char *entry)
{
    struct report report = { -1, -1, -1, 0 };
    bool of_entry = false;
    char quoted[80];

    text_copy(quoted, "'%s'", entry);
    for (const char *line = log; line && *line;) {
        const char *end = strchrnul(line, '\n');

        if (has(line, end, "Compiling entry function"))
            of_entry = has(line, end, quoted);
        read_line(&report, line, end, of_entry);
        line = *end ? end + 1 : end;
    }
    return report;
}

/* Lines of log that belong to its first error, and how many of them fit a message. */
void report_first_error(const char *log, char *out, size_t size)
{
    enum { LINES = 4 };
    size_t at = 0;
    int lines = 0;

    assert(size > 0);
    out[0] = '\0';
    for (const char *line = log; line && *line && lines < LINES && at + 1 < size;) {
        const char *end = strchrnul(line, '\n');
        const char *first = line + strspn(line, " \t");
        bool is_error = has(line, end, " error") || has(line, end, "ptxas fatal");

        /* After the error: its source line; the caret and a blank line end it. */
        if (lines > 0 && (first >= end || *first == '^' || is_error))
            break;
        if (lines > 0 || is_error) {
            int bytes = snprintf(out + at, size - at, "%s%.*s", lines ? " | " : "",
                                 (int)(end - first), first);

            at += bytes > 0 ? (size_t)bytes : 0;
            lines++;
        }
        line = *end ? end + 1 : end;
    }
}

/* ---- the cubin ---- */

struct bytes {
    const unsigned char *at;
    size_t count;
};

/* Copies, so that alignment is nobody's business. */
static bool get(struct bytes file, uint64_t offset, void *out, size_t size)
{
    if (offset > file.count || size > file.count - offset)
        return false;
    memcpy(out, file.at + offset, size);
    return true;
}

static bool name_is(struct bytes file, const Elf64_Shdr *names, uint64_t offset, const char *entry)
{
    size_t bytes = strlen(entry) + 1;

    return offset < names->sh_size && names->sh_offset < file.count &&
           names->sh_size <= file.count - names->sh_offset && bytes <= names->sh_size - offset &&
           memcmp(file.at + names->sh_offset + offset, entry, bytes) == 0;
}

static bool table_has(struct bytes file, const Elf64_Shdr *table, const Elf64_Shdr *names,
                      const char *entry)
{
    Elf64_Sym symbol;

    for (uint64_t i = 0; i < table->sh_size / sizeof symbol; i++) {
        if (!get(file, table->sh_offset + i * sizeof symbol, &symbol, sizeof symbol))
            return false;
        if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_shndx != SHN_UNDEF &&
            name_is(file, names, symbol.st_name, entry))
            return true;
    }
    return false;
}

bool report_has_entry(const void *cubin, size_t bytes, const char *entry)
{
    struct bytes file = { cubin, bytes };
    Elf64_Ehdr head;
    Elf64_Shdr table, names;

    if (!get(file, 0, &head, sizeof head) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
        head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_machine != EM_CUDA ||
        head.e_shentsize != sizeof table)
        return false;
    for (unsigned i = 0; i < head.e_shnum; i++) {
        if (!get(file, head.e_shoff + (uint64_t)i * sizeof table, &table, sizeof table))
            return false;
        if (table.sh_type != SHT_SYMTAB || table.sh_link >= head.e_shnum)
            continue;
        if (get(file, head.e_shoff + (uint64_t)table.sh_link * sizeof names, &names,
                sizeof names) &&
            table_has(file, &table, &names, entry))
            return true;
    }
    return false;
}

/* Its header has the number of the architecture without the suffix, at one of two places. */
bool report_may_run_on(const void *cubin, size_t bytes, const char *arch)
{
    enum { ABI_OF_CUDA_12 = 7, ABI_OF_CUDA_13 = 8 };
    struct bytes file = { cubin, bytes };
    unsigned long number = strncmp(arch, "sm_", 3) == 0 ? strtoul(arch + 3, NULL, 10) : 0;
    Elf64_Ehdr head;

    if (!get(file, 0, &head, sizeof head) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
        head.e_machine != EM_CUDA)
        return true;
    if (head.e_ident[EI_ABIVERSION] == ABI_OF_CUDA_12)
        return (head.e_flags & 0xff) == number;
    if (head.e_ident[EI_ABIVERSION] == ABI_OF_CUDA_13)
        return (head.e_flags >> 8 & 0xff) == number;
    return true;
}
