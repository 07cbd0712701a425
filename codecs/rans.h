/*
 * rans.h - an order-0 entropy coder of bytes: interleaved rANS with static tables.
 *
 * A stream is coded by 16, 32, 64 or 128 states that take turns: symbol i belongs to state
 * i mod count. Every state is a 32-bit number in [2^16, 2^32), probabilities are in 1/4096, and one
 * symbol moves at most one 16-bit word:
 *
 *   decode   slot = x mod 4096; s = the symbol of the slot
 *            x = freq[s] * (x / 4096) + slot - start[s]
 *            if x < 2^16: x = x * 2^16 + the next word
 *   encode   the inverse, from the last symbol to the first, starting from x = 2^16
 *
 * Words are stored in the order in which the decoder takes them; the states before the first symbol
 * are stored apart. A sound stream ends with all words taken and all states at 2^16. That is what
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
    RANS_SCALE_BITS = 12,
    RANS_SCALE = 1 << RANS_SCALE_BITS,
    RANS_LANES = 16, /* states are a multiple of it */
    RANS_STATES_MAX = 128,
    RANS_FREQUENCIES_BYTES_MAX = 2 + 256 * 2 /* what rans_write_frequencies may need */
};

#define RANS_STATE_MIN (UINT32_C(1) << 16)

/* Frequencies of the 256 symbols in 1/4096. Sound: the sum is 4096, none is above 4095. */
typedef struct rans_frequencies {
    uint16_t of[256];
} rans_frequencies;

typedef struct rans_encode_table {
    uint32_t range[256];   /* start << 16 | frequency */
    float reciprocal[256]; /* of the frequency, a little below */
} rans_encode_table;

/* frequency << 20 | (slot - start) << 8 | symbol, by slot. */
typedef struct rans_decode_table {
    uint32_t slot[RANS_SCALE];
} rans_decode_table;

/* Counting in four sets, so that equal neighbours do not wait for each other. */
typedef struct rans_counts {
    uint32_t parts[4][256];
} rans_counts;

/* Adds the symbols; the sets start at zero. */
void rans_count(const uint8_t *symbols, uint64_t count, rans_counts *counts);
void rans_count_sum(const rans_counts *counts, uint32_t sums[256]);

/* Scales counts to frequencies whose sum is 4096. Every symbol that was counted gets at least 1,
 * and at least two symbols get some. The counts' sum is in [1, 2^32). */
void rans_normalise(const uint32_t counts[256], rans_frequencies *frequencies);

bool rans_frequencies_sound(const rans_frequencies *frequencies);

/* Writes the frequencies compactly, at most RANS_FREQUENCIES_BYTES_MAX; returns the bytes, or 0
 * when capacity is too small. Reading returns the bytes taken, or 0 when they are not sound. */
size_t rans_write_frequencies(const rans_frequencies *frequencies, uint8_t *target,
                              size_t capacity);
size_t rans_read_frequencies(const uint8_t *source, size_t bytes, rans_frequencies *frequencies);

/* The frequencies are sound. */
void rans_fill_encode_table(const rans_frequencies *frequencies, rans_encode_table *table);
void rans_fill_decode_table(const rans_frequencies *frequencies, rans_decode_table *table);

/* A good number of states for a stream of this many symbols. */
uint32_t rans_state_count(uint64_t symbols);

/*
 * Encodes symbols, all with frequencies above zero, into 16-bit words that end at end and do not
 * start before begin. states gets state_count final states, which the decoder starts from.
 * Returns the first word, or NULL when the room is too small.
 */
uint8_t *rans_encode(const rans_encode_table *table, const uint8_t *symbols, uint64_t count,
                     uint32_t state_count, uint8_t *begin, uint8_t *end, uint32_t *states);

/* A stream that is being decoded in pieces. */
typedef struct rans_decoder {
    const rans_decode_table *table;
    const uint8_t *word; /* the next one; unaligned */
    const uint8_t *end;
    uint32_t state_count;
    bool damaged; /* words were missing; zeros were taken for them */
    uint32_t states[RANS_STATES_MAX];
} rans_decoder;

/* states: state_count numbers of 32 bits, unaligned. KVT_OK or KVT_E_CORRUPT (a state below the
 * minimum). words is an even number of bytes. */
kvt_status rans_decode_start(rans_decoder *decoder, const rans_decode_table *table,
                             uint32_t state_count, const uint8_t *states, const uint8_t *words,
                             uint64_t word_bytes);

/* Decodes count symbols. All pieces but the last are a multiple of state_count. */
void rans_decode(rans_decoder *decoder, uint8_t *symbols, uint64_t count);

/* Whether the stream ended as a sound one does. */
bool rans_decode_finish(const rans_decoder *decoder);

/* Internal to the coder: the vector forms code whole turns, as many as they can do without looking
 * at the ends, and return the symbols done; the scalar form does the rest. */
uint64_t rans_decode_avx2(rans_decoder *decoder, uint8_t *symbols, uint64_t count);
uint64_t rans_decode_avx512(rans_decoder *decoder, uint8_t *symbols, uint64_t count);

/* Codes symbols[0 .. count), a multiple of state_count, backwards; stops early when the room before
 * *word falls below one turn's worst case. Returns the symbols left at the front. */
uint64_t rans_encode_avx2(const rans_encode_table *table, const uint8_t *symbols, uint64_t count,
                          uint32_t state_count, const uint8_t *begin, uint8_t **word,
                          uint32_t *states);
uint64_t rans_encode_avx512(const rans_encode_table *table, const uint8_t *symbols, uint64_t count,
                            uint32_t state_count, const uint8_t *begin, uint8_t **word,
                            uint32_t *states);

#endif
