/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU backend's passes on one problem, without contexts and kernels, against the fp64 oracle.
 */
#ifndef TESTS_CPU_CASE_H
#define TESTS_CPU_CASE_H

#include "cpu/cpu.h"
#include "oracle/oracle_backward.h"
#include "support/attention_case.h"

/* ---- forward ---- */

/* Plan and run. */
ffa_status cpu_case_run(struct attention_case *test, const ffa_mask *mask,
                        const struct tile_options *opts, int32_t threads, bool fp64,
                        ffa_error *err);
struct oracle_case cpu_case_oracle(const struct attention_case *test, const ffa_slice_list *lists,
                                   int32_t list_count);
void cpu_case_compare(const struct attention_case *test, const ffa_slice_list *lists,
                      int32_t list_count, const char *name);

/* ---- both passes ---- */

struct cpu_case {
    struct attention_case test;
    struct attention_gradients gradients;
    struct oracle_backward_case reference;
    ffa_slice_list lists[8];
    float sink[16], dsink[16];
    ffa_mask *mask;
};

/* head_dim_v: 0 is head_dim. */
void cpu_case_init(struct cpu_case *c, const struct attention_shape *shape, int32_t head_dim_v,
                   ffa_dtype grad_dtype, struct rng *rng);
/* All lists of the mask hold the first slices: half as many in each further one. */
void cpu_case_set_mask(struct cpu_case *c, const ffa_slice *slices, int64_t count,
                       int32_t list_count);
void cpu_case_finish(struct cpu_case *c);

/* Each poisons its outputs, plans and runs. The backward pass reads the forward one's. */
void cpu_case_forward(struct cpu_case *c, const struct tile_options *opts, int32_t threads,
                      bool fp64);
void cpu_case_backward(struct cpu_case *c, const struct tile_options *opts, int32_t threads,
                       bool fp64);
struct cpu_backward cpu_case_call(struct cpu_case *c, const struct tile_plan *plan, int32_t threads,
                                  bool fp64);
/* With out and lse of a forward pass in fp64, not those of the backend. */
void cpu_case_compare_gradients(const struct cpu_case *c, const char *name);

#endif
