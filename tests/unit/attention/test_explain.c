/* SPDX-License-Identifier: Apache-2.0
 *
 * What ffa_explain tells: one candidate of each pass is chosen, it is what a plan gets, and its
 * time follows from the rule that chose it; another table, another choice.
 */
#include "attention/attention.h"
#include "choose/cost_table_json.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <ffa/ffa.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOLD_MAX = 256 };

struct told {
    ffa_explain_candidate at[TOLD_MAX];
    int count, most;
};

static int keep(void *user, const ffa_explain_candidate *candidate)
{
    struct told *told = user;

    ck_assert_int_lt(told->count, TOLD_MAX);
    told->at[told->count++] = *candidate;
    return told->count == told->most;
}

static ffa_context *open_context(const char *cost_tables)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context;

    opts.cost_tables = cost_tables;
    ck_assert_msg(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err) == FFA_OK, "%s", err.message);
    return context;
}

static ffa_attention_spec parse_spec(const char *text)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_msg(ffa_attention_spec_parse(&spec, text, &err) == FFA_OK, "%s", err.message);
    return spec;
}

static ffa_mask *parse_mask(const char *text)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;

    ck_assert_msg(ffa_mask_parse(&mask, text, &err) == FFA_OK, "%s", err.message);
    return mask;
}

struct answer {
    struct told told;
    ffa_plan_info plan;
    ffa_explain_info info;
};

static void explain_mask(struct answer *out, ffa_context *context, const char *device,
                         const char *spec_text, const ffa_mask *mask, uint32_t plan_flags)
{
    const ffa_attention_spec spec = parse_spec(spec_text);
    ffa_explain_query query = FFA_EXPLAIN_QUERY_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    *out = (struct answer){ .plan = FFA_PLAN_INFO_INIT, .info = FFA_EXPLAIN_INFO_INIT };
    query.spec = &spec;
    query.mask = mask;
    query.device = device;
    query.plan_flags = plan_flags;
    ck_assert_msg(ffa_explain(context, &query, &out->plan, &out->info, keep, &out->told, &err) ==
                      FFA_OK,
                  "%s", err.message);
}

static void explain_with(struct answer *out, ffa_context *context, const char *device,
                         const char *spec_text, const char *mask_text, uint32_t plan_flags)
{
    ffa_mask *mask = parse_mask(mask_text);

    explain_mask(out, context, device, spec_text, mask, plan_flags);
    ffa_mask_destroy(mask);
}

static void explain(struct answer *out, ffa_context *context, const char *device,
                    const char *spec_text, const char *mask_text)
{
    explain_with(out, context, device, spec_text, mask_text, 0);
}

/* ---- chosen as a plan is ---- */

static const struct {
    const char *spec, *mask;
    int kernels, is_split, orders; /* told */
    const char *why;
} cases[] = {
    { "head_dim=128,dtype=bf16,heads=64:8,backward", "causal:4096", 3, 0, 16,
      "no other kernel saves 3 % of the time of the first" },
    { "head_dim=128,dtype=bf16,heads=64:8,backward", "varlen-causal:700,1300,96", 6, 0, 16,
      "no other kernel saves 3 %" },
    { "head_dim=128,dtype=bf16,heads=64:8", "varlen-full:8*200", 5, 0, 0,
      "no other kernel saves 3 %" },
    { "head_dim=128,dtype=bf16,heads=8:1", "full:128x65536", 3, 1, 0,
      "the split saves 91 % of the time of whole tiles, at least 10 % is asked" },
    { "head_dim=128,dtype=bf16,heads=4:1", "causal:1024", 3, 0, 0,
      "it saves 47 % of the time of the first kernel, at least 3 % is asked" },
    { "head_dim=64,dtype=fp16,heads=16:2,backward,deterministic", "window:4096,left=511,right=0", 2,
      0, 16, "it saves" },
    { "head_dim=128,dtype=bf16,heads=8:8,pack=0,backward", "causal:300", 1, 0, 4,
      "the spec has one kernel" },
    { "head_dim=128,dtype=bf16,backward", "causal:300", 1, 0, 0, "the spec has one kernel" },
    { "head_dim=128,dtype=bf16,heads=4:4,split,pack=0", "full:1x65536", 1, 1, 0,
      "a split was asked for, and parts even out over the SMs" },
};

