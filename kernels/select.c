/* Chooses the kernels once, at start: fills the table with the reference, then replaces entries by
 * those of the best instruction set of this CPU. */
#include "kernels/kern.h"

#include "kernels/cpu.h"
#include "kernels/kat.h"

#include <string.h>

/* Each function replaces entries of a complete table. */
static void (*const fill[CPU_SET_COUNT])(struct kern_table *t) = {
    [CPU_REF] = kern_fill_ref,
    [CPU_AVX2] = kern_fill_avx2,
    [CPU_AVX512] = kern_fill_avx512,
    [CPU_AMX] = kern_fill_amx,
};

struct status kern_select(const char *force, struct kern_table *out)
{
    TRY(cpu_check_view());
    kern_fill_ref(out);
    for (enum cpu_set set = CPU_SET_COUNT; set-- > CPU_REF;) {
        if (force != NULL && strcmp(force, cpu_set_name(set)) != 0) continue;
        const char *lacks = cpu_lacks(set);
        if (lacks == NULL) {
            fill[set](out);
            return kern_check(out);
        }
        if (force != NULL)
            return status_make(STATUS_USAGE, "SHOAL_KERNELS: '%s' was asked for, but %s", force,
                               lacks);
    }
    return status_make(STATUS_USAGE,
                       "SHOAL_KERNELS: expected 'ref', 'avx2', 'avx512' or 'amx', found '%s'",
                       force);
}
