/* Scratch files, small checkpoints, and child processes with a time limit. */
#include "unit/util_ckpt.h"

#include "base/mem.h"
#include "checkpoint/convert/published.h"
#include "checkpoint/file/ckpt.h"
#include "checkpoint/file/ckpt_writer.h"
#include "checkpoint/file/seal.h"
#include "util_write.h"

#include <CUnit/CUnit.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];

const char *scratch(const char *name)
{
    static char paths[8][512];
    static unsigned next;
    if (folder[0] == '\0') {
        snprintf(folder, sizeof folder, "/tmp/shoal-test-%ld", (long)getpid());
        mkdir(folder, 0700);
    }
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

void scratch_clear(void)
{
    if (folder[0] == '\0') return;
    char command[128];
    snprintf(command, sizeof command, "rm -rf -- '%s'", folder);
    if (system(command) != 0) fprintf(stderr, "%s remains\n", folder);
    folder[0] = '\0';
}

void put_file(const char *path, const void *bytes, size_t n)
{
    (void)util_write(path, bytes, n);
}

char *get_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    *n = 0;
    if (f == NULL) return NULL;
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *bytes = malloc(*n + 1);
    if (fread(bytes, 1, *n, f) != *n) *n = 0;
    fclose(f);
    return bytes;
}

struct strbuf get_published_config(const char *path)
{
    struct strbuf config;
    size_t n;
    bool is_text;
    char *text = get_file(path, &n);
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    strbuf_init(&config);
    strbuf_add(&config, text, n);
    free(text);
    CU_ASSERT_EQUAL_FATAL(published_finite_config(&config).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(published_text_config(&config, path, &is_text).code, STATUS_OK);
    return config;
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Writes rows of a quantized tensor with random quantized values and valid scales. */
static struct status quant_put(struct ckpt_writer *w, const struct ckpt_tensor_spec *spec,
                               uint64_t n_rows, uint32_t *state)
{
    const struct quant_format f = spec->quant;
    const uint64_t n_in = spec->dims[spec->n_dims - 1], n_groups = quant_groups(f, n_in);
    const size_t n_codes = n_rows * quant_code_bytes(f.kind, n_in), n_params = n_rows * n_groups;
    const size_t scale_bytes = dtype_bytes(quant_scale_dtype(f));
    struct quant_block b = {.codes = malloc(n_codes), .scales = malloc(n_params * scale_bytes)};
    if (f.has_zeros) b.zeros = malloc(n_params);
    for (size_t i = 0; i < n_codes; i++) ((uint8_t *)b.codes)[i] = (uint8_t)next_random(state);
    for (size_t i = 0; i < n_params * scale_bytes; i++) {
        ((uint8_t *)b.scales)[i] = (uint8_t)(next_random(state) % 32);
    }
    for (size_t i = 0; f.has_zeros && i < n_params; i++) {
        b.zeros[i] = (uint8_t)(next_random(state) % 16);
    }
    const struct status st = ckpt_writer_quant_rows(w, &b, n_rows);
    free(b.zeros);
    free(b.scales);
    free(b.codes);
    return st;
}

static struct status tensor_put(struct ckpt_writer *w, const struct ckpt_tensor_spec *spec,
                                uint32_t *state)
{
    uint64_t n_rows = 1;
    for (uint32_t d = 0; d + 1 < spec->n_dims; d++) n_rows *= spec->dims[d];
    const size_t n_bytes = n_rows * spec->dims[spec->n_dims - 1] * dtype_bytes(spec->dtype);
    TRY(ckpt_writer_tensor(w, spec));
    if (spec->quant.kind != QUANT_NONE) return quant_put(w, spec, n_rows, state);
    unsigned char *rows = malloc(n_bytes);
    for (size_t i = 0; i < n_bytes; i++) rows[i] = (unsigned char)next_random(state);
    const struct status st = ckpt_writer_rows(w, rows, n_rows);
    free(rows);
    return st;
}

struct status small_checkpoint(const char *path, uint32_t seed)
{
    static const struct ckpt_tensor_spec specs[] = {
        {.name = "model.embed_tokens.weight", .dtype = DTYPE_F32, .n_dims = 2, .dims = {12, 8}},
        {.name = "model.layers.0.mlp.down_proj.weight",
         .dtype = DTYPE_BF16,
         .n_dims = 2,
         .dims = {8, 64},
         .leaf_elems = 32,
         .grid_bits = 32},
        {.name = "model.layers.0.mlp.experts.up_proj.weight",
         .dtype = DTYPE_F16,
         .n_dims = 3,
         .dims = {4, 6, 8}},
        {.name = "model.layers.1.mlp.down_proj.weight",
         .dtype = DTYPE_BF16,
         .n_dims = 2,
         .dims = {8, 64},
         .leaf_elems = 32,
         .grid_bits = 33},
        {.name = "model.layers.1.mlp.experts.down_proj.weight",
         .n_dims = 3,
         .dims = {3, 4, 96},
         .leaf_elems = 64,
         .grid_bits = 32,
         .quant = {QUANT_INT4, true, DTYPE_F16, 32},
         .method = "rtn"},
        {.name = "model.layers.1.mlp.up_proj.weight",
         .n_dims = 2,
         .dims = {5, 40},
         .quant = {QUANT_INT8, false, DTYPE_F32, 0},
         .method = "a test"},
        {.name = "model.norm.weight", .dtype = DTYPE_F32, .n_dims = 1, .dims = {8}},
    };
    static const char config[] = "{\"hidden_size\": 8, \"num_attention_heads\": 2, \"head_dim\": 4,"
                                 "\"rope_theta\": 10000.0, \"tie\": true, \"none\": null,"
                                 "\"architectures\": [\"Tiny\"], \"model_type\": \"tiny\"}";
    struct ckpt_writer *w = NULL;
    struct status st;
    TRY_GOTO(st, ckpt_writer_create(path, "a test", &w), out);
    TRY_GOTO(st, ckpt_writer_config(w, config, strlen(config)), out);
    TRY_GOTO(st, ckpt_writer_text(w, CKPT_TEXT_TOKENIZER, "{\"model\": {}}", 13), out);
    TRY_GOTO(st, ckpt_writer_text(w, CKPT_TEXT_CHAT_TEMPLATE, "{{ messages }}", 14), out);
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        TRY_GOTO(st, tensor_put(w, &specs[i], &seed), out);
    }
    return ckpt_writer_finish(&w);
out:
    ckpt_writer_destroy(&w);
    return st;
}

static void mix(uint64_t *sum, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++) *sum = (*sum ^ p[i]) * 0x100000001b3u;
}

