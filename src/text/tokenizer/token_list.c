/* A growing list of token ids. */
#include "text/tokenizer/token_list.h"

#include "base/mem.h"

#include <string.h>

struct status token_list_reserve(struct token_list *l, size_t n_more)
{
    size_t want;
    if (!mem_add(l->n, n_more, &want)) return status_make(STATUS_MEMORY, "too many tokens");
    if (want <= l->capacity) return status_ok();
    size_t capacity = l->capacity < 64 ? 64 : l->capacity;
    while (capacity < want) {
        if (!mem_add(capacity, capacity / 2, &capacity)) capacity = want;
    }
    TRY(mem_grow(&l->ids, l->n, capacity, sizeof l->ids[0], "token ids"));
    l->capacity = capacity;
    return status_ok();
}

void token_list_fini(struct token_list *l)
{
    mem_free(&l->ids);
    memset(l, 0, sizeof *l);
}
