/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_round_trip.h - one entry through a record and back: what it costs in bits and what it
 * does to the numbers. Measuring quality, the codecs bench and `kvterrace encode` all go through
 * here.
 *
 * Thread rule: one thread per round trip.
 */
#ifndef ESTIMATOR_QUALITY_ROUND_TRIP_H
#define ESTIMATOR_QUALITY_ROUND_TRIP_H

#include "codecs/record.h"
#include "estimator/model/model_score.h"

typedef struct quality_round_trip {
    kvt_layout layout; /* of the source */
    uint64_t source_bytes;
    uint64_t matrix_bytes;
    uint8_t *source;  /* the caller's to fill */
    uint8_t *decoded; /* as the source; rows of dropped tokens are zero */
    uint8_t *kept;    /* [layers][tokens], 0 where a token was dropped */
    bool dropped;     /* some token was */

    /* Of the last run. */
    uint8_t *record;
    kvt_record_info info;
    double nmse[2];    /* K, V: energy of the error over energy, of kept tokens; 0 for no energy */
    uint32_t *kept_at; /* [tokens] of work space */
    uint8_t *compact;  /* the decoded rows of kept tokens, one after the other */
    uint8_t *scratch;
    uint64_t record_capacity;
    uint64_t scratch_capacity;
} quality_round_trip;

/* KVT_OK; KVT_E_ARGUMENT (a layout that is not sound, or opaque); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_round_trip_open(const kvt_layout *layout,
                                                 quality_round_trip *round_trip);
void quality_round_trip_close(
    quality_round_trip *round_trip); /* also after open failed; zeroed is allowed */

/* The source encoded with the variant, decoded, and compared. merged: the codec is shown one wide
 * head instead of kv_heads, so that its groups of V run over the whole row. KVT_OK (also for what
 * fell back to raw); KVT_E_UNSUPPORTED (the layout is none for this variant); KVT_E_MEMORY;
 * KVT_E_CORRUPT (a record that does not decode, or an exact codec that was not). */
KVT_NODISCARD kvt_status quality_round_trip_run(quality_round_trip *round_trip, kvt_variant variant,
                                                bool merged);

/* Source and decoded KV as a probe of attention takes them; lives as long as the buffers of the
 * round trip. */
typedef struct quality_round_trip_kv {
    model_past exact, variant;
    void *memory;
} quality_round_trip_kv;

/* KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_round_trip_kv_open(const quality_round_trip *round_trip,
                                                    quality_round_trip_kv *kv);
void quality_round_trip_kv_close(quality_round_trip_kv *kv);

/* Room for at least `bytes`, aligned to a page and with its pages touched; what was there is lost.
 * KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_round_trip_room(uint8_t **memory, uint64_t *capacity,
                                                 uint64_t bytes);

/* The codec's name, or "drop" when the variant drops tokens first. */
const char *quality_variant_codec(kvt_variant variant);
bool quality_variant_drops(kvt_variant variant);

#endif
