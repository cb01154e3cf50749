/* Makes the n-th allocation fail, for many n until no allocation fails, in code that reads
 * untrusted bytes or runs at the start of a job. The code must return STATUS_MEMORY, must not crash
 * and, under AddressSanitizer, must not leak. Other suites (those that call mem_fail_after) have
 * sweeps of their own. */
#include "arch/arch.h"
#include "attention/kv_pool.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/team.h"
#include "checkpoint/convert/gguf.h"
#include "checkpoint/convert/gguf_model.h"
#include "checkpoint/convert/safetensors.h"
#include "checkpoint/convert/source.h"
#include "checkpoint/file/logits_file.h"
#include "parallel/record/trace.h"
#include "plan/step_plan.h"
#include "quant/quantize.h"
#include "serve/input/line_reader.h"
#include "serve/journal/id_set.h"
#include "serve/journal/journal.h"
#include "serve/output/result_row.h"
#include "serve/request/request.h"
#include "serve/schedule/block_pool.h"
#include "serve/schedule/prefix_cache.h"
#include "text/chat/chat.h"
#include "unit/util_ckpt.h"
#include "unit/util_serve.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SWEEP_MAX = 200000 };

/* Used by the bodies. Created before the sweep, so that its own allocations do not fail. */
static struct tokenizer *bytes_tokenizer;

/* Runs `body` again and again, failing a later allocation each time, until none fails. The distance
 * between failing allocations grows, because thousands of allocations in one loop fail alike. */
static void sweep(const char *name, struct status (*body)(void))
{
    uint64_t n = 1, n_failed = 0;
    for (; n < SWEEP_MAX; n += 1 + n / 400) {
        (void)mem_fail_after(n);
        const struct status st = body();
        const bool passed = mem_fail_after(0) < n;
        if (passed) {
            if (status_failed(&st)) printf("\n  %s: %s\n", name, st.text);
            CU_ASSERT_EQUAL(st.code, STATUS_OK);
            break;
        }
        n_failed++;
        if (st.code != STATUS_MEMORY) {
            printf("\n  %s: allocation %llu failed: status %s, \"%s\"\n", name,
                   (unsigned long long)n, status_name(st.code), st.text);
        }
        CU_ASSERT_EQUAL(st.code, STATUS_MEMORY);
    }
    CU_ASSERT(n < SWEEP_MAX && n_failed > 0);
}

/* ---- sources ---- */

static struct status read_safetensors(const char *path)
{
    struct safetensors *s = NULL;
    TRY(safetensors_open(path, &s));
    char first[4];
    const struct status st = safetensors_read(s, safetensors_at(s, 0), 0, sizeof first, first);
    safetensors_close(&s);
    return st;
}

static struct status one_file(void)
{
    return read_safetensors(TEST_DATA_DIR "/golden/gguf/llama/hf/model.safetensors");
}

static struct status shards(void)
{
    return read_safetensors(TEST_DATA_DIR "/golden/gguf/mixtral/hf");
}

static struct status gguf_texts(void)
{
    struct gguf *g = NULL;
    struct gguf_model m;
    struct strbuf text;
    strbuf_init(&text);
    struct status st;
    TRY(gguf_open(TEST_DATA_DIR "/golden/gguf/llama/model.gguf", &g));
    TRY_GOTO(st, gguf_model_read(g, &m), out);
    TRY_GOTO(st, gguf_model_config(&m, &text), out);
    TRY_GOTO(st, gguf_model_generation_config(&m, &text), out);
    TRY_GOTO(st, gguf_model_tokenizer(&m, &text), out);
out:
    strbuf_fini(&text);
    gguf_close(&g);
    return st;
}

static struct status source_folder(void)
{
    struct source *s = NULL;
    const struct status st = source_open(TEST_DATA_DIR "/golden/gguf/mixtral/hf", &s);
    source_close(&s);
    return st;
}

static struct status source_gguf(void)
{
    struct source *s = NULL;
    const struct status st = source_open(TEST_DATA_DIR "/golden/gguf/quantized/mixed.gguf", &s);
    source_close(&s);
    return st;
}

static void sources_live_without_memory(void)
{
    sweep("a safetensors file", one_file);
    sweep("safetensors shards", shards);
    sweep("a GGUF file", gguf_texts);
    log_init(-1, LOG_ERROR, false); /* without this the same warning would appear a hundred times */
    sweep("a folder to convert", source_folder);
    sweep("a GGUF file to convert", source_gguf);
    log_init(-1, LOG_INFO, false);
}

