/* The loop of training_step.c on a GPU: bf16 tensors in device memory, calls that only enqueue on a
 * stream, plans that are made while the GPU works, kernels from the store that jobs share. The two
 * layers have weights of their own, fp32 on the host, where the optimizer is; they share each plan.
 */
#include <ffa/ffa.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 96, HEADS_Q = 4, HEADS_KV = 2, HEAD_DIM = 64, LAYERS = 2, BATCHES = 3, STEPS = 6 };
enum { QUERIES = TOKENS * HEADS_Q * HEAD_DIM, KEYS = TOKENS * HEADS_KV * HEAD_DIM };

/* Where the documents of each batch begin, and end. */
static const int64_t bounds[BATCHES][4] = { { 0, 40, 81, TOKENS },
                                            { 0, 9, 10, TOKENS },
                                            { 0, 32, 64, TOKENS } };

/* Tensors of a layer on the device. */
enum tensor { Q, K, V, OUT, LSE, DOUT, DQ, DK, DV, TENSORS };
static const int64_t tensor_bytes[TENSORS] = {
    [Q] = 2 * QUERIES,
    [K] = 2 * KEYS,
    [V] = 2 * KEYS,
    [OUT] = 2 * QUERIES,
    [LSE] = 4 * TOKENS * HEADS_Q,
    [DOUT] = 2 * QUERIES,
    [DQ] = 2 * QUERIES,
    [DK] = 2 * KEYS,
    [DV] = 2 * KEYS,
};

struct layer {
    void *at[TENSORS];
    float q[QUERIES], k[KEYS], v[KEYS], target[QUERIES];
};

static ffa_context *context;
static ffa_stream stream;
static uint16_t staging[QUERIES]; /* bf16, on its way between host and device */

static void must(ffa_status status, const ffa_error *err)
{
    if (status == FFA_OK)
        return;
    fprintf(stderr, "%s: %s\n", ffa_status_text(status), err->message);
    exit(1);
}

/* ---- bf16 ---- */

static uint16_t to_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); /* to the nearest, ties to even */
}

static float from_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Both wait for the copy, but not for the stream. */
static void to_device(void *to, const float *from, int count)
{
    ffa_error err = { FFA_OK, 0, "" };

    for (int i = 0; i < count; i++)
        staging[i] = to_bf16(from[i]);
    must(ffa_device_copy(context, to, staging, 2 * (int64_t)count, FFA_TO_DEVICE, &err), &err);
}

static void from_device(const void *from, int count)
{
    ffa_error err = { FFA_OK, 0, "" };

    must(ffa_device_copy(context, staging, from, 2 * (int64_t)count, FFA_FROM_DEVICE, &err), &err);
}

static void wait_for_stream(void)
{
    ffa_error err = { FFA_OK, 0, "" };

    must(ffa_device_stream_synchronize(context, stream, &err), &err);
}

/* ---- the model ---- */

/* The same numbers on every machine, in [-1, 1]. */
static void fill(float *at, int count, unsigned seed)
{
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        at[i] = (float)(seed >> 16) / 32768.0f - 1;
    }
}

static void layer_init(struct layer *layer, unsigned seed)
{
    ffa_error err = { FFA_OK, 0, "" };

    fill(layer->q, QUERIES, seed);
    fill(layer->k, KEYS, seed + 1);
    fill(layer->v, KEYS, seed + 2);
    fill(layer->target, QUERIES, seed + 3);
    for (int t = 0; t < TENSORS; t++)
        must(ffa_device_alloc(&layer->at[t], context, tensor_bytes[t], &err), &err);
}

/* The mean squared distance of out to the target; its gradient goes to the device. */
static float loss_of(struct layer *layer)
{
    static float gradient[QUERIES];
    float sum = 0;

    from_device(layer->at[OUT], QUERIES);
    for (int i = 0; i < QUERIES; i++) {
        const float off = from_bf16(staging[i]) - layer->target[i];

        sum += off * off;
        gradient[i] = 2 * off / QUERIES;
    }
    to_device(layer->at[DOUT], gradient, QUERIES);
    return sum / QUERIES;
}

static void descend(float *weights, const void *gradient, int count)
{
    const float rate = 1000;

    from_device(gradient, count);
    for (int i = 0; i < count; i++)
        weights[i] -= rate * from_bf16(staging[i]);
}

/* ---- calls ---- */

static const char *variable(void *user, const char *name)
{
    (void)user;
    return getenv(name);
}

/* The GPU, with the store, bundles and cost tables that the environment names (FFA_CACHE_DIR,
 * FFA_BUNDLES, FFA_COST_TABLES), as for the command: what `ffa warm` has compiled is found. */
static void open_context(void)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_environment *environment;
    ffa_error err = { FFA_OK, 0, "" };

    must(ffa_context_opts_from_environment(&opts, &environment, variable, NULL, &err), &err);
    if (ffa_open(&context, 0, &opts, &err) != FFA_OK) {
        fprintf(stderr, "no GPU: %s\n", err.message);
        exit(77);
    }
    ffa_environment_destroy(environment);
    must(ffa_device_stream_create(&stream, context, &err), &err);
}

