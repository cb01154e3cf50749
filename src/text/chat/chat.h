/* Turns a conversation into the text and the token ids that a model expects, by its chat template.
 * Bytes from users never become special tokens. Reads no files and parses no request lines. The job
 * creates a struct chat for the model's template and for --prompt-template; serve/request renders
 * and encodes lines with them. */
#ifndef SHOAL_TEXT_CHAT_CHAT_H
#define SHOAL_TEXT_CHAT_CHAT_H

#include "base/json.h"
#include "base/status.h"
#include "text/chat/jinja.h"
#include "text/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>

struct chat; /* only chat_set_token changes it */

/* Local. Parses n bytes of a Jinja template; `what` names the template in errors. tokens:
 * the object of tokenizer_config.json (or NULL), which gives bos_token, eos_token and the other
 * special tokens as strings, or as objects with "content". Owner of *out: the caller, chat_destroy.
 * Errors: those of jinja_create. */
struct status chat_create(const char *source, size_t n, const struct js_node *tokens,
                          const char *what, struct chat **out);
void chat_destroy(struct chat **c);

/* Local. Sets a special token's variable ("bos_token", "eos_token", ...) to text[n], which is
 * copied and must be UTF-8; for models without a tokenizer_config.json. Errors: STATUS_INPUT for
 * other names, STATUS_MEMORY. */
struct status chat_set_token(struct chat *c, const char *name, const char *text, size_t n);

/* How a template teaches the model to write tool calls. */
enum chat_tool_form {
    CHAT_TOOLS_JSON,   /* the whole answer is JSON */
    CHAT_TOOLS_TAGGED, /* JSON between <tool_call> and </tool_call> in the answer */
};

/* Local. Returns CHAT_TOOLS_TAGGED if the template's source contains <tool_call>. */
enum chat_tool_form chat_tool_form(const struct chat *c);

/* The tags around a model's thoughts (its reasoning). */
#define CHAT_OPEN_THOUGHT  "<think>"
#define CHAT_CLOSE_THOUGHT "</think>"

/* Local. True when the template's source contains CHAT_CLOSE_THOUGHT. */
bool chat_has_thoughts(const struct chat *c);

/* Zero-initialise it. Nodes are borrowed and may be NULL. */
struct chat_options {
    bool no_generation_prompt;       /* add_generation_prompt is false, else true */
    const struct js_node *tools;     /* array of objects, as OpenAI writes it */
    const struct js_node *documents; /* array of objects */
    const struct js_node *extra;     /* object of at most 64 members: further variables
                                        (chat_template_kwargs) */
    struct jinja_date date;          /* the time for strftime_now; year 0: CHAT_DATE_DEFAULT */
    struct jinja_limits limits;
};

/* The default of --template-date. */
#define CHAT_DATE_DEFAULT "2024-07-26"

/* Local. Reads "YYYY-MM-DD" or "YYYY-MM-DDTHH:MM:SS". Errors: STATUS_USAGE. */
struct status chat_date_parse(const char *text, struct jinja_date *out);

/* A rendered conversation. Zero-initialise it; chat_text_fini frees it. */
struct chat_text {
    char *bytes; /* owned, [n]; not NUL-terminated */
    size_t n;
    struct text_span *spans; /* owned, [n_spans]: they cover [0, n) in order; spans of the
                                template and of users alternate */
    size_t n_spans;
    uint64_t n_steps; /* steps that the template took; also set after an error */
};

/* Local. Runs the template over an array of messages. Printed values of the messages and of the
 * options' nodes count as text from a user (text_span.is_user). Errors: STATUS_REQUEST for
 * messages, tools, documents or extra of the wrong shape, and those of jinja_render; STATUS_MEMORY.
 */
struct status chat_render(const struct chat *c, const struct js_node *messages,
                          const struct chat_options *options, struct chat_text *out);
void chat_text_fini(struct chat_text *t);

/* Local. True when the answer begins inside thoughts: the template's own text after the last byte
 * from a user has an opening tag and no closing tag after it. */
bool chat_text_begins_thoughts(const struct chat_text *t);

/* Local. Runs the template over the members of an object, whose printed values count as text from a
 * user. Each member is a variable, except that a null member counts as missing. `line` is the whole
 * object, unless the object has a member of that name. date: as in chat_options. Errors: those of
 * jinja_render, with STATUS_REQUEST also for printing an undefined value; STATUS_MEMORY. */
struct status chat_render_members(const struct chat *c, const struct js_node *object,
                                  const struct jinja_date *date, struct chat_text *out);

/* Local. Sets *takes to true if a message's content may stay a list of OpenAI's text parts. The
 * test is that the template writes a list of one part exactly as it writes that part's text given
 * as a string; the template runs once for each. Errors: STATUS_MEMORY. */
struct status chat_takes_parts(const struct chat *c, bool *takes);

/* Local. Appends the token ids of a rendered conversation. Special tokens are recognized only in
 * the template's own bytes, and none are added. Errors: as tokenizer_encode_spans. */
struct status chat_encode(struct tokenizer *t, const struct chat_text *text,
                          struct token_list *out);

#endif
