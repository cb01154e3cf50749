/* The order in which linears of many rows read the weights, one slice of the inputs (K-slice) after
 * another, and the copy of the rows' inputs. Included by linear_body.h only. */
#ifndef SHOAL_KERNELS_LINEAR_WALK_H
#define SHOAL_KERNELS_LINEAR_WALK_H

/* Rows whose inputs lie a multiple of 4 KiB apart push each other out of the first-level cache,
 * which costs an eighth of a prompt's speed on Zen 3. With GROUP_TILES > 1, a K-slice's inputs of
 * such rows are copied once for each group of panels (packed tiles), to rows that are a cache line
 * further apart than they are long. While a row is copied, the third row after it is prefetched. */
enum {
    APART_FLOATS = 1024, /* inputs of 4 KiB */
    COPY_STRIDE = PIECE * MANY_PANELS + LINE_FLOATS,
    COPY_FLOATS = GROUP_TILES > 1 ? COPY_ROWS *COPY_STRIDE : 1,
    GROUP_ROWS = GROUP_TILES * COPY_ROWS,
    MOST_CHAINS = MANY_PANELS * (GROUP_ROWS > BLOCK_ROWS ? GROUP_ROWS : BLOCK_ROWS),
};

ALWAYS_INLINE bool copies_inputs(size_t x_stride)
{
    return GROUP_TILES > 1 && x_stride % APART_FLOATS == 0;
}

/* Returns the most inputs of a K-slice of n_panels panels; the scratch memory holds PIECE inputs of
 * MANY_PANELS panels. */
ALWAYS_INLINE size_t piece_length(size_t n_panels, size_t n_rows)
{
    const bool is_short = n_rows > FEW_ROWS && n_rows < MANY_ROWS;
    return (size_t)(is_short ? SHORT_PIECE : PIECE) * MANY_PANELS / n_panels;
}

/* The start of a K-slice: the first panel of its group, its own first panel, its first input. */
struct place {
    size_t group, panel, k;
};

/* A K-slice: inputs [k, k + n_k) of the n_panels panels from `panel` on. A K-slice never crosses
 * the end of a leaf (K-block). Panels are walked in groups of GROUP_TILES * n_panels (n_panels
 * if inputs are not copied): the same inputs of all its panels, then the next inputs, to the end
 * of K; then the next group.
 *
 *              group 0    group 1      numbers: the order of the K-slices
 *     k 0      0  1  2    6  7
 *     k 256    3  4  5    8  9 */
struct piece {
    size_t group, panel, k, n_k;
    bool begins, ends; /* whether it is the first, the last K-slice of its leaf */
};

ALWAYS_INLINE struct piece piece_at(const struct slice *s, bool leafy, size_t n_panels,
                                    struct place at)
{
    const struct packed *w = s->w;
    if (w->n_in == 0) return (struct piece){at.group, at.panel, 0, 0, true, true};
    const size_t leaf = leaf_length(w, leafy), in_leaf = at.k % leaf;
    const size_t left = min_size(leaf - in_leaf, w->n_in - at.k);
    const size_t n_k = min_size(left, piece_length(n_panels, s->n_rows));
    return (struct piece){at.group, at.panel, at.k, n_k, in_leaf == 0, n_k == left};
}

/* Returns the K-slice after p. After the last one, an empty slice. */
ALWAYS_INLINE struct piece piece_after(const struct slice *s, bool leafy, size_t n_panels,
                                       const struct piece *p)
{
    const size_t next = p->panel + n_panels, k = p->k + p->n_k, panel1 = s->panel1;
    const size_t n_tiles = copies_inputs(s->x_stride) ? GROUP_TILES : 1;
    const size_t group1 = min_size(p->group + n_tiles * n_panels, panel1);
    struct place at = {next, next, 0};
    if (next > panel1) return *p;
    if (next + n_panels <= group1)
        at = (struct place){p->group, next, p->k};
    else if (k < s->w->n_in)
        at = (struct place){p->group, p->group, k};
    if (at.panel + n_panels > panel1) return (struct piece){.panel = panel1};
    return piece_at(s, leafy, n_panels, at);
}

/* Copies the inputs of a K-slice, all rows. */
static void copy_inputs(const struct slice *s, const struct piece *p, float *to)
{
    const float *from = s->x + p->k;
    for (size_t r = 0; r < s->n_rows; r++, from += s->x_stride, to += COPY_STRIDE) {
        const float *ahead = from + ROWS_TOGETHER * s->x_stride;
        for (size_t k = 0; k < p->n_k; k += LINE_FLOATS)
            _mm_prefetch((const char *)(ahead + k), _MM_HINT_T0);
        memcpy(to, from, p->n_k * sizeof *to);
    }
}

#endif
