/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch and transfer tables against the reference planner's cases; solvers by hand and against
 * every assignment; arguments; allocation faults.
 */
#include "parallel/dispatch/dispatch.h"
#include "parallel/dispatch/solve.h"
#include "support/parallel_cases.h"
#include "support/suite.h"
#include "support/transfer_tables.h"

#include <check.h>
#include <stdio.h>

enum { ITEMS_MAX = 512 };

static json_t *cases;

static int64_t integer(const json_t *entry, const char *name)
{
    return (int64_t)json_integer_value(json_object_get(entry, name));
}

static const char *name_of(const json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "name"));

    return name ? name : "";
}

/* The integers of `array` are exactly got[0 .. count). */
static void check_list(const json_t *array, const int64_t *got, int64_t count, const char *what)
{
    int64_t want[ITEMS_MAX];

    ck_assert_msg(parallel_integers(array, want, ITEMS_MAX) == count, "%s: %lld items, not %zu",
                  what, (long long)count, json_array_size(array));
    for (int64_t i = 0; i < count; i++)
        ck_assert_msg(got[i] == want[i], "%s: item %lld is %lld, not %lld", what, (long long)i,
                      (long long)got[i], (long long)want[i]);
}

static void check_ranges(const json_t *array, const struct range *got, int64_t count,
                         const char *what)
{
    ck_assert_msg((int64_t)json_array_size(array) == count, "%s: %lld ranges", what,
                  (long long)count);
    for (int64_t i = 0; i < count; i++)
        check_list(json_array_get(array, (size_t)i), (int64_t[]){ got[i].begin, got[i].end }, 2,
                   what);
}

static ffa_dispatch *create(const ffa_mask *mask, int32_t ranks, const ffa_dispatch_opts *opts)
{
    const ffa_dispatch_mask one = { mask, 1 };
    const ffa_topology topology = { ranks, 0 };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_dispatch *dispatch;

    ck_assert_msg(ffa_dispatch_create(&dispatch, &one, 1, &topology, opts, &err) == FFA_OK, "%s",
                  err.message);
    return dispatch;
}

static ffa_dispatch_opts like_reference(int64_t chunk_tokens)
{
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;

    opts.algorithm = FFA_DISPATCH_MIN_HEAP;
    opts.chunk_tokens = chunk_tokens;
    opts.flags = FFA_DISPATCH_CHUNK_EXACT;
    return opts;
}

/* ---- solvers ---- */

/* The rank's chunks in the order min-heap gives them out. */
static int64_t in_order(int64_t *out, const struct solve_input *in, const int32_t *rank_of,
                        int32_t rank)
{
    int64_t order[ITEMS_MAX], count = 0;

    solve_order(order, in);
    for (int64_t i = 0; i < in->count; i++)
        if (rank_of[order[i]] == rank)
            out[count++] = order[i];
    return count;
}

START_TEST(solvers_of_the_reference)
{
    const json_t *list = json_object_get(cases, "dispatch_solver");
    int32_t checked = 0;

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *want = json_object_get(entry, "partitions");
        int64_t loads[ITEMS_MAX] = { 0 }, got[ITEMS_MAX], of_rank[ITEMS_MAX];
        int32_t rank_of[ITEMS_MAX];
        struct solve_input in = { loads, integer(entry, "n"), (int32_t)integer(entry, "k") };

        if (!strcmp(name_of(entry), "sequential")) {
            solve_sequential(rank_of, &in);
        } else if (!strcmp(name_of(entry), "min_heap")) {
            in.count = parallel_integers(json_object_get(entry, "workloads"), loads, ITEMS_MAX);
            ck_assert_int_eq(solve_min_heap(rank_of, &in, NULL), FFA_OK);
            ck_assert_int_eq(solve_largest_load(rank_of, &in, of_rank),
                             (int64_t)json_number_value(json_object_get(entry, "minimax")));
        } else {
            continue;
        }
        checked++;
        for (int32_t r = 0; r < in.ranks; r++) {
            int64_t count = in_order(got, &in, rank_of, r);

            if (!strcmp(name_of(entry), "sequential"))
                for (int64_t a = 0; a < count / 2; a++) { /* all loads are 0: largest first */
                    const int64_t item = got[a];

                    got[a] = got[count - 1 - a];
                    got[count - 1 - a] = item;
                }
            check_list(json_array_get(want, (size_t)r), got, count, name_of(entry));
        }
        if (json_object_get(entry, "equal_count_optimum")) {
            ck_assert_int_eq(solve_exact(rank_of, &in, NULL), FFA_OK);
            ck_assert_int_eq(
                solve_largest_load(rank_of, &in, of_rank),
                (int64_t)json_number_value(json_object_get(entry, "equal_count_optimum")));
        }
    }
    ck_assert_int_eq(checked, 4);
}
END_TEST

START_TEST(zigzag_turns_at_the_ends)
{
    static const int32_t want[] = { 0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1 };
    const struct solve_input in = { NULL, 11, 3 };
    int32_t got[11];

    solve_zigzag(got, &in);
    ck_assert_mem_eq(got, want, sizeof want);
}
END_TEST

