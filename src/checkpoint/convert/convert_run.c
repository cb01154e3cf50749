/* Converts rows, a chunk at a time. In each round every rank converts one chunk. Rank 0 then
 * receives the other ranks' chunks, and hands all chunks in order to a thread that writes them.
 * Meanwhile the other ranks convert their chunks of the next round. With three ranks:
 *
 *     rank 0    make 0 | receive 1  receive 2 | make 3 | ...
 *     writer           | write 0    write 1     write 2 | write 3 ...
 *     rank 1    make 1 | make 4 ...                                                              */
#include "base/background.h"
#include "base/mem.h"
#include "checkpoint/convert/convert_private.h"
#include "checkpoint/file/h5.h"

#include <mpi.h>
#include <string.h>

enum { CHUNK_BYTES = 8 << 20, TAG_CHUNK = 1, N_BUFFERS = 2 };

/* Some rows of one source tensor, and where in the file they go. */
struct chunk {
    const struct convert_tensor *tensor;
    size_t part; /* which of the tensor's n_parts parts */
    size_t source;
    uint64_t row, n_rows;
};

/* A position in the list of all chunks; at the end of the list `tensor` is n_tensors. */
struct cursor {
    size_t tensor, part;
    uint64_t row;
};

/* This rank's buffers. While one of a pair is sent or written, the other one is filled. */
struct round {
    char *own[N_BUFFERS]; /* owned; this rank's chunk of this round, and of the round before */
    MPI_Request sent[N_BUFFERS];
    char *received[N_BUFFERS]; /* owned; on rank 0: other ranks' chunks */
    unsigned n_received;
    /* used by rank 0 alone */
    struct background *own_writer; /* owned; NULL if the caller gave one */
    struct background *writer;
    struct convert *convert; /* arguments of the writer's current job, as are the next two: */
    struct chunk writing;
    char *writing_bytes;
};

/* ---- chunks ---- */

/* Returns the number of rows of a chunk; the last chunk of a source tensor may have fewer. */
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

/* Returns the bytes of a chunk in memory. */
static uint64_t chunk_bytes(const struct chunk *k)
{
    return convert_rows_bytes(&k->tensor->spec, k->n_rows);
}

/* Returns the bytes of a chunk in the file, which has no padding after the rows of a dataset. */
static uint64_t chunk_file_bytes(const struct chunk *k)
{
    uint64_t row_bytes = 0;
    for (int i = 0; i < CKPT_PART_COUNT; i++)
        row_bytes += ckpt_spec_row_bytes(&k->tensor->spec, (enum ckpt_part)i);
    return k->n_rows * row_bytes;
}

static struct convert_rows chunk_rows_of(const struct chunk *k, char *bytes)
{
    return (struct convert_rows){.spec = &k->tensor->spec, .n_rows = k->n_rows, .bytes = bytes};
}

/* Reads the chunk in the format of out->spec: the source's quantized values, or floats. */
static struct status chunk_take(struct convert *c, const struct chunk *k,
                                const struct convert_rows *out)
{
    const struct ckpt_tensor_spec *s = out->spec;
    TRY(convert_reserve(&c->scratch, &c->n_scratch_bytes,
                        source_scratch_bytes(c->source, k->source, k->n_rows)));
    if (s->quant.kind == QUANT_NONE) {
        return source_rows(c->source, k->source, k->row, k->n_rows, s->dtype, c->scratch,
                           out->bytes, &c->result.n_overflowed);
    }
    const struct quant_block block = convert_rows_block(out);
    return source_codes(c->source, k->source, s->quant, k->row, k->n_rows, c->scratch, &block);
}

static struct status chunk_make(struct convert *c, const struct chunk *k, char *bytes)
{
    const struct convert_rows out = chunk_rows_of(k, bytes);
    if (!k->tensor->is_made) return chunk_take(c, k, &out);
    const uint64_t n_taken = convert_rows_bytes(&k->tensor->taken, k->n_rows);
    TRY(convert_reserve(&c->taken, &c->n_taken_bytes, n_taken));
    const struct convert_rows taken = {&k->tensor->taken, k->n_rows, c->taken};
    TRY(chunk_take(c, k, &taken));
    return convert_make(c, &taken, k->row, &out);
}

