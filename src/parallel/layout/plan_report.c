/* The report of `shoal plan`, section by section. */
#include "parallel/layout/plan_report.h"

#include "base/mem.h"
#include "parallel/layout/kv_groups.h"
#include "parallel/layout/layout_cost.h"
#include "parallel/layout/pipe_schedule.h"
#include "parallel/topology/gpu_place.h"
#include "tensor/dims.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINES_MAX = 40, TEXT_COLUMNS = 96, INDENT = 10, CELL_BYTES = 32 };

/* --- small texts -------------------------------------------------------------------------- */

static void human_bytes(uint64_t bytes, char out[CELL_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)bytes;
    size_t unit = 0;
    for (; x >= 1000 && unit + 1 < sizeof units / sizeof units[0]; unit++) x /= 1024;
    const int digits = unit == 0 || x >= 100 ? 0 : x >= 10 ? 1 : 2;
    snprintf(out, CELL_BYTES, "%.*f %s", digits, x, units[unit]);
}

/* Appends the words of `text` in lines; all lines but the first are indented. */
static void add_wrapped(struct strbuf *out, const char *text)
{
    size_t column = INDENT;
    for (bool first = true; *text != '\0'; first = false) {
        const size_t n = strcspn(text, " ");
        if (!first && column + 1 + n > TEXT_COLUMNS) {
            strbuf_printf(out, "\n%*s", INDENT, "");
            column = INDENT;
        } else if (!first) {
            strbuf_puts(out, " ");
            column++;
        }
        strbuf_add(out, text, n);
        column += n;
        text += n + strspn(text + n, " ");
    }
    strbuf_puts(out, "\n");
}

/* --- model and machine -------------------------------------------------------------------- */

static bool plan_report_is_quantized(const struct layout_model *m)
{
    for (int c = 0; c < CLASS_COUNT; c++) {
        if (m->weights[c].group > 1) return true;
    }
    return false;
}

/* Bytes of all weights on one rank when each has `element` bytes. */
static struct status plain_bytes(const struct layout_model *m, uint32_t element, uint64_t *out)
{
    struct layout_model plain = *m;
    struct layout whole;
    plain.streams_experts = false;
    plain.weight_bytes = element;
    memset(plain.weights, 0, sizeof plain.weights);
    TRY(layout_build(&plain, 1, &(struct layout_flags){0}, &whole));
    *out = layout_memory_of(&whole, layout_place_of(&whole, 0), (struct layout_kv){0}, 1)
               .weights_bytes;
    return status_ok();
}

/* Appends "2 bytes each", or the mean of a quantized model, without its norms, which stay f32. */
static struct status add_weight_size(const struct layout_model *m, uint64_t all_bytes,
                                     struct strbuf *line)
{
    if (!plan_report_is_quantized(m)) {
        strbuf_printf(line, "%u bytes each", m->weight_bytes);
        return status_ok();
    }
    uint64_t one, two;
    TRY(plain_bytes(m, 1, &one));
    TRY(plain_bytes(m, 2, &two));
    const double n_elems = (double)(two - one), f32_bytes = (double)(2 * one - two);
    strbuf_printf(line, "%.2f bits each", 8.0 * ((double)all_bytes - f32_bytes) / n_elems);
    return status_ok();
}

/* Appends the shape of the attention. Compressed attention has heads as wide as its one key, and
 * its index chooses entries. */
static void add_attention(const struct arch *a, struct strbuf *line)
{
    const bool has_entries = a->compression.o_groups > 0;
    strbuf_printf(line, ": %u layers of width %u, %u query", a->n_layers, a->width,
                  a->attn.n_heads);
    if (a->attn.n_full_heads > 0)
        strbuf_printf(line, " (%u without a window)", a->attn.n_full_heads);
    strbuf_printf(line, " and %u kv heads of %u", a->attn.n_kv_heads,
                  has_entries ? a->attn.query_dim : a->attn.value_dim);
    if (has_entries) {
        strbuf_printf(line,
                      ", compressed attention: %u elements cached of a token and %u of entries "
                      "beside them, on each tp rank",
                      a->attn.kv_lora, arch_beside_dim(a));
    } else if (a->attn.kv_lora > 0) {
        strbuf_printf(line,
                      ", latent attention: %u + %u elements cached of a token, on each tp rank",
                      a->attn.kv_lora, a->attn.rotary);
    }
    if (a->index.n_heads > 0)
        strbuf_printf(line, ", an index of %u heads of %u that chooses %u %s", a->index.n_heads,
                      a->index.dim, a->index.n_chosen, has_entries ? "entries" : "positions");
    if (a->index.block > 0) strbuf_printf(line, " in blocks of %u, in some layers", a->index.block);
}

