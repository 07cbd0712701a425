/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rans.h - an order-0 entropy coder of bytes: interleaved rANS with small static tables.
 *
 * A stream is coded by 16, 64 or 128 states that take turns: symbol i belongs to state i mod count.
 * A state is a number of 16 bits, at least 256. Frequencies are in 1/256, at least 1 and at most
 * 255, so that one symbol moves at most one byte:
 *
 *   decode   slot = x mod 256; s = the symbol of the slot
 *            x = freq[s] * (x / 256) + rank[slot]
 *            if x < 256: x = x * 256 + the next byte
 *   encode   the inverse, from the last symbol to the first, starting from x = 256
 *
 * Slot and quotient are one byte each, so that registers of bytes do the work of a table: that is
 * where the speed comes from. With so few slots it matters where a symbol's slots lie. They are
 * spread: in the order of symbols the next slot is 163 after the last one, mod 256; rank is the
 * slot's number among those of its symbol. Spread slots cost 0.0005 bits above the table's own
 * entropy, slots in a row 0.008.
 *
 * Symbol 0 is the escape: it stands for all symbols that the table lacks, which the caller stores
 * apart. A table has at most 127 others.
 *
 * Bytes are stored in the order in which the decoder takes them; the states before the first symbol
 * are stored apart. A sound stream ends with all bytes taken and all states at 256. That is what
 * decoding checks; it cannot notice all damage, a checksum outside must.
 *
 * The scalar functions are the specification; the vector forms give the same bytes. Re-entrant.
 */
#ifndef CODECS_RANS_H
#define CODECS_RANS_H

#include <kvterrace/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RANS_SCALE_BITS = 8,
    RANS_SCALE = 1 << RANS_SCALE_BITS,
    RANS_SYMBOLS_MAX = 128, /* of a table, with the escape */
    RANS_STATES_MAX = 128,
    RANS_STATE_MIN = 256,
    RANS_STATE_BYTES = 2,
    RANS_TABLE_BYTES_MAX = 2 + (257 * 4 + RANS_SYMBOLS_MAX * 7) / 8 + 1 /* of rans_write_table */
};

/* Frequencies of symbols in 1/256; 0 where the table lacks one. Sound: the escape's is at least 1,
 * 1 to 127 others are, and the sum is 256. */
typedef struct rans_table {
    uint8_t of[256];
} rans_table;

/* Tables by distance for look-ups in registers of AVX2: steps of sixteen bytes, each the difference
 * (exclusive or) from the step before it. */
enum {
    RANS_STEP_BYTES = 16,
    RANS_STEPS = RANS_SYMBOLS_MAX / RANS_STEP_BYTES,
    RANS_FEW = 16 /* symbols, with the escape, whose index fits half a byte */
};

/* Derived from a table, for encoding. Symbols that the table lacks have the escape's place. */
typedef struct rans_encode_table {
    bool holes;                /* the table lacks a symbol between two that it has */
    uint8_t first, last;       /* symbols besides the escape */
    uint32_t range[256];       /* start << 16 | frequency, by symbol; start = frequencies before */
    uint32_t slot[RANS_SCALE]; /* by start + rank */
    /* The same for registers of bytes, by index: its place among the table's symbols. */
    uint8_t index[256]; /* by symbol */
    uint8_t frequency[RANS_SYMBOLS_MAX];
    uint8_t start[RANS_SYMBOLS_MAX];
    uint8_t inverse_low[RANS_SYMBOLS_MAX];  /* of 65536 / frequency, rounded down, */
    uint8_t inverse_high[RANS_SYMBOLS_MAX]; /* at most 65535 */
    uint8_t slot_byte[RANS_SCALE];
    /* The same in steps: by the distance from the first symbol plus one, 0 for the escape, with as
     * many steps as the symbols take; 0: they take too many. */
    uint32_t steps;
    uint8_t frequency_steps[RANS_STEPS][RANS_STEP_BYTES];
    uint8_t start_steps[RANS_STEPS][RANS_STEP_BYTES];
    uint8_t inverse_low_steps[RANS_STEPS][RANS_STEP_BYTES];
    uint8_t inverse_high_steps[RANS_STEPS][RANS_STEP_BYTES];
} rans_encode_table;

/* Derived from a table, for decoding. */
typedef struct rans_decode_table {
    uint8_t symbol[RANS_SCALE]; /* by slot, as all but the two by index */
    uint8_t frequency[RANS_SCALE];
    uint8_t rank[RANS_SCALE];
    uint32_t entry[RANS_SCALE]; /* frequency << 16 | rank << 8 | symbol */
    /* Of a table of at most RANS_FEW symbols also: the symbol's index in four bits, and above it,
     * with a sign, the slot's rank less its share, slot * frequency / 256. Spread as they are,
     * slots of any symbol are within -7 and 6 of it. */
    bool has_few;
    uint8_t few[RANS_SCALE];
    uint8_t few_symbol[RANS_FEW]; /* by index */
    uint8_t few_frequency[RANS_FEW];
} rans_decode_table;

