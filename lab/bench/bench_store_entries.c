/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_store_entries.c - the memory of a site's entries by structure, and kvt_match_worth.
 *
 * The file looks into the store, whose sizes no call tells.
 *
 * Thread rule: as bench_store_entries.h.
 */
#include "bench_store_entries.h"

#include "base/clock.h"
#include "store/store.h"

#include <kvterrace/lookup.h>

void store_memory_split(const store_bench_site *site, store_memory *out)
{
    const double entries = site->entries;
    const entry_table *table = &site->store->table;
    const size_t location = sizeof(tiers_location) + sizeof(tiers_share) + sizeof(tiers_extent);
    *out =
        (store_memory){.entries = site->entries,
                       .resident = site->memory_per_entry,
                       .entry = sizeof(store_entry),
                       .place = sizeof(store_place),
                       .location = (double)location,
                       .lookup = (double)(table->bucket_count * sizeof *table->buckets) / entries};
    store_memory_decide(site->store->policy, out);
    out->rest = out->resident - out->entry - out->place - out->location - out->lookup -
                out->decision - out->decision_lookup - out->options;
}

uint32_t store_match_run(const store_bench_site *site, bool scattered, uint64_t *ns, uint32_t calls)
{
    static kvt_key keys[STORE_MATCH_KEYS];
    uint32_t failed = 0, number = 0;
    for (uint32_t call = 0; call < calls; call++) {
        for (uint32_t i = 0; i < STORE_MATCH_KEYS; i++) {
            if (scattered || i == 0) number = number * UINT32_C(1664525) + UINT32_C(1013904223);
            uint32_t drawn = (uint32_t)((uint64_t)number * site->entries >> 32);
            keys[i] = store_bench_key(scattered ? drawn : (drawn + i) % site->entries);
        }
        kvt_worth worth = {.struct_size = sizeof worth};
        uint64_t began_ns = base_clock_ns();
        kvt_status status = kvt_match_worth(site->store, keys, STORE_MATCH_KEYS, &worth);
        ns[call] = base_clock_ns() - began_ns;
        failed += status != KVT_OK || worth.stored != STORE_MATCH_KEYS;
    }
    return failed;
}

json_t *store_memory_json(const store_memory *memory)
{
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "entries",
                     (json_int_t)memory->entries, "resident", memory->resident, "entry",
                     memory->entry, "place", memory->place, "location", memory->location, "lookup",
                     memory->lookup, "decision", memory->decision, "decision_lookup",
                     memory->decision_lookup, "options", memory->options, "rest", memory->rest);
}

void store_memory_print(FILE *out, const store_memory *memory)
{
    fprintf(
        out,
        "memory beside the entries' bytes, of %u: %.0f bytes an entry\n"
        "         of it: entry %.0f, place %.0f, location %.0f, lookup %.1f; decision %.0f, its "
        "lookup %.1f, options %.2f; rest %.1f\n",
        memory->entries, memory->resident, memory->entry, memory->place, memory->location,
        memory->lookup, memory->decision, memory->decision_lookup, memory->options, memory->rest);
}
