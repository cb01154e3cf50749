/* Compares tokenizers with goldens, line by line. */
#include "unit/util_tokenizer.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tiktoken.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { FILE_MAX = 1 << 28, GOLDEN_BYTES = 8 };

/* Makes the tokenizer.json of a folder that has a tiktoken.model. */
static struct status tiktoken_json(const char *folder, struct strbuf *json)
{
    char path[1024], *ranks = NULL, *text = NULL;
    size_t n_ranks, n_text;
    struct js_doc *config = NULL;
    snprintf(path, sizeof path, "%s/tiktoken.model", folder);
    TRY(file_read(path, FILE_MAX, &ranks, &n_ranks));
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    struct status st;
    TRY_GOTO(st, file_read(path, FILE_MAX, &text, &n_text), done);
    TRY_GOTO(st, js_parse(text, n_text, path, &config), done);
    st = tokenizer_json_from_tiktoken(ranks, n_ranks, js_root(config), json);
done:
    js_destroy(&config);
    mem_free(&ranks);
    mem_free(&text);
    return st;
}

struct status util_tokenizer_open(const char *path, struct tokenizer **out)
{
    struct strbuf json;
    struct stat info;
    char *text = NULL;
    size_t n = 0;
    *out = NULL;
    if (stat(path, &info) != 0) return status_make(STATUS_INPUT, "%s is not there", path);
    strbuf_init(&json);
    struct status st;
    if (S_ISDIR(info.st_mode)) {
        st = tiktoken_json(path, &json);
    } else {
        st = file_read(path, FILE_MAX, &text, &n);
        if (!status_failed(&st)) strbuf_add(&json, text, n);
    }
    if (!status_failed(&st)) st = tokenizer_create(json.data, json.n, path, out);
    mem_free(&text);
    strbuf_fini(&json);
    return st;
}

unsigned util_line_flags(size_t line)
{
    static const unsigned TURNS[] = {TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL,
                                     TOKENIZER_PARSE_SPECIAL, 0};
    return TURNS[line % 3];
}

static uint32_t fnv(uint32_t h, const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 16777619u;
    return h;
}

static uint32_t hash_ids(const struct token_list *ids)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < ids->n; i++) {
        const uint32_t id = (uint32_t)ids->ids[i];
        const unsigned char bytes[4] = {(unsigned char)id, (unsigned char)(id >> 8),
                                        (unsigned char)(id >> 16), (unsigned char)(id >> 24)};
        h = fnv(h, bytes, 4);
    }
    return h;
}

static uint32_t read_u32(const char *p)
{
    const unsigned char *b = (const unsigned char *)p;
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

bool util_next_line(const char *lines, size_t n, size_t *at, struct strbuf *text, struct status *st)
{
    if (*at >= n) return false;
    const char *end = memchr(lines + *at, '\n', n - *at);
    const size_t n_line = end != NULL ? (size_t)(end - lines) - *at : n - *at;
    struct js_doc *doc;
    *st = js_parse(lines + *at, n_line, "golden line", &doc);
    if (status_failed(st)) return false;
    *at += n_line + 1;
    size_t n_text;
    const char *string = js_string(js_root(doc), &n_text);
    strbuf_clear(text);
    if (string != NULL) {
        strbuf_add(text, string, n_text);
    } else {
        *st = status_make(STATUS_INPUT, "golden line: no string");
    }
    js_destroy(&doc);
    return !status_failed(st);
}

struct status util_decode(const struct tokenizer *t, const struct token_list *ids,
                          bool skip_special, struct strbuf *out, bool *split)
{
    struct detokenizer d;
    struct status st = status_ok();
    detokenizer_init(&d, skip_special);
    *split = false;
    for (size_t i = 0; i <= ids->n && !status_failed(&st); i++) {
        const size_t from = out->n;
        size_t bad_at;
        st = i < ids->n ? detokenizer_feed(&d, t, ids->ids[i], out) : detokenizer_flush(&d, t, out);
        if (out->n > from && !utf8_valid(out->data + from, out->n - from, &bad_at)) *split = true;
    }
    detokenizer_fini(&d);
    return st;
}

struct check {
    struct tokenizer *t;
    struct token_list ids;
    struct strbuf text, decoded;
    size_t n_shown, n_lines, n_wrong;
};

static struct status check_line(struct check *c, const char *golden)
{
    bool split;
    c->ids.n = 0;
    strbuf_clear(&c->decoded);
    TRY(tokenizer_encode(c->t, c->text.data, c->text.n, util_line_flags(c->n_lines), &c->ids));
    TRY(util_decode(c->t, &c->ids, true, &c->decoded, &split));
    const uint32_t decoded = fnv(2166136261u, (const unsigned char *)c->decoded.data, c->decoded.n);
    const bool same_ids = hash_ids(&c->ids) == read_u32(golden);
    const bool same_text = decoded == read_u32(golden + 4);
    if (same_ids && same_text && !split) return status_ok();
    if (c->n_wrong++ < c->n_shown) {
        printf("line %zu: %s\n", c->n_lines + 1,
               !same_ids    ? "other ids"
               : !same_text ? "decodes to other text"
                            : "split UTF-8");
    }
    return status_ok();
}

struct status util_check_golden(struct tokenizer *t, const char *lines_path,
                                const char *golden_path, size_t n_shown, size_t *n_lines,
                                size_t *n_wrong)
{
    char *lines = NULL, *golden = NULL;
    size_t n, n_golden, at = 0;
    struct check c = {.t = t, .n_shown = n_shown};
    struct status st;
    TRY(file_read(lines_path, FILE_MAX, &lines, &n));
    TRY_GOTO(st, file_read(golden_path, FILE_MAX, &golden, &n_golden), done);
    while (util_next_line(lines, n, &at, &c.text, &st)) {
        if ((c.n_lines + 1) * GOLDEN_BYTES > n_golden) break;
        TRY_GOTO(st, check_line(&c, golden + c.n_lines * GOLDEN_BYTES), done);
        c.n_lines++;
    }
    if (!status_failed(&st) && c.n_lines * GOLDEN_BYTES != n_golden) {
        st = status_make(STATUS_INPUT, "%s: not for whole lines of %s", golden_path, lines_path);
    }
done:
    *n_lines = c.n_lines;
    *n_wrong = c.n_wrong;
    mem_free(&lines);
    mem_free(&golden);
    strbuf_fini(&c.text);
    strbuf_fini(&c.decoded);
    token_list_fini(&c.ids);
    return st;
}
