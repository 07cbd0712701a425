/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_block.c - see transform_block.h. Re-entrant.
 */
#include "transform_block.h"

#include "codecs.h"

#include <assert.h>
#include <string.h>

enum {
    /* A class is half a power of two wide. Class 0 ends at a spread of 2^-4 steps: of a spread of
     * a quarter of a step one code in twenty is not 0. */
    ORDER_SHIFT = 2,
    ORDER_OFFSET = 36,
    BLOCK_LANES = TRANSFORM_BLOCK_TOKENS
};

/* The logarithm of a step of `step` 64ths, to the nearest eighth of a power of two. */
static int32_t order_log2_eighths(uint32_t step)
{
    /* The first step that is nearest to each eighth of an octave, from 64 to 128, in 1/1024. */
    static const uint32_t edges[8] = {68438, 74632, 81386, 88752, 96785, 105545, 115098, 125515};
    int32_t eighths = 0;
    uint32_t scaled = step;
    assert(step > 0 && step <= TRANSFORM_STEP_MAX);
    for (; scaled < 64 << 4; scaled *= 2)
        eighths -= 8; /* to 2^10 .. 2^11, sixteen times 64 .. 128 */
    eighths += 4 * 8;
    for (uint32_t i = 0; i < 8; i++)
        eighths += scaled * 64 >= edges[i] ? 1 : 0;
    return eighths;
}

static uint32_t order_class(int32_t spread, int32_t offset)
{
    const int32_t class = (spread + offset) >> ORDER_SHIFT;
    if (class < 0) return 0;
    return class < TRANSFORM_CLASSES - 1 ? (uint32_t) class : TRANSFORM_CLASSES - 1;
}

int32_t transform_class_offset(uint32_t step)
{
    return ORDER_OFFSET - order_log2_eighths(step);
}

uint32_t transform_class(int16_t spread, uint32_t step)
{
    return order_class(spread, transform_class_offset(step));
}

void transform_order_make(const transform_basis *basis, uint64_t first_component,
                          uint32_t components, uint32_t step, transform_order *order)
{
    const int16_t *spreads = basis->spreads + first_component * TRANSFORM_BANDS;
    const int32_t offset = transform_class_offset(step);
    uint32_t next[TRANSFORM_CLASSES][TRANSFORM_BANDS] = {{0}};
    uint32_t at = 0;
    assert(components <= UINT16_MAX);
    order->components = components;
    for (uint32_t i = 0; i < components * TRANSFORM_BANDS; i++)
        next[order_class(spreads[i], offset)][i % TRANSFORM_BANDS]++;
    for (uint32_t class = 0; class < TRANSFORM_CLASSES; class ++) {
        for (uint32_t band = 0; band < TRANSFORM_BANDS; band++) {
            const uint32_t count = next[class][band];
            order->starts[class][band] = next[class][band] = at;
            at += count;
        }
    }
    for (uint32_t band = 0; band < TRANSFORM_BANDS; band++)
        order->starts[TRANSFORM_CLASSES][band] = at;
    for (uint32_t i = 0; i < components * TRANSFORM_BANDS; i++) {
        const uint32_t class = order_class(spreads[i], offset);
        order->by_class[next[class][i % TRANSFORM_BANDS]++] = (uint16_t)(i / TRANSFORM_BANDS);
    }
}

/* A run of units that are stored alike: of one class and band. */
typedef struct order_run {
    uint32_t first, end; /* in by_class */
    uint32_t lane;       /* the units' first one */
    uint32_t lanes;      /* of each */
} order_run;

static order_run order_run_of(const transform_order *order, uint32_t class, uint32_t band,
                              uint32_t groups)
{
    const bool last = band + 1 == TRANSFORM_BANDS;
    return (order_run){.first = order->starts[class][band],
                       .end = last ? order->starts[class + 1][0] : order->starts[class][band + 1],
                       .lane = transform_band_start(band) * groups,
                       .lanes =
                           (transform_band_start(band + 1) - transform_band_start(band)) * groups};
}

/* Lanes of all units of a class. */
static uint64_t order_lanes(const transform_order *order, uint32_t class, uint32_t groups)
{
    uint64_t lanes = 0;
    for (uint32_t band = 0; band < TRANSFORM_BANDS; band++) {
        const order_run run = order_run_of(order, class, band, groups);
        lanes += (uint64_t)(run.end - run.first) * run.lanes;
    }
    return lanes;
}

