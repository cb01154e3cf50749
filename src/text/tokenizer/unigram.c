/* Viterbi over a trie in a hash table. As in Hugging Face's library, scores are added left to right
 * in double precision, and of paths with equal scores the one found first stays. */
#include "text/tokenizer/unigram.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <assert.h>
#include <string.h>

enum { PIECE_MAX = 0x40000000 };

static const double UNK_PENALTY = 10.0;

struct status unigram_init(struct unigram *u, size_t n_tokens, size_t n_bytes)
{
    memset(u, 0, sizeof *u);
    memset(u->byte_id, 0xFF, sizeof u->byte_id);
    u->unk_id = -1;
    u->n_tokens = n_tokens;
    u->n_nodes_max = n_bytes + 1;
    u->n_nodes = 1;
    size_t n_slots = 16;
    while (n_slots / 2 < n_bytes && n_slots <= SIZE_MAX / 4) n_slots *= 2;
    u->edge_mask = n_slots - 1;
    TRY(mem_alloc(&u->edges, n_slots, sizeof u->edges[0], "unigram vocabulary"));
    TRY(mem_alloc(&u->id_of, u->n_nodes_max, sizeof u->id_of[0], "unigram vocabulary"));
    memset(u->id_of, 0xFF, u->n_nodes_max * sizeof u->id_of[0]);
    return mem_alloc(&u->scores, n_tokens, sizeof u->scores[0], "unigram vocabulary");
}

void unigram_fini(struct unigram *u)
{
    mem_free(&u->edges);
    mem_free(&u->id_of);
    mem_free(&u->scores);
    mem_free(&u->ends);
}

/* Returns the edge for a byte out of a node, or the empty slot where it belongs. */
static struct unigram_edge *find_edge(const struct unigram *u, uint32_t node, unsigned char byte)
{
    const uint64_t key = ((uint64_t)node << 8 | byte) + 1;
    uint64_t h = key * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
    for (size_t i = h & u->edge_mask;; i = (i + 1) & u->edge_mask) {
        struct unigram_edge *e = &u->edges[i];
        if (e->key == key || e->key == 0) return e;
    }
}

bool unigram_add(struct unigram *u, const char *bytes, size_t n, int32_t id, double score)
{
    assert(id >= 0 && (size_t)id < u->n_tokens);
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        struct unigram_edge *e = find_edge(u, node, (unsigned char)bytes[i]);
        if (e->key == 0) {
            assert(u->n_nodes < u->n_nodes_max);
            e->key = ((uint64_t)node << 8 | (unsigned char)bytes[i]) + 1;
            e->node = (uint32_t)u->n_nodes++;
        }
        node = e->node;
    }
    if (id == 0 || score < u->score_min) u->score_min = score;
    u->scores[id] = score;
    if (node == 0) return true; /* no text spells the empty token */
    if (u->id_of[node] >= 0) return false;
    u->id_of[node] = id;
    return true;
}

/* Returns the id of the token with these bytes, or -1. */
static int32_t find_token(const struct unigram *u, const char *bytes, size_t n)
{
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        const struct unigram_edge *e = find_edge(u, node, (unsigned char)bytes[i]);
        if (e->key == 0) return -1;
        node = e->node;
    }
    return u->id_of[node];
}

static struct status unigram_reserve(struct unigram *u, size_t n)
{
    if (n > PIECE_MAX) {
        return status_make(STATUS_REQUEST, "a piece of %zu bytes, expected at most %d", n,
                           (int)PIECE_MAX);
    }
    if (n <= u->n_ends_max) return status_ok();
    size_t want = u->n_ends_max < 64 ? 64 : u->n_ends_max;
    while (want < n) want *= 2;
    mem_free(&u->ends);
    u->n_ends_max = 0;
    TRY(mem_alloc(&u->ends, want, sizeof u->ends[0], "paths through a piece"));
    u->n_ends_max = want;
    return status_ok();
}

