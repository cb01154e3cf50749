/* The Mamba-2 scan on vectors of 16 lanes. The file that includes this has included its instruction
 * set's vec.h, and defines
 *     SCAN_VECTORS     vectors of columns in a tile
 *     SCAN_ROWS        rows that one pass over a state computes
 *
 * A row's update reads the state but no output of the rows before it, so a pass loads and stores
 * each element once for SCAN_ROWS rows:
 *
 *     for i:    S = S_i;    for r: S = k_ri d_r + decay_r S,  o_r += q_ri S;    S_i = S
 */
#ifndef SHOAL_KERNELS_SCAN_BODY_H
#define SHOAL_KERNELS_SCAN_BODY_H

/* As DELTA_UNROLL in delta_body.h. */
#ifdef __SANITIZE_ADDRESS__
#define SCAN_UNROLL
#else
#define SCAN_UNROLL _Pragma("GCC unroll 8")
#endif

enum { SCAN_LANES = 16 };

/* Computes n_rows rows, from row t on, in w vectors of columns from column j on. */
ALWAYS_INLINE void scan_rows(const struct state_run *r, size_t t, size_t n_rows, size_t j, size_t w)
{
    const float *q = r->q + t * r->key_stride, *k = r->k + t * r->key_stride;
    const float *v = r->v + t * r->value_stride + j;
    struct v16 decay[SCAN_ROWS], d[SCAN_ROWS][SCAN_VECTORS], o[SCAN_ROWS][SCAN_VECTORS];
    SCAN_UNROLL
    for (size_t a = 0; a < n_rows; a++) {
        decay[a] = v16_set1(r->decay[(t + a) * r->gate_stride]);
        const struct v16 beta = v16_set1(r->beta[(t + a) * r->gate_stride]);
        SCAN_UNROLL
        for (size_t c = 0; c < w; c++) {
            d[a][c] = v16_mul(v16_load(DTYPE_F32, v + a * r->value_stride, c * SCAN_LANES), beta);
            o[a][c] = v16_zero();
        }
    }
    for (size_t i = 0; i < r->key_dim; i++) {
        float *s = r->state + i * r->state_stride + j;
        struct v16 now[SCAN_VECTORS];
        SCAN_UNROLL
        for (size_t c = 0; c < w; c++) now[c] = v16_load(DTYPE_F32, s, c * SCAN_LANES);
        SCAN_UNROLL
        for (size_t a = 0; a < n_rows; a++) {
            const struct v16 ki = v16_set1(k[a * r->key_stride + i]);
            const struct v16 qi = v16_set1(q[a * r->key_stride + i]);
            SCAN_UNROLL
            for (size_t c = 0; c < w; c++) {
                now[c] = v16_madd(ki, d[a][c], v16_mul(decay[a], now[c]));
                o[a][c] = v16_madd(qi, now[c], o[a][c]);
            }
        }
        SCAN_UNROLL
        for (size_t c = 0; c < w; c++) v16_store(s + c * SCAN_LANES, now[c]);
    }
    const struct v16 skip = v16_set1(r->skip);
    SCAN_UNROLL
    for (size_t a = 0; a < n_rows; a++) {
        float *out = r->out + (t + a) * r->out_stride + j;
        SCAN_UNROLL
        for (size_t c = 0; c < w; c++) {
            const struct v16 x = v16_load(DTYPE_F32, v + a * r->value_stride, c * SCAN_LANES);
            v16_store(out + c * SCAN_LANES, v16_madd(skip, x, o[a][c]));
        }
    }
}

ALWAYS_INLINE void scan_tile(const struct state_run *r, size_t j, size_t w)
{
    size_t t = 0;
    for (; t + SCAN_ROWS <= r->n_rows; t += SCAN_ROWS) scan_rows(r, t, SCAN_ROWS, j, w);
    for (; t < r->n_rows; t++) scan_rows(r, t, 1, j, w);
}

/* Computes a single column, after the last whole vector. */
static void scan_one(const struct state_run *r, size_t j)
{
    for (size_t t = 0; t < r->n_rows; t++) {
        const float *q = r->q + t * r->key_stride, *k = r->k + t * r->key_stride;
        const float decay = r->decay[t * r->gate_stride], v = r->v[t * r->value_stride + j];
        const float d = v * r->beta[t * r->gate_stride];
        float *s = r->state + j, o = 0;
        for (size_t i = 0; i < r->key_dim; i++) {
            float *at = s + i * r->state_stride;
            *at = fmaf(k[i], d, decay * *at);
            o = fmaf(q[i], *at, o);
        }
        r->out[t * r->out_stride + j] = fmaf(r->skip, v, o);
    }
}

static void scan_all(const struct state_run *r)
{
    const size_t wide = SCAN_VECTORS * SCAN_LANES;
    size_t j = 0;
    for (; j + wide <= r->n; j += wide) scan_tile(r, j, SCAN_VECTORS);
    for (; j + SCAN_LANES <= r->n; j += SCAN_LANES) scan_tile(r, j, 1);
    for (; j < r->n; j++) scan_one(r, j);
}

#endif
