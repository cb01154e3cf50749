/* What a request may say next, guessed from its own text: where its last tokens stood before, and
 * what followed there (Saxena 2023, "Prompt Lookup Decoding"); how often such guesses were right,
 * and so how many of them are worth a row of a step. The model checks each (Leviathan et al. 2023,
 * "Fast Inference from Transformers via Speculative Decoding"), so a guess decides nothing but
 * time. Knows no requests and no plans; called by scheduler_drafts.c. */
#ifndef SHOAL_SERVE_DRAFTING_H
#define SHOAL_SERVE_DRAFTING_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* How many lengths of what must have stood there before: 2, 4 and 8 tokens. */
enum { DRAFTING_LENGTHS = 3 };

/* One text's. All zeros before its first use. 16 to 32 bytes for each token of the text, 1 MiB at
 * most: of a longer text some of what stands far back is forgotten. */
struct drafting {
    int32_t *followers; /* [n_slots], owned: by a hash of some tokens, where what followed them
                           last stands; 0: nowhere */
    size_t n_slots;     /* a power of 2 */
    size_t n_seen;      /* of the text's tokens: those below are listed as followers */
    float odds[DRAFTING_LENGTHS]; /* that a guess is right, by what stood before; of late */
    size_t from;                  /* the guess: the text goes on as it does there; */
    size_t n_same;                /* so many tokens before it are the last ones; 0: no guess */
};

void drafting_fini(struct drafting *d);

/* Local. The most memory for a text of n tokens. */
size_t drafting_bytes(size_t n);

/* Local. Guesses what follows tokens [n]: sets d->from and d->n_same. The text may only have grown
 * since the last call. A few instructions for each new token; for all of them each time that the
 * text has doubled. Errors: STATUS_MEMORY. */
struct status drafting_look(struct drafting *d, const int32_t *tokens, size_t n);

/* Local. How many tokens of the guess are worth checking, n_most at most, in a step that has n_rows
 * rows without them. row_cost: what one more row takes, in parts of a step of one row. */
int32_t drafting_worth(const struct drafting *d, int32_t n_rows, float row_cost, int32_t n_most);

/* Local. n_tried tokens of the last guess were compared with what was drawn, and the first n_right
 * were the same. The first one can always be compared, also when nothing was drafted. */
void drafting_learn(struct drafting *d, int32_t n_tried, int32_t n_right);

#endif
