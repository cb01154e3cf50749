/* Encoders: BERT (Devlin et al., 2019, arXiv 1810.04805) and the families that have its layers.
 * Called by arch.c.
 *
 * The published layer norms its sums, LN(h + f(h)). shoal's layers norm their inputs, so the
 * published norm after a sum is the norm of the next block's input here, and convert names it so
 * (published_encoder.c); the normed rows then also replace the residual stream (model/stage.c). */
#include "arch/arch_private.h"

#include <string.h>

bool arch_encoder_ignores(const char *key)
{
    static const char *const keys[] = {
        /* of the training, or read by nothing */
        "attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout",
        "gradient_checkpointing", "output_past",
        /* read by no published code, as are those that begin with pooler_ */
        "rms_norm_eps", "directionality",
        /* of the scores, which job_rank.c reads */
        "sbert_ce_default_activation_function", "sentence_transformers"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (strcmp(key, keys[i]) == 0) return true;
    }
    return strncmp(key, "pooler_", strlen("pooler_")) == 0;
}

/* Leaves out the positions up to that of padding, which no text has. */
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

struct status arch_derive_encoder(struct arch_reading *r)
{
    struct arch *m = &r->m;
    if (!m->family->encoder) return status_ok();
    if (m->n_kv_heads != m->n_heads || (uint64_t)m->query_dim * m->n_heads != m->width)
        return status_make(
            STATUS_INPUT,
            "%s: num_attention_heads: %u heads of %u, %u of keys and values, are not "
            "hidden_size %u, which is not implemented for %s",
            r->what, m->n_heads, m->query_dim, m->n_kv_heads, m->width, m->family->title);
    m->encoder = true;
    m->tied = true; /* a model without a head has no tensor for one */
    m->gate = GATE_GELU;
    m->qkv_bias = m->o_bias = m->ffn_bias = true;
    m->n_positions = m->context;
    m->pad_id = -1;
    if (m->family->pad_positions) TRY(leave_positions(r));
    for (uint32_t l = 0; l < m->n_layers; l++) m->layer_is_unrotated[l] = true;
    return status_ok();
}
