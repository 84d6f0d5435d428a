/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of an exchange. Invariant: rows that ranks receive stand behind those that they
 * publish, in the order of the moves, so ranks agree on nothing but what each publishes. Trick: own
 * rows are window rows too, so a table of window rows says where everything is, and one launch
 * copies or adds it.
 */
#include "parallel/device/exchange.h"

/* ---- runs and moves ---- */

ffa_status run_table_add(struct run_table *table, int64_t from, int64_t to, int64_t rows,
                         ffa_error *err)
{
    struct row_run *last = table->count > 0 ? &table->runs[table->count - 1] : NULL;

    if (rows == 0)
        return FFA_OK;
    table->rows += rows;
    if (last && last->from + last->rows == from && last->to + last->rows == to) {
        last->rows += rows;
        return FFA_OK;
    }
    if (!mem_grow((void **)&table->runs, &table->capacity, table->count + 1, sizeof *table->runs))
        return error_nomem(err, "runs of rows");
    table->runs[table->count++] = (struct row_run){ .from = from, .to = to, .rows = rows };
    return FFA_OK;
}

void run_table_finish(struct run_table *table)
{
    mem_free(table->runs);
    *table = (struct run_table){ 0 };
}

ffa_status move_list_add(struct move_list *list, const struct row_move *move, ffa_error *err)
{
    if (move->rows == 0)
        return FFA_OK;
    if (!mem_grow((void **)&list->moves, &list->capacity, list->count + 1, sizeof *list->moves))
        return error_nomem(err, "moves of rows");
    list->moves[list->count++] = *move;
    return FFA_OK;
}

void move_list_finish(struct move_list *list)
{
    mem_free(list->moves);
    *list = (struct move_list){ 0 };
}

/* ---- uploads ---- */

void upload_add(struct upload *upload, int64_t *at, const void *from, int64_t bytes)
{
    *at = upload->end;
    if (upload->bytes && bytes > 0)
        memcpy(upload->bytes + *at, from, (size_t)bytes);
    upload->end += (bytes + 255) / 256 * 256;
}

ffa_status upload_runs(struct upload *upload, struct run_table *table, ffa_error *err)
{
    if (table->count > INT32_MAX)
        return error_fail(err, FFA_UNSUPPORTED, 0, "%lld runs of rows are more than 2^31 - 1",
                          (long long)table->count);
    (void)row_runs_finish(table->runs, (int32_t)table->count);
    upload_add(upload, &table->at, table->runs, table->count * (int64_t)sizeof *table->runs);
    return FFA_OK;
}

ffa_status exchange_upload(struct exchange *exchange, struct upload *upload, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(upload_runs(upload, &exchange->publish, err));
    FFA_TRY(upload_runs(upload, &exchange->place, err));
    FFA_TRY(upload_runs(upload, &exchange->own, err));
    upload_add(upload, &exchange->segments_at, exchange->segments,
               exchange->segment_count * (int64_t)sizeof *exchange->segments);
    upload_add(upload, &exchange->added_at, exchange->added,
               exchange->added_count * (int64_t)sizeof *exchange->added);
out:
    return rc;
}

/* ---- what is received ---- */

/* The ranks before this one come last. */
static int32_t rotated(const struct exchange *exchange, int32_t place)
{
    return (exchange->rank + 1 + place) % exchange->rank_count;
}

static void add_copy(struct exchange *out, const struct row_move *move)
{
    struct pass_copy *last = out->copy_count > 0 ? &out->copies[out->copy_count - 1] : NULL;

    if (last && last->rank == move->rank && last->from + last->rows == move->from)
        last->rows += move->rows;
    else
        out->copies[out->copy_count++] = (struct pass_copy){
            .from = move->from, .to = out->window_rows, .rows = move->rows, .rank = move->rank
        };
    out->window_rows += move->rows;
}

static void add_direct(struct exchange *out, const struct row_move *move)
{
    struct pass_copy *last = out->direct_count > 0 ? &out->direct[out->direct_count - 1] : NULL;

    if (last && last->rank == move->rank && last->from + last->rows == move->from &&
        last->to + last->rows == move->to)
        last->rows += move->rows;
    else
        out->direct[out->direct_count++] = (struct pass_copy){
            .from = move->from, .to = move->to, .rows = move->rows, .rank = move->rank
        };
}

/* rows [count], receives the window row of each move. */
static ffa_status find_copies(struct exchange *out, int64_t *rows, const struct exchange_plan *plan,
                              ffa_error *err)
{
    const struct move_list *list = plan->moves;
    int64_t *begin = mem_array((size_t)plan->rank_count + 1, sizeof *begin);

    out->copies = mem_array((size_t)list->count, sizeof *out->copies);
    out->direct = mem_array((size_t)list->count, sizeof *out->direct);
    out->sources = mem_array((size_t)plan->rank_count, sizeof *out->sources);
    if (!begin || !out->copies || !out->direct || !out->sources) {
        mem_free(begin);
        return error_nomem(err, "an exchange");
    }
    for (int64_t i = 0; i < list->count; i++)
        begin[list->moves[i].rank]++;
    begins_from_counts(begin, plan->rank_count);
    for (int32_t d = 0; d < plan->rank_count; d++) {
        const int32_t r = rotated(out, d);

        if (begin[r + 1] == begin[r])
            continue;
        if (r != out->rank)
            out->sources[out->source_count++] = r;
        for (int64_t i = begin[r]; i < begin[r + 1]; i++) {
            rows[i] = r == out->rank ? list->moves[i].from : out->window_rows;
            if (r == out->rank)
                continue;
            add_copy(out, &list->moves[i]);
            add_direct(out, &list->moves[i]);
        }
    }
    mem_free(begin);
    return FFA_OK;
}

