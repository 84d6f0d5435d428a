/* SPDX-License-Identifier: Apache-2.0
 *
 * templates/wgmma.h for the emulator: the same functions, over machine.h.
 */
#ifndef FFA_WGMMA_H
#define FFA_WGMMA_H

#include "descriptor.h"
#include "ffa_device.h"

FFA_DEVICE void wgmma_fence() {}

FFA_DEVICE void wgmma_commit()
{
    emulator_wgmma_commit();
}

template <int pending> FFA_DEVICE void wgmma_wait()
{
    emulator_wgmma_wait(pending);
}

template <class T, int count> FFA_DEVICE void touch(T (&)[count]) {}

template <int n, int dtype> struct wgmma {
    static_assert(n % 8 == 0 && 8 <= n && n <= 256, "wgmma's n");
    static void issue(float (&d)[n / 2], emulator_major a_major, uint64_t a, const uint32_t *words,
                      emulator_major b_major, uint64_t b, int accumulate)
    {
        const emulator_wgmma op = { n, dtype, accumulate != 0, a_major, b_major, a, b };

        emulator_wgmma_issue(&op, d, words);
    }
    static void ss(float (&d)[n / 2], uint64_t a, uint64_t b, int accumulate)
    {
        issue(d, EMULATOR_K_MAJOR, a, nullptr, EMULATOR_K_MAJOR, b, accumulate);
    }
    static void rs(float (&d)[n / 2], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                   uint64_t b, int accumulate)
    {
        const uint32_t words[4] = { a0, a1, a2, a3 };

        issue(d, EMULATOR_REGISTERS, 0, words, EMULATOR_MN_MAJOR, b, accumulate);
    }
    static void rs_k(float (&d)[n / 2], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                     uint64_t b, int accumulate)
    {
        const uint32_t words[4] = { a0, a1, a2, a3 };

        issue(d, EMULATOR_REGISTERS, 0, words, EMULATOR_K_MAJOR, b, accumulate);
    }
    static void ss_mn(float (&d)[n / 2], uint64_t a, uint64_t b, int accumulate)
    {
        issue(d, EMULATOR_MN_MAJOR, a, nullptr, EMULATOR_MN_MAJOR, b, accumulate);
    }
};

#endif
