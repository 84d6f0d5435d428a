/* SPDX-License-Identifier: Apache-2.0
 *
 * Ulysses: rows go to groups of heads and come back. A strided copy packs them by group, an
 * exchange of whole ranges by peer copies follows, and each rank has the whole mask with a group of
 * heads. Backward q, k, v, out and lse of the forward pass are kept; dout goes in, dq, dk and dv
 * come back.
 */
#include "parallel_others.h"

/* Heads of a tensor that a group has, and how many groups its heads are cut into. */
static int32_t group_heads(const struct others *o, enum tensor t)
{
    return is_key(t) ? o->heads_kv : o->heads_q;
}

static int32_t group_count(const struct others *o, enum tensor t)
{
    return (is_key(t) ? bench.c->heads_kv : bench.c->heads_q) / group_heads(o, t);
}

static int32_t group_of(const struct others *o, enum tensor t, int32_t rank)
{
    return rank * group_count(o, t) / options.ranks;
}

void ulysses_create(struct others *o, const struct rank *r, struct rank_plan *p)
{
    const int32_t n = options.ranks, kv = bench.c->heads_kv;
    ffa_error err;

    if (!others_can(METHOD_ULYSSES, false))
        return;
    others_kernels(o, r, FFA_SPEC_BACKWARD, bench.c->heads_q / n, kv > n ? kv / n : 1);
    must(ffa_plan_create(&o->plans[0], o->kernels, bench.mask, &err), "plan", &err);
    others_add_plan(o, r, 0);
    for (int t = 0; t < TENSORS; t++) {
        const int64_t row =
            t == LSE ? o->heads_q * 4 : group_heads(o, (enum tensor)t) * HEAD_DIM * 2;

        o->group[t] = others_share(o, r, (enum reach)(REACH_GROUP + t), bench.tokens * row);
        o->packed[t] =
            others_share(o, r, (enum reach)(REACH_PACKED + t), o->rows * row_bytes((enum tensor)t));
        p->info.key_bytes += bench.tokens * row + o->rows * row_bytes((enum tensor)t);
    }
    p->info.received_rows = bench.tokens - o->rows;
    p->info.forward_workspace_bytes = p->info.backward_workspace_bytes = o->workspace_bytes;
}

static struct row_copy_rows copy_rows(void *from, void *to, int64_t from_row, int64_t to_row,
                                      int32_t heads)
{
    return (struct row_copy_rows){ .from = from,
                                   .to = to,
                                   .from_token_stride = from_row,
                                   .from_head_stride = HEAD_DIM,
                                   .to_token_stride = to_row,
                                   .to_head_stride = HEAD_DIM,
                                   .columns = HEAD_DIM,
                                   .heads = heads,
                                   .element_bytes = 2 };
}

/* Between a tensor's rows and its groups of heads, one after the other. */
static void pack(struct rank *r, int v, enum tensor t, bool is_back)
{
    const struct rank_plan *p = &r->plans[v];
    const struct others *o = p->others;
    const int32_t heads = group_heads(o, t), groups = group_count(o, t);
    const int64_t row = columns(t), part = (int64_t)heads * HEAD_DIM;
    ffa_error err;

    for (int32_t g = 0; g < groups; g += ROW_COPY_TENSORS_MAX) {
        struct row_copy_call call = { .rows = o->rows };

        for (int32_t i = g; i < groups && call.count < ROW_COPY_TENSORS_MAX; i++) {
            uint16_t *const rows = (uint16_t *)p->rows[t] + i * part;
            uint16_t *const packed = (uint16_t *)o->packed[t] + i * o->rows * part;

            call.tensors[call.count++] = is_back ? copy_rows(packed, rows, part, row, heads)
                                                 : copy_rows(rows, packed, row, part, heads);
        }
        must(row_copy_enqueue(r->kernels, &call, r->stream, &err), "pack", &err);
    }
}

