/* SPDX-License-Identifier: Apache-2.0
 *
 * A device for tuning sessions whose times follow from known costs, with noise that follows from a
 * seed, and whose configurations fail on demand.
 */
#ifndef TESTS_FAKE_TUNE_H
#define TESTS_FAKE_TUNE_H

#include "choose/order.h"
#include "tune/tune_device.h"

/* What a configuration does instead of what it should. */
enum fake_fault {
    FAKE_SOUND,
    FAKE_SPILLS,
    FAKE_WORKER_DIES,
    FAKE_WORKER_HANGS,
    FAKE_IS_REFUSED,  /* by the compiler */
    FAKE_NO_COMPILER, /* compile_status: nobody can compile it now */
    FAKE_IS_WRONG,
    FAKE_TRAPS,         /* when it is checked */
    FAKE_HANGS,         /* likewise */
    FAKE_TRAPS_IN_RACE, /* with mask 1 */
    FAKE_HAS_NO_MEMORY  /* in a race: the device's is in use by others */
};

/* Where the process is killed (SIGKILL). */
enum fake_stage { FAKE_NEVER, FAKE_COMPILE, FAKE_PREPARE, FAKE_CHECK, FAKE_RUN };

struct fake_fault_of {
    int32_t consumers, tile_n;
    enum fake_fault fault;
};

struct fake_tune {
    const struct cost_table *costs; /* true ones: by columns and packing, others cost more; in a
                                     * backward session those of orders */
    struct backward_order was;      /* the baseline's order; parts 0: what the library chooses */
    double unlocked;                /* what an order takes longer without lockstep, as a share */
    double unit_us;                 /* of 1 of the costs */
    double call_us;                 /* of a call, beside its tiles */
    double speed;                   /* of this machine: times are divided by it */
    double noise;                   /* the largest share that a time is off by */
    uint64_t seed;
    bool recovers;
    int64_t budget_us;                  /* of a session that goes on; 0: what it has */
    const struct fake_fault_of *faults; /* [fault_count] */
    int32_t fault_count;
    ffa_status compile_status; /* of FAKE_NO_COMPILER */
    enum fake_stage kill_at;
    int32_t kill_after; /* calls of that stage */
    int64_t us;         /* the clock */
    int32_t calls[5];   /* by stage */
};

struct tune_device fake_tune_device(struct fake_tune *fake);
/* A record of a session of a spec on a made-up H200, with the library's table to begin with. The
 * caller's, tune_record_finish(). id: one digit tells sessions apart. */
struct tune_record fake_tune_record_of(int id, const char *spec, const char *const *masks,
                                       int32_t mask_count);
/* The same of a backward session. */
struct tune_record fake_tune_backward(int id, const char *spec, const char *const *masks,
                                      int32_t mask_count);
/* The order that the library chooses for a mask of a record. */
struct backward_order fake_tune_choice(const struct tune_record *record, const char *mask);
/* What an order takes with a mask of a record, by some costs. */
double fake_tune_order_time(const struct tune_record *record, const char *mask,
                            struct backward_order order, const struct cost_table *costs);
/* The one session of a file, in place of *record. */
void fake_tune_load(struct tune_record *record, struct tune_store *store);
/* Add the session to the file of a path and run it, or go on with the one that is there, which
 * *record becomes. must_restart: NULL, or receives whether a kernel took the device down. */
ffa_status fake_tune_run(struct tune_record *record, struct fake_tune *fake, const char *path,
                         bool resumes, bool *must_restart, ffa_error *err);
/* Of a session that went on after a kill with so many samples taken: only those of the lap that was
 * interrupted were taken again. */
void fake_tune_check_resumed(const struct tune_record *record, const struct fake_tune *fake,
                             int32_t taken);
/* Of a session that went on: in each lap gains are those of the reference, which had one process,
 * within 0.1. begun: as the first process left it, with a final that others joined later. */
void fake_tune_check_gains(const struct tune_record *record, const struct tune_record *begun,
                           const struct tune_record *reference);
/* The tile of a table of so many columns of q and v, of packed heads. */
struct cost_tile *fake_tune_tile(struct cost_table *table, int32_t head_dim, int32_t head_dim_v,
                                 int32_t consumers, int32_t tile_n);
/* A forward session of 128 columns and 64:8 heads. */
struct tune_record fake_tune_record(int id, const char *const *masks, int32_t mask_count);

#endif
