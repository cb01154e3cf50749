/* Tests the flight recorder: order, wraparound, readers beside a writer, and the events that comm
 * records. */
#include "base/clock.h"
#include "parallel/comm/collective_check.h"
#include "parallel/comm/comm.h"
#include "parallel/record/flight.h"

#include <CUnit/CUnit.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_MANY = 3 * FLIGHT_EVENTS + 7, N_RACE = 2000000, N_TIMED = 4000000 };

static void test_order_and_wraparound(void)
{
    struct flight *f = aligned_alloc(64, sizeof *f);
    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    flight_init(f);
    struct flight_event e;
    CU_ASSERT_EQUAL(flight_last(f).number, 0);
    CU_ASSERT_FALSE(flight_read(f, 0, &e));
    CU_ASSERT_FALSE(flight_read(f, 1, &e));
    for (uint64_t i = 1; i <= N_MANY; i++) {
        flight_mark_step(f, i / 10);
        if (i % 10 != 0) flight_mark_layer(f, (int32_t)(i % 10));
        flight_begin(f, FLIGHT_ALL_REDUCE, (uint32_t)(i % 6), i * 3, 1000 + i);
        CU_ASSERT_EQUAL(flight_last(f).end_ns, 0);
        if (i < N_MANY) flight_end(f, 2000 + i);
    }
    for (uint64_t i = 0; i <= N_MANY + 1; i++) {
        const bool held = i > N_MANY - FLIGHT_EVENTS && i <= N_MANY;
        CU_ASSERT_EQUAL(flight_read(f, i, &e), held);
        if (!held) continue;
        CU_ASSERT_EQUAL(e.number, i);
        CU_ASSERT_EQUAL(e.op, FLIGHT_ALL_REDUCE);
        CU_ASSERT_EQUAL(e.axis, i % 6);
        CU_ASSERT_EQUAL(e.count, i * 3);
        CU_ASSERT_EQUAL(e.step, i / 10);
        CU_ASSERT_EQUAL(e.layer, i % 10 != 0 ? (int32_t)(i % 10) : FLIGHT_NO_LAYER);
        CU_ASSERT_EQUAL(e.begin_ns, 1000 + i);
        CU_ASSERT_EQUAL(e.end_ns, i < N_MANY ? 2000 + i : 0);
    }
    CU_ASSERT_EQUAL(flight_last(f).number, N_MANY);
    free(f);
}

static void *write_many(void *ring)
{
    struct flight *f = ring;
    for (uint64_t i = 1; i <= N_RACE; i++) {
        flight_mark_step(f, i);
        flight_begin(f, FLIGHT_BARRIER, 1, i * 5, i * 7);
        flight_end(f, i * 11);
    }
    return NULL;
}

/* A reader never sees a mix of two events. */
static void test_reader_beside_writer(void)
{
    struct flight *f = aligned_alloc(64, sizeof *f);
    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    flight_init(f);
    pthread_t writer;
    CU_ASSERT_EQUAL_FATAL(pthread_create(&writer, NULL, write_many, f), 0);
    uint64_t n_read = 0, n_torn = 0;
    for (uint64_t last = 0; last < N_RACE;) {
        const struct flight_event e = flight_last(f);
        if (e.number == 0) continue;
        last = e.number;
        n_read++;
        n_torn += e.count != last * 5 || e.begin_ns != last * 7 || e.step != last ||
                  (e.end_ns != 0 && e.end_ns != last * 11);
        /* the oldest slots may be overwritten at this moment */
        struct flight_event old;
        if (last <= FLIGHT_EVENTS || !flight_read(f, last - FLIGHT_EVENTS + 1, &old)) continue;
        n_torn += old.count != old.number * 5 || old.begin_ns != old.number * 7;
    }
    pthread_join(writer, NULL);
    CU_ASSERT(n_read > 0);
    CU_ASSERT_EQUAL(n_torn, 0);
    free(f);
}

static void test_printing(void)
{
    char text[256];
    struct flight_event e = {
        .number = 9, .op = FLIGHT_ALL_TO_ALL, .count = 12, .step = 17, .layer = 3, .begin_ns = 1};
    flight_print(&e, "ep", text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text,
                           "all-to-all over ep, count 12, step 17, layer 3 (event 9, inside)");
    e.step = FLIGHT_NO_STEP;
    e.layer = FLIGHT_NO_LAYER;
    e.end_ns = 2;
    e.op = (enum flight_op)250; /* as damaged memory might contain */
    flight_print(&e, comm_axis_name(99), text, sizeof text);
    CU_ASSERT_STRING_EQUAL(
        text, "unknown over an unknown axis, count 12, before the first step (event 9, done)");
    e.number = 0;
    flight_print(&e, "ep", text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "no communication yet");
}

