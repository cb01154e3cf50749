/* Allocates the weights that a rank holds and fills them from the checkpoint. Slabs are packed as
 * they arrive. */
#include "weights/weights.h"

#include "base/mem.h"
#include "kernels/device.h"
#include "kernels/fp8_int8.h"
#include "kernels/fp8_plain.h"
#include "kernels/ops.h"
#include "parallel/layout/expert_places.h"
#include "parallel/layout/kv_groups.h"
#include "weights/weights_private.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { WEIGHTS_BLOCK_BYTES = 64 << 20 }; /* address space; a page takes memory once it is filled */

static struct status new_block(struct weights *w, size_t n_bytes, bool on_device)
{
    const size_t least = on_device ? 0 : WEIGHTS_BLOCK_BYTES;
    struct weights_block b = {.n_bytes = n_bytes > least ? n_bytes : least, .on_device = on_device};
    if (w->n_blocks == w->blocks_capacity) {
        const size_t grown = w->blocks_capacity == 0 ? 64 : 2 * w->blocks_capacity;
        TRY(mem_grow(&w->blocks, w->n_blocks, grown, sizeof *w->blocks, "weights"));
        w->blocks_capacity = grown;
    }
    if (on_device) {
        TRY(mem_ops_alloc(w->kern, &b.base, b.n_bytes, 1, "weights"));
    } else {
        TRY(mem_map(&b.base, b.n_bytes, "weights"));
    }
    w->blocks[w->n_blocks++] = b;
    return status_ok();
}

/* Gives zeroed memory that lives as long as the weights, right after the memory that was given
 * before, so that few pages hold all of it. */
static struct status weights_load_keep(struct weights *w, void *out, size_t n_bytes)
{
    size_t rounded;
    if (!mem_add(n_bytes, MEM_ALIGN - 1, &rounded))
        return status_make(STATUS_MEMORY, "weights: %zu bytes of one tensor", n_bytes);
    rounded -= rounded % MEM_ALIGN;
    struct weights_block *b = w->n_blocks > 0 ? &w->blocks[w->n_blocks - 1] : NULL;
    if (b == NULL || b->on_device || b->n_bytes - b->n_used < rounded) {
        TRY(new_block(w, rounded, false));
        b = &w->blocks[w->n_blocks - 1];
    }
    void *p = (char *)b->base + b->n_used;
    b->n_used += rounded;
    w->n_bytes += n_bytes;
    memcpy(out, &p, sizeof p);
    return status_ok();
}

/* As weights_load_keep, in the memory that the ops work on. */
static struct status keep_array(struct weights *w, void *out, size_t n_bytes)
{
    if (w->kern->device == NULL) return weights_load_keep(w, out, n_bytes);
    TRY(new_block(w, n_bytes, true));
    w->n_bytes += n_bytes;
    memcpy(out, &w->blocks[w->n_blocks - 1].base, sizeof(void *));
    return status_ok();
}

/* As keep_array, in memory that the other ranks can read, too, if the layout lends experts and
 * there is room. */
static struct status keep_experts(struct weights *w, void *out, size_t n_bytes)
{
    void *lent = w->lends_by != NULL ? weights_lend_memory(w, n_bytes) : NULL;
    if (lent == NULL) return keep_array(w, out, n_bytes);
    w->n_bytes += n_bytes;
    memcpy(out, &lent, sizeof lent);
    return status_ok();
}

typedef struct status keep_fn(struct weights *w, void *out, size_t n_bytes);

/* The place of a role's weights: a vector's pointer, a matrix, or the pointer to the experts'
 * matrices. */
struct place {
    enum { NOWHERE, OF_MODEL, OF_LAYER } owner;
    size_t at; /* in struct weights, or in the struct layer of the slab */
};
#define IN_MODEL(member) .owner = OF_MODEL, .at = offsetof(struct weights, member)
#define IN_LAYER(member) .owner = OF_LAYER, .at = offsetof(struct layer, member)

