/* SPDX-License-Identifier: Apache-2.0
 *
 * The one file that knows which compiler is reading.
 */
#ifndef FFA_DEVICE_H
#define FFA_DEVICE_H

#if defined(__CUDACC_RTC__) /* NVRTC has no <stdint.h> */
typedef signed int int32_t;
typedef unsigned int uint32_t;
typedef unsigned short uint16_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#include <stdio.h>
#endif

#define FFA_DEVICE static __device__ __forceinline__
#define FFA_DEVICE_MEMBER __device__ __forceinline__

constexpr float log2e = 1.4426950408889634f;
constexpr float ln2 = 0.6931471805599453f;

FFA_DEVICE float neg_inf()
{
    return __int_as_float((int)0xff800000u);
}

#endif
