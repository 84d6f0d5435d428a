/* SPDX-License-Identifier: Apache-2.0
 *
 * From a spec to a cubin: the request (spec, architecture, key, record, sources), the options NVRTC
 * is given, and the facts read from its log.
 */
#ifndef FFA_JIT_JIT_H
#define FFA_JIT_JIT_H

#include "base/base.h"
#include <ffa/kernel.h>

enum {
    JIT_SPEC_MAX = 24,
    JIT_SCHEMA = 1 /* of the key; a change of what it covers is a new number */
};

/* ---- architectures and specs (spec.c) ---- */

struct jit_arch {
    const char *name;         /* "sm_90a": with the suffix, part of the key */
    const char *virtual_name; /* "compute_90a" */
    int32_t shared_bytes_max; /* a block may ask for */
};

/* FFA_INVALID for NULL or "", FFA_UNSUPPORTED for an unknown one; both name the known ones. */
ffa_status jit_arch_find(const struct jit_arch **out, const char *name, ffa_error *err);
#define JIT_ARCH_DEFAULT "sm_90a"

/* The value of each spec row of a template, in the order of its .spec.def. */
struct jit_spec {
    int32_t template_index;
    int32_t row_count;
    int32_t values[JIT_SPEC_MAX]; /* zero past row_count */
};

/* All defaults of the template. Rows whose initial value is below their least are open: choose_spec
 * or jit_spec_resolve fills them in. */
ffa_status jit_spec_init(struct jit_spec *spec, const char *template_name, ffa_error *err);
/* Set "name=value"; enumerated rows take names, too (dtype=bf16). */
ffa_status jit_spec_set(struct jit_spec *spec, const char *setting, ffa_error *err);
ffa_status jit_spec_put(struct jit_spec *spec, const char *name, int32_t value, ffa_error *err);
int32_t jit_spec_get(const struct jit_spec *spec, const char *name); /* the row must exist */
/* Check every row's limits, and round the head dimensions up to the columns that kernels compute
 * with. */
ffa_status jit_spec_pad(struct jit_spec *spec, ffa_error *err);
/* Pad, derive what follows from other rows, then check the combination (shared memory, registers).
 * Rows that are a choice (the forward tile) must have been chosen: choose_spec of src/choose does
 * both. A resolved spec stays as it is. */
ffa_status jit_spec_resolve(struct jit_spec *spec, const char *arch, ffa_error *err);
/* Whether a padded spec with all choices made has the registers and shared memory it needs. */
bool jit_spec_fits(const struct jit_spec *spec, const struct jit_arch *arch);
/* The columns that kernels compute with for heads of `head_dim`, 8 to 256: tensors may have fewer.
 */
int32_t jit_columns(int32_t head_dim);
/* Dynamic shared memory (of a spec that is padded, with all choices made), threads a block of its
 * launch, blocks a cluster (of a resolved one). */
int32_t jit_spec_shared_bytes(const struct jit_spec *spec);
int32_t jit_spec_threads(const struct jit_spec *spec);
int32_t jit_spec_cluster(const struct jit_spec *spec);
const char *jit_spec_template(const struct jit_spec *spec);
const char *jit_spec_row_name(const struct jit_spec *spec, int32_t row);
/* "dtype=bf16", as jit_spec_set takes it, cut to size. False: the row has its initial value, which
 * need not be said. */
bool jit_spec_setting(const struct jit_spec *spec, int32_t row, char *out, size_t size);
/* "head_dim=128 dtype=1 ...", cut to size. */
void jit_spec_text(const struct jit_spec *spec, char *out, size_t size);

/* ---- kernels ---- */

/* A cubin with all that is known of it; what the table keeps and the store writes and reads.
 * In `info`: all but resolve_us; the layer is where it came from, once that is known. */
struct jit_kernel {
    ffa_kernel_info info;
    void *cubin;
    size_t cubin_bytes;
    char *record; /* of the request it answers */
};
void jit_kernel_finish(struct jit_kernel *kernel);

/* ---- the compiler: one per context, thread-safe ---- */

struct jit;

/* Strings are borrowed and must outlive the jit. */
struct jit_opts {
    const char *templates_dir;  /* NULL: the text embedded in the library */
    const char *nvrtc_path;     /* NULL: searched for */
    const char *worker_path;    /* compile in processes of this executable; NULL: in this one */
    uint32_t worker_timeout_ms; /* of one compile; 0: 300 s */
    uint32_t worker_memory_mib; /* what a worker may take to compile; 0: 2048 */
};

/* Reads the template text; does not open NVRTC. */
ffa_status jit_create(struct jit **out, const struct jit_opts *opts, const struct log *log,
                      ffa_error *err);
void jit_destroy(struct jit *jit);

/* ---- requests ---- */

struct source_set; /* jit/source.h */
struct worker;     /* jit/compile_worker.h */

/*
 * One kernel asked for: made once a look-up and passed down to the layers and the compiler. Spec
 * and architecture are all that a hit in the table needs; the rest is there once the request is
 * completed. Thread: one at a time.
 */
struct jit_request {
    struct jit_spec spec;       /* resolved */
    char arch[16];              /* zero past its text: the table compares spec and arch as bytes */
    char key[33];               /* XXH3-128 over all that can change the code; "": not completed */
    char *record;               /* owned: the readable text behind the key, name=value lines */
    struct source_set *sources; /* owned; the files in it are the jit's */
    struct worker *worker;      /* borrowed, of the calling thread, where compiles are in workers;
                                   NULL: one for this compile alone */
};

/* `spec` is resolved for `arch`, a known architecture. Owns nothing yet. */
void jit_request_init(struct jit_request *request, const struct jit_spec *spec, const char *arch);
/* Collect the sources, make key and record, once: a completed request stays as it is. Opens no
 * compiler. */
ffa_status jit_request_complete(struct jit_request *request, struct jit *jit, ffa_error *err);
/* Whether the texts that a record names are those embedded in this library: only then is its kernel
 * what a request here asks for. */
bool jit_record_is_ours(const char *record);
/* All zero, or initialised. */
void jit_request_finish(struct jit_request *request);

/* ---- compiling ---- */

/* Open NVRTC unless it is open. FFA_UNSUPPORTED lists what was tried. */
ffa_status jit_open_compiler(struct jit *jit, ffa_error *err);
/* Empty texts until NVRTC was opened; borrowed until destroy. */
const char *jit_nvrtc_path(struct jit *jit);
const char *jit_nvrtc_version(struct jit *jit);
const char *jit_toolchain(struct jit *jit);

struct jit_result {
    struct jit_kernel kernel;
    char *log;     /* NVRTC's; set on FFA_COMPILE, too */
    char *ptx;     /* when asked for */
    bool is_final; /* of a failure: the same text fails again with the same compiler */
};
void jit_result_finish(struct jit_result *result);

/* Compile; completes the request. Thread: any number at once. On FFA_COMPILE out->log is set. */
ffa_status jit_compile(struct jit *jit, struct jit_request *request, bool want_ptx,
                       struct jit_result *out, ffa_error *err);

/* The nvcc line that compiles the same kernel from files (caller frees). */
ffa_status jit_command(const struct jit_request *request, const char *templates_dir,
                       const char *output, char **out, ffa_error *err);

#endif
