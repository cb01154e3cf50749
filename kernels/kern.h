/* The table of kernels and the contract of each op: the exact expression that every instruction
 * set computes, bit for bit (a device with DEVICE_EXACT too). Kernels know pointers, shapes and
 * formats. They never allocate, never communicate and never read the environment. Callers use the
 * threaded ops of kernels/ops.h.
 *
 * An entry of the table works on a slice. The bits of an output never depend on the slice, so
 * ops.c may divide the work among threads in any way. Instruction sets agree in every bit except
 * the sign and payload of a NaN, and a NaN makes its row an error row. kernels/select.c fills the
 * table with the complete reference (kernels/ref) and then replaces entries with kernels for this
 * CPU. */
#ifndef SHOAL_KERN_H
#define SHOAL_KERN_H

#include "base/status.h"
#include "base/team.h"
#include "tensor/dims.h"
#include "tensor/dtype.h"
#include "tensor/gate_kind.h"
#include "tensor/quant_format.h"
#include "tensor/router_rule.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A weight matrix [N, K] (N outputs, K inputs) packed for the kernels, in panels (packed tiles) of
 * PANEL_COLUMNS = 16 outputs:
 *     element (n, k) is at data[(n / 16 * K + k) * 16 + n % 16]
 *
 *     panel 0                          panel 1
 *     k=0: n0 n1 ... n15               k=0: n16 n17 ... n31
 *     k=1: n0 n1 ... n15               k=1: n16 n17 ... n31
 *     ...
 * Outputs beyond N in the last panel are zeros. A row-parallel shard holds whole leaves (K-blocks),
 * from the start of a leaf on, so leaf i covers local inputs [i * leaf, (i + 1) * leaf), up to K.
 *
 * A quantized weight (quant.kind is not QUANT_NONE) has panels of 16 outputs too. K is padded to a
 * multiple of the kernel group G. The padding may hold anything, because the activations' codes
 * there are zero; but a NaN in the padding of fp8 would make its tile slow:
 *     int8, fp8:    data[panel][K / 4][16][4]      input k = 4i + j of output c at [i][c][j];
 *                   int8 without zeros holds code + 128, so that all int8 codes are u8
 *     int4, mxfp4:  data[panel][K / 8][16][4]      the low nibble is input 8i + j, the high one
 *                   input 8i + 4 + j
 *     scales[panel][K / G][16]  in quant.scale_dtype (mxfp4: u8 E8M0)
 *     zeros[panel][K / G][16]   u8, with zeros
 * G = quant_kernel_group; a per-channel scale is repeated for each group. */
struct packed {
    enum dtype dtype;          /* of the elements; meaningless when quantized */
    uint32_t n_out;            /* N */
    uint32_t n_in;             /* K */
    uint32_t leaf;             /* inputs of one leaf; 0: column-parallel, no leaves */
    uint32_t grid_bits;        /* g of the integer grid 2^-g (with leaves) */
    const void *data;          /* borrowed, 64-byte aligned, as are scales and zeros */
    struct quant_format quant; /* QUANT_NONE: elements of dtype */
    const void *scales;        /* quantized only */
    const uint8_t *zeros;      /* quantized with zeros only */
    uint32_t flat;  /* 0: panels; else row-major for a device's library (op_place_weight), `flat`
                       elements from output to output, with memory for N rounded up to a multiple of
                       PACKED_FLAT_OUTPUTS; the values of the added outputs do not matter */
    bool fp8_plain; /* fp8: kernels need not look for NaN and subnormal values (fp8_plain.h) */
};

enum { PACKED_FLAT_OUTPUTS = 8 };

/* The arrays that a quantized weight consists of. */
enum packed_part { PACKED_CODES, PACKED_SCALES, PACKED_ZEROS };

/* Rows [row0, row0 + n) of a row-major matrix in host memory: row row0 + i begins at
 * data + i * stride_bytes. */
struct matrix_rows {
    const void *data; /* borrowed */
    size_t stride_bytes, row0, n;
};

/* Rows of activations as int8 codes (quantized values), one scale for each kernel group of the
 * weights that they are multiplied with. For each row and group of G inputs (the last group may be
 * shorter), with m = max |x|:
 *
 *     scale = m / 127, code = rne(x * (127 / m)) in [-127, 127]
 *     if m < 2^-120, where 127 / m may overflow: scale +0 and codes 0
 *     if m is not finite, or an x is NaN: scale NaN and codes 0, which makes an error row
 *     sum = the sum of the group's codes */
