/* Datasets of strings as inputs: fixed and variable strings, other types and shapes, damage. */
#include "serve/input/dataset_lines.h"

#include "serve/input/line_reader.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <hdf5.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_MANY = 3000, FIXED_BYTES = 7 };

static char path[UTIL_PATH_MAX];

/* Writes a dataset of n elements in chunks of at most 50, with checksums if its type
 * allows them. */
static void add_strings(hid_t file, const char *name, hid_t type, hsize_t n, const void *rows)
{
    const hsize_t chunk = n < 50 ? n : 50;
    const hid_t space = H5Screate_simple(1, &n, NULL), how = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(how, 1, &chunk);
    if (H5Tis_variable_str(type) == 0) H5Pset_fletcher32(how); /* not for variable strings */
    const hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, how, H5P_DEFAULT);
    CU_ASSERT_FATAL(set >= 0);
    CU_ASSERT(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows) >= 0);
    H5Dclose(set);
    H5Pclose(how);
    H5Sclose(space);
}

static hid_t string_type(size_t n_bytes, H5T_str_t padding)
{
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, n_bytes);
    H5Tset_strpad(type, padding);
    return type;
}

/* Writes the i-th of many strings of 0 to 299 bytes, and returns its length. */
static size_t make_string(size_t i, char text[300])
{
    const size_t n = i * 7919 % 300;
    for (size_t k = 0; k < n; k++) text[k] = (char)('a' + (i + k * k) % 26);
    text[n] = '\0';
    return n;
}

static void add_many(hid_t file)
{
    static char texts[N_MANY][300];
    static const char *rows[N_MANY];
    for (size_t i = 0; i < N_MANY; i++) {
        make_string(i, texts[i]);
        rows[i] = texts[i];
    }
    const hid_t type = string_type(H5T_VARIABLE, H5T_STR_NULLTERM);
    add_strings(file, "many", type, N_MANY, rows);
    H5Tclose(type);
}

