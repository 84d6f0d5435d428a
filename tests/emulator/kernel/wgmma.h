/* SPDX-License-Identifier: Apache-2.0
 *
 * templates/wgmma.h for the emulator: the same functions, over machine.h.
 */
#ifndef FFA_WGMMA_H
#define FFA_WGMMA_H

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

FFA_DEVICE uint64_t descriptor_k_major(uint32_t address)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

FFA_DEVICE uint64_t descriptor_mn_major(uint32_t address, uint32_t panel_bytes)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | ((uint64_t)(panel_bytes >> 4) << 16) |
           (64ull << 32) | (1ull << 62);
}

FFA_DEVICE uint64_t descriptor_advance(uint64_t descriptor, uint32_t bytes)
{
    return (descriptor & 0xffffffff00000000ull) | (uint32_t)((uint32_t)descriptor + (bytes >> 4));
}

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
    static void ss_mn(float (&d)[n / 2], uint64_t a, uint64_t b, int accumulate)
    {
        issue(d, EMULATOR_MN_MAJOR, a, nullptr, EMULATOR_MN_MAJOR, b, accumulate);
    }
};

#endif
