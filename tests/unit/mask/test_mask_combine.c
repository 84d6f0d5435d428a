/* SPDX-License-Identifier: Apache-2.0
 *
 * Concatenation, crop, shift and union of masks, cell by cell, against definitions written from
 * their sentences in ffa/mask.h: whether a cell of the result is attended is asked of the inputs.
 */
#include "mask/mask.h"
#include "support/rng.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>

enum { SIDE_MAX = 20, SLICES_DRAWN = 5, MASKS_MAX = 4, SEEDS = 3000 };

#define COUNT_OF(array) ((int)(sizeof(array) / sizeof *(array)))

static const ffa_error no_error = { FFA_OK, 0, "" };

/* heads 1: a list for all heads. */
static ffa_mask *mask_draw(struct rng *rng, const ffa_mask_shape *shape, int32_t heads)
{
    ffa_slice slices[4][SLICES_DRAWN];
    ffa_slice_list lists[4];
    ffa_mask *mask;

    for (int32_t head = 0; head < heads; head++) {
        lists[head] = (ffa_slice_list){ slices[head], rng_range(rng, 0, SLICES_DRAWN) };
        for (int i = 0; i < SLICES_DRAWN; i++) {
            ffa_slice *s = &slices[head][i];

            *s = (ffa_slice){ .type = (int32_t)rng_range(rng, 0, 3) };
            s->q_end = rng_range(rng, 0, shape->seqlen_q);
            s->q_begin = rng_range(rng, 0, s->q_end);
            s->k_end = rng_range(rng, 0, shape->seqlen_k);
            s->k_begin = rng_range(rng, 0, s->k_end);
        }
    }
    ck_assert_int_eq(ffa_mask_create_per_head(&mask, shape, lists, heads, NULL), FFA_OK);
    return mask;
}

static ffa_mask_shape shape_draw(struct rng *rng)
{
    return (ffa_mask_shape){ rng_range(rng, 1, SIDE_MAX), rng_range(rng, 1, SIDE_MAX) };
}

/* Whether `head` of a mask attends a cell; a mask with one list has it for all heads. */
static bool attends(const ffa_mask *mask, int32_t head, int64_t row, int64_t key)
{
    const ffa_slice_list list = ffa_mask_slices(mask, ffa_mask_head_count(mask) == 1 ? 0 : head);

    for (int64_t i = 0; i < list.count; i++)
        if (slice_has(&list.slices[i], row, key))
            return true;
    return false;
}

/* What a call was made of, and what its result must attend. */
struct call {
    ffa_mask *masks[MASKS_MAX];
    int64_t count;
    ffa_mask_box box;
    ffa_mask_offset offset;
    ffa_mask_shape shape; /* of the result */
};

static bool concat_has(const struct call *call, int32_t head, int64_t row, int64_t key)
{
    for (int64_t i = 0; i < call->count; i++) {
        const int64_t sq = ffa_mask_seqlen_q(call->masks[i]);
        const int64_t sk = ffa_mask_seqlen_k(call->masks[i]);

        if (row >= 0 && row < sq && key >= 0 && key < sk)
            return attends(call->masks[i], head, row, key);
        row -= sq;
        key -= sk;
    }
    return false;
}

static bool union_has(const struct call *call, int32_t head, int64_t row, int64_t key)
{
    for (int64_t i = 0; i < call->count; i++)
        if (attends(call->masks[i], head, row, key))
            return true;
    return false;
}

static bool crop_has(const struct call *call, int32_t head, int64_t row, int64_t key)
{
    return attends(call->masks[0], head, row + call->box.q_begin, key + call->box.k_begin);
}

static bool shift_has(const struct call *call, int32_t head, int64_t row, int64_t key)
{
    return attends(call->masks[0], head, row - call->offset.q, key - call->offset.k);
}

static ffa_status concat_make(ffa_mask **out, const struct call *call, ffa_error *err)
{
    return ffa_mask_concat(out, (const ffa_mask *const *)call->masks, call->count, err);
}

static ffa_status union_make(ffa_mask **out, const struct call *call, ffa_error *err)
{
    return ffa_mask_union(out, (const ffa_mask *const *)call->masks, call->count, err);
}

static ffa_status crop_make(ffa_mask **out, const struct call *call, ffa_error *err)
{
    return ffa_mask_crop(out, call->masks[0], &call->box, err);
}

