/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of values with another head_dim than keys: what the model counts, who agrees, and what is
 * saved. Where both are the same nothing changes, least of all a digest.
 */
#include "mask/mask.h"
#include "parallel/plan/rank_plan.h"
#include "parallel/plan/time_model.h"
#include "support/suite.h"

#include <check.h>

enum { TOKENS = 8192, RANKS = 4 };

static ffa_mask *mask;
static ffa_dispatch *dispatch;

static void setup(void)
{
    const ffa_topology topology = { RANKS, 0 };
    ffa_dispatch_mask one = { 0 };

    ck_assert_int_eq(ffa_mask_causal(&mask, &(ffa_mask_shape){ TOKENS, TOKENS }, NULL), FFA_OK);
    one.mask = mask;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, NULL), FFA_OK);
}

static void teardown(void)
{
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}

static ffa_parallel_plan *plan_of(int32_t head_dim, int32_t head_dim_v, int32_t moves)
{
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_parallel_plan *plan;

    opts.model.head_dim = head_dim;
    opts.model.heads_q = 8;
    opts.model.heads_kv = 2;
    opts.head_dim_v = head_dim_v;
    opts.moves = moves;
    ck_assert_msg(!ffa_parallel_plan_create(&plan, dispatch, mask, 1, &opts, &err), "%s",
                  err.message);
    return plan;
}

static ffa_parallel_plan_info info_of(const ffa_parallel_plan *plan)
{
    ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;

    ck_assert_int_eq(ffa_parallel_plan_info_get(plan, &info, NULL), FFA_OK);
    return info;
}

/* q k forward; that, dq and dk backward are of head_dim: p v forward, dout v and dv backward of
 * head_dim_v. A rate of 10^6 is one operation a femtosecond. */
START_TEST(operations_of_a_cell)
{
    static const struct {
        int32_t d, dv;
        int64_t forward, backward;
    } rows[] = { { 128, 128, 512, 1280 }, { 192, 128, 640, 1664 }, { 64, 256, 640, 1408 } };
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    const int64_t cells = 1000000;

    opts.model.heads_q = 1;
    opts.model.forward_gflops = opts.model.backward_gflops = 1000000;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        opts.model.head_dim = rows[i].d;
        opts.head_dim_v = rows[i].dv;
        ck_assert_int_eq(model_compute_ns(&opts, 1, cells, false), rows[i].forward);
        ck_assert_int_eq(model_compute_ns(&opts, 1, cells, true), rows[i].backward);
    }
}
END_TEST

/* Columns that are added to v and out cost nothing that those of q and k do. */
START_TEST(bytes_of_scratch)
{
    enum { D = 64, DV = 256, HQ = 8, HK = 2, ELEMENT = 2, BUFFERS = 2 };

    for (int moves = FFA_PARALLEL_MOVE_KEYS; moves <= FFA_PARALLEL_MOVE_QUERIES; moves++) {
        ffa_parallel_plan *plan = plan_of(D, DV, moves);
        const ffa_parallel_plan_info info = info_of(plan);
        const int64_t forward = plan->forward.buffer_rows * BUFFERS;
        const int64_t backward = plan->backward.buffer_rows * BUFFERS;
        const int64_t own_out = info.tokens_q * HQ * (DV * 4 + 4);
        const int64_t own_sums =
            info.tokens_q * HQ * (D * 4 + 4) + info.tokens_k * HK * (D + DV) * 4;

        ck_assert_int_eq(info.model.head_dim, D);
        ck_assert_int_eq(info.head_dim_v, DV);
        if (moves == FFA_PARALLEL_MOVE_KEYS) {
            ck_assert_int_eq(info.forward_bytes, own_out + forward * HK * (D + DV) * ELEMENT);
            ck_assert_int_eq(info.backward_bytes,
                             own_sums + backward * HK * (D + DV) * (ELEMENT + 4));
        } else { /* q with lse, and (out, lse); q and dout with lse and delta, and dq */
            ck_assert_int_eq(info.forward_bytes,
                             own_out + forward * HQ * (D * ELEMENT + 4 + DV * 4 + 4));
            ck_assert_int_eq(info.backward_bytes,
                             own_sums + backward * HQ * ((D + DV) * ELEMENT + 8 + D * 4 + 4));
        }
        ffa_parallel_plan_destroy(plan);
    }
}
END_TEST

