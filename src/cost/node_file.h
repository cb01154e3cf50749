/* Reads and writes NODE.json, the measured speeds of one node; measures nothing. The file is
 * written by `shoal bench --machine --save`; `shoal bench --disk --save` adds the speed of the
 * disk. The cost model (step_cost.h) uses these speeds.
 *
 * The times of linears, attention, row ops and logits are those of a whole host whose ranks share
 * it evenly. If each of R ranks of a host has the work w, each of them takes R * w times the number
 * here, because all work at the same time. */
#ifndef SHOAL_COST_NODE_FILE_H
#define SHOAL_COST_NODE_FILE_H

#include "base/strbuf.h"
#include "cost/curve.h"

enum {
    NODE_FORMAT_VERSION = 2, /* of the file; a file of another version is refused */
    NODE_NAME_BYTES = 64,
};

/* The formats of a weight that differ in speed. Without _G32 or _G128: int8 with groups of 64 and
 * more, fp8 with any groups, int4 with groups of 32; with _G128: int4 with larger groups. */
enum node_format {
    NODE_F32,
    NODE_F16,
    NODE_BF16,
    NODE_INT8,
    NODE_INT8_G32,
    NODE_INT4,
    NODE_INT4_G128,
    NODE_FP8,
    NODE_MXFP4,
    NODE_FORMAT_COUNT
};

/* The speeds of a linear with weights of one format. y: seconds for one weight; x: the rows that
 * are multiplied by it. `memory`: no cache holds the weights; `cached`: one does. */
struct node_linear {
    struct curve memory, cached;
};

struct node {
    char host[NODE_NAME_BYTES], cpu[NODE_NAME_BYTES], kernels[NODE_NAME_BYTES];
    char shoal[NODE_NAME_BYTES]; /* the version that measured */
    double n_cores, n_threads;   /* of the host; the threads of all its ranks that measured */
    double n_ranks;              /* of the host, that measured at the same time */
    double memory_bytes;         /* of the host */
    double cache_bytes;          /* of all last-level caches of the host */
    struct curve read;           /* bytes per second that n threads read; x: threads of the host */
    struct curve flops;          /* f32 operations per second of n threads; x: the same */
    struct node_linear linear[NODE_FORMAT_COUNT];
    /* seconds for one element of a query head and one position that it sees; x: positions. `one`:
     * one row for each sequence; `many`: a chunk of a prompt */
    struct curve attention_one, attention_many;
    double norm_s, gate_s, rope_s; /* for one element of a row: norm with quantizing, SwiGLU, RoPE
                                      with writing the cache */
    double logit_s;                /* for one logit of a row whose token is sampled */
    double op_s;                   /* to wake the threads for one op, without its work */
    double step_s, sequence_s;     /* the lead's work for a step, and for each sequence in it */
    double barrier_s;              /* one barrier of the host's ranks; 0: one rank measured */
    struct curve sum;              /* seconds of a sum of int64 over the host's ranks; x: bytes */
    double network_bytes_s, network_s; /* of a host: bandwidth, and latency of a message; 0: not
                                          measured */
    double disk_bytes_s; /* that the disk gives to all ranks that stream experts; 0: not measured */
};

/* Local. Returns the format's name in the file. */
const char *node_format_name(enum node_format f);

/* Local. Returns the speeds of a format; of one that was not measured, those of a measured format
 * with the most similar speed. NULL if none was measured. */
const struct node_linear *node_linear_of(const struct node *n, enum node_format f);

/* Local. Appends the file's text. Errors: STATUS_MEMORY. */
struct status node_write(const struct node *n, struct strbuf *out);

/* Local. Parses n_bytes of a file; `what` names it in errors. Errors: STATUS_INPUT names the part
 * that is missing or wrong, such as the version of the format or of shoal; STATUS_MEMORY. */
struct status node_parse(const char *text, size_t n_bytes, const char *what, struct node *out);

/* Local. Reads the file `path`. Errors: as node_parse. */
struct status node_read(const char *path, struct node *out);

#endif
