/* Asks squeue how much time is left. */
#include "job/slurm.h"

#include "base/clock.h"
#include "job/drain.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WAIT_MS = 10000, ANSWER_BYTES = 64 };

extern char **environ;

/* Starts squeue with its stdout in `out` and no signal blocked. */
static bool slurm_start(const char *job_id, int out, pid_t *pid)
{
    char job[32];
    strncpy(job, job_id, sizeof job - 1);
    job[sizeof job - 1] = '\0';
    char *argv[] = {(char[]){"squeue"},
                    (char[]){"-h"},
                    (char[]){"-j"},
                    job,
                    (char[]){"-o"},
                    (char[]){"%L"},
                    NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    const int failed = posix_spawnp(pid, "squeue", &actions, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return failed == 0;
}

/* Reads fd to its end, at most n - 1 bytes, for at most WAIT_MS, and keeps the first word. */
static void read_answer(int fd, char *answer, size_t n)
{
    const uint64_t since = clock_ns();
    size_t got = 0;
    while (got + 1 < n) {
        const int64_t left_ms = WAIT_MS - (int64_t)((clock_ns() - since) / 1000000u);
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (left_ms <= 0 || (poll(&p, 1, (int)left_ms) <= 0 && errno != EINTR)) break;
        const ssize_t k = read(fd, answer + got, n - 1 - got);
        if (k == 0 || (k < 0 && errno != EINTR)) break;
        if (k > 0) got += (size_t)k;
    }
    answer[got] = '\0';
    answer[strcspn(answer, " \n")] = '\0';
}

bool slurm_time_left(const char *job_id, uint64_t *seconds)
{
    int ends[2];
    pid_t pid;
    char answer[ANSWER_BYTES] = "";
    if (job_id == NULL || *job_id == '\0' || job_id[strspn(job_id, "0123456789")] != '\0') {
        return false;
    }
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    const bool started = slurm_start(job_id, ends[1], &pid);
    close(ends[1]);
    if (started) {
        read_answer(ends[0], answer, sizeof answer);
        kill(pid, SIGKILL); /* it has answered, or has had its time */
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
    }
    close(ends[0]);
    return drain_parse_time(answer, seconds);
}
