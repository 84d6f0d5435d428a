/* SPDX-License-Identifier: Apache-2.0
 *
 * bf16 and fp16, exhaustively: every value there and back, and around every boundary between two
 * neighbours, against arithmetic in double.
 */
#include "base/half.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

static const struct format {
    const char *name;
    int exponent_bits, mantissa_bits;
    uint16_t (*from)(float);
    float (*to)(uint16_t);
} formats[] = {
    { "bf16", 8, 7, bf16_from_float, bf16_to_float },
    { "fp16", 5, 10, fp16_from_float, fp16_to_float },
};

static uint16_t infinity_of(const struct format *format)
{
    return (uint16_t)(((1 << format->exponent_bits) - 1) << format->mantissa_bits);
}

/* The value of non-negative bits by the definition of the format; one past the largest finite value
 * is what the next step would be. */
static double value_of(const struct format *format, uint16_t bits)
{
    const int bias = (1 << (format->exponent_bits - 1)) - 1;
    const int exponent = bits >> format->mantissa_bits;
    const int mantissa = bits & ((1 << format->mantissa_bits) - 1);

    if (!exponent)
        return ldexp(mantissa, 1 - bias - format->mantissa_bits);
    return ldexp(mantissa + (1 << format->mantissa_bits), exponent - bias - format->mantissa_bits);
}

static void check_from(const struct format *format, float value, uint16_t want)
{
    ck_assert_msg(format->from(value) == want, "%s: %a gives %04x, not %04x", format->name,
                  (double)value, format->from(value), want);
    want |= 0x8000;
    ck_assert_msg(format->from(-value) == want, "%s: %a gives %04x, not %04x", format->name,
                  (double)-value, format->from(-value), want);
}

START_TEST(every_value_there_and_back)
{
    const struct format *format = &formats[_i];

    for (uint32_t bits = 0; bits < 0x8000; bits++) {
        const uint16_t half = (uint16_t)bits;
        const float value = format->to(half);

        if (half > infinity_of(format)) {
            ck_assert(isnan(value));
            ck_assert(isnan(format->to(format->from(value))));
            ck_assert(isnan(format->to(half | 0x8000)));
            continue;
        }
        if (half == infinity_of(format))
            ck_assert(isinf(value) && value > 0);
        else
            ck_assert_msg((double)value == value_of(format, half), "%s %04x is %a", format->name,
                          half, (double)value);
        ck_assert(format->to(half | 0x8000) == -value);
        ck_assert(!!signbit(format->to(half | 0x8000)));
        check_from(format, value, half);
    }
}
END_TEST

/* Around the middle of each pair of neighbours, the largest value and infinity among them. */
START_TEST(every_boundary_rounds_to_even)
{
    const struct format *format = &formats[_i];

    for (uint32_t bits = 0; bits < infinity_of(format); bits++) {
        const uint16_t low = (uint16_t)bits, high = (uint16_t)(bits + 1);
        const double middle = (value_of(format, low) + value_of(format, high)) / 2;
        const float at = (float)middle;

        ck_assert((double)at == middle); /* a float has more bits than both formats */
        check_from(format, at, low & 1 ? high : low);
        check_from(format, nextafterf(at, 0), low);
        check_from(format, nextafterf(at, INFINITY), high);
    }
}
END_TEST

START_TEST(what_is_beyond)
{
    const struct format *format = &formats[_i];

    check_from(format, INFINITY, infinity_of(format));
    check_from(format, 0x1.fffffep127f, infinity_of(format));
    check_from(format, 0x1p-149f, 0);
    ck_assert(isnan(format->to(format->from(NAN))));
    /* A NaN whose payload lies in the bits that are cut off. */
    ck_assert(isnan(format->to(format->from(float_of_bits(0x7f800001)))));
    ck_assert(isnan(format->to(format->from(float_of_bits(0xff800001)))));
    ck_assert(!!signbit(format->to(format->from(float_of_bits(0xff800001)))));
}
END_TEST

/* From double: a value just beside a boundary must not first round to it. */
START_TEST(double_does_not_round_twice)
{
    const struct format *format = &formats[_i];

    for (uint32_t bits = 0; bits < infinity_of(format); bits++) {
        const uint16_t low = (uint16_t)bits, high = (uint16_t)(bits + 1);
        const double middle = (value_of(format, low) + value_of(format, high)) / 2;

        ck_assert_uint_eq(format->from(float_to_odd(nextafter(middle, 0))), low);
        ck_assert_uint_eq(format->from(float_to_odd(nextafter(middle, INFINITY))), high);
        ck_assert_uint_eq(format->from(float_to_odd(middle)), low & 1 ? high : low);
        ck_assert_uint_eq(format->from(float_to_odd(-nextafter(middle, INFINITY))), high | 0x8000);
    }
    ck_assert(float_to_odd(1e300) == 0x1.fffffep127f);
    ck_assert(float_to_odd(-1e300) == -0x1.fffffep127f);
    ck_assert(float_to_odd(1e-300) == 0x1p-149f);
    ck_assert(float_to_odd(INFINITY) == INFINITY);
    ck_assert(isnan(float_to_odd(NAN)));
    ck_assert(float_to_odd(0.0) == 0);
    ck_assert(float_to_odd(1.5) == 1.5f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("half");
    TCase *tc = tcase_create("half");

    tcase_add_loop_test(tc, every_value_there_and_back, 0, 2);
    tcase_add_loop_test(tc, every_boundary_rounds_to_even, 0, 2);
    tcase_add_loop_test(tc, what_is_beyond, 0, 2);
    tcase_add_loop_test(tc, double_does_not_round_twice, 0, 2);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
