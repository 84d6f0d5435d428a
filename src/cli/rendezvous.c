/* SPDX-License-Identifier: Apache-2.0
 *
 * A rendezvous in a folder.
 *
 * Files are renamed into place, so whoever sees one sees all of it. Each process draws a number.
 * A rank says hello with its own; rank 0 answers with a start, which has its number and those that
 * it was greeted with; a rank takes a start only if its number is in it, and then acknowledges rank
 * 0's. Rank 0 is done when all have acknowledged its number, and writes another start whenever a
 * hello has changed. So files of an earlier launch, which have other numbers, are never taken, and
 * are replaced in time. Rank 0's number stands in the names of all files after that.
 *
 * A gather is a file of each rank. A rank removes its file of the gather before the last one: all
 * ranks have read it, as all have begun the gather after it.
 *
 * Each process holds a lock on a file of its own, which the system takes away when it ends: so the
 * others see at once that it was killed. They open that file when they meet, and its owner removes
 * the name at the first gather.
 */
#include "cli/rendezvous.h"

#include "cli/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    PATH_BYTES = 1024,
    NAME_BYTES = 64,
    FILE_BYTES = PATH_BYTES + NAME_BYTES + 16,
    PAUSE_US = 2000,
    CLOSE_MS = 5000
};

struct rendezvous {
    char folder[PATH_BYTES]; /* and the begin of names in it */
    int32_t rank, rank_count;
    int64_t timeout_ms, deadline_us;
    uint64_t own, session;                  /* own number, rank 0's */
    uint64_t greeted[RENDEZVOUS_RANKS_MAX]; /* rank 0: what it was greeted with; 0: not yet */
    int live[RENDEZVOUS_RANKS_MAX];         /* files that ranks lock; -1: not known */
    bool is_missing[RENDEZVOUS_RANKS_MAX];  /* who has not come to where this rank waits */
    int64_t turn;
    bool has_ended; /* has said how it ended */
    ffa_error error;
};

/* ---- files ---- */

static int64_t now_us(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void path_of(const struct rendezvous *m, char path[FILE_BYTES], const char *what,
                    int32_t rank)
{
    (void)snprintf(path, FILE_BYTES, "%s%s.%d", m->folder, what, rank);
}

static ffa_status put(struct rendezvous *m, const char *what, const void *at, size_t bytes)
{
    char path[FILE_BYTES];

    path_of(m, path, what, m->rank);
    return file_write(path, at, bytes, &m->error);
}

/* The file of a rank, if it is there and has just so many bytes; at NULL: whether it is. */
static bool get(const struct rendezvous *m, const char *what, int32_t rank, void *at, size_t bytes)
{
    char path[FILE_BYTES];
    size_t got = 0;
    ssize_t step = 1;
    struct stat st;
    char more;
    int fd;

    path_of(m, path, what, rank);
    if (!at)
        return stat(path, &st) == 0 && S_ISREG(st.st_mode) && (size_t)st.st_size == bytes;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    while (got < bytes && (step = read(fd, (char *)at + got, bytes - got)) > 0)
        got += (size_t)step;
    if (got == bytes)
        step = read(fd, &more, 1);
    (void)close(fd);
    return got == bytes && step == 0;
}

static void drop(const struct rendezvous *m, const char *what, int32_t rank)
{
    char path[FILE_BYTES];

    path_of(m, path, what, rank);
    (void)unlink(path);
}

static void gather_name(const struct rendezvous *m, char name[NAME_BYTES], int64_t turn)
{
    (void)snprintf(name, NAME_BYTES, "%016" PRIx64 "-%" PRId64, m->session, turn);
}

static void end_name(const struct rendezvous *m, char name[NAME_BYTES])
{
    (void)snprintf(name, NAME_BYTES, "%016" PRIx64 "-end", m->session);
}

static void live_name(char name[NAME_BYTES], uint64_t number)
{
    (void)snprintf(name, NAME_BYTES, "%016" PRIx64 "-live", number);
}

static void bye_name(const struct rendezvous *m, char name[NAME_BYTES])
{
    (void)snprintf(name, NAME_BYTES, "%016" PRIx64 "-bye", m->session);
}

/* ---- waiting ---- */

static bool is_in_time(const struct rendezvous *m)
{
    static const struct timespec pause = { .tv_nsec = PAUSE_US * 1000 };

    if (now_us() > m->deadline_us)
        return false;
    (void)nanosleep(&pause, NULL);
    return true;
}

/* FFA_TIMEOUT, with the ranks that are missing. */
static ffa_status say_missing(struct rendezvous *m, const char *where)
{
    char names[256] = "";
    size_t at = 0;
    int32_t count = 0, last = 0;

    for (int32_t r = 0; r < m->rank_count; r++) {
        if (!m->is_missing[r])
            continue;
        last = r;
        if (count++ > 0 && at + 24 < sizeof names)
            at += (size_t)snprintf(names + at, sizeof names - at, ", ");
        if (at + 24 < sizeof names)
            at += (size_t)snprintf(names + at, sizeof names - at, "%d", r);
    }
    if (count == 1)
        return cli_error(&m->error, FFA_TIMEOUT, 0, "rank %d has not come to %s within %lld ms",
                         last, where, (long long)m->timeout_ms);
    return cli_error(&m->error, FFA_TIMEOUT, 0,
                     "%d of %d ranks have not come to %s within %lld ms: %s", count, m->rank_count,
                     where, (long long)m->timeout_ms, names);
}

static ffa_status say_not_there(struct rendezvous *m)
{
    char where[PATH_BYTES + 32];

    (void)snprintf(where, sizeof where, "the rendezvous '%.300s'", m->folder);
    return say_missing(m, where);
}

/* ---- who lives ---- */

/* A process loses its locks of a file once it closes any descriptor of it: this one stays open. */
static void lock_own(struct rendezvous *m)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    char name[NAME_BYTES], path[FILE_BYTES];

    live_name(name, m->own);
    path_of(m, path, name, m->rank);
    m->live[m->rank] = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (m->live[m->rank] >= 0 && fcntl(m->live[m->rank], F_SETLK, &lock) != 0)
        (void)unlink(path); /* locks do not work here: nobody is known to live */
}

