/* Proposes draft tokens: computes the rows that the draft model lacks of each sequence, several
 * sequences in a step, and draws one token after another.
 *
 *   tokens of an ask      a b c d e
 *   rows that it has      a b c x       x: a draft of an earlier call that was wrong
 *   steps of this call          d e     gives draft f
 *                                   f   gives draft g; g gets no row
 */
#include "base/clock.h"
#include "base/mem.h"
#include "draft/draft_model_private.h"
#include "serve/schedule/drafting.h"

#include <assert.h>
#include <string.h>

/* An ask that lacks at most this many rows gets them all: they are those of its last token and of
 * the drafts that were right. Asks that lack more share DRAFT_STEP_ROWS rows in a call. */
enum { ROWS_ALWAYS = 32 };

struct status draft_slots_create(struct draft_model *d)
{
    const size_t n = d->memory.n_blocks;
    TRY(mem_alloc(&d->free_blocks, n, sizeof *d->free_blocks, "draft model"));
    for (size_t i = 0; i < n; i++) d->free_blocks[i] = (int32_t)(n - 1 - i);
    d->n_free = n;
    return status_ok();
}

void draft_slots_destroy(struct draft_model *d)
{
    for (size_t i = 0; i < DRAFT_SLOTS; i++) {
        mem_free(&d->slots[i].tokens);
        mem_free(&d->slots[i].blocks);
    }
    mem_free(&d->free_blocks);
    mem_free(&d->of);
}

static struct draft_slot *find_slot(struct draft_model *d, int32_t id)
{
    for (size_t i = 0; i < DRAFT_SLOTS; i++)
        if (d->slots[i].used > 0 && d->slots[i].id == id) return &d->slots[i];
    return NULL;
}

/* Returns how many of the ask's first tokens have rows in the slot; at most all but the last, whose
 * row gives the first draft. */
static size_t n_same(const struct draft_slot *slot, const struct draft_ask *ask)
{
    enum { AT_ONCE = 64 };
    const size_t most = slot->n_tokens < ask->n_tokens ? slot->n_tokens : ask->n_tokens - 1;
    const int32_t *a = slot->tokens, *b = ask->tokens;
    size_t n = 0;
    while (n + AT_ONCE <= most && memcmp(a + n, b + n, AT_ONCE * sizeof *a) == 0) n += AT_ONCE;
    while (n < most && a[n] == b[n]) n++;
    return n;
}

size_t draft_n_known(void *draft_model, const struct draft_ask *ask)
{
    const struct draft_slot *slot = find_slot(draft_model, ask->id);
    return slot != NULL ? n_same(slot, ask) : 0;
}

/* True when the sequence of the slot will probably be asked for again: groups take turns. */
static bool is_in_use(const struct draft_model *d, const struct draft_slot *slot)
{
    return slot->used > 0 && slot->used + (uint64_t)d->host.n_groups >= d->n_calls;
}

/* Returns the least recently used of the slots that are not in use and were last used in call
 * `from` or later; NULL: there is none. With from 0, slots that were never used come first. */
static struct draft_slot *oldest(struct draft_model *d, uint64_t from)
{
    struct draft_slot *found = NULL;
    for (size_t i = 0; i < DRAFT_SLOTS; i++) {
        struct draft_slot *s = &d->slots[i];
        if (is_in_use(d, s) || s->used < from) continue;
        if (found == NULL || s->used < found->used) found = s;
    }
    return found;
}

/* Gives the slot's blocks back and frees its lists. */
static void empty(struct draft_model *d, struct draft_slot *slot)
{
    for (size_t i = 0; i < slot->n_blocks; i++) d->free_blocks[d->n_free++] = slot->blocks[i];
    mem_free(&slot->tokens);
    mem_free(&slot->blocks);
    *slot = (struct draft_slot){0};
}

void draft_slots_empty(struct draft_model *d)
{
    for (size_t i = 0; i < DRAFT_SLOTS; i++) empty(d, &d->slots[i]);
}

/* Makes room in the slot's lists for n blocks. */
static struct status grow(const struct draft_model *d, struct draft_slot *slot, size_t n)
{
    if (n <= slot->blocks_capacity) return status_ok();
    const size_t from = slot->blocks_capacity, most = draft_blocks_for(d->context);
    const size_t to = 2 * n < most ? 2 * n : most;
    TRY(mem_grow(&slot->blocks, from, to, sizeof *slot->blocks, "draft model"));
    TRY(mem_grow(&slot->tokens, from * PLAN_BLOCK_TOKENS, to * PLAN_BLOCK_TOKENS,
                 sizeof *slot->tokens, "draft model"));
    slot->blocks_capacity = to;
    return status_ok();
}

