/* Blanks, word characters, categories, case, normal forms and grapheme clusters, with utf8proc. */
#include "text/unicode/unicode.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <string.h>
#include <utf8proc.h>

struct category {
    const char *name;
    const char *added; /* code points of Unicode 15 and 16, as the inside of a PCRE2 class */
};

/* PCRE2 10.42 knows Unicode 14. The added code points make it agree with later versions. */
static const struct category CATEGORIES[] = {
    {"Lu", "\\x{1c89}\\x{a7cb}-\\x{a7cc}\\x{a7da}\\x{a7dc}\\x{10d50}-\\x{10d65}"},
    {"Ll", "\\x{1c8a}\\x{a7cd}\\x{a7db}\\x{10d70}-\\x{10d85}\\x{1df25}-\\x{1df2a}"},
    {"Lm", "\\x{10d4e}\\x{10d6f}\\x{16d40}-\\x{16d42}\\x{16d6b}-\\x{16d6c}\\x{1e030}-\\x{1e06d}"
           "\\x{1e4eb}"},
    {"Lo", "\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d4d}\\x{10d4f}\\x{10ec2}-\\x{10ec4}"
           "\\x{1123f}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}"
           "\\x{113b7}\\x{113d1}\\x{113d3}\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}"
           "\\x{11f12}-\\x{11f33}\\x{1342f}\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}"
           "\\x{16100}-\\x{1611d}\\x{16d43}-\\x{16d6a}\\x{18cff}\\x{1b132}\\x{1b155}"
           "\\x{1e4d0}-\\x{1e4ea}\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}"
           "\\x{31350}-\\x{323af}"},
    {"Mn", "\\x{897}\\x{ece}\\x{10d69}-\\x{10d6d}\\x{10efc}-\\x{10eff}\\x{11241}"
           "\\x{113bb}-\\x{113c0}\\x{113ce}\\x{113d0}\\x{113d2}\\x{113e1}-\\x{113e2}"
           "\\x{11f00}-\\x{11f01}\\x{11f36}-\\x{11f3a}\\x{11f40}\\x{11f42}\\x{11f5a}\\x{13440}"
           "\\x{13447}-\\x{13455}\\x{1611e}-\\x{16129}\\x{1612d}-\\x{1612f}\\x{1e08f}"
           "\\x{1e4ec}-\\x{1e4ef}\\x{1e5ee}-\\x{1e5ef}"},
    {"Mc", "\\x{cf3}\\x{113b8}-\\x{113ba}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}"
           "\\x{113cc}-\\x{113cd}\\x{113cf}\\x{1171e}\\x{11f03}\\x{11f34}-\\x{11f35}"
           "\\x{11f3e}-\\x{11f3f}\\x{11f41}\\x{1612a}-\\x{1612c}"},
    {"Nd", "\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}"
           "\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1e4f0}-\\x{1e4f9}"
           "\\x{1e5f1}-\\x{1e5fa}"},
    {"No", "\\x{1d2c0}-\\x{1d2d3}"},
    {"Pd", "\\x{10d6e}"},
    {"Po", "\\x{1b4e}-\\x{1b4f}\\x{1b7f}\\x{113d4}-\\x{113d5}\\x{113d7}-\\x{113d8}"
           "\\x{11b00}-\\x{11b09}\\x{11be1}\\x{11f43}-\\x{11f4f}\\x{16d6d}-\\x{16d6f}\\x{1e5ff}"},
    {"Sm", "\\x{10d8e}-\\x{10d8f}"},
    {"So", "\\x{2427}-\\x{2429}\\x{2ffc}-\\x{2fff}\\x{31e4}-\\x{31e5}\\x{31ef}"
           "\\x{1cc00}-\\x{1ccef}\\x{1cd00}-\\x{1ceb3}\\x{1f6dc}\\x{1f774}-\\x{1f776}"
           "\\x{1f77b}-\\x{1f77f}\\x{1f7d9}\\x{1f8b2}-\\x{1f8bb}\\x{1f8c0}-\\x{1f8c1}"
           "\\x{1fa75}-\\x{1fa77}\\x{1fa87}-\\x{1fa89}\\x{1fa8f}\\x{1faad}-\\x{1faaf}"
           "\\x{1fabb}-\\x{1fabf}\\x{1fac6}\\x{1face}-\\x{1facf}\\x{1fada}-\\x{1fadc}\\x{1fadf}"
           "\\x{1fae8}-\\x{1fae9}\\x{1faf7}-\\x{1faf8}\\x{1fbcb}-\\x{1fbef}"},
    {"Cf", "\\x{13439}-\\x{1343f}"},
    {"Lt", ""},
    {"Me", ""},
    {"Nl", ""},
    {"Pc", ""},
    {"Ps", ""},
    {"Pe", ""},
    {"Pi", ""},
    {"Pf", ""},
    {"Sc", ""},
    {"Sk", ""},
    {"Zs", ""},
    {"Zl", ""},
    {"Zp", ""},
    {"Cc", ""},
};

