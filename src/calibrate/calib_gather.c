/* Passes over the calibration set. The inputs of linears are captured and sent to every rank,
 * sequence by sequence, and each rank adds them to its own rows of the second moments. */
#include "calibrate/calibrate_private.h"

#include "base/mem.h"

#include <string.h>

/* ---- capture ---- */

static struct status calib_gather_reserve(struct calib_capture *k, size_t n_seen, size_t n_floats)
{
    if (n_seen > k->seen_capacity) {
        const size_t want = n_seen + n_seen / 2 + 16;
        TRY(mem_grow(&k->seen, k->n_seen, want, sizeof *k->seen, "captured rows"));
        k->seen_capacity = want;
    }
    if (n_floats > k->floats_capacity) {
        const size_t want = n_floats + n_floats / 4;
        TRY(mem_grow(&k->rows, k->n_floats, want, sizeof *k->rows, "captured rows"));
        k->floats_capacity = want;
    }
    return status_ok();
}

/* The stage's hook (struct tap). Captures the input rows of a linear. */
static void see(void *ctx, enum tap_site site, uint32_t expert, const float *x, size_t n_rows,
                size_t n)
{
    struct calib *c = ctx;
    struct calib_capture *k = &c->mine;
    const struct calib_unit *u = calib_unit_of(c, site, expert);
    if (u == NULL || !u->is_wanted || status_failed(&k->st)) return;
    k->st = calib_gather_reserve(k, k->n_seen + 1, k->n_floats + n_rows * n);
    if (status_failed(&k->st)) return;
    k->seen[k->n_seen++] =
        (struct calib_seen){.unit = (uint32_t)(u - c->units), .n = (uint32_t)n, .n_rows = n_rows};
    memcpy(k->rows + k->n_floats, x, n_rows * n * sizeof *x);
    k->n_floats += n_rows * n;
}

static void add_seen(struct calib *c, const struct calib_capture *k)
{
    const float *rows = k->rows;
    for (size_t i = 0; i < k->n_seen; i++) {
        const struct calib_seen *s = &k->seen[i];
        hessian_add(c->o->kern->team, &c->units[s->unit].h, rows, s->n, s->n_rows);
        rows += s->n_rows * s->n;
    }
}

/* Sends the captured rows of every rank to all ranks, in the order of the ranks. Each rank adds
 * them to its rows of the second moments. */
static struct status calib_gather_exchange(struct calib *c)
{
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        struct calib_capture *k = r == c->rank ? &c->mine : &c->theirs;
        uint64_t sizes[2] = {k->n_seen, k->n_floats};
        comm_broadcast(c->o->comm, COMM_WORLD, (int)r, sizes, sizeof sizes);
        if (r != c->rank) {
            k->n_seen = k->n_floats = 0;
            k->st = calib_gather_reserve(k, sizes[0], sizes[1]);
        }
        TRY(comm_agree(c->o->comm, k->st));
        k->n_seen = sizes[0];
        k->n_floats = sizes[1];
        comm_broadcast(c->o->comm, COMM_WORLD, (int)r, k->seen, k->n_seen * sizeof *k->seen);
        comm_broadcast(c->o->comm, COMM_WORLD, (int)r, k->rows, k->n_floats * sizeof *k->rows);
        add_seen(c, k);
    }
    return status_ok();
}

/* ---- passes ---- */

static struct status forward_one(struct calib *c, size_t seq, struct hidden *h)
{
    const struct seq_rows rows = {.row0 = 0, .n_rows = h->n_rows, .pos0 = 0, .blocks = c->blocks};
    TRY(stage_forward(c->stage, &rows, 1, NULL, false, h));
    for (size_t t = 0; t < h->n_rows; t++) {
        if (h->bad[t] == 0) continue;
        return status_make(STATUS_INPUT,
                           "layer %u, calibration sequence %zu, token %zu: values too large for "
                           "the grid, or not numbers",
                           c->layer, seq + 1, t);
    }
    return status_ok();
}

/* Makes one pass that leaves the hidden rows unchanged. In each round every rank runs one sequence
 * or, in the last round, perhaps none. */
static struct status calib_gather_watch(struct calib *c)
{
    c->tap = (struct tap){.see = see, .ctx = c};
    for (size_t first = 0; first < c->o->n_seqs; first += c->n_ranks) {
        const size_t seq = first + c->rank;
        struct calib_capture *k = &c->mine;
        k->n_seen = k->n_floats = 0;
        k->st = status_ok();
        if (seq < c->o->n_seqs) {
            const size_t n = c->hidden[seq].n_rows, width = c->o->model->width;
            struct hidden copy = hidden_view(c->scratch, n, width);
            memcpy(c->scratch, c->buffers[seq], hidden_bytes(n, width));
            const struct status st = forward_one(c, seq, &copy);
            if (!status_failed(&k->st)) k->st = st;
        }
        TRY(calib_gather_exchange(c));
    }
    return status_ok();
}

