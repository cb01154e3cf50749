/* The flags of devices (options/flags.h says how to read a row). Only --device,
 * --exact-across-devices and --fast-reductions change bytes; a journal keeps their effect as
 * "sums=" (device_sums). */
#ifndef SHOAL_KERNELS_DEVICE_FLAGS_H
#define SHOAL_KERNELS_DEVICE_FLAGS_H

#include "options/flags.h"

enum device_kind { DEVICE_CPU, DEVICE_CUDA };
#define DEVICE_WORDS                                                                               \
    {"cpu", DEVICE_CPU},                                                                           \
    {                                                                                              \
        "cuda", DEVICE_CUDA                                                                        \
    }

/* How arrays in device memory travel between ranks. */
enum device_way {
    DEVICE_WAY_AUTO,   /* by NCCL over the axes where NCCL works, else through host memory */
    DEVICE_WAY_STAGED, /* always through host memory */
    DEVICE_WAY_NCCL,   /* by NCCL; an axis where NCCL does not work is an error */
};
#define DEVICE_WAY_WORDS                                                                           \
    {"auto", DEVICE_WAY_AUTO}, {"nccl", DEVICE_WAY_NCCL},                                          \
    {                                                                                              \
        "staged", DEVICE_WAY_STAGED                                                                \
    }

/* device-overlap: both halves read the weights, so each half must still have enough rows, a few
 * hundred, for a GPU to take longer for the products than for reading the weights. Estimated, not
 * measured. */
#define DEVICE_FLAGS(FLAG)                                                                         \
    FLAG(enum device_kind, device, "device", OF_CHOICE(DEVICE_WORDS), .preset = "cpu",             \
         .commands = IN_JOBS | IN_BENCH,                                                           \
         .help = "cuda: each rank uses one GPU; several ranks may share it")                       \
    FLAG(bool, exact_across_devices, "exact-across-devices", OF_SWITCH,                            \
         .commands = IN_JOBS | IN_BENCH,                                                           \
         .help = "with --device cuda: results have the same bytes as on the CPU; slower, because " \
                 "no library may add")                                                             \
    FLAG(bool, fast_reductions, "fast-reductions", OF_SWITCH, .commands = IN_JOBS | IN_BENCH,      \
         .help = "with --device cuda: libraries may add in any order (never in TF32), so the "     \
                 "bytes depend on batch and layout")                                               \
    FLAG(bool, no_graphs, "no-device-graphs", OF_SWITCH, .commands = IN_JOBS | IN_BENCH,           \
         .help = "launch each kernel by itself instead of replaying steps of one shape as "        \
                 "graphs; results are the same")                                                   \
    FLAG(enum device_way, way, "device-comm", OF_CHOICE(DEVICE_WAY_WORDS), .preset = "auto",       \
         .commands = IN_JOBS | IN_BENCH,                                                           \
         .help = "how GPUs exchange data: NCCL where every rank has a GPU of its own, else "       \
                 "staged through host memory and MPI; nccl is an error where it cannot be used")   \
    FLAG(uint32_t, overlap_rows, "device-overlap", OF_COUNT(1, 1 << 30, "ROWS"), .preset = "1024", \
         .commands = IN_JOBS | IN_BENCH,                                                           \
         .help = "steps of at least this many rows go in two halves: one computes while NCCL "     \
                 "adds the other's sums; a large number: never; results are the same")             \
    FLAG(uint64_t, parts_bytes, "device-parts", OF_UNITS(1024, 1, 1 << 20, "KIB"),                 \
         .preset = "1024", .commands = IN_JOBS | IN_BENCH,                                         \
         .help = "NCCL adds sums of at least this many KiB in parts; results are the same")

struct device_flags {
    DEVICE_FLAGS(FLAG_FIELD)
};

#endif
