/* Runs the pieces of a loop as the parts of a team's job. */
#include "quant/share.h"

#include "quant/fp_reset.h"

struct share {
    share_fn *fn;
    void *ctx;
    size_t n, piece;
};

static void share_run_piece(void *job, uint32_t part)
{
    const struct share *s = job;
    const size_t begin = part * s->piece;
    if (begin >= s->n) return;
    fp_reset();
    s->fn(s->ctx, begin, s->n - begin < s->piece ? s->n : begin + s->piece);
}

void share_run(struct team *team, size_t n, size_t piece, share_fn *fn, void *ctx)
{
    const uint32_t n_threads = team_size(team);
    const size_t n_pieces = (n + piece - 1) / piece;
    struct share s = {fn, ctx, n, piece};
    if (n_pieces <= 1) {
        share_run_piece(&s, 0);
    } else {
        team_run(team, (uint32_t)((n_pieces + n_threads - 1) / n_threads), share_run_piece, &s);
    }
}
