/* Trains networks lane after lane: of each, the whole local training, with its weights in the cache.
 *
 * A weight lies as [in][out], its rows padded to whole vectors, and the bias is the row behind it; the inputs of a layer
 * get a one behind them. So one product computes a layer, and one the gradient of weight and bias together with the
 * step of plain SGD. All vectors of a lane (weights, moments, shift) have this form. The caller has checked every size;
 * row numbers and labels are checked here. `mlp.c` and `conv.c` include this file; with FEATURES defined the inputs of
 * the first linear layer are what convolutions put out (`features.h`), with the channels last.
 *
 * Where every step of plain SGD reads the same rows x, the weight w of the first layer moves in the span of x alone: with
 * the gradients g of its outputs z = x w, a step moves z by -rate (x x') g, and all of them w by -rate x' (sum of g).
 * That are products of rows x rows in the place of rows x inputs; such a lane is called still.
 */
#ifndef FEDRAY_LANE_H
#define FEDRAY_LANE_H

#include "keys.h"
#include "tile.h"

#define MOST_LAYERS 16
#define MOST_STAGES 8
#define NEAR (1 << 20)    /* bytes of data that stay in the cache by themselves */
#define MOST_FETCHED 1024 /* bytes of a sample; the processor sees by itself how a longer one goes on */
enum { CROSS_ENTROPY, HALF_MSE, MSE, GAUSSIAN_NLL, SOFT_CROSS_ENTROPY }; /* the last one's targets are probabilities */
enum { LINEAR, RELU, TANH };
enum { SGD, MOMENTUM, ADAM };
enum { FLOATS, BYTES, DOUBLES };
enum { FINE, BAD_ROW, BAD_LABEL };

#ifdef FEATURES
typedef struct { /* a convolution, what follows it, and the sizes of its inputs */
    int32_t channels, height, width, out, kernel_h, kernel_w, padding_h, padding_w, bias;
    int32_t activation, pool, pool_h, pool_w, activation_first; /* before the pooling */
} Stage;
#endif

typedef struct {
    /* the network */
    int32_t layers, objective, width[MOST_LAYERS + 1], activation[MOST_LAYERS], bias[MOST_LAYERS];
    /* the training */
    int32_t optimizer, batch, lanes, first_step, end_step, keeps_state;
    double momentum;
    const double *rate, *decay, *pull; /* of each lane, [W] */
    const double *step_rate;           /* of each step, [steps], for all lanes; NULL: `rate` */
    const int64_t *steps;              /* of each lane, [W] */
    int64_t d, start_row, anchor_row, offset_row; /* how far apart the rows lie; 0: all lanes have the same */
    int64_t gives_change;                         /* whether `final` gets the difference to `start` */
    const real *start, *anchor, *offset; /* [W, d]; anchor and offset may be NULL */
    real *final;                         /* [W, d] */
    double *loss;                        /* [W]; the sums of the steps are added */
    /* the data: what is read in steps first_step to end_step */
    int32_t x_kind, y_kind, targets, inputs; /* inputs: numbers in one */
    int32_t still_from; /* steps from which on a lane is still, where all its batches are full; 0: none is */
    int64_t x_rows, y_rows;
    const void *x, *y;                     /* [x_rows, width 0]; classes [y_rows] int64 or targets [y_rows, targets] */
    const int64_t *index;                  /* [steps, W, B] */
    const int64_t *first;                  /* where the labels of each lane begin in y, [W]; NULL means at 0 */
    const int64_t *world;                  /* row of the statistics of each lane, [W] */
    const float *shift, *scale;            /* of the inputs, [R, width 0]; NULL: as they are */
    const float *y_shift, *y_scale;        /* of the targets, [R, targets]; NULL: as they are */
    const real *weight;                    /* of each sample of a batch */
    int64_t weight_step, weight_lane, weight_sample; /* how far apart they lie */
    real *scratch, *state;                 /* of the sizes that `mlp_sizes` returns */
    const uint64_t *key;                   /* address of what each lane drops, [W]; NULL: nothing is dropped */
    double drop[MOST_LAYERS];              /* probability with which the inputs of each layer are dropped */
    int32_t drop_channels[MOST_LAYERS];    /* whether whole channels are, and not single inputs */
#ifdef FEATURES
    int32_t stages, unused_too; /* the convolutions before the linear layers, whose inputs are theirs */
    Stage stage[MOST_STAGES];
#endif
} LaneTask;

static real *take(int64_t *used, real *base, int64_t numbers) { /* aligned to whole vectors, as all sizes are */
    real *at = base ? base + *used : 0;
    *used += (numbers + LANES - 1) / LANES * LANES;
    return at;
}

#ifdef FEATURES
#include "features.h"
#define FIRST_BELOW 0 /* the lowest layer whose inputs need a gradient */
#else
#define FIRST_BELOW 1
#endif

