/* Writes the datasets of a file of log-probabilities. The values of tokens go to the file at once;
 * those of rows, which are small, in batches. */
#include "checkpoint/file/logprobs_file.h"

#include "base/mem.h"
#include "checkpoint/file/ckpt_config.h"
#include "checkpoint/file/h5.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BATCH_ROWS = 1024 };

enum set {
    SET_TOKENS,
    SET_IS_GENERATED,
    SET_TOKEN_LOGPROBS,
    SET_TOP_IDS,
    SET_TOP_LOGPROBS,
    SET_ROW_OFFSETS,
    SET_CUSTOM_ID,
    SET_CHOICE,
    SET_HIDDEN, /* this and the next ones: only if hidden rows are saved */
    SET_HIDDEN_OFFSETS,
    SET_HIDDEN_FIRST,
    SET_COUNT
};

static const char *const set_names[SET_COUNT] = {
    "tokens",    "is_generated", "token_logprobs", "top_ids",        "top_logprobs", "row_offsets",
    "custom_id", "choice",       "hidden",         "hidden_offsets", "hidden_first"};

struct logprobs_file {
    struct logprobs_shape shape;
    char *path; /* owned */
    hid_t file, string, half, hidden;
    hid_t types[SET_COUNT]; /* in memory and in the file; not owned */
    hid_t sets[SET_COUNT];
    uint64_t n_rows, n_tokens, n_hidden; /* so far */
    size_t n_batch;                      /* rows that are not written yet */
    char *ids[BATCH_ROWS];               /* owned */
    int32_t choices[BATCH_ROWS];
    int64_t ends[BATCH_ROWS], hidden_ends[BATCH_ROWS];
    int32_t hidden_firsts[BATCH_ROWS];
    uint8_t *is_generated; /* scratch */
    size_t is_generated_capacity;
};

size_t logprobs_bytes(enum logprobs_type type)
{
    return type == LOGPROBS_F16 ? 2 : 1;
}

static uint16_t half_of(float x)
{
    const float lowest = -65504;
    return f16_from_f32(x < lowest && !isinf(x) ? lowest : x);
}

/* Rounds to the nearest code, half-way values to the larger probability. */
static uint8_t code_of(float x)
{
    if (isinf(x)) return LOGPROBS_U8_NONE;
    const float scaled = x / (float)LOGPROBS_U8_SCALE; /* exact: the scale is a power of two */
    if (!(scaled > 0)) return 0;
    if (scaled >= LOGPROBS_U8_NONE - 1) return LOGPROBS_U8_NONE - 1;
    const float whole = floorf(scaled);
    return (uint8_t)(whole + (scaled - whole > 0.5f));
}

void logprobs_encode(enum logprobs_type type, const float *x, size_t n, void *out)
{
    uint16_t *halves = out;
    uint8_t *codes = out;
    for (size_t i = 0; i < n; i++) {
        if (type == LOGPROBS_F16)
            halves[i] = half_of(x[i]);
        else
            codes[i] = code_of(x[i]);
    }
}

static struct status error_of(const struct logprobs_file *f, const char *what, const char *name)
{
    return h5_error(STATUS_IO, f->path, "%s: %s", name, what);
}

/* ---- creating ---- */

static struct status make_types(struct logprobs_file *f)
{
    f->string = H5Tcopy(H5T_C_S1);
    f->half = h5_dtype_create(DTYPE_F16);
    f->hidden = h5_dtype_create(f->shape.hidden.layers.type);
    if (f->string < 0 || f->half < 0 || f->hidden < 0 || H5Tset_size(f->string, H5T_VARIABLE) < 0 ||
        H5Tset_cset(f->string, H5T_CSET_UTF8) < 0) {
        return error_of(f, "its types could not be made", "custom_id");
    }
    const bool is_half = f->shape.type == LOGPROBS_F16;
    f->types[SET_TOKENS] = f->types[SET_TOP_IDS] = f->types[SET_CHOICE] = H5T_STD_I32LE;
    f->types[SET_IS_GENERATED] = H5T_STD_U8LE;
    f->types[SET_TOKEN_LOGPROBS] = H5T_IEEE_F32LE;
    f->types[SET_TOP_LOGPROBS] = is_half ? f->half : H5T_STD_U8LE;
    f->types[SET_ROW_OFFSETS] = H5T_STD_I64LE;
    f->types[SET_CUSTOM_ID] = f->string;
    f->types[SET_HIDDEN] = f->hidden;
    f->types[SET_HIDDEN_OFFSETS] = H5T_STD_I64LE;
    f->types[SET_HIDDEN_FIRST] = H5T_STD_I32LE;
    return status_ok();
}

