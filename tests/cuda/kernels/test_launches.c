/* Checks launches of extreme shapes without running them: every grid is within a device's limits,
 * no kernel has more shared memory than every architecture offers, and nothing has size zero. Only
 * on the emulated driver. */
#include "util_device.h"

#include "cuda/driver_emulated.h"
#include "kernels/cuda/launch.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>

enum { ROWS = 100000, WIDTH = 1 << 17, VOCAB = 1 << 22 };

static struct both open_dry(enum device_arithmetic arithmetic)
{
    emulated_set((struct emulated){.dry = 1});
    return both_open_as(41, arithmetic);
}

static void close_dry(struct both *b, uint64_t n_least)
{
    device_wait(b->gpu.device); /* launches are held back until then */
    CU_ASSERT_TRUE(emulated_launches() >= n_least);
    CU_ASSERT_EQUAL(emulated_bad_launches(), 0);
    both_close(b);
    emulated_set((struct emulated){0});
}

static void rows_of_all_widths(void)
{
    static const size_t rows[] = {0, 1, ROWS}, widths[] = {1, WIDTH};
    struct both b = open_dry(DEVICE_EXACT);
    const struct kern_table *k = &b.gpu;
    for (size_t i = 0; i < 6; i++) {
        const size_t r = rows[i / 2], n = widths[i % 2];
        op_rmsnorm(k, &(struct norm_args){.n_rows = r, .n = n, .eps = 1e-6f});
        op_rope_kv(k, &(struct rope_kv_args){.n_rows = r,
                                             .n_heads = 1024,
                                             .rot = n == 1 ? 0 : 1024,
                                             .kv = {.head_dim = 1024}});
        op_swiglu(k, &(struct swiglu_args){.stride = n, .n_rows = r, .n = n, .y_stride = n});
        op_swiglu_clamped(k, NULL, NULL, r * n, 1, 1);
        op_sigmoid_rows(k, NULL, NULL, r, n);
        op_add(k, NULL, NULL, r * n);
        op_axpy(k, 1, NULL, r * n, NULL);
        op_scale(k, NULL, 1, r * n);
        op_clamp(k, NULL, 1, r * n);
        op_softcap(k, NULL, 1, r * n);
        op_xielu(k, NULL, (const float[]){1, 1, 1, -1}, r * n);
        op_add_bias(k, NULL, NULL, r, n);
        op_head_square_sums(
            k, &(struct square_sums_args){
                   .n_rows = r, .n_heads = n == 1 ? 0 : 1024, .head_dim = 1024, .stride = 1});
        op_norm_whole(k, &(struct norm_whole){.n_rows = r, .n = n});
        op_rope_tails(k, &(struct rope_tails){.n_rows = r, .n_heads = 1024, .rot = 64});
        op_grid(k, &(struct grid_args){.n_rows = r, .n_out = n, .grid_bits = 20, .adds = true});
        op_place_rows(k, &(struct place_args){.n_rows = r, .width = n});
        op_take_marks(k, NULL, r, NULL, NULL);
        op_argmax_rows(k, &(struct argmax_args){.n_rows = r > 64 ? 64 : r, .n = n * 64});
        op_quantize_rows(k, NULL, n, r, n,
                         &(struct quant_rows){.group = 32, .n_groups = (n + 31) / 32});
    }
    close_dry(&b, 60);
}

static void routers_and_lists(void)
{
    struct both b = open_dry(DEVICE_EXACT);
    const struct kern_table *k = &b.gpu;
    int32_t *list = calloc(ROWS, sizeof *list);
    struct pick_row picks[64] = {{0}};
    for (size_t r = 0; r <= ROWS; r += ROWS / 2) {
        for (uint32_t groups = 0; groups <= ROUTER_GROUPS_MAX; groups += ROUTER_GROUPS_MAX)
            op_router(k,
                      &(struct router_args){.n_experts = ROUTER_EXPERTS_MAX,
                                            .n_chosen = 32,
                                            .rule = {ROUTER_SIGMOID, groups, 4, 0}},
                      r);
        op_gather_rows(k, &(struct gather_args){NULL, list, r, WIDTH, NULL});
        op_move_rows(k, &(struct move_args){NULL, list, list, r, WIDTH, WIDTH, NULL, NULL});
        op_scatter_rows(k, &(struct scatter_args){NULL, list, r, 1, WIDTH, NULL});
        op_combine_choices(k, &(struct combine_choices){
                                  .slots = list, .width = WIDTH, .n_rows = r / 8, .n_chosen = 8});
        const struct packed w = {.n_out = VOCAB, .n_in = WIDTH};
        op_embed(k, &(struct embed_args){&w, list, r, 0, VOCAB, NULL});
        op_pick_rows(k, &(struct pick_args){NULL, picks, r > 0 ? 64 : 0, VOCAB, NULL});
    }
    free(list);
    close_dry(&b, 16);
}

