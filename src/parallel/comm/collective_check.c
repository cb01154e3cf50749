/* Gathers a small description of the call from all ranks; each rank compares all descriptions. */
#include "parallel/comm/collective_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void collective_call_init(struct collective_call *out, const char *op, const char *file, int line)
{
    const char *slash = strrchr(file, '/');
    memset(out, 0, sizeof *out); /* padding too: calls are compared as bytes */
    snprintf(out->op, sizeof out->op, "%s", op);
    snprintf(out->site, sizeof out->site, "%s:%d", slash != NULL ? slash + 1 : file, line);
    out->root = -1;
}

static void collective_check_describe(const struct collective_call *c, char *out, size_t out_bytes)
{
    char root[32] = "";
    if (c->root >= 0) snprintf(root, sizeof root, " from rank %lld", (long long)c->root);
    snprintf(out, out_bytes, "%s%s of %llu x %llu bytes at %s", c->op, root,
             (unsigned long long)c->count, (unsigned long long)c->elem_bytes, c->site);
}

static struct status collective_check_compare(const struct collective_call *all, int n)
{
    for (int i = 1; i < n; i++) {
        if (memcmp(&all[0], &all[i], sizeof all[0]) == 0) continue;
        char a[192], b[192];
        collective_check_describe(&all[0], a, sizeof a);
        collective_check_describe(&all[i], b, sizeof b);
        return status_make(STATUS_BUG, "collectives differ: rank 0 calls %s, rank %d calls %s", a,
                           i, b);
    }
    return status_ok();
}

struct status collective_check(MPI_Comm comm, const struct collective_call *mine)
{
    int n;
    MPI_Comm_size(comm, &n);
    /* not mem_alloc: tests make one of its allocations fail (mem_fail_after), never this one */
    struct collective_call *all = calloc((size_t)n, sizeof *all);
    if (all == NULL) return status_make(STATUS_MEMORY, "collective check: no memory");
    const int bytes = (int)sizeof *mine;
    struct status st = status_ok();
    if (MPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, comm) != MPI_SUCCESS) {
        st = status_make(STATUS_LOST, "%s at %s: the check before it failed", mine->op, mine->site);
    }
    if (!status_failed(&st)) st = collective_check_compare(all, n);
    free(all);
    return st;
}
