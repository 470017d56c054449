/* Matrix products in register tiles: sums over k in index order, one chain of fused multiply-adds for each number.
 *
 * `product` computes C(r, c) = start(r, c) + sum over o and k of A(r, o, k) B(o, k, c), o and k rising. The tiles change
 * which numbers are computed together and never the order of a sum, so that no bit depends on the size of the tiles, on
 * the width of the vectors or on the compiler. What happens to a finished sum is its `mode`.
 */
#ifndef FEDRAY_TILE_H
#define FEDRAY_TILE_H

#include "numbers.h"

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define MOST_VECTORS (VECTOR == 32 ? 2 : 4) /* of a tile: AVX2 has 16 registers, AVX-512 and NEON have 32 */
#define MOST_ROWS(vectors) ((vectors) == 1 ? 8 : (vectors) == 2 ? (VECTOR == 32 ? 6 : 8) : 6)

enum Mode {
    FORWARD,      /* C = start + sum */
    FORWARD_RELU, /* C = max(start + sum, 0); NaN stays */
    FORWARD_MORE, /* C = C + sum, as one chain that begins at C */
    BACKWARD,     /* C = sum */
    BACKWARD_RELU, /* C = sum where `gate` is above 0 (or NaN), else 0 */
    GRADIENT,     /* C = sum, A is read with rows side by side */
    GRADIENT_MORE, /* C = C + sum, as one chain that begins at C; A as there */
    DESCEND,      /* C = C - rate sum, A as there */
    DESCEND_PULL, /* C = C - rate (sum + keep C + shift), A as there */
};

typedef struct {
    const real *a; /* A(r, o, k) = a[r a_row + o a_outer + k] or, from GRADIENT on, a[r + o a_outer + k a_row] */
    const real *b; /* B(o, k, c) = b[o b_outer + k b_row + c] */
    real *c;       /* C(r, c) = c[r c_row + c] */
    int64_t a_row, a_outer, b_row, b_outer, c_row;
    int32_t rows, columns, depth, outer; /* columns are rounded up to whole vectors, which B and C must have */
    const real *start; /* [columns], of every row; NULL means 0 */
    const real *gate;  /* gate(r, c) = gate[r gate_row + c] */
    int64_t gate_row;
    const real *shift; /* laid out as C */
    real rate, keep;
} Product;

INLINE vec finish(const Product *p, const int mode, vec sum, int64_t r, int64_t c) {
    if (mode == FORWARD_RELU) return choose(sum < (real)0, all((real)0), sum);
    if (mode == BACKWARD_RELU) return choose(load(p->gate + r * p->gate_row + c) <= (real)0, all((real)0), sum);
    if (mode == DESCEND) return FMA(all(-p->rate), sum, load(p->c + r * p->c_row + c));
    if (mode == DESCEND_PULL) {
        vec now = load(p->c + r * p->c_row + c);
        sum = FMA(all(p->keep), now, sum) + load(p->shift + r * p->c_row + c);
        return FMA(all(-p->rate), sum, now);
    }
    return sum;
}

