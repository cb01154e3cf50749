/* Writes tensors for the streaming writer: a plain tensor is one dataset, a quantized one is a
 * group of two or three. Each dataset is written and checksummed block by block. */
#include "base/mem.h"
#include "checkpoint/file/ckpt_config.h"
#include "checkpoint/file/ckpt_writer_private.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum {
    BLOCK_AIM_BYTES = 8 << 20,
    BLOCK_LOW_BYTES = 1 << 20, /* if a part of an expert would be smaller, blocks span experts */
};

void ckpt_streams_close(struct ckpt_writer *w)
{
    for (uint32_t i = 0; i < CKPT_STREAMS_MAX; i++) {
        struct ckpt_stream *s = &w->streams[i];
        if (s->dataset >= 0) H5Dclose(s->dataset);
        if (s->type >= 0) H5Tclose(s->type);
        mem_free(&s->sums);
        s->dataset = s->type = -1;
    }
    w->n_streams = 0;
}

struct status ckpt_spec_shape(const struct ckpt_tensor_spec *spec, struct ckpt_tensor *t)
{
    uint64_t n_elems = 1;
    bool good = spec->n_dims >= 1 && spec->n_dims <= CKPT_DIMS_MAX;
    for (uint32_t d = 0; good && d < spec->n_dims; d++) {
        good = spec->dims[d] > 0 && spec->dims[d] <= UINT64_MAX / 16 / n_elems;
        n_elems *= good ? spec->dims[d] : 1;
        t->dims[d] = spec->dims[d];
    }
    if (!good) {
        return status_make(STATUS_INPUT, "tensor %s: bad shape (1 to 3 dimensions, none of them 0)",
                           spec->name);
    }
    t->dtype = spec->dtype;
    t->n_dims = spec->n_dims;
    t->n_cols = spec->dims[spec->n_dims - 1];
    t->n_rows = n_elems / t->n_cols;
    t->n_bytes = n_elems * dtype_bytes(spec->dtype);
    t->leaf_elems = spec->leaf_elems;
    t->grid_bits = spec->leaf_elems != 0 ? spec->grid_bits : 0;
    if (t->n_bytes / t->n_rows > CKPT_BLOCK_BYTES_MAX) {
        return status_make(STATUS_INPUT, "tensor %s: a row of %llu bytes, expected at most 64 MiB",
                           spec->name, (unsigned long long)(t->n_bytes / t->n_rows));
    }
    return status_ok();
}

/* Returns the largest divisor of n that is at most max and at least about max / 16; 1: none. */
static uint64_t divisor_below(uint64_t n, uint64_t max)
{
    const uint64_t least = n / max + (n % max != 0);
    for (uint64_t parts = least; parts <= n && parts / 16 <= least; parts++) {
        if (n % parts == 0) return n / parts;
    }
    return 1;
}

uint64_t ckpt_rows_per_block(const struct ckpt_tensor_spec *spec)
{
    const uint64_t row_bytes = spec->dims[spec->n_dims - 1] * dtype_bytes(spec->dtype);
    const uint64_t fit = row_bytes < BLOCK_AIM_BYTES ? BLOCK_AIM_BYTES / row_bytes : 1;
    uint64_t n_rows = 1;
    for (uint32_t d = 0; d + 1 < spec->n_dims; d++) n_rows *= spec->dims[d];
    if (spec->n_dims == 3) {
        const uint64_t out = spec->dims[1];
        const uint64_t rows = divisor_below(out, fit);
        if (rows == out || rows * row_bytes >= BLOCK_LOW_BYTES) return rows;
    }
    return fit < n_rows ? fit : n_rows;
}

uint64_t ckpt_spec_row_bytes(const struct ckpt_tensor_spec *spec, enum ckpt_part part)
{
    const uint64_t n_cols = spec->dims[spec->n_dims - 1];
    if (spec->quant.kind == QUANT_NONE) {
        return part == CKPT_CODES ? n_cols * dtype_bytes(spec->dtype) : 0;
    }
    if (part == CKPT_ZEROS && !spec->quant.has_zeros) return 0;
    return ckpt_part_columns(part, spec->quant, n_cols) *
           dtype_bytes(ckpt_part_dtype(part, spec->quant));
}

