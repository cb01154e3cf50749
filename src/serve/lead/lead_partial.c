/* Saves unfinished rows in the journal and restores them.
 *
 *   answer   a record; one item for each token sampled since the answer's last record:
 *            i32 token | f32 log-probability | n x { i32 id, f32 log-probability }   (if asked for)
 *   search   a record with the whole state of a beam search, items of 1 byte, anew each time
 *
 * Little-endian. The state of a search is in beam_pack's format. */
#include "serve/lead/lead_private.h"
#include "serve/request/beam.h"

#include <string.h>

_Static_assert(JOURNAL_PARTS_MAX == REQUEST_PROMPTS_MAX * REQUEST_CHOICES_MAX,
               "every answer of a line can be resumed");

static size_t item_bytes(const struct request *r)
{
    if (r->ask->n_tops < 0) return sizeof *r->tokens;
    return sizeof *r->tokens + sizeof *r->logprobs.sampled +
           (size_t)r->ask->n_tops * sizeof *r->logprobs.tops;
}

/* Appends the item of sampled token i. */
static void pack_answer(const struct request *r, size_t i, struct strbuf *out)
{
    strbuf_add(out, (const char *)&r->tokens[r->n_prompt + i], sizeof *r->tokens);
    if (r->ask->n_tops < 0) return;
    const size_t n = (size_t)r->ask->n_tops;
    strbuf_add(out, (const char *)&r->logprobs.sampled[i], sizeof *r->logprobs.sampled);
    if (n > 0)
        strbuf_add(out, (const char *)(r->logprobs.tops + i * n), n * sizeof *r->logprobs.tops);
}

struct status lead_save_tokens(struct lead *l, struct request *r, size_t n_least)
{
    const bool is_probe = r->parent != NULL && r->parent->choices.search != NULL;
    const size_t n = r->n_tokens - r->n_prompt;
    if (l->lines.journal == NULL || r->error.code != NULL || is_probe || n < r->n_saved + n_least) {
        return status_ok();
    }
    strbuf_clear(&l->row);
    for (size_t i = r->n_saved; i < n; i++) pack_answer(r, i, &l->row);
    TRY(strbuf_status(&l->row));
    const struct journal_record record = {
        .type = JOURNAL_PARTIAL,
        .line = r->line,
        .digest = {r->line_digest[0], r->line_digest[1]},
        .values = {r->n_saved, r->n_dropped, r->choice, item_bytes(r)},
        .bytes = l->row.data,
        .n_bytes = l->row.n,
    };
    r->n_saved = n;
    return journal_add(l->lines.journal, &record);
}

struct status lead_save_search(struct lead *l, struct request *p, size_t n_least)
{
    const size_t n = beam_n_steps(p->choices.search);
    if (l->lines.journal == NULL || n < p->n_saved + n_least) return status_ok();
    strbuf_clear(&l->row);
    beam_pack(p->choices.search, &l->row);
    TRY(strbuf_status(&l->row));
    const struct journal_record record = {
        .type = JOURNAL_PARTIAL,
        .line = p->line,
        .digest = {p->line_digest[0], p->line_digest[1]},
        .values = {0, p->n_dropped, 0, 1},
        .bytes = l->row.data,
        .n_bytes = l->row.n,
    };
    p->n_saved = n;
    return journal_add(l->lines.journal, &record);
}

static struct status save(void *user, struct request *r)
{
    return lead_save_tokens(user, r, 1);
}

struct status lead_save_all(struct lead *l)
{
    TRY(scheduler_visit(l->scheduler, -1, save, l));
    for (struct request *p = l->parents.head; p != NULL; p = p->next) {
        if (p->choices.search != NULL) TRY(lead_save_search(l, p, 1));
        for (int32_t i = 0; p->choices.search == NULL && i < p->ask->n_choices; i++) {
            if (p->choices.at[i] != NULL) TRY(lead_save_tokens(l, p->choices.at[i], 1));
        }
    }
    return status_ok();
}

/* Returns the saved part with this number if its items have `bytes` bytes each; otherwise NULL. */
static const struct journal_part *lead_partial_part_of(const struct journal_hit *hit,
                                                       uint32_t number, size_t bytes)
{
    if (hit == NULL || hit->kind != JOURNAL_HIT_PARTIAL || number >= hit->n_parts) return NULL;
    const struct journal_part *part = &hit->parts[number];
    return part->n_items > 0 && part->item_bytes == bytes ? part : NULL;
}

static struct status lead_partial_refuse(const struct lead *l, const struct request *r,
                                         const char *what)
{
    return status_make(STATUS_INPUT, "journal %s, line %llu: %s; begin anew with --restart",
                       l->o.journal.path, (unsigned long long)r->line, what);
}

static struct status take_item(struct lead *l, struct request *r, const char *item)
{
    int32_t token;
    memcpy(&token, item, sizeof token);
    if (token < 0 || token >= l->rules.vocab_size) {
        return lead_partial_refuse(l, r, "a token that is not in the vocabulary");
    }
    if (r->ask->n_tops >= 0) {
        struct plan_top tops[PLAN_TOPS_MAX];
        float logprob;
        memcpy(&logprob, item + sizeof token, sizeof logprob);
        memcpy(tops, item + sizeof token + sizeof logprob, (size_t)r->ask->n_tops * sizeof *tops);
        TRY(request_take_logprob(r, logprob, tops));
    }
    return request_take_token(r, &l->rules, token);
}

struct status lead_take_tokens(struct lead *l, struct request *r, const struct journal_hit *hit)
{
    const struct journal_part *part = lead_partial_part_of(hit, r->choice, item_bytes(r));
    if (part == NULL) return status_ok();
    /* The journal has neither the prompt's log-probabilities nor hidden rows. If r needs either, it
     * must run for at least one token, so that they are computed again. */
    const bool must_run = r->ask->n_prompt_tops >= 0 || l->rules.saves_hidden;
    const size_t n_most = part->n_items - must_run;
    for (size_t i = 0; i < n_most && r->finish == REQUEST_UNFINISHED; i++)
        TRY(take_item(l, r, part->bytes + i * part->item_bytes));
    r->n_dropped = part->n_dropped;
    r->n_resumed = r->n_tokens - r->n_prompt;
    r->n_saved = part->n_items;
    l->stats.n_resumed_tokens += r->n_resumed;
    return status_ok();
}

struct status lead_take_search(struct lead *l, struct request *p, const struct journal_hit *hit)
{
    bool taken;
    const struct journal_part *part = lead_partial_part_of(hit, 0, 1);
    if (part == NULL) return status_ok();
    TRY(beam_unpack(p->choices.search, part->bytes, part->n_items, &taken));
    if (!taken) return lead_partial_refuse(l, p, "not the state of its beam search");
    p->n_dropped = part->n_dropped;
    p->n_saved = beam_n_steps(p->choices.search);
    l->stats.n_resumed_tokens += p->n_saved * (uint64_t)beam_n_running(p->choices.search);
    return status_ok();
}
