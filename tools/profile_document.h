/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_document.h - a profile as one JSON document, which the text and the page are made from:
 * what one of them shows, both of them know. One thread.
 */
#ifndef TOOLS_PROFILE_DOCUMENT_H
#define TOOLS_PROFILE_DOCUMENT_H

#include "tools/command/command.h"

#include "estimator/profile/profile.h"
#include "replay/document.h"

#include <kvterrace/config.h>
#include <kvterrace/types.h>

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

/* An affine model of a device ("read", "write"); false when that was not measured. */
bool view_affine(const json_t *device, const char *key, kvt_affine *out);

/* Prints a document, which it releases: as JSON, or tables of it and then the sentences of its
 * "verdict", if it has one. Returns the exit code. */
int command_print_tables(const command_common *common, json_t *document,
                         const document_table *tables);

/* ---- profile_print.c: the document as text on stdout ---- */

enum {
    PROFILE_PRINT_DEVICES = 1u << 0, /* with what loads and prefills take */
    PROFILE_PRINT_CODECS = 1u << 1,
    PROFILE_PRINT_QUALITY = 1u << 2, /* with calibrations and what was learned */
    PROFILE_PRINT_ALL = PROFILE_PRINT_DEVICES | PROFILE_PRINT_CODECS | PROFILE_PRINT_QUALITY
};

/* The tables of these parts that have rows. */
void profile_print_text(json_t *document, unsigned parts);

/* ---- the profile that a command is about: profile_common.c ---- */

/* store.profile, or the usual name. */
const char *command_profile_path(kvt_config *config);

/* kvt_profile_open of command_profile_path with store.profile_foreign; a profile that is not there
 * is KVT_E_GONE. */
KVT_NODISCARD kvt_status command_profile_open(kvt_config *config, uint32_t flags,
                                              kvt_profile **profile_out, char *message,
                                              size_t message_size);

/* The profile at path for reading, of whatever host it is. */
KVT_NODISCARD kvt_status command_profile_look(const char *path, kvt_profile **profile_out,
                                              char *message, size_t message_size);

/* Opens the profile of a command that adds to it, and makes the file when it is not
 * there. Close it with command_profile_finish in every case. */
typedef struct command_profile {
    kvt_profile *profile;
    const char *path;
    bool made; /* it was not there before */
} command_profile;

KVT_NODISCARD kvt_status command_profile_begin(kvt_config *config, command_profile *out,
                                               char *message, size_t message_size);

/* Closes it. A profile that was made by a command that then failed is removed, unless a run is in
 * it already. Returns the code. */
int command_profile_finish(command_profile *profile, int code);

#endif
