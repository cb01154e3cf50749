/* The safetensors reader with small files made here: valid files are read, hostile ones are refused
 * with an error. */
#include "checkpoint/convert/safetensors.h"
#include "unit/util_ckpt.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Writes a file: the header's length, the header, n_data bytes 0, 1, 2, ... */
static void file_put(const char *name, const char *header, size_t n_data)
{
    const size_t n = strlen(header);
    unsigned char *bytes = calloc(8 + n + n_data, 1);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)n >> 8 * i);
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < n_data; i++) bytes[8 + n + i] = (unsigned char)i;
    put_file(scratch(name), bytes, 8 + n + n_data);
    free(bytes);
}

static const char sound[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                            "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
                            "\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
                            "\"c\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[28,30]}}   ";

static void a_sound_file_is_read(void)
{
    struct safetensors *s = NULL;
    file_put("model.safetensors", sound, 30);
    CU_ASSERT_EQUAL_FATAL(safetensors_open(scratch("."), &s).code, STATUS_OK);
    CU_ASSERT_EQUAL(safetensors_count(s), 3);
    const struct safetensors_tensor *b = safetensors_find(s, "b");
    CU_ASSERT_PTR_NOT_NULL_FATAL(b);
    CU_ASSERT(b->dtype == DTYPE_F32 && b->n_dims == 2 && b->dims[1] == 3 && b->n_bytes == 24);
    unsigned char bytes[8];
    CU_ASSERT_EQUAL(safetensors_read(s, b, 16, 8, bytes).code, STATUS_OK);
    CU_ASSERT(bytes[0] == 20 && bytes[7] == 27);
    CU_ASSERT_EQUAL(safetensors_read(s, b, 20, 8, bytes).code, STATUS_BUG);
    CU_ASSERT_STRING_EQUAL(safetensors_at(s, 0)->name, "a");
    CU_ASSERT_EQUAL(safetensors_at(s, 2)->n_dims, 0);
    CU_ASSERT_PTR_NULL(safetensors_find(s, "d"));
    safetensors_close(&s);
    scratch_clear();
}

static void a_file_cut_at_any_byte_is_refused(void)
{
    size_t n;
    file_put("a.safetensors", sound, 30);
    char *bytes = get_file(scratch("a.safetensors"), &n);
    for (size_t cut = 0; cut < n; cut++) {
        struct safetensors *s = NULL;
        put_file(scratch("cut.safetensors"), bytes, cut);
        const struct status st = safetensors_open(scratch("cut.safetensors"), &s);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "cut.safetensors"));
        safetensors_close(&s);
    }
    free(bytes);
    scratch_clear();
}

struct bad_header {
    const char *header;
    size_t n_data;
    const char *says;
};

#define T(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct bad_header bad_headers[] = {
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", 8, "duplicate"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[2,6]") "}", 6, "overlaps"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[6,10]") "}", 10, "hole"},
    {"{" T("a", "F32", "[1]", "[0,4]") "}", 8, "its tensors end at byte"},
    {"{" T("a", "F32", "[1]", "[4,8]") "}", 8, "hole"},
    {"{" T("a", "F32", "[2]", "[0,8]") "}", 4, "data_offsets [0, 8)"},
    {"{" T("a", "F32", "[2]", "[0,4]") "}", 4, "expected 8 bytes"},
    {"{" T("a", "F32", "[1]", "[4,0]") "}", 4, "data_offsets [4, 0)"},
    {"{" T("a", "F32", "[1]", "[-4,0]") "}", 4, "data_offsets [-4, 0)"},
    {"{" T("a", "F32", "[1]", "[0]") "}", 4, "expected two integers"},
    {"{" T("a", "F32", "[1]", "[0,4.0]") "}", 4, "expected two integers"},
    {"{" T("a", "F32", "[1]", "[0,99999999999999999999]") "}", 4, "a.safetensors"},
    {"{" T("a", "F32", "[-1]", "[0,4]") "}", 4, "shape"},
    {"{" T("a", "F32", "[4294967296,4294967296,2]", "[0,0]") "}", 0, "overflows"},
    {"{" T("a", "F32", "[4611686018427387905]", "[0,4]") "}", 4, "overflows"},
    {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "at most 8"},
    {"{" T("a", "F64", "[1]", "[0,8]") "}", 8, "found F64"},
    {"{" T("", "F32", "[1]", "[0,4]") "}", 4, "bad name"},
    {"{\"a\":3}", 0, "dtype"},
    {"[]", 0, "expected an object"},
    {"{", 0, "a.safetensors"},
    {"{\"a\\u0000b\":{}}", 0, "a.safetensors"},
};

