/*
 * lossless.c - codec 2. Mode fast is in lossless_fast.c; mode dense is here: exponents split from
 * mantissas and entropy-coded; exact.
 *
 * A segment is a sequence of tiles (lossless_split.h), runs of 256 tokens outside, runs of 1024
 * channels inside. FP8 and opaque segments are runs of 256 KiB with one plane, the bytes. A tile:
 *
 *   +-------+------+--------------------+---------------------+---------+-----+---------+
 *   | flags | 0    | word per plane     | bases (if flag 0)   | plane 0 | ... | plane n |
 *   | u8    | u8x3 | u32 each           | one byte a channel  |         |     |         |
 *   +-------+------+--------------------+---------------------+---------+-----+---------+
 *   word: bit 31 = the plane is one zstd frame, bits 30..0 = its stored bytes
 *
 * zstd serves as a Huffman coder: its match search is switched off, which is several times faster
 * and shrinks exponents better than any level with matches does. Only opaque bytes, which may
 * repeat, are searched. All parameters are explicit, so that they do not change with the library.
 * Contexts live in the caller's scratch. Re-entrant.
 */
#include "codecs.h"
#include "lossless_fast.h"
#include "lossless_split.h"

#include <assert.h>
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

enum {
    LOSSLESS_HEAD_BYTES = 4,
    LOSSLESS_WORD_BYTES = 4,
    LOSSLESS_FLAG_BASES = 1,
    LOSSLESS_BASES_TOKENS_MIN = 64, /* fewer tokens do not pay for a base byte per channel */
    LOSSLESS_SAMPLE_RUNS = 8,
    LOSSLESS_SAMPLE_RUN_BYTES = 512,
    LOSSLESS_SCRATCH_ALIGN = 64
};

#define LOSSLESS_WORD_ZSTD  (UINT32_C(1) << 31)
#define LOSSLESS_ZSTD_MAGIC UINT32_C(0xfd2fb528)

/* Walks the tiles of a segment. */
typedef struct lossless_cursor {
    lossless_tile tile; /* the present one */
    uint32_t plane_count;
    uint64_t elements; /* of the present tile */
    uint64_t offset;   /* of its first element, in bytes */
    bool bytes_only;
    uint32_t element_bytes;
    uint64_t width; /* channels of a row, or bytes of the segment when bytes_only */
    uint64_t tokens;
    uint64_t next_token;
    uint64_t next_channel;
} lossless_cursor;

typedef struct lossless_scratch {
    void *context;
    uint64_t context_bytes;
    uint8_t *planes[LOSSLESS_PLANES_MAX];
    uint8_t *packed; /* one plane compressed; only encoding uses it */
    uint64_t packed_bytes;
} lossless_scratch;

static bool lossless_is_bytes(const kvt_layout *layout)
{
    return layout->dtype == KVT_DTYPE_OPAQUE || layout->dtype == KVT_DTYPE_FP8;
}

static uint32_t lossless_plane_count(const kvt_layout *layout)
{
    return lossless_is_bytes(layout) ? 1 : kvt_dtype_bytes(layout->dtype);
}

static void lossless_cursor_start(lossless_cursor *cursor, const kvt_layout *layout,
                                  uint64_t source_bytes)
{
    memset(cursor, 0, sizeof *cursor);
    cursor->bytes_only = lossless_is_bytes(layout);
    cursor->plane_count = lossless_plane_count(layout);
    cursor->element_bytes = kvt_dtype_bytes(layout->dtype);
    cursor->tile.dtype = layout->dtype;
    cursor->width = source_bytes;
    cursor->tokens = 1;
    if (!cursor->bytes_only) {
        cursor->width = (uint64_t)layout->kv_heads * layout->head_dim;
        cursor->tokens = layout->tokens;
    }
    cursor->tile.stride_bytes = cursor->width * cursor->element_bytes;
}

