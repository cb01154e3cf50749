/* Tests the kernels of recurrent layers and op_delta: other instruction sets against the reference,
 * bit for bit; any cut of the rows into steps and any number of threads, bit for bit; and all of it
 * against the equations in double. */
#include "kernels/ops.h"
#include "util_kernels.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SETS = 2 };

/* ---- the table's entries ---- */

/* Compares the outputs and states of t with the reference's on one random run of rows. */
static void compare_rule(struct rng *r, const struct kern_table *t, size_t every, bool by_channel)
{
    const struct kern_table ref = table_ref();
    const size_t n = 1 + rng_below(r, 150), keys = 1 + rng_below(r, 40), rows = 1 + rng_below(r, 9);
    const size_t n_gates = by_channel ? keys + 1 : 2;
    float *q = test_floats(rows * keys), *k = test_floats(rows * keys), *v = test_floats(rows * n);
    float *gates = test_floats(rows * n_gates), *state[2], *out[2];
    rng_floats(r, q, rows * keys, 0.5f);
    rng_floats(r, k, rows * keys, 0.5f);
    rng_floats(r, v, rows * n, 2.0f);
    rng_floats(r, gates, rows * n_gates, 1.0f);
    if (every > 0) rng_specials(r, k, rows * keys, every);
    for (int i = 0; i < 2; i++) {
        state[i] = test_floats(keys * n);
        out[i] = test_floats(rows * n);
        if (i == 0) rng_floats(r, state[0], keys * n, 1.0f);
        if (i == 1) memcpy(state[1], state[0], keys * n * sizeof(float));
    }
    for (int i = 0; i < 2; i++)
        (i == 0 ? &ref : t)
            ->delta_rule(&(struct state_run){.q = q,
                                             .k = k,
                                             .v = v,
                                             .decay = gates,
                                             .beta = gates + n_gates - 1,
                                             .out = out[i],
                                             .state = state[i],
                                             .n_rows = rows,
                                             .n = n,
                                             .key_dim = keys,
                                             .key_stride = keys,
                                             .value_stride = n,
                                             .gate_stride = n_gates,
                                             .out_stride = n,
                                             .state_stride = n,
                                             .by_channel = by_channel});
    CU_ASSERT_EQUAL(count_different(out[0], out[1], rows * n), 0);
    CU_ASSERT_EQUAL(count_different(state[0], state[1], keys * n), 0);
    for (int i = 0; i < 2; i++) free(state[i]);
    for (int i = 0; i < 2; i++) free(out[i]);
    free(q);
    free(k);
    free(v);
    free(gates);
}

static void sets_agree_on_the_rule(void)
{
    const struct kern_table sets[SETS] = {table_in_turn(0), table_in_turn(1)};
    struct rng r = {21};
    for (size_t i = 0; i < 400; i++)
        compare_rule(&r, &sets[i % SETS], i % 200 < 100 ? 0 : 9, i >= 200);
}

static void sets_agree_on_convolution_and_gates(void)
{
    const struct kern_table ref = table_ref();
    struct rng r = {22};
    for (size_t i = 0; i < 200; i++) {
        const struct kern_table t = table_in_turn(i);
        const size_t n = 1 + rng_below(&r, 80), n_taps = 1 + rng_below(&r, 6);
        float *x = test_floats(n_taps * n), *w = test_floats(n_taps * n), *y[2];
        const float *rows[6];
        rng_floats(&r, x, n_taps * n, 4.0f);
        rng_floats(&r, w, n_taps * n, 1.0f);
        if (i >= 100) rng_specials(&r, x, n_taps * n, 7);
        for (size_t j = 0; j < n_taps; j++) rows[j] = x + j * n;
        for (int j = 0; j < 2; j++) y[j] = test_floats(n);
        ref.conv_silu(rows, n_taps, w, n, n, y[0]);
        t.conv_silu(rows, n_taps, w, n, n, y[1]);
        CU_ASSERT_EQUAL(count_different(y[0], y[1], n), 0);
        ref.sigmoid_mul(x, n, y[0]);
        t.sigmoid_mul(x, n, y[1]);
        CU_ASSERT_EQUAL(count_different(y[0], y[1], n), 0);
        for (int j = 0; j < 2; j++) free(y[j]);
        free(x);
        free(w);
    }
}

