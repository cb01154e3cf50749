/* Tells the loader which slabs to read, and where to put its pieces: into the packed weights of a
 * rank, or of the packed copy of the experts. */
#include "base/mem.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "weights/weights_private.h"

struct packed weights_packed_like(const struct weight_spec *s, const struct ckpt_tensor *t)
{
    return (struct packed){.dtype = t->dtype,
                           .n_out = range_count(s->rows),
                           .n_in = range_count(s->cols),
                           .leaf = t->leaf_elems,
                           .grid_bits = t->grid_bits,
                           .quant = t->quant};
}

static struct status weights_wants_reserve(struct loading *ld, size_t n)
{
    if (ld->n_targets + n <= ld->capacity) return status_ok();
    const size_t grown = ld->capacity == 0 ? 64 : 2 * ld->capacity;
    TRY(mem_grow(&ld->targets, ld->n_targets, grown, sizeof *ld->targets, "weights"));
    TRY(mem_grow(&ld->wants, ld->n_targets, grown, sizeof *ld->wants, "weights"));
    ld->capacity = grown;
    return status_ok();
}

/* Asks the loader for columns [col0, col0 + n_cols) of a stored dataset, for a target. */
static void want(struct loading *ld, struct target t, const struct ckpt_tensor *stored,
                 uint64_t col0, uint64_t n_cols)
{
    ld->wants[ld->n_targets] = (struct slab_want){.tensor = stored,
                                                  .outer0 = t.spec.outer.begin,
                                                  .n_outer = range_count(t.spec.outer),
                                                  .row0 = t.spec.rows.begin,
                                                  .n_rows = range_count(t.spec.rows),
                                                  .col0 = col0,
                                                  .n_cols = n_cols};
    ld->targets[ld->n_targets++] = t;
}

/* Asks for the columns of a part that cover the target's inputs. The first input is the first of a
 * quantization group. */
static void want_part(struct loading *ld, struct target t, enum ckpt_part part)
{
    const struct ckpt_tensor *stored = t.tensor->parts[part];
    const struct quant_format f = t.tensor->quant;
    const struct range cols = t.spec.cols;
    t.part = part;
    if (stored == NULL) return;
    if (part != CKPT_CODES && f.group == 0) { /* one scale for the whole row */
        want(ld, t, stored, 0, 1);
        return;
    }
    const uint64_t col0 = ckpt_part_columns(part, f, cols.begin);
    want(ld, t, stored, col0, ckpt_part_columns(part, f, cols.end) - col0);
}

struct status weights_want(struct loading *ld, struct target t)
{
    TRY(weights_wants_reserve(ld, CKPT_PART_COUNT));
    if (t.tensor->quant.kind == QUANT_NONE) {
        want(ld, t, t.tensor, t.spec.cols.begin, range_count(t.spec.cols));
        return status_ok();
    }
    for (int part = 0; part < CKPT_PART_COUNT; part++) want_part(ld, t, (enum ckpt_part)part);
    return status_ok();
}

static void take_latent(const struct kern_table *kern, const struct latent_weights *latent,
                        const struct target *t, const struct slab_piece *piece)
{
    const uint32_t n_k = latent->k_b[0].n_in, n_v = latent->v_b[0].n_out;
    for (uint64_t i = 0, n; i < piece->n_rows; i += n) {
        const uint64_t row = piece->row - t->spec.rows.begin + i, at = row % (n_k + n_v);
        const uint64_t head = row / (n_k + n_v), left = piece->n_rows - i;
        const uint64_t of_part = at < n_k ? n_k - at : n_k + n_v - at;
        n = left < of_part ? left : of_part;
        const struct matrix_rows rows = {.data =
                                             (const char *)piece->data + i * piece->stride_bytes,
                                         .stride_bytes = piece->stride_bytes,
                                         .row0 = at < n_k ? at : at - n_k,
                                         .n = n};
        if (at < n_k)
            op_pack_columns(kern, &latent->k_b[head], &rows);
        else
            op_pack_rows(kern, &latent->v_b[head], &rows);
    }
}

static enum packed_part weights_wants_part_of(enum ckpt_part part)
{
    if (part == CKPT_CODES) return PACKED_CODES;
    return part == CKPT_SCALES ? PACKED_SCALES : PACKED_ZEROS;
}

static void weights_wants_put_rows(const struct kern_table *k, const struct target *t,
                                   const struct slab_piece *piece)
{
    const struct packed *p = &t->packed[piece->outer - t->spec.outer.begin];
    const struct matrix_rows rows = {.data = piece->data,
                                     .stride_bytes = piece->stride_bytes,
                                     .row0 = (size_t)(piece->row - t->spec.rows.begin),
                                     .n = (size_t)piece->n_rows};
    if (p->quant.kind == QUANT_NONE)
        op_pack_rows(k, p, &rows);
    else
        op_pack_quant(k, p, weights_wants_part_of(t->part), &rows);
}

/* Puts a row of the convolution's weights, the taps of one channel, into a column. */
static void put_conv(const struct loading *ld, float *to, const float *taps)
{
    const size_t n = weights_channels(ld);
    for (size_t j = 0; j < ld->m->delta.n_taps; j++) to[j * n] = taps[j];
}

/* Takes rows of a vector, of the experts' biases or of a convolution. */
static struct status take_floats(const struct loading *ld, const struct target *t,
                                 const struct slab_piece *piece)
{
    const size_t n = range_count(t->spec.cols), first = (size_t)piece->row - t->spec.rows.begin;
    float *values = NULL;
    TRY(mem_alloc(&values, n, sizeof *values, "a vector"));
    for (size_t r = 0; r < piece->n_rows; r++) {
        dtype_to_f32(t->tensor->dtype, (const char *)piece->data + r * piece->stride_bytes, n,
                     values);
        if (weights_is_conv(&t->spec)) {
            put_conv(ld, t->vector + first + r, values);
            continue;
        }
        if (weights_is_xielu(t->spec.role) || t->spec.role == WEIGHT_LAYER_SCALE) {
            *t->vector = values[0];
            continue;
        }
        mem_ops_put(ld->w->kern, t->vector + (first + r) * n, values, n * sizeof *values);
    }
    mem_free(&values);
    return device_status(ld->w->kern->device);
}

struct status weights_take_piece(void *ctx, const struct slab_piece *piece)
{
    const struct loading *ld = ctx;
    const struct target *t = &ld->targets[piece->want];
    if (t->spec.is_vector) return take_floats(ld, t, piece);
    if (t->spec.role == WEIGHT_KV_B) {
        take_latent(ld->w->kern, &layer_of(ld->w, &t->spec)->attention.latent, t, piece);
    } else {
        weights_wants_put_rows(ld->w->kern, t, piece);
    }
    return device_status(ld->w->kern->device);
}