static void test_time_of_an_event(void)
{
    struct flight *f = aligned_alloc(64, sizeof *f);
    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    flight_init(f);
    const uint64_t since = clock_ns();
    for (uint64_t i = 0; i < N_TIMED; i++) {
        flight_begin(f, FLIGHT_ALL_REDUCE, 3, i, i);
        flight_end(f, i);
    }
    printf(" %.1f ns per event ", (double)(clock_ns() - since) / N_TIMED);
    CU_ASSERT_EQUAL(flight_last(f).number, N_TIMED);
    free(f);
}

/* comm records its operations in the ring with step and layer, also after the ring has moved to
 * other memory. */
static void test_comm_records(void)
{
    struct comm *c = NULL;
    CU_ASSERT_EQUAL_FATAL(comm_start(NULL, NULL, &c).code, STATUS_OK);
    comm_mark_step(c, 41);
    comm_mark_layer(c, 2);
    comm_barrier(c, COMM_WORLD);
    struct flight_event e = flight_last(comm_flight(c));
    CU_ASSERT_EQUAL(e.op, FLIGHT_BARRIER);
    CU_ASSERT_EQUAL(e.axis, COMM_WORLD);
    CU_ASSERT_EQUAL(e.step, 41);
    CU_ASSERT_EQUAL(e.layer, 2);
    CU_ASSERT(e.end_ns >= e.begin_ns && e.begin_ns > 0);
    struct flight *moved = aligned_alloc(64, sizeof *moved);
    CU_ASSERT_PTR_NOT_NULL_FATAL(moved);
    comm_record_in(c, moved);
    CU_ASSERT_EQUAL(flight_last(moved).number, e.number);
    uint64_t mine = 5, all[64] = {0};
    CU_ASSERT_FATAL(comm_size(c, COMM_WORLD) <= 64);
    comm_gather_bytes(c, COMM_WORLD, &mine, sizeof mine, all);
    const struct flight_event next = flight_last(moved);
    CU_ASSERT_EQUAL(next.number, e.number + 1);
    CU_ASSERT_EQUAL(next.op, FLIGHT_ALL_GATHER);
    CU_ASSERT_EQUAL(next.count, sizeof mine);
    comm_stop(&c);
    free(moved);
}

/* collective_check passes if all ranks make the same call. It names a rank that makes another call,
 * and refuses one with another count. */
static void test_differing_collectives(void)
{
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    struct collective_call call;
    collective_call_init(&call, "broadcast", "/a/b/engine.c", 31);
    call.count = 12;
    call.elem_bytes = 1;
    call.root = 0;
    struct status st = collective_check(MPI_COMM_WORLD, &call);
    CU_ASSERT_EQUAL(st.code, STATUS_OK);
    if (rank == size - 1) {
        collective_call_init(&call, "all-reduce", "moe.c", 7);
        call.count = 3;
        call.elem_bytes = 8;
    }
    st = collective_check(MPI_COMM_WORLD, &call);
    if (size == 1) return;
    char expected[256];
    snprintf(expected, sizeof expected,
             "collectives differ: rank 0 calls broadcast from rank 0 of 12 x 1 bytes at "
             "engine.c:31, rank %d calls all-reduce of 3 x 8 bytes at moe.c:7",
             size - 1);
    CU_ASSERT_EQUAL(st.code, STATUS_BUG);
    CU_ASSERT_STRING_EQUAL(st.text, expected);
    collective_call_init(&call, "barrier", "engine.c", 31);
    call.count = rank == 0 ? 1 : 2;
    st = collective_check(MPI_COMM_WORLD, &call);
    CU_ASSERT_EQUAL(st.code, STATUS_BUG);
}

void suite_flight(CU_pSuite suite);

void suite_flight(CU_pSuite suite)
{
    CU_add_test(suite, "order and wraparound", test_order_and_wraparound);
    CU_add_test(suite, "a reader beside the writer", test_reader_beside_writer);
    CU_add_test(suite, "printing", test_printing);
    CU_add_test(suite, "time of an event", test_time_of_an_event);
    CU_add_test(suite, "comm records", test_comm_records);
    CU_add_test(suite, "differing collectives", test_differing_collectives);
}
