/* Reads about ROWS_BYTES of rows at once, and writes them as lines to a buffer. */
#include "serve/input/dataset_lines.h"

#include "base/mem.h"
#include "base/strbuf.h"
#include "checkpoint/file/h5.h"

#include <string.h>
#include <strings.h>

enum { STRING_BYTES_MAX = 16 << 20 /* the longest fixed length of strings: that of a line */ };
enum { ROWS_BYTES = 1 << 20, ROWS_FIRST = 16, ROWS_MAX = 4096 };

struct dataset_lines {
    struct strbuf name; /* "input FILE.h5:/PATH" */
    hid_t file, set, type;
    bool is_variable;
    size_t item_bytes; /* of fixed-length strings */
    H5T_str_t padding; /* of fixed-length strings */
    hsize_t n_rows, at;
    size_t n_most;       /* rows to read next */
    struct strbuf lines; /* of n_filled rows; bytes from `taken` on have not been copied yet */
    size_t taken, n_filled;
};

bool dataset_lines_split(const char *path, size_t *n_file)
{
    static const char *const endings[] = {".h5", ".hdf5"};
    const char *colon = strstr(path, ":/");
    for (; colon != NULL; colon = strstr(colon + 1, ":/")) {
        *n_file = (size_t)(colon - path);
        for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
            const size_t n = strlen(endings[i]);
            if (*n_file > n && strncasecmp(colon - n, endings[i], n) == 0) return true;
        }
    }
    return false;
}

static struct status check_string_type(struct dataset_lines *d)
{
    static const char *const classes[] = {
        "integers",  "floats",     "times",        "strings",   "bit fields", "opaque values",
        "compounds", "references", "enumerations", "sequences", "arrays"};
    const int kind = H5Tget_class(d->type);
    const bool is_known = kind >= 0 && kind < (int)(sizeof classes / sizeof classes[0]);
    if (kind != H5T_STRING) {
        return status_make(STATUS_INPUT, "%s: expected strings, found %s", d->name.data,
                           is_known ? classes[kind] : "another type");
    }
    d->is_variable = H5Tis_variable_str(d->type) > 0;
    d->item_bytes = d->is_variable ? sizeof(char *) : H5Tget_size(d->type);
    d->padding = H5Tget_strpad(d->type);
    if (!d->is_variable && d->item_bytes > STRING_BYTES_MAX)
        return status_make(STATUS_INPUT, "%s: strings of %zu bytes, expected at most %d",
                           d->name.data, d->item_bytes, STRING_BYTES_MAX);
    d->n_most = ROWS_FIRST;
    if (!d->is_variable) d->n_most = ROWS_BYTES / (d->item_bytes + 1) + 1;
    return status_ok();
}

static struct status check_shape(struct dataset_lines *d)
{
    const hid_t space = H5Dget_space(d->set);
    const int n_dims = space >= 0 ? H5Sget_simple_extent_ndims(space) : -1;
    if (n_dims == 1) H5Sget_simple_extent_dims(space, &d->n_rows, NULL);
    if (space >= 0) H5Sclose(space);
    if (n_dims == 1) return status_ok();
    return status_make(STATUS_INPUT, "%s: expected a dataset with one dimension, found %d",
                       d->name.data, n_dims);
}

/* Opens a file of any version of the format, without locks. */
static struct status open_h5(struct dataset_lines *d, const char *file)
{
    struct status st = status_ok();
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (access < 0) return h5_error(STATUS_MEMORY, d->name.data, "no access properties");
    H5Pset_fapl_sec2(access);
    H5Pset_file_locking(access, 0, 1);
    d->file = H5Fopen(file, H5F_ACC_RDONLY, access);
    if (d->file < 0) st = h5_error(STATUS_INPUT, d->name.data, "no HDF5 file that can be read");
    H5Pclose(access);
    return st;
}

static struct status dataset_lines_find(struct dataset_lines *d, const char *path)
{
    size_t n_file;
    char *file = NULL;
    struct status st;
    (void)dataset_lines_split(path, &n_file);
    strbuf_printf(&d->name, "input %s", path);
    TRY(strbuf_status(&d->name));
    TRY(mem_strndup(&file, path, n_file));
    h5_quiet();
    st = open_h5(d, file);
    mem_free(&file);
    TRY(st);
    d->set = H5Dopen2(d->file, path + n_file + 1, H5P_DEFAULT);
    if (d->set < 0) return h5_error(STATUS_INPUT, d->name.data, "the dataset cannot be opened");
    d->type = H5Dget_type(d->set);
    TRY(check_string_type(d));
    return check_shape(d);
}

