/* The state of an open GGUF file, shared by gguf.c (opening, queries) and gguf_parse.c (reading the
 * header). */
#ifndef SHOAL_CHECKPOINT_CONVERT_GGUF_PRIVATE_H
#define SHOAL_CHECKPOINT_CONVERT_GGUF_PRIVATE_H

#include "base/strbuf.h"
#include "checkpoint/convert/gguf.h"

struct gguf_array {
    enum gguf_type type;
    uint64_t n;
    uint64_t *offsets;   /* owned [n + 1], strings only: offset of string i in `bytes` */
    struct strbuf bytes; /* strings, each followed by a NUL, or the elements as stored */
};

struct gguf_value {
    char *key; /* owned */
    enum gguf_type type;
    int64_t i;  /* integers and bool */
    bool huge;  /* i does not have the value: a u64 above int64, or a float */
    double f;   /* f32, f64 */
    char *text; /* owned: string */
    size_t n_text;
    struct gguf_array array;
};

struct gguf {
    char *path; /* owned */
    int fd;
    uint64_t n_bytes;          /* size of the file */
    struct gguf_value *values; /* owned [n_values] */
    size_t n_values, n_values_capacity;
    struct gguf_tensor *tensors; /* owned [n_tensors], names owned */
    size_t n_tensors, n_tensors_capacity;
    uint64_t data; /* offset of the tensors' bytes */
};

/* Local. Returns the bytes of a stored scalar; 0 for strings and arrays. */
unsigned gguf_type_bytes(enum gguf_type type);
/* Local. Sets *out to the integer of a stored scalar; false for floats and u64 above int64. */
bool gguf_scalar_int(enum gguf_type type, uint64_t raw, int64_t *out);

/* Local. Reads n bytes of the file at an offset. Errors: STATUS_INPUT. */
struct status gguf_file_read(const struct gguf *g, uint64_t offset, size_t n, void *out);
/* Local. Frees the memory that an array owns. */
void gguf_array_fini(struct gguf_array *a);
/* Local. Reads and checks everything before the tensors' data. The caller has set g's path, fd and
 * n_bytes. Errors: STATUS_INPUT names the file and what is wrong with it, STATUS_MEMORY. */
struct status gguf_parse(struct gguf *g);

#endif
