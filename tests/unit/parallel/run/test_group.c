/* SPDX-License-Identifier: Apache-2.0
 *
 * Group cast and reduce: the reference's cases, random groups against streams written out, the
 * transpose, the order of sums, lse without keys, arguments, allocation faults.
 */
#include "parallel/dispatch/dispatch.h"
#include "support/parallel_cases.h"
#include "support/suite.h"
#include "support/transfer_tables.h"
#include <ffa/group.h>

#include <check.h>
#include <math.h>
#include <stdio.h>

enum { RANKS_HERE = 6, PIECES_HERE = 32, ROWS_HERE = 256, TARGETS_HERE = PIECES_HERE * RANKS_HERE };

static json_t *cases;

/* Lists with room of their own. */
struct lists {
    int32_t ranks;
    struct {
        int64_t input_rows[PIECES_HERE], output_rows[PIECES_HERE * RANKS_HERE];
        int64_t dst_begin[PIECES_HERE + 1];
        int32_t dst[TARGETS_HERE], src[PIECES_HERE * RANKS_HERE];
    } of[RANKS_HERE];
    ffa_group_lists at[RANKS_HERE];
};

/* All of a rank's copies, into `at`; how many. */
static int64_t copies_of(const ffa_group *group, int32_t rank, bool is_send, ffa_group_copy *at)
{
    const int64_t count =
        is_send ? ffa_group_send_count(group, rank) : ffa_group_receive_count(group, rank);

    ck_assert_int_le(count, ROWS_HERE);
    for (int64_t i = 0; i < count; i++) {
        at[i] = (ffa_group_copy)FFA_GROUP_COPY_INIT;
        ck_assert_int_eq(is_send ? ffa_group_send_get(group, rank, i, &at[i], NULL)
                                 : ffa_group_receive_get(group, rank, i, &at[i], NULL),
                         FFA_OK);
    }
    return count;
}

static void lists_point(struct lists *lists)
{
    for (int32_t r = 0; r < lists->ranks; r++) {
        lists->at[r].input_rows = lists->of[r].input_rows;
        lists->at[r].dst_begin = lists->of[r].dst_begin;
        lists->at[r].dst = lists->of[r].dst;
        lists->at[r].output_rows = lists->of[r].output_rows;
        lists->at[r].src = lists->of[r].src;
    }
}

static int64_t read_ranks(const json_t *array, int32_t *out, int64_t max)
{
    int64_t wide[TARGETS_HERE];
    const int64_t count = parallel_integers(array, wide, max);

    for (int64_t i = 0; i < count; i++)
        out[i] = (int32_t)wide[i];
    return count;
}

/* The side with many ranks a piece, and the side with one. */
static void read_lists(struct lists *lists, const json_t *entry, const char *many_rows,
                       const char *many, const char *one_rows, const char *one)
{
    *lists = (struct lists){ .ranks = (int32_t)json_integer_value(
                                 json_object_get(entry, "world_size")) };
    ck_assert_int_le(lists->ranks, RANKS_HERE);
    for (int32_t r = 0; r < lists->ranks; r++) {
        const json_t *targets = json_array_get(json_object_get(entry, many), (size_t)r);
        ffa_group_lists *list = &lists->at[r];

        list->input_count =
            parallel_integers(json_array_get(json_object_get(entry, many_rows), (size_t)r),
                              lists->of[r].input_rows, PIECES_HERE);
        for (int64_t i = 0; i < list->input_count; i++) {
            const int64_t begin = lists->of[r].dst_begin[i];

            lists->of[r].dst_begin[i + 1] =
                begin + read_ranks(json_array_get(targets, (size_t)i), &lists->of[r].dst[begin],
                                   TARGETS_HERE - begin);
        }
        list->output_count =
            parallel_integers(json_array_get(json_object_get(entry, one_rows), (size_t)r),
                              lists->of[r].output_rows, PIECES_HERE);
        (void)read_ranks(json_array_get(json_object_get(entry, one), (size_t)r), lists->of[r].src,
                         PIECES_HERE);
    }
    lists_point(lists);
}

static ffa_group *create(const struct lists *lists)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_group *group;

    ck_assert_msg(ffa_group_create(&group, lists->at, lists->ranks, &err) == FFA_OK, "%s",
                  err.message);
    return group;
}

/* ---- buffers: rows of one number, in the type of the test ---- */

struct buffers {
    int32_t dtype;
    double wide[RANKS_HERE][ROWS_HERE];
    float narrow[RANKS_HERE][ROWS_HERE];
    int64_t rows[RANKS_HERE];
};

static void *buffer_of(struct buffers *buffers, int32_t rank)
{
    return buffers->dtype == FFA_FP32 ? (void *)buffers->narrow[rank] : (void *)buffers->wide[rank];
}

