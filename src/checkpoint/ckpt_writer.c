/* The streamed writer of checkpoint files. */
#include "checkpoint/ckpt_writer.h"

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "checkpoint/ckpt_config.h"
#include "checkpoint/ckpt_private.h"
#include "tensor/leaf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    BLOCK_AIM_BYTES = 8 << 20,
    BLOCK_LOW_BYTES = 1 << 20, /* below it, blocks may span experts */
    ALIGN_BYTES = 4096,        /* of the file's larger pieces */
};

/* The tensor being written. */
struct current {
    struct ckpt_tensor shape; /* its name lies in `name` */
    char name[CKPT_NAME_MAX];
    hid_t dataset; /* -1: none */
    hid_t type;
    uint64_t row;      /* rows that came */
    uint64_t n_filled; /* of them, rows that still lie in the block buffer */
    uint64_t *sums;    /* owned [n_blocks][2] */
};

struct ckpt_writer {
    char *path;      /* owned */
    char *temporary; /* owned */
    bool created;    /* the temporary file is ours to remove */
    hid_t file;
    hid_t group_plist;   /* no times */
    hid_t dataset_plist; /* no times, contiguous, allocated early */
    struct current now;
    char *block; /* owned [n_block_bytes] */
    size_t n_block_bytes;
    struct seal_extent *raw; /* owned [n_raw]: where the weights' bytes lie */
    size_t n_raw, n_raw_capacity;
};

static struct status temporary_create(struct ckpt_writer *w)
{
    struct strbuf name;
    strbuf_init(&name);
    strbuf_printf(&name, "%s.XXXXXX", w->path);
    TRY(strbuf_status(&name));
    w->temporary = name.data;
    const int fd = mkstemp(w->temporary);
    if (fd < 0) {
        return status_make(STATUS_IO, "%s: cannot write beside it: %s", w->path, strerror(errno));
    }
    w->created = true;
    const mode_t mask = umask(0); /* mkstemp's 0600 would hide the checkpoint from colleagues */
    umask(mask);
    fchmod(fd, 0666 & ~mask);
    close(fd);
    return status_ok();
}

static struct status file_create(struct ckpt_writer *w)
{
    const hid_t access = h5_access_create();
    const hid_t create = H5Pcreate(H5P_FILE_CREATE);
    w->group_plist = H5Pcreate(H5P_GROUP_CREATE);
    w->dataset_plist = H5Pcreate(H5P_DATASET_CREATE);
    struct status st = status_ok();
    if (access < 0 || create < 0 || w->group_plist < 0 || w->dataset_plist < 0 ||
        H5Pset_obj_track_times(create, 0) < 0 || H5Pset_obj_track_times(w->group_plist, 0) < 0 ||
        H5Pset_obj_track_times(w->dataset_plist, 0) < 0 ||
        H5Pset_layout(w->dataset_plist, H5D_CONTIGUOUS) < 0 ||
        H5Pset_alloc_time(w->dataset_plist, H5D_ALLOC_TIME_EARLY) < 0 ||
        H5Pset_fill_time(w->dataset_plist, H5D_FILL_TIME_NEVER) < 0 ||
        H5Pset_alignment(access, ALIGN_BYTES, ALIGN_BYTES) < 0 ||
        (w->file = H5Fcreate(w->temporary, H5F_ACC_TRUNC, create, access)) < 0) {
        st = h5_error(STATUS_IO, w->temporary, "cannot be created");
    }
    if (create >= 0) H5Pclose(create);
    if (access >= 0) H5Pclose(access);
    return st;
}

static struct status root_write(struct ckpt_writer *w, const char *source)
{
    const hid_t root = H5Gopen2(w->file, "/", H5P_DEFAULT);
    if (root < 0) return h5_error(STATUS_IO, w->path, "the root group");
    struct status st = h5_int_attribute(root, w->path, "shoal_format", CKPT_FORMAT);
    if (!status_failed(&st)) {
        st = h5_string_attribute(root, w->path, "source", source, strnlen(source, 4096));
    }
    H5Gclose(root);
    return st;
}

struct status ckpt_writer_create(const char *path, const char *source, struct ckpt_writer **out)
{
    struct ckpt_writer *w = NULL;
    *out = NULL;
    TRY(mem_alloc(&w, 1, sizeof *w, "a checkpoint writer"));
    w->file = w->group_plist = w->dataset_plist = w->now.dataset = w->now.type = -1;
    h5_quiet();
    struct status st;
    TRY_GOTO(st, mem_strndup(&w->path, path, strlen(path)), fail);
    TRY_GOTO(st, temporary_create(w), fail);
    TRY_GOTO(st, file_create(w), fail);
    TRY_GOTO(st, root_write(w, source), fail);
    *out = w;
    return st;
fail:
    ckpt_writer_destroy(&w);
    return st;
}

