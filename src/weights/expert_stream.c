/* The caller's side of a stream of experts: begins blocks, hands out runs of needs whose experts
 * are in memory, chooses each layer's home, starts and ends the stream. */
#include "weights/expert_stream.h"

#include "base/clock.h"
#include "base/mem.h"
#include "weights/expert_stream_private.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum {
    HOME_PASSES = 8,    /* blocks of a layer until its home is chosen again */
    RATE_HALF_LIFE = 8, /* a rate is a mean over about this many blocks */
};

struct rated {
    float rate;
    uint32_t expert;
};

static int by_rate(const void *left, const void *right)
{
    const struct rated *a = left, *b = right;
    if (a->rate != b->rate) return a->rate < b->rate ? 1 : -1;
    return a->expert < b->expert ? -1 : 1;
}

/* Chooses a layer's home: its experts with the highest rates. An expert that is there stays unless
 * another one is needed clearly more often, because a change costs a read. */
static void choose_home(struct expert_stream *s, uint32_t layer)
{
    struct rated list[4096];
    const uint32_t n = s->n_local < 4096 ? s->n_local : 4096;
    for (uint32_t x = 0; x < n; x++) {
        const struct stream_entry *e = stream_entry_of(s, layer, x);
        list[x] = (struct rated){e->rate + (e->is_home ? 0.1f : 0), x};
    }
    qsort(list, n, sizeof *list, by_rate);
    for (uint32_t i = 0; i < n; i++)
        stream_entry_of(s, layer, list[i].expert)->is_home = i < s->n_home;
}

/* Ends the run that the caller has computed; s->layer is still that run's. */
static void end_run(struct expert_stream *s)
{
    for (size_t i = s->run.first; i < s->run.first + s->run.n; i++)
        stream_entry_of(s, s->layer, s->needs[i].expert)->is_in_use = false;
    s->run = (struct expert_run){0, 0};
}

static void count_needs(struct expert_stream *s)
{
    struct stream_layer *layer = &s->layers[s->layer];
    for (uint32_t x = 0; x < s->n_local; x++) {
        struct stream_entry *e = stream_entry_of(s, s->layer, x);
        const float had_rows = e->need != STREAM_NONE;
        e->rate += (had_rows - e->rate) / RATE_HALF_LIFE;
        if (e->need == STREAM_NONE) continue;
        s->stats.n_needed++;
        s->stats.n_held += e->state != STREAM_ABSENT;
        s->stats.n_rows += s->needs[e->need].n_rows;
    }
    s->stats.n_blocks++;
    if (++layer->n_passes % HOME_PASSES == 0) choose_home(s, s->layer);
}

void expert_stream_begin(struct expert_stream *s, uint32_t in_stage,
                         const struct expert_need *needs, size_t n, bool in_order, size_t most_rows)
{
    assert(n <= s->n_local);
    if (n == 0) return;
    pthread_mutex_lock(&s->lock);
    end_run(s); /* of the last block */
    s->layer = s->layer_at[in_stage];
    memcpy(s->needs, needs, n * sizeof *needs);
    memset(s->is_done, 0, n * sizeof *s->is_done);
    for (size_t i = 0; i < n; i++) stream_entry_of(s, s->layer, needs[i].expert)->need = (int32_t)i;
    s->n_needs = n;
    s->n_done = 0;
    s->first_left = 0;
    s->in_order = in_order;
    s->most_rows = most_rows;
    count_needs(s);
    pthread_cond_signal(&s->to_reader);
    pthread_mutex_unlock(&s->lock);
}

static bool is_ready(struct expert_stream *s, size_t i)
{
    return !s->is_done[i] &&
           stream_entry_of(s, s->layer, s->needs[i].expert)->state == STREAM_READY;
}

/* Returns the first need that is in memory, with the needs right after it that are, too, up to
 * most_rows rows; n = 0: none is in memory. With in_order, the run is the first need that is left,
 * or nothing. */
static struct expert_run find_run(struct expert_stream *s)
{
    struct expert_run run = {s->first_left, 0};
    while (run.first < s->n_needs && !is_ready(s, run.first)) {
        if (s->in_order) return run;
        run.first++;
    }
    size_t n_rows = 0;
    for (size_t i = run.first; i < s->n_needs && is_ready(s, i); i++) {
        n_rows += s->needs[i].n_rows;
        if (run.n > 0 && (s->in_order || n_rows > s->most_rows)) break;
        run.n++;
    }
    return run;
}

/* Marks a run as the caller's and points the layer's weights to its slots. */
static void take_run(struct expert_stream *s, struct expert_run run)
{
    const struct stream_layer *layer = &s->layers[s->layer];
    for (size_t i = run.first; i < run.first + run.n; i++) {
        const uint32_t x = s->needs[i].expert;
        struct stream_entry *e = stream_entry_of(s, s->layer, x);
        const char *base = s->memory + (size_t)e->slot * s->slot_bytes;
        for (int k = 0; k < EXPERT_MATRIX_COUNT; k++)
            layer->matrix[k][x] = expert_shape_at(&layer->shape, (enum expert_matrix)k, base);
        e->need = STREAM_NONE;
        e->is_in_use = true;
        s->is_done[i] = true;
    }
    s->n_done += run.n;
    s->run = run;
    while (s->first_left < s->n_needs && s->is_done[s->first_left]) s->first_left++;
}

