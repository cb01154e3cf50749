/* The tojson filter, which jinja_filter.c lists in its table. Included only by jinja*.c. */
#ifndef SHOAL_TEXT_CHAT_JINJA_JSON_H
#define SHOAL_TEXT_CHAT_JINJA_JSON_H

#include "text/chat/jinja_value.h"

/* Local. Python's json.dumps with the options that Hugging Face offers to templates. a[4]:
 * ensure_ascii (default false), indent, separators, sort_keys. */
bool jinja_filter_tojson(struct jrun *r, const struct jvalue *self, const struct jvalue *a,
                         struct jvalue *out);

#endif