struct quant_rows {
    uint32_t group;  /* G */
    size_t n_groups; /* ceil(K / G) */
    int8_t *codes;   /* [rows, n_groups * G], padded with zeros */
    float *scales;   /* [rows, n_groups] */
    int32_t *sums;   /* [rows, n_groups] */
};

/* One weight and the consecutive rows that it multiplies. A dense linear has one group; an expert
 * linear has one group for each expert of the rank. */
struct linear_group {
    const struct packed *w;
    size_t row0, n_rows;
};

/* A linear with float weights:
 * y[row][n] = fma chain over k ascending from +0 of x[row][k] * w[n][k]          (no leaves)
 * With leaves, each leaf has its own chain from +0, and its f32 partial sum p goes to the grid:
 *     llrint(p * 2^g); a leaf with !(|p| < 2^(51-g)) counts as 0 and adds 1 to the row's counter.
 *     sums[row][n] = the integer sum over the local leaves.
 * With leaves and sums NULL, for one group only: y[row][n] = (float)((double)sum * 2^-g), or with
 * `adds` (devices only) y[row][n] += that value. The row's counter is added to bad[row].
 * All groups have the same N and K.
 *
 * With quantized weights of an integer kind (int8, int4, mxfp4) and xq given:
 *     acc = fma((float)isum, sw * sx, acc), groups ascending, from +0 (again in each leaf), where
 *     isum = the exact integer sum over the group of (code - zero) * activation code, sw is the
 *     group's weight scale in f32 and sx its activation scale; a leaf is whole groups.
 *     mxfp4: isum of doubled codes, sw = 2^(e - 128).
 * With quantized weights and xq NULL (weight-only), and always for fp8 (unless fp8_int8.h has made
 * it int8): the float linear over
 *     w = (float)(code - zero) * sw, rounded once; for fp8 and mxfp4 (float)value * sw.
 *
 * On tensor cores, a device of DEVICE_LAW or DEVICE_FREE multiplies f16 and bf16 weights, and
 * quantized ones with float activations, unless `exact` is set; weights in panels also need leaves
 * that are multiples of 32 and a K up to 2^18. x is rounded to the weight's type (for quantized
 * weights: to bf16). For quantized weights, chain = fma(sum over the group, sw, chain). With S =
 * the sum of |x w| over the K inputs (of a leaf) of rounded x, an output differs from the exact sum
 * of x w by at most (K + 8) * 2^-23 * S; its bits never depend on other rows or outputs. */
struct linear_args {
    const struct linear_group *groups;
    size_t n_groups;
    const float *x; /* [rows, x_stride], x_stride >= K */
    size_t x_stride;
    const struct quant_rows *xq; /* x as codes, x is not read; NULL: floats */
    float *y;                    /* [rows, y_stride], y_stride >= N; written unless sums are */
    size_t y_stride;
    size_t y_row, y_panel; /* kernels without leaves: the row and panel with which y begins */
    int64_t *sums; /* [rows, N + 1]; written with leaves; [N] is the row's counter, which the
                      kernel adds to atomically (the op zeroes it first) */
    int32_t *bad;  /* [rows] counters, with leaves and sums NULL */
    bool adds;     /* with leaves and sums NULL, devices only: y += the values */
    bool exact;    /* float weights: every device keeps the order above; for router logits */
};

/* A slice of a linear: the outputs of panels [panel0, panel1) for rows [row0, row1) of a group,
 * counted from the group's first row. */
struct linear_slice {
    size_t group, panel0, panel1, row0, row1;
};

/* Computes a slice's outputs. */
typedef void linear_slice_fn(const struct linear_args *a, const struct linear_slice *s);

/* The cache of a layer's keys and values. K (what = 0) or V (1) of (block b, kv head g) begins at
 *     base + ((b * 2 + what) * G + g) * (kv_half_bytes + beside_bytes)      (in bytes)
 * and has [KV_BLOCK_TOKENS][Hd] elements. By type:
 *     f32, f16, bf16: rounded to nearest even
 *     i8:      codes, and after them [KV_BLOCK_TOKENS] scales in f32, one for each token and head,
 *              both as struct quant_rows with a group of Hd; an element is (float)code * scale,
 *              rounded once
 *     f8_e4m3: rounded to nearest even; magnitudes above 448 become 448; infinities become NaN */
