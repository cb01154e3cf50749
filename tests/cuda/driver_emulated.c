/* A cuda_driver that runs the kernels' own source on the CPU, one block after the other. It is
 * built to expose errors of the host code; it says nothing about a real GPU. Work waits in its
 * stream's queue until an event is queried, so host memory that is reused too early shows, and work
 * that should have waited for another stream does not find that stream's work done. Only queued
 * work can access device memory; host code that dereferences a device array crashes. Shared memory
 * starts as garbage, and writes past its end are noticed. Calls of the emulated NCCL, with the work
 * before them, run at once on a thread, because other ranks wait for them. */
#include "state_emulated.h"

#include "nccl_emulated.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define X(name, args) void cuda_run_##name(const void *a, struct cuda_block b, void *shared);
CUDA_KERNELS(X)
#undef X

run_block *const emulated_kernels[CUDA_KERNEL_COUNT] = {
#define X(name, args) cuda_run_##name,
    CUDA_KERNELS(X)
#undef X
};
const size_t emulated_args_bytes[CUDA_KERNEL_COUNT] = {
#define X(name, args) sizeof(struct args),
    CUDA_KERNELS(X)
#undef X
};

static const size_t region_bytes = (size_t)1 << 36;

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
                              .gemm_many = word(text, "gemm_many="),
                              .gemm_wide = word(text, "gemm_wide="),
                              .gemm_cores = word(text, "gemm_cores="),
                              .faults_from = word(text, "faults_from=")};
}

/* Makes only the pages of p accessible, or inaccessible, because changing all memory takes long. */
static void open_pages(const void *p, size_t n_bytes, bool on)
{
    const size_t at = (size_t)((const char *)p - all.region);
    emulated_open(at, at + n_bytes, on);
}

void emulated_read(void *to, const void *from, size_t n_bytes)
{
    pthread_mutex_lock(&emulated_lock);
    open_pages(from, n_bytes, true);
    memcpy(to, from, n_bytes);
    open_pages(from, n_bytes, false);
    pthread_mutex_unlock(&emulated_lock);
}

void emulated_write(void *to, const void *from, size_t n_bytes)
{
    pthread_mutex_lock(&emulated_lock);
    open_pages(to, n_bytes, true);
    memcpy(to, from, n_bytes);
    open_pages(to, n_bytes, false);
    pthread_mutex_unlock(&emulated_lock);
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
    char *p =
        mmap(NULL, region_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return EMULATED_MEMORY;
    p += -(uintptr_t)p % EMULATED_PAGE;
    /* a system without huge pages changes small ones, which takes longer */
    (void)madvise(p, region_bytes - EMULATED_PAGE, MADV_HUGEPAGE);
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

/* Memory is handed out again only once all of it was freed; until then a use after free touches
 * inaccessible memory or old values. */
static int emu_alloc(void **out, size_t n_bytes, void *stream)
{
    (void)stream;
    emulated_not_recording();
    const int error = emulated_called();
    if (error != 0) return error;
    if (n_bytes > memory_bytes() - all.used) return EMULATED_MEMORY;
    pthread_mutex_lock(&emulated_lock);
    (void)emulated_run_streams();
    *out = all.region + all.used;
    all.fresh = *out;
    all.used += (n_bytes + 255) / 256 * 256;
    all.n_arrays++;
    pthread_mutex_unlock(&emulated_lock);
    return 0;
}

static int emu_release(void *p, void *stream)
{
    (void)p;
    (void)stream;
    if (--all.n_arrays > 0) return 0;
    pthread_mutex_lock(&emulated_lock); /* no array is left: memory starts anew */
    if (emulated_run_streams()) {
        (void)madvise(all.region, region_bytes - EMULATED_PAGE, MADV_DONTNEED);
        all.used = 0;
    }
    pthread_mutex_unlock(&emulated_lock);
    return 0;
}

static int emu_alloc_pinned(void **out, size_t n_bytes)
{
    *out = malloc(n_bytes);
    return *out == NULL ? EMULATED_MEMORY : emulated_called();
}

static int emu_release_pinned(void *p)
{
    free(p);
    return 0;
}

static int emu_copy(void *to, const void *from, size_t n_bytes, enum cuda_copy kind, void *stream)
{
    const struct work w = {.kind = WORK_COPY, .to = to, .from = from, .n_bytes = n_bytes};
    struct stream *s = stream;
    emulated_not_recording();
    const int error = emulated_enqueue(s, &w);
    pthread_mutex_lock(&emulated_lock);
    const bool at_once = all.e.copies > 0 ? all.e.copies == 1 : all.n_side++ % 2 == 0;
    if (error == 0 && s->is_side && kind == CUDA_COPY_IN && s->q.n - s->q.head == 1 && at_once)
        (void)emulated_run_until(emulated_all_of(s));
    emulated_close_region();
    pthread_mutex_unlock(&emulated_lock);
    return error;
}

static int emu_fill(void *p, int byte, size_t n_bytes, void *stream)
{
    if (p == all.fresh && byte == 0) return emulated_called();
    return emulated_enqueue(
        stream, &(struct work){.kind = WORK_FILL, .to = p, .byte = byte, .n_bytes = n_bytes});
}

bool emulated_fits(struct cuda_grid grid)
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
        all.n_bad_launches += !emulated_fits(grid);
        return 0;
    }
    if (!emulated_fits(grid)) abort();
    struct work w = {.kind = WORK_LAUNCH, .kernel = kernel, .grid = grid};
    assert(emulated_args_bytes[kernel] <= sizeof w.args);
    memcpy(w.args, args, emulated_args_bytes[kernel]);
    return emulated_enqueue(stream, &w);
}

enum { EMULATED_ALGORITHMS = 3 };

static int emu_gemm_open(void *stream, void **out, char *library, size_t n)
{
    *out = stream;
    snprintf(library, n, "emulated library 1");
    return all.e.no_gemm > 0 ? EMULATED_NO_LIBRARY : emulated_called();
}

static int emu_gemm_close(void *gemm)
{
    (void)gemm;
    return 0;
}

static int emu_gemm_run(void *gemm, const struct cuda_gemm *g)
{
    if (g->algorithm != CUDA_GEMM_FREE && g->algorithm % CUDA_GEMM_MANY >= EMULATED_ALGORITHMS)
        return CUDA_GEMM_NONE;
    if (all.e.gemm_ends == 1) return CUDA_GEMM_NONE;
    if (all.e.gemm_ends > 1) all.e.gemm_ends--;
    assert(g->rows > 0 && g->n > 0 && g->k > 0 && g->batch > 0);
    assert(g->x_stride >= g->k && g->w_stride >= g->k && g->y_stride >= g->n);
    return emulated_enqueue(gemm, &(struct work){.kind = WORK_GEMM, .gemm = *g});
}

void emulated_leave_products(uint64_t n)
{
    all.e.gemm_ends = n + 1;
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
    .stream_create = emulated_stream_create,
    .stream_destroy = emulated_stream_destroy,
    .event_create = emulated_event_create,
    .event_destroy = emulated_event_destroy,
    .event_record = emulated_event_record,
    .event_query = emulated_event_query,
    .stream_await = emulated_stream_await,
    .copy = emu_copy,
    .fill = emu_fill,
    .launch = emu_launch,
    .graph_begin = emulated_graph_begin,
    .graph_node = emulated_graph_node,
    .graph_end = emulated_graph_end,
    .graph_change = emulated_graph_change,
    .graph_launch = emulated_graph_launch,
    .graph_destroy = emulated_graph_destroy,
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
