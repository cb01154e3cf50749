/* Mutations: of bits, bytes, integers and ranges; of the format's words and the bytes beside them;
 * of the tokens of texts; and splices of two seeds. */
#include "fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t fuzz_next(struct fuzz_random *r)
{
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

size_t fuzz_below(struct fuzz_random *r, size_t n)
{
    return (size_t)(fuzz_next(r) % n);
}

struct mutant {
    char *bytes; /* [FUZZ_BYTES_MAX] */
    size_t n;
    struct fuzz_random random;
    const struct fuzz_target *target;
    const struct fuzz_seeds *seeds;
    size_t n_words;
};

static const uint64_t integers[] = {0,
                                    1,
                                    2,
                                    3,
                                    0x7f,
                                    0x80,
                                    0xff,
                                    0x100,
                                    0x7fff,
                                    0x8000,
                                    0xffff,
                                    0x10000,
                                    0x7fffffff,
                                    0x80000000,
                                    0xffffffff,
                                    0x100000000,
                                    1u << 20,
                                    1u << 24,
                                    1ull << 40,
                                    1ull << 61,
                                    1ull << 62,
                                    INT64_MAX,
                                    1ull << 63,
                                    UINT64_MAX,
                                    UINT64_MAX - 1,
                                    UINT64_MAX - 7,
                                    UINT64_MAX / 2 - 31};

static const char *const numbers[] = {"0",
                                      "-1",
                                      "1",
                                      "2",
                                      "255",
                                      "65536",
                                      "2147483647",
                                      "2147483648",
                                      "-2147483648",
                                      "4294967296",
                                      "1000000000",
                                      "9223372036854775807",
                                      "-9223372036854775808",
                                      "9223372036854775808",
                                      "18446744073709551615",
                                      "0.5",
                                      "-0.0",
                                      "1e308",
                                      "1e999",
                                      "1e-320",
                                      "4.0",
                                      "null",
                                      "true",
                                      "\"\"",
                                      "[]",
                                      "{}",
                                      "\"\\u0000\"",
                                      "\"\\ud800\"",
                                      "NaN"};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Replaces bytes [at, at + n_old) by `with`; does nothing if there is no room. */
static void replace(struct mutant *m, size_t at, size_t n_old, const char *with, size_t n_with)
{
    if (m->n - n_old + n_with > FUZZ_BYTES_MAX) return;
    memmove(m->bytes + at + n_with, m->bytes + at + n_old, m->n - at - n_old);
    memcpy(m->bytes + at, with, n_with);
    m->n = m->n - n_old + n_with;
}

static size_t somewhere(struct mutant *m)
{
    return fuzz_below(&m->random, m->n + 1);
}

/* A length up to `most`, usually short. */
static size_t some_length(struct mutant *m, size_t most)
{
    const size_t bound = (size_t)1 << fuzz_below(&m->random, 13);
    const size_t n = 1 + fuzz_below(&m->random, bound);
    return n < most ? n : most;
}

static void flip_bit(struct mutant *m)
{
    if (m->n == 0) return;
    m->bytes[fuzz_below(&m->random, m->n)] ^= (char)(1 << fuzz_below(&m->random, 8));
}

static void set_byte(struct mutant *m)
{
    if (m->n == 0) return;
    m->bytes[fuzz_below(&m->random, m->n)] = (char)fuzz_next(&m->random);
}

static void set_integer_at(struct mutant *m, size_t at)
{
    const size_t width = (size_t)1 << fuzz_below(&m->random, 4);
    if (at + width > m->n) return;
    uint64_t x = 0;
    memcpy(&x, m->bytes + at, width);
    switch (fuzz_below(&m->random, 4)) {
    case 0:
        x += fuzz_below(&m->random, 33) - 16;
        break;
    case 1:
        x = (uint64_t)m->n + fuzz_below(&m->random, 65) - 32;
        break;
    default:
        x = integers[fuzz_below(&m->random, COUNT(integers))];
    }
    memcpy(m->bytes + at, &x, width);
}

static void set_integer(struct mutant *m)
{
    /* fields of binary formats are usually aligned */
    const size_t at = somewhere(m);
    set_integer_at(m, fuzz_below(&m->random, 2) == 0 ? at : at & ~(size_t)7);
}

static void truncate_it(struct mutant *m)
{
    m->n = somewhere(m);
}

static void delete_range(struct mutant *m)
{
    const size_t at = somewhere(m);
    replace(m, at, some_length(m, m->n - at), "", 0);
}

static void copy_range(struct mutant *m)
{
    const size_t from = somewhere(m);
    const size_t n = some_length(m, m->n - from);
    char *copy = malloc(n + 1);
    memcpy(copy, m->bytes + from, n);
    const size_t to = somewhere(m);
    const size_t n_over = fuzz_below(&m->random, 2) == 0 ? 0 : n;
    replace(m, to, n_over < m->n - to ? n_over : m->n - to, copy, n);
    free(copy);
}

static void repeat_range(struct mutant *m)
{
    const size_t from = somewhere(m);
    const size_t n = some_length(m, m->n - from);
    if (n == 0 || n > 64) return;
    const size_t n_times = some_length(m, 8192 / n + 1);
    char *copies = malloc(n * n_times);
    for (size_t i = 0; i < n_times; i++) memcpy(copies + i * n, m->bytes + from, n);
    replace(m, from, 0, copies, n * n_times);
    free(copies);
}

static const char *some_word(struct mutant *m)
{
    return m->target->words[fuzz_below(&m->random, m->n_words)];
}

static void put_word(struct mutant *m)
{
    const char *word = some_word(m);
    const size_t n = strlen(word);
    const size_t at = somewhere(m);
    const size_t n_over = fuzz_below(&m->random, 2) == 0 ? 0 : n;
    replace(m, at, n_over < m->n - at ? n_over : m->n - at, word, n);
}

/* The position of a word of the format, searched from a random place on; m->n if there is none. */
static size_t find_word(struct mutant *m, const char *word)
{
    const size_t n = strlen(word);
    const size_t from = somewhere(m);
    const char *at = memmem(m->bytes + from, m->n - from, word, n);
    if (at == NULL) at = memmem(m->bytes, m->n, word, n);
    return at == NULL ? m->n : (size_t)(at - m->bytes);
}

/* Changes bytes beside a key: its length before it, or its type and value after it. */
static void change_beside_word(struct mutant *m)
{
    const char *word = some_word(m);
    const size_t at = find_word(m, word);
    if (at == m->n) return;
    const size_t begin = at < 12 ? 0 : at - 12;
    const size_t place = begin + fuzz_below(&m->random, strlen(word) + 36);
    if (place >= m->n) return;
    if (fuzz_below(&m->random, 2) == 0) {
        m->bytes[place] ^= (char)(1 << fuzz_below(&m->random, 8));
    } else {
        set_integer_at(m, place);
    }
}

static void swap_words(struct mutant *m)
{
    const char *from = some_word(m), *to = some_word(m);
    const size_t at = find_word(m, from);
    if (at < m->n) replace(m, at, strlen(from), to, strlen(to));
}

/* ---- texts ---- */

static int kind_of(char c)
{
    if ((c >= '0' && c <= '9') || c == '-' || c == '.') return 1;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0) return 2;
    return c == ' ' || c == '\n' ? 3 : 0; /* 0: punctuation, one token each */
}

