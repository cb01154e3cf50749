/* Reads tokenizer.json's "decoder" into rules, and applies the rules for single tokens. */
#include "text/tokenizer/decoder.h"

#include "text/grammar/json_read.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>

enum { SEQUENCE_DEPTH_MAX = 8 };

static const char WHERE[] = "decoder";

static struct status decoder_refuse(const char *type, const char *why)
{
    return status_make(STATUS_INPUT, "%s: '%.40s' %s is not supported", WHERE, type, why);
}

static struct status decoder_load_metaspace(struct decoder *d, const struct js_node *node)
{
    struct json_metaspace m;
    TRY(json_metaspace_fields(node, WHERE, &m));
    d->kind = DECODER_METASPACE;
    memcpy(d->blank, m.blank, sizeof d->blank);
    d->n_blank = m.n_blank;
    d->keeps_first = m.prepend == JSON_PREPEND_NEVER;
    return status_ok();
}

static struct status decoder_load_strip(const struct js_node *node, struct decoder_strip *out)
{
    static const char *const KNOWN[] = {"type", "content", "start", "stop", NULL};
    int64_t start, stop;
    TRY(json_known_fields(node, WHERE, KNOWN));
    TRY(json_char_field(node, "content", WHERE, out->bytes, &out->n_bytes));
    if (!js_int(js_get(node, "start"), &start) || start < 0 || start > INT32_MAX ||
        !js_int(js_get(node, "stop"), &stop)) {
        return status_make(STATUS_INPUT, "%s: Strip's 'start' or 'stop' is no count", WHERE);
    }
    if (stop != 0) return decoder_refuse("Strip", "at the end of a text");
    out->n_max = (size_t)start;
    return status_ok();
}

static struct status add_step(struct decoder *d, const struct js_node *node, bool strip)
{
    if (d->n_steps == DECODER_STEPS_MAX) {
        return status_make(STATUS_INPUT, "%s: more than %d steps", WHERE, (int)DECODER_STEPS_MAX);
    }
    struct decoder_step *s = &d->steps[d->n_steps];
    TRY(strip ? decoder_load_strip(node, &s->strip) : replacer_load(&s->replacer, node, WHERE));
    d->n_steps++;
    return status_ok();
}

static struct status decoder_load_step(struct decoder *d, const struct js_node *node, int depth);

static struct status decoder_load_sequence(struct decoder *d, const struct js_node *node, int depth)
{
    static const char *const KNOWN[] = {"type", "decoders", NULL};
    const struct js_node *list = js_get(node, "decoders");
    TRY(json_known_fields(node, WHERE, KNOWN));
    if (js_type(list) != JS_ARRAY || depth >= SEQUENCE_DEPTH_MAX) {
        return status_make(STATUS_INPUT, "%s: a Sequence without a list, or nested too deeply",
                           WHERE);
    }
    if (js_count(list) == 1) return decoder_load_step(d, js_at(list, 0), depth + 1);
    for (size_t i = 0; i < js_count(list); i++) {
        TRY(decoder_load_step(d, js_at(list, i), depth + 1));
        if (d->kind != DECODER_CHAIN)
            return decoder_refuse("Sequence", "of ByteLevel or Metaspace");
    }
    return status_ok();
}

static struct status load_wordpiece(struct decoder *d, const struct js_node *node)
{
    static const char *const KNOWN[] = {"type", "prefix", "cleanup", NULL};
    const char *prefix;
    TRY(json_known_fields(node, WHERE, KNOWN));
    TRY(json_string_field(node, "prefix", WHERE, &prefix, &d->n_joint));
    TRY(json_bool_field(node, "cleanup", WHERE, true, &d->cleans));
    if (d->n_joint == 0 || d->n_joint > sizeof d->joint)
        return decoder_refuse("WordPiece", "with such a prefix");
    memcpy(d->joint, prefix, d->n_joint);
    d->front = (struct decoder_strip){.bytes = " ", .n_bytes = 1, .n_max = 1};
    return status_ok();
}

