/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_manage.h - what the commands of `kvterrace profile` on whole databases print.
 * One thread.
 */
#ifndef TOOLS_PROFILE_MANAGE_H
#define TOOLS_PROFILE_MANAGE_H

#include "estimator/profile/profile.h"

#include <jansson.h>
#include <stdio.h>

/* ---- profile_manage_print.c ---- */

/* Zeroed before an export. */
typedef struct manage_export {
    const char *table; /* of the last row */
    uint64_t rows;
    json_t *tables; /* of manage_print_json: an object of arrays */
    bool lost;      /* memory */
} manage_export;

bool manage_print_csv(void *context, const char *table, const kvt_profile_cell *cells,
                      size_t count);
bool manage_print_json(void *context, const char *table, const kvt_profile_cell *cells,
                       size_t count);

/* Prints and releases it; NULL is KVT_E_MEMORY. */
kvt_status manage_print_document(json_t *document);

/* As kvt_ladder_read_csv reads it. */
void manage_print_ladder(const kvt_codec_curve *curves, uint32_t count, const char *model,
                         const char *class_name, const char *path);

typedef struct manage_diff {
    double threshold;
    bool all;     /* text: what did not change as well */
    json_t *rows; /* NULL: text */
    uint64_t curves, different, printed;
    bool lost;
} manage_diff;

bool manage_print_change(void *context, const kvt_profile_change *change);

#endif