typedef struct { /* one lane's places in memory */
    int row[MOST_LAYERS], input_row[MOST_LAYERS + 1]; /* padded lengths of rows of weights, and of inputs */
    int64_t at[MOST_LAYERS], size;                     /* where each weight begins in a vector, and its length */
    real *w, *first, *second, *shift;
    real *begin;        /* where training began */
    const real *packed; /* the row of the layout that `begin` holds */
    real *h[MOST_LAYERS + 1], *g[2], *turned, *gradient, *cost, *total, *weight;
    real *factor[MOST_LAYERS]; /* of the inputs of a layer that drops: 0, or what is kept is multiplied by; else NULL */
    int gram_row;
    real *gram, *z, *sum; /* of a still lane: x x', the outputs of the first layer, the sum of their gradients */
    int64_t *label;
    real *target;
    int64_t scratch;
#ifdef FEATURES
    FeaturePlaces features;
#endif
} Places;

static real *align(real *p) { return (real *)(((uintptr_t)p + 63) & ~(uintptr_t)63); }

/* Lays out the scratch memory, from `base` on, and the vectors of a lane. */
static Places lay_out(const LaneTask *t, real *base) {
    Places p = {.scratch = 0};
    int64_t widest = 0, turned = 0;
#ifdef FEATURES
    widest = round_up(t->width[0]);
    p.size = lay_out_features(t->stage, t->stages, t->batch, &p.features, &p.scratch, base);
#endif
    for (int k = 0; k < t->layers; k++) {
        p.row[k] = round_up(t->width[k + 1]);
        p.at[k] = p.size;
        p.size += (int64_t)(t->width[k] + t->bias[k]) * p.row[k];
        widest = p.row[k] > widest ? p.row[k] : widest;
        int64_t square = (int64_t)t->width[k + 1] * round_up(t->width[k]);
        if (k >= FIRST_BELOW) turned = square > turned ? square : turned;
    }
    for (int k = 0; k <= t->layers; k++) {
        p.input_row[k] = k < t->layers ? round_up(t->width[k] + 1) : round_up(t->width[k]);
        p.h[k] = take(&p.scratch, base, (int64_t)t->batch * p.input_row[k] + LANES); /* features write whole vectors */
    }
    for (int k = 0; k < t->layers; k++) {
        const int drops = t->key && t->drop[k] > 0;
        p.factor[k] = drops ? take(&p.scratch, base, (int64_t)t->batch * round_up(t->width[k])) : 0;
    }
    if (t->still_from) {
        const int64_t outputs = (int64_t)t->batch * p.row[0], square = (int64_t)(t->width[0] + 1) * round_up(t->batch);
        p.gram_row = round_up(t->batch);
        p.gram = take(&p.scratch, base, (int64_t)t->batch * p.gram_row);
        p.z = take(&p.scratch, base, outputs);
        p.sum = take(&p.scratch, base, outputs);
        turned = square > turned ? square : turned;
    }
    p.g[0] = take(&p.scratch, base, t->batch * widest);
    p.g[1] = take(&p.scratch, base, t->batch * widest);
    p.turned = take(&p.scratch, base, turned);
    p.gradient = take(&p.scratch, base, p.size);
    p.begin = take(&p.scratch, base, p.size);
    p.weight = take(&p.scratch, base, t->batch);
    p.cost = take(&p.scratch, base, t->batch);
    p.total = take(&p.scratch, base, t->batch);
    p.target = take(&p.scratch, base, (int64_t)t->batch * t->targets);
    p.label = (int64_t *)take(&p.scratch, base, (int64_t)t->batch * (int64_t)(8 / sizeof(real)));
    return p;
}

static int moments(const LaneTask *t) { return t->optimizer == ADAM ? 2 : t->optimizer == MOMENTUM ? 1 : 0; }

/* Numbers of scratch memory, and of the state of all lanes (of one lane, unless it is kept between calls). */
EXPORT void NAME(KERNEL_SIZES)(const LaneTask *t, int64_t *sizes) {
    Places p = lay_out(t, 0);
    sizes[0] = p.scratch + 64;
    sizes[1] = p.size * (2 + moments(t)) * (t->keeps_state ? t->lanes : 1) + 64;
}

/* The inputs of the first linear layer have the channels last here, and first in the layout. */
#ifdef FEATURES
#define GROUPS(t, k) ((k) ? 1 : (t)->stage[(t)->stages - 1].out)
#else
#define GROUPS(t, k) 1
#endif

