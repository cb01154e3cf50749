/* Converts rows, a chunk at a time. In each round every rank converts one chunk. Rank 0 receives
 * them and writes them in order, while the other ranks convert the chunks of the next round. */
#include "base/mem.h"
#include "checkpoint/convert/convert_private.h"

#include <mpi.h>
#include <string.h>

enum { CHUNK_BYTES = 8 << 20, TAG_CHUNK = 1, N_BUFFERS = 2 };

/* Rows of one source tensor, and where they go. */
struct chunk {
    const struct convert_tensor *tensor;
    size_t part; /* of the tensor: 0, ... n_parts - 1 */
    size_t source;
    uint64_t row, n_rows;
};

/* A position in the list of all chunks; at its end, tensor is n_tensors. */
struct cursor {
    size_t tensor, part;
    uint64_t row;
};

/* Buffers of this rank. */
struct round {
    char *own[N_BUFFERS]; /* owned; its chunk of this round, and that of the round before */
    MPI_Request sent[N_BUFFERS];
    char *received; /* owned; rank 0: another rank's chunk */
};

/* ---- chunks ---- */

/* Rows read at once. */
static uint64_t chunk_rows(const struct source_tensor *t)
{
    uint64_t n = CHUNK_BYTES / sizeof(float) / t->n_cols;
    n -= n % t->row_group;
    if (n == 0) n = t->row_group;
    return n < t->n_rows ? n : t->n_rows;
}

/* Returns the chunk at the cursor and advances the cursor. */
static struct chunk chunk_next(const struct convert *c, struct cursor *at)
{
    const struct convert_tensor *t = &c->tensors[at->tensor];
    struct chunk k = {.tensor = t, .part = at->part, .row = at->row};
    k.source = c->parts[t->first + at->part].source;
    const struct source_tensor *from = source_at(c->source, k.source);
    const uint64_t n_most = chunk_rows(from), rest = from->n_rows - at->row;
    k.n_rows = rest < n_most ? rest : n_most;
    at->row += k.n_rows;
    if (at->row < from->n_rows) return k;
    at->row = 0;
    if (++at->part < t->n_parts) return k;
    at->part = 0;
    at->tensor++;
    return k;
}

/* The bytes of the chunk in each dataset, in the order in which they are sent; a plain tensor has
 * only the first dataset. Returns their sum. */
