/* Runs steps on one rank: the messages around its stage. */
#include "engine/engine_private.h"

#include "base/clock.h"
#include "base/mem.h"
#include "collective/device_comm.h"
#include "kernels/device.h"
#include "parallel/layout/pipe_schedule.h"

#include <string.h>

/* Adds a span that ends now to the timeline; count: the kind's first count, if it has any. Returns
 * the time now. */
static uint64_t mark_counted(struct engine *e, enum trace_kind kind, uint64_t since, uint64_t count)
{
    const uint64_t now = clock_ns();
    trace_add(comm_trace(e->o.comm), &(struct trace_event){.begin_ns = since,
                                                           .end_ns = now,
                                                           .step = e->step,
                                                           .counts = {count},
                                                           .kind = (uint8_t)kind});
    return now;
}

static uint64_t mark(struct engine *e, enum trace_kind kind, uint64_t since)
{
    return mark_counted(e, kind, since, 0);
}

/* As mark, for a span in which this rank waited: adds it to wait_ns. */
static void mark_wait(struct engine *e, enum trace_kind kind, uint64_t since)
{
    e->stats.wait_ns += mark(e, kind, since) - since;
}

/* Waits until a buffer's last content has been sent, so that the buffer can be used again. */
static void await_sent(struct engine *e, struct comm_request *sent)
{
    if (!sent->active) return;
    const uint64_t since = clock_ns();
    comm_wait(e->o.comm, sent);
    mark_wait(e, TRACE_WAIT_SENT, since);
}

static struct status make_guesses(struct engine *e)
{
    const size_t t = e->o.max_rows;
    TRY(mem_alloc(&e->guess.next, t, sizeof *e->guess.next, "engine"));
    TRY(mem_alloc(&e->guess.rows, t, sizeof *e->guess.rows, "engine"));
    TRY(mem_alloc(&e->guess.wants, t, sizeof *e->guess.wants, "engine"));
    return mem_alloc(&e->guess.got, t, sizeof *e->guess.got, "engine");
}

static struct status make_last_stage(struct engine *e)
{
    const size_t t = e->o.max_rows;
    const bool head_reads_codes =
        e->o.weights->head.quant.kind != QUANT_NONE && !stage_is_weight_only(&e->o);
    TRY(vocab_parallel_create(e->o.kern, e->o.comm, e->o.layout, head_reads_codes,
                              e->o.weights->head_bias, &e->vocab));
    TRY(mem_alloc(&e->rows, t, sizeof *e->rows, "engine"));
    TRY(mem_alloc(&e->wants, t, sizeof *e->wants, "engine"));
    TRY(mem_alloc(&e->got, t, sizeof *e->got, "engine"));
    TRY(mem_alloc(&e->scores, t, sizeof *e->scores, "engine"));
    TRY(mem_alloc(&e->pipe.counters, 2 * t, sizeof *e->pipe.counters, "engine"));
    if (e->o.model->n_predict > 0) TRY(make_guesses(e));
    return mem_ops_alloc(e->o.kern, &e->normed, t * e->o.model->width, sizeof *e->normed, "engine");
}

