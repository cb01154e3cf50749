/* Reads /proc; fields have the numbers of proc_pid_stat(5). */
#include "base/proc_thread.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 64, STAT_BYTES = 1024 };

bool proc_thread_read(int32_t pid, int32_t thread, struct proc_thread *out)
{
    enum { STATE = 3, STARTED = 22 }; /* field numbers; field 2 is the name */
    char path[PATH_BYTES], text[STAT_BYTES];
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, thread);
    FILE *f = fopen(path, "re");
    if (f == NULL) return false;
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    const char *at = strrchr(text, ')'); /* a name may contain anything */
    if (at == NULL || sscanf(at, ") %c %d", &out->state, &out->parent) != 2) return false;
    for (int i = STATE; at != NULL && i <= STARTED; i++) at = strchr(at + 1, ' ');
    if (at == NULL) return false;
    out->started = strtoull(at, NULL, 10);
    return true;
}

bool proc_is_busy(int32_t pid)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *threads = opendir(path);
    if (threads == NULL) return false;
    bool busy = false;
    for (struct dirent *e = readdir(threads); e != NULL && !busy; e = readdir(threads)) {
        struct proc_thread t;
        const int32_t thread = (int32_t)strtol(e->d_name, NULL, 10); /* 0: "." and ".." */
        busy = thread > 0 && proc_thread_read(pid, thread, &t) && t.state != 'S';
    }
    closedir(threads);
    return busy;
}
