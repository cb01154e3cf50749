/* The weight bytes that `shoal plan` counts for a rank equal the packed bytes of the tensors that
 * the rank loads, or streams from disk: for a model of every family, on one rank and on several, in
 * plain and in quantized formats. */
#include "kernels/ops.h"
#include "unit/util_ckpt.h"
#include "weights/weights.h"

#include <CUnit/CUnit.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

/* The format of FFNs and experts in a quantized model. All other matrices are bf16, vectors f32. */
static const struct quant_format int4 = {
    .kind = QUANT_INT4, .group = 32, .has_zeros = true, .scale_dtype = DTYPE_F16};
static const struct layout_weight int4_weight = {.group = 32, .group_bytes = 16 + 2 + 1};

struct adding {
    const struct arch *m;
    bool is_quantized;
    uint64_t n_bytes;
};

static bool is_int4(const struct adding *a, const struct weight_spec *s)
{
    if (!a->is_quantized) return false;
    return s->tensor->class == CLASS_FFN || s->role == WEIGHT_EXPERT_GATE ||
           s->role == WEIGHT_EXPERT_UP || s->role == WEIGHT_EXPERT_DOWN;
}

static uint64_t matrix_bytes(const struct adding *a, const struct weight_spec *s)
{
    const uint32_t n_out = range_count(s->rows), n_in = range_count(s->cols);
    if (!is_int4(a, s)) return packed_bytes(DTYPE_BF16, n_out, n_in);
    const struct packed_quant_sizes n = packed_quant_bytes(int4, n_out, n_in);
    return n.data + n.scales + n.zeros;
}

/* With latent attention, kv_b_proj is packed as two matrices per head, for keys and for values. */
static uint64_t latent_bytes(const struct arch *m, const struct weight_spec *s)
{
    const uint32_t own = m->attn.query_dim - m->attn.rotary;
    const uint32_t n_heads = range_count(s->rows) / (own + m->attn.value_dim);
    return n_heads * (packed_bytes(DTYPE_BF16, m->attn.kv_lora, own) +
                      packed_bytes(DTYPE_BF16, m->attn.value_dim, m->attn.kv_lora));
}

static struct status add_bytes(void *ctx, const struct weight_spec *s)
{
    struct adding *a = ctx;
    if (s->is_vector) {
        a->n_bytes += sizeof(float) * range_count(s->rows) * range_count(s->cols);
    } else if (s->role == WEIGHT_KV_B) {
        a->n_bytes += latent_bytes(a->m, s);
    } else {
        a->n_bytes += range_count(s->outer) * matrix_bytes(a, s);
    }
    return status_ok();
}

/* Whether a rank holds a part of an expert of its layers. */
static bool has_expert_weights(const struct layout *l, struct layout_place p)
{
    const struct range layers = layout_layers(l, p.pp);
    bool is_moe = false;
    for (uint32_t i = layers.begin; i < layers.end; i++)
        is_moe = is_moe || l->model.arch->layer.is_moe[i];
    const bool has_part = range_count(layout_expert_ffn(l, p.etp)) > 0 ||
                          (l->cuts_expert_outputs && range_count(layout_expert_outputs(l, p.etp)));
    return is_moe && has_part && range_count(layout_experts(l, p.ep)) > 0;
}

static size_t count_differing_ranks(const struct arch *m, const struct layout *l, bool is_quantized)
{
    size_t n = 0;
    for (uint32_t r = 0; r < l->n_ranks; r++) {
        const struct layout_place place = layout_place_of(l, r);
        struct adding a = {.m = m, .is_quantized = is_quantized};
        const struct status st = weights_list(l, place, add_bytes, &a);
        CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
        const struct layout_memory p = layout_memory_of(l, place, (struct layout_kv){2, 0}, 64);
        n += p.weights_bytes + p.on_disk_bytes != a.n_bytes;
        n += (p.on_disk_bytes > 0) != (l->model.streams_experts && has_expert_weights(l, place));
        n += (p.stream_bytes > 0) != (p.on_disk_bytes > 0) || p.stream_bytes / 4 > a.n_bytes;
    }
    return n;
}

