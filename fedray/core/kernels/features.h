/* Convolutions, poolings and activations in front of the linear layers, sample after sample.
 *
 * An activation lies as [height][width][channels], with a border of zeros where the next convolution pads its inputs.
 * So the numbers under one row of a kernel lie side by side, and a convolution is a product whose left factor is read
 * from overlapping places: nothing is copied. A kernel lies as [kernel height][kernel width][inputs][outputs], its rows
 * padded to whole vectors, with the bias as the row behind it. Sums run over the samples, then over rows and columns of
 * the image; those over the numbers of a kernel over its height, width and inputs. The gradient of an activation is, for
 * each place of the kernel in order, a sum over the outputs.
 */
#ifndef FEDRAY_FEATURES_H
#define FEDRAY_FEATURES_H

typedef struct {
    int row[MOST_STAGES], in_row[MOST_STAGES], turned_row[MOST_STAGES]; /* padded rows: outputs, kernel row, whole kernel */
    int out_h[MOST_STAGES], out_w[MOST_STAGES], end_h[MOST_STAGES], end_w[MOST_STAGES]; /* before and after the pooling */
    int64_t at[MOST_STAGES], size, in_size[MOST_STAGES], kept_size[MOST_STAGES];
    real *in[MOST_STAGES], *kept[MOST_STAGES]; /* of all samples; kept: activations in front of a pooling */
    int8_t *place[MOST_STAGES];                /* of all samples: where in its window each maximum was */
    real *turned[MOST_STAGES], *summed[MOST_STAGES]; /* kernels [out][rest]; their gradients so, where sums are shorter */
    real *z, *patch, *below[2], *raw, *no_bias;
    real *value, *listed; /* behind a max pooling (pooled.h): gradients by windows; those of a row of windows by places */
    whole *below_at;          /* where the kernel of each window's maximum lies in the stage's input */
    int32_t *channel, *count; /* whose number each listed one is, and how many a place has */
} FeaturePlaces;

typedef int8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
#define CACHED 8192 /* numbers that stay in the first cache beside others */
enum { NO_POOL, MAX_POOL, AVERAGE_POOL };

/* Whether less than half of the places have a gradient: then sums over the windows are shorter than products of tiles. */
INLINE int is_sparse(const Stage *s) { return s->pool == MAX_POOL && s->pool_h * s->pool_w > 2; }

INLINE int last_activation(const Stage *s) { return s->pool && s->activation_first ? LINEAR : s->activation; }

INLINE int is_summed_turned(const FeaturePlaces *p, const Stage *s, int k) { /* fewer multiplications, the same sums */
    return k && (int64_t)p->in_row[k] * s->out < (int64_t)s->kernel_w * s->channels * p->row[k];
}

/* Sizes and places; returns how many numbers of a lane's vectors the kernels take. */
static int64_t lay_out_features(const Stage *stage, int stages, int batch, FeaturePlaces *p, int64_t *used, real *base) {
    int64_t most_z = 0, most_patch = 0, most_in = 0, most_row = 0, most_windows = 0, most_listed = 0, most_places = 0;
    memset(p, 0, sizeof *p);
    for (int k = 0; k < stages; k++) {
        const Stage *s = stage + k;
        const int height = s->height + 2 * s->padding_h, width = s->width + 2 * s->padding_w;
        const int depth = s->kernel_h * s->kernel_w * s->channels;
        p->row[k] = round_up(s->out);
        p->in_row[k] = round_up(s->kernel_w * s->channels);
        p->turned_row[k] = round_up(depth);
        p->out_h[k] = height - s->kernel_h + 1, p->out_w[k] = width - s->kernel_w + 1;
        p->end_h[k] = s->pool ? p->out_h[k] / s->pool_h : p->out_h[k];
        p->end_w[k] = s->pool ? p->out_w[k] / s->pool_w : p->out_w[k];
        p->at[k] = p->size;
        p->size += (int64_t)(depth + s->bias) * p->row[k];
        p->in_size[k] = ((int64_t)height * width * s->channels + 5 * LANES) / LANES * LANES; /* whole vectors are read */
        const int64_t z = (int64_t)p->out_h[k] * p->out_w[k] * p->row[k], patch = (int64_t)p->out_w[k] * p->turned_row[k];
        most_z = z > most_z ? z : most_z;
        most_row = p->row[k] > most_row ? p->row[k] : most_row;
        if (is_sparse(s)) {
            const int64_t windows = (int64_t)p->end_h[k] * p->end_w[k] * p->row[k];
            const int64_t places = (int64_t)s->pool_h * p->out_w[k];
            most_windows = windows > most_windows ? windows : most_windows;
            most_listed = places * s->out > most_listed ? places * s->out : most_listed;
            most_places = places > most_places ? places : most_places;
        }
        if (k && patch > most_patch) most_patch = patch;
        if (k && p->in_size[k] > most_in) most_in = p->in_size[k];
        p->in[k] = take(used, base, p->in_size[k] * batch);
        if (s->pool && s->activation_first && s->activation) {
            p->kept_size[k] = z;
            p->kept[k] = take(used, base, z * batch);
        }
        if (s->pool == MAX_POOL)
            p->place[k] = (int8_t *)
                take(used, base, (int64_t)p->end_h[k] * p->end_w[k] * p->row[k] * batch / (int)sizeof(real) + LANES);
        if (k) p->turned[k] = take(used, base, (int64_t)s->out * p->turned_row[k] + LANES); /* whole vectors are read */
        p->summed[k] = take(used, base, (int64_t)s->out * s->kernel_h * p->in_row[k]);
    }
    p->z = take(used, base, most_z + LANES);
    p->patch = take(used, base, most_patch + LANES);
    p->no_bias = take(used, base, most_row);
    p->below[0] = take(used, base, most_in);
    p->below[1] = take(used, base, most_in);
    p->raw = take(used, base, (int64_t)stage[0].channels * stage[0].height * stage[0].width + LANES);
    p->value = take(used, base, most_windows);
    p->listed = take(used, base, most_listed);
    p->below_at = (whole *)take(used, base, most_windows);
    p->channel = (int32_t *)take(used, base, most_listed);
    p->count = (int32_t *)take(used, base, most_places);
    return p->size;
}

