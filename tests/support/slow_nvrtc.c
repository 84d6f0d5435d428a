/* SPDX-License-Identifier: Apache-2.0
 *
 * An NVRTC that compiles nothing, as slowly and as badly as the environment tells it, and logs
 * every compile. Its cubins are ELF files with the entry's name; their content is the list of
 * options.
 *
 *   FAKE_NVRTC_MS   how long a compile takes
 *   FAKE_NVRTC_GATE a file: a compile lasts until it exists, and fails after four minutes
 *   FAKE_NVRTC_FREE how many compiles of a process need no gate: its first
 *   FAKE_NVRTC_LOG  a file to which every compile appends "<process>\n" when it begins
 *   FAKE_NVRTC_FAIL set: every compile fails
 *   FAKE_NVRTC_DO   "crash": abort; "eat": allocate all memory and report that it ran out;
 *                   "short": say in the log that memory ran out, as the real one does, too;
 *                   "refuse": report an unknown option, as for an unknown architecture;
 *                   "meet": fail unless another compile of this process is under way, or comes
 *                   within a minute;
 *                   "fork": begin with a process that never ends and holds a lock on the file
 *                   FAKE_NVRTC_LOG
 *   FAKE_NVRTC_END  a file to which every process that compiled appends "<process>\n" when it
 *                   ends in order
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define FAKE __attribute__((visibility("default")))

/* Result codes of nvrtc.h: those that are returned here. */
enum { SUCCESS = 0, OUT_OF_MEMORY = 1, INVALID_OPTION = 5, COMPILATION = 6 };
typedef struct fake_program *nvrtcProgram;

struct fake_program {
    char name[32];
    char options[2048];
    const char *log;
};

struct fake_cubin {
    Elf64_Ehdr head;
    Elf64_Shdr sections[3]; /* null, symbols, names */
    Elf64_Sym symbols[1];
    char names[64];
    char content[2048];
};

static int write_line(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    char line[32];
    int bytes = snprintf(line, sizeof line, "%d\n", (int)getpid());
    int ok = file >= 0 && write(file, line, (size_t)bytes) == bytes;

    if (file >= 0)
        (void)close(file);
    return ok;
}

/* A process that outlives the compile: its lock is held until it ends. */
static void leave_child(const char *path)
{
    const int file = open(path, O_RDWR | O_CLOEXEC);

    if (file < 0 || flock(file, LOCK_EX) != 0)
        return;
    if (fork() == 0)
        for (;;)
            (void)pause();
    (void)close(file);
}

static atomic_int has_compiled;

static void sleep_1_ms(void)
{
    (void)nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* Until two compiles have been here; false: for a minute there was one alone. */
static int meet(void)
{
    static atomic_int count;

    atomic_fetch_add(&count, 1);
    for (int i = 0; i < 60000; i++) {
        if (atomic_load(&count) > 1)
            return 1;
        sleep_1_ms();
    }
    return 0;
}

/* Until the gate is open; false: it never was. */
static int pass_gate(const char *gate)
{
    static atomic_int count;
    const char *free_count = getenv("FAKE_NVRTC_FREE");

    if (!gate || atomic_fetch_add(&count, 1) < (free_count ? strtol(free_count, NULL, 10) : 0))
        return 1;
    for (int i = 0; i < 240000; i++) {
        if (access(gate, F_OK) == 0)
            return 1;
        sleep_1_ms();
    }
    return 0;
}

__attribute__((destructor)) static void tell_end(void)
{
    const char *path = getenv("FAKE_NVRTC_END");

    if (path && has_compiled)
        (void)write_line(path);
}

FAKE int nvrtcVersion(int *major, int *minor);
int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 0;
    return SUCCESS;
}

FAKE const char *nvrtcGetErrorString(int code);
const char *nvrtcGetErrorString(int code)
{
    return code == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "made up";
}

FAKE int nvrtcCreateProgram(nvrtcProgram *out, const char *text, const char *name, int count,
                            const char *const *headers, const char *const *names);
int nvrtcCreateProgram(nvrtcProgram *out, const char *text, const char *name, int count,
                       const char *const *headers, const char *const *names)
{
    (void)text;
    (void)count;
    (void)headers;
    (void)names;
    *out = calloc(1, sizeof **out);
    if (!*out)
        return OUT_OF_MEMORY;
    (void)snprintf((*out)->name, sizeof(*out)->name, "%.*s", (int)strcspn(name, "."), name);
    (*out)->log = "";
    return SUCCESS;
}

FAKE int nvrtcDestroyProgram(nvrtcProgram *program);
int nvrtcDestroyProgram(nvrtcProgram *program)
{
    free(*program);
    *program = NULL;
    return SUCCESS;
}

