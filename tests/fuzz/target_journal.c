/* Targets: a journal as found on a disk, torn or damaged; and one whose records have right
 * checksums whatever they contain, so that the code after the checksums is reached. */
#include "base/strbuf.h"
#include "fuzz/fuzz.h"
#include "serve/journal/journal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char SETTINGS[] = "checkpoint=1\n--seed=5\n--temperature=0.8\n";
static const char *const words[] = {JOURNAL_MAGIC, "checkpoint=1\n", "--seed=5\n", "\x01\0\0\0",
                                    "\x03",        "\x04",           "\x05",       "\x06",
                                    "\x07",        "custom_id",      NULL};

enum { N_LINES = 24, RECORDS_MAX = 256 };

/* Hashes (hit_sum) of all rows and partial tokens that the seeds hold. */
static uint64_t known[RECORDS_MAX];
static size_t n_known;

static struct journal_options options_of(const char *path)
{
    return (struct journal_options){.path = path, .settings = SETTINGS, .session = "a test"};
}

static uint64_t hit_sum(uint64_t line, const struct journal_hit *hit)
{
    uint64_t sum = fuzz_mix(FUZZ_MIX_START, &line, sizeof line);
    sum = fuzz_mix(sum, &hit->digest, sizeof hit->digest);
    if (hit->kind == JOURNAL_HIT_ROW) {
        sum = fuzz_mix(sum, &hit->row.is_error, sizeof hit->row.is_error);
        return fuzz_mix(sum, hit->text, hit->n_text);
    }
    for (size_t i = 0; i < hit->n_parts; i++) {
        const struct journal_part *p = &hit->parts[i];
        sum = fuzz_mix(sum, &p->item_bytes, sizeof p->item_bytes);
        sum = fuzz_mix(sum, p->bytes, p->n_items * p->item_bytes);
    }
    return sum;
}

static void add_line(struct journal *j, uint64_t line, uint32_t seed)
{
    char text[96];
    int32_t tokens[8];
    struct journal_record r = {.line = line, .digest = {line * 77, seed}};
    if (line % 5 == 3) {
        for (int i = 0; i < 8; i++) tokens[i] = (int32_t)(line + seed) + i;
        r.type = JOURNAL_PARTIAL;
        r.bytes = (const char *)tokens;
        r.n_bytes = sizeof tokens;
        r.values[2] = seed & 1; /* one of two answers */
        r.values[3] = seed == 3 ? sizeof tokens / 2 : sizeof *tokens;
    } else {
        const struct journal_row row = {.id_low = line * seed,
                                        .id_high = line,
                                        .n_prompt = 3,
                                        .n_generated = 9,
                                        .is_error = line % 7 == 0};
        journal_row_pack(&row, r.values);
        snprintf(text, sizeof text, "{\"custom_id\":\"%llu\",\"text\":\"%u\"}\n",
                 (unsigned long long)line, seed);
        r.type = JOURNAL_ROW;
        r.bytes = text;
        r.n_bytes = strlen(text);
    }
    const struct status st = journal_add(j, &r);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
}

static void learn(const char *path)
{
    struct journal *j = NULL;
    const struct journal_options o = options_of(path);
    struct status st = journal_open(&o, &j);
    for (uint64_t line = 1; line <= N_LINES && !status_failed(&st); line++) {
        struct journal_hit hit;
        st = journal_find(j, line, &hit);
        if (!status_failed(&st) && hit.kind != JOURNAL_HIT_NONE) {
            known[n_known++] = hit_sum(line, &hit);
        }
    }
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    journal_destroy(&j);
}

static void make_seed(struct fuzz_seeds *seeds, uint32_t seed)
{
    struct journal *j = NULL;
    const char *path = fuzz_scratch("seed");
    const struct journal_options o = options_of(path);
    struct status st = journal_open(&o, &j);
    for (uint64_t i = 0; i < N_LINES && !status_failed(&st); i++) {
        if ((i * 7 + seed) % 6 == 0) continue;
        add_line(j, 1 + (i ^ (seed & 3)), seed);
        if (i % 5 == 4) st = journal_commit(j, i, i * 100);
    }
    if (!status_failed(&st)) st = journal_commit(j, N_LINES, 2400);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    journal_destroy(&j);
    learn(path);
    fuzz_seed_file(seeds, path);
    unlink(path);
}

