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
    BLOCK_TOKENS = TRANSFORM_BLOCK_TOKENS
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

uint32_t transform_class(int16_t spread, uint32_t step)
{
    return order_class(spread, ORDER_OFFSET - order_log2_eighths(step));
}

void transform_order_make(const transform_basis *basis, uint64_t first_component,
                          uint32_t components, uint32_t step, transform_order *order)
{
    const int16_t *spreads = basis->spreads + first_component;
    const int32_t offset = ORDER_OFFSET - order_log2_eighths(step);
    uint32_t counts[TRANSFORM_CLASSES] = {0};
    uint32_t next[TRANSFORM_CLASSES];
    assert(components <= UINT16_MAX);
    order->components = components;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < components; i++) {
            const uint32_t class = order_class(spreads[i], offset);
            if (pass == 0)
                counts[class]++;
            else
                order->by_class[next[class]++] = (uint16_t)i;
        }
        order->starts[0] = 0;
        for (uint32_t class = 0; pass == 0 && class < TRANSFORM_CLASSES; class ++) {
            next[class] = order->starts[class];
            order->starts[class + 1] = order->starts[class] + counts[class];
        }
    }
}

/* Symbols of a block: those of all classes but 0. */
static uint64_t block_symbols(const transform_order *order, uint32_t tokens)
{
    return (uint64_t)(order->components - order->starts[1]) * tokens;
}

static uint32_t order_in_class(const transform_order *order, uint32_t class)
{
    return order->starts[class + 1] - order->starts[class];
}

/* Bytes of the low bits of one component. */
static uint64_t block_low_bytes(uint32_t low_bits, uint32_t tokens)
{
    return ((uint64_t)low_bits * tokens + 7) / 8;
}

static uint64_t block_all_low_bytes(const transform_basis *basis, const transform_order *order,
                                    uint32_t tokens)
{
    uint64_t bytes = 0;
    for (uint32_t class = 1; class < TRANSFORM_CLASSES; class ++)
        bytes +=
            order_in_class(order, class) * block_low_bytes(basis->tables[class].low_bits, tokens);
    return bytes;
}

/* The symbol of a code without its low bits: 0 for what no table has. */
static uint8_t block_symbol(int32_t high)
{
    return high >= -127 && high <= 127 ? (uint8_t)(high + 128) : 0;
}

static void block_make_symbols(const transform_basis *basis, const transform_order *order,
                               const int16_t *codes, uint32_t tokens, uint8_t *symbols)
{
    for (uint32_t class = 1; class < TRANSFORM_CLASSES; class ++) {
        const uint32_t low_bits = basis->tables[class].low_bits;
        for (uint32_t i = order->starts[class]; i < order->starts[class + 1]; i++) {
            const int16_t *row = codes + (uint64_t)order->by_class[i] * BLOCK_TOKENS;
            for (uint32_t t = 0; t < tokens; t++)
                symbols[t] = block_symbol(row[t] >> low_bits);
            symbols += tokens;
        }
    }
}

/* Codes the symbols of all classes, the last one first. Returns the code's bytes in
 * *code_bytes_out. */
