/* Reads the files that sentence-transformers writes beside an embedding model: they say how a
 * text's vector is made. Called by source_texts.c. */
#ifndef SHOAL_CHECKPOINT_CONVERT_SENTENCE_FILES_H
#define SHOAL_CHECKPOINT_CONVERT_SENTENCE_FILES_H

#include "base/strbuf.h"

/* Local. Reads modules.json, the config.json of its pooling module,
 * config_sentence_transformers.json and sentence_bert_config.json (or one of the names that it has
 * beside other models) of a folder into one JSON object (docs/embed.md):
 *   {"modules": [...], "pooling": {...}, "settings": {...}, "transformer": {...}}
 * A member is null, and the last one is missing, if its file is missing or modules.json is. `out`
 * stays empty if there is none of them. Errors: STATUS_INPUT, STATUS_MEMORY. */
struct status sentence_files_read(const char *folder, struct strbuf *out);

#endif