static double number_of(const struct buffers *buffers, int32_t rank, int64_t row)
{
    return buffers->dtype == FFA_FP32 ? (double)buffers->narrow[rank][row]
                                      : buffers->wide[rank][row];
}

static void set_number(struct buffers *buffers, int32_t rank, int64_t row, double value)
{
    buffers->narrow[rank][row] = (float)value;
    buffers->wide[rank][row] = value;
}

/* False where the entry has none of the name. */
static bool read_buffers(struct buffers *out, const json_t *entry, const char *name, int32_t dtype)
{
    const json_t *list = json_object_get(entry, name);

    *out = (struct buffers){ .dtype = dtype };
    for (size_t r = 0; r < json_array_size(list); r++) {
        const json_t *row = json_array_get(list, r);

        out->rows[r] = (int64_t)json_array_size(row);
        ck_assert_int_le(out->rows[r], ROWS_HERE);
        for (size_t i = 0; i < json_array_size(row); i++) {
            const json_t *number = json_array_get(row, i);

            set_number(out, (int32_t)r, (int64_t)i,
                       json_is_string(number) ? -INFINITY : json_number_value(number));
        }
    }
    return list != NULL;
}

static void check_buffers(struct buffers *got, const json_t *entry, const char *name,
                          double tolerance, bool whole)
{
    struct buffers want;

    ck_assert(read_buffers(&want, entry, name, FFA_FP64));
    for (int32_t r = 0; r < RANKS_HERE; r++)
        for (int64_t i = 0; i < want.rows[r]; i++) {
            const double value = whole ? floor(number_of(got, r, i)) : number_of(got, r, i);

            ck_assert_msg(fabs(value - want.wide[r][i]) <= tolerance,
                          "%s of %s: rank %d row %lld is %.9g, not %.9g", name,
                          json_string_value(json_object_get(entry, "name")), r, (long long)i, value,
                          want.wide[r][i]);
        }
}

static const int32_t dtypes[] = { FFA_FP32, FFA_FP64 };
static const char *const turns[] = { "", "_2nd", "_3rd" };

START_TEST(casts_of_the_reference)
{
    const json_t *list = json_object_get(cases, "group_cast");
    int32_t casts = 0;

    ck_assert_uint_eq(json_array_size(list), 5);
    for (size_t i = 0; i < json_array_size(list); i++)
        for (size_t turn = 0; turn < 3; turn++) {
            const json_t *entry = json_array_get(list, i);
            const ffa_group_format format = { dtypes[_i], 1, 1 };
            static struct buffers in, in_lse, out, out_lse;
            ffa_group_source from[RANKS_HERE];
            ffa_group_target to[RANKS_HERE];
            char name[64];
            struct lists lists;
            ffa_group *group;
            bool has_lse;

            snprintf(name, sizeof name, "send_buffer%s_per_rank", turns[turn]);
            if (!read_buffers(&in, entry, name, dtypes[_i]))
                continue;
            has_lse = read_buffers(&in_lse, entry, "send_lse_buffer_per_rank", dtypes[_i]);
            (void)read_buffers(&out, entry, "", dtypes[_i]);
            (void)read_buffers(&out_lse, entry, "", dtypes[_i]);
            read_lists(&lists, entry, "input_split_size_list_per_rank", "dst_indices_list_per_rank",
                       "output_split_size_list_per_rank", "src_index_list_per_rank");
            group = create(&lists);
            for (int32_t r = 0; r < lists.ranks; r++) {
                from[r] =
                    (ffa_group_source){ buffer_of(&in, r), has_lse ? buffer_of(&in_lse, r) : NULL };
                to[r] = (ffa_group_target){ buffer_of(&out, r), buffer_of(&out_lse, r) };
            }
            ck_assert_int_eq(ffa_group_cast_host(group, &format, from, to, NULL), FFA_OK);
            snprintf(name, sizeof name, "expected_recv_buffer%s_per_rank", turns[turn]);
            check_buffers(&out, entry, name, 1e-6, false);
            if (has_lse)
                check_buffers(&out_lse, entry, "expected_recv_lse_buffer_per_rank", 1e-6, false);
            ffa_group_destroy(group);
            casts++;
        }
    ck_assert_int_eq(casts, 8);
}
END_TEST

static const char *const op_names[] = { "sum", "avg", "lse" };

