/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_offer.h - a block of a workload as an entry that is offered to an engine; private to the
 * room. A live run puts blocks of the same layout, so its store offers the same.
 * Pure; any thread.
 */
#ifndef REPLAY_BLOCK_OFFER_H
#define REPLAY_BLOCK_OFFER_H

#include "estimator/predict/offer.h"
#include "replay.h"

/* A block from first_position on that a request of request_tokens uses. The caller sets handle and
 * parent. */
kvt_offer block_offer(const replay_options *options, uint32_t first_position, uint32_t tokens,
                      uint32_t request_tokens);

/* The options of a block of so many tokens but for the seconds of NONE, which are those of a first
 * block. As kvt_offer_build. */
KVT_NODISCARD kvt_status block_options(const replay_options *options, uint32_t tokens,
                                       kvt_option built[KVT_OPTIONS_MAX], uint32_t *count_out);

#endif
