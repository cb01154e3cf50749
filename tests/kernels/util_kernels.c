/* Helpers of the kernel tests. */
#include "util_kernels.h"

#include "kernels/cpu.h"
#include "kernels/ops.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t rng_next(struct rng *r)
{
    r->state += 0x9E3779B97F4A7C15u;
    uint64_t z = r->state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

size_t rng_below(struct rng *r, size_t n)
{
    return (size_t)(rng_next(r) % n);
}

size_t rng_stride(struct rng *r, size_t n)
{
    return rng_below(r, 2) == 0 ? n + 3 : (n / 1024 + 1) * 1024;
}

float rng_float(struct rng *r, float magnitude)
{
    const int32_t i = (int32_t)(rng_next(r) >> 40) - (1 << 23);
    return (float)i * 0x1p-23f * magnitude;
}

void rng_floats(struct rng *r, float *x, size_t n, float magnitude)
{
    for (size_t i = 0; i < n; i++) x[i] = rng_float(r, magnitude);
}

void rng_specials(struct rng *r, float *x, size_t n, size_t every)
{
    static const float special[] = {NAN,       INFINITY,       -INFINITY, -0.0f,     0.0f,
                                    0x1p-149f, -0x1p-130f,     0x1p127f,  -0x1p127f, 0x1p19f,
                                    -0x1p19f,  0x1.fffffep18f, 65519.0f,  65520.0f,  0x1p-25f,
                                    -88.0f,    88.5f,          0x1p-14f};
    for (size_t i = 0; i < n; i++)
        if (rng_below(r, every) == 0)
            x[i] = special[rng_below(r, sizeof special / sizeof *special)];
}

void *test_memory(size_t n_bytes)
{
    void *p = malloc(n_bytes > 0 ? n_bytes : 1);
    if (p == NULL) exit(1);
    memset(p, 0x5A, n_bytes);
    return p;
}

float *test_floats(size_t n)
{
    return test_memory(n * sizeof(float));
}

size_t count_different(const float *a, const float *b, size_t n)
{
    size_t n_different = 0;
    for (size_t i = 0; i < n; i++)
        if (f32_bits(a[i]) != f32_bits(b[i]) && !(isnan(a[i]) && isnan(b[i]))) n_different++;
    return n_different;
}

struct packed random_packed(struct rng *r, enum dtype t, size_t n_out, size_t n_in, size_t leaf,
                            uint32_t grid_bits, size_t every)
{
    const size_t n_bytes = packed_bytes(t, n_out, n_in), row_bytes = n_in * dtype_bytes(t);
    char *data = test_memory(n_bytes), *rows = test_memory(n_out * row_bytes);
    float *values = test_floats(n_in);
    for (size_t n = 0; n < n_out; n++) {
        rng_floats(r, values, n_in, 1.0f);
        if (every > 0) rng_specials(r, values, n_in, every);
        dtype_from_f32(t, values, n_in, rows + n * row_bytes);
    }
    memset(data, 0, n_bytes);
    packed_put_rows(t, data, n_in, &(struct matrix_rows){rows, row_bytes, 0, n_out});
    free(values);
    free(rows);
    return (struct packed){.dtype = t,
                           .n_out = (uint32_t)n_out,
                           .n_in = (uint32_t)n_in,
                           .leaf = (uint32_t)leaf,
                           .grid_bits = grid_bits,
                           .data = data};
}

void *packed_memory(const struct packed *w)
{
    return (void *)(uintptr_t)w->data;
}

float packed_at(const struct packed *w, size_t n, size_t k)
{
    const size_t i = (n / PANEL_COLUMNS * w->n_in + k) * PANEL_COLUMNS + n % PANEL_COLUMNS;
    float x;
    dtype_to_f32(w->dtype, (const char *)w->data + i * dtype_bytes(w->dtype), 1, &x);
    return x;
}

struct team *test_team(uint32_t n)
{
    struct team *t;
    const struct status st = team_create(n, &t);
    if (status_failed(&st)) exit(1);
    return t;
}

struct kern_table table_ref(void)
{
    struct kern_table t;
    kern_fill_ref(&t);
    return t;
}

struct kern_table table_best(void)
{
    static struct kern_table best; /* chosen once: its check takes longer than many a test's case */
    if (best.name != NULL) return best;
    const struct status st = kern_select(NULL, &best);
    if (status_failed(&st)) exit(1);
    return best;
}

/* Whether a feature belongs to a better set than SHOAL_CPU names. The name of a feature begins with
 * the name of its set. */
static bool is_hidden(const char *feature)
{
    const bool is_amx = strncmp(feature, "amx", 3) == 0;
    const bool is_avx512 = strncmp(feature, "avx512", 6) == 0;
    return (is_amx && cpu_hides(CPU_AMX)) || (is_avx512 && cpu_hides(CPU_AVX512)) ||
           (strcmp(feature, "avx2") == 0 && cpu_hides(CPU_AVX2));
}

bool system_has(const char *feature)
{
    if (is_hidden(feature)) return false;
    char *line = NULL;
    size_t room = 0;
    bool has = false;
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f != NULL && !has && getline(&line, &room, f) > 0) {
        if (strncmp(line, "flags", 5) != 0) continue;
        char *rest = line;
        for (const char *word; !has && (word = strsep(&rest, " \n")) != NULL;)
            has = strcmp(word, feature) == 0;
    }
    free(line);
    if (f != NULL) fclose(f);
    return has;
}

void check_selected(const char *set)
{
    struct kern_table t;
    const struct status st = kern_select(set, &t);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    CU_ASSERT_STRING_EQUAL(t.name, set);
}

struct kern_table table_in_turn(size_t i)
{
    static struct kern_table second;
    if (i % 2 == 0) return table_best();
    if (second.name != NULL) return second;
    const struct status st = kern_select("avx2", &second);
    if (status_failed(&st)) second = table_best();
    return second;
}