enum { N_CATEGORIES = sizeof CATEGORIES / sizeof CATEGORIES[0] };

/* Script=Han, with the ideographs of Unicode 15 and 15.1. */
static const char HAN[] = "\\p{sc:Han}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}";

bool unicode_category_class(const char *name, size_t n, struct strbuf *out)
{
    if (n == 3 && memcmp(name, "Han", 3) == 0) {
        strbuf_puts(out, HAN);
        return true;
    }
    if (n < 1 || n > 2) return false;
    if (n == 1 && name[0] == 'C')
        return false; /* C has the unassigned code points, which differ between versions */
    bool known = false;
    for (size_t i = 0; i < N_CATEGORIES; i++) {
        if (strncmp(CATEGORIES[i].name, name, n) != 0) continue;
        if (!known) strbuf_printf(out, "\\p{%.*s}", (int)n, name);
        strbuf_puts(out, CATEGORIES[i].added);
        known = true;
    }
    return known;
}

bool unicode_is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* True for Other_Alphabetic symbols: circled, squared and negative Latin letters. */
static bool is_letter_symbol(uint32_t c)
{
    return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
           (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

bool unicode_is_word(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return c == 0x200C || c == 0x200D || is_letter_symbol(c);
    }
}

bool unicode_is_normal(enum unicode_form form, const char *text, size_t n)
{
    /* the lead byte of U+0300, the first code point that NFC may change; other forms: the first
     * byte beyond ASCII */
    const unsigned char from = form == UNICODE_NFC ? 0xCC : 0x80;
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] >= from) return false;
    }
    return true;
}

struct code_range {
    uint32_t first, last;
};

/* clang-format off */
/* Characters newer than Unicode 9 that have a combining class, a decomposition or a composition. The
 * tokenizers library normalizes by Unicode 9 and so leaves them unchanged. */
static const struct code_range NEWER[] = {
    {0x7FD, 0x7FD}, {0x897, 0x89F}, {0x8CA, 0x8D3}, {0x9FE, 0x9FE}, {0xC3C, 0xC3C},
    {0xD3B, 0xD3C}, {0xEBA, 0xEBA}, {0xECE, 0xECE}, {0x1715, 0x1715}, {0x1ABF, 0x1ACE},
    {0x1DF6, 0x1DFA}, {0xA82C, 0xA82C}, {0x105C9, 0x105C9}, {0x105E4, 0x105E4},
    {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC}, {0x10EFC, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x11241, 0x11241},
    {0x1133B, 0x1133B}, {0x11383, 0x11383}, {0x11385, 0x11385}, {0x1138E, 0x1138E},
    {0x11391, 0x11391}, {0x113B8, 0x113B8}, {0x113BB, 0x113C0}, {0x113C2, 0x113C2},
    {0x113C5, 0x113C5}, {0x113C7, 0x113C9}, {0x113CE, 0x113CE}, {0x113D0, 0x113D0},
    {0x113D2, 0x113D2}, {0x113E1, 0x113E2}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F00, 0x11F01},
    {0x11F36, 0x11F3A}, {0x11F40, 0x11F40}, {0x11F42, 0x11F42}, {0x11F5A, 0x11F5A},
    {0x13440, 0x13440}, {0x13447, 0x13455}, {0x1611E, 0x16129}, {0x1612D, 0x1612F},
    {0x16D67, 0x16D6A}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF},
};

/* Characters whose compatibility decompositions are newer than Unicode 9. */
static const struct code_range NEWER_COMPATIBLE[] = {
    {0x32FF, 0x32FF}, {0xA7F1, 0xA7F4}, {0xAB69, 0xAB69}, {0x10781, 0x10785}, {0x10787, 0x107B0},
    {0x107B2, 0x107BA}, {0x1CCD6, 0x1CCF9}, {0x1E030, 0x1E06D}, {0x1F16C, 0x1F16C},
    {0x1FBF0, 0x1FBF9},
};

