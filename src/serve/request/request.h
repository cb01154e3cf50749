/* A request line: its checked values (struct request_ask), and its answer so far until the result
 * line is written (struct request). The scheduler's part is serve/schedule/sequence.h.
 *
 *   line --request_create--> struct request --> ask: const from here on
 *                              |  ^
 *            scheduler, ranks  v  |  request_take_token: tokens, text, finish
 *                              +--+
 *                              --> serve/output/result_row.c
 *
 * Knows ids, sampling and status; never ranks or tensors. Made by the lead, the server,
 * calibration and `shoal bench`; the scheduler owns requests while they run. */
#ifndef SHOAL_SERVE_REQUEST_REQUEST_H
#define SHOAL_SERVE_REQUEST_REQUEST_H

#include "base/status.h"
#include "base/strbuf.h"
#include "plan/step_plan.h"
#include "serve/request/embed_rules.h"
#include "serve/request/guide.h"
#include "serve/request/sampling_flags.h"
#include "text/chat/chat.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/stop.h"
#include "text/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    REQUEST_STOPS_MAX = 64,
    REQUEST_STOP_BYTES_MAX = 1024,
    REQUEST_STOP_IDS_MAX = 1024,
    REQUEST_BIASES_MAX = 4096,
    REQUEST_BAD_WORDS_MAX = 1024,
    REQUEST_LOGPROBS_MAX = 20,
    REQUEST_CHOICES_MAX = 128,
    REQUEST_PROMPTS_MAX = 4096,
    REQUEST_BEAMS_MAX = 32,
};

/* Local. Sets *d to the flags' presets (serve/request/sampling_flags.h): 128 tokens, one answer,
 * temperature 1, everything else off. */
void request_defaults_init(struct request_defaults *d);

/* Local. Checks the values of the flags. Errors: STATUS_USAGE names the flag. */
struct status request_defaults_check(const struct request_defaults *d);

/* Names of unknown or unsupported fields about which the run has warned. All zeros: none yet. */
enum { REQUEST_WARNINGS_MAX = 32 };
struct request_warnings {
    char names[REQUEST_WARNINGS_MAX][64]; /* [n]; longer names are truncated */
    size_t n;
};

/* How the prompt is made from a line that is not a request; either `field` or `made_by` is set. The
 * line's other members take effect if they are fields of a request, except those that hold a
 * prompt.
 */
struct request_form {
    const char *field;          /* the member that is the prompt */
    const struct chat *made_by; /* a template of the line's members that makes the prompt */
};

/* A low-rank adapter (weights/adapters.h). */
struct request_adapter {
    const char *name;   /* borrowed; NULL: no line may name it */
    uint64_t digest[2]; /* digest of its weights */
    uint64_t key;       /* a hash of its weights, not 0 */
};

/* The tokens whose hidden rows are saved. */
enum hidden_span {
    HIDDEN_ALL,    /* of prompt and answer; the answer's last token has no row */
    HIDDEN_GIVEN,  /* of the prompt */
    HIDDEN_ANSWERS /* from the prompt's last token on: the rows from which tokens were drawn */
};

#define HIDDEN_SPAN_WORDS                                                                          \
    {"all", HIDDEN_ALL}, {"given", HIDDEN_GIVEN},                                                  \
    {                                                                                              \
        "answers", HIDDEN_ANSWERS                                                                  \
    }

