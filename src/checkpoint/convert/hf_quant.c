/* Recognises quantized weights by their tensors' names and checks their shapes. */
#include "checkpoint/convert/hf_quant.h"

#include "base/ends_with.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { N_OTHERS = 3, N_SCALES = 3, FP8_BLOCK = 128, FP4_GROUP = 32 };

/* The suffix of a quantized weight's main tensor, and the suffixes of its other tensors. */
static const struct kind {
    enum hf_layout layout;
    const char *suffix, *method;
    const char *scales[N_SCALES], *zeros, *g_idx; /* suffixes; of `scales` only one may exist */
    const char *others[N_OTHERS]; /* those for activations, which are not read; .weight_shape, which
                                     packed_find reads */
} kinds[] = {
    {HF_GPTQ, ".qweight", "gptq", {".scales"}, ".qzeros", ".g_idx", {NULL}},
    {HF_PACKED,
     ".weight_packed",
     "compressed-tensors",
     {".weight_scale"},
     ".weight_zero_point",
     ".weight_g_idx",
     {".weight_shape", ".input_scale", ".input_zero_point"}},
    {HF_MXFP4, "_blocks", "mxfp4", {"_scales"}, NULL, NULL, {NULL}},
    {HF_TERNARY, ".weight", "bitnet", {".weight_scale"}, NULL, NULL, {NULL}},
    {HF_FP8,
     ".weight",
     "fp8",
     {".weight_scale_inv", ".weight_scale", ".scale"},
     ".weight_zero_point",
     ".weight_g_idx",
     {".input_scale", ".input_zero_point", ".activation_scale"}},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* ---- names ---- */

static bool is_quantized_weight(const struct kind *k, const struct safetensors_tensor *t)
{
    switch (k->layout) {
    case HF_FP8:
        return t->dtype == DTYPE_F8_E4M3 || t->dtype == DTYPE_F8_E5M2 || t->dtype == DTYPE_I8;
    case HF_MXFP4:
    case HF_TERNARY:
        return t->dtype == DTYPE_U8;
    default:
        return t->dtype == DTYPE_I32;
    }
}

/* Finds the tensor whose name is `name` with its ending `own` replaced by `suffix`; NULL when there
 * is none. */
static const struct safetensors_tensor *sibling(const struct safetensors *s, const char *name,
                                                const char *own, const char *suffix)
{
    char other[CKPT_NAME_MAX];
    if (suffix == NULL) return NULL;
    const size_t n = strlen(name) - strlen(own);
    if (n + strlen(suffix) >= sizeof other) return NULL;
    snprintf(other, sizeof other, "%.*s%s", (int)n, name, suffix);
    return safetensors_find(s, other);
}

static bool is_part_of(const struct safetensors *s, const char *name, const struct kind *k,
                       const char *suffix)
{
    if (suffix == NULL || !ends_with(name, suffix)) return false;
    const struct safetensors_tensor *main_part = sibling(s, name, suffix, k->suffix);
    return main_part != NULL && is_quantized_weight(k, main_part);
}

bool hf_quant_is_part(const struct safetensors *s, const char *name)
{
    /* scales of a quantized KV cache, which shoal computes itself */
    if (ends_with(name, ".self_attn.k_scale") || ends_with(name, ".self_attn.v_scale")) return true;
    for (int i = 0; i < N_KINDS; i++) {
        const struct kind *k = &kinds[i];
        if (is_part_of(s, name, k, k->zeros) || is_part_of(s, name, k, k->g_idx)) return true;
        for (int j = 0; j < N_SCALES; j++) {
            if (is_part_of(s, name, k, k->scales[j])) return true;
        }
        for (int j = 0; j < N_OTHERS; j++) {
            if (is_part_of(s, name, k, k->others[j])) return true;
        }
    }
    return false;
}

/* ---- quantization_config ---- */

static int64_t hint_int(const struct js_node *config, const char *key, int64_t otherwise)
{
    int64_t value = otherwise;
    return js_int(js_get(config, key), &value) ? value : otherwise;
}

static bool hint_is(const struct js_node *config, const char *key, const char *text)
{
    const char *found = js_string(js_get(config, key), NULL);
    return found != NULL && strcasecmp(found, text) == 0;
}

/* Checks a field that may be absent, and otherwise must be one of `words` (NULL-terminated). */
static struct status hint_check(const struct js_node *config, const char *key,
                                const char *const *words, const char *expected)
{
    const struct js_node *node = js_get(config, key);
    if (node == NULL || js_type(node) == JS_NULL) return status_ok();
    for (int i = 0; words[i] != NULL; i++) {
        if (hint_is(config, key, words[i])) return status_ok();
    }
    const char *found = js_string(node, NULL);
    return status_make(STATUS_INPUT, "%s: expected %s, found \"%.80s\"", key, expected,
                       found != NULL ? found : "no string");
}

static struct status groups_check(const struct js_node *config)
{
    static const char *const formats[] = {"pack-quantized",  "int-quantized", "float-quantized",
                                          "naive-quantized", "dense",         NULL};
    static const char expected[] = "pack-quantized, int-quantized, float-quantized, "
                                   "naive-quantized or dense";
    const struct js_node *groups = js_get(config, "config_groups"), *group;
    const void *it = NULL;
    const char *name;
    TRY(hint_check(config, "format", formats, expected));
    while (js_type(groups) == JS_OBJECT && js_next(groups, &it, &name, &group)) {
        const int64_t bits = hint_int(js_get(group, "weights"), "num_bits", 8);
        TRY(hint_check(group, "format", formats, expected));
        if (bits == 4 || bits == 8) continue;
        return status_make(STATUS_INPUT,
                           "config_groups.%.40s.weights.num_bits: expected 4 or 8, found %lld",
                           name, (long long)bits);
    }
    return status_ok();
}

static struct status method_check(const struct js_node *hints)
{
    static const char *const methods[] = {"gptq",   "awq", "compressed-tensors", "fp8", "mxfp4",
                                          "bitnet", NULL};
    static const char *const gptq[] = {"gptq", "gptq_v2", NULL};
    static const char *const awq[] = {"gemm", NULL};
    if (js_get(hints, "quant_method") == NULL)
        return status_make(STATUS_INPUT, "quant_method: expected one, found none");
    TRY(hint_check(hints, "quant_method", methods,
                   "gptq, awq, compressed-tensors, fp8, mxfp4 or bitnet"));
    if (hint_is(hints, "quant_method", "compressed-tensors")) return groups_check(hints);
    if (hint_is(hints, "quant_method", "awq")) return hint_check(hints, "version", awq, "gemm");
    if (!hint_is(hints, "quant_method", "gptq")) return status_ok();
    return hint_check(hints, "checkpoint_format", gptq, "gptq or gptq_v2");
}

struct status hf_quant_check(const struct js_node *config)
{
    static const char *const experts[] = {"fp4", "fp8", NULL};
    const struct js_node *hints = js_get(config, "quantization_config");
    TRY(status_wrap(hint_check(config, "expert_dtype", experts, "fp4 or fp8"), "config.json"));
    if (hints == NULL || js_type(hints) == JS_NULL) return status_ok();
    struct status st = method_check(hints);
    if (!status_failed(&st)) st = hint_check(hints, "expert_dtype", experts, "fp4 or fp8");
    return status_wrap(st, "config.json: quantization_config");
}

/* ---- the layouts ---- */

static struct status hf_quant_bad(const struct safetensors *s, const struct safetensors_tensor *t,
                                  const char *what)
{
    return status_make(STATUS_INPUT, "%s: tensor '%.200s': %s", safetensors_path(s, t), t->name,
                       what);
}

static bool has_shape(const struct safetensors_tensor *t, uint64_t rows, uint64_t cols)
{
    return t != NULL && t->n_dims == 2 && t->dims[0] == rows && t->dims[1] == cols;
}

static uint64_t up(uint64_t n, uint64_t unit)
{
    return n / unit + (n % unit != 0);
}

/* Describes GPTQ or AWQ: codes packed into words along the inputs (GPTQ) or the outputs (AWQ),
 * scales [groups, outputs]. */
static struct status columns_find(const struct safetensors *s, const struct js_node *config,
                                  struct hf_quant *q)
{
    const struct safetensors_tensor *t = q->codes;
    const int64_t group = hint_int(config, "group_size", 128);
    bool sym = false;
    q->bits = (uint32_t)hint_int(config, "bits", 4);
    if (hint_is(config, "quant_method", "awq")) q->layout = HF_AWQ;
    q->method = q->layout == HF_AWQ ? "awq" : "gptq";
    if (t->n_dims != 2 || (q->bits != 4 && (q->bits != 8 || q->layout == HF_AWQ))) {
        return hf_quant_bad(s, t, "expected two dimensions, and 4 bits (GPTQ also 8)");
    }
    const uint64_t per_word = 32 / q->bits;
    q->n_in = q->layout == HF_GPTQ ? t->dims[0] * per_word : t->dims[0];
    q->n_out = q->layout == HF_GPTQ ? t->dims[1] : t->dims[1] * per_word;
    q->group = group <= 0 || (uint64_t)group > q->n_in ? q->n_in : (uint64_t)group;
    q->zero_is_one_less = q->layout == HF_GPTQ && !hint_is(config, "checkpoint_format", "gptq_v2");
    if (q->group == 0 || q->n_out == 0) return hf_quant_bad(s, t, "has no elements");
    q->n_groups = up(q->n_in, q->group);
    if (!has_shape(q->scales, q->n_groups, q->n_out) ||
        !has_shape(q->zeros, q->n_groups, q->n_out / per_word) || q->n_out % per_word != 0 ||
        q->zeros->dtype != DTYPE_I32) {
        return hf_quant_bad(s, t, "its scales and qzeros do not fit bits and group_size");
    }
    /* symmetric int4 has zero points of 8; zeros_check checks them when they are read */
    q->has_zeros = !(q->bits == 4 && js_bool(js_get(config, "sym"), &sym) && sym);
    return status_ok();
}

/* Describes scales for blocks of [rows, cols]; the last block of each dimension may be partial. */
static struct status block_scales_find(const struct safetensors *s, struct hf_quant *q,
                                       uint64_t rows, uint64_t cols)
{
    if (rows < 1 || cols < 1 || !has_shape(q->scales, up(q->n_out, rows), up(q->n_in, cols))) {
        return hf_quant_bad(s, q->scales, "its shape does not fit the size of its blocks");
    }
    q->block_rows = rows;
    q->group = cols;
    return status_ok();
}

/* Sets q->group and q->block_rows from the shape of the scales: [outputs, groups], [outputs], one
 * for the tensor, one for each block of 128 x 128, or no scales. */
static struct status row_scales_find(const struct safetensors *s, struct hf_quant *q)
{
    const struct safetensors_tensor *t = q->scales;
    uint64_t n = 1;
    q->group = q->n_in;
    q->block_rows = 1;
    if (t == NULL) return status_ok();
    for (uint32_t d = 0; d < t->n_dims; d++) n *= t->dims[d];
    if (n == 1) {
        q->block_rows = q->n_out;
        return status_ok();
    }
    if (n == q->n_out && t->dims[0] == q->n_out) return status_ok();
    if (t->n_dims != 2 || t->dims[0] != q->n_out || t->dims[1] == 0) {
        return block_scales_find(s, q, FP8_BLOCK, FP8_BLOCK);
    }
    if (q->n_in % t->dims[1] != 0)
        return hf_quant_bad(s, t, "its groups do not divide the inputs evenly");
    q->group = q->n_in / t->dims[1];
    return status_ok();
}

/* Describes compressed-tensors' zero points: bytes, or packed along the outputs. */
static struct status row_zeros_find(const struct safetensors *s, struct hf_quant *q)
{
    const struct safetensors_tensor *t = q->zeros;
    if (t == NULL) return status_ok();
    const uint64_t n_groups = up(q->n_in, q->group);
    const uint64_t n = t->dtype == DTYPE_I8 ? q->n_out : up(q->n_out, 32 / q->bits);
    if (q->block_rows != 1 || (t->dtype != DTYPE_I8 && t->dtype != DTYPE_I32) ||
        t->n_bytes != n * n_groups * dtype_bytes(t->dtype)) {
        return hf_quant_bad(s, t, "expected one for each scale, as i8 or packed in i32");
    }
    q->has_zeros = true;
    return status_ok();
}

static struct status packed_find(const struct safetensors *s, struct hf_quant *q)
{
    const struct safetensors_tensor *t = q->codes;
    const struct safetensors_tensor *shape = sibling(s, t->name, ".weight_packed", ".weight_shape");
    int64_t dims[2] = {0, 0};
    if (t->n_dims != 2 || shape == NULL || shape->dtype != DTYPE_I64 || shape->n_bytes != 16) {
        return hf_quant_bad(s, t, "expected two dimensions, and weight_shape beside it");
    }
    TRY(safetensors_read(s, shape, 0, sizeof dims, dims));
    if (dims[0] < 1 || dims[1] < 1 || (uint64_t)dims[0] != t->dims[0] || dims[1] > UINT32_MAX) {
        return hf_quant_bad(s, t, "weight_shape has another number of outputs");
    }
    q->n_out = (uint64_t)dims[0];
    q->n_in = (uint64_t)dims[1];
    for (q->bits = 4; q->bits <= 8 && up(q->n_in, 32 / q->bits) != t->dims[1]; q->bits *= 2) {
    }
    if (q->bits > 8)
        return hf_quant_bad(s, t, "expected 4 or 8 bits for each input of weight_shape");
    TRY(row_scales_find(s, q));
    return row_zeros_find(s, q);
}

/* Describes DeepSeek-V4's experts, two E2M1 numbers in a byte: codes [out, in / 2], scales
 * [out, in / 32]. */
static struct status fp4_find(const struct safetensors *s, struct hf_quant *q)
{
    q->layout = HF_MXFP4;
    q->method = "fp4";
    q->bits = 4;
    q->n_in = 2 * q->codes->dims[1];
    q->group = FP4_GROUP;
    if (q->zeros != NULL) return hf_quant_bad(s, q->zeros, "fp4 has no zero points");
    if (q->scales->dtype != DTYPE_F8_E8M0)
        return hf_quant_bad(s, q->scales, "fp4: expected scales of the type F8_E8M0");
    if (q->n_in % FP4_GROUP == 0 && has_shape(q->scales, q->n_out, q->n_in / FP4_GROUP))
        return status_ok();
    return hf_quant_bad(s, q->scales, "expected a scale for each 32 inputs, two of them in a byte");
}

/* True for scales named as DeepSeek names them. */
static bool is_deepseek(const struct safetensors_tensor *scales)
{
    return ends_with(scales->name, "_inv") || ends_with(scales->name, ".scale");
}

/* Describes a tensor of type I8: packed E2M1 if its scales are E8M0 or have DeepSeek's names,
 * otherwise int8. */
static struct status int8_find(const struct safetensors *s, struct hf_quant *q)
{
    if (q->scales == NULL)
        return hf_quant_bad(s, q->codes, "expected .scale (fp4) or .weight_scale (int8) beside it");
    if (q->scales->dtype == DTYPE_F8_E8M0 || is_deepseek(q->scales)) return fp4_find(s, q);
    q->layout = HF_INT8;
    q->method = "compressed-tensors";
    TRY(row_scales_find(s, q));
    return row_zeros_find(s, q);
}

/* Describes a tensor of bytes: E4M3, E5M2, int8, or packed E2M1. */
static struct status bytes_find(const struct safetensors *s, const struct js_node *config,
                                struct hf_quant *q)
{
    const struct safetensors_tensor *t = q->codes;
    const struct js_node *block = js_get(config, "weight_block_size");
    int64_t rows = FP8_BLOCK, cols = FP8_BLOCK;
    if (t->n_dims != 2 || t->n_bytes == 0) return hf_quant_bad(s, t, "expected two dimensions");
    q->bits = 8;
    q->n_out = t->dims[0];
    q->n_in = t->dims[1];
    if (t->dtype == DTYPE_I8) return int8_find(s, q);
    if (q->zeros != NULL) return hf_quant_bad(s, q->zeros, "fp8 has no zero points");
    if (hint_is(config, "quant_method", "compressed-tensors")) q->method = "compressed-tensors";
    if (q->scales == NULL && js_count(block) == 2)
        return hf_quant_bad(s, t, "its scales are missing");
    if (q->scales == NULL || !is_deepseek(q->scales)) return row_scales_find(s, q);
    if (js_count(block) == 2 && (!js_int(js_at(block, 0), &rows) ||
                                 !js_int(js_at(block, 1), &cols) || rows < 1 || cols < 1)) {
        return hf_quant_bad(s, t, "weight_block_size: expected two sizes");
    }
    return block_scales_find(s, q, (uint64_t)rows, (uint64_t)cols);
}

/* Describes MXFP4: [E, out, groups, 16] bytes and [E, out, groups] scales. */
static struct status mxfp4_find(const struct safetensors *s, struct hf_quant *q)
{
    const struct safetensors_tensor *t = q->codes, *e = q->scales;
    if (t->n_dims != 4 || t->dims[3] != 16 || e->dtype != DTYPE_U8 || e->n_dims != 3 ||
        memcmp(e->dims, t->dims, 3 * sizeof t->dims[0]) != 0) {
        return hf_quant_bad(s, t, "expected [experts, outputs, groups, 16] and scales beside it");
    }
    q->bits = 4;
    q->group = FP4_GROUP;
    q->block_rows = 1;
    q->n_in = t->dims[2] * FP4_GROUP;
    q->n_out = t->dims[0] * t->dims[1];
    q->n_dims = 3;
    q->dims[0] = t->dims[0];
    q->dims[1] = t->dims[1];
    q->dims[2] = q->n_in;
    return status_ok();
}

/* Describes BitNet's ternary weights. The source tensor has n_out / 4 rows of bytes. In a byte of
 * its row r, bits 2 i and 2 i + 1 hold an element of the weight's row r + i * n_out / 4, as value +
 * 1. */
static struct status ternary_find(const struct safetensors *s, struct hf_quant *q)
{
    const struct safetensors_tensor *t = q->codes;
    if (t->n_dims != 2) return hf_quant_bad(s, t, "expected two dimensions");
    if (q->scales->n_bytes != dtype_bytes(q->scales->dtype))
        return hf_quant_bad(s, q->scales, "expected one scale for the tensor");
    q->bits = 4;
    q->n_out = HF_TERNARY_ROWS * t->dims[0];
    q->n_in = q->group = t->dims[1];
    q->block_rows = q->n_out;
    return status_ok();
}

/* ---- the format ---- */

/* Chooses a format that can hold these values; QUANT_NONE when there is none. If the source's group
 * is longer than the format's, its scale is repeated. All 8-bit integers get zero points: signed
 * ones may be -128, which symmetric int8 lacks. */
static void format_choose(struct hf_quant *q)
{
    struct quant_format f = {.has_zeros = q->has_zeros, .scale_dtype = DTYPE_F32};
    if (q->g_idx != NULL || q->codes->dtype == DTYPE_F8_E5M2) return; /* QUANT_NONE */
    if (q->scales != NULL && q->scales->dtype == DTYPE_F16) f.scale_dtype = DTYPE_F16;
    f.kind = q->layout == HF_MXFP4 ? QUANT_MXFP4
             : q->layout == HF_FP8 ? QUANT_FP8
             : q->bits == 4        ? QUANT_INT4
                                   : QUANT_INT8;
    if (f.kind == QUANT_INT8) f.has_zeros = true;
    const bool is_channel = q->group >= q->n_in && f.kind != QUANT_INT4 && f.kind != QUANT_MXFP4;
    if (is_channel) {
        f.group = 0;
    } else if (q->group == 32 || q->group == 64 || q->group == 128) {
        f.group = (uint32_t)q->group;
    } else if (q->group % QUANT_GROUP_MAX == 0 || q->group >= q->n_in) {
        f.group = QUANT_GROUP_MAX;
    } else {
        return;
    }
    q->format = f;
}

/* Drops a g_idx that only numbers groups of consecutive inputs, or is -1 everywhere. */
static struct status act_order_find(const struct safetensors *s, struct hf_quant *q)
{
    const struct safetensors_tensor *t = q->g_idx;
    if (t == NULL) return status_ok();
    if (t->dtype != DTYPE_I32 || t->n_dims != 1 || t->dims[0] != q->n_in) {
        return hf_quant_bad(s, t, "expected an i32 for each input");
    }
    int32_t *g_idx = NULL;
    TRY(mem_alloc(&g_idx, q->n_in, sizeof g_idx[0], t->name));
    const struct status st = safetensors_read(s, t, 0, t->n_bytes, g_idx);
    bool is_plain = true, is_unset = true;
    for (uint64_t k = 0; k < q->n_in && !status_failed(&st); k++) {
        is_plain = is_plain && g_idx[k] >= 0 && (uint64_t)g_idx[k] == k / q->group;
        is_unset = is_unset && g_idx[k] == -1;
    }
    mem_free(&g_idx);
    if (is_plain || is_unset) q->g_idx = NULL;
    return st;
}

/* Finds the weight's scales; q->scales stays NULL for fp8 or int8 without them. */
static struct status scales_find(const struct safetensors *s, const struct kind *k,
                                 struct hf_quant *q)
{
    for (int i = 0; i < N_SCALES; i++) {
        const struct safetensors_tensor *t = sibling(s, q->codes->name, k->suffix, k->scales[i]);
        if (t == NULL) continue;
        if (q->scales != NULL) return hf_quant_bad(s, t, "a second tensor of scales");
        q->scales = t;
    }
    const bool is_bytes = k->layout == HF_FP8;
    if (q->scales == NULL && !is_bytes) return hf_quant_bad(s, q->codes, "its scales are missing");
    if (q->scales == NULL || q->scales->dtype < DTYPE_COUNT || k->layout == HF_MXFP4)
        return status_ok(); /* mxfp4_find checks the type */
    if (is_bytes && q->scales->dtype == DTYPE_F8_E8M0) return status_ok();
    return hf_quant_bad(s, q->scales, "expected scales of a float type");
}

static struct status parts_find(const struct safetensors *s, const struct kind *k,
                                struct hf_quant *q)
{
    const char *name = q->codes->name;
    const size_t n = strlen(name) - strlen(k->suffix);
    if (n + strlen(".weight") >= sizeof q->name)
        return hf_quant_bad(s, q->codes, "its name is too long");
    snprintf(q->name, sizeof q->name, "%.*s.weight", (int)n, name);
    q->zeros = sibling(s, name, k->suffix, k->zeros);
    q->g_idx = sibling(s, name, k->suffix, k->g_idx);
    return scales_find(s, k, q);
}

static struct status layout_find(const struct safetensors *s, const struct js_node *hints,
                                 struct hf_quant *q)
{
    switch (q->layout) {
    case HF_GPTQ:
        return columns_find(s, hints, q);
    case HF_PACKED:
        return packed_find(s, q);
    case HF_MXFP4:
        return mxfp4_find(s, q);
    case HF_TERNARY:
        return ternary_find(s, q);
    default:
        return bytes_find(s, hints, q);
    }
}

struct status hf_quant_find(const struct safetensors *s, const struct safetensors_tensor *t,
                            const struct js_node *config, struct hf_quant *out)
{
    const struct kind *k = NULL;
    const struct js_node *hints = js_get(config, "quantization_config");
    *out = (struct hf_quant){.layout = HF_PLAIN};
    for (int i = 0; i < N_KINDS && k == NULL; i++) {
        if (ends_with(t->name, kinds[i].suffix) && is_quantized_weight(&kinds[i], t)) k = &kinds[i];
    }
    if (k == NULL) return status_ok();
    if (k->layout == HF_TERNARY && !hint_is(hints, "quant_method", k->method)) return status_ok();
    struct hf_quant q = {
        .layout = k->layout, .method = k->method, .codes = t, .block_rows = 1, .step = 1};
    TRY(parts_find(s, k, &q));
    TRY(layout_find(s, hints, &q));
    if (q.n_out == 0 || q.n_in == 0) return hf_quant_bad(s, t, "has no elements");
    q.n_groups = up(q.n_in, q.group);
    TRY(act_order_find(s, &q));
    if (q.n_dims == 0) {
        q.n_dims = 2;
        q.dims[0] = q.n_out;
        q.dims[1] = q.n_in;
    }
    format_choose(&q);
    *out = q;
    return status_ok();
}
