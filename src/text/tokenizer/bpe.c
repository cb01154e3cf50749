/* Merges by a heap of (rank, position) over a linked list of symbols. */
#include "text/tokenizer/bpe.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <assert.h>
#include <string.h>

enum { PIECE_MAX = 0x40000000 };

static const uint64_t NO_PAIR = UINT64_MAX;

struct status bpe_init(struct bpe *b)
{
    memset(b, 0, sizeof *b);
    memset(b->byte_id, 0xFF, sizeof b->byte_id);
    memset(b->ascii_id, 0xFF, sizeof b->ascii_id);
    b->unk_id = -1;
    return mem_alloc(&b->cache, BPE_CACHE_SLOTS, sizeof b->cache[0], "cache of pieces");
}

struct status bpe_merges_init(struct bpe *b, size_t n_merges, bool by_result)
{
    assert(b->merges == NULL);
    b->merge_capacity = n_merges;
    b->by_result = by_result;
    size_t n_slots = 16;
    while (n_slots / 2 < n_merges && n_slots <= SIZE_MAX / 4) n_slots *= 2;
    TRY(mem_alloc(&b->merges, n_slots, sizeof b->merges[0], "merges"));
    for (size_t i = 0; i < n_slots; i++) b->merges[i].pair = NO_PAIR;
    b->merge_mask = n_slots - 1;
    return mem_alloc(&b->merged, by_result ? 0 : n_merges, sizeof b->merged[0], "merges");
}

void bpe_fini(struct bpe *b)
{
    mem_free(&b->merges);
    mem_free(&b->merged);
    mem_free(&b->symbols);
    mem_free(&b->heap);
    mem_free(&b->cache);
    str_map_fini(&b->chars);
}

static uint64_t bpe_pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Returns the hash table's slot of a pair, or the empty slot where the pair would go. */
static struct bpe_merge *find_pair(const struct bpe *b, uint64_t pair)
{
    uint64_t h = pair * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
    for (size_t i = h & b->merge_mask;; i = (i + 1) & b->merge_mask) {
        struct bpe_merge *m = &b->merges[i];
        if (m->pair == pair || m->pair == NO_PAIR) return m;
    }
}

void bpe_add_merge(struct bpe *b, int32_t left, int32_t right, int32_t result)
{
    assert(b->n_merges < b->merge_capacity);
    struct bpe_merge *m = find_pair(b, bpe_pair_of(left, right));
    m->pair = bpe_pair_of(left, right);
    m->rank = b->by_result ? (uint32_t)result : (uint32_t)b->n_merges;
    if (!b->by_result) b->merged[b->n_merges] = result;
    b->n_merges++;
}

/* Returns the id that the merge of this rank makes. */
static int32_t merge_result(const struct bpe *b, uint32_t rank)
{
    return b->by_result ? (int32_t)rank : b->merged[rank];
}