uint64_t ckpt_spec_bytes(const struct ckpt_tensor_spec *spec)
{
    uint64_t n_rows = 1, row_bytes = 0;
    for (uint32_t d = 0; d + 1 < spec->n_dims; d++) n_rows *= spec->dims[d];
    for (int i = 0; i < CKPT_PART_COUNT; i++)
        row_bytes += ckpt_spec_row_bytes(spec, (enum ckpt_part)i);
    return n_rows * row_bytes;
}

static struct status name_check(const char *name)
{
    const size_t n = strlen(name);
    if (n == 0 || n + strlen("/checksums//scales") >= CKPT_NAME_MAX || strchr(name, '/') != NULL ||
        name[0] == '.' || name[n - 1] == '.' || strstr(name, "..") != NULL) {
        return status_make(STATUS_INPUT, "tensor '%.80s': its name cannot be stored", name);
    }
    return status_ok();
}

static struct status raw_add(struct ckpt_writer *w, hid_t dataset, uint64_t n_bytes)
{
    if (w->n_raw == w->n_raw_capacity) {
        const size_t n_new = w->n_raw_capacity == 0 ? 64 : 2 * w->n_raw_capacity;
        TRY(mem_grow(&w->raw, w->n_raw_capacity, n_new, sizeof w->raw[0], "the weights' places"));
        w->n_raw_capacity = n_new;
    }
    const haddr_t offset = H5Dget_offset(dataset);
    if (offset == HADDR_UNDEF) return h5_error(STATUS_IO, w->path, "the place of a dataset");
    w->raw[w->n_raw++] = (struct seal_extent){offset, n_bytes};
    return status_ok();
}

static struct status block_reserve(struct ckpt_stream *s, size_t n_bytes)
{
    if (n_bytes <= s->n_block_bytes) return status_ok();
    mem_free(&s->block);
    s->n_block_bytes = 0;
    TRY(mem_alloc(&s->block, n_bytes, 1, "a block of rows"));
    s->n_block_bytes = n_bytes;
    return status_ok();
}

/* Writes the checksums of a stream that has received all its rows. */
static struct status stream_end(struct ckpt_writer *w, const struct ckpt_stream *s)
{
    if (s->row != s->shape.n_rows) {
        return status_make(STATUS_INPUT, "tensor %s: %llu rows came, expected %llu", s->name,
                           (unsigned long long)s->row, (unsigned long long)s->shape.n_rows);
    }
    char path[CKPT_PATH_MAX];
    ckpt_tensor_path("/checksums", s->name, path);
    const hsize_t dims[2] = {s->shape.n_blocks, 2};
    hid_t dataset;
    TRY(ckpt_dataset_create(w, path, H5T_STD_U64LE, 2, dims, &dataset));
    struct status st = status_ok();
    if (H5Dwrite(dataset, H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, s->sums) < 0) {
        st = h5_error(STATUS_IO, w->path, "%s", path);
    } else {
        st = h5_int_attribute(dataset, w->path, "rows_per_block", (int64_t)s->shape.rows_per_block);
    }
    H5Dclose(dataset);
    return st;
}

struct status ckpt_tensor_end(struct ckpt_writer *w)
{
    for (uint32_t i = 0; i < w->n_streams; i++) TRY(stream_end(w, &w->streams[i]));
    ckpt_streams_close(w);
    return status_ok();
}

static struct status leaf_attributes(const struct ckpt_writer *w, hid_t object,
                                     const struct ckpt_tensor_spec *spec)
{
    if (spec->leaf_elems == 0) return status_ok();
    TRY(h5_int_attribute(object, w->path, "leaf", spec->leaf_elems));
    return h5_int_attribute(object, w->path, "grid_bits", spec->grid_bits);
}

