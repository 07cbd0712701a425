/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ledger.h - moves in flight, and the bytes of each tier. Thread rule: the caller's lock.
 */
#ifndef POLICY_LEDGER_H
#define POLICY_LEDGER_H

#include "policy/units.h"

#include <stdbool.h>

/* One move in flight; the entry holds its from_bytes. id 0 marks a free slot. The source bytes are
 * the entry's own until the move ends, so they are not repeated here. kept is at most either end's
 * bytes: what stays in place is counted once. */
typedef struct move_in_flight {
    uint64_t id;
    uint64_t to_bytes[TIERS];
    uint64_t kept[TIERS]; /* of both ends, in place */
    uint32_t entry;
    uint8_t kind;
    uint8_t from;
    uint8_t to;
} move_in_flight;

/*
 * A move is in flight from ledger_begin to ledger_end. Begin reserves the target bytes, end
 * releases the source (done) or the target (not done). ledger_correct puts the bytes right that
 * were really stored, which the caller has found to fit.
 */
/* reserve makes room for so many moves beside those in flight and is the one call that can fail.
 * find returns NULL for an id that has ended. fits says whether bytes fit beside all that is stored
 * and reserved. */
bool ledger_reserve(kvt_policy *policy, uint32_t moves);
move_in_flight *ledger_find(kvt_policy *policy, uint64_t id);
move_in_flight *ledger_begin(kvt_policy *policy, uint32_t index, uint8_t to);
void ledger_correct(kvt_policy *policy, move_in_flight *move, const uint64_t actual[TIERS]);
void ledger_end(kvt_policy *policy, move_in_flight *move, bool done);
bool ledger_fits(const kvt_policy *policy, const uint64_t bytes[TIERS]);

#endif