START_TEST(reduces_of_the_reference)
{
    const json_t *list = json_object_get(cases, "group_reduce");
    int32_t reduces = 0;

    ck_assert_uint_eq(json_array_size(list), 4);
    for (size_t i = 0; i < json_array_size(list); i++)
        for (size_t turn = 0; turn < 2; turn++) {
            const json_t *entry = json_array_get(list, i);
            const char *op_name = json_string_value(json_object_get(entry, "reduce_op"));
            const ffa_group_format format = { dtypes[_i], 1, 1 };
            static struct buffers in, in_lse, acc, acc_lse;
            ffa_group_source from[RANKS_HERE];
            ffa_group_target to[RANKS_HERE];
            char name[64];
            struct lists lists;
            ffa_group *group;
            int op = 0;

            while (strcmp(op_names[op], op_name) != 0)
                op++;
            snprintf(name, sizeof name, "send_buffer%s_per_rank", turns[turn]);
            if (!read_buffers(&in, entry, name, dtypes[_i]))
                continue;
            (void)read_buffers(&in_lse, entry, "send_lse_buffer_per_rank", dtypes[_i]);
            snprintf(name, sizeof name, "recv_buffer_before_reduce%s_per_rank", turns[turn]);
            ck_assert(read_buffers(&acc, entry, name, dtypes[_i]));
            (void)read_buffers(&acc_lse, entry, "recv_lse_buffer_before_reduce_per_rank",
                               dtypes[_i]);
            read_lists(&lists, entry, "output_split_size_list_per_rank",
                       "src_indices_list_per_rank", "input_split_size_list_per_rank",
                       "dst_index_list_per_rank");
            group = create(&lists);
            for (int32_t r = 0; r < lists.ranks; r++) {
                from[r] = (ffa_group_source){ buffer_of(&in, r), buffer_of(&in_lse, r) };
                to[r] = (ffa_group_target){ buffer_of(&acc, r), buffer_of(&acc_lse, r) };
            }
            ck_assert_int_eq(
                ffa_group_reduce_host(group, &format, (ffa_reduce_op)op, from, to, NULL), FFA_OK);
            snprintf(name, sizeof name, "expected_recv_buffer%s_per_rank", turns[turn]);
            /* The file has four digits of lse results, and averages cut to integers. */
            check_buffers(&acc, entry, name, op == FFA_REDUCE_LSE ? 1e-4 : 0, op == FFA_REDUCE_AVG);
            if (op == FFA_REDUCE_LSE)
                check_buffers(&acc_lse, entry, "expected_recv_lse_buffer_per_rank", 1e-4, false);
            ffa_group_destroy(group);
            reduces++;
        }
    ck_assert_int_eq(reduces, 5);
}
END_TEST

/* What rank 0 sends, in which order; the others only receive, in one piece. */
START_TEST(send_order_of_the_reference)
{
    const json_t *list = json_object_get(cases, "a2a_meta");

    ck_assert_uint_eq(json_array_size(list), 2);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const json_t *ranges = json_object_get(entry, "gather_ranges");
        struct lists lists = { .ranks =
                                   (int32_t)json_integer_value(json_object_get(entry, "world")) };
        const json_t *targets = json_object_get(entry, "dst");
        int64_t splits[RANKS_HERE], at = 0, begin = 0, count;
        ffa_group_copy sends[ROWS_HERE];
        ffa_group *group;

        lists.at[0].input_count = parallel_integers(json_object_get(entry, "input_splits"),
                                                    lists.of[0].input_rows, PIECES_HERE);
        for (int64_t p = 0; p < lists.at[0].input_count; p++) {
            begin += read_ranks(json_array_get(targets, (size_t)p), &lists.of[0].dst[begin],
                                TARGETS_HERE - begin);
            lists.of[0].dst_begin[p + 1] = begin;
        }
        (void)parallel_integers(json_object_get(entry, "a2a_splits"), splits, RANKS_HERE);
        for (int32_t r = 0; r < lists.ranks; r++) {
            lists.at[r].output_count = 1;
            lists.of[r].output_rows[0] = splits[r];
        }
        lists_point(&lists);
        group = create(&lists);
        count = copies_of(group, 0, true, sends);
        for (int64_t s = 0; s < count; s++) /* neighbours are joined here, and not there */
            for (int64_t row = sends[s].input_row; row < sends[s].input_row + sends[s].rows;) {
                int64_t range[2];

                (void)parallel_integers(json_array_get(ranges, (size_t)at++), range, 2);
                ck_assert_int_eq(range[0], row);
                row = range[1];
                ck_assert_int_le(row, sends[s].input_row + sends[s].rows);
            }
        ck_assert_uint_eq((size_t)at, json_array_size(ranges));
        ffa_group_destroy(group);
    }
}
END_TEST

/* ---- random groups ---- */

/* What one rank expects of another, as rows of the other's input. */
struct stream {
    int64_t row[ROWS_HERE];
    int64_t count, used;
};

struct random_group {
    struct lists lists;
    struct stream streams[RANKS_HERE][RANKS_HERE]; /* [to][from] */
    int64_t input_rows[RANKS_HERE], output_rows[RANKS_HERE];
    int32_t from_rank[RANKS_HERE][ROWS_HERE * 4]; /* of each output row */
    int64_t from_row[RANKS_HERE][ROWS_HERE * 4];
};

