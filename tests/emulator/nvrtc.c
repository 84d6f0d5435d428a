/* SPDX-License-Identifier: Apache-2.0
 *
 * An NVRTC that compiles a template for the emulator, with the host's C++ compiler.
 *
 * The result is a shared object whose ELF header says CUDA, so that libffa takes it for a cubin.
 * The templates' text is compiled as it is; only ptx.h and wgmma.h are replaced by the emulator's
 * (kernel/), and a function that calls the kernel's entry is appended.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <nvrtc.h>
#include <spawn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

extern char **environ;

/* The digest of the emulator's headers is part of this library, whose build id is part of the
 * toolchain. So kernels compiled with other headers are of another toolchain. */
EXPORT const char emulator_headers[] = EMULATOR_HEADERS_DIGEST;

struct _nvrtcProgram {
    char folder[256];
    char source[320];
    char entry[64];
    char *log, *image;
    size_t log_bytes, image_bytes;
};

EXPORT nvrtcResult nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 0;
    return NVRTC_SUCCESS;
}

EXPORT const char *nvrtcGetErrorString(nvrtcResult result)
{
    switch (result) {
    case NVRTC_SUCCESS:
        return "NVRTC_SUCCESS";
    case NVRTC_ERROR_OUT_OF_MEMORY:
        return "NVRTC_ERROR_OUT_OF_MEMORY";
    case NVRTC_ERROR_COMPILATION:
        return "NVRTC_ERROR_COMPILATION";
    default:
        return "NVRTC_ERROR_INTERNAL_ERROR";
    }
}

/* ---- files ---- */

static bool write_file(const char *folder, const char *name, const char *text, const char *more)
{
    char path[384];
    FILE *file;
    bool is_done;

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "we");
    if (!file)
        return false;
    is_done = fputs(text, file) >= 0 && fputs(more, file) >= 0;
    return fclose(file) == 0 && is_done;
}

/* Read a whole file and append a 0, for files that are text. The caller frees it. */
static char *read_file(const char *folder, const char *name, size_t *bytes)
{
    struct stat stat;
    char path[384];
    char *at = NULL;
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "re");
    if (file && fstat(fileno(file), &stat) == 0 && (at = calloc(1, (size_t)stat.st_size + 1)))
        *bytes = fread(at, 1, (size_t)stat.st_size, file);
    if (file)
        (void)fclose(file);
    return at;
}

static void run_rm(const char *folder)
{
    char *args[] = { (char[]){ "rm" }, (char[]){ "-rf" }, NULL, NULL };
    char copy[256];
    pid_t child;

    (void)snprintf(copy, sizeof copy, "%s", folder);
    args[2] = copy;
    if (posix_spawnp(&child, "rm", NULL, NULL, args, environ) == 0)
        (void)waitpid(child, NULL, 0);
}

/* ---- programs ---- */

/* The kernel's entry is the NAME in `NAME(const __grid_constant__`. */
static bool find_entry(const char *source, char entry[64])
{
    const char *end = strstr(source, "(const __grid_constant__");
    const char *from = end;

    while (from && from > source && (from[-1] == '_' || (from[-1] >= 'a' && from[-1] <= 'z')))
        from--;
    if (!end || from == end || end - from >= 64)
        return false;
    (void)snprintf(entry, 64, "%.*s", (int)(end - from), from);
    return true;
}

EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program)
{
    if (*program) {
        run_rm((*program)->folder);
        free((*program)->log);
        free((*program)->image);
        free(*program);
    }
    *program = NULL;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram *out, const char *source, const char *name,
                                      int count, const char *const *headers,
                                      const char *const *names)
{
    const char *tmp = getenv("TMPDIR");
    nvrtcProgram program = calloc(1, sizeof *program);
    char call[512];
    bool is_done;

    (void)name;
    if (!program)
        return NVRTC_ERROR_OUT_OF_MEMORY;
    (void)snprintf(program->folder, sizeof program->folder, "%s/ffa-emulator-XXXXXX",
                   tmp && *tmp ? tmp : "/tmp");
    is_done = mkdtemp(program->folder) != NULL;
    if (find_entry(source, program->entry))
        (void)snprintf(call, sizeof call,
                       "\nextern \"C\" void emulated_%s(const void *args)\n"
                       "{\n    emulator_call(%s, args);\n}\n"
                       "extern \"C\" const size_t emulated_args_bytes = emulator_args_bytes(%s);\n",
                       program->entry, program->entry, program->entry);
    else
        call[0] = '\0';
    is_done = is_done && write_file(program->folder, "kernel.cu", source, call);
    for (int i = 0; i < count && is_done; i++)
        if (strcmp(names[i], "ptx.h") != 0 && strcmp(names[i], "wgmma.h") != 0)
            is_done = write_file(program->folder, names[i], headers[i], "");
    if (!is_done) {
        (void)nvrtcDestroyProgram(&program);
        return NVRTC_ERROR_INTERNAL_ERROR;
    }
    *out = program;
    return NVRTC_SUCCESS;
}

