/* SPDX-License-Identifier: Apache-2.0
 *
 * A log sink that counts lines by level and keeps the last warning, and the check for NVRTC.
 *
 * Lines may come from several threads. The counters are atomic, and the text of the warning is
 * written under a lock: it is read once the threads have ended.
 */
#include "support/watch.h"

#include "jit/nvrtc.h"

#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t warning_lock = PTHREAD_MUTEX_INITIALIZER;

void watch_line(void *user, ffa_log_level level, const char *module, const char *line)
{
    struct watch *watch = user;

    (void)module;
    atomic_fetch_add(&watch->lines[level], 1);
    if (level == FFA_LOG_WARNING) {
        (void)pthread_mutex_lock(&warning_lock);
        text_copy(watch->warning, "%s", line);
        (void)pthread_mutex_unlock(&warning_lock);
    }
}

struct log watch_log(struct watch *watch)
{
    return (struct log){ .fn = watch_line, .user = watch };
}

bool watch_has_nvrtc(void)
{
    struct nvrtc *nvrtc;
    ffa_error err;
    bool found = nvrtc_open(&nvrtc, NULL, &err) == FFA_OK;

    if (!found)
        printf("skipped: %s\n", err.message);
    else
        nvrtc_close(nvrtc);
    return found;
}
