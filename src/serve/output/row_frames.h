/* Turns rows into the bytes of an output file: as they are, or compressed in frames of whole rows.
 * Where a frame ends depends on the rows alone, so an output has the same bytes however often its
 * job was stopped. Writes no files. Called by the writer of results and by merge.
 *
 *   rows     row row row row|row row row row row|row row      a frame ends with the first row that
 *   frames   [ frame_bytes ][   frame_bytes    ][ last ]      brings it to frame_bytes or more */
#ifndef SHOAL_SERVE_OUTPUT_ROW_FRAMES_H
#define SHOAL_SERVE_OUTPUT_ROW_FRAMES_H

#include "serve/input/encoder.h"

#include <stdbool.h>

enum { ROW_FRAMES_BYTES = 1 << 20 };

/* The state of one output, in memory that the caller provides. */
struct row_frames {
    enum encoder_format format;
    size_t frame_bytes; /* bytes of rows that fill a frame */
    bool has_frame;     /* at least one frame was filled */
    struct strbuf rows; /* rows of the frame that is not full; empty if the format is plain */
};

/* All are Local. Errors: STATUS_MEMORY. */

/* frame_bytes 0: ROW_FRAMES_BYTES. */
void row_frames_init(struct row_frames *f, enum encoder_format format, size_t frame_bytes);
void row_frames_fini(struct row_frames *f);

/* Adds a row of n bytes. Appends to `out` the frame that it fills, or the row itself if the format
 * is plain. */
struct status row_frames_add(struct row_frames *f, const char *row, size_t n, struct strbuf *out);

/* Appends to `out` a frame of the rows that are in no frame yet; f stays as it is. An output
 * without any rows is one empty frame. Appends nothing if the format is plain or full frames hold
 * all rows. */
struct status row_frames_last(const struct row_frames *f, struct strbuf *out);

#endif
