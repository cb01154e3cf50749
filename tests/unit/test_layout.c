/* Layouts by brute force: for every product of tp, pp, dp and ep on 1 to 16 ranks, counts over all
 * ranks how often each query head, FFN leaf, leaf of an expert and panel of the vocabulary is held.
 * Also places, stages and bytes. */
#include "parallel/layout/layout.h"

#include "base/mem.h"
#include "tensor/dims.h"
#include "util_models.h"

#include <CUnit/CUnit.h>
#include <string.h>

enum { RANKS_MAX = 16, UNITS_MAX = 16384 };

/* How often each unit of one axis is held, and how many cuts fall inside a unit. */
struct count {
    uint16_t n[UNITS_MAX];
    uint32_t n_units, n_bad_cuts;
};

static void count_start(struct count *c, uint32_t total, uint32_t unit)
{
    memset(c, 0, sizeof *c);
    c->n_units = (total + unit - 1) / unit;
    CU_ASSERT_FATAL(c->n_units <= UNITS_MAX);
}

static void count_add(struct count *c, struct range r, uint32_t total, uint32_t unit)
{
    if (r.begin > r.end || r.end > total) c->n_bad_cuts++;
    if (range_count(r) == 0) return;
    if (r.begin % unit != 0 || (r.end % unit != 0 && r.end != total)) c->n_bad_cuts++;
    for (uint32_t u = r.begin / unit; u < (r.end + unit - 1) / unit; u++) c->n[u]++;
}

/* Whether every unit is held exactly `times` times and no cut falls inside a unit. */
static bool count_is(const struct count *c, uint32_t times)
{
    bool all = c->n_bad_cuts == 0;
    for (uint32_t u = 0; u < c->n_units; u++) all &= c->n[u] == times;
    return all;
}

/* --- one layout --------------------------------------------------------------------------- */

typedef struct range range_of(const struct layout *l, struct layout_place p);

static struct range heads_at(const struct layout *l, struct layout_place p)
{
    return layout_heads(l, p.tp);
}

static struct range ffn_at(const struct layout *l, struct layout_place p)
{
    return layout_ffn(l, p.tp);
}

static bool holds(struct range r, uint32_t i)
{
    return r.begin <= i && i < r.end;
}

/* Counts one axis of one layer over the ranks that hold the layer. Returns whether each unit is
 * held exactly `times` times. */
static bool layer_axis_is(const struct layout *l, uint32_t layer, range_of *of, uint32_t total,
                          uint32_t unit, uint32_t times)
{
    static struct count c;
    count_start(&c, total, unit);
    for (uint32_t r = 0; r < l->n_ranks; r++) {
        const struct layout_place p = layout_place_of(l, r);
        if (holds(layout_layers(l, p.pp), layer)) count_add(&c, of(l, p), total, unit);
    }
    return count_is(&c, times);
}

/* A rank holds a kv head exactly if it holds a query head that reads this kv head. */
static bool kv_heads_serve_their_queries(const struct layout *l)
{
    const uint32_t group = l->model.arch->attn.n_heads / l->model.arch->attn.n_kv_heads;
    for (uint32_t tp = 0; tp < l->tp; tp++) {
        const struct range q = layout_heads(l, tp), kv = layout_kv_heads(l, tp);
        for (uint32_t g = 0; g < l->model.arch->attn.n_kv_heads; g++) {
            bool needed = false;
            for (uint32_t h = g * group; h < (g + 1) * group; h++) needed |= holds(q, h);
            if (needed != holds(kv, g)) return false;
        }
    }
    return true;
}

static uint32_t most_kv_heads(const struct layout *l)
{
    uint32_t most = 0;
    for (uint32_t tp = 0; tp < l->tp; tp++) {
        const uint32_t n = range_count(layout_kv_heads(l, tp));
        if (n > most) most = n;
    }
    return most;
}

