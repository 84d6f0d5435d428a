/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of an attention spec, imported from the caller. Thread: any.
 */
#ifndef FFA_ATTENTION_SPEC_CHECK_H
#define FFA_ATTENTION_SPEC_CHECK_H

#include "base/base.h"
#include <ffa/kernel.h>

/* What holds on both backends. FFA_INVALID, FFA_UNSUPPORTED. */
ffa_status spec_check(const ffa_attention_spec *spec, ffa_error *err);
/* What the CPU backend takes, of a spec that passed spec_check. */
ffa_status spec_check_cpu(const ffa_attention_spec *spec, ffa_error *err);
/* What a GPU kernel takes beyond the template's own limits. */
ffa_status spec_check_gpu(const ffa_attention_spec *spec, ffa_error *err);

#endif