/* Takes blocks for n_tokens rows, if need be those of the sequences that were asked for longest
 * ago. *ok is false when there are too few; the slot then has none, so that others get them. */
static struct status take_blocks(struct draft_model *d, struct draft_slot *slot, size_t n_tokens,
                                 bool *ok)
{
    const size_t n = draft_blocks_for(n_tokens);
    *ok = true;
    TRY(grow(d, slot, n));
    while (slot->n_blocks < n) {
        while (d->n_free == 0 && *ok) {
            struct draft_slot *other = oldest(d, 1);
            *ok = other != NULL;
            if (*ok) empty(d, other);
        }
        if (!*ok) {
            empty(d, slot);
            return status_ok();
        }
        slot->blocks[slot->n_blocks++] = d->free_blocks[--d->n_free];
    }
    return status_ok();
}

/* True when both models know the ask's tokens from the n-th on, which have no rows yet. */
static bool knows_tokens(const struct draft_model *d, const struct draft_ask *ask, size_t n)
{
    for (size_t i = n; i < ask->n_tokens; i++)
        if ((uint32_t)ask->tokens[i] >= d->vocab) return false;
    return true;
}

struct status draft_slots_open(struct draft_model *d, struct draft_ask *ask,
                               struct draft_slot **out)
{
    struct draft_slot *slot = find_slot(d, ask->id);
    bool ok;
    *out = NULL;
    ask->n = 0;
    ask->is_late = false;
    if (ask->n_tokens > d->context) return status_ok();
    if (!knows_tokens(d, ask, slot != NULL ? n_same(slot, ask) : 0)) return status_ok();
    if (ask->n_tokens + (size_t)ask->n_most - 1 > d->context)
        ask->n_most = (int32_t)(d->context - ask->n_tokens) + 1;
    if (slot == NULL) {
        slot = oldest(d, 0);
        if (slot == NULL) return status_ok();
        empty(d, slot);
        slot->id = ask->id;
    }
    slot->used = d->n_calls;
    slot->n_tokens = n_same(slot, ask);
    TRY(take_blocks(d, slot, ask->n_tokens + (size_t)ask->n_most - 1, &ok));
    if (ok) *out = slot;
    return status_ok();
}

/* Returns the token at a position: one of the ask's, or one of its drafts. */
static int32_t ask_token_at(const struct draft_ask *ask, size_t at)
{
    return at < ask->n_tokens ? ask->tokens[at] : ask->drafts[at - ask->n_tokens];
}

/* Returns how many rows the ask still lacks before its next draft can be drawn. */
static size_t n_lacking(const struct draft_slot *slot, const struct draft_ask *ask)
{
    return ask->n_tokens + (size_t)ask->n - slot->n_tokens;
}

/* Marks asks as late that lack too many rows for this call, which computes at most DRAFT_STEP_ROWS
 * rows of asks that lack more than ROWS_ALWAYS: the model that checks the drafts waits for it. */
static void limit_rows(struct draft_model *d, struct draft_ask *asks, size_t n)
{
    size_t left = DRAFT_STEP_ROWS;
    for (size_t i = 0; i < n; i++) {
        struct draft_slot *slot = d->of[i];
        if (slot == NULL) continue;
        const size_t n_rows = n_lacking(slot, &asks[i]);
        asks[i].is_late = n_rows > ROWS_ALWAYS && n_rows > left;
        slot->n_late = asks[i].is_late ? left : 0;
        if (asks[i].is_late && left == 0) d->of[i] = NULL;
        if (n_rows > ROWS_ALWAYS) left -= n_rows < left ? n_rows : left;
    }
}

/* Adds the ask's next rows, at most n_most, to the plan; asks for a draw if the ask then lacks no
 * more. */