/* The model and the flags, against which lines are checked. All pointers are borrowed. */
struct request_rules {
    struct request_defaults defaults;
    const struct request_form *form; /* NULL: lines are requests */
    struct tokenizer *tokenizer;     /* NULL: prompts must be token ids, and results have no text */
    const struct chat *chat;  /* the model's chat template; NULL: lines with `messages` become error
                                 rows */
    const char *chat_missing; /* why chat is NULL, for these error rows; NULL: a general message */
    struct jinja_date date;   /* the time that chat templates see */
    const int32_t *end_ids;   /* [n_end_ids] */
    size_t n_end_ids;
    int32_t vocab_size;    /* token ids are in [0, vocab_size) */
    int32_t max_model_len; /* the most tokens that a context may have */
    /* [n_adapters] low-rank adapters that a line may name */
    const struct request_adapter *adapters;
    size_t n_adapters;
    bool score;        /* prompts are scored, nothing is generated */
    bool takes_pairs;  /* with score: lines may have a context and its continuation, or a text */
    int32_t prefix_id; /* the token before a continuation without a context, and before a text, if
                          the line names no other; -1: the model has none */
    const struct embed_rules *embed;   /* prompts become vectors or scores, nothing is generated;
                                          NULL: text is generated or scored */
    bool is_dry_run;                   /* tokens are made up; result rows without an error say so */
    struct guides *guides;             /* NULL: a line that generates text with a grammar constraint
                                          becomes an error row */
    struct request_warnings *warnings; /* NULL: no warnings */
    int32_t n_saved_tops;              /* at every token at least so many of the most likely
                                          tokens are kept, for --save-logprobs; 0: as many as a
                                          line asks for */
    bool saves_hidden;                 /* rows are saved for --save-hidden */
    enum hidden_span hidden_span;
};

/* allowed_token_ids and bad_words (request_answer.h). */
struct request_words {
    uint32_t *kept; /* [n_kept_words], a bit for each of allowed_token_ids; NULL: all are allowed */
    size_t n_kept_words;
    int32_t *banned; /* [n_banned]: for each banned sequence of tokens its length, then the tokens;
                        a word of bad_words gives up to two sequences */
    size_t n_banned, banned_capacity;
};

/* REQUEST_RERANK: a body of /v1/rerank. A body of /v1/embeddings is REQUEST_OPENAI. */
enum request_format { REQUEST_PLAIN, REQUEST_OPENAI, REQUEST_OPENAI_CHAT, REQUEST_RERANK };
enum request_finish {
    REQUEST_UNFINISHED,
    REQUEST_STOP,
    REQUEST_LENGTH,
    REQUEST_SCORED,
    REQUEST_POOLED
};

/* An owned byte string; may hold NULs. */
struct request_bytes {
    char *bytes;
    size_t n;
};

/* When a beam search with `width` ended hypotheses stops. `worst` is the lowest of their scores. */
enum beam_early {
    BEAM_NOT_EARLY, /* when no running hypothesis exceeds `worst` at its present length */
    BEAM_EARLY,     /* at once */
    BEAM_NEVER,     /* when no running hypothesis can exceed `worst` at any length */
};

struct request_beam {
    int32_t width; /* 0: no beam search */
    enum beam_early early;
    double length_penalty;
};

/* How the row of a scored line is written, and which tokens have log-probabilities. */
enum request_score {
    REQUEST_SCORE_PROMPT, /* all tokens but the first */
    REQUEST_SCORE_PAIR,   /* the tokens of a continuation */
    REQUEST_SCORE_TEXT    /* all tokens of a text, which is scored in windows that fit the
                             context */
};

/* How the thoughts (reasoning) in a chat's answer are separated from its content. */
enum request_thoughts {
    THOUGHTS_STAY,   /* thoughts are content */
    THOUGHTS_TAGGED, /* an answer that begins with CHAT_OPEN_THOUGHT, perhaps after blanks, begins
                        with thoughts */
    THOUGHTS_BEGUN,  /* the answer begins with thoughts, because the prompt ends with the tag */
};

/* The checked values of a line: const once the line is parsed, except for request_run_last. Each
 * answer of a line has a copy that borrows the line's lists. */
struct request_ask {
    enum request_format format;
    struct request_bytes model; /* batch lines and calls: the body's "model"; may be empty */
    uint32_t adapter;           /* 1 + its number among the rules' adapters; 0: none */
    int32_t priority;           /* smaller numbers run first; 0 unless set by the line or
                                   by request_run_last */

