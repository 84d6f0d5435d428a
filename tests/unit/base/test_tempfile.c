/* SPDX-License-Identifier: Apache-2.0
 *
 * Temporary files that become a name at the end: whole under that name or not there, with a name of
 * their own and without, whatever kills their writer.
 */
#include "base/tempfile.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char *folder;

static void setup(void)
{
    folder = tmpdir_make();
}

static void teardown(void)
{
    tmpdir_remove(folder);
}

static int count_entries(void)
{
    DIR *dir = opendir(folder);
    int count = 0;

    ck_assert_ptr_nonnull(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    (void)closedir(dir);
    return count;
}

/* A descriptor's path is asked for once for the folder, then once for the unnamed file. */
enum { UNNAMED, NAMED, WITHOUT_PROC, KINDS };

static struct tempfile open_kind(int kind, const char *content)
{
    struct tempfile file;
    int out;

    fault_arm(FAULT_PROC, kind == NAMED ? 2 : kind == WITHOUT_PROC);
    ck_assert_msg(tempfile_open(&file, folder, ".part-"), "%s", strerror(errno));
    fault_arm(FAULT_PROC, 0);
    out = open(file.path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_ge(out, 0);
    ck_assert_int_eq(write(out, content, strlen(content)), (ssize_t)strlen(content));
    ck_assert_int_eq(close(out), 0);
    return file;
}

static void expect_content(const char *name, const char *want)
{
    char *path = tmpdir_path(folder, name);
    size_t bytes;
    char *got = tmpdir_read(path, &bytes);

    ck_assert_str_eq(got, want);
    free(got);
    free(path);
}

START_TEST(published_whole_or_not_there)
{
    struct tempfile file = open_kind(_i, "one");
    struct stat stat;
    char *path = tmpdir_path(folder, "final");

    ck_assert_int_eq(count_entries(), file.name != NULL);
    ck_assert(_i != NAMED || file.name);
    ck_assert(tempfile_set_mode(&file, 0444));
    ck_assert_msg(tempfile_publish(&file, "final", false), "%s", strerror(errno));
    tempfile_discard(&file);
    ck_assert_int_eq(count_entries(), 1);
    expect_content("final", "one");
    ck_assert_int_eq(lstat(path, &stat), 0);
    ck_assert_uint_eq(stat.st_mode & 07777, 0444);
    ck_assert_uint_eq(stat.st_nlink, 1);

    file = open_kind(_i, "two");
    ck_assert(!tempfile_publish(&file, "final", false));
    ck_assert_int_eq(errno, EEXIST);
    tempfile_discard(&file);
    expect_content("final", "one");

    file = open_kind(_i, "three");
    ck_assert_msg(tempfile_publish(&file, "final", true), "%s", strerror(errno));
    tempfile_discard(&file);
    expect_content("final", "three");

    file = open_kind(_i, "four");
    tempfile_discard(&file);
    tempfile_discard(&file);
    ck_assert_int_eq(count_entries(), 1);
    free(path);
}
END_TEST

/* The lock that another connection of the process takes once the file has its name is kept. */
START_TEST(closing_drops_no_locks)
{
    struct tempfile file = open_kind(_i, "one");
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    char *path = tmpdir_path(folder, "final");
    int other, status;
    pid_t child;

    ck_assert(tempfile_publish(&file, "final", false));
    other = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(fcntl(other, F_SETLK, &lock), 0);
    tempfile_discard(&file);
    child = fork();
    if (child == 0) {
        int mine = open(path, O_RDWR | O_CLOEXEC);

        _exit(fcntl(mine, F_SETLK, &lock) == 0 ? 1 : 0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(close(other), 0);
    free(path);
}
END_TEST

/* The killed writer leaves nothing, or a file that is reaped when it is old enough. */
START_TEST(killed_writer_leaves_nothing)
{
    struct timespec old[2] = { { .tv_sec = time(NULL) - 1000 }, { .tv_sec = time(NULL) - 1000 } };
    const bool has_unnamed = tmpdir_has_unnamed_files(folder);
    pid_t child = fork();
    int status;

    if (child == 0) {
        (void)open_kind(_i, "half");
        (void)raise(SIGKILL);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    if (_i == UNNAMED && has_unnamed)
        ck_assert_int_eq(count_entries(), 0);
    tempfile_reap(folder, ".part-");
    if (_i == NAMED || (_i == UNNAMED && !has_unnamed)) {
        DIR *dir = opendir(folder);

        ck_assert_int_eq(count_entries(), 1); /* too young to tell */
        for (struct dirent *entry; (entry = readdir(dir));)
            if (strncmp(entry->d_name, ".part-", 6) == 0)
                ck_assert_int_eq(utimensat(dirfd(dir), entry->d_name, old, 0), 0);
        (void)closedir(dir);
        tempfile_reap(folder, ".part-");
    }
    if (_i != WITHOUT_PROC)
        ck_assert_int_eq(count_entries(), 0);
}
END_TEST

static void make(const char *name, int age_s)
{
    struct timespec old[2] = { { .tv_sec = time(NULL) - age_s }, { .tv_sec = time(NULL) - age_s } };
    char *path = tmpdir_path(folder, name);

    tmpdir_write_text(path, "x");
    ck_assert_int_eq(utimensat(AT_FDCWD, path, old, 0), 0);
    free(path);
}

START_TEST(only_what_is_stale_is_reaped)
{
    static const struct {
        const char *name;
        int age_s;
        bool stays;
    } rows[] = {
        { ".part-abc123", 1000, false }, { ".part-abc124", 10, true },
        { ".part-abc12", 1000, true },   { ".part-abc1234", 1000, true },
        { ".part-abc12.", 1000, true },  { "part-abc123", 1000, true },
        { "x.part-abc123", 1000, true }, { ".part-locked", 1000, true },
        { ".part-others", 1000, true },  { ".part-links1", 1000, true },
    };
    char *locked = tmpdir_path(folder, ".part-locked"),
         *others = tmpdir_path(folder, ".part-others");
    char *link = tmpdir_path(folder, ".part-links1"), *fifo = tmpdir_path(folder, ".part-fifo12");
    bool is_root = geteuid() == 0;
    int file;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        make(rows[i].name, rows[i].age_s);
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    ck_assert_int_eq(unlink(link), 0);
    ck_assert_int_eq(symlink(locked, link), 0);
    file = open(locked, O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(flock(file, LOCK_EX), 0);
    if (is_root)
        ck_assert_int_eq(chown(others, 65534, 65534), 0);
    tempfile_reap(folder, ".part-");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *path = tmpdir_path(folder, rows[i].name);
        struct stat stat;
        bool stays = rows[i].stays && (is_root || !strstr(path, "others"));

        ck_assert_msg((lstat(path, &stat) == 0) == stays, "%s", rows[i].name);
        free(path);
    }
    ck_assert_int_eq(access(fifo, F_OK), 0);
    ck_assert_int_eq(close(file), 0);
    free(locked);
    free(others);
    free(link);
    free(fifo);
}
END_TEST

/* The maker was killed between giving the final name and taking the temporary one away. The file is
 * in use by now: its locks are this process's, and opening it to look would drop them. */
START_TEST(second_name_goes_and_locks_stay)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    char *final = tmpdir_path(folder, "final"), *second = tmpdir_path(folder, ".part-abc123");
    int file, status;
    pid_t child;

    make("final", 1000);
    ck_assert_int_eq(link(final, second), 0);
    file = open(final, O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(fcntl(file, F_SETLK, &lock), 0);
    tempfile_reap(folder, ".part-");
    ck_assert_int_ne(access(second, F_OK), 0);
    ck_assert_int_eq(access(final, F_OK), 0);
    child = fork();
    if (child == 0) {
        int mine = open(final, O_RDWR | O_CLOEXEC);

        _exit(fcntl(mine, F_SETLK, &lock) == 0 ? 1 : 0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(close(file), 0);
    free(second);
    free(final);
}
END_TEST

/* What is printed by a process that was started without standard streams goes into no file. */
START_TEST(standard_descriptors_are_left_alone)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        struct tempfile file;

        for (int i = 0; i <= STDERR_FILENO; i++)
            (void)close(i);
        file = open_kind(_i, "one");
        if (file.file <= STDERR_FILENO || file.folder_fd <= STDERR_FILENO ||
            !(fcntl(file.file, F_GETFD) & FD_CLOEXEC) || !tempfile_publish(&file, "final", false))
            _exit(1);
        tempfile_discard(&file);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    expect_content("final", "one");
}
END_TEST

/* A folder of such a name goes with the files that are meant; what else is in it stays. */
START_TEST(stale_folder_is_reaped)
{
    static const char *const names[] = { ".folderabc123", ".folderabc124", ".folderabc125" };

    for (int i = 0; i < 3; i++) {
        struct timespec old[2] = { { .tv_sec = time(NULL) - 1000 },
                                   { .tv_sec = time(NULL) - 1000 } };
        char *path = tmpdir_path(folder, names[i]), *inside = tmpdir_path(path, "kernels.ffadb");
        char *other = tmpdir_path(path, "precious");

        ck_assert_int_eq(mkdir(path, 0700), 0);
        tmpdir_write_text(inside, "x");
        if (i == 2)
            tmpdir_write_text(other, "x");
        if (i != 1)
            ck_assert_int_eq(utimensat(AT_FDCWD, path, old, 0), 0);
        free(other);
        free(inside);
        free(path);
    }
    tempfile_reap(folder, ".folder");
    ck_assert_int_eq(count_entries(), 3);
    tempfile_reap_folders(folder, ".folder", "kernels.ffadb");
    ck_assert_int_eq(count_entries(), 2); /* one is young, one has another file */
    {
        char *precious = tmpdir_path(folder, ".folderabc125/precious");

        ck_assert_int_eq(access(precious, F_OK), 0);
        free(precious);
    }
}
END_TEST

START_TEST(every_failure_is_clean)
{
    static const enum fault_kind kinds[] = { FAULT_ALLOC, FAULT_FILE, FAULT_PROC };
    char *final = tmpdir_path(folder, "final");

    for (long nth = 1;; nth++) {
        struct tempfile file;
        bool is_done, fired;

        fault_arm(kinds[_i], nth);
        is_done = tempfile_open(&file, folder, ".part-") && tempfile_publish(&file, "final", true);
        fired = fault_fired();
        fault_arm(kinds[_i], 0);
        tempfile_discard(&file);
        ck_assert(is_done || fired);
        ck_assert_int_eq(count_entries(), access(final, F_OK) == 0);
        if (!fired)
            break;
    }
    free(final);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tempfile");
    TCase *tc = tcase_create("tempfile");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, published_whole_or_not_there, 0, KINDS);
    tcase_add_loop_test(tc, closing_drops_no_locks, 0, KINDS);
    tcase_add_loop_test(tc, killed_writer_leaves_nothing, 0, KINDS);
    tcase_add_test(tc, only_what_is_stale_is_reaped);
    tcase_add_test(tc, second_name_goes_and_locks_stay);
    tcase_add_loop_test(tc, standard_descriptors_are_left_alone, 0, KINDS);
    tcase_add_test(tc, stale_folder_is_reaped);
    tcase_add_loop_test(tc, every_failure_is_clean, 0, 3);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