/* Kernels of the layout, [out][in][height][width] and biases, into a padded vector. */
static const real *pack_features(const Stage *stage, int stages, const FeaturePlaces *p, const real *row, real *to) {
    for (int k = 0; k < stages; k++) {
        const Stage *s = stage + k;
        const int area = s->kernel_h * s->kernel_w, in = s->channels;
        for (int c = 0; c < in; c++)
            transpose(row + c * area, (int64_t)in * area, s->out, area, to + p->at[k] + c * p->row[k],
                      (int64_t)in * p->row[k], 0, 1);
        row += (int64_t)s->out * in * area;
        if (!s->bias) continue;
        real *bias = to + p->at[k] + (int64_t)in * area * p->row[k];
        for (int o = 0; o < p->row[k]; o++) bias[o] = o < s->out ? row[o] : 0;
        row += s->out;
    }
    return row;
}

static real *unpack_features(const Stage *stage, int stages, const FeaturePlaces *p, const real *from, real *row) {
    for (int k = 0; k < stages; k++) {
        const Stage *s = stage + k;
        const int area = s->kernel_h * s->kernel_w, in = s->channels;
        for (int c = 0; c < in; c++)
            transpose(from + p->at[k] + c * p->row[k], (int64_t)in * p->row[k], area, s->out, row + c * area,
                      (int64_t)in * area, 1, 0);
        row += (int64_t)s->out * in * area;
        if (!s->bias) continue;
        memcpy(row, from + p->at[k] + (int64_t)in * area * p->row[k], (size_t)s->out * sizeof(real));
        row += s->out;
    }
    return row;
}

/* Zeros around the image of stage k that begins at `image`; what was written beyond a row of it is overwritten. */
static void clear_border(const Stage *s, real *image) {
    const int64_t width = (int64_t)(s->width + 2 * s->padding_w) * s->channels, side = (int64_t)s->padding_w * s->channels;
    if (!s->padding_h && !s->padding_w) return;
    memset(image, 0, (size_t)(s->padding_h * width + side) * sizeof(real));
    real *row = image + s->padding_h * width;
    for (int y = 0; y < s->height; y++, row += width)
        memset(row + width - side, 0, (size_t)(y + 1 < s->height ? 2 * side : side) * sizeof(real));
    memset(row, 0, (size_t)(s->padding_h * width) * sizeof(real));
}

/* Sample b, which lies in `raw` with its channels first. */
static void place_image(const Stage *s, const FeaturePlaces *p, int b) {
    real *image = p->in[0] + b * p->in_size[0];
    const int channels = s->channels, area = s->height * s->width;
    for (int y = 0; y < s->height; y++) {
        real *to = image + ((int64_t)(y + s->padding_h) * (s->width + 2 * s->padding_w) + s->padding_w) * channels;
        const real *from = p->raw + (int64_t)y * s->width;
        if (channels == 1) memcpy(to, from, (size_t)s->width * sizeof(real));
        else
            for (int x = 0; x < s->width; x++)
                for (int c = 0; c < channels; c++) to[x * channels + c] = from[x + (int64_t)c * area];
    }
    clear_border(s, image);
}

