/* The element-wise part of one step of the recurrence, for tanh by the rules `fast` and `paper` of transfer.py,
 * and its derivative: one pass over memory each. Built and called by kernel.py.
 *
 * The file includes itself for float and for double. With OpenMP it shares torch's own threads.
 */
#ifndef REAL

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The constants of transfer.py, compared by a test. */
#define SLOPE 1.35
#define BEND_SMALL 0.33
#define BEND_LARGE 0.076
#define MIX 4.0
#define PAPER_A 1.1715728752538097
#define PAPER_B 0.8813735870195428
#define HALF_PI 1.5707963267948966

/* The rules; each gets loops of its own, as the functions below are expanded where they are called. */
enum { FAST, PAPER };
#define ALWAYS_INLINE inline __attribute__((always_inline))

/* Runs a statement on rows [start, stop) that cover [0, rows), one range a thread. Below 4096 elements, waking
 * a second thread costs more than it saves; and not by OpenMP's `if`, whose team of one makes its library end the
 * other threads and start new ones at the next product. */
#ifdef _OPENMP
#include <omp.h>
#define SHARE(rows, units, ...)                                                                        \
    if ((rows) * (units) < 4096) {                                                                     \
        const int64_t start = 0, stop = (rows);                                                        \
        __VA_ARGS__;                                                                                   \
    } else {                                                                                           \
        _Pragma("omp parallel")                                                                        \
        {                                                                                              \
            const int64_t threads = omp_get_num_threads(), mine = omp_get_thread_num();                \
            const int64_t start = (rows) * mine / threads, stop = (rows) * (mine + 1) / threads;       \
            __VA_ARGS__;                                                                               \
        }                                                                                              \
    }
#else
#define SHARE(rows, units, ...)                                                                        \
    const int64_t start = 0, stop = (rows);                                                            \
    __VA_ARGS__;
#endif

/* 1 / x and 1 / sqrt(x) for x > 0, from a first guess in the exponent's bits (error 12 % and 3.4 %) and two
 * steps of third order each (error below the rounding): products are five times as fast as a division. */
static inline float inverse_of_float(float x)
{
    int32_t bits;
    float y;
    memcpy(&bits, &x, 4);
    bits = 0x7ef311c7 - bits;
    memcpy(&y, &bits, 4);
    float error = 1.0f - x * y;
    y += y * (error + error * error);
    error = 1.0f - x * y;
    return y + y * (error + error * error);
}

static inline float inverse_root_of_float(float x)
{
    int32_t bits;
    float y;
    memcpy(&bits, &x, 4);
    bits = 0x5f3759df - (bits >> 1);
    memcpy(&y, &bits, 4);
    float error = 1.0f - x * y * y;
    y += y * error * (0.5f + 0.375f * error);
    error = 1.0f - x * y * y;
    return y + y * error * (0.5f + 0.375f * error);
}

/* exp(-2 x) for x >= 0, by the Taylor polynomial of 2^f for |f| <= 1/2 (relative error 1.2e-7), so that the
 * compiler can take many lanes at once. Written so that a NaN stays one. */
static inline float decay_of_float(float x)
{
    float y = x * -2.885390082f; /* -2 / log 2 */
    y = y < -126.0f ? -126.0f : y;
    float shifted = y + 12582912.0f; /* rounds to the nearest whole number, left in the lowest bits */
    float f = y - (shifted - 12582912.0f), f2 = f * f;
    float low = 2.4022651e-1f + f * 5.5504109e-2f, high = 9.6181291e-3f + f * 1.3333558e-3f;
    float p = (1.0f + f * 6.9314718e-1f) + f2 * (low + f2 * (high + f2 * 1.5403530e-4f));
    int32_t bits;
    float scale;
    memcpy(&bits, &shifted, 4);
    bits = (bits + 127) << 23;
    memcpy(&scale, &bits, 4);
    return p * scale;
}

#define REAL float
#define NAME(name) name##_float32
#define INVERSE inverse_of_float
#define INVERSE_ROOT inverse_root_of_float
#define DECAY decay_of_float
#define ABS fabsf
#include __FILE__
#undef REAL
#undef NAME
#undef INVERSE
#undef INVERSE_ROOT
#undef DECAY
#undef ABS

#define REAL double
#define NAME(name) name##_float64
#define INVERSE(x) (1 / (x))
#define INVERSE_ROOT(x) (1 / sqrt(x))
#define DECAY(x) exp(-2 * (x))
#define ABS fabs
#include __FILE__

#else

/* What both passes of the fast rule need of (m, v); names as in transfer.py. As few inverses as possible, they are what costs. */
typedef struct {
    REAL e, a, c, bend, g, d, z;
} NAME(Squash);