/* Copies a row of the layout, weights [out][in] and biases, into a padded vector. */
static void pack(const LaneTask *t, const Places *p, const real *row, real *to) {
#ifdef FEATURES
    row = pack_features(t->stage, t->stages, &p->features, row, to);
#endif
    for (int k = 0; k < t->layers; k++) {
        const int in = t->width[k], out = t->width[k + 1], groups = GROUPS(t, k), each = in / groups;
        for (int c = 0; c < groups; c++)
            transpose(row + (int64_t)c * each, in, out, each, to + p->at[k] + (int64_t)c * p->row[k],
                      (int64_t)groups * p->row[k], 0, 1);
        row += (int64_t)in * out;
        if (t->bias[k]) {
            real *bias = to + p->at[k] + (int64_t)in * p->row[k];
            for (int o = 0; o < p->row[k]; o++) bias[o] = o < out ? row[o] : 0;
            row += out;
        }
    }
}

static void unpack(const LaneTask *t, const Places *p, const real *from, real *row) {
#ifdef FEATURES
    row = unpack_features(t->stage, t->stages, &p->features, from, row);
#endif
    for (int k = 0; k < t->layers; k++) {
        const int in = t->width[k], out = t->width[k + 1], groups = GROUPS(t, k), each = in / groups;
        for (int c = 0; c < groups; c++)
            transpose(from + p->at[k] + (int64_t)c * p->row[k], (int64_t)groups * p->row[k], each, out,
                      row + (int64_t)c * each, in, 1, 0);
        row += (int64_t)in * out;
        if (t->bias[k]) {
            memcpy(row, from + p->at[k] + (int64_t)in * p->row[k], (size_t)out * sizeof(real));
            row += out;
        }
    }
}

/* Packs where a lane begins, unless `begin` holds it: lanes of one model begin alike. */
static void pack_start(const LaneTask *t, Places *p, int64_t lane) {
    const real *row = t->start + lane * t->start_row;
    if (row == p->packed) return;
    pack(t, p, row, p->begin);
    p->packed = row;
}

/* The constant term of the local gradient, offset - pull anchor, as a padded vector. */
static void make_shift(const LaneTask *t, const Places *p, int64_t lane) {
    const real pull = (real)t->pull[lane];
    memset(p->shift, 0, (size_t)p->size * sizeof(real));
    if (t->offset) pack(t, p, t->offset + lane * t->offset_row, p->shift);
    if (pull == 0) return;
    const real *anchor = p->w;
    if (t->anchor) {
        pack(t, p, t->anchor + lane * t->anchor_row, p->gradient);
        anchor = p->gradient;
    }
    for (int64_t i = 0; i < p->size; i += LANES)
        store(p->shift + i, FMA(all(-pull), load(anchor + i), load(p->shift + i)));
}

INLINE void standardize(real *to, int n, const void *x, int64_t row, int kind, const float *shift, const float *scale) {
    const float *f = (const float *)x + row * n;
    const uint8_t *b = (const uint8_t *)x + row * n;
    const double *d = (const double *)x + row * n;
    if (kind == DOUBLES)
        for (int i = 0; i < n; i++) to[i] = (real)d[i];
    else if (kind == FLOATS && shift)
        for (int i = 0; i < n; i++) to[i] = (real)((f[i] - shift[i]) / scale[i]);
    else if (kind == FLOATS)
        for (int i = 0; i < n; i++) to[i] = (real)f[i];
    else if (shift)
        for (int i = 0; i < n; i++) to[i] = (real)(((float)b[i] - shift[i]) / scale[i]);
    else
        for (int i = 0; i < n; i++) to[i] = (real)b[i];
}

/* Sample i of the data, as sample b of a batch. */
INLINE void read_sample(const LaneTask *t, const Places *p, int b, int64_t i, int64_t world) {
    const int in = t->inputs;
#ifdef FEATURES
    real *to = p->features.raw;
#else
    real *to = p->h[0] + (int64_t)b * p->input_row[0];
#endif
    standardize(to, in, t->x, i, t->x_kind, t->shift ? t->shift + world * in : 0, t->scale ? t->scale + world * in : 0);
#ifdef FEATURES
    place_image(t->stage, &p->features, b);
#else
    to[in] = 1;
#endif
}

