/* Makes a journal's path and settings. */
#include "job/job_journal.h"

#include "base/file.h"
#include "base/mem.h"
#include "kernels/device.h"
#include "serve/journal/journal_format.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static bool can_have_one(const struct job_options *o)
{
    struct stat info;
    if (o->files.no_journal || o->files.logits != NULL || strcmp(o->files.output, "-") == 0)
        return false;
    return stat(o->files.output, &info) != 0 || S_ISREG(info.st_mode);
}

struct status job_journal_path(const struct job_options *o, char **out)
{
    *out = NULL;
    if (o->lead.restart && o->lead.retry_errors) {
        return status_make(STATUS_USAGE, "--restart and --retry-errors: expected one of them");
    }
    if (!can_have_one(o)) {
        if (o->files.journal == NULL && !o->lead.retry_errors) return status_ok();
        return status_make(STATUS_USAGE,
                           "--%s: this job has no journal (because of --no-journal, --logits, or "
                           "an output that is not a file)",
                           o->files.journal != NULL ? "journal" : "retry-errors");
    }
    if (o->files.journal != NULL && o->files.journal[0] == '\0')
        return status_make(STATUS_USAGE, "--journal: expected a folder's name, found an empty one");
    return journal_path_of(o->files.output, o->files.journal, out);
}

struct status job_journal_folder(const struct job_options *o, bool *is_new)
{
    *is_new = o->files.journal != NULL && mkdir(o->files.journal, 0777) == 0;
    if (o->files.journal == NULL || *is_new || errno == EEXIST) return status_ok();
    return status_make(STATUS_IO, "--journal %s: cannot be made: %s", o->files.journal,
                       strerror(errno));
}

static const char *command_name(const struct job_options *o)
{
    if (o->run.dry_run) return "generate --dry-run";
    static const char *const names[] = {[LEAD_GENERATE] = "generate",
                                        [LEAD_SCORE] = "score",
                                        [LEAD_EMBED] = "embed",
                                        [LEAD_RANK] = "rank"};
    return names[o->mode];
}

static bool job_journal_is_quantized(const struct layout_model *m)
{
    for (int c = 0; c < CLASS_COUNT; c++) {
        if (m->weights[c].group > 1) return true;
    }
    return false;
}

/* Writes the layers of --save-hidden as numbers from 0, and "final" for the row after the last
 * norm. */
static void write_hidden_layers(const struct job *j, struct strbuf *out)
{
    if (j->hidden.n == 0) return;
    strbuf_puts(out, "--save-hidden=");
    for (uint32_t i = 0; i < j->hidden.n; i++) {
        if (i > 0) strbuf_puts(out, ",");
        if (j->hidden.at[i] == j->model.n_layers)
            strbuf_puts(out, "final");
        else
            strbuf_printf(out, "%u", j->hidden.at[i]);
    }
    strbuf_puts(out, "\n");
}

struct status job_journal_settings(const struct job *j, struct strbuf *out)
{
    const struct job_options *o = j->o;
    const struct ckpt_digest none = {0}, digest = j->ckpt != NULL ? ckpt_digest(j->ckpt) : none;
    const struct flag_group sampling = {job_groups[JOB_SAMPLING].rows, job_groups[JOB_SAMPLING].n,
                                        0};
    char sums[256];
    strbuf_printf(out, "command=%s\n", command_name(o));
    strbuf_printf(out, "checkpoint=%016llx%016llx\n", (unsigned long long)digest.high,
                  (unsigned long long)digest.low);
    flags_settings(&job_groups[JOB_MODEL], o,
                   job_journal_is_quantized(&j->layout_model) ? NULL : "activations", out);
    device_sums(j->compute.device, sums, sizeof sums);
    strbuf_printf(out, "sums=%s\n", sums);
    /* Journals that were begun before this line was added, with other sums over a token's experts,
     * must not resume. Dense models have no such sums, so their journals stay valid. */
    if (j->layout_model.arch != NULL && j->layout_model.arch->moe.n_experts > 0)
        strbuf_puts(out, "sums of experts=on the integer grid\n");
    flags_settings(&job_groups[JOB_RUN], o, NULL, out);
    flags_settings(&job_groups[JOB_CAPACITY], o, NULL, out);
    input_files_settings(&j->files.inputs, out);
    if (j->text.form.field != NULL) strbuf_printf(out, "--input-field=%s\n", j->text.form.field);
    if (j->text.form.made_by != NULL) {
        strbuf_printf(out, "--prompt-template=file with hash %016llx%016llx\n",
                      (unsigned long long)j->text.made_by_hash[0],
                      (unsigned long long)j->text.made_by_hash[1]);
    }
    job_adapters_settings(&j->adapters, out);
    if (j->files.part.n > 0) input_part_setting(&j->files.part, out);
    flags_settings(&job_groups[JOB_SCHEDULE], o, NULL, out);
    flags_settings(&job_groups[JOB_DEVICE], o, NULL, out);
    flags_settings(&job_groups[JOB_LEAD], o, NULL, out);
    flags_settings(&job_groups[JOB_LAYOUT], o, NULL, out);
    flags_settings(&job_groups[JOB_FILES], o, NULL, out);
    if (o->files.save_logprobs != NULL) strbuf_puts(out, "--save-logprobs=given\n");
    write_hidden_layers(j, out);
    if (o->mode == LEAD_EMBED) flags_settings(&job_groups[JOB_EMBED], o, NULL, out);
    if (o->mode == LEAD_RANK) flags_settings(&job_groups[JOB_RANK], o, NULL, out);
    if (o->mode == LEAD_RANK) TRY(job_rank_settings(&j->embed, out));
    if (o->mode == LEAD_GENERATE) flags_settings(&sampling, &j->text.defaults, NULL, out);
    return strbuf_status(out);
}

struct status job_journal_session(const struct job *j, struct strbuf *out)
{
    const struct layout *l = j->layout;
    strbuf_printf(out, "%s %s, %u ranks = dp %u x pp %u x tp %u", command_name(j->o),
                  j->layout_model.name, l->n_ranks, l->dp, l->pp, l->tp);
    return strbuf_status(out);
}
