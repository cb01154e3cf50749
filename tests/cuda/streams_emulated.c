/* Streams and events of the emulated driver. Work waits in its stream's queue until an event is
 * queried; calls of the emulated NCCL run on their stream's thread. Called by the driver. */
#include "nccl_emulated.h"
#include "state_emulated.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GARBAGE = 0xA5, CANARY_BYTES = 64 };

struct emulated_state all;

pthread_mutex_t emulated_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* a call was queued, or a call ended */

int emulated_called(void)
{
    all.n_calls++;
    return all.e.lost_after > 0 && all.n_calls > all.e.lost_after ? EMULATED_LOST : 0;
}

void emulated_lose(void)
{
    all.e.lost_after = 1;
}

void emulated_open(size_t begin, size_t end, bool on)
{
    begin = begin / EMULATED_PAGE * EMULATED_PAGE;
    const size_t n = (end - begin + EMULATED_PAGE - 1) / EMULATED_PAGE * EMULATED_PAGE;
    if (n > 0 && mprotect(all.region + begin, n, on ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
        abort();
}

static void open_region(bool on)
{
    if (all.region != NULL) emulated_open(0, all.used, on);
}

/* Writes to a file per process in the folder SHOAL_EMULATED_RECORD: a line for each piece of work
 * in the order of queueing, "STREAM KIND", with the kernel's name after "launch" and the number of
 * the other stream after "await". */
static void record(const struct stream *s, const struct work *w)
{
    static const char *const kernel_names[] = {
#define X(name, args) #name,
        CUDA_KERNELS(X)
#undef X
    };
    static const char *const kinds[] = {"launch", "copy", "fill", "gemm", "call", "await"};
    const char *folder = getenv("SHOAL_EMULATED_RECORD");
    if (folder == NULL) return;
    if (all.record == NULL) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
        all.record = fopen(path, "w");
        if (all.record == NULL) abort();
        setvbuf(all.record, NULL, _IOLBF, 0);
    }
    fprintf(all.record, "%u %s", s->number, kinds[w->kind]);
    if (w->kind == WORK_LAUNCH) fprintf(all.record, " %s", kernel_names[w->kernel]);
    if (w->kind == WORK_AWAIT) fprintf(all.record, " %u", w->event.stream->number);
    fputc('\n', all.record);
}

void emulated_append(struct queue *q, const struct work *w)
{
    if (q->n == q->capacity) {
        q->capacity = q->capacity == 0 ? 64 : 2 * q->capacity;
        q->work = realloc(q->work, q->capacity * sizeof *q->work);
        if (q->work == NULL) abort();
    }
    q->work[q->n++] = *w;
}

void emulated_not_recording(void)
{
    if (all.graph != NULL) abort();
}

void emulated_put(struct stream *s, const struct work *w)
{
    emulated_append(&s->q, w);
    record(s, w);
}

int emulated_enqueue(void *stream, const struct work *w)
{
    all.fresh = NULL;
    const int error = emulated_called();
    if (error != 0) return error;
    if (all.graph != NULL) {
        emulated_append(all.graph, w);
        return 0;
    }
    if (all.e.dry != 0) return 0;
    pthread_mutex_lock(&emulated_lock);
    emulated_put(stream, w);
    pthread_mutex_unlock(&emulated_lock);
    return 0;
}

static void run_launch(const struct work *w)
{
    char *shared = malloc(w->grid.shared_bytes + CANARY_BYTES);
    if (shared == NULL) abort();
    for (uint32_t z = 0; z < w->grid.z; z++) {
        for (uint32_t y = 0; y < w->grid.y; y++) {
            for (uint32_t x = 0; x < w->grid.x; x++) {
                memset(shared, GARBAGE, w->grid.shared_bytes + CANARY_BYTES);
                emulated_kernels[w->kernel](w->args, (struct cuda_block){x, y, z}, shared);
                for (size_t i = 0; i < CANARY_BYTES; i++)
                    assert((unsigned char)shared[w->grid.shared_bytes + i] == GARBAGE);
            }
        }
    }
    free(shared);
    all.n_launches++;
}

static void run_one(const struct work *w)
{
    if (!all.is_open) open_region(true);
    all.is_open = true;
    if (w->kind == WORK_LAUNCH) run_launch(w);
    if (w->kind == WORK_COPY) memmove(w->to, w->from, w->n_bytes);
    if (w->kind == WORK_FILL) memset(w->to, w->byte, w->n_bytes);
    if (w->kind == WORK_GEMM) emulated_gemm(&w->gemm, &all.e);
}

void emulated_close_region(void)
{
    if (all.is_open) open_region(false);
    all.is_open = false;
}

static void step(struct stream *s)
{
    s->n_done++;
    if (++s->q.head == s->q.n) s->q.head = s->q.n = 0;
}

bool emulated_run_until(struct event e)
{
    struct stream *s = e.stream;
    while (s != NULL && s->n_done < e.at && s->q.head < s->q.n) {
        const struct work *w = &s->q.work[s->q.head];
        if (w->kind == WORK_CALL || (w->kind == WORK_AWAIT && !emulated_run_until(w->event)))
            return false;
        if (w->kind != WORK_AWAIT) run_one(w);
        step(s);
    }
    return true;
}

struct event emulated_all_of(struct stream *s)
{
    return (struct event){s, s->n_done + (s->q.n - s->q.head)};
}

bool emulated_run_streams(void)
{
    bool done = true;
    for (struct stream *s = all.streams; s != NULL; s = s->next)
        done = emulated_run_until(emulated_all_of(s)) && done;
    emulated_close_region();
    return done;
}

/* A stream's thread: runs its calls, and the work before them. */
static void *run_calls(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&emulated_lock);
    for (;;) {
        while (s->n_calls == 0) pthread_cond_wait(&changed, &emulated_lock);
        while (s->q.work[s->q.head].kind != WORK_CALL) {
            if (emulated_run_until((struct event){s, s->n_done + 1})) continue;
            emulated_close_region();
            pthread_cond_wait(&changed, &emulated_lock);
        }
        emulated_close_region();
        const struct work w = s->q.work[s->q.head];
        pthread_mutex_unlock(&emulated_lock);
        w.call(w.arg);
        pthread_mutex_lock(&emulated_lock);
        step(s);
        s->n_calls--;
        pthread_cond_broadcast(&changed);
    }
    return arg;
}

