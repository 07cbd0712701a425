/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.h - what the record at an entry's place must be, and the end of places.
 *
 * Thread rule: the store's lock is held where a function says so.
 */
#ifndef STORE_PLACE_H
#define STORE_PLACE_H

#include "codecs/record.h"
#include "store/core/entry.h"

/* What a decoder of the record at an entry's place is told, wherever the record is decoded: key,
 * generation, and the basis of its form. The basis stays while the caller is a reader. Any thread.
 */
kvt_record_spec place_expects(const kvt_store *store, const kvt_key *key, const store_place *place);

/* Looks at every checksum of a record, its key and its generation. KVT_OK; KVT_E_CORRUPT: its bytes
 * are damaged, or another record's; KVT_E_VERSION: they are sound, and a later library's. */
kvt_status place_check(const kvt_record_spec *expected, const void *record, uint64_t bytes);

/*
 * Why a record could not be decoded: KVT_E_CORRUPT says that place_check found its bytes damaged,
 * and nothing else says so. KVT_E_MISMATCH: it is sound, and its basis was not given. All other
 * statuses are of the caller's making too.
 */
kvt_status place_judge(const kvt_record_spec *expected, const void *record, uint64_t bytes,
                       kvt_status failure);

/* Whether a place has units on a member in the mask. */
bool place_touches(const store_place *place, uint64_t members);

/* Hands a place without readers back: deletes row, extents and the place itself. Lock held. */
void place_release(kvt_store *store, store_place *place);

/* Gives a place back that is no longer an entry's: at once, or by its last reader. Lock held. */
void place_drain(kvt_store *store, store_place *place);

/* A reader of a place ends; the place may be gone afterwards. Lock held. */
void place_leave(kvt_store *store, store_place *place);

#endif
