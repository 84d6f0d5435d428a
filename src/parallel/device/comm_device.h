/* SPDX-License-Identifier: Apache-2.0
 *
 * The communicator of GPUs: memory that peers reach, words that their streams and kernels wait for,
 * and a watchdog that ends what would wait for ever.
 *
 * Each rank has two windows and a flag block in its device's memory, mapped into all ranks: ranks
 * of one process use the same pointers, ranks of several processes CUDA IPC. The key window has the
 * rank's own keys, which readers pull, and then the keys it received. The sum window has dK and dV
 * of the same rows; the owners of received keys pull from it. A flag block has the words that
 * *others* write and the rank waits for.
 *
 * A pass is a call: comm_device_open, then waits, signals, copies and launches on the caller's
 * stream and on the communicator's own (comm_device_stream), then comm_device_end. None of these
 * blocks the host, allocates or synchronises. All flags have one kind of value, the number of the
 * call, which is the same on all ranks. "There" means (int64_t)(flag - value) >= 0.
 *
 * A group breaks once and for good: when a rank is cancelled or fails, when it has left and is
 * waited for, when ranks make different calls, or when a call is not over after the time-out. The
 * watchdog of each rank then fills what the calls were to receive with NaN and poisons the rank's
 * flags: POISON beyond any call, so that every stream and every kernel is released. Results of the
 * calls in flight are unspecified (NaN where that can be had); the status says why. A later call
 * fails at its begin.
 *
 * Thread: calls of one communicator one at a time, from any thread; comm_device_cancel,
 * comm_device_status at any time.
 */
#ifndef FFA_PARALLEL_DEVICE_COMM_DEVICE_H
#define FFA_PARALLEL_DEVICE_COMM_DEVICE_H

#include "gpu/nccl.h"
#include "parallel/run/comm.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    COMM_RANKS_MAX = 256,
    COMM_STAGES_MAX = 16,   /* ARRIVAL_STAGES_MAX of templates/arrivals.h */
    COMM_CALLS_MAX = 64,    /* calls that are looked after at a time, and the newest */
    COMM_SPOILS_MAX = 4,    /* ranges a call gives to be filled with NaN */
    COMM_REASON_WORDS = 64, /* a status and 503 bytes of message */
    COMM_DIGEST_BITS = 40,  /* of a word of comm_block_words; above: which call it is */
    COMM_TOTALS_MAX = 8192, /* floats that a rank brings to a call: of 8 sinks and 1024 heads */
    COMM_TOTALS_SLOTS = 2,  /* that calls with totals take in turn */
    COMM_WORDS_MAX = 192,
    COMM_NAME_MAX = 24,
    COMM_HELLO_WORDS = 4, /* 32 bytes: what ranks exchange before a call's data */
    COMM_STREAMS = 3      /* that passes put work on, beside the caller's */
};
#define COMM_POISON ((uint64_t)1 << 62)
#define COMM_AFTER_UNKNOWN UINT64_MAX
#define COMM_DIGEST_MASK (((uint64_t)1 << COMM_DIGEST_BITS) - 1)

/* ---- the flag block: indices of its words, for a group of n ranks ---- */

/* `from` has its own keys of the call in its key window. Written by `from`. */
static inline int64_t comm_block_rows_ready(int32_t n, int32_t from)
{
    (void)n;
    return from;
}

/* `reader` has pulled what it needs of this rank's key window. Written by `reader`. */
static inline int64_t comm_block_rows_done(int32_t n, int32_t reader)
{
    return (int64_t)n + reader;
}

/* `reader` has complete dK and dV of its stage `stage`, 0 <= stage < COMM_STAGES_MAX, in its sum
 * window. Written by the backward kernel of `reader`; departures.slot is this with stage 0. */
static inline int64_t comm_block_sums_ready(int32_t n, int32_t reader, int32_t stage)
{
    return (int64_t)2 * n + (int64_t)COMM_STAGES_MAX * reader + stage;
}