static void begin(struct fuzz_seeds *seeds)
{
    make_seed(seeds, 1);
    make_seed(seeds, 2);
    make_seed(seeds, 3);
}

/* Reads everything that the journal holds; if is_strict, it must be what a seed holds. */
static void read_lines(struct journal *j, bool is_strict)
{
    for (uint64_t line = 1; line <= N_LINES + 8; line++) {
        struct journal_hit hit;
        const struct status st = journal_find(j, line, &hit);
        if (status_failed(&st)) {
            (void)fuzz_refused(&st);
            return;
        }
        if (hit.kind == JOURNAL_HIT_NONE) continue;
        const uint64_t sum = hit_sum(line, &hit);
        bool is_known = !is_strict;
        for (size_t i = 0; i < n_known; i++) is_known |= known[i] == sum;
        FUZZ_CHECK(is_known, "line %llu has a record that nobody wrote", (unsigned long long)line);
    }
}

/* A record that is added to an accepted journal must be there when the journal is opened again. */
static void go_on(const char *path, struct journal **j)
{
    const uint64_t line = N_LINES + 100;
    const struct journal_options o = options_of(path);
    add_line(*j, line, 9);
    struct status st = journal_commit(*j, 1, 1);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    journal_destroy(j);
    st = journal_open(&o, j);
    if (status_failed(&st)) {
        (void)fuzz_refused(&st);
        return;
    }
    struct journal_hit hit;
    st = journal_find(*j, line, &hit);
    if (status_failed(&st)) {
        (void)fuzz_refused(&st);
        return;
    }
    FUZZ_CHECK(hit.kind == JOURNAL_HIT_ROW, "the row that was added is gone");
}

static bool open_and_read(const char *bytes, size_t n, bool is_strict)
{
    struct journal *j = NULL;
    const char *path = fuzz_scratch("m.journal");
    const struct journal_options o = options_of(path);
    fuzz_write(path, bytes, n);
    const struct status st = journal_open(&o, &j);
    if (status_failed(&st)) return fuzz_refused(&st);
    read_lines(j, is_strict);
    go_on(path, &j);
    journal_destroy(&j);
    struct journal_options again = o;
    again.retry_errors = true; /* makes it rewrite the file */
    const struct status rewritten = journal_open(&again, &j);
    if (status_failed(&rewritten)) {
        (void)fuzz_refused(&rewritten);
    } else {
        read_lines(j, is_strict);
    }
    journal_destroy(&j);
    unlink(path);
    return true;
}

static bool run_file(const char *bytes, size_t n)
{
    return open_and_read(bytes, n, true);
}

/* Gives every record a right checksum, as far as the lengths allow. */
static bool run_summed(const char *bytes, size_t n)
{
    struct strbuf out;
    size_t at = JOURNAL_MAGIC_BYTES;
    strbuf_init(&out);
    strbuf_add(&out, bytes, n < at ? n : at);
    while (n >= at && n - at >= JOURNAL_FRAME_BYTES) {
        uint32_t head[2];
        uint64_t numbers[8];
        memcpy(head, bytes + at, sizeof head);
        memcpy(numbers, bytes + at + 16, sizeof numbers);
        const size_t left = n - at - JOURNAL_FRAME_BYTES;
        struct journal_record r = {.type = (enum journal_type)head[0],
                                   .line = numbers[0],
                                   .digest = {numbers[1], numbers[2]},
                                   .bytes = bytes + at + JOURNAL_FRAME_BYTES,
                                   .n_bytes = head[1] < left ? head[1] : left};
        memcpy(r.values, numbers + 3, sizeof r.values);
        const struct status st = journal_record_add(&out, &r, out.n);
        FUZZ_CHECK(!status_failed(&st), "%s", st.text);
        at += JOURNAL_FRAME_BYTES + r.n_bytes;
    }
    const bool taken = open_and_read(out.data == NULL ? "" : out.data, out.n, false);
    strbuf_fini(&out);
    return taken;
}

extern const struct fuzz_target fuzz_journal, fuzz_journal_summed;
const struct fuzz_target fuzz_journal = {"journal", words, begin, run_file};
const struct fuzz_target fuzz_journal_summed = {"journal_summed", words, begin, run_summed};
