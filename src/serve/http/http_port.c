/* Turns calls into requests for the lead, and sends the lead's answers back. Runs on the lead's
 * thread. */
#include "serve/http/http_port.h"

#include "base/clock.h"
#include "base/mem.h"
#include "serve/http/batches.h"
#include "serve/http/http_server.h"
#include "serve/http/http_text.h"
#include "serve/lead/lead.h"
#include "serve/output/progress.h"
#include "serve/output/result_row.h"
#include "serve/output/result_stream.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

/* The most calls, and bytes of their bodies, that are read before a step, and the most memory of
 * all requests (one request may always run). Below: how long an idle lead waits for a call before
 * it looks for signals, how often it looks for clients that have gone, and how long sending the
 * last answers may take. */
enum { CALLS_PER_STEP = 256, BYTES_PER_STEP = 8 << 20, REQUESTS_BYTES_MAX = 256 << 20 };
static const uint64_t idle_ns = 200000000u, look_ns = 250000000u, flush_ns = 1000000000u;

static const char json[] = "application/json";

/* A call whose request the lead has. */
struct call {
    struct exchange *x;
    const struct request *r;
    struct result_stream *streams; /* [n_choices], owned; NULL: the answer is sent whole */
    size_t cost_bytes;             /* bounds the request's memory */
    bool is_cut;                   /* this round of the drain has cancelled it */
    struct call *prev, *next;
};

struct http_port {
    struct http_server *server;
    struct batches *batches;
    char *model_name;   /* owned */
    const char **names; /* owned: the model's name, the adapters' names, NULL */
    uint32_t drain_s;
    uint64_t drain_until_ns; /* 0: not asked to drain */
    uint64_t looked_ns;
    uint64_t n_calls; /* numbers given to calls so far */
    uint64_t n_rows, n_error_rows;
    struct http_ends ends;
    struct call *calls; /* a list; owned */
    size_t n_running, n_streams, cost_bytes;
    struct strbuf scratch;
};

/* ---- answers ---- */

static struct status answer_error(struct http_port *p, struct exchange *x, enum http_status status,
                                  const char *code, const char *message)
{
    strbuf_clear(&p->scratch);
    if (exchange_has_begun(x)) strbuf_puts(&p->scratch, "data: ");
    http_error(status, code, message, &p->scratch);
    if (!exchange_has_begun(x)) {
        exchange_answer(x, status, json, &p->scratch);
        return status_ok();
    }
    strbuf_puts(&p->scratch, "\n\n");
    exchange_write(x, &p->scratch);
    exchange_end(x);
    return status_ok();
}

static struct status answer_whole(struct http_port *p, const struct request_rules *rules,
                                  const struct request *r)
{
    strbuf_clear(&p->scratch);
    TRY(result_row_body(r, rules, NULL, &p->scratch));
    exchange_answer(r->call, HTTP_OK, json, &p->scratch);
    return status_ok();
}

static struct status end_stream(struct http_port *p, const struct request_rules *rules,
                                const struct request *r, struct call *c)
{
    strbuf_clear(&p->scratch);
    for (int32_t i = 0; i < r->ask->n_choices; i++)
        TRY(result_stream_write(&c->streams[i], result_row_choice(r, i), rules, NULL, &p->scratch));
    result_stream_end(r, NULL, &p->scratch);
    TRY(strbuf_status(&p->scratch));
    exchange_write(r->call, &p->scratch);
    exchange_end(r->call);
    return status_ok();
}

static void count_end(struct http_port *p, const struct request *r)
{
    p->n_rows++;
    if (r->error.code != NULL) {
        p->n_error_rows++;
        *(strcmp(r->error.code, REQUEST_CANCELLED_CODE) == 0 ? &p->ends.n_gone
                                                             : &p->ends.n_error) += 1;
    } else if (result_row_choice(r, 0)->finish == REQUEST_LENGTH) {
        p->ends.n_length++;
    } else {
        p->ends.n_stop++; /* a vector or a score counts as "stop" too */
    }
}

static void forget_call(struct http_port *p, struct call *c)
{
    *(c->prev != NULL ? &c->prev->next : &p->calls) = c->next;
    if (c->next != NULL) c->next->prev = c->prev;
    p->n_running--;
    p->cost_bytes -= c->cost_bytes;
    if (c->streams != NULL) p->n_streams--;
    mem_free(&c->streams);
    mem_free(&c);
}

