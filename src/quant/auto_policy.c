/* The greedy choice of formats. */
#include "quant/auto_policy.h"

/* Returns the error that a change to format `to` removes per added bit; not positive when it
 * removes none. */
static double worth(const struct auto_item *item, uint32_t to)
{
    const uint32_t now = item->choice;
    if (item->n_bits[to] <= item->n_bits[now]) return -1;
    return (item->error[now] - item->error[to]) * (double)item->n_weights /
           (double)(item->n_bits[to] - item->n_bits[now]);
}

/* Finds the best change that fits into `left` bits. False: no change that fits removes any error.
 */
static bool find_change(const struct auto_item *items, size_t n_items, uint32_t n_formats,
                        uint64_t left, size_t *item, uint32_t *to)
{
    double best = 0;
    for (size_t i = 0; i < n_items; i++) {
        for (uint32_t f = items[i].choice + 1; f < n_formats; f++) {
            const double w = worth(&items[i], f);
            if (!(w > best) || items[i].n_bits[f] - items[i].n_bits[items[i].choice] > left) {
                continue;
            }
            best = w;
            *item = i;
            *to = f;
        }
    }
    return best > 0;
}

struct status auto_policy_choose(struct auto_item *items, size_t n_items, uint32_t n_formats,
                                 uint64_t budget_bits)
{
    uint64_t used = 0;
    size_t item = 0;
    uint32_t to = 0;
    for (size_t i = 0; i < n_items; i++) {
        items[i].choice = 0;
        used += items[i].n_bits[0];
    }
    if (used > budget_bits) {
        return status_make(STATUS_USAGE,
                           "--auto-policy: the smallest formats need %.2f MB, the budget is %.2f",
                           (double)used / 8e6, (double)budget_bits / 8e6);
    }
    while (find_change(items, n_items, n_formats, budget_bits - used, &item, &to)) {
        used += items[item].n_bits[to] - items[item].n_bits[items[item].choice];
        items[item].choice = to;
    }
    return status_ok();
}
