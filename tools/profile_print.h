/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_print.h - a profile's document as text on stdout. One thread.
 */
#ifndef TOOLS_PROFILE_PRINT_H
#define TOOLS_PROFILE_PRINT_H

#include <kvterrace/types.h>

#include <jansson.h>

enum {
    PROFILE_PRINT_DEVICES = 1u << 0, /* with what loads and prefills take */
    PROFILE_PRINT_CODECS = 1u << 1,
    PROFILE_PRINT_QUALITY = 1u << 2, /* with calibrations and what was learned */
    PROFILE_PRINT_ALL = PROFILE_PRINT_DEVICES | PROFILE_PRINT_CODECS | PROFILE_PRINT_QUALITY
};

/* The tables of these parts that have rows. */
void profile_print_text(const json_t *document, unsigned parts);

/* The document itself. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status profile_print_json(const json_t *document);

#endif