static void current_close(struct current *now)
{
    if (now->dataset >= 0) H5Dclose(now->dataset);
    if (now->type >= 0) H5Tclose(now->type);
    mem_free(&now->sums);
    *now = (struct current){.dataset = -1, .type = -1};
}

/* Closes the file; HDF5 writes what it still holds, so this can fail. */
static struct status file_close(struct ckpt_writer *w)
{
    struct status st = status_ok();
    current_close(&w->now);
    if (w->dataset_plist >= 0) H5Pclose(w->dataset_plist);
    if (w->group_plist >= 0) H5Pclose(w->group_plist);
    w->dataset_plist = w->group_plist = -1;
    if (w->file >= 0 && H5Fclose(w->file) < 0) st = h5_error(STATUS_IO, w->path, "closing");
    w->file = -1;
    return st;
}

void ckpt_writer_destroy(struct ckpt_writer **w_)
{
    struct ckpt_writer *w = *w_;
    if (w == NULL) return;
    if (w->created && w->file >= 0) {
        /* HDF5 cannot close a file without writing what it holds, and a failed close leaves the
         * library broken: on a full disk, the room that this takes is freed first */
        if (truncate(w->temporary, 0) != 0) log_line(LOG_DEBUG, "%s: truncate", w->temporary);
    }
    file_close(w);
    if (w->created) unlink(w->temporary);
    mem_free(&w->raw);
    mem_free(&w->block);
    mem_free(&w->temporary);
    mem_free(&w->path);
    mem_free(w_);
}

/* Creates the groups above the last component of `path`. HDF5 could create them itself, but not
 * without times. */
static struct status groups_create(struct ckpt_writer *w, const char *path)
{
    char prefix[CKPT_PATH_MAX];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        memcpy(prefix, path, (size_t)(slash - path));
        prefix[slash - path] = '\0';
        if (H5Lexists(w->file, prefix, H5P_DEFAULT) > 0) continue;
        const hid_t group = H5Gcreate2(w->file, prefix, H5P_DEFAULT, w->group_plist, H5P_DEFAULT);
        if (group < 0) return h5_error(STATUS_IO, w->path, "group %s", prefix);
        H5Gclose(group);
    }
    return status_ok();
}

static struct status dataset_create(struct ckpt_writer *w, const char *path, hid_t type, int n_dims,
                                    const hsize_t *dims, hid_t *out)
{
    *out = -1;
    TRY(groups_create(w, path));
    const hid_t space = n_dims == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(n_dims, dims, NULL);
    if (space < 0) return h5_error(STATUS_IO, w->path, "%s: its shape", path);
    *out = H5Dcreate2(w->file, path, type, space, H5P_DEFAULT, w->dataset_plist, H5P_DEFAULT);
    struct status st = status_ok();
    if (*out < 0) st = h5_error(STATUS_IO, w->path, "%s", path);
    H5Sclose(space);
    return st;
}

/* Creates, writes and closes a small dataset. */
static struct status small_write(struct ckpt_writer *w, const char *path, hid_t type, int n_dims,
                                 const hsize_t *dims, const void *data)
{
    hid_t dataset;
    TRY(dataset_create(w, path, type, n_dims, dims, &dataset));
    struct status st = status_ok();
    if (H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) {
        st = h5_error(STATUS_IO, w->path, "%s", path);
    }
    H5Dclose(dataset);
    return st;
}

struct status ckpt_writer_text(struct ckpt_writer *w, enum ckpt_text which, const char *text,
                               size_t n)
{
    static const char *const paths[] = {
#define X(id, group, dataset) "/" group "/" dataset,
        CKPT_TEXT_LIST(X)
#undef X
    };
    if (n == 0) return status_ok();
    if (n > CKPT_TEXT_BYTES_MAX) {
        return status_make(STATUS_INPUT, "%s: %zu bytes, expected at most 256 MiB", paths[which],
                           n);
    }
    const hid_t type = H5Tcopy(H5T_C_S1);
    struct status st;
    if (type < 0 || H5Tset_size(type, n) < 0 || H5Tset_strpad(type, H5T_STR_NULLPAD) < 0 ||
        H5Tset_cset(type, H5T_CSET_UTF8) < 0) {
        st = h5_error(STATUS_IO, w->path, "%s", paths[which]);
    } else {
        st = small_write(w, paths[which], type, 0, NULL, text);
    }
    if (type >= 0) H5Tclose(type);
    return st;
}