    /* how tokens are drawn */
    float temperature, top_p, min_p;
    int32_t top_k;
    uint32_t key[2];
    bool is_seeded; /* the line has a seed; if not, --seed and the custom_id give the key */
    struct plan_penalties penalties;
    struct plan_adjust *biases; /* [n_biases], owned: logit_bias, ids ascending */
    size_t n_biases;
    struct request_words words; /* owned */
    struct guide *guide;        /* shared; NULL: no grammar constraint */

    /* how the answer ends */
    int32_t max_tokens;
    int32_t min_tokens; /* among the first min_tokens tokens no end token and no stop string
                           ends the answer */
    bool ignore_eos;    /* the model's end tokens do not end the answer */
    int32_t *stop_ids;  /* [n_stop_ids], owned: more end tokens */
    size_t n_stop_ids;

    /* a vector instead of an answer (embed_rules.h) */
    enum request_pool pool;
    int32_t dimensions; /* dimensions of the vector */
    enum embed_encoding encoding;
    bool is_list; /* the line has a list of inputs; each gets one of the n_choices */

    /* the row */
    int32_t n_logprobs; /* most likely tokens at each sampled token; -1: no log-probabilities */
    int32_t n_prompt_logprobs; /* the same, for each prompt token */
    int32_t n_tops;        /* most likely tokens that are computed and kept at each sampled token:
                              n_logprobs, or rules->n_saved_tops if it is more; -1: none */
    int32_t n_prompt_tops; /* the same, for each prompt token */
    int32_t n_prompts;     /* prompts of the line */
    int32_t n_choices;     /* answers to all prompts together; the first ones belong to the first
                              prompt */
    bool echo;     /* the answer's text begins with the prompt, and its log-probabilities with the
                      prompt's; of a rerank: the results include the documents */
    int32_t top_n; /* the most results of a rerank */
    enum request_score score; /* when scoring */
    struct request_beam beam;
    struct request_bytes tools;    /* owned: names that a chat's answers may call, each followed by
                                      a NUL; empty: an answer is text */
    enum chat_tool_form tool_form; /* how the model writes calls */
    enum request_thoughts thoughts;
    bool streams;      /* a call's "stream": the answer is sent in pieces */
    bool stream_usage; /* the last piece has the usage: stream_options.include_usage */
};

/* One of a line's prompts. Its tokens are those of the line from the end of the previous prompt (0
 * for the first) up to `end`. */
struct request_prompt {
    size_t end;
    size_t score_from, second_from; /* as in struct request_logprobs and struct request, but counted
                                       from this prompt's first token */
    struct request_bytes echo; /* owned; the prompt's text, or a rerank's document, if the answer
                                  repeats it */
};

/* Hidden rows of consecutive tokens, which are stored outside the request (scheduler.h,
 * rows_sink_fn). */
struct request_rows {
    uint64_t at, checksum; /* where they are, and the XXH3-64 of their bytes */
    size_t from, n;        /* of the tokens [from, from + n) */
};

/* Log-probabilities, as natural logarithms. Owned. */
struct request_logprobs {
    float *scores;     /* [n_prompt], if the ask's n_prompt_tops is 0 or more; those before
                          score_from are unused; NULL: not wanted, or the line's answers have
                          them */
    size_t score_from; /* the first token with a score; above 0 if scores is set */
    struct plan_top *prompt_tops; /* [n_prompt, n_prompt_tops], as scores; NULL also if
                                     n_prompt_tops is 0 */
    float *sampled;               /* [capacity] of the sampled tokens */
    struct plan_top *tops;        /* [capacity, n_tops] the most likely tokens at sampled tokens */
    size_t capacity;
};

/* Hidden rows that are saved. Owned. */
struct request_hidden {
    struct request_rows *runs; /* [n_runs], in the order of their tokens */
    size_t n_runs, capacity;
    size_t n_tokens; /* of the first n_tokens tokens the rows are stored, or are not wanted */
};

struct request_error {
    const char *code; /* NULL: no error. A constant */
    char *message;    /* owned */
};

