/* SPDX-License-Identifier: Apache-2.0
 *
 * What a forward spec leaves open: which tile is chosen for which head_dim and features, and what
 * is said where nothing fits. A kernel's key depends on these choices: a change here is a change of
 * every warmed cache.
 */
#include "choose/spec_choice.h"
#include "support/suite.h"

#include <check.h>

static const struct {
    const char *settings[4];
    ffa_status want;
    const char *says;
} resolve_cases[] = {
    { { "head_dim=64" },
      FFA_OK,
      "head_dim=64 head_dim_v=64 dtype=1 consumers=3 tile_n=128 kv_slots=2 softcap=0 out_fp32=0 "
      "staged=0 max_logits=0 packed=0 split=0 arrivals=0 debug=0" },
    { { "head_dim=128" },
      FFA_OK,
      "head_dim=128 head_dim_v=128 dtype=1 consumers=2 tile_n=128 kv_slots=2 softcap=0 out_fp32=0 "
      "staged=0 max_logits=0 packed=0 split=0 arrivals=0 debug=0" },
    { { "head_dim=64", "debug=1" },
      FFA_OK,
      "consumers=2 tile_n=128 kv_slots=2 softcap=0 out_fp32=0 staged=0 max_logits=0 packed=0 "
      "split=0 arrivals=0 "
      "debug=1" },
    { { "tile_n=64", "kv_slots=4" }, FFA_OK, "consumers=2 tile_n=64 kv_slots=4" },
    { { "head_dim=64", "consumers=3" }, FFA_OK, "consumers=3 tile_n=128 kv_slots=2" },
    { { "head_dim=8" }, FFA_OK, "head_dim=64 head_dim_v=64 dtype=1 consumers=3 tile_n=128" },
    { { "head_dim=72" }, FFA_OK, "head_dim=96 head_dim_v=96 dtype=1 consumers=3 tile_n=96" },
    { { "head_dim=136" }, FFA_OK, "head_dim=192 head_dim_v=192 dtype=1 consumers=2 tile_n=112" },
    { { "head_dim=200" }, FFA_OK, "head_dim=256 head_dim_v=256 dtype=1 consumers=2 tile_n=80" },
    { { "head_dim=192", "head_dim_v=128" },
      FFA_OK,
      "head_dim_v=128 dtype=1 consumers=2 tile_n=128" },
    { { "head_dim=256", "softcap=1" }, FFA_OK, "consumers=2 tile_n=64 kv_slots=2 softcap=1" },
    { { "head_dim=100" }, FFA_INVALID, "head_dim is 100, not a multiple of 8" },
    { { "head_dim_v=33" }, FFA_INVALID, "head_dim_v is 33, not a multiple of 8" },
    { { "out_fp32=1", "staged=1" }, FFA_INVALID, "out_fp32 and staged are both 1" },
    { { "out_fp32=1", "split=1" }, FFA_INVALID, "split is 1 with out_fp32" },
    { { "arrivals=1", "out_fp32=1" }, FFA_INVALID, "arrivals and out_fp32 are both 1" },
    { { "arrivals=1", "staged=1" }, FFA_OK, "staged=1" },
    { { "arrivals=1", "split=1" }, FFA_INVALID, "arrivals and split are both 1" },
    { { "head_dim=64", "arrivals=1" }, FFA_OK, "consumers=3 tile_n=128 kv_slots=2" },
    { { "tile_n=100" }, FFA_INVALID, "tile_n is 100, not a multiple of 16" },
    { { "tile_n=128", "kv_slots=4" }, FFA_INVALID, "bytes of shared memory, sm_90a has 232448" },
    { { "tile_n=192", "consumers=2" },
      FFA_INVALID,
      "208 registers a thread, with 2 consumers there are 204" },
    { { "tile_n=96", "consumers=3" },
      FFA_INVALID,
      "136 registers a thread, with 3 consumers there are 128" },
    { { "consumers=3" }, FFA_OK, "consumers=3 tile_n=80 kv_slots=2" },
    { { "consumers=3", "tile_n=128" }, FFA_INVALID, "with 3 consumers there are" },
    { { "head_dim=64", "consumers=3", "softcap=1" }, FFA_OK, "consumers=3 tile_n=96 kv_slots=2" },
    { { "head_dim=64", "consumers=3", "softcap=1", "tile_n=128" },
      FFA_INVALID,
      "128 registers a thread, with 3 consumers there are 108" },
    { { "tile_n=176", "kv_slots=1", "debug=1" }, FFA_INVALID, "with 2 consumers there are 184" },
};