static int64_t least_of_all(const struct solve_input *in, int32_t *rank_of, int64_t at)
{
    int64_t of_rank[8], least = INT64_MAX;

    if (at == in->count) {
        int64_t taken[8] = { 0 };

        for (int64_t c = 0; c < in->count; c++)
            taken[rank_of[c]]++;
        for (int32_t r = 0; r < in->ranks; r++)
            if (taken[r] < in->count / in->ranks ||
                taken[r] > (in->count + in->ranks - 1) / in->ranks)
                return INT64_MAX;
        return solve_largest_load(rank_of, in, of_rank);
    }
    for (int32_t r = 0; r < in->ranks; r++) {
        int64_t load;

        rank_of[at] = r;
        load = least_of_all(in, rank_of, at + 1);
        least = load < least ? load : least;
    }
    return least;
}

static void check_counts(const struct solve_input *in, const int32_t *rank_of)
{
    int64_t taken[64] = { 0 };

    for (int64_t c = 0; c < in->count; c++)
        taken[rank_of[c]]++;
    for (int32_t r = 0; r < in->ranks; r++)
        ck_assert(taken[r] == in->count / in->ranks || taken[r] == in->count / in->ranks + 1);
}

/* exact is the least of all assignments; the heuristics lie between it and the greedy bound. */
START_TEST(exact_is_the_least_of_all)
{
    int64_t worse = 0;

    for (uint64_t seed = 1; seed <= 400; seed++) {
        struct rng rng = { seed };
        int64_t loads[8], of_rank[8], sum = 0, largest = 0, exact, greedy;
        struct solve_input in = { loads, rng_range(&rng, 2, 7), 2 };
        int32_t rank_of[8];

        in.ranks = (int32_t)rng_range(&rng, 1, in.count < 4 ? in.count : 4);
        for (int64_t c = 0; c < in.count; c++) {
            loads[c] = rng_range(&rng, 0, rng_range(&rng, 0, 1) ? 100 : 3);
            sum += loads[c];
            largest = loads[c] > largest ? loads[c] : largest;
        }
        ck_assert_int_eq(solve_exact(rank_of, &in, NULL), FFA_OK);
        check_counts(&in, rank_of);
        exact = solve_largest_load(rank_of, &in, of_rank);
        ck_assert_int_eq(solve_min_heap(rank_of, &in, NULL), FFA_OK);
        check_counts(&in, rank_of);
        greedy = solve_largest_load(rank_of, &in, of_rank);
        ck_assert_msg(exact == least_of_all(&in, rank_of, 0), "seed %llu: %lld",
                      (unsigned long long)seed, (long long)exact);
        ck_assert_int_ge(greedy, exact);
        ck_assert_int_le(greedy * in.ranks, sum + largest * in.ranks);
        ck_assert_int_le(greedy, 2 * exact);
        worse += greedy > exact;
    }
    printf("min-heap above the optimum in %lld of 400 small cases\n", (long long)worse);
}
END_TEST

START_TEST(counts_and_bounds_of_min_heap)
{
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        struct rng rng = { seed };
        int64_t loads[ITEMS_MAX], of_rank[64], sum = 0, largest = 0, most;
        struct solve_input in = { loads, rng_range(&rng, 1, 200), 1 };
        int32_t rank_of[ITEMS_MAX];

        in.ranks = (int32_t)rng_range(&rng, 1, in.count < 64 ? in.count : 64);
        for (int64_t c = 0; c < in.count; c++) {
            loads[c] = rng_range(&rng, 0, rng_range(&rng, 0, 1) ? 1000 : 10);
            sum += loads[c];
            largest = loads[c] > largest ? loads[c] : largest;
        }
        ck_assert_int_eq(solve_min_heap(rank_of, &in, NULL), FFA_OK);
        check_counts(&in, rank_of);
        most = solve_largest_load(rank_of, &in, of_rank);
        ck_assert_int_ge(most * in.ranks, sum);
        ck_assert_int_le(most * in.ranks, sum + largest * in.ranks);
        solve_zigzag(rank_of, &in);
        check_counts(&in, rank_of);
        solve_sequential(rank_of, &in);
        check_counts(&in, rank_of);
    }
}
END_TEST

START_TEST(exact_says_where_it_ends)
{
    int64_t loads[25] = { 0 };
    const struct solve_input in = { loads, 25, 5 };
    int32_t rank_of[25];
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(solve_exact(rank_of, &in, &err), FFA_UNSUPPORTED);
    ck_assert_str_eq(err.message, "an exact dispatch of 25 chunks, at most 24");
}
END_TEST

/* ---- areas and chunks ---- */

