/* The workspace of a stage: its arrays, the steps of a layer during which each array is in use, and
 * the places of the arrays in one piece of memory. Pure functions. The stage allocates by them, and
 * `shoal plan` counts by them. */
#ifndef SHOAL_PARALLEL_LAYOUT_WORKSPACE_H
#define SHOAL_PARALLEL_LAYOUT_WORKSPACE_H

#include "parallel/layout/layout.h"

#include <stdint.h>

/* X(name, first, last): the first and last step of a layer in which the array is alive (enum
 * workspace_step). */
#define WORKSPACE_ARRAYS(X)                                                                        \
    X(NORMED, NORM, EXPERTS)                                                                       \
    X(CODES, NORM, EXPERTS)                                                                        \
    X(COS, NORM, EXPERTS)                                                                          \
    X(SIN, NORM, EXPERTS)                                                                          \
    X(LOCAL_COS, NORM, EXPERTS)                                                                    \
    X(LOCAL_SIN, NORM, EXPERTS)                                                                    \
    X(Q, PROJECT, ATTEND)                                                                          \
    X(K, PROJECT, ATTEND)                                                                          \
    X(V, PROJECT, ATTEND)                                                                          \
    X(HEAD_SUMS, PROJECT, ATTEND)                                                                  \
    X(TILE_PARTS, PROJECT, ATTEND)                                                                 \
    X(Q_LOW, PROJECT, ATTEND)                                                                      \
    X(K_ROPE, PROJECT, ATTEND)                                                                     \
    X(HEAD_GATES, PROJECT, ATTEND)                                                                 \
    X(Q_GATED, PROJECT, ATTEND)                                                                    \
    X(DELTA_QKVZ, PROJECT, ATTEND)                                                                 \
    X(DELTA_BA, PROJECT, ATTEND)                                                                   \
    X(DELTA_MIXED, PROJECT, ATTEND)                                                                \
    X(DELTA_GATES, PROJECT, ATTEND)                                                                \
    X(INDEX_Q, PROJECT, ATTEND)                                                                    \
    X(INDEX_TURNED, PROJECT, ATTEND)                                                               \
    X(INDEX_K, PROJECT, ATTEND)                                                                    \
    X(INDEX_MIX, PROJECT, ATTEND)                                                                  \
    X(INDEX_CHOSEN, NORM, EXPERTS) /* later layers may read them */                                \
    X(INDEX_SCORES, PROJECT, ATTEND)                                                               \
    X(INDEX_GATHERED, PROJECT, ATTEND)                                                             \
    X(INDEX_BLOCKS, PROJECT, ATTEND)                                                               \
    X(ENTRY_KEYS, PROJECT, ATTEND)                                                                 \
    X(ENTRY_BLOCKS, PROJECT, ATTEND)                                                               \
    X(POOL_KV, PROJECT, ATTEND)                                                                    \
    X(POOL_GATE, PROJECT, ATTEND)                                                                  \
    X(INDEX_POOL_KV, PROJECT, ATTEND)                                                              \
    X(INDEX_POOL_GATE, PROJECT, ATTEND)                                                            \
    X(STREAM_ROWS, NORM, EXPERTS)                                                                  \
    X(STREAM_NORMED, NORM, EXPERTS)                                                                \
    X(STREAM_MIX, NORM, EXPERTS)                                                                   \
    X(STREAM_PRE, NORM, EXPERTS)                                                                   \
    X(STREAM_POST, NORM, EXPERTS) /* the halves of a step take turns */                            \
    X(STREAM_COMB, NORM, EXPERTS)                                                                  \
    X(K_NARROW, PROJECT, PROJECT)                                                                  \
    X(V_NARROW, PROJECT, PROJECT)                                                                  \
    X(Q_WIDE, PROJECT, ATTEND)                                                                     \
    X(O_WIDE, PROJECT, OUTPUT)                                                                     \
    X(ATTENDED, PROJECT, OUTPUT)                                                                   \
    X(GATE, INNER, DOWN)                                                                           \
    X(INNER_CODES, INNER, DOWN)                                                                    \
    X(INNER_SUMS, INNER, DOWN)                                                                     \
    X(UP, INNER, DOWN)                                                                             \
    X(MIX, INNER, EXPERTS)                                                                         \
    X(SHARED, INNER, EXPERTS)                                                                      \
    X(SHORTCUT, NORM, EXPERTS) /* the next layer reads it */                                       \
    X(ROUTED, INNER, EXPERTS)

