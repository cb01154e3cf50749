/* Shared by the files of src/weights: facts of experts; the slabs to load and their targets;
 * lending of experts, whose weights are in memory that the other ranks of the EP axis can read; the
 * packed copy of the experts and its stream. */
#ifndef SHOAL_WEIGHTS_WEIGHTS_PRIVATE_H
#define SHOAL_WEIGHTS_WEIGHTS_PRIVATE_H

#include "weights/weights.h"

/* Destination of the pieces that the loader delivers for one slab_want. A quantized tensor has one
 * want for each of its parts. */
struct target {
    struct weight_spec spec;
    const struct ckpt_tensor *tensor; /* the whole tensor; the loader reads it, or its `part` */
    enum ckpt_part part;
    float *vector;         /* for vectors */
    struct packed *packed; /* otherwise: [outer] packed weights, in one memory block */
};

struct loading {
    struct weights *w;
    const struct arch *m;
    const struct layout *l;
    const struct ckpt *c;
    struct target *targets; /* [n_targets] */
    struct slab_want *wants;
    size_t n_targets, capacity;
};

/* Local. Returns the layer of a slab. */
static inline struct layer *layer_of(struct weights *w, const struct weight_spec *s)
{
    return &w->stage_layers[s->layer - w->layers.begin];
}

/* Local. True for a slab of a convolution's weights, or of its bias; and how many of the channels
 * this rank holds: those of q (as many as of k), and all. */
static inline bool weights_is_conv(const struct weight_spec *s)
{
    return s->role == WEIGHT_CONV_Q || s->role == WEIGHT_CONV_K || s->role == WEIGHT_CONV_V;
}

static inline bool weights_is_conv_bias(const struct weight_spec *s)
{
    return s->role >= WEIGHT_CONV_BIAS_Q && s->role <= WEIGHT_CONV_BIAS_V;
}

static inline size_t weights_key_channels(const struct loading *ld)
{
    if (ld->m->delta.is_mamba) return arch_dim_size(ld->m, DIM_GROUPS);
    return range_count(ld->w->delta_heads) * (size_t)arch_dim_unit(ld->m, DIM_DELTA_K);
}

static inline size_t weights_channels(const struct loading *ld)
{
    const size_t n_v = range_count(ld->w->delta_heads) * (size_t)arch_dim_unit(ld->m, DIM_DELTA_V);
    return 2 * weights_key_channels(ld) + n_v;
}

/* Local. True when a role is one of the numbers of xIELU. */
static inline bool weights_is_xielu(enum weight_role role)
{
    return role >= WEIGHT_XIELU_P && role <= WEIGHT_XIELU_EPS;
}

/* Local. Asks the loader for the slab of a target, whose memory is set; of a quantized tensor, for
 * the slab of each part. Errors: STATUS_MEMORY. */
struct status weights_want(struct loading *ld, struct target t);

/* Local. Returns the address of a slab's weights: of a vector's pointer, of a matrix, or of the
 * pointer to the experts' matrices. */
void *weights_place_of(struct weights *w, const struct weight_spec *s);

/* **Collective (host)**. Reads the wants. Errors: loader_run's. */
struct status weights_read(const struct weights_source *from, struct loading *ld,
                           struct loader_stats *stats);

/* Local. Prepares the loaded fp8 weights for the kernels of the CPU: finds those without NaN, and
 * with as_int8 expresses them as int8, except embedding, head and router. The codes of a weight, or
 * of a run of experts, are one target. */
void weights_prepare_fp8(const struct loading *ld, bool as_int8);

/* weights_places.c. Local. Asks for the experts at the places of a target, whose memory is set:
 * each run of consecutive ids by itself. expert [P]: the expert at each place of the layer. was
 * [P]: only places where `expert` differs from it; NULL: all. Errors: STATUS_MEMORY. */
struct status weights_want_placed(struct loading *ld, const struct target *t,
                                  const uint32_t *expert, const uint32_t *was);

/* weights_finish.c. Local. Checks that the tables of hashed layers hold numbers of experts. Errors:
 * STATUS_INPUT. */
struct status weights_check_tables(const struct weights *w, const struct arch *m);

/* weights_finish.c. Local. Turns loaded numbers into those that the ops take: those of xIELU, and
 * the weights of a router's norm. */
void weights_finish(struct weights *w, const struct arch *m);

/* Local. Takes a piece from the loader, as its sink; ctx: the loading. Errors: STATUS_MEMORY, the
 * device's. */
struct status weights_take_piece(void *ctx, const struct slab_piece *piece);

/* Local. Returns a matrix of a slab without its memory, as the tensor is stored. */
struct packed weights_packed_like(const struct weight_spec *s, const struct ckpt_tensor *t);

/* Local. Opens the packed copy of the experts from->expert_file and makes w's stream of this
 * rank's experts, whose packed weights exist without memory. Errors: expert_file_open's;
 * STATUS_INPUT when there is no file. */
struct status weights_open_stream(struct weights *w, const struct weights_source *from);

/* Local. Gives zeroed memory for experts in the shared segment that other ranks read; NULL: no
 * room. */
void *weights_lend_memory(struct weights *w, size_t n_bytes);

/* **Collective (EP)**, once the weights are loaded, and again after experts moved, because each
 * rank has its own struct packed of every expert. Finds the other ranks' experts in each layer
 * whose experts are all in shared segments. Errors: STATUS_MEMORY. */
struct status weights_lend(struct weights *w, const struct layout *l);

/* Local. Sets `grid_bits` and `reads` of the stage's layers with experts. fp8_as_int8: as in struct
 * weights_source. */
void weights_describe_experts(struct weights *w, const struct ckpt *c, const struct arch *m,
                              bool fp8_as_int8);

#endif
