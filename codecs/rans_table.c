/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rans_table.c - tables of rans.h: counted, scaled, stored, and what coding derives from them.
 * Re-entrant.
 */
#include "rans.h"

#include <assert.h>
#include <string.h>

enum {
    RANS_COUNT_RUN = 64,
    RANS_COUNT_ALL = 1 << 16, /* streams up to this are counted whole */
    RANS_GAP_MAX = 3,         /* rare symbols in a row between others that get a place too */
    RANS_WIDTH_BITS = 4,
    RANS_SPREAD = 163
};

static void rans_count_run(const uint8_t *symbols, uint64_t count, uint32_t parts[4][256])
{
    uint64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t eight;
        memcpy(&eight, symbols + i, sizeof eight);
        parts[0][eight & 0xff]++;
        parts[1][eight >> 8 & 0xff]++;
        parts[2][eight >> 16 & 0xff]++;
        parts[3][eight >> 24 & 0xff]++;
        parts[0][eight >> 32 & 0xff]++;
        parts[1][eight >> 40 & 0xff]++;
        parts[2][eight >> 48 & 0xff]++;
        parts[3][eight >> 56]++;
    }
    for (; i < count; i++) {
        parts[0][symbols[i]]++;
    }
}

uint64_t rans_count(const uint8_t *symbols, uint64_t count, uint32_t counts[256])
{
    /* Four sets, so that equal neighbours do not wait for each other. */
    uint32_t parts[4][256];
    uint64_t counted = count;
    memset(parts, 0, sizeof parts);
    if (count <= RANS_COUNT_ALL) {
        rans_count_run(symbols, count, parts);
    } else {
        const uint32_t runs = (uint32_t)(count / (4 * RANS_COUNT_RUN));
        for (uint32_t i = 0; i < runs; i++) {
            uint32_t one = (i * UINT32_C(0x9e3779b1)) >> 30;
            rans_count_run(symbols + (4 * (uint64_t)i + one) * RANS_COUNT_RUN, RANS_COUNT_RUN,
                           parts);
        }
        counted = (uint64_t)runs * RANS_COUNT_RUN;
    }
    for (unsigned s = 0; s < 256; s++) {
        counts[s] = parts[0][s] + parts[1][s] + parts[2][s] + parts[3][s];
    }
    return counted;
}

/*
 * Chooses the table's symbols; returns how many. As an escape an occurrence costs escape_bits more.
 * A place in the table costs a slot of 256, which is total / 177 bits over all other symbols, and
 * some bits of the stored table.
 */
static unsigned rans_choose(const uint32_t counts[256], uint64_t total, unsigned escape_bits,
                            bool taken[256])
{
    unsigned used = 0;
    unsigned before = 0; /* the last one taken */
    taken[0] = false;
    for (unsigned s = 1; s < 256; s++) {
        taken[s] = (uint64_t)counts[s] * escape_bits > total / 177 + RANS_WIDTH_BITS;
        if (!taken[s]) continue;
        for (unsigned gap = before + 1; before > 0 && s - before <= RANS_GAP_MAX + 1 && gap < s;
             gap++) {
            taken[gap] = true;
            used++;
        }
        before = s;
        used++;
    }
    for (; used > RANS_SYMBOLS_MAX - 1; used--) {
        unsigned rarest = 0; /* is left out */
        for (unsigned s = 1; s < 256; s++)
            if (taken[s] && (rarest == 0 || counts[s] < counts[rarest])) rarest = s;
        taken[rarest] = false;
    }
    if (used == 0) {
        taken[1] = true;
        used = 1;
    }
    return used;
}

/* Takes one slot from the symbol that loses the fewest bits: the smallest count / (2 freq - 1). */
static void rans_take_slot(const uint32_t counts[256], uint32_t of[256])
{
    unsigned best = 256;
    for (unsigned s = 0; s < 256; s++) {
        if (of[s] < 2) continue;
        if (best == 256 ||
            (uint64_t)counts[s] * (2 * of[best] - 1) < (uint64_t)counts[best] * (2 * of[s] - 1)) {
            best = s;
        }
    }
    assert(best < 256);
    of[best]--;
}

/* Gives one slot to the symbol that gains the most bits. */
static void rans_give_slot(const uint32_t counts[256], uint32_t of[256])
{
    unsigned best = 0;
    for (unsigned s = 1; s < 256; s++) {
        if (of[s] == 0) continue;
        if ((uint64_t)counts[s] * (2 * of[best] + 1) > (uint64_t)counts[best] * (2 * of[s] + 1)) {
            best = s;
        }
    }
    of[best]++;
}

