/* The board: memory that the ranks of a host share to watch each other. It has a slot for each rank
 * with its heartbeats and flight recorder, and one notice of a loss. The name of the memory is
 * removed once all ranks have mapped it, so a crash leaves nothing behind. Private to watchdog. */
#ifndef SHOAL_PARALLEL_WATCH_WATCHDOG_BOARD_H
#define SHOAL_PARALLEL_WATCH_WATCHDOG_BOARD_H

#include "parallel/comm/comm.h"
#include "parallel/record/flight.h"

enum { WATCHDOG_HOST_MAX = 64 };

/* A lost rank. Also sent between hosts: fixed sizes, no pointers. */
struct watchdog_loss {
    uint32_t rank, n_more; /* world rank; how many other ranks of its host were silent too */
    uint32_t reporter;
    uint32_t silent_ms;
    char host[WATCHDOG_HOST_MAX];
    struct flight_event last;
};

enum board_state { BOARD_EMPTY, BOARD_ALIVE, BOARD_LEFT };

struct board_slot {
    _Alignas(64) _Atomic uint64_t beats;
    _Atomic uint32_t state; /* enum board_state */
    uint32_t rank;          /* world rank; rank, pid and started are written before state leaves
                               BOARD_EMPTY */
    int32_t pid;
    uint64_t started;       /* when the process started (/proc), because pids are reused */
    _Atomic int32_t thread; /* the thread that beats; until it starts, the main thread */
    _Atomic bool told;      /* a rank has logged that this rank waits for a CPU */
    struct flight flight;
};

struct board {
    _Atomic uint32_t claimed, posted;
    struct watchdog_loss loss; /* valid once posted */
    struct board_slot slots[]; /* [size of COMM_HOST] */
};

/* **Collective (host)**. Opens the host's board. Where memory cannot be shared, *shared is false
 * and the board is this rank's own, with slot 0. Returns the board's size in bytes, for
 * board_close; 0 when memory ran out. */
size_t board_open(struct comm *c, struct board **out, bool *shared);
void board_close(struct board **b, size_t n_bytes);

/* Local. board_sign_process writes this process's identity into its slot, once. board_sign_thread
 * records the calling thread as the one whose heartbeats count. */
void board_sign_process(struct board_slot *mine);
void board_sign_thread(struct board_slot *mine);

/* Local. True when the slot's thread is ready to run but gets no CPU, so it is slow, not lost.
 * False when it is gone, stopped or asleep, or when /proc does not show it. */
bool board_waits_for_cpu(const struct board_slot *s);

/* Local. Posts a loss. Only the first post on a host counts; returns true for that one. */
bool board_post(struct board *b, const struct watchdog_loss *loss);

/* Local. True when a loss has been posted; *out is a copy of it. */
bool board_read(const struct board *b, struct watchdog_loss *out);

#endif
