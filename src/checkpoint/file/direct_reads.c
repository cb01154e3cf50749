/* Uses Linux's asynchronous I/O by system calls, without a library, threads or locks. */
#include "checkpoint/file/direct_reads.h"

#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    SECTOR_BYTES = 4096, /* offset, length and memory of a direct read are multiples of this */
    SLOTS_MAX = 64,
};

/* One read: the whole sectors that hold the wanted bytes. */
struct slot {
    char *memory; /* borrowed */
    struct iocb request;
    size_t skip, n; /* the wanted bytes in `memory`: [skip, skip + n) */
    int64_t got;    /* bytes that arrived; negative: an error */
    bool goes_on;
};

struct direct_reads {
    int fd; /* owned */
    aio_context_t queue;
    char *memory; /* owned, mapped: n_bytes */
    size_t n_bytes;
    uint32_t n_slots;
    struct slot slots[SLOTS_MAX];
};

static uint64_t sector_up(uint64_t n)
{
    return (n + SECTOR_BYTES - 1) / SECTOR_BYTES * SECTOR_BYTES;
}

static struct status not_offered(const char *what)
{
    return status_make(STATUS_IO, "reads past the file cache: %s: %s", what, strerror(errno));
}

/* Opens the file of a descriptor again, even if its name now belongs to another file. */
static struct status open_again(int fd, int *out)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    *out = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    return *out < 0 ? not_offered(path) : status_ok();
}

struct status direct_reads_create(int fd, size_t read_bytes, uint32_t n_slots,
                                  struct direct_reads **out)
{
    struct direct_reads *d = NULL;
    struct status st;
    *out = NULL;
    assert(n_slots > 0 && n_slots <= SLOTS_MAX);
    TRY(mem_alloc(&d, 1, sizeof *d, "reads past the file cache"));
    d->fd = -1;
    d->n_slots = n_slots;
    /* the wanted bytes need not begin or end at a sector's edge */
    const size_t slot_bytes = read_bytes > 0 ? sector_up(read_bytes) + SECTOR_BYTES : 0;
    TRY_GOTO(st, open_again(fd, &d->fd), out);
    if (syscall(SYS_io_setup, n_slots, &d->queue) != 0) {
        d->queue = 0;
        TRY_GOTO(st, not_offered("io_setup"), out);
    }
    d->n_bytes = n_slots * slot_bytes;
    if (d->n_bytes > 0)
        TRY_GOTO(st, mem_map(&d->memory, d->n_bytes, "reads past the file cache"), out);
    *out = d;
    return st;
out:
    direct_reads_destroy(&d);
    return st;
}

void direct_reads_destroy(struct direct_reads **d_)
{
    struct direct_reads *d = *d_;
    if (d == NULL) return;
    if (d->queue != 0) syscall(SYS_io_destroy, d->queue); /* returns when no read is in flight */
    if (d->memory != NULL) mem_unmap(&d->memory, d->n_bytes);
    if (d->fd >= 0) close(d->fd);
    mem_free(d_);
}

static void submit(struct direct_reads *d, uint32_t slot, char *memory, uint64_t offset, size_t n)
{
    struct slot *s = &d->slots[slot];
    struct iocb *request = &s->request;
    const uint64_t begin = offset / SECTOR_BYTES * SECTOR_BYTES;
    assert(slot < d->n_slots && !s->goes_on);
    s->memory = memory;
    s->skip = (size_t)(offset - begin);
    s->n = n;
    s->got = -1;
    s->request = (struct iocb){.aio_data = slot,
                               .aio_lio_opcode = IOCB_CMD_PREAD,
                               .aio_fildes = (uint32_t)d->fd,
                               .aio_buf = (uintptr_t)s->memory,
                               .aio_nbytes = sector_up(offset + n) - begin,
                               .aio_offset = (int64_t)begin};
    s->goes_on = syscall(SYS_io_submit, d->queue, 1L, &request) == 1;
}

void direct_reads_start(struct direct_reads *d, uint32_t slot, uint64_t offset, size_t n)
{
    const size_t slot_bytes = d->n_bytes / d->n_slots;
    submit(d, slot, d->memory + slot * slot_bytes, offset, n);
}

void direct_reads_start_into(struct direct_reads *d, uint32_t slot, char *memory, uint64_t offset,
                             size_t n)
{
    assert((uintptr_t)memory % SECTOR_BYTES == 0 && offset % SECTOR_BYTES == 0 &&
           n % SECTOR_BYTES == 0);
    submit(d, slot, memory, offset, n);
}

/* Waits until at least one read is done or a signal arrives. */
static void take_events(struct direct_reads *d)
{
    struct io_event events[SLOTS_MAX];
    const long n = syscall(SYS_io_getevents, d->queue, 1L, (long)d->n_slots, events, NULL);
    assert(n >= 0 || errno == EINTR);
    for (long i = 0; i < n; i++) {
        struct slot *s = &d->slots[events[i].data];
        s->got = events[i].res;
        s->goes_on = false;
    }
}

bool direct_reads_wait(struct direct_reads *d, uint32_t slot, char **bytes)
{
    const struct slot *s = &d->slots[slot];
    while (s->goes_on) take_events(d);
    *bytes = s->memory + s->skip;
    return s->got >= (int64_t)(s->skip + s->n);
}
