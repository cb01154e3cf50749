/* A batch keeps the adapters with which it began. Its lines cannot name an adapter that a later
 * server adds, so all rows of a batch follow the same rules. Called by batch_run.c. */
#ifndef SHOAL_SERVE_HTTP_BATCH_ADAPTERS_H
#define SHOAL_SERVE_HTTP_BATCH_ADAPTERS_H

#include "serve/request/request.h"

/* Local. True when the settings `is` equal the settings `was`, or differ from them only by more
 * lines "--adapter ...". Both have the form of a journal's settings. */
bool batch_adapters_agree(const char *was, const char *is);

/* Local. Sets *out to a copy of the rules' adapters in which those that `settings` do not list have
 * no name. Owner: the caller, mem_free. Errors: STATUS_MEMORY. */
struct status batch_adapters_hide(const struct request_rules *rules, const char *settings,
                                  struct request_adapter **out);

#endif
