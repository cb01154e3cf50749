/* Writes vectors and scores into result lines: "embedding", "embeddings" or "scores" of a plain
 * line, and the bodies of /v1/embeddings and /v1/rerank of a batch line or call. Called by
 * result_row.c.
 * Circle: calls back result_row_choice of result_row.c, which finds answers and their vectors. */
#ifndef SHOAL_SERVE_OUTPUT_RESULT_EMBED_H
#define SHOAL_SERVE_OUTPUT_RESULT_EMBED_H

#include "serve/request/request.h"

/* Local. For a finished r without an error, append the members of its plain result row, or the body
 * of its batch result. model_name: the body's "model"; NULL: the request's own. Errors:
 * STATUS_MEMORY. */
struct status result_embed_plain(const struct request *r, const struct embed_rules *rules,
                                 struct strbuf *out);
struct status result_embed_body(const struct request *r, const struct embed_rules *rules,
                                const char *model_name, struct strbuf *out);

/* Local. For a finished rerank, appends the members of the body that follow its head
 * (result_row_head): results for the top_n documents with the highest scores, the highest first,
 * equal scores in the order of the documents; then the usage. Errors: STATUS_MEMORY. */
struct status result_embed_ranked(const struct request *r, const struct embed_rules *rules,
                                  struct strbuf *out);

#endif
