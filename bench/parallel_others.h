/* SPDX-License-Identifier: Apache-2.0
 *
 * What a rank has for the methods of others, and how its streams wait for other ranks: by words in
 * device memory that count calls. A buffer that peers pull from is written when all of them have
 * pulled what was there.
 */
#ifndef BENCH_PARALLEL_OTHERS_H
#define BENCH_PARALLEL_OTHERS_H

#include "parallel_case.h"

#include "attention/rows_device.h"
#include "gpu/gpu_stream.h"

/* Memory of a rank that its peers reach: addresses of its process, or mapped by CUDA IPC. */
enum reach {
    REACH_WORDS,
    REACH_K, /* ring: the rank's keys and values, */
    REACH_V,
    REACH_DK, /* and sums of all steps */
    REACH_DV,
    REACH_PACKED, /* Ulysses: of each tensor */
    REACH_GROUP = REACH_PACKED + TENSORS,
    REACHES = REACH_GROUP + TENSORS
};

/* Of a rank's words, one for each peer and pass. */
enum word_kind { READY, TAKEN, BACK_READY, BACK_TAKEN, KINDS };
enum { COPY, SUMS, STREAMS };

struct others {
    struct gpu_device *gpu;
    struct gpu_stream *streams[STREAMS];
    struct gpu_event *begin, *back, *arrived[RANKS_MAX], *computed[RANKS_MAX];
    /* By rank; NULL where a method has none. Words: device memory [2][KINDS][RANKS_MAX]. */
    void *reached[RANKS_MAX][REACHES];
    uint64_t calls[2];
    int64_t rows;              /* of the rank */
    int32_t heads_q, heads_kv; /* of its kernels */
    ffa_kernels *kernels;
    ffa_plan *plans[RANKS_MAX];
    void *uploads[RANKS_MAX], *workspace;
    int64_t plan_count, workspace_bytes;
    /* ring */
    void *keys[2][2];      /* K and V of two steps */
    void *sums[2], *in[2]; /* dK and dV, fp32: [ranks][rows] of each step; [ranks - 1][rows] */
    void *partial, *dq;    /* fp32 */
    struct row_segment *segment;
    int64_t *sources;
    /* Ulysses: a tensor's rows by group, and all rows of the rank's group. */
    void *packed[TENSORS], *group[TENSORS];
};

/* Zero; on the rank's GPU. */
void *others_allocate(const struct rank *r, int64_t bytes);
/* The same of memory that peers reach. */
void *others_share(struct others *o, const struct rank *r, enum reach reach, int64_t bytes);
void others_kernels(struct others *o, const struct rank *r, uint32_t flags, int32_t heads_q,
                    int32_t heads_kv);
/* Upload o->plans[i], the next one, and find out its workspace. */
void others_add_plan(struct others *o, const struct rank *r, int64_t i);

/* The word of rank `of` that rank `from` writes. */
uint64_t *others_word_of(const struct others *o, int32_t of, bool is_backward, enum word_kind kind,
                         int32_t from);
/* The stream waits for a word, or writes it. */
void others_word(const struct others *o, ffa_stream stream, uint64_t *at, uint64_t value,
                 bool is_wait);
/* Write this call's number into the own word of all ranks; wait for those of all. */
void others_tell(const struct rank *r, int v, bool is_backward, enum word_kind kind,
                 ffa_stream stream);
void others_wait(const struct rank *r, int v, bool is_backward, enum word_kind kind, uint64_t call,
                 ffa_stream stream);
/* `then` waits for what is on `first` now. */
void others_follow(struct gpu_event *event, ffa_stream first, ffa_stream then);

void ring_create(struct others *o, const struct rank *r, struct rank_plan *p);
void ring_pass(struct rank *r, int v, bool is_backward);
void ulysses_create(struct others *o, const struct rank *r, struct rank_plan *p);
void ulysses_pass(struct rank *r, int v, bool is_backward);

#endif
