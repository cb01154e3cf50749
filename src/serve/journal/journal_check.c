/* The input against the journal, before anything runs. */
#include "serve/journal/journal_private.h"

struct status journal_line_changed(const char *input_path, uint64_t line)
{
    return status_make(STATUS_INPUT,
                       "input %s, line %llu: it changed since the job began; put it back, or begin "
                       "anew with --restart",
                       input_path, (unsigned long long)line);
}

struct status journal_input_grew(const char *input_path, uint64_t n_lines)
{
    return status_make(STATUS_INPUT,
                       "input %s: the finished job had %llu lines, found more; take them out, or "
                       "begin anew with --restart",
                       input_path, (unsigned long long)n_lines);
}

static struct status check_lines(const struct journal *j, struct journal_index *x,
                                 struct line_reader *reader, const char *input_path)
{
    struct line line = {.kind = LINE_OK};
    struct journal_hit hit;
    while (line.number < j->facts.last_line) {
        TRY(line_reader_next(reader, true, &line));
        if (line.kind == LINE_END) {
            return status_make(STATUS_INPUT,
                               "input %s: the job began with at least %llu lines, found fewer; put "
                               "them back, or begin anew with --restart",
                               input_path, (unsigned long long)j->facts.last_line);
        }
        if (line.kind == LINE_WAIT) continue;
        TRY(journal_index_find(x, line.number, &hit));
        const struct line_digest d = line_digest_of(&line);
        if (hit.kind != JOURNAL_HIT_NONE &&
            (d.low != hit.digest.low || d.high != hit.digest.high)) {
            return journal_line_changed(input_path, line.number);
        }
    }
    if (!j->facts.is_complete) return status_ok();
    TRY(line_reader_next(reader, true, &line));
    if (line.kind == LINE_END) return status_ok();
    return journal_input_grew(input_path, j->facts.end_lines);
}

struct status journal_check_input(const struct journal *j, const char *input_path,
                                  const struct input_part *part)
{
    struct journal_index *x = NULL;
    struct line_reader *reader = NULL;
    struct status st = journal_index_create(j->fd, j->path, &j->facts, &x);
    if (!status_failed(&st)) st = line_reader_create(input_path, 0, &reader);
    if (!status_failed(&st) && part != NULL) st = line_reader_set_part(reader, part);
    if (!status_failed(&st)) st = check_lines(j, x, reader, input_path);
    line_reader_destroy(&reader);
    journal_index_destroy(&x);
    return st;
}
