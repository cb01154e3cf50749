/* Claims on files: a second claim is refused and the error names the owner; the claim of a dead
 * process is taken over. */
#include "base/file_claims.h"

#include "base/file_lease.h"
#include "base/mem.h"

#include <CUnit/CUnit.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct place {
    char folder[64], path[96], lease[112];
};

static void place_make(struct place *p)
{
    strcpy(p->folder, "/tmp/shoal-claims-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(p->folder));
    snprintf(p->path, sizeof p->path, "%s/out", p->folder);
    snprintf(p->lease, sizeof p->lease, "%s/out.lease", p->folder);
}

static void place_remove(struct place *p)
{
    unlink(p->path);
    CU_ASSERT_NOT_EQUAL(access(p->lease, F_OK), 0);
    CU_ASSERT_EQUAL(rmdir(p->folder), 0); /* no other file was left */
}

static struct file_claims *claims_make(const char *job)
{
    struct file_claims *c = NULL;
    const struct status st = file_claims_create(job, 0, &c);
    CU_ASSERT_FATAL(!status_failed(&st));
    return c;
}

/* Makes a lease that looks as if a process on another host renewed it age_s seconds ago. */
static void foreign_lease(const struct place *p, int age_s)
{
    struct lease_owner o = lease_owner_self("Slurm job 7", 0);
    int fd;
    strcpy(o.host, "elsewhere");
    strcpy(o.kernel, "another");
    CU_ASSERT_EQUAL_FATAL(lease_make(p->lease, &o, &fd), 0);
    close(fd);
    const struct timespec when = {.tv_sec = time(NULL) - age_s};
    const struct timespec both[2] = {when, when};
    CU_ASSERT_EQUAL(utimensat(AT_FDCWD, p->lease, both, 0), 0);
}

static void the_second_is_told_of_the_first(void)
{
    struct place p;
    char link[96], pid[32];
    place_make(&p);
    snprintf(link, sizeof link, "%s/link", p.folder);
    snprintf(pid, sizeof pid, "pid %d,", (int)getpid());
    CU_ASSERT_EQUAL_FATAL(symlink("out", link), 0);
    struct file_claims *a = claims_make("PBS job 12.head"), *b = claims_make(NULL);
    struct status st = file_claims_add(a, "output", link);
    CU_ASSERT(!status_failed(&st));
    st = file_claims_add(b, "output", p.path);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "another process has it"));
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, pid));
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "PBS job 12.head"));
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, p.lease));
    file_claims_destroy(&a);
    CU_ASSERT_NOT_EQUAL(access(p.lease, F_OK), 0);
    st = file_claims_add(b, "output", link);
    CU_ASSERT(!status_failed(&st));
    file_claims_destroy(&b);
    unlink(link);
    place_remove(&p);
}

/* Every claim of a job holds, however many there are, and every lease is removed at the end. */
static void many_files_are_claimed(void)
{
    enum { FILES = 20 };
    struct place p;
    place_make(&p);
    struct file_claims *a = claims_make(NULL), *b = claims_make(NULL);
    for (int i = 0; i < FILES; i++) {
        char path[112];
        snprintf(path, sizeof path, "%s.%d", p.path, i);
        const struct status st = file_claims_add(a, "output", path);
        CU_ASSERT_EQUAL(st.code, STATUS_OK);
    }
    for (int i = 0; i < FILES; i++) {
        char path[112];
        snprintf(path, sizeof path, "%s.%d", p.path, i);
        CU_ASSERT_EQUAL(file_claims_add(b, "output", path).code, STATUS_USAGE);
    }
    file_claims_destroy(&a);
    file_claims_destroy(&b);
    place_remove(&p);
}

/* A claim for which there is no memory leaves no lease. */
static void a_claim_without_memory_leaves_nothing(void)
{
    struct place p;
    place_make(&p);
    bool failed = true;
    for (uint64_t n = 1; failed; n++) {
        struct file_claims *c = claims_make(NULL);
        mem_fail_after(n);
        const struct status st = file_claims_add(c, "output", p.path);
        mem_fail_after(0);
        failed = status_failed(&st);
        CU_ASSERT_EQUAL(st.code, failed ? STATUS_MEMORY : STATUS_OK);
        CU_ASSERT_EQUAL(access(p.lease, F_OK) == 0, !failed);
        CU_ASSERT_FATAL(n < 100);
        file_claims_destroy(&c);
    }
    place_remove(&p);
}

static void the_dead_block_nobody(void)
{
    struct place p;
    place_make(&p);
    struct lease_owner o = lease_owner_self(NULL, 0);
    for (int i = 0; i < 2; i++) { /* first a dead process of this host, then a stale lease of
                                     another host */
        int fd;
        if (i == 0) CU_ASSERT_EQUAL_FATAL(lease_make(p.lease, &o, &fd), 0);
        if (i == 0) close(fd); /* releases its lock too */
        if (i == 1) foreign_lease(&p, LEASE_STALE_S + 1);
        struct file_claims *c = claims_make(NULL);
        const struct status st = file_claims_add(c, "output", p.path);
        CU_ASSERT(!status_failed(&st));
        CU_ASSERT_EQUAL(access(p.lease, F_OK), 0);
        file_claims_destroy(&c);
    }
    place_remove(&p);
}

