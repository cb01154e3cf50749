/* The stream of experts: with any memory, the caller gets the bytes of the expert that it needs;
 * experts without rows are not read; failed reads end the stream with a status. */
#include "weights/expert_stream_private.h"

#include "base/mem.h"
#include "unit/util_ckpt.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 3, EXPERTS = 24, LOCAL = 20, FIRST = 4, UNIT = EXPERT_FILE_ALIGN };

static struct packed packed_of[LAYERS][EXPERT_MATRIX_COUNT][LOCAL];

/* The first word of an expert's bytes says which one it is. */
static uint32_t mark_of(uint32_t layer, uint32_t expert)
{
    return 1000 * (layer + 1) + expert;
}

static void write_copy(const char *path, const struct expert_file_shape *shape)
{
    struct expert_file_writer *w = NULL;
    uint32_t *bytes = aligned_alloc(UNIT, shape->expert_bytes[0]);
    CU_ASSERT_EQUAL_FATAL(expert_file_create(path, shape, &w).code, STATUS_OK);
    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
        for (size_t k = 0; k < shape->expert_bytes[0] / 4; k++)
            bytes[k] = mark_of(i / EXPERTS, i % EXPERTS) + (uint32_t)k;
        CU_ASSERT_EQUAL(expert_file_write(w, i / EXPERTS, 0, i % EXPERTS, 1, bytes).code,
                        STATUS_OK);
    }
    CU_ASSERT_EQUAL(expert_file_finish(w).code, STATUS_OK);
    expert_file_writer_destroy(&w);
    free(bytes);
}

