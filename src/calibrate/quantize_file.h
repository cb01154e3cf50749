/* Makes one checkpoint file from another: copies the texts, and copies, converts or quantizes each
 * tensor, a run of rows at a time in bounded memory, as quantize_plan has chosen. Does not
 * calibrate. Called by `shoal quantize`. With a calibrating method, the caller writes the
 * calibrated tensors with the same writer. */
#ifndef SHOAL_CALIBRATE_QUANTIZE_FILE_H
#define SHOAL_CALIBRATE_QUANTIZE_FILE_H

#include "calibrate/quantize_plan.h"
#include "quant/quantize.h"

/* The result of a quantization. */
struct quantize_result {
    uint64_t n_quantized,
        n_kept; /* tensors; n_kept also counts those converted to another float type */
    uint64_t n_elems, n_bytes; /* written elements and bytes of all tensors */
    uint64_t n_overflowed;     /* finite values that became infinite in a narrower float type */
    uint64_t n_again; /* of n_quantized: tensors that were already quantized, in another format */
    struct quant_loss loss; /* of the tensors in n_again, against their dequantized values before */
};

/* Called after each run of rows, with the elements of all tensors so far and in all. */
typedef void quantize_progress(void *ctx, const char *tensor, uint64_t done, uint64_t total);

struct background; /* base/background.h */

struct quantize_file {
    struct ckpt *c; /* borrowed, as are the next four */
    struct ckpt_writer *writer;
    const struct quantize_choice *choices; /* [ckpt_tensor_count] */
    struct team *team;                     /* may be NULL */
    struct background
        *background;             /* the thread that writes rounded rows; NULL: the calling thread */
    quantize_progress *progress; /* may be NULL */
    void *progress_ctx;
    uint64_t done_elems, total_elems; /* for progress */
    struct quantize_result result;
};

/* Local. Returns the bytes of the file that the choices make, as ckpt_room_needed counts them. */
uint64_t quantize_file_needed(const struct quantize_file *q);

/* Local. Copies config and the other texts. Errors: STATUS_INPUT, STATUS_IO, STATUS_MEMORY. */
struct status quantize_texts(struct quantize_file *q);

/* Local; the team's threads divide the rows. Writes tensor i as its choice says: copied, converted
 * or quantized by RTN. Errors: STATUS_INPUT names the tensor (values that are not finite),
 * STATUS_IO, STATUS_MEMORY. */
struct status quantize_tensor(struct quantize_file *q, size_t i);

/* Local. Writes the texts, then all tensors in the order of their names, except tensors i with
 * skip[i] set (skip [ckpt_tensor_count]; NULL: none). Errors: as quantize_tensor. */
struct status quantize_rest(struct quantize_file *q, const bool *skip);

#endif
