/*
 * rans.c - tables and the scalar coder, which is the specification. See rans.h. Re-entrant.
 */
#include "rans.h"

#include "cpu.h"

#include <assert.h>
#include <string.h>

enum { RANS_WORD_BYTES = 2 };

static uint16_t rans_load_word(const uint8_t *source)
{
    uint16_t word;
    memcpy(&word, source, sizeof word);
    return word;
}

static void rans_store_word(uint8_t *target, uint32_t value)
{
    uint16_t word = (uint16_t)value;
    memcpy(target, &word, sizeof word);
}

void rans_count(const uint8_t *symbols, uint64_t count, rans_counts *counts)
{
    uint32_t(*parts)[256] = counts->parts;
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

void rans_count_sum(const rans_counts *counts, uint32_t sums[256])
{
    for (unsigned s = 0; s < 256; s++) {
        sums[s] =
            counts->parts[0][s] + counts->parts[1][s] + counts->parts[2][s] + counts->parts[3][s];
    }
}

/* Takes one slot from the symbol that loses the fewest bits: the smallest count / (2 freq - 1). */
static void rans_take_slot(const uint32_t counts[256], rans_frequencies *frequencies)
{
    unsigned best = 256;
    for (unsigned s = 0; s < 256; s++) {
        if (frequencies->of[s] < 2) continue;
        if (best == 256 || (uint64_t)counts[s] * (2u * frequencies->of[best] - 1u) <
                               (uint64_t)counts[best] * (2u * frequencies->of[s] - 1u)) {
            best = s;
        }
    }
    assert(best < 256);
    frequencies->of[best]--;
}

/* Gives one slot to the symbol that gains the most bits. */
static void rans_give_slot(const uint32_t counts[256], rans_frequencies *frequencies)
{
    unsigned best = 256;
    for (unsigned s = 0; s < 256; s++) {
        if (frequencies->of[s] == 0) continue;
        if (best == 256 || (uint64_t)counts[s] * (2u * frequencies->of[best] + 1u) >
                               (uint64_t)counts[best] * (2u * frequencies->of[s] + 1u)) {
            best = s;
        }
    }
    frequencies->of[best]++;
}

void rans_normalise(const uint32_t counts[256], rans_frequencies *frequencies)
{
    uint64_t total = 0;
    uint32_t sum = 0;
    unsigned used = 0;
    unsigned last = 0;
    for (unsigned s = 0; s < 256; s++) {
        total += counts[s];
    }
    assert(total > 0 && total <= UINT32_MAX);
    for (unsigned s = 0; s < 256; s++) {
        uint64_t scaled = ((uint64_t)counts[s] * RANS_SCALE + total / 2) / total;
        if (counts[s] > 0 && scaled == 0) scaled = 1;
        frequencies->of[s] = (uint16_t)scaled;
        sum += (uint32_t)scaled;
        used += counts[s] > 0;
        if (counts[s] > 0) last = s;
    }
    if (used == 1) {
        /* A frequency of 4096 has no place in the tables. */
        frequencies->of[last] = RANS_SCALE - 1;
        frequencies->of[(last + 1) % 256] = 1;
        return;
    }
    for (; sum > RANS_SCALE; sum--) {
        rans_take_slot(counts, frequencies);
    }
    for (; sum < RANS_SCALE; sum++) {
        rans_give_slot(counts, frequencies);
    }
    /* One symbol may have rounded up to everything but its rare neighbours' minimum. */
    assert(rans_frequencies_sound(frequencies));
}

bool rans_frequencies_sound(const rans_frequencies *frequencies)
{
    uint32_t sum = 0;
    for (unsigned s = 0; s < 256; s++) {
        if (frequencies->of[s] >= RANS_SCALE) return false;
        sum += frequencies->of[s];
    }
    return sum == RANS_SCALE;
}

/* Nibbles and bits are packed from the least significant end of each byte. */
typedef struct rans_bits {
    uint64_t held;
    unsigned count;
    size_t at;
} rans_bits;

static bool rans_put_bits(rans_bits *bits, uint8_t *target, size_t capacity, uint32_t value,
                          unsigned count)
{
    bits->held |= (uint64_t)value << bits->count;
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
        bits->held |= (uint64_t)source[bits->at++] << bits->count;
        bits->count += 8;
    }
    *value = (uint32_t)bits->held & ((1u << count) - 1u);
    bits->held >>= count;
    bits->count -= count;
    return true;
}

