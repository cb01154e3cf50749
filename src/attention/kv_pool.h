/* Paged KV storage of one rank: the blocks of its layers and kv heads. It does not know which
 * request owns a block: the lead's plan says which block holds which tokens. Created by the stage.
 */
#ifndef SHOAL_ATTENTION_KV_POOL_H
#define SHOAL_ATTENTION_KV_POOL_H

#include "base/status.h"
#include "kernels/kern.h"
#include "parallel/layout/layout.h"

struct kv_shape {
    uint32_t n_layers, n_blocks, n_kv_heads, head_dim;
    enum dtype dtype;
    bool latent;           /* V is K, and only K is stored */
    uint32_t index_dim;    /* elements of an index key, in the same type; 0: none. With latents a
                              block's index keys follow its K; else those of all blocks of a layer
                              follow the layer's K and V */
    const bool *has_index; /* [n_layers] the layers with index keys; NULL: all; borrowed until
                              kv_pool_create returns */
};

struct kv_pool {
    struct kv_shape shape;
    uint64_t *layer_at; /* owned: [n_layers + 1] where in `data` each layer begins: K and V of all
                           its blocks as in struct kv_view, and the layer's index keys, if it has
                           any */
    void *data; /* owned: all layers' blocks; on the host a page is allocated at its first write */
    uint64_t n_bytes;
    const struct kern_table *kern; /* borrowed: its ops read and write the blocks */
};

/* The element types of the cache by their names in --kv-dtype. */
#define KV_DTYPE_WORDS                                                                             \
    {"f16", DTYPE_F16}, {"f32", DTYPE_F32}, {"int8", DTYPE_I8},                                    \
    {                                                                                              \
        "fp8", DTYPE_F8_E4M3                                                                       \
    }

/* Local. Returns the name of a cache's element type. */
const char *kv_dtype_name(enum dtype t);
/* Local. Returns the bytes of an element and of a scale, for the layout. */
struct layout_kv kv_layout(enum dtype t);

/* Local. Bytes that one block takes over all layers of a rank, without index keys. */
uint64_t kv_pool_block_bytes(uint32_t n_layers, uint32_t n_kv_heads, uint32_t head_dim,
                             enum dtype dtype, bool latent);

/* Local. Bytes of one layer's index keys in a block; 0: index_dim is 0. */
uint32_t kv_pool_index_bytes(enum dtype dtype, uint32_t index_dim);

/* Local. Allocates the blocks in the memory that kern's ops work on; borrows kern. Errors:
 * STATUS_MEMORY. destroy accepts NULL. */
struct status kv_pool_create(const struct kern_table *kern, const struct kv_shape *shape,
                             struct kv_pool **out);
void kv_pool_destroy(struct kv_pool **p);

/* Local. kv_pool_one_bytes returns the size of a buffer for one block over all layers: for each
 * layer the K of all heads, then their V (not with latents), of kv_half_bytes each, then its index
 * keys. get and put copy a block to and from that buffer; get writes zeros for index keys that a
 * layer lacks. The pool must be in host memory. */
uint64_t kv_pool_one_bytes(const struct kv_pool *p);
void kv_pool_get_block(const struct kv_pool *p, uint32_t block, void *to);
void kv_pool_put_block(const struct kv_pool *p, uint32_t block, const void *from);

/* Local. Returns the view of local layer `layer` that the kernels read and write. */
struct kv_view kv_pool_layer(const struct kv_pool *p, uint32_t layer);

/* Local. Returns the view of the index keys of a layer that has some. */
struct kv_view kv_pool_index(const struct kv_pool *p, uint32_t layer);

#endif