static struct status add_model(const struct layout_model *m, struct strbuf *out)
{
    const struct arch *a = m->arch;
    struct layout_model all_there = *m;
    struct layout whole;
    all_there.streams_experts = false;
    TRY(layout_build(&all_there, 1, &(struct layout_flags){0}, &whole));
    char weights[CELL_BYTES];
    const uint64_t all =
        layout_memory_of(&whole, layout_place_of(&whole, 0), (struct layout_kv){0}, 1)
            .weights_bytes;
    human_bytes(all, weights);
    struct strbuf line;
    strbuf_init(&line);
    strbuf_printf(&line, "%s", m->name);
    add_attention(a, &line);
    if (a->delta.is_mamba) {
        strbuf_printf(&line,
                      ", a Mamba-2 scan in %u layers (%u heads in %u groups, states of %u x %u)",
                      arch_delta_layers(a, 0, a->n_layers), a->delta.n_value_heads,
                      a->delta.n_key_heads, a->delta.key_dim, a->delta.value_dim);
    } else if (a->delta.n_key_heads > 0) {
        strbuf_printf(&line,
                      ", a gated delta rule in %u layers (%u key and %u value heads, states of %u "
                      "x %u%s)",
                      arch_delta_layers(a, 0, a->n_layers), a->delta.n_key_heads,
                      a->delta.n_value_heads, a->delta.key_dim, a->delta.value_dim,
                      a->delta.by_channel ? ", a decay for each channel" : "");
    }
    if (a->moe.n_experts > 0) {
        strbuf_printf(&line, ", %u experts of %u columns (%u per token)", a->moe.n_experts,
                      a->moe.ffn, a->moe.n_chosen);
    }
    if (a->moe.n_zero > 0)
        strbuf_printf(&line, ", %u experts without weights among those chosen", a->moe.n_zero);
    if (a->ffn > 0) strbuf_printf(&line, ", FFN of %u columns", a->ffn);
    if (a->moe.shared_ffn > 0)
        strbuf_printf(&line, ", %u columns that all tokens pass", a->moe.shared_ffn);
    strbuf_printf(&line, ", vocabulary %u; %s of weights at ", a->vocab, weights);
    struct status st = add_weight_size(m, all, &line);
    if (!status_failed(&st)) st = strbuf_status(&line);
    if (!status_failed(&st)) {
        strbuf_printf(out, "%-*s", INDENT, "Model");
        add_wrapped(out, line.data);
    }
    strbuf_fini(&line);
    return st;
}

static bool same_kind(const struct topo_node *a, const struct topo_node *b)
{
    return a->n_packages == b->n_packages && a->n_numa == b->n_numa && a->n_l3 == b->n_l3 &&
           a->n_cores == b->n_cores && a->n_pus == b->n_pus && a->n_gpus == b->n_gpus &&
           a->memory_bytes == b->memory_bytes;
}

static void add_count(struct strbuf *out, uint32_t n, const char *one, const char *many)
{
    if (n > 0) strbuf_printf(out, ", %u %s", n, n == 1 ? one : many);
}

/* Appends one line for `count` nodes of one kind: the number, the parts of one node, their ranks.
 */
static void plan_report_add_kind(const struct topo_node *n, uint32_t count, uint32_t n_ranks,
                                 struct strbuf *out)
{
    char memory[CELL_BYTES];
    human_bytes(n->memory_bytes, memory);
    strbuf_printf(out, "%*s%u x %s", INDENT, "", count, memory);
    add_count(out, n->n_packages, "package", "packages");
    add_count(out, n->n_numa, "NUMA node", "NUMA nodes");
    add_count(out, n->n_l3, "L3", "L3");
    add_count(out, n->n_cores, "core", "cores");
    add_count(out, n->n_pus, "PU", "PUs");
    add_count(out, n->n_gpus, "GPU", "GPUs");
    if (count == 1) {
        strbuf_printf(out, "; %u rank%s on %s\n", n_ranks, n_ranks == 1 ? "" : "s", n->name);
    } else {
        strbuf_printf(out, "; %u ranks on them, the first is %s\n", n_ranks, n->name);
    }
}

