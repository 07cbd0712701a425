/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless_fast.c - codec 2, mode fast: windows, tiles and their parts. See lossless_fast.h for the
 * format. Re-entrant.
 */
#include "lossless_fast.h"

#include "codecs.h"
#include "codecs/kernels/lossless_fast_kernels.h"

#include <string.h>

enum {
    FAST_TILE = 65536, /* elements */
    FAST_HEAD_BYTES = 8,
    FAST_KIND_RAW = 0,
    FAST_KIND_BYTE = 1,
    FAST_KIND_FP16 = 2,
    FAST_KIND_MASK = 3,
    FAST_FLAG_ZERO = 1 << 4,
    FAST_FLAG_NO_EXTRAS = 1 << 5,
    FAST_FLAG_NARROW = 1 << 6,
    FAST_STREAM_ALIGN = 64,
    FAST_STREAM_MIN = 1 << 18, /* bytes of a matrix from which on it is written past the caches */
    FAST_SAMPLE_RUN = 32,      /* elements looked at together for the window */
    FAST_SAMPLE_STEP = 2048 + FAST_SAMPLE_RUN
};

/* A tile's form and the sizes of its parts, the same for both directions. */
typedef struct fast_plan {
    unsigned form;
    uint8_t kind; /* with flags */
    fast_window window;
    uint32_t elements;
    uint32_t element_bytes;
    bool stream; /* decode past the caches */
    uint64_t nibble_bytes;
    uint64_t extra_bytes;
} fast_plan;

static uint64_t fast_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Bytes of fields of 4 bits, or of 2, in runs of FAST_PACK. */
static uint64_t fast_field_bytes(uint32_t elements, uint32_t per_byte)
{
    uint64_t whole = elements / FAST_PACK * (FAST_PACK / per_byte);
    return whole + (elements % FAST_PACK + per_byte - 1) / per_byte;
}

static void fast_plan_sizes(fast_plan *plan)
{
    plan->nibble_bytes = fast_field_bytes(plan->elements, 2);
    plan->extra_bytes = 0;
    if (plan->form == FAST_FORM_FP16) plan->extra_bytes = fast_field_bytes(plan->elements, 4);
    if (plan->form == FAST_FORM_FP32 && !(plan->kind & FAST_FLAG_NO_EXTRAS)) {
        plan->extra_bytes = 2 * (uint64_t)plan->elements;
    }
}

static uint64_t fast_tile_bytes(const fast_plan *plan)
{
    return (uint64_t)plan->elements * plan->element_bytes;
}

/* Without escapes. */
static uint64_t fast_coded_bytes(const fast_plan *plan)
{
    return FAST_HEAD_BYTES + plan->nibble_bytes + plan->elements + plan->extra_bytes;
}

/* Counts the exponents of a part of the tile that visits all channels in turn. */
static void fast_sample(const fast_plan *plan, const fast_kernels *kernels, const uint8_t *source,
                        uint32_t counts[256])
{
    uint8_t bytes[4][FAST_SAMPLE_RUN];
    uint8_t wides[2 * FAST_SAMPLE_RUN];
    const fast_parts parts = {bytes[0], bytes[1], bytes[2], bytes[3], wides};
    memset(counts, 0, 256 * sizeof counts[0]);
    const uint32_t step = plan->elements < FAST_TILE / 4 ? FAST_SAMPLE_RUN : FAST_SAMPLE_STEP;
    for (uint32_t at = 0; at < plan->elements; at += step) {
        uint32_t count = (uint32_t)fast_min(plan->elements - at, FAST_SAMPLE_RUN);
        kernels->split(plan->form, source + (uint64_t)at * plan->element_bytes, count, &parts);
        for (uint32_t i = 0; i < count; i++) {
            counts[bytes[0][i]]++;
        }
    }
}