/* Each replica of the experts holds every leaf of every expert once. */
static bool experts_are_held(const struct layout *l, uint32_t layer)
{
    const struct layout_model *m = &l->model;
    const uint32_t n_leaves = (m->arch->moe.ffn + m->expert_leaf - 1) / m->expert_leaf;
    static uint8_t n[RANKS_MAX][128][64];
    memset(n, 0, sizeof n);
    for (uint32_t r = 0; r < l->n_ranks; r++) {
        const struct layout_place p = layout_place_of(l, r);
        if (!holds(layout_layers(l, p.pp), layer)) continue;
        const struct range e = layout_experts(l, p.ep), f = layout_expert_ffn(l, p.etp);
        if (f.begin % m->expert_leaf != 0 && f.begin != m->arch->moe.ffn) return false;
        if (f.end % m->expert_leaf != 0 && f.end != m->arch->moe.ffn) return false;
        for (uint32_t i = e.begin; i < e.end; i++) {
            for (uint32_t k = 0; k < n_leaves; k++) {
                n[p.expert_replica][i][k] += holds(f, k * m->expert_leaf);
            }
        }
    }
    for (uint32_t replica = 0; replica < l->n_expert_replicas; replica++) {
        for (uint32_t i = 0; i < m->arch->moe.n_experts; i++) {
            for (uint32_t k = 0; k < n_leaves; k++) {
                if (n[replica][i][k] != 1) return false;
            }
        }
    }
    return true;
}

static bool vocab_is_held(const struct layout *l, uint32_t stage)
{
    static struct count c;
    count_start(&c, l->model.arch->vocab, PANEL_COLUMNS);
    for (uint32_t r = 0; r < l->n_ranks; r++) {
        const struct layout_place p = layout_place_of(l, r);
        if (p.pp == stage)
            count_add(&c, layout_vocab(l, p.tp), l->model.arch->vocab, PANEL_COLUMNS);
    }
    return count_is(&c, l->dp);
}

/* Rank to place and back gives the rank; places differ; the expert places of each stage fill ep x
 * etp x replicas; the parts of an expert are within one tp group. */
static bool places_are_a_bijection(const struct layout *l)
{
    static uint8_t expert_seen[RANKS_MAX][RANKS_MAX];
    memset(expert_seen, 0, sizeof expert_seen);
    if (l->ep * l->etp * l->n_expert_replicas != l->dp * l->tp &&
        l->model.arch->moe.n_experts > 0) {
        return false;
    }
    for (uint32_t r = 0; r < l->n_ranks; r++) {
        const struct layout_place p = layout_place_of(l, r);
        if (layout_rank_of(l, p.dp, p.pp, p.tp) != r) return false;
        if (p.dp >= l->dp || p.pp >= l->pp || p.tp >= l->tp) return false;
        if (l->model.arch->moe.n_experts == 0) continue;
        if (p.ep >= l->ep || p.etp >= l->etp || p.expert_replica >= l->n_expert_replicas) {
            return false;
        }
        const uint32_t expert_place = (p.expert_replica * l->ep + p.ep) * l->etp + p.etp;
        if (expert_seen[p.pp][expert_place]++ != 0) return false;
        const struct layout_place first = layout_place_of(l, r - p.etp);
        if (first.dp != p.dp || first.pp != p.pp || first.ep != p.ep || first.etp != 0)
            return false;
    }
    return true;
}

