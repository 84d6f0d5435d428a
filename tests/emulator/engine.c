/* SPDX-License-Identifier: Apache-2.0
 *
 * The copy engine, wgmma and the other matrix instructions.
 *
 * Layouts are those of the PTX ISA: 128-byte swizzle, matrix descriptors, fragments. An operation
 * is queued when it is issued and done at a random time before the wait that makes it certain. When
 * it is issued, its shared memory must hold no write that the issuing thread does not know to be
 * fenced; when it is done, no write may have come since.
 */
#include "machine_internal.h"

#include "base/half.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

float emulator_from_half(uint32_t bits, int dtype)
{
    return dtype == 1 ? bf16_to_float((uint16_t)bits) : fp16_to_float((uint16_t)bits);
}

uint32_t emulator_to_half(float value, int dtype)
{
    return dtype == 1 ? bf16_from_float(value) : fp16_from_float(value);
}

/* 128-byte swizzle: the index of a 16-byte chunk is XORed with the index of its 128-byte row in the
 * 1024-byte atom. */
static uint32_t swizzle(uint32_t address)
{
    return address ^ (address >> 7 & 7) << 4;
}

/* NULL if the granule may be read: no thread wrote its present content, or one of the writes that
 * did is known to be fenced. Otherwise such a write. */
static const struct write *unfenced(const struct block *block, uint32_t address,
                                    const struct clock *fenced)
{
    const uint32_t granule = (address - shared_window()) / GRANULE;
    const struct write *last = NULL;

    for (uint32_t writers = block->writers[granule]; writers; writers &= writers - 1) {
        last = &block->granules[granule].writes[__builtin_ctz(writers)];
        if (last->epoch <= fenced->at[last->thread])
            return NULL;
    }
    return last;
}

/* Say which thread wrote which byte, from the view of the block `reader`. */
static const char *describe_write(char text[80], const struct write *write,
                                  const struct block *block, uint32_t address,
                                  const struct block *reader)
{
    const int thread = write->thread % machine->launch->threads;
    const int byte = (int)(address - shared_window());

    if (block == reader)
        (void)snprintf(text, 80, "thread %d wrote shared byte %d", thread, byte);
    else
        (void)snprintf(text, 80, "thread %d of block %d wrote its shared byte %d", thread,
                       block->index, byte);
    return text;
}

/* An operation of the copy engine is issued: the issuing thread knows all its bytes to be fenced.
 */
static void check_issued(struct block *block, uint32_t address, uint32_t bytes,
                         const struct clock *fenced, const char *what)
{
    const struct fiber *self = machine->self;
    char text[80];

    (void)machine_shared_at(block, address, bytes, GRANULE, what);
    for (uint32_t offset = 0; offset < bytes; offset += GRANULE) {
        const struct write *write = unfenced(block, address + offset, fenced);
        if (!write)
            continue;
        emulator_fail("%s: %s, and %s", what,
                      describe_write(text, write, block, address + offset, self->block),
                      write->thread == self->in_clocks ||
                              write->epoch <= self->knows.seen->at[write->thread]
                          ? "there is no fence.proxy.async between"
                          : "nothing makes this later");
    }
}

/* An operation is done: nobody has written its bytes since it was issued. Returns where they are.
 */
static char *async_bytes(const struct pending *p, const char *what)
{
    const struct block *from = p->owner->block;
    char text[80];

    for (uint32_t offset = 0; offset < p->bytes; offset += GRANULE) {
        const struct write *write = unfenced(p->block, p->shared + offset, p->fenced);
        if (write)
            emulator_fail("%s of thread %d of block %d: %s before it was done", what,
                          p->owner->thread, from->index,
                          describe_write(text, write, p->block, p->shared + offset, from));
    }
    return p->block->shared + (p->shared - shared_window());
}

/* ---- the copy engine ---- */

static uint32_t tensor_bytes(const struct emulator_tensor *tensor)
{
    return tensor->box[0] * tensor->box[1] * tensor->box[2] * 2;
}

