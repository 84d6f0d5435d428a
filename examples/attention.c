/* Attention over three packed causal documents, on the CPU backend. */
#include <ffa/ffa.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 96, HEADS_Q = 4, HEADS_KV = 2, HEAD_DIM = 64 };

static float q[TOKENS][HEADS_Q][HEAD_DIM], out[TOKENS][HEADS_Q][HEAD_DIM], lse[TOKENS][HEADS_Q];
static float k[TOKENS][HEADS_KV][HEAD_DIM], v[TOKENS][HEADS_KV][HEAD_DIM];

static void must(ffa_status status, const ffa_error *err)
{
    if (status == FFA_OK)
        return;
    fprintf(stderr, "%s: %s\n", ffa_status_text(status), err->message);
    exit(1);
}

int main(void)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_forward_args args = FFA_FORWARD_ARGS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context;
    ffa_mask *mask;

    for (int i = 0; i < TOKENS * HEADS_KV * HEAD_DIM; i++)
        (&k[0][0][0])[i] = (float)(i % 7) - 3, (&v[0][0][0])[i] = (float)(i % 5);
    spec.dtype = FFA_FP32;
    spec.head_dim = HEAD_DIM;
    args.heads_q = HEADS_Q;
    args.heads_kv = HEADS_KV;
    args.q.data = q, args.k.data = k, args.v.data = v, args.out.data = out, args.lse.data = lse;

    must(ffa_open(&context, FFA_DEVICE_CPU, NULL, &err), &err);
    must(ffa_mask_parse(&mask, "varlen-causal:32,40,24", &err), &err);
    must(ffa_attention(context, mask, &spec, &args, NULL, &err), &err);
    printf("row 2 attends 3 keys: lse %.4f, out %.4f\n", lse[2][0], out[2][0][0]);
    ffa_mask_destroy(mask);
    ffa_close(context);
    return 0;
}
