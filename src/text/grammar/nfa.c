/* Builds the graph: states, edges, and the UTF-8 sequences of ranges of code points. */
#include "text/grammar/automaton.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <string.h>

struct status grammar_too_large(const struct grammar_work *work, int most, const char *unit)
{
    return status_make(STATUS_REQUEST, "it is too large: its %zu bytes need more than %d %s",
                       work->n_bytes, most, unit);
}

void nfa_init(struct nfa *n, struct grammar_work *work)
{
    memset(n, 0, sizeof *n);
    n->work = work;
    n->status = status_ok();
}

void nfa_fini(struct nfa *n)
{
    mem_free(&n->edges);
    n->n_edges = n->capacity = 0;
}

struct status nfa_status(const struct nfa *n)
{
    return n->status;
}

void nfa_spend(struct nfa *n, uint64_t n_steps)
{
    n->work->n_steps += n_steps;
    if (n->work->n_steps > GRAMMAR_STEPS_MAX && !status_failed(&n->status))
        n->status = grammar_too_large(n->work, GRAMMAR_STEPS_MAX, "steps");
}

uint32_t nfa_state(struct nfa *n)
{
    return n->n_states++; /* needs no bound of its own: few states have no edge, and edges are
                             bounded */
}

static void nfa_add(struct nfa *n, struct nfa_edge edge)
{
    nfa_spend(n, 1);
    if (status_failed(&n->status)) return;
    if (n->n_edges == NFA_EDGES_MAX) {
        n->status = grammar_too_large(n->work, NFA_EDGES_MAX, "edges");
        return;
    }
    if (n->n_edges == n->capacity) {
        const size_t grown = n->capacity + n->capacity / 2 + 256;
        n->status = mem_grow(&n->edges, n->n_edges, grown, sizeof *n->edges, "automaton");
        if (status_failed(&n->status)) return;
        n->capacity = grown;
    }
    n->edges[n->n_edges++] = edge;
}

void nfa_bytes(struct nfa *n, uint32_t from, uint8_t low, uint8_t high, uint32_t to)
{
    nfa_add(n, (struct nfa_edge){.from = from, .to = to, .low = low, .high = high});
}

void nfa_empty(struct nfa *n, uint32_t from, uint32_t to)
{
    nfa_add(n, (struct nfa_edge){.from = from, .to = to, .is_empty = true});
}

uint32_t nfa_text(struct nfa *n, uint32_t from, const char *bytes, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes && !status_failed(&n->status); i++) {
        const uint32_t to = nfa_state(n);
        nfa_bytes(n, from, (uint8_t)bytes[i], (uint8_t)bytes[i], to);
        from = to;
    }
    return from;
}

static bool all_are(const uint8_t *bytes, size_t n, uint8_t byte)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != byte) return false;
    return true;
}

void nfa_sequences(struct nfa *n, uint32_t from, const struct nfa_run *run, uint32_t to)
{
    uint8_t least[NFA_RUN_MAX], most[NFA_RUN_MAX];
    const uint8_t *low = run->low, *high = run->high;
    const size_t rest = run->n - 1;
    if (rest == 0) {
        nfa_bytes(n, from, low[0], high[0], to);
        return;
    }
    memset(least, run->least, sizeof least);
    memset(most, run->most, sizeof most);
    struct nfa_run tail = *run;
    tail.n = rest;
    unsigned first = low[0], last = high[0];
    if (first == last || !all_are(low + 1, rest, run->least)) {
        const uint32_t next = nfa_state(n);
        nfa_bytes(n, from, low[0], low[0], next);
        tail.low = low + 1;
        tail.high = first == last ? high + 1 : most;
        nfa_sequences(n, next, &tail, to);
        if (first++ == last) return;
    }
    if (!all_are(high + 1, rest, run->most)) {
        const uint32_t next = nfa_state(n);
        nfa_bytes(n, from, high[0], high[0], next);
        tail.low = least;
        tail.high = high + 1;
        nfa_sequences(n, next, &tail, to);
        last--;
    }
    if (first > last) return;
    const uint32_t next = nfa_state(n);
    nfa_bytes(n, from, (uint8_t)first, (uint8_t)last, next);
    tail.low = least;
    tail.high = most;
    nfa_sequences(n, next, &tail, to);
}

uint32_t nfa_chars(struct nfa *n, uint32_t from, const struct char_range *ranges, size_t n_ranges)
{
    /* ranges of code points within which all have UTF-8 of the same length; no surrogates */
    static const struct char_range ALIKE[] = {
        {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
    const uint32_t to = nfa_state(n);
    for (size_t i = 0; i < n_ranges; i++) {
        for (size_t k = 0; k < sizeof ALIKE / sizeof *ALIKE; k++) {
            char low[4], high[4];
            const struct char_range r = ranges[i], a = ALIKE[k];
            const uint32_t first = r.first > a.first ? r.first : a.first;
            const uint32_t last = r.last < a.last ? r.last : a.last;
            if (first > last) continue;
            const size_t n_bytes = utf8_encode(first, low);
            utf8_encode(last, high);
            const struct nfa_run run = {(const uint8_t *)low, (const uint8_t *)high, n_bytes, 0x80,
                                        0xBF};
            nfa_sequences(n, from, &run, to);
        }
    }
    return to;
}