INLINE vec activate(vec v, const int activation) {
    return activation == RELU ? choose(v < (real)0, all((real)0), v) : activation == TANH ? tanh_of(v) : v;
}

/* A gradient times the activation's derivative, from the activated value h. */
INLINE vec deactivate(vec g, vec h, const int activation) {
    if (activation == RELU) return choose(h <= (real)0, all((real)0), g);
    return activation == TANH ? g * FMA(-h, h, all((real)1)) : g;
}

#include "pooled.h"

/* z, the outputs of a convolution, through activation and pooling to where the next layer reads them. */
INLINE void finish_image(const Stage *s, int row, int out_w, int end_h, int end_w, real *z, int8_t *place, real *to,
                         int64_t to_row, const int pool, const int first, const int activation) {
    const int windows_h = pool ? s->pool_h : 1, windows_w = pool ? s->pool_w : 1, out = s->out;
    for (int y = 0; y < end_h; y++)
        for (int x = 0; x < end_w; x++)
            for (int c = 0; c < row; c += LANES) {
                real *window = z + ((int64_t)(y * windows_h) * out_w + x * windows_w) * row + c;
                vec best = load(window);
                ivec where = {0};
                for (int i = 0, n = 0; i < windows_h; i++)
                    for (int j = 0; j < windows_w; j++, n++) {
                        if (!n) continue;
                        vec v = load(window + ((int64_t)i * out_w + j) * row);
                        if (pool == MAX_POOL) {
                            ivec more = (v > best) | (v != v);
                            best = choose(more, v, best);
                            where = (more & n) | (~more & where);
                        } else best = best + v;
                    }
                if (pool == AVERAGE_POOL) best = best / (real)(windows_h * windows_w);
                if (!first) best = activate(best, activation);
                store(to + y * to_row + (int64_t)x * out + c, best);
                if (pool == MAX_POOL)
                    *(bytes *)(place + ((int64_t)y * end_w + x) * row + c) = __builtin_convertvector(where, bytes);
            }
}

/* Stages 0 to the last of sample b; the outputs go to `to`, behind one another. */
static void run_features(const Stage *stage, int stages, const FeaturePlaces *p, const real *w, int b, real *to) {
    for (int k = 0; k < stages; k++) {
        const Stage *s = stage + k;
        const int depth = s->kernel_w * s->channels, row = p->row[k], width = s->width + 2 * s->padding_w;
        real *z = p->kept[k] ? p->kept[k] + b * p->kept_size[k] : p->z;
        const real *kernel = w + p->at[k];
        const int64_t whole = (int64_t)s->kernel_h * depth * row; /* a large kernel takes turns in the cache, row by row */
        const int part = whole > CACHED ? 1 : s->kernel_h;
        for (int first_row = 0; first_row < s->kernel_h; first_row += part)
            for (int y = 0; y < p->out_h[k]; y++) {
                Product task = {
                    .a = p->in[k] + b * p->in_size[k] + (int64_t)(y + first_row) * width * s->channels,
                    .a_row = s->channels, .a_outer = (int64_t)width * s->channels,
                    .b = kernel + (int64_t)first_row * depth * row, .b_row = row, .b_outer = (int64_t)depth * row,
                    .c = z + (int64_t)y * p->out_w[k] * row, .c_row = row, .rows = p->out_w[k], .columns = s->out,
                    .depth = depth, .outer = part, .start = s->bias ? kernel + whole : 0,
                };
                if (first_row) multiply_forward_more(&task);
                else multiply_forward(&task);
            }
        if (p->kept[k])
            for (int64_t i = 0; i < p->kept_size[k]; i += LANES) store(z + i, activate(load(z + i), s->activation));
        const Stage *next = k + 1 < stages ? s + 1 : 0;
        const int64_t to_row = (int64_t)(p->end_w[k] + (next ? 2 * next->padding_w : 0)) * s->out;
        real *image = next ? p->in[k + 1] + b * p->in_size[k + 1] : to;
        real *inside = next ? image + next->padding_h * to_row + (int64_t)next->padding_w * s->out : image;
        int8_t *place = p->place[k] ? p->place[k] + (int64_t)b * p->end_h[k] * p->end_w[k] * row : 0;
        const int first = p->kept[k] != 0;
#define FINISH(pool, first, activation) \
    finish_image(s, row, p->out_w[k], p->end_h[k], p->end_w[k], z, place, inside, to_row, pool, first, activation)
        if (s->pool == MAX_POOL && s->activation == RELU && !first) FINISH(MAX_POOL, 0, RELU);
        else if (s->pool == MAX_POOL) FINISH(MAX_POOL, first, s->activation);
        else if (s->pool == AVERAGE_POOL) FINISH(AVERAGE_POOL, first, s->activation);
        else if (s->activation == RELU) FINISH(NO_POOL, 0, RELU);
        else FINISH(NO_POOL, 0, s->activation);
        if (next) clear_border(next, image);
    }
}