struct status expert_stream_next(struct expert_stream *s, struct expert_run *run)
{
    pthread_mutex_lock(&s->lock);
    end_run(s);
    pthread_cond_signal(&s->to_reader);
    *run = find_run(s);
    if (run->n == 0 && s->n_done < s->n_needs) {
        const uint64_t since = clock_ns();
        while (run->n == 0 && !status_failed(&s->status)) {
            pthread_cond_wait(&s->to_caller, &s->lock);
            *run = find_run(s);
        }
        s->stats.wait_ns += clock_ns() - since;
    }
    const struct status st = s->status;
    if (!status_failed(&st) && run->n > 0) take_run(s, *run);
    pthread_mutex_unlock(&s->lock);
    return st;
}

struct expert_stream_stats expert_stream_stats_of(struct expert_stream *s)
{
    pthread_mutex_lock(&s->lock);
    const struct expert_stream_stats stats = s->stats;
    pthread_mutex_unlock(&s->lock);
    return stats;
}

struct status expert_stream_create(struct expert_stream **out)
{
    struct expert_stream *s = NULL;
    *out = NULL;
    TRY(mem_alloc(&s, 1, sizeof *s, "streamed experts"));
    s->status = status_ok();
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->to_reader, NULL);
    pthread_cond_init(&s->to_caller, NULL);
    *out = s;
    return status_ok();
}

struct status expert_stream_set(struct expert_stream *s)
{
    const size_t n = (size_t)s->n_layers * s->n_local;
    s->layer = s->n_layers;
    TRY(mem_alloc(&s->entries, n, sizeof *s->entries, "streamed experts"));
    TRY(mem_alloc(&s->needs, s->n_local, sizeof *s->needs, "streamed experts"));
    TRY(mem_alloc(&s->is_done, s->n_local, sizeof *s->is_done, "streamed experts"));
    for (size_t i = 0; i < n; i++)
        s->entries[i] = (struct stream_entry){.slot = STREAM_NONE, .need = STREAM_NONE, .rate = 1};
    return status_ok();
}

uint64_t expert_stream_one_bytes(const struct expert_stream *s)
{
    return s->slot_bytes;
}

/* Returns the number of slots for the ring (expert_stream.h): a quarter of n_slots, but at least
 * the smaller of half of them and 2 EXPERT_STREAM_DEPTH, so that several reads are in flight while
 * the reader waits for a core; never below EXPERT_STREAM_LEAST. */
static uint64_t ring_slots(uint64_t n_slots)
{
    const uint64_t half = n_slots / 2, most = 2 * EXPERT_STREAM_DEPTH, quarter = n_slots / 4;
    const uint64_t ring = half < most ? half : quarter > most ? quarter : most;
    return ring > EXPERT_STREAM_LEAST ? ring : EXPERT_STREAM_LEAST;
}

struct status expert_stream_start(struct expert_stream *s, uint64_t n_bytes)
{
    const uint64_t n_entries = (uint64_t)s->n_layers * s->n_local;
    uint64_t n_slots = s->slot_bytes > 0 ? n_bytes / s->slot_bytes : 0;
    if (n_slots > n_entries) n_slots = n_entries;
    if (n_slots < EXPERT_STREAM_LEAST)
        n_slots = n_entries < EXPERT_STREAM_LEAST ? n_entries : EXPERT_STREAM_LEAST;
    const uint64_t ring = ring_slots(n_slots);
    s->n_slots = (uint32_t)n_slots;
    s->n_home = n_slots == n_entries ? s->n_local
                : n_slots <= ring    ? 0
                                     : (uint32_t)((n_slots - ring) / s->n_layers);
    if (n_slots == 0) return status_ok();
    s->stats.held_bytes = n_slots * s->slot_bytes;
    TRY(mem_map(&s->memory, s->stats.held_bytes, "memory for streamed experts"));
    TRY(mem_alloc(&s->in_slot, n_slots, sizeof *s->in_slot, "streamed experts"));
    for (uint32_t i = 0; i < s->n_slots; i++) s->in_slot[i] = STREAM_NONE;
    s->n_free = s->n_slots;
    for (uint32_t layer = 0; layer < s->n_layers; layer++) choose_home(s, layer);
    const struct status direct =
        direct_reads_create(expert_file_descriptor(s->file), 0, EXPERT_STREAM_DEPTH, &s->direct);
    if (direct.code == STATUS_MEMORY) return direct; /* else read in the plain way */
    sigset_t all, before;
    sigfillset(&all); /* the main thread handles signals */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->has_thread = pthread_create(&s->thread, NULL, expert_stream_read, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return s->has_thread ? status_ok()
                         : status_make(STATUS_MEMORY, "the experts' reader: no thread");
}

void expert_stream_destroy(struct expert_stream **s_)
{
    struct expert_stream *s = *s_;
    if (s == NULL) return;
    pthread_mutex_lock(&s->lock);
    s->is_over = true;
    pthread_cond_signal(&s->to_reader);
    pthread_mutex_unlock(&s->lock);
    if (s->has_thread) pthread_join(s->thread, NULL);
    direct_reads_destroy(&s->direct);
    pthread_cond_destroy(&s->to_caller);
    pthread_cond_destroy(&s->to_reader);
    pthread_mutex_destroy(&s->lock);
    if (s->memory != NULL) mem_unmap(&s->memory, s->stats.held_bytes);
    expert_file_close(&s->file);
    mem_free(&s->is_done);
    mem_free(&s->needs);
    mem_free(&s->in_slot);
    mem_free(&s->entries);
    mem_free(&s->layers);
    mem_free(&s->layer_at);
    mem_free(s_);
}
