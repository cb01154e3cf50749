/* Writes result lines in the forms of docs/requests.md. */
#include "serve/output/result_row.h"

#include "base/json.h"
#include "base/mem.h"
#include "serve/output/reasoning.h"
#include "serve/output/result_embed.h"
#include "serve/output/result_logprobs.h"
#include "serve/output/tool_calls.h"
#include "serve/request/request_choice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static void add_key_string(struct strbuf *out, const char *key, const char *bytes, size_t n)
{
    strbuf_printf(out, "\"%s\":", key);
    strbuf_json_string(out, bytes == NULL ? "" : bytes, n);
}

/* Appends the shortest decimal (of 15 to 17 digits) that reads back as the same double; null if x
 * is not finite. */
static void add_double(struct strbuf *out, double x)
{
    if (!isfinite(x)) {
        strbuf_puts(out, "null");
        return;
    }
    char digits[40];
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, x);
        if (strtod(digits, NULL) == x) break;
    }
    strbuf_puts(out, digits);
}

static void add_ids(struct strbuf *out, const int32_t *ids, size_t n)
{
    strbuf_puts(out, "\"token_ids\":[");
    for (size_t i = 0; i < n; i++) strbuf_printf(out, i == 0 ? "%d" : ",%d", ids[i]);
    strbuf_puts(out, "]");
}

static void result_row_add_error(struct strbuf *out, const struct request *r)
{
    strbuf_puts(out, "\"error\":{");
    add_key_string(out, "code", r->error.code, strlen(r->error.code));
    strbuf_puts(out, ",");
    add_key_string(out, "message", r->error.message, strlen(r->error.message));
    strbuf_puts(out, "}");
}

const char *result_row_finish(const struct request *r)
{
    return r->finish == REQUEST_STOP ? "stop" : "length";
}

const struct request *result_row_choice(const struct request *r, int32_t i)
{
    return r->choices.at != NULL ? r->choices.at[i] : r;
}

double result_row_sum(const struct request *r, uint64_t *n_scored)
{
    double sum = 0;
    *n_scored = 0;
    for (int32_t k = 0; k < r->ask->n_choices && r->error.code == NULL; k++) {
        const struct request *c = result_row_choice(r, k);
        if (c->finish != REQUEST_SCORED) continue;
        for (size_t i = c->logprobs.score_from; i < c->n_prompt; i++)
            sum += (double)c->logprobs.scores[i];
        *n_scored += c->n_prompt - c->logprobs.score_from;
    }
    return sum;
}

size_t result_row_n_generated(const struct request *r)
{
    size_t n = 0;
    for (int32_t i = 0; i < r->ask->n_choices; i++) {
        const struct request *c = result_row_choice(r, i);
        if (c == NULL) continue; /* an error row has no answers */
        n += c->n_tokens - c->n_prompt;
    }
    return n;
}

/* Appends the log-probabilities of c's scored tokens, and returns the sum of the numbers as
 * written. */
static double write_token_scores(struct strbuf *out, const struct request *c, const char *comma)
{
    double sum = 0;
    for (size_t i = c->logprobs.score_from; i < c->n_prompt; i++, comma = ",") {
        strbuf_puts(out, comma);
        const size_t begin = out->n;
        strbuf_json_float(out, c->logprobs.scores[i]);
        if (!out->failed) sum += strtod(out->data + begin, NULL);
    }
    return sum;
}

/* Appends how many tokens each window of a text scores. */
static void add_windows(struct strbuf *out, const struct request *r)
{
    strbuf_puts(out, ",\"windows\":[");
    for (int32_t k = 0; k < r->ask->n_choices; k++) {
        const struct request *c = result_row_choice(r, k);
        strbuf_printf(out, k > 0 ? ",%zu" : "%zu", c->n_prompt - c->logprobs.score_from);
    }
    strbuf_puts(out, "]");
}

