/* Names of quantized formats. */
#include "tensor/quant_format.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    enum quant_kind kind;
    uint32_t group; /* used when the name has none */
    bool may_have_zeros, may_have_groups;
} kinds[] = {
    {"int8", QUANT_INT8, 0, true, true},
    {"int4", QUANT_INT4, 32, true, true},
    {"fp8", QUANT_FP8, 0, false, true},
    {"mxfp4", QUANT_MXFP4, 32, false, false},
};

/* Skips `word` at *s. */
static bool skip(const char **s, const char *word)
{
    const size_t n = strlen(word);
    if (strncmp(*s, word, n) != 0) return false;
    *s += n;
    return true;
}

/* Parses a group size that the kernels support. */
static bool parse_group(const char **s, uint32_t *group)
{
    if (skip(s, "128"))
        *group = 128;
    else if (skip(s, "64"))
        *group = 64;
    else if (skip(s, "32"))
        *group = 32;
    else
        return false;
    return true;
}

bool quant_format_parse(const char *name, struct quant_format *out)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const char *s = name;
        if (!skip(&s, kinds[i].name)) continue;
        struct quant_format f = {
            .kind = kinds[i].kind, .scale_dtype = DTYPE_F16, .group = kinds[i].group};
        if (f.kind == QUANT_FP8) f.scale_dtype = DTYPE_F32;
        if (kinds[i].may_have_zeros) f.has_zeros = skip(&s, "-asym");
        if (kinds[i].may_have_groups && skip(&s, "-g") && !parse_group(&s, &f.group)) return false;
        if (*s != '\0') return false;
        *out = f;
        return true;
    }
    return false;
}

void quant_format_name(struct quant_format f, char *out, size_t n)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (kinds[i].kind != f.kind) continue;
        if (f.group != 0 && kinds[i].may_have_groups)
            snprintf(out, n, "%s%s-g%u", kinds[i].name, f.has_zeros ? "-asym" : "", f.group);
        else
            snprintf(out, n, "%s%s", kinds[i].name, f.has_zeros ? "-asym" : "");
        return;
    }
    snprintf(out, n, "none");
}
