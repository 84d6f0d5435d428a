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
/* One token of one head, of a tensor with the dtype of q. */
void oracle_read_row(const struct oracle_case *test, const ffa_tensor *tensor, int64_t heads,
                     int32_t dim, int64_t token, int64_t head, double *to);
/* Inner products of lines, which are rows of tensors as doubles. The same bits on every machine. */
double oracle_dot(const double *a, const double *b, int32_t dim);
/* Of one line with each of [count] others. */
void oracle_dots(const double *line, const double *const *lines, int32_t count, int32_t dim,
                 double *products);
/* squares: of the terms, whose L2 is what the product is as large as unless they cancel. */
void oracle_dots_squares(const double *line, const double *const *lines, int32_t count, int32_t dim,
                         double *products, double *squares);
/* to += factors[i] * lines[i], one i after the other */
void oracle_add_lines(double *to, const double *factors, const double *const *lines, int32_t count,
                      int32_t dim);
/* The same three with vectors of `bytes`: 16, 32 or 64. NULL: this machine has none. */
struct oracle_products {
    void (*dots)(const double *line, const double *const *lines, int32_t count, int32_t dim,
                 double *products);
    void (*dots_squares)(const double *line, const double *const *lines, int32_t count, int32_t dim,
                         double *products, double *squares);
    void (*add)(double *to, const double *factors, const double *const *lines, int32_t count,
                int32_t dim);
};
const struct oracle_products *oracle_products_of(int32_t bytes);

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

/* NaNs that no computation gives, in the `count` elements from `at` on. */
void oracle_poison_line(ffa_dtype dtype, void *data, int64_t at, int32_t count);
bool oracle_is_poison(ffa_dtype dtype, const void *data, int64_t at);

#endif
