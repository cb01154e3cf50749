/* Measures the error that rounding to quantized values causes. */
#include "base/mem.h"
#include "quant/fp_reset.h"
#include "quant/quantize_private.h"
#include "quant/share.h"

#include <math.h>

enum {
    LOSS_ROWS = 4,    /* rows that a thread takes at a time */
    LOSS_SPAN = 1024, /* inputs that are dequantized at a time */
    LOSS_CHAINS = 16, /* partial sums of a span, so that additions do not wait for each other */
};

struct loss_job {
    struct quant_decoder decoder;
    const float *rows;
    struct quant_loss *sums; /* [n_rows] */
};

/* Adds the loss of n values x that were rounded to y. */
QUANT_CLONES
static void span_loss(const float *x, const float *y, size_t n, struct quant_loss *sum)
{
    double error[LOSS_CHAINS] = {0}, energy[LOSS_CHAINS] = {0};
    size_t k = 0;
    for (; k + LOSS_CHAINS <= n; k += LOSS_CHAINS) {
        for (size_t i = 0; i < LOSS_CHAINS; i++) {
            const double d = (double)y[k + i] - (double)x[k + i];
            error[i] += d * d;
            energy[i] += (double)x[k + i] * (double)x[k + i];
        }
    }
    for (size_t i = 0; k < n; k++, i++) {
        const double d = (double)y[k] - (double)x[k];
        error[i] += d * d;
        energy[i] += (double)x[k] * (double)x[k];
    }
    for (size_t i = 0; i < LOSS_CHAINS; i++) {
        sum->error += error[i];
        sum->energy += energy[i];
    }
}

static void loss_piece(void *ctx, size_t begin, size_t end)
{
    const struct loss_job *j = ctx;
    const size_t n_in = j->decoder.n_in;
    float y[LOSS_SPAN];
    for (size_t row = begin; row < end; row++) {
        for (size_t k = 0; k < n_in; k += LOSS_SPAN) {
            const size_t n = n_in - k < LOSS_SPAN ? n_in - k : LOSS_SPAN;
            quant_dequantize_span(&j->decoder, row, k, k + n, y);
            span_loss(j->rows + row * n_in + k, y, n, &j->sums[row]);
        }
    }
}

struct status quant_loss_add(struct team *team, struct quant_format f,
                             const struct quant_values *from, const struct quant_block *b,
                             struct quant_loss *loss)
{
    struct loss_job j = {.decoder = {.f = f, .n_in = from->n_in, .block = b}, .rows = from->rows};
    quant_table_init(f, &j.decoder.table);
    TRY(mem_alloc(&j.sums, from->n_rows, sizeof j.sums[0], "a loss for each row"));
    share_run(team, from->n_rows, LOSS_ROWS, loss_piece, &j);
    for (size_t row = 0; row < from->n_rows; row++) {
        loss->error += j.sums[row].error;
        loss->energy += j.sums[row].energy;
    }
    loss->n_rows += from->n_rows;
    mem_free(&j.sums);
    return status_ok();
}

double quant_loss_rms(const struct quant_loss *loss)
{
    return loss->energy > 0 ? sqrt(loss->error / loss->energy) : 0;
}
