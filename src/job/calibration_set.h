/* The prompts of a calibration. The lead reads them as it reads request lines; all ranks get their
 * tokens. Called by `shoal quantize`. */
#ifndef SHOAL_JOB_CALIBRATION_SET_H
#define SHOAL_JOB_CALIBRATION_SET_H

#include "arch/arch.h"
#include "checkpoint/file/ckpt.h"
#include "parallel/comm/comm.h"

struct calibration_set {
    int32_t *tokens; /* owned; sequence i is tokens [first[i], first[i + 1]) */
    size_t *first;   /* owned [n_seqs + 1] */
    size_t n_seqs;
    size_t n_skipped; /* lines without a usable prompt; rank 0 only */
};

/* **Collective (world)**. Reads JSONL lines with a prompt, messages or prompt_token_ids; each
 * prompt is truncated to max_tokens tokens. Logs and skips lines that cannot be read. Errors, on
 * all ranks: STATUS_INPUT, STATUS_IO, STATUS_MEMORY. fini frees; accepts a zeroed set. */
struct status calibration_set_read(struct calibration_set *s, const char *path, size_t max_tokens,
                                   const struct ckpt *c, const struct arch *m, struct comm *comm);
void calibration_set_fini(struct calibration_set *s);

#endif