/* Symbols of a block: those of all classes but 0. */
static uint64_t block_symbols(const transform_order *order, uint32_t groups)
{
    return (uint64_t)order->components * TRANSFORM_ALONG * groups - order_lanes(order, 0, groups);
}

/* Bytes of the low bits of one unit. */
static uint64_t block_low_bytes(uint32_t low_bits, uint32_t lanes)
{
    return ((uint64_t)low_bits * lanes + 7) / 8;
}

static uint64_t block_all_low_bytes(const transform_basis *basis, const transform_order *order,
                                    uint32_t groups)
{
    uint64_t bytes = 0;
    for (uint32_t class = 1; class < TRANSFORM_CLASSES; class ++) {
        for (uint32_t band = 0; band < TRANSFORM_BANDS; band++) {
            const order_run run = order_run_of(order, class, band, groups);
            bytes +=
                (run.end - run.first) * block_low_bytes(basis->tables[class].low_bits, run.lanes);
        }
    }
    return bytes;
}

/* The symbol of a code without its low bits: 0 for what no table has. */
static uint8_t block_symbol(int32_t high)
{
    return high >= -127 && high <= 127 ? (uint8_t)(high + 128) : 0;
}

static void block_make_symbols(const transform_basis *basis, const transform_order *order,
                               const int16_t *codes, uint32_t groups, uint8_t *symbols)
{
    for (uint32_t class = 1; class < TRANSFORM_CLASSES; class ++) {
        const uint32_t low_bits = basis->tables[class].low_bits;
        for (uint32_t band = 0; band < TRANSFORM_BANDS; band++) {
            const order_run run = order_run_of(order, class, band, groups);
            for (uint32_t i = run.first; i < run.end; i++, symbols += run.lanes) {
                const int16_t *unit = codes + (uint64_t)order->by_class[i] * BLOCK_LANES + run.lane;
                for (uint32_t k = 0; k < run.lanes; k++)
                    symbols[k] = block_symbol(unit[k] >> low_bits);
            }
        }
    }
}

/* Codes the symbols of all classes, the last one first. Returns the code's bytes in
 * *code_bytes_out. */
static bool block_write_code(const transform_basis *basis, const transform_order *order,
                             uint32_t groups, const transform_room *room, rans_target *target,
                             uint64_t *code_bytes_out)
{
    uint16_t states[RANS_STATES_MAX];
    uint64_t left = block_symbols(order, groups);
    const uint32_t state_count = rans_state_count(left);
    const uint64_t states_bytes = (uint64_t)state_count * RANS_STATE_BYTES;
    const uint64_t space = target->limit - target->used;
    if (states_bytes > space) return false;
    uint8_t *begin = target->bytes + target->used + states_bytes;
    uint8_t *end = begin + (left < space - states_bytes ? left : space - states_bytes);
    uint8_t *at = end;
    rans_encode_start(state_count, states);
    for (uint32_t class = TRANSFORM_CLASSES - 1; class > 0; class --) {
        const uint64_t count = order_lanes(order, class, groups);
        if (count == 0) continue;
        left -= count;
        rans_fill_encode_table(&basis->tables[class].symbols, room->encode_table);
        at = rans_encode_more(room->encode_table, room->symbols + left, count, state_count, begin,
                              at, states);
        if (at == NULL) return false;
    }
    *code_bytes_out = (uint64_t)(end - at);
    memcpy(target->bytes + target->used, states, states_bytes);
    memmove(begin, at, *code_bytes_out);
    target->used += states_bytes + *code_bytes_out;
    return true;
}

/* Appends the low bits of one unit. */
static bool block_write_low(uint32_t low_bits, const int16_t *unit, uint32_t lanes,
                            rans_target *target)
{
    uint8_t packed[BLOCK_LANES * TRANSFORM_LOW_BITS_MAX / 8] = {0};
    for (uint32_t k = 0; k < lanes; k++) {
        const uint32_t bit = k * low_bits;
        const uint32_t low = ((uint32_t)unit[k] & ((1u << low_bits) - 1)) << bit % 8;
        for (uint32_t b = 0; b < 3 && low >> 8 * b != 0; b++)
            packed[bit / 8 + b] |= (uint8_t)(low >> 8 * b);
    }
    return rans_append(target, packed, block_low_bytes(low_bits, lanes));
}

