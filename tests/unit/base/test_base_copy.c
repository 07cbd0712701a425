/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_base_copy.c - copies of KV give the bytes of memcpy, and touch none beside them, at any
 * distance of target and source within a page and for sizes on both sides of each way.
 */
#include "cases.h"

#include "base/copy.h"

#include <stdlib.h>

#define MOST (BASE_COPY_LONG + 8192)

typedef void copies(void *target, const void *source, size_t bytes);

static void expect_copy(copies *copy, uint8_t *target, const uint8_t *source, size_t ahead,
                        size_t bytes)
{
    uint8_t *to = target + 4096 + ahead;
    to[-1] = 0xa5;
    to[bytes] = 0x5a;
    memset(to, 0, bytes);
    copy(to, source + 64, bytes);
    assert_memory_equal(to, source + 64, bytes);
    assert_int_equal(to[-1], 0xa5);
    assert_int_equal(to[bytes], 0x5a);
}

static void expect_copies(copies *copy)
{
    static const size_t sizes[] = {0,
                                   1,
                                   BASE_COPY_PIECE - 1,
                                   BASE_COPY_PIECE,
                                   BASE_COPY_PIECE + 1,
                                   3 * BASE_COPY_PIECE + 17,
                                   32768,
                                   BASE_COPY_LONG - 1,
                                   BASE_COPY_LONG,
                                   BASE_COPY_LONG + 4097};
    static const size_t aheads[] = {0, 1, 16, 63, 64, 80, 126, 127, 128, 4032, 4095};
    uint8_t *source = aligned_alloc(4096, MOST + 4096), *target = aligned_alloc(4096, MOST + 8192);
    assert_non_null(source);
    assert_non_null(target);
    for (size_t i = 0; i < MOST; i++)
        source[i] = (uint8_t)(i * 31 + i / 251);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < sizeof aheads / sizeof *aheads; k++)
            expect_copy(copy, target, source, aheads[k], sizes[i]);
    free(source);
    free(target);
}

TEST(copies_give_what_was_there)
{
    expect_copies(base_copy);
}

TEST(copies_past_the_caches_give_what_was_there)
{
    expect_copies(base_copy_past);
}