/* The environment without LD_PRELOAD, so that the compiler does not load the emulator. */
static char **plain_environment(void)
{
    size_t count = 0, kept = 0;
    char **plain;

    while (environ[count])
        count++;
    plain = calloc(count + 1, sizeof *plain);
    for (size_t i = 0; plain && i < count; i++)
        if (strncmp(environ[i], "LD_PRELOAD=", 11) != 0)
            plain[kept++] = environ[i];
    return plain;
}

static int compile(const struct _nvrtcProgram *program, int count, const char *const *options)
{
    static const char *const fixed[] = {
        EMULATOR_CXX,
        "-std=c++17",
        "-O1", /* -O2 compiles a third longer, and the kernels run no faster: most of their time is
                  the emulator's */
        "-fPIC",
        "-shared",
        "-w",
        "-Wno-psabi",
        "-include",
        "cuda_on_host.h",
        "-I" EMULATOR_DIR "/kernel",
        "-I" EMULATOR_DIR
    };
    enum { FIXED = sizeof fixed / sizeof *fixed, MORE = 64 };
    const char *args[FIXED + MORE + 8];
    char include[300], source[300], object[300], log[300];
    posix_spawn_file_actions_t actions;
    char **environment = plain_environment();
    int at = 0, status = -1;
    pid_t child;

    (void)snprintf(include, sizeof include, "-I%s", program->folder);
    (void)snprintf(source, sizeof source, "%s/kernel.cu", program->folder);
    (void)snprintf(object, sizeof object, "%s/kernel.so", program->folder);
    (void)snprintf(log, sizeof log, "%s/log", program->folder);
    for (int i = 0; i < FIXED; i++)
        args[at++] = fixed[i];
    for (int i = 0; i < count && at < FIXED + MORE; i++)
        if (strncmp(options[i], "-D", 2) == 0)
            args[at++] = options[i];
    args[at++] = include;
    args[at++] = "-x";
    args[at++] = "c++";
    args[at++] = source;
    args[at++] = "-o";
    args[at++] = object;
    args[at] = NULL;
    if (!environment || posix_spawn_file_actions_init(&actions) != 0) {
        free(environment);
        return -1;
    }
    if (posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT, 0600) != 0 ||
        posix_spawn_file_actions_adddup2(&actions, 1, 2) != 0 ||
        posix_spawnp(&child, args[0], &actions, NULL, (char *const *)(uintptr_t)args,
                     environment) != 0)
        child = -1;
    free(environment);
    (void)posix_spawn_file_actions_destroy(&actions);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    return child > 0 ? status : -1;
}

EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options)
{
    static const char report[] = "ptxas info    : Compiling entry function '%s' for 'sm_90a'\n"
                                 "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill "
                                 "loads\n"
                                 "ptxas info    : Used 0 registers\n";
    const Elf64_Half cuda = EM_CUDA;
    const int status = compile(program, count, options);

    program->log = read_file(program->folder, "log", &program->log_bytes);
    if (status != 0)
        return program->log ? NVRTC_ERROR_COMPILATION : NVRTC_ERROR_INTERNAL_ERROR;
    free(program->log);
    program->log = calloc(1, sizeof report + sizeof program->entry);
    program->image = read_file(program->folder, "kernel.so", &program->image_bytes);
    if (!program->log || !program->image)
        return NVRTC_ERROR_OUT_OF_MEMORY;
    program->log_bytes = (size_t)snprintf(program->log, sizeof report + sizeof program->entry,
                                          report, program->entry);
    memcpy(program->image + offsetof(Elf64_Ehdr, e_machine), &cuda, sizeof cuda);
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *bytes)
{
    *bytes = program->log_bytes + 1;
    return program->log ? NVRTC_SUCCESS : NVRTC_ERROR_INVALID_PROGRAM;
}

EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log)
{
    memcpy(log, program->log, program->log_bytes + 1);
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *bytes)
{
    *bytes = program->image_bytes;
    return program->image ? NVRTC_SUCCESS : NVRTC_ERROR_INVALID_PROGRAM;
}

EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *image)
{
    memcpy(image, program->image, program->image_bytes);
    return NVRTC_SUCCESS;
}

/* PTX is always empty. */
EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *bytes)
{
    (void)program;
    *bytes = 1;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *text)
{
    (void)program;
    *text = '\0';
    return NVRTC_SUCCESS;
}
