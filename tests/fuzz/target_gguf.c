/* Target: a GGUF file: its metadata, its tensors' values and its interpretation as a model. */
#include "base/mem.h"
#include "checkpoint/convert/gguf.h"
#include "checkpoint/convert/gguf_delta.h"
#include "checkpoint/convert/gguf_experts.h"
#include "checkpoint/convert/gguf_latent.h"
#include "fuzz/fuzz.h"
#include "text/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const words[] = {"GGUF",
                                    "general.architecture",
                                    "general.alignment",
                                    "llama",
                                    "qwen3moe",
                                    "qwen3next",
                                    "granitemoe",
                                    "deepseek2",
                                    ".context_length",
                                    ".embedding_length",
                                    ".block_count",
                                    ".attention.head_count",
                                    ".attention.head_count_kv",
                                    ".attention.key_length",
                                    ".feed_forward_length",
                                    ".expert_count",
                                    ".expert_used_count",
                                    ".rope.freq_base",
                                    ".ssm.inner_size",
                                    ".ssm.group_count",
                                    ".attention.kv_lora_rank",
                                    "tokenizer.ggml.model",
                                    "tokenizer.ggml.pre",
                                    "tokenizer.ggml.tokens",
                                    "tokenizer.ggml.token_type",
                                    "tokenizer.ggml.merges",
                                    "tokenizer.ggml.bos_token_id",
                                    "tokenizer.ggml.eos_token_id",
                                    "token_embd.weight",
                                    "blk.0.attn_q.weight",
                                    "output.weight",
                                    "blk.0.attn_qkv.weight",
                                    "blk.0.attn_gate.weight",
                                    "blk.0.ffn_gate_exps.weight",
                                    "blk.0.ffn_up_exps.weight",
                                    "blk.0.attn_k_b.weight",
                                    "blk.0.attn_v_b.weight",
                                    NULL};

/* Checks that rows lie inside the file and can be read and dequantized. */
static void read_tensors(const struct gguf *g, size_t n_file)
{
    for (size_t i = 0; i < gguf_count(g); i++) {
        const struct gguf_tensor *t = gguf_at(g, i);
        FUZZ_CHECK(t->row_bytes > 0 && t->offset <= n_file &&
                       t->n_rows <= (n_file - t->offset) / t->row_bytes,
                   "tensor '%s' of %llu rows", t->name, (unsigned long long)t->n_rows);
        FUZZ_CHECK(gguf_find(g, t->name) != NULL, "tensor '%s'", t->name);
        char *row = malloc(t->row_bytes);
        float *values = malloc(t->n_cols * sizeof *values);
        const uint64_t rows[] = {0, t->n_rows / 2, t->n_rows - 1};
        for (size_t k = 0; k < 3 && t->n_rows > 0; k++) {
            const struct status st = gguf_read_rows(g, t, rows[k], 1, row);
            FUZZ_CHECK(!status_failed(&st), "%s", st.text);
            gguf_dequantize(t->quant, row, t->n_cols, values);
        }
        free(values);
        free(row);
    }
}

static void read_metadata(const struct gguf *g)
{
    volatile uint64_t sum = 0; /* touches every byte that is handed out */
    for (size_t i = 0; i < gguf_key_count(g); i++) {
        const char *key = gguf_key_at(g, i);
        enum gguf_type type;
        uint64_t n_elems;
        size_t n;
        const char *text = gguf_string(g, key, &n);
        if (text != NULL) sum += fuzz_mix(sum, text, n + 1);
        if (!gguf_array(g, key, &type, &n_elems)) continue;
        for (uint64_t k = 0; k < n_elems; k++) {
            int64_t value = 0;
            text = gguf_array_string(g, key, k, &n);
            if (text != NULL) sum += fuzz_mix(sum, text, n + 1);
            (void)gguf_array_int(g, key, k, &value);
            sum += (uint64_t)value;
        }
        FUZZ_CHECK(gguf_array_string(g, key, n_elems, &n) == NULL, "behind the end of %s", key);
    }
}

static struct status texts_of(const struct gguf_model *m)
{
    struct strbuf text;
    struct tokenizer *t = NULL;
    strbuf_init(&text);
    struct status st;
    TRY_GOTO(st, gguf_model_config(m, &text), out);
    strbuf_clear(&text);
    TRY_GOTO(st, gguf_model_generation_config(m, &text), out);
    strbuf_clear(&text);
    TRY_GOTO(st, gguf_model_tokenizer(m, &text), out);
    TRY_GOTO(st, tokenizer_create(text.data, text.n, "tokenizer.json", &t), out);
    tokenizer_destroy(&t);
out:
    strbuf_fini(&text);
    return st;
}

