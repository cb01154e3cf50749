/* Writes files of vectors, a block of rows at a time. */
#include "checkpoint/file/vectors_file.h"

#include "base/ends_with.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "checkpoint/file/h5.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK_ROWS = 256, NPY_HEADER_BYTES = 128 };

struct vectors_file {
    char *target, *temporary; /* owned */
    uint64_t n, n_written;    /* vectors of the file; those written, without the block's */
    uint32_t d;
    float *block;          /* [BLOCK_ROWS, d], owned */
    char *ids[BLOCK_ROWS]; /* [n_block], owned; of an HDF5 file only */
    uint32_t n_block;
    FILE *npy;                          /* NULL: an HDF5 file */
    hid_t h5, vectors, id_set, id_type; /* negative: not open */
};

bool vectors_file_is_name(const char *path)
{
    return ends_with(path, ".npy") || ends_with(path, ".h5");
}

static struct status write_failed(const struct vectors_file *f, int error)
{
    return status_make(STATUS_IO, "%s: writing failed: %s", f->temporary, strerror(error));
}

/* The header is padded to NPY_HEADER_BYTES, which holds any shape. */
static struct status begin_npy(struct vectors_file *f)
{
    enum { BEFORE_BYTES = 10, TEXT_BYTES = NPY_HEADER_BYTES - BEFORE_BYTES };
    char text[TEXT_BYTES + 1];
    f->npy = fopen(f->temporary, "wb");
    if (f->npy == NULL) return write_failed(f, errno);
    const int n = snprintf(text, sizeof text,
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (%llu, %u), }",
                           (unsigned long long)f->n, f->d);
    memset(text + n, ' ', (size_t)(TEXT_BYTES - n));
    text[TEXT_BYTES - 1] = '\n';
    const char before[BEFORE_BYTES] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, TEXT_BYTES, 0};
    const bool ok =
        fwrite(before, sizeof before, 1, f->npy) == 1 && fwrite(text, TEXT_BYTES, 1, f->npy) == 1;
    return ok ? status_ok() : write_failed(f, errno);
}

static hid_t create_set(const struct vectors_file *f, const char *name, hid_t type, int n_dims)
{
    const hsize_t dims[2] = {f->n, f->d};
    const hid_t space = H5Screate_simple(n_dims, dims, NULL), how = H5Pcreate(H5P_DATASET_CREATE);
    hid_t set = -1;
    if (space >= 0 && how >= 0 && H5Pset_obj_track_times(how, 0) >= 0)
        set = H5Dcreate2(f->h5, name, type, space, H5P_DEFAULT, how, H5P_DEFAULT);
    if (how >= 0) H5Pclose(how);
    if (space >= 0) H5Sclose(space);
    return set;
}

static struct status begin_h5(struct vectors_file *f)
{
    h5_quiet();
    const hid_t access = h5_access_create(), create = H5Pcreate(H5P_FILE_CREATE);
    f->id_type = H5Tcopy(H5T_C_S1);
    if (access < 0 || create < 0 || f->id_type < 0 || H5Pset_obj_track_times(create, 0) < 0 ||
        H5Tset_size(f->id_type, H5T_VARIABLE) < 0 || H5Tset_cset(f->id_type, H5T_CSET_UTF8) < 0 ||
        (f->h5 = H5Fcreate(f->temporary, H5F_ACC_TRUNC, create, access)) < 0 ||
        (f->vectors = create_set(f, "vectors", H5T_IEEE_F32LE, 2)) < 0 ||
        (f->id_set = create_set(f, "ids", f->id_type, 1)) < 0) {
        return h5_error(STATUS_IO, f->temporary, "cannot be created");
    }
    H5Pclose(create);
    H5Pclose(access);
    return status_ok();
}

static struct status name_temporary(struct vectors_file *f, const char *path)
{
    struct strbuf name;
    TRY(file_target_regular(path, &f->target));
    strbuf_init(&name);
    strbuf_printf(&name, "%s.tmp", f->target);
    f->temporary = name.data;
    return strbuf_status(&name);
}