static bool lossless_cursor_next(lossless_cursor *cursor)
{
    const uint64_t channels_max =
        cursor->bytes_only ? LOSSLESS_TILE_ELEMENTS : LOSSLESS_TILE_CHANNELS;
    if (cursor->next_token >= cursor->tokens) return false;
    uint64_t tokens = cursor->tokens - cursor->next_token;
    uint64_t channels = cursor->width - cursor->next_channel;
    if (tokens > LOSSLESS_TILE_TOKENS) tokens = LOSSLESS_TILE_TOKENS;
    if (channels > channels_max) channels = channels_max;
    cursor->tile.tokens = (uint32_t)tokens;
    cursor->tile.channels = (uint32_t)channels;
    cursor->elements = tokens * channels;
    cursor->offset =
        (cursor->next_token * cursor->width + cursor->next_channel) * cursor->element_bytes;
    cursor->next_channel += channels;
    if (cursor->next_channel == cursor->width) {
        cursor->next_channel = 0;
        cursor->next_token += tokens;
    }
    return true;
}

static ZSTD_compressionParameters lossless_zstd_parameters(bool search)
{
    ZSTD_compressionParameters parameters = {
        .windowLog = 18, /* one plane of a tile */
        .chainLog = 6,   /* not used by this strategy */
        .hashLog = search ? 14 : 6,
        .searchLog = 1,
        .minMatch = search ? 6 : 7,
        .targetLength = search ? 1 : ZSTD_TARGETLENGTH_MAX, /* the step between tries */
        .strategy = ZSTD_fast,
    };
    return parameters;
}

