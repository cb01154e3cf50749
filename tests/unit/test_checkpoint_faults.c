/* Damaged and hostile checkpoint files: cut at every byte, with flipped bits, or with a valid seal
 * but with features of HDF5 that shoal must not follow: links, external storage, aliases, other
 * layouts. */
#include "base/mem.h"
#include "checkpoint/file/ckpt.h"
#include "checkpoint/file/h5.h"
#include "checkpoint/file/logits_file.h"
#include "checkpoint/file/seal.h"
#include "unit/util_ckpt.h"

#include <CUnit/CUnit.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- damage ---- */

static void a_file_cut_at_any_byte_is_refused(void)
{
    size_t n;
    small_checkpoint(scratch("a.h5"), 1);
    char *bytes = get_file(scratch("a.h5"), &n);
    unsigned n_opened = 0, n_unnamed = 0;
    put_file(scratch("cut.h5"), bytes, n);
    for (size_t cut = n; cut-- > 0;) {
        uint64_t content;
        CU_ASSERT_EQUAL_FATAL(truncate(scratch("cut.h5"), (off_t)cut), 0);
        const struct status st = checkpoint_content(scratch("cut.h5"), &content);
        n_opened += st.code != STATUS_INPUT;
        n_unnamed += strstr(st.text, "cut.h5") == NULL;
    }
    CU_ASSERT_EQUAL(n_opened, 0);
    CU_ASSERT_EQUAL(n_unnamed, 0);
    free(bytes);
    scratch_clear();
}

/* The range of bit flips that one child process tries. */
struct flips {
    const char *path;
    char *bytes;
    size_t n;
    uint64_t content; /* of the undamaged file */
    size_t first, step, count;
};

enum { SOUND, SILENT };

static int flips_try(void *ctx)
{
    struct flips *f = ctx;
    char path[512];
    snprintf(path, sizeof path, "%s.flip", f->path);
    put_file(path, f->bytes, f->n);
    FILE *file = fopen(path, "r+b");
    for (size_t i = 0; i < f->count; i++) {
        const size_t bit = f->first + i * f->step;
        if (bit / 8 >= f->n) break;
        uint64_t content;
        fseek(file, (long)(bit / 8), SEEK_SET);
        fputc(f->bytes[bit / 8] ^ (1 << bit % 8), file);
        fflush(file);
        const struct status st = checkpoint_content(path, &content);
        if (!status_failed(&st) && content != f->content) return SILENT;
        fseek(file, (long)(bit / 8), SEEK_SET);
        fputc(f->bytes[bit / 8], file);
    }
    fclose(file);
    return SOUND;
}

/* Flips every 11th bit of the file, and every bit of its first and last 256 bytes. */
static void a_flipped_bit_is_found_or_harmless_and_never_hangs(void)
{
    struct flips f = {.path = scratch("a.h5"), .step = 11, .count = 400};
    CU_ASSERT_EQUAL_FATAL(small_checkpoint(f.path, 1).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(checkpoint_content(f.path, &f.content).code, STATUS_OK);
    f.bytes = get_file(f.path, &f.n);
    for (f.first = 0; f.first < f.n * 8; f.first += f.step * f.count) {
        CU_ASSERT_EQUAL(in_child(flips_try, &f, 60), SOUND);
    }
    f.step = 1;
    f.count = 256 * 8;
    f.first = 0;
    CU_ASSERT_EQUAL(in_child(flips_try, &f, 60), SOUND);
    f.first = (f.n - 256) * 8;
    CU_ASSERT_EQUAL(in_child(flips_try, &f, 60), SOUND);
    free(f.bytes);
    scratch_clear();
}

static void what_is_no_checkpoint_is_refused(void)
{
    struct ckpt *c = NULL;
    struct status st = ckpt_open(scratch("missing.h5"), &c);
    CU_ASSERT(st.code == STATUS_INPUT && c == NULL);
    CU_ASSERT_EQUAL(ckpt_open("/tmp", &c).code, STATUS_INPUT);
    CU_ASSERT_EQUAL_FATAL(mkfifo(scratch("fifo.h5"), 0600), 0);
    CU_ASSERT_EQUAL(ckpt_open(scratch("fifo.h5"), &c).code, STATUS_INPUT);
    put_file(scratch("empty.h5"), "", 0);
    CU_ASSERT_EQUAL(ckpt_open(scratch("empty.h5"), &c).code, STATUS_INPUT);
    char noise[4096];
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (char)(i * 37);
    put_file(scratch("noise.h5"), noise, sizeof noise);
    CU_ASSERT_EQUAL(ckpt_open(scratch("noise.h5"), &c).code, STATUS_INPUT);
    struct seal_extent none[1];
    CU_ASSERT_EQUAL(seal_append(scratch("noise.h5"), none, 0).code, STATUS_OK);
    st = ckpt_open(scratch("noise.h5"), &c);
    CU_ASSERT(st.code == STATUS_INPUT && strstr(st.text, "cannot be opened") != NULL);
    scratch_clear();
}

/* ---- a full disk ---- */

/* Writes with a limit of *limit bytes per file. Returns 0 if the write failed with an error and
 * left no file, 1 if the file was small enough, 2 otherwise. */
static int write_limited(void *ctx)
{
    const rlim_t *limit = ctx;
    const char *path = scratch("full.h5");
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){*limit, *limit});
    const struct status st = small_checkpoint(path, 1);
    if (!status_failed(&st)) return 1;
    DIR *folder = opendir(scratch("."));
    size_t n = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) n += entry->d_name[0] != '.';
    closedir(folder);
    return st.code == STATUS_IO && n == 0 ? 0 : 2;
}

