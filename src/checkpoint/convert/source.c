/* One interface over the kinds of source: Hugging Face folders, of models or of adapters, and GGUF
 * files. */
#include "checkpoint/convert/source.h"

#include "arch/arch_rope.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/convert/fused_experts.h"
#include "checkpoint/convert/gguf.h"
#include "checkpoint/convert/gguf_delta.h"
#include "checkpoint/convert/gguf_experts.h"
#include "checkpoint/convert/gguf_latent.h"
#include "checkpoint/convert/gguf_model.h"
#include "checkpoint/convert/hf_quant.h"
#include "checkpoint/convert/peft.h"
#include "checkpoint/convert/published.h"
#include "checkpoint/convert/safetensors.h"
#include "checkpoint/convert/source_texts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { GROUP_BYTES_MAX = CKPT_BLOCK_BYTES_MAX };

struct entry {
    struct source_tensor tensor;
    char *name; /* owned */
    const struct safetensors_tensor *st;
    const struct gguf_tensor *gguf;
    struct gguf_latent *latent; /* owned; both halves of an up-projection; gguf is NULL */
    struct gguf_join *join;     /* owned; both halves of a tensor; gguf is NULL */
    struct hf_quant *quant;     /* owned; a quantized weight of a folder; st is NULL */
    struct fused_part *fused;   /* owned; for a tensor of fused experts: which outputs of st it
                                   has; NULL: not fused. One expert is tensor.row_group rows */
    uint32_t pair_rows;         /* rows of a head; the first `rotated` are pairs; 0: no pairs */
    uint32_t rotated;
    uint64_t row0; /* the first row in st; of a vector, the first element */
    bool adds_one; /* 1 is added to each value */
    bool is_decay; /* gguf_delta_decays makes the values from the stored ones */
    bool is_table; /* whole numbers, I32 or I64, which become floats */
};

struct source {
    char *path; /* owned */
    struct safetensors *st;
    struct gguf *gguf;
    struct strbuf texts[CKPT_TEXT_COUNT];
    struct js_doc *config;
    struct published *published; /* owned; NULL: the tensors are already shoal's */
    bool is_text;                /* the text model of a multimodal checkpoint */
    bool is_adapter;             /* a folder of peft */
    size_t n_vision;             /* tensors of vision and audio, which are left out */
    struct entry *entries;       /* owned [n_entries] */
    size_t n_entries;
    struct hf_raw *raw; /* owned; the rows in memory of one quantized weight */
};

/* ---- tensors ---- */

static struct status entry_fill(struct source *s, const char *name, enum dtype dtype,
                                uint32_t n_dims, const uint64_t *dims, struct entry **out)
{
    struct entry *e = &s->entries[s->n_entries];
    struct source_tensor *t = &e->tensor;
    if (n_dims < 1 || n_dims > CKPT_DIMS_MAX) {
        return status_make(STATUS_INPUT, "%s: tensor '%s': %u dimensions, expected 1 to %d",
                           s->path, name, n_dims, CKPT_DIMS_MAX);
    }
    *t = (struct source_tensor){.dtype = dtype, .n_dims = n_dims, .n_rows = 1, .row_group = 1};
    for (uint32_t d = 0; d < n_dims; d++) {
        if (dims[d] == 0) {
            return status_make(STATUS_INPUT, "%s: tensor '%s' has no elements", s->path, name);
        }
        t->dims[d] = dims[d];
        if (d + 1 < n_dims) t->n_rows *= dims[d];
    }
    t->n_cols = dims[n_dims - 1];
    TRY(mem_strndup(&e->name, name, strlen(name)));
    t->name = e->name;
    s->n_entries++;
    *out = e;
    return status_ok();
}

/* True for a tensor that is left out although some checkpoints store it: convert computes the
 * frequencies, and a request's tokens determine their positions and types. */
