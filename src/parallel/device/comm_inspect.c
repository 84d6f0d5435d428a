/* SPDX-License-Identifier: Apache-2.0
 *
 * What the watchdog concludes from its copy of the flag block: whether the group is to break, and
 * which rank is why. All of it runs under the lock.
 *
 * A rank that a call waits for may itself wait for another. So each watchdog tells all ranks, in
 * comm_block_waits, whom its oldest late call waits for. When a call times out, these words lead
 * from rank to rank to the one that waits for nobody.
 */
#include "parallel/device/comm_device.h"

enum {
    ORDER_US = 1000000, /* a call that others' order keeps from ending */
    ASK_US = 500000,    /* between looks at processes */
    LATE_US = 500000    /* a call whose wait the others are told of; at most a quarter of the
                         * time-out */
};

/* What the call still waits for from rank `from`, in words that follow "has not"; false: nothing.
 */
static bool find_missing(const struct comm_device *comm, const struct comm_call *call, int32_t from,
                         char *out, size_t bytes)
{
    const struct comm_waits *waits = &call->waits[from];
    const int32_t n = comm->comm.rank_count;
    const unsigned long long number = call->call;

    if (waits->hello && !comm_is_there(comm_seen(comm, comm_block_hello(n, from)),
                                       call->word & ~COMM_DIGEST_MASK)) {
        text_format(out, bytes, "begun call %llu, %s", number, call->name);
        return true;
    }
    if (waits->credits[WINDOW_ROWS] &&
        !comm_is_there(comm_seen(comm, comm_block_rows_done(n, from)),
                       waits->credits[WINDOW_ROWS])) {
        text_format(out, bytes, "read what call %llu published, for call %llu, %s",
                    (unsigned long long)waits->credits[WINDOW_ROWS], number, call->name);
        return true;
    }
    if (waits->rows_ready &&
        !comm_is_there(comm_seen(comm, comm_block_rows_ready(n, from)), call->call)) {
        text_format(out, bytes, "published its %s (call %llu, %s)", call->publishes, number,
                    call->name);
        return true;
    }
    for (int32_t s = 0; s < COMM_STAGES_MAX; s++)
        if ((waits->relayed >> s & 1) &&
            !comm_is_there(comm_seen(comm, comm_block_relayed(n, from, s)), call->call)) {
            text_format(out, bytes, "received the keys that it relays of its stage %d (call %llu)",
                        s, number);
            return true;
        }
    if (waits->credits[WINDOW_SUMS] &&
        !comm_is_there(comm_seen(comm, comm_block_sums_done(n, from)),
                       waits->credits[WINDOW_SUMS])) {
        text_format(out, bytes, "read the gradients of call %llu, for call %llu",
                    (unsigned long long)waits->credits[WINDOW_SUMS], number);
        return true;
    }
    for (int32_t s = 0; s < COMM_STAGES_MAX; s++)
        if ((waits->sums_ready >> s & 1) &&
            !comm_is_there(comm_seen(comm, comm_block_sums_ready(n, from, s)), call->call)) {
            text_format(out, bytes, "finished the gradients of its stage %d (call %llu)", s,
                        number);
            return true;
        }
    if (waits->totals_ready &&
        !comm_is_there(comm_seen(comm, comm_block_totals_ready(n, from)), call->call)) {
        text_format(out, bytes, "sent its totals (call %llu)", number);
        return true;
    }
    return false;
}

/* The reason that rank `from` gave. */
static void adopt_reason(struct comm_device *comm, int32_t from)
{
    const uint64_t *words = &comm->seen[comm_block_reason(comm->comm.rank_count, from)];
    const uint64_t status = words[0];
    char message[(COMM_REASON_WORDS - 1) * sizeof(uint64_t)];

    memcpy(message, words + 1, sizeof message);
    message[sizeof message - 1] = '\0';
    comm_device_break(comm, status == FFA_TIMEOUT ? FFA_TIMEOUT : FFA_COMM, message);
}

