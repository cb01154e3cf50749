/* The first rank makes a memory file (memfd); the others open it through /proc. All map it
 * sparsely. */
#include "parallel/comm/host_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    GROW_BYTES = 1 << 16,
    HUGE_PAGE_BYTES = 2 << 20,
    AIR_BYTES_MAX = 64 << 20,
    PAGES_WORTH_WAKING = 8,
};

#ifndef MADV_COLLAPSE /* since Linux 6.1; refused before */
#define MADV_COLLAPSE 25
#endif

#define LANE_BYTES_MAX    ((size_t)1 << 38)
/* Address space of all lanes; a process has 2^47 bytes, or less under `ulimit -v` and sanitizers */
#define ADDRESS_BYTES     ((size_t)1 << 44)
#define ADDRESS_BYTES_MIN ((size_t)1 << 30)

/* How the other ranks find the first rank's memory file. In a container with its own process
 * numbers the path may lead to another file; the size and the random number show that. */
struct ticket {
    char path[64];
    uint64_t n_bytes, nonce; /* nonce is also at the start of the file; 0: there is no file */
};

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static bool back(int fd, size_t at, size_t n_bytes)
{
    int error;
    do {
        error = posix_fallocate(fd, (off_t)at, (off_t)n_bytes);
    } while (error == EINTR);
    return error == 0;
}

static int host_memory_make_file(struct ticket *t, size_t backed_bytes)
{
    const int fd = memfd_create("shoal", MFD_CLOEXEC);
    if (fd < 0) return -1;
    if (getrandom(&t->nonce, sizeof t->nonce, 0) != (ssize_t)sizeof t->nonce) t->nonce = 0;
    t->nonce |= 1;
    if (ftruncate(fd, (off_t)t->n_bytes) == 0 && back(fd, 0, backed_bytes) &&
        pwrite(fd, &t->nonce, sizeof t->nonce, 0) == (ssize_t)sizeof t->nonce) {
        snprintf(t->path, sizeof t->path, "/proc/%ld/fd/%d", (long)getpid(), fd);
        return fd;
    }
    close(fd);
    t->nonce = 0;
    return -1;
}

static int host_memory_open_file(const struct ticket *t)
{
    if (t->nonce == 0) return -1;
    const int fd = open(t->path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return -1;
    struct stat st;
    uint64_t nonce = 0;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == t->n_bytes &&
        pread(fd, &nonce, sizeof nonce, 0) == (ssize_t)sizeof nonce && nonce == t->nonce) {
        return fd;
    }
    close(fd);
    return -1;
}

/* Returns the address space for all lanes: ADDRESS_BYTES, halved until the process can map four
 * times as much. 0: it cannot even for ADDRESS_BYTES_MIN. */
static size_t address_bytes(void)
{
    for (size_t n = ADDRESS_BYTES; n >= ADDRESS_BYTES_MIN; n /= 2) {
        void *at = mmap(NULL, 4 * n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) continue;
        munmap(at, 4 * n);
        return n;
    }
    return 0;
}

/* **Collective (comm)**. Returns the minimum of address_bytes over all ranks; 0 on failure. */
static size_t common_address_bytes(MPI_Comm comm)
{
    uint64_t n = address_bytes();
    return MPI_Allreduce(MPI_IN_PLACE, &n, 1, MPI_UINT64_T, MPI_MIN, comm) == MPI_SUCCESS ? n : 0;
}

static bool host_memory_map(struct host_memory *m)
{
    /* the mapping begins at a huge page, so all lanes do */
    const size_t n_reserved = m->n_bytes + HUGE_PAGE_BYTES;
    char *reserved =
        mmap(NULL, n_reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) return false;
    const size_t before =
        (HUGE_PAGE_BYTES - (uintptr_t)reserved % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    void *at = mmap(reserved + before, m->n_bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED | MAP_NORESERVE, m->fd, 0);
    if (before > 0) munmap(reserved, before);
    munmap(reserved + before + m->n_bytes, HUGE_PAGE_BYTES - before);
    if (at == MAP_FAILED) {
        munmap(reserved + before, m->n_bytes);
        return false;
    }
    m->base = at;
    madvise(at, m->n_bytes, MADV_DONTDUMP); /* keeps the mapping, which is mostly unused, out of
                                               core files */
    return true;
}

/* **Collective (comm)**. True when `mine` is true on every rank. */
static bool all_agree(MPI_Comm comm, bool mine)
{
    int ok = mine;
    return MPI_Allreduce(MPI_IN_PLACE, &ok, 1, MPI_INT, MPI_MIN, comm) == MPI_SUCCESS && ok != 0;
}

static bool on_one_host(MPI_Comm comm, int n_ranks)
{
    MPI_Comm host;
    int n = 0;
    if (MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host) == MPI_SUCCESS) {
        MPI_Comm_size(host, &n);
        MPI_Comm_free(&host);
    }
    return all_agree(comm, n == n_ranks);
}