struct status dataset_lines_open(const char *path, struct dataset_lines **out)
{
    *out = NULL;
    TRY(mem_alloc(out, 1, sizeof **out, "input"));
    (*out)->file = (*out)->set = (*out)->type = -1;
    strbuf_init(&(*out)->name);
    strbuf_init(&(*out)->lines);
    const struct status st = dataset_lines_find(*out, path);
    if (status_failed(&st)) dataset_lines_close(out);
    return st;
}

void dataset_lines_close(struct dataset_lines **lines)
{
    struct dataset_lines *d = *lines;
    if (d == NULL) return;
    if (d->type >= 0) H5Tclose(d->type);
    if (d->set >= 0) H5Dclose(d->set);
    if (d->file >= 0) H5Fclose(d->file);
    strbuf_fini(&d->name);
    strbuf_fini(&d->lines);
    mem_free(lines);
}

/* Returns the string of row i: *n bytes, without a NUL at its end. */
static const char *string_at(const struct dataset_lines *d, const char *rows, size_t i, size_t *n)
{
    const char *text = rows + i * d->item_bytes;
    if (d->is_variable) {
        memcpy(&text, text, sizeof text);
        *n = text != NULL ? strlen(text) : 0;
        return text != NULL ? text : "";
    }
    const char *end = memchr(text, '\0', d->item_bytes);
    *n = end != NULL && d->padding != H5T_STR_SPACEPAD ? (size_t)(end - text) : d->item_bytes;
    while (d->padding == H5T_STR_SPACEPAD && *n > 0 && text[*n - 1] == ' ') (*n)--;
    return text;
}

static struct status add_lines(struct dataset_lines *d, const char *rows, size_t n_rows)
{
    strbuf_clear(&d->lines);
    d->taken = 0;
    d->n_filled = n_rows;
    for (size_t i = 0; i < n_rows; i++) {
        size_t n;
        const char *text = string_at(d, rows, i, &n);
        strbuf_puts(&d->lines, "{\"prompt\":");
        strbuf_json_string(&d->lines, text, n);
        strbuf_puts(&d->lines, "}\n");
    }
    if (d->is_variable) {
        const size_t mean = d->lines.n / n_rows + 1;
        d->n_most = mean < ROWS_BYTES ? ROWS_BYTES / mean : 1;
        if (d->n_most > ROWS_MAX) d->n_most = ROWS_MAX;
    }
    return strbuf_status(&d->lines);
}

static struct status dataset_lines_fill(struct dataset_lines *d)
{
    const hsize_t left = d->n_rows - d->at;
    const hsize_t n = left < d->n_most ? left : d->n_most;
    char *rows = NULL;
    TRY(mem_alloc(&rows, n, d->item_bytes, "rows of a dataset"));
    const hid_t here = H5Dget_space(d->set), memory = H5Screate_simple(1, &n, NULL);
    H5Sselect_hyperslab(here, H5S_SELECT_SET, &d->at, NULL, &n, NULL);
    struct status st = status_ok();
    const bool is_read = H5Dread(d->set, d->type, memory, here, H5P_DEFAULT, rows) >= 0;
    if (!is_read) {
        st = h5_error(STATUS_INPUT, d->name.data, "rows %llu to %llu could not be read",
                      (unsigned long long)d->at + 1, (unsigned long long)(d->at + n));
    } else {
        st = add_lines(d, rows, n);
    }
    if (is_read && d->is_variable) H5Dvlen_reclaim(d->type, memory, H5P_DEFAULT, rows);
    H5Sclose(memory);
    H5Sclose(here);
    mem_free(&rows);
    d->at += n;
    return st;
}

struct status dataset_lines_read(struct dataset_lines *d, void *to, size_t n_most, size_t *n)
{
    *n = 0;
    if (d->taken == d->lines.n && d->at < d->n_rows) TRY(dataset_lines_fill(d));
    const size_t left = d->lines.n - d->taken;
    if (left == 0) return status_ok();
    *n = left < n_most ? left : n_most;
    memcpy(to, d->lines.data + d->taken, *n);
    d->taken += *n;
    return status_ok();
}

double dataset_lines_done(const struct dataset_lines *d)
{
    const double left = d->lines.n > 0 ? 1 - (double)d->taken / (double)d->lines.n : 0;
    const double n_done = (double)d->at - left * (double)d->n_filled;
    return d->n_rows > 0 ? n_done / (double)d->n_rows : 1;
}
