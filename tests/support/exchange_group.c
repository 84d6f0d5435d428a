/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_group_cast and ffa_group_reduce on devices against the host's, over random lists: ranks
 * without rows, rows cast to nobody, to oneself, to all; pieces cut differently on both sides.
 * Casts and sums are exact; lse is within rounding.
 */
#include "support/exchange_ranks.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* (data, lse) buffers. */
struct pair {
    struct rows_tensor data, lse;
};

enum { REDUCES = 3 };

struct group_rank {
    const ffa_row_kernels *kernels;
    struct pair cast_from, cast_to, partial;
    struct pair accumulators[REDUCES]; /* by op */
};

struct group_test {
    const struct exchange_types *types;
    int32_t count;
    struct rank_lists lists[EXCHANGE_RANKS];
    ffa_group *group;
    ffa_group_format format;
    uint32_t flags;
    bool is_cast; /* nothing else, in a window of the bytes for that */
    bool is_late; /* one of two ranks makes another call, or none */
    struct group_rank ranks[EXCHANGE_RANKS];
};

static void ok(ffa_status rc, const ffa_error *err)
{
    ck_assert_msg(rc == FFA_OK, "%s", err->message);
}

/* ---- buffers ---- */

static void pair_init(struct pair *pair, const struct group_test *test, struct rng *rng,
                      int64_t rows)
{
    rows_init(&pair->data, rng, rows, test->format.heads, test->format.head_dim,
              (int32_t)ffa_dtype_bytes((ffa_dtype)test->format.dtype), true);
    rows_init(&pair->lse, rng, rows, test->format.heads, 1, sizeof(float), true);
}

static void pair_draw(struct pair *pair, const struct group_test *test, struct rng *rng)
{
    rows_draw(&pair->data, rng, test->format.dtype);
    rows_draw(&pair->lse, rng, FFA_FP32);
    for (int64_t r = 0; r < pair->lse.rows; r++)
        if (rng_range(rng, 0, 4) == 0)
            number_store(FFA_FP32, rows_element(&pair->lse, r, 0, 0), -INFINITY);
}

static void pair_copy(struct pair *to, const struct pair *from)
{
    memcpy(to->data.host, from->data.host, (size_t)from->data.bytes);
    memcpy(to->lse.host, from->lse.host, (size_t)from->lse.bytes);
}

static void pair_free(struct pair *pair)
{
    rows_free_host(&pair->data);
    rows_free_host(&pair->lse);
}

static void draw_rank(struct group_test *test, struct rng *rng, int32_t rank)
{
    struct group_rank *r = &test->ranks[rank];
    ffa_group_size size = FFA_GROUP_SIZE_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    ok(ffa_group_size_get(test->group, rank, &size, &err), &err);
    r->kernels = kernels_of(env_context(rank), test->types->dtype, test->types->wire_dtype,
                            test->types->reduces);
    pair_init(&r->cast_from, test, rng, size.input_rows);
    pair_init(&r->cast_to, test, rng, size.output_rows);
    pair_init(&r->partial, test, rng, size.output_rows);
    pair_draw(&r->cast_from, test, rng);
    pair_draw(&r->partial, test, rng);
    for (int op = 0; op < REDUCES; op++) {
        pair_init(&r->accumulators[op], test, rng, size.input_rows);
        pair_draw(&r->accumulators[op], test, rng);
        if (op > 0)
            pair_copy(&r->accumulators[op], &r->accumulators[0]);
    }
}

static struct group_test *test_new(uint64_t seed, const struct exchange_types *types, int32_t count)
{
    struct group_test *test = calloc(1, sizeof *test);
    struct rng rng = { seed };

    test->types = types;
    test->count = count ? count : (int32_t)rng_range(&rng, 1, EXCHANGE_RANKS);
    test->group = lists_group(test->lists, &rng, test->count);
    test->format.dtype = types->dtype;
    test->format.heads = (int32_t)rng_range(&rng, 1, 3);
    test->format.head_dim =
        rng_range(&rng, 0, 1) ? 8 * rng_range(&rng, 1, 4) : rng_range(&rng, 1, 9);
    test->flags = rng_range(&rng, 0, 1) ? FFA_GROUP_LSE : 0;
    test->is_cast = rng_range(&rng, 0, 3) == 0;
    for (int32_t r = 0; r < test->count; r++)
        draw_rank(test, &rng, r);
    return test;
}