/* All rows of the own group from all ranks; is_back: all groups of the own rows. */
static void pull(struct rank *r, int v, enum tensor t, bool is_back)
{
    const struct others *o = r->plans[v].others;
    const int64_t part = o->rows * group_heads(o, t) * HEAD_DIM * 2;
    void *to[RANKS_MAX];
    const void *from[RANKS_MAX];
    size_t bytes[RANKS_MAX];
    ffa_error err;

    for (int32_t i = 0; i < options.ranks; i++) {
        const int32_t peer = (r->rank + 1 + i) % options.ranks;
        char *const group = o->reached[peer][REACH_GROUP + (int)t];
        char *const packed = o->reached[peer][REACH_PACKED + (int)t];

        to[i] = (char *)(is_back ? o->packed[t] : o->group[t]) + peer * part;
        from[i] = is_back ? group + r->rank * part : packed + group_of(o, t, r->rank) * part;
        bytes[i] = (size_t)part;
    }
    must(gpu_copy_batch(o->gpu, r->stream, to, from, bytes, options.ranks, &err), "pull", &err);
}

/* Of tensors [begin, end): pack or publish, exchange, unpack. */
static void exchange(struct rank *r, int v, bool is_backward, const enum tensor *list, int count,
                     bool is_back)
{
    const enum word_kind ready = is_back ? BACK_READY : READY, taken = is_back ? BACK_TAKEN : TAKEN;

    for (int i = 0; i < count && !is_back; i++)
        pack(r, v, list[i], false);
    others_tell(r, v, is_backward, ready, r->stream);
    others_wait(r, v, is_backward, ready, r->plans[v].others->calls[is_backward], r->stream);
    for (int i = 0; i < count; i++)
        pull(r, v, list[i], is_back);
    others_tell(r, v, is_backward, taken, r->stream);
    for (int i = 0; i < count && is_back; i++)
        pack(r, v, list[i], true);
}

static void ulysses_compute(struct rank *r, int v, bool is_backward)
{
    const struct others *o = r->plans[v].others;
    ffa_forward_args f = FFA_FORWARD_ARGS_INIT;
    ffa_backward_args b = FFA_BACKWARD_ARGS_INIT;
    ffa_error err;

    f.heads_q = b.heads_q = o->heads_q;
    f.heads_kv = b.heads_kv = o->heads_kv;
    f.q.data = b.q.data = o->group[Q];
    f.k.data = b.k.data = o->group[K];
    f.v.data = b.v.data = o->group[V];
    f.out.data = b.out.data = o->group[OUT];
    f.lse.data = b.lse.data = o->group[LSE];
    b.dout.data = o->group[DOUT];
    b.dq.data = o->group[DQ];
    b.dk.data = o->group[DK];
    b.dv.data = o->group[DV];
    f.workspace = b.workspace = o->workspace;
    f.workspace_bytes = b.workspace_bytes = o->workspace_bytes;
    if (is_backward)
        must(ffa_backward(o->kernels, o->plans[0], &b, r->stream, &err), "backward", &err);
    else
        must(ffa_forward(o->kernels, o->plans[0], &f, r->stream, &err), "forward", &err);
}

void ulysses_pass(struct rank *r, int v, bool is_backward)
{
    static const enum tensor in[] = { Q, K, V }, back[] = { DQ, DK, DV };
    struct others *o = r->plans[v].others;
    const uint64_t call = ++o->calls[is_backward];

    others_wait(r, v, is_backward, TAKEN, call - 1, r->stream);
    others_wait(r, v, is_backward, BACK_TAKEN, call - 1, r->stream);
    exchange(r, v, is_backward, is_backward ? &(const enum tensor){ DOUT } : in,
             is_backward ? 1 : 3, false);
    ulysses_compute(r, v, is_backward);
    exchange(r, v, is_backward, is_backward ? back : &(const enum tensor){ OUT },
             is_backward ? 3 : 1, true);
}
