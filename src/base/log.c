/* The log's sink and the format of its lines. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct {
    int rank;
    enum log_level level;
    bool json;
} sink = {.rank = -1, .level = LOG_INFO};

static const char *const level_names[LOG_COUNT] = {"error", "warn", "info", "debug"};

void log_init(int rank, enum log_level level, bool json)
{
    sink.rank = rank;
    sink.level = level;
    sink.json = json;
}

/* Escapes `text` for a JSON string into `out`; control bytes become spaces. */
static void escape_json(const char *text, char *out, size_t out_bytes)
{
    size_t n = 0;
    for (; *text != '\0' && n + 3 < out_bytes; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') out[n++] = '\\';
        out[n++] = (char)(c < 0x20 ? ' ' : c);
    }
    out[n] = '\0';
}

static int format_line(char *line, size_t line_bytes, enum log_level level, const char *message)
{
    if (sink.json) {
        char escaped[4096];
        escape_json(message, escaped, sizeof escaped);
        return snprintf(line, line_bytes, "{\"level\":\"%s\",\"rank\":%d,\"message\":\"%s\"}\n",
                        level_names[level], sink.rank, escaped);
    }
    if (sink.rank < 0) return snprintf(line, line_bytes, "shoal: %s\n", message);
    if (level == LOG_INFO && sink.rank == 0) return snprintf(line, line_bytes, "%s\n", message);
    return snprintf(line, line_bytes, "shoal[%d] %s: %s\n", sink.rank, level_names[level], message);
}

void log_line(enum log_level level, const char *format, ...)
{
    if (level > sink.level) return;
    if (sink.rank > 0 && level > LOG_ERROR && sink.level < LOG_DEBUG) return;
    char message[4000];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    char line[4608];
    int n = format_line(line, sizeof line, level, message);
    if (n > (int)sizeof line - 1) n = (int)sizeof line - 1;
    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        return; /* stderr is gone: nowhere to report it */
}
