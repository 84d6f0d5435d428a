/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix descriptors of wgmma: tiles in shared memory with the 128-byte swizzle. A panel begins at
 * a multiple of 1024 bytes; its row r is the 128 bytes at 128 r, and the row's unit c of 16 bytes
 * lies at unit c ^ (r % 8). The hardware takes that XOR from the final address (bits 4 to 6 ^= bits
 * 7 to 9), so that a descriptor may begin inside a row.
 *
 *     bits 0-13   begin / 16
 *     bits 16-29  MN-major: bytes from a panel to the next / 16; K-major: not used (1)
 *     bits 32-45  bytes from 8 rows to the next 8 / 16: 64
 *     bits 49-51  0, as panels begin at multiples of 1024
 *     bits 62-63  1: the 128-byte swizzle
 */
#ifndef FFA_DESCRIPTOR_H
#define FFA_DESCRIPTOR_H

#include "ffa_device.h"

/* K-major: rows of 64 elements, 8-row groups 1024 bytes apart. Advance 32 bytes for
 * 16 columns. */
FFA_DEVICE uint64_t descriptor_k_major(uint32_t address)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

/* MN-major: panels of 64 columns, `panel_bytes` apart. Advance 2048 bytes for 16 rows. */
FFA_DEVICE uint64_t descriptor_mn_major(uint32_t address, uint32_t panel_bytes)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | ((uint64_t)(panel_bytes >> 4) << 16) |
           (64ull << 32) | (1ull << 62);
}

/* The address is bits 0 to 13, and never carries out of them: one 32-bit addition. */
FFA_DEVICE uint64_t descriptor_advance(uint64_t descriptor, uint32_t bytes)
{
    return (descriptor & 0xffffffff00000000ull) | (uint32_t)((uint32_t)descriptor + (bytes >> 4));
}

#endif