static void open_others(struct rendezvous *m, const uint64_t *numbers)
{
    for (int32_t r = 0; r < m->rank_count; r++) {
        char name[NAME_BYTES], path[FILE_BYTES];

        if (r == m->rank)
            continue;
        live_name(name, numbers[r]);
        path_of(m, path, name, r);
        m->live[r] = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    }
}

enum life { LIFE_UNKNOWN, LIFE_RUNS, LIFE_OVER };

static enum life life_of(const struct rendezvous *m, int32_t rank)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

    if (rank == m->rank)
        return LIFE_RUNS;
    if (m->live[rank] < 0 || fcntl(m->live[rank], F_GETLK, &lock) != 0)
        return LIFE_UNKNOWN;
    return lock.l_type == F_UNLCK ? LIFE_OVER : LIFE_RUNS;
}

/* How a rank ended. */
struct end {
    int32_t code, status; /* status: ffa_status */
    char message[sizeof(((ffa_error *)0)->message)];
};

static bool get_end(const struct rendezvous *m, int32_t rank, struct end *end)
{
    char name[NAME_BYTES];

    end_name(m, name);
    if (!get(m, name, rank, end, sizeof *end))
        return false;
    end->message[sizeof end->message - 1] = '\0';
    return true;
}

/* Whether a rank will write no more files; *err says why. What it wrote before is there by then. */
static bool has_gone(const struct rendezvous *m, int32_t rank, const char *where, ffa_error *err)
{
    struct end end;

    if (get_end(m, rank, &end)) {
        if (end.status != FFA_OK)
            (void)cli_error(err, (ffa_status)end.status, 0, "rank %d gave up: %.200s", rank,
                            end.message);
        else
            (void)cli_error(err, FFA_COMM, 0, "rank %d has ended and does not come to %s", rank,
                            where);
        return true;
    }
    if (life_of(m, rank) != LIFE_OVER)
        return false;
    (void)cli_error(err, FFA_COMM, 0, "rank %d has died and does not come to %s", rank, where);
    return true;
}

/* ---- meeting ---- */