static bool block_write_low_bits(const transform_basis *basis, const transform_order *order,
                                 const int16_t *codes, uint32_t groups, rans_target *target)
{
    for (uint32_t class = 1; class < TRANSFORM_CLASSES; class ++) {
        const uint32_t low_bits = basis->tables[class].low_bits;
        for (uint32_t band = 0; low_bits > 0 && band < TRANSFORM_BANDS; band++) {
            const order_run run = order_run_of(order, class, band, groups);
            for (uint32_t i = run.first; i < run.end; i++) {
                const int16_t *unit = codes + (uint64_t)order->by_class[i] * BLOCK_LANES + run.lane;
                if (!block_write_low(low_bits, unit, run.lanes, target)) return false;
            }
        }
    }
    return true;
}

/* Appends the codes of one unit whose symbols the table lacks. */
static bool block_write_escaped(const transform_table *table, const int16_t *unit, uint32_t lanes,
                                rans_target *target)
{
    for (uint32_t k = 0; k < lanes; k++) {
        const uint8_t symbol = block_symbol(unit[k] >> table->low_bits);
        if (symbol != 0 && table->symbols.of[symbol] != 0) continue;
        if (!rans_append(target, &unit[k], sizeof unit[k])) return false;
    }
    return true;
}

/* Appends the codes whose symbols the tables lack; few units have any. */
static bool block_write_escapes(const transform_basis *basis, const transform_order *order,
                                const int16_t *codes, uint32_t groups, const transform_room *room,
                                rans_target *target)
{
    const uint8_t *symbols = room->symbols;
    for (uint32_t class = 1; class < TRANSFORM_CLASSES; class ++) {
        const transform_table *table = &basis->tables[class];
        if (order_lanes(order, class, groups) == 0) continue;
        rans_fill_encode_table(&table->symbols, room->encode_table);
        for (uint32_t band = 0; band < TRANSFORM_BANDS; band++) {
            const order_run run = order_run_of(order, class, band, groups);
            for (uint32_t i = run.first; i < run.end; i++, symbols += run.lanes) {
                const int16_t *unit = codes + (uint64_t)order->by_class[i] * BLOCK_LANES + run.lane;
                if (!rans_any_escapes(room->encode_table, symbols, run.lanes)) continue;
                if (!block_write_escaped(table, unit, run.lanes, target)) return false;
            }
        }
    }
    return true;
}

static bool block_write_exceptions(const transform_order *order, const int16_t *codes,
                                   uint32_t groups, rans_target *target)
{
    for (uint32_t band = 0; band < TRANSFORM_BANDS; band++) {
        const order_run run = order_run_of(order, 0, band, groups);
        for (uint32_t i = run.first; i < run.end; i++) {
            const uint16_t component = order->by_class[i];
            const int16_t *row = codes + (uint64_t)component * BLOCK_LANES;
            for (uint32_t lane = run.lane; lane < run.lane + run.lanes; lane++) {
                uint8_t stored[TRANSFORM_EXCEPTION_BYTES] = {
                    (uint8_t)component, (uint8_t)(component >> 8), (uint8_t)lane};
                if (row[lane] == 0) continue;
                memcpy(stored + 4, &row[lane], sizeof row[lane]);
                if (!rans_append(target, stored, sizeof stored)) return false;
            }
        }
    }
    return true;
}

bool transform_block_write(const transform_basis *basis, const transform_order *order,
                           const int16_t *codes, uint32_t groups, const transform_room *room,
                           uint64_t head_at, rans_target *target)
{
    uint64_t code_bytes;
    assert(groups > 0 && groups <= BLOCK_LANES / TRANSFORM_ALONG);
    block_make_symbols(basis, order, codes, groups, room->symbols);
    if (!block_write_code(basis, order, groups, room, target, &code_bytes)) return false;
    if (!block_write_low_bits(basis, order, codes, groups, target)) return false;
    const uint64_t escapes_at = target->used;
    if (!block_write_escapes(basis, order, codes, groups, room, target)) return false;
    const uint64_t exceptions_at = target->used;
    if (!block_write_exceptions(order, codes, groups, target)) return false;
    const uint64_t exceptions = target->used - exceptions_at;
    uint8_t *head = target->bytes + head_at;
    codecs_store32(head, (uint32_t)code_bytes);
    codecs_store32(head + 4, (uint32_t)((exceptions_at - escapes_at) / sizeof(int16_t)));
    codecs_store32(head + 8, (uint32_t)(exceptions / TRANSFORM_EXCEPTION_BYTES));
    return true;
}

