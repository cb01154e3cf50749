/* Reads and writes NODE.json. Each member of struct node but `linear` has one row in the tables
 * below. */
#include "cost/node_file.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { NODE_BYTES_MAX = 1 << 20 };

/* A member: its name in the file and its place in struct node. */
struct member {
    const char *name;
    size_t offset;
    bool may_be_zero; /* not measured */
};

#define MEMBER(name, zero)                                                                         \
    {                                                                                              \
#name, offsetof(struct node, name), zero                                                   \
    }
static const struct member texts[] = {MEMBER(host, false), MEMBER(cpu, false),
                                      MEMBER(kernels, false), MEMBER(shoal, false)};
static const struct member numbers[] = {
    MEMBER(n_cores, false),    MEMBER(n_threads, false),      MEMBER(n_ranks, false),
    MEMBER(norm_s, false),     MEMBER(gate_s, false),         MEMBER(rope_s, false),
    MEMBER(logit_s, false),    MEMBER(op_s, false),           MEMBER(step_s, false),
    MEMBER(barrier_s, true),   MEMBER(network_bytes_s, true), MEMBER(network_s, true),
    MEMBER(cache_bytes, true), MEMBER(memory_bytes, false),   MEMBER(sequence_s, false),
    MEMBER(disk_bytes_s, true)};
static const struct member curves[] = {MEMBER(read, false), MEMBER(flops, false),
                                       MEMBER(attention_one, false), MEMBER(attention_many, false),
                                       MEMBER(sum, true)};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Names of formats, and for each a number that is close for formats of similar speed: the bytes per
 * weight, but more for fp8, whose arithmetic is that of floats. */
static const struct {
    const char *name;
    double likeness;
} formats[NODE_FORMAT_COUNT] = {[NODE_F32] = {"f32", 4},
                                [NODE_F16] = {"f16", 2},
                                [NODE_BF16] = {"bf16", 2},
                                [NODE_INT8] = {"int8", 1},
                                [NODE_INT8_G32] = {"int8-g32", 1.0625},
                                [NODE_INT4] = {"int4-g32", 0.5625},
                                [NODE_INT4_G128] = {"int4-g128", 0.5},
                                [NODE_FP8] = {"fp8", 1.4},
                                [NODE_MXFP4] = {"mxfp4", 0.5}};

const char *node_format_name(enum node_format f)
{
    return formats[f].name;
}

const struct node_linear *node_linear_of(const struct node *n, enum node_format f)
{
    const struct node_linear *best = NULL;
    double best_distance = 0;
    if (n->linear[f].memory.n > 0) return &n->linear[f];
    for (int i = 0; i < NODE_FORMAT_COUNT; i++) {
        const double distance = fabs(log(formats[i].likeness / formats[f].likeness));
        if (n->linear[i].memory.n == 0 || (best != NULL && distance >= best_distance)) continue;
        best = &n->linear[i];
        best_distance = distance;
    }
    return best;
}

/* --- writing ------------------------------------------------------------------------------ */

/* 17 digits: a file that is read and written again says the same. */
static void write_curve(const struct curve *c, const char *name, struct strbuf *out)
{
    strbuf_printf(out, "\"%s\":[", name);
    for (uint32_t i = 0; i < c->n; i++)
        strbuf_printf(out, "%s[%.17g,%.17g]", i > 0 ? "," : "", c->x[i], c->y[i]);
    strbuf_puts(out, "]");
}

struct status node_write(const struct node *n, struct strbuf *out)
{
    const char *base = (const char *)n;
    strbuf_printf(out, "{\"shoal_node\":%d", (int)NODE_FORMAT_VERSION);
    for (size_t i = 0; i < COUNT(texts); i++) {
        const char *text = base + texts[i].offset;
        strbuf_printf(out, ",\n \"%s\":", texts[i].name);
        strbuf_json_string(out, text, strlen(text));
    }
    for (size_t i = 0; i < COUNT(numbers); i++) {
        double x;
        memcpy(&x, base + numbers[i].offset, sizeof x);
        strbuf_printf(out, ",\n \"%s\":%.17g", numbers[i].name, x);
    }
    for (size_t i = 0; i < COUNT(curves); i++) {
        strbuf_puts(out, ",\n ");
        write_curve((const void *)(base + curves[i].offset), curves[i].name, out);
    }
    strbuf_puts(out, ",\n \"linear\":{");
    const char *comma = "";
    for (int f = 0; f < NODE_FORMAT_COUNT; f++) {
        if (n->linear[f].memory.n == 0) continue;
        strbuf_printf(out, "%s\n  \"%s\":{", comma, formats[f].name);
        write_curve(&n->linear[f].memory, "memory", out);
        strbuf_puts(out, ",");
        write_curve(&n->linear[f].cached, "cached", out);
        strbuf_puts(out, "}");
        comma = ",";
    }
    strbuf_puts(out, "}}\n");
    return strbuf_status(out);
}

/* Checks the members that other code converts to integers or divides by. Layouts are tried for all
 * ranks, so a million of them would take a plan for ever. */
