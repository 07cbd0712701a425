/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_dumps.h - the report of `kvterrace profile attention`. One thread.
 */
#ifndef TOOLS_PROFILE_DUMPS_H
#define TOOLS_PROFILE_DUMPS_H

#include "estimator/quality/quality_dumps.h"

#include <stdio.h>

/* Tables, or one JSON document. False when memory is short; whether `out` took it is checked by the
 * caller. */
void profile_dumps_print(FILE *out, const quality_dumps_report *report,
                         const quality_dumps_options *options);
bool profile_dumps_print_json(FILE *out, const quality_dumps_report *report,
                              const quality_dumps_options *options);

#endif
