/* Reads the inputs of a line of shoal embed, and turns pooled rows into vectors or scores. The
 * inputs of a list are the line's prompts; if there are several, each has an answer of its own
 * (request_choice.h). */
#include "serve/request/request_embed.h"

#include "base/mem.h"
#include "serve/request/request_parse.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct status request_open_parts(struct request_parser *p, size_t n)
{
    p->ask->is_list = true;
    p->ask->n_choices = p->ask->n_prompts = (int32_t)n;
    return mem_alloc(&p->r->prompts, n, sizeof *p->r->prompts, "inputs");
}

struct status request_add_part(struct request_parser *p, const char *what, const int32_t *ids,
                               size_t n)
{
    const struct status st = request_check_length(p, n);
    if (status_failed(&st)) return status_wrap(st, "%s", what);
    for (size_t i = 0; i < n; i++) TRY(request_check_id(p, what, ids[i]));
    return request_add_tokens(p, ids, n);
}

/* Returns how many of the ids [n] stand before the text's own ids, own [n_own]; n + 1: own does not
 * occur in them. */
static size_t find_own(const int32_t *ids, size_t n, const int32_t *own, size_t n_own)
{
    for (size_t i = 0; n_own > 0 && i + n_own <= n; i++)
        if (memcmp(ids + i, own, n_own * sizeof *own) == 0) return i;
    return n + 1;
}

/* Cuts the tokens of a text to n_most, at the end of the text's own tokens: those that the
 * post-processor puts around a text stay. Cuts nothing if the own tokens cannot be found or are too
 * few. */
static struct status cut_text(struct request_parser *p, const struct strbuf *text, size_t n_most,
                              struct token_list *list)
{
    struct token_list own = {0};
    struct status st =
        tokenizer_encode(p->rules->tokenizer, text->data, text->n, TOKENIZER_PARSE_SPECIAL, &own);
    const size_t n_cut = list->n - n_most, n_before = find_own(list->ids, list->n, own.ids, own.n);
    if (!status_failed(&st) && n_before <= list->n && own.n > n_cut) {
        const size_t end = n_before + own.n;
        memmove(list->ids + end - n_cut, list->ids + end, (list->n - end) * sizeof *list->ids);
        list->n = n_most;
        p->r->n_cut += n_cut;
    }
    token_list_fini(&own);
    return st;
}

/* Returns the most tokens that a text may have. */
static size_t most_tokens(const struct request_rules *rules)
{
    const int32_t most = rules->embed->max_tokens;
    return (size_t)(most > 0 && most < rules->max_model_len ? most : rules->max_model_len);
}

/* Appends the tokens of a text, with the text `before` (the prompt of prompt_name; NULL: none) in
 * front of it. */
static struct status take_text(struct request_parser *p, const char *what,
                               const struct js_node *node, const struct js_node *before)
{
    struct strbuf whole;
    struct token_list list = {0};
    size_t n, n_before;
    const char *text = js_string(node, &n), *prefix = js_string(before, &n_before);
    if (p->rules->tokenizer == NULL)
        return request_bad(p, "unsupported", "%s: this model has no tokenizer; give token ids",
                           what);
    strbuf_init(&whole);
    if (prefix != NULL) strbuf_add(&whole, prefix, n_before);
    strbuf_add(&whole, text, n);
    struct status st = strbuf_status(&whole);
    if (!status_failed(&st))
        st = tokenizer_encode(p->rules->tokenizer, whole.n > 0 ? whole.data : "", whole.n,
                              TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL, &list);
    if (!status_failed(&st) && p->rules->embed->cuts_texts && list.n > most_tokens(p->rules))
        st = cut_text(p, &whole, most_tokens(p->rules), &list);
    if (st.code == STATUS_REQUEST) p->r->error.code = "invalid_request";
    if (!status_failed(&st)) st = request_add_part(p, what, list.ids, list.n);
    token_list_fini(&list);
    strbuf_fini(&whole);
    return st;
}

