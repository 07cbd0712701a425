/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slot_sizes.h - the sizes of a tier's slots, from what its settings name.
 *
 * Any thread.
 */
#ifndef STORE_SLOT_SIZES_H
#define STORE_SLOT_SIZES_H

#include "tiers/pool/pool.h"

#include <kvterrace/types.h>

/*
 * Reads FORM@TOKENS and sizes, with commas between them, into classes in ascending order; two of
 * one size are one. A form's size is that of the record of an entry of `layout` with so many
 * tokens, which does not begin its sequence. KVT_OK (none for NULL); KVT_E_CONFIG, with a message;
 * KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status learn_slot_sizes(const char *text, const kvt_layout *layout,
                                          tiers_slot_size sizes[TIERS_SLOT_CLASSES_MAX],
                                          uint32_t *count_out, char *message, size_t message_size);

#endif
