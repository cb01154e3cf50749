/* The packed copy of experts: what was written comes back, and files that are cut, changed or
 * another checkpoint's are refused. */
#include "checkpoint/file/expert_file.h"
#include "unit/util_ckpt.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 3, PARTS = 2, EXPERTS = 5, UNIT = EXPERT_FILE_ALIGN };

/* The bytes of an expert's part, by layer * PARTS + part; the middle layer is dense. */
static const uint64_t sizes[LAYERS * PARTS] = {2 * UNIT, UNIT, 0, 0, UNIT, 3 * UNIT};

static struct expert_file_shape shape_of_test(void)
{
    return (struct expert_file_shape){.digest = {11, 22},
                                      .n_layers = LAYERS,
                                      .n_experts = EXPERTS,
                                      .n_parts = PARTS,
                                      .cut = EXPERT_CUT_OUTPUTS,
                                      .expert_bytes = sizes};
}

/* Returns the bytes of experts [first, first + n) of a layer's part, i = layer * PARTS + part. */
static char *bytes_of(uint32_t i, uint32_t first, uint32_t n)
{
    char *bytes = aligned_alloc(UNIT, n * sizes[i]);
    for (uint32_t e = 0; e < n; e++)
        for (size_t k = 0; k < sizes[i]; k++)
            bytes[e * sizes[i] + k] = (char)(17 * i + 5 * (first + e) + k * k / 7);
    return bytes;
}

static void write_part(struct expert_file_writer *w, uint32_t i, uint32_t first, uint32_t n)
{
    char *bytes = bytes_of(i, first, n);
    CU_ASSERT_EQUAL(expert_file_write(w, i / PARTS, i % PARTS, first, n, bytes).code, STATUS_OK);
    free(bytes);
}

static const char *write_copy(const char *name)
{
    const char *path = scratch(name);
    const struct expert_file_shape shape = shape_of_test();
    struct expert_file_writer *w = NULL;
    CU_ASSERT_EQUAL_FATAL(expert_file_create(path, &shape, &w).code, STATUS_OK);
    for (uint32_t i = 0; i < LAYERS * PARTS; i++) {
        if (sizes[i] == 0) continue;
        write_part(w, i, 0, 3);
        write_part(w, i, 3, 2);
    }
    CU_ASSERT_EQUAL(expert_file_finish(w).code, STATUS_OK);
    expert_file_writer_destroy(&w);
    return path;
}

/* Opens the copy and reads and compares all experts. Returns the first failure. */
static struct status read_copy(const char *path, const struct expert_file_shape *shape)
{
    struct expert_file *f = NULL;
    TRY(expert_file_open(path, shape, &f));
    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    struct status st = status_ok();
    for (uint32_t i = 0; i < LAYERS * PARTS * EXPERTS && !status_failed(&st); i++) {
        const uint32_t part = i / EXPERTS, expert = i % EXPERTS;
        if (sizes[part] == 0) continue;
        const struct expert_file_place at = expert_file_find(f, part / PARTS, part % PARTS, expert);
        char *got = aligned_alloc(UNIT, sizes[part]), *want = bytes_of(part, expert, 1);
        CU_ASSERT_EQUAL(at.offset % UNIT, 0);
        CU_ASSERT_EQUAL(at.n_bytes, sizes[part]);
        st = expert_file_read(f, &at, got);
        CU_ASSERT(status_failed(&st) || memcmp(got, want, sizes[part]) == 0);
        free(got);
        free(want);
    }
    expert_file_close(&f);
    return st;
}

static void what_was_written_comes_back(void)
{
    const struct expert_file_shape shape = shape_of_test();
    const char *path = write_copy("whole.experts");
    CU_ASSERT_EQUAL(read_copy(path, &shape).code, STATUS_OK);
    struct expert_file *f = NULL;
    CU_ASSERT_EQUAL(expert_file_open(scratch("none.experts"), &shape, &f).code, STATUS_OK);
    CU_ASSERT_PTR_NULL(f);
    scratch_clear();
}

