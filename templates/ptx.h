/* SPDX-License-Identifier: Apache-2.0
 *
 * Thin wrappers, mostly one PTX instruction a function, named after it. Shared-memory addresses are
 * 32-bit (shared window). "memory" clobbers keep the compiler from moving memory accesses across.
 */
#ifndef FFA_PTX_H
#define FFA_PTX_H

#include "ffa_device.h"

FFA_DEVICE uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* threadIdx.x, read again at each call. It saves the registers that would keep what is derived from
 * it. */
FFA_DEVICE int thread_index()
{
    int index;

    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
}

/* The compiler forgets how `x` was computed, so it keeps `x` in a register and does not compute it
 * again. */
FFA_DEVICE void keep(uint32_t &x)
{
    asm volatile("" : "+r"(x));
}

/* True in one lane of the warp, whose lanes are all here. It needs no index from a register. It
 * orders no memory: who arrives at a barrier by it has a __syncwarp or a barrier behind the warp's
 * own accesses. */
FFA_DEVICE bool elect_one()
{
    uint32_t is_elected;

    asm volatile("{\n\t.reg .pred p;\n\t"
                 "elect.sync _|p, 0xffffffff;\n\t"
                 "selp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(is_elected)::"memory");
    return is_elected;
}

/* ---- mbarrier ---- */

FFA_DEVICE void mbarrier_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

FFA_DEVICE void mbarrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

FFA_DEVICE void mbarrier_arrive_expect_tx(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

FFA_DEVICE bool mbarrier_try_wait_parity(uint32_t bar, uint32_t parity)
{
    uint32_t done;

    asm volatile("{\n\t.reg .pred p;\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done != 0;
}

/* The same without waiting: for threads that share their warp with others at work. */
FFA_DEVICE bool mbarrier_test_wait_parity(uint32_t bar, uint32_t parity)
{
    uint32_t done;

    asm volatile("{\n\t.reg .pred p;\n\t"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done != 0;
}

FFA_DEVICE void fence_mbarrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Makes ordinary stores to shared memory visible to wgmma and the copy engine. It may stand with
 * who writes, before it arrives at a barrier, or with who reads in the same CTA, between its wait
 * and the asynchronous read. It stands with who has time:
 *
 *     zeros in Q, K, V and dO          writer, then warpgroup_sync  zero_tail, zero_rows, kv_ready
 *     dS up to 128 columns             reader, after ds_full        dq_run, send_ds
 *     dS, specialised, in a cluster    writer, before it copies     ds_done
 *     dS and P, specialised, one CTA   reader, after the wait       consumer_run_p, _ds, last_piece
 *     dQ for the workspace             reader: the sender           after dq_full
 */
FFA_DEVICE void fence_proxy_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Orders ordinary loads and stores of global memory with those of the copy engine, both ways. */
FFA_DEVICE void fence_proxy_async_global()
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* The same for memory of any state space. */
FFA_DEVICE void fence_proxy_async_all()
{
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* ---- between blocks of a grid, and with other devices ---- */

FFA_DEVICE int ld_acquire_gpu(const int *address)
{
    int value;

    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

FFA_DEVICE void st_release_gpu(int *address, int value)
{
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

/* Returns what was there. The adding releases, the reading does not acquire. */
FFA_DEVICE int atomic_add_release_gpu(int *address, int value)
{
    int was;

    asm volatile("atom.release.gpu.global.add.s32 %0, [%1], %2;"
                 : "=r"(was)
                 : "l"(address), "r"(value)
                 : "memory");
    return was;
}

FFA_DEVICE unsigned long long ld_acquire_sys(const unsigned long long *address)
{
    unsigned long long value;

    asm volatile("ld.acquire.sys.global.b64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

FFA_DEVICE void st_release_sys(unsigned long long *address, unsigned long long value)
{
    asm volatile("st.release.sys.global.b64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

FFA_DEVICE void fence_acq_rel_sys()
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* Of the whole device, in steps of about a microsecond. */
FFA_DEVICE unsigned long long clock_ns()
{
    unsigned long long ns;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* ---- named barriers: ids are immediates, or ptxas reserves all sixteen ---- */

template <int id, int threads> FFA_DEVICE void bar_sync()
{
    asm volatile("bar.sync %0, %1;" ::"n"(id), "n"(threads) : "memory");
}

/* ---- clusters ---- */

FFA_DEVICE uint32_t cluster_rank()
{
    uint32_t rank;

    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* A barrier of all threads of the cluster, by whole warps. Threads that have ended count as
 * arrived. */
FFA_DEVICE void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n\t"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* Arrives on the mbarrier at the same address in the CTA of that rank: what asynchronous operations
 * of this thread have read may be overwritten. It does not release ordinary accesses to the
 * cluster, which would be a fence of the whole GPU. Those that matter are over: what they wrote was
 * read by a product or copy that this CTA has waited for, and what they read has arrived. */
FFA_DEVICE void mbarrier_arrive_at(uint32_t bar, uint32_t rank)
{
    asm volatile("{\n\t.reg .b32 there;\n\t"
                 "mapa.shared::cluster.u32 there, %0, %1;\n\t"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}

/* Stores a word to the same address in the block of that rank, asynchronously: its four bytes
 * complete on `bar` there. */
FFA_DEVICE void st_async_at(uint32_t address, uint32_t value, uint32_t bar, uint32_t rank)
{
    asm volatile("{\n\t.reg .b32 there, bar;\n\t"
                 "mapa.shared::cluster.u32 there, %0, %3;\n\t"
                 "mapa.shared::cluster.u32 bar, %2, %3;\n\t"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [there], %1, [bar];\n\t"
                 "}" ::"r"(address),
                 "r"(value), "r"(bar), "r"(rank)
                 : "memory");
}

/* Copies a box to the same address in each block of the cluster whose bit is set; completes on
 * `bar` in each. */
FFA_DEVICE void cp_async_bulk_tensor_3d_to(uint32_t dst, const void *map, uint32_t bar, int column,
                                           int head, int row, uint16_t blocks)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(column), "r"(head), "r"(row), "h"(blocks)
                 : "memory");
}

/* Copies `bytes` of shared memory to `dst` in the block of that rank, both ends 16-byte aligned;
 * completes on `bar` there. */
FFA_DEVICE void cp_async_bulk_at(uint32_t dst, uint32_t src, uint32_t bar, uint32_t bytes,
                                 uint32_t rank)
{
    asm volatile("{\n\t.reg .b32 there, bar;\n\t"
                 "mapa.shared::cluster.u32 there, %0, %4;\n\t"
                 "mapa.shared::cluster.u32 bar, %2, %4;\n\t"
                 "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                 "[there], [%1], %3, [bar];\n\t}" ::"r"(dst),
                 "r"(src), "r"(bar), "r"(bytes), "r"(rank)
                 : "memory");
}

/* ---- copy engine ---- */

/* Copies a box of a 3-d tensor (column, head, row) to shared memory; completes on `bar`. */
FFA_DEVICE void cp_async_bulk_tensor_3d(uint32_t dst, const void *map, uint32_t bar, int column,
                                        int head, int row)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(column), "r"(head), "r"(row)
                 : "memory");
}

/* Adds `bytes` of fp32 in shared memory to global memory, both contiguous and 16-byte aligned. */
FFA_DEVICE void bulk_reduce_add_f32(float *to, uint32_t from, int bytes)
{
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
        "r"(from), "r"(bytes)
        : "memory");
}

FFA_DEVICE void bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until this thread's bulk groups, but for the last `left`, have read shared memory
 * (bulk_wait: are complete). */
template <int left> FFA_DEVICE void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(left) : "memory");
}

template <int left> FFA_DEVICE void bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(left) : "memory");
}

/* Copies `bytes` to shared memory, both ends 16-byte aligned; completes on `bar`. */
FFA_DEVICE void cp_async_bulk(uint32_t dst, const void *src, uint32_t bar, uint32_t bytes)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %3, [%2];" ::"r"(dst),
                 "l"(src), "r"(bar), "r"(bytes)
                 : "memory");
}

FFA_DEVICE void prefetch_tensormap(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* ---- mma.sync and its operands ---- */

FFA_DEVICE void stmatrix_x4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

FFA_DEVICE void ldmatrix_x4(uint32_t (&d)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(address)
                 : "memory");
}

template <int dtype>
FFA_DEVICE void mma_m16n8k16(float &d0, float &d1, float &d2, float &d3, const uint32_t (&a)[4],
                             uint32_t b0, uint32_t b1)
{
    if (dtype == 1)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- registers ---- */

template <int count> FFA_DEVICE void setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

template <int count> FFA_DEVICE void setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

/* ---- arithmetic ---- */

FFA_DEVICE float ex2_approx(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

FFA_DEVICE float rcp_approx(float x)
{
    float y;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

FFA_DEVICE float lg2_approx(float x)
{
    float y;

    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two floats, `low` in the low half; round to nearest even. */
template <int dtype> FFA_DEVICE uint32_t pack_half2(float low, float high)
{
    uint32_t packed;

    if (dtype == 1)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/* The inverse of pack_half2. */
template <int dtype> FFA_DEVICE float2 unpack_half2(uint32_t packed)
{
    float2 x;

    if (dtype == 1)
        return make_float2(__int_as_float((int)(packed << 16)),
                           __int_as_float((int)(packed & 0xffff0000u)));
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\t"
        "cvt.f32.f16 %0, l;\n\tcvt.f32.f16 %1, h;\n\t}"
        : "=f"(x.x), "=f"(x.y)
        : "r"(packed));
    return x;
}

/* No clobber: volatile asm stays in order, and only asm and the copy engine write what it reads. */
FFA_DEVICE float2 ld_shared_f32x2(uint32_t address)
{
    float2 x;

    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address));
    return x;
}

FFA_DEVICE void st_shared_f32x2(uint32_t address, float a, float b)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}

FFA_DEVICE void st_shared(uint32_t address, uint32_t value)
{
    asm volatile("st.volatile.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

FFA_DEVICE uint32_t ld_shared(uint32_t address)
{
    uint32_t value;

    asm volatile("ld.volatile.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

FFA_DEVICE void atom_shared_add(uint32_t address, uint32_t value)
{
    asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

FFA_DEVICE void st_shared_v4_zero(uint32_t address)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}

/* Volatile, so that the compiler does not move loads ahead, where they would cost registers. */
FFA_DEVICE float2 ld_global_v2(const float *address)
{
    float2 value;

    asm volatile("ld.global.v2.f32 {%0, %1}, [%2];"
                 : "=f"(value.x), "=f"(value.y)
                 : "l"(address)
                 : "memory");
    return value;
}

FFA_DEVICE void st_shared_v4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

FFA_DEVICE void ld_shared_v4(uint32_t (&d)[4], uint32_t address)
{
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(address)
                 : "memory");
}

FFA_DEVICE void st_global_v4(void *address, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

#endif