static void test_free(struct group_test *test)
{
    for (int32_t i = 0; i < test->count; i++) {
        struct group_rank *r = &test->ranks[i];

        pair_free(&r->cast_from);
        pair_free(&r->cast_to);
        pair_free(&r->partial);
        for (int op = 0; op < REDUCES; op++)
            pair_free(&r->accumulators[op]);
    }
    ffa_group_destroy(test->group);
    free(test);
}

/* ---- a rank ---- */

static ffa_status pair_send(struct exchange_rank *rank, struct pair *pair)
{
    const ffa_status rc = rank_send(rank, &pair->data);

    return rc == FFA_OK ? rank_send(rank, &pair->lse) : rc;
}

static ffa_status pair_receive(struct exchange_rank *rank, struct pair *pair)
{
    const ffa_status rc = rank_receive(rank, &pair->data);

    return rc == FFA_OK ? rank_receive(rank, &pair->lse) : rc;
}

static ffa_status send_all(struct exchange_rank *rank, struct group_rank *r)
{
    struct pair *const pairs[] = { &r->cast_from,       &r->cast_to,         &r->partial,
                                   &r->accumulators[0], &r->accumulators[1], &r->accumulators[2] };
    ffa_status rc = FFA_OK;

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && rc == FFA_OK; i++)
        rc = pair_send(rank, pairs[i]);
    return rc;
}

static ffa_status make_device(struct exchange_rank *rank, ffa_group_device **device)
{
    const struct group_test *test = rank->user;
    ffa_group_device_info info = FFA_GROUP_DEVICE_INFO_INIT;
    void *buffer;
    ffa_status rc = ffa_group_device_create(device, test->group, rank->rank,
                                            test->ranks[rank->rank].kernels, &rank->err);

    if (rc == FFA_OK)
        rc = ffa_group_device_info_get(*device, &test->format, FFA_GROUP_LSE, &info, &rank->err);
    if (rc == FFA_OK)
        rc = rank_alloc(rank, &buffer, info.upload_bytes + 1);
    if (rc == FFA_OK)
        rc = ffa_group_device_upload(*device, buffer, rank->stream, &rank->err);
    return rc;
}

/* A window for casts, or for both. */
static ffa_status reserve(struct exchange_rank *rank, const ffa_group_device *device,
                          bool is_reduce)
{
    const struct group_test *test = rank->user;
    ffa_group_device_info cast = FFA_GROUP_DEVICE_INFO_INIT, reduce = FFA_GROUP_DEVICE_INFO_INIT;
    int64_t bytes;
    ffa_status rc =
        ffa_group_device_info_get(device, &test->format, test->flags, &cast, &rank->err);

    if (rc == FFA_OK)
        rc = ffa_group_device_info_get(device, &test->format, FFA_GROUP_LSE, &reduce, &rank->err);
    bytes = cast.cast_bytes;
    if (is_reduce && reduce.reduce_bytes > bytes)
        bytes = reduce.reduce_bytes;
    if (rc == FFA_OK)
        rc = ffa_comm_reserve(rank->comm, bytes, 0, &rank->err);
    return rc;
}

static ffa_group_source source_of(const struct pair *pair)
{
    return (ffa_group_source){ pair->data.device, pair->lse.device };
}

static ffa_group_target target_of(const struct pair *pair)
{
    return (ffa_group_target){ pair->data.device, pair->lse.device };
}

static ffa_status cast(struct exchange_rank *rank, ffa_group_device *device)
{
    struct group_test *test = rank->user;
    struct group_rank *r = &test->ranks[rank->rank];
    const ffa_group_source from = source_of(&r->cast_from);
    const ffa_group_target to = target_of(&r->cast_to);

    return ffa_group_cast(device, rank->comm, &test->format, test->flags, &from, &to, rank->stream,
                          &rank->err);
}

static ffa_status reduce(struct exchange_rank *rank, ffa_group_device *device, ffa_reduce_op op)
{
    struct group_test *test = rank->user;
    struct group_rank *r = &test->ranks[rank->rank];
    const ffa_group_source from = source_of(&r->partial);
    const ffa_group_target to = target_of(&r->accumulators[op]);

    return ffa_group_reduce(device, rank->comm, &test->format, op, &from, &to, rank->stream,
                            &rank->err);
}

