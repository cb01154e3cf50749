/* Measures what rounding to codes loses. */
#include "base/mem.h"
#include "quant/fp_reset.h"
#include "quant/quantize.h"
#include "quant/share.h"

#include <math.h>

enum {
    LOSS_ROWS = 4,    /* that a thread takes at once */
    LOSS_CHAINS = 16, /* partial sums of a row, so that additions do not wait for each other */
};

struct loss_job {
    struct quant_format f;
    const float *rows;
    size_t n_in;
    const struct quant_block *b;
    float *values;           /* [n_rows, n_in], what the codes stand for */
    struct quant_loss *sums; /* [n_rows] */
};

QUANT_CLONES
static struct quant_loss row_loss(const float *x, const float *y, size_t n)
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
    struct quant_loss sum = {0};
    for (size_t i = 0; i < LOSS_CHAINS; i++) {
        sum.error += error[i];
        sum.energy += energy[i];
    }
    return sum;
}

static void loss_piece(void *ctx, size_t begin, size_t end)
{
    const struct loss_job *j = ctx;
    for (size_t row = begin; row < end; row++) {
        j->sums[row] = row_loss(j->rows + row * j->n_in, j->values + row * j->n_in, j->n_in);
    }
}

struct status quant_loss_add(struct team *team, struct quant_format f, const float *rows,
                             size_t n_rows, size_t n_in, const struct quant_block *b,
                             struct quant_loss *loss)
{
    struct loss_job j = {.f = f, .rows = rows, .n_in = n_in, .b = b};
    const size_t n_bytes = n_rows * n_in * sizeof(float);
    struct status st;
    TRY_GOTO(st, mem_map(&j.values, n_bytes, "rounded rows"), out);
    TRY_GOTO(st, mem_alloc(&j.sums, n_rows, sizeof j.sums[0], "a loss for each row"), out);
    quant_dequantize_rows(team, f, b, n_rows, n_in, j.values);
    share_run(team, n_rows, LOSS_ROWS, loss_piece, &j);
    for (size_t row = 0; row < n_rows; row++) {
        loss->error += j.sums[row].error;
        loss->energy += j.sums[row].energy;
    }
    loss->n_rows += n_rows;
out:
    mem_free(&j.sums);
    if (j.values != NULL) mem_unmap(&j.values, n_bytes);
    return st;
}

double quant_loss_rms(const struct quant_loss *loss)
{
    return loss->energy > 0 ? sqrt(loss->error / loss->energy) : 0;
}
