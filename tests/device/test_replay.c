/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA graphs that replay with other masks, and uploads, on a GPU. Exit 77 where there is no GPU.
 *
 * A graph of a forward and a backward call is captured with the plan of one mask, and replayed with
 * the plans of others in its buffer. Each replay is compared with the calls of the plan that is
 * there, bit by bit (dq where kernels are deterministic), and with the fp64 oracle. The workspace
 * is full of NaN before each call and each replay, but for its counter.
 *
 * Uploads are enqueued behind a host function that keeps its stream busy, and their plans destroyed
 * at once. FFA_TEST_LEVEL is explained in device_case.h.
 */
#include "attention/arguments.h"
#include "oracle/oracle_backward.h"
#include "support/device_case.h"

#include "support/suite.h"
#include <check.h>
#include <cuda_runtime_api.h>
#include <ffa/ffa.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static ffa_context *context;

/* ---- a call of both passes ---- */

enum { TENSORS = 9, FIRST_OUTPUT = 3, DOUT = 5, DQ = 6 }; /* q k v, out lse, dout, dq dk dv */
enum { CAPACITY = 1 << 20, MASKS = 4 };

static const char *const tensor_names[TENSORS] = { "q",    "k",  "v",  "out", "lse",
                                                   "dout", "dq", "dk", "dv" };

struct both_passes {
    struct attention_case host;
    struct attention_gradients gradients;
    ffa_backward_args on_host;
    ffa_forward_args forward;   /* with device pointers */
    ffa_backward_args backward; /* likewise */
    int64_t bytes[TENSORS];
    unsigned char *own[TENSORS]; /* outputs of calls that are not replayed */
    void *buffer, *workspace;
    int64_t workspace_bytes;
    bool has_backward; /* else the forward pass alone is called */
};

static ffa_tensor *tensor_of(ffa_backward_args *args, int index)
{
    ffa_tensor *all[TENSORS] = { &args->q,    &args->k,  &args->v,  &args->out, &args->lse,
                                 &args->dout, &args->dq, &args->dk, &args->dv };

    return all[index];
}

static bool is_output(const struct both_passes *call, int index)
{
    return index >= FIRST_OUTPUT && (index < DOUT || (index > DOUT && call->has_backward));
}

static void call_init(struct both_passes *call, const struct attention_shape *shape,
                      struct rng *rng)
{
    ffa_error err = { 0 };

    *call = (struct both_passes){ .buffer = NULL };
    attention_case_init(&call->host, shape, rng);
    attention_gradients_init(&call->gradients, &call->host, shape->dtype, rng);
    call->on_host = attention_backward_args_of(&call->host, &call->gradients);
    call->backward = call->on_host;
    for (int i = 0; i < TENSORS; i++) {
        const bool is_key = i == 1 || i == 2 || i >= 7;
        const int64_t tokens = is_key ? shape->mask.seqlen_k : shape->mask.seqlen_q;
        const int64_t heads = is_key ? shape->heads_kv : shape->heads_q;
        ffa_tensor *tensor = tensor_of(&call->backward, i);

        call->bytes[i] = tokens * heads * (i == 4 ? 4 : 2 * shape->head_dim);
        must(ffa_device_alloc(&tensor->data, context, call->bytes[i], &err), &err, "allocate");
        must(ffa_device_copy(context, tensor->data, tensor_of(&call->on_host, i)->data,
                             call->bytes[i], FFA_TO_DEVICE, &err),
             &err, "send");
        call->own[i] = malloc((size_t)call->bytes[i]);
        ck_assert_ptr_nonnull(call->own[i]);
    }
    call->forward = call->host.args;
    call->forward.q = call->backward.q;
    call->forward.k = call->backward.k;
    call->forward.v = call->backward.v;
    call->forward.out = call->backward.out;
    call->forward.lse = call->backward.lse;
}

/* What the pass that needs more needs. */
static int64_t workspace_bytes(const struct both_passes *call, const ffa_kernels *kernels,
                               const ffa_plan *plan)
{
    const struct attention_shape *shape = &call->host.shape;
    int64_t forward, backward = 0;
    ffa_error err = { 0 };

    must(ffa_workspace_bytes(kernels, plan, &forward, &err), &err, "workspace");
    if (!call->has_backward)
        return forward;
    must(ffa_backward_workspace_bytes(kernels, plan, shape->heads_q, shape->heads_kv, &backward,
                                      &err),
         &err, "workspace");
    return forward > backward ? forward : backward;
}