bool host_memory_open(MPI_Comm comm, size_t shared_bytes, int n_in_process, struct host_memory *out)
{
    int n_ranks, rank;
    MPI_Comm_size(comm, &n_ranks);
    MPI_Comm_rank(comm, &rank);
    *out = (struct host_memory){.fd = -1, .rank = rank};
    if (!on_one_host(comm, n_ranks)) return false;
    struct host_memory m = {.fd = -1, .rank = rank};
    const size_t n_lanes = (size_t)n_ranks * HOST_LANES;
    const size_t address = common_address_bytes(comm) / (size_t)n_in_process;
    m.lane_bytes = address / n_lanes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if (m.lane_bytes == 0) return false;
    if (m.lane_bytes > LANE_BYTES_MAX) m.lane_bytes = LANE_BYTES_MAX;
    m.shared_bytes = round_up(sizeof(uint64_t) + shared_bytes, HUGE_PAGE_BYTES);
    m.n_bytes = m.shared_bytes + n_lanes * m.lane_bytes;
    struct ticket t;
    memset(&t, 0, sizeof t);
    t.n_bytes = m.n_bytes;
    const size_t backed_bytes = round_up(sizeof(uint64_t) + shared_bytes, GROW_BYTES);
    if (rank == 0) m.fd = host_memory_make_file(&t, backed_bytes);
    bool ok = MPI_Bcast(&t, (int)sizeof t, MPI_BYTE, 0, comm) == MPI_SUCCESS;
    if (ok && rank != 0) m.fd = host_memory_open_file(&t);
    ok = all_agree(comm, ok && m.fd >= 0 && host_memory_map(&m));
    if (ok && rank == 0) memset(m.base, 0, sizeof t.nonce);
    ok = all_agree(comm, ok);
    if (ok) *out = m;
    if (!ok) host_memory_close(&m);
    return ok;
}

void host_memory_close(struct host_memory *m)
{
    if (m->base != NULL) munmap(m->base, m->n_bytes);
    if (m->fd >= 0) close(m->fd);
    *m = (struct host_memory){.fd = -1};
}

char *host_memory_lane(const struct host_memory *m, int rank, unsigned lane)
{
    return m->base + m->shared_bytes + ((size_t)rank * HOST_LANES + lane) * m->lane_bytes;
}

/* A job of a team: its threads make these huge pages of a lane. */
struct huge_job {
    const struct host_memory *m;
    char *first;
    size_t n_pages, n_parts;
    _Atomic bool refused;
};

/* Makes one part of the huge pages. First touches a small page in each, because the kernel makes a
 * huge page (MADV_COLLAPSE) only where a page table exists. */
static void make_huge(void *job, uint32_t part)
{
    struct huge_job *j = job;
    char *at = j->first + part * j->n_pages / j->n_parts * HUGE_PAGE_BYTES;
    char *end = j->first + (part + 1) * j->n_pages / j->n_parts * HUGE_PAGE_BYTES;
    bool ok = true;
    for (char *p = at; p < end && ok; p += HUGE_PAGE_BYTES) {
        ok = back(j->m->fd, (size_t)(p - j->m->base), 1);
        if (ok) (void)*(volatile const char *)p;
    }
    if (at < end && (!ok || madvise(at, (size_t)(end - at), MADV_COLLAPSE) != 0)) j->refused = true;
}

/* Makes huge pages of a lane's bytes: the pages that end in (from, to]. With small pages
 * nearly every access would miss the TLB: sums are written column by column, and their rows lie on
 * different pages; weights are read throughout. */
static void back_huge(struct host_memory *m, unsigned lane, size_t from, size_t to,
                      struct team *team)
{
    struct huge_job j = {.m = m,
                         .first = host_memory_lane(m, m->rank, lane) +
                                  from / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES,
                         .n_pages = to / HUGE_PAGE_BYTES - from / HUGE_PAGE_BYTES};
    if (j.n_pages < PAGES_WORTH_WAKING) team = NULL;
    j.n_parts = team_size(team);
    team_run(team, 1, make_huge, &j);
    if (j.refused) m->is_small[lane] = true;
}

bool host_memory_grow(struct host_memory *m, unsigned lane, size_t n_bytes, struct team *team)
{
    if (n_bytes <= m->backed[lane]) return true;
    if (n_bytes > m->lane_bytes) return false;
    /* takes a quarter more than asked, at most AIR_BYTES_MAX more, so that steps that grow slowly
     * do not grow the lane each time */
    const size_t air = n_bytes / 4 < AIR_BYTES_MAX ? n_bytes / 4 : AIR_BYTES_MAX;
    const size_t with_air = n_bytes + air;
    size_t want = round_up(with_air, with_air < HUGE_PAGE_BYTES ? GROW_BYTES : HUGE_PAGE_BYTES);
    if (want > m->lane_bytes) want = m->lane_bytes;
    const size_t at = (size_t)(host_memory_lane(m, m->rank, lane) - m->base);
    back_huge(m, lane, m->backed[lane], want, team);
    if (!back(m->fd, at + m->backed[lane], want - m->backed[lane])) return false;
    m->backed[lane] = want;
    return true;
}

void host_memory_release(struct host_memory *m, unsigned lane)
{
    const size_t at = (size_t)(host_memory_lane(m, m->rank, lane) - m->base);
    if (m->backed[lane] > 0)
        (void)fallocate(m->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at,
                        (off_t)m->backed[lane]);
    m->backed[lane] = 0;
    m->is_small[lane] = false;
}