struct kv_view {
    void *base; /* borrowed; the blocks of this layer */
    enum dtype dtype;
    uint32_t n_kv_heads; /* G: the kv heads of this rank */
    uint32_t head_dim;   /* Hd */
    bool latent; /* V is K and is stored once: b * G + g instead of (b * 2 + what) * G + g */
    uint32_t beside_bytes; /* bytes of another view between K or V of one (b, g) and the next */
};

/* Returns the bytes of one block's keys, or values, of one kv head. */
DEVICE_INLINE size_t kv_half_bytes(enum dtype t, uint32_t head_dim)
{
    const size_t scale_bytes = t == DTYPE_I8 ? sizeof(float) : 0;
    const size_t elem_bytes = t == DTYPE_F32 ? 4 : t == DTYPE_F16 || t == DTYPE_BF16 ? 2 : 1;
    return KV_BLOCK_TOKENS * (head_dim * elem_bytes + scale_bytes);
}

/* The rows of one sequence in a step: n_rows consecutive rows from row0, at absolute positions
 * pos0, pos0 + 1, ...; position p lives in block blocks[p / 64], slot p % 64. */
struct seq_rows {
    size_t row0, n_rows, pos0;
    const int32_t *blocks; /* borrowed, ceil((pos0 + n_rows) / 64) entries */
    uint32_t slot;         /* of its recurrent states; a row at position 0 ignores the slot's
                              content and starts from the initial states */
};

/* Consecutive rows of one value head of a recurrent layer, for n columns of the head's state S
 * [key_dim, columns]. Rows ascend; each has q, k [key_dim], v [columns], a decay and a beta. A
 * column reads no other column, and a state depends only on the rows before it. So rows may be
 * divided among successive calls, and columns among tiles, in any way. For each row and column j,
 * the gated delta rule (Yang et al., 2024, arXiv 2412.06464) computes
 *   m_j  = decay * (fma chain over i ascending from +0 of k_i * S_ij)
 *   d_j  = (v_j - m_j) * beta
 *   S_ij = fma(k_i, d_j, decay * S_ij)
 *   o_j  = fma chain over i ascending from +0 of q_i * S_ij
 * With a decay for each channel (by_channel; Kimi Delta Attention, Kimi Team, 2025, arXiv
 * 2510.26692) d_j and o_j are the same, and
 *   m_j  = fma chain over i ascending from +0 of (k_i * decay_i) * S_ij
 *   S_ij = fma(k_i, d_j, decay_i * S_ij)
 * A decay is from 0 to 1 and is applied row by row. Forms that compute many rows together divide by
 * products of decays, which overflows where a channel forgets quickly; no step here overflows.
 * The Mamba-2 scan (state space duality; Dao and Gu, 2024, arXiv 2405.21060), where q is C, k is B,
 * v is x and beta is the discretised dt, computes
 *   d_j   = v_j * beta
 *   S_ij  = fma(k_i, d_j, decay * S_ij)
 *   out_j = fma(skip, v_j, fma chain over i ascending from +0 of q_i * S_ij) */
struct state_run {
    const float *q, *k; /* [n_rows] of key_dim, key_stride apart */
    const float *v;     /* [n_rows] of n, value_stride apart */
    const float *decay; /* [n_rows], gate_stride apart; by_channel: [n_rows] of key_dim */
    const float *beta;  /* [n_rows], gate_stride apart */
    float *out;         /* [n_rows] of n, out_stride apart */
    float *state;       /* [key_dim] of n, state_stride apart; changed in place */
    size_t n_rows, n, key_dim;
    size_t key_stride, value_stride, gate_stride, out_stride, state_stride;
    float skip;      /* D of the head; read by the scan only */
    bool by_channel; /* delta rule: a decay for each element of the key */
};

/* The running sums of a softmax for each of some channels (online softmax; Milakov and Gimelshein,
 * 2018, arXiv 1805.02867): the largest logit, the sum of exponentials, and the sum of values times
 * these; before the first row -infinity, 0 and 0. */
