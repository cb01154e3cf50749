/* Tests the Mamba-2 scan and op_mamba: other instruction sets against the reference, bit for bit;
 * any cut of the rows into steps and any number of threads, bit for bit; and all of it against the
 * equations in double. Also tests op_relu2 and op_relu2_gate. */
#include "kernels/ops.h"
#include "util_kernels.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SETS = 2 };

/* ---- the table's entry ---- */

/* Compares the outputs and states of t with the reference's on one random run of rows. */
static void compare_scan(struct rng *r, const struct kern_table *t, size_t every)
{
    const struct kern_table ref = table_ref();
    const size_t n = 1 + rng_below(r, 150), keys = 1 + rng_below(r, 40);
    const size_t rows = 1 + rng_below(r, 11);
    float *q = test_floats(rows * keys), *k = test_floats(rows * keys), *v = test_floats(rows * n);
    float *gates = test_floats(2 * rows), *state[2], *out[2];
    rng_floats(r, q, rows * keys, 0.5f);
    rng_floats(r, k, rows * keys, 0.5f);
    rng_floats(r, v, rows * n, 2.0f);
    rng_floats(r, gates, 2 * rows, 1.0f);
    if (every > 0) rng_specials(r, k, rows * keys, every);
    for (int i = 0; i < 2; i++) {
        state[i] = test_floats(keys * n);
        out[i] = test_floats(rows * n);
        if (i == 0) rng_floats(r, state[0], keys * n, 1.0f);
        if (i == 1) memcpy(state[1], state[0], keys * n * sizeof(float));
    }
    for (int i = 0; i < 2; i++)
        (i == 0 ? &ref : t)
            ->scan(&(struct state_run){q, k, v, gates, gates + rows, out[i], state[i], rows, n,
                                       keys, keys, n, 1, n, n, 0.7f, false});
    CU_ASSERT_EQUAL(count_different(out[0], out[1], rows * n), 0);
    CU_ASSERT_EQUAL(count_different(state[0], state[1], keys * n), 0);
    for (int i = 0; i < 2; i++) free(state[i]);
    for (int i = 0; i < 2; i++) free(out[i]);
    free(q);
    free(k);
    free(v);
    free(gates);
}

static void sets_agree_on_the_scan(void)
{
    const struct kern_table sets[SETS] = {table_in_turn(0), table_in_turn(1)};
    struct rng r = {31};
    for (size_t i = 0; i < 200; i++) compare_scan(&r, &sets[i % SETS], i < 100 ? 0 : 9);
}

/* ---- the op ---- */

/* A layer and the projections of the rows of one sequence. */
struct layer {
    struct delta_shape s;
    size_t n_rows;
    float *q, *k, *v, *z, *dt; /* as in struct mamba_args */
    float *conv, *of_heads, *norm;
};

static size_t n_keys(const struct delta_shape *s)
{
    return (size_t)s->n_heads * s->key_dim;
}

static size_t n_values(const struct delta_shape *s)
{
    return delta_value_heads(s) * s->value_dim;
}

static float *random_floats(struct rng *r, size_t n, float magnitude)
{
    float *x = test_floats(n);
    rng_floats(r, x, n, magnitude);
    return x;
}

static struct layer layer_make(struct rng *r, struct delta_shape s, size_t n_rows)
{
    const size_t heads = delta_value_heads(&s);
    return (struct layer){.s = s,
                          .n_rows = n_rows,
                          .q = random_floats(r, n_rows * n_keys(&s), 2.0f),
                          .k = random_floats(r, n_rows * n_keys(&s), 2.0f),
                          .v = random_floats(r, n_rows * n_values(&s), 2.0f),
                          .z = random_floats(r, n_rows * n_values(&s), 2.0f),
                          .dt = random_floats(r, n_rows * heads, 3.0f),
                          .conv = random_floats(r, (s.n_taps + 1) * delta_channels(&s), 1.0f),
                          .of_heads = random_floats(r, 3 * heads, 1.0f),
                          .norm = random_floats(r, n_values(&s), 1.0f)};
}

