/* A list of guides, the most recently used first. Guides without users are dropped when there are
 * too many of them or they use too much memory. */
#include "serve/request/guide.h"

#include "base/mem.h"
#include "text/grammar/automaton.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/regex.h"
#include "text/tokenizer/token_order.h"

#include <string.h>
#include <xxhash.h>

/* Limits: bytes and number of guides without users, and bytes of all masks. */
enum { KEPT_BYTES = 64 << 20, KEPT = 256, MASKS_BYTES = 64 << 20 };

/* The source of a guide. */
struct spec {
    enum guide_kind kind;
    const struct js_node *node; /* used only to compile; not read for GUIDE_OBJECT */
    char *key; /* owned, [n_key]: the kind, then (not for GUIDE_OBJECT) the node as compact JSON */
    size_t n_key;
    uint64_t hash; /* hash of the key */
};

static struct status spec_init(struct spec *s, enum guide_kind kind, const struct js_node *node)
{
    char *text = NULL;
    size_t n_text = 0;
    *s = (struct spec){.kind = kind, .node = node};
    if (kind != GUIDE_OBJECT) TRY(js_dump(node, &text, &n_text));
    const struct status st = mem_alloc(&s->key, n_text + 1, 1, "guide");
    if (!status_failed(&st)) {
        s->key[0] = (char)kind;
        if (n_text > 0) memcpy(s->key + 1, text, n_text);
        s->n_key = n_text + 1;
        s->hash = XXH3_64bits(s->key, s->n_key);
    }
    mem_free(&text);
    return st;
}

static bool spec_equals(const struct spec *a, const struct spec *b)
{
    return a->hash == b->hash && a->n_key == b->n_key && memcmp(a->key, b->key, a->n_key) == 0;
}

struct mask {
    uint32_t *words; /* owned, [n_words]; NULL: not made yet */
    size_t n_tokens;
};

struct guide {
    struct guides *owner;
    struct spec spec; /* its source, without the node */
    size_t n_users;
    char *error;        /* owned: why the grammar could not be compiled; NULL: it was compiled */
    struct dfa *dfa;    /* owned; NULL if there is an error, as are the masks */
    struct mask *masks; /* [dfa->n_states], owned */
    struct mask first;  /* mask for an answer's first token */
    struct guide *next; /* the guide used most recently before this one */
};

struct guides {
    const struct tokenizer *tokenizer;
    int32_t vocab_size;
    size_t n_words;
    struct token_order *order; /* NULL until the first guide */
    size_t n_masks_bytes;
    uint64_t n_steps;   /* guides_steps */
    struct guide *head; /* the most recently used */
};

struct status guides_create(const struct tokenizer *t, int32_t vocab_size, struct guides **out)
{
    *out = NULL;
    struct guides *g = NULL;
    TRY(mem_alloc(&g, 1, sizeof *g, "guides"));
    g->tokenizer = t;
    g->vocab_size = vocab_size;
    g->n_words = ((size_t)vocab_size + 31) / 32;
    *out = g;
    return status_ok();
}

static void drop_mask(struct guide *guide, struct mask *m)
{
    if (m->words == NULL) return;
    mem_free(&m->words);
    guide->owner->n_masks_bytes -= guide->owner->n_words * sizeof(uint32_t);
}

static void drop_masks(struct guide *guide)
{
    for (size_t i = 0; guide->masks != NULL && i < guide->dfa->n_states; i++)
        drop_mask(guide, &guide->masks[i]);
    drop_mask(guide, &guide->first);
}

static void guide_destroy(struct guide **guide)
{
    struct guide *p = *guide;
    drop_masks(p);
    mem_free(&p->masks);
    dfa_destroy(&p->dfa);
    mem_free(&p->spec.key);
    mem_free(&p->error);
    mem_free(guide);
}

void guides_destroy(struct guides **guides)
{
    struct guides *g = *guides;
    if (g == NULL) return;
    while (g->head != NULL) {
        struct guide *next = g->head->next;
        guide_destroy(&g->head);
        g->head = next;
    }
    token_order_destroy(&g->order);
    mem_free(guides);
}

static struct status guide_add_choices(struct nfa *n, uint32_t from, const struct js_node *list,
                                       uint32_t *end)
{
    *end = nfa_state(n);
    if (js_type(list) != JS_ARRAY) return status_make(STATUS_REQUEST, "expected a list of strings");
    for (size_t i = 0; i < js_count(list); i++) {
        size_t n_bytes;
        const char *text = js_string(js_at(list, i), &n_bytes);
        if (text == NULL) return status_make(STATUS_REQUEST, "expected a list of strings");
        nfa_empty(n, nfa_text(n, from, text, n_bytes), *end);
    }
    return nfa_status(n);
}

static struct status add_paths(struct nfa *n, uint32_t from, const struct spec *spec, uint32_t *end)
{
    const struct regex_options options = {.in_string = false, .searches = false};
    size_t n_bytes;
    switch (spec->kind) {
    case GUIDE_REGEX: {
        const char *pattern = js_string(spec->node, &n_bytes);
        if (pattern == NULL) return status_make(STATUS_REQUEST, "expected a string");
        return regex_add(n, from, pattern, n_bytes, options, end);
    }
    case GUIDE_CHOICE:
        return guide_add_choices(n, from, spec->node, end);
    case GUIDE_OBJECT:
        return json_schema_any_object(n, from, end);
    default:
        return json_schema_add(n, from, spec->node, end);
    }
}

