/* Sets of graph states become single states. Only states that can reach the end are looked at, so
 * every set that is not empty is alive. */
#include "text/grammar/automaton.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BUCKETS = 1 << 12 };

/* A made state: its set stands in pool[first, first + n). */
struct made {
    size_t first, n;
    uint64_t hash;
    uint32_t next_in_bucket; /* 0: none */
};

struct builder {
    const struct nfa *n;
    uint32_t accept;
    size_t *edges_of;              /* [n_states + 1]: its edges stand in sorted from there */
    const struct nfa_edge *sorted; /* by `from`; owned */
    bool *lives;                   /* [n_states] */
    uint32_t *seen, *stack;        /* [n_states]; seen: the round in which it was */
    uint32_t round;
    uint32_t *set; /* [n_states] being made */
    size_t n_set;
    uint32_t *pool; /* sets of all states; grows */
    size_t n_pool, pool_capacity;
    struct made *states; /* [capacity] */
    size_t capacity;
    uint32_t buckets[BUCKETS];
    size_t n_work;
    struct dfa *d;
};

/* The edges ordered by one end, but for those to states of which `lives` (NULL: all) says false.
 * starts [n_states + 1] and out are filled. */
static void sort_edges(const struct nfa *n, bool by_from, const bool *lives, size_t *starts,
                       struct nfa_edge *out)
{
    memset(starts, 0, ((size_t)n->n_states + 1) * sizeof *starts);
    for (size_t i = 0; i < n->n_edges; i++) {
        const struct nfa_edge *e = &n->edges[i];
        if (lives == NULL || lives[e->to]) starts[(by_from ? e->from : e->to) + 1]++;
    }
    for (size_t s = 0; s < n->n_states; s++) starts[s + 1] += starts[s];
    const size_t n_sorted = starts[n->n_states];
    for (size_t i = n->n_edges; i-- > 0;) {
        const struct nfa_edge *e = &n->edges[i];
        if (lives == NULL || lives[e->to]) out[--starts[(by_from ? e->from : e->to) + 1]] = *e;
    }
    /* each start slid to its own place: starts[s + 1] is where s begins */
    memmove(starts, starts + 1, n->n_states * sizeof *starts);
    starts[n->n_states] = n_sorted;
}

/* Which states reach the end: backwards from it. */
static void find_living(struct builder *b, struct nfa_edge *sorted)
{
    size_t n_stack = 0;
    sort_edges(b->n, false, NULL, b->edges_of, sorted);
    b->lives[b->accept] = true;
    b->stack[n_stack++] = b->accept;
    while (n_stack > 0) {
        const uint32_t s = b->stack[--n_stack];
        for (size_t i = b->edges_of[s]; i < b->edges_of[s + 1]; i++) {
            const uint32_t from = sorted[i].from;
            if (b->lives[from]) continue;
            b->lives[from] = true;
            b->stack[n_stack++] = from;
        }
    }
}

static void push(struct builder *b, uint32_t s, size_t *n_stack)
{
    if (b->seen[s] == b->round) return;
    b->seen[s] = b->round;
    b->stack[(*n_stack)++] = s;
}

/* Adds s and what it reaches without a byte to the set; of these, those that matter. */
static void add_closure(struct builder *b, uint32_t s)
{
    size_t n_stack = 0;
    if (b->lives[s]) push(b, s, &n_stack);
    while (n_stack > 0) {
        const uint32_t at = b->stack[--n_stack];
        bool matters = at == b->accept;
        b->n_work++;
        for (size_t i = b->edges_of[at]; i < b->edges_of[at + 1]; i++) {
            if (b->sorted[i].is_empty)
                push(b, b->sorted[i].to, &n_stack);
            else
                matters = true;
        }
        if (matters) b->set[b->n_set++] = at;
    }
}

