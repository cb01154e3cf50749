/* Reads how a checkpoint scores texts. The head is small, so the lead multiplies by it, and ranks
 * load no head. */
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "calibrate/tensor_rows.h"
#include "job/job_embed.h"
#include "kernels/elementary.h"

#include <string.h>
#include <xxhash.h>

enum { TEMPLATE_BYTES_MAX = 1 << 20, LABELS_MAX = 1 << 16 };

/* The text of a pair as Qwen3-Reranker's model card gives it. */
static const char qwen3_template[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    "the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
    "<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: "
    "{document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/* Reads n rows of a tensor [rows, D], from row0 on, into out [n, D]. */
static struct status read_rows(struct ckpt *c, const struct ckpt_tensor *t, uint64_t row0,
                               uint64_t n, float *out)
{
    struct tensor_rows r;
    TRY(tensor_rows_init(&r, c, t, NULL));
    const struct status st = tensor_rows_f32(&r, row0, n, out);
    tensor_rows_fini(&r);
    return st;
}

static struct status read_classes(struct job_embed *e, struct ckpt *c, const struct ckpt_tensor *t)
{
    const size_t width = (size_t)e->rules.width;
    struct rank_rules *rank = &e->rules.rank;
    if (t->n_cols != width || t->n_rows > LABELS_MAX)
        return status_make(STATUS_INPUT,
                           "%s: tensor score.weight: expected rows of %zu, found %llu",
                           ckpt_path(c), width, (unsigned long long)t->n_cols);
    rank->n_labels = (size_t)t->n_rows;
    rank->activation = rank->n_labels > 1 ? RANK_SOFTMAX : RANK_SIGMOID;
    TRY(mem_alloc(&e->head, rank->n_labels * width, sizeof *e->head, "a head"));
    return read_rows(c, t, 0, t->n_rows, e->head);
}

/* Reads a tensor of n elements to out [n]. */
static struct status read_floats(struct ckpt *c, const char *name, uint64_t n, float *out)
{
    const struct ckpt_tensor *t = ckpt_find(c, name);
    if (t != NULL && t->n_rows * t->n_cols == n) return read_rows(c, t, 0, t->n_rows, out);
    return status_make(STATUS_INPUT, "%s: tensor %s: expected %llu values, found %llu",
                       ckpt_path(c), name, (unsigned long long)n,
                       t == NULL ? 0 : (unsigned long long)(t->n_rows * t->n_cols));
}

/* Transposes w [n, n] in place. */
static void transpose(float *w, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < i; k++) {
            const float kept = w[i * n + k];
            w[i * n + k] = w[k * n + i];
            w[k * n + i] = kept;
        }
    }
}

/* The settings of ModernBERT's head in config.json. */
struct modern_head {
    enum request_pool pool;
    bool has_bias; /* the dense layer has one */
};

static struct status refuse_head(const char *key, const struct js_node *value)
{
    char *text = NULL;
    size_t n;
    TRY(js_dump(value, &text, &n));
    const struct status st =
        status_make(STATUS_INPUT, "config.json: %s %.80s is not implemented", key, text);
    mem_free(&text);
    return st;
}

/* True when the field is absent or null, or its text is `word`. */
static bool is_absent_or(const struct js_node *value, const char *word)
{
    const char *text = js_string(value, NULL);
    return js_type(value) == JS_NULL || (text != NULL && strcmp(text, word) == 0);
}

static struct status read_modern(const struct js_node *config, struct modern_head *out)
{
    static const char *const keys[] = {"classifier_pooling", "classifier_activation",
                                       "classifier_bias"};
    const struct js_node *pooling = js_get(config, keys[0]), *gate = js_get(config, keys[1]);
    const struct js_node *bias = js_get(config, keys[2]);
    const char *pool = js_string(pooling, NULL);
    *out = (struct modern_head){.pool = POOL_CLS};
    if (pool != NULL && strcmp(pool, "mean") == 0)
        out->pool = POOL_MEAN;
    else if (!is_absent_or(pooling, "cls"))
        return refuse_head(keys[0], pooling);
    if (!is_absent_or(gate, "gelu")) return refuse_head(keys[1], gate);
    if (js_type(bias) == JS_NULL || js_bool(bias, &out->has_bias)) return status_ok();
    return refuse_head(keys[2], bias);
}

/* Reads the layer norm that follows the dense layer in ModernBERT's head. norm [2 D] = its weights,
 * then its biases; all zeros before. */
