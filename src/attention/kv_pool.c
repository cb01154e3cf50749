/* KV block storage: the device's memory, or anonymous memory of the host. */
#include "attention/kv_pool.h"

#include "base/mem.h"
#include "kernels/device.h"
#include "options/flags.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

const char *kv_dtype_name(enum dtype t)
{
    const char *name = flag_word_of(FLAG_WORDS(KV_DTYPE_WORDS), (int32_t)t);
    return name != NULL ? name : dtype_name(t);
}

struct layout_kv kv_layout(enum dtype t)
{
    return (struct layout_kv){.element_bytes = (uint32_t)dtype_bytes(t),
                              .scale_bytes = t == DTYPE_I8 ? sizeof(float) : 0};
}

uint32_t kv_pool_index_bytes(enum dtype dtype, uint32_t index_dim)
{
    return index_dim > 0 ? (uint32_t)kv_half_bytes(dtype, index_dim) : 0;
}

uint64_t kv_pool_block_bytes(uint32_t n_layers, uint32_t n_kv_heads, uint32_t head_dim,
                             enum dtype dtype, bool latent)
{
    return (uint64_t)n_layers * (latent ? 1 : 2) * n_kv_heads * kv_half_bytes(dtype, head_dim);
}

/* Bytes of one layer's keys and values in a block. */
static uint64_t bare_bytes(const struct kv_shape *s)
{
    return kv_pool_block_bytes(1, s->n_kv_heads, s->head_dim, s->dtype, s->latent);
}

/* Bytes of one layer in a block, in the buffers of kv_pool_get_block. A rank without heads has no
 * index keys. */
static uint64_t widest_bytes(const struct kv_shape *s)
{
    return s->n_kv_heads == 0 ? 0 : bare_bytes(s) + kv_pool_index_bytes(s->dtype, s->index_dim);
}

/* Sets where the layers begin, and the bytes of all. */
static struct status place_layers(struct kv_pool *p)
{
    const struct kv_shape *s = &p->shape;
    TRY(mem_alloc(&p->layer_at, (size_t)s->n_layers + 1, sizeof *p->layer_at, "KV pool"));
    for (uint32_t l = 0; l < s->n_layers; l++) {
        const bool keys = s->has_index == NULL || s->has_index[l];
        p->layer_at[l + 1] =
            p->layer_at[l] + s->n_blocks * (keys ? widest_bytes(s) : bare_bytes(s));
    }
    p->n_bytes = p->layer_at[s->n_layers];
    p->shape.has_index = NULL;
    return status_ok();
}

/* Allocates the blocks. On the host a page takes memory when it is first written, so unused blocks
 * cost nothing. */
static struct status make_blocks(struct kv_pool *p)
{
    if (p->n_bytes == 0) return status_ok();
    if (p->kern->device != NULL) return mem_ops_alloc(p->kern, &p->data, p->n_bytes, 1, "KV pool");
    void *data = mmap(NULL, p->n_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
        return status_make(STATUS_MEMORY, "KV pool: %u blocks, %llu bytes: %s", p->shape.n_blocks,
                           (unsigned long long)p->n_bytes, strerror(errno));
    }
    p->data = data;
    return status_ok();
}

struct status kv_pool_create(const struct kern_table *kern, const struct kv_shape *shape,
                             struct kv_pool **out)
{
    *out = NULL;
    struct kv_pool *p = NULL;
    TRY(mem_alloc(&p, 1, sizeof *p, "KV pool"));
    p->kern = kern;
    p->shape = *shape;
    assert(shape->index_dim == 0 || !shape->latent || shape->n_kv_heads <= 1);
    struct status st = place_layers(p);
    if (!status_failed(&st)) st = make_blocks(p);
    if (status_failed(&st)) {
        mem_free(&p->layer_at);
        mem_free(&p);
    }
    *out = p;
    return st;
}