struct hello {
    uint64_t number;
    int64_t rank_count;
};

struct start {
    uint64_t session;
    int64_t rank_count;
    uint64_t greeted[RENDEZVOUS_RANKS_MAX];
};

/* Rank 0: who has said hello; true: somebody anew. */
static bool look_for_hellos(struct rendezvous *m, bool *are_all)
{
    bool is_new = false;

    *are_all = true;
    for (int32_t r = 1; r < m->rank_count; r++) {
        struct hello hello;

        m->is_missing[r] =
            !get(m, "hello", r, &hello, sizeof hello) || hello.rank_count != m->rank_count;
        *are_all = *are_all && !m->is_missing[r];
        if (m->is_missing[r] || hello.number == m->greeted[r])
            continue;
        m->greeted[r] = hello.number;
        is_new = true;
    }
    return is_new;
}

static bool are_acknowledged(struct rendezvous *m)
{
    bool are_all = true;

    for (int32_t r = 1; r < m->rank_count; r++) {
        uint64_t number;

        m->is_missing[r] = !get(m, "ack", r, &number, sizeof number) || number != m->session;
        are_all = are_all && !m->is_missing[r];
    }
    return are_all;
}

static ffa_status lead(struct rendezvous *m)
{
    struct start start = { .session = m->own, .rank_count = m->rank_count };
    bool are_all;
    ffa_status rc = FFA_OK;

    m->session = m->own;
    do {
        const bool is_new = look_for_hellos(m, &are_all);

        if (!are_all)
            continue;
        if (is_new || m->rank_count == 1) {
            memcpy(start.greeted, m->greeted, sizeof start.greeted);
            rc = put(m, "start", &start, sizeof start);
        }
        if (rc != FFA_OK || are_acknowledged(m))
            return rc;
    } while (is_in_time(m));
    return say_not_there(m);
}

static ffa_status follow(struct rendezvous *m)
{
    const struct hello hello = { m->own, m->rank_count };
    struct start start;
    ffa_status rc = put(m, "hello", &hello, sizeof hello);

    if (rc != FFA_OK)
        return rc;
    do {
        if (get(m, "start", 0, &start, sizeof start) && start.rank_count == m->rank_count &&
            start.greeted[m->rank] == m->own) {
            m->session = start.session;
            return put(m, "ack", &m->session, sizeof m->session);
        }
    } while (is_in_time(m));
    for (int32_t r = 1; r < m->rank_count; r++) {
        struct hello other;

        m->is_missing[r] = r != m->rank && !get(m, "hello", r, &other, sizeof other);
    }
    m->is_missing[0] = true; /* or it waits for the others that are missing, too */
    for (int32_t r = 1; r < m->rank_count; r++)
        m->is_missing[0] = m->is_missing[0] && !m->is_missing[r];
    return say_not_there(m);
}

static ffa_status make_folder(struct rendezvous *m, const char *folder, const char *id,
                              ffa_error *err)
{
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return cli_error(err, FFA_IO, errno, "cannot make the folder '%s': %s", folder,
                         strerror(errno));
    if (snprintf(m->folder, sizeof m->folder, "%s/ffa-%s%s", folder, id, *id ? "-" : "") >=
        (int)sizeof m->folder)
        return cli_error(err, FFA_INVALID, 0, "the rendezvous' path is longer than %d bytes",
                         PATH_BYTES - 1);
    return FFA_OK;
}

static ffa_status gather(struct rendezvous *m, const void *mine, size_t mine_bytes, void *const *at,
                         const size_t *bytes, const char *where);

/* The numbers of all, as rank 0 may have been greeted with others before. */
static ffa_status exchange_numbers(struct rendezvous *m)
{
    uint64_t numbers[RENDEZVOUS_RANKS_MAX] = { 0 };
    void *at[RENDEZVOUS_RANKS_MAX];
    size_t bytes[RENDEZVOUS_RANKS_MAX];
    ffa_status rc;

    for (int32_t r = 0; r < m->rank_count; r++) {
        at[r] = &numbers[r];
        bytes[r] = sizeof *numbers;
    }
    rc = gather(m, &m->own, sizeof m->own, at, bytes, "the rendezvous");
    if (rc == FFA_OK)
        open_others(m, numbers);
    return rc;
}

