/* The settings of a journal, "name=value" lines of all that changes a row's bytes, against those of
 * a run. Called by journal.c before it resumes, and by an audit. */
#ifndef SHOAL_SERVE_JOURNAL_JOURNAL_SETTINGS_H
#define SHOAL_SERVE_JOURNAL_JOURNAL_SETTINGS_H

#include "base/status.h"

/* Local. `was` stands in the journal `path`, `is` are this run's; `remedy` ends the sentence
 * ("resume with the same"). Errors: the first setting that differs, STATUS_USAGE for a flag,
 * STATUS_INPUT for what is none (the checkpoint), and for settings that this version of shoal does
 * not know. */
struct status journal_settings_check(const char *path, const char *was, const char *is,
                                     const char *remedy);

#endif
