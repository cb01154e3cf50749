/* Reads portions of rows in a ring. The later portions are being read while the first is verified
 * and given to the caller:
 *
 *     ring   [ portion, read ] [ portion, reading  ] [ portion, reading  ] [ free ]
 *              ^ head: sums, rows to the caller                              ^ filled next
 *
 * When the system's cache is used, the ring has one portion: a whole series, read piece by
 * piece. */
#include "checkpoint/file/ckpt_reader.h"

#include "base/mem.h"
#include "checkpoint/file/ckpt_private.h"
#include "checkpoint/file/direct_reads.h"

#include <assert.h>

/* Some rows of one series. */
struct portion {
    struct ckpt_series series;
    uint64_t row, n_rows;
    bool is_last; /* the last portion of its series */
};

struct ckpt_reader {
    struct ckpt_reader_job job;
    struct direct_reads *direct; /* owned; NULL: through the cache */
    size_t direct_bytes;         /* most bytes of a portion */
    char *buf;                   /* owned, mapped: buf_bytes; NULL with direct reads */
    size_t buf_bytes;
    struct ckpt_sum sum;
    struct portion *ring; /* owned [n_slots] */
    uint32_t n_slots, head, n_filled;
    struct portion ahead; /* the rest of the current series, not in the ring yet; 0 rows: none */
};

static size_t row_bytes_of(const struct ckpt_tensor *t)
{
    return (size_t)(t->n_cols * dtype_bytes(t->dtype));
}

/* ---- create, destroy ---- */

static struct status direct_open(struct ckpt_reader *r)
{
    const struct ckpt_reader_job *job = &r->job;
    r->direct_bytes = job->longest_row > CKPT_DIRECT_BYTES ? job->longest_row : CKPT_DIRECT_BYTES;
    struct status st = direct_reads_create(job->c->fd, r->direct_bytes, job->n_direct, &r->direct);
    return st.code == STATUS_IO ? status_ok() : st; /* not supported here: read through the cache */
}

static struct status reader_prepare(struct ckpt_reader *r)
{
    const size_t longest = r->job.longest_row;
    TRY(ckpt_sum_create(&r->sum));
    if (r->job.n_direct > 0) TRY(direct_open(r));
    r->n_slots = r->direct != NULL ? r->job.n_direct : 1;
    TRY(mem_alloc(&r->ring, r->n_slots, sizeof r->ring[0], "a reader's portions"));
    if (r->direct != NULL) return status_ok();
    r->buf_bytes = longest > CKPT_READ_BYTES_MAX ? longest : CKPT_READ_BYTES_MAX;
    return mem_map(&r->buf, r->buf_bytes, "rows on their way into the weights");
}

struct status ckpt_reader_create(const struct ckpt_reader_job *job, struct ckpt_reader **out)
{
    struct ckpt_reader *r = NULL;
    *out = NULL;
    TRY(mem_alloc(&r, 1, sizeof *r, "a reader of blocks"));
    r->job = *job;
    const struct status st = reader_prepare(r);
    if (status_failed(&st)) ckpt_reader_destroy(&r);
    *out = r;
    return st;
}

void ckpt_reader_destroy(struct ckpt_reader **r_)
{
    struct ckpt_reader *r = *r_;
    if (r == NULL) return;
    direct_reads_destroy(&r->direct);
    ckpt_sum_destroy(&r->sum);
    mem_unmap(&r->buf, r->buf_bytes);
    mem_free(&r->ring);
    mem_free(r_);
}

bool ckpt_reader_is_direct(const struct ckpt_reader *r)
{
    return r->direct != NULL;
}

/* ---- filling the ring ---- */

/* If the current series is completely in the ring, asks for the next one. False: there is none. */
static bool series_ask(struct ckpt_reader *r)
{
    struct portion *ahead = &r->ahead;
    if (ahead->n_rows > 0) return true;
    if (!r->job.next(r->job.ctx, &ahead->series)) return false;
    const struct ckpt_series *s = &ahead->series;
    const uint64_t last = s->block + s->n_blocks - 1;
    ahead->row = s->block * s->tensor->rows_per_block;
    ahead->n_rows =
        last * s->tensor->rows_per_block + ckpt_block_rows(s->tensor, last) - ahead->row;
    return true;
}

