/* Flag tables: every kind of flag, limits, aliases, and the error message of each mistake. */
#include "options/flags.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

enum colour { RED, GREEN = 5, BLUE };
#define COLOUR_WORDS                                                                               \
    {"red", RED}, {"green", GREEN},                                                                \
    {                                                                                              \
        "blue", BLUE                                                                               \
    }

static bool read_pair(const char *text, void *pair)
{
    int *p = pair;
    return sscanf(text, "%d:%d", &p[0], &p[1]) == 2;
}

struct pair {
    int a, b;
};

#define VALUES(FLAG)                                                                               \
    FLAG(const char *, text, "text", OF_TEXT("FILE"), .help = "a text")                            \
    FLAG(uint32_t, count, "count", OF_COUNT(1, 1 << 20, "N"), .alias = "count-size",               \
         .help = "a count")                                                                        \
    FLAG(uint32_t, wide, "wide", OF_COUNT(0, 0, "N"), .help = "any count")                         \
    FLAG(uint64_t, seed, "seed", OF_U64("N"), .help = "a seed")                                    \
    FLAG(int64_t, number, "number", OF_I64(-5, 1e9, "N"), .help = "a number")                      \
    FLAG(double, real, "real", OF_NUMBER(0, 1, "X"), .help = "a real number")                      \
    FLAG(double, any, "any", OF_NUMBER(0, 0, "X"), .help = "any real number")                      \
    FLAG(bool, on, "on", OF_SWITCH, .help = "a switch")                                            \
    FLAG(uint32_t, longname, "longname", OF_COUNT(0, 0, "N"), .help = "two flags begin alike")     \
    FLAG(uint32_t, longnames, "longnames", OF_COUNT(0, 0, "N"), .help = "two flags begin alike")   \
    FLAG(uint32_t, lengths, "listlengths", OF_COUNT(0, 0, "N"), .help = "lengths")                 \
    FLAG(struct flag_list, list, "list", OF_LIST("STR"), .journal = JOURNAL_ALWAYS,                \
         .help = "a list")                                                                         \
    FLAG(uint64_t, bytes, "memory", OF_UNITS(1024, 1, 1000, "KIB"), .preset = "3",                 \
         .help = "a size in KiB")                                                                  \
    FLAG(bool, cache, "cache", OF_ON_OFF, .preset = "on", .journal = JOURNAL_ALWAYS,               \
         .help = "on or off")                                                                      \
    FLAG(enum colour, colour, "colour", OF_CHOICE(COLOUR_WORDS), .preset = "green",                \
         .journal = JOURNAL_CHANGED, .help = "a choice")                                           \
    FLAG(enum colour, wall, "wall", OF_CHOICE(COLOUR_WORDS), .preset = "blue",                     \
         .journal = JOURNAL_AS_NUMBER, .commands = IN_PLAN, .help = "a choice of one command")     \
    FLAG(int32_t, guesses, "guesses", .kind = FLAG_COUNT, .least = 0, .most = 31,                  \
         .words = FLAG_WORDS({"auto", -1}, {"off", 0}), .argument = "N", .preset = "auto",         \
         .journal = JOURNAL_ALWAYS, .help = "a count or a word")                                   \
    FLAG(struct pair, pair, "pair", OF_PARSED(read_pair, "A:B", "A:B"), .preset = "1:2")           \
    FLAG(double, half, "half", OF_NUMBER(0, 1, "X"), .preset = "0.5", .journal = JOURNAL_CHANGED,  \
         .help = "a real number with a preset")

struct values {
    VALUES(FLAG_FIELD)
};

#define FLAG_OWNER struct values
static const struct flag rows[] = {VALUES(FLAG_ROW)};
#undef FLAG_OWNER

static const struct flag_group group = FLAG_GROUP(rows, 0);
static const struct flag_table table = {.groups = &group, .n_groups = 1};

enum { N_FLAGS = sizeof rows / sizeof rows[0], N_ARGS_MAX = 160 };

struct parsed {
    struct values v;
    struct positionals p;
    struct flags_given given;
    enum flags_ask ask;
    struct status st;
};

