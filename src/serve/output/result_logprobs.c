/* Writes log-probabilities in three JSON forms. */
#include "serve/output/result_logprobs.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

/* A token, its log-probability and the most likely tokens at its position. */
struct scored_token {
    int32_t id;
    float logprob;
    const struct plan_top *tops; /* [n_tops] */
    size_t n_tops;
};

/* Returns sampled token i. */
static struct scored_token sampled(const struct request *r, size_t i)
{
    return (struct scored_token){.id = r->tokens[r->n_prompt + i],
                                 .logprob = r->logprobs.sampled[i],
                                 .tops = r->logprobs.tops + i * (size_t)r->ask->n_tops,
                                 .n_tops = (size_t)r->ask->n_logprobs};
}

/* Returns token i of the prompt. */
static struct scored_token prompt_token(const struct request *r, size_t i)
{
    const size_t n = (size_t)r->ask->n_prompt_logprobs;
    return (struct scored_token){
        .id = r->tokens[i],
        .logprob = r->logprobs.scores[i],
        .tops = n > 0 ? r->logprobs.prompt_tops + i * (size_t)r->ask->n_prompt_tops : NULL,
        .n_tops = n};
}

static void add_plain(const struct scored_token *t, struct strbuf *out)
{
    strbuf_printf(out, "{\"id\":%d,\"logprob\":", t->id);
    strbuf_json_float(out, t->logprob);
    strbuf_puts(out, ",\"top\":[");
    for (size_t k = 0; k < t->n_tops; k++) {
        strbuf_printf(out, k > 0 ? ",[%d," : "[%d,", t->tops[k].id);
        strbuf_json_float(out, t->tops[k].logprob);
        strbuf_puts(out, "]");
    }
    strbuf_puts(out, "]}");
}

void result_logprobs_plain(const struct request *r, struct strbuf *out)
{
    strbuf_puts(out, "[");
    for (size_t i = 0; i < r->n_tokens - r->n_prompt; i++) {
        const struct scored_token t = sampled(r, i);
        if (i > 0) strbuf_puts(out, ",");
        add_plain(&t, out);
    }
    strbuf_puts(out, "]");
}

void result_logprobs_prompt(const struct request *r, struct strbuf *out)
{
    strbuf_puts(out, "[null");
    for (size_t i = 1; i < r->n_prompt; i++) {
        const struct scored_token t = prompt_token(r, i);
        strbuf_puts(out, ",");
        add_plain(&t, out);
    }
    strbuf_puts(out, "]");
}

/* Returns a token's bytes. Without a tokenizer, or for an id without bytes, makes a substitute in
 * `scratch`. */
static const char *result_logprobs_bytes_of(const struct request_rules *rules, int32_t id,
                                            char scratch[32], size_t *n)
{
    const char *bytes = NULL;
    if (rules->tokenizer != NULL) bytes = tokenizer_token_bytes(rules->tokenizer, id, n);
    if (bytes != NULL) return bytes;
    *n = (size_t)snprintf(scratch, 32, "token_id:%d", id);
    return scratch;
}

static void add_chat_token(const struct request_rules *rules, int32_t id, float logprob,
                           struct strbuf *out)
{
    char scratch[32];
    size_t n;
    const char *bytes = result_logprobs_bytes_of(rules, id, scratch, &n);
    strbuf_puts(out, "{\"token\":");
    strbuf_json_string(out, bytes, n);
    strbuf_puts(out, ",\"logprob\":");
    strbuf_json_float(out, logprob);
    strbuf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++)
        strbuf_printf(out, i > 0 ? ",%u" : "%u", (unsigned)(unsigned char)bytes[i]);
    strbuf_puts(out, "]");
}

void result_logprobs_chat(const struct request *r, const struct request_rules *rules, size_t from,
                          struct strbuf *out)
{
    strbuf_puts(out, "{\"content\":[");
    for (size_t i = from; i < r->n_tokens - r->n_prompt; i++) {
        const struct scored_token t = sampled(r, i);
        if (i > from) strbuf_puts(out, ",");
        add_chat_token(rules, t.id, t.logprob, out);
        strbuf_puts(out, ",\"top_logprobs\":[");
        for (size_t k = 0; k < t.n_tops; k++) {
            if (k > 0) strbuf_puts(out, ",");
            add_chat_token(rules, t.tops[k].id, t.tops[k].logprob, out);
            strbuf_puts(out, "}");
        }
        strbuf_puts(out, "]}");
    }
    strbuf_puts(out, "],\"refusal\":null}");
}

static bool is_text(const char *bytes, size_t n)
{
    size_t bad_at;
    return utf8_valid(bytes, n, &bad_at);
}