static bool is_computed(const char *name)
{
    static const char *const ends[] = {"rotary_emb.inv_freq", "embeddings.position_ids",
                                       "embeddings.token_type_ids"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const size_t end = strlen(ends[i]);
        if (n >= end && strcmp(name + n - end, ends[i]) == 0) return true;
    }
    return false;
}

/* Returns the type to which quantized weights are widened: the config's, f16 if it has none. */
static enum dtype config_dtype(const struct source *s)
{
    const struct js_node *config = js_root(s->config);
    const char *name = js_string(js_get(config, "torch_dtype"), NULL);
    if (name == NULL) name = js_string(js_get(config, "dtype"), NULL);
    if (name != NULL && strcmp(name, "bfloat16") == 0) return DTYPE_BF16;
    if (name != NULL && strcmp(name, "float32") == 0) return DTYPE_F32;
    return DTYPE_F16;
}

static struct status quant_add(struct source *s, const struct hf_quant *q)
{
    struct entry *e;
    TRY(entry_fill(s, q->name, config_dtype(s), q->n_dims, q->dims, &e));
    e->tensor.quant = q->format;
    e->tensor.method = q->method;
    TRY(mem_alloc(&e->quant, 1, sizeof *e->quant, "a quantized weight"));
    *e->quant = *q;
    return status_ok();
}

/* Adds the parts of a tensor with fused experts; *found is false for any other tensor. name: the
 * tensor's name in the text model. */
static struct status fused_add(struct source *s, const struct safetensors_tensor *t,
                               const char *name, bool *found)
{
    struct fused_part parts[FUSED_PARTS_MAX];
    size_t n;
    TRY(fused_experts_parts(js_root(s->config), name, t->n_dims, t->dims, false, parts, &n));
    for (size_t i = 0; i < n; i++) {
        struct entry *e;
        TRY(entry_fill(s, parts[i].name, t->dtype, parts[i].n_dims, parts[i].dims, &e));
        e->st = t;
        if (parts[i].n_dims == 3) e->tensor.row_group = (uint32_t)parts[i].dims[1];
        TRY(mem_alloc(&e->fused, 1, sizeof *e->fused, "a part of the experts"));
        *e->fused = parts[i];
        if (parts[i].dims[1] * e->tensor.n_cols > GROUP_BYTES_MAX) {
            return status_make(STATUS_INPUT, "%s: tensor '%s': an expert is too large", s->path,
                               t->name);
        }
    }
    *found = n > 0;
    return status_ok();
}

static struct status quant_refuse(const struct source *s, const struct hf_quant *q)
{
    return status_make(STATUS_INPUT,
                       "%s: tensor '%s': quantized tensors of this kind are not implemented for "
                       "the architecture of config.json",
                       s->path, q->name);
}

/* Adds a quantized tensor under the name that shoal's tensor has. Refuses one that holds several of
 * shoal's tensors. */
static struct status quant_renamed_add(struct source *s, const struct hf_quant *q)
{
    struct published_part parts[PUBLISHED_PARTS_MAX];
    struct hf_quant renamed = *q;
    size_t n;
    TRY(published_parts(s->published, q->name, q->n_dims, q->dims, parts, &n));
    if (n != 1) return quant_refuse(s, q);
    memcpy(renamed.name, parts[0].name, sizeof renamed.name);
    return quant_add(s, &renamed);
}

/* Adds a quantized tensor, or its parts if it has fused experts. Each of its rows is an output. */
static struct status quant_parts_add(struct source *s, const struct hf_quant *q)
{
    struct fused_part parts[FUSED_PARTS_MAX];
    size_t n;
    if (!s->is_text && published_only_renames(s->published)) return quant_renamed_add(s, q);
    if (s->is_text || published_splits(s->published, q->name)) return quant_refuse(s, q);
    TRY(fused_experts_parts(js_root(s->config), q->name, q->n_dims, q->dims, true, parts, &n));
    if (n == 0) return quant_add(s, q);
    for (size_t i = 0; i < n; i++) {
        struct hf_quant part = *q;
        memcpy(part.name, parts[i].name, sizeof part.name);
        memcpy(part.dims, parts[i].dims, sizeof part.dims);
        part.step = parts[i].step;
        part.first = parts[i].first;
        TRY(quant_add(s, &part));
    }
    return status_ok();
}

