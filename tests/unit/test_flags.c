/* Flags by table: every kind, limits, aliases, and the sentence of each mistake. */
#include "options/flags.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

struct values {
    const char *text;
    uint32_t count, wide;
    uint64_t seed;
    int64_t number;
    double real, any;
    bool on;
    struct flag_list list;
};

#define AT(field) offsetof(struct values, field)

static const struct flag table[] = {
    {"text", FLAG_STRING, AT(text), 0, 0, "FILE", "a text"},
    {"count", FLAG_COUNT, AT(count), 1, 1 << 20, "N", "a count"},
    {"count-size", FLAG_COUNT, AT(count), 1, 1 << 20, NULL, NULL},
    {"wide", FLAG_COUNT, AT(wide), 0, 0, "N", "any count"},
    {"seed", FLAG_U64, AT(seed), 0, 0, "N", "a seed"},
    {"number", FLAG_I64, AT(number), -5, 1e9, "N", "a number"},
    {"real", FLAG_NUMBER, AT(real), 0, 1, "X", "a real number"},
    {"any", FLAG_NUMBER, AT(any), 0, 0, "X", "any real number"},
    {"on", FLAG_SWITCH, AT(on), 0, 0, NULL, "a switch"},
    {"longname", FLAG_COUNT, AT(wide), 0, 0, "N", "two flags begin alike"},
    {"longnames", FLAG_COUNT, AT(wide), 0, 0, "N", "two flags begin alike"},
    {"listlengths", FLAG_COUNT, AT(wide), 0, 0, "N", "lengths"},
    {"list", FLAG_LIST, AT(list), 0, 0, "STR", "a list"},
};

enum { N_FLAGS = sizeof table / sizeof table[0], N_ARGS_MAX = 160 };

struct parsed {
    struct values v;
    struct positionals p;
    enum flags_ask ask;
    struct status st;
};

/* Parses a NULL-terminated list behind the command's name. */
static struct parsed parse(const char *const *args, size_t n_positionals)
{
    struct parsed out = {.p = {.n_wanted = n_positionals}};
    char *argv[N_ARGS_MAX + 2] = {"cmd"};
    int argc = 1;
    for (; args[argc - 1] != NULL && argc <= N_ARGS_MAX; argc++)
        argv[argc] = (char *)args[argc - 1];
    out.st = flags_parse(table, N_FLAGS, argc, argv, &out.v, &out.p, &out.ask);
    return out;
}

#define PARSE(n_positionals, ...) parse((const char *const[]){__VA_ARGS__, NULL}, n_positionals)

static void check_refused(struct parsed p, const char *sentence)
{
    CU_ASSERT_EQUAL(p.st.code, STATUS_USAGE);
    CU_ASSERT_STRING_EQUAL(p.st.text, sentence);
    if (strcmp(p.st.text, sentence) != 0) fprintf(stderr, "\n  found: %s\n", p.st.text);
}

static void every_kind_is_taken(void)
{
    const struct parsed p = PARSE(0, "--text", "a b", "--count=7", "--wide", "4294967295", "--seed",
                                  "18446744073709551615", "--number", "-5", "--real", "0.25",
                                  "--any=-1e3", "--on", "--list", "x", "--list=", "--list", "--on");
    CU_ASSERT_EQUAL_FATAL(p.st.code, STATUS_OK);
    CU_ASSERT_STRING_EQUAL(p.v.text, "a b");
    CU_ASSERT_EQUAL(p.v.count, 7);
    CU_ASSERT_EQUAL(p.v.wide, UINT32_MAX);
    CU_ASSERT_EQUAL(p.v.seed, UINT64_MAX);
    CU_ASSERT_EQUAL(p.v.number, -5);
    CU_ASSERT_EQUAL(p.v.real, 0.25);
    CU_ASSERT_EQUAL(p.v.any, -1000.0);
    CU_ASSERT_TRUE(p.v.on);
    CU_ASSERT_EQUAL_FATAL(p.v.list.n, 3);
    CU_ASSERT_STRING_EQUAL(p.v.list.values[0], "x");
    CU_ASSERT_STRING_EQUAL(p.v.list.values[1], "");
    CU_ASSERT_STRING_EQUAL(p.v.list.values[2], "--on"); /* a value may look like a flag */
    CU_ASSERT_EQUAL(p.ask, FLAGS_RUN);
}

static void an_alias_fills_the_same_value_and_the_last_wins(void)
{
    CU_ASSERT_EQUAL(PARSE(0, "--count-size", "9").v.count, 9);
    CU_ASSERT_EQUAL(PARSE(0, "--count", "3", "--count-size", "4").v.count, 4);
    CU_ASSERT_EQUAL(PARSE(0, "--count-size", "3", "--count", "5").v.count, 5);
}

