/* Tokenizes with any tokenizer.json, or a folder with a tiktoken.model:
 *   check TOKENIZER.json LINES GOLDEN   exit status 1 if any line differs from the golden
 *   ids TOKENIZER.json LINES            prints the ids of each line
 *   speed TOKENIZER.json TEXT [BYTES]   prints MB/s, over texts of that many bytes */
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "unit/util_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 1 << 29, SPEED_ROUNDS = 5, N_SHOWN = 20 };

static struct status print_ids(struct tokenizer *t, const char *lines, size_t n)
{
    struct token_list ids = {0};
    struct strbuf text;
    struct status st = status_ok();
    strbuf_init(&text);
    size_t at = 0, line = 0;
    while (!status_failed(&st) && util_next_line(lines, n, &at, &text, &st)) {
        ids.n = 0;
        st = tokenizer_encode(t, text.data, text.n, util_line_flags(line++), &ids);
        for (size_t i = 0; i < ids.n; i++) printf("%s%d", i > 0 ? " " : "", (int)ids.ids[i]);
        printf("\n");
    }
    strbuf_fini(&text);
    token_list_fini(&ids);
    return st;
}

static struct status time_encode(struct tokenizer *t, const char *text, size_t n, size_t n_each)
{
    struct token_list ids = {0};
    struct status st = status_ok();
    double best_s = 1e30;
    for (int round = 0; round < SPEED_ROUNDS && !status_failed(&st); round++) {
        ids.n = 0;
        const uint64_t start = clock_ns();
        for (size_t at = 0; at < n && !status_failed(&st); at += n_each) {
            st = tokenizer_encode(t, text + at, n - at < n_each ? n - at : n_each, 0, &ids);
        }
        const double s = (double)(clock_ns() - start) * 1e-9;
        if (s < best_s) best_s = s;
    }
    printf("%zu bytes, %zu tokens, %.1f MB/s\n", n, ids.n, (double)n / best_s * 1e-6);
    token_list_fini(&ids);
    return st;
}

static struct status run(int argc, char **argv)
{
    char *input = NULL;
    size_t n_input, n_wrong = 0, n_lines = 0;
    struct tokenizer *t = NULL;
    struct status st;
    if (argc < 4) return status_make(STATUS_USAGE, "see the head of tests/tool_tokenize.c");
    TRY(util_tokenizer_open(argv[2], &t));
    TRY_GOTO(st, file_read(argv[3], FILE_MAX, &input, &n_input), done);
    if (strcmp(argv[1], "check") == 0 && argc == 5) {
        st = util_check_golden(t, argv[3], argv[4], N_SHOWN, &n_lines, &n_wrong);
        printf("%zu lines, %zu differ\n", n_lines, n_wrong);
        if (!status_failed(&st) && n_wrong > 0) st = status_make(STATUS_ROWS, "lines differ");
    } else if (strcmp(argv[1], "ids") == 0) {
        st = print_ids(t, input, n_input);
    } else if (strcmp(argv[1], "speed") == 0) {
        const size_t n_each = argc > 4 ? strtoul(argv[4], NULL, 10) : n_input;
        st = time_encode(t, input, n_input, n_each > 0 ? n_each : 1);
    } else {
        st = status_make(STATUS_USAGE, "unknown mode '%s'", argv[1]);
    }
done:
    tokenizer_destroy(&t);
    mem_free(&input);
    return st;
}

int main(int argc, char **argv)
{
    const struct status st = run(argc, argv);
    if (status_failed(&st)) fprintf(stderr, "%s\n", st.text);
    return status_failed(&st) ? 1 : 0;
}
