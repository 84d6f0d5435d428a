/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_group_create: split lists to copies. What one rank sends to another is a queue of rows, in
 * the order of its input; the receiver's list takes them from the queue in the order of its output.
 * A copy ends where a piece of either list ends. Invariant: every row of every queue is received,
 * or the lists are refused. Sends are the receives by source, so the reduce needs no lists of its
 * own.
 */
#include "parallel/run/group.h"

/* ---- arguments ---- */

static ffa_status check_input(const ffa_group_lists *lists, int32_t rank, int32_t rank_count,
                              int64_t *stamp, int64_t *stamps, ffa_error *err)
{
    for (int64_t i = 0; i < lists->input_count; i++) {
        const int64_t begin = lists->dst_begin[i], end = lists->dst_begin[i + 1];

        if (lists->input_rows[i] < 0)
            return error_fail(err, FFA_INVALID, 0, "rank %d: input piece %lld has %lld rows", rank,
                              (long long)i, (long long)lists->input_rows[i]);
        if (begin > end || (i == 0 && begin != 0))
            return error_fail(err, FFA_INVALID, 0,
                              "rank %d: dst_begin goes from %lld to %lld at input piece %lld", rank,
                              (long long)begin, (long long)end, (long long)i);
        if (end > begin && !lists->dst)
            return error_fail(err, FFA_INVALID, 0, "rank %d: dst is NULL", rank);
        ++*stamps;
        for (int64_t d = begin; d < end && lists->input_rows[i] > 0; d++) {
            const int32_t to = lists->dst[d];

            if (to < 0 || to >= rank_count)
                return error_fail(err, FFA_INVALID, 0,
                                  "rank %d: input piece %lld goes to rank %d, not in [0, %d)", rank,
                                  (long long)i, to, rank_count);
            if (stamp[to] == *stamps)
                return error_fail(err, FFA_INVALID, 0,
                                  "rank %d: input piece %lld goes to rank %d twice", rank,
                                  (long long)i, to);
            stamp[to] = *stamps;
        }
    }
    return FFA_OK;
}

static ffa_status check_output(const ffa_group_lists *lists, int32_t rank, int32_t rank_count,
                               ffa_error *err)
{
    for (int64_t i = 0; i < lists->output_count; i++) {
        if (lists->output_rows[i] < 0)
            return error_fail(err, FFA_INVALID, 0, "rank %d: output piece %lld has %lld rows", rank,
                              (long long)i, (long long)lists->output_rows[i]);
        if (lists->output_rows[i] > 0 && (lists->src[i] < 0 || lists->src[i] >= rank_count))
            return error_fail(err, FFA_INVALID, 0,
                              "rank %d: output piece %lld comes from rank %d, not in [0, %d)", rank,
                              (long long)i, lists->src[i], rank_count);
    }
    return FFA_OK;
}

static ffa_status sum_rows(int64_t *sum, const int64_t *rows, int64_t count, int32_t rank,
                           ffa_error *err)
{
    for (int64_t i = 0; i < count; i++)
        if (__builtin_add_overflow(*sum, rows[i], sum))
            return error_fail(err, FFA_INVALID, 0, "rank %d: a buffer of more than 2^63 - 1 rows",
                              rank);
    return FFA_OK;
}

