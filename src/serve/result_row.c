/* Result lines, as contracts has them. */
#include "serve/result_row.h"

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

/* The shortest decimal that reads back as the same double. */
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

static void add_error(struct strbuf *out, const struct request *r)
{
    strbuf_puts(out, "\"error\":{");
    add_key_string(out, "code", r->error_code, strlen(r->error_code));
    strbuf_puts(out, ",");
    add_key_string(out, "message", r->error_message, strlen(r->error_message));
    strbuf_puts(out, "}");
}

static const char *finish_name(const struct request *r)
{
    return r->finish == REQUEST_STOP ? "stop" : "length";
}

double result_row_sum(const struct request *r, uint64_t *n_scored)
{
    double sum = 0;
    *n_scored = 0;
    if (r->finish != REQUEST_SCORED) return sum;
    for (size_t i = 1; i < r->n_prompt; i++) sum += (double)r->scores[i];
    *n_scored = r->n_prompt - 1;
    return sum;
}

static void add_scored(struct strbuf *out, const struct request *r)
{
    uint64_t n_scored;
    add_ids(out, r->tokens, r->n_prompt);
    strbuf_puts(out, ",\"logprobs\":[null");
    for (size_t i = 1; i < r->n_prompt; i++) {
        strbuf_puts(out, ",");
        strbuf_json_float(out, r->scores[i]);
    }
    strbuf_puts(out, "],\"sum_logprob\":");
    add_double(out, result_row_sum(r, &n_scored));
}

static void add_generated(struct strbuf *out, const struct request *r)
{
    const size_t n_generated = r->n_tokens - r->n_prompt;
    add_key_string(out, "text", r->text.data, r->text.n);
    strbuf_puts(out, ",");
    add_ids(out, r->tokens + r->n_prompt, n_generated);
    strbuf_printf(out,
                  ",\"finish_reason\":\"%s\",\"usage\":{\"prompt_tokens\":%zu,"
                  "\"completion_tokens\":%zu}",
                  finish_name(r), r->n_prompt, n_generated);
}

static void add_openai_body(struct strbuf *out, const struct request *r, const char *model_name,
                            unsigned long long id)
{
    const size_t n_generated = r->n_tokens - r->n_prompt;
    const bool is_chat = r->format == REQUEST_OPENAI_CHAT;
    strbuf_printf(out, "{\"id\":\"%s-%016llx\",\"object\":\"%s\",\"created\":0,",
                  is_chat ? "chatcmpl" : "cmpl", id,
                  is_chat ? "chat.completion" : "text_completion");
    if (model_name != NULL) {
        add_key_string(out, "model", model_name, strlen(model_name));
    } else {
        add_key_string(out, "model", r->model.bytes, r->model.n);
    }
    strbuf_puts(out, ",\"choices\":[{\"index\":0,");
    if (is_chat) strbuf_puts(out, "\"message\":{\"role\":\"assistant\",");
    add_key_string(out, is_chat ? "content" : "text", r->text.data, r->text.n);
    if (is_chat) strbuf_puts(out, "}");
    strbuf_printf(out, ",\"logprobs\":null,\"finish_reason\":\"%s\"}]", finish_name(r));
    strbuf_printf(
        out, ",\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu}}",
        r->n_prompt, n_generated, r->n_tokens);
}

/* The ids of a batch result come from the custom_id alone: no clock, no counter, no chance. */
static void add_openai(struct strbuf *out, const struct request *r, const char *model_name)
{
    const unsigned long long id = XXH3_64bits(r->custom_id.bytes, r->custom_id.n);
    strbuf_printf(out, "{\"id\":\"batch_req_%016llx\",", id);
    add_key_string(out, "custom_id", r->custom_id.bytes, r->custom_id.n);
    if (r->error_code != NULL) {
        strbuf_puts(out, ",\"response\":null,");
        add_error(out, r);
    } else {
        strbuf_printf(
            out, ",\"response\":{\"status_code\":200,\"request_id\":\"%016llx\",\"body\":", id);
        add_openai_body(out, r, model_name, id);
        strbuf_puts(out, "},\"error\":null");
    }
    strbuf_puts(out, "}\n");
}

struct status result_row_write(const struct request *r, const struct request_rules *rules,
                               const char *model_name, struct strbuf *out)
{
    if (r->format != REQUEST_PLAIN && !rules->score) {
        add_openai(out, r, model_name);
        return strbuf_status(out);
    }
    strbuf_puts(out, "{");
    add_key_string(out, "custom_id", r->custom_id.bytes, r->custom_id.n);
    strbuf_puts(out, ",");
    if (r->error_code != NULL) {
        add_error(out, r);
    } else if (rules->score) {
        add_scored(out, r);
    } else {
        add_generated(out, r);
    }
    if (r->error_code == NULL && r->n_dropped > 0) {
        strbuf_printf(out, ",\"dropped\":%llu", (unsigned long long)r->n_dropped);
    }
    strbuf_puts(out, "}\n");
    return strbuf_status(out);
}