static struct status take_text_ids(struct request_parser *p, const char *what,
                                   const struct js_node *list)
{
    int32_t *ids = NULL;
    const size_t n = js_count(list);
    struct status st = mem_alloc(&ids, n, sizeof *ids, "request tokens");
    for (size_t i = 0; i < n && !status_failed(&st); i++)
        st = request_read_id(p, what, js_at(list, i), &ids[i]);
    if (!status_failed(&st)) st = request_add_part(p, what, ids, n);
    mem_free(&ids);
    return st;
}

/* Reads one input: a text or a list of token ids. */
static struct status add_input(struct request_parser *p, const char *what,
                               const struct js_node *node, const struct js_node *before)
{
    if (js_type(node) == JS_STRING) return take_text(p, what, node, before);
    if (js_type(node) == JS_ARRAY) return take_text_ids(p, what, node);
    return request_bad(p, "invalid_request", "%s: expected a text or a list of token ids, found %s",
                       what, request_type_name(node));
}

/* Reads "input" or "prompt". A list that begins with an integer is a single input; in any other
 * list each element is an input. */
static struct status read_inputs(struct request_parser *p, const struct js_node *input,
                                 const struct js_node *before)
{
    const size_t n = js_type(input) == JS_ARRAY ? js_count(input) : 0;
    const bool is_list = js_type(input) == JS_ARRAY && js_type(js_at(input, 0)) != JS_INT;
    char what[32];
    if (is_list && (n == 0 || n > EMBED_INPUTS_MAX))
        return request_bad(p, "invalid_request", "input: expected 1 to %d texts, found %zu",
                           EMBED_INPUTS_MAX, n);
    if (!is_list) return add_input(p, "input", input, before);
    TRY(request_open_parts(p, n));
    for (size_t i = 0; i < n; i++) {
        snprintf(what, sizeof what, "input[%zu]", i);
        TRY(add_input(p, what, js_at(input, i), before));
        p->r->prompts[i].end = p->r->n_tokens;
    }
    return status_ok();
}

/* *out = the prompt that is put before each input: the one that the line's prompt_name names, else
 * the job's; NULL: none. */
static struct status find_prompt(struct request_parser *p, const struct js_node *fields,
                                 const struct js_node **out)
{
    const struct embed_rules *e = p->rules->embed;
    const struct js_node *node = js_get(fields, "prompt_name");
    const char *name = js_type(node) == JS_NULL ? e->prompt : js_string(node, NULL);
    *out = name != NULL ? js_get(e->prompts, name) : NULL;
    if (js_type(node) == JS_NULL || js_string(*out, NULL) != NULL) return status_ok();
    if (name == NULL)
        return request_bad(p, "invalid_request", "prompt_name: expected a string, found %s",
                           request_type_name(node));
    return request_bad(p, "invalid_request",
                       "prompt_name: this model has no prompt named \"%.60s\"", name);
}

static struct status read_encoding(struct request_parser *p, const struct js_node *fields)
{
    const struct js_node *node = js_get(fields, "encoding_format");
    const char *name = js_string(node, NULL);
    if (js_type(node) == JS_NULL) return status_ok();
    if (name != NULL && strcmp(name, "float") == 0)
        p->ask->encoding = EMBED_FLOATS;
    else if (name != NULL && strcmp(name, "base64") == 0)
        p->ask->encoding = EMBED_BASE64;
    else
        return request_bad(p, "invalid_request",
                           "encoding_format: expected \"float\" or \"base64\", found %s",
                           name != NULL ? "another string" : request_type_name(node));
    return status_ok();
}

