/* Lookups in SentencePiece's compiled rules, also in damaged ones, which must find nothing. */
#include "text/tokenizer/precompiled.h"

#include <CUnit/CUnit.h>
#include <string.h>

/* A trie with the key "a": unit 0 is the root, 0x61 ('a') its child, 0x62 the child's value. */
enum { CHILD = 0x61, VALUE = 0x62, N_UNITS = 0x63, ENDS_KEY = 1 << 8, OFFSET_SHIFT = 10 };

static char units[N_UNITS * 4];
static const char texts[] = "x\0\xC3\xA9"; /* "x" and an accented e, each with a NUL after it */

static void put_unit(size_t i, uint32_t unit)
{
    for (size_t b = 0; b < 4; b++) units[4 * i + b] = (char)(unit >> 8 * b);
}

/* Returns rules in `units`, which replace the key by the text at byte `text` of texts. */
static struct precompiled rules(uint32_t text)
{
    memset(units, 0, sizeof units);
    put_unit(CHILD, 'a' | ENDS_KEY | (CHILD ^ VALUE) << OFFSET_SHIFT);
    put_unit(VALUE, 1u << 31 | text);
    return (struct precompiled){
        .units = units, .n_units = N_UNITS, .texts = texts, .n_texts = sizeof texts};
}

static const char *find(const struct precompiled *p, const char *key, size_t *n)
{
    return precompiled_find(p, key, strlen(key), n);
}

static void a_key_has_its_text(void)
{
    struct precompiled p = rules(0);
    size_t n = 99;
    CU_ASSERT(find(&p, "a", &n) == texts && n == 1);
    CU_ASSERT(find(&p, "ab", &n) == texts && n == 1);
    CU_ASSERT_PTR_NULL(find(&p, "b", &n));
    CU_ASSERT_PTR_NULL(find(&p, "", &n));
    p = rules(2);
    CU_ASSERT(find(&p, "a", &n) == texts + 2 && n == 2);
    p = rules(1);
    CU_ASSERT(find(&p, "a", &n) == texts + 1 && n == 0);
}

static void damaged_rules_find_nothing(void)
{
    static const uint32_t wrong[] = {3 /* inside a character */, sizeof texts, 1 << 30};
    struct precompiled p;
    size_t n;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        p = rules(wrong[i]);
        CU_ASSERT_PTR_NULL(find(&p, "a", &n));
    }
    p = rules(0);
    for (p.n_units = 0; p.n_units < N_UNITS; p.n_units++) CU_ASSERT_PTR_NULL(find(&p, "a", &n));
}

void suite_precompiled(CU_pSuite suite);
void suite_precompiled(CU_pSuite suite)
{
    CU_add_test(suite, "a key has its text", a_key_has_its_text);
    CU_add_test(suite, "damaged rules find nothing", damaged_rules_find_nothing);
}
