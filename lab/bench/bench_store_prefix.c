/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_store_prefix.c - what a layered load of 512 entries costs beside its bytes and codecs, as
 * their layers are 32 bytes.
 *
 * Thread rule: as bench_store.h.
 */
#include "bench_store.h"

#include "lab/private.h"

#include <kvterrace/load.h>
#include <stdlib.h>
#include <string.h>

static const kvt_layout prefix_layout = {
    .layers = 32, .kv_heads = 1, .head_dim = 8, .dtype = KVT_DTYPE_BF16, .tokens = 1};
#define PREFIX_ENTRY_BYTES (UINT64_C(32) * 2 * 8 * 2)

typedef struct prefix_site {
    kvt_store *store;
    kvt_queue *queue;
    kvt_key keys[STORE_BENCH_PREFIX_ENTRIES];
    kvt_view views[STORE_BENCH_PREFIX_ENTRIES];
    const kvt_view *pointers[STORE_BENCH_PREFIX_ENTRIES];
    char *data;
} prefix_site;

static kvt_status prefix_put(prefix_site *site, uint32_t number)
{
    char bytes[PREFIX_ENTRY_BYTES];
    kvt_entry entry = {
        .struct_size = sizeof entry, .layout = prefix_layout, .recompute_seconds = 1};
    memset(bytes, (int)(number % 251) + 1, sizeof bytes);
    memcpy(entry.key.bytes, &number, sizeof number);
    entry.key.bytes[15] = 1;
    site->keys[number] = entry.key;
    site->views[number] =
        kvt_view_packed(site->data + number * PREFIX_ENTRY_BYTES, PREFIX_ENTRY_BYTES);
    site->pointers[number] = &site->views[number];
    return kvt_store_put(site->store, &entry, KVT_PACKED(bytes, sizeof bytes));
}

static kvt_status prefix_open(prefix_site *site)
{
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.policy = "lru";
    options.lossless = false;
    options.limits.put_staging_bytes = 0;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = UINT64_C(256) << 20;
    site->data = calloc(STORE_BENCH_PREFIX_ENTRIES, PREFIX_ENTRY_BYTES);
    if (site->data == NULL) return KVT_E_MEMORY;
    kvt_status status = kvt_store_open(&options, &site->store, NULL, 0);
    if (status == KVT_OK) status = kvt_queue_open(site->store, NULL, &site->queue);
    for (uint32_t i = 0; i < STORE_BENCH_PREFIX_ENTRIES && status == KVT_OK; i++)
        status = prefix_put(site, i);
    return status;
}

/* Counts the entries that have not come, and forgets what came. */
static uint32_t prefix_check(prefix_site *site)
{
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < STORE_BENCH_PREFIX_ENTRIES; i++) {
        const char *got = site->data + i * PREFIX_ENTRY_BYTES;
        bool right = true;
        for (uint64_t k = 0; k < PREFIX_ENTRY_BYTES && right; k++)
            right = (unsigned char)got[k] == i % 251 + 1;
        wrong += !right;
    }
    memset(site->data, 0, STORE_BENCH_PREFIX_ENTRIES * PREFIX_ENTRY_BYTES);
    return wrong;
}

/* One load: begin and end alone, and all of it. Returns how many entries did not come. */
static uint32_t prefix_load(prefix_site *site, uint64_t *ends_ns, uint64_t *whole_ns)
{
    kvt_load *load = NULL;
    uint64_t began_ns = base_clock_ns();
    kvt_status status = kvt_load_begin(site->queue, site->keys, site->pointers,
                                       STORE_BENCH_PREFIX_ENTRIES, NULL, &load);
    uint64_t begun_ns = base_clock_ns();
    for (uint32_t layer = 1; layer <= prefix_layout.layers && status == KVT_OK; layer++) {
        status = kvt_load_wait(load, layer, KVT_NO_DEADLINE);
        kvt_load_release(load, layer);
    }
    uint64_t loaded_ns = base_clock_ns();
    (void)kvt_load_end(load, NULL, NULL);
    uint64_t ended_ns = base_clock_ns();
    *ends_ns = begun_ns - began_ns + ended_ns - loaded_ns;
    *whole_ns = ended_ns - began_ns;
    return prefix_check(site);
}

bool store_bench_prefix(uint32_t rounds, uint64_t *const ns[STORE_BENCH_PREFIX_CASES],
                        uint64_t *entry_bytes, uint32_t *failed)
{
    prefix_site *site = calloc(1, sizeof *site);
    bool open = site != NULL && prefix_open(site) == KVT_OK;
    *entry_bytes = PREFIX_ENTRY_BYTES;
    for (uint32_t i = 0; i < rounds && open; i++) {
        *failed += prefix_load(site, &ns[STORE_BENCH_LOAD_ENDS][i], &ns[STORE_BENCH_LOAD_WHOLE][i]);
    }
    if (site == NULL) return false;
    kvt_queue_close(site->queue);
    kvt_store_close(site->store);
    free(site->data);
    free(site);
    return open;
}
