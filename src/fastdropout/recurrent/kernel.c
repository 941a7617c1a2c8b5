/* The element-wise part of one step of a recurrence and its derivative, one pass over memory each, for the cells
 * of cells.py by the rules `fast` and `paper`. Built by compiler.py, called by kernel.py.
 *
 * transfer.h (tanh and sigmoid of moments) and cells.h (the steps) are included for float and for double. With
 * OpenMP the functions share torch's own threads.
 */

#include <float.h>
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
/* Those of propagate.py. */
#define SMALLEST_SQUARE 1e-36
#define TIE 16

/* Rules and kinds of units; each combination gets loops of its own, as the functions are expanded in place. */
enum { FAST, PAPER };
enum { TANH, SIGMOID };
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

/* Runs a statement on rows [start, stop) that cover [0, rows), one range a thread. Below 4096 elements, waking
 * a second thread costs more than it saves; and not by OpenMP's `if`, whose team of one makes its library end the
 * other threads and start new ones at the next product. */
#ifdef _OPENMP
#include <omp.h>
#define SHARE(rows, units, ...)                                                                        \
    if ((rows) * (units) < 4096) {                                                                     \
        const int64_t mine = 0, start = 0, stop = (rows);                                              \
        (void)mine;                                                                                    \
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
    const int64_t mine = 0, start = 0, stop = (rows);                                                  \
    (void)mine;                                                                                        \
    __VA_ARGS__;
#endif

/* How many threads may share rows: as many sums are kept apart. */
int64_t most_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

/* Choices, of bits: in large loops compilers make branches of those that are written as such.
 *
 * Of two numbers the one for the sign of x. */
static ALWAYS_INLINE float by_sign_of_float(float x, float negative, float positive)
{
    int32_t sign, a, b;
    memcpy(&sign, &x, 4);
    memcpy(&a, &negative, 4);
    memcpy(&b, &positive, 4);
    sign >>= 31;
    a = (a & sign) | (b & ~sign);
    memcpy(&x, &a, 4);
    return x;
}

static ALWAYS_INLINE double by_sign_of_double(double x, double negative, double positive)
{
    int64_t sign, a, b;
    memcpy(&sign, &x, 8);
    memcpy(&a, &negative, 8);
    memcpy(&b, &positive, 8);
    sign >>= 63;
    a = (a & sign) | (b & ~sign);
    memcpy(&x, &a, 8);
    return x;
}

/* min(x, most) for x >= 0; a NaN, whose bits are above those of infinity, stays one. */
static ALWAYS_INLINE float at_most_float(float x, float most)
{
    int32_t a, b;
    memcpy(&a, &x, 4);
    memcpy(&b, &most, 4);
    const int32_t above = ((b - a) >> 31) & ((a - 0x7f800001) >> 31);
    a = (b & above) | (a & ~above);
    memcpy(&x, &a, 4);
    return x;
}

static ALWAYS_INLINE double at_most_double(double x, double most)
{
    int64_t a, b;
    memcpy(&a, &x, 8);
    memcpy(&b, &most, 8);
    const int64_t above = ((b - a) >> 63) & ((a - 0x7ff0000000000001) >> 63);
    a = (b & above) | (a & ~above);
    memcpy(&x, &a, 8);
    return x;
}

/* exp(-2 x) and 1 - exp(-2 x) for x >= 0, by the Taylor polynomial of 2^f for |f| <= 1/2 (relative error 1.2e-7),
 * so that the compiler can take many lanes at once. The difference from one is taken before the power of two is
 * multiplied in, so that it keeps its digits for small x. */
static ALWAYS_INLINE void decay_of_float(float x, float *decay, float *gone)
{
    float y = at_most_float(x, 43.6f) * -2.885390082f; /* -2 / log 2 */
    float shifted = y + 12582912.0f; /* rounds to the nearest whole number, left in the lowest bits */
    float f = y - (shifted - 12582912.0f), f2 = f * f;
    float low = 2.4022651e-1f + f * 5.5504109e-2f, high = 9.6181291e-3f + f * 1.3333558e-3f;
    float p = f * 6.9314718e-1f + f2 * (low + f2 * (high + f2 * 1.5403530e-4f)); /* 2^f - 1 */
    int32_t bits;
    float scale;
    memcpy(&bits, &shifted, 4);
    bits = (bits + 127) << 23;
    memcpy(&scale, &bits, 4);
    *decay = scale + scale * p;
    *gone = (1.0f - scale) - scale * p;
}

/* The same with as many terms as a double needs (relative error 2e-16). */
static ALWAYS_INLINE void decay_of_double(double x, double *decay, double *gone)
{
    double y = at_most_double(x, 354.0) * -2.8853900817779268;
    double shifted = y + 6755399441055744.0;
    double f = (y - (shifted - 6755399441055744.0)) * 0.69314718055994531, f2 = f * f, f4 = f2 * f2;
    double a = 1.0 / 2 + f * (1.0 / 6) + f2 * (1.0 / 24 + f * (1.0 / 120));
    double b = 1.0 / 720 + f * (1.0 / 5040) + f2 * (1.0 / 40320 + f * (1.0 / 362880));
    double c = 1.0 / 3628800 + f * (1.0 / 39916800) + f2 * (1.0 / 479001600 + f * (1.0 / 6227020800));
    double p = f + f2 * (a + f4 * (b + f4 * c)); /* exp(f) - 1 */
    int64_t bits;
    double scale;
    memcpy(&bits, &shifted, 8);
    bits = (int64_t)((uint64_t)(bits + 1023) << 52);
    memcpy(&scale, &bits, 8);
    *decay = scale + scale * p;
    *gone = (1.0 - scale) - scale * p;
}

#define REAL float
#define NAME(name) name##_float32
#define INVERSE(x) (1 / (x))
#define INVERSE_ROOT(x) (1 / sqrtf(x))
#define DECAY decay_of_float
#define ABS fabsf
#define BY_SIGN by_sign_of_float
#define AT_MOST at_most_float
#define LARGEST_SQUARE 1e36f
#define LARGEST_ROOT 1e18f
#define ROUNDING FLT_EPSILON
#include "transfer.h"
#include "cells.h"
#undef REAL
#undef NAME
#undef INVERSE
#undef INVERSE_ROOT
#undef DECAY
#undef ABS
#undef BY_SIGN
#undef AT_MOST
#undef LARGEST_SQUARE
#undef LARGEST_ROOT
#undef ROUNDING

#define REAL double
#define NAME(name) name##_float64
#define INVERSE(x) (1 / (x))
#define INVERSE_ROOT(x) (1 / sqrt(x))
#define DECAY decay_of_double
#define ABS fabs
#define BY_SIGN by_sign_of_double
#define AT_MOST at_most_double
#define LARGEST_SQUARE 1e300
#define LARGEST_ROOT 1e150
#define ROUNDING DBL_EPSILON
#include "transfer.h"
#include "cells.h"
