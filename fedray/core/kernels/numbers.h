/* Vectors of numbers, and exp, log and tanh with the same bits on every machine.
 *
 * Every file of kernels is compiled several times: for float and double (REAL_BITS 32 or 64), and for each instruction
 * set with vectors of VECTOR bytes. All sums and products are written in a fixed order with explicit fused
 * multiply-adds, and the compiler may not contract or reorder them (-ffp-contract=off, never -ffast-math). So the
 * results do not depend on the width of the vectors, on the compiler or on a mathematics library.
 */
#ifndef FEDRAY_NUMBERS_H
#define FEDRAY_NUMBERS_H

#include <stdint.h>
#include <string.h>

#include "names.h"

#define INLINE static inline __attribute__((always_inline))

#if REAL_BITS == 64
typedef double real;
typedef int64_t whole;
typedef uint64_t natural;
#define MANTISSA 52
#define BIAS 1023
#else
typedef float real;
typedef int32_t whole;
typedef uint32_t natural;
#define MANTISSA 23
#define BIAS 127
#endif

#define LANES (VECTOR * 8 / REAL_BITS) /* numbers in a vector */
#define LANES_LOG (LANES == 16 ? 4 : LANES == 8 ? 3 : LANES == 4 ? 2 : 1)
typedef real vec __attribute__((vector_size(VECTOR)));
typedef whole ivec __attribute__((vector_size(VECTOR)));
typedef natural uvec __attribute__((vector_size(VECTOR))); /* its sums may wrap around */
typedef real loose __attribute__((vector_size(VECTOR), aligned(sizeof(real)), may_alias)); /* a vector in memory */

/* The one operation for which C has no vector form that all compilers know. */
#if defined(__clang__)
#define FMA(a, b, c) __builtin_elementwise_fma((a), (b), (c))
#elif defined(__x86_64__)
#include <immintrin.h>
#if VECTOR == 64
#define FMA(a, b, c) (REAL_BITS == 64 ? (vec)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)) \
                                      : (vec)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#else
#define FMA(a, b, c) (REAL_BITS == 64 ? (vec)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)) \
                                      : (vec)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#endif
#else
#include <arm_neon.h>
#define FMA(a, b, c) (REAL_BITS == 64 ? (vec)vfmaq_f64((float64x2_t)(c), (float64x2_t)(a), (float64x2_t)(b)) \
                                      : (vec)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#endif

INLINE vec load(const real *p) { return *(const loose *)p; }
INLINE void store(real *p, vec v) { *(loose *)p = v; }
INLINE vec all(real x) { return x - (vec){0}; } /* x in every place: x - 0 is x for every x, -0 included */
INLINE vec choose(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }
INLINE ivec below_count(int n) { /* -1 in the first n places, else 0 */
    ivec mask;
    for (int i = 0; i < LANES; i++) mask[i] = i < n ? -1 : 0;
    return mask;
}
INLINE int round_up(int n) { return (n + LANES - 1) / LANES * LANES; }

INLINE vec root(vec x) { /* correctly rounded on every machine */
    vec y;
    for (int i = 0; i < LANES; i++) y[i] = REAL_BITS == 64 ? (real)__builtin_sqrt(x[i]) : (real)__builtin_sqrtf(x[i]);
    return y;
}

/* x = n log 2 + r with |r| <= log(2) / 2: returns 2^n and leaves r. |x| must be below 2^(MANTISSA - 2). */
#define LOG2_HIGH ((real)(REAL_BITS == 64 ? 6.93147180369123816490e-01 : 0.693359375))
#define LOG2_LOW ((real)(REAL_BITS == 64 ? 1.90821492927058770002e-10 : -2.12194440054690583e-4))
INLINE vec power_of_two(vec *x) {
    const vec magic = all((real)(1.5 * (double)((int64_t)1 << MANTISSA))); /* adding it rounds to a whole number */
    vec shifted = FMA(*x, all((real)1.4426950408889634), magic);
    vec n = shifted - magic;
    *x = FMA(n, all(-LOG2_LOW), FMA(n, all(-LOG2_HIGH), *x));
    return (vec)(((uvec)shifted - (uvec)magic + (natural)BIAS) << MANTISSA);
}

