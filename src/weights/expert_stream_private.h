/* The state of a stream of experts, for expert_stream.c, expert_stream_read.c and expert_pack.c.
 * `lock` guards everything below it; only the reader's thread reads, drops and replaces experts. */
#ifndef SHOAL_WEIGHTS_EXPERT_STREAM_PRIVATE_H
#define SHOAL_WEIGHTS_EXPERT_STREAM_PRIVATE_H

#include "base/failpoint.h"
#include "checkpoint/file/direct_reads.h"
#include "checkpoint/file/expert_file.h"
#include "weights/expert_shape.h"
#include "weights/expert_stream.h"

#include <pthread.h>
#include <sched.h>

enum {
    STREAM_NONE = -1,
};

enum stream_state { STREAM_ABSENT, STREAM_READING, STREAM_READY };

/* One expert of one layer. */
struct stream_entry {
    int32_t slot; /* STREAM_NONE: absent */
    int32_t need; /* index of its need in the block's needs; STREAM_NONE: none, or done */
    enum stream_state state;
    bool is_in_use; /* it belongs to the run that the caller computes */
    bool is_home;   /* it stays in memory between steps */
    float rate;     /* the share of its layer's last blocks in which it had rows; at first 1 */
};

/* One MoE layer of the stage. */
struct stream_layer {
    uint32_t file_layer;
    struct expert_shape shape;
    struct packed *matrix[EXPERT_MATRIX_COUNT]; /* [n_local] borrowed, the layer's weights */
    const uint32_t *expert_at; /* [P] the expert at each place; borrowed; NULL: in order of id */
    uint32_t n_passes;         /* the layer's blocks so far */
};

struct expert_stream {
    struct expert_file *file;    /* owned */
    struct failpoint *failpoint; /* borrowed; NULL: none */
    uint32_t part;
    uint32_t first_place;        /* place of the rank's first expert */
    uint32_t n_layers, n_local;  /* MoE layers of the stage; experts of the rank in each */
    uint32_t *layer_at;          /* [layers of the stage] a MoE layer's index in `layers`; owned */
    struct stream_layer *layers; /* [n_layers] owned */
    size_t slot_bytes;           /* the largest expert of any layer */
    uint32_t n_slots, n_home;    /* slots in all; experts in the home of each layer */
    char *memory;                /* owned, mapped [n_slots, slot_bytes] */
    struct direct_reads *direct; /* owned; NULL: reads in the plain way */
    cpu_set_t cpus;              /* where the reader may run */
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t lock;
    pthread_cond_t to_reader, to_caller;
    struct stream_entry *entries; /* [n_layers, n_local] owned */
    int32_t *in_slot;             /* [n_slots] the entry in a slot; STREAM_NONE: none; owned */
    uint32_t n_free;              /* free slots */
    uint32_t layer;               /* the current block's layer; n_layers: no block yet */
    struct expert_need *needs;    /* [n_needs] the block's needs; room for n_local; owned */
    bool *is_done;                /* [n_needs] given to the caller; owned */
    size_t n_needs, n_done, first_left; /* first_left: the first need that is not done */
    struct expert_run run;              /* the run that the caller computes */
    bool in_order;                      /* needs are given out in their order */
    size_t most_rows;                   /* the most rows of a run, unless one need has more */
    bool is_over;                       /* the reader must end */
    struct status status;               /* the reader's first failure */
    struct expert_stream_stats stats;
};

static inline struct stream_entry *stream_entry_of(struct expert_stream *s, uint32_t layer,
                                                   uint32_t expert)
{
    return &s->entries[(size_t)layer * s->n_local + expert];
}

/* Local. expert_stream_create makes an empty stream. expert_stream_set allocates its entries and
 * needs, once n_layers and n_local are set. Errors: STATUS_MEMORY. */
struct status expert_stream_create(struct expert_stream **out);
struct status expert_stream_set(struct expert_stream *s);

/* Runs the reader, as its thread's function; arg: the stream. */
void *expert_stream_read(void *arg);

#endif