/* Reads the samples of a step; returns how many have a weight, or a negative error. */
static int gather(const LaneTask *t, const Places *p, int step, int64_t lane) {
    const int batch = t->batch;
    const int64_t place = ((int64_t)(step - t->first_step) * t->lanes + lane) * batch;
    const real *w = t->weight + (int64_t)(step - t->first_step) * t->weight_step + lane * t->weight_lane;
    const int64_t world = t->world ? t->world[lane] : 0, first = t->first ? t->first[lane] : 0;
    int rows = batch;
    while (rows && w[(rows - 1) * t->weight_sample] == 0) rows--;
    for (int b = 0; b < rows; b++) {
        const int64_t i = t->index[place + b];
        if (i < 0 || i >= t->x_rows || i + first < 0 || i + first >= t->y_rows) return -BAD_ROW;
        p->weight[b] = w[b * t->weight_sample];
        read_sample(t, p, b, i, world);
        if (t->objective == CROSS_ENTROPY) {
            p->label[b] = ((const int64_t *)t->y)[i + first];
            if (p->label[b] < 0 || p->label[b] >= t->width[t->layers]) return -BAD_LABEL;
        } else {
            const int q = t->targets;
            standardize(p->target + (int64_t)b * q, q, t->y, i + first, t->y_kind,
                        t->y_shift ? t->y_shift + world * q : 0, t->y_scale ? t->y_scale + world * q : 0);
        }
    }
    return rows;
}

/* Asks for the samples of a lane's next step, or of the next lane's first one, so that they are in the cache by then. */
static void fetch_ahead(const LaneTask *t, int step, int64_t lane) {
    static const int64_t size[] = {[FLOATS] = 4, [BYTES] = 1, [DOUBLES] = 8};
    const int64_t bytes = t->inputs * size[t->x_kind];
    if (bytes * t->x_rows < NEAR) return;
    if (step + 1 < t->end_step && step + 1 < t->steps[lane]) step++;
    else if (lane + 1 < t->lanes) step = t->first_step, lane++;
    else return;
    const int64_t *index = t->index + ((int64_t)(step - t->first_step) * t->lanes + lane) * t->batch;
    const int64_t first = t->first ? t->first[lane] : 0;
    for (int b = 0; b < t->batch; b++) {
        const int64_t i = index[b];
        if (i < 0 || i >= t->x_rows || i + first < 0 || i + first >= t->y_rows) continue;
        const char *row = (const char *)t->x + i * bytes, *line = (const char *)((uintptr_t)row & ~(uintptr_t)63);
        for (; line < row + bytes && line < row + MOST_FETCHED; line += 64) __builtin_prefetch(line);
        if (t->objective == CROSS_ENTROPY) __builtin_prefetch((const int64_t *)t->y + i + first);
    }
}

/* Gradient of the outputs of each sample and its loss, from outputs z; sums over the classes in index order. */
static void cross_entropy(const Places *p, const real *z, real *g, int row, int classes, int rows) {
    for (int b = 0; b < rows; b++, z += row, g += row) {
        real most = z[0], total = 0;
        for (int c = 1; c < classes; c++) most = z[c] <= most ? most : z[c]; /* NaN becomes the largest, and stays */
        for (int c = 0; c < row; c += LANES)
            store(g + c, choose(below_count(classes - c), exp_of(load(z + c) - most), all((real)0)));
        for (int c = 0; c < classes; c++) total += g[c];
        for (int c = 0; c < row; c += LANES) { /* whole vectors: a number stored by itself would hold up their next load */
            const int label = (int)p->label[b] - c;
            const ivec here = below_count(label + 1) & ~below_count(label);
            store(g + c, (load(g + c) / total - choose(here, all((real)1), all((real)0))) * p->weight[b]);
        }
        p->total[b] = total;
        p->cost[b] = z[p->label[b]] - most;
    }
    for (int b = 0; b < rows; b += LANES) store(p->cost + b, log_of(load(p->total + b)) - load(p->cost + b));
}

/* `cross_entropy` where the target of a sample is a probability for each class. */
static void soft_cross_entropy(const Places *p, const real *z, real *g, int row, int classes, int rows) {
    const real *y = p->target;
    for (int b = 0; b < rows; b++, z += row, g += row, y += classes) {
        real most = z[0], total = 0, mass = 0, meant = 0;
        for (int c = 1; c < classes; c++) most = z[c] <= most ? most : z[c];
        for (int c = 0; c < row; c += LANES)
            store(g + c, choose(below_count(classes - c), exp_of(load(z + c) - most), all((real)0)));
        for (int c = 0; c < classes; c++) total += g[c], mass += y[c], meant += y[c] * (z[c] - most);
        for (int c = 0; c < classes; c++) g[c] = (g[c] / total * mass - y[c]) * p->weight[b];
        p->cost[b] = mass * log_of(all(total))[0] - meant;
    }
}

static void squares(const Places *p, const real *z, real *g, int row, int outputs, int rows, real factor) {
    const real *y = p->target;
    for (int b = 0; b < rows; b++, z += row, g += row, y += outputs) {
        real total = 0;
        for (int c = 0; c < outputs; c++) {
            real error = z[c] - y[c];
            total += error * error;
            g[c] = error * (factor * p->weight[b]);
        }
        for (int c = outputs; c < row; c++) g[c] = 0;
        p->cost[b] = total * (factor * (real)0.5);
    }
}

