/* Tests the choice of an instruction set and the known-answer check. */
#include "kernels/cpu.h"
#include "kernels/kat.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

static void an_unknown_set_is_a_usage_error(void)
{
    struct kern_table t;
    const struct status st = kern_select("sse9", &t);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "SHOAL_KERNELS: expected"));
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "sse9"));
}

static void selected_with_view(const char *view, const char *force, struct kern_table *t,
                               struct status *st)
{
    const char *own = getenv("SHOAL_CPU");
    char *kept = own != NULL ? strdup(own) : NULL;
    CU_ASSERT_EQUAL_FATAL(setenv("SHOAL_CPU", view, 1), 0);
    *st = kern_select(force, t);
    if (kept != NULL)
        setenv("SHOAL_CPU", kept, 1);
    else
        unsetenv("SHOAL_CPU");
    free(kept);
}

static void a_view_hides_better_sets(void)
{
    struct kern_table t;
    struct status st;
    for (enum cpu_set view = CPU_REF; view < CPU_SET_COUNT; view++) {
        selected_with_view(cpu_set_name(view), NULL, &t, &st);
        CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
        enum cpu_set got = CPU_REF;
        while (strcmp(t.name, cpu_set_name(got)) != 0) got++;
        CU_ASSERT_TRUE(got <= view);
        if (cpu_lacks(view) == NULL) CU_ASSERT_EQUAL(got, view);
        if (view == CPU_AMX) continue;
        selected_with_view(cpu_set_name(view), cpu_set_name(view + 1), &t, &st);
        CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "SHOAL_CPU hides it"));
    }
    selected_with_view("sse9", NULL, &t, &st);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "SHOAL_CPU"));
}

static void every_set_gives_the_known_answers(void)
{
    static const char *const names[] = {"ref", "avx2", "avx512", "amx", NULL};
    for (size_t i = 0; i < 5; i++) {
        struct kern_table t;
        const struct status st = kern_select(names[i], &t);
        if (st.code == STATUS_USAGE && i > 0) continue; /* the CPU lacks this set */
        CU_ASSERT_EQUAL(st.code, STATUS_OK);
        if (status_failed(&st)) printf("%s\n", st.text);
        if (names[i] != NULL) CU_ASSERT_STRING_EQUAL(t.name, names[i]);
    }
}

/* Kernels that are wrong in one place each. */
static void bad_linear(const struct linear_args *a, const struct linear_slice *s)
{
    struct kern_table ref;
    kern_fill_ref(&ref);
    ref.linear[DTYPE_F16](a, s);
    a->y[0] = f32_from_bits(f32_bits(a->y[0]) ^ 1u);
}

static void bad_rmsnorm(const float *x, const float *w, size_t n, float eps, float *y)
{
    struct kern_table ref;
    kern_fill_ref(&ref);
    ref.rmsnorm(x, w, n, eps, y);
    y[n - 1] = f32_from_bits(f32_bits(y[n - 1]) + 1u);
}

static uint64_t bad_mass(const float *logits, size_t n, float max, float inv_t, uint64_t *mass)
{
    struct kern_table ref;
    kern_fill_ref(&ref);
    return ref.mass(logits, n, max, inv_t, mass) + 1;
}

static void bad_fold(const struct attn_args *a, const struct attn_slice *s)
{
    struct kern_table ref;
    kern_fill_ref(&ref);
    ref.attention_fold(a, s);
    a->out[0] = f32_from_bits(f32_bits(a->out[0]) ^ 1u);
}

static void bad_sharing(const struct attn_args *a, const struct attn_slice *s)
{
    struct kern_table ref;
    kern_fill_ref(&ref);
    ref.attention[DTYPE_I8](a, s);
    if (s->n_shared > 0) a->out[0] = f32_from_bits(f32_bits(a->out[0]) ^ 1u);
}

/* Wrong only for a weight with fp8_plain, with which kernels do not look for NaN. */
static void bad_plain(const struct linear_args *a, const struct linear_slice *s)
{
    const struct packed *w = a->groups[0].w;
    struct kern_table ref;
    kern_fill_ref(&ref);
    (w->leaf > 0 ? ref.linear_quant_leaf : ref.linear_quant)[QUANT_FP8](a, s);
    if (w->fp8_plain && w->leaf > 0) a->sums[w->n_out - 1] ^= 1;
    if (w->fp8_plain && w->leaf == 0) a->y[0] = f32_from_bits(f32_bits(a->y[0]) ^ 1u);
}

static void check_finds(const struct kern_table *t, const char *op)
{
    const struct status st = kern_check(t);
    CU_ASSERT_EQUAL(st.code, STATUS_BUG);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, op));
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "'ref'"));
}

static void a_wrong_kernel_is_found_and_named(void)
{
    struct kern_table t;
    kern_fill_ref(&t);
    t.linear[DTYPE_F16] = bad_linear;
    check_finds(&t, "linear f16");
    kern_fill_ref(&t);
    t.rmsnorm = bad_rmsnorm;
    check_finds(&t, "rmsnorm");
    kern_fill_ref(&t);
    t.mass = bad_mass;
    check_finds(&t, "mass");
    kern_fill_ref(&t);
    t.attention[DTYPE_F32] = t.attention[DTYPE_F16];
    check_finds(&t, "attention f32");
    kern_fill_ref(&t);
    t.attention[DTYPE_I8] = bad_sharing;
    check_finds(&t, "attention of shared tiles i8");
    kern_fill_ref(&t);
    t.attention_fold = bad_fold;
    check_finds(&t, "attention_fold");
    kern_fill_ref(&t);
    t.linear_quant[QUANT_FP8] = bad_plain;
    check_finds(&t, "linear_quant fp8 in groups of 32");
    kern_fill_ref(&t);
    t.linear_quant_leaf[QUANT_FP8] = bad_plain;
    check_finds(&t, "linear_quant fp8 in groups of 32");
}

void suite_select(CU_pSuite suite);
void suite_select(CU_pSuite suite)
{
    CU_add_test(suite, "an unknown set is a usage error", an_unknown_set_is_a_usage_error);
    CU_add_test(suite, "a view hides better sets", a_view_hides_better_sets);
    CU_add_test(suite, "every set gives the known answers", every_set_gives_the_known_answers);
    CU_add_test(suite, "a wrong kernel is found and named", a_wrong_kernel_is_found_and_named);
}