/* ---- the op ---- */

/* A layer and the projections of the rows of one sequence: q, k, v, z of a key head side by side.
 */
struct layer {
    struct delta_shape s;
    size_t n_rows, head;     /* counts: rows of the sequence; elements of a key head in a row */
    size_t per_value, gates; /* counts: decays of a value head; decays and betas of a row */
    float *qkvz, *ab, *conv, *gates_of, *norm;
};

static struct layer layer_make(struct rng *r, struct delta_shape s, size_t n_rows)
{
    const size_t n_v = (size_t)s.per_key * s.value_dim, values = delta_value_heads(&s);
    struct layer l = {.s = s, .n_rows = n_rows, .head = 2 * s.key_dim + 2 * n_v};
    l.per_value = s.by_channel ? s.key_dim : 1;
    l.gates = values * (1 + l.per_value);
    l.qkvz = test_floats(n_rows * s.n_heads * l.head);
    l.ab = test_floats(n_rows * l.gates);
    l.conv = test_floats(s.n_taps * delta_channels(&s));
    l.gates_of = test_floats(l.gates);
    l.norm = test_floats(s.value_dim);
    rng_floats(r, l.qkvz, n_rows * s.n_heads * l.head, 2.0f);
    rng_floats(r, l.ab, n_rows * l.gates, 3.0f);
    rng_floats(r, l.conv, s.n_taps * delta_channels(&s), 1.0f);
    rng_floats(r, l.gates_of, l.gates, 1.0f);
    rng_floats(r, l.norm, s.value_dim, 1.0f);
    return l;
}

static void layer_free(struct layer *l)
{
    free(l->qkvz);
    free(l->ab);
    free(l->conv);
    free(l->gates_of);
    free(l->norm);
}

static size_t state_floats(const struct delta_shape *s, bool of_conv)
{
    return of_conv ? (s->n_taps - 1) * delta_channels(s)
                   : delta_value_heads(s) * s->key_dim * s->value_dim;
}

/* Runs one step: one row of another sequence, which begins in slot 0, then rows [row0, row0 + n) of
 * the layer's sequence, whose states are in `slot`. Writes the n rows of outputs to `out`. */
static void run_rows(const struct layer *l, const struct kern_table *k, struct delta_states states,
                     uint32_t slot, size_t row0, size_t n, float *out)
{
    const struct delta_shape *s = &l->s;
    const size_t width = s->n_heads * l->head, values = delta_value_heads(s);
    const size_t n_out = values * s->value_dim, total = n + 1;
    float *x = test_floats(total * width), *ab = test_floats(total * l->gates);
    float *mixed = test_floats(total * delta_channels(s)), *gates = test_floats(total * l->gates);
    float *all = test_floats(total * n_out);
    memcpy(x, l->qkvz, width * sizeof *x);
    memcpy(ab, l->ab, l->gates * sizeof *ab);
    memcpy(x + width, l->qkvz + row0 * width, n * width * sizeof *x);
    memcpy(ab + l->gates, l->ab + row0 * l->gates, n * l->gates * sizeof *ab);
    const struct seq_rows seqs[2] = {{.n_rows = 1},
                                     {.row0 = 1, .n_rows = n, .pos0 = row0, .slot = slot}};
    const size_t d = s->key_dim, n_v = (size_t)s->per_key * s->value_dim;
    const struct delta_args a = {.shape = *s,
                                 .q = {x, width, l->head},
                                 .k = {x + d, width, l->head},
                                 .v = {x + 2 * d, width, l->head},
                                 .z = {x + 2 * d + n_v, width, l->head},
                                 .b = {ab, l->gates, l->gates / s->n_heads},
                                 .a = {ab + s->per_key, l->gates, l->gates / s->n_heads},
                                 .conv = l->conv,
                                 .decay_log = l->gates_of,
                                 .step_bias = l->gates_of + values,
                                 .norm = l->norm,
                                 .query_scale = 1.0f / sqrtf((float)d),
                                 .states = states,
                                 .seqs = seqs,
                                 .n_seqs = 2,
                                 .n_rows = total,
                                 .mixed = mixed,
                                 .gates = gates,
                                 .out = all};
    op_delta(k, &a);
    memcpy(out, all + n_out, n * n_out * sizeof *out);
    free(x);
    free(ab);
    free(mixed);
    free(gates);
    free(all);
}

