/* The reader of a stream of experts: chooses the experts to read and to replace, reads and
 * verifies. */
#include "weights/expert_stream_private.h"

#include "base/clock.h"

#include <string.h>

/* A read that is in flight, or has arrived and waits to be verified. */
struct flight {
    int32_t entry;
    uint32_t read; /* its number in s->direct */
    struct expert_file_place place;
    char *to;
};

struct reader {
    struct expert_stream *s;
    struct flight flights[EXPERT_STREAM_DEPTH]; /* a ring: [first, first + n) */
    uint32_t first, n;
};

/* Returns the expected number of blocks until an expert of `layer` is needed again: each step that
 * does not need the expert adds a pass through all layers. */
static float distance(const struct expert_stream *s, uint32_t layer, const struct stream_entry *e)
{
    const uint32_t n = s->n_layers, at = s->layer < n ? s->layer : n - 1;
    const uint32_t ahead = layer > at ? layer - at : layer + n - at;
    const float least = 1.0f / 64, rate = e->rate > least ? e->rate : least;
    return (float)ahead + (1 / rate - 1) * (float)n;
}

/* Returns the entry in memory to drop for a read: of the entries that are farther away than `limit`
 * (distance), not needed by the current block and not in use, the farthest one. STREAM_NONE: there
 * is none. Experts in a layer's home (is_home) stay: computing frees enough of the other slots. */
static int32_t victim(struct expert_stream *s, float limit)
{
    int32_t best = STREAM_NONE;
    float best_at = limit;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const int32_t at = s->in_slot[i];
        if (at == STREAM_NONE) continue;
        const struct stream_entry *e = &s->entries[at];
        if (e->state != STREAM_READY || e->need != STREAM_NONE || e->is_in_use || e->is_home)
            continue;
        const float d = distance(s, (uint32_t)at / s->n_local, e);
        if (d <= best_at) continue;
        best = at;
        best_at = d;
    }
    return best;
}

/* Returns, among needs that must be computed in order, one that comes after `need` and is in
 * memory: when all slots hold such needs, the only way on is to drop one and read it again later.
 */
static int32_t later_need(struct expert_stream *s, int32_t need)
{
    for (size_t i = s->n_needs; i-- > (size_t)need + 1;) {
        const struct stream_entry *e = stream_entry_of(s, s->layer, s->needs[i].expert);
        if (e->need >= 0 && e->state == STREAM_READY && !e->is_in_use)
            return (int32_t)(e - s->entries);
    }
    return STREAM_NONE;
}

/* Gives the entry a slot: a free one, or that of an entry that victim or later_need lets go. False:
 * there is none. */
static bool claim_slot(struct expert_stream *s, struct stream_entry *e, float limit)
{
    uint32_t slot = 0;
    if (s->n_free > 0) {
        while (s->in_slot[slot] != STREAM_NONE) slot++;
        s->n_free--;
    } else {
        int32_t out = victim(s, limit);
        if (out == STREAM_NONE && e->need != STREAM_NONE && s->in_order)
            out = later_need(s, e->need);
        if (out == STREAM_NONE) return false;
        slot = (uint32_t)s->entries[out].slot;
        s->entries[out].slot = STREAM_NONE;
        s->entries[out].state = STREAM_ABSENT;
    }
    s->in_slot[slot] = (int32_t)(e - s->entries);
    e->slot = (int32_t)slot;
    e->state = STREAM_READING;
    return true;
}

/* Returns the block's next need that is not in memory; NULL: there is none. */
static struct stream_entry *next_need(struct expert_stream *s)
{
    for (size_t i = s->first_left; i < s->n_needs; i++) {
        struct stream_entry *e = stream_entry_of(s, s->layer, s->needs[i].expert);
        if (!s->is_done[i] && e->state == STREAM_ABSENT) return e;
    }
    return NULL;
}

/* Claims a slot for an expert of the next layers: the first that is absent and will probably be
 * needed. NULL: there is none, or no room for it. */