/* Marks that are newer than Unicode 9. */
static const struct code_range NEWER_MARKS[] = {
    {0x7FD, 0x7FD}, {0x897, 0x89F}, {0x8CA, 0x8D3}, {0x9FE, 0x9FE}, {0xAFA, 0xAFF},
    {0xB55, 0xB55}, {0xC04, 0xC04}, {0xC3C, 0xC3C}, {0xCF3, 0xCF3}, {0xD00, 0xD00},
    {0xD3B, 0xD3C}, {0xD81, 0xD81}, {0xEBA, 0xEBA}, {0xECE, 0xECE}, {0x1715, 0x1715},
    {0x180F, 0x180F}, {0x1ABF, 0x1ACE}, {0x1CF7, 0x1CF7}, {0x1DF6, 0x1DFA}, {0xA82C, 0xA82C},
    {0xA8FF, 0xA8FF}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC},
    {0x10EFC, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x11073, 0x11074}, {0x110C2, 0x110C2}, {0x11145, 0x11146}, {0x111C9, 0x111C9},
    {0x111CE, 0x111CF}, {0x11241, 0x11241}, {0x1133B, 0x1133B}, {0x113B8, 0x113D2},
    {0x113E1, 0x113E2}, {0x1145E, 0x1145E}, {0x1182C, 0x1183A}, {0x11930, 0x11935},
    {0x11937, 0x11938}, {0x1193B, 0x1193E}, {0x11940, 0x11940}, {0x11942, 0x11943},
    {0x119D1, 0x119D7}, {0x119DA, 0x119E0}, {0x119E4, 0x119E4}, {0x11A01, 0x11A0A},
    {0x11A33, 0x11A39}, {0x11A3B, 0x11A3E}, {0x11A47, 0x11A47}, {0x11A51, 0x11A5B},
    {0x11A8A, 0x11A99}, {0x11D31, 0x11D36}, {0x11D3A, 0x11D3A}, {0x11D3C, 0x11D3D},
    {0x11D3F, 0x11D45}, {0x11D47, 0x11D47}, {0x11D8A, 0x11D8E}, {0x11D90, 0x11D91},
    {0x11D93, 0x11D97}, {0x11EF3, 0x11EF6}, {0x11F00, 0x11F01}, {0x11F03, 0x11F03},
    {0x11F34, 0x11F3A}, {0x11F3E, 0x11F42}, {0x11F5A, 0x11F5A}, {0x13440, 0x13440},
    {0x13447, 0x13455}, {0x1611E, 0x1612F}, {0x16F4F, 0x16F4F}, {0x16F7F, 0x16F87},
    {0x16FE4, 0x16FE4}, {0x16FF0, 0x16FF1}, {0x1CF00, 0x1CF2D}, {0x1CF30, 0x1CF46},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF},
};
/* Marks of Unicode 9 that are no longer marks. */
static const struct code_range FORMER_MARKS[] = {
    {0x1CF2, 0x1CF3},
};

/* Letters that got a lower case in Unicode 16 and 17; the tokenizers library maps them. */
static const struct {
    uint32_t first, last, lower;
} NEWER_CASES[] = {
    {0x1C89, 0x1C89, 0x1C8A}, {0xA7CB, 0xA7CB, 0x264}, {0xA7CC, 0xA7CC, 0xA7CD},
    {0xA7CE, 0xA7CE, 0xA7CF}, {0xA7D2, 0xA7D2, 0xA7D3}, {0xA7D4, 0xA7D4, 0xA7D5},
    {0xA7DA, 0xA7DA, 0xA7DB}, {0xA7DC, 0xA7DC, 0x19B}, {0x10D50, 0x10D65, 0x10D70},
    {0x16EA0, 0x16EB8, 0x16EBB},
};
/* clang-format on */

#define COUNT(ranges) (sizeof(ranges) / sizeof(ranges)[0])

/* Searches ascending ranges by bisection. */
static bool in_ranges(uint32_t c, const struct code_range *ranges, size_t n)
{
    size_t low = 0, high = n;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (c > ranges[mid].last) {
            low = mid + 1;
        } else if (c < ranges[mid].first) {
            high = mid;
        } else {
            return true;
        }
    }
    return false;
}

static bool is_newer(uint32_t c)
{
    return in_ranges(c, NEWER, COUNT(NEWER));
}

static bool is_newer_compatible(uint32_t c)
{
    return in_ranges(c, NEWER_COMPATIBLE, COUNT(NEWER_COMPATIBLE));
}

bool unicode_is_mark(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return !in_ranges(c, NEWER_MARKS, COUNT(NEWER_MARKS));
    default:
        return in_ranges(c, FORMER_MARKS, COUNT(FORMER_MARKS));
    }
}

