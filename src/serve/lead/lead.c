/* Creates and ends the lead; takes requests and the results of steps. The port (lead_port.h) brings
 * the requests and takes the answers. */
#include "serve/lead/lead.h"

#include "base/clock.h"
#include "base/mem.h"
#include "serve/lead/lead_private.h"
#include "serve/request/beam.h"

enum { WINDOW_ROWS = 8192, WINDOW_BYTES = 256 << 20, SAVING_WINDOW_BYTES = 1 << 30 };

struct status lead_start(struct lead *l, const struct lead_pools *pools)
{
    const struct lead_options *o = &l->o;
    const struct scheduler_options so = {
        .rules = &l->rules,
        .n_replicas = o->n_replicas,
        .n_groups = o->n_groups,
        .n_blocks = pools->n_blocks,
        .n_state_slots = pools->n_state_slots,
        .tables = o->tables,
        .n_tier_slots = pools->n_tier_slots,
        .store = pools->store,
        .flags = o->schedule,
        .eased_step_ns = o->eased_step_ns,
        .draft_cost = o->drafts.cost,
        .predicts = o->drafts.predicts,
        .no_repeats = o->drafts.no_repeats,
        .draft_model = o->drafts.model,
        .drafter = o->drafts.drafter,
        .drafter_user = o->drafts.user,
        .logits = o->mode == LEAD_SCORE ? o->logits : NULL,
        .logits_user = o->logits_user,
        .store_rows = lead_store_rows,
        .store_rows_user = l,
    };
    l->o.n_blocks = pools->n_blocks;
    l->start_ns = clock_ns();
    progress_init(&l->progress, o->flags.quiet);
    if (o->flags.progress_bar) l->progress.is_terminal = true;
    return scheduler_create(&so, &l->stats, &l->scheduler);
}

struct status lead_create(const struct lead_options *options, struct lead **out)
{
    *out = NULL;
    struct lead *l = NULL;
    TRY(mem_alloc(&l, 1, sizeof *l, "lead"));
    struct status st;
    l->o = *options;
    if (l->o.window_rows == 0) l->o.window_rows = WINDOW_ROWS;
    if (l->o.window_bytes == 0)
        l->o.window_bytes = options->save != NULL ? SAVING_WINDOW_BYTES : WINDOW_BYTES;
    l->rules = (struct request_rules){
        .defaults = options->defaults,
        .form = options->form,
        .tokenizer = options->tokenizer,
        .chat = options->chat,
        .chat_missing = options->chat_missing,
        .date = options->date,
        .end_ids = options->end_ids,
        .n_end_ids = options->n_end_ids,
        .adapters = options->adapters,
        .n_adapters = options->n_adapters,
        .vocab_size = options->vocab_size,
        .max_model_len = options->max_model_len,
        .score = options->mode == LEAD_SCORE,
        .takes_pairs = options->mode == LEAD_SCORE,
        .prefix_id = options->prefix_id,
        .embed = options->embed,
        .warnings = &l->warnings,
        .is_dry_run = options->is_dry_run,
        .n_saved_tops = options->save != NULL ? (int32_t)options->save->shape.k : 0,
        .saves_hidden = options->save != NULL && options->save->shape.hidden.layers.n > 0 &&
                        options->audit == NULL,
        .hidden_span = options->save != NULL ? options->save->span : HIDDEN_ALL,
    };
    strbuf_init(&l->row);
    TRY_GOTO(st, request_defaults_check(&options->defaults), fail);
    if (options->tokenizer != NULL && options->mode == LEAD_GENERATE) {
        TRY_GOTO(st, guides_create(options->tokenizer, options->vocab_size, &l->rules.guides),
                 fail);
    }
    l->window.capacity = (l->o.window_rows + 3) / 4;
    TRY_GOTO(st,
             mem_alloc(&l->window.requests, l->window.capacity, sizeof(struct request *), "window"),
             fail);
    if (l->o.flags.result_cache && options->mode == LEAD_GENERATE) {
        TRY_GOTO(st, result_cache_create(0, &l->results), fail);
    }
    if (options->n_blocks > 0)
        TRY_GOTO(st, lead_start(l, &(struct lead_pools){.n_blocks = options->n_blocks}), fail);
    if (options->port != NULL) l->port = *options->port;
    if (options->port == NULL) TRY_GOTO(st, lead_lines_open(l), fail);
    *out = l;
    return st;
fail:
    lead_destroy(&l);
    return st;
}

