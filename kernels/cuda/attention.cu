/* Paged attention in the exact arithmetic of kern.h. attention_rows goes through the tiles of a
 * few rows of a head from left to right. attention_tiles computes one tile per block, so that even
 * a few rows fill a device, and attention_fold folds the tiles' states in the same order. Both
 * ways give the same bits, so attention_cuda.c may choose between them step by step. */
#include "kernels/cuda/dialect.h"
#include "kernels/elementary_body.h"

enum { TILE = KV_BLOCK_TOKENS };

/* n_rows rows of one head, and the scratch memory of a tile: e [n_rows, TILE], lane_max and
 * lane_sum [n_rows, LANES]. */
struct attention_part {
    const struct attention_work_cuda *a;
    size_t row0;
    uint32_t n_rows, head, tile;
    float *e, *lane_max, *lane_sum;
};

BLOCK_INLINE uint32_t attention_position(const struct attention_part *p, uint32_t r)
{
    return (uint32_t)p->a->rows.position[p->row0 + r];
}

BLOCK_INLINE uint32_t attention_first(const struct attention_part *p, uint32_t r)
{
    return (uint32_t)kern_first_visible(attention_position(p, r), p->a->window);
}

/* Finds the visible slots [*j0, *j1) of the tile; none if *j0 = *j1. */
BLOCK_INLINE void attention_visible(const struct attention_part *p, uint32_t r, uint32_t *j0,
                                    uint32_t *j1)
{
    const uint32_t start = p->tile * TILE, last = attention_position(p, r);
    const uint32_t first = attention_first(p, r);
    *j0 = first > start ? first - start : 0;
    *j1 = last < start ? 0 : last - start + 1;
    if (*j1 > TILE) *j1 = TILE;
    if (*j0 > *j1) *j0 = *j1;
}

/* Returns the tile's keys (what 0) or values (what 1), from slot 0 on. */
BLOCK_INLINE const void *attention_cache(const struct attention_part *p, uint32_t r, int what)
{
    const struct cuda_rows *rows = &p->a->rows;
    const int32_t block = rows->blocks[rows->first_block[p->row0 + r] + (int32_t)p->tile];
    return kern_kv_half(&p->a->kv, block, what, p->a->kv_of_head[p->head]);
}

/* Returns element d of slot j as f32; t is a compile-time constant. */
BLOCK_INLINE float attention_load(enum dtype t, const void *half, size_t hd, size_t j, size_t d)
{
    return t == DTYPE_F16 ? block_load_f16(half, j * hd + d) : kern_kv_load(t, half, hd, j, d);
}

BLOCK_INLINE float attention_dot(enum dtype t, const float *q, const void *keys, uint32_t hd,
                                 uint32_t j)
{
    float lanes[LANES];
    BLOCK_UNROLL
    for (int i = 0; i < LANES; i++) lanes[i] = 0.0f;
    for (uint32_t d = 0; d < hd; d += LANES) {
        BLOCK_UNROLL
        for (int i = 0; i < LANES; i++)
            lanes[i] =
                fmaf(q[d + (uint32_t)i], attention_load(t, keys, hd, j, d + (uint32_t)i), lanes[i]);
    }
    return block_tree(lanes);
}

/* Calls expression(type) with the cache's type as a constant. */
#define ATTENTION_TYPES(type, expression)                                                          \
    ((type) == DTYPE_F16    ? expression(DTYPE_F16)                                                \
     : (type) == DTYPE_F32  ? expression(DTYPE_F32)                                                \
     : (type) == DTYPE_BF16 ? expression(DTYPE_BF16)                                               \
     : (type) == DTYPE_I8   ? expression(DTYPE_I8)                                                 \
                            : expression(DTYPE_F8_E4M3))

BLOCK_INLINE float attention_score(const struct attention_part *p, uint32_t r, uint32_t j)
{
    const struct attention_work_cuda *a = p->a;
    const uint32_t hd = a->kv.head_dim;
    const float *q = a->q + ((p->row0 + r) * a->n_heads + p->head) * hd;
    const void *keys = attention_cache(p, r, 0);
#define DOT(t) attention_dot(t, q, keys, hd, j)
    const float s = ATTENTION_TYPES(a->kv.dtype, DOT) * a->scale;
    return a->softcap > 0 ? el_softcap_body(s, a->softcap) : s;
#undef DOT
}

BLOCK_INLINE float attention_max(const struct attention_part *p, uint32_t r)
{
    float m = -INFINITY;
    BLOCK_UNROLL
    for (int i = 0; i < LANES; i++) {
        const float x = p->lane_max[r * LANES + i];
        m = x > m ? x : m;
    }
    return m;
}

