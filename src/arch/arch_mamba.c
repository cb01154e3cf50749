/* Reads the fields that only models with Mamba-2 layers have: the lists of their layers, the sizes
 * of a scan, the bounds of its step. Called by arch.c. */
#include "arch/arch_private.h"

#include <math.h>
#include <string.h>

/* A kind of layer: its letter in "hybrid_override_pattern", and its names in "layers_block_type"
 * and "layer_types". */
static const struct mamba_block {
    char letter;
    const char *words[2];
    bool is_scan, is_attention, is_moe;
} blocks[] = {{'M', {"mamba", "linear_attention"}, .is_scan = true},
              {'*', {"attention", "full_attention"}, .is_attention = true},
              {'-', {"mlp", "mlp"}, .is_scan = false},
              {'E', {"moe", "moe"}, .is_moe = true}};
enum { N_BLOCKS = sizeof blocks / sizeof blocks[0] };

/* Returns the block of layer l by one of the lists or by the pattern; NULL: none. */
static const struct mamba_block *block_in(const struct js_node *list, size_t l)
{
    size_t n = 0;
    const char *pattern = js_string(list, &n), *word = js_string(js_at(list, l), NULL);
    for (int i = 0; i < N_BLOCKS; i++) {
        if (pattern != NULL && l < n && pattern[l] == blocks[i].letter) return &blocks[i];
        if (word != NULL &&
            (strcmp(word, blocks[i].words[0]) == 0 || strcmp(word, blocks[i].words[1]) == 0))
            return &blocks[i];
    }
    return NULL;
}

static size_t n_blocks_in(const struct js_node *list)
{
    size_t n = 0;
    return js_string(list, &n) != NULL ? n : js_count(list);
}

/* The fields that may list a model's layers. */
struct layer_lists {
    const struct js_node *all[3];
};
static const char *const list_names[3] = {"layers_block_type", "layer_types",
                                          "hybrid_override_pattern"};

static struct layer_lists lists_of(const struct arch_reading *r)
{
    return (struct layer_lists){{r->node.block_types, r->node.layer_types, r->node.block_pattern}};
}

static struct status wrong_block(const struct arch_reading *r, int list, uint32_t l)
{
    return status_make(STATUS_INPUT,
                       "%s: %s: layer %u: expected one of the layers that shoal runs for %s, the "
                       "same in all lists",
                       r->what, list_names[list], l, r->m.family->title);
}

/* Sets *out to the block of layer l, which all lists must agree on. */
static struct status find_mamba_block(const struct arch_reading *r, uint32_t l,
                                      const struct mamba_block **out)
{
    const struct layer_lists lists = lists_of(r);
    *out = NULL;
    for (int i = 0; i < 3; i++) {
        if (lists.all[i] == NULL) continue;
        const struct mamba_block *b = block_in(lists.all[i], l);
        const bool may_be =
            b != NULL && (r->m.family->mamba_blocks || b->is_scan || b->is_attention);
        if (!may_be || (*out != NULL && *out != b)) return wrong_block(r, i, l);
        *out = b;
    }
    return status_ok();
}

struct status arch_derive_blocks(struct arch_reading *r)
{
    const struct layer_lists lists = lists_of(r);
    uint32_t n = 0;
    if (!r->m.family->mamba) return status_ok();
    for (int i = 0; i < 3; i++) {
        if (lists.all[i] == NULL) continue;
        const size_t found = n_blocks_in(lists.all[i]);
        const size_t want = n > 0 ? n : r->m.n_layers > 0 ? r->m.n_layers : found;
        if (found != want || found == 0 || found > ARCH_LAYERS_MAX)
            return status_make(STATUS_INPUT, "%s: %s: expected %zu layers, found %zu", r->what,
                               list_names[i], want == 0 ? 1 : want, found);
        n = (uint32_t)found;
    }
    if (n == 0)
        return status_make(STATUS_INPUT, "%s: field \"%s\": expected a list, found nothing",
                           r->what, list_names[r->m.family->mamba_blocks ? 0 : 1]);
    r->m.n_layers = n;
    return status_ok();
}

/* Sets *out to a number of time_step_limit, or to infinity, which transformers writes as an object;
 * convert writes Python's "Infinity" so, too. */
