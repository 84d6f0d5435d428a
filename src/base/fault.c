/* SPDX-License-Identifier: Apache-2.0
 *
 * Fault points exist only in builds with FFA_FAULTS (the static library the tests link).
 */
#include "base/base.h"

#ifdef FFA_FAULTS
#include <stdatomic.h>

static atomic_int armed_kind = -1;
static atomic_long countdown;
static atomic_bool fired, fires_until; /* fires_until: every call fires until the count is 0 */

void fault_arm(enum fault_kind kind, long nth)
{
    atomic_store(&fired, false);
    atomic_store(&fires_until, false);
    atomic_store(&countdown, nth);
    atomic_store(&armed_kind, nth > 0 ? (int)kind : -1);
}

void fault_arm_first(enum fault_kind kind, long count)
{
    fault_arm(kind, count);
    atomic_store(&fires_until, true);
}

bool fault_fired(void)
{
    return atomic_load(&fired);
}

bool fault_here(enum fault_kind kind)
{
    if (atomic_load_explicit(&armed_kind, memory_order_relaxed) != (int)kind)
        return false;
    if (atomic_load(&fires_until) ? atomic_fetch_sub(&countdown, 1) < 1
                                  : atomic_fetch_sub(&countdown, 1) != 1)
        return false;
    atomic_store(&fired, true);
    return true;
}
#else
typedef int fault_none; /* ISO C forbids an empty translation unit */
#endif
