/* The names of an encoder's tensors. BERT's published norm after a sum is the norm of the next
 * block's input here (arch/arch_encoder.c):
 *
 *   embeddings.LayerNorm                          the input norm of layer 0
 *   encoder.layer.N.attention.output.LayerNorm    the norm before layer N's FFN
 *   encoder.layer.N.output.LayerNorm              the input norm of layer N + 1; for the last N the
 *                                                 final norm
 */
#include "checkpoint/convert/published.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct renamed {
    const char *from, *to; /* the beginning of a name, and its replacement */
};

static const struct renamed outside[] = {
    {"embeddings.word_embeddings.", "model.embed_tokens."},
    {"embeddings.position_embeddings.", "model.embed_positions."},
    {"embeddings.token_type_embeddings.", "model.embed_types."},
    {"embeddings.LayerNorm.", "model.layers.0.input_layernorm."},
    {"classifier.dense.", "score.dense."},
    {"classifier.out_proj.", "score."},
    {"classifier.", "score."},
    {NULL, NULL}};
/* BERT's head for classes reads the pooler. */
static const struct renamed pooler[] = {{"pooler.dense.", "score.dense."}, {NULL, NULL}};
static const struct renamed inside[] = {
    {"attention.self.query.", "self_attn.q_proj."},
    {"attention.self.key.", "self_attn.k_proj."},
    {"attention.self.value.", "self_attn.v_proj."},
    {"attention.output.dense.", "self_attn.o_proj."},
    {"attention.output.LayerNorm.", "post_attention_layernorm."},
    {"intermediate.dense.", "mlp.up_proj."},
    {"output.dense.", "mlp.down_proj."},
    {NULL, NULL}};
/* ModernBERT's names, after published.c has split the fused tensors. */
static const struct renamed modern_outside[] = {
    {"embeddings.tok_embeddings.", "model.embed_tokens."},
    {"embeddings.norm.", "model.layers.0.input_layernorm."},
    {"final_norm.", "model.norm."},
    {"head.", "score."}, /* in the head for classes and in that of pretraining */
    {"classifier.", "score."},
    {NULL, NULL}};
static const struct renamed modern_inside[] = {{"attn_norm.", "input_layernorm."},
                                               {"attn.Wo.", "self_attn.o_proj."},
                                               {"attn.", "self_attn."},
                                               {"mlp_norm.", "post_attention_layernorm."},
                                               {"mlp.Wo.", "mlp.down_proj."},
                                               {"mlp.", "mlp."},
                                               {NULL, NULL}};

/* Removes a prefix; false: the text does not begin with it. */
static bool skip(const char **text, const char *prefix)
{
    const size_t n = strlen(prefix);
    if (strncmp(*text, prefix, n) != 0) return false;
    *text += n;
    return true;
}

/* Writes to out[n]: `before`, then `name` with its beginning replaced by the first row that fits.
 * False: no row fits. */
static bool replace_beginning(const struct renamed *table, const char *before, const char *name,
                              char *out, size_t n)
{
    for (; table->from != NULL; table++) {
        const char *rest = name;
        if (!skip(&rest, table->from)) continue;
        snprintf(out, n, "%s%s%s", before, table->to, rest);
        return true;
    }
    return false;
}

/* Renames a norm's gamma and beta, as old files call its weight and bias. */
static void name_norm(char *name, size_t n)
{
    static const struct renamed ends[] = {{"norm.gamma", "norm.weight"},
                                          {"norm.beta", "norm.bias"}};
    const size_t length = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const size_t end = strlen(ends[i].from);
        if (length < end || strcmp(name + length - end, ends[i].from) != 0) continue;
        snprintf(name + length - end, n - (length - end), "%s", ends[i].to);
    }
}

/* Writes "model.layers.N." to before[n], and moves *name past `start`, the layer's number N and a
 * dot. False: *name does not begin with these, or N is too large. */
static bool take_layer(const char **name, const char *start, char *before, size_t n,
                       unsigned long *layer)
{
    char *rest;
    if (!skip(name, start)) return false;
    *layer = strtoul(*name, &rest, 10);
    *name = rest;
    snprintf(before, n, "model.layers.%lu.", *layer);
    return *layer < ARCH_LAYERS_MAX && skip(name, ".");
}

static void name_modern(const char *name, char *out, size_t n)
{
    char before[64];
    unsigned long layer;
    (void)skip(&name, "model.");
    snprintf(out, n, "%s", name);
    if (replace_beginning(modern_outside, "", name, out, n)) return;
    const char *in_layer = name;
    if (take_layer(&in_layer, "layers.", before, sizeof before, &layer))
        replace_beginning(modern_inside, before, in_layer, out, n);
}

void published_encoder_name(const struct arch *m, const char *name, char *out, size_t n)
{
    char before[64];
    unsigned long layer;
    if (m->family->modern) {
        name_modern(name, out, n);
        return;
    }
    if (!skip(&name, "bert.")) (void)skip(&name, "roberta.");
    const char *in_layer = name;
    snprintf(out, n, "%s", name);
    if (!m->family->pad_positions && replace_beginning(pooler, "", name, out, n)) return;
    if (replace_beginning(outside, "", name, out, n) ||
        !take_layer(&in_layer, "encoder.layer.", before, sizeof before, &layer)) {
        name_norm(out, n);
        return;
    }
    if (!replace_beginning(inside, before, in_layer, out, n)) {
        const char *end = in_layer;
        if (!skip(&end, "output.LayerNorm.")) return;
        snprintf(before, sizeof before, "model.layers.%lu.input_layernorm.", layer + 1);
        const bool is_last = layer + 1 == m->n_layers;
        snprintf(out, n, "%s%s", is_last ? "model.norm." : before, end);
    }
    name_norm(out, n);
}

bool published_encoder_is_unread(const char *name, bool has_classes)
{
    static const char *const starts[] = {"pooler.", "cls.", "lm_head.", "decoder."};
    if (!has_classes && skip(&name, "score.")) return true;
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        if (skip(&name, starts[i])) return true;
    }
    return false;
}
