/* The known-answer check of a kernel table. Used by select.c at start, and by the tests. */
#ifndef SHOAL_KERNELS_KAT_H
#define SHOAL_KERNELS_KAT_H

#include "kernels/kern.h"

/* Local. Runs every entry on fixed inputs and compares a hash of the answers with a constant that
 * is the same for all instruction sets. Takes a few milliseconds; the reference's kernels take ten
 * times as long. Errors: STATUS_BUG names the op, the set, the hash found and the one expected. */
struct status kern_check(const struct kern_table *t);

#endif
