/* Packed quantized weights: their sizes, filling them from the checkpoint's rows, reading one
 * element back. */
#include "kernels/ops.h"

#include "kernels/cuda/ops_cuda.h"
#include "kernels/quant_body.h"

enum { BYTES_AT_ONCE = 4, OUTPUTS_AT_ONCE = 4 };

static size_t product(size_t a, size_t b)
{
    size_t n;
    return __builtin_mul_overflow(a, b, &n) ? SIZE_MAX : n;
}

struct packed_quant_sizes packed_quant_bytes(struct quant_format f, size_t n_out, size_t n_in)
{
    const size_t n_panels = n_out / PANEL_COLUMNS + (n_out % PANEL_COLUMNS != 0);
    const size_t n_scales = product(product(n_panels, PANEL_COLUMNS), kern_quant_groups(f, n_in));
    const size_t n_codes = product(n_scales, quant_kernel_group(f));
    return (struct packed_quant_sizes){
        .data = n_codes == SIZE_MAX || !quant_is_nibbles(f.kind) ? n_codes : n_codes / 2,
        .scales = product(n_scales, kern_quant_scale_bytes(f)),
        .zeros = f.has_zeros ? n_scales : 0};
}

typedef uint32_t u32x4 __attribute__((vector_size(16)));

/* Eight nibbles in the checkpoint's order (even input low) to the kernels': input j low, 4 + j
 * high, of byte j; in each word. */
static inline u32x4 split_nibbles(u32x4 v)
{
    const u32x4 first = v & 0xFFFFu, last = v >> 16; /* inputs 0..3 and 4..7 */
    const u32x4 low =
        (first & 0xFu) | (first & 0xF0u) << 4 | (first & 0xF00u) << 8 | (first & 0xF000u) << 12;
    const u32x4 high =
        (last & 0xFu) | (last & 0xF0u) << 4 | (last & 0xF00u) << 8 | (last & 0xF000u) << 12;
    return low | high << 4;
}

static inline u32x4 packed_words(struct quant_format f, u32x4 v)
{
    if (quant_is_nibbles(f.kind)) return split_nibbles(v);
    return f.kind == QUANT_INT8 && !f.has_zeros ? v ^ 0x80808080u : v;
}

