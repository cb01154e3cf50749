/* The server as the lead's port (serve/lead/lead_port.h): turns calls into requests, and sends
 * answers back to the connections that wait for them. Called by job_open.c and job.c. */
#ifndef SHOAL_SERVE_HTTP_HTTP_PORT_H
#define SHOAL_SERVE_HTTP_HTTP_PORT_H

#include "base/team.h"
#include "serve/http/http_flags.h"
#include "serve/lead/lead_port.h"

struct http_port;
struct file_claims;

/* Everything is borrowed. adapters, batch_endpoints and claims outlive the port. */
struct http_port_options {
    const struct http_flags *flags;
    const char *model_path;
    const struct request_adapter *adapters; /* [n_adapters]; a call may name one as its model */
    size_t n_adapters;
    const char *settings;               /* all flags that change the bytes of an answer, for the
                                           journals of batches */
    const char *const *batch_endpoints; /* the endpoints that a batch may name, NULL at the end */
    struct file_claims *claims;
};

/* Local. Binds the address and claims --batch-dir; nothing is served before http_port_start. The
 * model is named after its file, without ".h5". Errors: http_server_create's, batches_create's,
 * STATUS_USAGE if an adapter has the model's name. */
struct status http_port_create(const struct http_port_options *o, struct http_port **out);

/* Local. Begins to serve; call it after lead_start. The HTTP thread may run on all cores of the
 * team, even if each thread of the team is bound to one core; team NULL: on the caller's cores.
 * Errors: STATUS_IO, STATUS_MEMORY. */
struct status http_port_start(struct http_port *p, struct team *team);

/* Local. Destroys the port; call it after lead_destroy. Accepts NULL. */
void http_port_destroy(struct http_port **p);

/* Local. Returns the functions for lead_options.port. */
struct lead_port http_port_of(struct http_port *p);

#endif