static void hostile_headers_are_refused_by_name(void)
{
    for (size_t i = 0; i < sizeof bad_headers / sizeof bad_headers[0]; i++) {
        struct safetensors *s = NULL;
        file_put("a.safetensors", bad_headers[i].header, bad_headers[i].n_data);
        const struct status st = safetensors_open(scratch("a.safetensors"), &s);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "a.safetensors"));
        if (strstr(st.text, bad_headers[i].says) == NULL) {
            fprintf(stderr, "%zu: expected '%s', found '%s'\n", i, bad_headers[i].says, st.text);
            CU_FAIL("another sentence");
        }
        safetensors_close(&s);
    }
    /* header lengths beyond the file, beyond the limit, and the largest possible */
    const unsigned char lengths[3][10] = {{3, 0, 0, 0, 0, 0, 0, 0, '{', '}'},
                                          {1, 0xE1, 0xF5, 5, 0, 0, 0, 0, '{', '}'},
                                          {255, 255, 255, 255, 255, 255, 255, 255, '{', '}'}};
    for (int i = 0; i < 3; i++) {
        struct safetensors *s = NULL;
        put_file(scratch("a.safetensors"), lengths[i], sizeof lengths[i]);
        const struct status st = safetensors_open(scratch("a.safetensors"), &s);
        CU_ASSERT(st.code == STATUS_INPUT && strstr(st.text, "a header of") != NULL);
    }
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
    struct safetensors *none = NULL;
    put_file(scratch("a.safetensors"), pointer, sizeof pointer - 1);
    const struct status st = safetensors_open(scratch("a.safetensors"), &none);
    CU_ASSERT(st.code == STATUS_INPUT && strstr(st.text, "git lfs pull") != NULL);
    scratch_clear();
}

static struct status sharded(const char *map)
{
    struct safetensors *s = NULL;
    char index[1024];
    snprintf(index, sizeof index, "{\"metadata\":{},\"weight_map\":%s}", map);
    put_file(scratch("model.safetensors.index.json"), index, strlen(index));
    const struct status st = safetensors_open(scratch("."), &s);
    if (!status_failed(&st)) CU_ASSERT_EQUAL(safetensors_count(s), 2);
    safetensors_close(&s);
    return st;
}

static void shards_are_plain_files_that_hold_what_the_index_says(void)
{
    file_put("one.safetensors", "{" T("a", "F32", "[1]", "[0,4]") "}", 4);
    file_put("two.safetensors", "{" T("b", "F32", "[1]", "[0,4]") "}", 4);
    file_put("twin.safetensors", "{" T("a", "F32", "[1]", "[0,4]") "}", 4);
    CU_ASSERT_EQUAL_FATAL(mkfifo(scratch("fifo.safetensors"), 0600), 0);
    CU_ASSERT_EQUAL_FATAL(mkdir(scratch("folder.safetensors"), 0700), 0);
    static const char *const good = "{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}";
    static const char *const bad[][2] = {
        {"{\"a\":\"../one.safetensors\"}", "plain file name"},
        {"{\"a\":\"/etc/passwd\"}", "plain file name"},
        {"{\"a\":\"..\"}", "plain file name"},
        {"{\"a\":\"\"}", "plain file name"},
        {"{\"a\":7}", "plain file name"},
        {"{\"a\":\"x\\u0000y\"}", "plain file name"},
        {"{\"a\":\"fifo.safetensors\"}", "expected a regular file"},
        {"{\"a\":\"folder.safetensors\"}", "expected a regular file"},
        {"{\"a\":\"none.safetensors\"}", "No such file"},
        {"{\"z\":\"one.safetensors\"}", "tensor 'z' is not in one.safetensors"},
        {"{\"a\":\"one.safetensors\",\"b\":\"one.safetensors\"}", "tensor 'b' is not in"},
        {"{\"a\":\"one.safetensors\",\"b\":\"twin.safetensors\"}", "stands in two shards"},
        {"{}", "weight_map"},
        {"[]", "weight_map"},
    };
    CU_ASSERT_EQUAL(sharded(good).code, STATUS_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct status st = sharded(bad[i][0]);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        if (strstr(st.text, bad[i][1]) == NULL) {
            fprintf(stderr, "expected '%s', found '%s'\n", bad[i][1], st.text);
            CU_FAIL("another sentence");
        }
    }
    file_put("two.safetensors",
             "{" T("b", "F32", "[1]", "[0,4]") "," T("extra", "F32", "[1]", "[4,8]") "}", 8);
    const struct status st = sharded(good);
    CU_ASSERT(st.code == STATUS_INPUT && strstr(st.text, "'extra'") != NULL);
    scratch_clear();
}

void suite_safetensors(CU_pSuite suite);
void suite_safetensors(CU_pSuite suite)
{
    CU_add_test(suite, "a sound file is read", a_sound_file_is_read);
    CU_add_test(suite, "a file cut at any byte is refused", a_file_cut_at_any_byte_is_refused);
    CU_add_test(suite, "hostile headers are refused by name", hostile_headers_are_refused_by_name);
    CU_add_test(suite, "shards are plain files that hold what the index says",
                shards_are_plain_files_that_hold_what_the_index_says);
}
