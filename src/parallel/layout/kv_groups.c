/* Divides layers into groups that share KV blocks. */
#include "parallel/layout/kv_groups.h"

#include "tensor/dims.h"

/* A stage's layers with KV, by kind. */
struct stage_kinds {
    uint32_t n_full, n_windowed;
};

static struct stage_kinds kinds_of(const struct layout *l, uint32_t pp)
{
    const struct arch *m = l->model.arch;
    const struct range layers = layout_layers(l, pp);
    struct stage_kinds k = {0};
    for (uint32_t i = layers.begin; i < layers.end; i++) {
        if (!arch_layer_has_kv(m, i)) continue;
        if (m->layer.has_window[i])
            k.n_windowed++;
        else
            k.n_full++;
    }
    return k;
}

static uint32_t divide_up(uint32_t n, uint32_t by)
{
    return (n + by - 1) / by;
}

/* Returns how many layers a block of a stage has; 0 when the groups cannot hold a kind of layers
 * that the stage has. */
static uint32_t layers_of(const struct kv_groups *g, struct stage_kinds k)
{
    if (g->n_windowed == 0) return divide_up(k.n_full + k.n_windowed, g->n_full);
    if (g->n_full == 0 && k.n_full > 0) return 0;
    const uint32_t full = g->n_full > 0 ? divide_up(k.n_full, g->n_full) : 0;
    const uint32_t windowed = divide_up(k.n_windowed, g->n_windowed);
    return full > windowed ? full : windowed;
}

uint32_t kv_groups_layers(const struct kv_groups *g, const struct layout *l, uint32_t pp)
{
    return layers_of(g, kinds_of(l, pp));
}

/* Returns how much room for layers these groups leave unused, over all stages. UINT32_MAX: on some
 * stage the layers do not fit, or the unused room is more than a sixth of their number. Unused room
 * in full groups counts twice, because a long sequence holds most of its blocks there. */
static uint32_t unused(const struct kv_groups *g, const struct layout *l)
{
    uint32_t sum = 0;
    for (uint32_t pp = 0; pp < l->pp; pp++) {
        const struct stage_kinds k = kinds_of(l, pp);
        const uint32_t n = k.n_full + k.n_windowed, in_block = layers_of(g, k);
        const uint32_t room = in_block * (g->n_full + g->n_windowed);
        if (n > 0 && (in_block == 0 || (room - n) * 6 > n)) return UINT32_MAX;
        sum += room - n;
        if (g->n_full > 0) sum += in_block * g->n_full - k.n_full;
    }
    return sum;
}

struct kv_groups kv_groups_of(const struct layout *l)
{
    const struct arch *m = l->model.arch;
    struct kv_groups best = {.n_full = 1};
    if (m->attn.window == 0 || m->attn.window >= m->context || l->model.keeps_windows) return best;
    uint32_t least = UINT32_MAX;
    for (uint32_t n = 1; n <= KV_GROUPS_MAX; n++) {
        for (uint32_t n_windowed = 1; n_windowed <= n; n_windowed++) {
            const struct kv_groups g = {n - n_windowed, n_windowed, m->attn.window};
            const uint32_t room = unused(&g, l);
            if (room >= least) continue;
            least = room;
            best = g;
        }
    }
    return best;
}

struct kv_place kv_groups_place(const struct kv_groups *g, uint32_t n_in_block, bool windowed,
                                uint32_t n)
{
    const uint32_t first = windowed && g->n_windowed > 0 ? g->n_full : 0;
    return (struct kv_place){.table = first + n / n_in_block, .in_block = n % n_in_block};
}

uint64_t kv_groups_blocks(const struct kv_groups *g, uint64_t n_positions, uint64_t step_rows)
{
    const uint64_t all = (n_positions + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    if (g->n_windowed == 0) return g->n_full * all;
    /* n consecutive positions lie in at most (n + 62) / 64 + 1 blocks */
    const uint64_t n = g->window - 1 + step_rows;
    const uint64_t seen = (n + KV_BLOCK_TOKENS - 2) / KV_BLOCK_TOKENS + 1;
    return g->n_full * all + g->n_windowed * (seen < all ? seen : all);
}

uint64_t kv_groups_context(const struct layout *l, const struct layout_budget *b)
{
    const struct kv_groups g = kv_groups_of(l);
    return kv_groups_blocks(&g, (uint64_t)b->min_kv_blocks * KV_BLOCK_TOKENS, b->step_tokens);
}