static struct status load_chained(struct decoder *d, const struct js_node *node, const char *type)
{
    static const char *const KNOWN[] = {"type", NULL};
    const bool strip = strcmp(type, "Strip") == 0;
    if (d->n_joint > 0) return decoder_refuse(type, "behind WordPiece");
    if (strip || strcmp(type, "Replace") == 0) {
        if (!d->byte_fallback && !d->fused) return add_step(d, node, strip);
        if (!strip || !d->fused) return decoder_refuse(type, "behind ByteFallback or Fuse");
        if (d->front.n_bytes > 0) return decoder_refuse(type, "twice behind Fuse");
        return decoder_load_strip(node, &d->front);
    }
    if (strcmp(type, "ByteFallback") == 0) {
        if (d->byte_fallback || d->fused)
            return decoder_refuse(type, "behind ByteFallback or Fuse");
        d->byte_fallback = true;
        return json_known_fields(node, WHERE, KNOWN);
    }
    if (strcmp(type, "Fuse") == 0) {
        d->fused = true;
        return json_known_fields(node, WHERE, KNOWN);
    }
    return status_make(STATUS_INPUT,
                       "%s: '%.40s' is not supported; expected ByteLevel, Metaspace, WordPiece, "
                       "Replace, ByteFallback, Fuse, Strip or Sequence",
                       WHERE, type);
}

static struct status decoder_load_step(struct decoder *d, const struct js_node *node, int depth)
{
    const char *type;
    TRY(json_type_field(node, WHERE, &type));
    if (strcmp(type, "Sequence") == 0) return decoder_load_sequence(d, node, depth);
    const bool byte_level = strcmp(type, "ByteLevel") == 0;
    const bool wordpiece = strcmp(type, "WordPiece") == 0;
    if (!byte_level && !wordpiece && strcmp(type, "Metaspace") != 0)
        return load_chained(d, node, type);
    if (d->n_steps > 0 || d->byte_fallback || d->fused || d->n_joint > 0)
        return decoder_refuse(type, "behind others");
    if (wordpiece) return load_wordpiece(d, node);
    if (!byte_level) return decoder_load_metaspace(d, node);
    d->kind = DECODER_BYTE_LEVEL;
    return status_ok();
}

struct status decoder_init(struct decoder *d, const struct js_node *node, const char *what)
{
    memset(d, 0, sizeof *d);
    d->kind = DECODER_CHAIN;
    if (js_type(node) == JS_NULL) {
        return status_make(STATUS_INPUT, "%s: no decoder, which would put a blank between tokens",
                           what);
    }
    struct status st = decoder_load_step(d, node, 0);
    if (status_failed(&st)) decoder_fini(d);
    return status_wrap(st, "%s", what);
}

void decoder_fini(struct decoder *d)
{
    for (size_t i = 0; i < DECODER_STEPS_MAX; i++) replacer_fini(&d->steps[i].replacer);
    memset(d, 0, sizeof *d);
}

size_t decoder_strip_front(const struct decoder_strip *s, const char *text, size_t n, size_t *taken)
{
    size_t at = 0;
    while (s->n_bytes > 0 && *taken < s->n_max && n - at >= s->n_bytes &&
           memcmp(text + at, s->bytes, s->n_bytes) == 0) {
        at += s->n_bytes;
        ++*taken;
    }
    return at;
}

static struct status replace_all(struct replacer *r, const char *text, size_t n, struct strbuf *out)
{
    struct pattern_walk walk;
    size_t kept_from = 0, start = 0, end = 0;
    pattern_walk_init(&walk, text, n);
    for (;;) {
        bool found;
        TRY(replacer_next(r, &walk, &start, &end, &found));
        if (!found) break;
        strbuf_add(out, text + kept_from, start - kept_from);
        strbuf_add(out, r->content, r->n_content);
        kept_from = end;
    }
    strbuf_add(out, text + kept_from, n - kept_from);
    return strbuf_status(out);
}

