/* Shared by adapters.c and adapters_heads.c: the heads' parts of an adapter of kv_b_proj. */
#ifndef SHOAL_WEIGHTS_ADAPTERS_PRIVATE_H
#define SHOAL_WEIGHTS_ADAPTERS_PRIVATE_H

#include "base/mem.h"
#include "kernels/ops.h"
#include "weights/adapters.h"

/* Local. Returns the bytes to reserve for a matrix of an adapter. */
static inline size_t adapter_packed_room(const struct packed *p)
{
    return (packed_bytes_of(p) + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
}

/* Local. Makes k_b and v_b of a layer for n_heads heads, without memory for their matrices; does
 * nothing if they exist. Errors: STATUS_MEMORY. */
struct status adapter_heads_make(const struct arch *m, uint32_t n_heads, uint32_t rank,
                                 struct adapter_layer *layer);

/* Local. Sets the memory of the heads' matrices made of B (is_b) or of A, and returns its bytes.
 * memory NULL: only counts them. */
size_t adapter_heads_place(struct adapter_layer *layer, bool is_b, char *memory);

/* Local. Packs f32 rows of B, counted from this rank's first, or of A. */
void adapter_heads_take(const struct kern_table *kern, const struct adapter_layer *layer, bool is_b,
                        const struct matrix_rows *rows);

#endif
