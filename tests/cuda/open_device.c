/* Loads the real NCCL with all functions that shoal uses, or prints why it cannot. Then opens this
 * machine's GPU with the real driver and adds two rows on it, or prints why it cannot. Exit status:
 * 0 the sum was right; 77 no GPU, with a sentence; 1 anything else. */
#include "kernels/cuda/nccl_table.h"
#include "kernels/device.h"
#include "kernels/ops.h"

#include <stdio.h>

enum { N = 1000, SKIPPED = 77 };

static bool add_rows(struct device *d)
{
    const struct kern_table k = {.device = d};
    float x[N], got[N];
    float *a = NULL, *b = NULL;
    for (int i = 0; i < N; i++) x[i] = (float)i;
    const struct status st = mem_ops_alloc(&k, &a, N, sizeof *a, "rows");
    const struct status more = mem_ops_alloc(&k, &b, N, sizeof *b, "rows");
    bool right = !status_failed(&st) && !status_failed(&more);
    if (right) {
        mem_ops_put(&k, a, x, sizeof x);
        mem_ops_put(&k, b, x, sizeof x);
        op_add(&k, a, b, N);
        mem_ops_get(&k, got, a, sizeof got);
        for (int i = 0; i < N; i++) right = right && got[i] == 2.0f * x[i];
    }
    mem_ops_free(&k, &a);
    mem_ops_free(&k, &b);
    return right;
}

static void load_nccl(void)
{
    const struct nccl_table *nccl = nccl_table_here();
    const int error = nccl != NULL ? nccl->load() : 0;
    printf("%s: %s\n", nccl != NULL ? nccl->name : "built without NCCL",
           nccl == NULL ? "-"
           : error == 0 ? "loaded"
                        : nccl->error_text(error));
}

int main(void)
{
    load_nccl();
    const struct device_options o = {.name = "cuda", .n_local_ranks = 1};
    struct device *d = NULL;
    const struct status st = device_open(&o, &d);
    printf("%s\n%s\n", device_backends(), status_failed(&st) ? st.text : "opened");
    if (status_failed(&st)) return st.code == STATUS_USAGE ? SKIPPED : 1;
    const bool right = add_rows(d);
    const struct status after = device_status(d);
    if (status_failed(&after)) printf("%s\n", after.text);
    device_close(&d);
    return right ? 0 : 1;
}