static struct status make_buffers(struct engine *e)
{
    const size_t n_bytes = hidden_bytes(e->o.max_rows, arch_row_width(e->o.model));
    for (int i = 0; i < N_HIDDEN; i++) {
        TRY(mem_ops_alloc(e->o.kern, &e->pipe.hidden[i], n_bytes, 1, "hidden rows"));
        e->pipe.wire[i] = e->pipe.hidden[i];
        if (e->o.kern->device == NULL) continue;
        e->pipe.wire[i] = NULL;
        TRY(mem_alloc(&e->pipe.wire[i], n_bytes, 1, "hidden rows"));
    }
    const size_t n_tables = e->groups.n_full + e->groups.n_windowed;
    TRY(mem_alloc(&e->seqs, e->o.max_rows * n_tables, sizeof *e->seqs, "engine"));
    TRY(mem_alloc(&e->adapters, e->o.max_rows, sizeof *e->adapters, "engine"));
    TRY(mem_alloc(&e->second_from, e->o.max_rows, sizeof *e->second_from, "engine"));
    TRY(step_plan_init(&e->plan, (int32_t)e->o.layout->dp));
    if (e->is_lead) {
        const size_t n = e->o.layout->pp + 1, dp = e->o.layout->dp;
        TRY(mem_alloc(&e->moves.asked, n * dp, sizeof *e->moves.asked, "engine"));
        TRY(mem_alloc(&e->moves.n_collected, dp, sizeof *e->moves.n_collected, "engine"));
        TRY(mem_alloc(&e->outgoing, n, sizeof *e->outgoing, "engine"));
        for (size_t i = 0; i < n; i++) {
            TRY(mem_alloc(&e->outgoing[i].sends, e->o.layout->pp, sizeof *e->outgoing[i].sends,
                          "engine"));
        }
    }
    return e->is_last ? make_last_stage(e) : status_ok();
}

static int rank_in_pipe(const struct engine *e, uint32_t pp)
{
    return (int)layout_rank_of(e->o.layout, e->place.dp, pp, e->place.tp);
}

/* Returns the index of the buffer for a run's hidden rows. Without a pipeline no rows are in
 * transfer, and using the same buffer each time lets a device replay its recorded work. */
static size_t hidden_slot(const struct engine *e, uint64_t run)
{
    return e->is_first && e->is_last ? 0 : run % N_HIDDEN;
}

static void expect_hidden(struct engine *e, uint64_t run)
{
    const size_t i = hidden_slot(e, run);
    if (device_pipe_receives(e->o.kern)) return; /* received when their number is known */
    await_sent(e, &e->pipe.sent[i]);
    comm_recv_start(e->o.comm, rank_in_pipe(e, e->place.pp - 1), COMM_TAG_HIDDEN, e->pipe.wire[i],
                    hidden_bytes(e->o.max_rows, arch_row_width(e->o.model)), &e->pipe.received[i]);
}

struct status engine_create(const struct engine_options *options, struct engine **out)
{
    *out = NULL;
    struct engine *e = NULL;
    TRY(mem_alloc(&e, 1, sizeof *e, "engine"));
    e->o = options->stage;
    e->groups = kv_groups_of(e->o.layout);
    e->place = layout_place_of(e->o.layout, e->o.rank);
    e->is_first = e->place.pp == 0;
    e->is_last = e->place.pp + 1 == e->o.layout->pp;
    e->is_lead = e->o.rank == 0;
    e->is_stage_root = e->place.dp == 0 && e->place.tp == 0;
    step_result_init(&e->result.own);
    struct status st = stage_create(&e->o, &e->stage);
    if (!status_failed(&st)) st = engine_create_tier(e, &options->tier);
    if (!status_failed(&st)) st = make_buffers(e);
    if (!status_failed(&st)) st = engine_create_hidden(e);
    if (status_failed(&st)) {
        engine_destroy(&e);
        return st;
    }
    if (!e->is_first) expect_hidden(e, 0);
    e->n_before_steps = comm_stats_of_steps(e->o.comm).n_calls;
    *out = e;
    return st;
}

