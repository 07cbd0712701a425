/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_table.h - where the pages of one unit lie on the drives, how they are checked, and their
 * copies.
 *
 *     slot of a page    [coded form, most significant planes first | raw rows], each part from a
 *                       multiple of 4 KiB on; a part that the sequence has no use for is not there
 *     unit              one object of a slot a page in the order of pages; the slot is the stripe
 *                       unit, so pages are dealt to unequal drives in proportion. Of a kept unit
 *                       the slots are the end of its entry, read where that lies
 *     copies            the hottest pages have a second slot on another drive; an object a drive
 *
 * A part is read from its front: a prefix of the coded form is the page at fewer bits. Each step of
 * the prefix has a checksum of its own (2 bits, the planes up to 4, those up to 8, raw), made with
 * a seed of unit and page, so that a coarser prefix is verified without the rest, and bytes of
 * another page or sequence do not pass.
 *
 * Thread rule: built by one thread; then only read, but for copies, which the caller serialises.
 */
#ifndef SPARSE_PAGE_TABLE_H
#define SPARSE_PAGE_TABLE_H

#include "paging.h"
#include "store/lend/scratch.h"
#include "tiers/pool/gather.h"

#define SPARSE_SECTIONS   4u /* 2 bits, up to 4, up to 8, raw */
#define SPARSE_COPIES_MAX 2u

/* The second slot of a page; member is TIERS_MEMBERS_MAX without one. */
typedef struct sparse_copy {
    uint32_t slot;
    uint8_t member;
} sparse_copy;

typedef struct sparse_table {
    const sparse_paging *paging;
    store_scratch *scratch;
    kvt_tier tier;
    uint64_t id;          /* seeds the checksums */
    uint32_t coded_bytes; /* room of the coded form in a slot; 0 = there is none */
    uint32_t slot_bytes;
    bool has_raw;
    const tiers_location *location; /* that has the slots, from an offset on */
    uint64_t first_slot;
    tiers_location *own;     /* the location, when it is the table's; or else */
    scratch_visited visited; /* the kept entry that has it */
    const uint8_t *slots;    /* that lie in memory; NULL: they are on drives */
    tiers_unit_map *map;
    uint32_t (*sums)[SPARSE_SECTIONS];
    sparse_copy *copies; /* of each page */
    uint32_t copied;     /* pages that have one */
    tiers_location *copy_locations[TIERS_MEMBERS_MAX];
    tiers_unit_map *copy_maps[TIERS_MEMBERS_MAX];
} sparse_table;

/* Bytes of a slot. variants: a mask of 1 << pages_variant. */
uint32_t sparse_slot_bytes(const sparse_paging *paging, uint32_t variants, uint32_t *coded_out);

/* Reserves the slots of a unit. paging stays where it is. KVT_OK; KVT_E_SPACE; KVT_E_MEMORY; as
 * scratch_reserve. */
KVT_NODISCARD kvt_status sparse_table_open(store_scratch *scratch, kvt_tier tier,
                                           const sparse_paging *paging, uint32_t variants,
                                           uint64_t id, sparse_table *table_out);
/* The same of slots that are there: of the entry that is visited, from the offset of its location
 * on. The visit is the table's afterwards, also on failure. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_table_visit(store_scratch *scratch, scratch_visited *visited,
                                            uint64_t first_slot, const sparse_paging *paging,
                                            uint32_t variants, uint64_t id,
                                            sparse_table *table_out);
void sparse_table_close(sparse_table *table); /* zeroed ones are allowed */

/* Where the slot of a page begins in the location. */
static inline uint64_t sparse_table_slot(const sparse_table *table, uint32_t page)
{
    return table->first_slot + (uint64_t)page * table->slot_bytes;
}

/* Notes the checksums of a page whose slot is in memory. coded: it has a coded form. */
void sparse_table_seal(sparse_table *table, uint32_t page, const uint8_t *slot, bool coded);

/* The part of a slot that is read to have a page in a variant. */
typedef struct sparse_part {
    uint32_t offset; /* in the slot; a multiple of the grain */
    uint32_t bytes;  /* a multiple of the grain */
} sparse_part;
sparse_part sparse_table_part(const sparse_table *table, uint32_t page, pages_variant variant);

/* Verifies the bytes of a part. */
bool sparse_table_verify(const sparse_table *table, uint32_t page, pages_variant variant,
                         const uint8_t *bytes);

/* Whether a slot in memory holds all of a page. */
bool sparse_table_sound(const sparse_table *table, const sparse_code *code, uint32_t page,
                        const uint8_t *slot);

/* Reads the whole slot of a page, from its copy where its own place does not give it. KVT_OK: it is
 * sound; KVT_E_IO, KVT_E_GONE, KVT_E_MEMORY. Blocks. */
KVT_NODISCARD kvt_status sparse_table_read(const sparse_table *table, const sparse_code *code,
                                           uint32_t page, uint8_t *target);

/* Where a part can be read, the page's own place first. Returns the number of copies. */
uint32_t sparse_table_copies(const sparse_table *table, uint32_t page, const sparse_part *part,
                             tiers_copy copies[SPARSE_COPIES_MAX]);

/*
 * Gives the pages of a list (the hottest first) a second slot each, on other members than their
 * own, in proportion to the members' bandwidth; copies that were there are dropped. Pages that lie
 * in memory have none. The bytes come
 * from the pages themselves and are verified. Pages that cannot be read or written go without.
 * KVT_OK; KVT_E_SPACE (beyond what is lent: some go without); KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status sparse_table_copy(sparse_table *table, const sparse_code *code,
                                           const uint32_t *pages, uint32_t count);

#endif
