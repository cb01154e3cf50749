/* Chooses the kernels once, at start: the reference overridden by the best set of this CPU. */
#include "kernels/kern.h"

#include "kernels/amx_permission.h"
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

static const char cpu_lacks[] = "this CPU lacks what it needs";

/* Why a set cannot be used; NULL: it can. */
static const char *ref_lacks(void)
{
    return NULL;
}

static const char *avx2_lacks(void)
{
    return cpu_has_avx2() ? NULL : cpu_lacks;
}

static const char *avx512_lacks(void)
{
    return cpu_has_avx512() ? NULL : cpu_lacks;
}

static const char *amx_lacks(void)
{
    if (!cpu_has_avx512() || !amx_is_there()) return cpu_lacks;
    return amx_ask_permission() ? NULL : "the system does not let this process use AMX's tiles";
}

/* Best set last. */
static const struct {
    const char *name;
    const char *(*lacks)(void);
    void (*fill)(struct kern_table *t); /* overrides entries of a complete table */
} sets[] = {
    {"ref", ref_lacks, kern_fill_ref},
    {"avx2", avx2_lacks, kern_fill_avx2},
    {"avx512", avx512_lacks, kern_fill_avx512},
    {"amx", amx_lacks, kern_fill_amx},
};

struct status kern_select(const char *force, struct kern_table *out)
{
    kern_fill_ref(out);
    for (size_t i = sizeof sets / sizeof sets[0]; i-- > 0;) {
        if (force != NULL && strcmp(force, sets[i].name) != 0) continue;
        const char *lacks = sets[i].lacks();
        if (lacks == NULL) {
            sets[i].fill(out);
            return kern_check(out);
        }
        if (force != NULL)
            return status_make(STATUS_USAGE, "kernel set '%s' was asked for, but %s", force, lacks);
    }
    return status_make(STATUS_USAGE,
                       "kernel set '%s' is unknown; known are 'ref', 'avx2', 'avx512' and 'amx'",
                       force);
}