/* Writes a chunk, on the writer's thread; no other thread uses HDF5 at this time. */
static struct status chunk_write(struct convert *c, const struct chunk *k, char *bytes)
{
    const struct ckpt_tensor_spec *s = &k->tensor->spec;
    if (k->part == 0 && k->row == 0) TRY(ckpt_writer_tensor(c->writer, s));
    if (s->quant.kind == QUANT_NONE) {
        TRY(ckpt_writer_rows(c->writer, bytes, k->n_rows));
    } else {
        const struct convert_rows rows = chunk_rows_of(k, bytes);
        const struct quant_block block = convert_rows_block(&rows);
        TRY(ckpt_writer_quant_rows(c->writer, &block, k->n_rows));
    }
    c->done_bytes += chunk_file_bytes(k);
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

/* Allocates memory for the largest chunk, and counts the bytes of all chunks for `progress`. */
static struct status round_init(struct convert *c, struct round *r)
{
    uint64_t n_most = 1;
    for (struct cursor at = {0}; at.tensor < c->n_tensors;) {
        const struct chunk k = chunk_next(c, &at);
        const uint64_t n = chunk_bytes(&k);
        c->total_bytes += chunk_file_bytes(&k);
        if (n > n_most) n_most = n;
    }
    for (int i = 0; i < N_BUFFERS; i++) r->sent[i] = MPI_REQUEST_NULL;
    if (n_most > INT32_MAX) return status_make(STATUS_INPUT, "rows of more than 2 GiB");
    for (int i = 0; i < N_BUFFERS; i++) {
        TRY(mem_alloc(&r->own[i], n_most, 1, "rows to be written"));
        if (c->rank > 0 || c->n_ranks == 1) continue;
        TRY(mem_alloc(&r->received[i], n_most, 1, "rows to be written"));
    }
    r->convert = c;
    r->writer = c->options->writer;
    if (c->rank > 0 || r->writer != NULL) return status_ok();
    TRY(background_create(&r->own_writer));
    r->writer = r->own_writer;
    return status_ok();
}

static void round_fini(struct round *r)
{
    if (r->writer != NULL) (void)background_wait(r->writer); /* it may still read the buffers */
    background_destroy(&r->own_writer);
    for (int i = 0; i < N_BUFFERS; i++) {
        mem_free(&r->own[i]);
        mem_free(&r->received[i]);
    }
}

/* Finds this rank's chunk of the round that begins at `at`; false when there is none. */
static bool chunk_mine(const struct convert *c, struct cursor at, struct chunk *out)
{
    for (int rank = 0; rank <= c->rank; rank++) {
        if (at.tensor == c->n_tensors) return false;
        *out = chunk_next(c, &at);
    }
    return true;
}

static struct status round_write_one(void *round)
{
    const struct round *r = round;
    h5_quiet(); /* HDF5 may keep this setting per thread */
    return chunk_write(r->convert, &r->writing, r->writing_bytes);
}

static struct status transferred(int rc, const char *what)
{
    char reason[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (rc == MPI_SUCCESS) return status_ok();
    MPI_Error_string(rc, reason, &n);
    return status_make(STATUS_LOST, "%s failed: %s", what, reason);
}

/* On rank 0: receives all chunks of the round and has them written in order. On return the writer
 * may still be busy with the last chunk. After a failed write, the other ranks' chunks are still
 * received, so that no rank waits. */
static struct status round_write(struct convert *c, struct round *r, struct cursor at, char *own)
{
    struct status st = status_ok();
    for (int rank = 0; rank < c->n_ranks && at.tensor < c->n_tensors; rank++) {
        const struct chunk k = chunk_next(c, &at);
        char *bytes = own;
        if (rank > 0) {
            bytes = r->received[r->n_received++ % N_BUFFERS];
            const int rc = MPI_Recv(bytes, (int)chunk_bytes(&k), MPI_BYTE, rank, TAG_CHUNK,
                                    comm_handle(c->comm, COMM_WORLD), MPI_STATUS_IGNORE);
            if (!status_failed(&st)) st = transferred(rc, "receiving rows");
        }
        const struct status before = background_wait(r->writer);
        if (!status_failed(&st)) st = before;
        if (status_failed(&st)) continue;
        r->writing = k;
        r->writing_bytes = bytes;
        background_start(r->writer, round_write_one, r);
    }
    return st;
}

static struct status chunk_send(const struct convert *c, const struct chunk *k, char *bytes,
                                MPI_Request *request)
{
    return transferred(MPI_Isend(bytes, (int)chunk_bytes(k), MPI_BYTE, 0, TAG_CHUNK,
                                 comm_handle(c->comm, COMM_WORLD), request),
                       "sending rows");
}

static struct status convert_rounds_run(struct convert *c, struct round *r)
{
    struct status mine = status_ok();
    struct cursor at = {0};
    for (unsigned round = 0; at.tensor < c->n_tensors; round++) {
        const unsigned i = round % N_BUFFERS;
        struct chunk k;
        const bool has_one = chunk_mine(c, at, &k);
        if (r->sent[i] != MPI_REQUEST_NULL && !status_failed(&mine))
            mine = transferred(MPI_Wait(&r->sent[i], MPI_STATUS_IGNORE), "sending rows");
        if (has_one && !status_failed(&mine)) mine = chunk_make(c, &k, r->own[i]);
        TRY(convert_run_agree(c, mine));
        if (c->rank == 0) {
            mine = round_write(c, r, at, r->own[i]);
        } else if (has_one) {
            mine = chunk_send(c, &k, r->own[i], &r->sent[i]);
        }
        for (int rank = 0; rank < c->n_ranks && at.tensor < c->n_tensors; rank++) {
            (void)chunk_next(c, &at);
        }
    }
    if (c->rank == 0 && !status_failed(&mine)) mine = background_wait(r->writer);
    return convert_run_agree(c, mine);
}

/* **Collective (world)**. Adds up the ranks' counts on rank 0, and sends the sums to all ranks. */
static struct status results_add(struct convert *c)
{
    const MPI_Comm world = comm_handle(c->comm, COMM_WORLD);
    const uint64_t counts[3] = {c->result.n_overflowed, c->result.loss.n_rows, c->done_bytes};
    const double sums[2] = {c->result.loss.error, c->result.loss.energy};
    uint64_t all_counts[3] = {0};
    double all_sums[2] = {0};
    const char *what = "adding up the ranks' counts";
    TRY(transferred(MPI_Reduce(counts, all_counts, 3, MPI_UINT64_T, MPI_SUM, 0, world), what));
    TRY(transferred(MPI_Reduce(sums, all_sums, 2, MPI_DOUBLE, MPI_SUM, 0, world), what));
    TRY(transferred(MPI_Bcast(all_counts, 3, MPI_UINT64_T, 0, world), what));
    TRY(transferred(MPI_Bcast(all_sums, 2, MPI_DOUBLE, 0, world), what));
    c->result.n_overflowed = all_counts[0];
    c->result.loss = (struct quant_loss){all_sums[0], all_sums[1], all_counts[1]};
    c->done_bytes = all_counts[2];
    return status_ok();
}

struct status convert_all_rows(struct convert *c)
{
    struct round r = {.writer = NULL};
    struct status st = convert_run_agree(c, round_init(c, &r));
    if (!status_failed(&st)) st = convert_rounds_run(c, &r);
    if (c->comm != NULL) {
        MPI_Waitall(N_BUFFERS, r.sent, MPI_STATUSES_IGNORE);
        const struct status added = results_add(c);
        if (!status_failed(&st)) st = convert_run_agree(c, added);
    }
    round_fini(&r);
    return status_wrap(st, "%s", c->options->source);
}
