/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_parallel --calibrate: what the model of time is told, measured on the GPUs that ranks run
 * on, and written as `ffa --calibration` reads it (tests/schema/calibration.json).
 *
 * Links: all ranks pull at once, each from all others in turn, as passes do: one batch of ranges of
 * one length, wall time from the first begin to the last end. Ranks that share a GPU pull within
 * it, which says nothing of links. The window: copies within the first GPU.
 *
 * Kernels: by tile, two masks of the same tokens on the first GPU, all of them and documents of
 * whole tiles. Both have the same tiles, and differ in how many cells each visits: what that takes
 * is the rate, and what is left is the begin of a tile (parallel_plan.h). The last wave, which is
 * the same share of both, is taken out where the model has it.
 */
#include "parallel_case.h"

#include "gpu/gpu_stream.h"
#include "service/context.h"

#include <stdlib.h>

enum {
    SIZES = 6,
    QUICK_SIZES = 2,
    QUICK_TILES = 2,
    PULLS = 8, /* batches of a length; the first warms up */
    LATENCIES = 50,
    RATES_MAX = 8,
    SMALL_BYTES = 256,
    SMALL_TOKENS = 128,
    LAUNCH_MS_MAX = 1000, /* of the model */
    BEGIN_MAX = 65536,    /* likewise */
    COPIES = 16,          /* within the GPU, of a series */
    TOKENS = 16384,
    DOCUMENT = 512, /* of whole tiles, so long or longer */
    QUICK_TOKENS = 256
};
#define PULL_BYTES ((int64_t)64 << 20)
#define QUICK_PULL_BYTES ((int64_t)1 << 18)

static const int64_t sizes[SIZES] = { 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24 };
static const struct tiles tiles[] = { { 0, 0, 0, 0 }, { 128, 128, 64, 128 }, { 192, 80, 64, 128 } };

struct puller {
    int32_t rank;
    struct gpu_device *gpu;
    struct gpu_stream *stream;
    void *own, *in;
    double begin_ms, end_ms;
    pthread_t thread;
};

struct links {
    struct puller pullers[RANKS_MAX];
    int64_t bytes, mbytes_s[SIZES], latency_ns;
    int count;
};

/* One tile of a pass, and what it makes. */
struct tile_rate {
    bool is_backward;
    int32_t m, n;
    int64_t gflops, begin_tokens;
};

struct calibration_run {
    struct links links;
    struct tile_rate rates[RATES_MAX]; /* each tile of a pass once */
    int rate_count;
    int64_t launch_ns, window_mbytes_s;
    int32_t sms;
};

static struct links *shared_links; /* of all threads that pull */

/* ---- links ---- */

static void puller_create(struct puller *p)
{
    ffa_error err;

    must(gpu_stream_create(&p->stream, p->gpu, -1, &err), "stream", &err);
    must(gpu_alloc(p->gpu, &p->own, options.is_quick ? QUICK_PULL_BYTES : PULL_BYTES, &err),
         "allocate", &err);
    must(gpu_alloc(p->gpu, &p->in, options.is_quick ? QUICK_PULL_BYTES : PULL_BYTES, &err),
         "allocate", &err);
    for (int32_t i = 0; i < bench.gpus; i++)
        must(gpu_peer_enable(p->gpu, gpu_device_ordinal(bench.contexts[i]->gpu), &err), "peers",
             &err);
}

static void puller_destroy(struct puller *p)
{
    gpu_free(p->gpu, p->own);
    gpu_free(p->gpu, p->in);
    gpu_stream_destroy(p->stream);
}

/* One batch of ranges of `size`: range i is of the ith rank behind this one, round and round. */
static void pull(const struct links *links, const struct puller *p, int64_t size)
{
    const int64_t count = links->bytes / size;
    void **to = memory((size_t)count * sizeof *to);
    const void **from = memory((size_t)count * sizeof *from);
    size_t *bytes = memory((size_t)count * sizeof *bytes);
    const int32_t others = options.ranks > 1 ? options.ranks - 1 : 1;
    ffa_error err;

    for (int64_t i = 0; i < count; i++) {
        const struct puller *peer = &links->pullers[(p->rank + 1 + i % others) % options.ranks];

        to[i] = (char *)p->in + i * size;
        from[i] = (const char *)peer->own + i * size;
        bytes[i] = (size_t)size;
    }
    must(gpu_copy_batch(p->gpu, gpu_stream_handle(p->stream), to, from, bytes, count, &err), "pull",
         &err);
    must(gpu_stream_synchronize(p->gpu, gpu_stream_handle(p->stream), &err), "pull", &err);
    free(to);
    free(from);
    free(bytes);
}