/* `from` has the keys that it relays of its stage `stage`, 0 < stage < COMM_STAGES_MAX, in its key
 * window. Written by `from`, also for itself. */
static inline int64_t comm_block_relayed(int32_t n, int32_t from, int32_t stage)
{
    return (int64_t)(2 + COMM_STAGES_MAX) * n + (int64_t)COMM_STAGES_MAX * from + stage;
}

/* `owner` has pulled its rows of this rank's sum window. Written by `owner`. */
static inline int64_t comm_block_sums_done(int32_t n, int32_t owner)
{
    return (int64_t)(2 + 2 * COMM_STAGES_MAX) * n + owner;
}

/* The totals of `from` are in this rank's block. Written by `from`. */
static inline int64_t comm_block_totals_ready(int32_t n, int32_t from)
{
    return (int64_t)(3 + 2 * COMM_STAGES_MAX) * n + from;
}

/* The keys of the rank's own stage are in its key window. Written by its own fetch stream, polled
 * by its kernels: arrivals.flags is the address of stage 0. */
static inline int64_t comm_block_arrivals(int32_t n, int32_t stage)
{
    return (int64_t)(4 + 2 * COMM_STAGES_MAX) * n + stage;
}

/* What `from` does in its latest call: the low 24 bits of comm_device.begun over COMM_DIGEST_BITS
 * of a digest. That count, and not the call's number, is the same in ranks that call different
 * things, as one of them may have more rounds. Written by `from`, as all that follows. */
static inline int64_t comm_block_words(int32_t n, int32_t from)
{
    return (int64_t)(4 + 2 * COMM_STAGES_MAX) * n + COMM_STAGES_MAX + from;
}

/* The last call of `from` on another communicator of the same ranks, before its latest one on this
 * communicator: the low 24 bits of its comm_device.begun over COMM_DIGEST_BITS of a digest. The
 * digest is 0 where there was none, and COMM_DIGEST_MASK where it is not known. So this word and
 * that of comm_block_words are told apart from those of other calls, each by itself: it does not
 * matter whether a reader gets both of one call. */
static inline int64_t comm_block_after(int32_t n, int32_t from)
{
    return (int64_t)(5 + 2 * COMM_STAGES_MAX) * n + COMM_STAGES_MAX + from;
}

/* Whom the oldest call of `from` waits for, where that takes long: a rank + 1; 0: nobody. */
static inline int64_t comm_block_waits(int32_t n, int32_t from)
{
    return (int64_t)(6 + 2 * COMM_STAGES_MAX) * n + COMM_STAGES_MAX + from;
}

/* enum comm_peer_state of `from`, as it told this rank. */
static inline int64_t comm_block_state(int32_t n, int32_t from)
{
    return (int64_t)(7 + 2 * COMM_STAGES_MAX) * n + COMM_STAGES_MAX + from;
}

/* Why the group broke, by `from`: an ffa_status, then text in COMM_REASON_WORDS - 1 words. Written
 * before its state becomes COMM_PEER_BROKEN. */
static inline int64_t comm_block_reason(int32_t n, int32_t from)
{
    return (int64_t)(8 + 2 * COMM_STAGES_MAX) * n + COMM_STAGES_MAX +
           (int64_t)COMM_REASON_WORDS * from;
}

/* Exchange: what `from` does in its latest call, received from it: its words of comm_block_words,
 * the same inverted, and of comm_block_after. */
static inline int64_t comm_block_hello(int32_t n, int32_t from)
{
    return comm_block_reason(n, n) + (int64_t)COMM_HELLO_WORDS * from;
}

/* All of the above: what the watchdog reads. */
static inline int64_t comm_block_count(int32_t n)
{
    return comm_block_hello(n, n);
}

/* The totals of `from`, floats [COMM_TOTALS_MAX], in the rank's block behind its words: those of a
 * slot are one after the other by `from`. Written by `from`. */
