/* The flags of the server (options/flags.h explains the rows). --task chooses the command whose
 * answers the server gives; no other flag here changes the bytes of an answer. */
#ifndef SHOAL_SERVE_HTTP_HTTP_FLAGS_H
#define SHOAL_SERVE_HTTP_HTTP_FLAGS_H

#include "options/flags.h"

enum http_task { HTTP_TASK_AUTO, HTTP_TASK_GENERATE, HTTP_TASK_EMBED, HTTP_TASK_RANK };

#define HTTP_FLAGS(FLAG)                                                                           \
    FLAG(enum http_task, task, "task",                                                             \
         OF_CHOICE({"auto", HTTP_TASK_AUTO}, {"generate", HTTP_TASK_GENERATE},                     \
                   {"embed", HTTP_TASK_EMBED}, {"rank", HTTP_TASK_RANK}),                          \
         .preset = "auto", .commands = IN_SERVE,                                                   \
         .help = "answer as shoal generate, embed or rank; auto: rank if the checkpoint has "      \
                 "score.weight, embed if it has sentence-transformers' files or no head, "         \
                 "otherwise generate")                                                             \
    FLAG(const char *, host, "host", OF_TEXT("ADDRESS"), .preset = "127.0.0.1",                    \
         .commands = IN_SERVE,                                                                     \
         .help =                                                                                   \
             "the address on which the server listens; without this flag only programs on the "    \
             "lead's host reach it. 0.0.0.0: every network of the host")                           \
    FLAG(uint32_t, port, "port", OF_COUNT(0, 65535, "N"), .preset = "8000", .commands = IN_SERVE,  \
         .help = "the TCP port; 0: a free one, which the log names")                               \
    FLAG(const char *, key_file, "api-key-file", OF_TEXT("FILE"), .commands = IN_SERVE,            \
         .help = "keys, one on each line: every call except /health must have one of them in "     \
                 "\"Authorization: Bearer KEY\"")                                                  \
    FLAG(uint32_t, max_requests, "max-requests", OF_COUNT(1, 1 << 20, "N"), .preset = "4096",      \
         .commands = IN_SERVE,                                                                     \
         .help = "the most calls that run or wait; further ones are refused with 429")             \
    FLAG(uint32_t, max_connections, "max-connections", OF_COUNT(1, 1 << 20, "N"),                  \
         .preset = "8192", .commands = IN_SERVE,                                                   \
         .help = "the most open connections; further ones wait")                                   \
    FLAG(uint64_t, max_body_bytes, "max-body-mib", OF_UNITS(1 << 20, 1, 1024, "N"),                \
         .preset = "16", .commands = IN_SERVE, .help = "the longest body of a call, in MiB")       \
    FLAG(uint32_t, timeout_s, "http-timeout", OF_COUNT(1, 3600, "SECONDS"), .preset = "60",        \
         .commands = IN_SERVE,                                                                     \
         .help = "close a connection that for this long has not sent a whole call, or has read "   \
                 "nothing of its answer")                                                          \
    FLAG(const char *, batch_dir, "batch-dir", OF_TEXT("DIR"), .commands = IN_SERVE,               \
         .help = "a folder for uploaded files and batches; a later server with the same folder "   \
                 "continues them; without it /v1/files and /v1/batches are refused")               \
    FLAG(uint32_t, drain_s, "drain-time", OF_COUNT(0, 3600, "SECONDS"), .preset = "20",            \
         .commands = IN_SERVE,                                                                     \
         .help = "when the server is asked to end, running answers may go on for this long")

struct http_flags {
    HTTP_FLAGS(FLAG_FIELD)
};

#endif