START_TEST(a_spec_is_chosen_and_checked)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct jit_spec spec, again;
    char values[256];
    ffa_status rc;

    ck_assert_int_eq(jit_spec_init(&spec, "attention_forward", NULL), FFA_OK);
    for (int i = 0; i < 4 && resolve_cases[_i].settings[i]; i++)
        ck_assert_int_eq(jit_spec_set(&spec, resolve_cases[_i].settings[i], NULL), FFA_OK);
    rc = choose_spec(&spec, "sm_90a", &err);
    ck_assert_msg(rc == resolve_cases[_i].want, "%s", err.message);
    jit_spec_text(&spec, values, sizeof values);
    ck_assert_msg(strstr(rc == FFA_OK ? values : err.message, resolve_cases[_i].says), "%s | %s",
                  values, err.message);
    if (rc != FFA_OK)
        return;
    again = spec;
    ck_assert_int_eq(choose_spec(&again, "sm_90a", NULL), FFA_OK);
    ck_assert_mem_eq(&again, &spec, sizeof spec);
}
END_TEST

/* consumers, tile_n and slots of every head_dim; 0: refused. */
static const struct {
    const char *settings[2];
    int32_t tile[3];
} tiles[] = {
    { { "head_dim=8", "head_dim_v=0" }, { 3, 128, 2 } },
    { { "head_dim=8", "softcap=1" }, { 2, 128, 2 } },
    { { "head_dim=8", "out_fp32=1" }, { 2, 128, 2 } },
    { { "head_dim=8", "split=1" }, { 2, 128, 2 } },
    { { "head_dim=8", "packed=1" }, { 1, 128, 3 } },
    { { "head_dim=8", "debug=1" }, { 2, 128, 2 } },
    { { "head_dim=8", "head_dim_v=128" }, { 2, 128, 2 } },
    { { "head_dim=8", "kv_slots=1" }, { 3, 128, 1 } },
    { { "head_dim=8", "tile_n=96" }, { 3, 96, 2 } },
    { { "head_dim=8", "consumers=3" }, { 3, 128, 2 } },
    { { "head_dim=96", "head_dim_v=0" }, { 3, 96, 2 } },
    { { "head_dim=96", "softcap=1" }, { 2, 128, 2 } },
    { { "head_dim=96", "out_fp32=1" }, { 2, 128, 2 } },
    { { "head_dim=96", "split=1" }, { 2, 128, 2 } },
    { { "head_dim=96", "packed=1" }, { 1, 128, 3 } },
    { { "head_dim=96", "debug=1" }, { 2, 128, 2 } },
    { { "head_dim=96", "head_dim_v=128" }, { 2, 128, 2 } },
    { { "head_dim=96", "kv_slots=1" }, { 3, 96, 1 } },
    { { "head_dim=96", "tile_n=96" }, { 3, 96, 2 } },
    { { "head_dim=96", "consumers=3" }, { 3, 96, 2 } },
    { { "head_dim=128", "head_dim_v=0" }, { 2, 128, 2 } },
    { { "head_dim=128", "softcap=1" }, { 2, 128, 2 } },
    { { "head_dim=128", "out_fp32=1" }, { 2, 128, 2 } },
    { { "head_dim=128", "split=1" }, { 2, 128, 2 } },
    { { "head_dim=128", "packed=1" }, { 1, 128, 3 } },
    { { "head_dim=128", "debug=1" }, { 2, 128, 2 } },
    { { "head_dim=128", "head_dim_v=128" }, { 2, 128, 2 } },
    { { "head_dim=128", "kv_slots=1" }, { 2, 128, 1 } },
    { { "head_dim=128", "tile_n=96" }, { 2, 96, 2 } },
    { { "head_dim=128", "consumers=3" }, { 3, 80, 2 } },
    { { "head_dim=192", "head_dim_v=0" }, { 2, 112, 2 } },
    { { "head_dim=192", "softcap=1" }, { 2, 112, 2 } },
    { { "head_dim=192", "out_fp32=1" }, { 2, 112, 2 } },
    { { "head_dim=192", "split=1" }, { 2, 112, 2 } },
    { { "head_dim=192", "packed=1" }, { 1, 80, 3 } },
    { { "head_dim=192", "debug=1" }, { 2, 112, 2 } },
    { { "head_dim=192", "head_dim_v=128" }, { 2, 128, 2 } },
    { { "head_dim=192", "kv_slots=1" }, { 2, 128, 1 } },
    { { "head_dim=192", "tile_n=96" }, { 2, 96, 2 } },
    { { "head_dim=192", "consumers=3" }, { 0, 0, 0 } },
    { { "head_dim=256", "head_dim_v=0" }, { 2, 80, 2 } },
    { { "head_dim=256", "softcap=1" }, { 2, 64, 2 } },
    { { "head_dim=256", "out_fp32=1" }, { 2, 64, 2 } },
    { { "head_dim=256", "split=1" }, { 2, 64, 2 } },
    { { "head_dim=256", "packed=1" }, { 1, 64, 3 } },
    { { "head_dim=256", "debug=1" }, { 2, 64, 2 } },
    { { "head_dim=256", "head_dim_v=128" }, { 2, 96, 2 } },
    { { "head_dim=256", "kv_slots=1" }, { 2, 96, 1 } },
    { { "head_dim=256", "tile_n=96" }, { 2, 96, 1 } },
    { { "head_dim=256", "consumers=3" }, { 0, 0, 0 } },
};

