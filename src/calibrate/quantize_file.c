/* Copies, converts and rounds (RTN) tensors, one run of rows at a time. */
#include "calibrate/quantize_file.h"

#include "base/background.h"
#include "base/mem.h"
#include "calibrate/tensor_rows.h"
#include "checkpoint/file/ckpt_room.h"
#include "checkpoint/file/h5.h"
#include "quant/quantize.h"

#include <string.h>

enum { RUN_BYTES = 8 << 20 }; /* bytes of f32 rows in memory at one time */

struct status quantize_texts(struct quantize_file *q)
{
    for (int i = 0; i < CKPT_TEXT_COUNT; i++) {
        size_t n;
        const char *text = ckpt_text(q->c, (enum ckpt_text)i, &n);
        if (i == CKPT_TEXT_CONFIG) {
            TRY(ckpt_writer_config(q->writer, text, n));
        } else if (text != NULL) {
            TRY(ckpt_writer_text(q->writer, (enum ckpt_text)i, text, n));
        }
    }
    return status_ok();
}

static uint64_t run_rows(const struct ckpt_tensor *t)
{
    const uint64_t n = RUN_BYTES / sizeof(float) / t->n_cols;
    if (n == 0) return 1;
    return n < t->n_rows ? n : t->n_rows;
}

/* Returns the bytes of a run as floats. They are mapped, not allocated, because allocating and
 * freeing megabytes for each tensor fragments the heap by gigabytes. */
static size_t rows_bytes(const struct ckpt_tensor *t)
{
    return (size_t)(run_rows(t) * t->n_cols * sizeof(float));
}

static void quantize_file_advance(struct quantize_file *q, const struct ckpt_tensor *t,
                                  uint64_t n_rows)
{
    q->done_elems += n_rows * t->n_cols;
    if (q->progress != NULL) {
        q->progress(q->progress_ctx, t->name, q->done_elems, q->total_elems);
    }
}

static struct status quantize_file_copy(struct quantize_file *q, struct tensor_rows *r)
{
    const struct ckpt_tensor *t = r->t;
    const uint64_t n_run = run_rows(t);
    struct quant_block b = {0};
    struct status st;
    void **parts[CKPT_PART_COUNT] = {&b.codes, &b.scales, (void **)&b.zeros};
    for (int i = 0; i < CKPT_PART_COUNT; i++) {
        const struct ckpt_tensor *stored = r->blocks[i].stored;
        if (stored == NULL) continue;
        TRY_GOTO(st, mem_alloc(parts[i], n_run, (size_t)(stored->n_bytes / stored->n_rows), "rows"),
                 done);
    }
    for (uint64_t row = 0; row < t->n_rows; row += n_run) {
        const uint64_t n = t->n_rows - row < n_run ? t->n_rows - row : n_run;
        for (int i = 0; i < CKPT_PART_COUNT; i++) {
            if (r->blocks[i].stored == NULL) continue;
            TRY_GOTO(st, tensor_rows_stored(r, (enum ckpt_part)i, row, n, *parts[i]), done);
        }
        if (t->quant.kind != QUANT_NONE) {
            TRY_GOTO(st, ckpt_writer_quant_rows(q->writer, &b, n), done);
        } else {
            TRY_GOTO(st, ckpt_writer_rows(q->writer, b.codes, n), done);
        }
        quantize_file_advance(q, t, n);
    }
    st = status_ok();
done:
    quant_block_destroy(&b);
    return st;
}

static struct status quantize_file_convert(struct quantize_file *q, struct tensor_rows *r,
                                           enum dtype dtype)
{
    const struct ckpt_tensor *t = r->t;
    const uint64_t n_run = run_rows(t);
    float *x = NULL;
    void *y = NULL;
    struct status st;
    TRY_GOTO(st, mem_map(&x, rows_bytes(t), "rows"), done);
    TRY_GOTO(st, mem_alloc(&y, n_run * t->n_cols, dtype_bytes(dtype), "rows"), done);
    for (uint64_t row = 0; row < t->n_rows; row += n_run) {
        const uint64_t n = t->n_rows - row < n_run ? t->n_rows - row : n_run;
        TRY_GOTO(st, tensor_rows_f32(r, row, n, x), done);
        dtype_from_f32(dtype, x, n * t->n_cols, y);
        q->result.n_overflowed += dtype_count_overflowed(dtype, x, n * t->n_cols, y);
        TRY_GOTO(st, ckpt_writer_rows(q->writer, y, n), done);
        quantize_file_advance(q, t, n);
    }
    st = status_ok();
done:
    mem_free(&y);
    mem_unmap(&x, rows_bytes(t));
    return st;
}

/* Rounded rows on their way to the file. */
struct rounded {
    struct ckpt_writer *writer;
    const struct quant_block *block;
    uint64_t n_rows;
};

static struct status rounded_write(void *rounded)
{
    const struct rounded *r = rounded;
    h5_quiet(); /* HDF5 may keep this setting per thread */
    return ckpt_writer_quant_rows(r->writer, r->block, r->n_rows);
}

static struct status rounded_wait(const struct quantize_file *q)
{
    return q->background == NULL ? status_ok() : background_wait(q->background);
}

/* Waits until the previous rows are written, then starts writing these; with a background thread it
 * returns before the writing ends. */