/* Returns where the token at a random place begins, and its length in *n (0: none): a string with
 * its quotes if the place is one of them, a number, a word, or a punctuation mark. */
static size_t some_token(struct mutant *m, size_t *n)
{
    size_t at = somewhere(m);
    while (at > 0 && at < m->n && kind_of(m->bytes[at]) != 0 &&
           kind_of(m->bytes[at]) == kind_of(m->bytes[at - 1])) {
        at--;
    }
    *n = 0;
    if (at >= m->n) return m->n;
    *n = 1;
    if (m->bytes[at] == '"') {
        while (at + *n < m->n && m->bytes[at + *n] != '"') ++*n;
        if (at + *n < m->n) ++*n;
        return at;
    }
    const int kind = kind_of(m->bytes[at]);
    while (kind != 0 && at + *n < m->n && kind_of(m->bytes[at + *n]) == kind) ++*n;
    return at;
}

static void copy_token(struct mutant *m)
{
    size_t n_from, n_to;
    const size_t from = some_token(m, &n_from);
    char *copy = malloc(n_from + 1);
    memcpy(copy, m->bytes + from, n_from);
    const size_t to = some_token(m, &n_to);
    replace(m, to, fuzz_below(&m->random, 3) == 0 ? 0 : n_to, copy, n_from);
    free(copy);
}

