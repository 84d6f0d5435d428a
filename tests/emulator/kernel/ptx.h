/* SPDX-License-Identifier: Apache-2.0
 *
 * templates/ptx.h for the emulator: the same functions, over machine.h.
 */
#ifndef FFA_PTX_H
#define FFA_PTX_H

#include "ffa_device.h"

FFA_DEVICE uint32_t shared_address(const void *p)
{
    return emulator_shared_address(p);
}

FFA_DEVICE int thread_index()
{
    return (int)emulator_thread.x;
}

FFA_DEVICE void keep(uint32_t &) {}

FFA_DEVICE bool elect_one()
{
    return emulator_thread.x % 32 == 0;
}

/* ---- mbarrier ---- */

FFA_DEVICE void mbarrier_init(uint32_t bar, uint32_t count)
{
    emulator_mbarrier_init(bar, count);
}

FFA_DEVICE void mbarrier_arrive(uint32_t bar)
{
    emulator_mbarrier_arrive(bar, 0);
}

FFA_DEVICE void mbarrier_arrive_expect_tx(uint32_t bar, uint32_t bytes)
{
    emulator_mbarrier_arrive(bar, bytes);
}

FFA_DEVICE bool mbarrier_try_wait_parity(uint32_t bar, uint32_t parity)
{
    emulator_mbarrier_wait(bar, parity);
    return true;
}

FFA_DEVICE bool mbarrier_test_wait_parity(uint32_t bar, uint32_t parity)
{
    return emulator_mbarrier_test(bar, parity);
}

FFA_DEVICE void fence_mbarrier_init() {}

FFA_DEVICE void fence_proxy_async()
{
    emulator_fence_proxy_async();
}

FFA_DEVICE void fence_proxy_async_global() {}

FFA_DEVICE void fence_proxy_async_all()
{
    emulator_fence_proxy_async();
}

FFA_DEVICE int ld_acquire_gpu(const int *address)
{
    return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

FFA_DEVICE void st_release_gpu(int *address, int value)
{
    __atomic_store_n(address, value, __ATOMIC_RELEASE);
}

FFA_DEVICE int atomic_add_release_gpu(int *address, int value)
{
    return __atomic_fetch_add(address, value, __ATOMIC_ACQ_REL);
}

FFA_DEVICE unsigned long long ld_acquire_sys(const unsigned long long *address)
{
    return emulator_poll(reinterpret_cast<const uint64_t *>(address));
}

FFA_DEVICE void st_release_sys(unsigned long long *address, unsigned long long value)
{
    __atomic_store_n(address, value, __ATOMIC_RELEASE);
}

FFA_DEVICE void fence_acq_rel_sys() {}

FFA_DEVICE unsigned long long clock_ns()
{
    timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec;
}

template <int id, int threads> FFA_DEVICE void bar_sync()
{
    emulator_bar_sync(id, threads);
}

/* ---- clusters ---- */

FFA_DEVICE uint32_t cluster_rank()
{
    return emulator_cluster_rank();
}

FFA_DEVICE void cluster_sync()
{
    emulator_cluster_sync();
}

FFA_DEVICE void mbarrier_arrive_at(uint32_t bar, uint32_t rank)
{
    emulator_mbarrier_arrive_at(bar, rank);
}

FFA_DEVICE void st_async_at(uint32_t address, uint32_t value, uint32_t bar, uint32_t rank)
{
    emulator_store_async(address, value, bar, rank);
}

FFA_DEVICE void cp_async_bulk_tensor_3d_to(uint32_t dst, const void *map, uint32_t bar, int column,
                                           int head, int row, uint16_t blocks)
{
    emulator_copy_tensor_to(dst, map, bar, column, head, row, blocks);
}

FFA_DEVICE void cp_async_bulk_at(uint32_t dst, uint32_t src, uint32_t bar, uint32_t bytes,
                                 uint32_t rank)
{
    emulator_copy_at(dst, src, bar, bytes, rank);
}

/* ---- copy engine ---- */

FFA_DEVICE void cp_async_bulk_tensor_3d(uint32_t dst, const void *map, uint32_t bar, int column,
                                        int head, int row)
{
    emulator_copy_tensor(dst, map, bar, column, head, row);
}

FFA_DEVICE void bulk_reduce_add_f32(float *to, uint32_t from, int bytes)
{
    emulator_reduce_add(to, from, bytes);
}

FFA_DEVICE void bulk_commit()
{
    emulator_bulk_commit();
}

template <int left> FFA_DEVICE void bulk_wait_read()
{
    emulator_bulk_wait_read(left);
}

template <int left> FFA_DEVICE void bulk_wait()
{
    emulator_bulk_wait(left);
}

FFA_DEVICE void cp_async_bulk(uint32_t dst, const void *src, uint32_t bar, uint32_t bytes)
{
    emulator_copy(dst, src, bar, bytes);
}

FFA_DEVICE void prefetch_tensormap(const void *) {}

/* ---- mma.sync and its operands ---- */

FFA_DEVICE void stmatrix_x4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    const uint32_t words[4] = { a, b, c, d };

    emulator_stmatrix_x4(address, words);
}

