/* Hidden rows in the part of --save-logprobs: written step by step, read line by line. */
#include "serve/output/logprobs_part_private.h"

#include "base/mem.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

static const char rows_magic[8] = "SHOALR1\n";

/* The head of the rows of a step. */
struct rows_head {
    char magic[8];
    uint64_t n_bytes;  /* of rows, after the head */
    uint64_t checksum; /* XXH3-64 of the members before it */
};

/* A place of an answer's rows, as stored in its line's record. */
struct stored_rows {
    uint64_t at, checksum;
    uint32_t n_all, n; /* rows that the checksum covers; the first n of them are the answer's */
};

static struct rows_head head_of(uint64_t n_bytes)
{
    struct rows_head head = {.n_bytes = n_bytes};
    memcpy(head.magic, rows_magic, sizeof rows_magic);
    head.checksum = XXH3_64bits(&head, offsetof(struct rows_head, checksum));
    return head;
}

struct status logprobs_part_put_rows(struct logprobs_part *p, const char *rows, size_t n_bytes,
                                     uint64_t *at)
{
    const struct rows_head head = head_of(n_bytes);
    *at = p->n + sizeof head;
    TRY(part_write(p->path, p->fd, &head, sizeof head, p->n));
    TRY(part_write(p->path, p->fd, rows, n_bytes, *at));
    p->n = *at + n_bytes;
    return status_ok();
}

/* Rows are not read here: a torn file ends within them, and the checksums of their places tell
 * later whether they are damaged. */
struct status part_skip_rows(const struct logprobs_part *p, uint64_t *at)
{
    struct rows_head head;
    struct stat info;
    size_t n;
    for (;;) {
        TRY(part_read(p->path, p->fd, &head, sizeof head, *at, &n));
        if (n < sizeof head) return status_ok();
        const struct rows_head expected = head_of(head.n_bytes);
        if (memcmp(&head, &expected, sizeof head) != 0) return status_ok();
        if (fstat(p->fd, &info) != 0) return part_error(p->path, "reading", *at, errno);
        if (head.n_bytes > (uint64_t)info.st_size - *at - sizeof head) return status_ok();
        *at += sizeof head + head.n_bytes;
    }
}

/* Appends the places of r's hidden rows for the tokens before `end`. Returns the number of rows. */
static uint64_t add_places_before(struct logprobs_part *p, const struct request *r, size_t end,
                                  uint32_t *n_places)
{
    uint64_t n_rows = 0;
    for (size_t i = 0; i < r->hidden.n_runs && r->hidden.runs[i].from < end; i++) {
        const struct request_rows *run = &r->hidden.runs[i];
        const size_t n = end - run->from < run->n ? end - run->from : run->n;
        const struct stored_rows place = {
            .at = run->at, .checksum = run->checksum, .n_all = (uint32_t)run->n, .n = (uint32_t)n};
        strbuf_add(&p->record, (const char *)&place, sizeof place);
        n_rows += n;
        ++*n_places;
    }
    return n_rows;
}

/* Returns how many tokens of the prompt have their rows in its first answer only, not in c. */
static size_t n_shared(const struct logprobs_part *p, const struct request *c,
                       const struct request *first)
{
    if (c == first || p->o.span == HIDDEN_ANSWERS) return 0;
    return p->o.span == HIDDEN_GIVEN ? c->n_prompt : c->n_prompt - 1;
}

uint64_t part_add_places(struct logprobs_part *p, const struct request *c,
                         const struct request *first)
{
    const size_t count_at = p->record.n;
    uint32_t n_places = 0;
    strbuf_add(&p->record, (const char *)&n_places, sizeof n_places);
    uint64_t n_rows = add_places_before(p, first, n_shared(p, c, first), &n_places);
    n_rows += add_places_before(p, c, SIZE_MAX, &n_places);
    if (!p->record.failed) memcpy(p->record.data + count_at, &n_places, sizeof n_places);
    return n_rows;
}

/* Copies the rows of one place. *good is false if they are damaged. */
static struct status copy_place(struct logprobs_part *p, struct logprobs_file *f,
                                const struct stored_rows *place, bool *good)
{
    const size_t n_bytes = (size_t)place->n_all * logprobs_hidden_bytes(&p->o.shape);
    size_t n;
    if (n_bytes > p->rows_capacity) {
        TRY(mem_grow(&p->rows, 0, n_bytes, 1, "hidden rows"));
        p->rows_capacity = n_bytes;
    }
    TRY(part_read(p->path, p->fd, p->rows, n_bytes, place->at, &n));
    *good = n == n_bytes && place->n <= place->n_all &&
            XXH3_64bits(p->rows, n_bytes) == place->checksum;
    return *good ? logprobs_file_add_hidden(f, p->rows, place->n) : status_ok();
}

struct status part_copy_rows(struct logprobs_part *p, struct logprobs_file *f, size_t n_bytes,
                             size_t *at, bool *fits)
{
    struct stored_rows place;
    uint32_t n_places = 0;
    *fits = n_bytes - *at >= sizeof n_places;
    if (*fits) memcpy(&n_places, p->bytes + *at, sizeof n_places);
    *at += sizeof n_places;
    *fits = *fits && (n_bytes - *at) / sizeof place >= n_places;
    for (uint32_t i = 0; *fits && i < n_places; i++, *at += sizeof place) {
        memcpy(&place, p->bytes + *at, sizeof place);
        TRY(copy_place(p, f, &place, fits));
    }
    return status_ok();
}