static void setup(void)
{
    static const char fixed[] = "seven b"
                                "a\0\0\0\0\0\0"
                                "\0......"
                                "e\xC3\xA9\xFF\n\"\0";
    static const char padded[] = "two    "
                                 " a b   "
                                 "       ";
    static const char *variable[] = {"line one\nline two", "", "\"quoted\" \\ \t"};
    static const int numbers[6] = {1, 2, 3, 4, 5, 6};
    util_file_create(path, "", 0);
    char h5[UTIL_PATH_MAX];
    CU_ASSERT_FATAL(snprintf(h5, sizeof h5, "%s.h5", path) < UTIL_PATH_MAX);
    util_file_remove(path);
    strcpy(path, h5);
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    CU_ASSERT_FATAL(file >= 0);
    const hid_t null_padded = string_type(FIXED_BYTES, H5T_STR_NULLPAD);
    const hid_t space_padded = string_type(FIXED_BYTES, H5T_STR_SPACEPAD);
    const hid_t any = string_type(H5T_VARIABLE, H5T_STR_NULLTERM);
    H5Gclose(H5Gcreate2(file, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    add_strings(file, "group/fixed", null_padded, 4, fixed);
    add_strings(file, "padded", space_padded, 3, padded);
    add_strings(file, "variable", any, 3, variable);
    add_strings(file, "numbers", H5T_NATIVE_INT, 6, numbers);
    const hsize_t dims[2] = {2, 3};
    const hid_t square = H5Screate_simple(2, dims, NULL);
    H5Dclose(
        H5Dcreate2(file, "square", null_padded, square, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Sclose(square);
    add_many(file);
    H5Tclose(any);
    H5Tclose(space_padded);
    H5Tclose(null_padded);
    H5Fclose(file);
}

/* Opens "FILE.h5:/NAME". */
static struct status open_set(const char *name, struct line_reader **r)
{
    char input[2 * UTIL_PATH_MAX];
    snprintf(input, sizeof input, "%s:/%s", path, name);
    return line_reader_create(input, 0, r);
}

static void check_lines(const char *name, const char *const *lines, size_t n)
{
    struct line_reader *r = NULL;
    struct line line;
    CU_ASSERT_EQUAL_FATAL(open_set(name, &r).code, STATUS_OK);
    CU_ASSERT_EQUAL(line_reader_check(r).code, STATUS_OK);
    CU_ASSERT(line_reader_is_repeatable(r) && line_reader_is_file(r, path));
    for (size_t i = 0; i < n; i++) {
        CU_ASSERT_EQUAL_FATAL(line_reader_next(r, true, &line).code, STATUS_OK);
        CU_ASSERT_FATAL(line.kind == LINE_OK && line.n == strlen(lines[i]));
        CU_ASSERT_EQUAL(memcmp(line.text, lines[i], line.n), 0);
    }
    CU_ASSERT_EQUAL_FATAL(line_reader_next(r, true, &line).code, STATUS_OK);
    CU_ASSERT_EQUAL(line.kind, LINE_END);
    CU_ASSERT_EQUAL(line_reader_done(r), line_reader_size(r));
    line_reader_destroy(&r);
}

static void strings_are_prompts(void)
{
    static const char *const fixed[] = {"{\"prompt\":\"seven b\"}", "{\"prompt\":\"a\"}",
                                        "{\"prompt\":\"\"}",
                                        "{\"prompt\":\"e\xC3\xA9\xEF\xBF\xBD\\n\\\"\"}"};
    static const char *const padded[] = {"{\"prompt\":\"two\"}", "{\"prompt\":\" a b\"}",
                                         "{\"prompt\":\"\"}"};
    static const char *const variable[] = {"{\"prompt\":\"line one\\nline two\"}",
                                           "{\"prompt\":\"\"}",
                                           "{\"prompt\":\"\\\"quoted\\\" \\\\ \\t\"}"};
    setup();
    check_lines("group/fixed", fixed, 4);
    check_lines("padded", padded, 3);
    check_lines("variable", variable, 3);
    util_file_remove(path);
}

/* The three parts of a dataset have each string once, in order. */
static void parts_have_each_string_once(void)
{
    char text[300], wanted[330];
    size_t at = 0;
    setup();
    for (uint32_t k = 1; k <= 3; k++) {
        struct input_part part = {.index = k, .n = 3};
        struct line_reader *r = NULL;
        struct line line;
        char input[2 * UTIL_PATH_MAX];
        const char *name = input;
        snprintf(input, sizeof input, "%s:/many", path);
        const struct input_files files = input_files_one(&name);
        CU_ASSERT_EQUAL_FATAL(input_part_find(&files, &part).code, STATUS_OK);
        CU_ASSERT_EQUAL_FATAL(line_reader_create(input, 0, &r).code, STATUS_OK);
        CU_ASSERT_EQUAL_FATAL(line_reader_set_part(r, &part).code, STATUS_OK);
        for (;;) {
            CU_ASSERT_EQUAL_FATAL(line_reader_next(r, true, &line).code, STATUS_OK);
            if (line.kind == LINE_END) break;
            CU_ASSERT_EQUAL(line.number, at + 1);
            make_string(at++, text);
            snprintf(wanted, sizeof wanted, "{\"prompt\":\"%s\"}", text);
            CU_ASSERT_FATAL(line.n == strlen(wanted));
            CU_ASSERT_EQUAL(memcmp(line.text, wanted, line.n), 0);
        }
        CU_ASSERT(k < 3 ? at > 500 * k && at < N_MANY : at == N_MANY);
        line_reader_destroy(&r);
    }
    util_file_remove(path);
}

/* The fraction counts the rows that were returned, not the rows that were read from the file. */
static void the_fraction_follows_the_lines(void)
{
    char name[2 * UTIL_PATH_MAX], bytes[1000];
    struct dataset_lines *d = NULL;
    size_t n = 1, n_lines = 0;
    double largest = 0;
    setup();
    snprintf(name, sizeof name, "%s:/many", path);
    CU_ASSERT_EQUAL_FATAL(dataset_lines_open(name, &d).code, STATUS_OK);
    CU_ASSERT_EQUAL(dataset_lines_done(d), 0);
    while (n > 0) {
        CU_ASSERT_EQUAL_FATAL(dataset_lines_read(d, bytes, sizeof bytes, &n).code, STATUS_OK);
        for (size_t i = 0; i < n; i++) n_lines += bytes[i] == '\n';
        const double off = fabs(dataset_lines_done(d) - (double)n_lines / N_MANY);
        if (off > largest) largest = off;
    }
    CU_ASSERT(n_lines == N_MANY && dataset_lines_done(d) == 1);
    CU_ASSERT(largest < 0.01);
    dataset_lines_close(&d);
    util_file_remove(path);
}

static void expect_refused(const char *name, const char *words)
{
    struct line_reader *r = NULL;
    const struct status st = open_set(name, &r);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, words));
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, path));
    CU_ASSERT_PTR_NULL(r);
}

