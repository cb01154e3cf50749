/* Reads the sparse attention of MiniMax-M3, whose index chooses blocks of positions: its sizes,
 * which are at the top of config.json or in "sparse_attention_config", and the layers that have an
 * index. Called by arch.c. */
#include "arch/arch_private.h"
#include "tensor/dims.h"

#include <string.h>

/* A size of the index: its name at the top, its name inside "sparse_attention_config", which
 * counts where both are given, and its bounds. */
struct index_size {
    const char *outer, *inner;
    uint32_t least, most;
};

static struct status read_inner(const struct arch_reading *r, const struct index_size *size,
                                uint32_t *out)
{
    const struct js_node *node = js_get(r->node.sparse_config, size->inner);
    int64_t n;
    if (js_type(node) == JS_NULL) return status_ok();
    if (!js_int(node, &n) || n < size->least || n > size->most) {
        return status_make(STATUS_INPUT,
                           "%s: sparse_attention_config.%s: expected an integer from %u to %u",
                           r->what, size->inner, size->least, size->most);
    }
    *out = (uint32_t)n;
    return status_ok();
}

/* Reads the sizes. A size that must be at least 1 has no default. */
static struct status read_sizes(struct arch_reading *r)
{
    struct arch_index *index = &r->m.index;
    const struct {
        struct index_size size;
        uint32_t *to;
    } all[] = {{{"index_n_heads", "sparse_num_index_heads", 1, 4096}, &index->n_heads},
               {{"index_head_dim", "sparse_index_dim", 1, 1024}, &index->dim},
               {{"index_block_size", "sparse_block_size", 1, 1 << 24}, &index->block},
               {{"index_topk_blocks", "sparse_topk_blocks", 1, 1 << 24}, &r->n_blocks},
               {{"index_local_blocks", "sparse_local_block", 0, 1 << 24}, &index->n_local}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        TRY(read_inner(r, &all[i].size, all[i].to));
        if (*all[i].to < all[i].size.least) return arch_field_missing(r, all[i].size.outer);
    }
    return status_ok();
}

/* Refuses members of "sparse_attention_config" that shoal does not know, and values of others that
 * it does not implement. */
static struct status check_config(const struct arch_reading *r)
{
    static const char *const known[] = {"sparse_num_index_heads",     "sparse_index_dim",
                                        "sparse_block_size",          "sparse_topk_blocks",
                                        "sparse_local_block",         "sparse_attention_freq",
                                        "use_sparse_attention",       "sparse_score_type",
                                        "sparse_disable_index_value", "sparse_init_block"};
    const struct js_node *config = r->node.sparse_config, *value;
    const void *it = NULL;
    const char *key;
    if (config != NULL && js_type(config) != JS_OBJECT)
        return status_make(STATUS_INPUT, "%s: sparse_attention_config: expected an object",
                           r->what);
    while (js_next(config, &it, &key, &value)) {
        bool is_known = arch_field_is_off(value);
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            is_known = is_known || strcmp(key, known[i]) == 0;
        if (!is_known)
            return status_make(STATUS_INPUT, "%s: sparse_attention_config.%s is not implemented",
                               r->what, key);
    }
    const struct js_node *use = js_get(config, "use_sparse_attention");
    const char *score = js_string(js_get(config, "sparse_score_type"), NULL);
    if (js_type(use) != JS_NULL && arch_field_is_off(use))
        return status_make(STATUS_INPUT,
                           "%s: sparse_attention_config.use_sparse_attention: expected true",
                           r->what);
    if (score != NULL && strcmp(score, "max") != 0)
        return status_make(
            STATUS_INPUT, "%s: sparse_attention_config.sparse_score_type \"%s\" is not implemented",
            r->what, score);
    if (arch_field_is_off(js_get(config, "sparse_init_block"))) return status_ok();
    return status_make(STATUS_INPUT, "%s: sparse_attention_config.sparse_init_block: expected 0",
                       r->what);
}

