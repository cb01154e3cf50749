/* The folder of files and batches: what a later server reads back, damaged entries, and the claim
 * on the folder. */
#include "serve/http/batch_store.h"

#include "base/mem.h"
#include "util_folder.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void open_store(struct batch_store *s, const char *folder)
{
    *s = (struct batch_store){.folder = NULL};
    const struct status st = batch_store_open(s, folder, NULL);
    CU_ASSERT_FATAL(!status_failed(&st));
}

/* Adds a file with this name, opens the folder again, and compares. */
static void check_name(const char *name)
{
    struct util_folder f;
    struct batch_store s;
    struct batch_file *made, was;
    util_folder_make(&f);
    open_store(&s, f.path);
    const struct status st = batch_store_add_file(&s, name, "batch", "{}\n", 3, &made);
    CU_ASSERT_FATAL(!status_failed(&st));
    was = *made;
    batch_store_close(&s);
    open_store(&s, f.path);
    CU_ASSERT_PTR_NOT_NULL_FATAL(s.files);
    CU_ASSERT_STRING_EQUAL(s.files->id, was.id);
    CU_ASSERT_STRING_EQUAL(s.files->name, was.name);
    CU_ASSERT(s.files->n_bytes == 3 && s.files->created_s == was.created_s);
    batch_store_close(&s);
    util_folder_remove(&f);
}

static void names_are_read_back(void)
{
    char name[400];
    check_name("");
    check_name("a \"\\ \x01\t \xC3\xA9\xE2\x82\xAC.jsonl");
    check_name("caf\xE9.jsonl"); /* Latin-1 */
    memset(name, 0xE9, sizeof name);
    for (size_t n = 80; n < 90; n++) { /* each byte becomes three */
        name[n] = '\0';
        check_name(name);
        name[n] = (char)0xE9;
    }
    for (size_t i = 0; i + 1 < sizeof name; i += 2) memcpy(name + i, "\xC3\xA9", 2);
    name[sizeof name - 1] = '\0';
    check_name(name);
    check_name(name + 1);
}

static void batches_are_read_back(void)
{
    struct util_folder f;
    struct batch_store s;
    struct batch *b;
    char *metadata;
    util_folder_make(&f);
    open_store(&s, f.path);
    struct status st = batch_store_add_batch(&s, &b);
    CU_ASSERT_FATAL(!status_failed(&st));
    st = mem_alloc(&b->metadata, BATCH_METADATA_MAX + 1, 1, "test");
    CU_ASSERT_FATAL(!status_failed(&st));
    memset(b->metadata, 'x', BATCH_METADATA_MAX);
    memcpy(b->metadata, "{\"a\":\"", 6);
    memcpy(b->metadata + BATCH_METADATA_MAX - 2, "\"}", 2);
    strcpy(b->input, "file-1");
    b->status = BATCH_FAILED;
    memset(b->error, 'e', sizeof b->error - 1);
    b->n_lines = 7;
    st = batch_store_save(&s, b);
    CU_ASSERT_FATAL(!status_failed(&st));
    st = mem_strndup(&metadata, b->metadata, BATCH_METADATA_MAX);
    CU_ASSERT_FATAL(!status_failed(&st));
    batch_store_close(&s);
    open_store(&s, f.path);
    CU_ASSERT_PTR_NOT_NULL_FATAL(s.batches);
    CU_ASSERT(s.batches->status == BATCH_FAILED && s.batches->n_lines == 7);
    CU_ASSERT_EQUAL(strlen(s.batches->error), BATCH_ERROR_MAX - 1);
    CU_ASSERT_STRING_EQUAL(s.batches->metadata, metadata);
    batch_store_remove_batch(&s, s.batches);
    CU_ASSERT_PTR_NULL(s.batches);
    batch_store_close(&s);
    open_store(&s, f.path);
    CU_ASSERT_PTR_NULL(s.batches);
    mem_free(&metadata);
    batch_store_close(&s);
    util_folder_remove(&f);
}

#define FILE_ENTRY(id)                                                                             \
    "{\"id\":\"" id "\",\"bytes\":1,\"created_at\":1,\"filename\":\"f\",\"purpose\":\"batch\"}"
#define BATCH_ENTRY(id, input, output)                                                             \
    "{\"id\":\"" id "\",\"input_file_id\":\"" input "\",\"output\":\"" output                      \
    "\",\"endpoint\":\"/v1/completions\",\"completion_window\":\"24h\",\"created_at\":1,"          \
    "\"status\":\"in_progress\"}"
#define LONG_ID "file-0123456789012345678901234567890123456789012"

static const struct entry {
    const char *name, *text;
    bool is_good;
} entries[] = {
    {"file-good.json", FILE_ENTRY("file-good"), true},
    {"batch_good.json", BATCH_ENTRY("batch_good", "file-good", "file-o"), true},
    {"file-.json", FILE_ENTRY("file-"), true},
    {"file-cut.json", "{\"id\":\"file-cut\",\"bytes\":1,", false},
    {"file-empty.json", "", false},
    {"file-list.json", "[1]", false},
    {"file-latin.json", "{\"id\":\"file-latin\",\"filename\":\"\xE9\"}", false},
    {"file-other.json", FILE_ENTRY("file-good"), false},
    {"file-path.json", FILE_ENTRY("../file-path"), false},
    {"file-a b.json", FILE_ENTRY("file-a b"), false},
    {"file-nul.json", FILE_ENTRY("file-nul\\u0000"), false},
    {LONG_ID ".json", FILE_ENTRY(LONG_ID), false},
    {"batch_cut.json", "{\"id\":\"batch_cut\"", false},
    {"batch_path.json", BATCH_ENTRY("batch_path", "../../etc/passwd", "file-o"), false},
    {"batch_out.json", BATCH_ENTRY("batch_out", "file-good", "/tmp/x"), false},
    {"batch_none.json", BATCH_ENTRY("batch_none", "", "file-o"), false},
    {"other.json", "{", false},
};

