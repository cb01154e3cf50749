/* Routes, errors, keys, measurements and token calls of the server, without a connection. */
#include "serve/http/http_api.h"

#include "base/json.h"
#include "serve/http/http_text.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

static void paths_lead_to_their_endpoints(void)
{
    enum http_endpoint e = HTTP_ENDPOINT_COUNT;
    char item[HTTP_ITEM_MAX];
    CU_ASSERT(http_route("POST", "/v1/completions", &e, item) == HTTP_OK && e == HTTP_COMPLETIONS);
    CU_ASSERT(http_route("POST", "/v1/chat/completions", &e, item) == HTTP_OK && e == HTTP_CHAT);
    CU_ASSERT(http_route("POST", "/v1/embeddings", &e, item) == HTTP_OK && http_runs_model(e));
    CU_ASSERT(http_route("POST", "/v1/rerank", &e, item) == HTTP_OK && http_runs_model(e));
    CU_ASSERT(http_route("GET", "/v1/models", &e, item) == HTTP_OK && !http_runs_model(e));
    CU_ASSERT(http_route("GET", "/health", &e, item) == HTTP_OK && http_is_open(e));
    CU_ASSERT(http_route("GET", "/metrics", &e, item) == HTTP_OK && !http_is_open(e));
    CU_ASSERT(http_route("GET", "/tokenize", &e, item) == HTTP_BAD_METHOD);
    CU_ASSERT_STRING_EQUAL(http_methods_of(e), "POST");
    const char *const strangers[] = {
        "", "/", "/v1", "/v1/completions/", "/V1/completions", "/v1/../health"};
    for (size_t i = 0; i < sizeof strangers / sizeof strangers[0]; i++)
        CU_ASSERT_EQUAL(http_route("GET", strangers[i], &e, item), HTTP_NOT_FOUND);
    CU_ASSERT(http_route("DELETE", "/v1/files/file-1_a", &e, item) == HTTP_OK);
    CU_ASSERT(e == HTTP_FILE_DELETE && strcmp(item, "file-1_a") == 0);
    CU_ASSERT(http_route("GET", "/v1/files/x/content", &e, item) == HTTP_OK);
    CU_ASSERT(e == HTTP_FILE_CONTENT && strcmp(item, "x") == 0);
    CU_ASSERT(http_route("GET", "/v1/files", &e, item) == HTTP_OK && e == HTTP_FILE_LIST);
    CU_ASSERT(http_route("PUT", "/v1/files", &e, item) == HTTP_BAD_METHOD);
    CU_ASSERT_STRING_EQUAL(http_methods_of(e), "GET, POST");
    const char *const no_items[] = {"/v1/files/",      "/v1/files/..",       "/v1/files/a/b",
                                    "/v1/files/a%2Fb", "/v1/batches/a.json", "/v1/models/a/b"};
    for (size_t i = 0; i < sizeof no_items / sizeof no_items[0]; i++)
        CU_ASSERT_EQUAL(http_route("GET", no_items[i], &e, item), HTTP_NOT_FOUND);
    CU_ASSERT(http_route("GET", "/v1/models/Llama-3.2-1B", &e, item) == HTTP_OK);
    CU_ASSERT(e == HTTP_MODEL_GET && strcmp(item, "Llama-3.2-1B") == 0);
    char path[HTTP_ITEM_MAX + 16] = "/v1/files/";
    memset(path + strlen(path), 'x', HTTP_ITEM_MAX);
    CU_ASSERT_EQUAL(http_route("GET", path, &e, item), HTTP_NOT_FOUND);
}

/* Reads `text` as a key file. */
static struct status read_keys(struct http_keys *k, const char *text, size_t n)
{
    char path[UTIL_PATH_MAX];
    *k = (struct http_keys){.n = 0};
    util_file_create(path, text, n);
    const struct status st = http_keys_read(k, path);
    util_file_remove(path);
    return st;
}