static uint64_t chunk_bytes(const struct chunk *k, uint64_t n_bytes[CKPT_PART_COUNT])
{
    const struct ckpt_tensor_spec *s = &k->tensor->spec;
    const uint64_t n_cols = s->dims[s->n_dims - 1];
    uint64_t n_all = 0;
    for (int i = 0; i < CKPT_PART_COUNT; i++) {
        const enum ckpt_part part = (enum ckpt_part)i;
        uint64_t n = 0;
        if (s->quant.kind == QUANT_NONE) {
            if (part == CKPT_CODES) n = n_cols * dtype_bytes(s->dtype);
        } else if (part != CKPT_ZEROS || s->quant.has_zeros) {
            n = ckpt_part_columns(part, s->quant, n_cols) *
                dtype_bytes(ckpt_part_dtype(part, s->quant));
        }
        n_bytes[i] = (n * k->n_rows + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
        n_all += n_bytes[i];
    }
    return n_all;
}

static struct quant_block convert_run_block_of(const struct chunk *k, char *bytes)
{
    uint64_t n_bytes[CKPT_PART_COUNT];
    chunk_bytes(k, n_bytes);
    char *scales = bytes + n_bytes[CKPT_CODES], *zeros = scales + n_bytes[CKPT_SCALES];
    return (struct quant_block){.codes = bytes,
                                .scales = scales,
                                .zeros = k->tensor->spec.quant.has_zeros ? (uint8_t *)zeros : NULL};
}

static struct status scratch_reserve(struct convert *c, size_t n_wanted)
{
    if (n_wanted <= c->n_scratch_bytes) return status_ok();
    mem_free(&c->scratch);
    c->n_scratch_bytes = 0;
    TRY(mem_alloc(&c->scratch, n_wanted, 1, "rows of the source"));
    c->n_scratch_bytes = n_wanted;
    return status_ok();
}

static struct status chunk_make(struct convert *c, const struct chunk *k, char *out)
{
    const struct ckpt_tensor_spec *s = &k->tensor->spec;
    TRY(scratch_reserve(c, source_scratch_bytes(c->source, k->source, k->n_rows)));
    if (s->quant.kind == QUANT_NONE) {
        return source_rows(c->source, k->source, k->row, k->n_rows, s->dtype, c->scratch, out,
                           &c->result.n_overflowed);
    }
    const struct quant_block block = convert_run_block_of(k, out);
    return source_codes(c->source, k->source, s->quant, k->row, k->n_rows, c->scratch, &block);
}

static struct status chunk_write(struct convert *c, const struct chunk *k, char *bytes)
{
    const struct ckpt_tensor_spec *s = &k->tensor->spec;
    uint64_t n_bytes[CKPT_PART_COUNT];
    if (k->part == 0 && k->row == 0) TRY(ckpt_writer_tensor(c->writer, s));
    if (s->quant.kind == QUANT_NONE) {
        TRY(ckpt_writer_rows(c->writer, bytes, k->n_rows));
    } else {
        const struct quant_block block = convert_run_block_of(k, bytes);
        TRY(ckpt_writer_quant_rows(c->writer, &block, k->n_rows));
    }
    c->done_bytes += chunk_bytes(k, n_bytes);
    if (c->options->progress != NULL) {
        c->options->progress(c->options->progress_ctx, s->name, c->done_bytes, c->total_bytes);
    }
    return status_ok();
}

/* ---- rounds ---- */

static struct status convert_run_agree(const struct convert *c, struct status mine)
{
    return c->comm == NULL ? mine : comm_agree(c->comm, mine);
}

/* Allocates memory for the largest chunk, and counts all bytes for the progress. */
static struct status round_init(struct convert *c, struct round *r)
{
    uint64_t n_most = 1, n_bytes[CKPT_PART_COUNT];
    for (struct cursor at = {0}; at.tensor < c->n_tensors;) {
        const struct chunk k = chunk_next(c, &at);
        const uint64_t n = chunk_bytes(&k, n_bytes);
        c->total_bytes += n;
        if (n > n_most) n_most = n;
    }
    for (int i = 0; i < N_BUFFERS; i++) r->sent[i] = MPI_REQUEST_NULL;
    if (n_most > INT32_MAX) return status_make(STATUS_INPUT, "rows of more than 2 GiB");
    TRY(mem_alloc(&r->own[0], n_most, 1, "rows to be written"));
    if (c->n_ranks == 1) return status_ok();
    if (c->rank == 0) return mem_alloc(&r->received, n_most, 1, "rows to be written");
    return mem_alloc(&r->own[1], n_most, 1, "rows to be written");
}

static void round_fini(struct round *r)
{
    for (int i = 0; i < N_BUFFERS; i++) mem_free(&r->own[i]);
    mem_free(&r->received);
}

/* This rank's chunk of the round that begins at `at`; false when the list ends before it. */
static bool chunk_mine(const struct convert *c, struct cursor at, struct chunk *out)
{
    for (int rank = 0; rank <= c->rank; rank++) {
        if (at.tensor == c->n_tensors) return false;
        *out = chunk_next(c, &at);
    }
    return true;
}

/* Rank 0: receives and writes all chunks of the round in order. After a failed write it still
 * receives the other ranks' chunks, so that no rank waits. */
static struct status round_write(struct convert *c, struct round *r, struct cursor at)
{
    struct status st = status_ok();
    for (int rank = 0; rank < c->n_ranks && at.tensor < c->n_tensors; rank++) {
        const struct chunk k = chunk_next(c, &at);
        uint64_t n_bytes[CKPT_PART_COUNT];
        char *bytes = rank == 0 ? r->own[0] : r->received;
        if (rank > 0) {
            MPI_Recv(bytes, (int)chunk_bytes(&k, n_bytes), MPI_BYTE, rank, TAG_CHUNK,
                     comm_handle(c->comm, COMM_WORLD), MPI_STATUS_IGNORE);
        }
        if (!status_failed(&st)) st = chunk_write(c, &k, bytes);
    }
    return st;
}

static void chunk_send(const struct convert *c, const struct chunk *k, char *bytes,
                       MPI_Request *request)
{
    uint64_t n_bytes[CKPT_PART_COUNT];
    MPI_Isend(bytes, (int)chunk_bytes(k, n_bytes), MPI_BYTE, 0, TAG_CHUNK,
              comm_handle(c->comm, COMM_WORLD), request);
}

static struct status convert_rounds_run(struct convert *c, struct round *r)
{
    struct status mine = status_ok();
    struct cursor at = {0};
    for (unsigned round = 0; at.tensor < c->n_tensors; round++) {
        const unsigned i = c->rank == 0 ? 0 : round % N_BUFFERS;
        struct chunk k;
        const bool has_one = chunk_mine(c, at, &k);
        if (r->sent[i] != MPI_REQUEST_NULL) MPI_Wait(&r->sent[i], MPI_STATUS_IGNORE);
        if (has_one && !status_failed(&mine)) mine = chunk_make(c, &k, r->own[i]);
        TRY(convert_run_agree(c, mine));
        if (c->rank == 0) {
            mine = round_write(c, r, at);
        } else if (has_one) {
            chunk_send(c, &k, r->own[i], &r->sent[i]);
        }
        for (int rank = 0; rank < c->n_ranks && at.tensor < c->n_tensors; rank++) {
            (void)chunk_next(c, &at);
        }
    }
    return convert_run_agree(c, mine);
}

struct status convert_rows(struct convert *c)
{
    struct round r = {.received = NULL};
    struct status st = convert_run_agree(c, round_init(c, &r));
    if (!status_failed(&st)) st = convert_rounds_run(c, &r);
    if (c->comm != NULL) {
        MPI_Waitall(N_BUFFERS, r.sent, MPI_STATUSES_IGNORE);
        uint64_t n = c->result.n_overflowed;
        MPI_Reduce(&n, &c->result.n_overflowed, 1, MPI_UINT64_T, MPI_SUM, 0,
                   comm_handle(c->comm, COMM_WORLD));
    }
    round_fini(&r);
    return status_wrap(st, "%s", c->options->source);
}