static void call_lend(struct both_passes *call, const ffa_kernels *kernels, const ffa_plan *plan)
{
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    ffa_error err = { 0 };

    must(ffa_plan_info_get(plan, &info, &err), &err, "info");
    ck_assert_int_eq(info.upload_bytes, CAPACITY);
    ck_assert_int_eq(info.capacity_bytes, CAPACITY);
    must(ffa_device_alloc(&call->buffer, context, info.upload_bytes, &err), &err, "buffer");
    must(ffa_device_fill(context, call->buffer, 0xff, info.upload_bytes, &err), &err, "buffer");
    call->workspace_bytes = workspace_bytes(call, kernels, plan);
    must(ffa_device_alloc(&call->workspace, context, call->workspace_bytes, &err), &err,
         "workspace");
    call->forward.workspace = call->backward.workspace = call->workspace;
    call->forward.workspace_bytes = call->backward.workspace_bytes = call->workspace_bytes;
}

static void call_finish(struct both_passes *call)
{
    for (int i = 0; i < TENSORS; i++) {
        ffa_device_free(context, tensor_of(&call->backward, i)->data);
        free(call->own[i]);
    }
    ffa_device_free(context, call->buffer);
    ffa_device_free(context, call->workspace);
    attention_gradients_finish(&call->gradients);
    attention_case_finish(&call->host);
}

/* Spoil outputs and workspace, on the stream of the calls. The counter is far ahead: one that is
 * somewhat behind would only have work done twice. */
static void call_spoil(struct both_passes *call, cudaStream_t stream)
{
    ck_assert_int_eq(cudaMemsetAsync(call->workspace, 0xff, (size_t)call->workspace_bytes, stream),
                     cudaSuccess);
    ck_assert_int_eq(cudaMemsetAsync(call->workspace, 0x7f, COUNTER_BYTES, stream), cudaSuccess);
    for (int i = 0; i < TENSORS; i++)
        if (is_output(call, i))
            ck_assert_int_eq(cudaMemsetAsync(tensor_of(&call->backward, i)->data, 0xff,
                                             (size_t)call->bytes[i], stream),
                             cudaSuccess);
}

static void call_enqueue(struct both_passes *call, const ffa_kernels *kernels, const ffa_plan *plan,
                         cudaStream_t stream)
{
    ffa_error err = { 0 };

    must(ffa_forward(kernels, plan, &call->forward, stream, &err), &err, "forward");
    if (call->has_backward)
        must(ffa_backward(kernels, plan, &call->backward, stream, &err), &err, "backward");
}

static void call_fetch(struct both_passes *call, cudaStream_t stream)
{
    ffa_error err = { 0 };

    ck_assert_int_eq(cudaStreamSynchronize(stream), cudaSuccess);
    for (int i = 0; i < TENSORS; i++)
        if (is_output(call, i))
            must(ffa_device_copy(context, tensor_of(&call->on_host, i)->data,
                                 tensor_of(&call->backward, i)->data, call->bytes[i],
                                 FFA_FROM_DEVICE, &err),
                 &err, "fetch");
}

