/* Bodies of uploads: parts, borders inside the data, and bodies that are cut anywhere. */
#include "serve/http/multipart.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kind[] = "multipart/form-data; boundary=Ab7";
static const char body[] =
    "--Ab7\r\n"
    "Content-Disposition: form-data; name=\"purpose\"\r\n\r\n"
    "batch\r\n"
    "--Ab7\r\n"
    "content-disposition: form-data; filename=\"x y.jsonl\"; name=\"file\"\r\n"
    "Content-Type: text/plain\r\n\r\n"
    "a --Ab7 b\r\n\r\n--Ab\r\n\r\n"
    "--Ab7--\r\n";

static bool is(const char *text, size_t n, const char *expected)
{
    return text != NULL && n == strlen(expected) && memcmp(text, expected, n) == 0;
}

static void parts_are_found(void)
{
    struct multipart m;
    struct multipart_part p;
    size_t at = 0;
    CU_ASSERT_FATAL(multipart_init(&m, kind, body, sizeof body - 1));
    CU_ASSERT_FATAL(multipart_next(&m, &at, &p));
    CU_ASSERT(is(p.name, p.n_name, "purpose") && p.file_name == NULL && is(p.data, p.n, "batch"));
    CU_ASSERT_FATAL(multipart_next(&m, &at, &p));
    CU_ASSERT(is(p.name, p.n_name, "file") && is(p.file_name, p.n_file_name, "x y.jsonl"));
    CU_ASSERT(is(p.data, p.n, "a --Ab7 b\r\n\r\n--Ab\r\n"));
    CU_ASSERT_FALSE(multipart_next(&m, &at, &p));
}

/* The data have lines that begin like a border, or equal one except for the text after it. */
static void a_border_ends_its_line(void)
{
    static const char text[] = "before --Ab7\r\nContent-Disposition: form-data; name=\"no\"\r\n\r\n"
                               "--Ab7 \t\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n"
                               "a\r\n--Ab7c\r\n--Ab7-\r\n--Ab7 d\r\n\n--Ab7\r\n\r\n--Ab7\r\n"
                               "Content-Disposition: form-data; name=\"empty\"\r\n\r\n"
                               "--Ab7--";
    struct multipart m;
    struct multipart_part p;
    size_t at = 0;
    CU_ASSERT_FATAL(multipart_init(&m, kind, text, sizeof text - 1));
    CU_ASSERT_FATAL(multipart_next(&m, &at, &p));
    CU_ASSERT(is(p.name, p.n_name, "file"));
    CU_ASSERT(is(p.data, p.n, "a\r\n--Ab7c\r\n--Ab7-\r\n--Ab7 d\r\n\n--Ab7\r\n"));
    CU_ASSERT_FATAL(multipart_next(&m, &at, &p));
    CU_ASSERT(is(p.name, p.n_name, "empty") && p.n == 0);
    CU_ASSERT_FALSE(multipart_next(&m, &at, &p));
}

/* A part counts only if the whole border after it is there, so no part that is found is cut off. */
static void cut_bodies_have_fewer_parts(void)
{
    size_t n_found[3] = {0};
    for (size_t n = 0; n < sizeof body; n++) {
        char *cut = malloc(n > 0 ? n : 1); /* so that a sanitizer reports reads past the end */
        struct multipart m;
        struct multipart_part p;
        size_t at = 0, found = 0;
        CU_ASSERT_PTR_NOT_NULL_FATAL(cut);
        memcpy(cut, body, n);
        CU_ASSERT(multipart_init(&m, kind, cut, n));
        while (multipart_next(&m, &at, &p)) {
            CU_ASSERT(is(p.data, p.n, found == 0 ? "batch" : "a --Ab7 b\r\n\r\n--Ab\r\n"));
            found++;
        }
        CU_ASSERT_FATAL(found <= 2);
        n_found[found]++;
        free(cut);
    }
    CU_ASSERT(n_found[0] > 60 && n_found[1] > 100);
    CU_ASSERT_EQUAL(n_found[2], strlen("\r\n") + 1);
}

static void boundaries_are_checked(void)
{
    struct multipart m;
    const char *const wrong[] = {
        "",
        "text/plain",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/mixed; boundary=a",
        "multipart/form-data; boundary=0123456789012345678901234567890123456789"
        "0123456789012345678901234567890"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CU_ASSERT_FALSE(multipart_init(&m, wrong[i], "", 0));
    CU_ASSERT(multipart_init(&m, "Multipart/Form-Data; charset=x; Boundary=\"a b\"; y=z", "", 0));
    CU_ASSERT(is(m.border, m.n_border, "--a b"));
}

void suite_multipart(CU_pSuite suite);
void suite_multipart(CU_pSuite suite)
{
    CU_add_test(suite, "parts are found", parts_are_found);
    CU_add_test(suite, "a border ends its line", a_border_ends_its_line);
    CU_add_test(suite, "cut bodies have fewer parts", cut_bodies_have_fewer_parts);
    CU_add_test(suite, "boundaries are checked", boundaries_are_checked);
}
