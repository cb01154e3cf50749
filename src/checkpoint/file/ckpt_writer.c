/* The streaming writer of checkpoint files: creates the file, writes its texts, completes it. */
#include "checkpoint/file/ckpt_writer.h"

#include "arch/arch_rope.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "checkpoint/file/ckpt_config.h"
#include "checkpoint/file/ckpt_writer_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    /* gives the file the usual mode: mkstemp's 0600 would hide the checkpoint from other users */
    const mode_t mask = umask(0);
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
        H5Pset_alignment(access, CKPT_ALIGN_BYTES, CKPT_ALIGN_BYTES) < 0 ||
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
    w->file = w->group_plist = w->dataset_plist = -1;
    for (int i = 0; i < CKPT_STREAMS_MAX; i++) w->streams[i].dataset = w->streams[i].type = -1;
    h5_quiet();
    struct status st;
    TRY_GOTO(st, file_target_regular(path, &w->path), fail);
    TRY_GOTO(st, temporary_create(w), fail);
    TRY_GOTO(st, file_create(w), fail);
    TRY_GOTO(st, root_write(w, source), fail);
    *out = w;
    return st;
fail:
    ckpt_writer_destroy(&w);
    return st;
}

/* Closes the file. This can fail, because HDF5 writes its buffers at this point. */
static struct status file_close(struct ckpt_writer *w)
{
    struct status st = status_ok();
    ckpt_streams_close(w);
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
        /* HDF5 writes its buffers whenever it closes a file, and a failed close leaves the library
         * broken. On a full disk, truncating the file first makes room for these buffers. */
        if (truncate(w->temporary, 0) != 0) log_line(LOG_DEBUG, "%s: truncate", w->temporary);
    }
    file_close(w);
    if (w->created) unlink(w->temporary);
    mem_free(&w->raw);
    for (int i = 0; i < CKPT_STREAMS_MAX; i++) mem_free(&w->streams[i].block);
    mem_free(&w->temporary);
    mem_free(&w->path);
    mem_free(w_);
}

struct status ckpt_groups_create(struct ckpt_writer *w, const char *path)
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

struct status ckpt_dataset_create(struct ckpt_writer *w, const char *path, hid_t type, int n_dims,
                                  const hsize_t *dims, hid_t *out)
{
    *out = -1;
    TRY(ckpt_groups_create(w, path));
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
    TRY(ckpt_dataset_create(w, path, type, n_dims, dims, &dataset));
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

/* Writes the rotary frequencies and those of layers with a window, where there are any, and the
 * factors unless both are 1. */
static struct status rope_write(struct ckpt_writer *w, const struct js_node *config)
{
    struct arch_rope r;
    TRY(arch_rope_make(config, &r));
    const float factors[2] = {r.attention_factor, r.softmax_factor};
    const hsize_t n[1] = {r.n}, two[1] = {2};
    struct status st = status_ok();
    if (r.n > 0) st = small_write(w, "/rope/inv_freq", H5T_IEEE_F32LE, 1, n, r.inv_freq);
    if (!status_failed(&st) && r.n > 0 && (factors[0] != 1 || factors[1] != 1)) {
        st = small_write(w, "/rope/factors", H5T_IEEE_F32LE, 1, two, factors);
    }
    mem_free(&r.inv_freq);
    if (status_failed(&st)) return st;
    TRY(arch_rope_make_local(config, &r));
    const hsize_t n_local[1] = {r.n};
    if (r.n > 0)
        st = small_write(w, "/rope/local_inv_freq", H5T_IEEE_F32LE, 1, n_local, r.inv_freq);
    mem_free(&r.inv_freq);
    return st;
}

static struct status config_write(struct ckpt_writer *w, const struct js_node *config)
{
    const hid_t group = H5Gopen2(w->file, "/config", H5P_DEFAULT);
    if (group < 0) return h5_error(STATUS_IO, w->path, "/config");
    struct status st = config_attributes_write(group, w->path, config);
    H5Gclose(group);
    if (!status_failed(&st)) st = rope_write(w, config);
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

struct status ckpt_writer_finish(struct ckpt_writer **w_)
{
    struct ckpt_writer *w = *w_;
    struct status st;
    TRY_GOTO(st, ckpt_tensor_end(w), out);
    if (H5Fflush(w->file, H5F_SCOPE_LOCAL) < 0) {
        st = h5_error(STATUS_IO, w->path, "writing");
        goto out;
    }
    TRY_GOTO(st, file_close(w), out);
    TRY_GOTO(st, seal_append(w->temporary, w->raw, w->n_raw), out);
    TRY_GOTO(st, file_commit(w->temporary, w->path), out);
    w->created = false; /* the file has its final name now */
out:
    ckpt_writer_destroy(w_);
    return st;
}
