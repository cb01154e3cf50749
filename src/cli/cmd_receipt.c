/* shoal receipt: says in a few lines which job made an output, and compares that with the receipt
 * of another run. */
#include "base/mem.h"
#include "cli/cmd.h"
#include "options/flags.h"
#include "serve/journal/journal_format.h"
#include "serve/journal/receipt.h"

#include <stdio.h>

#define RECEIPT_FLAGS(FLAG)                                                                        \
    FLAG(const char *, journal, "journal", OF_TEXT("DIR"),                                         \
         .help = "where the job's journal is, if the job had --journal DIR")                       \
    FLAG(const char *, check, "check", OF_TEXT("RECEIPT"),                                         \
         .help = "compare with this receipt instead of printing one; status 4 if they differ")

struct receipt_flags {
    RECEIPT_FLAGS(FLAG_FIELD)
};

#define FLAG_OWNER struct receipt_flags
static const struct flag rows[] = {RECEIPT_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER

static const struct flag_group group = FLAG_GROUP(rows, 0);
static const struct flag_table table = {.groups = &group, .n_groups = 1};

static const char text[] =
    "Prints which job made OUT.jsonl: the model, all settings that change the rows, a hash of the "
    "input's lines and a hash of the rows. The same job has the same receipt, byte for byte, on "
    "any machine and layout, interrupted or not. The job must have ended, and its journal must "
    "still be there.\n"
    "With --check the first difference is named: another model, setting or line, or the same job "
    "with other rows, which must not happen.";

static struct status print_or_check(const char *output, const struct receipt_flags *flags)
{
    char *journal = NULL;
    struct strbuf receipt;
    strbuf_init(&receipt);
    struct status st = journal_path_of(output, flags->journal, &journal);
    if (!status_failed(&st)) st = receipt_make(output, journal, &receipt);
    if (!status_failed(&st) && flags->check != NULL) {
        st = receipt_check(receipt.data, flags->check);
        if (!status_failed(&st))
            printf("%s: the same job with the same rows as %s\n", output, flags->check);
    } else if (!status_failed(&st)) {
        fwrite(receipt.data, 1, receipt.n, stdout);
    }
    strbuf_fini(&receipt);
    mem_free(&journal);
    return st;
}

int cmd_receipt(struct config env, int argc, char **argv)
{
    if (env.launcher_rank != 0) return 0; /* one process reads the files */
    struct receipt_flags flags = {.check = NULL};
    struct flags_parsed parsed = {.positionals = {.n_wanted = 1}};
    struct status st = flags_parse(&table, argc, argv, &flags, &parsed);
    if (parsed.ask != FLAGS_RUN) {
        const struct flags_page page = {.command = argv[0],
                                        .arguments = "OUT.jsonl",
                                        .summary = "which job made an output, to compare runs",
                                        .description = text,
                                        .table = &table};
        flags_print(&page, parsed.ask, stdout);
        return 0;
    }
    if (!status_failed(&st) && parsed.positionals.n != 1)
        st = status_make(STATUS_USAGE, "expected a job's output: shoal receipt OUT.jsonl");
    if (!status_failed(&st)) st = print_or_check(parsed.positionals.values[0], &flags);
    if (!status_failed(&st)) return 0;
    fprintf(stderr, "shoal receipt: %s\n", st.text);
    return status_exit(st.code);
}
