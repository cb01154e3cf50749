/* A cuda_driver that runs the kernels' own source on the CPU, one block after the other. Work waits
 * in its stream's queue until somebody asks for an event, so that host memory which is reused too
 * early shows, and work of one stream that should have waited for another's does not find it done;
 * device memory can be touched by that work alone, so that host code which dereferences an array of
 * the device ends at once; shared memory starts as garbage and its end is watched. Calls of the
 * emulated NCCL (and what stands before them) run at once, on a thread, since other ranks wait for
 * them. It says nothing about a real GPU. */
#include "driver_emulated.h"

#include "kernels/cuda/driver.h"
#include "nccl_emulated.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct cuda_block {
    uint32_t x, y, z;
};

#define X(name, args) void cuda_run_##name(const void *a, struct cuda_block b, void *shared);
CUDA_KERNELS(X)
#undef X

typedef void run_block(const void *a, struct cuda_block b, void *shared);
static run_block *const kernels[CUDA_KERNEL_COUNT] = {
#define X(name, args) cuda_run_##name,
    CUDA_KERNELS(X)
#undef X
};
static const size_t args_bytes[CUDA_KERNEL_COUNT] = {
#define X(name, args) sizeof(struct args),
    CUDA_KERNELS(X)
#undef X
};

enum { GARBAGE = 0xA5, CANARY_BYTES = 64 };
static const size_t region_bytes = (size_t)1 << 36;

struct stream;

/* Work of a stream up to its at-th piece. */
struct event {
    struct stream *stream; /* NULL: nothing */
    uint64_t at;
};

enum work_kind { WORK_LAUNCH, WORK_COPY, WORK_FILL, WORK_GEMM, WORK_CALL, WORK_AWAIT };
struct work {
    enum work_kind kind;
    enum cuda_kernel kernel;
    struct cuda_grid grid;
    char args[sizeof(struct attention_work_cuda)];
    struct cuda_gemm gemm;
    void *to;
    const void *from;
    size_t n_bytes;
    int byte;
    void (*call)(void *arg);
    void *arg;
    struct event event;
};

struct queue {
    struct work *work;
    size_t head, n, capacity; /* [head, n) is still to be run */
    struct event launched;    /* of a graph: the end of its last launch */
};

/* Copies to the device on another stream than the first run at once (unless it has something to do
 * before), or only when somebody waits for them: emulated.copies. A missing wait shows one way or
 * the other. */
struct stream {
    struct queue q;
    uint64_t n_done; /* pieces run so far; with those in q, pieces put */
    size_t n_calls;  /* among these: its thread's, with what stands before them */
    bool has_thread, is_side;
    unsigned number; /* in the order of making, for the record */
    struct stream *next;
};

static struct {
    struct emulated e;
    bool is_read, is_open; /* open: device memory, to the work that runs */
    char *region;
    size_t used, n_arrays; /* n_arrays were given out and not taken back */
    const void *fresh;     /* given out last and not touched: zeros, whose pages cost nothing */
    uint64_t n_calls, n_launches, n_bad_launches, n_side;
    struct stream *streams; /* all */
    unsigned n_streams;     /* made so far */
    struct queue *graph;    /* NULL, or what is recorded now */
    FILE *record;           /* of what was put where; NULL: nobody asked */
} all;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  /* of the streams and of device memory */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* a call was put, or a call ended */

void emulated_set(struct emulated e)
{
    all.e = e;
    all.is_read = true;
    all.n_calls = 0;
    all.n_launches = all.n_bad_launches = 0;
    all.used = 0;
    for (struct stream *o = all.streams; o != NULL; o = o->next) o->q.head = o->q.n = 0;
}

uint64_t emulated_bad_launches(void)
{
    return all.n_bad_launches;
}

uint64_t emulated_launches(void)
{
    return all.n_launches;
}

static uint64_t word(const char *text, const char *name)
{
    const char *at = text != NULL ? strstr(text, name) : NULL;
    return at != NULL ? strtoull(at + strlen(name), NULL, 10) : 0;
}

uint64_t emulated_word(const char *name)
{
    return word(getenv("SHOAL_EMULATED"), name);
}

