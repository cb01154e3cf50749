/* Reads the value of --save-hidden. */
#include "arch/hidden_layers.h"

#include <stdlib.h>
#include <string.h>

/* Reads one of the layers, text [n]. */
static struct status read_layer_number(const char *text, size_t n, uint32_t n_layers, uint32_t *out)
{
    static const char final[] = "final";
    char *end;
    *out = n_layers;
    if (n == sizeof final - 1 && memcmp(text, final, n) == 0) return status_ok();
    const bool begins_well = *text == '-' || (*text >= '0' && *text <= '9');
    const long value = strtol(text, &end, 10);
    const long layer = value < 0 ? value + (long)n_layers : value;
    if (begins_well && end == text + n && layer >= 0 && layer < (long)n_layers) {
        *out = (uint32_t)layer;
        return status_ok();
    }
    return status_make(STATUS_USAGE,
                       "--save-hidden: expected layers from 0 to %u, from -1 down to -%u, or "
                       "final, found '%.*s'",
                       n_layers - 1, n_layers, (int)n, text);
}

static struct status add_layer(uint32_t layer, struct hidden_layers *out)
{
    for (uint32_t i = 0; i < out->n; i++) {
        if (out->at[i] == layer)
            return status_make(STATUS_USAGE, "--save-hidden: entries %u and %u are the same layer",
                               i + 1, out->n + 1);
    }
    if (out->n == HIDDEN_LAYERS_MAX)
        return status_make(STATUS_USAGE, "--save-hidden: expected at most %d layers",
                           (int)HIDDEN_LAYERS_MAX);
    out->at[out->n++] = layer;
    return status_ok();
}

struct status hidden_layers_parse(const char *text, uint32_t n_layers, struct hidden_layers *out)
{
    out->n = 0;
    for (const char *at = text;; at++) {
        const size_t n = strcspn(at, ",");
        uint32_t layer;
        TRY(read_layer_number(at, n, n_layers, &layer));
        TRY(add_layer(layer, out));
        at += n;
        if (*at == '\0') return status_ok();
    }
}

uint32_t hidden_layers_within(const struct hidden_layers *l, uint32_t begin, uint32_t end,
                              uint32_t entries[HIDDEN_LAYERS_MAX])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->at[i] >= begin && l->at[i] < end) entries[n++] = i;
    return n;
}
