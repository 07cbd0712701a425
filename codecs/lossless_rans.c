/*
 * lossless_rans.c - see lossless_rans.h. Tiles go through lines: a row of the tile, or, where rows
 * are short and the tile has them whole, several rows at once with their bases repeated.
 * Re-entrant.
 */
#include "lossless_rans.h"

#include "codecs.h"
#include "lossless_fast_kernels.h"
#include "rans.h"

#include <string.h>

enum {
    DENSE_TILE_TOKENS = 256, /* so that a sum of exponents fits 16 bits */
    DENSE_TILE_CHANNELS = 1024,
    DENSE_HEAD_BYTES = 12,
    DENSE_KIND_RAW = 0,
    DENSE_KIND_BYTE = 1,
    DENSE_KIND_FP16 = 2,
    DENSE_FLAG_BASES = 1,
    DENSE_FLAG_NO_EXTRAS = 2,
    DENSE_FLAG_NARROW = 4,
    DENSE_BASES_TOKENS_MIN = 64, /* fewer tokens do not pay for a base byte per channel */
    DENSE_SCRATCH_ALIGN = 64,
    DENSE_STREAM_ALIGN = 64,
    DENSE_STREAM_MIN = 1 << 20 /* bytes of a matrix that is larger than the caches near a core */
};

typedef struct dense_scratch {
    uint8_t *symbols; /* of a tile */
    rans_encode_table *encode_table;
    rans_decode_table *decode_table;
} dense_scratch;

/* A tile in the matrix and its form. */
typedef struct dense_tile {
    uint8_t dtype;
    uint8_t kind;
    uint8_t flags;
    unsigned form; /* FAST_FORM_* */
    uint32_t element_bytes;
    uint32_t tokens;
    uint32_t channels;
    uint32_t line; /* elements of a line but the last */
    uint32_t elements;
    uint64_t stride; /* bytes between starts of lines */
    uint64_t offset; /* bytes of its first element in the matrix */
    uint64_t extra_bytes;
    bool stream; /* decode past the caches where the target is aligned */
} dense_tile;

static uint64_t dense_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t dense_row_bytes(const lossless_rans_shape *shape)
{
    return shape->row * kvt_dtype_bytes(shape->dtype);
}

uint64_t lossless_rans_bound(const lossless_rans_shape *shape)
{
    return shape->tokens * dense_row_bytes(shape);
}

static uint64_t dense_cut(const lossless_rans_shape *shape, uint8_t *scratch, dense_scratch *parts)
{
    const uint64_t elements =
        dense_min(shape->tokens, DENSE_TILE_TOKENS) * dense_min(shape->row, DENSE_TILE_CHANNELS);
    uint64_t at = codecs_align(elements, DENSE_SCRATCH_ALIGN);
    if (scratch != NULL) {
        parts->symbols = scratch;
        parts->encode_table = (void *)(scratch + at);
    }
    at += codecs_align(sizeof(rans_encode_table), DENSE_SCRATCH_ALIGN);
    if (scratch != NULL) parts->decode_table = (void *)(scratch + at);
    return at + codecs_align(sizeof(rans_decode_table), DENSE_SCRATCH_ALIGN);
}

uint64_t lossless_rans_scratch_bytes(const lossless_rans_shape *shape)
{
    dense_scratch unused;
    return dense_cut(shape, NULL, &unused);
}

static bool dense_taken(const lossless_rans_shape *shape)
{
    bool known = shape->dtype == KVT_DTYPE_FP16 || shape->dtype == KVT_DTYPE_BF16 ||
                 shape->dtype == KVT_DTYPE_FP32;
    return known && shape->tokens > 0 && shape->row > 0;
}

