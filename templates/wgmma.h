/* SPDX-License-Identifier: Apache-2.0
 *
 * wgmma.mma_async for 64 x n tiles, k = 16, fp32 accumulators: n / 2 registers a thread.
 *
 * Accumulator layout: thread t of the warpgroup holds, for n8 block j, d[4j], d[4j+1] in row
 * t/32*16 + t%32/4 at columns 8j + 2(t%4), +1, and d[4j+2], d[4j+3] eight rows below. Four words of
 * A from registers have the same layout over k: (row, k 0-7), (row + 8, k 0-7), (row, 8-15), (row +
 * 8, 8-15).
 *
 * The accumulators and A registers of an issued product belong to the tensor core until
 * wgmma_wait and touch() on them.
 */
#ifndef FFA_WGMMA_H
#define FFA_WGMMA_H

#include "descriptor.h"
#include "ffa_device.h"

FFA_DEVICE void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

FFA_DEVICE void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int pending> FFA_DEVICE void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/* Ties registers to this point of the program: uses stay below, definitions above. */
template <int count> FFA_DEVICE void touch(float (&d)[count])
{
#pragma unroll
    for (int i = 0; i < count; ++i)
        asm volatile("" : "+f"(d[i])::"memory");
}

template <int count> FFA_DEVICE void touch(uint32_t (&d)[count])
{
#pragma unroll
    for (int i = 0; i < count; ++i)
        asm volatile("" : "+r"(d[i])::"memory");
}

/* clang-format off */
#define R4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define R16(d, i) R4(d, i), R4(d, i + 4), R4(d, i + 8), R4(d, i + 12)
#define R32(d, i) R16(d, i), R16(d, i + 16)
#define R8(d, i) R4(d, i), R4(d, i + 4)
#define R40(d) R32(d, 0), R8(d, 32)
#define R48(d) R32(d, 0), R16(d, 32)
#define R56(d) R48(d), R8(d, 48)
#define R64(d) R32(d, 0), R32(d, 32)
#define R72(d) R64(d), R8(d, 64)
#define R80(d) R64(d), R16(d, 64)
#define R88(d) R80(d), R8(d, 80)
#define R96(d) R64(d), R32(d, 64)
#define R128(d) R64(d), R32(d, 64), R32(d, 96)

/* The immediates behind p: signs of A and B; then for operands in shared memory, A if it is, and B:
 * 1 where it is MN-major. */
template <int n, int dtype> struct wgmma;

#define WGMMA_32(dtype, type) \
template <> struct wgmma<32, dtype> { \
    /* d (+)= A B, A and B in shared memory, both MN-major. */ \
    static __device__ __forceinline__ void ss_mn(float (&d)[16], uint64_t a, uint64_t b, int accumulate) \
    { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %18, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, " \
        "%16, %17, p, 1, 1, 1, 1;\n\t}" \
        : R16(d, 0) : "l"(a), "l"(b), "r"(accumulate) : "memory"); \
    } \
};
WGMMA_32(1, "bf16")
WGMMA_32(2, "f16")

#define WGMMA_64(dtype, type) \
template <> struct wgmma<64, dtype> { \
    /* d (+)= A B, A and B in shared memory, both K-major. */ \
    static __device__ __forceinline__ void ss(float (&d)[32], uint64_t a, uint64_t b, int accumulate) \
    { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
        "%32, %33, p, 1, 1, 0, 0;\n\t}" \
        : R32(d, 0) : "l"(a), "l"(b), "r"(accumulate) : "memory"); \
    } \
    /* d (+)= A B, A in registers, B in shared memory, MN-major, or K-major. */ \
    template <int is_mn_major> static __device__ __forceinline__ void from_registers(float (&d)[32], uint32_t a0, \
        uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b, int accumulate) \
    { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
        "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n\t}" \
        : R32(d, 0) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate), "n"(is_mn_major) : "memory"); \
    } \
    static __device__ __forceinline__ void rs(float (&d)[32], uint32_t a0, uint32_t a1, uint32_t a2, \
                                              uint32_t a3, uint64_t b, int accumulate) \
    { \
        from_registers<1>(d, a0, a1, a2, a3, b, accumulate); \
    } \
    static __device__ __forceinline__ void rs_k(float (&d)[32], uint32_t a0, uint32_t a1, uint32_t a2, \
                                                uint32_t a3, uint64_t b, int accumulate) \
    { \
        from_registers<0>(d, a0, a1, a2, a3, b, accumulate); \
    } \
    /* d (+)= A B, A and B in shared memory, both MN-major. */ \
    static __device__ __forceinline__ void ss_mn(float (&d)[32], uint64_t a, uint64_t b, int accumulate) \
    { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
        "%32, %33, p, 1, 1, 1, 1;\n\t}" \
        : R32(d, 0) : "l"(a), "l"(b), "r"(accumulate) : "memory"); \
    } \
};
WGMMA_64(1, "bf16")
WGMMA_64(2, "f16")

