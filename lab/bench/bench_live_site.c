/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_live_site.c - the store of the live bench: throttled memory, and what its calls take beside
 * their transfers.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_live_site.h"

#include "bench_rate.h"

#include "base/clock.h"
#include "lab/replay/live_content.h"

#include <stdlib.h>
#include <string.h>

enum { SITE_PROBES = 48 };

static kvt_device_config site_device(const char *name, uint64_t capacity_bytes, double read,
                                     double write)
{
    return (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                               .name = name,
                               .backend = "memory",
                               .capacity_bytes = capacity_bytes + SITE_SLACK_BYTES,
                               .read_bytes_per_s = (uint64_t)read,
                               .write_bytes_per_s = (uint64_t)write};
}

void live_site_make(const live_setting *setting, const replay_options *options, live_site *site)
{
    memset(site, 0, sizeof *site);
    kvt_store_options *store = &site->store;
    kvt_store_options_init(store);
    store->lossless = false;
    store->learn = false;
    store->staging_bytes = SITE_STAGING_BYTES;
    store->put_staging_bytes = options->put_staging_bytes;
    store->put_backlog_seconds = options->put_backlog_seconds;
    store->tick_seconds = options->tick_seconds;
    store->prefill = options->model.prefill;
    store->alpha_seconds = options->alpha_seconds;
    store->half_life_seconds = options->half_life_seconds;
    store->handle_seed = 1;
    for (int tier = KVT_TIER_DRAM; tier <= KVT_TIER_SSD; tier++) {
        const replay_tier *model = &options->tiers[tier];
        if (model->capacity_bytes == 0) continue;
        bool ssd = tier == KVT_TIER_SSD;
        double read = ssd ? setting->ssd_bytes_per_s : SITE_DRAM_BYTES_PER_S;
        double write = ssd ? read * setting->write_share : read;
        site->devices[tier] = site_device(ssd ? "ssd" : "dram", model->capacity_bytes, read, write);
        store->tiers[tier] = (kvt_tier_options){.capacity_bytes = model->capacity_bytes,
                                                .devices = &site->devices[tier],
                                                .device_count = 1};
    }
}

static kvt_status site_time_calls(kvt_store *store, const kvt_layout *layout, uint64_t bytes,
                                  double bytes_per_s, live_overheads *out)
{
    double gets[SITE_PROBES], puts[SITE_PROBES];
    void *buffer = malloc(bytes);
    kvt_status status = buffer == NULL ? KVT_E_MEMORY : KVT_OK;
    for (uint32_t i = 0; i < SITE_PROBES && status == KVT_OK; i++) {
        kvt_entry entry = {.key = live_key(1, i), .layout = *layout};
        live_fill(1, i, buffer, bytes);
        do {
            status = kvt_flush(store);
            uint64_t begin = base_clock_ns();
            if (status == KVT_OK) status = kvt_put(store, &entry, buffer, bytes);
            puts[i] = (double)(base_clock_ns() - begin) * 1e-9;
        } while (status == KVT_BUSY);
    }
    if (status == KVT_OK) status = kvt_flush(store);
    for (uint32_t i = 0; i < SITE_PROBES && status == KVT_OK; i++) {
        kvt_key key = live_key(1, i);
        kvt_get_info info = {0};
        uint64_t begin = base_clock_ns();
        status = kvt_get(store, &key, buffer, bytes, &info);
        if (status == KVT_MISS) status = KVT_E_IO;
        double transfer_s = (double)info.stored_bytes / bytes_per_s;
        gets[i] = (double)(base_clock_ns() - begin) * 1e-9 - transfer_s;
    }
    free(buffer);
    if (status != KVT_OK) return status;
    out->get_s = bench_rate_of(gets, SITE_PROBES).median;
    out->put_s = bench_rate_of(puts, SITE_PROBES).median;
    return KVT_OK;
}

kvt_status live_site_measure(double bytes_per_s, const replay_options *options, live_overheads *out,
                             char *message, size_t message_size)
{
    const uint64_t bytes = options->bytes_per_token * options->block_tokens;
    const kvt_layout layout = live_layout(options->bytes_per_token, options->block_tokens);
    kvt_device_config device =
        site_device("probe", 2 * SITE_PROBES * bytes, bytes_per_s, bytes_per_s);
    kvt_store_options probe;
    kvt_store *store = NULL;
    kvt_store_options_init(&probe);
    probe.policy = "lru";
    probe.lossless = false;
    probe.learn = false;
    probe.staging_bytes = SITE_STAGING_BYTES;
    probe.tiers[KVT_TIER_DRAM] = (kvt_tier_options){
        .capacity_bytes = 2 * SITE_PROBES * bytes, .devices = &device, .device_count = 1};
    kvt_status status = kvt_open(&probe, &store, message, message_size);
    if (status != KVT_OK) return status;
    status = site_time_calls(store, &layout, bytes, bytes_per_s, out);
    kvt_close(store);
    return status;
}
