/* Reference kernels of sparse attention's index: scores, and the choice of positions. The choice
 * compares integers, so all instruction sets use this one. */
#include "kernels/ref/ref.h"

#include "kernels/body.h"

#include <math.h>

enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS };

REF_INLINE float index_dot(enum dtype t, const float *q, const void *keys, size_t head_dim,
                           size_t slot)
{
    float lanes[LANES] = {0};
    for (size_t d = 0; d < head_dim; d++)
        lanes[d % LANES] = fmaf(q[d], kern_kv_load(t, keys, head_dim, slot, d), lanes[d % LANES]);
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

REF_INLINE void index_scores(enum dtype t, const struct index_args *a, const struct index_slice *s)
{
    const struct seq_rows *seq = &a->seqs[s->seq];
    const size_t row = seq->row0 + s->row, p = seq->pos0 + s->row, hd = a->keys.head_dim;
    for (size_t j = s->tile0 * KV_BLOCK_TOKENS; j < s->tile1 * KV_BLOCK_TOKENS && j <= p; j++) {
        const void *keys = kern_kv_half(&a->keys, seq->blocks[j / KV_BLOCK_TOKENS], 0, 0);
        float sum = 0.0f;
        for (size_t h = row * a->n_heads; h < (row + 1) * a->n_heads; h++) {
            const float d = index_dot(t, a->q + h * hd, keys, hd, j % KV_BLOCK_TOKENS) * a->scale;
            if (a->weights == NULL)
                s->scores[h % a->n_heads * s->stride + j] = d;
            else
                sum = fmaf(a->weights[h], d > 0.0f ? d : 0.0f, sum);
        }
        if (a->weights != NULL) s->scores[j] = sum;
    }
}

#define INDEX_REF(name, type)                                                                      \
    REF_CLONES void k_index_scores_##name##_ref(const struct index_args *a,                        \
                                                const struct index_slice *s)                       \
    {                                                                                              \
        index_scores(type, a, s);                                                                  \
    }
INDEX_REF(f32, DTYPE_F32)
INDEX_REF(f16, DTYPE_F16)
INDEX_REF(bf16, DTYPE_BF16)
INDEX_REF(i8, DTYPE_I8)
INDEX_REF(fp8, DTYPE_F8_E4M3)

/* The order of scores as integers, the same as in kern_router_key. */
static uint32_t score_key(float score)
{
    return (uint32_t)(kern_router_key(score, 0) >> 32);
}

/* Returns the n-th largest key (n from 1), found digit by digit from the top. *n_equal: how many of
 * the n largest keys are equal to it. */
static uint32_t nth_key(const float *scores, size_t n_scores, size_t n, size_t *n_equal)
{
    uint32_t found = 0, known = 0; /* the digits found so far, and a mask of them */
    for (int shift = 32 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        size_t count[DIGITS] = {0};
        uint32_t digit = DIGITS - 1;
        for (size_t j = 0; j < n_scores; j++) {
            const uint32_t key = score_key(scores[j]);
            if ((key & known) == found) count[key >> shift & (DIGITS - 1)]++;
        }
        for (; count[digit] < n; digit--) n -= count[digit];
        found |= digit << shift;
        known |= (uint32_t)(DIGITS - 1) << shift;
    }
    *n_equal = n;
    return found;
}

static void k_index_choose_ref(const float *scores, size_t n, uint32_t n_chosen, int32_t *to)
{
    size_t n_equal;
    const uint32_t last = nth_key(scores, n, n_chosen, &n_equal);
    for (size_t j = 0, at = 0; at < n_chosen; j++) {
        const uint32_t key = score_key(scores[j]);
        if (key < last || (key == last && n_equal == 0)) continue;
        if (key == last) n_equal--;
        to[at++] = (int32_t)j;
    }
}

void fill_index_ref(struct kern_table *t)
{
    t->index_scores[DTYPE_F32] = k_index_scores_f32_ref;
    t->index_scores[DTYPE_F16] = k_index_scores_f16_ref;
    t->index_scores[DTYPE_BF16] = k_index_scores_bf16_ref;
    t->index_scores[DTYPE_I8] = k_index_scores_i8_ref;
    t->index_scores[DTYPE_F8_E4M3] = k_index_scores_fp8_ref;
    t->index_choose = k_index_choose_ref;
}
