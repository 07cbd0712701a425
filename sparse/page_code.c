/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_code.c - a unit's pages in the coded form of the planes codec.
 *
 * A segment is coded as one matrix of each side, K by channel and 128 tokens, V by token and 128
 * channels, and its planes are cut at the pages. Minima, scales and tables stay here:
 *
 *     u8 [segments]          1: the segment has a coded form
 *     per segment, from a multiple of 64 on:
 *         K   32 bytes of tables, fp16 minima [groups][head_dim], scales [groups][head_dim]
 *         V   32 bytes of tables, fp16 minima [tokens][parts], scales [tokens][parts]
 *
 * A page is decoded as a matrix of its own, with the part of the metadata that is its tokens'.
 * Re-entrant but for sparse_code_segment on the same code.
 */
#include "codecs/codecs.h"
#include "paging.h"
#include "sparse_kernels.h"

#include <assert.h>
#include <stdlib.h>

enum {
    CODE_TABLES = 32, /* as the codec's metadata part begins */
    CODE_PLANES = KVT_PLANES_MAX,
    CODE_LOG_GROUP = 7
};
_Static_assert(1 << CODE_LOG_GROUP == SPARSE_CODE_TOKENS, "the group of the codec's rate");

static const uint8_t plane_bits[CODE_PLANES] = {2, 1, 1, 2, 2};

static kvt_variant code_variant(void)
{
    return (kvt_variant){.codec = KVT_CODEC_PLANES,
                         .mode = 1,
                         .rate = CODE_PLANES | CODE_PLANES << 3 | CODE_LOG_GROUP << 6 |
                                 CODECS_PLANES_V_HEAD};
}

static kvt_matrix code_matrix(const sparse_paging *paging, uint32_t tokens, kvt_side side,
                              uint32_t planes)
{
    return (kvt_matrix){.tokens = tokens,
                        .kv_heads = 1,
                        .head_dim = (uint16_t)paging->head_dim,
                        .dtype = paging->dtype,
                        .side = (uint8_t)side,
                        .planes = planes,
                        .span = 1};
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 63) & ~UINT64_C(63);
}

/* Groups of channels of a V row. */
static uint32_t code_parts(const sparse_paging *paging)
{
    return (paging->head_dim + SPARSE_CODE_TOKENS - 1) / SPARSE_CODE_TOKENS;
}

/* Metadata of so many tokens of one side. */
static uint64_t code_side_bytes(const sparse_paging *paging, uint32_t tokens, kvt_side side)
{
    const uint64_t groups = (tokens + SPARSE_CODE_TOKENS - 1) / SPARSE_CODE_TOKENS;
    return CODE_TABLES + 4 * (side == KVT_SIDE_K ? groups * paging->head_dim
                                                 : (uint64_t)tokens * code_parts(paging));
}

static uint64_t code_segment_bytes(const sparse_paging *paging, uint32_t tokens)
{
    return aligned(code_side_bytes(paging, tokens, KVT_SIDE_K)) +
           aligned(code_side_bytes(paging, tokens, KVT_SIDE_V));
}

static uint32_t code_segments(const sparse_paging *paging)
{
    return sparse_segment_count(paging->tokens, paging->segment_tokens);
}

static uint32_t code_segment_tokens(const sparse_paging *paging, uint32_t segment)
{
    return sparse_segment_first(paging->tokens, paging->segment_tokens, segment + 1) -
           sparse_segment_first(paging->tokens, paging->segment_tokens, segment);
}

/* All segments but the last are as long as the first. */
static uint8_t *code_metadata(const sparse_paging *paging, const sparse_code *code,
                              uint32_t segment, kvt_side side)
{
    uint8_t *at = code->memory + aligned(code_segments(paging)) +
                  segment * code_segment_bytes(paging, code_segment_tokens(paging, 0));
    if (side == KVT_SIDE_K) return at;
    return at + aligned(code_side_bytes(paging, code_segment_tokens(paging, segment), KVT_SIDE_K));
}

uint64_t sparse_code_bytes(const sparse_paging *paging)
{
    const uint32_t segments = code_segments(paging);
    uint64_t bytes = aligned(segments);
    for (uint32_t s = 0; s < segments; s++)
        bytes += code_segment_bytes(paging, code_segment_tokens(paging, s));
    return bytes;
}

