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

/* Bytes of the index keys after one half. */
static uint32_t index_bytes(enum dtype dtype, uint32_t index_dim)
{
    return index_dim > 0 ? (uint32_t)kv_half_bytes(dtype, index_dim) : 0;
}

uint64_t kv_pool_half_bytes(const struct kv_shape *s)
{
    return kv_half_bytes(s->dtype, s->head_dim) + index_bytes(s->dtype, s->index_dim);
}

uint64_t kv_pool_block_bytes(uint32_t n_layers, uint32_t n_kv_heads, uint32_t head_dim,
                             enum dtype dtype, bool latent, uint32_t index_dim)
{
    const struct kv_shape one = {.head_dim = head_dim, .dtype = dtype, .index_dim = index_dim};
    return (uint64_t)n_layers * (latent ? 1 : 2) * n_kv_heads * kv_pool_half_bytes(&one);
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
    assert(shape->index_dim == 0 || (shape->latent && shape->n_kv_heads <= 1));
    p->layer_bytes =
        shape->n_blocks * kv_pool_block_bytes(1, shape->n_kv_heads, shape->head_dim, shape->dtype,
                                              shape->latent, shape->index_dim);
    p->n_bytes = p->layer_bytes * shape->n_layers;
    const struct status st = make_blocks(p);
    if (status_failed(&st)) mem_free(&p);
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
    mem_free(pool);
}

struct kv_view kv_pool_layer(const struct kv_pool *p, uint32_t layer)
{
    const struct kv_shape *s = &p->shape;
    assert(layer < s->n_layers);
    return (struct kv_view){.base = (char *)p->data + layer * p->layer_bytes,
                            .dtype = s->dtype,
                            .n_kv_heads = s->n_kv_heads,
                            .head_dim = s->head_dim,
                            .latent = s->latent,
                            .beside_bytes = index_bytes(s->dtype, s->index_dim)};
}

struct kv_view kv_pool_index(const struct kv_pool *p, uint32_t layer)
{
    const struct kv_shape *s = &p->shape;
    const uint32_t beside = (uint32_t)kv_half_bytes(s->dtype, s->head_dim);
    assert(layer < s->n_layers && s->index_dim > 0);
    return (struct kv_view){.base = (char *)p->data + layer * p->layer_bytes + beside,
                            .dtype = s->dtype,
                            .n_kv_heads = s->n_kv_heads,
                            .head_dim = s->index_dim,
                            .latent = true,
                            .beside_bytes = beside};
}

uint64_t kv_pool_one_bytes(const struct kv_pool *p)
{
    return p->layer_bytes / p->shape.n_blocks * p->shape.n_layers;
}

void kv_pool_get_block(const struct kv_pool *p, uint32_t block, void *to)
{
    const uint64_t one = p->layer_bytes / p->shape.n_blocks;
    assert(block < p->shape.n_blocks && p->kern->device == NULL);
    for (uint32_t l = 0; l < p->shape.n_layers; l++)
        memcpy((char *)to + l * one, (char *)p->data + l * p->layer_bytes + block * one, one);
}

void kv_pool_put_block(const struct kv_pool *p, uint32_t block, const void *from)
{
    const uint64_t one = p->layer_bytes / p->shape.n_blocks;
    assert(block < p->shape.n_blocks && p->kern->device == NULL);
    for (uint32_t l = 0; l < p->shape.n_layers; l++)
        memcpy((char *)p->data + l * p->layer_bytes + block * one, (const char *)from + l * one,
               one);
}
