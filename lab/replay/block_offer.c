/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_offer.c - the layout, the place and the request of a block, as an offer to an engine has
 * them. The options of the offer are the caller's. Pure; any thread.
 */
#include "block_offer.h"

#include "live_content.h"

kvt_offer block_offer(const replay_options *options, uint32_t first_position, uint32_t tokens,
                      uint32_t request_tokens)
{
    kvt_offer offer = {.layout = live_layout(options->bytes_per_token, tokens),
                       .first_position = first_position,
                       .request_tokens = request_tokens};
    if (offer.layout.dtype == KVT_DTYPE_OPAQUE) {
        offer.recompute_seconds = kvt_offer_recompute_seconds(
            &options->model.prefill, options->holes, first_position, tokens, request_tokens);
    }
    return offer;
}

kvt_status block_options(const replay_options *options, uint32_t tokens,
                         kvt_option built[KVT_OPTIONS_MAX], uint32_t *count_out)
{
    kvt_policy_entry entry;
    const kvt_offer offer = block_offer(options, 0, tokens, tokens);
    kvt_status status = kvt_offer_build(&options->model, options->holes, &offer, built, &entry);
    *count_out = status == KVT_OK ? entry.option_count : 0;
    return status;
}