kvt_status sparse_code_open(const sparse_paging *paging, sparse_code *code_out)
{
    const uint64_t bytes = sparse_code_bytes(paging);
    *code_out = (sparse_code){.bytes = bytes};
    if (bytes == 0) return KVT_OK;
    code_out->memory = aligned_alloc(64, bytes);
    if (code_out->memory == NULL) return KVT_E_MEMORY;
    memset(code_out->memory, 0, bytes);
    return KVT_OK;
}

void sparse_code_close(sparse_code *code)
{
    free(code->memory);
    *code = (sparse_code){.memory = NULL};
}

/* Scratch: metadata of a page, a plane that is not aligned, or a segment's planes; then that of the
 * codec. */
uint64_t sparse_code_scratch(const sparse_paging *paging)
{
    const uint32_t segments = code_segments(paging);
    uint32_t longest = SPARSE_CODE_TOKENS;
    for (uint32_t s = 0; s < segments; s++) {
        const uint32_t tokens = code_segment_tokens(paging, s);
        longest = tokens > longest ? tokens : longest;
    }
    uint64_t own = 0, codec = 0;
    for (int side = KVT_SIDE_K; side <= KVT_SIDE_V; side++) {
        const kvt_matrix matrix = code_matrix(paging, longest, (kvt_side)side, CODE_PLANES);
        const uint64_t needed = codecs_planes.matrix_scratch(code_variant(), &matrix);
        codec = needed > codec ? needed : codec;
    }
    own = aligned(code_side_bytes(paging, SPARSE_CODE_TOKENS, KVT_SIDE_K)) +
          aligned(code_side_bytes(paging, SPARSE_CODE_TOKENS, KVT_SIDE_V));
    for (uint32_t p = 0; p < CODE_PLANES; p++)
        own += aligned((uint64_t)longest * paging->head_dim / 8 * plane_bits[p]);
    return own + codec;
}

/* ---- encoding ---- */

/* Cuts the planes of a segment's side at its pages. */
static void code_cut(const sparse_paging *paging, uint32_t tokens, kvt_side side,
                     const kvt_part *parts, uint8_t *target)
{
    for (uint32_t at = 0; at < tokens; at += paging->page_tokens) {
        const uint32_t n = tokens - at < paging->page_tokens ? tokens - at : paging->page_tokens;
        for (uint32_t p = 0; p < CODE_PLANES; p++) {
            const uint64_t row = (uint64_t)paging->head_dim / 8 * plane_bits[p];
            memcpy(target + (side == KVT_SIDE_V ? n * row : 0), parts[1 + p].data + at * row,
                   n * row);
            target += 2 * n * row;
        }
    }
}

static kvt_status code_side(const sparse_paging *paging, const sparse_code *code, uint32_t segment,
                            kvt_side side, const void *rows, uint8_t *target, uint8_t *scratch)
{
    const uint32_t tokens = code_segment_tokens(paging, segment);
    const kvt_matrix matrix = code_matrix(paging, tokens, side, CODE_PLANES);
    kvt_part parts[KVT_PARTS_MAX];
    const uint32_t count = codecs_planes.matrix_parts(code_variant(), &matrix, parts);
    assert(count == 1 + CODE_PLANES);
    assert(parts[0].bytes == code_side_bytes(paging, tokens, side));
    parts[0].data = code_metadata(paging, code, segment, side);
    for (uint32_t p = 1; p < count; p++) {
        parts[p].data = scratch;
        scratch += aligned(parts[p].bytes);
    }
    const kvt_status status =
        codecs_planes.encode_matrix(code_variant(), &matrix, rows, parts, scratch,
                                    codecs_planes.matrix_scratch(code_variant(), &matrix));
    if (status == KVT_OK) code_cut(paging, tokens, side, parts, target);
    return status;
}

kvt_status sparse_code_segment(const sparse_paging *paging, sparse_code *code, uint32_t segment,
                               const void *keys, const void *values, uint8_t *target, void *scratch)
{
    assert(segment < code_segments(paging));
    kvt_status status = code_side(paging, code, segment, KVT_SIDE_K, keys, target, scratch);
    if (status == KVT_OK)
        status = code_side(paging, code, segment, KVT_SIDE_V, values, target, scratch);
    code->memory[segment] = status == KVT_OK;
    return status;
}

static uint32_t code_segment_of(const sparse_paging *paging, uint32_t page)
{
    const uint32_t segment = sparse_page_first(paging, page) / paging->segment_tokens;
    const uint32_t segments = code_segments(paging);
    return segment < segments ? segment : segments - 1;
}