static void only_whole_keys_are_allowed(void)
{
    static const char text[] = "# two keys\n\n  key-one \r\nanother";
    struct http_keys k;
    const struct status st = read_keys(&k, text, sizeof text - 1);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL(k.n, 2);
    CU_ASSERT(http_keys_allow(&k, "Bearer key-one"));
    CU_ASSERT(http_keys_allow(&k, "bearer  another"));
    const char *const wrong[] = {"Bearer key-on",    "Bearer key-one2", "Bearer Key-one", "Bearer",
                                 "Bearer ",          "key-one",         "Basic key-one",  "",
                                 "Bearer # two keys"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CU_ASSERT_FALSE(http_keys_allow(&k, wrong[i]));
    CU_ASSERT_FALSE(http_keys_allow(&k, NULL));
    char long_one[600] = "Bearer ";
    memset(long_one + 7, 'k', sizeof long_one - 8);
    CU_ASSERT_FALSE(http_keys_allow(&k, long_one));
    http_keys_fini(&k);
    CU_ASSERT(http_keys_allow(&k, NULL)); /* no keys: open to all */
}

static void bad_key_files_are_refused(void)
{
    struct http_keys k;
    char long_key[300];
    memset(long_key, 'k', sizeof long_key);
    CU_ASSERT_EQUAL(read_keys(&k, "\n# none\n", 8).code, STATUS_INPUT);
    CU_ASSERT_EQUAL(read_keys(&k, "two words\n", 10).code, STATUS_INPUT);
    http_keys_fini(&k);
    CU_ASSERT_EQUAL(read_keys(&k, "a\0b\n", 4).code, STATUS_INPUT);
    http_keys_fini(&k);
    CU_ASSERT_EQUAL(read_keys(&k, long_key, sizeof long_key).code, STATUS_INPUT);
    http_keys_fini(&k);
    CU_ASSERT(http_keys_read(&k, "/nowhere/keys").code != STATUS_OK);
}

/* True when error.NAME of an error's JSON is this string. */
static bool error_has(const struct strbuf *s, const char *name, const char *value)
{
    struct js_doc *doc = NULL;
    const struct status st = js_parse(s->data, s->n, "error", &doc);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    const char *found = js_string(js_get(js_get(js_root(doc), "error"), name), NULL);
    const bool same = found != NULL && strcmp(found, value) == 0;
    js_destroy(&doc);
    return same;
}

static void errors_have_the_api_s_form(void)
{
    static const struct {
        enum http_status status;
        const char *type;
    } cases[] = {{HTTP_BAD_REQUEST, "invalid_request_error"},
                 {HTTP_UNAUTHORIZED, "authentication_error"},
                 {HTTP_TOO_MANY, "rate_limit_error"},
                 {HTTP_INTERNAL, "server_error"},
                 {HTTP_UNAVAILABLE, "server_error"}};
    struct strbuf s;
    strbuf_init(&s);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        strbuf_clear(&s);
        http_error(cases[i].status, "code", "say \"no\"\n", &s);
        CU_ASSERT(error_has(&s, "type", cases[i].type));
        CU_ASSERT(error_has(&s, "code", "code") && error_has(&s, "message", "say \"no\"\n"));
    }
    strbuf_fini(&s);
    CU_ASSERT_EQUAL(http_status_of("invalid_json"), HTTP_BAD_REQUEST);
    CU_ASSERT_EQUAL(http_status_of(REQUEST_NUMERIC_CODE), HTTP_INTERNAL);
    CU_ASSERT_EQUAL(http_status_of(HTTP_DRAINING_CODE), HTTP_UNAVAILABLE);
}