static struct stream_entry *claim_ahead(struct expert_stream *s)
{
    const uint32_t n = s->n_layers, at = s->layer < n ? s->layer : n - 1;
    for (uint32_t i = 1; i < n + (s->layer == n); i++) {
        const uint32_t layer = (at + i) % n;
        for (uint32_t x = 0; x < s->n_local; x++) {
            struct stream_entry *e = stream_entry_of(s, layer, x);
            if (e->state != STREAM_ABSENT || e->rate < 0.5f) continue;
            return claim_slot(s, e, distance(s, layer, e)) ? e : NULL;
        }
    }
    return NULL;
}

/* Returns the expert to read next, with a slot of its own; NULL: none, or no room. */
static struct stream_entry *claim(struct expert_stream *s)
{
    struct stream_entry *e = next_need(s);
    if (e != NULL) return claim_slot(s, e, 0) ? e : NULL;
    return claim_ahead(s);
}

/* Starts to read an entry. Called and returns with the lock held. */
static void start_read(struct reader *r, const struct stream_entry *e)
{
    struct expert_stream *s = r->s;
    const uint32_t at = (uint32_t)(e - s->entries);
    const struct stream_layer *layer = &s->layers[at / s->n_local];
    const uint32_t place = s->first_place + at % s->n_local;
    const uint32_t expert = layer->expert_at != NULL ? layer->expert_at[place] : place;
    struct flight *f = &r->flights[(r->first + r->n) % EXPERT_STREAM_DEPTH];
    *f = (struct flight){.entry = (int32_t)at,
                         .read = (r->first + r->n) % EXPERT_STREAM_DEPTH,
                         .place = expert_file_find(s->file, layer->file_layer, s->part, expert),
                         .to = s->memory + (size_t)e->slot * s->slot_bytes};
    r->n++;
    if (s->direct == NULL) return;
    pthread_mutex_unlock(&s->lock);
    direct_reads_start_into(s->direct, f->read, f->to, f->place.offset, f->place.n_bytes);
    pthread_mutex_lock(&s->lock);
}

/* Waits for the oldest read and verifies it. If bytes are missing or wrong, reads them once more in
 * the plain way, which succeeds or says why not. */
static struct status end_read(const struct expert_stream *s, const struct flight *f)
{
    char *bytes;
    const bool arrived = s->direct != NULL && direct_reads_wait(s->direct, f->read, &bytes);
    const int error = failpoint_pass(s->failpoint, FAILPOINT_EXPERT_READ);
    if (error != 0) {
        return status_make(STATUS_IO, "%s: reading at byte %llu: %s", expert_file_path(s->file),
                           (unsigned long long)f->place.offset, strerror(error));
    }
    if (arrived && expert_file_matches(&f->place, f->to)) return status_ok();
    return expert_file_read(s->file, &f->place, f->to);
}

/* Ends the oldest read. Called and returns with the lock held. */
static void take_read(struct reader *r)
{
    struct expert_stream *s = r->s;
    const struct flight f = r->flights[r->first];
    pthread_mutex_unlock(&s->lock);
    const struct status st = end_read(s, &f);
    pthread_mutex_lock(&s->lock);
    r->first = (r->first + 1) % EXPERT_STREAM_DEPTH;
    r->n--;
    s->stats.cpu_ns = clock_thread_ns();
    s->stats.n_reads++;
    s->stats.n_bytes += f.place.n_bytes;
    s->entries[f.entry].state = STREAM_READY;
    if (status_failed(&st) && !status_failed(&s->status)) s->status = st;
    pthread_cond_signal(&s->to_caller);
}

void *expert_stream_read(void *arg)
{
    struct expert_stream *s = arg;
    struct reader r = {.s = s};
    (void)sched_setaffinity(0, sizeof s->cpus, &s->cpus);
    pthread_mutex_lock(&s->lock);
    while (!s->is_over) {
        struct stream_entry *e = NULL;
        const bool goes_on = !status_failed(&s->status);
        while (goes_on && r.n < EXPERT_STREAM_DEPTH && (e = claim(s)) != NULL) start_read(&r, e);
        if (r.n > 0) {
            take_read(&r);
        } else {
            pthread_cond_wait(&s->to_reader, &s->lock);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL; /* direct_reads_destroy waits for the reads that are still in flight */
}