/* Opens the next stream: creates its dataset and allocates its checksums. */
static struct status stream_create(struct ckpt_writer *w, const struct ckpt_tensor_spec *spec)
{
    struct ckpt_stream *s = &w->streams[w->n_streams++];
    struct ckpt_tensor t = {0};
    TRY(ckpt_spec_shape(spec, &t));
    t.rows_per_block = ckpt_rows_per_block(spec);
    t.n_blocks = t.n_rows / t.rows_per_block + (t.n_rows % t.rows_per_block != 0);
    TRY(block_reserve(s, (size_t)(t.rows_per_block * (t.n_bytes / t.n_rows))));
    s->shape = t;
    s->row = s->n_filled = 0;
    snprintf(s->name, sizeof s->name, "%s", spec->name);
    hsize_t dims[CKPT_DIMS_MAX];
    char path[CKPT_PATH_MAX];
    ckpt_tensor_path("/weights", spec->name, path);
    for (uint32_t d = 0; d < spec->n_dims; d++) dims[d] = spec->dims[d];
    s->type = h5_dtype_create(spec->dtype);
    if (s->type < 0) return h5_error(STATUS_IO, w->path, "tensor %s: type", spec->name);
    TRY(ckpt_dataset_create(w, path, s->type, (int)spec->n_dims, dims, &s->dataset));
    TRY(raw_add(w, s->dataset, t.n_bytes));
    TRY(leaf_attributes(w, s->dataset, spec));
    return mem_alloc(&s->sums, 2 * t.n_blocks, sizeof s->sums[0], "checksums");
}

/* Creates the group of a quantized tensor, with its attributes. */
static struct status group_create(struct ckpt_writer *w, const struct ckpt_tensor_spec *spec)
{
    char path[CKPT_PATH_MAX], format[32];
    const uint64_t n_in = spec->dims[spec->n_dims - 1];
    const size_t n = strlen("/weights/") + strlen(spec->name);
    ckpt_tensor_path("/weights", spec->name, path);
    snprintf(path + n, sizeof path - n, "/");
    TRY(ckpt_groups_create(w, path));
    const hid_t group = H5Gopen2(w->file, path, H5P_DEFAULT);
    if (group < 0) return h5_error(STATUS_IO, w->path, "group %s", path);
    quant_format_name(spec->quant, format, sizeof format);
    struct status st;
    TRY_GOTO(st, h5_string_attribute(group, w->path, "format", format, strlen(format)), out);
    TRY_GOTO(st, h5_int_attribute(group, w->path, "group_size", spec->quant.group), out);
    TRY_GOTO(st, h5_string_attribute(group, w->path, "method", spec->method, strlen(spec->method)),
             out);
    TRY_GOTO(st, h5_int_attribute(group, w->path, "inputs", (int64_t)n_in), out);
    st = leaf_attributes(w, group, spec);
out:
    H5Gclose(group);
    return st;
}

static struct status quant_check(const struct ckpt_tensor_spec *spec)
{
    struct ckpt_tensor t = {0};
    TRY(ckpt_spec_shape(spec, &t));
    if (spec->n_dims < 2 || spec->method == NULL ||
        spec->leaf_elems % quant_kernel_group(spec->quant) != 0) {
        return status_make(
            STATUS_INPUT,
            "tensor %s: expected a quantized weight to have at least 2 dimensions, a "
            "method's name and leaves (%u) of whole groups (%u)",
            spec->name, spec->leaf_elems, quant_kernel_group(spec->quant));
    }
    return status_ok();
}

/* Opens the datasets of a quantized tensor. */
static struct status quant_streams_create(struct ckpt_writer *w,
                                          const struct ckpt_tensor_spec *spec)
{
    TRY(quant_check(spec));
    TRY(group_create(w, spec));
    for (enum ckpt_part part = CKPT_CODES; part < CKPT_PART_COUNT; part++) {
        if (part == CKPT_ZEROS && !spec->quant.has_zeros) continue;
        char name[CKPT_NAME_MAX];
        snprintf(name, sizeof name, "%s.%s", spec->name, ckpt_part_name(part));
        struct ckpt_tensor_spec one = *spec;
        one.name = name;
        one.dtype = ckpt_part_dtype(part, spec->quant);
        one.leaf_elems = 0;
        one.dims[one.n_dims - 1] =
            ckpt_part_columns(part, spec->quant, spec->dims[spec->n_dims - 1]);
        TRY(stream_create(w, &one));
    }
    return status_ok();
}

struct status ckpt_writer_tensor(struct ckpt_writer *w, const struct ckpt_tensor_spec *spec)
{
    TRY(ckpt_tensor_end(w));
    TRY(name_check(spec->name));
    w->is_quantized = spec->quant.kind != QUANT_NONE;
    struct status st = w->is_quantized ? quant_streams_create(w, spec) : stream_create(w, spec);
    if (status_failed(&st)) {
        ckpt_streams_close(w);
        st = status_wrap(st, "tensor %s", spec->name);
    }
    return st;
}