static void call_compare(struct both_passes *call, const ffa_mask *mask, const char *what)
{
    const struct attention_shape *shape = &call->host.shape;
    const struct oracle_tolerance tolerance = oracle_tolerance_of(shape->dtype);
    const struct oracle_backward_tolerance tolerance_back =
        oracle_backward_tolerance_of(shape->dtype, shape->mask.seqlen_k);
    ffa_slice_list lists[8];
    struct oracle_backward_case test = { .forward = { .shape = shape->mask,
                                                      .lists = lists,
                                                      .list_count = ffa_mask_head_count(mask),
                                                      .head_dim = shape->head_dim,
                                                      .dtype = shape->dtype,
                                                      .args = &call->host.args },
                                         .grad_dtype = shape->dtype,
                                         .dout = call->on_host.dout,
                                         .dq = call->on_host.dq,
                                         .dk = call->on_host.dk,
                                         .dv = call->on_host.dv };
    struct oracle_backward_report report_back;
    struct oracle_gradients gradients = { 0 };
    struct oracle_result result = { 0 };
    struct oracle_report report;
    ffa_error err = { 0 };

    for (int32_t l = 0; l < test.forward.list_count; l++)
        lists[l] = ffa_mask_slices(mask, l);
    must(oracle_forward(&result, &test.forward, &err), &err, "oracle");
    oracle_compare(&report, &test.forward, &result, &tolerance);
    ck_assert_msg(report.passed, "%s: %s", what, report.reason);
    oracle_result_finish(&result);
    if (!call->has_backward)
        return;
    must(oracle_backward(&gradients, &test, &err), &err, "oracle");
    oracle_backward_compare(&report_back, &test, &gradients, &tolerance_back);
    ck_assert_msg(report_back.passed, "%s: %s", what, report_back.reason);
    oracle_gradients_finish(&gradients);
}

/* ---- replays ---- */

static const struct {
    const char *name;
    int32_t head_dim, heads_q, heads_kv, pack;
    ffa_dtype dtype;
    uint32_t flags, plan_flags;
    bool has_lists, is_split; /* split: forward alone */
} replays[] = {
    { "dim 128", 128, 4, 2, 0, FFA_BF16, 0, 0, false, false },
    { "dim 64, parts of head groups", 64, 8, 1, 0, FFA_FP16, 0, 0, false, false },
    { "dim 64, deterministic", 64, 4, 2, 0, FFA_BF16, FFA_SPEC_DETERMINISTIC, 0, false, false },
    { "dim 256, deterministic", 256, 2, 1, 0, FFA_BF16, FFA_SPEC_DETERMINISTIC, 0, false, false },
    { "dim 192", 192, 2, 1, 0, FFA_FP16, 0, FFA_PLAN_ISOLATE, false, false },
    { "packed", 128, 4, 1, 4, FFA_BF16, 0, 0, false, false },
    { "a mask per kv head", 64, 4, 2, 0, FFA_BF16, 0, 0, true, false },
    { "a mask per kv head, deterministic", 128, 2, 2, 0, FFA_BF16, FFA_SPEC_DETERMINISTIC, 0, true,
      false },
    { "split", 128, 4, 2, 0, FFA_BF16, FFA_SPEC_SPLIT, 0, false, true },
    { "split, packed", 64, 8, 2, 4, FFA_FP16, FFA_SPEC_SPLIT, FFA_PLAN_ISOLATE, false, true },
    { "a mask per kv head is not split", 64, 4, 2, 0, FFA_BF16, FFA_SPEC_SPLIT, 0, true, true },
    { "split by kernels of their own", 128, 4, 2, 2, FFA_BF16, 0, 0, false, true },
};

/* Mask `index` of this shape, with many tiles and few, and none that is attended. */
static ffa_mask *mask_make(int index, const ffa_mask_shape *shape, bool has_lists)
{
    const int64_t rows = shape->seqlen_q, keys = shape->seqlen_k;
    const ffa_slice causal = { 0, rows, 0, keys, FFA_SLICE_CAUSAL, 0 };
    const ffa_slice full = { 0, rows, 0, keys, FFA_SLICE_FULL, 0 };
    const ffa_slice documents[] = { { 0, 100, 0, 100, FFA_SLICE_CAUSAL, 0 },
                                    { 100, 101, 100, 101, FFA_SLICE_FULL, 0 },
                                    { 101, 131, 90, 131, FFA_SLICE_BICAUSAL, 0 },
                                    { 131, rows, 131, keys, FFA_SLICE_CAUSAL, 0 } };
    const ffa_slice_list lists[MASKS] = {
        { &causal, 1 }, { documents, 4 }, { NULL, 0 }, { &full, 1 }
    };
    const ffa_slice_list heads[] = { lists[index], lists[(index + 1) % MASKS] };
    ffa_mask *mask = NULL;
    ffa_error err = { 0 };

    must(ffa_mask_create_per_head(&mask, shape, heads, has_lists ? 2 : 1, &err), &err, "mask");
    return mask;
}

