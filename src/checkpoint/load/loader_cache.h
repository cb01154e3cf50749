/* How the loader uses the system's file cache. */
#ifndef SHOAL_CHECKPOINT_LOAD_LOADER_CACHE_H
#define SHOAL_CHECKPOINT_LOAD_LOADER_CACHE_H

/* Whether blocks are read through the system's file cache. AUTO bypasses it when the file is not
 * cached yet and the host's free memory is less than twice the bytes that the host reads (once for
 * the weights, once for the cache): the cache would take memory from the weights and then evict
 * most of these bytes again. If free memory is unknown, AUTO means ON. The choice changes neither
 * bytes nor errors. */
enum loader_cache { LOADER_CACHE_AUTO, LOADER_CACHE_ON, LOADER_CACHE_OFF };
#define LOADER_CACHE_WORDS                                                                         \
    {"auto", LOADER_CACHE_AUTO}, {"on", LOADER_CACHE_ON},                                          \
    {                                                                                              \
        "off", LOADER_CACHE_OFF                                                                    \
    }

#endif