static struct status port_put(void *user, struct lead *l, const struct request *r)
{
    struct http_port *p = user;
    if (r->call == NULL) {
        batches_put(p->batches, l, r);
        return status_ok();
    }
    struct call *c = exchange_state(r->call);
    struct status st;
    count_end(p, r);
    if (r->error.code != NULL) {
        st = answer_error(p, r->call, http_status_of(r->error.code), r->error.code,
                          r->error.message);
    } else if (c->streams != NULL) {
        st = end_stream(p, lead_rules(l), r, c);
    } else {
        st = answer_whole(p, lead_rules(l), r);
    }
    forget_call(p, c);
    return st;
}

/* ---- calls ---- */

/* Records the state that the port keeps for the request r of the call x until port_put. */
static struct status keep(struct http_port *p, struct exchange *x, struct request *r,
                          size_t cost_bytes)
{
    struct call *c = NULL;
    const bool streams = r->error.code == NULL && r->ask->streams;
    TRY(mem_alloc(&c, 1, sizeof *c, "call"));
    struct status st = status_ok();
    c->cost_bytes = cost_bytes;
    if (streams) st = mem_alloc(&c->streams, (size_t)r->ask->n_choices, sizeof *c->streams, "call");
    if (status_failed(&st)) {
        mem_free(&c);
        return st;
    }
    c->x = x;
    c->r = r;
    c->next = p->calls;
    if (p->calls != NULL) p->calls->prev = c;
    p->calls = c;
    p->n_running++;
    p->cost_bytes += cost_bytes;
    p->n_streams += streams;
    r->call = x;
    exchange_keep(x, c);
    return st;
}

static enum request_format request_format_of(enum http_endpoint endpoint)
{
    if (endpoint == HTTP_RERANK) return REQUEST_RERANK;
    return endpoint == HTTP_CHAT ? REQUEST_OPENAI_CHAT : REQUEST_OPENAI;
}

/* Returns NULL if the server's model does what the endpoint asks for, otherwise a sentence that
 * says what the model does. */
static const char *refusal_of(const struct request_rules *rules, enum http_endpoint endpoint)
{
    const bool embeds = rules->embed != NULL, ranks = embeds && rules->embed->rank.head != NULL;
    if (ranks && endpoint != HTTP_RERANK)
        return "is served as a model that scores documents for a query: POST /v1/rerank";
    if (embeds && !ranks && endpoint != HTTP_EMBEDDINGS)
        return "is served as a model that makes vectors of texts: POST /v1/embeddings";
    if (embeds || endpoint == HTTP_COMPLETIONS || endpoint == HTTP_CHAT) return NULL;
    return "is served as a model that generates text: POST /v1/completions or "
           "/v1/chat/completions; --task embed or --task rank serves it otherwise";
}

static struct status refuse_task(struct http_port *p, struct exchange *x, const char *refusal)
{
    char message[STATUS_TEXT_MAX];
    snprintf(message, sizeof message, "%.100s %s", p->model_name, refusal);
    return answer_error(p, x, HTTP_BAD_REQUEST, "unsupported", message);
}

static struct status take_call_request(struct http_port *p, struct lead *l, struct exchange *x)
{
    struct request *r = NULL;
    const char *id = exchange_id(x);
    const char *refusal = refusal_of(lead_rules(l), exchange_endpoint(x));
    if (refusal != NULL) return refuse_task(p, x, refusal);
    struct request_call call = {.format = request_format_of(exchange_endpoint(x)),
                                .number = ++p->n_calls,
                                .id = id[0] != '\0' ? id : NULL};
    call.body = exchange_body(x, &call.n_body);
    TRY(request_create_call(lead_rules(l), &call, &r));
    exchange_forget_body(x);
    r->arrived_ns = exchange_arrived_ns(x);
    const size_t cost_bytes = request_cost_bytes(r, lead_rules(l));
    if (p->n_running > 0 && p->cost_bytes + cost_bytes > REQUESTS_BYTES_MAX) {
        request_destroy(&r);
        return answer_error(p, x, HTTP_TOO_MANY, "too_many_requests",
                            "the requests of other calls fill the memory; try again later");
    }
    const struct status st = keep(p, x, r, cost_bytes);
    if (status_failed(&st)) {
        request_destroy(&r);
        return st;
    }
    return lead_take(l, r);
}

static struct status answer_text(struct http_port *p, struct lead *l, struct exchange *x)
{
    size_t n;
    const char *body = exchange_body(x, &n);
    enum http_status status = HTTP_OK;
    strbuf_clear(&p->scratch);
    if (exchange_endpoint(x) == HTTP_TOKENIZE) {
        TRY(http_tokenize(lead_rules(l), body, n, &status, &p->scratch));
    } else {
        TRY(http_detokenize(lead_rules(l), body, n, &status, &p->scratch));
    }
    exchange_answer(x, status, json, &p->scratch);
    return status_ok();
}

