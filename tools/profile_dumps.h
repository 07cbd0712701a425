/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_dumps.h - `kvterrace profile quality` on KV dumps, and making dumps. One thread.
 */
#ifndef TOOLS_PROFILE_DUMPS_H
#define TOOLS_PROFILE_DUMPS_H

#include "estimator/quality/quality_dumps.h"

#include <stdio.h>

/* Whether one of the words is this option, with an argument behind '=' or not. */
bool command_has_word(int argc, char **argv, const char *word);

/* profile quality with --kv or --write-dumps, and with --mixed. */
int command_profile_dumps(int argc, char **argv);
int command_profile_mixed(int argc, char **argv);

/* Tables, or one JSON document. False when memory is short; whether `out` took it is checked by the
 * caller. */
void profile_dumps_print(FILE *out, const quality_dumps_report *report,
                         const quality_dumps_options *options);
bool profile_dumps_print_json(FILE *out, const quality_dumps_report *report,
                              const quality_dumps_options *options);

#endif
