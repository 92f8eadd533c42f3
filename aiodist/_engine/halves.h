/* float16 and bfloat16 as bits, widened to float and narrowed again.
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even, and gives one NaN for every NaN. So every function
 * of this file gives the same bits on every processor.
 *
 * Sources: IEEE 754-2019 (binary16); the three cases of the rounding to binary16 are those of F. Giesen,
 * "Float->half variants" (2012): subnormals by an addition whose last bit is theirs, normal numbers by an addition
 * of half a step to the integer, and everything from 65536 on by comparison.
 */
#ifndef AIODIST_HALVES_H
#define AIODIST_HALVES_H

#include <stdint.h>
#include <string.h>

#define AIODIST_NAN16 0x7e00u   /* of float16 */
#define AIODIST_NANB16 0x7fc0u  /* of bfloat16 */

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline float widen_b16(uint16_t half) { return float_of((uint32_t)half << 16); }

static inline uint16_t narrow_b16(float value) {
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? AIODIST_NANB16 : rounded);
}

static inline float widen_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = half & 0x7fffu;
    uint32_t normal = (rest << 13) + (112u << 23); /* the exponents' biases differ by 112 */
    uint32_t subnormal = bits_of((float)(int32_t)rest * 0x1p-24f);
    uint32_t other = rest << 13 | 0x7f800000u; /* infinity, NaN */
    return float_of(sign | (rest >= 0x7c00u ? other : rest < 0x400u ? subnormal : normal));
}

static inline uint16_t narrow_f16(float value) {
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    uint32_t normal = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13;
    uint32_t subnormal = bits_of(float_of(rest) + 0.5f) - 0x3f000000u; /* 2^-24 is the last bit of 0.5 */
    uint32_t half = rest < 0x38800000u ? subnormal : normal;
    half = rest >= 0x47800000u ? 0x7c00u : half;
    half = rest > 0x7f800000u ? AIODIST_NAN16 : half;
    return (uint16_t)(rest > 0x7f800000u ? half : sign | half);
}

#endif
