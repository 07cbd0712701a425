/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_rans.c - the interleaved coder: tables, sizes, room, damage, and that every
 * instruction set gives the same bytes.
 */
#include "cases.h"
#include "dice.h"

#include "codecs/kernels/cpu.h"
#include "codecs/rans.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SYMBOLS_MAX = 200000, GUARD = 64, STATE_COUNTS = 3, ESCAPE_BITS = 8 };

static const uint32_t state_counts[STATE_COUNTS] = {16, 64, 128};

/* Bell-shaped symbols around 128; spread 0 makes all equal, large spreads are even. */
static void fill_symbols(uint8_t *symbols, size_t count, unsigned spread, uint32_t counts[256])
{
    uint64_t state = UINT64_C(0x9e3779b97f4a7c15) + spread;
    memset(counts, 0, 256 * sizeof counts[0]);
    for (size_t i = 0; i < count; i++) {
        uint64_t word = dice_shift(&state);
        uint32_t sum = (uint32_t)(word & 0xffff) + (uint32_t)(word >> 16 & 0xffff) +
                       (uint32_t)(word >> 32 & 0xffff) + (uint32_t)(word >> 48);
        symbols[i] = (uint8_t)((sum * spread / 0x40000) + 128 - spread / 2);
        counts[symbols[i]]++;
    }
}

static double entropy_bits(const uint32_t counts[256], size_t count)
{
    double bits = 0;
    for (unsigned s = 0; s < 256; s++) {
        if (counts[s] > 0) bits -= counts[s] * log2((double)counts[s] / (double)count);
    }
    return bits;
}

/* Bits of the symbols with a table, escapes included. */
static double table_bits(const rans_table *table, const uint32_t counts[256])
{
    double bits = 0;
    for (unsigned s = 0; s < 256; s++) {
        const bool escapes = s == 0 || table->of[s] == 0;
        bits += counts[s] * (8 - log2(table->of[escapes ? 0 : s]) + (escapes ? ESCAPE_BITS : 0));
    }
    return bits;
}

typedef struct stream {
    uint8_t *symbols;
    uint8_t *decoded;
    uint8_t *room;
    rans_encode_table encode;
    rans_decode_table decode;
    uint16_t states[RANS_STATES_MAX];
} stream;

static stream *stream_make(void)
{
    stream *made = test_zeros(sizeof *made);
    made->symbols = test_alloc(SYMBOLS_MAX);
    made->decoded = test_alloc(SYMBOLS_MAX + GUARD);
    made->room = test_alloc(SYMBOLS_MAX + 2 * GUARD);
    return made;
}

static bool stream_decode(stream *made, size_t count, uint32_t state_count, const uint8_t *code,
                          size_t code_bytes, size_t piece)
{
    rans_decoder decoder;
    if (rans_decode_start(&decoder, &made->decode, state_count, (const uint8_t *)made->states, code,
                          code_bytes) != KVT_OK) {
        return false;
    }
    for (size_t at = 0; at < count; at += piece) {
        rans_decode(&decoder, made->decoded + at, count - at < piece ? count - at : piece);
    }
    return rans_decode_finish(&decoder);
}

/* The table of count symbols of a spread, and what coding derives from it. */
static void stream_fill(stream *made, size_t count, unsigned spread)
{
    uint32_t counts[256];
    rans_table table;
    fill_symbols(made->symbols, count, spread, counts);
    if (count == 0) counts[128] = 1;
    rans_make_table(counts, ESCAPE_BITS, &table);
    rans_fill_encode_table(&table, &made->encode);
    rans_fill_decode_table(&table, &made->decode);
}

TEST(tables_are_sound_and_close)
{
    uint8_t *symbols = test_alloc(SYMBOLS_MAX);
    for (unsigned spread = 0; spread <= 120; spread += 5) {
        uint32_t counts[256];
        rans_table table;
        fill_symbols(symbols, SYMBOLS_MAX, spread, counts);
        rans_make_table(counts, ESCAPE_BITS, &table);
        assert_true(rans_table_sound(&table));
        /* A slot for the escape is 0.006 bits, and frequencies are rounded. */
        assert_true(table_bits(&table, counts) <=
                    entropy_bits(counts, SYMBOLS_MAX) * 1.01 + SYMBOLS_MAX * 0.012);
    }
}

