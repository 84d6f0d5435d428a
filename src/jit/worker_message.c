/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of compile workers. Invariant: what comes is not trusted. A length is checked before it
 * is used, and a body that ends too early, or goes on too long, is bad as a whole.
 */
#include "jit/worker_message.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

static const char magic[8] = "ffaw\0\0\0\2"; /* the last byte: the version */
enum { MESSAGE_BYTES_MAX = 1 << 28 };

struct head {
    char magic[sizeof magic];
    uint64_t bytes; /* of the body */
};

void message_put_number(struct text *body, int64_t number)
{
    text_add_bytes(body, &number, sizeof number);
}

void message_put_bytes(struct text *body, const void *bytes, size_t count)
{
    message_put_number(body, bytes ? (int64_t)count : -1);
    if (bytes) {
        text_add_bytes(body, bytes, count);
        text_add_bytes(body, "", 1);
    }
}

void message_put_text(struct text *body, const char *text)
{
    message_put_bytes(body, text, text ? strlen(text) : 0);
}

int64_t message_take_number(struct message *body)
{
    int64_t number = 0;

    body->is_bad |= body->left < sizeof number;
    if (body->is_bad)
        return 0;
    memcpy(&number, body->at, sizeof number);
    body->at += sizeof number;
    body->left -= sizeof number;
    return number;
}

const char *message_take_bytes(struct message *body, size_t *count)
{
    int64_t bytes = message_take_number(body);
    const char *at = body->at;

    *count = 0;
    if (bytes == -1 || body->is_bad)
        return NULL;
    if (bytes < 0 || (uint64_t)bytes >= body->left || at[bytes] != '\0') {
        body->is_bad = true;
        return NULL;
    }
    *count = (size_t)bytes;
    body->at += bytes + 1;
    body->left -= (size_t)bytes + 1;
    return at;
}

const char *message_take_text(struct message *body)
{
    size_t count;

    return message_take_bytes(body, &count);
}

/* ---- bytes over a socket, until a time ---- */

enum { CUT_POLL_MS = 20 }; /* how often a cut is looked for */

/* Milliseconds for poll(); 0 where it is too late. */
static int wait_ms(const struct patience *patience)
{
    int64_t ms = INT32_MAX;

    if (patience->is_cut && atomic_load(patience->is_cut))
        return 0;
    if (patience->deadline_us) {
        int64_t left_us = patience->deadline_us - clock_us();

        ms = left_us <= 0 ? 0 : left_us / 1000 + 1;
    }
    if (patience->is_cut && ms > CUT_POLL_MS)
        ms = CUT_POLL_MS;
    return ms > INT32_MAX ? INT32_MAX : (int)ms;
}

static bool wait_ready(int socket, short events, const struct patience *patience)
{
    struct pollfd poll_for = { .fd = socket, .events = events };

    for (;;) {
        int ms = wait_ms(patience);

        if (ms == 0)
            return false;
        if (poll(&poll_for, 1, ms) > 0)
            return true;
    }
}

static enum moved move_bytes(int socket, bool is_sending, char *bytes, size_t count,
                             const struct patience *patience)
{
    while (count) {
        ssize_t moved;

        if (!wait_ready(socket, is_sending ? POLLOUT : POLLIN, patience))
            return MOVED_LATE;
        moved = is_sending ? send(socket, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT)
                           : recv(socket, bytes, count, MSG_DONTWAIT);
        if (moved < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (moved <= 0)
            return MOVED_END;
        bytes += moved;
        count -= (size_t)moved;
    }
    return MOVED_ALL;
}

enum moved message_send(int socket, struct text *body, const struct patience *patience)
{
    struct head head = { .bytes = body->bytes };
    enum moved moved;

    memcpy(head.magic, magic, sizeof magic);
    moved = move_bytes(socket, true, (char *)&head, sizeof head, patience);
    return moved == MOVED_ALL ? move_bytes(socket, true, body->at, body->bytes, patience) : moved;
}

ffa_status message_receive(int socket, char **out, size_t *bytes, const struct patience *patience)
{
    struct head head;
    enum moved moved = move_bytes(socket, false, (char *)&head, sizeof head, patience);

    *out = NULL;
    if (moved != MOVED_ALL)
        return moved == MOVED_LATE ? FFA_TIMEOUT : FFA_IO;
    if (memcmp(head.magic, magic, sizeof magic) != 0 || head.bytes > MESSAGE_BYTES_MAX)
        return FFA_UNSUPPORTED;
    *bytes = (size_t)head.bytes;
    *out = mem_array(*bytes + 1, 1);
    if (!*out)
        return FFA_NOMEM;
    moved = move_bytes(socket, false, *out, *bytes, patience);
    return moved == MOVED_ALL ? FFA_OK : moved == MOVED_LATE ? FFA_TIMEOUT : FFA_IO;
}
