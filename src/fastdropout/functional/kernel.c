/* The element-wise part of one step of the recurrence, for tanh by the `fast` rule of transfer.py, and its
 * derivative: one pass over memory each. Built and called by kernel.py.
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
#define HALF_PI 1.5707963267948966

/* Runs `call` on ranges [start, stop) that cover [0, n), one a thread. Below 4096 elements, waking a second
 * thread costs more than it saves; and not by OpenMP's `if`, whose team of one makes its library end the
 * other threads and start new ones at the next product. */
#ifdef _OPENMP
#include <omp.h>
#define SHARE(n, call)                                                                                 \
    if ((n) < 4096) {                                                                                  \
        const int64_t start = 0, stop = (n);                                                           \
        call;                                                                                          \
    } else {                                                                                           \
        _Pragma("omp parallel")                                                                        \
        {                                                                                              \
            const int64_t share = (((n) + omp_get_num_threads() - 1) / omp_get_num_threads() + 15) & ~15; \
            const int64_t start = share * omp_get_thread_num() < (n) ? share * omp_get_thread_num() : (n); \
            const int64_t stop = start + share < (n) ? start + share : (n);                            \
            call;                                                                                      \
        }                                                                                              \
    }
#else
#define SHARE(n, call)                                                                                 \
    const int64_t start = 0, stop = (n);                                                               \
    call;
#endif

/* tanh x = 1 - 2 / (exp(2x) + 1), with exp by the Taylor polynomial of 2^f for |f| <= 1/2 (relative error
 * 1.2e-7), so that the compiler can take many lanes at once. Written so that a NaN stays one. */
static inline float tanh_of_float(float x)
{
    float y = x * 2.885390082f; /* 2 / log 2 */
    y = y > 126.0f ? 126.0f : y;
    y = y < -126.0f ? -126.0f : y;
    float shifted = y + 12582912.0f; /* rounds to the nearest whole number, left in the lowest bits */
    float f = y - (shifted - 12582912.0f);
    float p = 1.5403530e-4f;
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    int32_t bits;
    float scale;
    memcpy(&bits, &shifted, 4);
    bits = (bits + 127) << 23;
    memcpy(&scale, &bits, 4);
    return 1.0f - 2.0f / (p * scale + 1.0f);
}

#define REAL float
#define NAME(name) name##_float32
#define SQRT sqrtf
#define TANH tanh_of_float
#include __FILE__
#undef REAL
#undef NAME
#undef SQRT
#undef TANH

#define REAL double
#define NAME(name) name##_float64
#define SQRT sqrt
#define TANH tanh
#include __FILE__

#else

/* What both passes need of (m, v); names as in transfer.py. Divisions are shared, they are what costs. */
typedef struct {
    REAL e, a, c, bend, g, d, z;
} NAME(Squash);

static inline NAME(Squash) NAME(squash)(REAL m, REAL v)
{
    NAME(Squash) s;
    REAL wide = 1 + (REAL)SLOPE * v;
    REAL sum = wide + v * ((REAL)HALF_PI * wide + (REAL)(2 - HALF_PI)); /* (1 + w) wide */
    REAL both = 1 / (wide * sum);
    s.e = sum * both;
    s.a = (REAL)HALF_PI + (REAL)(2 - HALF_PI) * s.e;
    s.c = wide * SQRT(both);
    s.bend = (REAL)BEND_LARGE + (REAL)(BEND_SMALL - BEND_LARGE) * s.e;
    REAL b = s.bend * s.c * s.c * s.c * m * m;
    REAL inverse = 1 / ((1 + s.c) * (1 + b));
    s.g = (1 + s.c) * inverse; /* 1 / (1 + b) */
    s.d = v * s.a * s.c * s.c * ((1 + b) * inverse);
    s.z = m * (s.g * (s.c + b));
    return s;
}

