/* Subset construction: a set of graph states becomes one state of the automaton. The sets hold only
 * graph states from which the accepting state can be reached, so every set that is not empty leads
 * to an accepted text. */
#include "text/grammar/automaton.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BUCKETS = 1 << 12 };

/* A state of the automaton; its set of graph states is pool[first, first + n). */
struct made {
    size_t first, n;
    uint64_t hash;
    uint32_t next_in_bucket; /* 0: none */
};

struct builder {
    struct nfa *n;
    uint32_t accept;
    struct nfa_edge *sorted; /* edges sorted by `from`; low and high are classes of bytes */
    size_t *edges_of; /* [n_states + 1]: the edges of s are sorted[edges_of[s], edges_of[s + 1]) */
    bool *lives;      /* [n_states] whether `accept` can be reached from the state */
    uint32_t *seen;   /* [n_states] the round in which the state was last reached */
    uint32_t *stack;  /* [n_states] */
    uint32_t round;
    uint32_t *set; /* [n_states] the set being made */
    size_t n_set;
    const struct nfa_edge **begun;  /* [n_edges] edges of the current state, by their first class */
    const struct nfa_edge **active; /* [n_edges] edges of the current state that take the current
                                       class */
    uint32_t *pool;                 /* sets of all states; grows */
    size_t n_pool, pool_capacity;
    struct made *states; /* [capacity] */
    size_t capacity;
    uint32_t buckets[BUCKETS]; /* by the hash of a set: the first state of a list; 0: none */
    struct dfa *d;
};

/* Sorts the edges into `out` by their state `from` (with by_from) or `to`. starts [n_states + 1]:
 * where the edges of each state begin. Leaves out edges to states for which `lives` is false (lives
 * NULL: keeps all). */
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
    /* starts[s + 1] is now where the edges of s begin; moves it to starts[s] */
    memmove(starts, starts + 1, n->n_states * sizeof *starts);
    starts[n->n_states] = n_sorted;
}

/* Sets `lives` of the states from which `accept` can be reached, going backwards from there. */
static void find_living(struct builder *b)
{
    size_t n_stack = 0;
    sort_edges(b->n, false, NULL, b->edges_of, b->sorted);
    b->lives[b->accept] = true;
    b->stack[n_stack++] = b->accept;
    while (n_stack > 0) {
        const uint32_t s = b->stack[--n_stack];
        for (size_t i = b->edges_of[s]; i < b->edges_of[s + 1]; i++) {
            const uint32_t from = b->sorted[i].from;
            if (b->lives[from]) continue;
            b->lives[from] = true;
            b->stack[n_stack++] = from;
        }
    }
}

static void automaton_push(struct builder *b, uint32_t s, size_t *n_stack)
{
    if (b->seen[s] == b->round) return;
    b->seen[s] = b->round;
    b->stack[(*n_stack)++] = s;
}

/* Adds to the set the states that can be reached from s by empty edges (s too), if they are
 * `accept` or have edges with bytes. */
static void add_closure(struct builder *b, uint32_t s)
{
    size_t n_stack = 0;
    uint64_t n_steps = 1;
    if (b->lives[s]) automaton_push(b, s, &n_stack);
    while (n_stack > 0) {
        const uint32_t at = b->stack[--n_stack];
        bool matters = at == b->accept;
        n_steps += 1 + b->edges_of[at + 1] - b->edges_of[at];
        for (size_t i = b->edges_of[at]; i < b->edges_of[at + 1]; i++) {
            if (b->sorted[i].is_empty)
                automaton_push(b, b->sorted[i].to, &n_stack);
            else
                matters = true;
        }
        if (matters) b->set[b->n_set++] = at;
    }
    nfa_spend(b->n, n_steps);
}

