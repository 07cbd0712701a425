/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live_content.c - contents that can be made again from a block's id, and a block as an offer to
 * an engine. Pure; any thread.
 */
#include "live.h"

#include "codecs/record.h"
#include "random.h"

#include <string.h>

#define LIVE_SIGN_MANTISSA UINT64_C(0x807f807f807f807f)
#define LIVE_EXPONENT      UINT64_C(0x3c003c003c003c00) /* 2^-7 and up */
#define LIVE_EXPONENT_VARY UINT64_C(0x0180018001800180) /* two bits, mostly zero */

kvt_layout live_layout(uint64_t bytes_per_token, uint32_t tokens)
{
    /* A token's bytes are layers x (K and V) x heads x dim x 2. */
    uint64_t elements = bytes_per_token / 4;
    kvt_layout layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = bytes_per_token * tokens};
    if (bytes_per_token % 4 != 0 || elements == 0) return layout;
    uint64_t dim = 128, layers = 32;
    while (elements % dim != 0)
        dim /= 2;
    while (elements / dim % layers != 0)
        layers--;
    uint64_t heads = elements / dim / layers;
    if (heads > UINT16_MAX) return layout;
    return (kvt_layout){.layers = (uint16_t)layers,
                        .kv_heads = (uint16_t)heads,
                        .head_dim = (uint16_t)dim,
                        .dtype = KVT_DTYPE_BF16,
                        .tokens = tokens};
}

kvt_key live_key(uint64_t seed, uint32_t block)
{
    kvt_key key;
    uint64_t word = replay_mix(seed) ^ block;
    for (size_t i = 0; i < sizeof key.bytes; i += sizeof word) {
        word = replay_mix(word);
        memcpy(&key.bytes[i], &word, sizeof word);
    }
    /* The id itself, so that two blocks never share a key. */
    memcpy(key.bytes, &block, sizeof block);
    return key;
}

/* Eight words share one mixed value, each with its own rotation: mixing every word would cost more
 * than the store's own copying. */
static inline uint64_t live_word(uint64_t base, uint64_t index)
{
    uint64_t random = replay_mix(base + index / 8);
    unsigned turn = (unsigned)(index % 8) * 7 + 1;
    random = (random << turn) | (random >> (64 - turn));
    return (random & LIVE_SIGN_MANTISSA) | LIVE_EXPONENT |
           ((random >> 1) & (random >> 17) & LIVE_EXPONENT_VARY);
}

static uint64_t live_base(uint64_t seed, uint32_t block)
{
    return replay_mix(replay_mix(seed) + block);
}

void live_fill(uint64_t seed, uint32_t block, void *data, uint64_t bytes)
{
    uint64_t base = live_base(seed, block);
    uint8_t *at = data;
    uint64_t whole = bytes / sizeof(uint64_t);
    for (uint64_t i = 0; i < whole; i++) {
        uint64_t word = live_word(base, i);
        memcpy(at + i * sizeof word, &word, sizeof word);
    }
    uint64_t tail = live_word(base, whole);
    memcpy(at + whole * sizeof tail, &tail, (size_t)(bytes % sizeof tail));
}

bool live_matches(uint64_t seed, uint32_t block, const void *data, uint64_t bytes)
{
    uint64_t base = live_base(seed, block), difference = 0;
    const uint8_t *at = data;
    uint64_t whole = bytes / sizeof(uint64_t);
    for (uint64_t i = 0; i < whole; i++) {
        uint64_t word;
        memcpy(&word, at + i * sizeof word, sizeof word);
        difference |= word ^ live_word(base, i);
    }
    uint64_t tail = live_word(base, whole);
    return difference == 0 &&
           memcmp(at + whole * sizeof tail, &tail, (size_t)(bytes % sizeof tail)) == 0;
}

/* ---- a block as an offer; its options are the caller's ---- */

kvt_offer block_offer(const replay_options *options, uint32_t first_position, uint32_t tokens,
                      uint32_t request_tokens)
{
    kvt_offer offer = {.layout = live_layout(options->bytes_per_token, tokens),
                       .first_position = first_position,
                       .request_tokens = request_tokens};
    if (offer.layout.dtype == KVT_DTYPE_OPAQUE) {
        /* A store keeps them as a float. */
        offer.recompute_seconds = (double)(float)kvt_offer_recompute_seconds(
            &options->model.prefill, options->holes, first_position, tokens, request_tokens);
    }
    return offer;
}

kvt_status block_options(const replay_options *options, uint32_t tokens,
                         kvt_option built[KVT_OPTIONS_MAX], uint32_t *count_out)
{
    kvt_policy_entry entry = {.struct_size = sizeof entry};
    const kvt_offer later = block_offer(options, KVT_SINK_TOKENS, tokens, tokens + KVT_SINK_TOKENS);
    const kvt_offer first = block_offer(options, 0, tokens, tokens);
    kvt_status status = kvt_offer_build(&options->model, options->holes, &later, built, &entry);
    *count_out = status == KVT_OK ? entry.option_count : 0;
    if (status == KVT_OK)
        status = kvt_offer_describe(&options->model, options->holes, &first, &entry);
    if (status == KVT_OK) built[KVT_OPTION_NONE].load_seconds = entry.recompute_seconds;
    return status;
}
