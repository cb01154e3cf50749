/* Computes tokens from logits: argmax, masses for scores, logit bias and penalties, and the draw
 * under top-k, top-p and min-p. Tokens are ordered by keys. top-k, top-p and the draw each find the
 * largest key for which the sum over all keys at or above it is large enough: one byte of the key
 * at a time, from a sum for each value of the byte; integer sums do not depend on their order. */
#include "kernels/cuda/dialect.h"
#include "kernels/elementary_body.h"
#include "kernels/logit_body.h"

typedef unsigned __int128 uint128;

/* Returns the key (ordered bits, ~id): the largest key belongs to the greatest logit, and of equal
 * logits to the smallest id. */
BLOCK_INLINE uint64_t sample_key(float logit, uint32_t id)
{
    const float plain = logit == logit ? logit + 0.0f : logit; /* a GPU's sum changes NaN's bits */
    return (uint64_t)kern_ordered_bits(plain) << 32 | (uint32_t)~id;
}

/* Finds the largest key of up to CUDA_ARGMAX_SPAN logits, and counts those that are not finite. */
BLOCK_INLINE void argmax_block(const struct argmax_args *a, struct cuda_block b, void *shared)
{
    uint64_t *best = (uint64_t *)shared;
    int64_t *n_bad = (int64_t *)shared + 1;
    const float *logits = a->logits + b.y * a->n;
    const size_t first = (size_t)b.x * CUDA_ARGMAX_SPAN, left = a->n - first;
    const size_t end = first + (left < CUDA_ARGMAX_SPAN ? left : CUDA_ARGMAX_SPAN);
    FOR_THREADS(t)
    {
        if (t == 0) *best = 0;
        if (t == 0) *n_bad = 0;
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        uint64_t own = 0;
        int64_t bad = 0;
        for (size_t i = first + t; i < end; i += CUDA_THREADS) {
            const uint64_t key = sample_key(logits[i], a->id0 + (uint32_t)i);
            own = key > own ? key : own;
            bad += (f32_bits(logits[i]) & 0x7F800000u) == 0x7F800000u;
        }
        block_max_u64(best, own);
        if (bad > 0) block_add_i64(n_bad, bad);
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t == 0) block_max_u64(&a->keys[b.y], *best);
        if (t == 0 && *n_bad > 0) block_add_i64(&a->n_bad[b.y], *n_bad);
    }
}
CUDA_KERNEL(argmax, argmax_args)

/* Adds the masses of up to CUDA_ARGMAX_SPAN logits, which are integers, so that their order does
 * not matter, and writes the bits of the target's logit. */
BLOCK_INLINE void score_block(const struct score_args *a, struct cuda_block b, void *shared)
{
    int64_t *total = (int64_t *)shared;
    const float *logits = a->logits + b.y * a->n;
    const float max = a->maxima[b.y];
    const int64_t target = a->targets[b.y];
    const size_t first = (size_t)b.x * CUDA_ARGMAX_SPAN, left = a->n - first;
    const size_t end = first + (left < CUDA_ARGMAX_SPAN ? left : CUDA_ARGMAX_SPAN);
    FOR_THREADS(t)
    {
        if (t == 0) *total = 0;
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        int64_t own = 0;
        for (size_t i = first + t; i < end; i += CUDA_THREADS) {
            const float e = el_exp_body((logits[i] + 0.0f) - max);
            own += e <= 1.0f ? (int64_t)((double)e * 0x1p32) : 0;
            if ((int64_t)i == target) a->bits[b.y] = f32_bits(logits[i]);
        }
        block_add_i64(total, own);
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t == 0) block_add_i64(&a->totals[b.y], *total);
    }
}
CUDA_KERNEL(score, score_args)

BLOCK_INLINE void change_logits_block(const struct change_logits_args *a, struct cuda_block b,
                                      void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.y * CUDA_THREADS + t;
        if (i < a->n_changes) {
            const struct logit_change *c = &a->changes[i];
            float *logit = a->logits + c->row * a->n + c->at;
            *logit = kern_changed_logit(c, *logit);
        }
    }
}
CUDA_KERNEL(change_logits, change_logits_args)

enum { BYTE_VALUES = 256 };

/* One row, the limit on its keys, and the block's shared memory. */
struct pick_part {
    const float *logits;
    size_t n;
    float max, inv_t;
    uint64_t least;  /* tokens with smaller keys are excluded */
    bool counts;     /* a token counts as 1 instead of its mass */
    int64_t *sums;   /* shared [BYTE_VALUES]: a sum for each value of the key's current byte */
    uint64_t *key;   /* shared: the bytes of the key found so far */
    uint64_t *above; /* shared: the sum over keys above *key */
};

BLOCK_INLINE uint64_t pick_mass(const struct pick_part *p, float logit)
{
    const float e = el_exp_body(((logit + 0.0f) - p->max) * p->inv_t);
    return e <= 1.0f ? (uint64_t)((double)e * 0x1p32) : 0;
}

/* Adds every token that is not excluded, and whose key agrees with *key above this byte, to
 * sums[its byte]. Consecutive tokens seldom differ in the first byte, so each thread adds up equal
 * values before it adds to shared memory. */
