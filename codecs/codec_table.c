/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_table.c - the static table of codecs. No registration at run time: a static archive would
 * drop it. Any thread; no state.
 */
#include "codecs.h"

#include <assert.h>

static const kvt_codec *const codec_table[] = {
    &codecs_raw, &codecs_lossless, &codecs_kivi, &codecs_planes, &codecs_entropy, &codecs_transform,
};

enum { CODEC_TABLE_COUNT = sizeof codec_table / sizeof codec_table[0] };

const kvt_codec *kvt_codec_find(uint16_t id)
{
    for (size_t i = 0; i < CODEC_TABLE_COUNT; i++) {
        if (codec_table[i]->id == id) return codec_table[i];
    }
    return NULL;
}

bool kvt_codec_is_exact(kvt_variant variant)
{
    const kvt_codec *codec = kvt_codec_find(variant.codec);
    return codec != NULL && (codec->flags & KVT_CODEC_FLAG_EXACT) != 0 &&
           !kvt_variant_drops_tokens(variant);
}

const kvt_codec *kvt_codec_at(size_t index)
{
    return index < CODEC_TABLE_COUNT ? codec_table[index] : NULL;
}
