/* Converts a Hugging Face directory or a GGUF file into shoal's checkpoint file, streamed in
 * bounded memory; inspects a checkpoint file. Parses no flags. Called by main. */
#ifndef SHOAL_CHECKPOINT_CONVERT_CONVERT_H
#define SHOAL_CHECKPOINT_CONVERT_CONVERT_H

#include "base/status.h"
#include "checkpoint/file/ckpt.h"
#include "tensor/dtype.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct comm; /* parallel/comm/comm.h */

struct convert_options {
    const char *source; /* a Hugging Face directory or a .gguf file */
    const char *path;   /* the .h5 to be written */
    bool keep_dtype;    /* the source's own types; quantized tensors become config.json's, or f16 */
    enum dtype dtype;   /* used without keep_dtype: tensors stored as floats are of this type */
    bool keep_codes;    /* quantized tensors whose format shoal has are kept unchanged, except
                           the one that latent attention splits */
    /* Called after each block of rows; may be NULL. */
    void (*progress)(void *ctx, const char *tensor, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_ctx;
};

/* How a quantized tensor of the source is stored. */
enum convert_way {
    CONVERT_KEPT,    /* as the source's codes */
    CONVERT_WIDENED, /* as floats */
    CONVERT_WAY_COUNT
};

/* The tensors that are stored in one way and one format. */
struct convert_count {
    enum convert_way way;
    char format[32]; /* "fp8-g128", "f16", ... */
    uint64_t n_tensors;
    char first[CKPT_NAME_MAX]; /* the name of the first of them */
};

enum { CONVERT_COUNTS_MAX = 32 }; /* more than there are formats and float types */

struct convert_result {
    uint64_t n_tensors; /* written */
    /* those of them that are quantized in the source, in the order in which they first occur */
    struct convert_count counts[CONVERT_COUNTS_MAX];
    size_t n_counts;
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
