/* Reads --adapter flags, and the digests of the files that they name. */
#include "job/job_adapters.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static bool is_adapter_name(const char *text, size_t n)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "._:/-";
    return n > 0 && n <= ADAPTER_NAME_MAX && strspn(text, allowed) >= n;
}

/* Copies the name and the path of a flag NAME=FILE to *at as two strings, which *file borrows, and
 * moves *at past them. */
static struct status read_flag(const char *flag, char **at, struct adapter_file *file)
{
    const char *equals = strchr(flag, '=');
    if (equals == NULL || equals[1] == '\0' || !is_adapter_name(flag, (size_t)(equals - flag))) {
        return status_make(STATUS_USAGE,
                           "--adapter: expected NAME=FILE.h5, the name of letters, digits and "
                           "._:/-, found \"%s\"",
                           flag);
    }
    memcpy(*at, flag, strlen(flag) + 1);
    (*at)[equals - flag] = '\0';
    *file = (struct adapter_file){.name = *at, .path = *at + (equals - flag) + 1};
    *at += strlen(flag) + 1;
    return status_ok();
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct adapter_file *)a)->name, ((const struct adapter_file *)b)->name);
}

/* Sets rule i to the name by which request lines choose the adapter, the file's digest, and a hash
 * of the digest as its key. Counts what the file's matrices take in memory. */
static struct status read_digest(struct job_adapters *a, const struct arch *model, size_t i)
{
    struct ckpt *c = NULL;
    const struct adapter_file *file = &a->files[i];
    TRY(status_wrap(ckpt_open(file->path, &c), "--adapter %s", file->name));
    const struct ckpt_digest digest = ckpt_digest(c);
    a->n_bytes += adapters_file_bytes(model, c);
    a->adapts_experts = a->adapts_experts || adapters_file_has_experts(c);
    const uint64_t key = XXH3_64bits(&digest, sizeof digest);
    ckpt_close(&c);
    a->rules[i] = (struct request_adapter){
        .name = file->name, .digest = {digest.low, digest.high}, .key = key != 0 ? key : 1};
    return status_ok();
}

static struct status read_adapter_files(struct job_adapters *a, const struct arch *model,
                                        const struct flag_list *flags)
{
    char *at = a->text;
    for (size_t i = 0; i < flags->n; i++) TRY(read_flag(flags->values[i], &at, &a->files[i]));
    qsort(a->files, flags->n, sizeof *a->files, by_name);
    for (size_t i = 0; i < flags->n; i++) {
        if (i > 0 && strcmp(a->files[i - 1].name, a->files[i].name) == 0)
            return status_make(STATUS_USAGE, "--adapter: two are named \"%s\"", a->files[i].name);
        TRY(read_digest(a, model, i));
    }
    a->n = flags->n;
    return status_ok();
}

struct status job_adapters_read(struct job_adapters *a, const struct arch *model,
                                const struct flag_list *flags)
{
    size_t n_bytes = 0;
    if (flags->n == 0) return status_ok();
    for (size_t i = 0; i < flags->n; i++) n_bytes += strlen(flags->values[i]) + 1;
    TRY(mem_alloc(&a->text, n_bytes, 1, "adapters"));
    TRY(mem_alloc(&a->files, flags->n, sizeof *a->files, "adapters"));
    TRY(mem_alloc(&a->rules, flags->n, sizeof *a->rules, "adapters"));
    return read_adapter_files(a, model, flags);
}

void job_adapters_fini(struct job_adapters *a)
{
    adapters_destroy(&a->loaded);
    mem_free(&a->text);
    mem_free(&a->files);
    mem_free(&a->rules);
    a->n = 0;
}

void job_adapters_settings(const struct job_adapters *a, struct strbuf *out)
{
    for (size_t i = 0; i < a->n; i++) {
        strbuf_printf(out, "--adapter %s=file with digest %016llx%016llx\n", a->rules[i].name,
                      (unsigned long long)a->rules[i].digest[1],
                      (unsigned long long)a->rules[i].digest[0]);
    }
}