void lead_destroy(struct lead **lead)
{
    struct lead *l = *lead;
    if (l == NULL) return;
    scheduler_destroy(&l->scheduler);
    result_cache_destroy(&l->results);
    for (size_t i = 0; i < l->window.n; i++) request_destroy(&l->window.requests[i]);
    mem_free(&l->window.requests);
    while (l->parents.head != NULL) { /* after the requests above, which borrow from these */
        struct request *p = l->parents.head;
        request_list_take(&l->parents, p);
        beam_destroy(&p->choices.search);
        request_destroy(&p);
    }
    lead_lines_close(l);
    guides_destroy(&l->rules.guides);
    strbuf_fini(&l->row);
    mem_free(lead);
}

bool lead_is_complete(const struct lead *l)
{
    return l->lines.is_complete;
}

struct status lead_order(struct lead *l)
{
    struct order_window *w = &l->window;
    TRY(order_requests(l->o.schedule.order, l->o.n_blocks, w->requests, w->n));
    for (size_t i = 0; i < w->n; i++) {
        struct request *r = w->requests[i];
        w->requests[i] = NULL;
        TRY(scheduler_submit(l->scheduler, r));
    }
    w->n = w->bytes = 0;
    return status_ok();
}

struct status lead_add_request(struct lead *l, struct request *r)
{
    struct order_window *w = &l->window;
    w->requests[w->n++] = r;
    w->bytes += request_cost_bytes(r, &l->rules);
    const bool is_full = w->n == w->capacity || w->bytes >= l->o.window_bytes / 4;
    return is_full || l->o.schedule.order == ORDER_INPUT ? lead_order(l) : status_ok();
}

struct status lead_take_request(struct lead *l, struct request *r, const struct journal_hit *hit)
{
    enum result_answer answer = RESULT_RUN;
    struct status st = status_ok();
    if (r->ask->n_choices > 1 || r->ask->beam.width > 0) return lead_open_choices(l, r, hit);
    st = lead_take_tokens(l, r, hit);
    if (status_failed(&st)) goto done;
    if (r->finish != REQUEST_UNFINISHED) return lead_end_request(l, r);
    const size_t n_before = r->n_tokens;
    if (l->results != NULL) st = result_cache_ask(l->results, &l->rules, r, &answer);
    if (status_failed(&st)) goto done;
    l->stats.n_result_hit_tokens += r->n_tokens - n_before;
    if (answer == RESULT_WAITS) return st;
    if (answer == RESULT_RUN) return lead_add_request(l, r);
    l->stats.n_result_hits++;
    return lead_end_request(l, r);
done:
    request_destroy(&r);
    return st;
}

struct status lead_take(struct lead *l, struct request *r)
{
    return lead_take_new(l, r, NULL);
}

struct status lead_take_new(struct lead *l, struct request *r, const struct journal_hit *hit)
{
    r->order = l->n_ordered++;
    if (r->error.code == NULL) return lead_take_request(l, r, hit);
    const struct status st = lead_put(l, r);
    request_destroy(&r);
    return st;
}

struct status lead_put(struct lead *l, const struct request *r)
{
    return l->port.put(l->port.user, l, r);
}

static struct progress_view lead_view(const struct lead *l)
{
    struct progress_view v = {
        .n_prompt_tokens = l->stats.n_prompt_tokens,
        .n_generated_tokens = l->stats.n_generated_tokens,
    };
    if (l->scheduler != NULL) v.load = scheduler_load(l->scheduler);
    l->port.view(l->port.user, &v);
    return v;
}