/* Of all ranks at once; milliseconds of a batch on the first rank, 0 on the others. */
static double pull_all(struct links *links, struct puller *p, int64_t size)
{
    double begin_ms, end_ms;

    meet(p->rank);
    p->begin_ms = now_ms();
    pull(links, p, size);
    p->end_ms = now_ms();
    meet(p->rank);
    begin_ms = links->pullers[0].begin_ms;
    end_ms = links->pullers[0].end_ms;
    for (int32_t r = 1; r < options.ranks; r++) {
        const struct puller *other = &links->pullers[r];

        begin_ms = other->begin_ms < begin_ms ? other->begin_ms : begin_ms;
        end_ms = other->end_ms > end_ms ? other->end_ms : end_ms;
    }
    meet(p->rank);
    return end_ms - begin_ms;
}

/* From asking for a few rows until the host knows that they are there. */
static int64_t latency_ns(const struct links *links)
{
    const struct puller *p = &links->pullers[0];
    const struct puller *peer = &links->pullers[options.ranks > 1];
    double samples[LATENCIES];
    ffa_error err;

    for (int i = 0; i < LATENCIES; i++) {
        const void *from = peer->own;
        const double begin_ms = now_ms();

        must(gpu_copy_batch(p->gpu, gpu_stream_handle(p->stream), &(void *){ p->in }, &from,
                            &(size_t){ SMALL_BYTES }, 1, &err),
             "pull", &err);
        must(gpu_stream_synchronize(p->gpu, gpu_stream_handle(p->stream), &err), "pull", &err);
        samples[i] = now_ms() - begin_ms;
    }
    return (int64_t)(median(samples, LATENCIES) * 1e6);
}

/* Copies one behind the other within the first rank's GPU. */
static int64_t window_rate(const struct links *links)
{
    const struct puller *p = &links->pullers[0];
    double samples[PULLS];
    ffa_error err;

    for (int i = 0; i < PULLS; i++) {
        const void *from = p->own;
        const double begin_ms = now_ms();

        for (int c = 0; c < COPIES; c++)
            must(gpu_copy_batch(p->gpu, gpu_stream_handle(p->stream), &(void *){ p->in }, &from,
                                &(size_t){ (size_t)links->bytes }, 1, &err),
                 "copy", &err);
        must(gpu_stream_synchronize(p->gpu, gpu_stream_handle(p->stream), &err), "copy", &err);
        samples[i] = (now_ms() - begin_ms) / COPIES;
    }
    return (int64_t)((double)links->bytes / (median(samples + 1, PULLS - 1) * 1e3)) + 1;
}

static void *pull_thread(void *user)
{
    struct links *links = shared_links;
    struct puller *p = user;

    for (int s = 0; s < links->count; s++) {
        double samples[PULLS];

        for (int i = 0; i < PULLS; i++)
            samples[i] = pull_all(links, p, sizes[s]);
        if (p->rank == 0)
            links->mbytes_s[s] =
                (int64_t)((double)links->bytes / (median(samples + 1, PULLS - 1) * 1e3)) + 1;
    }
    return NULL;
}

static void measure_links(struct calibration_run *run)
{
    struct links *links = &run->links;

    links->bytes = options.is_quick ? QUICK_PULL_BYTES : PULL_BYTES;
    links->count = options.is_quick ? QUICK_SIZES : SIZES;
    for (int32_t r = 0; r < options.ranks; r++) {
        links->pullers[r] =
            (struct puller){ .rank = r, .gpu = bench.contexts[r % bench.gpus]->gpu };
        puller_create(&links->pullers[r]);
    }
    for (int32_t r = 0; r < options.ranks; r++)
        start(&links->pullers[r].thread, pull_thread, &links->pullers[r]);
    for (int32_t r = 0; r < options.ranks; r++)
        (void)pthread_join(links->pullers[r].thread, NULL);
    links->latency_ns = latency_ns(links);
    run->window_mbytes_s = window_rate(links);
    for (int32_t r = 0; r < options.ranks; r++)
        puller_destroy(&links->pullers[r]);
}