static void draw_inputs(struct rng *rng, struct random_group *g)
{
    for (int32_t s = 0; s < g->lists.ranks; s++) {
        ffa_group_lists *list = &g->lists.at[s];
        int64_t targets = 0;

        list->input_count = rng_range(rng, 0, 8);
        for (int64_t i = 0; i < list->input_count; i++) {
            const int64_t rows = rng_range(rng, 0, 4);

            g->lists.of[s].input_rows[i] = rows;
            for (int32_t r = 0; r < g->lists.ranks; r++) {
                struct stream *stream = &g->streams[r][s];

                if (rng_range(rng, 0, 2))
                    continue;
                g->lists.of[s].dst[targets++] = r;
                for (int64_t row = 0; row < rows; row++)
                    stream->row[stream->count++] = g->input_rows[s] + row;
            }
            g->lists.of[s].dst_begin[i + 1] = targets;
            g->input_rows[s] += rows;
        }
        /* The order of destinations in a piece means nothing. */
        for (int64_t i = 0; i < list->input_count; i++) {
            const int64_t begin = g->lists.of[s].dst_begin[i],
                          end = g->lists.of[s].dst_begin[i + 1];

            if (end - begin > 1) {
                const int32_t first = g->lists.of[s].dst[begin];

                g->lists.of[s].dst[begin] = g->lists.of[s].dst[end - 1];
                g->lists.of[s].dst[end - 1] = first;
            }
        }
    }
}

/* Take rows from the streams in any order and any lengths. */
static void draw_outputs(struct rng *rng, struct random_group *g)
{
    for (int32_t r = 0; r < g->lists.ranks; r++) {
        ffa_group_lists *list = &g->lists.at[r];
        int64_t left = 0;

        for (int32_t s = 0; s < g->lists.ranks; s++)
            left += g->streams[r][s].count;
        while (left > 0 && list->output_count < PIECES_HERE * RANKS_HERE - 1) {
            const int32_t s = (int32_t)rng_range(rng, 0, g->lists.ranks - 1);
            struct stream *stream = &g->streams[r][s];
            const bool is_last = list->output_count > PIECES_HERE * (RANKS_HERE - 1);
            const int64_t rest = stream->count - stream->used;
            const int64_t rows = is_last ? rest : rng_range(rng, 0, rest);

            g->lists.of[r].output_rows[list->output_count] = rows;
            g->lists.of[r].src[list->output_count++] = s;
            for (int64_t i = 0; i < rows; i++) {
                g->from_rank[r][g->output_rows[r]] = s;
                g->from_row[r][g->output_rows[r]++] = stream->row[stream->used++];
            }
            left -= rows;
        }
        ck_assert_int_eq(left, 0);
    }
}

static void draw_group(struct random_group *g, uint64_t seed)
{
    struct rng rng = { seed };

    *g = (struct random_group){ .lists = { .ranks = (int32_t)rng_range(&rng, 1, RANKS_HERE) } };
    draw_inputs(&rng, g);
    draw_outputs(&rng, g);
    lists_point(&g->lists);
}

static void check_copies(const struct random_group *g, const ffa_group *group, uint64_t seed)
{
    int64_t sent = 0, received = 0;

    for (int32_t r = 0; r < g->lists.ranks; r++) {
        ffa_group_size size = FFA_GROUP_SIZE_INIT;
        ffa_group_copy copies[ROWS_HERE];
        const int64_t count = copies_of(group, r, false, copies);
        int64_t row = 0, foreign = 0;

        ck_assert_int_eq(ffa_group_size_get(group, r, &size, NULL), FFA_OK);
        for (int64_t c = 0; c < count; c++) {
            ck_assert_int_eq(copies[c].output_row, row);
            for (int64_t i = 0; i < copies[c].rows; i++, row++)
                if (g->from_rank[r][row] != copies[c].rank ||
                    g->from_row[r][row] != copies[c].input_row + i)
                    ck_abort_msg("seed %llu: rank %d row %lld", (unsigned long long)seed, r,
                                 (long long)row);
            foreign += copies[c].rank == r ? 0 : copies[c].rows;
            received += copies[c].rows;
        }
        ck_assert_int_eq(row, g->output_rows[r]);
        ck_assert_int_eq(size.output_rows, g->output_rows[r]);
        ck_assert_int_eq(size.input_rows, g->input_rows[r]);
        ck_assert_int_eq(size.received_rows, foreign);
    }
    for (int32_t s = 0; s < g->lists.ranks; s++) {
        ffa_group_copy sends[ROWS_HERE];
        const int64_t count = copies_of(group, s, true, sends);

        for (int64_t c = 0; c < count; c++) { /* each stands among the receives */
            ffa_group_copy copies[ROWS_HERE];
            const int64_t there = copies_of(group, sends[c].rank, false, copies);
            int64_t times = 0;

            for (int64_t i = 0; i < there; i++)
                times += copies[i].rank == s && copies[i].rows == sends[c].rows &&
                         copies[i].input_row == sends[c].input_row &&
                         copies[i].output_row == sends[c].output_row;
            ck_assert_int_eq(times, 1);
            ck_assert(c == 0 || sends[c - 1].rank <= sends[c].rank);
            sent += sends[c].rows;
        }
    }
    ck_assert_int_eq(sent, received);
}

