/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_table.c - slots, checksums and copies of the pages of one unit. The file reads and writes
 * whole slots only to make copies; what a step wants is the gather's.
 *
 * Thread rule: as page_table.h.
 */
#include "page_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "block.h"
#include "sparse_kernels.h"

enum { NO_MEMBER = TIERS_MEMBERS_MAX };

static uint32_t page_tokens(const sparse_table *table, uint32_t page)
{
    return sparse_page_first(table->paging, page + 1) - sparse_page_first(table->paging, page);
}

/* ---- slots ---- */

uint32_t sparse_slot_bytes(const sparse_paging *paging, uint32_t variants, uint32_t *coded_out)
{
    const uint32_t coded_mask = 1u << PAGES_BITS_2 | 1u << PAGES_BITS_4 | 1u << PAGES_BITS_8;
    const uint32_t tokens = paging->page_tokens;
    uint32_t coded = 0, raw = 0;
    if ((variants & coded_mask) != 0)
        coded = (uint32_t)sparse_whole_grains(sparse_page_bytes(paging, tokens, PAGES_BITS_8));
    if ((variants >> PAGES_RAW & 1u) != 0)
        raw = (uint32_t)sparse_whole_grains(sparse_page_bytes(paging, tokens, PAGES_RAW));
    if (coded_out != NULL) *coded_out = coded;
    return coded + raw;
}

/* A table without a location, and without checksums. */
static kvt_status make_table(store_scratch *scratch, kvt_tier tier, const sparse_paging *paging,
                             uint32_t variants, uint64_t id, sparse_table *table)
{
    *table = (sparse_table){.paging = paging,
                            .scratch = scratch,
                            .tier = tier,
                            .id = id,
                            .has_raw = (variants >> PAGES_RAW & 1u) != 0};
    table->slot_bytes = sparse_slot_bytes(paging, variants, &table->coded_bytes);
    if (paging->pages == 0) return KVT_OK;
    table->sums = calloc(paging->pages, sizeof *table->sums);
    table->copies = malloc(paging->pages * sizeof *table->copies);
    if (table->sums == NULL || table->copies == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < paging->pages; i++)
        table->copies[i] = (sparse_copy){.member = NO_MEMBER};
    return KVT_OK;
}

kvt_status sparse_table_open(store_scratch *scratch, kvt_tier tier, const sparse_paging *paging,
                             uint32_t variants, uint64_t id, sparse_table *table_out)
{
    sparse_table table;
    kvt_status status = make_table(scratch, tier, paging, variants, id, &table);
    if (status == KVT_OK && paging->pages > 0)
        status = scratch_reserve(scratch, tier, (uint64_t)paging->pages * table.slot_bytes,
                                 table.slot_bytes, UINT64_MAX, &table.own);
    table.location = table.own;
    if (status == KVT_OK && paging->pages > 0)
        status = tiers_unit_map_make(table.location, &table.map);
    if (status != KVT_OK) {
        sparse_table_close(&table);
        return status;
    }
    *table_out = table;
    return KVT_OK;
}

kvt_status sparse_table_visit(store_scratch *scratch, scratch_visited *visited, uint64_t first_slot,
                              const sparse_paging *paging, uint32_t variants, uint64_t id,
                              sparse_table *table_out)
{
    sparse_table table;
    assert(visited->visit != NULL && paging->pages > 0 && first_slot % SPARSE_GRAIN == 0);
    kvt_status status = make_table(scratch, visited->tier, paging, variants, id, &table);
    table.visited = *visited;
    *visited = (scratch_visited){.visit = NULL};
    table.location = table.visited.location;
    table.first_slot = first_slot;
    if (table.visited.memory != NULL)
        table.slots = table.visited.memory + (first_slot - table.visited.offset);
    assert(sparse_table_slot(&table, paging->pages) <= table.location->bytes);
    if (status == KVT_OK) status = tiers_unit_map_make(table.location, &table.map);
    if (status != KVT_OK) {
        sparse_table_close(&table);
        return status;
    }
    *table_out = table;
    return KVT_OK;
}

static void drop_copies(sparse_table *table)
{
    for (uint32_t i = 0; i < TIERS_MEMBERS_MAX; i++) {
        tiers_unit_map_free(table->copy_maps[i]);
        scratch_release(table->scratch, KVT_TIER_SSD, table->copy_locations[i]);
        table->copy_maps[i] = NULL;
        table->copy_locations[i] = NULL;
    }
    for (uint32_t i = 0; table->copied > 0 && i < table->paging->pages; i++)
        table->copies[i] = (sparse_copy){.member = NO_MEMBER};
    table->copied = 0;
}

void sparse_table_close(sparse_table *table)
{
    if (table->scratch == NULL) return;
    if (table->copies != NULL) drop_copies(table);
    tiers_unit_map_free(table->map);
    scratch_release(table->scratch, table->tier, table->own);
    scratch_leave(scratch_store(table->scratch), &table->visited);
    free(table->copies);
    free(table->sums);
    *table = (sparse_table){.scratch = NULL};
}