/* A call is parsed like a line that has the same body and custom_id. */
static void calls_are_read_like_lines(void)
{
    static const char *const bodies[] = {"{\"prompt\":\"ab\",\"max_tokens\":3}",
                                         "{\"prompt\":\"ab\",\"seed\":4,\"model\":\"m\"}",
                                         "{\"prompt\":\"ab\",\"n\":0}",
                                         "{\"prompt\":\"ab\",\"unknown\":1}",
                                         "{\"messages\":[]}",
                                         "{}"};
    struct tokenizer *t = util_byte_tokenizer();
    const struct request_rules rules = util_request_rules(t);
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        char line[256];
        struct request *call = NULL;
        snprintf(
            line, sizeof line,
            "{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":%s}",
            bodies[i]);
        struct request *r = util_request_parse(&rules, line);
        const struct request_call c = {REQUEST_OPENAI, 12, "x", bodies[i], strlen(bodies[i])};
        const struct status st = request_create_call(&rules, &c, &call);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        CU_ASSERT_EQUAL(r->error.code == NULL, call->error.code == NULL);
        if (r->error.code != NULL) CU_ASSERT_STRING_EQUAL(r->error.message, call->error.message);
        CU_ASSERT_EQUAL(memcmp(r->ask->key, call->ask->key, sizeof r->ask->key), 0);
        CU_ASSERT_EQUAL(r->n_prompt, call->n_prompt);
        CU_ASSERT_EQUAL(r->ask->max_tokens, call->ask->max_tokens);
        request_destroy(&r);
        request_destroy(&call);
    }
    tokenizer_destroy(&t);
}

/* Returns whether the call is refused. Sets *streams: it asks for a stream; *usage: and for the
 * usage at the stream's end. */
static bool refuses(const struct request_rules *rules, const char *body, bool *streams, bool *usage)
{
    struct request *r = NULL;
    const struct request_call c = {REQUEST_OPENAI, 1, NULL, body, strlen(body)};
    const struct status st = request_create_call(rules, &c, &r);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    const bool refused = r->error.code != NULL;
    *streams = r->ask->streams;
    *usage = r->ask->stream_usage;
    request_destroy(&r);
    return refused;
}

static void a_call_may_be_a_stream(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    const struct request_rules rules = util_request_rules(t);
    bool streams, usage;
    CU_ASSERT_FALSE(refuses(&rules, "{\"prompt\":\"a\",\"stream\":true}", &streams, &usage));
    CU_ASSERT(streams && !usage);
    CU_ASSERT_FALSE(refuses(&rules,
                            "{\"prompt\":\"a\",\"stream\":true,"
                            "\"stream_options\":{\"include_usage\":true}}",
                            &streams, &usage));
    CU_ASSERT(streams && usage);
    CU_ASSERT_FALSE(refuses(&rules, "{\"prompt\":\"a\",\"stream\":false}", &streams, &usage));
    CU_ASSERT_FALSE(streams);
    CU_ASSERT(refuses(&rules, "{\"prompt\":\"a\",\"stream\":\"yes\"}", &streams, &usage));
    CU_ASSERT(refuses(&rules, "{\"prompt\":\"a\",\"stream_options\":{}}", &streams, &usage));
    CU_ASSERT(refuses(&rules, "{\"prompt\":\"a\",\"stream\":true,\"stream_options\":1}", &streams,
                      &usage));
    CU_ASSERT(refuses(&rules, "{\"prompt\":\"a\",\"stream\":true,\"prompt_logprobs\":0}", &streams,
                      &usage));
    tokenizer_destroy(&t);
}