void engine_destroy(struct engine **engine)
{
    if (*engine == NULL) return;
    struct engine *e = *engine;
    for (size_t i = 0; e->outgoing != NULL && i < e->o.layout->pp + 1; i++) {
        for (size_t s = 0; e->outgoing[i].sends != NULL && s < e->o.layout->pp; s++) {
            comm_wait(e->o.comm, &e->outgoing[i].sends[s]);
        }
        plan_message_fini(&e->outgoing[i].message);
        mem_free(&e->outgoing[i].sends);
    }
    mem_free(&e->outgoing);
    for (int i = 0; i < N_HIDDEN; i++) {
        comm_wait(e->o.comm, &e->pipe.sent[i]);
        comm_cancel(e->o.comm, &e->pipe.received[i]);
        if (device_pipe_sends(e->o.kern)) device_pipe_claim(e->o.kern, (uint32_t)i);
        if (e->pipe.wire[i] != e->pipe.hidden[i]) mem_free(&e->pipe.wire[i]);
        mem_ops_free(e->o.kern, &e->pipe.hidden[i]);
    }
    for (int i = 0; i < N_RESULTS; i++) {
        comm_wait(e->o.comm, &e->result.sends[i]);
        plan_message_fini(&e->result.messages[i]);
    }
    engine_destroy_hidden(e);
    comm_wait(e->o.comm, &e->moves.moved_send);
    kv_tier_destroy(&e->moves.tier);
    kv_store_destroy(&e->moves.store);
    mem_free(&e->moves.moved);
    mem_free(&e->moves.asked);
    mem_free(&e->moves.n_collected);
    mem_free(&e->moves.collected);
    plan_message_fini(&e->incoming);
    plan_message_fini(&e->shared);
    step_plan_fini(&e->plan);
    step_result_fini(&e->result.own);
    vocab_parallel_destroy(&e->vocab);
    stage_destroy(&e->stage);
    mem_free(&e->seqs);
    mem_free(&e->adapters);
    mem_free(&e->second_from);
    mem_free(&e->windowed);
    mem_free(&e->rows);
    mem_free(&e->wants);
    mem_free(&e->got);
    mem_free(&e->guess.next);
    mem_free(&e->guess.rows);
    mem_free(&e->guess.wants);
    mem_free(&e->guess.got);
    mem_ops_free(e->o.kern, &e->normed);
    mem_free(&e->pipe.counters);
    mem_free(&e->scores);
    mem_free(&e->pooled);
    mem_free(&e->tops);
    mem_free(engine);
}

/* True when the step runs in halves. The largest replica decides, because all ranks of a stage must
 * agree: replicas share experts. */
static bool in_halves(const struct engine *e, const struct step_plan *plan)
{
    size_t most = 0;
    for (uint32_t r = 0; r < e->o.layout->dp; r++) {
        size_t n = 0;
        for (int32_t i = plan->replica_begin[r]; i < plan->replica_begin[r + 1]; i++)
            n += (size_t)plan->seqs[i].n_rows;
        most = n > most ? n : most;
    }
    /* the first half of an encoder's text would lack the keys of the second */
    return e->o.halves_from > 0 && most >= e->o.halves_from && !e->o.model->encoder;
}

/* If the plan asks for guesses, guesses the token after each token that was just drawn:
 * e->guess.got. All ranks of the stage run the prediction layer, also those without rows, because
 * its experts may be on any of them. */
static struct status predict(struct engine *e, const struct step_plan *plan, const struct batch *b,
                             const struct hidden *h, size_t n_wants)
{
    e->guess.n = 0;
    if (!plan->predicts || e->o.model->n_predict == 0) return status_ok();
    engine_list_guesses(e, b, n_wants);
    TRY(stage_predict(e->stage, e->seqs, b->n_runs, in_halves(e, plan), e->guess.next, h));
    stage_predicted_norm(e->stage, e->guess.rows, e->guess.n, e->normed);
    return vocab_parallel_run(e->vocab, &e->o.weights->head, e->normed, e->guess.wants, e->guess.n,
                              e->guess.got, &e->result.own);
}

