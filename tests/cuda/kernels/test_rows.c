/* Tests ops on rows on the device against the reference: norms, rotation, gates, sums, moved rows.
 */
#include "util_device.h"

#include "kernels/act.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    size_t rows, n;
} shapes[] = {{1, 1},  {1, 16},  {3, 17},   {5, 127},  {2, 128},  {2, 129},
              {7, 96}, {61, 40}, {1, 5000}, {8192, 3}, {33, 260}, {2, 17000}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

/* A norm whose result is also quantized. */
static void norm_to_codes(struct both *b, const struct twin *x, const struct twin *w, size_t rows,
                          size_t n)
{
    const struct packed linear = {.n_in = (uint32_t)n, .quant = quant_test_format(0)};
    const size_t n_bytes = act_codes_bytes(rows, n);
    struct twin y = twin_zeros(b, rows * n * sizeof(float)), memory = twin_zeros(b, n_bytes);
    struct act_rows in = {.stride = n, .n_rows = rows, .n = n, .memory = memory.host};
    struct norm_args a = {.x = x->host,
                          .w = w->host,
                          .n_rows = rows,
                          .n = n,
                          .eps = 1e-5f,
                          .y = y.host,
                          .codes = act_codes_to_make(&in, &linear)};
    op_rmsnorm(&b->cpu, &a);
    struct act_rows to = {.stride = n, .n_rows = rows, .n = n, .memory = memory.device};
    a.x = x->device;
    a.w = w->device;
    a.y = y.device;
    a.codes = act_codes_to_make(&to, &linear);
    op_rmsnorm(&b->gpu, &a);
    twin_same_floats(b, &y, "rmsnorm with codes");
    twin_same(b, &memory, "codes of a norm");
    twin_free(b, &y);
    twin_free(b, &memory);
}

static void norms(void)
{
    struct both b = both_open(1);
    for (size_t i = 0; i < N_SHAPES; i++) {
        const size_t rows = shapes[i].rows, n = shapes[i].n;
        struct twin x = twin_floats(&b, rows * n, 3.0f, 900), w = twin_floats(&b, n, 2.0f, 0);
        struct twin y = twin_zeros(&b, rows * n * sizeof(float));
        op_rmsnorm(
            &b.cpu,
            &(struct norm_args){
                .x = x.host, .w = w.host, .n_rows = rows, .n = n, .eps = 1e-5f, .y = y.host});
        op_rmsnorm(
            &b.gpu,
            &(struct norm_args){
                .x = x.device, .w = w.device, .n_rows = rows, .n = n, .eps = 1e-5f, .y = y.device});
        twin_same_floats(&b, &y, "rmsnorm");
        struct norm_args centred = {.x = x.host,
                                    .w = w.host,
                                    .n_rows = rows,
                                    .n = n,
                                    .eps = 1e-5f,
                                    .y = y.host,
                                    .bias = w.host};
        op_rmsnorm(&b.cpu, &centred);
        centred.x = x.device;
        centred.w = centred.bias = w.device;
        centred.y = y.device;
        op_rmsnorm(&b.gpu, &centred);
        twin_same_floats(&b, &y, "layer norm");
        norm_to_codes(&b, &x, &w, rows, n);
        twin_free(&b, &x);
        twin_free(&b, &w);
        twin_free(&b, &y);
    }
    both_close(&b);
}

/* Heads of several ranks: the sums have more entries than this rank has heads. */
static void norms_over_all_heads(void)
{
    static const size_t n_heads[] = {1, 3, 8, 9, 40};
    struct both b = both_open(2);
    for (size_t i = 0; i < sizeof n_heads / sizeof n_heads[0]; i++) {
        const size_t rows = 1 + 4 * i, hd = 16 * (i + 1), n = n_heads[i] * hd;
        const size_t stride = n_heads[i] + 5;
        struct twin x = twin_floats(&b, rows * n, 3.0f, 500), w = twin_floats(&b, n, 2.0f, 0);
        struct twin sums = twin_floats(&b, rows * stride, 1.0f, 0);
        op_head_square_sums(&b.cpu, &(struct square_sums_args){.x = x.host,
                                                               .n_rows = rows,
                                                               .n_heads = n_heads[i],
                                                               .head_dim = hd,
                                                               .sums = (uint32_t *)sums.host + 2,
                                                               .stride = stride});
        op_head_square_sums(&b.gpu, &(struct square_sums_args){.x = x.device,
                                                               .n_rows = rows,
                                                               .n_heads = n_heads[i],
                                                               .head_dim = hd,
                                                               .sums = (uint32_t *)sums.device + 2,
                                                               .stride = stride});
        twin_same_floats(&b, &sums, "square sums");
        struct norm_whole a = {x.host, w.host, sums.host, rows, n, 2 * n, stride, stride, 1e-6f};
        op_norm_whole(&b.cpu, &a);
        a.x = x.device;
        a.w = w.device;
        a.sums = sums.device;
        op_norm_whole(&b.gpu, &a);
        twin_same_floats(&b, &x, "norm over all heads");
        twin_free(&b, &x);
        twin_free(&b, &w);
        twin_free(&b, &sums);
    }
    both_close(&b);
}

static void rotations(void)
{
    struct both b = both_open(3);
    static const int32_t positions[5] = {0, 63, 64, 70001, 5};
    static const int32_t blocks[2000] = {0};
    struct seq_rows seqs[5];
    for (size_t i = 0; i < 5; i++)
        seqs[i] = (struct seq_rows){i, 1, (size_t)positions[i], blocks, 0};
    for (size_t rot = 2; rot <= 70; rot += 34) {
        const size_t heads = 3, hd = rot + 10, half = rot / 2;
        struct twin inv = twin_floats(&b, half, 1.0f, 0);
        struct twin c = twin_zeros(&b, 5 * half * 4), s = twin_zeros(&b, 5 * half * 4);
        struct twin x = twin_floats(&b, 5 * heads * hd, 3.0f, 200);
        struct twin out = twin_zeros(&b, 5 * heads * (hd + 1) * 4);
        op_step_begin(&b.gpu, seqs, 5, 5);
        op_rope_table(&b.cpu, &(struct rope_table_args){.positions = positions,
                                                        .n_rows = 5,
                                                        .inv_freq = inv.host,
                                                        .rot = rot,
                                                        .scale = 1.5f,
                                                        .cos = c.host,
                                                        .sin = s.host});
        op_rope_table(&b.gpu, &(struct rope_table_args){.positions = positions,
                                                        .n_rows = 5,
                                                        .inv_freq = inv.device,
                                                        .rot = rot,
                                                        .scale = 1.5f,
                                                        .cos = c.device,
                                                        .sin = s.device});
        twin_same_floats(&b, &c, "cos");
        twin_same_floats(&b, &s, "sin");
        for (int pairs = 0; pairs < 2; pairs++) {
            struct rope_tails a = {.x = twin_host(&x) + 7,
                                   .out = twin_host(&out) + 3,
                                   .x_stride = hd,
                                   .out_stride = hd + 1,
                                   .cos = c.host,
                                   .sin = s.host,
                                   .n_rows = 5,
                                   .n_heads = heads,
                                   .rot = rot,
                                   .pairs = pairs == 1};
            op_rope_tails(&b.cpu, &a);
            a.x = twin_device(&x) + 7;
            a.out = twin_device(&out) + 3;
            a.cos = c.device;
            a.sin = s.device;
            op_rope_tails(&b.gpu, &a);
            twin_same_floats(&b, &out, "rotated tails");
        }
        struct twin norm = twin_floats(&b, hd, 2.0f, 0);
        struct rope_kv_args q = {.n_rows = 5, .n_heads = heads, .rot = rot, .seqs = seqs};
        q.norms_last = true;
        q.eps = 1e-5f;
        q.n_seqs = 5;
        q.kv.head_dim = (uint32_t)hd;
        q.q = x.host;
        q.q_norm = norm.host;
        q.cos = c.host;
        q.sin = s.host;
        op_rope_kv(&b.cpu, &q);
        q.q = x.device;
        q.q_norm = norm.device;
        q.cos = c.device;
        q.sin = s.device;
        op_rope_kv(&b.gpu, &q);
        twin_same_floats(&b, &x, "rope");
        struct twin *all[] = {&inv, &c, &s, &x, &out, &norm};
        for (size_t i = 0; i < 6; i++) twin_free(&b, all[i]);
    }
    both_close(&b);
}

enum { CACHED_ROWS = 5, CACHED_HD = 80, CACHED_ROT = 48, CACHED_HEADS = 11, CACHED_KV = 9 };

/* Runs op_rope_kv into a cache of type t, with norms before the rotation or after it. There are
 * more heads than a block takes, and not a multiple of that number. Keys are finite, because the
 * bits of a computed NaN are not the same everywhere. */
static void heads_into_a_cache(struct both *b, enum dtype t, bool norms_last)
{
    static const int32_t positions[CACHED_ROWS] = {0, 63, 64, 100, 5};
    static const int32_t blocks[2 * CACHED_ROWS] = {3, 1, 0, 2, 4, 5, 7, 6, 9, 8};
    struct seq_rows seqs[CACHED_ROWS];
    for (size_t i = 0; i < CACHED_ROWS; i++)
        seqs[i] = (struct seq_rows){i, 1, (size_t)positions[i], blocks + 2 * i, 0};
    const size_t n_q = (size_t)CACHED_ROWS * CACHED_HEADS * CACHED_HD;
    const size_t n_k = (size_t)CACHED_ROWS * CACHED_KV * CACHED_HD;
    struct twin q = twin_floats(b, n_q, 3.0f, 300), k = twin_floats(b, n_k, 3.0f, 0);
    struct twin v = twin_floats(b, n_k, 3.0f, 300);
    struct twin q_norm = twin_floats(b, CACHED_HD, 2.0f, 0),
                k_norm = twin_floats(b, CACHED_HD, 2, 0);
    struct twin c = twin_floats(b, CACHED_ROWS * CACHED_ROT / 2, 1.0f, 0);
    struct twin s = twin_floats(b, CACHED_ROWS * CACHED_ROT / 2, 1.0f, 0);
    struct twin cache =
        twin_zeros(b, (size_t)4 * CACHED_ROWS * CACHED_KV * kv_half_bytes(t, CACHED_HD));
    struct rope_kv_args a = {.q = q.host,
                             .k = k.host,
                             .v = v.host,
                             .q_norm = q_norm.host,
                             .k_norm = k_norm.host,
                             .eps = 1e-5f,
                             .norms_last = norms_last,
                             .cos = c.host,
                             .sin = s.host,
                             .n_rows = CACHED_ROWS,
                             .n_heads = CACHED_HEADS,
                             .rot = CACHED_ROT,
                             .kv = {cache.host, t, CACHED_KV, CACHED_HD, false, 0},
                             .seqs = seqs,
                             .n_seqs = CACHED_ROWS};
    op_rope_kv(&b->cpu, &a);
    a.q = q.device;
    a.k = k.device;
    a.v = v.device;
    a.q_norm = q_norm.device;
    a.k_norm = k_norm.device;
    a.cos = c.device;
    a.sin = s.device;
    a.kv.base = cache.device;
    op_step_begin(&b->gpu, seqs, CACHED_ROWS, CACHED_ROWS);
    op_rope_kv(&b->gpu, &a);
    twin_same_floats(b, &q, "queries");
    twin_same_floats(b, &k, "keys");
    if (t == DTYPE_F32)
        twin_same_floats(b, &cache, "keys and values in the cache");
    else
        twin_same(b, &cache, "keys and values in the cache");
    struct twin *all[] = {&q, &k, &v, &q_norm, &k_norm, &c, &s, &cache};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) twin_free(b, all[i]);
}

