/* Writes a GGUF file's RoPE scaling in config.json's terms. */
#include "checkpoint/convert/gguf_model.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { FREQS_MAX = 4096 };

static bool number(const struct gguf_model *m, const char *prefix, const char *key, double *out)
{
    char full[128];
    int64_t i;
    snprintf(full, sizeof full, "%s.rope.scaling.%s", prefix, key);
    if (gguf_float(m->file, full, out)) return true;
    if (!gguf_int(m->file, full, &i)) return false;
    *out = (double)i;
    return true;
}

static void put_number(const struct gguf_model *m, const char *prefix, const char *key,
                       const char *name, struct strbuf *out)
{
    double x;
    if (!number(m, prefix, key, &x)) return;
    strbuf_printf(out, ", \"%s\": ", name);
    strbuf_json_float(out, (float)x);
}

/* Appends Llama 3's scaling, which is a tensor with a divisor for each frequency. */
static struct status put_factors(const struct gguf_model *m, const struct gguf_tensor *t,
                                 struct strbuf *out)
{
    float factors[FREQS_MAX];
    if (t->quant != GGUF_F32_TENSOR || t->n_rows != 1 || t->n_cols * 2 != (uint64_t)m->rotary ||
        t->n_cols > FREQS_MAX) {
        return status_make(STATUS_INPUT, "%s: tensor '%s': expected %lld values of F32",
                           gguf_path(m->file), t->name, (long long)m->rotary / 2);
    }
    TRY(gguf_read_rows(m->file, t, 0, 1, factors));
    strbuf_puts(out, "  \"rope_scaling\": {\"rope_type\": \"frequency_factors\", \"factors\": [");
    for (uint64_t i = 0; i < t->n_cols; i++) {
        if (i > 0) strbuf_puts(out, ", ");
        strbuf_json_float(out, factors[i]);
    }
    strbuf_puts(out, "]},\n");
    return status_ok();
}

/* Appends YaRN's mscale and mscale_all_dim, from which latent attention's softmax scale follows.
 * The key holds a tenth of mscale_all_dim; mscale has no key: llama.cpp supports only models
 * in which both are equal. */
static void put_mscale(const struct gguf_model *m, const char *prefix, struct strbuf *out)
{
    double tenth;
    if (!number(m, prefix, "yarn_log_multiplier", &tenth)) return;
    strbuf_puts(out, ", \"mscale\": ");
    strbuf_json_float(out, (float)(tenth * 10.0));
    strbuf_puts(out, ", \"mscale_all_dim\": ");
    strbuf_json_float(out, (float)(tenth * 10.0));
}

struct status gguf_model_rope(const struct gguf_model *m, const char *prefix, struct strbuf *out)
{
    char full[128];
    const struct gguf_tensor *factors = gguf_find(m->file, GGUF_ROPE_FREQS);
    snprintf(full, sizeof full, "%s.rope.scaling.type", prefix);
    const char *type = gguf_string(m->file, full, NULL);
    const bool scaled = type != NULL && strcmp(type, "none") != 0;
    if (gguf_has(m->file, full) &&
        (type == NULL || (scaled && strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0))) {
        return status_make(STATUS_INPUT, "%s: key %s: expected none, linear or yarn",
                           gguf_path(m->file), full);
    }
    if (factors != NULL && scaled) {
        return status_make(STATUS_INPUT, "%s: both %s and tensor '%s': only one is implemented",
                           gguf_path(m->file), full, factors->name);
    }
    if (factors != NULL) return put_factors(m, factors, out);
    if (!scaled) return status_ok();
    strbuf_printf(out, "  \"rope_scaling\": {\"rope_type\": \"%s\"", type);
    put_number(m, prefix, "factor", "factor", out);
    put_number(m, prefix, "original_context_length", "original_max_position_embeddings", out);
    put_number(m, prefix, "yarn_beta_fast", "beta_fast", out);
    put_number(m, prefix, "yarn_beta_slow", "beta_slow", out);
    /* no key says that GPT-OSS does not round YaRN's limits to whole dimensions */
    if (m->arch == GGUF_GPT_OSS) strbuf_puts(out, ", \"truncate\": false");
    if (m->family->latent) put_mscale(m, prefix, out);
    strbuf_puts(out, "},\n");
    return strbuf_status(out);
}