static struct status finish_batch(struct engine *e, const struct step_plan *plan,
                                  const struct batch *b, const struct hidden *h)
{
    size_t n;
    TRY(engine_list_wants(e, b, &n));
    step_result_clear(&e->result.own, plan->step, (int32_t)e->place.dp, (int32_t)e->o.model->vocab);
    stage_final_norm(e->stage, h, e->rows, n, e->normed);
    /* the counters `bad` and `dropped` are contiguous */
    if (e->place.tp == 0)
        mem_ops_get_later(e->o.kern, e->pipe.counters, h->bad, 2 * h->n_rows * sizeof *h->bad);
    TRY(vocab_parallel_run(e->vocab, &e->o.weights->head, e->normed, e->wants, n, e->got,
                           &e->result.own));
    TRY(predict(e, plan, b, h, n));
    if (e->place.tp != 0) return status_ok();
    mem_ops_arrive(e->o.kern);
    TRY(device_status(e->o.kern->device));
    TRY(engine_write_result(e, b, n));
    TRY(engine_write_pools(e, b, h));
    const size_t slot = e->n_runs % N_RESULTS;
    await_sent(e, &e->result.sends[slot]);
    struct plan_message *m = &e->result.messages[slot];
    TRY(step_result_pack(&e->result.own, m));
    comm_send_start(e->o.comm, 0, COMM_TAG_RESULT, m->words, m->n_words * sizeof *m->words,
                    &e->result.sends[slot]);
    e->stats.n_sent++;
    return status_ok();
}

/* Sets *h to the memory for this run's hidden rows. Stages after the first wait for the previous
 * stage's rows and post the next receive before any computing, so that the next rows can arrive
 * meanwhile. A device pipe only queues the receive of this run's rows. */
static struct status await_rows(struct engine *e, const struct batch *b, struct hidden *h)
{
    const size_t i = hidden_slot(e, e->n_runs);
    *h = hidden_view(e->pipe.hidden[i], b->n_rows, arch_row_width(e->o.model));
    if (device_pipe_sends(e->o.kern)) device_pipe_claim(e->o.kern, (uint32_t)i);
    if (e->is_first) {
        await_sent(e, &e->pipe.sent[i]);
        return status_ok();
    }
    if (device_pipe_receives(e->o.kern)) {
        device_pipe_receive(e->o.kern, (uint32_t)i, e->pipe.hidden[i],
                            hidden_bytes(b->n_rows, arch_row_width(e->o.model)));
        return status_ok();
    }
    const uint64_t since = clock_ns();
    const size_t n_bytes = comm_wait(e->o.comm, &e->pipe.received[i]);
    mark_wait(e, TRACE_WAIT_ROWS, since);
    const size_t expected = hidden_bytes(b->n_rows, arch_row_width(e->o.model));
    if (n_bytes != expected) {
        return status_make(STATUS_BUG, "hidden rows: expected %zu bytes for %zu rows, found %zu",
                           expected, b->n_rows, n_bytes);
    }
    mem_ops_put(e->o.kern, e->pipe.hidden[i], e->pipe.wire[i], n_bytes);
    expect_hidden(e, e->n_runs + 1);
    return status_ok();
}

static uint64_t collective_ns(const struct engine *e)
{
    return comm_stats_of_steps(e->o.comm).ns;
}

static struct status send_rows(struct engine *e, const struct hidden *h)
{
    const size_t i = hidden_slot(e, e->n_runs),
                 n_bytes = hidden_bytes(h->n_rows, arch_row_width(e->o.model));
    if (device_pipe_sends(e->o.kern)) {
        device_pipe_send(e->o.kern, (uint32_t)i, h->h, n_bytes);
        return device_status(e->o.kern->device);
    }
    mem_ops_get(e->o.kern, e->pipe.wire[i], h->h, n_bytes);
    TRY(device_status(e->o.kern->device));
    comm_send_start(e->o.comm, rank_in_pipe(e, e->place.pp + 1), COMM_TAG_HIDDEN, e->pipe.wire[i],
                    n_bytes, &e->pipe.sent[i]);
    e->stats.n_sent++;
    return status_ok();
}