/* Places the tile at a token and channel. */
static void dense_tile_place(dense_tile *tile, const lossless_rans_shape *shape, uint64_t token,
                             uint64_t channel)
{
    memset(tile, 0, sizeof *tile);
    tile->dtype = shape->dtype;
    tile->element_bytes = kvt_dtype_bytes(shape->dtype);
    tile->tokens = (uint32_t)dense_min(shape->tokens - token, DENSE_TILE_TOKENS);
    tile->channels = (uint32_t)dense_min(shape->row - channel, DENSE_TILE_CHANNELS);
    tile->elements = tile->tokens * tile->channels;
    tile->line = tile->channels;
    tile->stride = dense_row_bytes(shape);
    if (tile->channels == shape->row && tile->channels < FAST_RUN) {
        tile->line = FAST_RUN / tile->channels * tile->channels;
        tile->stride = (uint64_t)tile->line * tile->element_bytes;
    }
    tile->offset = token * dense_row_bytes(shape) + channel * tile->element_bytes;
}

/* A run of a tile, walked by dense_run_next from {0}. */
typedef struct dense_run {
    uint32_t at;    /* its first element in the tile */
    uint32_t first; /* in its line */
    uint32_t count;
    uint64_t offset; /* bytes in the matrix */
} dense_run;

static bool dense_run_next(const dense_tile *tile, dense_run *run)
{
    run->at += run->count;
    if (run->at == tile->elements) return false;
    run->first = run->at % tile->line;
    uint64_t left = dense_min(tile->line - run->first, tile->elements - run->at);
    run->count = (uint32_t)dense_min(left, FAST_RUN);
    run->offset = tile->offset + run->at / tile->line * tile->stride +
                  (uint64_t)run->first * tile->element_bytes;
    return true;
}

/* Whether no element of the tile has a bit of the mask, which repeats for each in a word. */
static bool dense_bits_clear(const dense_tile *tile, const uint8_t *source, uint64_t mask)
{
    dense_run run = {0};
    while (dense_run_next(tile, &run)) {
        const uint8_t *bytes = source + run.offset;
        const uint64_t length = (uint64_t)run.count * tile->element_bytes;
        uint64_t any = 0;
        uint64_t at = 0;
        for (; at + sizeof any <= length; at += sizeof any) {
            uint64_t word;
            memcpy(&word, bytes + at, sizeof word);
            any |= word;
        }
        for (; at < length; at += tile->element_bytes) {
            uint64_t word = 0;
            memcpy(&word, bytes + at, tile->element_bytes);
            any |= word;
        }
        if (any & mask) return false;
    }
    return true;
}

/* Form and extras of a kind and flags. */
static void dense_tile_settle(dense_tile *tile)
{
    tile->form = FAST_FORM_BF16;
    tile->extra_bytes = 0;
    if (tile->dtype == KVT_DTYPE_FP16) {
        tile->form = tile->kind == DENSE_KIND_FP16 ? FAST_FORM_FP16 : FAST_FORM_FP16_NARROW;
    } else if (tile->dtype == KVT_DTYPE_FP32) {
        tile->form = FAST_FORM_FP32;
        if (!(tile->flags & DENSE_FLAG_NO_EXTRAS)) tile->extra_bytes = 2 * (uint64_t)tile->elements;
    }
}

static void dense_tile_choose(dense_tile *tile, const uint8_t *source)
{
    tile->kind = DENSE_KIND_BYTE;
    tile->flags = tile->tokens >= DENSE_BASES_TOKENS_MIN ? DENSE_FLAG_BASES : 0;
    if (tile->dtype == KVT_DTYPE_FP16) {
        if (dense_bits_clear(tile, source, UINT64_C(0x0007000700070007))) {
            tile->flags |= DENSE_FLAG_NARROW;
        } else {
            tile->kind = DENSE_KIND_FP16;
        }
    } else if (tile->dtype == KVT_DTYPE_FP32 &&
               dense_bits_clear(tile, source, UINT64_C(0x0000ffff0000ffff))) {
        tile->flags |= DENSE_FLAG_NO_EXTRAS;
    }
    dense_tile_settle(tile);
}

