/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_drop_index.c - the stored form of a kept-token index: round trips, the smallest form,
 * and that its reader believes no byte.
 */
#include "codecs_support.h"

#include "codecs/drop.h"

enum { TOKENS_MAX = 400 };

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* A random index: single tokens where run is 1, runs of up to `run` otherwise. */
static uint32_t draw(uint32_t *seed, uint32_t tokens, uint32_t one_in, uint32_t run,
                     uint32_t *index)
{
    uint32_t count = 0;
    for (uint32_t t = 0; t < tokens; t++) {
        if (next_random(seed) % one_in != 0) continue;
        for (uint32_t left = 1 + next_random(seed) % run; left > 0 && t < tokens; left--) {
            index[count++] = t++;
        }
    }
    return count;
}

static void indices_come_back(void **state)
{
    (void)state;
    uint32_t seed = 7;
    bool seen[3] = {false, false, false};
    for (int round = 0; round < 3000; round++) {
        uint32_t index[TOKENS_MAX + 1];
        uint32_t back[TOKENS_MAX + 1];
        const uint32_t tokens = next_random(&seed) % TOKENS_MAX;
        const uint32_t one_in = 1 + next_random(&seed) % 60;
        const uint32_t count = draw(&seed, tokens, one_in, 1 + next_random(&seed) % 40, index);
        const uint64_t bytes = drop_index_bytes(index, count, tokens);
        guarded packed = guarded_make(bytes);
        guarded again = guarded_make(bytes);
        uint64_t written;
        assert_status(drop_index_pack(index, count, tokens, packed.data, bytes - 1, &written),
                      KVT_E_SPACE);
        guarded_check(&packed, 0);
        assert_status(drop_index_pack(index, count, tokens, packed.data, bytes, &written), KVT_OK);
        guarded_check(&packed, bytes);
        assert_true(written == bytes && bytes <= 1 + (tokens + 7) / 8);
        assert_status(drop_index_pack(index, count, tokens, again.data, bytes, &written), KVT_OK);
        assert_memory_equal(packed.data, again.data, bytes);
        back[count] = 12345;
        assert_status(drop_index_unpack(packed.data, bytes, tokens, count, back), KVT_OK);
        assert_memory_equal(back, index, count * sizeof back[0]);
        assert_int_equal(back[count], 12345);
        seen[packed.data[0]] = true;
        free(packed.data);
        free(again.data);
    }
    assert_true(seen[0] && seen[1] && seen[2]);
}

/* Sinks and a window need a few bytes whatever the chain's length is. */
static void a_stream_is_small(void **state)
{
    (void)state;
    uint32_t index[1004];
    for (uint32_t i = 0; i < 1004; i++) {
        index[i] = i < 4 ? i : 130000 + i;
    }
    assert_int_equal(drop_index_bytes(index, 1004, 131072), 1 + 1 + 1 + 3 + 2);
}

static void large_tokens_fit(void **state)
{
    (void)state;
    const uint32_t index[3] = {0, 1, UINT32_MAX - 1};
    uint32_t back[3];
    uint8_t packed[16];
    uint64_t written;
    assert_status(drop_index_pack(index, 3, UINT32_MAX, packed, sizeof packed, &written), KVT_OK);
    assert_status(drop_index_unpack(packed, written, UINT32_MAX, 3, back), KVT_OK);
    assert_memory_equal(back, index, sizeof index);
    assert_status(drop_index_unpack(packed, written, UINT32_MAX - 1, 3, back), KVT_E_CORRUPT);
}

/* Whatever is accepted is an index, and packing it again gives a form no larger. */
static void check_any(const uint8_t *bytes, uint64_t count_bytes, uint32_t tokens, uint32_t count)
{
    uint8_t *exact = malloc(count_bytes + 1);
    uint32_t *back = malloc((count + 1) * sizeof *back);
    assert_true(exact != NULL && back != NULL);
    memcpy(exact, bytes, count_bytes);
    const kvt_status status = drop_index_unpack(exact, count_bytes, tokens, count, back);
    if (status == KVT_OK) {
        for (uint32_t i = 0; i < count; i++) {
            assert_true(back[i] < tokens && (i == 0 || back[i] > back[i - 1]));
        }
        assert_true(drop_index_bytes(back, count, tokens) <= count_bytes);
    } else {
        assert_status(status, KVT_E_CORRUPT);
    }
    free(back);
    free(exact);
}

