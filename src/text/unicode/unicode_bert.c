/* The character classes of BERT's normalizer and pre-tokenizer. The tokenizers library has them
 * from older versions of Unicode. So characters that are newer are taken out of utf8proc's
 * categories, and characters that left a category since then still belong to it. */
#include "text/unicode/unicode.h"

#include <utf8proc.h>

struct code_range {
    uint32_t first, last;
};

/* clang-format off */
static const struct code_range NEWER_CONTROLS[] = {
    {0x890, 0x891}, {0x8E2, 0x8E2}, {0x110CD, 0x110CD}, {0x13430, 0x1343F},
};

static const struct code_range NEWER_ACCENTS[] = {
    {0x8D4, 0x8E1}, {0x1885, 0x1886}, {0x1CF2, 0x1CF3}, {0x1DFB, 0x1DFB}, {0xA8C5, 0xA8C5},
    {0xA9BD, 0xA9BD}, {0x1123E, 0x1123E}, {0x11438, 0x1143F}, {0x11442, 0x11444},
    {0x11446, 0x11446}, {0x11C30, 0x11C36}, {0x11C38, 0x11C3D}, {0x11C3F, 0x11C3F},
    {0x11C92, 0x11CA7}, {0x11CAA, 0x11CB0}, {0x11CB2, 0x11CB3}, {0x11CB5, 0x11CB6},
    {0x1E000, 0x1E006}, {0x1E008, 0x1E018}, {0x1E01B, 0x1E021}, {0x1E023, 0x1E024},
    {0x1E026, 0x1E02A}, {0x1E944, 0x1E94A},
};

static const struct code_range NEWER_PUNCTUATION[] = {
    {0x61D, 0x61D}, {0x9FD, 0x9FD}, {0xA76, 0xA76}, {0xC77, 0xC77}, {0xC84, 0xC84},
    {0x1B4E, 0x1B4F}, {0x1B7D, 0x1B7F}, {0x2E43, 0x2E4F}, {0x2E52, 0x2E5D}, {0x10D6E, 0x10D6E},
    {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59}, {0x10F86, 0x10F89}, {0x113D4, 0x113D8},
    {0x1144B, 0x1144F}, {0x1145A, 0x1145B}, {0x1145D, 0x1145D}, {0x11660, 0x1166C},
    {0x116B9, 0x116B9}, {0x1183B, 0x1183B}, {0x11944, 0x11946}, {0x119E2, 0x119E2},
    {0x11A3F, 0x11A46}, {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09},
    {0x11BE1, 0x11BE1}, {0x11C41, 0x11C45}, {0x11C70, 0x11C71}, {0x11EF7, 0x11EF8},
    {0x11F43, 0x11F4F}, {0x11FFF, 0x11FFF}, {0x12FF1, 0x12FF2}, {0x16D6D, 0x16D6F},
    {0x16E97, 0x16E9A}, {0x16FE2, 0x16FE2}, {0x1E5FF, 0x1E5FF}, {0x1E95E, 0x1E95F},
};

static const struct code_range IDEOGRAPHS[] = {
    {0x3400, 0x4DBF}, {0x4E00, 0x9FFF}, {0xF900, 0xFAFF}, {0x20000, 0x2A6DF},
    {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F},
};
/* clang-format on */

#define IN_RANGES(c, ranges) in_bert_ranges(c, ranges, sizeof(ranges) / sizeof(ranges)[0])

static bool in_bert_ranges(uint32_t c, const struct code_range *ranges, size_t n)
{
    for (size_t i = 0; i < n && c >= ranges[i].first; i++)
        if (c <= ranges[i].last) return true;
    return false;
}

bool unicode_bert_drops(uint32_t c)
{
    if (c == '\t' || c == '\n' || c == '\r') return false;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO:
        return !IN_RANGES(c, NEWER_CONTROLS);
    default:
        return c == 0xFFFD;
    }
}

bool unicode_bert_is_accent(uint32_t c)
{
    if (c < 0x300 || !unicode_is_mark(c) || IN_RANGES(c, NEWER_ACCENTS)) return false;
    return c == 0x1734 || utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_MN;
}

bool unicode_bert_is_punctuation(uint32_t c)
{
    if (c < 0x80)
        return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) ||
               (c >= 0x7B && c <= 0x7E);
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        return !IN_RANGES(c, NEWER_PUNCTUATION);
    default:
        return c == 0x166D || c == 0x111C9;
    }
}

bool unicode_bert_is_ideograph(uint32_t c)
{
    return IN_RANGES(c, IDEOGRAPHS);
}
