/* Finite automata over bytes. regex.c, json_*.c and guide.c build a graph with empty moves (an
 * NFA); dfa_create turns it into a deterministic automaton (a DFA). Sizes and work are bounded by
 * counts, never by time, so a grammar that is too large is too large on every machine. Knows
 * neither patterns nor tokens. Subset construction: Rabin and Scott 1959. */
#ifndef SHOAL_TEXT_GRAMMAR_AUTOMATON_H
#define SHOAL_TEXT_GRAMMAR_AUTOMATON_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GRAMMAR_STEPS_MAX = 1 << 25, /* steps for one grammar, over all its graphs and automata */
    NFA_EDGES_MAX = 1 << 19,
    DFA_STATES_MAX = UINT16_MAX,
    DFA_PAIRS_MAX = 1 << 24,
    DFA_DEAD = 0, /* the state from which no text is accepted */
    DFA_START = 1,
};

/* The work of compiling one grammar, in steps of about equal time: most are an edge added, an edge
 * or a state visited, or a byte of a pattern that is parsed again for a repetition. The number of
 * steps depends on the grammar alone. The caller allocates the struct, sets n_bytes and zeroes the
 * rest. */
struct grammar_work {
    size_t n_bytes; /* the grammar's size, which errors name */
    uint64_t n_steps;
};

/* Local. Returns a STATUS_REQUEST that says that the grammar needs more than `most` of `unit`, a
 * plural such as "edges". */
struct status grammar_too_large(const struct grammar_work *work, int most, const char *unit);

struct nfa_edge {
    uint32_t from, to;
    uint8_t low, high; /* the bytes [low, high] */
    bool is_empty;     /* the edge takes no byte */
};

/* A graph, in the caller's memory. The first error stays in `status`; later calls then add no
 * edges. */
struct nfa {
    struct nfa_edge *edges; /* owned, [n_edges] */
    size_t n_edges, capacity;
    uint32_t n_states;
    struct grammar_work *work; /* borrowed */
    struct status status;
};

/* The code points from first to last, both included. */
struct char_range {
    uint32_t first, last;
};

/* Local. Makes n a graph without states; its steps are added to `work` (borrowed until
 * nfa_fini). */
void nfa_init(struct nfa *n, struct grammar_work *work);
void nfa_fini(struct nfa *n);

/* Local. Returns the first error: STATUS_REQUEST when the grammar is too large, or STATUS_MEMORY.
 */
struct status nfa_status(const struct nfa *n);

/* Local. Adds n_steps to the work; beyond GRAMMAR_STEPS_MAX sets n->status. */
void nfa_spend(struct nfa *n, uint64_t n_steps);

/* Local. Adds a state without edges and returns it. */
uint32_t nfa_state(struct nfa *n);

/* Local. nfa_bytes adds an edge that takes one byte of [low, high]; nfa_empty adds an edge that
 * takes no byte. */
void nfa_bytes(struct nfa *n, uint32_t from, uint8_t low, uint8_t high, uint32_t to);
void nfa_empty(struct nfa *n, uint32_t from, uint32_t to);

/* Local. Adds a path for these bytes; returns its last state. */
uint32_t nfa_text(struct nfa *n, uint32_t from, const char *bytes, size_t n_bytes);

enum { NFA_RUN_MAX = 24 };

/* The sequences of n bytes (1 to NFA_RUN_MAX) from low to high, in the order of memcmp, whose bytes
 * after the first lie in [least, most]. */
struct nfa_run {
    const uint8_t *low, *high; /* [n] */
    size_t n;
    uint8_t least, most;
};

/* Local. Adds paths from `from` to `to` for all sequences of the run. */
void nfa_sequences(struct nfa *n, uint32_t from, const struct nfa_run *run, uint32_t to);

/* Local. Adds paths for any code point in ranges [n_ranges], as UTF-8 and without surrogates;
 * returns the state in which they end. */
uint32_t nfa_chars(struct nfa *n, uint32_t from, const struct char_range *ranges, size_t n_ranges);

/* Bits of a state's flags. DFA_ACCEPTS: the text may end in this state. DFA_GOES_ON: another byte
 * may follow. An accepting state can be reached from every state except DFA_DEAD. */
enum { DFA_ACCEPTS = 1, DFA_GOES_ON = 2 };

struct dfa {
    uint8_t class_of[256];
    size_t n_classes, n_states;
    uint16_t *next; /* [n_states, n_classes], owned */
    uint8_t *flags; /* [n_states], owned */
};

/* Local. Sets *out to an automaton that accepts the texts of the paths from start to accept. Owner
 * of *out: the caller. Errors: that of n (nfa_status); STATUS_REQUEST when no text is accepted or
 * the automaton is too large; STATUS_MEMORY. */
struct status dfa_create(struct nfa *n, uint32_t start, uint32_t accept, struct dfa **out);

/* Local. As dfa_create, but when no text is accepted, sets *out to NULL and returns OK. */
struct status dfa_create_any(struct nfa *n, uint32_t start, uint32_t accept, struct dfa **out);

/* Local. Accepts a NULL *dfa. */
void dfa_destroy(struct dfa **dfa);

/* Local. Returns the state after one more byte. */
static inline uint16_t dfa_next(const struct dfa *d, uint16_t state, uint8_t byte)
{
    return d->next[(size_t)state * d->n_classes + d->class_of[byte]];
}

/* Local. Returns the state after n bytes. */
uint16_t dfa_run(const struct dfa *d, uint16_t state, const char *bytes, size_t n);

/* Local. Adds paths from `from` to *end for the texts that both a and b accept. Errors: that
 * of n (nfa_status); STATUS_REQUEST when a and b have more than DFA_PAIRS_MAX pairs of states;
 * STATUS_MEMORY. */
struct status nfa_both(struct nfa *n, uint32_t from, const struct dfa *a, const struct dfa *b,
                       uint32_t *end);

/* Local. Returns the size of d in bytes, without spare room in its arrays. */
size_t dfa_bytes(const struct dfa *d);

#endif