/* True for DeepSeek-V4's table of each token's experts, which is stored as whole numbers. */
static bool is_table(const struct source *s, const struct safetensors_tensor *t)
{
    static const char end[] = ".tid2eid";
    const size_t n = strlen(t->name);
    return s->published != NULL && (t->dtype == DTYPE_I32 || t->dtype == DTYPE_I64) &&
           n > strlen(end) && strcmp(t->name + n - strlen(end), end) == 0;
}

/* Adds the tensors that a published one contains; *found is false for an architecture without
 * rules. */
static struct status published_add(struct source *s, const struct safetensors_tensor *t,
                                   const char *name, bool *found)
{
    struct published_part parts[PUBLISHED_PARTS_MAX];
    size_t n;
    const uint64_t one[1] = {1}; /* a number by itself is a vector of one element */
    *found = false;
    TRY(published_parts(s->published, name, t->n_dims == 0 ? 1 : t->n_dims,
                        t->n_dims == 0 ? one : t->dims, parts, &n));
    for (size_t i = 0; i < n; i++) {
        const struct published_part *p = &parts[i];
        struct entry *e;
        const bool is_wide = p->adds_one || is_table(s, t);
        TRY(entry_fill(s, p->name, is_wide ? DTYPE_F32 : t->dtype, p->n_dims, p->dims, &e));
        e->st = t;
        e->row0 = p->row0;
        e->pair_rows = p->head_rows;
        e->rotated = p->rotated;
        e->adds_one = p->adds_one;
        e->is_table = is_table(s, t);
        e->tensor.needs_f32 = is_wide;
        if (p->n_dims > 1 && p->head_rows > 0) e->tensor.row_group = p->head_rows;
    }
    *found = n > 0;
    return status_ok();
}

static struct status safetensors_add(struct source *s, const struct safetensors_tensor *t)
{
    struct hf_quant q;
    struct entry *e;
    bool is_fused = false;
    char name[CKPT_NAME_MAX];
    if (s->is_text && published_is_vision(t->name)) {
        s->n_vision++;
        return status_ok();
    }
    if (is_computed(t->name) || hf_quant_is_part(s->st, t->name)) return status_ok();
    TRY(hf_quant_find(s->st, t, js_root(s->config), &q));
    if (q.layout != HF_PLAIN) return quant_parts_add(s, &q);
    published_base_name(t->name, name, sizeof name);
    if (s->is_text) published_text_name(t->name, name, sizeof name);
    if (t->dtype >= DTYPE_COUNT && !is_table(s, t)) {
        return status_make(STATUS_INPUT,
                           "%s: tensor '%.200s': type %s belongs to no quantized layout that shoal "
                           "knows",
                           safetensors_path(s->st, t), t->name, dtype_name(t->dtype));
    }
    TRY(fused_add(s, t, name, &is_fused));
    if (!is_fused) TRY(published_add(s, t, name, &is_fused));
    if (is_fused) return status_ok();
    TRY(entry_fill(s, name, t->dtype, t->n_dims, t->dims, &e));
    e->st = t;
    return status_ok();
}

static struct status safetensors_list(struct source *s)
{
    const size_t n = safetensors_count(s->st);
    TRY(mem_alloc(&s->entries, n * PUBLISHED_PARTS_MAX, sizeof s->entries[0],
                  "the list of tensors"));
    TRY(mem_alloc(&s->raw, 1, sizeof *s->raw, "rows of a quantized weight"));
    for (size_t i = 0; i < n; i++) TRY(safetensors_add(s, safetensors_at(s->st, i)));
    return status_ok();
}

