/* Tells whether this CPU has AMX and the system lets this process use it. Linux gives a process the
 * tile registers only when it asks for them (Documentation/arch/x86/xstate.rst). */
#ifndef SHOAL_KERNELS_AMX_PERMISSION_H
#define SHOAL_KERNELS_AMX_PERMISSION_H

#include <stdbool.h>

/* Local. True when CPUID reports AMX-TILE and AMX-INT8, and XGETBV reports that the system saves
 * the tile registers. */
bool amx_is_there(void);

/* Local. Requests permission for all threads of the process, including those started later. May be
 * called again. False: the system refuses or does not know the request. */
bool amx_ask_permission(void);

#endif