static inline NAME(Squash) NAME(squash)(REAL m, REAL v)
{
    NAME(Squash) s;
    REAL wide = 1 + (REAL)SLOPE * v;
    REAL sum = wide + v * ((REAL)HALF_PI * wide + (REAL)(2 - HALF_PI)); /* wide / c^2 */
    REAL root = INVERSE_ROOT(wide * sum);
    s.c = wide * root;
    s.e = sum * root * root;
    s.a = (REAL)HALF_PI + (REAL)(2 - HALF_PI) * s.e;
    s.bend = (REAL)BEND_LARGE + (REAL)(BEND_SMALL - BEND_LARGE) * s.e;
    REAL b = s.bend * s.c * s.c * s.c * m * m;
    REAL inverse = INVERSE((1 + s.c) * (1 + b));
    s.g = (1 + s.c) * inverse; /* 1 / (1 + b) */
    s.d = v * s.a * s.c * s.c * ((1 + b) * inverse);
    s.z = m * (s.g * (s.c + b));
    return s;
}

static inline void NAME(post_fast)(REAL m, REAL v, REAL *mean, REAL *var)
{
    NAME(Squash) s = NAME(squash)(m, v);
    /* With E = exp(-2 |z|): t = tanh z = (1 - E) / (1 + E), q = 1 - t^2 = 4 E / (1 + E)^2. */
    REAL decay = DECAY(ABS(s.z)), k = (REAL)MIX * v, one = 1 + decay;
    REAL both = one * one + 4 * k * decay; /* (1 + E)^2 (1 + k q) */
    REAL inverse = INVERSE(one * both);
    REAL r = both * inverse, t = (1 - decay) * r, q = 4 * decay * r * r;
    *var = s.d * q * (1 + k) * (4 * decay * one * inverse); /* the last: q / (1 + k q) */
    *mean = s.z < 0 ? -t : t;
}

/* From the gradients of the post-synaptic moments to those of (m, v); t is the mean that came out. */
static inline void NAME(pull_fast)(REAL m, REAL v, REAL t, REAL gm, REAL gv, REAL *dm, REAL *dv)
{
    NAME(Squash) s = NAME(squash)(m, v);
    REAL q = 1 - t * t, k = (REAL)MIX * v;
    REAL qr = q * INVERSE(1 + k * q), c2 = s.c * s.c, c3 = c2 * s.c, mg = m * s.g;
    REAL gz = q * (gm - 2 * t * gv * s.d * (1 + k) * qr * (2 - k * qr));
    REAL gd = gv * q * qr * (1 + k) - gz * mg;
    REAL gb = gz * m * s.d * mg * s.g * m; /* of bend c^3 */
    REAL gc = 3 * s.bend * c2 * gb - gd;
    REAL gw = (REAL)-0.5 * c3 * gc;
    REAL ge = (REAL)(BEND_SMALL - BEND_LARGE) * c3 * gb + (REAL)(2 - HALF_PI) * v * gw;
    *dm = gz * (1 + s.d * s.g * (1 - 2 * s.g));
    *dv = gw * s.a - (REAL)SLOPE * s.e * s.e * ge + (REAL)MIX * gv * s.d * qr * qr * t * t;
}

static inline REAL NAME(tanh)(REAL z)
{
    REAL decay = DECAY(ABS(z)), t = (1 - decay) * INVERSE(1 + decay);
    return z < 0 ? -t : t;
}

/* The paper's rule, with both logistic functions written as tanh: mean = tanh(m r), r = 1 / sqrt(1 + pi v / 2),
 * var = 2 (1 + T) - (1 + mean)^2, T = tanh(A (m - B / 2) R), R = 1 / sqrt(1 + pi A^2 v / 2). */
#define R_PAPER(v) INVERSE_ROOT(1 + (REAL)HALF_PI * (v))
#define R_SQUARE(v) INVERSE_ROOT(1 + (REAL)(HALF_PI * PAPER_A * PAPER_A) * (v))

static inline void NAME(post_paper)(REAL m, REAL v, REAL *mean, REAL *var)
{
    REAL t = NAME(tanh)(m * R_PAPER(v));
    REAL square = NAME(tanh)((REAL)PAPER_A * (m - (REAL)(PAPER_B / 2)) * R_SQUARE(v));
    REAL found = 2 * (1 + square) - (1 + t) * (1 + t);
    *var = found < 0 ? 0 : found;
    *mean = t;
}

static inline void NAME(pull_paper)(REAL m, REAL v, REAL t, REAL gm, REAL gv, REAL *dm, REAL *dv)
{
    REAL r = R_PAPER(v), big = R_SQUARE(v), n = (REAL)PAPER_A * (m - (REAL)(PAPER_B / 2));
    REAL square = NAME(tanh)(n * big);
    gv = 2 * (1 + square) < (1 + t) * (1 + t) ? 0 : gv;
    REAL gz = (1 - t * t) * (gm - 2 * (1 + t) * gv), gs = 2 * gv * (1 - square * square);
    *dm = gz * r + gs * (REAL)PAPER_A * big;
    *dv = (REAL)(-0.5 * HALF_PI) * (gz * m * r * r * r + gs * n * (REAL)(PAPER_A * PAPER_A) * big * big * big);
}