static enum lease_state state_under_launcher(int32_t launcher)
{
    struct place p;
    struct lease_view v;
    char now[112];
    int held = -1;
    place_make(&p);
    snprintf(now, sizeof now, "%s/now", p.folder);
    const int fd = open(now, O_RDWR | O_CREAT, 0600);
    const struct lease_owner o = lease_owner_self(NULL, launcher);
    CU_ASSERT_EQUAL_FATAL(lease_make(p.lease, &o, &held), 0);
    const struct status st = lease_look(p.lease, fd, &v);
    CU_ASSERT_FATAL(!status_failed(&st));
    const enum lease_state state = v.state;
    lease_view_close(&v);
    close(held);
    close(fd);
    unlink(now);
    unlink(p.lease);
    place_remove(&p);
    return state;
}

static void an_orphan_is_known(void)
{
    CU_ASSERT_EQUAL(state_under_launcher(0), LEASE_HELD);
    CU_ASSERT_EQUAL(state_under_launcher((int32_t)getppid()), LEASE_HELD);
    /* the launcher was killed after or before this process looked up its parent */
    CU_ASSERT_EQUAL(state_under_launcher((int32_t)getppid() + 1), LEASE_ENDING);
    CU_ASSERT_EQUAL(state_under_launcher(1), LEASE_ENDING);
}

static void another_hosts_lease_goes_stale(void)
{
    struct place p;
    struct lease_view v;
    char now[112];
    place_make(&p);
    snprintf(now, sizeof now, "%s/now", p.folder);
    const int fd = open(now, O_RDWR | O_CREAT, 0600);
    foreign_lease(&p, 0);
    struct status st = lease_look(p.lease, fd, &v);
    CU_ASSERT(!status_failed(&st));
    CU_ASSERT_EQUAL(v.state, LEASE_UNKNOWN);
    CU_ASSERT_EQUAL(v.owner.pid, (int)getpid());
    lease_view_close(&v);
    close(fd);
    unlink(now);
    unlink(p.lease);
    foreign_lease(&p, LEASE_STALE_S - 2);
    struct file_claims *c = claims_make(NULL);
    st = file_claims_add(c, "output", p.path); /* waits for two seconds */
    CU_ASSERT(!status_failed(&st));
    file_claims_destroy(&c);
    place_remove(&p);
}

static void only_leases_are_taken_for_one(void)
{
    struct place p;
    place_make(&p);
    FILE *f = fopen(p.lease, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    fputs("for a flat\n", f);
    fclose(f);
    struct file_claims *c = claims_make(NULL);
    struct status st = file_claims_add(c, "output", p.path);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "expected a lease"));
    CU_ASSERT_EQUAL(unlink(p.lease), 0);
    st = file_claims_add(c, "output", "/dev/null"); /* a device needs no claim */
    CU_ASSERT(!status_failed(&st));
    CU_ASSERT_NOT_EQUAL(access("/dev/null.lease", F_OK), 0);
    file_claims_destroy(&c);
    place_remove(&p);
}

static void a_removed_lease_comes_back_and_a_replaced_one_is_lost(void)
{
    struct place p;
    place_make(&p);
    struct file_claims *c = claims_make(NULL);
    struct status st = file_claims_add(c, "output", p.path);
    CU_ASSERT(!status_failed(&st));
    CU_ASSERT_EQUAL(unlink(p.lease), 0);
    file_claims_renew(c);
    CU_ASSERT_EQUAL(access(p.lease, F_OK), 0);
    st = file_claims_check(c);
    CU_ASSERT(!status_failed(&st));
    CU_ASSERT_EQUAL(unlink(p.lease), 0);
    foreign_lease(&p, 0);
    file_claims_renew(c);
    st = file_claims_check(c);
    CU_ASSERT_EQUAL(st.code, STATUS_IO);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "host elsewhere"));
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "Slurm job 7"));
    file_claims_destroy(&c);
    CU_ASSERT_EQUAL(unlink(p.lease), 0); /* the lease of the other process was left alone */
    place_remove(&p);
}

/* A lease that cannot be read for a while is kept, as when a file server does not answer or the
 * permission to enter a folder has expired. */
static void a_lease_out_of_reach_is_not_lost(void)
{
    struct place p;
    char away[80];
    place_make(&p);
    snprintf(away, sizeof away, "%s.away", p.folder);
    struct file_claims *c = claims_make(NULL);
    struct status st = file_claims_add(c, "output", p.path);
    CU_ASSERT(!status_failed(&st));
    CU_ASSERT_EQUAL_FATAL(rename(p.folder, away), 0);
    const int fd = open(p.folder, O_WRONLY | O_CREAT | O_EXCL, 0600); /* opens give ENOTDIR */
    file_claims_renew(c);
    close(fd);
    unlink(p.folder);
    CU_ASSERT_EQUAL_FATAL(rename(away, p.folder), 0);
    file_claims_renew(c);
    st = file_claims_check(c);
    CU_ASSERT(!status_failed(&st));
    file_claims_destroy(&c);
    place_remove(&p);
}

void suite_file_claims(CU_pSuite suite);
void suite_file_claims(CU_pSuite suite)
{
    CU_add_test(suite, "the second is told of the first", the_second_is_told_of_the_first);
    CU_add_test(suite, "many files are claimed", many_files_are_claimed);
    CU_add_test(suite, "a claim without memory leaves nothing",
                a_claim_without_memory_leaves_nothing);
    CU_add_test(suite, "the dead block nobody", the_dead_block_nobody);
    CU_add_test(suite, "an orphan is known, whenever its launcher went", an_orphan_is_known);
    CU_add_test(suite, "another host's lease goes stale", another_hosts_lease_goes_stale);
    CU_add_test(suite, "only leases are taken for one", only_leases_are_taken_for_one);
    CU_add_test(suite, "a lease out of reach is not lost", a_lease_out_of_reach_is_not_lost);
    CU_add_test(suite, "a removed lease comes back and a replaced one is lost",
                a_removed_lease_comes_back_and_a_replaced_one_is_lost);
}
