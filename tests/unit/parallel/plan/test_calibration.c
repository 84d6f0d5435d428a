/* SPDX-License-Identifier: Apache-2.0
 *
 * Calibrations: the model that follows from measured rates, and what is refused.
 */
#include "support/suite.h"

#include <check.h>
#include <ffa/ffa.h>
#include <stddef.h>
#include <string.h>

static const ffa_link_rate links[] = { { 1024, 1000 }, { 2048, 3000 }, { 8192, 2000 } };
static const ffa_kernel_rate kernels[] = {
    { 0, 128, 128, 128, 128, 0, 600000 }, { 0, 128, 128, 192, 128, 0, 650000 },
    { 0, 64, 64, 128, 128, 0, 700000 },   { 1, 192, 128, 64, 128, 0, 400000 },
    { 1, 64, 64, 64, 128, 0, 300000 },
};

static ffa_calibration all(void)
{
    ffa_calibration c = FFA_CALIBRATION_INIT;

    c.links = links;
    c.link_count = sizeof links / sizeof *links;
    c.kernels = kernels;
    c.kernel_count = sizeof kernels / sizeof *kernels;
    c.node_latency_ns = 20000;
    c.launch_ns = 3000;
    return c;
}

/* Rows of 16 bytes. */
static ffa_parallel_model small(void)
{
    return (ffa_parallel_model){ .heads_kv = 1, .head_dim = 4, .element_bytes = 2 };
}

START_TEST(rates_of_ranges_lie_between_the_measured_ones)
{
    static const int64_t rates[][2] = { { 1, 1000 },      { 64, 1000 },  { 65, 1031 },
                                        { 96, 2000 },     { 127, 2968 }, { 128, 3000 },
                                        { 320, 2500 },    { 512, 2000 }, { 513, 2000 },
                                        { 1 << 30, 2000 } };
    const ffa_calibration c = all();

    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        ffa_parallel_model model = small();

        ck_assert_int_eq(ffa_parallel_model_calibrate(&model, &c, 0, rates[i][0], NULL), FFA_OK);
        ck_assert_int_eq(model.node_mbytes_s, rates[i][1]);
    }
}
END_TEST

START_TEST(kernels_of_the_nearest_dims_and_the_fastest_tile)
{
    static const struct {
        int32_t head_dim, head_dim_v;
        int64_t forward, backward;
    } rows[] = { { 128, 128, 650000, 400000 }, /* backward: 64 away, not 128 */
                 { 0, 0, 650000, 400000 },     /* the default is 128 */
                 { 64, 0, 700000, 300000 },    { 88, 88, 700000, 300000 },
                 { 256, 0, 650000, 400000 },   { 192, 128, 650000, 400000 } };
    const ffa_calibration c = all();

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ffa_parallel_model model = { .head_dim = rows[i].head_dim };

        ck_assert_int_eq(ffa_parallel_model_calibrate(&model, &c, rows[i].head_dim_v, 1, NULL),
                         FFA_OK);
        ck_assert_int_eq(model.forward_gflops, rows[i].forward);
        ck_assert_int_eq(model.backward_gflops, rows[i].backward);
        ck_assert_int_eq(model.node_latency_ns, 20000);
        ck_assert_int_eq(model.launch_ns, 3000);
        ck_assert_int_eq(model.network_mbytes_s, 0);
        ck_assert_int_eq(model.heads_q, 0);
    }
}
END_TEST

START_TEST(what_the_caller_says_stays)
{
    const ffa_parallel_model given = { 64, 8, 128, 2, 1, 2, 3, 4, 5, 6, 7 };
    const ffa_calibration nothing = FFA_CALIBRATION_INIT, c = all();
    ffa_parallel_model model = given;

    ck_assert_int_eq(ffa_parallel_model_calibrate(&model, &c, 0, 100, NULL), FFA_OK);
    ck_assert_int_eq(memcmp(&model, &given, sizeof model), 0);
    model = (ffa_parallel_model){ 0 };
    ck_assert_int_eq(ffa_parallel_model_calibrate(&model, &nothing, 0, 1, NULL), FFA_OK);
    ck_assert_int_eq(memcmp(&model, &(ffa_parallel_model){ 0 }, sizeof model), 0);
}
END_TEST