static struct status answer_metrics(struct http_port *p, struct lead *l, struct exchange *x)
{
    const struct scheduler_load load = lead_load(l);
    strbuf_clear(&p->scratch);
    http_metrics(lead_stats(l), &load, &p->ends, p->model_name, &p->scratch);
    TRY(strbuf_status(&p->scratch));
    exchange_answer(x, HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", &p->scratch);
    return status_ok();
}

static struct status take_call(struct http_port *p, struct lead *l, struct exchange *x)
{
    if (batches_has(exchange_endpoint(x))) return batches_call(p->batches, x);
    switch (exchange_endpoint(x)) {
    case HTTP_METRICS:
        return answer_metrics(p, l, x);
    case HTTP_TOKENIZE:
    case HTTP_DETOKENIZE:
        return answer_text(p, l, x);
    default:
        if (p->drain_until_ns == 0) return take_call_request(p, l, x);
        return answer_error(p, x, HTTP_UNAVAILABLE, HTTP_DRAINING_CODE, "the server is ending");
    }
}

/* Cancels the requests of clients that have gone away. */
static struct status cancel_gone(struct http_port *p, struct lead *l)
{
    const uint64_t now = clock_ns();
    if (p->n_running == 0 || now - p->looked_ns < look_ns) return status_ok();
    p->looked_ns = now;
    http_server_look(p->server);
    for (;;) {
        struct exchange *x = http_server_take_gone(p->server);
        if (x == NULL) return status_ok();
        const struct call *c = exchange_state(x);
        TRY(lead_cancel(l, c->r, REQUEST_CANCELLED_CODE, "its client has gone"));
    }
}

static struct status port_read(void *user, struct lead *l)
{
    struct http_port *p = user;
    uint64_t wait_ns = lead_is_idle(l) && !batches_has_work(p->batches) ? idle_ns : 0;
    size_t n, n_bytes = 0;
    if (p->n_streams > 0) http_server_send(p->server, clock_ns()); /* all replicas' pieces */
    for (int i = 0; i < CALLS_PER_STEP && n_bytes < BYTES_PER_STEP; i++) {
        struct exchange *x = http_server_take(p->server, wait_ns);
        wait_ns = 0;
        if (x == NULL) break;
        (void)exchange_body(x, &n);
        n_bytes += n;
        TRY(take_call(p, l, x));
    }
    TRY(cancel_gone(p, l));
    TRY(batches_read(p->batches, l));
    return lead_order(l);
}

/* ---- streams ---- */

struct pieces {
    struct http_port *p;
    const struct request_rules *rules;
    uint64_t now_ns;
};

/* Writes the new part of the running answer r if its stream is due. */
static struct status write_new_part(void *user, struct request *r)
{
    const struct pieces *all = user;
    const struct request *line = r->parent != NULL ? r->parent : r;
    if (line->call == NULL) return status_ok(); /* a line of a batch */
    const struct call *c = exchange_state(line->call);
    if (c->streams == NULL || line->choices.search != NULL) return status_ok();
    if (!exchange_is_due(c->x, all->p->n_streams, all->now_ns)) return status_ok();
    strbuf_clear(&all->p->scratch);
    TRY(result_stream_write(&c->streams[r->choice], r, all->rules, NULL, &all->p->scratch));
    exchange_write(c->x, &all->p->scratch);
    return status_ok();
}

static struct status port_commit(void *user, struct lead *l, int32_t group)
{
    struct http_port *p = user;
    struct pieces all = {p, lead_rules(l), clock_ns()};
    batches_commit(p->batches);
    return p->n_streams > 0 ? lead_visit(l, group, write_new_part, &all) : status_ok();
}

/* ---- the end ---- */

static bool port_is_at_end(const void *user)
{
    (void)user;
    return false; /* a server runs until it is asked to end */
}

static bool port_may_stop(void *user, struct lead *l)
{
    struct http_port *p = user;
    const uint64_t now = clock_ns();
    (void)l;
    if (p->drain_until_ns == 0) {
        http_server_refuse(p->server);
        batches_stop(p->batches);
        p->drain_until_ns = now + p->drain_s * 1000000000ull;
    }
    return p->n_running == 0 || now >= p->drain_until_ns;
}

static struct call *next_to_cut(const struct http_port *p)
{
    struct call *c = p->calls;
    while (c != NULL && c->is_cut) c = c->next;
    return c;
}

/* Cancels all calls. When a request is cancelled, a request that waited for its result may begin to
 * run; the next round cancels that one. */
static struct status port_drain(void *user, struct lead *l)
{
    struct http_port *p = user;
    for (size_t n_before = p->n_running + 1; p->n_running < n_before;) {
        n_before = p->n_running;
        for (struct call *c; (c = next_to_cut(p)) != NULL;) {
            c->is_cut = true;
            TRY(lead_cancel(l, c->r, HTTP_DRAINING_CODE, "the server ended before the answer did"));
        }
        for (struct call *c = p->calls; c != NULL; c = c->next) c->is_cut = false;
    }
    return status_ok();
}

static void port_save(void *user)
{
    struct http_port *p = user;
    batches_save(p->batches);
    http_server_fail_all(p->server, "a rank of this server was lost");
    http_server_flush(p->server, flush_ns);
}

static double port_end_s(const void *user)
{
    const struct http_port *p = user;
    return p->drain_s;
}

static struct status port_close(void *user)
{
    struct http_port *p = user;
    batches_close(p->batches);
    http_server_fail_all(p->server, "the server ended before the answer did");
    http_server_flush(p->server, flush_ns);
    return status_ok();
}

static void port_view(const void *user, struct progress_view *v)
{
    const struct http_port *p = user;
    v->n_done = p->n_rows;
    v->n_read = p->n_calls;
    v->read_fraction = -1;
}

static void port_sum(const void *user, struct serve_summary *s)
{
    const struct http_port *p = user;
    s->n_rows = p->n_rows;
    s->n_error_rows = p->n_error_rows;
}

struct lead_port http_port_of(struct http_port *p)
{
    return (struct lead_port){.user = p,
                              .read = port_read,
                              .is_at_end = port_is_at_end,
                              .put = port_put,
                              .commit = port_commit,
                              .may_stop = port_may_stop,
                              .drain = port_drain,
                              .save = port_save,
                              .end_s = port_end_s,
                              .close = port_close,
                              .view = port_view,
                              .sum = port_sum};
}

/* Copies the name of the checkpoint's file without its folder and its ".h5". */
static struct status name_model(const char *path, char **out)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    const char *end = strrchr(name, '.');
    const bool has_end = end != NULL && end > name && strcmp(end, ".h5") == 0;
    return mem_strndup(out, name, has_end ? (size_t)(end - name) : strlen(name));
}

