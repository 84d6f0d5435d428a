/* SPDX-License-Identifier: Apache-2.0
 *
 * The inner products of the oracle for one width of vectors. oracle_products.c includes it once a
 * width, with VECTOR_BYTES, TARGET (the attribute of functions) and NAME(name) set, so it has no
 * include guard. Invariant: a product is summed in LANES lanes, whatever the width, so that the
 * results of all widths are equal. Trick: up to FOUR lines at once, each in registers of its own,
 * so that what they are multiplied by is read once.
 */
#define VECTOR NAME(vector)

typedef double VECTOR __attribute__((vector_size(VECTOR_BYTES)));

enum { NAME(WIDTH) = VECTOR_BYTES / sizeof(double), NAME(COUNT) = LANES / NAME(WIDTH) };

TARGET ALWAYS VECTOR NAME(load)(const double *from)
{
    VECTOR x;

    memcpy(&x, from, sizeof x);
    return x;
}

/* The lanes of a sum, in ascending order, added to what the last elements gave. */
TARGET ALWAYS double NAME(total)(double sum, const VECTOR *sums)
{
    double lanes[LANES];

    memcpy(lanes, sums, sizeof lanes);
    for (int l = 0; l < LANES; l++)
        sum += lanes[l];
    return sum;
}

/* squares: of the terms; NULL, always the same where it is inlined: not asked for. */
TARGET ALWAYS void NAME(dots_of)(const double *line, const double *const *lines, int count,
                                 int32_t dim, double *products, double *squares)
{
    VECTOR sums[FOUR][NAME(COUNT)] = { 0 }, more[FOUR][NAME(COUNT)] = { 0 };
    int32_t i = 0;

    for (; i + LANES <= dim; i += LANES)
        UNROLL
    for (int v = 0; v < NAME(COUNT); v++) {
        const VECTOR x = NAME(load)(line + i + v * NAME(WIDTH));

        UNROLL
        for (int r = 0; r < count; r++) {
            const VECTOR term = x * NAME(load)(lines[r] + i + v * NAME(WIDTH));

            sums[r][v] += term;
            if (squares)
                more[r][v] += term * term;
        }
    }
    UNROLL
    for (int r = 0; r < count; r++) {
        double sum = 0, square = 0;

        for (int32_t c = i; c < dim; c++) {
            const double term = line[c] * lines[r][c];

            sum += term;
            square += term * term;
        }
        products[r] = NAME(total)(sum, sums[r]);
        if (squares)
            squares[r] = NAME(total)(square, more[r]);
    }
}

TARGET ALWAYS void NAME(add_of)(double *to, const double *factors, const double *const *lines,
                                int count, int32_t dim)
{
    int32_t i = 0;

    for (; i + LANES <= dim; i += LANES)
        UNROLL
    for (int v = 0; v < NAME(COUNT); v++) {
        const int32_t at = i + v * NAME(WIDTH);
        VECTOR x = NAME(load)(to + at);

        UNROLL
        for (int r = 0; r < count; r++)
            x += factors[r] * NAME(load)(lines[r] + at);
        memcpy(to + at, &x, sizeof x);
    }
    for (; i < dim; i++)
        for (int r = 0; r < count; r++)
            to[i] += factors[r] * lines[r][i];
}

TARGET static void NAME(dots)(const double *line, const double *const *lines, int32_t count,
                              int32_t dim, double *products)
{
    int32_t r = 0;

    for (; r + FOUR <= count; r += FOUR)
        NAME(dots_of)(line, lines + r, FOUR, dim, products + r, NULL);
    for (; r < count; r++)
        NAME(dots_of)(line, lines + r, 1, dim, products + r, NULL);
}

/* Two sums a line: of four lines they are more than narrow vectors have registers for. */
TARGET static void NAME(dots_squares)(const double *line, const double *const *lines, int32_t count,
                                      int32_t dim, double *products, double *squares)
{
    int32_t r = 0;

    for (; r + 2 <= count; r += 2)
        NAME(dots_of)(line, lines + r, 2, dim, products + r, squares + r);
    for (; r < count; r++)
        NAME(dots_of)(line, lines + r, 1, dim, products + r, squares + r);
}

TARGET static void NAME(add)(double *to, const double *factors, const double *const *lines,
                             int32_t count, int32_t dim)
{
    int32_t r = 0;

    for (; r + FOUR <= count; r += FOUR)
        NAME(add_of)(to, factors + r, lines + r, FOUR, dim);
    for (; r < count; r++)
        NAME(add_of)(to, factors + r, lines + r, 1, dim);
}

static const struct oracle_products NAME(products) = { NAME(dots), NAME(dots_squares), NAME(add) };

#undef VECTOR
#undef VECTOR_BYTES
#undef TARGET
#undef NAME
