/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paging.h - the pages of one unit: their geometry, and their bytes from rows and back.
 *
 * A page is page_tokens consecutive places; it does not cross a segment. Its coded form is that of
 * the planes codec, most significant planes first, K before V in each, so that a prefix is a
 * coarser page; minima, scales and tables are apart, in memory (docs/SPARSE.md). Pure but for the
 * allocation of a code's metadata. Thread rule: re-entrant; scratch is the caller's.
 */
#ifndef SPARSE_PAGING_H
#define SPARSE_PAGING_H

#include "index.h"
#include "sparse/decide/pages.h"

#define SPARSE_GRAIN       4096u /* a drive's */
#define SPARSE_CODE_TOKENS 128u  /* places that share the minimum and scale of a channel */

/* So many bytes out to a whole grain. */
static inline uint64_t sparse_whole_grains(uint64_t bytes)
{
    return (bytes + SPARSE_GRAIN - 1) / SPARSE_GRAIN * SPARSE_GRAIN;
}

typedef struct sparse_paging {
    uint32_t head_dim;
    uint8_t dtype;
    uint32_t tokens;         /* of the zone */
    uint32_t segment_tokens; /* as the index has them */
    uint32_t page_tokens;    /* a multiple of 8, 8 .. 128; divides SPARSE_CODE_TOKENS */
    uint32_t pages;
    uint32_t sides; /* 2; a caller may set 1: K alone */
} sparse_paging;

/* page_tokens 0: so many that 4 bits of both sides are 4 KiB, within 16 and 128. KVT_OK;
 * KVT_E_ARGUMENT. */
KVT_NODISCARD kvt_status sparse_paging_init(sparse_paging *paging, uint32_t head_dim, uint8_t dtype,
                                            uint32_t tokens, uint32_t segment_tokens,
                                            uint32_t page_tokens);

/* First place of a page; of `pages` the zone's end. */
uint32_t sparse_page_first(const sparse_paging *paging, uint32_t page);
uint32_t sparse_page_of(const sparse_paging *paging, uint32_t place);

/* Bytes of a prefix, or of the raw section, of a page of so many tokens. */
uint64_t sparse_page_bytes(const sparse_paging *paging, uint32_t tokens, pages_variant variant);

/* Minima, scales and tables of a unit's coded form, and which segments have one. */
typedef struct sparse_code {
    uint8_t *memory;
    uint64_t bytes;
} sparse_code;

/* Scratch of the calls below, in bytes; aligned to 64. */
uint64_t sparse_code_scratch(const sparse_paging *paging);

/* The bytes of the metadata, which hold numbers of any value. open allocates them; every segment is
 * raw until it is encoded. KVT_OK; KVT_E_MEMORY. */
uint64_t sparse_code_bytes(const sparse_paging *paging);
KVT_NODISCARD kvt_status sparse_code_open(const sparse_paging *paging, sparse_code *code_out);
void sparse_code_close(sparse_code *code);

/*
 * Encodes the pages of one segment.
 *   keys, values   rows in the order of places, [segment's tokens][head_dim], packed
 *   target         the pages' coded forms one after the other, each sparse_page_bytes(8 bits) of
 *                  its tokens
 * KVT_OK; KVT_RAW: the segment does not fit the code and stays raw.
 */
KVT_NODISCARD kvt_status sparse_code_segment(const sparse_paging *paging, sparse_code *code,
                                             uint32_t segment, const void *keys, const void *values,
                                             uint8_t *target, void *scratch);

/* Whether a page has a coded form; of a zeroed code none has. */
bool sparse_code_has(const sparse_paging *paging, const sparse_code *code, uint32_t page);

/* Decodes a prefix of a page to rows of the dtype, [tokens][head_dim] packed. variant: 2, 4 or 8
 * bits. KVT_OK; KVT_E_CORRUPT (metadata). Any payload gives values. */
KVT_NODISCARD kvt_status sparse_code_page(const sparse_paging *paging, const sparse_code *code,
                                          uint32_t page, pages_variant variant,
                                          const uint8_t *source, void *keys, void *values,
                                          void *scratch);

#endif
