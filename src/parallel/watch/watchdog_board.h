/* The memory that a host's ranks share to watch each other: a slot per rank with its beats and its
 * flight recorder, and one notice of a loss. Its name is gone once all have it: nothing stays
 * behind after a crash. Private to watchdog. */
#ifndef SHOAL_PARALLEL_WATCH_WATCHDOG_BOARD_H
#define SHOAL_PARALLEL_WATCH_WATCHDOG_BOARD_H

#include "parallel/comm/comm.h"
#include "parallel/record/flight.h"

enum { WATCHDOG_HOST_MAX = 64 };

/* What is known of a lost rank. Also travels between hosts: fixed sizes, no pointers. */
struct watchdog_loss {
    uint32_t rank, n_more; /* of the world; how many others of its host are lost with it */
    uint32_t reporter;
    uint32_t silent_ms;
    char host[WATCHDOG_HOST_MAX];
    struct flight_event last;
};

enum board_state { BOARD_EMPTY, BOARD_ALIVE, BOARD_LEFT };

struct board_slot {
    _Alignas(64) _Atomic uint64_t beats;
    _Atomic uint32_t state; /* enum board_state */
    uint32_t rank;          /* of the world; this and pid, started are written before state leaves
                               BOARD_EMPTY */
    int32_t pid;
    uint64_t started;       /* when the process did, as /proc tells it: pids come again */
    _Atomic int32_t thread; /* the one that beats (until it began, the main one) */
    _Atomic bool told;      /* somebody said that it waits for a CPU */
    struct flight flight;
};

struct board {
    _Atomic uint32_t claimed, posted;
    struct watchdog_loss loss; /* valid once posted */
    struct board_slot slots[]; /* [size of COMM_HOST] */
};

/* **Collective (host)**. The host's board, or with *shared = false one of this rank's own whose
 * slot 0 is used. Returns its bytes for board_close; 0: there was no memory at all. */
size_t board_open(struct comm *c, struct board **out, bool *shared);
void board_close(struct board **b, size_t n_bytes);

/* Local. Write into this rank's slot which process it is, once, and that this thread is the one
 * that beats. */
void board_sign_process(struct board_slot *mine);
void board_sign_thread(struct board_slot *mine);

/* Local. Whether the slot's thread could run but was given no CPU: it is slow, not lost. False
 * where it is gone, stopped or asleep, or where /proc does not show it. */
bool board_waits_for_cpu(const struct board_slot *s);

/* Local. The first of a host to post a loss wins; true for the winner. */
bool board_post(struct board *b, const struct watchdog_loss *loss);

/* Local. True when somebody posted. */
bool board_read(const struct board *b, struct watchdog_loss *out);

#endif
