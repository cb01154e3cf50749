/* Embedding: rows of a packed or flat weight [V, D] as floats, one thread per element. */
#include "kernels/cuda/dialect.h"
#include "kernels/quant_body.h"

BLOCK_INLINE void embed_block(const struct embed_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t row = b.y, k = (size_t)b.x * CUDA_THREADS + t, n_in = a->w.n_in;
        const uint32_t token = (uint32_t)a->tokens[row];
        if (k < n_in) {
            const uint32_t id = token - a->vocab0;
            float x = 0.0f;
            if (token >= a->vocab0 && token < a->vocab1) {
                const size_t panel = (size_t)(id / PANEL_COLUMNS) * n_in;
                const size_t at = a->w.flat != 0 ? (size_t)id * a->w.flat + k
                                                 : (panel + k) * PANEL_COLUMNS + id % PANEL_COLUMNS;
                x = a->w.quant.kind != QUANT_NONE ? kern_quant_float(&a->w, id, k)
                                                  : kern_load(a->w.dtype, a->w.data, at);
            }
            a->h[row * n_in + k] = x;
        }
    }
}
CUDA_KERNEL(embed, embed_work)
