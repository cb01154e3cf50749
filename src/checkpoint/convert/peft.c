/* Checks an adapter's config and its tensors, and writes the config of its checkpoint. */
#include "checkpoint/convert/peft.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/convert/published.h"
#include "checkpoint/file/ckpt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 16 << 20, RANK_MAX = 1 << 16 };

static const char config_name[] = "adapter_config.json";
static const char tensors_name[] = "adapter_model.safetensors";

/* Fields that change no result of a finished adapter: how it was trained, and notes. */
static const char *const inert[] = {"auto_mapping",      "base_model_name_or_path",
                                    "corda_config",      "ensure_weight_tying",
                                    "eva_config",        "exclude_modules",
                                    "inference_mode",    "layers_pattern",
                                    "lora_dropout",      "layers_to_transform",
                                    "lora_ga_config",    "loftq_config",
                                    "megatron_core",     "peft_version",
                                    "qalora_group_size", "revision",
                                    "runtime_config",    "target_modules",
                                    "task_type",         NULL};

/* Fields that are read or checked by name below. */
static const char *const known[] = {
    "alpha_pattern", "bias", "init_lora_weights", "lora_alpha",
    "peft_type",     "r",    "rank_pattern",      "target_parameters",
    "use_rslora",    NULL};

/* ---- the folder ---- */

/* Sets *exists to whether the folder has a regular file of this name. Errors: STATUS_MEMORY. */
static struct status has_file(const char *folder, const char *name, bool *exists)
{
    char *path = NULL;
    TRY(file_join(folder, name, &path));
    *exists = file_exists(path);
    mem_free(&path);
    return status_ok();
}

struct status peft_find(const char *folder, bool *is_adapter)
{
    bool has_weights = false, has_index = false;
    TRY(has_file(folder, config_name, is_adapter));
    if (!*is_adapter) return status_ok();
    TRY(has_file(folder, "model.safetensors", &has_weights));
    TRY(has_file(folder, "model.safetensors.index.json", &has_index));
    if (!has_weights && !has_index) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: has the weights of a model and an adapter (%s); expected the adapter's "
                       "two files in a folder of their own",
                       folder, config_name);
}

struct status peft_open(const char *folder, struct safetensors **out)
{
    char *path = NULL;
    bool exists;
    *out = NULL;
    TRY(has_file(folder, tensors_name, &exists));
    if (!exists)
        return status_make(STATUS_INPUT, "%s: expected %s beside %s", folder, tensors_name,
                           config_name);
    TRY(file_join(folder, tensors_name, &path));
    const struct status st = safetensors_open(path, out);
    mem_free(&path);
    return st;
}

/* ---- names ---- */

/* Sets *module [*n_module bytes] to the module's name in the published model and *is_b; false: not
 * a tensor of a low-rank pair. */
static bool pair_part(const char *name, const char **module, size_t *n_module, bool *is_b)
{
    static const char prefix[] = "base_model.model.";
    static const char *const ends[2] = {".lora_A.weight", ".lora_B.weight"};
    const size_t n = strlen(name), n_prefix = strlen(prefix), n_end = strlen(ends[0]);
    if (n <= n_prefix + n_end || strncmp(name, prefix, n_prefix) != 0) return false;
    *module = name + n_prefix;
    *n_module = n - n_prefix - n_end;
    *is_b = strcmp(name + n - n_end, ends[1]) == 0;
    return *is_b || strcmp(name + n - n_end, ends[0]) == 0;
}

/* Returns the number of an expert in a name, and sets *n to its digits; NULL: there is none. */
static const char *expert_digits(const char *name, size_t *n)
{
    static const char before[] = ".experts.";
    const char *at = strstr(name, before);
    if (at == NULL) return NULL;
    at += strlen(before);
    *n = strspn(at, "0123456789");
    return *n > 0 && at[*n] == '.' ? at : NULL;
}

/* True for a module of experts whose linears are parameters (target_parameters). peft wraps the
 * module once for each parameter: gate_up_proj inside, as "base_layer", if both have adapters. */
static bool is_of_parameter(const char *module, size_t n)
{
    static const char *const ends[] = {".experts", ".experts.base_layer"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const size_t n_end = strlen(ends[i]);
        if (n > n_end && memcmp(module + n - n_end, ends[i], n_end) == 0) return true;
    }
    return false;
}