/* The answers to a line that has several or is a beam search. */
struct request_choices {
    struct request **at; /* [capacity], owned, each NULL until it is finished: the answers (the
                            first n_choices), or while a beam search runs the probes of its step.
                            NULL: the line is its own only answer */
    size_t capacity;
    int32_t n_open;             /* answers or probes that are not finished */
    struct beam_search *search; /* owned by the lead (lead_choices.c); NULL: none */
};

/* A line and its answer so far, or one of a line's answers. */
struct request {
    uint64_t line;                  /* number, from 1 */
    uint64_t index;                 /* place in the order of reading, from 0 */
    uint64_t order;                 /* place in the order of running within its priority; unique */
    uint64_t line_digest[2];        /* the line's digest for the journal */
    struct request_bytes custom_id; /* if the line has none: its number, until request_rename */
    bool is_named;                  /* the line gives a custom_id */
    uint64_t n_template_steps;      /* steps that the chat template took for the prompt */
    const struct request_ask *ask;  /* owned; an answer's ask borrows its lists */
    struct request *parent;         /* the line to which this is an answer or a probe (beam.h), and
                                       whose lists its ask borrows; NULL: this is the line */
    uint32_t choice;                /* which of the line's answers or probes this is */

    /* tokens and text; owned */
    int32_t *tokens; /* [n_tokens]: the prompt's n_prompt, then the sampled ones; of a line with
                        several prompts, all prompts one after the other */
    size_t n_tokens, n_prompt, tokens_capacity;
    struct request_prompt *prompts; /* [n_prompts], owned; NULL: an answer, or a line with one
                                       prompt that is not echoed */
    size_t n_cut;                   /* tokens of a context that were left out at its beginning, or
                                       of an embedded line's texts at their ends */
    size_t second_from; /* the first token of type 1, a pair's second text for an encoder; 0: none
                           has type 1 */
    struct detokenizer detokenizer;
    struct stop_matcher *stop; /* NULL: no stop strings */
    struct strbuf text;
    uint16_t guide_state; /* state after the tokens, if the ask has a guide */
    uint32_t *allowed; /* [ceil(vocab_size / 32)] scratch of request_allows_none, which makes it */

    struct request_logprobs logprobs;

    /* the vector; owned */
    int64_t *pooled; /* [D] the sum of the rows pooled so far (plan/step_plan.h); NULL: none */
    size_t n_pooled; /* of the first n_pooled tokens the rows have been pooled, or are not wanted */

    struct request_hidden hidden;

    /* the state */
    enum request_finish finish;
    struct request_error error;
    uint64_t arrived_ns; /* when its call arrived; without a call, when it was submitted to the
                            scheduler */
    uint64_t first_token_ns, last_token_ns; /* when these tokens were taken; 0: not yet */
    size_t n_resumed;   /* sampled tokens that came from the journal or the result cache */
    size_t n_saved;     /* sampled tokens that the journal already has; for a beam search, steps */
    uint64_t n_dropped; /* expert choices dropped by a capacity factor */

    struct request_choices choices;

    struct exchange *call; /* the server's call, borrowed; NULL: a line of a file, or an answer
                              (its parent has the call) */

    struct result_entry *shared; /* the result cache's entry whose tokens r computes; NULL: none */
    struct request *prev, *next; /* links of the list that holds r (request_list.h) */
};

/* Draft tokens that follow a request's own tokens, as if they had been drawn. */
struct request_ahead {
    const int32_t *tokens; /* [n] */
    size_t n;              /* above 0 */
    uint16_t guide_state;  /* the guide's state after these tokens, if the request has a guide */
};

/* request_parse.c. Local. Makes the request of one line (n bytes, borrowed for the call). For a
 * line that cannot be served, makes a request with its error set, and returns OK. Owner of *out:
 * the caller. Errors: STATUS_MEMORY. */
struct status request_create(const struct request_rules *rules, uint64_t line_number,
                             const char *text, size_t n, struct request **out);

