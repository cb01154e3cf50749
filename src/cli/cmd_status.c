/* shoal status: shows from the journal how far a job is, while it runs and after. */
#include "base/mem.h"
#include "base/strbuf.h"
#include "cli/cmd.h"
#include "cli/status_forecast.h"
#include "options/flags.h"
#include "serve/journal/journal_format.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define STATUS_FLAGS(FLAG) FLAG(bool, json, "json", OF_SWITCH, .help = "print one JSON object")

struct status_flags {
    STATUS_FLAGS(FLAG_FIELD)
};

struct status_options {
    struct status_flags flags;
    struct status_forecast_flags forecast;
};

#define FLAG_OWNER struct status_flags
static const struct flag rows[] = {STATUS_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER
#define FLAG_OWNER struct status_forecast_flags
static const struct flag forecast_rows[] = {STATUS_FORECAST_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER

static const struct flag_group groups[] = {
    FLAG_GROUP(rows, offsetof(struct status_options, flags)),
    FLAG_GROUP(forecast_rows, offsetof(struct status_options, forecast))};
static const struct flag_table table = {.groups = groups, .n_groups = 2};

static const char text[] =
    "JOURNAL is a job's journal or its output file. Says how many rows are done, how many of them "
    "are error rows, the rate of the last run and about how long the rest takes. Of several, such "
    "as those of a job array, prints one line each, then their sum. Only reads, so it may run "
    "while the job runs.";

/* A job's state and rates, as they are shown. */
struct view {
    const char *state;
    const struct journal_facts *f;
    double total; /* lines of the input; negative: not known */
    double session_s, rows_per_s, tokens_per_s, left_s; /* left_s negative: not known */
    bool is_forecast; /* left_s comes from the cost model; false: from rows_per_s */
};

static double total_lines(const struct journal_facts *f)
{
    if (f->is_complete) return (double)f->end_lines;
    if (f->input_bytes == 0 || f->n_read_bytes == 0) return -1;
    return (double)f->n_read * (double)f->input_bytes / (double)f->n_read_bytes;
}

static struct view status_view(const struct journal_facts *f, bool is_running)
{
    struct view v = {.f = f, .total = total_lines(f), .left_s = -1};
    v.state = f->is_complete ? "complete" : is_running ? "running" : "stopped";
    v.session_s = (double)(f->last_ns - f->session_ns) * 1e-9;
    if (v.session_s > 0) {
        v.rows_per_s = (double)f->session_rows / v.session_s;
        v.tokens_per_s = (double)f->session_generated / v.session_s;
    }
    if (f->is_complete) {
        v.left_s = 0;
    } else if (v.rows_per_s > 0 && v.total >= (double)f->n_rows) {
        v.left_s = (v.total - (double)f->n_rows) / v.rows_per_s;
    }
    return v;
}

static void print_time(const char *what, uint64_t unix_ns)
{
    const time_t seconds = (time_t)(unix_ns / 1000000000u);
    struct tm tm;
    char when[64];
    if (unix_ns == 0 || localtime_r(&seconds, &tm) == NULL) return;
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S %z", &tm);
    printf("%s %s\n", what, when);
}

static void print_text(const struct view *v)
{
    const struct journal_facts *f = v->f;
    printf("state      %s%s\n", v->state,
           strcmp(v->state, "stopped") == 0 ? ": the same command resumes" : "");
    printf("rows       %llu done, %llu of them error rows", (unsigned long long)f->n_rows,
           (unsigned long long)f->n_error_rows);
    if (v->total >= 0) {
        printf(", of %s%.0f (%.1f %%)", f->is_complete ? "" : "about ", v->total,
               v->total > 0 ? 100 * (double)f->n_rows / v->total : 100.0);
    }
    printf("\ntokens     %llu prompt, %llu generated in finished rows\n",
           (unsigned long long)f->n_prompt_tokens, (unsigned long long)f->n_generated_tokens);
    printf("sessions   %llu\n", (unsigned long long)f->n_sessions);
    print_time("began     ", f->session_ns);
    print_time("last entry", f->last_ns);
    if (v->rows_per_s > 0) {
        printf("rate       %.2f rows/s, %.1f generated tokens/s (last session, %.0f s)\n",
               v->rows_per_s, v->tokens_per_s, v->session_s);
    }
    if (v->left_s > 0) {
        const unsigned long s = (unsigned long)v->left_s;
        printf("left       about %lu:%02lu:%02lu %s\n", s / 3600, s / 60 % 60, s % 60,
               v->is_forecast ? "by the lines that are left" : "at that rate");
    }
}

static void print_json(const struct view *v)
{
    const struct journal_facts *f = v->f;
    printf("{\"state\":\"%s\",\"rows\":%llu,\"error_rows\":%llu,\"total_rows\":%.0f,"
           "\"total_is_exact\":%s,\"prompt_tokens\":%llu,\"generated_tokens\":%llu,"
           "\"sessions\":%llu,\"session_start\":%.3f,\"last_entry\":%.3f,\"rows_per_s\":%.4f,"
           "\"tokens_per_s\":%.4f,\"left_s\":%.1f}\n",
           v->state, (unsigned long long)f->n_rows, (unsigned long long)f->n_error_rows, v->total,
           f->is_complete ? "true" : "false", (unsigned long long)f->n_prompt_tokens,
           (unsigned long long)f->n_generated_tokens, (unsigned long long)f->n_sessions,
           (double)f->session_ns * 1e-9, (double)f->last_ns * 1e-9, v->rows_per_s, v->tokens_per_s,
           v->left_s);
}

/* Reads the facts of a journal; out->settings is NULL if the file is no journal. Errors:
 * STATUS_INPUT. */
static struct status status_read_journal(const char *path, bool *is_running,
                                         struct journal_facts *out)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return status_make(STATUS_INPUT, "%s: %s", path, strerror(errno));
    struct status st = journal_facts_read(fd, path, out);
    *is_running = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    return st;
}

/* Reads the journal `path` or, if that is an output file, the journal beside it. */
static struct status find_journal(const char *path, bool *is_running, struct journal_facts *out)
{
    struct strbuf beside;
    struct status st = status_read_journal(path, is_running, out);
    if (!status_failed(&st) && out->settings != NULL) return st;
    strbuf_init(&beside);
    strbuf_printf(&beside, "%s.journal", path);
    st = strbuf_status(&beside);
    if (!status_failed(&st)) st = status_read_journal(beside.data, is_running, out);
    strbuf_fini(&beside);
    if (!status_failed(&st) && out->settings != NULL) return st;
    return status_make(
        STATUS_INPUT,
        "%s: expected a job's output with its journal beside it, or a journal; found "
        "no journal of this version of shoal, neither there nor at %s.journal",
        path, path);
}

/* The sums over several journals. */
struct sum {
    uint64_t n_journals, n_complete, n_rows, n_error_rows;
};

static void print_line(const struct view *v, const char *path, struct sum *sum)
{
    char part[16] = "?";
    if (v->total >= 0) {
        const double whole = v->total > 0 ? (double)v->f->n_rows / v->total : 1;
        snprintf(part, sizeof part, "%.1f %%", 100 * whole);
    }
    printf("%-9s %12llu rows %8llu errors %8s  %s\n", v->state, (unsigned long long)v->f->n_rows,
           (unsigned long long)v->f->n_error_rows, part, path);
    sum->n_journals++;
    sum->n_complete += v->f->is_complete;
    sum->n_rows += v->f->n_rows;
    sum->n_error_rows += v->f->n_error_rows;
}

/* Shows one job. sum NULL: it is the only one. */
static struct status status_show(const char *path, const struct status_options *o, struct sum *sum)
{
    struct journal_facts facts;
    bool is_running;
    TRY(find_journal(path, &is_running, &facts));
    struct view v = status_view(&facts, is_running);
    struct status st = status_ok();
    if (o->forecast.nodes != NULL && !facts.is_complete) {
        v.is_forecast = true;
        st = status_forecast_left(&o->forecast, &facts, &v.left_s);
    }
    if (status_failed(&st)) {
        journal_facts_fini(&facts);
        return st;
    }
    if (o->flags.json) {
        print_json(&v);
    } else if (sum != NULL) {
        print_line(&v, path, sum);
    } else {
        print_text(&v);
    }
    journal_facts_fini(&facts);
    return status_ok();
}

static struct status show_all(const struct positionals *paths, const struct status_options *o)
{
    struct sum sum = {.n_journals = 0};
    if (paths->n == 0)
        return status_make(STATUS_USAGE, "expected a job's output or journal: shoal status "
                                         "OUT.jsonl");
    if (paths->n == 1) return status_show(paths->values[0], o, NULL);
    for (size_t i = 0; i < paths->n; i++) TRY(status_show(paths->values[i], o, &sum));
    if (o->flags.json) return status_ok();
    printf("%llu rows, %llu of them error rows; %llu of %llu complete\n",
           (unsigned long long)sum.n_rows, (unsigned long long)sum.n_error_rows,
           (unsigned long long)sum.n_complete, (unsigned long long)sum.n_journals);
    return status_ok();
}

int cmd_status(struct config env, int argc, char **argv)
{
    (void)env;
    struct status_options o = {.flags = {.json = false}};
    struct flags_parsed parsed = {.positionals = {.n_wanted = POSITIONALS_MAX}};
    struct status st = flags_parse(&table, argc, argv, &o, &parsed);
    if (parsed.ask != FLAGS_RUN) {
        const struct flags_page page = {.command = argv[0],
                                        .arguments = "JOURNAL...",
                                        .summary = "how far a job is",
                                        .description = text,
                                        .table = &table};
        flags_print(&page, parsed.ask, stdout);
        return 0;
    }
    if (!status_failed(&st)) st = show_all(&parsed.positionals, &o);
    if (!status_failed(&st)) return 0;
    fprintf(stderr, "shoal status: %s\n", st.text);
    return status_exit(st.code);
}
