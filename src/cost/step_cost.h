/* The time of a step: a pure function of the layout, the rows of the step and the curves of a node
 * (node_file.h), in parts. The source of all costs in seconds: for `shoal plan`, `shoal status`,
 * the choice of a layout, the report and the advice after a run.
 *
 * A stage of one replica, with the weights W of a format that each of its rows passes, R ranks on
 * the host, and y the node's curves:
 *     linears     R * W * y(rows); of that, at most R * bytes(W) / read bandwidth is reading
 *     experts     the same for the weights of the touched experts, E_local * (1 - (1 - K/E)^rows),
 *                 with the mean rows of a touched expert
 *     attention   R * heads * head_dim * positions seen * y(positions), layer by layer
 *     row ops     R * elements * norm, gate or rope
 *     sums        barriers and copies where tp ranks share memory (model/row_sum_outputs.c), 4-byte
 *                 values over a network, else a sum of 8-byte integers
 *     exchange    a token to each host of its experts and back (parallel/wire/wire_bytes.h), or
 *                 through the host's memory
 *     hop         a step's rows to the next stage, over a network or through the host's memory
 *     head        the head's linear for the sampled rows, and sampling
 *     waking      ops * op_s
 *     disk        where experts stream (weights/expert_stream.h): the time by which reading R * the
 *                 touched experts' bytes that are not in memory exceeds all of the above
 *     lead        step_s + sequences * sequence_s, once, before the stage begins
 * A linear's curve is measured, so it holds both the roof of the bandwidth and that of arithmetic
 * (Williams et al. 2009, "Roofline"); the other rates come from measured ops. */
#ifndef SHOAL_COST_STEP_COST_H
#define SHOAL_COST_STEP_COST_H

#include "cost/node_file.h"
#include "parallel/layout/layout.h"
#include "parallel/layout/layout_cost.h"
#include "parallel/topology/topo.h"
#include "plan/step_plan.h"

#define COST_PARTS(PART)                                                                           \
    PART(WEIGHTS, "weights' reads")                                                                \
    PART(ARITHMETIC, "arithmetic")                                                                 \
    PART(ATTENTION, "attention")                                                                   \
    PART(ROW_OPS, "norms and gates")                                                               \
    PART(EXCHANGE, "experts' exchange")                                                            \
    PART(SUMS, "sums over ranks")                                                                  \
    PART(HOP, "rows between stages")                                                               \
    PART(HEAD, "head and sampling")                                                                \
    PART(WAKING, "waking threads")                                                                 \
    PART(LEAD, "the lead")                                                                         \
    PART(IMBALANCE, "uneven replicas")                                                             \
    PART(BUBBLE, "an idle pipeline")                                                               \
    PART(DISK, "waiting for the disk")

enum cost_part {
#define COST_PART_ID(id, title) COST_##id,
    COST_PARTS(COST_PART_ID)
#undef COST_PART_ID
        COST_PART_COUNT
};

/* Local. Returns the part's name for people. */
const char *cost_part_title(enum cost_part part);

/* Seconds by part. */
struct cost {
    double s[COST_PART_COUNT];
};

/* Local. Returns the sum of the parts; and the largest of them. */
double cost_total(const struct cost *c);
enum cost_part cost_bound(const struct cost *c);

/* Local. sum = sum + c * times. */
void cost_add(struct cost *sum, const struct cost *c, double times);

/* Layers that see all positions, and layers with a window or with sparse attention, which sees as
 * many positions as its index chooses. */
enum { COST_FULL, COST_WINDOWED, COST_KINDS };

/* The rows of one replica in one step. */
struct cost_rows {
    double n_rows, n_sequences;
    double n_sampled; /* rows that need logits: sampled or scored */
    double n_one;     /* rows of sequences with at most COST_ONE_ROWS rows in the step */
    /* positions that rows see, summed over the rows: those of n_one, and the others */
    double one[COST_KINDS], many[COST_KINDS];
};

