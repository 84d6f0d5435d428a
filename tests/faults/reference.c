/* SPDX-License-Identifier: Apache-2.0
 *
 * The right kernels, and the question whether a store answers with anything else.
 *
 * The compiler is one that compiles nothing in no time, whose cubin follows from the options alone:
 * a kernel is right if it has the bytes that a session without a store makes of the same request.
 * Stores are looked at in a forked child, so that a crash or a hang is one failed round.
 */
#include "faults/faults.h"
#include "support/tmpdir.h"
#include <ffa/ffa.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHECK_SECONDS = 180, MESSAGE_BYTES = 2048 };

static const char *const settings[FAULT_KERNELS] = { "head_dim=64",  "head_dim=96",  "head_dim=128",
                                                     "head_dim=192", "head_dim=256", "dtype=fp16" };

static struct {
    void *cubin;
    size_t bytes;
} right[FAULT_KERNELS];

const char *reference_setting(int index)
{
    return settings[index];
}

static ffa_status compile(ffa_compiled **out, ffa_context *context, int index, uint32_t flags,
                          ffa_error *err)
{
    ffa_compile_request request = FFA_COMPILE_REQUEST_INIT;

    request.template_name = "attention_forward";
    request.settings = &settings[index];
    request.setting_count = 1;
    request.arch = "sm_90a";
    request.flags = flags;
    return ffa_compile(out, context, &request, err);
}

static ffa_status context_open(ffa_context **out, const struct faults *faults, const char *store,
                               const char *const *bundle, uint32_t flags, ffa_error *err)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;

    opts.nvrtc_path = faults->nvrtc;
    opts.cache_path = store;
    opts.bundles = bundle;
    opts.bundle_count = bundle ? 1 : 0;
    opts.flags = flags | FFA_OPEN_RETRY_FAILED;
    opts.lock_wait_ms = 5000;
    return ffa_open(out, FFA_DEVICE_CPU, &opts, err);
}

const char *reference_make(const struct faults *faults)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context;

    if (context_open(&context, faults, NULL, NULL, 0, &err) != FFA_OK)
        return fault_say("%s", err.message);
    for (int i = 0; i < FAULT_KERNELS; i++) {
        ffa_compiled *compiled;
        const void *cubin;

        if (compile(&compiled, context, i, 0, &err) != FFA_OK)
            return fault_say("%s: %s", settings[i], err.message);
        cubin = ffa_compiled_cubin(compiled, &right[i].bytes);
        right[i].cubin = malloc(right[i].bytes);
        if (!right[i].cubin)
            return fault_say("out of memory");
        memcpy(right[i].cubin, cubin, right[i].bytes);
        ffa_compiled_destroy(compiled);
        for (int j = 0; j < i; j++)
            if (right[j].bytes == right[i].bytes &&
                memcmp(right[j].cubin, right[i].cubin, right[i].bytes) == 0)
                return fault_say("%s and %s have equal cubins", settings[i], settings[j]);
    }
    ffa_close(context);
    return NULL;
}

/* Every kernel that a session answers with must be right. */
static void kernels_check(char *message, const struct faults *faults, const char *store,
                          const char *const *bundle, uint32_t flags)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context;

    if (context_open(&context, faults, store, bundle, flags, &err) != FFA_OK) {
        (void)snprintf(message, MESSAGE_BYTES, "opening a session: %s", err.message);
        return;
    }
    for (int i = 0; i < FAULT_KERNELS && !message[0]; i++) {
        ffa_compiled *compiled = NULL;
        ffa_status rc = compile(&compiled, context, i, 0, &err);
        const void *cubin;
        size_t bytes = 0;

        if (rc == FFA_OK) {
            cubin = ffa_compiled_cubin(compiled, &bytes);
            if (bytes != right[i].bytes || memcmp(cubin, right[i].cubin, bytes) != 0)
                (void)snprintf(message, MESSAGE_BYTES, "%s: a WRONG kernel was served",
                               settings[i]);
        } else if (!(flags & FFA_OPEN_NEVER_COMPILE) || rc != FFA_NOT_FOUND) {
            (void)snprintf(message, MESSAGE_BYTES, "%s: status %d, %s", settings[i], (int)rc,
                           err.message);
        }
        ffa_compiled_destroy(compiled);
    }
    ffa_close(context);
}

static void file_check(char *message, const char *path)
{
    ffa_cache_verdict verdict = FFA_CACHE_VERDICT_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache = NULL;

    if (ffa_cache_open(&cache, path, 0, &err) != FFA_OK ||
        ffa_cache_verify(cache, &verdict, NULL, NULL, &err) != FFA_OK)
        (void)snprintf(message, MESSAGE_BYTES, "the store afterwards: %s", err.message);
    else if (verdict.bad != 0 || verdict.checked < FAULT_KERNELS)
        (void)snprintf(message, MESSAGE_BYTES, "the store afterwards has %lld entries, %lld bad",
                       (long long)verdict.checked, (long long)verdict.bad);
    ffa_cache_close(cache);
}

/* What maintenance does with a file: it may refuse, and must end. */
static int visit_nothing(void *user, const ffa_cache_entry *entry)
{
    (void)user;
    (void)entry;
    return 0;
}

