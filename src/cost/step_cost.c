/* The seconds of a step, part by part (step_cost.h has the formulas). */
#include "cost/step_cost.h"

#include "parallel/layout/layout_choose.h"
#include "parallel/wire/wire_bytes.h"

#include <math.h>
#include <string.h>

/* The load that layouts are compared by: prompts of 512 tokens, answers of 128. */
static const double reference_context = 512 + 128 / 2.0;
enum {
    ROWS_WORTH_CUTTING =
        8 /* rows for each tp rank from which on each tp rank holds only a slice of the rows */
};

const char *cost_part_title(enum cost_part part)
{
    static const char *const titles[] = {
#define COST_PART_TITLE(id, title) title,
        COST_PARTS(COST_PART_TITLE)
#undef COST_PART_TITLE
    };
    return titles[part];
}

double cost_total(const struct cost *c)
{
    double sum = 0;
    for (int i = 0; i < COST_PART_COUNT; i++) sum += c->s[i];
    return sum;
}

enum cost_part cost_bound(const struct cost *c)
{
    int most = 0;
    for (int i = 1; i < COST_PART_COUNT; i++)
        if (c->s[i] > c->s[most]) most = i;
    return (enum cost_part)most;
}

void cost_add(struct cost *sum, const struct cost *c, double times)
{
    for (int i = 0; i < COST_PART_COUNT; i++) sum->s[i] += times * c->s[i];
}

/* --- rows --------------------------------------------------------------------------------- */

/* Returns the positions that rows at pos0 .. pos0 + n - 1 see, summed, at most `window` each. */
static double positions_seen(double pos0, double n, double window)
{
    const double last = pos0 + n;
    if (window <= 0 || last <= window) return n * pos0 + n * (n + 1) / 2;
    if (pos0 >= window) return n * window;
    const double before = window - pos0;
    return before * pos0 + before * (before + 1) / 2 + (n - before) * window;
}

void cost_rows_add(struct cost_rows *rows, double pos0, double n_rows, double n_sampled,
                   double window)
{
    const bool is_one = n_rows <= COST_ONE_ROWS;
    double *seen = is_one ? rows->one : rows->many;
    seen[COST_FULL] += positions_seen(pos0, n_rows, 0);
    seen[COST_WINDOWED] += positions_seen(pos0, n_rows, window);
    rows->n_rows += n_rows;
    rows->n_sequences++;
    if (is_one) rows->n_one += n_rows;
    rows->n_sampled += n_sampled;
}

void cost_rows_of(const struct step_plan *plan, double window, struct cost_rows *rows)
{
    for (int32_t r = 0; r < plan->n_replicas; r++) {
        rows[r] = (struct cost_rows){0};
        for (int32_t i = plan->replica_begin[r]; i < plan->replica_begin[r + 1]; i++) {
            const struct plan_seq *s = &plan->seqs[i];
            const bool all = (s->want & (PLAN_SCORE | PLAN_LOGITS)) != 0;
            const double n_sampled = all ? s->n_rows : (s->want & PLAN_SAMPLE) != 0 ? 1 : 0;
            cost_rows_add(&rows[r], s->pos0, s->n_rows, n_sampled, window);
        }
    }
}

/* --- linears ------------------------------------------------------------------------------ */

/* Adds the seconds of linears that pass n_rows rows through n weights of a format. */
static void add_linears(const struct cost_model *m, enum node_format f, double n, double n_rows,
                        struct cost *out)
{
    if (n <= 0 || n_rows <= 0) return;
    const struct node_linear *y = node_linear_of(m->node, f);
    const double one =
        curve_time_at(m->is_cached ? &y->cached : &y->memory, n_rows < 1 ? 1 : n_rows);
    const double read = m->weight_bytes[f] / curve_at(&m->node->read, m->node->n_threads);
    const double reading = m->is_cached ? 0 : read < one ? read : one;
    out->s[COST_WEIGHTS] += m->ranks * n * reading * m->read_slower;
    out->s[COST_ARITHMETIC] += m->ranks * n * (one - reading) * m->arithmetic_slower;
}

/* Returns the part of a rank's experts that rows of n_batches replicas touch. */
static double touched_part(const struct cost_model *m, double n_rows)
{
    const struct arch *a = m->l->model.arch;
    return 1 - pow(1 - (double)a->moe.n_chosen / a->moe.n_experts, n_rows * m->n_batches);
}

