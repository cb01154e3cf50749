/* Chooses each tensor's format within a budget of bits. All tensors start with the smallest
 * format. Then, again and again, the change that removes the most error per added bit is made,
 * until no change that fits the budget removes error. Pure and deterministic. Room calibrate
 * measures the errors. */
#ifndef SHOAL_QUANT_AUTO_POLICY_H
#define SHOAL_QUANT_AUTO_POLICY_H

#include "base/status.h"
#include "tensor/quant_format.h"

#include <stddef.h>
#include <stdint.h>

enum { AUTO_FORMATS_MAX = 8 };

/* One tensor, or one class of tensors that get the same format. */
struct auto_item {
    uint64_t n_weights;
    double error[AUTO_FORMATS_MAX]; /* per format: output error relative to the output's energy */
    uint64_t n_bits[AUTO_FORMATS_MAX]; /* per format: stored bits, scales included */
    uint32_t choice;                   /* set by auto_policy_choose */
};

/* Local. Sets the choice of each item among n_formats, which are ordered from few bits to many, so
 * that all items together take at most budget_bits. The worth of a change is (error now - error
 * then) * n_weights / (bits then - bits now); a change may be to any larger format, and ties go to
 * the first item, then to the smaller format. Errors: STATUS_USAGE names both numbers when even the
 * smallest formats need more than the budget. */
struct status auto_policy_choose(struct auto_item *items, size_t n_items, uint32_t n_formats,
                                 uint64_t budget_bits);

#endif
