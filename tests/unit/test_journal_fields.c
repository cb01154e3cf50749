/* Jobs whose lines have random fields are killed or drained anywhere and resumed with other
 * replicas, groups, batches, chunks, caches and orders. The output must always be that of an
 * uninterrupted run. */
#include "util_journal.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

enum { JOBS = 300, LINES = 9, RUNS_MAX = 400 };

/* A line takes a random entry of each list; "" leaves the field out. Entries that exclude each
 * other make an error row, which is tested too. */
static const char *const fields[][8] = {
    {"", ",\"temperature\":0", ",\"temperature\":0", ",\"seed\":4", ",\"top_k\":5",
     ",\"top_p\":0.6"},
    {"", "", "", ",\"n\":2", ",\"n\":4", ",\"n\":3,\"seed\":8", ",\"num_beams\":3,\"n\":2"},
    {"", "", "", ",\"logprobs\":2", ",\"logprobs\":1,\"prompt_logprobs\":0"},
    {"", "", "", ",\"prompt_logprobs\":0", ",\"prompt_logprobs\":3"},
    {"", "", ",\"ignore_eos\":true", ",\"min_tokens\":3", ",\"stop_token_ids\":[65,66,67,68]"},
    {"", "", ",\"stop\":[\"e\",\"T\"]", ",\"stop\":\"oo\""},
    {"", "", "", ",\"guided_regex\":\"[a-z ]{2,30}\"", ",\"guided_json\":{\"type\":\"integer\"}",
     ",\"guided_choice\":[\"yes\",\"yeah\"]"},
    {"", "", "", ",\"bad_words\":[\"e\",\"th\"]",
     ",\"allowed_token_ids\":[97,98],\"bad_words\":[\"aa\","
     "\"ab\",\"ba\",\"bb\"]"},
    {"", "", "", ",\"repetition_penalty\":1.3", ",\"frequency_penalty\":0.5",
     ",\"logit_bias\":{\"101\":3,\"7\":-100}"},
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static const char *choose(uint64_t *x, const char *const *list)
{
    int n = 0;
    while (n < 8 && list[n] != NULL) n++;
    return list[fake_between(x, 0, n - 1)];
}

static void make_lines(uint64_t *x, struct strbuf *s)
{
    for (int i = 0; i < LINES; i++) {
        strbuf_printf(s, "{\"custom_id\":\"c%d\",\"prompt\":\"", (int)fake_between(x, 0, 40));
        for (int64_t k = fake_between(x, 1, 30); k > 0; k--)
            strbuf_printf(s, "word%d ", (int)fake_between(x, 0, 2));
        strbuf_printf(s, "\",\"max_tokens\":%d", (int)fake_between(x, 3, 40));
        for (int f = 0; f < N_FIELDS; f++) strbuf_puts(s, choose(x, fields[f]));
        if (fake_between(x, 0, 5) == 0) strbuf_puts(s, ",\"priority\":-1");
        strbuf_puts(s, "}\n");
    }
}

static void choose_options(uint64_t *x, struct lead_options *o)
{
    o->n_replicas = (int32_t)fake_between(x, 1, UTIL_REPLICAS_MAX);
    o->n_groups = (int32_t)fake_between(x, 1, UTIL_GROUPS_MAX);
    o->schedule.max_batch = (int32_t)fake_between(x, 0, 5);
    o->schedule.chunk_tokens = (int32_t)fake_between(x, 0, 2) * 17;
    o->schedule.order = (enum order_kind)fake_between(x, 0, ORDER_KIND_COUNT - 1);
    o->schedule.prefix_cache = fake_between(x, 0, 1);
    o->flags.result_cache = fake_between(x, 0, 1);
    o->flags.checkpoint_tokens = fake_between(x, 0, 2) * 3;
}

static bool comes_to_its_bytes(uint64_t seed)
{
    struct strbuf lines;
    struct util_job job;
    struct util_outcome out = {.done = false};
    uint64_t x = seed;
    bool is_right = true;
    strbuf_init(&lines);
    make_lines(&x, &lines);
    util_job_init_text(&job, lines.data, lines.n, false);
    for (int run = 0; run < RUNS_MAX && !out.done && is_right; run++) {
        choose_options(&x, &job.o);
        const bool drains = fake_between(&x, 0, 1);
        util_job_run(&job, run < 30 ? fake_between(&x, 1, 60) : UTIL_TO_THE_END, drains, &out);
        is_right = !status_failed(&out.st) && out.n_wrong == 0 && util_job_is_prefix(&job);
    }
    is_right = is_right && out.done && util_job_is_expected(&job);
    if (!is_right) printf("\n  seed %llu: %s\n", (unsigned long long)seed, out.st.text);
    util_job_fini(&job);
    strbuf_fini(&lines);
    return is_right;
}

static void lines_of_any_fields_survive_kills(void)
{
    for (uint64_t seed = 1; seed <= JOBS; seed++) CU_ASSERT_TRUE(comes_to_its_bytes(seed));
}

void suite_journal_fields(CU_pSuite suite);
void suite_journal_fields(CU_pSuite suite)
{
    CU_add_test(suite, "lines of any fields survive kills", lines_of_any_fields_survive_kills);
}