/* Parses a NULL-terminated list of arguments after the command's name. */
static struct parsed parse_with(const struct flag_table *t, const char *const *args,
                                size_t n_positionals)
{
    struct parsed out = {.st = status_ok()};
    struct flags_parsed parsed = {.positionals = {.n_wanted = n_positionals}};
    char *argv[N_ARGS_MAX + 2] = {"cmd"};
    int argc = 1;
    for (; args[argc - 1] != NULL && argc <= N_ARGS_MAX; argc++)
        argv[argc] = (char *)args[argc - 1];
    out.st = flags_parse(t, argc, argv, &out.v, &parsed);
    out.p = parsed.positionals;
    out.given = parsed.given;
    out.ask = parsed.ask;
    return out;
}

static struct parsed parse(const char *const *args, size_t n_positionals)
{
    return parse_with(&table, args, n_positionals);
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
        /* also after a positional argument */
        check_refused(PARSE(2, "one", "two", wrong[i], "1"), sentence);
    }
}

/* Abbreviations are refused: adding a flag later could make them ambiguous. */
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

static void presets_hold_until_a_flag_is_given(void)
{
    const struct parsed none = PARSE(0, "--on");
    CU_ASSERT_EQUAL(none.v.bytes, 3 * 1024);
    CU_ASSERT_TRUE(none.v.cache);
    CU_ASSERT(none.v.colour == GREEN && none.v.wall == BLUE && none.v.guesses == -1);
    CU_ASSERT(none.v.pair.a == 1 && none.v.pair.b == 2 && none.v.half == 0.5);
    CU_ASSERT_EQUAL(none.v.count, 0);
    const struct parsed all = PARSE(0, "--memory", "7", "--cache", "off", "--colour=red", "--wall",
                                    "green", "--guesses", "31", "--pair", "8:9", "--half", "1");
    CU_ASSERT_EQUAL_FATAL(all.st.code, STATUS_OK);
    CU_ASSERT_EQUAL(all.v.bytes, 7 * 1024);
    CU_ASSERT_FALSE(all.v.cache);
    CU_ASSERT(all.v.colour == RED && all.v.wall == GREEN && all.v.guesses == 31);
    CU_ASSERT(all.v.pair.a == 8 && all.v.pair.b == 9 && all.v.half == 1);
    CU_ASSERT_EQUAL(PARSE(0, "--guesses", "off").v.guesses, 0);
}

static void a_flag_that_repeats_its_preset_was_given(void)
{
    const struct parsed p = PARSE(0, "--colour", "green", "--count-size", "4");
    CU_ASSERT_TRUE(flags_is_given(&p.given, "colour"));
    CU_ASSERT_TRUE(flags_is_given(&p.given, "count")); /* by its alias */
    CU_ASSERT_FALSE(flags_is_given(&p.given, "wall"));
}

static void other_words_are_refused_with_all_that_are_taken(void)
{
    check_refused(PARSE(0, "--cache", "maybe"), "--cache: expected on or off, found \"maybe\"");
    check_refused(PARSE(0, "--colour", "Red"),
                  "--colour: expected red, green or blue, found \"Red\"");
    check_refused(PARSE(0, "--guesses", "32"),
                  "--guesses: expected auto, off or an integer from 0 to 31, found \"32\"");
    check_refused(PARSE(0, "--pair", "1"), "--pair: expected A:B, found \"1\"");
    check_refused(PARSE(0, "--memory", "0"),
                  "--memory: expected an integer from 1 to 1000, found \"0\"");
}

static void a_command_takes_its_own_rows(void)
{
    const struct flag_table jobs = {.groups = &group, .n_groups = 1, .command = IN_SCORE};
    const struct flag_table plan = {.groups = &group, .n_groups = 1, .command = IN_PLAN};
    const char *const wall[] = {"--wall", "red", NULL}, *const count[] = {"--count", "3", NULL};
    CU_ASSERT_EQUAL(parse_with(&jobs, wall, 0).st.code, STATUS_USAGE);
    CU_ASSERT_EQUAL(parse_with(&jobs, wall, 0).v.wall, BLUE); /* the preset stays */
    CU_ASSERT_EQUAL(parse_with(&jobs, count, 0).st.code, STATUS_OK);
    CU_ASSERT_EQUAL(parse_with(&plan, wall, 0).st.code, STATUS_OK);
    CU_ASSERT_EQUAL(parse_with(&plan, count, 0).st.code, STATUS_USAGE);
}

