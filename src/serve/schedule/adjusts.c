/* Keeps one entry for each token whose logit is changed, by ascending id. */
#include "serve/schedule/adjusts.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static bool counts_prompt(const struct request *r)
{
    return r->ask->penalties.repetition != 1;
}

static bool counts_sampled(const struct request *r)
{
    return counts_prompt(r) || r->ask->penalties.frequency != 0 || r->ask->penalties.presence != 0;
}

static struct status adjusts_reserve(struct adjusts *a, size_t n)
{
    if (n <= a->capacity) return status_ok();
    const size_t grown = n + n / 2 + 16;
    TRY(mem_grow(&a->entries, a->n, grown, sizeof *a->entries, "penalties"));
    a->capacity = grown;
    return status_ok();
}

static int compare_ids(const void *left, const void *right)
{
    const struct plan_adjust *a = left, *b = right;
    return (a->id > b->id) - (a->id < b->id);
}

/* Sorts the entries and merges those with the same id. */
static void merge(struct adjusts *a)
{
    struct plan_adjust *e = a->entries;
    size_t n = 0;
    qsort(e, a->n, sizeof *e, compare_ids);
    for (size_t i = 0; i < a->n; i++) {
        if (n > 0 && e[n - 1].id == e[i].id) {
            e[n - 1].flags |= e[i].flags;
            e[n - 1].bias += e[i].bias; /* at most one of the two has a bias */
        } else {
            e[n++] = e[i];
        }
    }
    a->n = n;
}

/* Makes the entries that apply before the first token is sampled. */
static struct status adjusts_begin(struct adjusts *a, const struct request *r,
                                   const struct request_rules *rules)
{
    const size_t n_prompt = counts_prompt(r) ? r->n_prompt : 0;
    const size_t n_ends = r->ask->min_tokens > 0 ? rules->n_end_ids + r->ask->n_stop_ids : 0;
    TRY(adjusts_reserve(a, n_prompt + n_ends + r->ask->n_biases));
    for (size_t i = 0; i < n_prompt; i++)
        a->entries[a->n++] = (struct plan_adjust){.id = r->tokens[i], .flags = PLAN_IN_PROMPT};
    for (size_t i = 0; i < n_ends; i++) {
        const int32_t id =
            i < rules->n_end_ids ? rules->end_ids[i] : r->ask->stop_ids[i - rules->n_end_ids];
        if (id < 0 || id >= rules->vocab_size)
            continue; /* a tokenizer may have ids beyond the
                         model's vocabulary */
        a->entries[a->n++] = (struct plan_adjust){.id = id, .flags = PLAN_FORBIDDEN};
    }
    if (r->ask->n_biases > 0) {
        memcpy(a->entries + a->n, r->ask->biases, r->ask->n_biases * sizeof *r->ask->biases);
        a->n += r->ask->n_biases;
    }
    if (a->n > 0) merge(a);
    a->n_counted = r->n_prompt;
    a->forbids = r->ask->min_tokens > 0;
    return status_ok();
}

/* Counts a sampled token in the token's entry; adds the entry if there is none. */
static struct status adjusts_count(struct adjusts *a, int32_t id)
{
    size_t low = 0, high = a->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (a->entries[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == a->n || a->entries[low].id != id) {
        TRY(adjusts_reserve(a, a->n + 1));
        struct plan_adjust *at = a->entries + low;
        memmove(at + 1, at, (a->n - low) * sizeof *at);
        *at = (struct plan_adjust){.id = id};
        a->n++;
    }
    a->entries[low].n_sampled++;
    return status_ok();
}

/* Allows end tokens once min_tokens are sampled. */
static void allow_ends(struct adjusts *a, const struct request *r)
{
    if (!a->forbids || a->n_counted - r->n_prompt < (size_t)r->ask->min_tokens) return;
    a->forbids = false;
    for (size_t i = 0; i < a->n; i++) a->entries[i].flags &= ~(uint32_t)PLAN_FORBIDDEN;
}

struct status adjusts_add(struct adjusts *a, const struct request *r, int32_t token)
{
    if (counts_sampled(r)) TRY(adjusts_count(a, token));
    a->n_counted++;
    allow_ends(a, r);
    return status_ok();
}

struct status adjusts_update(struct adjusts *a, const struct request *r,
                             const struct request_rules *rules)
{
    if (a->n_counted == 0) TRY(adjusts_begin(a, r, rules));
    while (a->n_counted < r->n_tokens) TRY(adjusts_add(a, r, r->tokens[a->n_counted]));
    return status_ok();
}

struct status adjusts_copy(const struct adjusts *from, struct adjusts *to)
{
    if (from->n > to->capacity) {
        const size_t grown = from->n + from->n / 2;
        TRY(mem_grow(&to->entries, 0, grown, sizeof *to->entries, "penalties"));
        to->capacity = grown;
    }
    if (from->n > 0) memcpy(to->entries, from->entries, from->n * sizeof *to->entries);
    to->n = from->n;
    to->n_counted = from->n_counted;
    to->forbids = from->forbids;
    return status_ok();
}

void adjusts_fini(struct adjusts *a)
{
    mem_free(&a->entries);
    *a = (struct adjusts){0};
}