static ffa_status find_readers(struct exchange *out, const struct exchange_plan *plan,
                               ffa_error *err)
{
    out->readers = mem_array((size_t)plan->rank_count, sizeof *out->readers);
    if (!out->readers)
        return error_nomem(err, "an exchange");
    for (int32_t r = 0; r < plan->rank_count; r++)
        if (r != plan->rank && plan->is_reader[r])
            out->readers[out->reader_count++] = r;
    return FFA_OK;
}

/* ---- rows that are added ---- */

/* Where what is added changes: ends [returned], ascending, each once. */
static int64_t find_ends(int64_t *ends, const struct move_list *list)
{
    int64_t count = 0, kept = 0;

    for (int64_t i = 0; i < list->count; i++) {
        ends[count++] = list->moves[i].to;
        ends[count++] = list->moves[i].to + list->moves[i].rows;
    }
    qsort(ends, (size_t)count, sizeof *ends, compare64);
    for (int64_t i = 0; i < count; i++)
        if (kept == 0 || ends[i] != ends[kept - 1])
            ends[kept++] = ends[i];
    return kept;
}

/* The segment that begins at a row. */
static int64_t segment_at(const struct exchange *exchange, int64_t row)
{
    int64_t low = 0, high = exchange->segment_count;

    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;

        if (exchange->segments[middle].row <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static bool is_skipped(const struct exchange_plan *plan, const struct row_move *move)
{
    return plan->skips_own && move->rank == 0;
}

/* Counts the moves of each segment; with `rows`, which has the window row of each, places them. */
static void visit_segments(struct exchange *out, const struct exchange_plan *plan,
                           const int64_t *rows)
{
    for (int64_t i = 0; i < plan->moves->count; i++) {
        const struct row_move *move = &plan->moves->moves[i];

        if (is_skipped(plan, move))
            continue;
        for (int64_t s = segment_at(out, move->to);
             s < out->segment_count && out->segments[s].row < move->to + move->rows; s++) {
            struct row_segment *segment = &out->segments[s];

            if (rows)
                out->added[segment->first + segment->count] = rows[i] + segment->row - move->to;
            segment->count++;
        }
    }
}

static ffa_status place_added(struct exchange *out, const struct exchange_plan *plan,
                              const int64_t *rows, ffa_error *err)
{
    visit_segments(out, plan, NULL);
    for (int64_t s = 0; s < out->segment_count; s++) {
        struct row_segment *segment = &out->segments[s];

        if (out->added_count > INT32_MAX)
            break;
        segment->first = (int)out->added_count;
        out->added_count += segment->count;
        segment->count = 0;
    }
    if (out->added_count > INT32_MAX)
        return error_fail(err, FFA_UNSUPPORTED, 0, "%lld parts of sums are more than 2^31 - 1",
                          (long long)out->added_count);
    out->added = mem_array((size_t)out->added_count, sizeof *out->added);
    if (!out->added)
        return error_nomem(err, "an exchange");
    visit_segments(out, plan, rows);
    return FFA_OK;
}

/* Rows between two ends that nothing is added to are no segment. */
static void drop_empty(struct exchange *out, const struct exchange_plan *plan)
{
    int64_t kept = 0;

    for (int64_t s = 0; s < out->segment_count; s++)
        if (out->segments[s].count > 0 || plan->skips_own)
            out->segments[kept++] = out->segments[s];
    out->segment_count = kept;
}

static ffa_status find_segments(struct exchange *out, const struct exchange_plan *plan,
                                const int64_t *rows, ffa_error *err)
{
    int64_t *ends = mem_array((size_t)plan->moves->count * 2, sizeof *ends);
    int64_t count;
    ffa_status rc = FFA_OK;

    if (!ends) {
        rc = error_nomem(err, "an exchange");
        goto out;
    }
    count = find_ends(ends, plan->moves);
    out->segments = mem_array((size_t)count, sizeof *out->segments);
    if (!out->segments) {
        rc = error_nomem(err, "an exchange");
        goto out;
    }
    for (int64_t s = 0; s + 1 < count; s++)
        out->segments[out->segment_count++] =
            (struct row_segment){ .row = (int)ends[s], .rows = (int)(ends[s + 1] - ends[s]) };
    FFA_TRY(place_added(out, plan, rows, err));
    drop_empty(out, plan);
out:
    mem_free(ends);
    return rc;
}

/* ---- the tables ---- */

static ffa_status check_rows(const struct exchange *out, ffa_error *err)
{
    if (out->window_rows > INT32_MAX || out->output_rows > INT32_MAX)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "rank %d has %lld rows and moves %lld: more than 2^31 - 1", out->rank,
                          (long long)out->output_rows, (long long)out->window_rows);
    return FFA_OK;
}

ffa_status exchange_build(struct exchange *out, const struct exchange_plan *plan, ffa_error *err)
{
    const struct move_list *list = plan->moves;
    int64_t *rows = mem_array((size_t)list->count, sizeof *rows);
    ffa_status rc;

    *out = (struct exchange){ .rank = plan->rank,
                              .rank_count = plan->rank_count,
                              .published_rows = plan->published_rows,
                              .window_rows = plan->published_rows,
                              .output_rows = plan->output_rows };
    if (!rows) {
        rc = error_nomem(err, "an exchange");
        goto out;
    }
    FFA_TRY(find_copies(out, rows, plan, err));
    FFA_TRY(find_readers(out, plan, err));
    FFA_TRY(check_rows(out, err));
    if (plan->is_added) {
        out->own_row = list->count > 0 ? rows[0] : 0;
        rc = find_segments(out, plan, rows, err);
        goto out;
    }
    for (int64_t i = 0; i < list->count; i++) {
        const struct row_move *move = &list->moves[i];

        FFA_TRY(run_table_add(&out->place, rows[i], move->to, move->rows, err));
        if (move->rank == out->rank)
            FFA_TRY(run_table_add(&out->own, move->from, move->to, move->rows, err));
    }
out:
    mem_free(rows);
    return rc;
}

ffa_status exchange_prepare(struct exchange *exchange, struct gpu_device *gpu, ffa_error *err)
{
    const size_t copies = (size_t)max64(exchange->copy_count, exchange->direct_count);
    ffa_status rc = FFA_OK;

    exchange->to = mem_array(copies, sizeof *exchange->to);
    exchange->from = mem_array(copies, sizeof *exchange->from);
    exchange->bytes = mem_array(copies, sizeof *exchange->bytes);
    if (!exchange->to || !exchange->from || !exchange->bytes) {
        rc = error_nomem(err, "an exchange");
        goto out;
    }
    FFA_TRY(gpu_event_create(&exchange->published, gpu, false, err));
    rc = gpu_event_create(&exchange->fetched, gpu, false, err);
out:
    return rc;
}

void exchange_finish(struct exchange *exchange)
{
    mem_free(exchange->copies);
    mem_free(exchange->direct);
    run_table_finish(&exchange->own);
    mem_free(exchange->sources);
    mem_free(exchange->readers);
    run_table_finish(&exchange->publish);
    run_table_finish(&exchange->place);
    mem_free(exchange->segments);
    mem_free(exchange->added);
    mem_free(exchange->to);
    mem_free((void *)exchange->from);
    mem_free(exchange->bytes);
    gpu_event_destroy(exchange->published);
    gpu_event_destroy(exchange->fetched);
    *exchange = (struct exchange){ 0 };
}

/* ---- rows of the window ---- */

static int64_t rounded(int64_t bytes, int64_t to)
{
    return (bytes + to - 1) / to * to;
}

void wire_init(struct wire *wire, int32_t heads, int64_t columns, int32_t element_bytes,
               int32_t wire_bytes, bool has_lse)
{
    const int64_t data = heads * columns * wire_bytes;
    int64_t bytes = data;

    *wire = (struct wire){ .heads = heads,
                           .element_bytes = element_bytes,
                           .columns = columns,
                           .wire_bytes = wire_bytes,
                           .has_lse = has_lse,
                           .lse_at = rounded(data, (int64_t)sizeof(float)) };
    if (has_lse)
        bytes = wire->lse_at + heads * (int64_t)sizeof(float);
    wire->row_bytes = rounded(bytes, bytes > 8 ? 16 : 8); /* vectors, and what copy engines like */
}

bool wire_is_direct(const struct wire *wire, const ffa_tensor *to)
{
    const int64_t bytes = wire->heads * wire->columns * wire->element_bytes;

    return !wire->has_lse && wire->wire_bytes == wire->element_bytes && wire->row_bytes == bytes &&
           to->token_stride * wire->element_bytes == wire->row_bytes &&
           (wire->heads == 1 || to->head_stride == wire->columns);
}

struct wire_room wire_room_direct(const struct wire *wire, const struct exchange *exchange)
{
    return (struct wire_room){ .bytes = exchange->published_rows * wire->row_bytes };
}

struct wire_room wire_room_of(const struct wire *wire, const struct exchange *exchange,
                              bool is_added)
{
    const int64_t elements = wire->heads * wire->columns;
    struct wire_room room = { .wide_at = rounded(exchange->window_rows * wire->row_bytes, 256) };

    room.lse_at = room.wide_at;
    if (is_added && wire->wire_bytes != wire->element_bytes)
        room.lse_at += rounded(exchange->window_rows * elements * (int64_t)sizeof(float), 256);
    room.bytes = room.lse_at;
    if (is_added && wire->has_lse)
        room.bytes += exchange->output_rows * wire->heads * (int64_t)sizeof(float);
    return room;
}
