/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch and transfer tables on random masks, against counting cell by cell: every attended cell
 * is computed once, by the rank of its row; every key a rank needs and does not own arrives once
 * and no other does; tables of senders and receivers are each other's transposes; loads and counts
 * keep their bounds; every rank computes the same. A failure prints the seed.
 */
#include "mask/mask.h"
#include "parallel/dispatch/dispatch.h"
#include "parallel/dispatch/solve.h"
#include "parallel/plan/spans.h"
#include "support/parallel_cases.h"
#include "support/suite.h"
#include "support/transfer_tables.h"

#include <check.h>
#include <stdio.h>

enum { TOKENS_MAX_HERE = 96, RANKS_HERE = 9, RANDOM_MASKS = 3000 };

/* One case: a mask, its dispatch, and what every rank attends, by cells. */
struct trial {
    uint64_t seed;
    int64_t tokens;
    int32_t ranks, width;
    int64_t slack_permille;
    ffa_mask *mask;
    ffa_dispatch *dispatch;
    bool attends[TOKENS_MAX_HERE][TOKENS_MAX_HERE];
    bool needs[RANKS_HERE][TOKENS_MAX_HERE]; /* own keys, too */
};

/* As ck_assert_msg, without its cost where the claim holds: some are made cell by cell. */
#define CHECK(trial, claim)                                                                        \
    do {                                                                                           \
        if (!(claim))                                                                              \
            ck_abort_msg("seed %llu: %s", (unsigned long long)(trial)->seed, #claim);              \
    } while (0)

static int32_t rank_of(const struct trial *trial, int64_t token)
{
    const struct parts parts = layout_parts(&trial->dispatch->layout);

    return trial->dispatch->layout.rank_of[parts_find(&parts, token)];
}

/* The slices of the mask in another order: the same mask. */
static ffa_mask *turned(const ffa_mask *mask)
{
    const ffa_slice_list list = ffa_mask_slices(mask, 0);
    ffa_slice *slices = calloc((size_t)list.count + 1, sizeof *slices);
    ffa_mask *out;

    for (int64_t i = 0; i < list.count; i++)
        slices[i] = list.slices[list.count - 1 - i];
    ck_assert_int_eq(ffa_mask_create(&out, &mask->shape, slices, list.count, NULL), FFA_OK);
    free(slices);
    return out;
}

static void draw_options(struct rng *rng, ffa_dispatch_opts *opts)
{
    static const int32_t algorithms[] = { FFA_DISPATCH_AFFINITY, FFA_DISPATCH_AFFINITY,
                                          FFA_DISPATCH_MIN_HEAP, FFA_DISPATCH_SEQUENTIAL,
                                          FFA_DISPATCH_ZIGZAG };

    opts->algorithm = algorithms[rng_range(rng, 0, 4)];
    opts->chunk_tokens = rng_range(rng, 1, 9);
    opts->flags = FFA_DISPATCH_CHUNK_EXACT;
    if (rng_range(rng, 0, 3) == 0)
        opts->flags |= FFA_DISPATCH_BALANCE_TILES;
    opts->slack_permille = (int32_t)rng_range(rng, 1, 300);
    opts->swap_max = rng_range(rng, -1, 1);
}

/* False where the mask attends nothing. */
static bool draw(struct trial *trial, uint64_t seed)
{
    struct rng rng = { seed };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_dispatch_mask one = { NULL, rng_range(&rng, 0, 3) };
    ffa_topology topology;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_dispatch *again;
    ffa_mask *other;
    ffa_status rc;
    int64_t chunks;

    *trial = (struct trial){ .seed = seed, .tokens = rng_range(&rng, 1, TOKENS_MAX_HERE) };
    draw_options(&rng, &opts);
    chunks = (trial->tokens + opts.chunk_tokens - 1) / opts.chunk_tokens;
    trial->ranks = (int32_t)rng_range(&rng, 1, chunks < RANKS_HERE ? chunks : RANKS_HERE);
    trial->width = (int32_t)rng_range(&rng, 0, trial->ranks);
    trial->slack_permille = opts.slack_permille;
    topology = (ffa_topology){ trial->ranks, trial->width };
    trial->width = trial->width ? trial->width : trial->ranks;
    trial->mask = parallel_random_mask(&rng, trial->tokens, 12);
    one.mask = trial->mask;
    rc = ffa_dispatch_create(&trial->dispatch, &one, 1, &topology, &opts, &err);
    ck_assert_msg(rc == FFA_OK, "seed %llu: %s", (unsigned long long)seed, err.message);

    other = turned(trial->mask);
    one.mask = other;
    ck_assert_int_eq(ffa_dispatch_create(&again, &one, 1, &topology, &opts, NULL), FFA_OK);
    ck_assert_str_eq(ffa_dispatch_digest(trial->dispatch), ffa_dispatch_digest(again));
    ck_assert_uint_eq(strlen(ffa_dispatch_digest(again)), 32);
    ffa_dispatch_destroy(again);
    ffa_mask_destroy(other);
    return true;
}

static void find_cells(struct trial *trial)
{
    const ffa_slice_list list = ffa_mask_slices(trial->mask, 0);

    for (int64_t q = 0; q < trial->tokens; q++)
        for (int64_t k = 0; k < trial->tokens; k++) {
            for (int64_t i = 0; i < list.count && !trial->attends[q][k]; i++)
                trial->attends[q][k] = slice_has(&list.slices[i], q, k);
            if (trial->attends[q][k])
                trial->needs[rank_of(trial, q)][k] = true;
        }
}

static void check_loads(const struct trial *trial)
{
    const ffa_dispatch *d = trial->dispatch;
    int64_t of_rank[RANKS_HERE] = { 0 }, rows[RANKS_HERE] = { 0 }, sum = 0, largest = 0, most = 0;

    for (int64_t c = 0; c < d->layout.count; c++) {
        ffa_dispatch_chunk chunk = FFA_DISPATCH_CHUNK_INIT;
        int64_t area = 0;

        ck_assert_int_eq(ffa_dispatch_chunk_get(d, c, &chunk, NULL), FFA_OK);
        for (int64_t q = chunk.begin; q < chunk.end; q++)
            for (int64_t k = 0; k < trial->tokens; k++)
                area += trial->attends[q][k];
        CHECK(trial, chunk.area % (area ? area : 1) == 0 && (chunk.area == 0) == (area == 0));
        CHECK(trial, d->visited[c] >= d->area[c]);
        CHECK(trial, chunk.local_begin == rows[chunk.rank]);
        rows[chunk.rank] += chunk.end - chunk.begin;
        of_rank[chunk.rank] += chunk.load;
        sum += chunk.load;
        largest = chunk.load > largest ? chunk.load : largest;
    }
    for (int32_t r = 0; r < trial->ranks; r++) {
        int64_t count;

        most = of_rank[r] > most ? of_rank[r] : most;
        (void)ffa_dispatch_rank_chunks(d, r, &count);
        CHECK(trial, count == d->layout.count / trial->ranks ||
                         count == d->layout.count / trial->ranks + 1);
        CHECK(trial, rows[r] == d->layout.rank_tokens[r]);
    }
    CHECK(trial, most * trial->ranks >= sum);
    if (d->algorithm == FFA_DISPATCH_MIN_HEAP)
        CHECK(trial, most * trial->ranks <= sum + largest * trial->ranks);
    if (d->algorithm == FFA_DISPATCH_AFFINITY) {
        const struct solve_input in = { d->load, d->layout.count, trial->ranks };
        int32_t by_heap[TOKENS_MAX_HERE];

        ck_assert_int_eq(solve_min_heap(by_heap, &in, NULL), FFA_OK);
        CHECK(trial, most * trial->ranks * 1000 <= sum * (1000 + trial->slack_permille) ||
                         most <= solve_largest_load(by_heap, &in, of_rank));
    }
}

/* Every key lies in one piece, of its owner, with the receivers that need it. */
static void check_pieces(const struct trial *trial, const struct transfer_tables *t)
{
    int64_t at = 0;

    for (int64_t p = 0; p < t->piece_count; p++) {
        const struct table_piece *piece = &t->pieces[p];

        CHECK(trial, piece->begin == at && piece->begin < piece->end);
        for (; at < piece->end; at++) {
            int32_t next = 0;

            CHECK(trial, rank_of(trial, at) == piece->owner);
            CHECK(trial, layout_row(&trial->dispatch->layout, at) ==
                             piece->source_row + at - piece->begin);
            for (int32_t r = 0; r < trial->ranks; r++) {
                const bool is_listed =
                    next < piece->receiver_count && t->receivers[piece->receiver_begin + next] == r;

                CHECK(trial, is_listed == (trial->needs[r][at] && r != piece->owner));
                next += is_listed;
            }
            CHECK(trial, next == piece->receiver_count);
        }
        if (p > 0 && t->pieces[p - 1].owner == piece->owner) /* no cut without a reason */
            CHECK(trial, t->pieces[p - 1].receiver_count != piece->receiver_count ||
                             memcmp(t->receivers + t->pieces[p - 1].receiver_begin,
                                    t->receivers + piece->receiver_begin,
                                    (size_t)piece->receiver_count * sizeof *t->receivers));
    }
    CHECK(trial, at == trial->tokens);
}

/* What senders list is what receivers list. */
static void check_transpose(const struct trial *trial, const struct transfer_tables *t)
{
    int64_t sent = 0, received = t->receive_begin[trial->ranks];

    for (int32_t s = 0; s < trial->ranks; s++)
        for (int64_t i = t->send_begin[s]; i < t->send_begin[s + 1]; i++) {
            const struct table_piece *piece = &t->pieces[t->sends[i]];

            CHECK(trial, piece->owner == s);
            CHECK(trial, i == t->send_begin[s] || t->sends[i - 1] < t->sends[i]);
            for (int32_t d = 0; d < piece->receiver_count; d++) {
                const int32_t r = t->receivers[piece->receiver_begin + d];
                int64_t times = 0;

                for (int64_t j = t->receive_begin[r]; j < t->receive_begin[r + 1]; j++)
                    times += t->receives[j].piece == t->sends[i];
                CHECK(trial, times == 1);
                sent++;
            }
        }
    CHECK(trial, sent == received);
    CHECK(trial, t->send_begin[trial->ranks] == t->piece_count);
}

/* Run the copies on token numbers; -1 is poison. */
static void check_delivery(const struct trial *trial, const struct transfer_tables *t,
                           bool over_relays)
{
    const struct layout *layout = &trial->dispatch->layout;
    int64_t local[RANKS_HERE][TOKENS_MAX_HERE], got[RANKS_HERE][TOKENS_MAX_HERE];
    struct table_copy copies[TOKENS_MAX_HERE];
    int64_t crossings = 0, wanted = 0;

    memset(got, 0xff, sizeof got);
    for (int64_t k = 0; k < trial->tokens; k++)
        local[rank_of(trial, k)][layout_row(layout, k)] = k;
    for (int32_t relayed = 0; relayed < 2; relayed++)
        for (int32_t r = 0; r < trial->ranks; r++) {
            const int64_t count = transfer_tables_copies(copies, t, r, over_relays);

            for (int64_t c = 0; c < count; c++) {
                const struct table_copy *copy = &copies[c];

                if (copy->is_relayed != relayed)
                    continue;
                CHECK(trial, over_relays || !relayed);
                CHECK(trial, !relayed || copy->source / trial->width == r / trial->width);
                if (copy->source / trial->width != r / trial->width)
                    crossings += copy->rows;
                for (int64_t i = 0; i < copy->rows; i++) {
                    const int64_t token = relayed ? got[copy->source][copy->source_row + i]
                                                  : local[copy->source][copy->source_row + i];

                    CHECK(trial, token >= 0 && got[r][copy->row + i] == -1);
                    got[r][copy->row + i] = token;
                }
            }
        }
    for (int32_t r = 0; r < trial->ranks; r++) {
        int64_t row = 0;

        for (int64_t k = 0; k < trial->tokens; k++)
            if (trial->needs[r][k] && rank_of(trial, k) != r)
                CHECK(trial, got[r][row++] == k);
        CHECK(trial, row == t->receive_rows[r]);
    }
    for (int64_t k = 0; k < trial->tokens; k++) /* by node, or by rank */
        for (int32_t n = 0; n * trial->width < trial->ranks; n++) {
            int64_t ranks = 0;

            for (int32_t r = n * trial->width; r < (n + 1) * trial->width && r < trial->ranks; r++)
                ranks += trial->needs[r][k] && rank_of(trial, k) / trial->width != n;
            wanted += over_relays ? ranks > 0 : ranks;
        }
    CHECK(trial, crossings == wanted);
}

/* What one rank receives, by token and in its ordered rows: its own node's keys first. */
static void check_receives(const struct trial *trial, const struct rank_needs *needs)
{
    for (int32_t r = 0; r < trial->ranks; r++) {
        int64_t row[TOKENS_MAX_HERE], next = 0;
        struct rank_receives all = { 0 };

        for (int near = 1; near >= 0; near--) {
            for (int64_t k = 0; k < trial->tokens; k++)
                if (trial->needs[r][k] && rank_of(trial, k) != r &&
                    (rank_of(trial, k) / trial->width == r / trial->width) == (near == 1))
                    row[k] = next++;
            CHECK(trial, next == (near ? needs->near_rows[r] : needs->rows[r]));
        }
        ck_assert_int_eq(rank_receives_build(&all, needs, r, NULL), FFA_OK);
        next = 0;
        for (int64_t i = 0; i < all.count; i++)
            for (int64_t k = all.at[i].begin; k < all.at[i].end; k++, next++) {
                CHECK(trial, trial->needs[r][k] && rank_of(trial, k) == all.at[i].owner);
                CHECK(trial, row[k] == all.at[i].row + k - all.at[i].begin);
                CHECK(trial,
                      layout_row(needs->keys, k) == all.at[i].source_row + k - all.at[i].begin);
            }
        CHECK(trial, next == needs->rows[r]);
        for (int32_t s = 0; s < trial->ranks; s++) {
            struct rank_receives some = { 0 };
            int64_t at = 0;

            ck_assert_int_eq(rank_receives_from(&some, needs, r, s, NULL), FFA_OK);
            for (int64_t i = 0; i < all.count; i++)
                if (all.at[i].owner == s) {
                    CHECK(trial, at < some.count);
                    CHECK(trial, !memcmp(&all.at[i], &some.at[at++], sizeof *some.at));
                }
            CHECK(trial, at == some.count);
            rank_receives_finish(&some);
        }
        rank_receives_finish(&all);
    }
}

/* Count a band's cells where they belong. keys: token of each key row of the buffer. */
static void count_cells(const struct trial *trial, const struct bands *bands, const int64_t *keys,
                        uint8_t cells[TOKENS_MAX_HERE][TOKENS_MAX_HERE])
{
    for (int64_t b = 0; b < bands->count; b++) {
        const struct band *band = &bands->at[b];

        CHECK(trial, band_area(band) > 0);
        for (int64_t q = band->q_begin; q < band->q_end; q++)
            for (int64_t k = band->k_begin; k < band->k_end; k++)
                if (band->lo <= k - q && k - q <= band->hi)
                    cells[q][keys[k]]++;
    }
}

/* Bands cut to the spans of every rank's buffers, own keys and received ones, have each cell once;
 * keys that all rows of a chunk attend are one band of each buffer, with one more at either end. */
static void check_cells(const struct trial *trial, const struct rank_needs *needs)
{
    static uint8_t cells[TOKENS_MAX_HERE][TOKENS_MAX_HERE];
    const struct layout *layout = needs->keys;
    const struct bands *lists = &trial->dispatch->lists[0];

    memset(cells, 0, sizeof cells);
    for (int32_t r = 0; r < trial->ranks; r++) {
        struct span at[2][TOKENS_MAX_HERE];
        struct spans spans[2] = { { at[0], 0 }, { at[1], 0 } };
        int64_t keys[2][TOKENS_MAX_HERE], rows[2] = { 0, 0 };

        for (int64_t k = 0; k < trial->tokens; k++) {
            const int which = rank_of(trial, k) != r;

            if (which && !trial->needs[r][k])
                continue;
            spans_add(&spans[which], (struct span){ k, k + 1, rows[which] });
            keys[which][rows[which]++] = k;
        }
        for (int64_t i = layout->rank_begin[r]; i < layout->rank_begin[r + 1]; i++)
            for (int64_t b = 0; b < lists->count; b++) {
                const int64_t chunk = layout->rank_chunks[i];
                struct band band;

                if (!band_cut_q(&band, &lists->at[b], layout->bounds[chunk],
                                layout->bounds[chunk + 1]))
                    continue;
                for (int which = 0; which < 2; which++) {
                    struct bands cut = { 0 };

                    ck_assert_int_eq(spans_cut(&cut, &band, &spans[which], NULL), FFA_OK);
                    count_cells(trial, &cut, keys[which], cells);
                    if (band_area(&band) == /* a box */
                        (band.q_end - band.q_begin) * (band.k_end - band.k_begin))
                        CHECK(trial, cut.count <= 3);
                    bands_finish(&cut);
                }
            }
    }
    for (int64_t q = 0; q < trial->tokens; q++)
        for (int64_t k = 0; k < trial->tokens; k++)
            CHECK(trial, cells[q][k] == trial->attends[q][k]);
}

static void check_report(const struct trial *trial, const struct transfer_tables *t)
{
    ffa_dispatch_report report = FFA_DISPATCH_REPORT_INIT;
    ffa_dispatch_load ranks[RANKS_HERE] = { FFA_DISPATCH_LOAD_INIT };
    int64_t received = 0;

    ck_assert_int_eq(ffa_dispatch_report_get(trial->dispatch, &report, ranks, NULL), FFA_OK);
    for (int32_t r = 0; r < trial->ranks; r++) {
        CHECK(trial, ranks[r].received_node + ranks[r].received_network == t->receive_rows[r]);
        CHECK(trial, ranks[r].received_relayed <= ranks[r].received_network);
        received += t->receive_rows[r];
    }
    CHECK(trial, report.total.tokens == trial->tokens);
    CHECK(trial, report.total.sent_node + report.total.sent_network == received);
    CHECK(trial, report.total.sent_node == report.total.received_node);
    CHECK(trial, report.load_imbalance >= 0 && report.visited_imbalance >= 0);
}

static void check_trial(uint64_t seed)
{
    static struct trial trial;
    struct rank_needs_input in;
    struct transfer_tables t;

    if (!draw(&trial, seed))
        return;
    find_cells(&trial);
    in = (struct rank_needs_input){ &trial.dispatch->layout, &trial.dispatch->layout,
                                    &trial.dispatch->needs, trial.dispatch->topology };
    ck_assert_int_eq(transfer_tables_build(&t, &in, NULL), FFA_OK);
    check_loads(&trial);
    check_pieces(&trial, &t);
    check_transpose(&trial, &t);
    check_delivery(&trial, &t, false);
    check_delivery(&trial, &t, true);
    check_receives(&trial, &t.needs);
    check_cells(&trial, &t.needs);
    check_report(&trial, &t);
    transfer_tables_finish(&t);
    ffa_dispatch_destroy(trial.dispatch);
    ffa_mask_destroy(trial.mask);
}

enum { PARTS = 3 };

START_TEST(random_masks)
{
    for (uint64_t seed = 1 + (uint64_t)_i; seed <= RANDOM_MASKS; seed += PARTS)
        check_trial(seed);
}
END_TEST

/* ---- quality: seeded documents, what affinity saves beside min-heap ---- */

/* Documents of random lengths, many short and few long; at least one token each. */
static ffa_mask *documents(uint64_t seed, int64_t tokens)
{
    struct rng rng = { seed };
    int64_t cu[4096] = { 0 }, count = 0;
    ffa_mask *mask;

    while (cu[count] < tokens) {
        int64_t length = rng_range(&rng, 64, 256);

        length <<= rng_range(&rng, 0, 7);
        cu[count + 1] = cu[count] + length < tokens ? cu[count] + length : tokens;
        count++;
    }
    ck_assert_int_eq(ffa_mask_varlen_causal(
                         &mask, &(ffa_documents){ .cu_q = cu, .document_count = count }, NULL),
                     FFA_OK);
    return mask;
}

static void report_of(ffa_dispatch_report *report, const ffa_mask *mask, int32_t ranks,
                      int32_t algorithm)
{
    const ffa_dispatch_mask one = { mask, 1 };
    const ffa_topology topology = { ranks, 8 };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_dispatch *dispatch;

    opts.algorithm = algorithm;
    *report = (ffa_dispatch_report)FFA_DISPATCH_REPORT_INIT;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, &opts, NULL), FFA_OK);
    ck_assert_int_eq(ffa_dispatch_report_get(dispatch, report, NULL, NULL), FFA_OK);
    ffa_dispatch_destroy(dispatch);
}