TEST(tables_take_extremes)
{
    uint32_t counts[256];
    rans_table table;
    for (unsigned s = 0; s < 256; s++) {
        memset(counts, 0, sizeof counts);
        counts[s] = UINT32_MAX;
        rans_make_table(counts, ESCAPE_BITS, &table);
        assert_true(rans_table_sound(&table));
        assert_int_equal(table.of[s], 255);
        counts[s] = UINT32_MAX - 255;
        for (unsigned t = 0; t < 256; t++) {
            if (t != s) counts[t] = 1;
        }
        rans_make_table(counts, ESCAPE_BITS, &table);
        assert_true(rans_table_sound(&table));
        assert_int_equal(table.of[s], 255);
    }
    /* More symbols than a table takes, all the same; and two far apart. */
    for (unsigned t = 0; t < 256; t++) {
        counts[t] = 1000;
    }
    rans_make_table(counts, ESCAPE_BITS, &table);
    assert_true(rans_table_sound(&table));
    memset(counts, 0, sizeof counts);
    counts[1] = counts[255] = 500;
    rans_make_table(counts, ESCAPE_BITS, &table);
    assert_int_equal(table.of[0] + table.of[1] + table.of[255], 256);
}

TEST(counting_samples_long_streams)
{
    uint32_t whole[256];
    uint32_t counts[256];
    uint8_t *symbols = test_alloc(SYMBOLS_MAX);
    fill_symbols(symbols, 50000, 30, whole);
    assert_int_equal(rans_count(symbols, 50000, counts), 50000);
    assert_memory_equal(counts, whole, sizeof whole);
    fill_symbols(symbols, SYMBOLS_MAX, 30, whole);
    uint64_t counted = rans_count(symbols, SYMBOLS_MAX, counts);
    uint64_t sum = 0;
    for (unsigned s = 0; s < 256; s++) {
        sum += counts[s];
        double expected = whole[s] * ((double)counted / SYMBOLS_MAX);
        assert_true(fabs(counts[s] - expected) <= 6 * sqrt(expected) + 6);
    }
    assert_int_equal(sum, counted);
    assert_true(counted > SYMBOLS_MAX / 5 && counted <= SYMBOLS_MAX / 4);
}

static void check_table_travels(const rans_table *table)
{
    rans_table read;
    uint8_t stored[RANS_TABLE_BYTES_MAX];
    size_t bytes = rans_write_table(table, stored, sizeof stored);
    assert_true(bytes > 2);
    assert_int_equal(rans_read_table(stored, bytes, &read), bytes);
    assert_memory_equal(&read, table, sizeof read);
    for (size_t cut = 0; cut < bytes; cut++) {
        assert_int_equal(rans_write_table(table, stored, cut), 0);
    }
    assert_int_equal(rans_write_table(table, stored, bytes), bytes);
    for (size_t cut = 0; cut < bytes; cut++) {
        assert_int_equal(rans_read_table(stored, cut, &read), 0);
    }
}

TEST(tables_travel)
{
    uint8_t symbols[4096];
    uint32_t counts[256];
    rans_table table;
    for (unsigned spread = 0; spread <= 255; spread += 5) {
        fill_symbols(symbols, sizeof symbols, spread, counts);
        rans_make_table(counts, ESCAPE_BITS, &table);
        check_table_travels(&table);
    }
    /* The longest stored table: 127 symbols, the first and last at both ends. */
    for (unsigned s = 0; s < 256; s++) {
        counts[s] = s % 2 == 1 && s != 127 ? 1000 : 0;
    }
    rans_make_table(counts, ESCAPE_BITS, &table);
    assert_int_equal(table.of[1] > 0, true);
    assert_int_equal(table.of[255] > 0, true);
    check_table_travels(&table);
}

TEST(unsound_tables_are_refused)
{
    rans_table read;
    const uint8_t reversed[] = {5, 4, 0xff, 0xff, 0xff};
    const uint8_t zero_first[] = {0, 4, 0x11, 0x11, 0x11};
    const uint8_t too_wide[] = {4, 5, 0x99, 0xff, 0xff, 0xff, 0xff};
    const uint8_t small_sum[] = {4, 5, 0x11, 0x01};
    assert_int_equal(rans_read_table(reversed, sizeof reversed, &read), 0);
    assert_int_equal(rans_read_table(zero_first, sizeof zero_first, &read), 0);
    assert_int_equal(rans_read_table(too_wide, sizeof too_wide, &read), 0);
    assert_int_equal(rans_read_table(small_sum, sizeof small_sum, &read), 0);
    /* One symbol with 255 slots, as it is written; then with an empty end behind it. */
    const rans_table one = {.of = {[0] = 1, [9] = 255}};
    uint8_t stored[RANS_TABLE_BYTES_MAX] = {0};
    size_t bytes = rans_write_table(&one, stored, sizeof stored);
    assert_int_equal(rans_read_table(stored, bytes, &read), bytes);
    stored[1] = 10;
    assert_int_equal(rans_read_table(stored, bytes + 1, &read), 0);
}