static bool is_inside(int64_t at, uint64_t size)
{
    return at >= 0 && (uint64_t)at < size;
}

static void copy_tensor(const struct pending *p)
{
    enum { CHUNK = 8 }; /* elements, of which a row has a multiple */
    const struct emulator_tensor *tensor = p->from;
    const uint32_t row_bytes = tensor->box[0] * 2;
    uint32_t to = p->shared;

    for (uint32_t z = 0; z < tensor->box[2]; z++)
        for (uint32_t y = 0; y < tensor->box[1]; y++, to += row_bytes) {
            const int64_t row = p->at[2] + (int64_t)z, head = p->at[1] + (int64_t)y;
            const bool has_row =
                is_inside(row, tensor->dims[2]) && is_inside(head, tensor->dims[1]);
            const char *from = has_row ? tensor->data + (uint64_t)head * tensor->strides[0] +
                                             (uint64_t)row * tensor->strides[1]
                                       : NULL;

            for (uint32_t x = 0; x < tensor->box[0]; x += CHUNK) {
                char *at = machine_shared_at(p->block, swizzle(to + x * 2), GRANULE, GRANULE,
                                             "tensor copy");
                const int64_t column = p->at[0] + (int64_t)x;
                const int64_t columns = (int64_t)tensor->dims[0] - column;

                memset(at, 0, GRANULE);
                if (has_row && column >= 0 && columns > 0)
                    memcpy(at, from + 2 * column, columns < CHUNK ? 2 * (size_t)columns : GRANULE);
            }
        }
}

static void copy_shared(const struct pending *p, char *to)
{
    struct pending source = *p;

    source.block = p->owner->block;
    source.shared = p->source.shared;
    source.fenced = p->source.fenced;
    memcpy(to, async_bytes(&source, "bulk copy"), p->bytes);
    clock_drop(p->source.fenced);
}

static void perform_copy(const struct pending *p)
{
    char *shared = async_bytes(p, "bulk copy");

    clock_drop(p->fenced);
    if (p->kind == COPY_TENSOR)
        copy_tensor(p);
    else if (p->kind == COPY_SHARED)
        copy_shared(p, shared);
    else
        memcpy(shared, p->from, p->bytes);
    machine_mbarrier_bytes(p->block, p->bar, p->bytes);
}

/* Store the word of an st.async. It is not recorded as a write of a thread, and recorded writes to
 * the rest of the granule stay. */
static void store_word(struct block *block, uint32_t address, uint32_t word)
{
    const uint32_t offset = address - shared_window();

    memcpy(block->shared + offset, &word, sizeof word);
    memcpy(block->granules[offset / GRANULE].bytes + offset % GRANULE, &word, sizeof word);
}

static void perform_store(const struct pending *p)
{
    store_word(p->block, p->shared, p->word);
    machine_mbarrier_bytes(p->block, p->bar, p->bytes);
}

/* A reduction reads shared memory first and adds later. */
static void reduction_read(struct pending *p)
{
    const char *shared = async_bytes(p, "bulk reduction");

    p->terms = malloc(p->bytes);
    if (!p->terms)
        emulator_fail("bulk reduction: no memory");
    memcpy(p->terms, shared, p->bytes);
    clock_drop(p->fenced);
    p->fenced = clock_zero();
}

static void perform_reduction(struct pending *p)
{
    if (!p->terms)
        reduction_read(p);
    for (uint32_t i = 0; i < p->bytes / 4; i++)
        p->to[i] += p->terms[i];
    clock_drop(p->fenced);
    free(p->terms);
}

static void perform_at(int index)
{
    struct pending p = machine->pending[index];

    machine->pending[index] = machine->pending[--machine->pending_count];
    if (p.kind == REDUCE)
        perform_reduction(&p);
    else if (p.kind == STORE)
        perform_store(&p);
    else
        perform_copy(&p);
    machine->idle_turns = 0;
}