/* Adds the experts' linears and gates for the rows of n_batches replicas. */
static void cost_experts(const struct cost_model *m, const struct cost_stage *s, double n_rows,
                         struct cost *out)
{
    const struct arch *a = m->l->model.arch;
    const double all = n_rows * m->n_batches, n_places = layout_n_places(m->l);
    const double chosen = all * a->moe.n_chosen * m->n_local / n_places;
    const double touched = m->n_local * touched_part(m, n_rows);
    if (chosen <= 0 || touched <= 0 || s->n_moe_layers == 0) return;
    for (int f = 0; f < NODE_FORMAT_COUNT; f++)
        add_linears(m, (enum node_format)f, s->expert[f] * touched / m->n_local, chosen / touched,
                    out);
    out->s[COST_ROW_OPS] +=
        m->ranks * m->arithmetic_slower * chosen *
        (s->chosen_gate * m->node->gate_s + s->n_moe_layers * a->width * m->node->norm_s);
}

/* --- attention and row ops ---------------------------------------------------------------- */

static void cost_attention(const struct cost_model *m, const struct cost_stage *s,
                           const struct cost_rows *rows, struct cost *out)
{
    const struct node *node = m->node;
    const double n_many = rows->n_rows - rows->n_one;
    const bool latent = m->l->model.arch->attn.kv_lora > 0; /* all heads read the same rows */
    for (int kind = 0; kind < COST_KINDS; kind++) {
        double seconds = 0;
        if (rows->n_one > 0)
            seconds +=
                rows->one[kind] * curve_at(latent ? &node->attention_many : &node->attention_one,
                                           rows->one[kind] / rows->n_one);
        if (n_many > 0)
            seconds +=
                rows->many[kind] * curve_at(&node->attention_many, rows->many[kind] / n_many);
        out->s[COST_ATTENTION] += m->ranks * m->arithmetic_slower * s->attention[kind] * seconds;
    }
}

static void add_row_ops(const struct cost_model *m, const struct cost_stage *s, double n_rows,
                        struct cost *out)
{
    const struct node *node = m->node;
    /* tp ranks that hold slices norm each row once, not once each */
    const double own =
        m->l->cuts_outputs && n_rows >= ROWS_WORTH_CUTTING * (double)m->l->tp ? m->l->tp : 1;
    const double row =
        s->norm / own * node->norm_s + s->gate * node->gate_s + s->rope * node->rope_s;
    out->s[COST_ROW_OPS] += m->ranks * m->arithmetic_slower * n_rows * row;
    out->s[COST_WAKING] += s->n_ops * node->op_s;
}

/* --- between ranks ------------------------------------------------------------------------ */

/* Returns the seconds to copy bytes through a host's memory, when all its ranks do so. */
static double copy_s(const struct cost_model *m, double n_bytes)
{
    return m->ranks * 2 * n_bytes / m->read_bytes_s;
}

static double barrier_s(const struct cost_model *m)
{
    return m->node->barrier_s > 0 ? m->node->barrier_s : m->node->op_s;
}

/* Returns the seconds of one sum over tp ranks of the outputs of a row-parallel linear. */
static double sum_s(const struct cost_model *m, double n_rows)
{
    const double n = m->l->tp, values = n_rows * m->l->model.arch->width;
    if (m->tp_link == LINK_NET)
        return 2 * (n - 1) / n * values * 4 * m->ranks / m->network_bytes_s + 2 * n * m->network_s;
    if (m->l->cuts_outputs) return 3 * barrier_s(m) + copy_s(m, values * 4);
    return m->node->sum.n > 0 ? curve_time_at(&m->node->sum, values * 8)
                              : 2 * barrier_s(m) + copy_s(m, values * 8 * n);
}

/* Returns the seconds of one exchange of rows with the experts, there and back. */
static double exchange_s(const struct cost_model *m, double n_rows)
{
    const struct layout *l = m->l;
    const double n = (double)l->ep * l->etp, width = l->model.arch->width;
    if (n < 2) return 0;
    if (m->expert_link == LINK_NET) {
        const struct wire_shape shape = layout_wire_shape(l);
        const struct wire_bytes w = wire_bytes_of(&shape);
        return n_rows / l->tp * (w.dispatch + w.combine) * m->ranks / m->network_bytes_s +
               2.0 * l->expert_hosts * m->network_s;
    }
    if (n == l->tp) return 3 * barrier_s(m) + copy_s(m, n_rows * width * 4);
    const double moved = n_rows / l->tp * l->model.arch->moe.n_chosen * (n - 1) / n;
    return 4 * barrier_s(m) + copy_s(m, moved * width * 4 * 2);
}

static void add_ranks(const struct cost_model *m, const struct cost_stage *s, double n_rows,
                      struct cost *out)
{
    if (m->l->tp > 1) out->s[COST_SUMS] += s->n_sums * sum_s(m, n_rows);
    if (s->n_moe_layers > 0) out->s[COST_EXCHANGE] += s->n_moe_layers * exchange_s(m, n_rows);
    if (m->l->pp == 1) return;
    const double n_bytes = n_rows * (arch_row_width(m->l->model.arch) * 4.0 + 8);
    out->s[COST_HOP] += m->stage_link == LINK_NET
                            ? m->network_s + n_bytes * m->ranks / m->network_bytes_s
                            : barrier_s(m) + copy_s(m, n_bytes);
}

