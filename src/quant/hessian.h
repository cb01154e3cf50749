/* Second moments of a linear's input: H = the sum over tokens of x x^T; and the sum and the maximum
 * of each input's magnitudes. The calibrated methods use nothing else of the calibration set. Ranks
 * divide the rows of H, never the tokens, so that every element is one sum over all tokens in
 * their order, with any number of ranks and threads (numerics law, rule 10). Products of two f32
 * are exact in f64, so an element is rounded once per token. */
#ifndef SHOAL_QUANT_HESSIAN_H
#define SHOAL_QUANT_HESSIAN_H

#include "base/status.h"
#include "base/team.h"

#include <stddef.h>
#include <stdint.h>

struct hessian {
    uint32_t n;          /* inputs of the linear */
    uint32_t begin, end; /* rows of H held by this rank */
    uint64_t n_tokens;   /* added so far */
    double *h;           /* owned [end - begin, n]; of row i only columns from i on are defined */
    double *sum_abs;     /* owned [n]: sum of |x_k| over the tokens */
    float *max_abs;      /* owned [n]: largest |x_k| */
};

/* Local. Returns the bytes that a rank needs for rows [begin, end) of H over n inputs. */
uint64_t hessian_bytes(uint32_t n, uint32_t begin, uint32_t end);

/* Local. Returns the first row of part i of n_parts (n for i = n_parts). Parts are runs of rows
 * with about the same number of elements on and above the diagonal. */
uint32_t hessian_cut(uint32_t n, uint32_t n_parts, uint32_t i);

/* Local. hessian_init allocates zeroed sums for rows [begin, end) of H. Errors: STATUS_MEMORY.
 * hessian_fini also accepts a zeroed struct. */
struct status hessian_init(struct hessian *h, uint32_t n, uint32_t begin, uint32_t end);
void hessian_fini(struct hessian *h);

/* Local; the team's threads divide the rows of H. Adds the next n_tokens tokens of the calibration
 * set: rows x [n_tokens, n], x_stride elements apart. */
void hessian_add(struct team *team, struct hessian *h, const float *x, size_t x_stride,
                 size_t n_tokens);

/* Local. Fills the lower triangle of full [n, n] from its upper triangle. */
void hessian_mirror(double *full, uint32_t n);

enum { HESSIAN_LANES = 16 };

/* Local. Computes v^T H v of HESSIAN_LANES vectors at once (`full` is H): v [n, HESSIAN_LANES],
 * interleaved. out [HESSIAN_LANES]. Each result is the sum over i of v_i * (the sum over k of
 * H_ik v_k), both added in ascending order. */
void hessian_norms(const double *full, uint32_t n, const double *v, double *out);

/* Local; the team's threads divide the rows. *out = the output error of the rows' differences d
 * [n_rows, n]: the sum over the rows, ascending, of d^T H d, with H in full [n, n] (both
 * triangles). Errors: STATUS_MEMORY. */
struct status hessian_error(struct team *team, const double *full, uint32_t n, const float *d,
                            size_t n_rows, double *out);

#endif