/* Writes as many of n_rows rows as one hyperslab takes; *n_done is their number. */
static struct status slab_write(const struct ckpt_writer *w, const struct ckpt_stream *s,
                                uint64_t row, uint64_t n_rows, const void *rows, uint64_t *n_done)
{
    const struct ckpt_tensor *t = &s->shape;
    hsize_t dims[CKPT_DIMS_MAX], start[CKPT_DIMS_MAX], count[CKPT_DIMS_MAX];
    for (uint32_t d = 0; d < t->n_dims; d++) dims[d] = t->dims[d];
    *n_done = ckpt_slab_of_rows(t, row, n_rows, start, count);
    const hid_t there = H5Screate_simple((int)t->n_dims, dims, NULL);
    const hid_t here = H5Screate_simple((int)t->n_dims, count, NULL);
    struct status st = status_ok();
    if (there < 0 || here < 0 ||
        H5Sselect_hyperslab(there, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
        H5Dwrite(s->dataset, s->type, here, there, H5P_DEFAULT, rows) < 0) {
        st = h5_error(STATUS_IO, w->path, "tensor %s", s->name);
    }
    if (here >= 0) H5Sclose(here);
    if (there >= 0) H5Sclose(there);
    return st;
}

/* Writes the block that the buffer holds, and its checksum to s->sums. */
static struct status block_flush(const struct ckpt_writer *w, struct ckpt_stream *s)
{
    const size_t row_bytes = (size_t)(s->shape.n_bytes / s->shape.n_rows);
    const uint64_t row0 = s->row - s->n_filled;
    for (uint64_t done = 0; done < s->n_filled;) {
        uint64_t n = 0;
        TRY(slab_write(w, s, row0 + done, s->n_filled - done, s->block + done * row_bytes, &n));
        done += n;
    }
    const XXH128_hash_t hash = XXH3_128bits(s->block, s->n_filled * row_bytes);
    uint64_t *sum = s->sums + 2 * (row0 / s->shape.rows_per_block);
    sum[0] = hash.low64;
    sum[1] = hash.high64;
    s->n_filled = 0;
    return status_ok();
}

static struct status stream_rows(struct ckpt_writer *w, struct ckpt_stream *s, const void *rows,
                                 uint64_t n_rows)
{
    const struct ckpt_tensor *t = &s->shape;
    if (s->dataset < 0 || n_rows > t->n_rows - s->row) {
        return status_make(STATUS_INPUT, "tensor %s: more rows came than its shape has", s->name);
    }
    const size_t row_bytes = (size_t)(t->n_bytes / t->n_rows);
    const char *from = rows;
    while (n_rows > 0) {
        const uint64_t room = t->rows_per_block - s->n_filled;
        const uint64_t n = n_rows < room ? n_rows : room;
        memcpy(s->block + s->n_filled * row_bytes, from, n * row_bytes);
        s->n_filled += n;
        s->row += n;
        from += n * row_bytes;
        n_rows -= n;
        if (s->n_filled == t->rows_per_block || s->row == t->n_rows) TRY(block_flush(w, s));
    }
    return status_ok();
}

struct status ckpt_writer_rows(struct ckpt_writer *w, const void *rows, uint64_t n_rows)
{
    if (w->is_quantized) {
        return status_make(STATUS_BUG, "tensor %s: plain rows of a quantized tensor",
                           w->streams[0].name);
    }
    return stream_rows(w, &w->streams[0], rows, n_rows);
}

struct status ckpt_writer_quant_rows(struct ckpt_writer *w, const struct quant_block *rows,
                                     uint64_t n_rows)
{
    if (!w->is_quantized || (w->n_streams == CKPT_PART_COUNT) != (rows->zeros != NULL)) {
        return status_make(STATUS_BUG, "tensor %s: quantized rows of another format",
                           w->streams[0].name);
    }
    const void *parts[CKPT_PART_COUNT] = {rows->codes, rows->scales, rows->zeros};
    for (uint32_t i = 0; i < w->n_streams; i++) {
        TRY(stream_rows(w, &w->streams[i], parts[i], n_rows));
    }
    return status_ok();
}
