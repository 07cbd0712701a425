/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_checksum.c - every level gives libxxhash's value for every length, and a copy that is
 * checksummed on the way moves exactly its bytes.
 */
#include "codecs_support.h"

#include "codecs/kernels/checksum.h"

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

enum { SHORT_BYTES = 2300, LARGE_BYTES = 600000, AFTER_BYTES = 130 };

static void bytes_fill(uint8_t *bytes, uint64_t count)
{
    uint64_t state = 1;
    for (uint64_t i = 0; i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bytes[i] = (uint8_t)(state >> 56);
    }
}

static void check_of(const uint8_t *bytes, uint64_t count)
{
    assert_int_equal(checksum_of(bytes, count), XXH3_64bits(bytes, count));
}

/* A copy from and to some offset, with `after_count` further bytes. */
static void check_copy_way(const uint8_t *source, uint64_t from, uint64_t to, uint64_t count,
                           uint64_t after_count, bool stream)
{
    XXH3_state_t state;
    const uint8_t *after = source + LARGE_BYTES - AFTER_BYTES;
    guarded target = guarded_make(to + count);
    const checksum_next next = {{source, after}};
    uint64_t got =
        checksum_copy(target.data + to, source + from, count, after, after_count, stream, &next);
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, source + from, count);
    XXH3_64bits_update(&state, after, after_count);
    assert_int_equal(got, XXH3_64bits_digest(&state));
    assert_memory_equal(target.data + to, source + from, count);
    for (uint64_t i = 0; i < to; i++) {
        assert_int_equal(target.data[i], GUARD_VALUE);
    }
    guarded_check(&target, to + count);
}

/* The same, through the caches and past them. */
static void check_copy(const uint8_t *source, uint64_t from, uint64_t to, uint64_t count,
                       uint64_t after_count)
{
    check_copy_way(source, from, to, count, after_count, false);
    check_copy_way(source, from, to, count, after_count, true);
}

/* What lies behind the copy follows the source in memory, as a segment's padding does. */
static void check_copy_before_padding(const uint8_t *source, uint64_t count, uint64_t after_count)
{
    guarded target = guarded_make(count);
    for (int stream = 0; stream < 2; stream++) {
        assert_int_equal(checksum_copy(target.data, source, count, source + count, after_count,
                                       stream != 0, NULL),
                         XXH3_64bits(source, count + after_count));
        assert_memory_equal(target.data, source, count);
        guarded_check(&target, count);
    }
}

typedef struct walked {
    const uint8_t *source;
    uint64_t *end;
} walked;

/* Pieces follow each other and are of the source. */
static void walk_take(const void *context, uint64_t at, uint64_t bytes, const uint8_t *piece)
{
    const walked *walk = context;
    assert_int_equal(at, *walk->end);
    assert_in_range(bytes, 1, CHECKSUM_PIECE);
    assert_ptr_equal(piece, walk->source + at);
    *walk->end += bytes;
}

static void check_walk(const uint8_t *source, uint64_t count, uint64_t after_count)
{
    uint64_t end = 0;
    const walked walk = {source, &end};
    assert_int_equal(checksum_walk(source, count, after_count, walk_take, &walk),
                     XXH3_64bits(source, count + after_count));
    assert_int_equal(end, count);
}

static void check_level(const uint8_t *source)
{
    static const uint64_t counts[] = {CHECKSUM_STREAM_BYTES - 1,  CHECKSUM_STREAM_BYTES,
                                      CHECKSUM_STREAM_BYTES + 1,  CHECKSUM_STREAM_BYTES + 16383,
                                      CHECKSUM_STREAM_BYTES + 77, LARGE_BYTES - 64};
    for (uint64_t count = 0; count < SHORT_BYTES; count++) {
        check_of(source, count);
        check_of(source + 3, count);
        check_copy(source, count % 7, count % 64, count, count % AFTER_BYTES);
        check_walk(source + count % 5, count, count % AFTER_BYTES);
        check_copy_before_padding(source + count % 3, count, count % 2000 * 3);
    }
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        check_of(source, counts[i]);
        check_of(source + 5, counts[i]);
        check_walk(source, counts[i], 0);
        check_walk(source + 3, counts[i] - 3, 63);
        for (uint64_t to = 0; to < 65; to += 13) {
            check_copy(source, to % 64, to, counts[i], 0);
            check_copy(source, 0, to, counts[i], AFTER_BYTES);
        }
    }
}

TEST(every_level_gives_the_value_of_the_library)
{
    const codecs_cpu before = codecs_cpu_level();
    uint8_t *source = test_alloc(LARGE_BYTES);
    bytes_fill(source, LARGE_BYTES);
    for (int level = CODECS_CPU_SCALAR; level <= (int)codecs_cpu_best(); level++) {
        codecs_cpu_force((codecs_cpu)level);
        check_level(source);
    }
    codecs_cpu_force(before);
}