struct pool_sums {
    float *m, *l, *s;
};

/* Causal attention over the cache (the rows' own K and V are already written there). For each row
 * at position p and head h with kv head g = kv_of_head[h]:
 *   tile t covers positions [64t, 64t + 64), clipped to the visible ones, [lo, hi] with
 *       lo = window > 0 && p >= window ? p - window + 1 : 0
 *       or, with chunks of C = window - KERN_CHUNKS positions, the last multiple of C up to p
 *       hi = p; with `ahead` the position of its sequence's last row, but if window > 0 at most
 *       p + window - 1
 *   s_j = dot(q, k_j) * scale         dot: 16 lanes (lane i: fma chain over d = i mod 16,
 *                                     ascending, from +0), tree 8-4-2-1; Hd is a multiple of 16
 *   with a softcap c: s_j = c * tanh(s_j / c)
 *   m = max s_j; e_j = exp(s_j - m); l: 16 lanes (lane i: plain adds over j - 64t = i mod 16,
 *       ascending, from +0), tree; o_d = fma chain over j ascending of e_j * v_jd, from +0
 *   fold, from the first visible tile on: M' = max(M, m), a = exp(M - M'), b = exp(m - M'),
 *       L' = fma(l, b, L * a), O'_d = fma(o_d, b, O_d * a); the first tile is taken as it is
 *   out_d = O_d / L; if the head has a sink, O_d / (L + exp(sink - M))
 * Invisible positions are never read. */
#define KERN_CHUNKS 0x80000000u
struct attn_args {
    const float *q; /* [T, H, Hd] */
    float *out;     /* [T, H, Hd] */
    struct kv_view kv;
    const uint8_t *kv_of_head; /* [H] local kv head of each local head */
    uint32_t n_heads;          /* H: the query heads of this rank */
    float scale;
    const float *sinks; /* [H] scores that add to the sum but have no value vector; NULL: none */
    uint32_t window;    /* 0: all positions; KERN_CHUNKS + C: those of the row's chunk of C;
                           otherwise the last `window` */
    float softcap;      /* 0: none */
    bool ahead;         /* rows also see the later rows of their sequence, which are all here; no
                           chunks. Not on a device */
    const struct seq_rows *seqs; /* [S] */
    size_t n_seqs;
    float *parts; /* results of tiles that several threads compute for one row and kv head; NULL:
                     one thread computes all of them */
    size_t n_part_floats;
};

/* The part of attention that one call computes: rows [row0, row1) of a sequence, counted from its
 * first row, and heads [head0, head1) of one kv head. With `parts` it is a single row and only its
 * tiles [tile0, tile1), each with a position that it sees. Each tile t writes o [Hd], m and l to
 *     parts + ((t - tile0) * H + head) * kern_part_floats(Hd)
 * With n_shared, row i is the only row of sequence seq + i instead. Each of these rows lies past
 * its first n_shared tiles, and their block tables begin with the same n_shared blocks, which can
 * be read once for all rows (Hydragen, arXiv 2402.05099); there is no window and no `parts`. */
struct attn_slice {
    size_t seq, head0, head1, row0, row1;
    size_t n_shared; /* 0: the rows are those of one sequence */
    float *parts;    /* 64-byte aligned */
    size_t tile0, tile1;
    float *states; /* [H, 2] of the row: M and L, kept between calls of attention_fold */
};

/* The index of sparse attention (DeepSeek-V3.2-Exp, 2025, section 2.1): the positions that a row
 * attends to. A row has H index queries with a weight each, and a position has one index key, in a
 * cache with one kv head. For a row at position p:
 *   d_h = dot(q_h, k_j) * scale      dot as in struct attn_args
 *   score_j = fma chain over h ascending from +0 of weight_h * (d_h > 0 ? d_h : 0), for j <= p
 * The row's positions are the n_chosen ones with the largest scores, of equal scores those with the
 * smallest positions, in ascending order; -0 equals +0, and a NaN is smaller than all others. A row
 * that sees at most n_chosen positions attends to all of them and needs no scores.
 * Without weights (MiniMax-M3) each head chooses blocks of positions for itself: score_hj = d_h
 * (struct block_choice in ops_sparse.h). */
