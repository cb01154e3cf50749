/* A byte-level tokenizer.json with a normalizer, pre-tokenizers, a post-processor, a decoder, a BPE
 * model and added tokens, for tests that damage it (unit/test_tokenizer_bad.c, fuzz/target_text.c).
 */
#ifndef SHOAL_TESTS_SMALL_TOKENIZER_H
#define SHOAL_TESTS_SMALL_TOKENIZER_H

static const char SMALL_TOKENIZER[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["
    "{\"id\":5,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":true,"
    "\"normalized\":false,\"special\":true},"
    "{\"id\":6,\"content\":\"\xC3\xA9\",\"normalized\":true,\"special\":false}],"
    "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{N}|x+?\"},\"behavior\":\"Isolated\","
    "\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}]},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
    "{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],"
    "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[5],\"tokens\":[\"<s>\"]}}},"
    "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
    "\"unk_token\":null,\"byte_fallback\":false,\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,"
    "\"ab\":2,\"\xC4\xA0\":3,\"\xC4\xA0"
    "ab\":4},\"merges\":[\"a b\",\"\xC4\xA0 ab\"]}}";

#endif
