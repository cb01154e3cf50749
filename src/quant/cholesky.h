/* Cholesky factors in a fixed order: every element is one sum, its terms added by ascending k,
 * whatever the number of threads of the team, so that calibrated files have the same bytes
 * everywhere (numerics law, rule 10). Dense, row-major, f64. Called by gptq. */
#ifndef SHOAL_QUANT_CHOLESKY_H
#define SHOAL_QUANT_CHOLESKY_H

#include "base/status.h"
#include "base/team.h"

#include <stdbool.h>
#include <stddef.h>

/* Local. The lower triangle of a [n, n] becomes L with A = L L^T. The elements above the diagonal
 * are neither read nor changed. When a pivot is not positive and finite, *definite is false and `a`
 * is undefined. Errors: STATUS_MEMORY. */
struct status cholesky_factor(struct team *team, double *a, size_t n, bool *definite);

/* Local. Writes the inverse of the lower triangle l [n, n] into the lower triangle of inverse [n,
 * n]; does not touch the elements above the diagonal. Errors: STATUS_MEMORY. */
struct status cholesky_invert_lower(struct team *team, const double *l, size_t n, double *inverse);

/* Local. a [n, n] holds the upper triangle of a symmetric A, and becomes U, upper triangular, with
 * inverse(A) = U^T U; the elements below the diagonal become zero. Factors A in reversed order, so
 * that the inverse of A itself is never formed. *definite as in cholesky_factor. Errors:
 * STATUS_MEMORY. */
struct status cholesky_inverse_factor(struct team *team, double *a, size_t n, bool *definite);

#endif
