/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_stored.h - a layer of a record as it is stored: its segments, and whether they are sound,
 * for those who take them undecoded.
 *
 * Thread rule: re-entrant; no allocation.
 */
#ifndef CODECS_RECORD_STORED_H
#define CODECS_RECORD_STORED_H

#include "codecs/record.h"

#include <kvterrace/gpu.h>

/* The segments of a layer, K before V; of layers that are coded together those that they share come
 * with the first one. KVT_OK; KVT_E_ARGUMENT (no such layer); KVT_E_SPACE. */
KVT_NODISCARD kvt_status kvt_record_head_segments(const kvt_record_head *head, uint32_t layer,
                                                  kvt_load_segment *segments, uint32_t capacity,
                                                  uint32_t *count_out);

/* Verifies all segments of layers. Payload and ranges as of kvt_record_head_decode. KVT_OK;
 * KVT_E_CORRUPT. */
KVT_NODISCARD kvt_status kvt_record_head_verify(const kvt_record_head *head, uint32_t layer,
                                                uint32_t layer_count, const void *payload,
                                                const kvt_record_range *ranges, uint32_t count);

#endif
