/* Steps on one rank: messages around the stage. */
#include "engine/engine.h"

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/device.h"
#include "kernels/device_comm.h"
#include "parallel/pipe_schedule.h"
#include "sample/vocab_parallel.h"

#include <string.h>

/* Hidden rows of three steps: one being received, one computed, one still being sent. */
enum { N_HIDDEN = 3, N_RESULTS = 3 };

struct outgoing_plan {
    struct plan_message message;
    struct comm_request *sends; /* [pp] */
};

struct engine {
    struct stage_options o;
    struct layout_place place;
    bool is_first, is_last, is_lead, is_stage_root;
    struct stage *stage;
    struct vocab_parallel *vocab; /* last stage */

    void *hidden[N_HIDDEN]; /* where the stage works */
    void *wire[N_HIDDEN];   /* the same in host memory, for messages; without a device it is it */
    int32_t *counters;      /* last stage: [2 * max_rows] bad and dropped, host memory */
    struct comm_request received[N_HIDDEN], sent[N_HIDDEN];
    uint64_t n_runs; /* steps run so far: names the hidden buffer */

    struct step_plan plan;          /* followers: the plan being run */
    struct plan_message incoming;   /* plan or result received */
    struct outgoing_plan *outgoing; /* lead: [pp + 1] */
    uint64_t n_submitted;

    struct step_result result; /* last stage */
    struct plan_message result_messages[N_RESULTS];
    struct comm_request result_sends[N_RESULTS];

    /* [max_rows] each: the step's sequences and what the last stage wants of its rows */
    struct seq_rows *seqs;
    size_t *rows;
    struct vocab_want *wants;
    struct vocab_got *got;
    float *normed;         /* [max_rows, D] */
    float *scores;         /* [max_rows] */
    struct plan_top *tops; /* of the wants, one after another; grows */
    size_t tops_capacity;

    uint64_t step; /* the last plan's */
    struct engine_stats stats;
};

/* A span that ends now goes to the timeline. Returns now. */
static uint64_t mark(struct engine *e, enum trace_kind kind, uint64_t since)
{
    const uint64_t now = clock_ns();
    trace_add(comm_trace(e->o.comm),
              &(struct trace_event){
                  .begin_ns = since, .end_ns = now, .step = e->step, .kind = (uint8_t)kind});
    return now;
}

/* The same of a time in which this rank had nothing to do. */
static void mark_wait(struct engine *e, enum trace_kind kind, uint64_t since)
{
    e->stats.wait_ns += mark(e, kind, since) - since;
}

/* A buffer's last content must have left before it is used again. */
static void await_sent(struct engine *e, struct comm_request *sent)
{
    if (!sent->active) return;
    const uint64_t since = clock_ns();
    comm_wait(e->o.comm, sent);
    mark_wait(e, TRACE_WAIT_SENT, since);
}

static struct status make_last_stage(struct engine *e)
{
    const size_t t = e->o.max_rows;
    const bool head_reads_codes = e->o.weights->head.quant.kind != QUANT_NONE && !e->o.weight_only;
    TRY(vocab_parallel_create(e->o.kern, e->o.comm, e->o.layout, head_reads_codes, &e->vocab));
    TRY(mem_alloc(&e->rows, t, sizeof *e->rows, "engine"));
    TRY(mem_alloc(&e->wants, t, sizeof *e->wants, "engine"));
    TRY(mem_alloc(&e->got, t, sizeof *e->got, "engine"));
    TRY(mem_alloc(&e->scores, t, sizeof *e->scores, "engine"));
    TRY(mem_alloc(&e->counters, 2 * t, sizeof *e->counters, "engine"));
    return mem_ops_alloc(e->o.kern, &e->normed, t * e->o.model->width, sizeof *e->normed, "engine");
}

