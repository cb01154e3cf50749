/* Converts fp8 weights of a K-slice to floats in scratch memory, for many rows; for few rows see
 * linear_fp8_few.h. The instruction set's fp8.h converts 64 bytes of a panel (packed tile), which
 * are four inputs of sixteen outputs. Included by linear_piece.h only. */
#ifndef SHOAL_KERNELS_LINEAR_FP8_H
#define SHOAL_KERNELS_LINEAR_FP8_H

#include "kernels/quant_body.h"

enum {
    FP8_LINE = QUANT_QUAD * PANEL_COLUMNS, /* bytes of four inputs of a panel: a cache line */
    FP8_SCALES_AHEAD = 4 * FP8_LINE,       /* prefetch distance of a panel's scales */
    FP8_PIECE_SCALES = MANY_PANELS * (PIECE / QUANT_CODE_ALIGN + 1), /* most scales of a K-slice */
};

/* w[j] = input j of sixteen outputs of a panel times their scale, rounded once. `scale` is
 * enlarged (fp8_enlarged); with `large` it is as stored. */
ALWAYS_INLINE void fp8_quad(struct fp8_codes c, struct v16 scale, fp8_large large, struct v16 *w)
{
    if (__builtin_expect(fp8_is_rare(c, large), 0)) {
        fp8_any(c, scale, large, w);
        return;
    }
    fp8_floats v[FP8_VECTORS][QUANT_QUAD];
    fp8_usual(c, 0, scale, v[0]); /* in a loop, v would be in memory */
    if (FP8_VECTORS > 1) fp8_usual(c, FP8_VECTORS - 1, scale, v[FP8_VECTORS - 1]);
    UNROLL(4)
    for (size_t j = 0; j < QUANT_QUAD; j++) w[j] = fp8_joined(v, j);
}

/* The scales of a K-slice, and the place in them that its conversion has reached. */
struct fp8_piece {
    size_t group, left;    /* inputs of a group; inputs left in the current group */
    const struct v16 *now; /* [n_panels] scales of the current group */
    fp8_large large;
    struct v16 scales[FP8_PIECE_SCALES]; /* [group][n_panels], enlarged unless `large` */
};

/* to[p] = the scales of a group of inputs in panels panel + p * apart. Returns nonzero if any of
 * them is too large to be enlarged. */
ALWAYS_INLINE fp8_large fp8_load_scales(const struct packed *w, size_t panel, size_t apart,
                                        size_t n_panels, size_t group, struct v16 *to)
{
    const size_t scale_bytes = kern_quant_scale_bytes(w->quant);
    fp8_large large = 0;
    UNROLL(4)
    for (size_t p = 0; p < n_panels; p++) {
        const size_t at = kern_quant_scale_index(w, (panel + p * apart) * PANEL_COLUMNS, group);
        to[p] = fp8_scales(w->quant, w->scales, at, &large);
        _mm_prefetch((const char *)w->scales + at * scale_bytes + FP8_SCALES_AHEAD, _MM_HINT_T0);
    }
    return large;
}

/* Prepares the scales of inputs [k, k + n_k) of n_panels neighbouring panels. */
ALWAYS_INLINE void fp8_piece_begin(const struct packed *w, size_t panel, size_t n_panels, size_t k,
                                   size_t n_k, struct fp8_piece *f)
{
    const size_t group = quant_kernel_group(w->quant), first = k / group;
    const size_t n_groups = n_k == 0 ? 0 : (k + n_k - 1) / group - first + 1;
    f->group = group;
    f->left = group - k % group;
    f->now = f->scales;
    f->large = 0;
    for (size_t g = 0; g < n_groups; g++)
        f->large |= fp8_load_scales(w, panel, 1, n_panels, first + g, f->scales + g * n_panels);
    for (size_t i = 0; f->large == 0 && i < n_groups * n_panels; i++)
        f->scales[i] = fp8_enlarged(f->scales[i]);
}

/* to[n][n_panels][16] = the next n inputs of panels that are panel_bytes apart; n is a multiple of
 * 4. */
ALWAYS_INLINE void fp8_convert(size_t n_panels, size_t n, const uint8_t *codes, size_t panel_bytes,
                               struct fp8_piece *f, float *to)
{
    const size_t stride = n_panels * PANEL_COLUMNS;
    const fp8_large large = f->large; /* in a register: stores to `to` could change f */
    for (size_t k = 0; k < n; k += QUANT_QUAD, codes += FP8_LINE, to += QUANT_QUAD * stride) {
        UNROLL(4)
        for (size_t p = 0; p < n_panels; p++) {
            struct v16 w[QUANT_QUAD];
            fp8_quad(fp8_load(codes + p * panel_bytes), f->now[p], large, w);
            UNROLL(4)
            for (size_t j = 0; j < QUANT_QUAD; j++)
                v16_store_aligned(to + j * stride + p * PANEL_COLUMNS, w[j]);
        }
        f->left -= QUANT_QUAD;
        if (f->left > 0) continue;
        f->left = f->group;
        f->now += n_panels;
    }
}

#endif
