/* Graphs of the emulated driver: records work, changes it and launches it again. A graph is a list
 * of work; its nodes are numbered from 1. Called by the driver. */
#include "state_emulated.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int emulated_graph_begin(void *stream)
{
    (void)stream;
    emulated_not_recording();
    const int error = emulated_called();
    if (error != 0) return error;
    all.graph = calloc(1, sizeof *all.graph);
    if (all.graph == NULL) abort();
    return 0;
}

int emulated_graph_node(void *stream, void **node)
{
    (void)stream;
    assert(all.graph != NULL);
    *node = (void *)(uintptr_t)all.graph->n;
    return emulated_called();
}

int emulated_graph_destroy(void *graph)
{
    struct queue *g = graph;
    const struct stream *s = g->launched.stream;
    if (s != NULL && s->n_done < g->launched.at) abort(); /* the graph may still be running */
    free(g->work);
    free(g);
    return 0;
}

int emulated_graph_end(void *stream, void **graph)
{
    (void)stream;
    const int error = all.e.no_graphs > 0 ? EMULATED_NO_GRAPHS : emulated_called();
    *graph = all.graph;
    all.graph = NULL;
    if (error == 0) return 0;
    (void)emulated_graph_destroy(*graph);
    *graph = NULL;
    return error;
}

int emulated_graph_change(void *graph, void *node, enum cuda_kernel kernel, struct cuda_grid grid,
                          const void *args)
{
    struct queue *g = graph;
    const size_t i = (uintptr_t)node - 1;
    emulated_not_recording();
    if (!emulated_fits(grid)) abort();
    if (all.e.dry != 0) return emulated_called();
    assert(i < g->n && g->work[i].kind == WORK_LAUNCH && g->work[i].kernel == kernel);
    if (all.e.stale_graphs > 0) return emulated_called();
    g->work[i].grid = grid;
    memcpy(g->work[i].args, args, emulated_args_bytes[kernel]);
    return emulated_called();
}

int emulated_graph_launch(void *graph, void *stream)
{
    struct queue *g = graph;
    emulated_not_recording();
    const int error = emulated_called();
    if (error != 0) return error;
    pthread_mutex_lock(&emulated_lock);
    for (size_t i = 0; i < g->n; i++) emulated_put(stream, &g->work[i]);
    g->launched = emulated_all_of(stream);
    pthread_mutex_unlock(&emulated_lock);
    return 0;
}
