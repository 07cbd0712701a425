/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless_dense.c - see lossless_dense.h. Tiles go through lines: a row of the tile, or, where
 * rows are short and the tile has them whole, several rows at once with their bases repeated.
 * Re-entrant.
 */
#include "lossless_dense.h"

#include "codecs.h"
#include "codecs/kernels/lossless_fast_kernels.h"
#include "rans_stream.h"

#include <string.h>

enum {
    DENSE_LOWS_SPARE = 128,  /* a turn of the coder, or a run of nibbles */
    DENSE_TILE_TOKENS = 256, /* so that a sum of exponents fits 16 bits */
    DENSE_TILE_CHANNELS = 1024,
    DENSE_HEAD_BYTES = 4,
    DENSE_KIND_RAW = 0,
    DENSE_KIND_BYTE = 1,
    DENSE_KIND_FP16 = 2,
    DENSE_KIND_FP8 = 3,
    DENSE_FLAG_BASES = 1,
    DENSE_FLAG_NO_EXTRAS = 2,
    DENSE_FLAG_NARROW = 4,
    DENSE_FLAG_CODED_LOWS = 8,
    DENSE_MIDDLE = 128, /* symbol of an exponent that is its base */
    DENSE_PIECE = 4096, /* symbols decoded before they are merged */
    DENSE_SAMPLE_RUNS = 8,
    DENSE_SAMPLE_RUN = 256,
    DENSE_BASES_TOKENS_MIN = 64, /* fewer tokens do not pay for a base byte per channel */
    DENSE_SCRATCH_ALIGN = 64,
    DENSE_STREAM_ALIGN = 64,
    DENSE_STREAM_MIN = 1 << 18 /* bytes of a matrix from which on it is written past the caches */
};

_Static_assert((int)DENSE_LOWS_SPARE >= (int)RANS_STATES_MAX &&
                   (int)DENSE_LOWS_SPARE >= (int)FAST_PACK,
               "lows are read and unpacked past a tile's end");

typedef struct dense_scratch {
    uint8_t *symbols; /* of a tile */
    uint8_t *lows;    /* of a tile, when they are coded or packed */
    uint8_t *triples; /* of an fp16 tile: sign and two mantissa bits, a byte an element */
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
    uint64_t low_bytes; /* of lows that are stored as they are */
    bool stream;        /* decode past the caches where the target is aligned */
} dense_tile;

static uint64_t dense_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t dense_row_bytes(const lossless_dense_shape *shape)
{
    return shape->row * kvt_dtype_bytes(shape->dtype);
}

uint64_t lossless_dense_bound(const lossless_dense_shape *shape)
{
    return shape->tokens * dense_row_bytes(shape);
}

static void *dense_place(uint8_t *scratch, uint64_t *at, uint64_t bytes)
{
    void *place = scratch == NULL ? NULL : scratch + *at;
    *at += codecs_align(bytes, DENSE_SCRATCH_ALIGN);
    return place;
}

/* Cuts the scratch, which may be NULL; returns the bytes needed. */
static uint64_t dense_cut(const lossless_dense_shape *shape, uint8_t *scratch, dense_scratch *parts)
{
    const uint64_t elements =
        dense_min(shape->tokens, DENSE_TILE_TOKENS) * dense_min(shape->row, DENSE_TILE_CHANNELS);
    const bool triples = shape->dtype == KVT_DTYPE_FP16;
    uint64_t at = 0;
    parts->symbols = dense_place(scratch, &at, elements + RANS_STATES_MAX);
    parts->lows = dense_place(scratch, &at, elements + DENSE_LOWS_SPARE);
    parts->triples = dense_place(scratch, &at, triples ? elements + 8 : 0);
    parts->encode_table = dense_place(scratch, &at, sizeof *parts->encode_table);
    parts->decode_table = dense_place(scratch, &at, sizeof *parts->decode_table);
    return at;
}

