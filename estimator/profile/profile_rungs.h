/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_rungs.h - the rungs of a calibration, for those who store by them: unlike
 * kvt_profile_ladder by layout first, and for what was calibrated alone. Thread rule: as profile.h
 * says.
 */
#ifndef ESTIMATOR_PROFILE_RUNGS_H
#define ESTIMATOR_PROFILE_RUNGS_H

#include "profile.h"

/*
 * The accepted rungs of the newest calibration of a model with the layout's layers, KV heads and
 * head_dim, by falling size. Forms that drop tokens are among them only where the layout lets them;
 * of more rungs than capacity those are left out that lie closest to their neighbours, never the
 * first or the last.
 *   layout       layers, kv_heads, head_dim, dtype and tokens_may_drop are looked at
 *   model        by name, and class_name: of the texts that it was calibrated on; NULL: any
 *   curves       capacity of them, at least 2; speeds are 0 where the profile has none
 *   message      one line for a person on failure: what is there instead, and what differs
 * KVT_OK; KVT_MISS (no calibration at all); KVT_E_MISMATCH (of another layout, model or class);
 * KVT_E_ARGUMENT (the layout is not sound, or opaque); KVT_E_DATABASE; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status profile_rungs_read(kvt_profile *profile, const kvt_layout *layout,
                                            const char *model, const char *class_name,
                                            kvt_codec_curve *curves, uint32_t capacity,
                                            uint32_t *count_out, char *message,
                                            size_t message_size);

#endif
