/* SPDX-License-Identifier: Apache-2.0
 *
 * Solvers that look at loads only. Invariant: every rank gets floor(chunks / ranks) chunks or one
 * more, in every solver. Ties are broken by index, so all ranks find the same solution. The exact
 * solver is a depth-first search from min-heap's solution: chunks in order of load, ranks of equal
 * load and count tried once, branches that cannot beat the best so far cut off.
 */
#include "parallel/dispatch/solve.h"

/* ---- a heap of ranks by load, with places ---- */

static bool is_before(const struct rank_heap *heap, int32_t a, int32_t b)
{
    return heap->load[a] != heap->load[b] ? heap->load[a] < heap->load[b] : a < b;
}

static void place(struct rank_heap *heap, int32_t at, int32_t rank)
{
    heap->heap[at] = rank;
    heap->at[rank] = at;
}

static void sift_down(struct rank_heap *heap, int32_t at)
{
    const int32_t rank = heap->heap[at];

    for (;;) {
        int32_t child = 2 * at + 1;

        if (child >= heap->size)
            break;
        if (child + 1 < heap->size && is_before(heap, heap->heap[child + 1], heap->heap[child]))
            child++;
        if (!is_before(heap, heap->heap[child], rank))
            break;
        place(heap, at, heap->heap[child]);
        at = child;
    }
    place(heap, at, rank);
}

