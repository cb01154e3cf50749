/* Every field of a config.json is accounted for: read by arch_parse, known to change
 * nothing, or refused by name, so that no model runs with other arithmetic than it was trained
 * with. */
#ifndef SHOAL_ARCH_ARCH_FIELDS_H
#define SHOAL_ARCH_ARCH_FIELDS_H

#include "base/json.h"
#include "base/status.h"

#include <stdbool.h>

/* Local. Names and types of the fields of root, an object; `what` names the file in sentences.
 * Errors: STATUS_INPUT, naming a field that is set and unknown, or of another type than it must
 * have. */
struct status arch_fields_check(const struct js_node *root, const char *what);

/* Local. Likewise what the RoPE object `where` (rope_scaling, rope_parameters) may say. What its
 * values mean is checkpoint/file/rope_freq.c's: convert made the factors. */
struct status arch_fields_check_rope(const struct js_node *rope, const char *what,
                                     const char *where);

/* Local. null, false, 0, "" and empty lists switch a feature off; NULL is not asked about. */
bool arch_field_is_off(const struct js_node *node);

#endif