static ffa_status check_lists(ffa_group *group, const ffa_group_lists *lists, ffa_error *err)
{
    int64_t *stamp = mem_array((size_t)group->rank_count, sizeof *stamp), stamps = 0;
    ffa_status rc = FFA_OK;

    if (!stamp) {
        rc = error_nomem(err, "a group");
        goto out;
    }
    for (int32_t r = 0; r < group->rank_count; r++) {
        const ffa_group_lists *list = &lists[r];
        const char *missing = NULL;

        if (list->input_count < 0 || list->output_count < 0) {
            rc = error_fail(err, FFA_INVALID, 0, "rank %d: %s_count is negative", r,
                            list->input_count < 0 ? "input" : "output");
            goto out;
        }
        if (list->input_count > 0)
            missing = !list->input_rows ? "input_rows" : !list->dst_begin ? "dst_begin" : NULL;
        if (!missing && list->output_count > 0)
            missing = !list->output_rows ? "output_rows" : !list->src ? "src" : NULL;
        if (missing) {
            rc = error_fail(err, FFA_INVALID, 0, "rank %d: %s is NULL", r, missing);
            goto out;
        }
        FFA_TRY(check_input(list, r, group->rank_count, stamp, &stamps, err));
        FFA_TRY(check_output(list, r, group->rank_count, err));
        FFA_TRY(sum_rows(&group->sizes[r].input_rows, list->input_rows, list->input_count, r, err));
        FFA_TRY(
            sum_rows(&group->sizes[r].output_rows, list->output_rows, list->output_count, r, err));
    }
out:
    mem_free(stamp);
    return rc;
}

/* ---- queues: what is sent to each rank, by source, in the order of its input ---- */

struct queued {
    int64_t row, rows; /* of the source's input */
    int32_t source;
    int32_t pad_;
};

struct queues {
    int64_t *begin; /* [ranks + 1], by destination */
    struct queued *at;
};

/* Calls of visit_sends with at NULL count, and then fill: at[cursor[destination]++]. */
static void visit_sends(const ffa_group_lists *lists, int32_t rank_count, int64_t *cursor,
                        struct queued *at)
{
    for (int32_t s = 0; s < rank_count; s++) {
        int64_t row = 0;

        for (int64_t i = 0; i < lists[s].input_count; i++) {
            const int64_t rows = lists[s].input_rows[i];

            for (int64_t d = lists[s].dst_begin[i]; d < lists[s].dst_begin[i + 1] && rows > 0;
                 d++) {
                const int64_t place = cursor[lists[s].dst[d]]++;

                if (at)
                    at[place] = (struct queued){ row, rows, s, 0 };
            }
            row += rows;
        }
    }
}

static ffa_status find_queues(struct queues *out, const ffa_group_lists *lists, int32_t rank_count,
                              ffa_error *err)
{
    out->begin = mem_array((size_t)rank_count + 1, sizeof *out->begin);
    if (!out->begin)
        return error_nomem(err, "a group");
    visit_sends(lists, rank_count, out->begin, NULL);
    begins_from_counts(out->begin, rank_count);
    out->at = mem_array((size_t)out->begin[rank_count], sizeof *out->at);
    if (!out->at)
        return error_nomem(err, "a group");
    visit_sends(lists, rank_count, out->begin, out->at);
    begins_move_back(out->begin, rank_count);
    return FFA_OK;
}

/* ---- receives ---- */

/* How far one rank has read the queue of a source. */
struct cursor {
    int64_t next; /* into queues */
    int64_t used; /* rows of it */
    int64_t sent, expected;
};

static ffa_status check_sums(struct cursor *cursors, const struct queues *queues,
                             const ffa_group_lists *list, int32_t rank, int32_t rank_count,
                             ffa_error *err)
{
    memset(cursors, 0, (size_t)rank_count * sizeof *cursors);
    for (int64_t i = queues->begin[rank + 1]; i-- > queues->begin[rank];) {
        struct cursor *cursor = &cursors[queues->at[i].source];

        cursor->next = i;
        cursor->sent += queues->at[i].rows;
    }
    for (int64_t i = 0; i < list->output_count; i++)
        if (list->output_rows[i] > 0)
            cursors[list->src[i]].expected += list->output_rows[i];
    for (int32_t s = 0; s < rank_count; s++)
        if (cursors[s].sent != cursors[s].expected)
            return error_fail(err, FFA_INVALID, 0,
                              "rank %d expects %lld rows of rank %d, which sends it %lld", rank,
                              (long long)cursors[s].expected, s, (long long)cursors[s].sent);
    return FFA_OK;
}

