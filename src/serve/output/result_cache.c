/* A hash table of results, and the requests that wait for one. */
#include "serve/output/result_cache.h"

#include "base/mem.h"
#include "serve/request/request_answer.h"
#include "serve/request/request_list.h"

#include <string.h>
#include <xxhash.h>

/* ENTRY_BYTES: memory of an entry without its tokens, including the allocator's overhead. */
enum { MAX_BYTES = 64 << 20, BUCKETS_FIRST = 256, ENTRY_BYTES = 512 };

/* Everything that determines a request's tokens, except the prompt and the rules that end the
 * answer. Must have no padding, because it is hashed and compared as bytes. */
struct sampling {
    float temperature, top_p, min_p;
    int32_t top_k;
    uint32_t key[2], choice, adapter;
    struct plan_penalties penalties;
    int32_t min_tokens; /* before this many tokens, end tokens and stop_ids are forbidden */
    uint64_t stop_ids, biases, guide, words; /* hashes; 0: the request has none */
    uint64_t keeps_ends;                     /* ignore_eos, if there is a grammar constraint */
};

/* If tokens is set, a result is known. If leader is set, a request that computes the result runs.
 * If both are set, the leader computes a longer result. */
struct result_entry {
    uint64_t hash;
    struct sampling sampling;
    size_t n_prompt, n_tokens;
    int32_t *tokens;                      /* [n_tokens], prompt and answer; owned */
    const struct request *leader;         /* the running request; its prompt is the entry's;
                                             NULL: none runs */
    struct request_list waiting;          /* requests that wait for the leader's result, in order
                                             of asking */
    struct result_entry *next;            /* the next entry in its bucket */
    struct result_entry *younger, *older; /* neighbours in the order of last use, while no leader
                                             runs */
};

struct result_cache {
    struct result_entry **buckets; /* [n_buckets], a power of two */
    size_t n_buckets, n_entries;
    size_t max_bytes, bytes;
    struct result_entry *oldest, *youngest;
    struct request_list released;
};

struct status result_cache_create(size_t max_bytes, struct result_cache **out)
{
    *out = NULL;
    struct result_cache *c = NULL;
    TRY(mem_alloc(&c, 1, sizeof *c, "result cache"));
    c->max_bytes = max_bytes > 0 ? max_bytes : MAX_BYTES;
    c->n_buckets = BUCKETS_FIRST;
    const struct status st =
        mem_alloc(&c->buckets, c->n_buckets, sizeof(struct result_entry *), "result cache");
    if (status_failed(&st)) {
        mem_free(&c);
        return st;
    }
    *out = c;
    return st;
}

void result_cache_destroy(struct result_cache **cache)
{
    struct result_cache *c = *cache;
    if (c == NULL) return;
    for (size_t i = 0; i < c->n_buckets; i++) {
        struct result_entry *e = c->buckets[i];
        while (e != NULL) {
            struct result_entry *next = e->next;
            request_list_clear(&e->waiting);
            mem_free(&e->tokens);
            mem_free(&e);
            e = next;
        }
    }
    request_list_clear(&c->released);
    mem_free(&c->buckets);
    mem_free(cache);
}

static size_t entry_bytes(const struct result_entry *e)
{
    return ENTRY_BYTES + e->n_tokens * sizeof *e->tokens;
}

/* Makes an entry without a leader the youngest in the list by last use, and counts its memory. */
static void link_youngest(struct result_cache *c, struct result_entry *e)
{
    e->older = c->youngest;
    e->younger = NULL;
    *(c->youngest != NULL ? &c->youngest->younger : &c->oldest) = e;
    c->youngest = e;
    c->bytes += entry_bytes(e);
}

static void unlink_use(struct result_cache *c, struct result_entry *e)
{
    *(e->older != NULL ? &e->older->younger : &c->oldest) = e->younger;
    *(e->younger != NULL ? &e->younger->older : &c->youngest) = e->older;
    c->bytes -= entry_bytes(e);
}

static struct result_entry **result_cache_bucket_of(const struct result_cache *c, uint64_t hash)
{
    return &c->buckets[hash & (c->n_buckets - 1)];
}

/* Removes an entry without a leader from the table and frees it. */
static void result_cache_drop(struct result_cache *c, struct result_entry *e)
{
    struct result_entry **link = result_cache_bucket_of(c, e->hash);
    while (*link != e) link = &(*link)->next;
    *link = e->next;
    c->n_entries--;
    mem_free(&e->tokens);
    mem_free(&e);
}

static struct status result_cache_grow(struct result_cache *c)
{
    struct result_entry **old = c->buckets;
    const size_t n_old = c->n_buckets;
    struct result_entry **grown = NULL;
    TRY(mem_alloc(&grown, 2 * n_old, sizeof(struct result_entry *), "result cache"));
    c->buckets = grown;
    c->n_buckets = 2 * n_old;
    for (size_t i = 0; i < n_old; i++) {
        struct result_entry *e = old[i];
        while (e != NULL) {
            struct result_entry *next = e->next, **link = result_cache_bucket_of(c, e->hash);
            e->next = *link;
            *link = e;
            e = next;
        }
    }
    mem_free(&old);
    return status_ok();
}

