/* A device's life: choosing and opening it, allocating its memory, waiting for it with a deadline.
 * Knows nothing of ops. Copies are in copies.c, launches and graphs in graphs.c. */
#include "kernels/cuda/device_state.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "kernels/cuda/graphs.h"
#include "kernels/cuda/ops_cuda.h"
#include "parallel/topology/gpu_place.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { DEADLINE_S = 600, SPIN_NS = 20000, NAP_NS = 20000, LEAST_MAJOR = 8 };

const char *device_backends(void)
{
    const struct cuda_driver *driver = cuda_driver_here();
    return driver == NULL ? "cpu" : driver->name;
}

bool device_failed(struct device *d, int error, const char *what)
{
    if (error == 0) return false;
    if (device_is_lost(d)) return true;
    d->failed = status_make(d->driver->error_class(error), "GPU %d (%s, %s): %s: %s", d->index,
                            d->facts.name, d->facts.pci, what, d->driver->error_text(error));
    return true;
}

/* --- choosing ------------------------------------------------------------------------------ */

static struct status no_driver(const char *name)
{
    return status_make(STATUS_USAGE,
                       "--device %s: this shoal was built without CUDA (shoal --version shows "
                       "what is in); build with -DSHOAL_CUDA=ON",
                       name);
}

/* Reads the NUMA node of every device that this rank sees. */
static struct status read_numas(const struct cuda_driver *driver, const struct device_options *o,
                                int n, int32_t *out)
{
    for (int i = 0; i < n; i++) {
        struct cuda_facts facts;
        const int error = driver->device_facts(i, &facts);
        if (error != 0)
            return status_make(driver->error_class(error), "--device %s: GPU %d: %s", o->name, i,
                               driver->error_text(error));
        out[i] = o->node != NULL ? gpu_numa_of(o->node, facts.pci) : -1;
    }
    return status_ok();
}

/* Chooses among several devices. Assumes that all ranks of a host see the same devices. */
static struct status choose_among(const struct cuda_driver *driver, const struct device_options *o,
                                  int n, int *index)
{
    int32_t *numas = NULL, *ranks = NULL;
    uint32_t *gpu_of = NULL;
    struct status st;
    TRY_GOTO(st, mem_alloc(&numas, (size_t)n, sizeof *numas, "GPUs"), done);
    TRY_GOTO(st, mem_alloc(&ranks, o->n_local_ranks, sizeof *ranks, "GPUs"), done);
    TRY_GOTO(st, mem_alloc(&gpu_of, o->n_local_ranks, sizeof *gpu_of, "GPUs"), done);
    TRY_GOTO(st, read_numas(driver, o, n, numas), done);
    for (uint32_t r = 0; r < o->n_local_ranks; r++) ranks[r] = o->numas != NULL ? o->numas[r] : -1;
    TRY_GOTO(st, gpu_place(numas, (uint32_t)n, ranks, o->n_local_ranks, gpu_of), done);
    *index = (int)gpu_of[o->local_rank];
done:
    mem_free(&numas);
    mem_free(&ranks);
    mem_free(&gpu_of);
    return st;
}

static struct status choose_gpu(const struct cuda_driver *driver, const struct device_options *o,
                                int *index)
{
    int n = 0;
    const int error = driver->device_count(&n);
    if (error != 0)
        return status_make(STATUS_USAGE, "--device %s: %s", o->name, driver->error_text(error));
    if (n < 1)
        return status_make(STATUS_USAGE, "--device %s: no GPU is visible to this rank", o->name);
    *index = 0;
    return n == 1 ? status_ok() : choose_among(driver, o, n, index);
}

struct status device_locate(const struct device_options *o, struct device_found *out)
{
    const struct cuda_driver *driver = cuda_driver_here();
    int index = 0;
    struct cuda_facts facts;
    if (driver == NULL) return no_driver(o->name);
    TRY(choose_gpu(driver, o, &index));
    const int error = driver->device_facts(index, &facts);
    if (error != 0)
        return status_make(driver->error_class(error), "--device %s: GPU %d: %s", o->name, index,
                           driver->error_text(error));
    snprintf(out->pci, sizeof out->pci, "%s", facts.pci);
    out->memory_bytes = facts.memory_bytes;
    return status_ok();
}

static struct status inspect(struct device *d, const struct device_options *o)
{
    int error = d->driver->device_use(d->index);
    if (error == 0) error = d->driver->device_facts(d->index, &d->facts);
    if (error != 0) {
        return status_make(d->driver->error_class(error), "--device %s: GPU %d: %s", o->name,
                           d->index, d->driver->error_text(error));
    }
    if (d->facts.major >= LEAST_MAJOR) return status_ok();
    return status_make(STATUS_USAGE,
                       "--device %s: GPU %d (%s) has compute capability %u.%u; shoal's kernels "
                       "need at least %d.0",
                       o->name, d->index, d->facts.name, d->facts.major, d->facts.minor,
                       LEAST_MAJOR);
}

