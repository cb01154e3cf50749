/* Parses a GGUF header through a bounded cursor: every length is checked against the file and the
 * limits before it is used. Called by gguf.c. */
#include "base/mem.h"
#include "checkpoint/convert/gguf_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CURSOR_BYTES = 1 << 16,
    NAME_BYTES_MAX = 512,
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MAX = 1 << 20,
    NESTING_MAX = 4,
};

/* ---- the cursor ---- */

struct cursor {
    const struct gguf *g;
    uint64_t at;       /* the next byte of the file */
    char *buffer;      /* owned [CURSOR_BYTES] */
    uint64_t first, n; /* the part of the file in the buffer */
};

struct status gguf_file_read(const struct gguf *g, uint64_t offset, size_t n, void *out)
{
    for (size_t done = 0; done < n;) {
        const size_t part = n - done < (1u << 30) ? n - done : 1u << 30;
        const ssize_t got = pread(g->fd, (char *)out + done, part, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            return status_make(STATUS_INPUT, "%s: byte %llu: %s", g->path,
                               (unsigned long long)(offset + done),
                               got < 0 ? strerror(errno) : "the file ends");
        }
        done += (size_t)got;
    }
    return status_ok();
}

/* Returns the number of bytes that may still be read as metadata. */
static uint64_t cursor_left(const struct cursor *c)
{
    const uint64_t end = c->g->n_bytes < GGUF_META_MAX ? c->g->n_bytes : GGUF_META_MAX;
    return c->at < end ? end - c->at : 0;
}

static struct status cursor_take(struct cursor *c, void *out, uint64_t n)
{
    if (n > cursor_left(c)) {
        return status_make(STATUS_INPUT,
                           "%s: byte %llu: %llu more bytes of metadata expected, the file has %llu "
                           "(limit %d)",
                           c->g->path, (unsigned long long)c->at, (unsigned long long)n,
                           (unsigned long long)c->g->n_bytes, GGUF_META_MAX);
    }
    char *to = out;
    while (n > 0) {
        if (c->at < c->first || c->at >= c->first + c->n) {
            const uint64_t left = c->g->n_bytes - c->at;
            c->n = left < CURSOR_BYTES ? left : CURSOR_BYTES;
            c->first = c->at;
            TRY(gguf_file_read(c->g, c->at, (size_t)c->n, c->buffer));
        }
        const uint64_t room = c->first + c->n - c->at;
        const uint64_t part = n < room ? n : room;
        memcpy(to, c->buffer + (c->at - c->first), part);
        c->at += part;
        to += part;
        n -= part;
    }
    return status_ok();
}

/* Reads a little-endian unsigned integer of n_bytes. */
static struct status cursor_uint(struct cursor *c, unsigned n_bytes, uint64_t *out)
{
    unsigned char bytes[8];
    TRY(cursor_take(c, bytes, n_bytes));
    *out = 0;
    for (unsigned i = n_bytes; i-- > 0;) *out = *out << 8 | bytes[i];
    return status_ok();
}

static struct status cursor_string(struct cursor *c, uint64_t max, char **out, size_t *n_out)
{
    uint64_t n;
    const uint64_t at = c->at;
    TRY(cursor_uint(c, 8, &n));
    if (n > max || n > cursor_left(c)) {
        return status_make(
            STATUS_INPUT, "%s: byte %llu: a string of %llu bytes, expected at most %llu",
            c->g->path, (unsigned long long)at, (unsigned long long)n, (unsigned long long)max);
    }
    TRY(mem_alloc(out, n + 1, 1, "a string"));
    *n_out = n;
    return cursor_take(c, *out, n);
}

/* ---- metadata ---- */

unsigned gguf_type_bytes(enum gguf_type type)
{
    switch (type) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL:
        return 1;
    case GGUF_U16:
    case GGUF_I16:
        return 2;
    case GGUF_U32:
    case GGUF_I32:
    case GGUF_F32:
        return 4;
    case GGUF_U64:
    case GGUF_I64:
    case GGUF_F64:
        return 8;
    default:
        return 0;
    }
}

bool gguf_scalar_int(enum gguf_type type, uint64_t raw, int64_t *out)
{
    switch (type) {
    case GGUF_I8:
        *out = (int8_t)raw;
        return true;
    case GGUF_I16:
        *out = (int16_t)raw;
        return true;
    case GGUF_I32:
        *out = (int32_t)raw;
        return true;
    case GGUF_F32:
    case GGUF_F64:
        return false;
    default:
        *out = (int64_t)raw;
        return raw <= INT64_MAX || type == GGUF_I64;
    }
}

static double scalar_float(enum gguf_type type, uint64_t raw)
{
    double x = 0;
    if (type == GGUF_F32) return f32_from_bits((uint32_t)raw);
    if (type == GGUF_F64) memcpy(&x, &raw, sizeof x);
    return x;
}