/* Means and what becomes variances lie behind one another in z; see fedray/models/net.py. */
static void gaussian(const Places *p, const real *z, real *g, int row, int targets, int rows) {
    const real floor = (real)1e-6, half = (real)0.5, log_2pi = (real)1.8378770664093453;
    const real *y = p->target;
    for (int b = 0; b < rows; b++, z += row, g += row, y += targets) {
        real total = 0;
        for (int c = 0; c < row; c++) g[c] = 0;
        for (int c = 0; c < targets; c += LANES) {
            int n = targets - c < LANES ? targets - c : LANES;
            real raw_[LANES] = {0}, error_[LANES] = {0}, mean_[LANES], change_[LANES], loss_[LANES];
            for (int i = 0; i < n; i++) raw_[i] = z[targets + c + i], error_[i] = z[c + i] - y[c + i];
            vec raw = load(raw_), error = load(error_), e = exp_of(choose(raw > (real)0, -raw, raw));
            vec variance = softplus_of(raw) + floor;
            vec slope = choose(raw > (real)0, (vec)all((real)1), e) / (e + (real)1); /* of the softplus */
            slope = choose(raw > (real)20, all((real)1), slope);
            vec share = error / variance;
            store(loss_, (log_of(variance) + error * share + log_2pi) * half);
            store(mean_, share * p->weight[b]);
            store(change_, ((real)1 - error * share) / variance * half * slope * p->weight[b]);
            for (int i = 0; i < n; i++) {
                g[c + i] = mean_[i];
                g[targets + c + i] = change_[i];
                total += loss_[i];
            }
        }
        p->cost[b] = total;
    }
}

static void find_output_gradient(const LaneTask *t, const Places *p, int rows, real *g) {
    const int last = t->layers - 1, row = p->row[last], outputs = t->width[t->layers];
    const real *z = p->h[t->layers];
    if (t->objective == CROSS_ENTROPY) cross_entropy(p, z, g, row, outputs, rows);
    else if (t->objective == SOFT_CROSS_ENTROPY) soft_cross_entropy(p, z, g, row, outputs, rows);
    else if (t->objective == GAUSSIAN_NLL) gaussian(p, z, g, row, outputs / 2, rows);
    else squares(p, z, g, row, outputs, rows, t->objective == HALF_MSE ? (real)1 : (real)2);
}

/* Factors of what is dropped in a step: their addresses are those of `dropping` in fedray/models/net.py. */
static void draw_factors(const LaneTask *t, const Places *p, int step, int64_t lane, int rows) {
    if (!t->key) return;
    const uint64_t key = extend_key(extend_key(t->key[lane], (uint64_t)-2), (uint64_t)step);
    uint64_t number = 0;
    for (int k = 0; k < t->layers; k++) {
        if (!p->factor[k]) continue;
        const int in = t->width[k], row = round_up(in), groups = GROUPS(t, k), each = in / groups;
        const double least = t->drop[k] * 0x1p53;
        const real kept = (real)(1.0 / (1.0 - t->drop[k]));
        for (int b = 0; b < rows; b++) {
            const uint64_t own = extend_key(extend_key(key, (uint64_t)b), number);
            real *to = p->factor[k] + (int64_t)b * row;
            for (int i = 0; i < in; i++) {
                const int unit = t->drop_channels[k] ? i : i % groups * each + i / groups;
                if (t->drop_channels[k] && i >= groups) to[i] = to[i - groups];
                else to[i] = (double)(find_bits(own, (uint64_t)unit) >> 11) >= least ? kept : 0;
            }
            for (int i = in; i < row; i++) to[i] = 1;
        }
        number++;
    }
}

/* Multiplies rows of inputs of layer k, or of their gradients, by what is dropped. */
static void drop(const Places *p, int k, int in, int rows, real *h, int h_row) {
    if (!p->factor[k]) return;
    const int row = round_up(in);
    for (int b = 0; b < rows; b++)
        for (int c = 0; c < row; c += LANES) {
            real *place = h + (int64_t)b * h_row + c;
            store(place, load(place) * load(p->factor[k] + (int64_t)b * row + c));
        }
}

/* What the product of layer k leaves to do before layer k + 1 reads its outputs. */
static void finish_inputs(const LaneTask *t, const Places *p, int k, int rows) {
    const int out = t->width[k + 1];
    for (int b = 0; b < rows && k + 1 < t->layers; b++) {
        real *h = p->h[k + 1] + (int64_t)b * p->input_row[k + 1];
        if (t->activation[k] == TANH)
            for (int c = 0; c < out; c += LANES) store(h + c, tanh_of(load(h + c)));
        h[out] = 1;
    }
}