static struct status engine_compute(struct engine *e, const struct step_plan *plan,
                                    const struct batch *b, struct hidden *h)
{
    uint64_t since = clock_ns();
    if (e->is_first) {
        stage_embed(e->stage, b->tokens, h);
        const struct encoder_rows rows = {b->tokens, e->seqs, e->second_from, b->n_runs};
        stage_embed_places(e->stage, &rows, h);
        since = mark(e, TRACE_EMBED, since);
    }
    stage_take_tokens(e->stage, b->tokens);
    TRY(stage_forward(e->stage, e->seqs, b->n_runs, e->adapters, in_halves(e, plan), h));
    since = mark(e, TRACE_LAYERS, since);
    if (e->is_last) {
        TRY(finish_batch(e, plan, b, h));
        mark(e, TRACE_HEAD, since);
    } else {
        TRY(send_rows(e, h));
    }
    TRY(engine_send_hidden(e, b, h));
    if (device_pipe_receives(e->o.kern) && !device_pipe_sends(e->o.kern))
        device_pipe_release(e->o.kern, (uint32_t)hidden_slot(e, e->n_runs));
    return status_ok();
}

static struct status engine_run_step(struct engine *e, const struct step_plan *plan)
{
    struct batch b;
    struct hidden h;
    struct trace *trace = comm_trace(e->o.comm);
    e->step = plan->step;
    comm_mark_step(e->o.comm, plan->step);
    TRY(engine_open_batch(e, plan, &b));
    TRY(engine_run_moves(e, plan, &b));
    TRY(await_rows(e, &b, &h));
    const uint64_t since = clock_ns(), cpu = trace_cpu_ns(trace);
    const uint64_t comm_before = collective_ns(e), wait_before = e->stats.wait_ns;
    TRY(engine_compute(e, plan, &b, &h));
    TRY(engine_report_moves(e, &b));
    const uint64_t now = clock_ns();
    trace_add(trace,
              &(struct trace_event){.begin_ns = since,
                                    .end_ns = now,
                                    .step = plan->step,
                                    .counts = {b.n_rows, b.n_seqs, trace_cpu_ns(trace) - cpu},
                                    .kind = TRACE_STEP});
    e->n_runs++;
    e->stats.n_steps++;
    e->stats.n_rows += b.n_rows;
    e->stats.busy_ns += now - since - (e->stats.wait_ns - wait_before);
    e->stats.comm_ns += collective_ns(e) - comm_before;
    return status_ok();
}

static void reserve_shared(struct engine *e, size_t n_words)
{
    const struct status st = plan_message_reserve(&e->shared, n_words);
    if (status_failed(&st)) comm_abort(e->o.comm, status_exit(st.code));
}

/* Broadcasts words [from, to) of the shared plan over the stage. */
static void share_words(struct engine *e, size_t from, size_t to)
{
    int32_t *words = e->shared.words;
    comm_broadcast(e->o.comm, COMM_STAGE, 0, words + from, (to - from) * sizeof *words);
}

/* Puts the plan of the stage's root into e->shared on all ranks of the stage: its number of words,
 * then the words. One broadcast is enough if the plan is at most a quarter longer than the last
 * one, whose length all ranks know, or than FIRST words. On all ranks but the root the time counts
 * as waiting. */
static void share_plan(struct engine *e, const struct plan_message *m)
{
    enum { LENGTH = 1, FIRST = 255 };
    const uint64_t since = clock_ns();
    struct plan_message *s = &e->shared;
    const size_t last = s->n_words > FIRST ? s->n_words : FIRST, head = LENGTH + last + last / 4;
    const size_t mine = e->is_stage_root ? LENGTH + m->n_words : 0;
    reserve_shared(e, mine > head ? mine : head);
    if (e->is_stage_root) {
        s->words[0] = (int32_t)m->n_words;
        memcpy(s->words + LENGTH, m->words, m->n_words * sizeof *m->words);
    }
    share_words(e, 0, head);
    const size_t n = LENGTH + (size_t)s->words[0];
    if (n > head) {
        s->n_words = head; /* kept when the memory grows */
        reserve_shared(e, n);
        share_words(e, head, n);
    }
    s->n_words = n;
    if (!e->is_stage_root) {
        mark_wait(e, TRACE_WAIT_PLAN, since);
        return;
    }
    const uint64_t ns = clock_ns() - since;
    e->stats.busy_ns += ns;
    e->stats.comm_ns += ns;
}

