/* Writing files that a suite writes thousands of times. */
#ifndef UTIL_WRITE_H
#define UTIL_WRITE_H

#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

/* Writes a file of n bytes, and returns whether that succeeded. An existing file is overwritten and
 * then cut: if it were emptied first, ext4 would write it to the disk when it is closed, which
 * takes ten milliseconds a file. */
static inline bool util_write(const char *path, const void *bytes, size_t n)
{
    const int fd = open(path, O_WRONLY | O_CREAT, 0666);
    if (fd < 0) return false;
    const bool is_whole = write(fd, bytes, n) == (ssize_t)n && ftruncate(fd, (off_t)n) == 0;
    return close(fd) == 0 && is_whole;
}

#endif
