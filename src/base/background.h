/* One thread that runs one job at a time beside the caller, such as writing what is ready while
 * the caller makes what comes next. Between background_start and background_wait the job's memory
 * belongs to the job. Called by convert and quantize. */
#ifndef SHOAL_BASE_BACKGROUND_H
#define SHOAL_BASE_BACKGROUND_H

#include "base/status.h"

struct background;

typedef struct status background_fn(void *job);

/* Local. Starts the thread, without a job. Errors: STATUS_MEMORY. */
struct status background_create(struct background **out);

/* Local. Waits for the job, ends the thread and frees; the job's status is lost. Accepts NULL. */
void background_destroy(struct background **b);

/* Local. Runs fn(job) on the thread; the job before it must have been waited for. */
void background_start(struct background *b, background_fn *fn, void *job);

/* Local. Waits until the job is done and returns its status; ok when none was started since the
 * last call. */
struct status background_wait(struct background *b);

#endif