/* Repeats the bases of the channels to a line. */
static void dense_repeat_bases(const dense_tile *tile, uint8_t *bases)
{
    for (uint32_t i = tile->channels; i < tile->line; i++) {
        bases[i] = bases[i - tile->channels];
    }
}

static void dense_make_bases(const dense_tile *tile, const uint16_t *sums, uint8_t *bases)
{
    for (uint32_t channel = 0; channel < tile->channels; channel++) {
        uint32_t sum = 0;
        for (uint32_t i = channel; i < tile->line; i += tile->channels) {
            sum += sums[i];
        }
        bases[channel] = (uint8_t)((sum + tile->tokens / 2) / tile->tokens);
    }
    dense_repeat_bases(tile, bases);
}

/* Buffers for what a run of the form has beside exponents and lows. */
typedef struct dense_buffers {
    uint8_t exponents[FAST_RUN];
    uint8_t signs[FAST_RUN];
    uint8_t pairs[FAST_RUN];
    uint8_t wides[2 * FAST_RUN];
} dense_buffers;

/* Lows and extras into place, and exponents (of FP16 all of the symbol but the base) to scratch. */
static void dense_split(const dense_tile *tile, const fast_kernels *kernels, const uint8_t *source,
                        uint8_t *lows, uint8_t *symbols, uint16_t *sums)
{
    dense_buffers buffers;
    uint8_t *extras = lows + tile->elements;
    dense_run run = {0};
    while (dense_run_next(tile, &run)) {
        const fast_parts parts = {buffers.exponents, lows + run.at, buffers.signs, buffers.pairs,
                                  tile->extra_bytes > 0 ? extras + 2 * (uint64_t)run.at
                                                        : buffers.wides};
        kernels->split(tile->form, source + run.offset, run.count, &parts);
        kernels->add(buffers.exponents, run.count, sums + run.first);
        if (tile->form == FAST_FORM_FP16) {
            const fast_view view = {buffers.exponents, NULL, buffers.signs, buffers.pairs, NULL};
            kernels->join(&view, run.count, symbols + run.at);
        } else {
            memcpy(symbols + run.at, buffers.exponents, run.count);
        }
    }
}

/* Exponents in symbols become distances from their bases. */
static void dense_subtract(const dense_tile *tile, const fast_kernels *kernels,
                           const uint8_t *bases, uint8_t *symbols)
{
    dense_run run = {0};
    uint8_t exponents[FAST_RUN];
    while (dense_run_next(tile, &run)) {
        memcpy(exponents, symbols + run.at, run.count);
        if (tile->form == FAST_FORM_FP16) {
            /* The base stands where the exponent does; sign and mantissa bits stay. */
            for (uint32_t i = 0; i < run.count; i++) {
                uint32_t distance = (uint32_t)bases[run.first + i] * 8 - (exponents[i] & 0xf8u);
                symbols[run.at + i] = (uint8_t)((distance & 0xf8u) | (exponents[i] & 7u));
            }
        } else {
            kernels->distance(bases + run.first, exponents, run.count, symbols + run.at);
        }
    }
}

static void dense_frequencies(const uint8_t *symbols, uint32_t count, rans_frequencies *frequencies)
{
    rans_counts parts;
    uint32_t counts[256];
    memset(&parts, 0, sizeof parts);
    rans_count(symbols, count, &parts);
    rans_count_sum(&parts, counts);
    rans_normalise(counts, frequencies);
}

typedef struct dense_target {
    uint8_t *bytes;
    uint64_t limit;
    uint64_t used;
} dense_target;

/* Writes table, states, lows and extras behind the bases, and the words. Returns the tile's bytes,
 * or 0 when room is too small. head is the tile's start. */