#define WGMMA_80(dtype, type) \
template <> struct wgmma<80, dtype> { \
    /* d (+)= A B, A and B in shared memory, both K-major. */ \
    static __device__ __forceinline__ void ss(float (&d)[40], uint64_t a, uint64_t b, int accumulate) \
    { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %42, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n80k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39}, " \
        "%40, %41, p, 1, 1, 0, 0;\n\t}" \
        : R40(d) : "l"(a), "l"(b), "r"(accumulate) : "memory"); \
    } \
};
WGMMA_80(1, "bf16")
WGMMA_80(2, "f16")

#define WGMMA_96(dtype, type) \
template <> struct wgmma<96, dtype> { \
    /* d (+)= A B, A and B in shared memory, both K-major. */ \
    static __device__ __forceinline__ void ss(float (&d)[48], uint64_t a, uint64_t b, int accumulate) \
    { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %50, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n96k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, " \
        "%48, %49, p, 1, 1, 0, 0;\n\t}" \
        : R48(d) : "l"(a), "l"(b), "r"(accumulate) : "memory"); \
    } \
    /* d (+)= A B, A in registers, B in shared memory, MN-major. */ \
    static __device__ __forceinline__ void rs(float (&d)[48], uint32_t a0, uint32_t a1, uint32_t a2, \
                                              uint32_t a3, uint64_t b, int accumulate) \
    { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %53, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n96k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, " \
        "{%48, %49, %50, %51}, %52, p, 1, 1, 1;\n\t}" \
        : R48(d) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate) : "memory"); \
    } \
};
WGMMA_96(1, "bf16")
WGMMA_96(2, "f16")

#define WGMMA_112(dtype, type) \
template <> struct wgmma<112, dtype> { \
    /* d (+)= A B, A and B in shared memory, both K-major. */ \
    static __device__ __forceinline__ void ss(float (&d)[56], uint64_t a, uint64_t b, int accumulate) \
    { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %58, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n112k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55}, " \
        "%56, %57, p, 1, 1, 0, 0;\n\t}" \
        : R56(d) : "l"(a), "l"(b), "r"(accumulate) : "memory"); \
    } \
};
WGMMA_112(1, "bf16")
WGMMA_112(2, "f16")

#define WGMMA_128(dtype, type) \
template <> struct wgmma<128, dtype> { \
    /* d (+)= A B, A and B in shared memory, both K-major. */ \
    static __device__ __forceinline__ void ss(float (&d)[64], uint64_t a, uint64_t b, int accumulate) \
    { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
        "%64, %65, p, 1, 1, 0, 0;\n\t}" \
        : R64(d) : "l"(a), "l"(b), "r"(accumulate) : "memory"); \
    } \
    /* d (+)= A B, A in registers, B in shared memory, MN-major. */ \
    static __device__ __forceinline__ void rs(float (&d)[64], uint32_t a0, uint32_t a1, uint32_t a2, \
                                              uint32_t a3, uint64_t b, int accumulate) \
    { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %69, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
        "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n\t}" \
        : R64(d) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate) : "memory"); \
    } \
};
WGMMA_128(1, "bf16")
WGMMA_128(2, "f16")