START_TEST(areas_of_the_reference)
{
    const json_t *list = json_object_get(cases, "areas");

    ck_assert_uint_eq(json_array_size(list), 21);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const json_t *areas = json_object_get(entry, "areas");
        const ffa_dispatch_opts opts = like_reference(integer(entry, "chunk"));
        ffa_mask *mask =
            parallel_case_mask(entry, opts.chunk_tokens * (int64_t)json_array_size(areas));
        ffa_dispatch *dispatch = create(mask, 1, &opts);

        check_list(areas, dispatch->area, dispatch->layout.count, "areas");
        ffa_dispatch_destroy(dispatch);
        ffa_mask_destroy(mask);
    }
}
END_TEST

START_TEST(automatic_chunks_of_the_reference)
{
    const json_t *list = json_object_get(cases, "auto_chunk");

    ck_assert_uint_eq(json_array_size(list), 4);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);

        ck_assert_int_eq(
            chunk_tokens_default(integer(entry, "seqlen"), (int32_t)integer(entry, "cp")),
            integer(entry, "auto_chunk"));
    }
}
END_TEST

static const struct {
    const char *name;
    int64_t tokens, chunk_tokens;
    int32_t ranks;
    uint32_t flags;
    int64_t count, first, last; /* tokens of the first and the last chunk */
} chunk_rows[] = {
    { "automatic", 65536, 0, 8, 0, 64, 1024, 1024 },
    { "automatic, rounded up to 128", 10000, 0, 8, 0, 40, 256, 16 },
    { "automatic, exact", 10000, 0, 8, FFA_DISPATCH_CHUNK_EXACT, 64, 157, 109 },
    { "not rounded where ranks would go without", 1000, 0, 16, 0, 125, 8, 8 },
    { "a token a rank", 16, 0, 16, 0, 16, 1, 1 },
    { "one token", 1, 0, 1, 0, 1, 1, 1 },
    { "given, less than automatic, rounded", 65536, 500, 8, 0, 128, 512, 512 },
    { "given, more than automatic", 65536, 5000, 8, 0, 64, 1024, 1024 },
    { "given, exact", 65536, 5000, 8, FFA_DISPATCH_CHUNK_EXACT, 14, 5000, 536 },
};

static ffa_dispatch_chunk chunk_of(const ffa_dispatch *dispatch, int64_t index)
{
    ffa_dispatch_chunk chunk = FFA_DISPATCH_CHUNK_INIT;

    ck_assert_int_eq(ffa_dispatch_chunk_get(dispatch, index, &chunk, NULL), FFA_OK);
    return chunk;
}

START_TEST(chunks_have_the_size)
{
    const ffa_mask_shape shape = { chunk_rows[_i].tokens, chunk_rows[_i].tokens };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_dispatch *dispatch;
    ffa_dispatch_chunk chunk;
    ffa_mask *mask;

    opts.chunk_tokens = chunk_rows[_i].chunk_tokens;
    opts.flags = chunk_rows[_i].flags;
    ck_assert_int_eq(ffa_mask_causal(&mask, &shape, NULL), FFA_OK);
    dispatch = create(mask, chunk_rows[_i].ranks, &opts);
    ck_assert_msg(ffa_dispatch_chunk_count(dispatch) == chunk_rows[_i].count, "%s: %lld chunks",
                  chunk_rows[_i].name, (long long)ffa_dispatch_chunk_count(dispatch));
    chunk = chunk_of(dispatch, 0);
    ck_assert_int_eq(chunk.end - chunk.begin, chunk_rows[_i].first);
    chunk = chunk_of(dispatch, chunk_rows[_i].count - 1);
    ck_assert_int_eq(chunk.end, chunk_rows[_i].tokens);
    ck_assert_int_eq(chunk.end - chunk.begin, chunk_rows[_i].last);
    ck_assert_int_eq(ffa_dispatch_chunk_get(dispatch, chunk_rows[_i].count, &chunk, NULL),
                     FFA_INVALID);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* Causal, 8 tokens: chunk loads are sums of 1..8; two masks with weights add up. */
START_TEST(masks_weigh_as_they_are_told)
{
    static const int64_t cu[] = { 0, 1, 4, 8 };
    const ffa_mask_shape shape = { 8, 8 };
    ffa_dispatch_mask masks[2] = { { NULL, 3 }, { NULL, 0 } };
    const ffa_topology topology = { 2, 1 };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_mask *causal, *full;
    ffa_dispatch *dispatch;
    ffa_dispatch_report report = FFA_DISPATCH_REPORT_INIT;
    ffa_dispatch_load ranks[2] = { FFA_DISPATCH_LOAD_INIT };
    int64_t count;

    ck_assert_int_eq(ffa_mask_causal(&causal, &shape, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_full(&full, &shape, NULL), FFA_OK);
    masks[0].mask = causal;
    masks[1].mask = full;
    opts.algorithm = FFA_DISPATCH_SEQUENTIAL;
    opts.cu_chunks = cu;
    opts.chunk_count = 3;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, masks, 2, &topology, &opts, NULL), FFA_OK);
    ck_assert_int_eq(chunk_of(dispatch, 0).load, 3 * 1 + 8);
    ck_assert_int_eq(chunk_of(dispatch, 1).load, 3 * 9 + 24);
    ck_assert_int_eq(chunk_of(dispatch, 2).load, 3 * 26 + 32);
    ck_assert_int_eq(ffa_dispatch_rank_chunks(dispatch, 0, &count)[1], 1);
    ck_assert_int_eq(count, 2);
    ck_assert_ptr_null(ffa_dispatch_rank_chunks(dispatch, 2, &count));
    ck_assert_int_eq(count, 0);
    ck_assert_int_eq(ffa_dispatch_report_get(dispatch, &report, ranks, NULL), FFA_OK);
    ck_assert_int_eq(ranks[0].tokens, 4);
    ck_assert_int_eq(ranks[0].received_network, 4);
    ck_assert_int_eq(ranks[1].received_network, 4);
    ck_assert_int_eq(ranks[1].received_node, 0);
    ck_assert_int_eq(report.total.sent_network, 8);
    ck_assert_int_eq(report.most.area, 3 * 26 + 32);
    ck_assert_int_eq(report.total.visited, 3 * (4 * 16384));
    ck_assert_int_eq(report.most.fragments, 1);
    ck_assert_int_eq(report.algorithm, FFA_DISPATCH_SEQUENTIAL);
    ck_assert(report.load_imbalance > .27 && report.load_imbalance < .29); /* 110 of 172 */
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(causal);
    ffa_mask_destroy(full);
}
END_TEST

