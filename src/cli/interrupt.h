/* SPDX-License-Identifier: Apache-2.0
 *
 * SIGINT and SIGTERM as a flag, for commands that end in order and keep, or remove, what they made.
 */
#ifndef FFA_CLI_INTERRUPT_H
#define FFA_CLI_INTERRUPT_H

#include <signal.h>

/* 0: go on. A signal sets it to FFA_PRECOMPILE_CUT. */
extern volatile sig_atomic_t interrupt_stop;

struct interrupt {
    struct sigaction before[2];
};

/* From here on the signals set the flag, which is 0 at first. One that was ignored stays so:
 * 'nohup', a shell's '&'. */
void interrupt_take(struct interrupt *kept);
void interrupt_give_back(const struct interrupt *kept);

#endif