static int compare_states(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static struct status automaton_reserve(struct builder *b)
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

/* Sorts the set. Many sets are sorted already, so checks that first. */
static void sort_set(struct builder *b)
{
    size_t n_ordered = 1, n_levels = 1;
    while (n_ordered < b->n_set && b->set[n_ordered - 1] < b->set[n_ordered]) n_ordered++;
    if (n_ordered < b->n_set) {
        while (b->n_set >> n_levels != 0) n_levels++;
        qsort(b->set, b->n_set, sizeof *b->set, compare_states);
    }
    nfa_spend(b->n, b->n_set * n_levels);
}

/* Sets *out to the automaton's state for the set, which is not empty; makes the state if it does
 * not exist. */
static struct status state_of_set(struct builder *b, uint16_t *out)
{
    struct dfa *d = b->d;
    *out = DFA_DEAD;
    sort_set(b);
    const uint64_t hash = XXH3_64bits(b->set, b->n_set * sizeof *b->set);
    uint32_t *bucket = &b->buckets[hash % BUCKETS];
    for (uint32_t i = *bucket; i != 0; i = b->states[i].next_in_bucket) {
        const struct made *m = &b->states[i];
        if (m->hash != hash || m->n != b->n_set) continue;
        if (memcmp(b->pool + m->first, b->set, b->n_set * sizeof *b->set) != 0) continue;
        *out = (uint16_t)i;
        return status_ok();
    }
    if (d->n_states == DFA_STATES_MAX)
        return grammar_too_large(b->n->work, DFA_STATES_MAX, "states");
    TRY(automaton_reserve(b));
    *out = (uint16_t)d->n_states++;
    b->states[*out] = (struct made){b->n_pool, b->n_set, hash, *bucket};
    *bucket = *out;
    memcpy(b->pool + b->n_pool, b->set, b->n_set * sizeof *b->set);
    b->n_pool += b->n_set;
    for (size_t i = 0; i < b->n_set; i++)
        if (b->set[i] == b->accept) d->flags[*out] |= DFA_ACCEPTS;
    return status_ok();
}

/* Puts neighbouring bytes that all edges treat alike into one class. Classes ascend with their
 * bytes. */
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

/* A pass over the byte classes, in ascending order, with the edges that take a byte and leave the
 * graph states of one set. */
struct sweep {
    size_t end[256]; /* begun[end[c - 1], end[c]) are the edges whose first class is c */
    bool ends[256];  /* whether c is the last class of an edge */
    size_t n_active;
};

static size_t sweep_begin(const struct sweep *w, size_t c)
{
    return c > 0 ? w->end[c - 1] : 0;
}

/* Counting sort of the edges of the state's set into b->begun, by their first class. */
static void begin_sweep(struct builder *b, size_t state, struct sweep *w)
{
    const uint32_t *set = b->pool + b->states[state].first;
    const size_t n_set = b->states[state].n;
    size_t n_edges = 0;
    memset(w, 0, sizeof *w);
    for (size_t k = 0; k < n_set; k++) {
        for (size_t i = b->edges_of[set[k]]; i < b->edges_of[set[k] + 1]; i++) {
            const struct nfa_edge *e = &b->sorted[i];
            if (e->is_empty) continue;
            w->end[e->low]++;
            w->ends[e->high] = true;
        }
    }
    for (size_t c = 0; c < b->d->n_classes; c++) {
        const size_t n = w->end[c];
        w->end[c] = n_edges; /* where the edges of c begin; the loop below moves it to their end */
        n_edges += n;
    }
    for (size_t k = 0; k < n_set; k++) {
        for (size_t i = b->edges_of[set[k]]; i < b->edges_of[set[k] + 1]; i++)
            if (!b->sorted[i].is_empty) b->begun[w->end[b->sorted[i].low]++] = &b->sorted[i];
    }
    nfa_spend(b->n, b->d->n_classes + n_set + n_edges);
}

/* Makes the set of graph states that a byte of class c leads to. b->active holds the edges that
 * take the class before c; afterwards, those that take c. */
static void make_state_set(struct builder *b, struct sweep *w, size_t c)
{
    size_t n = 0;
    b->n_set = 0;
    b->round++;
    nfa_spend(b->n, w->n_active);
    for (size_t i = 0; i < w->n_active; i++)
        if (b->active[i]->high >= c) b->active[n++] = b->active[i];
    for (size_t i = sweep_begin(w, c); i < w->end[c]; i++) b->active[n++] = b->begun[i];
    w->n_active = n;
    for (size_t i = 0; i < n && !status_failed(&b->n->status); i++)
        add_closure(b, b->active[i]->to);
}

/* Makes the next states of `state` for all classes. If no edge begins at a class and none ends at
 * the class before, both classes lead to the same state. */
static struct status make_row(struct builder *b, size_t state)
{
    struct dfa *d = b->d;
    struct sweep w;
    uint16_t next = DFA_DEAD;
    begin_sweep(b, state, &w);
    for (size_t c = 0; c < d->n_classes; c++) {
        const bool is_same = c > 0 && sweep_begin(&w, c) == w.end[c] && !w.ends[c - 1];
        if (!is_same) {
            make_state_set(b, &w, c);
            TRY(nfa_status(b->n));
            next = DFA_DEAD;
            if (b->n_set > 0) TRY(state_of_set(b, &next));
        }
        d->next[state * d->n_classes + c] = next;
        if (next != DFA_DEAD) d->flags[state] |= DFA_GOES_ON;
    }
    return nfa_status(b->n);
}

static struct status make_states(struct builder *b, uint32_t start)
{
    struct dfa *d = b->d;
    uint16_t first;
    d->n_states = 1; /* the dead one */
    TRY(automaton_reserve(b));
    b->round = 1;
    add_closure(b, start);
    if (b->n_set > 0) TRY(state_of_set(b, &first));
    for (size_t state = DFA_START; state < d->n_states; state++) TRY(make_row(b, state));
    return nfa_status(b->n);
}

static struct status automaton_allocate(struct builder *b)
{
    const size_t n = b->n->n_states, n_edges = b->n->n_edges;
    TRY(mem_alloc(&b->d, 1, sizeof *b->d, "automaton"));
    TRY(mem_alloc(&b->sorted, n_edges, sizeof *b->sorted, "automaton"));
    TRY(mem_alloc(&b->begun, n_edges, sizeof *b->begun, "automaton"));
    TRY(mem_alloc(&b->active, n_edges, sizeof *b->active, "automaton"));
    TRY(mem_alloc(&b->edges_of, n + 2, sizeof *b->edges_of, "automaton"));
    TRY(mem_alloc(&b->lives, n, sizeof *b->lives, "automaton"));
    TRY(mem_alloc(&b->seen, n, sizeof *b->seen, "automaton"));
    TRY(mem_alloc(&b->stack, n, sizeof *b->stack, "automaton"));
    return mem_alloc(&b->set, n, sizeof *b->set, "automaton");
}

static struct status build(struct builder *b, uint32_t start)
{
    nfa_spend(b->n, BUCKETS / 16 + b->n->n_states + b->n->n_edges);
    TRY(nfa_status(b->n));
    TRY(automaton_allocate(b));
    find_living(b);
    sort_edges(b->n, true, b->lives, b->edges_of, b->sorted);
    make_classes(b->n, b->d);
    for (size_t i = 0; i < b->edges_of[b->n->n_states]; i++) {
        b->sorted[i].low = b->d->class_of[b->sorted[i].low];
        b->sorted[i].high = b->d->class_of[b->sorted[i].high];
    }
    return make_states(b, start);
}

struct status dfa_create_any(struct nfa *n, uint32_t start, uint32_t accept, struct dfa **out)
{
    *out = NULL;
    TRY(nfa_status(n));
    struct builder *b = NULL;
    TRY(mem_alloc(&b, 1, sizeof *b, "automaton"));
    b->n = n;
    b->accept = accept;
    const struct status st = build(b, start);
    mem_free(&b->sorted);
    mem_free(&b->begun);
    mem_free(&b->active);
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

struct status dfa_create(struct nfa *n, uint32_t start, uint32_t accept, struct dfa **out)
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

/* The product of two automata: the pairs of states that the same text reaches. */
struct pairs {
    struct nfa *n;
    const struct dfa *a, *b;
    int run[257]; /* [n_runs + 1] both automata treat the bytes [run[i], run[i + 1]) alike */
    int n_runs;
    uint32_t *state; /* [a's states, b's states] the state of n for a pair; 0: not reached yet */
    uint32_t *met;   /* [n_met] the pairs, in the order in which they were reached */
    size_t n_met, capacity;
};

static void find_runs(struct pairs *p)
{
    const uint8_t *a = p->a->class_of, *b = p->b->class_of;
    for (int byte = 0; byte < 256; byte++)
        if (byte == 0 || a[byte] != a[byte - 1] || b[byte] != b[byte - 1])
            p->run[p->n_runs++] = byte;
    p->run[p->n_runs] = 256;
}

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

/* Adds the edges of a pair: an empty one to `end` if both automata accept, and one for each run of
 * neighbouring bytes that lead to the same pair. */
static struct status add_pair(struct pairs *p, uint32_t pair, uint32_t end)
{
    const uint16_t a = (uint16_t)(pair / p->b->n_states), b = (uint16_t)(pair % p->b->n_states);
    const uint32_t from = p->state[pair];
    nfa_spend(p->n, (uint64_t)p->n_runs);
    if ((p->a->flags[a] & p->b->flags[b] & DFA_ACCEPTS) != 0) nfa_empty(p->n, from, end);
    for (int i = 0; i < p->n_runs;) {
        const int first = p->run[i];
        const uint16_t to_a = dfa_next(p->a, a, (uint8_t)first);
        const uint16_t to_b = dfa_next(p->b, b, (uint8_t)first);
        uint32_t to;
        do i++;
        while (i < p->n_runs && dfa_next(p->a, a, (uint8_t)p->run[i]) == to_a &&
               dfa_next(p->b, b, (uint8_t)p->run[i]) == to_b);
        if (to_a == DFA_DEAD || to_b == DFA_DEAD) continue;
        TRY(state_of_pair(p, to_a, to_b, &to));
        nfa_bytes(p->n, from, (uint8_t)first, (uint8_t)(p->run[i] - 1), to);
    }
    return nfa_status(p->n);
}

struct status nfa_both(struct nfa *n, uint32_t from, const struct dfa *a, const struct dfa *b,
                       uint32_t *end)
{
    struct pairs p = {.n = n, .a = a, .b = b};
    uint32_t start;
    const size_t n_pairs = a->n_states * b->n_states;
    if (n_pairs > DFA_PAIRS_MAX)
        return grammar_too_large(n->work, DFA_PAIRS_MAX, "pairs of states");
    nfa_spend(n, n_pairs / 16);
    TRY(nfa_status(n));
    find_runs(&p);
    TRY(mem_alloc(&p.state, n_pairs, sizeof *p.state, "automaton"));
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