static void layer_free(struct layer *l)
{
    float *all[] = {l->q, l->k, l->v, l->z, l->dt, l->conv, l->of_heads, l->norm};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* Returns row 0 of x [.., n] and then its rows [row0, row0 + n_rows). */
static float *with_first(const float *x, size_t n, size_t row0, size_t n_rows)
{
    float *out = test_floats((n_rows + 1) * n);
    memcpy(out, x, n * sizeof *x);
    memcpy(out + n, x + row0 * n, n_rows * n * sizeof *x);
    return out;
}

static const float step_least = 0.01f, step_most = 2.5f;

/* Runs one step: one row of another sequence, which begins in slot 0, then rows [row0, row0 + n) of
 * the layer's sequence, whose states are in `slot`. Writes the n rows of outputs to `out`. */
static void run_rows(const struct layer *l, const struct kern_table *k, struct delta_states states,
                     uint32_t slot, size_t row0, size_t n, float *out)
{
    const struct delta_shape *s = &l->s;
    const size_t heads = delta_value_heads(s), n_out = n_values(s), total = n + 1;
    float *q = with_first(l->q, n_keys(s), row0, n), *keys = with_first(l->k, n_keys(s), row0, n);
    float *v = with_first(l->v, n_out, row0, n), *z = with_first(l->z, n_out, row0, n);
    float *dt = with_first(l->dt, heads, row0, n), *all = test_floats(total * n_out);
    float *mixed = test_floats(total * delta_channels(s)), *gates = test_floats(total * 2 * heads);
    uint32_t *sums = calloc(total * heads, sizeof *sums);
    const struct seq_rows seqs[2] = {{.n_rows = 1},
                                     {.row0 = 1, .n_rows = n, .pos0 = row0, .slot = slot}};
    const struct mamba_args a = {.shape = *s,
                                 .q = q,
                                 .k = keys,
                                 .v = v,
                                 .z = z,
                                 .dt = dt,
                                 .conv = l->conv,
                                 .decay_log = l->of_heads,
                                 .step_bias = l->of_heads + heads,
                                 .skip = l->of_heads + 2 * heads,
                                 .step_least = step_least,
                                 .step_most = step_most,
                                 .states = states,
                                 .seqs = seqs,
                                 .n_seqs = 2,
                                 .n_rows = total,
                                 .mixed = mixed,
                                 .gates = gates,
                                 .out = all,
                                 .sums = sums};
    void *mine[] = {q, keys, v, z, dt, all, mixed, gates, sums};
    op_mamba(k, &a);
    op_mamba_norm(k, &(struct mamba_norm){
                         .shape = *s, .sums = sums, .norm = l->norm, .n_rows = total, .out = all});
    memcpy(out, all + n_out, n * n_out * sizeof *out);
    for (size_t i = 0; i < sizeof mine / sizeof mine[0]; i++) free(mine[i]);
}

/* Runs the whole sequence in steps of at most `most` rows (0: one step). States begin as NaN. */
static void run_all(const struct layer *l, const struct kern_table *k, struct rng *r, size_t most,
                    float *out)
{
    enum { SLOTS = 3 };
    const size_t n_conv = SLOTS * (l->s.n_taps - 1) * delta_channels(&l->s);
    const size_t n_heads = SLOTS * n_values(&l->s) * l->s.key_dim;
    struct delta_states states = {test_floats(n_conv + 1), test_floats(n_heads)};
    for (size_t i = 0; i < n_conv; i++) states.conv[i] = NAN;
    for (size_t i = 0; i < n_heads; i++) states.heads[i] = NAN;
    for (size_t row = 0, n; row < l->n_rows; row += n) {
        const size_t left = l->n_rows - row;
        n = most == 0 ? left : 1 + rng_below(r, most);
        if (n > left) n = left;
        run_rows(l, k, states, 2, row, n, out + row * n_values(&l->s));
    }
    free(states.conv);
    free(states.heads);
}

/* The second has more channels than a block of the convolution, and heads of two tiles. */
static const struct delta_shape shapes[] = {
    {.n_heads = 2, .per_key = 2, .key_dim = 16, .value_dim = 16, .n_taps = 4, .norm_eps = 1e-5f},
    {.n_heads = 1, .per_key = 3, .key_dim = 24, .value_dim = 80, .n_taps = 2, .norm_eps = 1e-6f},
    {.n_heads = 3, .per_key = 1, .key_dim = 33, .value_dim = 70, .n_taps = 1, .norm_eps = 1e-5f},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static void steps_and_threads_change_no_bit(void)
{
    static const size_t lengths[] = {1, 7, 130}, most[] = {1, 2, 5, 64};
    struct team *team = test_team(3);
    struct rng r = {33};
    for (size_t i = 0; i < N_SHAPES * 3; i++) {
        struct layer l = layer_make(&r, shapes[i % N_SHAPES], lengths[i / N_SHAPES]);
        const size_t n = l.n_rows * n_values(&l.s);
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

/* Channel `channel` of row t after the convolution: channel `at` of the projections x [.., n]. */
static double mixed_at(const struct layer *l, const float *x, size_t n, size_t t, size_t at,
                       size_t channel)
{
    const size_t n_taps = l->s.n_taps, all = delta_channels(&l->s);
    double acc = (double)l->conv[channel];
    for (size_t j = 0; j < n_taps; j++) {
        if (t + j + 1 < n_taps) continue;
        acc += (double)x[(t + j + 1 - n_taps) * n + at] * (double)l->conv[(1 + j) * all + channel];
    }
    return silu(acc);
}

/* Computes the outputs of head v before the norm by the equations. out [n_rows, heads, value_dim]:
 * the outputs of all heads. */
static void scan_by_equations(const struct layer *l, size_t v, double *out)
{
    const struct delta_shape *s = &l->s;
    const size_t d = s->key_dim, n = s->value_dim, heads = delta_value_heads(s);
    const size_t n_k = n_keys(s), n_v = n_values(s), group = v / s->per_key;
    double *state = calloc(d * n, sizeof *state);
    for (size_t t = 0; t < l->n_rows; t++) {
        double step = log1p(exp((double)l->dt[t * heads + v] + (double)l->of_heads[heads + v]));
        step = fmin(fmax(step, (double)step_least), (double)step_most);
        const double decay = exp(-exp((double)l->of_heads[v]) * step);
        for (size_t j = 0; j < n; j++) {
            const double x = mixed_at(l, l->v, n_v, t, v * n + j, 2 * n_k + v * n + j);
            double o = (double)l->of_heads[2 * heads + v] * x;
            for (size_t i = 0; i < d; i++) {
                const size_t at = group * d + i;
                const double b = mixed_at(l, l->k, n_k, t, at, n_k + at);
                state[i * n + j] = state[i * n + j] * decay + step * b * x;
                o += state[i * n + j] * mixed_at(l, l->q, n_k, t, at, at);
            }
            out[t * n_v + v * n + j] = o;
        }
    }
    free(state);
}

/* Gates and normalizes `out` in place, group by group. */
static void norm_by_equations(const struct layer *l, double *out)
{
    const size_t n_v = n_values(&l->s), group = (size_t)l->s.per_key * l->s.value_dim;
    for (size_t at = 0; at < l->n_rows * n_v; at += group) {
        double squares = 0;
        for (size_t i = 0; i < group; i++) {
            out[at + i] *= silu((double)l->z[at + i]);
            squares += out[at + i] * out[at + i];
        }
        for (size_t i = 0; i < group; i++)
            out[at + i] *= (double)l->norm[(at + i) % n_v] /
                           sqrt(squares / (double)group + (double)l->s.norm_eps);
    }
}

static void op_is_its_equations(void)
{
    struct rng r = {34};
    for (size_t i = 0; i < N_SHAPES; i++) {
        struct layer l = layer_make(&r, shapes[i], 70);
        const size_t n = l.n_rows * n_values(&l.s);
        const struct kern_table best = table_best();
        float *found = test_floats(n);
        double *want = calloc(n, sizeof *want), most = 0, error = 0;
        run_all(&l, &best, &r, 0, found);
        for (size_t v = 0; v < delta_value_heads(&l.s); v++) scan_by_equations(&l, v, want);
        norm_by_equations(&l, want);
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

/* Returns columns [first, first + n) of x [rows, stride]. */
static float *columns(const float *x, size_t rows, size_t stride, size_t first, size_t n)
{
    float *out = test_floats(rows * n);
    for (size_t i = 0; i < rows; i++) memcpy(out + i * n, x + i * stride + first, n * sizeof *x);
    return out;
}

/* Runs the whole sequence of a layer with a part of the heads in one step, without the norm. */
static void run_cut(const struct layer *l, const struct kern_table *k, float *out, uint32_t *sums)
{
    const struct delta_shape *s = &l->s;
    const size_t heads = delta_value_heads(s), n = l->n_rows;
    float *conv = test_floats((s->n_taps - 1) * delta_channels(s) + 1);
    float *state = test_floats(n_values(s) * s->key_dim);
    float *mixed = test_floats(n * delta_channels(s)), *gates = test_floats(n * 2 * heads);
    op_mamba(k, &(struct mamba_args){.shape = *s,
                                     .q = l->q,
                                     .k = l->k,
                                     .v = l->v,
                                     .z = l->z,
                                     .dt = l->dt,
                                     .conv = l->conv,
                                     .decay_log = l->of_heads,
                                     .step_bias = l->of_heads + heads,
                                     .skip = l->of_heads + 2 * heads,
                                     .step_least = step_least,
                                     .step_most = step_most,
                                     .states = {conv, state},
                                     .seqs = &(struct seq_rows){.n_rows = n},
                                     .n_seqs = 1,
                                     .n_rows = n,
                                     .mixed = mixed,
                                     .gates = gates,
                                     .out = out,
                                     .sums = sums});
    free(conv);
    free(state);
    free(mixed);
    free(gates);
}

/* Two ranks that hold a part of the heads each, cut inside a group, give the bits of one rank that
 * holds all heads. */
static void cut_heads_give_the_same_bits(void)
{
    struct rng r = {36};
    const struct delta_shape whole = shapes[0];
    struct layer l = layer_make(&r, whole, 20);
    const struct kern_table best = table_best();
    const size_t n_all = n_values(&whole), heads = delta_value_heads(&whole), d = whole.value_dim;
    const size_t cuts[] = {0, 3, heads}, rows = l.n_rows, n_k = 2 * n_keys(&whole);
    float *want = test_floats(rows * n_all), *found[2];
    uint32_t *sums = calloc(rows * heads, sizeof *sums);
    run_all(&l, &best, &r, 0, want);
    for (int i = 0; i < 2; i++) {
        struct layer own = l;
        const size_t first = cuts[i], n = cuts[i + 1] - first;
        own.s.is_cut = true;
        own.s.first_own = (uint32_t)first;
        own.s.n_own = (uint32_t)n;
        own.v = columns(l.v, rows, n_all, first * d, n * d);
        own.z = columns(l.z, rows, n_all, first * d, n * d);
        own.dt = columns(l.dt, rows, heads, first, n);
        own.conv = columns(l.conv, whole.n_taps + 1, n_k + n_all, 0, n_k + n * d);
        for (size_t j = 0; j <= whole.n_taps; j++)
            memcpy(own.conv + j * (n_k + n * d) + n_k, l.conv + j * (n_k + n_all) + n_k + first * d,
                   n * d * sizeof(float));
        own.of_heads = columns(l.of_heads, 3, heads, first, n);
        found[i] = test_floats(rows * n * d);
        run_cut(&own, &best, found[i], sums);
        float *mine[] = {own.v, own.z, own.dt, own.conv, own.of_heads};
        for (size_t j = 0; j < sizeof mine / sizeof mine[0]; j++) free(mine[j]);
    }
    for (int i = 0; i < 2; i++) {
        const size_t first = cuts[i], n = cuts[i + 1] - first;
        struct delta_shape own = whole;
        own.is_cut = true;
        own.first_own = (uint32_t)first;
        own.n_own = (uint32_t)n;
        op_mamba_norm(&best, &(struct mamba_norm){own, sums, l.norm + first * d, rows, found[i]});
        float *part = columns(want, rows, n_all, first * d, n * d);
        CU_ASSERT_EQUAL(count_different(part, found[i], rows * n * d), 0);
        free(part);
        free(found[i]);
    }
    free(want);
    free(sums);
    layer_free(&l);
}

static void relu2_squares_what_is_positive(void)
{
    enum { N = 1000 };
    struct team *team = test_team(3);
    struct rng r = {35};
    struct kern_table t = table_best();
    float *x = random_floats(&r, N, 3.0f), *want = test_floats(N);
    x[1] = -0.0f;
    x[2] = NAN;
    x[3] = -INFINITY;
    for (size_t i = 0; i < N; i++) want[i] = isnan(x[i]) ? NAN : x[i] > 0 ? x[i] * x[i] : 0.0f;
    t.team = team;
    op_relu2(&t, x, N);
    CU_ASSERT_EQUAL(memcmp(x + 3, want + 3, (N - 3) * sizeof *x), 0);
    CU_ASSERT(x[1] == 0 && !signbit(x[1]) && isnan(x[2]));
    free(x);
    free(want);
    team_destroy(&team);
}

static void relu2_gates_another_array(void)
{
    enum { N = 1000 };
    struct team *team = test_team(3);
    struct rng r = {36};
    struct kern_table t = table_best();
    float *gate = random_floats(&r, N, 3.0f), *up = random_floats(&r, N, 3.0f);
    float *want = test_floats(N);
    gate[1] = NAN;
    gate[2] = -INFINITY;
    for (size_t i = 0; i < N; i++) {
        const float x = gate[i] > 0 ? gate[i] : 0.0f;
        want[i] = (x * x) * up[i];
    }
    t.team = team;
    op_relu2_gate(&t, gate, up, N);
    CU_ASSERT(isnan(gate[1]));
    CU_ASSERT_EQUAL(memcmp(gate, want, sizeof *gate), 0);
    CU_ASSERT_EQUAL(memcmp(gate + 2, want + 2, (N - 2) * sizeof *gate), 0);
    free(gate);
    free(up);
    free(want);
    team_destroy(&team);
}

void suite_mamba(CU_pSuite suite);
void suite_mamba(CU_pSuite suite)
{
    CU_add_test(suite, "sets agree on the scan", sets_agree_on_the_scan);
    CU_add_test(suite, "steps and threads change no bit", steps_and_threads_change_no_bit);
    CU_add_test(suite, "the op is its equations", op_is_its_equations);
    CU_add_test(suite, "cut heads give the same bits", cut_heads_give_the_same_bits);
    CU_add_test(suite, "relu2 squares what is positive", relu2_squares_what_is_positive);
    CU_add_test(suite, "relu2 gates another array", relu2_gates_another_array);
}