/* ---- texts ---- */

static struct status read_config(void)
{
    static const char *const names[] = {"llama-gqa", "mixtral", "qwen3-moe"};
    struct status st = status_ok();
    for (size_t i = 0; i < 3 && !status_failed(&st); i++) {
        struct arch m;
        char path[512], *text = NULL;
        size_t n;
        snprintf(path, sizeof path, TEST_DATA_DIR "/golden/models/%s/hf/config.json", names[i]);
        st = file_read(path, 1 << 20, &text, &n);
        if (!status_failed(&st)) st = arch_parse(text, n, path, &m);
        mem_free(&text);
    }
    return st;
}

static struct status use_tokenizer(void)
{
    static const char TEXT[] = "Once upon a time, <s> 12 e\xCC\x81\xFF";
    char *json = NULL;
    size_t n;
    struct tokenizer *t = NULL;
    struct token_list ids = {0};
    TRY(file_read(TEST_DATA_DIR "/golden/models/llama-gqa/hf/tokenizer.json", 1 << 20, &json, &n));
    struct status st = tokenizer_create(json, n, "tokenizer.json", &t);
    mem_free(&json);
    if (!status_failed(&st)) st = tokenizer_encode(t, TEXT, sizeof TEXT - 1, 3, &ids);
    token_list_fini(&ids);
    tokenizer_destroy(&t);
    return st;
}

static struct status use_template(void)
{
    static const char TALK[] = "{\"bos_token\":\"<s>\",\"messages\":[{\"role\":\"user\","
                               "\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"ok\"}]}";
    char *template = NULL;
    size_t n;
    struct js_doc *doc = NULL;
    struct chat *chat = NULL;
    struct chat_text text = {0};
    const struct chat_options options = {.no_generation_prompt = false};
    TRY(file_read(TEST_DATA_DIR "/golden/chat/inst.jinja", 1 << 20, &template, &n));
    struct status st;
    TRY_GOTO(st, js_parse(TALK, sizeof TALK - 1, "a talk", &doc), out);
    TRY_GOTO(st, chat_create(template, n, js_root(doc), "template", &chat), out);
    TRY_GOTO(st, chat_render(chat, js_get(js_root(doc), "messages"), &options, &text), out);
out:
    chat_text_fini(&text);
    chat_destroy(&chat);
    js_destroy(&doc);
    mem_free(&template);
    return st;
}

static void texts_live_without_memory(void)
{
    sweep("config.json", read_config);
    sweep("tokenizer.json", use_tokenizer);
    sweep("a chat template", use_template);
}

/* ---- requests ---- */

static struct status serve_line(const char *line)
{
    struct request_rules rules = {
        .tokenizer = bytes_tokenizer, .vocab_size = 257, .max_model_len = 100};
    struct request *r = NULL;
    struct strbuf row;
    strbuf_init(&row);
    request_defaults_init(&rules.defaults);
    struct status st = request_create(&rules, 1, line, strlen(line), &r);
    for (int i = 0; i < 40 && !status_failed(&st) && r->error.code == NULL; i++) {
        if (r->finish == REQUEST_UNFINISHED) st = request_take_token(r, &rules, 'a' + i % 26);
    }
    if (!status_failed(&st)) st = result_row_write(r, &rules, "a model", &row);
    request_destroy(&r);
    strbuf_fini(&row);
    return st;
}

static struct status good_line(void)
{
    return serve_line("{\"custom_id\":\"a\",\"prompt\":\"Once upon a time\",\"max_tokens\":30,"
                      "\"stop\":[\"xyz\",\"qq\"],\"temperature\":0.5,\"seed\":3}");
}

static struct status batch_line(void)
{
    return serve_line("{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\","
                      "\"body\":{\"model\":\"m\",\"prompt\":\"Hi\",\"max_tokens\":3}}");
}

static struct status bad_line(void)
{
    return serve_line("{\"custom_id\":\"a\",\"prompt\":\"Hi\",\"max_tokens\":-1}");
}

static struct status broken_line(void)
{
    return serve_line("{\"custom_id\":\"a\",\"prompt\":");
}

static struct status read_lines(void)
{
    struct line_reader *reader = NULL;
    struct line line = {.kind = LINE_OK};
    TRY(line_reader_create(scratch("lines"), 0, &reader));
    struct status st = status_ok();
    while (!status_failed(&st) && line.kind != LINE_END) {
        st = line_reader_next(reader, true, &line);
    }
    line_reader_destroy(&reader);
    return st;
}

