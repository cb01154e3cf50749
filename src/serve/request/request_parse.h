/* Between request.c and the files that read a line's fields only: the JSON side of a request. */
#ifndef SHOAL_SERVE_REQUEST_REQUEST_PARSE_H
#define SHOAL_SERVE_REQUEST_REQUEST_PARSE_H

#include "base/json.h"
#include "serve/request/request.h"

/* Local. Fills r from a line. Errors: STATUS_REQUEST with r->error_code set (an error row; what is
 * known of custom_id and format is in r), STATUS_MEMORY. */
struct status request_parse(struct request *r, const struct request_rules *rules, const char *text,
                            size_t n);

/* All of these are Local and fail as request_parse does. */

/* request_fields.c: refuses fields that would change the output and are not implemented, and in the
 * body of a batch line also unknown fields. Warns of likely misspellings (rules->warnings). */
struct status request_check_fields(struct request *r, const struct request_rules *rules,
                                   const struct js_node *fields);

/* request_fields.c: the field that an unknown name is likely to stand for ("temprature", or another
 * library's name for it); NULL: none. */
const char *request_field_meant(const char *key);

/* request_prompt.c: the tokens of prompt, prompt_token_ids or messages. */
struct status request_read_prompt(struct request *r, const struct request_rules *rules,
                                  const struct js_node *fields);

/* request_sampling.c: everything about how tokens are drawn and when a text ends. */
struct status request_read_sampling(struct request *r, const struct request_rules *rules,
                                    const struct js_node *fields);

/* request_choices.c: how many answers a line gets, and beam search; after all other sampling. */
struct status request_read_choices(struct request *r, const struct request_rules *rules,
                                   const struct js_node *fields);

/* request_read.c */

/* Makes r an error row: sets its code (a constant) and returns the sentence as STATUS_REQUEST. */
struct status request_bad(struct request *r, const char *code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* What a sentence calls a value that it found: "a boolean", "a number beyond 64 bits". */
const char *request_type_name(const struct js_node *node);

/* A token id of the list `key`; and whether a number of it is one. */
struct status request_read_id(struct request *r, const struct request_rules *rules, const char *key,
                              const struct js_node *node, int32_t *id);
struct status request_check_id(struct request *r, const struct request_rules *rules,
                               const char *key, int64_t id);

/* *value = the field `key` when it is there and not null, else *value stays. Refused: another type,
 * a number below low or above high (reals: `range` says in words what is allowed). */
struct status request_read_int(struct request *r, const struct js_node *fields, const char *key,
                               int64_t low, int64_t high, int64_t *value);
struct status request_read_real(struct request *r, const struct js_node *fields, const char *key,
                                const char *range, double low, double high, double *value);
struct status request_read_bool(struct request *r, const struct js_node *fields, const char *key,
                                bool *value);

#endif