/* A stream of the experts from FIRST on, with memory for n_slots of them. */
static struct expert_stream *open_stream(const char *path, uint32_t n_slots, struct failpoint *fail)
{
    static uint64_t sizes[LAYERS];
    struct expert_stream *s = NULL;
    struct expert_shape one = {.n_bytes = 0};
    for (int k = 0; k < EXPERT_MATRIX_COUNT; k++)
        one.matrix[k] = (struct packed){.dtype = DTYPE_F32, .n_out = 20, .n_in = 50};
    CU_ASSERT_EQUAL_FATAL(expert_shape_place(&one).code, STATUS_OK);
    for (int i = 0; i < LAYERS; i++) sizes[i] = one.n_bytes;
    const struct expert_file_shape shape = {
        .n_layers = LAYERS, .n_experts = EXPERTS, .n_parts = 1, .expert_bytes = sizes};
    if (access(path, F_OK) != 0) write_copy(path, &shape);
    CU_ASSERT_EQUAL_FATAL(expert_stream_create(&s).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(expert_file_open(path, &shape, &s->file).code, STATUS_OK);
    s->failpoint = fail;
    s->first_place = FIRST;
    s->n_layers = LAYERS;
    s->n_local = LOCAL;
    s->slot_bytes = one.n_bytes;
    CU_ASSERT_EQUAL_FATAL(mem_alloc(&s->layers, LAYERS, sizeof *s->layers, "test").code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(mem_alloc(&s->layer_at, LAYERS, sizeof *s->layer_at, "test").code,
                          STATUS_OK);
    for (uint32_t i = 0; i < LAYERS; i++) {
        s->layer_at[i] = i;
        s->layers[i] =
            (struct stream_layer){.file_layer = i,
                                  .shape = one,
                                  .matrix = {packed_of[i][0], packed_of[i][1], packed_of[i][2]}};
    }
    CU_ASSERT_EQUAL_FATAL(expert_stream_set(s).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(expert_stream_start(s, n_slots * one.n_bytes).code, STATUS_OK);
    return s;
}

/* True when the layer's weights are those of the expert. */
static bool is_expert(uint32_t layer, uint32_t x)
{
    const uint32_t *gate = packed_of[layer][EXPERT_GATE][x].data;
    const uint32_t *down = packed_of[layer][EXPERT_DOWN][x].data;
    const uint32_t mark = mark_of(layer, FIRST + x);
    return gate[0] == mark && gate[9] == mark + 9 && down[0] == mark + (uint32_t)(down - gate);
}

/* Runs one block; returns the stream's status. */
static struct status run_block(struct expert_stream *s, uint32_t layer, const struct expert_need *n,
                               size_t n_needs, bool in_order)
{
    bool came[LOCAL] = {false};
    size_t n_came = 0;
    expert_stream_begin(s, layer, n, n_needs, in_order, 40);
    for (struct expert_run run; n_came < n_needs; n_came += run.n) {
        TRY(expert_stream_next(s, &run));
        CU_ASSERT_FATAL(run.n > 0 && run.first + run.n <= n_needs);
        CU_ASSERT(!in_order || (run.first == n_came && run.n == 1));
        size_t n_rows = 0;
        for (size_t i = run.first; i < run.first + run.n; i++) {
            CU_ASSERT_FALSE(came[i]);
            came[i] = true;
            n_rows += n[i].n_rows;
            CU_ASSERT(is_expert(layer, n[i].expert));
        }
        CU_ASSERT(run.n == 1 || n_rows <= 40);
    }
    return status_ok();
}

/* Draws needs: each expert with a probability of `odds` percent. Returns their number. */
static size_t draw_needs(struct expert_need *out, unsigned odds, unsigned *state)
{
    size_t n = 0;
    for (uint32_t x = 0; x < LOCAL; x++)
        if ((unsigned)rand_r(state) % 100 < odds)
            out[n++] = (struct expert_need){x, 1 + (unsigned)rand_r(state) % 30};
    return n;
}

static void any_memory_gives_the_experts(void)
{
    static const uint32_t slots[] = {1, 4, 5, 9, 31, LAYERS * LOCAL};
    const char *path = scratch("stream.experts");
    unsigned state = 7;
    for (size_t i = 0; i < 2 * sizeof slots / sizeof slots[0]; i++) {
        struct expert_need needs[LOCAL];
        struct expert_stream *s = open_stream(path, slots[i / 2], NULL);
        for (uint32_t block = 0; block < 60; block++) {
            const size_t n = draw_needs(needs, block % 7 == 0 ? 100 : 60, &state);
            const struct status st = run_block(s, block % LAYERS, needs, n, i % 2 != 0);
            CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
        }
        const struct expert_stream_stats stats = expert_stream_stats_of(s);
        CU_ASSERT_EQUAL(stats.n_blocks, 60);
        CU_ASSERT(stats.held_bytes <= (slots[i / 2] < 4 ? 4 : slots[i / 2]) * s->slot_bytes);
        if (slots[i / 2] == LAYERS * LOCAL) CU_ASSERT(stats.n_reads <= LAYERS * LOCAL);
        expert_stream_destroy(&s);
    }
    scratch_clear();
}

/* After some steps experts without rows are not read any more, and all experts with rows stay in
 * memory. */
static void experts_without_rows_are_not_read(void)
{
    struct expert_stream *s = open_stream(scratch("few.experts"), 24, NULL);
    const struct expert_need needs[] = {{3, 1}, {4, 2}, {11, 1}, {17, 5}};
    uint64_t before = 0;
    for (uint32_t block = 0; block < 300; block++) {
        if (block == 240) before = expert_stream_stats_of(s).n_reads;
        CU_ASSERT_EQUAL_FATAL(run_block(s, block % LAYERS, needs, 4, false).code, STATUS_OK);
    }
    CU_ASSERT_EQUAL(expert_stream_stats_of(s).n_reads, before);
    expert_stream_destroy(&s);
    scratch_clear();
}

/* With memory for half the experts, half of it the ring, a pass reads at most about three quarters
 * of the experts: none of the home is dropped before its next use. */
static void a_pass_reads_what_memory_lacks(void)
{
    enum { SLOTS = LAYERS * LOCAL / 2, STEPS = 40 };
    struct expert_need needs[LOCAL];
    unsigned state = 1;
    struct expert_stream *s = open_stream(scratch("half.experts"), SLOTS, NULL);
    for (uint32_t block = 0; block < STEPS * LAYERS; block++) {
        const size_t n = draw_needs(needs, 100, &state);
        CU_ASSERT_EQUAL_FATAL(run_block(s, block % LAYERS, needs, n, false).code, STATUS_OK);
    }
    const uint64_t n_reads = expert_stream_stats_of(s).n_reads, all = LAYERS * LOCAL;
    CU_ASSERT(n_reads >= (STEPS - 1) * (all - SLOTS));
    CU_ASSERT(n_reads <= STEPS * (all - SLOTS / 2 + 2));
    expert_stream_destroy(&s);
    scratch_clear();
}

/* Runs blocks until one fails. */
static struct status run_until_failure(struct expert_stream *s)
{
    struct expert_need needs[LOCAL];
    unsigned state = 3;
    struct status st = status_ok();
    for (uint32_t block = 0; block < 100 && !status_failed(&st); block++) {
        const size_t n = draw_needs(needs, 100, &state);
        st = run_block(s, block % LAYERS, needs, n, false);
    }
    return st;
}

static void failed_reads_end_the_stream(void)
{
    struct failpoint fail;
    CU_ASSERT_EQUAL_FATAL(failpoint_parse("expert_read:70:EIO", &fail).code, STATUS_OK);
    const char *path = scratch("fails.experts");
    struct expert_stream *s = open_stream(path, 8, &fail);
    struct status st = run_until_failure(s);
    CU_ASSERT_EQUAL(st.code, STATUS_IO);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "Input/output error"));
    expert_stream_destroy(&s);

    s = open_stream(path, 8, NULL);
    CU_ASSERT_EQUAL(truncate(path, 40 * (long)s->slot_bytes), 0);
    st = run_until_failure(s);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "cut"));
    expert_stream_destroy(&s);
    scratch_clear();
}

static void damaged_experts_are_noticed(void)
{
    const char *path = scratch("damaged.experts");
    struct expert_stream *s = open_stream(path, 8, NULL);
    expert_stream_destroy(&s);
    size_t n;
    char *bytes = get_file(path, &n);
    bytes[n / 2] ^= 1;
    put_file(path, bytes, n);
    free(bytes);
    s = open_stream(path, 8, NULL);
    const struct status st = run_until_failure(s);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "checksum"));
    expert_stream_destroy(&s);
    scratch_clear();
}

void suite_expert_stream(CU_pSuite suite);
void suite_expert_stream(CU_pSuite suite)
{
    CU_add_test(suite, "any memory gives the experts", any_memory_gives_the_experts);
    CU_add_test(suite, "experts without rows are not read", experts_without_rows_are_not_read);
    CU_add_test(suite, "a pass reads what memory lacks", a_pass_reads_what_memory_lacks);
    CU_add_test(suite, "failed reads end the stream", failed_reads_end_the_stream);
    CU_add_test(suite, "damaged experts are noticed", damaged_experts_are_noticed);
}
