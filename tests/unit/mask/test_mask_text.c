/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks as text, as JSON and as pictures.
 */
#include "mask/mask.h"
#include "support/rng.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#define COUNT_OF(array) ((int)(sizeof(array) / sizeof *(array)))

static const ffa_error no_error = { FFA_OK, 0, "" };

static ffa_mask *mask_of(const char *text)
{
    ffa_error err = no_error;
    ffa_mask *mask;

    ck_assert_msg(ffa_mask_parse(&mask, text, &err) == FFA_OK, "%s: %s", text, err.message);
    return mask;
}

static char *json_of(const ffa_mask *mask)
{
    char *json;

    ck_assert_int_eq(ffa_mask_to_json(mask, &json, NULL), FFA_OK);
    return json;
}

/* ---- text ---- */

/* Each is compared with the slices written out. */
/* clang-format off */
static const struct {
    const char *text;
    int64_t seqlen_q, seqlen_k;
    int64_t count;
    ffa_slice slices[6];
} parse_cases[] = {
    { "full:4096", 4096, 4096, 1, { { 0, 4096, 0, 4096, 0, 0 } } },
    { "full:3x5", 3, 5, 1, { { 0, 3, 0, 5, 0, 0 } } },
    { "causal:7", 7, 7, 1, { { 0, 7, 0, 7, 1, 0 } } },
    { "causal:5x3", 5, 3, 1, { { 0, 5, 0, 3, 1, 0 } } },
    { "full:2147483647", INT32_MAX, INT32_MAX, 1, { { 0, INT32_MAX, 0, INT32_MAX, 0, 0 } } },
    { "varlen-full:2,3", 5, 5, 2, { { 0, 2, 0, 2, 0, 0 }, { 2, 5, 2, 5, 0, 0 } } },
    { "varlen-full:2,0,3", 5, 5, 2, { { 0, 2, 0, 2, 0, 0 }, { 2, 5, 2, 5, 0, 0 } } },
    { "varlen-causal:2x4,3x1", 5, 5, 2, { { 0, 2, 0, 4, 1, 0 }, { 2, 5, 4, 5, 1, 0 } } },
    { "varlen-causal:2*2,1", 5, 5, 3, { { 0, 2, 0, 2, 1, 0 }, { 2, 4, 2, 4, 1, 0 }, { 4, 5, 4, 5, 1, 0 } } },
    { "varlen-full:1x2*2", 2, 4, 2, { { 0, 1, 0, 2, 0, 0 }, { 1, 2, 2, 4, 0, 0 } } },
    { "window:9,left=2,right=3", 9, 9, 3, { { 0, 2, 0, 5, 1, 0 }, { 2, 6, 0, 9, 3, 0 }, { 6, 9, 4, 9, 2, 0 } } },
    { "window:9/right=3/left=2", 9, 9, 3, { { 0, 2, 0, 5, 1, 0 }, { 2, 6, 0, 9, 3, 0 }, { 6, 9, 4, 9, 2, 0 } } },
    { "window:9,right=0", 9, 9, 1, { { 0, 9, 0, 9, 1, 0 } } },
    { "window:9,left=-1,right=-1", 9, 9, 1, { { 0, 9, 0, 9, 0, 0 } } },
    { "window:2x4,left=0,right=0", 2, 4, 1, { { 0, 2, 2, 4, 3, 0 } } },
    { "varlen-window:3,3/left=1,right=0", 6, 6, 4, { { 0, 1, 0, 1, 1, 0 }, { 1, 3, 0, 3, 3, 0 }, { 3, 4, 3, 4, 1, 0 }, { 4, 6, 3, 6, 3, 0 } } },
    { "varlen-window:4,left=0,right=0,global=1", 4, 4, 3, { { 0, 1, 0, 1, 1, 0 }, { 1, 4, 0, 1, 0, 0 }, { 1, 4, 1, 4, 3, 0 } } },
    { "block-causal:4,3/block=2", 7, 7, 4, { { 0, 2, 0, 2, 0, 0 }, { 2, 4, 0, 4, 0, 0 }, { 4, 6, 4, 6, 0, 0 }, { 6, 7, 4, 7, 0, 0 } } },
    { "shared-prefix:2,3", 5, 5, 3, { { 0, 2, 0, 2, 1, 0 }, { 2, 5, 0, 2, 0, 0 }, { 2, 5, 2, 5, 1, 0 } } },
    { "shared-question:2,3", 5, 5, 3, { { 0, 2, 0, 2, 0, 0 }, { 2, 5, 0, 2, 0, 0 }, { 2, 5, 2, 5, 1, 0 } } },
    { "global-window:4,left=0,right=0,global=1", 4, 4, 3, { { 0, 1, 0, 1, 1, 0 }, { 1, 4, 0, 1, 0, 0 }, { 1, 4, 1, 4, 3, 0 } } },
    { "concat(causal:3)", 3, 3, 1, { { 0, 3, 0, 3, 1, 0 } } },
    { "concat(causal:3;full:2x4)", 5, 7, 2, { { 0, 3, 0, 3, 1, 0 }, { 3, 5, 3, 7, 0, 0 } } },
    { "concat(varlen-full:1,2;window:2,left=0,right=0)", 5, 5, 3, { { 0, 1, 0, 1, 0, 0 }, { 1, 3, 1, 3, 0, 0 }, { 3, 5, 3, 5, 3, 0 } } },
    { "union(causal:4;full:4)", 4, 4, 2, { { 0, 4, 0, 4, 1, 0 }, { 0, 4, 0, 4, 0, 0 } } },
    { "crop(causal:4)", 4, 4, 1, { { 0, 4, 0, 4, 1, 0 } } },
    { "crop(causal:8;q=4:6)", 2, 8, 1, { { 0, 2, 0, 6, 1, 0 } } },
    { "crop(causal:8;k=6:8,q=4:8)", 4, 2, 1, { { 0, 4, 0, 2, 1, 0 } } },
    { "shift(full:2;q=1,k=-1)", 2, 2, 1, { { 1, 2, 0, 1, 0, 0 } } },
    { "shift(full:2;q=1,size=3x5)", 3, 5, 1, { { 1, 3, 0, 2, 0, 0 } } },
    { "shift(causal:2;size=4)", 4, 4, 1, { { 0, 2, 0, 2, 1, 0 } } },
    { "crop(concat(union(full:2;causal:2);shift(full:2;k=0));q=2:4,k=2:4)", 2, 2, 1, { { 0, 2, 0, 2, 0, 0 } } },
};
/* clang-format on */

