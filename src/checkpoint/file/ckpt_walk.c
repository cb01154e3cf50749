/* Checks the structure of a checkpoint file before anything in it is used: only hard links, groups
 * and contiguous datasets; tensors of known types, inside the file; checksums of the right shape.
 */
#include "base/mem.h"
#include "checkpoint/file/ckpt_private.h"
#include "tensor/leaf.h"

#include <stdio.h>
#include <string.h>

/* The state of the walk. HDF5's callbacks return only an int, so `st` holds the error. */
struct walk {
    struct ckpt *c;
    char path[CKPT_PATH_MAX]; /* path of the group being walked, without a final slash */
    unsigned depth;
    uint64_t n_links;
    struct status st;
};

/* The shape of a dataset. Every dataset must be contiguous, inside this file and without filters,
 * with at most CKPT_DIMS_MAX dimensions. */
struct shape {
    int n_dims;
    hsize_t dims[CKPT_DIMS_MAX];
    uint64_t n_elems;
};

static struct status ckpt_walk_bad(const struct ckpt *c, const char *path, const char *what)
{
    return status_make(STATUS_INPUT, "%s: %s: %s", c->path, path, what);
}

static struct status layout_check(const struct ckpt *c, const char *path, hid_t dataset)
{
    const hid_t plist = H5Dget_create_plist(dataset);
    if (plist < 0) return h5_error(STATUS_INPUT, c->path, "%s: its properties", path);
    const bool contiguous = H5Pget_layout(plist) == H5D_CONTIGUOUS;
    const bool external = H5Pget_external_count(plist) != 0;
    const bool filtered = H5Pget_nfilters(plist) != 0;
    H5Pclose(plist);
    if (external) return ckpt_walk_bad(c, path, "has external storage, which is refused");
    if (filtered) return ckpt_walk_bad(c, path, "has filters, which are refused");
    if (!contiguous) return ckpt_walk_bad(c, path, "expected a contiguous layout");
    return status_ok();
}

static struct status shape_read(const struct ckpt *c, const char *path, hid_t dataset,
                                struct shape *out)
{
    const hid_t space = H5Dget_space(dataset);
    if (space < 0) return h5_error(STATUS_INPUT, c->path, "%s: its shape", path);
    out->n_dims = H5Sget_simple_extent_ndims(space);
    out->n_elems = 1;
    bool good = out->n_dims >= 0 && out->n_dims <= CKPT_DIMS_MAX && H5Sis_simple(space) > 0 &&
                H5Sget_simple_extent_type(space) != H5S_NULL &&
                H5Sget_simple_extent_dims(space, out->dims, NULL) >= 0;
    H5Sclose(space);
    for (int d = 0; good && d < out->n_dims; d++) {
        good = out->dims[d] > 0 && out->dims[d] <= UINT64_MAX / 16 / out->n_elems;
        out->n_elems *= good ? out->dims[d] : 1;
    }
    if (good) return status_ok();
    return ckpt_walk_bad(c, path, "has a bad shape (expected 0 to 3 dimensions, none of them 0)");
}

static struct status storage_check(const struct ckpt *c, const char *path, hid_t dataset,
                                   uint64_t n_bytes)
{
    const haddr_t offset = H5Dget_offset(dataset);
    const uint64_t stored = H5Dget_storage_size(dataset);
    if (offset == HADDR_UNDEF || stored != n_bytes || offset > c->seal.eoa ||
        n_bytes > c->seal.eoa - offset) {
        return status_make(STATUS_INPUT, "%s: %s: expected %llu bytes, found %llu at %lld of %llu",
                           c->path, path, (unsigned long long)n_bytes, (unsigned long long)stored,
                           (long long)offset, (unsigned long long)c->seal.eoa);
    }
    return status_ok();
}

/* Opens a dataset and runs the checks that do not depend on its type. */
static struct status dataset_open(const struct ckpt *c, const char *path, hid_t *out,
                                  struct shape *shape)
{
    const hid_t dataset = H5Dopen2(c->file, path, H5P_DEFAULT);
    *out = -1;
    if (dataset < 0) return h5_error(STATUS_INPUT, c->path, "%s", path);
    struct status st = layout_check(c, path, dataset);
    if (!status_failed(&st)) st = shape_read(c, path, dataset, shape);
    if (status_failed(&st)) {
        H5Dclose(dataset);
    } else {
        *out = dataset;
    }
    return st;
}

