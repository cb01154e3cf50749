/* The table is SentencePiece's: the trie's length in bytes, the trie in the units of the
 * Darts-clone library, and the texts that replace. A unit has a label, a flag that its node ends a
 * key, and an offset to its children: child c of the node at i is the unit at i ^ offset ^ c. The
 * value of a key, an offset into the texts, is child 0 of the key's node. */
#include "text/tokenizer/precompiled.h"

#include "base/base64.h"
#include "base/utf8.h"
#include "text/grammar/json_read.h"

#include <string.h>

enum { UNIT_BYTES = 4 };

static uint32_t read_u32(const char *at)
{
    const unsigned char *b = (const unsigned char *)at;
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* Sets the trie and the texts. The texts must be well-formed UTF-8, because they replace characters
 * of the text to be tokenized. */
static struct status take_parts(struct precompiled *p, const char *where)
{
    const size_t head = sizeof(uint32_t);
    const size_t n_trie = p->bytes.n < head ? 0 : read_u32(p->bytes.data);
    size_t bad;
    if (n_trie == 0 || n_trie % UNIT_BYTES != 0 || n_trie > p->bytes.n - head)
        return status_make(STATUS_INPUT,
                           "%s: precompiled_charsmap: a trie of %zu bytes in %zu bytes", where,
                           n_trie, p->bytes.n);
    p->units = p->bytes.data + head;
    p->n_units = n_trie / UNIT_BYTES;
    p->texts = p->units + n_trie;
    p->n_texts = p->bytes.n - head - n_trie;
    if (utf8_valid(p->texts, p->n_texts, &bad)) return status_ok();
    return status_make(STATUS_INPUT, "%s: precompiled_charsmap: its texts are not UTF-8", where);
}

struct status precompiled_load(struct precompiled *p, const struct js_node *node, const char *where)
{
    static const char *const KNOWN[] = {"type", "precompiled_charsmap", NULL};
    const char *text;
    size_t n;
    memset(p, 0, sizeof *p);
    TRY(json_known_fields(node, where, KNOWN));
    TRY(json_string_field(node, "precompiled_charsmap", where, &text, &n));
    strbuf_init(&p->bytes);
    struct status st = status_ok();
    if (!base64_decode(text, n, &p->bytes))
        st = status_make(STATUS_INPUT, "%s: precompiled_charsmap: expected base64", where);
    const struct status room = strbuf_status(&p->bytes);
    if (status_failed(&room)) st = room;
    if (!status_failed(&st)) st = take_parts(p, where);
    if (status_failed(&st)) precompiled_fini(p);
    return st;
}

void precompiled_fini(struct precompiled *p)
{
    strbuf_fini(&p->bytes);
    memset(p, 0, sizeof *p);
}

/* Sets *unit to the unit at i; false: there is none, because the table is damaged. */
static bool unit_at(const struct precompiled *p, size_t i, uint32_t *unit)
{
    if (i >= p->n_units) return false;
    *unit = read_u32(p->units + i * UNIT_BYTES);
    return true;
}

static size_t offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}

const char *precompiled_find(const struct precompiled *p, const char *key, size_t n, size_t *n_out)
{
    uint32_t unit;
    if (!unit_at(p, 0, &unit)) return NULL;
    size_t at = offset_of(unit);
    for (size_t i = 0; i < n && key[i] != '\0'; i++) {
        const unsigned char c = (unsigned char)key[i];
        at ^= c;
        if (!unit_at(p, at, &unit) || (unit & (1u << 31 | 0xFF)) != c) return NULL;
        at ^= offset_of(unit);
        if ((unit >> 8 & 1) == 0) continue;
        if (!unit_at(p, at, &unit)) return NULL;
        const size_t text = unit & 0x7FFFFFFF;
        if (text >= p->n_texts || (p->texts[text] & 0xC0) == 0x80)
            return NULL; /* outside the texts, or inside a character */
        *n_out = strnlen(p->texts + text, p->n_texts - text);
        return p->texts + text;
    }
    return NULL;
}