enum { COST_ONE_ROWS = 4 };

/* Local. Returns the most positions that a row sees in COST_WINDOWED layers; 0: there are none. */
double cost_window(const struct arch *a);

/* Local. Adds n_rows rows of one sequence, at the positions from pos0 on, of which n_sampled need
 * logits. window: see cost_window. */
void cost_rows_add(struct cost_rows *rows, double pos0, double n_rows, double n_sampled,
                   double window);

/* Local. rows [n_replicas] = the rows of each replica of a plan. */
void cost_rows_of(const struct step_plan *plan, double window, struct cost_rows *rows);

/* The weights of one stage's busiest rank, and the work of its layers, summed over them. */
struct cost_stage {
    double dense[NODE_FORMAT_COUNT];  /* weights that each row passes */
    double expert[NODE_FORMAT_COUNT]; /* weights of the rank's places of experts, over all layers */
    double head[NODE_FORMAT_COUNT];
    double n_layers, n_moe_layers, n_sums;
    double attention[COST_KINDS]; /* elements of query heads */
    double norm, gate, rope;      /* elements of a row */
    double chosen_gate;           /* elements of a row that passes an expert */
    double n_ops;
    double n_logits;
};

enum { COST_STAGES_MAX = 64 };

struct cost_model {
    const struct node *node; /* borrowed, as is the next */
    const struct layout *l;
    double ranks;                          /* R: ranks of a host */
    double read_slower, arithmetic_slower; /* factors on times, because the layout's ranks have
                                              fewer threads than measured */
    double read_bytes_s;                   /* of the host with the threads of its ranks */
    double weight_bytes[NODE_FORMAT_COUNT];
    enum layout_link tp_link, expert_link, stage_link;
    double network_bytes_s, network_s;
    double n_local, n_batches; /* places of experts on a rank; replicas whose rows reach them */
    bool is_cached;            /* the host's caches hold the weights */
    double streamed;           /* part of a rank's experts that a step reads from disk if all have
                                  rows. cost_model_init: 1 where experts stream, else 0 */
    uint32_t n_stages;
    struct cost_stage stages[COST_STAGES_MAX];
};

/* Local. Prepares the model of layout l on hosts like `node`. t and order as layout_choose has
 * them; l->expert_hosts must be set. Errors: STATUS_USAGE (more than COST_STAGES_MAX stages),
 * STATUS_INPUT (no linear was measured, or experts stream and the disk was not). */
struct status cost_model_init(struct cost_model *m, const struct node *node, const struct layout *l,
                              const struct topo *t, const uint32_t *order);

/* Local. Returns the seconds of stage `pp` for a step with these rows [dp], without the lead: those
 * of the replica that takes longest. COST_IMBALANCE is its time beyond the mean. */
struct cost cost_stage_of(const struct cost_model *m, uint32_t pp, const struct cost_rows *rows);

/* Local. As cost_stage_of, for a step in which each replica has these rows. */
struct cost cost_even_of(const struct cost_model *m, uint32_t pp, const struct cost_rows *rows);

/* Local. Returns the lead's seconds for a step. */
double cost_lead_s(const struct cost_model *m, const struct cost_rows *rows);

enum { COST_REFERENCE_ROWS = 5 /* of a step for each sampled one, in cost_reference_s */ };

/* Local. For layout_estimate.step_s: returns the seconds of a step of n_rows rows of each replica,
 * one of COST_REFERENCE_ROWS sampled, for prompts of 512 and answers of 128 tokens; with several
 * stages, those of the slowest one, without the lead. user: the struct node. 0: cannot be
 * estimated. */
double cost_reference_s(void *user, const struct layout *l, const struct topo *t,
                        const uint32_t *order, double n_rows);

/* Local. Returns the bytes of weights that the rank with the most of them holds. */
double cost_rank_bytes(const struct cost_model *m);

#endif