FFA_DEVICE void ldmatrix_x4(uint32_t (&d)[4], uint32_t address)
{
    emulator_ldmatrix_x4(d, address);
}

template <int dtype>
FFA_DEVICE void mma_m16n8k16(float &d0, float &d1, float &d2, float &d3, const uint32_t (&a)[4],
                             uint32_t b0, uint32_t b1)
{
    const uint32_t b[2] = { b0, b1 };
    float d[4] = { d0, d1, d2, d3 };

    emulator_mma_m16n8k16(d, a, b, dtype);
    d0 = d[0];
    d1 = d[1];
    d2 = d[2];
    d3 = d[3];
}

/* ---- registers ---- */

template <int count> FFA_DEVICE void setmaxnreg_dec()
{
    static_assert(count % 8 == 0 && 24 <= count && count <= 256, "setmaxnreg's count");
}

template <int count> FFA_DEVICE void setmaxnreg_inc()
{
    setmaxnreg_dec<count>();
}

/* ---- arithmetic ---- */

FFA_DEVICE float ex2_approx(float x)
{
    return exp2f(x);
}

FFA_DEVICE float rcp_approx(float x)
{
    return 1.0f / x;
}

FFA_DEVICE float lg2_approx(float x)
{
    return log2f(x);
}

template <int dtype> FFA_DEVICE uint32_t pack_half2(float low, float high)
{
    return emulator_to_half(low, dtype) | emulator_to_half(high, dtype) << 16;
}

template <int dtype> FFA_DEVICE float2 unpack_half2(uint32_t packed)
{
    return make_float2(emulator_from_half(packed & 0xffff, dtype),
                       emulator_from_half(packed >> 16, dtype));
}

/* ---- shared and global memory ---- */

template <class T> FFA_DEVICE T shared_load(uint32_t address)
{
    T value;

    memcpy(&value, emulator_shared_at(address, sizeof value, sizeof value, "ld.shared"),
           sizeof value);
    return value;
}

template <class T> FFA_DEVICE void shared_store(uint32_t address, const T &value)
{
    memcpy(emulator_shared_at(address, sizeof value, sizeof value, "st.shared"), &value,
           sizeof value);
    emulator_shared_written(address, sizeof value);
}

FFA_DEVICE float2 ld_shared_f32x2(uint32_t address)
{
    return shared_load<float2>(address);
}

FFA_DEVICE void st_shared_f32x2(uint32_t address, float a, float b)
{
    shared_store(address, float2{ a, b });
}

FFA_DEVICE void st_shared(uint32_t address, uint32_t value)
{
    shared_store(address, value);
}

FFA_DEVICE uint32_t ld_shared(uint32_t address)
{
    emulator_yield(); /* volatile: the caller may poll for a change */
    return shared_load<uint32_t>(address);
}

FFA_DEVICE void atom_shared_add(uint32_t address, uint32_t value)
{
    shared_store(address, shared_load<uint32_t>(address) + value);
}

FFA_DEVICE void st_shared_v4_zero(uint32_t address)
{
    shared_store(address, uint4{ 0, 0, 0, 0 });
}

FFA_DEVICE void st_shared_v4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    shared_store(address, uint4{ a, b, c, d });
}

FFA_DEVICE void ld_shared_v4(uint32_t (&d)[4], uint32_t address)
{
    const uint4 value = shared_load<uint4>(address);

    d[0] = value.x;
    d[1] = value.y;
    d[2] = value.z;
    d[3] = value.w;
}

FFA_DEVICE float2 ld_global_v2(const float *address)
{
    return *reinterpret_cast<const float2 *>(address);
}

FFA_DEVICE void st_global_v4(void *address, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    *static_cast<uint4 *>(address) = uint4{ a, b, c, d };
}

#endif
