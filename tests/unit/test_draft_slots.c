/* The sequences whose KV rows a draft model keeps: which ones give their blocks away, and when. The
 * model itself computes nothing here. */
#include "base/mem.h"
#include "draft/draft_model_private.h"

#include <CUnit/CUnit.h>

enum { N_TOKENS = 2 * PLAN_BLOCK_TOKENS, N_BLOCKS = 8 };

static int32_t tokens[2 * N_TOKENS];

static void slots_init(struct draft_model *d, int32_t n_groups)
{
    *d = (struct draft_model){.memory.n_blocks = N_BLOCKS,
                              .context = 2 * N_TOKENS,
                              .vocab = 100,
                              .host.n_groups = n_groups};
    const struct status st = draft_slots_create(d);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
}

/* Asks for drafts of one sequence in a call of its own, and pretends that its rows are computed.
 * Returns how many rows the sequence lacked; -1: it gets no drafts. */
static int ask_for(struct draft_model *d, int32_t id, size_t n_tokens)
{
    struct draft_ask ask = {.id = id, .tokens = tokens, .n_tokens = n_tokens, .n_most = 1};
    struct draft_slot *slot;
    d->n_calls++;
    const struct status st = draft_slots_open(d, &ask, &slot);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    if (slot == NULL) return -1;
    const int n_lacking = (int)(n_tokens - slot->n_tokens);
    for (; slot->n_tokens < n_tokens; slot->n_tokens++)
        slot->tokens[slot->n_tokens] = tokens[slot->n_tokens];
    return n_lacking;
}

/* Five sequences of two blocks in five groups, and room for four: the fifth gets nothing. */
static void groups_leave_each_other_alone(void)
{
    struct draft_model d;
    slots_init(&d, 5);
    for (int round = 0; round < 4; round++)
        for (int32_t id = 0; id < 5; id++)
            CU_ASSERT_EQUAL(ask_for(&d, id, N_TOKENS), id == 4 ? -1 : round > 0 ? 1 : N_TOKENS);
    draft_slots_destroy(&d);
}

static void ended_sequences_give_their_blocks(void)
{
    struct draft_model d;
    slots_init(&d, 1);
    for (int32_t id = 0; id < 20; id++) CU_ASSERT_EQUAL(ask_for(&d, id, N_TOKENS), N_TOKENS);
    CU_ASSERT_EQUAL(ask_for(&d, 19, N_TOKENS), 1);
    CU_ASSERT_EQUAL(ask_for(&d, 0, N_TOKENS), N_TOKENS);
    draft_slots_destroy(&d);
}

/* A sequence that needs more blocks than are free gives up those that it has. */
static void a_sequence_without_room_holds_no_blocks(void)
{
    struct draft_model d;
    slots_init(&d, 4);
    for (int32_t id = 0; id < 4; id++) CU_ASSERT_EQUAL(ask_for(&d, id, N_TOKENS), N_TOKENS);
    CU_ASSERT_EQUAL(ask_for(&d, 0, N_TOKENS + 1), -1);
    CU_ASSERT_EQUAL(d.n_free, 2);
    CU_ASSERT_EQUAL(ask_for(&d, 1, N_TOKENS + 1), 1);
    draft_slots_empty(&d);
    CU_ASSERT_EQUAL(d.n_free, N_BLOCKS);
    draft_slots_destroy(&d);
}

/* A token that the draft model does not know takes no blocks; neither does a text that is too long
 * for it. */
static void unknown_texts_take_no_blocks(void)
{
    struct draft_model d;
    slots_init(&d, 1);
    tokens[3] = 100;
    CU_ASSERT_EQUAL(ask_for(&d, 0, N_TOKENS), -1);
    tokens[3] = 0;
    CU_ASSERT_EQUAL(ask_for(&d, 1, 2 * N_TOKENS + 1), -1);
    CU_ASSERT_EQUAL(d.n_free, N_BLOCKS);
    CU_ASSERT_EQUAL(ask_for(&d, 0, N_TOKENS), N_TOKENS);
    draft_slots_destroy(&d);
}

/* The lists of a slot never hold more than a context. */
static void lists_end_with_the_context(void)
{
    struct draft_model d;
    slots_init(&d, 1);
    CU_ASSERT_EQUAL(ask_for(&d, 0, N_TOKENS + PLAN_BLOCK_TOKENS), N_TOKENS + PLAN_BLOCK_TOKENS);
    CU_ASSERT_EQUAL(d.slots[0].blocks_capacity, 4);
    draft_slots_empty(&d);
    CU_ASSERT_PTR_NULL(d.slots[0].tokens);
    draft_slots_destroy(&d);
}

void suite_draft_slots(CU_pSuite suite);
void suite_draft_slots(CU_pSuite suite)
{
    CU_add_test(suite, "groups leave each other alone", groups_leave_each_other_alone);
    CU_add_test(suite, "ended sequences give their blocks", ended_sequences_give_their_blocks);
    CU_add_test(suite, "a sequence without room holds no blocks",
                a_sequence_without_room_holds_no_blocks);
    CU_add_test(suite, "unknown texts take no blocks", unknown_texts_take_no_blocks);
    CU_add_test(suite, "lists end with the context", lists_end_with_the_context);
}
