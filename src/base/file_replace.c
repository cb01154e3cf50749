/* Writes a temporary file beside the target, then renames it. A target that exists and is no
 * regular file (a pipe, a device) is written directly. */
#include "base/file_replace.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/strbuf.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct status replace_open_file(struct file_replace *f)
{
    struct stat info;
    const bool in_place = stat(f->target, &info) == 0 && !S_ISREG(info.st_mode);
    if (!in_place) {
        struct strbuf s;
        strbuf_init(&s);
        strbuf_printf(&s, "%s.tmp", f->target);
        f->temporary = s.data;
        TRY(strbuf_status(&s));
    }
    f->file = in_place ? fopen(f->target, "we") : file_create_regular(f->temporary);
    if (f->file != NULL) return status_ok();
    return status_make(STATUS_IO, "%s: %s", in_place ? f->path : f->temporary, strerror(errno));
}

static void forget_names(struct file_replace *f)
{
    mem_free(&f->temporary);
    mem_free(&f->target);
}

struct status file_replace_begin(struct file_replace *f, const char *path)
{
    *f = (struct file_replace){.path = path};
    TRY(file_target(path, &f->target));
    const struct status st = replace_open_file(f);
    if (status_failed(&st)) forget_names(f);
    return st;
}

struct status file_replace_end(struct file_replace *f, struct status st)
{
    if (f->file == NULL) return st;
    bool ok = ferror(f->file) == 0;
    if (fclose(f->file) != 0) ok = false;
    f->file = NULL;
    if (ok && !status_failed(&st) && f->temporary != NULL) {
        ok = rename(f->temporary, f->target) == 0;
    }
    if (!ok && !status_failed(&st)) {
        st = status_make(STATUS_IO, "%s: cannot be written: %s", f->path, strerror(errno));
    }
    if (status_failed(&st) && f->temporary != NULL) unlink(f->temporary);
    forget_names(f);
    return st;
}
