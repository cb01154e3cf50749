/* The ranks of each host try to share memory. Then all ranks learn, for each rank, the first rank
 * on its host (the rank itself if it shares no memory), and number the hosts in the order of these
 * first ranks. */
#define COMM_INSIDE
#include "parallel/comm/comm_hosts.h"

#include "base/mem.h"

/* **Collective (axis)**. True when `mine` is true on every rank. */
static bool axis_agrees(MPI_Comm axis, bool mine)
{
    int ok = mine;
    return MPI_Allreduce(MPI_IN_PLACE, &ok, 1, MPI_INT, MPI_MIN, axis) == MPI_SUCCESS && ok != 0;
}

/* **Collective (axis)**. Opens the group of the ranks with this rank's host_id. *first becomes the
 * first of them or, if they get no group, this rank. */
static bool open_group(MPI_Comm axis, int host_id, struct host_group_waiting w, int *first,
                       struct host_group **out)
{
    MPI_Comm mine;
    int rank, n;
    MPI_Comm_rank(axis, &rank);
    if (MPI_Comm_split(axis, host_id, rank, &mine) != MPI_SUCCESS) return false;
    MPI_Comm_size(mine, &n);
    if (n > 1) *out = host_group_open(mine, w);
    *first = rank;
    bool ok = true;
    if (*out != NULL) ok = MPI_Bcast(first, 1, MPI_INT, 0, mine) == MPI_SUCCESS;
    MPI_Comm_free(&mine);
    return ok;
}

/* Numbers the hosts, and the ranks on each. first_of[r]: the first rank on the host of rank r. */
static void number_hosts(struct comm_hosts *h, const int *first_of, int rank)
{
    for (int r = 0; r < h->n_ranks; r++) {
        const int first = first_of[r], host = first == r ? h->n_hosts++ : h->host_of[first];
        h->host_of[r] = host;
        h->local_of[r] = h->n_on[host]++;
    }
    h->host = h->host_of[rank];
    h->local = h->local_of[rank];
    h->n_local = h->n_on[h->host];
    h->n_least = h->n_local;
    for (int i = 0; i < h->n_hosts; i++)
        if (h->n_on[i] < h->n_least) h->n_least = h->n_on[i];
}

/* Local. Allocates the lists; no hosts are numbered yet. */
static struct status comm_hosts_alloc(size_t n, struct comm_hosts **out)
{
    TRY(mem_alloc(out, 1, sizeof **out, "hosts"));
    (*out)->n_ranks = (int)n;
    TRY(mem_alloc(&(*out)->host_of, n, sizeof(int), "hosts"));
    TRY(mem_alloc(&(*out)->local_of, n, sizeof(int), "hosts"));
    return mem_alloc(&(*out)->n_on, n, sizeof(int), "hosts");
}

struct comm_hosts *comm_hosts_open(MPI_Comm axis, int host_id, struct host_group_waiting w)
{
    int n, rank, first, *first_of = NULL;
    MPI_Comm_size(axis, &n);
    MPI_Comm_rank(axis, &rank);
    struct comm_hosts *h = NULL;
    struct status st = comm_hosts_alloc((size_t)n, &h);
    if (!status_failed(&st)) st = mem_alloc(&first_of, (size_t)n, sizeof *first_of, "hosts");
    bool ok = axis_agrees(axis, !status_failed(&st));
    ok = ok && open_group(axis, host_id, w, &first, &h->group) &&
         MPI_Allgather(&first, 1, MPI_INT, first_of, 1, MPI_INT, axis) == MPI_SUCCESS;
    if (ok) number_hosts(h, first_of, rank);
    if (!ok) comm_hosts_close(&h);
    mem_free(&first_of);
    return h;
}

void comm_hosts_close(struct comm_hosts **h)
{
    if (*h == NULL) return;
    host_group_close(&(*h)->group);
    mem_free(&(*h)->host_of);
    mem_free(&(*h)->local_of);
    mem_free(&(*h)->n_on);
    mem_free(h);
}

int comm_hosts_rank_of(const struct comm_hosts *h, int host, int local)
{
    for (int r = 0; r < h->n_ranks; r++)
        if (h->host_of[r] == host && h->local_of[r] == local) return r;
    return -1;
}