bool machine_engine_step(void)
{
    if (machine->pending_count == 0)
        return false;
    const int index = (int)machine_random((uint32_t)machine->pending_count);
    struct pending *p = &machine->pending[index];
    if (p->kind == REDUCE && !p->terms && machine_random(2))
        reduction_read(p);
    else
        perform_at(index);
    return true;
}

static void enqueue(struct pending p)
{
    p.owner = machine->self;
    if (machine->pending_count == MAX_PENDING)
        (void)machine_engine_step();
    machine->pending[machine->pending_count++] = p;
    if (p.kind != REDUCE && machine_random(4) == 0)
        perform_at(machine->pending_count - 1);
}

static void enqueue_reduction(struct pending p)
{
    p.block = machine->self->block;
    p.fenced = fenced_of_thread(machine->self);
    check_issued(p.block, p.shared, p.bytes, p.fenced, "bulk reduction");
    enqueue(p);
    machine_maybe_yield();
}

/* Until a copy is done its destination reads as NaN: the old bytes are gone, the new ones not
 * there. */
static void enqueue_copy_to(struct block *block, struct pending p)
{
    struct clock *fenced = fenced_of_thread(machine->self);

    check_issued(block, p.shared, p.bytes, fenced, "bulk copy");
    clock_drop(fenced);
    memset(block->shared + (p.shared - shared_window()), 0xff, p.bytes);
    memset(block->writers + (p.shared - shared_window()) / GRANULE, 0, p.bytes / GRANULE);
    p.block = block;
    p.fenced = clock_zero();
    enqueue(p);
}

static void enqueue_copy(struct pending p)
{
    enqueue_copy_to(machine->self->block, p);
    machine_maybe_yield();
}

/* A multicast is one copy for each block, each done at its own time. */
static void enqueue_multicast(struct pending p, uint32_t blocks)
{
    if (blocks == 0 || blocks >> machine->launch->cluster)
        emulator_fail("multicast: to blocks %x of a cluster of %d", blocks,
                      machine->launch->cluster);
    for (uint32_t left = blocks; left; left &= left - 1)
        enqueue_copy_to(machine_cluster_block((uint32_t)__builtin_ctz(left), "multicast"), p);
    machine_maybe_yield();
}

static struct pending tensor_copy(uint32_t to, const void *map, uint32_t bar, int column, int head,
                                  int row)
{
    const struct emulator_tensor *tensor = map;

    if (tensor->magic != EMULATOR_TENSOR_MAGIC)
        emulator_fail("tensor copy: there is no tensor map at %p", map);
    if (to % 128 || column % 8)
        emulator_fail("tensor copy: to shared address %u, from column %d", to, column);
    return (struct pending){ .kind = COPY_TENSOR,
                             .shared = to,
                             .bar = bar,
                             .bytes = tensor_bytes(tensor),
                             .from = map,
                             .at = { column, head, row } };
}

void emulator_copy_tensor(uint32_t to, const void *map, uint32_t bar, int column, int head, int row)
{
    enqueue_copy(tensor_copy(to, map, bar, column, head, row));
}

void emulator_copy_tensor_to(uint32_t to, const void *map, uint32_t bar, int column, int head,
                             int row, uint32_t blocks)
{
    enqueue_multicast(tensor_copy(to, map, bar, column, head, row), blocks);
}

void emulator_store_async(uint32_t address, uint32_t value, uint32_t bar, uint32_t rank)
{
    struct block *block = machine_cluster_block(rank, "st.async");

    (void)machine_shared_at(block, address, sizeof value, sizeof value, "st.async");
    store_word(block, address, UINT32_MAX);
    enqueue((struct pending){ .kind = STORE,
                              .block = block,
                              .shared = address,
                              .bar = bar,
                              .bytes = sizeof value,
                              .word = value });
    machine_maybe_yield();
}

static void check_bulk(const void *memory, uint32_t shared, int64_t bytes, const char *what)
{
    if ((uintptr_t)memory % 16 || shared % 16 || bytes % 16 || bytes <= 0)
        emulator_fail("%s: %lld bytes, global address %p, shared address %u: not all multiples "
                      "of 16",
                      what, (long long)bytes, memory, shared);
}

