/* SPDX-License-Identifier: Apache-2.0
 *
 * NVRTC, opened on first use. The only reader of nvrtc.h is nvrtc.c.
 */
#ifndef FFA_JIT_NVRTC_H
#define FFA_JIT_NVRTC_H

#include "base/base.h"

struct nvrtc;

/*
 * Find and open NVRTC. `path` not NULL: that file and no other. Else, in this order: what the
 * process has loaded, the loader's path, the toolkit of the build, known places. One that is older
 * than 12.8 is passed over. FFA_UNSUPPORTED says what was tried.
 */
ffa_status nvrtc_open(struct nvrtc **out, const char *path, ffa_error *err);
/* The library itself stays loaded: others in the process may use it. */
void nvrtc_close(struct nvrtc *nvrtc);
const char *nvrtc_path(const struct nvrtc *nvrtc);
const char *nvrtc_version(const struct nvrtc *nvrtc);   /* "13.0" */
const char *nvrtc_toolchain(const struct nvrtc *nvrtc); /* "nvrtc 13.0 <build>" */

struct nvrtc_job {
    const char *name; /* of the program, as errors call it */
    const char *text;
    int header_count;
    const char *const *headers;
    const char *const *header_names;
    int option_count;
    const char *const *options;
    bool want_ptx;
};

/* Each is the caller's to free, failure or not; NULL where there is none. */
struct nvrtc_output {
    char *log;
    char *ptx;
    void *cubin;
    size_t cubin_bytes;
    bool is_final; /* of a failure: the text's fault, and again the next time */
};

/* In a child after fork(): if a thread of the parent was compiling then, NVRTC's own locks stay
 * locked here for ever, and every compile in this process is refused instead. */
void nvrtc_in_child(void);

/* FFA_COMPILE: the text does not compile; out->log says why. FFA_UNSUPPORTED: an option, such as
 * the architecture, is unknown to this NVRTC; or see nvrtc_in_child. Thread: any number at once. */
ffa_status nvrtc_compile(const struct nvrtc *nvrtc, const struct nvrtc_job *job,
                         struct nvrtc_output *out, ffa_error *err);

#endif
