/* Makes a checkpoint from a list of tensors and a config, without a file, so that decisions about
 * its tensors can be made before it is written. Called by convert and plan_model.c. */
#ifndef SHOAL_CHECKPOINT_FILE_CKPT_LIST_H
#define SHOAL_CHECKPOINT_FILE_CKPT_LIST_H

#include "checkpoint/file/ckpt_writer.h"

/* The checkpoint to be listed; everything is borrowed until the call returns. */
struct ckpt_list {
    const char *path; /* for messages */
    const char *config;
    size_t n_config;                      /* bytes */
    const struct ckpt_tensor_spec *specs; /* [n_specs] in the byte order of their names */
    size_t n_specs;
};

/* Local. Makes the checkpoint that ckpt_open would return for a file with these tensors: tensor i
 * of *out is specs[i]. But *out has no parts, blocks or checksums, the config is its only text, and
 * its weights cannot be read. Owner of *out: the caller, ckpt_close. Errors: STATUS_INPUT (a bad
 * shape), STATUS_MEMORY. */
struct status ckpt_list_create(const struct ckpt_list *list, struct ckpt **out);

#endif
