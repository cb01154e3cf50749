/* The dimension letters that every header, comment and shape in shoal uses, defined once.
 *
 *   T   tokens (rows) of a step            S   sequences of a step
 *   D   model width (hidden size)          H   query heads        G   key/value heads
 *   Hd  head dimension                     F   FFN width (of one expert if there are experts)
 *   E   experts                            K   experts chosen per token
 *   V   vocabulary                         B   tokens in a KV block
 *   L   layers                             N   outputs of a linear, and K its inputs
 *
 * Arrays are row-major, the last dimension contiguous. Sizes end in _bytes, counts start with n_,
 * times end in _s, _ms or _ns. K has two meanings, experts chosen and inputs of a linear; the
 * context tells which. */
#ifndef SHOAL_TENSOR_DIMS_H
#define SHOAL_TENSOR_DIMS_H

enum {
    KV_BLOCK_TOKENS = 64, /* B; also the attention tile: tile t covers positions [64t, 64t+64) */
    PANEL_COLUMNS = 16,   /* outputs interleaved in one panel of a packed weight */
    LANES = 16,           /* virtual lanes of dot products and norms (numerics law) */
};

#endif