/* Every cell attended by both or by neither: types of one-row pieces are free. */
static void same_cells(const char *name, const ffa_mask *mask, const ffa_slice *want, int64_t count)
{
    int64_t sq = ffa_mask_seqlen_q(mask), sk = ffa_mask_seqlen_k(mask);
    ffa_slice_list got = ffa_mask_slices(mask, 0);

    for (int64_t row = 0; sq < 100 && row < sq; row++)
        for (int64_t key = 0; key < sk; key++) {
            bool in_want = false, in_got = false;

            for (int64_t i = 0; i < count; i++)
                in_want = in_want || slice_has(&want[i], row, key);
            for (int64_t i = 0; i < got.count; i++)
                in_got = in_got || slice_has(&got.slices[i], row, key);
            ck_assert_msg(in_want == in_got, "%s: cell (%lld, %lld)", name, (long long)row,
                          (long long)key);
        }
}

START_TEST(text_is_read)
{
    ffa_mask *mask = mask_of(parse_cases[_i].text);

    ck_assert_int_eq(ffa_mask_seqlen_q(mask), parse_cases[_i].seqlen_q);
    ck_assert_int_eq(ffa_mask_seqlen_k(mask), parse_cases[_i].seqlen_k);
    ck_assert_int_eq(ffa_mask_head_count(mask), 1);
    ck_assert_int_eq(ffa_mask_slices(mask, 0).count, parse_cases[_i].count);
    same_cells(parse_cases[_i].text, mask, parse_cases[_i].slices, parse_cases[_i].count);
    ffa_mask_destroy(mask);
}
END_TEST