static bool is_greedy(const struct request *c)
{
    for (size_t i = c->logprobs.score_from; i < c->n_prompt; i++)
        if (c->logprobs.prompt_tops[i].id != c->tokens[i]) return false;
    return true;
}

/* Appends the scored tokens of a continuation, or of all windows of a text; their
 * log-probabilities; and the sum of these, the log-likelihood. */
static void add_likelihood(struct strbuf *out, const struct request *r)
{
    double sum = 0;
    const char *comma = "\"token_ids\":[";
    for (int32_t k = 0; k < r->ask->n_choices; k++) {
        const struct request *c = result_row_choice(r, k);
        for (size_t i = c->logprobs.score_from; i < c->n_prompt; i++, comma = ",")
            strbuf_printf(out, "%s%d", comma, c->tokens[i]);
    }
    for (int32_t k = 0; k < r->ask->n_choices; k++)
        sum += write_token_scores(out, result_row_choice(r, k), k == 0 ? "],\"logprobs\":[" : ",");
    strbuf_puts(out, "],\"loglikelihood\":");
    add_double(out, sum);
    if (r->ask->score != REQUEST_SCORE_PAIR) {
        add_windows(out, r);
        return;
    }
    strbuf_printf(out, ",\"is_greedy\":%s,\"context_tokens\":%zu,\"cut_tokens\":%zu",
                  is_greedy(r) ? "true" : "false", r->logprobs.score_from, r->n_cut);
}

static void add_scored(struct strbuf *out, const struct request *r)
{
    uint64_t n_scored;
    if (r->ask->score != REQUEST_SCORE_PROMPT) {
        add_likelihood(out, r);
        return;
    }
    add_ids(out, r->tokens, r->n_prompt);
    strbuf_puts(out, ",\"logprobs\":[null");
    for (size_t i = 1; i < r->n_prompt; i++) {
        strbuf_puts(out, ",");
        strbuf_json_float(out, r->logprobs.scores[i]);
    }
    strbuf_puts(out, "],\"sum_logprob\":");
    add_double(out, result_row_sum(r, &n_scored));
}

/* Appends one answer to the line: its text, tokens, finish_reason and, if the line asks for them,
 * log-probabilities. */
static void result_row_add_choice(struct strbuf *out, const struct request *c)
{
    add_key_string(out, "text", c->text.data, c->text.n);
    strbuf_puts(out, ",");
    add_ids(out, c->tokens + c->n_prompt, c->n_tokens - c->n_prompt);
    strbuf_printf(out, ",\"finish_reason\":\"%s\"", result_row_finish(c));
    if (c->ask->n_logprobs < 0) return;
    strbuf_puts(out, ",\"logprobs\":");
    result_logprobs_plain(c, out);
}

void result_row_usage(const struct request *r, struct strbuf *out)
{
    const size_t n_generated = result_row_n_generated(r);
    strbuf_printf(out, "\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu", r->n_prompt,
                  n_generated);
    if (r->ask->format != REQUEST_PLAIN) {
        strbuf_printf(out, ",\"total_tokens\":%zu", r->n_prompt + n_generated);
    }
    strbuf_puts(out, "}");
}

/* Appends the log-probabilities of the line's first prompt, which are in the first answer; nothing
 * if the line does not ask for them or has an echo. */
static void add_prompt_logprobs(struct strbuf *out, const struct request *r)
{
    if (r->ask->n_prompt_logprobs < 0 || r->ask->echo) return;
    strbuf_puts(out, ",\"prompt_logprobs\":");
    result_logprobs_prompt(result_row_choice(r, 0), out);
}

static void add_generated(struct strbuf *out, const struct request *r)
{
    if (r->ask->n_choices == 1) {
        result_row_add_choice(out, result_row_choice(r, 0));
    } else {
        strbuf_puts(out, "\"choices\":[");
        for (int32_t i = 0; i < r->ask->n_choices; i++) {
            strbuf_printf(out, i > 0 ? ",{\"index\":%d," : "{\"index\":%d,", i);
            result_row_add_choice(out, r->choices.at[i]);
            strbuf_puts(out, "}");
        }
        strbuf_puts(out, "]");
    }
    add_prompt_logprobs(out, r);
    strbuf_puts(out, ",");
    result_row_usage(r, out);
}

