/* Prints the file of --save-logprobs as JSON, a row a line, after a line of its attributes.
 * usage: dump_logprobs FILE.h5
 * Log-probabilities are printed as nine digits, from which an f32 comes back; null where there is
 * none. Hidden rows, if the file has them, are printed likewise.
 * Exit status: 0, or 2 if the file cannot be read. Called by distill.py and hidden.py. */
#include <hdf5.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Reads a whole dataset as elements of a type in memory; exits if it cannot. */
static void *read_set(hid_t file, const char *name, hid_t type, size_t *n)
{
    hsize_t dims[3] = {0, 1, 1};
    const hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
    if (set < 0) exit(2);
    const hid_t space = H5Dget_space(set);
    if (H5Sget_simple_extent_dims(space, dims, NULL) < 1) exit(2);
    *n = (size_t)(dims[0] * dims[1] * dims[2]);
    void *values = malloc((*n + 1) * H5Tget_size(type));
    if (values == NULL || H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0) exit(2);
    H5Sclose(space);
    H5Dclose(set);
    return values;
}

static void read_attribute(hid_t object, const char *name, hid_t type, void *value)
{
    const hid_t a = H5Aopen(object, name, H5P_DEFAULT);
    if (a < 0 || H5Aread(a, type, value) < 0) exit(2);
    H5Aclose(a);
}

static void print_string(const char *s)
{
    printf("\"");
    for (; *s != '\0'; s++) printf(*s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
    printf("\"");
}

static void print_ints(const char *key, const int32_t *x, size_t n)
{
    printf(",\"%s\":[", key);
    for (size_t i = 0; i < n; i++) printf(i > 0 ? ",%d" : "%d", x[i]);
    printf("]");
}

static void print_floats(const char *key, const float *x, size_t n)
{
    printf(",\"%s\":[", key);
    for (size_t i = 0; i < n; i++) {
        if (i > 0) printf(",");
        if (isfinite(x[i]))
            printf("%.9g", (double)x[i]);
        else
            printf("null");
    }
    printf("]");
}

/* The hidden rows of the file; values NULL: none. */
struct hidden {
    float *values;
    int64_t *offsets;
    int32_t *firsts;
    size_t width; /* values of a token: layers times D */
};

static struct hidden read_hidden(hid_t file)
{
    struct hidden h = {.values = NULL};
    size_t n, n_rows;
    if (H5Lexists(file, "hidden", H5P_DEFAULT) <= 0) return h;
    h.values = read_set(file, "hidden", H5T_NATIVE_FLOAT, &n);
    h.offsets = read_set(file, "hidden_offsets", H5T_NATIVE_INT64, &n_rows);
    h.firsts = read_set(file, "hidden_first", H5T_NATIVE_INT32, &n_rows);
    h.width = h.offsets[n_rows] > 0 ? n / (size_t)h.offsets[n_rows] : 0;
    return h;
}

static void print_hidden(const struct hidden *h, size_t row)
{
    if (h->values == NULL) return;
    const size_t at = (size_t)h->offsets[row], end = (size_t)h->offsets[row + 1];
    printf(",\"hidden_first\":%d", h->firsts[row]);
    print_floats("hidden", h->values + at * h->width, (end - at) * h->width);
}

/* Prints the attribute `layers` of the hidden rows, with a comma before it. */
static void print_layers(hid_t file)
{
    char text[1024] = "";
    const hid_t set = H5Dopen2(file, "hidden", H5P_DEFAULT);
    const hid_t a = H5Aopen(set, "layers", H5P_DEFAULT), type = H5Aget_type(a);
    if (H5Tget_size(type) >= sizeof text || H5Aread(a, type, text) < 0) exit(2);
    printf(",\"layers\":\"%s\"", text);
    H5Tclose(type);
    H5Aclose(a);
    H5Dclose(set);
}

int main(int argc, char **argv)
{
    size_t n, n_rows;
    int64_t k, vocab, version, none = -1;
    double scale;
    if (argc != 2) return 2;
    const hid_t file = H5Fopen(argv[1], H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file < 0) return 2;
    const hid_t string = H5Tcopy(H5T_C_S1);
    H5Tset_size(string, H5T_VARIABLE);
    H5Tset_cset(string, H5T_CSET_UTF8);
    int32_t *tokens = read_set(file, "tokens", H5T_NATIVE_INT32, &n);
    int32_t *generated = read_set(file, "is_generated", H5T_NATIVE_INT32, &n);
    float *logprobs = read_set(file, "token_logprobs", H5T_NATIVE_FLOAT, &n);
    int32_t *ids = read_set(file, "top_ids", H5T_NATIVE_INT32, &n);
    float *tops = read_set(file, "top_logprobs", H5T_NATIVE_FLOAT, &n);
    int64_t *offsets = read_set(file, "row_offsets", H5T_NATIVE_INT64, &n_rows);
    int32_t *choices = read_set(file, "choice", H5T_NATIVE_INT32, &n_rows);
    char **names = read_set(file, "custom_id", string, &n_rows);
    const struct hidden hidden = read_hidden(file);
    const hid_t set = H5Dopen2(file, "top_logprobs", H5P_DEFAULT);
    read_attribute(file, "k", H5T_NATIVE_INT64, &k);
    read_attribute(file, "vocab_size", H5T_NATIVE_INT64, &vocab);
    read_attribute(file, "shoal_logprobs", H5T_NATIVE_INT64, &version);
    read_attribute(set, "scale", H5T_NATIVE_DOUBLE, &scale);
    if (H5Aexists(set, "none") > 0) read_attribute(set, "none", H5T_NATIVE_INT64, &none);
    for (size_t i = 0; i < n; i++) {
        const bool is_none = none >= 0 && tops[i] == (float)none;
        tops[i] = is_none ? -INFINITY : tops[i] * (float)scale;
    }
    printf("{\"k\":%d,\"vocab\":%d,\"version\":%d,\"scale\":%g", (int)k, (int)vocab, (int)version,
           scale);
    if (hidden.values != NULL) print_layers(file);
    printf("}\n");
    for (size_t r = 0; r < n_rows; r++) {
        const size_t at = (size_t)offsets[r], count = (size_t)(offsets[r + 1] - offsets[r]);
        printf("{\"choice\":%d,\"custom_id\":", choices[r]);
        print_string(names[r]);
        print_ints("tokens", tokens + at, count);
        print_ints("is_generated", generated + at, count);
        print_floats("token_logprobs", logprobs + at, count);
        print_ints("top_ids", ids + at * (size_t)k, count * (size_t)k);
        print_floats("top_logprobs", tops + at * (size_t)k, count * (size_t)k);
        print_hidden(&hidden, r);
        printf("}\n");
    }
    return 0;
}
