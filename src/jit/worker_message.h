/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages between a compile worker and who asks it: numbers and texts in a body, sent over a
 * socket with a head that says what it is and how long.
 */
#ifndef FFA_JIT_WORKER_MESSAGE_H
#define FFA_JIT_WORKER_MESSAGE_H

#include "base/base.h"

#include <stdatomic.h>

/* ---- writing a body; a failed one says so, as any text does ---- */

void message_put_number(struct text *body, int64_t number);
/* NULL is told from "". */
void message_put_bytes(struct text *body, const void *bytes, size_t count);
void message_put_text(struct text *body, const char *text);

/* ---- reading one ---- */

/* What came, read from its beginning. */
struct message {
    const char *at;
    size_t left;
    bool is_bad;
};

int64_t message_take_number(struct message *body);
/* Into the body, and terminated there; NULL for NULL, and for what is none. */
const char *message_take_bytes(struct message *body, size_t *count);
const char *message_take_text(struct message *body);

/* ---- over a socket, until a time ---- */

enum moved { MOVED_ALL, MOVED_END, MOVED_LATE };

/* How long to wait; both may be absent. */
struct patience {
    int64_t deadline_us; /* 0: none */
    const atomic_bool *is_cut;
};

enum moved message_send(int socket, struct text *body, const struct patience *patience);
/* *out: the caller's to free. FFA_TIMEOUT; FFA_IO: it ended before; FFA_UNSUPPORTED: no message of
 * ours; FFA_NOMEM. */
ffa_status message_receive(int socket, char **out, size_t *bytes, const struct patience *patience);

#endif
