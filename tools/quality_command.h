/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_command.h - the report of `kvterrace profile quality`. One thread.
 */
#ifndef TOOLS_QUALITY_COMMAND_H
#define TOOLS_QUALITY_COMMAND_H

#include "estimator/quality/quality_profile.h"

#include <stdio.h>

/* Tables, or one JSON document. False when memory is short; whether `out` took it is checked by the
 * caller. */
void profile_quality_print(FILE *out, const quality_report *report,
                           const quality_profile_options *options);
bool profile_quality_print_json(FILE *out, const quality_report *report,
                                const quality_profile_options *options);

#endif
