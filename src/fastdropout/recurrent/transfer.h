/* Moments of tanh and sigmoid by the rules `fast` and `paper` of functional/transfer.py, and their derivatives.
 *
 * Included by kernel.c once for float and once for double: REAL, NAME, INVERSE, INVERSE_ROOT, DECAY, ABS, BY_SIGN,
 * AT_MOST and LARGEST_SQUARE are those of the type. A `Unit` holds what both passes need of one unit; all functions
 * are inlined where `rule` and `kind` are constants, so that each combination gets loops of its own and unused
 * fields cost nothing. A unit is passed on by value: where its address is taken, compilers give up on the loop.
 */

typedef struct {
    REAL mean, var;             /* of the unit after its transfer function */
    REAL m, v;                  /* before it, in the units of the rule: fast works on tanh, paper on sigmoid */
    REAL e, a, c, bend, y2, g, d; /* fast: names as in transfer.py, y2 = (c m)^2 */
    REAL t, q, qr;              /* fast: tanh(z), 1 - t^2 and q / (1 + k q) with k = 4 v */
    REAL r, big, n, s, rest, s2, rest2; /* paper: both sigmoids and their complements */
} NAME(Unit);

/* fast: the part that needs no exponential; returns z. */
static ALWAYS_INLINE REAL NAME(squash)(NAME(Unit) *u)
{
    const REAL m = u->m, v = u->v;
    u->e = INVERSE(1 + (REAL)SLOPE * v);
    u->a = (REAL)HALF_PI + (REAL)(2 - HALF_PI) * u->e;
    u->c = INVERSE_ROOT(1 + v * u->a);
    u->bend = (REAL)BEND_LARGE + (REAL)(BEND_SMALL - BEND_LARGE) * u->e;
    const REAL y = u->c * m, y2 = y * y;
    /* Beyond, 1 / (1 + b) does not count beside 1; without the bound b overflows, in float for |m| > 1e19. */
    u->y2 = AT_MOST(y2, LARGEST_SQUARE);
    const REAL b = u->bend * u->c * u->y2;
    const REAL inverse = INVERSE((1 + u->c) * (1 + b));
    u->g = (1 + u->c) * inverse; /* 1 / (1 + b) */
    u->d = v * u->a * u->c * u->c * ((1 + b) * inverse);
    return m * (u->g * (u->c + b));
}

static ALWAYS_INLINE void NAME(post_fast)(int kind, NAME(Unit) *u)
{
    const REAL z = NAME(squash)(u);
    /* With E = exp(-2 |z|): t = tanh z = (1 - E) / (1 + E), q = 1 - t^2 = 4 E / (1 + E)^2. */
    REAL decay, gone;
    DECAY(ABS(z), &decay, &gone);
    const REAL k = (REAL)MIX * u->v, one = 1 + decay;
    const REAL both = one * one + 4 * k * decay; /* (1 + E)^2 (1 + k q) */
    const REAL inverse = INVERSE(one * both), r = both * inverse, t = gone * r;
    u->q = 4 * decay * r * r;
    u->t = BY_SIGN(z, -t, t);
    u->qr = 4 * decay * one * inverse;
    u->var = u->d * u->q * (1 + k) * u->qr;
    u->mean = u->t;
    if (kind == SIGMOID) {
        u->mean = BY_SIGN(z, decay * r, r); /* keeps the digits of a small probability */
        u->var *= (REAL)0.25;
    }
}

/* dm, dv of the units of the rule. */
static ALWAYS_INLINE void NAME(pull_fast)(int kind, NAME(Unit) u, REAL gm, REAL gv, REAL *dm, REAL *dv)
{
    const REAL half = kind == SIGMOID ? (REAL)0.5 : 1;
    gm *= half;
    gv *= half * half;
    const REAL m = u.m, v = u.v, t = u.t, q = u.q, c2 = u.c * u.c, k = (REAL)MIX * v;
    const REAL b = u.bend * u.c * u.y2;
    const REAL qr = u.qr, mg = m * u.g;
    const REAL gz = q * (gm - 2 * t * gv * u.d * (1 + k) * qr * (2 - k * qr));
    const REAL gd = gv * q * qr * (1 + k) - gz * mg;
    const REAL gb = gz * mg * u.d * u.g;
    const REAL gc = 3 * u.bend * u.y2 * gb - gd;
    const REAL gw = (REAL)-0.5 * c2 * (u.c * gc);
    const REAL ge = (REAL)(BEND_SMALL - BEND_LARGE) * u.c * u.y2 * gb + (REAL)(2 - HALF_PI) * v * gw;
    /* dz/dm, of positive terms: for large v it is as small as c. */
    *dm = half * gz * (u.g * (u.c + b + 2 * b * (u.d * u.g)));
    *dv = half * half
        * (gw * u.a - (REAL)SLOPE * u.e * u.e * ge + (REAL)MIX * gv * u.d * qr * qr * t * t);
}