uint64_t lossless_dense_scratch_bytes(const lossless_dense_shape *shape)
{
    dense_scratch unused;
    return dense_cut(shape, NULL, &unused);
}

static bool dense_taken(const lossless_dense_shape *shape)
{
    bool known = shape->dtype == KVT_DTYPE_FP16 || shape->dtype == KVT_DTYPE_BF16 ||
                 shape->dtype == KVT_DTYPE_FP32 || shape->dtype == KVT_DTYPE_FP8;
    return known && shape->tokens > 0 && shape->row > 0;
}

/* Places the tile at a token and channel. */
static void dense_tile_place(dense_tile *tile, const lossless_dense_shape *shape, uint64_t token,
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

/* Bytes of a nibble an element: in runs of FAST_PACK, each of whole bytes. */
static uint64_t dense_nibble_bytes(uint32_t elements)
{
    return elements / FAST_PACK * (FAST_PACK / 2u) + (elements % FAST_PACK + 1) / 2;
}

/* Form and extras of a kind and flags. */
static void dense_tile_settle(dense_tile *tile)
{
    tile->form = FAST_FORM_BF16;
    tile->extra_bytes = 0;
    tile->low_bytes = tile->elements;
    if (tile->dtype == KVT_DTYPE_FP8) {
        tile->form = FAST_FORM_FP8;
        tile->extra_bytes = dense_nibble_bytes(tile->elements);
        tile->low_bytes = 0;
    } else if (tile->dtype == KVT_DTYPE_FP16 && tile->kind == DENSE_KIND_FP16) {
        tile->form = FAST_FORM_FP16;
        tile->extra_bytes = (3 * (uint64_t)tile->elements + 7) / 8;
    } else if (tile->dtype == KVT_DTYPE_FP16) {
        tile->form = FAST_FORM_FP16_NARROW;
    } else if (tile->dtype == KVT_DTYPE_FP32) {
        tile->form = FAST_FORM_FP32;
        if (!(tile->flags & DENSE_FLAG_NO_EXTRAS)) tile->extra_bytes = 2 * (uint64_t)tile->elements;
    }
}

static void dense_tile_choose(dense_tile *tile, const uint8_t *source)
{
    tile->kind = DENSE_KIND_BYTE;
    tile->flags = tile->tokens >= DENSE_BASES_TOKENS_MIN ? DENSE_FLAG_BASES : 0;
    if (tile->dtype == KVT_DTYPE_FP8) {
        tile->kind = DENSE_KIND_FP8;
    } else if (tile->dtype == KVT_DTYPE_FP16) {
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

/* Bases as they are stored become those that symbols are distances from, and reach over a line. */
static void dense_start_bases(const dense_tile *tile, uint8_t *bases)
{
    for (uint32_t i = 0; i < tile->channels; i++) {
        bases[i] = (uint8_t)(bases[i] + DENSE_MIDDLE);
    }
    for (uint32_t i = tile->channels; i < tile->line; i++) /* repeated to a line */
        bases[i] = bases[i - tile->channels];
}

/* Buffers for what a run of the form has beside exponents and lows. */
typedef struct dense_buffers {
    uint8_t exponents[FAST_RUN];
    uint8_t lows[FAST_RUN];
    uint8_t signs[FAST_RUN];
    uint8_t pairs[FAST_RUN];
    uint8_t wides[2 * FAST_RUN];
} dense_buffers;

/* The mean exponents of the channels. */
static void dense_make_bases(const dense_tile *tile, const fast_kernels *kernels,
                             const uint8_t *source, uint8_t *bases)
{
    uint16_t sums[DENSE_TILE_CHANNELS] = {0};
    dense_buffers buffers;
    const fast_parts parts = {buffers.exponents, buffers.lows, buffers.signs, buffers.pairs,
                              buffers.wides};
    dense_run run = {0};
    while (dense_run_next(tile, &run)) {
        if (tile->form == FAST_FORM_BF16) {
            kernels->add_bf16(source + run.offset, run.count, sums + run.first);
        } else if (tile->form == FAST_FORM_FP8) {
            kernels->add_fp8(source + run.offset, run.count, sums + run.first);
        } else {
            kernels->split(tile->form, source + run.offset, run.count, &parts);
            kernels->add(buffers.exponents, run.count, sums + run.first);
        }
    }
    for (uint32_t channel = 0; channel < tile->channels; channel++) {
        uint32_t sum = 0;
        for (uint32_t i = channel; i < tile->line; i += tile->channels) {
            sum += sums[i];
        }
        bases[channel] = (uint8_t)((sum + tile->tokens / 2) / tile->tokens);
    }
}

/* Elements to symbols, lows and extras. */
static void dense_split(const dense_tile *tile, const fast_kernels *kernels, const uint8_t *source,
                        const uint8_t *bases, const dense_scratch *scratch, uint8_t *lows,
                        uint8_t *extras)
{
    dense_buffers buffers;
    const bool wide = tile->form == FAST_FORM_FP32 && tile->extra_bytes > 0;
    dense_run run = {0};
    while (dense_run_next(tile, &run)) {
        uint8_t *symbols = scratch->symbols + run.at;
        if (tile->form == FAST_FORM_BF16) {
            kernels->part_bf16(source + run.offset, bases + run.first, run.count, symbols,
                               lows + run.at);
            continue;
        }
        if (tile->form == FAST_FORM_FP8) {
            kernels->part_fp8(source + run.offset, bases + run.first, run.count, symbols,
                              lows + run.at);
            continue;
        }
        const fast_parts parts = {buffers.exponents, lows + run.at, buffers.signs, buffers.pairs,
                                  wide ? extras + 2 * (uint64_t)run.at : buffers.wides};
        kernels->split(tile->form, source + run.offset, run.count, &parts);
        kernels->distance(bases + run.first, buffers.exponents, run.count, symbols);
        for (uint32_t i = 0; tile->form == FAST_FORM_FP16 && i < run.count; i++) {
            scratch->triples[run.at + i] = (uint8_t)(buffers.signs[i] >> 1 | buffers.pairs[i]);
        }
    }
}

/* Three bits of every byte, packed. triples has room for 8 bytes behind. */
static void dense_pack_triples(uint8_t *triples, uint32_t count, uint8_t *packed, uint64_t bytes)
{
    memset(triples + count, 0, 8);
    for (uint64_t at = 0; at < bytes; at += 3, triples += 8) {
        uint64_t x;
        memcpy(&x, triples, sizeof x);
        x = (x | x >> 5) & UINT64_C(0x003f003f003f003f);
        x = (x | x >> 10) & UINT64_C(0x00000fff00000fff);
        x = x | x >> 20;
        const uint8_t three[3] = {(uint8_t)x, (uint8_t)(x >> 8), (uint8_t)(x >> 16)};
        memcpy(packed + at, three, dense_min(bytes - at, 3));
    }
}

/* False when a bit behind the last element is not zero. */
static bool dense_unpack_triples(const uint8_t *packed, uint64_t bytes, uint32_t count,
                                 uint8_t *triples)
{
    uint8_t *last = triples + count;
    for (uint64_t at = 0; at < bytes; at += 3, triples += 8) {
        uint8_t three[3] = {0};
        memcpy(three, packed + at, dense_min(bytes - at, 3));
        uint64_t x = three[0] | (uint64_t)three[1] << 8 | (uint64_t)three[2] << 16;
        x = (x | x << 20) & UINT64_C(0x00000fff00000fff);
        x = (x | x << 10) & UINT64_C(0x003f003f003f003f);
        x = (x | x << 5) & UINT64_C(0x0707070707070707);
        memcpy(triples, &x, sizeof x);
    }
    uint8_t any = 0;
    for (; last < triples; last++) {
        any |= *last;
    }
    return any == 0;
}

/* Nibbles, a byte each, to half as many bytes. nibbles has room for FAST_PACK behind. */
static void dense_pack_nibbles(const fast_kernels *kernels, uint8_t *nibbles, uint32_t count,
                               uint8_t *packed)
{
    uint32_t i = 0;
    for (; i + FAST_PACK <= count; i += FAST_PACK) {
        kernels->pack(nibbles + i, packed + i / 2);
    }
    const uint32_t half = (count - i + 1) / 2;
    nibbles[count] = 0;
    for (uint32_t k = 0; k < half; k++) {
        packed[i / 2 + k] = (uint8_t)(nibbles[i + k] | nibbles[i + half + k] << 4);
    }
}

/* False when a nibble behind the last element is not zero. */
static bool dense_unpack_nibbles(const fast_kernels *kernels, const uint8_t *packed, uint32_t count,
                                 uint8_t *nibbles)
{
    uint32_t i = 0;
    for (; i + FAST_PACK <= count; i += FAST_PACK) {
        kernels->unpack(packed + i / 2, nibbles + i);
    }
    const uint32_t half = (count - i + 1) / 2;
    for (uint32_t k = 0; k < half; k++) {
        nibbles[i + k] = packed[i / 2 + k] & 15;
        nibbles[i + half + k] = packed[i / 2 + k] >> 4;
    }
    return (count - i) % 2 == 0 || nibbles[count] == 0;
}

/*
 * Whether a sample of lows is uneven enough to be worth a try: the chance that two agree is more
 * than a quarter above that of even bytes. Mantissas of real values stay below; those of values
 * that came from fewer bits do not.
 */
static bool dense_uneven(const dense_tile *tile, const fast_kernels *kernels, const uint8_t *source)
{
    uint32_t counts[256] = {0};
    dense_buffers buffers;
    const fast_parts parts = {buffers.exponents, buffers.lows, buffers.signs, buffers.pairs,
                              buffers.wides};
    const uint32_t step = tile->elements / FAST_RUN / DENSE_SAMPLE_RUNS + 1;
    uint64_t squares = 0;
    uint64_t total = 0;
    dense_run run = {0};
    for (uint32_t index = 0; dense_run_next(tile, &run); index++) {
        if (index % step != 0) continue;
        const uint32_t count = (uint32_t)dense_min(run.count, DENSE_SAMPLE_RUN);
        kernels->split(tile->form, source + run.offset, count, &parts);
        for (uint32_t i = 0; i < count; i++) {
            counts[buffers.lows[i]]++;
        }
        total += count;
    }
    for (unsigned i = 0; i < 256; i++) {
        squares += (uint64_t)counts[i] * counts[i];
    }
    return squares * 4 > (total * total / 256 + total) * 5;
}

/* Appends lows, which are in scratch, as a stream when that is smaller. */
static bool dense_append_lows(dense_tile *tile, rans_target *target, const dense_scratch *scratch)
{
    const uint64_t limit = dense_min(target->limit, target->used + tile->elements - 1);
    rans_target stream = {target->bytes, limit, target->used};
    for (uint32_t i = 0; i < tile->elements; i++) {
        scratch->lows[i] = (uint8_t)(scratch->lows[i] + 1);
    }
    if (rans_stream_write(&stream, NULL, scratch->lows, tile->elements, scratch->encode_table)) {
        target->used = stream.used;
        tile->flags |= DENSE_FLAG_CODED_LOWS;
        return true;
    }
    for (uint32_t i = 0; i < tile->elements; i++) {
        scratch->lows[i] = (uint8_t)(scratch->lows[i] - 1);
    }
    return rans_append(target, scratch->lows, tile->elements);
}

/* Appends the tile's coded form. False when the room is too small. */
static bool dense_code_tile(dense_tile *tile, const fast_kernels *kernels, const uint8_t *source,
                            rans_target *target, const dense_scratch *scratch)
{
    uint8_t bases[DENSE_TILE_CHANNELS] = {0};
    const bool with_bases = (tile->flags & DENSE_FLAG_BASES) != 0;
    const bool packed = tile->form == FAST_FORM_FP8;
    const bool uneven = !packed && dense_uneven(tile, kernels, source);
    const uint64_t fixed = DENSE_HEAD_BYTES + (with_bases ? tile->channels : 0) + tile->extra_bytes;
    if (fixed + (uneven ? 0 : tile->low_bytes) > target->limit - target->used) return false;
    uint8_t *head = target->bytes + target->used;
    uint8_t *extras = head + fixed - tile->extra_bytes;
    if (with_bases) {
        dense_make_bases(tile, kernels, source, bases);
        memcpy(head + DENSE_HEAD_BYTES, bases, tile->channels);
    }
    dense_start_bases(tile, bases);
    dense_split(tile, kernels, source, bases, scratch,
                uneven || packed ? scratch->lows : head + fixed, extras);
    if (packed) dense_pack_nibbles(kernels, scratch->lows, tile->elements, extras);
    if (tile->form == FAST_FORM_FP16) {
        dense_pack_triples(scratch->triples, tile->elements, extras, tile->extra_bytes);
    }
    target->used += fixed + (uneven ? 0 : tile->low_bytes);
    if (uneven && !dense_append_lows(tile, target, scratch)) return false;
    const uint8_t fields[DENSE_HEAD_BYTES] = {tile->kind, tile->flags};
    memcpy(head, fields, sizeof fields);
    return rans_stream_write(target, NULL, scratch->symbols, tile->elements, scratch->encode_table);
}

static bool dense_append_raw(const dense_tile *tile, const uint8_t *source, rans_target *target)
{
    const uint8_t head[DENSE_HEAD_BYTES] = {DENSE_KIND_RAW};
    dense_run run = {0};
    if (!rans_append(target, head, sizeof head)) return false;
    while (dense_run_next(tile, &run)) {
        if (!rans_append(target, source + run.offset, (uint64_t)run.count * tile->element_bytes)) {
            return false;
        }
    }
    return true;
}

static bool dense_encode_tile(rans_target *target, const fast_kernels *kernels, dense_tile *tile,
                              const uint8_t *source, const dense_scratch *scratch)
{
    const uint64_t raw = DENSE_HEAD_BYTES + (uint64_t)tile->elements * tile->element_bytes;
    dense_tile_choose(tile, source);
    /* No more room than raw needs: what does not shrink fails, as it does without room. */
    rans_target coded = {target->bytes, dense_min(target->limit, target->used + raw - 1),
                         target->used};
    if (!dense_code_tile(tile, kernels, source, &coded, scratch)) {
        return dense_append_raw(tile, source, target);
    }
    target->used = coded.used;
    return true;
}

kvt_status lossless_dense_encode(const lossless_dense_shape *shape, const void *source,
                                 void *target, uint64_t capacity, void *scratch,
                                 uint64_t *written_out)
{
    const fast_kernels *kernels = fast_kernels_choose();
    dense_scratch parts;
    dense_tile tile;
    *written_out = 0;
    if (!dense_taken(shape)) return KVT_RAW;
    dense_cut(shape, scratch, &parts);
    const uint64_t shrunk_max = lossless_dense_bound(shape) - 1;
    rans_target out = {target, dense_min(capacity, shrunk_max), 0};
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

/* Whether kind and flags are ones that the dtype has. */
static bool dense_head_sound(const dense_tile *tile, const uint8_t *head)
{
    uint8_t allowed = DENSE_FLAG_BASES | DENSE_FLAG_CODED_LOWS;
    if (head[2] | head[3]) return false;
    if (tile->kind == DENSE_KIND_RAW) return tile->flags == 0;
    if (tile->dtype == KVT_DTYPE_FP8) {
        if (tile->kind != DENSE_KIND_FP8) return false;
        allowed = DENSE_FLAG_BASES;
    } else if (tile->kind == DENSE_KIND_FP16) {
        if (tile->dtype != KVT_DTYPE_FP16) return false;
    } else if (tile->kind != DENSE_KIND_BYTE) {
        return false;
    } else if (tile->dtype == KVT_DTYPE_FP16) {
        if (!(tile->flags & DENSE_FLAG_NARROW)) return false;
        allowed |= DENSE_FLAG_NARROW;
    } else if (tile->dtype == KVT_DTYPE_FP32) {
        allowed |= DENSE_FLAG_NO_EXTRAS;
    }
    return (tile->flags & (uint8_t)~allowed) == 0;
}

/* The parts of a tile's elements. Symbols are decoded ahead of merging, piece by piece. */
typedef struct dense_reader {
    const dense_tile *tile;
    const fast_kernels *kernels;
    const uint8_t *bases;
    const uint8_t *lows;
    const uint8_t *extras;
    const uint8_t *triples;
    uint8_t *symbols;
    uint32_t ready; /* symbols decoded */
    rans_stream stream;
} dense_reader;

/* Whole registers of a run of bf16. */
static uint32_t dense_merge_fused(const dense_reader *reader, const dense_run *run, uint8_t *target,
                                  bool in_place)
{
    const dense_tile *tile = reader->tile;
    if (tile->form != FAST_FORM_BF16 || reader->kernels->merge_bf16 == NULL) return 0;
    const bool stream = tile->stream && in_place && (uintptr_t)target % DENSE_STREAM_ALIGN == 0;
    return reader->kernels->merge_bf16(reader->bases + run->first, reader->symbols + run->at,
                                       reader->lows + run->at, run->count, target, stream);
}

static void dense_merge_run(const dense_reader *reader, const dense_run *run, uint8_t *target,
                            bool in_place)
{
    static const uint8_t no_wides[2 * FAST_RUN];
    dense_buffers buffers;
    const dense_tile *tile = reader->tile;
    if (tile->form == FAST_FORM_FP8) {
        reader->kernels->merge_fp8(reader->bases + run->first, reader->symbols + run->at,
                                   reader->lows + run->at, run->count, target);
        return;
    }
    if (dense_merge_fused(reader, run, target, in_place) == run->count) return;
    const bool wide = tile->form == FAST_FORM_FP32 && tile->extra_bytes > 0;
    const fast_view view = {buffers.exponents, reader->lows + run->at, buffers.signs, buffers.pairs,
                            wide ? reader->extras + 2 * (uint64_t)run->at : no_wides};
    for (uint32_t i = 0; tile->form == FAST_FORM_FP16 && i < run->count; i++) {
        const uint8_t triple = reader->triples[run->at + i];
        buffers.signs[i] = (uint8_t)(triple << 1 & 8);
        buffers.pairs[i] = triple & 3;
    }
    reader->kernels->distance(reader->bases + run->first, reader->symbols + run->at, run->count,
                              buffers.exponents);
    reader->kernels->merge(tile->form, &view, run->count, target);
}

static bool dense_merge(dense_reader *reader, const view_rows *target)
{
    _Alignas(64) uint8_t tile[4 * FAST_RUN];
    dense_run run = {0};
    while (dense_run_next(reader->tile, &run)) {
        while (reader->ready < run.at + run.count) {
            uint64_t more =
                rans_stream_read(&reader->stream, DENSE_PIECE, reader->symbols + reader->ready);
            if (more == 0) return false;
            reader->ready += (uint32_t)more;
        }
        const uint64_t bytes = (uint64_t)run.count * reader->tile->element_bytes;
        uint8_t *room = view_rows_room(target, run.offset, bytes, tile);
        dense_merge_run(reader, &run, room, room != tile);
        view_rows_keep(target, run.offset, bytes, room, tile);
    }
    return rans_stream_finish(&reader->stream);
}

static bool dense_decode_raw(const dense_tile *tile, rans_source *source, const view_rows *target)
{
    dense_run run = {0};
    const uint8_t *from = rans_take(source, (uint64_t)tile->elements * tile->element_bytes);
    if (from == NULL) return false;
    while (dense_run_next(tile, &run)) {
        uint64_t part = (uint64_t)run.count * tile->element_bytes;
        view_rows_scatter(target, run.offset, part, from);
        from += part;
    }
    return true;
}

/* Lows in place, or decoded to scratch. NULL when they are not sound. */
static const uint8_t *dense_take_lows(const dense_tile *tile, rans_source *source,
                                      const dense_scratch *scratch)
{
    rans_stream stream;
    if (!(tile->flags & DENSE_FLAG_CODED_LOWS)) return rans_take(source, tile->low_bytes);
    if (rans_stream_open(&stream, source, tile->elements, scratch->decode_table) != KVT_OK ||
        rans_stream_read(&stream, tile->elements, scratch->lows) == 0 ||
        !rans_stream_finish(&stream)) {
        return NULL;
    }
    for (uint32_t i = 0; i < tile->elements; i++) {
        scratch->lows[i] = (uint8_t)(scratch->lows[i] - 1);
    }
    return scratch->lows;
}

static bool dense_decode_tile(dense_tile *tile, const fast_kernels *kernels, rans_source *source,
                              const dense_scratch *scratch, const view_rows *target)
{
    uint8_t bases[DENSE_TILE_CHANNELS] = {0};
    const uint8_t *head = rans_take(source, DENSE_HEAD_BYTES);
    if (head == NULL) return false;
    tile->kind = head[0];
    tile->flags = head[1];
    if (!dense_head_sound(tile, head)) return false;
    if (tile->kind == DENSE_KIND_RAW) return dense_decode_raw(tile, source, target);
    dense_tile_settle(tile);
    if (tile->flags & DENSE_FLAG_BASES) {
        const uint8_t *stored = rans_take(source, tile->channels);
        if (stored == NULL) return false;
        memcpy(bases, stored, tile->channels);
    }
    dense_start_bases(tile, bases);
    dense_reader reader = {.tile = tile, .kernels = kernels, .bases = bases};
    reader.symbols = scratch->symbols;
    reader.triples = scratch->triples;
    reader.extras = rans_take(source, tile->extra_bytes);
    if (reader.extras == NULL) return false;
    reader.lows = dense_take_lows(tile, source, scratch);
    if (reader.lows == NULL) return false;
    if (tile->form == FAST_FORM_FP8) {
        if (!dense_unpack_nibbles(kernels, reader.extras, tile->elements, scratch->lows))
            return false;
        reader.lows = scratch->lows;
    }
    if (tile->form == FAST_FORM_FP16 &&
        !dense_unpack_triples(reader.extras, tile->extra_bytes, tile->elements, scratch->triples)) {
        return false;
    }
    return rans_stream_open(&reader.stream, source, tile->elements, scratch->decode_table) ==
               KVT_OK &&
           dense_merge(&reader, target);
}

static bool dense_decode_tiles(const lossless_dense_shape *shape, rans_source *source,
                               const dense_scratch *scratch, const view_rows *target)
{
    const fast_kernels *kernels = fast_kernels_choose();
    dense_tile tile;
    for (uint64_t token = 0; token < shape->tokens; token += DENSE_TILE_TOKENS) {
        for (uint64_t channel = 0; channel < shape->row; channel += DENSE_TILE_CHANNELS) {
            dense_tile_place(&tile, shape, token, channel);
            tile.stream = lossless_dense_bound(shape) >= DENSE_STREAM_MIN;
            if (!dense_decode_tile(&tile, kernels, source, scratch, target)) return false;
        }
    }
    return source->left == 0;
}

kvt_status lossless_dense_decode(const lossless_dense_shape *shape, const void *source,
                                 uint64_t source_bytes, const view_rows *target, void *scratch)
{
    dense_scratch parts;
    rans_source in = {source, source_bytes};
    if (!dense_taken(shape)) return KVT_E_CORRUPT;
    dense_cut(shape, scratch, &parts);
    bool sound = dense_decode_tiles(shape, &in, &parts, target);
    fast_fence();
    return sound ? KVT_OK : KVT_E_CORRUPT;
}
