/* Loaded into ranks by LD_PRELOAD (starts.py). Just before rank 1 tells the launcher, its parent,
 * that it ends, this stops the launcher for longer than OpenPMIx's clients wait for an answer. */
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STOPPED_S = 4 };

static void stop_for_a_while(pid_t launcher)
{
    kill(launcher, SIGSTOP);
    fprintf(stderr, "the launcher is stopped\n");
    if (fork() != 0) return;
    setsid();
    close(STDOUT_FILENO); /* readers of the job's output must not wait for this process */
    close(STDERR_FILENO);
    sleep(STOPPED_S);
    kill(launcher, SIGCONT);
    _exit(0);
}

int PMIx_Finalize(const void *info, size_t n_info);

int PMIx_Finalize(const void *info, size_t n_info)
{
    int (*const next)(const void *, size_t) =
        (int (*)(const void *, size_t))dlsym(RTLD_NEXT, "PMIx_Finalize");
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (rank != NULL && strcmp(rank, "1") == 0) stop_for_a_while(getppid());
    return next != NULL ? next(info, n_info) : 0;
}
