/* Prints a checkpoint's config, sizes and formats, and verifies its checksums. */
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/convert/convert.h"
#include "checkpoint/file/ckpt.h"

#include <string.h>

/* The sums over tensors of one type or format. */
struct inspect_sum {
    char name[40];
    uint64_t n_tensors, n_elems, n_bytes;
};

enum { SUMS_MAX = 64 }; /* more than the number of types and formats */

struct inspect_sums {
    struct inspect_sum by_name[SUMS_MAX];
    size_t n;
    struct inspect_sum all;
    uint64_t n_blocks;
};

static double mib(uint64_t n_bytes)
{
    return (double)n_bytes / (1024.0 * 1024.0);
}

/* Writes "bf16", or "int4-g32, scales f16". */
static void type_print(const struct ckpt_tensor *t, char *text, size_t n)
{
    if (t->quant.kind == QUANT_NONE) {
        snprintf(text, n, "%s", dtype_name(t->dtype));
        return;
    }
    char format[24];
    quant_format_name(t->quant, format, sizeof format);
    snprintf(text, n, "%s, scales %s", format,
             t->quant.kind == QUANT_MXFP4 ? "e8m0" : dtype_name(t->quant.scale_dtype));
}

static uint64_t elems(const struct ckpt_tensor *t)
{
    return t->n_rows * t->n_cols;
}

static double bits_per_weight(uint64_t n_bytes, uint64_t n_elems)
{
    return n_elems > 0 ? 8.0 * (double)n_bytes / (double)n_elems : 0.0;
}

static void dims_print(const struct ckpt_tensor *t, FILE *out)
{
    for (uint32_t d = 0; d < t->n_dims; d++) {
        fprintf(out, "%s%llu", d > 0 ? ", " : "[", (unsigned long long)t->dims[d]);
    }
    fprintf(out, "] %llu bytes", (unsigned long long)t->n_bytes);
}

static void tensor_print(const struct ckpt_tensor *t, FILE *out)
{
    char type[40];
    type_print(t, type, sizeof type);
    fprintf(out, "  %s %s ", t->name, type);
    dims_print(t, out);
    if (t->quant.kind == QUANT_NONE) {
        fprintf(out, ", %llu blocks", (unsigned long long)t->n_blocks);
    } else {
        fprintf(out, ", %.3f bits per weight, method %s", bits_per_weight(t->n_bytes, elems(t)),
                t->method);
    }
    if (t->leaf_elems > 0) fprintf(out, ", leaf %u, grid 2^-%u", t->leaf_elems, t->grid_bits);
    fputc('\n', out);
    for (int part = 0; part < CKPT_PART_COUNT; part++) {
        const struct ckpt_tensor *p = t->parts[part];
        if (p == NULL) continue;
        fprintf(out, "    %s %s ", ckpt_part_name((enum ckpt_part)part), dtype_name(p->dtype));
        dims_print(p, out);
        fprintf(out, ", %llu blocks\n", (unsigned long long)p->n_blocks);
    }
}

static void sum_add(struct inspect_sum *sum, const struct ckpt_tensor *t)
{
    sum->n_tensors++;
    sum->n_elems += elems(t);
    sum->n_bytes += t->n_bytes;
}

static void sums_take(struct inspect_sums *sums, const struct ckpt_tensor *t)
{
    char type[40];
    size_t i = 0;
    type_print(t, type, sizeof type);
    while (i < sums->n && strcmp(sums->by_name[i].name, type) != 0) i++;
    if (i == sums->n && i < SUMS_MAX) {
        memcpy(sums->by_name[sums->n++].name, type, sizeof type);
    }
    if (i < SUMS_MAX) sum_add(&sums->by_name[i], t);
    sum_add(&sums->all, t);
    sums->n_blocks += t->n_blocks;
    for (int part = 0; part < CKPT_PART_COUNT; part++) {
        if (t->parts[part] != NULL) sums->n_blocks += t->parts[part]->n_blocks;
    }
}

/* Prints the config's fields in the order of its text, one line each. */
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
    ckpt_rope_local_inv_freq(c, &n_freq);
    if (n_freq > 0) fprintf(out, "  rope/local_inv_freq: %zu frequencies\n", n_freq);
    const struct ckpt_rope_factors f = ckpt_rope_factors(c);
    if (f.attention != 1 || f.softmax != 1) {
        fprintf(out, "  rope/factors: attention %g, softmax %g\n", (double)f.attention,
                (double)f.softmax);
    }
}

static void sum_print(const struct inspect_sum *sum, const char *name, FILE *out)
{
    fprintf(out, "  %s: %llu tensors, %llu elements, %.1f MiB", name,
            (unsigned long long)sum->n_tensors, (unsigned long long)sum->n_elems,
            mib(sum->n_bytes));
    if (strchr(name, ',') != NULL) { /* a quantized format */
        fprintf(out, ", %.3f bits per weight", bits_per_weight(sum->n_bytes, sum->n_elems));
    }
    fputc('\n', out);
}

static void weights_print(const struct ckpt *c, bool tensors, FILE *out)
{
    struct inspect_sums sums = {.n = 0};
    for (size_t i = 0; i < ckpt_tensor_count(c); i++) sums_take(&sums, ckpt_tensor_at(c, i));
    fprintf(out, "weights: %zu tensors, %llu elements, %.1f MiB in %llu blocks, %.3f bits each\n",
            ckpt_tensor_count(c), (unsigned long long)sums.all.n_elems, mib(sums.all.n_bytes),
            (unsigned long long)sums.n_blocks, bits_per_weight(sums.all.n_bytes, sums.all.n_elems));
    for (size_t i = 0; i < sums.n; i++) sum_print(&sums.by_name[i], sums.by_name[i].name, out);
    if (!tensors) return;
    fprintf(out, "tensors:\n");
    for (size_t i = 0; i < ckpt_tensor_count(c); i++) tensor_print(ckpt_tensor_at(c, i), out);
}

static struct status verify(struct ckpt *c, FILE *out)
{
    size_t largest = 0;
    uint64_t n_blocks = 0, n_bytes = 0;
    for (size_t i = 0; i < ckpt_stored_count(c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(c, i);
        const size_t n = t->n_blocks > 0 ? ckpt_block_bytes(t, 0) : 0;
        if (n > largest) largest = n;
    }
    char *block = NULL;
    TRY(mem_alloc(&block, largest, 1, "a block"));
    const uint64_t start_ns = clock_ns();
    struct status st = status_ok();
    for (size_t i = 0; i < ckpt_stored_count(c) && !status_failed(&st); i++) {
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
