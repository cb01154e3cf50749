/* The GGUF reader: dequantization against goldens of another implementation, metadata of every
 * type, files cut at every byte, and fields with false values. */
#include "checkpoint/convert/gguf.h"
#include "checkpoint/convert/gguf_delta.h"
#include "unit/util_ckpt.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GOLDEN SOURCE_DIR "/tests/golden/gguf/"

static void every_type_dequantizes_to_the_goldens_bits(void)
{
    struct gguf *g = NULL;
    size_t n_golden, at = 0;
    CU_ASSERT_EQUAL_FATAL(gguf_open(GOLDEN "types.gguf", &g).code, STATUS_OK);
    float *golden = (float *)get_file(GOLDEN "types.f32", &n_golden);
    CU_ASSERT_EQUAL_FATAL(gguf_count(g), 16);
    for (size_t i = 0; i < gguf_count(g); i++) {
        const struct gguf_tensor *t = gguf_at(g, i);
        const size_t n = t->n_rows * t->n_cols;
        char *stored = malloc(t->n_rows * t->row_bytes);
        float *out = malloc(n * sizeof *out);
        CU_ASSERT_STRING_EQUAL(t->name + 2, gguf_quant_name(t->quant));
        CU_ASSERT_EQUAL(gguf_read_rows(g, t, 0, t->n_rows, stored).code, STATUS_OK);
        gguf_dequantize(t->quant, stored, n, out);
        CU_ASSERT_FATAL((at + n) * sizeof *out <= n_golden);
        for (size_t j = 0; j < n; j++) {
            if (out[j] == golden[at + j]) continue; /* -0 equals +0 */
            fprintf(stderr, "%s [%zu]: %a, golden %a\n", t->name, j, out[j], golden[at + j]);
            CU_FAIL_FATAL("another value");
        }
        at += n;
        free(stored);
        free(out);
    }
    CU_ASSERT_EQUAL(at * sizeof(float), n_golden);
    free(golden);
    gguf_close(&g);
}

/* Returns the value of element n of quantized rows whose groups do not cross rows. */
static float kept_value(struct quant_format f, const struct quant_block *b, size_t n)
{
    const uint8_t byte = ((const uint8_t *)b->codes)[quant_is_nibbles(f.kind) ? n / 2 : n];
    const uint8_t code = !quant_is_nibbles(f.kind) ? byte : n % 2 == 0 ? byte & 15 : byte >> 4;
    const size_t group = n / f.group;
    float scale;
    if (f.kind == QUANT_MXFP4) {
        scale = f32_from_e8m0(((const uint8_t *)b->scales)[group]);
    } else {
        dtype_to_f32(f.scale_dtype, (const char *)b->scales + group * dtype_bytes(f.scale_dtype), 1,
                     &scale);
    }
    return quant_value(f, code, QUANT_INT4_ZERO, scale);
}

static void kept_codes_have_the_goldens_values(void)
{
    struct gguf *g = NULL;
    size_t n_golden, at = 0;
    unsigned n_kept = 0;
    CU_ASSERT_EQUAL_FATAL(gguf_open(GOLDEN "types.gguf", &g).code, STATUS_OK);
    float *golden = (float *)get_file(GOLDEN "types.f32", &n_golden);
    for (size_t i = 0; i < gguf_count(g); i++) {
        const struct gguf_tensor *t = gguf_at(g, i);
        const size_t n = t->n_rows * t->n_cols;
        struct quant_format f;
        if (gguf_quant_format(t->quant, &f)) {
            char *stored = malloc(t->n_rows * t->row_bytes);
            struct quant_block b = {.codes = malloc(n), .scales = malloc(n)};
            CU_ASSERT_EQUAL(gguf_read_rows(g, t, 0, t->n_rows, stored).code, STATUS_OK);
            CU_ASSERT_EQUAL(gguf_codes(t->quant, stored, t->n_rows, t->n_cols, &b),
                            t->quant != GGUF_Q8_0_TENSOR); /* random bytes contain -128, which
                                                              shoal's int8 lacks */
            for (size_t k = 0; k < n; k++) {
                CU_ASSERT_FATAL(kept_value(f, &b, k) == golden[at + k]);
            }
            n_kept++;
            free(b.codes);
            free(b.scales);
            free(stored);
        }
        at += n;
    }
    CU_ASSERT_EQUAL(n_kept, 6);
    free(golden);
    gguf_close(&g);
}