/* ---- tables of the reference ---- */

static void check_tables(const json_t *entry, const ffa_dispatch *dispatch)
{
    const struct rank_needs_input in = { &dispatch->layout, &dispatch->layout, &dispatch->needs,
                                         dispatch->topology };
    const struct layout *layout = &dispatch->layout;
    struct transfer_tables t;

    ck_assert_int_eq(transfer_tables_build(&t, &in, NULL), FFA_OK);
    for (int32_t r = 0; r < layout->ranks; r++) {
        const json_t *cast = json_array_get(json_object_get(entry, "cast"), (size_t)r);
        struct range ranges[ITEMS_MAX];
        int64_t rows[ITEMS_MAX], ranks[ITEMS_MAX], count = 0, area = 0;

        count = layout_ranges(ranges, layout, r);
        check_ranges(json_array_get(json_object_get(entry, "host"), (size_t)r), ranges, count,
                     "host");
        count = t.receive_begin[r + 1] - t.receive_begin[r];
        for (int64_t i = 0; i < count; i++) {
            const struct table_piece *piece = &t.pieces[t.receives[t.receive_begin[r] + i].piece];

            ranges[i] = (struct range){ piece->begin, piece->end };
            rows[i] = piece->end - piece->begin;
            ranks[i] = piece->owner;
        }
        check_list(json_object_get(cast, "out_splits"), rows, count, "out_splits");
        check_list(json_object_get(cast, "src"), ranks, count, "src");
        check_ranges(json_array_get(json_object_get(entry, "remote_k"), (size_t)r), ranges,
                     ranges_join(ranges, count), "remote_k");
        count = t.send_begin[r + 1] - t.send_begin[r];
        for (int64_t i = 0; i < count; i++) {
            const struct table_piece *piece = &t.pieces[t.sends[t.send_begin[r] + i]];

            rows[i] = piece->end - piece->begin;
            for (int32_t d = 0; d < piece->receiver_count; d++)
                ranks[d] = t.receivers[piece->receiver_begin + d];
            check_list(json_array_get(json_object_get(cast, "dst"), (size_t)i), ranks,
                       piece->receiver_count, "dst");
        }
        check_list(json_object_get(cast, "in_splits"), rows, count, "in_splits");
        for (int64_t c = 0; c < layout->count; c++)
            area += layout->rank_of[c] == r ? dispatch->area[c] : 0;
        ck_assert_int_eq(area, json_integer_value(json_array_get(
                                   json_object_get(entry, "area_per_rank"), (size_t)r)));
    }
    transfer_tables_finish(&t);
}

static void check_partitions(const json_t *want, const ffa_dispatch *dispatch, const char *name)
{
    for (int32_t r = 0; r < dispatch->topology.rank_count; r++) {
        int64_t count;
        const int64_t *chunks = ffa_dispatch_rank_chunks(dispatch, r, &count);

        check_list(json_array_get(want, (size_t)r), chunks, count, name);
    }
}

START_TEST(host_and_remote_of_the_reference)
{
    const json_t *list = json_object_get(cases, "host_remote");

    ck_assert_uint_eq(json_array_size(list), 5);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const ffa_dispatch_opts opts = like_reference(integer(entry, "chunk"));
        ffa_mask *mask = parallel_case_mask(entry, 0);
        ffa_dispatch *dispatch = create(mask, (int32_t)integer(entry, "cp"), &opts);

        check_partitions(json_object_get(entry, "partitions"), dispatch, name_of(entry));
        check_tables(entry, dispatch);
        ffa_dispatch_destroy(dispatch);
        ffa_mask_destroy(mask);
    }
}
END_TEST