struct replay {
    struct both_passes call;
    const ffa_kernels *kernels;
    ffa_mask *masks[MASKS];
    ffa_plan *plans[MASKS];
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    bool is_deterministic;
};

/* The plans of all masks, like that of the first one. */
static void replay_plans(struct replay *r, const struct attention_shape *shape, int row)
{
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    ffa_error err = { 0 };

    opts.capacity_bytes = CAPACITY;
    opts.flags = replays[row].plan_flags;
    opts.heads_q = replays[row].is_split ? shape->heads_q : 0;
    for (int i = 0; i < MASKS; i++) {
        r->masks[i] = mask_make(i, &shape->mask, replays[row].has_lists);
        must(ffa_plan_create_with(&r->plans[i], r->kernels, r->masks[i], &opts, &err), &err,
             "plan");
        if (!i)
            call_lend(&r->call, r->kernels, r->plans[0]);
        ck_assert_int_eq(workspace_bytes(&r->call, r->kernels, r->plans[i]),
                         r->call.workspace_bytes);
        if (replays[row].is_split && !replays[row].has_lists && i == MASKS - 1) /* full */
            ck_assert_int_gt(r->plans[i]->forward.splits[0].parts, 1);
        opts = (ffa_plan_opts)FFA_PLAN_OPTS_INIT;
        opts.like = r->plans[0];
    }
}

static void replay_capture(struct replay *r)
{
    ffa_error err = { 0 };

    must(ffa_plan_upload(r->plans[0], r->kernels, r->call.buffer, r->stream, &err), &err, "upload");
    ck_assert_int_eq(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal),
                     cudaSuccess);
    call_enqueue(&r->call, r->kernels, r->plans[0], r->stream);
    ck_assert_int_eq(cudaStreamEndCapture(r->stream, &r->graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphInstantiate(&r->exec, r->graph, 0), cudaSuccess);
}

static void replay_with(struct replay *r, int mask, const char *what)
{
    struct both_passes *call = &r->call;
    ffa_error err = { 0 };

    must(ffa_plan_upload(r->plans[mask], r->kernels, call->buffer, r->stream, &err), &err,
         "upload");
    call_spoil(call, r->stream);
    call_enqueue(call, r->kernels, r->plans[mask], r->stream);
    call_fetch(call, r->stream);
    for (int i = 0; i < TENSORS; i++)
        memcpy(call->own[i], tensor_of(&call->on_host, i)->data, (size_t)call->bytes[i]);

    call_spoil(call, r->stream);
    ck_assert_int_eq(cudaGraphLaunch(r->exec, r->stream), cudaSuccess);
    call_fetch(call, r->stream);
    for (int i = 0; i < TENSORS; i++)
        if (i != DQ || r->is_deterministic)
            ck_assert_msg(
                !memcmp(call->own[i], tensor_of(&call->on_host, i)->data, (size_t)call->bytes[i]),
                "%s: a replay has other bits of %s than a call", what, tensor_names[i]);
    call_compare(call, r->masks[mask], what);
}

START_TEST(a_graph_replays_with_other_masks)
{
    static const int order[] = { 0, 3, 2, 1, 3, 0 };
    const int64_t rows = level_step(150, 1100);
    const int64_t keys = replays[_i].is_split ? 1100 : rows;
    const struct attention_shape shape = { .mask = { rows, keys },
                                           .dtype = replays[_i].dtype,
                                           .heads_q = replays[_i].heads_q,
                                           .heads_kv = replays[_i].heads_kv,
                                           .head_dim = replays[_i].head_dim,
                                           .layout = LAYOUT_TOKENS };
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    struct rng rng = { (uint64_t)(40 + _i) };
    struct replay r = { .is_deterministic = replays[_i].flags & FFA_SPEC_DETERMINISTIC };
    ffa_kernels *kernels = NULL;
    ffa_error err = { 0 };
    char what[96];

    call_init(&r.call, &shape, &rng);
    r.call.has_backward = !replays[_i].is_split;
    spec.dtype = shape.dtype;
    spec.head_dim = shape.head_dim;
    spec.pack_heads = replays[_i].pack;
    spec.flags = replays[_i].flags | (replays[_i].is_split ? 0 : FFA_SPEC_BACKWARD);
    if (replays[_i].is_split && !(spec.flags & FFA_SPEC_SPLIT)) {
        spec.heads_q = shape.heads_q;
        spec.heads_kv = shape.heads_kv;
    }
    must(ffa_kernels_create(&kernels, context, &spec, &err), &err, "kernels");
    r.kernels = kernels;
    ck_assert_int_eq(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking), cudaSuccess);
    replay_plans(&r, &shape, _i);
    replay_capture(&r);
    for (int i = 0; i < level_step(3, sizeof order / sizeof *order); i++) {
        (void)snprintf(what, sizeof what, "%s, mask %d", replays[_i].name, order[i]);
        replay_with(&r, order[i], what);
    }
    (void)cudaGraphExecDestroy(r.exec);
    (void)cudaGraphDestroy(r.graph);
    (void)cudaStreamDestroy(r.stream);
    for (int i = 0; i < MASKS; i++) {
        ffa_plan_destroy(r.plans[i]);
        ffa_mask_destroy(r.masks[i]);
    }
    call_finish(&r.call);
    ffa_kernels_destroy(kernels);
}
END_TEST