static struct status type_take(struct cursor *c, enum gguf_type *out)
{
    uint64_t type;
    const uint64_t at = c->at;
    TRY(cursor_uint(c, 4, &type));
    if (type >= GGUF_TYPE_COUNT) {
        return status_make(STATUS_INPUT, "%s: byte %llu: value type %llu is none of 0 to %d",
                           c->g->path, (unsigned long long)at, (unsigned long long)type,
                           GGUF_TYPE_COUNT - 1);
    }
    *out = (enum gguf_type)type;
    return status_ok();
}

static struct status strings_take(struct cursor *c, struct gguf_array *a)
{
    TRY(mem_alloc(&a->offsets, a->n + 1, sizeof a->offsets[0], "a list of strings"));
    for (uint64_t i = 0; i < a->n; i++) {
        char *text = NULL;
        size_t n = 0;
        a->offsets[i] = a->bytes.n;
        const struct status st = cursor_string(c, GGUF_STRING_MAX, &text, &n);
        if (!status_failed(&st)) strbuf_add(&a->bytes, text, n);
        if (!status_failed(&st)) strbuf_add(&a->bytes, "", 1);
        mem_free(&text);
        if (status_failed(&st)) return st;
    }
    a->offsets[a->n] = a->bytes.n;
    return strbuf_status(&a->bytes);
}

static struct status elements_take(struct cursor *c, struct gguf_array *a)
{
    char chunk[4096];
    const uint64_t n_bytes = a->n * gguf_type_bytes(a->type);
    for (uint64_t done = 0; done < n_bytes;) {
        const uint64_t left = n_bytes - done;
        const uint64_t n = left < sizeof chunk ? left : sizeof chunk;
        TRY(cursor_take(c, chunk, n));
        strbuf_add(&a->bytes, chunk, n);
        done += n;
    }
    return strbuf_status(&a->bytes);
}

void gguf_array_fini(struct gguf_array *a)
{
    mem_free(&a->offsets);
    strbuf_fini(&a->bytes);
}

static struct status array_take(struct cursor *c, struct gguf_array *a, unsigned depth);

/* Skips an array of arrays, which no conversion needs. */
static struct status nested_take(struct cursor *c, uint64_t n, unsigned depth)
{
    for (uint64_t i = 0; i < n; i++) {
        struct gguf_array inner = {0};
        strbuf_init(&inner.bytes);
        const struct status st = array_take(c, &inner, depth + 1);
        gguf_array_fini(&inner);
        if (status_failed(&st)) return st;
    }
    return status_ok();
}

static struct status array_take(struct cursor *c, struct gguf_array *a, unsigned depth)
{
    const uint64_t at = c->at;
    TRY(type_take(c, &a->type));
    TRY(cursor_uint(c, 8, &a->n));
    if (a->n > GGUF_ARRAY_MAX || a->n > cursor_left(c) || depth >= NESTING_MAX) {
        return status_make(STATUS_INPUT,
                           "%s: byte %llu: an array of %llu elements in depth %u: more than the "
                           "file or the limits hold",
                           c->g->path, (unsigned long long)at, (unsigned long long)a->n, depth);
    }
    if (a->type == GGUF_STRING) return strings_take(c, a);
    if (a->type == GGUF_ARRAY) return nested_take(c, a->n, depth);
    return elements_take(c, a);
}

static struct status value_take(struct cursor *c, struct gguf_value *v)
{
    uint64_t raw;
    TRY(type_take(c, &v->type));
    if (v->type == GGUF_STRING) return cursor_string(c, GGUF_STRING_MAX, &v->text, &v->n_text);
    if (v->type == GGUF_ARRAY) return array_take(c, &v->array, 0);
    TRY(cursor_uint(c, gguf_type_bytes(v->type), &raw));
    if (v->type == GGUF_BOOL && raw > 1) {
        return status_make(STATUS_INPUT, "%s: byte %llu: a bool of %llu", c->g->path,
                           (unsigned long long)c->at - 1, (unsigned long long)raw);
    }
    v->huge = !gguf_scalar_int(v->type, raw, &v->i);
    v->f = scalar_float(v->type, raw);
    return status_ok();
}

