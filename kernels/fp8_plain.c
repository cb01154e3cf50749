/* Looks for NaN among fp8 codes, panel (packed tile) by panel. */
#include "kernels/fp8_plain.h"

#include "kernels/cpu.h"
#include "kernels/part.h"
#include "kernels/quant_body.h"

#include <assert.h>
#include <stdatomic.h>

enum {
    LINE = QUANT_QUAD * PANEL_COLUMNS, /* bytes of four inputs of a panel */
    SIZE_BITS = 0x7F,                  /* the magnitude bits of an E4M3 number */
    NAN_BITS = 0x7F,
};

/* Returns whether one of n codes is NaN; n is a multiple of LINE. */
static bool have_nan(const uint8_t *codes, size_t n)
{
    uint8_t most[LINE] = {0}, all = 0;
    for (const uint8_t *end = codes + n; codes < end; codes += LINE) {
        for (size_t i = 0; i < LINE; i++) {
            const uint8_t size = codes[i] & SIZE_BITS;
            most[i] = size > most[i] ? size : most[i];
        }
    }
    for (size_t i = 0; i < LINE; i++) all = most[i] > all ? most[i] : all;
    return all == NAN_BITS;
}

struct search {
    const struct packed *w;
    size_t n_panels, panel_bytes;
    atomic_bool *found;
};

static void search_part(const void *job, struct part part)
{
    const struct search *s = job;
    size_t p, end;
    if (!part_take(&part, s->n_panels, s->panel_bytes / LINE + 1, &p, &end)) return;
    const uint8_t *codes = (const uint8_t *)s->w->data + p * s->panel_bytes;
    if (have_nan(codes, (end - p) * s->panel_bytes)) atomic_store(s->found, true);
}

bool op_fp8_has_nan(const struct kern_table *k, const struct packed *w)
{
    assert(k->device == NULL && w->quant.kind == QUANT_FP8);
    atomic_bool found = false;
    const struct search s = {.w = w,
                             .n_panels = ((size_t)w->n_out + PANEL_COLUMNS - 1) / PANEL_COLUMNS,
                             .panel_bytes = kern_quant_panel_bytes(w->quant, w->n_in),
                             .found = &found};
    part_run(k->team, s.n_panels * (s.panel_bytes / LINE + 1), search_part, &s);
    return found;
}

void op_fp8_plain(const struct kern_table *k, struct packed *w)
{
    w->fp8_plain = w->quant.kind == QUANT_FP8 && cpu_subnormals_are_fast() && !op_fp8_has_nan(k, w);
}