/*
 * First and last used symbol, a byte each, then for every symbol between them the number of bits of
 * its frequency (0 to 12, four bits) and those bits below the leading one.
 */
size_t rans_write_frequencies(const rans_frequencies *frequencies, uint8_t *target, size_t capacity)
{
    unsigned first = 0;
    unsigned last = 255;
    while (frequencies->of[first] == 0) {
        first++;
    }
    while (frequencies->of[last] == 0) {
        last--;
    }
    if (capacity < 2) return 0;
    target[0] = (uint8_t)first;
    target[1] = (uint8_t)last;
    rans_bits bits = {0, 0, 2};
    for (unsigned s = first; s <= last; s++) {
        uint32_t frequency = frequencies->of[s];
        unsigned width = 0;
        while (frequency >> width != 0) {
            width++;
        }
        if (!rans_put_bits(&bits, target, capacity, width, 4)) return 0;
        if (width < 2) continue;
        uint32_t rest = frequency - (1u << (width - 1));
        if (!rans_put_bits(&bits, target, capacity, rest, width - 1)) return 0;
    }
    if (bits.count > 0 && !rans_put_bits(&bits, target, capacity, 0, 8 - bits.count)) return 0;
    return bits.at;
}

size_t rans_read_frequencies(const uint8_t *source, size_t bytes, rans_frequencies *frequencies)
{
    memset(frequencies, 0, sizeof *frequencies);
    if (bytes < 2 || source[0] > source[1]) return 0;
    rans_bits bits = {0, 0, 2};
    for (unsigned s = source[0]; s <= source[1]; s++) {
        uint32_t width;
        uint32_t rest = 0;
        if (!rans_get_bits(&bits, source, bytes, 4, &width)) return 0;
        if (width > RANS_SCALE_BITS) return 0;
        if (width == 0) continue;
        if (width > 1 && !rans_get_bits(&bits, source, bytes, width - 1, &rest)) return 0;
        frequencies->of[s] = (uint16_t)((1u << (width - 1)) + rest);
    }
    if (bits.held != 0 || !rans_frequencies_sound(frequencies)) return 0;
    return bits.at;
}

void rans_fill_encode_table(const rans_frequencies *frequencies, rans_encode_table *table)
{
    uint32_t start = 0;
    for (unsigned s = 0; s < 256; s++) {
        uint32_t frequency = frequencies->of[s];
        table->range[s] = start << 16 | frequency;
        /* 2^-22 below, so that rounding never makes a quotient one too large. */
        table->reciprocal[s] =
            frequency > 0 ? 1.0f / (float)frequency * (1.0f - 1.0f / 4194304.0f) : 0.0f;
        start += frequency;
    }
}

void rans_fill_decode_table(const rans_frequencies *frequencies, rans_decode_table *table)
{
    uint32_t slot = 0;
    for (uint32_t s = 0; s < 256; s++) {
        uint32_t frequency = frequencies->of[s];
        for (uint32_t i = 0; i < frequency; i++) {
            table->slot[slot++] = frequency << 20 | i << 8 | s;
        }
    }
    assert(slot == RANS_SCALE);
}

uint32_t rans_state_count(uint64_t symbols)
{
    /* A state costs about three bytes; more of them hide more latency. */
    if (symbols < 65536) return 16;
    if (symbols < 131072) return 32;
    return symbols < 262144 ? 64 : 128;
}

/* Codes symbols[first .. last) backwards. Returns false when the room is too small. A word is
 * written whether it is due or not, while there is room for it: a branch would often be missed. */
