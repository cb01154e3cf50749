/* A measured curve: y at several x, interpolated between them. Computes only: no files, no
 * clock. A node's file has such curves (node_file.h); bench measures them, step_cost.c and
 * cost_model.c read them. */
#ifndef SHOAL_COST_CURVE_H
#define SHOAL_COST_CURVE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { CURVE_POINTS_MAX = 16 };

/* The bounds of every measured number: products of a few of them are finite, and not 0. */
#define CURVE_LEAST 1e-18
#define CURVE_MOST  1e18

/* x ascends; all x and y are CURVE_LEAST to CURVE_MOST. n 0: not measured. */
struct curve {
    uint32_t n;
    double x[CURVE_POINTS_MAX], y[CURVE_POINTS_MAX];
};

/* Local. Appends a point. Errors: STATUS_INPUT if x does not ascend, a number is out of its
 * bounds, or the curve is full. */
struct status curve_add(struct curve *c, double x, double y);

/* Local. Returns y at x: between two points on the straight line of their logarithms; beyond the
 * first and the last point, the y of that point. 0 if the curve has no points. */
double curve_at(const struct curve *c, double x);

/* Local. As curve_at, but beyond the last point y keeps the ratio y / x of that point: for a time
 * that grows with x, such as a message's time with its size. */
double curve_time_at(const struct curve *c, double x);

#endif
