/* The few calls through which shoal reaches NCCL, behind one table like that of driver.h. A build
 * without NCCL compiles the same code, and tests install their own library, which works on the
 * CPU. Communicators never block: a call starts an operation, and poll tells when it has ended.
 * Entries of type int return 0 or an error number that error_text explains. Called by
 * src/collective. */
#ifndef SHOAL_KERNELS_CUDA_NCCL_TABLE_H
#define SHOAL_KERNELS_CUDA_NCCL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NCCL_ID_BYTES = 128 };

struct nccl_table {
    const char *name; /* for reports: "NCCL 2.28.9", the version at build time */

    /* Loads the library. After an error only error_text may be called. */
    int (*load)(void);

    /* Makes a new communicator id; all ranks of the communicator open it with this id. */
    int (*new_id)(char id[NCCL_ID_BYTES]);
    int (*open)(void **comm, int n_ranks, const char id[NCCL_ID_BYTES], int rank);

    /* *busy: the last call on comm has not ended. The error may be that of another rank. */
    int (*poll)(void *comm, bool *busy);

    /* finish starts an orderly shutdown and destroy completes it; abort stops running operations
     * and frees comm. */
    int (*finish)(void *comm);
    int (*destroy)(void *comm);
    int (*abort)(void *comm);

    /* Operations between these two calls run together; they start with the second call. */
    int (*group_begin)(void);
    int (*group_end)(void);

    /* Collectives on a stream, in place. `all` holds n_ranks parts of n_bytes; the caller has
     * filled this rank's part. */
    int (*sum_i64)(void *buf, size_t n, void *comm, void *stream);
    /* n_ranks parts of n elements: this rank's part gets its sums, the other parts become
     * undefined */
    int (*sum_part_i64)(int64_t *parts, size_t n, int rank, void *comm, void *stream);
    int (*max_u32)(void *buf, size_t n, void *comm, void *stream);
    int (*gather)(void *all, size_t n_bytes, int rank, void *comm, void *stream);
    int (*send)(const void *buf, size_t n_bytes, int to, void *comm, void *stream);
    int (*receive)(void *buf, size_t n_bytes, int from, void *comm, void *stream);

    const char *(*error_text)(int error);
};

/* Local. Returns the NCCL functions that this program was built with; NULL: built without NCCL. */
const struct nccl_table *nccl_table_here(void);

#endif
