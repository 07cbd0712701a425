/* SPDX-License-Identifier: Apache-2.0 */
/*
 * results_reuse.h - what the engine had learned of reuse, and its explanations of single blocks,
 * as text and as JSON; private to the room. Any thread.
 */
#ifndef REPLAY_RESULTS_REUSE_H
#define REPLAY_RESULTS_REUSE_H

#include "replay.h"

#include <jansson.h>

/* {"uses", "half_life_s": [6], "count": [6], "last": [6], "again": [6]}; null when the policy has
 * learned nothing. NULL without memory. */
json_t *results_reuse_json(const kvt_reuse_weights *reuse);

/* A row for each explained block of a result. NULL without memory. */
json_t *results_explained_json(const replay_result *result);

/* One line for each run that learned, and one for each explained block. */
void results_reuse_text(const replay_report *report, FILE *file);

#endif
