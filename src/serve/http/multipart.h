/* Finds the parts of a multipart/form-data body (RFC 7578) that is in memory. */
#ifndef SHOAL_SERVE_HTTP_MULTIPART_H
#define SHOAL_SERVE_HTTP_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

struct multipart {
    const char *body; /* [n], borrowed */
    size_t n;
    char border[80]; /* "--" and the boundary; [n_border] */
    size_t n_border;
};

/* A part of a body; the pointers point into the body. */
struct multipart_part {
    const char *name, *file_name, *data; /* file_name NULL: none */
    size_t n_name, n_file_name, n;
};

/* Local. Takes the boundary from the Content-Type. False: it is not multipart/form-data, or has no
 * boundary of 1 to 70 characters. */
bool multipart_init(struct multipart *m, const char *content_type, const char *body, size_t n);

/* Local. Finds the next part from byte *at on; *at is 0 at first, and moves past the part. False:
 * there is no further whole part, or the next one has no name. */
bool multipart_next(const struct multipart *m, size_t *at, struct multipart_part *part);

#endif