struct status peft_tensor_name(const char *name, char *out, size_t n)
{
    char text[CKPT_NAME_MAX + 64];
    const char *module;
    size_t n_module, n_digits;
    bool is_b;
    if (strlen(name) >= CKPT_NAME_MAX)
        return status_make(STATUS_INPUT, "tensor '%.100s...': its name is too long", name);
    if (!pair_part(name, &module, &n_module, &is_b)) {
        return status_make(STATUS_INPUT,
                           "tensor '%s': only adapters of A and B of linears are implemented "
                           "(base_model.model.NAME.lora_A.weight and lora_B.weight)",
                           name);
    }
    if (strstr(module, ".experts.") != NULL && expert_digits(module, &n_digits) == NULL &&
        !is_of_parameter(module, n_module))
        return status_make(STATUS_INPUT, "tensor '%s': expected the number of an expert", name);
    published_text_name(module, text, sizeof text);
    published_base_name(text, out, n);
    return status_ok();
}

/* ---- the config ---- */

static bool is_listed_key(const char *const *list, const char *key)
{
    for (; *list != NULL; list++)
        if (strcmp(*list, key) == 0) return true;
    return false;
}

/* True for a value that switches a field of peft off: null, false, 0, or empty. */
static bool is_off(const struct js_node *value)
{
    bool yes = false;
    double number = 0;
    size_t n = 0;
    switch (js_type(value)) {
    case JS_NULL:
        return true;
    case JS_BOOL:
        return js_bool(value, &yes) && !yes;
    case JS_INT:
    case JS_REAL:
        return js_number(value, &number) && number == 0;
    case JS_STRING:
        return js_string(value, &n) != NULL && n == 0;
    default:
        return js_count(value) == 0;
    }
}

static struct status refuse_field(const char *key, const struct js_node *value,
                                  const char *expected)
{
    char *text = NULL;
    size_t n;
    if (value == NULL)
        return status_make(STATUS_INPUT, "field \"%s\": expected %s, found nothing", key, expected);
    TRY(js_dump(value, &text, &n));
    const struct status st =
        status_make(STATUS_INPUT, "field \"%s\": expected %s, found %.80s", key, expected, text);
    mem_free(&text);
    return st;
}

static struct status check_peft_text(const struct js_node *root, const char *key,
                                     const char *wanted)
{
    const struct js_node *node = js_get(root, key);
    const char *found = js_string(node, NULL);
    if (found != NULL && strcmp(found, wanted) == 0) return status_ok();
    return refuse_field(key, node, wanted);
}

/* Refuses initializations that also change the base model's weights (PiSSA, OLoRA, LoftQ,
 * CorDA). */
static struct status check_initialization(const struct js_node *root)
{
    static const char *const kinds[] = {"gaussian", "orthogonal", "eva", NULL};
    const char *key = "init_lora_weights";
    const struct js_node *node = js_get(root, key);
    const char *text = js_string(node, NULL);
    if (js_type(node) == JS_BOOL || js_type(node) == JS_NULL) return status_ok();
    if (text != NULL && is_listed_key(kinds, text)) return status_ok();
    return refuse_field(
        key, node,
        "true, \"gaussian\", \"orthogonal\" or \"eva\", which leave the weights of the "
        "base model as they are");
}

/* A pattern's key without the beginning that peft writes before gate_up_proj, which says nothing.
 */
static const char *pattern_key(const char *key)
{
    static const char any[] = ".*\\.";
    return strncmp(key, any, strlen(any)) == 0 ? key + strlen(any) : key;
}

/* Checks the keys and values of rank_pattern or alpha_pattern. peft takes a key as a regular
 * expression for the end of a module's name after a dot; only keys of letters, digits, underscores
 * and dots are accepted. */
static struct status check_pattern(const struct js_node *root, const char *key)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
    const struct js_node *pattern = js_get(root, key), *value;
    const void *it = NULL;
    const char *module;
    double number;
    if (js_type(pattern) == JS_NULL) return status_ok();
    if (js_type(pattern) != JS_OBJECT) return refuse_field(key, pattern, "an object");
    while (js_next(pattern, &it, &module, &value)) {
        module = pattern_key(module);
        if (module[0] == '\0' || module[strspn(module, plain)] != '\0')
            return status_make(STATUS_INPUT,
                               "field \"%s\": expected names of modules, or their ends after a "
                               "dot, found the pattern \"%.80s\"",
                               key, module);
        if (!js_number(value, &number) || !(number > 0)) return refuse_field(key, value, "numbers");
    }
    return status_ok();
}

/* Checks that target_parameters names only the parameters of experts. */
static struct status check_parameters(const struct js_node *root)
{
    static const char *const names[] = {"experts.gate_up_proj", "experts.down_proj", "gate_up_proj",
                                        "down_proj", NULL};
    const struct js_node *list = js_get(root, "target_parameters");
    for (size_t i = 0; !is_off(list) && i < js_count(list); i++) {
        const char *text = js_string(js_at(list, i), NULL);
        const char *end = text != NULL ? strstr(text, "experts.") : NULL;
        if (text != NULL && is_listed_key(names, end != NULL ? end : text)) continue;
        return refuse_field("target_parameters", list,
                            "experts.gate_up_proj and experts.down_proj alone");
    }
    return status_ok();
}