/* A chunk of steps whose rows stand one below the other, each of `units` numbers. */
typedef struct {
    int64_t units, rule;
    REAL *pre_m, *pre_v; /* the input's share, to which the other shares are added */
    const REAL *rec_m, *rec_v; /* the recurrent share of the step at hand */
    const REAL *bias;
    REAL *out_m, *out_v, *out_u; /* post-synaptic moments; u = keep var + keep drop mean^2, after the mask */
    double noise, drop;
} NAME(Forward);

static ALWAYS_INLINE void NAME(forward_row)(int rule, int64_t units, REAL *restrict pre_m, REAL *restrict pre_v,
                              const REAL *restrict rec_m, const REAL *restrict rec_v,
                              const REAL *restrict bias, REAL *restrict out_m, REAL *restrict out_v,
                              REAL *restrict out_u, REAL noise, REAL drop)
{
    const REAL keep = 1 - drop, spread = keep * drop;
    for (int64_t i = 0; i < units; i++) {
        REAL m = pre_m[i] + rec_m[i] + bias[i], v = pre_v[i] + rec_v[i];
        REAL t, var;
        (rule == PAPER ? NAME(post_paper) : NAME(post_fast))(m, v, &t, &var);
        var += noise;
        pre_m[i] = m;
        pre_v[i] = v;
        out_m[i] = t;
        out_v[i] = var;
        out_u[i] = keep * var + spread * t * t;
    }
}

static ALWAYS_INLINE void NAME(forward_rows)(int rule, const NAME(Forward) *p, int64_t first, int64_t start,
                                             int64_t stop)
{
    for (int64_t row = start; row < stop; row++) {
        const int64_t here = (first + row) * p->units, step = row * p->units;
        NAME(forward_row)(rule, p->units, p->pre_m + here, p->pre_v + here, p->rec_m + step, p->rec_v + step,
                          p->bias, p->out_m + here, p->out_v + here, p->out_u + here, (REAL)p->noise,
                          (REAL)p->drop);
    }
}

/* The step of `rows` rows from row `first` of the chunk. */
void NAME(forward)(const NAME(Forward) *p, int64_t first, int64_t rows)
{
    SHARE(rows, p->units, if (p->rule == PAPER) NAME(forward_rows)(PAPER, p, first, start, stop);
          else NAME(forward_rows)(FAST, p, first, start, stop))
}

/* The gradients of a chunk's pre-synaptic moments. */
typedef struct {
    int64_t units, rule;
    const REAL *pre_m, *pre_v, *out_m;
    const REAL *grad_m, *grad_v; /* of the post-synaptic moments, as outputs */
    const REAL *next_m, *next_u; /* of what enters the next step; the mean's weights have `keep` in them */
    const REAL *last_m, *last_v; /* of the last state, for pieces that end here */
    REAL *dpre_m, *dpre_v;
    double drop;
} NAME(Backward);

/* noise = 2 keep drop where there is a next step; where there is none, next is last and u simply v. */
static ALWAYS_INLINE void NAME(backward_row)(int rule, int64_t units, const REAL *restrict pre_m, const REAL *restrict pre_v,
                               const REAL *restrict out_m, const REAL *restrict grad_m,
                               const REAL *restrict grad_v, const REAL *restrict next_m,
                               const REAL *restrict next_u, REAL *restrict dpre_m, REAL *restrict dpre_v,
                               REAL keep, REAL noise)
{
    for (int64_t i = 0; i < units; i++) {
        REAL m = pre_m[i], v = pre_v[i], t = out_m[i];
        REAL gm = grad_m[i] + next_m[i] + noise * t * next_u[i], gv = grad_v[i] + keep * next_u[i];
        REAL dm, dv;
        (rule == PAPER ? NAME(pull_paper) : NAME(pull_fast))(m, v, t, gm, gv, &dm, &dv);
        dpre_m[i] = dm;
        dpre_v[i] = dv;
    }
}

static ALWAYS_INLINE void NAME(backward_rows)(int rule, const NAME(Backward) *p, int64_t first, int64_t common,
                                              int64_t start, int64_t stop)
{
    const REAL drop = (REAL)p->drop, keep = 1 - drop;
    for (int64_t row = start; row < stop; row++) {
        const int64_t here = (first + row) * p->units, step = row * p->units;
        const int goes_on = row < common;
        NAME(backward_row)(rule, p->units, p->pre_m + here, p->pre_v + here, p->out_m + here, p->grad_m + here,
                           p->grad_v + here, (goes_on ? p->next_m : p->last_m) + step,
                           (goes_on ? p->next_u : p->last_v) + step, p->dpre_m + here, p->dpre_v + here,
                           goes_on ? keep : 1, goes_on ? 2 * keep * drop : 0);
    }
}

/* The step of `rows` rows from row `first` of the chunk, of which the first `common` have a next step. */
void NAME(backward)(const NAME(Backward) *p, int64_t first, int64_t rows, int64_t common)
{
    SHARE(rows, p->units, if (p->rule == PAPER) NAME(backward_rows)(PAPER, p, first, common, start, stop);
          else NAME(backward_rows)(FAST, p, first, common, start, stop))
}

#endif