void rans_make_table(const uint32_t counts[256], unsigned escape_bits, rans_table *table)
{
    bool taken[256];
    uint32_t kept[256] = {0};
    uint32_t of[256] = {0};
    uint64_t total = 0;
    uint32_t sum = 0;
    for (unsigned s = 0; s < 256; s++) {
        total += counts[s];
    }
    assert(total > 0 && total <= UINT32_MAX);
    rans_choose(counts, total, escape_bits, taken);
    for (unsigned s = 0; s < 256; s++) {
        kept[taken[s] ? s : 0] += counts[s];
    }
    for (unsigned s = 0; s < 256; s++) {
        if (s > 0 && !taken[s]) continue;
        uint64_t scaled = ((uint64_t)kept[s] * RANS_SCALE + total / 2) / total;
        of[s] = scaled > 0 ? (uint32_t)scaled : 1;
        sum += of[s];
    }
    for (; sum > RANS_SCALE; sum--) {
        rans_take_slot(kept, of);
    }
    for (; sum < RANS_SCALE; sum++) {
        rans_give_slot(kept, of);
    }
    for (unsigned s = 0; s < 256; s++) {
        table->of[s] = (uint8_t)of[s];
    }
    assert(rans_table_sound(table));
}

bool rans_table_sound(const rans_table *table)
{
    uint32_t sum = 0;
    uint32_t used = 0;
    for (unsigned s = 0; s < 256; s++) {
        sum += table->of[s];
        used += table->of[s] > 0;
    }
    return sum == RANS_SCALE && table->of[0] > 0 && used >= 2 && used <= RANS_SYMBOLS_MAX;
}

/* Fields are packed from the least significant end of each byte. */
typedef struct rans_bits {
    uint32_t held;
    unsigned count;
    size_t at;
} rans_bits;

static bool rans_put_bits(rans_bits *bits, uint8_t *target, size_t capacity, uint32_t value,
                          unsigned count)
{
    bits->held |= value << bits->count;
    for (bits->count += count; bits->count >= 8; bits->count -= 8) {
        if (bits->at == capacity) return false;
        target[bits->at++] = (uint8_t)bits->held;
        bits->held >>= 8;
    }
    return true;
}

static bool rans_get_bits(rans_bits *bits, const uint8_t *source, size_t bytes, unsigned count,
                          uint32_t *value)
{
    while (bits->count < count) {
        if (bits->at == bytes) return false;
        bits->held |= (uint32_t)source[bits->at++] << bits->count;
        bits->count += 8;
    }
    *value = bits->held & ((1u << count) - 1u);
    bits->held >>= count;
    bits->count -= count;
    return true;
}

/* The symbol after s of the stored ones: the escape, then first to last. */
static unsigned rans_next_stored(unsigned s, unsigned first)
{
    return s == 0 ? first : s + 1;
}

/*
 * First and last symbol besides the escape, a byte each, then for the escape and every symbol from
 * first to last the number of bits of its frequency (0 to 8, four bits) and those bits below the
 * leading one.
 */
size_t rans_write_table(const rans_table *table, uint8_t *target, size_t capacity)
{
    unsigned first = 1;
    unsigned last = 255;
    while (table->of[first] == 0) {
        first++;
    }
    while (table->of[last] == 0) {
        last--;
    }
    if (capacity < 2) return 0;
    target[0] = (uint8_t)first;
    target[1] = (uint8_t)last;
    rans_bits bits = {0, 0, 2};
    for (unsigned s = 0; s <= last; s = rans_next_stored(s, first)) {
        uint32_t frequency = table->of[s];
        unsigned width = 0;
        while (frequency >> width != 0) {
            width++;
        }
        if (!rans_put_bits(&bits, target, capacity, width, RANS_WIDTH_BITS)) return 0;
        if (width < 2) continue;
        uint32_t rest = frequency - (1u << (width - 1));
        if (!rans_put_bits(&bits, target, capacity, rest, width - 1)) return 0;
    }
    if (bits.count > 0 && !rans_put_bits(&bits, target, capacity, 0, 8 - bits.count)) return 0;
    return bits.at;
}

size_t rans_read_table(const uint8_t *source, size_t bytes, rans_table *table)
{
    memset(table, 0, sizeof *table);
    if (bytes < 2 || source[0] == 0 || source[0] > source[1]) return 0;
    rans_bits bits = {0, 0, 2};
    for (unsigned s = 0; s <= source[1]; s = rans_next_stored(s, source[0])) {
        uint32_t width;
        uint32_t rest = 0;
        if (!rans_get_bits(&bits, source, bytes, RANS_WIDTH_BITS, &width)) return 0;
        if (width > RANS_SCALE_BITS) return 0;
        if (width == 0) continue;
        if (width > 1 && !rans_get_bits(&bits, source, bytes, width - 1, &rest)) return 0;
        table->of[s] = (uint8_t)((1u << (width - 1)) + rest);
    }
    /* One form for each table: both ends have a frequency, what is left of a byte is zero. */
    if (table->of[source[0]] == 0 || table->of[source[1]] == 0 || bits.held != 0) return 0;
    return rans_table_sound(table) ? bits.at : 0;
}

/* The symbol of each slot: see rans.h. */
static void rans_spread(const rans_table *table, uint8_t symbols[RANS_SCALE])
{
    uint32_t slot = 0;
    for (unsigned s = 0; s < 256; s++) {
        for (uint32_t i = 0; i < table->of[s]; i++) {
            symbols[slot] = (uint8_t)s;
            slot = (slot + RANS_SPREAD) % RANS_SCALE;
        }
    }
}