static uint64_t dense_code_tile(const dense_tile *tile, const fast_kernels *kernels,
                                const uint8_t *source, uint8_t *head, uint64_t room,
                                const dense_scratch *scratch)
{
    uint16_t sums[DENSE_TILE_CHANNELS] = {0};
    uint8_t bases[DENSE_TILE_CHANNELS] = {0};
    uint8_t table[RANS_FREQUENCIES_BYTES_MAX];
    uint32_t states[RANS_STATES_MAX];
    rans_frequencies frequencies;
    const bool with_bases = (tile->flags & DENSE_FLAG_BASES) != 0;
    const uint64_t plane_bytes = tile->elements + tile->extra_bytes;
    uint64_t at = DENSE_HEAD_BYTES + (with_bases ? tile->channels : 0);
    if (at + plane_bytes > room) return 0;
    /* At the end of the room for now: what comes before them has no size yet. */
    dense_split(tile, kernels, source, head + room - plane_bytes, scratch->symbols, sums);
    if (with_bases) {
        dense_make_bases(tile, sums, bases);
        memcpy(head + DENSE_HEAD_BYTES, bases, tile->channels);
    }
    dense_subtract(tile, kernels, bases, scratch->symbols);
    dense_frequencies(scratch->symbols, tile->elements, &frequencies);
    const uint64_t table_bytes = rans_write_frequencies(&frequencies, table, sizeof table);
    const uint32_t state_count = rans_state_count(tile->elements);
    const uint64_t planes_at = at + table_bytes + state_count * sizeof states[0];
    if (planes_at + plane_bytes > room) return 0;
    memmove(head + planes_at, head + room - plane_bytes, plane_bytes);
    memcpy(head + at, table, table_bytes);
    at += table_bytes;
    rans_fill_encode_table(&frequencies, scratch->encode_table);
    uint8_t *words_at = head + planes_at + plane_bytes;
    const uint8_t *word = rans_encode(scratch->encode_table, scratch->symbols, tile->elements,
                                      state_count, words_at, head + room, states);
    if (word == NULL) return 0;
    const uint64_t word_bytes = (uint64_t)(head + room - word);
    memcpy(head + at, states, state_count * sizeof states[0]);
    memmove(words_at, word, word_bytes);
    memset(head, 0, DENSE_HEAD_BYTES);
    head[0] = tile->kind;
    head[1] = tile->flags;
    head[2] = (uint8_t)state_count;
    head[4] = (uint8_t)table_bytes;
    head[5] = (uint8_t)(table_bytes >> 8);
    codecs_store32(head + 8, (uint32_t)(word_bytes / 2));
    return planes_at + plane_bytes + word_bytes;
}

static bool dense_encode_tile(dense_target *target, const fast_kernels *kernels, dense_tile *tile,
                              const uint8_t *source, const dense_scratch *scratch)
{
    uint8_t *head = target->bytes + target->used;
    const uint64_t raw = DENSE_HEAD_BYTES + (uint64_t)tile->elements * tile->element_bytes;
    const uint64_t room = target->limit - target->used;
    dense_tile_choose(tile, source);
    /* No more room than raw needs: what does not shrink fails, as it does without room. */
    uint64_t bytes =
        dense_code_tile(tile, kernels, source, head, dense_min(room, raw - 1), scratch);
    if (bytes == 0) {
        if (raw > room) return false;
        memset(head, 0, DENSE_HEAD_BYTES);
        bytes = DENSE_HEAD_BYTES;
        dense_run run = {0};
        while (dense_run_next(tile, &run)) {
            uint64_t part = (uint64_t)run.count * tile->element_bytes;
            memcpy(head + bytes, source + run.offset, part);
            bytes += part;
        }
    }
    target->used += bytes;
    return true;
}