static struct status check_peft_fields(const struct js_node *root)
{
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    bool flag;
    if (js_type(root) != JS_OBJECT) return status_make(STATUS_INPUT, "expected an object");
    TRY(check_peft_text(root, "peft_type", "LORA"));
    if (js_get(root, "bias") != NULL) TRY(check_peft_text(root, "bias", "none"));
    TRY(check_initialization(root));
    TRY(check_pattern(root, "rank_pattern"));
    TRY(check_pattern(root, "alpha_pattern"));
    TRY(check_parameters(root));
    value = js_get(root, "use_rslora");
    if (!js_bool(value, &flag) && !is_off(value))
        return refuse_field("use_rslora", value, "a switch");
    while (js_next(root, &it, &key, &value)) {
        if (is_listed_key(inert, key) || is_listed_key(known, key) || is_off(value)) continue;
        TRY(refuse_field(key, value, "null or false, because nothing else is implemented"));
    }
    return status_ok();
}

/* ---- rank and scaling ---- */

struct peft_scale {
    int64_t rank;
    double scaling;
};

/* Returns the value of the first key that is the module's name or its end after a dot. */
static const struct js_node *pattern_of(const struct js_node *pattern, const char *module,
                                        size_t n_module)
{
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    while (js_next(pattern, &it, &key, &value)) {
        key = pattern_key(key);
        const size_t n = strlen(key);
        if (n > n_module || memcmp(module + n_module - n, key, n) != 0) continue;
        if (n == n_module || module[n_module - n - 1] == '.') return value;
    }
    return NULL;
}

/* Sets the rank and the scaling of a module; for module "", those of the adapter as a whole. */
static struct status scale_of(const struct js_node *root, const char *module, size_t n_module,
                              struct peft_scale *out)
{
    const struct js_node *rank = pattern_of(js_get(root, "rank_pattern"), module, n_module);
    const struct js_node *alpha = pattern_of(js_get(root, "alpha_pattern"), module, n_module);
    double a;
    bool by_root = false;
    if (rank == NULL) rank = js_get(root, "r");
    if (alpha == NULL) alpha = js_get(root, "lora_alpha");
    if (!js_int(rank, &out->rank) || out->rank < 1 || out->rank > RANK_MAX)
        return refuse_field("r", rank, "1 to 65536");
    if (!js_number(alpha, &a) || !isfinite(a)) return refuse_field("lora_alpha", alpha, "a number");
    js_bool(js_get(root, "use_rslora"), &by_root);
    out->scaling = a / (by_root ? sqrt((double)out->rank) : (double)out->rank);
    return status_ok();
}

/* As scale_of, for a module that may be experts' parameters. */
static struct status scale_of_module(const struct js_node *root, const struct safetensors *tensors,
                                     const char *module, size_t n, struct peft_scale *out)
{
    static const char inner[] = ".base_layer";
    char name[2 * CKPT_NAME_MAX];
    if (!is_of_parameter(module, n)) return scale_of(root, module, n, out);
    const bool is_inner =
        n > strlen(inner) && memcmp(module + n - strlen(inner), inner, strlen(inner)) == 0;
    const int n_experts = (int)(is_inner ? n - strlen(inner) : n);
    snprintf(name, sizeof name, "base_model.model.%.*s%s.lora_A.weight", n_experts, module, inner);
    bool is_down = !is_inner && safetensors_find(tensors, name) != NULL;
    const struct js_node *list = js_get(root, "target_parameters");
    if (!is_inner && !is_down && js_count(list) > 0) {
        const char *only = js_string(js_at(list, 0), NULL);
        is_down = strstr(only, "down_proj") != NULL;
    }
    const int n_name = snprintf(name, sizeof name, "%.*s.%s", n_experts, module,
                                is_down ? "down_proj" : "gate_up_proj");
    return scale_of(root, name, (size_t)n_name, out);
}

/* ---- tensors ---- */

/* Checks one tensor of a pair: its type, its shape by the rank, and that the pair's other tensor
 * exists. Sets the pair's rank and scaling. */