/* <cast(x), y> = <x, reduce(y)>, in integers that fp64 holds exactly. */
static void check_transpose(const struct random_group *g, const ffa_group *group, uint64_t seed)
{
    static double x[RANKS_HERE][ROWS_HERE], cast[RANKS_HERE][ROWS_HERE * 4];
    static double y[RANKS_HERE][ROWS_HERE * 4], reduced[RANKS_HERE][ROWS_HERE];
    const ffa_group_format format = { FFA_FP64, 1, 1 };
    ffa_group_source from[RANKS_HERE];
    ffa_group_target to[RANKS_HERE];
    struct rng rng = { ~seed };
    double left = 0, right = 0;

    memset(reduced, 0, sizeof reduced);
    for (int32_t r = 0; r < RANKS_HERE; r++) {
        for (int64_t i = 0; i < ROWS_HERE; i++)
            x[r][i] = (double)rng_range(&rng, -1000, 1000);
        for (int64_t i = 0; i < ROWS_HERE * 4; i++)
            y[r][i] = (double)rng_range(&rng, -1000, 1000);
        from[r] = (ffa_group_source){ x[r], NULL };
        to[r] = (ffa_group_target){ cast[r], NULL };
    }
    ck_assert_int_eq(ffa_group_cast_host(group, &format, from, to, NULL), FFA_OK);
    for (int32_t r = 0; r < RANKS_HERE; r++) {
        from[r] = (ffa_group_source){ y[r], NULL };
        to[r] = (ffa_group_target){ reduced[r], NULL };
    }
    ck_assert_int_eq(ffa_group_reduce_host(group, &format, FFA_REDUCE_SUM, from, to, NULL), FFA_OK);
    for (int32_t r = 0; r < g->lists.ranks; r++) {
        for (int64_t i = 0; i < g->output_rows[r]; i++)
            left += cast[r][i] * y[r][i];
        for (int64_t i = 0; i < g->input_rows[r]; i++)
            right += x[r][i] * reduced[r][i];
    }
    ck_assert_msg(left == right, "seed %llu: %.17g and %.17g", (unsigned long long)seed, left,
                  right);
}

START_TEST(random_groups)
{
    for (uint64_t seed = 1; seed <= 1500; seed++) {
        static struct random_group g;
        ffa_group *group;

        draw_group(&g, seed);
        group = create(&g.lists);
        check_copies(&g, group, seed);
        check_transpose(&g, group, seed);
        ffa_group_destroy(group);
    }
}
END_TEST

/* The tables of a dispatch, as lists: the same copies. */
START_TEST(transfer_tables_are_a_group)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct rng rng = { seed };
        ffa_mask *mask = parallel_random_mask(&rng, 48, 8);
        const ffa_dispatch_mask one = { mask, 1 };
        const ffa_topology topology = { 4, 0 };
        ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
        static struct lists lists;
        struct table_copy copies[ROWS_HERE];
        struct rank_needs_input in;
        struct transfer_tables t;
        ffa_dispatch *d;
        ffa_group *group;

        opts.chunk_tokens = 6;
        opts.flags = FFA_DISPATCH_CHUNK_EXACT;
        if (ffa_dispatch_create(&d, &one, 1, &topology, &opts, NULL) != FFA_OK) {
            ffa_mask_destroy(mask);
            continue;
        }
        in = (struct rank_needs_input){ &d->layout, &d->layout, &d->needs, d->topology };
        ck_assert_int_eq(transfer_tables_build(&t, &in, NULL), FFA_OK);
        lists = (struct lists){ .ranks = 4 };
        for (int32_t r = 0; r < 4; r++) {
            ffa_group_lists *list = &lists.at[r];
            int64_t targets = 0;

            for (int64_t i = t.send_begin[r]; i < t.send_begin[r + 1]; i++) {
                const struct table_piece *piece = &t.pieces[t.sends[i]];

                lists.of[r].input_rows[list->input_count++] = piece->end - piece->begin;
                for (int32_t k = 0; k < piece->receiver_count; k++)
                    lists.of[r].dst[targets++] = t.receivers[piece->receiver_begin + k];
                lists.of[r].dst_begin[list->input_count] = targets;
            }
            for (int64_t i = t.receive_begin[r]; i < t.receive_begin[r + 1]; i++) {
                const struct table_piece *piece = &t.pieces[t.receives[i].piece];

                lists.of[r].output_rows[list->output_count] = piece->end - piece->begin;
                lists.of[r].src[list->output_count++] = piece->owner;
            }
        }
        lists_point(&lists);
        group = create(&lists);
        for (int32_t r = 0; r < 4; r++) {
            ffa_group_copy got[ROWS_HERE];
            const int64_t count = copies_of(group, r, false, got);

            ck_assert_int_eq(count, transfer_tables_copies(copies, &t, r, false));
            for (int64_t c = 0; c < count; c++) {
                ck_assert_int_eq(got[c].input_row, copies[c].source_row);
                ck_assert_int_eq(got[c].output_row, copies[c].row);
                ck_assert_int_eq(got[c].rows, copies[c].rows);
                ck_assert_int_eq(got[c].rank, copies[c].source);
            }
        }
        ffa_group_destroy(group);
        transfer_tables_finish(&t);
        ffa_dispatch_destroy(d);
        ffa_mask_destroy(mask);
    }
}
END_TEST