static int decoder_hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    const int lower = tolower((unsigned char)c);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* Returns the byte that a token like "<0xE9>" means, or -1. */
static int fallback_byte(const char *token, size_t n)
{
    if (n != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>') return -1;
    /* Hugging Face's library accepts a '+' too */
    const int high = token[3] == '+' ? 0 : decoder_hex_digit(token[3]);
    const int low = decoder_hex_digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Applies one step to `in` and appends the result to out. */
static struct status decoder_run_step(struct decoder_step *s, const char *in, size_t n,
                                      struct strbuf *out)
{
    if (s->strip.n_bytes == 0) return replace_all(&s->replacer, in, n, out);
    size_t taken = 0;
    const size_t from = decoder_strip_front(&s->strip, in, n, &taken);
    strbuf_add(out, in + from, n - from);
    return strbuf_status(out);
}

/* Appends `text`, in which each `from` is replaced by `to`. */
static void replace_text(const char *text, size_t n, const char *from, const char *to,
                         struct strbuf *out)
{
    const size_t length = strlen(from);
    for (size_t at = 0; at < n;) {
        const bool is_there = n - at >= length && memcmp(text + at, from, length) == 0;
        if (is_there)
            strbuf_puts(out, to);
        else
            strbuf_add(out, text + at, 1);
        at += is_there ? length : 1;
    }
}

/* Appends the text of a WordPiece token. As in Hugging Face's library, each token is cleaned up by
 * itself. */
static struct status put_wordpiece(const struct decoder *d, const char *token, size_t n,
                                   struct strbuf *out)
{
    static const char *const cleaned[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    const bool continues = n >= d->n_joint && memcmp(token, d->joint, d->n_joint) == 0;
    const size_t from = continues ? d->n_joint : 0;
    struct strbuf turn[2];
    for (int i = 0; i < 2; i++) strbuf_init(&turn[i]);
    struct strbuf *now = &turn[0], *next = &turn[1];
    if (!continues) strbuf_puts(now, " ");
    strbuf_add(now, token + from, n - from);
    for (size_t i = 0; d->cleans && i < sizeof cleaned / sizeof cleaned[0]; i++) {
        struct strbuf *const old = now;
        strbuf_clear(next);
        replace_text(now->data, now->n, cleaned[i][0], cleaned[i][1], next);
        now = next;
        next = old;
    }
    const bool failed = turn[0].failed || turn[1].failed;
    if (!failed) strbuf_add(out, now->data, now->n);
    for (int i = 0; i < 2; i++) strbuf_fini(&turn[i]);
    return failed ? status_make(STATUS_MEMORY, "the text of a token") : strbuf_status(out);
}

struct status decoder_token(struct decoder *d, const char *token, size_t n, struct strbuf *out,
                            int *byte)
{
    static const struct replacer NONE;
    struct replacer blank = NONE;
    if (d->kind == DECODER_METASPACE) { /* `blank` borrows its strings: nothing to free */
        char space[] = " ";
        blank = (struct replacer){
            .find = d->blank, .n_find = d->n_blank, .content = space, .n_content = 1};
        *byte = -1;
        return replace_all(&blank, token, n, out);
    }
    if (d->n_joint > 0) {
        *byte = -1;
        return put_wordpiece(d, token, n, out);
    }
    struct strbuf turn[2];
    struct status st = status_ok();
    for (int i = 0; i < 2; i++) strbuf_init(&turn[i]);
    for (size_t i = 0; i < d->n_steps && !status_failed(&st); i++) {
        struct strbuf *to = &turn[i % 2];
        strbuf_clear(to);
        st = decoder_run_step(&d->steps[i], token, n, to);
        token = to->data;
        n = to->n;
    }
    *byte = d->byte_fallback && !status_failed(&st) ? fallback_byte(token, n) : -1;
    if (!status_failed(&st)) strbuf_add(out, token, n);
    for (int i = 0; i < 2; i++) strbuf_fini(&turn[i]);
    return status_failed(&st) ? st : strbuf_status(out);
}
