/* Copies between host and device. Weights and results go through pinned staging buffers, in the
 * order of the compute stream. The arguments that a step's launches read (device_call), and the
 * positions of its rows, go on a separate copy stream; the compute stream waits for it by an
 * event. Results wanted later are fetched together (device_get_later). */
#include "kernels/cuda/device_state.h"

#include "base/mem.h"

#include <string.h>

enum { CALL_ALIGN = 256, ROWS_WORDS_LEAST = 4096 };

static struct status made(struct device *d, int error, const char *what)
{
    (void)device_failed(d, error, what);
    return d->failed;
}

struct status device_copies_open(struct device *d)
{
    void *p = NULL;
    TRY(made(d, d->driver->stream_create(&d->copies), "making a stream"));
    TRY(made(d, d->driver->event_create(&d->copied), "making an event"));
    for (int i = 0; i < N_STAGES; i++) {
        TRY(made(d, d->driver->alloc_pinned(&d->stages[i].pinned, STAGE_BYTES), "pinned memory"));
        TRY(made(d, d->driver->event_create(&d->stages[i].event), "making an event"));
    }
    for (int i = 0; i < N_STAGES; i++) {
        TRY(made(d, d->driver->event_create(&d->row_slots[i].sent), "making an event"));
        TRY(made(d, d->driver->event_create(&d->row_slots[i].used), "making an event"));
    }
    TRY(made(d, d->driver->alloc_pinned(&d->results, RESULT_BYTES), "pinned memory"));
    TRY(made(d, d->driver->alloc_pinned(&p, CALL_BYTES), "pinned memory"));
    d->calls_pinned = p;
    TRY(device_alloc(d, &p, CALL_BYTES, "arguments"));
    d->calls = p;
    return device_alloc(d, &d->landing, STAGE_BYTES, "staging");
}

static void close_rows(struct device *d, struct device_rows *s)
{
    void *words = s->words;
    device_release(d, &words);
    s->words = NULL;
    if (s->pinned != NULL) (void)d->driver->release_pinned(s->pinned);
    s->pinned = NULL;
    s->n_words = 0;
}

void device_copies_close(struct device *d)
{
    void *calls = d->calls;
    device_release(d, &calls);
    device_release(d, &d->landing);
    if (d->calls_pinned != NULL) (void)d->driver->release_pinned(d->calls_pinned);
    if (d->results != NULL) (void)d->driver->release_pinned(d->results);
    for (int i = 0; i < N_STAGES; i++) {
        struct device_rows *s = &d->row_slots[i];
        close_rows(d, s);
        if (s->sent != NULL) (void)d->driver->event_destroy(s->sent);
        if (s->used != NULL) (void)d->driver->event_destroy(s->used);
        if (d->stages[i].pinned != NULL) (void)d->driver->release_pinned(d->stages[i].pinned);
        if (d->stages[i].event != NULL) (void)d->driver->event_destroy(d->stages[i].event);
    }
    for (int i = 0; i < DEVICE_WIRES; i++) mem_free(&d->wires[i].data);
    if (d->copied != NULL) (void)d->driver->event_destroy(d->copied);
    if (d->copies != NULL) (void)d->driver->stream_destroy(d->copies);
}

/* --- staging, in the compute stream's order -------------------------------------------------- */

struct device_stage *device_stage_next(struct device *d)
{
    struct device_stage *s = &d->stages[d->next_stage];
    d->next_stage = (d->next_stage + 1) % N_STAGES;
    if (s->busy) device_await(d, s->event);
    s->busy = false;
    return device_is_lost(d) ? NULL : s;
}

void device_stage_send(struct device *d, struct device_stage *s, void *to, size_t n_bytes)
{
    void *stream = device_compute(d);
    if (device_is_lost(d) ||
        device_failed(d, d->driver->copy(to, s->pinned, n_bytes, CUDA_COPY_IN, stream),
                      "a copy to the device") ||
        device_failed(d, d->driver->event_record(s->event, stream), "an event"))
        return;
    s->busy = true;
}

void device_put(struct device *d, void *to, const void *from, size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes && !device_is_lost(d); at += STAGE_BYTES) {
        const size_t n = n_bytes - at < STAGE_BYTES ? n_bytes - at : STAGE_BYTES;
        struct device_stage *s = device_stage_next(d);
        if (s == NULL) return;
        memcpy(s->pinned, (const char *)from + at, n);
        device_stage_send(d, s, (char *)to + at, n);
    }
}

static void fetch(struct device *d, void *to, const void *from, size_t n_bytes)
{
    void *stream = device_compute(d);
    if (!device_is_lost(d))
        (void)device_failed(d, d->driver->copy(to, from, n_bytes, CUDA_COPY_OUT, stream),
                            "a copy from the device");
}

void device_get(struct device *d, void *to, const void *from, size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes; at += STAGE_BYTES) {
        const size_t n = n_bytes - at < STAGE_BYTES ? n_bytes - at : STAGE_BYTES;
        struct device_stage *s = device_stage_next(d);
        if (s == NULL) return;
        fetch(d, s->pinned, (const char *)from + at, n);
        device_wait(d);
        if (device_is_lost(d)) return;
        memcpy((char *)to + at, s->pinned, n);
    }
}

/* --- results that are fetched together -------------------------------------------------------- */

void device_get_later(struct device *d, void *to, const void *from, size_t n_bytes)
{
    if (d->n_gets == DEVICE_GETS || n_bytes > RESULT_BYTES - d->gets_bytes) {
        device_get(d, to, from, n_bytes);
        return;
    }
    d->gets[d->n_gets++] = (struct device_get){to, from, n_bytes, d->gets_bytes};
    d->gets_bytes += (n_bytes + CALL_ALIGN - 1) / CALL_ALIGN * CALL_ALIGN;
    d->gets_bytes = d->gets_bytes < RESULT_BYTES ? d->gets_bytes : RESULT_BYTES;
}

