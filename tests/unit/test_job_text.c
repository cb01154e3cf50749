/* The texts of a checkpoint, as a job reads them: a default that cannot be used is refused with an
 * error that names it. */
#include "job/job_text.h"

#include "base/mem.h"
#include "checkpoint/convert/convert.h"
#include "unit/util_ckpt.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Converts a folder with this generation_config.json, without a tokenizer, and reads its texts. */
static struct status read_texts(const char *generation, struct job_text *t)
{
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    const struct arch m = {.n_eos_ids = 0};
    struct ckpt *c = NULL;
    char bytes[256] = {0};
    mkdir(scratch("hf"), 0700);
    bytes[0] = (char)(sizeof header - 1);
    memcpy(bytes + 8, header, sizeof header - 1);
    put_file(scratch("hf/model.safetensors"), bytes, 8 + sizeof header - 1 + 4);
    put_file(scratch("hf/config.json"), "{}", 2);
    put_file(scratch("hf/generation_config.json"), generation, strlen(generation));
    const struct convert_options options = {
        .source = scratch("hf"), .path = scratch("a.h5"), .keep_dtype = true};
    struct status st = convert_run(&options, NULL, NULL);
    CU_ASSERT_FATAL(!status_failed(&st));
    st = ckpt_open(scratch("a.h5"), &c);
    CU_ASSERT_FATAL(!status_failed(&st));
    st = job_text_open(t, c, &m);
    ckpt_close(&c);
    scratch_clear();
    return st;
}

static void good_defaults_are_taken(void)
{
    struct job_text t;
    const struct status st = read_texts("{\"temperature\":0.6,\"top_k\":20,\"top_p\":null,"
                                        "\"eos_token_id\":[7,9],\"do_sample\":true}",
                                        &t);
    CU_ASSERT_EQUAL(st.code, STATUS_OK);
    CU_ASSERT(t.defaults.temperature == 0.6 && t.defaults.top_k == 20 && t.defaults.top_p == 1);
    CU_ASSERT(t.n_end_ids == 2 && t.end_ids[0] == 7 && t.end_ids[1] == 9);
    CU_ASSERT_STRING_EQUAL(t.chat_missing, "this model has no tokenizer");
    job_text_fini(&t);
    CU_ASSERT_EQUAL(read_texts("{\"top_k\":50.0}", &t).code, STATUS_OK);
    CU_ASSERT_EQUAL(t.defaults.top_k, 50);
    job_text_fini(&t);
}

static void wrong_defaults_are_named(void)
{
    static const char *const wrong[][2] = {
        {"{\"temperature\":\"hot\"}", "temperature: expected a number; --temperature overrides"},
        {"{\"temperature\":-1}", "--temperature: expected 0 or more, found -1"},
        {"{\"top_p\":7}", "--top-p: expected above 0"},
        {"{\"top_k\":\"x\"}", "top_k: expected an integer"},
        {"{\"top_k\":50.5}", "top_k: expected an integer"},
        {"{\"repetition_penalty\":0}", "--repetition-penalty: expected above 0"},
        {"{\"eos_token_id\":\"</s>\"}", "eos_token_id: expected a token id"},
        {"{\"eos_token_id\":[1,\"</s>\"]}", "eos_token_id: expected a token id"},
        {"{\"eos_token_id\":{\"a\":1}}", "eos_token_id: expected a token id"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct job_text t;
        const struct status st = read_texts(wrong[i][0], &t);
        if (strstr(st.text, wrong[i][1]) == NULL) printf("\n  %s: %s\n", wrong[i][0], st.text);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "a.h5: generation_config.json: "));
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, wrong[i][1]));
        job_text_fini(&t);
    }
}

void suite_job_text(CU_pSuite suite);
void suite_job_text(CU_pSuite suite)
{
    CU_add_test(suite, "good defaults are taken", good_defaults_are_taken);
    CU_add_test(suite, "wrong defaults are named", wrong_defaults_are_named);
}