struct index_args {
    const float *q;       /* [T, H, Hd] */
    const float *weights; /* [T, H]; NULL: each head has scores of its own */
    struct kv_view keys;  /* latent, G = 1 */
    uint32_t n_heads;     /* H */
    float scale;
    uint32_t n_chosen;
    const struct seq_rows *seqs; /* [S] */
    size_t n_seqs;
};

/* Row `row` of a sequence, counted from its first row, and tiles [tile0, tile1) of 64 positions
 * that it sees. Its scores go to scores[j] for each position j of the tiles; those of positions
 * that the row does not see are undefined. */
struct index_slice {
    size_t seq, row, tile0, tile1;
    float *scores; /* whole tiles, from position 0 on; without weights those of head h begin at
                      scores + h * stride */
    size_t stride;
};

/* Rows that are added with weights on the grid of step 2^-g, such as the outputs of a token's
 * experts. With v = (double)weights[r] * (double)rows[r][i], which is exact:
 *     sum_i = the integer sum over r of llrint(v * 2^g); a v with !(|v| < 2^(51-g)) counts as 0
 *     y_i   = (float)((double)sum_i * 2^-g) */
struct weighted_rows {
    const float *const *rows; /* [n_rows], n floats each */
    const float *weights;     /* [n_rows] */
    size_t n_rows, n;
    uint32_t grid_bits; /* g */
};

struct router_args {
    const float *logits; /* [T, E] */
    int32_t *ids;        /* [T, K] ascending in each row */
    float *weights;      /* [T, K] */
    uint32_t n_experts, n_chosen;
    struct router_rule rule;
    const float *bias; /* [E], added to the keys, not to the weights, of ROUTER_SIGMOID,
                          ROUTER_BIASED, the .._RENORM of both and ROUTER_ROOT_RENORM; NULL: none */
    /* [T, K] in host memory: the experts of each row, in any order, instead of those with the
     * largest keys; NULL: none. Not with ROUTER_MIXER, not on a device */
    const int32_t *given;
};

/* How packing changes words of four bytes: not at all; by adding the bias to int8 codes; or by
 * moving eight nibbles from the checkpoint's order (even input in the low nibble) to the panel's.
 */
enum pack_words_kind { PACK_WORDS_PLAIN, PACK_WORDS_SIGNED, PACK_WORDS_NIBBLES };

/* One instruction set's kernels. After kern_select no entry is NULL, except those of types that an
 * op does not have. */
struct kern_table {
    const char *name;      /* "ref", "avx2", "avx512", "amx" */
    struct device *device; /* the device that runs the ops of ops.h; NULL: the CPU, with the
                              entries below */

    /* The threads of the ops; borrowed. NULL, as kern_select leaves it: only the calling thread. */
    struct team *team;

    /* Linears with float weights, without leaves and with them. Indexed by the weight's dtype. */
    linear_slice_fn *linear[DTYPE_COUNT];
    linear_slice_fn *linear_leaf[DTYPE_COUNT];

    /* Linears with quantized weights, without leaves and with them, indexed by quant.kind; xq
     * chooses the arithmetic (struct linear_args). The entry of QUANT_NONE is never called. */
    linear_slice_fn *linear_quant[QUANT_KIND_COUNT];
    linear_slice_fn *linear_quant_leaf[QUANT_KIND_COUNT];

    /* Quantizes row `row` of x, which has n inputs, to int8 codes (struct quant_rows). */
    void (*quantize_row)(const float *x, size_t n, const struct quant_rows *out, size_t row);

    /* grid_to_f32: y[i] = v_i with v_i = (float)((double)sums[i] * 2^-g). grid_add: h[i] = h[i] +
     * v_i. n elements. */
    void (*grid_to_f32)(const int64_t *sums, size_t n, uint32_t grid_bits, float *y);
    void (*grid_add)(const int64_t *sums, size_t n, uint32_t grid_bits, float *h);

    /* Computes the sum of struct weighted_rows, as floats, or adds it to `sums` [n]. Returns the
     * number of values that were too large or NaN. */
    int64_t (*weighted_to_f32)(const struct weighted_rows *a, float *y);
    int64_t (*weighted_add)(const struct weighted_rows *a, int64_t *sums);