/* pre += rec; its post-synaptic moments; and what the mask makes of them, u = keep var + keep drop mean^2. */
static void NAME(forward_range)(int64_t start, int64_t stop, REAL *restrict pre_m, REAL *restrict pre_v,
                                const REAL *restrict rec_m, const REAL *restrict rec_v, REAL *restrict out_m,
                                REAL *restrict out_v, REAL *restrict out_u, REAL drop)
{
    const REAL keep = 1 - drop, noise = keep * drop;
    for (int64_t i = start; i < stop; i++) {
        REAL m = pre_m[i] + rec_m[i], v = pre_v[i] + rec_v[i];
        NAME(Squash) s = NAME(squash)(m, v);
        REAL t = TANH(s.z);
        REAL q = 1 - t * t, k = (REAL)MIX * v;
        REAL var = s.d * q * (q + k * q) / (1 + k * q);
        pre_m[i] = m;
        pre_v[i] = v;
        out_m[i] = t;
        out_v[i] = var;
        out_u[i] = keep * var + noise * t * t;
    }
}

void NAME(forward)(int64_t n, REAL *pre_m, REAL *pre_v, const REAL *rec_m, const REAL *rec_v, REAL *out_m,
                   REAL *out_v, REAL *out_u, double drop)
{
    SHARE(n, NAME(forward_range)(start, stop, pre_m, pre_v, rec_m, rec_v, out_m, out_v, out_u, (REAL)drop))
}

/* From the gradients (gm, gv) of the post-synaptic moments to those of (m, v); t is the mean that came out. */
static inline void NAME(pull)(REAL m, REAL v, REAL t, REAL gm, REAL gv, REAL *dm, REAL *dv)
{
    NAME(Squash) s = NAME(squash)(m, v);
    REAL q = 1 - t * t, k = (REAL)MIX * v;
    REAL qr = q / (1 + k * q), c2 = s.c * s.c, c3 = c2 * s.c, mg = m * s.g;
    REAL gz = q * (gm - 2 * t * gv * s.d * (1 + k) * qr * (2 - k * qr));
    REAL gd = gv * q * qr * (1 + k) - gz * mg;
    REAL gb = gz * m * s.d * mg * s.g * m; /* of bend c^3 */
    REAL gc = 3 * s.bend * c2 * gb - gd;
    REAL gw = (REAL)-0.5 * c3 * gc;
    REAL ge = (REAL)(BEND_SMALL - BEND_LARGE) * c3 * gb + (REAL)(2 - HALF_PI) * v * gw;
    *dm = gz * (1 + s.d * s.g * (1 - 2 * s.g));
    *dv = gw * s.a - (REAL)SLOPE * s.e * s.e * ge + (REAL)MIX * gv * s.d * qr * qr * t * t;
}

/* The gradients of a step's pre-synaptic moments, from those of its outputs and, for the first n_next, of what
 * enters the next step (the mean's weights have `keep` in them already), for the others of the last state. */
static void NAME(backward_range)(int64_t start, int64_t stop, int64_t n_next, const REAL *restrict pre_m,
                                 const REAL *restrict pre_v, const REAL *restrict out_m,
                                 const REAL *restrict grad_m, const REAL *restrict grad_v,
                                 const REAL *restrict next_m, const REAL *restrict next_u,
                                 const REAL *restrict last_m, const REAL *restrict last_v,
                                 REAL *restrict dpre_m, REAL *restrict dpre_v, REAL drop)
{
    const REAL keep = 1 - drop, noise = 2 * keep * drop;
    const int64_t middle = stop < n_next ? stop : n_next < start ? start : n_next;
    for (int64_t i = start; i < middle; i++) {
        REAL gm = grad_m[i] + next_m[i] + noise * out_m[i] * next_u[i], gv = grad_v[i] + keep * next_u[i];
        NAME(pull)(pre_m[i], pre_v[i], out_m[i], gm, gv, dpre_m + i, dpre_v + i);
    }
    for (int64_t i = middle; i < stop; i++)
        NAME(pull)(pre_m[i], pre_v[i], out_m[i], grad_m[i] + last_m[i], grad_v[i] + last_v[i], dpre_m + i,
                   dpre_v + i);
}

void NAME(backward)(int64_t n, int64_t n_next, const REAL *pre_m, const REAL *pre_v, const REAL *out_m,
                    const REAL *grad_m, const REAL *grad_v, const REAL *next_m, const REAL *next_u,
                    const REAL *last_m, const REAL *last_v, REAL *dpre_m, REAL *dpre_v, double drop)
{
    SHARE(n, NAME(backward_range)(start, stop, n_next, pre_m, pre_v, out_m, grad_m, grad_v, next_m, next_u,
                                  last_m, last_v, dpre_m, dpre_v, (REAL)drop))
}

#endif