/* The start of the run of exponents that occur most. */
static uint8_t fast_best_base(const uint32_t counts[256], uint32_t first, uint32_t width,
                              uint32_t *covered)
{
    uint32_t best = first;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < width; i++) {
        sum += counts[first + i];
    }
    *covered = sum;
    for (uint32_t base = first + 1; base + width <= 256; base++) {
        sum += counts[base + width - 1];
        sum -= counts[base - 1];
        if (sum > *covered) {
            *covered = sum;
            best = base;
        }
    }
    return (uint8_t)best;
}

static void fast_choose_window(fast_plan *plan, const uint32_t counts[256])
{
    uint32_t plain;
    uint32_t beside_zero;
    const uint32_t width = plan->form == FAST_FORM_FP16 ? 7 : 15;
    uint8_t base = fast_best_base(counts, 0, width, &plain);
    uint8_t next = fast_best_base(counts, 1, width - 1, &beside_zero);
    plan->window.escape = (uint8_t)width;
    plan->window.with_zero = beside_zero + counts[0] > plain;
    plan->window.base = plan->window.with_zero ? (uint8_t)(next - 1) : base;
}

/* Whether all elements have these bits zero. */
static bool fast_bits_clear(const uint8_t *source, uint32_t elements, uint32_t element_bytes,
                            uint32_t bits)
{
    const uint64_t mask = element_bytes == 2 ? bits * UINT64_C(0x0001000100010001)
                                             : bits * UINT64_C(0x0000000100000001);
    const uint64_t bytes = (uint64_t)elements * element_bytes;
    uint64_t at = 0;
    while (at + 64 <= bytes) {
        uint64_t words[8];
        uint64_t any = 0;
        memcpy(words, source + at, sizeof words);
        for (unsigned i = 0; i < 8; i++) {
            any |= words[i];
        }
        if (any & mask) return false;
        at += sizeof words;
    }
    for (; at < bytes; at += element_bytes) {
        uint32_t element = 0;
        memcpy(&element, source + at, element_bytes);
        if (element & bits) return false;
    }
    return true;
}

static void fast_plan_make(fast_plan *plan, uint8_t dtype, const fast_kernels *kernels,
                           const uint8_t *source)
{
    uint32_t counts[256];
    plan->kind = FAST_KIND_BYTE;
    plan->form = FAST_FORM_BF16;
    if (dtype == KVT_DTYPE_FP32) {
        plan->form = FAST_FORM_FP32;
        if (fast_bits_clear(source, plan->elements, 4, 0xffff)) plan->kind |= FAST_FLAG_NO_EXTRAS;
    } else if (dtype == KVT_DTYPE_FP16) {
        plan->form = FAST_FORM_FP16;
        plan->kind = FAST_KIND_FP16;
        if (fast_bits_clear(source, plan->elements, 2, 7)) {
            plan->form = FAST_FORM_FP16_NARROW;
            plan->kind = FAST_KIND_BYTE | FAST_FLAG_NARROW;
        }
    }
    fast_sample(plan, kernels, source, counts);
    fast_choose_window(plan, counts);
    if (plan->window.with_zero) plan->kind |= FAST_FLAG_ZERO;
    fast_plan_sizes(plan);
}

/* The fields of a last run, in plain form: value i of n in place i mod part, from the low end. */
static void fast_pack_last(const uint8_t *fields, uint32_t count, uint32_t bits, uint8_t *packed)
{
    const uint32_t part = (count * bits + 7) / 8;
    memset(packed, 0, part);
    for (uint32_t i = 0; i < count; i++) {
        packed[i % part] = (uint8_t)(packed[i % part] | fields[i] << (i / part * bits));
    }
}

static void fast_unpack_last(const uint8_t *packed, uint32_t count, uint32_t bits, uint8_t *fields)
{
    const uint32_t part = (count * bits + 7) / 8;
    for (uint32_t i = 0; i < count; i++) {
        fields[i] =
            (uint8_t)((uint32_t)packed[i % part] >> (i / part * bits) & ((1u << bits) - 1u));
    }
}

static void fast_pack_nibbles(const fast_kernels *kernels, const uint8_t *nibbles, uint32_t count,
                              uint8_t *packed)
{
    uint32_t i = 0;
    for (; i + FAST_PACK <= count; i += FAST_PACK) {
        kernels->pack(nibbles + i, packed + i / 2);
    }
    if (i < count) fast_pack_last(nibbles + i, count - i, 4, packed + i / 2);
}

