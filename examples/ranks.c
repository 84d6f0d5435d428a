/* Packed causal documents on four ranks, threads of this process: forward and backward. */
#include <ffa/ffa.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 4, TOKENS = 2048, HEADS = 2, HEAD_DIM = 32 };

typedef float tensor[TOKENS][HEADS][HEAD_DIM];
static tensor q, k, v, out, dout, dq, dk, dv, expected;
static float lse[TOKENS][HEADS];
static ffa_mask *mask;
static ffa_dispatch *dispatch;

static void must(ffa_status status, const ffa_error *err)
{
    if (status == FFA_OK)
        return;
    fprintf(stderr, "%s: %s\n", ffa_status_text(status), err->message);
    exit(1);
}

/* A rank's rows of a whole tensor; with gather, the way back. */
static void rows(int32_t rank, tensor *whole, float *local, int gather)
{
    const ffa_rows which = { dispatch, FFA_SIDE_QUERIES, rank, FFA_FP32, HEADS, HEAD_DIM };
    const ffa_tensor all = FFA_TENSOR_INIT(whole), own = FFA_TENSOR_INIT(local);
    ffa_error err = { FFA_OK, 0, "" };

    must(gather ? ffa_rows_undispatch(&which, &own, &all, &err)
                : ffa_rows_dispatch(&which, &all, &own, &err),
         &err);
}

static void *run_rank(void *user)
{
    ffa_comm *comm = user;
    const int32_t rank = ffa_comm_rank(comm);
    const int64_t count = ffa_dispatch_query_rows(dispatch, rank) * HEADS * HEAD_DIM;
    tensor *const whole[] = { &q, &k, &v, &dout, &out, &dq, &dk, &dv };
    float *own[8], *own_lse = calloc((size_t)(count / HEAD_DIM), sizeof *own_lse);
    ffa_parallel_args args = FFA_PARALLEL_ARGS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_parallel_plan *plan;

    for (int i = 0; i < 8; i++) {
        own[i] = calloc((size_t)count, sizeof *own[i]);
        if (i < 4)
            rows(rank, whole[i], own[i], 0);
    }
    args.heads_q = args.heads_kv = HEADS;
    args.head_dim = HEAD_DIM;
    args.dtype = FFA_FP32;
    args.q.data = own[0], args.k.data = own[1], args.v.data = own[2], args.dout.data = own[3];
    args.out.data = own[4], args.dq.data = own[5], args.dk.data = own[6], args.dv.data = own[7];
    args.lse.data = own_lse;

    must(ffa_parallel_plan_create(&plan, dispatch, mask, rank, NULL, &err), &err);
    must(ffa_parallel_plan_agree(plan, comm, &err), &err);
    must(ffa_parallel_forward_host(plan, comm, &args, &err), &err);
    must(ffa_parallel_backward_host(plan, comm, &args, &err), &err);

    for (int i = 0; i < 8; i++) {
        if (i >= 4)
            rows(rank, whole[i], own[i], 1);
        free(own[i]);
    }
    free(own_lse);
    ffa_parallel_plan_destroy(plan);
    ffa_comm_destroy(comm);
    return NULL;
}

static void run_alone(void)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_forward_args args = FFA_FORWARD_ARGS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context;

    spec.dtype = FFA_FP32;
    spec.head_dim = HEAD_DIM;
    args.heads_q = args.heads_kv = HEADS;
    args.q.data = q, args.k.data = k, args.v.data = v, args.out.data = expected;
    args.lse.data = lse;
    must(ffa_open(&context, FFA_DEVICE_CPU, NULL, &err), &err);
    must(ffa_attention(context, mask, &spec, &args, NULL, &err), &err);
    ffa_close(context);
}

int main(void)
{
    const ffa_topology topology = { RANKS, 0 };
    ffa_comm *comms[RANKS];
    pthread_t threads[RANKS];
    ffa_error err = { FFA_OK, 0, "" };
    ffa_dispatch_mask one = { NULL, 1 };
    double error = 0;

    for (int i = 0; i < TOKENS * HEADS * HEAD_DIM; i++) {
        (&q[0][0][0])[i] = (float)(i % 7) - 3, (&k[0][0][0])[i] = (float)(i % 5) - 2;
        (&v[0][0][0])[i] = (float)(i % 11), (&dout[0][0][0])[i] = (float)(i % 3) - 1;
    }
    must(ffa_mask_parse(&mask, "varlen-causal:900,148,1000", &err), &err);
    one.mask = mask;
    must(ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, &err), &err);
    must(ffa_loopback_create(comms, RANKS, NULL, &err), &err);
    for (int r = 0; r < RANKS; r++)
        if (pthread_create(&threads[r], NULL, run_rank, comms[r]))
            return 1;
    for (int r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);

    run_alone();
    for (int i = 0; i < TOKENS * HEADS * HEAD_DIM; i++)
        error = fmax(error, fabs((double)((&out[0][0][0])[i] - (&expected[0][0][0])[i])));
    printf("%d ranks and one differ by %s\n", RANKS, error < 1e-4 ? "less than 1e-4" : "more");
    printf("dk of token 0 %s zero\n", dk[0][0][0] != 0 ? "is not" : "is");
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
    return 0;
}
