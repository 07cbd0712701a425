/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token_drop.h - entries that may lose tokens: the scores of their puts, what a get has to bring to
 * be given fewer tokens, and records of such forms (docs/STORE.md, Token drop).
 *
 * Thread rule: as each function says; an entry's scores do not change after its put.
 */
#ifndef STORE_TOKEN_DROP_H
#define STORE_TOKEN_DROP_H

#include "codecs/codecs.h"
#include "store/core/executor_internal.h"
#include "store/read/access_get.h"

/* ---- scores ---- */

/* Checks a put's scores. KVT_OK, also without any; KVT_E_ARGUMENT. Any thread. */
KVT_NODISCARD kvt_status token_drop_check_scores(const kvt_entry *entry);

/* A copy of a put's scores, where the store has a use for them: *copy_out is NULL or freed by the
 * caller. KVT_OK; KVT_E_MEMORY. Any thread. */
KVT_NODISCARD kvt_status token_drop_copy_scores(const kvt_store *store, const kvt_entry *entry,
                                                float **copy_out);

/* Gives the copy to a new entry, and takes it back from one that is about to be erased. give:
 * KVT_OK; KVT_E_MEMORY, and the copy stays the caller's. Lock held. */
KVT_NODISCARD kvt_status token_drop_give_scores(store_entry *entry, float **copy);
void token_drop_take_scores(store_entry *entry, float **copy);

/* Whether variants by scores are the entry's: it has scores, or what is stored was made with them.
 * Lock held. */
static inline bool token_drop_is_scored(const store_entry *entry)
{
    if (entry->rare != NULL && entry->rare->scores != NULL) return true;
    return entry->place != NULL && codecs_drop_method(entry->place->variant) == KVT_DROP_SCORES;
}

/* ---- what calls see ---- */

/* Whether an entry counts nowhere where tokens are counted, whatever form it has now. */
static inline bool token_drop_is_uncounted(const store_entry *entry)
{
    return entry->kind->layout.tokens_may_drop != 0;
}

/* Takes what a caller's info asks for, or nothing of NULL, into a target. KVT_OK; KVT_E_ARGUMENT.
 * Any thread. */
KVT_NODISCARD kvt_status token_drop_ask(const kvt_get_info *info, access_target *target);

/* Says to a caller that has asked for it what its get was given. Any thread. */
static inline void token_drop_give(const access_target *target, uint32_t tokens, uint32_t sets)
{
    if (target->kept == NULL) return;
    target->kept->count = tokens;
    target->kept->sets = sets;
}

/* Whether keys of the layout turn as a target asks, whatever form is stored. KVT_OK;
 * KVT_E_UNSUPPORTED. Any thread. */
KVT_NODISCARD kvt_status token_drop_fits(const access_target *target, const kvt_layout *layout);

/* Whether a target takes a form. KVT_OK; KVT_REFUSED (it has dropped tokens, and the get did not
 * ask for such); KVT_E_ARGUMENT (there is too little room for their positions). Any thread. */
KVT_NODISCARD kvt_status token_drop_admits(const access_target *target, const kvt_layout *layout,
                                           kvt_variant variant);

/* ---- records ---- */

/* Whether kept keys are turned for a target, which the CPU does. */
static inline bool token_drop_turns(const access_target *target)
{
    return target->kept != NULL && target->kept->rope != NULL;
}

/* Finds how many tokens a get's record holds that has dropped some, and writes their positions
 * where the target asks for them. Sets the get's tokens and sets. No lock held. Statuses of
 * kvt_record_kept_tokens. */
KVT_NODISCARD kvt_status token_drop_list(access_get *get);

/* Decodes a get's record, which has dropped tokens, into the first rows of each matrix of its
 * target, and turns keys on where that asks for it; else as token_drop_list. Statuses of
 * kvt_record_decode_view, too; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status token_drop_decode(const kvt_store *store, access_get *get,
                                           const access_target *target, void *scratch,
                                           uint64_t scratch_bytes);

/* Encodes an operation's entry in a form that drops tokens, from a packed buffer; the statuses of
 * kvt_record_encode_parallel. No lock held. */
KVT_NODISCARD kvt_status token_drop_encode(store_op *op, const void *packed, void *target,
                                           uint64_t target_bytes, void *scratch,
                                           uint64_t scratch_bytes);

/* Decodes the record of an operation's source, which has dropped tokens, into a packed buffer: kept
 * rows at their tokens, zeros at the others. The statuses of kvt_record_decode_view. No lock held.
 */
KVT_NODISCARD kvt_status token_drop_restore(store_op *op, void *packed, void *scratch,
                                            uint64_t scratch_bytes);

#endif