/* Returns the type to store, unless the user names one, for a tensor of two halves. */
static enum dtype pair_dtype(const struct gguf_tensor *a, const struct gguf_tensor *b)
{
    enum dtype dtype = DTYPE_F16, other;
    const bool is_float = gguf_quant_dtype(a->quant, &dtype) && gguf_quant_dtype(b->quant, &other);
    if (!is_float) return DTYPE_F16;
    return dtype == other ? dtype : DTYPE_F32;
}

/* Returns the quantization method of a tensor of two halves; NULL: both have floats. */
static const char *pair_method(const struct gguf_tensor *a, const struct gguf_tensor *b)
{
    enum dtype dtype;
    if (!gguf_quant_dtype(a->quant, &dtype)) return gguf_quant_name(a->quant);
    return gguf_quant_dtype(b->quant, &dtype) ? NULL : gguf_quant_name(b->quant);
}

/* Adds an up-projection from its two halves, as floats. */
static struct status gguf_latent_add(struct source *s, const struct gguf_latent *l)
{
    char name[CKPT_NAME_MAX];
    struct entry *e;
    const uint64_t head_rows = l->nope + l->value, dims[] = {l->n_heads * head_rows, l->lora};
    snprintf(name, sizeof name, "model.layers.%lld.self_attn.kv_b_proj.weight",
             (long long)l->layer);
    TRY(entry_fill(s, name, pair_dtype(l->k, l->v), 2, dims, &e));
    e->tensor.row_group = (uint32_t)head_rows;
    e->tensor.method = pair_method(l->k, l->v);
    TRY(mem_alloc(&e->latent, 1, sizeof *e->latent, "an up-projection"));
    *e->latent = *l;
    if (head_rows * l->lora * sizeof(float) > GROUP_BYTES_MAX)
        return status_make(STATUS_INPUT, "%s: tensor '%s': rows too large", s->path, l->k->name);
    return status_ok();
}

/* Adds a tensor from its two halves. It can be read as quantized values if gguf_join_format gives a
 * format. */
static struct status gguf_join_add(struct source *s, const struct gguf_join *j)
{
    const struct gguf_tensor *a = j->halves[0], *b = j->halves[1];
    struct quant_format format;
    struct entry *e;
    TRY(entry_fill(s, j->name, pair_dtype(a, b), j->n_dims, j->dims, &e));
    e->tensor.method = pair_method(a, b);
    if (gguf_join_format(j, &format)) e->tensor.quant = format;
    TRY(mem_alloc(&e->join, 1, sizeof *e->join, "two halves of a tensor"));
    *e->join = *j;
    if (a->n_cols * sizeof(float) > GROUP_BYTES_MAX)
        return status_make(STATUS_INPUT, "%s: tensor '%s': rows too large", s->path, a->name);
    return status_ok();
}

/* If t is the first half of a tensor that a file has in two halves, adds that tensor; otherwise
 * *found is false. */
static struct status gguf_halves_add(struct source *s, const struct gguf_model *m,
                                     const struct gguf_tensor *t, bool *found)
{
    struct gguf_latent latent;
    struct gguf_join join;
    TRY(gguf_latent_find(m, t, found, &latent));
    if (*found) return gguf_latent_add(s, &latent);
    TRY(gguf_delta_find(m, t, found, &join));
    if (!*found) TRY(gguf_experts_find(m, t, found, &join));
    return *found ? gguf_join_add(s, &join) : status_ok();
}

