/* Splits normalized text into the pieces that are encoded separately. Built from tokenizer.json's
 * "pre_tokenizer"; knows no vocabulary. Called by the tokenizer. */
#ifndef SHOAL_TEXT_TOKENIZER_PRETOKENIZER_H
#define SHOAL_TEXT_TOKENIZER_PRETOKENIZER_H

#include "base/json.h"
#include "base/status.h"
#include "base/strbuf.h"
#include "text/grammar/json_read.h"
#include "text/grammar/pattern.h"

#include <stddef.h>

/* How a split treats the delimiters that it finds. */
enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
    SPLIT_COUNT
};

enum pretoken_kind {
    PRETOKEN_SPLIT,
    PRETOKEN_BLANK,     /* puts a blank before pieces that do not begin with one */
    PRETOKEN_BERT,      /* cuts at whitespace, which it removes, and around punctuation */
    PRETOKEN_METASPACE, /* replaces each blank by one character, and puts that character before the
                           pieces that metaspace.prepend selects */
};

struct pretoken_step {
    enum pretoken_kind kind;
    struct pattern *pattern; /* owned; only for PRETOKEN_SPLIT */
    enum split_behavior behavior;
    bool invert;                     /* the pattern finds the pieces instead of the delimiters */
    struct json_metaspace metaspace; /* only for PRETOKEN_METASPACE */
};

struct span {
    size_t start, n;
};

struct span_list {
    struct span *spans; /* owned */
    size_t n, capacity;
};

enum { PRETOKEN_STEPS_MAX = 16 };

struct pretokenizer {
    struct pretoken_step steps[PRETOKEN_STEPS_MAX];
    size_t n_steps;
    bool byte_level; /* the model works on the bytes of pieces; otherwise on their characters */
    bool normalized; /* texts go through a normalizer first */
    bool rewrites;   /* a step changes the text; at most one may */
    struct span_list spans;  /* owned scratch: the pieces, after pretokenizer_cut */
    struct span_list before; /* owned scratch: the pieces before the current step */
    struct strbuf text;      /* owned scratch: the text as the rewriting step has changed it */
};

/* Local. Reads the JSON node (NULL or null: the text is one piece). `normalized`: texts go through
 * a normalizer first. `what` names the file in errors. Errors: STATUS_INPUT names the step or field
 * that is not supported; STATUS_MEMORY. */
struct status pretokenizer_init(struct pretokenizer *p, const struct js_node *node, bool normalized,
                                const char *what);
void pretokenizer_fini(struct pretokenizer *p);

/* Local. Splits n bytes of well-formed UTF-8. at_start: the whole text begins with them. The pieces
 * are p->spans in *cut, which is the text or scratch memory of p. They are valid until the next
 * call, and none is empty. Errors: STATUS_MEMORY; STATUS_REQUEST when a pattern's match limit is
 * reached. */
struct status pretokenizer_cut(struct pretokenizer *p, const char *text, size_t n, bool at_start,
                               const char **cut);

#endif
