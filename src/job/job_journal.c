/* Paths and settings. */
#include "job/job_journal.h"

#include "base/file.h"
#include "base/mem.h"
#include "kernels/device.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static bool can_have_one(const struct job_options *o)
{
    struct stat info;
    if (o->no_journal || o->logits != NULL || strcmp(o->output, "-") == 0) return false;
    return stat(o->output, &info) != 0 || S_ISREG(info.st_mode);
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

struct status job_journal_path(const struct job_options *o, char **out)
{
    *out = NULL;
    if (o->restart && o->retry_errors) {
        return status_make(STATUS_USAGE, "--restart and --retry-errors: expected one of them");
    }
    if (!can_have_one(o)) {
        if (o->journal == NULL && !o->retry_errors) return status_ok();
        return status_make(STATUS_USAGE,
                           "--%s: this job has no journal (--no-journal, --logits, or an output "
                           "that is no file)",
                           o->journal != NULL ? "journal" : "retry-errors");
    }
    struct strbuf path;
    strbuf_init(&path);
    if (o->journal == NULL) {
        strbuf_printf(&path, "%s.journal", o->output);
    } else {
        if (o->audit == 0 && mkdir(o->journal, 0777) != 0 && errno != EEXIST) {
            return status_make(STATUS_IO, "--journal %s: cannot be made: %s", o->journal,
                               strerror(errno));
        }
        strbuf_printf(&path, "%s/%s.journal", o->journal, name_of(o->output));
    }
    *out = path.data;
    return strbuf_status(&path);
}

static const char *command_name(const struct job_options *o)
{
    if (o->dry_run) return "generate --dry-run";
    return o->mode == LEAD_SCORE ? "score" : "generate";
}

static bool is_quantized(const struct layout_model *m)
{
    for (int c = 0; c < LAYOUT_CLASS_COUNT; c++) {
        if (m->weights[c].group > 1) return true;
    }
    return false;
}

struct status job_journal_settings(const struct job *j, struct strbuf *out)
{
    const struct request_defaults *d = &j->text.defaults;
    const struct ckpt_digest none = {0}, digest = j->ckpt != NULL ? ckpt_digest(j->ckpt) : none;
    strbuf_printf(out, "command=%s\n", command_name(j->o));
    strbuf_printf(out, "checkpoint=%016llx%016llx\n", (unsigned long long)digest.high,
                  (unsigned long long)digest.low);
    strbuf_printf(out, "--max-model-len=%u\n--kv-dtype=%s\n", j->max_model_len,
                  kv_dtype_name(j->kv_dtype));
    if (is_quantized(&j->layout_model)) {
        strbuf_printf(out, "--activations=%s\n", j->weight_only ? "f32" : "int8");
    }
    char sums[256];
    device_sums(j->device, sums, sizeof sums);
    strbuf_printf(out, "sums=%s\n", sums);
    strbuf_printf(out, "--template-date=%s\n",
                  j->o->template_date != NULL ? j->o->template_date : CHAT_DATE_DEFAULT);
    strbuf_printf(out, "--capacity-factor=%.17g\n--capacity-policy=%d\n", j->o->capacity_factor,
                  (int)j->policy);
    if (j->part.n > 0) input_part_setting(&j->part, out);
    if (j->o->mode == LEAD_SCORE) return strbuf_status(out);
    strbuf_printf(out, "--max-tokens=%lld\n--temperature=%.17g\n--top-p=%.17g\n--top-k=%lld\n",
                  (long long)d->max_tokens, d->temperature, d->top_p, (long long)d->top_k);
    strbuf_printf(out, "--repetition-penalty=%.17g\n--presence-penalty=%.17g\n",
                  d->repetition_penalty, d->presence_penalty);
    strbuf_printf(out, "--frequency-penalty=%.17g\n--n=%lld\n--logprobs=%lld\n",
                  d->frequency_penalty, (long long)d->n, (long long)d->logprobs);
    strbuf_printf(out, "--min-p=%.17g\n--seed=%llu\n--stop=", d->min_p,
                  (unsigned long long)d->seed);
    for (size_t i = 0; i < d->n_stops; i++) {
        if (i > 0) strbuf_puts(out, ",");
        strbuf_json_string(out, d->stops[i], strlen(d->stops[i]));
    }
    strbuf_puts(out, "\n");
    return strbuf_status(out);
}

struct status job_journal_session(const struct job *j, struct strbuf *out)
{
    const struct layout *l = j->layout;
    strbuf_printf(out, "%s %s, %u ranks = dp %u x pp %u x tp %u", command_name(j->o),
                  j->layout_model.name, l->n_ranks, l->dp, l->pp, l->tp);
    return strbuf_status(out);
}