static void look_at_states(struct comm_device *comm)
{
    const int32_t n = comm->comm.rank_count;

    for (int32_t r = 0; r < n; r++) {
        const uint64_t state = comm_seen(comm, comm_block_state(n, r));

        if (state == COMM_PEER_LEFT && comm->left_rank < 0) {
            comm->left_rank = r;
            comm->is_closed = true;
        } else if (state == COMM_PEER_BROKEN || state == COMM_PEER_QUIET) {
            if (comm->has_heard && atomic_load(&comm->broken) == FFA_OK)
                adopt_reason(comm, r);
            comm->has_heard = true; /* the reason may be in the next copy of the block only */
        }
    }
}

/* Whether `call` waits for a rank that will not come. */
static void look_for_gone(struct comm_device *comm, const struct comm_call *call)
{
    char missing[128], message[256];

    for (int32_t r = 0; r < comm->comm.rank_count; r++) {
        if (comm_seen(comm, comm_block_state(comm->comm.rank_count, r)) != COMM_PEER_LEFT ||
            !find_missing(comm, call, r, missing, sizeof missing))
            continue;
        text_copy(message, "rank %d has left, and has not %s; rank %d waits for it", r, missing,
                  comm->comm.rank);
        comm_device_break(comm, FFA_COMM, message);
    }
}

/* What a call comes after, of a word of comm_block_after. */
static bool is_known(uint64_t after)
{
    return (after & COMM_DIGEST_MASK) != COMM_DIGEST_MASK;
}

static void look_at_words(struct comm_device *comm, const struct comm_call *call)
{
    const int32_t n = comm->comm.rank_count;
    const bool is_late = clock_us() - call->enqueued_us > ORDER_US;
    char message[COMM_WORDS_MAX + 160];

    for (int32_t r = 0; r < n; r++) {
        const int64_t hello = comm_block_hello(n, r);
        const uint64_t word = comm_seen(comm, comm->exchange ? hello : comm_block_words(n, r));
        const uint64_t after = comm_seen(comm, comm->exchange ? hello + 2 : comm_block_after(n, r));

        if (r == comm->comm.rank || word >> COMM_DIGEST_BITS != call->word >> COMM_DIGEST_BITS)
            continue;
        if (word != call->word) {
            text_copy(message, "rank %d runs another call: call %llu of rank %d is %s", r,
                      (unsigned long long)call->call, comm->comm.rank, call->words);
            comm_device_break(comm, FFA_COMM, message);
        } else if (is_late && is_known(after) && is_known(call->after) &&
                   after >> COMM_DIGEST_BITS == call->after >> COMM_DIGEST_BITS &&
                   after != call->after) {
            text_copy(message,
                      "rank %d uses the communicators of its group in another order than rank %d "
                      "(call %llu)",
                      r, comm->comm.rank, (unsigned long long)call->call);
            comm_device_break(comm, FFA_COMM, message);
        }
    }
}

/* ---- calls that take too long ---- */

/* The first rank that the call waits for; -1: none. */
static int32_t find_waited(const struct comm_device *comm, const struct comm_call *call)
{
    char missing[128];

    for (int32_t r = 0; r < comm->comm.rank_count; r++)
        if (find_missing(comm, call, r, missing, sizeof missing))
            return r;
    return -1;
}

uint64_t comm_inspect_wait(const struct comm_device *comm)
{
    const int64_t late_us = min64(LATE_US, comm->timeout_ms * 250);
    const struct comm_call *oldest = NULL;

    for (int32_t i = 0; i <= COMM_CALLS_MAX; i++) {
        const struct comm_call *call = &comm->calls[i];

        if (comm_call_is_under_way(call) && call->begun_us &&
            (!oldest || call->call < oldest->call))
            oldest = call;
    }
    if (!oldest || clock_us() - oldest->begun_us < late_us)
        return 0;
    return (uint64_t)(find_waited(comm, oldest) + 1);
}

