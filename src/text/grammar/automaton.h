/* Finite automata over bytes: a graph with empty moves is built (regex.c, json_schema.c) and made
 * deterministic once. Bounded by counts, never by time, so that what is too large is so everywhere.
 * Knows neither patterns nor tokens. Subset construction: Rabin and Scott 1959. */
#ifndef SHOAL_TEXT_GRAMMAR_AUTOMATON_H
#define SHOAL_TEXT_GRAMMAR_AUTOMATON_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    NFA_EDGES_MAX = 1 << 19,
    DFA_STATES_MAX = UINT16_MAX,
    DFA_WORK_MAX = 1 << 25, /* states visited while sets are made */
    DFA_PAIRS_MAX = 1 << 24,
    DFA_DEAD = 0, /* no text gets on from here */
    DFA_START = 1,
};

struct nfa_edge {
    uint32_t from, to;
    uint8_t low, high; /* the bytes [low, high] */
    bool is_empty;     /* no byte at all */
};

/* The caller's memory. Errors stick: nfa_status says them. */
struct nfa {
    struct nfa_edge *edges; /* owned, [n_edges] */
    size_t n_edges, capacity;
    uint32_t n_states;
    struct status status;
};

/* Code points [first, last]. */
struct char_range {
    uint32_t first, last;
};

/* Local. An empty graph; no states. */
void nfa_init(struct nfa *n);
void nfa_fini(struct nfa *n);
struct status nfa_status(const struct nfa *n);

/* Local. A new state without edges. */
uint32_t nfa_state(struct nfa *n);

/* Local. An edge for the bytes [low, high], and one for no byte. */
void nfa_bytes(struct nfa *n, uint32_t from, uint8_t low, uint8_t high, uint32_t to);
void nfa_empty(struct nfa *n, uint32_t from, uint32_t to);

/* Local. A path for these bytes; returns its end. */
uint32_t nfa_text(struct nfa *n, uint32_t from, const char *bytes, size_t n_bytes);

enum { NFA_RUN_MAX = 24 };

/* Sequences of n bytes (1 to NFA_RUN_MAX), from low to high in the order of strcmp, whose bytes
 * behind the first run from `least` to `most`. */
struct nfa_run {
    const uint8_t *low, *high; /* [n] */
    size_t n;
    uint8_t least, most;
};

/* Local. Paths from `from` to `to` for all of them. */
void nfa_sequences(struct nfa *n, uint32_t from, const struct nfa_run *run, uint32_t to);

/* Local. A path for one code point out of ranges [n_ranges], as UTF-8 (surrogates are left out);
 * returns its end. */
uint32_t nfa_chars(struct nfa *n, uint32_t from, const struct char_range *ranges, size_t n_ranges);

/* Every state but DFA_DEAD can reach one that accepts. Flags are bits. */
enum { DFA_ACCEPTS = 1, DFA_GOES_ON = 2 };

struct dfa {
    uint8_t class_of[256];
    size_t n_classes, n_states;
    uint16_t *next; /* [n_states, n_classes], owned */
    uint8_t *flags; /* [n_states], owned */
};

/* Local. The paths from start to accept. Owner of *out: the caller. Errors: STATUS_REQUEST when no
 * text is accepted or a bound is met, STATUS_MEMORY; what sticks to n. */
struct status dfa_create(const struct nfa *n, uint32_t start, uint32_t accept, struct dfa **out);

/* Local. The same, but where no text is accepted *out is NULL. */
struct status dfa_create_any(const struct nfa *n, uint32_t start, uint32_t accept,
                             struct dfa **out);
void dfa_destroy(struct dfa **dfa);

/* Local. The state behind one more byte. */
static inline uint16_t dfa_next(const struct dfa *d, uint16_t state, uint8_t byte)
{
    return d->next[(size_t)state * d->n_classes + d->class_of[byte]];
}

/* Local. The state behind n bytes. */
uint16_t dfa_run(const struct dfa *d, uint16_t state, const char *bytes, size_t n);

/* Local. Adds paths from `from` to *end for the texts that both accept. Errors: STATUS_REQUEST when
 * their states make too many pairs; STATUS_MEMORY; what sticks to n. */
struct status nfa_both(struct nfa *n, uint32_t from, const struct dfa *a, const struct dfa *b,
                       uint32_t *end);

/* Local. Bytes that it takes. */
size_t dfa_bytes(const struct dfa *d);

#endif