/* Index and rank of every slot come back, and with them the same states. */
static void check_few(const rans_table *table, rans_decode_table *decode)
{
    rans_fill_decode_table(table, decode);
    assert_true(decode->has_few);
    for (unsigned slot = 0; slot < RANS_SCALE; slot++) {
        const uint8_t byte = decode->few[slot];
        const unsigned index = byte % RANS_FEW;
        const int above =
            byte / RANS_FEW < RANS_FEW / 2 ? byte / RANS_FEW : byte / RANS_FEW - (int)RANS_FEW;
        const unsigned frequency = decode->few_frequency[index];
        assert_int_equal(decode->few_symbol[index], decode->symbol[slot]);
        assert_int_equal(frequency, decode->frequency[slot]);
        assert_int_equal((int)(slot * frequency / RANS_SCALE) + above, decode->rank[slot]);
    }
}

TEST(ranks_of_few_symbols_are_near_their_share)
{
    rans_decode_table *decode = test_zeros(sizeof *decode);
    /* Every run of slots that a symbol can have. */
    for (unsigned before = 1; before < RANS_SCALE; before++) {
        for (unsigned slots = 1; slots + before < RANS_SCALE; slots++) {
            const rans_table table = {.of = {[0] = (uint8_t)before,
                                             [9] = (uint8_t)slots,
                                             [255] = (uint8_t)(RANS_SCALE - before - slots)}};
            check_few(&table, decode);
        }
    }
    rans_table table = {.of = {[0] = RANS_SCALE - RANS_FEW + 1}};
    for (unsigned s = 1; s < RANS_FEW; s++) {
        table.of[100 + 2 * s] = 1;
    }
    check_few(&table, decode);
    table.of[0]--;
    table.of[1] = 1;
    rans_fill_decode_table(&table, decode);
    assert_false(decode->has_few);
}

static void check_round_trip(stream *made, size_t count, unsigned spread, uint32_t state_count)
{
    uint8_t *begin = made->room + GUARD;
    uint8_t *end = begin + SYMBOLS_MAX;
    uint8_t *first_code = NULL;
    size_t first_bytes = 0;
    uint16_t first_states[RANS_STATES_MAX];
    stream_fill(made, count, spread);
    for (int level = CODECS_CPU_SCALAR; level <= (int)codecs_cpu_best(); level++) {
        codecs_cpu_force((codecs_cpu)level);
        const uint8_t *code =
            rans_encode(&made->encode, made->symbols, count, state_count, begin, end, made->states);
        assert_non_null(code);
        size_t bytes = (size_t)(end - code);
        if (level == CODECS_CPU_SCALAR) {
            first_bytes = bytes;
            first_code = test_alloc(bytes + 1);
            memcpy(first_code, code, bytes);
            memcpy(first_states, made->states, sizeof first_states);
        }
        assert_int_equal(bytes, first_bytes);
        assert_memory_equal(code, first_code, bytes);
        assert_memory_equal(made->states, first_states, state_count * sizeof first_states[0]);
        memset(made->decoded, 0xa5, SYMBOLS_MAX + GUARD);
        assert_true(stream_decode(made, count, state_count, code, bytes, 4096));
        for (size_t i = 0; i < count; i++) {
            const uint8_t symbol = made->symbols[i];
            assert_int_equal(made->decoded[i], rans_escapes(&made->encode, symbol) ? 0 : symbol);
        }
        for (unsigned i = 0; i < GUARD; i++) {
            assert_int_equal(made->decoded[count + i], 0xa5);
        }
    }
}

