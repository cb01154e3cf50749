/* Merges the BASE records, which are in order, with the later records (the tail), which nearly are:
 *
 *   base cursor one record ahead of the requested line
 *   tail cursor read as far as needed; lines not requested yet wait in a ring of slots
 *                 [line, line + n_slots), each with its row's offset or its saved tokens */
#include "serve/journal/journal_index.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

/* The number of slots at first; and the number of lines by which a record may be ahead of the
 * requested line before the journal counts as damaged. */
enum { SLOTS_FIRST = 1024, SPAN_MAX = 1 << 22 };

/* The records found so far of one line, the requested one or a later one; line 0: a free slot. */
struct slot {
    uint64_t line;
    uint64_t row_at; /* offset of the row's record in the file; 0: no row */
    struct line_digest digest;
    struct journal_part *parts; /* [n_parts], owned, and so are their bytes */
    size_t n_parts, parts_capacity;
};

struct journal_index {
    struct journal_cursor base, tail, random;
    struct journal_record base_next;
    bool base_has;
    struct slot *slots; /* [n_slots], a power of two; line l is in slots[l % n_slots] */
    size_t n_slots;
    uint64_t line; /* the last one requested; slots of lower lines are free */
    struct journal_hit hit;
};

static void drop_parts(struct slot *s)
{
    for (size_t i = 0; i < s->n_parts; i++) mem_free(&s->parts[i].bytes);
    mem_free(&s->parts);
    s->n_parts = s->parts_capacity = 0;
}

struct status journal_index_create(int fd, const char *path, const struct journal_facts *facts,
                                   struct journal_index **out)
{
    *out = NULL;
    struct journal_index *x = NULL;
    TRY(mem_alloc(&x, 1, sizeof *x, "journal index"));
    x->n_slots = SLOTS_FIRST;
    x->base = x->tail = x->random = (struct journal_cursor){.fd = fd, .path = path};
    x->base.at = facts->rows_begin;
    x->base.end = x->tail.at = facts->base_end;
    x->tail.end = x->random.end = facts->good_bytes;
    x->random.read_bytes = 4096;
    struct status st = mem_alloc(&x->slots, x->n_slots, sizeof *x->slots, "journal index");
    if (!status_failed(&st)) st = journal_cursor_next(&x->base, &x->base_next, &x->base_has);
    if (status_failed(&st)) {
        journal_index_destroy(&x);
        return st;
    }
    *out = x;
    return st;
}

void journal_index_destroy(struct journal_index **index)
{
    struct journal_index *x = *index;
    if (x == NULL) return;
    for (size_t i = 0; x->slots != NULL && i < x->n_slots; i++) drop_parts(&x->slots[i]);
    mem_free(&x->slots);
    journal_cursor_fini(&x->base);
    journal_cursor_fini(&x->tail);
    journal_cursor_fini(&x->random);
    mem_free(index);
}

static struct status journal_index_grow(struct journal_index *x)
{
    const size_t n = 2 * x->n_slots;
    struct slot *slots = NULL;
    TRY(mem_alloc(&slots, n, sizeof *slots, "journal index"));
    for (size_t i = 0; i < x->n_slots; i++) {
        if (x->slots[i].line != 0) slots[x->slots[i].line & (n - 1)] = x->slots[i];
    }
    mem_free(&x->slots);
    x->slots = slots;
    x->n_slots = n;
    return status_ok();
}

/* Returns the slot of `line`, which is at least x->line; takes a free one if the line has none.
 * Lines in [x->line, x->line + n_slots) never collide. */
static struct status journal_index_slot_of(struct journal_index *x, uint64_t line,
                                           struct slot **out)
{
    if (line - x->line >= SPAN_MAX) {
        return status_make(STATUS_INPUT,
                           "journal %s: damaged: line %llu stands where line %llu is expected; "
                           "begin anew with --restart",
                           x->tail.path, (unsigned long long)line, (unsigned long long)x->line);
    }
    while (line - x->line >= x->n_slots) TRY(journal_index_grow(x));
    *out = &x->slots[line & (x->n_slots - 1)];
    if ((*out)->line == 0) (*out)->line = line;
    assert((*out)->line == line);
    return status_ok();
}

/* Returns the answer to which a record belongs, and makes it if the record begins it; NULL if the
 * record continues an answer that never began. */
static struct status journal_index_part_of(struct slot *s, size_t number, bool begins,
                                           struct journal_part **out)
{
    *out = NULL;
    if (number >= s->n_parts && !begins) return status_ok();
    if (number >= s->parts_capacity) {
        const size_t grown = number + 1 + number / 2;
        TRY(mem_grow(&s->parts, s->n_parts, grown, sizeof *s->parts, "journal index"));
        s->parts_capacity = grown;
    }
    if (number >= s->n_parts) s->n_parts = number + 1;
    *out = &s->parts[number];
    return status_ok();
}

/* Appends a record's items to its answer, or replaces the answer. Ignores a record that does not
 * continue the items so far. */
