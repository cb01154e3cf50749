/* Heartbeats between hosts: one UDP socket a rank; every rank that does not share the lead's board
 * talks with the lead, and the lead with each of them. Packets of other jobs are told apart by a
 * random key. Never blocks. Private to watchdog. */
#ifndef SHOAL_PARALLEL_WATCH_WATCHDOG_LINK_H
#define SHOAL_PARALLEL_WATCH_WATCHDOG_LINK_H

#include "parallel/watch/watchdog_board.h"

#include <netinet/in.h>

enum { LINK_ADDRESSES = 8 };

enum link_kind { LINK_BEAT, LINK_LOSS, LINK_LEFT };

struct link_packet {
    uint64_t key;
    uint32_t kind; /* enum link_kind */
    uint32_t rank; /* who sends */
    struct flight_event last;
    struct watchdog_loss loss; /* LINK_LOSS */
};

/* Where the lead can be reached; zeroed when nowhere. Broadcast to all. */
struct link_home {
    uint64_t key;
    uint32_t n_addresses;
    struct sockaddr_in addresses[LINK_ADDRESSES];
};

/* Local. A socket on any port, or -1; the lead also learns its home. */
int link_open(void);
void link_home_of(int fd, struct link_home *out);

/* Local. Sends to one address, or to all of the home. What cannot be sent is not sent. */
void link_send(int fd, const struct sockaddr_in *to, const struct link_packet *p);
void link_send_home(int fd, const struct link_home *home, const struct link_packet *p);

/* Local. The next packet of this job; false when there is none. */
bool link_receive(int fd, uint64_t key, struct link_packet *out, struct sockaddr_in *from);

#endif