/* ---- kernels ---- */

/* A series by the host's clock: the emulator has no other. */
static double call_ms(const struct rank *r, bool is_backward, int calls)
{
    const double begin_ms = now_ms();
    const double ms = whole_series(r, is_backward, calls);

    return ms > 0 ? ms : (now_ms() - begin_ms) / calls;
}

/* The whole of a case on the first GPU. */
static void whole_open(struct rank *r, const struct bench_case *c, const struct tiles *wanted)
{
    ffa_error err;

    *r = (struct rank){ .context = bench.contexts[0] };
    bench.c = c;
    bench.tokens = c->tokens;
    bench.tiles = *wanted;
    case_init();
    must(ffa_device_stream_create(&r->stream, r->context, &err), "stream", &err);
    whole_create(&bench.whole, r);
}

static void whole_close(struct rank *r)
{
    whole_destroy(&bench.whole, r->context);
    ffa_device_stream_destroy(r->context, r->stream);
    case_finish();
    bench.tiles = (struct tiles){ 0, 0, 0, 0 };
}

static double pass_ms(const struct rank *r, bool is_backward)
{
    (void)whole_series(r, is_backward, 1);
    return call_ms(r, is_backward, options.is_quick ? 1 : calls_of(call_ms(r, is_backward, 2)));
}

static bool is_measured(const struct calibration_run *run, const struct tile_rate *tile)
{
    for (int i = 0; i < run->rate_count; i++)
        if (run->rates[i].is_backward == tile->is_backward && run->rates[i].m == tile->m &&
            run->rates[i].n == tile->n)
            return true;
    return false;
}

static int64_t common_multiple(int64_t a, int64_t b)
{
    int64_t multiple = a;

    while (multiple % b)
        multiple += a;
    return multiple;
}

/* A mask with a tile: what a pass takes, in milliseconds as if all waves were whole; 0: the plan
 * has another tile. tile->m of 0 is told instead. */
static double tile_ms(struct calibration_run *run, const struct bench_case *c,
                      const struct tiles *wanted, struct tile_rate *tile)
{
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    struct rank r;
    ffa_error err;
    double ms = 0;

    whole_open(&r, c, wanted);
    must(ffa_plan_info_get(bench.whole.plan, &info, &err), "plan info", &err);
    {
        const int32_t m = tile->is_backward ? info.backward_tile_m : info.tile_m;
        const int32_t n = tile->is_backward ? info.backward_tile_n : info.tile_n;
        const int64_t items =
            (int64_t)info.tile_count * c->heads_q / (info.pack_heads ? info.pack_heads : 1);
        const int64_t waves = (items + run->sms - 1) / run->sms;

        if (!tile->m) {
            tile->m = m;
            tile->n = n;
        }
        if (tile->m == m && tile->n == n && !(c->kind == FULL && is_measured(run, tile)))
            ms = pass_ms(&r, tile->is_backward) *
                 (tile->is_backward ? 1 : (double)items / (double)(waves * run->sms));
    }
    whole_close(&r);
    return ms;
}

/* Rate and begin from the times of both masks: the differences of times and cells are one tile's.
 * Without the time of documents, or where it is not the shorter one, the begin is in the rate. */
static void set_rate(struct tile_rate *tile, const struct bench_case *c, double full_ms,
                     double documents_ms)
{
    const double operations = (tile->is_backward ? 10.0 : 4.0) * c->heads_q * HEAD_DIM;
    const double tokens = (double)c->tokens, document = (double)bench.document;
    const double a_cell_ms = documents_ms > 0 && documents_ms < full_ms
                                 ? (full_ms - documents_ms) / (tokens * (tokens - document))
                                 : full_ms / (tokens * tokens);
    const double begin = documents_ms / (tokens * a_cell_ms) - document;

    tile->gflops = (int64_t)(operations / (a_cell_ms * 1e6)) + 1;
    if (documents_ms > 0 && documents_ms < full_ms && begin > 0)
        tile->begin_tokens = begin < BEGIN_MAX ? (int64_t)begin : BEGIN_MAX;
}