START_TEST(tiles_stay_as_they_were)
{
    const char *const rows[] = { "consumers", "tile_n", "kv_slots" };
    struct jit_spec spec;
    ffa_status rc;

    ck_assert_int_eq(jit_spec_init(&spec, "attention_forward", NULL), FFA_OK);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(jit_spec_set(&spec, tiles[_i].settings[i], NULL), FFA_OK);
    rc = choose_spec(&spec, "sm_90a", NULL);
    ck_assert_int_eq(rc, tiles[_i].tile[0] ? FFA_OK : FFA_INVALID);
    for (int i = 0; i < 3 && rc == FFA_OK; i++)
        ck_assert_msg(jit_spec_get(&spec, rows[i]) == tiles[_i].tile[i], "%s %s: %s is %d",
                      tiles[_i].settings[0], tiles[_i].settings[1], rows[i],
                      (int)jit_spec_get(&spec, rows[i]));
}
END_TEST

/* Rows out of their limits are refused before anything looks at them. */
START_TEST(what_is_not_valid_is_refused)
{
    struct jit_spec spec;
    ffa_error err;

    ck_assert_int_eq(jit_spec_init(&spec, "attention_forward", NULL), FFA_OK);
    spec.values[0] = 100000;
    ck_assert_int_eq(choose_spec(&spec, "sm_90a", &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "head_dim is 100000, not in [8, 256]"));
    ck_assert_int_eq(choose_spec(&spec, "sm_80", &err), FFA_UNSUPPORTED);
    ck_assert_int_eq(choose_spec(&spec, NULL, &err), FFA_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("spec_choice");
    TCase *tc = tcase_create("spec_choice");

    tcase_add_loop_test(tc, a_spec_is_chosen_and_checked, 0,
                        sizeof resolve_cases / sizeof *resolve_cases);
    tcase_add_loop_test(tc, tiles_stay_as_they_were, 0, sizeof tiles / sizeof *tiles);
    tcase_add_test(tc, what_is_not_valid_is_refused);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
