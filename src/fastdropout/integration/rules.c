/* Rules of functions that networks call most, each in one pass over memory: values of `functional`, in float32,
 * without gradients. The slopes dE[f(a)] / dE[a] are what a trace multiplies by. Built by recurrent/compiler.py,
 * called by compiled.py.
 *
 * Each loop has a body without branches and calls, so that the compiler takes many lanes at once.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#define INLINE static inline __attribute__((always_inline))

/* Those of transfer.py. */
#define SLOPE 1.35f
#define BEND_SMALL 0.33f
#define BEND_LARGE 0.076f
#define MIX 4.0f
#define LARGEST_BEND 1e18f
#define HALF_PI 1.57079633f
/* Of softmax.py: between the delta method and log-normal probabilities, and a logit that masks. */
#define SPREAD 0.15f
#define LEAST -1e4f
#define EPS 1.1920929e-7f

/* A range of [0, n) for each thread; below 16,384 elements, waking a second one costs more than it saves. */
#ifdef _OPENMP
#define SHARE(n, each, ...)                                                                            \
    if ((n) * (each) < 16384) {                                                                        \
        const int64_t start = 0, stop = (n);                                                           \
        __VA_ARGS__;                                                                                   \
    } else {                                                                                           \
        _Pragma("omp parallel")                                                                        \
        {                                                                                              \
            const int64_t threads = omp_get_num_threads(), mine = omp_get_thread_num();                \
            const int64_t start = (n) * mine / threads, stop = (n) * (mine + 1) / threads;             \
            __VA_ARGS__;                                                                               \
        }                                                                                              \
    }
#else
#define SHARE(n, each, ...)                                                                            \
    const int64_t start = 0, stop = (n);                                                               \
    __VA_ARGS__;
#endif

/* Of x and a bound; what is no number stays so. */
INLINE float least(float x, float bound) { return x > bound ? bound : x; }
INLINE float most(float x, float bound) { return x < bound ? bound : x; }

/* exp(x), relative error 2e-7: 2^k by its bits times the Taylor polynomial of 2^f, |f| <= 1/2. */
INLINE float power(float x)
{
    x = most(least(x, 88.0f), -87.0f) * 1.44269504f;
    const float shifted = x + 12582912.0f; /* rounds; the whole number is in the lowest bits */
    const float f = x - (shifted - 12582912.0f);
    int32_t bits;
    memcpy(&bits, &shifted, 4);
    bits = (bits + 127) << 23;
    float two;
    memcpy(&two, &bits, 4);
    float p = 1.5403530e-4f;
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    return two * (p * f + 1.0f);
}

/* log(x) for normal x > 0, relative error 1e-7: the exponent's bits and a polynomial on [sqrt 1/2, sqrt 2]. */
INLINE float logarithm(float x)
{
    int32_t bits;
    memcpy(&bits, &x, 4);
    const int32_t k = (bits - 0x3f3504f3) >> 23;
    bits -= k << 23;
    float m;
    memcpy(&m, &bits, 4);
    const float f = m - 1.0f, z = f * f;
    float p = 7.0376836292e-2f;
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    return f + (p * f * z - 0.5f * z) + (float)k * 0.693147181f;
}

/* phi(z) and Phi(-z) for z >= 0; the latter by Chebyshev's fit of erfc, relative error 1.2e-7 (Press et al.). */
INLINE void normal(float z, float *phi, float *above)
{
    const float core = power(-0.5f * z * z), t = 1.0f / (1.0f + z * 0.353553391f);
    float p = 0.17087277f;
    p = p * t - 0.82215223f;
    p = p * t + 1.48851587f;
    p = p * t - 1.13520398f;
    p = p * t + 0.27886807f;
    p = p * t - 0.18628806f;
    p = p * t + 0.09678418f;
    p = p * t + 0.37409196f;
    p = p * t + 1.00002368f;
    p = p * t - 1.26551223f;
    *phi = 0.398942280f * core;
    *above = 0.5f * t * power(p) * core;
}

