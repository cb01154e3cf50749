/* Makes and removes folders. */
#include "util_folder.h"

#include <CUnit/CUnit.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void util_folder_make(struct util_folder *f)
{
    strcpy(f->path, "/tmp/shoal-folder-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(f->path));
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

void util_folder_remove(const struct util_folder *f)
{
    CU_ASSERT_EQUAL(nftw(f->path, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

void util_folder_write(const struct util_folder *f, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    FILE *file = fopen(path, "wb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    CU_ASSERT_EQUAL(fwrite(text, 1, strlen(text), file), strlen(text));
    CU_ASSERT_EQUAL(fclose(file), 0);
}

void util_folder_unlink(const struct util_folder *f, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    CU_ASSERT_EQUAL(unlink(path), 0);
}
