/* Paths of a job: paths that would destroy another file are refused before any file is touched. */
#include "job/job_paths.h"

#include "job/job_journal.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64], model[96], input[96], other[96], link_to_model[96];

static void touch(const char *path)
{
    FILE *f = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    fputs("kept", f);
    fclose(f);
}

static void setup(void)
{
    strcpy(dir, "/tmp/shoal-test-paths-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(dir));
    snprintf(model, sizeof model, "%s/m.h5", dir);
    snprintf(input, sizeof input, "%s/in.jsonl", dir);
    snprintf(other, sizeof other, "%s/other", dir);
    snprintf(link_to_model, sizeof link_to_model, "%s/link.h5", dir);
    touch(model);
    touch(input);
    CU_ASSERT_EQUAL_FATAL(symlink(model, link_to_model), 0);
}

static void teardown(void)
{
    unlink(link_to_model);
    unlink(model);
    unlink(input);
    rmdir(dir);
}

static struct status check(const char *output, const char *logits, const char *report)
{
    const struct job_options o = {.files = {.model = model,
                                            .input = {.values = {input}, .n = 1},
                                            .output = output,
                                            .logits = logits,
                                            .metrics = report}};
    return job_paths_check(&o);
}

static void files_of_their_own_are_taken(void)
{
    setup();
    CU_ASSERT_EQUAL(check(other, NULL, NULL).code, STATUS_OK);
    CU_ASSERT_EQUAL(check("-", NULL, NULL).code, STATUS_OK);
    CU_ASSERT_EQUAL(check("/dev/null", NULL, "/dev/null").code, STATUS_OK);
    CU_ASSERT_EQUAL(check("relative-and-new", NULL, NULL).code, STATUS_OK);
    CU_ASSERT_EQUAL(access(other, F_OK), -1); /* no file was created */
    teardown();
}

static void a_copy_takes_no_ones_place(void)
{
    setup();
    CU_ASSERT_EQUAL(job_paths_check_copy(model, other, input).code, STATUS_OK);
    CU_ASSERT_EQUAL(job_paths_check_copy(model, model, NULL).code, STATUS_USAGE);
    CU_ASSERT_EQUAL(job_paths_check_copy(link_to_model, model, NULL).code, STATUS_USAGE);
    CU_ASSERT_EQUAL(job_paths_check_copy(model, link_to_model, NULL).code, STATUS_USAGE);
    CU_ASSERT_EQUAL(job_paths_check_copy(model, input, input).code, STATUS_USAGE);
    CU_ASSERT_EQUAL(job_paths_check_copy(model, "m.GGUF", NULL).code, STATUS_USAGE);
    CU_ASSERT_EQUAL(job_paths_check_copy(dir, "x/model.safetensors", NULL).code, STATUS_USAGE);
    CU_ASSERT_EQUAL(job_paths_check_copy(dir, "x.y/model", NULL).code, STATUS_OK);
    CU_ASSERT_EQUAL(job_paths_check_copy(model, dir, NULL).code, STATUS_IO);
    CU_ASSERT_EQUAL(job_paths_check_copy(model, "/dev/full", NULL).code, STATUS_USAGE);
    teardown();
}

static void models_that_are_none_yet_are_named(void)
{
    setup();
    CU_ASSERT_EQUAL(job_paths_check_model("model", model).code, STATUS_OK);
    CU_ASSERT_EQUAL(job_paths_check_model("model", "not-there").code,
                    STATUS_OK); /* opening the file will report it */
    const char *const sources[] = {dir, "a.gguf", "a/b.safetensors"};
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        const struct status st = job_paths_check_model("draft", sources[i]);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        CU_ASSERT_EQUAL(strncmp(st.text, "--draft ", 8), 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "shoal convert"));
    }
    teardown();
}

static void one_file_for_two_is_refused(void)
{
    setup();
    char sentence[256];
    const struct status st = check(model, NULL, NULL);
    snprintf(sentence, sizeof sentence, "--output %s: expected another file than --model's", model);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    CU_ASSERT_STRING_EQUAL(st.text, sentence);
    CU_ASSERT_EQUAL(check(link_to_model, NULL, NULL).code, STATUS_USAGE);
    CU_ASSERT_EQUAL(check(input, NULL, NULL).code, STATUS_USAGE);
    CU_ASSERT_EQUAL(check(other, model, NULL).code, STATUS_USAGE);
    CU_ASSERT_EQUAL(check(other, NULL, input).code, STATUS_USAGE);
    CU_ASSERT_EQUAL(check(other, NULL, other).code, STATUS_USAGE); /* neither exists yet */
    CU_ASSERT_EQUAL(check(other, other, NULL).code, STATUS_USAGE);
    teardown();
}

