/* Finds the text model inside a multimodal checkpoint: its config.json, and its tensors. */
#include "checkpoint/convert/published.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* A field that text_config may leave out, and its value then. */
struct field_default {
    const char *key, *value;
};

struct multimodal {
    const char *architecture, *text_architecture;
    const struct field_default *defaults; /* both lists end with an empty entry */
    const struct field_default *rope;     /* added when text_config has no rope_parameters */
    bool tied;                            /* the head is always the embedding */
};

static const struct field_default gemma3[] = {
    {"vocab_size", "262208"},      {"hidden_size", "2304"},
    {"intermediate_size", "9216"}, {"num_hidden_layers", "26"},
    {"num_attention_heads", "8"},  {"num_key_value_heads", "4"},
    {"head_dim", "256"},           {"max_position_embeddings", "131072"},
    {"sliding_window", "4096"},    {NULL, NULL}};
static const struct field_default none[] = {{NULL, NULL}};
static const struct field_default gemma3_rope[] = {
    {"rope_theta", "1000000.0"}, {"rope_local_base_freq", "10000.0"}, {NULL, NULL}};

static const struct multimodal models[] = {
    {"Gemma3ForConditionalGeneration", "Gemma3ForCausalLM", gemma3, gemma3_rope, true},
    {"Gemma4ForConditionalGeneration", "Gemma4ForCausalLM", none, none, true},
    {"Llama4ForConditionalGeneration", "Llama4ForCausalLM", none, none, false},
    {"Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM", none, none, false},
    {"MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLForCausalLM", none, none, false},
    {"Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM", none, none, false},
    {"Step3p7ForConditionalGeneration", "Step3p5ForCausalLM", none, none, false},
};

/* Fields without effect on the text model: those of the vision and audio parts, and those that
 * text_config has too. */
static const char *const outer_inert[] = {"architectures",
                                          "text_config",
                                          "vision_config",
                                          "model_type",
                                          "boi_token_index",
                                          "eoi_token_index",
                                          "image_token_index",
                                          "mm_tokens_per_image",
                                          "initializer_range",
                                          "boi_token_id",
                                          "eoi_token_id",
                                          "image_token_id",
                                          "image_seq_length",
                                          "vision_feature_layer",
                                          "video_token_id",
                                          "vision_start_token_id",
                                          "vision_end_token_id",
                                          "audio_config",
                                          "boa_token_id",
                                          "eoa_token_id",
                                          "eoa_token_index",
                                          "audio_token_id",
                                          "vision_soft_tokens_per_image",
                                          "video_token_index",
                                          "merged_hidden_size",
                                          "projector_hidden_size",
                                          "auto_map",
                                          "image_token_len",
                                          "patch_token_len",
                                          "projector_bias",
                                          "understand_projector_stride"};

/* Fields beside text_config that belong to the text model too. Any other field is refused, unless
 * it is null, is listed in outer_inert or begins with an underscore. */
static const char *const outer_own[] = {
    "eos_token_id", "bos_token_id", "pad_token_id",        "tie_word_embeddings",
    "torch_dtype",  "dtype",        "quantization_config", "transformers_version"};

static bool is_own(const char *key)
{
    for (size_t i = 0; i < sizeof outer_own / sizeof outer_own[0]; i++) {
        if (strcmp(key, outer_own[i]) == 0) return true;
    }
    return false;
}

static bool is_inert(const char *key)
{
    for (size_t i = 0; i < sizeof outer_inert / sizeof outer_inert[0]; i++) {
        if (strcmp(key, outer_inert[i]) == 0) return true;
    }
    return false;
}

static struct status put_field(struct strbuf *out, const char *key, const struct js_node *value)
{
    char *text = NULL;
    size_t n;
    TRY(js_dump(value, &text, &n));
    strbuf_printf(out, ", \"%s\": %s", key, text);
    mem_free(&text);
    return strbuf_status(out);
}

static void put_defaults(struct strbuf *out, const struct js_node *text,
                         const struct field_default *d)
{
    for (; d->key != NULL; d++) {
        if (js_get(text, d->key) == NULL) strbuf_printf(out, ", \"%s\": %s", d->key, d->value);
    }
}

/* True for eos_token_id if the whole model's config.json has it: transformers then takes it from
 * there. */
static bool is_end_of_whole(const struct js_node *root, const char *key)
{
    return strcmp(key, "eos_token_id") == 0 && js_type(js_get(root, key)) != JS_NULL;
}

