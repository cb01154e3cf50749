/* Shared by the files that turn the JSON of a line into a request.
 *
 *   line -> request_parse.c   JSON, envelope of a batch line
 *             request_fields.c    which fields a line may have
 *             request_sampling.c  draws, limits, stops, log-probabilities, answers, beam search
 *             request_guide.c     the grammar of an answer
 *             request_words.c     allowed_token_ids, bad_words
 *             request_tools.c     the tools of a chat
 *             request_prompt.c    the prompt's tokens
 *             request_score.c     the tokens of a scored context and continuation, or text
 *             request_embed.c     the inputs of shoal embed, instead of a request's fields
 *             request_rank.c      the queries and documents of shoal rank
 *        -> struct request with its struct request_ask
 * */
#ifndef SHOAL_SERVE_REQUEST_REQUEST_PARSE_H
#define SHOAL_SERVE_REQUEST_REQUEST_PARSE_H

#include "base/json.h"
#include "serve/request/request.h"

/* A line or call that is being read. */
struct request_parser {
    struct request *r;
    struct request_ask *ask; /* r's ask, which is const for all other code */
    const struct request_rules *rules;
    bool is_call; /* a call of the server, not a line */
};

/* All of these are Local. Errors: STATUS_REQUEST with r->error.code set (an error row),
 * STATUS_MEMORY. */

/* request_fields.c: refuses fields that would change the output and are not implemented, and in the
 * body of a batch line or call also unknown fields. Warns (p->rules->warnings) of refused fields
 * that have a substitute and, in a plain line, of likely misspellings. */
struct status request_check_fields(struct request_parser *p, const struct js_node *fields);

/* request_fields.c: finds the field that an unknown name probably means ("temprature", or another
 * library's name); NULL: none. */
const char *request_field_meant(const char *key);

/* request_prompt.c: makes the prompt's tokens from prompt, prompt_token_ids or messages; if the
 * rules take pairs, also by request_read_scored. */
struct status request_read_prompt(struct request_parser *p, const struct js_node *fields);

/* request_score.c: reads a context and its continuation, or a text; their tokens are scored.
 * *is_read: the line has one of the two, and no prompt. */
struct status request_read_scored(struct request_parser *p, const struct js_node *fields,
                                  bool *is_read);

/* request_prompt.c; the other readers of prompts use them too. request_read_ids appends a list of
 * token ids to `out`; request_encode appends the tokens of a text, in which special tokens are
 * recognized. request_add_tokens appends tokens to the line's prompt. */
struct status request_read_ids(struct request_parser *p, const struct js_node *list,
                               const char *key, struct token_list *out);
struct status request_encode(struct request_parser *p, const char *text, size_t n, unsigned flags,
                             struct token_list *out);
struct status request_add_tokens(struct request_parser *p, const int32_t *ids, size_t n);

/* request_embed.c: reads a line of shoal embed: "input" or "prompt" (a text, token ids, or a list
 * of either), or "prompt_token_ids" or "messages"; and "dimensions", "encoding_format",
 * "prompt_name" and "priority". */
struct status request_read_embed(struct request_parser *p, const struct js_node *fields);

/* request_rank.c: reads a line of shoal rank: "query" and "documents", and perhaps "instruction"
 * and "priority"; or texts as request_read_embed does. A body of /v1/rerank has pairs only, and
 * perhaps "top_n" and "return_documents". */
struct status request_read_rank(struct request_parser *p, const struct js_node *fields);

/* request_embed.c. request_open_parts prepares the line for a list of n inputs. request_add_part
 * appends the tokens of one input; if the line has a list, the caller then sets the end of the
 * input's prompt. `what` names the input in errors. */
struct status request_open_parts(struct request_parser *p, size_t n);
struct status request_add_part(struct request_parser *p, const char *what, const int32_t *ids,
                               size_t n);

/* request_prompt.c: checks that a prompt of n tokens is not empty and fits the context (if an
 * answer follows, with room for one more token), and that a text has at most the tokens that
 * embed_rules.max_tokens allows. */
struct status request_check_length(struct request_parser *p, size_t n);

/* request_prompt.c: makes the prompt's tokens of a line that is not a request (p->rules->form). */
struct status request_read_form(struct request_parser *p, const struct js_node *fields);

/* request_sampling.c: reads how tokens are drawn, when a text ends, which log-probabilities the row
 * has, how many answers there are, and the priority. Calls request_read_guide and
 * request_read_words. */
struct status request_read_sampling(struct request_parser *p, const struct js_node *fields);

/* request_guide.c: reads response_format, guided_regex, guided_choice, guided_json,
 * guided_json_object and structured_outputs. */
struct status request_read_guide(struct request_parser *p, const struct js_node *fields);

/* request_words.c: reads allowed_token_ids and bad_words, after all other sampling fields. As in
 * vLLM, a word is banned as a sequence of tokens: its last token cannot follow the others. With a
 * leading blank it is banned too if it then has as many tokens and another first one. */
struct status request_read_words(struct request_parser *p, const struct js_node *fields);

/* request_tools.c: reads the names of a chat's tools; keeps none if tool_choice is "none". */
struct status request_read_tools(struct request_parser *p, const struct js_node *fields);

/* request_parse.c: single fields */

/* Sets r's error code (a constant) and returns the sentence as STATUS_REQUEST; request_create or
 * request_create_call then makes r an error row with it. */
struct status request_bad(struct request_parser *p, const char *code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Returns the type of a value that was found, for an error's sentence: "a boolean", "a number
 * beyond 64 bits". */
const char *request_type_name(const struct js_node *node);

/* request_read_id reads an element of the list `key` as a token id; request_check_id checks that
 * `id` is one. */
struct status request_read_id(struct request_parser *p, const char *key, const struct js_node *node,
                              int32_t *id);
struct status request_check_id(struct request_parser *p, const char *key, int64_t id);

/* Set *value to the field `key` if it is present and not null; otherwise leave *value alone. Refuse
 * another type, and a number below low or above high (for reals `range` says in words what is
 * allowed). */
struct status request_read_int(struct request_parser *p, const struct js_node *fields,
                               const char *key, int64_t low, int64_t high, int64_t *value);
struct status request_read_real(struct request_parser *p, const struct js_node *fields,
                                const char *key, const char *range, double low, double high,
                                double *value);
struct status request_read_bool(struct request_parser *p, const struct js_node *fields,
                                const char *key, bool *value);

#endif