static void ignore(void *ctx, enum tap_site site, uint32_t expert, const float *x, size_t n_rows,
                   size_t n)
{
    (void)ctx, (void)site, (void)expert, (void)x, (void)n_rows, (void)n;
}

struct status calib_forward(struct calib *c)
{
    struct status st = status_ok();
    c->tap = (struct tap){.see = ignore};
    for (size_t seq = c->rank; seq < c->o->n_seqs && !status_failed(&st); seq += c->n_ranks) {
        st = forward_one(c, seq, &c->hidden[seq]);
    }
    return comm_agree(c->o->comm, st);
}

/* ---- the units of a pass ---- */

void calib_forget(struct calib *c)
{
    for (uint32_t i = 0; i < c->n_units; i++) {
        hessian_fini(&c->units[i].h);
        c->units[i].is_wanted = false;
    }
    c->is_gathered = false;
}

/* Finds this rank's rows of a unit's H; none if the unit is not quantized. */
static void calib_gather_rows_of(const struct calib *c, const struct calib_unit *u, uint32_t *begin,
                                 uint32_t *end)
{
    *begin = u->is_quantized ? hessian_cut(u->n_in, c->n_ranks, c->rank) : 0;
    *end = u->is_quantized ? hessian_cut(u->n_in, c->n_ranks, c->rank + 1) : 0;
}

/* Chooses the units [first, *end) that are gathered in one pass: at least one quantized unit, and
 * no more than the memory allows. Counts the bytes of the last rank, which has the most rows, so
 * that all ranks choose the same units. */
static void choose_bunch(const struct calib *c, uint32_t first, uint32_t *end)
{
    uint64_t used = 0;
    for (*end = first; *end < c->n_units; (*end)++) {
        const struct calib_unit *u = &c->units[*end];
        if (!u->is_quantized) continue;
        const uint64_t need =
            hessian_bytes(u->n_in, hessian_cut(u->n_in, c->n_ranks, c->n_ranks - 1), u->n_in);
        if (used > 0 && used + need > c->o->memory_bytes) return;
        used += need;
    }
}

/* Gathers the second moments of units [begin, end). Every pass also gathers the sums and maxima of
 * units that are not quantized, and of the unit of TAP_FFN, whose scale the experts share. */
static struct status calib_gather_bunch(struct calib *c, uint32_t begin, uint32_t end)
{
    struct status st = status_ok();
    calib_forget(c);
    for (uint32_t i = 0; i < c->n_units && !status_failed(&st); i++) {
        struct calib_unit *u = &c->units[i];
        uint32_t row0, row1;
        const bool is_in = i >= begin && i < end;
        u->is_wanted = is_in || !u->is_quantized || u->site == TAP_FFN;
        if (!u->is_wanted) continue;
        calib_gather_rows_of(c, u, &row0, &row1);
        if (!is_in) row0 = row1 = 0;
        st = hessian_init(&u->h, u->n_in, row0, row1);
    }
    TRY(comm_agree(c->o->comm, st));
    TRY(calib_gather_watch(c));
    c->is_gathered = begin == 0 && end == c->n_units;
    return status_ok();
}

struct status calib_gather_statistics(struct calib *c)
{
    struct status st = status_ok();
    calib_forget(c);
    for (uint32_t i = 0; i < c->n_units && !status_failed(&st); i++) {
        c->units[i].is_wanted = true;
        st = hessian_init(&c->units[i].h, c->units[i].n_in, 0, 0);
    }
    TRY(comm_agree(c->o->comm, st));
    return calib_gather_watch(c);
}

static void assemble(struct calib *c, const struct calib_unit *u)
{
    const size_t row_bytes = (size_t)u->n_in * sizeof *c->full;
    memcpy((char *)c->full + u->h.begin * row_bytes, u->h.h, (u->h.end - u->h.begin) * row_bytes);
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        const size_t begin = hessian_cut(u->n_in, c->n_ranks, r);
        const size_t end = hessian_cut(u->n_in, c->n_ranks, r + 1);
        comm_broadcast(c->o->comm, COMM_WORLD, (int)r, (char *)c->full + begin * row_bytes,
                       (end - begin) * row_bytes);
    }
    hessian_mirror(c->full, u->n_in);
}

struct status calib_visit_units(struct calib *c, calib_visit *visit, void *ctx)
{
    uint32_t end;
    for (uint32_t begin = 0; begin < c->n_units; begin = end) {
        choose_bunch(c, begin, &end);
        if (!c->is_gathered) TRY(calib_gather_bunch(c, begin, end));
        for (uint32_t i = begin; i < end; i++) {
            if (!c->units[i].is_quantized) continue;
            assemble(c, &c->units[i]);
            TRY(visit(c, &c->units[i], ctx));
        }
    }
    return status_ok();
}
