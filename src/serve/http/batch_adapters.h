/* The adapters of a batch are those with which it began. A later server may have more: lines do not
 * see these, so all rows of a batch have one meaning. Called by batch_run.c. */
#ifndef SHOAL_SERVE_HTTP_BATCH_ADAPTERS_H
#define SHOAL_SERVE_HTTP_BATCH_ADAPTERS_H

#include "serve/request/request.h"

/* Local. True when the settings `is` are those of `was`, or have more lines "--adapter ..." than
 * these and no other difference. Both are a journal's settings. */
bool batch_adapters_agree(const char *was, const char *is);

/* Local. Sets *out to a copy of the rules' adapters without the names of those that `settings`
 * lack. Owner: the caller, mem_free. Errors: STATUS_MEMORY. */
struct status batch_adapters_hide(const struct request_rules *rules, const char *settings,
                                  struct request_adapter **out);

#endif
