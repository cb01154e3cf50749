/* A folder of files in /tmp, for tests. */
#ifndef SHOAL_TESTS_UTIL_FOLDER_H
#define SHOAL_TESTS_UTIL_FOLDER_H

struct util_folder {
    char path[64];
};

/* Make a new folder; remove the folder with all that is in it. */
void util_folder_make(struct util_folder *f);
void util_folder_remove(const struct util_folder *f);

/* Write a text to a file of the folder; remove a file of the folder. */
void util_folder_write(const struct util_folder *f, const char *name, const char *text);
void util_folder_unlink(const struct util_folder *f, const char *name);

#endif