void device_gets_start(struct device *d)
{
    for (uint32_t i = 0; i < d->n_gets; i++)
        fetch(d, (char *)d->results + d->gets[i].at, d->gets[i].from, d->gets[i].n_bytes);
}

void device_gets_end(struct device *d)
{
    for (uint32_t i = 0; i < d->n_gets && !device_is_lost(d); i++)
        memcpy(d->gets[i].to, (const char *)d->results + d->gets[i].at, d->gets[i].n_bytes);
    d->n_gets = 0;
    d->gets_bytes = 0;
}

struct status device_wire_reserve(struct device *d, enum device_wire which, size_t n_bytes)
{
    if (n_bytes <= d->wires[which].n_bytes && d->wires[which].data != NULL) return status_ok();
    mem_free(&d->wires[which].data);
    d->wires[which].n_bytes = 0;
    TRY(mem_alloc(&d->wires[which].data, n_bytes + n_bytes / 4, 1, "staging of collectives"));
    d->wires[which].n_bytes = n_bytes + n_bytes / 4;
    return status_ok();
}

/* --- arguments and rows, on the copy stream --------------------------------------------------- */

void *device_call(struct device *d, const void *from, size_t n_bytes)
{
    const size_t n = (n_bytes + CALL_ALIGN - 1) / CALL_ALIGN * CALL_ALIGN;
    if (device_is_lost(d)) return NULL;
    if (n > CALL_BYTES) {
        d->failed = status_make(STATUS_BUG, "GPU %d: %zu bytes of arguments for one call; %d fit",
                                d->index, n_bytes, CALL_BYTES);
        return NULL;
    }
    if (d->calls_at + n > CALL_BYTES) {
        device_send_calls(d); /* also the arguments of a launch that is still to come */
        device_wait_stream(d);
        d->calls_at = d->calls_sent = 0;
    }
    char *to = d->calls + d->calls_at;
    if (n_bytes > 0) memcpy(d->calls_pinned + d->calls_at, from, n_bytes);
    d->calls_at += n;
    return to;
}

/* Sends, in one copy, all arguments that have not been sent yet. No running kernel reads the memory
 * that is written: the ring restarts only when all work of the compute stream has ended. */
void device_send_calls(struct device *d)
{
    const size_t n = d->calls_at - d->calls_sent;
    if (device_is_lost(d)) return;
    if (n > 0) {
        if (device_failed(d,
                          d->driver->copy(d->calls + d->calls_sent, d->calls_pinned + d->calls_sent,
                                          n, CUDA_COPY_IN, d->copies),
                          "a copy to the device"))
            return;
        d->calls_sent = d->calls_at;
        d->copies_sent = true;
    }
    if (!d->copies_sent) return;
    d->copies_sent = false;
    if (!device_failed(d, d->driver->event_record(d->copied, d->copies), "an event"))
        (void)device_failed(d, d->driver->stream_await(d->stream, d->copied),
                            "waiting for an event");
}

/* Replaces the memory of s. Waits for the stream at the end, because the memory is allocated in
 * the order of the compute stream, but written on the copy stream. */
static struct status grow_rows(struct device *d, struct device_rows *s, size_t n_words)
{
    void *p = NULL;
    close_rows(d, s);
    const size_t n = n_words + n_words / 2 + ROWS_WORDS_LEAST;
    TRY(made(d, d->driver->alloc_pinned(&p, n * sizeof *s->pinned), "pinned memory"));
    s->pinned = p;
    TRY(device_alloc(d, &p, n * sizeof *s->words, "rows of a step"));
    s->words = p;
    s->n_words = n;
    device_wait_stream(d);
    return d->failed;
}

int32_t *device_rows_fill(struct device *d, size_t n_words)
{
    struct device_rows *last = &d->row_slots[d->row_slot];
    if (device_is_lost(d)) return NULL;
    if (d->rows_in_use) {
        if (device_failed(d, d->driver->event_record(last->used, device_compute(d)), "an event"))
            return NULL;
        last->was_used = true;
        d->row_slot = (d->row_slot + 1) % N_STAGES;
    } else {
        d->row_slot = 0; /* slot 0 again: graphs then see the same arguments */
    }
    struct device_rows *s = &d->row_slots[d->row_slot];
    if (s->busy) device_await(d, s->sent);
    s->busy = false;
    if (n_words > s->n_words) {
        device_wait_stream(d);
        const struct status st = device_is_lost(d) ? d->failed : grow_rows(d, s, n_words);
        if (status_failed(&st) && !device_is_lost(d)) d->failed = st;
    }
    return device_is_lost(d) ? NULL : s->pinned;
}

const int32_t *device_rows_send(struct device *d, size_t n_words)
{
    struct device_rows *s = &d->row_slots[d->row_slot];
    if (device_is_lost(d)) return NULL;
    if ((s->was_used &&
         device_failed(d, d->driver->stream_await(d->copies, s->used), "waiting for an event")) ||
        device_failed(d,
                      d->driver->copy(s->words, s->pinned, n_words * sizeof *s->words, CUDA_COPY_IN,
                                      d->copies),
                      "a copy to the device") ||
        device_failed(d, d->driver->event_record(s->sent, d->copies), "an event"))
        return NULL;
    s->was_used = false;
    s->busy = true;
    d->copies_sent = true;
    return s->words;
}