/* Appends the message of a chat: its thoughts, its content, and the tool calls in its text. */
static void write_message(struct strbuf *out, const struct request *c,
                          const struct tool_calls *calls)
{
    const struct reasoning thoughts = reasoning_of(c);
    const char *content = c->text.n > 0 ? c->text.data + calls->content : "";
    strbuf_puts(out, "\"message\":{\"role\":\"assistant\",");
    if (thoughts.end > thoughts.begin) {
        reasoning_write(c, thoughts.begin, thoughts.end, out);
        strbuf_puts(out, ",");
    }
    if (calls->n > 0 && calls->n_content == 0) {
        strbuf_puts(out, "\"content\":null");
    } else {
        add_key_string(out, "content", content, calls->n_content);
    }
    if (calls->n > 0) strbuf_puts(out, ",");
    if (calls->n > 0) tool_calls_write(calls, c, false, out);
    strbuf_puts(out, "}");
}

/* Appends the text of an answer to a completion; with an echo, the prompt's text before it. */
static struct status write_answer_text(struct strbuf *out, const struct request *line,
                                       const struct request *c)
{
    if (!c->ask->echo) {
        add_key_string(out, "text", c->text.data, c->text.n);
        return status_ok();
    }
    const struct request_bytes *echo = &request_prompt_of(line, c->choice)->echo;
    struct strbuf whole;
    strbuf_init(&whole);
    strbuf_add(&whole, echo->bytes, echo->n);
    strbuf_add(&whole, c->text.data, c->text.n);
    add_key_string(out, "text", whole.data, whole.n);
    const struct status st = strbuf_status(&whole);
    strbuf_fini(&whole);
    return st;
}

static struct status add_openai_choice(struct strbuf *out, const struct request *line,
                                       const struct request_rules *rules, int32_t index)
{
    const struct request *c = result_row_choice(line, index);
    const bool is_chat = c->ask->format == REQUEST_OPENAI_CHAT;
    struct tool_calls calls;
    struct status st = tool_calls_find(c, &calls);
    strbuf_printf(out, "{\"index\":%d,", index);
    if (is_chat) write_message(out, c, &calls);
    if (!is_chat && !status_failed(&st)) st = write_answer_text(out, line, c);
    strbuf_puts(out, ",\"logprobs\":");
    if (c->ask->n_logprobs < 0) {
        strbuf_puts(out, "null");
    } else if (is_chat) {
        result_logprobs_chat(c, rules, 0, out);
    } else {
        const struct request *first = result_row_choice(line, index - index % request_n_each(line));
        result_logprobs_completion(c, c->ask->echo ? first : NULL, rules, 0, out);
    }
    strbuf_printf(out, ",\"finish_reason\":\"%s\"}",
                  calls.n > 0 ? "tool_calls" : result_row_finish(c));
    tool_calls_fini(&calls);
    return st;
}

/* Returns a hash of the custom_id. The ids in a batch result are made from it (those of tool calls:
 * tool_calls.c), so that all runs write the same bytes. */
static unsigned long long id_of(const struct request *r)
{
    return XXH3_64bits(r->custom_id.bytes, r->custom_id.n);
}

void result_row_head(const struct request *r, const char *object, const char *model_name,
                     struct strbuf *out)
{
    static const char *const names[] = {
        [REQUEST_OPENAI] = "cmpl", [REQUEST_OPENAI_CHAT] = "chatcmpl", [REQUEST_RERANK] = "rerank"};
    strbuf_printf(out, "{\"id\":\"%s-%016llx\",\"object\":\"%s\",\"created\":0,",
                  names[r->ask->format], id_of(r), object);
    if (model_name != NULL) {
        add_key_string(out, "model", model_name, strlen(model_name));
    } else {
        add_key_string(out, "model", r->ask->model.bytes, r->ask->model.n);
    }
}