#define WGMMA_144(dtype, type) \
template <> struct wgmma<144, dtype> { \
    /* d (+)= A B, A and B in shared memory, both K-major. */ \
    static __device__ __forceinline__ void ss(float (&d)[72], uint64_t a, uint64_t b, int accumulate) \
    { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %74, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n144k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
        "%64, %65, %66, %67, %68, %69, %70, %71}, " \
        "%72, %73, p, 1, 1, 0, 0;\n\t}" \
        : R72(d) : "l"(a), "l"(b), "r"(accumulate) : "memory"); \
    } \
};
WGMMA_144(1, "bf16")
WGMMA_144(2, "f16")

#define WGMMA_160(dtype, type) \
template <> struct wgmma<160, dtype> { \
    /* d (+)= A B, A and B in shared memory, both K-major. */ \
    static __device__ __forceinline__ void ss(float (&d)[80], uint64_t a, uint64_t b, int accumulate) \
    { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %82, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n160k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}, " \
        "%80, %81, p, 1, 1, 0, 0;\n\t}" \
        : R80(d) : "l"(a), "l"(b), "r"(accumulate) : "memory"); \
    } \
};
WGMMA_160(1, "bf16")
WGMMA_160(2, "f16")

#define WGMMA_176(dtype, type) \
template <> struct wgmma<176, dtype> { \
    /* d (+)= A B, A and B in shared memory, both K-major. */ \
    static __device__ __forceinline__ void ss(float (&d)[88], uint64_t a, uint64_t b, int accumulate) \
    { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %90, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n176k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
        "%80, %81, %82, %83, %84, %85, %86, %87}, " \
        "%88, %89, p, 1, 1, 0, 0;\n\t}" \
        : R88(d) : "l"(a), "l"(b), "r"(accumulate) : "memory"); \
    } \
};
WGMMA_176(1, "bf16")
WGMMA_176(2, "f16")

#define WGMMA_192(dtype, type) \
template <> struct wgmma<192, dtype> { \
    /* d (+)= A B, A and B in shared memory, both K-major. */ \
    static __device__ __forceinline__ void ss(float (&d)[96], uint64_t a, uint64_t b, int accumulate) \
    { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %98, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n192k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, " \
        "%96, %97, p, 1, 1, 0, 0;\n\t}" \
        : R96(d) : "l"(a), "l"(b), "r"(accumulate) : "memory"); \
    } \
    /* d (+)= A B, A in registers, B in shared memory, MN-major. */ \
    static __device__ __forceinline__ void rs(float (&d)[96], uint32_t a0, uint32_t a1, uint32_t a2, \
                                              uint32_t a3, uint64_t b, int accumulate) \
    { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %101, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n192k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, " \
        "{%96, %97, %98, %99}, %100, p, 1, 1, 1;\n\t}" \
        : R96(d) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate) : "memory"); \
    } \
};
WGMMA_192(1, "bf16")
WGMMA_192(2, "f16")

#define WGMMA_256(dtype, type) \
template <> struct wgmma<256, dtype> { \
    /* d (+)= A B, A in registers, B in shared memory, MN-major. */ \
    static __device__ __forceinline__ void rs(float (&d)[128], uint32_t a0, uint32_t a1, uint32_t a2, \
                                              uint32_t a3, uint64_t b, int accumulate) \
    { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %133, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, " \
        "{%128, %129, %130, %131}, %132, p, 1, 1, 1;\n\t}" \
        : R128(d) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate) : "memory"); \
    } \
};
WGMMA_256(1, "bf16")
WGMMA_256(2, "f16")
/* clang-format on */

#endif
