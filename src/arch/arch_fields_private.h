/* A row of the table of config.json's fields, which is in arch_fields.c and is read by
 * arch_fields_read.c. Private to this folder. */
#ifndef SHOAL_ARCH_ARCH_FIELDS_PRIVATE_H
#define SHOAL_ARCH_ARCH_FIELDS_PRIVATE_H

#include "arch/arch_private.h"

enum arch_field_type {
    FIELD_INERT,  /* not read by the table: changes nothing, or a derivation checks it */
    FIELD_COUNT,  /* uint32_t: an integer from 1, or from 0 with may_be_zero, to `most` */
    FIELD_FLOAT,  /* float: above `above`, or 0 with may_be_zero, up to `most` */
    FIELD_DOUBLE, /* double: as FIELD_FLOAT */
    FIELD_SWITCH, /* bool */
    FIELD_WORD,   /* must be `word` */
    FIELD_TRUE,   /* must be true */
    FIELD_ONES,   /* must be a list of ones */
    FIELD_NODE,   /* const struct js_node *, which the derivations read */
};

/* One row. A family whose switch `only` is false takes no value from it. */
struct arch_field {
    const char *key;
    enum arch_field_type type;
    bool required, may_be_zero;
    bool refused_elsewhere; /* a family whose `only` is false refuses the field, unless it is off
                               (arch_field_is_off), or its value and `otherwise` are both 1 */
    size_t at;              /* offset in struct arch_reading */
    double above, most;
    double otherwise; /* value when the field is absent; 0: the member keeps its value */
    const char *word;
    size_t only; /* offset of a bool in struct arch_family; 0: all families */
};

/* Local. Returns the i-th row; NULL after the last. */
const struct arch_field *arch_field_at(size_t i);

#endif