static void drop_live(const struct rendezvous *m)
{
    char name[NAME_BYTES];

    live_name(name, m->own);
    drop(m, name, m->rank);
}

static void destroy(struct rendezvous *m)
{
    drop_live(m);
    for (int32_t r = 0; r < m->rank_count; r++)
        if (m->live[r] >= 0)
            (void)close(m->live[r]);
    free(m);
}

ffa_status rendezvous_open(struct rendezvous **out, const char *folder,
                           const struct rendezvous_place *place, int64_t timeout_ms, ffa_error *err)
{
    struct rendezvous *m = calloc(1, sizeof *m);
    ffa_status rc;

    *out = NULL;
    if (!m)
        return cli_error(err, FFA_NOMEM, 0, "no memory for the rendezvous");
    m->rank = place->rank;
    m->rank_count = place->rank_count;
    m->timeout_ms = timeout_ms;
    m->deadline_us = now_us() + timeout_ms * 1000;
    if (getrandom(&m->own, sizeof m->own, 0) != (ssize_t)sizeof m->own)
        m->own = (uint64_t)now_us() << 20 ^ (uint64_t)getpid();
    m->own |= 1;
    memset(m->live, -1, sizeof m->live);
    rc = make_folder(m, folder, place->id, &m->error);
    if (rc == FFA_OK) {
        lock_own(m);
        rc = m->rank == 0 ? lead(m) : follow(m);
    }
    if (rc == FFA_OK)
        rc = exchange_numbers(m);
    if (rc == FFA_OK) {
        *out = m;
        return FFA_OK;
    }
    if (err)
        *err = m->error;
    destroy(m);
    return rc;
}

/* ---- gathers ---- */

/* The file of this turn of each rank whose at is not NULL; of the others, until it is there. */
static ffa_status gather(struct rendezvous *m, const void *mine, size_t mine_bytes, void *const *at,
                         const size_t *bytes, const char *where)
{
    char name[NAME_BYTES];
    bool are_all;
    ffa_status rc;

    gather_name(m, name, m->turn);
    m->deadline_us = now_us() + m->timeout_ms * 1000;
    rc = put(m, name, mine, mine_bytes);
    if (rc != FFA_OK)
        return rc;
    memset(m->is_missing, true, (size_t)m->rank_count * sizeof *m->is_missing);
    do {
        are_all = true;
        for (int32_t r = 0; r < m->rank_count; r++) {
            ffa_error why;
            const bool is_gone = m->is_missing[r] && has_gone(m, r, where, &why);

            if (m->is_missing[r])
                m->is_missing[r] = !get(m, name, r, at[r], bytes[r]);
            if (m->is_missing[r] && is_gone) {
                m->error = why;
                return why.status;
            }
            are_all = are_all && !m->is_missing[r];
        }
    } while (!are_all && is_in_time(m));
    if (!are_all)
        return say_missing(m, where);
    gather_name(m, name, m->turn - 1);
    drop(m, name, m->rank);
    if (m->turn == 1)
        drop_live(m);
    return FFA_OK;
}

int rendezvous_gather(struct rendezvous *m, const void *mine, void *const *at, const size_t *bytes)
{
    char where[96];

    m->turn++;
    (void)snprintf(where, sizeof where, "exchange %lld of the rendezvous", (long long)m->turn);
    return gather(m, mine, bytes[m->rank], at, bytes, where) == FFA_OK ? 0 : 1;
}

int rendezvous_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    struct rendezvous *m = user;
    void *at[RENDEZVOUS_RANKS_MAX];
    size_t sizes[RENDEZVOUS_RANKS_MAX];

    for (int32_t r = 0; r < m->rank_count; r++) {
        at[r] = (char *)all + (size_t)r * bytes;
        sizes[r] = bytes;
    }
    return rendezvous_gather(m, mine, at, sizes);
}

const ffa_error *rendezvous_error(const struct rendezvous *meeting)
{
    return &meeting->error;
}

/* ---- the end ---- */

