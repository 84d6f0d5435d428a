/* SPDX-License-Identifier: Apache-2.0
 *
 * How a block of an attention kernel starts: its shared memory, which warp a thread is in, and the
 * registers that setmaxnreg moves from the producer warpgroup to the consumers.
 */
#ifndef FFA_KERNEL_START_H
#define FFA_KERNEL_START_H

#include "device_limits.h"
#include "ptx.h"

/* Bytes up to the 1024-byte boundary that offsets of a layout count from: the 128-byte swizzle
 * repeats every 1024 bytes. `base`: where the block's shared memory starts. */
FFA_DEVICE uint32_t shared_pad(uint32_t base)
{
    return (1024 - base % 1024) % 1024;
}

/* The shuffles tell the compiler that the threads of a warp agree. */
FFA_DEVICE int warpgroup_index()
{
    return __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
}

FFA_DEVICE int warp_index()
{
    return __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
}

template <int consumers> FFA_DEVICE void producer_registers()
{
    constexpr int producer = kernel_producer_registers(consumers);
    constexpr int consumer = kernel_consumer_registers(consumers);
    static_assert(consumers == 1 || 128 * (producer + consumers * consumer) <= SM90_REGISTERS,
                  "more registers than an SM has");

    if constexpr (consumers > 1)
        setmaxnreg_dec<producer>();
}

template <int consumers> FFA_DEVICE void consumer_registers()
{
    if constexpr (consumers > 1)
        setmaxnreg_inc<kernel_consumer_registers(consumers)>();
}

#endif
