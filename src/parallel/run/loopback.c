/* SPDX-License-Identifier: Apache-2.0
 *
 * The loopback transport: ranks are threads of one process, windows are host memory.
 *
 * One thread, the mover, executes what stands in the lanes of all ranks. It draws one of the lanes
 * that can go on, from the seed, and does one step of it: one range of a transfer, also drawn, or a
 * signal. So transfers interleave and complete in any order that a network might give them, and a
 * seed repeats an order. LANE_COMPUTE is the calling thread.
 *
 * One mutex guards everything but the memory that is copied, which belongs to the mover between
 * the signals that say so. One condition wakes everybody: ranks are few.
 */
#include "parallel/run/comm.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <time.h>

enum { MOVED_LANES = LANE_COMPUTE, RANKS_MAX = 256, DELAY_MAX = 1000, TIMEOUT_MS = 60000 };
#define TIMEOUT_MS_MAX ((int64_t)1 << 40)

enum step { STEP_PULL, STEP_REDUCE, STEP_DISCARD, STEP_SIGNAL, STEP_WAIT, STEP_AWAIT };

struct op {
    enum step step;
    enum comm_window window;
    enum comm_channel channel;
    enum comm_lane of; /* STEP_AWAIT */
    int32_t slot, rank;
    uint64_t value; /* of the flag, or the mark */
    struct comm_range *ranges;
    int64_t range_count; /* left */
    void *target;
    size_t bytes; /* STEP_DISCARD */
    struct comm_reduce how;
    int32_t delay; /* times it is still passed over */
    bool was_seen;
    int64_t since_us; /* it waits */
};

struct lane {
    struct op *ops;
    int64_t capacity, count, first; /* ops[first .. count) are to do */
    uint64_t entered, done;
};

struct memory {
    void *at;
    size_t bytes;
};

struct endpoint {
    ffa_comm comm;
    struct hub *hub;
    struct memory windows[WINDOW_COUNT][WINDOW_SLOTS];
    struct lane lanes[MOVED_LANES];
    uint64_t computed; /* marks of LANE_COMPUTE */
    uint64_t gathers;  /* entered */
    bool is_moved;     /* the mover copies for it just now */
    bool has_left;
};

/* A call that some ranks have begun, others not yet. */
struct entry {
    uint64_t call;
    int32_t first, count; /* who came first, how many came */
    char words[192];
};

struct hub {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t mover;
    bool has_lock;
    struct endpoint *ranks; /* [rank_count] */
    int32_t rank_count, alive;
    ffa_loopback_opts opts;
    uint64_t random;
    uint64_t *flags; /* [to][from][channel] */
    struct entry *entries;
    int64_t entry_count, entry_capacity;
    struct memory gathered[2]; /* by the parity of the gather */
    size_t gather_bytes[2];
    int32_t gather_count[2]; /* ranks in it */
    ffa_status status;       /* not FFA_OK: broken */
    char message[sizeof(((ffa_error *)0)->message)];
};

/* ---- under the lock ---- */

static void break_hub(struct hub *hub, ffa_status status, const char *message)
{
    if (hub->status == FFA_OK) {
        hub->status = status;
        text_copy(hub->message, "%s", message);
    }
    pthread_cond_broadcast(&hub->changed);
}

static ffa_status status_of(const struct hub *hub, ffa_error *err)
{
    return hub->status == FFA_OK ? FFA_OK : error_fail(err, hub->status, 0, "%s", hub->message);
}

static uint64_t *flag_of(const struct hub *hub, int32_t to, int32_t from, enum comm_channel channel)
{
    return &hub->flags[((int64_t)to * hub->rank_count + from) * CHANNEL_COUNT + channel];
}

static const char *channel_name(enum comm_channel channel)
{
    switch (channel) {
    case CHANNEL_ROWS_READY:
        return "its rows";
    case CHANNEL_ROWS_DONE:
        return "it to have read the rows";
    case CHANNEL_SUMS_READY:
        return "its partial results";
    default:
        return "it to have added the partial results";
    }
}