static struct status check_tensor(const struct js_node *root, const struct safetensors *tensors,
                                  const struct safetensors_tensor *t, struct peft_scale *scale)
{
    char name[CKPT_NAME_MAX], other[CKPT_NAME_MAX];
    const char *module;
    size_t n_module;
    bool is_b;
    TRY(peft_tensor_name(t->name, name, sizeof name));
    (void)pair_part(t->name, &module, &n_module, &is_b);
    TRY(scale_of_module(root, tensors, module, n_module, scale));
    snprintf(other, sizeof other, "%.*s.lora_%c.weight", (int)(module - t->name + (long)n_module),
             t->name, is_b ? 'A' : 'B');
    if (safetensors_find(tensors, other) == NULL)
        return status_make(STATUS_INPUT, "tensor '%s': expected '%s' beside it", t->name, other);
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_BF16)
        return status_make(STATUS_INPUT, "tensor '%s': expected F32, F16 or BF16", t->name);
    const bool is_joined = is_of_parameter(module, n_module);
    const uint64_t r = t->n_dims == 2 ? t->dims[is_b ? 1 : 0] : 0;
    if (is_joined && r > 0 && r % (uint64_t)scale->rank == 0) return status_ok();
    if (!is_joined && r == (uint64_t)scale->rank) return status_ok();
    return status_make(STATUS_INPUT, "tensor '%s': expected %s, %s = %lld by %s", t->name,
                       is_b ? "[outputs, r]" : "[r, inputs]", "r", (long long)scale->rank,
                       config_name);
}

/* Refuses an expert whose linear has another rank or scaling than that of expert 0. Takes the
 * number of the expert out of the tensor's name, and sets *is_first to whether it is 0. */
static struct status check_expert(const struct js_node *root, const struct safetensors_tensor *t,
                                  const struct peft_scale *scale, char *name, bool *is_first)
{
    char first[CKPT_NAME_MAX];
    const char *module;
    size_t n, n_module;
    bool is_b;
    struct peft_scale of_first;
    const char *digits = expert_digits(t->name, &n);
    *is_first = true;
    if (digits == NULL) return status_ok();
    snprintf(first, sizeof first, "%.*s0%s", (int)(digits - t->name), t->name, digits + n);
    (void)pair_part(first, &module, &n_module, &is_b);
    TRY(scale_of(root, module, n_module, &of_first));
    if (of_first.rank != scale->rank || of_first.scaling != scale->scaling)
        return status_make(STATUS_INPUT,
                           "tensor '%s': expected the rank and the scaling of expert 0", t->name);
    *is_first = strtoul(digits, NULL, 10) == 0;
    char *own = strstr(name, ".experts.") + strlen(".experts.");
    memmove(own, own + n + 1, strlen(own + n + 1) + 1);
    return status_ok();
}

/* Checks all tensors, and appends the scalings that differ from the adapter's. */
static struct status put_scalings(const struct js_node *root, const struct safetensors *tensors,
                                  double usual, struct strbuf *out)
{
    size_t n_put = 0;
    if (safetensors_count(tensors) == 0) return status_make(STATUS_INPUT, "no tensors");
    strbuf_puts(out, ", \"scalings\": {");
    for (size_t i = 0; i < safetensors_count(tensors); i++) {
        const struct safetensors_tensor *t = safetensors_at(tensors, i);
        struct peft_scale scale;
        char name[CKPT_NAME_MAX];
        bool is_first;
        TRY(check_tensor(root, tensors, t, &scale));
        TRY(peft_tensor_name(t->name, name, sizeof name));
        TRY(check_expert(root, t, &scale, name, &is_first));
        char *end = strstr(name, ".lora_A.weight");
        /* a pair once, by its A, and of experts by the first */
        if (end == NULL || !is_first || scale.scaling == usual) continue;
        *end = '\0';
        strbuf_puts(out, n_put++ > 0 ? ", " : "");
        strbuf_json_string(out, name, strlen(name));
        strbuf_printf(out, ": %.17g", scale.scaling);
    }
    strbuf_puts(out, "}");
    return strbuf_status(out);
}

static struct status put_config(const struct js_node *root, const struct safetensors *tensors,
                                struct strbuf *out)
{
    struct peft_scale usual;
    size_t n;
    const char *base = js_string(js_get(root, "base_model_name_or_path"), &n);
    TRY(check_peft_fields(root));
    TRY(scale_of(root, "", 0, &usual));
    strbuf_clear(out);
    strbuf_printf(out, "{\"adapter_type\": \"lora\", \"r\": %lld, \"scaling\": %.17g",
                  (long long)usual.rank, usual.scaling);
    TRY(put_scalings(root, tensors, usual.scaling, out));
    if (base != NULL) {
        strbuf_puts(out, ", \"base_model_name_or_path\": ");
        strbuf_json_string(out, base, n);
    }
    strbuf_puts(out, "}\n");
    return strbuf_status(out);
}

struct status peft_config(const char *folder, const struct safetensors *tensors, struct strbuf *out)
{
    char *path = NULL, *text = NULL;
    size_t n;
    struct js_doc *doc = NULL;
    TRY(file_join(folder, config_name, &path));
    struct status st = file_read(path, FILE_BYTES_MAX, &text, &n);
    if (!status_failed(&st)) st = js_parse(text, n, config_name, &doc);
    if (!status_failed(&st)) st = status_wrap(put_config(js_root(doc), tensors, out), "%s", path);
    js_destroy(&doc);
    mem_free(&text);
    mem_free(&path);
    return st;
}