static void fast_unpack_nibbles(const fast_kernels *kernels, const uint8_t *packed, uint32_t count,
                                uint8_t *nibbles)
{
    uint32_t i = 0;
    for (; i + FAST_PACK <= count; i += FAST_PACK) {
        kernels->unpack(packed + i / 2, nibbles + i);
    }
    if (i < count) fast_unpack_last(packed + i / 2, count - i, 4, nibbles + i);
}

static void fast_pack_pairs(const uint8_t *pairs, uint32_t count, uint8_t *packed)
{
    const uint32_t quarter = FAST_PACK / 4;
    uint32_t at = 0;
    for (; at + FAST_PACK <= count; at += FAST_PACK) {
        const uint8_t *from = pairs + at;
        for (uint32_t i = 0; i < quarter; i++) {
            packed[at / 4 + i] = (uint8_t)(from[i] | from[quarter + i] << 2 |
                                           from[2 * quarter + i] << 4 | from[3 * quarter + i] << 6);
        }
    }
    if (at < count) fast_pack_last(pairs + at, count - at, 2, packed + at / 4);
}

static void fast_unpack_pairs(const uint8_t *packed, uint32_t count, uint8_t *pairs)
{
    const uint32_t quarter = FAST_PACK / 4;
    uint32_t at = 0;
    for (; at + FAST_PACK <= count; at += FAST_PACK) {
        for (uint32_t i = 0; i < FAST_PACK; i++) {
            pairs[at + i] = (uint8_t)(packed[at / 4 + i % quarter] >> (i / quarter * 2) & 3);
        }
    }
    if (at < count) fast_unpack_last(packed + at / 4, count - at, 2, pairs + at);
}

/* Where escapes are written or read. */
typedef struct fast_escapes {
    uint8_t *at;
    uint8_t *end;
} fast_escapes;

/* The top bit of every byte of eight codes that is the escape. Codes have four bits. */
static uint64_t fast_escape_bits(const uint8_t *codes, uint8_t escape)
{
    uint64_t eight;
    memcpy(&eight, codes, sizeof eight);
    eight ^= escape * UINT64_C(0x0101010101010101);
    return ~(eight + UINT64_C(0x7f7f7f7f7f7f7f7f)) & UINT64_C(0x8080808080808080);
}

static bool fast_put_escapes(fast_escapes *escapes, const uint8_t *exponents, const uint8_t *codes,
                             uint32_t count, uint8_t escape)
{
    uint32_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t bits = fast_escape_bits(codes + i, escape);
        for (; bits != 0; bits &= bits - 1) {
            if (escapes->at == escapes->end) return false;
            *escapes->at++ = exponents[i + (uint32_t)__builtin_ctzll(bits) / 8];
        }
    }
    for (; i < count; i++) {
        if (codes[i] != escape) continue;
        if (escapes->at == escapes->end) return false;
        *escapes->at++ = exponents[i];
    }
    return true;
}