/* Reads the first and the last row of a tensor that has two halves. */
static struct status read_join(const struct gguf *g, const struct gguf_join *j)
{
    uint64_t n_rows = 1;
    for (uint32_t d = 0; d + 1 < j->n_dims; d++) n_rows *= j->dims[d];
    char *scratch = malloc(gguf_join_scratch_bytes(j, 1));
    float *row = malloc(j->dims[j->n_dims - 1] * sizeof *row);
    struct status st = gguf_join_rows(g, j, 0, 1, scratch, row);
    if (!status_failed(&st)) st = gguf_join_rows(g, j, n_rows - 1, 1, scratch, row);
    free(row);
    free(scratch);
    return st;
}

/* Sets *found if t is the first half of a tensor that the file has in two halves, and then reads
 * that tensor. */
static struct status read_halves(const struct gguf_model *m, const struct gguf_tensor *t,
                                 bool *found)
{
    struct gguf_latent latent;
    struct gguf_join join;
    TRY(gguf_latent_find(m, t, found, &latent));
    if (*found) {
        char *scratch = malloc(gguf_latent_scratch_bytes(&latent));
        float *rows = malloc((latent.nope + latent.value) * latent.lora * sizeof *rows);
        const struct status st =
            gguf_latent_rows(m->file, &latent, latent.n_heads - 1, 1, scratch, rows);
        free(rows);
        free(scratch);
        return st;
    }
    TRY(gguf_delta_find(m, t, found, &join));
    if (!*found) TRY(gguf_experts_find(m, t, found, &join));
    return *found ? read_join(m->file, &join) : status_ok();
}

static struct status model_of(const struct gguf *g)
{
    struct gguf_model m;
    TRY(gguf_model_read(g, &m));
    FUZZ_CHECK(m.n_heads > 0 && m.n_kv_heads > 0 && m.head_dim > 0 && m.n_layers > 0, "%lld heads",
               (long long)m.n_heads);
    for (size_t i = 0; i < gguf_count(g); i++) {
        struct gguf_target target;
        bool found;
        if (gguf_model_leaves_out(&m, gguf_at(g, i))) continue;
        TRY(read_halves(&m, gguf_at(g, i), &found));
        if (found) continue;
        TRY(gguf_model_target(&m, gguf_at(g, i), &target));
        FUZZ_CHECK(memchr(target.name, '\0', sizeof target.name) != NULL, "a name without an end");
        FUZZ_CHECK(target.pair_rows == 0 || target.pair_rows == m.head_dim, "pairs of %u rows",
                   target.pair_rows);
    }
    return texts_of(&m);
}

static bool run(const char *bytes, size_t n)
{
    struct gguf *g = NULL;
    const char *path = fuzz_scratch("m.gguf");
    fuzz_write(path, bytes, n);
    const struct status st = gguf_open(path, &g);
    if (status_failed(&st)) return fuzz_refused(&st);
    read_metadata(g);
    read_tensors(g, n);
    const struct status model = model_of(g);
    if (status_failed(&model)) (void)fuzz_refused(&model);
    gguf_close(&g);
    return true;
}

/* --- seeds of models whose files have tensors in two halves --- */

enum { U32 = 4, F32 = 6, STRING = 8, F32_TENSOR = 0, SEED_BYTES = 16384 };

struct seed {
    char bytes[SEED_BYTES];
    size_t n;
};

static void put(struct seed *s, const void *bytes, size_t n)
{
    memcpy(s->bytes + s->n, bytes, n);
    s->n += n;
}

static void put_number(struct seed *s, uint64_t value, size_t n_bytes)
{
    put(s, &value, n_bytes); /* little-endian */
}

static void put_text(struct seed *s, const char *text)
{
    put_number(s, strlen(text), 8);
    put(s, text, strlen(text));
}

struct key {
    const char *name; /* after the architecture; NULL ends a list */
    uint32_t value;
};

struct shape {
    const char *name; /* of a tensor; NULL ends a list */
    uint64_t dims[3]; /* as the file has them: the elements of a row first; 0: no such dimension */
};

/* Keys that every seed has. */
static const struct key common_keys[] = {{"block_count", 1},          {"context_length", 64},
                                         {"embedding_length", 32},    {"feed_forward_length", 16},
                                         {"attention.head_count", 2}, {NULL, 0}};

