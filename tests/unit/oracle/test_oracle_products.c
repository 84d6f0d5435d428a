/* SPDX-License-Identifier: Apache-2.0
 *
 * Inner products of the oracle: the same bits as plain loops over eight lanes, for every width of
 * vectors that this machine has, every number of lines, and lines that do not fill the lanes.
 */
#include "oracle/oracle_elements.h"
#include "support/rng.h"
#include "support/suite.h"

#include <check.h>
#include <string.h>

enum { LANES = 8, LINES = 11, DIM = 43 };

static const int32_t widths[] = { 16, 32, 64 };
static const int32_t dims[] = { 1, 7, 8, 9, 16, 31, DIM };

struct lines {
    double line[DIM], others[LINES][DIM], factors[LINES];
    const double *at[LINES];
};

static void draw(struct lines *lines)
{
    struct rng rng = { 3 };

    for (int32_t r = 0; r < LINES; r++) {
        lines->factors[r] = rng_bell(&rng);
        lines->at[r] = lines->others[r];
        for (int32_t c = 0; c < DIM; c++)
            lines->others[r][c] = rng_bell(&rng);
    }
    for (int32_t c = 0; c < DIM; c++)
        lines->line[c] = rng_bell(&rng);
}

/* The last elements, which fill no vector, come first; then lane by lane. */
static double sum_of(const double *terms, int32_t dim)
{
    double lanes[LANES] = { 0 }, sum = 0;

    for (int32_t c = 0; c < dim / LANES * LANES; c++)
        lanes[c % LANES] += terms[c];
    for (int32_t c = dim / LANES * LANES; c < dim; c++)
        sum += terms[c];
    for (int32_t l = 0; l < LANES; l++)
        sum += lanes[l];
    return sum;
}

static void expect_product(const struct lines *lines, int32_t r, int32_t dim, double *product,
                           double *squares)
{
    double terms[DIM], more[DIM];

    for (int32_t c = 0; c < dim; c++) {
        terms[c] = lines->line[c] * lines->others[r][c];
        more[c] = terms[c] * terms[c];
    }
    *product = sum_of(terms, dim);
    *squares = sum_of(more, dim);
}

static void expect_sum(const struct lines *lines, int32_t count, int32_t dim, double *to)
{
    memcpy(to, lines->line, sizeof lines->line);
    for (int32_t r = 0; r < count; r++)
        for (int32_t c = 0; c < dim; c++)
            to[c] += lines->factors[r] * lines->others[r][c];
}

static void check(const struct oracle_products *products, const struct lines *lines, int32_t count,
                  int32_t dim)
{
    double dots[LINES], again[LINES], squares[LINES], sum[DIM], want_sum[DIM];

    products->dots(lines->line, lines->at, count, dim, dots);
    products->dots_squares(lines->line, lines->at, count, dim, again, squares);
    for (int32_t r = 0; r < count; r++) {
        double want, want_squares;

        expect_product(lines, r, dim, &want, &want_squares);
        ck_assert_double_eq(dots[r], want);
        ck_assert_double_eq(again[r], want);
        ck_assert_double_eq(squares[r], want_squares);
    }
    expect_sum(lines, count, dim, want_sum);
    memcpy(sum, lines->line, sizeof sum);
    products->add(sum, lines->factors, lines->at, count, dim);
    for (int32_t c = 0; c < DIM; c++)
        ck_assert_double_eq(sum[c], want_sum[c]);
}

START_TEST(every_width_gives_the_same_bits)
{
    const struct oracle_products *products = oracle_products_of(widths[_i]);
    struct lines lines;

    draw(&lines);
    for (size_t d = 0; products && d < sizeof dims / sizeof *dims; d++)
        for (int32_t count = 0; count <= LINES; count++)
            check(products, &lines, count, dims[d]);
}
END_TEST

START_TEST(the_narrowest_is_everywhere)
{
    ck_assert_ptr_nonnull(oracle_products_of(16));
    ck_assert_ptr_null(oracle_products_of(8));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("oracle, products");
    TCase *tc = tcase_create("oracle, products");

    tcase_add_loop_test(tc, every_width_gives_the_same_bits, 0, sizeof widths / sizeof *widths);
    tcase_add_test(tc, the_narrowest_is_everywhere);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