static void add_machine(const struct topo *t, struct strbuf *out)
{
    strbuf_printf(out, "%-*s%u node%s, %u rank%s\n", INDENT, "Machine", t->n_nodes,
                  t->n_nodes == 1 ? "" : "s", t->n_ranks, t->n_ranks == 1 ? "" : "s");
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        uint32_t count = 0, n_ranks = 0;
        bool seen = false;
        for (uint32_t k = 0; k < i && !seen; k++) seen = same_kind(&t->nodes[i], &t->nodes[k]);
        if (seen) continue;
        for (uint32_t k = i; k < t->n_nodes; k++) count += same_kind(&t->nodes[i], &t->nodes[k]);
        for (uint32_t r = 0; r < t->n_ranks; r++) {
            n_ranks += same_kind(&t->nodes[i], &t->nodes[t->ranks[r].host]);
        }
        plan_report_add_kind(&t->nodes[i], count, n_ranks, out);
    }
}

static void add_layout(const struct layout *l, struct strbuf *out)
{
    strbuf_printf(out, "%-*sdp %u x pp %u x tp %u", INDENT, "Layout", l->dp, l->pp, l->tp);
    if (l->model.arch->moe.n_experts > 0) {
        strbuf_printf(out, ", ep %u", l->ep);
        if (l->etp > 1) strbuf_printf(out, " x etp %u", l->etp);
        if (l->n_expert_replicas > 1) {
            strbuf_printf(out, ", %u copies of the experts", l->n_expert_replicas);
        }
        if (l->n_expert_copies > 0)
            strbuf_printf(out, ", copies of %u experts in a layer", l->n_expert_copies);
    }
    strbuf_printf(out, "; neighbouring ranks differ in tp, then in %s\n",
                  l->pp_outermost ? "dp, then in pp" : "pp, then in dp");
    if (l->why[0] != '\0') {
        strbuf_printf(out, "%-*s", INDENT, "Why");
        add_wrapped(out, l->why);
    }
}

/* --- the parts that ranks hold ------------------------------------------------------------ */

/* The parts that the ranks of one line hold. */
struct holding {
    uint32_t stage;
    struct range layers, heads, kv_heads, ffn, experts, expert_ffn, vocab;
};

/* A set of ranks or hosts, added in ascending order. */
struct numbers {
    uint32_t n, first, last, step; /* step 0: not evenly spaced */
};

struct line {
    struct holding holding;
    struct layout_memory memory;
    struct numbers ranks, hosts;
};

/* Adds a number that is not below those already added. */
static void numbers_add(struct numbers *s, uint32_t x)
{
    assert(s->n == 0 || x >= s->last);
    if (s->n > 0 && x == s->last) return;
    if (s->n == 1) s->step = x - s->last;
    if (s->n > 1 && x - s->last != s->step) s->step = 0;
    if (s->n == 0) s->first = x;
    s->last = x;
    s->n++;
}

static void numbers_text(const struct numbers *s, char out[CELL_BYTES])
{
    if (s->n == 1) {
        snprintf(out, CELL_BYTES, "%u", s->first);
    } else if (s->step == 1) {
        snprintf(out, CELL_BYTES, "%u-%u", s->first, s->last);
    } else if (s->step > 1) {
        snprintf(out, CELL_BYTES, "%u-%u/%u", s->first, s->last, s->step);
    } else {
        snprintf(out, CELL_BYTES, "%u, .. (%u)", s->first, s->n);
    }
}

static struct range counted(struct range r, bool counts)
{
    return counts ? (struct range){0, range_count(r)} : r;
}

static struct holding holding_of(const struct layout *l, uint32_t rank, bool counts)
{
    const struct layout_place p = layout_place_of(l, rank);
    const bool has_vocab = p.pp == 0 || p.pp == l->pp - 1;
    bool moe = false, dense = false;
    const struct range layers = layout_layers(l, p.pp), none = {0, 0};
    for (uint32_t i = layers.begin; i < layers.end; i++) {
        moe |= l->model.arch->layer.is_moe[i];
        dense |= !l->model.arch->layer.is_moe[i];
    }
    return (struct holding){
        .stage = p.pp,
        .layers = layers,
        .heads = counted(layout_heads(l, p.tp), counts),
        .kv_heads = counted(layout_kv_heads(l, p.tp), counts),
        .ffn = dense ? counted(layout_ffn(l, p.tp), counts) : none,
        .experts = moe ? counted(layout_experts(l, p.ep), counts) : none,
        .expert_ffn = moe ? counted(layout_expert_ffn(l, p.etp), counts) : none,
        .vocab = has_vocab ? counted(layout_vocab(l, p.tp), counts) : none,
    };
}