kvt_status lossless_rans_encode(const lossless_rans_shape *shape, const void *source, void *target,
                                uint64_t capacity, void *scratch, uint64_t *written_out)
{
    const fast_kernels *kernels = fast_kernels_choose();
    dense_scratch parts;
    dense_tile tile;
    *written_out = 0;
    if (!dense_taken(shape)) return KVT_RAW;
    dense_cut(shape, scratch, &parts);
    const uint64_t shrunk_max = lossless_rans_bound(shape) - 1;
    dense_target out = {target, dense_min(capacity, shrunk_max), 0};
    for (uint64_t token = 0; token < shape->tokens; token += DENSE_TILE_TOKENS) {
        for (uint64_t channel = 0; channel < shape->row; channel += DENSE_TILE_CHANNELS) {
            dense_tile_place(&tile, shape, token, channel);
            if (!dense_encode_tile(&out, kernels, &tile, source, &parts)) {
                return capacity >= shrunk_max ? KVT_RAW : KVT_E_SPACE;
            }
        }
    }
    *written_out = out.used;
    return KVT_OK;
}

typedef struct dense_source {
    const uint8_t *bytes;
    uint64_t left;
} dense_source;

/* The next bytes, or NULL when there are fewer. */
static const uint8_t *dense_take(dense_source *source, uint64_t bytes)
{
    if (bytes > source->left) return NULL;
    const uint8_t *taken = source->bytes;
    source->bytes += bytes;
    source->left -= bytes;
    return taken;
}

/* Whether kind and flags are ones that the dtype has. */
static bool dense_head_sound(const dense_tile *tile, const uint8_t *head)
{
    uint8_t allowed = DENSE_FLAG_BASES;
    if (head[3] | head[6] | head[7]) return false;
    if (tile->kind == DENSE_KIND_FP16) {
        if (tile->dtype != KVT_DTYPE_FP16) return false;
    } else if (tile->kind != DENSE_KIND_BYTE) {
        return false;
    } else if (tile->dtype == KVT_DTYPE_FP16) {
        if (!(tile->flags & DENSE_FLAG_NARROW)) return false;
        allowed |= DENSE_FLAG_NARROW;
    } else if (tile->dtype == KVT_DTYPE_FP32) {
        allowed |= DENSE_FLAG_NO_EXTRAS;
    }
    return (tile->flags & (uint8_t)~allowed) == 0 && head[2] == rans_state_count(tile->elements);
}

/* Whole registers of a run of bf16. */
static uint32_t dense_merge_fused(const dense_tile *tile, const fast_kernels *kernels,
                                  const uint8_t *bases, const uint8_t *symbols, const uint8_t *lows,
                                  uint32_t count, uint8_t *target)
{
    if (tile->form != FAST_FORM_BF16 || kernels->merge_bf16 == NULL) return 0;
    const bool stream = tile->stream && (uintptr_t)target % DENSE_STREAM_ALIGN == 0;
    return kernels->merge_bf16(bases, symbols, lows, count, target, stream);
}

static void dense_merge(const dense_tile *tile, const fast_kernels *kernels, const uint8_t *bases,
                        const uint8_t *symbols, const uint8_t *lows, uint8_t *target)
{
    dense_buffers buffers;
    uint8_t distances[FAST_RUN];
    const uint8_t *extras = lows + tile->elements;
    dense_run run = {0};
    memset(buffers.wides, 0, sizeof buffers.wides);
    while (dense_run_next(tile, &run)) {
        const uint8_t *from = symbols + run.at;
        uint32_t done = dense_merge_fused(tile, kernels, bases + run.first, from, lows + run.at,
                                          run.count, target + run.offset);
        if (done == run.count) continue;
        if (tile->form == FAST_FORM_FP16) {
            const fast_parts parts = {distances, NULL, buffers.signs, buffers.pairs, NULL};
            kernels->part(from, run.count, &parts);
            from = distances;
        }
        kernels->distance(bases + run.first, from, run.count, buffers.exponents);
        const fast_view view = {buffers.exponents, lows + run.at, buffers.signs, buffers.pairs,
                                tile->extra_bytes > 0 ? extras + 2 * (uint64_t)run.at
                                                      : buffers.wides};
        kernels->merge(tile->form, &view, run.count, target + run.offset);
    }
}

