/* Target: a GGUF file: its metadata, its tensors' values and its interpretation as a model. */
#include "base/mem.h"
#include "checkpoint/convert/gguf.h"
#include "checkpoint/convert/gguf_model.h"
#include "fuzz/fuzz.h"
#include "text/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

static const char *const words[] = {"GGUF",
                                    "general.architecture",
                                    "general.alignment",
                                    "llama",
                                    "qwen3moe",
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

static struct status model_of(const struct gguf *g)
{
    struct gguf_model m;
    TRY(gguf_model_read(g, &m));
    FUZZ_CHECK(m.n_heads > 0 && m.n_kv_heads > 0 && m.head_dim > 0 && m.n_layers > 0, "%lld heads",
               (long long)m.n_heads);
    for (size_t i = 0; i < gguf_count(g); i++) {
        struct gguf_target target;
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

static void begin(struct fuzz_seeds *seeds)
{
    fuzz_seed_file(seeds, "golden/gguf/llama/model.gguf");
    fuzz_seed_file(seeds, "golden/gguf/types.gguf");
    fuzz_seed_file(seeds, "golden/gguf/quantized/mixed.gguf");
    fuzz_seed_file(seeds, "golden/gguf/mixtral/model.gguf");
    fuzz_seed_file(seeds, "golden/gguf/qwen3moe/model.gguf");
}

extern const struct fuzz_target fuzz_gguf;
const struct fuzz_target fuzz_gguf = {"gguf", words, begin, run};
