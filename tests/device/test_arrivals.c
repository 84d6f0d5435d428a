/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of FFA_SPEC_PARALLEL over keys that arrive while they run: arrivals set before the launch
 * and during it, flags that release the waiters, departures, and calls of whole plans. Results are
 * compared with the fp64 oracle. Where an ordinary plan happens to end sweeps and tiles at stage
 * ends, it is run twice, and results have the bits that they have over keys that are all there.
 * Exit 77 where there is no GPU.
 *
 * The key window is full of NaN where keys have not arrived, so that what is read early is seen. On
 * the emulator keys arrive once a launch can do nothing but wait for them, or has ended: what it
 * reads early it has read by then, however slow the machine is. On a GPU they arrive some
 * milliseconds apart.
 * CK_RUN_CASE=one|quick|dims runs a part; FFA_TEST_STORE=PATH is a store for the kernels, and
 * FFA_TEST_TEMPLATES=FOLDER has other templates than the library's.
 */
#include "attention/arguments.h"
#include "attention/arriving.h"
#include "base/half.h"
#include "emulator/live.h"
#include "mask/band.h"
#include "oracle/oracle_backward.h"
#include "support/device_case.h"
#include "support/suite.h"

#include <check.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <ffa/ffa.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

static ffa_context *context;

enum {
    STAGES = 4,
    RANKS = 3,
    BLOCK_WORDS = 32,
    SLOT = 9,
    CALL = 7,
    DEPARTURE_COUNTERS_AT = COUNTER_BYTES / 2 /* in a workspace (backward.c) */
};

/* Ends of the stages, of which the third is empty. GAPS: whole tiles of every kernel, so that no
 * tile of an ordinary plan crosses an end; and rows attend no last key of a stage, so that no sweep
 * does. The others have plans of arriving keys. */
enum mask_kind { GAPS, CAUSAL, LISTS, NO_OWN_KEYS, NO_KEYS };
static const int64_t stage_ends[][STAGES] = {
    [GAPS] = { 128, 384, 384, 512 },  [CAUSAL] = { 200, 333, 333, 512 },
    [LISTS] = { 100, 350, 350, 512 }, [NO_OWN_KEYS] = { 0, 333, 333, 512 },
    [NO_KEYS] = { 0, 0, 0, 0 },
};
static const ffa_mask_shape shape = { 160, 512 };
static const ffa_slice slices[] = {
    { .q_end = 160, .k_begin = 0, .k_end = 127, .type = FFA_SLICE_FULL },
    { .q_end = 160, .k_begin = 128, .k_end = 383, .type = FFA_SLICE_FULL },
    { .q_end = 160, .k_begin = 384, .k_end = 511, .type = FFA_SLICE_FULL },
};

/* Stage 1 goes to ranks 0 and 2, stage 3 to rank 1. */
static const int32_t owners[] = { 0, 2, 1 };
static const int32_t owner_at[ARRIVAL_STAGES_MAX + 1] = { 0, 0, 2, 2, 3 };

struct arrival_case {
    const char *name;
    int32_t heads_q, heads_kv, head_dim, head_dim_v, pack;
    uint32_t flags; /* of the spec, beside FFA_SPEC_PARALLEL and _BACKWARD */
    enum mask_kind kind;
};

struct pass {
    const struct arrival_case *from;
    struct attention_case host;
    struct attention_gradients gradients;
    ffa_mask *mask;
    ffa_kernels *kernels;
    ffa_plan *plan, *backward_plan; /* GAPS: the same */
    const int64_t *stage_end;
    cudaStream_t stream, fetch; /* of the launches; of what arrives */
    int64_t keys, row_elements; /* of a row of the key window, and of the sum window */
    uint16_t *window;           /* on the host: all keys */
    float *sums;                /* on the host: what was fetched */
    struct {
        void *q, *out, *lse, *dout, *dq, *dk, *dv, *window, *sums, *flags, *blocks[RANKS];
        void *block_table, *owners, *plan, *backward_plan, *workspace, *max_logits;
    } device;
    int64_t workspace_bytes;
    ffa_forward_args forward;
    ffa_backward_args backward;
    struct arriving_call call;
    long late_ms;          /* of arrive_late, before the first stage */
    atomic_bool has_ended; /* the launches that keys arrive for, fine or not */
};

/* ---- device memory ---- */

static void *device_memory(int64_t bytes, int byte)
{
    void *memory;
    ffa_error err = { 0 };

    must(ffa_device_alloc(&memory, context, bytes, &err), &err, "allocate");
    must(ffa_device_fill(context, memory, byte, bytes, &err), &err, "fill");
    return memory;
}

static void *device_copy_of(const void *from, int64_t bytes)
{
    void *memory = device_memory(bytes, 0xff);
    ffa_error err = { 0 };

    must(ffa_device_copy(context, memory, from, bytes, FFA_TO_DEVICE, &err), &err, "send");
    return memory;
}

static void fetch(void *to, const void *from, int64_t bytes)
{
    ffa_error err = { 0 };

    must(ffa_device_copy(context, to, from, bytes, FFA_FROM_DEVICE, &err), &err, "fetch");
}

static void must_cuda(cudaError_t code, const char *what)
{
    ck_assert_msg(code == cudaSuccess, "%s: CUDA error %d", what, (int)code);
}

static void finish_stream(const struct pass *p)
{
    must_cuda(cudaStreamSynchronize(p->stream), "the launches");
}

