/* Functions of the emulated driver for the emulated NCCL (nccl_emulated.c). */
#ifndef SHOAL_TESTS_NCCL_EMULATED_H
#define SHOAL_TESTS_NCCL_EMULATED_H

#include <stddef.h>
#include <stdint.h>

/* Queues a call on the stream. As on a device, everything up to the call then runs by itself, on a
 * thread. `arg` belongs to the call. */
int emulated_call(void *stream, void (*run)(void *arg), void *arg);

/* From now on the device is lost. */
void emulated_lose(void);

/* For calls: copy bytes from and to device memory. */
void emulated_read(void *to, const void *from, size_t n_bytes);
void emulated_write(void *to, const void *from, size_t n_bytes);

/* The number after a word of SHOAL_EMULATED ("nccl_silent="); 0 if it is missing. */
uint64_t emulated_word(const char *name);

#endif
