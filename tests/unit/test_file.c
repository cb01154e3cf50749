/* Replacing a file on file systems that cannot sync folders, or fail to. */
#include "base/file.h"

#include "util_serve.h"
#include "util_write.h"

#include <CUnit/CUnit.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int folder_error; /* the errno of an fsync of a folder; 0: the system's fsync is called */

/* Replaces the C library's fsync in this program. */
int fsync(int fd)
{
    struct stat info;
    if (folder_error != 0 && fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
        errno = folder_error;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

static struct status replace(const char *path, const char *text)
{
    char temporary[UTIL_PATH_MAX + 8];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    CU_ASSERT(util_write(temporary, text, strlen(text)));
    return file_commit(temporary, path);
}

/* Linux answers EINVAL for a file system that has no sync of folders. */
static void a_folder_that_cannot_be_synced_is_no_error(void)
{
    char path[UTIL_PATH_MAX];
    struct stat info;
    util_file_create(path, "old", 3);
    const int harmless[] = {0, EINVAL, ENOTSUP};
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++) {
        folder_error = harmless[i];
        CU_ASSERT_EQUAL(replace(path, "new ones").code, STATUS_OK);
    }
    CU_ASSERT(stat(path, &info) == 0 && info.st_size == 8);
    folder_error = EIO;
    const struct status st = replace(path, "newer");
    CU_ASSERT_EQUAL(st.code, STATUS_IO);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "fsync"));
    folder_error = 0;
    util_file_remove(path);
}

void suite_file(CU_pSuite suite);
void suite_file(CU_pSuite suite)
{
    CU_add_test(suite, "a folder that cannot be synced is no error",
                a_folder_that_cannot_be_synced_is_no_error);
}