void emulator_copy(uint32_t to, const void *from, uint32_t bar, uint32_t bytes)
{
    check_bulk(from, to, bytes, "bulk copy");
    enqueue_copy((struct pending){
        .kind = COPY_BYTES, .shared = to, .bar = bar, .bytes = bytes, .from = from });
}

void emulator_copy_at(uint32_t to, uint32_t from, uint32_t bar, uint32_t bytes, uint32_t rank)
{
    struct pending p = { .kind = COPY_SHARED, .shared = to, .bar = bar, .bytes = bytes };

    check_bulk(NULL, to | from, bytes, "bulk copy to another block");
    p.source.shared = from;
    p.source.fenced = fenced_of_thread(machine->self);
    check_issued(machine->self->block, from, bytes, p.source.fenced, "bulk copy to another block");
    enqueue_copy_to(machine_cluster_block(rank, "bulk copy to another block"), p);
    machine_maybe_yield();
}

void emulator_reduce_add(float *to, uint32_t from, int bytes)
{
    check_bulk(to, from, bytes, "bulk reduction");
    enqueue_reduction(
        (struct pending){ .kind = REDUCE, .shared = from, .bytes = (uint32_t)bytes, .to = to });
}

void emulator_bulk_commit(void)
{
    const uint32_t group = ++machine->self->bulk_groups;

    for (int i = 0; i < machine->pending_count; i++) {
        struct pending *p = &machine->pending[i];
        if (p->kind == REDUCE && p->owner == machine->self && !p->group)
            p->group = group;
    }
}

void emulator_bulk_wait_read(int left)
{
    const int64_t last = (int64_t)machine->self->bulk_groups - left;

    for (int i = 0; i < machine->pending_count; i++) {
        struct pending *p = &machine->pending[i];
        if (p->kind == REDUCE && p->owner == machine->self && p->group && p->group <= last &&
            !p->terms)
            reduction_read(p);
    }
    machine_maybe_yield();
}

void emulator_bulk_wait(int left)
{
    const int64_t last = (int64_t)machine->self->bulk_groups - left;

    for (int i = 0; i < machine->pending_count;) {
        const struct pending *p = &machine->pending[i];
        if (p->kind == REDUCE && p->owner == machine->self && p->group && p->group <= last)
            perform_at(i);
        else
            i++;
    }
    machine_maybe_yield();
}

/* ---- wgmma ---- */

enum { K = 16, MAX_N = 256, LATE_TURNS = 64 };

/* Load 8 contiguous elements of a matrix from shared memory. Where a write is not known to be
 * fenced they are NaN; the launch does not fail, because the kernel may never use the result. */
static void load_chunk(struct block *block, const struct clock *fenced, uint32_t address, int dtype,
                       float out[8])
{
    const uint32_t from = swizzle(address);
    const char *at = machine_shared_at(block, from, GRANULE, GRANULE, "wgmma");
    uint16_t half[8];

    if (unfenced(block, from, fenced))
        memset(half, 0xff, sizeof half);
    else
        memcpy(half, at, sizeof half);
    for (int i = 0; i < 8; i++)
        out[i] = dtype == 1 ? bf16_to_float(half[i]) : fp16_to_float(half[i]);
}

struct descriptor {
    uint32_t address, leading, stride;
};

static struct descriptor decode(uint64_t bits)
{
    if (bits >> 62 != 1)
        emulator_fail("wgmma: a descriptor %llx without the 128-byte swizzle",
                      (unsigned long long)bits);
    return (struct descriptor){ .address = (uint32_t)(bits & 0x3fff) << 4,
                                .leading = (uint32_t)(bits >> 16 & 0x3fff) << 4,
                                .stride = (uint32_t)(bits >> 32 & 0x3fff) << 4 };
}

