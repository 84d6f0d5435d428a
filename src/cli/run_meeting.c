/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that are threads meet at a condition variable; what ranks do at any meeting follows.
 *
 * Processes look for each other's files, so the last one comes out of a gather some time after the
 * first. All have one clock, as they are of one host: they start at a time that all know, a little
 * after the last has come.
 */
#include "cli/run_meeting.h"

#include "cli/clock.h"
#include "cli/file.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS_MAX = 256 };

/* ---- threads ---- */

struct threads {
    struct run_meeting meeting; /* first */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t come, gone; /* of this round; gone: those that have not read what was gathered yet */
    int64_t round;
    char *words; /* [ranks][bytes] */
    size_t bytes;
    bool is_over; /* a rank gave up */
};

static void give_up(struct run_meeting *meeting, const ffa_error *why)
{
    struct threads *t = (struct threads *)meeting;

    (void)why; /* its own thread reports that */
    (void)pthread_mutex_lock(&t->lock);
    t->is_over = true;
    (void)pthread_cond_broadcast(&t->changed);
    (void)pthread_mutex_unlock(&t->lock);
}

/* The first to come makes room; all bring the same number of bytes. */
static void bring(struct threads *t, int32_t rank, const void *mine, size_t bytes)
{
    if (t->come == 0) {
        free(t->words);
        t->words = malloc((size_t)t->meeting.rank_count * bytes + 1);
        t->bytes = bytes;
        t->is_over = t->is_over || !t->words;
    }
    t->is_over = t->is_over || t->bytes != bytes;
    if (t->is_over)
        (void)pthread_cond_broadcast(&t->changed);
    else if (bytes > 0)
        memcpy(t->words + (size_t)rank * bytes, mine, bytes);
}

static ffa_status gather(struct run_meeting *meeting, int32_t rank, const void *mine, void *all,
                         size_t bytes, ffa_error *err)
{
    struct threads *t = (struct threads *)meeting;
    bool is_whole = false;

    (void)pthread_mutex_lock(&t->lock);
    while (t->gone > 0 && !t->is_over) /* the last round is still read */
        (void)pthread_cond_wait(&t->changed, &t->lock);
    if (!t->is_over)
        bring(t, rank, mine, bytes);
    if (!t->is_over) {
        const int64_t round = t->round;

        if (++t->come == meeting->rank_count) {
            t->round++;
            t->gone = meeting->rank_count;
            t->come = 0;
            (void)pthread_cond_broadcast(&t->changed);
        }
        while (t->round == round && !t->is_over)
            (void)pthread_cond_wait(&t->changed, &t->lock);
        is_whole = t->round != round;
    }
    /* A round that all have come to is read by all, also where one of them then gives up. */
    if (is_whole && bytes > 0)
        memcpy(all, t->words, (size_t)meeting->rank_count * bytes);
    if (is_whole && --t->gone == 0)
        (void)pthread_cond_broadcast(&t->changed);
    (void)pthread_mutex_unlock(&t->lock);
    return is_whole ? FFA_OK : cli_error(err, FFA_COMM, 0, "another rank gave up");
}

struct run_meeting *run_threads_create(int32_t ranks)
{
    struct threads *t = calloc(1, sizeof *t);

    if (!t)
        return NULL;
    t->meeting = (struct run_meeting){ .rank_count = ranks, .gather = gather, .give_up = give_up };
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)pthread_cond_init(&t->changed, NULL);
    return &t->meeting;
}

void run_threads_destroy(struct run_meeting *meeting)
{
    struct threads *t = (struct threads *)meeting;

    if (!t)
        return;
    (void)pthread_mutex_destroy(&t->lock);
    (void)pthread_cond_destroy(&t->changed);
    free(t->words);
    free(t);
}

/* ---- any meeting ---- */

ffa_status run_meeting_most(struct run_meeting *meeting, int32_t rank, int64_t *value,
                            ffa_error *err)
{
    int64_t all[RANKS_MAX];
    const ffa_status rc = meeting->gather(meeting, rank, value, all, sizeof *all, err);

    for (int32_t r = 0; rc == FFA_OK && r < meeting->rank_count; r++)
        if (all[r] > *value)
            *value = all[r];
    return rc;
}

ffa_status run_meeting_start(struct run_meeting *meeting, int32_t rank, int64_t *since_us,
                             ffa_error *err)
{
    int64_t start_us = cli_clock_us(), left_us;
    const ffa_status rc = run_meeting_most(meeting, rank, &start_us, err);

    start_us += meeting->lag_us;
    left_us = start_us - cli_clock_us();
    if (rc == FFA_OK && left_us > 0 && left_us <= meeting->lag_us) { /* else other clocks */
        const struct timespec pause = { .tv_nsec = left_us * 1000 };

        (void)nanosleep(&pause, NULL);
    }
    *since_us = cli_clock_us();
    return rc;
}
