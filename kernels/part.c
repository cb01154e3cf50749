/* Runs the shares of an op on the threads of a team. */
#include "kernels/part.h"

#include "kernels/fpenv.h"

enum {
    /* Waking the team costs a microsecond or two: the time of about this many multiply-adds on one
     * thread. */
    PART_WORTH_TELLING = 1 << 16,
    /* A thread's work is divided into at most PIECES_MOST pieces (shares) of at least PART_PIECE
     * (in multiply-adds), which idle threads may take over. Smaller pieces shorten the wait at the
     * end: at least PART_SMALL_PIECE, at most SMALL_PIECES_MOST of them. They are used when the
     * team is calm (team_is_calm) and SMALL_PIECES_MOST pieces would be shorter than
     * PART_LONG_PIECE. */
    PART_PIECE = 1 << 20,
    PIECES_MOST = 16,
    PART_SMALL_PIECE = 1 << 17,
    SMALL_PIECES_MOST = 128,
    PART_LONG_PIECE = 1 << 21,
    /* While messages are under way, the calling thread polls after each piece, so no piece may take
     * long. */
    POLLED_PIECES_MOST = 64,
};

/* Returns the cost at which share i of n begins. */
static uint64_t share_begin(uint64_t cost, uint32_t i, uint32_t n)
{
    const uint64_t each = cost / n, rest = cost % n;
    return each * i + (i < rest ? i : rest);
}

/* Returns the number of pieces of a thread's work, whose cost is `cost`. */
static uint32_t pieces_of(uint64_t cost, bool is_calm, bool polls)
{
    const bool small = is_calm && cost / SMALL_PIECES_MOST < PART_LONG_PIECE;
    const uint64_t n = cost / (small ? PART_SMALL_PIECE : PART_PIECE);
    const uint64_t most = small ? SMALL_PIECES_MOST : polls ? POLLED_PIECES_MOST : PIECES_MOST;
    return n < 1 ? 1 : (uint32_t)(n < most ? n : most);
}

struct share_job {
    part_fn *fn;
    const void *job;
    uint64_t cost;
    uint32_t n_shares;
};

static void run_shares(void *job, uint32_t first, uint32_t n)
{
    const struct share_job *j = job;
    fpenv_set();
    j->fn(j->job, (struct part){share_begin(j->cost, first, j->n_shares),
                                share_begin(j->cost, first + n, j->n_shares), 0});
}

static void run_share(void *job, uint32_t i)
{
    run_shares(job, i, 1);
}

void part_run(struct team *team, uint64_t cost, part_fn *fn, const void *job)
{
    const uint32_t n = team_size(team);
    const bool is_calm = team_is_calm(team), polls = team_polls(team);
    const uint32_t pieces = pieces_of(cost / n, is_calm, polls);
    struct share_job j = {fn, job, cost, n * pieces};
    if ((n == 1 && !polls) || cost < PART_WORTH_TELLING) {
        j.n_shares = 1;
        run_share(&j, 0);
        return;
    }
    if (is_calm && !polls)
        team_run_spans(team, pieces, run_shares, &j);
    else
        team_run(team, pieces, run_share, &j);
}
