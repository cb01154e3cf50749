/* Sends the rows that --save-hidden saves to the lead, which joins the layers of each replica.
 *
 *   message of a stage   [rows that the plan asks for, the stage's saved layers, D] values of the
 *                        saved type; layers in the order of o.hidden->at. Without such rows
 *                        or layers there is no message
 *   step_result.hidden   [the same rows, all saved layers, D] */
#include "engine/engine_private.h"

#include "base/mem.h"
#include "kernels/device.h"

#include <string.h>

static const char what[] = "hidden rows to be saved";

static void find_layers(const struct engine *e, uint32_t stage, struct hidden_part *out)
{
    const struct range layers = layout_layers(e->o.layout, stage);
    const bool is_last = stage + 1 == e->o.layout->pp;
    const uint32_t n_layers = e->o.model->n_layers; /* layer n_layers: rows after the final norm */
    out->n = hidden_layers_within(e->o.hidden, layers.begin, is_last ? n_layers + 1 : layers.end,
                                  out->entries);
}

struct status engine_create_hidden(struct engine *e)
{
    struct engine_hidden *s = &e->saved;
    const uint32_t pp = e->o.layout->pp;
    if (e->o.hidden == NULL || e->o.hidden->n == 0) return status_ok();
    s->layer_bytes = e->o.model->width * dtype_bytes(e->o.hidden->type);
    s->n_slots = pp + 1; /* one more than steps in flight: a reused slot's message has arrived */
    TRY(mem_alloc(&s->slots, s->n_slots, sizeof *s->slots, what));
    TRY(mem_alloc(&s->rows, e->o.max_rows, sizeof *s->rows, what));
    TRY(mem_alloc(&s->parts, pp, sizeof *s->parts, what));
    for (uint32_t i = 0; i < pp; i++) find_layers(e, i, &s->parts[i]);
    return status_ok();
}

void engine_destroy_hidden(struct engine *e)
{
    struct engine_hidden *s = &e->saved;
    for (size_t i = 0; s->slots != NULL && i < s->n_slots; i++) {
        comm_wait(e->o.comm, &s->slots[i].sent);
        mem_free(&s->slots[i].bytes);
    }
    mem_free(&s->slots);
    mem_free(&s->rows);
    mem_free(&s->parts);
    mem_free(&s->floats);
    mem_free(&s->received);
}

/* Lists the rows that the plan asks for, in s->rows. Returns their number. */
static size_t list_rows(struct engine *e, const struct batch *b)
{
    size_t n = 0, row0 = 0;
    for (size_t i = 0; i < b->n_seqs; i++) {
        const struct plan_seq *s = &b->seqs[i];
        for (int32_t r = 0; r < s->n_hidden; r++)
            e->saved.rows[n++] = row0 + (size_t)(s->hidden_from + r);
        row0 += (size_t)s->n_rows;
    }
    return n;
}

/* Sets *rows to all rows [T, D] of a layer, in host memory. */
static struct status get_layer(struct engine *e, uint32_t layer, size_t n_rows, const float **rows)
{
    struct engine_hidden *s = &e->saved;
    const size_t width = e->o.model->width;
    *rows = stage_kept_rows(e->stage, layer);
    if (e->o.kern->device == NULL) return status_ok();
    if (s->floats == NULL) TRY(mem_alloc(&s->floats, e->o.max_rows * width, sizeof(float), what));
    mem_ops_get(e->o.kern, s->floats, *rows, n_rows * width * sizeof(float));
    *rows = s->floats;
    return device_status(e->o.kern->device);
}

/* Writes the listed rows [n] of entry j of the part to a message. */
static struct status pack_layer(struct engine *e, const struct hidden *h,
                                const struct hidden_part *part, uint32_t j, size_t n, char *to)
{
    const struct engine_hidden *s = &e->saved;
    const size_t width = e->o.model->width, stride = part->n * s->layer_bytes;
    const uint32_t layer = e->o.hidden->at[part->entries[j]];
    const bool is_final = layer >= e->o.model->n_layers;
    const float *rows;
    if (is_final)
        TRY(engine_normed_rows(e, h, s->rows, n, &rows));
    else
        TRY(get_layer(e, layer, h->n_rows, &rows));
    to += j * s->layer_bytes;
    for (size_t i = 0; i < n; i++, to += stride)
        dtype_from_f32(e->o.hidden->type, rows + (is_final ? i : s->rows[i]) * width, width, to);
    return status_ok();
}

static struct status place_bytes(char **bytes, size_t *capacity, size_t n)
{
    if (n <= *capacity) return status_ok();
    TRY(mem_grow(bytes, 0, n, 1, what));
    *capacity = n;
    return status_ok();
}

struct status engine_send_hidden(struct engine *e, const struct batch *b, const struct hidden *h)
{
    struct engine_hidden *s = &e->saved;
    if (s->parts == NULL || e->place.tp != 0) return status_ok();
    const struct hidden_part *part = &s->parts[e->place.pp];
    const size_t n = list_rows(e, b), n_bytes = n * part->n * s->layer_bytes;
    struct hidden_slot *slot = &s->slots[e->n_runs % s->n_slots];
    if (n_bytes == 0) return status_ok();
    comm_wait(e->o.comm, &slot->sent);
    TRY(place_bytes(&slot->bytes, &slot->capacity, n_bytes));
    for (uint32_t j = 0; j < part->n; j++) TRY(pack_layer(e, h, part, j, n, slot->bytes));
    comm_send_start(e->o.comm, 0, COMM_TAG_SAVED, slot->bytes, n_bytes, &slot->sent);
    e->stats.n_sent++;
    return status_ok();
}

/* Receives the message of a stage from its rank `from` (the drawing above), and copies its layers
 * of the n rows to out->hidden. */
static struct status take_stage_part(struct engine *e, int from, const struct hidden_part *part,
                                     size_t n, struct step_result *out)
{
    struct engine_hidden *s = &e->saved;
    const size_t expected = n * part->n * s->layer_bytes;
    const size_t n_bytes = comm_probe(e->o.comm, from, COMM_TAG_SAVED);
    if (n_bytes != expected)
        return status_make(STATUS_BUG, "%s: expected %zu bytes from rank %d, found %zu", what,
                           expected, from, n_bytes);
    TRY(place_bytes(&s->received, &s->received_capacity, n_bytes));
    comm_recv(e->o.comm, from, COMM_TAG_SAVED, s->received, n_bytes);
    const char *at = s->received;
    for (size_t i = 0; i < n; i++) {
        char *row = out->hidden + i * out->hidden_row_bytes;
        for (uint32_t j = 0; j < part->n; j++, at += s->layer_bytes)
            memcpy(row + part->entries[j] * s->layer_bytes, at, s->layer_bytes);
    }
    return status_ok();
}

struct status engine_collect_hidden(struct engine *e, int32_t replica, struct step_result *out)
{
    const struct engine_hidden *s = &e->saved;
    size_t n = 0;
    for (size_t i = 0; i < out->n_seqs; i++) n += (size_t)out->seqs[i].n_hidden;
    if (n == 0) return status_ok();
    if (s->parts == NULL) return status_make(STATUS_BUG, "%s: none were expected", what);
    TRY(step_result_place_hidden(out, n, e->o.hidden->n * s->layer_bytes));
    for (uint32_t stage = 0; stage < e->o.layout->pp; stage++) {
        const int from = (int)layout_rank_of(e->o.layout, (uint32_t)replica, stage, 0);
        if (s->parts[stage].n > 0) TRY(take_stage_part(e, from, &s->parts[stage], n, out));
    }
    return status_ok();
}