/* Runs the whole sequence in steps of at most `most` rows (0: one step). States begin as NaN. */
static void run_all(const struct layer *l, const struct kern_table *k, struct rng *r, size_t most,
                    float *out)
{
    enum { SLOTS = 3 };
    const size_t n_conv = state_floats(&l->s, true), n_heads = state_floats(&l->s, false);
    const size_t n_out = delta_value_heads(&l->s) * l->s.value_dim;
    struct delta_states states = {test_floats(SLOTS * n_conv), test_floats(SLOTS * n_heads)};
    for (size_t i = 0; i < SLOTS * n_conv; i++) states.conv[i] = NAN;
    for (size_t i = 0; i < SLOTS * n_heads; i++) states.heads[i] = NAN;
    for (size_t row = 0, n; row < l->n_rows; row += n) {
        const size_t left = l->n_rows - row;
        n = most == 0 ? left : 1 + rng_below(r, most);
        if (n > left) n = left;
        run_rows(l, k, states, 2, row, n, out + row * n_out);
    }
    free(states.conv);
    free(states.heads);
}

static const struct delta_shape shapes[] = {
    {.n_heads = 2, .per_key = 2, .key_dim = 16, .value_dim = 16, .n_taps = 4, .norm_eps = 1e-6f},
    {.n_heads = 3, .per_key = 1, .key_dim = 24, .value_dim = 80, .n_taps = 2, .norm_eps = 1e-5f},
    {.n_heads = 1, .per_key = 3, .key_dim = 33, .value_dim = 70, .n_taps = 1, .norm_eps = 1e-6f},
    {2, 1, .key_dim = 32, .value_dim = 32, .n_taps = 4, .norm_eps = 1e-5f, .by_channel = true},
    {1, 2, .key_dim = 25, .value_dim = 70, .n_taps = 3, .norm_eps = 1e-6f, .by_channel = true},
    {2, 1, .key_dim = 24, .value_dim = 40, .n_taps = 4, .norm_eps = 1e-6f, .by_channel = true,
     .is_bounded = true, .least_log = -3.0f},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static void steps_and_threads_change_no_bit(void)
{
    static const size_t lengths[] = {1, 7, 130}, most[] = {1, 2, 5, 64};
    struct team *team = test_team(3);
    struct rng r = {23};
    for (size_t i = 0; i < N_SHAPES * 3; i++) {
        struct layer l = layer_make(&r, shapes[i % N_SHAPES], lengths[i / N_SHAPES]);
        const size_t n = l.n_rows * delta_value_heads(&l.s) * l.s.value_dim;
        const struct kern_table ref = table_ref();
        float *want = test_floats(n), *found = test_floats(n);
        run_all(&l, &ref, &r, 0, want);
        for (size_t j = 0; j < 8; j++) {
            struct kern_table t = table_in_turn(j);
            if (j % 2 == 1) t.team = team;
            run_all(&l, &t, &r, most[j / 2], found);
            CU_ASSERT_EQUAL(count_different(want, found, n), 0);
        }
        free(want);
        free(found);
        layer_free(&l);
    }
    team_destroy(&team);
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* Channel `channel` of row t after the convolution, in double: element `at` of the projections of
 * key head h. */
static double mixed_at(const struct layer *l, size_t t, size_t h, size_t at, size_t channel)
{
    const size_t width = l->s.n_heads * l->head;
    double acc = 0;
    for (size_t j = 0; j < l->s.n_taps; j++) {
        if (t + j + 1 < l->s.n_taps) continue;
        const size_t row = t + j + 1 - l->s.n_taps;
        acc += (double)l->qkvz[row * width + h * l->head + at] *
               (double)l->conv[j * delta_channels(&l->s) + channel];
    }
    return silu(acc);
}

/* Computes the outputs of value head v by the equations. out [n_rows, value heads, value_dim]: the
 * outputs of all value heads. */
static void by_equations(const struct layer *l, size_t v, double *out)
{
    const struct delta_shape *s = &l->s;
    const size_t d = s->key_dim, n = s->value_dim, h = v / s->per_key, in_head = v % s->per_key;
    const size_t values = delta_value_heads(s), n_k = s->n_heads * d;
    double *state = calloc(d * n, sizeof *state), q[64], k[64], o[128];
    for (size_t t = 0; t < l->n_rows; t++) {
        double qq = 1e-6, kk = 1e-6, oo = 0, decay[64];
        const float *ab = l->ab + t * l->gates + h * (l->gates / s->n_heads);
        const double beta = 1 / (1 + exp(-(double)ab[in_head]));
        for (size_t i = 0; i < d; i++) {
            const size_t at = l->per_value > 1 ? i : 0;
            const double a = (double)ab[s->per_key + in_head * l->per_value + at];
            const double bias = (double)l->gates_of[values + v * l->per_value + at];
            const double rate = exp((double)l->gates_of[v]),
                         bounded = 1 / (1 + exp(-rate * (a + bias)));
            decay[i] =
                exp(s->is_bounded ? (double)s->least_log * bounded : -rate * log1p(exp(a + bias)));
        }
        for (size_t i = 0; i < d; i++) {
            q[i] = mixed_at(l, t, h, i, h * d + i);
            k[i] = mixed_at(l, t, h, d + i, n_k + h * d + i);
            qq += q[i] * q[i];
            kk += k[i] * k[i];
        }
        for (size_t j = 0; j < n; j++) {
            const size_t at = in_head * n + j;
            double m = 0;
            o[j] = 0;
            for (size_t i = 0; i < d; i++) m += state[i * n + j] * decay[i] * k[i] / sqrt(kk);
            const double delta = beta * (mixed_at(l, t, h, 2 * d + at, 2 * n_k + v * n + j) - m);
            for (size_t i = 0; i < d; i++) {
                state[i * n + j] = state[i * n + j] * decay[i] + k[i] / sqrt(kk) * delta;
                o[j] += state[i * n + j] * q[i] / sqrt(qq) / sqrt((double)d);
            }
            oo += o[j] * o[j];
        }
        for (size_t j = 0; j < n; j++) {
            const size_t z = 2 * d + (s->per_key + in_head) * n + j;
            const double gate = (double)l->qkvz[(t * s->n_heads + h) * l->head + z];
            out[(t * values + v) * n + j] = o[j] / sqrt(oo / (double)n + (double)s->norm_eps) *
                                            (double)l->norm[j] *
                                            (s->by_channel ? 1 / (1 + exp(-gate)) : silu(gate));
        }
    }
    free(state);
}

static void op_is_its_equations(void)
{
    struct rng r = {24};
    for (size_t i = 0; i < N_SHAPES; i++) {
        struct layer l = layer_make(&r, shapes[i], 90);
        const size_t n = l.n_rows * delta_value_heads(&l.s) * l.s.value_dim;
        const struct kern_table best = table_best();
        float *found = test_floats(n);
        double *want = calloc(n, sizeof *want), most = 0, error = 0;
        run_all(&l, &best, &r, 0, found);
        for (size_t v = 0; v < delta_value_heads(&l.s); v++) by_equations(&l, v, want);
        for (size_t j = 0; j < n; j++) {
            most = fmax(most, fabs(want[j]));
            error = fmax(error, fabs(want[j] - (double)found[j]));
        }
        CU_ASSERT(most > 0.1);
        CU_ASSERT(error < 2e-5 * most);
        if (!(error < 2e-5 * most)) fprintf(stderr, "shape %zu: error %g of %g\n", i, error, most);
        free(found);
        free(want);
        layer_free(&l);
    }
}

void suite_delta(CU_pSuite suite);
void suite_delta(CU_pSuite suite)
{
    CU_add_test(suite, "sets agree on the delta rule", sets_agree_on_the_rule);
    CU_add_test(suite, "sets agree on convolution and gates", sets_agree_on_convolution_and_gates);
    CU_add_test(suite, "steps and threads change no bit", steps_and_threads_change_no_bit);
    CU_add_test(suite, "the op is its equations", op_is_its_equations);
}
