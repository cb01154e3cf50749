/* Draft tokens from a request's own text: finds an earlier place of its last tokens and proposes
 * the tokens that followed there (Saxena 2023, "Prompt Lookup Decoding"). Estimates the probability
 * that proposals are right, and decides how many are worth a row of a step. The model checks each
 * draft token (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding"),
 * so drafts change only the time, never the tokens. Knows no requests and no plans; called by the
 * scheduler and by draft/draft_propose.c.
 *
 *   text    to be or not to be         the last 2 tokens, "to be", have an earlier place:
 *           ^^^^^ ^                    `from` is the token after it, "or", the first draft token
 * */
#ifndef SHOAL_SERVE_SCHEDULE_DRAFTING_H
#define SHOAL_SERVE_SCHEDULE_DRAFTING_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DRAFTING_LENGTHS = 3, /* lengths of a match: 2, 4 and 8 tokens */
    DRAFTING_ROWS = 32,   /* draft tokens are added only to steps with fewer rows */
};

/* The drafts of one text. All zeros before its first use. Takes 16 to 32 bytes for each token of
 * the text, at least 1 KiB and at most 1 MiB; an entry may overwrite one of an earlier place. */
struct drafting {
    int32_t *followers; /* [n_slots], owned: by a hash of 2, 4 or 8 tokens, the position after their
                           last place in the text; 0: none */
    size_t n_slots;     /* a power of 2 */
    size_t n_seen;      /* positions below this one are listed as followers */
    float odds[DRAFTING_LENGTHS];      /* probability that a draft is right, by length of match */
    uint8_t n_tried[DRAFTING_LENGTHS]; /* trials on which odds rests; stops growing at a limit */
    size_t from;                       /* position of the first draft token in the text */
    size_t n_same;                     /* length of the match before `from`; 0: no drafts */
    float predicted_odds; /* probability that a guess of the prediction layer, or a draft of the
                             draft model, is right */
    uint8_t n_predicted;  /* trials on which predicted_odds rests; limited like n_tried */
    size_t recovered_at;  /* length of the text at the last drafting_recover_predicted */
};

/* How the time of a step depends on its rows. The unit of time is a step of one row. All zeros:
 * unknown; more rows then cost nothing. */
struct drafting_cost {
    float row;         /* arithmetic of one more row */
    int32_t full_rows; /* rows that fill a step: with more rows, time grows in proportion to the
                          rows; 0: never full */
    float experts;     /* fraction of the bytes read in a step of one row that are routed experts */
    float chosen;      /* fraction of all experts to which one row goes; 0: no experts */
    float predict;     /* time of the prediction layer and its head, as a fraction of the step's */
};

/* One step while drafts are added to it. Replicas of a step wait for each other, so the replica
 * with the most rows sets the step's time. */
struct drafting_step {
    /* the step's time by its number of rows. All zeros: all drafts are checked, however improbable
     */
    float times[DRAFTING_ROWS + 1];
    int32_t most_rows; /* the most of any replica */
    float n_good;      /* expected number of tokens that the step gives, over all replicas */
};

void drafting_fini(struct drafting *d);

/* Local. Returns the most memory that a text of n tokens takes, in bytes. */
size_t drafting_bytes(size_t n);

/* Local. Looks for drafts after tokens [n]: sets d->from and d->n_same. The text may only have
 * grown since the last call. Takes constant time for each new token; each time that the text has
 * doubled, the table grows (up to 1 MiB) and takes in all tokens again. Errors: STATUS_MEMORY. */
struct status drafting_look(struct drafting *d, const int32_t *tokens, size_t n);

/* Local. Sets times [DRAFTING_ROWS + 1] to the times of steps with this cost. */
void drafting_times(const struct drafting_cost *cost, float *times);

/* Local. Returns how many of the draft tokens that drafting_look found (0 if none), at most n_most,
 * give the most tokens per unit of the step's time, in a replica that has n_rows so far, and adds
 * them to *step. Does not count drafts from the first one on that is right with a probability
 * below 0.6. n_rows + n_most is at most DRAFTING_ROWS. If step->times are all zeros, the number is
 * n_most (0 if none were found), and *step stays as it is. */
int32_t drafting_worth(const struct drafting *d, struct drafting_step *step, int32_t n_rows,
                       int32_t n_most);

/* Local. Return the probability that the first draft token from drafting_look is right (0: it found
 * none), and the probability that a guess of the prediction layer is right. */
float drafting_odds(const struct drafting *d);
float drafting_predicted_odds(const struct drafting *d);

/* Local. As drafting_worth, for one draft token from the prediction layer, which is right with
 * probability `odds`; returns whether it is worth its row. */
bool drafting_is_worth(float odds, struct drafting_step *step, int32_t n_rows);

/* Local. True when guesses that are right with probability `odds` save more than the prediction
 * layer and their rows cost, in steps of n_rows decoding sequences. Also true when
 * n_rows is 0 or the times are all zeros; otherwise false when 2 * n_rows is above DRAFTING_ROWS.
 * times: as in drafting_step. */
bool drafting_pays(const struct drafting_cost *cost, const float *times, float odds,
                   int32_t n_rows);

/* The sequences that may get drafts from a draft model in a step. */
struct drafting_asked {
    const float *odds; /* [n] probability that a draft of each is right */
    int32_t n;
    int32_t n_busiest; /* the most of them in one replica */
    float step;        /* time of a step of one row of the draft model; the unit is that of
                          drafting_cost */
};

/* Local. Returns how many draft tokens for each sequence, at most n_most, give the most tokens per
 * unit of time, which includes the draft model's steps; 0 unless they give clearly more than none.
 * step->most_rows + n_most * a->n_busiest is at most DRAFTING_ROWS. *saved: the time that they save
 * for each token. If step->times are all zeros, returns n_most, and *saved is 0. */
int32_t drafting_asked_worth(const struct drafting_asked *a, const struct drafting_step *step,
                             int32_t n_most, float *saved);

/* Local. Returns the expected number of right tokens among n drafts. */
float drafting_expected(float odds, int32_t n);

/* Local. Returns a new estimate of the time that a step usually takes, from the estimate so far (0:
 * none) and the time of one more step. Steps during which the system gave the CPU to others hardly
 * count. */
double drafting_usual_ns(double so_far, double ns);

/* Local. Updates predicted_odds with the outcome of one guess: whether it equals the sampled token.
 * This can be known even if no row of the step checked the guess. */
void drafting_learn_predicted(struct drafting *d, bool is_right);

/* Local. Raises predicted_odds a little for each token that the text, now of n tokens, has gained
 * since the last call, at most to the probability before the first trial. So a draft model whose
 * drafts were wrong is tried again after a while. */
void drafting_recover_predicted(struct drafting *d, size_t n);

/* Local. Updates odds: the first n_tried drafts from drafting_look were compared with the sampled
 * tokens, and the first n_right of them were equal. The first draft can be compared even if no row
 * checked it. */
void drafting_learn(struct drafting *d, int32_t n_tried, int32_t n_right);

#endif
