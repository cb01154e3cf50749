/* Takes, renews and gives back leases. */
#include "base/file_claims.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/file_lease.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/strbuf.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GRACE_MS = 300, ENDING_MS = 15000, POLL_MS = 50, WATCH_MS = 1000 };

struct claim {
    const char *what; /* borrowed */
    char *path;       /* the claimed file, symlinks followed; owned */
    char *lease;      /* path.lease; owned */
    char *own; /* lease.HOST.PID: a lease is made under this name, then linked or renamed; owned */
    int fd;    /* the lease, locked where the file system has locks; -1: none */
};

struct file_claims {
    struct lease_owner self;
    pthread_mutex_t mutex; /* guards the fields below */
    pthread_cond_t wake;
    pthread_t thread;
    bool has_thread, ends;
    struct claim *claims; /* [n], owned */
    size_t n;
    uint64_t renewed_ns; /* time of clock_ns */
    struct status lost;
};

struct status file_claims_create(const char *job, int32_t launcher, struct file_claims **out)
{
    struct file_claims *c = NULL;
    pthread_condattr_t attributes;
    *out = NULL;
    TRY(mem_alloc(&c, 1, sizeof *c, "claims"));
    c->self = lease_owner_self(job, launcher);
    c->lost = status_ok();
    pthread_mutex_init(&c->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&c->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    *out = c;
    return status_ok();
}

/* ---- taking ---- */

static void pause_ms(int ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static struct status file_claims_refuse(const struct claim *k, const struct lease_owner *owner)
{
    char who[256];
    lease_owner_describe(owner, who, sizeof who);
    return status_make(
        STATUS_USAGE,
        "%s %s: another process has it: %s (its lease is %s); wait for it to end, or "
        "name another file",
        k->what, k->path, who, k->lease);
}

/* The state of an attempt to take one lease. */
struct taking {
    uint64_t since_ns;
    bool has_spoken;
    int64_t renewed_ns; /* time of the last renewal of the other host's lease, as last seen */
};

static int waited_ms(const struct taking *t)
{
    return (int)((clock_ns() - t->since_ns) / 1000000u);
}

static struct status wait_for_end(const struct claim *k, struct taking *t,
                                  const struct lease_view *v)
{
    char who[256];
    lease_owner_describe(&v->owner, who, sizeof who);
    if (waited_ms(t) >= ENDING_MS) return file_claims_refuse(k, &v->owner);
    if (waited_ms(t) >= GRACE_MS && !t->has_spoken) {
        log_line(LOG_WARN,
                 "%s %s: another process has it (%s), but it was killed or its launcher is gone: "
                 "waiting up to %d s for it to end",
                 k->what, k->path, who, ENDING_MS / 1000);
        t->has_spoken = true;
    }
    pause_ms(POLL_MS);
    return status_ok();
}

/* Looks once at another host's lease that no lock reaches: refuses the claim if the lease was
 * renewed since the last look, otherwise waits WATCH_MS. */
static struct status file_claims_watch(const struct claim *k, struct taking *t,
                                       const struct lease_view *v)
{
    char who[256];
    lease_owner_describe(&v->owner, who, sizeof who);
    if (t->has_spoken && v->renewed_ns != t->renewed_ns) return file_claims_refuse(k, &v->owner);
    if (!t->has_spoken) {
        log_line(LOG_WARN,
                 "%s %s: %s renewed its lease %.0f s ago, and locks may not reach that host: "
                 "waiting up to %.0f s to see whether it still runs",
                 k->what, k->path, who, v->age_s, LEASE_STALE_S - v->age_s);
    }
    t->has_spoken = true;
    t->renewed_ns = v->renewed_ns;
    pause_ms(WATCH_MS);
    return status_ok();
}

/* Renames this process's lease over a void one. Without working locks several processes may do so
 * at the same time: the last rename wins, and the others find out WATCH_MS later. */
static struct status replace(struct claim *k, const struct lease_view *v, bool *is_taken)
{
    char who[256];
    lease_owner_describe(&v->owner, who, sizeof who);
    if (rename(k->own, k->lease) != 0) {
        return status_make(STATUS_IO, "lease %s: cannot be renamed: %s", k->lease, strerror(errno));
    }
    log_line(LOG_INFO, "%s %s: the lease of %s is void, it ended without giving it back", k->what,
             k->path, who);
    if (!v->is_locked || v->age_s >= LEASE_STALE_S) pause_ms(WATCH_MS);
    *is_taken = lease_is_at(k->lease, k->fd);
    return status_ok();
}

static struct status look_again(struct claim *k, struct taking *t, bool *is_taken)
{
    struct lease_view v;
    struct status st = lease_look(k->lease, k->fd, &v);
    if (!status_failed(&st)) {
        switch (v.state) {
        case LEASE_GONE:
            break;
        case LEASE_VOID:
            st = replace(k, &v, is_taken);
            break;
        case LEASE_HELD:
            if (waited_ms(t) >= GRACE_MS || t->has_spoken) st = file_claims_refuse(k, &v.owner);
            pause_ms(POLL_MS); /* the lease's owner may just have been killed */
            break;
        case LEASE_ENDING:
            st = wait_for_end(k, t, &v);
            break;
        case LEASE_UNKNOWN:
            st = file_claims_watch(k, t, &v);
            break;
        }
    }
    lease_view_close(&v);
    return st;
}

/* Links the lease into its place, which is atomic even on NFS. There link() may fail with EEXIST
 * although it made the link, when the server's answer was lost; a link count of 2 shows that. */
static bool link_lease(const struct claim *k, int *error)
{
    struct stat info;
    *error = 0;
    if (link(k->own, k->lease) == 0) return true;
    *error = errno;
    return *error == EEXIST && fstat(k->fd, &info) == 0 && info.st_nlink == 2;
}

static void close_lease(struct claim *k)
{
    if (k->fd >= 0) close(k->fd);
    k->fd = -1;
}

static struct status file_claims_take(struct file_claims *c, struct claim *k)
{
    struct taking t = {.since_ns = clock_ns()};
    struct status st = status_ok();
    bool is_taken = false;
    int error = lease_make(k->own, &c->self, &k->fd);
    while (error == 0 && !is_taken && !status_failed(&st)) {
        is_taken = link_lease(k, &error);
        if (is_taken || error != EEXIST) break;
        error = 0;
        st = look_again(k, &t, &is_taken);
        if (!is_taken && !status_failed(&st) && access(k->own, F_OK) != 0) {
            close_lease(
                k); /* the lease was renamed into place and then replaced by another process */
            error = lease_make(k->own, &c->self, &k->fd);
        }
    }
    unlink(k->own);
    if (!is_taken) close_lease(k);
    if (!is_taken && !status_failed(&st)) {
        log_line(
            LOG_WARN,
            "%s %s: no lease can be made beside it (%s): see to it that no other job writes it",
            k->what, k->path, strerror(error));
    }
    return st;
}

/* ---- renewing ---- */

/* Notes the loss of a lease, unless it is this process's after all: the first look may have failed
 * for a moment. */
static void file_claims_lose(struct file_claims *c, const struct claim *k)
{
    struct lease_view v;
    char who[256] = "another process";
    if (status_failed(&c->lost)) return;
    const struct status st = lease_look(k->lease, k->fd, &v);
    if (!status_failed(&st) && v.fd >= 0) lease_owner_describe(&v.owner, who, sizeof who);
    lease_view_close(&v);
    if (lease_is_at(k->lease, k->fd)) return;
    c->lost =
        status_make(STATUS_IO,
                    "%s %s: %s took it over, because this process did not renew its lease for "
                    "%d s; it writes nothing more",
                    k->what, k->path, who, LEASE_STALE_S);
}

static void renew(struct file_claims *c, struct claim *k)
{
    int error;
    if (k->fd < 0) return;
    (void)futimens(k->fd, NULL);
    if (lease_is_at(k->lease, k->fd)) return;
    if (access(k->lease, F_OK) != 0) {
        int fd;
        if (errno != ENOENT) return; /* out of reach for now: nobody is known to have it */
        /* the lease was removed by hand */
        if (lease_make(k->own, &c->self, &fd) != 0) return;
        close_lease(k);
        k->fd = fd;
        const bool is_linked = link_lease(k, &error);
        unlink(k->own);
        if (is_linked) return;
    }
    file_claims_lose(c, k);
}

/* Renews all leases. The caller holds the mutex. */
static void renew_all(struct file_claims *c)
{
    for (size_t i = 0; i < c->n; i++) renew(c, &c->claims[i]);
    c->renewed_ns = clock_ns();
}

void file_claims_renew(struct file_claims *c)
{
    pthread_mutex_lock(&c->mutex);
    renew_all(c);
    pthread_mutex_unlock(&c->mutex);
}

static void *file_claims_run(void *user)
{
    struct file_claims *c = user;
    pthread_mutex_lock(&c->mutex);
    while (!c->ends) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += LEASE_RENEW_S;
        if (pthread_cond_timedwait(&c->wake, &c->mutex, &until) == ETIMEDOUT) renew_all(c);
    }
    pthread_mutex_unlock(&c->mutex);
    return NULL;
}

/* ---- the interface ---- */

static void free_names(struct claim *k)
{
    mem_free(&k->path);
    mem_free(&k->lease);
    mem_free(&k->own);
}

static struct status file_claims_begin(struct file_claims *c, struct claim *k, const char *path)
{
    struct stat info;
    struct strbuf lease, own;
    TRY(file_target(path, &k->path));
    if (stat(k->path, &info) == 0 && !S_ISREG(info.st_mode)) return status_ok();
    strbuf_init(&lease);
    strbuf_init(&own);
    strbuf_printf(&lease, "%s.lease", k->path);
    strbuf_printf(&own, "%s.lease.%s.%d", k->path, c->self.host, c->self.pid);
    k->lease = lease.data;
    k->own = own.data;
    TRY(strbuf_status(&lease));
    TRY(strbuf_status(&own));
    return file_claims_take(c, k);
}

/* Removes a claim's lease, if it has one, and frees the claim's names. */
static void file_claims_drop(struct claim *k)
{
    if (k->fd >= 0 && lease_is_at(k->lease, k->fd)) unlink(k->lease);
    close_lease(k);
    free_names(k);
}

/* Adds the claim to those that the thread renews, and starts the thread if none runs. Afterwards c
 * owns the claim, unless this fails. */
static struct status file_claims_keep(struct file_claims *c, const struct claim *k)
{
    pthread_mutex_lock(&c->mutex);
    const struct status st = mem_grow(&c->claims, c->n, c->n + 1, sizeof *c->claims, "claims");
    if (!status_failed(&st)) {
        c->claims[c->n++] = *k;
        c->renewed_ns = clock_ns();
    }
    if (!status_failed(&st) && !c->has_thread)
        c->has_thread = pthread_create(&c->thread, NULL, file_claims_run, c) == 0;
    pthread_mutex_unlock(&c->mutex);
    return st;
}

struct status file_claims_add(struct file_claims *c, const char *what, const char *path)
{
    struct claim k = {.what = what, .fd = -1};
    struct status st = file_claims_begin(c, &k, path);
    if (!status_failed(&st) && k.fd >= 0) st = file_claims_keep(c, &k);
    if (status_failed(&st) || k.fd < 0) file_claims_drop(&k);
    return st;
}

struct status file_claims_check(struct file_claims *c)
{
    if (c == NULL) return status_ok();
    pthread_mutex_lock(&c->mutex);
    /* If leases were not renewed in time, this process was suspended, and another job may have
     * them. */
    if (c->n > 0 && clock_ns() - c->renewed_ns > (uint64_t)LEASE_STALE_S / 2 * 1000000000u) {
        renew_all(c);
    }
    const struct status st = c->lost;
    pthread_mutex_unlock(&c->mutex);
    return st;
}

void file_claims_destroy(struct file_claims **claims)
{
    struct file_claims *c = *claims;
    if (c == NULL) return;
    pthread_mutex_lock(&c->mutex);
    c->ends = true;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->mutex);
    if (c->has_thread) pthread_join(c->thread, NULL);
    for (size_t i = 0; i < c->n; i++) file_claims_drop(&c->claims[i]);
    mem_free(&c->claims);
    pthread_cond_destroy(&c->wake);
    pthread_mutex_destroy(&c->mutex);
    mem_free(claims);
}
