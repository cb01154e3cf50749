/* Shared by the files of adapters: the linears that tensors name, and the heads' parts of an
 * adapter of kv_b_proj. */
#ifndef SHOAL_WEIGHTS_ADAPTERS_PRIVATE_H
#define SHOAL_WEIGHTS_ADAPTERS_PRIVATE_H

#include "base/mem.h"
#include "kernels/ops.h"
#include "weights/adapters.h"

/* Ends of the names of A and B. */
#define ADAPTER_A_END ".lora_A.weight"
#define ADAPTER_B_END ".lora_B.weight"

/* Local. Sets *out to the site of a role; of kv_b_proj, which has two, to ADAPTER_K_B. False: an
 * adapter cannot change linears with this role. */
bool adapter_site_of(enum weight_role role, enum adapter_site *out);

/* Local. Returns why a tensor of the model takes no adapter; NULL: it takes one. */
const char *adapter_linear_refusal(const struct arch *m, const struct arch_tensor *t);

/* Local. Returns why the model has no linear of this name. */
const char *adapter_name_refusal(const char *linear);

/* Local. Reads N of "model.layers.N."; false: there is none, or the model has no such layer. */
bool adapter_layer_index(const struct arch *m, const char *name, uint32_t *layer);

/* Local. Finds the next row of the table of tensors, from row *i on, that the layer's linear has
 * (arch_tensors.h), and sets *i to the row after it. NULL: there is none. */
const struct arch_tensor *adapter_row_of(const struct arch *m, uint32_t layer, const char *linear,
                                         size_t *i);

/* Local. Returns the bytes to reserve for a matrix of an adapter. */
static inline size_t adapter_packed_room(const struct packed *p)
{
    return (packed_bytes_of(p) + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
}

/* Local. Makes k_b and v_b of a layer for n_heads heads, without memory for their matrices; does
 * nothing if they exist. rank: r. Errors: STATUS_MEMORY. */
struct status adapter_heads_make(const struct arch *m, uint32_t n_heads, uint32_t rank,
                                 struct adapter_layer *layer);

/* Local. Sets the memory of the heads' matrices made of B (is_b) or of A, and returns its bytes.
 * memory NULL: only counts them. */
size_t adapter_heads_place(struct adapter_layer *layer, bool is_b, char *memory);

/* Local. Returns the bytes of what all heads need of B (is_b) or of A. */
size_t adapter_heads_bytes(const struct arch *m, uint32_t rank, bool is_b);

/* Local. Packs f32 rows of B, counted from this rank's first, or of A. */
void adapter_heads_take(const struct kern_table *kern, const struct adapter_layer *layer, bool is_b,
                        const struct matrix_rows *rows);

#endif
