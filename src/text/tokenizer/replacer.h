/* tokenizer.json's "Replace": a fixed text replaces each match of a pattern. Finds the matches; the
 * caller copies the text. Shared by the normalizer and the decoder. */
#ifndef SHOAL_TEXT_TOKENIZER_REPLACER_H
#define SHOAL_TEXT_TOKENIZER_REPLACER_H

#include "base/json.h"
#include "base/status.h"
#include "text/grammar/pattern.h"

#include <stdbool.h>
#include <stddef.h>

struct replacer {
    struct pattern *pattern; /* owned; NULL: `find` is the text to find */
    char *find;              /* owned, [n_find] */
    size_t n_find;
    char *content; /* owned, [n_content]: the replacement */
    size_t n_content;
};

enum { REPLACER_BYTES_MAX = 1024 }; /* bounds n_find and n_content */

/* Local. Reads {"type":"Replace","pattern":{"String"|"Regex"},"content"}; `where` names the node in
 * errors. Errors: STATUS_INPUT, STATUS_MEMORY; *r then owns nothing. */
struct status replacer_load(struct replacer *r, const struct js_node *node, const char *where);
void replacer_fini(struct replacer *r);

/* Local. Finds the next match of a walk (pattern_walk_init), [*start, *end); *found is false when
 * there is none. Errors: STATUS_REQUEST when a match limit is reached. */
struct status replacer_next(struct replacer *r, struct pattern_walk *w, size_t *start, size_t *end,
                            bool *found);

#endif