static struct status add_ask_rows(struct draft_model *d, const struct draft_slot *slot,
                                  const struct draft_ask *ask, size_t n_most)
{
    if (slot->n_late > 0 && slot->n_late < n_most) n_most = slot->n_late;
    const size_t n_left = n_lacking(slot, ask), n = n_left < n_most ? n_left : n_most;
    const size_t end = slot->n_tokens + n;
    struct plan_seq seq = ask->draw;
    for (size_t i = slot->n_tokens; i < end; i++) slot->tokens[i] = ask_token_at(ask, i);
    seq.id = ask->id;
    seq.n_rows = (int32_t)n;
    seq.pos0 = (int32_t)slot->n_tokens;
    seq.n_blocks = (int32_t)((end + PLAN_BLOCK_TOKENS - 1) / PLAN_BLOCK_TOKENS);
    seq.want = n == n_left ? PLAN_SAMPLE : 0;
    seq.next_token = n == n_left ? -1 : ask_token_at(ask, end);
    const struct plan_lists lists = {.tokens = slot->tokens + slot->n_tokens,
                                     .blocks = slot->blocks};
    return step_plan_add(&d->plan, 0, &seq, &lists);
}

/* Plans a step of at most DRAFT_STEP_ROWS rows, from the first open ask on; an ask is open while it
 * has a slot in d->of. */
static struct status plan_draft_step(struct draft_model *d, const struct draft_ask *asks, size_t n)
{
    step_plan_clear(&d->plan, PLAN_RUN, d->n_steps++);
    for (size_t i = 0; i < n && d->plan.n_tokens < DRAFT_STEP_ROWS; i++)
        if (d->of[i] != NULL)
            TRY(add_ask_rows(d, d->of[i], &asks[i], DRAFT_STEP_ROWS - d->plan.n_tokens));
    step_plan_end_replica(&d->plan, 0);
    return status_ok();
}

/* Takes an ask's result. Closes the ask (*slot = NULL) after its last draft, after its last row in
 * this call, or when a row is bad or gives a token that the model does not have. */
static void take_draft(struct draft_model *d, const struct plan_seq *seq,
                       const struct result_seq *r, struct draft_ask *ask, struct draft_slot **slot)
{
    (*slot)->n_tokens += (size_t)seq->n_rows;
    if (r->n_bad == 0 && seq->want == 0) {
        const size_t n_late = (*slot)->n_late;
        (*slot)->n_late -= n_late > 0 ? (size_t)seq->n_rows : 0;
        if (n_late > 0 && (*slot)->n_late == 0) *slot = NULL;
        return;
    }
    if (r->n_bad == 0 && r->token >= 0 && (uint32_t)r->token < d->vocab) {
        ask->drafts[ask->n++] = r->token;
        if (ask->n < ask->n_most) return;
    }
    *slot = NULL;
}

static void time_step(struct draft_model *d, uint64_t since)
{
    const double ns = (double)(clock_ns() - since);
    if (d->plan.n_tokens != 1) return;
    d->step_ns = drafting_usual_ns(d->step_ns, ns);
}

static struct status run_step(struct draft_model *d, struct draft_ask *asks, size_t n)
{
    const uint64_t since = clock_ns();
    TRY(engine_submit(d->engine, &d->plan));
    TRY(engine_collect(d->engine, 0, &d->result));
    time_step(d, since);
    assert(d->result.n_seqs == d->plan.n_seqs);
    for (size_t i = 0, at = 0; i < n && at < d->plan.n_seqs; i++) {
        if (d->of[i] == NULL) continue;
        take_draft(d, &d->plan.seqs[at], &d->result.seqs[at], &asks[i], &d->of[i]);
        at++;
    }
    return status_ok();
}

struct status draft_propose(void *draft_model, struct draft_ask *asks, size_t n)
{
    struct draft_model *d = draft_model;
    if (n > d->of_capacity) {
        TRY(mem_grow(&d->of, 0, 2 * n, sizeof(struct draft_slot *), "draft model"));
        d->of_capacity = 2 * n;
    }
    d->n_calls++;
    for (size_t i = 0; i < n; i++) TRY(draft_slots_open(d, &asks[i], &d->of[i]));
    limit_rows(d, asks, n);
    for (;;) {
        TRY(plan_draft_step(d, asks, n));
        if (d->plan.n_seqs == 0) return status_ok();
        TRY(run_step(d, asks, n));
    }
}

static double step_ns(void *draft_model)
{
    return ((const struct draft_model *)draft_model)->step_ns;
}

struct draft_source draft_model_source(struct draft_model *d)
{
    return (struct draft_source){.propose = draft_propose,
                                 .n_known = draft_n_known,
                                 .step_ns = step_ns,
                                 .context = d->context,
                                 .user = d};
}
