/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiles in a process of their own: whatever NVRTC does there, hang, crash or take all memory, is
 * one failed kernel here. Spawned, never forked without exec: a fork while another thread compiles
 * hangs NVRTC.
 */
#ifndef FFA_JIT_COMPILE_WORKER_H
#define FFA_JIT_COMPILE_WORKER_H

#include "jit/nvrtc.h"

#include <stdatomic.h>
#include <sys/types.h>

struct worker_opts {
    const char *path;     /* an executable that calls ffa_worker_main, such as the command */
    int64_t timeout_ms;   /* of a compile, the start of the worker included */
    int64_t memory_bytes; /* what the compiles may take */
};

/*
 * One worker, kept from compile to compile, and how the last compile in it went. All zero: not
 * started. It belongs to one thread, and does not outlive it: the system ends a worker with the
 * thread that started it.
 */
struct worker {
    pid_t pid; /* 0: none; it leads the process group of the same number */
    int socket;
    bool is_busy;              /* it was asked, and has not answered */
    const atomic_bool *is_cut; /* borrowed; set: end the compile under way at once. NULL: never */
    /* of the last compile: */
    pid_t asked;     /* the process; 0: none could be started, or none was needed */
    int signal;      /* that ended it instead of an answer; 0: none */
    int exit_status; /* with which it ended instead of an answer; -1: it did not */
};

/*
 * As nvrtc_compile, with the library in the file `nvrtc_path`, in a worker that is started where
 * there is none or it has died. Also FFA_TIMEOUT, after the time or where it was cut; FFA_NOMEM
 * where the worker's limit was the reason; FFA_COMPILE, not final, for one that died; FFA_IO where
 * it cannot be started; FFA_UNSUPPORTED for an executable that is no worker of this version. After
 * any but FFA_OK and a text that does not compile, the worker is ended.
 */
ffa_status worker_compile(struct worker *worker, const struct worker_opts *opts,
                          const char *nvrtc_path, const struct nvrtc_job *job,
                          struct nvrtc_output *out, ffa_error *err);
/* What is known of the last compile is no longer so. */
void worker_forget(struct worker *worker);
/* End the process, if there is one, and what it started; the rest stays. An idle one ends by itself
 * within two seconds, or is killed, as one at work is. */
void worker_end(struct worker *worker);

#endif
