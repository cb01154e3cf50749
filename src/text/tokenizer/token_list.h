/* A growing list of token ids: the output of every encoder in this room. */
#ifndef SHOAL_TEXT_TOKENIZER_TOKEN_LIST_H
#define SHOAL_TEXT_TOKENIZER_TOKEN_LIST_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* The caller zero-initialises the struct; token_list_fini frees its memory. */
struct token_list {
    int32_t *ids; /* owned */
    size_t n;
    size_t capacity;
};

/* Local. Makes room for n_more further ids. Errors: STATUS_MEMORY. */
struct status token_list_reserve(struct token_list *l, size_t n_more);
void token_list_fini(struct token_list *l);

#endif
