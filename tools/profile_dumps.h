/*
 * profile_dumps.h - `kvterrace profile quality` on KV dumps, and making dumps. One thread.
 */
#ifndef TOOLS_PROFILE_DUMPS_H
#define TOOLS_PROFILE_DUMPS_H

#include "estimator/quality_dumps.h"

#include <stdio.h>

/* Whether the words ask for dumps: --kv or --write-dumps. */
bool command_wants_dumps(int argc, char **argv);

int command_profile_dumps(int argc, char **argv);

/* Tables, or one JSON document. False when memory is short; whether `out` took it is checked by the
 * caller. */
void profile_dumps_print(FILE *out, const quality_dumps_report *report,
                         const quality_dumps_options *options);
bool profile_dumps_print_json(FILE *out, const quality_dumps_report *report,
                              const quality_dumps_options *options);

#endif