static int compare_states(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static struct status too_large(void)
{
    return status_make(STATUS_REQUEST, "it is too large: its automaton has more than %d states",
                       (int)DFA_STATES_MAX);
}

static struct status reserve(struct builder *b)
{
    struct dfa *d = b->d;
    if (b->n_pool + b->n_set > b->pool_capacity) {
        const size_t grown = (b->n_pool + b->n_set) / 2 * 3 + 256;
        TRY(mem_grow(&b->pool, b->n_pool, grown, sizeof *b->pool, "automaton"));
        b->pool_capacity = grown;
    }
    if (d->n_states < b->capacity) return status_ok();
    const size_t n = d->n_states;
    const size_t grown = n < DFA_STATES_MAX / 2 ? 2 * n + 64 : DFA_STATES_MAX;
    TRY(mem_grow(&b->states, n, grown, sizeof *b->states, "automaton"));
    TRY(mem_grow(&d->flags, n, grown, sizeof *d->flags, "automaton"));
    TRY(mem_grow(&d->next, n * d->n_classes, grown * d->n_classes, sizeof *d->next, "automaton"));
    b->capacity = grown;
    return status_ok();
}

/* The state of the set, made now if there is none. */
static struct status state_of_set(struct builder *b, uint16_t *out)
{
    struct dfa *d = b->d;
    *out = DFA_DEAD;
    if (b->n_set == 0) return status_ok();
    qsort(b->set, b->n_set, sizeof *b->set, compare_states);
    const uint64_t hash = XXH3_64bits(b->set, b->n_set * sizeof *b->set);
    uint32_t *bucket = &b->buckets[hash % BUCKETS];
    for (uint32_t i = *bucket; i != 0; i = b->states[i].next_in_bucket) {
        const struct made *m = &b->states[i];
        if (m->hash != hash || m->n != b->n_set) continue;
        if (memcmp(b->pool + m->first, b->set, b->n_set * sizeof *b->set) != 0) continue;
        *out = (uint16_t)i;
        return status_ok();
    }
    if (d->n_states == DFA_STATES_MAX || b->n_work > DFA_WORK_MAX) return too_large();
    TRY(reserve(b));
    *out = (uint16_t)d->n_states++;
    b->states[*out] = (struct made){b->n_pool, b->n_set, hash, *bucket};
    *bucket = *out;
    memcpy(b->pool + b->n_pool, b->set, b->n_set * sizeof *b->set);
    b->n_pool += b->n_set;
    for (size_t i = 0; i < b->n_set; i++)
        if (b->set[i] == b->accept) d->flags[*out] |= DFA_ACCEPTS;
    return status_ok();
}

/* Bytes that no edge tells apart have one class; classes ascend with their bytes. */
static void make_classes(const struct nfa *n, struct dfa *d)
{
    bool begins[257] = {true};
    for (size_t i = 0; i < n->n_edges; i++) {
        if (n->edges[i].is_empty) continue;
        begins[n->edges[i].low] = begins[n->edges[i].high + 1] = true;
    }
    for (int byte = 0; byte < 256; byte++) {
        if (begins[byte]) d->n_classes++;
        d->class_of[byte] = (uint8_t)(d->n_classes - 1);
    }
}

/* The next state of `state` for one class. */
static struct status make_next(struct builder *b, size_t state, size_t class)
{
    struct dfa *d = b->d;
    b->n_set = 0;
    b->round++;
    for (size_t k = 0; k < b->states[state].n; k++) {
        const uint32_t s = b->pool[b->states[state].first + k];
        for (size_t i = b->edges_of[s]; i < b->edges_of[s + 1]; i++) {
            const struct nfa_edge *e = &b->sorted[i];
            b->n_work++;
            if (e->is_empty || d->class_of[e->low] > class || d->class_of[e->high] < class)
                continue;
            add_closure(b, e->to);
        }
    }
    if (b->n_work > DFA_WORK_MAX) return too_large();
    uint16_t next;
    TRY(state_of_set(b, &next));
    d->next[state * d->n_classes + class] = next;
    if (next != DFA_DEAD) d->flags[state] |= DFA_GOES_ON;
    return status_ok();
}

static struct status make_states(struct builder *b, uint32_t start)
{
    struct dfa *d = b->d;
    uint16_t first;
    d->n_states = 1; /* the dead one */
    TRY(reserve(b));
    b->round = 1;
    add_closure(b, start);
    TRY(state_of_set(b, &first));
    for (size_t state = DFA_START; state < d->n_states; state++)
        for (size_t class = 0; class < d->n_classes; class ++) TRY(make_next(b, state, class));
    return status_ok();
}

static struct status build(struct builder *b, uint32_t start)
{
    const size_t n = b->n->n_states;
    struct nfa_edge *sorted = NULL;
    TRY(mem_alloc(&sorted, b->n->n_edges, sizeof *sorted, "automaton"));
    b->sorted = sorted;
    TRY(mem_alloc(&b->edges_of, n + 2, sizeof *b->edges_of, "automaton"));
    TRY(mem_alloc(&b->lives, n, sizeof *b->lives, "automaton"));
    TRY(mem_alloc(&b->seen, n, sizeof *b->seen, "automaton"));
    TRY(mem_alloc(&b->stack, n, sizeof *b->stack, "automaton"));
    TRY(mem_alloc(&b->set, n, sizeof *b->set, "automaton"));
    find_living(b, sorted);
    sort_edges(b->n, true, b->lives, b->edges_of, sorted);
    make_classes(b->n, b->d);
    return make_states(b, start);
}

struct status dfa_create_any(const struct nfa *n, uint32_t start, uint32_t accept, struct dfa **out)
{
    *out = NULL;
    TRY(nfa_status(n));
    struct builder *b = NULL;
    TRY(mem_alloc(&b, 1, sizeof *b, "automaton"));
    b->n = n;
    b->accept = accept;
    struct status st = mem_alloc(&b->d, 1, sizeof *b->d, "automaton");
    if (!status_failed(&st)) st = build(b, start);
    struct nfa_edge *sorted = (struct nfa_edge *)b->sorted;
    mem_free(&sorted);
    mem_free(&b->edges_of);
    mem_free(&b->lives);
    mem_free(&b->seen);
    mem_free(&b->stack);
    mem_free(&b->set);
    mem_free(&b->pool);
    mem_free(&b->states);
    if (status_failed(&st) || b->d->n_states == DFA_START) dfa_destroy(&b->d);
    *out = b->d;
    mem_free(&b);
    return st;
}

struct status dfa_create(const struct nfa *n, uint32_t start, uint32_t accept, struct dfa **out)
{
    TRY(dfa_create_any(n, start, accept, out));
    if (*out == NULL) return status_make(STATUS_REQUEST, "no text can match it");
    return status_ok();
}

void dfa_destroy(struct dfa **dfa)
{
    if (*dfa == NULL) return;
    mem_free(&(*dfa)->next);
    mem_free(&(*dfa)->flags);
    mem_free(dfa);
}

uint16_t dfa_run(const struct dfa *d, uint16_t state, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n && state != DFA_DEAD; i++)
        state = dfa_next(d, state, (uint8_t)bytes[i]);
    return state;
}