size_t unicode_grapheme_bytes(const char *text, size_t n)
{
    size_t at, step;
    utf8proc_int32_t state = 0;
    utf8proc_int32_t before = (utf8proc_int32_t)utf8_decode(text, n, &at);
    for (; at < n; at += step) {
        const utf8proc_int32_t c = (utf8proc_int32_t)utf8_decode(text + at, n - at, &step);
        if (utf8proc_grapheme_break_stateful(before, c, &state)) break;
        before = c;
    }
    return at;
}

size_t unicode_lowercase(uint32_t c, uint32_t out[2])
{
    if (c == 0x130) { /* the only character whose lower case has two code points */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    if (c < 0x1C89) return 1;
    for (size_t i = 0; i < COUNT(NEWER_CASES); i++) {
        if (c < NEWER_CASES[i].first || c > NEWER_CASES[i].last) continue;
        out[0] = NEWER_CASES[i].lower + (c - NEWER_CASES[i].first);
    }
    return 1;
}

static int combining_class(int32_t c)
{
    const int k = utf8proc_get_property(c)->combining_class;
    return k != 0 && is_newer((uint32_t)c) ? 0 : k;
}

/* Stable counting sort of a run of combining marks by class; scratch has room for n. */
static void sort_run(int32_t *run, size_t n, int32_t *scratch)
{
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) start[combining_class(run[i]) + 1]++;
    for (size_t k = 1; k < 257; k++) start[k] += start[k - 1];
    for (size_t i = 0; i < n; i++) scratch[start[combining_class(run[i])]++] = run[i];
    memcpy(run, scratch, n * sizeof run[0]);
}

/* The canonical ordering algorithm; utf8proc's own is quadratic in the length of a run. */
static void sort_marks(int32_t *points, size_t n, int32_t *scratch)
{
    for (size_t i = 0; i < n;) {
        if (combining_class(points[i]) == 0) {
            i++;
            continue;
        }
        size_t end = i + 1;
        while (end < n && combining_class(points[end]) != 0) end++;
        if (end - i > 1) sort_run(points + i, end - i, scratch);
        i = end;
    }
}

/* Decomposes text into points [capacity]; returns their number. */
static size_t decompose(const char *text, size_t n, bool compatible, int32_t *points,
                        size_t capacity)
{
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    size_t n_points = 0, step;
    for (size_t i = 0; i < n; i += step) {
        const uint32_t c = utf8_decode(text + i, n - i, &step);
        if (is_newer(c) || (compatible && is_newer_compatible(c))) {
            points[n_points++] = (int32_t)c;
            continue;
        }
        int boundary = 0;
        const utf8proc_ssize_t got = utf8proc_decompose_char(
            (utf8proc_int32_t)c, points + n_points, (utf8proc_ssize_t)(capacity - n_points),
            compatible ? options | UTF8PROC_COMPAT : options, &boundary);
        if (got > 0) n_points += (size_t)got;
    }
    return n_points;
}

static void put_points(const int32_t *points, size_t n, struct strbuf *out)
{
    for (size_t i = 0; i < n; i++) {
        char bytes[4];
        strbuf_add(out, bytes, utf8_encode((uint32_t)points[i], bytes));
    }
}

/* Composes n ordered points canonically and appends them as UTF-8. */
static void compose(int32_t *points, size_t n, struct strbuf *out)
{
    /* each run ends before a character newer than Unicode 9, which composes with none before it */
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        while (end < n && !is_newer((uint32_t)points[end])) end++;
        const utf8proc_ssize_t n_composed = utf8proc_normalize_utf32(
            points + i, (utf8proc_ssize_t)(end - i), UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (n_composed > 0) put_points(points + i, (size_t)n_composed, out);
    }
}

struct status unicode_normalize(enum unicode_form form, const char *text, size_t n,
                                struct strbuf *out)
{
    const bool compatible = form == UNICODE_NFKC || form == UNICODE_NFKD;
    const bool composed = form == UNICODE_NFC || form == UNICODE_NFKC;
    /* A code point of k bytes becomes at most k + 2 points, or 6 k compatible ones (U+FDFA). */
    size_t capacity;
    if (!mem_mul(n, compatible ? 6 : 3, &capacity) || !mem_add(capacity, 4, &capacity)) {
        return status_make(STATUS_MEMORY, "normalizing a text of %zu bytes", n);
    }
    int32_t *points;
    TRY(mem_alloc(&points, capacity, 2 * sizeof points[0], "code points to normalize"));
    const size_t n_points = decompose(text, n, compatible, points, capacity);
    sort_marks(points, n_points, points + capacity);
    if (composed) {
        compose(points, n_points, out);
    } else {
        put_points(points, n_points, out);
    }
    mem_free(&points);
    return strbuf_status(out);
}
