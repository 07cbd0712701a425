/* SPDX-License-Identifier: Apache-2.0 */
/*
 * singles.h - single tokens as what a step brings of pages that are in memory.
 *
 * A token's code says, in a byte for each part of 8 channels, which of 256 rows is nearest to the
 * part of its key less its cluster's centroid. With it a token has a score of its own: the heaviest
 * tokens of such pages are brought, and those that are left enter the estimate with their own
 * weights (docs/SPARSE.md). Built in integers and in sums of one order, so codes and choices are
 * the same on every compiler.
 *
 * Thread rule: codes that are built are only read, by any threads; one work area per thread.
 */
#ifndef SPARSE_SINGLES_H
#define SPARSE_SINGLES_H

#include "choose.h"

#define SINGLES_PART 8u   /* channels of one byte of a code; divides every head_dim */
#define SINGLES_ROWS 256u /* that a part is one of */

typedef struct singles_codes {
    int8_t *book;   /* [head_dim][SINGLES_ROWS]: the rows, channel by channel */
    float *step;    /* [head_dim]: value of one step of the book */
    float *error;   /* [head_dim]: mean squared error of a key by centroid and code */
    uint8_t *code;  /* [tokens][head_dim / SINGLES_PART], by place */
    uint64_t bytes; /* of all; `book` is where they begin */
} singles_codes;

/* Codes of the zone's keys, whose index is built. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_singles_build(const sparse_index *index, const sparse_rows *keys,
                                              uint8_t dtype, uint64_t seed,
                                              singles_codes *codes_out);
void sparse_singles_free(singles_codes *codes);

/* Scratch of a choice, for the largest of several units. */
typedef struct singles_work {
    float *table;    /* [head_dim / SINGLES_PART][SINGLES_ROWS][group]: scores of the rows */
    float *weight;   /* [tokens][group], relative as work->scores are */
    float *away;     /* [tokens][group]: a score less the centroid's */
    int16_t *keys;   /* [tokens]: the order of their weights */
    uint32_t *place; /* [tokens] */
} singles_work;

KVT_NODISCARD kvt_status sparse_singles_work_open(uint32_t tokens, uint32_t group,
                                                  uint32_t head_dim, singles_work *work_out);
void sparse_singles_work_close(singles_work *work);

/* The tokens that a step of one unit brings of its pages that bring single ones. */
typedef struct singles_choice {
    uint8_t *page;          /* [pages of the zone]: not 0 of those */
    uint64_t *chosen;       /* a bit of each place */
    uint32_t tokens, count; /* of those pages; chosen ones */
    sparse_left left;
    uint32_t *end; /* of each cluster that is left: its tokens are in the scratch up to here */
} singles_choice;

KVT_NODISCARD kvt_status sparse_singles_open(uint32_t tokens, uint32_t pages, uint32_t lanes,
                                             uint32_t group, singles_choice *choice_out);
void sparse_singles_close(singles_choice *choice);

/*
 * Chooses a share of the tokens of choice->page, after sparse_choose_weights of the same queries,
 * fp32 [group][head_dim], and makes what is left the work's. Tokens of clusters that were not
 * scored in full are left.
 */
void sparse_singles_choose(const singles_codes *codes, const sparse_index *index,
                           const sparse_paging *paging, const float *queries, float scale,
                           float share, const singles_work *scratch, sparse_work *work,
                           singles_choice *choice);

static inline bool singles_is_chosen(const singles_choice *choice, uint32_t place)
{
    return (choice->chosen[place / 64] >> place % 64 & 1) != 0;
}

#endif