/* A rate and the begin that was measured with it, and what else options have of the model. */
START_TEST(options_take_the_begins)
{
    static const ffa_kernel_rate with_begins[] = { { 0, 128, 128, 128, 128, 140, 600000 },
                                                   { 0, 128, 128, 192, 128, 150, 650000 },
                                                   { 1, 128, 128, 64, 128, 439, 500000 } };
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_calibration c = all();
    ffa_error err;

    c.kernels = with_begins;
    c.kernel_count = 3;
    c.sms = 132;
    c.window_mbytes_s = 2000000;
    opts.model.backward_gflops = 1;
    ck_assert_int_eq(ffa_parallel_plan_opts_calibrate(&opts, &c, 1, NULL), FFA_OK);
    ck_assert_int_eq(opts.model.forward_gflops, 650000);
    ck_assert_int_eq(opts.forward_begin_keys, 150);
    ck_assert_int_eq(opts.model.backward_gflops, 1);
    ck_assert_int_eq(opts.backward_begin_rows, 0);
    ck_assert_int_eq(opts.window_mbytes_s, 2000000);
    ck_assert_int_eq(opts.sms, 132);
    ck_assert_int_eq(opts.model.launch_ns, 3000);
    /* What the caller says stays. */
    opts.forward_begin_keys = 7;
    opts.sms = 8;
    opts.window_mbytes_s = 9;
    ck_assert_int_eq(ffa_parallel_plan_opts_calibrate(&opts, &c, 1, NULL), FFA_OK);
    ck_assert_int_eq(opts.forward_begin_keys, 7);
    ck_assert_int_eq(opts.sms, 8);
    ck_assert_int_eq(opts.window_mbytes_s, 9);
    /* A file of before. */
    opts = (ffa_parallel_plan_opts)FFA_PARALLEL_PLAN_OPTS_INIT;
    c = all();
    ck_assert_int_eq(ffa_parallel_plan_opts_calibrate(&opts, &c, 1, NULL), FFA_OK);
    ck_assert_int_eq(opts.model.forward_gflops, 650000);
    ck_assert_int_eq(opts.forward_begin_keys, 0);
    ck_assert_int_eq(opts.sms, 0);
    /* An older program's options end before them. */
    opts.struct_size = (uint32_t)offsetof(ffa_parallel_plan_opts, forward_begin_keys);
    opts.forward_begin_keys = 5;
    opts.model.forward_gflops = 0;
    c.kernels = with_begins;
    c.kernel_count = 3;
    ck_assert_int_eq(ffa_parallel_plan_opts_calibrate(&opts, &c, 1, NULL), FFA_OK);
    ck_assert_int_eq(opts.model.forward_gflops, 650000);
    ck_assert_int_eq(opts.forward_begin_keys, 5);
    ck_assert_int_eq(ffa_parallel_plan_opts_calibrate(NULL, &c, 1, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "opts is NULL");
    ck_assert_int_eq(ffa_parallel_plan_opts_calibrate(&opts, NULL, 1, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "calibration is NULL");
}
END_TEST

/* A plan takes the model: faster links, less time. */
START_TEST(plans_take_the_model)
{
    const ffa_mask_shape shape = { 65536, 65536 };
    const ffa_topology topology = { 8, 0 };
    int64_t ns[2];
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_full(&mask, &shape, NULL), FFA_OK);
    for (int i = 0; i < 2; i++) {
        const ffa_link_rate rate = { 4096, i ? 400000 : 1000 };
        const ffa_dispatch_mask one = { mask, 1 };
        ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
        ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;
        ffa_calibration c = FFA_CALIBRATION_INIT;
        ffa_parallel_plan *plan;
        ffa_dispatch *dispatch;

        c.links = &rate;
        c.link_count = 1;
        ck_assert_int_eq(ffa_parallel_model_calibrate(&opts.model, &c, 0, 1024, NULL), FFA_OK);
        ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, NULL), FFA_OK);
        ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 0, &opts, NULL), FFA_OK);
        ck_assert_int_eq(ffa_parallel_plan_info_get(plan, &info, NULL), FFA_OK);
        ck_assert_int_eq(info.model.node_mbytes_s, rate.mbytes_s);
        ns[i] = info.forward_slowest_ns;
        ffa_parallel_plan_destroy(plan);
        ffa_dispatch_destroy(dispatch);
    }
    ck_assert_int_lt(ns[1] * 2, ns[0]);
    ffa_mask_destroy(mask);
}
END_TEST

