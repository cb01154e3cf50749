/* Between request.c and request_parse.c only: the JSON side of a request. */
#ifndef SHOAL_SERVE_REQUEST_PARSE_H
#define SHOAL_SERVE_REQUEST_PARSE_H

#include "serve/request.h"

/* Local. Fills r from a line. Errors: STATUS_REQUEST with r->error_code set (an error row; what is
 * known of custom_id and format is in r), STATUS_MEMORY. */
struct status request_parse(struct request *r, const struct request_rules *rules, const char *text,
                            size_t n);

#endif