static inline int64_t comm_block_totals(int32_t n, int32_t slot, int32_t from)
{
    return (comm_block_count(n) + 31) / 32 * 32 +
           ((int64_t)slot * n + from) * (COMM_TOTALS_MAX / 2);
}

/* The whole block. */
static inline int64_t comm_block_size(int32_t n)
{
    return comm_block_totals(n, COMM_TOTALS_SLOTS, 0);
}

/* ---- the communicator ---- */

enum comm_peer_state {
    COMM_PEER_JOINED,
    COMM_PEER_BROKEN, /* its group is broken, for the reason it gave */
    COMM_PEER_QUIET,  /* likewise, and it will not touch this rank's memory again */
    COMM_PEER_LEFT    /* it destroyed its end, after its calls; it will not touch it again either */
};

/* Memory that the watchdog fills with 0xff when the call fails. */
struct comm_spoil {
    void *memory;
    int64_t bytes;
};

/* What a call of the rank waits for from another one. */
struct comm_waits {
    uint64_t credits[WINDOW_COUNT]; /* its rows_done, sums_done of this earlier call; 0: nothing */
    uint16_t sums_ready, relayed;   /* one bit a stage */
    bool rows_ready, totals_ready;
    bool hello; /* exchange and relay: that it begins the call */
};

/* A call from its begin until its end has passed on the GPU. */
struct comm_call {
    uint64_t call; /* 0: a free record */
    uint64_t word; /* what the peers' blocks get: see comm_block_words */
    struct gpu_event *begin, *end;
    bool has_begun;   /* begin was recorded */
    bool has_ended;   /* end was recorded, or the call was abandoned */
    bool is_over;     /* end was seen to pass */
    int64_t begun_us; /* when begin was seen to pass; 0: not yet */
    int64_t enqueued_us;
    uint64_t after; /* see comm_block_after */
    char words[COMM_WORDS_MAX];
    char name[COMM_NAME_MAX], publishes[COMM_NAME_MAX]; /* of struct comm_opening */
    struct comm_waits *waits;                           /* [rank_count] */
    struct comm_spoil spoils[COMM_SPOILS_MAX];
    int32_t spoil_count;
};

/* How a step of a collective function went on a rank. */
struct comm_verdict {
    int32_t status, native;
    char message[sizeof(((ffa_error *)0)->message)];
};

static inline bool comm_call_is_under_way(const struct comm_call *call)
{
    return call->call && !call->is_over;
}

struct comm_exchange;  /* comm_exchange.c: the communicators of NCCL */
struct comm_bootstrap; /* comm_nccl.c: gathering over the caller's communicator of NCCL */
struct comm_process;   /* comm_peer.c: which process and device a rank is */
struct comm_order;     /* comm_call.c: the calls of this process on communicators of one group */

struct comm_device {
    ffa_comm comm; /* the first member. comm.call: calls begun */
    ffa_context *context;
    struct gpu_device *gpu; /* the context's */
    ffa_comm_allgather allgather;
    void *user;
    int64_t timeout_ms;

    struct gpu_stream *fetch, *reduce; /* non-blocking, of high priority: of the passes */
    struct gpu_stream *network;        /* of keys over NCCL: one of its own where ranks relay, else
                                        * the fetch stream */
    struct gpu_stream *watch;          /* of the watchdog, and of nobody else */