static void run_layers(const LaneTask *t, const Places *p, int first, int rows) {
    for (int k = first; k < t->layers; k++) {
        const real *w = p->w + p->at[k];
        drop(p, k, t->width[k], rows, p->h[k], p->input_row[k]);
        Product task = {
            .a = p->h[k], .a_row = p->input_row[k], .b = w, .b_row = p->row[k], .c = p->h[k + 1],
            .c_row = p->input_row[k + 1], .rows = rows, .columns = t->width[k + 1], .depth = t->width[k], .outer = 1,
            .start = t->bias[k] ? w + (int64_t)t->width[k] * p->row[k] : 0,
        };
        if (t->activation[k] == RELU) product(&task, FORWARD_RELU);
        else multiply_forward(&task);
        finish_inputs(t, p, k, rows);
    }
}

static void run_forward(const LaneTask *t, const Places *p, int rows) {
#ifdef FEATURES
    for (int b = 0; b < rows; b++) {
        real *to = p->h[0] + (int64_t)b * p->input_row[0];
        run_features(t->stage, t->stages, &p->features, p->w, b, to);
        to[t->width[0]] = 1;
    }
#endif
    run_layers(t, p, 0, rows);
}

/* The activation that the inputs of a layer come from. */
#ifdef FEATURES
#define BELOW(t, k) ((k) ? (t)->activation[(k) - 1] : last_activation((t)->stage + (t)->stages - 1))
#else
#define BELOW(t, k) (t)->activation[(k) - 1]
#endif

#define LARGE 65536 /* numbers of a weight; a larger one is not turned, but read once, and the gradients are turned */

/* `run_backward` of a large layer: the same sums. */
static void run_large_backward(const LaneTask *t, const Places *p, int k, int rows, const real *g, real *below) {
    const int in = t->width[k], out = t->width[k + 1], row = round_up(in), width = round_up(rows);
    real *turned = p->turned, *sums = p->turned + (int64_t)out * width;
    transpose(g, p->row[k], rows, out, turned, width, 1, 1);
    Product task = {
        .a = p->w + p->at[k], .a_row = p->row[k], .b = turned, .b_row = width, .c = sums, .c_row = width, .rows = in,
        .columns = rows, .depth = out, .outer = 1,
    };
    multiply_backward(&task);
    transpose(sums, width, in, rows, below, row, 1, 1);
    for (int b = 0; b < rows; b++)
        for (int c = 0; c < row; c += LANES) {
            vec h = load(p->h[k] + (int64_t)b * p->input_row[k] + c);
            real *to = below + (int64_t)b * row + c;
            if (BELOW(t, k) == RELU) store(to, choose(h <= (real)0, all((real)0), load(to)));
            if (BELOW(t, k) == TANH) store(to, load(to) * FMA(-h, h, all((real)1)));
        }
}

/* Gradient g of a layer's outputs -> gradient of the outputs of the layer below it. */
static void run_backward(const LaneTask *t, const Places *p, int k, int rows, const real *g, real *below) {
    const int in = t->width[k], out = t->width[k + 1], row = round_up(in), width = round_up(rows);
    if ((int64_t)in * out > LARGE && (int64_t)(in + out) * width < (int64_t)out * row) {
        run_large_backward(t, p, k, rows, g, below);
        return;
    }
    transpose(p->w + p->at[k], p->row[k], in, out, p->turned, row, 1, 1);
    Product task = {
        .a = g, .a_row = p->row[k], .b = p->turned, .b_row = row, .c = below, .c_row = row, .rows = rows,
        .columns = in, .depth = out, .outer = 1, .gate = p->h[k], .gate_row = p->input_row[k],
    };
    if (BELOW(t, k) == RELU) product(&task, BACKWARD_RELU);
    else multiply_backward(&task);
    if (BELOW(t, k) == TANH)
        for (int b = 0; b < rows; b++)
            for (int c = 0; c < row; c += LANES) {
                vec h = load(p->h[k] + (int64_t)b * p->input_row[k] + c);
                real *to = below + (int64_t)b * row + c;
                store(to, load(to) * FMA(-h, h, all((real)1)));
            }
}

/* Momentum and Adam, after all gradients are known. `powers`: of Adam's two factors, for this step. */
static void move(const LaneTask *t, const Places *p, int64_t lane, double by, int pulled, const double *powers) {
    const vec rate = all((real)by), keep = all((real)(t->decay[lane] + t->pull[lane]));
    const vec momentum = all((real)t->momentum), share = all((real)(1.0 - 0.9)), rest = all((real)0.999);
    const vec more = all((real)(1.0 - 0.999)), tiny = all((real)1e-8);
    const vec step = all((real)(by / (1.0 - powers[0])));
    const vec correct = all((real)__builtin_sqrt(1.0 - powers[1]));
    for (int64_t i = 0; i < p->size; i += LANES) {
        vec w = load(p->w + i), g = load(p->gradient + i);
        if (pulled) g = FMA(keep, w, g) + load(p->shift + i);
        vec m = load(p->first + i);
        if (t->optimizer == MOMENTUM) {
            m = FMA(momentum, m, g);
            store(p->w + i, FMA(-rate, m, w));
        } else {
            vec v = load(p->second + i);
            m = FMA(share, g - m, m);
            v = FMA(more * g, g, rest * v);
            store(p->second + i, v);
            store(p->w + i, FMA(-step, m / (root(v) / correct + tiny), w));
        }
        store(p->first + i, m);
    }
}

