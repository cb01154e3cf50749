/* Handles signals and time limits. */
#include "job/drain.h"

#include "base/clock.h"

#include <ctype.h>
#include <stdlib.h>

/* Whether a signal is ignored. Under nohup SIGHUP is ignored and must stay so: if it were blocked,
 * Linux would queue it nevertheless. */
static bool is_ignored(int number)
{
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

static void signal_set(sigset_t *set, bool is_launched)
{
    sigemptyset(set);
    sigaddset(set, SIGUSR1);
    sigaddset(set, SIGTERM);
    if (!is_launched && !is_ignored(SIGHUP)) sigaddset(set, SIGHUP);
}

void drain_hold_signals(bool is_launched)
{
    sigset_t set;
    signal_set(&set, is_launched);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    /* a script that ignores them (trap '' USR1) passes that on to its children, and POSIX allows a
     * system to discard ignored signals even while they are blocked */
    signal(SIGUSR1, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}

void drain_let_signals(void)
{
    sigset_t set;
    signal_set(&set, false);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

void drain_init(struct drain *d, bool is_launched)
{
    *d = (struct drain){.n_signals = 0};
    signal_set(&d->signals, is_launched);
    drain_hold_signals(is_launched);
}

void drain_limit(struct drain *d, uint64_t start_ns, uint64_t seconds)
{
    const uint64_t deadline_ns = start_ns + seconds * 1000000000u;
    if (d->deadline_ns == 0 || deadline_ns < d->deadline_ns) d->deadline_ns = deadline_ns;
}

bool drain_parse_time(const char *text, uint64_t *seconds)
{
    const uint64_t most = 1000000000;
    uint64_t days = 0, sum = 0;
    int n_parts = 0;
    bool has_days = false;
    for (const char *at = text;;) {
        char *end;
        if (!isdigit((unsigned char)*at)) return false;
        const unsigned long long part = strtoull(at, &end, 10);
        if (part > most || ++n_parts > 3) return false;
        const uint64_t limit = n_parts > 1 ? 60 : has_days ? 24 : most + 1;
        if (part >= limit) return false;
        if (*end == '-' && !has_days && n_parts == 1) {
            days = part;
            has_days = true;
            n_parts = 0;
        } else {
            sum = 60 * sum + part;
            if (*end == '\0') break;
            if (*end != ':') return false;
        }
        at = end + 1;
    }
    if (has_days && n_parts == 1) sum *= 3600; /* Slurm's D-H and D-H:M */
    if (has_days && n_parts == 2) sum *= 60;
    *seconds = days * 86400 + sum;
    return *seconds <= most;
}

uint64_t drain_longest(uint64_t longest_ns, uint64_t step_ns)
{
    const uint64_t faded_ns = step_ns / 128;
    const uint64_t remembered_ns = longest_ns > faded_ns ? longest_ns - faded_ns : 0;
    return step_ns > remembered_ns ? step_ns : remembered_ns;
}

enum drain_ask drain_poll(struct drain *d, double end_s)
{
    const struct timespec at_once = {.tv_sec = 0};
    const uint64_t now_ns = clock_ns();
    int signal;
    while ((signal = sigtimedwait(&d->signals, NULL, &at_once)) > 0) {
        if (d->n_signals++ == 0) d->signal = signal;
    }
    if (d->last_ns > 0) {
        d->step_ns = drain_longest(d->step_ns, now_ns - d->last_ns);
    }
    d->last_ns = now_ns;
    if (d->n_signals > 1) return DRAIN_NOW;
    if (d->n_signals > 0) return DRAIN_ASKED;
    const uint64_t margin_ns = 2000000000u + 4 * d->step_ns + (uint64_t)(end_s * 1e9);
    return d->deadline_ns > 0 && now_ns + margin_ns >= d->deadline_ns ? DRAIN_ASKED : DRAIN_NOT;
}

const char *drain_reason(const struct drain *d)
{
    if (d->n_signals == 0) return "the time limit";
    if (d->signal == SIGHUP) return "SIGHUP";
    return d->signal == SIGUSR1 ? "SIGUSR1" : "SIGTERM";
}