/* ---- uploads ---- */

/* Keeps a stream busy until it may go on, or for some time. */
struct busy {
    atomic_bool may_end, has_ended;
    int64_t limit_ms;
};

static void busy_run(void *data)
{
    const struct timespec millisecond = { 0, 1000000 };
    struct busy *busy = data;

    for (int64_t i = 0; i < busy->limit_ms && !atomic_load(&busy->may_end); i++)
        (void)nanosleep(&millisecond, NULL);
    atomic_store(&busy->has_ended, true);
}

enum { UPLOADS = 40, SIZES = 5 };

struct uploads {
    ffa_kernels *kernels;
    cudaStream_t stream;
    void *buffers[UPLOADS];
};

/* A plan whose image is larger than some and smaller than others. */
static ffa_plan *upload_plan(const struct uploads *uploads, int index)
{
    static const int documents[SIZES] = { 1, 30, 3000, 200, 800 };
    const int count = documents[index % SIZES] + index;
    ffa_slice *slices = calloc((size_t)count, sizeof *slices);
    const ffa_mask_shape shape = { 10 * count, 10 * count };
    ffa_plan *plan = NULL;
    ffa_mask *mask = NULL;
    ffa_error err = { 0 };

    ck_assert_ptr_nonnull(slices);
    for (int i = 0; i < count; i++)
        slices[i] = (ffa_slice){ 10 * i, 10 * i + 10, 10 * i, 10 * i + 10, FFA_SLICE_CAUSAL, 0 };
    must(ffa_mask_create(&mask, &shape, slices, count, &err), &err, "mask");
    must(ffa_plan_create(&plan, uploads->kernels, mask, &err), &err, "plan");
    ffa_mask_destroy(mask);
    free(slices);
    return plan;
}

static void uploads_init(struct uploads *uploads, int count)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_error err = { 0 };

    *uploads = (struct uploads){ .kernels = NULL };
    spec.dtype = FFA_BF16;
    spec.head_dim = 64;
    must(ffa_kernels_create(&uploads->kernels, context, &spec, &err), &err, "kernels");
    ck_assert_int_eq(cudaStreamCreateWithFlags(&uploads->stream, cudaStreamNonBlocking),
                     cudaSuccess);
    for (int i = 0; i < count; i++) {
        ffa_plan *plan = upload_plan(uploads, i);

        must(ffa_device_alloc(&uploads->buffers[i], context, plan->image.bytes, &err), &err,
             "buffer");
        ffa_plan_destroy(plan);
    }
}

/* Upload plan `index` and destroy it. */
static void upload(struct uploads *uploads, int index)
{
    ffa_plan *plan = upload_plan(uploads, index);
    ffa_error err = { 0 };

    must(ffa_plan_upload(plan, uploads->kernels, uploads->buffers[index], uploads->stream, &err),
         &err, "upload");
    memset(plan->image_data, 0xa5, (size_t)plan->image.bytes);
    ffa_plan_destroy(plan);
}

