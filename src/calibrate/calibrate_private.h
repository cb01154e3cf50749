/* The state of a calibration, shared by calibrate.c and calib_*.c. A layer is a list of units
 * (linears with the same input); a unit is a list of members (their matrices). */
#ifndef SHOAL_CALIBRATE_CALIBRATE_PRIVATE_H
#define SHOAL_CALIBRATE_CALIBRATE_PRIVATE_H

#include "calibrate/calibrate.h"
#include "model/stage.h"
#include "quant/awq.h"
#include "quant/hessian.h"
#include "tensor/tap.h"

enum { CALIB_NO_UNIT = UINT32_MAX };

struct calib_member {
    enum weight_role role;
    struct packed
        *w; /* in the layer's weights; after quantization it holds the quantized values as f32 */
    const struct ckpt_tensor *tensor;
    struct quant_format format; /* QUANT_NONE: not quantized */
    const float *s_in;          /* [n_in] factors of the weights of each input; NULL: 1 */
    const float *s_out;         /* [n_out] divisors of the weights of each output; NULL: 1 */
    struct quant_block block;   /* owned; its quantized rows */
    float *values;              /* owned; packed values that w points to after quantization */
};

struct calib_unit {
    enum tap_site site;
    uint32_t expert, n_in;
    struct calib_member *members; /* [n_members], part of the layer's array */
    uint32_t n_members;
    bool is_quantized;        /* at least one member is quantized */
    bool is_wanted;           /* the current pass captures its input */
    struct hessian h;         /* this rank's rows */
    float *s;                 /* owned [n_in] scales of the input; NULL: none */
    double errors[AWQ_TRIED]; /* output error of each try (AWQ) */
};

/* Describes input rows of one unit that were captured in one sequence. */
struct calib_seen {
    uint32_t unit; /* index in the layer's units */
    uint32_t n;    /* inputs of a row */
    uint64_t n_rows;
};

struct calib_capture {
    struct calib_seen *seen; /* owned [n_seen] */
    size_t n_seen, seen_capacity;
    float *rows; /* owned; all rows, one after the other */
    size_t n_floats, floats_capacity;
    struct status st;
};

struct calib {
    const struct calibrate_options *o;
    uint32_t rank, n_ranks;
    struct layout *layout; /* owned; a stage per layer */
    struct hidden *hidden; /* owned [n_seqs]; this rank's sequences have memory */
    void **buffers;        /* owned [n_seqs]; memory of the hidden rows */
    size_t longest;        /* tokens of the longest sequence */
    void *scratch;         /* owned; hidden rows of the longest sequence */
    int32_t *blocks;       /* owned; the block table of every sequence: 0, 1, 2, ... */
    struct calib_capture mine, theirs;
    struct calibrate_report report;
    /* the current layer */
    uint32_t layer;
    struct weights *weights;
    struct stage *stage;
    struct tap tap;
    struct calib_member *members; /* owned [n_members] */
    struct calib_unit *units;     /* owned [n_units] */
    uint32_t n_members, n_units;
    /* index of the unit at a site; CALIB_NO_UNIT: none. For experts it is that of expert 0, and
     * the index of expert e is 2 e higher */
    uint32_t unit_of[TAP_SITE_COUNT];
    float *v_scales;  /* owned [G value_dim]: divisors of v's outputs, or NULL */
    bool is_gathered; /* the second moments of all units are complete */
    double *full;     /* owned [largest n_in]^2: one unit's H, on all ranks */
};

/* Errors of all functions below, unless stated otherwise: STATUS_INPUT (values that are not
 * finite, a checkpoint that cannot be read), STATUS_MEMORY. Collective functions return the same
 * errors on all ranks. */

/* calib_layer.c: calib_load, **Collective (world)**, reads the weights of a layer and makes its
 * stage and its units. calib_unload, Local, frees them, also after a failed load. */
struct status calib_load(struct calib *c, uint32_t layer);
void calib_unload(struct calib *c);

/* Local. Copies rows [row0, row0 + n_rows) of a member as f32, with scales folded in: out [n_rows,
 * n_in]. */
void calib_member_rows(const struct calib_member *m, size_t row0, size_t n_rows, float *out);

/* Local. Copies some evenly spread rows of a member, for searches: *rows [*n, n_in], freed with
 * mem_free. Errors: STATUS_MEMORY. */
struct status calib_some_rows(const struct calib_member *m, float **rows, size_t *n);

/* Local. Returns the unit whose input is captured at `site`; NULL if the layer has none. */
struct calib_unit *calib_unit_of(struct calib *c, enum tap_site site, uint32_t expert);

/* Local. Returns the unit's member with a role; NULL if it has none. */
struct calib_member *calib_member_of(const struct calib_unit *u, enum weight_role role);

/* calib_gather.c: **Collective (world)**. Calls `visit` for every quantized unit of the layer, in
 * order, with the unit's H in c->full, in as many passes as the memory makes necessary. During a
 * visit, the sums and maxima are in the h of that unit, of all units that are not quantized and of
 * the unit of TAP_FFN, and of the last two kinds also after the last visit; those of other units
 * may be gone. Errors: also the visit's. */
typedef struct status calib_visit(struct calib *c, struct calib_unit *u, void *ctx);
struct status calib_visit_units(struct calib *c, calib_visit *visit, void *ctx);

/* **Collective (world)**. Gathers the sums and maxima of all units, without second moments. */
struct status calib_gather_statistics(struct calib *c);

/* **Collective (world)**. Runs the layer over all sequences; its outputs replace their hidden
 * rows. */
struct status calib_forward(struct calib *c);

/* Local. Frees the second moments, sums and maxima of all units. */
void calib_forget(struct calib *c);

/* calib_scale.c: **Collective (world)**. Chooses the scales of the inputs of the layer's units
 * (AWQ, SmoothQuant), sets them in the members, and folds them into the norms. */
struct status calib_scale(struct calib *c);

/* calib_quantize.c: **Collective (world)**. Quantizes the layer's members. */
struct status calib_quantize(struct calib *c);
/* **Collective (world)**. Passes the layer's tensors to rank 0's sink. Errors: also the sink's. */
struct status calib_emit(struct calib *c);

#endif
