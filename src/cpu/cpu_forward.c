/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_forward: threads take (tile, head) from a counter, in the plan's order of work. Each writes
 * rows that no other writes, so the number of threads changes nothing in the result.
 */
#include "cpu/cpu_forward.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

struct work {
    const struct cpu_forward *call;
    bool fp64;
    int64_t item_count;
    atomic_llong next;
};

struct worker {
    struct work *work;
    struct forward_scratch scratch;
    pthread_t thread;
    bool started;
};

/* Heads that run each tile: all of them, or the group of the list's kv head. */
static int32_t heads_of_tile(const struct cpu_forward *call)
{
    return call->plan->list_count == 1 ? call->args.heads_q
                                       : call->args.heads_q / call->args.heads_kv;
}

static void run_item(const struct work *work, int64_t item, struct forward_scratch *scratch)
{
    const struct cpu_forward *call = work->call;
    const int32_t heads = heads_of_tile(call);
    const struct plan_tile *tile = &call->plan->tiles[item / heads];
    const int32_t head = tile->list * heads + (int32_t)(item % heads);

    if (work->fp64)
        forward_tile_f64(call, tile, head, scratch);
    else
        forward_tile_f32(call, tile, head, scratch);
}

static void *run(void *user)
{
    struct worker *worker = user;
    struct work *work = worker->work;
    int64_t item;

    while ((item = atomic_fetch_add_explicit(&work->next, 1, memory_order_relaxed)) <
           work->item_count)
        run_item(work, item, &worker->scratch);
    return NULL;
}

static ffa_status prepare(struct worker *workers, int32_t count, struct work *work, ffa_error *err)
{
    const size_t bytes = work->fp64 ? forward_bytes_f64(work->call) : forward_bytes_f32(work->call);

    for (int32_t i = 0; i < count; i++) {
        workers[i].work = work;
        workers[i].scratch.memory = mem_array(1, bytes);
        if (!workers[i].scratch.memory)
            return error_nomem(err, "the tiles of the CPU backend");
        if (work->fp64)
            forward_place_f64(work->call, &workers[i].scratch);
        else
            forward_place_f32(work->call, &workers[i].scratch);
    }
    return FFA_OK;
}

void cpu_max_logits_init(void *max_logits, ffa_dtype lse_dtype, int32_t heads)
{
    for (int32_t h = 0; h < heads; h++)
        if (lse_dtype == FFA_FP64)
            ((double *)max_logits)[h] = -(double)INFINITY;
        else
            ((float *)max_logits)[h] = -INFINITY;
}

ffa_status cpu_forward(const struct cpu_forward *call, ffa_error *err)
{
    struct work work = { .call = call,
                         .fp64 = call->fp64 || call->dtype == FFA_FP64,
                         .item_count = call->plan->tile_count * heads_of_tile(call) };
    const int32_t count =
        call->threads < work.item_count ? call->threads : (int32_t)work.item_count;
    struct worker *workers = NULL;
    ffa_status rc;

    assert(call->threads >= 1 && call->head_dim >= 1);
    assert(call->plan->list_count == 1 || call->plan->list_count == call->args.heads_kv);
    assert(!call->sum_out || (call->sum_lse && !call->accumulate && !call->partial));
    if (work.item_count == 0) /* a stage may have nothing to do */
        return FFA_OK;
    workers = mem_array((size_t)count, sizeof *workers);
    if (!workers) {
        rc = error_nomem(err, "the threads of the CPU backend");
        goto out;
    }
    FFA_TRY(prepare(workers, count, &work, err));

    /* A thread that does not start is no failure: the others do its work. */
    for (int32_t i = 1; i < count; i++)
        workers[i].started = !pthread_create(&workers[i].thread, NULL, run, &workers[i]);
    run(&workers[0]);
    for (int32_t i = 1; i < count; i++)
        if (workers[i].started)
            pthread_join(workers[i].thread, NULL);
out:
    for (int32_t i = 0; workers && i < count; i++)
        mem_free(workers[i].scratch.memory);
    mem_free(workers);
    return rc;
}
