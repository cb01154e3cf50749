/* Tells whether this CPU has AMX and the system lets this process use it: Linux gives a process the
 * tile registers only after it has asked (Documentation/arch/x86/xstate.rst). */
#ifndef SHOAL_KERNELS_AMX_PERMISSION_H
#define SHOAL_KERNELS_AMX_PERMISSION_H

#include <stdbool.h>

/* Local. AMX-TILE and AMX-INT8 by CPUID, tile registers that the system saves by XGETBV. */
bool amx_is_there(void);

/* Local. For all threads of the process, also later ones; asking again is no harm. False where the
 * system refuses or does not know the question. */
bool amx_ask_permission(void);

#endif
