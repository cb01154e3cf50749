/* Calls that run no model: /metrics, /tokenize and /detokenize. Called by http_port.c. */
#ifndef SHOAL_SERVE_HTTP_HTTP_TEXT_H
#define SHOAL_SERVE_HTTP_HTTP_TEXT_H

#include "serve/http/http_api.h"
#include "serve/request/request.h"
#include "serve/schedule/scheduler.h"

/* The numbers of calls that ended, by how they ended. */
struct http_ends {
    uint64_t n_stop, n_length, n_gone, n_error;
};

/* Local. Appends the measurements in Prometheus' text format. A measurement that vLLM has too gets
 * vLLM's name with the prefix "shoal:". Errors stay in `out` (strbuf_status). */
void http_metrics(const struct serve_summary *s, const struct scheduler_load *load,
                  const struct http_ends *ends, const char *model_name, struct strbuf *out);

/* Both are Local. Answer the call with this body (n bytes): set the status, and append a JSON body
 * to `out`. /tokenize takes the prompt of a completion or a chat and gives its tokens; /detokenize
 * takes {"tokens": [ids]}. Errors: STATUS_MEMORY. */
struct status http_tokenize(const struct request_rules *rules, const char *body, size_t n,
                            enum http_status *status, struct strbuf *out);
struct status http_detokenize(const struct request_rules *rules, const char *body, size_t n,
                              enum http_status *status, struct strbuf *out);

#endif