static ffa_plan *plan_of(const ffa_kernels *kernels, int batch)
{
    const ffa_documents docs = { .cu_q = bounds[batch], .document_count = 3 };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;
    ffa_plan *plan;

    must(ffa_mask_varlen_causal(&mask, &docs, &err), &err);
    must(ffa_plan_create(&plan, kernels, mask, &err), &err);
    ffa_mask_destroy(mask);
    return plan;
}

/* Device memory of at least `need` bytes: what is there, or more of it, once no call uses it. */
static void reserve(void **memory, int64_t *have, int64_t need)
{
    ffa_error err = { FFA_OK, 0, "" };

    if (*have >= need)
        return;
    wait_for_stream();
    ffa_device_free(context, *memory);
    must(ffa_device_alloc(memory, context, need, &err), &err);
    *have = need;
}

/* Both passes of a layer take the same tensors. */
static void forward_of(ffa_forward_args *args, const struct layer *layer)
{
    args->heads_q = HEADS_Q, args->heads_kv = HEADS_KV;
    args->q.data = layer->at[Q], args->k.data = layer->at[K], args->v.data = layer->at[V];
    args->out.data = layer->at[OUT], args->lse.data = layer->at[LSE];
}

static void backward_of(ffa_backward_args *args, const struct layer *layer)
{
    args->heads_q = HEADS_Q, args->heads_kv = HEADS_KV;
    args->q.data = layer->at[Q], args->k.data = layer->at[K], args->v.data = layer->at[V];
    args->out.data = layer->at[OUT], args->lse.data = layer->at[LSE];
    args->dout.data = layer->at[DOUT];
    args->dq.data = layer->at[DQ], args->dk.data = layer->at[DK], args->dv.data = layer->at[DV];
}

int main(void)
{
    static struct layer layers[LAYERS];
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    void *image = NULL, *workspace = NULL;
    int64_t image_bytes = 0, workspace_bytes = 0, forward_bytes, backward_bytes;
    ffa_kernels *kernels;
    ffa_plan *plan;

    open_context();
    /* As in `ffa warm --spec head_dim=64,dtype=bf16,heads=4:2,backward,deterministic`. */
    spec.dtype = FFA_BF16;
    spec.head_dim = HEAD_DIM;
    spec.heads_q = HEADS_Q;
    spec.heads_kv = HEADS_KV;
    spec.flags = FFA_SPEC_BACKWARD | FFA_SPEC_DETERMINISTIC;
    must(ffa_kernels_create(&kernels, context, &spec, &err), &err);
    for (unsigned l = 0; l < LAYERS; l++)
        layer_init(&layers[l], 1 + 10 * l);

    plan = plan_of(kernels, 0);
    for (int step = 0; step < STEPS; step++) {
        ffa_plan *next = NULL;
        float loss = 0;

        for (int l = 0; l < LAYERS; l++) {
            to_device(layers[l].at[Q], layers[l].q, QUERIES);
            to_device(layers[l].at[K], layers[l].k, KEYS);
            to_device(layers[l].at[V], layers[l].v, KEYS);
        }
        /* The upload is behind the calls before it: all are on one stream. */
        must(ffa_plan_info_get(plan, &info, &err), &err);
        reserve(&image, &image_bytes, info.upload_bytes);
        must(ffa_plan_upload(plan, kernels, image, stream, &err), &err);
        must(ffa_workspace_bytes(kernels, plan, &forward_bytes, &err), &err);
        must(ffa_backward_workspace_bytes(kernels, plan, HEADS_Q, HEADS_KV, &backward_bytes, &err),
             &err);
        reserve(&workspace, &workspace_bytes,
                forward_bytes > backward_bytes ? forward_bytes : backward_bytes);

        for (int l = 0; l < LAYERS; l++) {
            ffa_forward_args args = FFA_FORWARD_ARGS_INIT;

            forward_of(&args, &layers[l]);
            args.workspace = workspace;
            args.workspace_bytes = workspace_bytes;
            must(ffa_forward(kernels, plan, &args, stream, &err), &err);
        }
        /* The GPU works; the host makes the plan of the next batch. */
        if (step + 1 < STEPS)
            next = plan_of(kernels, (step + 1) % BATCHES);
        wait_for_stream();
        for (int l = 0; l < LAYERS; l++)
            loss += loss_of(&layers[l]);
        for (int l = LAYERS; l-- > 0;) {
            ffa_backward_args args = FFA_BACKWARD_ARGS_INIT;

            backward_of(&args, &layers[l]);
            args.workspace = workspace;
            args.workspace_bytes = workspace_bytes;
            must(ffa_backward(kernels, plan, &args, stream, &err), &err);
        }
        wait_for_stream();
        printf("step %d, batch %d: loss %.3f\n", step, step % BATCHES, loss);
        for (int l = 0; l < LAYERS; l++) {
            descend(layers[l].q, layers[l].at[DQ], QUERIES);
            descend(layers[l].k, layers[l].at[DK], KEYS);
            descend(layers[l].v, layers[l].at[DV], KEYS);
        }
        ffa_plan_destroy(plan);
        plan = next;
    }
    for (int l = 0; l < LAYERS; l++)
        for (int t = 0; t < TENSORS; t++)
            ffa_device_free(context, layers[l].at[t]);
    ffa_device_free(context, workspace);
    ffa_device_free(context, image);
    ffa_kernels_destroy(kernels);
    ffa_device_stream_destroy(context, stream);
    ffa_close(context);
    return 0;
}
