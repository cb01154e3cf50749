/* Writes the server-sent events of an answer that is streamed. */
#include "serve/output/result_stream.h"

#include "serve/output/reasoning.h"
#include "serve/output/result_logprobs.h"
#include "serve/output/result_row.h"
#include "serve/output/tool_calls.h"

/* Returns the request of the line to which c is an answer; c itself if it has no parent. */
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

/* Bytes [from, end) of an answer's text. */
struct text_part {
    size_t from, end;
};

/* A piece of an answer: parts of its thoughts and of its content, and, in the last piece, the tool
 * calls. */
struct answer_piece {
    struct text_part thoughts, content;
    struct tool_calls calls;
    bool ends;
};

static bool has_bytes(const struct text_part *p)
{
    return p->end > p->from;
}

static void write_piece_text(struct strbuf *out, const struct request *c,
                             const struct answer_piece *p)
{
    const struct text_part *t = &p->content;
    strbuf_json_string(out, c->text.data != NULL ? c->text.data + t->from : "", t->end - t->from);
}

/* Appends the "delta" member, which extends a chat's message by the piece. */
static void add_delta(struct strbuf *out, const struct request *c, const struct answer_piece *p)
{
    const bool has_thoughts = has_bytes(&p->thoughts), has_content = has_bytes(&p->content);
    strbuf_puts(out, "\"delta\":{");
    if (has_thoughts) reasoning_write(c, p->thoughts.from, p->thoughts.end, out);
    if (has_thoughts && (has_content || p->calls.n > 0)) strbuf_puts(out, ",");
    if (has_content) strbuf_puts(out, "\"content\":");
    if (has_content) write_piece_text(out, c, p);
    if (has_content && p->calls.n > 0) strbuf_puts(out, ",");
    if (p->calls.n > 0) tool_calls_write(&p->calls, c, true, out);
    strbuf_puts(out, "}");
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
        result_logprobs_completion(c, NULL, rules, s->n_tokens, out);
    }
}

static void end_event(const struct request *c, struct strbuf *out)
{
    strbuf_puts(out, line_of(c)->ask->stream_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

/* Appends the event with which each answer of a chat begins: its role. */
static void write_role(const struct request *c, const char *model_name, struct strbuf *out)
{
    begin_event(line_of(c), model_name, out);
    strbuf_printf(out,
                  "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                  "\"logprobs\":null,\"finish_reason\":null}",
                  c->choice);
    end_event(c, out);
}

static void write_piece(struct result_stream *s, const struct request *c,
                        const struct request_rules *rules, const char *model_name,
                        const struct answer_piece *p, struct strbuf *out)
{
    const bool is_chat = c->ask->format == REQUEST_OPENAI_CHAT;
    if (is_chat && !s->has_begun) write_role(c, model_name, out);
    begin_event(line_of(c), model_name, out);
    strbuf_printf(out, "{\"index\":%u,", c->choice);
    if (is_chat) add_delta(out, c, p);
    if (!is_chat) strbuf_puts(out, "\"text\":");
    if (!is_chat) write_piece_text(out, c, p);
    add_logprobs(s, c, rules, out);
    const char *reason = p->calls.n > 0 ? "tool_calls" : result_row_finish(c);
    if (p->ends) strbuf_printf(out, ",\"finish_reason\":\"%s\"}", reason);
    if (!p->ends) strbuf_puts(out, ",\"finish_reason\":null}");
    end_event(c, out);
    s->has_begun = true;
}

struct status result_stream_write(struct result_stream *s, const struct request *c,
                                  const struct request_rules *rules, const char *model_name,
                                  struct strbuf *out)
{
    const struct reasoning r = reasoning_of(c);
    struct answer_piece p = {.thoughts = {r.begin + s->n_thoughts, r.end},
                             .content = {r.content + s->n_text, r.content},
                             .ends = c->finish != REQUEST_UNFINISHED};
    if (p.ends) {
        TRY(tool_calls_find(c, &p.calls));
        p.content.end += p.calls.n_content;
    } else {
        p.content.end += tool_calls_n_sure(c, r.content);
    }
    if (!s->has_ended && (p.ends || has_bytes(&p.thoughts) || has_bytes(&p.content))) {
        write_piece(s, c, rules, model_name, &p, out);
        s->n_thoughts = r.end - r.begin;
        s->n_text = p.content.end - r.content;
        s->n_tokens = c->n_tokens - c->n_prompt;
        s->has_ended = p.ends;
    }
    tool_calls_fini(&p.calls);
    return strbuf_status(out);
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