/* Sets *has: whether the layer has an index, by "layer_types" or else by "sparse_attention_freq";
 * without both no layer has one. */
static struct status layer_has_index(const struct arch_reading *r, uint32_t layer, bool *has)
{
    const struct js_node *freq = js_get(r->node.sparse_config, "sparse_attention_freq");
    const char *type = js_string(js_at(r->node.layer_types, layer), NULL);
    int64_t flag = 0;
    if (js_type(freq) != JS_NULL && (!js_int(js_at(freq, layer), &flag) || flag < 0 || flag > 1)) {
        return status_make(STATUS_INPUT,
                           "%s: sparse_attention_config.sparse_attention_freq[%u]: expected 0 or 1",
                           r->what, layer);
    }
    *has = flag == 1;
    if (r->node.layer_types == NULL) return status_ok();
    const bool is_sparse = type != NULL && strcmp(type, "minimax_m3_sparse") == 0;
    if (!is_sparse && (type == NULL || strcmp(type, "full_attention") != 0)) {
        return status_make(STATUS_INPUT, "%s: layer_types[%u] \"%s\" is not implemented for %s",
                           r->what, layer, type == NULL ? "(no text)" : type, r->m.family->title);
    }
    if (js_type(freq) != JS_NULL && is_sparse != *has) {
        return status_make(STATUS_INPUT,
                           "%s: layer_types[%u]: sparse_attention_freq says otherwise", r->what,
                           layer);
    }
    *has = is_sparse;
    return status_ok();
}

/* Refuses a layer whose index has values, which would be added to attention's output. */
static struct status check_values(const struct arch_reading *r, uint32_t layer)
{
    const struct js_node *list = js_get(r->node.sparse_config, "sparse_disable_index_value");
    int64_t flag;
    if (js_type(list) == JS_NULL || (js_int(js_at(list, layer), &flag) && flag == 1))
        return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: sparse_attention_config.sparse_disable_index_value[%u]: expected 1",
                       r->what, layer);
}

static struct status check_sizes(const struct arch_reading *r)
{
    const struct arch *m = &r->m;
    const struct arch_index *index = &m->index;
    if (index->n_heads != m->attn.n_kv_heads)
        return status_make(STATUS_INPUT,
                           "%s: index_n_heads: expected %u, as num_key_value_heads says, found %u",
                           r->what, m->attn.n_kv_heads, index->n_heads);
    if (index->dim % LANES != 0 || index->dim < m->attn.rotary)
        return status_make(STATUS_INPUT,
                           "%s: index_head_dim: expected a multiple of %d, at least the %u rotated "
                           "elements, found %u",
                           r->what, LANES, m->attn.rotary, index->dim);
    if (index->block % KV_BLOCK_TOKENS != 0)
        return status_make(STATUS_INPUT,
                           "%s: index_block_size: expected a multiple of %d, found %u", r->what,
                           KV_BLOCK_TOKENS, index->block);
    if (index->n_local <= r->n_blocks) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: index_local_blocks: expected at most index_topk_blocks %u, found %u",
                       r->what, r->n_blocks, index->n_local);
}

struct status arch_derive_block_index(struct arch_reading *r)
{
    struct arch *m = &r->m;
    bool any = false;
    TRY(check_config(r));
    for (uint32_t l = 0; l < m->n_layers; l++) {
        bool has = false;
        TRY(layer_has_index(r, l, &has));
        m->layer.lacks_index[l] = !has;
        if (has) TRY(check_values(r, l));
        any = any || has;
    }
    if (!any) {
        m->index = (struct arch_index){0};
        return status_ok();
    }
    TRY(read_sizes(r));
    TRY(check_sizes(r));
    /* no row sees more blocks, so a larger n_chosen would only take memory */
    const uint32_t most = (m->context + m->index.block - 1) / m->index.block;
    m->index.n_chosen = (r->n_blocks < most ? r->n_blocks : most) * m->index.block;
    return status_ok();
}
