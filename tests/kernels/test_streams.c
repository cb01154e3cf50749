/* Tests the ops of several residual streams and the rotation of the ends of heads: against the
 * equations in double, and with other instruction sets and teams bit for bit. */
#include "kernels/ops.h"
#include "util_kernels.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS_MOST = 8, ROWS_MOST = 9, WIDTH_MOST = 600 };

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* comb [n, n] = the mixing matrix of logits [n, n], in double. */
static void matrix_of(const double *logits, uint32_t n, uint32_t iterations, double eps,
                      double *comb)
{
    for (uint32_t j = 0; j < n; j++) {
        double sum = 0;
        for (uint32_t k = 0; k < n; k++) sum += exp(logits[j * n + k]);
        for (uint32_t k = 0; k < n; k++) comb[j * n + k] = exp(logits[j * n + k]) / sum + eps;
    }
    for (uint32_t i = 0; i < 2 * iterations - 1; i++) {
        const bool by_row = i % 2 == 1;
        for (uint32_t a = 0; a < n; a++) {
            double sum = eps;
            for (uint32_t b = 0; b < n; b++) sum += comb[by_row ? a * n + b : b * n + a];
            for (uint32_t b = 0; b < n; b++) comb[by_row ? a * n + b : b * n + a] /= sum;
        }
    }
}

struct weights {
    uint32_t n, iterations, n_outputs;
    size_t n_rows;
    float mix[ROWS_MOST * 80], base[80], scale[3];
    float pre[ROWS_MOST * STREAMS_MOST], post[ROWS_MOST * STREAMS_MOST];
    float comb[ROWS_MOST * STREAMS_MOST * STREAMS_MOST];
};

static void weights_by(const struct kern_table *k, struct weights *w)
{
    op_stream_weights(k, &(struct stream_weights_args){.mix = w->mix,
                                                       .base = w->base,
                                                       .scale = w->scale,
                                                       .n_rows = w->n_rows,
                                                       .n = w->n,
                                                       .iterations = w->iterations,
                                                       .eps = 1e-3f,
                                                       .pre = w->pre,
                                                       .post = w->post,
                                                       .comb = w->comb});
}

/* Expects the same bits as in w from another instruction set with a team. */
static void check_other_sets(const struct weights *w, size_t i, struct team *team)
{
    struct weights *other = test_memory(sizeof *other);
    struct kern_table k = table_in_turn(i);
    k.team = team;
    *other = *w;
    memset(other->pre, 0xFF, sizeof other->pre);
    memset(other->post, 0xFF, sizeof other->post);
    memset(other->comb, 0xFF, sizeof other->comb);
    weights_by(&k, other);
    CU_ASSERT_EQUAL(count_different(w->pre, other->pre, w->n_rows * w->n), 0);
    CU_ASSERT_EQUAL(count_different(w->post, other->post, w->n_rows * w->n), 0);
    CU_ASSERT_EQUAL(count_different(w->comb, other->comb, w->n_rows * w->n * w->n), 0);
    free(other);
}

static void make_weights(struct rng *r, struct weights *w)
{
    w->n = 1 + (uint32_t)rng_below(r, STREAMS_MOST);
    w->iterations = 1 + (uint32_t)rng_below(r, 20);
    w->n_rows = 1 + rng_below(r, ROWS_MOST);
    w->n_outputs = (2 + w->n) * w->n;
    rng_floats(r, w->mix, w->n_rows * w->n_outputs, 2.0f);
    rng_floats(r, w->base, w->n_outputs, 1.0f);
    rng_floats(r, w->scale, 3, 1.5f);
    const struct kern_table k = table_ref();
    weights_by(&k, w);
}

static void check_weights(const struct weights *w, size_t row)
{
    const uint32_t n = w->n;
    const float *mix = w->mix + row * w->n_outputs;
    double logits[64], comb[64];
    for (uint32_t j = 0; j < n; j++) {
        const double pre = sigmoid((double)mix[j] * w->scale[0] + w->base[j]) + 1e-3;
        const double post = 2 * sigmoid((double)mix[n + j] * w->scale[1] + w->base[n + j]);
        CU_ASSERT_DOUBLE_EQUAL(w->pre[row * n + j], pre, 1e-6);
        CU_ASSERT_DOUBLE_EQUAL(w->post[row * n + j], post, 1e-6);
    }
    for (uint32_t i = 0; i < n * n; i++)
        logits[i] = (double)mix[2 * n + i] * w->scale[2] + w->base[2 * n + i];
    matrix_of(logits, n, w->iterations, 1e-3, comb);
    for (uint32_t i = 0; i < n * n; i++)
        CU_ASSERT_DOUBLE_EQUAL(w->comb[row * n * n + i], comb[i], 1e-5);
}