void rendezvous_end(struct rendezvous *m, int32_t code, const ffa_error *why)
{
    struct end end = { .code = code };
    char name[NAME_BYTES];

    if (m->has_ended)
        return;
    m->has_ended = true;
    if (why && why->status != FFA_OK) {
        end.status = (int32_t)why->status;
        (void)snprintf(end.message, sizeof end.message, "%s", why->message);
    }
    end_name(m, name);
    (void)put(m, name, &end, sizeof end);
}

/* The end of a rank that failed by itself says more than that of one whose group was broken. */
static bool is_worse(const struct end *end, const struct end *worst)
{
    if (end->code == 0)
        return false;
    return worst->code == 0 || (worst->status == FFA_COMM && end->status != FFA_COMM);
}

ffa_status rendezvous_agree(struct rendezvous *m, int32_t *code, ffa_error *err)
{
    struct end worst = { 0 };
    bool are_all;

    rendezvous_end(m, *code, NULL);
    m->deadline_us = now_us() + m->timeout_ms * 1000;
    do {
        worst = (struct end){ 0 };
        are_all = true;
        for (int32_t r = 0; r < m->rank_count; r++) {
            const enum life life = life_of(m, r);
            struct end end;

            m->is_missing[r] = !get_end(m, r, &end);
            if (!m->is_missing[r] && is_worse(&end, &worst))
                worst = end;
            if (m->is_missing[r] && life == LIFE_RUNS)
                m->deadline_us = now_us() + m->timeout_ms * 1000;
            are_all = are_all && (!m->is_missing[r] || life == LIFE_OVER);
        }
    } while (!are_all && is_in_time(m));
    *code = worst.code;
    for (int32_t r = 0; r < m->rank_count; r++)
        if (m->is_missing[r])
            return cli_error(err, FFA_COMM, 0, "rank %d has died and not said how it ended", r);
    return FFA_OK;
}

int32_t rendezvous_lost(const struct rendezvous *m, ffa_error *err)
{
    for (int32_t r = 0; r < m->rank_count; r++) {
        const enum life life = life_of(m, r);
        struct end end;

        if (r == m->rank)
            continue;
        if (get_end(m, r, &end)) { /* what it wrote is there once it is over */
            if (end.code == 0)
                continue;
            (void)cli_error(err, end.status ? (ffa_status)end.status : FFA_COMM, 0,
                            "rank %d gave up: %.200s", r,
                            end.status ? end.message : "it has failed");
            return r;
        }
        if (life == LIFE_OVER) {
            (void)cli_error(err, FFA_COMM, 0, "rank %d has died", r);
            return r;
        }
    }
    return -1;
}

/* Whether all others have said that they need no file any more, or need none. */
static bool have_left(struct rendezvous *m)
{
    char name[NAME_BYTES], byte;

    bye_name(m, name);
    for (int32_t r = 1; r < m->rank_count; r++)
        if (life_of(m, r) != LIFE_OVER && !get(m, name, r, &byte, 1))
            return false;
    return true;
}

static void drop_all(struct rendezvous *m)
{
    char name[NAME_BYTES], last[NAME_BYTES], end[NAME_BYTES], bye[NAME_BYTES];

    gather_name(m, name, m->turn);
    gather_name(m, last, m->turn - 1);
    end_name(m, end);
    bye_name(m, bye);
    drop(m, "start", 0);
    for (int32_t r = 0; r < m->rank_count; r++) {
        drop(m, "hello", r);
        drop(m, "ack", r);
        drop(m, name, r);
        drop(m, last, r);
        drop(m, end, r);
        drop(m, bye, r);
    }
}

void rendezvous_close(struct rendezvous *m)
{
    char name[NAME_BYTES];
    bool have_all_left;

    if (!m)
        return;
    bye_name(m, name);
    if (m->rank != 0) {
        (void)put(m, name, "b", 1);
        destroy(m);
        return;
    }
    m->deadline_us = now_us() + (m->timeout_ms < CLOSE_MS ? m->timeout_ms : CLOSE_MS) * 1000;
    do {
        have_all_left = have_left(m);
    } while (!have_all_left && is_in_time(m));
    if (have_all_left)
        drop_all(m);
    destroy(m);
}