static struct status read_head_norm(struct job_embed *e, struct ckpt *c, const struct arch *m,
                                    float *norm)
{
    TRY(read_floats(c, "score.norm.weight", m->width, norm));
    if (m->norm_bias) TRY(read_floats(c, "score.norm.bias", m->width, norm + m->width));
    e->rules.rank.norm = norm;
    e->rules.rank.norm_bias = norm + m->width;
    e->rules.rank.norm_eps = (double)m->norm_eps;
    e->rules.rank.gelu = el_geluf;
    return status_ok();
}

/* Reads the dense layer and the biases that an encoder's head has besides score.weight. */
static struct status read_dense(struct job_embed *e, struct ckpt *c, const struct arch *m,
                                bool has_bias)
{
    const size_t width = (size_t)e->rules.width;
    struct rank_rules *rank = &e->rules.rank;
    TRY(mem_alloc(&e->work, width, sizeof *e->work, "a head"));
    TRY(mem_alloc(&e->dense, width * (width + 3) + rank->n_labels, sizeof *e->dense, "a head"));
    float *dense_bias = e->dense + width * width, *norm = dense_bias + width;
    float *bias = norm + 2 * width;
    TRY(read_floats(c, "score.dense.weight", width * width, e->dense));
    transpose(e->dense, width);
    if (has_bias) TRY(read_floats(c, "score.dense.bias", width, dense_bias));
    if (m->family->modern) TRY(read_head_norm(e, c, m, norm));
    TRY(read_floats(c, "score.bias", rank->n_labels, bias));
    rank->dense = e->dense;
    rank->dense_bias = dense_bias;
    rank->bias = bias;
    rank->work = e->work;
    return status_ok();
}

/* Takes the activation that sentence-transformers writes into a config.json. */
static struct status read_activation(struct rank_rules *rank, const struct js_node *root)
{
    static const char key[] = "sbert_ce_default_activation_function";
    const char *name = js_string(js_get(root, key), NULL), *end;
    if (name == NULL)
        name = js_string(js_get(js_get(root, "sentence_transformers"), "activation_fn"), NULL);
    if (name == NULL) return status_ok();
    end = strrchr(name, '.') != NULL ? strrchr(name, '.') + 1 : name;
    if (strcmp(end, "Identity") == 0)
        rank->activation = RANK_NONE;
    else if (strcmp(end, "Sigmoid") == 0)
        rank->activation = RANK_SIGMOID;
    else
        return status_make(STATUS_INPUT, "config.json: the activation \"%.80s\" is not implemented",
                           name);
    return status_ok();
}

/* Reads the head of an encoder that scores classes, and how its tokenizer joins pairs. */
static struct status read_encoder(struct job_embed *e, struct ckpt *c, const struct arch *m,
                                  const struct tokenizer *t)
{
    struct rank_rules *rank = &e->rules.rank;
    struct modern_head head = {.pool = POOL_CLS, .has_bias = true};
    struct js_doc *doc = NULL;
    size_t n;
    const char *config = ckpt_config_json(c, &n);
    TRY(js_parse(config, n, ckpt_path(c), &doc));
    struct status st = read_activation(rank, js_root(doc));
    if (!status_failed(&st) && m->family->modern) st = read_modern(js_root(doc), &head);
    js_destroy(&doc);
    TRY(status_wrap(st, "%s", ckpt_path(c)));
    e->rules.pool = head.pool;
    e->rules.is_whole = true;
    rank->joins = t != NULL && tokenizer_joins(t);
    rank->has_types = m->n_types > 1 && !m->family->pad_positions;
    return read_dense(e, c, m, head.has_bias);
}

/* Takes the rows of two tokens. Refuses a model whose head has a bias or caps its logits. */
static struct status read_yes_no(struct job_embed *e, struct ckpt *c, const struct arch *m,
                                 const struct tokenizer *t)
{
    static const char *const words[] = {"no", "yes"};
    const struct ckpt_tensor *head = ckpt_find(c, "lm_head.weight");
    const size_t width = (size_t)e->rules.width;
    if (m->tied) head = ckpt_find(c, "model.embed_tokens.weight");
    if (head == NULL || t == NULL || m->head_bias || m->logit_cap > 0)
        return status_make(STATUS_INPUT,
                           "%s: expected score.weight, or a head and a tokenizer with the tokens "
                           "yes and no",
                           ckpt_path(c));
    e->rules.rank.n_labels = 2;
    e->rules.rank.is_yes_no = true;
    e->rules.rank.scale = (double)m->scale.logits;
    e->rules.rank.activation = RANK_SIGMOID;
    TRY(mem_alloc(&e->head, 2 * width, sizeof *e->head, "a head"));
    for (size_t i = 0; i < 2; i++) {
        const int32_t id = tokenizer_token_id(t, words[i], strlen(words[i]));
        if (id < 0 || (uint64_t)id >= head->n_rows)
            return status_make(STATUS_INPUT, "%s: the tokenizer has no token \"%s\"", ckpt_path(c),
                               words[i]);
        TRY(read_rows(c, head, (uint64_t)id, 1, e->head + i * width));
    }
    return status_ok();
}