/* A call to the server: the body of a batch line, without the line around it. */
struct request_call {
    enum request_format format; /* not REQUEST_PLAIN */
    uint64_t number;            /* the call's number, from 1, in place of a line's */
    const char *id;             /* in place of a custom_id, NUL-terminated; NULL: none */
    const char *body;           /* JSON */
    size_t n_body;
};

/* request_parse.c. Local. Makes the request of a call. Fields, values and errors are those of the
 * body of a batch line with this custom_id, and also "stream" and "stream_options". The call is
 * borrowed until the function returns. Owner of *out: the caller. Errors: STATUS_MEMORY. */
struct status request_create_call(const struct request_rules *rules,
                                  const struct request_call *call, struct request **out);

/* request_parse.c. Local. Makes the request of a line that was too long to be read: an error row
 * from the start. `code` is a constant. Errors: STATUS_MEMORY. */
struct status request_create_failed(uint64_t line_number, const char *code, const char *message,
                                    struct request **out);

/* Local. Makes a request without a prompt, whose custom_id is its line number. The caller fills in
 * *ask, the request's ask. Errors: STATUS_MEMORY. */
struct status request_create_bare(uint64_t line_number, struct request **out,
                                  struct request_ask **ask);

/* Local. Accepts NULL. Does not destroy r's beam search. */
void request_destroy(struct request **r);

/* The error row of a line that repeats a custom_id; merge.c also writes it. */
#define REQUEST_DUPLICATE_CODE    "duplicate_id"
#define REQUEST_DUPLICATE_MESSAGE "custom_id: an earlier line has the same"

/* The error of a request whose client has gone, or whose batch was cancelled. */
#define REQUEST_CANCELLED_CODE "cancelled"

/* Errors that arise while a line runs. All other errors of a line, except cancellation, are found
 * before it runs, even a repeated custom_id. */
#define REQUEST_NUMERIC_CODE  "numeric_error"
#define REQUEST_GUIDE_CODE    "guide_error"
#define REQUEST_NO_TOKEN_CODE "no_token_left"

/* Local. Makes r an error row, unless it is one already. `code` is a constant, `message` is copied.
 * Errors: STATUS_MEMORY. */
struct status request_fail(struct request *r, const char *code, const char *message);

/* Local. Gives a request without a custom_id a name. Does not change a key that the request already
 * has. Errors: STATUS_MEMORY. */
struct status request_rename(struct request *r, const char *name);

/* Local. request_run_last makes r run after all requests of any other priority; for a server's
 * batch lines. */
void request_run_last(struct request *r);
bool request_runs_last(const struct request *r);

/* request_answer.c. Local. Takes a sampled token: appends it, extends the text, and sets r->finish
 * when the token ends the request: "stop" for an end id, a stop string or a complete grammar,
 * "length" for max_tokens or a full context. Makes r an error row when the grammar does not allow
 * the token, or when the answer is not complete and no token may follow. Errors: STATUS_MEMORY. */
struct status request_take_token(struct request *r, const struct request_rules *rules,
                                 int32_t token);

/* Local. Stores the log-probability of the token that is taken next, and the n_tops most likely
 * tokens. Errors: STATUS_MEMORY. */
struct status request_take_logprob(struct request *r, float logprob, const struct plan_top *tops);

/* Local. Takes stored rows, which follow those taken before. Errors: STATUS_MEMORY. */
struct status request_take_hidden(struct request *r, const struct request_rows *rows);

/* Local. True when r's row depends only on r's tokens, which may then come from another run or an
 * equal request. */
bool request_is_replayable(const struct request *r);

/* Local. Estimates the bytes that r takes until its result line is written, if its answers are as
 * long as they can be. */
size_t request_cost_bytes(const struct request *r, const struct request_rules *rules);

/* Local. request_key_of_seed sets the key of a line with a seed: the seed's low and high words.
 * request_key_of_id sets the key of a line without one: the XXH3-64 of the custom_id's bytes,
 * seeded with --seed. */
void request_key_of_seed(int64_t seed, uint32_t key[2]);
void request_key_of_id(uint64_t seed, const char *id, size_t n, uint32_t key[2]);

#endif
