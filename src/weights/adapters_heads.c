/* The heads' parts of an adapter of kv_b_proj (struct adapter_layer): its A and B as latent
 * attention reads them in its absorbed form. */
#include "weights/adapters_private.h"

static void set_shapes(const struct arch *m, uint32_t rank, struct adapter_linear *k,
                       struct adapter_linear *v)
{
    const uint32_t latent = m->attn.kv_lora, n_k = m->attn.query_dim - m->attn.rotary;
    *k = (struct adapter_linear){.rank = rank,
                                 .a = {.dtype = DTYPE_F32, .n_out = rank, .n_in = n_k},
                                 .b = {.dtype = DTYPE_F32, .n_out = latent, .n_in = rank}};
    *v = (struct adapter_linear){
        .rank = rank,
        .a = {.dtype = DTYPE_F32, .n_out = rank, .n_in = latent},
        .b = {.dtype = DTYPE_F32, .n_out = m->attn.value_dim, .n_in = rank}};
}

struct status adapter_heads_make(const struct arch *m, uint32_t n_heads, uint32_t rank,
                                 struct adapter_layer *layer)
{
    if (layer->v_b != NULL) return status_ok();
    TRY(mem_alloc(&layer->k_b, n_heads, sizeof *layer->k_b, "an adapter"));
    TRY(mem_alloc(&layer->v_b, n_heads, sizeof *layer->v_b, "an adapter"));
    layer->n_heads = n_heads;
    for (uint32_t h = 0; h < n_heads; h++) set_shapes(m, rank, &layer->k_b[h], &layer->v_b[h]);
    return status_ok();
}

size_t adapter_heads_place(struct adapter_layer *layer, bool is_b, char *memory)
{
    const uint32_t n = is_b ? layer->n_heads : 1; /* all heads share what is made of A */
    struct adapter_linear *k = layer->k_b, *v = layer->v_b;
    const size_t n_k = adapter_packed_room(is_b ? &k->a : &k->b);
    const size_t n_v = adapter_packed_room(is_b ? &v->b : &v->a);
    for (uint32_t h = 0; memory != NULL && h < layer->n_heads; h++) {
        char *of_head = memory + (is_b ? h : 0) * (n_k + n_v);
        (is_b ? &k[h].a : &k[h].b)->data = of_head;
        (is_b ? &v[h].b : &v[h].a)->data = of_head + n_k;
    }
    return n * (n_k + n_v);
}

size_t adapter_heads_bytes(const struct arch *m, uint32_t rank, bool is_b)
{
    struct adapter_linear k, v;
    struct adapter_layer layer = {.k_b = &k, .v_b = &v, .n_heads = m->attn.n_heads};
    set_shapes(m, rank, &k, &v);
    return adapter_heads_place(&layer, is_b, NULL);
}

/* Packs rows of B: each head has those of its key part, then those of its value part. */
static void take_b(const struct kern_table *kern, const struct adapter_layer *layer,
                   const struct matrix_rows *rows)
{
    const size_t n_k = layer->k_b->a.n_in, n_v = layer->v_b->b.n_out;
    for (size_t i = 0, n; i < rows->n; i += n) {
        const size_t row = rows->row0 + i, at = row % (n_k + n_v), head = row / (n_k + n_v);
        const size_t of_part = at < n_k ? n_k - at : n_k + n_v - at;
        n = rows->n - i < of_part ? rows->n - i : of_part;
        const struct matrix_rows some = {.data = (const char *)rows->data + i * rows->stride_bytes,
                                         .stride_bytes = rows->stride_bytes,
                                         .row0 = at < n_k ? at : at - n_k,
                                         .n = n};
        if (at < n_k)
            op_pack_columns(kern, &layer->k_b[head].a, &some);
        else
            op_pack_rows(kern, &layer->v_b[head].b, &some);
    }
}

void adapter_heads_take(const struct kern_table *kern, const struct adapter_layer *layer, bool is_b,
                        const struct matrix_rows *rows)
{
    if (is_b) {
        take_b(kern, layer, rows);
        return;
    }
    op_pack_columns(kern, &layer->k_b->b, rows);
    op_pack_rows(kern, &layer->v_b->a, rows);
}