static void check_layout(const struct layout *l)
{
    const struct layout_model *m = &l->model;
    const uint32_t leaf_heads = m->o_leaf / m->arch->attn.head_dim,
                   group = m->arch->attn.n_heads / m->arch->attn.n_kv_heads;
    CU_ASSERT(places_are_a_bijection(l));
    CU_ASSERT(kv_heads_serve_their_queries(l));
    CU_ASSERT(vocab_is_held(l, 0));
    CU_ASSERT(vocab_is_held(l, l->pp - 1));
    CU_ASSERT_EQUAL(l->stage_begin[0], 0);
    CU_ASSERT_EQUAL(l->stage_begin[l->pp], m->arch->n_layers);
    for (uint32_t s = 0; s < l->pp; s++) CU_ASSERT(l->stage_begin[s] < l->stage_begin[s + 1]);
    for (uint32_t i = 0; i < m->arch->n_layers; i++) {
        CU_ASSERT(layer_axis_is(l, i, heads_at, m->arch->attn.n_heads, leaf_heads, l->dp));
        /* with enough kv heads no rank holds more than an even share, rounded up */
        if (l->tp <= m->arch->attn.n_kv_heads && group % leaf_heads == 0) {
            CU_ASSERT(most_kv_heads(l) == (m->arch->attn.n_kv_heads + l->tp - 1) / l->tp);
        }
        if (m->arch->layer.is_moe[i]) {
            CU_ASSERT(experts_are_held(l, i));
        } else {
            CU_ASSERT(layer_axis_is(l, i, ffn_at, m->arch->ffn, m->ffn_leaf, l->dp));
        }
    }
}

/* Checks every ep for one product of tp, pp and dp; returns how many layouts were checked. */
static uint32_t check_product(const struct layout_model *m, uint32_t n, uint32_t tp, uint32_t pp)
{
    const uint32_t dp = n / pp / tp;
    uint32_t n_checked = 0;
    for (uint32_t ep = 1; ep <= dp * tp; ep++) {
        const struct layout_flags flags = {.tp = tp, .pp = pp, .dp = dp, .ep = ep};
        struct layout l;
        const struct status st = layout_build(m, n, &flags, &l);
        const bool possible =
            tp <= layout_tp_max(m) && pp <= m->arch->n_layers &&
            (m->arch->moe.n_experts == 0 ? ep == 1 : ep <= m->arch->moe.n_experts) &&
            dp * tp % ep == 0;
        CU_ASSERT_EQUAL(status_failed(&st), !possible);
        if (!possible) {
            CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
            continue;
        }
        CU_ASSERT(l.tp == tp && l.pp == pp && l.dp == dp && l.ep == ep);
        check_layout(&l);
        n_checked++;
    }
    return n_checked;
}

static void every_unit_is_held_by_the_right_ranks(void)
{
    uint32_t n_checked = 0;
    for (int which = 0; which < MODEL_COUNT; which++) {
        const struct layout_model m = util_model(which);
        for (uint32_t n = 1; n <= RANKS_MAX; n++) {
            for (uint32_t pp = 1; pp <= n; pp++) {
                if (n % pp != 0) continue;
                for (uint32_t tp = 1; tp <= n / pp; tp++) {
                    if (n / pp % tp == 0) n_checked += check_product(&m, n, tp, pp);
                }
            }
        }
    }
    CU_ASSERT(n_checked > 500);
}

/* --- splits and stages -------------------------------------------------------------------- */

static void splits_differ_by_one_unit_at_most(void)
{
    const struct range want[] = {{0, 6}, {6, 10}, {10, 14}, {14, 17}};
    for (uint32_t i = 0; i < 4; i++) {
        const struct range r = layout_split(17, 2, 4, i);
        CU_ASSERT(r.begin == want[i].begin && r.end == want[i].end);
    }
    CU_ASSERT_EQUAL(range_count(layout_split(3, 1, 5, 3)), 0);
    CU_ASSERT_EQUAL(range_count(layout_split(0, 16, 2, 0)), 0);
    CU_ASSERT_EQUAL(layout_split(UINT32_MAX, 16, 2, 1).end, UINT32_MAX);
}

/* Returns the weight bytes of layers [begin, end) that one token reads, counted from the shapes of
 * the tensors: with the output head after the last layer, without norms and biases. */
