/* The log: lines on stderr, tagged with the rank, except text lines of rank 0 at level info. The
 * sink is a mutable global. Levels: error, warn, info (the lead's progress), debug. */
#ifndef SHOAL_BASE_LOG_H
#define SHOAL_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_COUNT };
#define LOG_LEVEL_WORDS                                                                            \
    {"error", LOG_ERROR}, {"warn", LOG_WARN}, {"info", LOG_INFO},                                  \
    {                                                                                              \
        "debug", LOG_DEBUG                                                                         \
    }

/* Local. Sets the level, the rank with which lines are tagged, and whether lines are JSON instead
 * of text. rank < 0: no MPI yet; text lines then have no tag. Ranks other than 0 print only errors,
 * unless level is LOG_DEBUG. */
void log_init(int rank, enum log_level level, bool json);

/* Local. Writes one line (a newline is added; a message is truncated to 3,999 bytes) with one write
 * call, so that lines do not interleave. */
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