static void heads(void)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8, DTYPE_F8_E4M3};
    struct both b = both_open(9);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        heads_into_a_cache(&b, types[i], false);
        heads_into_a_cache(&b, types[i], true);
    }
    both_close(&b);
}

/* Runs ops one after another on the same rows, so that a wrong result shows in all that follow. */
static void elements(void)
{
    struct both b = both_open(4);
    for (size_t i = 0; i < N_SHAPES; i++) {
        const size_t rows = shapes[i].rows, n = shapes[i].n, all = rows * n;
        struct twin h = twin_floats(&b, all, 3.0f, 300), x = twin_floats(&b, all, 3.0f, 300);
        struct twin bias = twin_floats(&b, n, 1.0f, 0), gate = twin_floats(&b, rows, 4.0f, 0);
        struct twin y = twin_zeros(&b, rows * (n + 3) * sizeof(float));
        for (int gpu = 0; gpu < 2; gpu++) {
            const struct kern_table *k = gpu ? &b.gpu : &b.cpu;
            float *hh = gpu ? h.device : h.host, *xx = gpu ? x.device : x.host;
            float *yy = gpu ? y.device : y.host;
            op_swiglu(k, &(struct swiglu_args){.gate = hh,
                                               .up = xx,
                                               .stride = n,
                                               .n_rows = rows,
                                               .n = n,
                                               .y = yy,
                                               .y_stride = n + 3});
            op_swiglu_clamped(k, hh, xx, all, 1.702f, 2.0f);
            op_sigmoid_rows(k, hh, gpu ? gate.device : gate.host, rows, n);
            op_add(k, hh, xx, all);
            op_axpy(k, 0.3f, xx, all, hh);
            op_add_bias(k, hh, gpu ? bias.device : bias.host, rows, n);
            op_scale(k, hh, 1.25f, all);
            op_clamp(k, hh, 2.0f, all);
            op_softcap(k, hh, 1.5f, all);
            op_xielu(k, hh, (const float[]){0.7f, 1.3f, 0.5f, -1e-6f}, all);
            op_swiglu(k, &(struct swiglu_args){.gate = hh,
                                               .up = xx,
                                               .stride = n,
                                               .n_rows = rows,
                                               .n = n,
                                               .y = hh,
                                               .y_stride = n,
                                               .kind = GATE_GEGLU});
        }
        twin_same_floats(&b, &h, "elements");
        twin_same_floats(&b, &y, "swiglu");
        struct twin *twins[] = {&h, &x, &bias, &gate, &y};
        for (size_t j = 0; j < 5; j++) twin_free(&b, twins[j]);
    }
    both_close(&b);
}