static struct status rounded_start(const struct quantize_file *q, struct rounded *r,
                                   const struct quant_block *block, uint64_t n_rows)
{
    TRY(rounded_wait(q));
    *r = (struct rounded){q->writer, block, n_rows};
    if (q->background == NULL) return rounded_write(r);
    background_start(q->background, rounded_write, r);
    return status_ok();
}

/* A run of rows, and its buffers. */
struct run {
    uint64_t row, n; /* rows [row, row + n) of the tensor */
    float *x;        /* [n, n_cols], the values */
    const struct quant_block *block;
};

static struct status run_round(struct quantize_file *q, struct tensor_rows *r,
                               const struct quantize_choice *choice, const struct run *run)
{
    const struct ckpt_tensor *t = r->t;
    const uint64_t row = run->row, n = run->n;
    const struct quant_block *block = run->block;
    float *x = run->x;
    TRY(tensor_rows_f32(r, row, n, x));
    const uint64_t n_bad = quant_rtn_rows(q->team, choice->format, x, n, t->n_cols, block);
    if (n_bad > 0) {
        return status_make(STATUS_INPUT,
                           "%s: tensor %s: %llu values of rows %llu to %llu are not finite",
                           ckpt_path(q->c), t->name, (unsigned long long)n_bad,
                           (unsigned long long)row, (unsigned long long)(row + n - 1));
    }
    if (!choice->again) return status_ok();
    const struct quant_values from = {.rows = x, .n_rows = n, .n_in = t->n_cols};
    return quant_loss_add(q->team, choice->format, &from, block, &q->result.loss);
}

static struct status round_to_nearest(struct quantize_file *q, struct tensor_rows *r,
                                      const struct quantize_choice *choice)
{
    const struct ckpt_tensor *t = r->t;
    const uint64_t n_run = run_rows(t);
    struct quant_block b[2] = {{0}, {0}}; /* one is written while the other is filled */
    struct rounded writing;
    float *x = NULL;
    struct status st;
    TRY_GOTO(st, mem_map(&x, rows_bytes(t), "rows"), done);
    for (int i = 0; i < 2; i++) {
        TRY_GOTO(st, quant_block_create(choice->format, n_run, t->n_cols, &b[i]), done);
    }
    for (uint64_t row = 0, i = 0; row < t->n_rows; row += n_run, i++) {
        const uint64_t n = t->n_rows - row < n_run ? t->n_rows - row : n_run;
        const struct run run = {.row = row, .n = n, .x = x, .block = &b[i % 2]};
        TRY_GOTO(st, run_round(q, r, choice, &run), done);
        TRY_GOTO(st, rounded_start(q, &writing, run.block, n), done);
        quantize_file_advance(q, t, n);
    }
    st = status_ok();
done:;
    const struct status last = rounded_wait(q);
    if (!status_failed(&st)) st = last;
    for (int i = 0; i < 2; i++) quant_block_destroy(&b[i]);
    mem_unmap(&x, rows_bytes(t));
    return st;
}

struct status quantize_tensor(struct quantize_file *q, size_t i)
{
    const struct ckpt_tensor *t = ckpt_tensor_at(q->c, i);
    const struct quantize_choice *choice = &q->choices[i];
    const struct ckpt_tensor_spec spec = quantize_spec(t, choice, "rtn");
    struct tensor_rows r;
    TRY(tensor_rows_init(&r, q->c, t, q->team));
    struct status st = ckpt_writer_tensor(q->writer, &spec);
    if (status_failed(&st)) goto done;
    if (choice->keep) {
        st = quantize_file_copy(q, &r);
    } else if (choice->format.kind == QUANT_NONE) {
        st = quantize_file_convert(q, &r, choice->dtype);
    } else {
        st = round_to_nearest(q, &r, choice);
    }
    if (choice->keep || choice->format.kind == QUANT_NONE) {
        q->result.n_kept++;
    } else {
        q->result.n_quantized++;
        q->result.n_again += choice->again;
    }
    q->result.n_elems += t->n_rows * t->n_cols;
    q->result.n_bytes += ckpt_spec_bytes(&spec);
done:
    tensor_rows_fini(&r);
    return st;
}

uint64_t quantize_file_needed(const struct quantize_file *q)
{
    uint64_t n_needed = 0;
    for (int i = 0; i < CKPT_TEXT_COUNT; i++) {
        size_t n = 0;
        (void)ckpt_text(q->c, (enum ckpt_text)i, &n);
        n_needed += n;
    }
    for (size_t i = 0; i < ckpt_tensor_count(q->c); i++) {
        const struct ckpt_tensor_spec spec =
            quantize_spec(ckpt_tensor_at(q->c, i), &q->choices[i], "rtn");
        n_needed += ckpt_room_needed(&spec, 1, 0);
    }
    return n_needed;
}

struct status quantize_rest(struct quantize_file *q, const bool *skip)
{
    TRY(quantize_texts(q));
    for (size_t i = 0; i < ckpt_tensor_count(q->c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(q->c, i);
        q->total_elems += t->n_rows * t->n_cols;
    }
    for (size_t i = 0; i < ckpt_tensor_count(q->c); i++) {
        if (skip == NULL || !skip[i]) TRY(quantize_tensor(q, i));
    }
    return status_ok();
}
