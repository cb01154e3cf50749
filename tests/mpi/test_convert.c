/* A conversion that ranks share: each of them learns the whole result. */
#include "calibrate/quantize_plan.h"
#include "checkpoint/convert/convert.h"
#include "util_mpi.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

static struct status choose_formats(void *policy, struct ckpt *list, struct ckpt_tensor_spec *specs)
{
    return quantize_specs(list, policy, specs);
}

/* Rounds mxfp4 to int4; comm NULL: alone. */
static void convert(struct comm *comm, struct convert_result *out)
{
    char path[64];
    struct quantize_policy policy;
    snprintf(path, sizeof path, "/tmp/shoal-convert-%d.h5", (int)getpid());
    CU_ASSERT_EQUAL_FATAL(quantize_policy_parse("int4", NULL, &policy).code, STATUS_OK);
    const struct convert_options o = {.source = SOURCE_DIR "/tests/golden/models/gpt-oss-mxfp4/hf",
                                      .path = path,
                                      .keep_dtype = true,
                                      .keep_codes = true,
                                      .choose = choose_formats,
                                      .choose_ctx = &policy};
    CU_ASSERT_EQUAL_FATAL(convert_run(&o, comm, out).code, STATUS_OK);
    if (comm == NULL || util_rank() == 0) CU_ASSERT_EQUAL(unlink(path), 0);
}

static void results_are_whole_on_every_rank(void)
{
    struct comm *comm = NULL;
    struct convert_result alone, shared;
    convert(NULL, &alone);
    CU_ASSERT_EQUAL_FATAL(comm_start(NULL, NULL, &comm).code, STATUS_OK);
    convert(comm, &shared);
    comm_stop(&comm);
    CU_ASSERT(alone.n_bytes > 0 && alone.loss.n_rows > 0 && alone.n_counts > 0);
    CU_ASSERT_EQUAL(shared.n_tensors, alone.n_tensors);
    CU_ASSERT_EQUAL(shared.n_bytes, alone.n_bytes);
    CU_ASSERT_EQUAL(shared.n_overflowed, alone.n_overflowed);
    CU_ASSERT_EQUAL_FATAL(shared.n_counts, alone.n_counts);
    for (size_t i = 0; i < alone.n_counts; i++) {
        CU_ASSERT_EQUAL(shared.counts[i].n_tensors, alone.counts[i].n_tensors);
        CU_ASSERT_STRING_EQUAL(shared.counts[i].format, alone.counts[i].format);
    }
    CU_ASSERT_EQUAL(shared.loss.n_rows, alone.loss.n_rows);
    CU_ASSERT(fabs(shared.loss.error - alone.loss.error) <= 1e-9 * alone.loss.error);
    CU_ASSERT(fabs(shared.loss.energy - alone.loss.energy) <= 1e-9 * alone.loss.energy);
}

void suite_convert(CU_pSuite suite);
void suite_convert(CU_pSuite suite)
{
    CU_add_test(suite, "results are whole on every rank", results_are_whole_on_every_rank);
}
