/* Reads the files that sentence-transformers writes beside an embedding model: they say how a
 * text's vector is made. Called by source_texts.c. */
#ifndef SHOAL_CHECKPOINT_CONVERT_SENTENCE_FILES_H
#define SHOAL_CHECKPOINT_CONVERT_SENTENCE_FILES_H

#include "base/strbuf.h"

/* Local. Reads these files of a folder into one JSON object (docs/embed.md):
 *   "modules": [...]      modules.json
 *   "pooling": {...}      config.json of the pooling module
 *   "settings": {...}     config_sentence_transformers.json
 *   "transformer": {...}  sentence_bert_config.json of the transformer module; some models
 *                         name this file otherwise
 * If a file is missing, its member is null, except that "transformer" is left out. Without
 * modules.json, the files of modules count as missing. `out` stays empty if modules.json and
 * config_sentence_transformers.json are both missing. Errors: STATUS_INPUT, STATUS_MEMORY. */
struct status sentence_files_read(const char *folder, struct strbuf *out);

#endif