/* True for a fixed-length string type of 1..max bytes. */
static bool string_type(hid_t type, size_t max, size_t *n)
{
    *n = H5Tget_size(type);
    return H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0 && *n > 0 && *n <= max;
}

static struct status text_read(struct ckpt *c, const char *path, enum ckpt_text which)
{
    hid_t dataset;
    struct shape shape;
    size_t n;
    char *text = NULL;
    TRY(dataset_open(c, path, &dataset, &shape));
    struct status st = status_ok();
    const hid_t type = H5Dget_type(dataset);
    if (type < 0 || shape.n_dims != 0 || !string_type(type, CKPT_TEXT_BYTES_MAX, &n)) {
        st = ckpt_walk_bad(c, path, "expected one string of fixed length, at most 256 MiB");
        goto out;
    }
    TRY_GOTO(st, storage_check(c, path, dataset, n), out);
    TRY_GOTO(st, mem_alloc(&text, n + 1, 1, path), out);
    if (H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text) < 0) {
        st = h5_error(STATUS_INPUT, c->path, "%s", path);
        mem_free(&text);
        goto out;
    }
    c->texts[which].text = text;
    c->texts[which].n = n;
out:
    if (type >= 0) H5Tclose(type);
    H5Dclose(dataset);
    return st;
}

/* Reads a vector of at most 65536 f32 values into new memory. */
static struct status floats_read(struct ckpt *c, const char *path, float **out, size_t *n)
{
    hid_t dataset;
    struct shape shape;
    enum dtype dtype;
    TRY(dataset_open(c, path, &dataset, &shape));
    struct status st = status_ok();
    const hid_t type = H5Dget_type(dataset);
    if (type < 0 || !h5_dtype_match(type, &dtype) || dtype != DTYPE_F32 || shape.n_dims != 1 ||
        shape.n_elems > 65536) {
        st = ckpt_walk_bad(c, path, "expected a vector of at most 65536 f32");
        goto out;
    }
    TRY_GOTO(st, storage_check(c, path, dataset, shape.n_elems * sizeof(float)), out);
    TRY_GOTO(st, mem_alloc(out, shape.n_elems, sizeof(float), path), out);
    *n = shape.n_elems;
    if (H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, *out) < 0) {
        st = h5_error(STATUS_INPUT, c->path, "%s", path);
    }
out:
    if (type >= 0) H5Tclose(type);
    H5Dclose(dataset);
    return st;
}

static struct status rope_factors_read(struct ckpt *c, const char *path)
{
    size_t n = 0;
    TRY(floats_read(c, path, &c->rope_factors, &n));
    return n == 2 ? status_ok() : ckpt_walk_bad(c, path, "expected two values");
}

struct status ckpt_int_attribute(const struct ckpt *c, const char *path, hid_t object,
                                 const char *name, uint64_t max, uint64_t *out)
{
    if (H5Aexists(object, name) <= 0) return status_ok();
    const hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
    const hid_t space = attribute < 0 ? -1 : H5Aget_space(attribute);
    const hid_t type = attribute < 0 ? -1 : H5Aget_type(attribute);
    uint64_t value = 0;
    const bool good = space >= 0 && type >= 0 && H5Tget_class(type) == H5T_INTEGER &&
                      H5Sget_simple_extent_npoints(space) == 1 &&
                      H5Aread(attribute, H5T_NATIVE_UINT64, &value) >= 0 && value <= max;
    if (type >= 0) H5Tclose(type);
    if (space >= 0) H5Sclose(space);
    if (attribute >= 0) H5Aclose(attribute);
    if (!good) {
        return status_make(STATUS_INPUT,
                           "%s: %s: attribute %s: expected one integer of at most %llu", c->path,
                           path, name, (unsigned long long)max);
    }
    *out = value;
    return status_ok();
}