/* Warns of words in braces that are no names of a pair's texts: they stay as they are. */
static void warn_of_names(const char *template)
{
    static const char *const names[] = {"query", "document", "instruction"};
    for (const char *at = strchr(template, '{'); at != NULL; at = strchr(at + 1, '{')) {
        const size_t n = strspn(at + 1, "abcdefghijklmnopqrstuvwxyz_");
        bool is_known = n == 0 || at[1 + n] != '}';
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
            is_known = is_known || (n == strlen(names[i]) && strncmp(at + 1, names[i], n) == 0);
        if (!is_known)
            log_line(LOG_WARN,
                     "--pair-template: {%.*s} stays as it is; the names are {query}, {document} "
                     "and {instruction}",
                     (int)n, at + 1);
    }
}

static struct status read_template(struct job_embed *e, const char *path)
{
    struct rank_rules *rank = &e->rules.rank;
    size_t n;
    if (strcmp(path, "auto") == 0) {
        rank->pair_template = rank->is_yes_no ? qwen3_template : NULL;
        return status_ok();
    }
    TRY(status_wrap(file_read(path, TEMPLATE_BYTES_MAX, &e->pair_template, &n), "--pair-template"));
    rank->joins = false;
    rank->pair_template = e->pair_template;
    rank->adds_special = true;
    warn_of_names(e->pair_template);
    if (strstr(e->pair_template, "{query}") != NULL &&
        strstr(e->pair_template, "{document}") != NULL && strlen(e->pair_template) == n)
        return status_ok();
    return status_make(STATUS_USAGE, "--pair-template %s: expected {query} and {document} in it",
                       path);
}

static struct status choose_activation(struct rank_rules *rank, enum rank_choice choice)
{
    const bool is_one = rank->is_yes_no || rank->n_labels == 1;
    if (choice == RANK_BY_SOFTMAX && is_one)
        return status_make(STATUS_USAGE, "--activation softmax: this model has one score a text");
    if (choice == RANK_AS_LOGITS) rank->activation = RANK_NONE;
    if (choice == RANK_BY_SIGMOID) rank->activation = RANK_SIGMOID;
    log_line(LOG_INFO, "scores: %s, %zu a text",
             rank->is_yes_no ? "yes against no" : "the classes of score.weight",
             is_one ? (size_t)1 : rank->n_labels);
    return status_ok();
}

struct status job_rank_init(struct job_embed *e, const struct rank_flags *flags, struct ckpt *c,
                            const struct arch *m, const struct tokenizer *t)
{
    const struct ckpt_tensor *classes = ckpt_find(c, "score.weight");
    *e = (struct job_embed){
        .rules = {.width = (int32_t)m->width,
                  .dimensions = (int32_t)m->width,
                  .pool = POOL_LAST,
                  .rank = {.scale = 1, .exponential = el_expf, .instruction = flags->instruction}}};
    TRY(classes != NULL ? read_classes(e, c, classes) : read_yes_no(e, c, m, t));
    e->rules.rank.head = e->head;
    if (m->encoder) TRY(read_encoder(e, c, m, t));
    TRY(read_template(e, flags->pair_template));
    if (e->rules.rank.joins && strcmp(flags->instruction, RANK_INSTRUCTION) != 0)
        return status_make(STATUS_USAGE, "--instruction: this model's pairs have none; give a "
                                         "--pair-template");
    return choose_activation(&e->rules.rank, flags->activation);
}

struct status job_rank_settings(const struct job_embed *e, struct strbuf *out)
{
    const char *text = e->rules.rank.pair_template;
    const uint64_t hash = text != NULL ? XXH3_64bits(text, strlen(text)) : 0;
    strbuf_printf(out, "pair template=%016llx\n", (unsigned long long)hash);
    return strbuf_status(out);
}
