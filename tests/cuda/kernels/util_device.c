/* Helpers of the device's kernel tests. */
#include "util_device.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SKIPPED = 77 };

struct both both_open(uint64_t seed)
{
    return both_open_as(seed, DEVICE_EXACT);
}

struct both both_open_as(uint64_t seed, enum device_arithmetic arithmetic)
{
    const struct device_options o = {.name = "cuda", .n_local_ranks = 1, .arithmetic = arithmetic};
    struct both b = {.cpu = table_ref(), .gpu = table_ref(), .rng = {seed}};
    const struct status st = device_open(&o, &b.gpu.device);
    if (!status_failed(&st)) return b;
    printf("%s\n", st.text);
    exit(st.code == STATUS_USAGE ? SKIPPED : 1);
}

void both_close(struct both *b)
{
    device_wait(b->gpu.device);
    const struct status st = device_status(b->gpu.device);
    if (status_failed(&st)) printf("%s\n", st.text);
    CU_ASSERT_FALSE(status_failed(&st));
    device_close(&b->gpu.device);
}

static struct twin twin_make(const struct both *b, void *host, size_t n_bytes)
{
    struct twin t = {.host = host, .n_bytes = n_bytes};
    const struct status st = mem_ops_alloc(&b->gpu, &t.device, n_bytes, 1, "a test's array");
    if (status_failed(&st)) {
        printf("%s\n", st.text);
        exit(1);
    }
    mem_ops_put(&b->gpu, t.device, host, n_bytes);
    return t;
}

struct twin twin_of(const struct both *b, const void *from, size_t n_bytes)
{
    void *host = test_memory(n_bytes);
    if (n_bytes > 0) memcpy(host, from, n_bytes);
    return twin_make(b, host, n_bytes);
}

struct twin twin_floats(struct both *b, size_t n, float magnitude, size_t every)
{
    float *x = test_floats(n);
    rng_floats(&b->rng, x, n, magnitude);
    if (every > 0) rng_specials(&b->rng, x, n, every);
    return twin_make(b, x, n * sizeof *x);
}

struct twin twin_zeros(const struct both *b, size_t n_bytes)
{
    void *host = test_memory(n_bytes);
    memset(host, 0, n_bytes);
    return twin_make(b, host, n_bytes);
}

void twin_free(const struct both *b, struct twin *t)
{
    mem_ops_free(&b->gpu, &t->device);
    free(t->host);
}

void *twin_found(const struct both *b, const struct twin *t)
{
    void *found = test_memory(t->n_bytes);
    mem_ops_get(&b->gpu, found, t->device, t->n_bytes);
    return found;
}

static void assert_none(size_t n_different, size_t n, const char *what)
{
    if (n_different > 0) printf("\n  %s: %zu of %zu differ\n", what, n_different, n);
    CU_ASSERT_EQUAL(n_different, 0);
}

void twin_same(const struct both *b, const struct twin *t, const char *what)
{
    unsigned char *found = twin_found(b, t);
    size_t n = 0;
    for (size_t i = 0; i < t->n_bytes; i++) n += found[i] != ((unsigned char *)t->host)[i];
    assert_none(n, t->n_bytes, what);
    free(found);
}

void twin_same_floats(const struct both *b, const struct twin *t, const char *what)
{
    float *found = twin_found(b, t);
    const size_t n = t->n_bytes / sizeof *found;
    assert_none(count_different(found, t->host, n), n, what);
    free(found);
}

struct weight_twin weight_twin_of(const struct both *b, const struct packed *w)
{
    struct weight_twin t = {.cpu = *w, .gpu = *w};
    if (w->quant.kind == QUANT_NONE) {
        t.data = twin_of(b, w->data, packed_bytes(w->dtype, w->n_out, w->n_in));
    } else {
        const struct packed_quant_sizes n = packed_quant_bytes(w->quant, w->n_out, w->n_in);
        t.data = twin_of(b, w->data, n.data);
        t.scales = twin_of(b, w->scales, n.scales);
        t.zeros = twin_of(b, w->zeros, n.zeros);
    }
    t.gpu.data = t.data.device;
    t.gpu.scales = t.scales.device;
    if (w->zeros != NULL) t.gpu.zeros = t.zeros.device;
    return t;
}

void weight_twin_free(const struct both *b, struct weight_twin *w)
{
    twin_free(b, &w->data);
    twin_free(b, &w->scales);
    twin_free(b, &w->zeros);
}
