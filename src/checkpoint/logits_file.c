/* Growing datasets of logits. */
#include "checkpoint/logits_file.h"

#include "base/mem.h"

#include <hdf5.h>
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
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    f->file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    if (f->file < 0) {
        mem_free(&f);
        return status_make(STATUS_IO, "%s: could not be created", path);
    }
    *out = f;
    return status_ok();
}

/* Opens a line's dataset with room for n_rows rows, or makes it. */
static hid_t open_rows(struct logits_file *f, const char *name, hsize_t n_rows, hsize_t vocab)
{
    hsize_t dims[2] = {n_rows, vocab};
    if (H5Lexists(f->file, name, H5P_DEFAULT) > 0) {
        const hid_t set = H5Dopen2(f->file, name, H5P_DEFAULT);
        if (set < 0) return set;
        hsize_t now[2] = {0, 0};
        const hid_t space = H5Dget_space(set);
        H5Sget_simple_extent_dims(space, now, NULL);
        H5Sclose(space);
        if (now[0] > dims[0]) dims[0] = now[0];
        if (H5Dset_extent(set, dims) >= 0) return set;
        H5Dclose(set);
        return -1;
    }
    const hsize_t most[2] = {H5S_UNLIMITED, vocab};
    const hsize_t chunk[2] = {1, vocab};
    const hid_t space = H5Screate_simple(2, dims, most);
    const hid_t how = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(how, 2, chunk);
    const hid_t set =
        H5Dcreate2(f->file, name, H5T_IEEE_F32LE, space, H5P_DEFAULT, how, H5P_DEFAULT);
    H5Pclose(how);
    H5Sclose(space);
    return set;
}

struct status logits_file_write(struct logits_file *f, uint64_t line, int32_t row0,
                                const float *rows, int32_t n_rows, int32_t vocab)
{
    char name[32];
    snprintf(name, sizeof name, "%llu", (unsigned long long)line);
    const hsize_t start[2] = {(hsize_t)row0, 0}, count[2] = {(hsize_t)n_rows, (hsize_t)vocab};
    const hid_t set = open_rows(f, name, start[0] + count[0], count[1]);
    herr_t rc = -1;
    if (set >= 0) {
        const hid_t file_space = H5Dget_space(set);
        const hid_t memory = H5Screate_simple(2, count, NULL);
        H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start, NULL, count, NULL);
        rc = H5Dwrite(set, H5T_NATIVE_FLOAT, memory, file_space, H5P_DEFAULT, rows);
        H5Sclose(memory);
        H5Sclose(file_space);
        H5Dclose(set);
    }
    if (rc >= 0) return status_ok();
    return status_make(STATUS_IO, "%s: dataset %s: could not write rows %d to %d", f->path, name,
                       row0, row0 + n_rows);
}

struct status logits_file_close(struct logits_file **file)
{
    if (*file == NULL) return status_ok();
    struct status st = status_ok();
    if (H5Fclose((*file)->file) < 0) {
        st = status_make(STATUS_IO, "%s: could not be completed", (*file)->path);
    }
    mem_free(file);
    return st;
}