/* The gradient behind stage k, `g`, back to the outputs of its convolution, [height][width][row]; adds that of the bias. */
INLINE void spread(const Stage *s, const FeaturePlaces *p, int k, int b, const real *g, const real *h, int64_t g_row,
                   real *bias, const int pool, const int first, const int activation) {
    const int row = p->row[k], windows_h = pool ? s->pool_h : 1, windows_w = pool ? s->pool_w : 1, out = s->out;
    const int64_t out_w = p->out_w[k];
    const int8_t *place = p->place[k] ? p->place[k] + (int64_t)b * p->end_h[k] * p->end_w[k] * row : 0;
    const real *kept = first ? p->kept[k] + b * p->kept_size[k] : 0;
    if (pool && (p->out_h[k] % windows_h || p->out_w[k] % windows_w))
        memset(p->z, 0, (size_t)(p->out_h[k] * out_w * row) * sizeof(real));
    for (int c = 0; c < row; c += LANES) {
        const ivec real_ones = below_count(out - c);
        vec sum = load(bias + c);
        for (int y = 0; y < p->end_h[k]; y++)
            for (int x = 0; x < p->end_w[k]; x++) {
                const int64_t at = y * g_row + (int64_t)x * out + c;
                vec v = load(g + at);
                if (h && !first) v = deactivate(v, load(h + at), activation);
                v = choose(real_ones, v, all((real)0));
                ivec where = {0};
                if (pool == MAX_POOL)
                    where = __builtin_convertvector(*(const bytes *)(place + ((int64_t)y * p->end_w[k] + x) * row + c), ivec);
                if (pool == AVERAGE_POOL && first) v = v / (real)(windows_h * windows_w);
                if (!first) sum = sum + v;
                if (pool == AVERAGE_POOL && !first) v = v / (real)(windows_h * windows_w);
                const int64_t window = ((int64_t)(y * windows_h) * out_w + x * windows_w) * row + c;
                for (int i = 0, n = 0; i < windows_h; i++)
                    for (int j = 0; j < windows_w; j++, n++) {
                        const int64_t to = window + (i * out_w + j) * row;
                        vec part = pool == MAX_POOL ? choose(where == n, v, all((real)0)) : v;
                        if (first) {
                            part = choose(real_ones, deactivate(part, load(kept + to), activation), all((real)0));
                            sum = sum + part;
                        }
                        store(p->z + to, part);
                    }
            }
        store(bias + c, sum);
    }
}

/* Adds the gradient of a kernel from sample b; `p->z` has that of the convolution's outputs. */
static void add_kernel_gradient(const Stage *s, const FeaturePlaces *p, int k, int b, real *gradient) {
    const int depth = s->kernel_w * s->channels, row = p->row[k], width = s->width + 2 * s->padding_w;
    const int64_t x_outer = (int64_t)width * s->channels, g_outer = (int64_t)p->out_w[k] * row;
    const int fitting = (int)(CACHED / g_outer), most = fitting ? fitting : 1; /* rows of the image in the cache */
    for (int top = 0; top < p->out_h[k]; top += most)
        for (int y = 0; y < s->kernel_h; y++) {
            const real *x = p->in[k] + b * p->in_size[k] + (y + top) * x_outer, *g = p->z + top * g_outer;
            Product task = {.depth = p->out_w[k], .outer = p->out_h[k] - top < most ? p->out_h[k] - top : most};
            if (is_summed_turned(p, s, k)) {
                task.a = g, task.a_row = row, task.a_outer = g_outer, task.rows = s->out;
                task.b = x, task.b_row = s->channels, task.b_outer = x_outer, task.columns = depth;
                task.c = p->summed[k] + (int64_t)y * p->in_row[k], task.c_row = (int64_t)s->kernel_h * p->in_row[k];
            } else {
                task.a = x, task.a_row = s->channels, task.a_outer = x_outer, task.rows = depth;
                task.b = g, task.b_row = row, task.b_outer = g_outer, task.columns = s->out;
                task.c = gradient + p->at[k] + (int64_t)y * depth * row, task.c_row = row;
            }
            add_gradient(&task);
        }
}