static struct status flatten(const struct multimodal *m, const struct js_node *root,
                             struct strbuf *out)
{
    const struct js_node *text = js_get(root, "text_config"), *value;
    const void *it = NULL;
    const char *key;
    strbuf_printf(out, "{\"architectures\": [\"%s\"]", m->text_architecture);
    while (js_next(text, &it, &key, &value)) {
        if (strcmp(key, "architectures") != 0 && !is_end_of_whole(root, key))
            TRY(put_field(out, key, value));
    }
    for (it = NULL; js_next(root, &it, &key, &value);) {
        if (is_inert(key) || js_type(value) == JS_NULL || key[0] == '_') continue;
        if (!is_own(key)) {
            return status_make(STATUS_INPUT,
                               "config.json: field \"%s\" is set beside text_config, where shoal "
                               "does not know whether it changes the arithmetic",
                               key);
        }
        if (js_get(text, key) == NULL || is_end_of_whole(root, key))
            TRY(put_field(out, key, value));
    }
    put_defaults(out, text, m->defaults);
    if (js_get(text, "rope_parameters") == NULL) put_defaults(out, text, m->rope);
    strbuf_puts(out, "}\n");
    return strbuf_status(out);
}

/* Refuses "tie_word_embeddings": false, in config.json or in its text_config. */
static struct status check_tied_text(const struct js_node *root, const char *what)
{
    const struct js_node *objects[] = {root, js_get(root, "text_config")};
    bool tied;
    for (int i = 0; i < 2; i++) {
        if (!js_bool(js_get(objects[i], "tie_word_embeddings"), &tied) || tied) continue;
        return status_make(
            STATUS_INPUT,
            "%s: tie_word_embeddings: false is not implemented for the text model of "
            "a multimodal checkpoint",
            what);
    }
    return status_ok();
}

struct status published_text_config(struct strbuf *config, const char *what, bool *is_text)
{
    struct js_doc *doc = NULL;
    struct strbuf flat;
    TRY(js_parse(config->data, config->n, what, &doc));
    const struct js_node *root = js_root(doc);
    const char *name = js_string(js_at(js_get(root, "architectures"), 0), NULL);
    struct status st = status_ok();
    strbuf_init(&flat);
    for (size_t i = 0; name != NULL && i < sizeof models / sizeof models[0]; i++) {
        if (strcmp(name, models[i].architecture) != 0) continue;
        if (models[i].tied) st = check_tied_text(root, what);
        if (!status_failed(&st)) st = flatten(&models[i], root, &flat);
    }
    js_destroy(&doc);
    *is_text = flat.n > 0;
    if (!status_failed(&st) && *is_text) {
        strbuf_clear(config);
        strbuf_add(config, flat.data, flat.n);
        st = strbuf_status(config);
    }
    strbuf_fini(&flat);
    return st;
}

struct status published_finite_config(struct strbuf *config)
{
    static const char word[] = "Infinity";
    const size_t n_word = strlen(word);
    struct strbuf out;
    bool in_string = false;
    strbuf_init(&out);
    for (size_t i = 0; i < config->n;) {
        const char *at = config->data + i;
        const bool is_word = !in_string && i + n_word <= config->n && memcmp(at, word, n_word) == 0;
        const size_t n = is_word ? n_word : in_string && *at == '\\' && i + 1 < config->n ? 2 : 1;
        if (is_word)
            strbuf_puts(&out, "{\"__float__\": \"Infinity\"}");
        else
            strbuf_add(&out, at, n);
        if (*at == '"') in_string = !in_string;
        i += n;
    }
    struct status st = strbuf_status(&out);
    if (!status_failed(&st) && out.n != config->n) {
        strbuf_clear(config);
        strbuf_add(config, out.data, out.n);
        st = strbuf_status(config);
    }
    strbuf_fini(&out);
    return st;
}

bool published_is_vision(const char *name)
{
    static const char *const parts[] = {"vision_tower.", "multi_modal_projector.", "vision_model.",
                                        "visual.",       "audio_tower.",           "embed_vision.",
                                        "embed_audio.",  "patch_merge_mlp.",
                                        "vit_large_projector."};
    if (strncmp(name, "model.", strlen("model.")) == 0) name += strlen("model.");
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strncmp(name, parts[i], strlen(parts[i])) == 0) return true;
    }
    return false;
}

void published_text_name(const char *name, char *out, size_t n)
{
    static const char before[] = "language_model.", inside[] = "model.language_model.";
    if (strncmp(name, inside, strlen(inside)) == 0)
        snprintf(out, n, "model.%s", name + strlen(inside));
    else
        snprintf(out, n, "%s",
                 name + (strncmp(name, before, strlen(before)) == 0 ? strlen(before) : 0));
}
