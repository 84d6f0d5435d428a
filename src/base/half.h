/* SPDX-License-Identifier: Apache-2.0
 *
 * bf16 and fp16 (IEEE 754 binary16) to and from float: round to nearest even, exact for NaN,
 * infinities, zeros and denormals. No branches on the common path, so that loops vectorise.
 */
#ifndef FFA_BASE_HALF_H
#define FFA_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- bf16: the upper half of a float ---- */

static inline float bf16_to_float(uint16_t half)
{
    return float_of_bits((uint32_t)half << 16);
}

static inline uint16_t bf16_from_float(float value)
{
    const uint32_t bits = float_bits(value);
    const uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1);
    const uint32_t quiet = bits | 0x400000u; /* a NaN stays one, whatever bits are cut off */

    return (uint16_t)(((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >> 16);
}

/* ---- fp16: 1 sign, 5 exponent, 10 mantissa bits ---- */

static inline float fp16_to_float(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t moved = (uint32_t)(half & 0x7fff) << 13;
    /* Scaling by 2^112 corrects the bias, and makes denormals what they are. */
    const uint32_t scaled = float_bits(float_of_bits(moved) * 0x1p112f);
    const uint32_t special = moved | 0x7f800000u;

    return float_of_bits(sign | ((half & 0x7c00) == 0x7c00 ? special : scaled));
}

static inline uint16_t fp16_from_float(float value)
{
    const uint32_t bits = float_bits(value);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t size = bits & 0x7fffffffu;
    /* Below 2^-14 a step is 2^-24: that of a float in [0.5, 1). The adder rounds. */
    const uint32_t tiny = float_bits(float_of_bits(size) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (size - (112u << 23) + 0xfffu + (size >> 13 & 1)) >> 13;
    const uint32_t large = size > 0x7f800000u ? 0x7e00u | (size >> 13 & 0x3ffu) : 0x7c00u;

    return (uint16_t)(sign | (size >= 0x47800000u ? large : size < 0x38800000u ? tiny : normal));
}

/* ---- from double, without rounding twice ---- */

/* Round to odd: what is inexact gets an odd last bit, so that rounding the result to fewer bits
 * (at least two fewer) is the same as rounding `value`. */
static inline float float_to_odd(double value)
{
    float nearest = (float)value;
    uint32_t bits = float_bits(nearest);

    if ((double)nearest == value || value != value)
        return nearest;
    if ((nearest < 0 ? -(double)nearest : (double)nearest) > (value < 0 ? -value : value))
        bits--; /* towards zero; from infinity to the largest float */
    return float_of_bits(bits | 1);
}

#endif