/* Wait for the stream, see that each plan arrived, and free all. */
static void uploads_check(struct uploads *uploads, int count)
{
    ffa_error err = { 0 };

    ck_assert_int_eq(cudaStreamSynchronize(uploads->stream), cudaSuccess);
    for (int i = 0; i < count; i++) {
        ffa_plan *plan = upload_plan(uploads, i);
        unsigned char *got = malloc((size_t)plan->image.bytes);

        ck_assert_ptr_nonnull(got);
        must(ffa_device_copy(context, got, uploads->buffers[i], plan->image.bytes, FFA_FROM_DEVICE,
                             &err),
             &err, "fetch");
        ck_assert_msg(!memcmp(got, plan->image_data, (size_t)plan->image.bytes),
                      "plan %d of %d: other bytes arrived", i, count);
        free(got);
        ffa_plan_destroy(plan);
        ffa_device_free(context, uploads->buffers[i]);
    }
    (void)cudaStreamDestroy(uploads->stream);
    ffa_kernels_destroy(uploads->kernels);
}

/* Sixteen uploads of all sizes behind a stream that goes on when they have all returned. The slots
 * of the context are as another test left them; the second round finds them large enough. */
START_TEST(uploads_do_not_wait_for_the_stream)
{
    enum { COUNT = 16 };

    for (int round = 0; round < 2; round++) {
        struct busy busy = { .limit_ms = 20000 };
        struct uploads uploads;

        uploads_init(&uploads, COUNT);
        ck_assert_int_eq(cudaLaunchHostFunc(uploads.stream, busy_run, &busy), cudaSuccess);
        for (int i = 0; i < COUNT; i++)
            upload(&uploads, i);
        ck_assert_msg(!atomic_load(&busy.has_ended), "an upload waited for the stream");
        atomic_store(&busy.may_end, true);
        uploads_check(&uploads, COUNT);
    }
}
END_TEST

/* More uploads than there are slots: one waits, and none overwrites what is under way. */
START_TEST(more_uploads_than_slots_wait)
{
    struct busy busy = { .limit_ms = 200 };
    struct uploads uploads;

    uploads_init(&uploads, UPLOADS);
    ck_assert_int_eq(cudaLaunchHostFunc(uploads.stream, busy_run, &busy), cudaSuccess);
    for (int i = 0; i < UPLOADS; i++)
        upload(&uploads, i);
    ck_assert_msg(atomic_load(&busy.has_ended), "there are more slots than the header says");
    uploads_check(&uploads, UPLOADS);
}
END_TEST

/* A capture of another stream, which forbids to allocate, neither hinders an upload nor is hurt. */
START_TEST(another_stream_may_be_capturing)
{
    struct uploads uploads;
    cudaStream_t other;
    cudaGraph_t graph;

    uploads_init(&uploads, SIZES);
    ck_assert_int_eq(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    ck_assert_int_eq(cudaStreamBeginCapture(other, cudaStreamCaptureModeGlobal), cudaSuccess);
    for (int i = 0; i < SIZES; i++)
        upload(&uploads, i);
    ck_assert_int_eq(cudaStreamEndCapture(other, &graph), cudaSuccess);
    (void)cudaGraphDestroy(graph);
    (void)cudaStreamDestroy(other);
    uploads_check(&uploads, SIZES);
}
END_TEST

/* ---- the thread of the caller ---- */

/* An error that the caller has yet to look at is there after a call that succeeds, and nothing of
 * an upload's own is left: uploads under way included. */
START_TEST(an_error_of_the_caller_stays)
{
    enum { COUNT = 3 };
    struct busy busy = { .limit_ms = 20000 };
    struct uploads uploads;
    ffa_context *another = NULL;
    ffa_error err = { 0 };

    uploads_init(&uploads, COUNT);
    ck_assert_int_eq(cudaLaunchHostFunc(uploads.stream, busy_run, &busy), cudaSuccess);
    upload(&uploads, 0);
    (void)cudaGetLastError();
    upload(&uploads, 1);
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
    ck_assert_int_ne(cudaSetDevice(1 << 20), cudaSuccess);
    upload(&uploads, 2);
    must(ffa_open(&another, FFA_DEVICE_AUTO, NULL, &err), &err, "open");
    ffa_close(another);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidDevice);
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
    atomic_store(&busy.may_end, true);
    uploads_check(&uploads, COUNT);
}
END_TEST