static ffa_status finish(struct exchange_rank *rank, ffa_group_device *device, ffa_status rc)
{
    const ffa_status end = env_synchronize(rank->context, rank->stream, rc ? NULL : &rank->err);

    rc = rc == FFA_OK ? end : rc;
    if (rc == FFA_OK)
        rc = ffa_comm_status(rank->comm, &rank->err);
    ffa_group_device_destroy(device);
    return rc;
}

static bool is_reduced(const struct group_test *test, int op)
{
    return !test->is_cast && test->types->reduces >> op & 1;
}

static ffa_status run_group(struct exchange_rank *rank)
{
    const struct group_test *test = rank->user;
    struct group_rank *r = &((struct group_test *)rank->user)->ranks[rank->rank];
    ffa_group_device *device = NULL;
    ffa_status rc = send_all(rank, r);

    if (rc == FFA_OK)
        rc = make_device(rank, &device);
    if (rc == FFA_OK)
        rc = reserve(rank, device, !test->is_cast);
    if (rc == FFA_OK)
        rc = cast(rank, device);
    for (int op = 0; op < REDUCES && rc == FFA_OK; op++)
        if (is_reduced(test, op))
            rc = reduce(rank, device, (ffa_reduce_op)op);
    rc = finish(rank, device, rc);
    if (rc == FFA_OK)
        rc = pair_receive(rank, &r->cast_to);
    for (int op = 0; op < REDUCES && rc == FFA_OK; op++)
        rc = pair_receive(rank, &r->accumulators[op]);
    return rc;
}

/* ---- what is expected ---- */

static void expect_cast(struct group_test *test)
{
    ffa_group_copy copy = FFA_GROUP_COPY_INIT;

    for (int32_t r = 0; r < test->count; r++)
        for (int64_t i = 0; i < ffa_group_receive_count(test->group, r); i++) {
            ck_assert_int_eq(ffa_group_receive_get(test->group, r, i, &copy, NULL), FFA_OK);
            for (int64_t row = 0; row < copy.rows; row++) {
                struct pair *to = &test->ranks[r].cast_to;
                const struct pair *from = &test->ranks[copy.rank].cast_from;

                rows_copy_row(&to->data, copy.output_row + row, &from->data, copy.input_row + row);
                if (test->flags & FFA_GROUP_LSE)
                    rows_copy_row(&to->lse, copy.output_row + row, &from->lse,
                                  copy.input_row + row);
            }
        }
}

/* Numbers in fp32 of rows in another dtype, rounded to what they travel in. */
static float *widened(const struct rows_tensor *from, int32_t dtype, int32_t wire)
{
    float *to = malloc((size_t)from->bytes * 2 + sizeof *to);
    unsigned char rounded[4];
    int64_t at = 0;

    for (int64_t r = 0; r < from->rows; r++)
        for (int32_t h = 0; h < from->heads; h++)
            for (int64_t c = 0; c < from->columns; c++) {
                to[at] = number_load(dtype, rows_element(from, r, h, c));
                if (wire) {
                    number_store(wire, rounded, to[at]);
                    to[at] = number_load(wire, rounded);
                }
                at++;
            }
    return to;
}

static bool is_sent(const struct group_test *test, int32_t rank, int64_t row)
{
    ffa_group_copy copy = FFA_GROUP_COPY_INIT;

    for (int64_t i = 0; i < ffa_group_send_count(test->group, rank); i++) {
        ck_assert_int_eq(ffa_group_send_get(test->group, rank, i, &copy, NULL), FFA_OK);
        if (row >= copy.input_row && row < copy.input_row + copy.rows)
            return true;
    }
    return false;
}

static void check_number(float found, float expected, bool is_exact, const char *what, int32_t rank)
{
    if (isinf(expected) || is_exact)
        ck_assert_msg(found == expected, "%s, rank %d: %.9g, not %.9g", what, rank, (double)found,
                      (double)expected);
    else
        ck_assert_msg(fabsf(found - expected) <= 2e-5f * (1 + fabsf(expected)),
                      "%s, rank %d: %.9g, not %.9g", what, rank, (double)found, (double)expected);
}

