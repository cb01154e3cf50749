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

/* True when the job has experts to count and may have a journal of its own to write. */
static bool keeps_counts(const struct job *j)
{
    const struct job_options *o = j->o;
    return j->model.moe.n_experts > 0 && !o->serves && o->run_instead == NULL &&
           o->files.output != NULL && o->files.audit == 0;
}

/* Reads the counts of the job's earlier runs. Counts that cannot be used never stop the job. */
static struct status read_earlier(struct job *j)
{
    struct job_experts *x = &j->experts;
    struct status unusable = status_ok();
    if (!file_exists(x->counts_path)) return status_ok();
    const struct status st =
        expert_load_read_kept(x->counts_path, &j->layout_model, &x->earlier, &unusable);
    if (st.code == STATUS_INPUT) unusable = st; /* another model's */
    if (status_failed(&unusable))
        log_line(LOG_WARN, "%s; the experts' counts of earlier runs are ignored", unusable.text);
    return st.code == STATUS_INPUT ? status_ok() : st;
}

/* Checks that a file can be put at counts_path; otherwise warns, and the job keeps no counts. */
static void check_counts_path(struct job_experts *x)
{
    char *target = NULL;
    const struct status st = file_target_regular(x->counts_path, &target);
    mem_free(&target);
    if (!status_failed(&st)) return;
    log_line(LOG_WARN, "%s; the experts' counts are not kept", st.text);
    mem_free(&x->counts_path);
}

struct status job_counts_open(struct job *j)
{
    struct job_experts *x = &j->experts;
    char *journal = NULL;
    if (!keeps_counts(j)) return status_ok();
    TRY(job_journal_path(j->o, &journal));
    if (journal == NULL) return status_ok();
    x->begins_anew = j->o->lead.restart || !is_journal(journal);
    const struct status st = counts_path_of(journal, &x->counts_path);
    mem_free(&journal);
    TRY(st);
    check_counts_path(x);
    return x->counts_path == NULL || x->begins_anew ? status_ok() : read_earlier(j);
}

void job_counts_begin(const struct job *j)
{
    const struct job_experts *x = &j->experts;
    if (x->counts_path != NULL && x->begins_anew) (void)unlink(x->counts_path);
}

/* True when a token was counted, in this run or an earlier one. */
static bool has_tokens(const struct job *j, const int64_t *load)
{
    const int64_t *earlier = j->experts.earlier;
    const size_t n = (size_t)j->model.n_layers * j->model.moe.n_experts;
    for (size_t i = 0; i < n; i++)
        if (load[i] > 0 || (earlier != NULL && earlier[i] > 0)) return true;
    return false;
}

void job_counts_save(const struct job *j, const int64_t *load)
{
    const char *path = j->experts.counts_path;
    struct strbuf s;
    struct file_replace out = {0};
    if (path == NULL || !has_tokens(j, load)) return;
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
