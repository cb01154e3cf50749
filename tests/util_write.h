/* Writing files that a suite writes thousands of times. */
#ifndef UTIL_WRITE_H
#define UTIL_WRITE_H

#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

/* Makes a file of these bytes; one that is there is written over and then cut. If it were cut to
 * nothing first, ext4 would send it to the disk when it is closed, which takes ten milliseconds a
 * file. */
static inline bool util_write(const char *path, const void *bytes, size_t n)
{
    const int fd = open(path, O_WRONLY | O_CREAT, 0666);
    if (fd < 0) return false;
    const bool is_whole = write(fd, bytes, n) == (ssize_t)n && ftruncate(fd, (off_t)n) == 0;
    return close(fd) == 0 && is_whole;
}

#endif
