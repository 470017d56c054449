/* Gradients behind a max pooling: of every window one place has one, and the others have none.
 *
 * So the sums of `features.h` are taken over the windows instead of the places. That of a kernel runs over the samples,
 * then over the rows and columns of windows. That of an image is, for each place of the kernel in order, a sum over the
 * outputs, which leaves out those that are 0.
 */
#ifndef FEDRAY_POOLED_H
#define FEDRAY_POOLED_H

#define MOST_PART 8 /* vectors of a row of a kernel that are summed at once */

/* to(r, v) += sum over the windows of value x(at)(r, v), as one chain that begins at `to`. */
INLINE void sum_images(const real *x, int64_t x_row, const real *value, const whole *at, int windows, real *to,
                       int64_t to_row, const int rows, const int vectors) {
    vec sum[5][MOST_PART];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = load(to + r * to_row + v * LANES);
    for (int n = 0; n < windows * LANES; n += LANES) {
        const real *from = x + at[n];
        const vec g = all(value[n]);
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < vectors; v++)
                sum[r][v] = FMA(g, load(from + r * x_row + v * LANES), sum[r][v]);
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) store(to + r * to_row + v * LANES, sum[r][v]);
}

/* to(r, v) += (sum over a list of value kernel(channel)(r, v)); of the last vector only the first `left` numbers. */
INLINE void sum_kernels(const real *kernel, int64_t kernel_row, int strip, const real *value, const int32_t *channel,
                        int count, real *to, int64_t to_row, int left, const int rows, const int vectors) {
    vec sum[5][MOST_PART];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = all((real)0);
    for (int n = 0; n < count; n++) {
        const real *from = kernel + channel[n] * kernel_row;
        const vec g = all(value[n]);
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < vectors; v++)
                sum[r][v] = FMA(g, load(from + (int64_t)r * strip + v * LANES), sum[r][v]);
    }
    const ivec last = below_count(left);
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) {
            real *place = to + r * to_row + v * LANES;
            store(place, load(place) + (v + 1 < vectors ? sum[r][v] : choose(last, sum[r][v], all((real)0))));
        }
}

/* Rows and vectors that are summed at once, in registers: F is called with constants. */
#define PART(F, rows, vectors) \
    switch ((rows) * 16 + (vectors)) { \
    case 0x51: F(5, 1); break; case 0x52: F(5, 2); break; \
    case 0x31: F(3, 1); break; case 0x32: F(3, 2); break; case 0x33: F(3, 3); break; case 0x34: F(3, 4); break; \
    case 0x21: F(2, 1); break; case 0x22: F(2, 2); break; case 0x23: F(2, 3); break; case 0x24: F(2, 4); break; \
    case 0x25: F(2, 5); break; case 0x26: F(2, 6); break; case 0x27: F(2, 7); break; \
    case 0x11: F(1, 1); break; case 0x12: F(1, 2); break; case 0x13: F(1, 3); break; case 0x14: F(1, 4); break; \
    case 0x15: F(1, 5); break; case 0x16: F(1, 6); break; case 0x17: F(1, 7); break; default: F(1, 8); break; \
    }

INLINE int part_rows(int left, int vectors) { /* one of those that PART has */
    const int most = vectors <= 2 ? 5 : vectors <= 4 ? 3 : vectors <= 7 ? 2 : 1;
    const int rows = left < most ? left : most;
    return rows == 4 ? 3 : rows;
}

/* Gradients behind the activation of all windows, and where in the image below each has its place; adds that of the bias. */
INLINE void find_window_gradients(const Stage *s, const FeaturePlaces *p, int k, int b, const real *g, const real *h,
                                  int64_t g_row, real *bias, const int first, const int activation) {
    const int row = p->row[k], width = (s->width + 2 * s->padding_w) * s->channels;
    const int64_t windows = (int64_t)p->end_h[k] * p->end_w[k];
    const int8_t *place = p->place[k] + b * windows * row;
    const real *kept = first ? p->kept[k] + b * p->kept_size[k] : 0;
    for (int c = 0; c < row; c += LANES) {
        const ivec real_ones = below_count(s->out - c);
        vec sum = load(bias + c);
        real *value = p->value + c * windows;
        whole *at = p->below_at + c * windows;
        for (int y = 0; y < p->end_h[k]; y++)
            for (int x = 0; x < p->end_w[k]; x++, value += LANES, at += LANES) {
                const ivec where = __builtin_convertvector(
                    *(const bytes *)(place + ((int64_t)y * p->end_w[k] + x) * row + c), ivec);
                const int64_t there = y * g_row + (int64_t)x * s->out + c;
                vec v = load(g + there), from = all((real)0);
                if (h && !first) v = deactivate(v, load(h + there), activation);
                ivec to = {0};
                for (int n = 0, i = 0; i < s->pool_h; i++)
                    for (int j = 0; j < s->pool_w; j++, n++) {
                        to = ((where == n) & (i * width + j * s->channels)) | to;
                        if (first) {
                            const int64_t in = (int64_t)(y * s->pool_h + i) * p->out_w[k] + x * s->pool_w + j;
                            from = choose(where == n, load(kept + in * row + c), from);
                        }
                    }
                if (first) v = deactivate(v, from, activation);
                v = choose(real_ones, v, all((real)0));
                sum = sum + v;
                store(value, v);
                *(ivec *)at = to + (y * s->pool_h * width + x * s->pool_w * s->channels);
            }
        store(bias + c, sum);
    }
}

