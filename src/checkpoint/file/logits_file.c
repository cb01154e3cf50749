/* Writes datasets of logits, which grow. */
#include "checkpoint/file/logits_file.h"

#include "base/mem.h"
#include "checkpoint/file/h5.h"

#include <stdio.h>
#include <string.h>

struct logits_file {
    hid_t file;
    char path[1024];
};

struct status logits_file_create(const char *path, struct logits_file **out)
{
    *out = NULL;
    struct logits_file *f = NULL;
    TRY(mem_alloc(&f, 1, sizeof *f, "logits file"));
    snprintf(f->path, sizeof f->path, "%s", path);
    h5_quiet();
    f->file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    if (f->file < 0) {
        mem_free(&f);
        return h5_error(STATUS_IO, path, "could not be created");
    }
    *out = f;
    return status_ok();
}

/* Creates a line's dataset [dims], which may grow by rows. */
static struct status rows_create(struct logits_file *f, const char *name, const hsize_t *dims,
                                 hid_t *out)
{
    const hsize_t most[2] = {H5S_UNLIMITED, dims[1]};
    const hsize_t chunk[2] = {1, dims[1]};
    const hid_t space = H5Screate_simple(2, dims, most);
    const hid_t how = H5Pcreate(H5P_DATASET_CREATE);
    struct status st = status_ok();
    H5Pset_chunk(how, 2, chunk);
    *out = H5Dcreate2(f->file, name, H5T_IEEE_F32LE, space, H5P_DEFAULT, how, H5P_DEFAULT);
    if (*out < 0) st = h5_error(STATUS_IO, f->path, "dataset %s: could not be created", name);
    H5Pclose(how);
    H5Sclose(space);
    return st;
}

/* Opens or creates a line's dataset of at least n_rows rows; the caller closes it if *out >= 0. */
static struct status rows_open(struct logits_file *f, const char *name, hsize_t n_rows,
                               hsize_t vocab, hid_t *out)
{
    hsize_t now[2] = {0, 0}, dims[2] = {n_rows, vocab};
    if (H5Lexists(f->file, name, H5P_DEFAULT) <= 0) return rows_create(f, name, dims, out);
    *out = H5Dopen2(f->file, name, H5P_DEFAULT);
    if (*out < 0) return h5_error(STATUS_IO, f->path, "dataset %s: could not be opened", name);
    const hid_t space = H5Dget_space(*out);
    H5Sget_simple_extent_dims(space, now, NULL);
    H5Sclose(space);
    if (now[0] > dims[0]) dims[0] = now[0];
    if (H5Dset_extent(*out, dims) < 0)
        return h5_error(STATUS_IO, f->path, "dataset %s: could not grow", name);
    return status_ok();
}

/* Reads the reason for each failure at once, because the next HDF5 call discards it. */
struct status logits_file_write(struct logits_file *f, uint64_t line, int32_t row0,
                                const float *rows, int32_t n_rows, int32_t vocab)
{
    static const char not_written[] = "dataset %s: could not write rows %d to %d";
    char name[32];
    snprintf(name, sizeof name, "%llu", (unsigned long long)line);
    const hsize_t start[2] = {(hsize_t)row0, 0}, count[2] = {(hsize_t)n_rows, (hsize_t)vocab};
    hid_t set;
    struct status st = rows_open(f, name, start[0] + count[0], count[1], &set);
    if (!status_failed(&st)) {
        const hid_t file_space = H5Dget_space(set);
        const hid_t memory = H5Screate_simple(2, count, NULL);
        H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start, NULL, count, NULL);
        if (H5Dwrite(set, H5T_NATIVE_FLOAT, memory, file_space, H5P_DEFAULT, rows) < 0)
            st = h5_error(STATUS_IO, f->path, not_written, name, row0, row0 + n_rows);
        H5Sclose(memory);
        H5Sclose(file_space);
    }
    /* closing writes HDF5's buffers, so it can fail */
    if (set >= 0 && H5Dclose(set) < 0 && !status_failed(&st))
        st = h5_error(STATUS_IO, f->path, not_written, name, row0, row0 + n_rows);
    return st;
}

struct status logits_file_close(struct logits_file **file)
{
    if (*file == NULL) return status_ok();
    struct status st = status_ok();
    if (H5Fclose((*file)->file) < 0)
        st = h5_error(STATUS_IO, (*file)->path, "could not be completed");
    mem_free(file);
    return st;
}