static void delete_token(struct mutant *m)
{
    size_t n;
    const size_t at = some_token(m, &n);
    replace(m, at, n, "", 0);
}

/* Replaces a number, the first after a random place, by one that is more likely to do harm. */
static void change_number(struct mutant *m)
{
    size_t at = somewhere(m), n = 0;
    while (at < m->n && (m->bytes[at] < '0' || m->bytes[at] > '9')) at++;
    while (at + n < m->n && kind_of(m->bytes[at + n]) == 1) n++;
    const char *to = numbers[fuzz_below(&m->random, COUNT(numbers))];
    if (n > 0) replace(m, at, n, to, strlen(to));
}

/* ---- two seeds ---- */

static void splice(struct mutant *m)
{
    const struct fuzz_bytes *other = &m->seeds->items[fuzz_below(&m->random, m->seeds->n)];
    if (other->n == 0) return;
    const size_t from = fuzz_below(&m->random, other->n);
    const size_t at = somewhere(m);
    if (fuzz_below(&m->random, 2) == 0) { /* the head of one seed and the tail of another */
        replace(m, at, m->n - at, other->bytes + from, other->n - from);
        return;
    }
    const size_t n = some_length(m, other->n - from);
    const size_t n_over = n < m->n - at ? n : m->n - at;
    replace(m, at, n_over, other->bytes + from, n);
}

typedef void mutation(struct mutant *m);
static mutation *const mutations[] = {
    flip_bit,           flip_bit,           set_byte,      set_integer,  set_integer,
    truncate_it,        copy_range,         delete_range,  repeat_range, put_word,
    change_beside_word, change_beside_word, swap_words,    copy_token,   delete_token,
    copy_token,         change_number,      change_number, splice};

struct fuzz_bytes fuzz_case(const struct fuzz_target *t, const struct fuzz_seeds *seeds,
                            uint64_t seed, uint64_t number)
{
    struct mutant m = {.target = t, .seeds = seeds};
    m.random.state = fuzz_mix(fuzz_mix(FUZZ_MIX_START, t->name, strlen(t->name)), &seed, 8);
    m.random.state = fuzz_mix(m.random.state, &number, sizeof number);
    while (t->words[m.n_words] != NULL) m.n_words++;
    m.bytes = malloc(FUZZ_BYTES_MAX);
    const struct fuzz_bytes *from = &seeds->items[fuzz_below(&m.random, seeds->n)];
    m.n = from->n;
    memcpy(m.bytes, from->bytes, m.n);
    const size_t n_changes = 1 + fuzz_below(&m.random, (size_t)1 << fuzz_below(&m.random, 4));
    for (size_t i = 0; i < n_changes; i++) {
        mutations[fuzz_below(&m.random, COUNT(mutations))](&m);
    }
    /* exact size, so that reading past the input's end is noticed */
    char *exact = malloc(m.n > 0 ? m.n : 1);
    memcpy(exact, m.bytes, m.n);
    free(m.bytes);
    return (struct fuzz_bytes){exact, m.n};
}