static void metadata_of_every_type_is_read(void)
{
    struct gguf *g = NULL;
    CU_ASSERT_EQUAL_FATAL(gguf_open(GOLDEN "types.gguf", &g).code, STATUS_OK);
    static const struct {
        const char *key;
        int64_t value;
    } ints[] = {{"v.u8", 200},          {"v.i8", -7},          {"v.u16", 60000},
                {"v.i16", -30000},      {"v.u32", 4000000000}, {"v.i32", -2000000000},
                {"v.i64", -(1ll << 62)}};
    int64_t i = 0;
    double x = 0;
    bool b = false;
    size_t n = 0;
    for (size_t k = 0; k < sizeof ints / sizeof ints[0]; k++) {
        CU_ASSERT(gguf_int(g, ints[k].key, &i) && i == ints[k].value);
    }
    CU_ASSERT_FALSE(gguf_int(g, "v.u64", &i)); /* 2^64 - 1 does not fit an int64 */
    CU_ASSERT_FALSE(gguf_int(g, "v.f32", &i));
    CU_ASSERT_FALSE(gguf_int(g, "v.none", &i));
    CU_ASSERT(gguf_float(g, "v.f32", &x) && x == 1.5);
    CU_ASSERT(gguf_float(g, "v.f64", &x) && x == -0.1);
    CU_ASSERT(gguf_bool(g, "v.bool", &b) && b);
    const char *text = gguf_string(g, "v.string", &n);
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    CU_ASSERT(n == 7 && strcmp(text, "z\xc3\xbcrich") == 0);
    enum gguf_type type;
    uint64_t count;
    CU_ASSERT(gguf_array(g, "v.strings", &type, &count) && type == GGUF_STRING && count == 3);
    text = gguf_array_string(g, "v.strings", 2, &n);
    CU_ASSERT(text != NULL && n == 3 && strcmp(text, "ccc") == 0);
    text = gguf_array_string(g, "v.strings", 1, &n);
    CU_ASSERT(text != NULL && n == 0);
    CU_ASSERT_PTR_NULL(gguf_array_string(g, "v.strings", 3, &n));
    CU_ASSERT(gguf_array_int(g, "v.ints", 1, &i) && i == -1);
    CU_ASSERT_FALSE(gguf_array_int(g, "v.ints", 3, &i));
    CU_ASSERT_FALSE(gguf_array_int(g, "v.strings", 0, &i));
    gguf_close(&g);
}

static void a_file_cut_at_any_byte_is_refused(void)
{
    size_t n;
    char *bytes = get_file(GOLDEN "types.gguf", &n);
    unsigned n_wrong = 0;
    for (size_t cut = 0; cut < n; cut++) {
        struct gguf *g = NULL;
        put_file(scratch("cut.gguf"), bytes, cut);
        const struct status st = gguf_open(scratch("cut.gguf"), &g);
        n_wrong += st.code != STATUS_INPUT || strstr(st.text, "cut.gguf") == NULL;
        gguf_close(&g);
    }
    /* cuts within the padding after the last tensor are accepted */
    CU_ASSERT(n_wrong < 32);
    free(bytes);
    scratch_clear();
}

struct flips {
    char *bytes;
    size_t n;
};

static int flips_try(void *ctx)
{
    struct flips *f = ctx;
    put_file(scratch("flip.gguf"), f->bytes, f->n);
    FILE *file = fopen(scratch("flip.gguf"), "r+b");
    for (size_t bit = 0; bit < f->n * 8 && bit < 2000 * 8; bit++) {
        struct gguf *g = NULL;
        fseek(file, (long)(bit / 8), SEEK_SET);
        fputc(f->bytes[bit / 8] ^ (1 << bit % 8), file);
        fflush(file);
        gguf_open(scratch("flip.gguf"), &g);
        gguf_close(&g);
        fseek(file, (long)(bit / 8), SEEK_SET);
        fputc(f->bytes[bit / 8], file);
    }
    fclose(file);
    scratch_clear();
    return 0;
}

/* GGUF has no checksums: a flip may change a value, but must neither crash nor hang. */
static void flipped_bits_of_the_header_neither_crash_nor_hang(void)
{
    struct flips f;
    f.bytes = get_file(GOLDEN "types.gguf", &f.n);
    CU_ASSERT_EQUAL(in_child(flips_try, &f, 120), 0);
    free(f.bytes);
}

/* ---- lies ---- */

struct builder {
    unsigned char bytes[4096];
    size_t n;
};

