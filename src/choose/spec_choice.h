/* SPDX-License-Identifier: Apache-2.0
 *
 * What a spec leaves open: the tile of a forward kernel and the slots of its K and V ring.
 *
 * These choices are by architecture and never by device: a kernel that was warmed on a machine
 * without a GPU must be the one that a device asks for, with the same key. (Packed tiles, which are
 * by device, are explicit in what src/attention asks for.)
 */
#ifndef FFA_CHOOSE_SPEC_CHOICE_H
#define FFA_CHOOSE_SPEC_CHOICE_H

#include "jit/jit.h"

/* Fill in the rows that are open, then jit_spec_resolve. A resolved spec stays as it is. Fails as
 * jit_spec_resolve does. Thread: any. */
ffa_status choose_spec(struct jit_spec *spec, const char *arch, ffa_error *err);

#endif