static uint64_t stage_bytes(const struct layout_model *m, uint32_t begin, uint32_t end)
{
    uint64_t n = 0;
    for (uint32_t i = begin; i < end; i++) {
        n += (uint64_t)m->arch->attn.n_heads * m->arch->attn.head_dim * m->arch->width * 2;
        n += (uint64_t)m->arch->attn.n_kv_heads * m->arch->attn.head_dim * m->arch->width * 2;
        if (m->arch->layer.is_moe[i]) {
            n += (uint64_t)m->arch->moe.n_chosen * m->arch->moe.ffn * m->arch->width * 3;
            n += (uint64_t)m->arch->moe.n_experts * m->arch->width;
        } else {
            n += (uint64_t)m->arch->ffn * m->arch->width * 3;
        }
    }
    if (end == m->arch->n_layers) n += (uint64_t)m->arch->vocab * m->arch->width;
    return n * m->weight_bytes;
}

/* Returns the smallest possible size of the largest stage, found by trying all cuts. */
static uint64_t optimum(const struct layout_model *m, uint32_t pp)
{
    static uint64_t best[17][129];
    for (uint32_t end = 1; end <= m->arch->n_layers; end++) best[1][end] = stage_bytes(m, 0, end);
    for (uint32_t s = 2; s <= pp; s++) {
        for (uint32_t end = s; end <= m->arch->n_layers; end++) {
            best[s][end] = UINT64_MAX;
            for (uint32_t cut = s - 1; cut < end; cut++) {
                const uint64_t last = stage_bytes(m, cut, end);
                const uint64_t worst = last > best[s - 1][cut] ? last : best[s - 1][cut];
                if (worst < best[s][end]) best[s][end] = worst;
            }
        }
    }
    return best[pp][m->arch->n_layers];
}

static void stages_are_balanced_optimally(void)
{
    for (int which = 0; which < MODEL_COUNT; which++) {
        const struct layout_model m = util_model(which);
        for (uint32_t pp = 1; pp <= 16 && pp <= m.arch->n_layers; pp++) {
            struct layout l;
            const struct status st = layout_build(&m, pp, &(struct layout_flags){.pp = pp}, &l);
            CU_ASSERT_FATAL(!status_failed(&st));
            uint64_t worst = 0;
            for (uint32_t s = 0; s < pp; s++) {
                const uint64_t bytes = stage_bytes(&m, l.stage_begin[s], l.stage_begin[s + 1]);
                if (bytes > worst) worst = bytes;
            }
            CU_ASSERT_EQUAL(worst, optimum(&m, pp));
        }
    }
}

static void a_heavy_head_shortens_the_last_stage(void)
{
    const struct layout_model m = util_model(MODEL_SMOLLM2);
    struct layout l;
    const struct status st = layout_build(&m, 4, &(struct layout_flags){.pp = 4}, &l);
    CU_ASSERT_FATAL(!status_failed(&st));
    /* the head is as large as 8 layers: (30 + 8) / 4 */
    CU_ASSERT_EQUAL(l.stage_begin[1], 10);
    CU_ASSERT_EQUAL(l.stage_begin[2], 20);
    CU_ASSERT_EQUAL(l.stage_begin[3], 29);
}

/* --- bytes -------------------------------------------------------------------------------- */

static struct layout built(const struct layout_model *m, uint32_t n, struct layout_flags flags)
{
    struct layout l;
    const struct status st = layout_build(m, n, &flags, &l);
    CU_ASSERT_FATAL(!status_failed(&st));
    return l;
}

static struct layout_memory memory_at(const struct layout *l, uint32_t rank)
{
    return layout_memory_of(l, layout_place_of(l, rank), (struct layout_kv){2, 0}, 512);
}