/* Creates the file, without times of creation, which would change its bytes. */
static struct status make_logprobs(struct logprobs_file *f)
{
    const hid_t access = h5_access_create(), create = H5Pcreate(H5P_FILE_CREATE);
    struct status st = status_ok();
    if (access < 0 || create < 0 || H5Pset_obj_track_times(create, 0) < 0 ||
        (f->file = H5Fcreate(f->path, H5F_ACC_TRUNC, create, access)) < 0) {
        st = h5_error(STATUS_IO, f->path, "cannot be created");
    }
    if (create >= 0) H5Pclose(create);
    if (access >= 0) H5Pclose(access);
    return st;
}

/* Sets dims to the shape of a dataset with n as its first dimension. Returns how many dimensions it
 * has. */
static int shape_of(const struct logprobs_file *f, enum set s, uint64_t n, hsize_t dims[3])
{
    dims[0] = n;
    dims[1] = s == SET_HIDDEN ? f->shape.hidden.layers.n : f->shape.k;
    dims[2] = f->shape.hidden.width;
    return s == SET_HIDDEN ? 3 : s == SET_TOP_IDS || s == SET_TOP_LOGPROBS ? 2 : 1;
}

static struct status make_set(struct logprobs_file *f, enum set s, uint64_t n)
{
    hsize_t dims[3];
    const int rank = shape_of(f, s, n, dims);
    const hid_t space = H5Screate_simple(rank, dims, NULL);
    const hid_t how = H5Pcreate(H5P_DATASET_CREATE);
    struct status st = status_ok();
    if (space < 0 || how < 0 || H5Pset_obj_track_times(how, 0) < 0 ||
        H5Pset_layout(how, H5D_CONTIGUOUS) < 0 ||
        H5Pset_alloc_time(how, H5D_ALLOC_TIME_EARLY) < 0 ||
        (s != SET_CUSTOM_ID && H5Pset_fill_time(how, H5D_FILL_TIME_NEVER) < 0) ||
        (f->sets[s] = H5Dcreate2(f->file, set_names[s], f->types[s], space, H5P_DEFAULT, how,
                                 H5P_DEFAULT)) < 0) {
        st = error_of(f, "could not be created", set_names[s]);
    }
    if (how >= 0) H5Pclose(how);
    if (space >= 0) H5Sclose(space);
    return st;
}

static struct status make_sets(struct logprobs_file *f)
{
    const struct logprobs_shape *p = &f->shape;
    for (int s = SET_TOKENS; s <= SET_TOP_LOGPROBS; s++) TRY(make_set(f, (enum set)s, p->n_tokens));
    TRY(make_set(f, SET_ROW_OFFSETS, p->n_rows + 1));
    TRY(make_set(f, SET_CUSTOM_ID, p->n_rows));
    TRY(make_set(f, SET_CHOICE, p->n_rows));
    if (p->hidden.layers.n == 0) return status_ok();
    TRY(make_set(f, SET_HIDDEN, p->hidden.n_rows));
    TRY(make_set(f, SET_HIDDEN_OFFSETS, p->n_rows + 1));
    return make_set(f, SET_HIDDEN_FIRST, p->n_rows);
}

