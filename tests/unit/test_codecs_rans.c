/*
 * test_codecs_rans.c - the interleaved coder: tables, sizes, room, damage, and that every
 * instruction set gives the same bytes.
 */
#include "codecs/cpu.h"
#include "codecs/rans.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SYMBOLS_MAX = 200000, GUARD = 64, STATE_COUNTS = 4 };

static const uint32_t state_counts[STATE_COUNTS] = {16, 32, 64, 128};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Bell-shaped symbols around 128; spread 0 makes all equal, large spreads are even. */
static void fill_symbols(uint8_t *symbols, size_t count, unsigned spread, uint32_t counts[256])
{
    uint64_t state = UINT64_C(0x9e3779b97f4a7c15) + spread;
    memset(counts, 0, 256 * sizeof counts[0]);
    for (size_t i = 0; i < count; i++) {
        uint64_t word = next_random(&state);
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

typedef struct stream {
    uint8_t *symbols;
    uint8_t *decoded;
    uint8_t *room;
    rans_encode_table encode;
    rans_decode_table decode;
    uint32_t states[RANS_STATES_MAX];
} stream;

static stream *stream_make(void)
{
    stream *made = calloc(1, sizeof *made);
    assert_non_null(made);
    made->symbols = malloc(SYMBOLS_MAX);
    made->decoded = malloc(SYMBOLS_MAX + GUARD);
    made->room = malloc(2 * SYMBOLS_MAX + 2 * GUARD);
    assert_true(made->symbols != NULL && made->decoded != NULL && made->room != NULL);
    return made;
}

static void stream_free(stream *made)
{
    free(made->symbols);
    free(made->decoded);
    free(made->room);
    free(made);
}

static bool stream_decode(stream *made, size_t count, uint32_t state_count, const uint8_t *words,
                          size_t word_bytes, size_t piece)
{
    rans_decoder decoder;
    if (rans_decode_start(&decoder, &made->decode, state_count, (const uint8_t *)made->states,
                          words, word_bytes) != KVT_OK) {
        return false;
    }
    for (size_t at = 0; at < count; at += piece) {
        rans_decode(&decoder, made->decoded + at, count - at < piece ? count - at : piece);
    }
    return rans_decode_finish(&decoder);
}

static void test_normalise_is_sound_and_close(void **unused)
{
    (void)unused;
    uint8_t *symbols = malloc(SYMBOLS_MAX);
    assert_non_null(symbols);
    for (unsigned spread = 0; spread <= 255; spread += 15) {
        uint32_t counts[256];
        rans_frequencies frequencies;
        double cost = 0;
        fill_symbols(symbols, SYMBOLS_MAX, spread, counts);
        rans_normalise(counts, &frequencies);
        assert_true(rans_frequencies_sound(&frequencies));
        for (unsigned s = 0; s < 256; s++) {
            if (counts[s] == 0) continue;
            assert_true(frequencies.of[s] > 0);
            cost += counts[s] * (12 - log2(frequencies.of[s]));
        }
        assert_true(cost <= entropy_bits(counts, SYMBOLS_MAX) * 1.004 + SYMBOLS_MAX * 0.001);
    }
    free(symbols);
}

static void test_normalise_takes_extremes(void **unused)
{
    (void)unused;
    uint32_t counts[256];
    rans_frequencies frequencies;
    for (unsigned s = 0; s < 256; s++) {
        memset(counts, 0, sizeof counts);
        counts[s] = UINT32_MAX;
        rans_normalise(counts, &frequencies);
        assert_true(rans_frequencies_sound(&frequencies));
        assert_int_equal(frequencies.of[s], 4095);
        counts[s] = UINT32_MAX - 255;
        for (unsigned t = 0; t < 256; t++) {
            if (t != s) counts[t] = 1;
        }
        rans_normalise(counts, &frequencies);
        assert_true(rans_frequencies_sound(&frequencies));
        assert_int_equal(frequencies.of[s], 4096 - 255);
    }
}

static void test_frequencies_travel(void **unused)
{
    (void)unused;
    uint8_t symbols[4096];
    for (unsigned spread = 0; spread <= 255; spread += 5) {
        uint32_t counts[256];
        rans_frequencies frequencies;
        rans_frequencies read;
        uint8_t stored[RANS_FREQUENCIES_BYTES_MAX];
        fill_symbols(symbols, sizeof symbols, spread, counts);
        rans_normalise(counts, &frequencies);
        size_t bytes = rans_write_frequencies(&frequencies, stored, sizeof stored);
        assert_true(bytes > 2);
        assert_int_equal(rans_read_frequencies(stored, bytes, &read), bytes);
        assert_memory_equal(&read, &frequencies, sizeof read);
        for (size_t cut = 0; cut < bytes; cut++) {
            assert_int_equal(rans_write_frequencies(&frequencies, stored, cut), 0);
        }
        assert_int_equal(rans_write_frequencies(&frequencies, stored, bytes), bytes);
        for (size_t cut = 0; cut < bytes; cut++) {
            assert_int_equal(rans_read_frequencies(stored, cut, &read), 0);
        }
    }
}

static void test_unsound_frequencies_are_refused(void **unused)
{
    (void)unused;
    rans_frequencies read;
    const uint8_t reversed[] = {5, 4, 0xff, 0xff, 0xff};
    const uint8_t too_wide[] = {4, 5, 0xdd, 0xff, 0xff, 0xff, 0xff};
    const uint8_t small_sum[] = {4, 5, 0x11};
    assert_int_equal(rans_read_frequencies(reversed, sizeof reversed, &read), 0);
    assert_int_equal(rans_read_frequencies(too_wide, sizeof too_wide, &read), 0);
    assert_int_equal(rans_read_frequencies(small_sum, sizeof small_sum, &read), 0);
}

static void check_round_trip(stream *made, size_t count, unsigned spread, uint32_t state_count)
{
    uint32_t counts[256];
    rans_frequencies frequencies;
    uint8_t *begin = made->room + GUARD;
    uint8_t *end = begin + 2 * SYMBOLS_MAX;
    uint8_t *first_words = NULL;
    size_t first_bytes = 0;
    uint32_t first_states[RANS_STATES_MAX];
    fill_symbols(made->symbols, count, spread, counts);
    if (count == 0) counts[0] = 1;
    rans_normalise(counts, &frequencies);
    rans_fill_encode_table(&frequencies, &made->encode);
    rans_fill_decode_table(&frequencies, &made->decode);
    for (int level = CODECS_CPU_SCALAR; level <= (int)codecs_cpu_best(); level++) {
        codecs_cpu_force((codecs_cpu)level);
        const uint8_t *word =
            rans_encode(&made->encode, made->symbols, count, state_count, begin, end, made->states);
        assert_non_null(word);
        size_t bytes = (size_t)(end - word);
        if (level == CODECS_CPU_SCALAR) {
            first_bytes = bytes;
            first_words = malloc(bytes + 1);
            assert_non_null(first_words);
            memcpy(first_words, word, bytes);
            memcpy(first_states, made->states, sizeof first_states);
        }
        assert_int_equal(bytes, first_bytes);
        assert_memory_equal(word, first_words, bytes);
        assert_memory_equal(made->states, first_states, state_count * sizeof(uint32_t));
        memset(made->decoded, 0xa5, SYMBOLS_MAX + GUARD);
        assert_true(stream_decode(made, count, state_count, word, bytes, 4096));
        assert_memory_equal(made->decoded, made->symbols, count);
        for (unsigned i = 0; i < GUARD; i++) {
            assert_int_equal(made->decoded[count + i], 0xa5);
        }
    }
    free(first_words);
}

static void test_round_trips_on_every_instruction_set(void **unused)
{
    (void)unused;
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
    stream_free(made);
}

static void test_size_is_the_entropy(void **unused)
{
    (void)unused;
    stream *made = stream_make();
    for (unsigned spread = 3; spread <= 255; spread += 21) {
        uint32_t counts[256];
        rans_frequencies frequencies;
        fill_symbols(made->symbols, SYMBOLS_MAX, spread, counts);
        rans_normalise(counts, &frequencies);
        rans_fill_encode_table(&frequencies, &made->encode);
        uint8_t *end = made->room + 2 * SYMBOLS_MAX;
        const uint8_t *word = rans_encode(&made->encode, made->symbols, SYMBOLS_MAX, 64, made->room,
                                          end, made->states);
        assert_non_null(word);
        double ideal = entropy_bits(counts, SYMBOLS_MAX);
        assert_true((double)(end - word) * 8 <= ideal * 1.004 + 64 * 32);
    }
    stream_free(made);
}

static void test_room_is_kept(void **unused)
{
    (void)unused;
    const codecs_cpu level = codecs_cpu_level();
    enum { COUNT = 1000 };
    stream *made = stream_make();
    uint32_t counts[256];
    rans_frequencies frequencies;
    fill_symbols(made->symbols, COUNT, 40, counts);
    rans_normalise(counts, &frequencies);
    rans_fill_encode_table(&frequencies, &made->encode);
    for (int l = CODECS_CPU_SCALAR; l <= (int)codecs_cpu_best(); l++) {
        codecs_cpu_force((codecs_cpu)l);
        uint8_t *end = made->room + GUARD + 2 * COUNT;
        const uint8_t *word =
            rans_encode(&made->encode, made->symbols, COUNT, 32, made->room, end, made->states);
        assert_non_null(word);
        size_t need = (size_t)(end - word);
        for (size_t room = 0; room <= need + 2; room++) {
            memset(made->room, 0xa5, GUARD + 2 * COUNT);
            uint8_t *begin = end - room;
            word = rans_encode(&made->encode, made->symbols, COUNT, 32, begin, end, made->states);
            assert_true((word != NULL) == (room >= need));
            for (const uint8_t *byte = made->room; byte < begin; byte++) {
                assert_int_equal(*byte, 0xa5);
            }
        }
    }
    codecs_cpu_force(level);
    stream_free(made);
}

static void test_damage_is_harmless_and_same_everywhere(void **unused)
{
    (void)unused;
    const codecs_cpu level = codecs_cpu_level();
    enum { COUNT = 700 };
    stream *made = stream_make();
    uint32_t counts[256];
    rans_frequencies frequencies;
    fill_symbols(made->symbols, COUNT, 40, counts);
    rans_normalise(counts, &frequencies);
    rans_fill_encode_table(&frequencies, &made->encode);
    rans_fill_decode_table(&frequencies, &made->decode);
    uint8_t *end = made->room + 2 * COUNT;
    const uint8_t *word =
        rans_encode(&made->encode, made->symbols, COUNT, 32, made->room, end, made->states);
    assert_non_null(word);
    const size_t bytes = (size_t)(end - word);
    size_t noticed = 0;
    for (size_t cut = 0; cut <= bytes; cut += 2) {
        uint8_t *exact = malloc(cut + 1);
        uint8_t reference[COUNT];
        assert_non_null(exact);
        memcpy(exact, word, cut);
        if (cut > 0) exact[cut / 2] ^= 0x10;
        for (int l = CODECS_CPU_SCALAR; l <= (int)codecs_cpu_best(); l++) {
            codecs_cpu_force((codecs_cpu)l);
            bool sound = stream_decode(made, COUNT, 32, exact, cut, COUNT);
            if (!sound) noticed++;
            if (l == CODECS_CPU_SCALAR) memcpy(reference, made->decoded, COUNT);
            assert_memory_equal(made->decoded, reference, COUNT);
        }
        free(exact);
    }
    assert_true(noticed > bytes / 2 - 2);
    made->states[3] = RANS_STATE_MIN - 1;
    assert_false(stream_decode(made, COUNT, 32, word, bytes, COUNT));
    codecs_cpu_force(level);
    stream_free(made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normalise_is_sound_and_close),
        cmocka_unit_test(test_normalise_takes_extremes),
        cmocka_unit_test(test_frequencies_travel),
        cmocka_unit_test(test_unsound_frequencies_are_refused),
        cmocka_unit_test(test_round_trips_on_every_instruction_set),
        cmocka_unit_test(test_size_is_the_entropy),
        cmocka_unit_test(test_room_is_kept),
        cmocka_unit_test(test_damage_is_harmless_and_same_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
