/* Converts a Hugging Face directory (of a model or of an adapter) or a GGUF file into shoal's
 * checkpoint file, streaming in bounded memory; inspects a checkpoint file. Parses no flags. Called
 * by cmd_files.c. */
#ifndef SHOAL_CHECKPOINT_CONVERT_CONVERT_H
#define SHOAL_CHECKPOINT_CONVERT_CONVERT_H

#include "base/status.h"
#include "checkpoint/file/ckpt_writer.h"
#include "quant/quantize.h"
#include "tensor/dtype.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct background; /* base/background.h */
struct comm;       /* parallel/comm/comm.h */
struct team;       /* base/team.h */

/* Local. Changes the formats, leaves and quantization methods of the tensors to be written, specs
 * [ckpt_tensor_count(list)]; a spec with QUANT_NONE is stored as floats of its dtype. Must not
 * change names and shapes. `list` has the config, and the tensors as they would be written without
 * this callback; no weights can be read from it. The callback must make the same choice on all
 * ranks. */
typedef struct status convert_choose(void *ctx, struct ckpt *list, struct ckpt_tensor_spec *specs);

struct convert_options {
    const char *source; /* a Hugging Face directory or a .gguf file */
    const char *path;   /* the .h5 to be written */
    bool keep_dtype;    /* floats get the source's type; quantized tensors that become floats get
                           config.json's type, f16 if it names none */
    enum dtype dtype;   /* type of tensors stored as floats, unless keep_dtype */
    bool keep_codes;    /* take over quantized values unchanged if shoal has their format; but never
                           those of kv_b, which latent attention splits */
    /* May be NULL. If it changes the format or dtype of a tensor, convert makes the rows from the
     * values that the file would hold without it, rounding to nearest. So the bytes are those of a
     * file that is first converted without `choose` and then quantized with the same choice. */
    convert_choose *choose;
    void *choose_ctx;
    struct background *writer; /* borrowed: writes the file on rank 0; NULL: convert makes one. It
                                  must be made before the team, which binds the calling thread */
    struct team *team; /* works on tensors that `choose` changes; NULL: the calling thread */
    /* For tests: returns the free bytes on the file system of `path`; NULL: ckpt_room_free. */
    struct status (*free_bytes)(const char *path, uint64_t *n_free);
    /* Called after each chunk of rows, on rank 0's writing thread; may be NULL. */
    void (*progress)(void *ctx, const char *tensor, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_ctx;
};

/* How a tensor is stored that is quantized in the source, in the file, or in both. */
enum convert_way {
    CONVERT_KEPT,    /* the quantized values of the source, unchanged */
    CONVERT_WIDENED, /* quantized in the source, floats in the file */
    CONVERT_ROUNDED, /* floats in the source, quantized in the file */
    CONVERT_AGAIN,   /* quantized in both, but rounded anew */
    CONVERT_WAY_COUNT
};

/* The tensors that are stored in one way and one format. */
struct convert_count {
    enum convert_way way;
    char format[32]; /* "fp8-g128", "f16", ...: the format in the file */
    uint64_t n_tensors;
    char first[CKPT_NAME_MAX]; /* the name of the first such tensor */
};

enum { CONVERT_COUNTS_MAX = 64 }; /* more combinations of way and format are not counted */

struct convert_result {
    uint64_t n_tensors; /* tensors written */
    /* the tensors that are quantized in the source or in the file: one entry for each way and
     * format, in the order in which these first occur */
    struct convert_count counts[CONVERT_COUNTS_MAX];
    size_t n_counts;
    uint64_t n_bytes;       /* bytes of weights written */
    struct quant_loss loss; /* the error of rounding quantized values into another format; values
                               that were read as floats (without keep_codes) do not count */
    uint64_t n_overflowed;  /* finite values that became infinite in a narrower type */
    double seconds;
};

/* **Collective (world)**. Converts options->source. The ranks share the reading and converting of
 * rows; rank 0 writes. The bytes do not depend on the number of ranks. comm NULL: one rank, without
 * MPI. options->path is created only on success. Before it begins, rank 0 logs how much disk the
 * file takes. `result` may be NULL; it is the same on all ranks, but for its seconds. Rank 0 alone
 * calls progress. Errors, on all ranks: STATUS_INPUT (the source), STATUS_IO (the destination, or
 * too little room on its file system), STATUS_USAGE (the destination is no regular file),
 * STATUS_LOST (a failed message), STATUS_MEMORY. */
struct status convert_run(const struct convert_options *options, struct comm *comm,
                          struct convert_result *result);

struct inspect_options {
    bool tensors; /* one line per tensor */
    bool verify;  /* recompute every checksum */
};

/* Local. Prints the config, sizes and formats of a checkpoint file to `out`. Errors: as ckpt_open;
 * with verify, the first block whose checksum differs. */
struct status inspect_run(const char *path, const struct inspect_options *options, FILE *out);

#endif
