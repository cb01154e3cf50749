/* Writes the config of a checkpoint into HDF5 as typed attributes. Called by ckpt_writer.c,
 * ckpt_writer_tensor.c and logprobs_file.c. */
#ifndef SHOAL_CHECKPOINT_FILE_CKPT_CONFIG_H
#define SHOAL_CHECKPOINT_FILE_CKPT_CONFIG_H

#include "base/json.h"
#include "checkpoint/file/h5.h"

enum { CONFIG_ATTRIBUTE_MAX = 32768 /* longer values are in config_json alone */ };

/* Local. Writes one attribute of `group` per member of the object (keys of 1 to 255 bytes): int64,
 * float64, bool (an enum of int8) or string; arrays and objects as their JSON text; null as an
 * empty attribute. Errors of all functions of this header: STATUS_IO names `path` and the
 * attribute; STATUS_MEMORY. */
struct status config_attributes_write(hid_t group, const char *path, const struct js_node *config);

/* Local. Writes a fixed-length string attribute (an empty string as one NUL). */
struct status h5_string_attribute(hid_t object, const char *path, const char *name,
                                  const char *text, size_t n);
/* Local. Writes one integer attribute, stored as int64. */
struct status h5_int_attribute(hid_t object, const char *path, const char *name, int64_t value);
/* Local. Writes one attribute of a real number, stored as float64. */
struct status h5_real_attribute(hid_t object, const char *path, const char *name, double value);

#endif