static struct status gguf_add(struct source *s, const struct gguf_model *m,
                              const struct gguf_tensor *t)
{
    enum dtype dtype = DTYPE_F16; /* of quantized tensors, unless the user names a type */
    struct entry *e;
    struct gguf_target target;
    bool found;
    if (gguf_model_leaves_out(m, t)) return status_ok();
    TRY(gguf_halves_add(s, m, t, &found));
    if (found) return status_ok();
    TRY(gguf_model_target(m, t, &target));
    const bool is_float = gguf_quant_dtype(t->quant, &dtype);
    TRY(entry_fill(s, target.name, dtype, target.n_dims, target.dims, &e));
    e->gguf = t;
    e->is_decay = target.is_decay;
    (void)gguf_quant_format(t->quant, &e->tensor.quant);
    if (!is_float) e->tensor.method = gguf_quant_name(t->quant);
    e->pair_rows = e->rotated = target.pair_rows;
    if (target.pair_rows > 0 && target.n_dims > 1) e->tensor.row_group = target.pair_rows;
    if (t->n_cols * sizeof(float) > GROUP_BYTES_MAX / e->tensor.row_group) {
        return status_make(STATUS_INPUT, "%s: tensor '%s': rows too large", s->path, t->name);
    }
    return status_ok();
}

static struct status gguf_list(struct source *s, const struct gguf_model *m)
{
    const size_t n = gguf_count(s->gguf);
    TRY(mem_alloc(&s->entries, n, sizeof s->entries[0], "the list of tensors"));
    for (size_t i = 0; i < n; i++) TRY(gguf_add(s, m, gguf_at(s->gguf, i)));
    if (m->n_predict > 0) {
        log_line(LOG_WARN, "%s: %lld prediction layers are left out", s->path,
                 (long long)m->n_predict);
    }
    return status_ok();
}

/* ---- texts ---- */

static struct status hf_texts_read(struct source *s)
{
    struct source_texts texts = {.path = s->path, .texts = s->texts};
    const struct status st = source_texts_read(&texts);
    s->is_text = texts.is_text;
    return st;
}

static struct status gguf_texts_read(struct source *s, const struct gguf_model *m)
{
    size_t n;
    TRY(gguf_model_config(m, &s->texts[CKPT_TEXT_CONFIG]));
    TRY(gguf_model_generation_config(m, &s->texts[CKPT_TEXT_GENERATION_CONFIG]));
    TRY(gguf_model_tokenizer(m, &s->texts[CKPT_TEXT_TOKENIZER]));
    const char *template = gguf_string(s->gguf, "tokenizer.chat_template", &n);
    if (template != NULL) strbuf_add(&s->texts[CKPT_TEXT_CHAT_TEMPLATE], template, n);
    return strbuf_status(&s->texts[CKPT_TEXT_CHAT_TEMPLATE]);
}

/* ---- opening ---- */

static struct status config_parse(struct source *s)
{
    const struct strbuf *config = &s->texts[CKPT_TEXT_CONFIG];
    const struct status st = js_parse(config->data, config->n, "config.json", &s->config);
    return status_wrap(st, "%s", s->path);
}

/* Opens a folder of peft; a tokenizer in it is left out, for requests use the model's. */
static struct status adapter_open(struct source *s)
{
    char name[CKPT_NAME_MAX];
    struct entry *e;
    TRY(peft_open(s->path, &s->st));
    TRY(peft_config(s->path, s->st, &s->texts[CKPT_TEXT_CONFIG]));
    TRY(config_parse(s));
    const size_t n = safetensors_count(s->st);
    TRY(mem_alloc(&s->entries, n, sizeof s->entries[0], "the list of tensors"));
    for (size_t i = 0; i < n; i++) {
        const struct safetensors_tensor *t = safetensors_at(s->st, i);
        TRY(status_wrap(peft_tensor_name(t->name, name, sizeof name), "%s", s->path));
        TRY(entry_fill(s, name, t->dtype, t->n_dims, t->dims, &e));
        e->st = t;
    }
    return status_ok();
}