/* ---- a pass ---- */

static int64_t query_rows(const struct pass *p)
{
    return p->host.shape.mask.seqlen_q;
}

static int64_t q_bytes(const struct pass *p)
{
    return query_rows(p) * p->from->heads_q * p->from->head_dim * 2;
}

static int64_t out_bytes(const struct pass *p)
{
    return query_rows(p) * p->from->heads_q * p->host.head_dim_v * 2;
}

static int64_t lse_bytes(const struct pass *p)
{
    return query_rows(p) * p->from->heads_q * (int64_t)sizeof(float);
}

static int64_t dk_bytes(const struct pass *p)
{
    return p->keys * p->from->heads_kv * p->from->head_dim * 2;
}

static int64_t dv_bytes(const struct pass *p)
{
    return p->keys * p->from->heads_kv * p->host.head_dim_v * 2;
}

static ffa_kernels *kernels_of(const struct arrival_case *from, uint32_t flags)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_kernels *kernels;
    ffa_error err = { 0 };

    spec.dtype = FFA_BF16;
    spec.head_dim = from->head_dim;
    spec.head_dim_v = from->head_dim_v;
    spec.pack_heads = from->pack;
    spec.flags = flags;
    must(ffa_kernels_create(&kernels, context, &spec, &err), &err, "kernels");
    return kernels;
}

static void window_fill(struct pass *p)
{
    const int64_t of_k = p->from->heads_kv * p->from->head_dim;
    const int64_t of_v = p->from->heads_kv * p->host.head_dim_v;

    p->row_elements = of_k + of_v;
    p->window = malloc((size_t)(p->keys * p->row_elements) * sizeof *p->window);
    p->sums = malloc((size_t)(p->keys * p->row_elements) * sizeof *p->sums);
    ck_assert(p->window && p->sums);
    for (int64_t t = 0; t < p->keys; t++) {
        memcpy(p->window + t * p->row_elements, (uint16_t *)p->host.args.k.data + t * of_k,
               (size_t)of_k * 2);
        memcpy(p->window + t * p->row_elements + of_k, (uint16_t *)p->host.args.v.data + t * of_v,
               (size_t)of_v * 2);
    }
}

static void memory_take(struct pass *p)
{
    p->device.q = device_copy_of(p->host.args.q.data, q_bytes(p));
    p->device.out = device_memory(out_bytes(p), 0xff);
    p->device.lse = device_memory(lse_bytes(p), 0xff);
    p->device.dout = device_copy_of(p->gradients.dout.data, out_bytes(p));
    p->device.dq = device_memory(q_bytes(p), 0xff);
    p->device.dk = device_memory(dk_bytes(p), 0xff);
    p->device.dv = device_memory(dv_bytes(p), 0xff);
    p->device.window = device_copy_of(p->window, p->keys * p->row_elements * 2);
    p->device.sums = device_memory(p->keys * p->row_elements * (int64_t)sizeof(float), 0xff);
    p->device.flags = device_memory(STAGES * (int64_t)sizeof(uint64_t), 0);
    for (int r = 0; r < RANKS; r++)
        p->device.blocks[r] = device_memory(BLOCK_WORDS * (int64_t)sizeof(uint64_t), 0);
    p->device.block_table = device_copy_of(p->device.blocks, sizeof p->device.blocks);
    p->device.owners = device_copy_of(owners, sizeof owners);
    p->device.max_logits = device_memory(p->from->heads_q * (int64_t)sizeof(float), 0xff);
}

static void args_fill(struct pass *p)
{
    const int64_t of_k = p->from->heads_kv * p->from->head_dim;

    p->forward = p->host.args;
    p->forward.q.data = p->device.q;
    p->forward.out.data = p->device.out;
    p->forward.lse.data = p->device.lse;
    p->forward.k = p->forward.v =
        (ffa_tensor){ .data = p->device.window, .token_stride = p->row_elements };
    p->forward.k.head_stride = p->from->head_dim;
    p->forward.v.head_stride = p->host.head_dim_v;
    p->forward.v.data = (uint16_t *)p->device.window + of_k;
    p->forward.softcap = p->from->flags & FFA_SPEC_SOFTCAP ? 8.0f : 0.0f;
    if (p->from->flags & FFA_SPEC_MAX_LOGITS)
        p->forward.max_logits = p->device.max_logits;
    p->backward = attention_backward_args_of(&p->host, &p->gradients);
    p->backward.q = p->forward.q;
    p->backward.k = p->forward.k;
    p->backward.v = p->forward.v;
    p->backward.out = p->forward.out;
    p->backward.lse = p->forward.lse;
    p->backward.softcap = p->forward.softcap;
    p->backward.dout.data = p->device.dout;
    p->backward.dq.data = p->device.dq;
    p->backward.dk.data = p->device.dk;
    p->backward.dv.data = p->device.dv;
    p->call = (struct arriving_call){ .flags = p->device.flags,
                                      .value = CALL,
                                      .sums = p->device.sums,
                                      .blocks = p->device.block_table,
                                      .owners = p->device.owners,
                                      .owner_at = owner_at,
                                      .slot = SLOT };
}

static void *upload(ffa_plan *plan, const struct pass *p)
{
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    void *memory;
    ffa_error err = { 0 };

    must(ffa_plan_info_get(plan, &info, &err), &err, "plan info");
    memory = device_memory(info.upload_bytes, 0xff);
    must(ffa_plan_upload(plan, p->kernels, memory, NULL, &err), &err, "upload");
    must(ffa_device_synchronize(context, &err), &err, "upload");
    return memory;
}

