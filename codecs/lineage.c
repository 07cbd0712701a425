/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lineage.c - which variant can be made from a record of which other. The offer asks this before
 * the engine plans a move, and the executor before it carries the move out, so both follow one
 * rule. The file looks at variants alone, never at a record. Re-entrant.
 */
#include "codecs.h"

#include <assert.h>

/* Decoded elements are the entry's own, or so close that coding them again loses nothing that
 * counts: the loss of planes at 8 bits is far below that of every coarser variant. A variant that
 * dropped tokens has lost them. */
static bool lineage_is_exact(kvt_variant variant)
{
    if (kvt_variant_drops_tokens(variant) || variant.codec != KVT_CODEC_PLANES)
        return kvt_codec_is_exact(variant);
    return codecs_planes.matrix_planes(variant, KVT_SIDE_K, 0) == KVT_PLANES_MAX &&
           codecs_planes.matrix_planes(variant, KVT_SIDE_V, 0) == KVT_PLANES_MAX;
}

/* Fewer of the tokens that are there, by the same method: at a smaller share these methods keep
 * some of what they keep at a larger one, whatever the dropped tokens held. Scores of keys need all
 * keys.
 */
static bool lineage_narrows(kvt_variant from, kvt_variant to)
{
    const uint32_t method = codecs_drop_method(from);
    if (method != KVT_DROP_STREAM && method != KVT_DROP_SCORES) return false;
    return codecs_drop_method(to) == method && codecs_drop_keep(to) <= codecs_drop_keep(from) &&
           lineage_is_exact(codecs_variant_core(from));
}

codecs_way codecs_made_from(kvt_variant from, kvt_variant to)
{
    const kvt_codec *codec = kvt_codec_find(from.codec);
    if (codec == NULL) return CODECS_WAY_NONE;
    assert((codec->derives_to == NULL) == (codec->derive_matrix == NULL));
    if (from.codec == to.codec && from.mode >> 8 == to.mode >> 8) {
        const kvt_variant present = codecs_variant_core(from), wanted = codecs_variant_core(to);
        if (codec->drops_to != NULL && codec->drops_to(present, wanted)) return CODECS_WAY_DROP;
        if (codec->derives_to != NULL && codec->derives_to(present, wanted))
            return CODECS_WAY_DERIVE;
    }
    return lineage_is_exact(from) || lineage_narrows(from, to) ? CODECS_WAY_RECODE
                                                               : CODECS_WAY_NONE;
}
