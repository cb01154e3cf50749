/* Functions of the emulated driver for the emulated NCCL (nccl_emulated.c). */
#ifndef SHOAL_TESTS_NCCL_EMULATED_H
#define SHOAL_TESTS_NCCL_EMULATED_H

#include <stddef.h>
#include <stdint.h>

/* Puts a call on the stream. As on a device, everything up to it runs by itself from now on, on a
 * thread of its own; `arg` is the callee's. */
int emulated_call(void *stream, void (*run)(void *arg), void *arg);

/* From now on the device is gone. */
void emulated_lose(void);

/* For calls: bytes of device memory out and in. */
void emulated_read(void *to, const void *from, size_t n_bytes);
void emulated_write(void *to, const void *from, size_t n_bytes);

/* The number behind a word of SHOAL_EMULATED ("nccl_silent="); 0 where there is none. */
uint64_t emulated_word(const char *name);

#endif