/* The gradient of the inputs of stage k, `to`, from that of its convolution's outputs. */
static void find_image_gradient(const Stage *s, const FeaturePlaces *p, int k, real *to) {
    const int width = s->width + 2 * s->padding_w, strip = s->kernel_w * s->channels;
    memset(to, 0, (size_t)p->in_size[k] * sizeof(real));
    for (int y = 0; y < p->out_h[k]; y++) {
        Product task = {
            .a = p->z + (int64_t)y * p->out_w[k] * p->row[k], .a_row = p->row[k], .b = p->turned[k],
            .b_row = p->turned_row[k], .c = p->patch, .c_row = p->turned_row[k], .rows = p->out_w[k],
            .columns = s->kernel_h * strip, .depth = s->out, .outer = 1,
        };
        multiply_backward(&task);
        for (int x = 0; x < p->out_w[k]; x++)
            for (int i = 0; i < s->kernel_h; i++) {
                real *place = to + ((int64_t)(y + i) * width + x) * s->channels;
                const real *from = p->patch + (int64_t)x * p->turned_row[k] + i * strip;
                int c = 0;
                for (; c + LANES <= strip; c += LANES) store(place + c, load(place + c) + load(from + c));
                if (c < strip)
                    store(place + c, load(place + c) + choose(below_count(strip - c), load(from + c), all((real)0)));
            }
    }
}

/* Gradients of all kernels, from those of the last stage's outputs: of each sample in `g`, `g_row` apart. */
static void descend_features(const Stage *stage, int stages, const FeaturePlaces *p, const real *w, real *gradient,
                             int rows, const real *g, int64_t g_row) {
    memset(gradient, 0, (size_t)p->size * sizeof(real));
    for (int k = 0; k < stages; k++) {
        const Stage *s = stage + k;
        const int depth = s->kernel_h * s->kernel_w * s->channels;
        memset(p->summed[k], 0, (size_t)s->out * s->kernel_h * p->in_row[k] * sizeof(real));
        if (k) transpose(w + p->at[k], p->row[k], depth, s->out, p->turned[k], p->turned_row[k], 1, 1);
    }
    for (int b = 0; b < rows; b++) {
        const real *above = g + b * g_row, *h = 0;
        int64_t above_row = (int64_t)p->end_w[stages - 1] * stage[stages - 1].out;
        for (int k = stages - 1; k >= 0; k--) {
            const Stage *s = stage + k;
            const int depth = s->kernel_h * s->kernel_w * s->channels, first = p->kept[k] != 0;
            real *bias = s->bias ? gradient + p->at[k] + (int64_t)depth * p->row[k] : p->no_bias;
#define FIND(first, activation) find_window_gradients(s, p, k, b, above, h, above_row, bias, first, activation)
#define SPREAD(pool, first, activation) spread(s, p, k, b, above, h, above_row, bias, pool, first, activation)
            const int sparse = is_sparse(s);
            if (sparse && s->activation == RELU && !first) FIND(0, RELU);
            else if (sparse) FIND(first, s->activation);
            else if (s->pool == MAX_POOL) SPREAD(MAX_POOL, first, s->activation);
            else if (s->pool == AVERAGE_POOL) SPREAD(AVERAGE_POOL, first, s->activation);
            else if (s->activation == RELU) SPREAD(NO_POOL, 0, RELU);
            else SPREAD(NO_POOL, 0, s->activation);
            if (sparse) add_pooled_gradient(s, p, k, b);
            else add_kernel_gradient(s, p, k, b, gradient);
            if (!k) break;
            real *below = p->below[k & 1];
            if (sparse) find_pooled_image_gradient(s, p, k, b, below);
            else find_image_gradient(s, p, k, below);
            const int64_t width = (int64_t)(s->width + 2 * s->padding_w) * s->channels;
            const int64_t inside = s->padding_h * width + (int64_t)s->padding_w * s->channels;
            above = below + inside, h = p->in[k] + b * p->in_size[k] + inside, above_row = width;
        }
    }
    for (int k = 0; k < stages; k++) {
        const Stage *s = stage + k;
        const int strip = s->kernel_w * s->channels;
        if (!is_sparse(s) && !is_summed_turned(p, s, k)) continue;
        for (int y = 0; y < s->kernel_h; y++)
            transpose(p->summed[k] + (int64_t)y * p->in_row[k], (int64_t)s->kernel_h * p->in_row[k], s->out, strip,
                      gradient + p->at[k] + (int64_t)y * strip * p->row[k], p->row[k], 1, 1);
    }
}

#endif