    /* Mapped here; [rank] of the own rank is its own memory. Fixed between reserves. */
    void *windows[WINDOW_COUNT][COMM_RANKS_MAX];
    int64_t window_bytes[WINDOW_COUNT][COMM_RANKS_MAX]; /* of each rank; 0: its window is NULL */
    uint64_t *blocks[COMM_RANKS_MAX];
    uint64_t **blocks_device; /* device memory [rank_count]: blocks; exchange: the own one */
    int64_t block_bytes;
    bool is_mapped;                 /* ranks of a node reach each other's memory; else no peer's is
                                     * mapped */
    int32_t node_ranks;             /* ranks of a node; all ranks, where they do not relay */
    int32_t ranks_per_node;         /* as asked for */
    int32_t transport;              /* as asked for: ffa_transport */
    int32_t max_ctas;               /* as asked for */
    char *nccl_path;                /* NULL: not given */
    struct comm_exchange *exchange; /* NULL: ranks pull */
    struct comm_bootstrap *bootstrap; /* of ffa_comm_create_nccl: `user` of allgather; else NULL */
    char unreachable[256];            /* why it is not mapped */
    struct comm_process *processes;   /* [rank_count] */
    struct comm_verdict *verdicts;    /* [rank_count], of the last agreement */
    uint64_t id;                      /* of the communicator, the same on all ranks */
    uint64_t group;                   /* of the ranks, the same in each communicator of them */
    int32_t neighbour;                /* another rank of this process and device; -1: none */
    struct comm_order *order;
    uint64_t begun;  /* calls so far, a call of several rounds once. Under the lock */
    uint64_t totals; /* calls with totals so far, the same on all ranks. Only calls touch it. */

    /* The call up to which each rank was lent a window, and has to give it back; 0: nothing. Only
     * calls touch it. */
    uint64_t lent[WINDOW_COUNT][COMM_RANKS_MAX];

    atomic_int broken; /* ffa_status; FFA_OK: whole */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t watchdog;
    bool has_lock, has_watchdog; /* made, started */
    bool has_joined; /* the others have this rank's memory mapped, and wait for it to leave */
    bool has_lost;   /* the bootstrap failed: ranks may differ in what they know of each other */
    /* Under the lock: */
    char message[sizeof(((ffa_error *)0)->message)]; /* of `broken` */
    /* The nth call: calls[n % COMM_CALLS_MAX], or where that one is still under way, the last
     * record, which has the newest of such calls: the oldest calls are looked after, whatever the
     * host is ahead. */
    struct comm_call calls[COMM_CALLS_MAX + 1];
    bool is_closed;    /* no call begins any more: the group is broken or a rank has left */
    int32_t left_rank; /* that has left; -1: none */
    bool is_leaving;   /* the watchdog ends when all calls are over */
    int64_t leaving_us;
    /* Of the watchdog's thread, and of destroy after it: */
    uint64_t *seen;     /* a copy of the own block */
    uint64_t *said;     /* [rank_count]: the last state said to each rank */
    uint64_t said_wait; /* what the others have as comm_block_waits of this rank */
    bool has_heard;     /* a rank has said that the group is broken */
    bool has_spoilt;    /* what the calls receive was filled */
    bool is_draining;   /* `drained` was recorded since the last call was over */
    bool is_quiet;      /* nothing of the rank is under way, and nothing will be */
    bool has_failed;    /* the device does nothing any more */
    int64_t broken_us;  /* when its first poison was written; 0: not yet */
    int64_t asked_us;   /* when processes were asked for last */
    /* The last call's end, or NULL, and its stream: calls follow each other on any streams. Only
     * calls touch them. */
    struct gpu_event *last;
    uint64_t last_stream; /* gpu_stream_id */
    /* Of each of comm_device_stream: what an abandoned call has put there; the watchdog's. */
    struct gpu_event *left[COMM_STREAMS], *drained[COMM_STREAMS];
};

/* The communicator of GPUs behind a public one; NULL where it has another transport. */
struct comm_device *comm_device_of(ffa_comm *comm);

/* The own flag block's words. */
static inline uint64_t *comm_device_own(const struct comm_device *comm)
{
    return comm->blocks[comm->comm.rank];
}

/* The streams of the passes. */
static inline struct gpu_stream *comm_device_stream(const struct comm_device *comm, int i)
{
    return i == 0 ? comm->fetch : i == 1 ? comm->reduce : comm->network;
}

