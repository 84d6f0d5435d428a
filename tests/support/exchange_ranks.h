/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchanges of rows by ranks that are threads: what programs on a GPU, on the emulator and on a GPU
 * without kernels have in common. The program defines the functions env_...; nothing is asserted on
 * the ranks' threads.
 */
#ifndef TESTS_EXCHANGE_RANKS_H
#define TESTS_EXCHANGE_RANKS_H

#include "support/bootstrap.h"
#include "support/rng.h"

#include <ffa/ffa.h>
#include <pthread.h>
#include <stdbool.h>

/* ---- defined by the program ---- */

/* Shared by ranks or not; not owned. */
ffa_context *env_context(int32_t rank);
ffa_status env_alloc(ffa_context *context, void **out, int64_t bytes, ffa_error *err);
void env_free(ffa_context *context, void *memory);
ffa_status env_copy(ffa_context *context, void *to, const void *from, int64_t bytes,
                    ffa_copy_direction direction, ffa_error *err);
ffa_status env_stream(ffa_context *context, ffa_stream *out, ffa_error *err);
void env_stream_free(ffa_context *context, ffa_stream stream);
ffa_status env_synchronize(ffa_context *context, ffa_stream stream, ffa_error *err);

/* ---- tensors on both sides ---- */

/* Rows of [heads][columns] elements, with gaps or none, in memory full of 0xa5. */
struct rows_tensor {
    int64_t rows, columns;
    int32_t heads, element_bytes;
    int64_t begin, token_stride, head_stride; /* elements */
    int64_t bytes;
    unsigned char *host; /* what is there, or is expected to be */
    unsigned char *found;
    void *device; /* NULL: not yet */
};

/* is_packed: no gaps. */
void rows_init(struct rows_tensor *tensor, struct rng *rng, int64_t rows, int32_t heads,
               int64_t columns, int32_t element_bytes, bool is_packed);
void rows_free_host(struct rows_tensor *tensor);
unsigned char *rows_element(const struct rows_tensor *tensor, int64_t row, int32_t head,
                            int64_t column);
/* Numbers of a dtype, or with dtype 0 any bytes. */
void rows_draw(struct rows_tensor *tensor, struct rng *rng, int32_t dtype);
void rows_copy_row(struct rows_tensor *to, int64_t to_row, const struct rows_tensor *from,
                   int64_t from_row);
void rows_fill_row(struct rows_tensor *to, int64_t row, uint64_t element);
/* Fails the test where what was found is not what is expected, byte by byte. */
void rows_check(const struct rows_tensor *tensor, const char *what, int32_t rank);
ffa_tensor rows_view(const struct rows_tensor *tensor, bool is_device);

float number_load(int32_t dtype, const unsigned char *at);
void number_store(int32_t dtype, unsigned char *at, float value);

/* ---- ranks ---- */

enum { EXCHANGE_RANKS = 4, RANK_MEMORIES = 24 };

struct exchange_rank {
    int32_t rank, count;
    ffa_context *context;
    struct bootstrap_end end;
    ffa_comm *comm;
    ffa_stream stream;
    ffa_status status;
    ffa_error err;
    void *memories[RANK_MEMORIES]; /* freed at the end */
    int memory_count;
    void *user;
    ffa_status (*work)(struct exchange_rank *rank);
    pthread_t thread;
};

/* What the rank's thread does with memory. */
ffa_status rank_alloc(struct exchange_rank *rank, void **out, int64_t bytes);
/* The tensor on the device, as its host memory is now. */
ffa_status rank_send(struct exchange_rank *rank, struct rows_tensor *tensor);
ffa_status rank_receive(struct exchange_rank *rank, struct rows_tensor *tensor);

/* What ranks ask for; AUTO unless a test says otherwise. */
extern ffa_transport exchange_transport;
/* Runs `work` on all ranks, each with a communicator without windows; its status and message are
 * left in the ranks. */
void ranks_run(struct exchange_rank *ranks, int32_t count, int64_t timeout_ms,
               ffa_status (*work)(struct exchange_rank *rank), void *user);
/* Fails the test where a rank has. */
void ranks_check(const struct exchange_rank *ranks, int32_t count);

/* ---- lists of groups (exchange_lists.c) ---- */

enum { PIECES = 6, PIECE_ROWS = 9, OUTPUT_PIECES = PIECES * PIECE_ROWS * EXCHANGE_RANKS + 1 };

struct rank_lists {
    int64_t input_rows[PIECES], output_rows[OUTPUT_PIECES], dst_begin[PIECES + 1];
    int32_t dst[PIECES * EXCHANGE_RANKS], src[OUTPUT_PIECES];
    int64_t input_count, output_count;
};

/* Lists of all ranks, some of them without rows, and their group; to be destroyed. */
ffa_group *lists_group(struct rank_lists *lists, struct rng *rng, int32_t count);
/* That one rank casts to another. */
int64_t rows_between(const struct rank_lists *from, int32_t to);

/* ---- cases ---- */

/* Kernels of all ranks: made in turns for each context; freed by the program's end. */
const ffa_row_kernels *kernels_of(ffa_context *context, int32_t dtype, int32_t wire_dtype,
                                  uint32_t reduces);
void kernels_free(void);

/* dtypes of a case: added ones, and how they travel. */
struct exchange_types {
    int32_t dtype, wire_dtype;
    uint32_t reduces;
};

void rows_case(uint64_t seed, const struct exchange_types *types);
void rows_refusals(void);
void group_case(uint64_t seed, const struct exchange_types *types);
void group_refusals(void);
/* A rank that does not call; ranks whose calls differ. */
void group_absent(void);
void group_other_call(void);

#endif
