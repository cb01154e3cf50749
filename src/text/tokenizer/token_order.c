/* Tokens are sorted by their bytes, so tokens with the same first bytes are neighbours: if the
 * automaton refuses those first bytes, all these tokens are skipped. */
#include "text/tokenizer/token_order.h"

#include "base/mem.h"
#include "text/tokenizer/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    const char *bytes; /* borrowed from the tokenizer, or from `fallback` */
    uint32_t n;
    uint32_t n_common; /* how many first bytes the entry shares with the entry before */
    int32_t id;
};

struct token_order {
    const struct tokenizer *t;
    struct entry *entries; /* owned, [n] */
    size_t n, n_longest;
    int32_t vocab_size;
    uint16_t *states; /* [n_longest + 1], scratch */
    char fallback[256]; /* fallback[i] is the byte i: the text of a byte-fallback token */
};

static const char *text_of(const struct token_order *o, int32_t id, size_t *n)
{
    *n = 0;
    if (id < 0 || id >= o->vocab_size || tokenizer_is_special(o->t, id)) return NULL;
    const char *bytes = tokenizer_token_bytes(o->t, id, n);
    if (bytes == NULL || o->t->tokens[id].byte < 0 || o->t->decoder.kind != DECODER_CHAIN)
        return bytes;
    *n = 1;
    return &o->fallback[o->t->tokens[id].byte];
}

const char *token_order_text(const struct token_order *o, int32_t id, bool begins, size_t *n)
{
    const struct decoder *d = &o->t->decoder;
    const char *bytes = text_of(o, id, n);
    if (bytes == NULL || !begins || d->kind == DECODER_BYTE_LEVEL) return bytes;
    if (d->kind == DECODER_METASPACE) {
        if (d->keeps_first) return bytes;
        for (; *n > 0 && *bytes == ' '; bytes++) --*n;
        /* the decoder would remove blanks inside too; such a token may not come first */
        if (*n > 0 && memchr(bytes, ' ', *n) != NULL) *n = 0;
        return bytes;
    }
    size_t taken = 0;
    const size_t from = decoder_strip_front(&d->front, bytes, *n, &taken);
    *n -= from;
    return bytes + from;
}

static int compare_bytes(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    const int c = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    if (c != 0) return c;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static void token_order_fill(struct token_order *o)
{
    for (int32_t id = 0; id < o->vocab_size; id++) {
        size_t n;
        const char *bytes = text_of(o, id, &n);
        if (n == 0) continue;
        o->entries[o->n++] = (struct entry){.bytes = bytes, .n = (uint32_t)n, .id = id};
        if (n > o->n_longest) o->n_longest = n;
    }
    qsort(o->entries, o->n, sizeof *o->entries, compare_bytes);
    for (size_t i = 1; i < o->n; i++) {
        const struct entry *a = &o->entries[i - 1];
        struct entry *b = &o->entries[i];
        while (b->n_common < a->n && b->n_common < b->n &&
               a->bytes[b->n_common] == b->bytes[b->n_common])
            b->n_common++;
    }
}

struct status token_order_create(const struct tokenizer *t, int32_t vocab_size,
                                 struct token_order **out)
{
    *out = NULL;
    struct token_order *o = NULL;
    TRY(mem_alloc(&o, 1, sizeof *o, "vocabulary"));
    o->t = t;
    o->vocab_size = vocab_size;
    for (int i = 0; i < 256; i++) o->fallback[i] = (char)i;
    struct status st = mem_alloc(&o->entries, (size_t)vocab_size, sizeof *o->entries, "vocabulary");
    if (!status_failed(&st)) {
        token_order_fill(o);
        st = mem_alloc(&o->states, o->n_longest + 1, sizeof *o->states, "vocabulary");
    }
    if (status_failed(&st)) token_order_destroy(&o);
    *out = o;
    return st;
}

void token_order_destroy(struct token_order **order)
{
    if (*order == NULL) return;
    mem_free(&(*order)->entries);
    mem_free(&(*order)->states);
    mem_free(order);
}

static void set_bit(uint32_t *mask, int32_t id)
{
    mask[id / 32] |= (uint32_t)1 << (id % 32);
}

/* Sets the mask for the first token of an answer. Tests each token by itself, because the decoder
 * may strip a different part from each. */
static size_t mask_first(const struct token_order *o, const struct dfa *d, uint16_t state,
                         uint32_t *mask)
{
    size_t n_taken = 0;
    for (size_t i = 0; i < o->n; i++) {
        size_t n;
        const char *bytes = token_order_text(o, o->entries[i].id, true, &n);
        if (n == 0 || dfa_run(d, state, bytes, n) == DFA_DEAD) continue;
        set_bit(mask, o->entries[i].id);
        n_taken++;
    }
    return n_taken;
}

size_t token_order_mask(const struct token_order *o, const struct dfa *d, uint16_t state,
                        bool begins, uint32_t *mask)
{
    size_t n_alive = 0, n_taken = 0; /* states[k], k <= n_alive: the state after k bytes */
    if (begins && o->t->decoder.kind != DECODER_BYTE_LEVEL) return mask_first(o, d, state, mask);
    o->states[0] = state;
    for (size_t i = 0; i < o->n; i++) {
        const struct entry *e = &o->entries[i];
        if (e->n_common > n_alive) continue;
        for (n_alive = e->n_common; n_alive < e->n; n_alive++) {
            const uint16_t next = dfa_next(d, o->states[n_alive], (uint8_t)e->bytes[n_alive]);
            if (next == DFA_DEAD) break;
            o->states[n_alive + 1] = next;
        }
        if (n_alive < e->n) continue;
        set_bit(mask, e->id);
        n_taken++;
    }
    return n_taken;
}