static void weights_follow_the_equations(void)
{
    struct rng r = {51};
    struct team *team = test_team(3);
    struct weights *w = test_memory(sizeof *w);
    for (int i = 0; i < 200; i++) {
        float pre[ROWS_MOST * STREAMS_MOST];
        const struct kern_table k = table_ref();
        make_weights(&r, w);
        for (size_t row = 0; row < w->n_rows; row++) check_weights(w, row);
        check_other_sets(w, (size_t)i, team);
        op_stream_weights(&k, &(struct stream_weights_args){.mix = w->mix,
                                                            .base = w->base,
                                                            .scale = w->scale,
                                                            .n_rows = 1,
                                                            .n = w->n,
                                                            .eps = 1e-3f,
                                                            .pre = pre});
        CU_ASSERT_EQUAL(count_different(pre, w->pre, w->n), 0);
    }
    free(w);
    team_destroy(&team);
}

/* Checks, in double, the row `read` that a block reads of the streams `before` [n_rows, n, width],
 * and the streams `after` a block with output y. */
static void check_streams(const struct weights *w, uint32_t width, const float *before,
                          const float *y, const float *after, const float *read)
{
    const uint32_t n = w->n;
    for (size_t row = 0; row < w->n_rows; row++) {
        const float *h = before + row * n * width;
        for (uint32_t d = 0; d < width; d++) {
            double sum = 0;
            for (uint32_t j = 0; j < n; j++)
                sum += (double)w->pre[row * n + j] * (double)h[j * width + d];
            CU_ASSERT_DOUBLE_EQUAL(read[row * width + d], sum, 1e-5);
            for (uint32_t k = 0; k < n; k++) {
                sum = (double)w->post[row * n + k] * (double)y[row * width + d];
                for (uint32_t j = 0; j < n; j++)
                    sum += (double)w->comb[(row * n + j) * n + k] * (double)h[j * width + d];
                CU_ASSERT_DOUBLE_EQUAL(after[(row * n + k) * width + d], sum, 1e-4);
            }
        }
    }
}

static void streams_are_mixed_and_added(void)
{
    struct team *team = test_team(3);
    struct rng r = {52};
    struct weights *w = test_memory(sizeof *w);
    for (size_t i = 0; i < 60; i++) {
        make_weights(&r, w);
        const uint32_t width = 1 + (uint32_t)rng_below(&r, WIDTH_MOST);
        const size_t n_read = w->n_rows * width, n_all = n_read * w->n;
        float *h = test_floats(n_all), *y = test_floats(n_read), *after[2], *read[2];
        rng_floats(&r, h, n_all, 3.0f);
        rng_floats(&r, y, n_read, 3.0f);
        for (int j = 0; j < 2; j++) {
            struct kern_table k = j == 0 ? table_ref() : table_in_turn(i);
            if (j == 1) k.team = team;
            after[j] = test_floats(n_all);
            read[j] = test_floats(n_read);
            memcpy(after[j], h, n_all * sizeof *h);
            op_stream_sum(&k, &(struct stream_sum_args){.h = h,
                                                        .pre = w->pre,
                                                        .n_rows = w->n_rows,
                                                        .n = w->n,
                                                        .width = width,
                                                        .y = read[j]});
            op_stream_add(&k, &(struct stream_add_args){.h = after[j],
                                                        .y = y,
                                                        .post = w->post,
                                                        .comb = w->comb,
                                                        .n_rows = w->n_rows,
                                                        .n = w->n,
                                                        .width = width});
        }
        CU_ASSERT_EQUAL(count_different(after[0], after[1], n_all), 0);
        CU_ASSERT_EQUAL(count_different(read[0], read[1], n_read), 0);
        check_streams(w, width, h, y, after[0], read[0]);
        for (int j = 0; j < 2; j++) free(after[j]);
        for (int j = 0; j < 2; j++) free(read[j]);
        free(h);
        free(y);
    }
    free(w);
    team_destroy(&team);
}