bool sparse_code_has(const sparse_paging *paging, const sparse_code *code, uint32_t page)
{
    assert(page < paging->pages);
    return code->memory != NULL && code->memory[code_segment_of(paging, page)] != 0;
}

/* ---- decoding ---- */

/* The metadata of tokens [at, at + n) of a segment: tables, then those of its minima and scales
 * that are theirs. */
static void code_page_metadata(const sparse_paging *paging, const uint8_t *metadata,
                               uint32_t tokens, kvt_side side, uint32_t at, uint32_t n,
                               uint8_t *target)
{
    const uint64_t half = sizeof(uint16_t);
    const uint64_t all = (code_side_bytes(paging, tokens, side) - CODE_TABLES) / 2;
    const uint64_t count = (code_side_bytes(paging, n, side) - CODE_TABLES) / 2;
    const uint64_t first =
        half * (side == KVT_SIDE_K ? (uint64_t)(at / SPARSE_CODE_TOKENS) * paging->head_dim
                                   : (uint64_t)at * code_parts(paging));
    memcpy(target, metadata, CODE_TABLES);
    memcpy(target + CODE_TABLES, metadata + CODE_TABLES + first, count);
    memcpy(target + CODE_TABLES + count, metadata + CODE_TABLES + all + first, count);
}

static kvt_status code_page_side(const sparse_paging *paging, const sparse_code *code,
                                 uint32_t page, kvt_side side, uint32_t planes,
                                 const uint8_t *source, void *rows, uint8_t *scratch)
{
    const uint32_t segment = code_segment_of(paging, page);
    const uint32_t begin = sparse_segment_first(paging->tokens, paging->segment_tokens, segment);
    const uint32_t at = sparse_page_first(paging, page) - begin;
    const uint32_t n = sparse_page_first(paging, page + 1) - begin - at;
    const kvt_matrix matrix = code_matrix(paging, n, side, planes);
    kvt_part parts[KVT_PARTS_MAX];
    const uint32_t count = codecs_planes.matrix_parts(code_variant(), &matrix, parts);
    assert(count == 1 + planes && parts[0].bytes == code_side_bytes(paging, n, side));
    code_page_metadata(paging, code_metadata(paging, code, segment, side),
                       code_segment_tokens(paging, segment), side, at, n, scratch);
    parts[0].data = scratch;
    scratch += aligned(parts[0].bytes);
    for (uint32_t p = 1; p < count; p++) {
        const uint8_t *plane = source + (side == KVT_SIDE_V ? parts[p].bytes : 0);
        source += 2 * parts[p].bytes;
        /* The codec asks for aligned parts; it only reads them. */
        memcpy(scratch, plane, parts[p].bytes);
        parts[p].data = scratch;
        scratch += aligned(parts[p].bytes);
    }
    const uint64_t bytes = (uint64_t)n * paging->head_dim * kvt_dtype_bytes(paging->dtype);
    return codecs_planes.decode_matrix(code_variant(), &matrix, parts,
                                       VIEW_ROWS_PACKED(rows, bytes), scratch,
                                       codecs_planes.matrix_scratch(code_variant(), &matrix));
}

kvt_status sparse_code_page(const sparse_paging *paging, const sparse_code *code, uint32_t page,
                            pages_variant variant, const uint8_t *source, void *keys, void *values,
                            void *scratch)
{
    const uint32_t planes = variant == PAGES_BITS_2 ? 1 : variant == PAGES_BITS_4 ? 3 : 5;
    assert(variant >= PAGES_BITS_2 && variant <= PAGES_BITS_8);
    assert(sparse_code_has(paging, code, page));
    kvt_status status =
        code_page_side(paging, code, page, KVT_SIDE_K, planes, source, keys, scratch);
    if (status == KVT_OK)
        status = code_page_side(paging, code, page, KVT_SIDE_V, planes, source, values, scratch);
    if (status != KVT_OK) return status;
    /* Minima and scales may be finite, and what they add up to not. */
    const uint64_t bytes =
        (uint64_t)(sparse_page_first(paging, page + 1) - sparse_page_first(paging, page)) *
        paging->head_dim * kvt_dtype_bytes(paging->dtype);
    return sparse_rows_are_sound(keys, bytes, paging->dtype) &&
                   sparse_rows_are_sound(values, bytes, paging->dtype)
               ? KVT_OK
               : KVT_E_CORRUPT;
}
