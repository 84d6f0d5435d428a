/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory: host memory, which other processes can map where FFA_EMULATOR_IPC is set.
 */
#ifndef FFA_EMULATOR_MEMORY_H
#define FFA_EMULATOR_MEMORY_H

#include "runtime.h"

/* 256-byte aligned; NULL: no memory. */
void *memory_allocate(size_t bytes);
/* Whether it was allocated here: false, and nothing is done, for memory of another process too. */
bool memory_free(void *memory);
/* Whether memory_free would free it. */
bool memory_is_own(const void *memory);
/* Whether the address is in memory of a device. */
bool memory_holds(const void *address);

#endif