/* The ends of heads rotate pair by pair, the rest stays, and rotating back gives the input. */
static void ends_of_heads_rotate(void)
{
    enum { ROWS = 3, HEADS = 2, WIDTH = 20, ROT = 12, N = ROWS * HEADS * WIDTH };
    float x[N], turned[N], same[N], cos_of[ROWS * ROT / 2], sin_of[ROWS * ROT / 2];
    struct rng r = {53};
    struct team *team = test_team(3);
    const struct kern_table k = table_best();
    rng_floats(&r, x, N, 2.0f);
    memcpy(turned, x, sizeof x);
    for (int i = 0; i < ROWS * ROT / 2; i++) {
        cos_of[i] = cosf(0.3f * (float)i);
        sin_of[i] = sinf(0.3f * (float)i);
    }
    struct rope_ends_args a = {turned, cos_of, sin_of, ROWS, HEADS, WIDTH, ROT, false};
    op_rope_ends(&k, &a);
    for (size_t i = 0; i < 4; i++) { /* the reference, and other sets with a team */
        struct kern_table other = i == 0 ? table_ref() : table_in_turn(i);
        if (i > 0) other.team = team;
        memcpy(same, x, sizeof x);
        a.x = same;
        op_rope_ends(&other, &a);
        CU_ASSERT_EQUAL(count_different(same, turned, N), 0);
    }
    a.x = turned;
    for (int h = 0; h < ROWS * HEADS; h++) {
        const float *from = x + h * WIDTH, *to = turned + h * WIDTH;
        for (int i = 0; i < WIDTH - ROT; i++) CU_ASSERT_EQUAL(from[i], to[i]);
        for (int i = 0; i < ROT / 2; i++) {
            const int at = WIDTH - ROT + 2 * i, angle = h / HEADS * ROT / 2 + i;
            const float c = cos_of[angle], s = sin_of[angle];
            CU_ASSERT_DOUBLE_EQUAL(to[at], from[at] * c - from[at + 1] * s, 1e-5);
            CU_ASSERT_DOUBLE_EQUAL(to[at + 1], from[at + 1] * c + from[at] * s, 1e-5);
        }
    }
    a.back = true;
    op_rope_ends(&k, &a);
    for (int i = 0; i < N; i++) CU_ASSERT_DOUBLE_EQUAL(turned[i], x[i], 1e-5);
    team_destroy(&team);
}

/* SwiGLU with a limit is that of clamped inputs. */
static void swiglu_has_a_limit(void)
{
    enum { N = 700 };
    float gate[N], up[N], y[N], want[N];
    struct rng r = {54};
    const struct kern_table k = table_best();
    rng_floats(&r, gate, N, 4.0f);
    rng_floats(&r, up, N, 4.0f);
    gate[3] = up[5] = NAN;
    op_swiglu(&k, &(struct swiglu_args){.gate = gate,
                                        .up = up,
                                        .stride = N,
                                        .n_rows = 1,
                                        .n = N,
                                        .y = y,
                                        .y_stride = N,
                                        .limit = 1.5f});
    for (int i = 0; i < N; i++) {
        if (gate[i] > 1.5f) gate[i] = 1.5f;
        if (up[i] > 1.5f) up[i] = 1.5f;
        if (up[i] < -1.5f) up[i] = -1.5f;
    }
    k.swiglu(gate, up, N, want);
    CU_ASSERT_EQUAL(count_different(y, want, N), 0);
    CU_ASSERT(isnan(y[3]) && isnan(y[5]));
}

/* With caps, the limit is that of the activation. All sets of kernels give the same bits. */
static void swiglu_caps_the_activation(void)
{
    enum { N = 700 };
    float gate[N], up[N], silu[N], ones[N], y[N], want[N];
    struct rng r = {55};
    const struct kern_table sets[] = {table_ref(), table_best(), table_in_turn(0),
                                      table_in_turn(1)};
    rng_floats(&r, gate, N, 4.0f);
    rng_floats(&r, up, N, 4.0f);
    gate[3] = up[5] = NAN;
    for (int i = 0; i < N; i++) ones[i] = 1;
    for (int set = 0; set < 4; set++) {
        op_swiglu(&sets[set], &(struct swiglu_args){.gate = gate,
                                                    .up = up,
                                                    .stride = N,
                                                    .n_rows = 1,
                                                    .n = N,
                                                    .y = y,
                                                    .y_stride = N,
                                                    .limit = 1.5f,
                                                    .caps = true});
        sets[set].swiglu(gate, ones, N, silu);
        for (int i = 0; i < N; i++) {
            const float g = silu[i] > 1.5f ? 1.5f : silu[i];
            want[i] = g * (up[i] > 1.5f ? 1.5f : up[i] < -1.5f ? -1.5f : up[i]);
        }
        CU_ASSERT_EQUAL(count_different(y, want, N), 0);
        CU_ASSERT(isnan(y[3]) && isnan(y[5]));
    }
}

void suite_streams(CU_pSuite suite);
void suite_streams(CU_pSuite suite)
{
    CU_add_test(suite, "weights follow the equations", weights_follow_the_equations);
    CU_add_test(suite, "streams are mixed and added", streams_are_mixed_and_added);
    CU_add_test(suite, "ends of heads rotate", ends_of_heads_rotate);
    CU_add_test(suite, "SwiGLU has a limit", swiglu_has_a_limit);
    CU_add_test(suite, "SwiGLU caps the activation", swiglu_caps_the_activation);
}
