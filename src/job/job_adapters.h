/* The adapters of a job: the flags --adapter, the names that request lines may use, and the loaded
 * weights. */
#ifndef SHOAL_JOB_JOB_ADAPTERS_H
#define SHOAL_JOB_JOB_ADAPTERS_H

#include "base/strbuf.h"
#include "options/flags.h"
#include "serve/request/request.h"
#include "weights/adapters.h"

enum { ADAPTER_NAME_MAX = 128 };

/* All zeros: none. In the order of their names, so that the order of the flags does not matter. */
struct job_adapters {
    size_t n;
    char *text;                    /* owned: the names and paths, each NUL-terminated */
    struct adapter_file *files;    /* [n] owned */
    struct request_adapter *rules; /* [n] owned: the adapters as lines may name them */
    uint64_t n_bytes;              /* of all their matrices in memory, f32 */
    bool adapts_experts;           /* some adapter changes routed experts */
    struct adapters *loaded;       /* NULL: not yet, or a dry run */
};

/* Local. Reads each NAME=FILE.h5, and from each file its digest and how much memory it will take.
 * Errors: STATUS_USAGE (another form; a name that is used twice, is longer than ADAPTER_NAME_MAX or
 * has bytes besides letters, digits and ._:/-), STATUS_MEMORY, ckpt_open's. */
struct status job_adapters_read(struct job_adapters *a, const struct arch *model,
                                const struct flag_list *flags);
void job_adapters_fini(struct job_adapters *a);

/* Local. Appends a journal's settings: each adapter's name and digest. */
void job_adapters_settings(const struct job_adapters *a, struct strbuf *out);

#endif