/* The rank behind the waits of `rank`: one that waits for nobody, as far as it has said; -1 where
 * they lead round in a circle. */
static int32_t find_root(const struct comm_device *comm, int32_t rank)
{
    const int32_t n = comm->comm.rank_count;

    for (int32_t steps = 0; steps < n; steps++) {
        const uint64_t next = comm_seen(comm, comm_block_waits(n, rank));

        if (next == 0 || next > (uint64_t)n)
            return rank;
        rank = (int32_t)next - 1;
        if (rank == comm->comm.rank)
            return -1;
    }
    return -1;
}

/* The rank to name: of those that the call waits for, the first whose waits have an end. */
static int32_t find_culprit(const struct comm_device *comm, const struct comm_call *call,
                            int32_t *root)
{
    char missing[128];
    int32_t first = -1;

    *root = -1;
    for (int32_t r = 0; r < comm->comm.rank_count && *root < 0; r++) {
        if (!find_missing(comm, call, r, missing, sizeof missing))
            continue;
        *root = find_root(comm, r);
        if (first < 0 || *root >= 0)
            first = r;
    }
    return first;
}

/* The call takes too long: who is it that it waits for? */
static void time_out(struct comm_device *comm, const struct comm_call *call)
{
    const long long ms = (long long)comm->timeout_ms;
    char missing[128], message[320];
    int32_t root;
    const int32_t r = find_culprit(comm, call, &root);

    if (r < 0 && comm->exchange) {
        text_copy(
            message,
            "call %llu of rank %d is not over after %lld ms: all ranks have begun it, and not "
            "all send or receive",
            (unsigned long long)call->call, comm->comm.rank, ms);
    } else if (r < 0) {
        text_copy(message,
                  "call %llu of rank %d is not over after %lld ms, and waits for no other rank",
                  (unsigned long long)call->call, comm->comm.rank, ms);
    } else {
        (void)find_missing(comm, call, r, missing, sizeof missing);
        if (root == r)
            text_copy(message, "rank %d has not %s within %lld ms; rank %d waits for it", r,
                      missing, ms, comm->comm.rank);
        else if (root < 0)
            text_copy(message,
                      "rank %d has not %s within %lld ms; rank %d waits for it, and it waits for "
                      "others, in a circle",
                      r, missing, ms, comm->comm.rank);
        else
            text_copy(message,
                      "rank %d keeps rank %d waiting, which has not %s within %lld ms; rank %d "
                      "waits for that",
                      root, r, missing, ms, comm->comm.rank);
    }
    comm_device_break(comm, FFA_TIMEOUT, message);
}

static void look_at_processes(struct comm_device *comm)
{
    const int64_t now = clock_us();
    char message[64];

    if (now - comm->asked_us < ASK_US)
        return;
    comm->asked_us = now;
    for (int32_t r = 0; r < comm->comm.rank_count; r++) {
        const uint64_t state = comm_seen(comm, comm_block_state(comm->comm.rank_count, r));

        if (state == COMM_PEER_LEFT || state == COMM_PEER_QUIET || !comm_peer_is_dead(comm, r))
            continue;
        text_copy(message, "the process of rank %d has ended", r);
        comm_device_break(comm, FFA_COMM, message);
    }
}

void comm_inspect(struct comm_device *comm)
{
    look_at_states(comm);
    for (int32_t i = 0; i <= COMM_CALLS_MAX; i++) {
        const struct comm_call *call = &comm->calls[i];

        if (!comm_call_is_under_way(call))
            continue;
        look_at_words(comm, call);
        look_for_gone(comm, call);
        if (call->begun_us && clock_us() - call->begun_us > comm->timeout_ms * 1000)
            time_out(comm, call);
    }
    look_at_processes(comm);
}
