/* GPTQ, AWQ and SmoothQuant against implementations in numpy that follow the papers
 * (make_quant_goldens.py). */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "quant/awq.h"
#include "quant/fit.h"
#include "quant/gptq.h"
#include "quant/hessian.h"
#include "quant/quantize.h"
#include "quant/smoothquant.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct js_doc *goldens(void)
{
    char *text = NULL;
    size_t n = 0;
    struct js_doc *doc = NULL;
    struct status st = file_read(TEST_DATA_DIR "/golden/quant/methods.json", 1 << 22, &text, &n);
    CU_ASSERT_FATAL(!status_failed(&st));
    st = js_parse(text, n, "methods.json", &doc);
    CU_ASSERT_FATAL(!status_failed(&st));
    mem_free(&text);
    return doc;
}

/* One case of golden/quant/methods.json. */
struct problem {
    const struct js_node *node;
    struct quant_format f;
    uint32_t n_in;
    size_t n_out, n_tokens;
    float *x, *w; /* owned [n_tokens, n_in], [n_out, n_in] */
    double *full; /* owned [n_in, n_in]: the Hessian with both triangles */
    struct hessian h;
};

static double number(const struct js_node *node)
{
    double value = NAN;
    CU_ASSERT_FATAL(js_number(node, &value));
    return value;
}

static float *matrix(const struct js_node *rows, size_t n_in, double unit, size_t *n_rows)
{
    float *out = NULL;
    *n_rows = js_count(rows);
    const struct status st = mem_alloc(&out, *n_rows * n_in, sizeof *out, "test");
    CU_ASSERT_FATAL(!status_failed(&st));
    for (size_t r = 0; r < *n_rows; r++) {
        CU_ASSERT_EQUAL_FATAL(js_count(js_at(rows, r)), n_in);
        for (size_t k = 0; k < n_in; k++) {
            out[r * n_in + k] = (float)(number(js_at(js_at(rows, r), k)) * unit);
        }
    }
    return out;
}

static void problem_init(struct problem *p, const struct js_node *node)
{
    memset(p, 0, sizeof *p);
    p->node = node;
    p->n_in = (uint32_t)number(js_get(node, "n_in"));
    CU_ASSERT_FATAL(quant_format_parse(js_string(js_get(node, "format"), NULL), &p->f));
    p->x = matrix(js_get(node, "x"), p->n_in, 1.0 / 256, &p->n_tokens);
    p->w = matrix(js_get(node, "w"), p->n_in, 1.0 / 4096, &p->n_out);
    struct status st = hessian_init(&p->h, p->n_in, 0, p->n_in);
    CU_ASSERT_FATAL(!status_failed(&st));
    hessian_add(NULL, &p->h, p->x, p->n_in, p->n_tokens);
    st = mem_alloc(&p->full, (size_t)p->n_in * p->n_in, sizeof *p->full, "test");
    CU_ASSERT_FATAL(!status_failed(&st));
    memcpy(p->full, p->h.h, (size_t)p->n_in * p->n_in * sizeof *p->full);
    hessian_mirror(p->full, p->n_in);
}

static void problem_fini(struct problem *p)
{
    hessian_fini(&p->h);
    mem_free(&p->x);
    mem_free(&p->w);
    mem_free(&p->full);
}

