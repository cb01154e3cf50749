/* JSON Schema: which texts a schema accepts, alone and combined with others, and which schemas are
 * refused. */
#include "text/grammar/json_schema.h"

#include "base/strbuf.h"
#include "util_forms.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct util_form schemas[] = {
    {"{\"type\":\"string\"}",
     {"\"\"", "\"a\\n\\u00e9\\\"\"", "\"\xC3\xA9\"", "\"\x7F\""},
     {"a", "\"\n\"", "\"\x1F\"", "\"\\ud800\"", "\"\\x\"", "\"a"}},
    {"{\"type\":\"string\",\"pattern\":\"^.[^a]\\\\x7f$\"}",
     {"\"~~\x7F\"", "\"\x7F\x7F\x7F\""},
     {"\"\x7F\x7F~\"", "\"\x1F~\x7F\"", "\"\"~\x7F\""}},
    {"{\"type\":\"string\",\"minLength\":1,\"maxLength\":2}",
     {"\"a\"", "\"\\n\xC3\xA9\""},
     {"\"\"", "\"abc\""}},
    {"{\"type\":\"string\",\"pattern\":\"^a.\"}",
     {"\"ab\"", "\"a xyz\""},
     {"\"a\"", "\"ba\"", "\"a\\\"\""}},
    {"{\"type\":\"string\",\"pattern\":\"b|^c$\"}", {"\"abc\"", "\"c\""}, {"\"cc\"", "\"\""}},
    {"{\"type\":\"string\",\"format\":\"date\"}", {"\"2024-02-29\""}, {"\"2024-13-01\"", "\"x\""}},
    {"{\"type\":\"string\",\"format\":\"time\"}",
     {"\"00:00:00Z\"", "\"23:59:59.123456-23:59\""},
     {"\"24:00:00Z\"", "\"12:60:00Z\"", "\"12:00:60Z\"", "\"12:00:00\"", "\"12:00:00+24:00\"",
      "\"12:00:00.Z\""}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     {"\"2000-02-29T00:00:00Z\""},
     {"\"1900-02-29T00:00:00Z\"", "\"2024-02-29\"", "\"2024-02-29T24:00:00Z\""}},
    {"{\"type\":\"string\",\"format\":\"email\"}", {"\"x\""}, {"x"}},
    {"{\"type\":\"integer\"}",
     {"0", "-1", "999999999999999999"},
     {"01", "-", "-0", "+1", "1.0", "1000000000000000000"}},
    {"{\"type\":\"integer\",\"minimum\":-12,\"exclusiveMaximum\":305}",
     {"-12", "-9", "0", "99", "304"},
     {"-13", "305", "-20", "1000"}},
    {"{\"type\":\"integer\",\"minimum\":95,\"maximum\":10007}",
     {"95", "100", "999", "10007"},
     {"94", "9", "10008", "20000", "-95"}},
    {"{\"type\":\"number\"}", {"0", "-1.5e-3", "12.25", "1E9"}, {"1.", ".5", "1e999", "--1", "01"}},
    {"{\"type\":\"number\",\"minimum\":-1.5,\"exclusiveMaximum\":12.25}",
     {"-1.5", "-1.50", "-0.001", "0", "0.0", "9.75", "12", "12.249", "12.24999999999", "-1"},
     {"-1.51", "-2", "12.25", "12.250", "13", "100", "-0", "-0.0", "01", "1.", "1e0", ".5"}},
    {"{\"type\":\"number\",\"minimum\":0.1,\"maximum\":0.3}",
     {"0.1", "0.3", "0.10", "0.2999", "0.30000000000000"},
     {"0", "0.0999", "0.31", "0.300000000000001", "0.09", "1", "-0.2"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0}",
     {"0.001", "1", "999999999999999", "10.5", "99999999999999.5"},
     {"0", "0.0", "-1", "1000000000000000", "9999999999.123456"}},
    {"{\"type\":\"number\",\"exclusiveMaximum\":-99.5,\"minimum\":-1e300}",
     {"-99.51", "-100", "-999999999999999"},
     {"-99.5", "-99", "0", "99.6"}},
    {"{\"type\":\"number\",\"minimum\":1e-20,\"maximum\":1e-3}",
     {"0.001", "0.0001", "0.00000000000001"},
     {"0", "0.0", "0.0011", "0.01"}},
    {"{\"type\":\"number\",\"minimum\":100,\"maximum\":100}", {"100", "100.0"}, {"99", "100.01"}},
    {"{\"type\":\"integer\",\"minimum\":0.5,\"exclusiveMaximum\":3.5}",
     {"1", "3"},
     {"0", "4", "1.0"}},
    {"{\"type\":[\"string\",\"integer\"],\"minLength\":2,\"minimum\":5}",
     {"\"ab\"", "5"},
     {"\"a\"", "4"}},
    {"{\"type\":[\"boolean\",\"null\"]}", {"true", "false", "null"}, {"nul", "True"}},
    {"{\"enum\":[\"a\\\"b\",1,null,{\"x\":[1,2]}]}",
     {"\"a\\\"b\"", "1", "null", "{\"x\":[1,2]}"},
     {"a", "2", "{\"x\": [1,2]}"}},
    {"{\"const\":false}", {"false"}, {"true"}},
    {"{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"integer\",\"minimum\":7,\"maximum\":8}]}",
     {"null", "7", "8"},
     {"9", "null7"}},
    {"{\"type\":\"array\",\"items\":{\"const\":1}}",
     {"[]", "[1]", "[1,1, 1]"},
     {"[1,]", "[,1]", "[1 ,1]", "[1", "[2]"}},
    {"{\"type\":\"array\",\"items\":{\"const\":1},\"minItems\":2,\"maxItems\":3}",
     {"[1,1]", "[1, 1,1]"},
     {"[]", "[1]", "[1,1,1,1]"}},
    {"{\"type\":\"array\",\"items\":{\"const\":1},\"minItems\":2}",
     {"[1,1]", "[1,1,1,1]"},
     {"[1]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}]}",
     {"[]", "[1]", "[1, 2]"},
     {"[2]", "[1,2,1]", "[1,1]"}},
    {"{\"prefixItems\":[{\"const\":1}],\"items\":{\"const\":2},\"minItems\":2}",
     {"[1,2]", "[1,2,2,2]"},
     {"[]", "[1]", "[1,1]", "[2]", "[1,2,1]"}},
    {"{\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":{\"const\":3},\"maxItems\":3,"
     "\"minItems\":1}",
     {"[1]", "[1,2]", "[1,2,3]"},
     {"[]", "[1,3]", "[1,2,3,3]"}},
    {"{\"prefixItems\":[{\"const\":1},{\"const\":2}],\"maxItems\":1}", {"[1]"}, {"[1,2]"}},
    {"{\"prefixItems\":[{\"const\":1}],\"items\":true}", {"[1,{\"a\":[]}]"}, {"[2]"}},
    {"{\"items\":false}", {"[]"}, {"[1]"}},
    {"{\"type\":\"object\",\"properties\":{\"v\":{\"const\":1},\"next\":{\"$ref\":\"#\"}},"
     "\"required\":[\"v\"]}",
     {"{\"v\":1}", "{\"v\":1,\"next\":{\"v\":1}}",
      "{\"v\":1,\"next\":{\"v\":1,\"next\":{\"v\":1,\"next\":{\"v\":1,\"next\":{\"v\":1}}}}}"},
     {"{\"next\":{\"v\":1}}", "{\"v\":1,\"next\":{}}",
      "{\"v\":1,\"next\":{\"v\":1,\"next\":{\"v\":1,\"next\":{\"v\":1,\"next\":{\"v\":1,"
      "\"next\":{\"v\":1}}}}}}"}},
    {"{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"array\","
     "\"items\":{\"$ref\":\"#/$defs/t\"},\"minItems\":2,\"maxItems\":2}]}}}",
     {"null", "[null,null]", "[[null,null],[null,[null,null]]]",
      "[[[[null,null],null],null],null]"},
     {"[null]", "[[[[[null,null],null],null],null],null]"}},
    {"{\"type\":\"array\",\"maxItems\":0}", {"[]"}, {"[1]"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{"
     "\"const\":"
     "3}},\"required\":[\"b\"]}",
     {"{\"b\":2}", "{\"a\":1,\"b\": 2}", "{\"a\":1, \"b\":2,\"c\":3}", "{\"b\":2,\"c\":3}"},
     {"{}", "{\"a\":1}", "{\"b\":2,\"a\":1}", "{\"b\":2,}", "{,\"b\":2}", "{\"a\":1\"b\":2}",
      "{\"b\":2,\"b\":2}"}},
    {"{\"properties\":{\"a\":{\"type\":\"null\"}}}", {"{}", "{\"a\":null}"}, {"{\"b\":null}"}},
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"boolean\"}}",
     {"{}", "{\"x\":true,\"y\": false}"},
     {"{\"x\":1}", "{\"x\":true,}"}},
    {"{\"type\":\"object\",\"additionalProperties\":false}", {"{}"}, {"{\"a\":1}"}},
    {"{\"type\":\"object\",\"required\":[]}", {"{}", "{\"a\":1}"}, {"[]"}},
    {"{\"type\":\"object\",\"required\":[],\"additionalProperties\":{\"const\":1}}",
     {"{}", "{\"a\":1}"},
     {"{\"a\":2}"}},
    {"{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/P\"},\"$defs\":{\"P\":{\"type\":\"null\","
     "\"title\":\"t\"}}}",
     {"[null]"},
     {"[1]"}},
    {"{\"allOf\":[{\"type\":\"integer\",\"minimum\":3},{\"type\":\"number\",\"maximum\":20.5},{"
     "\"exclusiveMinimum\":3}]}",
     {"4", "20"},
     {"3", "21", "4.5"}},
    {"{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},{"
     "\"properties\":{\"b\":{\"const\":1},\"a\":{\"maximum\":9}}}],\"properties\":{\"c\":true},"
     "\"required\":[\"b\"]}",
     {"{\"a\":9,\"b\":1}", "{\"c\":[],\"a\":-3, \"b\":1}"},
     {"{\"a\":10,\"b\":1}", "{\"a\":1}", "{\"b\":1,\"a\":1}", "{\"b\":1}",
      "{\"a\":1,\"b\":1,\"c\":1}"}},
    {"{\"allOf\":[{\"properties\":{\"a\":true},\"additionalProperties\":{\"type\":\"null\"}},{"
     "\"properties\":{\"a\":{\"const\":1},\"b\":{\"enum\":[1,null]},\"d\":false}},{"
     "\"properties\":{\"c\":{\"type\":\"null\"}}}]}",
     {"{}", "{\"a\":1}", "{\"a\":1,\"b\":null,\"c\":null}"},
     {"{\"b\":1}", "{\"d\":null}", "{\"d\":1}"}},
    {"{\"allOf\":[{\"additionalProperties\":{\"type\":\"integer\"}},{\"type\":\"object\","
     "\"additionalProperties\":{\"minimum\":3}}]}",
     {"{}", "{\"a\":3,\"b\":4}"},
     {"{\"a\":2}", "{\"a\":null}"}},
    {"{\"allOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"b$\"}],\"type\":\"string\",\"maxLength\":3,"
     "\"minLength\":3}",
     {"\"axb\"", "\"aab\"",
      "\"a\xC3\xA9"
      "b\""},
     {"\"ab\"", "\"axxb\"", "\"bxa\"", "\"a\\nb\""}},
    {"{\"type\":\"string\",\"format\":\"date\",\"pattern\":\"-02-\"}",
     {"\"2024-02-29\""},
     {"\"2024-03-01\"", "\"-02-\""}},
    {"{\"allOf\":[{\"enum\":[1,\"a\",7,null,[1]]},{\"enum\":[7,\"a\",1,[1]]},{\"type\":[\"number\","
     "\"array\"],\"minimum\":2,\"items\":true}]}",
     {"7", "[1]"},
     {"1", "\"a\"", "null"}},
    {"{\"type\":\"string\",\"enum\":[\"a\",1,null]}", {"\"a\""}, {"1", "null"}},
    {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\",\"minimum\":5}],\"oneOf\":[{\"type\":"
     "\"integer\",\"maximum\":7},{\"const\":\"x\"}]}",
     {"5", "7", "\"x\""},
     {"4", "8", "\"y\"", "null"}},
    {"{\"allOf\":[{\"$ref\":\"#/$defs/B\"}],\"anyOf\":[{\"allOf\":[{\"$ref\":\"#/$defs/B\"},{"
     "\"properties\":{\"c\":{\"const\":2}},\"required\":[\"c\"]}]},{\"$ref\":\"#\"}],\"$defs\":{"
     "\"B\":{"
     "\"properties\":{\"b\":{\"const\":1}},\"required\":[\"b\"]}}}",
     {"{\"b\":1,\"c\":2}"},
     {"{\"b\":1}", "{\"c\":2}", "{}"}},
    {"{\"allOf\":[{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":\"null\"}},{"
     "\"items\":{"
     "\"enum\":[1,2.5,null]},\"maxItems\":3},{\"type\":\"array\",\"maxItems\":4,\"minItems\":1}]}",
     {"[1]", "[1,null]", "[1,null,null]"},
     {"[]", "[2.5]", "[null]", "[1,1]", "[1,null,null,null]"}},
    {"{\"$ref\":\"#/$defs/"
     "x\",\"maximum\":4,\"$defs\":{\"x\":{\"type\":\"integer\",\"minimum\":3}}}",
     {"3", "4"},
     {"2", "5"}},
    {"{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^a\",\"format\":\"date\",\"maxLength\":12},{"
     "\"enum\":[3],\"allOf\":[{\"type\":\"integer\",\"minimum\":3},{\"maximum\":2}]},{\"const\":0}]"
     "}",
     {"0"},
     {"3", "\"a\""}},
    {"{}",
     {"1", "{\"a\":[{\"b\":{}}]}", "[[[[1]]]]", "\"x\"", "{\"a\":1,\"b\":{\"c\":null}}"},
     {"[[[[[1]]]]]", "{a:1}", "[1,]", ""}},
};

static void schemas_take_their_texts(void)
{
    util_expect_forms(util_of_schema, schemas, sizeof schemas / sizeof *schemas);
}

/* Writes a random decimal number from -2000 to 2000, with up to three digits behind the point. */
static void draw_decimal(uint32_t *lot, char text[16])
{
    *lot = *lot * 1664525 + 1013904223;
    const uint32_t x = *lot >> 8;
    const int n_behind = (int)(x % 4);
    static const int SCALE[] = {1, 10, 100, 1000};
    const int n = (int)(x / 4 % 4001) - 2000, scale = SCALE[n_behind];
    if (n_behind == 0)
        snprintf(text, 16, "%d", n);
    else
        snprintf(text, 16, "%s%d.%0*d", n < 0 ? "-" : "", abs(n) / scale, n_behind, abs(n) % scale);
}

/* For many bounds, a decimal number is accepted exactly when its double is between the bounds and
 * the text is not -0. */
static void numbers_are_those_between_their_bounds(void)
{
    uint32_t lot = 7;
    long n_taken = 0, n_refused = 0;
    for (int k = 0; k < 300; k++) {
        char spec[120], low[16], high[16], text[16];
        draw_decimal(&lot, low);
        draw_decimal(&lot, high);
        const bool low_is_out = lot >> 30 & 1, high_is_out = lot >> 29 & 1;
        if (strtod(low, NULL) >= strtod(high, NULL)) continue;
        snprintf(spec, sizeof spec, "{\"type\":\"number\",\"%s\":%s,\"%s\":%s}",
                 low_is_out ? "exclusiveMinimum" : "minimum", low,
                 high_is_out ? "exclusiveMaximum" : "maximum", high);
        struct dfa *d = NULL;
        CU_ASSERT_EQUAL_FATAL(util_compile(util_of_schema, spec, &d).code, STATUS_OK);
        for (int i = 0; i < 300; i++) {
            draw_decimal(&lot, text);
            const char *given = i == 0 ? low : i == 1 ? high : text;
            const double x = strtod(given, NULL), a = strtod(low, NULL), b = strtod(high, NULL);
            const bool fits = (low_is_out ? x > a : x >= a) && (high_is_out ? x < b : x <= b) &&
                              !(x == 0 && *given == '-');
            if (util_accepts(d, given) != fits) printf("\n  %s: %s\n", spec, given);
            CU_ASSERT(util_accepts(d, given) == fits);
            *(fits ? &n_taken : &n_refused) += 1;
        }
        dfa_destroy(&d);
    }
    CU_ASSERT(n_taken > 5000 && n_refused > 5000);
}

/* Returns a bound between about 1e-6 and 1e14: about every third a power of two or a double beside
 * one, the others decimals of one to seventeen digits. */
static double draw_bound(uint32_t *lot)
{
    *lot = *lot * 1664525 + 1013904223;
    const uint32_t kind = *lot >> 8, n_digits = 1 + *lot / 7 % 17;
    *lot = *lot * 1664525 + 1013904223;
    const double power = ldexp(1, (int)(*lot >> 8) % 66 - 20);
    if (kind % 3 == 0)
        return kind / 3 % 2 == 0 ? power : nextafter(power, kind / 6 % 2 * power * 2);
    char text[32];
    snprintf(text, sizeof text, "%.*e", (int)n_digits - 1, power * (1 + *lot / 4294967296.0));
    return strtod(text, NULL);
}

/* Writes the decimal of fifteen digits that is nearest to x, plus `steps` in its last digit. */
static void print_beside(double x, int steps, bool is_negative, char text[32])
{
    int n_whole = 1;
    while (pow(10, n_whole) <= x) n_whole++;
    const int n_behind = n_whole < 15 ? 15 - n_whole : 0;
    const long long scale = llround(pow(10, n_behind)), v = llround(x * (double)scale) + steps;
    snprintf(text, 32, "%s%lld.%0*lld", is_negative ? "-" : "", v / scale, n_behind, v % scale);
}

/* The longest decimals that are accepted have fifteen digits. Beside a bound, too, such a decimal
 * is accepted exactly when its double is on the right side of the bound, or equals it and the bound
 * is included. */
static void long_decimals_do_not_round_to_a_bound(void)
{
    uint32_t lot = 11;
    long n_taken = 0, n_refused = 0;
    for (int k = 0; k < 600; k++) {
        const double bound = draw_bound(&lot);
        const bool is_low = lot >> 30 & 1, is_out = lot >> 29 & 1, is_negative = lot >> 28 & 1;
        const double b = is_negative ? -bound : bound;
        const char *key = is_low   ? is_out ? "exclusiveMinimum" : "minimum"
                          : is_out ? "exclusiveMaximum"
                                   : "maximum";
        char spec[120], text[32];
        snprintf(spec, sizeof spec, "{\"type\":\"number\",\"%s\":%.17g}", key, b);
        struct dfa *d = NULL;
        CU_ASSERT_EQUAL_FATAL(util_compile(util_of_schema, spec, &d).code, STATUS_OK);
        for (int steps = -3; steps <= 3; steps++) {
            print_beside(bound, steps, is_negative, text);
            const double x = strtod(text, NULL);
            const bool fits = (x == b && !is_out) || (is_low ? x > b : x < b);
            if (util_accepts(d, text) != fits) printf("\n  %s: %s\n", spec, text);
            CU_ASSERT(util_accepts(d, text) == fits);
            *(fits ? &n_taken : &n_refused) += 1;
        }
        dfa_destroy(&d);
    }
    CU_ASSERT(n_taken > 1500 && n_refused > 1500);
}

static int days_of(int year, int month)
{
    static const int DAYS[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const bool is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if (year < 1 || month < 1 || month > 12) return 0;
    return month == 2 && is_leap ? 29 : DAYS[month - 1];
}

/* Each month has its days, by the Gregorian calendar from year 1 on. */
static void dates_are_those_of_the_calendar(void)
{
    struct dfa *date = NULL, *date_time = NULL;
    const char *spec = "{\"type\":\"string\",\"format\":\"date\"}";
    CU_ASSERT_EQUAL_FATAL(util_compile(util_of_schema, spec, &date).code, STATUS_OK);
    spec = "{\"type\":\"string\",\"format\":\"date-time\"}";
    CU_ASSERT_EQUAL_FATAL(util_compile(util_of_schema, spec, &date_time).code, STATUS_OK);
    for (int year = 0; year < 10000; year += year < 410 ? 1 : 53) {
        for (int k = 0; k < 14 * 33; k++) {
            const int month = k / 33, day = k % 33;
            const bool fits = day >= 1 && day <= days_of(year, month);
            char text[64];
            snprintf(text, sizeof text, "\"%04d-%02d-%02d\"", year, month, day);
            if (util_accepts(date, text) != fits) printf("\n  %s\n", text);
            CU_ASSERT_FATAL(util_accepts(date, text) == fits);
            snprintf(text, sizeof text, "\"%04d-%02d-%02dT23:59:59Z\"", year, month, day);
            CU_ASSERT_FATAL(util_accepts(date_time, text) == fits);
        }
    }
    dfa_destroy(&date);
    dfa_destroy(&date_time);
}

static void what_is_not_understood_is_named(void)
{
    static const char *const bad_schemas[][2] = {
        {"{\"type\":\"text\"}", "no type"},
        {"{\"type\":\"string\",\"minimum\":1}", "\"minimum\""},
        {"{\"not\":{}}", "\"not\""},
        {"{\"$ref\":\"#\"}", "no text can match"},
        {"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "no text can match"},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"items\":{\"$ref\":\"#\"}},{\"items\":{\"$ref\":\"#\"}},"
         "{\"prefixItems\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"},{\"$ref\":\"#\"},{\"$ref\":\"#\"},"
         "{\"$ref\":\"#\"},{\"$ref\":\"#\"},{\"$ref\":\"#\"},{\"$ref\":\"#\"},{\"$ref\":\"#\"}]}]}",
         "too large"},
        {"{\"prefixItems\":{}}", "\"prefixItems\""},
        {"{\"prefixItems\":[true],\"minItems\":2}", "\"prefixItems\" is below minItems"},
        {"{\"properties\":{\"a\":true},\"required\":[\"a\",\"a\"]}", "each once"},
        {"{\"properties\":{\"a\":true},\"required\":[7]}", "each once"},
        {"{\"properties\":{\"a\":true},\"required\":\"a\"}", "each once"},
        {"{\"type\":\"object\",\"required\":7}", "each once"},
        {"{\"$ref\":\"#/$defs/x\"}", "not found"},
        {"{\"$ref\":\"http://a/b\"}", "not found"},
        {"false", "expected a schema"},
        {"{\"enum\":[]}", "\"enum\""},
        {"{\"type\":\"object\",\"properties\":{},\"required\":[\"a\"]}", "\"required\""},
        {"{\"type\":\"array\",\"minItems\":-1}", "\"minItems\""},
        {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", "below minItems"},
        {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "below minLength"},
        {"{\"type\":\"string\",\"pattern\":\"(\"}", "\"pattern\""},
        {"{\"type\":\"string\",\"pattern\":\"^\\n$\"}", "no text can match"},
        {"{\"type\":\"integer\",\"minimum\":1e17}", "53 bits"},
        {"{\"type\":\"integer\",\"minimum\":0.5,\"maximum\":0.7}", "between its bounds"},
        {"{\"type\":\"number\",\"minimum\":\"3\"}", "\"minimum\": expected a number"},
        {"{\"type\":\"number\",\"minimum\":3,\"exclusiveMaximum\":3}", "between its bounds"},
        {"{\"type\":\"number\",\"minimum\":1e15}", "no text can match"},
        {"{\"type\":\"number\",\"minimum\":0.1234567890123451,\"maximum\":0.1234567890123459}",
         "no text can match"},
        {"{\"type\":\"number\",\"multipleOf\":3}", "\"multipleOf\""},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "between its bounds"},
        {"{\"type\":\"null\",\"minimum\":3}", "\"minimum\""},
        {"{\"type\":\"string\",\"maxLength\":500000}", "too large"},
        {"{\"anyOf\":[{},{\"type\":\"array\",\"items\":{\"allOf\":{}}}]}", "\"allOf\""},
        {"{\"allOf\":[{\"$ref\":\"#\"}]}", "no text can match"},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}", "no text can match"},
        {"{\"allOf\":[{\"type\":\"string\"},{\"not\":{}}]}", "\"not\""},
        {"{\"allOf\":[{\"maxLength\":3},{\"type\":\"string\",\"minLength\":4}]}",
         "no text can match"},
        {"{\"allOf\":[{\"const\":1},{\"enum\":[2,3]}]}", "no text can match"},
        {"{\"const\":1,\"enum\":[2,3]}", "no text can match"},
        {"{\"const\":1,\"enum\":7}", "\"enum\": expected a list"},
        {"{\"type\":\"string\",\"pattern\":\"^(a|b)*a(a|b){9}$\",\"maxLength\":20000}",
         "too large"}};
    util_expect_refused(util_of_schema, bad_schemas, sizeof bad_schemas / sizeof *bad_schemas);
}

/* Writes `part` n times, separated by commas; a % in it becomes the number of the repetition. */
static void repeat(struct strbuf *out, const char *before, const char *part, int n,
                   const char *after)
{
    strbuf_puts(out, before);
    for (int i = 0; i < n; i++) {
        if (i > 0) strbuf_puts(out, ",");
        for (const char *c = part; *c != '\0'; c++) {
            if (*c == '%')
                strbuf_printf(out, "%d", i);
            else
                strbuf_add(out, c, 1);
        }
    }
    strbuf_puts(out, after);
}

static uint64_t steps_of(const char *before, const char *part, int n, const char *after)
{
    struct grammar_work work = {.n_bytes = 0};
    struct dfa *d = NULL;
    struct strbuf spec;
    strbuf_init(&spec);
    repeat(&spec, before, part, n, after);
    const struct status st = util_compile_counting(util_of_schema, spec.data, &work, &d);
    if (status_failed(&st)) printf("\n  %s%s..%s: %s\n", before, part, after, st.text);
    CU_ASSERT_EQUAL(st.code, STATUS_OK);
    dfa_destroy(&d);
    strbuf_fini(&spec);
    return work.n_steps;
}

/* Twice as many values or members take less than three times as many steps. */
static void work_grows_with_the_schema_and_no_faster(void)
{
    static const char *const grown[][3] = {
        {"{\"enum\":[", "\"value %\"", "]}"},
        {"{\"allOf\":[{\"const\":\"a 7\"},{\"enum\":[", "\"a %\"", "]}]}"},
        {"{\"allOf\":[{\"enum\":[\"a 3\",\"a 7\"]}],\"enum\":[", "\"a %\"", "]}"},
        {"{\"type\":\"array\",\"prefixItems\":[", "{\"enum\":[true,%]}", "],\"minItems\":900}"},
        {"{\"prefixItems\":[", "{\"const\":%}", "]}"},
        {"{\"anyOf\":[", "{\"$ref\":\"#/$defs/x\"}", "],\"$defs\":{\"x\":{\"const\":1}}}"}};
    for (size_t i = 0; i < sizeof grown / sizeof *grown; i++) {
        const char *const *s = grown[i];
        const uint64_t once = steps_of(s[0], s[1], 1000, s[2]);
        const uint64_t twice = steps_of(s[0], s[1], 2000, s[2]);
        if (twice >= 3 * once) printf("\n  %s: %lu, %lu\n", s[0], (long)once, (long)twice);
        CU_ASSERT(twice < 3 * once);
    }
}

/* Schemas that need too much work: compiling stops soon after the limit, with an error. */
static void work_is_bounded(void)
{
    static const char *const large[][3] = {
        {"{\"enum\":[", "\"value %\"", "]}"},
        {"{\"properties\":{",
         "\"p%\":{\"type\":\"string\",\"pattern\":\"^[^@]+@[^@]+$\",\"format\":\"date\"}", "}}"},
        {"{\"type\":\"array\",\"maxItems\":40000,\"items\":{\"enum\":[", "\"%\"",
         "],\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){8}\"}}"},
        {"{\"$defs\":{\"x\":{\"type\":\"null\"}},\"allOf\":[{\"$ref\":\"#/$defs/x\"},{\"anyOf\":[",
         "{\"allOf\":[{\"type\":[\"string\",\"null\"]},{\"$ref\":\"#/$defs/x\"}]}", "]}]}"}};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        struct grammar_work work = {.n_bytes = 0};
        struct dfa *d = NULL;
        struct strbuf spec;
        strbuf_init(&spec);
        repeat(&spec, large[i][0], large[i][1], i == 2 ? 1000 : 100000, large[i][2]);
        work.n_bytes = spec.n;
        const struct status st = util_compile_counting(util_of_schema, spec.data, &work, &d);
        if (st.code != STATUS_REQUEST || strstr(st.text, "too large") == NULL)
            printf("\n  %s: %s\n", large[i][0], st.text);
        CU_ASSERT_EQUAL(st.code, STATUS_REQUEST);
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "it is too large: its"));
        CU_ASSERT(work.n_steps < GRAMMAR_STEPS_MAX + GRAMMAR_STEPS_MAX / 8);
        dfa_destroy(&d);
        strbuf_fini(&spec);
    }
}

void suite_json_schema(CU_pSuite suite);
void suite_json_schema(CU_pSuite suite)
{
    CU_ADD_TEST(suite, schemas_take_their_texts);
    CU_ADD_TEST(suite, numbers_are_those_between_their_bounds);
    CU_ADD_TEST(suite, long_decimals_do_not_round_to_a_bound);
    CU_ADD_TEST(suite, dates_are_those_of_the_calendar);
    CU_ADD_TEST(suite, what_is_not_understood_is_named);
    CU_ADD_TEST(suite, work_grows_with_the_schema_and_no_faster);
    CU_ADD_TEST(suite, work_is_bounded);
}