INLINE void descend(
    const LaneTask *t, const Places *p, int k, int rows, int64_t lane, double by, int pulled, const real *g
) {
    real *to = t->optimizer == SGD ? p->w : p->gradient;
    Product task = {
        .a = p->h[k], .a_row = p->input_row[k], .b = g, .b_row = p->row[k], .c = to + p->at[k], .c_row = p->row[k],
        .rows = t->width[k] + t->bias[k], .columns = t->width[k + 1], .depth = rows, .outer = 1,
        .rate = (real)by, .keep = (real)(t->decay[lane] + t->pull[lane]), .shift = p->shift + p->at[k],
    };
    if (t->optimizer != SGD) product(&task, GRADIENT);
    else if (pulled) product(&task, DESCEND_PULL);
    else multiply_descend(&task);
}

#ifdef FEATURES
/* Plain SGD for the convolutions: their gradients are sums over samples, and known only now. */
static void move_plainly(const LaneTask *t, const Places *p, int64_t lane, double by, int pulled) {
    const vec rate = all((real)by), keep = all((real)(t->decay[lane] + t->pull[lane]));
    for (int64_t i = 0; i < p->features.size; i += LANES) {
        vec w = load(p->w + i), g = load(p->gradient + i);
        if (pulled) g = FMA(keep, w, g) + load(p->shift + i);
        store(p->w + i, FMA(-rate, g, w));
    }
}
#endif

#ifndef FEATURES
/* A still lane: what its inputs are needed for before its first step. */
static void begin_still(const LaneTask *t, const Places *p, int rows) {
    const int inputs = t->width[0] + t->bias[0], row = p->row[0];
    const real *w = p->w + p->at[0];
    Product outputs = {
        .a = p->h[0], .a_row = p->input_row[0], .b = w, .b_row = row, .c = p->z, .c_row = row, .rows = rows,
        .columns = t->width[1], .depth = t->width[0], .outer = 1,
        .start = t->bias[0] ? w + (int64_t)t->width[0] * row : 0,
    };
    multiply_forward(&outputs);
    transpose(p->h[0], p->input_row[0], rows, inputs, p->turned, p->gram_row, 1, 1);
    Product gram = {
        .a = p->h[0], .a_row = p->input_row[0], .b = p->turned, .b_row = p->gram_row, .c = p->gram,
        .c_row = p->gram_row, .rows = rows, .columns = rows, .depth = inputs, .outer = 1,
    };
    multiply_backward(&gram);
    memset(p->sum, 0, (size_t)rows * (size_t)row * sizeof(real));
}

static void run_still_forward(const LaneTask *t, const Places *p, int rows) {
    const int row = p->row[0];
    for (int b = 0; b < rows; b++)
        for (int c = 0; c < row; c += LANES) {
            vec z = load(p->z + (int64_t)b * row + c);
            store(p->h[1] + (int64_t)b * p->input_row[1] + c,
                  t->activation[0] == RELU ? choose(z < (real)0, all((real)0), z) : z);
        }
    finish_inputs(t, p, 0, rows);
    run_layers(t, p, 1, rows);
}

/* Gradient g of the first layer's outputs -> where these move. */
static void descend_still(const LaneTask *t, const Places *p, int rows, double by, const real *g) {
    const int row = p->row[0];
    Product task = { /* the Gram matrix is symmetric to the bit, so it may be read with rows side by side */
        .a = p->gram, .a_row = p->gram_row, .b = g, .b_row = row, .c = p->z, .c_row = row, .rows = rows,
        .columns = t->width[1], .depth = rows, .outer = 1, .rate = (real)by,
    };
    multiply_descend(&task);
    for (int64_t i = 0; i < (int64_t)rows * row; i += LANES) store(p->sum + i, load(p->sum + i) + load(g + i));
}
#endif