struct status result_row_body(const struct request *r, const struct request_rules *rules,
                              const char *model_name, struct strbuf *out)
{
    const bool is_chat = r->ask->format == REQUEST_OPENAI_CHAT;
    if (r->ask->format == REQUEST_RERANK) {
        result_row_head(r, "list", model_name, out);
        return result_embed_ranked(r, rules->embed, out);
    }
    if (r->ask->pool != POOL_NONE) return result_embed_body(r, rules->embed, model_name, out);
    result_row_head(r, is_chat ? "chat.completion" : "text_completion", model_name, out);
    strbuf_puts(out, ",\"choices\":[");
    for (int32_t i = 0; i < r->ask->n_choices; i++) {
        if (i > 0) strbuf_puts(out, ",");
        TRY(add_openai_choice(out, r, rules, i));
    }
    strbuf_puts(out, "]");
    add_prompt_logprobs(out, r);
    strbuf_puts(out, ",");
    result_row_usage(r, out);
    strbuf_puts(out, "}");
    return strbuf_status(out);
}

/* Marks a row whose tokens were made up by a dry run. */
static void add_dry_run(struct strbuf *out, const struct request *r,
                        const struct request_rules *rules)
{
    if (!rules->is_dry_run || r->error.code != NULL) return;
    strbuf_puts(out, ",\"dry_run\":\"not a result: no model ran, tokens and text are made up\"");
}

static struct status add_openai(struct strbuf *out, const struct request *r,
                                const struct request_rules *rules, const char *model_name)
{
    const unsigned long long id = id_of(r);
    strbuf_printf(out, "{\"id\":\"batch_req_%016llx\",", id);
    add_key_string(out, "custom_id", r->custom_id.bytes, r->custom_id.n);
    add_dry_run(out, r, rules);
    if (r->error.code != NULL) {
        strbuf_puts(out, ",\"response\":null,");
        result_row_add_error(out, r);
    } else {
        strbuf_printf(
            out, ",\"response\":{\"status_code\":200,\"request_id\":\"%016llx\",\"body\":", id);
        TRY(result_row_body(r, rules, model_name, out));
        strbuf_puts(out, "},\"error\":null");
    }
    strbuf_puts(out, "}\n");
    return strbuf_status(out);
}

struct status result_row_write(const struct request *r, const struct request_rules *rules,
                               const char *model_name, struct strbuf *out)
{
    if (r->ask->format != REQUEST_PLAIN && !rules->score) {
        return add_openai(out, r, rules, model_name);
    }
    strbuf_puts(out, "{");
    add_key_string(out, "custom_id", r->custom_id.bytes, r->custom_id.n);
    add_dry_run(out, r, rules);
    strbuf_puts(out, ",");
    if (r->error.code != NULL) {
        result_row_add_error(out, r);
    } else if (r->ask->pool != POOL_NONE) {
        TRY(result_embed_plain(r, rules->embed, out));
    } else if (rules->score) {
        add_scored(out, r);
    } else {
        add_generated(out, r);
    }
    if (r->error.code == NULL && r->n_dropped > 0) {
        strbuf_printf(out, ",\"dropped\":%llu", (unsigned long long)r->n_dropped);
    }
    strbuf_puts(out, "}\n");
    return strbuf_status(out);
}

/* ---- the custom_id of a written row ---- */

#define PLAIN_ID      "{\"custom_id\":\""
#define BATCH_START   "{\"id\":\"batch_req_"
#define BATCH_ID      "\",\"custom_id\":\""
#define BATCH_REQUEST ",\"response\":{\"status_code\":200,\"request_id\":\""
#define BATCH_BODY    "\",\"body\":{\"id\":\""

enum { HEX_DIGITS = 16 };

