/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA C++ for the host, as far as the templates use it; included before the text of every kernel.
 * ptx.h and wgmma.h beside this file, with one PTX instruction a function, replace those of the
 * templates.
 */
#ifndef FFA_EMULATOR_CUDA_ON_HOST_H
#define FFA_EMULATOR_CUDA_ON_HOST_H

#include "machine.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define __CUDACC__ 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__

/* `extern __shared__ char shared_bytes[];` becomes the declaration of a function that returns a
 * pointer to the array of the calling thread's block; uses of the name become calls. */
#define shared_bytes (*emulator_shared_bytes())

#define threadIdx emulator_thread
#define blockIdx emulator_block
#define blockDim emulator_threads
#define gridDim emulator_blocks

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

static inline float2 make_float2(float x, float y)
{
    return float2{ x, y };
}

static inline float2 operator+(float2 a, float2 b) /* of atomicAdd */
{
    return make_float2(a.x + b.x, a.y + b.y);
}

static inline float4 make_float4(float x, float y, float z, float w)
{
    return float4{ x, y, z, w };
}

static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return uint2{ x, y };
}

static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return uint4{ x, y, z, w };
}

template <class T> static inline T min(T a, T b)
{
    return b < a ? b : a;
}

template <class T> static inline T max(T a, T b)
{
    return a < b ? b : a;
}

/* ---- bits ---- */

template <class To, class From> static inline To bits_to(From from)
{
    static_assert(sizeof(To) == sizeof(From), "bits stay bits");
    To to;

    memcpy(&to, &from, sizeof to);
    return to;
}

static inline float __int_as_float(int bits)
{
    return bits_to<float>(bits);
}

static inline float __uint_as_float(unsigned bits)
{
    return bits_to<float>(bits);
}

static inline int __float_as_int(float value)
{
    return bits_to<int>(value);
}

static inline unsigned __float_as_uint(float value)
{
    return bits_to<unsigned>(value);
}

/* ---- warps: all 32 lanes, as everywhere in the templates ---- */

static inline void check_mask(unsigned mask)
{
    if (mask != 0xffffffffu)
        emulator_fail("a warp operation of the lanes %x only", mask);
}

template <class T> static inline uint64_t to_word(T value)
{
    uint64_t word = 0;

    memcpy(&word, &value, sizeof value);
    return word;
}

template <class T> static inline T of_word(uint64_t word)
{
    T value;

    memcpy(&value, &word, sizeof value);
    return value;
}

template <class T> static inline T __shfl_sync(unsigned mask, T value, int lane)
{
    check_mask(mask);
    return of_word<T>(emulator_warp(to_word(value), "shfl")[lane & 31]);
}

template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int lanes)
{
    const unsigned self = emulator_thread.x % 32;

    check_mask(mask);
    return of_word<T>(emulator_warp(to_word(value), "shfl")[(self ^ (unsigned)lanes) & 31]);
}

static inline unsigned __ballot_sync(unsigned mask, bool is)
{
    const uint64_t *words;
    unsigned ballot = 0;

    check_mask(mask);
    words = emulator_warp(is, "vote");
    for (int lane = 0; lane < 32; ++lane)
        ballot |= (unsigned)words[lane] << lane;
    return ballot;
}

static inline bool __any_sync(unsigned mask, bool is)
{
    return __ballot_sync(mask, is) != 0;
}

static inline bool __all_sync(unsigned mask, bool is)
{
    return __ballot_sync(mask, is) == 0xffffffffu;
}

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    check_mask(mask);
    emulator_syncwarp();
}

static inline void __syncthreads()
{
    emulator_bar_sync(0, (int)emulator_threads.x);
}

/* ---- memory: one host thread runs all threads, so every access is atomic ---- */

template <class T> static inline T atomicAdd(T *at, T value)
{
    const T old = *at;

    *at = (T)(old + value);
    return old;
}

template <class T> static inline T atomicExch(T *at, T value)
{
    const T old = *at;

    *at = value;
    return old;
}

template <class T> static inline T atomicMax(T *at, T value)
{
    const T old = *at;

    *at = max(old, value);
    return old;
}

template <class T> static inline T atomicMin(T *at, T value)
{
    const T old = *at;

    *at = min(old, value);
    return old;
}

template <class T> static inline T __ldg(const T *at)
{
    return *at;
}

static inline void __threadfence() {}

static inline void __nanosleep(unsigned)
{
    emulator_yield();
}

[[noreturn]] static inline void __trap()
{
    emulator_fail("trap");
}

/* The runtime calls every kernel through a function of the same type, which nvrtc.c appends. */
template <class Args> static inline void emulator_call(void (*kernel)(Args), const void *args)
{
    kernel(*static_cast<const Args *>(args));
}

template <class Args> constexpr size_t emulator_args_bytes(void (*)(Args))
{
    return sizeof(Args);
}

#endif