struct status ckpt_leaf_read(const struct ckpt *c, const char *path, hid_t dataset,
                             struct ckpt_tensor *t)
{
    uint64_t leaf = 0, bits = 0;
    TRY(ckpt_int_attribute(c, path, dataset, "leaf", UINT32_MAX, &leaf));
    TRY(ckpt_int_attribute(c, path, dataset, "grid_bits", 48, &bits));
    t->leaf_elems = (uint32_t)leaf;
    t->grid_bits = (uint32_t)bits;
    if ((leaf == 0) != (bits == 0) || leaf_count(t->n_cols, t->leaf_elems) > LEAF_COUNT_MAX) {
        return status_make(STATUS_INPUT,
                           "%s: %s: leaf %llu and grid_bits %llu do not fit %llu columns", c->path,
                           path, (unsigned long long)leaf, (unsigned long long)bits,
                           (unsigned long long)t->n_cols);
    }
    return status_ok();
}

struct status ckpt_entry_add(struct ckpt *c, const char *path, const struct ckpt_tensor *t)
{
    if (c->n_entries == CKPT_TENSORS_MAX)
        return ckpt_walk_bad(c, path, "more tensors than 1048576");
    if (c->n_entries == c->n_entries_capacity) {
        const size_t n_new = c->n_entries_capacity == 0 ? 64 : 2 * c->n_entries_capacity;
        TRY(mem_grow(&c->entries, c->n_entries_capacity, n_new, sizeof c->entries[0],
                     "the list of tensors"));
        c->n_entries_capacity = n_new;
    }
    struct ckpt_entry *entry = &c->entries[c->n_entries];
    *entry = (struct ckpt_entry){.tensor = *t};
    const char *name = path + strlen("/weights/");
    TRY(mem_strndup(&entry->name, name, strlen(name)));
    for (char *p = entry->name; *p != '\0'; p++) {
        if (*p == '/') *p = '.';
    }
    entry->tensor.name = entry->name;
    c->n_entries++;
    return status_ok();
}

static struct status tensor_read(struct ckpt *c, const char *path)
{
    hid_t dataset;
    struct shape shape;
    struct ckpt_tensor t = {0};
    if (strlen(path) >= CKPT_NAME_MAX) return ckpt_walk_bad(c, path, "too long a name");
    TRY(dataset_open(c, path, &dataset, &shape));
    const hid_t type = H5Dget_type(dataset);
    struct status st = status_ok();
    if (type < 0 || !h5_dtype_match(type, &t.dtype) || shape.n_dims == 0) {
        st = ckpt_walk_bad(c, path, "expected f32, f16, bf16, i8 or u8 in 1 to 3 dimensions");
        goto out;
    }
    t.n_dims = (uint32_t)shape.n_dims;
    for (int d = 0; d < shape.n_dims; d++) t.dims[d] = shape.dims[d];
    t.n_cols = t.dims[t.n_dims - 1];
    t.n_rows = shape.n_elems / t.n_cols;
    t.n_bytes = shape.n_elems * dtype_bytes(t.dtype);
    TRY_GOTO(st, storage_check(c, path, dataset, t.n_bytes), out);
    t.offset = H5Dget_offset(dataset);
    TRY_GOTO(st, ckpt_leaf_read(c, path, dataset, &t), out);
    st = ckpt_entry_add(c, path, &t);
out:
    if (type >= 0) H5Tclose(type);
    H5Dclose(dataset);
    return st;
}

static struct status sums_shape_check(const struct ckpt *c, const char *path, hid_t dataset,
                                      hid_t type, const struct shape *shape, struct ckpt_tensor *t)
{
    uint64_t rows = 0;
    TRY(ckpt_int_attribute(c, path, dataset, "rows_per_block", INT64_MAX, &rows));
    const uint64_t row_bytes = t->n_bytes / t->n_rows;
    if (rows == 0 || rows > t->n_rows || row_bytes > CKPT_BLOCK_BYTES_MAX / rows) {
        return status_make(
            STATUS_INPUT,
            "%s: %s: rows_per_block %llu for %llu rows of %llu bytes (a block has at "
            "most 64 MiB)",
            c->path, path, (unsigned long long)rows, (unsigned long long)t->n_rows,
            (unsigned long long)row_bytes);
    }
    t->rows_per_block = rows;
    t->n_blocks = t->n_rows / rows + (t->n_rows % rows != 0);
    if (type < 0 || H5Tequal(type, H5T_STD_U64LE) <= 0 || shape->n_dims != 2 ||
        shape->dims[0] != t->n_blocks || shape->dims[1] != 2) {
        return status_make(STATUS_INPUT, "%s: %s: expected u64 [%llu, 2]", c->path, path,
                           (unsigned long long)t->n_blocks);
    }
    return storage_check(c, path, dataset, t->n_blocks * 2 * sizeof(uint64_t));
}

