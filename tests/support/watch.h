/* SPDX-License-Identifier: Apache-2.0
 *
 * A log sink that counts lines by level, and the check for NVRTC.
 */
#ifndef TESTS_WATCH_H
#define TESTS_WATCH_H

#include "base/base.h"

#include <stdatomic.h>

struct watch {
    atomic_int lines[FFA_LOG_DEBUG + 1]; /* by level */
    char warning[1024];                  /* the last one */
};
void watch_line(void *user, ffa_log_level level, const char *module, const char *line);
struct log watch_log(struct watch *watch);

/* Whether NVRTC can be opened; if not, print why the test is skipped. */
bool watch_has_nvrtc(void);

#endif
