/* Ops of sparse and of compressed attention: an index's choice of positions, blocks or entries, and
 * attention over these. As in ops.h, each op divides its work among the table's team; none runs on
 * a device. */
#ifndef SHOAL_KERNELS_OPS_SPARSE_H
#define SHOAL_KERNELS_OPS_SPARSE_H

#include "kernels/kern.h"

/* Chooses the positions of each row that sees more than a->n_chosen: chosen [T, n_chosen], in which
 * the other rows are not written. scores [n_floats] is working memory, at least for the row that
 * sees the most positions, in whole tiles; op_index works on as many rows at a time as it has room
 * for. */
void op_index(const struct kern_table *k, const struct index_args *a, int32_t *chosen,
              float *scores, size_t n_floats);

/* Blocks instead of positions (MiniMax-M3): each index head h chooses n_blocks blocks of `block`
 * positions, for the queries of KV head h. The score of a block is the largest score_hj of its
 * positions j <= p; a NaN is passed over. The row's own block and the n_local - 1 before it have
 * the score +infinity (n_local 0: none has). The blocks with the largest scores are chosen, of
 * equal scores the first, in ascending order. */
struct block_choice {
    uint32_t n_blocks, block; /* block: a multiple of 64 */
    uint32_t n_local;         /* at most n_blocks */
    int32_t *chosen;          /* [T, H, n_blocks] */
};

/* Chooses the blocks of each row that sees more than n_blocks * block positions, which is
 * a->n_chosen; the other rows of `chosen` are not written. scores: as for op_index, with room for
 * all heads. */
void op_index_blocks(const struct kern_table *k, const struct index_args *a,
                     const struct block_choice *to, float *scores, size_t n_floats);

/* Attention of the queries of each row and KV head over the chosen blocks, as if these were blocks
 * 0, 1, ... of a sequence of their own. A row that sees at most n_blocks * block positions attends
 * to all of them. Reads keys and values where they are in the cache. */
struct block_attention {
    struct attn_args attention; /* window 0 */
    struct block_choice choice; /* of op_index_blocks, with H = G */
    int32_t *tables;            /* work [T, G, n_blocks * block / 64] */
    struct seq_rows *rows;      /* work [T * G] */
};
void op_block_attention(const struct kern_table *k, const struct block_attention *a);

/* Attention of each row over its chosen positions, as if these were the positions 0, 1, ... of a
 * sequence of their own: its tiles are 64 chosen positions. A row that sees at most n_chosen
 * positions attends to all of them. */
struct sparse_args {
    struct attn_args attention; /* window 0 */
    const int32_t *chosen;      /* [T, n_chosen] of op_index */
    uint32_t n_chosen;
    /* work: the chosen keys and values of n_gather rows at a time, as blocks of a cache in the
     * type of attention.kv; n_gather * sparse_gather_bytes bytes */
    void *gathered;
    size_t n_gather;
    int32_t *blocks;       /* work [n_gather, tiles of n_chosen] */
    struct seq_rows *rows; /* work [T] */
};
void op_sparse_attention(const struct kern_table *k, const struct sparse_args *a);

/* Local. Returns the bytes of `gathered` for one row. */
size_t sparse_gather_bytes(const struct kv_view *kv, uint32_t n_chosen);

/* Compressed entries (DeepSeek-V4, 2026, section 2.3) in the cache of a layer, beside the keys of
 * its blocks. Entry w stands for the positions [w rate, (w + 1) rate) and lies in the block of its
 * last position, at place w % n of the block's n = max(64 / rate, 1) places. After the keys a block
 * has entries [n, head_dim], then their index keys [n, index_dim], and for i8 the scales [n] of
 * both, all in the cache's type. */
struct entry_view {
    struct kv_view kv;        /* the layer's keys; latent, G = 1 */
    uint32_t rate, index_dim; /* index_dim 0: the entries have no index keys */
};

/* Makes the entries of rows, or their index keys. Each row has values v and logits z of `parts`
 * times dim channels. With two parts the first ones count for the entry after the row's own, the
 * last ones for its own. For each channel, over the rows of the entry before (first parts) and then
 * of its own (last parts), ascending:
 *   x = z + bias of the position in its entry
 *   M' = M > x ? M : x, a = exp(M - M'), b = exp(x - M'), L' = fma(L, a, b),
 *   S' = fma(S, a, b * v), from -infinity, 0 and 0
 * entry = rmsnorm(S / L, norm), of which the last `rot` elements rotate as op_rope_ends rotates a
 * row at position w rate. M, L and S of unfinished entries are the sequence's state. */
struct pool_args {
    float *v;            /* [T, parts * dim]; undefined afterwards */
    const float *z;      /* [T, parts * dim] */
    const float *bias;   /* [rate, parts * dim] */
    const float *norm;   /* [dim] */
    uint32_t parts, dim; /* 1 or 2 */
    float eps;
    const float *inv_freq; /* [rot / 2] */
    uint32_t rot;
    float rope_scale; /* multiplies cos and sin */
    float *states;    /* [slots] of pool_state_floats, state_stride apart */
    size_t state_stride;
    struct entry_view to;
    bool is_index;               /* makes index keys */
    const struct seq_rows *seqs; /* [n_seqs], covering all T rows */
    size_t n_seqs, n_rows;
};
/* Runs struct pool_args. */
void op_pool(const struct kern_table *k, const struct pool_args *a);

/* Local. Returns the number of floats of a sequence's state. */
static inline size_t pool_state_floats(uint32_t parts, uint32_t dim)
{
    return 3 * (size_t)parts * dim;
}

/* Copies the index keys of a sequence's first n entries to whole blocks of a cache of their own,
 * for op_index. */
void op_entry_keys(const struct kern_table *k, const struct entry_view *from,
                   const struct seq_rows *seq, size_t n, const struct kv_view *to);

/* Attention of each row over a window of its last positions and over entries, as if these were the
 * positions 0, 1, ... of a sequence of their own, the window first, both ascending. A row at
 * position p sees the entries [0, (p + 1) / rate); if these are more than n_chosen, only the chosen
 * ones. */
struct entry_attention {
    struct attn_args attention; /* window at least 1; kv: the window's keys */
    struct entry_view entries;
    const int32_t *chosen; /* [T, n_chosen] of op_index; NULL: all entries */
    uint32_t n_chosen;
    /* work: the keys and entries of n_gather rows at a time, in blocks of the cache's type, n_tiles
     * of them for each row; n_gather * n_tiles * kv_half_bytes bytes */
    void *gathered;
    size_t n_gather, n_tiles;
    int32_t *blocks;       /* work [n_gather, n_tiles] */
    struct seq_rows *rows; /* work [T] */
};
void op_entry_attention(const struct kern_table *k, const struct entry_attention *a);

#endif