INLINE float logistic(float x) { return 1.0f / (1.0f + power(-x)); }

void relu_float32(int64_t n, const float *m, const float *v, float *mean, float *var, float *slope)
{
    SHARE(n, 1, _Pragma("omp simd") for (int64_t i = start; i < stop; i++) {
        const float s = sqrtf(most(v[i], 1e-22f)), b = least(fabsf(m[i]) / s, 12.0f);
        float phi, q;
        normal(b, &phi, &q);
        const float g = phi - b * q, on = m[i] > 0 ? 1.0f : 0.0f, sign = on * (1.0f - 2.0f * q);
        const float tail = most(q - b * g - g * g, 0.0f);
        mean[i] = most(m[i], 0.0f) + s * g;
        var[i] = v[i] * (tail + sign);
        slope[i] = q + sign;
    })
}

void gelu_float32(int64_t n, const float *m, const float *v, float *mean, float *var, float *slope)
{
    static const float T[4] = {0.995179219f, 0.891093744f, 0.551112701f, 0.134042907f};
    static const float W[4] = {0.000116432483f, 0.0234381599f, 0.196132809f, 0.280312598f};
    SHARE(n, 4, _Pragma("omp simd") for (int64_t i = start; i < stop; i++) {
        const float a = m[i], u = v[i], r = 1.0f / sqrtf(1.0f + u), h = a * r;
        float phi, above;
        normal(fabsf(h), &phi, &above);
        const float below = h > 0 ? 1.0f - above : above, push = r * phi, gain = below + push * h * r;
        float rest = 0.0f;
#define NODE(j)                                                                                        \
    {                                                                                                  \
        const float p = 1.0f / (1.0f + u * (1.0f + T[j])), q = 1.0f / (1.0f + u * (1.0f - T[j]));      \
        const float both = p + q, e = least(a * a * p, 88.0f), k = 2.0f * e * p, pq = p * q;           \
        const float powers = 1.0f + both + 0.75f * both * both - 2.0f * pq                             \
                             + k * (0.25f * k - 1.0f - 2.0f * p + 0.5f * both);                        \
        rest += W[j] * sqrtf(pq) * power(-e) * powers;                                                 \
    }
        NODE(0) NODE(1) NODE(2) NODE(3)
        mean[i] = a * below + u * push;
        var[i] = u * (gain * gain + most(0.159154943f * u * rest, 0.0f));
        slope[i] = gain;
    })
}

/* c + b and 1 / (1 + b) make artanh of E[tanh(a)] out of m; d is 1 - c. See transfer.squash. */
INLINE void bend(float m, float v, float *c, float *b, float *d)
{
    const float e = 1.0f / (1.0f + SLOPE * v), w = v * (HALF_PI + (2.0f - HALF_PI) * e);
    *c = 1.0f / sqrtf(1.0f + w);
    *d = w * *c * *c / (1.0f + *c);
    const float cm = *c * m;
    *b = least((BEND_LARGE + (BEND_SMALL - BEND_LARGE) * e) * *c * cm * cm, LARGEST_BEND);
}

INLINE void squashed(float m, float v, float *mean, float *var, float *slope)
{
    float c, b, d;
    bend(m, v, &c, &b, &d);
    const float g = 1.0f / (1.0f + b), z = m * (c + b) * g, size = fabsf(z);
    const float decay = power(-2.0f * size), p = decay / (1.0f + decay), q = 4.0f * p * (1.0f - p);
    const float n = MIX * v, z2 = z * z;
    /* Near zero 1 - 2 p loses digits: there the odd series of tanh, to 3e-8 below .3. */
    const float odd = 0.133333333f - z2 * (0.0539682540f - 0.0218694885f * z2);
    const float series = size * (1.0f - z2 * (0.333333333f - z2 * odd));
    const float big = 1.0f - 2.0f * p, y = size < 0.3f ? series : big;
    *mean = z < 0 ? -y : y;
    *var = d * q * (q + n * q) / (1.0f + n * q);
    *slope = q * g * (c + b + 2.0f * b * d * g);
}

