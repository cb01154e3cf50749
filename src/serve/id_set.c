/* A hash set of custom_ids. */
#include "serve/id_set.h"

#include "base/mem.h"

#include <stdio.h>
#include <xxhash.h>

static bool is_free(struct id_hash h)
{
    return h.low == 0 && h.high == 0;
}

/* Where h stands, or the free slot where it would. */
static size_t find(const struct id_set *s, struct id_hash h)
{
    size_t i = (size_t)h.low & (s->n_slots - 1);
    while (!is_free(s->slots[i]) && (s->slots[i].low != h.low || s->slots[i].high != h.high)) {
        i = (i + 1) & (s->n_slots - 1);
    }
    return i;
}

static struct status grow(struct id_set *s)
{
    struct id_set larger = *s;
    larger.n_slots = s->n_slots == 0 ? 256 : 2 * s->n_slots;
    larger.slots = NULL;
    TRY(mem_alloc(&larger.slots, larger.n_slots, sizeof *larger.slots, "set of custom_ids"));
    for (size_t i = 0; i < s->n_slots; i++) {
        if (!is_free(s->slots[i])) larger.slots[find(&larger, s->slots[i])] = s->slots[i];
    }
    mem_free(&s->slots);
    *s = larger;
    return status_ok();
}

struct id_hash id_hash_of(const char *id, size_t n)
{
    const XXH128_hash_t hash = XXH3_128bits(id, n);
    struct id_hash h = {hash.low64, hash.high64};
    if (is_free(h)) h.low = 1;
    return h;
}

/* Enters a hash; *fresh is false when it is there. */
static struct status enter(struct id_set *s, struct id_hash h, bool *fresh)
{
    if (4 * (s->n + 1) > 3 * s->n_slots) TRY(grow(s));
    const size_t i = find(s, h);
    *fresh = is_free(s->slots[i]);
    if (*fresh) {
        s->slots[i] = h;
        s->n++;
    }
    return status_ok();
}

static bool contains(const struct id_set *s, struct id_hash h)
{
    return s->n_slots > 0 && !is_free(s->slots[find(s, h)]);
}

/* The line whose own number the id is, or 0: decimal digits as printf writes them. */
static uint64_t number_of(const char *id, size_t n)
{
    uint64_t number = 0;
    if (n == 0 || n > 18 || id[0] == '0') return 0;
    for (size_t i = 0; i < n; i++) {
        if (id[i] < '0' || id[i] > '9') return 0;
        number = 10 * number + (uint64_t)(id[i] - '0');
    }
    return number;
}

static bool has_own_number(const struct id_set *s, uint64_t line)
{
    return line / 64 < s->n_words && (s->own_number[line / 64] >> (line % 64) & 1) != 0;
}

static struct status mark_own_number(struct id_set *s, uint64_t line)
{
    if (line / 64 >= s->n_words) {
        const size_t n = line / 32 + 64;
        TRY(mem_grow(&s->own_number, s->n_words, n, sizeof *s->own_number, "set of custom_ids"));
        s->n_words = n;
    }
    s->own_number[line / 64] |= (uint64_t)1 << (line % 64);
    return status_ok();
}

struct status id_set_add(struct id_set *s, const char *id, size_t n, bool *fresh)
{
    const uint64_t line = s->n_lines + 1, number = number_of(id, n);
    const struct id_hash h = id_hash_of(id, n);
    if (number == line) {
        *fresh = !contains(s, h);
        TRY(mark_own_number(s, line));
    } else if (has_own_number(s, number)) {
        *fresh = false;
    } else {
        TRY(enter(s, h, fresh));
    }
    s->n_lines = line;
    return status_ok();
}

struct status id_set_add_hash(struct id_set *s, struct id_hash h)
{
    const uint64_t line = s->n_lines + 1;
    char digits[24];
    const int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)line);
    const struct id_hash own = id_hash_of(digits, (size_t)n);
    bool fresh;
    if (own.low == h.low && own.high == h.high) {
        TRY(mark_own_number(s, line));
    } else {
        TRY(enter(s, h, &fresh));
    }
    s->n_lines = line;
    return status_ok();
}

void id_set_fini(struct id_set *s)
{
    mem_free(&s->slots);
    mem_free(&s->own_number);
    *s = (struct id_set){0};
}