/* ---- sums ---- */

/* One row of rank 0, cast to ranks 0, 1 and 2; their rows back. */
static void one_row_of_three(struct lists *lists, const int32_t *order)
{
    *lists = (struct lists){ .ranks = 3 };
    lists->at[0].input_count = 1;
    lists->of[0].input_rows[0] = 1;
    lists->of[0].dst_begin[1] = 3;
    memcpy(lists->of[0].dst, order, 3 * sizeof *order);
    for (int32_t r = 0; r < 3; r++) {
        lists->at[r].output_count = 1;
        lists->of[r].output_rows[0] = 1;
    }
    lists_point(lists);
}

static const int32_t orders[][3] = { { 0, 1, 2 }, { 2, 1, 0 }, { 1, 2, 0 } };

/* 2^24 + 1 + 1 in fp32 is 2^24 one by one; ranks 0, 1, 2 add 2^24, -2^24, 1 to an accumulator. */
START_TEST(sums_go_by_ascending_rank)
{
    for (size_t o = 0; o < 3; o++) {
        const ffa_group_format format = { FFA_FP32, 1, 1 };
        float values[] = { 0x1p24f, -0x1p24f, 1 }, acc = 1;
        ffa_group_source from[3] = { { &values[0], NULL },
                                     { &values[1], NULL },
                                     { &values[2], NULL } };
        ffa_group_target to[3] = { { &acc, NULL }, { NULL, NULL }, { NULL, NULL } };
        struct lists lists;
        ffa_group *group;

        one_row_of_three(&lists, orders[o]);
        group = create(&lists);
        ck_assert_int_eq(ffa_group_reduce_host(group, &format, FFA_REDUCE_SUM, from, to, NULL),
                         FFA_OK);
        ck_assert(acc == 1); /* ((1 + 2^24) - 2^24) + 1, the first 1 lost */
        acc = 1;
        values[0] = 2;
        values[1] = 3;
        values[2] = 6;
        ck_assert_int_eq(ffa_group_reduce_host(group, &format, FFA_REDUCE_AVG, from, to, NULL),
                         FFA_OK);
        ck_assert(acc == 3);
        ffa_group_destroy(group);
    }
}
END_TEST

/* Two heads of two elements: one with keys everywhere but in rank 1, one with none at all. */
START_TEST(lse_without_keys_takes_no_part)
{
    for (int32_t start = 0; start < 2; start++) {
        const ffa_group_format format = { FFA_FP64, 2, 2 };
        double out[3][4] = { { 1, 2, NAN, NAN }, { NAN, NAN, NAN, 7 }, { 5, 6, 8, NAN } };
        double lse[3][2] = { { 0.5, -INFINITY }, { -INFINITY, -INFINITY }, { 1.5, -INFINITY } };
        double acc[4] = { NAN, 3, NAN, 4 }, acc_lse[2] = { -INFINITY, -INFINITY };
        const double w0 = exp(0.5), w2 = exp(1.5);
        double wa = 0;
        ffa_group_source from[3];
        ffa_group_target to[3] = { { acc, acc_lse }, { NULL, NULL }, { NULL, NULL } };
        struct lists lists;
        ffa_group *group;

        if (start) {
            acc[0] = 10;
            acc_lse[0] = 1;
            wa = exp(1);
        }
        for (int32_t r = 0; r < 3; r++)
            from[r] = (ffa_group_source){ out[r], lse[r] };
        one_row_of_three(&lists, orders[start]);
        group = create(&lists);
        ck_assert_int_eq(ffa_group_reduce_host(group, &format, FFA_REDUCE_LSE, from, to, NULL),
                         FFA_OK);
        ck_assert_double_eq_tol(acc_lse[0], log(wa + w0 + w2), 1e-14);
        ck_assert_double_eq_tol(acc[0], (wa * 10 + w0 * 1 + w2 * 5) / (wa + w0 + w2), 1e-13);
        ck_assert_double_eq_tol(acc[1], (wa * 3 + w0 * 2 + w2 * 6) / (wa + w0 + w2), 1e-13);
        ck_assert(acc_lse[1] == -INFINITY && acc[2] == 0 && acc[3] == 0);
        ffa_group_destroy(group);
    }
}
END_TEST

