/* Measures clocks against rank 0's, and writes the file. */
#include "job/trace_file.h"

#include "base/clock.h"
#include "base/file_replace.h"
#include "base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* --- clocks ------------------------------------------------------------------------------- */

enum { ROUND_TRIPS = 16 };

static void send_word(struct comm *c, int to, uint64_t word)
{
    struct comm_request r = {0};
    comm_send_start(c, to, COMM_TAG_CLOCK, &word, sizeof word, &r);
    comm_wait(c, &r);
}

static uint64_t receive_word(struct comm *c, int from)
{
    uint64_t word = 0;
    comm_recv(c, from, COMM_TAG_CLOCK, &word, sizeof word);
    return word;
}

/* Rank 0's side: asks one rank for its time. */
static struct trace_clock ask_clock(struct comm *c, int rank)
{
    struct trace_clock best = {.error_ns = UINT64_MAX};
    for (int i = 0; i < ROUND_TRIPS; i++) {
        const uint64_t asked = clock_ns();
        send_word(c, rank, 0);
        const uint64_t theirs = receive_word(c, rank);
        const uint64_t half = (clock_ns() - asked) / 2;
        if (half >= best.error_ns) continue;
        best = (struct trace_clock){
            .at_ns = theirs, .offset_ns = (int64_t)(theirs - (asked + half)), .error_ns = half};
    }
    const uint64_t size = (uint64_t)(best.offset_ns < 0 ? -best.offset_ns : best.offset_ns);
    if (size <= best.error_ns) best.offset_ns = 0;
    return best;
}

static struct trace_clock tell_clock(struct comm *c)
{
    for (int i = 0; i < ROUND_TRIPS; i++) {
        (void)receive_word(c, 0);
        send_word(c, 0, clock_ns());
    }
    struct trace_clock mine;
    mine.at_ns = receive_word(c, 0);
    mine.offset_ns = (int64_t)receive_word(c, 0);
    mine.error_ns = receive_word(c, 0);
    return mine;
}

struct trace_clock trace_clock_measure(struct comm *c)
{
    if (comm_rank(c, COMM_WORLD) != 0) return tell_clock(c);
    for (int rank = 1; rank < comm_size(c, COMM_WORLD); rank++) {
        const struct trace_clock theirs = ask_clock(c, rank);
        send_word(c, rank, theirs.at_ns);
        send_word(c, rank, (uint64_t)theirs.offset_ns);
        send_word(c, rank, theirs.error_ns);
    }
    return (struct trace_clock){.at_ns = clock_ns()};
}

uint64_t trace_clock_map(const struct trace_clock clocks[2], uint64_t ns)
{
    const double span = (double)(int64_t)(clocks[1].at_ns - clocks[0].at_ns);
    const double at = (double)(int64_t)(ns - clocks[0].at_ns);
    double offset = (double)(clocks[1].offset_ns - clocks[0].offset_ns);
    offset = span > 0 ? offset * (at / span) : 0;
    return ns - (uint64_t)(clocks[0].offset_ns + (int64_t)offset);
}

/* --- events ------------------------------------------------------------------------------- */

struct kind_text {
    const char *name, *category, *counts[TRACE_COUNTS];
};

static const struct kind_text kinds[TRACE_KIND_COUNT] = {
#define X(name, text, category, a, b, c, d) {text, category, {a, b, c, d}},
    TRACE_KINDS(X)
#undef X
};

/* Appends a time in microseconds with three decimals, i.e. in whole nanoseconds, so that spans stay
 * nested. */
static void print_us(struct strbuf *out, const char *name, int64_t ns)
{
    const uint64_t size = ns < 0 ? (uint64_t)-ns : (uint64_t)ns;
    strbuf_printf(out, ",\"%s\":%s%" PRIu64 ".%03" PRIu64, name, ns < 0 ? "-" : "", size / 1000,
                  size % 1000);
}

