/* Reductions and scalings of arrays: one loop for each element type and operation.
 *
 * Every loop computes element i of `out` from elements i of its inputs, so `out` may be one of them. A loop never
 * depends on addresses, on the length, or on where an array is cut, which law 3 needs: a NaN comes out as one NaN,
 * whatever went in, and no product is fused with a sum (-ffp-contract=off).
 *
 * Meaning, as of NumPy: integers wrap around; bool has `or` for SUM and MAX, `and` for PRODUCT and MIN; MIN and MAX
 * give NaN where an operand is NaN; of a 0 and a -0 they give the right one, for float16 the left one.
 */
#ifndef AIODIST_LOOPS_H
#define AIODIST_LOOPS_H

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "halves.h"

#if defined(__FAST_MATH__) || (defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0)
#error "ranks must get the same bits: build without -ffast-math, and for a processor that rounds each operation"
#endif

/* On x86-64 each loop is compiled twice, and the loader chooses: the second form has registers of 256 bits. */
#if defined(FOR_EACH_PROCESSOR) /* a test has chosen */
#elif defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

typedef void (*combine_loop)(const void *left, const void *right, void *out, size_t count);
typedef void (*scale_loop)(void *array, float number, size_t count);

#define COMBINE(NAME, TYPE, RESULT)                                                                  \
    FOR_EACH_PROCESSOR static void NAME(const void *left, const void *right, void *out, size_t count) { \
        const TYPE *from_left = left, *from_right = right;                                           \
        TYPE *to = out;                                                                              \
        INDEPENDENT for (size_t i = 0; i < count; i++) {                                             \
            const TYPE a = from_left[i], b = from_right[i];                                          \
            to[i] = (TYPE)(RESULT);                                                                  \
        }                                                                                            \
    }

/* ── integers and bool: sums of unsigned numbers wrap around, and so do the bits of signed ones ── */