static const struct {
    const char *text;
    const char *want;
} bad_texts[] = {
    { "", "column 1: '' is no mask; known are full, causal," },
    { "ful:3", "column 1: 'ful' is no mask; known are full, causal," },
    { "FULL:3", "column 1: '' is no mask" },
    { "full", "column 5: expected ':', got the end" },
    { "full 3", "column 5: expected ':', got ' '" },
    { "full:", "column 6: expected a number, got the end" },
    { "full:-1", "column 6: expected a number, got '-'" },
    { "full:0", "seqlen_q is 0, not in [1, 2147483647]" },
    { "full:3x0", "seqlen_k is 0, not in [1, 2147483647]" },
    { "full:2147483648", "column 6: 2147483648 is not in [0, 2147483647]" },
    { "full:99999999999999999999999", "column 6: 99999999999999999999999 is not in" },
    { "full:3x", "column 8: expected a number, got the end" },
    { "full:3,4", "column 8: expected an option, got '4'" },
    { "full:3*2", "column 7: expected ',' or '/' or the end, got '*'" },
    { "full:3,left=2", "column 8: 'full' has no option 'left'" },
    { "full:3,", "column 8: expected an option, got the end" },
    { "full:3\n", "column 7: expected ',' or '/' or the end, got a character that" },
    { "full:3\xc3\xa9", "column 7: expected ',' or '/' or the end, got a character that" },
    { "window:8,lefty=1", "column 10: 'window' has no option 'lefty'" },
    { "window:8,left", "column 14: expected '=', got the end" },
    { "window:8,left=", "column 15: expected a number, got the end" },
    { "window:8,left=-2", "column 15: -2 is not in [-1, 2147483647]" },
    { "window:8,left=--1", "column 16: expected a number, got '-'" },
    { "window:8,left=1,left=2", "column 17: 'left' is given twice" },
    { "window:8,global=1", "column 10: 'window' has no option 'global'" },
    { "global-window:8,global=-1", "column 24: expected a number, got '-'" },
    { "varlen-full:", "column 13: expected a number, got the end" },
    { "varlen-full:1,,2", "column 15: expected a number, got ','" },
    { "varlen-full:1,", "column 15: expected a number, got the end" },
    { "varlen-full:0,0", "cu_q[2], the tokens, is 0, not in [1, 2147483647]" },
    { "varlen-full:3*0", "column 15: 0 is not in [1, 2147483647]" },
    { "varlen-full:2000000000,2000000000", "column 24: more than 2147483647 tokens in all" },
    { "varlen-full:1*99999999", "column 13: more than 67108864 documents" },
    { "block-causal:8", "column 15: 'block-causal' needs the option 'block'" },
    { "block-causal:8,block=0", "column 22: 0 is not in [1, 2147483647]" },
    { "block-causal:2x3/block=1", "cu_q[1] is 2, cu_k[1] is 3" },
    /* Refused before anything is built: these took seconds, and gigabytes. */
    { "block-causal:2147483647/block=1", "the mask has more than 67108864 slices" },
    { "shared-question:1*67108864,3", "column 28: more than 67108864 documents" },
    { "shared-question:1*67108863,3", "the mask has more than 67108864 slices" },
    { "shared-prefix:1*67108864", "the mask has more than 67108864 slices" },
    { "varlen-full:1*2147483647,1", "column 13: more than 67108864 documents" },
    { "concat", "column 7: expected '(', got the end" },
    { "concat:3", "column 7: expected '(', got ':'" },
    { "concat()", "column 8: '' is no mask; known are full, causal," },
    { "concat(full:3", "column 14: expected ';' or ')', got the end" },
    { "concat(full:3;)", "column 15: '' is no mask; known are full" },
    { "concat(full:3))", "column 15: expected the end, got ')'" },
    { "concat(full:3)/left=1", "column 15: expected the end, got '/'" },
    { "concat(full:3*2)", "column 14: expected ',' or '/' or ';' or ')', got '*'" },
    { "concat(ful:3)", "column 8: 'ful' is no mask; known are full, causal," },
    { "concat(full:2000000000;full:2000000000)",
      "masks[0] to masks[1] have more than 2147483647 queries" },
    { "union(full:3;full:4)", "masks[1] is 4 queries x 4 keys, masks[0] 3 x 3" },
    { "crop(full:3;full:3)", "column 13: 'crop' has no option 'full'" },
    { "crop(full:3;)", "column 13: expected an option, got ')'" },
    { "crop(full:3;q)", "column 14: expected '=', got ')'" },
    { "crop(full:3;q=1)", "column 16: expected ':', got ')'" },
    { "crop(full:3;q=-1:2)", "column 15: expected a number, got '-'" },
    { "crop(full:3;q=1:2;k=1:2)", "column 18: expected ',' or ')', got ';'" },
    { "crop(full:3;q=1:2,q=1:2)", "column 19: 'q' is given twice" },
    { "crop(full:3;q=2:2)", "q_end is 2, not in (2, 3]" },
    { "crop(full:3;k=3:4)", "k_begin is 3, not in [0, 3)" },
    { "shift(full:3;q=-2147483648)", "column 16: -2147483648 is not in [-2147483647, 2147483647]" },
    { "shift(full:3;size=0)", "column 19: 0 is not in [1, 2147483647]" },
    { "shift(full:3;size=3x)", "column 21: expected a number, got ')'" },
    { "crop(crop(crop(crop(crop(crop(crop(crop(crop(crop(crop(crop(crop(crop(crop(crop(crop(full:1",
      "column 81: masks nest more than 16 deep" },
};

START_TEST(bad_text_is_refused)
{
    ffa_mask *mask = (ffa_mask *)&no_error;
    ffa_error err = no_error;

    ck_assert_int_eq(ffa_mask_parse(&mask, bad_texts[_i].text, &err), FFA_INVALID);
    ck_assert_ptr_null(mask);
    ck_assert_msg(strstr(err.message, bad_texts[_i].want) != NULL, "'%s': got '%s', want '%s'",
                  bad_texts[_i].text, err.message, bad_texts[_i].want);
    ck_assert_int_eq(ffa_mask_parse(&mask, bad_texts[_i].text, NULL), FFA_INVALID);
}
END_TEST

/* ---- JSON ---- */