static struct status keep_journal(void)
{
    struct journal *j = NULL;
    const char *path = scratch("journal");
    const struct journal_options o = {.path = path, .settings = "a=1\n", .session = "a test"};
    unlink(path);
    for (int i = 0; i < 2; i++) { /* a new journal, then the same one opened again */
        const struct journal_record r = {
            .type = JOURNAL_ROW, .line = 1 + (uint64_t)i, .bytes = "{}\n", .n_bytes = 3};
        struct journal_hit hit;
        struct status st = journal_open(&o, &j);
        if (!status_failed(&st)) st = journal_find(j, 1, &hit);
        if (!status_failed(&st)) st = journal_add(j, &r);
        if (!status_failed(&st)) st = journal_commit(j, 1, 3);
        journal_destroy(&j);
        if (status_failed(&st)) return st;
    }
    return status_ok();
}

static struct status count_ids(void)
{
    struct id_set ids = {0};
    struct status st = status_ok();
    for (int i = 0; i < 3000 && !status_failed(&st); i++) {
        char id[16];
        bool fresh;
        snprintf(id, sizeof id, "%d", i);
        st = id_set_add(&ids, id, strlen(id), &fresh);
    }
    id_set_fini(&ids);
    return st;
}

static void requests_live_without_memory(void)
{
    char lines[4000];
    for (size_t i = 0; i < sizeof lines; i++) lines[i] = i % 700 == 699 ? '\n' : 'x';
    put_file(scratch("lines"), lines, sizeof lines);
    bytes_tokenizer = util_byte_tokenizer();
    sweep("a request", good_line);
    sweep("a batch request", batch_line);
    sweep("a wrong request", bad_line);
    sweep("a broken request", broken_line);
    sweep("an input", read_lines);
    sweep("a journal", keep_journal);
    sweep("custom ids", count_ids);
    tokenizer_destroy(&bytes_tokenizer);
    scratch_clear();
}

/* ---- what a rank makes at start ---- */

static struct status make_pools(void)
{
    struct block_pool blocks = {0};
    struct prefix_cache prefixes = {0};
    const struct kern_table host = {0}; /* no device: blocks are in the memory of the host */
    const struct kv_shape shape = {
        .n_layers = 2, .n_blocks = 3, .n_kv_heads = 2, .head_dim = 16, .dtype = DTYPE_F16};
    struct kv_pool *kv = NULL;
    struct status st = block_pool_init(&blocks, 100);
    if (!status_failed(&st))
        st = prefix_cache_init(&prefixes, 100, &(struct plan_tables){.n_full = 1});
    if (!status_failed(&st)) st = kv_pool_create(&host, &shape, &kv);
    kv_pool_destroy(&kv);
    prefix_cache_fini(&prefixes);
    block_pool_fini(&blocks);
    return st;
}

static struct status send_plan(void)
{
    struct step_plan plan = {0}, got = {0};
    struct plan_message m = {0};
    struct status st = step_plan_init(&plan, 2);
    if (!status_failed(&st)) st = step_plan_init(&got, 2);
    if (!status_failed(&st)) {
        step_plan_end_replica(&plan, 0);
        step_plan_end_replica(&plan, 1);
        st = step_plan_pack(&plan, &m);
    }
    if (!status_failed(&st)) st = step_plan_unpack(m.words, m.n_words, &got);
    plan_message_fini(&m);
    step_plan_fini(&got);
    step_plan_fini(&plan);
    return st;
}

static struct status make_team(void)
{
    struct team *team = NULL;
    struct trace *trace = NULL;
    struct status st = team_create(3, &team);
    if (!status_failed(&st)) st = trace_create(4, &trace);
    trace_destroy(&trace);
    team_destroy(&team);
    return st;
}

static void ranks_start_without_memory(void)
{
    sweep("pools", make_pools);
    sweep("a plan", send_plan);
    sweep("a team", make_team);
}

void suite_allocations(CU_pSuite suite);
void suite_allocations(CU_pSuite suite)
{
    CU_add_test(suite, "sources live without memory", sources_live_without_memory);
    CU_add_test(suite, "texts live without memory", texts_live_without_memory);
    CU_add_test(suite, "requests live without memory", requests_live_without_memory);
    CU_add_test(suite, "ranks start without memory", ranks_start_without_memory);
}
