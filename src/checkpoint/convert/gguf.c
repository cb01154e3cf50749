/* Opens a GGUF file, answers metadata queries, reads rows. */
#include "checkpoint/convert/gguf.h"

#include "base/mem.h"
#include "checkpoint/convert/gguf_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct status gguf_file_open(struct gguf *g, const char *path)
{
    struct stat info;
    TRY(mem_strndup(&g->path, path, strlen(path)));
    g->fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a FIFO must not block */
    if (g->fd < 0 || fstat(g->fd, &info) != 0) {
        return status_make(STATUS_INPUT, "%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        return status_make(STATUS_INPUT, "%s: expected a regular file", path);
    }
    g->n_bytes = (uint64_t)info.st_size;
    return status_ok();
}

struct status gguf_open(const char *path, struct gguf **out)
{
    struct gguf *g = NULL;
    *out = NULL;
    TRY(mem_alloc(&g, 1, sizeof *g, "a GGUF reader"));
    g->fd = -1;
    struct status st = gguf_file_open(g, path);
    if (!status_failed(&st)) st = gguf_parse(g);
    if (status_failed(&st)) gguf_close(&g);
    *out = g;
    return st;
}

void gguf_close(struct gguf **g_)
{
    struct gguf *g = *g_;
    if (g == NULL) return;
    for (size_t i = 0; i < g->n_values; i++) {
        mem_free(&g->values[i].key);
        mem_free(&g->values[i].text);
        gguf_array_fini(&g->values[i].array);
    }
    for (size_t i = 0; i < g->n_tensors; i++) mem_free(&g->tensors[i].name);
    if (g->fd >= 0) close(g->fd);
    mem_free(&g->values);
    mem_free(&g->tensors);
    mem_free(&g->path);
    mem_free(g_);
}

/* ---- accessors ---- */

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

static const struct gguf_value *value_find(const struct gguf *g, const char *key)
{
    for (size_t i = 0; i < g->n_values; i++) {
        if (strcmp(g->values[i].key, key) == 0) return &g->values[i];
    }
    return NULL;
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return value_find(g, key) != NULL;
}

bool gguf_int(const struct gguf *g, const char *key, int64_t *out)
{
    const struct gguf_value *v = value_find(g, key);
    if (v == NULL || gguf_type_bytes(v->type) == 0 || v->type == GGUF_BOOL || v->huge) return false;
    *out = v->i;
    return true;
}

bool gguf_float(const struct gguf *g, const char *key, double *out)
{
    const struct gguf_value *v = value_find(g, key);
    if (v == NULL || (v->type != GGUF_F32 && v->type != GGUF_F64)) return false;
    *out = v->f;
    return true;
}

bool gguf_bool(const struct gguf *g, const char *key, bool *out)
{
    const struct gguf_value *v = value_find(g, key);
    if (v == NULL || v->type != GGUF_BOOL) return false;
    *out = v->i != 0;
    return true;
}

const char *gguf_string(const struct gguf *g, const char *key, size_t *n)
{
    const struct gguf_value *v = value_find(g, key);
    if (v == NULL || v->type != GGUF_STRING) return NULL;
    if (n != NULL) *n = v->n_text;
    return v->text;
}

bool gguf_array(const struct gguf *g, const char *key, enum gguf_type *type, uint64_t *n)
{
    const struct gguf_value *v = value_find(g, key);
    if (v == NULL || v->type != GGUF_ARRAY) return false;
    *type = v->array.type;
    *n = v->array.n;
    return true;
}

const char *gguf_array_string(const struct gguf *g, const char *key, uint64_t i, size_t *n)
{
    const struct gguf_value *v = value_find(g, key);
    if (v == NULL || v->type != GGUF_ARRAY || v->array.type != GGUF_STRING || i >= v->array.n) {
        return NULL;
    }
    *n = v->array.offsets[i + 1] - v->array.offsets[i] - 1;
    return v->array.bytes.data + v->array.offsets[i];
}

bool gguf_array_int(const struct gguf *g, const char *key, uint64_t i, int64_t *out)
{
    const struct gguf_value *v = value_find(g, key);
    if (v == NULL || v->type != GGUF_ARRAY || i >= v->array.n) return false;
    const unsigned n_bytes = gguf_type_bytes(v->array.type);
    if (n_bytes == 0) return false;
    uint64_t raw = 0;
    memcpy(&raw, v->array.bytes.data + i * n_bytes, n_bytes);
    return gguf_scalar_int(v->array.type, raw, out);
}

bool gguf_array_f32(const struct gguf *g, const char *key, uint64_t i, float *out)
{
    const struct gguf_value *v = value_find(g, key);
    if (v == NULL || v->type != GGUF_ARRAY || v->array.type != GGUF_F32 || i >= v->array.n) {
        return false;
    }
    memcpy(out, v->array.bytes.data + i * sizeof *out, sizeof *out);
    return true;
}

size_t gguf_key_count(const struct gguf *g)
{
    return g->n_values;
}

const char *gguf_key_at(const struct gguf *g, size_t i)
{
    return g->values[i].key;
}

size_t gguf_count(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_at(const struct gguf *g, size_t i)
{
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name)
{
    for (size_t i = 0; i < g->n_tensors; i++) {
        if (strcmp(g->tensors[i].name, name) == 0) return &g->tensors[i];
    }
    return NULL;
}

struct status gguf_read_rows(const struct gguf *g, const struct gguf_tensor *t, uint64_t row0,
                             uint64_t n_rows, void *out)
{
    if (row0 > t->n_rows || n_rows > t->n_rows - row0) {
        return status_make(STATUS_BUG, "tensor '%s': rows outside it were asked for", t->name);
    }
    return gguf_file_read(g, t->offset + row0 * t->row_bytes, (size_t)(n_rows * t->row_bytes), out);
}

struct status gguf_read_floats(const struct gguf *g, const struct gguf_tensor *t, uint64_t row0,
                               uint64_t n_rows, void *scratch, float *out)
{
    enum dtype own;
    const size_t n = (size_t)(n_rows * t->n_cols);
    TRY(gguf_read_rows(g, t, row0, n_rows, scratch));
    if (gguf_quant_dtype(t->quant, &own))
        dtype_to_f32(own, scratch, n, out);
    else
        gguf_dequantize(t->quant, scratch, n, out);
    return status_ok();
}