static const ffa_link_rate unsorted[] = { { 8, 1 }, { 8, 1 } }, slow[] = { { 8, 0 } };
static const ffa_kernel_rate no_pass[] = { { 2, 64, 64, 64, 64, 0, 1 } },
                             no_tile[] = { { 1, 64, 64, 64, 0, 0, 1 } },
                             no_rate[] = { { 1, 64, 64, 64, 64, 0, 1000000001 } },
                             long_begin[] = { { 1, 64, 64, 64, 64, 65537, 1 } };
static const struct {
    ffa_calibration c;
    int64_t range_rows;
    const char *says;
} wrong[] = {
    { { sizeof(ffa_calibration), -1, 0, 0, NULL, NULL, 0, 0, 0 }, 1, "link_count is -1" },
    { { sizeof(ffa_calibration), 1, 0, 0, NULL, NULL, 0, 0, 0 }, 1, "links is NULL" },
    { { sizeof(ffa_calibration), 0, 1, 0, NULL, NULL, 0, 0, 0 }, 1, "kernels is NULL" },
    { { sizeof(ffa_calibration), 2, 0, 0, unsorted, NULL, 0, 0, 0 },
      1,
      "links[1].range_bytes is 8, not in [9," },
    { { sizeof(ffa_calibration), 1, 0, 0, slow, NULL, 0, 0, 0 }, 1, "links[0].mbytes_s is 0" },
    { { sizeof(ffa_calibration), 0, 1, 0, NULL, no_pass, 0, 0, 0 },
      1,
      "kernels[0].is_backward is 2" },
    { { sizeof(ffa_calibration), 0, 1, 0, NULL, no_tile, 0, 0, 0 }, 1, "kernels[0].tile_n is 0" },
    { { sizeof(ffa_calibration), 0, 1, 0, NULL, no_rate, 0, 0, 0 },
      1,
      "kernels[0].gflops is 1000000001" },
    { { sizeof(ffa_calibration), 0, 1, 0, NULL, long_begin, 0, 0, 0 },
      1,
      "kernels[0].begin_tokens is 65537, not in [0, 65536]" },
    { { sizeof(ffa_calibration), 0, 0, 4097, NULL, NULL, 0, 0, 0 }, 1, "sms is 4097" },
    { { sizeof(ffa_calibration), 0, 0, 0, NULL, NULL, 0, 0, -1 }, 1, "window_mbytes_s is -1" },
    { { sizeof(ffa_calibration), 0, 0, 0, NULL, NULL, -1, 0, 0 }, 1, "node_latency_ns is -1" },
    { { sizeof(ffa_calibration), 0, 0, 0, NULL, NULL, 0, 1000000001, 0 }, 1, "launch_ns is" },
    { { sizeof(ffa_calibration), 0, 0, 0, NULL, NULL, 0, 0, 0 }, 0, "range_rows is 0" },
    { { 2, 0, 0, 0, NULL, NULL, 0, 0, 0 }, 1, "struct_size is 2" },
};

START_TEST(wrong_numbers_are_refused)
{
    ffa_parallel_model model = { 0 };
    ffa_error err;

    ck_assert_int_eq(
        ffa_parallel_model_calibrate(&model, &wrong[_i].c, 0, wrong[_i].range_rows, &err),
        FFA_INVALID);
    ck_assert_msg(strstr(err.message, wrong[_i].says) != NULL, "%s", err.message);
    ck_assert_int_eq(memcmp(&model, &(ffa_parallel_model){ 0 }, sizeof model), 0);
    ck_assert_int_eq(ffa_parallel_model_calibrate(NULL, &wrong[_i].c, 0, 1, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "model is NULL");
    ck_assert_int_eq(ffa_parallel_model_calibrate(&model, NULL, 0, 1, &err), FFA_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("calibration");
    TCase *tc = tcase_create("calibration");

    tcase_add_test(tc, rates_of_ranges_lie_between_the_measured_ones);
    tcase_add_test(tc, kernels_of_the_nearest_dims_and_the_fastest_tile);
    tcase_add_test(tc, what_the_caller_says_stays);
    tcase_add_test(tc, options_take_the_begins);
    tcase_add_test(tc, plans_take_the_model);
    tcase_add_loop_test(tc, wrong_numbers_are_refused, 0, sizeof wrong / sizeof *wrong);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
