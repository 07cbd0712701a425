/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless_bytes.h - codec 2, mode dense, for bytes without exponents: opaque segments, and fp8
 * segments of 0.2.0, which are read alone.
 *
 * Stored: runs of 256 KiB of the segment, the last one shorter, each as
 *
 *   | word, u32 | bytes |      word: bit 31 = one zstd frame, bits 30..0 = its stored bytes;
 *                                    else the run itself
 *
 * zstd searches for matches. All parameters are explicit, so that they do not change with the
 * library. Contexts live in the caller's scratch, aligned to 64. Re-entrant.
 */
#ifndef CODECS_LOSSLESS_BYTES_H
#define CODECS_LOSSLESS_BYTES_H

#include "view_rows.h"

uint64_t lossless_bytes_scratch(uint64_t bytes);

/* KVT_OK; KVT_RAW when the bytes would not shrink; KVT_E_SPACE past capacity; KVT_E_UNSUPPORTED
 * when zstd refuses to work. */
kvt_status lossless_bytes_encode(const void *source, uint64_t bytes, void *target,
                                 uint64_t capacity, void *scratch, uint64_t *written_out);

/* Decodes into exactly the target's bytes. KVT_OK, KVT_E_CORRUPT, KVT_E_UNSUPPORTED as above. */
kvt_status lossless_bytes_decode(const void *source, uint64_t bytes, const view_rows *target,
                                 void *scratch);

#endif
