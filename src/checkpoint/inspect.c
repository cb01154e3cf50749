/* Prints what a checkpoint file holds, and verifies it. */
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/ckpt.h"
#include "checkpoint/convert.h"

#include <string.h>

struct inspect_sums {
    uint64_t n_tensors[DTYPE_COUNT], n_elems[DTYPE_COUNT], n_bytes[DTYPE_COUNT];
    uint64_t n_blocks;
};

static double mib(uint64_t n_bytes)
{
    return (double)n_bytes / (1024.0 * 1024.0);
}

static void tensor_print(const struct ckpt_tensor *t, FILE *out)
{
    fprintf(out, "  %s %s [", t->name, dtype_name(t->dtype));
    for (uint32_t d = 0; d < t->n_dims; d++) {
        fprintf(out, "%s%llu", d > 0 ? ", " : "", (unsigned long long)t->dims[d]);
    }
    fprintf(out, "] %llu bytes, %llu blocks", (unsigned long long)t->n_bytes,
            (unsigned long long)t->n_blocks);
    if (t->leaf_elems > 0) fprintf(out, ", leaf %u, grid 2^-%u", t->leaf_elems, t->grid_bits);
    fputc('\n', out);
}

static void sums_take(struct inspect_sums *sums, const struct ckpt_tensor *t)
{
    sums->n_tensors[t->dtype]++;
    sums->n_elems[t->dtype] += t->n_rows * t->n_cols;
    sums->n_bytes[t->dtype] += t->n_bytes;
    sums->n_blocks += t->n_blocks;
}

/* The config's fields in the order of their text, one line each. */
static struct status config_print(const struct ckpt *c, FILE *out)
{
    size_t n;
    const char *text = ckpt_config_json(c, &n);
    struct js_doc *doc = NULL;
    TRY(js_parse(text, n, ckpt_path(c), &doc));
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    struct status st = status_ok();
    fprintf(out, "config:\n");
    while (!status_failed(&st) && js_next(js_root(doc), &it, &key, &value)) {
        char *dump = NULL;
        st = js_dump(value, &dump, &n);
        if (!status_failed(&st)) {
            fprintf(out, "  %s: %.200s%s\n", key, dump, n > 200 ? "..." : "");
        }
        mem_free(&dump);
    }
    js_destroy(&doc);
    return st;
}

static void texts_print(const struct ckpt *c, FILE *out)
{
    static const char *const names[] = {
#define X(id, group, dataset) group "/" dataset,
        CKPT_TEXT_LIST(X)
#undef X
    };
    fprintf(out, "texts:\n");
    for (int i = 0; i < CKPT_TEXT_COUNT; i++) {
        size_t n;
        if (ckpt_text(c, (enum ckpt_text)i, &n) == NULL) {
            fprintf(out, "  %s: none\n", names[i]);
        } else {
            fprintf(out, "  %s: %zu bytes\n", names[i], n);
        }
    }
    size_t n_freq;
    ckpt_rope_inv_freq(c, &n_freq);
    fprintf(out, "  rope/inv_freq: %zu frequencies\n", n_freq);
}

static void weights_print(const struct ckpt *c, bool tensors, FILE *out)
{
    struct inspect_sums sums = {0};
    uint64_t n_elems = 0, n_bytes = 0;
    for (size_t i = 0; i < ckpt_tensor_count(c); i++) sums_take(&sums, ckpt_tensor_at(c, i));
    for (int d = 0; d < DTYPE_COUNT; d++) {
        n_elems += sums.n_elems[d];
        n_bytes += sums.n_bytes[d];
    }
    fprintf(out, "weights: %zu tensors, %llu elements, %.1f MiB in %llu blocks\n",
            ckpt_tensor_count(c), (unsigned long long)n_elems, mib(n_bytes),
            (unsigned long long)sums.n_blocks);
    for (int d = 0; d < DTYPE_COUNT; d++) {
        if (sums.n_tensors[d] == 0) continue;
        fprintf(out, "  %s: %llu tensors, %llu elements, %.1f MiB\n", dtype_name((enum dtype)d),
                (unsigned long long)sums.n_tensors[d], (unsigned long long)sums.n_elems[d],
                mib(sums.n_bytes[d]));
    }
    if (!tensors) return;
    fprintf(out, "tensors:\n");
    for (size_t i = 0; i < ckpt_tensor_count(c); i++) tensor_print(ckpt_tensor_at(c, i), out);
}

static struct status verify(struct ckpt *c, FILE *out)
{
    size_t largest = 0;
    uint64_t n_blocks = 0, n_bytes = 0;
    for (size_t i = 0; i < ckpt_tensor_count(c); i++) {
        const size_t n = ckpt_block_bytes(ckpt_tensor_at(c, i), 0);
        if (n > largest) largest = n;
    }
    char *block = NULL;
    TRY(mem_alloc(&block, largest, 1, "a block"));
    const uint64_t start_ns = clock_ns();
    struct status st = status_ok();
    for (size_t i = 0; i < ckpt_tensor_count(c) && !status_failed(&st); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(c, i);
        for (uint64_t b = 0; b < t->n_blocks && !status_failed(&st); b++) {
            st = ckpt_read_block(c, t, b, block);
            n_blocks++;
            n_bytes += ckpt_block_bytes(t, b);
        }
    }
    mem_free(&block);
    if (status_failed(&st)) return st;
    const double seconds = (double)(clock_ns() - start_ns) * 1e-9;
    fprintf(out, "verified: %llu blocks, %.1f MiB, every checksum is right (%.2f GB/s)\n",
            (unsigned long long)n_blocks, mib(n_bytes),
            seconds > 0 ? (double)n_bytes * 1e-9 / seconds : 0.0);
    return status_ok();
}

struct status inspect_run(const char *path, const struct inspect_options *options, FILE *out)
{
    struct ckpt *c = NULL;
    TRY(ckpt_open(path, &c));
    const struct ckpt_digest digest = ckpt_digest(c);
    fprintf(out, "%s\nformat: %d, from %s\nsize: %.1f MiB\ndigest: %016llx%016llx\n", path,
            CKPT_FORMAT, ckpt_source(c), mib(ckpt_file_bytes(c)), (unsigned long long)digest.high,
            (unsigned long long)digest.low);
    struct status st = config_print(c, out);
    if (!status_failed(&st)) {
        texts_print(c, out);
        weights_print(c, options->tensors, out);
        if (options->verify) st = verify(c, out);
    }
    ckpt_close(&c);
    return st;
}
