/* A receipt: a short text that says which job made an output: model, settings, lines, and a hash of
 * the rows. Two sites compare receipts instead of files. The same job has the same receipt, byte
 * for byte: layout, hosts, times, paths, compression and interruptions do not change it. Reads a
 * finished journal and the output; does not compute rows again (--audit does). Called by
 * `shoal receipt`. Page: docs/receipts.md.
 *
 *   {
 *   "format": "shoal receipt 1",
 *   "command": "generate",                the journal's settings, in its order, without the
 *   "checkpoint": "5b1f...",              inputs' paths and the --save-logprobs and --save-hidden
 *   ...                                   flags, which change no row
 *   "lines": 16,
 *   "lines_xxh128": "...",                XXH3-128 over the lines' {u64 number, u64 low, u64 high},
 *                                         in order, little-endian; low, high: struct line_digest
 *   "error_rows": 0,
 *   "prompt_tokens": 96,
 *   "generated_tokens": 310,
 *   "rows_bytes": 8123,                   bytes of the rows, decompressed
 *   "rows_xxh128": "..."                  XXH3-128 over these bytes
 *   }
 *
 * One member on each line, so that diff shows where two receipts differ. */
#ifndef SHOAL_SERVE_JOURNAL_RECEIPT_H
#define SHOAL_SERVE_JOURNAL_RECEIPT_H

#include "base/status.h"
#include "base/strbuf.h"

/* Local. Appends the receipt of `output`, whose journal is `journal`, to out. Memory: 24 bytes for
 * each line of the job. Errors: STATUS_INPUT (no journal of this version; the job has not ended;
 * the output has other rows than the journal counts, or is damaged), STATUS_IO, STATUS_MEMORY. */
struct status receipt_make(const char *output, const char *journal, struct strbuf *out);

/* Local. Compares this job's receipt with the receipt in the file `path`. Errors: STATUS_ROWS when
 * they differ; the sentence names the first member that differs, and says whether the jobs differ
 * or only their rows. STATUS_INPUT when the file cannot be read or is no receipt of this version.
 * STATUS_MEMORY. */
struct status receipt_check(const char *receipt, const char *path);

#endif