static struct status hf_open(struct source *s)
{
    TRY(peft_find(s->path, &s->is_adapter));
    if (s->is_adapter) return adapter_open(s);
    TRY(hf_texts_read(s));
    TRY(config_parse(s));
    TRY(status_wrap(hf_quant_check(js_root(s->config)), "%s", s->path));
    TRY(status_wrap(published_open(&s->texts[CKPT_TEXT_CONFIG], &s->published), "%s", s->path));
    TRY(safetensors_open(s->path, &s->st));
    TRY(safetensors_list(s));
    if (s->n_vision > 0) {
        log_line(LOG_WARN,
                 "%s: %zu tensors of the vision and audio parts are left out: the text model takes "
                 "text alone",
                 s->path, s->n_vision);
    }
    return status_ok();
}

static struct status gguf_source_open(struct source *s)
{
    struct gguf_model m;
    TRY(gguf_open(s->path, &s->gguf));
    TRY(gguf_model_read(s->gguf, &m));
    TRY(gguf_texts_read(s, &m));
    TRY(config_parse(s));
    return gguf_list(s, &m);
}

struct status source_open(const char *path, struct source **out)
{
    struct source *s = NULL;
    struct stat info;
    *out = NULL;
    if (stat(path, &info) != 0) return status_make(STATUS_INPUT, "%s: %s", path, strerror(errno));
    TRY(mem_alloc(&s, 1, sizeof *s, "a source"));
    for (int i = 0; i < CKPT_TEXT_COUNT; i++) strbuf_init(&s->texts[i]);
    struct status st = mem_strndup(&s->path, path, strlen(path));
    if (!status_failed(&st)) st = S_ISDIR(info.st_mode) ? hf_open(s) : gguf_source_open(s);
    if (status_failed(&st)) source_close(&s);
    *out = s;
    return st;
}

void source_close(struct source **s_)
{
    struct source *s = *s_;
    if (s == NULL) return;
    for (size_t i = 0; i < s->n_entries; i++) {
        mem_free(&s->entries[i].name);
        mem_free(&s->entries[i].quant);
        mem_free(&s->entries[i].latent);
        mem_free(&s->entries[i].join);
        mem_free(&s->entries[i].fused);
    }
    if (s->raw != NULL) hf_raw_fini(s->raw);
    mem_free(&s->raw);
    for (int i = 0; i < CKPT_TEXT_COUNT; i++) strbuf_fini(&s->texts[i]);
    js_destroy(&s->config);
    published_close(&s->published);
    safetensors_close(&s->st);
    gguf_close(&s->gguf);
    mem_free(&s->entries);
    mem_free(&s->path);
    mem_free(s_);
}

const char *source_kind(const struct source *s)
{
    if (s->is_adapter) return "Hugging Face peft";
    return s->gguf != NULL ? "GGUF" : "Hugging Face safetensors";
}

bool source_is_adapter(const struct source *s)
{
    return s->is_adapter;
}

const struct strbuf *source_text(const struct source *s, enum ckpt_text which)
{
    return &s->texts[which];
}

const struct js_node *source_config(const struct source *s)
{
    return js_root(s->config);
}

size_t source_count(const struct source *s)
{
    return s->n_entries;
}

const struct source_tensor *source_at(const struct source *s, size_t i)
{
    return &s->entries[i].tensor;
}

/* ---- rows ---- */

static size_t stored_row_bytes(const struct entry *e)
{
    if (e->quant != NULL) return 0; /* struct hf_raw has its own memory */
    if (e->gguf != NULL) return (size_t)e->gguf->row_bytes;
    const size_t step =
        e->fused != NULL ? e->fused->step : 1; /* the rows of the other parts are read too */
    return (size_t)e->tensor.n_cols * step * dtype_bytes(e->st->dtype);
}