static ffa_status shift_make(ffa_mask **out, const struct call *call, ffa_error *err)
{
    return ffa_mask_shift(out, call->masks[0], &call->offset, &call->shape, err);
}

enum kind { CONCAT, UNION, CROP, SHIFT };

static const struct {
    const char *name;
    ffa_status (*make)(ffa_mask **out, const struct call *call, ffa_error *err);
    bool (*has)(const struct call *call, int32_t head, int64_t row, int64_t key);
} functions[] = {
    [CONCAT] = { "concat", concat_make, concat_has },
    [UNION] = { "union", union_make, union_has },
    [CROP] = { "crop", crop_make, crop_has },
    [SHIFT] = { "shift", shift_make, shift_has },
};

static void call_draw(struct call *call, enum kind kind, struct rng *rng)
{
    const int32_t heads = (int32_t)rng_range(rng, 1, 3);
    ffa_mask_shape shape = shape_draw(rng);

    *call = (struct call){ .count = kind >= CROP ? 1 : rng_range(rng, 1, MASKS_MAX) };
    for (int64_t i = 0; i < call->count; i++) {
        if (kind == CONCAT)
            shape = shape_draw(rng);
        call->masks[i] = mask_draw(rng, &shape, rng_range(rng, 0, 1) ? heads : 1);
        call->shape.seqlen_q += shape.seqlen_q;
        call->shape.seqlen_k += shape.seqlen_k;
    }
    call->box.q_end = rng_range(rng, 1, shape.seqlen_q);
    call->box.q_begin = rng_range(rng, 0, call->box.q_end - 1);
    call->box.k_end = rng_range(rng, 1, shape.seqlen_k);
    call->box.k_begin = rng_range(rng, 0, call->box.k_end - 1);
    call->offset = (ffa_mask_offset){ rng_range(rng, -SIDE_MAX, SIDE_MAX),
                                      rng_range(rng, -SIDE_MAX, SIDE_MAX) };
    if (kind == UNION)
        call->shape = shape;
    if (kind == CROP)
        call->shape = (ffa_mask_shape){ call->box.q_end - call->box.q_begin,
                                        call->box.k_end - call->box.k_begin };
    if (kind == SHIFT)
        call->shape = shape_draw(rng);
}

static void call_finish(struct call *call)
{
    for (int64_t i = 0; i < call->count; i++)
        ffa_mask_destroy(call->masks[i]);
}

static int32_t heads_of(const struct call *call)
{
    int32_t heads = 1;

    for (int64_t i = 0; i < call->count; i++)
        heads = max32(heads, ffa_mask_head_count(call->masks[i]));
    return heads;
}

START_TEST(result_matches_its_definition)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct rng rng = { seed * 4 + (uint64_t)_i };
        ffa_error err = no_error;
        struct call call;
        ffa_mask *mask;

        call_draw(&call, (enum kind)_i, &rng);
        ck_assert_msg(functions[_i].make(&mask, &call, &err) == FFA_OK, "%s, seed %llu: %s",
                      functions[_i].name, (unsigned long long)seed, err.message);
        ck_assert_int_eq(ffa_mask_seqlen_q(mask), call.shape.seqlen_q);
        ck_assert_int_eq(ffa_mask_seqlen_k(mask), call.shape.seqlen_k);
        ck_assert_int_eq(ffa_mask_head_count(mask), heads_of(&call));
        for (int32_t head = 0; head < ffa_mask_head_count(mask); head++)
            for (int64_t row = 0; row < call.shape.seqlen_q; row++)
                for (int64_t key = 0; key < call.shape.seqlen_k; key++)
                    if (attends(mask, head, row, key) != functions[_i].has(&call, head, row, key))
                        ck_abort_msg("%s, seed %llu: head %d, cell (%lld, %lld)",
                                     functions[_i].name, (unsigned long long)seed, head,
                                     (long long)row, (long long)key);
        ffa_mask_destroy(mask);
        call_finish(&call);
    }
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    struct rng rng = { 3 };
    struct call call;
    ffa_mask *mask;
    ffa_status rc;

    call_draw(&call, (enum kind)_i, &rng);
    for (long nth = 1;; nth++) {
        ffa_error err = no_error;

        fault_arm(FAULT_ALLOC, nth);
        mask = (ffa_mask *)&call;
        rc = functions[_i].make(&mask, &call, &err);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_str_ne(err.message, "");
        ck_assert_ptr_null(mask);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_eq(rc, FFA_OK);
    ffa_mask_destroy(mask);
    call_finish(&call);
}
END_TEST

