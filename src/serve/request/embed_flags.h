/* The flags of `shoal embed`, and of `shoal serve` for vectors; options/flags.h explains the tables
 * of flags. Fields of a request override --dimensions, --prompt-name and --encoding-format. */
#ifndef SHOAL_SERVE_REQUEST_EMBED_FLAGS_H
#define SHOAL_SERVE_REQUEST_EMBED_FLAGS_H

#include "options/flags.h"
#include "serve/request/embed_rules.h"

enum embed_switch { EMBED_AUTO, EMBED_ON, EMBED_OFF };
enum embed_long { EMBED_LONG_ERROR, EMBED_LONG_CUT };

#define EMBED_FLAGS(FLAG)                                                                          \
    FLAG(enum request_pool, pooling, "pooling",                                                    \
         OF_CHOICE({"auto", POOL_NONE}, {"last", POOL_LAST}, {"cls", POOL_CLS},                    \
                   {"mean", POOL_MEAN}),                                                           \
         .preset = "auto", .commands = IN_EMBED | IN_SERVE, .journal = JOURNAL_ALWAYS,             \
         .help = "the vector is the last token's hidden state, the first token's, or the mean of " \
                 "all; auto: as the checkpoint's sentence-transformers files say, otherwise the "  \
                 "mean for encoders and last for others")                                          \
    FLAG(enum embed_switch, normalize, "normalize",                                                \
         OF_CHOICE({"auto", EMBED_AUTO}, {"on", EMBED_ON}, {"off", EMBED_OFF}), .preset = "auto",  \
         .commands = IN_EMBED | IN_SERVE, .journal = JOURNAL_ALWAYS,                               \
         .help = "scale vectors to length 1; auto: as the checkpoint says, otherwise on")          \
    FLAG(uint32_t, dimensions, "dimensions", OF_COUNT(0, 1 << 24, "N"), .preset = "0",             \
         .commands = IN_EMBED | IN_SERVE, .journal = JOURNAL_ALWAYS,                               \
         .help = "keep only the first N numbers of each vector, before it is normalized; 0: all")  \
    FLAG(const char *, prompt_name, "prompt-name", OF_TEXT("NAME"), .preset = "auto",              \
         .commands = IN_EMBED | IN_SERVE, .journal = JOURNAL_ALWAYS,                               \
         .help = "put the checkpoint's prompt of this name before each text; auto: the one that "  \
                 "the checkpoint names, if any; none: nothing")                                    \
    FLAG(enum embed_encoding, encoding, "encoding-format",                                         \
         OF_CHOICE({"float", EMBED_FLOATS}, {"base64", EMBED_BASE64}), .preset = "float",          \
         .commands = IN_EMBED | IN_SERVE, .journal = JOURNAL_ALWAYS,                               \
         .help = "numbers, or base64 of little-endian f32")                                        \
    FLAG(uint32_t, max_text_tokens, "max-text-tokens", OF_COUNT(0, 1 << 24, "N"), .preset = "0",   \
         .commands = IN_EMBED | IN_SERVE, .journal = JOURNAL_CHANGED,                              \
         .help = "the most tokens of a text; 0: as the checkpoint's sentence-transformers files "  \
                 "say (max_seq_length), otherwise as many as the context holds")                   \
    FLAG(enum embed_long, long_texts, "long-texts",                                                \
         OF_CHOICE({"error", EMBED_LONG_ERROR}, {"cut", EMBED_LONG_CUT}), .preset = "error",       \
         .commands = IN_EMBED | IN_SERVE, .journal = JOURNAL_CHANGED,                              \
         .help = "texts of more tokens become error rows (error) or lose their end (cut), as in "  \
                 "sentence-transformers")

struct embed_flags {
    EMBED_FLAGS(FLAG_FIELD)
};

#endif