static bool starts_with(const char *text, size_t n, const char *start)
{
    return n >= strlen(start) && memcmp(text, start, strlen(start)) == 0;
}

bool result_row_is_batch(const char *text, size_t n)
{
    return starts_with(text, n, BATCH_START);
}

/* Finds the string of custom_id in a row: text[*begin, *end) between its quotes. False if the row
 * has none. */
static bool find_id(const char *text, size_t n, size_t *begin, size_t *end)
{
    const size_t batch = strlen(BATCH_START) + HEX_DIGITS;
    const bool is_batch =
        result_row_is_batch(text, n) && n > batch && starts_with(text + batch, n - batch, BATCH_ID);
    if (!is_batch && !starts_with(text, n, PLAIN_ID)) return false;
    *begin = is_batch ? batch + strlen(BATCH_ID) : strlen(PLAIN_ID);
    for (*end = *begin; *end < n && text[*end] != '"';) *end += text[*end] == '\\' ? 2 : 1;
    return *end < n;
}

struct status result_row_id(const char *text, size_t n, char **id, size_t *n_id)
{
    size_t begin, end;
    if (!find_id(text, n, &begin, &end))
        return status_make(STATUS_INPUT, "expected a custom_id at its start");
    if (memchr(text + begin, '\\', end - begin) == NULL) {
        *n_id = end - begin;
        return mem_strndup(id, text + begin, *n_id);
    }
    struct strbuf list;
    struct js_doc *doc = NULL;
    strbuf_init(&list);
    strbuf_puts(&list, "[");
    strbuf_add(&list, text + begin - 1, end - begin + 2);
    strbuf_puts(&list, "]");
    struct status st = strbuf_status(&list);
    if (!status_failed(&st)) st = js_parse(list.data, list.n, "custom_id", &doc);
    const char *bytes = status_failed(&st) ? NULL : js_string(js_at(js_root(doc), 0), n_id);
    if (bytes != NULL) st = mem_strndup(id, bytes, *n_id);
    js_destroy(&doc);
    strbuf_fini(&list);
    return st;
}

/* Copies `start` from *text [*n] and moves past it. False: the text does not begin with it. */
static bool copy_start(const char **text, size_t *n, const char *start, struct strbuf *out)
{
    if (!starts_with(*text, *n, start)) return false;
    strbuf_puts(out, start);
    *text += strlen(start);
    *n -= strlen(start);
    return true;
}

static void copy_hex(const char **text, size_t *n, unsigned long long id, struct strbuf *out)
{
    if (*n < HEX_DIGITS) return;
    strbuf_printf(out, "%016llx", id);
    *text += HEX_DIGITS;
    *n -= HEX_DIGITS;
}

struct status result_row_rename(const char *text, size_t n, const char *id, struct strbuf *out)
{
    size_t begin = 0, end = 0;
    const bool is_batch = result_row_is_batch(text, n), has_id = find_id(text, n, &begin, &end);
    const unsigned long long hash = XXH3_64bits(id, strlen(id));
    if (!has_id) return status_make(STATUS_INPUT, "expected a custom_id at its start");
    strbuf_puts(out, "{");
    if (is_batch) strbuf_printf(out, "\"id\":\"batch_req_%016llx\",", hash);
    add_key_string(out, "custom_id", id, strlen(id));
    text += end + 1;
    n -= end + 1;
    if (is_batch && copy_start(&text, &n, BATCH_REQUEST, out)) {
        copy_hex(&text, &n, hash, out);
        const bool has_body = copy_start(&text, &n, BATCH_BODY, out);
        if (has_body &&
            (copy_start(&text, &n, "chatcmpl-", out) || copy_start(&text, &n, "cmpl-", out) ||
             copy_start(&text, &n, "rerank-", out)))
            copy_hex(&text, &n, hash, out);
    }
    if (is_batch)
        tool_calls_rename(text, n, id, out);
    else
        strbuf_add(out, text, n);
    return strbuf_status(out);
}