/* Bytes of TILE_PARTS: enough for some thousand positions of a row, so that threads rarely
 * synchronize. */
enum { WORKSPACE_TILE_PARTS_BYTES = 1 << 20 };

/* Columns of an FFN's inner row that share an f32 partial of its norm's sum of squares. Every
 * rank's part begins at a multiple, because columns are cut between leaves, quantization groups or
 * panels. */
enum { WORKSPACE_INNER_UNIT = 16 };

enum workspace_step {
    WORKSPACE_STEP_NORM,
    WORKSPACE_STEP_PROJECT,
    WORKSPACE_STEP_ATTEND,
    WORKSPACE_STEP_OUTPUT, /* o_proj and its sum */
    WORKSPACE_STEP_INNER,  /* norm, gate and up */
    WORKSPACE_STEP_DOWN,
    WORKSPACE_STEP_EXPERTS,
};

enum workspace_array {
#define X(name, first, last) WORKSPACE_##name,
    WORKSPACE_ARRAYS(X)
#undef X
        WORKSPACE_COUNT
};

/* The size of each array: per_row elements of 4 bytes for each of n_rows rows, plus `bytes` bytes
 * for all rows together (quantized rows are not whole elements). Both 0: the model has no such
 * array. */
struct workspace_shape {
    uint64_t n_rows;
    uint64_t per_row[WORKSPACE_COUNT], bytes[WORKSPACE_COUNT];
    /* inputs of the widest rows whose quantized values are in CODES and in INNER_CODES. The caller
     * adds the bytes of these two arrays: a plan counts the formats of the weights, a stage all
     * formats that an op may ask for */
    uint64_t code_inputs, inner_code_inputs;
    bool keeps_shared; /* workspace_keeps_shared */
};

/* The sizes of sparse attention's arrays. It handles a part of a step's rows at a time. All 0: the
 * model has no sparse attention. */
struct workspace_index {
    uint64_t n_scores;                 /* elements of INDEX_SCORES */
    uint64_t n_gather, gathered_bytes; /* rows in INDEX_GATHERED; the bytes of that array with
                                          the widest cache type */
    uint64_t n_tiles;                  /* KV blocks that one row's chosen positions fill; in
                                          compressed attention, its window and entries; with blocks
                                          those of one KV head */
    uint64_t n_key_tiles;              /* blocks that a sequence's index keys of entries fill */
};

/* Local. Returns the sizes of sparse attention's arrays for steps of n_rows rows. */
struct workspace_index workspace_index_of(const struct arch *m, uint64_t n_rows);

/* Local. Returns `all` for rows that attend to at most n_seen (1 or more) positions or entries:
 * fewer tiles for each row, and so more rows in the same memory. */
struct workspace_index workspace_index_seen(struct workspace_index all, uint64_t n_seen);

/* Local. Returns the sizes of a stage's arrays on a place, for steps of n_rows rows. The only
 * computation of these sizes: model/stage.c allocates by it, layout_memory_of plans by it. */
struct workspace_shape workspace_shape_of(const struct layout *l, struct layout_place place,
                                          uint64_t n_rows);

/* Local. True when the output of the shared experts needs an array of its own throughout a layer,
 * because the two halves of a step take turns. */
bool workspace_keeps_shared(const struct layout *l);

struct workspace_place {
    uint64_t offset[WORKSPACE_COUNT];
    uint64_t n_bytes; /* UINT64_MAX: the sum overflows */
};

/* Local. Places the arrays. Arrays that are used in different steps of a layer share memory
 * (base/lifetimes.h). */
struct workspace_place workspace_place(const struct workspace_shape *shape);

#endif
