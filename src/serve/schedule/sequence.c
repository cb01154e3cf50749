/* Memory and lists of sequences. */
#include "serve/schedule/sequence.h"

#include "base/mem.h"

struct status sequence_create(struct request *r, struct sequence **out)
{
    TRY(mem_alloc(out, 1, sizeof **out, "sequence"));
    (*out)->r = r;
    return status_ok();
}

void sequence_destroy(struct sequence **sequence)
{
    struct sequence *q = *sequence;
    if (q == NULL) return;
    request_destroy(&q->r);
    mem_free(&q->blocks);
    mem_free(&q->nodes);
    mem_free(&q->block_keys);
    adjusts_fini(&q->adjusts);
    drafting_fini(&q->drafting);
    mem_free(&q->drafts);
    mem_free(sequence);
}

void sequence_list_put(struct sequence_list *l, struct sequence *q, struct sequence *next)
{
    q->next = next;
    q->prev = next != NULL ? next->prev : l->tail;
    *(q->prev != NULL ? &q->prev->next : &l->head) = q;
    *(next != NULL ? &next->prev : &l->tail) = q;
    l->n++;
}

void sequence_list_take(struct sequence_list *l, struct sequence *q)
{
    *(q->prev != NULL ? &q->prev->next : &l->head) = q->next;
    *(q->next != NULL ? &q->next->prev : &l->tail) = q->prev;
    q->prev = q->next = NULL;
    l->n--;
}

void sequence_list_put_from_head(struct sequence_list *l, struct sequence *q)
{
    struct sequence *next = l->head;
    while (next != NULL && sequence_is_before(next, q)) next = next->next;
    sequence_list_put(l, q, next);
}

void sequence_list_put_from_tail(struct sequence_list *l, struct sequence *q)
{
    struct sequence *prev = l->tail;
    while (prev != NULL && sequence_is_before(q, prev)) prev = prev->prev;
    sequence_list_put(l, q, prev != NULL ? prev->next : l->head);
}

void sequence_list_clear(struct sequence_list *l)
{
    while (l->head != NULL) {
        struct sequence *q = l->head;
        sequence_list_take(l, q);
        sequence_destroy(&q);
    }
}