static bool read_bound(const struct js_node *node, float *out)
{
    double value;
    const char *word = js_string(js_get(node, "__float__"), NULL);
    if (js_number(node, &value)) *out = (float)value;
    const bool is_infinite = word != NULL && strcmp(word, "Infinity") == 0;
    if (is_infinite) *out = INFINITY;
    return js_number(node, &value) || is_infinite;
}

static struct status read_step_limit(struct arch_reading *r)
{
    struct arch_delta *d = &r->m.delta;
    const bool is_read = r->m.family->mamba_granite;
    float least = 0, most = INFINITY;
    if (r->node.step_limit != NULL &&
        (js_count(r->node.step_limit) != 2 || !read_bound(js_at(r->node.step_limit, 0), &least) ||
         !read_bound(js_at(r->node.step_limit, 1), &most) || !(least <= most) || least < 0))
        return status_make(STATUS_INPUT,
                           "%s: time_step_limit: expected two ascending numbers, found others",
                           r->what);
    if (is_read) {
        d->step_least = least;
        d->step_most = most;
        return status_ok();
    }
    d->step_most = INFINITY;
    if (least == 0 && isinf(most)) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: time_step_limit: expected 0 and infinity for %s, whose "
                       "implementations differ otherwise",
                       r->what, r->m.family->title);
}

static struct status check_scan_sizes(const struct arch_reading *r)
{
    const struct arch_delta *d = &r->m.delta;
    if (d->n_value_heads % d->n_key_heads != 0)
        return status_make(STATUS_INPUT,
                           "%s: Mamba-2 layers: expected a multiple of the %u groups as heads, "
                           "found %u",
                           r->what, d->n_key_heads, d->n_value_heads);
    if (!r->m.family->mamba_granite ||
        (uint64_t)d->n_value_heads * d->value_dim == (uint64_t)r->expand * r->m.width)
        return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: mamba_expand: %u heads of %u are not %u times the width %u", r->what,
                       d->n_value_heads, d->value_dim, r->expand, r->m.width);
}

/* Sets which layers have RoPE: all or none. */
static struct status derive_positions(struct arch_reading *r)
{
    const char *word = js_string(r->node.position_type, NULL);
    const bool rotates = word != NULL && strcmp(word, "rope") == 0;
    if (r->node.position_type != NULL && !rotates && (word == NULL || strcmp(word, "nope") != 0))
        return status_make(STATUS_INPUT,
                           "%s: position_embedding_type: expected \"rope\", \"nope\" or null",
                           r->what);
    for (uint32_t l = 0; l < r->m.n_layers; l++) r->m.layer.is_unrotated[l] = !rotates;
    return status_ok();
}

/* Checks that a model with layers of experts gives their sizes. */
static struct status check_experts(const struct arch_reading *r)
{
    const struct arch *m = &r->m;
    if (m->moe.n_experts == 0) return arch_field_missing(r, "n_routed_experts");
    if (m->moe.n_chosen == 0) return arch_field_missing(r, "num_experts_per_tok");
    if (m->moe.ffn == 0) return arch_field_missing(r, "moe_intermediate_size");
    if (m->moe.shared_ffn == 0) return arch_field_missing(r, "moe_shared_expert_intermediate_size");
    return status_ok();
}

struct status arch_derive_mamba(struct arch_reading *r)
{
    struct arch *m = &r->m;
    bool any_attention = false, any_moe = false;
    m->delta.is_mamba = true;
    if (m->family->mamba_blocks) m->gate = GATE_RELU2;
    TRY(check_scan_sizes(r));
    TRY(read_step_limit(r));
    TRY(derive_positions(r));
    for (uint32_t l = 0; l < m->n_layers; l++) {
        const struct mamba_block *b;
        TRY(find_mamba_block(r, l, &b));
        m->layer.is_delta[l] = b->is_scan;
        any_attention = any_attention || b->is_attention;
        if (!m->family->mamba_blocks) continue;
        m->layer.lacks_mixer[l] = !b->is_scan && !b->is_attention;
        m->layer.lacks_ffn[l] = b->is_scan || b->is_attention;
        m->layer.is_moe[l] = b->is_moe;
        any_moe = any_moe || b->is_moe;
    }
    if (any_moe) TRY(check_experts(r));
    if (m->family->mamba_blocks && !any_moe)
        m->moe.n_experts = m->moe.n_chosen = m->moe.ffn = m->moe.shared_ffn = 0;
    if (any_attention) return status_ok();
    return status_make(STATUS_INPUT, "%s: layer_types: %s without attention is not implemented",
                       r->what, m->family->title);
}