static int train_lane(const LaneTask *t, Places *p, int64_t lane) {
    const int last = t->steps[lane] < t->end_step ? (int)t->steps[lane] : t->end_step;
    const int pulled = t->decay[lane] != 0 || t->pull[lane] != 0 || t->offset != 0;
    double powers[2] = {1.0, 1.0}, loss = 0.0;
    int rows = 0;
#ifndef FEATURES
    const int still = t->still_from && t->steps[lane] >= t->still_from && !pulled;
#endif
    for (int s = 0; s < t->first_step; s++) powers[0] *= 0.9, powers[1] *= 0.999;
    if (t->first_step == 0) {
        pack_start(t, p, lane);
        memcpy(p->w, p->begin, (size_t)p->size * sizeof(real));
        if (t->optimizer != SGD) memset(p->first, 0, (size_t)p->size * sizeof(real) * (size_t)moments(t));
        if (pulled) make_shift(t, p, lane);
    }
    for (int s = t->first_step; s < last; s++) {
        powers[0] *= 0.9, powers[1] *= 0.999;
        const double by = t->step_rate ? t->step_rate[s - t->first_step] : t->rate[lane];
#ifndef FEATURES
        if (still) {
            if (s == 0 && (rows = gather(t, p, s, lane)) > 0) begin_still(t, p, rows);
            if (rows < 0) return -rows;
            run_still_forward(t, p, rows);
        } else
#endif
        {
            if ((rows = gather(t, p, s, lane)) < 0) return -rows;
            fetch_ahead(t, s, lane);
            draw_factors(t, p, s, lane, rows);
            run_forward(t, p, rows);
        }
        real *g = p->g[0], *below = p->g[1];
        find_output_gradient(t, p, rows, g);
        for (int b = 0; b < rows; b++) loss += (double)p->cost[b] * (double)p->weight[b];
        for (int k = t->layers - 1; k >= 0; k--) {
            if (k >= FIRST_BELOW) {
                run_backward(t, p, k, rows, g, below);
                drop(p, k, t->width[k], rows, below, round_up(t->width[k]));
            }
#ifndef FEATURES
            if (k == 0 && still) descend_still(t, p, rows, by, g);
            else
#endif
                descend(t, p, k, rows, lane, by, pulled, g);
            real *other = g;
            g = below, below = other;
        }
#ifdef FEATURES
        descend_features(t->stage, t->stages, &p->features, p->w, p->gradient, rows, g, round_up(t->width[0]));
        if (t->optimizer == SGD) move_plainly(t, p, lane, by, pulled);
#endif
        if (t->optimizer != SGD) move(t, p, lane, by, pulled, powers);
    }
#ifndef FEATURES
    if (still && last) descend(t, p, 0, rows, lane, t->rate[lane], 0, p->sum);
#endif
    t->loss[lane] += loss;
    if (t->steps[lane] <= t->end_step && (t->steps[lane] > t->first_step || t->first_step == 0)) {
        if (t->gives_change) {
            pack_start(t, p, lane);
            for (int64_t i = 0; i < p->size; i += LANES) store(p->w + i, load(p->w + i) - load(p->begin + i));
        }
        unpack(t, p, p->w, t->final + lane * t->d);
    }
    return FINE;
}

/* Trains the lanes of a block; returns 0, or what is wrong with the data. */
EXPORT int32_t NAME(KERNEL_TRAIN)(const LaneTask *t) {
    real *base = align(t->scratch);
    Places p = lay_out(t, base);
    real *state = align(t->state);
    const int64_t each = p.size * (2 + moments(t));
    for (int64_t lane = 0; lane < t->lanes; lane++) {
        real *own = state + (t->keeps_state ? lane * each : 0);
        p.w = own;
        p.shift = own + p.size;
        p.first = own + 2 * p.size;
        p.second = own + 3 * p.size;
        int problem = train_lane(t, &p, lane);
        if (problem) return problem;
    }
    return FINE;
}

#ifdef KERNEL_OUTPUTS
/* Raw outputs of models, [W, end_step, outputs] in `final`, each on end_step rows of x from `first` on. */
EXPORT int32_t NAME(KERNEL_OUTPUTS)(const LaneTask *t) {
    real *base = align(t->scratch);
    Places p = lay_out(t, base);
    p.w = align(t->state);
    const int outputs = t->width[t->layers], row = p.input_row[t->layers];
    real *to = t->final;
    for (int64_t lane = 0; lane < t->lanes; lane++) {
        const int64_t first = t->first[lane];
        if (first < 0 || first + t->end_step > t->x_rows) return BAD_ROW;
        pack(t, &p, t->start + lane * t->start_row, p.w);
        for (int from = 0; from < t->end_step; from += t->batch) {
            const int left = t->end_step - from, rows = left < t->batch ? left : t->batch;
            for (int b = 0; b < rows; b++) read_sample(t, &p, b, first + from + b, 0);
            run_forward(t, &p, rows);
            for (int b = 0; b < rows; b++, to += outputs)
                memcpy(to, p.h[t->layers] + (int64_t)b * row, (size_t)outputs * sizeof(real));
        }
    }
    return FINE;
}
#endif

#endif
