/* The tojson filter, apart because it is large. Nobody outside jinja*.c includes this. */
#ifndef SHOAL_TEXT_CHAT_JINJA_JSON_H
#define SHOAL_TEXT_CHAT_JINJA_JSON_H

#include "text/chat/jinja_value.h"

/* Local. json.dumps as Hugging Face gives it to templates: a = ensure_ascii (false), indent,
 * separators, sort_keys. */
bool jinja_filter_tojson(struct jrun *r, const struct jvalue *self, const struct jvalue *a,
                         struct jvalue *out);

#endif