static int64_t received(const ffa_dispatch_report *report)
{
    return report->total.received_node + report->total.received_network;
}

START_TEST(affinity_saves_tokens)
{
    static const int32_t worlds[] = { 8, 16, 32, 64 };
    const int32_t ranks = worlds[_i];
    int64_t heap = 0, affine = 0, heap_network = 0, affine_network = 0;
    double worst = 0;

    for (uint64_t seed = 1; seed <= 4; seed++) {
        ffa_mask *mask = documents(seed, (int64_t)8192 * ranks);
        ffa_dispatch_report a, b;

        report_of(&a, mask, ranks, FFA_DISPATCH_MIN_HEAP);
        report_of(&b, mask, ranks, FFA_DISPATCH_AFFINITY);
        ck_assert_int_le(received(&b), received(&a));
        heap += received(&a);
        affine += received(&b);
        heap_network += a.total.received_network - a.total.received_relayed;
        affine_network += b.total.received_network - b.total.received_relayed;
        worst = b.load_imbalance > worst ? b.load_imbalance : worst;
        if (b.load_imbalance > .02)
            ck_assert(b.load_imbalance <= a.load_imbalance);
        ffa_mask_destroy(mask);
    }
    printf("%2d ranks: received %.2f times fewer, over the network %.2f; imbalance %.2f %%\n",
           ranks, (double)heap / (double)affine,
           affine_network ? (double)heap_network / (double)affine_network : 1., 100 * worst);
    ck_assert_msg((double)heap >= 1.4 * (double)affine, "%lld by min-heap, %lld by affinity",
                  (long long)heap, (long long)affine);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dist properties");
    TCase *tc = tcase_create("dist properties");

    tcase_set_timeout(tc, 100);
    tcase_add_loop_test(tc, random_masks, 0, PARTS);
    tcase_add_loop_test(tc, affinity_saves_tokens, 0, 4);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
