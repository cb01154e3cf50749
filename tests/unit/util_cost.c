/* See util_cost.h. */
#include "util_cost.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

static void add(struct curve *c, double x, double y)
{
    CU_ASSERT_EQUAL_FATAL(curve_add(c, x, y).code, STATUS_OK);
}

void util_node(struct node *n, double n_threads, double n_ranks)
{
    static const double bytes[NODE_FORMAT_COUNT] = {4, 2, 2, 1, 1.0625, 0.5625, 0.5, 1, 0.53125};
    memset(n, 0, sizeof *n);
    snprintf(n->host, sizeof n->host, "round");
    snprintf(n->cpu, sizeof n->cpu, "a CPU");
    snprintf(n->kernels, sizeof n->kernels, "avx2");
    snprintf(n->shoal, sizeof n->shoal, "%s", SHOAL_VERSION);
    n->n_cores = n->n_threads = n_threads;
    n->n_ranks = n_ranks;
    n->memory_bytes = 1e12;
    add(&n->read, 1, 4e9);
    add(&n->read, n_threads, 10e9);
    add(&n->flops, 1, 1e12 / n_threads);
    add(&n->flops, n_threads, 1e12);
    for (int f = 0; f < NODE_FORMAT_COUNT; f++) {
        for (double rows = 1; rows <= 1024; rows *= 4) {
            const double read = bytes[f] / 10e9, work = rows * 2 / 1e12;
            add(&n->linear[f].memory, rows, read > work ? read : work);
            add(&n->linear[f].cached, rows, work);
        }
    }
    for (double x = 64; x <= 4096; x *= 4) {
        add(&n->attention_one, x, 4e-10);
        add(&n->attention_many, x, 1e-11);
        add(&n->sum, x * 64, 1e-6 + x * 64 / 1e9);
    }
    n->norm_s = n->gate_s = n->rope_s = 1e-11;
    n->logit_s = 1e-11;
    n->op_s = n->barrier_s = 1e-6;
    n->step_s = 1e-5;
    n->sequence_s = 1e-6;
    n->network_bytes_s = 10e9;
    n->network_s = 2e-6;
}