static void other_datasets_are_refused(void)
{
    struct line_reader *r = NULL;
    setup();
    expect_refused("numbers", "expected strings, found integers");
    expect_refused("square", "expected a dataset with one dimension, found 2");
    expect_refused("missing", "the dataset cannot be opened");
    expect_refused("group", "the dataset cannot be opened");
    CU_ASSERT_EQUAL_FATAL(line_reader_create(path, 0, &r).code, STATUS_OK);
    const struct status st = line_reader_check(r); /* the file itself */
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "found an HDF5 file"));
    line_reader_destroy(&r);
    FILE *f = fopen(path, "wb");
    fputs("{\"prompt\":\"no HDF5\"}\n", f);
    fclose(f);
    expect_refused("many", "no HDF5 file that can be read");
    util_file_remove(path);
    expect_refused("many", "No such file");
}

/* A changed byte in a chunk with a checksum is an error that names the rows. */
static void damaged_rows_are_named(void)
{
    struct line_reader *r = NULL;
    struct line line;
    setup();
    FILE *f = fopen(path, "r+b");
    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    char *bytes = calloc(1, 1 << 22);
    const size_t n = fread(bytes, 1, 1 << 22, f);
    char *found = memmem(bytes, n, "seven ba", 8);
    CU_ASSERT_PTR_NOT_NULL_FATAL(found);
    fseek(f, found - bytes, SEEK_SET);
    fputc('S', f);
    fclose(f);
    free(bytes);
    CU_ASSERT_EQUAL_FATAL(open_set("group/fixed", &r).code, STATUS_OK);
    const struct status st = line_reader_next(r, true, &line);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "rows 1 to 4 could not be read"));
    line_reader_destroy(&r);
    util_file_remove(path);
}

static void names_of_datasets(void)
{
    static const struct {
        const char *path;
        size_t n_file; /* 0: no dataset */
    } names[] = {{"a.h5:/x", 4}, {"a.HDF5:/x/y", 6}, {"b:/a.h5:/x", 7}, {"a.h5", 0},
                 {"a.h5:x", 0},  {".h5:/x", 0},      {"a.txt:/x", 0},   {"-", 0}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t n = 0;
        CU_ASSERT_EQUAL(dataset_lines_split(names[i].path, &n), names[i].n_file > 0);
        if (names[i].n_file > 0) CU_ASSERT_EQUAL(n, names[i].n_file);
    }
}

void suite_dataset_lines(CU_pSuite suite);
void suite_dataset_lines(CU_pSuite suite)
{
    CU_add_test(suite, "strings are prompts", strings_are_prompts);
    CU_add_test(suite, "parts have each string once", parts_have_each_string_once);
    CU_add_test(suite, "the fraction follows the lines", the_fraction_follows_the_lines);
    CU_add_test(suite, "other datasets are refused", other_datasets_are_refused);
    CU_add_test(suite, "damaged rows are named", damaged_rows_are_named);
    CU_add_test(suite, "names of datasets", names_of_datasets);
}