/* Words of four consecutive outputs, from four places each: [output][place] to [place][output]. */
static inline void turn(u32x4 v[OUTPUTS_AT_ONCE])
{
    const u32x4 a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5);
    const u32x4 b = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
    const u32x4 c = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
    const u32x4 d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
    v[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    v[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    v[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    v[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

/* The codes of four outputs of one panel, the first one's place at `lane`; returns how many bytes
 * of each were put: whole vectors. */
static size_t put_four(struct quant_format f, uint8_t *lane, const uint8_t *rows, size_t stride,
                       size_t n_bytes)
{
    size_t i = 0;
    for (; i + sizeof(u32x4) <= n_bytes; i += sizeof(u32x4)) {
        u32x4 v[OUTPUTS_AT_ONCE];
#pragma GCC unroll 4
        for (size_t r = 0; r < OUTPUTS_AT_ONCE; r++) {
            memcpy(&v[r], rows + r * stride + i, sizeof v[r]);
            v[r] = packed_words(f, v[r]);
        }
        turn(v);
#pragma GCC unroll 4
        for (size_t r = 0; r < OUTPUTS_AT_ONCE; r++)
            memcpy(lane + (i + r * BYTES_AT_ONCE) * PANEL_COLUMNS, &v[r], sizeof v[r]);
    }
    return i;
}

/* One output's codes from byte i on: a word for each of the panel's vectors. */
static void put_row(struct quant_format f, uint8_t *lane, const uint8_t *row, size_t i,
                    size_t n_bytes)
{
    for (; i < n_bytes; i += BYTES_AT_ONCE) {
        const size_t left = n_bytes - i;
        uint32_t v = 0;
        if (left >= BYTES_AT_ONCE)
            memcpy(&v, row + i, BYTES_AT_ONCE);
        else
            memcpy(&v, row + i, left);
        v = packed_words(f, (u32x4){v})[0];
        memcpy(lane + i * PANEL_COLUMNS, &v, BYTES_AT_ONCE);
    }
}

void packed_quant_put_codes(struct quant_format f, void *data, size_t n_in, size_t row0,
                            size_t n_rows, const void *rows, size_t row_stride_bytes)
{
    const size_t n_bytes = quant_code_bytes(f.kind, n_in);
    const size_t panel_bytes = kern_quant_panel_bytes(f, n_in);
    for (size_t i = 0, count; i < n_rows; i += count) {
        const size_t n = row0 + i;
        const uint8_t *from = (const uint8_t *)rows + i * row_stride_bytes;
        uint8_t *lane =
            (uint8_t *)data + n / PANEL_COLUMNS * panel_bytes + n % PANEL_COLUMNS * QUANT_QUAD;
        const bool four = n % OUTPUTS_AT_ONCE == 0 && n_rows - i >= OUTPUTS_AT_ONCE;
        const size_t done = four ? put_four(f, lane, from, row_stride_bytes, n_bytes) : 0;
        count = four ? OUTPUTS_AT_ONCE : 1;
        for (size_t r = 0; r < count; r++)
            put_row(f, lane + r * QUANT_QUAD, from + r * row_stride_bytes, done, n_bytes);
    }
}

/* Elements of `size` bytes of one output each, the same for all its groups. */
static inline void put_channel(size_t size, size_t n_groups, char *out, size_t row0, size_t n_rows,
                               const char *rows, size_t row_stride_bytes)
{
    for (size_t i = 0, count; i < n_rows; i += count) {
        const size_t n = row0 + i, room = PANEL_COLUMNS - n % PANEL_COLUMNS;
        char side[PANEL_COLUMNS * sizeof(float)];
        char *to = out + (n / PANEL_COLUMNS * n_groups * PANEL_COLUMNS + n % PANEL_COLUMNS) * size;
        count = n_rows - i < room ? n_rows - i : room;
        for (size_t r = 0; r < count; r++)
            memcpy(side + r * size, rows + (i + r) * row_stride_bytes, size);
        for (size_t g = 0; g < n_groups; g++)
            memcpy(to + g * PANEL_COLUMNS * size, side, count * size);
    }
}

/* Elements of `size` bytes, one for each group; per channel one is repeated. */
static inline void put_elements(struct quant_format f, size_t size, char *out, size_t n_in,
                                size_t row0, size_t n_rows, const char *rows,
                                size_t row_stride_bytes)
{
    const size_t n_groups = kern_quant_groups(f, n_in);
    if (f.group == 0) {
        put_channel(size, n_groups, out, row0, n_rows, rows, row_stride_bytes);
        return;
    }
    for (size_t i = 0; i < n_rows; i++) {
        const size_t n = row0 + i;
        char *to = out + (n / PANEL_COLUMNS * n_groups * PANEL_COLUMNS + n % PANEL_COLUMNS) * size;
        for (size_t g = 0; g < n_groups; g++)
            memcpy(to + g * PANEL_COLUMNS * size, rows + i * row_stride_bytes + g * size, size);
    }
}

void packed_quant_put_scales(struct quant_format f, void *scales, size_t n_in, size_t row0,
                             size_t n_rows, const void *rows, size_t row_stride_bytes)
{
    const size_t size = kern_quant_scale_bytes(f);
    if (size > 1 && f.group != 0) /* packed as a matrix of as many inputs as there are groups */
        packed_put_rows(size == 2 ? DTYPE_F16 : DTYPE_F32, scales, kern_quant_groups(f, n_in), row0,
                        n_rows, rows, row_stride_bytes);
    else if (size == 1)
        put_elements(f, 1, scales, n_in, row0, n_rows, rows, row_stride_bytes);
    else if (size == 2)
        put_elements(f, 2, scales, n_in, row0, n_rows, rows, row_stride_bytes);
    else
        put_elements(f, 4, scales, n_in, row0, n_rows, rows, row_stride_bytes);
}

void packed_quant_put_zeros(struct quant_format f, uint8_t *zeros, size_t n_in, size_t row0,
                            size_t n_rows, const uint8_t *rows, size_t row_stride_bytes)
{
    put_elements(f, 1, (char *)zeros, n_in, row0, n_rows, (const char *)rows, row_stride_bytes);
}

float packed_quant_value(const struct packed *w, size_t n, size_t k)
{
    return kern_quant_float(w, n, k);
}

static size_t part_row_bytes(const struct packed *w, enum packed_part part)
{
    if (part == PACKED_CODES) return quant_code_bytes(w->quant.kind, w->n_in);
    return quant_groups(w->quant, w->n_in) *
           (part == PACKED_SCALES ? kern_quant_scale_bytes(w->quant) : 1);
}

void op_pack_quant(const struct kern_table *k, const struct packed *w, enum packed_part part,
                   size_t row0, size_t n_rows, const void *rows, size_t row_stride_bytes)
{
    if (k->device != NULL) {
        const size_t row_bytes = part_row_bytes(w, part);
        cuda_pack(k->device, &(struct cuda_pack_args){.w = w,
                                                      .part = part,
                                                      .row0 = row0,
                                                      .n_rows = n_rows,
                                                      .n_columns = row_bytes,
                                                      .rows = rows,
                                                      .row_bytes = row_bytes,
                                                      .row_stride_bytes = row_stride_bytes});
    } else if (part == PACKED_CODES) {
        packed_quant_put_codes(w->quant, (void *)(uintptr_t)w->data, w->n_in, row0, n_rows, rows,
                               row_stride_bytes);
    } else if (part == PACKED_SCALES) {
        packed_quant_put_scales(w->quant, (void *)(uintptr_t)w->scales, w->n_in, row0, n_rows, rows,
                                row_stride_bytes);
    } else {
        packed_quant_put_zeros(w->quant, (uint8_t *)(uintptr_t)w->zeros, w->n_in, row0, n_rows,
                               rows, row_stride_bytes);
    }
}
