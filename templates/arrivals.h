/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrivals and departures as launch arguments hold them, read by host (C17) and device (C++17).
 * Pointers are device addresses.
 *
 * In a pass of context parallelism the keys of a launch stand in stages: those of stage 0 are the
 * rank's own and are there, those of the others arrive while the kernel runs, stage after stage.
 * *Arrivals* are flags that say which stages are there. *Departures* are flags that the backward
 * kernel writes for other ranks: they say which stages' dK and dV are complete. Flags count calls
 * and are cyclic: an event of call `value` has happened where (flag - value), as a signed number,
 * is not negative. A flag of value + 2^62 releases whoever waits.
 */
#ifndef FFA_ARRIVALS_H
#define FFA_ARRIVALS_H

enum { ARRIVAL_STAGES_MAX = 16 };

struct arrivals {
    /* [count]; flags[s]: of stage s. That of stage 0 and those of stages without keys are not
     * read. */
    const unsigned long long *flags;
    unsigned long long value;
    int count;       /* of stages; 0: all keys are there, and nothing else here is read */
    int patience_ms; /* debug kernels: no wait is reported before a launch has taken so long */
    int stage_end[ARRIVAL_STAGES_MAX]; /* stage s has the keys [stage_end[s - 1], stage_end[s]) */
};

/* Backward. Not read where there are no arrivals. */
struct departures {
    int *counters; /* [ARRIVAL_STAGES_MAX], 0 before the launch: consumer warps that are done */
    int expected[ARRIVAL_STAGES_MAX];  /* of the counter of a stage, at its last store; 0: nobody
                                        * waits for the stage */
    unsigned long long *const *blocks; /* [ranks]: their flag blocks, in this address space */
    const int *owners; /* ranks: those of stage s's keys are owners[owner_at[s] .. owner_at[s+1]) */
    int owner_at[ARRIVAL_STAGES_MAX + 1];
    int slot; /* of this rank's stage 0 in a flag block; stage s is s words behind it */
    unsigned long long value;
};

#ifdef __cplusplus
static_assert(sizeof(arrivals) == 88 && sizeof(departures) == 168, "host and device disagree");
#else
_Static_assert(sizeof(struct arrivals) == 88 && sizeof(struct departures) == 168,
               "host and device disagree");
#endif

#endif
