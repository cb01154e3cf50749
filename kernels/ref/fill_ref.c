/* Fills the table with the complete reference. */
#include "kernels/ref/ref.h"

void kern_fill_ref(struct kern_table *t)
{
    *t = (struct kern_table){.name = "ref"};
    fill_linear_ref(t);
    fill_linear_quant_ref(t);
    fill_attention_ref(t);
    /* set here, because GCC 12 would warn about them in the kernels' own files */
    t->attention_fold = k_attention_fold_ref;
    t->delta_rule = k_delta_rule_f32_ref;
    t->scan = k_scan_f32_ref;
    t->pool_add = k_pool_add_f32_ref;
    fill_row_ref(t);
    fill_delta_ref(t);
    fill_index_ref(t);
    fill_choose_ref(t);
    fill_pack_ref(t);
}
