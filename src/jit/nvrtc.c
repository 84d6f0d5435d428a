/* SPDX-License-Identifier: Apache-2.0
 *
 * One table of NVRTC's functions. The library is opened, not linked, so that a program starts
 * without it, a warmed deployment needs none, and a framework's own copy is shared. Invariant: the
 * toolchain names the very file that compiles, since patch releases share a version. NVRTC's locks
 * do not survive a fork: a child that was forked during a compile refuses to compile.
 */
#include "jit/nvrtc.h"

#include "base/cuda_library.h"
#include "base/digest.h"

#include <dlfcn.h>
#include <nvrtc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OLDEST_MAJOR = 12, OLDEST_MINOR = 8 };

#define NVRTC_FUNCTIONS(X)                                                                         \
    X(nvrtcVersion)                                                                                \
    X(nvrtcGetErrorString)                                                                         \
    X(nvrtcCreateProgram)                                                                          \
    X(nvrtcDestroyProgram)                                                                         \
    X(nvrtcCompileProgram)                                                                         \
    X(nvrtcGetProgramLogSize)                                                                      \
    X(nvrtcGetProgramLog)                                                                          \
    X(nvrtcGetCUBINSize)                                                                           \
    X(nvrtcGetCUBIN)                                                                               \
    X(nvrtcGetPTXSize)                                                                             \
    X(nvrtcGetPTX)

struct nvrtc {
#define X(name) __typeof__(&name) name;
    NVRTC_FUNCTIONS(X)
#undef X
    char path[512];
    char version[16];
    char toolchain[47];
};

/* ---- finding ---- */

