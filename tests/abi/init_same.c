/* SPDX-License-Identifier: Apache-2.0
 *
 * Each function ffa_..._init writes the bytes of its macro, and no more than the caller's struct
 * has: neither for a caller with an older header, whose struct is shorter, nor for one with a
 * newer.
 */
#include <ffa/ffa.h>
#include <stdio.h>
#include <string.h>

enum { ROOM = 8192, OLDEST = 8, GUARD = 0xa5 };

static int failed;

static void check(const char *name, const char *what, int is_right)
{
    if (is_right)
        return;
    (void)printf("%s_init %s\n", name, what);
    failed = 1;
}

static int all_are(const unsigned char *bytes, size_t count, int value)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != value)
            return 0;
    return 1;
}

/* got [ROOM] has what the function wrote for a struct of `bytes`. */
static void compare(const char *name, const unsigned char *got, size_t bytes,
                    const unsigned char *wanted, size_t wanted_bytes)
{
    const size_t common = bytes < wanted_bytes ? bytes : wanted_bytes;
    uint32_t struct_size;

    memcpy(&struct_size, got, sizeof struct_size);
    check(name, "does not set struct_size", struct_size == bytes);
    check(name, "differs from its macro",
          memcmp(got + sizeof struct_size, wanted + sizeof struct_size,
                 common - sizeof struct_size) == 0);
    check(name, "leaves a newer tail", all_are(got + common, bytes - common, 0));
    check(name, "writes past the end", all_are(got + bytes, ROOM - bytes, GUARD));
}

#define X(type, macro)                                                                             \
    static void test_##type(void)                                                                  \
    {                                                                                              \
        static const type wanted = macro;                                                          \
        const size_t sizes[] = { sizeof wanted, OLDEST, sizeof wanted + 64 };                      \
        static union {                                                                             \
            type it;                                                                               \
            unsigned char bytes[ROOM];                                                             \
        } got;                                                                                     \
                                                                                                   \
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {                                \
            memset(&got, GUARD, sizeof got);                                                       \
            type##_init(&got.it, sizes[i]);                                                        \
            compare(#type, got.bytes, sizes[i], (const unsigned char *)&wanted, sizeof wanted);    \
        }                                                                                          \
    }
#include "init.def"
#undef X

static void test_tensor(void)
{
    static int data;
    static const ffa_tensor wanted = FFA_TENSOR_INIT(&data);
    ffa_tensor got;

    memset(&got, GUARD, sizeof got);
    ffa_tensor_init(&got, &data);
    check("ffa_tensor", "differs from its macro", memcmp(&got, &wanted, sizeof got) == 0);
}

int main(void)
{
    test_tensor();
#define X(type, macro) test_##type();
#include "init.def"
#undef X
    return failed;
}