static ffa_status add_copy(struct group_table *table, int64_t first, ffa_group_copy copy,
                           ffa_error *err)
{
    ffa_group_copy *last = table->count > first ? &table->copies[table->count - 1] : NULL;

    if (last && last->rank == copy.rank && last->input_row + last->rows == copy.input_row &&
        last->output_row + last->rows == copy.output_row) {
        last->rows += copy.rows;
        return FFA_OK;
    }
    if (!mem_grow((void **)&table->copies, &table->capacity, table->count + 1,
                  sizeof *table->copies))
        return error_nomem(err, "the copies of a group");
    table->copies[table->count++] = copy;
    return FFA_OK;
}

static ffa_status receive(ffa_group *group, struct cursor *cursors, const struct queues *queues,
                          const ffa_group_lists *list, ffa_error *err)
{
    const int64_t first = group->receives.count;
    int64_t row = 0;
    ffa_status rc = FFA_OK;

    for (int64_t i = 0; i < list->output_count; i++)
        for (int64_t left = list->output_rows[i]; left > 0;) {
            struct cursor *cursor = &cursors[list->src[i]];
            const struct queued *queued = &queues->at[cursor->next];
            const int64_t rest = queued->rows - cursor->used;
            const ffa_group_copy copy = { .struct_size = (uint32_t)sizeof copy,
                                          .rank = list->src[i],
                                          .input_row = queued->row + cursor->used,
                                          .output_row = row,
                                          .rows = rest < left ? rest : left };

            FFA_TRY(add_copy(&group->receives, first, copy, err));
            row += copy.rows;
            left -= copy.rows;
            cursor->used += copy.rows;
            if (cursor->used == queued->rows) {
                cursor->used = 0;
                cursor->next++;
            }
        }
out:
    return rc;
}

static ffa_status build_receives(ffa_group *group, const ffa_group_lists *lists, ffa_error *err)
{
    struct cursor *cursors = mem_array((size_t)group->rank_count, sizeof *cursors);
    struct queues queues = { 0 };
    ffa_status rc;

    if (!cursors) {
        rc = error_nomem(err, "a group");
        goto out;
    }
    FFA_TRY(find_queues(&queues, lists, group->rank_count, err));
    for (int32_t r = 0; r < group->rank_count; r++) {
        FFA_TRY(check_sums(cursors, &queues, &lists[r], r, group->rank_count, err));
        group->receives.begin[r] = group->receives.count;
        FFA_TRY(receive(group, cursors, &queues, &lists[r], err));
    }
    group->receives.begin[group->rank_count] = group->receives.count;
out:
    mem_free(cursors);
    mem_free(queues.begin);
    mem_free(queues.at);
    return rc;
}

/* ---- sends: the transpose ---- */

static ffa_status build_sends(ffa_group *group, ffa_error *err)
{
    const struct group_table *from = &group->receives;
    struct group_table *to = &group->sends;

    to->copies = mem_array((size_t)from->count, sizeof *to->copies);
    if (!to->copies)
        return error_nomem(err, "the copies of a group");
    to->count = from->count;
    for (int64_t i = 0; i < from->count; i++)
        to->begin[from->copies[i].rank]++;
    begins_from_counts(to->begin, group->rank_count);
    for (int32_t r = 0; r < group->rank_count; r++)
        for (int64_t i = from->begin[r]; i < from->begin[r + 1]; i++) {
            ffa_group_copy copy = from->copies[i];
            const int32_t source = copy.rank;

            if (source != r) {
                group->sizes[source].sent_rows += copy.rows;
                group->sizes[r].received_rows += copy.rows;
            }
            copy.rank = r;
            to->copies[to->begin[source]++] = copy;
        }
    begins_move_back(to->begin, group->rank_count);
    return FFA_OK;
}

/* ---- the object ---- */