static void a_pipe_takes_no_journal(void)
{
    setup();
    CU_ASSERT_EQUAL_FATAL(mkfifo(other, 0600), 0);
    struct job_options o = {
        .files = {.model = model, .input = {.values = {input}, .n = 1}, .output = other}};
    const struct status st = job_paths_check(&o);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "found a pipe"));
    o.files.no_journal = true;
    CU_ASSERT_EQUAL(job_paths_check(&o).code, STATUS_OK);
    unlink(other);
    teardown();
}

/* The file of a further flag (here --svg or --json) must not replace a file that the job reads,
 * whatever flag names that file. */
static void a_file_of_another_flag_replaces_none(void)
{
    setup();
    const struct job_options o = {
        .files = {.model = model, .input = {.values = {input}, .n = 1}, .nodes = link_to_model}};
    CU_ASSERT_EQUAL(job_paths_check_more(&o, "svg", other).code, STATUS_OK);
    CU_ASSERT_EQUAL(job_paths_check_more(&o, "svg", NULL).code, STATUS_OK);
    CU_ASSERT_EQUAL(job_paths_check_more(&o, "json", "-").code, STATUS_OK);
    const struct status st = job_paths_check_more(&o, "svg", input);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "expected another file than --input's"));
    CU_ASSERT_EQUAL(job_paths_check_more(&o, "svg", model).code, STATUS_USAGE);
    CU_ASSERT_EQUAL(job_paths_check_more(&o, "svg", link_to_model).code, STATUS_USAGE);
    CU_ASSERT_EQUAL(job_paths_check_more(&o, "svg", "").code, STATUS_USAGE);
    CU_ASSERT_EQUAL(job_paths_check_more(&o, "svg", dir).code, STATUS_IO);
    teardown();
}

static void files_that_are_read_are_kept(void)
{
    setup();
    touch(other);
    for (int i = 0; i < 5; i++) {
        struct job_options o = {.files = {.model = model, .output = "-", .metrics = other}};
        if (i == 0) o.files.nodes = other;
        if (i == 1) o.files.prompt_template = other;
        if (i == 2) o.layout.expert_load = other;
        if (i == 3) o.rank.pair_template = other;
        if (i == 4) o.files.draft = other;
        CU_ASSERT_EQUAL(job_paths_check(&o).code, STATUS_USAGE);
    }
    unlink(other);
    teardown();
}

static void a_missing_folder_is_named_at_once(void)
{
    setup();
    static char path[5000];
    char sentence[160];
    snprintf(path, sizeof path, "%s/missing/report.json", dir);
    snprintf(sentence, sizeof sentence, "--metrics %s/missing/report.json: cannot be written: %s",
             dir, "No such file or directory");
    const struct status st = check(other, NULL, path);
    CU_ASSERT_EQUAL(st.code, STATUS_IO);
    CU_ASSERT_STRING_EQUAL(st.text, sentence);
    CU_ASSERT_EQUAL(check(path, NULL, NULL).code, STATUS_IO);
    memset(path, 'x', sizeof path - 1);
    CU_ASSERT_EQUAL(check(path, NULL, NULL).code, STATUS_IO);
    teardown();
}

static void a_folder_is_no_file_to_write_to(void)
{
    setup();
    const struct status st = check(other, NULL, dir);
    CU_ASSERT_EQUAL(st.code, STATUS_IO);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "--metrics"));
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "found a folder"));
    CU_ASSERT_EQUAL(check(dir, NULL, NULL).code, STATUS_IO);
    CU_ASSERT_EQUAL(check(other, dir, NULL).code, STATUS_IO);
    CU_ASSERT_EQUAL(job_paths_check_written("json", dir).code, STATUS_IO);
    CU_ASSERT_EQUAL(job_paths_check_written("json", other).code, STATUS_OK);
    teardown();
}

