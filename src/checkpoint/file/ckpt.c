/* Opens checkpoints, and gives access to the content of open ones. */
#include "checkpoint/file/ckpt.h"

#include "base/mem.h"
#include "checkpoint/file/ckpt_private.h"

#include <stdio.h>
#include <string.h>

static struct status ckpt_file_open(struct ckpt *c)
{
    const hid_t access = h5_access_create();
    if (access < 0) return h5_error(STATUS_INPUT, c->path, "access properties");
    c->file = H5Fopen(c->path, H5F_ACC_RDONLY, access);
    H5Pclose(access);
    if (c->file < 0) return h5_error(STATUS_INPUT, c->path, "cannot be opened");
    void *fd = NULL; /* HDF5's descriptor; weights are read through it, so from the same file */
    if (H5Fget_vfd_handle(c->file, H5P_DEFAULT, &fd) < 0 || fd == NULL) {
        return h5_error(STATUS_INPUT, c->path, "has no file descriptor");
    }
    c->fd = *(const int *)fd;
    return status_ok();
}

void ckpt_before_mpi(void)
{
    h5_quiet();
}

struct status ckpt_open(const char *path, struct ckpt **out)
{
    struct ckpt *c = NULL;
    *out = NULL;
    TRY(mem_alloc(&c, 1, sizeof *c, "a checkpoint"));
    c->file = -1;
    struct status st = mem_strndup(&c->path, path, strlen(path));
    if (!status_failed(&st)) st = seal_check(path, &c->seal);
    h5_quiet();
    if (!status_failed(&st)) st = ckpt_file_open(c);
    if (!status_failed(&st)) st = ckpt_walk(c);
    if (status_failed(&st)) ckpt_close(&c);
    *out = c;
    return st;
}

void ckpt_close(struct ckpt **c_)
{
    struct ckpt *c = *c_;
    if (c == NULL) return;
    if (c->file >= 0) H5Fclose(c->file);
    for (size_t i = 0; i < c->n_entries; i++) {
        mem_free(&c->entries[i].name);
        mem_free(&c->entries[i].method);
        mem_free(&c->entries[i].sums);
    }
    for (int i = 0; i < CKPT_TEXT_COUNT; i++) mem_free(&c->texts[i].text);
    mem_free(&c->entries);
    mem_free(&c->inv_freq);
    mem_free(&c->local_inv_freq);
    mem_free(&c->rope_factors);
    mem_free(&c->source);
    mem_free(&c->path);
    mem_free(c_);
}

const char *ckpt_path(const struct ckpt *c)
{
    return c->path;
}

const char *ckpt_source(const struct ckpt *c)
{
    return c->source;
}

uint64_t ckpt_file_bytes(const struct ckpt *c)
{
    return c->seal.file_bytes;
}

const char *ckpt_text(const struct ckpt *c, enum ckpt_text which, size_t *n)
{
    if (n != NULL) *n = c->texts[which].n;
    return c->texts[which].text;
}

const char *ckpt_config_json(const struct ckpt *c, size_t *n)
{
    return ckpt_text(c, CKPT_TEXT_CONFIG, n);
}

const char *ckpt_tokenizer_json(const struct ckpt *c, size_t *n)
{
    return ckpt_text(c, CKPT_TEXT_TOKENIZER, n);
}

const char *ckpt_tokenizer_config_json(const struct ckpt *c, size_t *n)
{
    return ckpt_text(c, CKPT_TEXT_TOKENIZER_CONFIG, n);
}

const char *ckpt_generation_config_json(const struct ckpt *c, size_t *n)
{
    return ckpt_text(c, CKPT_TEXT_GENERATION_CONFIG, n);
}

const char *ckpt_chat_template(const struct ckpt *c, size_t *n)
{
    return ckpt_text(c, CKPT_TEXT_CHAT_TEMPLATE, n);
}

const float *ckpt_rope_inv_freq(const struct ckpt *c, size_t *n)
{
    *n = c->n_inv_freq;
    return c->inv_freq;
}

const float *ckpt_rope_local_inv_freq(const struct ckpt *c, size_t *n)
{
    *n = c->n_local_inv_freq;
    return c->local_inv_freq;
}

struct ckpt_rope_factors ckpt_rope_factors(const struct ckpt *c)
{
    if (c->rope_factors == NULL) return (struct ckpt_rope_factors){1, 1};
    return (struct ckpt_rope_factors){c->rope_factors[0], c->rope_factors[1]};
}

size_t ckpt_tensor_count(const struct ckpt *c)
{
    return c->n_tensors;
}

size_t ckpt_stored_count(const struct ckpt *c)
{
    return c->n_entries;
}

const struct ckpt_tensor *ckpt_tensor_at(const struct ckpt *c, size_t i)
{
    return &c->entries[i].tensor;
}

bool ckpt_tensors_differ(const struct ckpt *c, const struct ckpt_tensor *a,
                         const struct ckpt_tensor *b)
{
    const uint64_t *x = c->entries[a->index].sums, *y = c->entries[b->index].sums;
    const bool plain = a->quant.kind == QUANT_NONE && b->quant.kind == QUANT_NONE;
    if (!plain || x == NULL || y == NULL) return false;
    return a->dtype != b->dtype || a->n_rows != b->n_rows || a->n_cols != b->n_cols ||
           a->n_blocks != b->n_blocks || memcmp(x, y, 2 * a->n_blocks * sizeof *x) != 0;
}

const struct ckpt_tensor *ckpt_find(const struct ckpt *c, const char *name)
{
    size_t low = 0, high = c->n_tensors;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(name, c->entries[middle].name);
        if (order == 0) return &c->entries[middle].tensor;
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

struct ckpt_digest ckpt_digest(const struct ckpt *c)
{
    return (struct ckpt_digest){c->seal.hash_low, c->seal.hash_high};
}

void ckpt_tensor_path(const char *root, const char *name, char *out)
{
    const int n = snprintf(out, CKPT_PATH_MAX, "%s/%s", root, name);
    for (int i = (int)strlen(root); i < n && i < CKPT_PATH_MAX; i++) {
        if (out[i] == '.') out[i] = '/';
    }
}

uint64_t ckpt_slab_of_rows(const struct ckpt_tensor *t, uint64_t row, uint64_t n_rows,
                           hsize_t *start, hsize_t *count)
{
    for (uint32_t d = 0; d < t->n_dims; d++) {
        start[d] = 0;
        count[d] = t->dims[d];
    }
    if (t->n_dims == 1) return 1;
    if (t->n_dims == 2) {
        start[0] = row;
        count[0] = n_rows;
        return n_rows;
    }
    const uint64_t out = t->dims[1];
    start[0] = row / out;
    if (row % out == 0 && n_rows >= out) {
        count[0] = n_rows / out;
        return count[0] * out;
    }
    const uint64_t left = out - row % out;
    start[1] = row % out;
    count[0] = 1;
    count[1] = n_rows < left ? n_rows : left;
    return count[1];
}