static void an_unfinished_copy_leaves_nothing(void)
{
    const struct expert_file_shape shape = shape_of_test();
    const char *path = scratch("half.experts"), *temporary = scratch("half.experts.tmp");
    struct expert_file_writer *w = NULL;
    CU_ASSERT_EQUAL_FATAL(expert_file_create(path, &shape, &w).code, STATUS_OK);
    CU_ASSERT_EQUAL(access(temporary, F_OK), 0);
    write_part(w, 0, 0, 3);
    expert_file_writer_destroy(&w);
    CU_ASSERT_NOT_EQUAL(access(temporary, F_OK), 0);
    CU_ASSERT_NOT_EQUAL(access(path, F_OK), 0);
    scratch_clear();
}

static void refused(const char *path, const struct expert_file_shape *shape, const char *word)
{
    const struct status st = read_copy(path, shape);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, word));
    if (strstr(st.text, word) == NULL) printf("\"%s\" lacks \"%s\"\n", st.text, word);
}

static void other_copies_are_refused(void)
{
    const char *path = write_copy("other.experts");
    struct expert_file_shape shape = shape_of_test();
    shape.digest.high++;
    refused(path, &shape, "another checkpoint");
    shape = shape_of_test();
    shape.digest.low++;
    refused(path, &shape, "another checkpoint");
    shape = shape_of_test();
    shape.cut = EXPERT_CUT_INPUTS;
    refused(path, &shape, "cut another way");
    shape = shape_of_test();
    uint64_t longer[LAYERS * PARTS];
    memcpy(longer, sizes, sizeof longer);
    longer[0] = sizes[1];
    longer[1] = sizes[0]; /* the same bytes in all */
    shape.expert_bytes = longer;
    refused(path, &shape, "index");
    shape = shape_of_test();
    put_file(scratch("text.experts"), "{\"a\": 1}", 8);
    refused(scratch("text.experts"), &shape, "it ends at byte 8");
    scratch_clear();
}

static void cut_copies_are_refused(void)
{
    const struct expert_file_shape shape = shape_of_test();
    size_t n;
    char *bytes = get_file(write_copy("cut.experts"), &n);
    for (size_t at = 0; at < n; at += at < 2 * UNIT ? 61 : UNIT - 1) {
        put_file(scratch("cut.experts"), bytes, at);
        refused(scratch("cut.experts"), &shape, "cut");
    }
    free(bytes);
    scratch_clear();
}

/* A flipped bit is noticed anywhere but in the padding behind the header and behind the index. */
static void flipped_bits_are_noticed(void)
{
    const struct expert_file_shape shape = shape_of_test();
    size_t n;
    char *bytes = get_file(write_copy("flip.experts"), &n);
    const size_t header = 80, index = LAYERS * PARTS * (1 + EXPERTS) * 8;
    for (size_t at = 0; at < n; at += at < UNIT + index ? 1 : 509) {
        const bool is_padding =
            (at >= header && at < UNIT) || (at >= UNIT + index && at < 2 * UNIT);
        bytes[at] ^= 4;
        put_file(scratch("flip.experts"), bytes, n);
        const struct status st = read_copy(scratch("flip.experts"), &shape);
        CU_ASSERT_EQUAL(st.code, is_padding ? STATUS_OK : STATUS_INPUT);
        bytes[at] ^= 4;
    }
    free(bytes);
    scratch_clear();
}

void suite_expert_file(CU_pSuite suite);
void suite_expert_file(CU_pSuite suite)
{
    CU_add_test(suite, "what was written comes back", what_was_written_comes_back);
    CU_add_test(suite, "an unfinished copy leaves nothing", an_unfinished_copy_leaves_nothing);
    CU_add_test(suite, "other copies are refused", other_copies_are_refused);
    CU_add_test(suite, "cut copies are refused", cut_copies_are_refused);
    CU_add_test(suite, "flipped bits are noticed", flipped_bits_are_noticed);
}
