/* Checks the sizes of sparse attention's index (indexer), limits the number of positions that it
 * chooses to the context, and finds the layers that reuse the positions of the layer before them.
 * Called by arch.c. */
#include "arch/arch_private.h"
#include "tensor/dims.h"

#include <string.h>

static struct status check_index_sizes(const struct arch_reading *r)
{
    const struct arch *m = &r->m;
    if (m->attn.q_lora == 0) return arch_field_missing(r, "q_lora_rank");
    if (m->index.dim % LANES == 0 && m->index.dim >= m->attn.rotary) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: index_head_dim: expected a multiple of %d, at least qk_rope_head_dim "
                       "%u, found %u",
                       r->what, LANES, m->attn.rotary, m->index.dim);
}

/* Checks a list with one text for each layer, all of them `wanted`; accepts a missing list. */
static struct status check_list(const struct arch_reading *r, const struct js_node *list,
                                const char *key, const char *wanted)
{
    if (list == NULL) return status_ok();
    if (js_type(list) != JS_ARRAY || js_count(list) != r->m.n_layers) {
        return status_make(STATUS_INPUT, "%s: %s: expected a list of %u", r->what, key,
                           r->m.n_layers);
    }
    for (size_t l = 0; l < js_count(list); l++) {
        const char *found = js_string(js_at(list, l), NULL);
        if (found != NULL && strcmp(found, wanted) == 0) continue;
        return status_make(STATUS_INPUT, "%s: %s[%zu] \"%s\" is not implemented for %s", r->what,
                           key, l, found == NULL ? "(no text)" : found, r->m.family->title);
    }
    return status_ok();
}

/* Returns the field that says which layers reuse positions. */
static const char *sharing_field(const struct arch_reading *r)
{
    if (r->node.indexer_types != NULL) return "indexer_types";
    return r->node.index_pattern != NULL ? "index_topk_pattern" : "index_skip_topk_offset";
}

/* Sets *shares: whether layer l reuses the positions of the layer before it. "indexer_types"
 * overrides the pattern, which overrides the period. */
static struct status layer_shares(const struct arch_reading *r, uint32_t l, bool *shares)
{
    const char *pattern = js_string(r->node.index_pattern, NULL);
    const struct js_node *list =
        r->node.indexer_types != NULL ? r->node.indexer_types : r->node.index_pattern;
    const bool by_letter = r->node.indexer_types == NULL && pattern != NULL;
    const char letter[2] = {by_letter ? pattern[l] : '\0', '\0'};
    const char *type = by_letter ? letter : js_string(js_at(list, l), NULL);
    if (list == NULL) {
        const uint32_t beyond = l + 1 > r->pattern.index_from ? l + 1 - r->pattern.index_from : 0;
        *shares = r->pattern.index_every > 1 && beyond % r->pattern.index_every != 0;
        return status_ok();
    }
    *shares = type != NULL && strcmp(type, by_letter ? "S" : "shared") == 0;
    if (*shares || (type != NULL && strcmp(type, by_letter ? "F" : "full") == 0))
        return status_ok();
    return status_make(STATUS_INPUT, "%s: %s: layer %u is neither full nor shared", r->what,
                       sharing_field(r), l);
}

static struct status derive_shared(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const char *pattern = js_string(r->node.index_pattern, NULL);
    const struct js_node *list =
        r->node.indexer_types != NULL ? r->node.indexer_types : r->node.index_pattern;
    const bool by_letter = r->node.indexer_types == NULL && pattern != NULL;
    const size_t n = by_letter ? strlen(pattern) : js_count(list);
    if (list != NULL && n != m->n_layers) {
        return status_make(STATUS_INPUT, "%s: %s: expected %u layers, found %zu", r->what,
                           sharing_field(r), m->n_layers, n);
    }
    for (uint32_t l = 0; l < m->n_layers; l++) TRY(layer_shares(r, l, &m->layer.shares_index[l]));
    if (!m->layer.shares_index[0]) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: %s: layer 0 has no layer before it whose positions it could reuse",
                       r->what, sharing_field(r));
}

struct status arch_derive_index(struct arch_reading *r)
{
    struct arch_index *index = &r->m.index;
    index->pairs = r->m.family->index_pairs;
    /* no row sees more positions, so a larger n_chosen would only take memory */
    if (index->n_chosen > r->m.context) index->n_chosen = r->m.context;
    TRY(check_index_sizes(r));
    TRY(check_list(r, r->node.layer_types, "layer_types", "indexed_attention"));
    return derive_shared(r);
}