static void check_layouts(const struct arch *m, bool is_quantized)
{
    static struct layout_model lm;
    static struct layout l;
    layout_describe(m, 2, &lm);
    if (is_quantized) lm.weights[CLASS_FFN] = lm.weights[CLASS_EXPERTS] = int4_weight;
    for (uint32_t tp = 1; tp <= 2; tp++) {
        for (uint32_t pp = 1; pp <= 2; pp++) {
            for (uint32_t ep = 1; ep <= 2; ep++) {
                const struct layout_flags f = {.tp = tp, .pp = pp, .ep = ep, .dp = ep};
                if (layout_build(&lm, tp * pp * ep, &f, &l).code != STATUS_OK) continue;
                for (int cuts = 0; cuts < 2; cuts++) {
                    l.cuts_outputs = cuts == 1 && layout_may_cut_outputs(&l);
                    l.cuts_expert_outputs = cuts == 1 && layout_may_cut_expert_outputs(&l);
                    CU_ASSERT_EQUAL(count_differing_ranks(m, &l, is_quantized), 0);
                    l.model.streams_experts = true;
                    CU_ASSERT_EQUAL(count_differing_ranks(m, &l, is_quantized), 0);
                    l.model.streams_experts = false;
                }
            }
        }
    }
}

enum { FAMILIES_MAX = 96 };

/* Checks the model of a config.json, and marks its family as seen. */
static void check_model(const char *path, const char *config, size_t n, bool *seen)
{
    static struct arch m;
    CU_ASSERT_EQUAL_FATAL(arch_parse(config, n, path, &m).code, STATUS_OK);
    for (size_t i = 0; arch_family_at(i) != NULL; i++)
        seen[i] = seen[i] || arch_family_at(i) == m.family;
    check_layouts(&m, false);
    check_layouts(&m, true);
}

static void check_models(const char *pattern, bool *seen)
{
    glob_t paths;
    CU_ASSERT_EQUAL_FATAL(glob(pattern, 0, NULL, &paths), 0);
    for (size_t i = 0; i < paths.gl_pathc; i++) {
        struct strbuf config = get_published_config(paths.gl_pathv[i]);
        check_model(paths.gl_pathv[i], config.data, config.n, seen);
        strbuf_fini(&config);
    }
    globfree(&paths);
}

/* XLM-RoBERTa is RoBERTa under another name. */
static void check_xlm_roberta(bool *seen)
{
    static const char path[] = TEST_DATA_DIR "/golden/embed/roberta-embed/hf/config.json";
    struct strbuf config = get_published_config(path), renamed;
    const char *name = strstr(config.data, "RobertaModel");
    CU_ASSERT_PTR_NOT_NULL_FATAL(name);
    strbuf_init(&renamed);
    strbuf_add(&renamed, config.data, (size_t)(name - config.data));
    strbuf_printf(&renamed, "XLM%s", name);
    check_model(path, renamed.data, renamed.n, seen);
    strbuf_fini(&renamed);
    strbuf_fini(&config);
}

static void a_plan_counts_what_a_rank_loads(void)
{
    bool seen[FAMILIES_MAX] = {false};
    CU_ASSERT_PTR_NULL_FATAL(arch_family_at(FAMILIES_MAX));
    check_models(TEST_DATA_DIR "/golden/models/*/hf/config.json", seen);
    check_models(TEST_DATA_DIR "/golden/embed/*berta-embed/hf/config.json", seen);
    check_models(TEST_DATA_DIR "/golden/embed/bert-embed/hf/config.json", seen);
    check_models(TEST_DATA_DIR "/golden/embed/modernbert-embed/hf/config.json", seen);
    check_xlm_roberta(seen);
    for (size_t i = 0; arch_family_at(i) != NULL; i++) CU_ASSERT(seen[i]);
}

void suite_weights_bytes(CU_pSuite suite);
void suite_weights_bytes(CU_pSuite suite)
{
    CU_add_test(suite, "a plan counts what a rank loads", a_plan_counts_what_a_rank_loads);
}