void kv_pool_destroy(struct kv_pool **pool)
{
    if (*pool == NULL) return;
    struct kv_pool *p = *pool;
    if (p->kern->device != NULL) {
        mem_ops_free(p->kern, &p->data);
    } else if (p->n_bytes > 0) {
        munmap(p->data, p->n_bytes);
    }
    mem_free(&p->layer_at);
    mem_free(pool);
}

/* Bytes of the layer's part of a block. */
static uint64_t layer_bytes(const struct kv_pool *p, uint32_t layer)
{
    return (p->layer_at[layer + 1] - p->layer_at[layer]) / p->shape.n_blocks;
}

static bool has_index(const struct kv_pool *p, uint32_t layer)
{
    return p->shape.index_dim > 0 && layer_bytes(p, layer) == widest_bytes(&p->shape);
}

struct kv_view kv_pool_layer(const struct kv_pool *p, uint32_t layer)
{
    const struct kv_shape *s = &p->shape;
    assert(layer < s->n_layers);
    const bool keys_beside = s->latent && has_index(p, layer);
    const uint32_t beside = keys_beside ? kv_pool_index_bytes(s->dtype, s->index_dim) : 0;
    return (struct kv_view){.base = (char *)p->data + p->layer_at[layer],
                            .dtype = s->dtype,
                            .n_kv_heads = s->n_kv_heads,
                            .head_dim = s->head_dim,
                            .latent = s->latent,
                            .beside_bytes = beside};
}

struct kv_view kv_pool_index(const struct kv_pool *p, uint32_t layer)
{
    const struct kv_shape *s = &p->shape;
    const uint64_t half = kv_half_bytes(s->dtype, s->head_dim);
    const uint64_t first = s->latent ? half : s->n_blocks * bare_bytes(s);
    assert(layer < s->n_layers && has_index(p, layer));
    return (struct kv_view){.base = (char *)p->data + p->layer_at[layer] + first,
                            .dtype = s->dtype,
                            .n_kv_heads = 1,
                            .head_dim = s->index_dim,
                            .latent = true,
                            .beside_bytes = s->latent ? (uint32_t)half : 0};
}

uint64_t kv_pool_one_bytes(const struct kv_pool *p)
{
    return widest_bytes(&p->shape) * p->shape.n_layers;
}

/* Bytes of a layer's block that lie together. */
struct block_piece {
    char *at;
    uint64_t n_bytes;
};

/* Returns the two pieces of a layer's block, of which the second may have no bytes. */
static void block_pieces(const struct kv_pool *p, uint32_t layer, uint32_t block,
                         struct block_piece pieces[2])
{
    const struct kv_shape *s = &p->shape;
    char *base = (char *)p->data + p->layer_at[layer];
    const bool apart = !s->latent && has_index(p, layer);
    const uint64_t n = layer_bytes(p, layer), bare = bare_bytes(s), first = apart ? bare : n;
    assert(block < s->n_blocks && p->kern->device == NULL);
    pieces[0] = (struct block_piece){base + block * first, first};
    pieces[1] = (struct block_piece){base + s->n_blocks * bare + block * (n - first), n - first};
}

void kv_pool_get_block(const struct kv_pool *p, uint32_t block, void *to)
{
    const uint64_t one = widest_bytes(&p->shape);
    for (uint32_t l = 0; l < p->shape.n_layers; l++) {
        struct block_piece from[2];
        char *at = (char *)to + l * one;
        block_pieces(p, l, block, from);
        memcpy(at, from[0].at, from[0].n_bytes);
        memcpy(at + from[0].n_bytes, from[1].at, from[1].n_bytes);
        memset(at + layer_bytes(p, l), 0, one - layer_bytes(p, l));
    }
}

void kv_pool_put_block(const struct kv_pool *p, uint32_t block, const void *from)
{
    const uint64_t one = widest_bytes(&p->shape);
    for (uint32_t l = 0; l < p->shape.n_layers; l++) {
        struct block_piece to[2];
        const char *at = (const char *)from + l * one;
        block_pieces(p, l, block, to);
        memcpy(to[0].at, at, to[0].n_bytes);
        memcpy(to[1].at, at + to[0].n_bytes, to[1].n_bytes);
    }
}