static void grid_sums(void)
{
    struct both b = both_open(5);
    for (size_t i = 0; i < N_SHAPES; i++) {
        const size_t rows = shapes[i].rows, n = shapes[i].n;
        int64_t *random = test_memory(rows * (n + 1) * sizeof *random);
        for (size_t j = 0; j < rows * (n + 1); j++) random[j] = (int64_t)rng_next(&b.rng) >> 8;
        for (size_t j = 0; j < rows; j++) random[j * (n + 1) + n] = j % 3 == 0 ? 5000000000 : 3;
        struct twin sums = twin_of(&b, random, rows * (n + 1) * sizeof *random);
        struct twin y = twin_floats(&b, rows * n, 100.0f, 0);
        struct twin bad = twin_zeros(&b, rows * sizeof(int32_t));
        op_grid(&b.cpu, &(struct grid_args){.sums = sums.host,
                                            .n_rows = rows,
                                            .n_out = n,
                                            .grid_bits = 20,
                                            .adds = true,
                                            .y = y.host,
                                            .bad = bad.host});
        op_grid(&b.gpu, &(struct grid_args){.sums = sums.device,
                                            .n_rows = rows,
                                            .n_out = n,
                                            .grid_bits = 20,
                                            .adds = true,
                                            .y = y.device,
                                            .bad = bad.device});
        twin_same(&b, &y, "grid_add");
        op_grid(&b.cpu, &(struct grid_args){.sums = sums.host,
                                            .n_rows = rows,
                                            .n_out = n,
                                            .grid_bits = 32,
                                            .y = y.host,
                                            .bad = bad.host});
        op_grid(&b.gpu, &(struct grid_args){.sums = sums.device,
                                            .n_rows = rows,
                                            .n_out = n,
                                            .grid_bits = 32,
                                            .y = y.device,
                                            .bad = bad.device});
        twin_same(&b, &y, "grid_to_f32");
        twin_same(&b, &bad, "counters of rows");
        twin_free(&b, &sums);
        twin_free(&b, &y);
        twin_free(&b, &bad);
        free(random);
    }
    both_close(&b);
}

