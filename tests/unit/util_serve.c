/* Helpers for tests of serve. */
#include "util_serve.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <CUnit/CUnit.h>
#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GROUPS_MAX = 4, REPLICAS_MAX = 3 };

static const int32_t end_ids[] = {FAKE_END_ID};

/* Returns the character that represents a byte in byte-level BPE. Bytes must come in ascending
 * order; *n_moved counts those that have characters from 256 on. */
static uint32_t byte_character(int byte, uint32_t *n_moved)
{
    const bool stays = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    return stays ? (uint32_t)byte : 256 + (*n_moved)++;
}

struct tokenizer *util_byte_tokenizer(void)
{
    struct strbuf s;
    strbuf_init(&s);
    strbuf_puts(&s, "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":256,\"content\":\"<|end|>\","
                    "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                    "\"special\":true}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":"
                    "\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":"
                    "true},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},\"model\":"
                    "{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    uint32_t n_moved = 0;
    for (int b = 0; b < 256; b++) {
        char character[4];
        const size_t n = utf8_encode(byte_character(b, &n_moved), character);
        if (b > 0) strbuf_puts(&s, ",");
        strbuf_json_string(&s, character, n);
        strbuf_printf(&s, ":%d", b);
    }
    strbuf_puts(&s, "}}}");
    struct tokenizer *t = NULL;
    const struct status st = tokenizer_create(s.data, s.n, "byte tokenizer", &t);
    if (status_failed(&st)) fprintf(stderr, "%s\n", st.text);
    assert(!status_failed(&st));
    strbuf_fini(&s);
    return t;
}

uint64_t util_peak_restart(void)
{
    const int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        const ssize_t ignored = write(fd, "5", 1); /* proc(5) */
        (void)ignored;
        close(fd);
    }
    return mem_peak_bytes();
}

void util_file_create(char path[UTIL_PATH_MAX], const char *bytes, size_t n)
{
    snprintf(path, UTIL_PATH_MAX, "/tmp/shoal-serve-XXXXXX");
    const int fd = mkstemp(path);
    assert(fd >= 0);
    for (size_t done = 0; done < n;) {
        const ssize_t wrote = write(fd, bytes + done, n - done);
        assert(wrote > 0);
        done += (size_t)wrote;
    }
    close(fd);
}

void util_file_remove(const char path[UTIL_PATH_MAX])
{
    unlink(path);
}

struct lead_options util_lead_options(struct tokenizer *t, const char *input, const char *output)
{
    struct lead_options o = {
        .input_path = input,
        .output_path = output,
        .tokenizer = t,
        .end_ids = end_ids,
        .n_end_ids = 1,
        .vocab_size = FAKE_VOCAB,
        .max_model_len = 200,
        .n_replicas = 1,
        .n_groups = 1,
        .n_blocks = 500,
        .schedule = fake_schedule_flags(),
        .flags = {.quiet = true},
    };
    request_defaults_init(&o.defaults);
    return o;
}

/* The lead's loop, with the results of n_groups steps in flight. */
static struct status loop(struct lead *lead, const struct lead_options *o, struct fake_engine *e,
                          struct step_plan *plan, struct step_result results[][REPLICAS_MAX])
{
    for (uint64_t step = 0;; step++) {
        const int32_t g = (int32_t)(step % (uint64_t)o->n_groups);
        for (int32_t r = 0; r < o->n_replicas && step >= (uint64_t)o->n_groups; r++)
            TRY(lead_commit(lead, g, &results[g][r]));
        bool done;
        TRY(lead_next(lead, g, step, plan, &done));
        if (done) return status_ok();
        fake_engine_run(e, plan, results[g]);
    }
}

struct status util_lead_run(const struct lead_options *o, struct serve_summary *summary,
                            uint64_t *n_wrong)
{
    struct lead *lead = NULL;
    TRY(lead_create(o, &lead));
    struct fake_engine engine;
    struct step_plan plan;
    struct step_result results[GROUPS_MAX][REPLICAS_MAX];
    struct status st = step_plan_init(&plan, o->n_replicas);
    assert(!status_failed(&st));
    fake_engine_init(&engine, o->n_replicas, o->n_blocks);
    engine.shares = o->schedule.prefix_cache;
    engine.bad_token = 1;
    for (int g = 0; g < GROUPS_MAX; g++)
        for (int r = 0; r < REPLICAS_MAX; r++) step_result_init(&results[g][r]);
    st = loop(lead, o, &engine, &plan, results);
    const struct status ended = lead_finish(lead, summary);
    if (!status_failed(&st)) st = ended;
    *n_wrong = engine.n_wrong;
    for (int g = 0; g < GROUPS_MAX; g++)
        for (int r = 0; r < REPLICAS_MAX; r++) step_result_fini(&results[g][r]);
    fake_engine_fini(&engine);
    step_plan_fini(&plan);
    lead_destroy(&lead);
    return st;
}

void util_lead_run_text(struct lead_options *o, const struct strbuf *in,
                        struct serve_summary *summary, struct strbuf *out)
{
    char input[UTIL_PATH_MAX], output[UTIL_PATH_MAX];
    uint64_t n_wrong = 0;
    util_file_create(input, in->data, in->n);
    util_file_create(output, "old", 3);
    o->input_path = input;
    o->output_path = output;
    const struct status st = util_lead_run(o, summary, &n_wrong);
    if (status_failed(&st)) printf("\n  %s\n", st.text);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL(n_wrong, 0);
    char *bytes = NULL;
    size_t n_bytes = 0;
    CU_ASSERT_EQUAL_FATAL(file_read(output, (size_t)1 << 30, &bytes, &n_bytes).code, STATUS_OK);
    strbuf_clear(out);
    if (bytes != NULL) strbuf_add(out, bytes, n_bytes);
    mem_free(&bytes);
    util_file_remove(input);
    util_file_remove(output);
}

struct request_rules util_request_rules(struct tokenizer *t)
{
    struct request_rules rules = {.tokenizer = t,
                                  .end_ids = end_ids,
                                  .n_end_ids = 1,
                                  .vocab_size = FAKE_VOCAB,
                                  .max_model_len = 20};
    request_defaults_init(&rules.defaults);
    return rules;
}

struct request *util_request_parse(const struct request_rules *rules, const char *line)
{
    struct request *r = NULL;
    const struct status st = request_create(rules, 12, line, strlen(line), &r);
    assert(!status_failed(&st));
    return r;
}

struct request *util_request_chat(const char *tools, size_t n, struct request_ask **ask)
{
    struct request *r = NULL;
    struct request_ask *made;
    struct status st = request_create_bare(1, &r, &made);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    made->format = REQUEST_OPENAI_CHAT;
    st = mem_strndup(&made->tools.bytes, tools, n);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    made->tools.n = n + 1;
    if (ask != NULL) *ask = made;
    return r;
}
