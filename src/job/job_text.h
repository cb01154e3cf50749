/* Reads a checkpoint's texts: the tokenizer, the tokens that end a sequence, the chat template, and
 * the sampling defaults of generation_config.json, which flags override. Called by the lead of a
 * job and by `shoal quantize`, which tokenizes its calibration texts. */
#ifndef SHOAL_JOB_JOB_TEXT_H
#define SHOAL_JOB_JOB_TEXT_H

#include "arch/arch.h"
#include "checkpoint/file/ckpt.h"
#include "job/job_options.h"

enum { JOB_END_IDS_MAX = 64 };

struct job_text {
    struct tokenizer *tokenizer; /* owned; NULL when the checkpoint has none */
    struct chat *chat;           /* owned; NULL: the checkpoint has none, or it cannot be run */
    char chat_missing[STATUS_TEXT_MAX]; /* why chat is NULL */
    struct chat *made_by;               /* --prompt-template; owned */
    uint64_t made_by_hash[2];           /* XXH3-128 of its file */
    struct request_form form;           /* all zeros: lines are requests */
    struct jinja_date date;
    struct request_defaults defaults;
    int32_t end_ids[JOB_END_IDS_MAX];
    size_t n_end_ids;
    int32_t prefix_id; /* of bos_token, or else eos_token; -1: none */
};

/* Local. Reads the texts. c NULL: there is no checkpoint, and thus no tokenizer. Errors:
 * STATUS_INPUT, STATUS_USAGE (a flag that cannot be used), STATUS_MEMORY. */
struct status job_text_init(struct job_text *t, const struct job_options *o, const struct ckpt *c,
                            const struct arch *m);

/* Local. As job_text_init without flags, for calibration. Errors: STATUS_INPUT, STATUS_MEMORY. */
struct status job_text_open(struct job_text *t, const struct ckpt *c, const struct arch *m);
void job_text_fini(struct job_text *t);

#endif
