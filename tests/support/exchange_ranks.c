/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors and ranks of exchange_ranks.h.
 */
#include "support/exchange_ranks.h"

#include "base/half.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors ---- */

enum { PATTERN = 0xa5 };

void rows_init(struct rows_tensor *tensor, struct rng *rng, int64_t rows, int32_t heads,
               int64_t columns, int32_t element_bytes, bool is_packed)
{
    const int64_t gap = is_packed ? 0 : rng_range(rng, 0, 3) * rng_range(rng, 0, 1);

    *tensor = (struct rows_tensor){ .rows = rows,
                                    .heads = heads,
                                    .columns = columns,
                                    .element_bytes = element_bytes,
                                    .begin = is_packed ? 0 : rng_range(rng, 0, 2) };
    if (is_packed || rng_range(rng, 0, 2)) {
        tensor->head_stride = columns + gap;
        tensor->token_stride = tensor->head_stride * heads + gap;
    } else { /* rows within heads */
        tensor->token_stride = columns + gap;
        tensor->head_stride = tensor->token_stride * (rows + 1);
    }
    tensor->bytes = element_bytes * (tensor->begin + (rows + 1) * tensor->token_stride +
                                     heads * tensor->head_stride);
    tensor->host = malloc((size_t)tensor->bytes);
    tensor->found = malloc((size_t)tensor->bytes);
    memset(tensor->host, PATTERN, (size_t)tensor->bytes);
}

void rows_free_host(struct rows_tensor *tensor)
{
    free(tensor->host);
    free(tensor->found);
}

unsigned char *rows_element(const struct rows_tensor *tensor, int64_t row, int32_t head,
                            int64_t column)
{
    return tensor->host + tensor->element_bytes * (tensor->begin + row * tensor->token_stride +
                                                   head * tensor->head_stride + column);
}

float number_load(int32_t dtype, const unsigned char *at)
{
    uint16_t half;
    float x;

    if (dtype == FFA_FP32) {
        memcpy(&x, at, sizeof x);
        return x;
    }
    memcpy(&half, at, sizeof half);
    return dtype == FFA_BF16 ? bf16_to_float(half) : fp16_to_float(half);
}

void number_store(int32_t dtype, unsigned char *at, float value)
{
    const uint16_t half = dtype == FFA_BF16 ? bf16_from_float(value) : fp16_from_float(value);

    if (dtype == FFA_FP32)
        memcpy(at, &value, sizeof value);
    else
        memcpy(at, &half, sizeof half);
}

void rows_draw(struct rows_tensor *tensor, struct rng *rng, int32_t dtype)
{
    for (int64_t r = 0; r < tensor->rows; r++)
        for (int32_t h = 0; h < tensor->heads; h++)
            for (int64_t c = 0; c < tensor->columns; c++) {
                const uint64_t bits = rng_next(rng);

                if (dtype)
                    number_store(dtype, rows_element(tensor, r, h, c), (float)rng_bell(rng));
                else
                    memcpy(rows_element(tensor, r, h, c), &bits, (size_t)tensor->element_bytes);
            }
}

void rows_copy_row(struct rows_tensor *to, int64_t to_row, const struct rows_tensor *from,
                   int64_t from_row)
{
    for (int32_t h = 0; h < to->heads; h++)
        memcpy(rows_element(to, to_row, h, 0), rows_element(from, from_row, h, 0),
               (size_t)(to->columns * to->element_bytes));
}

void rows_fill_row(struct rows_tensor *to, int64_t row, uint64_t element)
{
    for (int32_t h = 0; h < to->heads; h++)
        for (int64_t c = 0; c < to->columns; c++)
            memcpy(rows_element(to, row, h, c), &element, (size_t)to->element_bytes);
}

void rows_check(const struct rows_tensor *tensor, const char *what, int32_t rank)
{
    for (int64_t i = 0; i < tensor->bytes; i++)
        ck_assert_msg(
            tensor->found[i] == tensor->host[i],
            "%s, rank %d: byte %lld of %lld rows of %d x %lld elements of %d bytes, %lld and "
            "%lld apart from %lld, is %02x, not %02x",
            what, rank, (long long)i, (long long)tensor->rows, tensor->heads,
            (long long)tensor->columns, tensor->element_bytes, (long long)tensor->token_stride,
            (long long)tensor->head_stride, (long long)tensor->begin, tensor->found[i],
            tensor->host[i]);
}

ffa_tensor rows_view(const struct rows_tensor *tensor, bool is_device)
{
    unsigned char *const base = is_device ? tensor->device : tensor->host;
    ffa_tensor view = FFA_TENSOR_INIT(base + tensor->begin * tensor->element_bytes);

    view.token_stride = tensor->token_stride;
    view.head_stride = tensor->head_stride;
    return view;
}

/* ---- ranks ---- */

ffa_status rank_alloc(struct exchange_rank *rank, void **out, int64_t bytes)
{
    const ffa_status rc = env_alloc(rank->context, out, bytes, &rank->err);

    if (rc == FFA_OK)
        rank->memories[rank->memory_count++] = *out;
    return rc;
}