/* Returns the next portion's number of rows. A direct read has at most direct_bytes; if these hold
 * 16 rows, it ends at the end of a panel or of the series. */
static uint64_t portion_rows(const struct ckpt_reader *r)
{
    const struct portion *ahead = &r->ahead;
    if (r->direct == NULL) return ahead->n_rows;
    return ckpt_rows_within(ahead->series.tensor, ahead->row, ahead->n_rows, r->direct_bytes);
}

static void ring_fill(struct ckpt_reader *r)
{
    struct portion *ahead = &r->ahead;
    while (r->n_filled < r->n_slots && series_ask(r)) {
        const uint32_t slot = (r->head + r->n_filled) % r->n_slots;
        const struct ckpt_tensor *t = ahead->series.tensor;
        const size_t row_bytes = row_bytes_of(t);
        struct portion *p = &r->ring[slot];
        *p = *ahead;
        p->n_rows = portion_rows(r);
        p->is_last = p->n_rows == ahead->n_rows;
        ahead->row += p->n_rows;
        ahead->n_rows -= p->n_rows;
        r->n_filled++;
        if (r->direct == NULL) continue;
        direct_reads_start(r->direct, slot, t->offset + p->row * row_bytes,
                           (size_t)p->n_rows * row_bytes);
    }
}

/* ---- rows ---- */

bool ckpt_reader_next(struct ckpt_reader *r, struct ckpt_series *out)
{
    ring_fill(r);
    if (r->n_filled == 0) return false;
    const struct ckpt_series *s = &r->ring[r->head].series;
    ckpt_sum_begin(&r->sum, r->job.c, s->tensor, s->block);
    *out = *s;
    return true;
}

/* Returns the portion's rows in memory, or NULL with a failed *st. If not all bytes arrived, reads
 * them again through the cache, which succeeds or gives the error. */
static const char *portion_wait(struct ckpt_reader *r, const struct portion *p, struct status *st)
{
    const struct ckpt_tensor *t = p->series.tensor;
    const size_t row_bytes = row_bytes_of(t);
    char *rows;
    if (direct_reads_wait(r->direct, r->head, &rows)) return rows;
    *st = ckpt_read_bytes(r->job.c, t, t->offset + p->row * row_bytes,
                          (size_t)p->n_rows * row_bytes, rows);
    return status_failed(st) ? NULL : rows;
}

/* Verifies a portion and gives it to fn, in pieces of ckpt_rows_at_once rows. */
static struct status portion_give(struct ckpt_reader *r, const struct portion *p, ckpt_rows_fn *fn,
                                  void *ctx)
{
    const struct ckpt_tensor *t = p->series.tensor;
    const size_t row_bytes = row_bytes_of(t);
    struct status st = status_ok();
    const char *rows = r->direct != NULL ? portion_wait(r, p, &st) : NULL;
    const uint64_t end = p->row + p->n_rows;
    for (uint64_t row = p->row, n; row < end && !status_failed(&st); row += n) {
        n = ckpt_rows_at_once(t, row, end);
        const char *piece = rows != NULL ? rows + (row - p->row) * row_bytes : r->buf;
        if (rows == NULL)
            st = ckpt_read_bytes(r->job.c, t, t->offset + row * row_bytes, (size_t)n * row_bytes,
                                 r->buf);
        if (!status_failed(&st)) st = ckpt_sum_rows(&r->sum, row, n, piece);
        if (!status_failed(&st)) st = fn(ctx, row, n, piece);
    }
    return st;
}

struct status ckpt_reader_rows(struct ckpt_reader *r, ckpt_rows_fn *fn, void *ctx)
{
    bool is_last = false;
    while (!is_last) {
        assert(r->n_filled > 0);
        const struct portion *p = &r->ring[r->head];
        TRY(portion_give(r, p, fn, ctx));
        is_last = p->is_last;
        r->head = (r->head + 1) % r->n_slots;
        r->n_filled--;
        ring_fill(r);
    }
    return status_ok();
}