/* --- a step ------------------------------------------------------------------------------- */

static void add_head(const struct cost_model *m, const struct cost_stage *s,
                     const struct cost_rows *rows, struct cost *out)
{
    struct cost head = {{0}};
    for (int f = 0; f < NODE_FORMAT_COUNT; f++)
        add_linears(m, (enum node_format)f, s->head[f], rows->n_sampled, &head);
    out->s[COST_HEAD] += cost_total(&head) + m->ranks * m->arithmetic_slower * rows->n_sampled *
                                                 s->n_logits * m->node->logit_s;
}

/* Adds the time by which reading experts takes longer than all else of the step. */
static void add_disk(const struct cost_model *m, const struct cost_stage *s, double n_rows,
                     struct cost *out)
{
    double n_bytes = 0;
    if (m->streamed <= 0 || n_rows <= 0 || s->n_moe_layers == 0) return;
    for (int f = 0; f < NODE_FORMAT_COUNT; f++) n_bytes += m->weight_bytes[f] * s->expert[f];
    const double read = m->ranks * n_bytes * m->streamed * touched_part(m, n_rows);
    const double waits = read / m->node->disk_bytes_s - cost_total(out);
    if (waits > 0) out->s[COST_DISK] += waits;
}

/* Returns the cost of one replica, when the replicas that share its experts have shared_rows rows
 * each on average. */
static struct cost replica_cost(const struct cost_model *m, const struct cost_stage *s,
                                const struct cost_rows *rows, double shared_rows)
{
    struct cost c = {{0}};
    if (rows->n_rows > 0) {
        for (int f = 0; f < NODE_FORMAT_COUNT; f++)
            add_linears(m, (enum node_format)f, s->dense[f], rows->n_rows, &c);
        cost_attention(m, s, rows, &c);
        add_row_ops(m, s, rows->n_rows, &c);
        add_head(m, s, rows, &c);
    }
    cost_experts(m, s, shared_rows, &c);
    if (shared_rows > 0) add_ranks(m, s, rows->n_rows, &c);
    add_disk(m, s, shared_rows, &c);
    return c;
}

struct cost cost_stage_of(const struct cost_model *m, uint32_t pp, const struct cost_rows *rows)
{
    struct cost sum = {{0}};
    double most = 0;
    const uint32_t dp = m->l->dp, group = (uint32_t)m->n_batches;
    for (uint32_t r = 0; r < dp; r++) {
        double shared = 0;
        const uint32_t first = r - r % group;
        for (uint32_t i = first; i < first + group && i < dp; i++) shared += rows[i].n_rows;
        const struct cost c = replica_cost(m, &m->stages[pp], &rows[r], shared / group);
        const double total = cost_total(&c);
        if (total > most) most = total;
        cost_add(&sum, &c, 1.0 / dp);
    }
    sum.s[COST_IMBALANCE] = most - cost_total(&sum);
    if (sum.s[COST_IMBALANCE] < 0) sum.s[COST_IMBALANCE] = 0; /* rounding */
    return sum;
}

struct cost cost_even_of(const struct cost_model *m, uint32_t pp, const struct cost_rows *rows)
{
    return replica_cost(m, &m->stages[pp], rows, rows->n_rows);
}

double cost_lead_s(const struct cost_model *m, const struct cost_rows *rows)
{
    double n_sequences = 0;
    for (uint32_t r = 0; r < m->l->dp; r++) n_sequences += rows[r].n_sequences;
    return m->node->step_s + n_sequences * m->node->sequence_s;
}

double cost_reference_s(void *user, const struct layout *l, const struct topo *t,
                        const uint32_t *order, double n_rows)
{
    struct cost_model m;
    struct layout cut = *l;
    layout_expect_cuts(t, order, &cut);
    const struct status st = cost_model_init(&m, user, &cut, t, order);
    if (status_failed(&st)) return 0;
    const double n_sampled = n_rows / COST_REFERENCE_ROWS;
    const double window = cost_window(l->model.arch);
    const double seen = window > 0 && window < reference_context ? window : reference_context;
    struct cost_rows rows = {
        .n_rows = n_rows,
        .n_sampled = n_sampled,
        .n_sequences = n_sampled,
        .n_one = n_sampled,
        .one = {n_sampled * reference_context, n_sampled * seen},
        .many = {(n_rows - n_sampled) * reference_context / 2, (n_rows - n_sampled) * seen / 2}};
    double slowest = 0;
    for (uint32_t pp = 0; pp < l->pp; pp++) {
        const struct cost c = cost_even_of(&m, pp, &rows);
        if (cost_total(&c) > slowest) slowest = cost_total(&c);
    }
    const double lead_s = m.node->step_s + l->dp * rows.n_sequences * m.node->sequence_s;
    return slowest + (l->pp == 1 ? lead_s : 0);
}
