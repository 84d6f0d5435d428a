/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_backward: threads take items from a counter, in two steps: first delta, by rows; then the
 * key tiles in the plan's order of work (dk, dv), the rows (dq) and the sinks. Each item writes
 * what no other writes, so the number of threads changes nothing in the result.
 */
#include "cpu/cpu_backward.h"

#include <pthread.h>
#include <stdatomic.h>

struct work {
    const struct cpu_backward *call;
    bool fp64;
    bool is_first;      /* of the two steps */
    int32_t tile_heads; /* kv heads that run each tile: all of them, or the list's own */
    int64_t chunks;     /* of tile_m rows */
    int64_t tile_items, row_items, sink_items;
    void *delta; /* [seqlen_q][heads_q] */
    atomic_llong next;
};

struct worker {
    struct work *work;
    struct gradient_scratch scratch;
    pthread_t thread;
    bool started;
};

static struct gradient_rows rows_of(const struct work *work, int64_t item)
{
    const struct tile_plan *plan = work->call->plan;
    const int64_t begin = item % work->chunks * plan->tile_m;
    const int64_t left = plan->shape.seqlen_q - begin;

    return (struct gradient_rows){ .row_begin = begin,
                                   .row_end = begin + (left < plan->tile_m ? left : plan->tile_m),
                                   .head = (int32_t)(item / work->chunks) };
}

static void run_delta(const struct work *work, int64_t item)
{
    const struct gradient_rows rows = rows_of(work, item);

    if (work->fp64)
        gradient_delta_f64(work->call, &rows, work->delta);
    else
        gradient_delta_f32(work->call, &rows, work->delta);
}

static void run_tile(const struct work *work, int64_t item, struct gradient_scratch *scratch)
{
    const struct plan_tile *tile = &work->call->plan->tiles[item / work->tile_heads];
    const int32_t kv_head = tile->list * work->tile_heads + (int32_t)(item % work->tile_heads);

    if (work->fp64)
        gradient_tile_f64(work->call, tile, kv_head, work->delta, scratch);
    else
        gradient_tile_f32(work->call, tile, kv_head, work->delta, scratch);
}

static void run_rows(const struct work *work, int64_t item, struct gradient_scratch *scratch)
{
    const struct gradient_rows rows = rows_of(work, item);
    const uint8_t *flags = work->call->row_flags;

    if (flags && flags[item % work->chunks] == CPU_ROWS_UNTOUCHED)
        return;
    if (work->fp64)
        gradient_rows_f64(work->call, &rows, work->delta, scratch);
    else
        gradient_rows_f32(work->call, &rows, work->delta, scratch);
}

static void run_sink(const struct work *work, int64_t item)
{
    if (work->fp64)
        gradient_sink_f64(work->call, (int32_t)item, work->delta);
    else
        gradient_sink_f32(work->call, (int32_t)item, work->delta);
}

static void *run(void *user)
{
    struct worker *worker = user;
    struct work *work = worker->work;
    const int64_t count =
        work->is_first ? work->row_items : work->tile_items + work->row_items + work->sink_items;
    int64_t item;

    while ((item = atomic_fetch_add_explicit(&work->next, 1, memory_order_relaxed)) < count) {
        if (work->is_first)
            run_delta(work, item);
        else if (item < work->tile_items)
            run_tile(work, item, &worker->scratch);
        else if (item < work->tile_items + work->row_items)
            run_rows(work, item - work->tile_items, &worker->scratch);
        else
            run_sink(work, item - work->tile_items - work->row_items);
    }
    return NULL;
}

/* A thread that does not start is no failure: the others do its work. */
static void run_step(struct worker *workers, int32_t count, bool is_first)
{
    struct work *work = workers[0].work;

    work->is_first = is_first;
    atomic_store(&work->next, 0);
    for (int32_t i = 1; i < count; i++)
        workers[i].started = !pthread_create(&workers[i].thread, NULL, run, &workers[i]);
    run(&workers[0]);
    for (int32_t i = 1; i < count; i++)
        if (workers[i].started)
            pthread_join(workers[i].thread, NULL);
}

static ffa_status prepare(struct worker *workers, int32_t count, struct work *work, ffa_error *err)
{
    const struct cpu_backward *call = work->call;
    const size_t bytes = work->fp64 ? gradient_bytes_f64(call) : gradient_bytes_f32(call);

    for (int32_t i = 0; i < count; i++) {
        workers[i].work = work;
        workers[i].scratch.memory = mem_array(1, bytes);
        if (!workers[i].scratch.memory)
            return error_nomem(err, "the tiles of the CPU backend");
        if (work->fp64)
            gradient_place_f64(call, &workers[i].scratch);
        else
            gradient_place_f32(call, &workers[i].scratch);
    }
    return FFA_OK;
}

/* steps, bits: 1 for delta, 2 for the gradients. delta: where it is read or written. */
static ffa_status run_steps(const struct cpu_backward *call, int steps, void *delta, ffa_error *err)
{
    const struct tile_plan *plan = call->plan;
    struct work work = { .call = call,
                         .fp64 = call->fp64 || call->dtype == FFA_FP64,
                         .delta = delta };
    struct worker *workers = NULL;
    int32_t count = 0;
    ffa_status rc;

    assert(call->threads >= 1 && call->head_dim >= 1);
    assert(plan->list_count == 1 || plan->list_count == call->args.heads_kv);
    work.tile_heads = plan->list_count == 1 ? call->args.heads_kv : 1;
    work.chunks = (plan->shape.seqlen_q + plan->tile_m - 1) / plan->tile_m;
    work.tile_items = plan->tile_count * work.tile_heads;
    work.row_items = work.chunks * call->args.heads_q;
    work.sink_items = call->dsink ? call->args.heads_q : 0;
    count = call->threads < work.tile_items + work.row_items
                ? call->threads
                : (int32_t)(work.tile_items + work.row_items);
    count = count < 1 ? 1 : count; /* a plan without work still writes dsink */
    workers = mem_array((size_t)count, sizeof *workers);
    if (!workers) {
        rc = error_nomem(err, "the threads of the CPU backend");
        goto out;
    }
    FFA_TRY(prepare(workers, count, &work, err));
    if (steps & 1)
        run_step(workers, count, true);
    if (steps & 2)
        run_step(workers, count, false);
out:
    for (int32_t i = 0; workers && i < count; i++)
        mem_free(workers[i].scratch.memory);
    mem_free(workers);
    return rc;
}

ffa_status cpu_backward_delta(const struct cpu_backward *call, void *delta, ffa_error *err)
{
    return run_steps(call, 1, delta, err);
}

ffa_status cpu_backward(const struct cpu_backward *call, ffa_error *err)
{
    const bool fp64 = call->fp64 || call->dtype == FFA_FP64;
    void *delta;
    ffa_status rc;

    if (call->delta)
        return run_steps(call, 2, call->delta, err);
    delta = mem_array(1, fp64 ? gradient_delta_bytes_f64(call) : gradient_delta_bytes_f32(call));
    if (!delta)
        return error_nomem(err, "delta of the CPU backend");
    rc = run_steps(call, 1 | 2, delta, err);
    mem_free(delta);
    return rc;
}
