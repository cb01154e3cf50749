/* Tests the gated half of an FFN as one op: its bits are those of the separate ops, with one thread
 * and three, over formats, groups, odd shapes and numbers of rows. */
#include "util_cases.h"
#include "util_quant.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>

enum { GROUPS = 3, K = 160, ROWS_MOST = 300 };

/* Gate and up of a few experts with some rows each. A float format has kind QUANT_NONE. */
struct problem {
    struct quant_weight q[2][GROUPS];
    struct packed w[2][GROUPS];
    struct linear_group groups[2][GROUPS];
    struct quant_rows xq;
    float *x;
    size_t n_rows, f;
    bool is_float;
    enum gate_kind kind;
};

/* The outputs of a run. */
struct result {
    float *y[2];
    struct quant_rows codes;
    bool codes_alone; /* y is undefined */
};

/* Fills p where it is, because its groups point to its own weights. */
static void problem_init(struct problem *p, struct rng *r, struct quant_format f, size_t n_each,
                         size_t n)
{
    const struct kern_table ref = table_ref();
    *p = (struct problem){.f = n, .is_float = f.kind == QUANT_NONE};
    for (size_t g = 0; g < GROUPS; g++) {
        const size_t n_rows = n_each + (n_each > 1 ? g : 0);
        for (int i = 0; i < 2; i++) {
            if (p->is_float)
                p->w[i][g] = random_packed(r, DTYPE_F16, n, K, 0, 0, 0);
            else
                p->w[i][g] = (p->q[i][g] = quant_weight_make(r, f, n, K, 0, 0)).w;
            p->groups[i][g] = (struct linear_group){&p->w[i][g], p->n_rows, n_rows};
        }
        p->n_rows += n_rows;
    }
    p->x = test_floats(p->n_rows * K);
    rng_floats(r, p->x, p->n_rows * K, 2.0f);
    if (p->is_float) return;
    p->xq = quant_rows_make(p->n_rows, K, f);
    op_quantize_rows(&ref, p->x, K, p->n_rows, K, &p->xq);
}

static void problem_free(struct problem *p)
{
    for (int i = 0; i < 2 * GROUPS; i++) {
        if (p->is_float)
            free(packed_memory(&p->w[i / GROUPS][i % GROUPS]));
        else
            quant_weight_free(&p->q[i / GROUPS][i % GROUPS]);
    }
    if (!p->is_float) quant_rows_free(&p->xq);
    free(p->x);
}

enum way { THREE_OPS, ONE_OP, CODES_ALONE };

static struct result run(const struct problem *p, struct kern_table k, struct team *team,
                         struct quant_format inner, enum way way)
{
    struct result r = {.codes = quant_rows_make(p->n_rows, p->f, inner),
                       .codes_alone = way == CODES_ALONE};
    struct linear_args a[2];
    k.team = team;
    for (int i = 0; i < 2; i++) {
        r.y[i] = test_floats(p->n_rows * p->f);
        a[i] = (struct linear_args){.groups = p->groups[i],
                                    .n_groups = GROUPS,
                                    .x = p->x,
                                    .x_stride = K,
                                    .xq = p->is_float ? NULL : &p->xq,
                                    .y = r.y[i],
                                    .y_stride = p->f};
    }
    const struct gated_args gated = {.gate = a[0],
                                     .up = a[1],
                                     .n_rows = p->n_rows,
                                     .codes = &r.codes,
                                     .kind = p->kind,
                                     .codes_alone = way == CODES_ALONE};
    if (way != THREE_OPS) {
        op_gated(&k, &gated);
        return r;
    }
    op_linears(&k, a, 2);
    op_swiglu(&k, &(struct swiglu_args){.gate = r.y[0],
                                        .up = r.y[1],
                                        .stride = p->f,
                                        .n_rows = p->n_rows,
                                        .n = p->f,
                                        .kind = p->kind,
                                        .y = r.y[0],
                                        .y_stride = p->f});
    op_quantize_rows(&k, r.y[0], p->f, p->n_rows, p->f, &r.codes);
    return r;
}

static void result_free(struct result *r)
{
    free(r->y[0]);
    free(r->y[1]);
    quant_rows_free(&r->codes);
}

static void compare(const struct problem *p, const struct result *a, const struct result *b)
{
    const size_t n_params = p->n_rows * a->codes.n_groups;
    if (!b->codes_alone) CU_ASSERT_EQUAL(count_different(a->y[0], b->y[0], p->n_rows * p->f), 0);
    CU_ASSERT_EQUAL(memcmp(a->codes.codes, b->codes.codes, n_params * a->codes.group), 0);
    CU_ASSERT_EQUAL(memcmp(a->codes.scales, b->codes.scales, n_params * sizeof(float)), 0);
    CU_ASSERT_EQUAL(memcmp(a->codes.sums, b->codes.sums, n_params * sizeof(int32_t)), 0);
}

static void one_op_has_the_bits_of_three(void)
{
    static const struct quant_format formats[] = {
        {.kind = QUANT_INT4, .group = 32, .scale_dtype = DTYPE_F16},
        {.kind = QUANT_INT8, .group = 0, .scale_dtype = DTYPE_F32},
        {.kind = QUANT_INT8, .group = 64, .scale_dtype = DTYPE_F16},
        {.kind = QUANT_NONE}};
    static const size_t rows[] = {1, 3, ROWS_MOST}, widths[] = {7, 200, 352};
    const size_t n_inner = util_cases(4) == 4 ? 3 : 1; /* formats of the codes for each problem */
    struct team *team = test_team(3);
    struct rng r = {5};
    for (size_t i = 0; i < 4 * 3 * 3; i++) {
        const struct quant_format f = formats[i % 4];
        struct problem p;
        problem_init(&p, &r, f, rows[i / 4 % 3], widths[i / 12]);
        if (i % 5 == 0) p.kind = GATE_GEGLU_EXACT;
        const struct kern_table k = i % 2 == 0 ? table_best() : table_in_turn(i);
        for (size_t j = 0; j < n_inner; j++) {
            const struct quant_format inner = formats[(i + j) % 3];
            struct result three = run(&p, k, NULL, inner, THREE_OPS);
            for (int t = 0; t < 4; t++) {
                struct result one =
                    run(&p, k, t % 2 == 0 ? NULL : team, inner, t < 2 ? ONE_OP : CODES_ALONE);
                compare(&p, &three, &one);
                result_free(&one);
            }
            result_free(&three);
        }
        problem_free(&p);
    }
    team_destroy(&team);
}

void suite_gated(CU_pSuite suite);
void suite_gated(CU_pSuite suite)
{
    CU_add_test(suite, "one op has the bits of three", one_op_has_the_bits_of_three);
}