static void a_write_that_does_not_fit_leaves_nothing(void)
{
    size_t n;
    small_checkpoint(scratch("whole.h5"), 1);
    free(get_file(scratch("whole.h5"), &n));
    unlink(scratch("whole.h5"));
    for (rlim_t limit = 0; limit < n; limit += 499) {
        CU_ASSERT_EQUAL(in_child(write_limited, &limit, 60), 0);
    }
    rlim_t limit = n - 1;
    CU_ASSERT_EQUAL(in_child(write_limited, &limit, 60), 0);
    limit = n;
    CU_ASSERT_EQUAL(in_child(write_limited, &limit, 60), 1);
    scratch_clear();
}

/* The rows of each line arrive in two pieces, as with chunks of a prompt. */
static struct status logits_write(const char *path)
{
    enum { LINES = 5, ROWS = 4, VOCAB = 300 };
    float rows[ROWS * VOCAB] = {1.0f};
    struct logits_file *f;
    TRY(logits_file_create(path, &f));
    struct status st = status_ok();
    for (uint64_t line = 1; line <= LINES && !status_failed(&st); line++) {
        st = logits_file_write(f, line, 0, rows, ROWS, VOCAB);
        if (!status_failed(&st)) st = logits_file_write(f, line, ROWS, rows, ROWS, VOCAB);
    }
    const struct status closed = logits_file_close(&f);
    return status_failed(&st) ? st : closed;
}

/* Returns 0 if the write failed with an error that names the file and the cause, 1 if the file was
 * small enough, 2 otherwise. */
static int logits_limited(void *ctx)
{
    const rlim_t *limit = ctx;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){*limit, *limit});
    const struct status st = logits_write(scratch("logits.h5"));
    if (!status_failed(&st)) return 1;
    if (st.code == STATUS_IO && strstr(st.text, "logits.h5: ") != NULL &&
        strstr(st.text, "File too large") != NULL)
        return 0;
    printf("\n  limit %zu: %s\n", (size_t)*limit, st.text);
    fflush(stdout);
    return 2;
}

static void logits_that_do_not_fit_say_why(void)
{
    size_t n;
    CU_ASSERT_EQUAL(logits_write(scratch("logits.h5")).code, STATUS_OK);
    free(get_file(scratch("logits.h5"), &n));
    for (rlim_t limit = 0; limit < n; limit += 499)
        CU_ASSERT_EQUAL(in_child(logits_limited, &limit, 60), 0);
    rlim_t limit = n;
    CU_ASSERT_EQUAL(in_child(logits_limited, &limit, 60), 1);
    scratch_clear();
}

/* ---- hostile files ---- */

