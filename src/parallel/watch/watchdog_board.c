/* POSIX shared memory: the host's first rank creates it, all ranks map it, then its name is
 * removed. */
#include "parallel/watch/watchdog_board.h"

#include "base/proc_thread.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NAME_MAX_BYTES = 64 };

/* Creates a file whose space is fully allocated; otherwise a full /dev/shm would mean a SIGBUS
 * later. Returns its descriptor, or -1. */
static int watchdog_board_make_file(char name[NAME_MAX_BYTES], size_t n_bytes)
{
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) random = 0;
    snprintf(name, NAME_MAX_BYTES, "/shoal-%ld-%016llx", (long)getpid(),
             (unsigned long long)random);
    const int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0 && posix_fallocate(fd, 0, (off_t)n_bytes) == 0) return fd;
    if (fd >= 0) {
        close(fd);
        shm_unlink(name);
    }
    name[0] = '\0';
    return -1;
}

static struct board *watchdog_board_map(int fd, size_t n_bytes)
{
    const int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void *at = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

size_t board_open(struct comm *c, struct board **out, bool *shared)
{
    const bool is_first = comm_rank(c, COMM_HOST) == 0;
    const size_t n_bytes =
        sizeof **out + (size_t)comm_size(c, COMM_HOST) * sizeof(struct board_slot);
    char name[NAME_MAX_BYTES] = "";
    int fd = -1;
    if (is_first) fd = watchdog_board_make_file(name, n_bytes);
    comm_broadcast(c, COMM_HOST, 0, name, sizeof name);
    if (!is_first && name[0] != '\0') fd = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    *out = fd >= 0 ? watchdog_board_map(fd, n_bytes) : NULL;
    uint64_t have = *out != NULL;
    comm_min_u64(c, COMM_HOST, &have, 1);
    if (fd >= 0) close(fd);
    if (is_first && name[0] != '\0') shm_unlink(name);
    *shared = have != 0;
    if (!*shared) {
        board_close(out, n_bytes);
        *out = watchdog_board_map(-1, n_bytes);
    }
    return *out != NULL ? n_bytes : 0;
}

void board_close(struct board **b, size_t n_bytes)
{
    if (*b != NULL) munmap(*b, n_bytes);
    *b = NULL;
}

void board_sign_process(struct board_slot *mine)
{
    struct proc_thread me;
    mine->pid = getpid();
    mine->started = proc_thread_read(mine->pid, mine->pid, &me) ? me.started : 0;
    board_sign_thread(mine);
}

void board_sign_thread(struct board_slot *mine)
{
    atomic_store_explicit(&mine->thread, (int32_t)syscall(SYS_gettid), memory_order_relaxed);
}

bool board_waits_for_cpu(const struct board_slot *s)
{
    const int32_t thread = atomic_load_explicit(&s->thread, memory_order_relaxed);
    struct proc_thread t;
    if (!proc_thread_read(s->pid, s->pid, &t) || t.started != s->started) return false;
    return proc_thread_read(s->pid, thread, &t) && t.state == 'R';
}

bool board_post(struct board *b, const struct watchdog_loss *loss)
{
    uint32_t nobody = 0;
    if (!atomic_compare_exchange_strong(&b->claimed, &nobody, 1)) return false;
    b->loss = *loss;
    atomic_store_explicit(&b->posted, 1, memory_order_release);
    return true;
}

bool board_read(const struct board *b, struct watchdog_loss *out)
{
    if (atomic_load_explicit(&b->posted, memory_order_acquire) == 0) return false;
    *out = b->loss;
    return true;
}
