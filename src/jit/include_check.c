/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a template's text includes only what a key can cover: files of the templates, which are
 * given to the compiler in memory, and its own headers. An absolute path, one through a parent
 * folder, or a name that a macro makes could be any file of the machine, whose text is in no key.
 *
 * Directives are read as the preprocessor reads them: lines are spliced and comments are blanks, so
 * that neither hides one. What no compiler reaches (#if 0) is refused, too.
 */
#include "jit/source.h"

#include <stdio.h>

/* A text, read without its spliced line ends and its comments. */
struct scan {
    const char *at;
    bool in_string, in_character;
};

static void skip_splices(struct scan *scan)
{
    for (;;) {
        if (scan->at[0] == '\\' && scan->at[1] == '\n')
            scan->at += 2;
        else if (scan->at[0] == '\\' && scan->at[1] == '\r' && scan->at[2] == '\n')
            scan->at += 3;
        else
            break;
    }
}

static char raw_next(struct scan *scan)
{
    char c;

    skip_splices(scan);
    c = *scan->at;
    scan->at += c != '\0';
    skip_splices(scan);
    return c;
}

/* From after the opening slash on. */
static void skip_comment(struct scan *scan)
{
    const bool is_block = raw_next(scan) == '*';
    char before = '\0';

    while (*scan->at && (is_block || *scan->at != '\n')) {
        const char c = raw_next(scan);

        if (is_block && before == '*' && c == '/')
            break;
        before = c;
    }
}

/* The next character; a comment is a blank, an unfinished literal ends with its line. '\0': none.
 */
static char next(struct scan *scan)
{
    const char c = raw_next(scan);

    if (c == '\n')
        scan->in_string = scan->in_character = false;
    if (scan->in_string || scan->in_character) {
        if (c == '\\' && *scan->at != '\n')
            (void)raw_next(scan); /* an escaped quote ends nothing */
        else if (c == (scan->in_string ? '"' : '\''))
            scan->in_string = scan->in_character = false;
        return c;
    }
    if (c == '/' && (*scan->at == '/' || *scan->at == '*')) {
        skip_comment(scan);
        return ' ';
    }
    scan->in_string = c == '"';
    scan->in_character = c == '\'';
    return c;
}

/* A name that may lead out of the templates. */
static bool leads_out(const char *name, size_t bytes)
{
    if (name[0] == '/')
        return true;
    for (size_t at = 0; at < bytes; at += strcspn(name + at, "/>\"") + 1)
        if (strncmp(name + at, "..", 2) == 0 && strchr("/>\"", name[at + 2]))
            return true;
    return false;
}

/* The operand of #include or __has_include: a name in quotes or angles, and one of the templates'
 * or the compiler's. */
static ffa_status check_operand(const struct embedded_file *file, const char *operand,
                                ffa_error *err)
{
    size_t bytes;

    operand += strspn(operand, " \t(");
    bytes = strcspn(operand + (*operand != '\0'), *operand == '<' ? ">" : "\"");
    if (*operand == '_' || (*operand >= 'A' && *operand <= 'Z') ||
        (*operand >= 'a' && *operand <= 'z'))
        return error_fail(err, FFA_INVALID, 0,
                          "template '%s' includes what a macro names, '%.100s': the key cannot "
                          "cover it; write the name of a file of the templates",
                          file->name, operand);
    if ((*operand == '"' || *operand == '<') && leads_out(operand + 1, bytes))
        return error_fail(err, FFA_INVALID, 0,
                          "template '%s' includes '%.*s', which is outside of the templates: the "
                          "key cannot cover it; copy the file beside the template",
                          file->name, bytes > 200 ? 200 : (int)bytes, operand + 1);
    return FFA_OK;
}

/* `text` is a directive, from after its '#' on. */
static ffa_status check_directive(const struct embedded_file *file, const char *text,
                                  ffa_error *err)
{
    static const char *const names[] = { "include", "include_next", "import", "embed" };
    static const char asked[] = "__has_include";
    size_t bytes;
    ffa_status rc = FFA_OK;

    text += strspn(text, " \t");
    bytes = strspn(text, "abcdefghijklmnopqrstuvwxyz_");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == bytes && strncmp(text, names[i], bytes) == 0)
            return check_operand(file, text + bytes, err);
    while (rc == FFA_OK && (text = strstr(text, asked))) {
        text += sizeof asked - 1;
        if (strncmp(text, "_next", 5) == 0)
            text += 5;
        /* defined(__has_include) asks for no file. */
        if (text[strspn(text, " \t")] == '(')
            rc = check_operand(file, text, err);
    }
    return rc;
}

ffa_status include_check(const struct embedded_file *file, ffa_error *err)
{
    struct scan scan = { .at = file->text };
    struct text line = { 0 };
    bool is_more = true;
    ffa_status rc = FFA_OK;

    while (rc == FFA_OK && is_more) {
        const char *directive;
        char c;

        line.bytes = 0;
        while ((c = next(&scan)) != '\0' && c != '\n')
            text_add_bytes(&line, &c, 1);
        is_more = c != '\0';
        text_add_bytes(&line, "", 0);
        if (line.failed) {
            rc = error_nomem(err, "a line of a template");
            break;
        }
        directive = line.at + strspn(line.at, " \t\v\f\r");
        if (directive[0] == '#')
            rc = check_directive(file, directive + 1, err);
        else if (strncmp(directive, "%:", 2) == 0)
            rc = check_directive(file, directive + 2, err);
    }
    text_finish(&line);
    return rc;
}