static ffa_plan *arriving_plan(const struct pass *p, bool is_backward)
{
    static const int64_t first[][2] = { { 20, 90 } };
    struct bands bands[2] = { { .count = 0 } };
    const struct arriving_keys keys = {
        .shape = p->host.shape.mask,
        .lists = bands,
        .list_count = p->from->kind == LISTS ? 2 : 1,
        .stage_count = STAGES,
        .stage_ends = p->stage_end,
        .first = first,
        .first_count = p->stage_end[0] >= first[0][1],
    };
    ffa_plan *plan;
    ffa_error err = { 0 };

    for (int32_t l = 0; p->mask && l < keys.list_count; l++)
        must(bands_add_normal(&bands[l], &p->mask->lists[l].normal, &err), &err, "bands");
    must(plan_create_arriving(&plan, p->kernels, &keys, is_backward, &err), &err, "plan");
    for (int l = 0; l < 2; l++)
        bands_finish(&bands[l]);
    return plan;
}

static void plan_take(struct pass *p)
{
    int64_t forward_bytes;
    ffa_error err = { 0 };

    if (p->from->kind == GAPS) {
        must(ffa_plan_create(&p->plan, p->kernels, p->mask, &err), &err, "plan");
        p->backward_plan = p->plan;
        /* Not in lockstep: in which direction a wave goes hangs on the order of work items, and on
         * that the order in which dk and dv are added up. */
        ((struct plan_header *)(void *)p->plan->image_data)->lockstep = 0;
        p->device.plan = upload(p->plan, p);
    } else {
        p->plan = arriving_plan(p, false);
        p->backward_plan = arriving_plan(p, true);
        p->device.plan = upload(p->plan, p);
        p->device.backward_plan = upload(p->backward_plan, p);
    }
    must(ffa_workspace_bytes(p->kernels, p->plan, &forward_bytes, &err), &err, "workspace");
    must(ffa_backward_workspace_bytes(p->kernels, p->backward_plan, p->from->heads_q,
                                      p->from->heads_kv, &p->workspace_bytes, &err),
         &err, "workspace");
    ck_assert_int_ge(p->workspace_bytes, forward_bytes);
    p->device.workspace = device_memory(p->workspace_bytes, 0xff);
    p->forward.workspace = p->backward.workspace = p->device.workspace;
    p->forward.workspace_bytes = p->backward.workspace_bytes = p->workspace_bytes;
}

static ffa_mask *mask_take(enum mask_kind kind, ffa_error *err)
{
    static const ffa_slice causal[] = {
        { .q_end = 160, .k_end = 300, .type = FFA_SLICE_CAUSAL },
        { .q_begin = 30, .q_end = 100, .k_begin = 320, .k_end = 512, .type = FFA_SLICE_CAUSAL },
        { .q_begin = 110, .q_end = 150, .k_begin = 310, .k_end = 350, .type = FFA_SLICE_FULL },
    };
    const ffa_slice_list lists[] = { { causal, 3 }, { slices, 2 } };
    ffa_mask *mask;

    if (kind == LISTS)
        must(ffa_mask_create_per_head(&mask, &shape, lists, 2, err), err, "mask");
    else if (kind == GAPS)
        must(ffa_mask_create(&mask, &shape, slices, 3, err), err, "mask");
    else
        must(ffa_mask_create(&mask, &shape, causal, 3, err), err, "mask");
    return mask;
}

static void pass_init(struct pass *p, const struct arrival_case *from)
{
    const ffa_mask_shape own = { shape.seqlen_q, stage_ends[from->kind][STAGES - 1] };
    const struct attention_shape tensors = {
        own, FFA_BF16, from->heads_q, from->heads_kv, from->head_dim, LAYOUT_TOKENS
    };
    struct rng rng = { 5 };
    ffa_error err = { 0 };

    *p = (struct pass){ .from = from, .keys = own.seqlen_k, .stage_end = stage_ends[from->kind] };
    if (own.seqlen_k)
        p->mask = mask_take(from->kind, &err);
    attention_case_init_v(&p->host, &tensors, from->head_dim_v, &rng);
    attention_gradients_init(&p->gradients, &p->host, FFA_BF16, &rng);
    must_cuda(cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking), "stream");
    must_cuda(cudaStreamCreateWithFlags(&p->fetch, cudaStreamNonBlocking), "stream");
    window_fill(p);
    memory_take(p);
    p->kernels = kernels_of(from, from->flags | FFA_SPEC_PARALLEL | FFA_SPEC_BACKWARD);
    args_fill(p);
    plan_take(p);
}

