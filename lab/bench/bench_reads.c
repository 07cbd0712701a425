/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_reads.c - slots of a method's items on the drives, and the reads of its steps.
 */
#include "bench_reads.h"

#include <math.h>
#include <stdlib.h>

#include "lab/private.h"

static bool is_whole(const bench_slots *slots)
{
    return slots->trial->method->index == DECODE_COACTIVE;
}

/* The blocks of each token, in the order of the clusters. */
static kvt_status open_copies(bench_slots *slots)
{
    const decode_items *items = &slots->trial->parts[0].choice.items;
    const uint32_t tokens = slots->layer->units[0].zone, places = items->first[items->count];
    slots->copy_first = calloc(tokens + 2u, sizeof *slots->copy_first);
    slots->copies = malloc((places + 1u) * sizeof *slots->copies);
    if (slots->copy_first == NULL || slots->copies == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < places; i++)
        slots->copy_first[items->places[i] + 2]++;
    for (uint32_t t = 0; t < tokens; t++)
        slots->copy_first[t + 2] += slots->copy_first[t + 1];
    for (uint32_t i = 0; i < places; i++)
        slots->copies[slots->copy_first[items->places[i] + 1]++] = i;
    return KVT_OK;
}

kvt_status bench_reads_store(const bench_options *bench, tiers_striping striping,
                             uint64_t dram_bytes, kvt_store **store_out, bench_report *report)
{
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.format = true;
    options.limits.tick_seconds = 0;
    options.policy = "lru";
    options.limits.staging_bytes = 16 << 20;
    options.limits.put_staging_bytes = 0;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = dram_bytes;
    options.tiers[KVT_TIER_SSD] = (kvt_tier_options){
        .devices = bench->devices, .device_count = bench->device_count, .weights_fixed = true};
    const kvt_status status =
        kvt_store_open(&options, store_out, report->message, BENCH_MESSAGE_BYTES);
    if (status == KVT_OK) tiers_pool_set_striping((*store_out)->pools[KVT_TIER_SSD], striping);
    return status;
}

void bench_reads_count(kvt_store *store, bench_reads_drives *drives)
{
    drives->count = 0;
    for (uint32_t i = 0; drives->count < BENCH_READS_DRIVES; i++) {
        kvt_device_stats stats = {.struct_size = sizeof stats};
        if (kvt_device_stats_get(store, i, &stats) != KVT_OK) return;
        if (stats.tier != KVT_TIER_SSD) continue;
        drives->bytes[drives->count] = stats.bytes_read;
        drives->bytes_per_s[drives->count++] = stats.weight_bytes_per_s;
    }
}

double bench_reads_busiest(const bench_reads_drives *before, const bench_reads_drives *after)
{
    double most = 0;
    for (uint32_t i = 0; i < after->count; i++) {
        const double seconds = (double)(after->bytes[i] - before->bytes[i]) / after->bytes_per_s[i];
        if (seconds > most) most = seconds;
    }
    return most;
}

kvt_status bench_slots_open(kvt_store *store, const decode_layer *layer, const decode_trial *trial,
                            bench_slots *slots)
{
    const uint32_t parts = trial->part_count;
    scratch_wish wish = {.tier = KVT_TIER_SSD, .worth_per_byte = INFINITY};
    *slots = (bench_slots){.layer = layer,
                           .trial = trial,
                           .locations = calloc(parts, sizeof *slots->locations),
                           .maps = calloc(parts, sizeof *slots->maps),
                           .slot_bytes = calloc(parts, sizeof *slots->slot_bytes)};
    if (slots->locations == NULL || slots->maps == NULL || slots->slot_bytes == NULL)
        return KVT_E_MEMORY;
    uint64_t bytes[64] = {0};
    for (uint32_t i = 0; i < parts; i++) {
        const decode_items *items = &trial->parts[i].choice.items;
        slots->slot_bytes[i] =
            is_whole(slots) ? SPARSE_GRAIN : decode_part_slot(layer, &trial->parts[i]);
        bytes[i] = (uint64_t)slots->slot_bytes[i] *
                   (is_whole(slots) ? items->first[items->count] : items->count);
        wish.bytes += bytes[i];
    }
    kvt_status status = is_whole(slots) ? open_copies(slots) : KVT_OK;
    if (status == KVT_OK) status = scratch_open(store, &wish, 1, &slots->scratch, NULL);
    for (uint32_t i = 0; i < parts && status == KVT_OK; i++) {
        status = scratch_reserve(slots->scratch, KVT_TIER_SSD, bytes[i], slots->slot_bytes[i],
                                 UINT64_MAX, &slots->locations[i]);
        if (status == KVT_OK) status = tiers_unit_map_make(slots->locations[i], &slots->maps[i]);
    }
    return status;
}