static void print_args(const struct trace_event *e, struct strbuf *out)
{
    const struct kind_text *kind = &kinds[e->kind];
    const char *comma = "";
    strbuf_puts(out, ",\"args\":{");
    if (e->kind == TRACE_COMM) {
        strbuf_printf(out, "\"axis\":\"%s\"", comm_axis_name(e->axis));
        if (e->layer != FLIGHT_NO_LAYER) strbuf_printf(out, ",\"layer\":%d", e->layer);
        comma = ",";
    }
    const bool is_value = e->kind == TRACE_LOAD || e->kind == TRACE_BLOCKS;
    if (e->step != FLIGHT_NO_STEP && !is_value) {
        strbuf_printf(out, "%s\"step\":%" PRIu64, comma, e->step);
        comma = ",";
    }
    for (int i = 0; i < TRACE_COUNTS; i++) {
        if (kind->counts[i] == NULL) continue;
        strbuf_printf(out, "%s\"%s\":%" PRIu64, comma, kind->counts[i], e->counts[i]);
        comma = ",";
    }
    strbuf_puts(out, "}}");
}

void trace_event_print(const struct trace_event *e, uint32_t rank,
                       const struct trace_clock clocks[2], uint64_t origin_ns, struct strbuf *out)
{
    if (e->kind >= TRACE_KIND_COUNT) return;
    const struct kind_text *kind = &kinds[e->kind];
    const bool is_value = e->kind == TRACE_LOAD || e->kind == TRACE_BLOCKS;
    const char *name = e->kind == TRACE_COMM ? flight_op_name(e->op) : kind->name;
    const uint64_t begin = trace_clock_map(clocks, e->begin_ns);
    const uint64_t end = trace_clock_map(clocks, e->end_ns);
    strbuf_printf(out, ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"%s\",\"pid\":%u,\"tid\":0",
                  name, kind->category, is_value ? "C" : "X", rank);
    print_us(out, "ts", (int64_t)(begin - origin_ns));
    if (!is_value) print_us(out, "dur", (int64_t)(end - begin));
    print_args(e, out);
}

/* --- the file ----------------------------------------------------------------------------- */

/* The state of the writing; `text` collects text until it is flushed. */
struct writer {
    FILE *file;
    struct strbuf text;
    const struct layout *layout;
    uint64_t origin_ns, n_lost;
    uint32_t n_ranks; /* written */
    struct status st; /* the first failure */
};

enum { FLUSH_BYTES = 1 << 20 };

static void flush(struct writer *w)
{
    const struct status text = strbuf_status(&w->text);
    if (!status_failed(&w->st)) w->st = text;
    if (!status_failed(&w->st) && w->text.n > 0 &&
        fwrite(w->text.data, 1, w->text.n, w->file) != w->text.n) {
        w->st = status_make(STATUS_IO, "the trace cannot be written: %s", strerror(errno));
    }
    strbuf_clear(&w->text);
}

/* Names a rank and sorts it by stage. */
static void write_rank(struct writer *w, uint32_t rank)
{
    const struct layout_place p = layout_place_of(w->layout, rank);
    const uint32_t order = (p.pp * w->layout->dp + p.dp) * w->layout->tp + p.tp;
    strbuf_printf(
        &w->text,
        "%s\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%u,\"args\":{\"name\":\"stage "
        "%u, dp %u, tp %u\"}},\n{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%u,"
        "\"args\":{\"sort_index\":%u}},\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%u,"
        "\"tid\":0,\"args\":{\"name\":\"%s\"}}",
        w->n_ranks++ == 0 ? "" : ",", rank, p.pp, p.dp, p.tp, rank, order, rank,
        rank == 0 ? "lead and steps" : "steps");
}

static void write_part(struct writer *w, uint32_t rank, const struct trace_part *part,
                       const struct trace_event *events)
{
    write_rank(w, rank);
    for (uint64_t i = 0; i < part->n_events; i++) {
        trace_event_print(&events[i], rank, part->clocks, w->origin_ns, &w->text);
        if (w->text.n > FLUSH_BYTES) flush(w);
    }
    w->n_lost += part->n_lost;
}

