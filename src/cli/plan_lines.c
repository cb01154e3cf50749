/* Samples an input: runs of neighbouring lines, because neighbours often begin alike. */
#include "cli/plan_lines.h"

#include "serve/input/line_reader.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RUN_LINES = 64 };

/* Called for each line. */
typedef struct status line_fn(void *user, const struct line *line);

static struct status each_input_line(const struct input_files *inputs, line_fn *fn, void *user)
{
    struct line_reader *r = NULL;
    struct line line = {.kind = LINE_OK};
    TRY(line_reader_create_all(inputs, 0, &r));
    struct status st = line_reader_check(r);
    while (!status_failed(&st)) {
        st = line_reader_next(r, true, &line);
        if (status_failed(&st) || line.kind == LINE_END) break;
        if (line.kind == LINE_OK) st = fn(user, &line);
    }
    line_reader_destroy(&r);
    return st;
}

struct count {
    double n, bytes, squares;
};

static struct status count_line(void *user, const struct line *line)
{
    struct count *c = user;
    const double n = (double)line->n;
    c->n++;
    c->bytes += n;
    c->squares += n * n;
    return status_ok();
}

struct sample {
    FILE *to;
    double at, n_all, n_most, n;
};

/* Takes the line if its run is one of the evenly spread runs of the sample. */
static struct status sample_line(void *user, const struct line *line)
{
    struct sample *s = user;
    const double run = floor(s->at++ / RUN_LINES), part = s->n_most / s->n_all;
    if (floor((run + 1) * part) == floor(run * part)) return status_ok();
    s->n++;
    const bool written = fwrite(line->text, 1, line->n, s->to) == line->n && fputc('\n', s->to) > 0;
    return written ? status_ok() : status_make(STATUS_IO, "a sample of lines: %s", strerror(errno));
}

static struct status plan_lines_sample(const struct input_files *inputs, double n_most,
                                       struct plan_lines *out)
{
    struct sample s = {.n_all = out->n_all, .n_most = n_most};
    out->fd = memfd_create("shoal-plan", MFD_CLOEXEC);
    const int fd = out->fd < 0 ? -1 : dup(out->fd);
    s.to = fd < 0 ? NULL : fdopen(fd, "w");
    if (s.to == NULL) {
        const struct status st =
            status_make(STATUS_IO, "a file in memory for a sample of lines: %s", strerror(errno));
        if (fd >= 0) close(fd);
        return st;
    }
    struct status st = each_input_line(inputs, sample_line, &s);
    if (fclose(s.to) != 0 && !status_failed(&st))
        st = status_make(STATUS_IO, "a sample of lines: %s", strerror(errno));
    snprintf(out->path, sizeof out->path, "/proc/self/fd/%d", out->fd);
    out->n = s.n;
    return st;
}

struct status plan_lines_read(const struct input_files *inputs, double n_most,
                              struct plan_lines *out)
{
    struct count c = {0};
    *out = (struct plan_lines){.fd = -1};
    TRY(each_input_line(inputs, count_line, &c));
    if (c.n == 0) return status_make(STATUS_INPUT, "%s: has no lines", inputs->name);
    const double mean = c.bytes / c.n, variance = c.squares / c.n - mean * mean;
    out->n_all = out->n = c.n;
    out->spread = mean > 0 && variance > 0 ? sqrt(variance) / mean : 0;
    return c.n > n_most ? plan_lines_sample(inputs, n_most, out) : status_ok();
}

void plan_lines_fini(struct plan_lines *lines)
{
    if (lines->fd >= 0) close(lines->fd);
    lines->fd = -1;
}