/* The published parameter counts; norms are f32, Mixtral's router is padded from 8 to 16 rows. */
static void whole_models_have_their_published_sizes(void)
{
    const struct layout_model smol = util_model(MODEL_SMOLLM2), mixtral = util_model(MODEL_MIXTRAL),
                              qwen = util_model(MODEL_QWEN3);
    const uint64_t smol_norms = (30 * 2 + 1) * 576, mixtral_norms = (32 * 2 + 1) * 4096;
    const uint64_t qwen_norms = (94 * 2 + 1) * 4096 + 94 * 2 * 128;
    const struct layout_flags one = {0};
    const struct layout a = built(&smol, 1, one), b = built(&mixtral, 1, one),
                        c = built(&qwen, 1, one);
    CU_ASSERT_EQUAL(memory_at(&a, 0).weights_bytes, 2 * 134515008ull + 2 * smol_norms);
    CU_ASSERT_EQUAL(memory_at(&b, 0).weights_bytes,
                    2 * 46702792704ull + 2 * mixtral_norms + 32ull * 8 * 4096 * 2);
    CU_ASSERT_EQUAL(memory_at(&c, 0).weights_bytes, 2 * 235093634560ull + 2 * qwen_norms);
    CU_ASSERT_EQUAL(memory_at(&a, 0).kv_block_bytes, 2ull * 30 * 3 * 64 * 64 * 2);
    CU_ASSERT_EQUAL(memory_at(&c, 0).kv_block_bytes, 2ull * 94 * 4 * 64 * 128 * 2);
}

static void tied_embeddings_stand_on_both_ends_of_a_pipeline(void)
{
    const struct layout_model m = util_model(MODEL_SMOLLM2);
    const struct layout one = built(&m, 1, (struct layout_flags){0});
    const struct layout two = built(&m, 2, (struct layout_flags){.pp = 2});
    CU_ASSERT_EQUAL(memory_at(&two, 0).weights_bytes + memory_at(&two, 1).weights_bytes,
                    memory_at(&one, 0).weights_bytes + 49152ull * 576 * 2);
}

/* tp and ep divide everything but norms and routers. */
static void shards_add_up_to_the_whole(void)
{
    const struct layout_model m = util_model(MODEL_MIXTRAL);
    const uint64_t replicated = 4ull * (32 * 2 + 1) * 4096 + 32ull * 16 * 4096 * 2;
    const struct layout one = built(&m, 1, (struct layout_flags){0});
    const struct layout_flags splits[] = {
        {.tp = 4, .ep = 4}, {.tp = 8, .ep = 4}, {.tp = 8, .ep = 1}};
    for (size_t i = 0; i < 3; i++) {
        const struct layout l = built(&m, splits[i].tp, splits[i]);
        uint64_t sum = 0, kv = 0;
        for (uint32_t r = 0; r < l.n_ranks; r++) {
            sum += memory_at(&l, r).weights_bytes - replicated;
            kv += memory_at(&l, r).kv_block_bytes;
        }
        CU_ASSERT_EQUAL(sum, memory_at(&one, 0).weights_bytes - replicated);
        CU_ASSERT_EQUAL(kv, memory_at(&one, 0).kv_block_bytes);
    }
}