struct table {
    struct line *lines; /* owned */
    uint32_t n;
    bool counts;
    bool by_load; /* a rank may hold different experts in each layer */
};

/* The host of a rank, and its line of the table. */
struct rank_host {
    uint32_t host, line;
};

static int compare_hosts(const void *a, const void *b)
{
    const struct rank_host *x = a, *y = b;
    return x->host < y->host ? -1 : x->host > y->host;
}

/* Adds the ranks' hosts to their lines in ascending order; reorders `ranks`. */
static void table_add_hosts(struct table *table, struct rank_host *ranks, uint32_t n_ranks)
{
    qsort(ranks, n_ranks, sizeof *ranks, compare_hosts);
    for (uint32_t r = 0; r < n_ranks; r++) {
        numbers_add(&table->lines[ranks[r].line].hosts, ranks[r].host);
    }
}

static struct status table_fill(const struct layout *l, const struct topo *t, const uint32_t *order,
                                const struct layout_budget *b, struct table *table)
{
    const uint64_t group = (uint64_t)l->ep * l->etp;
    struct rank_host *hosts = NULL;
    struct status st;
    TRY(mem_alloc(&hosts, l->n_ranks, sizeof *hosts, "plan"));
    table->by_load = l->expert_places != NULL;
    table->counts = l->pp * (group > l->tp ? group : l->tp) > LINES_MAX;
    for (uint32_t r = 0; r < l->n_ranks; r++) {
        const struct holding h = holding_of(l, r, table->counts);
        uint32_t i = 0;
        while (i < table->n && memcmp(&table->lines[i].holding, &h, sizeof h) != 0) i++;
        if (i == table->n) {
            TRY_GOTO(st, mem_grow(&table->lines, i, i + 1, sizeof *table->lines, "plan"), done);
            table->n++;
            table->lines[i] = (struct line){
                .holding = h,
                .memory = layout_memory_of(l, layout_place_of(l, r), b->kv, b->step_tokens),
            };
        }
        numbers_add(&table->lines[i].ranks, r);
        hosts[r] = (struct rank_host){t->ranks[order[r]].host, i};
    }
    table_add_hosts(table, hosts, l->n_ranks);
    st = status_ok();
done:
    mem_free(&hosts);
    return st;
}

/* --- the table's text --------------------------------------------------------------------- */

enum column {
    COL_RANKS,
    COL_HOSTS,
    COL_STAGE,
    COL_LAYERS,
    COL_HEADS,
    COL_KV,
    COL_FFN,
    COL_EXPERTS,
    COL_EXPERT_FFN,
    COL_VOCAB,
    COL_WEIGHTS,
    COL_DISK,
    COL_WORKSPACE,
    COL_EXCHANGE,
    COL_BLOCK,
    COL_ROOM,
    COL_COUNT
};

struct cells {
    char text[COL_COUNT][CELL_BYTES];
};

static const char *const headings[COL_COUNT] = {
    "ranks",      "hosts", "stage",   "layers",  "heads",     "kv heads", "ffn",      "experts",
    "expert ffn", "vocab", "weights", "on disk", "workspace", "exchange", "KV block", "KV room"};

static void range_text(struct range r, bool counts, char out[CELL_BYTES])
{
    if (range_count(r) == 0) {
        snprintf(out, CELL_BYTES, "-");
    } else if (counts) {
        snprintf(out, CELL_BYTES, "%u", range_count(r));
    } else if (range_count(r) == 1) {
        snprintf(out, CELL_BYTES, "%u", r.begin);
    } else {
        snprintf(out, CELL_BYTES, "%u-%u", r.begin, r.end - 1);
    }
}