/* ---- arguments ---- */

static void fine_lists(struct lists *lists)
{
    one_row_of_three(lists, orders[0]);
}

static void rank_too_large(struct lists *lists)
{
    lists->of[0].dst[1] = 3;
}
static void rank_negative(struct lists *lists)
{
    lists->of[0].dst[2] = -1;
}
static void rank_twice(struct lists *lists)
{
    lists->of[0].dst[2] = 0;
}
static void source_too_large(struct lists *lists)
{
    lists->of[1].src[0] = 7;
}
static void too_few_rows(struct lists *lists)
{
    lists->of[2].output_rows[0] = 0;
}
static void too_many_rows(struct lists *lists)
{
    lists->of[2].output_rows[0] = 4;
}
static void other_source(struct lists *lists)
{
    lists->of[1].src[0] = 1;
}
static void negative_rows(struct lists *lists)
{
    lists->of[0].input_rows[0] = -1;
}
static void negative_output(struct lists *lists)
{
    lists->of[1].output_rows[0] = -2;
}
static void begins_fall(struct lists *lists)
{
    lists->of[0].dst_begin[1] = -1;
}
static void no_dst(struct lists *lists)
{
    lists->at[0].dst = NULL;
}
static void no_input_rows(struct lists *lists)
{
    lists->at[0].input_rows = NULL;
}
static void no_src(struct lists *lists)
{
    lists->at[2].src = NULL;
}
static void negative_count(struct lists *lists)
{
    lists->at[1].output_count = -1;
}
static void no_ranks(struct lists *lists)
{
    lists->ranks = 0;
}
static void too_many_ranks(struct lists *lists)
{
    lists->ranks = 4097;
}
static void endless_rows(struct lists *lists)
{
    lists->at[1].output_count = 2;
    lists->of[1].output_rows[0] = lists->of[1].output_rows[1] = INT64_MAX;
}

static const struct {
    void (*spoil)(struct lists *lists);
    const char *message;
} bad_rows[] = {
    { rank_too_large, "rank 0: input piece 0 goes to rank 3, not in [0, 3)" },
    { rank_negative, "rank 0: input piece 0 goes to rank -1, not in [0, 3)" },
    { rank_twice, "rank 0: input piece 0 goes to rank 0 twice" },
    { source_too_large, "rank 1: output piece 0 comes from rank 7, not in [0, 3)" },
    { too_few_rows, "rank 2 expects 0 rows of rank 0, which sends it 1" },
    { too_many_rows, "rank 2 expects 4 rows of rank 0, which sends it 1" },
    { other_source, "rank 1 expects 0 rows of rank 0, which sends it 1" },
    { negative_rows, "rank 0: input piece 0 has -1 rows" },
    { negative_output, "rank 1: output piece 0 has -2 rows" },
    { begins_fall, "rank 0: dst_begin goes from 0 to -1 at input piece 0" },
    { no_dst, "rank 0: dst is NULL" },
    { no_input_rows, "rank 0: input_rows is NULL" },
    { no_src, "rank 2: src is NULL" },
    { negative_count, "rank 1: output_count is negative" },
    { no_ranks, "rank_count is 0, not in [1, 4096]" },
    { too_many_ranks, "rank_count is 4097, not in [1, 4096]" },
    { endless_rows, "rank 1: a buffer of more than 2^63 - 1 rows" },
};