/* (e^r - 1) / r by Taylor's series for |r| <= log(2) / 2: its first omitted term is below half a unit in the last place. */
INLINE vec exp_series(vec r) {
    vec p = all((real)(1.0 / 5040));
#if REAL_BITS == 64
    p = all(1.0 / 87178291200.0);
    p = FMA(p, r, all(1.0 / 6227020800.0));
    p = FMA(p, r, all(1.0 / 479001600.0));
    p = FMA(p, r, all(1.0 / 39916800.0));
    p = FMA(p, r, all(1.0 / 3628800.0));
    p = FMA(p, r, all(1.0 / 362880.0));
    p = FMA(p, r, all(1.0 / 40320.0));
    p = FMA(p, r, all(1.0 / 5040.0));
#endif
    p = FMA(p, r, all((real)(1.0 / 720)));
    p = FMA(p, r, all((real)(1.0 / 120)));
    p = FMA(p, r, all((real)(1.0 / 24)));
    p = FMA(p, r, all((real)(1.0 / 6)));
    p = FMA(p, r, all((real)0.5));
    return FMA(p, r, all((real)1));
}

/* e^x; 0 below the smallest normal number, infinity above the largest one, NaN stays. */
INLINE vec exp_of(vec x) {
    const real low = REAL_BITS == 64 ? (real)-708 : (real)-87, high = REAL_BITS == 64 ? (real)709 : (real)88;
    vec r = choose(x < low, all(low), choose(x > high, all(high), x));
    vec scale = power_of_two(&r);
    vec y = FMA(exp_series(r), r, all((real)1)) * scale;
    y = choose(x < low, all((real)0), choose(x > high, all((real)__builtin_inf()), y));
    return choose(x == x, y, x);
}

/* 2 atanh(s) = log((1 + s) / (1 - s)) for |s| <= 1/3. */
INLINE vec log_series(vec s) {
    vec t = s * s, p;
#if REAL_BITS == 64
    p = all(1.0 / 33);
    p = FMA(p, t, all(1.0 / 31));
    p = FMA(p, t, all(1.0 / 29));
    p = FMA(p, t, all(1.0 / 27));
    p = FMA(p, t, all(1.0 / 25));
    p = FMA(p, t, all(1.0 / 23));
    p = FMA(p, t, all(1.0 / 21));
    p = FMA(p, t, all(1.0 / 19));
    p = FMA(p, t, all(1.0 / 17));
    p = FMA(p, t, all(1.0 / 15));
#else
    p = all((real)(1.0 / 15));
#endif
    p = FMA(p, t, all((real)(1.0 / 13)));
    p = FMA(p, t, all((real)(1.0 / 11)));
    p = FMA(p, t, all((real)(1.0 / 9)));
    p = FMA(p, t, all((real)(1.0 / 7)));
    p = FMA(p, t, all((real)(1.0 / 5)));
    p = FMA(p, t, all((real)(1.0 / 3)));
    vec twice = s + s;
    return FMA(p * t, twice, twice);
}

/* log x of normal numbers above 0; infinity and NaN stay. Used on sums of exponentials and on variances. */
INLINE vec log_of(vec x) {
    const natural half = (natural)BIAS << MANTISSA, cut = (natural)0x3504F3 << (MANTISSA > 23 ? MANTISSA - 23 : 0);
    const natural one = (natural)1 << MANTISSA;
    uvec bits = (uvec)x;
    ivec e = (ivec)(bits - half + (one - cut)) >> MANTISSA; /* so that the mantissa lies in [sqrt(1/2), sqrt(2)] */
    vec m = (vec)(bits - ((uvec)e << MANTISSA));
    vec n;
    for (int i = 0; i < LANES; i++) n[i] = (real)e[i];
    vec y = log_series((m - (real)1) / (m + (real)1));
    y = FMA(n, all(LOG2_HIGH), FMA(n, all(LOG2_LOW), y));
    return choose(x < (real)__builtin_inf(), y, x);
}

/* tanh x, to a few units in the last place also near 0. */
INLINE vec tanh_of(vec x) {
    const whole sign = (whole)((uint64_t)1 << (REAL_BITS - 1));
    vec size = (vec)((ivec)x & ~sign);
    vec y = size + size;
    y = choose(y > (real)44, all((real)44), y); /* tanh 22 rounds to 1 */
    vec scale = power_of_two(&y);
    vec less = FMA(exp_series(y) * y, scale, scale - (real)1); /* e^(2|x|) - 1 */
    vec t = less / (less + (real)2);
    t = (vec)((ivec)t | ((ivec)x & sign));
    return choose(x == x, t, x);
}

/* log(1 + e^x) as torch computes it: x itself above 20. */
INLINE vec softplus_of(vec x) {
    vec u = exp_of(choose(x > (real)0, -x, x));
    vec y = log_series(u / (u + (real)2)) + choose(x < (real)0, all((real)0), x);
    return choose(x > (real)20, x, y);
}

#endif
