/* Writes vectors and scores into result lines. */
#include "serve/output/result_embed.h"

#include "base/mem.h"
#include "serve/output/result_row.h"
#include "serve/request/request_embed.h"

#include <stdlib.h>
#include <string.h>

/* Appends n bytes in base64 (RFC 4648), with padding. */
static void add_base64(const unsigned char *bytes, size_t n, struct strbuf *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i;
        const uint32_t three = (uint32_t)bytes[i] << 16 |
                               (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                               (left > 2 ? (uint32_t)bytes[i + 2] : 0);
        char four[4] = {digits[three >> 18], digits[three >> 12 & 63], digits[three >> 6 & 63],
                        digits[three & 63]};
        if (left < 3) four[3] = '=';
        if (left < 2) four[2] = '=';
        strbuf_add(out, four, sizeof four);
    }
}

/* Appends a vector [n] as little-endian f32 in base64. A full buffer holds a multiple of 3 bytes,
 * so padding comes only at the end. */
static void add_packed(const float *x, size_t n, struct strbuf *out)
{
    enum { AT_ONCE = 192 };
    unsigned char bytes[AT_ONCE * sizeof(float)];
    strbuf_puts(out, "\"");
    for (size_t i = 0; i < n; i += AT_ONCE) {
        const size_t m = n - i < AT_ONCE ? n - i : AT_ONCE;
        for (size_t k = 0; k < m; k++) {
            uint32_t bits;
            memcpy(&bits, &x[i + k], sizeof bits);
            for (int b = 0; b < 4; b++) bytes[4 * k + (size_t)b] = (unsigned char)(bits >> 8 * b);
        }
        add_base64(bytes, m * sizeof(float), out);
    }
    strbuf_puts(out, "\"");
}

static void add_vector(const struct request *r, const float *x, struct strbuf *out)
{
    const size_t n = (size_t)r->ask->dimensions;
    if (r->ask->encoding == EMBED_BASE64) {
        add_packed(x, n, out);
        return;
    }
    strbuf_puts(out, "[");
    for (size_t i = 0; i < n; i++) {
        if (i > 0) strbuf_puts(out, ",");
        strbuf_json_float(out, x[i]);
    }
    strbuf_puts(out, "]");
}

/* Appends the vectors of all of r's inputs, separated by commas; with as_objects, each in OpenAI's
 * object with its index. */
static struct status add_vectors(const struct request *r, const struct embed_rules *rules,
                                 bool as_objects, struct strbuf *out)
{
    float *x = NULL;
    TRY(mem_alloc(&x, (size_t)r->ask->dimensions, sizeof *x, "a vector"));
    for (int32_t i = 0; i < r->ask->n_choices; i++) {
        if (i > 0) strbuf_puts(out, ",");
        if (as_objects)
            strbuf_printf(out, "{\"object\":\"embedding\",\"index\":%d,\"embedding\":", i);
        request_vector(result_row_choice(r, i), rules, x);
        add_vector(r, x, out);
        if (as_objects) strbuf_puts(out, "}");
    }
    mem_free(&x);
    return strbuf_status(out);
}

/* Appends the scores of all of r's texts: a number each, or a list for several classes. */
static struct status add_scores(const struct request *r, const struct embed_rules *rules,
                                struct strbuf *out)
{
    float *x = NULL;
    TRY(mem_alloc(&x, rules->rank.n_labels, sizeof *x, "scores"));
    strbuf_puts(out, "\"scores\":[");
    for (int32_t i = 0; i < r->ask->n_choices; i++) {
        const size_t n = request_scores(result_row_choice(r, i), rules, x);
        if (i > 0) strbuf_puts(out, ",");
        if (n > 1) strbuf_puts(out, "[");
        for (size_t k = 0; k < n; k++) {
            if (k > 0) strbuf_puts(out, ",");
            strbuf_json_float(out, x[k]);
        }
        if (n > 1) strbuf_puts(out, "]");
    }
    strbuf_puts(out, "]");
    mem_free(&x);
    return strbuf_status(out);
}

struct status result_embed_plain(const struct request *r, const struct embed_rules *rules,
                                 struct strbuf *out)
{
    if (rules->rank.head != NULL) {
        TRY(add_scores(r, rules, out));
    } else {
        strbuf_puts(out, r->ask->is_list ? "\"embeddings\":[" : "\"embedding\":");
        TRY(add_vectors(r, rules, false, out));
        if (r->ask->is_list) strbuf_puts(out, "]");
    }
    if (r->n_cut > 0) strbuf_printf(out, ",\"cut_tokens\":%zu", r->n_cut);
    strbuf_printf(out, ",\"usage\":{\"prompt_tokens\":%zu}", r->n_prompt);
    return strbuf_status(out);
}

struct status result_embed_body(const struct request *r, const struct embed_rules *rules,
                                const char *model_name, struct strbuf *out)
{
    const char *model = model_name != NULL ? model_name : r->ask->model.bytes;
    const size_t n_model = model_name != NULL ? strlen(model_name) : r->ask->model.n;
    strbuf_puts(out, "{\"object\":\"list\",\"data\":[");
    TRY(add_vectors(r, rules, true, out));
    strbuf_puts(out, "],\"model\":");
    strbuf_json_string(out, model != NULL ? model : "", n_model);
    if (r->n_cut > 0) strbuf_printf(out, ",\"cut_tokens\":%zu", r->n_cut);
    strbuf_printf(out, ",\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}}", r->n_prompt,
                  r->n_prompt);
    return strbuf_status(out);
}

/* A document and its score. */
struct ranked {
    float score;
    int32_t index;
};

static int compare_ranked(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return x->index < y->index ? -1 : 1;
}

static void add_result(const struct request *r, const struct ranked *one, struct strbuf *out)
{
    strbuf_printf(out, "{\"index\":%d,\"relevance_score\":", one->index);
    strbuf_json_float(out, one->score);
    if (r->ask->echo) {
        const struct request_bytes *document = &r->prompts[one->index].echo;
        strbuf_puts(out, ",\"document\":{\"text\":");
        strbuf_json_string(out, document->bytes, document->n);
        strbuf_puts(out, "}");
    }
    strbuf_puts(out, "}");
}

struct status result_embed_ranked(const struct request *r, const struct embed_rules *rules,
                                  struct strbuf *out)
{
    const int32_t n = r->ask->n_choices;
    struct ranked *all = NULL;
    float score[2]; /* score[1] is not used; a model that scores yes or no has two classes */
    TRY(mem_alloc(&all, (size_t)n, sizeof *all, "scores"));
    for (int32_t i = 0; i < n; i++) {
        (void)request_scores(result_row_choice(r, i), rules, score);
        all[i] = (struct ranked){score[0], i};
    }
    qsort(all, (size_t)n, sizeof *all, compare_ranked);
    strbuf_puts(out, ",\"results\":[");
    for (int32_t i = 0; i < n && i < r->ask->top_n; i++) {
        if (i > 0) strbuf_puts(out, ",");
        add_result(r, &all[i], out);
    }
    strbuf_printf(out, "],\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}}", r->n_prompt,
                  r->n_prompt);
    mem_free(&all);
    return strbuf_status(out);
}
