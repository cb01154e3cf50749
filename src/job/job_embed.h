/* How a checkpoint's vectors are made: its sentence-transformers files and the flags of shoal embed
 * become rules (serve/request/embed_rules.h). Called by the lead of a job. */
#ifndef SHOAL_JOB_JOB_EMBED_H
#define SHOAL_JOB_JOB_EMBED_H

#include "arch/arch.h"
#include "checkpoint/file/ckpt.h"
#include "serve/request/embed_flags.h"

/* All zeros: none. */
struct job_embed {
    struct embed_rules rules; /* borrow from doc and from the flags */
    struct js_doc *doc;       /* the checkpoint's embedding_json; NULL: it has none */
};

/* Local. Errors: STATUS_INPUT names what the checkpoint asks for and is not implemented;
 * STATUS_USAGE names a flag that does not fit it; STATUS_MEMORY. */
struct status job_embed_init(struct job_embed *e, const struct embed_flags *flags,
                             const struct ckpt *c, const struct arch *m);
void job_embed_fini(struct job_embed *e);

#endif