static void read_environment(void)
{
    if (all.is_read) return;
    const char *text = getenv("SHOAL_EMULATED");
    all.is_read = true;
    all.e = (struct emulated){.devices = word(text, "devices="),
                              .count_error = word(text, "count_error="),
                              .major = word(text, "major="),
                              .another_from = word(text, "another_from="),
                              .memory_bytes = word(text, "memory="),
                              .launch_error = word(text, "launch_error="),
                              .lost_after = word(text, "lost="),
                              .hangs_after = word(text, "hangs="),
                              .copies = word(text, "copies="),
                              .no_graphs = word(text, "no_graphs="),
                              .stale_graphs = word(text, "stale_graphs="),
                              .no_gemm = word(text, "no_gemm="),
                              .gemm_varies = word(text, "gemm_varies="),
                              .gemm_wide = word(text, "gemm_wide="),
                              .faults_from = word(text, "faults_from=")};
}

static int called(void)
{
    all.n_calls++;
    return all.e.lost_after > 0 && all.n_calls > all.e.lost_after ? EMULATED_LOST : 0;
}

static void open_region(bool on)
{
    if (all.region == NULL) return;
    const size_t n = (all.used + 4095) / 4096 * 4096;
    if (n > 0 && mprotect(all.region, n, on ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) abort();
}

/* SHOAL_EMULATED_RECORD, a folder: a file of each process with a line for each piece of work in the
 * order of asking, "STREAM launch KERNEL", "STREAM call", "STREAM await STREAM". */
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

static void append(struct queue *q, const struct work *w)
{
    if (q->n == q->capacity) {
        q->capacity = q->capacity == 0 ? 64 : 2 * q->capacity;
        q->work = realloc(q->work, q->capacity * sizeof *q->work);
        if (q->work == NULL) abort();
    }
    q->work[q->n++] = *w;
}

/* What a real device refuses while a stream is recorded. */
static void not_recording(void)
{
    if (all.graph != NULL) abort();
}

static void put(struct stream *s, const struct work *w)
{
    append(&s->q, w);
    record(s, w);
}

static int enqueue(void *stream, const struct work *w)
{
    all.fresh = NULL;
    const int error = called();
    if (error != 0) return error;
    if (all.graph != NULL) {
        append(all.graph, w);
        return 0;
    }
    if (all.e.dry != 0) return 0;
    pthread_mutex_lock(&lock);
    put(stream, w);
    pthread_mutex_unlock(&lock);
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
                kernels[w->kernel](w->args, (struct cuda_block){x, y, z}, shared);
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

/* Whoever ran something ends here, before the lock is given away. */
static void close_region(void)
{
    if (all.is_open) open_region(false);
    all.is_open = false;
}

static void step(struct stream *s)
{
    s->n_done++;
    if (++s->q.head == s->q.n) s->q.head = s->q.n = 0;
}

/* Runs what stands before the event, in other streams too where something awaits it, under the
 * lock; false when a thread has something to do first. */
static bool run_until(struct event e)
{
    struct stream *s = e.stream;
    while (s != NULL && s->n_done < e.at && s->q.head < s->q.n) {
        const struct work *w = &s->q.work[s->q.head];
        if (w->kind == WORK_CALL || (w->kind == WORK_AWAIT && !run_until(w->event))) return false;
        if (w->kind != WORK_AWAIT) run_one(w);
        step(s);
    }
    return true;
}

static struct event all_of(struct stream *s)
{
    return (struct event){s, s->n_done + (s->q.n - s->q.head)};
}

static bool run_streams(void)
{
    bool done = true;
    for (struct stream *s = all.streams; s != NULL; s = s->next)
        done = run_until(all_of(s)) && done;
    close_region();
    return done;
}

/* A stream's thread: its calls, and what stands before them. */
static void *run_calls(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (s->n_calls == 0) pthread_cond_wait(&changed, &lock);
        while (s->q.work[s->q.head].kind != WORK_CALL) {
            if (run_until((struct event){s, s->n_done + 1})) continue;
            close_region();
            pthread_cond_wait(&changed, &lock);
        }
        close_region();
        const struct work w = s->q.work[s->q.head];
        pthread_mutex_unlock(&lock);
        w.call(w.arg);
        pthread_mutex_lock(&lock);
        step(s);
        s->n_calls--;
        pthread_cond_broadcast(&changed);
    }
    return arg;
}

int emulated_call(void *stream, void (*run)(void *arg), void *arg)
{
    struct stream *s = stream;
    const int error = called();
    if (error != 0) return error;
    pthread_mutex_lock(&lock);
    pthread_t thread;
    if (!s->has_thread && pthread_create(&thread, NULL, run_calls, s) != 0) abort();
    s->has_thread = true;
    put(s, &(struct work){.kind = WORK_CALL, .call = run, .arg = arg});
    s->n_calls++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* Only the pages of p: to open all memory takes a while. */
static void open_pages(const void *p, size_t n_bytes, bool on)
{
    const uintptr_t begin = (uintptr_t)p / 4096 * 4096, end = (uintptr_t)p + n_bytes;
    if (mprotect((void *)begin, end - begin, on ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) abort();
}

void emulated_read(void *to, const void *from, size_t n_bytes)
{
    pthread_mutex_lock(&lock);
    open_pages(from, n_bytes, true);
    memcpy(to, from, n_bytes);
    open_pages(from, n_bytes, false);
    pthread_mutex_unlock(&lock);
}

void emulated_write(void *to, const void *from, size_t n_bytes)
{
    pthread_mutex_lock(&lock);
    open_pages(to, n_bytes, true);
    memcpy(to, from, n_bytes);
    open_pages(to, n_bytes, false);
    pthread_mutex_unlock(&lock);
}

static int emu_device_count(int *n)
{
    read_environment();
    *n = all.e.devices == 0 ? 1 : (int)all.e.devices;
    if (all.e.count_error == EMULATED_NO_DEVICE) *n = 0;
    return (int)all.e.count_error;
}

static int emu_device_facts(int device, struct cuda_facts *out)
{
    *out = (struct cuda_facts){.memory_bytes =
                                   all.e.memory_bytes > 0 ? all.e.memory_bytes : (uint64_t)8 << 30,
                               .major = all.e.major > 0 ? (uint32_t)all.e.major : 9,
                               .n_processors = 4};
    const bool is_another = all.e.another_from > 0 && (uint64_t)device >= all.e.another_from;
    snprintf(out->name, sizeof out->name, is_another ? "emulated, another" : "emulated");
    snprintf(out->pci, sizeof out->pci, "0000:%02x:00.0", device + 1);
    return 0;
}

static void forget_faults(struct emulated *e)
{
    e->memory_bytes = e->launch_error = e->lost_after = e->hangs_after = e->gemm_varies = 0;
}

static int emu_device_use(int device)
{
    if ((uint64_t)device < all.e.faults_from) forget_faults(&all.e);
    if (all.region != NULL) return 0;
    void *p =
        mmap(NULL, region_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return EMULATED_MEMORY;
    all.region = p;
    return 0;
}

static uint64_t memory_bytes(void)
{
    return all.e.memory_bytes > 0 ? all.e.memory_bytes : (uint64_t)8 << 30;
}

static int emu_memory(struct cuda_memory *out)
{
    *out = (struct cuda_memory){.free = memory_bytes() > all.used ? memory_bytes() - all.used : 0,
                                .used = all.used};
    return 0;
}

/* What is given back stays unused: a use after it is one of forbidden memory or of old values. */
static int emu_alloc(void **out, size_t n_bytes, void *stream)
{
    (void)stream;
    not_recording();
    const int error = called();
    if (error != 0) return error;
    if (n_bytes > memory_bytes() - all.used) return EMULATED_MEMORY;
    pthread_mutex_lock(&lock);
    (void)run_streams();
    *out = all.region + all.used;
    all.fresh = *out;
    all.used += (n_bytes + 255) / 256 * 256;
    all.n_arrays++;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int emu_release(void *p, void *stream)
{
    (void)p;
    (void)stream;
    if (--all.n_arrays > 0) return 0;
    pthread_mutex_lock(&lock); /* of the last device: all begins anew */
    if (run_streams()) {
        (void)madvise(all.region, region_bytes, MADV_DONTNEED);
        all.used = 0;
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

static int emu_alloc_pinned(void **out, size_t n_bytes)
{
    *out = malloc(n_bytes);
    return *out == NULL ? EMULATED_MEMORY : called();
}

static int emu_release_pinned(void *p)
{
    free(p);
    return 0;
}

static int emu_stream_create(void **out)
{
    struct stream *s = calloc(1, sizeof *s);
    if (s == NULL) abort();
    pthread_mutex_lock(&lock);
    s->is_side = all.streams != NULL;
    s->number = all.n_streams++;
    s->next = all.streams;
    all.streams = s;
    pthread_mutex_unlock(&lock);
    *out = s;
    return called();
}

/* What is left of it is run now; a thread keeps it. */
static int emu_stream_destroy(void *stream)
{
    struct stream *s = stream, **at = &all.streams;
    pthread_mutex_lock(&lock);
    (void)run_until(all_of(s));
    close_region();
    while (*at != s) at = &(*at)->next;
    if (!s->has_thread) {
        *at = s->next;
        free(s->q.work);
        free(s);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

static int emu_event_create(void **out)
{
    *out = calloc(1, sizeof(struct event));
    if (*out == NULL) abort();
    return called();
}

static int emu_event_destroy(void *event)
{
    free(event);
    return 0;
}

static int emu_event_record(void *event, void *stream)
{
    not_recording();
    pthread_mutex_lock(&lock);
    *(struct event *)event = all_of(stream);
    pthread_mutex_unlock(&lock);
    return called();
}

static int emu_event_query(void *event, bool *done)
{
    not_recording();
    const int error = called();
    if (error != 0) return error;
    *done = all.e.hangs_after == 0 || all.n_launches < all.e.hangs_after;
    pthread_mutex_lock(&lock);
    if (*done) *done = run_until(*(struct event *)event);
    close_region();
    pthread_mutex_unlock(&lock);
    return 0;
}

static int emu_stream_await(void *stream, void *event)
{
    const struct event *e = event;
    not_recording();
    if (e->stream == NULL) return called();
    return enqueue(stream, &(struct work){.kind = WORK_AWAIT, .event = *e});
}

static int emu_copy(void *to, const void *from, size_t n_bytes, enum cuda_copy kind, void *stream)
{
    const struct work w = {.kind = WORK_COPY, .to = to, .from = from, .n_bytes = n_bytes};
    struct stream *s = stream;
    not_recording();
    const int error = enqueue(s, &w);
    pthread_mutex_lock(&lock);
    const bool at_once = all.e.copies > 0 ? all.e.copies == 1 : all.n_side++ % 2 == 0;
    if (error == 0 && s->is_side && kind == CUDA_COPY_IN && s->q.n - s->q.head == 1 && at_once)
        (void)run_until(all_of(s));
    close_region();
    pthread_mutex_unlock(&lock);
    return error;
}

static int emu_fill(void *p, int byte, size_t n_bytes, void *stream)
{
    if (p == all.fresh && byte == 0) return called();
    return enqueue(stream,
                   &(struct work){.kind = WORK_FILL, .to = p, .byte = byte, .n_bytes = n_bytes});
}

static bool fits(struct cuda_grid grid)
{
    return grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x < 65536 && grid.z < 65536 &&
           grid.y < 1u << 31 && grid.shared_bytes <= CUDA_SHARED_MAX;
}

static int emu_launch(enum cuda_kernel kernel, struct cuda_grid grid, const void *args,
                      void *stream)
{
    if (all.e.launch_error != 0) return (int)all.e.launch_error;
    if (all.e.dry != 0) {
        all.n_launches++;
        all.n_bad_launches += !fits(grid);
        return 0;
    }
    if (!fits(grid)) abort();
    struct work w = {.kind = WORK_LAUNCH, .kernel = kernel, .grid = grid};
    assert(args_bytes[kernel] <= sizeof w.args);
    memcpy(w.args, args, args_bytes[kernel]);
    return enqueue(stream, &w);
}

/* A graph is its work; a node of it counts from 1. */
static int emu_graph_begin(void *stream)
{
    (void)stream;
    not_recording();
    const int error = called();
    if (error != 0) return error;
    all.graph = calloc(1, sizeof *all.graph);
    if (all.graph == NULL) abort();
    return 0;
}

static int emu_graph_node(void *stream, void **node)
{
    (void)stream;
    assert(all.graph != NULL);
    *node = (void *)(uintptr_t)all.graph->n;
    return called();
}

static int emu_graph_destroy(void *graph)
{
    struct queue *g = graph;
    const struct stream *s = g->launched.stream;
    if (s != NULL && s->n_done < g->launched.at) abort(); /* it may run */
    free(g->work);
    free(g);
    return 0;
}

static int emu_graph_end(void *stream, void **graph)
{
    (void)stream;
    const int error = all.e.no_graphs > 0 ? EMULATED_NO_GRAPHS : called();
    *graph = all.graph;
    all.graph = NULL;
    if (error == 0) return 0;
    (void)emu_graph_destroy(*graph);
    *graph = NULL;
    return error;
}

static int emu_graph_change(void *graph, void *node, enum cuda_kernel kernel, struct cuda_grid grid,
                            const void *args)
{
    struct queue *g = graph;
    const size_t i = (uintptr_t)node - 1;
    not_recording();
    if (!fits(grid)) abort();
    if (all.e.dry != 0) return called();
    assert(i < g->n && g->work[i].kind == WORK_LAUNCH && g->work[i].kernel == kernel);
    if (all.e.stale_graphs > 0) return called();
    g->work[i].grid = grid;
    memcpy(g->work[i].args, args, args_bytes[kernel]);
    return called();
}

static int emu_graph_launch(void *graph, void *stream)
{
    struct queue *g = graph;
    not_recording();
    const int error = called();
    if (error != 0) return error;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < g->n; i++) put(stream, &g->work[i]);
    g->launched = all_of(stream);
    pthread_mutex_unlock(&lock);
    return 0;
}

enum { EMULATED_ALGORITHMS = 3 };

static int emu_gemm_open(void *stream, void **out, char *library, size_t n)
{
    *out = stream;
    snprintf(library, n, "emulated library 1");
    return all.e.no_gemm > 0 ? EMULATED_NO_LIBRARY : called();
}

static int emu_gemm_close(void *gemm)
{
    (void)gemm;
    return 0;
}

static int emu_gemm_run(void *gemm, const struct cuda_gemm *g)
{
    if (g->algorithm != CUDA_GEMM_FREE && g->algorithm >= EMULATED_ALGORITHMS)
        return CUDA_GEMM_NONE;
    assert(g->rows > 0 && g->n > 0 && g->k > 0 && g->batch > 0);
    assert(g->x_stride >= g->k && g->w_stride >= g->k && g->y_stride >= g->n);
    return enqueue(gemm, &(struct work){.kind = WORK_GEMM, .gemm = *g});
}

static const char *emu_error_text(int error)
{
    static const char *const texts[] = {
        "no error",
        "no CUDA-capable device is detected",
        "CUDA driver version is insufficient for CUDA runtime version",
        "no kernel image is available for execution on the device",
        "out of memory",
        "the device is gone",
        "the library for products could not be loaded",
        "graphs are not supported",
    };
    return texts[error];
}

static enum status_code emu_error_class(int error)
{
    if (error == EMULATED_MEMORY) return STATUS_MEMORY;
    return error == EMULATED_LOST ? STATUS_LOST : STATUS_USAGE;
}

static const struct cuda_driver driver = {
    .name = "cpu, cuda emulated on the CPU for tests",
    .device_count = emu_device_count,
    .device_facts = emu_device_facts,
    .device_use = emu_device_use,
    .memory = emu_memory,
    .alloc = emu_alloc,
    .release = emu_release,
    .alloc_pinned = emu_alloc_pinned,
    .release_pinned = emu_release_pinned,
    .stream_create = emu_stream_create,
    .stream_destroy = emu_stream_destroy,
    .event_create = emu_event_create,
    .event_destroy = emu_event_destroy,
    .event_record = emu_event_record,
    .event_query = emu_event_query,
    .stream_await = emu_stream_await,
    .copy = emu_copy,
    .fill = emu_fill,
    .launch = emu_launch,
    .graph_begin = emu_graph_begin,
    .graph_node = emu_graph_node,
    .graph_end = emu_graph_end,
    .graph_change = emu_graph_change,
    .graph_launch = emu_graph_launch,
    .graph_destroy = emu_graph_destroy,
    .gemm_open = emu_gemm_open,
    .gemm_close = emu_gemm_close,
    .gemm_run = emu_gemm_run,
    .error_text = emu_error_text,
    .error_class = emu_error_class,
};

const struct cuda_driver *cuda_driver_here(void)
{
    return &driver;
}