static const struct place role_places[WEIGHT_ROLE_COUNT] = {
    [WEIGHT_FINAL_NORM] = {IN_MODEL(final_norm)},
    [WEIGHT_FINAL_STREAMS] = {IN_MODEL(final_streams.mix)},
    [WEIGHT_FINAL_STREAMS_BASE] = {IN_MODEL(final_streams.base)},
    [WEIGHT_FINAL_STREAMS_SCALE] = {IN_MODEL(final_streams.scale)},
    [WEIGHT_ATTN_STREAMS] = {IN_LAYER(attn_streams.mix)},
    [WEIGHT_ATTN_STREAMS_BASE] = {IN_LAYER(attn_streams.base)},
    [WEIGHT_ATTN_STREAMS_SCALE] = {IN_LAYER(attn_streams.scale)},
    [WEIGHT_FFN_STREAMS] = {IN_LAYER(ffn_streams.mix)},
    [WEIGHT_FFN_STREAMS_BASE] = {IN_LAYER(ffn_streams.base)},
    [WEIGHT_FFN_STREAMS_SCALE] = {IN_LAYER(ffn_streams.scale)},
    [WEIGHT_POOL_KV] = {IN_LAYER(attention.latent.pool.kv)},
    [WEIGHT_POOL_GATE] = {IN_LAYER(attention.latent.pool.gate)},
    [WEIGHT_POOL_BIAS] = {IN_LAYER(attention.latent.pool.bias)},
    [WEIGHT_POOL_NORM] = {IN_LAYER(attention.latent.pool.norm)},
    [WEIGHT_INDEX_POOL_KV] = {IN_LAYER(attention.index.pool.kv)},
    [WEIGHT_INDEX_POOL_GATE] = {IN_LAYER(attention.index.pool.gate)},
    [WEIGHT_INDEX_POOL_BIAS] = {IN_LAYER(attention.index.pool.bias)},
    [WEIGHT_INDEX_POOL_NORM] = {IN_LAYER(attention.index.pool.norm)},
    [WEIGHT_O_A] = {IN_LAYER(attention.latent.o_a)},
    [WEIGHT_ROUTER_TABLE] = {IN_LAYER(moe.table)},
    [WEIGHT_FINAL_NORM_BIAS] = {IN_MODEL(final_norm_bias)},
    [WEIGHT_HEAD_BIAS] = {IN_MODEL(head_bias)},
    [WEIGHT_ATTN_NORM] = {IN_LAYER(attn_norm)},
    [WEIGHT_ATTN_NORM_BIAS] = {IN_LAYER(attn_norm_bias)},
    [WEIGHT_FFN_NORM_BIAS] = {IN_LAYER(ffn_norm_bias)},
    [WEIGHT_ATTN_OUT_NORM] = {IN_LAYER(attn_out_norm)},
    [WEIGHT_FFN_NORM] = {IN_LAYER(ffn_norm)},
    [WEIGHT_FFN_OUT_NORM] = {IN_LAYER(ffn_out_norm)},
    [WEIGHT_Q_NORM] = {IN_LAYER(attention.q_norm)},
    [WEIGHT_K_NORM] = {IN_LAYER(attention.k_norm)},
    [WEIGHT_Q_BIAS] = {IN_LAYER(attention.q_bias)},
    [WEIGHT_K_BIAS] = {IN_LAYER(attention.k_bias)},
    [WEIGHT_V_BIAS] = {IN_LAYER(attention.v_bias)},
    [WEIGHT_O_BIAS] = {IN_LAYER(attention.o_bias)},
    [WEIGHT_SINKS] = {IN_LAYER(attention.sinks)},
    [WEIGHT_O_IN_NORM] = {IN_LAYER(attention.o_norm)},
    [WEIGHT_DOWN_IN_NORM] = {IN_LAYER(ffn.down_norm)},
    [WEIGHT_GATE_BIAS] = {IN_LAYER(ffn.gate_bias)},
    [WEIGHT_UP_BIAS] = {IN_LAYER(ffn.up_bias)},
    [WEIGHT_DOWN_BIAS] = {IN_LAYER(ffn.down_bias)},
    [WEIGHT_ROUTER_BIAS] = {IN_LAYER(moe.router_bias)},
    [WEIGHT_EXPERT_GATE_BIAS] = {IN_LAYER(moe.gate_bias)},
    [WEIGHT_EXPERT_UP_BIAS] = {IN_LAYER(moe.up_bias)},
    [WEIGHT_EXPERT_DOWN_BIAS] = {IN_LAYER(moe.down_bias)},
    [WEIGHT_Q_A_NORM] = {IN_LAYER(attention.latent.q_a_norm)},
    [WEIGHT_KV_A_NORM] = {IN_LAYER(attention.latent.kv_a_norm)},
    [WEIGHT_INDEX_Q] = {IN_LAYER(attention.index.q)},
    [WEIGHT_INDEX_Q_NORM] = {IN_LAYER(attention.index.q_norm)},
    [WEIGHT_INDEX_K] = {IN_LAYER(attention.index.k)},
    [WEIGHT_INDEX_MIX] = {IN_LAYER(attention.index.mix)},
    [WEIGHT_INDEX_K_NORM] = {IN_LAYER(attention.index.k_norm)},
    [WEIGHT_INDEX_K_NORM_BIAS] = {IN_LAYER(attention.index.k_norm_bias)},
    [WEIGHT_CONV_Q] = {IN_LAYER(delta.conv)},
    [WEIGHT_CONV_K] = {IN_LAYER(delta.conv)},
    [WEIGHT_CONV_V] = {IN_LAYER(delta.conv)},
    [WEIGHT_DECAY_LOG] = {IN_LAYER(delta.decay_log)},
    [WEIGHT_STEP_BIAS] = {IN_LAYER(delta.step_bias)},
    [WEIGHT_DELTA_NORM] = {IN_LAYER(delta.norm)},
    [WEIGHT_CONV_BIAS_Q] = {IN_LAYER(delta.conv)},
    [WEIGHT_CONV_BIAS_K] = {IN_LAYER(delta.conv)},
    [WEIGHT_CONV_BIAS_V] = {IN_LAYER(delta.conv)},
    [WEIGHT_SKIP] = {IN_LAYER(delta.skip)},
    [WEIGHT_SELECT_BIAS] = {IN_LAYER(moe.select_bias)},
    [WEIGHT_EMBED] = {IN_MODEL(embed)},
    [WEIGHT_POSITIONS] = {IN_MODEL(positions)},
    [WEIGHT_TYPES] = {IN_MODEL(types)},
    [WEIGHT_HEAD] = {IN_MODEL(head)},
    [WEIGHT_Q] = {IN_LAYER(attention.q)},
    [WEIGHT_K] = {IN_LAYER(attention.k)},
    [WEIGHT_V] = {IN_LAYER(attention.v)},
    [WEIGHT_O] = {IN_LAYER(attention.o)},
    [WEIGHT_GATE] = {IN_LAYER(ffn.gate)},
    [WEIGHT_SHARED_GATE] = {IN_LAYER(ffn.gate)},
    [WEIGHT_UP] = {IN_LAYER(ffn.up)},
    [WEIGHT_SHARED_UP] = {IN_LAYER(ffn.up)},
    [WEIGHT_DOWN] = {IN_LAYER(ffn.down)},
    [WEIGHT_SHARED_DOWN] = {IN_LAYER(ffn.down)},
    [WEIGHT_Q_A] = {IN_LAYER(attention.latent.q_a)},
    [WEIGHT_KV_A] = {IN_LAYER(attention.latent.kv_a)},
    [WEIGHT_K_ROPE] = {IN_LAYER(attention.latent.k_rope)},
    [WEIGHT_HEAD_GATE] = {IN_LAYER(attention.gate)},
    [WEIGHT_SHARED_MIX] = {IN_LAYER(ffn.mix)},
    [WEIGHT_DELTA_QKVZ] = {IN_LAYER(delta.qkvz)},
    [WEIGHT_DELTA_BA] = {IN_LAYER(delta.ba)},
    [WEIGHT_DELTA_Q] = {IN_LAYER(delta.q)},
    [WEIGHT_DELTA_K] = {IN_LAYER(delta.k)},
    [WEIGHT_DELTA_V] = {IN_LAYER(delta.v)},
    [WEIGHT_DELTA_Z] = {IN_LAYER(delta.z)},
    [WEIGHT_DELTA_B] = {IN_LAYER(delta.b)},
    [WEIGHT_DELTA_A] = {IN_LAYER(delta.a)},
    [WEIGHT_DELTA_A_LOW] = {IN_LAYER(delta.a_low)},
    [WEIGHT_DELTA_Z_LOW] = {IN_LAYER(delta.z_low)},
    [WEIGHT_DELTA_O] = {IN_LAYER(delta.o)},
    [WEIGHT_ROUTER] = {IN_LAYER(moe.router)},
    [WEIGHT_SHARED_OUT_NORM] = {IN_LAYER(moe.shared_out_norm)},
    [WEIGHT_EXPERT_NORM] = {IN_LAYER(moe.norm)},
    [WEIGHT_EXPERT_OUT_NORM] = {IN_LAYER(moe.out_norm)},
    [WEIGHT_ROUTER_NORM] = {IN_LAYER(moe.router_norm)},
    [WEIGHT_EXPERT_SCALE] = {IN_LAYER(moe.scale)},
    [WEIGHT_PREDICT_TOKEN_NORM] = {IN_LAYER(predict.token_norm)},
    [WEIGHT_PREDICT_ROW_NORM] = {IN_LAYER(predict.row_norm)},
    [WEIGHT_PREDICT_JOIN] = {IN_LAYER(predict.join)},
    [WEIGHT_PREDICT_NORM] = {IN_LAYER(predict.norm)},
    [WEIGHT_EXPERT_GATE] = {IN_LAYER(moe.gate)},
    [WEIGHT_EXPERT_UP] = {IN_LAYER(moe.up)},
    [WEIGHT_EXPERT_DOWN] = {IN_LAYER(moe.down)},
};

