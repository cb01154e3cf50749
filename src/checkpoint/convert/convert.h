/* Converts a Hugging Face directory or a GGUF file into shoal's checkpoint file, streamed in
 * bounded memory; inspects a checkpoint file. Parses no flags. Called by main. */
#ifndef SHOAL_CHECKPOINT_CONVERT_CONVERT_H
#define SHOAL_CHECKPOINT_CONVERT_CONVERT_H

#include "base/status.h"
#include "tensor/dtype.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct comm; /* parallel/comm/comm.h */

struct convert_options {
    const char *source; /* a Hugging Face directory or a .gguf file */
    const char *path;   /* the .h5 to be written */
    bool keep_dtype;    /* the source's own types; quantized tensors become config.json's, or f16 */
    enum dtype dtype;   /* used without keep_dtype: every tensor is stored in this type */
    bool keep_codes;    /* quantized tensors whose format shoal has are kept unchanged */
    /* Called after each block of rows; may be NULL. */
    void (*progress)(void *ctx, const char *tensor, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_ctx;
};

struct convert_result {
    uint64_t n_tensors;    /* written, */
    uint64_t n_kept;       /* of these: kept as the source's codes */
    uint64_t n_bytes;      /* of weights written */
    uint64_t n_overflowed; /* finite values that became infinite in a narrower type */
    double seconds;
};

/* **Collective (world)**. The ranks share the reading and converting of rows; rank 0 writes. The
 * bytes do not depend on the number of ranks. comm NULL: one rank, without MPI. options->path is
 * created only on success. Only rank 0 fills `result`, which may be NULL, and calls progress.
 * Errors: STATUS_INPUT (the source), STATUS_IO (the destination), STATUS_MEMORY, on all ranks. */
struct status convert_run(const struct convert_options *options, struct comm *comm,
                          struct convert_result *result);

struct inspect_options {
    bool tensors; /* one line per tensor */
    bool verify;  /* recompute every checksum */
};

/* Local. Prints config, sizes and formats of a checkpoint file to `out`.
 * Errors: as ckpt_open; with verify, the first block whose checksum differs. */
struct status inspect_run(const char *path, const struct inspect_options *options, FILE *out);

#endif