static bool dense_decode_raw(const dense_tile *tile, dense_source *source, const uint8_t *head,
                             uint8_t *target)
{
    dense_run run = {0};
    for (unsigned i = 0; i < DENSE_HEAD_BYTES; i++) {
        if (head[i] != 0) return false;
    }
    const uint8_t *from = dense_take(source, (uint64_t)tile->elements * tile->element_bytes);
    if (from == NULL) return false;
    while (dense_run_next(tile, &run)) {
        uint64_t part = (uint64_t)run.count * tile->element_bytes;
        memcpy(target + run.offset, from, part);
        from += part;
    }
    return true;
}

static bool dense_decode_tile(dense_tile *tile, const fast_kernels *kernels, dense_source *source,
                              const dense_scratch *scratch, uint8_t *target)
{
    uint8_t bases[DENSE_TILE_CHANNELS] = {0};
    rans_frequencies frequencies;
    rans_decoder decoder;
    const uint8_t *head = dense_take(source, DENSE_HEAD_BYTES);
    if (head == NULL) return false;
    tile->kind = head[0];
    tile->flags = head[1];
    if (tile->kind == DENSE_KIND_RAW) return dense_decode_raw(tile, source, head, target);
    if (!dense_head_sound(tile, head)) return false;
    dense_tile_settle(tile);
    if (tile->flags & DENSE_FLAG_BASES) {
        const uint8_t *stored = dense_take(source, tile->channels);
        if (stored == NULL) return false;
        memcpy(bases, stored, tile->channels);
        dense_repeat_bases(tile, bases);
    }
    const uint64_t table_bytes = head[4] | (uint64_t)head[5] << 8;
    const uint64_t word_bytes = 2 * (uint64_t)codecs_load32(head + 8);
    const uint8_t *table = dense_take(source, table_bytes);
    const uint8_t *states = dense_take(source, head[2] * sizeof(uint32_t));
    const uint8_t *lows = dense_take(source, tile->elements + tile->extra_bytes);
    const uint8_t *words = dense_take(source, word_bytes);
    if (table == NULL || states == NULL || lows == NULL || words == NULL) return false;
    if (table_bytes == 0 ||
        rans_read_frequencies(table, table_bytes, &frequencies) != table_bytes) {
        return false;
    }
    rans_fill_decode_table(&frequencies, scratch->decode_table);
    if (rans_decode_start(&decoder, scratch->decode_table, head[2], states, words, word_bytes) !=
        KVT_OK) {
        return false;
    }
    rans_decode(&decoder, scratch->symbols, tile->elements);
    if (!rans_decode_finish(&decoder)) return false;
    dense_merge(tile, kernels, bases, scratch->symbols, lows, target);
    return true;
}

static bool dense_decode_tiles(const lossless_rans_shape *shape, dense_source *source,
                               const dense_scratch *scratch, uint8_t *target)
{
    const fast_kernels *kernels = fast_kernels_choose();
    dense_tile tile;
    for (uint64_t token = 0; token < shape->tokens; token += DENSE_TILE_TOKENS) {
        for (uint64_t channel = 0; channel < shape->row; channel += DENSE_TILE_CHANNELS) {
            dense_tile_place(&tile, shape, token, channel);
            tile.stream = lossless_rans_bound(shape) >= DENSE_STREAM_MIN;
            if (!dense_decode_tile(&tile, kernels, source, scratch, target)) return false;
        }
    }
    return source->left == 0;
}

kvt_status lossless_rans_decode(const lossless_rans_shape *shape, const void *source,
                                uint64_t source_bytes, void *target, void *scratch)
{
    dense_scratch parts;
    dense_source in = {source, source_bytes};
    if (!dense_taken(shape)) return KVT_E_CORRUPT;
    dense_cut(shape, scratch, &parts);
    bool sound = dense_decode_tiles(shape, &in, &parts, target);
    fast_fence();
    return sound ? KVT_OK : KVT_E_CORRUPT;
}
