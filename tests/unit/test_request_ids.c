/* The ids of lines: which are known, the names of lines without an id, and rows that get a new
 * id. */
#include "serve/journal/id_set.h"
#include "serve/output/result_row.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static void the_set_knows_every_id(void)
{
    struct id_set s = {0};
    char id[16];
    unsigned n_wrong = 0;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 50000; i++) {
            const int n = snprintf(id, sizeof id, "id-%d", i);
            bool fresh;
            const struct status st = id_set_add(&s, id, (size_t)n, &fresh);
            CU_ASSERT_FALSE_FATAL(status_failed(&st));
            n_wrong += fresh != (round == 0);
        }
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT_EQUAL(s.n, 50000);
    CU_ASSERT(s.n_slots * sizeof *s.slots <= 50000 * 64);
    id_set_fini(&s);
}

/* Adds a line without an id and checks the name that it gets. */
static void expect_name(struct id_set *s, const char *name)
{
    char found[ID_NAME_MAX];
    CU_ASSERT_EQUAL(id_set_add_line(s, found).code, STATUS_OK);
    CU_ASSERT_STRING_EQUAL(found, name);
    CU_ASSERT(id_set_may_name(s->n_lines, found, strlen(found)));
    CU_ASSERT_FALSE(id_set_may_name(s->n_lines + 1, found, strlen(found)));
}

static void expect_given(struct id_set *s, const char *id, bool is_fresh)
{
    bool fresh;
    CU_ASSERT_EQUAL(id_set_add(s, id, strlen(id), &fresh).code, STATUS_OK);
    CU_ASSERT_EQUAL(fresh, is_fresh);
}

/* A line without an id gets its line number as name, or a name that no earlier line has. This also
 * holds for a set that was filled from a journal's hashes. */
static void lines_without_an_id_have_names_of_their_own(void)
{
    struct id_set s = {0}, resumed = {0};
    expect_given(&s, "2", true);
    expect_name(&s, "line 2");
    expect_name(&s, "3");
    expect_given(&s, "line 7", true);
    expect_given(&s, "line 7 (2)", true);
    expect_given(&s, "7", true);
    CU_ASSERT_EQUAL(id_set_add_hash(&resumed, id_hash_of("2", 1)).code, STATUS_OK);
    for (int i = 0; i < 2; i++)
        CU_ASSERT_EQUAL(id_set_add_hash(&resumed, ID_HASH_NONE).code, STATUS_OK);
    expect_given(&resumed, "line 7", true);
    expect_given(&resumed, "line 7 (2)", true);
    expect_given(&resumed, "7", true);
    struct id_set *const sets[] = {&s, &resumed};
    for (int i = 0; i < 2; i++) {
        expect_name(sets[i], "line 7 (3)");
        expect_given(sets[i], "line 7 (3)", false);
        expect_given(sets[i], "line 2", false);
        expect_given(sets[i], "3", false);
        expect_given(sets[i], "11", true);
        expect_name(sets[i], "12");
        id_set_fini(sets[i]);
    }
}

static void rows_are_given_another_id(void)
{
    static const char *const rows[][2] = {
        {"{\"custom_id\":\"7\",\"text\":\"7\"}\n", "{\"custom_id\":\"line 7\",\"text\":\"7\"}\n"},
        {"{\"id\":\"batch_req_0123456789abcdef\",\"custom_id\":\"7\",\"response\":null}\n",
         "{\"id\":\"batch_req_%016llx\",\"custom_id\":\"line 7\",\"response\":null}\n"},
        {"{\"id\":\"batch_req_0123456789abcdef\",\"custom_id\":\"7\",\"response\":{\"status_code\":"
         "200,\"request_id\":\"0123456789abcdef\",\"body\":{\"id\":\"chatcmpl-0123456789abcdef\",}}"
         "}\n",
         "{\"id\":\"batch_req_%016llx\",\"custom_id\":\"line 7\",\"response\":{\"status_code\":200,"
         "\"request_id\":\"%016llx\",\"body\":{\"id\":\"chatcmpl-%016llx\",}}}\n"},
        {"{\"id\":\"batch_req_0123456789abcdef\",\"custom_id\":\"7\",\"response\":{\"status_code\":"
         "200,\"request_id\":\"0123456789abcdef\",\"body\":{\"id\":\"rerank-0123456789abcdef\",}}"
         "}\n",
         "{\"id\":\"batch_req_%016llx\",\"custom_id\":\"line 7\",\"response\":{\"status_code\":200,"
         "\"request_id\":\"%016llx\",\"body\":{\"id\":\"rerank-%016llx\",}}}\n"}};
    const unsigned long long hash = XXH3_64bits("line 7", 6);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct strbuf found, wanted;
        strbuf_init(&found);
        strbuf_init(&wanted);
        const struct status st =
            result_row_rename(rows[i][0], strlen(rows[i][0]), "line 7", &found);
        CU_ASSERT_FALSE(status_failed(&st));
        if (i == 0) strbuf_puts(&wanted, rows[0][1]);
        if (i == 1) strbuf_printf(&wanted, rows[1][1], hash);
        if (i >= 2) strbuf_printf(&wanted, rows[i][1], hash, hash, hash);
        CU_ASSERT_EQUAL(found.n, wanted.n);
        CU_ASSERT_EQUAL(memcmp(found.data, wanted.data, wanted.n), 0);
        strbuf_fini(&found);
        strbuf_fini(&wanted);
    }
}

void suite_request_ids(CU_pSuite suite);
void suite_request_ids(CU_pSuite suite)
{
    CU_add_test(suite, "the set knows every id", the_set_knows_every_id);
    CU_add_test(suite, "lines without an id have names of their own",
                lines_without_an_id_have_names_of_their_own);
    CU_add_test(suite, "rows are given another id", rows_are_given_another_id);
}