/* What travels is k with v, or q and back out, or q with dout and back dq: what costs more columns
 * takes longer, in proportion, to fetch. */
START_TEST(time_on_the_wire)
{
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_parallel_stage narrow = FFA_PARALLEL_STAGE_INIT, wide = FFA_PARALLEL_STAGE_INIT;
    ffa_parallel_plan *plan;

    opts.forward_stages = opts.backward_stages = -1;
    opts.model.node_mbytes_s = 1; /* latency is nothing beside it */
    opts.model.head_dim = 64;
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 1, &opts, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_plan_stage_get(plan, 0, 1, &narrow, NULL), FFA_OK);
    ffa_parallel_plan_destroy(plan);
    opts.head_dim_v = 192;
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 1, &opts, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_plan_stage_get(plan, 0, 1, &wide, NULL), FFA_OK);
    ffa_parallel_plan_destroy(plan);
    ck_assert_int_eq(narrow.rows, wide.rows);
    ck_assert_int_eq((wide.fetch_end_ns + narrow.fetch_end_ns / 2) / narrow.fetch_end_ns, 2);
}
END_TEST

/* 0 is head_dim, and so is head_dim; and what a program says that knows no head_dim_v. */
START_TEST(digests)
{
    ffa_parallel_plan_opts older = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_parallel_plan *none = plan_of(128, 0, 0), *same = plan_of(128, 128, 0);
    ffa_parallel_plan *other = plan_of(128, 64, 0), *old;

    older.model.heads_kv = 2;
    older.struct_size = offsetof(ffa_parallel_plan_opts, head_dim_v);
    older.head_dim_v = 77; /* behind what struct_size says */
    ck_assert_int_eq(ffa_parallel_plan_create(&old, dispatch, mask, 1, &older, NULL), FFA_OK);
    ck_assert_str_eq(ffa_parallel_plan_digest(none), "449771d5a7bfa8fde7272c8322e0c7c6");
    ck_assert_str_eq(ffa_parallel_plan_digest(same), ffa_parallel_plan_digest(none));
    ck_assert_str_eq(ffa_parallel_plan_digest(old), ffa_parallel_plan_digest(none));
    ck_assert_str_ne(ffa_parallel_plan_digest(other), ffa_parallel_plan_digest(none));
    ffa_parallel_plan_destroy(none);
    ffa_parallel_plan_destroy(same);
    ffa_parallel_plan_destroy(other);
    ffa_parallel_plan_destroy(old);
}
END_TEST

/* The first version of the file, unless there is a head_dim_v to keep. */
START_TEST(saved_plans_keep_it)
{
    for (int32_t v = 64; v <= 128; v += 64) {
        ffa_parallel_plan *plan = plan_of(128, v, 0), *loaded;
        unsigned char *bytes;
        size_t count;

        ck_assert_int_eq(ffa_parallel_plan_save(plan, (void **)&bytes, &count, NULL), FFA_OK);
        ck_assert_int_eq(bytes[8], v == 128 ? 1 : 2);
        ck_assert_int_eq(ffa_parallel_plan_load(&loaded, bytes, count, NULL), FFA_OK);
        ck_assert_int_eq(info_of(loaded).head_dim_v, v);
        ck_assert_str_eq(ffa_parallel_plan_digest(loaded), ffa_parallel_plan_digest(plan));
        ffa_free(bytes);
        ffa_parallel_plan_destroy(loaded);
        ffa_parallel_plan_destroy(plan);
    }
}
END_TEST

START_TEST(what_is_refused)
{
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_parallel_plan *plan;

    opts.head_dim_v = 1025;
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 1, &opts, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "head_dim_v is 1025, not in [1, 1024]");
    opts.head_dim_v = -1;
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 1, &opts, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "head_dim_v is -1, not in [1, 1024]");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rank plan values");
    TCase *tc = tcase_create("rank plan values");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, operations_of_a_cell);
    tcase_add_test(tc, bytes_of_scratch);
    tcase_add_test(tc, time_on_the_wire);
    tcase_add_test(tc, digests);
    tcase_add_test(tc, saved_plans_keep_it);
    tcase_add_test(tc, what_is_refused);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
