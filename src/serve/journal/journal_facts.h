/* What a whole journal says of its job, from one pass over it: for opening it, and for
 * `shoal status`, which may read it while the job runs. */
#ifndef SHOAL_SERVE_JOURNAL_JOURNAL_FACTS_H
#define SHOAL_SERVE_JOURNAL_JOURNAL_FACTS_H

#include "serve/journal/journal_record.h"

struct journal_facts {
    uint64_t file_bytes; /* of the file, and of its whole records from the start */
    uint64_t good_bytes;
    uint64_t rows_begin, base_end; /* [rows_begin, base_end): the BASE records */
    char *settings;                /* owned, NUL-terminated; NULL: no header was found */
    uint64_t n_rows, n_error_rows; /* finished */
    uint64_t n_partial_records;
    uint64_t n_prompt_tokens, n_generated_tokens; /* of finished rows */
    uint64_t first_line, last_line; /* the lowest and the highest line with a record; 0: none */
    bool is_complete;               /* END stands at the end */
    uint64_t end_lines, end_bytes;  /* END's values */
    /* sessions; times are unix nanoseconds */
    uint64_t n_sessions, session_ns, input_bytes; /* of the last session */
    uint64_t session_rows, session_generated;     /* finished in the last session */
    uint64_t last_ns;                             /* of the last commit or session */
    uint64_t n_read, n_read_bytes;                /* input taken so far by the last session */
};

/* Local. Reads fd from its start. A file that does not begin with the magic and a whole header has
 * settings NULL. Errors: STATUS_IO, STATUS_MEMORY. */
struct status journal_facts_read(int fd, const char *path, struct journal_facts *out);
void journal_facts_fini(struct journal_facts *f);

#endif