/* Fills nibbles, lows and extras at planes. False when the escapes pass their room. */
static bool fast_encode_runs(const fast_plan *plan, const fast_kernels *kernels,
                             const uint8_t *source, uint8_t *planes, fast_escapes *escapes)
{
    uint8_t exponents[FAST_RUN];
    uint8_t codes[FAST_RUN];
    uint8_t signs[FAST_RUN];
    uint8_t pairs[FAST_RUN];
    uint8_t wides[2 * FAST_RUN];
    uint8_t *lows = planes + plan->nibble_bytes;
    uint8_t *extras = lows + plan->elements;
    uint32_t at = 0;
    if (plan->form == FAST_FORM_BF16 && kernels->encode_bf16 != NULL) {
        at = kernels->encode_bf16(source, plan->elements, &plan->window, planes, lows, &escapes->at,
                                  escapes->end);
    }
    for (; at < plan->elements; at += FAST_RUN) {
        const uint32_t count = (uint32_t)fast_min(plan->elements - at, FAST_RUN);
        const bool wide = plan->form == FAST_FORM_FP32 && plan->extra_bytes > 0;
        const fast_parts parts = {exponents, lows + at, signs, pairs,
                                  wide ? extras + 2 * (uint64_t)at : wides};
        kernels->split(plan->form, source + (uint64_t)at * plan->element_bytes, count, &parts);
        bool escaped = kernels->code(exponents, count, &plan->window, codes);
        if (escaped && !fast_put_escapes(escapes, exponents, codes, count, plan->window.escape)) {
            return false;
        }
        if (plan->form == FAST_FORM_FP16) {
            for (uint32_t i = 0; i < count; i++) {
                codes[i] |= signs[i];
            }
            fast_pack_pairs(pairs, count, extras + at / 4);
        }
        fast_pack_nibbles(kernels, codes, count, planes + at / 2);
    }
    return true;
}

typedef struct fast_target {
    uint8_t *bytes;
    uint64_t limit;
    uint64_t used;
} fast_target;

static bool fast_encode_raw(fast_target *target, const fast_plan *plan, const uint8_t *source)
{
    const uint64_t bytes = fast_tile_bytes(plan);
    if (target->limit - target->used < FAST_HEAD_BYTES + bytes) return false;
    memset(target->bytes + target->used, 0, FAST_HEAD_BYTES);
    memcpy(target->bytes + target->used + FAST_HEAD_BYTES, source, bytes);
    target->used += FAST_HEAD_BYTES + bytes;
    return true;
}

/* False when the room is too small. A raw tile is larger than any coded one, so that a coded tile
 * without room has none as a raw one either. */
static bool fast_encode_tile(fast_target *target, const fast_kernels *kernels, fast_plan *plan,
                             uint8_t dtype, const uint8_t *source)
{
    fast_plan_make(plan, dtype, kernels, source);
    const uint64_t room = target->limit - target->used;
    const uint64_t coded = fast_coded_bytes(plan);
    const uint64_t raw = FAST_HEAD_BYTES + fast_tile_bytes(plan);
    if (coded >= raw) return fast_encode_raw(target, plan, source);
    if (coded > room) return false;
    uint8_t *head = target->bytes + target->used;
    uint8_t *first = head + coded;
    fast_escapes escapes = {first, first + fast_min(room - coded, raw - coded - 1)};
    if (!fast_encode_runs(plan, kernels, source, head + FAST_HEAD_BYTES, &escapes)) {
        return fast_encode_raw(target, plan, source);
    }
    memset(head, 0, FAST_HEAD_BYTES);
    head[0] = plan->kind;
    head[1] = plan->window.base;
    codecs_store32(head + 4, (uint32_t)(escapes.at - first));
    target->used += (uint64_t)(escapes.at - head);
    return true;
}

static bool fast_dtype_known(uint8_t dtype)
{
    return dtype == KVT_DTYPE_FP16 || dtype == KVT_DTYPE_BF16 || dtype == KVT_DTYPE_FP32;
}

kvt_status lossless_fast_encode(uint8_t dtype, const void *source, uint64_t source_bytes,
                                void *target, uint64_t capacity, uint64_t *written_out)
{
    const fast_kernels *kernels = fast_kernels_choose();
    const uint32_t element = kvt_dtype_bytes(dtype);
    *written_out = 0;
    if (!fast_dtype_known(dtype) || source_bytes == 0 || source_bytes % element != 0) {
        return KVT_RAW;
    }
    const uint64_t shrunk_max = source_bytes - 1;
    fast_target out = {target, fast_min(capacity, shrunk_max), 0};
    for (uint64_t at = 0; at < source_bytes;) {
        fast_plan plan = {.element_bytes = element};
        plan.elements = (uint32_t)fast_min((source_bytes - at) / element, FAST_TILE);
        if (!fast_encode_tile(&out, kernels, &plan, dtype, (const uint8_t *)source + at)) {
            return capacity >= shrunk_max ? KVT_RAW : KVT_E_SPACE;
        }
        at += fast_tile_bytes(&plan);
    }
    *written_out = out.used;
    return KVT_OK;
}