static struct status tensor_mix(struct ckpt *c, const struct ckpt_tensor *t, uint64_t *sum)
{
    char *bytes = NULL;
    struct status st = status_ok();
    if (t->quant.kind == QUANT_NONE) { /* a quantized tensor's parts follow it as tensors */
        TRY(mem_alloc(&bytes, t->n_bytes, 1, t->name));
        st = ckpt_read_tensor(c, t, bytes);
        mix(sum, bytes, t->n_bytes);
        mix(sum, &t->dtype, sizeof t->dtype);
    } else { /* member by member, because the structure has padding */
        const unsigned format[] = {t->quant.kind, t->quant.has_zeros, t->quant.scale_dtype,
                                   t->quant.group};
        mix(sum, format, sizeof format);
        mix(sum, t->method, strlen(t->method));
    }
    mix(sum, t->name, strlen(t->name));
    mix(sum, t->dims, sizeof t->dims);
    mix(sum, &t->leaf_elems, sizeof t->leaf_elems);
    mix(sum, &t->grid_bits, sizeof t->grid_bits);
    mem_free(&bytes);
    return st;
}

struct status checkpoint_content(const char *path, uint64_t *content)
{
    struct ckpt *c = NULL;
    *content = 0xcbf29ce484222325u;
    struct status st = ckpt_open(path, &c);
    for (int i = 0; i < CKPT_TEXT_COUNT && !status_failed(&st); i++) {
        size_t n;
        const char *text = ckpt_text(c, (enum ckpt_text)i, &n);
        mix(content, text, n);
    }
    for (size_t i = 0; !status_failed(&st) && i < ckpt_stored_count(c); i++) {
        st = tensor_mix(c, ckpt_tensor_at(c, i), content);
    }
    if (!status_failed(&st)) {
        size_t n;
        const float *inv_freq = ckpt_rope_inv_freq(c, &n);
        mix(content, inv_freq, n * sizeof *inv_freq);
    }
    ckpt_close(&c);
    if (status_failed(&st)) *content = 0;
    return st;
}

int in_child(int (*body)(void *ctx), void *ctx, unsigned seconds)
{
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(seconds);
        _exit(body(ctx));
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) < 100) return WEXITSTATUS(status);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? 100 : 101;
}

struct status changed_checkpoint(void (*change)(hid_t file))
{
    struct seal_info seal;
    struct ckpt *c = NULL;
    struct seal_extent none[1];
    const char *path = scratch("h.h5");
    small_checkpoint(path, 3);
    struct status st = seal_check(path, &seal);
    if (status_failed(&st) || truncate(path, (off_t)seal.eoa) != 0) return st;
    const hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    CU_ASSERT_FATAL(file >= 0);
    change(file);
    CU_ASSERT_FATAL(H5Fclose(file) >= 0);
    CU_ASSERT_EQUAL(seal_append(path, none, 0).code, STATUS_OK);
    st = ckpt_open(path, &c);
    ckpt_close(&c);
    return st;
}
