/* Writes sorted runs, and keeps their filters in memory. A look-up reads one page of each run whose
 * filter cannot rule the id out. */
#include "serve/journal/id_spill.h"

#include "base/mem.h"
#include "base/strbuf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE_IDS = 256, LINE_WORDS = 8, LINE_BITS = 512, BITS_PER_ID = 10, N_PROBES = 6 };

struct status id_spill_init(struct id_spill *s, const char *path)
{
    *s = (struct id_spill){.fd = -1};
    struct strbuf name;
    strbuf_init(&name);
    strbuf_printf(&name, "%s.ids-XXXXXX", path);
    struct status st = strbuf_status(&name);
    if (!status_failed(&st)) {
        s->fd = mkostemp(name.data, O_CLOEXEC);
        if (s->fd < 0) {
            st = status_make(STATUS_IO, "%s: cannot be made: %s", name.data, strerror(errno));
        } else {
            unlink(name.data);
        }
    }
    strbuf_fini(&name);
    return st;
}

static void id_spill_run_fini(struct id_run *r)
{
    mem_free(&r->filter);
    mem_free(&r->first);
}

void id_spill_fini(struct id_spill *s)
{
    if (s->fd >= 0) close(s->fd);
    for (size_t i = 0; i < s->n_runs; i++) id_spill_run_fini(&s->runs[i]);
    mem_free(&s->runs);
    *s = (struct id_spill){.fd = -1};
}

static int id_spill_compare(const void *left, const void *right)
{
    const struct id_hash *a = left, *b = right;
    if (a->low != b->low) return a->low < b->low ? -1 : 1;
    return (a->high > b->high) - (a->high < b->high);
}

/* Returns the cache line of a run's filter to which h belongs. */
static uint64_t *id_spill_line_of(const struct id_run *r, struct id_hash h)
{
    const size_t line = (size_t)((h.high >> 32) * r->n_filter >> 32);
    return r->filter + line * LINE_WORDS;
}

static bool may_have(const struct id_run *r, struct id_hash h)
{
    const uint64_t *line = id_spill_line_of(r, h);
    for (int i = 0; i < N_PROBES; i++) {
        const uint64_t bit = h.low >> (9 * i) & (LINE_BITS - 1);
        if ((line[bit / 64] >> (bit % 64) & 1) == 0) return false;
    }
    return true;
}

static struct status make_index(struct id_run *r, const struct id_hash *ids)
{
    r->n_filter = r->n * BITS_PER_ID / LINE_BITS + 1;
    TRY(mem_alloc(&r->filter, r->n_filter * LINE_WORDS, sizeof *r->filter, "filter of ids"));
    TRY(mem_alloc(&r->first, (r->n + PAGE_IDS - 1) / PAGE_IDS, sizeof *r->first, "index of ids"));
    for (size_t i = 0; i < r->n; i++) {
        uint64_t *line = id_spill_line_of(r, ids[i]);
        for (int k = 0; k < N_PROBES; k++) {
            const uint64_t bit = ids[i].low >> (9 * k) & (LINE_BITS - 1);
            line[bit / 64] |= (uint64_t)1 << (bit % 64);
        }
        if (i % PAGE_IDS == 0) r->first[i / PAGE_IDS] = ids[i];
    }
    return status_ok();
}

static struct status id_spill_write_all(const struct id_spill *s, const void *bytes, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t wrote =
            pwrite(s->fd, (const char *)bytes + done, n - done, (off_t)(s->end + done));
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) {
            return status_make(STATUS_IO, "the file of custom_ids: writing %zu bytes failed: %s", n,
                               wrote < 0 ? strerror(errno) : "nothing was taken");
        }
        done += (size_t)wrote;
    }
    return status_ok();
}

struct status id_spill_add(struct id_spill *s, struct id_hash *ids, size_t n)
{
    struct id_run run = {.at = s->end, .n = n};
    qsort(ids, n, sizeof *ids, id_spill_compare);
    TRY(mem_grow(&s->runs, s->n_runs, s->n_runs + 1, sizeof *s->runs, "runs of ids"));
    struct status st = make_index(&run, ids);
    if (!status_failed(&st)) st = id_spill_write_all(s, ids, n * sizeof *ids);
    if (status_failed(&st)) {
        id_spill_run_fini(&run);
        return st;
    }
    s->end += n * sizeof *ids;
    s->runs[s->n_runs++] = run;
    return st;
}

/* Reads the page of a run that would contain h. *found: whether it does; unchanged if h is below
 * the run's first id. */
static struct status search(const struct id_spill *s, const struct id_run *r, struct id_hash h,
                            bool *found)
{
    struct id_hash page[PAGE_IDS];
    size_t low = 0, high = (r->n + PAGE_IDS - 1) / PAGE_IDS; /* first[low] <= h < first[high] */
    if (id_spill_compare(&h, &r->first[0]) < 0) return status_ok();
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        *(id_spill_compare(&r->first[middle], &h) <= 0 ? &low : &high) = middle;
    }
    const size_t left = r->n - low * PAGE_IDS, n = left < PAGE_IDS ? left : PAGE_IDS;
    const off_t at = (off_t)(r->at + low * PAGE_IDS * sizeof *page);
    ssize_t got;
    do {
        got = pread(s->fd, page, n * sizeof *page, at);
    } while (got < 0 && errno == EINTR);
    if (got != (ssize_t)(n * sizeof *page)) {
        return status_make(STATUS_IO, "the file of custom_ids: reading at byte %lld failed: %s",
                           (long long)at, got < 0 ? strerror(errno) : "it is too short");
    }
    *found = bsearch(&h, page, n, sizeof *page, id_spill_compare) != NULL;
    return status_ok();
}

struct status id_spill_find(const struct id_spill *s, struct id_hash h, bool *found)
{
    *found = false;
    for (size_t i = 0; i < s->n_runs && !*found; i++) {
        if (may_have(&s->runs[i], h)) TRY(search(s, &s->runs[i], h, found));
    }
    return status_ok();
}