/* Reads a tile's head into the plan. */
static bool fast_read_head(fast_plan *plan, uint8_t dtype, const uint8_t *head)
{
    const uint8_t kind = head[0] & FAST_KIND_MASK;
    const uint8_t flags = head[0] & (uint8_t)~FAST_KIND_MASK;
    uint8_t allowed = FAST_FLAG_ZERO;
    if (head[2] | head[3]) return false;
    plan->kind = head[0];
    plan->window.base = head[1];
    plan->window.with_zero = (flags & FAST_FLAG_ZERO) != 0;
    plan->window.escape = 15;
    plan->form = FAST_FORM_BF16;
    if (kind == FAST_KIND_RAW) return head[0] == 0 && head[1] == 0 && codecs_load32(head + 4) == 0;
    if (dtype == KVT_DTYPE_FP16) {
        const bool narrow = (flags & FAST_FLAG_NARROW) != 0;
        if (narrow != (kind == FAST_KIND_BYTE)) return false;
        plan->form = narrow ? FAST_FORM_FP16_NARROW : FAST_FORM_FP16;
        plan->window.escape = narrow ? 15 : 7;
        allowed |= FAST_FLAG_NARROW;
    } else if (dtype == KVT_DTYPE_FP32) {
        plan->form = FAST_FORM_FP32;
        allowed |= FAST_FLAG_NO_EXTRAS;
    }
    if (kind != (plan->form == FAST_FORM_FP16 ? FAST_KIND_FP16 : FAST_KIND_BYTE)) return false;
    fast_plan_sizes(plan);
    return (flags & (uint8_t)~allowed) == 0;
}

/* Escapes that are left. */
typedef struct fast_source {
    const uint8_t *at;
    const uint8_t *end;
} fast_source;

static bool fast_take_escapes(fast_source *escapes, const uint8_t *codes, uint32_t count,
                              uint8_t escape, uint8_t *exponents)
{
    uint32_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t bits = fast_escape_bits(codes + i, escape);
        for (; bits != 0; bits &= bits - 1) {
            if (escapes->at == escapes->end) return false;
            exponents[i + (uint32_t)__builtin_ctzll(bits) / 8] = *escapes->at++;
        }
    }
    for (; i < count; i++) {
        if (codes[i] != escape) continue;
        if (escapes->at == escapes->end) return false;
        exponents[i] = *escapes->at++;
    }
    return true;
}

/* Elements from `at` to `end`; both are at runs, but for the tile's end. */
static bool fast_decode_part(const fast_plan *plan, const fast_kernels *kernels,
                             const uint8_t *planes, uint32_t at, uint32_t end, fast_source *escapes,
                             uint8_t *target)
{
    uint8_t exponents[FAST_RUN];
    uint8_t codes[FAST_RUN];
    uint8_t signs[FAST_RUN];
    uint8_t pairs[FAST_RUN];
    static const uint8_t no_wides[2 * FAST_RUN];
    const uint8_t *lows = planes + plan->nibble_bytes;
    const uint8_t *extras = lows + plan->elements;
    const uint32_t start = at;
    if (plan->form == FAST_FORM_BF16 && kernels->decode_bf16 != NULL) {
        const bool stream = plan->stream && (uintptr_t)target % FAST_STREAM_ALIGN == 0;
        at += kernels->decode_bf16(planes + at / 2, lows + at, end - at, &plan->window,
                                   &escapes->at, escapes->end, target, stream);
    }
    for (; at < end; at += FAST_RUN) {
        const uint32_t count = (uint32_t)fast_min(end - at, FAST_RUN);
        const bool wide = plan->form == FAST_FORM_FP32 && plan->extra_bytes > 0;
        const fast_view parts = {exponents, lows + at, signs, pairs,
                                 wide ? extras + 2 * (uint64_t)at : no_wides};
        fast_unpack_nibbles(kernels, planes + at / 2, count, codes);
        if (plan->form == FAST_FORM_FP16) {
            for (uint32_t i = 0; i < count; i++) {
                signs[i] = codes[i] & 8;
                codes[i] &= 7;
            }
            fast_unpack_pairs(extras + at / 4, count, pairs);
        }
        bool escaped = kernels->uncode(codes, count, &plan->window, exponents);
        if (escaped && !fast_take_escapes(escapes, codes, count, plan->window.escape, exponents)) {
            return false;
        }
        kernels->merge(plan->form, &parts, count,
                       target + (uint64_t)(at - start) * plan->element_bytes);
    }
    return true;
}