static struct status values_take(struct gguf *g, struct cursor *c, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        size_t n_key;
        if (g->n_values == g->n_values_capacity) {
            const size_t n_new = g->n_values_capacity == 0 ? 64 : 2 * g->n_values_capacity;
            TRY(mem_grow(&g->values, g->n_values_capacity, n_new, sizeof g->values[0], "metadata"));
            g->n_values_capacity = n_new;
        }
        struct gguf_value *v = &g->values[g->n_values];
        strbuf_init(&v->array.bytes);
        g->n_values++;
        TRY(cursor_string(c, 65535, &v->key, &n_key));
        if (n_key == 0 || strlen(v->key) != n_key) {
            return status_make(STATUS_INPUT, "%s: byte %llu: a bad metadata key", g->path,
                               (unsigned long long)c->at);
        }
        const struct status st = value_take(c, v);
        if (status_failed(&st)) return status_wrap(st, "key %.100s", v->key);
    }
    return status_ok();
}

/* ---- tensors ---- */

static struct status tensor_bad(const struct gguf *g, const struct gguf_tensor *t, const char *what)
{
    return status_make(STATUS_INPUT, "%s: tensor '%.200s': %s", g->path, t->name, what);
}

static struct status tensor_shape(const struct gguf *g, struct cursor *c, struct gguf_tensor *t)
{
    uint64_t n_dims, n_elems = 1;
    TRY(cursor_uint(c, 4, &n_dims));
    if (n_dims < 1 || n_dims > GGUF_DIMS_MAX) {
        return tensor_bad(g, t, "expected 1 to 4 dimensions");
    }
    t->n_dims = (uint32_t)n_dims;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        uint64_t n;
        TRY(cursor_uint(c, 8, &n));
        if (n == 0 || n > UINT64_MAX / 16 / n_elems) {
            return tensor_bad(g, t, "a dimension of 0, or a shape whose product overflows");
        }
        n_elems *= n;
        t->dims[t->n_dims - 1 - d] = n; /* the file lists the contiguous dimension first */
    }
    t->n_cols = t->dims[t->n_dims - 1];
    t->n_rows = n_elems / t->n_cols;
    return status_ok();
}

static struct status tensor_take(const struct gguf *g, struct cursor *c, struct gguf_tensor *t)
{
    uint64_t type;
    uint32_t n_elems, n_bytes;
    size_t n;
    char *name = NULL;
    const uint64_t at = c->at;
    const struct status st = cursor_string(c, NAME_BYTES_MAX, &name, &n);
    t->name = name;
    if (status_failed(&st)) return st;
    if (n == 0 || strlen(name) != n) {
        return status_make(STATUS_INPUT, "%s: byte %llu: a bad tensor name", g->path,
                           (unsigned long long)at);
    }
    TRY(tensor_shape(g, c, t));
    TRY(cursor_uint(c, 4, &type));
    TRY(cursor_uint(c, 8, &t->offset));
    if (type > UINT32_MAX || !gguf_quant_block((uint32_t)type, &n_elems, &n_bytes)) {
        return status_make(STATUS_INPUT,
                           "%s: tensor '%s': type %llu is not read (expected F32, F16, BF16, Q4_0, "
                           "Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS or MXFP4)",
                           g->path, t->name, (unsigned long long)type);
    }
    t->quant = (enum gguf_quant)type;
    if (t->n_cols % n_elems != 0) {
        return tensor_bad(g, t, "its rows are not whole blocks of its type");
    }
    t->row_bytes = t->n_cols / n_elems * n_bytes;
    return status_ok();
}

static struct status tensors_take(struct gguf *g, struct cursor *c, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (g->n_tensors == g->n_tensors_capacity) {
            const size_t n_new = g->n_tensors_capacity == 0 ? 256 : 2 * g->n_tensors_capacity;
            TRY(mem_grow(&g->tensors, g->n_tensors_capacity, n_new, sizeof g->tensors[0],
                         "the list of tensors"));
            g->n_tensors_capacity = n_new;
        }
        g->n_tensors++; /* counted before it is filled, so that gguf_close frees its name */
        TRY(tensor_take(g, c, &g->tensors[g->n_tensors - 1]));
    }
    return status_ok();
}

static int tensor_offset_compare(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(struct gguf_tensor *const *)a;
    const struct gguf_tensor *y = *(struct gguf_tensor *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int tensor_name_compare(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(struct gguf_tensor *const *)a;
    const struct gguf_tensor *y = *(struct gguf_tensor *const *)b;
    return strcmp(x->name, y->name);
}

static int value_key_compare(const void *a, const void *b)
{
    const struct gguf_value *x = *(struct gguf_value *const *)a,
                            *y = *(struct gguf_value *const *)b;
    return strcmp(x->key, y->key);
}

/* Makes offsets absolute. Tensors must be inside the file, be aligned, not overlap, and have
 * different names. */
static struct status places_check(struct gguf *g, uint64_t alignment, struct gguf_tensor **sorted)
{
    const uint64_t room = g->n_bytes - g->data;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        if (t->offset % alignment != 0 || t->offset > room ||
            t->n_rows > (room - t->offset) / t->row_bytes) {
            return status_make(
                STATUS_INPUT,
                "%s: tensor '%s' at %llu of the data: expected a multiple of %llu and "
                "%llu rows of %llu bytes inside the file's %llu bytes of data",
                g->path, t->name, (unsigned long long)t->offset, (unsigned long long)alignment,
                (unsigned long long)t->n_rows, (unsigned long long)t->row_bytes,
                (unsigned long long)room);
        }
        t->offset += g->data;
        sorted[i] = t;
    }
    qsort(sorted, g->n_tensors, sizeof sorted[0], tensor_offset_compare);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *before = sorted[i - 1];
        if (sorted[i]->offset - before->offset < before->n_rows * before->row_bytes) {
            return tensor_bad(g, sorted[i], "overlaps another tensor");
        }
    }
    qsort(sorted, g->n_tensors, sizeof sorted[0], tensor_name_compare);
    for (size_t i = 1; i < g->n_tensors; i++) {
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0) {
            return tensor_bad(g, sorted[i], "stands twice in the file");
        }
    }
    return status_ok();
}

