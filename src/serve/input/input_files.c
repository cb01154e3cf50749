/* Expands patterns with glob(3), and checks that several inputs are different regular files. */
#include "serve/input/input_files.h"

#include "base/mem.h"
#include "serve/input/dataset_lines.h"

#include <errno.h>
#include <fnmatch.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct input_files input_files_one(const char *const *path)
{
    return (struct input_files){
        .paths = (char **)(uintptr_t)path, .n = 1, .name = (char *)(uintptr_t)*path};
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static struct status input_files_add(struct input_files *f, const char *path)
{
    if (f->n == INPUT_FILES_MAX) {
        return status_make(STATUS_USAGE, "--input: expected at most %d files, found more",
                           INPUT_FILES_MAX);
    }
    if (f->paths == NULL)
        TRY(mem_alloc(&f->paths, INPUT_FILES_MAX, sizeof *f->paths, "input files"));
    TRY(mem_strndup(&f->paths[f->n], path, strlen(path)));
    f->n++;
    return status_ok();
}

/* Sorts the found paths and adds them, each followed by `dataset` (":/PATH", or ""). */
static struct status add_sorted(struct input_files *f, const glob_t *found, const char *dataset)
{
    struct strbuf path;
    struct status st = status_ok();
    strbuf_init(&path);
    qsort(found->gl_pathv, found->gl_pathc, sizeof *found->gl_pathv, compare_paths);
    for (size_t i = 0; !status_failed(&st) && i < found->gl_pathc; i++) {
        strbuf_clear(&path);
        strbuf_printf(&path, "%s%s", found->gl_pathv[i], dataset);
        st = strbuf_status(&path);
        if (!status_failed(&st)) st = input_files_add(f, path.data);
    }
    strbuf_fini(&path);
    return st;
}

/* Adds the paths that match a pattern. */
static struct status add_matches(struct input_files *f, const char *given)
{
    glob_t found;
    char *pattern = NULL;
    size_t n;
    if (!dataset_lines_split(given, &n)) n = strlen(given);
    TRY(mem_strndup(&pattern, given, n));
    const int failed = glob(pattern, GLOB_NOSORT | GLOB_ERR, NULL, &found);
    mem_free(&pattern);
    if (failed == GLOB_NOSPACE)
        return status_make(STATUS_MEMORY, "--input %s: no memory for the matching paths", given);
    if (failed != 0) {
        return status_make(STATUS_INPUT, "--input %s: %s", given,
                           failed == GLOB_NOMATCH ? "no file matches" : "a folder cannot be read");
    }
    const struct status st = add_sorted(f, &found, given + n);
    globfree(&found);
    return st;
}

int input_files_stat(const char *path, struct stat *info)
{
    char file[PATH_MAX];
    size_t n;
    if (!dataset_lines_split(path, &n)) return stat(path, info);
    if (n >= sizeof file) return -1;
    memcpy(file, path, n);
    file[n] = '\0';
    return stat(file, info);
}

static bool is_pattern(const char *given)
{
    struct stat info;
    return strpbrk(given, "*?[") != NULL && input_files_stat(given, &info) != 0;
}

/* True when `folders`, a pattern or a plain path, matches `folder`, perhaps beside others. */
static bool has_folder(const char *folders, const char *folder)
{
    struct stat is, other;
    glob_t found;
    bool has = false;
    if (stat(folder, &is) != 0 || glob(folders, GLOB_NOSORT, NULL, &found) != 0) return false;
    for (size_t i = 0; i < found.gl_pathc && !has; i++)
        has = stat(found.gl_pathv[i], &other) == 0 && is.st_dev == other.st_dev &&
              is.st_ino == other.st_ino;
    globfree(&found);
    return has;
}

bool input_files_will_match(const char *given, const char *folder, const char *name)
{
    char pattern[PATH_MAX];
    size_t n;
    if (!is_pattern(given)) return false;
    if (!dataset_lines_split(given, &n)) n = strlen(given);
    if (n >= sizeof pattern) return false;
    memcpy(pattern, given, n);
    pattern[n] = '\0';
    char *slash = strrchr(pattern, '/');
    if (fnmatch(slash != NULL ? slash + 1 : pattern, name, FNM_PERIOD) != 0) return false;
    if (slash == NULL) return has_folder(".", folder);
    *slash = '\0';
    return has_folder(slash > pattern ? pattern : "/", folder);
}

bool input_files_is_stored(const char *given)
{
    struct stat info;
    if (is_pattern(given)) return true;
    return input_files_stat(given, &info) == 0 && S_ISREG(info.st_mode);
}

/* Refuses one of several inputs unless it is a regular file. *info: the result of its stat(2). */
static struct status check_file(const char *path, struct stat *info)
{
    if (strcmp(path, "-") == 0)
        return status_make(STATUS_USAGE, "--input -: expected stdin alone, found other inputs too");
    if (input_files_stat(path, info) != 0) {
        return status_make(STATUS_INPUT, "input %s: cannot be opened: %s", path, strerror(errno));
    }
    if (S_ISREG(info->st_mode)) return status_ok();
    return status_make(STATUS_INPUT,
                       "input %s: expected a regular file as one of several inputs, found %s", path,
                       S_ISDIR(info->st_mode) ? "a folder" : "a pipe or a device");
}

/* Returns ":/PATH" of a path that names a dataset, otherwise "". */
static const char *dataset_of(const char *path)
{
    size_t n;
    return dataset_lines_split(path, &n) ? path + n : "";
}

static struct status refuse_twice(const char *first, const char *second)
{
    if (strcmp(first, second) == 0)
        return status_make(STATUS_USAGE, "--input: %s was given twice", first);
    return status_make(STATUS_USAGE, "--input: %s and %s are one file, expected each once", first,
                       second);
}

static struct status check_files(const struct input_files *f)
{
    struct stat *infos = NULL;
    TRY(mem_alloc(&infos, f->n, sizeof *infos, "input files"));
    struct status st = status_ok();
    for (size_t i = 0; i < f->n && !status_failed(&st); i++) {
        st = check_file(f->paths[i], &infos[i]);
        for (size_t k = 0; k < i && !status_failed(&st); k++) {
            if (infos[k].st_dev != infos[i].st_dev || infos[k].st_ino != infos[i].st_ino) continue;
            if (strcmp(dataset_of(f->paths[k]), dataset_of(f->paths[i])) != 0) continue;
            st = refuse_twice(f->paths[k], f->paths[i]);
        }
    }
    mem_free(&infos);
    return st;
}

static struct status name_all(struct input_files *f)
{
    struct strbuf s;
    strbuf_init(&s);
    strbuf_puts(&s, f->paths[0]);
    if (f->n > 1) strbuf_printf(&s, " and %zu more", f->n - 1);
    f->name = s.data;
    return strbuf_status(&s);
}

struct status input_files_expand(const char *const *given, size_t n_given, struct input_files *out)
{
    struct status st = status_ok();
    *out = (struct input_files){.n = 0};
    for (size_t i = 0; i < n_given && !status_failed(&st); i++) {
        st = is_pattern(given[i]) ? add_matches(out, given[i]) : input_files_add(out, given[i]);
    }
    if (!status_failed(&st) && out->n > 1) st = check_files(out);
    if (!status_failed(&st)) st = name_all(out);
    if (status_failed(&st)) input_files_fini(out);
    return st;
}

void input_files_fini(struct input_files *f)
{
    for (size_t i = 0; i < f->n; i++) mem_free(&f->paths[i]);
    mem_free(&f->paths);
    struct strbuf name = {.data = f->name};
    strbuf_fini(&name);
    *f = (struct input_files){.n = 0};
}

void input_files_settings(const struct input_files *f, struct strbuf *out)
{
    if (f->n < 2) return;
    strbuf_printf(out, "--input (number of files)=%zu\n", f->n);
    for (size_t i = 0; i < f->n; i++)
        strbuf_printf(out, "--input (file %zu)=%s\n", i + 1, f->paths[i]);
}

uint64_t input_files_size(const struct input_files *f)
{
    struct stat info;
    uint64_t n = 0;
    for (size_t i = 0; i < f->n; i++)
        n += input_files_stat(f->paths[i], &info) == 0 ? (uint64_t)info.st_size : 0;
    return n;
}

const char *input_files_find(const struct input_files *f, const char *path)
{
    struct stat is, other;
    if (stat(path, &is) != 0 || !S_ISREG(is.st_mode)) return NULL;
    for (size_t i = 0; i < f->n; i++) {
        if (input_files_stat(f->paths[i], &other) != 0) continue;
        if (is.st_dev == other.st_dev && is.st_ino == other.st_ino) return f->paths[i];
    }
    return NULL;
}