/* sigmoid(z) and 1 - sigmoid(z), each with all its digits. */
static ALWAYS_INLINE void NAME(logistic)(REAL z, REAL *s, REAL *rest)
{
    REAL decay, gone;
    DECAY(ABS(z) * (REAL)0.5, &decay, &gone);
    const REAL high = INVERSE(1 + decay), low = decay * high;
    *s = BY_SIGN(z, low, high);
    *rest = BY_SIGN(z, high, low);
}

/* The paper's rule on sigmoid, tanh(a) = 2 sigmoid(2 a) - 1: with s = sigmoid(m r), s2 = sigmoid(A (m - B) R),
 * mean = s, var = s2 - s^2, which for m > 0 is (1 - s) (1 + s) - (1 - s2), so that little cancels. */
static ALWAYS_INLINE void NAME(post_paper)(int kind, NAME(Unit) *u)
{
    u->r = INVERSE_ROOT(1 + (REAL)(HALF_PI / 4) * u->v);
    u->big = INVERSE_ROOT(1 + (REAL)(HALF_PI / 4 * PAPER_A * PAPER_A) * u->v);
    u->n = (REAL)PAPER_A * (u->m - (REAL)PAPER_B);
    const REAL z = u->m * u->r;
    NAME(logistic)(z, &u->s, &u->rest);
    NAME(logistic)(u->n * u->big, &u->s2, &u->rest2);
    const REAL var = BY_SIGN(u->m, u->s2 - u->s * u->s, u->rest * (1 + u->s) - u->rest2);
    u->mean = u->s;
    u->var = (REAL)0.5 * (var + ABS(var)); /* below 0 by rounding only, so the slope is not touched */
    if (kind == TANH) {
        REAL decay, gone;
        DECAY(ABS(z) * (REAL)0.5, &decay, &gone);
        const REAL t = gone * INVERSE(1 + decay);
        u->mean = BY_SIGN(z, -t, t);
        u->var *= 4;
    }
}

static ALWAYS_INLINE void NAME(pull_paper)(int kind, NAME(Unit) u, REAL gm, REAL gv, REAL *dm, REAL *dv)
{
    const REAL two = kind == TANH ? 2 : 1;
    gm *= two;
    gv *= two * two;
    const REAL gz = u.s * u.rest * (gm - 2 * u.s * gv), gs = u.s2 * u.rest2 * gv;
    *dm = two * (gz * u.r + gs * (REAL)PAPER_A * u.big);
    *dv = two * two * (REAL)(-HALF_PI / 8)
        * (gz * u.m * u.r * (u.r * u.r)
           + gs * u.n * u.big * ((REAL)(PAPER_A * PAPER_A) * u.big * u.big));
}

/* The unit of a pre-synaptic mean and variance. */
static ALWAYS_INLINE NAME(Unit) NAME(unit)(int rule, int kind, REAL m, REAL v)
{
    NAME(Unit) u;
    const int native = (rule == PAPER) == (kind == SIGMOID); /* the function that the rule works on */
    const REAL scale = native ? 1 : rule == PAPER ? 2 : (REAL)0.5;
    u.m = m * scale;
    u.v = v * (scale * scale);
    if (rule == PAPER)
        NAME(post_paper)(kind, &u);
    else
        NAME(post_fast)(kind, &u);
    return u;
}

/* From the gradients of a unit's mean and variance to those of its pre-synaptic ones. */
static ALWAYS_INLINE void NAME(pull)(int rule, int kind, NAME(Unit) u, REAL gm, REAL gv, REAL *dm, REAL *dv)
{
    if (rule == PAPER)
        NAME(pull_paper)(kind, u, gm, gv, dm, dv);
    else
        NAME(pull_fast)(kind, u, gm, gv, dm, dv);
}