/* ---- checksums ---- */

/* The sections of the coded form, [begin, end) in the slot. Returns false for a section that the
 * page has not. */
static bool section_of(const sparse_table *table, uint32_t page, uint32_t section,
                       uint32_t *begin_out, uint32_t *end_out)
{
    static const pages_variant until[] = {PAGES_BITS_2, PAGES_BITS_4, PAGES_BITS_8};
    const uint32_t tokens = page_tokens(table, page);
    if (section == SPARSE_SECTIONS - 1) {
        *begin_out = table->coded_bytes;
        *end_out =
            table->coded_bytes + (uint32_t)sparse_page_bytes(table->paging, tokens, PAGES_RAW);
        return table->has_raw;
    }
    *begin_out =
        section == 0 ? 0 : (uint32_t)sparse_page_bytes(table->paging, tokens, until[section - 1]);
    *end_out = (uint32_t)sparse_page_bytes(table->paging, tokens, until[section]);
    return table->coded_bytes != 0;
}

static uint32_t checksum(const sparse_table *table, uint32_t page, uint32_t section,
                         const uint8_t *bytes, uint32_t count)
{
    const uint64_t seed =
        table->id + (page * (uint64_t)SPARSE_SECTIONS + section) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)XXH3_64bits_withSeed(bytes, count, seed);
}

void sparse_table_seal(sparse_table *table, uint32_t page, const uint8_t *slot, bool coded)
{
    for (uint32_t section = 0; section < SPARSE_SECTIONS; section++) {
        uint32_t begin, end;
        if (section + 1 < SPARSE_SECTIONS && !coded) continue;
        if (section_of(table, page, section, &begin, &end))
            table->sums[page][section] = checksum(table, page, section, slot + begin, end - begin);
    }
}

/* ---- parts ---- */

sparse_part sparse_table_part(const sparse_table *table, uint32_t page, pages_variant variant)
{
    const uint64_t bytes = sparse_page_bytes(table->paging, page_tokens(table, page), variant);
    assert(variant != PAGES_ABSENT);
    return (sparse_part){.offset = variant == PAGES_RAW ? table->coded_bytes : 0,
                         .bytes = (uint32_t)sparse_whole_grains(bytes)};
}

bool sparse_table_verify(const sparse_table *table, uint32_t page, pages_variant variant,
                         const uint8_t *bytes)
{
    const uint32_t first = variant == PAGES_RAW ? SPARSE_SECTIONS - 1 : 0;
    for (uint32_t section = first; section < (uint32_t)variant; section++) {
        uint32_t begin, end;
        if (!section_of(table, page, section, &begin, &end)) return false;
        if (checksum(table, page, section, bytes, end - begin) != table->sums[page][section])
            return false;
        /* Checksums of a kept sequence may be forged with their rows. */
        if (variant == PAGES_RAW &&
            !sparse_rows_are_sound(bytes, end - begin, table->paging->dtype))
            return false;
        bytes += end - begin;
    }
    return true;
}

uint32_t sparse_table_copies(const sparse_table *table, uint32_t page, const sparse_part *part,
                             tiers_copy copies[SPARSE_COPIES_MAX])
{
    const sparse_copy *copy = &table->copies[page];
    copies[0] =
        (tiers_copy){.map = table->map, .offset = sparse_table_slot(table, page) + part->offset};
    if (copy->member == NO_MEMBER) return 1;
    copies[1] = (tiers_copy){.map = table->copy_maps[copy->member],
                             .offset = (uint64_t)copy->slot * table->slot_bytes + part->offset};
    return 2;
}

/* ---- copies ---- */

/* The member that a copy of each page goes to: not the page's own, and in proportion to the
 * weights. wanted_out counts the pages of each member. */
static void deal_copies(const sparse_table *table, const uint32_t *pages, uint32_t count,
                        uint32_t *wanted_out)
{
    tiers_pool *pool = scratch_pool(table->scratch, table->tier);
    double weight[TIERS_MEMBERS_MAX] = {0};
    tiers_member_stats stats;
    for (uint32_t i = 0; i < TIERS_MEMBERS_MAX && tiers_pool_member(pool, i, &stats) == KVT_OK; i++)
        if (stats.state == KVT_DEVICE_SERVING) weight[i] = stats.weight_bytes_per_s;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t offset = sparse_table_slot(table, pages[i]);
        const uint32_t own = tiers_unit_map_find(table->map, offset, SPARSE_GRAIN).member;
        uint32_t best = NO_MEMBER;
        for (uint32_t m = 0; m < TIERS_MEMBERS_MAX; m++) {
            if (m == own || !(weight[m] > 0)) continue;
            if (best == NO_MEMBER ||
                (wanted_out[m] + 1) * weight[best] < (wanted_out[best] + 1) * weight[m])
                best = m;
        }
        if (best == NO_MEMBER) continue;
        table->copies[pages[i]] = (sparse_copy){.member = (uint8_t)best, .slot = wanted_out[best]};
        wanted_out[best]++;
    }
}

