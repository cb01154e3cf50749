/* UDP over IPv4. The lead replies to the sender's address, so the other ranks need to know only the
 * lead's addresses. */
#include "parallel/watch/watchdog_link.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

int link_open(void)
{
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    const struct sockaddr_in any = {.sin_family = AF_INET};
    if (bind(fd, (const struct sockaddr *)&any, sizeof any) == 0) return fd;
    close(fd);
    return -1;
}

static bool is_usable(const struct ifaddrs *i)
{
    return i->ifa_addr != NULL && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP) != 0;
}

/* Adds the addresses of loopback interfaces (IFF_LOOPBACK) or of all others (0). Loopback serves
 * ranks of one machine that share no board. */
static void add_addresses(const struct ifaddrs *list, unsigned loopback, in_port_t port,
                          struct link_home *out)
{
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        if (!is_usable(i) || (i->ifa_flags & IFF_LOOPBACK) != loopback) continue;
        if (out->n_addresses == LINK_ADDRESSES) return;
        struct sockaddr_in *a = &out->addresses[out->n_addresses++];
        memcpy(a, i->ifa_addr, sizeof *a);
        a->sin_port = port;
    }
}

void link_home_of(int fd, struct link_home *out)
{
    memset(out, 0, sizeof *out);
    struct sockaddr_in self;
    socklen_t n = sizeof self;
    struct ifaddrs *list = NULL;
    if (fd < 0 || getsockname(fd, (struct sockaddr *)&self, &n) != 0) return;
    if (getrandom(&out->key, sizeof out->key, 0) != (ssize_t)sizeof out->key) return;
    if (getifaddrs(&list) != 0) return;
    add_addresses(list, 0, self.sin_port, out);
    add_addresses(list, IFF_LOOPBACK, self.sin_port, out);
    freeifaddrs(list);
}

void link_send(int fd, const struct sockaddr_in *to, const struct link_packet *p)
{
    /* an unsent packet is like a lost one: the next heartbeat follows */
    const ssize_t ignored =
        sendto(fd, p, sizeof *p, MSG_NOSIGNAL, (const struct sockaddr *)to, sizeof *to);
    (void)ignored;
}

void link_send_home(int fd, const struct link_home *home, const struct link_packet *p)
{
    for (uint32_t i = 0; i < home->n_addresses; i++) link_send(fd, &home->addresses[i], p);
}

bool link_receive(int fd, uint64_t key, struct link_packet *out, struct sockaddr_in *from)
{
    /* skips packets of other jobs, at most 1000 per call */
    for (int i = 0; fd >= 0 && i < 1000; i++) {
        socklen_t n = sizeof *from;
        const ssize_t got = recvfrom(fd, out, sizeof *out, MSG_TRUNC, (struct sockaddr *)from, &n);
        if (got < 0) return false;
        if (got != (ssize_t)sizeof *out || n != sizeof *from || out->key != key) continue;
        out->loss.host[WATCHDOG_HOST_MAX - 1] = '\0';
        return true;
    }
    return false;
}