static bool rans_encode_scalar(const rans_encode_table *table, const uint8_t *symbols,
                               uint64_t first, uint64_t last, uint32_t state_count,
                               const uint8_t *begin, uint8_t **word, uint32_t *states)
{
    uint8_t *at = *word;
    const uint64_t mask = state_count - 1;
    for (uint64_t i = last; i-- > first;) {
        uint32_t range = table->range[symbols[i]];
        uint32_t frequency = range & 0xffffu;
        uint32_t x = states[i & mask];
        uint32_t due = x >> 20 >= frequency ? 1 : 0;
        if (at - begin >= RANS_WORD_BYTES) {
            rans_store_word(at - RANS_WORD_BYTES, x);
        } else if (due) {
            return false;
        }
        at -= RANS_WORD_BYTES * due;
        x >>= 16 * due;
        uint32_t quotient = x / frequency;
        states[i & mask] =
            (quotient << RANS_SCALE_BITS) + (x - quotient * frequency) + (range >> 16);
    }
    *word = at;
    return true;
}

uint8_t *rans_encode(const rans_encode_table *table, const uint8_t *symbols, uint64_t count,
                     uint32_t state_count, uint8_t *begin, uint8_t *end, uint32_t *states)
{
    uint8_t *word = end;
    uint64_t whole = count - count % state_count;
    for (uint32_t i = 0; i < state_count; i++) {
        states[i] = RANS_STATE_MIN;
    }
    if (!rans_encode_scalar(table, symbols, whole, count, state_count, begin, &word, states)) {
        return NULL;
    }
#if defined(__x86_64__)
    codecs_cpu level = codecs_cpu_level();
    if (level >= CODECS_CPU_AVX512) {
        whole = rans_encode_avx512(table, symbols, whole, state_count, begin, &word, states);
    } else if (level >= CODECS_CPU_AVX2) {
        whole = rans_encode_avx2(table, symbols, whole, state_count, begin, &word, states);
    }
#endif
    if (!rans_encode_scalar(table, symbols, 0, whole, state_count, begin, &word, states)) {
        return NULL;
    }
    return word;
}

kvt_status rans_decode_start(rans_decoder *decoder, const rans_decode_table *table,
                             uint32_t state_count, const uint8_t *states, const uint8_t *words,
                             uint64_t word_bytes)
{
    decoder->table = table;
    decoder->word = words;
    decoder->end = words + word_bytes;
    decoder->state_count = state_count;
    decoder->damaged = false;
    memcpy(decoder->states, states, state_count * sizeof decoder->states[0]);
    for (uint32_t i = 0; i < state_count; i++) {
        if (decoder->states[i] < RANS_STATE_MIN) return KVT_E_CORRUPT;
    }
    return KVT_OK;
}

/* A word is read whether it is due or not, while there are any: see above. */
static void rans_decode_scalar(rans_decoder *decoder, uint8_t *symbols, uint64_t count)
{
    const uint64_t mask = decoder->state_count - 1;
    const uint8_t *word = decoder->word;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t x = decoder->states[i & mask];
        uint32_t entry = decoder->table->slot[x & (RANS_SCALE - 1)];
        symbols[i] = (uint8_t)entry;
        x = (entry >> 20) * (x >> RANS_SCALE_BITS) + (entry >> 8 & (RANS_SCALE - 1));
        uint32_t due = x < RANS_STATE_MIN ? 1 : 0;
        uint32_t next = 0;
        if (decoder->end - word >= RANS_WORD_BYTES) {
            next = rans_load_word(word);
            word += RANS_WORD_BYTES * due;
        } else if (due) {
            decoder->damaged = true;
        }
        decoder->states[i & mask] = x << 16 * due | (next & (0u - due));
    }
    decoder->word = word;
}

void rans_decode(rans_decoder *decoder, uint8_t *symbols, uint64_t count)
{
    uint64_t done = 0;
#if defined(__x86_64__)
    codecs_cpu level = codecs_cpu_level();
    if (level >= CODECS_CPU_AVX512) {
        done = rans_decode_avx512(decoder, symbols, count);
    } else if (level >= CODECS_CPU_AVX2) {
        done = rans_decode_avx2(decoder, symbols, count);
    }
#endif
    rans_decode_scalar(decoder, symbols + done, count - done);
}

bool rans_decode_finish(const rans_decoder *decoder)
{
    bool sound = !decoder->damaged && decoder->word == decoder->end;
    for (uint32_t i = 0; i < decoder->state_count; i++) {
        sound = sound && decoder->states[i] == RANS_STATE_MIN;
    }
    return sound;
}