static struct status tensors_check(struct gguf *g, uint64_t end_of_list)
{
    int64_t alignment = ALIGNMENT_DEFAULT;
    if (gguf_has(g, "general.alignment") &&
        (!gguf_int(g, "general.alignment", &alignment) || alignment < 1 ||
         alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)) != 0)) {
        return status_make(STATUS_INPUT,
                           "%s: general.alignment: expected a power of two of at most %d", g->path,
                           ALIGNMENT_MAX);
    }
    const uint64_t a = (uint64_t)alignment;
    g->data = (end_of_list + a - 1) / a * a;
    if (g->data > g->n_bytes) g->data = g->n_bytes;
    if (g->n_tensors == 0) return status_make(STATUS_INPUT, "%s: holds no tensors", g->path);
    struct gguf_tensor **sorted = NULL;
    TRY(mem_alloc(&sorted, g->n_tensors, sizeof sorted[0], "the list of tensors"));
    const struct status st = places_check(g, a, sorted);
    mem_free(&sorted);
    return st;
}

static struct status gguf_parse_keys_check(const struct gguf *g)
{
    struct gguf_value **sorted = NULL;
    struct status st = status_ok();
    TRY(mem_alloc(&sorted, g->n_values, sizeof sorted[0], "metadata"));
    for (size_t i = 0; i < g->n_values; i++) sorted[i] = &g->values[i];
    if (g->n_values > 0) qsort(sorted, g->n_values, sizeof sorted[0], value_key_compare);
    for (size_t i = 1; i < g->n_values && !status_failed(&st); i++) {
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0) {
            st = status_make(STATUS_INPUT, "%s: metadata key %.200s stands twice", g->path,
                             sorted[i]->key);
        }
    }
    mem_free(&sorted);
    return st;
}

/* ---- the header ---- */

static struct status header_take(struct gguf *g, struct cursor *c)
{
    char magic[4];
    uint64_t version, n_tensors, n_values;
    TRY(cursor_take(c, magic, sizeof magic));
    if (memcmp(magic, "vers", sizeof magic) == 0)
        return status_make(
            STATUS_INPUT,
            "%s: is a text that git keeps in place of a large file; get the file with: "
            "git lfs pull",
            g->path);
    if (memcmp(magic, "GGUF", sizeof magic) != 0) {
        return status_make(STATUS_INPUT,
                           "%s: is no GGUF file (it does not start with GGUF); "
                           "for a Hugging Face checkpoint, name its folder",
                           g->path);
    }
    TRY(cursor_uint(c, 4, &version));
    if (version != 2 && version != 3) {
        return status_make(STATUS_INPUT,
                           "%s: GGUF version: expected 2 or 3, little endian, found %llu", g->path,
                           (unsigned long long)version);
    }
    TRY(cursor_uint(c, 8, &n_tensors));
    TRY(cursor_uint(c, 8, &n_values));
    if (n_tensors > GGUF_TENSORS_MAX || n_values > GGUF_KEYS_MAX) {
        return status_make(STATUS_INPUT,
                           "%s: %llu tensors and %llu metadata keys, expected at most %d and %d",
                           g->path, (unsigned long long)n_tensors, (unsigned long long)n_values,
                           GGUF_TENSORS_MAX, GGUF_KEYS_MAX);
    }
    TRY(values_take(g, c, n_values));
    TRY(gguf_parse_keys_check(g));
    TRY(tensors_take(g, c, n_tensors));
    return tensors_check(g, c->at);
}

struct status gguf_parse(struct gguf *g)
{
    struct cursor c = {.g = g};
    TRY(mem_alloc(&c.buffer, CURSOR_BYTES, 1, "a read buffer"));
    const struct status st = header_take(g, &c);
    mem_free(&c.buffer);
    return st;
}