void bench_slots_close(bench_slots *slots)
{
    uint64_t io_ns;
    (void)!bench_slots_wait(slots, &io_ns);
    for (uint32_t i = 0; slots->trial != NULL && i < slots->trial->part_count; i++) {
        if (slots->maps != NULL) tiers_unit_map_free(slots->maps[i]);
        if (slots->locations != NULL && slots->locations[i] != NULL)
            scratch_release(slots->scratch, KVT_TIER_SSD, slots->locations[i]);
    }
    scratch_close(slots->scratch);
    free(slots->locations);
    free(slots->maps);
    free(slots->slot_bytes);
    free(slots->copy_first);
    free(slots->copies);
    free(slots->targets);
    free(slots->ranges);
    free(slots->buffer);
    *slots = (bench_slots){.layer = NULL};
}

static kvt_status make_room(bench_slots *slots, uint32_t ranges, uint64_t bytes)
{
    if (ranges > slots->range_room) {
        free(slots->targets);
        free(slots->ranges);
        slots->range_room = ranges + ranges / 4;
        slots->targets =
            malloc((size_t)slots->range_room * TIERS_GATHER_COPIES_MAX * sizeof *slots->targets);
        slots->ranges = malloc(slots->range_room * sizeof *slots->ranges);
    }
    if (bytes > slots->buffer_bytes) {
        free(slots->buffer);
        slots->buffer_bytes = (bytes + bytes / 4) / SPARSE_GRAIN * SPARSE_GRAIN + SPARSE_GRAIN;
        slots->buffer = aligned_alloc(SPARSE_GRAIN, slots->buffer_bytes);
    }
    if (slots->targets != NULL && slots->ranges != NULL && slots->buffer != NULL) return KVT_OK;
    slots->range_room = 0;
    slots->buffer_bytes = 0;
    return KVT_E_MEMORY;
}

/* Where a read may go. Returns its bytes. */
static uint32_t aim(const bench_slots *slots, const decode_read *read, tiers_copy *copies,
                    uint32_t *count_out)
{
    const uint64_t slot = slots->slot_bytes[read->part];
    const tiers_unit_map *map = slots->maps[read->part];
    if (!is_whole(slots)) {
        copies[0] = (tiers_copy){map, slot * read->item};
        *count_out = 1;
        return decode_item_bytes(slots->layer, &slots->trial->parts[read->part], read->item);
    }
    uint32_t count = 0;
    for (uint32_t i = slots->copy_first[read->item];
         i < slots->copy_first[read->item + 1] && count < TIERS_GATHER_COPIES_MAX; i++)
        copies[count++] = (tiers_copy){map, slot * slots->copies[i]};
    *count_out = count;
    return SPARSE_GRAIN;
}

static uint64_t gather_ns(tiers_gather *gather)
{
    tiers_gather_share shares[TIERS_MEMBERS_MAX];
    const uint32_t count = tiers_gather_shares(gather, shares);
    uint64_t first_ns = UINT64_MAX, last_ns = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (shares[i].started_ns < first_ns) first_ns = shares[i].started_ns;
        if (shares[i].finished_ns > last_ns) last_ns = shares[i].finished_ns;
    }
    return last_ns > first_ns ? last_ns - first_ns : 0;
}

static void released(void *context)
{
    (void)context; /* the buffer stays the slots' */
}

kvt_status bench_slots_start(bench_slots *slots, const decode_reads *reads, uint32_t step,
                             uint64_t *bytes_out)
{
    const decode_read *list = reads->list + reads->first[step];
    const uint32_t count = reads->first[step + 1] - reads->first[step];
    uint64_t bytes = 0;
    *bytes_out = 0;
    if (count == 0) return KVT_OK;
    kvt_status status = make_room(slots, count, 1);
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        tiers_copy *copies = slots->targets + (size_t)i * TIERS_GATHER_COPIES_MAX;
        slots->ranges[i] = (tiers_gather_range){.copies = copies};
        slots->ranges[i].bytes = aim(slots, &list[i], copies, &slots->ranges[i].copy_count);
        bytes += slots->ranges[i].bytes;
    }
    if (status == KVT_OK) status = make_room(slots, count, bytes);
    if (status != KVT_OK) return status;
    const tiers_gather_request request = {.ranges = slots->ranges,
                                          .count = count,
                                          .buffer = slots->buffer,
                                          .buffer_bytes = slots->buffer_bytes,
                                          .waited = true};
    *bytes_out = bytes;
    return tiers_gather_start(scratch_pool(slots->scratch, KVT_TIER_SSD), &request, UINT64_MAX,
                              &slots->gather);
}

kvt_status bench_slots_wait(bench_slots *slots, uint64_t *io_ns_out)
{
    *io_ns_out = 0;
    if (slots->gather == NULL) return KVT_OK;
    const kvt_status status = tiers_gather_wait(slots->gather, UINT64_MAX);
    *io_ns_out = gather_ns(slots->gather);
    tiers_gather_release(slots->gather, released, NULL);
    slots->gather = NULL;
    return status;
}
