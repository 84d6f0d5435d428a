/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of tuning sessions, and a session as a record in memory.
 *
 * A file has any number of sessions. Whatever is put is one transaction, so that a process that is
 * killed at any point leaves a file from which the session goes on: what was measured is there, and
 * what was tried on the device when it ended is named. One process writes a file at a time.
 * Thread: one at a time.
 */
#ifndef FFA_CACHE_TUNE_STORE_H
#define FFA_CACHE_TUNE_STORE_H

#include "base/base.h"
#include "base/device_facts.h"
#include "base/digest.h"

/* What is known of a configuration; the numbers are those of the file. */
enum tune_state {
    TUNE_PENDING = 0,  /* to be compiled */
    TUNE_COMPILED = 1, /* without spills; to be checked */
    TUNE_CHECKED = 2,  /* its results are right; it may race */
    TUNE_SPILLED = 3,
    TUNE_REFUSED = 4, /* it did not compile, or the device does not take it */
    TUNE_WRONG = 5,   /* its results are beyond the tolerance */
    TUNE_HUNG = 6,    /* it did not end in time */
    TUNE_DIED = 7     /* its compile worker, a call, or two processes ended while it ran */
};
enum { TUNE_STATES = 8 };
/* "pending", "compiled", ... */
const char *tune_state_text(enum tune_state state);

/* What races: a forward kernel, or in a backward session an order of the pass. All zero: whatever
 * the library chooses now, the baseline. */
struct tune_configuration {
    int32_t consumers, tile_n;         /* of a forward kernel */
    int32_t parts, waves, whole_heads; /* of an order (choose/order.h) */
    int32_t is_unlocked;               /* 1: of an order without lockstep where there would be */
    int32_t kv_slots;
    int32_t registers, shared_bytes, spill_bytes; /* -1: not known */
    enum tune_state state;
    int32_t tries;    /* processes in a row that ended while it ran */
    char key[33];     /* "": not compiled yet */
    char reason[200]; /* of the states from TUNE_SPILLED on; else "" */
};

static inline bool tune_is_baseline(const struct tune_configuration *configuration)
{
    return configuration->consumers == 0 && configuration->parts == 0;
}

/* The order that the baseline of a backward session was with a mask when it was timed. parts 0: not
 * known, in a file that did not keep it. */
struct tune_baseline {
    int32_t parts, waves, whole_heads;
};

/* One timing: the mean of several calls in a row. */
struct tune_sample {
    int32_t lap, mask, configuration; /* indices of the record; no two samples have all three */
    int32_t place;                    /* in the order of the lap */
    int32_t process;                  /* which of those that ran the session took it, from 0 */
    int32_t calls;
    int32_t clock_mhz, power_w, temperature_c; /* 0: not known */
    double us;                                 /* one call */
};

enum { TUNE_MASK_BYTES = 200, TUNE_MASKS_MAX = 64, TUNE_CONFIGURATIONS_MAX = 128 };
enum { TUNE_LAPS_MAX = 4096, TUNE_SMS_MAX = 1024, TUNE_GROUP_MAX = 64 };
enum { TUNE_PROCESSES_MAX = 1 << 20 };
enum { TUNE_BACKWARD_GROUP_MAX = 4095 /* query heads of a kv head whose orders are searched */ };
enum { TUNE_WAVES_MAX = 4 /* of an L2 group, as ORDER_WAVES_MAX */ };

