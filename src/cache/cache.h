/* SPDX-License-Identifier: Apache-2.0
 *
 * What a context keeps kernels in.
 */
#ifndef FFA_CACHE_CACHE_H
#define FFA_CACHE_CACHE_H

#include "cache/flight.h"
#include "cache/store.h"
#include "cache/table.h"

struct kernel_cache {
    struct table *table;
    struct store *store;
    struct flight *flight; /* NULL: memory only */
};

#endif