/* Appends a token as a JSON string, in the form of completions. */
static void add_token_string(const struct request_rules *rules, int32_t id, struct strbuf *out)
{
    char scratch[32];
    size_t n;
    const char *bytes = result_logprobs_bytes_of(rules, id, scratch, &n);
    if (is_text(bytes, n)) {
        strbuf_json_string(out, bytes, n);
        return;
    }
    strbuf_puts(out, "\"bytes:");
    for (size_t i = 0; i < n; i++)
        strbuf_printf(out, "\\\\x%02x", (unsigned)(unsigned char)bytes[i]);
    strbuf_puts(out, "\"");
}

static size_t string_characters(const struct request_rules *rules, int32_t id)
{
    char scratch[32];
    size_t n, n_characters = 0;
    const char *bytes = result_logprobs_bytes_of(rules, id, scratch, &n);
    if (!is_text(bytes, n)) return strlen("bytes:") + 4 * n;
    for (size_t i = 0; i < n; i++) n_characters += (bytes[i] & 0xC0) != 0x80;
    return n_characters;
}

/* True when one of the first k ids in tops has the same bytes as `id`: a JSON object should not
 * have a key twice. */
static bool repeats(const struct request_rules *rules, const struct plan_top *tops, size_t k,
                    int32_t id)
{
    char a_scratch[32], b_scratch[32];
    size_t n, m;
    const char *bytes = result_logprobs_bytes_of(rules, id, a_scratch, &n);
    for (size_t i = 0; i < k; i++) {
        const char *other = result_logprobs_bytes_of(rules, tops[i].id, b_scratch, &m);
        if (n == m && memcmp(bytes, other, n) == 0) return true;
    }
    return false;
}

static void add_top_map(const struct request_rules *rules, const struct scored_token *t,
                        struct strbuf *out)
{
    const char *comma = "";
    strbuf_puts(out, "{");
    for (size_t k = 0; k <= t->n_tops; k++) {
        const bool is_own = k == t->n_tops;
        const int32_t id = is_own ? t->id : t->tops[k].id;
        if (repeats(rules, t->tops, k, id)) continue;
        strbuf_puts(out, comma);
        add_token_string(rules, id, out);
        strbuf_puts(out, ":");
        strbuf_json_float(out, is_own ? t->logprob : t->tops[k].logprob);
        comma = ",";
    }
    strbuf_puts(out, "}");
}

/* The tokens of an answer to a completion; with an echo, the prompt's tokens before them. */
struct answer_tokens {
    const struct request *r, *echo; /* echo NULL: none */
    size_t n_echo, n;
};

/* Returns token i. The first token of an echoed prompt has no log-probability. */
static struct scored_token answer_token(const struct answer_tokens *a, size_t i)
{
    if (i >= a->n_echo) return sampled(a->r, i - a->n_echo);
    return prompt_token(a->echo, i);
}

/* Appends the log-probability of token i or, with is_map, its most likely tokens; null for the
 * first token of an echoed prompt. */
static void add_logprob(const struct answer_tokens *a, size_t i, bool is_map,
                        const struct request_rules *rules, struct strbuf *out)
{
    const struct scored_token t = answer_token(a, i);
    if (i == 0 && a->n_echo > 0) {
        strbuf_puts(out, "null");
    } else if (is_map) {
        add_top_map(rules, &t, out);
    } else {
        strbuf_json_float(out, t.logprob);
    }
}

void result_logprobs_completion(const struct request *r, const struct request *echo,
                                const struct request_rules *rules, size_t from, struct strbuf *out)
{
    const size_t n_echo = echo != NULL ? r->n_prompt : 0;
    const struct answer_tokens a = {r, echo, n_echo, n_echo + r->n_tokens - r->n_prompt};
    const bool has_tops = r->ask->n_logprobs > 0;
    size_t offset = 0;
    strbuf_puts(out, "{\"tokens\":[");
    for (size_t i = from; i < a.n; i++) {
        if (i > from) strbuf_puts(out, ",");
        add_token_string(rules, answer_token(&a, i).id, out);
    }
    strbuf_puts(out, "],\"token_logprobs\":[");
    for (size_t i = from; i < a.n; i++) {
        if (i > from) strbuf_puts(out, ",");
        add_logprob(&a, i, false, rules, out);
    }
    strbuf_puts(out, has_tops ? "],\"top_logprobs\":[" : "],\"top_logprobs\":null");
    for (size_t i = from; i < a.n && has_tops; i++) {
        if (i > from) strbuf_puts(out, ",");
        add_logprob(&a, i, true, rules, out);
    }
    strbuf_puts(out, has_tops ? "],\"text_offset\":[" : ",\"text_offset\":[");
    for (size_t i = 0; i < a.n; i++) {
        if (i >= from) strbuf_printf(out, i > from ? ",%zu" : "%zu", offset);
        offset += string_characters(rules, answer_token(&a, i).id);
    }
    strbuf_puts(out, "]}");
}
