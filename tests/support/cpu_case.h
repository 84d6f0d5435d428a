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

/* Plan the mask and run the forward pass. */
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
    double sink[16], dsink[16]; /* room for either width: attention_sum_dtype() */
    ffa_mask *mask;
};

/* head_dim_v: 0 means head_dim. */
void cpu_case_init(struct cpu_case *c, const struct attention_shape *shape, int32_t head_dim_v,
                   ffa_dtype grad_dtype, struct rng *rng);
/* Set a mask of `list_count` lists. List l holds the first count / (l + 1) slices. */
void cpu_case_set_mask(struct cpu_case *c, const ffa_slice *slices, int64_t count,
                       int32_t list_count);
void cpu_case_finish(struct cpu_case *c);

/* Poison the outputs of a pass, plan it and run it. The backward pass reads what the forward pass
 * wrote. */
void cpu_case_forward(struct cpu_case *c, const struct tile_options *opts, int32_t threads,
                      bool fp64);
void cpu_case_backward(struct cpu_case *c, const struct tile_options *opts, int32_t threads,
                       bool fp64);
struct cpu_backward cpu_case_call(struct cpu_case *c, const struct tile_plan *plan, int32_t threads,
                                  bool fp64);
/* Compare the gradients with the oracle's, which computes out and lse itself, in fp64. */
void cpu_case_compare_gradients(const struct cpu_case *c, const char *name);

#endif
