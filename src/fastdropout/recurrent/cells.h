/* The element-wise part of a step for each cell of cells.py, and its derivative: one row of units at a time.
 *
 * A row of `pre` holds the cell's slots one after the other, each of `units` numbers. The input's share stands in
 * the first `gates` slots, the recurrent share is added to the last `gates` slots: for a GRU (gates 3, slots 4:
 * n of the input, r, z, n of the hidden units) they overlap in r and z only.
 */

/* A chunk of steps whose rows stand one below the other. */
typedef struct {
    int64_t units, rule, keeps; /* keeps: a backward pass follows */
    REAL *pre_m, *pre_v;       /* (rows, slots, units): the input's share, to which the other shares are added */
    const REAL *rec_m, *rec_v; /* (rows of the step, gates, units): the recurrent share of the step at hand */
    const REAL *bias;          /* (slots, units) */
    REAL *out_m, *out_v, *out_u; /* (rows, units): the output; u = keep var + keep drop mean^2, after the mask */
    REAL *carry_m, *carry_v;   /* (rows, units): what the cell carries past the product, if it is not the output */
    double noise, keep, spread; /* spread = keep drop */
    const REAL *norms;         /* LSTM: (units) */
    REAL *level;               /* LSTM: (rows): what the variances of the units before make of it, `level` of cells.py */
    const REAL *before_v;      /* LSTM: (rows of the step, units): these variances */
} NAME(Forward);

/* The gradients of a chunk's pre-synaptic moments. */
typedef struct {
    int64_t units, rule;
    const REAL *pre_m, *pre_v, *out_m, *carry_m, *carry_v;
    const REAL *grad_m, *grad_v; /* (rows, units): of the outputs */
    const REAL *next_m, *next_u; /* (pieces, units): of what enters the next step; the mean's has `keep` in it */
    const REAL *last_m, *last_v; /* (pieces, units): of the last output, for pieces that end here */
    REAL *flow_m, *flow_v;       /* (pieces, units): of what is carried, replaced by that of the step before */
    const REAL *end_m, *end_v;   /* (pieces, units): of what was carried last, for pieces that end here */
    REAL *dpre_m, *dpre_v;       /* (rows, slots, units) */
    double keep, spread;
    const REAL *norms, *level;
    REAL *dnorms, *dlevel;       /* (threads, units): added to; (pieces): of the next step, replaced by this one */
} NAME(Backward);

/* A slot of a row: its share of the input, of the hidden units, or both, and the bias. Written back where a
 * backward pass follows. */
