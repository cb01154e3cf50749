/* Reads the model for `shoal plan` from a checkpoint, or from a config.json alone with the formats
 * that its weights would get. Called by cmd_plan.c and status_forecast.c. */
#ifndef SHOAL_CLI_PLAN_MODEL_H
#define SHOAL_CLI_PLAN_MODEL_H

#include "parallel/layout/layout.h"
#include "tensor/dtype.h"

struct plan_source {
    const char *path;            /* a checkpoint, or a config.json (a name ending in .json) */
    enum dtype dtype;            /* of a config.json's weights that are not quantized */
    const char *format, *policy; /* NULL: none; as for `shoal convert`, only with a config.json */
};

/* Local. Reads the model; *out borrows *m. K-blocks and types are those of the checkpoint, or for a
 * config.json those of the file that `shoal convert` would make. Errors: STATUS_USAGE (a format for
 * a checkpoint, a format that is not known), STATUS_INPUT, STATUS_MEMORY. */
struct status plan_model_read(const struct plan_source *source, struct arch *m,
                              struct layout_model *out);

#endif
