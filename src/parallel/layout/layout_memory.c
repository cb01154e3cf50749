/* The memory that a rank needs for packed weights, KV blocks and the workspace. layout_exchange.c
 * computes the buffers for data of other ranks. */
#include "parallel/layout/kv_groups.h"
#include "parallel/layout/layout.h"

#include "parallel/layout/weights_list.h"
#include "parallel/layout/workspace.h"
#include "tensor/dims.h"
#include "tensor/quant_rows.h"

uint64_t layout_row_bytes(const struct layout_model *m, enum arch_class c, uint64_t k)
{
    const struct layout_weight w = m->weights[c];
    if (w.group == 0) return k * m->weight_bytes;
    return (k + w.group - 1) / w.group * w.group_bytes;
}

double layout_weight_bytes(const struct layout_model *m, enum arch_class c)
{
    const struct layout_weight w = m->weights[c];
    return w.group == 0 ? m->weight_bytes : (double)w.group_bytes / w.group;
}

/* Returns the bytes of a weight [n_out, k] as packed for the kernels: panels of 16 outputs. */
static uint64_t layout_memory_packed_bytes(const struct layout_model *m, enum arch_class c,
                                           uint64_t n_out, uint64_t k)
{
    return (n_out + PANEL_COLUMNS - 1) / PANEL_COLUMNS * PANEL_COLUMNS * layout_row_bytes(m, c, k);
}

/* Bytes of a tensor's slab as the loader packs it. Latent attention turns KV_B into two matrices
 * per head. */
static uint64_t slab_bytes(const struct layout_model *m, const struct weight_spec *s)
{
    const uint64_t n_rows = range_count(s->rows), n_cols = range_count(s->cols);
    if (s->is_vector) return sizeof(float) * n_rows * n_cols;
    if (s->role != WEIGHT_KV_B)
        return range_count(s->outer) *
               layout_memory_packed_bytes(m, s->tensor->class, n_rows, n_cols);
    const struct arch *a = m->arch;
    return n_rows / arch_dim_unit(a, DIM_KV_B) *
           (layout_memory_packed_bytes(m, s->tensor->class, a->attn.kv_lora,
                                       a->attn.query_dim - a->attn.rotary) +
            layout_memory_packed_bytes(m, s->tensor->class, a->attn.value_dim, a->attn.kv_lora));
}

/* True for a tensor that stays on disk while the others are in memory. */
static bool is_streamed(const struct layout_model *m, const struct arch_tensor *t)
{
    return m->streams_experts && t->is_expert && !t->is_vector;
}

/* Bytes of the place's tensors of these parts: with `streamed` only those that stream, otherwise
 * only those that do not. */
static uint64_t parts_bytes(const struct weights_cut *cut, uint64_t parts, bool streamed)
{
    uint64_t bytes = 0;
    const struct arch_tensor *t;
    for (size_t i = 0; (t = arch_tensor_at(i)) != NULL; i++) {
        if ((t->part & parts) == 0 || is_streamed(&cut->l->model, t) != streamed) continue;
        const struct weight_spec s = weights_slab(cut, t);
        bytes += slab_bytes(&cut->l->model, &s);
    }
    return bytes;
}

static uint64_t weights_bytes(const struct layout *l, struct layout_place place, bool streamed)
{
    const struct weights_cut cut = weights_cut_of(l, place);
    const struct range layers = layout_layers(l, place.pp);
    uint64_t bytes = parts_bytes(&cut, weights_outer_parts(l, place), streamed), one = 0;
    uint64_t counted = 0; /* `one` holds the bytes of these parts; most layers have the same
                             parts as the layer before */
    for (uint32_t i = layers.begin; i < layers.end; i++) {
        const uint64_t parts = arch_layer_parts(l->model.arch, i);
        if (parts != counted) one = parts_bytes(&cut, parts, streamed);
        counted = parts;
        bytes += one;
    }
    return bytes;
}