/* Adds a file of F32 tensors of zeros. */
static void add_seed(struct fuzz_seeds *seeds, const char *arch, const struct key *keys,
                     const struct shape *tensors)
{
    static struct seed s;
    const struct key *const lists[] = {common_keys, keys};
    const float eps = 1e-6f;
    uint64_t n_keys = 2, n_tensors = 0, at = 0;
    char name[128];
    for (int i = 0; i < 2; i++)
        for (const struct key *k = lists[i]; k->name != NULL; k++) n_keys++;
    for (const struct shape *t = tensors; t->name != NULL; t++) n_tensors++;
    s = (struct seed){.n = 0};
    put(&s, "GGUF", 4);
    put_number(&s, 3, 4);
    put_number(&s, n_tensors, 8);
    put_number(&s, n_keys, 8);
    put_text(&s, "general.architecture");
    put_number(&s, STRING, 4);
    put_text(&s, arch);
    snprintf(name, sizeof name, "%s.attention.layer_norm_rms_epsilon", arch);
    put_text(&s, name);
    put_number(&s, F32, 4);
    put(&s, &eps, sizeof eps);
    for (int i = 0; i < 2; i++) {
        for (const struct key *k = lists[i]; k->name != NULL; k++) {
            snprintf(name, sizeof name, "%s.%s", arch, k->name);
            put_text(&s, name);
            put_number(&s, U32, 4);
            put_number(&s, k->value, 4);
        }
    }
    for (const struct shape *t = tensors; t->name != NULL; t++) {
        const uint32_t n_dims = t->dims[2] > 0 ? 3 : 2;
        uint64_t n = sizeof(float);
        put_text(&s, t->name);
        put_number(&s, n_dims, 4);
        for (uint32_t d = 0; d < n_dims; d++) {
            put_number(&s, t->dims[d], 8);
            n *= t->dims[d];
        }
        put_number(&s, F32_TENSOR, 4);
        put_number(&s, at, 8);
        at += n; /* a multiple of the alignment, 32 */
    }
    s.n = (s.n + 31) / 32 * 32 + at;
    fuzz_seed_add(seeds, s.bytes, s.n);
}

static void add_halves(struct fuzz_seeds *seeds)
{
    static const struct key delta[] = {{"ssm.state_size", 4},     {"ssm.group_count", 2},
                                       {"ssm.time_step_rank", 2}, {"ssm.inner_size", 8},
                                       {"expert_count", 2},       {NULL, 0}};
    static const struct shape delta_tensors[] = {{"token_embd.weight", {32, 8}},
                                                 {"blk.0.attn_qkv.weight", {32, 24}},
                                                 {"blk.0.attn_gate.weight", {32, 8}},
                                                 {NULL, {0}}};
    static const struct key experts[] = {{"expert_count", 2}, {NULL, 0}};
    static const struct shape expert_tensors[] = {{"token_embd.weight", {32, 8}},
                                                  {"blk.0.ffn_gate_exps.weight", {32, 16, 2}},
                                                  {"blk.0.ffn_up_exps.weight", {32, 16, 2}},
                                                  {NULL, {0}}};
    static const struct key latent[] = {{"attention.key_length", 12},
                                        {"attention.value_length", 8},
                                        {"attention.kv_lora_rank", 16},
                                        {"rope.dimension_count", 4},
                                        {NULL, 0}};
    static const struct shape latent_tensors[] = {{"token_embd.weight", {32, 8}},
                                                  {"blk.0.attn_k_b.weight", {8, 16, 2}},
                                                  {"blk.0.attn_v_b.weight", {16, 8, 2}},
                                                  {NULL, {0}}};
    add_seed(seeds, "qwen3next", delta, delta_tensors);
    add_seed(seeds, "granitemoe", experts, expert_tensors);
    add_seed(seeds, "deepseek2", latent, latent_tensors);
}

static void begin(struct fuzz_seeds *seeds)
{
    add_halves(seeds);
    fuzz_seed_file(seeds, "golden/gguf/llama/model.gguf");
    fuzz_seed_file(seeds, "golden/gguf/types.gguf");
    fuzz_seed_file(seeds, "golden/gguf/quantized/mixed.gguf");
    fuzz_seed_file(seeds, "golden/gguf/mixtral/model.gguf");
    fuzz_seed_file(seeds, "golden/gguf/qwen3moe/model.gguf");
}

extern const struct fuzz_target fuzz_gguf;
const struct fuzz_target fuzz_gguf = {"gguf", words, begin, run};
