/* Reads rows out of blocks. */
#include "calibrate/tensor_rows.h"

#include "base/mem.h"
#include "quant/quantize.h"

#include <string.h>

struct status tensor_rows_init(struct tensor_rows *r, struct ckpt *c, const struct ckpt_tensor *t,
                               struct team *team)
{
    const bool is_quantized = t->quant.kind != QUANT_NONE;
    *r = (struct tensor_rows){.c = c, .t = t, .team = team};
    for (int i = 0; i < CKPT_PART_COUNT; i++) {
        struct tensor_block *b = &r->blocks[i];
        b->stored = is_quantized ? t->parts[i] : i == 0 ? t : NULL;
        if (b->stored == NULL) continue;
        const struct status st = mem_map(&b->bytes, ckpt_block_bytes(b->stored, 0), "a block");
        if (status_failed(&st)) {
            tensor_rows_fini(r);
            return st;
        }
    }
    return status_ok();
}

void tensor_rows_fini(struct tensor_rows *r)
{
    for (int i = 0; i < CKPT_PART_COUNT; i++) {
        struct tensor_block *b = &r->blocks[i];
        if (b->bytes != NULL) mem_unmap(&b->bytes, ckpt_block_bytes(b->stored, 0));
    }
    quant_block_destroy(&r->scratch);
}

/* Reads block `block` unless it is in memory. */
static struct status tensor_rows_fetch(struct tensor_rows *r, struct tensor_block *b,
                                       uint64_t block)
{
    if (b->has_block && b->block == block) return status_ok();
    b->has_block = false; /* after a failed read no block is valid */
    TRY(ckpt_read_block(r->c, b->stored, block, b->bytes));
    b->block = block;
    b->has_block = true;
    return status_ok();
}

/* *from = the rows from row0 on that are in row0's block; *n = their number, at most n_rows. */
static struct status block_rows(struct tensor_rows *r, struct tensor_block *b, uint64_t row0,
                                uint64_t n_rows, const char **from, uint64_t *n)
{
    const struct ckpt_tensor *t = b->stored;
    const uint64_t block = row0 / t->rows_per_block;
    const uint64_t skipped = row0 - block * t->rows_per_block;
    TRY(tensor_rows_fetch(r, b, block));
    *from = b->bytes + skipped * t->n_cols * dtype_bytes(t->dtype);
    *n = ckpt_block_rows(t, block) - skipped;
    if (*n > n_rows) *n = n_rows;
    return status_ok();
}

struct status tensor_rows_stored(struct tensor_rows *r, enum ckpt_part part, uint64_t row0,
                                 uint64_t n_rows, void *out)
{
    struct tensor_block *b = &r->blocks[part];
    const size_t row_bytes = (size_t)(b->stored->n_cols * dtype_bytes(b->stored->dtype));
    const char *from;
    for (uint64_t done = 0, n; done < n_rows; done += n) {
        TRY(block_rows(r, b, row0 + done, n_rows - done, &from, &n));
        memcpy((char *)out + done * row_bytes, from, n * row_bytes);
    }
    return status_ok();
}

static struct status quantized_f32(struct tensor_rows *r, uint64_t row0, uint64_t n_rows,
                                   float *out)
{
    const struct quant_format f = r->t->quant;
    if (n_rows > r->n_scratch) {
        quant_block_destroy(&r->scratch);
        r->n_scratch = 0;
        TRY(quant_block_create(f, n_rows, r->t->n_cols, &r->scratch));
        r->n_scratch = n_rows;
    }
    TRY(tensor_rows_stored(r, CKPT_CODES, row0, n_rows, r->scratch.codes));
    TRY(tensor_rows_stored(r, CKPT_SCALES, row0, n_rows, r->scratch.scales));
    if (f.has_zeros) TRY(tensor_rows_stored(r, CKPT_ZEROS, row0, n_rows, r->scratch.zeros));
    quant_dequantize_rows(r->team, f, &r->scratch, n_rows, r->t->n_cols, out);
    return status_ok();
}

struct status tensor_rows_f32(struct tensor_rows *r, uint64_t row0, uint64_t n_rows, float *out)
{
    if (r->t->quant.kind != QUANT_NONE) return quantized_f32(r, row0, n_rows, out);
    const struct ckpt_tensor *t = r->t;
    const char *from;
    for (uint64_t done = 0, n; done < n_rows; done += n) {
        TRY(block_rows(r, &r->blocks[0], row0 + done, n_rows - done, &from, &n));
        dtype_to_f32(t->dtype, from, (size_t)(n * t->n_cols), out + done * t->n_cols);
    }
    return status_ok();
}