static ZSTD_CCtx *lossless_encoder(const lossless_scratch *scratch, bool search)
{
    const ZSTD_compressionParameters p = lossless_zstd_parameters(search);
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

static kvt_status lossless_check(kvt_variant variant, const kvt_layout *layout)
{
    if (variant.rate != 0) return KVT_E_UNSUPPORTED;
    if (variant.mode == KVT_LOSSLESS_DENSE) return KVT_OK;
    /* fast knows elements with exponents only. */
    return variant.mode == KVT_LOSSLESS_FAST && !lossless_is_bytes(layout) ? KVT_OK
                                                                           : KVT_E_UNSUPPORTED;
}

/* A segment that would not shrink is refused, so the stored form is smaller than the source. */
static uint64_t lossless_bound(kvt_variant variant, const kvt_layout *layout, uint64_t source_bytes)
{
    (void)variant;
    (void)layout;
    return source_bytes;
}

static uint64_t lossless_tile_elements(const kvt_layout *layout, uint64_t source_bytes)
{
    uint64_t elements = source_bytes / lossless_plane_count(layout) + 1;
    return elements < LOSSLESS_TILE_ELEMENTS ? elements : LOSSLESS_TILE_ELEMENTS;
}

/* Cuts the caller's scratch into its parts; scratch may be NULL. Returns the bytes needed. */
static uint64_t lossless_scratch_place(const kvt_layout *layout, uint64_t source_bytes,
                                       uint8_t *scratch, lossless_scratch *out)
{
    const bool search = layout->dtype == KVT_DTYPE_OPAQUE;
    const uint64_t elements = lossless_tile_elements(layout, source_bytes);
    uint64_t encoder = ZSTD_estimateCCtxSize_usingCParams(lossless_zstd_parameters(search));
    uint64_t decoder = ZSTD_estimateDCtxSize();
    uint64_t at = codecs_align(encoder > decoder ? encoder : decoder, LOSSLESS_SCRATCH_ALIGN);
    memset(out, 0, sizeof *out);
    out->context = scratch;
    out->context_bytes = at;
    for (uint32_t p = 0; p < lossless_plane_count(layout); p++) {
        if (scratch != NULL) out->planes[p] = scratch + at;
        at += codecs_align(elements, LOSSLESS_SCRATCH_ALIGN);
    }
    if (scratch != NULL) out->packed = scratch + at;
    out->packed_bytes = ZSTD_compressBound(elements);
    return at + codecs_align(out->packed_bytes, LOSSLESS_SCRATCH_ALIGN);
}

static uint64_t lossless_segment_scratch(kvt_variant variant, const kvt_layout *layout,
                                         uint64_t source_bytes)
{
    lossless_scratch unused;
    if (variant.mode == KVT_LOSSLESS_FAST) return 0;
    return lossless_scratch_place(layout, source_bytes, NULL, &unused);
}

/*
 * Whether a sample of a plane is uneven enough to be worth a try: the chance that two bytes agree
 * is more than a quarter above that of uniform bytes (0.3 bits of order-2 entropy). Mantissas of
 * real values stay below; low bits that are always zero do not.
 */
static bool lossless_worth_coding(const uint8_t *plane, uint64_t bytes)
{
    uint32_t counts[256];
    uint64_t squares = 0;
    uint64_t total = 0;
    memset(counts, 0, sizeof counts);
    const uint64_t run = bytes < LOSSLESS_SAMPLE_RUNS * LOSSLESS_SAMPLE_RUN_BYTES
                             ? bytes / LOSSLESS_SAMPLE_RUNS + 1
                             : LOSSLESS_SAMPLE_RUN_BYTES;
    for (uint64_t i = 0; i < LOSSLESS_SAMPLE_RUNS; i++) {
        uint64_t start = bytes / LOSSLESS_SAMPLE_RUNS * i;
        for (uint64_t k = start; k < start + run && k < bytes; k++) {
            counts[plane[k]]++;
            total++;
        }
    }
    for (unsigned i = 0; i < 256; i++) {
        squares += (uint64_t)counts[i] * counts[i];
    }
    return squares * 4 > (total * total / 256 + total) * 5;
}

typedef struct lossless_target {
    uint8_t *bytes;
    uint64_t limit; /* nothing is written at or past it */
    uint64_t used;
} lossless_target;

static bool lossless_append(lossless_target *target, const void *source, uint64_t bytes)
{
    if (bytes > target->limit - target->used) return false;
    memcpy(target->bytes + target->used, source, bytes);
    target->used += bytes;
    return true;
}

/* Appends one plane, as a frame when that is smaller, and fills its word. KVT_OK, KVT_E_SPACE past
 * the limit, KVT_E_UNSUPPORTED when zstd refuses to work. */
static kvt_status lossless_append_plane(lossless_target *target, ZSTD_CCtx *encoder,
                                        const lossless_scratch *scratch, const uint8_t *plane,
                                        uint64_t bytes, bool try_coding, uint64_t word_at)
{
    const void *stored = plane;
    uint32_t word = (uint32_t)bytes;
    if (try_coding) {
        /* Through scratch with room to spare: what zstd writes must not depend on the room left. */
        size_t packed =
            ZSTD_compress2(encoder, scratch->packed, scratch->packed_bytes, plane, bytes);
        if (ZSTD_isError(packed)) return KVT_E_UNSUPPORTED;
        if (packed < bytes) {
            stored = scratch->packed;
            word = (uint32_t)packed | LOSSLESS_WORD_ZSTD;
        }
    }
    codecs_store32(target->bytes + word_at, word);
    bool fits = lossless_append(target, stored, word & ~LOSSLESS_WORD_ZSTD);
    return fits ? KVT_OK : KVT_E_SPACE;
}

static kvt_status lossless_encode_tile(lossless_target *target, ZSTD_CCtx *encoder,
                                       const lossless_scratch *scratch,
                                       const lossless_cursor *cursor, const uint8_t *source)
{
    uint8_t bases[LOSSLESS_TILE_CHANNELS];
    uint8_t head[LOSSLESS_HEAD_BYTES + LOSSLESS_PLANES_MAX * LOSSLESS_WORD_BYTES];
    const lossless_tile *tile = &cursor->tile;
    const uint8_t *first = source + cursor->offset;
    const bool with_bases = !cursor->bytes_only && tile->tokens >= LOSSLESS_BASES_TOKENS_MIN;

    memset(head, 0, sizeof head);
    head[0] = with_bases ? LOSSLESS_FLAG_BASES : 0;
    uint64_t word_at = target->used + LOSSLESS_HEAD_BYTES;
    uint64_t head_bytes = LOSSLESS_HEAD_BYTES + cursor->plane_count * LOSSLESS_WORD_BYTES;
    if (!lossless_append(target, head, head_bytes)) return KVT_E_SPACE;
    if (!cursor->bytes_only) memset(bases, 0, tile->channels);
    if (with_bases) {
        lossless_tile_bases(tile, first, bases);
        if (!lossless_append(target, bases, tile->channels)) return KVT_E_SPACE;
    }
    if (!cursor->bytes_only) lossless_tile_split(tile, first, bases, scratch->planes);
    for (uint32_t p = 0; p < cursor->plane_count; p++) {
        const uint8_t *plane = cursor->bytes_only ? first : scratch->planes[p];
        bool expected = tile->dtype == KVT_DTYPE_OPAQUE || (p == 0 && !cursor->bytes_only);
        bool try_coding = expected || lossless_worth_coding(plane, cursor->elements);
        kvt_status status = lossless_append_plane(target, encoder, scratch, plane, cursor->elements,
                                                  try_coding, word_at + p * LOSSLESS_WORD_BYTES);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

/* Whether a segment of these bytes is one of the layout. */
static bool lossless_segment_fits(const kvt_layout *layout, uint64_t bytes)
{
    if (bytes == 0) return false;
    return lossless_is_bytes(layout) || bytes == kvt_layout_matrix_bytes(layout);
}

static kvt_status lossless_encode(kvt_variant variant, const kvt_layout *layout, const void *source,
                                  uint64_t source_bytes, void *target, uint64_t capacity,
                                  void *scratch, uint64_t scratch_bytes, uint64_t *written_out)
{
    lossless_scratch parts;
    lossless_cursor cursor;
    *written_out = 0;
    if (lossless_check(variant, layout) != KVT_OK) return KVT_E_UNSUPPORTED;
    if (!lossless_segment_fits(layout, source_bytes)) return KVT_E_ARGUMENT;
    if (variant.mode == KVT_LOSSLESS_FAST) {
        return lossless_fast_encode(layout->dtype, source, source_bytes, target, capacity,
                                    written_out);
    }
    if (scratch == NULL) return KVT_E_ARGUMENT;
    if (scratch_bytes < lossless_scratch_place(layout, source_bytes, scratch, &parts)) {
        return KVT_E_ARGUMENT;
    }
    ZSTD_CCtx *encoder = lossless_encoder(&parts, layout->dtype == KVT_DTYPE_OPAQUE);
    if (encoder == NULL) return KVT_E_UNSUPPORTED;

    const uint64_t shrunk_max = source_bytes - 1;
    lossless_target out = {target, capacity < shrunk_max ? capacity : shrunk_max, 0};
    kvt_status status = KVT_OK;
    lossless_cursor_start(&cursor, layout, source_bytes);
    while (status == KVT_OK && lossless_cursor_next(&cursor)) {
        status = lossless_encode_tile(&out, encoder, &parts, &cursor, source);
    }
    if (status == KVT_E_SPACE && capacity >= shrunk_max) return KVT_RAW;
    if (status != KVT_OK) return status;
    *written_out = out.used;
    return KVT_OK;
}

typedef struct lossless_source {
    const uint8_t *bytes;
    uint64_t left;
} lossless_source;

/* The next bytes of the segment, or NULL when it ends before. */
static const uint8_t *lossless_take(lossless_source *source, uint64_t bytes)
{
    if (bytes > source->left) return NULL;
    const uint8_t *taken = source->bytes;
    source->bytes += bytes;
    source->left -= bytes;
    return taken;
}

/* Gives the plane of a word: in place when verbatim, else decoded into target. NULL = corrupt. */
static const uint8_t *lossless_take_plane(lossless_source *source, ZSTD_DCtx *decoder,
                                          uint32_t word, uint8_t *target, uint64_t elements)
{
    uint64_t bytes = word & ~LOSSLESS_WORD_ZSTD;
    const uint8_t *stored = lossless_take(source, bytes);
    if (stored == NULL) return NULL;
    if ((word & LOSSLESS_WORD_ZSTD) == 0) return bytes == elements ? stored : NULL;
    if (bytes >= elements || bytes < sizeof(uint32_t)) return NULL;
    /* One frame that names its size: no skippable or legacy frames, no dictionary. */
    if (codecs_load32(stored) != LOSSLESS_ZSTD_MAGIC) return NULL;
    if (ZSTD_getFrameContentSize(stored, bytes) != elements) return NULL;
    if (ZSTD_decompressDCtx(decoder, target, elements, stored, bytes) != elements) return NULL;
    return target;
}

static kvt_status lossless_decode_tile(lossless_source *source, ZSTD_DCtx *decoder,
                                       const lossless_scratch *scratch,
                                       const lossless_cursor *cursor, uint8_t *target)
{
    static const uint8_t no_bases[LOSSLESS_TILE_CHANNELS];
    const uint8_t *planes[LOSSLESS_PLANES_MAX] = {NULL};
    const uint8_t *bases = no_bases;
    const lossless_tile *tile = &cursor->tile;
    uint8_t *first = target + cursor->offset;

    const uint8_t *head =
        lossless_take(source, LOSSLESS_HEAD_BYTES + cursor->plane_count * LOSSLESS_WORD_BYTES);
    if (head == NULL || head[0] > LOSSLESS_FLAG_BASES) return KVT_E_CORRUPT;
    if (head[1] | head[2] | head[3]) return KVT_E_CORRUPT;
    if (head[0] & LOSSLESS_FLAG_BASES) {
        if (cursor->bytes_only) return KVT_E_CORRUPT;
        bases = lossless_take(source, tile->channels);
        if (bases == NULL) return KVT_E_CORRUPT;
    }
    for (uint32_t p = 0; p < cursor->plane_count; p++) {
        uint32_t word = codecs_load32(head + LOSSLESS_HEAD_BYTES + p * LOSSLESS_WORD_BYTES);
        uint8_t *room = cursor->bytes_only ? first : scratch->planes[p];
        planes[p] = lossless_take_plane(source, decoder, word, room, cursor->elements);
        if (planes[p] == NULL) return KVT_E_CORRUPT;
    }
    if (!cursor->bytes_only) {
        lossless_tile_merge(tile, planes, bases, first);
    } else if (planes[0] != first) {
        memcpy(first, planes[0], cursor->elements);
    }
    return KVT_OK;
}

static kvt_status lossless_decode(kvt_variant variant, const kvt_layout *layout, const void *source,
                                  uint64_t source_bytes, void *target, uint64_t target_bytes,
                                  void *scratch, uint64_t scratch_bytes)
{
    lossless_scratch parts;
    lossless_cursor cursor;
    if (lossless_check(variant, layout) != KVT_OK) return KVT_E_UNSUPPORTED;
    if (!lossless_segment_fits(layout, target_bytes)) return KVT_E_CORRUPT;
    if (variant.mode == KVT_LOSSLESS_FAST) {
        return lossless_fast_decode(layout->dtype, source, source_bytes, target, target_bytes);
    }
    if (scratch == NULL) return KVT_E_ARGUMENT;
    if (scratch_bytes < lossless_scratch_place(layout, target_bytes, scratch, &parts)) {
        return KVT_E_ARGUMENT;
    }
    ZSTD_DCtx *decoder = ZSTD_initStaticDCtx(parts.context, parts.context_bytes);
    if (decoder == NULL) return KVT_E_UNSUPPORTED;

    lossless_source in = {source, source_bytes};
    kvt_status status = KVT_OK;
    lossless_cursor_start(&cursor, layout, target_bytes);
    while (status == KVT_OK && lossless_cursor_next(&cursor)) {
        status = lossless_decode_tile(&in, decoder, &parts, &cursor, target);
    }
    if (status != KVT_OK) return status;
    return in.left == 0 ? KVT_OK : KVT_E_CORRUPT;
}

const kvt_codec codecs_lossless = {
    .struct_size = sizeof(kvt_codec),
    .abi_version = KVT_CODEC_ABI,
    .id = KVT_CODEC_LOSSLESS,
    .flags = KVT_CODEC_FLAG_EXACT,
    .name = "lossless",
    .check = lossless_check,
    .segment_bound = lossless_bound,
    .segment_scratch = lossless_segment_scratch,
    .encode_segment = lossless_encode,
    .decode_segment = lossless_decode,
};
