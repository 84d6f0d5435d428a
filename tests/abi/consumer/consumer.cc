// SPDX-License-Identifier: Apache-2.0
//
// A consumer in C++17, which has no designated initialisers: every struct with a struct_size is
// initialised by its function, and a context is opened with one.
#include <cstdio>
#include <ffa/ffa.h>

int main()
{
#define X(type, macro)                                                                             \
    {                                                                                              \
        type it;                                                                                   \
        type##_init(&it, sizeof it);                                                               \
        if (it.struct_size != sizeof it)                                                           \
            return 1;                                                                              \
    }
#include "init.def"
#undef X
    ffa_tensor tensor;
    ffa_tensor_init(&tensor, nullptr);
    if (tensor.token_stride != FFA_CONTIGUOUS)
        return 1;

    ffa_context_opts opts;
    ffa_context *context = nullptr;
    ffa_error err;

    ffa_context_opts_init(&opts, sizeof opts);
    opts.cpu_threads = 1;
    if (ffa_open(&context, FFA_DEVICE_CPU, &opts, &err) != FFA_OK) {
        std::printf("%s\n", err.message);
        return 1;
    }
    ffa_context_info info;
    ffa_context_info_init(&info, sizeof info);
    const bool is_right =
        ffa_context_info_get(context, &info, &err) == FFA_OK && info.cpu_threads == 1;
    ffa_close(context);
    return is_right ? 0 : 1;
}