void tanh_float32(int64_t n, const float *m, const float *v, float *mean, float *var, float *slope)
{
    SHARE(n, 2, _Pragma("omp simd") for (int64_t i = start; i < stop; i++) {
        float y, u, g;
        squashed(m[i], v[i], &y, &u, &g);
        mean[i] = y;
        var[i] = u;
        slope[i] = g;
    })
}

void sigmoid_float32(int64_t n, const float *m, const float *v, float *mean, float *var, float *slope)
{
    SHARE(n, 2, _Pragma("omp simd") for (int64_t i = start; i < stop; i++) {
        float y, u, g;
        squashed(0.5f * m[i], 0.25f * v[i], &y, &u, &g);
        mean[i] = 0.5f + 0.5f * y;
        var[i] = 0.25f * u;
        slope[i] = 0.25f * g;
    })
}

/* The trapezoid rule of elementwise.py: 12 pairs of nodes, half a standard deviation apart. */
#define PAIRS 12
#define BLOCK 64

void silu_float32(int64_t n, const float *m, const float *v, float *mean, float *var, float *slope)
{
    float weight[PAIRS];
    float total = 1.0f;
    for (int k = 0; k < PAIRS; k++) {
        const float z = 0.5f * (float)(k + 1);
        total += 2.0f * (weight[k] = expf(-0.5f * z * z));
    }
    SHARE(n, 16, for (int64_t at = start; at < stop; at += BLOCK) {
        const int64_t size = stop - at < BLOCK ? stop - at : BLOCK;
        float s[BLOCK], middle[BLOCK], first[BLOCK], second[BLOCK], lean[BLOCK];
        _Pragma("omp simd") for (int64_t i = 0; i < size; i++) {
            s[i] = sqrtf(v[at + i]);
            middle[i] = m[at + i] * logistic(m[at + i]);
            first[i] = second[i] = lean[i] = 0.0f;
        }
        for (int k = 0; k < PAIRS; k++) {
            const float z = 0.5f * (float)(k + 1), w = weight[k] / total;
            _Pragma("omp simd") for (int64_t i = 0; i < size; i++) {
                const float up = m[at + i] + z * s[i], down = m[at + i] - z * s[i];
                const float above = up * logistic(up) - middle[i], below = down * logistic(down) - middle[i];
                first[i] += w * (above + below);
                second[i] += w * (above * above + below * below);
                lean[i] += w * z * (above - below);
            }
        }
        _Pragma("omp simd") for (int64_t i = 0; i < size; i++) {
            const float y = logistic(m[at + i]), plain = y * (1.0f + m[at + i] * (1.0f - y));
            /* Of a small variance the quotient loses its digits, and f' itself is as good. */
            const float inner = lean[i] / most(s[i], 1e-10f);
            mean[at + i] = middle[i] + first[i];
            var[at + i] = most(second[i] - first[i] * first[i], 0.0f);
            slope[at + i] = v[at + i] < 1e-5f ? plain : inner;
        }
    })
}

/* softmax.softmax by the rule `fast`, along rows of n. The sigmoid of the certain log-odds is p itself, so that
 * the mean is proportional to the sigmoid of the moved ones. */
