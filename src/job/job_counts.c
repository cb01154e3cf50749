/* Keeps the experts' counts beside a job's journal. */
#include "job/job_counts.h"

#include "base/file.h"
#include "base/file_replace.h"
#include "base/log.h"
#include "base/mem.h"
#include "job/job_journal.h"
#include "job/job_private.h"
#include "serve/journal/journal_format.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static bool is_journal(const char *path)
{
    char magic[JOURNAL_MAGIC_BYTES];
    const int fd = file_open_regular(path, O_RDONLY);
    if (fd < 0) return false;
    const bool is = read(fd, magic, sizeof magic) == (ssize_t)sizeof magic &&
                    memcmp(magic, JOURNAL_MAGIC, sizeof magic) == 0;
    close(fd);
    return is;
}

/* Sets *out to the path of the counts beside a journal, in new memory (mem_free). */
static struct status counts_path_of(const char *journal, char **out)
{
    struct strbuf s;
    strbuf_init(&s);
    strbuf_printf(&s, "%s.experts", journal);
    *out = s.data;
    return strbuf_status(&s);
}

struct status job_counts_read_flag(const char *path, const struct layout_model *m, int64_t **out,
                                   struct status *unusable)
{
    char *kept = NULL;
    *unusable = status_ok();
    *out = NULL;
    if (!is_journal(path)) return expert_load_read(path, m, out);
    struct status st = counts_path_of(path, &kept);
    if (!status_failed(&st)) st = expert_load_read_kept(kept, m, out, unusable);
    mem_free(&kept);
    *unusable = status_wrap(*unusable, "--expert-load");
    return status_wrap(st, "--expert-load");
}

/* True when the job has a journal of its own in which it writes, and experts to count. */
static bool keeps_counts(const struct job *j)
{
    const struct job_options *o = j->o;
    return j->model.moe.n_experts > 0 && !o->serves && o->run_instead == NULL &&
           o->files.output != NULL && o->files.audit == 0;
}

struct status job_counts_open(struct job *j)
{
    struct job_experts *x = &j->experts;
    char *journal = NULL;
    struct status unusable = status_ok();
    if (!keeps_counts(j)) return status_ok();
    TRY(job_journal_path(j->o, &journal));
    if (journal == NULL) return status_ok();
    struct status st = counts_path_of(journal, &x->counts_path);
    const bool is_new = j->o->lead.restart || !is_journal(journal) || !file_exists(x->counts_path);
    if (!status_failed(&st) && !is_new)
        st = expert_load_read_kept(x->counts_path, &j->layout_model, &x->earlier, &unusable);
    if (status_failed(&unusable))
        log_line(LOG_WARN, "%s; the experts' counts of earlier runs are ignored", unusable.text);
    mem_free(&journal);
    return st;
}

void job_counts_save(const struct job *j, const int64_t *load)
{
    const char *path = j->experts.counts_path;
    struct strbuf s;
    struct file_replace out = {0};
    if (path == NULL) return;
    strbuf_init(&s);
    strbuf_puts(&s, "{\"schema\":1,\"model\":");
    strbuf_json_string(&s, j->layout_model.name, strlen(j->layout_model.name));
    strbuf_puts(&s, ",");
    job_metrics_put_load(j, load, j->experts.earlier, &s);
    strbuf_puts(&s, "}\n");
    struct status st = strbuf_status(&s);
    if (!status_failed(&st)) st = file_replace_begin(&out, path);
    if (!status_failed(&st)) {
        fwrite(s.data, 1, s.n, out.file);
        st = file_replace_end(&out, st);
    }
    strbuf_fini(&s);
    if (status_failed(&st)) log_line(LOG_WARN, "%s; the experts' counts are not kept", st.text);
}