struct status vectors_file_create(const char *path, uint64_t n, uint32_t d,
                                  struct vectors_file **out)
{
    struct vectors_file *f = NULL;
    *out = NULL;
    TRY(mem_alloc(&f, 1, sizeof *f, "vectors"));
    f->h5 = f->vectors = f->id_set = f->id_type = -1;
    f->n = n;
    f->d = d;
    struct status st = name_temporary(f, path);
    if (!status_failed(&st))
        st = mem_alloc(&f->block, (size_t)BLOCK_ROWS * d, sizeof *f->block, "vectors");
    if (!status_failed(&st)) st = ends_with(path, ".npy") ? begin_npy(f) : begin_h5(f);
    if (status_failed(&st)) return vectors_file_end(&f, st);
    *out = f;
    return st;
}

static bool write_rows(hid_t set, hid_t type, const hsize_t start[2], const hsize_t count[2],
                       const void *rows)
{
    const hid_t space = H5Dget_space(set);
    const hid_t memory = H5Screate_simple(H5Sget_simple_extent_ndims(space), count, NULL);
    const bool ok = memory >= 0 &&
                    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) >= 0 &&
                    H5Dwrite(set, type, memory, space, H5P_DEFAULT, rows) >= 0;
    if (memory >= 0) H5Sclose(memory);
    if (space >= 0) H5Sclose(space);
    return ok;
}

/* Writes the block, in the machine's order of bytes, which is little endian. */
static struct status flush_block(struct vectors_file *f)
{
    struct status st = status_ok();
    const hsize_t start[2] = {f->n_written, 0}, count[2] = {f->n_block, f->d};
    if (f->n_block == 0) return st;
    if (f->npy != NULL) {
        if (fwrite(f->block, (size_t)f->d * sizeof *f->block, f->n_block, f->npy) != f->n_block)
            st = write_failed(f, errno);
    } else if (!write_rows(f->vectors, H5T_NATIVE_FLOAT, start, count, f->block) ||
               !write_rows(f->id_set, f->id_type, start, count, f->ids)) {
        st = h5_error(STATUS_IO, f->temporary, "writing");
    }
    for (uint32_t i = 0; i < f->n_block; i++) mem_free(&f->ids[i]);
    f->n_written += f->n_block;
    f->n_block = 0;
    return st;
}

struct status vectors_file_add(struct vectors_file *f, const char *id, const float *x)
{
    if (f->npy == NULL) TRY(mem_strndup(&f->ids[f->n_block], id, strlen(id)));
    memcpy(f->block + (size_t)f->n_block * f->d, x, f->d * sizeof *x);
    f->n_block++;
    return f->n_block == BLOCK_ROWS ? flush_block(f) : status_ok();
}

/* Closes all that is open. False if buffered bytes could not be written. */
static bool close_all(struct vectors_file *f)
{
    bool ok = f->npy == NULL || fclose(f->npy) == 0;
    ok = (f->id_set < 0 || H5Dclose(f->id_set) >= 0) && ok;
    ok = (f->vectors < 0 || H5Dclose(f->vectors) >= 0) && ok;
    if (f->id_type >= 0) H5Tclose(f->id_type);
    return (f->h5 < 0 || H5Fclose(f->h5) >= 0) && ok;
}

struct status vectors_file_end(struct vectors_file **file, struct status st)
{
    struct vectors_file *f = *file;
    if (f == NULL) return st;
    if (!status_failed(&st)) st = flush_block(f);
    if (!status_failed(&st) && f->n_written != f->n)
        st = status_make(STATUS_BUG, "%s: %llu vectors were added, expected %llu", f->target,
                         (unsigned long long)f->n_written, (unsigned long long)f->n);
    if (!close_all(f) && !status_failed(&st)) st = write_failed(f, errno != 0 ? errno : EIO);
    if (!status_failed(&st)) st = file_commit(f->temporary, f->target);
    if (status_failed(&st) && f->temporary != NULL) unlink(f->temporary);
    for (uint32_t i = 0; i < f->n_block; i++) mem_free(&f->ids[i]);
    mem_free(&f->block);
    mem_free(&f->temporary);
    mem_free(&f->target);
    mem_free(file);
    return st;
}
