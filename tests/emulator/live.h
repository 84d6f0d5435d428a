/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests ask the emulator, and cannot ask a real runtime: they find these functions by name
 * (dlsym).
 */
#ifndef FFA_EMULATOR_LIVE_H
#define FFA_EMULATOR_LIVE_H

#include <stdint.h>

enum live { LIVE_ALLOCATIONS, LIVE_BYTES, LIVE_STREAMS, LIVE_EVENTS, LIVE_LIBRARIES, LIVE_KINDS };

/* What the process has of the runtime and has not given back. */
void emulator_live(int64_t counts[LIVE_KINDS]);

/* How often a launch has stalled: for 512 turns no thread did anything but poll memory outside, and
 * no operation was pending. It counts up again every 512 turns. So a launch that has stalled twice
 * since a word was written has seen the word, and has done all that the word lets it do. */
int64_t emulator_stalls(void);

#endif