static void damaged_indices_are_refused_or_sound(void **state)
{
    (void)state;
    uint32_t seed = 3;
    for (int round = 0; round < 60; round++) {
        uint32_t index[TOKENS_MAX + 1];
        uint8_t packed[TOKENS_MAX];
        uint64_t bytes;
        const uint32_t tokens = 1 + next_random(&seed) % 150;
        const uint32_t one_in = 1 + next_random(&seed) % 30;
        const uint32_t count = draw(&seed, tokens, one_in, 1 + next_random(&seed) % 20, index);
        assert_status(drop_index_pack(index, count, tokens, packed, sizeof packed, &bytes), KVT_OK);
        for (uint64_t cut = 0; cut < bytes; cut++) {
            uint32_t back[TOKENS_MAX];
            assert_status(drop_index_unpack(packed, cut, tokens, count, back), KVT_E_CORRUPT);
        }
        packed[bytes] = 0;
        check_any(packed, bytes, tokens, count);
        uint32_t back[TOKENS_MAX];
        assert_status(drop_index_unpack(packed, bytes + 1, tokens, count, back), KVT_E_CORRUPT);
        for (uint64_t i = 0; i < bytes * 8; i++) {
            packed[i / 8] ^= (uint8_t)(1u << (i % 8));
            check_any(packed, bytes, tokens, count);
            packed[i / 8] ^= (uint8_t)(1u << (i % 8));
        }
        for (int i = 0; i < 200; i++) {
            uint8_t noise[24];
            for (size_t k = 0; k < sizeof noise; k++) {
                noise[k] = (uint8_t)next_random(&seed);
            }
            noise[0] %= 4;
            check_any(noise, 1 + next_random(&seed) % 23, tokens, next_random(&seed) % 20);
        }
    }
}

/* One index has one stored form of each kind: needless bytes and broken runs are refused. */
static void only_the_written_form_is_read(void **state)
{
    (void)state;
    uint32_t back[8];
    const uint8_t long_zero[] = {1, 0x80, 0x00};
    assert_status(drop_index_unpack(long_zero, sizeof long_zero, 10, 1, back), KVT_E_CORRUPT);
    const uint8_t too_large[] = {1, 0xff, 0xff, 0xff, 0xff, 0x1f};
    assert_status(drop_index_unpack(too_large, sizeof too_large, UINT32_MAX, 1, back),
                  KVT_E_CORRUPT);
    const uint8_t endless[] = {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01};
    assert_status(drop_index_unpack(endless, sizeof endless, UINT32_MAX, 1, back), KVT_E_CORRUPT);
    const uint8_t split_run[] = {2, 0, 1, 0, 1};
    assert_status(drop_index_unpack(split_run, sizeof split_run, 10, 4, back), KVT_E_CORRUPT);
    const uint8_t spare_bits[] = {0, 0x03, 0x04};
    assert_status(drop_index_unpack(spare_bits, sizeof spare_bits, 10, 3, back), KVT_E_CORRUPT);
    const uint8_t bitmap[] = {0, 0x03, 0x02};
    assert_status(drop_index_unpack(bitmap, sizeof bitmap, 10, 3, back), KVT_OK);
    assert_int_equal(back[2], 9);
    assert_status(drop_index_unpack(bitmap, sizeof bitmap, 10, 2, back), KVT_E_CORRUPT);
    assert_status(drop_index_unpack(bitmap, sizeof bitmap, 10, 4, back), KVT_E_CORRUPT);
    const uint8_t unknown[] = {3, 0x03};
    assert_status(drop_index_unpack(unknown, sizeof unknown, 8, 2, back), KVT_E_CORRUPT);
    const uint8_t nothing[] = {1};
    assert_status(drop_index_unpack(nothing, 1, 0, 0, back), KVT_OK);
    assert_status(drop_index_unpack(nothing, 1, 0, 1, back), KVT_E_CORRUPT);
    assert_status(drop_index_unpack(nothing, 0, 0, 0, back), KVT_E_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(indices_come_back),
        cmocka_unit_test(a_stream_is_small),
        cmocka_unit_test(large_tokens_fit),
        cmocka_unit_test(damaged_indices_are_refused_or_sound),
        cmocka_unit_test(only_the_written_form_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
