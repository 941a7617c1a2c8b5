/* The element-wise part of one step of a recurrence and its derivative, one pass over memory each, for the cells
 * of cells.py by the rules `fast` and `paper`. Built by compiler.py, called by kernel.py.
 *
 * transfer.h (tanh and sigmoid of moments) and cells.h (the steps) are included for float and for double. With
 * OpenMP the functions share torch's own threads.
 */

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
#define LARGEST_BEND 1e18

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

/* exp(-2 x) and 1 - exp(-2 x) for x >= 0, by the Taylor polynomial of 2^f for |f| <= 1/2 (relative error 1.2e-7),
 * so that the compiler can take many lanes at once. The difference from one is taken before the power of two is
 * multiplied in, so that it keeps its digits for small x. Written so that a NaN stays one. */
static inline void decay_of_float(float x, float *decay, float *gone)
{
    float y = x * -2.885390082f; /* -2 / log 2 */
    y = y < -126.0f ? -126.0f : y;
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

static inline void decay_of_double(double x, double *decay, double *gone)
{
    *gone = -expm1(-2 * x);
    *decay = exp(-2 * x);
}

#define REAL float
#define NAME(name) name##_float32
#define INVERSE inverse_of_float
#define INVERSE_ROOT inverse_root_of_float
#define DECAY decay_of_float
#define ABS fabsf
#include "transfer.h"
#include "cells.h"
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
#define DECAY decay_of_double
#define ABS fabs
#include "transfer.h"
#include "cells.h"