static void fill_cells(const struct table *table, uint32_t i, uint64_t rank_bytes, struct cells *c)
{
    const struct line *line = &table->lines[i];
    const struct holding *h = &line->holding;
    const bool counts = table->counts;
    const struct layout_memory *m = &line->memory;
    const uint64_t fixed = layout_fixed_bytes(m);
    numbers_text(&line->ranks, c->text[COL_RANKS]);
    numbers_text(&line->hosts, c->text[COL_HOSTS]);
    snprintf(c->text[COL_STAGE], CELL_BYTES, "%u", h->stage);
    range_text(h->layers, false, c->text[COL_LAYERS]);
    range_text(h->heads, counts, c->text[COL_HEADS]);
    range_text(h->kv_heads, counts, c->text[COL_KV]);
    range_text(h->ffn, counts, c->text[COL_FFN]);
    range_text(h->experts, counts || table->by_load, c->text[COL_EXPERTS]);
    range_text(h->expert_ffn, counts, c->text[COL_EXPERT_FFN]);
    range_text(h->vocab, counts, c->text[COL_VOCAB]);
    human_bytes(m->weights_bytes, c->text[COL_WEIGHTS]);
    snprintf(c->text[COL_DISK], CELL_BYTES, "-");
    if (m->on_disk_bytes > 0) human_bytes(m->on_disk_bytes, c->text[COL_DISK]);
    human_bytes(m->workspace_bytes, c->text[COL_WORKSPACE]);
    human_bytes(m->exchange_bytes, c->text[COL_EXCHANGE]);
    human_bytes(m->kv_block_bytes, c->text[COL_BLOCK]);
    if (fixed < rank_bytes) {
        human_bytes(rank_bytes - fixed, c->text[COL_ROOM]);
    } else {
        snprintf(c->text[COL_ROOM], CELL_BYTES, "none");
    }
}

/* Appends the columns in which at least one line holds something, right-aligned. */
static void add_cells(const struct cells *cells, uint32_t n, struct strbuf *out)
{
    size_t width[COL_COUNT];
    for (int c = 0; c < COL_COUNT; c++) {
        bool used = false;
        width[c] = strlen(headings[c]);
        for (uint32_t i = 0; i < n; i++) {
            const size_t w = strlen(cells[i].text[c]);
            used |= strcmp(cells[i].text[c], "-") != 0;
            if (w > width[c]) width[c] = w;
        }
        if (!used) width[c] = 0;
    }
    for (uint32_t i = 0; i <= n; i++) {
        for (int c = 0; c < COL_COUNT; c++) {
            if (width[c] == 0) continue;
            strbuf_printf(out, "  %*s", (int)width[c], i == 0 ? headings[c] : cells[i - 1].text[c]);
        }
        strbuf_puts(out, "\n");
    }
}

static struct status add_table(const struct table *table, const struct layout_fit *fit,
                               const struct layout_budget *b, struct strbuf *out)
{
    struct cells *cells = NULL;
    TRY(mem_alloc(&cells, table->n, sizeof *cells, "plan"));
    for (uint32_t i = 0; i < table->n; i++) {
        fill_cells(table, i, fit->budget_bytes, &cells[i]);
    }
    char part[CELL_BYTES];
    human_bytes(fit->budget_bytes, part);
    strbuf_printf(out, "\nWho holds what%s. A rank may use %s, %s.\n",
                  table->counts ? " (numbers per rank, not ranges)" : "", part,
                  b->rank_bytes > 0     ? "what --memory leaves beside the program"
                  : b->device_bytes > 0 ? "nine tenths of its part of a GPU"
                                        : "nine tenths of its part of the host");
    add_cells(cells, table->n, out);
    mem_free(&cells);
    return status_ok();
}

/* --- memory and time ---------------------------------------------------------------------- */

static void add_kv(const struct layout *l, const struct layout_budget *b,
                   const struct layout_fit *fit, struct strbuf *out)
{
    const struct kv_groups g = kv_groups_of(l);
    strbuf_printf(out, "\n%-*s%llu blocks of %d tokens fit in each replica", INDENT, "KV cache",
                  (unsigned long long)fit->n_kv_blocks, KV_BLOCK_TOKENS);
    if (g.n_full + g.n_windowed == 1)
        strbuf_printf(out, ": %llu tokens of context",
                      (unsigned long long)fit->n_kv_blocks * KV_BLOCK_TOKENS);
    if (l->dp > 1) strbuf_printf(out, ", in %u replicas", l->dp);
    if (g.n_windowed > 0)
        strbuf_printf(out,
                      "\n%*sa block is of one of %u groups of layers, of which %u see %u tokens",
                      INDENT, "", g.n_full + g.n_windowed, g.n_windowed, g.window);
    strbuf_printf(out, "\n%*sone full context needs %llu blocks\n", INDENT, "",
                  (unsigned long long)kv_groups_context(l, b));
    if (b->n_state_slots == 0) return;
    char bytes[CELL_BYTES];
    human_bytes(
        layout_memory_of(l, layout_place_of(l, fit->worst_rank), b->kv, b->step_tokens).state_bytes,
        bytes);
    strbuf_printf(out, "%-*s%s for each sequence on a rank, of %u sequences in each replica\n",
                  INDENT, "States", bytes, fit->n_state_slots);
}

