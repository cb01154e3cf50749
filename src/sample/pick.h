/* Draws one token from a row of logits, with temperature, top-k, top-p and min-p. Probabilities are
 * added and compared as integers, so the result does not depend on where the vocabulary was cut.
 * Pure, Local.
 * Law: docs/numerics.md; randomness: Philox4x32-10 (Salmon et al., SC11). */
#ifndef SHOAL_SAMPLE_PICK_H
#define SHOAL_SAMPLE_PICK_H

#include "kernels/kern.h"

#include <stddef.h>
#include <stdint.h>

struct pick_options {
    float temperature;         /* > 0 for a draw */
    float top_p;               /* 1: off */
    float min_p;               /* 0: off */
    int32_t top_k;             /* 0: off */
    uint32_t key[2];           /* the request's Philox key */
    uint32_t choice, position; /* the counter */
};

/* Scratch of one pick; all [V]. */
struct pick_scratch {
    uint64_t *mass; /* exp((logit - max) / temperature) in units of 2^-32 */
    uint64_t *keys; /* (inverted ordered bits, id), sorted as far as a draw needs */
};

/* Local. Returns 64 random bits that depend only on o's key and counter. */
uint64_t pick_random(const struct pick_options *o);

/* Local. Draws from logits [V], all finite; max is the largest of them (after + 0.0f). In the order
 * (logit descending, id ascending) it keeps: the first top_k; of these the shortest prefix whose
 * mass is at least top_p times the mass of all of these; of that prefix the tokens whose mass is at
 * least min_p times that of the first. */
int32_t pick_token(const struct kern_table *kern, const struct pick_options *o, const float *logits,
                   size_t n_vocab, float max, const struct pick_scratch *scratch);

/* Local. Returns the natural logarithm of a logit's probability, from the integer mass of all
 * logits at temperature 1. */
float pick_logprob(float logit, float max, uint64_t total_mass);

#endif