static void rows_moved(void)
{
    enum { N = 29, WIDTH = 131 };
    struct both b = both_open(6);
    struct twin from = twin_floats(&b, N * WIDTH, 1.0f, 50);
    struct twin to = twin_floats(&b, N * (WIDTH + 2), 1.0f, 0);
    struct twin extra = twin_floats(&b, N, 1.0f, 0);
    int32_t forth[N], back[N];
    for (int32_t i = 0; i < N; i++) {
        forth[i] = (i * 7 + 3) % N;
        back[i] = (i * 11 + 1) % N;
    }
    for (int gpu = 0; gpu < 2; gpu++) {
        const struct kern_table *k = gpu ? &b.gpu : &b.cpu;
        float *x = gpu ? from.device : from.host, *y = gpu ? to.device : to.host;
        op_move_rows(k, &(struct move_args){x, forth, back, N, WIDTH, WIDTH + 2,
                                            gpu ? extra.device : extra.host, y});
        op_gather_rows(k, &(struct gather_args){y, forth, N - 1, WIDTH, x});
        op_place_rows(k, &(struct place_args){x, N, WIDTH - 5, WIDTH + 2, y, 0});
        op_place_rows(k, &(struct place_args){.from = y,
                                              .n_rows = N,
                                              .width = WIDTH - 9,
                                              .to_stride = WIDTH,
                                              .to = x,
                                              .from_stride = WIDTH + 2});
    }
    twin_same(&b, &from, "gathered rows");
    twin_same(&b, &to, "moved rows");
    twin_free(&b, &from);
    twin_free(&b, &to);
    twin_free(&b, &extra);
    both_close(&b);
}

