/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_paging.c - the geometry of pages: every place lies in one page and one segment, and
 * no page crosses a segment.
 */
#include "cases.h"

#include "sparse/paging.h"

#include <stdio.h>

static void check_zone(uint32_t tokens, uint32_t segment_tokens, uint32_t page_tokens)
{
    sparse_paging paging;
    assert_ok(sparse_paging_init(&paging, 64, KVT_DTYPE_FP16, tokens, segment_tokens, page_tokens));
    const uint32_t segments = sparse_segment_count(tokens, segment_tokens);
    uint32_t page = 0;
    for (uint32_t s = 0; s < segments; s++) {
        const uint32_t first = sparse_segment_first(tokens, segment_tokens, s);
        const uint32_t end = sparse_segment_first(tokens, segment_tokens, s + 1);
        assert_true(end > first && end - first < 2 * segment_tokens);
        /* The segment's pages fill it exactly. */
        assert_int_equal(sparse_page_first(&paging, page), first);
        while (page < paging.pages && sparse_page_first(&paging, page) < end) {
            const uint32_t at = sparse_page_first(&paging, page);
            const uint32_t next = sparse_page_first(&paging, page + 1);
            assert_true(next > at && next - at <= page_tokens && next <= end);
            assert_int_equal(sparse_page_of(&paging, at), page);
            assert_int_equal(sparse_page_of(&paging, next - 1), page);
            page++;
        }
    }
    assert_int_equal(page, paging.pages);
    assert_int_equal(sparse_segment_first(tokens, segment_tokens, segments), tokens);
}

TEST(pages_fill_segments)
{
    for (uint32_t tokens = 0; tokens < 1500; tokens++)
        check_zone(tokens, 256, 32);
    check_zone(131004, 2048, 32);
    check_zone(7, 128, 128);
    check_zone(40000, 32768, 8);
}

TEST(page_tokens_are_chosen_for_four_kilobytes)
{
    const struct {
        uint32_t head_dim, page_tokens;
    } cases[] = {{8, 128}, {32, 128}, {64, 64}, {96, 32}, {128, 32}, {256, 16}, {512, 16}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sparse_paging paging;
        assert_ok(sparse_paging_init(&paging, cases[i].head_dim, KVT_DTYPE_BF16, 1000, 0, 0));
        assert_int_equal(paging.page_tokens, cases[i].page_tokens);
    }
}

TEST(bytes_of_prefixes)
{
    sparse_paging paging;
    assert_ok(sparse_paging_init(&paging, 128, KVT_DTYPE_BF16, 1000, 0, 32));
    assert_int_equal(sparse_page_bytes(&paging, 32, PAGES_ABSENT), 0);
    assert_int_equal(sparse_page_bytes(&paging, 32, PAGES_BITS_2), 2048);
    assert_int_equal(sparse_page_bytes(&paging, 32, PAGES_BITS_4), 4096);
    assert_int_equal(sparse_page_bytes(&paging, 32, PAGES_BITS_8), 8192);
    assert_int_equal(sparse_page_bytes(&paging, 32, PAGES_RAW), 16384);
    paging.sides = 1;
    assert_int_equal(sparse_page_bytes(&paging, 32, PAGES_RAW), 8192);
    assert_ok(sparse_paging_init(&paging, 656, KVT_DTYPE_FP8, 1000, 0, 8));
    paging.sides = 1;
    assert_int_equal(sparse_page_bytes(&paging, 8, PAGES_RAW), 5248);
}

TEST(shapes_are_refused)
{
    sparse_paging paging;
    const struct {
        uint32_t head_dim, dtype, segment, page;
    } wrong[] = {{0, KVT_DTYPE_FP16, 0, 0},
                 {12, KVT_DTYPE_FP16, 0, 0},
                 {1032, KVT_DTYPE_FP16, 0, 0},
                 {64, KVT_DTYPE_OPAQUE, 0, 0},
                 {64, 99, 0, 0},
                 {64, KVT_DTYPE_FP16, 100, 0},
                 {64, KVT_DTYPE_FP16, 65536, 0},
                 {64, KVT_DTYPE_FP16, 2048, 4},
                 {64, KVT_DTYPE_FP16, 2048, 24},
                 {64, KVT_DTYPE_FP16, 2048, 256},
                 {64, KVT_DTYPE_FP16, 2048, 1u << 31}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(sparse_paging_init(&paging, wrong[i].head_dim, (uint8_t)wrong[i].dtype,
                                            1000, wrong[i].segment, wrong[i].page),
                         KVT_E_ARGUMENT);
}