START_TEST(one_of_each_pass_is_chosen)
{
    ffa_context *context = open_context("none");
    int chosen[2] = { 0, 0 }, kernels = 0, splits = 0, orders = 0;
    static struct answer answer;

    explain(&answer, context, NULL, cases[_i].spec, cases[_i].mask);
    for (int i = 0; i < answer.told.count; i++) {
        const ffa_explain_candidate *told = &answer.told.at[i];

        ck_assert_uint_eq(told->struct_size, sizeof *told);
        ck_assert_double_gt(told->time, 0);
        ck_assert_double_eq(told->us, 0);
        chosen[told->is_backward] += told->is_chosen;
        kernels += !told->is_backward && !told->is_split;
        splits += told->is_split;
        orders += told->is_backward;
        if (!told->is_chosen)
            continue;
        if (told->is_backward) {
            ck_assert_int_eq(told->parts, answer.plan.backward_parts);
            ck_assert_int_eq(told->waves, answer.plan.backward_waves);
            ck_assert_int_eq(told->whole_heads, answer.plan.backward_whole_heads);
            ck_assert_int_eq(told->l2_head_groups, answer.plan.backward_l2_head_groups);
        } else {
            ck_assert_int_eq(told->tile_m, answer.plan.tile_m);
            ck_assert_int_eq(told->tile_n, answer.plan.tile_n);
            ck_assert_int_eq(told->tile_count, answer.plan.tile_count);
            ck_assert_int_eq(told->is_split, answer.plan.split_heads > 0);
            ck_assert_int_eq(told->is_apart, answer.plan.is_isolated);
        }
    }
    ck_assert_int_eq(chosen[0], 1);
    ck_assert_int_eq(chosen[1], cases[_i].orders > 0);
    ck_assert_int_eq(kernels, cases[_i].kernels);
    ck_assert_int_eq(splits, cases[_i].is_split);
    ck_assert_int_eq(orders, cases[_i].orders);
    ck_assert_msg(strstr(answer.info.forward_why, cases[_i].why) != NULL, "%s",
                  answer.info.forward_why);
    ck_assert_int_eq(answer.info.backward_why[0] != '\0', cases[_i].orders > 0);
    ck_assert_str_eq(answer.info.device, "NVIDIA H200");
    ck_assert_int_eq(answer.info.sm_count, 132);
    ck_assert_str_eq(answer.plan.cost_table, "NVIDIA H200");
    ck_assert_int_eq(answer.plan.cost_source, FFA_COST_DEFAULT);
    ffa_close(context);
}
END_TEST

/* One list of slices is split, two are not (plan_choice.c), and nothing is said of it. */
START_TEST(no_split_of_lists_is_told)
{
    const ffa_slice slice = { 0, 1, 0, 65536, FFA_SLICE_FULL, 0 };
    const ffa_slice_list lists[] = { { &slice, 1 }, { &slice, 1 } };
    const ffa_mask_shape shape = { 1, 65536 };
    ffa_context *context = open_context("none");
    static struct answer answer;

    for (int32_t count = 1; count <= 2; count++) {
        ffa_mask *mask = NULL;
        int splits = 0;

        ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, lists, count, NULL), FFA_OK);
        explain_mask(&answer, context, NULL, "head_dim=128,dtype=bf16,heads=8:2", mask, 0);
        for (int i = 0; i < answer.told.count; i++)
            splits += answer.told.at[i].is_split;
        ck_assert_int_eq(splits, count == 1);
        ck_assert_int_eq(answer.plan.split_heads, count == 1 ? 8 : 0);
        ffa_mask_destroy(mask);
    }
    ffa_close(context);
}
END_TEST