/* A tile's elements; the tile begins at byte `first` of the matrix. */
static bool fast_decode_runs(fast_plan *plan, const fast_kernels *kernels, const uint8_t *planes,
                             fast_source *escapes, const view_rows *target, uint64_t first)
{
    _Alignas(64) uint8_t tile[VIEW_TILE_BYTES];
    const bool large = plan->stream;
    const uint64_t piece = view_rows_piece(target, sizeof tile / plan->element_bytes);
    for (uint64_t at = 0; at < plan->elements;) {
        const uint64_t end = at + fast_min(plan->elements - at, piece);
        const uint64_t place = first + at * plan->element_bytes;
        const uint64_t bytes = (end - at) * plan->element_bytes;
        uint8_t *room = view_rows_room(target, place, bytes, tile);
        plan->stream = large && room != tile;
        if (!fast_decode_part(plan, kernels, planes, (uint32_t)at, (uint32_t)end, escapes, room)) {
            return false;
        }
        view_rows_keep(target, place, bytes, room, tile);
        at = end;
    }
    return escapes->at == escapes->end;
}

/* Decodes a tile of these elements; returns the bytes taken, or 0 when it is not sound. */
static uint64_t fast_decode_tile(fast_plan *plan, const fast_kernels *kernels, uint8_t dtype,
                                 const uint8_t *source, uint64_t left, const view_rows *target,
                                 uint64_t first)
{
    if (left < FAST_HEAD_BYTES || !fast_read_head(plan, dtype, source)) return 0;
    if (plan->kind == FAST_KIND_RAW) {
        const uint64_t bytes = fast_tile_bytes(plan);
        if (left - FAST_HEAD_BYTES < bytes) return 0;
        view_rows_scatter(target, first, bytes, source + FAST_HEAD_BYTES);
        return FAST_HEAD_BYTES + bytes;
    }
    const uint64_t coded = fast_coded_bytes(plan);
    const uint64_t escaped = codecs_load32(source + 4);
    if (left < coded || left - coded < escaped) return 0;
    fast_source escapes = {source + coded, source + coded + escaped};
    if (!fast_decode_runs(plan, kernels, source + FAST_HEAD_BYTES, &escapes, target, first)) {
        return 0;
    }
    return coded + escaped;
}

kvt_status lossless_fast_decode(uint8_t dtype, const void *source, uint64_t source_bytes,
                                const view_rows *target)
{
    const fast_kernels *kernels = fast_kernels_choose();
    const uint32_t element = kvt_dtype_bytes(dtype);
    const uint64_t target_bytes = target->bytes;
    const uint8_t *from = source;
    if (!fast_dtype_known(dtype) || target_bytes == 0 || target_bytes % element != 0) {
        return KVT_E_CORRUPT;
    }
    for (uint64_t at = 0; at < target_bytes;) {
        fast_plan plan = {.element_bytes = element, .stream = target_bytes >= FAST_STREAM_MIN};
        plan.elements = (uint32_t)fast_min((target_bytes - at) / element, FAST_TILE);
        uint64_t taken = fast_decode_tile(&plan, kernels, dtype, from, source_bytes, target, at);
        if (taken == 0) return KVT_E_CORRUPT;
        from += taken;
        source_bytes -= taken;
        at += fast_tile_bytes(&plan);
    }
    return source_bytes == 0 ? KVT_OK : KVT_E_CORRUPT;
}
