/* The draw. Tokens are sorted lazily, a bucket of similar logits at a time, because a draw seldom
 * needs more than the first few of a vocabulary of a hundred thousand. */
#include "sample/pick.h"

#include "kernels/elementary.h"

#include <Random123/philox.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKET_BITS = 12, N_BUCKETS = 1 << BUCKET_BITS };

uint64_t pick_random(const struct pick_options *o)
{
    const philox4x32_ctr_t counter = {{o->choice, o->position, 0, 0}};
    const philox4x32_key_t key = {{o->key[0], o->key[1]}};
    const philox4x32_ctr_t r = philox4x32_R(10, counter, key);
    return (uint64_t)r.v[0] << 32 | r.v[1];
}

/* The vocabulary in sorted order, as far as it has been walked. */
struct walk {
    const float *logits;
    const uint64_t *mass;
    size_t n_vocab;
    uint64_t *keys; /* [V]; the first n_sorted are in their final places */
    size_t n_sorted;
    int32_t next_bucket; /* counting down; -1: none left */
    uint32_t counts[N_BUCKETS];
};

static uint32_t pick_bucket_of(float logit)
{
    return kern_ordered_bits(logit + 0.0f) >> (32 - BUCKET_BITS);
}

static void pick_walk_init(struct walk *w)
{
    memset(w->counts, 0, sizeof w->counts);
    for (size_t i = 0; i < w->n_vocab; i++) w->counts[pick_bucket_of(w->logits[i])]++;
    w->n_sorted = 0;
    w->next_bucket = N_BUCKETS - 1;
}

static int compare_keys(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts the next bucket that is not empty and appends it to the sorted keys. */
static void walk_bucket(struct walk *w)
{
    while (w->next_bucket >= 0 && w->counts[w->next_bucket] == 0) w->next_bucket--;
    if (w->next_bucket < 0) return;
    const uint32_t bucket = (uint32_t)w->next_bucket--;
    uint64_t *keys = w->keys + w->n_sorted;
    size_t n = 0;
    for (size_t i = 0; i < w->n_vocab; i++) {
        const uint32_t bits = kern_ordered_bits(w->logits[i] + 0.0f);
        if (bits >> (32 - BUCKET_BITS) == bucket) keys[n++] = (uint64_t)~bits << 32 | i;
    }
    qsort(keys, n, sizeof keys[0], compare_keys);
    w->n_sorted += n;
}

/* Returns the i-th id in sorted order. */
static int32_t walk_at(struct walk *w, size_t i)
{
    while (w->n_sorted <= i) walk_bucket(w);
    return (int32_t)(uint32_t)w->keys[i];
}

/* Converts a fraction of 1 to units of 2^-32, rounded down. */
static uint64_t fixed(float fraction)
{
    return (uint64_t)((double)fraction * 0x1p32);
}

/* Returns how many of the sorted tokens are kept; *kept_mass is their mass. total: mass of all. */
static size_t pick_keep(struct walk *w, const struct pick_options *o, uint64_t total,
                        uint64_t *kept_mass)
{
    size_t n = w->n_vocab;
    *kept_mass = total;
    if (o->top_k > 0 && (size_t)o->top_k < n) {
        n = (size_t)o->top_k;
        *kept_mass = 0;
        for (size_t i = 0; i < n; i++) *kept_mass += w->mass[walk_at(w, i)];
    }
    if (o->top_p < 1.0f) {
        /* the shortest prefix with mass >= top_p * kept_mass, at least one token */
        const unsigned __int128 want = (unsigned __int128)fixed(o->top_p) * *kept_mass;
        uint64_t sum = 0;
        size_t i = 0;
        while (i < n) {
            sum += w->mass[walk_at(w, i++)];
            if (((unsigned __int128)sum << 32) >= want) break;
        }
        n = i;
        *kept_mass = sum;
    }
    if (o->min_p > 0.0f) {
        const uint64_t least = fixed(o->min_p);
        uint64_t sum = 0;
        size_t i = 0;
        for (; i < n && w->mass[walk_at(w, i)] >= least; i++) sum += w->mass[walk_at(w, i)];
        n = i;
        *kept_mass = sum;
    }
    return n;
}

int32_t pick_token(const struct kern_table *kern, const struct pick_options *o, const float *logits,
                   size_t n_vocab, float max, const struct pick_scratch *scratch)
{
    const uint64_t total = kern->mass(logits, n_vocab, max, 1.0f / o->temperature, scratch->mass);
    struct walk w = {
        .logits = logits, .mass = scratch->mass, .n_vocab = n_vocab, .keys = scratch->keys};
    pick_walk_init(&w);
    uint64_t kept_mass;
    const size_t n = pick_keep(&w, o, total, &kept_mass);
    const uint64_t draw = (uint64_t)(((unsigned __int128)pick_random(o) * kept_mass) >> 64);
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        const int32_t id = walk_at(&w, i);
        sum += w.mass[id];
        if (sum > draw) return id;
    }
    return walk_at(&w, 0);
}

float pick_logprob(float logit, float max, uint64_t total_mass)
{
    static const double ln2_32 = 22.180709777918249; /* 32 ln 2 */
    return (float)((double)((logit + 0.0f) - max) - (el_log((double)total_mass) - ln2_32));
}
