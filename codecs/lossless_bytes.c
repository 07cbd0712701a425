/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless_bytes.c - see lossless_bytes.h. Re-entrant.
 */
#include "lossless_bytes.h"

#include "codecs.h"
#include "rans_stream.h"

#include <string.h>
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

enum { BYTES_RUN = 1 << 18, BYTES_WORD_BYTES = 4, BYTES_SCRATCH_ALIGN = 64 };

#define BYTES_WORD_ZSTD  (UINT32_C(1) << 31)
#define BYTES_ZSTD_MAGIC UINT32_C(0xfd2fb528)

typedef struct bytes_scratch {
    void *context;
    uint64_t context_bytes;
    uint8_t *packed; /* one run: compressed, or decoded for a target that has it apart */
    uint64_t packed_bytes;
} bytes_scratch;

static ZSTD_compressionParameters bytes_parameters(void)
{
    ZSTD_compressionParameters parameters = {
        .windowLog = 18, /* one run */
        .chainLog = 6,   /* not used by this strategy */
        .hashLog = 14,
        .searchLog = 1,
        .minMatch = 6,
        .targetLength = 1, /* the step between tries */
        .strategy = ZSTD_fast,
    };
    return parameters;
}

static ZSTD_CCtx *bytes_encoder(const bytes_scratch *scratch)
{
    const ZSTD_compressionParameters p = bytes_parameters();
    ZSTD_CCtx *context = ZSTD_initStaticCCtx(scratch->context, scratch->context_bytes);
    const struct {
        ZSTD_cParameter name;
        int value;
    } settings[] = {
        {ZSTD_c_windowLog, (int)p.windowLog},
        {ZSTD_c_chainLog, (int)p.chainLog},
        {ZSTD_c_hashLog, (int)p.hashLog},
        {ZSTD_c_searchLog, (int)p.searchLog},
        {ZSTD_c_minMatch, (int)p.minMatch},
        {ZSTD_c_targetLength, (int)p.targetLength},
        {ZSTD_c_strategy, (int)p.strategy},
        {ZSTD_c_checksumFlag, 0},
        {ZSTD_c_contentSizeFlag, 1},
        {ZSTD_c_literalCompressionMode, (int)ZSTD_lcm_huffman},
    };
    if (context == NULL) return NULL;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (ZSTD_isError(ZSTD_CCtx_setParameter(context, settings[i].name, settings[i].value))) {
            return NULL;
        }
    }
    return context;
}

/* Cuts the caller's scratch into its parts; scratch may be NULL. Returns the bytes needed. */
static uint64_t bytes_cut(uint64_t bytes, uint8_t *scratch, bytes_scratch *parts)
{
    const uint64_t encoder = ZSTD_estimateCCtxSize_usingCParams(bytes_parameters());
    const uint64_t decoder = ZSTD_estimateDCtxSize();
    parts->context = scratch;
    parts->context_bytes = codecs_align(encoder > decoder ? encoder : decoder, BYTES_SCRATCH_ALIGN);
    parts->packed = scratch == NULL ? NULL : scratch + parts->context_bytes;
    parts->packed_bytes = ZSTD_compressBound(bytes < BYTES_RUN ? bytes : BYTES_RUN);
    return parts->context_bytes + codecs_align(parts->packed_bytes, BYTES_SCRATCH_ALIGN);
}

uint64_t lossless_bytes_scratch(uint64_t bytes)
{
    bytes_scratch unused;
    return bytes_cut(bytes, NULL, &unused);
}