#define SLOT(slot, slots, gates, m, v)                                                                 \
    const int64_t at_##m = (slot) * units + i, share_##m = ((slot) - ((slots) - (gates))) * units + i; \
    REAL m = bias[at_##m], v = 0;                                                                      \
    if ((slot) < (gates)) {                                                                            \
        m += pre_m[at_##m];                                                                            \
        v += pre_v[at_##m];                                                                            \
    }                                                                                                  \
    if ((slot) >= (slots) - (gates)) {                                                                 \
        m += rec_m[share_##m];                                                                         \
        v += rec_v[share_##m];                                                                         \
    }                                                                                                  \
    if (keeps) {                                                                                       \
        pre_m[at_##m] = m;                                                                             \
        pre_v[at_##m] = v;                                                                             \
    }

#define WRITE_OUT(mean, variance)                                                                      \
    do {                                                                                               \
        const REAL out_mean = (mean), out_var = (variance) + noise;                                    \
        out_m[i] = out_mean;                                                                           \
        out_v[i] = out_var;                                                                            \
        out_u[i] = keep * out_var + spread * out_mean * out_mean;                                      \
    } while (0)

#define FORWARD_ARGUMENTS                                                                              \
    int rule, int keeps, int64_t units, REAL *restrict pre_m, REAL *restrict pre_v,                    \
        const REAL *restrict rec_m,                                                                    \
        const REAL *restrict rec_v, const REAL *restrict bias, REAL *restrict out_m,                   \
        REAL *restrict out_v, REAL *restrict out_u, REAL *restrict carry_m, REAL *restrict carry_v,    \
        const REAL *in_m, const REAL *in_v, REAL noise, REAL keep, REAL spread,                        \
        const REAL *restrict norms, REAL level

/* gm, gv: the gradient of the output that reaches a unit from the loss, from the next step through the mask
 * (twice = 2 keep drop there; next is last and twice 0 where the piece ends). */
#define BACKWARD_ARGUMENTS                                                                             \
    int rule, int64_t units, const REAL *restrict pre_m, const REAL *restrict pre_v,                   \
        const REAL *restrict out_m, const REAL *restrict carry_m, const REAL *restrict carry_v,        \
        const REAL *restrict grad_m, const REAL *restrict grad_v, const REAL *restrict next_m,         \
        const REAL *restrict next_u, REAL *flow_m, REAL *flow_v, const REAL *from_m,                   \
        const REAL *from_v, const REAL *restrict in_m, const REAL *restrict in_v,                      \
        REAL *restrict dpre_m, REAL *restrict dpre_v, REAL keep, REAL twice,                           \
        const REAL *restrict norms, REAL level, REAL *restrict dnorms, REAL *dlevel, REAL from_level
#define GRADIENT                                                                                       \
    REAL gm = grad_m[i] + next_m[i] + twice * out_m[i] * next_u[i], gv = grad_v[i] + keep * next_u[i]

/* Units do not depend on each other, which the compiler cannot see of `flow`, read and written in place. */
#define UNITS_APART _Pragma("omp simd")

/* Product of two independent variables, and its derivative. */
#define PRODUCT_VAR(am, av, bm, bv) ((av) * (bv) + (av) * (bm) * (bm) + (am) * (am) * (bv))
/* adds to (dam, dav) the gradient (gm, gv) of the product with (bm, bv) */
#define PULL_PRODUCT(am, bm, bv, gm, gv, dam, dav)                                                     \
    dam += (gm) * (bm) + 2 * (gv) * (am) * (bv);                                                       \
    dav += (gv) * ((bv) + (bm) * (bm))

/* keep^2 times the mean variance of the units that enter a row, without the noise that is added at each step. */
static ALWAYS_INLINE REAL NAME(level)(const NAME(Forward) * p, int64_t first, int64_t row)
{
    const REAL *var = p->before_v + row * p->units;
    REAL sum = 0;
    _Pragma("omp simd reduction(+ : sum)")
    for (int64_t i = 0; i < p->units; i++)
        sum += var[i];
    REAL mean = sum / (REAL)p->units;
    if (p->noise > 0)
        mean = mean > (REAL)p->noise ? mean - (REAL)p->noise : 0;
    return p->level[first + row] = (REAL)(p->keep * p->keep) * mean;
}

/* functional.recurring_covariance: the root S of S^2 + (J - N) S - 2 N f^2 V[c] = 0. */
typedef struct {
    REAL by_var, excess;         /* 1 / V[a], or 1 / X where X exceeds it; positive there */
    REAL part, noise;            /* X / V[a], N */
    REAL by_root, by_sum, value; /* 1 / sqrt((J - N)^2 + 8 N f^2 V[c]), 1 / (J - N + that root), S */
} NAME(Returning);

#define POSITIVE(x) ((REAL)0.5 * ((x) + ABS(x)))

/* `entering` is E[i]^2 V[g], `other` what c receives beside it. */
static ALWAYS_INLINE NAME(Returning) NAME(returning)(REAL entering, REAL other, REAL av, REAL recurring,
                                                     REAL f2, REAL cv)
{
    NAME(Returning) s;
    s.excess = recurring - av * (REAL)(1 + TIE * ROUNDING);
    s.by_var = INVERSE(BY_SIGN(s.excess, av, recurring) + (REAL)SMALLEST_SQUARE);
    s.part = recurring * s.by_var;
    s.part -= POSITIVE(s.part - 1); /* above by rounding, which is not differentiated */
    s.noise = entering * s.part;
    /* The bounds are for the squares; beyond, S does not count beside V[c]. */
    const REAL rest = AT_MOST(other + entering * (1 - s.part), LARGEST_ROOT);
    const REAL held = AT_MOST(s.noise * f2 * cv, LARGEST_SQUARE);
    const REAL square = rest * rest + 8 * held + (REAL)SMALLEST_SQUARE;
    s.by_root = INVERSE_ROOT(square);
    s.by_sum = INVERSE(rest + square * s.by_root);
    s.value = 4 * held * s.by_sum;
    return s;
}

/* ---- tanh: h = tanh(a) ---- */
static ALWAYS_INLINE void NAME(forward_row_tanh)(FORWARD_ARGUMENTS)
{
    (void)carry_m, (void)carry_v, (void)in_m, (void)in_v, (void)norms, (void)level;
    UNITS_APART
    for (int64_t i = 0; i < units; i++) {
        SLOT(0, 1, 1, m, v);
        const NAME(Unit) y = NAME(unit)(rule, TANH, m, v);
        WRITE_OUT(y.mean, y.var);
    }
}

static ALWAYS_INLINE void NAME(backward_row_tanh)(BACKWARD_ARGUMENTS)
{
    (void)carry_m, (void)carry_v, (void)flow_m, (void)flow_v, (void)from_m, (void)from_v, (void)in_m, (void)in_v;
    (void)norms, (void)level, (void)dnorms, (void)dlevel, (void)from_level;
    UNITS_APART
    for (int64_t i = 0; i < units; i++) {
        GRADIENT;
        const NAME(Unit) y = NAME(unit)(rule, TANH, pre_m[i], pre_v[i]);
        NAME(pull)(rule, TANH, y, gm, gv, dpre_m + i, dpre_v + i);
    }
}

/* ---- LSTM: c = f c + i g, h = o tanh(c); slots i, f, g, o ---- */
static ALWAYS_INLINE void NAME(forward_row_lstm)(FORWARD_ARGUMENTS)
{
    UNITS_APART
    for (int64_t i = 0; i < units; i++) {
        SLOT(0, 4, 4, im, iv);
        SLOT(1, 4, 4, fm, fv);
        SLOT(2, 4, 4, gm, gv);
        SLOT(3, 4, 4, om, ov);
        const NAME(Unit) in = NAME(unit)(rule, SIGMOID, im, iv), forget = NAME(unit)(rule, SIGMOID, fm, fv);
        const NAME(Unit) fresh = NAME(unit)(rule, TANH, gm, gv), out = NAME(unit)(rule, SIGMOID, om, ov);
        const REAL cm = forget.mean * in_m[i] + in.mean * fresh.mean;
        const REAL f2 = forget.mean * forget.mean, entering = in.mean * in.mean * fresh.var;
        const REAL other = forget.var * (in_m[i] * in_m[i] + in_v[i])
            + in.var * (fresh.mean * fresh.mean + fresh.var);
        const NAME(Returning) s =
            NAME(returning)(entering, other, gv, level * norms[i], f2, in_v[i]);
        const REAL cv = f2 * in_v[i] + other + entering + s.value;
        carry_m[i] = cm;
        carry_v[i] = cv;
        const NAME(Unit) shown = NAME(unit)(rule, TANH, cm, cv);
        WRITE_OUT(out.mean * shown.mean, PRODUCT_VAR(out.mean, out.var, shown.mean, shown.var));
    }
}

static ALWAYS_INLINE void NAME(backward_row_lstm)(BACKWARD_ARGUMENTS)
{
    REAL total = 0;
    _Pragma("omp simd reduction(+ : total)")
    for (int64_t i = 0; i < units; i++) {
        GRADIENT;
        gv += from_level;
        const NAME(Unit) in = NAME(unit)(rule, SIGMOID, pre_m[i], pre_v[i]);
        const NAME(Unit) forget = NAME(unit)(rule, SIGMOID, pre_m[units + i], pre_v[units + i]);
        const NAME(Unit) fresh = NAME(unit)(rule, TANH, pre_m[2 * units + i], pre_v[2 * units + i]);
        const NAME(Unit) out = NAME(unit)(rule, SIGMOID, pre_m[3 * units + i], pre_v[3 * units + i]);
        const NAME(Unit) shown = NAME(unit)(rule, TANH, carry_m[i], carry_v[i]);
        const REAL square = in_m[i] * in_m[i] + in_v[i], f2 = forget.mean * forget.mean;
        const REAL i2 = in.mean * in.mean, entering = i2 * fresh.var;
        const NAME(Returning) s = NAME(returning)(
            entering, forget.var * square + in.var * (fresh.mean * fresh.mean + fresh.var),
            pre_v[2 * units + i], level * norms[i], f2, in_v[i]);
        REAL dm = 0, dv = 0;
        PULL_PRODUCT(out.mean, shown.mean, shown.var, gm, gv, dm, dv);
        NAME(pull)(rule, SIGMOID, out, dm, dv, dpre_m + 3 * units + i, dpre_v + 3 * units + i);
        dm = 0, dv = 0;
        PULL_PRODUCT(shown.mean, out.mean, out.var, gm, gv, dm, dv);
        REAL cm, cv;
        NAME(pull)(rule, TANH, shown, dm, dv, &cm, &cv);
        cm += from_m[i];
        cv += from_v[i];
        /* of S: dS/d held = 4 by_sum (1 - S by_root), dS/d rest = -S by_root */
        const REAL down = s.value * s.by_root, d_held = 4 * cv * s.by_sum * (1 - down);
        const REAL d_other = cv - cv * down, d_kept = cv + d_held * s.noise; /* and of f^2 V[c] */
        const REAL d_noise = d_held * f2 * in_v[i] + cv * down; /* of N in both places */
        const REAL d_entering = d_other + d_noise * s.part;
        const REAL d_recurring = BY_SIGN(s.excess, d_noise * entering * s.by_var, (REAL)0);
        dnorms[i] += d_recurring * level;
        total += d_recurring * norms[i];
        dm = cm * fresh.mean + 2 * d_entering * in.mean * fresh.var;
        dv = d_other * (fresh.mean * fresh.mean + fresh.var);
        NAME(pull)(rule, SIGMOID, in, dm, dv, dpre_m + i, dpre_v + i);
        dm = cm * in.mean + 2 * d_other * fresh.mean * in.var, dv = d_other * in.var + d_entering * i2;
        NAME(pull)(rule, TANH, fresh, dm, dv, dpre_m + 2 * units + i, dpre_v + 2 * units + i);
        dpre_v[2 * units + i] -= d_recurring * s.part;
        dm = cm * in_m[i] + 2 * d_kept * forget.mean * in_v[i], dv = d_other * square;
        NAME(pull)(rule, SIGMOID, forget, dm, dv, dpre_m + units + i, dpre_v + units + i);
        flow_m[i] = cm * forget.mean + 2 * d_other * in_m[i] * forget.var;
        flow_v[i] = d_other * forget.var + d_kept * f2;
    }
    *dlevel = total;
}

/* ---- GRU: n = tanh(n_x + r n_h), h = n + z (h - n); slots n_x, r, z, n_h ---- */
static ALWAYS_INLINE void NAME(forward_row_gru)(FORWARD_ARGUMENTS)
{
    (void)carry_m, (void)carry_v, (void)norms, (void)level;
    UNITS_APART
    for (int64_t i = 0; i < units; i++) {
        SLOT(0, 4, 3, xm, xv);
        SLOT(1, 4, 3, rm, rv);
        SLOT(2, 4, 3, zm, zv);
        SLOT(3, 4, 3, hm, hv);
        const NAME(Unit) reset = NAME(unit)(rule, SIGMOID, rm, rv), z = NAME(unit)(rule, SIGMOID, zm, zv);
        const NAME(Unit) n =
            NAME(unit)(rule, TANH, xm + reset.mean * hm, xv + PRODUCT_VAR(reset.mean, reset.var, hm, hv));
        const REAL gap = in_m[i] - n.mean, stays = 1 - z.mean;
        WRITE_OUT(n.mean + z.mean * gap,
                  (stays * stays + z.var) * n.var + (z.mean * z.mean + z.var) * in_v[i] + z.var * gap * gap);
    }
}

static ALWAYS_INLINE void NAME(backward_row_gru)(BACKWARD_ARGUMENTS)
{
    (void)carry_m, (void)carry_v, (void)norms, (void)level, (void)dnorms, (void)dlevel, (void)from_level;
    UNITS_APART
    for (int64_t i = 0; i < units; i++) {
        GRADIENT;
        gm += from_m[i];
        gv += from_v[i];
        const REAL hm = pre_m[3 * units + i], hv = pre_v[3 * units + i];
        const NAME(Unit) reset = NAME(unit)(rule, SIGMOID, pre_m[units + i], pre_v[units + i]);
        const NAME(Unit) z = NAME(unit)(rule, SIGMOID, pre_m[2 * units + i], pre_v[2 * units + i]);
        const NAME(Unit) n = NAME(unit)(rule, TANH, pre_m[i] + reset.mean * hm,
                                        pre_v[i] + PRODUCT_VAR(reset.mean, reset.var, hm, hv));
        const REAL gap = in_m[i] - n.mean, stays = 1 - z.mean, both = gv * z.var;
        REAL dm = gm * gap + 2 * gv * (z.mean * in_v[i] - stays * n.var);
        REAL dv = gv * (n.var + in_v[i] + gap * gap);
        NAME(pull)(rule, SIGMOID, z, dm, dv, dpre_m + 2 * units + i, dpre_v + 2 * units + i);
        REAL am, av;
        NAME(pull)(rule, TANH, n, gm * stays - 2 * both * gap, gv * (stays * stays) + both, &am, &av);
        flow_m[i] = gm * z.mean + 2 * both * gap;
        flow_v[i] = gv * (z.mean * z.mean) + both;
        dpre_m[i] = am;
        dpre_v[i] = av;
        dm = 0, dv = 0;
        PULL_PRODUCT(reset.mean, hm, hv, am, av, dm, dv);
        NAME(pull)(rule, SIGMOID, reset, dm, dv, dpre_m + units + i, dpre_v + units + i);
        dm = 0, dv = 0;
        PULL_PRODUCT(hm, reset.mean, reset.var, am, av, dm, dv);
        dpre_m[3 * units + i] = dm;
        dpre_v[3 * units + i] = dv;
    }
}

/* The exported functions of a cell. `forward`: the step of `rows` rows from row `first` of the chunk; `in` is what
 * the cell carries into the step. `backward`: of these rows, the first `common` have a next step. */
#define CELL(cell, slots, gates)                                                                       \
    static ALWAYS_INLINE void NAME(forward_rows_##cell)(int rule, int keeps,                           \
                                                        const NAME(Forward) * p, int64_t first,        \
                                                         int64_t start, int64_t stop,    \
                                                        const REAL *in_m, const REAL *in_v)            \
    {                                                                                                  \
        for (int64_t row = start; row < stop; row++) {                                                 \
            const int64_t here = (first + row) * p->units, step = row * p->units;                      \
            const int64_t pre = here * (slots), rec = step * (gates);                                  \
            NAME(forward_row_##cell)(rule, keeps, p->units, p->pre_m + pre, p->pre_v + pre,                   \
                                     p->rec_m + rec, p->rec_v + rec, p->bias, p->out_m + here,         \
                                     p->out_v + here, p->out_u + here, p->carry_m + here,              \
                                     p->carry_v + here, in_m + step, in_v + step, (REAL)p->noise,      \
                                     (REAL)p->keep, (REAL)p->spread, p->norms,                         \
                                     p->level ? NAME(level)(p, first, row) : 0);                       \
        }                                                                                              \
    }                                                                                                  \
    static NOINLINE void NAME(forward_part_##cell)(const NAME(Forward) * p, int64_t first,             \
                                                   int64_t start, int64_t stop, const REAL *in_m,      \
                                                   const REAL *in_v)                                   \
    {                                                                                                  \
        if (p->rule == PAPER && p->keeps)                                                              \
            NAME(forward_rows_##cell)(PAPER, 1, p, first, start, stop, in_m, in_v);                    \
        else if (p->rule == PAPER)                                                                     \
            NAME(forward_rows_##cell)(PAPER, 0, p, first, start, stop, in_m, in_v);                    \
        else if (p->keeps)                                                                             \
            NAME(forward_rows_##cell)(FAST, 1, p, first, start, stop, in_m, in_v);                     \
        else                                                                                           \
            NAME(forward_rows_##cell)(FAST, 0, p, first, start, stop, in_m, in_v);                     \
    }                                                                                                  \
    void NAME(forward_##cell)(const NAME(Forward) * p, int64_t first, int64_t rows, const REAL *in_m,  \
                              const REAL *in_v)                                                        \
    {                                                                                                  \
        SHARE(rows, p->units * (slots), NAME(forward_part_##cell)(p, first, start, stop, in_m, in_v))  \
    }                                                                                                  \
    static ALWAYS_INLINE void NAME(backward_rows_##cell)(int rule, const NAME(Backward) * p,           \
                                                         int64_t first, int64_t common, int64_t start, \
                                                         int64_t stop, int64_t mine, const REAL *in_m, \
                                                         const REAL *in_v)                             \
    {                                                                                                  \
        const REAL keep = (REAL)p->keep, twice = (REAL)(2 * p->spread);                                \
        const REAL share = (REAL)(p->keep * p->keep / (double)p->units); /* of a unit in `level` */    \
        for (int64_t row = start; row < stop; row++) {                                                 \
            const int on = row < common;                                                               \
            const int64_t here = (first + row) * p->units, step = row * p->units, pre = here * (slots);\
            NAME(backward_row_##cell)(rule, p->units, p->pre_m + pre, p->pre_v + pre, p->out_m + here, \
                                      p->carry_m + here, p->carry_v + here, p->grad_m + here,          \
                                      p->grad_v + here, (on ? p->next_m : p->last_m) + step,           \
                                      (on ? p->next_u : p->last_v) + step, p->flow_m + step,           \
                                      p->flow_v + step, (on ? p->flow_m : p->end_m) + step,            \
                                      (on ? p->flow_v : p->end_v) + step, in_m + step, in_v + step,    \
                                      p->dpre_m + pre, p->dpre_v + pre, on ? keep : 1, on ? twice : 0, \
                                      p->norms, p->level ? p->level[first + row] : 0,                  \
                                      p->dnorms + mine * p->units, p->dlevel + row,                    \
                                      on && p->dlevel ? share * p->dlevel[row] : 0);                   \
        }                                                                                              \
    }                                                                                                  \
    static NOINLINE void NAME(backward_part_##cell)(const NAME(Backward) * p, int64_t first,           \
                                                    int64_t common, int64_t start, int64_t stop,       \
                                                    int64_t mine, const REAL *in_m, const REAL *in_v)  \
    {                                                                                                  \
        if (p->rule == PAPER)                                                                          \
            NAME(backward_rows_##cell)(PAPER, p, first, common, start, stop, mine, in_m, in_v);        \
        else                                                                                           \
            NAME(backward_rows_##cell)(FAST, p, first, common, start, stop, mine, in_m, in_v);         \
    }                                                                                                  \
    void NAME(backward_##cell)(const NAME(Backward) * p, int64_t first, int64_t rows, int64_t common,  \
                               const REAL *in_m, const REAL *in_v)                                     \
    {                                                                                                  \
        SHARE(rows, p->units * (slots),                                                                \
              NAME(backward_part_##cell)(p, first, common, start, stop, mine, in_m, in_v))             \
    }

CELL(tanh, 1, 1)
CELL(lstm, 4, 4)
CELL(gru, 4, 3)
#undef CELL
#undef SLOT
#undef WRITE_OUT
#undef FORWARD_ARGUMENTS
#undef BACKWARD_ARGUMENTS
#undef GRADIENT
#undef UNITS_APART
#undef PRODUCT_VAR
#undef PULL_PRODUCT
#undef POSITIVE
