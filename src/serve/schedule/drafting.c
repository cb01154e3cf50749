/* A hash table without chains: a later entry replaces an earlier one in the same slot, and a lookup
 * compares the text itself. */
#include "serve/schedule/drafting.h"

#include "base/mem.h"

#include <string.h>

enum { SLOTS_LEAST = 256, SLOTS_MOST = 1 << 18 };

static const size_t lengths[DRAFTING_LENGTHS] = {2, 4, 8};

/* The probabilities before the first trial. They count as FIRST_WEIGHT trials; all trials together
 * count as at most MOST_WEIGHT. The first draft token after a match is a trial even if it gets no
 * row. */
static const float first_odds[DRAFTING_LENGTHS] = {0.125f, 0.25f, 0.5f};
enum { FIRST_WEIGHT = 4, MOST_WEIGHT = 16 };

/* The probability, before the first trial, that a guess of a prediction layer or a draft of a draft
 * model is right. */
static const float first_predicted = 0.7f;

/* When the times of steps are known, a draft token with a lower probability is not tried, even if
 * its row costs nothing: it would save little, and nothing at the end of a job. */
static const float least_odds = 0.6f;

/* Returns the slot of the n tokens before `end`. */
static size_t drafting_slot_of(const struct drafting *d, const int32_t *end, size_t n)
{
    uint64_t h = n;
    for (size_t i = 1; i <= n; i++)
        h = (h ^ (uint32_t)end[-(ptrdiff_t)i]) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(h >> 32) & (d->n_slots - 1);
}

static size_t slots_for(size_t n)
{
    size_t n_slots = SLOTS_LEAST;
    while (n_slots < SLOTS_MOST && n_slots < 4 * n) n_slots *= 2;
    return n_slots;
}

size_t drafting_bytes(size_t n)
{
    return slots_for(n) * sizeof(int32_t);
}

void drafting_fini(struct drafting *d)
{
    mem_free(&d->followers);
    *d = (struct drafting){0};
}

/* Makes a larger, empty table; drafting_look then reads the text again. */
static struct status drafting_grow(struct drafting *d, size_t n_slots)
{
    int32_t *followers = NULL;
    TRY(mem_alloc(&followers, n_slots, sizeof *followers, "drafts"));
    if (d->n_slots == 0) memcpy(d->odds, first_odds, sizeof first_odds);
    mem_free(&d->followers);
    d->followers = followers;
    d->n_slots = n_slots;
    d->n_seen = 0;
    return status_ok();
}

struct status drafting_look(struct drafting *d, const int32_t *tokens, size_t n)
{
    const size_t n_slots = slots_for(n);
    if (n_slots > d->n_slots) TRY(drafting_grow(d, n_slots));
    for (size_t at = d->n_seen; at < n; at++) {
        for (size_t i = 0; i < DRAFTING_LENGTHS; i++)
            if (at >= lengths[i])
                d->followers[drafting_slot_of(d, tokens + at, lengths[i])] = (int32_t)at;
    }
    if (n > d->n_seen) d->n_seen = n;
    d->n_same = 0;
    for (size_t i = DRAFTING_LENGTHS; i-- > 0 && d->n_same == 0;) {
        const size_t n_same = lengths[i];
        if (n <= n_same) continue;
        const size_t from = (size_t)d->followers[drafting_slot_of(d, tokens + n, n_same)];
        if (from < n_same || from >= n) continue;
        if (memcmp(tokens + from - n_same, tokens + n - n_same, n_same * sizeof *tokens) != 0)
            continue;
        d->from = from;
        d->n_same = n_same;
    }
    return status_ok();
}

/* Returns the index in odds for a draft token after a match of n_same tokens. */
static size_t odds_of(size_t n_same)
{
    size_t i = 0;
    while (i + 1 < DRAFTING_LENGTHS && n_same >= lengths[i + 1]) i++;
    return i;
}

void drafting_times(const struct drafting_cost *cost, float *times)
{
    float not_met = 1; /* fraction of the experts to which no row goes */
    times[0] = 0;
    for (int32_t n = 1; n <= DRAFTING_ROWS; n++) {
        times[n] = cost->row > 0 ? 1 + cost->row * (float)(n - 1) : 0;
        not_met *= 1 - cost->chosen;
        if (cost->chosen > 0) times[n] += cost->experts * ((1 - not_met) / cost->chosen - 1);
        const int32_t full = cost->full_rows;
        if (full > 0 && n > full) times[n] = times[full] / (float)full * (float)n;
    }
}

static float time_of(const struct drafting_step *step, int32_t n_rows)
{
    const int32_t n = n_rows > step->most_rows ? n_rows : step->most_rows;
    return step->times[n < DRAFTING_ROWS ? n : DRAFTING_ROWS];
}

