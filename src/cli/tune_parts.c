/* SPDX-License-Identifier: Apache-2.0
 *
 * A session file has one writer, so each process writes a file of its own, and this process adds
 * them together at the end: sessions of one spec are compared through the baseline, which each
 * process measures beside its tiles. Part files stay until all of them are added.
 */
#include "cli/tune_parts.h"

#include "cli/interrupt.h"
#include "cli/tune_print.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS_MAX = 1024, LINE_BYTES = 1 << 17, PARTS_MAX = 64, COMMAND_WORDS = 3, ADDED_WORDS = 9 };

extern char **environ;

/* ---- the words of this process ---- */

struct words {
    char line[LINE_BYTES];
    char *at[WORDS_MAX + ADDED_WORDS + 1]; /* ends with NULL */
    int count;
};

/* False: errno. */
static bool read_words(struct words *words)
{
    const int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    const ssize_t bytes = file < 0 ? -1 : read(file, words->line, LINE_BYTES - 1);

    if (file >= 0)
        (void)close(file);
    if (bytes <= 0)
        return false;
    words->line[bytes] = '\0';
    words->count = 0;
    for (char *at = words->line; at < words->line + bytes && words->count < WORDS_MAX;
         at += strlen(at) + 1)
        words->at[words->count++] = at;
    words->at[words->count] = NULL;
    return true;
}

/* Put words behind "ffa tune run", where no '--' is before them. */
static void insert(struct words *words, char *const *added, int count)
{
    memmove(&words->at[COMMAND_WORDS + count], &words->at[COMMAND_WORDS],
            (size_t)(words->count - COMMAND_WORDS + 1) * sizeof *words->at);
    memcpy(&words->at[COMMAND_WORDS], added, (size_t)count * sizeof *added);
    words->count += count;
}

void tune_parts_become(char *word)
{
    static struct words words;
    bool is_there = false;

    if (!read_words(&words))
        return;
    for (int i = 0; i < words.count; i++)
        is_there |= strcmp(words.at[i], word) == 0;
    if (!is_there && words.count >= COMMAND_WORDS && words.count < WORDS_MAX)
        insert(&words, &word, 1);
    (void)execv("/proc/self/exe", words.at);
}

/* Leave out an option, with its value if it has one. */
static void drop(struct words *words, const char *option, bool has_value)
{
    const size_t bytes = strlen(option);
    int kept = 0;

    for (int i = 0; i < words->count; i++) {
        const char *word = words->at[i];

        if (strncmp(word, option, bytes) == 0 && word[bytes] == '=')
            continue;
        if (strcmp(word, option) == 0) {
            i += has_value;
            continue;
        }
        words->at[kept++] = words->at[i];
    }
    words->count = kept;
    words->at[kept] = NULL;
}

/* ---- parts ---- */

struct part {
    int device;
    pid_t pid; /* 0: it is not running */
    int status;
    char path[CLI_PATH_BYTES];
};

static bool has_file(const struct part *part)
{
    return access(part->path, F_OK) == 0;
}

struct parts {
    const struct cli *cli;
    const char *session;
    struct part at[PARTS_MAX];
    int count;
};

static int read_devices(struct parts *parts, const char *text)
{
    const char *at = text;

    do {
        char *end;
        const long device = strtol(at, &end, 10);

        if (end == at || device < 0 || device > 1023 || (*end && *end != ',') ||
            parts->count == PARTS_MAX)
            return cli_fail_text(parts->cli, FFA_INVALID,
                                 "--devices is '%s', not numbers of at most %d GPUs such as 0,1",
                                 text, PARTS_MAX);
        for (int i = 0; i < parts->count; i++)
            if (parts->at[i].device == device)
                return cli_fail_text(parts->cli, FFA_INVALID,
                                     "--devices is '%s': %ld is there "
                                     "twice",
                                     text, device);
        parts->at[parts->count++].device = (int)device;
        at = end + (*end == ',');
        if (!*end)
            break;
    } while (*at);
    return CLI_PARSE_GO;
}

/* A part file beyond the count is of a session that was begun on more GPUs: its samples would stay
 * behind. */
static int check_others(const struct parts *parts)
{
    char path[CLI_PATH_BYTES];

    for (int i = parts->count; i < PARTS_MAX; i++) {
        (void)snprintf(path, sizeof path, "%s.part%d", parts->session, i);
        if (access(path, F_OK) == 0)
            return cli_fail_text(
                parts->cli, FFA_INVALID,
                "'%s' is there, of a session on more than %d GPU%s: resume it on as "
                "many as it was begun on, or remove its part files",
                path, parts->count, parts->count == 1 ? "" : "s");
    }
    return CLI_PARSE_GO;
}

static int name_files(struct parts *parts)
{
    for (int i = 0; i < parts->count; i++) {
        const int bytes =
            snprintf(parts->at[i].path, CLI_PATH_BYTES, "%s.part%d", parts->session, i);

        if (bytes < 0 || bytes >= CLI_PATH_BYTES)
            return cli_fail_text(parts->cli, FFA_INVALID, "--session is longer than %d bytes",
                                 CLI_PATH_BYTES - 8);
    }
    return check_others(parts);
}