/* ---- what stays together ---- */

static ffa_mask *mask_of(const char *text)
{
    ffa_error err = no_error;
    ffa_mask *mask;

    ck_assert_msg(ffa_mask_parse(&mask, text, &err) == FFA_OK, "%s: %s", text, err.message);
    return mask;
}

/* A slice that is not cut stays one slice of its type: a batch of causal sequences is what
 * varlen-causal is. */
START_TEST(a_batch_is_packed_documents)
{
    ffa_mask *a = mask_of("causal:100"), *b = mask_of("causal:28");
    ffa_mask *want = mask_of("varlen-causal:100,28,100"), *got;
    const ffa_mask *batch[] = { a, b, a };

    ck_assert_int_eq(ffa_mask_concat(&got, batch, 3, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_slices(got, 0).count, 3);
    ck_assert_int_eq(memcmp(ffa_mask_slices(got, 0).slices, ffa_mask_slices(want, 0).slices,
                            3 * sizeof(ffa_slice)),
                     0);
    ffa_mask_destroy(a);
    ffa_mask_destroy(b);
    ffa_mask_destroy(got);
    ffa_mask_destroy(want);
}
END_TEST

/* As many short sequences as a large batch has: linear, and none of them looks at the others. */
START_TEST(large_batches_are_concatenated)
{
    enum { SEQUENCES = 20000 };
    ffa_mask *sequence = mask_of("window:64,left=8,right=0"), *mask;
    const ffa_mask **batch = malloc(SEQUENCES * sizeof(ffa_mask *));

    for (int i = 0; i < SEQUENCES; i++)
        batch[i] = sequence;
    ck_assert_int_eq(ffa_mask_concat(&mask, batch, SEQUENCES, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_seqlen_q(mask), SEQUENCES * 64);
    ck_assert_int_eq(ffa_mask_area(mask, 0), SEQUENCES * ffa_mask_area(sequence, 0));
    ffa_mask_destroy(mask);
    ffa_mask_destroy(sequence);
    free(batch);
}
END_TEST

/* ---- bad input ---- */

START_TEST(arguments_are_checked)
{
    ffa_mask *four = mask_of("full:4"), *five = mask_of("full:5"),
             *large = mask_of("full:2147483647");
    ffa_mask *tall = mask_of("full:2147483647x1");
    struct rng rng = { 1 };
    const ffa_mask_shape shape = { 4, 4 };
    ffa_mask *two = mask_draw(&rng, &shape, 2), *three = mask_draw(&rng, &shape, 3);
    const ffa_mask *none[] = { four, NULL }, *sizes[] = { four, five }, *many[] = { large, four };
    const ffa_mask *heads[] = { four, two, three }, *queries[] = { tall, four };
    const ffa_mask_box box = { 0, 4, 0, 4 };
    const ffa_mask_offset zero = { 0, 0 };
    ffa_mask *mask;

#define BAD(call, want)                                                                            \
    do {                                                                                           \
        ffa_error err = no_error, *e = &err;                                                       \
                                                                                                   \
        mask = four;                                                                               \
        ck_assert_int_eq(call, FFA_INVALID);                                                       \
        ck_assert_msg(strstr(err.message, want) != NULL, "got '%s', want '%s'", err.message,       \
                      want);                                                                       \
        ck_assert_ptr_null(mask);                                                                  \
    } while (0)
#define BOX(...) (&(ffa_mask_box){ __VA_ARGS__ })

    BAD(ffa_mask_concat(&mask, NULL, 1, e), "masks is NULL");
    BAD(ffa_mask_concat(&mask, none, 0, e), "count is 0, less than 1");
    BAD(ffa_mask_concat(&mask, none, -7, e), "count is -7, less than 1");
    BAD(ffa_mask_concat(&mask, none, 2, e), "masks[1] is NULL");
    BAD(ffa_mask_concat(&mask, many, 2, e),
        "masks[0] to masks[1] have more than 2147483647 queries in all");
    BAD(ffa_mask_concat(&mask, queries, 2, e), "more than 2147483647 queries");
    BAD(ffa_mask_concat(&mask, heads, 3, e), "masks[2] has slices of 3 kv heads, masks[1] of 2");
    BAD(ffa_mask_union(&mask, NULL, 1, e), "masks is NULL");
    BAD(ffa_mask_union(&mask, none, 2, e), "masks[1] is NULL");
    BAD(ffa_mask_union(&mask, sizes, 2, e), "masks[1] is 5 queries x 5 keys, masks[0] 4 x 4");
    BAD(ffa_mask_union(&mask, heads, 3, e), "masks[2] has slices of 3 kv heads");
    BAD(ffa_mask_crop(&mask, NULL, &box, e), "mask is NULL");
    BAD(ffa_mask_crop(&mask, four, NULL, e), "box is NULL");
    BAD(ffa_mask_crop(&mask, four, BOX(-1, 2, 0, 4), e), "q_begin is -1, not in [0, 4)");
    BAD(ffa_mask_crop(&mask, four, BOX(4, 5, 0, 4), e), "q_begin is 4, not in [0, 4)");
    BAD(ffa_mask_crop(&mask, four, BOX(0, 5, 0, 4), e), "q_end is 5, not in (0, 4]");
    BAD(ffa_mask_crop(&mask, four, BOX(2, 2, 0, 4), e), "q_end is 2, not in (2, 4]");
    BAD(ffa_mask_crop(&mask, four, BOX(0, 4, 3, 1), e), "k_end is 1, not in (3, 4]");
    BAD(ffa_mask_crop(&mask, four, BOX(0, 4, 9, 10), e), "k_begin is 9, not in [0, 4)");
    BAD(ffa_mask_shift(&mask, NULL, &zero, &shape, e), "mask is NULL");
    BAD(ffa_mask_shift(&mask, four, NULL, &shape, e), "offset is NULL");
    BAD(ffa_mask_shift(&mask, four, &zero, NULL, e), "shape is NULL");
    BAD(ffa_mask_shift(&mask, four, &zero, &(ffa_mask_shape){ 0, 4 }, e), "seqlen_q is 0");
    BAD(ffa_mask_shift(&mask, four, &(ffa_mask_offset){ INT64_MIN, 0 }, &shape, e),
        "offset q is -9223372036854775808, not in [-2147483647, 2147483647]");
    BAD(ffa_mask_shift(&mask, four, &(ffa_mask_offset){ 0, (int64_t)1 << 31 }, &shape, e),
        "offset k is 2147483648, not in");

    ck_assert_int_eq(ffa_mask_concat(NULL, heads, 1, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_mask_union(NULL, heads, 1, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_mask_crop(NULL, four, &box, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_mask_shift(NULL, four, &zero, &shape, NULL), FFA_INVALID);
    ffa_mask_destroy(four);
    ffa_mask_destroy(five);
    ffa_mask_destroy(large);
    ffa_mask_destroy(tall);
    ffa_mask_destroy(two);
    ffa_mask_destroy(three);
}
END_TEST

/* Offsets as large as they may be leave nothing, and nothing overflows. */
START_TEST(far_shifts_are_empty)
{
    ffa_mask *large = mask_of("causal:2147483647"), *mask;
    const ffa_mask_shape shape = { INT32_MAX, INT32_MAX };

    for (int i = 0; i < 4; i++) {
        const ffa_mask_offset offset = { i & 1 ? INT32_MAX : -INT32_MAX,
                                         i & 2 ? INT32_MAX : -INT32_MAX };

        ck_assert_int_eq(ffa_mask_shift(&mask, large, &offset, &shape, NULL), FFA_OK);
        ck_assert_int_eq(ffa_mask_area(mask, 0), 0);
        ffa_mask_destroy(mask);
    }
    ck_assert_int_eq(
        ffa_mask_shift(&mask, large, &(ffa_mask_offset){ INT32_MAX - 1, 0 }, &shape, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_area(mask, 0), 1);
    ffa_mask_destroy(mask);
    ffa_mask_destroy(large);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("masks of masks");
    TCase *tc = tcase_create("masks of masks");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, result_matches_its_definition, 0, COUNT_OF(functions));
    tcase_add_loop_test(tc, every_allocation_may_fail, 0, COUNT_OF(functions));
    tcase_add_test(tc, a_batch_is_packed_documents);
    tcase_add_test(tc, large_batches_are_concatenated);
    tcase_add_test(tc, arguments_are_checked);
    tcase_add_test(tc, far_shifts_are_empty);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