static void sift_up(struct rank_heap *heap, int32_t at)
{
    const int32_t rank = heap->heap[at];

    while (at > 0 && is_before(heap, rank, heap->heap[(at - 1) / 2])) {
        place(heap, at, heap->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    place(heap, at, rank);
}

static void drop(struct rank_heap *heap, int32_t rank)
{
    const int32_t at = heap->at[rank];
    const int32_t last = heap->heap[--heap->size];

    heap->at[rank] = -1;
    if (last == rank)
        return;
    place(heap, at, last);
    sift_up(heap, at);
    sift_down(heap, heap->at[last]);
}

ffa_status rank_heap_init(struct rank_heap *heap, const struct solve_input *in, ffa_error *err)
{
    const size_t ranks = (size_t)in->ranks;

    *heap = (struct rank_heap){ .load = mem_array(ranks, sizeof *heap->load),
                                .taken = mem_array(ranks, sizeof *heap->taken),
                                .heap = mem_array(ranks, sizeof *heap->heap),
                                .at = mem_array(ranks, sizeof *heap->at),
                                .size = in->ranks,
                                .ranks = in->ranks,
                                .floor = in->count / in->ranks,
                                .extra = in->count % in->ranks };
    if (!heap->load || !heap->taken || !heap->heap || !heap->at) {
        rank_heap_finish(heap);
        return error_nomem(err, "the loads of ranks");
    }
    for (int32_t r = 0; r < in->ranks; r++)
        place(heap, r, r);
    return FFA_OK;
}

int64_t rank_heap_room(const struct rank_heap *heap, int32_t rank)
{
    if (heap->taken[rank] > heap->floor)
        return 0;
    return heap->floor - heap->taken[rank] + (heap->extra > 0);
}

void rank_heap_take(struct rank_heap *heap, int32_t rank, int64_t load)
{
    const bool is_extra = ++heap->taken[rank] > heap->floor;

    heap->load[rank] += load;
    if (is_extra)
        heap->extra--;
    if (rank_heap_room(heap, rank) == 0)
        drop(heap, rank);
    else
        sift_down(heap, heap->at[rank]);
    if (is_extra &&
        heap->extra == 0) /* no rank may exceed floor any more: drop those that have it */
        for (int32_t r = 0; r < heap->ranks; r++)
            if (heap->at[r] >= 0 && rank_heap_room(heap, r) == 0)
                drop(heap, r);
}

void rank_heap_finish(struct rank_heap *heap)
{
    mem_free(heap->load);
    mem_free(heap->taken);
    mem_free(heap->heap);
    mem_free(heap->at);
    *heap = (struct rank_heap){ 0 };
}

/* ---- solvers ---- */

void solve_sequential(int32_t *rank_of, const struct solve_input *in)
{
    const int64_t floor = in->count / in->ranks, extra = in->count % in->ranks;
    int64_t chunk = 0;

    for (int32_t r = 0; r < in->ranks; r++)
        for (int64_t i = 0; i < floor + (r < extra); i++)
            rank_of[chunk++] = r;
}

void solve_zigzag(int32_t *rank_of, const struct solve_input *in)
{
    for (int64_t c = 0; c < in->count; c++) {
        const int32_t step = (int32_t)(c % in->ranks);

        rank_of[c] = c / in->ranks % 2 ? in->ranks - 1 - step : step;
    }
}

/* Heap sort: it needs no memory, and the order is total. */
static bool is_later(const struct solve_input *in, int64_t a, int64_t b)
{
    return in->loads[a] != in->loads[b] ? in->loads[a] < in->loads[b] : a < b;
}

static void order_sift(int64_t *order, int64_t size, int64_t at, const struct solve_input *in)
{
    const int64_t item = order[at];

    for (int64_t child = 2 * at + 1; child < size; child = 2 * at + 1) {
        if (child + 1 < size && is_later(in, order[child + 1], order[child]))
            child++;
        if (!is_later(in, order[child], item))
            break;
        order[at] = order[child];
        at = child;
    }
    order[at] = item;
}

void solve_order(int64_t *order, const struct solve_input *in)
{
    for (int64_t c = 0; c < in->count; c++)
        order[c] = c;
    for (int64_t at = in->count / 2; at-- > 0;)
        order_sift(order, in->count, at, in);
    for (int64_t size = in->count - 1; size > 0; size--) {
        const int64_t last = order[0];

        order[0] = order[size];
        order[size] = last;
        order_sift(order, size, 0, in);
    }
}

ffa_status solve_min_heap(int32_t *rank_of, const struct solve_input *in, ffa_error *err)
{
    struct rank_heap heap = { 0 };
    int64_t *order = mem_array((size_t)in->count, sizeof *order);
    ffa_status rc;

    if (!order) {
        rc = error_nomem(err, "the order of chunks");
        goto out;
    }
    FFA_TRY(rank_heap_init(&heap, in, err));
    solve_order(order, in);
    for (int64_t i = 0; i < in->count; i++) {
        rank_of[order[i]] = heap.heap[0];
        rank_heap_take(&heap, heap.heap[0], in->loads[order[i]]);
    }
out:
    rank_heap_finish(&heap);
    mem_free(order);
    return rc;
}

int64_t solve_largest_load(const int32_t *rank_of, const struct solve_input *in, int64_t *of_rank)
{
    int64_t most = 0;

    memset(of_rank, 0, (size_t)in->ranks * sizeof *of_rank);
    for (int64_t c = 0; c < in->count; c++)
        of_rank[rank_of[c]] += in->loads[c];
    for (int32_t r = 0; r < in->ranks; r++)
        most = of_rank[r] > most ? of_rank[r] : most;
    return most;
}

/* ---- the least possible largest load ---- */

struct search {
    const struct solve_input *in;
    int64_t order[SOLVE_EXACT_MAX];
    int32_t now[SOLVE_EXACT_MAX]; /* by place in order */
    int32_t best[SOLVE_EXACT_MAX];
    int64_t load[SOLVE_EXACT_MAX], taken[SOLVE_EXACT_MAX]; /* ranks <= count */
    int64_t extra, least, bound;
    int64_t steps;
};

static bool same_so_far(const struct search *s, int32_t a, int32_t b)
{
    return s->load[a] == s->load[b] && s->taken[a] == s->taken[b];
}

static void search_from(struct search *s, int64_t at)
{
    const int64_t floor = s->in->count / s->in->ranks;
    int64_t most = 0;

    if (s->steps++ > SOLVE_EXACT_STEPS || s->least == s->bound)
        return;
    if (at == s->in->count) {
        for (int32_t r = 0; r < s->in->ranks; r++)
            most = s->load[r] > most ? s->load[r] : most;
        s->least = most;
        memcpy(s->best, s->now, sizeof s->best);
        return;
    }
    for (int32_t r = 0; r < s->in->ranks; r++) {
        const int64_t load = s->in->loads[s->order[at]];
        const bool is_extra = s->taken[r] == floor;
        bool is_new = true;

        if (s->taken[r] > floor || (is_extra && s->extra == 0) || s->load[r] + load >= s->least)
            continue;
        for (int32_t other = 0; other < r && is_new; other++)
            is_new = !same_so_far(s, other, r);
        if (!is_new)
            continue;
        s->now[at] = r;
        s->load[r] += load;
        s->taken[r]++;
        s->extra -= is_extra;
        search_from(s, at + 1);
        s->extra += is_extra;
        s->taken[r]--;
        s->load[r] -= load;
    }
}

ffa_status solve_exact(int32_t *rank_of, const struct solve_input *in, ffa_error *err)
{
    struct search s = { .in = in };
    int64_t of_rank[SOLVE_EXACT_MAX], sum = 0;
    ffa_status rc;

    if (in->count > SOLVE_EXACT_MAX)
        return error_fail(err, FFA_UNSUPPORTED, 0, "an exact dispatch of %lld chunks, at most %d",
                          (long long)in->count, SOLVE_EXACT_MAX);
    FFA_TRY(solve_min_heap(rank_of, in, err));
    solve_order(s.order, in);
    for (int64_t c = 0; c < in->count; c++) {
        s.best[c] = rank_of[s.order[c]];
        sum += in->loads[c];
    }
    s.extra = in->count % in->ranks;
    s.least = solve_largest_load(rank_of, in, of_rank);
    s.bound = (sum + in->ranks - 1) / in->ranks;
    if (s.bound < in->loads[s.order[0]])
        s.bound = in->loads[s.order[0]];
    search_from(&s, 0);
    if (s.steps > SOLVE_EXACT_STEPS) {
        rc = error_fail(err, FFA_UNSUPPORTED, 0,
                        "an exact dispatch of %lld chunks to %d ranks takes more than %d steps",
                        (long long)in->count, in->ranks, SOLVE_EXACT_STEPS);
        goto out;
    }
    for (int64_t c = 0; c < in->count; c++)
        rank_of[s.order[c]] = s.best[c];
out:
    return rc;
}