static struct status config_write(struct ckpt_writer *w, const struct js_node *config)
{
    const hid_t group = H5Gopen2(w->file, "/config", H5P_DEFAULT);
    if (group < 0) return h5_error(STATUS_IO, w->path, "/config");
    struct status st = config_attributes_write(group, w->path, config);
    H5Gclose(group);
    float *inv_freq = NULL;
    size_t n = 0;
    if (!status_failed(&st)) st = config_rope(config, &inv_freq, &n);
    if (!status_failed(&st) && n > 0) {
        const hsize_t dims[1] = {n};
        st = small_write(w, "/rope/inv_freq", H5T_IEEE_F32LE, 1, dims, inv_freq);
    }
    mem_free(&inv_freq);
    return st;
}

struct status ckpt_writer_config(struct ckpt_writer *w, const char *json, size_t n)
{
    struct js_doc *doc = NULL;
    TRY(js_parse(json, n, "config.json", &doc));
    struct status st;
    if (js_type(js_root(doc)) != JS_OBJECT) {
        st = status_make(STATUS_INPUT, "config.json: expected an object");
    } else {
        st = ckpt_writer_text(w, CKPT_TEXT_CONFIG, json, n);
        if (!status_failed(&st)) st = config_write(w, js_root(doc));
    }
    js_destroy(&doc);
    return st;
}

/* Fills everything of t but its blocks and name; refuses shapes that cannot be stored. */
static struct status shape_of(const struct ckpt_tensor_spec *spec, struct ckpt_tensor *t)
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

/* A large divisor of n that is at most max; 1 when there is none near max. */
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