static struct sampling sampling_of(const struct request *r)
{
    struct sampling s;
    memset(&s, 0, sizeof s);
    s.penalties = r->ask->penalties;
    s.adapter = r->ask->adapter;
    s.min_tokens = r->ask->min_tokens;
    if (r->ask->guide != NULL) {
        s.guide = guide_hash(r->ask->guide);
        s.keeps_ends = r->ask->ignore_eos;
    }
    if ((r->ask->min_tokens > 0 || r->ask->guide != NULL) && r->ask->n_stop_ids > 0) {
        s.stop_ids = XXH3_64bits(r->ask->stop_ids, r->ask->n_stop_ids * sizeof *r->ask->stop_ids);
    }
    s.words = request_words_hash(r);
    if (r->ask->n_biases > 0)
        s.biases = XXH3_64bits(r->ask->biases, r->ask->n_biases * sizeof *r->ask->biases);
    if (r->ask->temperature == 0) return s; /* greedy: the values below do not matter */
    s.temperature = r->ask->temperature;
    s.top_p = r->ask->top_p;
    s.min_p = r->ask->min_p;
    s.top_k = r->ask->top_k;
    s.choice = r->choice;
    s.key[0] = r->ask->key[0];
    s.key[1] = r->ask->key[1];
    return s;
}

static struct result_entry *result_cache_find(const struct result_cache *c, const struct request *r,
                                              uint64_t hash, const struct sampling *s)
{
    struct result_entry *e = *result_cache_bucket_of(c, hash);
    for (; e != NULL; e = e->next) {
        if (e->hash != hash || e->n_prompt != r->n_prompt) continue;
        const int32_t *prompt = e->tokens != NULL ? e->tokens : e->leader->tokens;
        if (memcmp(&e->sampling, s, sizeof *s) != 0) continue;
        if (memcmp(prompt, r->tokens, r->n_prompt * sizeof *prompt) == 0) break;
    }
    return e;
}

static struct status result_cache_add(struct result_cache *c, struct request *r, uint64_t hash,
                                      const struct sampling *s)
{
    if (c->n_entries >= c->n_buckets) TRY(result_cache_grow(c));
    struct result_entry *e = NULL;
    TRY(mem_alloc(&e, 1, sizeof *e, "result cache"));
    struct result_entry **link = result_cache_bucket_of(c, hash);
    *e = (struct result_entry){
        .hash = hash, .sampling = *s, .n_prompt = r->n_prompt, .leader = r, .next = *link};
    *link = e;
    c->n_entries++;
    r->shared = e;
    return status_ok();
}

/* Gives r the known tokens that it does not have yet, until r is finished. */
static struct status replay(const struct result_entry *e, const struct request_rules *rules,
                            struct request *r)
{
    while (r->n_tokens < e->n_tokens && r->finish == REQUEST_UNFINISHED) {
        TRY(request_take_token(r, rules, e->tokens[r->n_tokens]));
        r->n_resumed++;
    }
    return status_ok();
}

struct status result_cache_ask(struct result_cache *c, const struct request_rules *rules,
                               struct request *r, enum result_answer *answer)
{
    *answer = RESULT_RUN;
    if (!request_is_replayable(r)) return status_ok();
    if (r->ask->temperature > 0 && !r->ask->is_seeded) return status_ok();
    const struct sampling s = sampling_of(r);
    const uint64_t hash =
        XXH3_64bits_withSeed(r->tokens, r->n_prompt * sizeof *r->tokens, XXH3_64bits(&s, sizeof s));
    struct result_entry *e = result_cache_find(c, r, hash, &s);
    if (e == NULL) return result_cache_add(c, r, hash, &s);
    TRY(replay(e, rules, r));
    if (e->leader == NULL) unlink_use(c, e);
    if (r->finish != REQUEST_UNFINISHED) {
        *answer = RESULT_DONE;
        if (e->leader == NULL) link_youngest(c, e);
    } else if (e->leader == NULL) {
        e->leader = r;
        r->shared = e;
    } else if (e->leader->ask->priority <= r->ask->priority) {
        request_list_put(&e->waiting, r, NULL);
        *answer = RESULT_WAITS;
    }
    return status_ok();
}

/* Stores r's tokens in the entry, unless r is an error row or has no more tokens than the entry. */
static struct status result_cache_keep(struct result_entry *e, const struct request *r)
{
    if (r->error.code != NULL || r->n_tokens <= e->n_tokens) return status_ok();
    int32_t *tokens = NULL;
    TRY(mem_alloc(&tokens, r->n_tokens, sizeof *tokens, "result cache"));
    memcpy(tokens, r->tokens, r->n_tokens * sizeof *tokens);
    mem_free(&e->tokens);
    e->tokens = tokens;
    e->n_tokens = r->n_tokens;
    return status_ok();
}

struct status result_cache_end(struct result_cache *c, struct request *r)
{
    struct result_entry *e = r->shared;
    if (e == NULL) return status_ok();
    TRY(result_cache_keep(e, r));
    r->shared = NULL;
    e->leader = NULL;
    while (e->waiting.head != NULL) {
        struct request *w = e->waiting.head;
        request_list_take(&e->waiting, w);
        request_list_put(&c->released, w, NULL);
    }
    if (e->tokens == NULL) {
        result_cache_drop(c, e);
        return status_ok();
    }
    link_youngest(c, e);
    /* keeps the newest result, however large, because the released requests need it */
    while (c->bytes > c->max_bytes && c->oldest != c->youngest) {
        struct result_entry *oldest = c->oldest;
        unlink_use(c, oldest);
        result_cache_drop(c, oldest);
    }
    return status_ok();
}

struct request *result_cache_take(struct result_cache *c)
{
    struct request *r = c->released.head;
    if (r != NULL) request_list_take(&c->released, r);
    return r;
}
