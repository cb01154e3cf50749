/* Turns calibration prompts into tokens. */
#include "job/calibration_set.h"

#include "base/log.h"
#include "base/mem.h"
#include "job/job_text.h"
#include "serve/input/line_reader.h"
#include "serve/request/request.h"

#include <string.h>

/* A set that grows. */
struct growing {
    struct calibration_set *s;
    size_t n_tokens, tokens_capacity, firsts_capacity, max_tokens;
};

static struct status add_sequence(struct growing *g, const int32_t *tokens, size_t n)
{
    struct calibration_set *s = g->s;
    if (n > g->max_tokens) n = g->max_tokens;
    if (g->n_tokens + n > g->tokens_capacity) {
        const size_t want = 2 * (g->n_tokens + n);
        TRY(mem_grow(&s->tokens, g->n_tokens, want, sizeof *s->tokens, "calibration set"));
        g->tokens_capacity = want;
    }
    if (s->n_seqs + 2 > g->firsts_capacity) {
        const size_t want = 2 * s->n_seqs + 64;
        TRY(mem_grow(&s->first, g->firsts_capacity, want, sizeof *s->first, "calibration set"));
        g->firsts_capacity = want;
    }
    memcpy(s->tokens + g->n_tokens, tokens, n * sizeof *tokens);
    g->n_tokens += n;
    s->first[++s->n_seqs] = g->n_tokens;
    return status_ok();
}

static struct status calibration_set_take_line(struct growing *g, const struct request_rules *rules,
                                               const struct line *line)
{
    struct request *r = NULL;
    struct status st = status_ok();
    if (line->kind == LINE_OK) TRY(request_create(rules, line->number, line->text, line->n, &r));
    if (r != NULL && r->error.code == NULL && r->n_prompt > 0) {
        st = add_sequence(g, r->tokens, r->n_prompt);
    } else {
        g->s->n_skipped++;
        log_line(LOG_WARN, "calibration line %llu is skipped: %s", (unsigned long long)line->number,
                 r != NULL && r->error.message != NULL ? r->error.message : "no prompt in it");
    }
    request_destroy(&r);
    return st;
}

static struct status read_lines(struct growing *g, const struct request_rules *rules,
                                struct line_reader *reader)
{
    struct line line;
    for (;;) {
        TRY(line_reader_next(reader, true, &line));
        if (line.kind == LINE_END) return status_ok();
        if (line.kind != LINE_WAIT) TRY(calibration_set_take_line(g, rules, &line));
    }
}

static struct status read_calibration(struct growing *g, const char *path, const struct ckpt *c,
                                      const struct arch *m)
{
    struct job_text text;
    struct line_reader *reader = NULL;
    struct status st;
    TRY_GOTO(st, job_text_open(&text, c, m), out);
    TRY_GOTO(st, line_reader_create(path, 0, &reader), out);
    TRY_GOTO(st, line_reader_check(reader), out);
    const struct request_rules rules = {.defaults = text.defaults,
                                        .tokenizer = text.tokenizer,
                                        .chat = text.chat,
                                        .chat_missing = text.chat_missing,
                                        .date = text.date,
                                        .end_ids = text.end_ids,
                                        .n_end_ids = text.n_end_ids,
                                        .vocab_size = (int32_t)m->vocab,
                                        .max_model_len = INT32_MAX,
                                        .score = true};
    st = read_lines(g, &rules, reader);
    if (!status_failed(&st) && g->s->n_seqs == 0) {
        st = status_make(STATUS_INPUT, "no line with a prompt, of %zu", g->s->n_skipped);
    }
out:
    line_reader_destroy(&reader);
    job_text_fini(&text);
    return status_wrap(st, "--calibration %s", path);
}

/* Gives rank 0's set to all ranks. */
static struct status share(struct calibration_set *s, struct comm *comm)
{
    const bool is_lead = comm_rank(comm, COMM_WORLD) == 0;
    uint64_t sizes[2] = {s->n_seqs, is_lead ? s->first[s->n_seqs] : 0};
    struct status st = status_ok();
    comm_broadcast(comm, COMM_WORLD, 0, sizes, sizeof sizes);
    if (!is_lead) {
        s->n_seqs = sizes[0];
        st = mem_alloc(&s->first, s->n_seqs + 1, sizeof *s->first, "calibration set");
        if (!status_failed(&st)) {
            st = mem_alloc(&s->tokens, sizes[1], sizeof *s->tokens, "calibration set");
        }
    }
    TRY(comm_agree(comm, st));
    comm_broadcast(comm, COMM_WORLD, 0, s->first, (s->n_seqs + 1) * sizeof *s->first);
    comm_broadcast(comm, COMM_WORLD, 0, s->tokens, sizes[1] * sizeof *s->tokens);
    return status_ok();
}

struct status calibration_set_read(struct calibration_set *s, const char *path, size_t max_tokens,
                                   const struct ckpt *c, const struct arch *m, struct comm *comm)
{
    struct growing g = {.s = s, .max_tokens = max_tokens};
    struct status st = status_ok();
    *s = (struct calibration_set){0};
    if (comm_rank(comm, COMM_WORLD) == 0) st = read_calibration(&g, path, c, m);
    TRY(comm_agree(comm, st));
    return share(s, comm);
}

void calibration_set_fini(struct calibration_set *s)
{
    mem_free(&s->tokens);
    mem_free(&s->first);
}