uint64_t transform_block_bytes(const transform_basis *basis, const transform_order *order,
                               uint32_t groups, const uint8_t *head)
{
    const uint64_t symbols = block_symbols(order, groups);
    const uint64_t code_bytes = codecs_load32(head);
    const uint64_t escapes = codecs_load32(head + 4);
    const uint64_t exceptions = codecs_load32(head + 8);
    const uint64_t unstored = order_lanes(order, 0, groups);
    if (code_bytes > symbols || escapes > symbols || exceptions > unstored) return UINT64_MAX;
    return (uint64_t)rans_state_count(symbols) * RANS_STATE_BYTES + code_bytes +
           block_all_low_bytes(basis, order, groups) + escapes * sizeof(int16_t) +
           exceptions * TRANSFORM_EXCEPTION_BYTES;
}

/* Where the parts of a block lie that follow its code. */
typedef struct block_parts {
    const uint8_t *low;
    const uint8_t *escape;
    const uint8_t *escape_end;
    const uint8_t *exception;
    const uint8_t *exception_end;
} block_parts;

/* Puts the low bits of a unit behind its codes; escapes, which lack them, keep their place. False
 * when a code is beyond 32767. */
static bool block_join_low(uint32_t low_bits, const uint8_t *low_bytes, uint32_t lanes,
                           int16_t *row)
{
    int32_t most = 0;
    int32_t least = 0;
    for (uint32_t t = 0; t < lanes; t++) {
        const uint32_t bit = t * low_bits;
        const uint32_t last = ((t + 1) * low_bits - 1) / 8;
        uint32_t held = 0;
        for (uint32_t b = bit / 8; b <= last; b++)
            held |= (uint32_t)low_bytes[b] << 8 * (b - bit / 8);
        const int32_t low = (int32_t)(held >> bit % 8 & ((1u << low_bits) - 1));
        const int32_t code = (int32_t)row[t] * (1 << low_bits) + (row[t] == -128 ? 0 : low);
        most = code > most ? code : most;
        least = code < least && row[t] != -128 ? code : least;
        row[t] = (int16_t)code;
    }
    return most <= INT16_MAX && least >= -INT16_MAX;
}

/* Puts the symbols of one unit together with what they lack. False when escapes run out, or a code
 * is beyond 32767. */
static bool block_join(const transform_table *table, const uint8_t *symbols, uint32_t lanes,
                       block_parts *parts, int16_t *row)
{
    uint32_t escapes = 0;
    for (uint32_t t = 0; t < lanes; t++) {
        row[t] = (int16_t)((int32_t)symbols[t] - 128);
        escapes |= symbols[t] == 0 ? 1u : 0u;
    }
    if (table->low_bits > 0 && !block_join_low(table->low_bits, parts->low, lanes, row))
        return false;
    parts->low += block_low_bytes(table->low_bits, lanes);
    for (uint32_t t = 0; escapes != 0 && t < lanes; t++) {
        if (symbols[t] != 0) continue;
        if (parts->escape == parts->escape_end) return false;
        memcpy(&row[t], parts->escape, sizeof row[t]);
        parts->escape += sizeof row[t];
    }
    return true;
}

/* The band that a lane lies in. */
static uint32_t block_band(uint32_t lane, uint32_t groups)
{
    uint32_t band = TRANSFORM_BANDS - 1;
    while (lane < transform_band_start(band) * groups)
        band--;
    return band;
}

