/* Gathers and compares digests of the program and its flags. */
#include "job/job_same.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "parallel/comm/introduce.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { READ_BYTES = 1 << 20, HOST_BYTES = 64 };

/* The first message of a rank. Its size and its first two fields never change between versions. */
struct identity {
    uint64_t program; /* 0: its file could not be read */
    uint64_t flags;
    uint64_t n_flag_bytes;
    char host[HOST_BYTES]; /* NUL-terminated */
    uint64_t reserved[5];
};
_Static_assert(sizeof(struct identity) == 128, "the same on the wire in every version");

/* Computes the digest of the running program's file from /proc, because the file on disk may have
 * been replaced. */
static struct status digest_program(uint64_t *out)
{
    char *buf = NULL;
    *out = 0;
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return status_ok();
    XXH3_state_t *state = XXH3_createState();
    struct status st = mem_alloc(&buf, READ_BYTES, 1, "program digest");
    ssize_t n = -1;
    if (!status_failed(&st) && state != NULL) {
        XXH3_64bits_reset(state);
        while ((n = read(fd, buf, READ_BYTES)) > 0) XXH3_64bits_update(state, buf, (size_t)n);
    }
    if (n == 0) *out = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    mem_free(&buf);
    close(fd);
    return st;
}

/* Joins all arguments, each followed by a NUL. */
static struct status join_flags(int argc, char **argv, struct strbuf *out)
{
    for (int i = 0; i < argc; i++) strbuf_add(out, argv[i], strlen(argv[i]) + 1);
    return strbuf_status(out);
}

static struct status compare_programs(const struct identity *all, int n_ranks)
{
    for (int r = 1; r < n_ranks; r++) {
        if (all[r].program == all[0].program) continue;
        return status_make(STATUS_INPUT,
                           "rank %d on %s runs another program than rank 0 on %s: digest expected "
                           "%016llx, found %016llx; all ranks need the same build",
                           r, all[r].host, all[0].host, (unsigned long long)all[0].program,
                           (unsigned long long)all[r].program);
    }
    return status_ok();
}

/* Makes the error for the first argument in which this rank differs from rank 0, whose arguments
 * are the n bytes at `first`. */
static struct status name_flag(int rank, const char *host, const char *first, size_t n, int argc,
                               char **argv)
{
    const char *found = "nothing", *expected = "nothing", *before = "";
    for (int i = 0;; i++) {
        expected = n > 0 ? first : "nothing";
        found = i < argc ? argv[i] : "nothing";
        if (n == 0 || i >= argc || strcmp(expected, found) != 0) break;
        before = found;
        n -= strlen(first) + 1;
        first += strlen(first) + 1;
    }
    return status_make(STATUS_USAGE,
                       "rank %d on %s was started with other flags than rank 0: after \"%.100s\" "
                       "expected \"%.100s\", found \"%.100s\"",
                       rank, host, before, expected, found);
}

/* Called if some ranks' flags differ from rank 0's: each of these ranks finds the first argument
 * that differs. */
static struct status compare_flags(struct comm *c, const struct identity *all, int argc,
                                   char **argv, const struct strbuf *flags)
{
    char *first = NULL;
    const int rank = comm_rank(c, COMM_WORLD);
    const size_t n = (size_t)all[0].n_flag_bytes;
    struct status st = mem_alloc(&first, n + 1, 1, "flags of rank 0");
    TRY(comm_agree(c, st));
    if (rank == 0 && n > 0) memcpy(first, flags->data, n);
    comm_broadcast(c, COMM_WORLD, 0, first, n);
    if (all[rank].flags != all[0].flags) {
        st = name_flag(rank, all[rank].host, first, n, argc, argv);
    }
    mem_free(&first);
    return comm_agree(c, st);
}

static struct status job_same_compare(struct comm *c, const struct identity *all, int argc,
                                      char **argv, const struct strbuf *flags)
{
    const int n_ranks = comm_size(c, COMM_WORLD);
    TRY(compare_programs(all, n_ranks));
    bool differ = false;
    for (int r = 1; r < n_ranks; r++) differ |= all[r].flags != all[0].flags;
    return differ ? compare_flags(c, all, argc, argv, flags) : status_ok();
}

struct status job_same(struct comm *c, int argc, char **argv)
{
    if (comm_size(c, COMM_WORLD) == 1) return status_ok();
    struct identity mine = {.program = 0};
    struct identity *all = NULL;
    struct strbuf flags;
    strbuf_init(&flags);
    struct status st = digest_program(&mine.program);
    if (!status_failed(&st)) st = join_flags(argc, argv, &flags);
    if (!status_failed(&st)) {
        st = mem_alloc(&all, (size_t)comm_size(c, COMM_WORLD), sizeof *all, "ranks' digests");
    }
    if (status_failed(&st)) { /* no communication has happened yet, so the ranks cannot agree */
        log_line(LOG_ERROR, "%s", st.text);
        comm_abort(c, status_exit(st.code));
    }
    mine.flags = XXH3_64bits(flags.data, flags.n);
    mine.n_flag_bytes = flags.n;
    gethostname(mine.host, sizeof mine.host - 1);
    introduce(c, &mine, sizeof mine, all);
    st = job_same_compare(c, all, argc, argv, &flags);
    mem_free(&all);
    strbuf_fini(&flags);
    return st;
}