/* Whether the memory of the rank is mapped here. */
static inline bool comm_device_reaches(const struct comm_device *comm, int32_t rank)
{
    return comm->is_mapped && rank / comm->node_ranks == comm->comm.rank / comm->node_ranks;
}

/* Whether ranks relay: over NCCL between nodes, by copy engines inside them. */
static inline bool comm_device_relays(const struct comm_device *comm)
{
    return comm->exchange && comm->transport == FFA_TRANSPORT_RELAY;
}

/* Whether every rank reaches every other one's windows: also of ranks that relay, in one node. */
static inline bool comm_device_pulls(const struct comm_device *comm)
{
    return !comm->exchange ||
           (comm_device_relays(comm) && comm->node_ranks >= comm->comm.rank_count);
}

/* What a pass leaves free of SMs, so that what brings its keys can run beside it. */
int32_t comm_device_sm_margin(const struct comm_device *comm, bool is_backward);

/* A communicator's end. opts are resolved but for their bounds; bootstrap: NULL, or what is `user`
 * of the allgather, taken over whether or not it succeeds. */
ffa_status comm_device_create(ffa_comm **out, ffa_context *context, const ffa_peer_opts *opts,
                              struct comm_bootstrap *bootstrap, ffa_error *err);

/* ---- a call: comm_device_open, what it enqueues, and one comm_device_end or _abandon ---- */

/* Operations on words of one stream, put together into one CUDA call: enqueued when there are
 * GPU_VALUE_BATCH_MAX of them, and by comm_batch_flush, which comes before anything else goes to
 * that stream. */
struct comm_batch {
    struct comm_device *comm;
    ffa_stream stream;
    int count;
    struct gpu_value_op ops[GPU_VALUE_BATCH_MAX];
};

static inline void comm_batch_init(struct comm_batch *batch, struct comm_device *comm,
                                   ffa_stream stream)
{
    batch->comm = comm;
    batch->stream = stream;
    batch->count = 0;
}
ffa_status comm_batch_flush(struct comm_batch *batch, ffa_error *err);

/*
 * What a call is, and how it begins.
 *
 * stream  the caller's. The legacy default stream (NULL) will do where the process has one rank on
 *         the device; else it is refused, as ranks that share a stream wait for themselves. Not
 *         while it captures a graph, as every call has another number. No batch of copies goes to
 *         it: those take the fetch and reduce streams.
 * words   what the call is, the same text on all ranks in the same call: at least everything that
 *         the order and sizes of transfers depend on. The fetch stream writes a digest of it into
 *         the blocks of all peers. What is caught when: the watchdog of a rank compares the digests
 *         of a call while it is not over, every 10 ms, so ranks that wait for each other in
 *         different calls break the group at once, and the message names the rank that differs.
 *         Different calls that nobody waits in, and that are over on a rank before its watchdog
 *         looks, pass unseen; what must be compared before data moves is for
 *         ffa_parallel_plan_agree. Calls on two communicators of the same ranks must come in the
 *         same order on all of them: the block also gets what this call came after. Where a call
 *         has not ended after a second, and ranks differ in that, the group breaks.
 * name, publishes  for messages: "undispatch", and what others wait for: "keys", "rows".
 * rounds  the same number on all ranks, from 1: flags have a value for each, of which the last is
 *         the call's number. The number grows by `rounds`.
 * fetch   NULL, or a batch of the fetch stream, which takes the digest: for the caller to flush.
 * leaves_reduce  nothing of the call goes to the reduce stream, which is not made to wait.
 */
struct comm_opening {
    ffa_stream stream;
    const char *words, *name, *publishes;
    int32_t rounds;
    struct comm_batch *fetch;
    bool leaves_reduce;
};