static hid_t dataset_add(hid_t file, const char *path, hid_t type, int n_dims, hsize_t n,
                         hid_t plist)
{
    const hsize_t dims[8] = {n, 2, 2, 2, 2, 2, 2, 2};
    const hid_t space = H5Screate_simple(n_dims, dims, NULL);
    const hid_t dataset = H5Dcreate2(file, path, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    H5Sclose(space);
    CU_ASSERT_FATAL(dataset >= 0);
    return dataset;
}

static void change_nothing(hid_t file)
{
    (void)file;
}

static void change_soft_link(hid_t file)
{
    H5Lcreate_soft("/weights/model", file, "/weights/alias", H5P_DEFAULT, H5P_DEFAULT);
}

static void change_external_link(hid_t file)
{
    H5Lcreate_external("/etc/passwd", "/", file, "/weights/outside", H5P_DEFAULT, H5P_DEFAULT);
}

static void change_alias(hid_t file)
{
    H5Lcreate_hard(file, "/weights/model/norm", file, "/weights/alias", H5P_DEFAULT, H5P_DEFAULT);
}

static void change_cycle(hid_t file)
{
    H5Lcreate_hard(file, "/weights", file, "/weights/again", H5P_DEFAULT, H5P_DEFAULT);
}

static void change_external_storage(hid_t file)
{
    const hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(plist, "/etc/passwd", 0, 64);
    H5Dclose(dataset_add(file, "/weights/x", H5T_IEEE_F32LE, 1, 16, plist));
    H5Pclose(plist);
}

static void change_chunked(hid_t file)
{
    const hsize_t chunk[1] = {4};
    const hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(plist, 1, chunk);
    H5Dclose(dataset_add(file, "/weights/x", H5T_IEEE_F32LE, 1, 16, plist));
    H5Pclose(plist);
}

static void change_compact(hid_t file)
{
    const hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_layout(plist, H5D_COMPACT);
    H5Dclose(dataset_add(file, "/weights/x", H5T_IEEE_F32LE, 1, 16, plist));
    H5Pclose(plist);
}

static void change_unallocated(hid_t file)
{
    H5Dclose(dataset_add(file, "/weights/x", H5T_IEEE_F32LE, 1, 16, H5P_DEFAULT));
}

static void early_add(hid_t file, const char *path, hid_t type, int n_dims, hsize_t n)
{
    const hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_alloc_time(plist, H5D_ALLOC_TIME_EARLY);
    H5Dclose(dataset_add(file, path, type, n_dims, n, plist));
    H5Pclose(plist);
}

static void change_double(hid_t file)
{
    early_add(file, "/weights/x", H5T_IEEE_F64LE, 1, 16);
}

static void change_big_endian(hid_t file)
{
    early_add(file, "/weights/x", H5T_IEEE_F32BE, 1, 16);
}

static void change_four_dimensions(hid_t file)
{
    early_add(file, "/weights/x", H5T_IEEE_F32LE, 4, 2);
}

static void change_no_checksums(hid_t file)
{
    early_add(file, "/weights/x", H5T_IEEE_F32LE, 1, 16);
}

static void change_rows_per_block(hid_t file)
{
    const hid_t dataset = H5Dopen2(file, "/checksums/model/norm/weight", H5P_DEFAULT);
    const hid_t attribute = H5Aopen(dataset, "rows_per_block", H5P_DEFAULT);
    const int64_t value = 0;
    H5Awrite(attribute, H5T_NATIVE_INT64, &value);
    H5Aclose(attribute);
    H5Dclose(dataset);
}

static void change_leaf(hid_t file)
{
    const hid_t dataset =
        H5Dopen2(file, "/weights/model/layers/0/mlp/down_proj/weight", H5P_DEFAULT);
    H5Adelete(dataset, "grid_bits");
    H5Dclose(dataset);
}

static void change_checksum_shape(hid_t file)
{
    H5Ldelete(file, "/checksums/model/norm/weight", H5P_DEFAULT);
    early_add(file, "/checksums/model/norm/weight", H5T_STD_U64LE, 2, 5);
    const hid_t dataset = H5Dopen2(file, "/checksums/model/norm/weight", H5P_DEFAULT);
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute =
        H5Acreate2(dataset, "rows_per_block", H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    const int64_t value = 1;
    H5Awrite(attribute, H5T_NATIVE_INT64, &value);
    H5Aclose(attribute);
    H5Sclose(space);
    H5Dclose(dataset);
}

static void change_variable_string(hid_t file)
{
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);
    H5Ldelete(file, "/tokenizer/chat_template", H5P_DEFAULT);
    H5Dclose(dataset_add(file, "/tokenizer/chat_template", type, 1, 1, H5P_DEFAULT));
    H5Tclose(type);
}

static void change_no_config(hid_t file)
{
    H5Ldelete(file, "/config/config_json", H5P_DEFAULT);
}

static void change_format(hid_t file)
{
    const hid_t attribute = H5Aopen_by_name(file, "/", "shoal_format", H5P_DEFAULT, H5P_DEFAULT);
    const int64_t value = 2;
    H5Awrite(attribute, H5T_NATIVE_INT64, &value);
    H5Aclose(attribute);
}

static void change_named_type(hid_t file)
{
    const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    H5Tcommit2(file, "/weights/type", type, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Tclose(type);
}

static void change_dotted_name(hid_t file)
{
    early_add(file, "/weights/model.norm.weight", H5T_IEEE_F32LE, 1, 16);
}

static void change_depth(hid_t file)
{
    char path[256] = "/weights";
    for (int i = 0; i < 80; i++) {
        strcat(path, "/d");
        H5Gclose(H5Gcreate2(file, path, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    }
}

struct hostile {
    void (*change)(hid_t file);
    const char *says;
};

static const struct hostile hostiles[] = {
    {change_soft_link, "/weights/alias: is a soft or external link"},
    {change_external_link, "/weights/outside: is a soft or external link"},
    {change_alias, "has several names"},
    {change_cycle, "has several names"},
    {change_external_storage, "/weights/x: has external storage"},
    {change_chunked, "/weights/x: expected a contiguous layout"},
    {change_compact, "/weights/x: expected a contiguous layout"},
    {change_unallocated, "/weights/x: expected 64 bytes, found 0"},
    {change_double, "/weights/x: expected f32, f16, bf16, i8 or u8"},
    {change_big_endian, "/weights/x: expected f32, f16, bf16, i8 or u8"},
    {change_four_dimensions, "/weights/x: has a bad shape"},
    {change_no_checksums, "/checksums/x"},
    {change_rows_per_block, "/checksums/model/norm/weight: rows_per_block 0"},
    {change_checksum_shape, "/checksums/model/norm/weight: expected u64 [1, 2]"},
    {change_leaf, "leaf 32 and grid_bits 0"},
    {change_variable_string, "/tokenizer/chat_template: expected one string"},
    {change_no_config, "/config/config_json: is missing"},
    {change_format, "shoal_format: expected 1, found 2"},
    {change_named_type, "/weights/type: is neither group nor dataset"},
    {change_dotted_name, "has a dot in its name"},
    {change_depth, "lies too deep"},
};

static void hostile_structures_are_refused_by_name(void)
{
    struct status st = changed_checkpoint(change_nothing);
    CU_ASSERT_EQUAL(st.code, STATUS_OK);
    for (size_t i = 0; i < sizeof hostiles / sizeof hostiles[0]; i++) {
        st = changed_checkpoint(hostiles[i].change);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        if (strstr(st.text, hostiles[i].says) == NULL) {
            fprintf(stderr, "expected '%s', found '%s'\n", hostiles[i].says, st.text);
            CU_FAIL("another sentence");
        }
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "h.h5"));
    }
    scratch_clear();
}

/* ---- memory ---- */

static void every_failed_allocation_is_a_status(void)
{
    const char *path = scratch("m.h5");
    uint64_t content;
    small_checkpoint(path, 1);
    mem_fail_after(0);
    CU_ASSERT_EQUAL(checkpoint_content(path, &content).code, STATUS_OK);
    const uint64_t n = mem_fail_after(0);
    CU_ASSERT(n > 10);
    for (uint64_t i = 1; i <= n; i++) {
        mem_fail_after(i);
        const struct status st = checkpoint_content(path, &content);
        mem_fail_after(0);
        CU_ASSERT_EQUAL(st.code, STATUS_MEMORY);
    }
    CU_ASSERT_EQUAL(small_checkpoint(path, 1).code, STATUS_OK);
    const uint64_t n_write = mem_fail_after(0);
    for (uint64_t i = 1; i <= n_write; i++) {
        mem_fail_after(i);
        const struct status st = small_checkpoint(scratch("n.h5"), 1);
        mem_fail_after(0);
        CU_ASSERT_EQUAL(st.code, STATUS_MEMORY);
        CU_ASSERT(access(scratch("n.h5"), F_OK) != 0 || i == n_write);
    }
    scratch_clear();
}

void suite_checkpoint_faults(CU_pSuite suite);
void suite_checkpoint_faults(CU_pSuite suite)
{
    CU_add_test(suite, "a file cut at any byte is refused", a_file_cut_at_any_byte_is_refused);
    CU_add_test(suite, "a flipped bit is found or harmless, and never hangs",
                a_flipped_bit_is_found_or_harmless_and_never_hangs);
    CU_add_test(suite, "what is no checkpoint is refused", what_is_no_checkpoint_is_refused);
    CU_add_test(suite, "logits that do not fit say why", logits_that_do_not_fit_say_why);
    CU_add_test(suite, "a write that does not fit leaves nothing",
                a_write_that_does_not_fit_leaves_nothing);
    CU_add_test(suite, "hostile structures are refused by name",
                hostile_structures_are_refused_by_name);
    CU_add_test(suite, "every failed allocation is a status", every_failed_allocation_is_a_status);
}