static struct status guide_compile(const struct spec *spec, struct grammar_work *work,
                                   struct dfa **out)
{
    struct nfa n;
    uint32_t end;
    *out = NULL;
    nfa_init(&n, work);
    const uint32_t start = nfa_state(&n);
    struct status st = add_paths(&n, start, spec, &end);
    if (!status_failed(&st)) st = dfa_create(&n, start, end, out);
    nfa_fini(&n);
    return st;
}

static size_t guide_bytes_of(const struct guide *p)
{
    if (p->dfa == NULL) return sizeof *p + p->spec.n_key + STATUS_TEXT_MAX;
    return sizeof *p + p->spec.n_key + dfa_bytes(p->dfa) + p->dfa->n_states * sizeof *p->masks;
}

/* Drops guides without users, except the head and the most recently used ones within the limits. */
static void trim(struct guides *g)
{
    size_t n_bytes = 0, n_kept = 0;
    for (struct guide **link = &g->head->next; *link != NULL;) {
        struct guide *p = *link;
        const bool is_used = p->n_users > 0;
        if (!is_used && (n_kept == KEPT || n_bytes + guide_bytes_of(p) > KEPT_BYTES)) {
            *link = p->next;
            guide_destroy(&p);
            continue;
        }
        n_kept += !is_used;
        if (!is_used) n_bytes += guide_bytes_of(p);
        link = &p->next;
    }
}

/* Compiles p's spec. If it cannot be compiled, the error is kept for later lines with the same
 * grammar. */
static struct status guide_fill(struct guide *p)
{
    struct grammar_work work = {.n_bytes = p->spec.n_key - 1};
    const struct status st = guide_compile(&p->spec, &work, &p->dfa);
    p->owner->n_steps += work.n_steps;
    p->spec.node = NULL; /* the caller frees the node with its line */
    if (st.code == STATUS_REQUEST) return mem_strndup(&p->error, st.text, strlen(st.text));
    TRY(st);
    return mem_alloc(&p->masks, p->dfa->n_states, sizeof *p->masks, "guide");
}

/* Puts a new guide first in the list. Takes ownership of the spec's key. */
static struct status make_guide(struct guides *g, struct spec *spec)
{
    struct guide *p = NULL;
    if (g->order == NULL) TRY(token_order_create(g->tokenizer, g->vocab_size, &g->order));
    TRY(mem_alloc(&p, 1, sizeof *p, "guide"));
    p->owner = g;
    p->spec = *spec;
    spec->key = NULL;
    const struct status st = guide_fill(p);
    if (status_failed(&st)) {
        guide_destroy(&p);
        return st;
    }
    p->next = g->head;
    g->head = p;
    trim(g);
    return status_ok();
}

struct status guides_get(struct guides *g, enum guide_kind kind, const struct js_node *node,
                         struct guide **out)
{
    struct spec spec;
    struct guide **link = &g->head;
    *out = NULL;
    TRY(spec_init(&spec, kind, node));
    while (*link != NULL && !spec_equals(&(*link)->spec, &spec)) link = &(*link)->next;
    struct status st = status_ok();
    if (*link != NULL) { /* moves the guide to the front of the list */
        struct guide *p = *link;
        *link = p->next;
        p->next = g->head;
        g->head = p;
    } else {
        st = make_guide(g, &spec);
    }
    mem_free(&spec.key);
    TRY(st);
    if (g->head->error != NULL) return status_make(STATUS_REQUEST, "%s", g->head->error);
    *out = guide_share(g->head);
    return status_ok();
}

uint64_t guides_steps(const struct guides *g)
{
    return g->n_steps;
}

struct guide *guide_share(struct guide *guide)
{
    if (guide != NULL) guide->n_users++;
    return guide;
}

void guide_release(struct guide **guide)
{
    if (*guide != NULL) (*guide)->n_users--;
    *guide = NULL;
}

size_t guide_cost_bytes(const struct guide *guide)
{
    return guide_bytes_of(guide) / guide->n_users;
}

uint64_t guide_hash(const struct guide *guide)
{
    return guide->spec.hash;
}

uint16_t guide_next(const struct guide *guide, uint16_t state, int32_t token, bool begins)
{
    size_t n;
    const char *bytes = token_order_text(guide->owner->order, token, begins, &n);
    return n > 0 ? dfa_run(guide->dfa, state, bytes, n) : (uint16_t)GUIDE_LOST;
}

bool guide_accepts(const struct guide *guide, uint16_t state)
{
    return (guide->dfa->flags[state] & DFA_ACCEPTS) != 0;
}

bool guide_goes_on(const struct guide *guide, uint16_t state)
{
    return (guide->dfa->flags[state] & DFA_GOES_ON) != 0;
}

struct status guide_mask(struct guide *guide, uint16_t state, bool begins, const uint32_t **mask,
                         size_t *n_tokens)
{
    struct guides *g = guide->owner;
    const size_t n_bytes = g->n_words * sizeof(uint32_t);
    struct mask *m = begins ? &guide->first : &guide->masks[state];
    if (m->words == NULL) {
        if (g->n_masks_bytes + n_bytes > MASKS_BYTES) {
            for (struct guide *p = g->head; p != NULL; p = p->next) drop_masks(p);
        }
        TRY(mem_alloc(&m->words, g->n_words, sizeof *m->words, "guide"));
        g->n_masks_bytes += n_bytes;
        g->n_steps += (uint64_t)g->vocab_size;
        m->n_tokens = token_order_mask(g->order, guide->dfa, state, begins, m->words);
    }
    *mask = m->words;
    *n_tokens = m->n_tokens;
    return status_ok();
}