/* Rows that were cast to nobody stay as they are. */
static void check_reduced(const struct group_test *test, int32_t rank, int op, const float *data,
                          const float *lse)
{
    static const char *const names[REDUCES] = { "sum", "avg", "lse" };
    const struct pair *pair = &test->ranks[rank].accumulators[op];
    const int64_t dim = test->format.head_dim;
    const bool is_exact = op != FFA_REDUCE_LSE;
    unsigned char rounded[4];

    for (int64_t r = 0; r < pair->data.rows; r++)
        for (int32_t h = 0; h < test->format.heads; h++) {
            const int64_t at = r * test->format.heads + h;
            const bool is_kept = !is_sent(test, rank, r);
            const unsigned char *found =
                rows_element(&pair->data, r, h, 0) - pair->data.host + pair->data.found;

            for (int64_t c = 0; c < dim; c++) {
                number_store(test->format.dtype, rounded, data[at * dim + c]);
                check_number(number_load(test->format.dtype, found + c * pair->data.element_bytes),
                             number_load(test->format.dtype,
                                         is_kept ? rows_element(&pair->data, r, h, c) : rounded),
                             is_exact || is_kept, names[op], rank);
            }
            if (op == FFA_REDUCE_LSE)
                check_number(number_load(FFA_FP32, pair->lse.found + at * (int64_t)sizeof(float)),
                             is_kept ? number_load(FFA_FP32, rows_element(&pair->lse, r, h, 0))
                                     : lse[at],
                             is_kept, "lse", rank);
        }
}

static void check_reduce(struct group_test *test, int op)
{
    const ffa_group_format format = { FFA_FP32, test->format.heads, test->format.head_dim };
    float *partial[EXCHANGE_RANKS], *partial_lse[EXCHANGE_RANKS], *data[EXCHANGE_RANKS],
        *lse[EXCHANGE_RANKS];
    ffa_group_source from[EXCHANGE_RANKS];
    ffa_group_target to[EXCHANGE_RANKS];
    ffa_error err = { FFA_OK, 0, "" };

    for (int32_t r = 0; r < test->count; r++) {
        struct group_rank *rank = &test->ranks[r];

        partial[r] = widened(&rank->partial.data, test->format.dtype, test->types->wire_dtype);
        partial_lse[r] = widened(&rank->partial.lse, FFA_FP32, 0);
        data[r] = widened(&rank->accumulators[op].data, test->format.dtype, 0);
        lse[r] = widened(&rank->accumulators[op].lse, FFA_FP32, 0);
        from[r] = (ffa_group_source){ partial[r], partial_lse[r] };
        to[r] = (ffa_group_target){ data[r], lse[r] };
    }
    ok(ffa_group_reduce_host(test->group, &format, (ffa_reduce_op)op, from, to, &err), &err);
    for (int32_t r = 0; r < test->count; r++) {
        check_reduced(test, r, op, data[r], lse[r]);
        free(partial[r]);
        free(partial_lse[r]);
        free(data[r]);
        free(lse[r]);
    }
}

void group_case(uint64_t seed, const struct exchange_types *types)
{
    struct group_test *test = test_new(seed, types, 0);
    struct exchange_rank ranks[EXCHANGE_RANKS];

    ranks_run(ranks, test->count, 60000, run_group, test);
    ranks_check(ranks, test->count);
    expect_cast(test);
    for (int32_t r = 0; r < test->count; r++) {
        rows_check(&test->ranks[r].cast_to.data, "cast", r);
        rows_check(&test->ranks[r].cast_to.lse, "cast lse", r);
    }
    for (int op = 0; op < REDUCES; op++)
        if (is_reduced(test, op))
            check_reduce(test, op);
    test_free(test);
}

/* ---- refusals ---- */

/* A rank whose calls are refused leaves the group whole: it makes a good one afterwards. */
static bool is_refused(const struct exchange_rank *rank, ffa_status rc, const char *text)
{
    return rc == FFA_INVALID && strstr(rank->err.message, text);
}

