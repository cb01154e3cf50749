/* Tests that adapters which do not fit a model are refused by name on all ranks. */
#include "checkpoint/file/ckpt_writer.h"
#include "kernels/ops.h"
#include "mpi/util_mpi.h"
#include "weights/adapters.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An adapter of one linear, A [r, n_in] and B [n_out, r_b], or without B if r_b is 0. */
struct misfit {
    const char *model, *linear;
    uint32_t r, n_in, n_out, r_b;
    const char *sentence;
};

static void write_zeros(struct ckpt_writer *w, const char *linear, char part, uint32_t n_rows,
                        uint32_t n_cols)
{
    char name[160];
    snprintf(name, sizeof name, "%s.lora_%c.weight", linear, part);
    const struct ckpt_tensor_spec spec = {
        .name = name, .dtype = DTYPE_F32, .n_dims = 2, .dims = {n_rows, n_cols}};
    float *zeros = calloc((size_t)n_rows * n_cols, sizeof *zeros);
    CU_ASSERT_EQUAL_FATAL(ckpt_writer_tensor(w, &spec).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(ckpt_writer_rows(w, zeros, n_rows).code, STATUS_OK);
    free(zeros);
}

/* `also`: another name under which the file has the linear once more; NULL: none. */
static void write_misfit(const struct misfit *f, const char *also, const char *config,
                         const char *path)
{
    struct ckpt_writer *w = NULL;
    CU_ASSERT_EQUAL_FATAL(ckpt_writer_create(path, "adapters test", &w).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(ckpt_writer_config(w, config, strlen(config)).code, STATUS_OK);
    write_zeros(w, f->linear, 'A', f->r, f->n_in);
    if (f->r_b > 0) write_zeros(w, f->linear, 'B', f->n_out, f->r_b);
    if (also != NULL) {
        write_zeros(w, also, 'A', f->r, f->n_in);
        write_zeros(w, also, 'B', f->n_out, f->r_b);
    }
    CU_ASSERT_EQUAL_FATAL(ckpt_writer_finish(&w).code, STATUS_OK);
}

static void parse_golden(const char *model, struct arch *out)
{
    static char text[16384];
    char path[480];
    snprintf(path, sizeof path, "%s/golden/models/%s/hf/config.json", TEST_DATA_DIR, model);
    FILE *f = fopen(path, "rb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    const size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    CU_ASSERT_EQUAL_FATAL(arch_parse(text, n, "config.json", out).code, STATUS_OK);
}

static void try_misfit(const struct misfit *f, const char *also, const char *config)
{
    static struct arch m;
    static struct layout_model lm;
    struct layout *l = malloc(sizeof *l);
    const struct layout_flags flags = {.tp = 1, .pp = 1, .dp = util_n_ranks(), .ep = 1};
    char path[64];
    struct kern_table kern;
    struct adapters *found = NULL;
    parse_golden(f->model, &m);
    layout_describe(&m, 4, &lm);
    CU_ASSERT_EQUAL_FATAL(layout_build(&lm, util_n_ranks(), &flags, l).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(kern_select(NULL, &kern).code, STATUS_OK);
    util_shared_path("misfit", path, sizeof path);
    if (util_rank() == 0) write_misfit(f, also, config, path);
    MPI_Barrier(MPI_COMM_WORLD);
    struct comm *c = util_comm(l, 0);
    const struct layout_place at = layout_place_of(l, util_rank());
    const struct weights base = {.place = at, .layers = layout_layers(l, at.pp)};
    const struct weights_source from = {
        .model = &m, .layout = l, .place = at, .kern = &kern, .comm = c};
    const struct adapter_file file = {"a", path};
    const struct status st = adapters_load(&from, &base, &file, 1, &found);
    const bool said = strstr(st.text, f->sentence) != NULL && strstr(st.text, path) != NULL;
    CU_ASSERT(st.code == STATUS_INPUT && said && found == NULL);
    if (!said) fprintf(stderr, "\n  %s\n", st.text);
    comm_stop(&c);
    if (util_rank() == 0) unlink(path);
    free(l);
}

static void adapters_that_do_not_fit_are_refused_by_name(void)
{
    static const char *const lora = "{\"adapter_type\": \"lora\", \"scaling\": 1}";
    static const struct misfit misfits[] = {
        {"llama-gqa", "model.layers.4.self_attn.q_proj", 4, 64, 128, 4, "no such linear"},
        {"llama-gqa", "model.layers.1.self_attn.x_proj", 4, 64, 128, 4, "no such linear"},
        {"llama-gqa", "model.layers.1.feed_forward.up_proj", 4, 64, 96, 4, "no such linear"},
        {"llama-gqa", "lm_head", 4, 64, 320, 4, "adapters of the head"},
        {"llama-gqa", "model.layers.1.input_layernorm", 4, 64, 64, 4, "not a linear"},
        {"llama-gqa", "model.layers.1.self_attn.q_proj", 4, 64, 0, 0, "lora_B.weight beside it"},
        {"llama-gqa", "model.layers.1.self_attn.q_proj", 4, 64, 96, 4, "found [4, 64] and [96, 4]"},
        {"llama-gqa", "model.layers.1.self_attn.q_proj", 4, 96, 128, 4, "A [r, 64] and B [128, r]"},
        {"llama-gqa", "model.layers.1.self_attn.q_proj", 4, 64, 128, 8, "[4, 64] and [128, 8]"},
        {"phi3", "model.layers.0.self_attn.qkv_proj", 4, 64, 128, 4, "published as one tensor"},
        {"apertus", "model.layers.0.mlp.up_proj", 4, 64, 96, 4, "FFN without a gate"},
        {"qwen3-moe", "model.layers.0.mlp.gate", 4, 64, 8, 4, "adapters of routers"},
        {"deepseek-v3", "model.layers.1.mlp.experts", 24, 64, 32, 24, "no such linear"},
        {"deepseek-v3", "model.layers.1.mlp.experts", 25, 64, 64, 25, "[25, 64] and [64, 25]"},
        {"deepseek-v3", "model.layers.1.mlp.experts.up_proj", 4, 64, 32, 4, "A [r, 64] and B"},
        {"deepseek-v3", "model.layers.1.mlp.gate", 4, 64, 12, 4, "adapters of routers"},
        {"deepseek-v3", "model.layers.1.self_attn.kv_a_proj_with_mqa", 4, 64, 32, 4,
         "A [r, 64] and B [48, r]"},
        {"deepseek-v3", "model.layers.1.self_attn.kv_b_proj", 4, 32, 128, 4,
         "A [r, 32] and B [256, r]"},
        {"deepseek-v32", "model.layers.1.self_attn.indexer.wk", 4, 32, 32, 4,
         "gates and of an index"},
        {"deepseek-v4", "model.layers.1.self_attn.o_b_proj", 4, 64, 64, 4, "several residual"},
        {"qwen3-next", "model.layers.0.linear_attn.out_proj", 4, 64, 64, 4, "recurrent layers"},
    };
    for (size_t i = 0; i < sizeof misfits / sizeof misfits[0]; i++)
        try_misfit(&misfits[i], NULL, lora);
    const struct misfit model = {.model = "llama-gqa",
                                 .linear = "model.layers.1.self_attn.q_proj",
                                 .r = 4,
                                 .n_in = 64,
                                 .sentence = "is not an adapter's checkpoint"};
    try_misfit(&model, NULL, "{\"hidden_size\": 64}");
    const struct misfit unscaled = {"llama-gqa", model.linear, 4, 64, 128, 4, "expected a number"};
    try_misfit(&unscaled, NULL, "{\"adapter_type\": \"lora\"}");
    const struct misfit twice = {
        .model = "llama4",
        .linear = "model.layers.0.feed_forward.up_proj",
        .r = 4,
        .n_in = 48,
        .n_out = 64,
        .r_b = 4,
        .sentence = "model.layers.0.mlp.up_proj.lora_A.weight is of the same linear"};
    try_misfit(&twice, "model.layers.0.mlp.up_proj", lora);
}

void suite_adapter_misfits(CU_pSuite suite);
void suite_adapter_misfits(CU_pSuite suite)
{
    CU_add_test(suite, "adapters that do not fit are refused by name",
                adapters_that_do_not_fit_are_refused_by_name);
}
