/* SPDX-License-Identifier: Apache-2.0
 *
 * Planning: the time to build the normal form and the tile plans of both passes, and the share of
 * visited cells that is attended. One thread, no GPU.
 *
 *   bench_plan [--json] [--masks FILE]
 *
 * Times are the least and the median of several runs. A run builds the normal form and the forward
 * plan from the slices; backward plans (64 rows x 128 keys) are timed separately, without and with
 * ordered accumulation. FILE is tests/data/masks.json: for each of its masks and several tile
 * sizes, the blocks and the share of attended cells are reported.
 */
#include "tile/tile.h"

#include <jansson.h>
#include <stdio.h>

enum { RUNS = 15 };

/* ---- masks ---- */

struct slices {
    ffa_mask_shape shape;
    ffa_slice *at;
    int64_t count;
};

static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int compare_i64(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* `count` documents of random lengths over all tokens. */
static void documents(struct slices *out, int64_t count, int32_t type)
{
    int64_t *cuts = calloc((size_t)count + 1, sizeof *cuts);
    uint64_t state = 1;

    for (int64_t i = 1; i < count; i++)
        cuts[i] = (int64_t)(draw(&state) % (uint64_t)out->shape.seqlen_q);
    cuts[count] = out->shape.seqlen_q;
    qsort(cuts, (size_t)count + 1, sizeof *cuts, compare_i64);
    for (int64_t i = 0; i < count; i++)
        out->at[out->count++] = (ffa_slice){ cuts[i], cuts[i + 1], cuts[i], cuts[i + 1], type, 0 };
    free(cuts);
}

static void packed_causal(struct slices *out, int64_t count)
{
    documents(out, count, FFA_SLICE_CAUSAL);
}

static void packed_full(struct slices *out, int64_t count)
{
    documents(out, count, FFA_SLICE_FULL);
}

/* Blocks of 128 x 128; about `count` of them kept, the diagonal among them. */
static void block_sparse(struct slices *out, int64_t count)
{
    const int64_t side = 128, blocks = out->shape.seqlen_q / side;
    const uint64_t one_in = (uint64_t)(blocks * blocks / count);
    uint64_t state = 7;

    for (int64_t q = 0; q < blocks; q++)
        for (int64_t k = 0; k < blocks && out->count < count; k++)
            if (k == q || draw(&state) % one_in == 0)
                out->at[out->count++] =
                    (ffa_slice){ q * side, (q + 1) * side, k * side, (k + 1) * side, 0, 0 };
}

/* Every document attends itself and the first document. */
static void shared_prefix(struct slices *out, int64_t count)
{
    documents(out, count - 1, FFA_SLICE_CAUSAL);
    out->at[out->count++] =
        (ffa_slice){ out->at[0].q_end, out->shape.seqlen_q, 0, out->at[0].q_end, 0, 0 };
}

/* Slices of any type, short enough that a row is in about ten. */
static void overlapping(struct slices *out, int64_t count)
{
    uint64_t state = 3;

    for (int64_t i = 0; i < count; i++) {
        const int64_t longest = out->shape.seqlen_q * 20 / count;
        const int64_t rows = 1 + (int64_t)(draw(&state) % (uint64_t)longest);
        const int64_t keys = 1 + (int64_t)(draw(&state) % (uint64_t)longest);
        const int64_t q = (int64_t)(draw(&state) % (uint64_t)(out->shape.seqlen_q - rows));
        const int64_t k = (int64_t)(draw(&state) % (uint64_t)(out->shape.seqlen_k - keys));

        out->at[out->count++] =
            (ffa_slice){ q, q + rows, k, k + keys, (int32_t)(draw(&state) % 4), 0 };
    }
}

static const struct {
    const char *name;
    int64_t tokens, slices;
    void (*draw)(struct slices *out, int64_t count);
    int64_t limit_us; /* 0: none stated */
} timings[] = {
    { "causal", 131072, 1, packed_causal, 1000 },
    { "packed_causal", 131072, 1000, packed_causal, 1000 },
    { "packed_full", 131072, 1000, packed_full, 1000 },
    { "shared_prefix", 131072, 1000, shared_prefix, 1000 },
    { "block_sparse", 131072, 4096, block_sparse, 0 },
    { "overlapping", 131072, 1000, overlapping, 0 },
    { "packed_causal", 1048576, 1000, packed_causal, 10000 },
    { "packed_causal", 1048576, 10000, packed_causal, 10000 },
    { "packed_causal", 1048576, 100000, packed_causal, 0 },
};

/* ---- time ---- */

static void fail(const char *what, const ffa_error *err)
{
    fprintf(stderr, "bench_plan: %s: %s\n", what, err->message);
    exit(1);
}

struct times {
    int64_t normal, tile, backward, ordered; /* us; ordered: backward with ordered accumulation */
};

static int64_t time_backward(const ffa_mask *mask, bool is_ordered)
{
    const struct tile_options opts = { 64, 128, TILE_CUTS_CHEAP, is_ordered };
    const int64_t begin = clock_us();
    struct tile_plan plan;
    ffa_error err = { FFA_OK, 0, "" };
    int64_t end;

    if (tile_build(&plan, mask, TILE_OWNS_KEYS, &opts, &err))
        fail("backward plan", &err);
    end = clock_us();
    tile_finish(&plan);
    return end - begin;
}

static struct times run_once(const struct slices *slices, struct tile_plan *plan)
{
    struct mask_list list = { slices->at, slices->count, { 0 } };
    const ffa_mask mask = { .shape = slices->shape, .head_count = 1, .lists = &list };
    const struct tile_options opts = { 128, 128, false, false };
    ffa_error err = { FFA_OK, 0, "" };
    struct times times;
    int64_t begin = clock_us(), middle;

    if (normal_build(&list.normal, slices->at, slices->count, &err))
        fail("normal form", &err);
    middle = clock_us();
    if (tile_build(plan, &mask, TILE_OWNS_QUERIES, &opts, &err))
        fail("tile plan", &err);
    times = (struct times){ middle - begin, clock_us() - middle, 0, 0 };
    times.backward = time_backward(&mask, false);
    times.ordered = time_backward(&mask, true);
    normal_finish(&list.normal);
    return times;
}

static void report_time(size_t index, bool json)
{
    struct slices slices = { .shape = { timings[index].tokens, timings[index].tokens } };
    int64_t total[RUNS], normal[RUNS], tile[RUNS], backward[RUNS], ordered[RUNS];
    struct tile_plan plan = { 0 };

    slices.at = calloc((size_t)timings[index].slices, sizeof *slices.at);
    timings[index].draw(&slices, timings[index].slices);
    for (int32_t r = 0; r < RUNS; r++) {
        struct times times;

        tile_finish(&plan);
        times = run_once(&slices, &plan);
        normal[r] = times.normal;
        tile[r] = times.tile;
        backward[r] = times.backward;
        ordered[r] = times.ordered;
        total[r] = times.normal + times.tile;
    }
    qsort(total, RUNS, sizeof *total, compare_i64);
    qsort(normal, RUNS, sizeof *normal, compare_i64);
    qsort(tile, RUNS, sizeof *tile, compare_i64);
    qsort(backward, RUNS, sizeof *backward, compare_i64);
    qsort(ordered, RUNS, sizeof *ordered, compare_i64);
    printf(json ? "{\"bench\":\"plan\",\"mask\":\"%s\",\"tokens\":%lld,\"slices\":%lld,"
                  "\"tiles\":%lld,\"normal_us\":%lld,\"tile_us\":%lld,\"min_us\":%lld,"
                  "\"median_us\":%lld,\"backward_us\":%lld,\"ordered_us\":%lld,\"limit_us\":%lld}\n"
                : "%-14s %8lld tokens %7lld slices %7lld tiles  normal %6lld us  tile %6lld us  "
                  "both: min %6lld  median %6lld us  backward %6lld us  ordered %6lld us  limit "
                  "%lld\n",
           timings[index].name, (long long)timings[index].tokens, (long long)slices.count,
           (long long)plan.tile_count, (long long)normal[RUNS / 2], (long long)tile[RUNS / 2],
           (long long)total[0], (long long)total[RUNS / 2], (long long)backward[RUNS / 2],
           (long long)ordered[RUNS / 2], (long long)timings[index].limit_us);
    tile_finish(&plan);
    free(slices.at);
}

/* ---- efficiency ---- */

static const struct tile_options tiles[] = {
    { 128, 128, false, false }, { 128, 128, true, false },  { 128, 176, false, false },
    { 64, 128, false, false },  { 192, 128, false, false },
};

static int64_t item(const json_t *array, size_t index)
{
    return (int64_t)json_integer_value(json_array_get(array, index));
}

static void report_efficiency(const json_t *entry, bool json)
{
    const json_t *form = json_object_get(entry, "mask");
    const json_t *list = json_object_get(form, "slices");
    const char *name = json_string_value(json_object_get(entry, "name"));
    struct slices slices = { .shape = {
                                 (int64_t)json_integer_value(json_object_get(form, "seqlen_q")),
                                 (int64_t)json_integer_value(json_object_get(form, "seqlen_k")) } };

    slices.at = calloc(json_array_size(list), sizeof *slices.at);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *from = json_array_get(list, i);

        slices.at[slices.count++] =
            (ffa_slice){ item(from, 0), item(from, 1),          item(from, 2),
                         item(from, 3), (int32_t)item(from, 4), 0 };
    }

    for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++) {
        ffa_error err = { FFA_OK, 0, "" };
        struct tile_plan plan;
        ffa_mask *mask;

        if (ffa_mask_create(&mask, &slices.shape, slices.at, slices.count, &err) ||
            tile_build(&plan, mask, TILE_OWNS_QUERIES, &tiles[t], &err))
            fail(name, &err);
        printf(json ? "{\"bench\":\"visited\",\"mask\":\"%s\",\"tile\":\"%dx%d\","
                      "\"cuts\":%s,\"tiles\":%lld,\"blocks\":%lld,\"partial\":%lld,"
                      "\"efficiency\":%.4f}\n"
                    : "%-28s tile %3dx%-3d cuts %-5s tiles %6lld blocks %8lld "
                      "partial %7lld  efficiency %.4f\n",
               name, plan.tile_m, plan.tile_n, tiles[t].cuts == TILE_CUTS_NONE ? "false" : "true",
               (long long)plan.tile_count, (long long)plan.block_count,
               (long long)plan.partial_blocks,
               (double)plan.area /
                   ((double)plan.block_count * (double)plan.tile_m * (double)plan.tile_n));
        tile_finish(&plan);
        ffa_mask_destroy(mask);
    }
    free(slices.at);
}

int main(int argc, char **argv)
{
    const char *masks = NULL;
    bool json = false;

    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--json")) {
            json = true;
        } else if (!strcmp(argv[i], "--masks") && i + 1 < argc) {
            masks = argv[++i];
        } else {
            fprintf(stderr, "usage: bench_plan [--json] [--masks tests/data/masks.json]\n");
            return 2;
        }

    for (size_t i = 0; i < sizeof timings / sizeof *timings; i++)
        report_time(i, json);
    if (masks) {
        json_error_t error;
        json_t *root = json_load_file(masks, 0, &error);
        const json_t *list = json_object_get(root, "cases");

        if (!list) {
            fprintf(stderr, "bench_plan: %s: %s\n", masks, root ? "no cases" : error.text);
            return 1;
        }
        for (size_t i = 0; i < json_array_size(list); i++)
            report_efficiency(json_array_get(list, i), json);
        json_decref(root);
    }
    return 0;
}
