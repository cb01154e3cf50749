/* Replacing a report file: readers see the old or the new report, never a part; pipes are written
 * directly. */
#include "base/file.h"
#include "base/file_replace.h"
#include "base/mem.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct place {
    char folder[64], path[96], temporary[96];
};

static void place_make(struct place *p)
{
    strcpy(p->folder, "/tmp/shoal-replace-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(p->folder));
    snprintf(p->path, sizeof p->path, "%s/report", p->folder);
    snprintf(p->temporary, sizeof p->temporary, "%s/report.tmp", p->folder);
}

static void place_remove(struct place *p)
{
    unlink(p->path);
    unlink(p->temporary);
    CU_ASSERT_EQUAL(rmdir(p->folder), 0); /* no other file was left */
}

static bool holds(const char *path, const char *text)
{
    char found[64] = "";
    FILE *f = fopen(path, "r");
    if (f == NULL) return false;
    const size_t n = fread(found, 1, sizeof found - 1, f);
    fclose(f);
    return n == strlen(text) && strcmp(found, text) == 0;
}

static struct status write_report(const char *path, const char *text, struct status outcome)
{
    struct file_replace f;
    TRY(file_replace_begin(&f, path));
    fputs(text, f.file);
    return file_replace_end(&f, outcome);
}

static void old_one_stands_until_the_end(void)
{
    struct place p;
    place_make(&p);
    struct status st = write_report(p.path, "first", status_ok());
    CU_ASSERT(!status_failed(&st) && holds(p.path, "first"));
    struct file_replace f;
    st = file_replace_begin(&f, p.path);
    CU_ASSERT_FATAL(!status_failed(&st));
    fputs("second", f.file);
    fflush(f.file);
    CU_ASSERT(holds(p.path, "first"));
    st = file_replace_end(&f, status_ok());
    CU_ASSERT(!status_failed(&st) && holds(p.path, "second"));
    CU_ASSERT_NOT_EQUAL(access(p.temporary, F_OK), 0);
    place_remove(&p);
}

static void failure_leaves_the_old_one(void)
{
    struct place p;
    place_make(&p);
    (void)write_report(p.path, "first", status_ok());
    const struct status bad = status_make(STATUS_MEMORY, "half of it is missing");
    struct status st = write_report(p.path, "sec", bad);
    CU_ASSERT_EQUAL(st.code, STATUS_MEMORY);
    CU_ASSERT(holds(p.path, "first"));
    CU_ASSERT_NOT_EQUAL(access(p.temporary, F_OK), 0);
    st = write_report("/nonexistent-folder/report", "x", status_ok());
    CU_ASSERT_EQUAL(st.code, STATUS_IO);
    place_remove(&p);
}

static void failed_write_is_said(void)
{
    const struct status st = write_report("/dev/full", "no room", status_ok());
    CU_ASSERT_EQUAL(st.code, STATUS_IO);
}

static void pipe_is_written_to(void)
{
    struct place p;
    place_make(&p);
    CU_ASSERT_EQUAL_FATAL(mkfifo(p.path, 0600), 0);
    FILE *reader = fopen(p.path, "r+"); /* keeps both ends of the pipe open */
    CU_ASSERT_PTR_NOT_NULL_FATAL(reader);
    const struct status st = write_report(p.path, "word\n", status_ok());
    CU_ASSERT(!status_failed(&st));
    char line[16] = "";
    CU_ASSERT_PTR_NOT_NULL(fgets(line, sizeof line, reader));
    CU_ASSERT_STRING_EQUAL(line, "word\n");
    struct stat info;
    CU_ASSERT(stat(p.path, &info) == 0 && S_ISFIFO(info.st_mode));
    fclose(reader);
    place_remove(&p);
}

/* Nobody reads the FIFO, and the report does not wait for a reader. */
static void fifo_as_temporary_is_refused(void)
{
    struct place p;
    place_make(&p);
    CU_ASSERT_EQUAL_FATAL(mkfifo(p.temporary, 0600), 0);
    alarm(60); /* a write that waits ends the test */
    CU_ASSERT_EQUAL(write_report(p.path, "word", status_ok()).code, STATUS_IO);
    alarm(0);
    unlink(p.temporary);
    place_remove(&p);
}

static bool is_link(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

static void a_link_stays_and_its_target_is_replaced(void)
{
    struct place p;
    char folder[96], target[128], link[96], temporary[160];
    place_make(&p);
    snprintf(folder, sizeof folder, "%s/elsewhere", p.folder);
    snprintf(target, sizeof target, "%s/target", folder);
    snprintf(temporary, sizeof temporary, "%s.tmp", target);
    snprintf(link, sizeof link, "%s/link", p.folder);
    CU_ASSERT_EQUAL_FATAL(mkdir(folder, 0700), 0);
    CU_ASSERT_EQUAL_FATAL(symlink("elsewhere/target", link), 0);
    CU_ASSERT_EQUAL_FATAL(symlink("link", p.path), 0); /* a link to a link to a file that does
                                                          not exist yet */
    for (int i = 0; i < 2; i++) {
        const char *text = i == 0 ? "first" : "second";
        struct file_replace f;
        struct status st = file_replace_begin(&f, p.path);
        CU_ASSERT_FATAL(!status_failed(&st));
        fputs(text, f.file);
        CU_ASSERT_EQUAL(access(temporary, F_OK), 0); /* beside the target, so on its file system */
        st = file_replace_end(&f, status_ok());
        CU_ASSERT(!status_failed(&st) && holds(target, text));
        CU_ASSERT(is_link(p.path) && is_link(link));
    }
    unlink(target);
    unlink(link);
    CU_ASSERT_EQUAL(rmdir(folder), 0);
    place_remove(&p);
}

static void a_target_is_a_regular_file_or_none(void)
{
    struct place p;
    char *target = NULL;
    place_make(&p);
    struct status st = file_target_regular(p.path, &target);
    CU_ASSERT(!status_failed(&st) && strcmp(target, p.path) == 0);
    mem_free(&target);
    CU_ASSERT_EQUAL_FATAL(symlink("/dev/full", p.path), 0);
    st = file_target_regular(p.path, &target);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "found a device, which is left alone"));
    CU_ASSERT_PTR_NULL(target);
    unlink(p.path);
    CU_ASSERT_EQUAL_FATAL(symlink("report", p.path), 0); /* a link to itself */
    st = file_target(p.path, &target);
    CU_ASSERT_EQUAL(st.code, STATUS_IO);
    CU_ASSERT_PTR_NULL(target);
    place_remove(&p);
}

void suite_file_replace(CU_pSuite suite);
void suite_file_replace(CU_pSuite suite)
{
    CU_add_test(suite, "the old one stands until the end", old_one_stands_until_the_end);
    CU_add_test(suite, "a link stays and its target is replaced",
                a_link_stays_and_its_target_is_replaced);
    CU_add_test(suite, "a target is a regular file or none", a_target_is_a_regular_file_or_none);
    CU_add_test(suite, "a failure leaves the old one", failure_leaves_the_old_one);
    CU_add_test(suite, "a failed write is said", failed_write_is_said);
    CU_add_test(suite, "a pipe is written to", pipe_is_written_to);
    CU_add_test(suite, "a FIFO as the temporary file is refused", fifo_as_temporary_is_refused);
}