/* The steps of a table of so many bytes. */
static void rans_fill_steps(const uint8_t *bytes, uint32_t count, uint8_t (*steps)[RANS_STEP_BYTES])
{
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t before = i < RANS_STEP_BYTES ? 0 : bytes[i - RANS_STEP_BYTES];
        steps[i / RANS_STEP_BYTES][i % RANS_STEP_BYTES] = bytes[i] ^ before;
    }
}

/* The steps of an encoder's tables: its bytes by index become ones by distance. */
static void rans_fill_encode_steps(rans_encode_table *encode)
{
    enum { MOST = RANS_SCALE / 2 };
    const uint32_t used = encode->last - encode->first + 2u;
    uint8_t at[MOST] = {0}, bytes[MOST];
    const struct {
        const uint8_t *by_index;
        uint8_t (*steps)[RANS_STEP_BYTES];
    } tables[] = {{encode->frequency, encode->frequency_steps},
                  {encode->start, encode->start_steps},
                  {encode->inverse_low, encode->inverse_low_steps},
                  {encode->inverse_high, encode->inverse_high_steps}};
    encode->steps = used <= MOST ? (used + RANS_STEP_BYTES - 1) / RANS_STEP_BYTES : 0;
    for (uint32_t i = 1; encode->steps != 0 && i < used; i++) {
        at[i] = encode->index[encode->first + i - 1];
    }
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
        for (uint32_t i = 0; i < MOST; i++) {
            bytes[i] = tables[t].by_index[at[i]];
        }
        rans_fill_steps(bytes, MOST, tables[t].steps);
    }
}

void rans_fill_encode_table(const rans_table *table, rans_encode_table *encode)
{
    uint8_t symbols[RANS_SCALE];
    uint32_t next[256];
    uint32_t start = 0;
    uint8_t index = 0;
    memset(encode, 0, sizeof *encode);
    encode->first = 0;
    for (unsigned s = 0; s < 256; s++) {
        const uint32_t frequency = table->of[s];
        encode->range[s] = frequency > 0 ? start << 16 | frequency : encode->range[0];
        next[s] = start;
        if (frequency == 0) continue;
        const uint32_t inverse = frequency > 1 ? 65536 / frequency : 65535;
        encode->index[s] = index;
        encode->frequency[index] = (uint8_t)frequency;
        encode->start[index] = (uint8_t)start;
        encode->inverse_low[index] = (uint8_t)inverse;
        encode->inverse_high[index] = (uint8_t)(inverse >> 8);
        start += frequency;
        index++;
        if (s > 0 && encode->first == 0) encode->first = (uint8_t)s;
        if (s > 0) encode->last = (uint8_t)s;
    }
    encode->holes = encode->last - encode->first + 2 != index;
    rans_spread(table, symbols);
    for (uint32_t slot = 0; slot < RANS_SCALE; slot++) {
        const uint32_t place = next[symbols[slot]]++;
        encode->slot[place] = slot;
        encode->slot_byte[place] = (uint8_t)slot;
    }
    rans_fill_encode_steps(encode);
}

bool rans_any_escapes(const rans_encode_table *table, const uint8_t *symbols, uint64_t count)
{
    const uint8_t first = table->first;
    const uint8_t width = (uint8_t)(table->last - first);
    uint8_t any = 0;
    for (uint64_t i = 0; i < count; i++) {
        any |= (uint8_t)((uint8_t)(symbols[i] - first) > width ? 1 : 0);
    }
    for (uint64_t i = 0; table->holes && any == 0 && i < count; i++) {
        any |= (uint8_t)(rans_escapes(table, symbols[i]) ? 1 : 0);
    }
    return any != 0;
}

/* Adds the tables that a decoder has of few symbols besides. */
static void rans_fill_few(const rans_table *table, rans_decode_table *decode)
{
    uint8_t index[RANS_SCALE];
    uint32_t used = 0;
    for (unsigned s = 0; s < 256; s++) {
        if (table->of[s] == 0) continue;
        decode->has_few = used < RANS_FEW;
        if (!decode->has_few) return;
        index[s] = (uint8_t)used;
        decode->few_symbol[used] = (uint8_t)s;
        decode->few_frequency[used++] = table->of[s];
    }
    for (int slot = 0; slot < RANS_SCALE; slot++) {
        const int above = decode->rank[slot] - slot * decode->frequency[slot] / RANS_SCALE;
        assert(above >= -RANS_FEW / 2 && above < RANS_FEW / 2);
        decode->few[slot] = (uint8_t)(above * RANS_FEW + index[decode->symbol[slot]]);
    }
}

void rans_fill_decode_table(const rans_table *table, rans_decode_table *decode)
{
    uint32_t ranks[256] = {0};
    rans_spread(table, decode->symbol);
    for (uint32_t slot = 0; slot < RANS_SCALE; slot++) {
        const uint32_t s = decode->symbol[slot];
        const uint32_t rank = ranks[s]++;
        decode->frequency[slot] = table->of[s];
        decode->rank[slot] = (uint8_t)rank;
        decode->entry[slot] = (uint32_t)table->of[s] << 16 | rank << 8 | s;
    }
    rans_fill_few(table, decode);
}
