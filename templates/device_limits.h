/* SPDX-License-Identifier: Apache-2.0
 *
 * What an SM of sm_90a has, and how the attention kernels share its registers (with a warpgroup for
 * dQ: backward_layout.h), read by host (C17) and device (C++17). Invariant: the warpgroups of a
 * block, of 128 threads each, together hold no more registers than an SM has.
 */
#ifndef FFA_DEVICE_LIMITS_H
#define FFA_DEVICE_LIMITS_H

#ifdef __CUDACC__
#define FFA_HOST_DEVICE __host__ __device__ constexpr
#else
#define FFA_HOST_DEVICE static inline
#endif

enum {
    SM90_SHARED_BYTES_MAX = 227 * 1024, /* shared memory of one block */
    SM90_REGISTERS = 64 * 1024          /* of an SM, 32 bits each */
};

/* Registers of a thread after setmaxnreg (kernel_start.h). With one consumer warpgroup neither is
 * set: 255 is the most a thread can have.
 *
 *                                      threads  producers  consumers  of dQ  registers
 *     forward, 1 warpgroup of consumers    256        255        255      -     65,280
 *     2 (backward above 128 columns, too)  384         40        232      -     64,512
 *     3                                    512         32        160      -     65,536
 *     backward up to 128 columns           512         32        208     64     65,536
 */
FFA_HOST_DEVICE int kernel_producer_registers(int consumers)
{
    return consumers == 3 ? 32 : 40;
}

FFA_HOST_DEVICE int kernel_consumer_registers(int consumers)
{
    return consumers == 3 ? 160 : consumers == 2 ? 232 : 255;
}

#endif