static void limits_are_inclusive_and_named_in_full(void)
{
    CU_ASSERT_EQUAL(PARSE(0, "--count", "1048576").v.count, 1048576);
    CU_ASSERT_EQUAL(PARSE(0, "--real", "1").v.real, 1.0);
    CU_ASSERT_EQUAL(PARSE(0, "--number", "1000000000").v.number, 1000000000);
    check_refused(PARSE(0, "--count", "0"),
                  "--count: expected an integer from 1 to 1048576, found \"0\"");
    check_refused(PARSE(0, "--count", "1048577"),
                  "--count: expected an integer from 1 to 1048576, found \"1048577\"");
    check_refused(PARSE(0, "--number", "-6"),
                  "--number: expected an integer from -5 to 1000000000, found \"-6\"");
    check_refused(PARSE(0, "--real", "1.0001"),
                  "--real: expected a number from 0 to 1, found \"1.0001\"");
    check_refused(PARSE(0, "--wide", "4294967296"),
                  "--wide: expected an integer, found \"4294967296\"");
    check_refused(PARSE(0, "--seed", "18446744073709551616"),
                  "--seed: expected an integer from 0 to 18446744073709551615, found "
                  "\"18446744073709551616\"");
    check_refused(PARSE(0, "--seed", "-1"),
                  "--seed: expected an integer from 0 to 18446744073709551615, found \"-1\"");
}

static void what_is_not_a_number_is_refused(void)
{
    static const char *const wrong[] = {"",  " ", "7 ",  " 7",  "7x", "0x10", "1e3",
                                        "-", "+", "7.0", "--7", "٣",  "seven"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CU_ASSERT_EQUAL(PARSE(0, "--count", wrong[i]).st.code, STATUS_USAGE);
        CU_ASSERT_EQUAL(PARSE(0, "--number", wrong[i]).st.code, STATUS_USAGE);
        CU_ASSERT_EQUAL(PARSE(0, "--seed", wrong[i]).st.code, STATUS_USAGE);
    }
    static const char *const unreal[] = {"",     "nan",  "inf",   "-inf", "infinity", "0x1p3",
                                         " 0.5", "0.5 ", "1e999", "0,5",  "."};
    for (size_t i = 0; i < sizeof unreal / sizeof unreal[0]; i++) {
        CU_ASSERT_EQUAL(PARSE(0, "--any", unreal[i]).st.code, STATUS_USAGE);
    }
    check_refused(PARSE(0, "--any", "nan"), "--any: expected a number, found \"nan\"");
}

static void unknown_flags_are_named(void)
{
    const char *const tail = ": no such flag for `shoal cmd`; see shoal cmd --help";
    static const char *const wrong[] = {"--bogus", "-x", "-xy", "--bogus=1", "--=", "-count"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char sentence[128];
        snprintf(sentence, sizeof sentence, "%s%s", wrong[i], tail);
        check_refused(PARSE(0, wrong[i]), sentence);
        /* also behind what is no flag */
        check_refused(PARSE(2, "one", "two", wrong[i], "1"), sentence);
    }
}

/* Otherwise a command that works today would be ambiguous once a flag is added. */
static void abbreviations_are_no_flags(void)
{
    CU_ASSERT_EQUAL(PARSE(0, "--tex", "a").st.code, STATUS_USAGE);
    CU_ASSERT_EQUAL(PARSE(0, "--count-", "1").st.code, STATUS_USAGE);
    CU_ASSERT_EQUAL(PARSE(0, "--hel").st.code, STATUS_USAGE);
}

static void values_are_asked_for_and_refused(void)
{
    check_refused(PARSE(0, "--on", "--text"), "--text: needs a value");
    check_refused(PARSE(0, "--count"), "--count: needs a value");
    check_refused(PARSE(0, "--on=yes"), "--on: takes no value, found \"yes\"");
}

static void a_list_has_an_end(void)
{
    const char *args[2 * FLAG_LIST_MAX + 3];
    for (size_t i = 0; i <= FLAG_LIST_MAX; i++) {
        args[2 * i] = "--list";
        args[2 * i + 1] = "x";
    }
    args[2 * FLAG_LIST_MAX] = NULL;
    const struct parsed full = parse(args, 0);
    CU_ASSERT_EQUAL(full.st.code, STATUS_OK);
    CU_ASSERT_EQUAL(full.v.list.n, FLAG_LIST_MAX);
    args[2 * FLAG_LIST_MAX] = "--list";
    args[2 * FLAG_LIST_MAX + 2] = NULL;
    check_refused(parse(args, 0), "--list: given more than 64 times");
}