static void empty_names_are_refused(void)
{
    setup();
    const struct status st = check("", NULL, NULL);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    CU_ASSERT_STRING_EQUAL(st.text, "--output: expected a file's name, found an empty one");
    const struct job_options o = {
        .files = {.model = model, .input = {.values = {""}, .n = 1}, .output = other}};
    CU_ASSERT_EQUAL(job_paths_check(&o).code, STATUS_USAGE);
    CU_ASSERT_EQUAL(check(other, "", NULL).code, STATUS_USAGE);
    CU_ASSERT_EQUAL(check(other, NULL, "").code, STATUS_USAGE);
    CU_ASSERT_EQUAL(job_paths_check_model("model", "").code, STATUS_USAGE);
    CU_ASSERT_EQUAL(job_paths_check_copy(model, "", NULL).code, STATUS_USAGE);
    CU_ASSERT_EQUAL(job_paths_check_copy("", other, NULL).code, STATUS_USAGE);
    char *path = NULL;
    const struct job_options no_folder = {.files = {.output = other, .journal = ""}};
    const struct status refused = job_journal_path(&no_folder, &path);
    CU_ASSERT_EQUAL(refused.code, STATUS_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(refused.text, "--journal: expected a folder's name"));
    teardown();
}

/* Returns the status of a job with this --input that writes `other`, which does not exist yet. */
static enum status_code check_pattern(const char *name)
{
    char given[128];
    const char *list[1] = {given};
    struct input_files inputs;
    snprintf(given, sizeof given, "%s/%s", dir, name);
    const struct job_options o = {.files = {.input = {.values = {given}, .n = 1}, .output = other}};
    CU_ASSERT_EQUAL_FATAL(input_files_expand(list, 1, &inputs).code, STATUS_OK);
    const struct status st = job_paths_check_inputs(&o, &inputs);
    input_files_fini(&inputs);
    return st.code;
}

/* Returns the status of a job whose --input is a pattern in the current folder, and which writes to
 * stdout. */
static enum status_code check_stdout(void)
{
    char before[4096];
    const char *list[1] = {"[!lm]*"};
    struct input_files inputs;
    const struct job_options o = {
        .files = {.input = {.values = {"[!lm]*"}, .n = 1}, .output = "-"}};
    CU_ASSERT_PTR_NOT_NULL_FATAL(getcwd(before, sizeof before));
    CU_ASSERT_EQUAL_FATAL(chdir(dir), 0);
    CU_ASSERT_EQUAL(input_files_expand(list, 1, &inputs).code, STATUS_OK);
    const struct status st = job_paths_check_inputs(&o, &inputs);
    input_files_fini(&inputs);
    CU_ASSERT_EQUAL_FATAL(chdir(before), 0);
    return st.code;
}

/* Otherwise the output of the first run would be an input of the second, which would be refused. */
static void outputs_that_a_pattern_will_match_are_refused(void)
{
    setup();
    CU_ASSERT_EQUAL(check_pattern("[!lm]*"), STATUS_USAGE);
    CU_ASSERT_EQUAL(check_pattern("../shoal-test-paths*/[hijkno]*"), STATUS_USAGE);
    CU_ASSERT_EQUAL(check_pattern("*.jsonl"), STATUS_OK);
    CU_ASSERT_EQUAL(check_pattern("i*"), STATUS_OK);
    CU_ASSERT_EQUAL(check_pattern("in.jsonl"), STATUS_OK);
    CU_ASSERT_EQUAL(check_stdout(), STATUS_OK);
    CU_ASSERT_EQUAL(check_pattern("../../tm[p]"), STATUS_OK); /* only /tmp itself can match */
    teardown();
}

void suite_job_paths(CU_pSuite suite);
void suite_job_paths(CU_pSuite suite)
{
    CU_add_test(suite, "a copy takes no one's place", a_copy_takes_no_ones_place);
    CU_add_test(suite, "models that are none yet are named", models_that_are_none_yet_are_named);
    CU_add_test(suite, "files of their own are taken", files_of_their_own_are_taken);
    CU_add_test(suite, "one file for two is refused", one_file_for_two_is_refused);
    CU_add_test(suite, "a pipe takes no journal", a_pipe_takes_no_journal);
    CU_add_test(suite, "a folder is no file to write to", a_folder_is_no_file_to_write_to);
    CU_add_test(suite, "empty names are refused", empty_names_are_refused);
    CU_add_test(suite, "a file of another flag replaces none",
                a_file_of_another_flag_replaces_none);
    CU_add_test(suite, "files that are read are kept", files_that_are_read_are_kept);
    CU_add_test(suite, "a missing folder is named at once", a_missing_folder_is_named_at_once);
    CU_add_test(suite, "outputs that a pattern will match are refused",
                outputs_that_a_pattern_will_match_are_refused);
}
