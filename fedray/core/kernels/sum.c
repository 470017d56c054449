/* Exact sums of rows (fedray/core/sums.py has the idea): the same numbers as the products of torch, in any order. */
#include "numbers.h"

typedef double wide __attribute__((vector_size(VECTOR)));
typedef double wide_loose __attribute__((vector_size(VECTOR), aligned(8), may_alias));
typedef real part __attribute__((vector_size(VECTOR / 8 * sizeof(real)), aligned(sizeof(real)), may_alias));
#define WIDE (VECTOR / 8)
#define COLUMNS 2048 /* sums that stay in the first cache while the rows go by */

typedef struct {
    const real *x;        /* rows, [J, d] */
    const int64_t *group; /* group of each row, [J] */
    const double *scale;  /* factor of each row, [J]; NULL means 1 */
    const uint8_t *big;   /* which rows use the coarse limb, [J]; NULL means that no row does */
    double *sums;         /* of each limb, [limbs, G, d]; the coarse limb comes first where there is one */
    double *most;         /* the largest magnitude of each row, [J]; NaN where the row has one */
    int64_t rows, columns, groups;
    int32_t limbs, square;
} SumTask;

INLINE wide round_to(wide x, double magic) { return (x + magic) - magic; }

/* The limbs of one vector, added to the sums at `to`. */
INLINE void add_limbs(wide x, double *to, int64_t limb_stride, int limbs, int coarse, int big, const double *magic) {
    if (coarse) {
        if (big) {
            wide head = round_to(x, magic[0]);
            *(wide_loose *)to = *(wide_loose *)to + head;
            x -= head;
        }
        to += limb_stride;
    }
    for (int limb = 0; limb < limbs; limb++) {
        wide head = round_to(x, magic[1 + limb]);
        *(wide_loose *)to = *(wide_loose *)to + head;
        x -= head;
        to += limb_stride;
    }
}

INLINE void add_row(const SumTask *t, int64_t j, int64_t from, int64_t count, const double *magic, int limbs, int plain) {
    const real *x = t->x + j * t->columns + from;
    double *to = t->sums + t->group[j] * t->columns + from;
    const int64_t stride = t->groups * t->columns;
    const double scale = t->scale ? t->scale[j] : 1.0;
    const int coarse = !plain && t->big != 0, big = coarse && t->big[j];
    ivec most = {0};
    int64_t c = 0;
    for (; c + LANES <= count; c += LANES) {
        ivec bits = (ivec)load(x + c) & ~(whole)((uint64_t)1 << (REAL_BITS - 1));
        ivec more = bits > most; /* as integers, so that NaN is the largest */
        most = (bits & more) | (most & ~more);
        for (int i = 0; i < LANES; i += WIDE) {
            wide v = __builtin_convertvector(*(const part *)(x + c + i), wide);
            if (!plain) {
                if (t->square) v *= v;
                if (t->scale) v *= scale;
            }
            add_limbs(v, to + c + i, stride, limbs, coarse, big, magic);
        }
    }
    whole top = 0;
    for (int i = 0; i < LANES; i++) top = most[i] > top ? most[i] : top;
    for (; c < count; c++) {
        whole bits;
        memcpy(&bits, x + c, sizeof bits);
        bits &= ~(whole)((uint64_t)1 << (REAL_BITS - 1));
        top = bits > top ? bits : top;
        double v = (double)x[c], *at = to + c;
        if (t->square) v *= v;
        if (t->scale) v *= scale;
        if (coarse) {
            if (big) {
                double head = (v + magic[0]) - magic[0];
                *at += head;
                v -= head;
            }
            at += stride;
        }
        for (int limb = 0; limb < limbs; limb++, at += stride) {
            double head = (v + magic[1 + limb]) - magic[1 + limb];
            *at += head;
            v -= head;
        }
    }
    real largest;
    memcpy(&largest, &top, sizeof top);
    if (!(t->most[j] >= (double)largest)) t->most[j] = t->most[j] != t->most[j] ? t->most[j] : (double)largest;
}

/* Adds the rows. The caller has checked that groups, limbs (1 to 8) and buffers fit. */
EXPORT void NAME(sum)(const SumTask *t) {
    double magic[9];
    magic[0] = 1.5 * 4503599627370496.0 / 256.0; /* multiples of 2^-8 */
    double unit = 1.0 / 68719476736.0;           /* 2^-36, then 2^-64, ... */
    for (int limb = 0; limb < t->limbs; limb++, unit /= 268435456.0) magic[1 + limb] = 1.5 * 4503599627370496.0 * unit;
    const int parts = t->limbs + (t->big != 0), plain = t->limbs == 1 && !t->big && !t->scale && !t->square;
    for (int64_t j = 0; j < t->rows; j++) t->most[j] = 0.0;
    for (int64_t from = 0; from < t->columns; from += COLUMNS) {
        int64_t count = t->columns - from < COLUMNS ? t->columns - from : COLUMNS;
        for (int64_t g = 0; g < (int64_t)parts * t->groups; g++)
            memset(t->sums + g * t->columns + from, 0, (size_t)count * sizeof(double));
        for (int64_t j = 0; j < t->rows; j++)
            if (plain) add_row(t, j, from, count, magic, 1, 1);
            else add_row(t, j, from, count, magic, t->limbs, 0);
    }
}