/* --- creating and destroying -------------------------------------------------------------- */

static struct status made(struct device *d, int error, const char *what)
{
    (void)device_failed(d, error, what);
    return d->failed;
}

/* Launches one small kernel, so that a GPU for whose architecture nothing was built fails at start
 * and not inside a step. */
static struct status try_launch(struct device *d)
{
    const struct add_work nothing = {.n = 0};
    const int error = d->driver->launch(CUDA_KERNEL_add, (struct cuda_grid){1, 1, 1, 0}, &nothing,
                                        device_compute(d));
    if (error != 0 && d->driver->error_class(error) == STATUS_USAGE) {
        return status_make(
            STATUS_USAGE,
            "--device cuda: GPU %d (%s) has compute capability %u.%u, which this "
            "build (%s) has no kernels for: %s; -DSHOAL_CUDA_ARCHITECTURES adds them",
            d->index, d->facts.name, d->facts.major, d->facts.minor, d->driver->name,
            d->driver->error_text(error));
    }
    TRY(made(d, error, "starting a kernel"));
    device_wait(d);
    return d->failed;
}

static struct status make(struct device *d, bool graphs)
{
    void *p = NULL;
    TRY(made(d, d->driver->stream_create(&d->stream), "making a stream"));
    TRY(made(d, d->driver->event_create(&d->waits), "making an event"));
    TRY(graphs_open(d, graphs));
    TRY(device_alloc(d, &p, STATES_BYTES, "attention states"));
    d->states = p;
    TRY(device_copies_open(d));
    TRY(device_gemm_open(d));
    return try_launch(d);
}

struct status device_open(const struct device_options *o, struct device **out)
{
    *out = NULL;
    const struct cuda_driver *driver = cuda_driver_here();
    if (driver == NULL) return no_driver(o->name);
    struct device *d = NULL;
    TRY(mem_alloc(&d, 1, sizeof *d, "device"));
    d->driver = driver;
    d->ops = &device_ops_cuda;
    d->failed = status_ok();
    d->arithmetic = o->arithmetic;
    d->deadline_ns = (o->deadline_s > 0 ? o->deadline_s : DEADLINE_S) * 1000000000ull;
    d->n_sharers = 1;
    struct status st = choose_gpu(driver, o, &d->index);
    if (!status_failed(&st)) st = inspect(d, o);
    if (!status_failed(&st)) st = make(d, !o->no_graphs);
    if (status_failed(&st)) device_close(&d);
    *out = d;
    return st;
}

static void log_graphs(const struct device *d)
{
    const struct graphs_count n = graphs_counted(d);
    if (n.n_plain + n.n_in_graphs > 0)
        log_line(
            LOG_DEBUG,
            "GPU %d: %llu launches by themselves, %llu in %llu launches of %llu graphs, %llu of "
            "them changed",
            d->index, (unsigned long long)n.n_plain, (unsigned long long)n.n_in_graphs,
            (unsigned long long)n.n_replayed, (unsigned long long)n.n_made,
            (unsigned long long)n.n_changed);
}

/* Continues after failures, and releases everything that the driver still accepts. */
void device_close(struct device **device)
{
    if (*device == NULL) return;
    struct device *d = *device;
    log_graphs(d);
    if (d->links != NULL) d->hooks->close(d);
    graphs_close(d);
    void *states = d->states;
    device_gemm_close(d);
    device_release(d, &states);
    device_copies_close(d);
    if (d->waits != NULL) (void)d->driver->event_destroy(d->waits);
    if (d->stream != NULL) (void)d->driver->stream_destroy(d->stream);
    mem_free(device);
}

void device_describe(const struct device *d, char *out, size_t n)
{
    char shared[48] = "";
    if (d->n_sharers > 1) snprintf(shared, sizeof shared, "; shared by %u ranks", d->n_sharers);
    snprintf(out, n, "GPU %d: %s, %s, %.1f GB, capability %u.%u%s", d->index, d->facts.name,
             d->facts.pci, (double)d->facts.memory_bytes * 1e-9, d->facts.major, d->facts.minor,
             shared);
}

void device_sums(const struct device *d, char *out, size_t n)
{
    if (d == NULL || d->arithmetic == DEVICE_EXACT) {
        snprintf(out, n, "the CPU's");
        return;
    }
    snprintf(out, n, "%s, %s, attention in f16 scaled in the exponent, tensor cores%s",
             d->facts.name, d->gemm.library != NULL ? d->gemm.name : "own kernels",
             d->arithmetic == DEVICE_FREE ? ", free" : "");
}

