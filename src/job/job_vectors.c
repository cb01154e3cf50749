/* Writes --vectors from the rows of a finished output. Reads them twice: to count the vectors, and
 * to copy them. */
#include "base/base64.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/file/h5.h"
#include "checkpoint/file/vectors_file.h"
#include "job/job_private.h"
#include "serve/input/line_reader.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The vectors of the rows so far. */
struct vectors {
    const char *rows_path;
    struct vectors_file *file; /* NULL: vectors are only counted */
    uint64_t n, n_errors;      /* vectors, including those of error rows; error rows */
    size_t d;                  /* length of each vector; 0: none yet */
    float *x;                  /* [capacity], owned */
    size_t capacity;
    struct strbuf id; /* scratch: the row's custom_id */
};

static struct status bad_row(const struct vectors *v, const char *id, const char *why)
{
    return status_make(STATUS_INPUT, "--vectors: output %s, custom_id \"%.60s\": %s", v->rows_path,
                       id, why);
}

static struct status reserve(struct vectors *v, size_t n)
{
    if (n <= v->capacity) return status_ok();
    TRY(mem_grow(&v->x, v->capacity, n, sizeof *v->x, "a vector"));
    v->capacity = n;
    return status_ok();
}

/* Returns the float that a row's decimal, of at most 9 digits, stands for. The decimal was read as
 * the nearest double: that may lie halfway between two floats, and then round the wrong way. */
static float float_of(double x)
{
    const uint64_t low_bits = 0x1FFFFFFF, middle = 0x10000000;
    uint64_t bits;
    char text[32];
    memcpy(&bits, &x, sizeof bits);
    if ((bits & low_bits) != middle && fabs(x) >= (double)FLT_MIN) return (float)x;
    snprintf(text, sizeof text, "%.9g", x);
    return strtof(text, NULL);
}

/* Reads a list of numbers, or base64 of little-endian f32, to v->x; *n = their number, 0 if it is
 * neither. A null is a number that is not finite. */
static struct status read_vector(struct vectors *v, const struct js_node *node, size_t *n)
{
    size_t n_text;
    const char *text = js_string(node, &n_text);
    *n = js_type(node) == JS_ARRAY ? js_count(node) : 0;
    TRY(reserve(v, *n));
    for (size_t i = 0; i < *n; i++) {
        double number = (double)NAN;
        if (!js_number(js_at(node, i), &number) && js_type(js_at(node, i)) != JS_NULL) *n = 0;
        if (i < *n) v->x[i] = float_of(number);
    }
    if (text == NULL) return status_ok();
    struct strbuf bytes;
    strbuf_init(&bytes);
    const bool ok = base64_decode(text, n_text, &bytes) && bytes.n % sizeof *v->x == 0;
    struct status st = strbuf_status(&bytes);
    if (!status_failed(&st) && ok) st = reserve(v, bytes.n / sizeof *v->x);
    if (!status_failed(&st) && ok) {
        *n = bytes.n / sizeof *v->x;
        memcpy(v->x, bytes.data, bytes.n);
    }
    strbuf_fini(&bytes);
    return st;
}

static struct status take_vector(struct vectors *v, const char *id, const struct js_node *node)
{
    size_t n;
    TRY(read_vector(v, node, &n));
    if (n == 0) return bad_row(v, id, "expected a vector");
    if (v->d == 0) v->d = n;
    if (n != v->d)
        return bad_row(v, id, "its vector has another length than the first, expected one length");
    v->n++;
    return v->file != NULL ? vectors_file_add(v->file, id, v->x) : status_ok();
}

/* Fills the place of an error row's vector with NaN. */
static struct status take_error(struct vectors *v, const char *id)
{
    v->n++;
    v->n_errors++;
    if (v->file == NULL) return status_ok();
    TRY(reserve(v, v->d));
    for (size_t i = 0; i < v->d; i++) v->x[i] = NAN;
    return vectors_file_add(v->file, id, v->x);
}

/* Takes all vectors of a row, whichever form it has (docs/embed.md). */
static struct status take_row(struct vectors *v, const struct js_node *row)
{
    size_t n_id;
    const char *id = js_string(js_get(row, "custom_id"), &n_id);
    const struct js_node *many = js_get(row, "embeddings"), *one = js_get(row, "embedding");
    const struct js_node *data = js_get(js_get(js_get(row, "response"), "body"), "data");
    if (id == NULL) return bad_row(v, "", "expected a custom_id");
    strbuf_clear(&v->id);
    h5_add_string(&v->id, id, n_id);
    TRY(strbuf_status(&v->id));
    if (n_id > 0) id = v->id.data;
    if (js_type(js_get(row, "error")) != JS_NULL) return take_error(v, id);
    if (js_type(data) == JS_ARRAY) many = data;
    if (js_type(many) != JS_ARRAY) return take_vector(v, id, one);
    for (size_t i = 0; i < js_count(many); i++) {
        const struct js_node *node = js_at(many, i);
        TRY(take_vector(v, id, many == data ? js_get(node, "embedding") : node));
    }
    return status_ok();
}

static struct status take_line(struct vectors *v, const struct line *line)
{
    struct js_doc *doc = NULL;
    struct status st = js_parse(line->text, line->n, v->rows_path, &doc);
    if (!status_failed(&st)) st = take_row(v, js_root(doc));
    js_destroy(&doc);
    return st;
}

/* Takes the vectors of all rows, in their order. */
static struct status take_all(struct vectors *v)
{
    const size_t row_bytes_max = (size_t)1 << 31;
    struct line_reader *r = NULL;
    struct line line = {.kind = LINE_WAIT};
    v->n = v->n_errors = 0;
    struct status st = line_reader_create(v->rows_path, row_bytes_max, &r);
    while (!status_failed(&st) && line.kind != LINE_END) {
        st = line_reader_next(r, true, &line);
        if (!status_failed(&st) && line.kind == LINE_OK) st = take_line(v, &line);
        if (!status_failed(&st) && line.kind == LINE_TOO_LONG)
            st = bad_row(v, "", "a row is longer than 2 GiB");
    }
    line_reader_destroy(&r);
    return st;
}

static struct status copy_all(struct vectors *v, const char *path)
{
    TRY(take_all(v));
    if (v->d == 0)
        return status_make(STATUS_INPUT, "--vectors: output %s has no vector", v->rows_path);
    TRY(vectors_file_create(path, v->n, (uint32_t)v->d, &v->file));
    return vectors_file_end(&v->file, take_all(v));
}

struct status job_vectors_write(const struct job *j)
{
    const char *path = j->o->files.vectors;
    struct vectors v = {.rows_path = j->o->files.output};
    strbuf_init(&v.id);
    const struct status st = copy_all(&v, path);
    strbuf_fini(&v.id);
    mem_free(&v.x);
    if (status_failed(&st)) return st;
    if (v.n_errors > 0)
        log_line(LOG_WARN, "--vectors %s: the vectors of %llu error rows are NaN", path,
                 (unsigned long long)v.n_errors);
    log_line(LOG_INFO, "vectors: %llu of %zu numbers in %s", (unsigned long long)v.n, v.d, path);
    return st;
}
