/* Places an expert's arrays. */
#include "weights/expert_shape.h"

#include "base/mem.h"
#include "checkpoint/file/expert_file.h"
#include "kernels/ops.h"

/* Takes n bytes after *end, aligned; false: overflow. */
static bool reserve_bytes(size_t *end, size_t n, size_t *at)
{
    size_t rounded;
    if (!mem_add(n, MEM_ALIGN - 1, &rounded)) return false;
    *at = *end;
    return mem_add(*end, rounded / MEM_ALIGN * MEM_ALIGN, end);
}

struct status expert_shape_place(struct expert_shape *s)
{
    size_t end = 0, whole = 0;
    bool fits = true;
    for (int i = 0; i < EXPERT_MATRIX_COUNT; i++) {
        const struct packed *p = &s->matrix[i];
        const bool is_plain = p->quant.kind == QUANT_NONE;
        const struct packed_quant_sizes n =
            is_plain ? (struct packed_quant_sizes){.data = packed_bytes_of(p)}
                     : packed_quant_bytes(p->quant, p->n_out, p->n_in);
        fits = fits && reserve_bytes(&end, n.data, &s->data[i]) &&
               reserve_bytes(&end, n.scales, &s->scales[i]) &&
               reserve_bytes(&end, n.zeros, &s->zeros[i]);
    }
    if (!fits || !mem_add(end, EXPERT_FILE_ALIGN - 1, &whole))
        return status_make(STATUS_MEMORY, "an expert's weights overflow");
    s->n_bytes = whole / EXPERT_FILE_ALIGN * EXPERT_FILE_ALIGN;
    return status_ok();
}

struct packed expert_shape_at(const struct expert_shape *s, enum expert_matrix which,
                              const char *base)
{
    struct packed p = s->matrix[which];
    p.data = base + s->data[which];
    if (p.quant.kind == QUANT_NONE) return p;
    p.scales = base + s->scales[which];
    if (p.quant.has_zeros) p.zeros = (const uint8_t *)base + s->zeros[which];
    return p;
}
