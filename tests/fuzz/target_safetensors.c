/* Targets: a whole safetensors file; its JSON header alone, between a right length and some data;
 * the index of shards. */
#include "checkpoint/convert/safetensors.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static const char *const words[] = {"{\"",
                                    "\"dtype\":\"F32\"",
                                    "\"F16\"",
                                    "\"BF16\"",
                                    "\"F64\"",
                                    "\"I64\"",
                                    "\"BOOL\"",
                                    "\"F8_E4M3\"",
                                    "\"shape\":",
                                    "[0]",
                                    "\"data_offsets\":",
                                    "[0,0]",
                                    "[8,0]",
                                    "\"__metadata__\"",
                                    "[]",
                                    ",",
                                    "4294967296",
                                    "../",
                                    "/",
                                    "weight_map",
                                    "\\u0000",
                                    ":{",
                                    "}}",
                                    NULL};

/* Checks that every tensor lies inside its file, that tensors do not overlap, and that reading
 * gives the file's bytes. */
static bool check_tensors(struct safetensors *s, const char *bytes, size_t n)
{
    uint64_t sum = 0;
    char *out = malloc(n + 1);
    for (size_t i = 0; i < safetensors_count(s); i++) {
        const struct safetensors_tensor *t = safetensors_at(s, i);
        uint64_t elems = 1;
        for (uint32_t d = 0; d < t->n_dims; d++) elems *= t->dims[d];
        FUZZ_CHECK(t->offset <= n && t->n_bytes <= n - t->offset, "tensor '%s' of %llu bytes",
                   t->name, (unsigned long long)t->n_bytes);
        FUZZ_CHECK(elems * dtype_bytes(t->dtype) == t->n_bytes, "tensor '%s'", t->name);
        FUZZ_CHECK(safetensors_find(s, t->name) == t, "tensor '%s'", t->name);
        const struct status st = safetensors_read(s, t, 0, (size_t)t->n_bytes, out);
        FUZZ_CHECK(!status_failed(&st), "%s", st.text);
        FUZZ_CHECK(memcmp(out, bytes + t->offset, (size_t)t->n_bytes) == 0, "tensor '%s'", t->name);
        sum += t->n_bytes;
    }
    free(out);
    FUZZ_CHECK(sum <= n, "%llu bytes of tensors in %zu", (unsigned long long)sum, n);
    return true;
}

static bool run_file(const char *bytes, size_t n)
{
    struct safetensors *s = NULL;
    const char *path = fuzz_scratch("m.safetensors");
    fuzz_write(path, bytes, n);
    const struct status st = safetensors_open(path, &s);
    const bool taken = status_failed(&st) ? fuzz_refused(&st) : check_tensors(s, bytes, n);
    safetensors_close(&s);
    return taken;
}

enum { DATA_BYTES = 400 };

/* Puts a header's length before it and data after it. */
static char *with_header(const char *header, size_t n_header, size_t *n)
{
    *n = 8 + n_header + DATA_BYTES;
    char *file = calloc(1, *n);
    for (size_t i = 0; i < 8; i++) file[i] = (char)((uint64_t)n_header >> 8 * i);
    memcpy(file + 8, header, n_header);
    for (size_t i = 8 + n_header; i < *n; i++) file[i] = (char)(i * 7);
    return file;
}

static bool run_header(const char *bytes, size_t n)
{
    size_t n_file;
    char *file = with_header(bytes, n, &n_file);
    const bool taken = run_file(file, n_file);
    free(file);
    return taken;
}

static const char *const headers[] = {
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[5,8],\"data_offsets\":[0,160]},"
    "\"b.weight\":{\"dtype\":\"BF16\",\"shape\":[2,3,20],\"data_offsets\":[160,400]}}",
    "{\"__metadata__\":{\"format\":\"pt\"},\"x\":{\"dtype\":\"F16\",\"shape\":[200],"
    "\"data_offsets\":[0,400]}}",
    "{\"z\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[396,400]},\"y\":{\"dtype\":\"F32\","
    "\"shape\":[9,11],\"data_offsets\":[0,396]}}    "};

static void begin_header(struct fuzz_seeds *seeds)
{
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        fuzz_seed_add(seeds, headers[i], strlen(headers[i]));
    }
}

static void begin_file(struct fuzz_seeds *seeds)
{
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        size_t n;
        char *file = with_header(headers[i], strlen(headers[i]), &n);
        fuzz_seed_add(seeds, file, n);
        free(file);
    }
}

static const char INDEX[] =
    "{\"metadata\":{\"total_size\":1200},\"weight_map\":{\"a\":"
    "\"s1.safetensors\",\"b.weight\":\"s1.safetensors\",\"x\":"
    "\"s2.safetensors\",\"y\":\"s3.safetensors\",\"z\":\"s3.safetensors\"}}";

static bool run_index(const char *bytes, size_t n)
{
    static const char *const names[] = {"s1.safetensors", "s2.safetensors", "s3.safetensors"};
    struct safetensors *s = NULL;
    for (size_t i = 0; i < 3; i++) {
        size_t n_file;
        char *file = with_header(headers[i], strlen(headers[i]), &n_file);
        fuzz_write(fuzz_scratch(names[i]), file, n_file);
        free(file);
    }
    fuzz_write(fuzz_scratch("model.safetensors.index.json"), bytes, n);
    const struct status st = safetensors_open(fuzz_scratch(""), &s);
    const bool taken = status_failed(&st) ? fuzz_refused(&st) : true;
    FUZZ_CHECK(!taken || safetensors_count(s) >= 1, "an empty index");
    for (size_t i = 0; taken && i < safetensors_count(s); i++) {
        char out[DATA_BYTES];
        const struct safetensors_tensor *t = safetensors_at(s, i);
        const struct status read = safetensors_read(s, t, 0, (size_t)t->n_bytes, out);
        FUZZ_CHECK(!status_failed(&read), "%s", read.text);
    }
    safetensors_close(&s);
    return taken;
}

static void begin_index(struct fuzz_seeds *seeds)
{
    fuzz_seed_add(seeds, INDEX, sizeof INDEX - 1);
}

extern const struct fuzz_target fuzz_safetensors, fuzz_safetensors_header, fuzz_safetensors_index;
const struct fuzz_target fuzz_safetensors = {"safetensors", words, begin_file, run_file};
const struct fuzz_target fuzz_safetensors_header = {"safetensors_header", words, begin_header,
                                                    run_header};
const struct fuzz_target fuzz_safetensors_index = {"safetensors_index", words, begin_index,
                                                   run_index};
