/* Reads GGUF, versions 2 and 3, little endian: metadata of all types but arrays of arrays, and
 * tensors row by row, as stored, as f32, or as codes and scales. The bytes are untrusted and
 * checked before use. Knows no models: names and values are those of the file (gguf_model.h
 * interprets them). Called by convert. Format:
 * https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */
#ifndef SHOAL_CHECKPOINT_CONVERT_GGUF_H
#define SHOAL_CHECKPOINT_CONVERT_GGUF_H

#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/quant_format.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GGUF_DIMS_MAX = 4,
    GGUF_STRING_MAX = 16 << 20, /* bytes of one string */
    GGUF_KEYS_MAX = 1 << 16,    /* metadata entries */
    GGUF_TENSORS_MAX = 1 << 20,
    GGUF_ARRAY_MAX = 1 << 24,  /* elements of one array */
    GGUF_META_MAX = 512 << 20, /* most bytes before the tensors' data */
};

/* The value types, with the numbers that files use. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
};

/* The tensor types that can be read, with the numbers that files use. */
enum gguf_quant {
    GGUF_F32_TENSOR = 0,
    GGUF_F16_TENSOR = 1,
    GGUF_Q4_0_TENSOR = 2,
    GGUF_Q4_1_TENSOR = 3,
    GGUF_Q5_0_TENSOR = 6,
    GGUF_Q5_1_TENSOR = 7,
    GGUF_Q8_0_TENSOR = 8,
    GGUF_Q2_K_TENSOR = 10,
    GGUF_Q3_K_TENSOR = 11,
    GGUF_Q4_K_TENSOR = 12,
    GGUF_Q5_K_TENSOR = 13,
    GGUF_Q6_K_TENSOR = 14,
    GGUF_IQ4_NL_TENSOR = 20,
    GGUF_IQ4_XS_TENSOR = 23,
    GGUF_BF16_TENSOR = 30,
    GGUF_MXFP4_TENSOR = 39,
};

struct gguf_tensor {
    const char *name; /* borrowed */
    enum gguf_quant quant;
    uint32_t n_dims;              /* 1..GGUF_DIMS_MAX */
    uint64_t dims[GGUF_DIMS_MAX]; /* row-major, the last is n_cols: the file's order reversed */
    uint64_t n_rows, n_cols;
    uint64_t row_bytes; /* bytes of a stored row */
    uint64_t offset;    /* byte offset in the file */
};

struct gguf;

/* Local. Opens a file and parses its header. Errors: STATUS_INPUT names file, key or tensor, and
 * offset; STATUS_MEMORY. */
struct status gguf_open(const char *path, struct gguf **out);
void gguf_close(struct gguf **g);
const char *gguf_path(const struct gguf *g);

/* Local. Read metadata. False (or NULL) when the key is absent or its value is of another kind; int
 * takes every integer type that fits, float takes f32 and f64. Strings are borrowed, NUL-terminated
 * after *n bytes. */
bool gguf_int(const struct gguf *g, const char *key, int64_t *out);
bool gguf_float(const struct gguf *g, const char *key, double *out);
bool gguf_bool(const struct gguf *g, const char *key, bool *out);
const char *gguf_string(const struct gguf *g, const char *key, size_t *n);
bool gguf_has(const struct gguf *g, const char *key);

/* Local. gguf_array reads element type and count of an array; false when the key is absent or no
 * array. The others read an element by its index. */
bool gguf_array(const struct gguf *g, const char *key, enum gguf_type *type, uint64_t *n);
const char *gguf_array_string(const struct gguf *g, const char *key, uint64_t i, size_t *n);
bool gguf_array_int(const struct gguf *g, const char *key, uint64_t i, int64_t *out);
bool gguf_array_f32(const struct gguf *g, const char *key, uint64_t i, float *out);

/* Local. Return the number of metadata keys, and a key by its place in the file. */
size_t gguf_key_count(const struct gguf *g);
const char *gguf_key_at(const struct gguf *g, size_t i);

/* Local. Return the number of tensors, a tensor by its place in the file, and a tensor by its name
 * (NULL if unknown). */
size_t gguf_count(const struct gguf *g);
const struct gguf_tensor *gguf_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name);

/* Local. Reads rows [row0, row0 + n_rows) as stored: out [n_rows][row_bytes]. Errors: STATUS_INPUT
 * when the file cannot be read. */
struct status gguf_read_rows(const struct gguf *g, const struct gguf_tensor *t, uint64_t row0,
                             uint64_t n_rows, void *out);

/* Local. Reads rows like gguf_read_rows, as floats: out [n_rows][n_cols]; scratch [n_rows *
 * row_bytes]. */
struct status gguf_read_floats(const struct gguf *g, const struct gguf_tensor *t, uint64_t row0,
                               uint64_t n_rows, void *scratch, float *out);

/* Local. Dequantizes n elements (a multiple of the block size) of stored bytes, with f32 operations
 * in the order of the format's reference implementation. */
void gguf_dequantize(enum gguf_quant quant, const void *in, uint64_t n, float *out);
/* Local. Sets *out to the format in which a type's quantized values can be kept unchanged: Q4_0
 * becomes int4 in groups of 32; Q8_0, Q5_0, IQ4_NL and IQ4_XS become int8 in groups of 32; MXFP4
 * stays MXFP4. False for floats and for all other quantized types: Q4_1, Q5_1, Q2_K, Q4_K and Q5_K
 * add a float to each group, which is no integer zero point; Q3_K and Q6_K have groups of 16. */
bool gguf_quant_format(enum gguf_quant quant, struct quant_format *out);
/* Local. Converts rows of a type that gguf_quant_format accepts to codes and scales. False when a
 * Q8_0 code is -128, which llama.cpp never writes and int8 does not have, or when an MXFP4 scale is
 * 255, which is NaN by the specification. */
bool gguf_codes(enum gguf_quant quant, const void *in, uint64_t n_rows, uint64_t n_cols,
                const struct quant_block *out);
/* gguf_iq4_values: the values for the codes of IQ4_NL and IQ4_XS. gguf_iq4_xs_scale: returns the
 * scale of the j-th 32 elements of an IQ4_XS block. */
extern const int8_t gguf_iq4_values[16];
float gguf_iq4_xs_scale(const uint8_t *block, int j);
const char *gguf_quant_name(enum gguf_quant quant);
/* Local. Sets the numbers of elements and bytes in a block of the type with this number; false when
 * the type cannot be read. */
bool gguf_quant_block(uint32_t id, uint32_t *n_elems, uint32_t *n_bytes);
/* Local. True for an unquantized float type; *out is its dtype. */
bool gguf_quant_dtype(enum gguf_quant quant, enum dtype *out);

#endif
