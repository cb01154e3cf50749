/* A hash set of custom_ids. */
#include "serve/journal/id_set.h"

#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* The largest table in memory, 4 MiB, while ids may move to a file. */
enum { SLOTS_MAX = 1 << 18 };

static bool is_free(struct id_hash h)
{
    return h.low == 0 && h.high == 0;
}

/* Returns the slot of h, or the free slot where h would be entered. */
static size_t id_set_find(const struct id_set *s, struct id_hash h)
{
    size_t i = (size_t)h.low & (s->n_slots - 1);
    while (!is_free(s->slots[i]) && (s->slots[i].low != h.low || s->slots[i].high != h.high)) {
        i = (i + 1) & (s->n_slots - 1);
    }
    return i;
}

static struct status id_set_grow(struct id_set *s)
{
    struct id_set larger = *s;
    larger.n_slots = s->n_slots == 0 ? 256 : 2 * s->n_slots;
    larger.slots = NULL;
    TRY(mem_alloc(&larger.slots, larger.n_slots, sizeof *larger.slots, "set of custom_ids"));
    for (size_t i = 0; i < s->n_slots; i++) {
        if (!is_free(s->slots[i])) larger.slots[id_set_find(&larger, s->slots[i])] = s->slots[i];
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

void id_set_spill_beside(struct id_set *s, const char *path)
{
    s->spill_path = path;
}

/* Sets *out to the table's n ids; the caller frees them. Errors: STATUS_MEMORY. */
static struct status gather(const struct id_set *s, struct id_hash **out)
{
    size_t n = 0;
    TRY(mem_alloc(out, s->n, sizeof **out, "set of custom_ids"));
    for (size_t i = 0; i < s->n_slots; i++)
        if (!is_free(s->slots[i])) (*out)[n++] = s->slots[i];
    return status_ok();
}

static struct status make_file(struct id_set *s)
{
    if (s->spill != NULL) return status_ok();
    TRY(mem_alloc(&s->spill, 1, sizeof *s->spill, "set of custom_ids"));
    const struct status st = id_spill_init(s->spill, s->spill_path);
    if (status_failed(&st)) mem_free(&s->spill);
    return st;
}

/* Moves the table's ids to the file. After an error they are in the table as before. */
static struct status spill(struct id_set *s)
{
    struct id_hash *ids = NULL;
    TRY(make_file(s));
    TRY(gather(s, &ids));
    const struct status st = id_spill_add(s->spill, ids, s->n);
    mem_free(&ids);
    if (status_failed(&st)) return st;
    memset(s->slots, 0, s->n_slots * sizeof *s->slots);
    s->n = 0;
    return st;
}

/* Makes room for one more id: grows the table, or, if it has reached its limit, moves its ids to
 * the file. */
static struct status id_set_make_room(struct id_set *s)
{
    if (4 * (s->n + 1) <= 3 * s->n_slots) return status_ok();
    if (s->spill_path == NULL || s->n_slots < SLOTS_MAX) return id_set_grow(s);
    const struct status st = spill(s);
    if (!status_failed(&st) || st.code == STATUS_MEMORY) return st;
    log_line(LOG_WARN, "%s: custom_ids stay in memory from here on", st.text);
    s->spill_path = NULL;
    return id_set_grow(s);
}

static struct status contains(const struct id_set *s, struct id_hash h, bool *found)
{
    *found = s->n_slots > 0 && !is_free(s->slots[id_set_find(s, h)]);
    return *found || s->spill == NULL ? status_ok() : id_spill_find(s->spill, h, found);
}

/* Enters a hash; *fresh is false if the set already has it. */
static struct status id_set_enter(struct id_set *s, struct id_hash h, bool *fresh)
{
    bool found;
    TRY(contains(s, h, &found));
    *fresh = !found;
    if (found) return status_ok();
    TRY(id_set_make_room(s));
    s->slots[id_set_find(s, h)] = h;
    s->n++;
    return status_ok();
}

/* Returns the line number that the id spells as printf would in decimal; 0 for any other id. */
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
        bool found;
        TRY(contains(s, h, &found));
        *fresh = !found;
        TRY(mark_own_number(s, line));
    } else if (has_own_number(s, number)) {
        *fresh = false;
    } else {
        TRY(id_set_enter(s, h, fresh));
    }
    s->n_lines = line;
    return status_ok();
}

/* Writes candidate k, from 0, for the name of a line without a custom_id; returns its length. */
static size_t write_name(uint64_t line, unsigned k, char name[ID_NAME_MAX])
{
    const unsigned long long number = line;
    if (k == 0) return (size_t)snprintf(name, ID_NAME_MAX, "%llu", number);
    if (k == 1) return (size_t)snprintf(name, ID_NAME_MAX, "line %llu", number);
    return (size_t)snprintf(name, ID_NAME_MAX, "line %llu (%u)", number, k);
}

struct status id_set_add_line(struct id_set *s, char name[ID_NAME_MAX])
{
    bool fresh = false;
    for (unsigned k = 0; !fresh; k++) {
        const size_t n = write_name(s->n_lines + 1, k, name);
        TRY(id_set_add(s, name, n, &fresh));
        s->n_lines--; /* tries further names for the same line until one is free */
    }
    s->n_lines++;
    return status_ok();
}

bool id_set_may_name(uint64_t line, const char *id, size_t n)
{
    char name[ID_NAME_MAX];
    if (write_name(line, 0, name) == n && memcmp(id, name, n) == 0) return true;
    const size_t m = write_name(line, 1, name);
    return n >= m && memcmp(id, name, m) == 0 && (n == m || memcmp(id + m, " (", 2) == 0);
}

struct status id_set_add_hash(struct id_set *s, struct id_hash h)
{
    if (is_free(h)) {
        char name[ID_NAME_MAX];
        return id_set_add_line(s, name);
    }
    const uint64_t line = s->n_lines + 1;
    char digits[24];
    const int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)line);
    const struct id_hash own = id_hash_of(digits, (size_t)n);
    bool fresh;
    if (own.low == h.low && own.high == h.high) {
        TRY(mark_own_number(s, line));
    } else {
        TRY(id_set_enter(s, h, &fresh));
    }
    s->n_lines = line;
    return status_ok();
}

void id_set_fini(struct id_set *s)
{
    if (s->spill != NULL) id_spill_fini(s->spill);
    mem_free(&s->spill);
    mem_free(&s->slots);
    mem_free(&s->own_number);
    *s = (struct id_set){0};
}
