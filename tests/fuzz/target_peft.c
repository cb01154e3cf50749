/* Target: the adapter_config.json of a folder of peft, beside the tensors of a golden adapter. */
#include "base/json.h"
#include "checkpoint/convert/peft.h"
#include "fuzz/fuzz.h"

#include <math.h>

static const char *const words[] = {"\"peft_type\": \"LORA\"",
                                    "\"r\": ",
                                    "\"lora_alpha\": ",
                                    "\"use_rslora\": true",
                                    "\"rank_pattern\": {",
                                    "\"alpha_pattern\": {",
                                    "self_attn.q_proj\": ",
                                    "\"init_lora_weights\": ",
                                    "\"use_dora\": ",
                                    "null",
                                    "true",
                                    "[]",
                                    "{}",
                                    "-1",
                                    "1e308",
                                    "4294967296",
                                    "\\u0000",
                                    NULL};

static struct fuzz_bytes tensors; /* of the golden, for the whole run */

static void begin_peft(struct fuzz_seeds *seeds)
{
    tensors = fuzz_read("golden/adapters/attention/hf/adapter_model.safetensors");
    fuzz_seed_file(seeds, "golden/adapters/attention/hf/adapter_config.json");
}

/* Checks that each scaling of the written config is a finite number. */
static void check_scalings(const struct js_node *root)
{
    const void *it = NULL;
    const char *linear;
    const struct js_node *value;
    double x = NAN;
    FUZZ_CHECK(js_number(js_get(root, "scaling"), &x) && isfinite(x), "scaling %g", x);
    while (js_next(js_get(root, "scalings"), &it, &linear, &value))
        FUZZ_CHECK(js_number(value, &x) && isfinite(x), "scaling %g of %s", x, linear);
}

static bool run_peft(const char *bytes, size_t n)
{
    struct safetensors *s = NULL;
    struct js_doc *doc = NULL;
    struct strbuf config;
    bool is_adapter = false;
    strbuf_init(&config);
    fuzz_write(fuzz_scratch("adapter_model.safetensors"), tensors.bytes, tensors.n);
    fuzz_write(fuzz_scratch("adapter_config.json"), bytes, n);
    struct status st = peft_find(fuzz_scratch(""), &is_adapter);
    FUZZ_CHECK(!status_failed(&st) && is_adapter, "%s", st.text);
    st = peft_open(fuzz_scratch(""), &s);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    st = peft_config(fuzz_scratch(""), s, &config);
    const bool taken = status_failed(&st) ? fuzz_refused(&st) : true;
    if (taken) {
        st = js_parse(config.data, config.n, "config", &doc);
        FUZZ_CHECK(!status_failed(&st), "%s", st.text);
        check_scalings(js_root(doc));
    }
    js_destroy(&doc);
    strbuf_fini(&config);
    safetensors_close(&s);
    return taken;
}

extern const struct fuzz_target fuzz_peft;
const struct fuzz_target fuzz_peft = {"peft", words, begin_peft, run_peft};