static struct status name_check(const char *name)
{
    const size_t n = strlen(name);
    if (n == 0 || n + strlen("/checksums/") >= CKPT_NAME_MAX || strchr(name, '/') != NULL ||
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

static struct status block_reserve(struct ckpt_writer *w, size_t n_bytes)
{
    if (n_bytes <= w->n_block_bytes) return status_ok();
    mem_free(&w->block);
    w->n_block_bytes = 0;
    TRY(mem_alloc(&w->block, n_bytes, 1, "a block of rows"));
    w->n_block_bytes = n_bytes;
    return status_ok();
}

/* Writes the checksums of the tensor that now has all its rows. */
static struct status tensor_end(struct ckpt_writer *w)
{
    struct current *now = &w->now;
    if (now->dataset < 0) return status_ok();
    if (now->row != now->shape.n_rows) {
        return status_make(STATUS_INPUT, "tensor %s: %llu rows came, expected %llu", now->name,
                           (unsigned long long)now->row, (unsigned long long)now->shape.n_rows);
    }
    char path[CKPT_PATH_MAX];
    ckpt_tensor_path("/checksums", now->name, path);
    const hsize_t dims[2] = {now->shape.n_blocks, 2};
    hid_t dataset;
    TRY(dataset_create(w, path, H5T_STD_U64LE, 2, dims, &dataset));
    struct status st = status_ok();
    if (H5Dwrite(dataset, H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, now->sums) < 0) {
        st = h5_error(STATUS_IO, w->path, "%s", path);
    } else {
        st = h5_int_attribute(dataset, w->path, "rows_per_block",
                              (int64_t)now->shape.rows_per_block);
    }
    H5Dclose(dataset);
    current_close(now);
    return st;
}

static struct status current_create(struct ckpt_writer *w, const struct ckpt_tensor_spec *spec)
{
    struct current *now = &w->now;
    struct ckpt_tensor *t = &now->shape;
    hsize_t dims[CKPT_DIMS_MAX];
    char path[CKPT_PATH_MAX];
    snprintf(now->name, sizeof now->name, "%s", spec->name);
    ckpt_tensor_path("/weights", spec->name, path);
    for (uint32_t d = 0; d < spec->n_dims; d++) dims[d] = spec->dims[d];
    now->type = h5_dtype_create(spec->dtype);
    if (now->type < 0) return h5_error(STATUS_IO, w->path, "tensor %s: type", spec->name);
    TRY(dataset_create(w, path, now->type, (int)spec->n_dims, dims, &now->dataset));
    TRY(raw_add(w, now->dataset, t->n_bytes));
    if (t->leaf_elems != 0) {
        TRY(h5_int_attribute(now->dataset, w->path, "leaf", t->leaf_elems));
        TRY(h5_int_attribute(now->dataset, w->path, "grid_bits", t->grid_bits));
    }
    return mem_alloc(&now->sums, 2 * t->n_blocks, sizeof now->sums[0], "checksums");
}

struct status ckpt_writer_tensor(struct ckpt_writer *w, const struct ckpt_tensor_spec *spec)
{
    struct ckpt_tensor t = {0};
    TRY(tensor_end(w));
    TRY(name_check(spec->name));
    TRY(shape_of(spec, &t));
    t.rows_per_block = ckpt_rows_per_block(spec);
    t.n_blocks = t.n_rows / t.rows_per_block + (t.n_rows % t.rows_per_block != 0);
    TRY(block_reserve(w, (size_t)(t.rows_per_block * (t.n_bytes / t.n_rows))));
    w->now.shape = t;
    struct status st = current_create(w, spec);
    if (status_failed(&st)) {
        current_close(&w->now);
        st = status_wrap(st, "tensor %s", spec->name);
    }
    return st;
}

/* Writes the first *n_done of n_rows rows, as many as one hyperslab takes. */
static struct status slab_write(struct ckpt_writer *w, uint64_t row, uint64_t n_rows,
                                const void *rows, uint64_t *n_done)
{
    const struct current *now = &w->now;
    const struct ckpt_tensor *t = &now->shape;
    hsize_t dims[CKPT_DIMS_MAX], start[CKPT_DIMS_MAX], count[CKPT_DIMS_MAX];
    for (uint32_t d = 0; d < t->n_dims; d++) dims[d] = t->dims[d];
    *n_done = ckpt_slab_of_rows(t, row, n_rows, start, count);
    const hid_t there = H5Screate_simple((int)t->n_dims, dims, NULL);
    const hid_t here = H5Screate_simple((int)t->n_dims, count, NULL);
    struct status st = status_ok();
    if (there < 0 || here < 0 ||
        H5Sselect_hyperslab(there, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
        H5Dwrite(now->dataset, now->type, here, there, H5P_DEFAULT, rows) < 0) {
        st = h5_error(STATUS_IO, w->path, "tensor %s", now->name);
    }
    if (here >= 0) H5Sclose(here);
    if (there >= 0) H5Sclose(there);
    return st;
}

/* Writes and sums the block that the buffer holds. */
static struct status block_flush(struct ckpt_writer *w)
{
    struct current *now = &w->now;
    const size_t row_bytes = (size_t)(now->shape.n_bytes / now->shape.n_rows);
    const uint64_t row0 = now->row - now->n_filled;
    for (uint64_t done = 0; done < now->n_filled;) {
        uint64_t n = 0;
        TRY(slab_write(w, row0 + done, now->n_filled - done, w->block + done * row_bytes, &n));
        done += n;
    }
    const XXH128_hash_t hash = XXH3_128bits(w->block, now->n_filled * row_bytes);
    uint64_t *sum = now->sums + 2 * (row0 / now->shape.rows_per_block);
    sum[0] = hash.low64;
    sum[1] = hash.high64;
    now->n_filled = 0;
    return status_ok();
}

struct status ckpt_writer_rows(struct ckpt_writer *w, const void *rows, uint64_t n_rows)
{
    struct current *now = &w->now;
    const struct ckpt_tensor *t = &now->shape;
    if (now->dataset < 0 || n_rows > t->n_rows - now->row) {
        return status_make(STATUS_INPUT, "tensor %s: more rows came than its shape has", now->name);
    }
    const size_t row_bytes = (size_t)(t->n_bytes / t->n_rows);
    const char *from = rows;
    while (n_rows > 0) {
        const uint64_t room = t->rows_per_block - now->n_filled;
        const uint64_t n = n_rows < room ? n_rows : room;
        memcpy(w->block + now->n_filled * row_bytes, from, n * row_bytes);
        now->n_filled += n;
        now->row += n;
        from += n * row_bytes;
        n_rows -= n;
        if (now->n_filled == t->rows_per_block || now->row == t->n_rows) TRY(block_flush(w));
    }
    return status_ok();
}

struct status ckpt_writer_finish(struct ckpt_writer **w_)
{
    struct ckpt_writer *w = *w_;
    struct status st;
    TRY_GOTO(st, tensor_end(w), out);
    if (H5Fflush(w->file, H5F_SCOPE_LOCAL) < 0) {
        st = h5_error(STATUS_IO, w->path, "writing");
        goto out;
    }
    TRY_GOTO(st, file_close(w), out);
    TRY_GOTO(st, seal_append(w->temporary, w->raw, w->n_raw), out);
    TRY_GOTO(st, file_commit(w->temporary, w->path), out);
    w->created = false; /* it stands under its own name now */
out:
    ckpt_writer_destroy(w_);
    return st;
}
