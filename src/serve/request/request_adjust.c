/* One entry for each token that is anything but itself, by ascending id. */
#include "serve/request/request_adjust.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static bool counts_prompt(const struct request *r)
{
    return r->penalties.repetition != 1;
}

static bool counts_sampled(const struct request *r)
{
    return counts_prompt(r) || r->penalties.frequency != 0 || r->penalties.presence != 0;
}

static struct status reserve(struct request *r, size_t n)
{
    if (n <= r->adjusts_capacity) return status_ok();
    const size_t grown = n + n / 2 + 16;
    TRY(mem_grow(&r->adjusts, r->n_adjusts, grown, sizeof *r->adjusts, "penalties"));
    r->adjusts_capacity = grown;
    return status_ok();
}

static int compare_ids(const void *a, const void *b)
{
    const int32_t x = ((const struct plan_adjust *)a)->id, y = ((const struct plan_adjust *)b)->id;
    return (x > y) - (x < y);
}

/* Sorts, and makes one entry of those with the same id. */
static void merge(struct request *r)
{
    struct plan_adjust *a = r->adjusts;
    size_t n = 0;
    qsort(a, r->n_adjusts, sizeof *a, compare_ids);
    for (size_t i = 0; i < r->n_adjusts; i++) {
        if (n > 0 && a[n - 1].id == a[i].id) {
            a[n - 1].flags |= a[i].flags;
            a[n - 1].bias += a[i].bias; /* one of them has none */
        } else {
            a[n++] = a[i];
        }
    }
    r->n_adjusts = n;
}

/* What is there before the first token is sampled. */
static struct status begin(struct request *r, const struct request_rules *rules)
{
    const size_t n_prompt = counts_prompt(r) ? r->n_prompt : 0;
    const size_t n_ends = r->min_tokens > 0 ? rules->n_end_ids + r->n_stop_ids : 0;
    TRY(reserve(r, n_prompt + n_ends + r->n_biases));
    for (size_t i = 0; i < n_prompt; i++) {
        r->adjusts[r->n_adjusts++] =
            (struct plan_adjust){.id = r->tokens[i], .flags = PLAN_IN_PROMPT};
    }
    for (size_t i = 0; i < n_ends; i++) {
        const int32_t id =
            i < rules->n_end_ids ? rules->end_ids[i] : r->stop_ids[i - rules->n_end_ids];
        if (id < 0 || id >= rules->vocab_size) continue; /* a tokenizer may know more ids */
        r->adjusts[r->n_adjusts++] = (struct plan_adjust){.id = id, .flags = PLAN_FORBIDDEN};
    }
    if (r->n_biases > 0) {
        memcpy(r->adjusts + r->n_adjusts, r->biases, r->n_biases * sizeof *r->biases);
        r->n_adjusts += r->n_biases;
    }
    if (r->n_adjusts > 0) merge(r);
    return status_ok();
}

static struct status count(struct request *r, int32_t id)
{
    size_t low = 0, high = r->n_adjusts;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (r->adjusts[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == r->n_adjusts || r->adjusts[low].id != id) {
        TRY(reserve(r, r->n_adjusts + 1));
        struct plan_adjust *at = r->adjusts + low;
        memmove(at + 1, at, (r->n_adjusts - low) * sizeof *at);
        *at = (struct plan_adjust){.id = id};
        r->n_adjusts++;
    }
    r->adjusts[low].n_sampled++;
    return status_ok();
}

struct status request_adjust(struct request *r, const struct request_rules *rules)
{
    if (r->n_counted == 0) {
        TRY(begin(r, rules));
        r->n_counted = r->n_prompt;
        r->forbids = r->min_tokens > 0;
    }
    for (; r->n_counted < r->n_tokens; r->n_counted++) {
        if (counts_sampled(r)) TRY(count(r, r->tokens[r->n_counted]));
    }
    if (!r->forbids || r->n_tokens - r->n_prompt < (size_t)r->min_tokens) return status_ok();
    r->forbids = false;
    for (size_t i = 0; i < r->n_adjusts; i++) r->adjusts[i].flags &= ~(uint32_t)PLAN_FORBIDDEN;
    return status_ok();
}

struct status request_adjust_save(const struct request *r, struct request_adjusts *to)
{
    if (r->n_adjusts > to->capacity) {
        const size_t grown = r->n_adjusts + r->n_adjusts / 2;
        TRY(mem_grow(&to->entries, 0, grown, sizeof *to->entries, "penalties"));
        to->capacity = grown;
    }
    if (r->n_adjusts > 0) memcpy(to->entries, r->adjusts, r->n_adjusts * sizeof *to->entries);
    to->n = r->n_adjusts;
    to->n_counted = r->n_counted;
    to->forbids = r->forbids;
    return status_ok();
}

void request_adjust_restore(struct request *r, const struct request_adjusts *from)
{
    if (from->n > 0) memcpy(r->adjusts, from->entries, from->n * sizeof *from->entries);
    r->n_adjusts = from->n;
    r->n_counted = from->n_counted;
    r->forbids = from->forbids;
}

void request_adjusts_fini(struct request_adjusts *a)
{
    mem_free(&a->entries);
    *a = (struct request_adjusts){0};
}
