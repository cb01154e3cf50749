/* Quantization with calibration. Prompts run through shoal's own forward pass, one layer at a
 * time. Each linear is rounded according to its inputs, and the quantized layer's outputs are the
 * inputs of the next layer (as in GPTQ). Memory holds one layer's weights, the hidden rows of the
 * calibration set, and as many second moments as memory_bytes allows; further passes gather the
 * rest. Ranks divide the sequences of a pass, the rows of second moments and the outputs of
 * linears; none of this changes a bit (numerics law, rule 10). Reads no prompts and writes no
 * files. Called by `shoal quantize`. */
#ifndef SHOAL_CALIBRATE_CALIBRATE_H
#define SHOAL_CALIBRATE_CALIBRATE_H

#include "arch/arch.h"
#include "checkpoint/file/ckpt.h"
#include "parallel/comm/comm.h"
#include "quant/gptq.h"

enum { CALIBRATE_FORMATS_MAX = 8 };

enum calibrate_method { CALIBRATE_RTN, CALIBRATE_GPTQ, CALIBRATE_AWQ, CALIBRATE_SMOOTHQUANT };

/* Receives the finished tensors, only on rank 0. Each tensor arrives whole before the next one
 * begins. */
struct calibrate_sink {
    /* Begins a quantized tensor; its rows come next. */
    struct status (*begin)(void *ctx, const struct ckpt_tensor *t, struct quant_format f);
    struct status (*rows)(void *ctx, const struct quant_block *block, size_t n_rows);
    /* Takes a whole plain tensor into which scales were folded: rows [t->n_rows, t->n_cols]. */
    struct status (*plain)(void *ctx, const struct ckpt_tensor *t, const float *rows);
    void *ctx;
};

struct calibrate_options {
    /* all pointers are borrowed; comm is split by calibrate_layout's layout, and all ranks have
     * opened the same file */
    struct comm *comm;
    const struct kern_table *kern;
    struct ckpt *ckpt;
    const struct arch *model;
    const struct layout_model *layout_model;
    /* the calibration set, the same on all ranks: sequence i is tokens [first[i], first[i + 1]) */
    const int32_t *tokens;
    const size_t *first; /* [n_seqs + 1] */
    size_t n_seqs;
    enum calibrate_method method;
    /* returns the wanted format of a tensor; QUANT_NONE: unchanged */
    struct quant_format (*format_of)(void *ctx, const struct ckpt_tensor *t);
    void *format_ctx;
    struct gptq_options gptq;
    unsigned alpha_64ths;  /* of SmoothQuant */
    uint64_t min_tokens;   /* a linear that fewer tokens reach is rounded by RTN */
    uint64_t memory_bytes; /* of second moments at one time, per rank */
    struct calibrate_sink sink;
};

/* Figures for the user. */
struct calibrate_report {
    uint64_t n_tensors;         /* quantized tensors passed to the sink, on rank 0; else 0 */
    uint64_t n_experts_visited; /* quantized experts, over all layers */
    uint64_t n_experts_rtn;     /* of these, experts that too few tokens reached */
    /* sums of squares over the outputs of all quantized linears, estimated from up to 64 outputs of
     * each: `error` of the errors that rounding adds to them, `energy` of the outputs themselves */
    double error, energy;
};

/* Local. Builds the layout of calibration, in which every rank is a replica that holds whole
 * layers. Errors: STATUS_INPUT, STATUS_USAGE, as layout_build. */
struct status calibrate_layout(const struct layout_model *m, uint32_t n_ranks, struct layout *out);

/* **Collective (world)**. Passes to the sink each tensor of the layers that is quantized or
 * changed; the caller copies or rounds all others. Errors, the same on all ranks: STATUS_USAGE (a
 * source that is already quantized; an architecture that calibration does not implement; an empty
 * calibration set), STATUS_INPUT (values that are not finite), STATUS_MEMORY, the sink's. */
struct status calibrate_run(const struct calibrate_options *o, struct calibrate_report *report);

/* One tensor's measured sensitivity. */
struct calibrate_error {
    const struct ckpt_tensor *tensor; /* borrowed */
    double error[8];                  /* of RTN in each given format: output error / energy */
};

/* **Collective (world)**. For every linear of the layers for which format_of names a format,
 * measures the output error of RTN in each of n_formats formats (at most CALIBRATE_FORMATS_MAX), in
 * up to 512 outputs of each matrix, on the activations of the unquantized model. *out [*n], in the
 * order of the layers; the caller frees it with mem_free. Errors: as calibrate_run, without the
 * sink's. */
struct status calibrate_sensitivity(const struct calibrate_options *o,
                                    const struct quant_format *formats, uint32_t n_formats,
                                    struct calibrate_error **out, size_t *n);

#endif