/* clang-format off */
static const struct {
    const char *text;
    const char *want;
} bad_json[] = {
    { "", "line 1, column 0: unexpected token near end of file" },
    { "{", "line 1, column 1: " },
    { "{\n\"seqlen_q\":4,\n}", "line 3, column 1: " },
    { "{\"seqlen_q\":4,\"seqlen_q\":4}", "line 1, column 24: duplicate object key" },
    { "{\"seqlen_q\":99999999999999999999}", "line 1, column 32: too big integer" },
    { "{} x", "line 1, column 4: end of file expected" },
    { "\"\xff\"", "line 1, column 1: " },
    { "{\"seqlen_q\":-9223372036854775809}", "line 1, column 32: too big integer" },
    { "{\"seqlen_q\":01}", "line 1, column 14: '}' expected near '1'" },
    { "{\"seqlen_q\":1.}", "line 1, column 14: invalid token near '1.'" },
    { "{\"seqlen_q\":1e}", "line 1, column 14: invalid token near '1e'" },
    { "{\"seqlen_q\":-}", "line 1, column 13: invalid token near '-'" },
    { "{\"seqlen_q\":nul}", "line 1, column 15: invalid token near 'nul'" },
    { "{\"seqlen_q\" 1}", "line 1, column 13: ':' expected near '1'" },
    { "{\"seqlen_q\":}", "line 1, column 13: unexpected token near '}'" },
    { "{\"seqlen_q\":1 \"seqlen_k\":1}", "line 1, column 24: '}' expected near '\"seqlen_k\"'" },
    { "{\"seqlen_q\":1,}", "line 1, column 15: string or '}' expected near '}'" },
    { "{,}", "line 1, column 2: string or '}' expected near ','" },
    { "{\"seqlen_q", "line 1, column 10: unexpected token near end of file" },
    { "{\"\\x\":1}", "line 1, column 3: invalid escape" },
    { "{\"\\u12g4\":1}", "line 1, column 6: invalid escape" },
    { "{\"a\nb\":1}", "line 1, column 3: a control character in a string" },
    { "{\"\xc3\xa9\xff\":1}", "line 1, column 3: a string is not valid UTF-8" },
    { "{\"\xc3\xa9\":1}", "unknown key '?'" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"slices\":[[0,1,2,3,0,9]]}", "slices[0] has more than 5 items" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"slices\":[[]]}", "slices[0] has 0 items, not 5" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"slices\":[[0,1,2,3,0],]}", "line 1, column 50: unexpected token near ']'" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"slices\":[[0,1,2,3,0] [0]]}", "line 1, column 50: ']' expected near '['" },
    { "[1]", "it is an array, not an object" },
    { "7", "it is a whole number, not an object" },
    { "null", "it is null, not an object" },
    { "{}", "'seqlen_q' is missing" },
    { "{\"seqlen_q\":4}", "'seqlen_k' is missing" },
    { "{\"seqlen_q\":4.5}", "'seqlen_q' is a number that is not whole, not a whole number" },
    { "{\"seqlen_q\":true}", "'seqlen_q' is a truth value, not a whole number" },
    { "{\"seqlen_q\":4,\"seqlen_k\":\"4\"}", "'seqlen_k' is a string, not a whole number" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4}", "neither 'slices' nor 'kv_heads'" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"slices\":[],\"kv_heads\":[]}", "both 'slices' and 'kv_heads'" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"slice\":[]}", "unknown key 'slice'" },
    { "{\"se\\nq\":4}", "unknown key 'se?q'" },
    { "{\"seqlen_q\":0,\"seqlen_k\":4,\"slices\":[]}", "seqlen_q is 0, not in [1, 2147483647]" },
    { "{\"seqlen_q\":4,\"seqlen_k\":2147483648,\"slices\":[]}", "seqlen_k is 2147483648, not in" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"slices\":7}", "'slices' is a whole number, not an array" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"slices\":[7]}", "slices[0] is a whole number, not [" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"slices\":[[0,1,2]]}", "slices[0] has 3 items, not 5" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"slices\":[[0,1,2,null,0]]}", "slices[0]: k_end is null" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"slices\":[[0,1,2,3,4]]}", "slices[0]: type is 4, not in [0, 3]" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"slices\":[[0,1,2,3,4294967296]]}", "slices[0]: type is 4294967296" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"slices\":[[0,1,2,3,\"Full\"]]}", "slices[0]: type is 'Full', not full" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"slices\":[[0,1,2,3,[]]]}", "slices[0]: type is an array, not a name" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"slices\":[[0,4,0,4,0],[0,5,0,4,0]]}", "slice 1: q_end is 5" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"kv_heads\":[]}", "'kv_heads' has 0 lists, not in [1, 1024]" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"kv_heads\":{}}", "'kv_heads' is an object, not an array" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"kv_heads\":[[],{}]}", "'kv_heads[1]' is an object, not an array" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"kv_heads\":[[[0,1,0,1,9]]]}", "kv_heads[0][0]: type is 9" },
    { "{\"seqlen_q\":4,\"seqlen_k\":4,\"kv_heads\":[[],[[0,1,3,2,0]]]}", "head 1, slice 0: k_end is 2" },
};
/* clang-format on */

START_TEST(bad_json_is_refused)
{
    const char *text = bad_json[_i].text;
    ffa_mask *mask = (ffa_mask *)&no_error;
    ffa_error err = no_error;

    ck_assert_int_eq(ffa_mask_parse_json(&mask, text, strlen(text), &err), FFA_INVALID);
    ck_assert_ptr_null(mask);
    ck_assert_msg(strstr(err.message, bad_json[_i].want) != NULL, "'%s': got '%s', want '%s'", text,
                  err.message, bad_json[_i].want);
}
END_TEST

static void same_masks(const ffa_mask *a, const ffa_mask *b)
{
    ck_assert_int_eq(ffa_mask_seqlen_q(a), ffa_mask_seqlen_q(b));
    ck_assert_int_eq(ffa_mask_seqlen_k(a), ffa_mask_seqlen_k(b));
    ck_assert_int_eq(ffa_mask_head_count(a), ffa_mask_head_count(b));
    for (int32_t head = 0; head < ffa_mask_head_count(a); head++) {
        ffa_slice_list x = ffa_mask_slices(a, head), y = ffa_mask_slices(b, head);

        ck_assert_int_eq(x.count, y.count);
        ck_assert_int_eq(memcmp(x.slices, y.slices, (size_t)x.count * sizeof *x.slices), 0);
    }
}