struct fresh {
    struct both_passes *call;
    const ffa_kernels *kernels;
    const ffa_plan *plan;
    ffa_status forward, backward;
    ffa_error err;
};

static void *fresh_run(void *data)
{
    struct fresh *f = data;

    f->forward = ffa_forward(f->kernels, f->plan, &f->call->forward, NULL, &f->err);
    if (f->forward == FFA_OK)
        f->backward = ffa_backward(f->kernels, f->plan, &f->call->backward, NULL, &f->err);
    return NULL;
}

/* A thread whose first CUDA calls are the library's, as a framework's thread for the backward pass
 * may be. */
START_TEST(a_fresh_thread_may_call)
{
    const struct attention_shape shape = { .mask = { 100, 100 },
                                           .dtype = FFA_BF16,
                                           .heads_q = 2,
                                           .heads_kv = 1,
                                           .head_dim = 64,
                                           .layout = LAYOUT_TOKENS };
    const ffa_slice slice = { 0, 100, 0, 100, FFA_SLICE_CAUSAL, 0 };
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    struct both_passes call;
    struct rng rng = { 7 };
    ffa_kernels *kernels = NULL;
    ffa_plan *plan = NULL;
    ffa_mask *mask = NULL;
    struct fresh fresh;
    pthread_t thread;
    ffa_error err = { 0 };

    call_init(&call, &shape, &rng);
    call.has_backward = true;
    spec.dtype = shape.dtype;
    spec.head_dim = shape.head_dim;
    spec.flags = FFA_SPEC_BACKWARD;
    opts.capacity_bytes = CAPACITY;
    must(ffa_kernels_create(&kernels, context, &spec, &err), &err, "kernels");
    must(ffa_mask_create(&mask, &shape.mask, &slice, 1, &err), &err, "mask");
    must(ffa_plan_create_with(&plan, kernels, mask, &opts, &err), &err, "plan");
    call_lend(&call, kernels, plan);
    must(ffa_plan_upload(plan, kernels, call.buffer, NULL, &err), &err, "upload");
    call_spoil(&call, NULL);
    fresh = (struct fresh){ .call = &call, .kernels = kernels, .plan = plan };
    ck_assert_int_eq(pthread_create(&thread, NULL, fresh_run, &fresh), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    must(fresh.forward, &fresh.err, "forward");
    must(fresh.backward, &fresh.err, "backward");
    call_fetch(&call, NULL);
    call_compare(&call, mask, "a fresh thread");
    ffa_plan_destroy(plan);
    ffa_mask_destroy(mask);
    call_finish(&call);
    ffa_kernels_destroy(kernels);
}
END_TEST

static Suite *device_suite(void)
{
    Suite *suite = suite_create("device_replay");
    TCase *quick = tcase_create("quick"), *upload_case = tcase_create("uploads");
    TCase *caller = tcase_create("caller");

    add_loop(quick, a_graph_replays_with_other_masks, sizeof replays / sizeof *replays, 1);
    tcase_add_test(upload_case, another_stream_may_be_capturing);
    tcase_add_test(upload_case, uploads_do_not_wait_for_the_stream);
    tcase_add_test(upload_case, more_uploads_than_slots_wait);
    tcase_add_test(caller, an_error_of_the_caller_stays);
    tcase_add_test(caller, a_fresh_thread_may_call);
    suite_add_tcase(suite, quick);
    suite_add_tcase(suite, caller);
    suite_add_tcase(suite, upload_case);
    return suite;
}

int main(void)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_error err = { 0 };
    int rc;

    level_read(NULL, 0);
    opts.cache_path = getenv("FFA_TEST_STORE"); /* NULL: in memory */
    if (ffa_open(&context, FFA_DEVICE_AUTO, &opts, &err) != FFA_OK ||
        ffa_context_info_get(context, &info, &err) != FFA_OK || info.device == FFA_DEVICE_CPU) {
        printf("skipped: no GPU that a kernel exists for %s\n", err.message);
        ffa_close(context);
        return 77;
    }
    printf("device %d: %s\n", info.device, info.device_name);
    rc = suite_run_here(device_suite()); /* one CUDA context for all */
    ffa_close(context);
    return rc;
}
