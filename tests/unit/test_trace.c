/* The ring of a timeline, times converted to rank 0's clock, and events as JSON that a viewer can
 * read. */
#include "base/json.h"
#include "base/mem.h"
#include "job/trace_file.h"

#include <CUnit/CUnit.h>
#include <string.h>

static struct trace_event span(uint64_t begin_ns)
{
    return (struct trace_event){.begin_ns = begin_ns,
                                .end_ns = begin_ns + 1500,
                                .step = 7,
                                .kind = TRACE_STEP,
                                .counts = {3, 2, 900, 0}};
}

static void ring_keeps_the_last_events(void)
{
    struct trace *t;
    struct status st = trace_create(1u << 10, &t); /* so many ranks that the ring is small */
    CU_ASSERT_FATAL(!status_failed(&st));
    const size_t room = trace_capacity(t);
    CU_ASSERT_EQUAL(room, TRACE_EVENTS_ALL >> 10);
    for (uint64_t i = 0; i < room + 5; i++) {
        const struct trace_event e = span(i);
        trace_add(t, &e);
    }
    CU_ASSERT_EQUAL(trace_count(t), room);
    CU_ASSERT_EQUAL(trace_n_lost(t), 5);
    struct trace_event *kept;
    st = mem_alloc(&kept, room, sizeof *kept, "events");
    CU_ASSERT_FATAL(!status_failed(&st));
    trace_copy(t, kept);
    size_t n_wrong = 0;
    for (size_t i = 0; i < room; i++) n_wrong += kept[i].begin_ns != i + 5;
    CU_ASSERT_EQUAL(n_wrong, 0);
    /* trace_copy_beside leaves out the oldest event, which trace_add may be overwriting */
    uint64_t n_lost = 0;
    CU_ASSERT_EQUAL(trace_copy_beside(t, kept, &n_lost), room - 1);
    CU_ASSERT_EQUAL(n_lost, 6);
    for (size_t i = 0; i + 1 < room; i++) n_wrong += kept[i].begin_ns != i + 6;
    CU_ASSERT_EQUAL(n_wrong, 0);
    mem_free(&kept);
    trace_destroy(&t);
    CU_ASSERT_PTR_NULL(t);
}

/* However many ranks a job has, all its events fit one file of bounded size. */
static void ranks_share_the_events(void)
{
    static const uint32_t n_ranks[] = {1, 2, 8, 9, 512, 513, 1000, 4096, 65536};
    for (size_t i = 0; i < sizeof n_ranks / sizeof *n_ranks; i++) {
        struct trace *t;
        const struct status st = trace_create(n_ranks[i], &t);
        CU_ASSERT_FATAL(!status_failed(&st));
        const size_t room = trace_capacity(t);
        CU_ASSERT(room * n_ranks[i] <= TRACE_EVENTS_ALL);
        CU_ASSERT(room == TRACE_EVENTS_MAX || (room + 1) * n_ranks[i] > TRACE_EVENTS_ALL);
        trace_destroy(&t);
    }
}

static void clock_drifts_evenly(void)
{
    /* a clock that is 1000 ns ahead when it shows 10,000, and 3000 ns ahead at 30,000 */
    const struct trace_clock drifting[2] = {{.at_ns = 10000, .offset_ns = 1000},
                                            {.at_ns = 30000, .offset_ns = 3000}};
    CU_ASSERT_EQUAL(trace_clock_map(drifting, 10000), 9000);
    CU_ASSERT_EQUAL(trace_clock_map(drifting, 20000), 18000);
    CU_ASSERT_EQUAL(trace_clock_map(drifting, 30000), 27000);
    CU_ASSERT_EQUAL(trace_clock_map(drifting, 40000), 36000); /* after the measurements:
                                                                 extrapolated */
    CU_ASSERT_EQUAL(trace_clock_map(drifting, 0), 0);         /* before them: extrapolated */
    const struct trace_clock behind[2] = {{.at_ns = 10, .offset_ns = -500},
                                          {.at_ns = 10, .offset_ns = -500}};
    CU_ASSERT_EQUAL(trace_clock_map(behind, 10), 510);
    CU_ASSERT_EQUAL(trace_clock_map(behind, 1000), 1500);
}

static void event_is_json(void)
{
    const struct trace_clock same[2] = {{.at_ns = 0}, {.at_ns = 1}};
    const struct trace_event e = span(5000);
    struct strbuf out;
    strbuf_init(&out);
    strbuf_puts(&out, "[{}");
    trace_event_print(&e, 3, same, 1000, &out);
    strbuf_puts(&out, "]");
    struct js_doc *doc = NULL;
    const struct status st = js_parse(out.data, out.n, "an event", &doc);
    CU_ASSERT_FATAL(!status_failed(&st));
    const struct js_node *event = js_at(js_root(doc), 1);
    CU_ASSERT_STRING_EQUAL(js_string(js_get(event, "name"), NULL), "step");
    CU_ASSERT_STRING_EQUAL(js_string(js_get(event, "ph"), NULL), "X");
    CU_ASSERT_PTR_NOT_NULL(strstr(out.data, "\"ts\":4.000"));
    CU_ASSERT_PTR_NOT_NULL(strstr(out.data, "\"dur\":1.500"));
    CU_ASSERT_PTR_NOT_NULL(strstr(out.data, "\"rows\":3"));
    CU_ASSERT_PTR_NOT_NULL(strstr(out.data, "\"cpu_ns\":900"));
    js_destroy(&doc);
    strbuf_fini(&out);
}

void suite_trace(CU_pSuite suite);
void suite_trace(CU_pSuite suite)
{
    CU_add_test(suite, "the ring keeps the last events", ring_keeps_the_last_events);
    CU_add_test(suite, "ranks share the events", ranks_share_the_events);
    CU_add_test(suite, "a clock that drifts evenly", clock_drifts_evenly);
    CU_add_test(suite, "an event is JSON", event_is_json);
}