static void pass_finish(struct pass *p)
{
    void *const all[] = {
        p->device.q,         p->device.out,         p->device.lse,          p->device.dout,
        p->device.dq,        p->device.dk,          p->device.dv,           p->device.window,
        p->device.sums,      p->device.flags,       p->device.blocks[0],    p->device.blocks[1],
        p->device.blocks[2], p->device.block_table, p->device.owners,       p->device.plan,
        p->device.workspace, p->device.max_logits,  p->device.backward_plan
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ffa_device_free(context, all[i]);
    must_cuda(cudaStreamDestroy(p->stream), "stream");
    must_cuda(cudaStreamDestroy(p->fetch), "stream");
    if (p->backward_plan != p->plan)
        ffa_plan_destroy(p->backward_plan);
    ffa_plan_destroy(p->plan);
    ffa_kernels_destroy(p->kernels);
    ffa_mask_destroy(p->mask);
    attention_gradients_finish(&p->gradients);
    attention_case_finish(&p->host);
    free(p->window);
    free(p->sums);
}

/* From here on an ordinary plan is one of arriving keys: its sweeps and key tiles end where stages
 * do. */
static void plan_arrives(struct pass *p)
{
    const struct tile_plan *forward = &p->plan->forward, *backward = &p->plan->backward;

    ck_assert_int_eq(p->from->kind, GAPS);
    p->plan->arriving.count = STAGES;
    atomic_store(&p->plan->found->order, 0); /* forgotten: it may be one of parts */
    for (int s = 0; s < STAGES; s++)
        p->plan->arriving.stage_end[s] = (int32_t)p->stage_end[s];
    for (int64_t i = 0; i < forward->sweep_count; i++)
        for (int s = 0; s < STAGES; s++)
            ck_assert(forward->sweeps[i].begin >= p->stage_end[s] ||
                      forward->sweeps[i].end <= p->stage_end[s]);
    for (int64_t t = 0; t < backward->tile_count; t++) {
        int s = 0;

        while (backward->tiles[t].begin >= p->stage_end[s])
            s++;
        ck_assert_int_le(backward->tiles[t].begin + backward->tiles[t].count, p->stage_end[s]);
        p->plan->arriving.stage_tiles[s]++;
    }
}

/* ---- what arrives ---- */

static int64_t stage_begin(const struct pass *p, int s)
{
    return s ? p->stage_end[s - 1] : 0;
}

static int64_t stage_keys(const struct pass *p, int s)
{
    return p->stage_end[s] - stage_begin(p, s);
}

/* Keys of stage s lie in the window from here on, as it is on the fetch stream. */
static void keys_send(const struct pass *p, int s)
{
    const int64_t at = stage_begin(p, s) * p->row_elements;
    const size_t bytes = (size_t)(stage_keys(p, s) * p->row_elements * 2);

    if (bytes)
        must_cuda(cudaMemcpyAsync((uint16_t *)p->device.window + at, p->window + at, bytes,
                                  cudaMemcpyHostToDevice, p->fetch),
                  "keys");
}

static void flag_send(const struct pass *p, int s, uint64_t value)
{
    must_cuda(cudaMemcpyAsync((uint64_t *)p->device.flags + s, &value, sizeof value,
                              cudaMemcpyHostToDevice, p->fetch),
              "flag");
    must_cuda(cudaStreamSynchronize(p->fetch), "flag");
}

/* All that launches write is NaN; only own keys are there; no stage has arrived; flag blocks are
 * empty. */
static void reset(struct pass *p)
{
    ffa_error err = { 0 };
    const struct {
        void *memory;
        int64_t bytes;
        int byte;
    } all[] = {
        { p->device.out, out_bytes(p), 0xff },
        { p->device.lse, lse_bytes(p), 0xff },
        { p->device.dq, q_bytes(p), 0xff },
        { p->device.dk, dk_bytes(p), 0xff },
        { p->device.dv, dv_bytes(p), 0xff },
        { p->device.window, p->keys * p->row_elements * 2, 0xff },
        { p->device.sums, p->keys * p->row_elements * (int64_t)sizeof(float), 0xff },
        { p->device.workspace, p->workspace_bytes, 0xff },
        { p->device.flags, STAGES * (int64_t)sizeof(uint64_t), 0 },
        { p->device.blocks[0], BLOCK_WORDS * (int64_t)sizeof(uint64_t), 0 },
        { p->device.blocks[1], BLOCK_WORDS * (int64_t)sizeof(uint64_t), 0 },
        { p->device.blocks[2], BLOCK_WORDS * (int64_t)sizeof(uint64_t), 0 },
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        must(ffa_device_fill(context, all[i].memory, all[i].byte, all[i].bytes, &err), &err,
             "fill");
    must(ffa_device_synchronize(context, &err), &err, "reset");
    keys_send(p, 0);
    must_cuda(cudaStreamSynchronize(p->fetch), "own keys");
}

static void arrive_before(const struct pass *p)
{
    for (int s = 1; s < STAGES; s++) {
        keys_send(p, s);
        if (stage_keys(p, s) > 0) /* an empty stage needs no flag */
            flag_send(p, s, CALL);
    }
}

static void pause_ms(long ms)
{
    const struct timespec time = { ms / 1000, ms % 1000 * 1000000 };

    (void)nanosleep(&time, NULL);
}

/* Until the launches have stalled, or ended; without an emulator, for a time in which they should
 * have. */
static void pause_for_launches(const struct pass *p)
{
    int64_t (*stalls)(void), before;

    *(void **)&stalls = dlsym(RTLD_DEFAULT, "emulator_stalls");
    if (!stalls) {
        pause_ms(20);
        return;
    }
    for (before = stalls(); stalls() < before + 2 && !atomic_load(&p->has_ended);)
        pause_ms(1);
}

static void *arrive_late(void *user)
{
    const struct pass *p = user;

    must_cuda(cudaSetDevice(0), "device");
    pause_ms(p->late_ms);
    for (int s = 1; s < STAGES; s++) {
        pause_for_launches(p);
        keys_send(p, s);
        pause_ms(5);
        flag_send(p, s, CALL + (uint64_t)s - 1); /* one of a later call will do */
    }
    return NULL;
}

/* ---- results ---- */

struct results {
    void *out, *lse, *dq, *dk, *dv, *sums;
    float max_logits[64];
};

static void *fetched(const void *from, int64_t bytes)
{
    void *to = malloc((size_t)bytes);

    ck_assert_ptr_nonnull(to);
    fetch(to, from, bytes);
    return to;
}

static void results_fetch(struct results *to, const struct pass *p)
{
    *to = (struct results){
        .out = fetched(p->device.out, out_bytes(p)),
        .lse = fetched(p->device.lse, lse_bytes(p)),
        .dq = fetched(p->device.dq, q_bytes(p)),
        .dk = fetched(p->device.dk, dk_bytes(p)),
        .dv = fetched(p->device.dv, dv_bytes(p)),
        .sums = fetched(p->device.sums, p->keys * p->row_elements * (int64_t)sizeof(float)),
    };
    fetch(to->max_logits, p->device.max_logits, p->from->heads_q * (int64_t)sizeof(float));
}

static void results_finish(struct results *r)
{
    free(r->out);
    free(r->lse);
    free(r->dq);
    free(r->dk);
    free(r->dv);
    free(r->sums);
}

/* dk and dv are what the sums round to. */
static void round_sums(struct results *r, const struct pass *p)
{
    const int64_t of_k = p->from->heads_kv * p->from->head_dim;
    const int64_t of_v = p->from->heads_kv * p->host.head_dim_v;

    for (int64_t t = 0; t < p->keys; t++) {
        const float *sums = (const float *)r->sums + t * p->row_elements;

        for (int64_t c = 0; c < of_k; c++)
            ((uint16_t *)r->dk)[t * of_k + c] = bf16_from_float(sums[c]);
        for (int64_t c = 0; c < of_v; c++)
            ((uint16_t *)r->dv)[t * of_v + c] = bf16_from_float(sums[of_k + c]);
    }
}

/* Whether the sums of a kv head are added up in one order, whatever the kernels' parts. */
static bool has_one_order(const struct pass *p)
{
    return p->from->heads_q == p->from->heads_kv;
}

static void check_equal(const struct results *got, const struct results *want, const struct pass *p)
{
    const char *name = p->from->name;

    ck_assert_msg(!memcmp(got->out, want->out, (size_t)out_bytes(p)), "%s: out differs", name);
    ck_assert_msg(!memcmp(got->lse, want->lse, (size_t)lse_bytes(p)), "%s: lse differs", name);
    if (p->from->flags & FFA_SPEC_MAX_LOGITS)
        ck_assert_msg(
            !memcmp(got->max_logits, want->max_logits, (size_t)p->from->heads_q * sizeof(float)),
            "%s: max_logits differs", name);
    if (has_one_order(p)) {
        ck_assert_msg(!memcmp(got->dk, want->dk, (size_t)dk_bytes(p)), "%s: dk differs", name);
        ck_assert_msg(!memcmp(got->dv, want->dv, (size_t)dv_bytes(p)), "%s: dv differs", name);
    }
    if (has_one_order(p) && p->from->flags & FFA_SPEC_DETERMINISTIC)
        ck_assert_msg(!memcmp(got->dq, want->dq, (size_t)q_bytes(p)), "%s: dq differs", name);
}

/* out, lse and all gradients, against attention in fp64. */
static void check_results(const struct results *got, struct pass *p)
{
    const ffa_slice_list lists[] = { ffa_mask_slices(p->mask, 0),
                                     ffa_mask_slices(p->mask, p->from->kind == LISTS) };
    const struct oracle_backward_tolerance tolerance =
        oracle_backward_tolerance_of(FFA_BF16, p->keys);
    struct oracle_backward_case test = {
        .forward = { .shape = p->host.shape.mask,
                     .lists = lists,
                     .list_count = p->from->kind == LISTS ? 2 : 1,
                     .head_dim = p->from->head_dim,
                     .head_dim_v = p->host.head_dim_v,
                     .dtype = FFA_BF16,
                     .out_dtype = FFA_BF16,
                     .args = &p->host.args },
        .grad_dtype = FFA_BF16,
        .dout = p->gradients.dout,
        .dq = p->gradients.dq,
        .dk = p->gradients.dk,
        .dv = p->gradients.dv,
    };
    const struct oracle_tolerance out_tolerance = oracle_tolerance_of(FFA_BF16);
    struct oracle_gradients want = { 0 };
    struct oracle_result want_out;
    struct oracle_report out_report;
    struct oracle_backward_report report;
    ffa_error err = { 0 };

    p->host.args.softcap = p->forward.softcap;
    memcpy(p->gradients.dq.data, got->dq, (size_t)q_bytes(p));
    memcpy(p->gradients.dk.data, got->dk, (size_t)dk_bytes(p));
    memcpy(p->gradients.dv.data, got->dv, (size_t)dv_bytes(p));
    must(oracle_backward(&want, &test, &err), &err, "oracle");
    oracle_backward_compare(&report, &test, &want, &tolerance);
    ck_assert_msg(report.passed, "%s: dq %.2e dk %.2e dv %.2e, NaN %lld: %s", p->from->name,
                  report.dq, report.dk, report.dv, (long long)report.nan_count, report.reason);
    oracle_gradients_finish(&want);
    memcpy(p->host.args.out.data, got->out, (size_t)out_bytes(p));
    memcpy(p->host.args.lse.data, got->lse, (size_t)lse_bytes(p));
    must(oracle_forward(&want_out, &test.forward, &err), &err, "oracle");
    oracle_compare(&out_report, &test.forward, &want_out, &out_tolerance);
    ck_assert_msg(out_report.passed, "%s: out %.2e lse %.2e, NaN %lld: %s", p->from->name,
                  out_report.out, out_report.lse, (long long)out_report.nan_count,
                  out_report.reason);
    oracle_result_finish(&want_out);
}

/* Each owner was told of its stages, and of no others; every count is what it was to be. */
static void check_departures(const struct pass *p)
{
    int counters[ARRIVAL_STAGES_MAX];
    int parts = 0; /* of a kv head's query heads, the same in all stages */

    for (int r = 0; r < RANKS; r++) {
        uint64_t block[BLOCK_WORDS];

        fetch(block, p->device.blocks[r], sizeof block);
        for (int w = 0; w < BLOCK_WORDS; w++) {
            const bool is_told = w == SLOT + (r == 1 ? 3 : 1);

            ck_assert_msg(block[w] == (is_told ? CALL : 0), "%s: word %d of rank %d is %llu",
                          p->from->name, w, r, (unsigned long long)block[w]);
        }
    }
    fetch(counters, (const char *)p->device.workspace + DEPARTURE_COUNTERS_AT, sizeof counters);
    for (int s = 0; s < STAGES; s++) {
        const int64_t tiles =
            owner_at[s + 1] > owner_at[s] ? p->backward_plan->arriving.stage_tiles[s] : 0;
        const int64_t cluster = p->from->head_dim > 128 ? 2 : 1;
        const int64_t heads = p->from->kind == LISTS ? 1 : p->from->heads_kv;

        const int64_t whole = tiles * heads * cluster * 8; /* of items in one part */

        if (whole > 0 && !parts)
            parts = counters[s] == 2 * whole ? 2 : 1;
        ck_assert_msg(counters[s] == parts * whole, "%s: stage %d counted %d", p->from->name, s,
                      counters[s]);
    }
}

/* ---- tests ---- */

/* The same plan over keys that are there. */
static void run_whole(struct pass *p, struct results *results)
{
    ffa_error err = { 0 };

    reset(p);
    for (int s = 1; s < STAGES; s++)
        keys_send(p, s);
    must_cuda(cudaStreamSynchronize(p->fetch), "keys");
    must(ffa_forward(p->kernels, p->plan, &p->forward, p->stream, &err), &err, "forward");
    must(ffa_backward(p->kernels, p->plan, &p->backward, p->stream, &err), &err, "backward");
    finish_stream(p);
    results_fetch(results, p);
}

/* Forward and backward; before each of them, nothing but the own keys is there. */
static void run_arriving(struct pass *p, bool is_late, struct results *results)
{
    ffa_error err = { 0 };

    for (int pass = 0; pass < 2; pass++) {
        cudaError_t code;
        pthread_t thread;
        ffa_backward_args backward = p->backward;
        void *out = fetched(p->device.out, out_bytes(p));
        void *lse = fetched(p->device.lse, lse_bytes(p));

        reset(p);
        if (pass == 1) { /* what the forward pass left */
            must(ffa_device_copy(context, p->device.out, out, out_bytes(p), FFA_TO_DEVICE, &err),
                 &err, "send");
            must(ffa_device_copy(context, p->device.lse, lse, lse_bytes(p), FFA_TO_DEVICE, &err),
                 &err, "send");
        }
        free(out);
        free(lse);
        atomic_store(&p->has_ended, false);
        if (!is_late)
            arrive_before(p);
        else
            ck_assert_int_eq(pthread_create(&thread, NULL, arrive_late, p), 0);
        backward.dk.data = backward.dv.data = NULL; /* nobody looks at them */
        if (pass == 0)
            must(forward_enqueue_arriving(p->kernels, p->plan, &p->forward, &p->call, p->stream,
                                          &err),
                 &err, "forward");
        else
            must(backward_enqueue_arriving(p->kernels, p->backward_plan, &backward, &p->call,
                                           p->stream, &err),
                 &err, "backward");
        code = cudaStreamSynchronize(p->stream);
        atomic_store(&p->has_ended, true);
        if (is_late)
            (void)pthread_join(thread, NULL);
        must_cuda(code, "the launches");
    }
    results_fetch(results, p);
    round_sums(results, p);
}

static void check_case(const struct arrival_case *from)
{
    struct results whole = { 0 }, got;
    struct pass p;

    pass_init(&p, from);
    if (from->kind == GAPS) {
        run_whole(&p, &whole);
        check_results(&whole, &p);
        plan_arrives(&p);
    }
    for (int is_late = 0; is_late < 2; is_late++) {
        run_arriving(&p, is_late, &got);
        if (from->kind == GAPS)
            check_equal(&got, &whole, &p);
        check_results(&got, &p);
        check_departures(&p);
        results_finish(&got);
    }
    results_finish(&whole);
    pass_finish(&p);
}

static const struct arrival_case quick_cases[] = {
    { "64", 2, 2, 64, 0, 0, 0, GAPS },
    { "groups", 4, 2, 64, 0, 0, FFA_SPEC_MAX_LOGITS, GAPS },
    { "packed", 4, 1, 64, 0, 4, FFA_SPEC_SOFTCAP, GAPS },
    { "causal", 2, 1, 64, 0, 0, 0, CAUSAL },
    { "packed, causal", 4, 2, 64, 0, 2, 0, CAUSAL },
    { "lists", 4, 2, 64, 0, 0, FFA_SPEC_DETERMINISTIC, LISTS },
    { "no own keys", 1, 1, 64, 0, 0, 0, NO_OWN_KEYS },
};
static const struct arrival_case dims_cases[] = {
    { "128, deterministic", 2, 2, 128, 0, 0, FFA_SPEC_DETERMINISTIC, GAPS },
    { "128, debug", 1, 1, 128, 0, 0, FFA_SPEC_DEBUG, CAUSAL },
    { "192:128", 2, 1, 192, 128, 0, 0, CAUSAL },
    { "256, deterministic", 1, 1, 256, 0, 0, FFA_SPEC_DETERMINISTIC | FFA_SPEC_SOFTCAP, CAUSAL },
    { "72:40", 1, 1, 72, 40, 0, 0, CAUSAL },
    { "256", 2, 2, 256, 0, 0, 0, GAPS },
    { "64:256", 1, 1, 64, 256, 0, 0, GAPS },
};

START_TEST(keys_arrive)
{
    check_case(&quick_cases[_i]);
}
END_TEST

/* A wait of a second is one for ever, but where other ranks may take longer. */
START_TEST(debug_kernels_wait_for_late_ranks)
{
    static const struct arrival_case from = {
        "debug, late", 1, 1, 64, 0, 0, FFA_SPEC_DEBUG, CAUSAL
    };
    struct results got;
    struct pass p;

    pass_init(&p, &from);
    p.call.patience_ms = 120000;
    p.late_ms = getenv("FFA_EMULATOR_SMS") ? 50 : 3000; /* there a second of tries takes minutes */
    run_arriving(&p, true, &got);
    check_results(&got, &p);
    results_finish(&got);
    pass_finish(&p);
}
END_TEST

START_TEST(keys_arrive_at_other_widths)
{
    check_case(&dims_cases[_i]);
}
END_TEST

/* Flags of a call that was given up: the kernels end, whatever lies in the window. */
START_TEST(poisoned_flags_release_the_kernels)
{
    const uint64_t poison = CALL + ((uint64_t)1 << 62);
    struct pass p;
    ffa_error err = { 0 };
    float *lse;

    pass_init(&p, &quick_cases[0]);
    plan_arrives(&p);
    reset(&p);
    for (int s = 1; s < STAGES; s++)
        flag_send(&p, s, poison);
    must(forward_enqueue_arriving(p.kernels, p.plan, &p.forward, &p.call, p.stream, &err), &err,
         "forward");
    must(backward_enqueue_arriving(p.kernels, p.plan, &p.backward, &p.call, p.stream, &err), &err,
         "backward");
    finish_stream(&p);
    lse = fetched(p.device.lse, lse_bytes(&p));
    ck_assert(isnan(lse[0]));
    check_departures(&p);
    free(lse);
    pass_finish(&p);
}
END_TEST

/* A flag of the call before does not release anybody: numbers are cyclic. */
START_TEST(call_numbers_are_cyclic)
{
    struct results whole, got;
    struct pass p;

    pass_init(&p, &quick_cases[0]);
    run_whole(&p, &whole);
    plan_arrives(&p);
    p.call.value = CALL; /* flags that are reset to 0 are 7 calls behind */
    run_arriving(&p, true, &got);
    check_equal(&got, &whole, &p);
    results_finish(&got);
    results_finish(&whole);
    pass_finish(&p);
}
END_TEST

/* Waits for stage 1's departure, takes its sums, and only then lets stage 3 arrive. */
struct owner {
    const struct pass *p;
    float *sums; /* of stage 1 */
    int64_t bytes;
};

static void *take_then_send(void *user)
{
    struct owner *owner = user;
    const struct pass *p = owner->p;
    uint64_t word = 0;

    must_cuda(cudaSetDevice(0), "device");
    keys_send(p, 1);
    flag_send(p, 1, CALL);
    for (int tries = 0; word != CALL && tries < 20000; tries++) {
        pause_ms(1);
        must_cuda(cudaMemcpyAsync(&word, (uint64_t *)p->device.blocks[2] + SLOT + 1, sizeof word,
                                  cudaMemcpyDeviceToHost, p->fetch),
                  "the departure");
        must_cuda(cudaStreamSynchronize(p->fetch), "the departure");
    }
    ck_assert_uint_eq(word, CALL);
    must_cuda(cudaMemcpyAsync(owner->sums,
                              (float *)p->device.sums + stage_begin(p, 1) * p->row_elements,
                              (size_t)owner->bytes, cudaMemcpyDeviceToHost, p->fetch),
              "the sums");
    must_cuda(cudaStreamSynchronize(p->fetch), "the sums");
    keys_send(p, 3);
    flag_send(p, 3, CALL);
    return NULL;
}

START_TEST(sums_are_complete_when_they_depart)
{
    struct owner owner;
    struct pass p;
    pthread_t thread;
    ffa_error err = { 0 };
    float *sums;

    pass_init(&p, &quick_cases[_i]);
    plan_arrives(&p);
    owner.p = &p;
    owner.bytes = stage_keys(&p, 1) * p.row_elements * (int64_t)sizeof(float);
    owner.sums = malloc((size_t)owner.bytes);
    ck_assert_ptr_nonnull(owner.sums);
    reset(&p);
    arrive_before(&p);
    must(forward_enqueue_arriving(p.kernels, p.plan, &p.forward, &p.call, p.stream, &err), &err,
         "forward");
    finish_stream(&p);
    for (int s = 1; s < STAGES; s++)
        flag_send(&p, s, 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, take_then_send, &owner), 0);
    must(backward_enqueue_arriving(p.kernels, p.plan, &p.backward, &p.call, p.stream, &err), &err,
         "backward");
    (void)pthread_join(thread, NULL);
    finish_stream(&p);
    sums = fetched((float *)p.device.sums + stage_begin(&p, 1) * p.row_elements, owner.bytes);
    ck_assert_msg(!memcmp(sums, owner.sums, (size_t)owner.bytes), "sums changed after departing");
    check_departures(&p);
    free(sums);
    free(owner.sums);
    pass_finish(&p);
}
END_TEST

/* What sees mutants of the kernels (tests/emulator/mutants.sh): one spec, stages inside of tiles.
 */
START_TEST(keys_arrive_in_one_case)
{
    check_case(&quick_cases[3]);
}
END_TEST

/* Rows attend nothing; nobody departs. */
START_TEST(no_keys_at_all)
{
    static const struct arrival_case none = { "no keys", 2, 1, 64, 0, 0, 0, NO_KEYS };
    static const int32_t nobody[ARRIVAL_STAGES_MAX + 1] = { 0 };
    struct results got;
    struct pass p;

    pass_init(&p, &none);
    p.call.owner_at = nobody;
    run_arriving(&p, false, &got);
    for (int64_t i = 0; i < out_bytes(&p) / 2; i++)
        ck_assert_uint_eq(((uint16_t *)got.out)[i], 0);
    for (int64_t i = 0; i < q_bytes(&p) / 2; i++)
        ck_assert_uint_eq(((uint16_t *)got.dq)[i], 0);
    for (int64_t i = 0; i < lse_bytes(&p) / 4; i++)
        ck_assert(((float *)got.lse)[i] == -INFINITY);
    results_finish(&got);
    pass_finish(&p);
}
END_TEST

/* What is refused, and enqueues nothing. */
START_TEST(calls_and_plans_that_do_not_match)
{
    struct pass p;
    ffa_error err = { 0 };
    struct arriving_call call;
    ffa_kernels *others;

    pass_init(&p, &quick_cases[0]);
    ck_assert_int_eq(
        forward_enqueue_arriving(p.kernels, p.plan, &p.forward, &p.call, p.stream, &err),
        FFA_INVALID);
    ck_assert_msg(strstr(err.message, "keys that are there"), "%s", err.message);
    plan_arrives(&p);
    ck_assert_int_eq(ffa_forward(p.kernels, p.plan, &p.forward, p.stream, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "keys that arrive"), "%s", err.message);
    ck_assert_int_eq(ffa_backward(p.kernels, p.plan, &p.backward, p.stream, &err), FFA_INVALID);
    others = kernels_of(&quick_cases[0], FFA_SPEC_BACKWARD);
    ck_assert_int_eq(forward_enqueue_arriving(others, p.plan, &p.forward, &p.call, p.stream, &err),
                     FFA_INVALID);
    ck_assert_msg(strstr(err.message, "FFA_SPEC_PARALLEL"), "%s", err.message);
    ffa_kernels_destroy(others);
    call = p.call;
    call.flags = NULL;
    ck_assert_int_eq(forward_enqueue_arriving(p.kernels, p.plan, &p.forward, &call, p.stream, &err),
                     FFA_INVALID);
    ck_assert_msg(strstr(err.message, "flags is NULL"), "%s", err.message);
    call = p.call;
    call.sums = (float *)p.device.sums + 1;
    ck_assert_int_eq(
        backward_enqueue_arriving(p.kernels, p.plan, &p.backward, &call, p.stream, &err),
        FFA_INVALID);
    ck_assert_msg(strstr(err.message, "sums"), "%s", err.message);
    pass_finish(&p);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("arrivals");
    TCase *quick = tcase_create("quick"), *dims = tcase_create("dims");
    TCase *one = tcase_create("one");
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    opts.cache_path = getenv("FFA_TEST_STORE");
    opts.templates_dir = getenv("FFA_TEST_TEMPLATES");
    if (ffa_open(&context, 0, &opts, &err) != FFA_OK) {
        printf("skipped: no GPU that a kernel exists for: %s\n", err.message);
        return 77;
    }
    tcase_set_timeout(quick, 600);
    tcase_set_timeout(dims, 900);
    tcase_add_loop_test(quick, keys_arrive, 0, sizeof quick_cases / sizeof *quick_cases);
    tcase_add_test(quick, poisoned_flags_release_the_kernels);
    tcase_add_test(quick, call_numbers_are_cyclic);
    tcase_add_loop_test(quick, sums_are_complete_when_they_depart, 0, 2);
    tcase_add_test(quick, no_keys_at_all);
    tcase_add_test(dims, debug_kernels_wait_for_late_ranks);
    tcase_add_test(quick, calls_and_plans_that_do_not_match);
    tcase_add_loop_test(dims, keys_arrive_at_other_widths, 0,
                        sizeof dims_cases / sizeof *dims_cases);
    tcase_set_timeout(one, 600);
    tcase_add_test(one, keys_arrive_in_one_case);
    suite_add_tcase(suite, one);
    suite_add_tcase(suite, quick);
    suite_add_tcase(suite, dims);
    return suite_run_here(suite);
}