static void damaged_entries_are_left_out(void)
{
    struct util_folder f;
    struct batch_store s;
    char id[64], path[128];
    size_t n_good = 0, n_found = 0;
    util_folder_make(&f);
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        util_folder_write(&f, entries[i].name, entries[i].text);
    snprintf(path, sizeof path, "%s/file-fifo.json", f.path);
    CU_ASSERT_EQUAL(mkfifo(path, 0600), 0);
    open_store(&s, f.path);
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        snprintf(id, sizeof id, "%.*s", (int)strlen(entries[i].name) - 5, entries[i].name);
        const bool is_found = batch_store_file(&s, id) != NULL || batch_store_batch(&s, id) != NULL;
        if (is_found != entries[i].is_good) printf("\n  %s\n", entries[i].name);
        CU_ASSERT_EQUAL(is_found, entries[i].is_good);
        n_good += entries[i].is_good;
    }
    for (const struct batch_file *at = s.files; at != NULL; at = at->next) n_found++;
    for (const struct batch *at = s.batches; at != NULL; at = at->next) n_found++;
    CU_ASSERT_EQUAL(n_found, n_good);
    batch_store_close(&s);
    util_folder_remove(&f);
}

/* A second server is refused before it reads anything, and accepted once the first has ended. */
static void a_folder_has_one_server(void)
{
    struct util_folder f;
    struct stat info;
    struct file_claims *first = NULL, *second = NULL;
    struct batch_store a = {.folder = NULL}, b = {.folder = NULL};
    char folder[96], pid[32];
    util_folder_make(&f);
    snprintf(folder, sizeof folder, "%s/new", f.path);
    snprintf(pid, sizeof pid, "pid %d ", (int)getpid());
    CU_ASSERT_EQUAL_FATAL(file_claims_create(NULL, 0, &first).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(file_claims_create(NULL, 0, &second).code, STATUS_OK);
    struct status st = batch_store_open(&a, folder, first);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT(stat(folder, &info) == 0 && (info.st_mode & 0777) == 0700);
    struct batch_file *made;
    st = batch_store_add_file(&a, "f", "batch", "{}", 2, &made);
    CU_ASSERT_FALSE(status_failed(&st));
    st = batch_store_open(&b, folder, second);
    CU_ASSERT(st.code == STATUS_USAGE && strstr(st.text, pid) != NULL);
    CU_ASSERT(b.files == NULL);
    batch_store_close(&b);
    file_claims_destroy(&first);
    st = batch_store_open(&b, folder, second);
    CU_ASSERT(!status_failed(&st) && b.files != NULL);
    batch_store_close(&a);
    batch_store_close(&b);
    file_claims_destroy(&second);
    util_folder_remove(&f);
}

/* Another server has taken the folder: this one writes and removes nothing more. */
static void a_lost_folder_is_not_written(void)
{
    struct util_folder f;
    struct file_claims *claims = NULL;
    struct batch_store s = {.folder = NULL};
    struct batch_file *made, *other;
    util_folder_make(&f);
    CU_ASSERT_EQUAL_FATAL(file_claims_create(NULL, 0, &claims).code, STATUS_OK);
    struct status st = batch_store_open(&s, f.path, claims);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = batch_store_add_file(&s, "f", "batch", "{}", 2, &made);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    char id[BATCH_ID_MAX];
    strcpy(id, made->id);
    util_folder_unlink(&f, "server.lease");
    util_folder_write(&f, "server.lease", "{}");
    file_claims_renew(claims);
    st = batch_store_add_file(&s, "g", "batch", "{}", 2, &other);
    CU_ASSERT_EQUAL(st.code, STATUS_IO);
    batch_store_remove_file(&s, id);
    batch_store_close(&s);
    open_store(&s, f.path);
    CU_ASSERT(s.files != NULL && s.files->next == NULL && strcmp(s.files->id, id) == 0);
    batch_store_close(&s);
    file_claims_destroy(&claims);
    util_folder_remove(&f);
}

/* A process without root's rights is refused a folder that it cannot write. */
static void a_folder_that_cannot_be_written_is_refused(void)
{
    struct util_folder f;
    util_folder_make(&f);
    CU_ASSERT_EQUAL(chmod(f.path, 0555), 0);
    const pid_t child = fork();
    if (child == 0) {
        struct batch_store s = {.folder = NULL};
        if (getuid() == 0 && setuid(65534) != 0) _exit(100);
        const struct status st = batch_store_open(&s, f.path, NULL);
        _exit(st.code == STATUS_USAGE && strstr(st.text, "cannot be written") != NULL ? 0 : 1);
    }
    int status = -1;
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CU_ASSERT_EQUAL(chmod(f.path, 0700), 0);
    util_folder_remove(&f);
}

void suite_batch_store(CU_pSuite suite);
void suite_batch_store(CU_pSuite suite)
{
    CU_add_test(suite, "names are read back", names_are_read_back);
    CU_add_test(suite, "batches are read back", batches_are_read_back);
    CU_add_test(suite, "damaged entries are left out", damaged_entries_are_left_out);
    CU_add_test(suite, "a folder has one server", a_folder_has_one_server);
    CU_add_test(suite, "a lost folder is not written", a_lost_folder_is_not_written);
    CU_add_test(suite, "a folder that cannot be written is refused",
                a_folder_that_cannot_be_written_is_refused);
}
