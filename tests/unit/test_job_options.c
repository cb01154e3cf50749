/* The table of a job's flags: every row is valid, and no two flags have the same name. Also tests
 * limits, and options that depend on others. */
#include "job/drain.h"
#include "job/job_private.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

static const enum flag_command commands[] = {IN_GENERATE, IN_SCORE, IN_BENCH, IN_PLAN,
                                             IN_SERVE,    IN_EMBED, IN_RANK};
enum { N_COMMANDS = sizeof commands / sizeof *commands, NAMES_MAX = 2 * FLAGS_GIVEN_MAX };

static struct flag_table table_of(enum flag_command command)
{
    return (struct flag_table){
        .groups = job_groups, .n_groups = JOB_GROUP_COUNT, .command = command};
}

static bool is_taken(const struct flag *f, enum flag_command command)
{
    return ((f->commands != 0 ? f->commands : (uint32_t)IN_JOBS) & command) != 0;
}

/* Collects the names and aliases of a command's flags; returns their number. */
static size_t names_of(enum flag_command command, const char *names[NAMES_MAX])
{
    size_t n = 0;
    for (size_t g = 0; g < JOB_GROUP_COUNT; g++) {
        for (size_t i = 0; i < job_groups[g].n; i++) {
            const struct flag *f = &job_groups[g].rows[i];
            if (!is_taken(f, command)) continue;
            names[n++] = f->name;
            if (f->alias != NULL) names[n++] = f->alias;
        }
    }
    return n;
}

static void no_two_flags_have_one_name(void)
{
    const char *names[NAMES_MAX];
    for (size_t c = 0; c < N_COMMANDS; c++) {
        const size_t n = names_of(commands[c], names);
        CU_ASSERT_FATAL(n > 5 && n <= FLAGS_GIVEN_MAX);
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < i; k++) CU_ASSERT_STRING_NOT_EQUAL(names[i], names[k]);
    }
}

/* True when two sets of options have the same value of a flag. */
static bool same_value(const struct flag *f, const void *a, const void *b)
{
    if (f->kind != FLAG_STRING) return memcmp(a, b, f->n_bytes) == 0;
    const char *x, *y; /* equal texts at other addresses */
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x != NULL && y != NULL && strcmp(x, y) == 0;
}

/* Giving a flag's preset is accepted, and changes nothing. */
static void takes_preset(enum flag_command command, const struct flag_group *g,
                         const struct flag *f)
{
    static struct job_options left_out, given;
    static struct flags_parsed parsed;
    const struct flag_table table = table_of(command);
    char name[64], value[1024];
    char *argv[] = {name, name, value, NULL};
    snprintf(name, sizeof name, "--%s", f->name);
    snprintf(value, sizeof value, "%s", f->preset);
    memset(&given, 0, sizeof given);
    memset(&left_out, 0, sizeof left_out);
    memset(&parsed, 0, sizeof parsed);
    CU_ASSERT_EQUAL(flags_parse(&table, 1, argv, &left_out, &parsed).code, STATUS_OK);
    CU_ASSERT_EQUAL(flags_parse(&table, 3, argv, &given, &parsed).code, STATUS_OK);
    const size_t at = g->offset + f->offset;
    const bool same = same_value(f, (char *)&given + at, (char *)&left_out + at);
    if (!same) printf("\n  --%s\n", f->name);
    CU_ASSERT(same);
}

static void every_flag_takes_its_preset(void)
{
    for (size_t c = 0; c < N_COMMANDS; c++) {
        for (size_t g = 0; g < JOB_GROUP_COUNT; g++) {
            for (size_t i = 0; i < job_groups[g].n; i++) {
                const struct flag *f = &job_groups[g].rows[i];
                if (f->preset == NULL || !is_taken(f, commands[c])) continue;
                takes_preset(commands[c], &job_groups[g], f);
            }
        }
    }
}

static void sizes_are_decimal(void)
{
    static const struct {
        const char *text;
        uint64_t n_bytes; /* 0: refused */
    } cases[] = {{"4096", 4096},      {"1K", 1024}, {"1.5M", 3 << 19}, {".5K", 512},
                 {"1e3K", 1024000},   {"0", 0},     {"-1", 0},         {"4GiB", 0},
                 {"4g", 0},           {"4 G", 0},   {" 4G", 0},        {"0x10", 0},
                 {"0x1p20", 0},       {"inf", 0},   {"nan", 0},        {"G", 0},
                 {"99999999999T", 0}, {"", 0},      {"4KK", 0},        {"\t4", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t n = 0;
        const bool is_size = weights_size_parse(cases[i].text, &n);
        if (n != cases[i].n_bytes) printf("\n  %s\n", cases[i].text);
        CU_ASSERT_EQUAL(is_size, cases[i].n_bytes > 0);
        CU_ASSERT_EQUAL(n, cases[i].n_bytes);
    }
}

static void limits_are_those_of_the_documents(void)
{
    static char *const cases[][3] = {
        {"--top-k", "-1", "good"},        {"--top-k", "-2", NULL},
        {"--network", "0", NULL},         {"--network", "0,2us", NULL},
        {"--network", "100,0us", "good"}, {"--network", "1e-3", "good"}};
    const struct flag_table table = table_of(IN_GENERATE);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct job_options o;
        static struct flags_parsed parsed;
        char *argv[] = {"generate", cases[i][0], cases[i][1], NULL};
        memset(&o, 0, sizeof o);
        memset(&parsed, 0, sizeof parsed);
        const struct status st = flags_parse(&table, 3, argv, &o, &parsed);
        CU_ASSERT_EQUAL(st.code, cases[i][2] != NULL ? STATUS_OK : STATUS_USAGE);
    }
}