/* Refuses unknown fields of the body of a batch line or a call. A plain line may carry any. */
static struct status check_fields(struct request_parser *p, const struct js_node *fields)
{
    static const char *const known[] = {"input",
                                        "messages",
                                        "prompt",
                                        "prompt_token_ids",
                                        "dimensions",
                                        "encoding_format",
                                        "prompt_name",
                                        "priority",
                                        "model",
                                        "user",
                                        "metadata",
                                        "service_tier",
                                        "documents",
                                        "tools",
                                        "add_generation_prompt",
                                        "chat_template_kwargs"};
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    while (p->ask->format != REQUEST_PLAIN && js_next(fields, &it, &key, &value)) {
        size_t i = 0;
        while (i < sizeof known / sizeof known[0] && strcmp(known[i], key) != 0) i++;
        if (i == sizeof known / sizeof known[0])
            return request_bad(p, "invalid_request", "%.100s: this field is not known", key);
    }
    return status_ok();
}

struct status request_read_embed(struct request_parser *p, const struct js_node *fields)
{
    const struct embed_rules *e = p->rules->embed;
    const struct js_node *input = js_get(fields, "input"), *before;
    int64_t dimensions = e->dimensions, priority = 0;
    p->ask->pool = e->pool;
    p->ask->encoding = e->encoding;
    TRY(check_fields(p, fields));
    TRY(request_read_int(p, fields, "dimensions", 1, e->width, &dimensions));
    TRY(request_read_int(p, fields, "priority", INT32_MIN, INT32_MAX, &priority));
    TRY(read_encoding(p, fields));
    TRY(find_prompt(p, fields, &before));
    p->ask->dimensions = (int32_t)dimensions;
    p->ask->priority = (int32_t)priority;
    const bool has_prompt = js_type(js_get(fields, "messages")) != JS_NULL ||
                            js_type(js_get(fields, "prompt")) != JS_NULL ||
                            js_type(js_get(fields, "prompt_token_ids")) != JS_NULL;
    if (js_type(input) != JS_NULL && has_prompt)
        return request_bad(p, "invalid_request",
                           "expected either input or a prompt or messages, found both");
    if (js_type(input) != JS_NULL) return read_inputs(p, input, before);
    if (js_type(js_get(fields, "prompt")) != JS_NULL)
        return read_inputs(p, js_get(fields, "prompt"), before);
    if (has_prompt && js_type(js_get(fields, "prompt_name")) != JS_NULL)
        return request_bad(p, "invalid_request",
                           "prompt_name: needs a text, found messages or token ids");
    if (has_prompt) {
        TRY(request_read_prompt(p, fields));
        p->ask->is_list = p->ask->n_prompts > 1;
        return status_ok();
    }
    return request_bad(p, "invalid_request",
                       "expected input, a prompt or messages, found none of them; shoal rank takes "
                       "query and documents, too");
}

struct status request_take_pool(struct request *r, const int64_t *sums, size_t width)
{
    if (r->pooled == NULL) TRY(mem_alloc(&r->pooled, width, sizeof *r->pooled, "a pooled vector"));
    for (size_t i = 0; i < width; i++) r->pooled[i] += sums[i];
    return status_ok();
}

void request_vector(const struct request *r, const struct embed_rules *rules, float *out)
{
    const size_t n = (size_t)r->ask->dimensions;
    const double n_rows = r->ask->pool == POOL_MEAN ? (double)r->n_prompt : 1;
    const double unit = 1 / ((double)(1 << PLAN_POOL_BITS) * n_rows);
    double squares = 0;
    for (size_t i = 0; i < n; i++) {
        const double x = (double)r->pooled[i] * unit;
        squares += x * x;
    }
    const double scale = rules->normalizes && squares > 0 ? unit / sqrt(squares) : unit;
    for (size_t i = 0; i < n; i++) out[i] = (float)((double)r->pooled[i] * scale);
}