/* Returns the offset of the f32 rows in the scratch: the first cache line after the stored rows. */
static size_t wide_offset(const struct entry *e, uint64_t n_rows)
{
    return ((size_t)n_rows * stored_row_bytes(e) + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
}

size_t source_scratch_bytes(const struct source *s, size_t i, uint64_t n_rows)
{
    const struct entry *e = &s->entries[i];
    const size_t wide = (size_t)(n_rows * e->tensor.n_cols) * sizeof(float);
    if (e->latent != NULL) return wide + gguf_latent_scratch_bytes(e->latent);
    if (e->join != NULL) return wide + gguf_join_scratch_bytes(e->join, n_rows);
    const size_t n_wide = e->fused != NULL ? e->fused->step + 1 : 1;
    return wide_offset(e, n_rows) + wide * n_wide;
}

static struct status stored_rows(const struct source *s, const struct entry *e, uint64_t row0,
                                 uint64_t n_rows, void *out)
{
    if (e->gguf != NULL) return gguf_read_rows(s->gguf, e->gguf, row0, n_rows, out);
    const size_t row_bytes = stored_row_bytes(e);
    const uint64_t before = e->tensor.n_dims == 1 /* of a vector, e->row0 is an element */
                                ? e->row0 * dtype_bytes(e->st->dtype)
                                : (e->row0 + row0) * row_bytes;
    return safetensors_read(s->st, e->st, before, n_rows * row_bytes, out);
}

/* Reorders the paired rows of each head into halves. */
static void rows_unpair(const struct entry *e, const char *in, uint64_t n_rows, size_t row_bytes,
                        char *out)
{
    for (uint64_t r = 0; r < n_rows; r++) {
        const uint64_t to = arch_rope_unpaired(r, e->pair_rows, e->rotated);
        memcpy(out + to * row_bytes, in + r * row_bytes, row_bytes);
    }
}

/* Reads stored rows to the beginning of the scratch; paired rows are reordered into halves. */
static struct status ordered_rows(const struct source *s, const struct entry *e, uint64_t row0,
                                  uint64_t n_rows, void *scratch)
{
    const size_t row_bytes = stored_row_bytes(e), n_bytes = n_rows * row_bytes;
    TRY(stored_rows(s, e, row0, n_rows, scratch));
    if (e->pair_rows == 0) return status_ok();
    /* the room of the f32 rows; a stored row is never longer than its row in f32 */
    char *ordered = (char *)scratch + wide_offset(e, n_rows);
    if (e->tensor.n_dims == 1) /* a bias: its elements correspond to the rows of the weight */
        rows_unpair(e, scratch, e->tensor.n_cols, row_bytes / e->tensor.n_cols, ordered);
    else
        rows_unpair(e, scratch, n_rows, row_bytes, ordered);
    memcpy(scratch, ordered, n_bytes);
    return status_ok();
}

/* Converts the stored rows of whole experts to f32 in `wide`, then copies the elements of this part
 * after them. Returns the part's elements. */
static const float *fused_rows(const struct entry *e, const void *stored, uint64_t n_rows,
                               float *wide)
{
    const bool is_bias = e->tensor.n_dims == 2;
    const uint64_t n_out = e->fused->dims[1], n_in = is_bias ? 1 : e->tensor.n_cols;
    const size_t n = (size_t)(n_rows * e->tensor.n_cols), n_stored = n * e->fused->step;
    dtype_to_f32(e->st->dtype, stored, n_stored, wide);
    for (size_t at = 0; at < n; at += n_out * n_in) {
        fused_experts_take(e->fused, wide + at * e->fused->step, n_out, n_in, wide + n_stored + at);
    }
    return wide + n_stored;
}

/* Rounds values to `dtype`, and counts those that become infinite. */
static void rows_round(enum dtype dtype, const float *wide, size_t n, void *out,
                       uint64_t *n_overflowed)
{
    dtype_from_f32(dtype, wide, n, out);
    *n_overflowed += dtype_count_overflowed(dtype, wide, n, out);
}

/* wide [n] = the stored whole numbers, as floats. */
static void table_values(enum dtype dtype, const void *stored, size_t n, float *wide)
{
    for (size_t i = 0; i < n; i++)
        wide[i] = dtype == DTYPE_I64 ? (float)((const int64_t *)stored)[i]
                                     : (float)((const int32_t *)stored)[i];
}

/* Reads rows of an entry that lies in a single tensor of the source. */
static struct status plain_rows(const struct source *s, const struct entry *e, uint64_t row0,
                                uint64_t n_rows, enum dtype dtype, void *scratch, void *out,
                                uint64_t *n_overflowed)
{
    const size_t n = (size_t)(n_rows * e->tensor.n_cols);
    float *wide = (float *)((char *)scratch + wide_offset(e, n_rows));
    enum dtype own = DTYPE_F32;
    const bool plain = e->gguf == NULL || gguf_quant_dtype(e->gguf->quant, &own);
    if (e->gguf == NULL) own = e->st->dtype;
    TRY(ordered_rows(s, e, row0, n_rows, scratch));
    if (e->fused != NULL) {
        rows_round(dtype, fused_rows(e, scratch, n_rows, wide), n, out, n_overflowed);
        return status_ok();
    }
    if (plain && own == dtype && !e->adds_one && !e->is_decay) {
        memcpy(out, scratch, n * dtype_bytes(dtype));
        return status_ok();
    }
    if (e->is_table) {
        table_values(own, scratch, n, wide);
    } else if (plain) {
        dtype_to_f32(own, scratch, n, wide);
    } else {
        gguf_dequantize(e->gguf->quant, scratch, n, wide);
    }
    if (e->is_decay && !gguf_delta_decays(wide, n))
        return status_make(STATUS_INPUT, "%s: tensor '%s': expected values below 0", s->path,
                           e->gguf->name);
    for (size_t k = 0; e->adds_one && k < n; k++) wide[k] += 1.0f;
    rows_round(dtype, wide, n, out, n_overflowed);
    return status_ok();
}

struct status source_rows(const struct source *s, size_t i, uint64_t row0, uint64_t n_rows,
                          enum dtype dtype, void *scratch, void *out, uint64_t *n_overflowed)
{
    const struct entry *e = &s->entries[i];
    const size_t n = (size_t)(n_rows * e->tensor.n_cols);
    float *wide = scratch;
    if (e->quant == NULL && e->latent == NULL && e->join == NULL)
        return plain_rows(s, e, row0, n_rows, dtype, scratch, out, n_overflowed);
    if (e->quant != NULL) {
        wide = (float *)((char *)scratch + wide_offset(e, n_rows));
        TRY(hf_quant_values(s->st, e->quant, s->raw, row0, n_rows, wide));
    } else if (e->join != NULL) {
        TRY(gguf_join_rows(s->gguf, e->join, row0, n_rows, wide + n, wide));
    } else {
        const uint64_t group = e->tensor.row_group;
        TRY(gguf_latent_rows(s->gguf, e->latent, row0 / group, n_rows / group, wide + n, wide));
    }
    rows_round(dtype, wide, n, out, n_overflowed);
    return status_ok();
}

struct status source_codes(const struct source *s, size_t i, struct quant_format format,
                           uint64_t row0, uint64_t n_rows, void *scratch,
                           const struct quant_block *out)
{
    const struct entry *e = &s->entries[i];
    if (e->quant != NULL) return hf_quant_codes(s->st, e->quant, s->raw, format, row0, n_rows, out);
    bool fits;
    if (e->join != NULL) {
        TRY(gguf_join_codes(s->gguf, e->join, row0, n_rows, scratch, out, &fits));
    } else {
        TRY(ordered_rows(s, e, row0, n_rows, scratch));
        fits = gguf_codes(e->gguf->quant, scratch, n_rows, e->tensor.n_cols, out);
    }
    if (fits) return status_ok();
    return status_make(
        STATUS_INPUT,
        "%s: tensor '%s': a code of -128 or a scale that is NaN in rows %llu to %llu, "
        "expected -127 to 127; only its values can be taken (--quantized dequantize)",
        s->path, e->name, (unsigned long long)row0, (unsigned long long)(row0 + n_rows - 1));
}
