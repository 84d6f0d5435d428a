/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions beside the macros FFA_..._INIT, for C++ and for languages without macros. It
 * belongs to no room: it sees the public headers, and nothing of the library.
 *
 * A caller may be compiled against an older or newer header, whose struct is shorter or longer, so
 * it passes its own size. A tail that is newer than this library becomes 0, the default.
 */
#include <ffa/ffa.h>

#include <string.h>

void ffa_tensor_init(ffa_tensor *tensor, void *data)
{
    *tensor = (ffa_tensor)FFA_TENSOR_INIT(data);
}

static void fill(void *out, size_t bytes, const void *initial, size_t initial_bytes)
{
    const uint32_t struct_size = (uint32_t)bytes;

    memset(out, 0, bytes);
    memcpy(out, initial, bytes < initial_bytes ? bytes : initial_bytes);
    if (bytes >= sizeof struct_size)
        memcpy(out, &struct_size, sizeof struct_size);
}

#define X(type, macro)                                                                             \
    void type##_init(type *out, size_t bytes)                                                      \
    {                                                                                              \
        static const type initial = macro;                                                         \
                                                                                                   \
        fill(out, bytes, &initial, sizeof initial);                                                \
    }
#include "init.def"
#undef X