/* Tiles of the backward pass that are of a document each say so, but where that was asked for. */
START_TEST(tiles_of_a_document_each_are_told)
{
    static const struct {
        const char *mask, *spec;
        uint32_t plan_flags;
        bool is_told, is_apart;
        int64_t tiles;
    } rows[] = {
        { "varlen-full:300*40", "head_dim=128,dtype=bf16,heads=64:8,backward", 0, true, true, 120 },
        { "varlen-full:300*40", "head_dim=128,dtype=bf16,heads=64:8,backward", FFA_PLAN_ISOLATE,
          false, true, 120 },
        { "varlen-full:300*40", "head_dim=128,dtype=bf16,heads=16:16,backward", 0, false, false,
          100 },
        { "varlen-full:300*40", "head_dim=128,dtype=bf16,heads=64:8,backward,deterministic", 0,
          false, false, 100 },
        { "varlen-full:256*40", "head_dim=128,dtype=bf16,heads=64:8,backward", 0, false, false,
          80 },
    };
    ffa_context *context = open_context("none");

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static struct answer answer;
        const char *told;
        int orders = 0;

        explain_with(&answer, context, "NVIDIA H200", rows[i].spec, rows[i].mask,
                     rows[i].plan_flags);
        told = strstr(answer.info.backward_why, "; no tile has keys of two documents");
        ck_assert_int_eq(told != NULL, rows[i].is_told);
        for (int k = 0; k < answer.told.count; k++)
            if (answer.told.at[k].is_backward) {
                ck_assert_int_eq(answer.told.at[k].tile_count, rows[i].tiles);
                ck_assert_int_eq(answer.told.at[k].is_apart, rows[i].is_apart);
                orders++;
            }
        ck_assert_int_gt(orders, 0);
    }
    ffa_close(context);
}
END_TEST

/* The order is that of the least time, but for parts that do not save enough. */
START_TEST(orders_are_told_with_their_times)
{
    ffa_context *context = open_context("none");
    static struct answer answer;
    double best = 0, chosen = 0;

    explain(&answer, context, "NVIDIA H200", "head_dim=128,dtype=bf16,heads=64:8,backward",
            "causal:1024");
    for (int i = 0; i < answer.told.count; i++) {
        const ffa_explain_candidate *told = &answer.told.at[i];

        if (told->is_backward && (best == 0 || told->time < best))
            best = told->time;
        if (told->is_backward && told->is_chosen)
            chosen = told->time;
    }
    ck_assert_double_le(chosen * (1 - cost_table_find(NULL)->order.worth), best);
    ck_assert_int_eq(answer.plan.backward_parts, 4);
    ck_assert_int_eq(answer.plan.cost_source, FFA_COST_BUILT_IN);
    ck_assert_str_eq(
        answer.info.backward_why,
        "4 parts take 64.2 % less than one; each step to more has to save 0.5 %; not in pairs; in "
        "lockstep");
    explain(&answer, context, "NVIDIA H200", "head_dim=128,dtype=bf16,heads=64:8,backward",
            "causal:16384");
    ck_assert_ptr_nonnull(strstr(answer.info.backward_why, "; in pairs of blocks; in lockstep"));
    ffa_close(context);
}
END_TEST

/* ---- another table ---- */

static char *write_table(const struct cost_table *table, const char *folder)
{
    ffa_error err = { FFA_OK, 0, "" };
    char *path = tmpdir_path(folder, "table.json"), *text;

    ck_assert_msg(cost_table_write(table, &text, &err) == FFA_OK, "%s", err.message);
    tmpdir_write_text(path, text);
    mem_free(text);
    return path;
}

START_TEST(choices_follow_the_table_of_a_file)
{
    struct cost_table table = *cost_table_find(NULL);
    char *folder = tmpdir_make(), *path;
    static struct answer answer;
    ffa_context *context;

    text_copy(table.device, "X 1");
    table.sm_count = 64;
    for (int32_t i = 0; i < table.tile_count; i++) {
        table.tiles[i].unit_us = 0.01;
        if (table.tiles[i].consumers == 1)
            table.tiles[i].cost = (struct tile_cost){ 1, 0.01 };
    }
    path = write_table(&table, folder);
    context = open_context(path);
    explain(&answer, context, "X 1", "head_dim=128,dtype=bf16,heads=64:8", "causal:4096");
    ck_assert_int_eq(answer.plan.tile_m, 24); /* more than 16 items an SM */
    ck_assert_str_eq(answer.info.forward_why,
                     "work items are so many that kernels of other rows than the first are not "
                     "tried");
    explain(&answer, context, "X 1", "head_dim=128,dtype=bf16,heads=64:8", "causal:1024");
    ck_assert_int_eq(answer.plan.tile_m, 8);
    ck_assert_str_eq(answer.plan.cost_table, "X 1");
    ck_assert_int_eq(answer.plan.cost_source, FFA_COST_TUNED);
    ck_assert_int_eq(answer.info.sm_count, 64);
    for (int i = 0; i < answer.told.count; i++)
        ck_assert_double_eq_tol(answer.told.at[i].us, answer.told.at[i].time * 0.01, 1e-9);
    explain(&answer, context, "NVIDIA H200", "head_dim=128,dtype=bf16,heads=64:8", "causal:4096");
    ck_assert_int_eq(answer.plan.tile_m, 24);
    ffa_close(context);
    tmpdir_remove(folder);
    free(path);
}
END_TEST

