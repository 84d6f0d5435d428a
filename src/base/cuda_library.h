/* SPDX-License-Identifier: Apache-2.0
 *
 * Where NVIDIA's libraries are looked for. They are opened, not linked, so that a program starts
 * without them.
 */
#ifndef FFA_BASE_CUDA_LIBRARY_H
#define FFA_BASE_CUDA_LIBRARY_H

#include "base/base.h"

/* A library that is wanted, and who decides whether one that was found will do. */
struct cuda_library {
    const char *stem; /* of its file: "libnvrtc"; with its ending, the file alone: "libnccl.so.2" */
    const char *wheel_12;  /* its folder in NVIDIA's Python wheels for CUDA 12: "cuda_nvrtc"; of a
                            * file alone, in those of any CUDA */
    enum fault_kind fault; /* of opening it */
    /* Take `library`, which was opened by `name`. If false, `tried` received the reason ("; ..."),
     * and the search goes on. */
    bool (*accept)(void *taker, void *library, const char *name, struct text *tried);
    void *taker;
};

/*
 * Open the library. `path` not NULL: that file and no other. Else, in this order: what the process
 * has loaded, the loader's path, the toolkit of the build, the usual places of NVIDIA's toolkit and
 * Python wheels. CUDA 13 comes before CUDA 12. A library that was accepted stays loaded, because
 * others in the process may use it. If false, `tried` says what was tried: "; 'a' not there; ...".
 */
bool cuda_library_open(const struct cuda_library *wanted, const char *path, struct text *tried);

/* The file that the function of an open library came from; where the loader does not say, `name`.
 */
void cuda_library_file(char *out, size_t bytes, const void *function, const char *name);

#endif