/* Pairs of states that are met together. */
struct pairs {
    struct nfa *n;
    const struct dfa *a, *b;
    uint32_t *state; /* [a's states, b's states] of n; 0: not met */
    uint32_t *met;   /* [n_met] the pairs, in the order of meeting */
    size_t n_met, capacity;
};

static struct status state_of_pair(struct pairs *p, uint16_t a, uint16_t b, uint32_t *out)
{
    const uint32_t pair = (uint32_t)(a * p->b->n_states + b);
    if (p->state[pair] == 0) {
        if (p->n_met == p->capacity) {
            const size_t grown = 2 * p->capacity + 256;
            TRY(mem_grow(&p->met, p->n_met, grown, sizeof *p->met, "automaton"));
            p->capacity = grown;
        }
        p->met[p->n_met++] = pair;
        p->state[pair] = nfa_state(p->n);
    }
    *out = p->state[pair];
    return status_ok();
}

/* The edges of a pair: one for each run of bytes that lead to the same pair. */
static struct status add_pair(struct pairs *p, uint32_t pair, uint32_t end)
{
    const uint16_t a = (uint16_t)(pair / p->b->n_states), b = (uint16_t)(pair % p->b->n_states);
    const uint32_t from = p->state[pair];
    if ((p->a->flags[a] & p->b->flags[b] & DFA_ACCEPTS) != 0) nfa_empty(p->n, from, end);
    for (int first = 0, last; first < 256; first = last + 1) {
        const uint16_t to_a = dfa_next(p->a, a, (uint8_t)first);
        const uint16_t to_b = dfa_next(p->b, b, (uint8_t)first);
        uint32_t to;
        for (last = first; last < 255; last++)
            if (dfa_next(p->a, a, (uint8_t)(last + 1)) != to_a ||
                dfa_next(p->b, b, (uint8_t)(last + 1)) != to_b)
                break;
        if (to_a == DFA_DEAD || to_b == DFA_DEAD) continue;
        TRY(state_of_pair(p, to_a, to_b, &to));
        nfa_bytes(p->n, from, (uint8_t)first, (uint8_t)last, to);
    }
    return nfa_status(p->n);
}

struct status nfa_both(struct nfa *n, uint32_t from, const struct dfa *a, const struct dfa *b,
                       uint32_t *end)
{
    struct pairs p = {.n = n, .a = a, .b = b};
    uint32_t start;
    if (a->n_states * b->n_states > DFA_PAIRS_MAX) return too_large();
    TRY(mem_alloc(&p.state, a->n_states * b->n_states, sizeof *p.state, "automaton"));
    *end = nfa_state(n);
    struct status st = state_of_pair(&p, DFA_START, DFA_START, &start);
    if (!status_failed(&st)) nfa_empty(n, from, start);
    for (size_t i = 0; i < p.n_met && !status_failed(&st); i++) st = add_pair(&p, p.met[i], *end);
    mem_free(&p.state);
    mem_free(&p.met);
    return status_failed(&st) ? st : nfa_status(n);
}

size_t dfa_bytes(const struct dfa *d)
{
    return sizeof *d + d->n_states * (d->n_classes * sizeof *d->next + sizeof *d->flags);
}
