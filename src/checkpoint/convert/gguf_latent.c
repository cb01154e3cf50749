#include "checkpoint/convert/gguf_latent.h"

#include "base/mem.h"


static struct status shape_check(const struct gguf_model *m, const struct gguf_tensor *t,
                                 uint64_t n_rows, uint64_t n_cols)
{
    if (t->n_dims == 3 && t->dims[0] == (uint64_t)m->n_heads && t->dims[1] == n_rows &&
        t->dims[2] == n_cols)
        return status_ok();
    return status_make(STATUS_INPUT, "%s: tensor '%s': expected [%lld, %llu, %llu]",
                       gguf_path(m->file), t->name, (long long)m->n_heads,
                       (unsigned long long)n_rows, (unsigned long long)n_cols);
}

struct status gguf_latent_find(const struct gguf_model *m, const struct gguf_tensor *t, bool *found,
                               struct gguf_latent *out)
{
    static const char *const suffixes[] = {"attn_k_b.weight", "attn_v_b.weight"};
    struct gguf_pair pair;
    *found = false;
    if (m->family->latent) TRY(gguf_model_pair(m, t, suffixes, found, &pair));
    if (!*found) return status_ok();
    *out = (struct gguf_latent){.k = pair.first,
                                .v = pair.second,
                                .layer = pair.layer,
                                .n_heads = (uint64_t)m->n_heads,
                                .nope = (uint64_t)(m->head_dim - m->rotary),
                                .value = (uint64_t)m->value_dim,
                                .lora = (uint64_t)m->kv_lora};
    TRY(shape_check(m, out->k, out->lora, out->nope));
    return shape_check(m, out->v, out->value, out->lora);
}

/* Returns the bytes of the scratch's first part, for stored rows; the keys follow it as floats. */
static size_t stored_bytes(const struct gguf_latent *l)
{
    const size_t k = (size_t)(l->lora * l->k->row_bytes), v = (size_t)(l->value * l->v->row_bytes);
    return ((k > v ? k : v) + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
}

size_t gguf_latent_scratch_bytes(const struct gguf_latent *l)
{
    return stored_bytes(l) + (size_t)(l->lora * l->nope) * sizeof(float);
}

struct status gguf_latent_rows(const struct gguf *g, const struct gguf_latent *l, uint64_t head0,
                               uint64_t n_heads, void *scratch, float *out)
{
    float *keys = (float *)((char *)scratch + stored_bytes(l)); /* [lora][nope] */
    for (uint64_t h = head0; h < head0 + n_heads; h++) {
        TRY(gguf_read_floats(g, l->k, h * l->lora, l->lora, scratch, keys));
        for (uint64_t r = 0; r < l->nope; r++) {
            for (uint64_t c = 0; c < l->lora; c++) *out++ = keys[c * l->nope + r];
        }
        TRY(gguf_read_floats(g, l->v, h * l->value, l->value, scratch, out));
        out += l->value * l->lora;
    }
    return status_ok();
}