struct tune_record {
    char id[DIGEST_TEXT]; /* of the session, in whatever file it is */
    /* What is measured. */
    int32_t head_dim, head_dim_v, dtype, heads_q, heads_kv;
    int32_t pack_heads; /* 0: heads are apart */
    char arch[16];
    /* Of a backward session, which is of one set of kernels; zero in a forward one. */
    int32_t backward_tile_m, backward_tile_n;
    int32_t backward_cluster; /* SMs that share a key tile */
    int32_t is_deterministic; /* FFA_SPEC_DETERMINISTIC */
    int64_t lockstep_masks;   /* bit m: the tiles of mask m can go in lockstep */
    struct tune_baseline baselines[TUNE_MASKS_MAX]; /* [mask_count] */
    /* Where. 0 and "": not known. */
    struct device_facts facts;
    int64_t memory_bytes;
    int32_t power_limit_w, clock_max_mhz;
    char driver[32];
    char templates_digest[DIGEST_TEXT];
    char library_version[32];
    char *base_table; /* the cost table that the baseline follows, as JSON; owned */
    /* How long. */
    int64_t budget_us, spent_us;
    int64_t started_s, ended_s; /* Unix times; ended_s 0: it is not over */
    int32_t trying;             /* the configuration on the device; -1: none */
    int32_t process;            /* of the samples that are taken now; in no file */
    int32_t mask_count, configuration_count;
    int64_t sample_count, sample_capacity;
    char (*masks)[TUNE_MASK_BYTES];            /* [mask_count] owned, as the others */
    struct tune_configuration *configurations; /* [configuration_count] the baseline first */
    struct tune_sample *samples;               /* [sample_count] by lap, mask, configuration */
};
static inline bool tune_is_backward(const struct tune_record *record)
{
    return record->backward_tile_m > 0;
}

static inline bool tune_has_lockstep(const struct tune_record *record, int32_t mask)
{
    return (uint64_t)record->lockstep_masks >> mask & 1;
}

void tune_record_finish(struct tune_record *record);
/* FFA_CACHE, naming the session and what of it no session writes: what is in a file, or a text, was
 * not written by this process. */
ffa_status tune_record_check(const struct tune_record *record, ffa_error *err);
/* NULL: there is none. */
const struct tune_sample *tune_record_find(const struct tune_record *record, int32_t lap,
                                           int32_t mask, int32_t configuration);
/* Keep the order; one of the same lap, mask and configuration goes. False: no memory. */
bool tune_record_add(struct tune_record *record, const struct tune_sample *sample);

struct tune_store;

enum tune_store_mode { TUNE_STORE_READ, TUNE_STORE_WRITE, TUNE_STORE_CREATE };

/* Open the file, with TUNE_STORE_CREATE make it where there is none. *out: caller's,
 * tune_store_close(). Fails with FFA_NOT_FOUND (no file), FFA_CACHE (no file of sessions, a newer
 * one, damaged, in use by another session), FFA_INVALID (path), FFA_NOMEM; messages name the path.
 */
ffa_status tune_store_open(struct tune_store **out, const char *path, enum tune_store_mode mode,
                           ffa_error *err);
void tune_store_close(struct tune_store *store); /* NULL is allowed */

/* All sessions, by id. *out: caller's, tune_records_finish(). */
ffa_status tune_store_load(struct tune_store *store, struct tune_record **out, int32_t *count,
                           ffa_error *err);
void tune_records_finish(struct tune_record *records, int32_t count);

/* Add whole sessions, all or none; those that the file has already stay as they are. */
ffa_status tune_store_add(struct tune_store *store, const struct tune_record *records,
                          int32_t count, ffa_error *err);
/* Write one configuration of the session, and that none is on the device. */
ffa_status tune_store_put_configuration(struct tune_store *store, struct tune_record *record,
                                        int32_t configuration, ffa_error *err);
/* Note that a configuration is on the device from now on; -1: that none is. */
ffa_status tune_store_try(struct tune_store *store, struct tune_record *record,
                          int32_t configuration, ffa_error *err);
/* Add a sample, to the record, too, the order of the baseline with its mask, and spent_us; from now
 * on `next` is on the device, -1: none. */
ffa_status tune_store_put_sample(struct tune_store *store, struct tune_record *record,
                                 const struct tune_sample *sample, int32_t next, ffa_error *err);
/* Write budget_us, spent_us and ended_s. */
ffa_status tune_store_put_times(struct tune_store *store, const struct tune_record *record,
                                ffa_error *err);

#endif
