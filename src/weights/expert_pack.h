/* The packed copy of a checkpoint's experts (checkpoint/file/expert_file.h): its sizes for a
 * layout, and how it is made. */
#ifndef SHOAL_WEIGHTS_EXPERT_PACK_H
#define SHOAL_WEIGHTS_EXPERT_PACK_H

#include "weights/weights.h"

/* Both are 0 for a model without experts. */
struct expert_pack_sizes {
    uint64_t expert_bytes; /* the largest part of an expert that a rank holds */
    uint64_t all_bytes;    /* all experts in the packed copy */
};

/* Local. Sets *out to the sizes for a checkpoint and a layout. Errors: STATUS_MEMORY. */
struct status expert_pack_sizes_of(const struct weights_source *from,
                                   struct expert_pack_sizes *out);

/* Local. Makes `path` from the checkpoint, if there is none yet, with the threads of from->comm's
 * team: in windows of at most window_bytes, but at least one expert. An existing file is only
 * checked. Errors: expert_file.h's, loader_run's. */
struct status expert_pack_make(const struct weights_source *from, const char *path,
                               size_t window_bytes);

#endif