struct status engine_submit(struct engine *e, const struct step_plan *plan)
{
    const uint32_t pp = e->o.layout->pp;
    engine_note_asked(e, plan);
    struct outgoing_plan *out = &e->outgoing[e->n_submitted % (pp + 1)];
    e->n_submitted += plan->kind == PLAN_RUN; /* as many results will be collected */
    for (uint32_t s = 1; s < pp; s++) comm_wait(e->o.comm, &out->sends[s]);
    const uint64_t since = clock_ns();
    TRY(step_plan_pack(plan, &out->message));
    for (uint32_t s = 1; s < pp; s++) {
        comm_send_start(e->o.comm, (int)layout_rank_of(e->o.layout, 0, s, 0), COMM_TAG_PLAN,
                        out->message.words, out->message.n_words * sizeof *out->message.words,
                        &out->sends[s]);
        e->stats.n_sent++;
    }
    e->stats.lead_ns += clock_ns() - since;
    share_plan(e, &out->message);
    return plan->kind == PLAN_RUN ? engine_run_step(e, plan) : status_ok();
}

/* Receives a plan, or a result of a replica, into e->incoming. For a plan, replica is 0. */
static struct status receive_message(struct engine *e, int from, enum comm_tag tag,
                                     uint32_t replica)
{
    const uint64_t since = clock_ns();
    const size_t n_bytes = comm_probe(e->o.comm, from, tag);
    const enum trace_kind kind = tag == COMM_TAG_PLAN ? TRACE_WAIT_PLAN : TRACE_WAIT_RESULT;
    e->stats.wait_ns += mark_counted(e, kind, since, replica) - since;
    e->incoming.n_words = 0;
    TRY(plan_message_reserve(&e->incoming, n_bytes / sizeof *e->incoming.words));
    comm_recv(e->o.comm, from, tag, e->incoming.words, n_bytes);
    e->incoming.n_words = n_bytes / sizeof *e->incoming.words;
    return status_ok();
}

struct status engine_collect(struct engine *e, int32_t replica, struct step_result *out)
{
    const int from = (int)layout_rank_of(e->o.layout, (uint32_t)replica, e->o.layout->pp - 1, 0);
    const uint64_t since = clock_ns(), waited_ns = e->stats.wait_ns;
    TRY(receive_message(e, from, COMM_TAG_RESULT, (uint32_t)replica));
    struct status st = step_result_unpack(e->incoming.words, e->incoming.n_words, out);
    if (!status_failed(&st)) st = engine_collect_moved(e, replica, out);
    if (!status_failed(&st)) st = engine_collect_hidden(e, replica, out);
    e->stats.lead_ns += clock_ns() - since - (e->stats.wait_ns - waited_ns);
    return st;
}

struct status engine_follow(struct engine *e, enum plan_kind *end)
{
    for (;;) {
        if (e->is_stage_root) TRY(receive_message(e, 0, COMM_TAG_PLAN, 0));
        share_plan(e, &e->incoming);
        TRY(step_plan_unpack(e->shared.words + 1, e->shared.n_words - 1, &e->plan));
        *end = e->plan.kind;
        if (e->plan.kind != PLAN_RUN) return status_ok();
        TRY(engine_run_step(e, &e->plan));
    }
}

struct engine_stats engine_stats_of(const struct engine *e)
{
    struct engine_stats s = e->stats;
    s.peak_bytes = mem_peak_bytes();
    if (e->o.weights->stream != NULL) s.experts = expert_stream_stats_of(e->o.weights->stream);
    s.moe = stage_moe_traffic(e->stage);
    if (e->moves.tier != NULL) s.tier = kv_tier_stats_of(e->moves.tier);
    s.n_collectives = comm_stats_of_steps(e->o.comm).n_calls - e->n_before_steps;
    return s;
}

void engine_count_busiest(struct engine *e)
{
    stage_count_busiest(e->stage);
}

struct status engine_take_places(struct engine *e)
{
    return stage_take_places(e->stage);
}

const struct stage *engine_stage(const struct engine *e)
{
    return e->stage;
}