/* Load a matrix of rows x 16. K-major: rows of 128 bytes, in groups of eight. MN-major: panels of
 * 64 rows, with 128 bytes for each k. */
static void load_matrix(struct block *block, const struct clock *fenced, uint64_t bits,
                        enum emulator_major major, int rows, int dtype, float (*out)[K])
{
    const struct descriptor d = decode(bits);

    if (major == EMULATOR_K_MAJOR) {
        for (int row = 0; row < rows; row++)
            for (int k = 0; k < K; k += 8)
                load_chunk(block, fenced,
                           d.address + (uint32_t)(row / 8) * d.stride + (uint32_t)(row % 8) * 128 +
                               (uint32_t)k * 2,
                           dtype, &out[row][k]);
        return;
    }
    for (int k = 0; k < K; k++)
        for (int row = 0; row < rows; row += 8) {
            float column[8];
            load_chunk(block, fenced,
                       d.address + (uint32_t)(row / 64) * d.leading + (uint32_t)(k / 8) * d.stride +
                           (uint32_t)(k % 8) * 128 + (uint32_t)(row % 64) * 2,
                       dtype, column);
            for (int i = 0; i < 8; i++)
                out[row + i][k] = column[i];
        }
}

/* The first row and column of a thread's fragment. */
static int row_of(int thread)
{
    return thread / 32 * 16 + thread % 32 / 4;
}

static int column_of(int thread)
{
    return thread % 4 * 2;
}

static void registers_to_a(const struct product *product, float (*a)[K])
{
    const int dtype = product->op.dtype;

    for (int t = 0; t < 128; t++)
        for (int i = 0; i < 4; i++)
            for (int e = 0; e < 2; e++)
                a[row_of(t) + i % 2 * 8][column_of(t) + i / 2 * 8 + e] =
                    emulator_from_half(product->a[t][i] >> 16 * e & 0xffff, dtype);
}

EMULATOR_VECTORS
static void multiply(const float (*a)[K], const float (*b)[MAX_N], int n, float (*d)[MAX_N])
{
    for (int row = 0; row < 64; row++)
        for (int k = 0; k < K; k++) {
            const float x = a[row][k];
            for (int column = 0; column < n; column++)
                d[row][column] += x * b[k][column];
        }
}

/* The place of accumulator i of thread t in the product. */
static float *element(float (*d)[MAX_N], int t, int i)
{
    return &d[row_of(t) + i / 2 % 2 * 8][i / 4 * 8 + column_of(t) + i % 2];
}

/* Compute one product. `is_loaded`: d holds the accumulators already, from the product before.
 * `is_left`: leave them there for the next one. */
static void do_product(struct block *block, const struct product *product, bool is_loaded,
                       bool is_left)
{
    static EMULATOR_THREAD float a[64][K], b_rows[MAX_N][K], b[K][MAX_N], d[64][MAX_N];
    const struct emulator_wgmma *op = &product->op;

    if (op->a_major == EMULATOR_REGISTERS)
        registers_to_a(product, a);
    else
        load_matrix(block, product->fenced, op->a, op->a_major, 64, op->dtype, a);
    load_matrix(block, product->fenced, op->b, op->b_major, op->n, op->dtype, b_rows);
    for (int row = 0; row < op->n; row++)
        for (int k = 0; k < K; k++)
            b[k][row] = b_rows[row][k];
    if (!op->accumulate)
        memset(d, 0, sizeof d);
    else if (!is_loaded)
        for (int t = 0; t < 128; t++)
            for (int i = 0; i < op->n / 2; i++)
                *element(d, t, i) = product->d[t][i];
    multiply((const float(*)[K])a, (const float(*)[MAX_N])b, op->n, d);
    if (!is_left)
        for (int t = 0; t < 128; t++)
            for (int i = 0; i < op->n / 2; i++)
                product->d[t][i] = *element(d, t, i);
}