static void tokens_become_text_again(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    const struct request_rules rules = util_request_rules(t);
    static const char text[] = "{\"prompt\":\"a\\u00e9\"}", ids[] = "{\"tokens\":[97,195,169]}";
    enum http_status status = HTTP_INTERNAL;
    struct strbuf out;
    strbuf_init(&out);
    struct status st = http_tokenize(&rules, text, strlen(text), &status, &out);
    CU_ASSERT(!status_failed(&st) && status == HTTP_OK);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(out.data, "\"count\":3,\"max_model_len\":20,\"tokens\":[97,195,169]"));
    strbuf_clear(&out);
    st = http_detokenize(&rules, ids, strlen(ids), &status, &out);
    CU_ASSERT(!status_failed(&st) && status == HTTP_OK);
    CU_ASSERT_STRING_EQUAL(out.data, "{\"prompt\":\"a\xC3\xA9\"}");
    const char *const bad[] = {"{",
                               "[]",
                               "{\"tokens\":5}",
                               "{\"tokens\":[-1]}",
                               "{\"tokens\":[257]}",
                               "{\"tokens\":[\"a\"]}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        strbuf_clear(&out);
        st = http_detokenize(&rules, bad[i], strlen(bad[i]), &status, &out);
        CU_ASSERT(!status_failed(&st) && status == HTTP_BAD_REQUEST);
        CU_ASSERT(error_has(&out, "type", "invalid_request_error"));
    }
    strbuf_fini(&out);
    tokenizer_destroy(&t);
}

static void measurements_are_samples_with_labels(void)
{
    static struct serve_summary s;
    const struct scheduler_load load = {.n_running = 3, .n_free_blocks = 1, .n_blocks = 4};
    const struct http_ends ends = {.n_stop = 5, .n_gone = 2};
    struct strbuf out;
    strbuf_init(&out);
    for (int i = 0; i < 10; i++) latency_add(&s.since_arrival.ttft, 3000000);
    latency_add(&s.since_arrival.ttft, 400000000);
    latency_add(&s.since_arrival.queue, 2000000000);
    latency_add(&s.since_arrival.e2e, 3000000000);
    latency_add(&s.ttft, 500000000);
    latency_add(&s.e2e, 1000000000);
    http_metrics(&s, &load, &ends, "a\"b", &out);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(out.data, "shoal:num_requests_running{model_name=\"a\\\"b\"} 3\n"));
    CU_ASSERT_PTR_NOT_NULL(
        strstr(out.data, "shoal:kv_cache_usage_perc{model_name=\"a\\\"b\"} 0.75\n"));
    CU_ASSERT_PTR_NOT_NULL(strstr(out.data, ",finished_reason=\"abort\"} 2\n"));
    CU_ASSERT_PTR_NOT_NULL(strstr(
        out.data,
        "shoal:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.0025\"} 0\n"));
    CU_ASSERT_PTR_NOT_NULL(strstr(
        out.data,
        "shoal:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.005\"} 10\n"));
    CU_ASSERT_PTR_NOT_NULL(
        strstr(out.data,
               "shoal:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 11\n"));
    static const char *const sums[] = {
        "request_queue_time_seconds_sum{model_name=\"a\\\"b\"} 2\n",
        "request_prefill_time_seconds_sum{model_name=\"a\\\"b\"} 0.5\n",
        "request_inference_time_seconds_sum{model_name=\"a\\\"b\"} 1\n",
        "e2e_request_latency_seconds_sum{model_name=\"a\\\"b\"} 3\n"};
    for (int i = 0; i < 4; i++) CU_ASSERT_PTR_NOT_NULL(strstr(out.data, sums[i]));
    strbuf_fini(&out);
}

void suite_http_api(CU_pSuite suite);
void suite_http_api(CU_pSuite suite)
{
    CU_add_test(suite, "paths lead to their endpoints", paths_lead_to_their_endpoints);
    CU_add_test(suite, "only whole keys are allowed", only_whole_keys_are_allowed);
    CU_add_test(suite, "bad key files are refused", bad_key_files_are_refused);
    CU_add_test(suite, "errors have the API's form", errors_have_the_api_s_form);
    CU_add_test(suite, "calls are read like lines", calls_are_read_like_lines);
    CU_add_test(suite, "a call may be a stream", a_call_may_be_a_stream);
    CU_add_test(suite, "tokens become text again", tokens_become_text_again);
    CU_add_test(suite, "measurements are samples with labels",
                measurements_are_samples_with_labels);
}
