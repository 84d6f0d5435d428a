/* SPDX-License-Identifier: Apache-2.0
 *
 * The needs of all ranks: which keys each rank attends and does not own, in ranges.
 *
 * A range may hold keys of many owners: who owns them follows from the layout, so memory grows with
 * ranges and chunks, not with pairs of chunk and receiver. The rows a rank receives have two
 * orders: by token; and, as stages take them, by link class (its own node first), then by token:
 * its ordered rows. Units: tokens, and rows of buffers.
 */
#ifndef FFA_PARALLEL_PLAN_RANK_NEEDS_H
#define FFA_PARALLEL_PLAN_RANK_NEEDS_H

#include "parallel/dispatch/layout.h"

#include <ffa/parallel_dispatch.h>

/* Chunks that all ranks receive together, at most: what the tables of all ranks are counted by. */
#define RANK_NEEDS_CHUNKS_MAX ((int64_t)1 << 28)

struct rank_needs_input {
    const struct layout *queries;
    const struct layout *keys;
    const struct needs *needs; /* of the query chunks */
    ffa_topology topology;     /* resolved */
};

/* Keys [begin, end), all received. */
struct rank_need {
    int64_t begin, end;
    int64_t row;  /* rows that the rank receives before, by token */
    int64_t near; /* of these, those of its own node */
};

/* Keys [begin, end) of one chunk; `before` rows of the node's keys come before. */
struct node_keys {
    int64_t begin, end, before;
};

struct rank_needs {
    ffa_topology topology;     /* resolved */
    const struct layout *keys; /* borrowed */
    int64_t *begin;            /* [ranks + 1]: into at */
    struct rank_need *at;      /* of each rank: ascending, apart, none of its own keys */
    int64_t *rows;             /* [ranks]: received */
    int64_t *near_rows;        /* [ranks]: of these, those of the rank's node */
    int64_t *node_begin;       /* [nodes + 1]: into node_keys */
    struct node_keys *node_keys;
};

/* Keeps in->keys. Fails with FFA_NOMEM, FFA_UNSUPPORTED: beyond RANK_NEEDS_CHUNKS_MAX. */
ffa_status rank_needs_build(struct rank_needs *out, const struct rank_needs_input *in,
                            ffa_error *err);
void rank_needs_finish(struct rank_needs *needs);

bool rank_needs_is_near(const struct rank_needs *needs, int32_t owner, int32_t rank);
/* The ordered row of a key inside one of the rank's ranges. */
int64_t rank_needs_row(const struct rank_needs *needs, int32_t rank, const struct rank_need *in,
                       int64_t key, bool is_near);

/* Keys [begin, end) of one owner, as one rank receives them: rows [row, ..) of its ordered rows. */
struct rank_receive {
    int64_t begin, end;
    int64_t source_row; /* in the owner's buffer */
    int64_t row;
    int32_t owner;
    int32_t is_near;
};

struct rank_receives {
    struct rank_receive *at;
    int64_t count, capacity;
};

/* All that a rank receives, by token, cut at the ends of chunks; appended. */
ffa_status rank_receives_build(struct rank_receives *out, const struct rank_needs *needs,
                               int32_t rank, ffa_error *err);
/* What `rank` receives of the keys of `owner`; appended. */
ffa_status rank_receives_from(struct rank_receives *out, const struct rank_needs *needs,
                              int32_t rank, int32_t owner, ffa_error *err);
void rank_receives_finish(struct rank_receives *receives);
/* The part of a receive in the ordered rows [begin, end); false: there is none. */
bool rank_receive_cut(struct rank_receive *out, const struct rank_receive *receive, int64_t begin,
                      int64_t end);

#endif
