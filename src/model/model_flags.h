/* The flags that choose the model's arithmetic: each of them changes bytes, so a journal keeps it
 * (options/flags.h says how to read the list). */
#ifndef SHOAL_MODEL_MODEL_FLAGS_H
#define SHOAL_MODEL_MODEL_FLAGS_H

#include "attention/kv_pool.h"
#include "options/flags.h"

/* The type of the activations with which quantized weights other than fp8 are multiplied. */
enum activations { ACTIVATIONS_INT8, ACTIVATIONS_F32 };
#define ACTIVATIONS_WORDS                                                                          \
    {"int8", ACTIVATIONS_INT8},                                                                    \
    {                                                                                              \
        "f32", ACTIVATIONS_F32                                                                     \
    }

/* The type of the activations with which fp8 weights are multiplied. */
#define FP8_ACTIVATIONS_WORDS                                                                      \
    {"f32", ACTIVATIONS_F32},                                                                      \
    {                                                                                              \
        "int8", ACTIVATIONS_INT8                                                                   \
    }

#define MODEL_FLAGS(FLAG)                                                                          \
    FLAG(uint32_t, max_model_len, "max-model-len", OF_COUNT(1, 1 << 30, "N"), .commands = IN_ALL,  \
         .journal = JOURNAL_ALWAYS,                                                                \
         .help = "longest context in tokens (default: the model's; in a benchmark, the longest "   \
                 "prompt and the longest answer together)")                                        \
    FLAG(enum dtype, kv_dtype, "kv-dtype", OF_CHOICE(KV_DTYPE_WORDS), .preset = "f16",             \
         .commands = IN_ALL, .journal = JOURNAL_ALWAYS, .help = "type of the KV cache")            \
    FLAG(enum activations, activations, "activations", OF_CHOICE(ACTIVATIONS_WORDS),               \
         .preset = "int8", .commands = IN_JOBS | IN_BENCH, .journal = JOURNAL_ALWAYS,              \
         .help = "type of the activations with which quantized weights other than fp8 are "        \
                 "multiplied; f32 is slower")                                                      \
    FLAG(enum activations, fp8_activations, "fp8-activations", OF_CHOICE(FP8_ACTIVATIONS_WORDS),   \
         .preset = "f32", .commands = IN_ALL, .journal = JOURNAL_CHANGED,                          \
         .help =                                                                                   \
             "type of the activations with which fp8 weights are multiplied, except embedding, "   \
             "head and router; int8 also turns these weights into int8 when they are loaded: "     \
             "much faster with many rows, but no longer exactly the file's values; CPU only")

struct model_flags {
    MODEL_FLAGS(FLAG_FIELD)
};

#endif