/* Bytes of the memory that LAYOUT_STREAM_LEAST experts of any layer need. */
static uint64_t stream_bytes(const struct layout *l, struct layout_place place)
{
    enum { PAGE = 4096 }; /* an expert is padded to pages, its arrays to cache lines */
    struct weights_cut cut = weights_cut_of(l, place);
    const struct range layers = layout_layers(l, place.pp);
    uint64_t most = 0;
    if (range_count(cut.experts) > 0) cut.experts = (struct range){0, 1};
    for (uint32_t i = layers.begin; i < layers.end; i++) {
        const uint64_t one = parts_bytes(&cut, arch_layer_parts(l->model.arch, i), true);
        if (one > most) most = one;
    }
    return most > 0 ? LAYOUT_STREAM_LEAST * (most + 2 * PAGE) : 0;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Returns the columns of the widest FFN that is not an expert's. */
static uint64_t dense_columns(const struct layout *l, struct layout_place place)
{
    return max_u64(range_count(layout_ffn(l, place.tp)),
                   range_count(layout_shared_ffn(l, place.tp)));
}

/* Returns the elements of one row's keys in a recurrent layer on a rank that holds n units (heads).
 * In a Mamba-2 scan every rank holds the keys of all groups. */
static uint64_t key_elements(const struct arch *m, uint64_t n)
{
    if (n == 0) return 0;
    return (uint64_t)(m->delta.is_mamba ? m->delta.n_key_heads : n) * m->delta.key_dim;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Returns the most keys and entries that a row of compressed attention sees. */
static uint64_t most_seen(const struct arch *m)
{
    const uint64_t sparse = min_u64(m->index.n_chosen, m->context / m->compression.sparse_rate);
    return min_u64(m->attn.window, m->context) +
           max_u64(sparse, m->context / m->compression.full_rate);
}

/* The sizes of an index that chooses blocks, whose keys and values are read where they are. */
static struct workspace_index index_of_blocks(const struct arch *m, uint64_t n_rows,
                                              uint64_t wanted)
{
    const uint64_t tiles = (m->context + KV_BLOCK_TOKENS - 1ull) / KV_BLOCK_TOKENS;
    const uint64_t one = m->index.n_heads * tiles * KV_BLOCK_TOKENS;
    return (struct workspace_index){.n_scores = min_u64(n_rows * one, max_u64(wanted, one)),
                                    .n_tiles = m->index.n_chosen / KV_BLOCK_TOKENS};
}

/* Sets the sizes of the arrays of an index that chooses blocks, on a rank with n_kv KV heads. */
static void add_block_index(const struct arch *m, uint64_t n_kv, struct workspace_shape *shape)
{
    shape->per_row[WORKSPACE_INDEX_Q] = n_kv * m->index.dim;
    shape->per_row[WORKSPACE_INDEX_TURNED] = max_u64(n_kv, 1) * m->attn.rotary;
    shape->per_row[WORKSPACE_INDEX_MIX] = 0;
    shape->per_row[WORKSPACE_INDEX_CHOSEN] = n_kv * (m->index.n_chosen / m->index.block);
    shape->per_row[WORKSPACE_INDEX_BLOCKS] = n_kv * (m->index.n_chosen / KV_BLOCK_TOKENS);
}

struct workspace_index workspace_index_of(const struct arch *m, uint64_t n_rows)
{
    enum { SCORES = 4 << 20, GATHERED_BYTES = 32 << 20, BLOCK = KV_BLOCK_TOKENS };
    if (m->index.n_heads == 0) return (struct workspace_index){0};
    if (m->index.block > 0) return index_of_blocks(m, n_rows, SCORES);
    const bool has_entries = m->compression.o_groups > 0;
    const uint64_t n_seen = has_entries ? most_seen(m) : m->index.n_chosen;
    const uint64_t n_tiles = (n_seen + BLOCK - 1) / BLOCK;
    const uint64_t one = n_tiles * BLOCK * (m->attn.head_dim + 1ull) * 4;
    const uint64_t scored = has_entries ? m->context / m->compression.sparse_rate : m->context;
    const uint64_t most = (scored + BLOCK - 1ull) / BLOCK * BLOCK, least = max_u64(most, BLOCK);
    const uint64_t n_gather = min_u64(n_rows, max_u64(1, GATHERED_BYTES / one));
    return (struct workspace_index){.n_scores = min_u64(n_rows * least, max_u64(SCORES, least)),
                                    .n_gather = n_gather,
                                    .gathered_bytes = n_gather * one,
                                    .n_tiles = n_tiles,
                                    .n_key_tiles = has_entries ? least / BLOCK : 0};
}

struct workspace_index workspace_index_seen(struct workspace_index all, uint64_t n_seen)
{
    const uint64_t n_blocks = all.n_gather * all.n_tiles;
    all.n_tiles = min_u64(all.n_tiles, (n_seen + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS);
    all.n_gather = n_blocks / all.n_tiles;
    return all;
}

/* Returns the number of partials of the norm of an FFN's inner row; 0: it has no norm. */
static uint64_t inner_sums(const struct arch *m)
{
    return m->sub_norms ? ((uint64_t)m->ffn + WORKSPACE_INNER_UNIT - 1) / WORKSPACE_INNER_UNIT : 0;
}

/* Returns the length of a row of compressed attention's outputs as quantized values, on a rank with
 * h heads: each group of heads takes whole quantization groups. 0: no compressed attention. */
static uint64_t group_codes(const struct arch *m, uint64_t h)
{
    enum { GROUP_MOST = 128 };
    if (m->compression.o_groups == 0) return 0;
    const uint64_t heads = m->attn.n_heads / m->compression.o_groups;
    const uint64_t n = (heads * m->attn.head_dim + GROUP_MOST - 1) / GROUP_MOST * GROUP_MOST;
    return (h + heads - 1) / heads * n;
}

/* Sets the sizes of the arrays of compressed attention. */
static void add_entries(const struct arch *m, const struct workspace_index *index,
                        struct workspace_shape *shape)
{
    shape->bytes[WORKSPACE_ENTRY_KEYS] =
        index->n_key_tiles * KV_BLOCK_TOKENS * 4 * (m->index.dim + 1ull);
    shape->bytes[WORKSPACE_ENTRY_BLOCKS] = 4 * index->n_key_tiles;
    shape->per_row[WORKSPACE_POOL_KV] = 2ull * m->attn.kv_lora;
    shape->per_row[WORKSPACE_POOL_GATE] = 2ull * m->attn.kv_lora;
    shape->per_row[WORKSPACE_INDEX_POOL_KV] = 2ull * m->index.dim;
    shape->per_row[WORKSPACE_INDEX_POOL_GATE] = 2ull * m->index.dim;
}

/* Sets the sizes of the arrays of several residual streams. */
static void add_streams(const struct arch *m, struct workspace_shape *shape)
{
    const uint64_t n = m->streams.n;
    shape->per_row[WORKSPACE_SHORTCUT] = m->width;
    shape->per_row[WORKSPACE_STREAM_ROWS] = m->width;
    shape->per_row[WORKSPACE_STREAM_NORMED] = arch_row_width(m);
    shape->per_row[WORKSPACE_STREAM_MIX] = (2 + n) * n;
    shape->per_row[WORKSPACE_STREAM_PRE] = n;
    shape->per_row[WORKSPACE_STREAM_POST] = n;
    shape->per_row[WORKSPACE_STREAM_COMB] = n * n;
}

struct workspace_shape workspace_shape_of(const struct layout *l, struct layout_place place,
                                          uint64_t n_rows)
{
    const struct arch *m = l->model.arch;
    const bool latent = m->attn.kv_lora > 0;
    const uint64_t d = m->width, f = dense_columns(l, place);
    const uint64_t h = max_u64(range_count(layout_heads(l, place.tp)),
                               range_count(layout_full_heads(l, place.tp)));
    const uint64_t n_o = h * arch_value_dim_most(m);
    const uint64_t kv = (uint64_t)range_count(layout_kv_heads(l, place.tp)) * m->attn.head_dim;
    const bool padded = arch_pads_heads(m), wide = latent || padded;
    const uint64_t n_kv = kv / m->attn.head_dim;
    const uint64_t n_full = range_count(layout_full_kv_heads(l, place.tp)) * m->attn.full_dim;
    const uint64_t delta = range_count(layout_delta_heads(l, place.tp));
    const uint64_t k_delta = key_elements(m, delta), h_delta = delta * arch_delta_per_unit(m);
    const uint64_t o_delta = h_delta * m->delta.value_dim;
    const uint64_t decays = m->delta.by_channel ? o_delta : h_delta;
    const bool has_narrow = m->delta.by_channel && !m->family->ling && delta > 0;
    const uint64_t narrow = has_narrow ? 2 * m->delta.value_dim : 0;
    const struct workspace_index index = workspace_index_of(m, n_rows);
    struct workspace_shape shape = {
        .n_rows = n_rows,
        .bytes = {[WORKSPACE_TILE_PARTS] = WORKSPACE_TILE_PARTS_BYTES,
                  [WORKSPACE_INDEX_SCORES] = 4 * index.n_scores,
                  [WORKSPACE_INDEX_GATHERED] = index.gathered_bytes,
                  [WORKSPACE_INDEX_BLOCKS] = 4 * index.n_gather * index.n_tiles},
        .code_inputs = max_u64(max_u64(max_u64(d, latent ? m->attn.q_lora : 0), group_codes(m, h)),
                               max_u64(n_o, o_delta)),
        .inner_code_inputs = f,
        .keeps_shared = workspace_keeps_shared(l),
        .per_row = {[WORKSPACE_NORMED] = d,
                    [WORKSPACE_COS] = m->attn.rotary / 2,
                    [WORKSPACE_SIN] = m->attn.rotary / 2,
                    [WORKSPACE_LOCAL_COS] = m->local_rope ? arch_local_rotary(m) / 2 : 0,
                    [WORKSPACE_LOCAL_SIN] = m->local_rope ? arch_local_rotary(m) / 2 : 0,
                    [WORKSPACE_Q] = h * arch_query_dim_most(m),
                    [WORKSPACE_K] = kv,
                    [WORKSPACE_V] = kv,
                    [WORKSPACE_HEAD_SUMS] = m->attn.qk_norm_whole
                                                ? m->attn.n_heads + m->attn.n_kv_heads
                                            : m->sub_norms      ? m->attn.n_heads
                                            : m->delta.is_mamba ? m->delta.n_value_heads
                                                                : 0,
                    [WORKSPACE_Q_LOW] = latent ? m->attn.q_lora : 0,
                    [WORKSPACE_K_ROPE] = latent ? m->attn.rotary : 0,
                    [WORKSPACE_HEAD_GATES] = m->attn.head_gates ? h : 0,
                    [WORKSPACE_INDEX_Q] = (uint64_t)m->index.n_heads * m->index.dim,
                    [WORKSPACE_INDEX_TURNED] = (uint64_t)m->index.n_heads * m->attn.rotary,
                    [WORKSPACE_INDEX_K] = m->index.dim,
                    [WORKSPACE_INDEX_MIX] = m->index.n_heads,
                    [WORKSPACE_INDEX_CHOSEN] = m->index.n_chosen,
                    [WORKSPACE_K_NARROW] = padded ? max_u64(n_kv * m->attn.query_dim, n_full) : 0,
                    [WORKSPACE_V_NARROW] = padded ? max_u64(n_kv * m->attn.value_dim, n_full) : 0,
                    [WORKSPACE_Q_WIDE] = wide ? h * m->attn.head_dim : 0,
                    [WORKSPACE_O_WIDE] = wide ? h * m->attn.head_dim : 0,
                    [WORKSPACE_ATTENDED] = max_u64(n_o, o_delta),
                    [WORKSPACE_Q_GATED] = m->attn.gated_heads ? 2 * h * m->attn.query_dim : 0,
                    [WORKSPACE_DELTA_QKVZ] = 2 * (k_delta + o_delta),
                    [WORKSPACE_DELTA_BA] = h_delta + decays + narrow,
                    [WORKSPACE_DELTA_MIXED] = 2 * k_delta + o_delta,
                    [WORKSPACE_DELTA_GATES] = h_delta + decays,
                    [WORKSPACE_GATE] = f,
                    [WORKSPACE_INNER_SUMS] = inner_sums(m),
                    [WORKSPACE_UP] = f,
                    [WORKSPACE_MIX] = m->moe.shared_ffn > 0 ? 1 : 0,
                    [WORKSPACE_SHARED] = m->moe.shared_ffn > 0 ? d : 0,
                    [WORKSPACE_SHORTCUT] = m->shortcut || m->moe.joins ? d : 0,
                    [WORKSPACE_ROUTED] = m->moe.joins ? d : 0}};
    if (m->compression.o_groups > 0) add_entries(m, &index, &shape);
    if (m->index.block > 0) add_block_index(m, n_kv, &shape);
    if (m->streams.n > 0) add_streams(m, &shape);
    return shape;
}

/* Bytes of the stage's arrays, of the hidden rows (arch_row_width) and, on the last stage, of the
 * logits of 64 rows and of [T, 4 D] for each prediction layer. */
static uint64_t workspace_bytes(const struct layout *l, struct layout_place place,
                                uint64_t step_tokens)
{
    const struct layout_model *m = &l->model;
    struct workspace_shape shape = workspace_shape_of(l, place, step_tokens);
    if (m->weights[CLASS_ATTENTION].group > 1 || m->weights[CLASS_FFN].group > 1) {
        shape.bytes[WORKSPACE_CODES] = quant_rows_bytes(step_tokens, shape.code_inputs);
        shape.bytes[WORKSPACE_INNER_CODES] = quant_rows_bytes(step_tokens, shape.inner_code_inputs);
    }
    uint64_t n = step_tokens * arch_row_width(m->arch);
    if (place.pp == l->pp - 1) {
        n += 64ull * range_count(layout_vocab(l, place.tp));
        n += 4ull * step_tokens * m->arch->width * m->arch->n_predict;
    }
    return workspace_place(&shape).n_bytes + 4 * n;
}

uint64_t layout_fixed_bytes(const struct layout_memory *m)
{
    return m->weights_bytes + m->workspace_bytes + m->exchange_bytes + m->stream_bytes;
}

/* Bytes of a slot, which holds one sequence's states in f32: for each recurrent layer, the last
 * inputs of the convolution and the states of the value heads; for each layer with compressed
 * entries, the sums of unfinished ones. */
static uint64_t state_bytes(const struct layout *l, struct layout_place place)
{
    const struct arch *m = l->model.arch;
    const struct range layers = layout_layers(l, place.pp);
    const uint64_t heads = range_count(layout_delta_heads(l, place.tp));
    const uint64_t values = heads * arch_delta_per_unit(m) * m->delta.value_dim;
    if (m->compression.o_groups > 0)
        return 4ull * arch_entry_layers(m, layers.begin, layers.end) * arch_entry_floats(m);
    return 4ull * arch_delta_layers(m, layers.begin, layers.end) *
           ((m->delta.n_taps - 1) * (2 * key_elements(m, heads) + values) +
            values * m->delta.key_dim);
}

/* Bytes of what stands beside the keys in one KV block: index keys (sparse attention), or
 * compressed entries and their index keys. Layers of several tables that have the same index in
 * their blocks share a place, which counts once. */
static uint64_t index_bytes(const struct layout *l, struct layout_place place, struct layout_kv kv)
{
    const struct arch *m = l->model.arch;
    const struct range layers = layout_layers(l, place.pp);
    const struct kv_groups groups = kv_groups_of(l);
    const uint32_t n_in_block = kv_groups_layers(&groups, l, place.pp);
    bool has_beside[ARCH_LAYERS_MAX] = {false};
    uint32_t n_before[2] = {0}; /* layers without a window, and with one */
    uint64_t n = 0;
    for (uint32_t i = layers.begin; i < layers.end; i++) {
        const bool windowed = groups.n_windowed > 0 && i < m->n_layers && m->layer.has_window[i];
        if (!arch_layer_has_kv(m, i)) continue;
        const struct kv_place at =
            kv_groups_place(&groups, n_in_block, windowed, n_before[windowed]++);
        n += arch_has_beside(m, i) && !has_beside[at.in_block];
        has_beside[at.in_block] = has_beside[at.in_block] || arch_has_beside(m, i);
    }
    const bool has_heads = range_count(layout_kv_heads(l, place.tp)) > 0;
    return n * has_heads * KV_BLOCK_TOKENS *
           (arch_beside_dim(m) * kv.element_bytes + kv.scale_bytes);
}

uint32_t layout_slots_wanted(const struct arch *m, int32_t max_batch)
{
    if (!arch_has_states(m)) return 0;
    return max_batch > 0 ? (uint32_t)max_batch : LAYOUT_SLOTS;
}

uint32_t layout_slots_in(uint64_t room_bytes, uint64_t slot_bytes, uint32_t n_wanted)
{
    if (slot_bytes == 0 || n_wanted == 0) return n_wanted;
    const uint64_t n = room_bytes / LAYOUT_STATES_PART / slot_bytes;
    return n < 1 ? 1 : n < n_wanted ? (uint32_t)n : n_wanted;
}

struct layout_memory layout_memory_of(const struct layout *l, struct layout_place place,
                                      struct layout_kv kv, uint32_t step_tokens)
{
    const struct arch *m = l->model.arch;
    const struct kv_groups groups = kv_groups_of(l);
    const uint64_t n_layers = kv_groups_layers(&groups, l, place.pp);
    const uint64_t kv_rows = n_layers * range_count(layout_kv_heads(l, place.tp));
    const uint64_t n_arrays = m->attn.kv_lora > 0 ? 1 : 2; /* latents, or keys and values */
    const uint64_t per_head = n_arrays * (m->attn.head_dim * kv.element_bytes + kv.scale_bytes);
    return (struct layout_memory){
        .weights_bytes = weights_bytes(l, place, false),
        .kv_block_bytes = kv_rows * KV_BLOCK_TOKENS * per_head + index_bytes(l, place, kv),
        .state_bytes = state_bytes(l, place),
        .workspace_bytes = workspace_bytes(l, place, step_tokens),
        .exchange_bytes = layout_exchange_bytes(l, place, step_tokens),
        .stream_bytes = stream_bytes(l, place),
        .on_disk_bytes = weights_bytes(l, place, true),
    };
}