    /* One run of n values. Lane i: fma chain of x_d * x_d over d = i mod 16 ascending from +0; tree
     * 8-4-2-1. */
    float (*square_sum)(const float *x, size_t n);

    /* One row. Lane i: fma chain of x_d * x_d over d = i mod 16 ascending from +0; tree 8-4-2-1; r
     * = 1 / sqrt(sum / (float)n + eps); y_d = (x_d * r) * w_d. y may be x. */
    void (*rmsnorm)(const float *x, const float *w, size_t n, float eps, float *y);

    /* One row: mean = (sum of x in 16 lanes, plain adds over d = i mod 16 ascending from +0, tree
     * 8-4-2-1) / (float)n; c_d = x_d - mean; r = 1 / sqrt(square_sum(c) / (float)n + eps);
     * y_d = fma(c_d * r, w_d, b_d). y may be x. */
    void (*layernorm)(const float *x, const float *w, const float *b, size_t n, float eps,
                      float *y);

    /* One head, rotate-half, in place: for i < rot/2, with c = cos[i], s = sin[i], a = x[i],
     * b = x[i + rot/2]:  x[i] = fma(-b, s, a * c),  x[i + rot/2] = fma(a, s, b * c). */
    void (*rope)(float *x, const float *cos, const float *sin, size_t rot);

    /* Converts the n = Hd values of one token and kv head to elements of the cache (struct
     * kv_view). For i8 also writes *scale. Entries of types that no cache has are NULL. */
    void (*kv_store[DTYPE_STORED_COUNT])(const float *x, size_t n, void *out, float *scale);

    /* Computes a slice: the outputs of its rows or, with parts, the results of its tiles. Indexed
     * by the element type of the cache. */
    void (*attention[DTYPE_STORED_COUNT])(const struct attn_args *a, const struct attn_slice *s);

    /* Folds the results of the slice's tiles, in their order, into the outputs of the row for the
     * slice's heads. After the row's last tile it divides. Calls must come in the order of the
     * tiles. */
    void (*attention_fold)(const struct attn_args *a, const struct attn_slice *s);

    /* Computes the scores of a slice of struct index_args. Indexed by the element type of the
     * cache. */
    void (*index_scores[DTYPE_STORED_COUNT])(const struct index_args *a,
                                             const struct index_slice *s);

    /* to [n_chosen] = the positions in [0, n) that struct index_args chooses by their scores [n];
     * n_chosen <= n. */
    void (*index_choose)(const float *scores, size_t n, uint32_t n_chosen, int32_t *to);

    /* y_i = (g_i / (1 + exp(-g_i))) * u_i */
    void (*swiglu)(const float *gate, const float *up, size_t n, float *y);

    /* y_i = (g_i / (1 + exp(v_i * -2 sqrt(2 / pi)))) * u_i with v_i = fma(g_i * g_i * g_i,
     * 0.044715, g_i): GELU in its tanh form, times u_i */
    void (*geglu)(const float *gate, const float *up, size_t n, float *y);

    /* x_i = cap * tanh(x_i / cap), in place; tanh as in el_tanh_body */
    void (*softcap)(float *x, size_t n, float cap);

    /* x_i = xIELU(x_i), in place (el_xielu_body) */
    void (*xielu)(float *x, size_t n, const float law[4]);

    /* x_i = GELU(x_i), in place (el_gelu_body) */
    void (*gelu)(float *x, size_t n);

    /* SwiGLU as gpt-oss has it, of clamped inputs g_i = min(g_i, limit), u_i = min(max(u_i,
     * -limit), limit): y_i = (g_i / (1 + exp(-(alpha * g_i)))) * (u_i + 1); NaN stays NaN */
    void (*swiglu_clamped)(const float *gate, const float *up, size_t n, float alpha, float limit,
                           float *y);

    /* x_i = x_i * (1 / (1 + exp(-g_i))) */
    void (*sigmoid_mul)(const float *gate, size_t n, float *x);

    /* One row of a causal convolution, each channel by itself, followed by SiLU. x [n_taps] are
     * the rows that it reads, the oldest first:
     * acc_c = fma chain over j ascending from +0 of x[j][c] * w[j * w_stride + c];
     * y_c = acc_c / (1 + exp(-acc_c)) */
    void (*conv_silu)(const float *const *x, size_t n_taps, const float *w, size_t w_stride,
                      size_t n, float *y);