/* Returns the line of a stage whose ranks need the most memory; table->n when no line of the stage
 * needs more than rank_bytes. */
static uint32_t worst_line(const struct table *table, uint32_t stage, uint64_t n_blocks,
                           uint64_t rank_bytes)
{
    uint32_t worst = table->n;
    uint64_t most = rank_bytes;
    for (uint32_t i = 0; i < table->n; i++) {
        const struct layout_memory *m = &table->lines[i].memory;
        const uint64_t all = layout_fixed_bytes(m) + n_blocks * m->kv_block_bytes + m->state_bytes;
        if (table->lines[i].holding.stage != stage || all <= most) continue;
        worst = i;
        most = all;
    }
    return worst;
}

static void add_lack(const struct layout *l, const struct table *table,
                     const struct layout_budget *b, const struct layout_fit *fit,
                     struct strbuf *out)
{
    const uint64_t n_blocks = kv_groups_context(l, b);
    strbuf_printf(out, "%-*s%s\n", INDENT, "Fits", fit->fits ? "yes" : "NO");
    for (uint32_t stage = 0; stage < l->pp; stage++) {
        const uint32_t i = worst_line(table, stage, n_blocks, fit->budget_bytes);
        if (i == table->n) continue;
        const struct layout_memory *m = &table->lines[i].memory;
        const uint64_t kv = n_blocks * m->kv_block_bytes + m->state_bytes;
        const uint64_t all = layout_fixed_bytes(m) + kv;
        char text[7][CELL_BYTES];
        human_bytes(m->weights_bytes, text[0]);
        human_bytes(m->workspace_bytes, text[1]);
        human_bytes(kv, text[2]);
        human_bytes(all, text[3]);
        human_bytes(all - fit->budget_bytes, text[4]);
        human_bytes(m->exchange_bytes, text[5]);
        human_bytes(m->stream_bytes, text[6]);
        strbuf_printf(out,
                      "%*sa rank of stage %u needs weights %s%s%s + workspace %s + exchange %s + "
                      "one full context %s = %s: %s too much\n",
                      INDENT, "", stage, text[0], m->stream_bytes > 0 ? " + streamed experts " : "",
                      m->stream_bytes > 0 ? text[6] : "", text[1], text[5], text[2], text[3],
                      text[4]);
    }
}

/* Appends how much memory all ranks together may use, to show how far the layout is from fitting.
 */
static void add_total(const struct layout *l, const struct layout_fit *fit, struct strbuf *out)
{
    char total[CELL_BYTES];
    human_bytes(fit->budget_bytes * l->n_ranks, total);
    strbuf_printf(out, "%*sall ranks together may use %s\n", INDENT, "", total);
}

static void add_pipeline(const struct layout *l, struct strbuf *out)
{
    if (l->pp == 1) return;
    strbuf_printf(out,
                  "\nPipeline: %u groups of sequences in flight; columns are ticks, characters "
                  "show each stage's group.\n",
                  l->pp);
    if (l->pp > 32) {
        strbuf_puts(out, "(too many stages to draw)\n");
        return;
    }
    pipe_print(l->pp, 3ull * l->pp, out);
}

struct status plan_report(const struct layout *l, const struct topo *t, const uint32_t *order,
                          const struct layout_budget *budget, struct strbuf *out)
{
    const struct layout_fit fit = layout_fit_of(l, t, budget);
    struct table table = {0};
    struct status st;
    TRY_GOTO(st, add_model(&l->model, out), done);
    add_machine(t, out);
    add_layout(l, out);
    TRY_GOTO(st, table_fill(l, t, order, budget, &table), done);
    TRY_GOTO(st, add_table(&table, &fit, budget, out), done);
    add_kv(l, budget, &fit, out);
    add_lack(l, &table, budget, &fit, out);
    if (!fit.fits) add_total(l, &fit, out);
    TRY_GOTO(st, gpu_report(t, order, out), done);
    add_pipeline(l, out);
    st = strbuf_status(out);
done:
    mem_free(&table.lines);
    return st;
}