/* Writes the attribute `layers` of the hidden rows: numbers from 0, or `final`, with commas. */
static struct status write_layers(const struct logprobs_file *f)
{
    const struct logprobs_hidden *h = &f->shape.hidden;
    char text[HIDDEN_LAYERS_MAX * 12] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < h->layers.n; i++) {
        const char *comma = i > 0 ? "," : "";
        if (h->layers.at[i] < h->n_layers)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%u", comma, h->layers.at[i]);
        else
            n += (size_t)snprintf(text + n, sizeof text - n, "%sfinal", comma);
    }
    return h5_string_attribute(f->sets[SET_HIDDEN], f->path, "layers", text, n);
}

static struct status write_attributes(const struct logprobs_file *f)
{
    const struct logprobs_shape *p = &f->shape;
    const bool is_half = p->type == LOGPROBS_F16;
    const struct {
        const char *name, *text;
    } texts[] = {
        {"model", p->model}, {"checkpoint", p->checkpoint}, {"encoding", is_half ? "f16" : "u8"}};
    TRY(h5_int_attribute(f->file, f->path, "shoal_logprobs", LOGPROBS_VERSION));
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        TRY(h5_string_attribute(f->file, f->path, texts[i].name, texts[i].text,
                                strlen(texts[i].text)));
    TRY(h5_int_attribute(f->file, f->path, "k", p->k));
    TRY(h5_int_attribute(f->file, f->path, "vocab_size", p->vocab));
    if (p->hidden.layers.n > 0) TRY(write_layers(f));
    const hid_t top = f->sets[SET_TOP_LOGPROBS];
    TRY(h5_real_attribute(top, f->path, "scale", is_half ? 1 : LOGPROBS_U8_SCALE));
    return is_half ? status_ok() : h5_int_attribute(top, f->path, "none", LOGPROBS_U8_NONE);
}

static void close_objects(struct logprobs_file *f)
{
    for (size_t s = 0; s < SET_COUNT; s++)
        if (f->sets[s] >= 0) H5Dclose(f->sets[s]);
    if (f->string >= 0) H5Tclose(f->string);
    if (f->half >= 0) H5Tclose(f->half);
    if (f->hidden >= 0) H5Tclose(f->hidden);
}

static void logprobs_file_free(struct logprobs_file **file)
{
    struct logprobs_file *f = *file;
    for (size_t i = 0; i < f->n_batch; i++) mem_free(&f->ids[i]);
    mem_free(&f->is_generated);
    mem_free(&f->path);
    mem_free(file);
}

/* Writes values at the indices [at, at + n) of a dataset's first dimension. */
static struct status write_set_at(struct logprobs_file *f, enum set s, uint64_t at, size_t n,
                                  const void *values)
{
    const hsize_t start[3] = {at, 0, 0};
    hsize_t count[3];
    const int rank = shape_of(f, s, n, count);
    if (n == 0) return status_ok();
    const hid_t space = H5Dget_space(f->sets[s]);
    const hid_t memory = H5Screate_simple(rank, count, NULL);
    struct status st = status_ok();
    if (space < 0 || memory < 0 ||
        H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
        H5Dwrite(f->sets[s], f->types[s], memory, space, H5P_DEFAULT, values) < 0) {
        st = error_of(f, "could not be written", set_names[s]);
    }
    if (memory >= 0) H5Sclose(memory);
    if (space >= 0) H5Sclose(space);
    return st;
}

struct status logprobs_file_create(const char *path, const struct logprobs_shape *shape,
                                   struct logprobs_file **out)
{
    const int64_t zero = 0;
    struct logprobs_file *f = NULL;
    struct status st;
    *out = NULL;
    TRY(mem_alloc(&f, 1, sizeof *f, "log-probabilities"));
    f->shape = *shape;
    f->file = f->string = f->half = f->hidden = -1;
    for (size_t s = 0; s < SET_COUNT; s++) f->sets[s] = -1;
    h5_quiet();
    TRY_GOTO(st, mem_strndup(&f->path, path, strlen(path)), fail);
    TRY_GOTO(st, make_types(f), fail);
    TRY_GOTO(st, make_logprobs(f), fail);
    TRY_GOTO(st, make_sets(f), fail);
    TRY_GOTO(st, write_attributes(f), fail);
    TRY_GOTO(st, write_set_at(f, SET_ROW_OFFSETS, 0, 1, &zero), fail);
    if (shape->hidden.layers.n > 0)
        TRY_GOTO(st, write_set_at(f, SET_HIDDEN_OFFSETS, 0, 1, &zero), fail);
    *out = f;
    return st;
fail:
    close_objects(f);
    if (f->file >= 0) H5Fclose(f->file);
    logprobs_file_free(&f);
    return st;
}