/* Lists the model and the adapters as names. Errors: STATUS_USAGE for an adapter with the model's
 * name, STATUS_MEMORY. */
static struct status list_names(struct http_port *p, const struct http_port_options *o)
{
    TRY(mem_alloc(&p->names, o->n_adapters + 2, sizeof *p->names, "server"));
    TRY(name_model(o->model_path, &p->model_name));
    p->names[0] = p->model_name;
    for (size_t i = 0; i < o->n_adapters; i++) {
        if (strcmp(o->adapters[i].name, p->model_name) == 0)
            return status_make(STATUS_USAGE, "--adapter: \"%s\" is the model's own name",
                               p->model_name);
        p->names[i + 1] = o->adapters[i].name;
    }
    return status_ok();
}

struct status http_port_create(const struct http_port_options *o, struct http_port **out)
{
    struct http_port *p = NULL;
    *out = NULL;
    TRY(mem_alloc(&p, 1, sizeof *p, "server"));
    strbuf_init(&p->scratch);
    p->drain_s = o->flags->drain_s;
    struct status st = list_names(p, o);
    if (!status_failed(&st)) st = http_server_create(o->flags, p->names, &p->server);
    if (!status_failed(&st))
        st = batches_create(o->flags->batch_dir, o->settings, o->batch_endpoints, o->claims,
                            &p->batches);
    if (status_failed(&st)) http_port_destroy(&p);
    *out = p;
    return st;
}

/* Widens the caller's CPU set for a moment, because a new thread inherits the CPU set of the thread
 * that starts it. */
struct status http_port_start(struct http_port *p, struct team *team)
{
    cpu_set_t mine, all;
    TRY(team_cpus(team, &all));
    const bool is_known = sched_getaffinity(0, sizeof mine, &mine) == 0;
    if (is_known) (void)sched_setaffinity(0, sizeof all, &all);
    const struct status st = http_server_start(p->server);
    if (is_known) (void)sched_setaffinity(0, sizeof mine, &mine);
    return st;
}

void http_port_destroy(struct http_port **port)
{
    struct http_port *p = *port;
    if (p == NULL) return;
    http_server_destroy(&p->server);
    while (p->calls != NULL) forget_call(p, p->calls);
    batches_destroy(&p->batches);
    mem_free(&p->model_name);
    mem_free(&p->names);
    strbuf_fini(&p->scratch);
    mem_free(port);
}
