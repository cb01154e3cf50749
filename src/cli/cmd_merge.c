/* shoal merge: joins the outputs of a job array, and proves that no row is missing or
 * duplicated. */
#include "base/file_claims.h"
#include "cli/cmd.h"
#include "options/flags.h"
#include "serve/input/input_files.h"
#include "serve/lead/merge.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define MERGE_FLAGS(FLAG)                                                                          \
    FLAG(struct flag_list, input, "input", OF_LIST("IN.jsonl"),                                    \
         .help = "the whole input of the array; if the parts' jobs had several, the same ones in " \
                 "the same order")                                                                 \
    FLAG(const char *, output, "output", OF_TEXT("OUT.jsonl"),                                     \
         .help = "written or replaced only after every check has passed")                          \
    FLAG(const char *, journal, "journal", OF_TEXT("DIR"),                                         \
         .help = "where the parts' journals are, if they were run with --journal DIR")             \
    FLAG(uint32_t, frame_bytes, "output-frame", OF_COUNT(1, 1 << 30, "BYTES"),                     \
         .preset = "1048576",                                                                      \
         .help = "bytes of rows in each frame of a compressed output (.gz, .zst, .xz): as the "    \
                 "parts' jobs had it")                                                             \
    FLAG(bool, strict, "strict", OF_SWITCH, .help = "exit with 4 when a row is an error row")      \
    FLAG(bool, quiet, "quiet", OF_SWITCH, .help = "no summary on stdout")

struct merge_flags {
    MERGE_FLAGS(FLAG_FIELD)
};

#define FLAG_OWNER struct merge_flags
static const struct flag rows[] = {MERGE_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER

static const struct flag_group group = FLAG_GROUP(rows, 0);
static const struct flag_table table = {.groups = &group, .n_groups = 1};

static const char text[] =
    "PART... are the outputs of jobs with --input-part 1/N to N/N, in any order, with their "
    "journals beside them. Nothing is written unless each of the N parts is given once, all are "
    "complete and of the same model, input and flags, each line of the input has exactly one row, "
    "and each row is the one that its journal recorded for these bytes of the line.\n"
    "The file is byte for byte what one job over the whole input would have written. So a row "
    "whose custom_id an earlier part has, which its own job could not know, becomes an error row.";

/* Claims the output while writing it, so that no job or other merge writes it too. */
static struct status run_alone(const struct merge_options *o, const struct config *env,
                               struct merge_result *result)
{
    struct file_claims *claims = NULL;
    TRY(file_claims_create(env->job[0] != '\0' ? env->job : NULL, env->launcher_pid, &claims));
    struct status st = file_claims_add(claims, "output", o->output_path);
    if (!status_failed(&st)) st = merge_run(o, result);
    file_claims_destroy(&claims);
    return st;
}

static struct status check_merge_flags(const struct merge_flags *flags,
                                       const struct positionals *parts)
{
    if (flags->input.n == 0) return status_make(STATUS_USAGE, "--input IN.jsonl is missing");
    if (flags->output == NULL) return status_make(STATUS_USAGE, "--output OUT.jsonl is missing");
    if (*flags->output == '\0' || strcmp(flags->output, "-") == 0)
        return status_make(STATUS_USAGE, "--output: expected a file's name, found %s",
                           *flags->output == '\0' ? "an empty one" : "-; merge writes a file");
    if (parts->n == 0) return status_make(STATUS_USAGE, "expected the outputs of the parts");
    return status_ok();
}

static struct status merge_parts(const struct merge_flags *flags, const struct positionals *parts,
                                 const struct config *env, const struct input_files *input,
                                 struct merge_result *result)
{
    const struct merge_options o = {.input = input,
                                    .output_path = flags->output,
                                    .frame_bytes = flags->frame_bytes,
                                    .journal_folder = flags->journal,
                                    .parts = parts->values,
                                    .n_parts = parts->n};
    return run_alone(&o, env, result);
}

static void print_result(const struct merge_flags *flags, const char *input, size_t n_parts,
                         const struct merge_result *r)
{
    printf("%s: %llu rows of %zu parts, %llu error rows", flags->output,
           (unsigned long long)r->n_rows, n_parts, (unsigned long long)r->n_error_rows);
    if (r->n_duplicates > 0) {
        printf(" (%llu repeat a custom_id of an earlier part)",
               (unsigned long long)r->n_duplicates);
    }
    printf("; every line of %s has exactly one row\n", input);
    if (r->n_scored > 0) {
        printf("perplexity %.6f over %llu tokens\n", exp(-r->sum_logprob / (double)r->n_scored),
               (unsigned long long)r->n_scored);
    }
}

int cmd_merge(struct config env, int argc, char **argv)
{
    if (env.launcher_rank != 0) return 0; /* one process merges */
    struct merge_flags flags = {.strict = false};
    struct flags_parsed parsed = {.positionals = {.n_wanted = POSITIONALS_MAX}};
    struct merge_result result = {.n_rows = 0};
    struct input_files inputs = {.n = 0};
    struct status st = flags_parse(&table, argc, argv, &flags, &parsed);
    if (parsed.ask != FLAGS_RUN) {
        const struct flags_page page = {.command = argv[0],
                                        .arguments = "--input IN.jsonl --output OUT.jsonl PART...",
                                        .summary = "join the outputs of a job array",
                                        .description = text,
                                        .table = &table};
        flags_print(&page, parsed.ask, stdout);
        return 0;
    }
    if (!status_failed(&st)) st = check_merge_flags(&flags, &parsed.positionals);
    if (!status_failed(&st)) st = input_files_expand(flags.input.values, flags.input.n, &inputs);
    if (!status_failed(&st)) st = merge_parts(&flags, &parsed.positionals, &env, &inputs, &result);
    if (!status_failed(&st) && !flags.quiet)
        print_result(&flags, inputs.name, parsed.positionals.n, &result);
    input_files_fini(&inputs);
    if (!status_failed(&st) && flags.strict && result.n_error_rows > 0) {
        st = status_make(STATUS_ROWS, "%llu rows are error rows",
                         (unsigned long long)result.n_error_rows);
    }
    if (!status_failed(&st)) return 0;
    fprintf(stderr, "shoal merge: %s\n", st.text);
    return status_exit(st.code);
}