INLINE void tile(const Product *p, const int mode, const int rows, const int vectors, int64_t r0, int64_t c0) {
    const int64_t next_row = mode >= GRADIENT ? 1 : p->a_row, next_k = mode >= GRADIENT ? p->a_row : 1;
    const real *a0 = p->a + r0 * next_row, *b0 = p->b + c0;
    vec sum[8][4];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++)
            sum[r][v] = mode == GRADIENT_MORE || mode == FORWARD_MORE ? load(p->c + (r0 + r) * p->c_row + c0 + v * LANES)
                      : mode <= FORWARD_RELU && p->start ? load(p->start + c0 + v * LANES) : all((real)0);
    for (int o = 0; o < p->outer; o++, a0 += p->a_outer, b0 += p->b_outer) {
        const real *a = a0, *b = b0;
        const int64_t b_row = p->b_row;
        for (int k = 0; k < p->depth; k++, a += next_k, b += b_row) {
            vec right[4];
            UNROLL for (int v = 0; v < vectors; v++) right[v] = load(b + v * LANES);
            UNROLL for (int r = 0; r < rows; r++) {
                vec left = all(a[r * next_row]);
                UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = FMA(left, right[v], sum[r][v]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++)
            store(p->c + (r0 + r) * p->c_row + c0 + v * LANES, finish(p, mode, sum[r][v], r0 + r, c0 + v * LANES));
}

/* The rows of one panel of columns, in tiles of nearly equal height. */
INLINE void panel(const Product *p, const int mode, const int vectors, int64_t c0) {
    const int most = MOST_ROWS(vectors), tiles = (p->rows + most - 1) / most;
    int64_t r = 0;
    for (int i = 0; i < tiles; i++) {
        const int rows = (p->rows - (int)r) / (tiles - i);
        switch (rows) {
        case 1: tile(p, mode, 1, vectors, r, c0); break;
        case 2: tile(p, mode, 2, vectors, r, c0); break;
        case 3: tile(p, mode, 3, vectors, r, c0); break;
        case 4: tile(p, mode, 4, vectors, r, c0); break;
        case 5: tile(p, mode, 5, vectors, r, c0); break;
        case 6: tile(p, mode, 6, vectors, r, c0); break;
        case 7: if (most > 6) tile(p, mode, 7, vectors, r, c0); break;
        default: if (most > 6) tile(p, mode, 8, vectors, r, c0); break;
        }
        r += rows;
    }
}

INLINE void product(const Product *p, const int mode) {
    int64_t c = 0;
    const int64_t columns = round_up(p->columns);
    if (MOST_VECTORS == 4)
        for (; c + 4 * LANES <= columns; c += 4 * LANES) panel(p, mode, 4, c);
    for (; c + 2 * LANES <= columns; c += 2 * LANES) panel(p, mode, 2, c);
    for (; c < columns; c += LANES) panel(p, mode, 1, c);
}

/* The products that several places need: compiled once. */
#define ONCE static __attribute__((noinline, unused)) void
ONCE multiply_forward(const Product *p) { product(p, FORWARD); }
ONCE multiply_forward_more(const Product *p) { product(p, FORWARD_MORE); }
ONCE multiply_backward(const Product *p) { product(p, BACKWARD); }
ONCE multiply_descend(const Product *p) { product(p, DESCEND); }
ONCE add_gradient(const Product *p) { product(p, GRADIENT_MORE); }

/* A square of LANES x LANES numbers is transposed in registers, by exchanging ever larger blocks. */
#if LANES_LOG == 4
#define SHUFFLE(a, b, F) __builtin_shufflevector(a, b, F(0), F(1), F(2), F(3), F(4), F(5), F(6), F(7), F(8), F(9), \
                                                 F(10), F(11), F(12), F(13), F(14), F(15))
#elif LANES_LOG == 3
#define SHUFFLE(a, b, F) __builtin_shufflevector(a, b, F(0), F(1), F(2), F(3), F(4), F(5), F(6), F(7))
#elif LANES_LOG == 2
#define SHUFFLE(a, b, F) __builtin_shufflevector(a, b, F(0), F(1), F(2), F(3))
#else
#define SHUFFLE(a, b, F) __builtin_shufflevector(a, b, F(0), F(1))
#endif
#define FIRST(c, s) (((c) & (s)) ? ((c) - (s) + LANES) : (c))
#define SECOND(c, s) (((c) & (s)) ? ((c) + LANES) : ((c) + (s)))
#define FIRST1(c) FIRST(c, 1)
#define FIRST2(c) FIRST(c, 2)
#define FIRST4(c) FIRST(c, 4)
#define FIRST8(c) FIRST(c, 8)
#define SECOND1(c) SECOND(c, 1)
#define SECOND2(c) SECOND(c, 2)
#define SECOND4(c) SECOND(c, 4)
#define SECOND8(c) SECOND(c, 8)
#define EXCHANGE(s) \
    UNROLL for (int r = 0; r < LANES; r++) if (!(r & s)) { \
        vec a = t[r], b = t[r + s]; \
        t[r] = SHUFFLE(a, b, FIRST##s); \
        t[r + s] = SHUFFLE(a, b, SECOND##s); \
    }

INLINE void transpose_square(vec *t) {
    EXCHANGE(1)
#if LANES_LOG >= 2
    EXCHANGE(2)
#endif
#if LANES_LOG >= 3
    EXCHANGE(4)
#endif
#if LANES_LOG >= 4
    EXCHANGE(8)
#endif
}

/* The same for rn x cn numbers in memory; `wide_read` and `wide_write`: whole vectors may be read, and written. */
INLINE void transpose_block(const real *from, int64_t from_row, real *to, int64_t to_row, int rn, int cn,
                            const int wide_read, const int wide_write) {
    vec t[LANES];
    UNROLL for (int r = 0; r < LANES; r++) {
        t[r] = all((real)0);
        if (r < rn && wide_read) t[r] = load(from + r * from_row);
        else if (r < rn) memcpy(&t[r], from + r * from_row, (size_t)cn * sizeof(real));
    }
    transpose_square(t);
    UNROLL for (int c = 0; c < LANES; c++) {
        if (c < cn && wide_write) store(to + c * to_row, t[c]);
        else if (c < cn) memcpy(to + c * to_row, &t[c], (size_t)rn * sizeof(real));
    }
}

/* Functions of their own, so that the addresses of 16 rows are not kept from one block to the next. */
__attribute__((noinline)) static void transpose_whole(const real *from, int64_t from_row, real *to, int64_t to_row) {
    transpose_block(from, from_row, to, to_row, LANES, LANES, 1, 1);
}

__attribute__((noinline)) static void transpose_edge(const real *from, int64_t from_row, real *to, int64_t to_row, int rn,
                                                     int cn, int wide_read, int wide_write) {
    if (wide_read && wide_write) transpose_block(from, from_row, to, to_row, rn, cn, 1, 1);
    else transpose_block(from, from_row, to, to_row, rn, cn, wide_read, wide_write);
}

/* to[c to_row + r] = from[r from_row + c] for r < rows, c < columns. Where `from_padded`, whole vectors may be read at
 * the end of its rows; where `to_padded`, whole vectors may be written there, and the padding becomes 0. At the end of
 * rows without padding the last whole vector is taken once more. */
static void transpose(const real *from, int64_t from_row, int rows, int columns, real *to, int64_t to_row,
                      int from_padded, int to_padded) {
    if (columns <= 2 || rows <= 2) {
        for (int c = 0; c < columns; c++) {
            for (int r = 0; r < rows; r++) to[c * to_row + r] = from[r * from_row + c];
            if (to_padded)
                for (int r = rows; r < round_up(rows); r++) to[c * to_row + r] = 0;
        }
        return;
    }
    for (int at = 0; at < rows; at += LANES) {
        int r0 = at, rn = rows - at < LANES ? rows - at : LANES;
        if (rn < LANES && !to_padded && rows >= LANES) r0 = rows - LANES, rn = LANES;
        for (int start = 0; start < columns; start += LANES) {
            int c0 = start, cn = columns - start < LANES ? columns - start : LANES;
            if (cn < LANES && !from_padded && columns >= LANES) c0 = columns - LANES, cn = LANES;
            const real *corner = from + r0 * from_row + c0;
            real *into = to + c0 * to_row + r0;
            const int wide_read = cn == LANES || from_padded, wide_write = rn == LANES || to_padded;
            if (rn == LANES && cn == LANES) transpose_whole(corner, from_row, into, to_row);
            else transpose_edge(corner, from_row, into, to_row, rn, cn, wide_read, wide_write);
        }
    }
}

#endif
