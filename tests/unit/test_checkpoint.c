/* Checkpoint files: a file reads back as written; the same input makes the same bytes; wrong use of
 * the writer is an error; and a failed write leaves no file. */
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/file/ckpt.h"
#include "checkpoint/file/ckpt_writer.h"
#include "unit/util_ckpt.h"

#include <CUnit/CUnit.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static bool says(const struct status *st, const char *part)
{
    if (strstr(st->text, part) != NULL) return true;
    fprintf(stderr, "expected '%s' in '%s'\n", part, st->text);
    return false;
}

static void what_is_written_is_read(void)
{
    const char *path = scratch("a.h5");
    struct status st = small_checkpoint(path, 1);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    struct ckpt *c = NULL;
    st = ckpt_open(path, &c);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    CU_ASSERT_STRING_EQUAL(ckpt_source(c), "a test");
    CU_ASSERT_STRING_EQUAL(ckpt_chat_template(c, NULL), "{{ messages }}");
    CU_ASSERT_PTR_NULL(ckpt_generation_config_json(c, NULL));
    CU_ASSERT_EQUAL(ckpt_tensor_count(c), 7);
    const struct ckpt_tensor *t = ckpt_find(c, "model.layers.0.mlp.experts.up_proj.weight");
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    CU_ASSERT(t->dtype == DTYPE_F16 && t->n_dims == 3 && t->dims[0] == 4 && t->dims[1] == 6);
    CU_ASSERT(t->n_rows == 24 && t->n_cols == 8 && t->n_bytes == 384 && t->leaf_elems == 0);
    CU_ASSERT(t->rows_per_block == 6 && t->n_blocks == 4);
    t = ckpt_find(c, "model.layers.1.mlp.down_proj.weight");
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    CU_ASSERT(t->dtype == DTYPE_BF16 && t->leaf_elems == 32 && t->grid_bits == 33);
    CU_ASSERT_PTR_NULL(ckpt_find(c, "model.layers.1"));
    CU_ASSERT_PTR_NULL(ckpt_find(c, "zzz"));
    size_t n = 0;
    const float *inv_freq = ckpt_rope_inv_freq(c, &n);
    CU_ASSERT_EQUAL_FATAL(n, 2);
    CU_ASSERT(inv_freq[0] == 1.0f && inv_freq[1] == 0.01f);
    ckpt_close(&c);
    CU_ASSERT_PTR_NULL(c);
    scratch_clear();
}

static void the_same_input_makes_the_same_bytes(void)
{
    size_t n1, n2, n3;
    small_checkpoint(scratch("a.h5"), 7);
    nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 100000000}, NULL); /* the bytes must not
                                                                               contain the time */
    small_checkpoint(scratch("b.h5"), 7);
    small_checkpoint(scratch("c.h5"), 8);
    char *a = get_file(scratch("a.h5"), &n1);
    char *b = get_file(scratch("b.h5"), &n2);
    char *c = get_file(scratch("c.h5"), &n3);
    CU_ASSERT(n1 > 0 && n1 == n2 && memcmp(a, b, n1) == 0);
    CU_ASSERT(n1 == n3 && memcmp(a, c, n1) != 0);
    struct ckpt *open_a = NULL, *open_c = NULL;
    ckpt_open(scratch("a.h5"), &open_a);
    ckpt_open(scratch("c.h5"), &open_c);
    CU_ASSERT_FATAL(open_a != NULL && open_c != NULL);
    CU_ASSERT(ckpt_digest(open_a).low != ckpt_digest(open_c).low);
    ckpt_close(&open_a);
    ckpt_close(&open_c);
    free(a);
    free(b);
    free(c);
    scratch_clear();
}

static size_t files_in_scratch(void)
{
    size_t n = 0;
    DIR *folder = opendir(scratch("."));
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) n += entry->d_name[0] != '.';
    closedir(folder);
    return n;
}

static struct status write_two(const struct ckpt_tensor_spec *first, uint64_t n_rows,
                               const struct ckpt_tensor_spec *second)
{
    static const float rows[64];
    struct ckpt_writer *w = NULL;
    struct status st = ckpt_writer_create(scratch("w.h5"), "misuse", &w);
    if (!status_failed(&st)) st = ckpt_writer_config(w, "{}", 2);
    if (!status_failed(&st)) st = ckpt_writer_tensor(w, first);
    if (!status_failed(&st)) st = ckpt_writer_rows(w, rows, n_rows);
    if (!status_failed(&st) && second != NULL) st = ckpt_writer_tensor(w, second);
    if (!status_failed(&st)) return ckpt_writer_finish(&w);
    ckpt_writer_destroy(&w);
    return st;
}