START_TEST(pipelines_of_the_reference)
{
    const json_t *list = json_object_get(cases, "pipeline");
    int32_t worlds = 0;

    ck_assert_uint_eq(json_array_size(list), 10);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *world;
        const ffa_dispatch_opts opts = like_reference(integer(entry, "chunk"));
        ffa_mask *mask = parallel_case_mask(entry, 0);
        const char *ranks;

        ck_assert_int_eq(ffa_mask_area(mask, 0), integer(entry, "areas_sum"));
        json_object_foreach(json_object_get(entry, "cp"), ranks, world)
        {
            const int32_t count = (int32_t)strtol(ranks, NULL, 10);
            ffa_dispatch *dispatch = create(mask, count, &opts);
            ffa_dispatch_report report = FFA_DISPATCH_REPORT_INIT;
            ffa_dispatch_load loads[16] = { FFA_DISPATCH_LOAD_INIT };
            int64_t area[16], received[16], sent[16];

            check_partitions(json_object_get(world, "partitions"), dispatch, name_of(entry));
            ck_assert_int_eq(ffa_dispatch_report_get(dispatch, &report, loads, NULL), FFA_OK);
            for (int32_t r = 0; r < count; r++) {
                area[r] = loads[r].area;
                received[r] = loads[r].received_node;
                sent[r] = loads[r].sent_node;
            }
            check_list(json_object_get(world, "area"), area, count, name_of(entry));
            check_list(json_object_get(world, "recv_tokens"), received, count, name_of(entry));
            check_list(json_object_get(world, "send_tokens"), sent, count, name_of(entry));
            ffa_dispatch_destroy(dispatch);
            worlds++;
        }
        ffa_mask_destroy(mask);
    }
    printf("%d dispatches of the reference\n", worlds);
}
END_TEST

/* Full attention of 8 ranks in 2 nodes: all in the other node need every piece, and hand on the
 * same share of them. */
START_TEST(relays_share_the_work)
{
    const ffa_topology topology = { 8, 4 };
    ffa_dispatch_opts opts = like_reference(8);
    ffa_dispatch_report report = FFA_DISPATCH_REPORT_INIT;
    ffa_dispatch_load loads[8] = { FFA_DISPATCH_LOAD_INIT };
    struct rank_needs_input in;
    struct transfer_tables t;
    ffa_dispatch *dispatch;
    ffa_mask *mask;
    int64_t handed_on[8] = { 0 };

    ck_assert_int_eq(ffa_mask_full(&mask, &(ffa_mask_shape){ 512, 512 }, NULL), FFA_OK);
    ck_assert_int_eq(
        ffa_dispatch_create(&dispatch, &(ffa_dispatch_mask){ mask, 1 }, 1, &topology, &opts, NULL),
        FFA_OK);
    in = (struct rank_needs_input){ &dispatch->layout, &dispatch->layout, &dispatch->needs,
                                    dispatch->topology };
    ck_assert_int_eq(transfer_tables_build(&t, &in, NULL), FFA_OK);
    for (int64_t i = 0; i < t.receive_begin[8]; i++) {
        const struct table_piece *piece = &t.pieces[t.receives[i].piece];

        if (t.receives[i].relay != piece->owner)
            handed_on[t.receives[i].relay] += piece->end - piece->begin;
    }
    for (int32_t r = 0; r < 8; r++)
        ck_assert_int_eq(handed_on[r], 3 * 64); /* a fourth of 256 keys, to three others */
    ck_assert_int_eq(ffa_dispatch_report_get(dispatch, &report, loads, NULL), FFA_OK);
    ck_assert_int_eq(report.total.received_network, 8 * 256);
    ck_assert_int_eq(report.total.received_relayed, 8 * 3 * 64);
    transfer_tables_finish(&t);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- arguments ---- */

static ffa_mask *causal_mask(int64_t tokens)
{
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_causal(&mask, &(ffa_mask_shape){ tokens, tokens }, NULL), FFA_OK);
    return mask;
}

static const int64_t cu_short[] = { 0, 10, 50 }, cu_empty[] = { 0, 10, 10, 64 };