static struct status make_buffers(struct engine *e)
{
    const size_t n_bytes = hidden_bytes(e->o.max_rows, e->o.model->width);
    for (int i = 0; i < N_HIDDEN; i++) {
        TRY(mem_ops_alloc(e->o.kern, &e->hidden[i], n_bytes, 1, "hidden rows"));
        e->wire[i] = e->hidden[i];
        if (e->o.kern->device == NULL) continue;
        e->wire[i] = NULL;
        TRY(mem_alloc(&e->wire[i], n_bytes, 1, "hidden rows"));
    }
    TRY(mem_alloc(&e->seqs, e->o.max_rows, sizeof *e->seqs, "engine"));
    TRY(step_plan_init(&e->plan, (int32_t)e->o.layout->dp));
    if (e->is_lead) {
        const size_t n = e->o.layout->pp + 1;
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

/* Where a run's hidden rows stand. Without a pipeline none are on their way from or to others, and
 * the same place each time lets a device replay what it did. */
static size_t hidden_slot(const struct engine *e, uint64_t run)
{
    return e->is_first && e->is_last ? 0 : run % N_HIDDEN;
}

static void expect_hidden(struct engine *e, uint64_t run)
{
    const size_t i = hidden_slot(e, run);
    if (device_pipe_receives(e->o.kern)) return; /* asked for when their number is known */
    await_sent(e, &e->sent[i]);
    comm_recv_start(e->o.comm, rank_in_pipe(e, e->place.pp - 1), COMM_TAG_HIDDEN, e->wire[i],
                    hidden_bytes(e->o.max_rows, e->o.model->width), &e->received[i]);
}

struct status engine_create(const struct engine_options *options, struct engine **out)
{
    *out = NULL;
    struct engine *e = NULL;
    TRY(mem_alloc(&e, 1, sizeof *e, "engine"));
    e->o = options->stage;
    e->place = layout_place_of(e->o.layout, e->o.rank);
    e->is_first = e->place.pp == 0;
    e->is_last = e->place.pp + 1 == e->o.layout->pp;
    e->is_lead = e->o.rank == 0;
    e->is_stage_root = e->place.dp == 0 && e->place.tp == 0;
    step_result_init(&e->result);
    struct status st = stage_create(&e->o, &e->stage);
    if (!status_failed(&st)) st = make_buffers(e);
    if (status_failed(&st)) {
        engine_destroy(&e);
        return st;
    }
    if (!e->is_first) expect_hidden(e, 0);
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
        comm_wait(e->o.comm, &e->sent[i]);
        comm_cancel(e->o.comm, &e->received[i]);
        if (device_pipe_sends(e->o.kern)) device_pipe_claim(e->o.kern, (uint32_t)i);
        if (e->wire[i] != e->hidden[i]) mem_free(&e->wire[i]);
        mem_ops_free(e->o.kern, &e->hidden[i]);
    }
    for (int i = 0; i < N_RESULTS; i++) {
        comm_wait(e->o.comm, &e->result_sends[i]);
        plan_message_fini(&e->result_messages[i]);
    }
    plan_message_fini(&e->incoming);
    step_plan_fini(&e->plan);
    step_result_fini(&e->result);
    vocab_parallel_destroy(&e->vocab);
    stage_destroy(&e->stage);
    mem_free(&e->seqs);
    mem_free(&e->rows);
    mem_free(&e->wants);
    mem_free(&e->got);
    mem_ops_free(e->o.kern, &e->normed);
    mem_free(&e->counters);
    mem_free(&e->scores);
    mem_free(&e->tops);
    mem_free(engine);
}

/* This replica's sequences of a plan. */
struct batch {
    const struct plan_seq *seqs; /* [n_seqs] */
    size_t n_seqs, n_rows;
    const int32_t *tokens;             /* [n_rows] */
    const struct plan_adjust *adjusts; /* sequence after sequence */
    const uint32_t *allowed;           /* the same */
};

static struct status open_batch(struct engine *e, const struct step_plan *plan, struct batch *out)
{
    const size_t first = (size_t)plan->replica_begin[e->place.dp];
    const size_t last = (size_t)plan->replica_begin[e->place.dp + 1];
    size_t token = 0, block = 0, adjust = 0, allowed = 0;
    const size_t n_allowed_words = (e->o.layout->model.vocab + 31) / 32;
    for (size_t i = 0; i < first; i++) {
        token += (size_t)plan->seqs[i].n_rows;
        block += (size_t)plan->seqs[i].n_blocks;
        adjust += (size_t)plan->seqs[i].n_adjusts;
        allowed += (size_t)plan->seqs[i].n_allowed_words;
    }
    *out = (struct batch){.seqs = plan->seqs + first,
                          .n_seqs = last - first,
                          .tokens = plan->tokens + token,
                          .adjusts = plan->adjusts + adjust,
                          .allowed = plan->allowed + allowed};
    for (size_t i = first; i < last; i++) {
        const struct plan_seq *s = &plan->seqs[i];
        if (s->n_allowed_words != 0 && (size_t)s->n_allowed_words != n_allowed_words) {
            return status_make(STATUS_BUG, "step %llu: %d words of allowed tokens, expected %zu",
                               (unsigned long long)plan->step, s->n_allowed_words, n_allowed_words);
        }
        if (out->n_rows + (size_t)s->n_rows > e->o.max_rows || s->n_rows < 1) {
            return status_make(STATUS_BUG, "step %llu: a sequence of %d rows after %zu, limit %zu",
                               (unsigned long long)plan->step, s->n_rows, out->n_rows,
                               e->o.max_rows);
        }
        e->seqs[i - first] = (struct seq_rows){.row0 = out->n_rows,
                                               .n_rows = (size_t)s->n_rows,
                                               .pos0 = (size_t)s->pos0,
                                               .blocks = plan->blocks + block};
        out->n_rows += (size_t)s->n_rows;
        block += (size_t)s->n_blocks;
    }
    return status_ok();
}

/* The token that follows row r of a sequence, -1 when the plan does not know it. */
static int32_t next_token(const struct plan_seq *s, const int32_t *tokens, int32_t r)
{
    return r + 1 < s->n_rows ? tokens[r + 1] : s->next_token;
}

/* What is wanted of a row whose token is sampled. */
static struct vocab_want sampled_want(const struct plan_seq *s, const struct plan_adjust *adjusts,
                                      const uint32_t *allowed)
{
    return (struct vocab_want){.want = s->want,
                               .target = s->next_token,
                               .pick = {.temperature = s->temperature,
                                        .top_p = s->top_p,
                                        .min_p = s->min_p,
                                        .top_k = s->top_k,
                                        .key = {s->key[0], s->key[1]},
                                        .choice = s->choice,
                                        .position = (uint32_t)(s->pos0 + s->n_rows)},
                               .adjust = {.penalties = s->penalties,
                                          .entries = adjusts,
                                          .n = (size_t)s->n_adjusts,
                                          .allowed = s->n_allowed_words > 0 ? allowed : NULL},
                               .n_top = (s->want & PLAN_LOGPROB) != 0 ? s->n_logprobs : 0};
}

/* What is wanted of another one. */
static struct vocab_want scored_want(const struct plan_seq *s, int32_t target)
{
    const bool has_tops = (s->want & PLAN_SCORE) != 0 && target >= 0;
    return (struct vocab_want){.want = s->want & ~(PLAN_SAMPLE | PLAN_LOGPROB),
                               .target = target,
                               .n_top = has_tops ? s->n_prompt_logprobs : 0};
}

/* Room for the rows' most likely tokens. */
static struct status place_tops(struct engine *e, size_t n_wants)
{
    size_t n = 0;
    for (size_t i = 0; i < n_wants; i++) n += (size_t)e->wants[i].n_top;
    if (n > e->tops_capacity) {
        TRY(mem_grow(&e->tops, 0, 2 * n, sizeof *e->tops, "engine"));
        e->tops_capacity = 2 * n;
    }
    for (size_t i = 0, at = 0; i < n_wants; at += (size_t)e->wants[i++].n_top) {
        e->wants[i].tops = e->tops + at;
    }
    return status_ok();
}

/* Lists the rows whose logits somebody wants; returns how many. */
static size_t list_wants(struct engine *e, const struct batch *b)
{
    size_t n = 0;
    const struct plan_adjust *adjusts = b->adjusts;
    const uint32_t *allowed = b->allowed;
    for (size_t i = 0; i < b->n_seqs; i++) {
        const struct plan_seq *s = &b->seqs[i];
        const int32_t *tokens = b->tokens + e->seqs[i].row0;
        const bool all_rows = (s->want & (PLAN_SCORE | PLAN_LOGITS)) != 0;
        for (int32_t r = 0; r < s->n_rows; r++) {
            const bool samples = r + 1 == s->n_rows && (s->want & PLAN_SAMPLE) != 0;
            if (!all_rows && !samples) continue;
            e->rows[n] = e->seqs[i].row0 + (size_t)r;
            e->wants[n++] = samples ? sampled_want(s, adjusts, allowed)
                                    : scored_want(s, next_token(s, tokens, r));
        }
        adjusts += s->n_adjusts;
        allowed += s->n_allowed_words;
    }
    return n;
}

static int32_t clamp_count(int64_t n)
{
    return n > INT32_MAX ? INT32_MAX : (int32_t)n;
}

/* Turns counters and the rows' answers into one result per sequence. */
static struct status write_result(struct engine *e, const struct batch *b, const struct hidden *h,
                                  size_t n_wants)
{
    size_t at = 0; /* in wants and got, which follow the sequences' rows */
    const struct plan_top *tops = e->tops;
    for (size_t i = 0; i < b->n_seqs; i++) {
        struct result_seq r = {.id = b->seqs[i].id, .token = -1};
        int64_t n_bad = 0, n_dropped = 0;
        const size_t row_end = e->seqs[i].row0 + e->seqs[i].n_rows;
        for (size_t t = e->seqs[i].row0; t < row_end; t++) {
            n_bad += e->counters[t];
            n_dropped += e->counters[h->n_rows + t];
        }
        for (; at < n_wants && e->rows[at] < row_end; at++) {
            n_bad += e->got[at].n_bad;
            r.n_tops += e->wants[at].n_top;
            if ((e->wants[at].want & PLAN_SAMPLE) != 0) {
                r.token = e->got[at].token;
                r.logprob = e->got[at].token_logprob;
            }
            if ((e->wants[at].want & PLAN_LOGITS) != 0) r.n_logits++;
            if ((e->wants[at].want & PLAN_SCORE) == 0 || e->wants[at].target < 0) continue;
            e->scores[r.n_scores++] = e->got[at].logprob;
        }
        r.n_bad = clamp_count(n_bad);
        r.n_dropped = clamp_count(n_dropped);
        TRY(step_result_add(&e->result, &r));
        TRY(step_result_add_scores(&e->result, e->scores, (size_t)r.n_scores));
        TRY(step_result_add_tops(&e->result, tops, (size_t)r.n_tops));
        tops += r.n_tops;
    }
    return status_ok();
}

static struct status finish_batch(struct engine *e, uint64_t step, const struct batch *b,
                                  const struct hidden *h)
{
    const size_t n = list_wants(e, b);
    TRY(place_tops(e, n));
    step_result_clear(&e->result, step, (int32_t)e->place.dp, (int32_t)e->o.model->vocab);
    stage_final_norm(e->stage, h, e->rows, n, e->normed);
    /* the message's counters stand behind each other */
    if (e->place.tp == 0)
        mem_ops_get_later(e->o.kern, e->counters, h->bad, 2 * h->n_rows * sizeof *h->bad);
    TRY(vocab_parallel_run(e->vocab, &e->o.weights->head, e->normed, e->wants, n, e->got,
                           &e->result));
    if (e->place.tp != 0) return status_ok();
    mem_ops_arrive(e->o.kern);
    TRY(device_status(e->o.kern->device));
    TRY(write_result(e, b, h, n));
    const size_t slot = e->n_runs % N_RESULTS;
    await_sent(e, &e->result_sends[slot]);
    struct plan_message *m = &e->result_messages[slot];
    TRY(step_result_pack(&e->result, m));
    comm_send_start(e->o.comm, 0, COMM_TAG_RESULT, m->words, m->n_words * sizeof *m->words,
                    &e->result_sends[slot]);
    return status_ok();
}

/* Room for the hidden rows of this run, and unless they are embedded here, the rows. The next
 * receive is posted before any compute, so that the stage before never waits for this one. */
static struct status await_rows(struct engine *e, const struct batch *b, struct hidden *h)
{
    const size_t i = hidden_slot(e, e->n_runs);
    *h = hidden_view(e->hidden[i], b->n_rows, e->o.model->width);
    if (device_pipe_sends(e->o.kern)) device_pipe_claim(e->o.kern, (uint32_t)i);
    if (e->is_first) {
        await_sent(e, &e->sent[i]);
        return status_ok();
    }
    if (device_pipe_receives(e->o.kern)) {
        device_pipe_receive(e->o.kern, (uint32_t)i, e->hidden[i],
                            hidden_bytes(b->n_rows, e->o.model->width));
        return status_ok();
    }
    const uint64_t since = clock_ns();
    const size_t n_bytes = comm_wait(e->o.comm, &e->received[i]);
    mark_wait(e, TRACE_WAIT_ROWS, since);
    const size_t expected = hidden_bytes(b->n_rows, e->o.model->width);
    if (n_bytes != expected) {
        return status_make(STATUS_BUG, "hidden rows: expected %zu bytes for %zu rows, found %zu",
                           expected, b->n_rows, n_bytes);
    }
    mem_ops_put(e->o.kern, e->hidden[i], e->wire[i], n_bytes);
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
                 n_bytes = hidden_bytes(h->n_rows, e->o.model->width);
    if (device_pipe_sends(e->o.kern)) {
        device_pipe_send(e->o.kern, (uint32_t)i, h->h, n_bytes);
        return device_status(e->o.kern->device);
    }
    mem_ops_get(e->o.kern, e->wire[i], h->h, n_bytes);
    TRY(device_status(e->o.kern->device));
    comm_send_start(e->o.comm, rank_in_pipe(e, e->place.pp + 1), COMM_TAG_HIDDEN, e->wire[i],
                    n_bytes, &e->sent[i]);
    return status_ok();
}

/* All ranks of a stage say the same: experts are shared by replicas with steps of other sizes. */
static bool in_halves(const struct engine *e, const struct step_plan *plan)
{
    size_t most = 0;
    for (uint32_t r = 0; r < e->o.layout->dp; r++) {
        size_t n = 0;
        for (int32_t i = plan->replica_begin[r]; i < plan->replica_begin[r + 1]; i++)
            n += (size_t)plan->seqs[i].n_rows;
        most = n > most ? n : most;
    }
    return e->o.halves_from > 0 && most >= e->o.halves_from;
}

static struct status compute(struct engine *e, const struct step_plan *plan, const struct batch *b,
                             struct hidden *h)
{
    uint64_t since = clock_ns();
    if (e->is_first) {
        stage_embed(e->stage, b->tokens, h);
        since = mark(e, TRACE_EMBED, since);
    }
    TRY(stage_forward(e->stage, e->seqs, b->n_seqs, in_halves(e, plan), h));
    since = mark(e, TRACE_LAYERS, since);
    if (e->is_last) {
        TRY(finish_batch(e, e->step, b, h));
        mark(e, TRACE_HEAD, since);
    } else {
        TRY(send_rows(e, h));
    }
    if (device_pipe_receives(e->o.kern) && !device_pipe_sends(e->o.kern))
        device_pipe_release(e->o.kern, (uint32_t)hidden_slot(e, e->n_runs));
    return status_ok();
}

static struct status run_step(struct engine *e, const struct step_plan *plan)
{
    struct batch b;
    struct hidden h;
    struct trace *trace = comm_trace(e->o.comm);
    e->step = plan->step;
    comm_mark_step(e->o.comm, plan->step);
    TRY(open_batch(e, plan, &b));
    TRY(await_rows(e, &b, &h));
    const uint64_t since = clock_ns(), cpu = trace_cpu_ns(trace);
    const uint64_t comm_before = collective_ns(e), wait_before = e->stats.wait_ns;
    TRY(compute(e, plan, &b, &h));
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

/* The stage's root has the plan; all of the stage get it. For the others that is a wait. */
static void share_plan(struct engine *e, struct plan_message *m)
{
    const uint64_t since = clock_ns();
    uint64_t n_words = m->n_words;
    comm_broadcast(e->o.comm, COMM_STAGE, 0, &n_words, sizeof n_words);
    if (!e->is_stage_root) {
        m->n_words = 0;
        const struct status st = plan_message_reserve(m, n_words);
        if (status_failed(&st)) comm_abort(e->o.comm, status_exit(st.code));
        m->n_words = n_words;
    }
    comm_broadcast(e->o.comm, COMM_STAGE, 0, m->words, n_words * sizeof *m->words);
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
    struct outgoing_plan *out = &e->outgoing[e->n_submitted++ % (pp + 1)];
    for (uint32_t s = 1; s < pp; s++) comm_wait(e->o.comm, &out->sends[s]);
    TRY(step_plan_pack(plan, &out->message));
    for (uint32_t s = 1; s < pp; s++) {
        comm_send_start(e->o.comm, (int)layout_rank_of(e->o.layout, 0, s, 0), COMM_TAG_PLAN,
                        out->message.words, out->message.n_words * sizeof *out->message.words,
                        &out->sends[s]);
    }
    share_plan(e, &out->message);
    return plan->kind == PLAN_STOP ? status_ok() : run_step(e, plan);
}

static struct status receive_message(struct engine *e, int from, enum comm_tag tag)
{
    const uint64_t since = clock_ns();
    const size_t n_bytes = comm_probe(e->o.comm, from, tag);
    mark_wait(e, tag == COMM_TAG_PLAN ? TRACE_WAIT_PLAN : TRACE_WAIT_RESULT, since);
    e->incoming.n_words = 0;
    TRY(plan_message_reserve(&e->incoming, n_bytes / sizeof *e->incoming.words));
    comm_recv(e->o.comm, from, tag, e->incoming.words, n_bytes);
    e->incoming.n_words = n_bytes / sizeof *e->incoming.words;
    return status_ok();
}

struct status engine_collect(struct engine *e, int32_t replica, struct step_result *out)
{
    const int from = (int)layout_rank_of(e->o.layout, (uint32_t)replica, e->o.layout->pp - 1, 0);
    TRY(receive_message(e, from, COMM_TAG_RESULT));
    return step_result_unpack(e->incoming.words, e->incoming.n_words, out);
}

struct status engine_follow(struct engine *e)
{
    for (;;) {
        if (e->is_stage_root) TRY(receive_message(e, 0, COMM_TAG_PLAN));
        share_plan(e, &e->incoming);
        TRY(step_plan_unpack(e->incoming.words, e->incoming.n_words, &e->plan));
        if (e->plan.kind == PLAN_STOP) return status_ok();
        TRY(run_step(e, &e->plan));
    }
}

struct engine_stats engine_stats_of(const struct engine *e)
{
    struct engine_stats s = e->stats;
    s.peak_bytes = mem_peak_bytes();
    return s;
}

const struct stage *engine_stage(const struct engine *e)
{
    return e->stage;
}
