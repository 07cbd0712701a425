/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.h - which pages of a unit a decode step reads, and at which precision.
 *
 * A page has an expected weight (its share of attention), a number of tokens, and a variant that is
 * resident already. Its key is log2(weight / tokens). A variant applies to pages whose key lies so
 * many octaves above theta, and theta is the least one whose reads fit the budget:
 *
 *     key - theta    < 0.5      >= 0.5     >= 4        >= 12      (the default octaves)
 *     variant        absent     4 bits     8 bits      raw
 *
 * The error of a page read at b bits falls by 4 a bit and grows with the square of its weight, so
 * the bits that one more octave of weight deserves are constant: reverse water-filling. Octaves are
 * counted on the number's own scale, exponent and linear mantissa, 0.09 from log2 at most.
 *
 * Numbers in, plan out: no clock, heap, lock or libm; the same plan on every compiler. Thread rule:
 * any thread.
 */
#ifndef POLICY_PAGES_H
#define POLICY_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How much of a page. The middle three are prefixes of one coded form; raw is a form of its own. */
typedef enum pages_variant {
    PAGES_ABSENT = 0,
    PAGES_BITS_2 = 1,
    PAGES_BITS_4 = 2,
    PAGES_BITS_8 = 3,
    PAGES_RAW = 4
} pages_variant;
#define PAGES_VARIANTS 5u

#define PAGES_NEVER      1e30f      /* octaves of a variant that no page takes */
#define PAGES_BUDGET_ALL UINT64_MAX /* every page in the best variant there is */

typedef struct pages_terms {
    uint32_t token_bytes[PAGES_VARIANTS]; /* of a token up to the variant's end; [PAGES_ABSENT] 0 */
    float octaves[PAGES_VARIANTS]; /* above theta, ascending; PAGES_NEVER: not on offer. That of
                                      PAGES_ABSENT counts for nothing */
    uint32_t grain_bytes;          /* reads begin and end at multiples of it; 1: they do not */
    bool rows_stay; /* a resident page is kept as rows, in as many bytes as raw ones: a better
                       variant of it is read from its start */
} pages_terms;

/* The default octaves; token_bytes of head_dim channels of element_bytes, both sides, without
 * minima and scales; `variants` has the bit 1 << variant of each that is on offer. */
void pages_terms_init(pages_terms *terms, uint32_t head_dim, uint32_t element_bytes,
                      uint32_t variants, uint32_t grain_bytes);

typedef struct pages_problem {
    uint32_t count;         /* pages */
    const float *weight;    /* of each, finite, at least 0 */
    const uint16_t *tokens; /* of each, at least 1; NULL: page_tokens each */
    uint32_t page_tokens;
    uint32_t last_tokens; /* of the last page; 0: as the others. Counts without tokens alone */
    const uint8_t *held;  /* pages_variant that is resident of each; NULL: nothing is */
    bool held_counts;     /* against the budget, as if it were read: what is chosen does not depend
                             on what is resident, and what is read is the less, the more is */
    uint64_t budget_bytes;
    const pages_terms *terms;
} pages_problem;

typedef struct pages_plan {
    double theta;   /* of weight per token; 0: everything is read */
    uint64_t bytes; /* that are read: at most the budget */
} pages_plan;

/* Bytes that are read of a page that is resident in one variant to have it in another: of a longer
 * prefix what is missing, or all of it where rows stay; whole grains. 0 when nothing is. */
uint64_t pages_read_bytes(const pages_terms *terms, uint32_t tokens, pages_variant held,
                          pages_variant wanted);

/* Chooses the variant of every page: variant_out[i] >= held[i]. Keys are told apart to a sixteenth
 * of an octave; of those that are not, the page with the lower number comes first. A page whose
 * weight per token is below 2^-64 is read with PAGES_BUDGET_ALL alone. */
void pages_choose(const pages_problem *problem, uint8_t *variant_out, pages_plan *plan_out);

/* One line about a page: weight, key, theta, each variant's threshold, choice, bytes. Always
 * terminated, cut to size; returns the length it would need. page < problem->count. */
size_t pages_explain(const pages_problem *problem, const uint8_t *variant, const pages_plan *plan,
                     uint32_t page, char *text, size_t size);

#endif
