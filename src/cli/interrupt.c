/* SPDX-License-Identifier: Apache-2.0
 *
 * The flag that SIGINT and SIGTERM set. Invariant: a handler does nothing but set it, and whatever
 * the command works on looks at it between two pieces of work.
 */
#include "cli/interrupt.h"

#include "cli/cli.h"

volatile sig_atomic_t interrupt_stop;

static const int caught[] = { SIGINT, SIGTERM };

static void on_signal(int number)
{
    (void)number;
    interrupt_stop = FFA_PRECOMPILE_CUT;
}

void interrupt_take(struct interrupt *kept)
{
    struct sigaction action = { .sa_handler = on_signal };

    interrupt_stop = 0;
    (void)sigemptyset(&action.sa_mask);
    for (int i = 0; i < CLI_COUNT(caught); i++) {
        (void)sigaction(caught[i], NULL, &kept->before[i]);
        if (kept->before[i].sa_handler != SIG_IGN)
            (void)sigaction(caught[i], &action, NULL);
    }
}

void interrupt_give_back(const struct interrupt *kept)
{
    for (int i = 0; i < CLI_COUNT(caught); i++)
        (void)sigaction(caught[i], &kept->before[i], NULL);
}
