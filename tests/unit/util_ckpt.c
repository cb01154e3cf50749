/* Scratch files, small checkpoints, children with an alarm. */
#include "unit/util_ckpt.h"

#include "base/mem.h"
#include "checkpoint/ckpt.h"
#include "checkpoint/ckpt_writer.h"

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
    FILE *f = fopen(path, "wb");
    if (f == NULL) return;
    fwrite(bytes, 1, n, f);
    fclose(f);
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

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static struct status tensor_put(struct ckpt_writer *w, const struct ckpt_tensor_spec *spec,
                                uint32_t *state)
{
    uint64_t n_rows = 1;
    for (uint32_t d = 0; d + 1 < spec->n_dims; d++) n_rows *= spec->dims[d];
    const size_t n_bytes = n_rows * spec->dims[spec->n_dims - 1] * dtype_bytes(spec->dtype);
    TRY(ckpt_writer_tensor(w, spec));
    unsigned char *rows = malloc(n_bytes);
    for (size_t i = 0; i < n_bytes; i++) rows[i] = (unsigned char)next_random(state);
    const struct status st = ckpt_writer_rows(w, rows, n_rows);
    free(rows);
    return st;
}

struct status small_checkpoint(const char *path, uint32_t seed)
{
    static const struct ckpt_tensor_spec specs[] = {
        {"model.embed_tokens.weight", DTYPE_F32, 2, {12, 8}, 0, 0},
        {"model.layers.0.mlp.down_proj.weight", DTYPE_BF16, 2, {8, 64}, 32, 32},
        {"model.layers.0.mlp.experts.up_proj.weight", DTYPE_F16, 3, {4, 6, 8}, 0, 0},
        {"model.layers.1.mlp.down_proj.weight", DTYPE_BF16, 2, {8, 64}, 32, 33},
        {"model.norm.weight", DTYPE_F32, 1, {8}, 0, 0},
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
    TRY(mem_alloc(&bytes, t->n_bytes, 1, t->name));
    const struct status st = ckpt_read_tensor(c, t, bytes);
    mix(sum, bytes, t->n_bytes);
    mix(sum, t->name, strlen(t->name));
    mix(sum, &t->dtype, sizeof t->dtype);
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
    for (size_t i = 0; !status_failed(&st) && i < ckpt_tensor_count(c); i++) {
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