/* Whether a slot in memory holds the page. */
bool sparse_table_sound(const sparse_table *table, const sparse_code *code, uint32_t page,
                        const uint8_t *slot)
{
    if (sparse_code_has(table->paging, code, page) &&
        !sparse_table_verify(table, page, PAGES_BITS_8, slot))
        return false;
    return !table->has_raw ||
           sparse_table_verify(table, page, PAGES_RAW, slot + table->coded_bytes);
}

/* Reads the slot of a page from one of its places. */
static kvt_status read_copy(const sparse_table *table, const tiers_copy *copy, uint8_t *target)
{
    tiers_gather *gather;
    tiers_gather_range range = {.copies = copy, .copy_count = 1, .bytes = table->slot_bytes};
    uint8_t *buffer = aligned_alloc(SPARSE_GRAIN, table->slot_bytes);
    if (buffer == NULL) return KVT_E_MEMORY;
    const tiers_gather_request request = {.ranges = &range,
                                          .count = 1,
                                          .buffer = buffer,
                                          .buffer_bytes = table->slot_bytes,
                                          .waited = true};
    kvt_status status = tiers_gather_start(scratch_pool(table->scratch, table->tier), &request,
                                           UINT64_MAX, &gather);
    if (status != KVT_OK) {
        free(buffer);
        return status;
    }
    status = tiers_gather_wait(gather, UINT64_MAX);
    if (status == KVT_OK) memcpy(target, range.data, table->slot_bytes);
    tiers_gather_release(gather, free, buffer);
    return status;
}

/* By gathers: they read what lies on one member, whatever has become of the others. */
kvt_status sparse_table_read(const sparse_table *table, const sparse_code *code, uint32_t page,
                             uint8_t *target)
{
    tiers_copy copies[SPARSE_COPIES_MAX];
    const sparse_part whole = {.bytes = table->slot_bytes};
    const uint32_t count = sparse_table_copies(table, page, &whole, copies);
    kvt_status status = KVT_E_IO;
    for (uint32_t i = 0; i < count; i++) {
        status = read_copy(table, &copies[i], target);
        if (status == KVT_OK && !sparse_table_sound(table, code, page, target)) status = KVT_E_IO;
        if (status == KVT_OK) break;
    }
    return status;
}

/* Writes the copy of one page. A page that is damaged gets none. */
static kvt_status write_copy(const sparse_table *table, const sparse_code *code, uint32_t page,
                             sparse_block *block)
{
    tiers_pool *pool = scratch_pool(table->scratch, table->tier);
    const sparse_copy copy = table->copies[page];
    sparse_block_start(block, pool, KVT_IO_READ, table->location, sparse_table_slot(table, page),
                       table->slot_bytes);
    kvt_status status = sparse_block_wait(block);
    if (status != KVT_OK) return status;
    if (!sparse_table_sound(table, code, page, sparse_block_memory(block))) return KVT_E_CORRUPT;
    sparse_block_start(block, pool, KVT_IO_WRITE, table->copy_locations[copy.member],
                       (uint64_t)copy.slot * table->slot_bytes, table->slot_bytes);
    return sparse_block_wait(block);
}

/* Takes the room of the copies, an object a member. Members without room have none. */
static kvt_status reserve_copies(sparse_table *table, const uint32_t *wanted)
{
    kvt_status first = KVT_OK;
    for (uint32_t m = 0; m < TIERS_MEMBERS_MAX; m++) {
        if (wanted[m] == 0) continue;
        kvt_status status =
            scratch_reserve(table->scratch, table->tier, (uint64_t)wanted[m] * table->slot_bytes,
                            table->slot_bytes, UINT64_C(1) << m, &table->copy_locations[m]);
        if (status == KVT_OK)
            status = tiers_unit_map_make(table->copy_locations[m], &table->copy_maps[m]);
        if (first == KVT_OK) first = status;
    }
    return first;
}

kvt_status sparse_table_copy(sparse_table *table, const sparse_code *code, const uint32_t *pages,
                             uint32_t count)
{
    uint32_t wanted[TIERS_MEMBERS_MAX] = {0};
    if (table->slots != NULL) return KVT_OK;
    if (table->copied > 0) drop_copies(table);
    deal_copies(table, pages, count, wanted);
    kvt_status first = reserve_copies(table, wanted);
    sparse_block *block = NULL;
    for (uint32_t i = 0; i < count; i++) {
        sparse_copy *copy = &table->copies[pages[i]];
        if (copy->member == NO_MEMBER) continue;
        if (block == NULL || sparse_block_memory(block) == NULL) {
            sparse_block_free(block);
            block = sparse_block_make(table->slot_bytes);
            if (block == NULL) first = KVT_E_MEMORY;
        }
        if (block == NULL || table->copy_maps[copy->member] == NULL ||
            write_copy(table, code, pages[i], block) != KVT_OK) {
            copy->member = NO_MEMBER;
            continue;
        }
        table->copied++;
    }
    sparse_block_free(block);
    return first;
}