static const struct {
    ffa_status status;
    const char *message;
    ffa_topology topology;
    ffa_dispatch_opts opts;
    int32_t mask_count;
} bad_rows[] = {
    { FFA_INVALID, "topology: rank_count is 0, not in [1, 4096]", { 0, 0 }, { 0 }, 1 },
    { FFA_INVALID, "topology: rank_count is -3, not in [1, 4096]", { -3, 0 }, { 0 }, 1 },
    { FFA_INVALID, "topology: rank_count is 4097, not in [1, 4096]", { 4097, 0 }, { 0 }, 1 },
    { FFA_INVALID, "topology: ranks_per_node is -1, not 0 or more", { 2, -1 }, { 0 }, 1 },
    { FFA_INVALID, "topology: rank_count is 65, there are 64 chunks", { 65, 0 }, { 0 }, 1 },
    { FFA_INVALID, "mask_count is 0, not in [1, 64]", { 2, 0 }, { 0 }, 0 },
    { FFA_INVALID, "algorithm is 5, not in [0, 4]", { 2, 0 }, { .algorithm = 5 }, 1 },
    { FFA_INVALID, "chunk_tokens is -8, not 0 or more", { 2, 0 }, { .chunk_tokens = -8 }, 1 },
    { FFA_INVALID,
      "topology: rank_count is 4, there are 2 chunks",
      { 4, 0 },
      { .chunk_tokens = 32, .flags = FFA_DISPATCH_CHUNK_EXACT },
      1 },
    { FFA_INVALID, "chunk_count is 2, cu_chunks is NULL", { 2, 0 }, { .chunk_count = 2 }, 1 },
    { FFA_INVALID, "chunk_count is 0, cu_chunks is given", { 2, 0 }, { .cu_chunks = cu_short }, 1 },
    { FFA_INVALID,
      "cu_chunks goes from 0 to 50, not from 0 to 64",
      { 2, 0 },
      { .cu_chunks = cu_short, .chunk_count = 2 },
      1 },
    { FFA_INVALID,
      "cu_chunks[1] is 10, cu_chunks[2] 10: a chunk holds a token",
      { 2, 0 },
      { .cu_chunks = cu_empty, .chunk_count = 3 },
      1 },
    { FFA_INVALID,
      "chunk_tokens is 8, cu_chunks is given, too",
      { 2, 0 },
      { .cu_chunks = cu_empty, .chunk_count = 3, .chunk_tokens = 8 },
      1 },
    { FFA_INVALID,
      "slack_permille is 1001, not in [0, 1000]",
      { 2, 0 },
      { .slack_permille = 1001 },
      1 },
    { FFA_INVALID, "swap_max is -2, not -1 or more", { 2, 0 }, { .swap_max = -2 }, 1 },
    { FFA_UNSUPPORTED, "flags is 0x8, known are 0x3", { 2, 0 }, { .flags = 8 }, 1 },
    { FFA_UNSUPPORTED,
      "an exact dispatch of 64 chunks, at most 24",
      { 8, 0 },
      { .algorithm = FFA_DISPATCH_EXACT, .flags = FFA_DISPATCH_CHUNK_EXACT },
      1 },
};

