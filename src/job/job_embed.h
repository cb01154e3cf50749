/* How a checkpoint's vectors and scores are made: its files and the flags of shoal embed or shoal
 * rank become rules (serve/request/embed_rules.h). Called by the lead of a job. */
#ifndef SHOAL_JOB_JOB_EMBED_H
#define SHOAL_JOB_JOB_EMBED_H

#include "arch/arch.h"
#include "base/strbuf.h"
#include "checkpoint/file/ckpt.h"
#include "serve/request/embed_flags.h"
#include "serve/request/rank_flags.h"
#include "text/chat/chat.h"

/* All zeros: the job makes neither vectors nor scores. */
struct job_embed {
    struct embed_rules rules; /* borrow from doc and from the flags */
    struct js_doc *doc;       /* the checkpoint's embedding_json; NULL: it has none */
    float *head;              /* owned; shoal rank's rank_rules.head */
    float *dense;             /* owned; the dense layer, norm and biases of an encoder's head; NULL:
                                 the head has none */
    double *work;             /* owned [D] rank_rules.work; NULL without dense */
    char *pair_template;      /* owned; the text of --pair-template; NULL: none */
};

/* Local. Makes the rules of vectors from the flags and, where no flag is given, from the
 * checkpoint. Errors: STATUS_INPUT names a setting of the checkpoint that is not implemented;
 * STATUS_USAGE names a flag that does not fit the checkpoint; STATUS_MEMORY. */
struct status job_embed_init(struct job_embed *e, const struct embed_flags *flags,
                             const struct ckpt *c, const struct arch *m);

/* Local, after job_embed_init. Refuses a checkpoint whose texts must be in lower case before they
 * are tokenized, unless the tokenizer t does that itself (NULL: texts are refused anyway). Errors:
 * STATUS_INPUT, STATUS_MEMORY. */
struct status job_embed_check_case(const struct job_embed *e, struct tokenizer *t);

/* job_rank.c. Local. Reads the head that scores texts: score.weight or, if the checkpoint has none,
 * the rows of the tokens no and yes of the model's own head. Errors: as job_embed_init. */
struct status job_rank_init(struct job_embed *e, const struct rank_flags *flags, struct ckpt *c,
                            const struct arch *m, const struct tokenizer *t);

/* job_rank.c. Local. Appends a hash of the pairs' template, for the journal. Errors:
 * STATUS_MEMORY. */
struct status job_rank_settings(const struct job_embed *e, struct strbuf *out);

void job_embed_fini(struct job_embed *e);

#endif