static void workspace_grows_with_rows_and_received_tokens(void)
{
    const struct layout_model m = util_model(MODEL_MIXTRAL);
    const struct layout narrow = built(&m, 4, (struct layout_flags){.tp = 4, .ep = 4});
    const struct layout wide = built(&m, 4, (struct layout_flags){.dp = 4, .tp = 1, .ep = 4});
    const struct layout_place p = layout_place_of(&narrow, 0);
    CU_ASSERT(layout_memory_of(&narrow, p, (struct layout_kv){2, 0}, 512).workspace_bytes >
              layout_memory_of(&narrow, p, (struct layout_kv){2, 0}, 64).workspace_bytes * 4);
    /* Attention's arrays share memory with those of the FFN: here gate and up are larger than q, k,
     * v and the output together. */
    const struct layout_model dense = util_model(MODEL_SMOLLM2);
    const struct layout one = built(&dense, 1, (struct layout_flags){0});
    const uint64_t always = 2 * 576 + 64, ffn = 2 * 1536, logits = 4ull * 64 * 49152;
    CU_ASSERT_EQUAL(memory_at(&one, 0).workspace_bytes, 4 * 512 * (always + ffn) + logits);
    /* one cosine and one sine for each rotated pair; here a quarter of a head of 64 is rotated */
    struct arch quarter = *dense.arch;
    struct layout_model partial = dense;
    quarter.attn.rotary = 16;
    partial.arch = &quarter;
    const struct layout few = built(&partial, 1, (struct layout_flags){0});
    CU_ASSERT_EQUAL(memory_at(&few, 0).workspace_bytes, 4 * 512 * (always - 48 + ffn) + logits);
    /* The plan has room for twice a rank's even share (a quarter) of the choices: of four replicas
     * in `wide`, of one in `narrow`. Each choice needs rows for an input, a gate and an up
     * projection; a token makes two choices. */
    const uint64_t per_token = 4ull * 2 * (4096 + 2 * 14336);
    CU_ASSERT(memory_at(&wide, 0).exchange_bytes >= 2 * 512 * per_token);
    CU_ASSERT(memory_at(&narrow, 0).exchange_bytes < memory_at(&wide, 0).exchange_bytes / 2);
    /* the same rows, one more, and the quarter by which a buffer grows */
    CU_ASSERT_EQUAL(layout_expert_array_bytes(&wide, layout_place_of(&wide, 0), 512, 8),
                    (2 * 1024 + 1) * 8 * 5 / 4);
    CU_ASSERT_EQUAL(layout_expert_array_bytes(&one, layout_place_of(&one, 0), 512, 0), 0);
    /* a plan for streamed experts is a bound: all tokens may choose experts of one rank */
    struct layout_model streamed = m;
    streamed.streams_experts = true;
    const struct layout bound =
        built(&streamed, 4, (struct layout_flags){.dp = 4, .tp = 1, .ep = 4});
    CU_ASSERT(memory_at(&bound, 0).exchange_bytes >= 4 * 512 * 4ull * 2 * 4096);
}

/* An int8 cache has a scale of 4 bytes for each token and head, for keys and for values. */
static void scales_of_the_cache_are_counted(void)
{
    const struct layout_model m = util_model(MODEL_SMOLLM2);
    const struct layout l = built(&m, 1, (struct layout_flags){0});
    const struct layout_place p = layout_place_of(&l, 0);
    const uint64_t heads = 30ull * 3 * 64 * 2;
    CU_ASSERT_EQUAL(layout_memory_of(&l, p, (struct layout_kv){2, 0}, 1).kv_block_bytes,
                    heads * 128);
    CU_ASSERT_EQUAL(layout_memory_of(&l, p, (struct layout_kv){1, 4}, 1).kv_block_bytes,
                    heads * 68);
}

static void allocation_failures_are_statuses(void)
{
    const struct layout_model m = util_model(MODEL_QWEN3);
    struct layout l;
    for (uint64_t n = 1;; n++) {
        mem_fail_after(n);
        const struct status st = layout_build(&m, 8, &(struct layout_flags){.pp = 8}, &l);
        mem_fail_after(0);
        if (!status_failed(&st)) {
            CU_ASSERT_EQUAL(n, 3); /* both allocations have failed before */
            break;
        }
        CU_ASSERT_EQUAL(st.code, STATUS_MEMORY);
    }
}

void suite_layout(CU_pSuite suite);
void suite_layout(CU_pSuite suite)
{
    CU_add_test(suite, "every unit is held by the right ranks",
                every_unit_is_held_by_the_right_ranks);
    CU_add_test(suite, "splits differ by one unit at most", splits_differ_by_one_unit_at_most);
    CU_add_test(suite, "stages are balanced optimally", stages_are_balanced_optimally);
    CU_add_test(suite, "a heavy head shortens the last stage",
                a_heavy_head_shortens_the_last_stage);
    CU_add_test(suite, "published sizes", whole_models_have_their_published_sizes);
    CU_add_test(suite, "tied embeddings on both ends",
                tied_embeddings_stand_on_both_ends_of_a_pipeline);
    CU_add_test(suite, "shards add up", shards_add_up_to_the_whole);
    CU_add_test(suite, "scales of the cache", scales_of_the_cache_are_counted);
    CU_add_test(suite, "workspace", workspace_grows_with_rows_and_received_tokens);
    CU_add_test(suite, "allocation failures", allocation_failures_are_statuses);
}