/* Both passes with a tile, where it is new. */
static void measure_tiles(struct calibration_run *run, const struct tiles *wanted)
{
    for (int pass = 0; pass < 2; pass++) {
        struct bench_case c = { FULL, 64, 8, TOKENS, true };
        struct tile_rate tile = { .is_backward = pass };
        double full_ms;
        int64_t whole;

        if (options.is_quick)
            c = (struct bench_case){ FULL, 8, 1, QUICK_TOKENS, true };
        full_ms = tile_ms(run, &c, wanted, &tile);
        if (is_measured(run, &tile))
            continue;
        whole = common_multiple(tile.m, tile.n);
        bench.document = options.is_quick ? whole : (DOCUMENT + whole - 1) / whole * whole;
        c.kind = DOCUMENTS;
        c.tokens = c.tokens / bench.document * bench.document;
        if (c.tokens != bench.tokens) { /* no whole number of documents: other tokens for both */
            c.kind = FULL;
            full_ms = tile_ms(run, &c, wanted, &tile);
            c.kind = DOCUMENTS;
        }
        set_rate(&tile, &c, full_ms, tile_ms(run, &c, wanted, &tile));
        run->rates[run->rate_count++] = tile;
    }
}

static void measure_kernels(struct calibration_run *run)
{
    static const struct bench_case small = { FULL, 8, 1, SMALL_TOKENS, true };
    const int count = options.is_quick ? QUICK_TILES : (int)(sizeof tiles / sizeof *tiles);
    struct rank r;
    double ms;

    whole_open(&r, &small, &tiles[0]);
    ms = pass_ms(&r, false);
    run->launch_ns = ms < LAUNCH_MS_MAX ? (int64_t)(ms * 1e6) : LAUNCH_MS_MAX * 1000000;
    whole_close(&r);
    for (int t = 0; t < count; t++)
        measure_tiles(run, &tiles[t]);
}

/* ---- the file ---- */

static void write_file(const struct calibration_run *run, const char *path)
{
    FILE *file = fopen(path, "w");

    if (!file)
        fail(path, "cannot be written");
    fprintf(file,
            "{\n  \"schema\": 1,\n  \"device\": \"%s\",\n  \"gpus\": %d,\n"
            "  \"node_latency_ns\": %lld,\n  \"launch_ns\": %lld,\n"
            "  \"window_mbytes_s\": %lld,\n  \"sms\": %d,\n  \"links\": [",
            bench.device, bench.gpus, (long long)run->links.latency_ns, (long long)run->launch_ns,
            (long long)run->window_mbytes_s, run->sms);
    for (int s = 0; s < run->links.count; s++)
        fprintf(file, "%s\n    {\"range_bytes\": %lld, \"mbytes_s\": %lld}", s ? "," : "",
                (long long)sizes[s], (long long)run->links.mbytes_s[s]);
    fprintf(file, "\n  ],\n  \"kernels\": [");
    for (int t = 0; t < run->rate_count; t++) {
        const struct tile_rate *tile = &run->rates[t];

        fprintf(file,
                "%s\n    {\"pass\": \"%s\", \"head_dim\": %d, \"head_dim_v\": %d, "
                "\"tile_m\": %d, \"tile_n\": %d, \"gflops\": %lld, \"begin_tokens\": %lld}",
                t ? "," : "", tile->is_backward ? "backward" : "forward", HEAD_DIM, HEAD_DIM,
                tile->m, tile->n, (long long)tile->gflops, (long long)tile->begin_tokens);
    }
    fprintf(file, "\n  ]\n}\n");
    if (fclose(file))
        fail(path, "cannot be written");
}

void calibrate(const char *path)
{
    static struct calibration_run run;

    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_error err;

    must(ffa_context_info_get(bench.contexts[0], &info, &err), "info", &err);
    run.sms = info.sm_count;
    shared_links = &run.links;
    measure_links(&run);
    measure_kernels(&run);
    write_file(&run, path);
    printf("wrote %s: %d GPUs, %d ranks, ranges of %lld bytes at %.1f GB/s, of %lld at %.1f; "
           "forward %.1f TFLOP/s, begin %lld keys, backward %.1f, %lld rows\n",
           path, bench.gpus, options.ranks, (long long)sizes[0],
           (double)run.links.mbytes_s[0] / 1e3, (long long)sizes[run.links.count - 1],
           (double)run.links.mbytes_s[run.links.count - 1] / 1e3, (double)run.rates[0].gflops / 1e3,
           (long long)run.rates[0].begin_tokens, (double)run.rates[1].gflops / 1e3,
           (long long)run.rates[1].begin_tokens);
}