static void put(struct builder *b, uint64_t value, unsigned n_bytes)
{
    for (unsigned i = 0; i < n_bytes; i++) b->bytes[b->n++] = (unsigned char)(value >> 8 * i);
}

static void put_text(struct builder *b, const char *text)
{
    put(b, strlen(text), 8);
    memcpy(b->bytes + b->n, text, strlen(text));
    b->n += strlen(text);
}

static void header(struct builder *b, uint64_t version, uint64_t n_tensors, uint64_t n_values)
{
    b->n = 0;
    memcpy(b->bytes, "GGUF", 4);
    b->n = 4;
    put(b, version, 4);
    put(b, n_tensors, 8);
    put(b, n_values, 8);
}

static void tensor(struct builder *b, const char *name, uint32_t n_dims, uint64_t dim,
                   uint32_t type, uint64_t offset)
{
    put_text(b, name);
    put(b, n_dims, 4);
    for (uint32_t d = 0; d < n_dims && d < 8; d++) put(b, dim, 8);
    put(b, type, 4);
    put(b, offset, 8);
}

static void expect(struct builder *b, size_t n_data, const char *says)
{
    struct gguf *g = NULL;
    const size_t start = (b->n + 31) / 32 * 32;
    unsigned char *bytes = calloc(start + n_data, 1);
    memcpy(bytes, b->bytes, b->n);
    put_file(scratch("lie.gguf"), bytes, start + n_data);
    free(bytes);
    const struct status st = gguf_open(scratch("lie.gguf"), &g);
    CU_ASSERT_EQUAL(st.code, says == NULL ? STATUS_OK : STATUS_INPUT);
    if (says != NULL && strstr(st.text, says) == NULL) {
        fprintf(stderr, "expected '%s', found '%s'\n", says, st.text);
        CU_FAIL("another sentence");
    }
    gguf_close(&g);
}

static void headers_that_lie_are_refused(void)
{
    struct builder b;
    header(&b, 3, 1, 0);
    tensor(&b, "a", 1, 8, 0, 0);
    expect(&b, 32, NULL);
    header(&b, 1, 0, 0);
    expect(&b, 0, "version");
    header(&b, 0x03000000, 0, 0);
    expect(&b, 0, "little endian");
    header(&b, 3, 1ull << 60, 0);
    expect(&b, 0, "tensors and");
    header(&b, 3, 0, 1ull << 60);
    expect(&b, 0, "metadata keys");
    header(&b, 3, 0, 0);
    expect(&b, 0, "no tensors");
    header(&b, 3, 0, 3);
    expect(&b, 0, "lie.gguf");
    b.bytes[0] = 'X';
    expect(&b, 0, "no GGUF file");
    memcpy(b.bytes, "version https", 13);
    expect(&b, 0, "git lfs pull");
}

static void metadata_that_lies_is_refused(void)
{
    struct builder b;
    header(&b, 3, 1, 1);
    put(&b, 1ull << 40, 8);
    expect(&b, 64, "a string of");
    header(&b, 3, 1, 1);
    put_text(&b, "k");
    put(&b, 13, 4);
    expect(&b, 64, "value type 13");
    header(&b, 3, 1, 1);
    put_text(&b, "k");
    put(&b, GGUF_BOOL, 4);
    put(&b, 2, 1);
    expect(&b, 64, "a bool of 2");
    header(&b, 3, 1, 1);
    put_text(&b, "k");
    put(&b, GGUF_ARRAY, 4);
    put(&b, GGUF_U64, 4);
    put(&b, UINT64_MAX / 8 + 2, 8);
    expect(&b, 64, "an array of");
    header(&b, 3, 1, 1);
    put_text(&b, "k");
    put(&b, GGUF_ARRAY, 4);
    for (int i = 0; i < 100; i++) {
        put(&b, GGUF_ARRAY, 4);
        put(&b, 1, 8);
    }
    expect(&b, 64, "in depth");
    header(&b, 3, 1, 2);
    for (int i = 0; i < 2; i++) {
        put_text(&b, "twice");
        put(&b, GGUF_U8, 4);
        put(&b, 1, 1);
    }
    tensor(&b, "a", 1, 8, 0, 0);
    expect(&b, 32, "key twice stands twice");
    header(&b, 3, 1, 1);
    put_text(&b, "general.alignment");
    put(&b, GGUF_U32, 4);
    put(&b, 48, 4);
    tensor(&b, "a", 1, 8, 0, 0);
    expect(&b, 32, "general.alignment");
}