static void lead_count_blocks(struct lead *l)
{
    const struct scheduler_load load = scheduler_load(l->scheduler);
    const uint64_t n_used = (uint64_t)(load.n_blocks - load.n_free_blocks);
    l->stats.n_blocks = (uint64_t)load.n_blocks;
    l->stats.sum_used_blocks += n_used;
    if (n_used > l->stats.n_peak_used_blocks) l->stats.n_peak_used_blocks = n_used;
}

struct status lead_next(struct lead *l, int32_t group, uint64_t step, struct step_plan *plan,
                        bool *done)
{
    TRY(l->port.read(l->port.user, l));
    *done = l->port.is_at_end(l->port.user) && lead_is_idle(l);
    if (*done) {
        step_plan_clear(plan, PLAN_STOP, step);
        return status_ok();
    }
    TRY(scheduler_plan(l->scheduler, group, step, plan));
    if (plan->n_seqs > 0) lead_count_blocks(l);
    return status_ok();
}

/* Ends a request that ran. Passes the requests that waited for its result to lead_take_request. */
static struct status lead_take_finished(struct lead *l, struct request *r)
{
    struct status st = status_ok();
    if (l->results != NULL) st = result_cache_end(l->results, r);
    if (status_failed(&st)) {
        request_destroy(&r);
        return st;
    }
    st = lead_end_request(l, r);
    while (!status_failed(&st) && l->results != NULL) {
        r = result_cache_take(l->results);
        if (r == NULL) break;
        st = lead_take_request(l, r, NULL);
    }
    return st;
}

static struct status take_all_finished(struct lead *l)
{
    struct request *r;
    while ((r = scheduler_take_finished(l->scheduler)) != NULL) TRY(lead_take_finished(l, r));
    return status_ok();
}

struct status lead_commit(struct lead *l, int32_t group, const struct step_result *result)
{
    TRY(scheduler_commit(l->scheduler, group, result));
    TRY(take_all_finished(l));
    const struct progress_view v = lead_view(l);
    progress_update(&l->progress, &v);
    return l->port.commit(l->port.user, l, group);
}

struct status lead_cancel(struct lead *l, const struct request *r, const char *code,
                          const char *message)
{
    TRY(lead_order(l));
    TRY(scheduler_cancel(l->scheduler, r, code, message));
    return take_all_finished(l);
}

bool lead_is_idle(const struct lead *l)
{
    return l->window.n == 0 && scheduler_is_idle(l->scheduler);
}

bool lead_wants_more(const struct lead *l)
{
    return scheduler_wants_more(l->scheduler);
}

struct status lead_visit(struct lead *l, int32_t group,
                         struct status (*visit)(void *user, struct request *r), void *user)
{
    return scheduler_visit(l->scheduler, group, visit, user);
}

const struct request_rules *lead_rules(const struct lead *l)
{
    return &l->rules;
}

bool lead_may_stop(struct lead *l)
{
    return l->port.may_stop(l->port.user, l);
}

struct status lead_drain(struct lead *l)
{
    return l->port.drain(l->port.user, l);
}

void lead_save(struct lead *l)
{
    l->port.save(l->port.user);
}

double lead_end_s(const struct lead *l)
{
    return l->port.end_s(l->port.user);
}

void lead_summary(const struct lead *l, struct serve_summary *summary)
{
    *summary = l->stats;
    if (l->start_ns > 0) summary->wall_s = (double)(clock_ns() - l->start_ns) * 1e-9;
    l->port.sum(l->port.user, summary);
}

const struct serve_summary *lead_stats(const struct lead *l)
{
    return &l->stats;
}

struct scheduler_load lead_load(const struct lead *l)
{
    return scheduler_load(l->scheduler);
}

struct status lead_finish(struct lead *l, struct serve_summary *summary)
{
    const struct status st = l->port.close(l->port.user);
    const struct progress_view v = lead_view(l);
    if (!l->lines.is_complete) progress_end(&l->progress, &v);
    lead_lines_report(l);
    lead_summary(l, summary);
    return st;
}