void *weights_place_of(struct weights *w, const struct weight_spec *s)
{
    const struct place p = role_places[s->role];
    assert(p.owner != NOWHERE);
    char *owner = p.owner == OF_MODEL ? (char *)w : (char *)layer_of(w, s);
    return owner + p.at;
}

static size_t weights_load_aligned(size_t n_bytes)
{
    return (n_bytes + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
}

/* Allocates the data, the scales and, if the format has them, the zero points of n_packed quantized
 * weights: one block for each kind. */
static struct status make_quantized(struct weights *w, keep_fn *keep_in, uint32_t n_packed,
                                    struct packed *out)
{
    const struct packed_quant_sizes n = packed_quant_bytes(out[0].quant, out[0].n_out, out[0].n_in);
    char *data = NULL, *scales = NULL, *zeros = NULL;
    size_t n_data, n_scales, n_zeros;
    if (n.data > SIZE_MAX / 2 || n.scales > SIZE_MAX / 2 ||
        !mem_mul(weights_load_aligned(n.data), n_packed, &n_data) ||
        !mem_mul(weights_load_aligned(n.scales), n_packed, &n_scales) ||
        !mem_mul(weights_load_aligned(n.zeros), n_packed, &n_zeros)) {
        return status_make(STATUS_MEMORY, "quantized weights [%u, %u] overflow", out[0].n_out,
                           out[0].n_in);
    }
    TRY(keep_in(w, &data, n_data));
    TRY(keep_in(w, &scales, n_scales));
    if (n.zeros > 0) TRY(keep_in(w, &zeros, n_zeros));
    for (uint32_t i = 0; i < n_packed; i++) {
        out[i].data = data + i * weights_load_aligned(n.data);
        out[i].scales = scales + i * weights_load_aligned(n.scales);
        if (n.zeros > 0) out[i].zeros = (const uint8_t *)zeros + i * weights_load_aligned(n.zeros);
    }
    return status_ok();
}

static struct status weights_load_make_plain(struct weights *w, keep_fn *keep_in, uint32_t n_packed,
                                             struct packed *out)
{
    const size_t n_bytes = packed_bytes_of(&out[0]);
    char *data = NULL;
    TRY(keep_in(w, &data, n_packed * n_bytes));
    for (uint32_t i = 0; i < n_packed; i++) out[i].data = data + i * n_bytes;
    return op_check_weight(w->kern, &out[0]);
}

/* True for the linears that a device's library may compute: embedding, head, q, k, v, o and the
 * FFN. Routers always use the runtime's own arithmetic. */
static bool is_dense(const struct weight_spec *s)
{
    switch (s->role) {
    case WEIGHT_EMBED: /* may be the head, too */
    case WEIGHT_HEAD:
    case WEIGHT_Q:
    case WEIGHT_K:
    case WEIGHT_V:
    case WEIGHT_O:
        return true;
    default:
        return s->tensor->class == CLASS_FFN;
    }
}

static struct status make_packed(struct weights *w, const struct target *t, uint32_t n_packed,
                                 struct packed *out)
{
    for (uint32_t i = 0; i < n_packed; i++) out[i] = weights_packed_like(&t->spec, t->tensor);
    keep_fn *keep_in = t->spec.is_expert ? keep_experts : keep_array;
    if (t->tensor->quant.kind != QUANT_NONE) return make_quantized(w, keep_in, n_packed, out);
    if (is_dense(&t->spec)) op_place_weight(w->kern, &out[0]);
    return weights_load_make_plain(w, keep_in, n_packed, out);
}

/* Makes n zeroed weights like `like`, in one block. */
static struct status make_heads(struct weights *w, const struct packed *like, uint32_t n,
                                struct packed **out)
{
    TRY(weights_load_keep(w, out, n * sizeof **out));
    for (uint32_t h = 0; h < n; h++) (*out)[h] = *like;
    return weights_load_make_plain(w, keep_array, n, *out);
}

/* Makes each head's k_b, which maps q into the space of the latents, and v_b, which maps the output
 * out of it; take_latent fills them with the head's rows of kv_b, k_b with transposed ones. */
static struct status make_latent(struct weights *w, const struct arch *m, struct target *t)
{
    struct latent_weights *latent = &layer_of(w, &t->spec)->attention.latent;
    const struct packed k = {.dtype = t->tensor->dtype,
                             .n_out = m->attn.kv_lora,
                             .n_in = m->attn.query_dim - m->attn.rotary};
    const struct packed v = {
        .dtype = t->tensor->dtype, .n_out = m->attn.value_dim, .n_in = m->attn.kv_lora};
    TRY(make_heads(w, &k, range_count(w->heads), &latent->k_b));
    return make_heads(w, &v, range_count(w->heads), &latent->v_b);
}

/* Sets the memory of one of the three parts (q, k, v) of the convolution's weights, or of its bias.
 * The first call for a layer allocates the memory of all parts. */
static struct status make_conv(struct loading *ld, struct target *t)
{
    struct delta_weights *d = &layer_of(ld->w, &t->spec)->delta;
    const size_t n_k = weights_key_channels(ld);
    const size_t n = weights_channels(ld), n_biases = ld->m->delta.is_mamba ? 1 : 0;
    const bool is_bias = weights_is_conv_bias(&t->spec);
    const uint32_t part = t->spec.role - (is_bias ? WEIGHT_CONV_BIAS_Q : WEIGHT_CONV_Q);
    const size_t n_all = n * (n_biases + ld->m->delta.n_taps);
    if (d->conv == NULL) {
        TRY(keep_array(ld->w, &d->conv, n_all * sizeof *d->conv));
        memset(d->conv, 0, n * n_biases * sizeof *d->conv);
    }
    t->vector = d->conv + part * n_k + (is_bias ? 0 : n * n_biases);
    return status_ok();
}

static struct status make_target(struct loading *ld, struct target *t)
{
    struct weights *w = ld->w;
    if (weights_is_conv(&t->spec) || weights_is_conv_bias(&t->spec)) return make_conv(ld, t);
    if (weights_is_xielu(t->spec.role)) {
        t->vector = &layer_of(w, &t->spec)->ffn.xielu[t->spec.role - WEIGHT_XIELU_P];
        return status_ok();
    }
    if (t->spec.role == WEIGHT_LAYER_SCALE) {
        t->vector = &layer_of(w, &t->spec)->scale;
        return status_ok();
    }
    if (t->spec.role == WEIGHT_KV_B) return make_latent(w, ld->m, t);
    if (t->spec.is_vector) {
        float **vector = weights_place_of(w, &t->spec);
        TRY(keep_array(w, vector,
                       (size_t)range_count(t->spec.rows) * range_count(t->spec.cols) *
                           sizeof **vector));
        t->vector = *vector;
        return status_ok();
    }
    if (!t->spec.is_expert) {
        t->packed = weights_place_of(w, &t->spec);
        return make_packed(w, t, 1, t->packed);
    }
    const uint32_t n_experts = range_count(t->spec.outer);
    struct packed **experts = weights_place_of(w, &t->spec);
    const bool all = w->lends_by != NULL; /* with room for the other ranks' experts */
    TRY(weights_load_keep(w, experts,
                          (all ? layout_n_places(ld->l) : n_experts) * sizeof **experts));
    *experts += all ? t->spec.outer.begin : 0;
    t->packed = *experts;
    if (!w->streams_experts) return make_packed(w, t, n_experts, t->packed);
    for (uint32_t i = 0; i < n_experts; i++)
        t->packed[i] = weights_packed_like(&t->spec, t->tensor);
    return status_ok();
}

static struct status add_target(void *ctx, const struct weight_spec *s)
{
    struct loading *ld = ctx;
    struct target t = {.spec = *s, .tensor = ckpt_find(ld->c, s->name)};
    TRY(make_target(ld, &t));
    if (ld->w->streams_experts && s->is_expert && !s->is_vector) return status_ok();
    if (!s->is_expert || ld->l->expert_places == NULL) return weights_want(ld, t);
    return weights_want_placed(ld, &t, layer_of(ld->w, s)->moe.expert_at, NULL);
}

/* Sets the grids of row-parallel linears, also of a linear of which this rank has no K-block: the
 * rank still turns the sum of the other ranks' integers into f32. */
static void fill_grids(struct loading *ld, const struct arch *m)
{
    const struct range layers = ld->w->layers;
    const struct arch_tensor *t;
    for (size_t i = 0; (t = arch_tensor_at(i)) != NULL; i++) {
        if (!t->has_leaves || t->is_expert) continue;
        for (uint32_t layer = layers.begin; layer < layers.end; layer++) {
            struct weight_spec s = {.role = t->role, .layer = layer};
            if ((t->part & arch_layer_parts(m, layer)) == 0) continue;
            arch_tensor_name(t, m->family, layer, s.name, sizeof s.name);
            ((struct packed *)weights_place_of(ld->w, &s))->grid_bits =
                ckpt_find(ld->c, s.name)->grid_bits;
        }
    }
}

/* Fills in the place and kind of the stage's layers; their weights are still absent. */
static struct status describe_layers(struct weights *w, const struct arch *m,
                                     const struct layout *l)
{
    const uint32_t n_layers = range_count(w->layers);
    const struct kv_groups groups = kv_groups_of(l);
    const uint32_t n_in_block = kv_groups_layers(&groups, l, w->place.pp);
    /* layers so far: recurrent; with KV, without and with a window; with compressed entries */
    uint32_t n_delta = 0, n_before[2] = {0};
    uint32_t n_with_entries = 0;
    TRY(weights_load_keep(w, &w->stage_layers, n_layers * sizeof *w->stage_layers));
    for (uint32_t i = 0; i < n_layers; i++) {
        struct layer *layer = &w->stage_layers[i];
        layer->index = w->layers.begin + i;
        layer->in_stage = i;
        layer->is_moe = m->layer.is_moe[layer->index];
        layer->starts_shortcut = arch_starts_shortcut(m, layer->index);
        layer->ends_shortcut = m->shortcut && !layer->starts_shortcut;
        layer->is_delta = m->layer.is_delta[layer->index];
        layer->has_kv = arch_layer_has_kv(m, layer->index);
        layer->has_mixer = !m->layer.lacks_mixer[layer->index];
        layer->rate = arch_rate(m, layer->index);
        if (layer->rate > 0) layer->in_states = n_with_entries++;
        layer->has_ffn = !m->layer.lacks_ffn[layer->index];
        layer->window = m->layer.has_window[layer->index] ? m->attn.window : 0;
        if (layer->is_delta) {
            layer->in_cache = n_delta++;
        } else if (layer->has_kv) {
            const bool windowed = groups.n_windowed > 0 && layer->window > 0;
            const struct kv_place at =
                kv_groups_place(&groups, n_in_block, windowed, n_before[windowed]++);
            layer->kv_table = at.table;
            layer->in_cache = at.in_block;
        }
        if (m->attn.chunked && layer->window > 0) layer->window |= KERN_CHUNKS;
        layer->is_unrotated = m->layer.is_unrotated[layer->index];
        layer->kv_share = arch_shares_keys(m, layer->index);
        layer->has_window = layer->window > 0;
        layer->is_local = m->local_rope && layer->window > 0;
        layer->moe.n_experts = range_count(w->experts);
        if (l->expert_places == NULL) continue;
        const struct expert_copies all = expert_copies_of(l, l->expert_places, layer->index);
        layer->moe.place = all.place;
        layer->moe.first = all.first;
        layer->moe.expert_at =
            l->expert_places->expert + (size_t)layer->index * l->expert_places->n_places;
    }
    return status_ok();
}

/* *out = a copy of the file's frequencies `from` [n]: of layers with a window if is_local, else of
 * the other layers. */
static struct status keep_frequencies(struct loading *ld, bool is_local, const float *from,
                                      size_t n, float **out)
{
    const uint32_t rotary = is_local ? arch_local_rotary(ld->m) : ld->m->attn.rotary;
    if (n != rotary / 2) {
        return status_make(STATUS_INPUT, "%s: rope/%s: expected %u values, found %zu",
                           ckpt_path(ld->c), is_local ? "local_inv_freq" : "inv_freq", rotary / 2,
                           n);
    }
    TRY(keep_array(ld->w, out, n * sizeof **out));
    mem_ops_put(ld->w->kern, *out, from, n * sizeof **out);
    return status_ok();
}

/* The norm kernels tell a layer norm from an RMSNorm by its bias, so layer norms without one get
 * zeros. Plans leave these few bytes out. */
static struct status make_zero_biases(struct loading *ld, const struct arch *m)
{
    struct weights *w = ld->w;
    float *zeros;
    if (!m->family->layer_norms || m->norm_bias) return status_ok();
    TRY(keep_array(w, &zeros, m->width * sizeof *zeros));
    mem_ops_fill(w->kern, zeros, 0, m->width * sizeof *zeros);
    for (uint32_t i = 0; i < range_count(w->layers); i++)
        w->stage_layers[i].attn_norm_bias = w->stage_layers[i].ffn_norm_bias = zeros;
    w->final_norm_bias = zeros;
    return status_ok();
}

static struct status weights_load_prepare(struct loading *ld, const struct arch *m,
                                          const struct layout *l)
{
    struct weights *w = ld->w;
    TRY(describe_layers(w, m, l));
    size_t n = 0;
    const float *inv_freq = ckpt_rope_inv_freq(ld->c, &n);
    TRY(keep_frequencies(ld, false, inv_freq, n, &w->inv_freq));
    const float *local = ckpt_rope_local_inv_freq(ld->c, &n);
    if (m->local_rope) TRY(keep_frequencies(ld, true, local, n, &w->local_inv_freq));
    w->rope_factors = ckpt_rope_factors(ld->c);
    if (m->attn.kv_lora == 0)
        w->rope_factors.softmax = 1; /* only latent attention uses YaRN's mscale_all_dim */
    TRY(weights_list(l, w->place, add_target, ld));
    TRY(make_zero_biases(ld, m));
    for (uint32_t i = 0; m->gate == GATE_RELU2 && i < range_count(w->layers); i++)
        w->stage_layers[i].moe.up = w->stage_layers[i].moe.gate;
    fill_grids(ld, m);
    return status_ok();
}

/* Returns the weights of a place before anything is allocated. */
static struct weights weights_of(const struct weights_source *from)
{
    const struct layout *l = from->layout;
    const struct layout_place place = from->place;
    return (struct weights){.kern = from->kern,
                            .place = place,
                            .layers = layout_layers(l, place.pp),
                            .heads = layout_heads(l, place.tp),
                            .full_heads = layout_full_heads(l, place.tp),
                            .kv_heads = layout_kv_heads(l, place.tp),
                            .delta_heads = layout_delta_heads(l, place.tp),
                            .vocab = layout_vocab(l, place.tp),
                            .experts = layout_experts(l, place.ep),
                            .streams_experts = from->expert_file != NULL,
                            .lends_by = l->lends_experts ? from->comm : NULL};
}

struct status weights_read(const struct weights_source *from, struct loading *ld,
                           struct loader_stats *stats)
{
    const struct loader_job job = {.c = from->ckpt,
                                   .host = comm_handle(from->comm, COMM_HOST),
                                   .team = comm_team(from->comm),
                                   .wants = ld->wants,
                                   .n_wants = ld->n_targets,
                                   .sink = weights_take_piece,
                                   .ctx = ld,
                                   .sink_is_serial = from->kern->device != NULL,
                                   .cache = from->cache,
                                   .free_bytes = from->free_bytes};
    return loader_run(&job, stats);
}

void weights_prepare_fp8(const struct loading *ld, bool as_int8)
{
    const struct kern_table *k = ld->w->kern;
    for (size_t i = 0; i < ld->n_targets && k->device == NULL; i++) {
        const struct target *t = &ld->targets[i];
        const enum arch_class class = t->spec.tensor->class;
        if (t->packed == NULL || t->part != CKPT_CODES) continue;
        const bool stays = class == CLASS_EMBED || class == CLASS_HEAD || class == CLASS_ROUTER;
        const size_t n = t->spec.is_expert ? range_count(t->spec.outer) : 1;
        for (size_t e = 0; e < n; e++) {
            struct packed *p = &t->packed[e];
            if (as_int8 && !stays && fp8_int8_fits(p))
                op_fp8_to_int8(k, p);
            else
                op_fp8_plain(k, p);
        }
    }
}

static struct status check_source(const struct weights_source *from)
{
    if (!from->fp8_as_int8) return status_ok();
    if (from->kern->device != NULL) {
        return status_make(STATUS_USAGE,
                           "--fp8-activations int8: expected --device cpu; a GPU multiplies fp8 "
                           "weights with floats");
    }
    if (from->expert_file == NULL) return status_ok();
    return status_make(STATUS_USAGE,
                       "--fp8-activations int8: expected --weights resident; streamed experts "
                       "are multiplied as they stand in their file");
}

struct status weights_load(const struct weights_source *from, struct weights **out,
                           struct loader_stats *stats)
{
    *out = NULL;
    const struct arch *m = from->model;
    const struct layout *l = from->layout;
    struct loading ld = {.c = from->ckpt, .m = m, .l = l};
    struct status st = check_source(from);
    if (!status_failed(&st)) st = mem_alloc(&ld.w, 1, sizeof *ld.w, "weights");
    if (!status_failed(&st)) {
        *ld.w = weights_of(from);
        st = weights_load_prepare(&ld, m, l);
        if (!status_failed(&st)) weights_describe_experts(ld.w, ld.c, m, from->fp8_as_int8);
        if (!status_failed(&st) && ld.w->streams_experts) st = weights_open_stream(ld.w, from);
    }
    st = comm_agree(from->comm, st); /* no rank reads unless all ranks can */
    if (!status_failed(&st)) {
        st = weights_read(from, &ld, stats);
        st = comm_agree(from->comm, st);
    }
    if (!status_failed(&st)) weights_prepare_fp8(&ld, from->fp8_as_int8);
    if (l->lends_experts && !status_failed(&st)) {
        st = weights_lend(ld.w, l);
        st = comm_agree(from->comm, st);
    }
    if (!status_failed(&st)) st = weights_check_tables(ld.w, m);
    if (m->compression.o_groups > 0) st = comm_agree(from->comm, st);
    if (!status_failed(&st)) weights_finish(ld.w, m);
    if (!status_failed(&st) && m->tied && !m->headless && l->pp == 1) ld.w->head = ld.w->embed;
    mem_free(&ld.targets);
    mem_free(&ld.wants);
    if (status_failed(&st)) weights_destroy(&ld.w);
    *out = ld.w;
    return st;
}

void weights_destroy(struct weights **w)
{
    if (*w == NULL) return;
    expert_stream_destroy(&(*w)->stream);
    for (size_t i = 0; i < (*w)->n_blocks; i++) {
        struct weights_block *b = &(*w)->blocks[i];
        if (b->on_device) {
            mem_ops_free((*w)->kern, &b->base);
        } else {
            mem_unmap(&b->base, b->n_bytes);
        }
    }
    if ((*w)->lends_by != NULL) comm_release_lane((*w)->lends_by, COMM_EP, COMM_LANE_EXPERTS);
    mem_free(&(*w)->blocks);
    mem_free(w);
}
