/* Events of a stream. */
#include "serve/output/result_stream.h"

#include "serve/output/result_logprobs.h"
#include "serve/output/result_row.h"

/* The line to which the answer c belongs. */
static const struct request *line_of(const struct request *c)
{
    return c->parent != NULL ? c->parent : c;
}

static void begin_event(const struct request *r, const char *model_name, struct strbuf *out)
{
    const bool is_chat = r->ask->format == REQUEST_OPENAI_CHAT;
    strbuf_puts(out, "data: ");
    result_row_head(r, is_chat ? "chat.completion.chunk" : "text_completion", model_name, out);
    strbuf_puts(out, ",\"choices\":[");
}

static void add_text(struct strbuf *out, const struct request *c, size_t from)
{
    strbuf_json_string(out, c->text.data != NULL ? c->text.data + from : "", c->text.n - from);
}

static void add_logprobs(const struct result_stream *s, const struct request *c,
                         const struct request_rules *rules, struct strbuf *out)
{
    strbuf_puts(out, ",\"logprobs\":");
    if (c->ask->n_logprobs < 0) {
        strbuf_puts(out, "null");
    } else if (c->ask->format == REQUEST_OPENAI_CHAT) {
        result_logprobs_chat(c, rules, s->n_tokens, out);
    } else {
        result_logprobs_completion(c, rules, s->n_tokens, out);
    }
}

static void end_event(const struct request *c, struct strbuf *out)
{
    strbuf_puts(out, line_of(c)->ask->stream_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

/* A chat begins with the role of its answers. */
static void write_role(const struct request *c, const char *model_name, struct strbuf *out)
{
    begin_event(line_of(c), model_name, out);
    strbuf_printf(out,
                  "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                  "\"logprobs\":null,\"finish_reason\":null}",
                  c->choice);
    end_event(c, out);
}

void result_stream_write(struct result_stream *s, const struct request *c,
                         const struct request_rules *rules, const char *model_name,
                         struct strbuf *out)
{
    const bool is_chat = c->ask->format == REQUEST_OPENAI_CHAT;
    const bool ends = c->finish != REQUEST_UNFINISHED;
    if (s->has_ended || (!ends && c->text.n == s->n_text)) return;
    if (is_chat && !s->has_begun) write_role(c, model_name, out);
    s->has_begun = true;
    begin_event(line_of(c), model_name, out);
    strbuf_printf(out, "{\"index\":%u,%s", c->choice, is_chat ? "\"delta\":{" : "\"text\":");
    if (is_chat && c->text.n > s->n_text) strbuf_puts(out, "\"content\":");
    if (!is_chat || c->text.n > s->n_text) add_text(out, c, s->n_text);
    if (is_chat) strbuf_puts(out, "}");
    add_logprobs(s, c, rules, out);
    if (ends) strbuf_printf(out, ",\"finish_reason\":\"%s\"}", result_row_finish(c));
    if (!ends) strbuf_puts(out, ",\"finish_reason\":null}");
    end_event(c, out);
    s->n_text = c->text.n;
    s->n_tokens = c->n_tokens - c->n_prompt;
    s->has_ended = ends;
}

void result_stream_end(const struct request *r, const char *model_name, struct strbuf *out)
{
    if (r->ask->stream_usage) {
        begin_event(r, model_name, out);
        strbuf_puts(out, "],");
        result_row_usage(r, out);
        strbuf_puts(out, "}\n\n");
    }
    strbuf_puts(out, "data: [DONE]\n\n");
}
