/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines: what the library says, and to whom. Silent unless a context is given a function.
 */
#ifndef FFA_LOG_H
#define FFA_LOG_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ffa_log_level {
    FFA_LOG_ERROR = 0,
    FFA_LOG_WARNING = 1,
    FFA_LOG_INFO = 2,
    FFA_LOG_DEBUG = 3
} ffa_log_level;

/* One line an event, key=value pairs, no newline. May be called from several threads at once.
 * Must not call into the context. */
typedef void (*ffa_log_fn)(void *user, ffa_log_level level, const char *module, const char *line);

#ifdef __cplusplus
}
#endif
#endif