static void positionals_stand_anywhere(void)
{
    const struct parsed p = PARSE(3, "a", "--on", "-", "--count", "2", "--", "--text");
    CU_ASSERT_EQUAL_FATAL(p.st.code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(p.p.n, 3);
    CU_ASSERT_STRING_EQUAL(p.p.values[0], "a");
    CU_ASSERT_STRING_EQUAL(p.p.values[1], "-");
    CU_ASSERT_STRING_EQUAL(p.p.values[2], "--text");
    CU_ASSERT(p.v.on && p.v.count == 2 && p.v.text == NULL);
    check_refused(PARSE(1, "a", "b"), "\"b\": an argument too many; see shoal cmd --help");
    check_refused(PARSE(0, ""),
                  "\"\": no argument is taken but flags, which begin with --; see shoal "
                  "cmd --help");
}

static void a_flag_that_was_nearly_meant_is_named(void)
{
    check_refused(PARSE(0, "--cuont", "3"),
                  "--cuont: no such flag for `shoal cmd`; did you mean --count?");
    check_refused(PARSE(0, "--counts=3"),
                  "--counts=3: no such flag for `shoal cmd`; did you mean --count?");
    check_refused(PARSE(0, "--listlen", "3"),
                  "--listlen: no such flag for `shoal cmd`; did you mean --listlengths?");
    check_refused(PARSE(0, "--longn", "3"),
                  "--longn: no such flag for `shoal cmd`; see shoal cmd --help");
}

static void help_stops_the_reading(void)
{
    CU_ASSERT_EQUAL(PARSE(0, "-h", "--bogus").ask, FLAGS_HELP);
    CU_ASSERT_EQUAL(PARSE(0, "--help", "--bogus").ask, FLAGS_HELP);
    CU_ASSERT_EQUAL(PARSE(0, "--on", "--help-man").ask, FLAGS_MAN);
    CU_ASSERT_EQUAL(PARSE(0, "--help").st.code, STATUS_OK);
}

/* Prints the table's page and returns it; the caller frees. */
static char *print(enum flags_ask ask)
{
    const struct flags_page page = {.command = "cmd",
                                    .arguments = "SRC [FLAGS]",
                                    .summary = "does it",
                                    .description = ".first\n'second a-b\\c",
                                    .table = table,
                                    .n_flags = N_FLAGS};
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    flags_print(&page, ask, f);
    fclose(f);
    return text;
}

static void pages_show_every_flag_but_aliases(void)
{
    char *help = print(FLAGS_HELP);
    char *man = print(FLAGS_MAN);
    for (size_t i = 0; i < N_FLAGS; i++) {
        char as_help[64], as_man[64];
        snprintf(as_help, sizeof as_help, "  --%s ", table[i].name);
        snprintf(as_man, sizeof as_man, "\n.B \\-\\-%s ", table[i].name);
        const bool shown = table[i].help != NULL;
        if (strchr(table[i].name, '-') != NULL) { /* the man page escapes its hyphen */
            snprintf(as_man, sizeof as_man, "\\-\\-count\\-size");
        }
        CU_ASSERT_EQUAL(strstr(help, as_help) != NULL, shown);
        CU_ASSERT_EQUAL(strstr(man, as_man) != NULL, shown);
        if (shown) CU_ASSERT_PTR_NOT_NULL(strstr(help, table[i].help));
    }
    /* no text line of the man page begins with a request that is not ours */
    CU_ASSERT_PTR_NOT_NULL(strstr(man, "\n\\&.first\n.PP\n\\&'second a\\-b\\ec\n"));
    free(help);
    free(man);
}

void suite_flags(CU_pSuite suite);
void suite_flags(CU_pSuite suite)
{
    CU_add_test(suite, "every kind is taken", every_kind_is_taken);
    CU_add_test(suite, "an alias fills the same value, the last wins",
                an_alias_fills_the_same_value_and_the_last_wins);
    CU_add_test(suite, "limits are inclusive and named in full",
                limits_are_inclusive_and_named_in_full);
    CU_add_test(suite, "what is not a number is refused", what_is_not_a_number_is_refused);
    CU_add_test(suite, "unknown flags are named", unknown_flags_are_named);
    CU_add_test(suite, "abbreviations are no flags", abbreviations_are_no_flags);
    CU_add_test(suite, "values are asked for and refused", values_are_asked_for_and_refused);
    CU_add_test(suite, "a list has an end", a_list_has_an_end);
    CU_add_test(suite, "positionals stand anywhere", positionals_stand_anywhere);
    CU_add_test(suite, "a flag that was nearly meant is named",
                a_flag_that_was_nearly_meant_is_named);
    CU_add_test(suite, "help stops the reading", help_stops_the_reading);
    CU_add_test(suite, "pages show every flag but aliases", pages_show_every_flag_but_aliases);
}