/* Clears what is not stored, and sets in live[component] the bits of the bands that are. */
static void block_clear(const transform_order *order, uint32_t groups, int16_t *codes,
                        uint8_t *live)
{
    const uint32_t lanes = groups * TRANSFORM_ALONG;
    memset(live, (1 << TRANSFORM_BANDS) - 1, order->components);
    for (uint32_t band = 0; band < TRANSFORM_BANDS; band++) {
        const order_run run = order_run_of(order, 0, band, groups);
        for (uint32_t i = run.first; i < run.end; i++) {
            const uint16_t component = order->by_class[i];
            memset(codes + (uint64_t)component * BLOCK_LANES + run.lane, 0,
                   run.lanes * sizeof *codes);
            live[component] &= (uint8_t) ~(1u << band);
        }
    }
    for (uint32_t c = 0; lanes < BLOCK_LANES && c < order->components; c++)
        memset(codes + (uint64_t)c * BLOCK_LANES + lanes, 0, (BLOCK_LANES - lanes) * sizeof *codes);
}

/* In the order in which they are stored, by band, component and lane. */
static kvt_status block_read_exceptions(const transform_order *order, const block_parts *parts,
                                        uint32_t groups, int16_t *codes, uint8_t *live)
{
    uint64_t before = 0;
    for (const uint8_t *at = parts->exception; at < parts->exception_end;
         at += TRANSFORM_EXCEPTION_BYTES) {
        const uint32_t component = at[0] | (uint32_t)at[1] << 8;
        int16_t code;
        memcpy(&code, at + 4, sizeof code);
        if (component >= order->components || at[2] >= groups * TRANSFORM_ALONG || at[3] != 0 ||
            code == 0)
            return KVT_E_CORRUPT;
        const uint32_t band = block_band(at[2], groups);
        const uint64_t place = (uint64_t)(band + 1) << 32 | component << 8 | at[2];
        if ((live[component] >> band & 1) != 0 || place <= before) return KVT_E_CORRUPT;
        before = place;
        live[component] |= 1 << TRANSFORM_BANDS;
        codes[(uint64_t)component * BLOCK_LANES + at[2]] = code;
    }
    return KVT_OK;
}

/* Reads all units of a class. False when they are damaged. */
static bool block_read_class(const transform_table *table, const transform_order *order,
                             uint32_t class, uint32_t groups, const uint8_t *symbols,
                             block_parts *parts, int16_t *codes)
{
    for (uint32_t band = 0; band < TRANSFORM_BANDS; band++) {
        const order_run run = order_run_of(order, class, band, groups);
        for (uint32_t i = run.first; i < run.end; i++, symbols += run.lanes) {
            int16_t *unit = codes + (uint64_t)order->by_class[i] * BLOCK_LANES + run.lane;
            if (!block_join(table, symbols, run.lanes, parts, unit)) return false;
        }
    }
    return true;
}

kvt_status transform_block_read(const transform_basis *basis, const transform_order *order,
                                const uint8_t *head, const uint8_t *source, uint32_t groups,
                                const transform_room *room, int16_t *codes, uint8_t *live)
{
    rans_decoder decoder;
    const uint64_t code_bytes = codecs_load32(head);
    const uint32_t state_count = rans_state_count(block_symbols(order, groups));
    const uint8_t *code = source + (uint64_t)state_count * RANS_STATE_BYTES;
    block_parts parts = {.low = code + code_bytes};
    parts.escape = parts.low + block_all_low_bytes(basis, order, groups);
    parts.escape_end = parts.escape + codecs_load32(head + 4) * sizeof(int16_t);
    parts.exception = parts.escape_end;
    parts.exception_end =
        parts.exception + (uint64_t)codecs_load32(head + 8) * TRANSFORM_EXCEPTION_BYTES;
    kvt_status status =
        rans_decode_start(&decoder, room->decode_table, state_count, source, code, code_bytes);
    for (uint32_t class = 1; status == KVT_OK && class < TRANSFORM_CLASSES; class ++) {
        const uint64_t count = order_lanes(order, class, groups);
        if (count == 0) continue;
        rans_fill_decode_table(&basis->tables[class].symbols, room->decode_table);
        rans_decode(&decoder, room->symbols, count);
        if (!block_read_class(&basis->tables[class], order, class, groups, room->symbols, &parts,
                              codes))
            return KVT_E_CORRUPT;
    }
    if (status != KVT_OK) return status;
    if (!rans_decode_finish(&decoder) || parts.escape != parts.escape_end) return KVT_E_CORRUPT;
    block_clear(order, groups, codes, live);
    return block_read_exceptions(order, &parts, groups, codes, live);
}