void machine_warpgroup_reset(struct warpgroup *warpgroup)
{
    warpgroup->done = warpgroup->waited = 0;
    for (int i = 0; i < MAX_PRODUCTS; i++) {
        warpgroup->products[i].arrived = 0;
        warpgroup->products[i].threads = (struct fenced_of_threads){ 0 };
    }
}

static struct warpgroup *my_warpgroup(void)
{
    return &machine->self->block->warpgroups[machine->self->thread / 128];
}

static struct product *product_at(struct warpgroup *warpgroup, uint32_t number)
{
    return &warpgroup->products[number % MAX_PRODUCTS];
}

/* Whether two products have the same accumulators. */
static bool is_chained(const struct product *x, const struct product *y)
{
    return x->op.n == y->op.n && memcmp(x->d, y->d, sizeof x->d) == 0;
}

/* Do the products below number `end` that all threads have issued, and wake the threads that wait
 * for them. Accumulators stay in place between products that share them. */
static void do_products(struct block *block, struct warpgroup *warpgroup, uint32_t end)
{
    const int first = (int)(warpgroup - block->warpgroups) * 128;
    bool is_loaded = false;

    while (warpgroup->done != end && product_at(warpgroup, warpgroup->done)->arrived == 128) {
        struct product *product = product_at(warpgroup, warpgroup->done);
        const struct product *next = product_at(warpgroup, warpgroup->done + 1);
        const bool is_left =
            warpgroup->done + 1 != end && next->arrived == 128 && is_chained(product, next);

        do_product(block, product, is_loaded, is_left);
        clock_drop(product->fenced);
        product->arrived = 0;
        warpgroup->done++;
        is_loaded = is_left;
    }
    for (int i = first; i < first + 128; i++) {
        struct fiber *fiber = &block->fibers[i];
        if (fiber->waits_for == FOR_WGMMA && (int32_t)(warpgroup->done - fiber->needed) >= 0)
            machine_wake(fiber);
    }
}

static bool is_same(const struct emulator_wgmma *x, const struct emulator_wgmma *y)
{
    return x->n == y->n && x->dtype == y->dtype && x->accumulate == y->accumulate &&
           x->a_major == y->a_major && x->b_major == y->b_major && x->b == y->b &&
           (x->a_major == EMULATOR_REGISTERS || x->a == y->a);
}

void emulator_wgmma_issue(const struct emulator_wgmma *op, float *d, const uint32_t a[4])
{
    struct fiber *self = machine->self;
    struct warpgroup *warpgroup = my_warpgroup();
    struct product *product = product_at(warpgroup, self->product);
    const int t = self->thread % 128;

    if (self->product - warpgroup->done >= MAX_PRODUCTS)
        emulator_fail("wgmma: more than %d products without a wait", MAX_PRODUCTS);
    if (product->arrived == 0)
        product->op = *op;
    else if (!is_same(&product->op, op))
        emulator_fail("wgmma: the threads of a warpgroup issue different products (n %d and %d, "
                      "A %llx and %llx, B %llx and %llx)",
                      op->n, product->op.n, (unsigned long long)op->a,
                      (unsigned long long)product->op.a, (unsigned long long)op->b,
                      (unsigned long long)product->op.b);
    product->d[t] = d;
    if (op->a_major == EMULATOR_REGISTERS)
        memcpy(product->a[t], a, sizeof product->a[t]);
    fenced_of_threads_add(&product->threads, self);
    product->arrived++;
    self->product++;
    if (product->arrived == 128)
        product->fenced = fenced_of_threads_end(&product->threads);
    if (product->arrived == 128 && machine_random(16) == 0)
        do_products(self->block, warpgroup, self->product);
}

void emulator_wgmma_commit(void)
{
    struct fiber *self = machine->self;

    self->group_end[self->groups++ % MAX_GROUPS] = self->product;
}

/* Some products take up to LATE_TURNS more turns, so that other threads run before the product has
 * read its operands. */
static bool is_late(struct warpgroup *warpgroup, uint32_t needed)
{
    if (warpgroup->waited != needed) {
        warpgroup->waited = needed;
        warpgroup->from = machine->turns + (machine_random(8) ? 0 : machine_random(LATE_TURNS));
    }
    return machine->turns < warpgroup->from;
}

