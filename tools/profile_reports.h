/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_reports.h - what `kvterrace profile quality` and `attention` print: tables, or one
 * JSON document. One thread.
 */
#ifndef TOOLS_PROFILE_REPORTS_H
#define TOOLS_PROFILE_REPORTS_H

#include "estimator/quality/quality_dumps.h"
#include "estimator/quality/quality_profile.h"

#include <stdio.h>

/* False when memory is short; the caller checks whether `out` took it. */
void profile_quality_print(FILE *out, const quality_report *report,
                           const quality_profile_options *options);
bool profile_quality_print_json(FILE *out, const quality_report *report,
                                const quality_profile_options *options);
void profile_dumps_print(FILE *out, const quality_dumps_report *report,
                         const quality_dumps_options *options);
bool profile_dumps_print_json(FILE *out, const quality_dumps_report *report,
                              const quality_dumps_options *options);

#endif