static struct status bpe_reserve(struct bpe *b, size_t n)
{
    if (n <= b->n_symbols_max) return status_ok();
    if (n > PIECE_MAX) {
        return status_make(STATUS_REQUEST, "a piece of %zu bytes, expected at most %d", n,
                           (int)PIECE_MAX);
    }
    size_t want = b->n_symbols_max < 64 ? 64 : b->n_symbols_max;
    while (want < n) want *= 2;
    mem_free(&b->symbols);
    mem_free(&b->heap);
    b->n_symbols_max = 0;
    TRY(mem_alloc(&b->symbols, want, sizeof b->symbols[0], "symbols of a piece"));
    TRY(mem_alloc(&b->heap, want, 3 * sizeof b->heap[0], "merges of a piece"));
    b->n_symbols_max = want;
    return status_ok();
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t key)
{
    size_t i = (*n)++;
    while (i > 0 && heap[(i - 1) / 2] > key) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = key;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    const uint64_t top = heap[0];
    const uint64_t key = heap[--*n];
    size_t i = 0;
    for (size_t child = 1; child < *n; child = 2 * i + 1) {
        if (child + 1 < *n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= key) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = key;
    return top;
}

/* Pushes the pair that begins at `at` onto the heap if it can merge. */
static void bpe_push_pair(const struct bpe *b, size_t *n_heap, int32_t at)
{
    const int32_t next = b->symbols[at].next;
    if (next < 0) return;
    const struct bpe_merge *m = find_pair(b, bpe_pair_of(b->symbols[at].id, b->symbols[next].id));
    if (m->pair == NO_PAIR) return;
    heap_push(b->heap, n_heap, (uint64_t)m->rank << 32 | (uint32_t)at);
}

/* Fills b->symbols with the ids of the bytes; returns the number of symbols. */
static size_t byte_symbols(const struct bpe *b, const char *piece, size_t n)
{
    size_t n_symbols = 0;
    bool in_unk = false;
    for (size_t i = 0; i < n; i++) {
        const int32_t id = b->byte_id[(unsigned char)piece[i]];
        if (id < 0 && (b->unk_id < 0 || (in_unk && b->fuse_unk))) continue;
        in_unk = id < 0;
        b->symbols[n_symbols++].id = id < 0 ? b->unk_id : id;
    }
    return n_symbols;
}

/* Writes the ids of a character's bytes to `to`. Returns false without byte_fallback, or if a byte
 * has no id. */
static bool fall_back(const struct bpe *b, const char *character, size_t n, struct bpe_symbol *to)
{
    if (!b->byte_fallback) return false;
    for (size_t i = 0; i < n; i++) {
        const int32_t id = b->byte_id[(unsigned char)character[i]];
        if (id < 0) return false;
        to[i].id = id;
    }
    return true;
}

/* Fills b->symbols with the ids of the characters; returns the number of symbols. As in Hugging
 * Face's library, unk_id is not written at once for an unknown character, but just before the next
 * character that does not fall back to bytes (with fuse_unk: before the next known character), or
 * at the end. So the bytes of characters between them come before unk_id. */
static size_t char_symbols(const struct bpe *b, const char *piece, size_t n)
{
    size_t n_symbols = 0, step;
    bool unk_waits = false;
    for (size_t i = 0; i < n; i += step) {
        const uint32_t c = utf8_decode(piece + i, n - i, &step);
        const int32_t id = c < 0x80 ? b->ascii_id[c] : str_map_get(&b->chars, piece + i, step);
        if (id < 0 && fall_back(b, piece + i, step, b->symbols + n_symbols)) {
            n_symbols += step;
            continue;
        }
        if (unk_waits && (id >= 0 || !b->fuse_unk)) b->symbols[n_symbols++].id = b->unk_id;
        if (id >= 0) b->symbols[n_symbols++].id = id;
        unk_waits = id < 0 && b->unk_id >= 0;
    }
    if (unk_waits) b->symbols[n_symbols++].id = b->unk_id;
    return n_symbols;
}

static size_t first_symbols(const struct bpe *b, const char *piece, size_t n)
{
    const size_t n_symbols = b->by_char ? char_symbols(b, piece, n) : byte_symbols(b, piece, n);
    for (size_t i = 0; i < n_symbols; i++) {
        struct bpe_symbol *s = &b->symbols[i];
        s->prev = (int32_t)i - 1;
        s->next = i + 1 < n_symbols ? (int32_t)i + 1 : -1;
        s->alive = 1;
    }
    return n_symbols;
}

/* Merges pairs in the order of the heap. The pair of an entry may have changed since it was pushed.
 * As in Hugging Face's library, the entry still counts if the pair now at its position makes the
 * same token, even by a merge of another rank. */
static void merge_all(const struct bpe *b, size_t n_symbols)
{
    size_t n_heap = 0;
    for (size_t i = 0; i < n_symbols; i++) bpe_push_pair(b, &n_heap, (int32_t)i);
    while (n_heap > 0) {
        const uint64_t top = heap_pop(b->heap, &n_heap);
        const int32_t at = (int32_t)(uint32_t)top;
        const int32_t result = merge_result(b, (uint32_t)(top >> 32));
        struct bpe_symbol *left = &b->symbols[at];
        if (!left->alive || left->next < 0) continue;
        struct bpe_symbol *right = &b->symbols[left->next];
        const struct bpe_merge *m = find_pair(b, bpe_pair_of(left->id, right->id));
        if (m->pair == NO_PAIR || merge_result(b, m->rank) != result) continue;
        left->id = result;
        left->next = right->next;
        right->alive = 0;
        if (left->next >= 0) b->symbols[left->next].prev = at;
        if (left->prev >= 0) bpe_push_pair(b, &n_heap, left->prev);
        bpe_push_pair(b, &n_heap, at);
    }
}

static struct status encode_uncached(struct bpe *b, const char *piece, size_t n,
                                     struct token_list *out)
{
    TRY(bpe_reserve(b, n));
    TRY(token_list_reserve(out, n));
    const size_t n_symbols = first_symbols(b, piece, n);
    merge_all(b, n_symbols);
    for (size_t i = 0; i < n_symbols; i++) {
        if (b->symbols[i].alive) out->ids[out->n++] = b->symbols[i].id;
    }
    return status_ok();
}

struct status bpe_encode(struct bpe *b, const char *piece, size_t n, struct token_list *out)
{
    if (n == 0) return status_ok();
    if (n > BPE_CACHE_BYTES) return encode_uncached(b, piece, n, out);
    struct bpe_cached *slot = &b->cache[str_hash(piece, n) & (BPE_CACHE_SLOTS - 1)];
    if (slot->n_bytes == n && memcmp(slot->bytes, piece, n) == 0) {
        TRY(token_list_reserve(out, slot->n_ids));
        if (slot->n_ids > 0) {
            memcpy(out->ids + out->n, slot->ids, slot->n_ids * sizeof slot->ids[0]);
        }
        out->n += slot->n_ids;
        return status_ok();
    }
    const size_t n_before = out->n;
    TRY(encode_uncached(b, piece, n, out));
    const size_t n_ids = out->n - n_before;
    if (n_ids > BPE_CACHE_IDS) return status_ok();
    slot->n_bytes = (uint8_t)n;
    slot->n_ids = (uint8_t)n_ids;
    memcpy(slot->bytes, piece, n);
    if (n_ids > 0) memcpy(slot->ids, out->ids + n_before, n_ids * sizeof slot->ids[0]);
    return status_ok();
}