/*
 * Begin the next call. *call receives its number, from 1; 0 on failure, and then nothing was begun.
 *
 * Our streams wait for what is on `stream` now, reduce unless the call leaves it. Fails with the
 * group's status where it is broken (FFA_COMM, FFA_TIMEOUT), when a rank has left, with
 * FFA_INVALID, FFA_GPU.
 */
ffa_status comm_device_open(uint64_t *call, struct comm_device *comm,
                            const struct comm_opening *opening, ffa_error *err);

/* The last of the call on `stream`, which by then waits for all that the call put on the fetch and
 * reduce streams and that must be done before `stream` goes on. */
ffa_status comm_device_end(struct comm_device *comm, uint64_t call, ffa_stream stream,
                           ffa_error *err);

/* In place of comm_device_end where something failed after the begin: breaks the group with "rank N
 * failed: " and the message of `why`. */
void comm_device_abandon(struct comm_device *comm, uint64_t call, ffa_stream stream,
                         const ffa_error *why);

/* A flag. For waits: of the own block, written by `rank`. For signals: the own one in the block of
 * `rank`. `stage` is that of the reader or relay, and looked at for CHANNEL_SUMS_READY and
 * CHANNEL_RELAYED only. */
struct comm_flag {
    enum comm_channel channel;
    int32_t rank;
    int32_t stage;
    int32_t behind; /* rounds of the call behind the flag's: 0 of the last one, and of any whole
                     * call */
};

/* The stream waits until all flags [count] have the call's value, or that of one of its rounds: not
 * CHANNEL_ROWS_DONE, and CHANNEL_SUMS_DONE between rounds only, as credits of earlier calls are for
 * comm_batch_reclaim. The watchdog knows of the waits from then on. */
ffa_status comm_device_wait(struct comm_device *comm, uint64_t call, ffa_stream stream,
                            const struct comm_flag *flags, int32_t count, ffa_error *err);
ffa_status comm_batch_wait(struct comm_batch *batch, uint64_t call, const struct comm_flag *flags,
                           int32_t count, ffa_error *err);

/* Write the call's value into the flags [count], behind what is on the stream. CHANNEL_ROWS_READY
 * and CHANNEL_RELAYED lend the key window to that rank until it signals CHANNEL_ROWS_DONE: a rank
 * must be told so in a call exactly if it pulls in that call. */
ffa_status comm_device_signal(struct comm_device *comm, uint64_t call, ffa_stream stream,
                              const struct comm_flag *flags, int32_t count, ffa_error *err);
ffa_status comm_batch_signal(struct comm_batch *batch, uint64_t call, const struct comm_flag *flags,
                             int32_t count, ffa_error *err);

/* The flag of one channel without stages in the blocks of ranks [count]. */
ffa_status comm_device_tell(struct comm_device *comm, uint64_t call, ffa_stream stream,
                            enum comm_channel channel, const int32_t *ranks, int32_t count,
                            ffa_error *err);
ffa_status comm_batch_tell(struct comm_batch *batch, uint64_t call, enum comm_channel channel,
                           const int32_t *ranks, int32_t count, ffa_error *err);

/* `rank`, an owner, pulls from the sum window in this call, until it signals CHANNEL_SUMS_DONE. The
 * kernel signals CHANNEL_SUMS_READY, so that the host says here whom the window is lent to. */
void comm_device_lend_sums(struct comm_device *comm, uint64_t call, int32_t rank);

/* The streams of both batches wait for the credits of the own window: until all ranks that it was
 * lent to in earlier calls have pulled. Before the window is written, and before this call lends
 * it. also: NULL, or of the key window the fetch stream's: what this call receives may come where
 * an earlier call had more own keys. */
ffa_status comm_batch_reclaim(struct comm_batch *batch, struct comm_batch *also, uint64_t call,
                              enum comm_window window, ffa_error *err);

/* Write arrivals[stage] of the own block, behind what is on the stream. value: the call's number,
 * or less by the rounds behind it. */
