/* Loads tokenizer.json's "added_tokens" into a tokenizer. */
#include "text/tokenizer/tokenizer_private.h"

#include "base/mem.h"
#include "text/grammar/json_read.h"

#include <stdio.h>
#include <string.h>

/* Reads one added token. *next_id: the id that the next token new to the vocabulary must have. */
static struct status read_added(struct tokenizer *t, const struct js_node *node,
                                struct added_token *token, int64_t *next_id)
{
    static const char *const KNOWN[] = {"id",     "content",    "single_word", "lstrip",
                                        "rstrip", "normalized", "special",     NULL};
    const char *content = js_string(js_get(node, "content"), &token->n);
    char where[80];
    snprintf(where, sizeof where, "added token '%.40s'", content);
    TRY(json_known_fields(node, where, KNOWN));
    TRY(json_bool_field(node, "special", where, false, &token->special));
    TRY(json_bool_field(node, "single_word", where, false, &token->single_word));
    TRY(json_bool_field(node, "lstrip", where, false, &token->lstrip));
    TRY(json_bool_field(node, "rstrip", where, false, &token->rstrip));
    TRY(json_bool_field(node, "normalized", where, !token->special, &token->normalized));
    int64_t id;
    js_int(js_get(node, "id"), &id);
    const int32_t known = str_map_get(&t->keys, content, token->n);
    const int64_t expected = known >= 0 ? known : (*next_id)++;
    if (id != expected || t->tokens[id].added || (known < 0 && t->tokens[id].in_model)) {
        return status_make(STATUS_INPUT, "%s: the id is %lld, expected %lld, given once", where,
                           (long long)id, (long long)expected);
    }
    token->id = (int32_t)id;
    token->content = tokenizer_arena_add(t, content, token->n);
    if (known < 0) str_map_add(&t->keys, token->content, token->n, (int32_t)id);
    return status_ok();
}

/* Normalizes the content of a token that is searched for in normalized text. The memory of the
 * normalized content is twice as long, because finish_added may put the token's decoded bytes after
 * it. */
static struct status normalize_added(struct tokenizer *t, struct added_token *token)
{
    struct normal_text text = {.bytes = token->content, .n = token->n};
    if (!token->normalized) return status_ok();
    TRY(normalizer_run(&t->normalizer, &text));
    if (text.bytes == token->content) return status_ok();
    if (text.n == 0) {
        return status_make(STATUS_INPUT,
                           "added token '%.40s': nothing is left of it when normalized",
                           token->content);
    }
    char **owned = &t->normal_contents[token - t->added];
    TRY(mem_alloc(owned, text.n, 2, "added token"));
    memcpy(*owned, text.bytes, text.n);
    token->content = *owned;
    token->n = text.n;
    return status_ok();
}

/* Sets the text to search for and the text that the token decodes to. */
static struct status finish_added(struct tokenizer *t, struct added_token *token)
{
    struct token_info *info = &t->tokens[token->id];
    TRY(normalize_added(t, token));
    info->added = true;
    info->special = token->special;
    info->key = info->bytes = token->content;
    info->n_key = info->n = (uint32_t)token->n;
    info->byte = -1;
    if (!t->byte_level || token->special) return status_ok();
    char *owned = t->normal_contents[token - t->added];
    char *to = owned != NULL ? owned + token->n : tokenizer_arena_add(t, token->content, token->n);
    tokenizer_set_bytes(t, info, token->content, token->n, to);
    return status_ok();
}

/* Moves tokens that are searched for in raw text before those for normalized text. Returns the
 * number of the former. */
static size_t raw_first(struct added_token *tokens, size_t n)
{
    size_t n_raw = 0;
    for (size_t i = 0; i < n; i++) {
        if (tokens[i].normalized) continue;
        const struct added_token swap = tokens[n_raw];
        tokens[n_raw++] = tokens[i];
        tokens[i] = swap;
    }
    return n_raw;
}

static struct status set_init(struct added_set *s, struct added_token *tokens, size_t n,
                              const char *what)
{
    const size_t twice = added_set_init(s, tokens, n);
    if (twice == n) return status_ok();
    return status_make(STATUS_INPUT, "%s: two added tokens are '%.*s'", what,
                       tokens[twice].n < 40 ? (int)tokens[twice].n : 40, tokens[twice].content);
}

struct status tokenizer_load_added(struct tokenizer *t, const struct js_node *list,
                                   const char *what)
{
    const size_t n = js_type(list) == JS_ARRAY ? js_count(list) : 0;
    int64_t next_id = (int64_t)t->n_vocab;
    for (size_t i = 0; i < n; i++) {
        struct added_token *token = &t->added[t->n_added];
        size_t n_content;
        js_string(js_get(js_at(list, i), "content"), &n_content);
        if (n_content == 0) continue; /* Hugging Face's library skips these too */
        TRY(status_wrap(read_added(t, js_at(list, i), token, &next_id), "%s", what));
        t->n_added++;
        TRY(status_wrap(finish_added(t, token), "%s", what));
    }
    const size_t n_raw = raw_first(t->added, t->n_added);
    TRY(set_init(&t->raw_set, t->added, n_raw, what));
    return set_init(&t->normalized_set, t->added + n_raw, t->n_added - n_raw, what);
}
