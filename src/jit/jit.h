/* SPDX-License-Identifier: Apache-2.0
 *
 * From a specialisation to a cubin: template text, defines, key, NVRTC, the report in its log.
 */
#ifndef FFA_JIT_JIT_H
#define FFA_JIT_JIT_H

#include "base/base.h"
#include <ffa/kernel.h>

enum { JIT_SPEC_MAX = 24 };

/* One specialisation: the value of each spec row of a template, in the order of its .spec.def. */
struct jit_spec {
    int32_t template_index;
    int32_t row_count;
    int32_t values[JIT_SPEC_MAX];
};

struct jit; /* one per context; thread-safe */

ffa_status jit_create(struct jit **out, const ffa_context_opts *opts, const struct log *log,
                      ffa_error *err);
void jit_destroy(struct jit *jit);

/* All defaults of the template (rows with sample 0 stay 0: chosen by jit_spec_resolve). */
ffa_status jit_spec_init(struct jit_spec *spec, const char *template_name, ffa_error *err);
/* Set "name=value"; enumerated rows take names, too (dtype=bf16). */
ffa_status jit_spec_set(struct jit_spec *spec, const char *setting, ffa_error *err);
ffa_status jit_spec_put(struct jit_spec *spec, const char *name, int32_t value, ffa_error *err);
int32_t jit_spec_get(const struct jit_spec *spec, const char *name); /* the row must exist */
/* Choose what is still 0, then check every row and the combination (shared memory, registers). */
ffa_status jit_spec_resolve(struct jit_spec *spec, const char *arch, ffa_error *err);

#endif
