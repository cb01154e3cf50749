/* Computes the size of a checkpoint file and compares it with the free disk space. */
#include "checkpoint/file/ckpt_room.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/file/ckpt_writer_private.h"

#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Returns the bytes of one part's dataset with its alignment and its checksums. */
static uint64_t part_needed(const struct ckpt_tensor_spec *spec, enum ckpt_part part)
{
    struct ckpt_tensor_spec one = *spec;
    const bool is_plain = spec->quant.kind == QUANT_NONE;
    const uint64_t row_bytes = ckpt_spec_row_bytes(spec, part);
    if (row_bytes == 0) return 0;
    if (!is_plain) {
        one.dtype = ckpt_part_dtype(part, spec->quant);
        one.dims[one.n_dims - 1] = row_bytes / dtype_bytes(one.dtype);
    }
    uint64_t n_rows = 1;
    for (uint32_t d = 0; d + 1 < spec->n_dims; d++) n_rows *= spec->dims[d];
    const uint64_t per_block = ckpt_rows_per_block(&one);
    const uint64_t n_sums = (n_rows + per_block - 1) / per_block * 2 * sizeof(uint64_t);
    const uint64_t n_bytes = n_rows * row_bytes;
    if (n_bytes < CKPT_ALIGN_BYTES) return n_bytes + n_sums;
    return (n_bytes + CKPT_ALIGN_BYTES - 1) / CKPT_ALIGN_BYTES * CKPT_ALIGN_BYTES + n_sums;
}

uint64_t ckpt_room_needed(const struct ckpt_tensor_spec *specs, size_t n_specs,
                          uint64_t n_text_bytes)
{
    uint64_t n = n_text_bytes;
    for (size_t i = 0; i < n_specs; i++) {
        for (int part = 0; part < CKPT_PART_COUNT; part++) {
            n += part_needed(&specs[i], (enum ckpt_part)part);
        }
    }
    return n;
}

struct status ckpt_room_free(const char *path, uint64_t *n_free)
{
    struct statvfs info;
    char *file = NULL;
    *n_free = UINT64_MAX;
    TRY(file_target(path, &file));
    char *slash = strrchr(file, '/');
    if (slash != NULL) slash[slash == file ? 1 : 0] = '\0';
    /* a total of 0 blocks, as some network and user-space file systems report, tells nothing */
    if (statvfs(slash != NULL ? file : ".", &info) == 0 && info.f_blocks > 0) {
        const bool is_root = geteuid() == 0; /* root may use the reserved blocks too */
        *n_free = (uint64_t)(is_root ? info.f_bfree : info.f_bavail) * info.f_frsize;
    }
    mem_free(&file);
    return status_ok();
}

/* Writes a number of bytes for people: "7.13 GB", "0.40 MB". */
static const char *as_text(uint64_t n_bytes, char text[32])
{
    const bool is_large = n_bytes >= 1000000000u;
    snprintf(text, 32, "%.2f %s", (double)n_bytes / (is_large ? 1e9 : 1e6), is_large ? "GB" : "MB");
    return text;
}

struct status ckpt_room_check(const char *path, uint64_t n_needed, uint64_t n_free)
{
    char needed[32], available[32];
    as_text(n_needed, needed);
    as_text(n_free, available);
    if (n_needed > n_free) {
        return status_make(STATUS_IO, "%s: needs %s of disk, and its file system has %s free", path,
                           needed, available);
    }
    log_line(LOG_INFO, "%s: needs %s of disk%s%s%s", path, needed,
             n_free == UINT64_MAX ? "" : ", and its file system has ",
             n_free == UINT64_MAX ? "" : available, n_free == UINT64_MAX ? "" : " free");
    return status_ok();
}