/* Adds the gradient of a kernel, [out][kernel row], from sample b. */
static void add_pooled_gradient(const Stage *s, const FeaturePlaces *p, int k, int b) {
    const int vectors = p->in_row[k] / LANES, parts = (vectors + MOST_PART - 1) / MOST_PART;
    const int windows = p->end_h[k] * p->end_w[k];
    const int64_t width = (int64_t)(s->width + 2 * s->padding_w) * s->channels;
    for (int c = 0; c < s->out; c++) {
        const int64_t begin = (int64_t)(c / LANES) * windows * LANES + c % LANES;
        for (int i = 0, rows; i < s->kernel_h; i += rows) {
            rows = part_rows(s->kernel_h - i, (vectors + parts - 1) / parts);
            for (int v = 0, part = 0, n; part < parts; part++, v += n) {
                n = (vectors - v) / (parts - part);
                const real *x = p->in[k] + b * p->in_size[k] + i * width + v * LANES;
                real *to = p->summed[k] + ((int64_t)c * s->kernel_h + i) * p->in_row[k] + v * LANES;
#define IMAGES(rows, vectors) \
    sum_images(x, width, p->value + begin, p->below_at + begin, windows, to, p->in_row[k], rows, vectors)
                PART(IMAGES, rows, n)
            }
        }
    }
}

/* The gradient of the image below from one place of the outputs: that of the channels of a list. */
static void add_place(const Stage *s, const FeaturePlaces *p, int k, const real *value, const int32_t *channel, int count,
                      real *to) {
    const int strip = s->kernel_w * s->channels, vectors = round_up(strip) / LANES;
    const int parts = (vectors + MOST_PART - 1) / MOST_PART;
    const int64_t width = (int64_t)(s->width + 2 * s->padding_w) * s->channels, row = p->turned_row[k];
    for (int i = 0, rows; i < s->kernel_h; i += rows) {
        rows = part_rows(s->kernel_h - i, (vectors + parts - 1) / parts);
        for (int v = 0, part = 0, n; part < parts; part++, v += n) {
            n = (vectors - v) / (parts - part);
            const real *kernel = p->turned[k] + (int64_t)i * strip + v * LANES;
            real *place = to + i * width + v * LANES;
            const int left = strip - (v + n - 1) * LANES;
#define KERNELS(rows, vectors) sum_kernels(kernel, row, strip, value, channel, count, place, width, left, rows, vectors)
            PART(KERNELS, rows, n)
        }
    }
}

/* The gradient of the image of stage k, `to`. A row of windows is sorted by places first. */
static void find_pooled_image_gradient(const Stage *s, const FeaturePlaces *p, int k, int b, real *to) {
    const int row = p->row[k], out = s->out, out_w = p->out_w[k], end_w = p->end_w[k];
    const int64_t width = (int64_t)(s->width + 2 * s->padding_w) * s->channels, windows = (int64_t)p->end_h[k] * end_w;
    const int8_t *place = p->place[k] + b * windows * row;
    int32_t jump[128];
    for (int n = 0; n < s->pool_h * s->pool_w; n++) jump[n] = n / s->pool_w * out_w + n % s->pool_w;
    memset(to, 0, (size_t)p->in_size[k] * sizeof(real));
    for (int y = 0; y < p->end_h[k]; y++) {
        memset(p->count, 0, sizeof(int32_t) * (size_t)s->pool_h * (size_t)out_w);
        for (int x = 0; x < end_w; x++)
            for (int c = 0; c < out; c++) { /* what is 0 is overwritten by the next one */
                const int64_t window = (int64_t)y * end_w + x;
                const real value = p->value[(c / LANES * windows + window) * LANES + c % LANES];
                const int32_t at = jump[place[window * row + c]] + x * s->pool_w, n = p->count[at];
                p->listed[(int64_t)at * out + n] = value;
                p->channel[(int64_t)at * out + n] = c;
                p->count[at] = n + (value != 0);
            }
        for (int i = 0; i < s->pool_h; i++)
            for (int x = 0; x < end_w * s->pool_w; x++) {
                const int64_t at = i * out_w + x, from = at * out;
                real *corner = to + (y * s->pool_h + i) * width + (int64_t)x * s->channels;
                if (p->count[at]) add_place(s, p, k, p->listed + from, p->channel + from, p->count[at], corner);
            }
    }
}

#endif