int32_t drafting_worth(const struct drafting *d, struct drafting_step *step, int32_t n_rows,
                       int32_t n_most)
{
    if (d->n_same == 0) return 0;
    if (step->times[1] == 0) return n_most;
    float odds = 1, n_good = step->n_good, best = n_good / time_of(step, n_rows);
    int32_t n = 0;
    for (int32_t i = 0; i < n_most; i++) {
        const float next = d->odds[odds_of(d->n_same + (size_t)i)];
        if (next < least_odds) break;
        odds *= next;
        n_good += odds;
        const float rate = n_good / time_of(step, n_rows + i + 1);
        if (rate <= best)
            continue; /* more drafts may still pay, because an expert is read once for all rows */
        best = rate;
        step->n_good = n_good;
        n = i + 1;
    }
    if (n_rows + n > step->most_rows) step->most_rows = n_rows + n;
    return n;
}

void drafting_learn(struct drafting *d, int32_t n_tried, int32_t n_right)
{
    for (int32_t i = 0; d->n_same > 0 && i < n_tried; i++) {
        const size_t at = odds_of(d->n_same + (size_t)i);
        const float weight = 1.0f / (float)(FIRST_WEIGHT + ++d->n_tried[at]);
        d->odds[at] += weight * ((i < n_right ? 1.0f : 0.0f) - d->odds[at]);
        if (FIRST_WEIGHT + d->n_tried[at] >= MOST_WEIGHT) d->n_tried[at]--;
    }
}

float drafting_odds(const struct drafting *d)
{
    return d->n_same > 0 ? d->odds[odds_of(d->n_same)] : 0;
}

float drafting_predicted_odds(const struct drafting *d)
{
    return d->n_predicted > 0 ? d->predicted_odds : first_predicted;
}

bool drafting_is_worth(float odds, struct drafting_step *step, int32_t n_rows)
{
    const float n_good = step->n_good + odds;
    if (step->times[1] > 0) {
        if (odds < least_odds) return false;
        const float now = step->n_good / time_of(step, n_rows);
        if (n_good / time_of(step, n_rows + 1) <= now) return false;
    }
    step->n_good = n_good;
    if (n_rows + 1 > step->most_rows) step->most_rows = n_rows + 1;
    return true;
}

bool drafting_pays(const struct drafting_cost *cost, const float *times, float odds, int32_t n_rows)
{
    if (times[1] == 0) return true;
    if (2 * n_rows > DRAFTING_ROWS || n_rows < 1) return n_rows < 1;
    const float now = times[n_rows];
    return (1 + odds) * now > times[2 * n_rows] + cost->predict * now;
}

float drafting_expected(float odds, int32_t n)
{
    float all = 0, next = 1;
    for (int32_t i = 0; i < n; i++) all += next *= odds;
    return all;
}

int32_t drafting_asked_worth(const struct drafting_asked *a, const struct drafting_step *step,
                             int32_t n_most, float *saved)
{
    static const float least_gain = 1.05f; /* the times are estimates */
    *saved = 0;
    if (step->times[1] == 0) return n_most;
    const float alone = time_of(step, 0) / step->n_good;
    const int32_t n_rows = a->n < DRAFTING_ROWS ? a->n : DRAFTING_ROWS;
    int32_t best = 0;
    for (int32_t k = 1; k <= n_most; k++) {
        float n_good = step->n_good;
        for (int32_t i = 0; i < a->n; i++) n_good += drafting_expected(a->odds[i], k);
        const float drafting = (float)k * a->step * step->times[n_rows] / step->times[1];
        const float time = time_of(step, step->most_rows + k * a->n_busiest) + drafting;
        if (time / n_good * least_gain > alone || alone - time / n_good <= *saved) continue;
        *saved = alone - time / n_good;
        best = k;
    }
    return best;
}

double drafting_usual_ns(double so_far, double ns)
{
    const double more = ns - so_far;
    if (so_far == 0) return ns;
    if (more <= 0) return so_far + more / 4;
    return so_far + (more < so_far / 4 ? more : so_far / 4) / 16;
}

void drafting_learn_predicted(struct drafting *d, bool is_right)
{
    const float odds = drafting_predicted_odds(d);
    const float weight = 1.0f / (float)(FIRST_WEIGHT + ++d->n_predicted);
    d->predicted_odds = odds + weight * ((is_right ? 1.0f : 0.0f) - odds);
    if (FIRST_WEIGHT + d->n_predicted >= MOST_WEIGHT) d->n_predicted--;
}

void drafting_recover_predicted(struct drafting *d, size_t n)
{
    static const float recovery = 1.0f / 2048;
    if (d->n_predicted > 0 && d->predicted_odds < first_predicted) {
        d->predicted_odds += recovery * (float)(n - d->recovered_at);
        if (d->predicted_odds > first_predicted) d->predicted_odds = first_predicted;
    }
    d->recovered_at = n;
}