/* errno; 0: it runs. What it prints on stdout is of its part, and goes nowhere. */
static int start(struct parts *parts, int index, bool resumes)
{
    static struct words words;
    struct part *part = &parts->at[index];
    char device[16], share[32];
    static char device_option[] = "--device", part_option[] = "--part";
    static char session_option[] = "--session", join_option[] = "--join";
    static char resume_option[] = "--resume", joined[CLI_PATH_BYTES];
    char *added[ADDED_WORDS] = { device_option, device,         part_option,
                                 share,         session_option, part->path,
                                 join_option,   joined,         resume_option };
    posix_spawn_file_actions_t actions;
    int code;

    (void)snprintf(device, sizeof device, "%d", part->device);
    (void)snprintf(share, sizeof share, "%d/%d", index, parts->count);
    if (!read_words(&words) || words.count < COMMAND_WORDS)
        return errno ? errno : EINVAL;
    drop(&words, "--devices", true);
    drop(&words, "--session", true);
    drop(&words, "--resume", false);
    (void)snprintf(joined, sizeof joined, "%s", parts->session);
    insert(&words, added, resumes ? ADDED_WORDS : ADDED_WORDS - 1);
    code = posix_spawn_file_actions_init(&actions);
    if (code)
        return code;
    code = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (!code)
        code = posix_spawn(&part->pid, "/proc/self/exe", &actions, NULL, words.at, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    if (code)
        part->pid = 0;
    return code;
}

static void stop_all(const struct parts *parts)
{
    for (int i = 0; i < parts->count; i++)
        if (parts->at[i].pid)
            (void)kill(parts->at[i].pid, SIGTERM);
}

/* A signal that ends this process ends them, too. It may come while nothing waits, so nothing waits
 * long. */
static void wait_all(struct parts *parts)
{
    const struct timespec pause = { .tv_nsec = 50 * 1000 * 1000 };
    bool is_stopping = false;

    for (int i = 0; i < parts->count; i++) {
        struct part *part = &parts->at[i];

        while (part->pid) {
            int status = 0;
            const pid_t got = waitpid(part->pid, &status, WNOHANG);

            if (interrupt_stop && !is_stopping) {
                stop_all(parts);
                is_stopping = true;
            }
            if (got == 0 || (got < 0 && errno == EINTR)) {
                (void)nanosleep(&pause, NULL);
                continue;
            }
            part->status = got > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : CLI_FAILED;
            part->pid = 0;
        }
    }
}

/* SQLite's journal stays beside a file, empty. */
static void remove_file(const char *path)
{
    char journal[CLI_PATH_BYTES + 16];

    (void)snprintf(journal, sizeof journal, "%s-journal", path);
    (void)unlink(path);
    (void)unlink(journal);
}

/* All part files into one. */
static int join(const struct parts *parts)
{
    const char *paths[PARTS_MAX];
    ffa_error err = { FFA_OK, 0, "" };
    int64_t count = 0;

    for (int i = 0; i < parts->count; i++)
        if (has_file(&parts->at[i])) /* there may be fewer tiles than GPUs */
            paths[count++] = parts->at[i].path;
    if (!count && access(parts->session, F_OK) != 0)
        return cli_fail_text(parts->cli, FFA_INVALID, "there is no tile to time");
    if (count && ffa_tune_merge(parts->session, paths, count, NULL, &err) != FFA_OK)
        return cli_fail(parts->cli, &err);
    for (int64_t i = 0; i < count; i++)
        remove_file(paths[i]);
    return tune_print_report(parts->cli, &parts->session, 1, NULL);
}

static int run(struct parts *parts, bool resumes)
{
    for (int i = 0; i < parts->count; i++) {
        const int code = start(parts, i, resumes);

        if (!code)
            continue;
        stop_all(parts);
        wait_all(parts);
        return cli_fail_text(parts->cli, FFA_GPU, "a process cannot be started: %s",
                             strerror(code));
    }
    wait_all(parts);
    if (interrupt_stop)
        return CLI_INTERRUPTED;
    for (int i = 0; i < parts->count; i++)
        if (parts->at[i].status != CLI_DONE) {
            const struct part *part = &parts->at[i];

            (void)cli_fail_text(
                parts->cli, FFA_GPU, "GPU %d ended with status %d%s%s%s", part->device,
                part->status, has_file(part) ? "; its samples are in '" : "",
                has_file(part) ? part->path : "", has_file(part) ? "': go on with --resume" : "");
            return part->status;
        }
    return join(parts);
}

int tune_parts_run(const struct cli *cli, const char *devices, const char *session, bool resumes)
{
    struct parts *parts = calloc(1, sizeof *parts);
    int status;

    if (!parts)
        return cli_fail_text(cli, FFA_NOMEM, "no memory for the parts of a session");
    parts->cli = cli;
    parts->session = session;
    status = read_devices(parts, devices);
    if (status == CLI_PARSE_GO)
        status = name_files(parts);
    if (status == CLI_PARSE_GO)
        status = run(parts, resumes);
    free(parts);
    return status;
}