ffa_status comm_device_arrive(struct comm_device *comm, uint64_t value, ffa_stream stream,
                              int32_t stage, ffa_error *err);
ffa_status comm_batch_arrive(struct comm_batch *batch, uint64_t value, int32_t stage,
                             ffa_error *err);

/*
 * comm_totals.c: what each rank sums up in the call, brought to all ranks.
 *
 * all     receives the totals of all ranks in the own block: those of rank r are the floats
 *         [r * COMM_TOTALS_MAX, + count). They are there once `stream` is past this call, and stay
 *         until the next but one call with totals.
 * stream  the fetch or the reduce stream, in all calls with totals the same one, which by then
 *         waits for `mine`. It copies, tells the others, and waits for the totals of all of them.
 * mine    device memory, [count], count from 1 to COMM_TOTALS_MAX.
 *
 * At most once a call, in the same calls on all ranks: what comm_device_open was told says whether
 * it has totals. What the caller's stream reads of `all` comes before its next call's totals.
 */
ffa_status comm_device_share_totals(const float **all, struct comm_device *comm, uint64_t call,
                                    ffa_stream stream, const float *mine, int32_t count,
                                    ffa_error *err);

/* What the call receives or computes in, [memory, memory + bytes) of the device: filled with 0xff
 * when the group breaks before the call is over. At most COMM_SPOILS_MAX ranges a call; more are
 * ignored. bytes 0: nothing. The memory must live as long as the call. */
void comm_device_spoil(struct comm_device *comm, uint64_t call, void *memory, int64_t bytes);

/* Break the group; the first reason stays. Any thread; does not block. */
void comm_device_cancel(struct comm_device *comm, ffa_status status, const char *message);
/* FFA_OK, or the reason. Any thread; does not block. */
ffa_status comm_device_status(const struct comm_device *comm, ffa_error *err);

/* ---- comm_peer.c: exchange and mapping, blocking; not under the lock ---- */

/* all [rank_count][bytes] by the caller's bootstrap; a failure of it breaks the group. */
ffa_status comm_peer_gather(struct comm_device *comm, const void *mine, void *all, size_t bytes,
                            ffa_error *err);
/* Collective: FFA_OK on all ranks, or a failure on all: that of the lowest rank whose `rc` is one,
 * with its own message, or as FFA_COMM with the rank named. why: of `rc`. */
ffa_status comm_peer_agree(struct comm_device *comm, ffa_status rc, const ffa_error *why,
                           ffa_error *err);
/* Collective: who the ranks are, their blocks and windows mapped, blocks_device made. All ranks or
 * none. */
ffa_status comm_peer_join(struct comm_device *comm, const int64_t bytes[WINDOW_COUNT],
                          ffa_error *err);
/* Collective: windows at least so large, all ranks or none. The device is idle after it. */
ffa_status comm_peer_reserve(struct comm_device *comm, const int64_t bytes[WINDOW_COUNT],
                             ffa_error *err);
/* Unmap what is the peers', free what is the rank's own. is_safe false: a peer may still touch the
 * own memory, which is left allocated then. */
void comm_peer_finish(struct comm_device *comm, bool is_safe);
/* Whether the rank's process is known to have ended. */
bool comm_peer_is_dead(const struct comm_device *comm, int32_t rank);

/* Ranks of a node, where ranks relay: as many as given, those of a node on one host; given 0: as
 * many as the first host has, which all hosts must have then, but for the last one. hosts [n]: ""
 * is any host. FFA_INVALID. */
ffa_status comm_peer_nodes(int32_t *node_ranks, const char *const *hosts, int32_t n, int32_t given,
                           ffa_error *err);
/* Whether ranks exchange, as they were told to, or as they do not reach each other's memory. */
bool comm_peer_exchanges(const struct comm_device *comm);
/* Whether two ranks share a GPU: which. */
bool comm_peer_shares_gpu(const struct comm_device *comm, int32_t *rank, int32_t *other);

