/* What a request may say next, guessed from its own text: where its last tokens stood before, and
 * what followed there (Saxena 2023, "Prompt Lookup Decoding"); how often such guesses were right,
 * and so how many of them are worth a row of a step. The model checks each (Leviathan et al. 2023,
 * "Fast Inference from Transformers via Speculative Decoding"), so a guess decides nothing but
 * time. Knows no requests and no plans; called by scheduler_drafts.c. */
#ifndef SHOAL_SERVE_SCHEDULE_DRAFTING_H
#define SHOAL_SERVE_SCHEDULE_DRAFTING_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum {
    DRAFTING_LENGTHS = 3, /* of what must have stood there before: 2, 4 and 8 tokens */
    DRAFTING_ROWS = 32,   /* of a step, up to which tokens are guessed */
};

/* One text's. All zeros before its first use. 16 to 32 bytes for each token of the text, 1 MiB at
 * most: of a longer text some of what stands far back is forgotten. */
struct drafting {
    int32_t *followers; /* [n_slots], owned: by a hash of some tokens, where what followed them
                           last stands; 0: nowhere */
    size_t n_slots;     /* a power of 2 */
    size_t n_seen;      /* of the text's tokens: those below are listed as followers */
    float odds[DRAFTING_LENGTHS];      /* that a guess is right, by what stood before; of late */
    uint8_t n_tried[DRAFTING_LENGTHS]; /* trials that these come from, while they are few */
    size_t from;                       /* the guess: the text goes on as it does there; */
    size_t n_same;                     /* so many tokens before it are the last ones; 0: no guess */
};

/* What a step takes by its rows, in parts of a step of one row. All zeros: rows are free. */
struct drafting_cost {
    float row;         /* one more row's arithmetic */
    int32_t full_rows; /* so many rows fill a step: behind them each takes its full share */
    float experts;     /* of what a step of one row reads: the part that experts are, */
    float chosen;      /* and the part of all experts that a row goes to; 0: there are none */
};

/* One step, while drafts are added to it. The replicas of a step wait for each other. */
struct drafting_step {
    float times[DRAFTING_ROWS + 1]; /* by rows; all zeros: guesses are checked however often they
                                       were wrong */
    int32_t most_rows;              /* of a replica */
    float n_good; /* of all replicas' rows: those whose results are probably of use */
};

void drafting_fini(struct drafting *d);

/* Local. The most memory for a text of n tokens. */
size_t drafting_bytes(size_t n);

/* Local. Guesses what follows tokens [n]: sets d->from and d->n_same. The text may only have grown
 * since the last call. A few instructions for each new token; for all of them each time that the
 * text has doubled. Errors: STATUS_MEMORY. */
struct status drafting_look(struct drafting *d, const int32_t *tokens, size_t n);

/* Local. times [DRAFTING_ROWS + 1]. */
void drafting_times(const struct drafting_cost *cost, float *times);

/* Local. How many tokens of the guess to check, n_most at most, for the most good rows in a time,
 * in a replica that has n_rows so far. n_rows + n_most: DRAFTING_ROWS at most. Counts them in
 * *step. */
int32_t drafting_worth(const struct drafting *d, struct drafting_step *step, int32_t n_rows,
                       int32_t n_most);

/* Local. n_tried tokens of the last guess were compared with what was drawn, and the first n_right
 * were the same. The first one can always be compared, also when nothing was drafted. */
void drafting_learn(struct drafting *d, int32_t n_tried, int32_t n_right);

#endif
