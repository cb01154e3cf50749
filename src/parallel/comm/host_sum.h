/* Sums over the ranks of several hosts. The ranks of a host add in shared memory. Between hosts the
 * first n ranks of each host work in parallel, each on its own slice, and send packed integers
 * (wire_ints.h); n is the smallest number of ranks on any host.
 *
 *                host 0: rank a  rank b              host 1: rank c  rank d
 *     1. memory        slice 0  slice 1                    slice 0  slice 1      sums of the host
 *     2. wire          a <------ part of slice 0 ------------> c                 packed integers
 *                               b <---- part of slice 1 --------------> d
 *     3. wire          a <------ words of slice 0 ------------> c                4-byte words
 *     4. memory        every rank takes the words of all slices of its host
 *
 * Each host totals one part of each slice and converts it for all hosts. A small sum skips step 3:
 * every host gets the whole slice and totals all of it. Private to comm. */
#ifndef SHOAL_PARALLEL_COMM_HOST_SUM_H
#define SHOAL_PARALLEL_COMM_HOST_SUM_H

#include "parallel/comm/comm_private.h"

enum host_sum_way {
    HOST_SUM_FLAT, /* MPI's reduction over all ranks */
    HOST_SUM_ONE_ROUND,
    HOST_SUM_TWO_ROUNDS
};

/* Local. Returns how n sums of the axis are added, the same on all its ranks. */
enum host_sum_way host_sum_way_of(const struct comm *c, enum comm_axis axis, size_t n);

/* **Collective (axis)**. Adds s->sums over the ranks. way: not HOST_SUM_FLAT. word_bytes: bytes of
 * a word that s->convert makes and s->take receives, 4 or 8. Returns the bytes that this rank sent
 * to other hosts. Failures end the job. */
size_t host_sum(struct comm *c, enum comm_axis axis, const struct comm_sum *s,
                enum host_sum_way way, size_t word_bytes);

#endif