uint32_t device_n_sharers(const struct device *d)
{
    return d->n_sharers;
}

uint32_t device_index(const struct device *d)
{
    return (uint32_t)d->index;
}

const struct device_ops *device_ops_of(const struct device *d)
{
    return d->ops;
}

struct status device_status(const struct device *d)
{
    return d == NULL ? status_ok() : d->failed;
}

uint64_t device_free_bytes(const struct device *d)
{
    struct cuda_memory m;
    return d->driver->memory(&m) == 0 ? m.free / d->n_sharers + m.idle : 0;
}

/* --- waiting ------------------------------------------------------------------------------- */

static void no_answer(struct device *d, uint64_t waited_ns)
{
    char waiting[256] = "";
    if (d->links != NULL) d->hooks->name_waiting(d, waiting, sizeof waiting);
    d->failed = status_make(
        STATUS_LOST, "GPU %d (%s, %s): no answer for %llu s%s: %s", d->index, d->facts.name,
        d->facts.pci, (unsigned long long)(waited_ns / 1000000000u), waiting,
        waiting[0] == '\0' ? "it hangs or has gone" : "it hangs, or a rank does not take part");
    if (d->links != NULL) d->hooks->leave(d);
}

void device_await(struct device *d, void *event)
{
    const uint64_t since = clock_ns();
    bool done = false;
    while (!device_is_lost(d)) {
        if (device_failed(d, d->driver->event_query(event, &done), "waiting") || done) return;
        if (d->links != NULL) d->hooks->check(d);
        const uint64_t waited = clock_ns() - since;
        if (waited > d->deadline_ns) {
            no_answer(d, waited);
            return;
        }
        if (waited < SPIN_NS) {
            sched_yield();
        } else {
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        }
    }
}

void device_wait_put(struct device *d)
{
    if (device_is_lost(d) ||
        device_failed(d, d->driver->event_record(d->waits, d->stream), "an event"))
        return;
    device_await(d, d->waits);
    if (device_is_lost(d)) return;
    graphs_waited(d);
    if (d->links != NULL) d->hooks->waited(d);
}

void device_wait_stream(struct device *d)
{
    graphs_flush(d);
    device_wait_put(d);
}

/* When it returns, and the device is not lost, all work of the compute stream and all earlier
 * copies of the copy stream have ended, so the memory that they read may be overwritten. Sends and
 * sums on the streams of src/collective may still run. */
void device_wait(struct device *d)
{
    if (d == NULL || device_is_lost(d)) return;
    device_gets_start(d);
    device_send_calls(d);
    device_wait_stream(d);
    device_gets_end(d);
    if (device_is_lost(d)) return;
    d->rows_in_use = false;
    for (int i = 0; i < N_STAGES; i++) d->row_slots[i].busy = d->row_slots[i].was_used = false;
    d->calls_at = d->calls_sent = 0;
}

void *device_compute(struct device *d)
{
    graphs_flush(d);
    return d->stream;
}

/* --- memory -------------------------------------------------------------------------------- */

struct status device_alloc(struct device *d, void **out, size_t n_bytes, const char *what)
{
    *out = NULL;
    TRY(d->failed);
    const int error = d->driver->alloc(out, n_bytes > 0 ? n_bytes : 1, device_compute(d));
    if (error != 0) {
        *out = NULL;
        struct cuda_memory m = {0};
        (void)d->driver->memory(&m); /* if this fails too, the message shows zeros */
        return status_make(d->driver->error_class(error),
                           "GPU %d (%s): %s: %zu bytes: %s (%.2f GB are used by this rank, %.2f GB "
                           "free)",
                           d->index, d->facts.name, what, n_bytes, d->driver->error_text(error),
                           (double)m.used * 1e-9, (double)(m.free + m.idle) * 1e-9);
    }
    (void)device_failed(d, d->driver->fill(*out, 0, n_bytes > 0 ? n_bytes : 1, device_compute(d)),
                        "clearing memory");
    return d->failed;
}

void device_release(struct device *d, void **inout)
{
    if (*inout != NULL)
        (void)device_failed(d, d->driver->release(*inout, device_compute(d)), "freeing");
    *inout = NULL;
}

void device_launch_on(struct device *d, void *stream, enum cuda_kernel kernel,
                      struct cuda_grid grid, const void *args)
{
    if (device_is_lost(d) || grid.x == 0 || grid.y == 0 || grid.z == 0) return;
    (void)device_failed(d, d->driver->launch(kernel, grid, args, stream), "starting a kernel");
}
