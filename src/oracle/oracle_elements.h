/* SPDX-License-Identifier: Apache-2.0
 *
 * Elements of tensors as the oracle reads them: by their definition, without the library's code.
 */
#ifndef FFA_ORACLE_ORACLE_ELEMENTS_H
#define FFA_ORACLE_ORACLE_ELEMENTS_H

#include "oracle/oracle_backward.h"

/* A stride of 0 is contiguous (attention.h). */
int64_t oracle_offset(const ffa_tensor *tensor, int64_t heads, int64_t dim, int64_t token,
                      int64_t head);
double oracle_read(ffa_dtype dtype, const void *data, int64_t at);
double oracle_dot(const double *a, const double *b, int32_t count);
/* squares: of the terms, whose L2 is what the product is as large as unless they cancel. */
double oracle_dot_squares(const double *a, const double *b, int32_t count, double *squares);
/* to += factor * from */
void oracle_add(double *to, double factor, const double *from, int32_t count);
/* The given scale, or the default. */
double oracle_scale(const struct oracle_case *test);
/* Sample `i` of the rows of dq, and of the keys of dk and dv, whose head is a kv head. */
struct oracle_sample oracle_sample_of_row(const struct oracle_backward_case *test, int64_t i);
struct oracle_sample oracle_sample_of_key(const struct oracle_backward_case *test, int64_t i);
int32_t oracle_threads(const struct oracle_case *test); /* 1 to ORACLE_THREADS_MAX */

enum { ORACLE_THREADS_MAX = 16 };

ffa_dtype oracle_out_dtype(const struct oracle_case *test);
ffa_dtype oracle_lse_dtype(const struct oracle_case *test);
/* Sink s of a query head. */
double oracle_sink(const struct oracle_case *test, int32_t s, int32_t head);
int32_t oracle_value_dim(const struct oracle_case *test);

/* NaNs that no computation gives. */
void oracle_poison_one(ffa_dtype dtype, void *data, int64_t at);
bool oracle_is_poison(ffa_dtype dtype, const void *data, int64_t at);

#endif