static bool improve(struct unigram_end *end, size_t from, int32_t id, double score)
{
    if (end->from >= 0 && !(score > end->score)) return false;
    *end = (struct unigram_end){.score = score, .from = (int32_t)from, .id = id};
    return true;
}

/* Extends the best path to `at` by every token that starts there. If no token is exactly the next
 * character (n_char bytes), extends it by the unknown token too. */
static struct status unigram_extend(struct unigram *u, const char *piece, size_t n, size_t at,
                                    size_t n_char)
{
    const double so_far = u->ends[at].score;
    bool has_char = false;
    uint32_t node = 0;
    for (size_t i = at; i < n; i++) {
        const struct unigram_edge *e = find_edge(u, node, (unsigned char)piece[i]);
        if (e->key == 0) break;
        node = e->node;
        const int32_t id = u->id_of[node];
        if (id < 0) continue;
        improve(&u->ends[i + 1], at, id, u->scores[id] + so_far);
        if (i + 1 - at == n_char) has_char = true;
    }
    if (has_char) return status_ok();
    const double score = u->score_min - UNK_PENALTY + so_far;
    if (improve(&u->ends[at + n_char], at, u->unk_id, score) && u->unk_id < 0) {
        return status_make(STATUS_REQUEST,
                           "the vocabulary lacks the character '%.*s' and has no unk_id",
                           (int)n_char, piece + at);
    }
    return status_ok();
}

/* Appends the ids of a run of unknown characters: the token that spells the run, or the tokens of
 * its bytes, or the unknown token. */
static struct status put_unknown(const struct unigram *u, const char *part, size_t n,
                                 struct token_list *out)
{
    const int32_t id = find_token(u, part, n);
    bool bytes = id < 0 && u->byte_fallback;
    for (size_t i = 0; i < n && bytes; i++) bytes = u->byte_id[(unsigned char)part[i]] >= 0;
    TRY(token_list_reserve(out, bytes ? n : 1));
    if (!bytes) out->ids[out->n++] = id < 0 ? u->unk_id : id;
    for (size_t i = 0; i < n && bytes; i++) {
        out->ids[out->n++] = u->byte_id[(unsigned char)part[i]];
    }
    return status_ok();
}

/* Reverses the best path: ends[i].from becomes the end of the token that starts at i. */
static void turn_path(struct unigram *u, size_t n)
{
    int32_t behind = -1;
    for (int32_t at = (int32_t)n; at > 0;) {
        const int32_t from = u->ends[at].from;
        u->ends[at].from = behind;
        behind = at;
        at = from;
    }
    u->ends[0].from = behind;
}

/* Appends the tokens of the reversed path; joins neighbouring unknown characters into one run. */
static struct status put_path(struct unigram *u, const char *piece, size_t n,
                              struct token_list *out)
{
    size_t unknown_from = 0, start = 0;
    while (start < n) {
        const size_t end = (size_t)u->ends[start].from;
        const int32_t id = u->ends[end].id;
        if (id != u->unk_id) {
            if (start > unknown_from) {
                TRY(put_unknown(u, piece + unknown_from, start - unknown_from, out));
            }
            TRY(token_list_reserve(out, 1));
            out->ids[out->n++] = id;
            unknown_from = end;
        }
        start = end;
    }
    if (n == unknown_from) return status_ok();
    return put_unknown(u, piece + unknown_from, n - unknown_from, out);
}

struct status unigram_encode(struct unigram *u, const char *piece, size_t n, struct token_list *out)
{
    TRY(unigram_reserve(u, n + 1));
    for (size_t i = 0; i <= n; i++) u->ends[i] = (struct unigram_end){.from = -1};
    for (size_t at = 0, n_char; at < n; at += n_char) {
        utf8_decode(piece + at, n - at, &n_char);
        TRY(unigram_extend(u, piece, n, at, n_char));
    }
    turn_path(u, n);
    return put_path(u, piece, n, out);
}
