/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_far.c - see gpu_far.h. A record is as little trusted as one that was read: kernels get no
 * address before its head has been checked, and each range was held against its size.
 *
 * Thread rule: as the header says.
 */
#include "store/gpu/gpu_far.h"

#include "codecs/record_groups.h"
#include "gpu/gpu_kernels.h"
#include "store/gpu/gpu_views.h"

#include <assert.h>

enum { FAR_STEP = 64, FAR_ALIGN = 64 }; /* entries whose heads come together */

uint64_t store_gpu_far_lend(kvt_store *store, const store_place *place, uint64_t gpu)
{
    tiers_pool *pool = store->pools[place->tier];
    uint32_t owner;
    if (place->by_cpu) return 0;
    const uint64_t address = tiers_pool_lend_address(pool, place->location, &owner);
    if (address == 0 || (owner == gpu + 1 && address % FAR_ALIGN == 0)) return address;
    tiers_pool_take_back(pool, place->location, KVT_IO_READ, 0);
    return 0;
}

gpu_region store_gpu_home(tiers_pool *pool, const tiers_location *location)
{
    gpu_region home = {.memory = NULL};
    home.memory = tiers_pool_lent_memory(pool, location, &home.bytes);
    return home;
}

/* Queues the copy of a range. */
static kvt_status far_copy(gpu_site *site, uint64_t record, uint64_t record_bytes,
                           const kvt_record_range *range, uint8_t *memory)
{
    if (range->offset > record_bytes || range->bytes > record_bytes - range->offset)
        return KVT_E_CORRUPT;
    return gpu_copy_back(site, memory + range->at, record + range->offset, range->bytes);
}

kvt_status store_gpu_far_fetch(gpu_site *site, uint64_t record, uint64_t record_bytes,
                               const kvt_record_range *ranges, uint32_t count, gpu_host **host_out)
{
    const kvt_record_range *last = &ranges[count - 1];
    gpu_host *host;
    assert(count != 0);
    kvt_status status = gpu_host_take(site, last->at + last->bytes, &host);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++)
        status = far_copy(site, record, record_bytes, &ranges[i], host->memory);
    status = gpu_settle(site, GPU_OUT, status);
    if (status == KVT_OK)
        *host_out = host;
    else
        gpu_host_give(site, host);
    return status;
}

/* ---- heads ---- */

/* The part of a record that a round brings: its first bytes, or the heads of its groups, from `at`
 * on in pinned memory. Returns how many ranges. */
static uint32_t far_ranges(const load_entry *entry, bool groups, uint64_t at,
                           kvt_record_range *ranges)
{
    uint32_t count = 0;
    if (entry->far == 0 || entry->status != KVT_QUEUED || (groups && !entry->grouped)) return 0;
    if (!groups) {
        const uint64_t bytes =
            entry->grouped ? RECORD_GROUPS_HEAD_BYTES : entry->sections->head_bytes;
        ranges[0] = (kvt_record_range){.bytes = bytes, .at = at};
        return 1;
    }
    for (uint32_t i = 0; i < entry->section_count; i++) {
        const load_section *section = &entry->sections[i];
        if (section->head_bytes == 0) continue;
        ranges[count++] = (kvt_record_range){section->offset, section->head_bytes, at};
        at += section->head_bytes;
    }
    return count;
}

/* Looks at what a round has brought of an entry. Groups whose heads the record does not have are
 * found here, before anything is copied for them. */
static kvt_status far_use(load_entry *entry, bool groups, const uint8_t *bytes)
{
    if (groups || !entry->grouped) return load_use_heads(entry, bytes, false);
    kvt_status status = load_open_table(entry, bytes, RECORD_GROUPS_HEAD_BYTES);
    for (uint32_t i = 0; i < entry->section_count && status == KVT_OK; i++)
        if (entry->sections[i].head_bytes > entry->sections[i].bytes) status = KVT_E_CORRUPT;
    return status;
}

/* Carries a round out for a step of entries, in one wait. */
static void far_round(gpu_site *site, load_entry *entries, size_t count, bool groups)
{
    kvt_record_range ranges[KVT_GROUPS_MAX];
    uint64_t at[FAR_STEP + 1] = {0}; /* where each entry's bytes begin in pinned memory */
    gpu_host *host;
    assert(count <= FAR_STEP);
    for (size_t i = 0; i < count; i++) {
        const uint32_t ranged = far_ranges(&entries[i], groups, at[i], ranges);
        at[i + 1] = at[i];
        if (ranged == 0) continue;
        const kvt_record_range *last = &ranges[ranged - 1];
        at[i + 1] = (last->at + last->bytes + FAR_ALIGN - 1) / FAR_ALIGN * FAR_ALIGN;
    }
    if (at[count] == 0) return;
    kvt_status status = gpu_host_take(site, at[count], &host);
    const bool taken = status == KVT_OK;
    for (size_t i = 0; i < count; i++) {
        const load_entry *entry = &entries[i];
        const uint32_t ranged = far_ranges(entry, groups, at[i], ranges);
        for (uint32_t k = 0; k < ranged && status == KVT_OK; k++)
            status = far_copy(site, entry->far, entry->record_bytes, &ranges[k], host->memory);
    }
    if (taken) status = gpu_settle(site, GPU_OUT, status);
    for (size_t i = 0; i < count; i++) {
        if (at[i + 1] == at[i]) continue;
        const kvt_status how = status == KVT_OK
                                   ? far_use(&entries[i], groups, (uint8_t *)host->memory + at[i])
                                   : status;
        if (how != KVT_OK) entries[i].status = how;
    }
    if (taken) gpu_host_give(site, host);
}

void store_gpu_far_open(gpu_site *site, load_entry *entries, size_t count)
{
    for (size_t from = 0; from < count; from += FAR_STEP) {
        const size_t step = count - from < FAR_STEP ? count - from : FAR_STEP;
        far_round(site, &entries[from], step, false);
        far_round(site, &entries[from], step, true);
    }
}