START_TEST(json_goes_round)
{
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct rng rng = { seed };
        int32_t heads = (int32_t)rng_range(&rng, 1, 4);
        ffa_mask_shape shape = { rng_range(&rng, 1, INT32_MAX), rng_range(&rng, 1, INT32_MAX) };
        ffa_slice slices[16];
        ffa_slice_list lists[4];
        ffa_mask *mask, *again;
        char *json;

        for (int i = 0; i < 16; i++) {
            slices[i] = (ffa_slice){ .type = (int32_t)rng_range(&rng, 0, 3) };
            slices[i].q_end = rng_range(&rng, 0, shape.seqlen_q);
            slices[i].q_begin = rng_range(&rng, 0, slices[i].q_end);
            slices[i].k_end = rng_range(&rng, 0, shape.seqlen_k);
            slices[i].k_begin = rng_range(&rng, 0, slices[i].k_end);
        }
        for (int32_t head = 0; head < heads; head++)
            lists[head] = (ffa_slice_list){ slices + 4 * head, rng_range(&rng, 0, 4) };
        ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, lists, heads, NULL), FFA_OK);
        json = json_of(mask);
        ck_assert_int_eq(ffa_mask_parse_json(&again, json, strlen(json), NULL), FFA_OK);
        same_masks(mask, again);
        ffa_free(json);
        ffa_mask_destroy(again);
        ffa_mask_destroy(mask);
    }
}
END_TEST