/* Computes, for each row and the slots of the tile that it sees, the weights e = exp(score - the
 * row's maximum in the tile), and that maximum and the sum of the weights in 16 lanes. */
BLOCK_INLINE void attention_weights(const struct attention_part *p)
{
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < p->n_rows * TILE; i += CUDA_THREADS) {
            uint32_t j0, j1;
            attention_visible(p, i / TILE, &j0, &j1);
            if (i % TILE >= j0 && i % TILE < j1) p->e[i] = attention_score(p, i / TILE, i % TILE);
        }
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < p->n_rows * LANES; i += CUDA_THREADS) {
            uint32_t j0, j1;
            float m = -INFINITY;
            attention_visible(p, i / LANES, &j0, &j1);
            for (uint32_t j = i % LANES; j < j1; j += LANES)
                if (j >= j0 && p->e[i / LANES * TILE + j] > m) m = p->e[i / LANES * TILE + j];
            p->lane_max[i] = m;
        }
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < p->n_rows * TILE; i += CUDA_THREADS) {
            uint32_t j0, j1;
            attention_visible(p, i / TILE, &j0, &j1);
            if (i % TILE >= j0 && i % TILE < j1)
                p->e[i] = el_exp_body(p->e[i] - attention_max(p, i / TILE));
        }
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < p->n_rows * LANES; i += CUDA_THREADS) {
            uint32_t j0, j1;
            float sum = 0.0f;
            attention_visible(p, i / LANES, &j0, &j1);
            for (uint32_t j = i % LANES; j < j1; j += LANES)
                if (j >= j0) sum += p->e[i / LANES * TILE + j];
            p->lane_sum[i] = sum;
        }
    }
    BLOCK_SYNC();
}

/* Returns element d of the sum of the values in slots [j0, j1), weighted by e. */
BLOCK_INLINE float attention_mix(enum dtype t, const float *e, const void *values, uint32_t hd,
                                 uint32_t d, uint32_t j0, uint32_t j1)
{
    float o = 0.0f;
    for (uint32_t j = j0; j < j1; j++) o = fmaf(e[j], attention_load(t, values, hd, j, d), o);
    return o;
}

BLOCK_INLINE float attention_value(const struct attention_part *p, uint32_t r, uint32_t d)
{
    const struct kv_view *kv = &p->a->kv;
    const void *values = attention_cache(p, r, 1);
    const float *e = p->e + r * TILE;
    uint32_t j0, j1;
    attention_visible(p, r, &j0, &j1);
#define MIX(t) attention_mix(t, e, values, kv->head_dim, d, j0, j1)
    return ATTENTION_TYPES(kv->dtype, MIX);
#undef MIX
}

/* The result of folding one maximum into another: the new maximum, and the factors of the old and
 * the new part. */
struct attention_fold_step {
    float max, a, b;
};
BLOCK_INLINE struct attention_fold_step attention_fold_of(float total_max, float max)
{
    struct attention_fold_step f;
    f.max = max > total_max ? max : total_max;
    f.a = el_exp_body(total_max - f.max);
    f.b = el_exp_body(max - f.max);
    return f;
}

/* Folds the tile into the running state of each row that sees it. The state's maximum and sum are
 * in `total`, its o is in the output. */
BLOCK_INLINE void attention_take(const struct attention_part *p, float *total)
{
    const struct attention_work_cuda *a = p->a;
    const uint32_t hd = a->kv.head_dim;
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < p->n_rows * hd; i += CUDA_THREADS) {
            const uint32_t r = i / hd, first = attention_first(p, r) / TILE;
            if (p->tile < first || p->tile > attention_position(p, r) / TILE) continue;
            float *o = a->out + ((p->row0 + r) * a->n_heads + p->head) * hd + i % hd;
            const float x = attention_value(p, r, i % hd);
            const struct attention_fold_step f =
                attention_fold_of(total[2 * r], attention_max(p, r));
            *o = p->tile == first ? x : fmaf(x, f.b, *o * f.a);
        }
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t < p->n_rows) {
            const uint32_t first = attention_first(p, t) / TILE;
            if (p->tile >= first && p->tile <= attention_position(p, t) / TILE) {
                const float max = attention_max(p, t), sum = block_tree(p->lane_sum + t * LANES);
                const struct attention_fold_step f = attention_fold_of(total[2 * t], max);
                total[2 * t + 1] = p->tile == first ? sum : fmaf(sum, f.b, total[2 * t + 1] * f.a);
                total[2 * t] = p->tile == first ? max : f.max;
            }
        }
    }
    BLOCK_SYNC();
}

