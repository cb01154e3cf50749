/* Heartbeats between hosts. Every rank that does not share the lead's board exchanges UDP packets
 * with the lead. These ranks and the lead have one socket each. A random key distinguishes this
 * job's packets from other jobs' packets. Never blocks. Private to watchdog. */
#ifndef SHOAL_PARALLEL_WATCH_WATCHDOG_LINK_H
#define SHOAL_PARALLEL_WATCH_WATCHDOG_LINK_H

#include "parallel/watch/watchdog_board.h"

#include <netinet/in.h>

enum { LINK_ADDRESSES = 8 };

enum link_kind { LINK_BEAT, LINK_LOSS, LINK_LEFT };

struct link_packet {
    uint64_t key;
    uint32_t kind; /* enum link_kind */
    uint32_t rank; /* the sender */
    struct flight_event last;
    struct watchdog_loss loss; /* LINK_LOSS */
};

/* The lead's addresses, broadcast to all ranks. n_addresses 0: it has none. */
struct link_home {
    uint64_t key;
    uint32_t n_addresses;
    struct sockaddr_in addresses[LINK_ADDRESSES];
};

/* Local. link_open opens a socket on any port; -1 when it cannot. link_home_of makes the job's key
 * and finds the addresses of the lead, which calls it and broadcasts the result. */
int link_open(void);
void link_home_of(int fd, struct link_home *out);

/* Local. Sends to one address, or to all addresses of the lead. Drops a packet that would block. */
void link_send(int fd, const struct sockaddr_in *to, const struct link_packet *p);
void link_send_home(int fd, const struct link_home *home, const struct link_packet *p);

/* Local. Receives the next packet of this job; false when there is none. */
bool link_receive(int fd, uint64_t key, struct link_packet *out, struct sockaddr_in *from);

#endif