/* Of heads apart, two tiles of a table compete: blocks of 64 keys fit the window, and cost more a
 * key. */
START_TEST(heads_apart_choose_among_the_tables_tiles)
{
    static const struct {
        const char *mask;
        int32_t tile_n;
    } want[] = { { "causal:4096", 128 }, { "window:4096,left=60,right=0", 64 } };
    struct cost_table table = *cost_table_find(NULL);
    char *folder = tmpdir_make(), *path;
    static struct answer answer;
    ffa_context *context;

    text_copy(table.device, "X 1");
    table.tiles[table.tile_count++] = (struct cost_tile){ 128, 128, 0, 2, 128, { 318, 1 }, 0.01 };
    table.tiles[table.tile_count++] = (struct cost_tile){ 128, 128, 0, 2, 64, { 250, 1.2 }, 0.01 };
    path = write_table(&table, folder);
    context = open_context(path);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        explain(&answer, context, "X 1", "head_dim=128,dtype=bf16,heads=16:16,pack=0",
                want[i].mask);
        ck_assert_int_eq(answer.told.count, 2);
        ck_assert_int_eq(answer.plan.pack_heads, 0);
        ck_assert_int_eq(answer.plan.tile_n, want[i].tile_n);
        ck_assert_str_eq(answer.plan.cost_table, "X 1");
        for (int k = 0; k < 2; k++) {
            ck_assert_int_eq(answer.told.at[k].is_chosen,
                             answer.told.at[k].tile_n == want[i].tile_n);
            ck_assert_double_eq_tol(answer.told.at[k].us, answer.told.at[k].time * 0.01, 1e-9);
        }
        explain(&answer, context, "NVIDIA H200", "head_dim=128,dtype=bf16,heads=16:16,pack=0",
                want[i].mask);
        ck_assert_int_eq(answer.told.count, 1);
        ck_assert_int_eq(answer.plan.tile_n, 128);
    }
    ffa_close(context);
    tmpdir_remove(folder);
    free(path);
}
END_TEST

/* ---- refusals ---- */