static void write_end(struct writer *w)
{
    strbuf_printf(&w->text,
                  "\n],\"displayTimeUnit\":\"ms\",\"otherData\":{\"shoal\":\"%s\",\"clock\":\"of "
                  "rank 0\",\"lost_events\":%" PRIu64 "}}\n",
                  SHOAL_VERSION, w->n_lost);
    flush(w);
}

/* Rank 0 receives the parts one after another. It receives every part, whatever fails. */
static void trace_file_gather(struct comm *c, struct writer *w, const struct trace_part *mine,
                              struct trace_event *events)
{
    strbuf_puts(&w->text, "{\"traceEvents\":[");
    write_part(w, 0, mine, events);
    for (int rank = 1; rank < comm_size(c, COMM_WORLD); rank++) {
        struct trace_part part;
        comm_recv(c, rank, COMM_TAG_TRACE, &part, sizeof part);
        comm_recv(c, rank, COMM_TAG_TRACE, events, part.n_events * sizeof *events);
        write_part(w, (uint32_t)rank, &part, events);
    }
    write_end(w);
}

static void send_part(struct comm *c, const struct trace_part *mine,
                      const struct trace_event *events)
{
    struct comm_request part = {0}, all = {0};
    comm_send_start(c, 0, COMM_TAG_TRACE, mine, sizeof *mine, &part);
    comm_send_start(c, 0, COMM_TAG_TRACE, events, mine->n_events * sizeof *events, &all);
    comm_wait(c, &part);
    comm_wait(c, &all);
}

struct status trace_file_write(struct comm *c, const struct layout *l, const struct trace *t,
                               struct trace_clock start, uint64_t origin_ns, const char *path)
{
    struct trace_part mine = {.clocks = {start, trace_clock_measure(c)}};
    const bool writes = comm_rank(c, COMM_WORLD) == 0;
    struct writer w = {.layout = l, .origin_ns = origin_ns, .st = status_ok()};
    struct file_replace out = {0};
    struct trace_event *events = NULL;
    strbuf_init(&w.text);
    /* every ring is as large as this one, so this holds any rank's events */
    struct status st = mem_alloc(&events, trace_capacity(t), sizeof *events, "trace");
    if (!status_failed(&st) && writes) st = file_replace_begin(&out, path);
    st = comm_agree(c, st);
    if (status_failed(&st)) goto done;
    mine.n_events = trace_count(t); /* counted now: if communication is still traced, gathering adds
                                       events */
    mine.n_lost = trace_n_lost(t);
    trace_copy(t, events);
    w.file = out.file;
    if (writes) {
        trace_file_gather(c, &w, &mine, events);
    } else {
        send_part(c, &mine, events);
    }
    st = w.st;
    if (writes) st = file_replace_end(&out, st);
    st = comm_agree(c, st);
done:
    if (out.file != NULL) (void)file_replace_end(&out, st);
    strbuf_fini(&w.text);
    mem_free(&events);
    return st;
}

struct status trace_file_write_alone(const struct trace_alone *a)
{
    struct trace_part part = {.clocks = {a->start, a->start}};
    struct writer w = {.layout = a->layout, .origin_ns = a->origin_ns, .st = status_ok()};
    struct file_replace out = {0};
    struct trace_event *events = NULL;
    struct strbuf path;
    strbuf_init(&path);
    strbuf_init(&w.text);
    strbuf_printf(&path, "%s.rank%u", a->path, a->rank);
    struct status st = strbuf_status(&path);
    if (!status_failed(&st))
        st = mem_alloc(&events, trace_capacity(a->trace), sizeof *events, "trace");
    if (!status_failed(&st)) st = file_replace_begin(&out, path.data);
    if (!status_failed(&st)) {
        part.n_events = trace_copy_beside(a->trace, events, &part.n_lost);
        w.file = out.file;
        strbuf_puts(&w.text, "{\"traceEvents\":[");
        write_part(&w, a->rank, &part, events);
        write_end(&w);
        st = file_replace_end(&out, w.st);
    }
    strbuf_fini(&w.text);
    strbuf_fini(&path);
    mem_free(&events);
    return st;
}
