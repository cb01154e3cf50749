/* Reads quantized weights of Hugging Face checkpoints, most of them stored as several tensors.
 * Knows the published layouts of GPTQ, AWQ (gemm), compressed-tensors (pack-quantized,
 * int-quantized, float-quantized), fp8 with block scales (DeepSeek), MXFP4 (gpt-oss; DeepSeek-V4's
 * experts) and BitNet's ternary weights. Returns them as codes of shoal's formats, unchanged, or as
 * f32 values, code times scale, rounded once. Called by source.c. Layouts: the repositories
 * AutoGPTQ/AutoGPTQ (qlinear), casper-hansen/AutoAWQ (gemm), vllm-project/compressed-tensors,
 * deepseek-ai/DeepSeek-V3 (README_WEIGHTS), openai/gpt-oss, huggingface/transformers
 * (finegrained_fp8, for DeepSeek-V4). */
#ifndef SHOAL_CHECKPOINT_CONVERT_HF_QUANT_H
#define SHOAL_CHECKPOINT_CONVERT_HF_QUANT_H

#include "base/json.h"
#include "checkpoint/convert/safetensors.h"
#include "checkpoint/file/ckpt.h"

enum hf_layout {
    HF_PLAIN, /* not a quantized weight */
    HF_GPTQ,
    HF_AWQ,
    HF_PACKED, /* compressed-tensors, pack-quantized */
    HF_INT8,   /* compressed-tensors, int-quantized */
    HF_FP8,    /* E4M3 or E5M2 with a scale per tensor, output, group or block, or none */
    HF_MXFP4,
    HF_TERNARY, /* BitNet: four rows in a byte, two bits each, one scale for the tensor */
};

enum { HF_TERNARY_ROWS = 4 }; /* rows of the weight in one byte */

/* One quantized weight of a source. */
struct hf_quant {
    enum hf_layout layout;
    char name[CKPT_NAME_MAX]; /* the weight's name */
    uint32_t n_dims;
    uint64_t dims[CKPT_DIMS_MAX];
    uint64_t n_out, n_in;       /* outputs of all experts together; inputs */
    uint32_t bits;              /* bits of a code; HF_TERNARY: of the int4 codes that it becomes */
    uint64_t group, n_groups;   /* inputs that share a scale in the source; number of such groups */
    uint64_t block_rows;        /* outputs that share a scale */
    uint64_t step, first;       /* row r of the weight is the source's row first + r * step */
    bool zero_is_one_less;      /* GPTQ's first version stores zero - 1 */
    bool has_zeros;             /* zero points may differ from the middle of the range */
    struct quant_format format; /* the format in which the quantized values can be kept; QUANT_NONE:
                                   they can only be read as floats */
    const char *method; /* "gptq", "awq", "compressed-tensors", "fp8", "mxfp4", "fp4", "bitnet" */
    /* Borrowed; NULL: none. g_idx is set only when the inputs of a group are not consecutive
     * (act-order), which none of shoal's formats can hold. */
    const struct safetensors_tensor *codes, *scales, *zeros, *g_idx;
};

/* Local. Refuses a quantization_config whose method or format shoal does not read, or whose
 * config_groups have other numbers of bits than 4 and 8; and an expert_dtype other than fp4 and
 * fp8, in quantization_config or in config.json itself. `config` is the source's config.json.
 * Errors: STATUS_INPUT names what was found. */
struct status hf_quant_check(const struct js_node *config);

/* Local. Fills *out if tensor t of s is the main tensor of a quantized weight; otherwise sets
 * out->layout to HF_PLAIN. Errors: STATUS_INPUT names the tensor and what is not supported;
 * STATUS_MEMORY. */
struct status hf_quant_find(const struct safetensors *s, const struct safetensors_tensor *t,
                            const struct js_node *config, struct hf_quant *out);

/* Local. True for the name of a quantized weight's tensor other than its main one (scales, zeros,
 * ...), where s has the main one; and for a KV cache's scale. */
bool hf_quant_is_part(const struct safetensors *s, const char *name);

/* The raw bytes of one weight, or of some of its rows, in memory. The caller zeroes it before the
 * first use. */
struct hf_raw {
    const struct hf_quant *of; /* borrowed; the weight to which the bytes belong; NULL: none */
    uint64_t row0, n_rows; /* the rows in memory; all rows of GPTQ, AWQ and ternary weights, whose
                              rows do not lie one after another */
    void *codes, *scales, *zeros; /* owned */
    int32_t *g_idx;               /* owned */
    uint8_t *row_codes;           /* owned [n_in]: quantized values of one row, one per byte */
    uint8_t *row_zeros;           /* owned [n_groups]: the row's zero points */
    float *row_scales;            /* owned [n_groups]: the row's scales (E8M0 as floats) */
};
void hf_raw_fini(struct hf_raw *raw);

/* Local. Reads rows [row0, row0 + n_rows): hf_quant_codes as quantized values of `format`, which is
 * q->format or q->format with a smaller group; hf_quant_values as f32, out [n_rows, n_in]. Errors:
 * STATUS_INPUT, STATUS_MEMORY. */
struct status hf_quant_codes(const struct safetensors *s, const struct hf_quant *q,
                             struct hf_raw *raw, struct quant_format format, uint64_t row0,
                             uint64_t n_rows, const struct quant_block *out);
struct status hf_quant_values(const struct safetensors *s, const struct hf_quant *q,
                              struct hf_raw *raw, uint64_t row0, uint64_t n_rows, float *out);

#endif
