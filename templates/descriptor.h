/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix descriptors of wgmma: tiles in shared memory with the 128-byte swizzle.
 */
#ifndef FFA_DESCRIPTOR_H
#define FFA_DESCRIPTOR_H

#include "ffa_device.h"

/* K-major: rows of 64 elements, 8-row groups 1024 bytes apart. Advance 32 bytes for each k 16. */
FFA_DEVICE uint64_t descriptor_k_major(uint32_t address)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

/* MN-major: panels of 64 columns, `panel_bytes` apart. Advance 2048 bytes for each k 16. */
FFA_DEVICE uint64_t descriptor_mn_major(uint32_t address, uint32_t panel_bytes)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | ((uint64_t)(panel_bytes >> 4) << 16) |
           (64ull << 32) | (1ull << 62);
}

/* Only the low word holds the address, and it never carries: one 32-bit addition. */
FFA_DEVICE uint64_t descriptor_advance(uint64_t descriptor, uint32_t bytes)
{
    return (descriptor & 0xffffffff00000000ull) | (uint32_t)((uint32_t)descriptor + (bytes >> 4));
}

#endif
