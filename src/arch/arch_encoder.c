/* Encoders: BERT (Devlin et al., 2019, arXiv 1810.04805), the families that have its layers, and
 * ModernBERT (Warner et al., 2024, arXiv 2412.13663). Called by arch.c.
 *
 * A published layer of BERT normalizes its sums, LN(h + f(h)). shoal's layers normalize their
 * inputs, so the published norm after a sum is the norm of the next block's input here, and convert
 * names it so (published_encoder.c); the normed rows then also replace the residual stream
 * (model/stage.c). ModernBERT normalizes its inputs as shoal does. Its first layer has no norm
 * before attention, but the embeddings have one. Here this is the norm of the first layer's input,
 * and the normed rows also replace the residual stream. */
#include "arch/arch_private.h"

#include <string.h>

/* Ignored fields of any encoder. */
static const char *const encoder_keys[] = {
    /* for training, or read by nothing */
    "attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout",
    "gradient_checkpointing", "output_past",
    /* read by no published code, as are fields that begin with pooler_ */
    "rms_norm_eps", "directionality",
    /* for scores; job_rank.c reads them */
    "sbert_ce_default_activation_function", "sentence_transformers"};
/* Ignored fields of ModernBERT. */
static const char *const modern_keys[] = {
    /* for training, for the training head, or for other programs' kernels */
    "embedding_dropout", "mlp_dropout", "initializer_cutoff_factor", "decoder_bias",
    "sparse_prediction", "sparse_pred_ignore_index", "deterministic_flash_attn",
    "reference_compile", "repad_logits_with_grad", "cls_token_id",
    /* fields of BERT, which are published and which nothing reads */
    "layer_norm_eps", "hidden_act", "position_embedding_type", "type_vocab_size",
    /* for scores; job_rank.c reads them */
    "classifier_pooling", "classifier_bias", "classifier_activation"};

static bool is_among(const char *key, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(key, keys[i]) == 0) return true;
    }
    return false;
}

bool arch_encoder_ignores(const struct arch_family *f, const char *key)
{
    return is_among(key, encoder_keys, sizeof encoder_keys / sizeof encoder_keys[0]) ||
           (f->modern && is_among(key, modern_keys, sizeof modern_keys / sizeof modern_keys[0])) ||
           strncmp(key, "pooler_", strlen("pooler_")) == 0;
}

/* Subtracts from the context the positions up to that of padding, which no text has. */
static struct status leave_positions(struct arch_reading *r)
{
    struct arch *m = &r->m;
    if (r->pad_id + 1 >= m->context)
        return status_make(STATUS_INPUT,
                           "%s: max_position_embeddings: expected more than pad_token_id %u + 1, "
                           "found %u",
                           r->what, r->pad_id, m->context);
    m->pad_id = (int32_t)r->pad_id;
    m->context -= r->pad_id + 1;
    return status_ok();
}

static struct status derive_bert(struct arch_reading *r)
{
    struct arch *m = &r->m;
    m->gate = GATE_GELU;
    m->attn.qkv_bias = m->attn.o_bias = m->ffn_bias = true;
    m->n_positions = m->context;
    m->pad_id = -1;
    if (m->family->pad_positions) TRY(leave_positions(r));
    for (uint32_t l = 0; l < m->n_layers; l++) m->layer.is_unrotated[l] = true;
    return status_ok();
}

/* Sets the window and the activation. Refuses fields by which transformers would change the window,
 * or the RoPE of both kinds of layers. */
static struct status derive_modern(struct arch_reading *r)
{
    struct arch *m = &r->m;
    if (js_type(js_get(r->root, "sliding_window")) != JS_NULL) /* 0 would change it, too */
        return status_make(STATUS_INPUT,
                           "%s: sliding_window is not implemented for %s, whose window is "
                           "local_attention",
                           r->what, m->family->title);
    if (!arch_field_is_off(r->node.rope_scaling))
        return status_make(STATUS_INPUT, "%s: rope_scaling is not implemented for %s", r->what,
                           m->family->title);
    r->window = r->local_attention / 2 + 1;
    m->gate = GATE_GEGLU_EXACT;
    m->pad_id = -1;
    return status_ok();
}

struct status arch_derive_encoder(struct arch_reading *r)
{
    struct arch *m = &r->m;
    m->norm_bias = m->family->layer_norms && (!m->family->modern || m->norm_bias);
    if (!m->family->encoder) return status_ok();
    if (m->attn.n_kv_heads != m->attn.n_heads ||
        (uint64_t)m->attn.query_dim * m->attn.n_heads != m->width)
        return status_make(
            STATUS_INPUT,
            "%s: num_attention_heads: %u heads of %u, %u of keys and values, are not "
            "hidden_size %u, which is not implemented for %s",
            r->what, m->attn.n_heads, m->attn.query_dim, m->attn.n_kv_heads, m->width,
            m->family->title);
    m->encoder = true;
    m->tied = true; /* a model without a head has no tensor for one */
    return m->family->modern ? derive_modern(r) : derive_bert(r);
}
