/* Checks that the devices of all ranks add floats in the same order: once when they are open, and
 * again after the weights are loaded, which chooses algorithms. */
#include "base/mem.h"
#include "collective/device_comm.h"
#include "kernels/cuda/device_state.h"

#include <stdio.h>
#include <string.h>

enum { HOST_BYTES = 64, SUMS_BYTES = 320, CHOICE_BYTES = 96 };

/* A rank sends this about its device to the others, so that they can compare. */
struct device_ways {
    char host[HOST_BYTES], sums[SUMS_BYTES];
    uint32_t n_algorithms;
    struct device_algorithm algorithms[DEVICE_ALGORITHMS];
};

/* The algorithm of the first rank that has chosen one for a kind of matrix product. */
struct met {
    const struct device_algorithm *a;
    int rank;
};

static void device_same_say(const struct device *d, const char *host, struct device_ways *out)
{
    char sums[256];
    memset(out, 0, sizeof *out);
    device_sums(d, sums, sizeof sums);
    snprintf(out->host, sizeof out->host, "%s", host);
    snprintf(out->sums, sizeof out->sums, "%s (compute capability %u.%u)", sums, d->facts.major,
             d->facts.minor);
    out->n_algorithms = d->gemm.n_algorithms;
    memcpy(out->algorithms, d->gemm.algorithms, sizeof out->algorithms);
}

static struct status compare_sums(const struct device_ways *all, int n_ranks)
{
    for (int r = 1; r < n_ranks; r++) {
        if (strcmp(all[r].sums, all[0].sums) == 0) continue;
        return status_make(STATUS_USAGE,
                           "rank %d on %s computes with %s, rank 0 on %s with %s: bytes would "
                           "depend on the rank; give all ranks GPUs of one type and the same "
                           "libraries, or --exact-across-devices",
                           r, all[r].host, all[r].sums, all[0].host, all[0].sums);
    }
    return status_ok();
}

static void name_choice(const struct device_algorithm *a, char out[CHOICE_BYTES])
{
    if (a->algorithm == CUDA_GEMM_FREE)
        snprintf(out, CHOICE_BYTES, "own kernels");
    else
        snprintf(out, CHOICE_BYTES, "the library's algorithm %u", a->algorithm);
}

static struct status compare_choice(const struct device_ways *all, struct met first, int rank,
                                    const struct device_algorithm *a)
{
    char here[CHOICE_BYTES], there[CHOICE_BYTES];
    if (a->algorithm == first.a->algorithm) return status_ok();
    name_choice(a, here);
    name_choice(first.a, there);
    return status_make(STATUS_USAGE,
                       "products of %s with %zu inputs: rank %d on %s took %s, rank %d on %s %s: "
                       "bytes would depend on the rank; --exact-across-devices does without the "
                       "library",
                       dtype_name(a->dtype), a->k, rank, all[rank].host, here, first.rank,
                       all[first.rank].host, there);
}

/* Compares the algorithms of the ranks for each kind of matrix product (a type, a number of inputs,
 * batched or not). Stages have different layers, so a rank may lack kinds that another rank has. */
static struct status compare_algorithms(const struct device_ways *all, int n_ranks,
                                        struct met *list)
{
    size_t n = 0;
    for (int r = 0; r < n_ranks; r++) {
        for (uint32_t i = 0; i < all[r].n_algorithms; i++) {
            const struct device_algorithm *a = &all[r].algorithms[i];
            size_t at = 0;
            while (at < n && (list[at].a->dtype != a->dtype || list[at].a->k != a->k ||
                              list[at].a->batched != a->batched))
                at++;
            if (at == n) list[n++] = (struct met){a, r};
            TRY(compare_choice(all, list[at], r, a));
        }
    }
    return status_ok();
}

struct status device_comm_same(const struct kern_table *k, struct comm *c, const char *host)
{
    if (k->device == NULL || k->device->arithmetic == DEVICE_EXACT) return status_ok();
    const size_t n = (size_t)comm_size(c, COMM_WORLD);
    struct device_ways mine, *all = NULL;
    struct met *list = NULL;
    struct status st = mem_alloc(&all, n, sizeof *all, "ranks' devices");
    if (!status_failed(&st))
        st = mem_alloc(&list, n * DEVICE_ALGORITHMS, sizeof *list, "ranks' devices");
    st = comm_agree(c, st);
    if (!status_failed(&st)) {
        device_same_say(k->device, host, &mine);
        comm_gather_bytes(c, COMM_WORLD, &mine, sizeof mine, all);
        st = compare_sums(all, (int)n);
    }
    if (!status_failed(&st)) st = compare_algorithms(all, (int)n, list);
    mem_free(&list);
    mem_free(&all);
    return st;
}