static struct status sums_read(struct ckpt *c, struct ckpt_entry *entry)
{
    char path[CKPT_PATH_MAX];
    hid_t dataset;
    struct shape shape;
    ckpt_tensor_path("/checksums", entry->name, path);
    TRY(dataset_open(c, path, &dataset, &shape));
    const hid_t type = H5Dget_type(dataset);
    struct status st;
    TRY_GOTO(st, sums_shape_check(c, path, dataset, type, &shape, &entry->tensor), out);
    TRY_GOTO(st, mem_alloc(&entry->sums, 2 * entry->tensor.n_blocks, sizeof(uint64_t), path), out);
    if (H5Dread(dataset, H5T_STD_U64LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, entry->sums) < 0) {
        st = h5_error(STATUS_INPUT, c->path, "%s", path);
    }
out:
    if (type >= 0) H5Tclose(type);
    H5Dclose(dataset);
    return st;
}

/* Reads a text, a tensor or RoPE's values, by the dataset's path. Any other dataset is only
 * checked; sums_read reads the checksums later. */
static struct status dataset_visit(struct ckpt *c, const char *path)
{
    static const char *const text_paths[] = {
#define X(id, group, dataset) "/" group "/" dataset,
        CKPT_TEXT_LIST(X)
#undef X
    };
    for (int i = 0; i < CKPT_TEXT_COUNT; i++) {
        if (strcmp(path, text_paths[i]) == 0) return text_read(c, path, (enum ckpt_text)i);
    }
    if (strncmp(path, "/weights/", strlen("/weights/")) == 0) return tensor_read(c, path);
    if (strcmp(path, "/rope/inv_freq") == 0) {
        return floats_read(c, path, &c->inv_freq, &c->n_inv_freq);
    }
    if (strcmp(path, "/rope/local_inv_freq") == 0) {
        return floats_read(c, path, &c->local_inv_freq, &c->n_local_inv_freq);
    }
    if (strcmp(path, "/rope/factors") == 0) return rope_factors_read(c, path);
    hid_t dataset;
    struct shape shape;
    TRY(dataset_open(c, path, &dataset, &shape));
    H5Dclose(dataset);
    return status_ok();
}

static struct status group_walk(struct walk *w);

static struct status object_visit(struct walk *w, hid_t group, const char *name)
{
    H5O_info_t info;
    if (H5Oget_info_by_name(group, name, &info, H5P_DEFAULT) < 0) {
        return h5_error(STATUS_INPUT, w->c->path, "%s", w->path);
    }
    if (info.rc != 1) return ckpt_walk_bad(w->c, w->path, "has several names, which is refused");
    if (info.type == H5O_TYPE_DATASET) return dataset_visit(w->c, w->path);
    if (info.type != H5O_TYPE_GROUP)
        return ckpt_walk_bad(w->c, w->path, "is neither group nor dataset");
    if (w->depth == CKPT_DEPTH_MAX) return ckpt_walk_bad(w->c, w->path, "lies too deep");
    if (strncmp(w->path, "/weights/", strlen("/weights/")) == 0) {
        TRY(ckpt_quant_read(w->c, w->path));
    }
    w->depth++;
    const struct status st = group_walk(w);
    w->depth--;
    return st;
}