/* Applies the activation to scores [n]. */
static void activate_scores(const struct rank_rules *rank, float *scores, size_t n)
{
    float most = scores[0], sum = 0;
    if (rank->activation == RANK_NONE) return;
    if (rank->activation == RANK_SIGMOID) {
        for (size_t i = 0; i < n; i++) scores[i] = 1 / (1 + rank->exponential(-scores[i]));
        return;
    }
    for (size_t i = 1; i < n; i++) most = scores[i] > most ? scores[i] : most;
    for (size_t i = 0; i < n; i++) {
        scores[i] = rank->exponential(scores[i] - most);
        sum += scores[i];
    }
    for (size_t i = 0; i < n; i++) scores[i] /= sum;
}

/* Applies the layer norm of rank to rank->work [D]. */
static void norm_work(const struct rank_rules *rank, size_t width)
{
    double mean = 0, squares = 0;
    for (size_t k = 0; k < width; k++) mean += rank->work[k];
    mean /= (double)width;
    for (size_t k = 0; k < width; k++) {
        rank->work[k] -= mean;
        squares += rank->work[k] * rank->work[k];
    }
    const double scale = 1 / sqrt(squares / (double)width + rank->norm_eps);
    for (size_t k = 0; k < width; k++)
        rank->work[k] = rank->work[k] * scale * (double)rank->norm[k] + (double)rank->norm_bias[k];
}

/* Sets rank->work [D] to the dense layer's outputs for the pooled row, after tanh, or after GELU
 * and a layer norm. Adds each input to all sums before the next input, because additions to the
 * same sum must wait for each other. */
static void read_vector_row(const struct request *r, const struct rank_rules *rank, size_t width)
{
    const double n_rows = r->ask->pool == POOL_MEAN ? (double)r->n_prompt : 1;
    const double unit = 1.0 / ((double)(1 << PLAN_POOL_BITS) * n_rows);
    for (size_t k = 0; k < width; k++) rank->work[k] = 0;
    for (size_t i = 0; i < width; i++) {
        const float *weights = rank->dense + i * width;
        const double x = (double)r->pooled[i];
        for (size_t k = 0; k < width; k++) rank->work[k] += x * (double)weights[k];
    }
    for (size_t k = 0; k < width; k++) {
        const double x = rank->work[k] * unit + (double)rank->dense_bias[k];
        if (rank->norm != NULL) {
            rank->work[k] = (double)rank->gelu((float)x);
            continue;
        }
        const double e = (double)rank->exponential((float)(-2 * fabs(x)));
        rank->work[k] = copysign((1 - e) / (1 + e), x);
    }
    if (rank->norm != NULL) norm_work(rank, width);
}

/* Sets out [n_labels] to the scores of an encoder's head. */
static void score_by_dense(const struct request *r, const struct rank_rules *rank, size_t width,
                           float *out)
{
    read_vector_row(r, rank, width);
    for (size_t k = 0; k < rank->n_labels; k++) {
        double sum = 0;
        for (size_t i = 0; i < width; i++) sum += rank->work[i] * (double)rank->head[k * width + i];
        out[k] = (float)(sum + (double)rank->bias[k]);
    }
    activate_scores(rank, out, rank->n_labels);
}

size_t request_scores(const struct request *r, const struct embed_rules *rules, float *out)
{
    const struct rank_rules *rank = &rules->rank;
    const size_t width = (size_t)rules->width, n = rank->is_yes_no ? 1 : rank->n_labels;
    const double unit = rank->scale / (double)(1 << PLAN_POOL_BITS);
    double before = 0;
    if (rank->dense != NULL) {
        score_by_dense(r, rank, width, out);
        return n;
    }
    for (size_t k = 0; k < rank->n_labels; k++) {
        double sum = 0;
        for (size_t i = 0; i < width; i++)
            sum += (double)r->pooled[i] * (double)rank->head[k * width + i];
        out[k] = (float)(sum * unit);
        if (rank->is_yes_no && k == 1) out[0] = (float)((sum - before) * unit);
        before = sum;
    }
    activate_scores(rank, out, n);
    return n;
}