static void tensors_that_lie_are_refused(void)
{
    struct builder b;
    static const struct {
        uint32_t n_dims;
        uint64_t dim;
        uint32_t type;
        uint64_t offset;
        const char *says;
    } lies[] = {
        {1, 8, 0, 32, "inside the file"},     {1, 9, 0, 0, "inside the file"},
        {1, 8, 0, 4, "a multiple of 32"},     {1, 8, 0, UINT64_MAX - 31, "inside the file"},
        {1, 0, 0, 0, "a dimension of 0"},     {4, 1ull << 16, 0, 0, "overflows"},
        {2, 1ull << 32, 0, 0, "overflows"},   {1, UINT64_MAX, 0, 0, "overflows"},
        {0, 0, 0, 0, "1 to 4 dimensions"},    {5, 1, 0, 0, "1 to 4 dimensions"},
        {1, 8, 2, 0, "not whole blocks"},     {1, 8, 16, 0, "type 16 is not read"},
        {1, 8, 0xFFFFFFFF, 0, "is not read"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        header(&b, 3, 1, 0);
        tensor(&b, "a", lies[i].n_dims, lies[i].dim, lies[i].type, lies[i].offset);
        expect(&b, 32, lies[i].says);
    }
    header(&b, 3, 2, 0);
    tensor(&b, "a", 1, 8, 0, 0);
    tensor(&b, "b", 1, 8, 0, 0);
    expect(&b, 64, "overlaps");
    header(&b, 3, 2, 0);
    tensor(&b, "a", 1, 8, 0, 0);
    tensor(&b, "a", 1, 8, 0, 32);
    expect(&b, 64, "stands twice");
    header(&b, 3, 1, 0);
    tensor(&b, "", 1, 8, 0, 0);
    expect(&b, 32, "bad tensor name");
    struct gguf *g = NULL;
    CU_ASSERT_EQUAL_FATAL(mkfifo(scratch("fifo.gguf"), 0600), 0);
    CU_ASSERT_EQUAL(gguf_open(scratch("fifo.gguf"), &g).code, STATUS_INPUT);
    scratch_clear();
}

/* An A_log that fits bf16 comes back exactly from -exp(A_log), also from the next f32 beside it;
 * other decays d come back as log(-d). */
static void decays_become_their_logarithms(void)
{
    static const float narrow[] = {-6.5f, -0.40625f, 0.0078125f, 1.1171875f, 2.765625f};
    for (size_t i = 0; i < sizeof narrow / sizeof narrow[0]; i++) {
        const float exact = (float)-exp(narrow[i]);
        float values[] = {exact, nextafterf(exact, 0), nextafterf(exact, -100)};
        CU_ASSERT_TRUE(gguf_delta_decays(values, 3));
        for (int k = 0; k < 3; k++) CU_ASSERT_EQUAL(values[k], narrow[i]);
    }
    float wide[] = {-3.0f, -0.7f};
    CU_ASSERT_TRUE(gguf_delta_decays(wide, 2));
    CU_ASSERT_EQUAL(wide[0], (float)log(3.0));
    CU_ASSERT_EQUAL(wide[1], (float)log(0.7f));
    static const float refused[] = {0.0f, 1.0f, -INFINITY, NAN};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        float values[] = {-1.0f, refused[i]};
        CU_ASSERT_FALSE(gguf_delta_decays(values, 2));
    }
}

void suite_gguf(CU_pSuite suite);
void suite_gguf(CU_pSuite suite)
{
    CU_add_test(suite, "every type dequantizes to the golden's bits",
                every_type_dequantizes_to_the_goldens_bits);
    CU_add_test(suite, "kept codes have the goldens' values", kept_codes_have_the_goldens_values);
    CU_add_test(suite, "metadata of every type is read", metadata_of_every_type_is_read);
    CU_add_test(suite, "a file cut at any byte is refused", a_file_cut_at_any_byte_is_refused);
    CU_add_test(suite, "flipped bits of the header neither crash nor hang",
                flipped_bits_of_the_header_neither_crash_nor_hang);
    CU_add_test(suite, "decays become their logarithms", decays_become_their_logarithms);
    CU_add_test(suite, "headers that lie are refused", headers_that_lie_are_refused);
    CU_add_test(suite, "metadata that lies is refused", metadata_that_lies_is_refused);
    CU_add_test(suite, "tensors that lie are refused", tensors_that_lie_are_refused);
}
