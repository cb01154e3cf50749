#include "parallel/wire/token_block.h"

#include <string.h>

enum { LINE = 64 };

struct token_head {
    uint64_t n_rows, n_choices;
};

size_t token_row_groups(const struct token_format *f)
{
    return f->group == 0 ? 0 : (f->width + f->group - 1) / f->group;
}

size_t token_row_values(const struct token_format *f)
{
    return f->group == 0 ? f->width : token_row_groups(f) * f->group;
}

static size_t value_bytes(const struct token_format *f)
{
    return f->group == 0 ? sizeof(float) : sizeof(int8_t);
}

size_t token_row_bytes(const struct token_format *f)
{
    return token_row_values(f) * value_bytes(f) + token_row_groups(f) * sizeof(float);
}

/* Returns the next part, of n_bytes, after *n_all bytes of the block. */
static void *block_part_at(char *at, size_t *n_all, size_t n_bytes)
{
    void *part = at != NULL ? at + *n_all : NULL;
    *n_all += (n_bytes + LINE - 1) / LINE * LINE;
    return part;
}

struct token_block token_block_at(const struct token_format *f, size_t n_rows, size_t n_choices,
                                  void *at)
{
    struct token_block b = {.n_rows = n_rows, .n_choices = n_choices};
    size_t n = 0;
    (void)block_part_at(at, &n, sizeof(struct token_head));
    b.rows = block_part_at(at, &n, n_rows * token_row_values(f) * value_bytes(f));
    b.scales = block_part_at(at, &n, n_rows * token_row_groups(f) * sizeof *b.scales);
    b.n_chosen = block_part_at(at, &n, n_rows * sizeof *b.n_chosen);
    b.places = block_part_at(at, &n, n_choices * sizeof *b.places);
    b.weights = block_part_at(at, &n, n_choices * sizeof *b.weights);
    b.adapters = block_part_at(at, &n, f->has_adapters ? n_rows * sizeof *b.adapters : 0);
    b.n_bytes = n;
    return b;
}

void token_block_write_head(const struct token_block *b, void *at)
{
    const struct token_head head = {b->n_rows, b->n_choices};
    memset(at, 0, LINE);
    memcpy(at, &head, sizeof head);
}

/* True when the rows' numbers of choices add up to the block's n_choices. */
static bool counts_fit(const struct token_block *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n_rows; i++) n += b->n_chosen[i];
    return n == b->n_choices;
}

bool token_block_read(const struct token_format *f, const void *at, size_t n_bytes,
                      struct token_block *out)
{
    struct token_head head;
    if (n_bytes < LINE) return false;
    memcpy(&head, at, sizeof head);
    if (head.n_rows > n_bytes || head.n_choices > n_bytes) return false;
    *out = token_block_at(f, head.n_rows, head.n_choices, (void *)(uintptr_t)at);
    return out->n_bytes <= n_bytes && counts_fit(out);
}