ffa_status ffa_group_create(ffa_group **out, const ffa_group_lists *lists, int32_t rank_count,
                            ffa_error *err)
{
    ffa_group *group = NULL;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    if (rank_count < 1 || rank_count > GROUP_RANKS_MAX)
        return error_fail(err, FFA_INVALID, 0, "rank_count is %d, not in [1, %d]", rank_count,
                          GROUP_RANKS_MAX);
    if (!lists)
        return error_fail(err, FFA_INVALID, 0, "lists is NULL");
    group = mem_array(1, sizeof *group);
    if (!group) {
        rc = error_nomem(err, "a group");
        goto out;
    }
    group->rank_count = rank_count;
    group->sizes = mem_array((size_t)rank_count, sizeof *group->sizes);
    group->receives.begin = mem_array((size_t)rank_count + 1, sizeof *group->receives.begin);
    group->sends.begin = mem_array((size_t)rank_count + 1, sizeof *group->sends.begin);
    if (!group->sizes || !group->receives.begin || !group->sends.begin) {
        rc = error_nomem(err, "a group");
        goto out;
    }
    FFA_TRY(check_lists(group, lists, err));
    FFA_TRY(build_receives(group, lists, err));
    FFA_TRY(build_sends(group, err));
    *out = group;
    group = NULL;
out:
    ffa_group_destroy(group);
    return rc;
}

void ffa_group_destroy(ffa_group *group)
{
    if (!group)
        return;
    mem_free(group->sizes);
    mem_free(group->receives.begin);
    mem_free(group->receives.copies);
    mem_free(group->sends.begin);
    mem_free(group->sends.copies);
    mem_free(group);
}

/* ---- facts ---- */

static ffa_status check_rank(const ffa_group *group, int32_t rank, const void *out, ffa_error *err)
{
    if (!group || !out)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", group ? "out" : "group");
    if (rank < 0 || rank >= group->rank_count)
        return error_fail(err, FFA_INVALID, 0, "rank is %d, not in [0, %d)", rank,
                          group->rank_count);
    return FFA_OK;
}

static int64_t count_of(const struct group_table *table, const ffa_group *group, int32_t rank)
{
    return group && rank >= 0 && rank < group->rank_count
               ? table->begin[rank + 1] - table->begin[rank]
               : 0;
}

static ffa_status copy_get(const struct group_table *table, const ffa_group *group, int32_t rank,
                           int64_t index, ffa_group_copy *out, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(check_rank(group, rank, out, err));
    if (index < 0 || index >= count_of(table, group, rank))
        rc = error_fail(err, FFA_INVALID, 0, "index is %lld, not in [0, %lld)", (long long)index,
                        (long long)count_of(table, group, rank));
    else
        rc = opts_export(out, &table->copies[table->begin[rank] + index], sizeof *table->copies,
                         err);
out:
    return rc;
}

int64_t ffa_group_receive_count(const ffa_group *group, int32_t rank)
{
    return count_of(group ? &group->receives : NULL, group, rank);
}

ffa_status ffa_group_receive_get(const ffa_group *group, int32_t rank, int64_t index,
                                 ffa_group_copy *out, ffa_error *err)
{
    return copy_get(group ? &group->receives : NULL, group, rank, index, out, err);
}

int64_t ffa_group_send_count(const ffa_group *group, int32_t rank)
{
    return count_of(group ? &group->sends : NULL, group, rank);
}

ffa_status ffa_group_send_get(const ffa_group *group, int32_t rank, int64_t index,
                              ffa_group_copy *out, ffa_error *err)
{
    return copy_get(group ? &group->sends : NULL, group, rank, index, out, err);
}

ffa_status ffa_group_size_get(const ffa_group *group, int32_t rank, ffa_group_size *out,
                              ffa_error *err)
{
    const ffa_status rc = check_rank(group, rank, out, err);

    return rc == FFA_OK ? opts_export(out, &group->sizes[rank], sizeof *group->sizes, err) : rc;
}
