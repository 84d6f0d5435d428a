/* SPDX-License-Identifier: Apache-2.0
 *
 * What a process has of the emulated CUDA runtime and has not given back: for tests, which find the
 * function by its name (dlsym), as a real runtime has none.
 */
#ifndef FFA_EMULATOR_LIVE_H
#define FFA_EMULATOR_LIVE_H

#include <stdint.h>

enum live { LIVE_ALLOCATIONS, LIVE_BYTES, LIVE_STREAMS, LIVE_EVENTS, LIVE_LIBRARIES, LIVE_KINDS };

void emulator_live(int64_t counts[LIVE_KINDS]);

#endif