/* Folders for KV blocks are checked before a weight is loaded. */
static void folders_for_kv_blocks_are_checked_first(void)
{
    static const struct {
        const char *folder;
        bool for_tier, for_store;
    } cases[] = {{"/tmp", true, true},
                 {"/dev/null", false, false},
                 {"/tmp/shoal-none", false, true}, /* a store makes its folder */
                 {"/tmp/shoal-none/", false, true},
                 {"/tmp/shoal-none/store", false, false}};
    static struct job_options o;
    static struct job j;
    const struct flag_table table = table_of(IN_GENERATE);
    memset(&o, 0, sizeof o);
    flags_preset(&table, &o);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int is_store = 0; is_store < 2; is_store++) {
            struct tier_place *place = is_store ? &o.tier.prefix_store : &o.tier.kv_tier;
            memset(&o.tier, 0, sizeof o.tier);
            snprintf(place->dir, sizeof place->dir, "%s", cases[i].folder);
            place->n_bytes = 1 << 20;
            job_init(&j, &o, (struct config){0});
            const struct status st = job_check_tier(&j);
            const bool is_good = is_store ? cases[i].for_store : cases[i].for_tier;
            CU_ASSERT_EQUAL(st.code, is_good ? STATUS_OK : STATUS_IO);
            if (is_good) continue;
            CU_ASSERT_PTR_NOT_NULL(strstr(st.text, is_store ? "--prefix-store" : "--kv-tier"));
            CU_ASSERT_PTR_NOT_NULL(strstr(st.text, cases[i].folder));
        }
    }
}

/* With all presets, the lines that a journal keeps of flags must not change, because existing
 * journals contain them. */
static void the_settings_of_presets_stand_still(void)
{
    static struct job_options o;
    const struct flag_table table = table_of(IN_GENERATE);
    const char *expected = "--max-tokens=128\n--temperature=1\n--top-p=1\n--top-k=0\n"
                           "--repetition-penalty=1\n--presence-penalty=0\n--frequency-penalty=0\n"
                           "--n=1\n--logprobs=0\n--min-p=0\n--seed=0\n--stop=\n"
                           "--max-model-len=0\n--kv-dtype=f16\n--activations=int8\n"
                           "--capacity-factor=0\n--capacity-policy=1\n--template-date=2024-07-26\n";
    struct strbuf s;
    strbuf_init(&s);
    memset(&o, 0, sizeof o);
    flags_preset(&table, &o);
    for (size_t g = 0; g < JOB_GROUP_COUNT; g++) {
        if (g == JOB_EMBED || g == JOB_RANK) continue; /* not in journals of other commands */
        flags_settings(&job_groups[g], &o, NULL, &s);
    }
    CU_ASSERT_STRING_EQUAL(s.data, expected);
    strbuf_fini(&s);
}

/* The time limit leaves room for a step as long as the longest recent one, even after many short
 * ones. */
static void a_long_step_is_remembered(void)
{
    uint64_t longest_ns = drain_longest(0, 140u * 1000000000ull);
    for (int i = 0; i < 200; i++) longest_ns = drain_longest(longest_ns, 1500000000u);
    CU_ASSERT(longest_ns > 135u * 1000000000ull && longest_ns < 140u * 1000000000ull);
    for (int i = 0; i < 12000; i++) longest_ns = drain_longest(longest_ns, 1500000000u);
    CU_ASSERT_EQUAL(longest_ns, 1500000000u);
    CU_ASSERT_EQUAL(drain_longest(longest_ns, 2000000000u), 2000000000u);
}

/* A capacity factor counts all rows of a step, so a layout must not plan for half steps. */
static void a_capacity_keeps_steps_whole(void)
{
    static struct job_options o;
    static struct job j;
    const struct flag_table table = table_of(IN_GENERATE);
    memset(&o, 0, sizeof o);
    flags_preset(&table, &o);
    for (int i = 0; i < 2; i++) {
        o.layout.overlap = OVERLAP_ON;
        o.capacity.factor = i == 0 ? 0 : 1.5;
        job_init(&j, &o, (struct config){0});
        CU_ASSERT_EQUAL(job_check_options(&j).code, STATUS_OK);
        CU_ASSERT_EQUAL(j.o->layout.overlap, i == 0 ? OVERLAP_ON : OVERLAP_OFF);
    }
}

/* One rank runs the draft model, in the memory of its host, so each rank of that host gets less. */
static void ranks_of_a_host_share_the_memory_of_a_draft_model(void)
{
    CU_ASSERT_EQUAL(job_memory_part(4000, 0, 4), 600);
    CU_ASSERT_EQUAL(job_memory_part(4000, 800, 4), 480);
    CU_ASSERT_EQUAL(job_memory_part(4000, 5000, 4), 0);
}

void suite_job_options(CU_pSuite suite);
void suite_job_options(CU_pSuite suite)
{
    CU_add_test(suite, "no two flags have one name", no_two_flags_have_one_name);
    CU_add_test(suite, "every flag takes its preset", every_flag_takes_its_preset);
    CU_add_test(suite, "sizes are decimal", sizes_are_decimal);
    CU_add_test(suite, "limits are those of the documents", limits_are_those_of_the_documents);
    CU_add_test(suite, "folders for KV blocks are checked first",
                folders_for_kv_blocks_are_checked_first);
    CU_add_test(suite, "the settings of presets stand still", the_settings_of_presets_stand_still);
    CU_add_test(suite, "a long step is remembered", a_long_step_is_remembered);
    CU_add_test(suite, "a capacity keeps steps whole", a_capacity_keeps_steps_whole);
    CU_add_test(suite, "ranks of a host share the memory of a draft model",
                ranks_of_a_host_share_the_memory_of_a_draft_model);
}
