/* Models for tests of layouts and costs. Their leaf sizes are constants, not from leaf_choose. */
#ifndef SHOAL_TEST_UTIL_MODELS_H
#define SHOAL_TEST_UTIL_MODELS_H

#include "parallel/layout/layout.h"

enum util_model { MODEL_SMOLLM2, MODEL_MIXTRAL, MODEL_QWEN3, MODEL_DEMO, MODEL_ODD, MODEL_COUNT };

struct layout_model util_model(enum util_model which);

#endif
