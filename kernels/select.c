/* Chooses the kernels once, at start: the reference overridden by the best set of this CPU. */
#include "kernels/kern.h"

#include "kernels/kat.h"

#include <cpuid.h>
#include <string.h>

/* Not every compiler knows "f16c" by name; that the system saves the registers follows from avx2.
 */
static bool cpu_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static bool cpu_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
}

static bool cpu_has_avx512(void)
{
    return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

static bool cpu_has_anything(void)
{
    return true;
}

/* Best set last. */
static const struct {
    const char *name;
    bool (*supported)(void);
    void (*fill)(struct kern_table *t); /* overrides entries of a complete table */
} sets[] = {
    {"ref", cpu_has_anything, kern_fill_ref},
    {"avx2", cpu_has_avx2, kern_fill_avx2},
    {"avx512", cpu_has_avx512, kern_fill_avx512},
};

struct status kern_select(const char *force, struct kern_table *out)
{
    kern_fill_ref(out);
    for (size_t i = sizeof sets / sizeof sets[0]; i-- > 0;) {
        if (force != NULL && strcmp(force, sets[i].name) != 0) continue;
        if (sets[i].supported()) {
            sets[i].fill(out);
            return kern_check(out);
        }
        if (force != NULL)
            return status_make(STATUS_USAGE,
                               "kernel set '%s' was asked for, but this CPU lacks "
                               "what it needs",
                               force);
    }
    return status_make(STATUS_USAGE,
                       "kernel set '%s' is unknown; known are 'ref', 'avx2' and 'avx512'", force);
}