static void check_result(const struct problem *p, const struct js_node *want,
                         const struct quant_block *found)
{
    size_t n_wrong = 0;
    for (size_t r = 0; r < p->n_out; r++) {
        for (size_t k = 0; k < p->n_in; k++) {
            const uint8_t byte = quant_get_code(p->f, found, p->n_in, r, k);
            const int code = p->f.kind == QUANT_INT8 && !p->f.has_zeros ? (int8_t)byte : byte;
            n_wrong += code != (int)number(js_at(js_at(js_get(want, "codes"), r), k));
        }
        for (size_t g = 0; g < quant_groups(p->f, p->n_in); g++) {
            const struct quant_param param = quant_get_param(p->f, found, p->n_in, r, g);
            n_wrong += param.scale != (float)number(js_at(js_at(js_get(want, "scales"), r), g));
            n_wrong += param.zero != (int)number(js_at(js_at(js_get(want, "zeros"), r), g));
        }
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
}

static void gptq_is_the_papers(void)
{
    struct js_doc *doc = goldens();
    for (size_t i = 0; i < js_count(js_root(doc)); i++) {
        struct problem p;
        problem_init(&p, js_at(js_root(doc), i));
        for (int act_order = 0; act_order < 2; act_order++) {
            const struct gptq_options o = {.damping = 0.01, .act_order = act_order != 0};
            struct gptq g;
            struct quant_block block;
            struct status st = gptq_create(NULL, p.full, p.n_in, &o, &g);
            CU_ASSERT_FATAL(!status_failed(&st));
            st = quant_block_create(p.f, p.n_out, p.n_in, &block);
            CU_ASSERT_FATAL(!status_failed(&st));
            st = gptq_rows(&g, p.f, p.w, p.n_out, &block);
            CU_ASSERT(!status_failed(&st));
            check_result(&p, js_get(p.node, act_order ? "gptq_act_order" : "gptq"), &block);
            quant_block_destroy(&block);
            gptq_destroy(&g);
        }
        problem_fini(&p);
    }
    js_destroy(&doc);
}

static void check_tries(const struct problem *p, const struct js_node *tries)
{
    float s[256];
    const struct awq_linear linear = {p->f, p->w, p->n_out, p->n_in, p->full};
    CU_ASSERT_EQUAL(js_count(tries), AWQ_TRIED);
    for (int step = 0; step < AWQ_TRIED; step++) {
        const struct js_node *want = js_get(js_at(tries, (size_t)step), "scales");
        const double want_error = number(js_get(js_at(tries, (size_t)step), "error"));
        double error;
        awq_scales(p->h.sum_abs, p->h.n_tokens, p->n_in, step, s);
        for (size_t k = 0; k < js_count(want); k++) {
            CU_ASSERT_DOUBLE_EQUAL(s[k] / number(js_at(want, k)), 1, 1e-5);
        }
        const struct status st = awq_error(NULL, &linear, s, &error);
        CU_ASSERT(!status_failed(&st));
        CU_ASSERT_DOUBLE_EQUAL(error / want_error, 1, 1e-4); /* scales may differ in their last
                                                                bit */
    }
}

static void awq_is_the_papers(void)
{
    struct js_doc *doc = goldens();
    size_t n_checked = 0;
    for (size_t i = 0; i < js_count(js_root(doc)); i++) {
        const struct js_node *awq = js_get(js_at(js_root(doc), i), "awq");
        if (js_type(awq) != JS_OBJECT) continue;
        struct problem p;
        struct quant_block block;
        problem_init(&p, js_at(js_root(doc), i));
        check_tries(&p, js_get(awq, "tries"));
        const struct status st = quant_block_create(p.f, p.n_out, p.n_in, &block);
        CU_ASSERT_FATAL(!status_failed(&st));
        quant_clipped_rows(NULL, p.f, p.w, p.n_out, p.n_in, p.full, &block);
        check_result(&p, js_get(awq, "clipped"), &block);
        quant_block_destroy(&block);
        problem_fini(&p);
        n_checked++;
    }
    CU_ASSERT(n_checked >= 3);
    js_destroy(&doc);
}

static void smoothquant_is_the_papers(void)
{
    static const struct {
        const char *name;
        unsigned alpha;
    } alphas[] = {{"smoothquant_alpha_half", 32}, {"smoothquant_alpha_3_4", 48}};
    struct js_doc *doc = goldens();
    size_t n_checked = 0;
    for (size_t i = 0; i < js_count(js_root(doc)); i++) {
        struct problem p;
        problem_init(&p, js_at(js_root(doc), i));
        for (int a = 0; a < 2; a++) {
            float s[256], max_w[256] = {0};
            const struct js_node *want = js_get(p.node, alphas[a].name);
            smoothquant_see_weights(p.w, p.n_out, p.n_in, max_w);
            smoothquant_scales(p.h.max_abs, max_w, p.n_in, alphas[a].alpha, s);
            for (size_t k = 0; k < js_count(want); k++, n_checked++) {
                CU_ASSERT_DOUBLE_EQUAL(s[k] / number(js_at(want, k)), 1, 1e-5);
            }
        }
        problem_fini(&p);
    }
    CU_ASSERT(n_checked > 100);
    js_destroy(&doc);
}

/* Where inputs are correlated, GPTQ and clipping give a smaller output error than rounding to
 * nearest (RTN). */
static void gptq_and_clipping_beat_rtn_on_their_own_measure(void)
{
    struct js_doc *doc = goldens();
    struct problem p;
    problem_init(&p, js_at(js_root(doc), 0));
    const size_t n = p.n_out * p.n_in;
    float *values = NULL;
    struct gptq g;
    double errors[3];
    struct status st = mem_alloc(&values, n, sizeof *values, "test");
    CU_ASSERT_FATAL(!status_failed(&st));
    st = gptq_create(NULL, p.full, p.n_in, &(struct gptq_options){.damping = 0.01}, &g);
    CU_ASSERT_FATAL(!status_failed(&st));
    for (int method = 0; method < 3; method++) {
        struct quant_block block;
        st = quant_block_create(p.f, p.n_out, p.n_in, &block);
        CU_ASSERT_FATAL(!status_failed(&st));
        if (method == 0) quant_rtn_rows(NULL, p.f, p.w, p.n_out, p.n_in, &block);
        if (method == 1) st = gptq_rows(&g, p.f, p.w, p.n_out, &block);
        if (method == 2) quant_clipped_rows(NULL, p.f, p.w, p.n_out, p.n_in, p.full, &block);
        CU_ASSERT(!status_failed(&st));
        quant_dequantize_rows(NULL, p.f, &block, p.n_out, p.n_in, values);
        for (size_t i = 0; i < n; i++) values[i] -= p.w[i];
        st = hessian_error(NULL, p.full, p.n_in, values, p.n_out, &errors[method]);
        CU_ASSERT(!status_failed(&st));
        quant_block_destroy(&block);
    }
    CU_ASSERT(errors[1] < 0.7 * errors[0]);
    CU_ASSERT(errors[2] < errors[0]);
    gptq_destroy(&g);
    mem_free(&values);
    problem_fini(&p);
    js_destroy(&doc);
}

static const struct gptq_options clipped = {.damping = 0.01, .clip = true};

/* By rule 10 of docs/numerics.md, the law holds for quantized files too: codes do not depend on the
 * number of threads. */
static void codes_do_not_depend_on_threads(void)
{
    struct js_doc *doc = goldens();
    struct quant_block blocks[2];
    struct problem p;
    for (int i = 0; i < 2; i++) {
        struct gptq g;
        struct team *team;
        struct status st = team_create(i == 0 ? 1 : 5, &team);
        CU_ASSERT_FATAL(!status_failed(&st));
        problem_init(&p, js_at(js_root(doc), 1));
        st = gptq_create(team, p.full, p.n_in, &clipped, &g);
        CU_ASSERT_FATAL(!status_failed(&st));
        st = quant_block_create(p.f, p.n_out, p.n_in, &blocks[i]);
        CU_ASSERT_FATAL(!status_failed(&st));
        st = gptq_rows(&g, p.f, p.w, p.n_out, &blocks[i]);
        CU_ASSERT(!status_failed(&st));
        gptq_destroy(&g);
        team_destroy(&team);
        if (i == 0) problem_fini(&p);
    }
    CU_ASSERT_EQUAL(
        memcmp(blocks[0].codes, blocks[1].codes, p.n_out * quant_code_bytes(p.f.kind, p.n_in)), 0);
    quant_block_destroy(&blocks[0]);
    quant_block_destroy(&blocks[1]);
    problem_fini(&p);
    js_destroy(&doc);
}

static void every_failed_allocation_is_a_status(void)
{
    struct js_doc *doc = goldens();
    struct problem p;
    problem_init(&p, js_at(js_root(doc), 0));
    for (uint64_t n = 1; n < 6; n++) {
        struct gptq g;
        mem_fail_after(n);
        const struct status st = gptq_create(NULL, p.full, p.n_in, &clipped, &g);
        mem_fail_after(0);
        CU_ASSERT_EQUAL(st.code, STATUS_MEMORY);
        gptq_destroy(&g);
    }
    problem_fini(&p);
    js_destroy(&doc);
}

void suite_quant_methods(CU_pSuite suite);
void suite_quant_methods(CU_pSuite suite)
{
    CU_ADD_TEST(suite, gptq_is_the_papers);
    CU_ADD_TEST(suite, awq_is_the_papers);
    CU_ADD_TEST(suite, smoothquant_is_the_papers);
    CU_ADD_TEST(suite, gptq_and_clipping_beat_rtn_on_their_own_measure);
    CU_ADD_TEST(suite, codes_do_not_depend_on_threads);
    CU_ADD_TEST(suite, every_failed_allocation_is_a_status);
}