BLOCK_INLINE void pick_add_byte(const struct pick_part *p, int shift)
{
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < BYTE_VALUES; i += CUDA_THREADS) p->sums[i] = 0;
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        uint32_t value = 0;
        int64_t run = 0;
        for (size_t i = t; i < p->n; i += CUDA_THREADS) {
            const uint64_t key = sample_key(p->logits[i], (uint32_t)i);
            const bool fits = shift == 56 || key >> (shift + 8) == *p->key >> (shift + 8);
            if (!fits || key < p->least) continue;
            if ((key >> shift & 255) != value && run != 0) block_add_i64(&p->sums[value], run);
            if ((key >> shift & 255) != value) run = 0;
            value = key >> shift & 255;
            run += p->counts ? 1 : (int64_t)pick_mass(p, p->logits[i]);
        }
        if (run != 0) block_add_i64(&p->sums[value], run);
    }
    BLOCK_SYNC();
}

/* Returns the largest key for which 2^want_shift times the sum over all keys at or above it is at
 * least `want`; 0: even the whole sum is too small. */
BLOCK_INLINE uint64_t pick_largest(const struct pick_part *p, int want_shift, uint128 want)
{
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t == 0) *p->key = *p->above = 0;
    }
    BLOCK_SYNC();
    for (int shift = 56; shift >= 0; shift -= 8) {
        pick_add_byte(p, shift);
        FOR_THREADS(t)
        {
            if (t == 0) {
                uint64_t sum = *p->above;
                uint32_t value = BYTE_VALUES;
                while (value > 0) {
                    const uint64_t next = sum + (uint64_t)p->sums[--value];
                    if ((uint128)next << want_shift >= want) break;
                    if (value > 0) sum = next;
                }
                *p->above = sum;
                *p->key |= (uint64_t)value << shift;
            }
        }
        BLOCK_SYNC();
    }
    return *p->key;
}

/* Returns the mass of all tokens that are not excluded. */
BLOCK_INLINE uint64_t pick_sum(const struct pick_part *p)
{
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t == 0) p->sums[0] = 0;
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        int64_t sum = 0;
        for (size_t i = t; i < p->n; i += CUDA_THREADS)
            if (sample_key(p->logits[i], (uint32_t)i) >= p->least)
                sum += (int64_t)pick_mass(p, p->logits[i]);
        block_add_i64(p->sums, sum);
    }
    BLOCK_SYNC();
    return (uint64_t)p->sums[0];
}

/* Returns the largest key that is not excluded and has a mass below least_mass; 0: none. min-p
 * excludes it and all smaller keys. */
BLOCK_INLINE uint64_t pick_first_below(const struct pick_part *p, uint64_t least_mass)
{
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t == 0) *p->key = 0;
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        uint64_t most = 0;
        for (size_t i = t; i < p->n; i += CUDA_THREADS) {
            const uint64_t key = sample_key(p->logits[i], (uint32_t)i);
            if (key >= p->least && key > most && pick_mass(p, p->logits[i]) < least_mass)
                most = key;
        }
        block_max_u64(p->key, most);
    }
    BLOCK_SYNC();
    return *p->key;
}

BLOCK_INLINE uint64_t pick_fixed(float fraction)
{
    return (uint64_t)((double)fraction * 0x1p32);
}

/* Draws a token. Returns its key; 0: the tokens that are left have no mass. */
BLOCK_INLINE uint64_t pick_draw(struct pick_part *p, const struct pick_row *o)
{
    if (o->top_k > 0 && (size_t)o->top_k < p->n) {
        p->counts = true;
        p->least = pick_largest(p, 0, (uint128)(uint32_t)o->top_k);
        p->counts = false;
    }
    if (o->top_p < 1.0f) {
        const uint128 want = (uint128)pick_fixed(o->top_p) * pick_sum(p);
        const uint64_t key = pick_largest(p, 32, want > 0 ? want : 1);
        if (key > p->least) p->least = key;
    }
    if (o->min_p > 0.0f) {
        const uint64_t cut = pick_first_below(p, pick_fixed(o->min_p));
        if (cut > 0) p->least = cut + 1;
    }
    const uint64_t kept = pick_sum(p);
    if (kept == 0) return 0;
    return pick_largest(p, 0, (uint128)(uint64_t)(((uint128)o->random * kept) >> 64) + 1);
}

BLOCK_INLINE void pick_block(const struct pick_args *a, struct cuda_block b, void *shared)
{
    const struct pick_row *o = &a->rows[b.y];
    struct pick_part p;
    p.logits = a->logits + b.y * a->n;
    p.n = a->n;
    p.max = o->max;
    p.inv_t = o->inv_t;
    p.least = 0;
    p.counts = false;
    p.sums = (int64_t *)shared;
    p.key = (uint64_t *)(p.sums + BYTE_VALUES);
    p.above = p.key + 1;
    const uint64_t key = pick_draw(&p, o);
    FOR_THREADS(t)
    {
        if (t == 0) a->tokens[b.y] = key == 0 ? o->best : (int32_t) ~(uint32_t)key;
    }
}
CUDA_KERNEL(pick, pick_args)