/* ---- writing ---- */

static struct status write_batch(struct logprobs_file *f)
{
    const uint64_t first = f->n_rows - f->n_batch;
    TRY(write_set_at(f, SET_CUSTOM_ID, first, f->n_batch, f->ids));
    TRY(write_set_at(f, SET_CHOICE, first, f->n_batch, f->choices));
    TRY(write_set_at(f, SET_ROW_OFFSETS, first + 1, f->n_batch, f->ends));
    if (f->shape.hidden.layers.n > 0) {
        TRY(write_set_at(f, SET_HIDDEN_OFFSETS, first + 1, f->n_batch, f->hidden_ends));
        TRY(write_set_at(f, SET_HIDDEN_FIRST, first, f->n_batch, f->hidden_firsts));
    }
    for (; f->n_batch > 0; f->n_batch--) mem_free(&f->ids[f->n_batch - 1]);
    return status_ok();
}

static struct status mark_generated(struct logprobs_file *f, const struct logprobs_row *row)
{
    if (row->n > f->is_generated_capacity) {
        TRY(mem_grow(&f->is_generated, 0, row->n, 1, "log-probabilities"));
        f->is_generated_capacity = row->n;
    }
    memset(f->is_generated, 0, row->n_prompt);
    memset(f->is_generated + row->n_prompt, 1, row->n - row->n_prompt);
    return write_set_at(f, SET_IS_GENERATED, f->n_tokens, row->n, f->is_generated);
}

struct status logprobs_file_add_hidden(struct logprobs_file *f, const void *rows, size_t n)
{
    assert(f->n_hidden + n <= f->shape.hidden.n_rows);
    TRY(write_set_at(f, SET_HIDDEN, f->n_hidden, n, rows));
    f->n_hidden += n;
    return status_ok();
}

struct status logprobs_file_add(struct logprobs_file *f, const struct logprobs_row *row)
{
    assert(f->n_rows < f->shape.n_rows && f->n_tokens + row->n <= f->shape.n_tokens);
    if (f->n_batch == BATCH_ROWS) TRY(write_batch(f));
    TRY(write_set_at(f, SET_TOKENS, f->n_tokens, row->n, row->tokens));
    TRY(mark_generated(f, row));
    TRY(write_set_at(f, SET_TOKEN_LOGPROBS, f->n_tokens, row->n, row->token_logprobs));
    TRY(write_set_at(f, SET_TOP_IDS, f->n_tokens, row->n, row->top_ids));
    TRY(write_set_at(f, SET_TOP_LOGPROBS, f->n_tokens, row->n, row->top_logprobs));
    TRY(mem_strndup(&f->ids[f->n_batch], row->custom_id, strlen(row->custom_id)));
    f->n_tokens += row->n;
    f->choices[f->n_batch] = row->choice;
    f->hidden_firsts[f->n_batch] = row->hidden_first;
    f->hidden_ends[f->n_batch] = (int64_t)f->n_hidden;
    f->ends[f->n_batch++] = (int64_t)f->n_tokens;
    f->n_rows++;
    return status_ok();
}

struct status logprobs_file_close(struct logprobs_file **file)
{
    struct logprobs_file *f = *file;
    if (f == NULL) return status_ok();
    struct status st = write_batch(f);
    close_objects(f);
    if (H5Fclose(f->file) < 0 && !status_failed(&st))
        st = h5_error(STATUS_IO, f->path, "could not be completed");
    logprobs_file_free(file);
    return st;
}