/* Appends one run, as a frame when that is smaller. */
static kvt_status bytes_append_run(rans_target *target, ZSTD_CCtx *encoder,
                                   const bytes_scratch *scratch, const uint8_t *source,
                                   uint64_t bytes)
{
    uint8_t word[BYTES_WORD_BYTES];
    const void *stored = source;
    /* Through scratch with room to spare: what zstd writes must not depend on the room left. */
    size_t packed = ZSTD_compress2(encoder, scratch->packed, scratch->packed_bytes, source, bytes);
    if (ZSTD_isError(packed)) return KVT_E_UNSUPPORTED;
    const bool smaller = packed < bytes;
    if (smaller) stored = scratch->packed;
    if (smaller) bytes = packed;
    codecs_store32(word, (uint32_t)bytes | (smaller ? BYTES_WORD_ZSTD : 0));
    bool fits = rans_append(target, word, sizeof word) && rans_append(target, stored, bytes);
    return fits ? KVT_OK : KVT_E_SPACE;
}

kvt_status lossless_bytes_encode(const void *source, uint64_t bytes, void *target,
                                 uint64_t capacity, void *scratch, uint64_t *written_out)
{
    bytes_scratch parts;
    const uint8_t *from = source;
    const uint64_t shrunk_max = bytes - 1;
    rans_target out = {target, capacity < shrunk_max ? capacity : shrunk_max, 0};
    kvt_status status = KVT_OK;
    *written_out = 0;
    bytes_cut(bytes, scratch, &parts);
    ZSTD_CCtx *encoder = bytes_encoder(&parts);
    if (encoder == NULL) return KVT_E_UNSUPPORTED;
    for (uint64_t at = 0; status == KVT_OK && at < bytes; at += BYTES_RUN) {
        const uint64_t run = bytes - at < BYTES_RUN ? bytes - at : BYTES_RUN;
        status = bytes_append_run(&out, encoder, &parts, from + at, run);
    }
    if (status == KVT_E_SPACE && capacity >= shrunk_max) return KVT_RAW;
    if (status == KVT_OK) *written_out = out.used;
    return status;
}

static bool bytes_decode_run(rans_source *source, ZSTD_DCtx *decoder, uint8_t *target, uint64_t run)
{
    const uint8_t *word = rans_take(source, BYTES_WORD_BYTES);
    if (word == NULL) return false;
    const bool frame = (codecs_load32(word) & BYTES_WORD_ZSTD) != 0;
    const uint64_t bytes = codecs_load32(word) & ~BYTES_WORD_ZSTD;
    const uint8_t *stored = rans_take(source, bytes);
    if (stored == NULL) return false;
    if (!frame) {
        if (bytes != run) return false;
        memcpy(target, stored, run);
        return true;
    }
    if (bytes >= run || bytes < sizeof(uint32_t)) return false;
    /* One frame that names its size, and nothing behind it: no skippable or legacy frames, no
     * dictionary. */
    if (codecs_load32(stored) != BYTES_ZSTD_MAGIC) return false;
    if (ZSTD_getFrameContentSize(stored, bytes) != run) return false;
    if (ZSTD_findFrameCompressedSize(stored, bytes) != bytes) return false;
    return ZSTD_decompressDCtx(decoder, target, run, stored, bytes) == run;
}

kvt_status lossless_bytes_decode(const void *source, uint64_t bytes, const view_rows *target,
                                 void *scratch)
{
    bytes_scratch parts;
    rans_source in = {source, bytes};
    bytes_cut(target->bytes, scratch, &parts);
    ZSTD_DCtx *decoder = ZSTD_initStaticDCtx(parts.context, parts.context_bytes);
    if (decoder == NULL) return KVT_E_UNSUPPORTED;
    for (uint64_t at = 0; at < target->bytes; at += BYTES_RUN) {
        const uint64_t run = target->bytes - at < BYTES_RUN ? target->bytes - at : BYTES_RUN;
        uint8_t *room = view_rows_room(target, at, run, parts.packed);
        if (!bytes_decode_run(&in, decoder, room, run)) return KVT_E_CORRUPT;
        view_rows_keep(target, at, run, room, parts.packed);
    }
    return in.left == 0 ? KVT_OK : KVT_E_CORRUPT;
}
