/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_offer.h - the offer of one entry to the policy (store_offer.c).
 *
 * Thread rule: under the control lock.
 */
#ifndef STORE_OFFER_H
#define STORE_OFFER_H

#include "store/core/store.h"

/* Builds the offer of an entry to the policy: options holds KVT_OPTIONS_MAX, offer_out names them.
 * Lock held. */
KVT_NODISCARD kvt_status store_offer(const kvt_store *store, const store_entry *entry,
                                     kvt_option *options, kvt_policy_entry *offer_out);

/* The same at other figures than the present ones, and with one variant's measured size, or NULL.
 */
KVT_NODISCARD kvt_status store_offer_at(const kvt_store *store, const kvt_cost_model *figures,
                                        const store_entry *entry, const kvt_known_size *measured,
                                        kvt_option *options, kvt_policy_entry *offer_out);

/* The facts that an offer at adoption is made of, but for the handles of entry and parent; and the
 * offer itself, which holds for further entries with the same facts until a figure of the store
 * changes. */
typedef struct store_offer_facts {
    const entry_kind *kind;
    uint64_t record_bytes;
    kvt_variant variant;
    float recompute_seconds;
    uint32_t first_position;
    uint32_t request_tokens;
    uint16_t class_id;
    uint8_t tenant;
    uint8_t tier; /* kvt_tier; KVT_TIER_NONE: of no offer */
} store_offer_facts;
typedef struct store_offer_kept {
    store_offer_facts facts;
    kvt_policy_entry offer;
    kvt_option options[KVT_OPTIONS_MAX];
    uint8_t option; /* of the record */
} store_offer_kept;

/* Hands an entry that is stored in a tier to the policy, with the kept offer where its facts are
 * the entry's, else with a new one, which is kept; NULL: none is. Lock held. KVT_OK;
 * KVT_E_UNSUPPORTED (a variant that this store does not keep); KVT_E_SPACE; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status store_adopt(kvt_store *store, const store_entry *entry, kvt_tier tier,
                                     kvt_variant variant, uint64_t record_bytes,
                                     store_offer_kept *kept);

/* The same of the record at a place, which is stored whether the policy has room for it or not:
 * without room in the SSD tier the policy's capacity is passed until the background has made some,
 * as after a recovery. Lock held. Statuses as there. */
KVT_NODISCARD kvt_status store_adopt_place(kvt_store *store, const store_entry *entry,
                                           const store_place *place);

/* Updates a stored entry's options: store_recost their seconds and losses, store_resize their
 * bytes. Lock held. */
void store_recost(kvt_store *store, store_entry *entry);
void store_resize(kvt_store *store, const store_entry *entry);

#endif
