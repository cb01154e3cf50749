/* Write beside it, rename. */
#include "base/file_replace.h"

#include "base/mem.h"
#include "base/strbuf.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct status file_replace_begin(struct file_replace *f, const char *path)
{
    *f = (struct file_replace){.path = path};
    struct stat info;
    const bool in_place = stat(path, &info) == 0 && !S_ISREG(info.st_mode);
    if (!in_place) {
        struct strbuf s;
        strbuf_init(&s);
        strbuf_printf(&s, "%s.tmp", path);
        const struct status st = strbuf_status(&s);
        if (status_failed(&st)) strbuf_fini(&s);
        TRY(st);
        f->temporary = s.data;
    }
    f->file = fopen(in_place ? path : f->temporary, "we");
    if (f->file != NULL) return status_ok();
    const struct status st = status_make(STATUS_IO, "%s: %s", f->path, strerror(errno));
    mem_free(&f->temporary);
    return st;
}

struct status file_replace_end(struct file_replace *f, struct status st)
{
    if (f->file == NULL) return st;
    bool ok = ferror(f->file) == 0;
    if (fclose(f->file) != 0) ok = false;
    f->file = NULL;
    if (ok && !status_failed(&st) && f->temporary != NULL) {
        ok = rename(f->temporary, f->path) == 0;
    }
    if (!ok && !status_failed(&st)) {
        st = status_make(STATUS_IO, "%s: cannot be written: %s", f->path, strerror(errno));
    }
    if (status_failed(&st) && f->temporary != NULL) unlink(f->temporary);
    mem_free(&f->temporary);
    return st;
}