START_TEST(json_is_written_one_slice_a_line)
{
    ffa_mask *mask = mask_of("shared-prefix:2,3");
    char *json = json_of(mask);

    ck_assert_str_eq(json, "{\"seqlen_q\":5,\"seqlen_k\":5,\"slices\":[\n"
                           "[0,2,0,2,\"causal\"],\n[2,5,0,2,\"full\"],\n[2,5,2,5,\"causal\"]]}\n");
    ffa_free(json);
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(json_survives_every_allocation_failing)
{
    static const char text[] = "{\"seqlen_q\":4,\"seqlen_k\":4,"
                               "\"kv_heads\":[[[0,4,0,4,1]],[[0,4,0,2,3],[0,1,1,4,0]]]}";
    ffa_mask *mask;
    ffa_status rc;

    for (long nth = 1;; nth++) {
        fault_arm(FAULT_ALLOC, nth);
        rc = ffa_mask_parse_json(&mask, text, strlen(text), NULL);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_ptr_null(mask);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_eq(rc, FFA_OK);
    ck_assert_int_eq(ffa_mask_head_count(mask), 2);
    ffa_mask_destroy(mask);
}
END_TEST

/* Words of JSON that mean the same mask. */
static const char *const same_json[] = {
    "{\"seqlen_q\":4,\"seqlen_k\":5,\"slices\":[[0,4,1,5,1]]}",
    " {\t\"slices\" : [ [0 ,4, 1,5 ,\"causal\"] ]\r\n,\"seqlen_k\":5,\"seqlen_q\":4 } \n",
    "{\"se\\u0071len_q\":4,\"seqlen_k\":5,\"slices\":[[-0,4,1,5,\"c\\u0061usal\"]]}",
    "{\"seqlen_q\":4,\"seqlen_k\":5,\"kv_heads\":[[[0,4,1,5,1]]]}",
};

START_TEST(json_is_read)
{
    ffa_mask *want = mask_of("shift(causal:4;k=1,size=4x5)"), *got;
    ffa_error err = no_error;

    ck_assert_msg(ffa_mask_parse_json(&got, same_json[_i], strlen(same_json[_i]), &err) == FFA_OK,
                  "%s: %s", same_json[_i], err.message);
    same_masks(want, got);
    ffa_mask_destroy(got);
    ffa_mask_destroy(want);
}
END_TEST

/* A list for each of 1024 heads is read, and one more is refused. */
START_TEST(json_has_lists_for_so_many_heads)
{
    for (int heads = 1024; heads <= 1025; heads++) {
        struct text text = { 0 };
        ffa_error err = no_error;
        ffa_mask *mask;
        ffa_status rc;

        text_add(&text, "{\"seqlen_q\":1,\"seqlen_k\":1,\"kv_heads\":[");
        for (int i = 0; i < heads; i++)
            text_add(&text, "%s[]", i ? "," : "");
        text_add(&text, "]}");
        rc = ffa_mask_parse_json(&mask, text.at, text.bytes, &err);
        ck_assert_int_eq(rc, heads == 1024 ? FFA_OK : FFA_INVALID);
        if (rc != FFA_OK)
            ck_assert_str_eq(err.message, "mask JSON: 'kv_heads' has more than 1024 lists");
        ffa_mask_destroy(mask);
        text_finish(&text);
    }
}
END_TEST

static int64_t peak_kib(void)
{
    struct rusage usage;

    ck_assert_int_eq(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss;
}

/* Slices of 12 bytes, the shortest there are, all the same cell: 45 bytes a byte once. */
START_TEST(json_takes_a_small_multiple_of_its_text)
{
    enum { SLICES = 2000000 };
    struct text text = { 0 };
    int64_t before;
    ffa_mask *mask;

    text_add(&text, "{\"seqlen_q\":9,\"seqlen_k\":9,\"slices\":[[0,9,0,9,0]");
    for (int i = 1; i < SLICES; i++)
        text_add_bytes(&text, ",[0,9,0,9,0]", 12);
    text_add(&text, "]}");
    before = peak_kib();
    ck_assert_int_eq(ffa_mask_parse_json(&mask, text.at, text.bytes, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_area(mask, 0), 81);
    ck_assert_msg((peak_kib() - before) * 1024 < 15 * (int64_t)text.bytes, "%lld KiB for %zu bytes",
                  (long long)(peak_kib() - before), text.bytes);
    ffa_mask_destroy(mask);
    text_finish(&text);
}
END_TEST

START_TEST(json_needs_no_terminator)
{
    static const char text[] = { '{', '"', 's', 'e', 'q', 'l', 'e', 'n', '_', 'q', '"', ':', '1' };
    char *copy = malloc(sizeof text); /* its end is watched by the sanitizer */
    ffa_mask *mask;

    memcpy(copy, text, sizeof text);
    ck_assert_int_eq(ffa_mask_parse_json(&mask, copy, sizeof text, NULL), FFA_INVALID);
    free(copy);
}
END_TEST

START_TEST(null_arguments)
{
    ffa_mask *mask = mask_of("full:3");
    char *text = (char *)&mask;

    ck_assert_int_eq(ffa_mask_parse(NULL, "full:3", NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_mask_parse_json(NULL, "{}", 2, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_mask_to_json(mask, NULL, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_mask_to_json(NULL, &text, NULL), FFA_INVALID);
    ck_assert_ptr_null(text);
    ffa_mask_destroy(mask);
    ck_assert_int_eq(ffa_mask_parse(&mask, NULL, NULL), FFA_INVALID);
    ck_assert_ptr_null(mask);
    ck_assert_int_eq(ffa_mask_parse_json(&mask, NULL, 0, NULL), FFA_INVALID);
    ck_assert_ptr_null(mask);
}
END_TEST

/* ---- files ---- */

START_TEST(a_file_is_read)
{
    char path[] = "/tmp/ffa_mask_XXXXXX";
    char text[64], nested[96];
    int fd = mkstemp(path);
    ffa_mask *want = mask_of("varlen-causal:3,4x2*500"), *got;
    char *json = json_of(want);
    ffa_error err = no_error;

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, json, strlen(json)), (ssize_t)strlen(json));
    text_copy(text, "@%s", path);
    got = mask_of(text);
    same_masks(want, got);
    ffa_mask_destroy(got);
    text_copy(nested, "concat(@%s;@%s)", path, path);
    got = mask_of(nested);
    ck_assert_int_eq(ffa_mask_area(got, 0), 2 * ffa_mask_area(want, 0));
    ffa_mask_destroy(got);

    for (long nth = 1; nth <= 2; nth++) { /* open, then read */
        fault_arm(FAULT_FILE, nth);
        ck_assert_int_eq(ffa_mask_parse(&got, text, &err), FFA_IO);
        ck_assert(fault_fired());
        ck_assert_ptr_null(got);
        ck_assert_msg(strstr(err.message, path) != NULL, "%s", err.message);
    }
    fault_arm(FAULT_FILE, 0);
    for (long nth = 1;; nth++) {
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = ffa_mask_parse(&got, text, &err);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_ptr_null(got);
    }
    fault_arm(FAULT_ALLOC, 0);
    ffa_mask_destroy(got);
    ffa_mask_destroy(want);
    ffa_free(json);
    (void)close(fd);
    (void)unlink(path);

    ck_assert_int_eq(ffa_mask_parse(&got, text, &err), FFA_IO);
    ck_assert_int_eq(err.native, 2); /* ENOENT */
    ck_assert_int_eq(ffa_mask_parse(&got, "@/", &err), FFA_IO);
    ck_assert_int_eq(ffa_mask_parse(&got, "concat(full:3;@/no/such/file)", &err), FFA_IO);
    ck_assert_msg(strstr(err.message, "'/no/such/file'") != NULL, "%s", err.message);
    ck_assert_int_eq(ffa_mask_parse(&got, "@", &err), FFA_IO);
    ck_assert_ptr_null(got);
}
END_TEST

/* ---- pictures ---- */

static const struct {
    const char *mask;
    int32_t columns;
    const char *want;
} text_pictures[] = {
    { "causal:4", 0, "#...\n##..\n###.\n####\n" },
    { "window:4x3,left=0,right=0", 8, "...\n#..\n.#.\n..#\n" },
    { "full:1", 1, "#\n" },
    { "causal:8", 4, "++..\n##++\n" },
    { "varlen-full:4,4,8", 4, "++..\n..##\n" },
    { "varlen-full:4,4,8", 8, "##......\n..##....\n....####\n....####\n" },
    { "varlen-full:3,5", 1, "+\n" },
    { "causal:1000000000", 6, "++....\n##++..\n####++\n" },
};

START_TEST(text_picture_is_drawn)
{
    ffa_mask *mask = mask_of(text_pictures[_i].mask);
    char *got;

    ck_assert_int_eq(ffa_mask_text_picture(mask, 0, text_pictures[_i].columns, &got, NULL), FFA_OK);
    ck_assert_msg(!strcmp(got, text_pictures[_i].want), "%s:\n%s", text_pictures[_i].mask, got);
    ffa_free(got);
    ffa_mask_destroy(mask);
}
END_TEST

/* The grid's counts against the cells, through its characters. */
START_TEST(text_picture_matches_the_cells)
{
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct rng rng = { seed };
        ffa_mask_shape shape = { rng_range(&rng, 1, 60), rng_range(&rng, 1, 60) };
        int32_t columns = (int32_t)rng_range(&rng, 1, 20);
        int32_t rows = 0, wide;
        ffa_slice slices[5];
        ffa_mask *mask;
        char *got;

        for (int i = 0; i < 5; i++) {
            slices[i] = (ffa_slice){ .type = (int32_t)rng_range(&rng, 0, 3) };
            slices[i].q_end = rng_range(&rng, 0, shape.seqlen_q);
            slices[i].q_begin = rng_range(&rng, 0, slices[i].q_end);
            slices[i].k_end = rng_range(&rng, 0, shape.seqlen_k);
            slices[i].k_begin = rng_range(&rng, 0, slices[i].k_end);
        }
        ck_assert_int_eq(ffa_mask_create(&mask, &shape, slices, 5, NULL), FFA_OK);
        ck_assert_int_eq(ffa_mask_text_picture(mask, 0, columns, &got, NULL), FFA_OK);
        wide = (int32_t)(strchr(got, '\n') - got);
        for (const char *at = got; *at; at++)
            rows += *at == '\n';
        ck_assert_int_eq((int64_t)strlen(got), rows * (wide + 1));
        for (int32_t y = 0; y < rows; y++)
            for (int32_t x = 0; x < wide; x++) {
                int64_t cells = 0, attended = 0;

                for (int64_t q = shape.seqlen_q * y / rows; q < shape.seqlen_q * (y + 1) / rows;
                     q++)
                    for (int64_t k = shape.seqlen_k * x / wide; k < shape.seqlen_k * (x + 1) / wide;
                         k++) {
                        bool has = false;

                        for (int i = 0; i < 5; i++)
                            has = has || slice_has(&slices[i], q, k);
                        cells++;
                        attended += has;
                    }
                ck_assert_msg(got[y * (wide + 1) + x] == (attended == 0       ? '.'
                                                          : attended == cells ? '#'
                                                                              : '+'),
                              "seed %llu: (%d, %d)", (unsigned long long)seed, y, x);
            }
        ffa_free(got);
        ffa_mask_destroy(mask);
    }
}
END_TEST

static const struct {
    const char *name, *mask;
    int32_t size;
    size_t bytes_max;
    const char *want;
} svg_cases[] = {
    { "steps of cells", "causal:2", 100, 4000, "M0 0H50V50H100V100H0H0Z" },
    { "a triangle", "causal:1000", 100, 4000, "M0 0H0.05L100 100H0Z" },
    { "a box", "full:1000", 0, 4000, "M0 0H640L640 640H0Z" },
    { "caption", "full:1000000", 0, 4000, "1,000,000 queries × 1,000,000 keys" },
    { "density", "causal:3", 0, 4000, "6 attended (66.67 %)" },
    { "hardly anything", "varlen-full:1*99999", 0, 5000, "99,999 attended (less than 0.01 %)" },
    { "slices by type", "window:100,left=5,right=5", 0, 6000, "3 slices" },
    { "a low mask", "full:10x10000", 400, 4000, "M0 0H400L400 100H0Z" },
    { "a narrow mask", "full:10000x10", 400, 4000, "M0 0H100L100 400H0Z" },
    { "short documents are seen", "varlen-causal:131*500", 0, 100000, "<path class=\"on thin\"" },
    { "where the close-up is", "varlen-causal:131*500", 0, 100000,
      "<path class=\"near\" d=\"M0 0H15.36V15.36H0Z\"/>" },
    { "a close-up", "varlen-causal:131*500", 0, 100000, ">1,572</text>" },
    { "a close-up of what is small", "concat(full:60000;varlen-full:100*60)", 0, 100000,
      "M581.82 581.82H593.45V593.45H581.82Z" },
    { "few short documents", "varlen-causal:131*30,61570", 0, 100000, "<path class=\"on\"" },
    { "thousands of documents", "varlen-causal:131*8000", 0, 500000, "8,000 causal" },
    { "more than can be drawn", "varlen-causal:10x11*100000", 0, 3000000, "fill-opacity" },
};

START_TEST(svg_is_drawn)
{
    ffa_mask *mask = mask_of(svg_cases[_i].mask);
    char *svg;

    ck_assert_int_eq(ffa_mask_svg(mask, 0, svg_cases[_i].size, &svg, NULL), FFA_OK);
    ck_assert_msg(!strncmp(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\"", 39), "%s",
                  svg_cases[_i].name);
    ck_assert_str_eq(svg + strlen(svg) - 7, "</svg>\n");
    ck_assert_msg(strstr(svg, svg_cases[_i].want) != NULL, "%s: %.3000s", svg_cases[_i].name, svg);
    ck_assert_msg(strlen(svg) <= svg_cases[_i].bytes_max, "%s: %zu bytes", svg_cases[_i].name,
                  strlen(svg));
    ffa_free(svg);
    ffa_mask_destroy(mask);
}
END_TEST

/* Stripes of keys that every row attends, and slices that begin and end between them: few slices,
 * but more intervals than are drawn. So the slices are, and where one fails, nothing is. */
START_TEST(svg_of_many_intervals)
{
    ffa_mask_shape shape = { 4096, 4096 };
    ffa_slice slices[400];
    ffa_slice_list lists[2] = { { slices, 400 }, { slices, 1 } };
    ffa_mask *mask;
    char *svg;
    ffa_status rc;

    for (int i = 0; i < 200; i++) {
        slices[i] = (ffa_slice){ 0, 4096, 10 * i, 10 * i + 5, FFA_SLICE_FULL, 0 };
        slices[200 + i] = (ffa_slice){ 20 * i, 20 * i + 10, 3000, 3100, FFA_SLICE_CAUSAL, 0 };
    }
    ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, lists, 2, NULL), FFA_OK);
    ck_assert_int_gt(mask->lists[0].normal.interval_count, 8192);
    for (long nth = 1;; nth++) {
        fault_arm(FAULT_ALLOC, nth);
        rc = ffa_mask_svg(mask, 0, 0, &svg, NULL);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_ptr_null(svg);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_eq(rc, FFA_OK);
    ck_assert_ptr_nonnull(strstr(svg, "M0 0H0.78L0.78 640H0ZM1.56 0H"));
    ck_assert_ptr_nonnull(strstr(svg, "kv head 0 of 2"));
    ffa_free(svg);
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(pictures_check_their_arguments)
{
    ffa_mask *mask = mask_of("causal:9");
    ffa_error err = no_error;
    char *text = (char *)&err;

    ck_assert_int_eq(ffa_mask_svg(mask, 0, 0, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_mask_svg(NULL, 0, 0, &text, &err), FFA_INVALID);
    ck_assert_ptr_null(text);
    ck_assert_int_eq(ffa_mask_svg(mask, 1, 0, &text, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "head is 1, not in [0, 0]");
    ck_assert_int_eq(ffa_mask_svg(mask, 0, 63, &text, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "size_px is 63, not 0 or in [64, 8192]");
    ck_assert_int_eq(ffa_mask_svg(mask, 0, 8193, &text, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_mask_text_picture(mask, 0, 0, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_mask_text_picture(NULL, 0, 0, &text, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_mask_text_picture(mask, -1, 0, &text, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_mask_text_picture(mask, 0, 1001, &text, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "columns is 1001, not in [0, 1000]");
    ck_assert_int_eq(ffa_mask_text_picture(mask, 0, -1, &text, NULL), FFA_INVALID);
    ck_assert_ptr_null(text);
    ffa_mask_destroy(mask);
}
END_TEST

/* Texts that between them reach every function here. */
static const char *const fault_masks[] = {
    "varlen-window:30x20,9*4/left=3,right=1,global=2",
    "block-causal:9*20/block=2",
    "varlen-causal:2*9000",
};

START_TEST(every_allocation_may_fail)
{
    for (int what = 0; what < 4; what++)
        for (long nth = 1;; nth++) {
            ffa_mask *mask = NULL;
            char *text = (char *)&what;
            ffa_error err = no_error;
            ffa_status rc;

            if (what > 0)
                mask = mask_of(fault_masks[_i]);
            fault_arm(FAULT_ALLOC, nth);
            rc = what == 0   ? ffa_mask_parse(&mask, fault_masks[_i], &err)
                 : what == 1 ? ffa_mask_to_json(mask, &text, &err)
                 : what == 2 ? ffa_mask_svg(mask, 0, 0, &text, &err)
                             : ffa_mask_text_picture(mask, 0, 0, &text, &err);
            if (fault_fired()) {
                ck_assert_int_eq(rc, FFA_NOMEM);
                ck_assert_str_ne(err.message, "");
                ck_assert_ptr_null(what == 0 ? (void *)mask : (void *)text);
            }
            fault_arm(FAULT_ALLOC, 0);
            ffa_mask_destroy(mask);
            if (what > 0)
                ffa_free(text);
            if (rc == FFA_OK)
                break;
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mask text");
    TCase *tc = tcase_create("mask text");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, text_is_read, 0, COUNT_OF(parse_cases));
    tcase_add_loop_test(tc, bad_text_is_refused, 0, COUNT_OF(bad_texts));
    tcase_add_loop_test(tc, bad_json_is_refused, 0, COUNT_OF(bad_json));
    tcase_add_test(tc, json_goes_round);
    tcase_add_test(tc, json_is_written_one_slice_a_line);
    tcase_add_test(tc, json_survives_every_allocation_failing);
    tcase_add_loop_test(tc, json_is_read, 0, COUNT_OF(same_json));
    tcase_add_test(tc, json_has_lists_for_so_many_heads);
    tcase_add_test(tc, json_takes_a_small_multiple_of_its_text);
    tcase_add_test(tc, json_needs_no_terminator);
    tcase_add_test(tc, null_arguments);
    tcase_add_test(tc, a_file_is_read);
    tcase_add_loop_test(tc, text_picture_is_drawn, 0, COUNT_OF(text_pictures));
    tcase_add_test(tc, text_picture_matches_the_cells);
    tcase_add_loop_test(tc, svg_is_drawn, 0, COUNT_OF(svg_cases));
    tcase_add_test(tc, svg_of_many_intervals);
    tcase_add_test(tc, pictures_check_their_arguments);
    tcase_add_loop_test(tc, every_allocation_may_fail, 0, COUNT_OF(fault_masks));
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