START_TEST(bad_arguments_are_named)
{
    ffa_mask *mask = causal_mask(64);
    const ffa_dispatch_mask one = { mask, 1 };
    ffa_dispatch_opts opts = bad_rows[_i].opts;
    ffa_dispatch *dispatch = (ffa_dispatch *)mask;
    ffa_error err = { FFA_OK, 0, "" };

    opts.struct_size = (uint32_t)sizeof opts;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, bad_rows[_i].mask_count,
                                         &bad_rows[_i].topology, &opts, &err),
                     bad_rows[_i].status);
    ck_assert_str_eq(err.message, bad_rows[_i].message);
    ck_assert_ptr_null(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

static void expect(const ffa_dispatch_mask *masks, int32_t count, ffa_status status,
                   const char *message)
{
    const ffa_topology topology = { 2, 0 };
    ffa_dispatch *dispatch;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(ffa_dispatch_create(&dispatch, masks, count, &topology, NULL, &err), status);
    ck_assert_str_eq(err.message, message);
    ck_assert_ptr_null(dispatch);
}

START_TEST(bad_masks_are_named)
{
    const ffa_slice none = { 0, 0, 0, 0, 0, 0 };
    ffa_mask *small = causal_mask(64), *large = causal_mask(65), *cross, *empty, *huge;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_dispatch *dispatch;

    ck_assert_int_eq(ffa_mask_full(&cross, &(ffa_mask_shape){ 64, 65 }, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_full(&huge, &(ffa_mask_shape){ INT32_MAX, INT32_MAX }, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_create(&empty, &(ffa_mask_shape){ 64, 64 }, &none, 1, NULL), FFA_OK);
    expect(NULL, 1, FFA_INVALID, "masks is NULL");
    expect((ffa_dispatch_mask[]){ { small, 1 }, { NULL, 1 } }, 2, FFA_INVALID,
           "masks[1]: mask is NULL");
    expect((ffa_dispatch_mask[]){ { small, -1 } }, 1, FFA_INVALID,
           "masks[0]: weight is -1, not 0 or more");
    expect((ffa_dispatch_mask[]){ { small, 1 }, { large, 1 } }, 2, FFA_INVALID,
           "masks[1] has 65 tokens, masks[0] 64");
    expect((ffa_dispatch_mask[]){ { cross, 1 } }, 1, FFA_INVALID,
           "masks[0]: seqlen_q is 64, seqlen_k 65: chunks hold queries and their keys");
    expect((ffa_dispatch_mask[]){ { huge, 3 } }, 1, FFA_UNSUPPORTED,
           "the area of all masks is a load above 2^62");
    expect((ffa_dispatch_mask[]){ { huge, INT64_MAX } }, 1, FFA_UNSUPPORTED,
           "masks[0]: a load above 2^62");
    ck_assert_int_eq(
        ffa_dispatch_create(&dispatch, &(ffa_dispatch_mask){ small, 1 }, 1, NULL, NULL, &err),
        FFA_INVALID);
    ck_assert_str_eq(err.message, "topology is NULL");
    ck_assert_int_eq(ffa_dispatch_create(NULL, NULL, 0, NULL, NULL, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "out is NULL");
    ck_assert_int_eq(ffa_dispatch_report_get(NULL, NULL, NULL, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "dispatch is NULL");
    ck_assert_int_eq(ffa_dispatch_chunk_count(NULL), 0);
    ck_assert_str_eq(ffa_dispatch_digest(NULL), "");
    ffa_dispatch_destroy(NULL);
    ffa_mask_destroy(small);
    ffa_mask_destroy(large);
    ffa_mask_destroy(cross);
    ffa_mask_destroy(empty);
    ffa_mask_destroy(huge);
}
END_TEST

/* A mask without cells is dispatched by every algorithm: as many chunks to each rank, no load. */
START_TEST(no_cells_are_dispatched)
{
    const ffa_topology topology = { 4, 2 };
    ffa_mask *empty;

    ck_assert_int_eq(ffa_mask_create(&empty, &(ffa_mask_shape){ 64, 64 }, NULL, 0, NULL), FFA_OK);
    for (int32_t a = FFA_DISPATCH_AFFINITY; a <= FFA_DISPATCH_EXACT; a++) {
        const ffa_dispatch_mask one = { empty, 1 };
        ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
        ffa_dispatch_report report = FFA_DISPATCH_REPORT_INIT;
        ffa_dispatch *dispatch;
        int64_t count;

        opts.algorithm = a;
        opts.chunk_tokens = 4;
        opts.flags = FFA_DISPATCH_CHUNK_EXACT;
        ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, &opts, NULL), FFA_OK);
        ck_assert_int_eq(ffa_dispatch_report_get(dispatch, &report, NULL, NULL), FFA_OK);
        ck_assert_int_eq(report.total.load + report.total.received_node, 0);
        ck_assert(report.load_imbalance == 0);
        for (int32_t r = 0; r < 4; r++) {
            (void)ffa_dispatch_rank_chunks(dispatch, r, &count);
            ck_assert_int_eq(count, 4);
        }
        ffa_dispatch_destroy(dispatch);
    }
    ffa_mask_destroy(empty);
}
END_TEST

/* Loads of ranks are written at the distance of the caller's struct. */
START_TEST(loads_have_the_callers_size)
{
    struct longer {
        ffa_dispatch_load load;
        int64_t more;
    } longer[4] = { { { .struct_size = (uint32_t)sizeof *longer }, -1 } };
    ffa_mask *mask = causal_mask(64);
    const ffa_topology topology = { 4, 0 };
    ffa_dispatch_report report = FFA_DISPATCH_REPORT_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_dispatch *dispatch;
    int64_t sum = 0;

    ck_assert_int_eq(
        ffa_dispatch_create(&dispatch, &(ffa_dispatch_mask){ mask, 1 }, 1, &topology, NULL, NULL),
        FFA_OK);
    ck_assert_int_eq(ffa_dispatch_report_get(dispatch, &report, &longer[0].load, NULL), FFA_OK);
    for (int32_t r = 0; r < 4; r++) {
        sum += longer[r].load.area;
        ck_assert_int_eq(longer[r].load.struct_size, sizeof *longer);
        ck_assert_int_eq(longer[r].more, 0);
    }
    ck_assert_int_eq(sum, 64 * 65 / 2);
    ck_assert_int_eq(report.total.area, sum);
    longer[0].load.struct_size = 12;
    ck_assert_int_eq(ffa_dispatch_report_get(dispatch, &report, &longer[0].load, &err),
                     FFA_INVALID);
    ck_assert_str_eq(err.message,
                     "struct_size is 12, not a multiple of 8: start from the _INIT macro");
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- every allocation fails once ---- */

static ffa_status everything(const ffa_mask *mask, ffa_error *err)
{
    const ffa_dispatch_mask one = { mask, 1 };
    const ffa_topology topology = { 6, 2 };
    ffa_dispatch_report report = FFA_DISPATCH_REPORT_INIT;
    struct transfer_tables t = { 0 };
    struct rank_needs_input in;
    ffa_dispatch *dispatch = NULL;
    ffa_status rc = ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, err);

    ck_assert_int_eq(dispatch != NULL, rc == FFA_OK);
    FFA_TRY(rc);
    FFA_TRY(ffa_dispatch_report_get(dispatch, &report, NULL, err));
    in = (struct rank_needs_input){ &dispatch->layout, &dispatch->layout, &dispatch->needs,
                                    dispatch->topology };
    rc = transfer_tables_build(&t, &in, err);
out:
    transfer_tables_finish(&t);
    ffa_dispatch_destroy(dispatch);
    return rc;
}

START_TEST(every_allocation_may_fail)
{
    ffa_mask *mask;
    ffa_status rc;
    long nth;

    ck_assert_int_eq(ffa_mask_parse(&mask, "varlen-causal:300,40,500,7,90,200", NULL), FFA_OK);
    for (nth = 1;; nth++) {
        ffa_error err = { FFA_OK, 0, "" };

        fault_arm(FAULT_ALLOC, nth);
        rc = everything(mask, &err);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_msg(!strncmp(err.message, "no memory for ", 14), "%s", err.message);
    }
    ck_assert_int_eq(rc, FFA_OK);
    ck_assert_int_gt(nth, 50);
    ffa_mask_destroy(mask);
}
END_TEST

/* Key chunks: the queries' own, one that every rank has, or chunks that are shared out. */
START_TEST(key_chunks_say_who_has_them)
{
    const ffa_mask_shape cross = { 256, 1024 };
    const ffa_topology topology = { 4, 0 };
    const int32_t modes[] = { FFA_KEYS_WITH_QUERIES, FFA_KEYS_REPLICATED, FFA_KEYS_DISPATCHED };
    ffa_dispatch_chunk none = FFA_DISPATCH_CHUNK_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    for (int m = 0; m < 3; m++) {
        const ffa_mask_shape square = { 1024, 1024 };
        ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
        ffa_dispatch_mask one = { NULL, 1 };
        ffa_dispatch *dispatch;
        ffa_mask *mask;
        int64_t at = 0, rows[4] = { 0 };

        opts.keys = modes[m];
        ck_assert_int_eq(ffa_mask_causal(&mask, m ? &cross : &square, NULL), FFA_OK);
        one.mask = mask;
        ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, &opts, NULL), FFA_OK);
        for (int64_t c = 0; c < ffa_dispatch_key_chunk_count(dispatch); c++) {
            ffa_dispatch_chunk chunk = FFA_DISPATCH_CHUNK_INIT;

            ck_assert_int_eq(ffa_dispatch_key_chunk_get(dispatch, c, &chunk, NULL), FFA_OK);
            ck_assert_int_eq(chunk.begin, at);
            ck_assert_int_eq(chunk.rank < 0, modes[m] == FFA_KEYS_REPLICATED);
            for (int32_t r = 0; r < 4; r++)
                if (chunk.rank < 0 || chunk.rank == r) {
                    ck_assert_int_eq(chunk.local_begin, rows[r]);
                    rows[r] += chunk.end - chunk.begin;
                }
            at = chunk.end;
        }
        ck_assert_int_eq(at, 1024);
        for (int32_t r = 0; r < 4; r++)
            ck_assert_int_eq(rows[r], ffa_dispatch_key_rows(dispatch, r));
        ck_assert_int_eq(ffa_dispatch_key_chunk_get(dispatch, -1, &none, &err), FFA_INVALID);
        ck_assert_int_eq(ffa_dispatch_key_chunk_get(dispatch, 1 << 20, &none, &err), FFA_INVALID);
        ck_assert_ptr_nonnull(strstr(err.message, "index is 1048576, not in [0, "));
        ffa_dispatch_destroy(dispatch);
        ffa_mask_destroy(mask);
    }
    ck_assert_int_eq(ffa_dispatch_key_chunk_count(NULL), 0);
    ck_assert_int_eq(ffa_dispatch_key_chunk_get(NULL, 0, &none, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "dispatch is NULL");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dispatch");
    TCase *tc = tcase_create("dispatch");
    int failed;

    cases = parallel_cases_load();
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, solvers_of_the_reference);
    tcase_add_test(tc, zigzag_turns_at_the_ends);
    tcase_add_test(tc, exact_is_the_least_of_all);
    tcase_add_test(tc, counts_and_bounds_of_min_heap);
    tcase_add_test(tc, exact_says_where_it_ends);
    tcase_add_test(tc, areas_of_the_reference);
    tcase_add_test(tc, automatic_chunks_of_the_reference);
    tcase_add_loop_test(tc, chunks_have_the_size, 0, sizeof chunk_rows / sizeof *chunk_rows);
    tcase_add_test(tc, masks_weigh_as_they_are_told);
    tcase_add_test(tc, host_and_remote_of_the_reference);
    tcase_add_test(tc, pipelines_of_the_reference);
    tcase_add_test(tc, relays_share_the_work);
    tcase_add_loop_test(tc, bad_arguments_are_named, 0, sizeof bad_rows / sizeof *bad_rows);
    tcase_add_test(tc, bad_masks_are_named);
    tcase_add_test(tc, key_chunks_say_who_has_them);
    tcase_add_test(tc, no_cells_are_dispatched);
    tcase_add_test(tc, loads_have_the_callers_size);
    tcase_add_test(tc, every_allocation_may_fail);
    suite_add_tcase(suite, tc);
    failed = suite_run(suite);
    json_decref(cases);
    return failed;
}