void softmax_float32(int64_t rows, int64_t n, const float *m, const float *v, float *mean, float *var)
{
    SHARE(rows, n, for (int64_t row = start; row < stop; row++) {
        const float *a = m + row * n, *u = v + row * n;
        float *y = mean + row * n, *out = var + row * n;
        float top = -INFINITY, largest = 0.0f, sum = 0.0f, once = 0.0f, twice = 0.0f, all = 0.0f;
        _Pragma("omp simd reduction(max : top, largest)") for (int64_t i = 0; i < n; i++) {
            top = most(top, a[i]);
            largest = most(largest, u[i]);
        }
        if (top == -INFINITY)
            top = 0.0f;
        _Pragma("omp simd reduction(+ : sum)") for (int64_t i = 0; i < n; i++) {
            y[i] = power(most(a[i] - top, LEAST));
            sum += y[i];
        }
        const float scale = 1.0f / sum, shift = top + logarithm(sum);
        _Pragma("omp simd reduction(+ : once, twice)") for (int64_t i = 0; i < n; i++) {
            const float p = y[i] * scale;
            y[i] = p;
            once += p * u[i];
            twice += p * p * u[i];
        }
        _Pragma("omp simd reduction(+ : all)") for (int64_t i = 0; i < n; i++) {
            const float p = y[i], q = most(1.0f - p, EPS);
            const float first = least(most((once - p * u[i]) / q, 0.0f), largest);
            const float second = least(most((twice - p * p * u[i]) / (q * q), 0.0f), first);
            const float odds = most(a[i] - shift, LEAST) - logarithm(q), spread = u[i] + second;
            const float moved = odds - 2.0f * logarithm(1.0f + 0.25f * most(first - second, 0.0f));
            float c, b, d;
            bend(0.5f * moved, 0.25f * spread, &c, &b, &d);
            const float z = moved * ((c + b) / (1.0f + b));
            const float decay = power(-fabsf(z)), small = decay / (1.0f + decay);
            /* What power() cuts off at exp(-87) is zero. */
            y[i] = z < -86.0f ? 0.0f : z < 0 ? small : 1.0f - small;
            all += y[i];
            out[i] = spread;
        }
        const float rest = 1.0f / all;
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {
            float c, b, d;
            const float p = y[i] * rest, q = 4.0f * p * most(1.0f - p, 0.0f);
            bend(0.0f, 0.25f * out[i], &c, &b, &d);
            const float k = out[i] * power(SPREAD * least(out[i], 60.0f / SPREAD)) * q;
            y[i] = p;
            out[i] = 0.25f * d * q * ((q + k) / (1.0f + k));
        }
    })
}

/* E[S] as in norms.py; V = r^2 V[x], see `share_noise` there. `weight` and `bias` may be null; `centre` and `scale`
 * have a number for each row. */
void norm_float32(int64_t rows, int64_t n, const float *m, const float *v, const float *weight, const float *bias,
                  double eps, int64_t centred, float *mean, float *var, float *centre, float *scale)
{
    SHARE(rows, n, for (int64_t row = start; row < stop; row++) {
        const float *a = m + row * n, *u = v + row * n;
        float *y = mean + row * n, *out = var + row * n;
        float sum = 0.0f, noise = 0.0f, squares = 0.0f;
        _Pragma("omp simd reduction(+ : sum, noise)") for (int64_t i = 0; i < n; i++) {
            sum += a[i];
            noise += u[i];
        }
        const float c = centred ? sum / (float)n : 0.0f;
        _Pragma("omp simd reduction(+ : squares)") for (int64_t i = 0; i < n; i++)
            squares += (a[i] - c) * (a[i] - c);
        const float part = centred ? 1.0f - 1.0f / (float)n : 1.0f;
        const float r = 1.0f / sqrtf((squares + part * noise) / (float)n + (float)eps);
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {
            const float w = weight ? weight[i] * r : r;
            y[i] = (a[i] - c) * w + (bias ? bias[i] : 0.0f);
            out[i] = u[i] * w * w;
        }
        centre[row] = c;
        scale[row] = r;
    })
}

/* A mask: ratio (m^2 + v) is added to `gain` v. `v` is null where x is certain; then `total` is not written. */
void mask_float32(int64_t n, const float *m, const float *v, double ratio, double gain, float *added, float *total)
{
    const float share = (float)ratio, factor = (float)gain;
    if (!v) {
        SHARE(n, 1, _Pragma("omp simd") for (int64_t i = start; i < stop; i++) added[i] = share * m[i] * m[i];)
        return;
    }
    SHARE(n, 1, _Pragma("omp simd") for (int64_t i = start; i < stop; i++) {
        added[i] = share * (m[i] * m[i] + v[i]);
        total[i] = added[i] + factor * v[i];
    })
}
