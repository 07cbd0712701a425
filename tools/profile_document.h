/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_document.h - a profile as one JSON document, which the text and the page are made from:
 * what one of them shows, both of them know. One thread.
 */
#ifndef TOOLS_PROFILE_DOCUMENT_H
#define TOOLS_PROFILE_DOCUMENT_H

#include "estimator/profile/profile.h"

#include <jansson.h>

typedef struct profile_view {
    const char *path;   /* of the database, for the reader */
    double token_bytes; /* of decoded KV; 0 = of each prefill's model */
} profile_view;

/*
 * Sections of a table that is empty are empty arrays. Release with json_decref. KVT_OK;
 * KVT_E_DATABASE; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status profile_document_make(kvt_profile *profile, const profile_view *view,
                                               json_t **document_out);

/* Whether a device was measured here while the machine was busy. */
bool profile_document_is_busy(const json_t *document);

/* Adds "break_even" and "load" to a document that has devices, codecs and prefill. KVT_OK;
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status profile_break_even_add(json_t *document);

/* A number of an object; `otherwise` when it is absent or null. */
double view_number(const json_t *object, const char *key, double otherwise);
/* A text of an object; "" when it is absent or null. */
const char *view_text(const json_t *object, const char *key);
/* An affine model of a device ("read", "write"); false when that was not measured. */
bool view_affine(const json_t *device, const char *key, kvt_affine *out);
/* A number as JSON; null when it is not finite. */
json_t *view_real(double value);
/* A text as JSON; "?" when it is not UTF-8, as names and command lines need not be. */
json_t *view_string(const char *text);
/* A cell of a table as JSON. */
json_t *view_cell(const kvt_profile_cell *cell);

#endif