static bool block_write_code(const transform_basis *basis, const transform_order *order,
                             uint32_t tokens, const transform_room *room, rans_target *target,
                             uint64_t *code_bytes_out)
{
    uint16_t states[RANS_STATES_MAX];
    uint64_t left = block_symbols(order, tokens);
    const uint32_t state_count = rans_state_count(left);
    const uint64_t states_bytes = (uint64_t)state_count * RANS_STATE_BYTES;
    const uint64_t space = target->limit - target->used;
    if (states_bytes > space) return false;
    uint8_t *begin = target->bytes + target->used + states_bytes;
    uint8_t *end = begin + (left < space - states_bytes ? left : space - states_bytes);
    uint8_t *at = end;
    rans_encode_start(state_count, states);
    for (uint32_t class = TRANSFORM_CLASSES - 1; class > 0; class --) {
        const uint64_t count = (uint64_t)order_in_class(order, class) * tokens;
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

static bool block_write_low_bits(const transform_basis *basis, const transform_order *order,
                                 const int16_t *codes, uint32_t tokens, rans_target *target)
{
    for (uint32_t class = 1; class < TRANSFORM_CLASSES; class ++) {
        const uint32_t low_bits = basis->tables[class].low_bits;
        const uint64_t bytes = block_low_bytes(low_bits, tokens);
        if (low_bits == 0) continue;
        for (uint32_t i = order->starts[class]; i < order->starts[class + 1]; i++) {
            const int16_t *row = codes + (uint64_t)order->by_class[i] * BLOCK_TOKENS;
            uint8_t packed[BLOCK_TOKENS * TRANSFORM_LOW_BITS_MAX / 8] = {0};
            for (uint32_t t = 0; t < tokens; t++) {
                const uint32_t bit = t * low_bits;
                const uint32_t low = ((uint32_t)row[t] & ((1u << low_bits) - 1)) << bit % 8;
                for (uint32_t b = 0; b < 3 && low >> 8 * b != 0; b++)
                    packed[bit / 8 + b] |= (uint8_t)(low >> 8 * b);
            }
            if (!rans_append(target, packed, bytes)) return false;
        }
    }
    return true;
}

/* Appends the codes whose symbols the tables lack; few components have any. */
static bool block_write_escapes(const transform_basis *basis, const transform_order *order,
                                const int16_t *codes, uint32_t tokens, const transform_room *room,
                                rans_target *target)
{
    const uint8_t *symbols = room->symbols;
    for (uint32_t class = 1; class < TRANSFORM_CLASSES; class ++) {
        const transform_table *table = &basis->tables[class];
        if (order_in_class(order, class) == 0) continue;
        rans_fill_encode_table(&table->symbols, room->encode_table);
        for (uint32_t i = order->starts[class]; i < order->starts[class + 1]; i++) {
            const bool any = rans_any_escapes(room->encode_table, symbols, tokens);
            symbols += tokens;
            if (!any) continue;
            const int16_t *row = codes + (uint64_t)order->by_class[i] * BLOCK_TOKENS;
            for (uint32_t t = 0; t < tokens; t++) {
                const uint8_t symbol = block_symbol(row[t] >> table->low_bits);
                if (symbol != 0 && table->symbols.of[symbol] != 0) continue;
                if (!rans_append(target, &row[t], sizeof row[t])) return false;
            }
        }
    }
    return true;
}

static bool block_write_exceptions(const transform_order *order, const int16_t *codes,
                                   uint32_t tokens, rans_target *target)
{
    for (uint32_t i = 0; i < order->starts[1]; i++) {
        const uint16_t component = order->by_class[i];
        const int16_t *row = codes + (uint64_t)component * BLOCK_TOKENS;
        for (uint32_t t = 0; t < tokens; t++) {
            uint8_t stored[TRANSFORM_EXCEPTION_BYTES] = {(uint8_t)component,
                                                         (uint8_t)(component >> 8), (uint8_t)t};
            if (row[t] == 0) continue;
            memcpy(stored + 4, &row[t], sizeof row[t]);
            if (!rans_append(target, stored, sizeof stored)) return false;
        }
    }
    return true;
}

bool transform_block_write(const transform_basis *basis, const transform_order *order,
                           const int16_t *codes, uint32_t tokens, const transform_room *room,
                           uint64_t head_at, rans_target *target)
{
    uint64_t code_bytes;
    assert(tokens > 0 && tokens <= BLOCK_TOKENS);
    block_make_symbols(basis, order, codes, tokens, room->symbols);
    if (!block_write_code(basis, order, tokens, room, target, &code_bytes)) return false;
    if (!block_write_low_bits(basis, order, codes, tokens, target)) return false;
    const uint64_t escapes_at = target->used;
    if (!block_write_escapes(basis, order, codes, tokens, room, target)) return false;
    const uint64_t exceptions_at = target->used;
    if (!block_write_exceptions(order, codes, tokens, target)) return false;
    const uint64_t exceptions = target->used - exceptions_at;
    uint8_t *head = target->bytes + head_at;
    codecs_store32(head, (uint32_t)code_bytes);
    codecs_store32(head + 4, (uint32_t)((exceptions_at - escapes_at) / sizeof(int16_t)));
    codecs_store32(head + 8, (uint32_t)(exceptions / TRANSFORM_EXCEPTION_BYTES));
    return true;
}

uint64_t transform_block_bytes(const transform_basis *basis, const transform_order *order,
                               uint32_t tokens, const uint8_t *head)
{
    const uint64_t symbols = block_symbols(order, tokens);
    const uint64_t code_bytes = codecs_load32(head);
    const uint64_t escapes = codecs_load32(head + 4);
    const uint64_t exceptions = codecs_load32(head + 8);
    const uint64_t unstored = (uint64_t)order->starts[1] * tokens;
    if (code_bytes > symbols || escapes > symbols || exceptions > unstored) return UINT64_MAX;
    return (uint64_t)rans_state_count(symbols) * RANS_STATE_BYTES + code_bytes +
           block_all_low_bytes(basis, order, tokens) + escapes * sizeof(int16_t) +
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

/* Puts the low bits of a component behind its codes; escapes, which lack them, keep their place.
 * False when a code is beyond 32767. */
static bool block_join_low(uint32_t low_bits, const uint8_t *low_bytes, uint32_t tokens,
                           int16_t *row)
{
    int32_t most = 0;
    int32_t least = 0;
    for (uint32_t t = 0; t < tokens; t++) {
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

/* Puts the symbols of one component together with what they lack. False when escapes run out, or
 * a code is beyond 32767. */
static bool block_join(const transform_table *table, const uint8_t *symbols, uint32_t tokens,
                       block_parts *parts, int16_t *row)
{
    uint32_t escapes = 0;
    for (uint32_t t = 0; t < tokens; t++) {
        row[t] = (int16_t)((int32_t)symbols[t] - 128);
        escapes |= symbols[t] == 0 ? 1u : 0u;
    }
    if (table->low_bits > 0 && !block_join_low(table->low_bits, parts->low, tokens, row))
        return false;
    parts->low += block_low_bytes(table->low_bits, tokens);
    for (uint32_t t = 0; escapes != 0 && t < tokens; t++) {
        if (symbols[t] != 0) continue;
        if (parts->escape == parts->escape_end) return false;
        memcpy(&row[t], parts->escape, sizeof row[t]);
        parts->escape += sizeof row[t];
    }
    return true;
}

static kvt_status block_read_exceptions(const transform_order *order, const block_parts *parts,
                                        uint32_t tokens, int16_t *codes, uint8_t *live)
{
    for (uint32_t i = 0; i < order->starts[1]; i++) {
        const uint16_t component = order->by_class[i];
        memset(codes + (uint64_t)component * BLOCK_TOKENS, 0, BLOCK_TOKENS * sizeof *codes);
        live[component] = 0;
    }
    for (uint32_t i = order->starts[1]; i < order->components; i++)
        live[order->by_class[i]] = 1;
    for (const uint8_t *at = parts->exception; at < parts->exception_end;
         at += TRANSFORM_EXCEPTION_BYTES) {
        const uint32_t component = at[0] | (uint32_t)at[1] << 8;
        int16_t code;
        memcpy(&code, at + 4, sizeof code);
        if (component >= order->components || at[2] >= tokens || at[3] != 0 || code == 0 ||
            live[component] == 1)
            return KVT_E_CORRUPT;
        live[component] = 2;
        codes[(uint64_t)component * BLOCK_TOKENS + at[2]] = code;
    }
    return KVT_OK;
}

kvt_status transform_block_read(const transform_basis *basis, const transform_order *order,
                                const uint8_t *head, const uint8_t *source, uint32_t tokens,
                                const transform_room *room, int16_t *codes, uint8_t *live)
{
    rans_decoder decoder;
    const uint64_t code_bytes = codecs_load32(head);
    const uint32_t state_count = rans_state_count(block_symbols(order, tokens));
    const uint8_t *code = source + (uint64_t)state_count * RANS_STATE_BYTES;
    block_parts parts = {.low = code + code_bytes};
    parts.escape = parts.low + block_all_low_bytes(basis, order, tokens);
    parts.escape_end = parts.escape + codecs_load32(head + 4) * sizeof(int16_t);
    parts.exception = parts.escape_end;
    parts.exception_end =
        parts.exception + (uint64_t)codecs_load32(head + 8) * TRANSFORM_EXCEPTION_BYTES;
    kvt_status status =
        rans_decode_start(&decoder, room->decode_table, state_count, source, code, code_bytes);
    for (uint32_t class = 1; status == KVT_OK && class < TRANSFORM_CLASSES; class ++) {
        const uint32_t count = order_in_class(order, class);
        if (count == 0) continue;
        rans_fill_decode_table(&basis->tables[class].symbols, room->decode_table);
        rans_decode(&decoder, room->symbols, (uint64_t)count * tokens);
        for (uint32_t i = 0; i < count; i++) {
            int16_t *row =
                codes + (uint64_t)order->by_class[order->starts[class] + i] * BLOCK_TOKENS;
            if (!block_join(&basis->tables[class], room->symbols + (uint64_t)i * tokens, tokens,
                            &parts, row))
                return KVT_E_CORRUPT;
            memset(row + tokens, 0, (BLOCK_TOKENS - tokens) * sizeof *row);
        }
    }
    if (status != KVT_OK) return status;
    if (!rans_decode_finish(&decoder) || parts.escape != parts.escape_end) return KVT_E_CORRUPT;
    return block_read_exceptions(order, &parts, tokens, codes, live);
}
