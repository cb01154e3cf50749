#include "parallel/wire/result_block.h"

#include <string.h>

enum { LINE = 64 };

struct result_head {
    uint64_t n_rows, n_bytes;
};

size_t result_head_bytes(size_t n_rows)
{
    const size_t n = sizeof(struct result_head) + n_rows * sizeof(uint64_t);
    return (n + LINE - 1) / LINE * LINE;
}

uint64_t *result_block_ends(void *at)
{
    return (void *)((char *)at + sizeof(struct result_head));
}

void result_block_write_head(size_t n_rows, size_t n_bytes, void *at)
{
    const struct result_head head = {n_rows, n_bytes};
    char *behind = (char *)(result_block_ends(at) + n_rows);
    memcpy(at, &head, sizeof head);
    memset(behind, 0, (size_t)((char *)at + result_head_bytes(n_rows) - behind));
}

/* True when the ends ascend and lie in the block. */
static bool ends_fit(const struct result_block *b, size_t n_packed)
{
    uint64_t last = 0;
    for (size_t i = 0; i < b->n_rows; i++) {
        if (b->ends[i] < last) return false;
        last = b->ends[i];
    }
    return last <= n_packed;
}

bool result_block_read(const void *at, size_t n_bytes, struct result_block *out)
{
    struct result_head head;
    if (n_bytes < LINE) return false;
    memcpy(&head, at, sizeof head);
    if (head.n_bytes > n_bytes || head.n_rows > n_bytes) return false;
    const size_t n_head = result_head_bytes(head.n_rows);
    if (n_head > head.n_bytes) return false;
    out->n_rows = head.n_rows;
    out->n_bytes = head.n_bytes;
    out->ends = (const void *)((const char *)at + sizeof head);
    out->rows = (const char *)at + n_head;
    return ends_fit(out, head.n_bytes - n_head);
}