FAKE int nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options);
int nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options)
{
    const char *ms = getenv("FAKE_NVRTC_MS"), *log = getenv("FAKE_NVRTC_LOG");
    const char *what = getenv("FAKE_NVRTC_DO");
    long wait = ms ? strtol(ms, NULL, 10) : 0;
    struct timespec left = { .tv_sec = wait / 1000, .tv_nsec = wait % 1000 * 1000000 };
    size_t at = 0;

    has_compiled = 1;
    if (log && !write_line(log))
        return COMPILATION;
    if (log && what && strcmp(what, "fork") == 0)
        leave_child(log);
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
    if (!pass_gate(getenv("FAKE_NVRTC_GATE"))) {
        program->log = "the gate stayed closed\n";
        return COMPILATION;
    }
    if (what && strcmp(what, "crash") == 0)
        (void)raise(SIGABRT);
    if (what && strcmp(what, "meet") == 0 && !meet()) {
        program->log = "no other compile\n";
        return COMPILATION;
    }
    if (what && strcmp(what, "refuse") == 0)
        return INVALID_OPTION;
    if (what && strcmp(what, "short") == 0) {
        program->log = "catastrophic error: out of memory\n";
        return COMPILATION;
    }
    if (what && strcmp(what, "eat") == 0) {
        void *volatile more;

        do
            more = calloc(1, 1 << 20);
        while (more);
        return OUT_OF_MEMORY;
    }
    for (int i = 0; i < count && at < sizeof program->options; i++)
        at += (size_t)snprintf(program->options + at, sizeof program->options - at, "%s ",
                               options[i]);
    if (getenv("FAKE_NVRTC_FAIL")) {
        program->log = "attention_forward.cu(1): error: it was told to fail\n";
        return COMPILATION;
    }
    program->log = "ptxas info    : 0 bytes gmem\n"
                   "ptxas info    : Compiling entry function 'attention_forward' for 'sm_90a'\n"
                   "ptxas info    : Function properties for attention_forward\n"
                   "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
                   "ptxas info    : Used 32 registers, used 0 barriers\n";
    return SUCCESS;
}

FAKE int nvrtcGetProgramLogSize(nvrtcProgram program, size_t *bytes);
int nvrtcGetProgramLogSize(nvrtcProgram program, size_t *bytes)
{
    *bytes = strlen(program->log) + 1;
    return SUCCESS;
}

FAKE int nvrtcGetProgramLog(nvrtcProgram program, char *log);
int nvrtcGetProgramLog(nvrtcProgram program, char *log)
{
    memcpy(log, program->log, strlen(program->log) + 1);
    return SUCCESS;
}

FAKE int nvrtcGetCUBINSize(nvrtcProgram program, size_t *bytes);
int nvrtcGetCUBINSize(nvrtcProgram program, size_t *bytes)
{
    (void)program;
    *bytes = sizeof(struct fake_cubin);
    return SUCCESS;
}

FAKE int nvrtcGetCUBIN(nvrtcProgram program, char *out);
int nvrtcGetCUBIN(nvrtcProgram program, char *out)
{
    struct fake_cubin cubin;

    memset(&cubin, 0, sizeof cubin);
    memcpy(cubin.head.e_ident, ELFMAG, SELFMAG);
    cubin.head.e_ident[EI_CLASS] = ELFCLASS64;
    cubin.head.e_machine = EM_CUDA;
    cubin.head.e_shentsize = sizeof cubin.sections[0];
    cubin.head.e_shnum = 3;
    cubin.head.e_shoff = offsetof(struct fake_cubin, sections);
    cubin.sections[1].sh_type = SHT_SYMTAB;
    cubin.sections[1].sh_link = 2;
    cubin.sections[1].sh_offset = offsetof(struct fake_cubin, symbols);
    cubin.sections[1].sh_size = sizeof cubin.symbols;
    cubin.sections[2].sh_type = SHT_STRTAB;
    cubin.sections[2].sh_offset = offsetof(struct fake_cubin, names);
    cubin.sections[2].sh_size = sizeof cubin.names;
    cubin.symbols[0].st_name = 1;
    cubin.symbols[0].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    cubin.symbols[0].st_shndx = 1;
    (void)snprintf(cubin.names + 1, sizeof cubin.names - 1, "%s", program->name);
    memcpy(cubin.content, program->options, sizeof cubin.content);
    memcpy(out, &cubin, sizeof cubin);
    return SUCCESS;
}

FAKE int nvrtcGetPTXSize(nvrtcProgram program, size_t *bytes);
int nvrtcGetPTXSize(nvrtcProgram program, size_t *bytes)
{
    (void)program;
    *bytes = 1;
    return SUCCESS;
}

FAKE int nvrtcGetPTX(nvrtcProgram program, char *out);
int nvrtcGetPTX(nvrtcProgram program, char *out)
{
    (void)program;
    *out = '\0';
    return SUCCESS;
}