void emulator_wgmma_wait(int pending)
{
    struct fiber *self = machine->self;
    struct warpgroup *warpgroup = my_warpgroup();

    if (pending < 0 || pending >= MAX_GROUPS)
        emulator_fail("wgmma.wait_group %d", pending);
    if (self->groups <= (uint32_t)pending)
        return;
    self->needed = self->group_end[(self->groups - 1 - (uint32_t)pending) % MAX_GROUPS];
    while ((int32_t)(self->needed - warpgroup->done) > 0)
        if (product_at(warpgroup, self->needed - 1)->arrived < 128)
            machine_wait(FOR_WGMMA);
        else if (is_late(warpgroup, self->needed))
            emulator_yield();
        else
            do_products(self->block, warpgroup, self->needed);
}

void machine_block_done(struct block *block)
{
    machine->self = NULL;
    for (int i = 0; i < machine->launch->threads / 128; i++)
        if (product_at(&block->warpgroups[i], block->warpgroups[i].done)->arrived)
            emulator_fail("block %d ended with wgmma in flight", block->index);
    for (int i = 0; i < machine->pending_count; i++)
        if (machine->pending[i].block == block ||
            (machine->pending[i].kind == COPY_SHARED && machine->pending[i].owner->block == block))
            emulator_fail("block %d ended with %s in flight", block->index,
                          machine->pending[i].kind == STORE ? "a word of st.async"
                                                            : "a copy or a reduction");
}

/* ---- mma.sync and its operands ---- */

static uint32_t matrix_row(uint32_t address, uint32_t matrix, const char *what)
{
    const uint64_t *addresses = emulator_warp(address, what);
    const uint32_t lane = (uint32_t)machine->self->thread % 32;

    return (uint32_t)addresses[8 * matrix + lane / 4] + lane % 4 * 4;
}

void emulator_ldmatrix_x4(uint32_t words[4], uint32_t address)
{
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t at = matrix_row(address, i, "ldmatrix");
        memcpy(&words[i], emulator_shared_at(at, 4, 4, "ldmatrix"), 4);
    }
}

void emulator_stmatrix_x4(uint32_t address, const uint32_t words[4])
{
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t at = matrix_row(address, i, "stmatrix");
        memcpy(emulator_shared_at(at, 4, 4, "stmatrix"), &words[i], 4);
        emulator_shared_written(at, 4);
    }
}

/* A's words: (row, k 0-7), (row + 8, k 0-7), (row, k 8-15), (row + 8, k 8-15); B's: (k 0-7,
 * column), (k 8-15, column); d: (row, two columns), (row + 8, two columns). */
static void multiply_fragments(const struct fiber *lanes, int dtype)
{
    float a[16][K], b[8][K];

    for (int lane = 0; lane < 32; lane++) {
        const int row = lane / 4, column = lane % 4 * 2;
        for (int i = 0; i < 4; i++)
            for (int e = 0; e < 2; e++)
                a[row + i % 2 * 8][column + i / 2 * 8 + e] =
                    emulator_from_half(lanes[lane].mma->a[i] >> 16 * e & 0xffff, dtype);
        for (int i = 0; i < 2; i++)
            for (int e = 0; e < 2; e++)
                b[row][column + i * 8 + e] =
                    emulator_from_half(lanes[lane].mma->b[i] >> 16 * e & 0xffff, dtype);
    }
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < K; k++)
                lanes[lane].mma->d[i] += a[lane / 4 + i / 2 * 8][k] * b[lane % 4 * 2 + i % 2][k];
}

void emulator_mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], int dtype)
{
    struct fiber *self = machine->self;

    self->mma = &(struct mma){ d, a, b };
    if (machine_warp_arrive("mma")) {
        multiply_fragments(&self->block->fibers[self->thread / 32 * 32], dtype);
        machine_warp_release();
    }
}
