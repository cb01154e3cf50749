/* The table rows of all flags of a job. */
#include "job/job_options.h"

#include "arch/arch.h"
#include "job/drain.h"

#include <string.h>

static bool read_part(const char *text, void *part)
{
    return input_part_parse(text, part);
}

static bool read_time(const char *text, void *seconds)
{
    return drain_parse_time(text, seconds);
}

static bool read_failpoint(const char *text, void *failpoint)
{
    const struct status st = failpoint_parse(text, failpoint);
    return !status_failed(&st);
}

static bool read_size(const char *text, void *bytes)
{
    return weights_size_parse(text, bytes);
}

/* Parses DIR:SIZE; DIR may contain colons. */
static bool read_place(const char *text, void *place)
{
    struct tier_place *p = place;
    const char *colon = strrchr(text, ':');
    const size_t n = colon != NULL ? (size_t)(colon - text) : 0;
    if (n == 0 || n >= TIER_DIR_BYTES) return false;
    memcpy(p->dir, text, n);
    p->dir[n] = '\0';
    return weights_size_parse(colon + 1, &p->n_bytes);
}

#define FLAG_OWNER struct job_file_flags
static const struct flag file_rows[] = {JOB_FILE_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER
#define FLAG_OWNER struct layout_flags
static const struct flag layout_rows[] = {LAYOUT_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER
#define FLAG_OWNER struct request_defaults
static const struct flag sampling_rows[] = {SAMPLING_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER
#define FLAG_OWNER struct model_flags
static const struct flag model_rows[] = {MODEL_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER
#define FLAG_OWNER struct weights_flags
static const struct flag weights_rows[] = {WEIGHTS_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER
#define FLAG_OWNER struct tier_flags
static const struct flag tier_rows[] = {TIER_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER
#define FLAG_OWNER struct capacity_flags
static const struct flag capacity_rows[] = {CAPACITY_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER
#define FLAG_OWNER struct schedule_flags
static const struct flag schedule_rows[] = {SCHEDULE_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER
#define FLAG_OWNER struct device_flags
static const struct flag device_rows[] = {DEVICE_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER
#define FLAG_OWNER struct lead_flags
static const struct flag lead_rows[] = {LEAD_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER
#define FLAG_OWNER struct job_run_flags
static const struct flag run_rows[] = {JOB_RUN_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER
#define FLAG_OWNER struct embed_flags
static const struct flag embed_rows[] = {EMBED_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER
#define FLAG_OWNER struct rank_flags
static const struct flag rank_rows[] = {RANK_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER
#define FLAG_OWNER struct http_flags
static const struct flag http_rows[] = {HTTP_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER

#define GROUP(rows, part) FLAG_GROUP(rows, offsetof(struct job_options, part))

const struct flag_group job_groups[JOB_GROUP_COUNT] = {
    [JOB_FILES] = GROUP(file_rows, files),
    [JOB_LAYOUT] = GROUP(layout_rows, layout),
    [JOB_SAMPLING] = GROUP(sampling_rows, sampling),
    [JOB_MODEL] = GROUP(model_rows, model),
    [JOB_WEIGHTS] = GROUP(weights_rows, weights),
    [JOB_TIER] = GROUP(tier_rows, tier),
    [JOB_CAPACITY] = GROUP(capacity_rows, capacity),
    [JOB_SCHEDULE] = GROUP(schedule_rows, schedule),
    [JOB_DEVICE] = GROUP(device_rows, device),
    [JOB_LEAD] = GROUP(lead_rows, lead),
    [JOB_RUN] = GROUP(run_rows, run),
    [JOB_EMBED] = GROUP(embed_rows, embed),
    [JOB_RANK] = GROUP(rank_rows, rank),
    [JOB_HTTP] = GROUP(http_rows, http),
};

void job_bound_context(uint32_t max_model_len, struct arch *m)
{
    const bool is_less = max_model_len > 0 && max_model_len < m->context;
    if (m->index.n_heads > 0 && is_less) m->context = max_model_len;
}

uint32_t job_step_tokens(const struct job_options *o, const struct arch *m, uint32_t context)
{
    const uint32_t n = (uint32_t)o->schedule.step_tokens;
    return m->encoder && n < context ? context : n;
}