ffa_status rank_send(struct exchange_rank *rank, struct rows_tensor *tensor)
{
    ffa_status rc = tensor->device ? FFA_OK : rank_alloc(rank, &tensor->device, tensor->bytes);

    if (rc == FFA_OK)
        rc = env_copy(rank->context, tensor->device, tensor->host, tensor->bytes, FFA_TO_DEVICE,
                      &rank->err);
    return rc;
}

ffa_status rank_receive(struct exchange_rank *rank, struct rows_tensor *tensor)
{
    return env_copy(rank->context, tensor->found, tensor->device, tensor->bytes, FFA_FROM_DEVICE,
                    &rank->err);
}

ffa_transport exchange_transport = FFA_TRANSPORT_AUTO;

static ffa_status rank_work(struct exchange_rank *rank, int64_t timeout_ms)
{
    ffa_peer_opts opts = FFA_PEER_OPTS_INIT;
    ffa_status rc;

    opts.timeout_ms = timeout_ms;
    opts.transport = (int32_t)exchange_transport;
    rc = bootstrap_join(&rank->comm, rank->context, &rank->end, &opts, &rank->err);
    if (rc == FFA_OK)
        rc = env_stream(rank->context, &rank->stream, &rank->err);
    if (rc == FFA_OK)
        rc = rank->work(rank);
    return rc;
}

struct start {
    struct exchange_rank *rank;
    int64_t timeout_ms;
    pthread_barrier_t *end;
};

static void *run_rank(void *user)
{
    const struct start *start = user;
    struct exchange_rank *rank = start->rank;

    rank->status = rank_work(rank, start->timeout_ms);
    if (rank->status != FFA_OK)
        bootstrap_leave(&rank->end);
    if (rank->stream)
        (void)env_synchronize(rank->context, rank->stream, NULL);
    (void)pthread_barrier_wait(start->end); /* nobody leaves while others still begin calls */
    ffa_comm_destroy(rank->comm);
    for (int i = 0; i < rank->memory_count; i++)
        env_free(rank->context, rank->memories[i]);
    if (rank->stream)
        env_stream_free(rank->context, rank->stream);
    return NULL;
}

void ranks_run(struct exchange_rank *ranks, int32_t count, int64_t timeout_ms,
               ffa_status (*work)(struct exchange_rank *rank), void *user)
{
    struct bootstrap *bootstrap = bootstrap_new(count);
    struct start starts[EXCHANGE_RANKS];
    pthread_barrier_t end;

    ck_assert_int_eq(pthread_barrier_init(&end, NULL, (unsigned)count), 0);
    for (int32_t r = 0; r < count; r++) {
        ranks[r] = (struct exchange_rank){ .rank = r,
                                           .count = count,
                                           .context = env_context(r),
                                           .end = { .all = bootstrap, .rank = r },
                                           .work = work,
                                           .user = user };
        starts[r] = (struct start){ &ranks[r], timeout_ms, &end };
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, run_rank, &starts[r]), 0);
    }
    for (int32_t r = 0; r < count; r++)
        pthread_join(ranks[r].thread, NULL);
    pthread_barrier_destroy(&end);
    bootstrap_free(bootstrap);
}

void ranks_check(const struct exchange_rank *ranks, int32_t count)
{
    char text[EXCHANGE_RANKS * 300] = "";
    size_t used = 0;

    for (int32_t r = 0; r < count; r++)
        if (ranks[r].status != FFA_OK && used < sizeof text)
            used +=
                (size_t)snprintf(text + used, sizeof text - used, "rank %d: status %d: %.250s; ", r,
                                 (int)ranks[r].status, ranks[r].err.message);
    ck_assert_msg(used == 0, "%s", text);
}

/* ---- kernels ---- */

enum { KERNELS_MAX = 64 };

static struct {
    ffa_context *context;
    struct exchange_types types;
    ffa_row_kernels *kernels;
} made[KERNELS_MAX];
static int made_count;

const ffa_row_kernels *kernels_of(ffa_context *context, int32_t dtype, int32_t wire_dtype,
                                  uint32_t reduces)
{
    ffa_row_kernels_opts opts = FFA_ROW_KERNELS_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    for (int i = 0; i < made_count; i++)
        if (made[i].context == context && made[i].types.dtype == dtype &&
            made[i].types.wire_dtype == wire_dtype && made[i].types.reduces == reduces)
            return made[i].kernels;
    ck_assert_int_lt(made_count, KERNELS_MAX);
    opts.dtype = dtype;
    opts.wire_dtype = wire_dtype;
    opts.reduces = reduces;
    made[made_count].context = context;
    made[made_count].types = (struct exchange_types){ dtype, wire_dtype, reduces };
    ck_assert_msg(ffa_row_kernels_create(&made[made_count].kernels, context, &opts, &err) == FFA_OK,
                  "%s", err.message);
    return made[made_count++].kernels;
}

void kernels_free(void)
{
    for (int i = 0; i < made_count; i++)
        ffa_row_kernels_destroy(made[i].kernels);
    made_count = 0;
}