TEST(round_trips_on_every_instruction_set)
{
    static const size_t lengths[] = {0, 1, 15, 16, 17, 127, 128, 129, 1000, 4096, 33333};
    static const unsigned spreads[] = {0, 1, 2, 5, 17, 60, 255};
    const codecs_cpu level = codecs_cpu_level();
    stream *made = stream_make();
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        for (size_t s = 0; s < sizeof spreads / sizeof spreads[0]; s++) {
            for (size_t k = 0; k < STATE_COUNTS; k++) {
                check_round_trip(made, lengths[l], spreads[s], state_counts[k]);
            }
        }
    }
    check_round_trip(made, SYMBOLS_MAX, 19, 128);
    codecs_cpu_force(level);
}

TEST(size_is_the_tables_entropy)
{
    stream *made = stream_make();
    for (unsigned spread = 3; spread <= 120; spread += 13) {
        uint32_t counts[256];
        rans_table table;
        fill_symbols(made->symbols, SYMBOLS_MAX, spread, counts);
        rans_make_table(counts, ESCAPE_BITS, &table);
        stream_fill(made, SYMBOLS_MAX, spread);
        uint8_t *end = made->room + SYMBOLS_MAX;
        const uint8_t *code = rans_encode(&made->encode, made->symbols, SYMBOLS_MAX, 64, made->room,
                                          end, made->states);
        assert_non_null(code);
        double escapes = 0;
        for (unsigned s = 0; s < 256; s++) {
            escapes += table.of[s] == 0 || s == 0 ? counts[s] * ESCAPE_BITS : 0;
        }
        double ideal = table_bits(&table, counts) - escapes;
        assert_true((double)(end - code) * 8 <= ideal + SYMBOLS_MAX * 0.002 + 64 * 16);
    }
}

TEST(room_is_kept)
{
    const codecs_cpu level = codecs_cpu_level();
    enum { COUNT = 1000 };
    stream *made = stream_make();
    stream_fill(made, COUNT, 40);
    for (int l = CODECS_CPU_SCALAR; l <= (int)codecs_cpu_best(); l++) {
        codecs_cpu_force((codecs_cpu)l);
        uint8_t *end = made->room + GUARD + 2 * COUNT;
        const uint8_t *code =
            rans_encode(&made->encode, made->symbols, COUNT, 64, made->room, end, made->states);
        assert_non_null(code);
        size_t need = (size_t)(end - code);
        for (size_t room = 0; room <= need + 2; room++) {
            memset(made->room, 0xa5, GUARD + 2 * COUNT);
            uint8_t *begin = end - room;
            code = rans_encode(&made->encode, made->symbols, COUNT, 64, begin, end, made->states);
            assert_true((code != NULL) == (room >= need));
            for (const uint8_t *byte = made->room; byte < begin; byte++) {
                assert_int_equal(*byte, 0xa5);
            }
        }
    }
    codecs_cpu_force(level);
}

static void check_damage(unsigned spread)
{
    const codecs_cpu level = codecs_cpu_level();
    enum { COUNT = 700 };
    stream *made = stream_make();
    stream_fill(made, COUNT, spread);
    uint8_t *end = made->room + 2 * COUNT;
    const uint8_t *code =
        rans_encode(&made->encode, made->symbols, COUNT, 64, made->room, end, made->states);
    assert_non_null(code);
    const size_t bytes = (size_t)(end - code);
    size_t noticed = 0;
    for (size_t cut = 0; cut <= bytes; cut++) {
        uint8_t *exact = test_alloc(cut + 1);
        uint8_t reference[COUNT];
        memcpy(exact, code, cut);
        if (cut > 0) exact[cut / 2] ^= 0x10;
        for (int l = CODECS_CPU_SCALAR; l <= (int)codecs_cpu_best(); l++) {
            codecs_cpu_force((codecs_cpu)l);
            bool sound = stream_decode(made, COUNT, 64, exact, cut, COUNT);
            if (!sound) noticed++;
            if (l == CODECS_CPU_SCALAR) memcpy(reference, made->decoded, COUNT);
            assert_memory_equal(made->decoded, reference, COUNT);
        }
    }
    assert_true(noticed > bytes - 4);
    made->states[3] = RANS_STATE_MIN - 1;
    assert_false(stream_decode(made, COUNT, 64, code, bytes, COUNT));
    codecs_cpu_force(level);
}

TEST(damage_is_harmless_and_same_everywhere)
{
    check_damage(40); /* more than RANS_FEW symbols */
    check_damage(9);
}
