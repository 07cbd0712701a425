/* SPDX-License-Identifier: Apache-2.0 */
/*
 * variant_list.h - the --variants option of the commands that measure quality. One thread.
 */
#ifndef TOOLS_VARIANT_LIST_H
#define TOOLS_VARIANT_LIST_H

#include "estimator/quality/quality_profile.h"

/* Reads names with blanks or ';' between them; NULL: the usual ones, or the few of --quick.
 * KVT_OK; KVT_E_ARGUMENT (a name that is none, or more than capacity; the message says which);
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status command_parse_variants(const char *list, bool quick,
                                                quality_variant *variants, uint32_t capacity,
                                                uint32_t *count_out, char *message,
                                                size_t message_size);

/* "unknown variant 'x'", with the usual one that is near. */
void command_unknown_variant(const char *name, char *message, size_t message_size);

#endif