static struct status check_counts(const struct node *n, const char *what)
{
    const struct {
        const char *name;
        double value, most;
    } counts[] = {{"n_cores", n->n_cores, 1 << 20},
                  {"n_threads", n->n_threads, 1 << 20},
                  {"n_ranks", n->n_ranks, 1 << 10}};
    for (size_t i = 0; i < COUNT(counts); i++) {
        const double x = counts[i].value;
        if (x >= 1 && x <= counts[i].most && floor(x) == x) continue;
        return status_make(STATUS_INPUT,
                           "%s: \"%s\": expected a whole number of 1 to %.0f, found %g", what,
                           counts[i].name, counts[i].most, x);
    }
    if (n->n_threads < n->n_ranks)
        return status_make(STATUS_INPUT, "%s: \"n_threads\": expected at least one for each rank",
                           what);
    if (n->memory_bytes < (double)(1ull << 60)) return status_ok();
    return status_make(STATUS_INPUT, "%s: \"memory_bytes\": expected less than 2^60, found %g",
                       what, n->memory_bytes);
}

/* --- reading ------------------------------------------------------------------------------ */

static struct status read_curve(const struct js_node *at, const char *name, bool may_be_zero,
                                struct curve *out)
{
    *out = (struct curve){0};
    for (size_t i = 0; i < js_count(at); i++) {
        const struct js_node *point = js_at(at, i);
        double x, y;
        if (js_count(point) != 2 || !js_number(js_at(point, 0), &x) ||
            !js_number(js_at(point, 1), &y))
            return status_make(STATUS_INPUT, "\"%s\": expected pairs of numbers", name);
        TRY(status_wrap(curve_add(out, x, y), "\"%s\"", name));
    }
    if (out->n > 0 || (may_be_zero && js_type(at) == JS_ARRAY)) return status_ok();
    return status_make(STATUS_INPUT, "\"%s\": expected a list of points", name);
}

static struct status read_text(const struct js_node *at, const char *name, char *out)
{
    size_t n = 0;
    const char *text = js_string(at, &n);
    if (text == NULL || n >= NODE_NAME_BYTES || memchr(text, '\0', n) != NULL)
        return status_make(STATUS_INPUT, "\"%s\": expected a text of at most %d bytes without NUL",
                           name, (int)NODE_NAME_BYTES - 1);
    memcpy(out, text, n);
    out[n] = '\0';
    return status_ok();
}

static struct status read_node_number(const struct js_node *at, const struct member *m, double *out)
{
    const bool is_number = js_number(at, out);
    if (is_number && *out == 0 && m->may_be_zero) {
        *out = 0; /* not -0 */
        return status_ok();
    }
    if (is_number && *out >= CURVE_LEAST && *out <= CURVE_MOST) return status_ok();
    return status_make(STATUS_INPUT, "\"%s\": expected a number from %g to %g%s", m->name,
                       CURVE_LEAST, CURVE_MOST, m->may_be_zero ? ", or 0" : "");
}

static struct status read_linears(const struct js_node *all, struct node *out)
{
    bool any = false;
    for (int f = 0; f < NODE_FORMAT_COUNT; f++) {
        const struct js_node *one = js_get(all, formats[f].name);
        if (one == NULL) continue;
        any = true;
        TRY(read_curve(js_get(one, "memory"), formats[f].name, false, &out->linear[f].memory));
        TRY(read_curve(js_get(one, "cached"), formats[f].name, false, &out->linear[f].cached));
    }
    return any ? status_ok() : status_make(STATUS_INPUT, "\"linear\": expected a format");
}

static struct status read_members(const struct js_node *root, struct node *out)
{
    char *base = (char *)out;
    for (size_t i = 0; i < COUNT(texts); i++)
        TRY(read_text(js_get(root, texts[i].name), texts[i].name, base + texts[i].offset));
    for (size_t i = 0; i < COUNT(numbers); i++) {
        double x;
        TRY(read_node_number(js_get(root, numbers[i].name), &numbers[i], &x));
        memcpy(base + numbers[i].offset, &x, sizeof x);
    }
    for (size_t i = 0; i < COUNT(curves); i++)
        TRY(read_curve(js_get(root, curves[i].name), curves[i].name, curves[i].may_be_zero,
                       (void *)(base + curves[i].offset)));
    return read_linears(js_get(root, "linear"), out);
}

struct status node_parse(const char *text, size_t n_bytes, const char *what, struct node *out)
{
    struct js_doc *doc = NULL;
    int64_t version = 0;
    memset(out, 0, sizeof *out);
    TRY(js_parse(text, n_bytes, what, &doc));
    const struct js_node *root = js_root(doc);
    struct status st = status_ok();
    if (!js_int(js_get(root, "shoal_node"), &version)) {
        st = status_make(STATUS_INPUT, "%s: is no file of `shoal bench --machine --save`", what);
    } else if (version != NODE_FORMAT_VERSION) {
        st = status_make(STATUS_INPUT,
                         "%s: was written by another version of shoal (format %lld, expected %d); "
                         "measure the node again with `shoal bench --machine --save`",
                         what, (long long)version, (int)NODE_FORMAT_VERSION);
    } else {
        st = status_wrap(read_members(root, out), "%s", what);
    }
    if (!status_failed(&st) && strcmp(out->shoal, SHOAL_VERSION) != 0)
        st = status_make(STATUS_INPUT,
                         "%s: was measured by shoal %s, this is %s; measure the node again with "
                         "`shoal bench --machine --save`",
                         what, out->shoal, SHOAL_VERSION);
    if (!status_failed(&st)) st = check_counts(out, what);
    js_destroy(&doc);
    return st;
}

struct status node_read(const char *path, struct node *out)
{
    char *text = NULL;
    size_t n = 0;
    TRY(file_read(path, NODE_BYTES_MAX, &text, &n));
    const struct status st = node_parse(text, n, path, out);
    mem_free(&text);
    return st;
}