START_TEST(wrong_questions_are_refused)
{
    ffa_attention_spec spec = parse_spec("head_dim=128,dtype=bf16");
    ffa_explain_query query = FFA_EXPLAIN_QUERY_INIT;
    ffa_explain_info info = FFA_EXPLAIN_INFO_INIT;
    ffa_plan_info plan = FFA_PLAN_INFO_INIT;
    ffa_context *context = open_context("none");
    ffa_mask *mask = parse_mask("causal:64"), *lists;
    const ffa_mask_shape shape = { 64, 64 };
    const ffa_slice_list two[] = { ffa_mask_slices(mask, 0), ffa_mask_slices(mask, 0) };
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(ffa_mask_create_per_head(&lists, &shape, two, 2, &err), FFA_OK);
#define CALL(context) ffa_explain(context, &query, &plan, &info, NULL, NULL, &err)
    ck_assert_int_eq(CALL(NULL), FFA_INVALID);
    ck_assert_str_eq(err.message, "ffa_explain: context is NULL");
    ck_assert_int_eq(CALL(context), FFA_INVALID);
    ck_assert_str_eq(err.message, "ffa_explain: spec is NULL");
    query.spec = &spec;
    ck_assert_int_eq(CALL(context), FFA_INVALID);
    ck_assert_str_eq(err.message, "ffa_explain: mask is NULL");
    query.mask = mask;
    ck_assert_int_eq(CALL(context), FFA_OK);
    query.device = "X 1";
    ck_assert_int_eq(CALL(context), FFA_NOT_FOUND);
    query.device = NULL;
    query.plan_flags = 1u << 30;
    ck_assert_int_eq(CALL(context), FFA_UNSUPPORTED);
    query.plan_flags = 0;
    spec.head_dim = 100;
    ck_assert_int_eq(CALL(context), FFA_INVALID);
    spec.head_dim = 128;
    query.mask = lists;
    ck_assert_int_eq(CALL(context), FFA_OK); /* the spec has no heads */
    spec.heads_q = spec.heads_kv = 2;
    ck_assert_int_eq(CALL(context), FFA_OK);
    spec.heads_q = spec.heads_kv = 4;
    ck_assert_int_eq(CALL(context), FFA_INVALID);
    ck_assert_str_eq(err.message, "heads_kv is 4, the mask has 2 lists");
    query.mask = mask;
    info.struct_size = 0;
    ck_assert_int_eq(CALL(context), FFA_INVALID);
#undef CALL
    ck_assert_int_eq(ffa_explain(context, NULL, &plan, &info, NULL, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_explain(context, &query, NULL, &info, NULL, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_explain(context, &query, &plan, NULL, NULL, NULL, &err), FFA_INVALID);
    ffa_mask_destroy(lists);
    ffa_mask_destroy(mask);
    ffa_close(context);
}
END_TEST

START_TEST(a_visitor_may_end_it)
{
    const ffa_attention_spec spec = parse_spec("head_dim=128,dtype=bf16,heads=64:8,backward");
    ffa_explain_query query = FFA_EXPLAIN_QUERY_INIT;
    ffa_explain_info info = FFA_EXPLAIN_INFO_INIT;
    ffa_plan_info plan = FFA_PLAN_INFO_INIT;
    ffa_context *context = open_context("none");
    ffa_mask *mask = parse_mask("causal:4096");
    static struct told told = { .most = 2 };

    query.spec = &spec;
    query.mask = mask;
    ck_assert_int_eq(ffa_explain(context, &query, &plan, &info, keep, &told, NULL), FFA_OK);
    ck_assert_int_eq(told.count, 2);
    ck_assert_int_eq(plan.tile_m, 24);
    ffa_mask_destroy(mask);
    ffa_close(context);
}
END_TEST

START_TEST(explaining_survives_no_memory)
{
    const ffa_attention_spec spec = parse_spec("head_dim=128,dtype=bf16,heads=8:1");
    ffa_explain_query query = FFA_EXPLAIN_QUERY_INIT;
    ffa_explain_info info = FFA_EXPLAIN_INFO_INIT;
    ffa_plan_info plan = FFA_PLAN_INFO_INIT;
    ffa_context *context = open_context("none");
    ffa_mask *mask = parse_mask("varlen-full:1x4096,20x8192");

    query.spec = &spec;
    query.mask = mask;
    for (long nth = 1;; nth++) {
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = ffa_explain(context, &query, &plan, &info, NULL, NULL, NULL);
        if (!fault_fired()) {
            ck_assert_int_eq(rc, FFA_OK);
            ck_assert_int_gt((int)nth, 10);
            break;
        }
        ck_assert_int_eq(rc, FFA_NOMEM);
    }
    fault_arm(FAULT_ALLOC, 0);
    ffa_mask_destroy(mask);
    ffa_close(context);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("explain");
    TCase *tc = tcase_create("explain");

    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, one_of_each_pass_is_chosen, 0, sizeof cases / sizeof *cases);
    tcase_add_test(tc, no_split_of_lists_is_told);
    tcase_add_test(tc, tiles_of_a_document_each_are_told);
    tcase_add_test(tc, orders_are_told_with_their_times);
    tcase_add_test(tc, choices_follow_the_table_of_a_file);
    tcase_add_test(tc, heads_apart_choose_among_the_tables_tiles);
    tcase_add_test(tc, wrong_questions_are_refused);
    tcase_add_test(tc, a_visitor_may_end_it);
    tcase_add_test(tc, explaining_survives_no_memory);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
