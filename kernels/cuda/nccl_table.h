/* The few calls through which shoal reaches NCCL, behind one table like driver.h's: a build without
 * it compiles the same code, and tests put a library of their own here that works on the CPU.
 * Communicators never block: a call begins something, poll tells when it is done. All return 0 or
 * the library's own error number. Called by src/collective/ alone. */
#ifndef SHOAL_KERNELS_CUDA_NCCL_TABLE_H
#define SHOAL_KERNELS_CUDA_NCCL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NCCL_ID_BYTES = 128 };

struct nccl_table {
    const char *name; /* of --version: "NCCL 2.28.9" */

    /* Loads the library; an error means that it is not there, and everything else would fail. */
    int (*load)(void);

    /* A name for a communicator to be; all its ranks open it with the same. */
    int (*new_id)(char id[NCCL_ID_BYTES]);
    int (*open)(void **comm, int n_ranks, const char id[NCCL_ID_BYTES], int rank);

    /* Whether the last call on comm is still under way; an error is also a peer's. */
    int (*poll)(void *comm, bool *busy);

    /* finish begins a peaceful end, destroy ends it; abort ends whatever is running, and frees. */
    int (*finish)(void *comm);
    int (*destroy)(void *comm);
    int (*abort)(void *comm);

    /* Calls between these two run as one, and are under way only after the second. */
    int (*group_begin)(void);
    int (*group_end)(void);

    /* On a stream: in place; `all` holds n_ranks parts of n_bytes, of which this rank's is there.
     */
    int (*sum_i64)(void *buf, size_t n, void *comm, void *stream);
    /* n_ranks parts of n elements: this rank's gets its sums, the others become undefined */
    int (*sum_part_i64)(int64_t *parts, size_t n, int rank, void *comm, void *stream);
    int (*max_u32)(void *buf, size_t n, void *comm, void *stream);
    int (*gather)(void *all, size_t n_bytes, int rank, void *comm, void *stream);
    int (*send)(const void *buf, size_t n_bytes, int to, void *comm, void *stream);
    int (*receive)(void *buf, size_t n_bytes, int from, void *comm, void *stream);

    const char *(*error_text)(int error);
};

/* Local. The NCCL functions that this program was built with; NULL: built without NCCL. */
const struct nccl_table *nccl_table_here(void);

#endif
