/* Levels the rows of experts with copies over the parts that have their nearest copies. */
#include "parallel/layout/expert_copies.h"

#include <stdbool.h>
#include <string.h>

enum {
    ROUNDS = 4
}; /* each later round divides an expert's rows anew, after the other experts'
      rows were divided */

static uint8_t distance_of(const struct expert_copies *c, uint32_t i)
{
    return c->distance != NULL ? c->distance[c->part_of[c->place[i]]] : COPY_OWN_RANK;
}

static uint8_t nearest_copy(const struct expert_copies *c, uint32_t e)
{
    uint8_t least = COPY_OTHER_HOST;
    for (uint32_t i = c->first[e]; i < c->first[e + 1]; i++)
        if (distance_of(c, i) < least) least = distance_of(c, i);
    return least;
}

/* The copies of an expert among which its rows are divided, and the rows of their parts. */
struct candidates {
    const struct expert_copies *c;
    uint32_t begin, end; /* the copies are place[begin] to place[end - 1] */
    uint8_t distance;
    const int64_t *part_rows;
};

/* True when rows may go to place[i]: it is as near as the nearest copy, and the first of the
 * expert's places in its part. */
static bool is_candidate(const struct candidates *k, uint32_t i)
{
    const struct expert_copies *c = k->c;
    return distance_of(c, i) == k->distance &&
           (i == k->begin || c->part_of[c->place[i]] != c->part_of[c->place[i - 1]]);
}

/* Returns how many rows fit when no part may have more than `level`. */
static int64_t room_below(const struct candidates *k, int64_t level)
{
    int64_t n = 0;
    for (uint32_t i = k->begin; i < k->end; i++) {
        const int64_t has = k->part_rows[k->c->part_of[k->c->place[i]]];
        if (is_candidate(k, i) && has < level) n += level - has;
    }
    return n;
}

/* Returns the lowest level at which n rows fit. */
static int64_t level_for(const struct candidates *k, int64_t n)
{
    int64_t low = INT64_MAX;
    for (uint32_t i = k->begin; i < k->end; i++) {
        const int64_t has = k->part_rows[k->c->part_of[k->c->place[i]]];
        if (is_candidate(k, i) && has < low) low = has;
    }
    int64_t high = low + n;
    while (low < high) {
        const int64_t level = low + (high - low) / 2;
        if (room_below(k, level) >= n) {
            high = level;
        } else {
            low = level + 1;
        }
    }
    return low;
}

/* Divides an expert's n rows among its candidate copies, in order: fills the part of each up to the
 * lowest level at which all n rows fit (level_for). Sets share and adds to part_rows. */
static void fill_copies(const struct candidates *k, int64_t n, int64_t *share, int64_t *part_rows)
{
    const int64_t level = level_for(k, n);
    for (uint32_t i = k->begin; i < k->end; i++) {
        int64_t *has = &part_rows[k->c->part_of[k->c->place[i]]];
        share[i] = 0;
        if (!is_candidate(k, i) || *has >= level) continue;
        share[i] = level - *has < n ? level - *has : n;
        n -= share[i];
        *has += share[i];
    }
}

void expert_copies_share(const struct expert_copies *c, const int64_t *rows, int64_t *share,
                         int64_t *part_rows)
{
    for (uint32_t i = 0; i < c->n_parts; i++) part_rows[i] = c->before != NULL ? c->before[i] : 0;
    for (uint32_t e = 0; e < c->n_experts; e++) {
        const uint32_t i = c->first[e], n_copies = c->first[e + 1] - i;
        memset(share + i, 0, n_copies * sizeof *share);
        if (n_copies > 1) continue;
        share[i] = rows[e];
        part_rows[c->part_of[c->place[i]]] += rows[e];
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t e = 0; e < c->n_experts; e++) {
            const struct candidates k = {.c = c,
                                         .begin = c->first[e],
                                         .end = c->first[e + 1],
                                         .distance = nearest_copy(c, e),
                                         .part_rows = part_rows};
            if (rows[e] == 0 || k.end - k.begin < 2) continue;
            for (uint32_t i = k.begin; i < k.end; i++)
                part_rows[c->part_of[c->place[i]]] -= share[i];
            fill_copies(&k, rows[e], share, part_rows);
        }
    }
}
