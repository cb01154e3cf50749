/* Asks the CPU and the system which instruction sets this process may use. The environment variable
 * SHOAL_CPU hides some of them. */
#include "kernels/cpu.h"

#include "base/config.h"
#include "kernels/amx_permission.h"

#include <cpuid.h>
#include <string.h>

static const char *const names[CPU_SET_COUNT] = {"ref", "avx2", "avx512", "amx"};

const char *cpu_set_name(enum cpu_set set)
{
    return names[set];
}

/* Returns the set that SHOAL_CPU names; the best set if the variable is not set; CPU_SET_COUNT if
 * it names none. */
static enum cpu_set best_of_view(const char *view)
{
    if (view == NULL) return CPU_AMX;
    for (enum cpu_set set = CPU_REF; set < CPU_SET_COUNT; set++) {
        if (strcmp(view, names[set]) == 0) return set;
    }
    return CPU_SET_COUNT;
}

/* Returns the value of SHOAL_CPU. Errors in the environment are ignored here, because main reports
 * them. */
static const char *cpu_view(void)
{
    struct config env;
    const struct status ignored = config_read(&env);
    (void)ignored;
    return env.cpu;
}

struct status cpu_check_view(void)
{
    const char *view = cpu_view();
    if (best_of_view(view) != CPU_SET_COUNT) return status_ok();
    return status_make(STATUS_USAGE,
                       "SHOAL_CPU: expected 'ref', 'avx2', 'avx512' or 'amx', found '%s'", view);
}

bool cpu_hides(enum cpu_set set)
{
    return set > best_of_view(cpu_view());
}

/* Asks CPUID, because not every compiler knows the name "f16c". AVX2 implies that the system saves
 * the registers. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

static bool has(enum cpu_set set)
{
    if (set == CPU_AVX2) return has_avx2();
    if (set == CPU_AVX512) return has_avx512();
    return set == CPU_REF || (has_avx512() && amx_is_there());
}

bool cpu_subnormals_are_fast(void)
{
    return __builtin_cpu_is("amd");
}

const char *cpu_lacks(enum cpu_set set)
{
    if (cpu_hides(set)) return "SHOAL_CPU hides it";
    if (!has(set)) return "this CPU lacks what it needs";
    if (set == CPU_AMX && !amx_ask_permission())
        return "the system does not let this process use AMX's tiles";
    return NULL;
}
