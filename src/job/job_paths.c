/* Compares files by device and inode. */
#include "job/job_paths.h"

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/file/vectors_file.h"
#include "serve/input/encoder.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

struct named {
    const char *flag, *path; /* path NULL: not given */
    bool writes;
};

/* True when both name one regular file; if one does not exist yet, when the names are equal. */
static bool is_same(const char *a, const char *b)
{
    struct stat x, y;
    if (stat(a, &x) != 0 || stat(b, &y) != 0) return strcmp(a, b) == 0;
    return S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Writes the folder of a file to `out`, which holds at least as many bytes as the path. */
static void parent_folder(const char *path, char *out)
{
    const char *slash = strrchr(path, '/');
    const size_t n = slash == NULL ? 0 : (size_t)(slash - path);
    if (slash == NULL) {
        strcpy(out, ".");
    } else if (n == 0) {
        strcpy(out, "/");
    } else {
        memcpy(out, path, n);
        out[n] = '\0';
    }
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

struct status job_paths_check_written(const char *flag, const char *path)
{
    char folder[4096];
    if (strlen(path) >= sizeof folder) {
        return status_make(STATUS_IO, "--%s: a path of %zu bytes, expected less than %zu", flag,
                           strlen(path), sizeof folder);
    }
    if (is_folder(path)) {
        return status_make(STATUS_IO, "--%s %s: expected a file to write to, found a folder", flag,
                           path);
    }
    parent_folder(path, folder);
    const bool ok =
        access(path, F_OK) == 0 ? access(path, W_OK) == 0 : access(folder, W_OK | X_OK) == 0;
    if (ok) return status_ok();
    return status_make(STATUS_IO, "--%s %s: cannot be written: %s", flag, path, strerror(errno));
}

/* Refuses an empty name: a script passes one if its variable is not set. */
static struct status check_named(const char *flag, const char *path)
{
    if (path == NULL || *path != '\0') return status_ok();
    return status_make(STATUS_USAGE, "--%s: expected a file's name, found an empty one", flag);
}

struct status job_paths_check_model(const char *flag, const char *model)
{
    const char *end = strrchr(model, '.');
    const bool is_source =
        end != NULL && (strcasecmp(end, ".gguf") == 0 || strcasecmp(end, ".safetensors") == 0);
    TRY(check_named(flag, model));
    if (!is_source && !is_folder(model)) return status_ok();
    return status_make(STATUS_INPUT,
                       "--%s %s: expected a checkpoint of shoal's, found a %s; make one of it "
                       "with: shoal convert SRC DST.h5",
                       flag, model, is_source ? "file of another kind" : "folder");
}

struct status job_paths_check_copy(const char *from, const char *to, const char *more)
{
    static const char *const sources[] = {".gguf", ".safetensors", ".json", ".jsonl"};
    const char *end = strrchr(to, '.');
    const bool is_more = more != NULL && is_same(to, more);
    if (*from == '\0' || *to == '\0')
        return status_make(STATUS_USAGE, "%s: expected a file's name, found an empty one",
                           *from == '\0' ? "the source" : "the file to write to");
    if (is_more || is_same(to, from)) {
        return status_make(STATUS_USAGE, "%s: expected another file than %s to write to", to,
                           is_more ? more : from);
    }
    for (size_t i = 0; end != NULL && i < sizeof sources / sizeof sources[0]; i++) {
        if (strcasecmp(end, sources[i]) != 0) continue;
        return status_make(STATUS_USAGE,
                           "%s: expected a checkpoint to write to, such as DST.h5, found the name "
                           "of a source",
                           to);
    }
    if (is_folder(to))
        return status_make(STATUS_IO,
                           "%s: expected a file to write to, such as DST.h5, found a folder", to);
    char *target = NULL;
    TRY(file_target_regular(to, &target)); /* now, not hours later */
    mem_free(&target);
    return status_ok();
}

/* Refuses --vectors with a name that does not end in .npy or .h5, or with an output that cannot be
 * read again. */
static struct status check_vectors(const struct job_options *o)
{
    struct stat info;
    const char *path = o->files.vectors, *output = o->files.output;
    if (path == NULL) return status_ok();
    if (!vectors_file_is_name(path))
        return status_make(STATUS_USAGE, "--vectors %s: expected a name that ends in .npy or .h5",
                           path);
    if (strcmp(output, "-") != 0 && (stat(output, &info) != 0 || S_ISREG(info.st_mode)))
        return status_ok();
    return status_make(STATUS_USAGE,
                       "--vectors %s: made of the rows of --output at the end; expected --output "
                       "to name a file, found %s",
                       path, output);
}

/* Refuses an output whose ending promises another format, and a pipe for an output with a journal:
 * a resumed job must read its rows again. */
static struct status check_output(const struct job_options *o)
{
    struct stat info;
    if (o->files.output != NULL) TRY(encoder_check_name("output", o->files.output));
    TRY(check_vectors(o));
    if (o->files.no_journal || o->files.audit > 0 || o->files.output == NULL ||
        stat(o->files.output, &info) != 0 || !S_ISFIFO(info.st_mode))
        return status_ok();
    return status_make(STATUS_USAGE,
                       "--output %s: expected a file, found a pipe, from which a later run could "
                       "not read its rows; give --no-journal, or --output - for stdout",
                       o->files.output);
}

enum { NAMED_MAX = 2 * FLAG_LIST_MAX + 12 };

/* Lists the files that the flags name; returns their number. */
static size_t list_named(const struct job_options *o, struct named files[NAMED_MAX])
{
    size_t n = 0;
    files[n++] = (struct named){"model", o->files.model, false};
    files[n++] = (struct named){"draft", o->files.draft, false};
    for (size_t i = 0; i < o->files.input.n; i++)
        files[n++] = (struct named){"input", o->files.input.values[i], false};
    for (size_t i = 0; i < o->files.adapter.n; i++) {
        const char *equals = strchr(o->files.adapter.values[i], '=');
        if (equals != NULL) files[n++] = (struct named){"adapter", equals + 1, false};
    }
    files[n++] = (struct named){"prompt-template", o->files.prompt_template, false};
    files[n++] = (struct named){"pair-template", o->rank.pair_template, false};
    files[n++] = (struct named){"nodes", o->files.nodes, false};
    files[n++] = (struct named){"expert-load", o->layout.expert_load, false};
    files[n++] = (struct named){"output", o->files.output, o->files.audit == 0};
    files[n++] = (struct named){"logits", o->files.logits, true};
    files[n++] = (struct named){"save-logprobs", o->files.save_logprobs, o->files.audit == 0};
    files[n++] = (struct named){"vectors", o->files.vectors, true};
    files[n++] = (struct named){"metrics", o->files.metrics, true};
    files[n++] = (struct named){"trace", o->files.trace, true};
    return n;
}

/* Refuses to write a file that a pattern of --input will match once it exists: the same command
 * would then have another input, and could not resume the job. */
static struct status check_patterns(const struct job_options *o, const struct named *f)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(f->path, '/');
    if (strlen(f->path) >= sizeof folder) return status_ok();
    parent_folder(f->path, folder);
    for (size_t i = 0; i < o->files.input.n; i++) {
        const char *given = o->files.input.values[i];
        if (!input_files_will_match(given, folder, slash != NULL ? slash + 1 : f->path)) continue;
        return status_make(STATUS_USAGE,
                           "--%s %s: expected a name that --input %s does not match, because the "
                           "job could not resume",
                           f->flag, f->path, given);
    }
    return status_ok();
}

struct status job_paths_check_inputs(const struct job_options *o, const struct input_files *inputs)
{
    struct named files[NAMED_MAX];
    const size_t n = list_named(o, files);
    for (size_t i = 0; i < n; i++) {
        if (!files[i].writes || files[i].path == NULL || strcmp(files[i].path, "-") == 0) continue;
        const char *same = input_files_find(inputs, files[i].path);
        if (same != NULL)
            return status_make(STATUS_USAGE, "--%s %s: expected another file than the input %s",
                               files[i].flag, files[i].path, same);
        TRY(check_patterns(o, &files[i]));
    }
    return status_ok();
}

/* Refuses to write to `path` if it is one of files [n]. */
static struct status check_other(const struct named *files, size_t n, const char *flag,
                                 const char *path)
{
    for (size_t k = 0; k < n; k++) {
        if (files[k].path == NULL || !is_same(files[k].path, path)) continue;
        return status_make(STATUS_USAGE, "--%s %s: expected another file than --%s's", flag, path,
                           files[k].flag);
    }
    return status_ok();
}

struct status job_paths_check_more(const struct job_options *o, const char *flag, const char *path)
{
    struct named files[NAMED_MAX];
    if (path == NULL || strcmp(path, "-") == 0) return status_ok();
    TRY(check_named(flag, path));
    TRY(check_other(files, list_named(o, files), flag, path));
    return job_paths_check_written(flag, path);
}

struct status job_paths_check(const struct job_options *o)
{
    struct named files[NAMED_MAX];
    const size_t n = list_named(o, files);
    for (size_t i = 0; i < n; i++) {
        TRY(check_named(files[i].flag, files[i].path));
        const bool is_stream = files[i].path == NULL || strcmp(files[i].path, "-") == 0;
        if (!files[i].writes || is_stream) continue;
        TRY(check_other(files, i, files[i].flag, files[i].path));
        TRY(job_paths_check_written(files[i].flag, files[i].path));
    }
    return check_output(o);
}