int emulated_call(void *stream, void (*run)(void *arg), void *arg)
{
    struct stream *s = stream;
    const int error = emulated_called();
    if (error != 0) return error;
    pthread_mutex_lock(&emulated_lock);
    pthread_t thread;
    if (!s->has_thread && pthread_create(&thread, NULL, run_calls, s) != 0) abort();
    s->has_thread = true;
    emulated_put(s, &(struct work){.kind = WORK_CALL, .call = run, .arg = arg});
    s->n_calls++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&emulated_lock);
    return 0;
}

int emulated_stream_create(void **out)
{
    struct stream *s = calloc(1, sizeof *s);
    if (s == NULL) abort();
    pthread_mutex_lock(&emulated_lock);
    s->is_side = all.streams != NULL;
    s->number = all.n_streams++;
    s->next = all.streams;
    all.streams = s;
    pthread_mutex_unlock(&emulated_lock);
    *out = s;
    return emulated_called();
}

/* Runs the stream's remaining work now; calls are left to its thread. */
int emulated_stream_destroy(void *stream)
{
    struct stream *s = stream, **at = &all.streams;
    pthread_mutex_lock(&emulated_lock);
    (void)emulated_run_until(emulated_all_of(s));
    emulated_close_region();
    while (*at != s) at = &(*at)->next;
    if (!s->has_thread) {
        *at = s->next;
        free(s->q.work);
        free(s);
    }
    pthread_mutex_unlock(&emulated_lock);
    return 0;
}

int emulated_event_create(void **out)
{
    *out = calloc(1, sizeof(struct event));
    if (*out == NULL) abort();
    return emulated_called();
}

int emulated_event_destroy(void *event)
{
    free(event);
    return 0;
}

int emulated_event_record(void *event, void *stream)
{
    emulated_not_recording();
    pthread_mutex_lock(&emulated_lock);
    *(struct event *)event = emulated_all_of(stream);
    pthread_mutex_unlock(&emulated_lock);
    return emulated_called();
}

int emulated_event_query(void *event, bool *done)
{
    emulated_not_recording();
    const int error = emulated_called();
    if (error != 0) return error;
    *done = all.e.hangs_after == 0 || all.n_launches < all.e.hangs_after;
    pthread_mutex_lock(&emulated_lock);
    if (*done) *done = emulated_run_until(*(struct event *)event);
    emulated_close_region();
    pthread_mutex_unlock(&emulated_lock);
    return 0;
}

int emulated_stream_await(void *stream, void *event)
{
    const struct event *e = event;
    emulated_not_recording();
    if (e->stream == NULL) return emulated_called();
    return emulated_enqueue(stream, &(struct work){.kind = WORK_AWAIT, .event = *e});
}
