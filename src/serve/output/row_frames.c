/* Gathers rows until they fill a frame. */
#include "serve/output/row_frames.h"

void row_frames_init(struct row_frames *f, enum encoder_format format, size_t frame_bytes)
{
    *f = (struct row_frames){.format = format, .frame_bytes = frame_bytes};
    if (frame_bytes == 0) f->frame_bytes = ROW_FRAMES_BYTES;
    strbuf_init(&f->rows);
}

void row_frames_fini(struct row_frames *f)
{
    strbuf_fini(&f->rows);
}

struct status row_frames_add(struct row_frames *f, const char *row, size_t n, struct strbuf *out)
{
    if (f->format == ENCODER_PLAIN) return encoder_run(ENCODER_PLAIN, row, n, out);
    strbuf_add(&f->rows, row, n);
    TRY(strbuf_status(&f->rows));
    if (f->rows.n < f->frame_bytes) return status_ok();
    TRY(encoder_run(f->format, f->rows.data, f->rows.n, out));
    strbuf_clear(&f->rows);
    f->has_frame = true;
    return status_ok();
}

struct status row_frames_last(const struct row_frames *f, struct strbuf *out)
{
    if (f->format == ENCODER_PLAIN || (f->has_frame && f->rows.n == 0)) return status_ok();
    return encoder_run(f->format, f->rows.data, f->rows.n, out);
}