#define MODULAR(SUFFIX, UNSIGNED)                                              \
    COMBINE(sum_##SUFFIX, UNSIGNED, (UNSIGNED)((uint64_t)a + (uint64_t)b))     \
    COMBINE(product_##SUFFIX, UNSIGNED, (UNSIGNED)((uint64_t)a * (uint64_t)b)) \
    COMBINE(band_##SUFFIX, UNSIGNED, a &b)                                     \
    COMBINE(bor_##SUFFIX, UNSIGNED, a | b)                                     \
    COMBINE(bxor_##SUFFIX, UNSIGNED, a ^ b)

#define ORDERED(SUFFIX, TYPE)                       \
    COMBINE(min_##SUFFIX, TYPE, b < a ? b : a)      \
    COMBINE(max_##SUFFIX, TYPE, b > a ? b : a)

MODULAR(8, uint8_t)
MODULAR(16, uint16_t)
MODULAR(32, uint32_t)
MODULAR(64, uint64_t)
ORDERED(u8, uint8_t)
ORDERED(i8, int8_t)
ORDERED(u16, uint16_t)
ORDERED(i16, int16_t)
ORDERED(u32, uint32_t)
ORDERED(i32, int32_t)
ORDERED(u64, uint64_t)
ORDERED(i64, int64_t)
COMBINE(any_bool, uint8_t, (a | b) != 0)
COMBINE(all_bool, uint8_t, (a != 0) & (b != 0))
COMBINE(one_bool, uint8_t, (a != 0) ^ (b != 0))

/* ── floating point ── */

static inline float one_nan32(float value) { return value == value ? value : NAN; }
static inline double one_nan64(double value) { return value == value ? value : (double)NAN; }

/* Of two equal numbers the right one is taken, as NumPy does here: only zeros differ, in their sign. */
#define LEAST(A, B, NAN_OF) ((A) == (A) ? ((A) < (B) ? (A) : (B) == (B) ? (B) : (NAN_OF)) : (NAN_OF))
#define MOST(A, B, NAN_OF) ((A) == (A) ? ((A) > (B) ? (A) : (B) == (B) ? (B) : (NAN_OF)) : (NAN_OF))

static inline float min32(float a, float b) { return LEAST(a, b, NAN); }
static inline float max32(float a, float b) { return MOST(a, b, NAN); }
static inline double min64(double a, double b) { return LEAST(a, b, (double)NAN); }
static inline double max64(double a, double b) { return MOST(a, b, (double)NAN); }

COMBINE(sum_f32, float, one_nan32(a + b))
COMBINE(product_f32, float, one_nan32(a *b))
COMBINE(min_f32, float, min32(a, b))
COMBINE(max_f32, float, max32(a, b))
COMBINE(sum_f64, double, one_nan64(a + b))
COMBINE(product_f64, double, one_nan64(a *b))
COMBINE(min_f64, double, min64(a, b))
COMBINE(max_f64, double, max64(a, b))

/* Complex numbers are pairs. Their sum is that of their parts; their product is rounded after each step. */
#define COMPLEX(SUFFIX, REAL, ONE_NAN)                                                                     \
    static void sum_##SUFFIX(const void *left, const void *right, void *out, size_t count) {              \
        sum_##REAL(left, right, out, 2 * count);                                                          \
    }                                                                                                     \
    FOR_EACH_PROCESSOR static void product_##SUFFIX(const void *left, const void *right, void *out,       \
                                                    size_t count) {                                       \
        const real_##REAL *from_left = left, *from_right = right;                                         \
        real_##REAL *to = out;                                                                            \
        INDEPENDENT for (size_t i = 0; i < count; i++) {                                                  \
            const real_##REAL a = from_left[2 * i], b = from_left[2 * i + 1];                             \
            const real_##REAL c = from_right[2 * i], d = from_right[2 * i + 1];                           \
            to[2 * i] = ONE_NAN(a * c - b * d);                                                           \
            to[2 * i + 1] = ONE_NAN(a * d + b * c);                                                       \
        }                                                                                                 \
    }

typedef float real_f32;
typedef double real_f64;
COMPLEX(c64, f32, one_nan32)
COMPLEX(c128, f64, one_nan64)

/* ── halves: in float, rounded once ── */

COMBINE(sum_b16, uint16_t, narrow_b16(widen_b16(a) + widen_b16(b)))
COMBINE(product_b16, uint16_t, narrow_b16(widen_b16(a) * widen_b16(b)))
COMBINE(min_b16, uint16_t, narrow_b16(min32(widen_b16(a), widen_b16(b))))
COMBINE(max_b16, uint16_t, narrow_b16(max32(widen_b16(a), widen_b16(b))))

static inline int is_nan_f16(uint16_t half) { return (half & 0x7fffu) > 0x7c00u; }

/* Halves in their order as integers. Zeros are equal, so that the left one of two is taken. */
static inline int16_t place_f16(uint16_t half) {
    int16_t size = (int16_t)(half & 0x7fff);
    return (int16_t)(half & 0x8000u ? -size : size);
}

#define ORDER_F16(A, B, BEFORE) \
    ((is_nan_f16(A) | is_nan_f16(B)) ? AIODIST_NAN16 : (place_f16(B) BEFORE place_f16(A)) ? (B) : (A))

COMBINE(sum_f16_any, uint16_t, narrow_f16(widen_f16(a) + widen_f16(b)))
COMBINE(product_f16_any, uint16_t, narrow_f16(widen_f16(a) * widen_f16(b)))
COMBINE(min_f16, uint16_t, ORDER_F16(a, b, <))
COMBINE(max_f16, uint16_t, ORDER_F16(a, b, >))

#define SCALE(NAME, WIDEN, NARROW, STEP)                                              \
    FOR_EACH_PROCESSOR static void NAME(void *array, float number, size_t count) {    \
        uint16_t *at = array;                                                         \
        INDEPENDENT for (size_t i = 0; i < count; i++) at[i] = NARROW(WIDEN(at[i]) STEP number); \
    }

SCALE(multiply_b16, widen_b16, narrow_b16, *)
SCALE(divide_b16, widen_b16, narrow_b16, /)
SCALE(multiply_f16_any, widen_f16, narrow_f16, *)
SCALE(divide_f16_any, widen_f16, narrow_f16, /)

/* x86-64 processors since 2012 convert eight float16 at a time (F16C), with the same rounding. */
#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define WITH_F16C __attribute__((target("avx2,f16c")))
#define EIGHT 8

WITH_F16C static inline __m128i narrow_eight(__m256 wide) {
    __m256 ordered = _mm256_cmp_ps(wide, wide, _CMP_ORD_Q); /* GCC 12 makes eight branches of a blend here */
    wide = _mm256_or_ps(_mm256_and_ps(ordered, wide), _mm256_andnot_ps(ordered, _mm256_set1_ps(NAN)));
    return _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT);
}

#define COMBINE_F16C(NAME, REST, STEP)                                                                     \
    WITH_F16C static void NAME(const void *left, const void *right, void *out, size_t count) {            \
        const uint16_t *a = left, *b = right;                                                             \
        uint16_t *to = out;                                                                               \
        size_t i = 0;                                                                                     \
        for (; i + EIGHT <= count; i += EIGHT) {                                                          \
            __m256 wide_a = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(a + i)));                   \
            __m256 wide_b = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(b + i)));                   \
            _mm_storeu_si128((__m128i *)(to + i), narrow_eight(STEP(wide_a, wide_b)));                    \
        }                                                                                                 \
        REST(a + i, b + i, to + i, count - i);                                                            \
    }