    /* Compute the rows of a run (struct state_run). */
    void (*delta_rule)(const struct state_run *r);
    void (*scan)(const struct state_run *r);

    /* Adds one row to the sums of n channels. With x = z_i + bias_i, m' = m_i > x ? m_i : x, a =
     * exp(m_i - m'), b = exp(x - m'):
     * l_i = fma(l_i, a, b); s_i = fma(s_i, a, b * v_i); m_i = m' */
    void (*pool_add)(const struct pool_sums *p, const float *z, const float *bias, const float *v,
                     size_t n);

    /* h_i = h_i + x_i */
    void (*add)(float *h, const float *x, size_t n);

    /* acc_i = fma(w, y_i, acc_i) */
    void (*axpy)(float w, const float *y, size_t n, float *acc);

    /* Chooses the experts of one row and sets their weights. */
    void (*router)(const struct router_args *a, size_t row);

    /* mass_i = (u64)floor(exp(((l_i + 0) - max) * inv_t) * 2^32), exact as an integer, or 0 if
     * the exp is NaN or above 1 (l_i above max). Returns the sum over i. mass may be NULL: then
     * only the sum is computed. */
    uint64_t (*mass)(const float *logits, size_t n, float max, float inv_t, uint64_t *mass);

    /* Returns the maximum over i of key(l_i + 0, id0 + i) = (ordered bits << 32) | ~id: of the
     * largest logits the one with the smallest id. *n_bad counts the logits that are NaN or
     * infinite. */
    uint64_t (*argmax)(const float *logits, size_t n, uint32_t id0, uint64_t *n_bad);

    /* Interleaves the 16 rows of a panel, which are row_stride_bytes apart: element i of row c goes
     * to panel[i][c]. pack_halves takes n elements of two bytes from each row, pack_words n words
     * of four bytes, which it changes by their kind. */
    void (*pack_halves)(const void *rows, size_t row_stride_bytes, size_t n, void *panel);
    void (*pack_words)(enum pack_words_kind kind, const void *rows, size_t row_stride_bytes,
                       size_t n, void *panel);
};

/* Runs the kernel of a gate that has an up projection: y = activation(gate) * up. y may be gate. */
static inline void kern_gate(const struct kern_table *k, enum gate_kind kind, const float *gate,
                             const float *up, size_t n, float *y)
{
    switch (kind) {
    case GATE_SWIGLU:
        k->swiglu(gate, up, n, y);
        break;
    case GATE_GEGLU:
        k->geglu(gate, up, n, y);
        break;
    case GATE_GEGLU_EXACT:
        for (size_t i = 0; y != gate && i < n; i++) y[i] = gate[i];
        k->gelu(y, n);
        for (size_t i = 0; i < n; i++) y[i] *= up[i];
        break;
    case GATE_RELU2:
    case GATE_GELU:
        assert(!"a gate with an up projection");
    }
}

/* Maps a float to a u32 of the same order (negative below positive), and back. */
DEVICE_INLINE uint32_t kern_ordered_bits(float x)
{
    const uint32_t u = f32_bits(x);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

DEVICE_INLINE float kern_from_ordered_bits(uint32_t o)
{
    return f32_from_bits(o & 0x80000000u ? o & 0x7FFFFFFFu : ~o);
}

/* Local. Fills the table for this CPU; force = "ref", "avx2", "avx512", "amx", or NULL for the
 * best set. Called once at start; the table is const afterwards. Runs the known-answer check
 * (kernels/kat.h). Errors: STATUS_USAGE when `force` is unknown, not supported by this CPU, not
 * allowed by the system or hidden by SHOAL_CPU (kernels/cpu.h), or when SHOAL_CPU names no set;
 * STATUS_BUG when an answer is wrong. */
struct status kern_select(const char *force, struct kern_table *out);

/* Local. Fills a table with the reference. */
void kern_fill_ref(struct kern_table *t);

/* Local. Replace entries of a filled table by kernels for AVX2, FMA and F16C; by these and kernels
 * for AVX-512 with VNNI; by these and kernels for AMX. */
void kern_fill_avx2(struct kern_table *t);
void kern_fill_avx512(struct kern_table *t);
void kern_fill_amx(struct kern_table *t);

#endif