/* Moves tokens to experts and back; every fourth choice is dropped. */
static void rows_to_experts_and_back(void)
{
    /* on this grid some weighted values are too large */
    enum { ROWS = 13, K = 3, WIDTH = 70, SLOTS = ROWS * K, GRID = 52 };
    struct both b = both_open(7);
    struct twin x = twin_floats(&b, ROWS * WIDTH, 1.0f, 90);
    struct twin sent = twin_zeros(&b, SLOTS * (WIDTH + 1) * sizeof(float));
    struct twin out = twin_floats(&b, ROWS * WIDTH, 1.0f, 0);
    struct twin weights = twin_floats(&b, SLOTS, 1.0f, 0);
    struct twin marks = twin_zeros(&b, 2 * ROWS * sizeof(int32_t));
    struct twin bad = twin_zeros(&b, SLOTS * sizeof(int32_t));
    struct twin counts = twin_zeros(&b, 2 * ROWS * sizeof(int32_t));
    struct twin sums = twin_zeros(&b, ROWS * (WIDTH + 1) * sizeof(int64_t));
    int32_t slots[SLOTS];
    for (int32_t i = 0; i < SLOTS; i++) {
        slots[i] = i % 4 == 1 ? -1 : (i * 5 + 2) % SLOTS;
        ((int32_t *)bad.host)[i] = i % 5;
    }
    mem_ops_put(&b.gpu, bad.device, bad.host, sizeof slots);
    for (int gpu = 0; gpu < 2; gpu++) {
        const struct kern_table *k = gpu ? &b.gpu : &b.cpu;
        float *s = gpu ? sent.device : sent.host;
        int32_t *m = gpu ? marks.device : marks.host, *c = gpu ? counts.device : counts.host;
        op_scatter_rows(k, &(struct scatter_args){.x = gpu ? x.device : x.host,
                                                  .slots = slots,
                                                  .n_slots = SLOTS,
                                                  .per_row = K,
                                                  .width = WIDTH,
                                                  .to = s});
        struct combine_choices a = {.y = s,
                                    .y_stride = WIDTH,
                                    .width = WIDTH,
                                    .slots = slots,
                                    .weights = gpu ? weights.device : weights.host,
                                    .n_rows = ROWS,
                                    .n_chosen = K,
                                    .grid_bits = GRID,
                                    .out = gpu ? out.device : out.host,
                                    .bad = gpu ? bad.device : bad.host,
                                    .bad_stride = 1,
                                    .marks = m};
        op_combine_choices(k, &a);
        a.sums = gpu ? sums.device : sums.host;
        for (int i = 0; i < 2; i++) op_combine_choices(k, &a);
        op_take_marks(k, m, ROWS, c, c + ROWS);
    }
    twin_same(&b, &sent, "scattered rows");
    twin_same_floats(&b, &out, "combined rows");
    twin_same(&b, &counts, "marks");
    twin_same(&b, &sums, "sums of combined rows");
    struct twin *all[] = {&x, &sent, &out, &weights, &marks, &bad, &counts, &sums};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) twin_free(&b, all[i]);
    both_close(&b);
}

void suite_rows(CU_pSuite suite);
void suite_rows(CU_pSuite suite)
{
    CU_ADD_TEST(suite, norms);
    CU_ADD_TEST(suite, norms_over_all_heads);
    CU_ADD_TEST(suite, rotations);
    CU_ADD_TEST(suite, heads);
    CU_ADD_TEST(suite, elements);
    CU_ADD_TEST(suite, grid_sums);
    CU_ADD_TEST(suite, rows_moved);
    CU_ADD_TEST(suite, rows_to_experts_and_back);
}
