/* Communicators and layouts for the MPI suites. */
#include "mpi/util_mpi.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint32_t util_n_ranks(void)
{
    int n;
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    return (uint32_t)n;
}

uint32_t util_rank(void)
{
    int r;
    MPI_Comm_rank(MPI_COMM_WORLD, &r);
    return (uint32_t)r;
}

struct layout_model util_layout_model(const struct util_shape *s, struct arch *arch)
{
    *arch = (struct arch){.family = arch_family_at(0),
                          .n_layers = 4,
                          .width = s->width,
                          .attn.n_heads = 8,
                          .attn.n_kv_heads = 4,
                          .attn.head_dim = 16,
                          .attn.query_dim = 16,
                          .attn.value_dim = 16,
                          .moe.n_experts = s->n_experts,
                          .moe.n_chosen = s->n_chosen,
                          .moe.ffn = s->expert_ffn,
                          .vocab = s->vocab,
                          .context = 1024};
    for (uint32_t i = 0; i < arch->n_layers; i++) arch->layer.is_moe[i] = true;
    return (struct layout_model){.name = "test",
                                 .arch = arch,
                                 .o_leaf = 16,
                                 .expert_leaf = s->expert_leaf,
                                 .weight_bytes = 4};
}

struct comm *util_comm(const struct layout *l, uint32_t turn)
{
    return util_comm_on_host(l, turn, 0);
}

struct comm *util_comm_on_host(const struct layout *l, uint32_t turn, int host)
{
    struct comm *c = NULL;
    int argc = 0;
    char **argv = NULL;
    uint32_t order[64];
    CU_ASSERT_FATAL(l->n_ranks <= 64);
    for (uint32_t r = 0; r < l->n_ranks; r++) order[r] = (r + turn) % l->n_ranks;
    CU_ASSERT_EQUAL_FATAL(comm_start(&argc, &argv, &c).code, STATUS_OK);
    comm_pretend_host(c, host);
    CU_ASSERT_EQUAL_FATAL(comm_split(c, l, order).code, STATUS_OK);
    return c;
}

struct comm *util_comm_of_replicas(uint32_t turn, int host)
{
    static const struct util_shape shape = {.width = 64,
                                            .n_experts = 8,
                                            .n_chosen = 2,
                                            .expert_ffn = 64,
                                            .expert_leaf = 16,
                                            .vocab = 64};
    static struct arch arch;
    const struct layout_model model = util_layout_model(&shape, &arch);
    const struct layout_flags flags = {.tp = 1, .pp = 1, .dp = util_n_ranks(), .ep = 1};
    struct layout *l = malloc(sizeof *l);
    CU_ASSERT_EQUAL_FATAL(layout_build(&model, util_n_ranks(), &flags, l).code, STATUS_OK);
    struct comm *c = util_comm_on_host(l, turn, host);
    free(l);
    return c;
}

size_t util_each_layout(const struct layout_model *model, util_layout_use *use, void *ctx)
{
    const uint32_t n = util_n_ranks();
    struct layout *l = malloc(sizeof *l);
    size_t n_used = 0;
    for (uint32_t tp = 1; tp <= n; tp++) {
        for (uint32_t pp = 1; pp <= n; pp++) {
            if (n % (tp * pp) != 0) continue;
            const uint32_t dp = n / (tp * pp);
            for (uint32_t ep = 1; ep <= dp * tp; ep++) {
                const struct layout_flags flags = {.tp = tp, .pp = pp, .dp = dp, .ep = ep};
                if (layout_build(model, n, &flags, l).code != STATUS_OK) continue;
                use(l, ctx);
                n_used++;
            }
        }
    }
    free(l);
    return n_used;
}

void util_shared_path(const char *what, char *out, size_t n)
{
    long pid = (long)getpid();
    MPI_Bcast(&pid, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    snprintf(out, n, "/tmp/shoal-test-%s-%ld.h5", what, pid);
}

uint32_t util_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

float util_uniform(uint64_t *state)
{
    return (float)(int32_t)(util_next(state) & 0xFFFFFF) * 0x1p-23f - 1.0f;
}

bool util_all(struct comm *c, bool mine)
{
    uint64_t ok = mine;
    comm_min_u64(c, COMM_WORLD, &ok, 1);
    return ok == 1;
}