static void maintenance(const struct faults *faults, const char *path, const char *into)
{
    ffa_bundle_report report = FFA_BUNDLE_REPORT_INIT;
    ffa_cache_verdict verdict = FFA_CACHE_VERDICT_INIT;
    ffa_cache_stats stats = FFA_CACHE_STATS_INIT;
    ffa_cache *cache = NULL, *target = NULL;
    char *manifest = NULL;

    (void)faults;
    if (ffa_cache_open(&cache, path, FFA_CACHE_READONLY, NULL) != FFA_OK)
        return;
    (void)ffa_cache_stats_get(cache, &stats, NULL);
    (void)ffa_cache_list(cache, NULL, visit_nothing, NULL, NULL);
    (void)ffa_cache_verify(cache, &verdict, visit_nothing, NULL, NULL);
    if (ffa_bundle_manifest(cache, &manifest, NULL) == FFA_OK)
        ffa_free(manifest);
    if (ffa_cache_open(&target, into, FFA_CACHE_CREATE, NULL) == FFA_OK)
        (void)ffa_bundle_import(target, cache, NULL, &report, NULL);
    ffa_cache_close(target);
    ffa_cache_close(cache);
}

struct question {
    const char *store, *bundle;
    bool is_whole;
};

static void answer(char *message, const struct faults *faults, const struct question *question)
{
    const char *const *bundle = question->bundle ? &question->bundle : NULL;
    const char *const imported = fault_path(faults, "imported/kernels.ffadb");

    (void)mkdir(fault_path(faults, "imported"), 0700);
    maintenance(faults, bundle ? question->bundle : question->store, imported);
    if (access(imported, F_OK) == 0)
        kernels_check(message, faults, imported, NULL, FFA_OPEN_NEVER_COMPILE);
    if (!message[0])
        kernels_check(message, faults, question->store, bundle, FFA_OPEN_NEVER_COMPILE);
    if (!message[0])
        kernels_check(message, faults, question->store, bundle, 0);
    if (!message[0] && question->is_whole)
        file_check(message, question->store);
}

static const char *ask(const struct faults *faults, const struct question *question)
{
    char message[MESSAGE_BYTES] = "";
    ssize_t bytes = 0;
    int ends[2], status = 0;
    pid_t child;

    if (pipe(ends) != 0)
        return fault_say("no pipe");
    (void)fflush(NULL);
    child = fork();
    if (child == 0) {
        (void)alarm(CHECK_SECONDS);
        answer(message, faults, question);
        if (write(ends[1], message, strlen(message) + 1) < 0)
            _exit(2);
        _exit(0);
    }
    (void)close(ends[1]);
    for (size_t at = 0; at < sizeof message - 1; at += (size_t)bytes) {
        bytes = read(ends[0], message + at, sizeof message - 1 - at);
        if (bytes <= 0)
            break;
    }
    (void)close(ends[0]);
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return fault_say("the process that looked at the store ended by signal %d, status %d",
                         WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                         WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    return message[0] ? fault_say("%s", message) : NULL;
}

const char *reference_check(const struct faults *faults, const char *path, bool is_whole)
{
    return ask(faults, &(struct question){ .store = path, .is_whole = is_whole });
}

const char *reference_check_bundle(const struct faults *faults, const char *bundle)
{
    return ask(faults, &(struct question){ .store = fault_path(faults, "beside/kernels.ffadb"),
                                           .bundle = bundle });
}

/* ---- stores to begin with ---- */

const char *reference_store(const struct faults *faults, const char *path, int count)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context;
    ffa_status rc = context_open(&context, faults, path, NULL, 0, &err);

    for (int i = 0; rc == FFA_OK && i < count; i++) {
        ffa_compiled *compiled = NULL;

        rc = compile(&compiled, context, i, 0, &err);
        ffa_compiled_destroy(compiled);
    }
    ffa_close(context);
    return rc == FFA_OK ? NULL : fault_say("making a store: %s", err.message);
}

const char *reference_manifest(const struct faults *faults)
{
    const char *path = fault_path(faults, "set.json");

    tmpdir_write_text(
        path,
        "{\"schema\": 1, \"arch\": [\"sm_90a\"], \"kernels\": [\n"
        "  {\"template\": \"attention_forward\", \"values\": {\"head_dim\": [64, 96, 128, 192, "
        "256]}},\n"
        "  {\"template\": \"attention_forward\", \"values\": {\"dtype\": \"fp16\"}}]}\n");
    return path;
}

/* ---- what dead writers leave ---- */

const char *reference_leftover(const char *folder)
{
    static const char *const marks[] = { ".new-", ".ffa-bundle-", ".ffa-merge-" };
    static char name[300];
    DIR *dir = opendir(folder);
    struct dirent *entry;
    bool found = false;

    while (dir && !found && (entry = readdir(dir)))
        for (size_t i = 0; i < sizeof marks / sizeof *marks && !found; i++)
            if (strstr(entry->d_name, marks[i])) {
                (void)snprintf(name, sizeof name, "%s", entry->d_name);
                found = true;
            }
    if (dir)
        (void)closedir(dir);
    return found ? name : NULL;
}