static struct status link_visit(struct walk *w, hid_t group, const char *name, H5L_type_t type)
{
    const size_t n = strlen(w->path);
    const int n_added = snprintf(w->path + n, sizeof w->path - n, "/%s", name);
    struct status st;
    if (n_added < 0 || (size_t)n_added >= sizeof w->path - n) {
        st = ckpt_walk_bad(w->c, w->path, "too long a path");
    } else if (type != H5L_TYPE_HARD) {
        st = ckpt_walk_bad(w->c, w->path, "is a soft or external link, which is refused");
    } else if (strchr(name, '.') != NULL) {
        st = ckpt_walk_bad(w->c, w->path, "has a dot in its name, which is refused");
    } else if (++w->n_links > CKPT_OBJECTS_MAX) {
        st = ckpt_walk_bad(w->c, w->path, "too many objects");
    } else {
        st = object_visit(w, group, name);
    }
    w->path[n] = '\0';
    return st;
}

static herr_t link_callback(hid_t group, const char *name, const H5L_info_t *info, void *ctx)
{
    struct walk *w = ctx;
    w->st = link_visit(w, group, name, info->type);
    return status_failed(&w->st) ? -1 : 0;
}

static struct status group_walk(struct walk *w)
{
    const hid_t group = H5Gopen2(w->c->file, w->path[0] == '\0' ? "/" : w->path, H5P_DEFAULT);
    if (group < 0) return h5_error(STATUS_INPUT, w->c->path, "%s", w->path);
    hsize_t at = 0;
    const herr_t failed = H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, &at, link_callback, w);
    struct status st = w->st;
    if (failed < 0 && !status_failed(&st)) st = h5_error(STATUS_INPUT, w->c->path, "%s", w->path);
    H5Gclose(group);
    return st;
}

struct status ckpt_string_attribute(const struct ckpt *c, const char *path, hid_t object,
                                    const char *name, size_t max, char **out)
{
    *out = NULL;
    if (H5Aexists(object, name) <= 0) {
        return status_make(STATUS_INPUT, "%s: %s: has no attribute %s", c->path, path, name);
    }
    const hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
    if (attribute < 0) return h5_error(STATUS_INPUT, c->path, "%s: attribute %s", path, name);
    const hid_t type = H5Aget_type(attribute);
    const hid_t space = H5Aget_space(attribute);
    struct status st = status_ok();
    size_t n;
    if (type < 0 || space < 0 || H5Sget_simple_extent_npoints(space) != 1 ||
        !string_type(type, max, &n)) {
        st = status_make(STATUS_INPUT, "%s: %s: attribute %s: expected a string", c->path, path,
                         name);
    } else {
        st = mem_alloc(out, n + 1, 1, name);
        if (!status_failed(&st) && H5Aread(attribute, type, *out) < 0) {
            st = h5_error(STATUS_INPUT, c->path, "%s: attribute %s", path, name);
            mem_free(out);
        }
    }
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    H5Aclose(attribute);
    return st;
}

static struct status root_read(struct ckpt *c)
{
    const hid_t root = H5Gopen2(c->file, "/", H5P_DEFAULT);
    if (root < 0) return h5_error(STATUS_INPUT, c->path, "the root group");
    uint64_t format = 0;
    struct status st = ckpt_int_attribute(c, "/", root, "shoal_format", INT32_MAX, &format);
    if (!status_failed(&st) && format != CKPT_FORMAT) {
        st = status_make(STATUS_INPUT, "%s: shoal_format: expected %d, found %llu", c->path,
                         CKPT_FORMAT, (unsigned long long)format);
    }
    if (!status_failed(&st)) {
        st = ckpt_string_attribute(c, "/", root, "source", 4096, &c->source);
    }
    H5Gclose(root);
    return st;
}

struct status ckpt_walk(struct ckpt *c)
{
    struct walk w = {.c = c};
    TRY(root_read(c));
    TRY(group_walk(&w));
    if (c->texts[CKPT_TEXT_CONFIG].text == NULL)
        return ckpt_walk_bad(c, "/config/config_json", "is missing");
    TRY(ckpt_quant_link(c));
    for (size_t i = 0; i < c->n_entries; i++) {
        if (c->entries[i].tensor.quant.kind == QUANT_NONE) TRY(sums_read(c, &c->entries[i]));
    }
    return status_ok();
}