BLOCK_INLINE struct attention_part attention_part_of(const struct attention_work_cuda *a,
                                                     size_t row0, uint32_t n_rows, uint32_t head,
                                                     float *shared)
{
    struct attention_part p;
    p.a = a;
    p.row0 = row0;
    p.n_rows = n_rows;
    p.head = head;
    p.tile = 0;
    p.e = shared;
    p.lane_max = p.e + n_rows * TILE;
    p.lane_sum = p.lane_max + n_rows * LANES;
    return p;
}

/* Returns the divisor of a row's output. */
BLOCK_INLINE float attention_total(const struct attention_work_cuda *a, uint32_t head, float max,
                                   float sum)
{
    return a->sinks != NULL ? sum + el_exp_body(a->sinks[head] - max) : sum;
}

BLOCK_INLINE void attention_rows_block(const struct attention_work_cuda *a, struct cuda_block b,
                                       void *shared)
{
    const size_t first_row = (size_t)b.x * CUDA_ATTENTION_ROWS, left = a->n_rows - first_row;
    const uint32_t n_rows = left < CUDA_ATTENTION_ROWS ? (uint32_t)left : CUDA_ATTENTION_ROWS;
    struct attention_part p =
        attention_part_of(a, a->row0 + first_row, n_rows, b.y, (float *)shared);
    float *total = p.lane_sum + n_rows * LANES;
    uint32_t first = UINT32_MAX, last = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        const uint32_t begin = attention_first(&p, r) / TILE,
                       end = attention_position(&p, r) / TILE;
        first = begin < first ? begin : first;
        last = end > last ? end : last;
    }
    for (p.tile = first; p.tile <= last; p.tile++) {
        attention_weights(&p);
        attention_take(&p, total);
    }
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < n_rows * a->kv.head_dim; i += CUDA_THREADS) {
            const uint32_t r = i / a->kv.head_dim, d = i % a->kv.head_dim;
            a->out[((p.row0 + r) * a->n_heads + p.head) * a->kv.head_dim + d] /=
                attention_total(a, p.head, total[2 * r], total[2 * r + 1]);
        }
    }
}
CUDA_KERNEL(attention_rows, attention_work_cuda)

BLOCK_INLINE float *attention_state(const struct attention_work_cuda *a, size_t row, uint32_t head,
                                    uint32_t i)
{
    return a->states + ((row * a->n_heads + head) * a->n_tiles + i) * (a->kv.head_dim + 2);
}

BLOCK_INLINE void attention_tiles_block(const struct attention_work_cuda *a, struct cuda_block b,
                                        void *shared)
{
    struct attention_part p = attention_part_of(a, a->row0 + b.z, 1, b.y, (float *)shared);
    float *state = attention_state(a, b.z, b.y, b.x);
    p.tile = attention_first(&p, 0) / TILE + b.x;
    if (p.tile > attention_position(&p, 0) / TILE) return;
    attention_weights(&p);
    FOR_THREADS(t)
    {
        for (uint32_t d = t; d < a->kv.head_dim; d += CUDA_THREADS)
            state[2 + d] = attention_value(&p, 0, d);
        if (t == 0) state[0] = attention_max(&p, 0);
        if (t == 0) state[1] = block_tree(p.lane_sum);
    }
}
CUDA_KERNEL(attention_tiles, attention_work_cuda)

BLOCK_INLINE void attention_fold_block(const struct attention_work_cuda *a, struct cuda_block b,
                                       void *shared)
{
    const struct attention_part p = attention_part_of(a, a->row0 + b.y, 1, b.x, (float *)shared);
    const uint32_t hd = a->kv.head_dim;
    const uint32_t n = attention_position(&p, 0) / TILE - attention_first(&p, 0) / TILE + 1;
    FOR_THREADS(t)
    {
        for (uint32_t d = t; d < hd; d += CUDA_THREADS) {
            const float *state = attention_state(a, b.y, b.x, 0);
            float max = state[0], sum = state[1], o = state[2 + d];
            for (uint32_t i = 1; i < n; i++) {
                state += hd + 2;
                const struct attention_fold_step f = attention_fold_of(max, state[0]);
                o = fmaf(state[2 + d], f.b, o * f.a);
                sum = fmaf(state[1], f.b, sum * f.a);
                max = f.max;
            }
            a->out[(p.row0 * a->n_heads + p.head) * hd + d] =
                o / attention_total(a, p.head, max, sum);
        }
    }
}
CUDA_KERNEL(attention_fold, attention_work_cuda)
