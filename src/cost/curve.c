/* Values between measured points: straight lines between the logarithms of x and y. */
#include "cost/curve.h"

#include <math.h>

struct status curve_add(struct curve *c, double x, double y)
{
    const bool fits = c->n < CURVE_POINTS_MAX && x >= CURVE_LEAST && x <= CURVE_MOST &&
                      y >= CURVE_LEAST && y <= CURVE_MOST && (c->n == 0 || x > c->x[c->n - 1]);
    if (!fits)
        return status_make(STATUS_INPUT,
                           "point %u (%g, %g) of a curve: expected at most %d points of numbers of "
                           "%g to %g whose first ascend",
                           c->n, x, y, (int)CURVE_POINTS_MAX, CURVE_LEAST, CURVE_MOST);
    c->x[c->n] = x;
    c->y[c->n] = y;
    c->n++;
    return status_ok();
}

double curve_at(const struct curve *c, double x)
{
    uint32_t i = 1;
    if (c->n == 0) return 0;
    if (x <= c->x[0]) return c->y[0];
    if (x >= c->x[c->n - 1]) return c->y[c->n - 1];
    while (c->x[i] < x) i++;
    const double part = log(x / c->x[i - 1]) / log(c->x[i] / c->x[i - 1]);
    return c->y[i - 1] * pow(c->y[i] / c->y[i - 1], part);
}

double curve_time_at(const struct curve *c, double x)
{
    if (c->n == 0 || x <= c->x[c->n - 1]) return curve_at(c, x);
    return c->y[c->n - 1] * x / c->x[c->n - 1];
}