static struct status take_partial(struct slot *s, const struct journal_record *r)
{
    struct journal_part *p = NULL;
    const size_t item_bytes = r->values[3] == 0 ? sizeof(int32_t) : r->values[3];
    const size_t n = r->n_bytes / item_bytes;
    if (r->values[2] >= JOURNAL_PARTS_MAX || n == 0 || n * item_bytes != r->n_bytes)
        return status_ok();
    TRY(journal_index_part_of(s, r->values[2], r->values[0] == 0, &p));
    if (p == NULL) return status_ok();
    if (r->values[0] == 0) {
        p->n_items = 0;
        p->item_bytes = item_bytes;
    }
    if (r->values[0] != p->n_items || item_bytes != p->item_bytes) return status_ok();
    const size_t n_had = p->n_items * item_bytes, n_needed = n_had + r->n_bytes;
    if (n_needed > p->capacity) {
        TRY(mem_grow(&p->bytes, n_had, 2 * n_needed, 1, "journal index"));
        p->capacity = 2 * n_needed;
    }
    memcpy(p->bytes + n_had, r->bytes, r->n_bytes);
    p->n_items += n;
    p->n_dropped = r->values[1];
    s->digest = r->digest;
    return status_ok();
}

static void hit_row(struct journal_hit *hit, const struct journal_record *r)
{
    *hit = (struct journal_hit){.kind = JOURNAL_HIT_ROW,
                                .digest = r->digest,
                                .row = journal_row_unpack(r->values),
                                .text = r->bytes,
                                .n_text = r->n_bytes};
}

/* Reads the next record of the tail into its line's slot. *more is false at the end. */
static struct status read_tail(struct journal_index *x, bool *more)
{
    const uint64_t at = x->tail.at;
    struct journal_record r;
    struct slot *s = NULL;
    TRY(journal_cursor_next(&x->tail, &r, more));
    const bool wanted = *more && (r.type == JOURNAL_ROW || r.type == JOURNAL_PARTIAL);
    if (!wanted || r.line < x->line) return status_ok();
    TRY(journal_index_slot_of(x, r.line, &s));
    if (s->row_at != 0) return status_ok();
    if (r.type == JOURNAL_PARTIAL) return take_partial(s, &r);
    s->row_at = at;
    if (r.line == x->line) hit_row(&x->hit, &r);
    s->digest = r.digest;
    drop_parts(s);
    return status_ok();
}

static struct status read_row(struct journal_index *x, uint64_t at, struct journal_hit *hit)
{
    struct journal_record r;
    bool found;
    x->random.at = at;
    TRY(journal_cursor_next(&x->random, &r, &found));
    if (!found) {
        return status_make(STATUS_IO,
                           "journal %s: the record at byte %llu changed while it was "
                           "read",
                           x->random.path, (unsigned long long)at);
    }
    hit_row(hit, &r);
    return status_ok();
}

/* Frees the slots of lines below `line`. */
static void move_to(struct journal_index *x, uint64_t line)
{
    uint64_t last = line;
    if (last - x->line > x->n_slots) last = x->line + x->n_slots;
    for (uint64_t l = x->line; l < last; l++) {
        struct slot *s = &x->slots[l & (x->n_slots - 1)];
        drop_parts(s);
        *s = (struct slot){.line = 0};
    }
    x->line = line;
}

/* Reads the tail until it finds the line's row, or to its end, where all saved tokens of the line
 * are known. */
static struct status hit_in_tail(struct journal_index *x, uint64_t line)
{
    const struct slot *s = &x->slots[line & (x->n_slots - 1)];
    for (bool more = true; more && (s->line != line || s->row_at == 0);) {
        TRY(read_tail(x, &more));
        s = &x->slots[line & (x->n_slots - 1)]; /* reading may have grown the ring */
    }
    if (s->line != line) return status_ok();
    if (s->row_at != 0) { /* if this call read the row, x->hit already has it */
        return x->hit.kind == JOURNAL_HIT_NONE ? read_row(x, s->row_at, &x->hit) : status_ok();
    }
    if (s->n_parts > 0) {
        x->hit = (struct journal_hit){.kind = JOURNAL_HIT_PARTIAL,
                                      .digest = s->digest,
                                      .parts = s->parts,
                                      .n_parts = s->n_parts};
    }
    return status_ok();
}

struct status journal_index_find(struct journal_index *x, uint64_t line, struct journal_hit *hit)
{
    assert(line >= x->line && line > 0);
    if (line != x->line) {
        move_to(x, line);
        x->hit = (struct journal_hit){.kind = JOURNAL_HIT_NONE};
        while (x->base_has && x->base_next.line < line) {
            TRY(journal_cursor_next(&x->base, &x->base_next, &x->base_has));
        }
        if (x->base_has && x->base_next.line == line) {
            hit_row(&x->hit, &x->base_next);
        } else {
            TRY(hit_in_tail(x, line));
        }
    }
    *hit = x->hit;
    return status_ok();
}

/* Looks only at the slots and the base cursor: a journal_index_find without a row has read the tail
 * to its end. */
uint64_t journal_index_next(const struct journal_index *x)
{
    const uint64_t next = x->base_has ? x->base_next.line : UINT64_MAX;
    for (uint64_t i = 1; i < x->n_slots && i < next - x->line; i++) {
        if (x->slots[(x->line + i) & (x->n_slots - 1)].line == x->line + i) return x->line + i;
    }
    return next;
}