static ffa_status run_refused(struct exchange_rank *rank)
{
    struct group_test *test = rank->user;
    struct group_rank *r = &test->ranks[rank->rank];
    ffa_group_format dtype = test->format, heads = test->format;
    const ffa_group_source none = { NULL, NULL };
    ffa_group_target to;
    ffa_group_source from;
    ffa_group_device *device = NULL;
    ffa_error *err = &rank->err;
    bool is_good;
    ffa_status rc = send_all(rank, r);

    is_good = is_refused(
        rank, ffa_group_device_create(&device, test->group, test->count, r->kernels, err),
        "rank is");
    if (rc == FFA_OK)
        rc = make_device(rank, &device);
    if (rc != FFA_OK)
        return rc;
    rc = reserve(rank, device, true);
    if (rc != FFA_OK)
        return rc;
    from = source_of(&r->cast_from);
    to = target_of(&r->cast_to);
    dtype.dtype = FFA_FP16;
    heads.heads = 0;
    is_good =
        is_good &&
        is_refused(rank,
                   ffa_group_cast(device, rank->comm, &heads, 0, &from, &to, rank->stream, err),
                   "0 heads") &&
        is_refused(rank,
                   ffa_group_reduce(device, rank->comm, &dtype, FFA_REDUCE_SUM, &from, &to,
                                    rank->stream, err),
                   "dtype is") &&
        is_refused(rank,
                   ffa_group_reduce(device, rank->comm, &test->format, FFA_REDUCE_AVG, &from, &to,
                                    rank->stream, err),
                   "made without it") &&
        is_refused(rank,
                   ffa_group_cast(device, NULL, &test->format, 0, &from, &to, rank->stream, err),
                   "comm is NULL");
    if (r->cast_from.data.rows > 0)
        is_good = is_good && is_refused(rank,
                                        ffa_group_cast(device, rank->comm, &test->format, 0, &none,
                                                       &to, rank->stream, err),
                                        "input buffer");
    rc = finish(rank, device, cast(rank, device));
    return is_good ? rc : FFA_INVALID;
}

static const struct exchange_types plain = { FFA_FP32, 0, FFA_ROW_KERNELS_SUM };

void group_refusals(void)
{
    struct group_test *test = test_new(5, &plain, 2);
    struct exchange_rank ranks[EXCHANGE_RANKS];

    ranks_run(ranks, test->count, 60000, run_refused, test);
    ranks_check(ranks, test->count);
    test_free(test);
}

/* Of two ranks only rank 0 receives: in a cast it waits for rank 1, in a reduction for nobody. */
static struct group_test *test_of_two(void)
{
    for (uint64_t seed = 1;; seed++) {
        struct group_test *test = test_new(seed, &plain, 2);

        if (!rows_between(&test->lists[0], 1) && rows_between(&test->lists[1], 0))
            return test;
        test_free(test);
    }
}

/* Until the group is broken: a rank that leaves is missed for another reason. */
static ffa_status wait_for_the_end(struct exchange_rank *rank)
{
    const struct timespec pause = { .tv_nsec = 1000000 };
    ffa_status rc;

    while ((rc = ffa_comm_status(rank->comm, &rank->err)) == FFA_OK)
        (void)nanosleep(&pause, NULL);
    return rc;
}

static ffa_status run_late(struct exchange_rank *rank)
{
    const struct group_test *test = rank->user;
    ffa_group_device *device = NULL;
    ffa_status rc = send_all(rank, &((struct group_test *)rank->user)->ranks[rank->rank]);

    if (rc == FFA_OK)
        rc = make_device(rank, &device);
    if (rc == FFA_OK)
        rc = reserve(rank, device, true);
    if (rc == FFA_OK && rank->rank == 0)
        rc = cast(rank, device);
    else if (rc == FFA_OK && !test->is_late)
        rc = reduce(rank, device, FFA_REDUCE_SUM);
    return finish(rank, device, rc == FFA_OK ? wait_for_the_end(rank) : rc);
}

static void check_broken(bool is_late, int64_t timeout_ms, ffa_status status, const char *text)
{
    struct group_test *test = test_of_two();
    struct exchange_rank ranks[EXCHANGE_RANKS];

    test->is_late = is_late;
    ranks_run(ranks, test->count, timeout_ms, run_late, test);
    for (int32_t r = 0; r < test->count; r++)
        ck_assert_msg(ranks[r].status == status && strstr(ranks[r].err.message, text),
                      "rank %d: status %d: %s", r, (int)ranks[r].status, ranks[r].err.message);
    test_free(test);
}

void group_absent(void)
{
    check_broken(true, 3000, FFA_TIMEOUT, "rank 1 has not published");
}

void group_other_call(void)
{
    check_broken(false, 60000, FFA_COMM, "runs another call");
}
