/* SPDX-License-Identifier: Apache-2.0
 *
 * One compile in a process of its own: whatever NVRTC does there, hang, crash or take all memory,
 * is one failed kernel here. Spawned, never forked without exec: a fork while another thread
 * compiles hangs NVRTC.
 */
#ifndef FFA_JIT_COMPILE_WORKER_H
#define FFA_JIT_COMPILE_WORKER_H

#include "jit/nvrtc.h"

struct worker_opts {
    const char *path;     /* an executable that calls ffa_worker_main, such as the command */
    int64_t timeout_ms;   /* from the start to the answer */
    int64_t memory_bytes; /* what the compile may take */
};

/* As nvrtc_compile, with the library in the file `nvrtc_path`. Also FFA_TIMEOUT; FFA_NOMEM where
 * the worker's limit was the reason; FFA_COMPILE, not final, for one that died; FFA_IO where it
 * cannot be started; FFA_UNSUPPORTED for an executable that is no worker of this version. */
ffa_status worker_compile(const struct worker_opts *opts, const char *nvrtc_path,
                          const struct nvrtc_job *job, struct nvrtc_output *out, ffa_error *err);

#endif