#define SCALE_F16C(NAME, REST, STEP)                                                                       \
    WITH_F16C static void NAME(void *array, float number, size_t count) {                                 \
        uint16_t *at = array;                                                                             \
        __m256 numbers = _mm256_set1_ps(number);                                                          \
        size_t i = 0;                                                                                     \
        for (; i + EIGHT <= count; i += EIGHT) {                                                          \
            __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(at + i)));                    \
            _mm_storeu_si128((__m128i *)(at + i), narrow_eight(STEP(wide, numbers)));                     \
        }                                                                                                 \
        REST(at + i, number, count - i);                                                                  \
    }

COMBINE_F16C(sum_f16_f16c, sum_f16_any, _mm256_add_ps)
COMBINE_F16C(product_f16_f16c, product_f16_any, _mm256_mul_ps)
SCALE_F16C(multiply_f16_f16c, multiply_f16_any, _mm256_mul_ps)
SCALE_F16C(divide_f16_f16c, divide_f16_any, _mm256_div_ps)
static int has_f16c(void) { /* clang knows the name "f16c" only from version 18 on */
    unsigned int a, b, c, d;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}

#define CHOOSE_F16(NAME) (has_f16c() ? NAME##_f16c : NAME##_any)
#else
#define CHOOSE_F16(NAME) NAME##_any
#endif

/* ── the tables: types as `base.types.DTYPE_CODES` numbers them, operations as `ReduceOp` does ── */

enum { BOOL, U8, I8, U16, I16, U32, I32, U64, I64, F16, B16, F32, F64, C64, C128 };
enum { SUM = 1, AVG = 2, PRODUCT = 3, MIN = 4, MAX = 5, BAND = 6, BOR = 7, BXOR = 8 }; /* 9 is PREMUL_SUM, a SUM here */

#define OF_INTEGERS(BITS, SUFFIX)               \
    switch (op) {                               \
        case SUM: return sum_##BITS;            \
        case PRODUCT: return product_##BITS;    \
        case MIN: return min_##SUFFIX;          \
        case MAX: return max_##SUFFIX;          \
        case BAND: return band_##BITS;          \
        case BOR: return bor_##BITS;            \
        case BXOR: return bxor_##BITS;          \
        default: return NULL;                   \
    }

#define OF_FLOATS(SUFFIX)                       \
    switch (op) {                               \
        case SUM: case AVG: return sum_##SUFFIX; \
        case PRODUCT: return product_##SUFFIX;  \
        case MIN: return min_##SUFFIX;          \
        case MAX: return max_##SUFFIX;          \
        default: return NULL;                   \
    }

#define OF_COMPLEX(SUFFIX)                      \
    switch (op) {                               \
        case SUM: case AVG: return sum_##SUFFIX; \
        case PRODUCT: return product_##SUFFIX;  \
        default: return NULL;                   \
    }

/* Bytes of an element; 0 for no type. */
static size_t size_of(int type) {
    static const unsigned char sizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16};
    return type >= 0 && type < (int)sizeof sizes ? sizes[type] : 0;
}

/* The loop for elements of a type; NULL where the operation has no meaning. */
static combine_loop combine_loop_for(int type, int op) {
    switch (type) {
        case BOOL:
            switch (op) {
                case SUM: case MAX: case BOR: return any_bool;
                case PRODUCT: case MIN: case BAND: return all_bool;
                case BXOR: return one_bool;
                default: return NULL;
            }
        case U8: OF_INTEGERS(8, u8)
        case I8: OF_INTEGERS(8, i8)
        case U16: OF_INTEGERS(16, u16)
        case I16: OF_INTEGERS(16, i16)
        case U32: OF_INTEGERS(32, u32)
        case I32: OF_INTEGERS(32, i32)
        case U64: OF_INTEGERS(64, u64)
        case I64: OF_INTEGERS(64, i64)
        case F16:
            switch (op) {
                case SUM: case AVG: return CHOOSE_F16(sum_f16);
                case PRODUCT: return CHOOSE_F16(product_f16);
                case MIN: return min_f16;
                case MAX: return max_f16;
                default: return NULL;
            }
        case B16: OF_FLOATS(b16)
        case F32: OF_FLOATS(f32)
        case F64: OF_FLOATS(f64)
        case C64: OF_COMPLEX(c64)
        case C128: OF_COMPLEX(c128)
        default: return NULL;
    }
}

/* The loop that multiplies or divides an array of halves by a float; NULL for other types. */
static scale_loop scale_loop_for(int type, int divide) {
    switch (type) {
        case F16: return divide ? CHOOSE_F16(divide_f16) : CHOOSE_F16(multiply_f16);
        case B16: return divide ? divide_b16 : multiply_b16;
        default: return NULL;
    }
}

#endif
