/* Compares the logits that `shoal score --logits` wrote with golden files.
 * usage: compare_logits LOGITS.h5 BOUND NAME[/EVERY]=GOLDEN.i24...
 * tests/golden/logits_file.py defines the golden files: a unit, then integers of three bytes. With
 * EVERY, the golden has the rows 0, EVERY, 2 EVERY and so on of the dataset.
 * Every |difference| of dataset NAME must be at most BOUND times the golden's largest |logit|.
 * Exit status: 0 all within, 1 some are not, 2 a file cannot be used. Called by golden.py. */
#include <hdf5.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One sequence: golden and found are [T, V]; T counts the rows that the golden has. */
struct pair {
    const char *name;
    size_t every, n_tokens, n_vocab;
    float *golden, *found;
};

/* Keeps the rows of found that the golden has. */
static void keep_every(struct pair *p)
{
    const size_t n_kept = (p->n_tokens + p->every - 1) / p->every;
    for (size_t t = 1; t < n_kept; t++)
        memmove(p->found + t * p->n_vocab, p->found + t * p->every * p->n_vocab,
                p->n_vocab * sizeof *p->found);
    p->n_tokens = n_kept;
}

static bool read_found(hid_t file, struct pair *p)
{
    hsize_t dims[2];
    bool ok = false;
    const hid_t set = H5Dopen2(file, p->name, H5P_DEFAULT);
    if (set < 0) return false;
    const hid_t space = H5Dget_space(set);
    if (H5Sget_simple_extent_ndims(space) == 2 &&
        H5Sget_simple_extent_dims(space, dims, NULL) == 2) {
        p->n_tokens = (size_t)dims[0];
        p->n_vocab = (size_t)dims[1];
        p->found = malloc(p->n_tokens * p->n_vocab * sizeof *p->found);
        ok = p->found != NULL &&
             H5Dread(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, p->found) >= 0;
        if (ok) keep_every(p);
    }
    H5Sclose(space);
    H5Dclose(set);
    return ok;
}

/* codes: n times three bytes, little-endian, signed. */
static void widen(const unsigned char *codes, size_t n, float unit, float *values)
{
    for (size_t i = 0; i < n; i++, codes += 3) {
        const uint32_t bits = codes[0] | (uint32_t)codes[1] << 8 | (uint32_t)codes[2] << 16;
        const int32_t code = (int32_t)bits - (bits >> 23 != 0 ? 1 << 24 : 0);
        values[i] = (float)code * unit;
    }
}

static bool read_golden(const char *path, struct pair *p)
{
    const size_t n = p->n_tokens * p->n_vocab;
    float unit = 0;
    bool ok = false;
    FILE *f = fopen(path, "rb");
    if (f == NULL) return false;
    unsigned char *codes = malloc(3 * n);
    p->golden = malloc(n * sizeof *p->golden);
    if (codes != NULL && p->golden != NULL) {
        ok = fread(&unit, sizeof unit, 1, f) == 1 && fread(codes, 3, n, f) == n && fgetc(f) == EOF;
        if (ok) widen(codes, n, unit, p->golden);
    }
    free(codes);
    fclose(f);
    return ok;
}

static size_t argmax(const float *row, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++) {
        if (row[i] > row[best]) best = i;
    }
    return best;
}

/* True when all logits are within the bound; NaN is never within. */
static bool compare(const struct pair *p, double bound)
{
    double largest = 0, worst = 0;
    size_t worst_at = 0, n_argmax = 0;
    bool all_finite = true;
    for (size_t i = 0; i < p->n_tokens * p->n_vocab; i++) {
        const double difference = fabs((double)p->golden[i] - (double)p->found[i]);
        largest = fmax(largest, fabs((double)p->golden[i]));
        if (!isfinite(difference)) all_finite = false;
        if (difference > worst) {
            worst = difference;
            worst_at = i;
        }
    }
    for (size_t t = 0; t < p->n_tokens; t++) {
        const size_t row = t * p->n_vocab;
        n_argmax += argmax(p->golden + row, p->n_vocab) != argmax(p->found + row, p->n_vocab);
    }
    const bool within = all_finite && worst <= bound * largest;
    printf(
        "%s [%zu, %zu]: worst %.3e of the largest logit, at token %zu id %zu; %zu other argmax%s\n",
        p->name, p->n_tokens, p->n_vocab, worst / largest, worst_at / p->n_vocab * p->every,
        worst_at % p->n_vocab, n_argmax, within ? "" : " - BEYOND THE BOUND");
    return within;
}

/* Returns 0, 1 or 2, the exit status of the program. */
static int compare_one(hid_t file, char *arg, double bound)
{
    char *equals = strchr(arg, '=');
    if (equals == NULL) return 2;
    *equals = '\0';
    struct pair p = {.name = arg, .every = 1};
    char *slash = strchr(arg, '/');
    if (slash != NULL) {
        *slash = '\0';
        p.every = (size_t)atoi(slash + 1);
        if (p.every == 0) return 2;
    }
    int result = 2;
    if (!read_found(file, &p)) {
        fprintf(stderr, "dataset '%s' of the logits file cannot be read as [T, V] f32\n", p.name);
    } else if (!read_golden(equals + 1, &p)) {
        fprintf(stderr, "%s does not hold %zu x %zu logits\n", equals + 1, p.n_tokens, p.n_vocab);
    } else {
        result = compare(&p, bound) ? 0 : 1;
    }
    free(p.golden);
    free(p.found);
    return result;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: compare_logits LOGITS.h5 BOUND NAME[/EVERY]=GOLDEN.i24...\n");
        return 2;
    }
    const hid_t file = H5Fopen(argv[1], H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file < 0) return 2;
    int worst = 0;
    for (int i = 3; i < argc; i++) {
        const int result = compare_one(file, argv[i], atof(argv[2]));
        if (result > worst) worst = result;
    }
    H5Fclose(file);
    return worst;
}