/* Counts symbols: all of them, or of a long stream one run of 64 in four, chosen by a hash so that
 * no channel is preferred. Returns how many were counted. */
uint64_t rans_count(const uint8_t *symbols, uint64_t count, uint32_t counts[256]);

/* Makes the table for symbols that occur as counts say and, where the table lacks them, cost
 * escape_bits each besides the escape. counts may be a sample; their sum is in [1, 2^32). */
void rans_make_table(const uint32_t counts[256], unsigned escape_bits, rans_table *table);

bool rans_table_sound(const rans_table *table);

/* Writes the table compactly, at most RANS_TABLE_BYTES_MAX; returns the bytes, or 0 when capacity
 * is too small. Reading returns the bytes taken, or 0 when they are not sound. */
size_t rans_write_table(const rans_table *table, uint8_t *target, size_t capacity);
size_t rans_read_table(const uint8_t *source, size_t bytes, rans_table *table);

/* The table is sound. */
void rans_fill_encode_table(const rans_table *table, rans_encode_table *encode);
void rans_fill_decode_table(const rans_table *table, rans_decode_table *decode);

/* Whether a symbol is coded as the escape; true for 0. */
static inline bool rans_escapes(const rans_encode_table *table, uint8_t symbol)
{
    return table->index[symbol] == 0;
}

/* Whether any of the symbols is coded as the escape. */
bool rans_any_escapes(const rans_encode_table *table, const uint8_t *symbols, uint64_t count);

/* A good number of states for a stream of this many symbols. */
uint32_t rans_state_count(uint64_t symbols);

/*
 * Encodes symbols, those that the table lacks as escapes, into bytes that end at end and do not
 * start before begin. states gets state_count final states, which the decoder starts from.
 * Returns the first byte, or NULL when the room is too small.
 */
uint8_t *rans_encode(const rans_encode_table *table, const uint8_t *symbols, uint64_t count,
                     uint32_t state_count, uint8_t *begin, uint8_t *end, uint16_t *states);

/* The same in pieces of different tables, the last piece first: start sets the states, and every
 * call codes one piece before `end` and returns where it begins, or NULL. The first symbol of each
 * piece belongs to state 0. */
void rans_encode_start(uint32_t state_count, uint16_t *states);
uint8_t *rans_encode_more(const rans_encode_table *table, const uint8_t *symbols, uint64_t count,
                          uint32_t state_count, uint8_t *begin, uint8_t *end, uint16_t *states);

/* A stream that is being decoded in pieces. */
typedef struct rans_decoder {
    const rans_decode_table *table;
    const uint8_t *at; /* the next byte */
    const uint8_t *end;
    uint32_t state_count;
    bool damaged; /* bytes were missing; zeros were taken for them */
    uint16_t states[RANS_STATES_MAX];
} rans_decoder;

/* states: state_count numbers of 16 bits, unaligned. KVT_OK or KVT_E_CORRUPT (a state below the
 * minimum). */
kvt_status rans_decode_start(rans_decoder *decoder, const rans_decode_table *table,
                             uint32_t state_count, const uint8_t *states, const uint8_t *bytes,
                             uint64_t byte_count);

/* Decodes count symbols with decoder->table. All pieces but the last are a multiple of state_count,
 * or they are those of rans_encode_more. */
void rans_decode(rans_decoder *decoder, uint8_t *symbols, uint64_t count);

/* Whether the stream ended as a sound one does. */
bool rans_decode_finish(const rans_decoder *decoder);

/* Internal to the coder: the vector forms code whole turns, as many as they can do without looking
 * at the ends, and return the symbols done; the scalar form does the rest. */
uint64_t rans_decode_avx2(rans_decoder *decoder, uint8_t *symbols, uint64_t count);
uint64_t rans_decode_avx512(rans_decoder *decoder, uint8_t *symbols, uint64_t count);

/* Appends the symbols that the table lacks at out, as far as there is room; returns where they end,
 * or NULL when there is too little. */
uint8_t *rans_collect_avx512(const rans_encode_table *table, const uint8_t *symbols, uint64_t count,
                             uint8_t *out, const uint8_t *out_end);

/* Replaces symbols that are 0 by the next escapes, as far as there are some; returns where those
 * end that were taken, or NULL when they run out. */
const uint8_t *rans_patch_avx512(uint8_t *symbols, uint64_t count, const uint8_t *escape,
                                 const uint8_t *escape_end);

/* Codes symbols[0 .. count), a multiple of state_count, backwards; stops early when the room before
 * *at falls below one turn's worst case. Returns the symbols left at the front. */
uint64_t rans_encode_avx2(const rans_encode_table *table, const uint8_t *symbols, uint64_t count,
                          uint32_t state_count, const uint8_t *begin, uint8_t **at,
                          uint16_t *states);
uint64_t rans_encode_avx512(const rans_encode_table *table, const uint8_t *symbols, uint64_t count,
                            uint32_t state_count, const uint8_t *begin, uint8_t **at,
                            uint16_t *states);

#endif