static ffa_status bind(struct nvrtc *nvrtc, void *library, const char *name, struct text *tried)
{
#define X(function)                                                                                \
    *(void **)&nvrtc->function = dlsym(library, #function);                                        \
    if (!nvrtc->function) {                                                                        \
        text_add(tried, "; '%s' lacks %s", name, #function);                                       \
        return FFA_UNSUPPORTED;                                                                    \
    }
    NVRTC_FUNCTIONS(X)
#undef X
    return FFA_OK;
}

/* A name for this very build: NVRTC has a version, but patch releases share it. Size, head (ELF
 * header, build id) and tail (section table) of the file: stable, and cheap for 100 MB. */
static ffa_status identify(struct nvrtc *nvrtc, int major, int minor, struct text *tried)
{
    enum { PART = 65536 };
    struct digest digest;
    struct stat stat;
    char build[DIGEST_TEXT];
    FILE *file = fault_here(FAULT_FILE) ? NULL : fopen(nvrtc->path, "re");
    char *part = mem_array(PART, 1);
    ffa_status rc = FFA_UNSUPPORTED;

    if (!part) {
        tried->failed = true;
        goto out;
    }
    if (!file || fstat(fileno(file), &stat) != 0) {
        text_add(tried, "; '%s' cannot be read", nvrtc->path);
        goto out;
    }
    digest_init(&digest);
    digest_number(&digest, (int64_t)stat.st_size);
    digest_field(&digest, part, fread(part, 1, PART, file));
    if (stat.st_size > PART && fseek(file, -PART, SEEK_END) == 0)
        digest_field(&digest, part, fread(part, 1, PART, file));
    digest_final(&digest, build);
    text_copy(nvrtc->version, "%d.%d", major, minor);
    text_copy(nvrtc->toolchain, "nvrtc %d.%d %.16s", major, minor, build);
    rc = FFA_OK;
out:
    if (file)
        (void)fclose(file);
    mem_free(part);
    return rc;
}

/* NVRTC opens its built-in headers by name when it first compiles, and does not look beside itself:
 * where its folder is not on the loader's path (Python wheels), that fails. A library of that name
 * that is loaded already is taken, so load the one beside it. Not there: the loader may find one.
 */
static void load_builtins(const struct nvrtc *nvrtc)
{
    const char *slash = strrchr(nvrtc->path, '/');
    char beside[sizeof nvrtc->path + 64];

    if (!slash)
        return;
    text_copy(beside, "%.*s/libnvrtc-builtins.so.%s", (int)(slash - nvrtc->path), nvrtc->path,
              nvrtc->version);
    if (access(beside, R_OK) == 0) /* a failure of dlopen is memory until the thread ends */
        (void)dlopen(beside, RTLD_NOW | RTLD_LOCAL);
}

/* Take `library` if it is a whole NVRTC, new enough. */
static bool accept(void *taker, void *library, const char *name, struct text *tried)
{
    struct nvrtc *nvrtc = taker;
    int major = 0, minor = 0;

    if (bind(nvrtc, library, name, tried) != FFA_OK)
        return false;
    cuda_library_file(nvrtc->path, sizeof nvrtc->path, *(void **)&nvrtc->nvrtcVersion, name);
    if (nvrtc->nvrtcVersion(&major, &minor) != NVRTC_SUCCESS || fault_here(FAULT_NVRTC)) {
        text_add(tried, "; '%s' does not tell its version", nvrtc->path);
        return false;
    }
    if (major < OLDEST_MAJOR || (major == OLDEST_MAJOR && minor < OLDEST_MINOR)) {
        text_add(tried, "; '%s' is %d.%d, older than %d.%d", nvrtc->path, major, minor,
                 OLDEST_MAJOR, OLDEST_MINOR);
        return false;
    }
    if (identify(nvrtc, major, minor, tried) != FFA_OK)
        return false;
    load_builtins(nvrtc);
    return true;
}

ffa_status nvrtc_open(struct nvrtc **out, const char *path, ffa_error *err)
{
    struct nvrtc *nvrtc = mem_array(1, sizeof *nvrtc);
    const struct cuda_library wanted = { .stem = "libnvrtc",
                                         .wheel_12 = "cuda_nvrtc",
                                         .fault = FAULT_NVRTC,
                                         .accept = accept,
                                         .taker = nvrtc };
    struct text tried = { 0 };
    ffa_status rc = FFA_OK;

    *out = NULL;
    if (!nvrtc) {
        rc = error_nomem(err, "NVRTC's table of functions");
        goto out;
    }
    if (!cuda_library_open(&wanted, path, &tried)) {
        rc = tried.failed
                 ? error_nomem(err, "the search for NVRTC")
                 : error_fail(err, FFA_UNSUPPORTED, 0,
                              "no NVRTC >= %d.%d to compile with (option nvrtc_path names one): %s",
                              OLDEST_MAJOR, OLDEST_MINOR, tried.at ? tried.at + 2 : "none found");
        goto out;
    }
    *out = nvrtc;
    nvrtc = NULL;
out:
    text_finish(&tried);
    mem_free(nvrtc);
    return rc;
}

void nvrtc_close(struct nvrtc *nvrtc)
{
    mem_free(nvrtc);
}

const char *nvrtc_path(const struct nvrtc *nvrtc)
{
    return nvrtc->path;
}

const char *nvrtc_version(const struct nvrtc *nvrtc)
{
    return nvrtc->version;
}

const char *nvrtc_toolchain(const struct nvrtc *nvrtc)
{
    return nvrtc->toolchain;
}

/* ---- compiling ---- */

static atomic_int at_work;      /* threads inside NVRTC */
static atomic_bool is_cut_amid; /* this process was forked while at_work */

void nvrtc_in_child(void)
{
    if (atomic_exchange(&at_work, 0) > 0)
        atomic_store(&is_cut_amid, true);
}

/* The adapter: `doing` completes "NVRTC cannot ...". */
static ffa_status nvrtc_check(const struct nvrtc *nvrtc, nvrtcResult code, const char *doing,
                              ffa_error *err)
{
    if (fault_here(FAULT_NVRTC))
        code = NVRTC_ERROR_INTERNAL_ERROR;
    if (code == NVRTC_SUCCESS)
        return FFA_OK;
    return error_fail(err,
                      code == NVRTC_ERROR_OUT_OF_MEMORY    ? FFA_NOMEM
                      : code == NVRTC_ERROR_INVALID_OPTION ? FFA_UNSUPPORTED
                                                           : FFA_COMPILE,
                      (int32_t)code, "NVRTC %s cannot %s: %s", nvrtc->version, doing,
                      nvrtc->nvrtcGetErrorString(code));
}

typedef nvrtcResult (*size_fn)(nvrtcProgram, size_t *);
typedef nvrtcResult (*bytes_fn)(nvrtcProgram, char *);

static ffa_status fetch(const struct nvrtc *nvrtc, nvrtcProgram program, size_fn size,
                        bytes_fn bytes, const char *what, void **out, size_t *count, ffa_error *err)
{
    char doing[48];
    ffa_status rc;

    text_copy(doing, "hand over the %s", what);
    FFA_TRY(nvrtc_check(nvrtc, size(program, count), doing, err));
    *out = mem_array(*count + 1, 1); /* terminated whatever it holds */
    if (!*out) {
        rc = error_nomem(err, what);
        goto out;
    }
    rc = nvrtc_check(nvrtc, bytes(program, *out), doing, err);
out:
    return rc;
}

static ffa_status run_job(const struct nvrtc *nvrtc, const struct nvrtc_job *job,
                          struct nvrtc_output *out, ffa_error *err)
{
    nvrtcProgram program = NULL;
    size_t bytes = 0;
    nvrtcResult code;
    ffa_status compiled;
    ffa_status rc;

    *out = (struct nvrtc_output){ 0 };
    FFA_TRY(nvrtc_check(nvrtc,
                        nvrtc->nvrtcCreateProgram(&program, job->text, job->name, job->header_count,
                                                  job->headers, job->header_names),
                        "take the program", err));
    code = nvrtc->nvrtcCompileProgram(program, job->option_count, job->options);
    compiled = nvrtc_check(nvrtc, code, "compile", err);
    out->is_final = code == NVRTC_ERROR_COMPILATION;
    /* The log first: on failure it is the only answer. */
    rc = fetch(nvrtc, program, nvrtc->nvrtcGetProgramLogSize, nvrtc->nvrtcGetProgramLog, "log",
               (void **)&out->log, &bytes, compiled == FFA_OK ? err : NULL);
    if (compiled != FFA_OK)
        rc = compiled;
    if (rc != FFA_OK)
        goto out;
    FFA_TRY(fetch(nvrtc, program, nvrtc->nvrtcGetCUBINSize, nvrtc->nvrtcGetCUBIN, "cubin",
                  &out->cubin, &out->cubin_bytes, err));
    if (job->want_ptx)
        FFA_TRY(fetch(nvrtc, program, nvrtc->nvrtcGetPTXSize, nvrtc->nvrtcGetPTX, "PTX",
                      (void **)&out->ptx, &bytes, err));
out:
    if (program)
        (void)nvrtc->nvrtcDestroyProgram(&program);
    return rc;
}

ffa_status nvrtc_compile(const struct nvrtc *nvrtc, const struct nvrtc_job *job,
                         struct nvrtc_output *out, ffa_error *err)
{
    ffa_status rc;

    *out = (struct nvrtc_output){ 0 };
    if (atomic_load(&is_cut_amid))
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "this process was forked while another thread compiled, and NVRTC would "
                          "hang in it; fork before the first compile, or start a program");
    atomic_fetch_add(&at_work, 1);
    rc = run_job(nvrtc, job, out, err);
    atomic_fetch_sub(&at_work, 1);
    return rc;
}
