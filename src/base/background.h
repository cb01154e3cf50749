/* One thread that runs one job at a time beside the caller: for instance, it writes one tensor
 * while the caller makes the next. Between background_start and background_wait the job's memory
 * belongs to the job. Called by convert and quantize. */
#ifndef SHOAL_BASE_BACKGROUND_H
#define SHOAL_BASE_BACKGROUND_H

#include "base/status.h"

struct background;

typedef struct status background_fn(void *job);

/* Local. Starts the thread, without a job. Errors: STATUS_MEMORY. */
struct status background_create(struct background **out);

/* Local. Waits for the job, ends the thread and frees; drops the job's status. Accepts NULL. */
void background_destroy(struct background **b);

/* Local. Starts fn(job) on the thread. The previous job must have been waited for. */
void background_start(struct background *b, background_fn *fn, void *job);

/* Local. Waits until the job is done and returns its status; ok when none was started since the
 * last call. */
struct status background_wait(struct background *b);

#endif