START_TEST(bad_lists_are_named)
{
    struct lists lists;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_group *group = (ffa_group *)&lists;

    fine_lists(&lists);
    bad_rows[_i].spoil(&lists);
    ck_assert_int_eq(ffa_group_create(&group, lists.at, lists.ranks, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, bad_rows[_i].message);
    ck_assert_ptr_null(group);
}
END_TEST

static void expect_reduce(const ffa_group *group, const ffa_group_format *format, int op,
                          const ffa_group_source *from, const ffa_group_target *to,
                          const char *message)
{
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(ffa_group_reduce_host(group, format, (ffa_reduce_op)op, from, to, &err),
                     FFA_INVALID);
    ck_assert_str_eq(err.message, message);
}

START_TEST(bad_buffers_are_named)
{
    const ffa_group_format format = { FFA_FP64, 1, 1 }, half = { FFA_FP16, 1, 1 };
    const ffa_group_format none = { FFA_FP64, 0, 1 };
    double row[3] = { 0 };
    ffa_group_source from[3] = { { row, row }, { row, row }, { row, row } };
    ffa_group_target to[3] = { { row, row }, { row, row }, { row, row } };
    ffa_error err = { FFA_OK, 0, "" };
    struct lists lists;
    ffa_group *group;
    ffa_group_copy copy = FFA_GROUP_COPY_INIT;
    ffa_group_size size = FFA_GROUP_SIZE_INIT;

    fine_lists(&lists);
    group = create(&lists);
    expect_reduce(NULL, &format, 0, from, to, "group is NULL");
    expect_reduce(group, NULL, 0, from, to, "format is NULL");
    expect_reduce(group, &format, 0, NULL, to, "the list of sources is NULL");
    expect_reduce(group, &format, 0, from, NULL, "the list of targets is NULL");
    expect_reduce(group, &half, 0, from, to, "format: dtype is 2, not FFA_FP32 or FFA_FP64");
    expect_reduce(group, &none, 0, from, to, "format: 0 heads of 1 elements");
    expect_reduce(group, &format, 3, from, to, "op is 3, not in [0, 2]");
    from[2].lse = NULL;
    expect_reduce(group, &format, FFA_REDUCE_LSE, from, to,
                  "rank 2: the lse of its partial buffer of 1 rows is NULL");
    from[2].data = NULL;
    expect_reduce(group, &format, FFA_REDUCE_SUM, from, to,
                  "rank 2: the data of its partial buffer of 1 rows is NULL");
    to[2].data = NULL;
    from[2].data = row;
    ck_assert_int_eq(ffa_group_cast_host(group, &format, from, to, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "rank 2: the data of its output buffer of 1 rows is NULL");
    ck_assert_int_eq(ffa_group_receive_count(group, 3), 0);
    ck_assert_int_eq(ffa_group_receive_get(group, 3, 0, &copy, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "rank is 3, not in [0, 3)");
    ck_assert_int_eq(ffa_group_send_count(NULL, 0), 0);
    ck_assert_int_eq(ffa_group_send_get(NULL, 0, 0, &copy, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_group_send_get(group, 0, -1, &copy, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "index is -1, not in [0, "));
    ck_assert_int_eq(ffa_group_size_get(group, -1, &size, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "rank is -1, not in [0, 3)");
    ck_assert_int_eq(ffa_group_create(NULL, lists.at, 3, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "out is NULL");
    ffa_group_destroy(group);
    ck_assert_int_eq(ffa_group_create(&group, NULL, 3, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "lists is NULL");
    ffa_group_destroy(NULL);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    static struct random_group g;
    ffa_status rc = FFA_OK;
    long nth;

    draw_group(&g, 7);
    for (nth = 1;; nth++) {
        static double x[ROWS_HERE], y[RANKS_HERE][ROWS_HERE * 4];
        const ffa_group_format format = { FFA_FP64, 1, 1 };
        ffa_group_source from[RANKS_HERE];
        ffa_group_target to[RANKS_HERE];
        ffa_error err = { FFA_OK, 0, "" };
        ffa_group *group;

        for (int32_t r = 0; r < RANKS_HERE; r++) {
            from[r] = (ffa_group_source){ y[r], NULL };
            to[r] = (ffa_group_target){ x, NULL };
        }
        fault_arm(FAULT_ALLOC, nth);
        rc = ffa_group_create(&group, g.lists.at, g.lists.ranks, &err);
        ck_assert_int_eq(group != NULL, rc == FFA_OK);
        if (rc == FFA_OK)
            rc = ffa_group_reduce_host(group, &format, FFA_REDUCE_AVG, from, to, &err);
        ffa_group_destroy(group);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_msg(!strncmp(err.message, "no memory for ", 14), "%s", err.message);
    }
    ck_assert_int_eq(rc, FFA_OK);
    ck_assert_int_gt(nth, 10);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group");
    TCase *tc = tcase_create("group");
    int failed;

    cases = parallel_cases_load();
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, casts_of_the_reference, 0, 2);
    tcase_add_loop_test(tc, reduces_of_the_reference, 0, 2);
    tcase_add_test(tc, send_order_of_the_reference);
    tcase_add_test(tc, random_groups);
    tcase_add_test(tc, transfer_tables_are_a_group);
    tcase_add_test(tc, sums_go_by_ascending_rank);
    tcase_add_test(tc, lse_without_keys_takes_no_part);
    tcase_add_loop_test(tc, bad_lists_are_named, 0, sizeof bad_rows / sizeof *bad_rows);
    tcase_add_test(tc, bad_buffers_are_named);
    tcase_add_test(tc, every_allocation_may_fail);
    suite_add_tcase(suite, tc);
    failed = suite_run(suite);
    json_decref(cases);
    return failed;
}
