/* SPDX-License-Identifier: Apache-2.0 */
/*
 * variants.h - names of variants in options, and the kernels that a model runs on. One thread.
 */
#ifndef TOOLS_COMMAND_VARIANTS_H
#define TOOLS_COMMAND_VARIANTS_H

#include "estimator/quality/quality.h"

/* "unknown variant 'x'", with the usual one that is near. */
void command_unknown_variant(const char *name, char *message, size_t message_size);

/* Reads names with blanks or ';' between them; NULL: the usual ones, or the few of --quick.
 * KVT_OK; KVT_E_ARGUMENT (a name that is none, or more than capacity; the message says which);
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status command_parse_variants(const char *list, bool quick,
                                                quality_variant *variants, uint32_t capacity,
                                                uint32_t *count_out, char *message,
                                                size_t message_size);

/* Starts the command anew with OpenBLAS' kernels for this processor, when it chose those of an old
 * one because it does not know this one. Called before anything is opened. */
void command_choose_blas(void);

#endif