/* ---- comm_exchange.c: transfers over NCCL ---- */

/* Collective, after comm_peer_join: our own communicators, connected. All ranks or none. */
ffa_status comm_exchange_create(struct comm_device *comm, ffa_error *err);
/* What ranks do in the call, sent to all and awaited from all, on the network stream: it goes on
 * where all do the same. */
ffa_status comm_exchange_hello(struct comm_device *comm, const struct comm_call *call,
                               ffa_error *err);
/* One group of sends and receives, on the stream of the window: network for WINDOW_ROWS, reduce for
 * WINDOW_SUMS. Fails with the group's status where that is why. */
ffa_status comm_exchange_moves(struct comm_device *comm, enum comm_window window,
                               const struct nccl_move *moves, int64_t count, ffa_error *err);
/* All moves of the window that the call makes are enqueued; `stream` waits for those of the calls
 * before, because they read the window that it is about to write. */
ffa_status comm_exchange_sent(struct comm_device *comm, enum comm_window window, ffa_error *err);
ffa_status comm_exchange_reclaim(struct comm_device *comm, enum comm_window window,
                                 ffa_stream stream, ffa_error *err);
/* The window's stream waits for what is on `stream` now. */
ffa_status comm_exchange_follow(struct comm_device *comm, enum comm_window window,
                                ffa_stream stream, ffa_error *err);
/* Of comm_device_share_totals. */
ffa_status comm_exchange_totals(struct comm_device *comm, ffa_stream stream, float *all,
                                const float *mine, int32_t count, ffa_error *err);
/* For the watchdog's thread: what NCCL has found out; end what is under way; and let the fetch
 * stream go on that waits for others' words. */
ffa_status comm_exchange_status(const struct comm_device *comm, ffa_error *err);
void comm_exchange_abort(struct comm_device *comm);
ffa_status comm_exchange_poison(struct comm_device *comm, ffa_error *err);
/* false: NCCL is still at work on this rank's memory. */
bool comm_exchange_finish(struct comm_device *comm);

/* ---- comm_nccl.c ---- */

const struct nccl *comm_bootstrap_nccl(const struct comm_bootstrap *bootstrap);
struct nccl_comm *comm_bootstrap_comm(const struct comm_bootstrap *bootstrap);
/* NULL is allowed. is_idle false: work of the device may never end, which freeing memory waits for.
 */
void comm_bootstrap_finish(struct comm_bootstrap *bootstrap, bool is_idle);

/* ---- comm_inspect.c: for the watchdog's thread, under the lock ---- */

/* A word of the own block, as the watchdog has read it last. */
static inline uint64_t comm_seen(const struct comm_device *comm, int64_t word)
{
    return comm->seen[word];
}
static inline bool comm_is_there(uint64_t flag, uint64_t value)
{
    return (int64_t)(flag - value) >= 0;
}
/* Break the group where it has to. */
void comm_inspect(struct comm_device *comm);
/* What to say in comm_block_waits. */
uint64_t comm_inspect_wait(const struct comm_device *comm);

/* ---- comm_watchdog.c ---- */

/* Break the group, under the lock. */
void comm_device_break(struct comm_device *comm, ffa_status status, const char *message);
/* comm_call.c: the same order of communicators in all ranks of a group. The entry of this rank,
 * kept until the process ends; NULL: no memory. */
struct comm_order *comm_order_find(uint64_t group, int32_t rank);
/* Forget what this rank called last, as ranks may not agree on it any more. */
void comm_order_forget(const struct comm_device *comm);

ffa_status comm_watchdog_start(struct comm_device *comm, ffa_error *err);
/* The rank leaves: wait until its calls are over and its windows were given back, at most the
 * time-out; stop the watchdog; say so to the others, and wait, at most the time-out, until none
 * will touch this rank's memory. True: none will. Also without a watchdog. */
bool comm_watchdog_leave(struct comm_device *comm);

#endif