/* A wait that is not over: break the group where it never will be. */
static void watch_wait(struct hub *hub, int32_t rank, int32_t from, enum comm_channel channel,
                       int64_t since_us)
{
    char message[128];

    if (hub->ranks[from].has_left) {
        text_copy(message, "rank %d has left, rank %d waits for %s", from, rank,
                  channel_name(channel));
        break_hub(hub, FFA_COMM, message);
    } else if (clock_us() - since_us > hub->opts.timeout_ms * 1000) {
        text_copy(message, "rank %d waited %lld ms for rank %d: %s", rank,
                  (long long)hub->opts.timeout_ms, from, channel_name(channel));
        break_hub(hub, FFA_TIMEOUT, message);
    }
}

/* Sleep until something changes, or it is time to look at deadlines again. */
static void sleep_a_while(struct hub *hub)
{
    const int64_t most_us = 100000, timeout_us = hub->opts.timeout_ms * 1000;
    const int64_t us = timeout_us < most_us ? timeout_us : most_us;
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)us * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&hub->changed, &hub->lock, &until);
}

/* ---- the mover ---- */

/* splitmix64 (Steele et al. 2014) */
static uint64_t draw(struct hub *hub, uint64_t below)
{
    uint64_t z = hub->random += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

static uint64_t done_of(const struct endpoint *rank, enum comm_lane lane)
{
    return lane == LANE_COMPUTE ? rank->computed : rank->lanes[lane].done;
}

/* Whether the lane's next operation can be done now. */
static bool can_go(struct hub *hub, struct endpoint *rank, struct lane *lane)
{
    struct op *op;

    if (lane->first == lane->count)
        return false;
    op = &lane->ops[lane->first];
    if (op->step == STEP_AWAIT)
        return done_of(rank, op->of) >= op->value;
    if (op->step != STEP_WAIT || *flag_of(hub, rank->comm.rank, op->rank, op->channel) >= op->value)
        return true;
    if (!op->since_us)
        op->since_us = clock_us();
    watch_wait(hub, rank->comm.rank, op->rank, op->channel, op->since_us);
    return false;
}

static void finish_op(struct hub *hub, struct lane *lane)
{
    mem_free(lane->ops[lane->first].ranges);
    lane->first++;
    lane->done++;
    if (lane->first == lane->count)
        lane->first = lane->count = 0;
    pthread_cond_broadcast(&hub->changed);
}

static void add_elements(void *to, const void *from, size_t bytes, ffa_dtype dtype)
{
    if (dtype == FFA_FP64)
        for (size_t i = 0; i < bytes / sizeof(double); i++)
            ((double *)to)[i] += ((const double *)from)[i];
    else
        for (size_t i = 0; i < bytes / sizeof(float); i++)
            ((float *)to)[i] += ((const float *)from)[i];
}

#define MERGE(real, exp_of, log_of)                                                                \
    static void merge_##real(real *to, const real *from, size_t items, int32_t elements)           \
    {                                                                                              \
        for (size_t i = 0; i < items; i++, to += elements, from += elements) {                     \
            const real old = to[elements - 1], added = from[elements - 1];                         \
            const real top = old > added ? old : added;                                            \
            real was, is, sum;                                                                     \
                                                                                                   \
            if (added == -(real)INFINITY)                                                          \
                continue;                                                                          \
            was = exp_of(old - top);                                                               \
            is = exp_of(added - top);                                                              \
            sum = was + is;                                                                        \
            for (int32_t c = 0; c < elements - 1; c++)                                             \
                to[c] = was / sum * to[c] + is / sum * from[c];                                    \
            to[elements - 1] = top + log_of(sum);                                                  \
        }                                                                                          \
    }

MERGE(float, expf, logf)
MERGE(double, exp, log)

static void add(void *to, const void *from, size_t bytes, const struct comm_reduce *how)
{
    if (!how->merge)
        add_elements(to, from, bytes, how->dtype);
    else if (how->dtype == FFA_FP64)
        merge_double(to, from, bytes / sizeof(double) / (size_t)how->merge, how->merge);
    else
        merge_float(to, from, bytes / sizeof(float) / (size_t)how->merge, how->merge);
}

/* One range of a transfer, drawn; without the lock. */
static void move_range(struct hub *hub, struct endpoint *rank, struct op *op)
{
    const uint64_t pick = draw(hub, (uint64_t)op->range_count);
    const struct comm_range range = op->ranges[pick];
    const struct op copy = *op; /* the lane may grow, and move, meanwhile */
    const struct memory window = hub->ranks[range.rank].windows[op->window][op->slot];
    void *const to = (char *)op->target + range.to;

    op->ranges[pick] = op->ranges[--op->range_count];
    assert((size_t)(range.from + range.bytes) <= window.bytes);
    rank->is_moved = true;
    pthread_mutex_unlock(&hub->lock);
    if (copy.step == STEP_PULL)
        memcpy(to, (const char *)window.at + range.from, (size_t)range.bytes);
    else
        add(to, (const char *)window.at + range.from, (size_t)range.bytes, &copy.how);
    pthread_mutex_lock(&hub->lock);
    rank->is_moved = false;
}

/* One step of a lane that can go. */
static void move(struct hub *hub, struct endpoint *rank, struct lane *lane)
{
    struct op *op = &lane->ops[lane->first];

    if (!op->was_seen) {
        op->was_seen = true;
        op->delay = (int32_t)draw(hub, (uint64_t)hub->opts.delay + 1);
    }
    if (op->delay > 0) {
        op->delay--;
        return;
    }
    switch (op->step) {
    case STEP_PULL:
    case STEP_REDUCE:
        if (op->range_count > 0)
            move_range(hub, rank, op);
        if (lane->ops[lane->first].range_count > 0)
            return;
        break;
    case STEP_DISCARD:
        memset(op->target, 0xff, op->bytes); /* NaN in every dtype */
        break;
    case STEP_SIGNAL:
        *flag_of(hub, op->rank, rank->comm.rank, op->channel) = op->value;
        break;
    case STEP_WAIT:
    case STEP_AWAIT:
        break;
    }
    finish_op(hub, lane);
}

static void drop_all(struct hub *hub)
{
    for (int32_t r = 0; r < hub->rank_count; r++)
        for (int l = 0; l < MOVED_LANES; l++)
            while (hub->ranks[r].lanes[l].first < hub->ranks[r].lanes[l].count)
                finish_op(hub, &hub->ranks[r].lanes[l]);
}

/* A lane that can go on, drawn among all; NULL: none. */
static struct lane *choose(struct hub *hub, struct endpoint **rank)
{
    struct lane *chosen = NULL;
    uint64_t seen = 0;

    for (int32_t r = 0; r < hub->rank_count; r++)
        for (int l = 0; l < MOVED_LANES; l++)
            if (can_go(hub, &hub->ranks[r], &hub->ranks[r].lanes[l]) && draw(hub, ++seen) == 0) {
                chosen = &hub->ranks[r].lanes[l];
                *rank = &hub->ranks[r];
            }
    return chosen;
}

static void *run_mover(void *user)
{
    struct hub *hub = user;

    pthread_mutex_lock(&hub->lock);
    while (hub->alive > 0) {
        struct endpoint *rank = NULL;
        struct lane *lane = hub->status == FFA_OK ? choose(hub, &rank) : NULL;

        if (hub->status != FFA_OK)
            drop_all(hub);
        if (lane)
            move(hub, rank, lane);
        else
            sleep_a_while(hub);
    }
    pthread_mutex_unlock(&hub->lock);
    return NULL;
}

/* ---- the table ---- */

static struct endpoint *endpoint_of(ffa_comm *comm)
{
    return (struct endpoint *)(void *)comm;
}

static void hub_destroy(struct hub *hub)
{
    for (int32_t r = 0; hub->ranks && r < hub->rank_count; r++) {
        struct endpoint *rank = &hub->ranks[r];

        comm_finish(&rank->comm);
        for (int w = 0; w < WINDOW_COUNT; w++)
            for (int s = 0; s < WINDOW_SLOTS; s++)
                mem_free(rank->windows[w][s].at);
        for (int l = 0; l < MOVED_LANES; l++) {
            while (rank->lanes[l].first < rank->lanes[l].count)
                finish_op(hub, &rank->lanes[l]);
            mem_free(rank->lanes[l].ops);
        }
    }
    if (hub->has_lock) {
        pthread_cond_destroy(&hub->changed);
        pthread_mutex_destroy(&hub->lock);
    }
    mem_free(hub->ranks);
    mem_free(hub->flags);
    mem_free(hub->entries);
    mem_free(hub->gathered[0].at);
    mem_free(hub->gathered[1].at);
    mem_free(hub);
}

static void loopback_destroy(ffa_comm *comm)
{
    struct hub *hub = endpoint_of(comm)->hub;
    bool is_last;

    pthread_mutex_lock(&hub->lock);
    endpoint_of(comm)->has_left = true;
    is_last = --hub->alive == 0;
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
    if (!is_last)
        return;
    pthread_join(hub->mover, NULL);
    hub_destroy(hub);
}

static void loopback_cancel(ffa_comm *comm, ffa_status status, const char *message)
{
    struct hub *hub = endpoint_of(comm)->hub;

    pthread_mutex_lock(&hub->lock);
    break_hub(hub, status, message);
    pthread_mutex_unlock(&hub->lock);
}

static bool memory_fit(struct memory *memory, size_t bytes)
{
    if (bytes <= memory->bytes)
        return true;
    mem_free(memory->at);
    memory->at = mem_array(bytes, 1);
    memory->bytes = memory->at ? bytes : 0;
    return memory->at;
}

static ffa_status loopback_window(void **out, ffa_comm *comm, enum comm_window window, int32_t slot,
                                  size_t bytes, ffa_error *err)
{
    struct hub *hub = endpoint_of(comm)->hub;
    struct memory *memory = &endpoint_of(comm)->windows[window][slot];
    ffa_status rc;

    pthread_mutex_lock(&hub->lock);
    rc = status_of(hub, err);
    if (rc == FFA_OK && !memory_fit(memory, bytes))
        rc = error_nomem(err, "a window");
    *out = memory->at;
    pthread_mutex_unlock(&hub->lock);
    if (rc == FFA_OK && bytes > 0)
        memset(*out, 0xff, bytes);
    return rc;
}

static ffa_status put(ffa_comm *comm, enum comm_lane lane, const struct op *op, ffa_error *err)
{
    struct hub *hub = endpoint_of(comm)->hub;
    struct lane *to = &endpoint_of(comm)->lanes[lane];
    ffa_status rc;

    assert(lane != LANE_COMPUTE);
    pthread_mutex_lock(&hub->lock);
    rc = status_of(hub, err);
    if (rc == FFA_OK && !mem_grow((void **)&to->ops, &to->capacity, to->count + 1, sizeof *to->ops))
        rc = error_nomem(err, "a transfer");
    if (rc == FFA_OK) {
        to->ops[to->count++] = *op;
        to->entered++;
        pthread_cond_broadcast(&hub->changed);
    }
    pthread_mutex_unlock(&hub->lock);
    return rc;
}

static ffa_status put_transfer(ffa_comm *comm, enum comm_lane lane,
                               const struct comm_transfer *transfer, struct op *op, ffa_error *err)
{
    ffa_status rc;

    if (fault_here(FAULT_NETWORK))
        return error_fail(err, FFA_COMM, 0, "cannot transfer %lld ranges",
                          (long long)transfer->count);
    op->window = transfer->window;
    op->slot = transfer->slot;
    op->target = transfer->target;
    op->range_count = transfer->count;
    op->ranges = mem_array((size_t)transfer->count, sizeof *op->ranges);
    if (!op->ranges)
        return error_nomem(err, "a transfer");
    memcpy(op->ranges, transfer->ranges, (size_t)transfer->count * sizeof *op->ranges);
    rc = put(comm, lane, op, err);
    if (rc != FFA_OK)
        mem_free(op->ranges);
    return rc;
}

static ffa_status loopback_pull(ffa_comm *comm, enum comm_lane lane,
                                const struct comm_transfer *transfer, ffa_error *err)
{
    return put_transfer(comm, lane, transfer, &(struct op){ .step = STEP_PULL }, err);
}

static ffa_status loopback_reduce(ffa_comm *comm, enum comm_lane lane,
                                  const struct comm_transfer *transfer,
                                  const struct comm_reduce *how, ffa_error *err)
{
    return put_transfer(comm, lane, transfer, &(struct op){ .step = STEP_REDUCE, .how = *how },
                        err);
}

static ffa_status loopback_discard(ffa_comm *comm, enum comm_lane lane, void *at, size_t bytes,
                                   ffa_error *err)
{
    return put(comm, lane, &(struct op){ .step = STEP_DISCARD, .target = at, .bytes = bytes }, err);
}

static ffa_status loopback_signal(ffa_comm *comm, enum comm_lane lane, int32_t to,
                                  enum comm_channel channel, uint64_t value, ffa_error *err)
{
    struct hub *hub = endpoint_of(comm)->hub;
    ffa_status rc;

    if (lane != LANE_COMPUTE)
        return put(
            comm, lane,
            &(struct op){ .step = STEP_SIGNAL, .rank = to, .channel = channel, .value = value },
            err);
    pthread_mutex_lock(&hub->lock);
    rc = status_of(hub, err);
    *flag_of(hub, to, comm->rank, channel) = value;
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
    return rc;
}

static ffa_status loopback_wait(ffa_comm *comm, enum comm_lane lane, int32_t from,
                                enum comm_channel channel, uint64_t value, ffa_error *err)
{
    struct hub *hub = endpoint_of(comm)->hub;
    const int64_t since_us = clock_us();
    ffa_status rc;

    if (lane != LANE_COMPUTE)
        return put(
            comm, lane,
            &(struct op){ .step = STEP_WAIT, .rank = from, .channel = channel, .value = value },
            err);
    pthread_mutex_lock(&hub->lock);
    while (hub->status == FFA_OK && *flag_of(hub, comm->rank, from, channel) < value) {
        watch_wait(hub, comm->rank, from, channel, since_us);
        if (hub->status == FFA_OK)
            sleep_a_while(hub);
    }
    rc = status_of(hub, err);
    pthread_mutex_unlock(&hub->lock);
    return rc;
}

static uint64_t loopback_record(ffa_comm *comm, enum comm_lane lane)
{
    struct endpoint *rank = endpoint_of(comm);
    uint64_t mark;

    pthread_mutex_lock(&rank->hub->lock);
    mark = lane == LANE_COMPUTE ? ++rank->computed : rank->lanes[lane].entered;
    pthread_cond_broadcast(&rank->hub->changed);
    pthread_mutex_unlock(&rank->hub->lock);
    return mark;
}

static ffa_status loopback_await(ffa_comm *comm, enum comm_lane lane, enum comm_lane of,
                                 uint64_t mark, ffa_error *err)
{
    struct endpoint *rank = endpoint_of(comm);
    struct hub *hub = rank->hub;
    ffa_status rc;

    if (lane != LANE_COMPUTE)
        return put(comm, lane, &(struct op){ .step = STEP_AWAIT, .of = of, .value = mark }, err);
    pthread_mutex_lock(&hub->lock);
    while (hub->status == FFA_OK && done_of(rank, of) < mark)
        sleep_a_while(hub);
    rc = status_of(hub, err);
    pthread_mutex_unlock(&hub->lock);
    return rc;
}

static bool is_idle(const struct endpoint *rank)
{
    for (int l = 0; l < MOVED_LANES; l++)
        if (rank->lanes[l].first < rank->lanes[l].count)
            return false;
    return !rank->is_moved;
}

static ffa_status loopback_drain(ffa_comm *comm, ffa_error *err)
{
    struct hub *hub = endpoint_of(comm)->hub;
    ffa_status rc;

    pthread_mutex_lock(&hub->lock);
    while (!is_idle(endpoint_of(comm)))
        sleep_a_while(hub);
    rc = status_of(hub, err);
    pthread_mutex_unlock(&hub->lock);
    return rc;
}

/* Whether a rank that is not in the gather never will be. */
static void watch_gather(struct hub *hub, int32_t rank, uint64_t gather, int64_t since_us)
{
    char message[128];

    for (int32_t r = 0; r < hub->rank_count; r++) {
        if (hub->ranks[r].gathers >= gather)
            continue;
        if (hub->ranks[r].has_left) {
            text_copy(message, "rank %d has left, rank %d waits for it", r, rank);
            break_hub(hub, FFA_COMM, message);
        } else if (clock_us() - since_us > hub->opts.timeout_ms * 1000) {
            text_copy(message, "rank %d waited %lld ms for rank %d", rank,
                      (long long)hub->opts.timeout_ms, r);
            break_hub(hub, FFA_TIMEOUT, message);
        }
    }
}

/* A rank is never two gathers ahead of another, so two places are enough. */
static ffa_status loopback_gather(ffa_comm *comm, const void *mine, void *all, size_t bytes,
                                  ffa_error *err)
{
    struct endpoint *rank = endpoint_of(comm);
    struct hub *hub = rank->hub;
    const size_t ranks = (size_t)hub->rank_count;
    const int64_t since_us = clock_us();
    uint64_t gather;
    int place;
    ffa_status rc;

    pthread_mutex_lock(&hub->lock);
    gather = ++rank->gathers;
    place = gather & 1;
    FFA_TRY(status_of(hub, err));
    if (hub->gather_count[place] == hub->rank_count)
        hub->gather_count[place] = 0; /* the one before the last is over */
    if (hub->gather_count[place] == 0) {
        hub->gather_bytes[place] = bytes;
        if (!memory_fit(&hub->gathered[place], ranks * bytes)) {
            rc = error_nomem(err, "a gather");
            break_hub(hub, rc, "no memory for a gather");
            goto out;
        }
    }
    if (hub->gather_bytes[place] != bytes) {
        char message[128];

        text_copy(message, "rank %d gathers %zu bytes, another %zu", comm->rank, bytes,
                  hub->gather_bytes[place]);
        break_hub(hub, FFA_INVALID, message);
        FFA_TRY(status_of(hub, err));
    }
    if (bytes > 0)
        memcpy((char *)hub->gathered[place].at + (size_t)comm->rank * bytes, mine, bytes);
    hub->gather_count[place]++;
    pthread_cond_broadcast(&hub->changed);
    while (hub->status == FFA_OK && hub->gather_count[place] < hub->rank_count) {
        watch_gather(hub, comm->rank, gather, since_us);
        if (hub->status == FFA_OK)
            sleep_a_while(hub);
    }
    FFA_TRY(status_of(hub, err));
    if (bytes > 0)
        memcpy(all, hub->gathered[place].at, ranks * bytes);
out:
    pthread_mutex_unlock(&hub->lock);
    return rc;
}

static void compare_words(struct hub *hub, const ffa_comm *comm, struct entry *entry,
                          const char *words)
{
    char message[sizeof hub->message];

    if (strcmp(entry->words, words) == 0)
        return;
    text_copy(message, "ranks differ: rank %d calls %s, rank %d %s", entry->first, entry->words,
              comm->rank, words);
    break_hub(hub, FFA_INVALID, message);
}

static ffa_status loopback_enter(ffa_comm *comm, uint64_t call, const char *words, ffa_error *err)
{
    struct hub *hub = endpoint_of(comm)->hub;
    struct entry *entry = NULL;
    ffa_status rc;

    pthread_mutex_lock(&hub->lock);
    FFA_TRY(status_of(hub, err));
    for (int64_t i = 0; i < hub->entry_count; i++)
        if (hub->entries[i].call == call)
            entry = &hub->entries[i];
    if (!entry) {
        if (!mem_grow((void **)&hub->entries, &hub->entry_capacity, hub->entry_count + 1,
                      sizeof *hub->entries)) {
            rc = error_nomem(err, "a call");
            goto out;
        }
        entry = &hub->entries[hub->entry_count++];
        *entry = (struct entry){ .call = call, .first = comm->rank };
        text_copy(entry->words, "%s", words);
    }
    compare_words(hub, comm, entry, words);
    if (++entry->count == hub->rank_count)
        *entry = hub->entries[--hub->entry_count];
    rc = status_of(hub, err);
out:
    pthread_mutex_unlock(&hub->lock);
    return rc;
}

/* The windows grow with the calls that need them. */
static ffa_status loopback_reserve(ffa_comm *comm, int64_t key_bytes, int64_t sum_bytes,
                                   ffa_error *err)
{
    const struct bounded fields[] = { { "key_bytes", key_bytes, 0, INT64_MAX },
                                      { "sum_bytes", sum_bytes, 0, INT64_MAX } };

    (void)comm;
    return check_bounded(fields, sizeof fields / sizeof *fields, err);
}

static ffa_status loopback_status(const ffa_comm *comm, ffa_error *err)
{
    struct hub *hub = ((const struct endpoint *)(const void *)comm)->hub;
    ffa_status rc;

    pthread_mutex_lock(&hub->lock);
    rc = status_of(hub, err);
    pthread_mutex_unlock(&hub->lock);
    return rc;
}

static const struct comm_ops loopback_ops = {
    .destroy = loopback_destroy,
    .window = loopback_window,
    .pull = loopback_pull,
    .reduce = loopback_reduce,
    .discard = loopback_discard,
    .signal = loopback_signal,
    .wait = loopback_wait,
    .record = loopback_record,
    .await = loopback_await,
    .drain = loopback_drain,
    .gather = loopback_gather,
    .enter = loopback_enter,
    .reserve = loopback_reserve,
    .status = loopback_status,
    .cancel = loopback_cancel,
};

/* ---- making one ---- */

static ffa_status resolve(ffa_loopback_opts *out, const ffa_loopback_opts *opts, ffa_error *err)
{
    ffa_status rc = opts_import(out, sizeof *out, opts, err);

    if (rc != FFA_OK)
        return rc;
    if (!out->timeout_ms)
        out->timeout_ms = TIMEOUT_MS;
    if (out->delay < 0 || out->delay > DELAY_MAX)
        return error_fail(err, FFA_INVALID, 0, "delay is %d, not in [0, %d]", out->delay,
                          DELAY_MAX);
    if (out->timeout_ms < 1 || out->timeout_ms > TIMEOUT_MS_MAX)
        return error_fail(err, FFA_INVALID, 0, "timeout_ms is %lld, not in [1, %lld]",
                          (long long)out->timeout_ms, (long long)TIMEOUT_MS_MAX);
    return FFA_OK;
}

/* On the clock that deadlines are read from. */
static bool init_lock(struct hub *hub)
{
    pthread_condattr_t attributes;

    if (pthread_condattr_init(&attributes))
        return false;
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    if (!pthread_cond_init(&hub->changed, &attributes)) {
        hub->has_lock = !pthread_mutex_init(&hub->lock, NULL);
        if (!hub->has_lock)
            pthread_cond_destroy(&hub->changed);
    }
    pthread_condattr_destroy(&attributes);
    return hub->has_lock;
}

static ffa_status hub_init(struct hub *hub, int32_t rank_count, const ffa_loopback_opts *opts,
                           ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(resolve(&hub->opts, opts, err));
    hub->random = hub->opts.seed;
    hub->rank_count = hub->alive = rank_count;
    hub->ranks = mem_array((size_t)rank_count, sizeof *hub->ranks);
    hub->flags =
        mem_array((size_t)rank_count * (size_t)rank_count * CHANNEL_COUNT, sizeof *hub->flags);
    if (!hub->ranks || !hub->flags || !init_lock(hub)) {
        rc = error_nomem(err, "a group of ranks");
        goto out;
    }
    for (int32_t r = 0; r < rank_count; r++) {
        hub->ranks[r].hub = hub;
        FFA_TRY(comm_init(&hub->ranks[r].comm, &loopback_ops, r, rank_count, err));
    }
    if (pthread_create(&hub->mover, NULL, run_mover, hub)) {
        rc = error_fail(err, FFA_NOMEM, errno, "cannot start the thread of a group of ranks");
        goto out;
    }
out:
    return rc;
}

ffa_status ffa_loopback_create(ffa_comm **out, int32_t rank_count, const ffa_loopback_opts *opts,
                               ffa_error *err)
{
    struct hub *hub;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    if (rank_count < 1 || rank_count > RANKS_MAX)
        return error_fail(err, FFA_INVALID, 0, "rank_count is %d, not in [1, %d]", rank_count,
                          RANKS_MAX);
    for (int32_t r = 0; r < rank_count; r++)
        out[r] = NULL;
    hub = mem_array(1, sizeof *hub);
    if (!hub)
        return error_nomem(err, "a group of ranks");
    rc = hub_init(hub, rank_count, opts, err);
    if (rc != FFA_OK) {
        hub_destroy(hub);
        return rc;
    }
    for (int32_t r = 0; r < rank_count; r++)
        out[r] = &hub->ranks[r].comm;
    return FFA_OK;
}