static void misuse_of_the_writer_is_a_sentence_and_leaves_nothing(void)
{
    const struct ckpt_tensor_spec a = {
        .name = "a.b", .dtype = DTYPE_F32, .n_dims = 2, .dims = {2, 4}};
    const struct ckpt_tensor_spec below = {
        .name = "a.b.c", .dtype = DTYPE_F32, .n_dims = 1, .dims = {4}};
    const struct ckpt_tensor_spec above = {
        .name = "a", .dtype = DTYPE_F32, .n_dims = 1, .dims = {4}};
    const struct ckpt_tensor_spec slash = {
        .name = "a/b", .dtype = DTYPE_F32, .n_dims = 1, .dims = {4}};
    const struct ckpt_tensor_spec dots = {
        .name = "a..b", .dtype = DTYPE_F32, .n_dims = 1, .dims = {4}};
    const struct ckpt_tensor_spec empty = {
        .name = "e", .dtype = DTYPE_F32, .n_dims = 2, .dims = {0, 4}};
    const struct ckpt_tensor_spec wide = {
        .name = "e", .dtype = DTYPE_F32, .n_dims = 1, .dims = {1 << 25}};
    const struct ckpt_tensor_spec huge = {
        .name = "e", .dtype = DTYPE_F32, .n_dims = 3, .dims = {1ull << 40, 1ull << 40, 2}};
    struct status st = write_two(&a, 1, NULL);
    CU_ASSERT(st.code == STATUS_INPUT && says(&st, "tensor a.b: 1 rows came, expected 2"));
    st = write_two(&a, 3, NULL);
    CU_ASSERT(st.code == STATUS_INPUT && says(&st, "more rows"));
    CU_ASSERT_EQUAL(write_two(&a, 2, &a).code, STATUS_IO);
    CU_ASSERT_EQUAL(write_two(&a, 2, &below).code, STATUS_IO);
    CU_ASSERT_EQUAL(write_two(&a, 2, &above).code, STATUS_IO);
    CU_ASSERT_EQUAL(write_two(&slash, 1, NULL).code, STATUS_INPUT);
    CU_ASSERT_EQUAL(write_two(&dots, 1, NULL).code, STATUS_INPUT);
    CU_ASSERT_EQUAL(write_two(&empty, 0, NULL).code, STATUS_INPUT);
    CU_ASSERT_EQUAL(write_two(&wide, 0, NULL).code, STATUS_INPUT);
    CU_ASSERT_EQUAL(write_two(&huge, 0, NULL).code, STATUS_INPUT);
    CU_ASSERT_EQUAL(files_in_scratch(), 0);
    st = write_two(&a, 2, NULL);
    CU_ASSERT_EQUAL(st.code, STATUS_OK);
    CU_ASSERT_EQUAL(files_in_scratch(), 1);
    struct ckpt_writer *w = NULL;
    st = ckpt_writer_create(scratch("no/such/folder.h5"), "x", &w);
    CU_ASSERT(st.code == STATUS_IO && says(&st, "folder.h5") && w == NULL);
    scratch_clear();
}

/* Writes many rows in portions that grow. A block has at most 8 MiB. Blocks divide an expert of
 * 600 rows, but not one whose number of rows is a prime number. */
static void large_tensors_stream_and_read_back(void)
{
    enum { N_ROWS = 3 * 600, N_COLS = 4096 };
    const struct ckpt_tensor_spec spec = {
        .name = "x.w", .dtype = DTYPE_F32, .n_dims = 3, .dims = {3, 600, N_COLS}};
    CU_ASSERT_EQUAL(ckpt_rows_per_block(&spec), 300);
    const struct ckpt_tensor_spec flat = {
        .name = "x.w", .dtype = DTYPE_F32, .n_dims = 2, .dims = {1800, N_COLS}};
    CU_ASSERT_EQUAL(ckpt_rows_per_block(&flat), 512);
    const struct ckpt_tensor_spec prime = {
        .name = "x.w", .dtype = DTYPE_F32, .n_dims = 3, .dims = {3, 100003, 64}};
    CU_ASSERT_EQUAL(ckpt_rows_per_block(&prime), 32768);
    float *all = malloc(sizeof(float) * N_ROWS * N_COLS);
    for (size_t i = 0; i < (size_t)N_ROWS * N_COLS; i++) all[i] = (float)i;
    struct ckpt_writer *w = NULL;
    struct status st = ckpt_writer_create(scratch("l.h5"), "large", &w);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    ckpt_writer_config(w, "{}", 2);
    ckpt_writer_tensor(w, &spec);
    for (size_t row = 0, n = 1; row < N_ROWS; row += n, n = n * 3 + 1) {
        if (n > N_ROWS - row) n = N_ROWS - row;
        CU_ASSERT_EQUAL(ckpt_writer_rows(w, all + row * N_COLS, n).code, STATUS_OK);
    }
    CU_ASSERT_EQUAL(ckpt_writer_finish(&w).code, STATUS_OK);
    struct ckpt *c = NULL;
    st = ckpt_open(scratch("l.h5"), &c);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    float *back = calloc((size_t)N_ROWS * N_COLS, sizeof(float));
    CU_ASSERT_EQUAL(ckpt_read_tensor(c, ckpt_tensor_at(c, 0), back).code, STATUS_OK);
    CU_ASSERT_EQUAL(memcmp(all, back, sizeof(float) * N_ROWS * N_COLS), 0);
    ckpt_close(&c);
    free(all);
    free(back);
    scratch_clear();
}

void suite_checkpoint(CU_pSuite suite);
void suite_checkpoint(CU_pSuite suite)
{
    CU_add_test(suite, "what is written is read", what_is_written_is_read);
    CU_add_test(suite, "the same input makes the same bytes", the_same_input_makes_the_same_bytes);
    CU_add_test(suite, "misuse of the writer is a sentence and leaves nothing",
                misuse_of_the_writer_is_a_sentence_and_leaves_nothing);
    CU_add_test(suite, "large tensors stream and read back", large_tensors_stream_and_read_back);
}
