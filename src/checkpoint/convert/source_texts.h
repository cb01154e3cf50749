/* Reads the texts of a Hugging Face folder (config, tokenizer, ...) that a checkpoint stores. */
#ifndef SHOAL_CHECKPOINT_CONVERT_SOURCE_TEXTS_H
#define SHOAL_CHECKPOINT_CONVERT_SOURCE_TEXTS_H

#include "base/strbuf.h"
#include "checkpoint/file/ckpt.h"

struct source_texts {
    const char *path;     /* borrowed: the folder's */
    struct strbuf *texts; /* [CKPT_TEXT_COUNT] borrowed, empty at first */
    bool is_text;         /* set by source_texts_read: the folder has a multimodal checkpoint, and
                             `texts` has the config of its text model */
};

/* Local. Reads all texts that the folder has. Without a tokenizer it warns. Errors: STATUS_INPUT
 * (no config.json, or a file that cannot be read or that shoal does not accept), STATUS_MEMORY. */
struct status source_texts_read(struct source_texts *s);

#endif
