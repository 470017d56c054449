/* exp, log, tanh and softplus of n numbers, so that tests can compare them with other libraries. */
#include "numbers.h"

EXPORT void NAME(function)(int32_t which, int64_t n, const real *x, real *y) {
    for (int64_t i = 0; i < n; i += LANES) {
        real in[LANES], out[LANES];
        int64_t count = n - i < LANES ? n - i : LANES;
        for (int k = 0; k < LANES; k++) in[k] = k < count ? x[i + k] : (real)1;
        vec v = load(in);
        store(out, which == 0 ? exp_of(v) : which == 1 ? log_of(v) : which == 2 ? tanh_of(v) : softplus_of(v));
        memcpy(y + i, out, (size_t)count * sizeof(real));
    }
}
