/* SPDX-License-Identifier: Apache-2.0
 *
 * What the device tests of both passes share: how much of a test runs, masks, rows of a tensor.
 *
 * FFA_TEST_LEVEL decides how much runs. Level 0 runs one repetition in level_share, spread
 * evenly so that every kind of case is met. FFA_TEST_PART deals the iterations of all tests out to
 * several processes one by one, so that no process gets the expensive last ones of every test.
 */
#include "support/device_case.h"

#include "oracle/oracle.h"

#include <stdio.h>
#include <stdlib.h>

int64_t full_cells = 4000000;
int level_share = 1;

void level_read(struct attention_shape *layouts, int count)
{
    const char *text = getenv("FFA_TEST_LEVEL");
    const int level = text ? atoi(text) : 1;

    if (level > 1)
        full_cells = ORACLE_CELLS_MAX;
    if (level >= 1)
        return;
    full_cells = 400000;
    level_share = 12;
    for (int i = 0; i < count; i++)
        while (layouts[i].heads_q > 4 && layouts[i].heads_kv > 2) {
            layouts[i].heads_q /= 2;
            layouts[i].heads_kv /= 2;
        }
}

bool is_left_out(const ffa_mask *mask, int32_t heads)
{
    static int count;
    const int64_t cells = ffa_mask_area(mask, -1) / ffa_mask_head_count(mask) * heads;

    return level_share > 1 && cells > 300000 && count++ % level_share != 0;
}

int level_step(int few, int otherwise)
{
    return level_share > 1 ? few : otherwise;
}

void add_part(TCase *tcase, const TTest *test, int begin, int end)
{
    static int dealt; /* iterations of all tests so far */
    const char *text = getenv("FFA_TEST_PART");
    int part = 0, parts = 1;

    if (text && (sscanf(text, "%d/%d", &part, &parts) != 2 || part < 0 || part >= parts)) {
        fprintf(stderr, "FFA_TEST_PART is '%s', not I/N with I from 0 to N - 1\n", text);
        exit(2);
    }
    for (int i = begin; i < end; i++)
        if (dealt++ % parts == part)
            tcase_add_loop_test(tcase, test, i, i + 1);
}

void add_loop(TCase *tcase, const TTest *test, int count, int step)
{
    for (int i = 0; i < count && level_share > 1; i += step)
        tcase_add_loop_test(tcase, test, i, i + 1);
    if (level_share == 1)
        add_part(tcase, test, 0, count);
}

void must(ffa_status rc, const ffa_error *err, const char *what)
{
    ck_assert_msg(rc == FFA_OK, "%s: %s (%s)", what, ffa_status_text(rc), err->message);
}

ffa_mask *parse(const char *text)
{
    ffa_mask *mask = NULL;
    ffa_error err = { 0 };

    must(ffa_mask_parse(&mask, text, &err), &err, text);
    return mask;
}

ffa_plan_info info_with_store(const char *store, uint32_t flags, const ffa_attention_spec *spec,
                              const ffa_mask *mask)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    ffa_context *own = NULL;
    ffa_kernels *kernels = NULL;
    ffa_plan *plan = NULL;
    ffa_error err = { 0 };

    opts.cache_path = store;
    opts.flags = flags;
    must(ffa_open(&own, FFA_DEVICE_AUTO, &opts, &err), &err, "open");
    must(ffa_kernels_create(&kernels, own, spec, &err), &err, "kernels");
    must(ffa_plan_create(&plan, kernels, mask, &err), &err, "plan");
    must(ffa_plan_info_get(plan, &info, &err), &err, "info");
    ffa_plan_destroy(plan);
    ffa_kernels_destroy(kernels);
    ffa_close(own);
    return info;
}

ffa_mask *mask_of(const struct mask_case *from)
{
    ffa_mask *mask = NULL;
    ffa_error err = { 0 };

    must(ffa_mask_create(&mask, &from->shape, from->slices, from->count, &err), &err, from->name);
    return mask;
}

void write_row(const ffa_tensor *tensor, const struct attention_shape *shape, int64_t row,
               int32_t heads, double value)
{
    for (int32_t h = 0; h < heads; h++)
        for (int32_t c = 0; c < shape->head_dim; c++)
            attention_write(tensor, shape->dtype, row, h, c, value);
}
