/* Shared by the files of src/weights: the slabs to load and their targets; the memory of experts
 * that the other ranks of the EP axis can read ("lent" experts); the stream of experts from their
 * packed copy. */
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
    struct packed *packed; /* otherwise: the matrix; of experts: one for each of spec.outer */
};

/* The weights that are being loaded, and what the loader reads for them. */
struct loading {
    struct weights *w;
    const struct arch *m;
    const struct layout *l;
    const struct ckpt *c;
    struct target *targets;  /* [n_targets] */
    struct slab_want *wants; /* [n_targets], one for each target */
    size_t n_targets, capacity;
};

static inline struct layer *layer_of(struct weights *w, const struct weight_spec *s)
{
    return &w->stage_layers[s->layer - w->layers.begin];
}

/* Local. True for a slab of a convolution's weights; and for a slab of its bias. */
static inline bool weights_is_conv(const struct weight_spec *s)
{
    return s->role == WEIGHT_CONV_Q || s->role == WEIGHT_CONV_K || s->role == WEIGHT_CONV_V;
}

static inline bool weights_is_conv_bias(const struct weight_spec *s)
{
    return s->role >= WEIGHT_CONV_BIAS_Q && s->role <= WEIGHT_CONV_BIAS_V;
}

/* Local. Return the convolution's channels on this rank: those of q (k has as many), and those of
 * q, k and v together. */
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

/* Local. True when a role is a parameter of the activation xIELU. */
static inline bool weights_is_xielu(enum weight_role role)
{
    return role >= WEIGHT_XIELU_P && role <= WEIGHT_XIELU_EPS;
}

/* Local. Adds the want for the slab of a target whose memory is set; of a quantized tensor, one
 * want for the slab of each part. Errors: STATUS_MEMORY. */
struct status weights_want(struct loading *ld, struct target t);

/* Local. Returns the address of a slab's weights: of a vector's pointer, of a matrix, or of the
 * pointer to the experts' matrices. */
void *weights_place_of(struct weights *w, const struct weight_spec *s);

/* **Collective (host)**. Reads all wants into their targets. Errors: loader_run's. */
struct status weights_read(const struct weights_source *from, struct loading *ld,
                           struct loader_stats *stats);

/* Local. Prepares the loaded fp8 weights for the CPU's kernels. With as_int8 it expresses weights
 * as int8, except embedding, head, router and those whose leaves are not whole groups; for the rest
 * it sets fp8_plain (kernels/fp8_plain.h). Does nothing on a device. */
void weights_prepare_fp8(const struct loading *ld, bool as_int8);

/* weights_places.c. Local. Adds wants for the experts at the places of a target whose memory is
 * set, one for each run of consecutive ids. expert [P]: the expert at each place of the layer. was
 * [P]: wants only the places where `expert` and `was` differ; NULL: all. Errors: STATUS_MEMORY. */
struct status weights_want_placed(struct loading *ld, const struct target *t,
                                  const uint32_t *expert, const uint32_t *was);

/* weights_finish.c. Local. Checks that the tables of hashed layers hold ids of experts. Errors:
 * STATUS_INPUT. */
struct status weights_check_tables(const struct weights *w, const struct arch *m);

/* weights_finish.c. Local. Converts the loaded parameters of xIELU and the weights of router norms
 * to the values that the ops take. */
void weights_finish(struct weights *w, const struct arch *m);

/* Local. Takes a piece from the loader, as its sink; ctx: the loading. Errors: STATUS_MEMORY, the
 * device's. */
struct status weights_take_piece(void *ctx, const struct slab_piece *piece);

/* Local. Returns the matrix of a slab, in the tensor's stored format and without memory. */
struct packed weights_packed_like(const struct weight_spec *s, const struct ckpt_tensor *t);

/* Local. Opens from->expert_file, the packed copy of the experts, and makes the stream of this
 * rank's experts; their struct packed exist already, without memory. Errors: expert_file_open's;
 * STATUS_MEMORY; STATUS_INPUT when there is no file. */
struct status weights_open_stream(struct weights *w, const struct weights_source *from);

/* Local. Gives zeroed memory for experts in the shared segment that other ranks read; NULL: no
 * room. */
void *weights_lend_memory(struct weights *w, size_t n_bytes);

/* **Collective (EP)**, when the weights are loaded, and again after experts have moved. In each
 * layer whose experts are all in shared segments, copies the other ranks' struct packed of their
 * experts, with addresses of this process. Errors: STATUS_MEMORY, perhaps not on all ranks. */
struct status weights_lend(struct weights *w, const struct layout *l);

/* Local. Sets moe.grid_bits and moe.reads of the stage's layers with experts. fp8_as_int8: as in
 * struct weights_source. */
void weights_describe_experts(struct weights *w, const struct ckpt *c, const struct arch *m,
                              bool fp8_as_int8);

#endif