/* Returns the settings that a journal keeps; the caller frees them. */
static struct strbuf settings_of(const struct values *v, const char *leave_out)
{
    struct strbuf s;
    strbuf_init(&s);
    flags_settings(&group, v, leave_out, &s);
    return s;
}

/* The text must not change, because existing journals contain it. A flag with JOURNAL_CHANGED is in
 * the text only if its value is not the preset. */
static void settings_keep_what_changes_bytes(void)
{
    const struct parsed none = PARSE(0, "--on");
    const struct parsed some = PARSE(0, "--colour", "blue", "--half", "0.1", "--wall", "red",
                                     "--guesses", "7", "--list", "a\"b", "--list", "c");
    struct strbuf s = settings_of(&none.v, NULL);
    CU_ASSERT_STRING_EQUAL(s.data, "--list=\n--cache=on\n--wall=6\n--guesses=auto\n");
    strbuf_fini(&s);
    s = settings_of(&some.v, "cache");
    CU_ASSERT_STRING_EQUAL(s.data, "--list=\"a\\\"b\",\"c\"\n--colour=blue\n--wall=0\n"
                                   "--guesses=7\n--half=0.10000000000000001\n");
    strbuf_fini(&s);
}

static void help_stops_the_reading(void)
{
    CU_ASSERT_EQUAL(PARSE(0, "-h", "--bogus").ask, FLAGS_HELP);
    CU_ASSERT_EQUAL(PARSE(0, "--help", "--bogus").ask, FLAGS_HELP);
    CU_ASSERT_EQUAL(PARSE(0, "--on", "--help-man").ask, FLAGS_MAN);
    CU_ASSERT_EQUAL(PARSE(0, "--help").st.code, STATUS_OK);
}

/* Prints the page of the table and returns it; the caller frees it. */
static char *print(enum flags_ask ask)
{
    const struct flags_page page = {.command = "cmd",
                                    .arguments = "SRC [FLAGS]",
                                    .summary = "does it",
                                    .description = ".first\n'second a-b\\c",
                                    .table = &table};
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
        snprintf(as_help, sizeof as_help, "  --%s ", rows[i].name);
        snprintf(as_man, sizeof as_man, "\n.B \\-\\-%s ", rows[i].name);
        const bool shown = rows[i].help != NULL;
        CU_ASSERT_EQUAL(strstr(help, as_help) != NULL, shown);
        CU_ASSERT_EQUAL(strstr(man, as_man) != NULL, shown);
        if (shown) CU_ASSERT_PTR_NOT_NULL(strstr(help, rows[i].help));
    }
    CU_ASSERT_PTR_NULL(strstr(help, "count-size"));
    CU_ASSERT_PTR_NOT_NULL(strstr(help, "--colour red|green|blue"));
    CU_ASSERT_PTR_NOT_NULL(strstr(help, "a choice (default green)\n"));
    CU_ASSERT_PTR_NOT_NULL(strstr(help, "--guesses auto|off|N"));
    CU_ASSERT_PTR_NOT_NULL(strstr(man, "a size in KiB (default 3)\n"));
    CU_ASSERT_PTR_NULL(strstr(help, "a text (default"));
    /* lines of the man page that begin with '.' or ' are escaped, so troff does not take them as
     * requests */
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
    CU_add_test(suite, "presets hold until a flag is given", presets_hold_until_a_flag_is_given);
    CU_add_test(suite, "a flag that repeats its preset was given",
                a_flag_that_repeats_its_preset_was_given);
    CU_add_test(suite, "other words are refused with all that are taken",
                other_words_are_refused_with_all_that_are_taken);
    CU_add_test(suite, "a command takes its own rows", a_command_takes_its_own_rows);
    CU_add_test(suite, "settings keep what changes bytes", settings_keep_what_changes_bytes);
    CU_add_test(suite, "help stops the reading", help_stops_the_reading);
    CU_add_test(suite, "pages show every flag but aliases", pages_show_every_flag_but_aliases);
}