static void linears_as(enum device_arithmetic arithmetic)
{
    static const size_t rows[] = {1, 8, 100, ROWS};
    struct both b = open_dry(arithmetic);
    struct packed w[2] = {{.n_out = VOCAB, .n_in = WIDTH}, {.n_out = VOCAB, .n_in = WIDTH}};
    static float y; /* nothing runs, so these places are not written */
    static int64_t sums;
    static int32_t bad;
    const struct quant_rows xq = {.group = 128, .n_groups = WIDTH / 128};
    for (size_t i = 0; i < QUANT_TEST_FORMATS + DTYPE_COUNT; i++) {
        for (size_t j = 0; j < 4; j++) {
            w[0].dtype = w[1].dtype = (enum dtype)(i % DTYPE_COUNT);
            w[0].quant = w[1].quant =
                i >= DTYPE_COUNT ? quant_test_format(i - DTYPE_COUNT) : (struct quant_format){0};
            const struct linear_group groups[2] = {{&w[0], 0, rows[j]}, {&w[1], rows[j], 3}};
            struct linear_args a = {.groups = groups,
                                    .n_groups = 1,
                                    .x = &y,
                                    .xq = i % 2 ? &xq : NULL,
                                    .y = &y,
                                    .y_stride = VOCAB,
                                    .bad = &bad};
            w[0].leaf = w[1].leaf = 0;
            op_linear(&b.gpu, &a);
            w[0].leaf = w[1].leaf = WIDTH / 4096;
            a.n_groups = 2;
            a.sums = &sums;
            op_linear_leaf(&b.gpu, &a);
            if (rows[j] == ROWS) continue; /* so many rows take 50,000 passes (values_of_sums) */
            a.n_groups = 1;
            a.sums = NULL;
            op_linear_leaf(&b.gpu, &a);
        }
    }
    close_dry(&b, (2 * 4 + 3) * (QUANT_TEST_FORMATS + DTYPE_COUNT));
}

static void linears_of_all_sizes(void)
{
    linears_as(DEVICE_EXACT);
    linears_as(DEVICE_LAW);
}

/* Launches attention of one row, of one row after four million tokens, of 8,192 rows, and of 70,000
 * rows after a million tokens. */
static void attention_of_heads(struct both *b, uint32_t n_heads, uint32_t n_kv, uint32_t head_dim)
{
    static const struct {
        size_t rows, past;
    } shapes[] = {{1, 0}, {1, 1 << 22}, {8192, 0}, {70000, 1 << 20}};
    uint8_t kv_of_head[DEVICE_HEADS_MAX];
    for (uint32_t h = 0; h < n_heads; h++) kv_of_head[h] = (uint8_t)(h / (n_heads / n_kv));
    int32_t *blocks = calloc((1 << 16) + 2000, sizeof *blocks);
    for (size_t i = 0; i < 4; i++) {
        const struct seq_rows seq = {0, shapes[i].rows, shapes[i].past, blocks, 0};
        const struct kv_view kv = {NULL, DTYPE_F16, n_kv, head_dim, false, 0};
        op_step_begin(&b->gpu, &seq, 1, seq.n_rows);
        op_kv_write(&b->gpu, NULL, NULL, &kv, &seq, 1);
        op_attention(&b->gpu, &(struct attn_args){.kv = kv,
                                                  .kv_of_head = kv_of_head,
                                                  .n_heads = n_heads,
                                                  .scale = 1,
                                                  .seqs = &seq,
                                                  .n_seqs = 1});
    }
    free(blocks);
}

static void attention_of_all_sizes(void)
{
    static const uint32_t widths[] = {16, 64, 80, 128, 192, 256, 1024};
    struct both b = open_dry(DEVICE_EXACT);
    attention_of_heads(&b, 1, 1, 16);
    attention_of_heads(&b, DEVICE_HEADS_MAX, 256, 1024);
    close_dry(&b, 16);
    b = open_dry(DEVICE_LAW);
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        attention_of_heads(&b, 1, 1, widths[i]);
        attention_of_heads(&b, DEVICE_HEADS_MAX, 1, widths[i]);
        attention_of_heads(&b, DEVICE_HEADS_MAX, 256, widths[i]);
    }
    close_dry(&b, 3 * 7 * 4);
}

void suite_launches(CU_pSuite suite);
void suite_launches(CU_pSuite suite)
{
    CU_ADD_TEST(suite, rows_of_all_widths);
    CU_ADD_TEST(suite, routers_and_lists);
    CU_ADD_TEST(suite, linears_of_all_sizes);
    CU_ADD_TEST(suite, attention_of_all_sizes);
}
