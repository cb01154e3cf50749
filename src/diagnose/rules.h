/* The findings: each rule looks at the facts of one host, names a fault in a sentence, and gives a
 * remedy. Pure functions. */
#ifndef SHOAL_DIAGNOSE_RULES_H
#define SHOAL_DIAGNOSE_RULES_H

#include "base/strbuf.h"
#include "diagnose/facts.h"

/* PROBLEM costs much of the speed or ends jobs; HINT may be intended. */
enum finding_kind { FINDING_PROBLEM, FINDING_HINT };

struct finding {
    enum finding_kind kind;
    const char *rule; /* "cores-shared"; the name in docs/diagnose.md */
    char host[FACTS_NAME_BYTES];
    char text[400], remedy[400];
};

enum { FINDINGS_MAX = 1024 };

/* Local. Applies every rule to every host, rule by rule. Returns the number of findings, at most
 * `most`. */
size_t rules_apply(const struct facts *f, struct finding *out, size_t most);

/* Local. Return the number of rules, and the name of each, for tests and for docs/diagnose.md. */
size_t rules_count(void);
const char *rules_name(size_t i);

#endif
