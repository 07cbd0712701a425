/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_memory_copy.h - copies for the memory device that leave the caches to others.
 *
 * A copy of 256 KiB and more goes around the caches (non-temporal stores): bytes written to the
 * arena are not read soon, and a read brings more bytes than the next cache level holds beside
 * everything else. The C library does the same, but only above a large share of the last level,
 * which a request never reaches.
 *
 * Thread rule: pure functions; every copy is complete for other threads when it returns.
 */
#ifndef TIERS_DEVICE_MEMORY_COPY_H
#define TIERS_DEVICE_MEMORY_COPY_H

#include <kvterrace/types.h>

enum { MEMORY_STREAM_BYTES_MIN = 256 << 10 };

/* Copies bytes (a multiple of 64) between addresses that are multiples of 64, around the caches. */
typedef void memory_stream_copy(void *target, const void *source, size_t bytes);

/* The best one for this processor; NULL where there is none. */
memory_stream_copy *memory_stream_choose(void);

/* All that this processor can do, for tests; NULL past the end. */
memory_stream_copy *memory_stream_at(size_t index);

#endif
