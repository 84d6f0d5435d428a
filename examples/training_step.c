/* Training steps of one attention layer over batches of packed causal documents, on the CPU
 * backend: q, k and v are learned, so that the output comes close to a target. */
#include <ffa/ffa.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 48, HEADS_Q = 4, HEADS_KV = 2, HEAD_DIM = 16, BATCHES = 3, STEPS = 6 };

typedef float queries[TOKENS][HEADS_Q][HEAD_DIM];
typedef float keys[TOKENS][HEADS_KV][HEAD_DIM];
static queries q, out, dq, dout, target;
static keys k, v, dk, dv;
static float lse[TOKENS][HEADS_Q], dlse[TOKENS][HEADS_Q];

/* Where the documents of each batch begin, and end. */
static const int64_t bounds[BATCHES][4] = { { 0, 20, 41, TOKENS },
                                            { 0, 5, 6, TOKENS },
                                            { 0, 16, 32, TOKENS } };

static void must(ffa_status status, const ffa_error *err)
{
    if (status == FFA_OK)
        return;
    fprintf(stderr, "%s: %s\n", ffa_status_text(status), err->message);
    exit(1);
}

/* Device memory of at least `need` bytes: what is there, or more of it. */
static void reserve(void **memory, int64_t *have, int64_t need, ffa_context *context)
{
    ffa_error err = { FFA_OK, 0, "" };

    if (*have >= need)
        return;
    ffa_device_free(context, *memory);
    must(ffa_device_alloc(memory, context, need, &err), &err);
    *have = need;
}

/* The same numbers on every machine, in [-1, 1]. */
static void fill(float *at, size_t count, unsigned seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        at[i] = (float)(seed >> 16) / 32768.0f - 1;
    }
}

static void descend(float *at, const float *gradient, size_t count)
{
    const float rate = 200;

    for (size_t i = 0; i < count; i++)
        at[i] -= rate * gradient[i];
}

/* The mean squared distance of out to target, and its gradient. */
static float loss(void)
{
    const size_t count = sizeof out / sizeof(float);
    const float *is = &out[0][0][0], *wanted = &target[0][0][0];
    float *gradient = &dout[0][0][0], sum = 0;

    for (size_t i = 0; i < count; i++) {
        const float off = is[i] - wanted[i];

        sum += off * off;
        gradient[i] = 2 * off / (float)count;
    }
    return sum / (float)count;
}

/* Keeps lse near 0: the mean of its squares, by a weight, and the gradient by lse. */
static float z_loss(void)
{
    const float weight = 0.01f / (TOKENS * HEADS_Q);
    float sum = 0;

    for (int i = 0; i < TOKENS * HEADS_Q; i++) {
        const float z = (&lse[0][0])[i];

        sum += weight * z * z;
        (&dlse[0][0])[i] = 2 * weight * z;
    }
    return sum;
}

int main(void)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_forward_args forward = FFA_FORWARD_ARGS_INIT;
    ffa_backward_args backward = FFA_BACKWARD_ARGS_INIT;
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    void *image = NULL, *workspace = NULL;
    int64_t image_bytes = 0, workspace_bytes = 0, bytes;
    ffa_context *context;
    ffa_kernels *kernels;

    fill(&q[0][0][0], sizeof q / sizeof(float), 1);
    fill(&k[0][0][0], sizeof k / sizeof(float), 2);
    fill(&v[0][0][0], sizeof v / sizeof(float), 3);
    fill(&target[0][0][0], sizeof target / sizeof(float), 4);

    /* Once a process, and once a model. */
    must(ffa_open(&context, FFA_DEVICE_CPU, NULL, &err), &err);
    spec.dtype = FFA_FP32;
    spec.head_dim = HEAD_DIM;
    spec.flags = FFA_SPEC_BACKWARD;
    must(ffa_kernels_create(&kernels, context, &spec, &err), &err);

    forward.heads_q = backward.heads_q = HEADS_Q;
    forward.heads_kv = backward.heads_kv = HEADS_KV;
    forward.q.data = backward.q.data = q;
    forward.k.data = backward.k.data = k;
    forward.v.data = backward.v.data = v;
    forward.out.data = backward.out.data = out;
    forward.lse.data = backward.lse.data = lse;
    backward.dout.data = dout;
    backward.dlse.data = dlse;
    backward.dq.data = dq, backward.dk.data = dk, backward.dv.data = dv;

    for (int step = 0; step < STEPS; step++) {
        const ffa_documents docs = { .cu_q = bounds[step % BATCHES], .document_count = 3 };
        ffa_mask *mask;
        ffa_plan *plan;

        /* Once a batch: all layers and both passes share the plan. */
        must(ffa_mask_varlen_causal(&mask, &docs, &err), &err);
        must(ffa_plan_create(&plan, kernels, mask, &err), &err);
        ffa_mask_destroy(mask);
        must(ffa_plan_info_get(plan, &info, &err), &err);
        reserve(&image, &image_bytes, info.upload_bytes, context);
        must(ffa_plan_upload(plan, kernels, image, NULL, &err), &err);

        /* What calls write besides their outputs. */
        must(ffa_backward_workspace_bytes(kernels, plan, HEADS_Q, HEADS_KV, &bytes, &err), &err);
        reserve(&workspace, &workspace_bytes, bytes, context);
        forward.workspace = backward.workspace = workspace;
        forward.workspace_bytes = backward.workspace_bytes = workspace_bytes;

        must(ffa_forward(kernels, plan, &forward, NULL, &err), &err);
        printf("step %d, batch %d: loss %.4f\n", step, step % BATCHES, loss() + z_loss());
        must(ffa_backward(kernels, plan, &backward, NULL, &err), &err);
        ffa_plan_destroy(plan);

        descend(&q[0][0][0], &dq[0][0][0], sizeof q / sizeof(float));
        descend(&k[0][0][0], &dk[0][0][0], sizeof k / sizeof(float));
        descend(&v[0][0][0], &dv[0][0][0], sizeof v / sizeof(float));
    }
    ffa_device_free(context, workspace);
    ffa_device_free(context, image);
    ffa_kernels_destroy(kernels);
    ffa_close(context);
    return 0;
}
