/* Asks the CPU and the system whether AMX can be used. */
#include "kernels/amx_permission.h"

#include <cpuid.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    CPUID_OSXSAVE = 1 << 27,          /* leaf 1, ecx */
    CPUID_AMX_TILE = 1 << 24,         /* leaf 7, edx */
    CPUID_AMX_INT8 = 1 << 25,         /* leaf 7, edx */
    XCR0_TILES = 3 << 17,             /* tile configuration and tile data */
    ARCH_ASKS_FOR_COMPONENT = 0x1023, /* ARCH_REQ_XCOMP_PERM of <asm/prctl.h> */
    COMPONENT_TILE_DATA = 18,
};

static uint32_t xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

bool amx_is_there(void)
{
    const unsigned both = CPUID_AMX_TILE | CPUID_AMX_INT8;
    unsigned a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & CPUID_OSXSAVE) == 0) return false;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & both) != both) return false;
    return (xcr0() & XCR0_TILES) == XCR0_TILES;
}

bool amx_ask_permission(void)
{
    return syscall(SYS_arch_prctl, ARCH_ASKS_FOR_COMPONENT, COMPONENT_TILE_DATA) == 0;
}
