/* Parts of a journal: its index over many lines, its settings and the set of ids. Also tests the
 * parser of failpoints. */
#include "serve/journal/journal_index.h"

#include "base/failpoint.h"
#include "base/mem.h"
#include "serve/journal/id_set.h"
#include "util_fake_engine.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void failpoints_are_parsed(void)
{
    struct failpoint f;
    struct status st = failpoint_parse("journal_fsync:12:EIO", &f);
    CU_ASSERT_FALSE(status_failed(&st));
    CU_ASSERT_EQUAL(f.name, FAILPOINT_JOURNAL_FSYNC);
    CU_ASSERT_EQUAL(f.n_left, 12);
    CU_ASSERT_EQUAL(f.error, EIO);
    static const char *const bad[] = {"", "step", "step:", "step:0", "step:x", "no:1", "step:1:E"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        st = failpoint_parse(bad[i], &f);
        CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    }
    CU_ASSERT_FALSE(failpoint_due(NULL, FAILPOINT_STEP));
}

/* Rows are missing only in the last window, as after an interrupted run. */
enum { N = 300000, WINDOW = 4096 };

static bool is_done(uint64_t line)
{
    return line < N - WINDOW || line % 100 != 0;
}

/* If the rows are shuffled only within a window, the index finds all of them with little memory. */
static void a_long_journal_is_read_in_bounded_memory(void)
{
    char path[] = "/tmp/shoal-journal-XXXXXX";
    const int fd = mkstemp(path);
    struct strbuf s;
    strbuf_init(&s);
    static uint64_t lines[WINDOW];
    struct journal_facts facts;
    struct journal_index *index = NULL;
    uint64_t x = 3, offset = 0;
    struct journal_record header = {.type = JOURNAL_HEADER};
    strbuf_add(&s, JOURNAL_MAGIC, JOURNAL_MAGIC_BYTES);
    struct status st = journal_record_add(&s, &header, JOURNAL_MAGIC_BYTES);
    for (uint64_t line = 0; line < (uint64_t)N; line += WINDOW) {
        for (uint64_t i = 0; i < WINDOW; i++) lines[i] = line + i + 1;
        for (uint64_t i = WINDOW - 1; i > 0; i--) {
            const uint64_t k = fake_random(&x) % (i + 1), was = lines[i];
            lines[i] = lines[k];
            lines[k] = was;
        }
        for (uint64_t i = 0; i < WINDOW; i++) {
            char text[64];
            const int n = snprintf(text, sizeof text, "row %llu", (unsigned long long)lines[i]);
            const struct journal_record r = {
                .type = JOURNAL_ROW, .line = lines[i], .bytes = text, .n_bytes = (size_t)n};
            if (is_done(lines[i])) st = journal_record_add(&s, &r, offset + s.n);
        }
        CU_ASSERT_EQUAL(write(fd, s.data, s.n), (ssize_t)s.n);
        offset += s.n;
        strbuf_clear(&s);
    }
    CU_ASSERT_FALSE(status_failed(&st));
    st = journal_facts_read(fd, path, &facts);
    CU_ASSERT_EQUAL(facts.good_bytes, offset);
    const uint64_t before = util_peak_restart();
    st = journal_index_create(fd, path, &facts, &index);
    unsigned n_wrong = 0;
    for (uint64_t line = 1; line <= N; line++) {
        struct journal_hit hit;
        char text[64];
        const int n = snprintf(text, sizeof text, "row %llu", (unsigned long long)line);
        st = journal_index_find(index, line, &hit);
        const bool wanted = is_done(line);
        n_wrong += status_failed(&st) || (hit.kind == JOURNAL_HIT_ROW) != wanted ||
                   (wanted && (hit.n_text != (size_t)n || memcmp(hit.text, text, hit.n_text) != 0));
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT(mem_peak_bytes() - before < (uint64_t)4 << 20);
    journal_index_destroy(&index);
    journal_facts_fini(&facts);
    strbuf_fini(&s);
    close(fd);
    unlink(path);
}

/* Writes a journal of two records whose bytes are "a=1", the first of type `first`, and cuts it to
 * n_kept bytes. Returns its settings, which the caller frees with mem_free. */
static char *settings_of(enum journal_type first, size_t n_kept)
{
    char path[] = "/tmp/shoal-journal-XXXXXX", *settings = NULL;
    const int fd = mkstemp(path);
    struct strbuf s;
    strbuf_init(&s);
    strbuf_add(&s, JOURNAL_MAGIC, JOURNAL_MAGIC_BYTES);
    for (int i = 0; i < 2; i++) {
        const struct journal_record r = {
            .type = i == 0 ? first : JOURNAL_SESSION, .bytes = "a=1", .n_bytes = 3};
        CU_ASSERT_EQUAL(journal_record_add(&s, &r, s.n).code, STATUS_OK);
    }
    const size_t n = n_kept < s.n ? n_kept : s.n;
    CU_ASSERT_EQUAL(write(fd, s.data, n), (ssize_t)n);
    CU_ASSERT_EQUAL(journal_settings_read(fd, path, &settings).code, STATUS_OK);
    strbuf_fini(&s);
    close(fd);
    unlink(path);
    return settings;
}

/* The header alone gives the settings; a part of it, or another first record, gives none. */
static void settings_are_those_of_the_header(void)
{
    enum { N_HEADER = JOURNAL_MAGIC_BYTES + JOURNAL_FRAME_BYTES + 3 };
    char *other = settings_of(JOURNAL_SESSION, SIZE_MAX);
    CU_ASSERT_PTR_NULL(other);
    for (size_t n = 0; n <= N_HEADER + 20; n++) {
        char *settings = settings_of(JOURNAL_HEADER, n);
        CU_ASSERT(n < N_HEADER ? settings == NULL
                               : settings != NULL && strcmp(settings, "a=1") == 0);
        mem_free(&settings);
    }
}

/* A line with 4096 prompts and 2 answers to each, of which every third has saved tokens. */
static void every_answer_of_a_line_is_found(void)
{
    enum { N_ANSWERS = 8192 };
    char path[] = "/tmp/shoal-journal-XXXXXX";
    const int fd = mkstemp(path);
    struct strbuf s;
    struct journal_facts facts;
    struct journal_index *index = NULL;
    struct journal_hit hit;
    unsigned n_wrong = 0;
    const struct journal_record header = {.type = JOURNAL_HEADER};
    strbuf_init(&s);
    strbuf_add(&s, JOURNAL_MAGIC, JOURNAL_MAGIC_BYTES);
    struct status st = journal_record_add(&s, &header, JOURNAL_MAGIC_BYTES);
    for (int32_t i = 0; i < N_ANSWERS; i += 3) {
        const int32_t tokens[2] = {i, i + 1};
        const struct journal_record r = {.type = JOURNAL_PARTIAL,
                                         .line = 1,
                                         .values = {0, 0, (uint64_t)i, sizeof *tokens},
                                         .bytes = (const char *)tokens,
                                         .n_bytes = sizeof tokens};
        st = journal_record_add(&s, &r, s.n);
        n_wrong += status_failed(&st);
    }
    CU_ASSERT_EQUAL(write(fd, s.data, s.n), (ssize_t)s.n);
    st = journal_facts_read(fd, path, &facts);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = journal_index_create(fd, path, &facts, &index);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = journal_index_find(index, 1, &hit);
    CU_ASSERT_EQUAL_FATAL(hit.kind, JOURNAL_HIT_PARTIAL);
    CU_ASSERT_EQUAL_FATAL(hit.n_parts, N_ANSWERS - 1);
    for (int32_t i = 0; i < N_ANSWERS - 1; i++) {
        const struct journal_part *p = &hit.parts[i];
        const int32_t tokens[2] = {i, i + 1};
        n_wrong += p->n_items != (i % 3 == 0 ? 2 : 0);
        if (p->n_items == 2) n_wrong += memcmp(p->bytes, tokens, sizeof tokens) != 0;
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    journal_index_destroy(&index);
    journal_facts_fini(&facts);
    strbuf_fini(&s);
    close(fd);
    unlink(path);
}

/* An id that is its line's number takes no slot of the table. Of equal ids of any kind only the
 * first is new, also when part of the ids came from a journal. */
static void equal_ids_are_found_of_every_kind(void)
{
    enum { N_IDS = 4000 };
    static char ids[N_IDS][24];
    struct id_set all = {0}, resumed = {0};
    uint64_t x = 9;
    unsigned n_wrong = 0, n_repeated = 0;
    for (int i = 0; i < N_IDS; i++) {
        const int64_t kind = fake_between(&x, 0, 9);
        const int number = kind < 6 ? i + 1 : (int)fake_between(&x, 0, N_IDS + 50);
        snprintf(ids[i], sizeof ids[i], kind == 9 ? "id-%d" : kind == 8 ? "0%d" : "%d", number);
        bool repeated = false, fresh;
        for (int k = 0; k < i && !repeated; k++) repeated = strcmp(ids[k], ids[i]) == 0;
        struct status st = id_set_add(&all, ids[i], strlen(ids[i]), &fresh);
        n_wrong += status_failed(&st) || fresh == repeated;
        n_repeated += repeated;
        if (i < N_IDS / 2) {
            st = id_set_add_hash(&resumed, id_hash_of(ids[i], strlen(ids[i])));
        } else {
            st = id_set_add(&resumed, ids[i], strlen(ids[i]), &fresh);
            n_wrong += fresh == repeated;
        }
        n_wrong += status_failed(&st);
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT(n_repeated > 200);
    CU_ASSERT(all.n < N_IDS / 2);
    id_set_fini(&all);
    id_set_fini(&resumed);
}

void suite_journal_index(CU_pSuite suite);
void suite_journal_index(CU_pSuite suite)
{
    CU_add_test(suite, "a long journal is read in bounded memory",
                a_long_journal_is_read_in_bounded_memory);
    CU_add_test(suite, "settings are those of the header", settings_are_those_of_the_header);
    CU_add_test(suite, "every answer of a line is found", every_answer_of_a_line_is_found);
    CU_add_test(suite, "equal ids are found of every kind", equal_ids_are_found_of_every_kind);
    CU_add_test(suite, "failpoints are parsed", failpoints_are_parsed);
}
