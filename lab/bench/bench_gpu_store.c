/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_gpu_store.c - a store of one model's entries, in any variant, and pages of a GPU that they
 * are loaded into, as an engine does it. A lossy variant comes from a ladder that the bench makes
 * up, in a profile that is gone after the bench.
 *
 * Thread rule: as bench_gpu.h.
 */
#include "bench_gpu.h"

#include "estimator/exchange/exchange.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the store ---- */

/* Writes a profile whose calibration has the variant alone. */
static kvt_status store_make_profile(gpu_bench_store *store, const char *variant, char *message,
                                     size_t message_size)
{
    const kvt_layout *layout = &store->layout;
    snprintf(store->profile, sizeof store->profile, "/tmp/kvlab-gpu-XXXXXX");
    const int file = mkstemp(store->profile);
    if (file < 0) {
        store->profile[0] = '\0';
        return KVT_E_IO;
    }
    close(file);
    (void)unlink(store->profile);
    json_t *tables = json_pack(
        "{s:[{s:s, s:s, s:i, s:i, s:i, s:i}], s:[{s:s, s:s, s:s, s:i, s:s, s:f, s:f, s:f}]}",
        "model", "model", "bench", "digest", "", "layers", (int)layout->layers, "heads",
        (int)layout->kv_heads, "kv_heads", (int)layout->kv_heads, "head_dim", (int)layout->head_dim,
        "calibration", "model", "bench", "digest", "", "class", "bench", "position", 0, "variant",
        variant, "bits_per_element", 4.0, "loss", 0.001, "loss_upper", 0.002);
    kvt_profile *profile = NULL;
    kvt_status status =
        kvt_profile_open(store->profile, KVT_PROFILE_WRITE, &profile, message, message_size);
    if (status == KVT_OK && tables == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK)
        status = exchange_import_tables(profile, tables, "bench", message, message_size);
    kvt_profile_close(profile);
    json_decref(tables);
    return status;
}

static kvt_status store_open(gpu_bench_store *store, const char *variant,
                             const kvt_device_config *devices, uint32_t device_count, kvt_tier tier)
{
    gpu_bench *bench = store->bench;
    char message[BENCH_MESSAGE_BYTES] = "";
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.policy = "lru";
    options.learning.learn = false;
    options.limits.tick_seconds = 0;
    options.limits.put_staging_bytes = 0; /* a put ends when its entry is stored */
    options.limits.staging_bytes = 8 * store->entry_bytes + (UINT64_C(16) << 20);
    options.tiers[tier] = (kvt_tier_options){.devices = devices, .device_count = device_count};
    if (device_count == 0)
        options.tiers[tier].capacity_bytes =
            store->entries * (store->entry_bytes + store->entry_bytes / 4) + (UINT64_C(64) << 20);
    kvt_status status = kvt_variant_parse(variant, &options.variant);
    options.lossless = options.variant.codec == KVT_CODEC_LOSSLESS;
    if (status == KVT_OK && !kvt_codec_is_exact(options.variant)) {
        status = store_make_profile(store, variant, message, sizeof message);
        options.learning.profile_path = store->profile;
        options.learning.profile_foreign = true;
        options.loss.ladder = true;
        options.loss.ladder_layout = store->layout;
        options.loss.alpha_seconds = 1;
    }
    if (status == KVT_OK) status = kvt_store_open(&options, &store->store, message, sizeof message);
    if (status == KVT_OK) status = kvt_queue_open(store->store, NULL, &store->queue);
    return bench_blame(bench->report, status, variant, message);
}

kvt_status bench_gpu_store_put(gpu_bench_store *store, uint32_t entry)
{
    const kvt_entry one = {.struct_size = sizeof one,
                           .key = store->keys[entry],
                           .layout = store->layout,
                           .first_position = 4096,
                           .recompute_seconds = 1};
    uint8_t **sample = &store->samples[entry % GPU_BENCH_SAMPLES];
    if (*sample == NULL) {
        *sample = malloc(store->entry_bytes);
        if (*sample == NULL) return KVT_E_MEMORY;
        bench_gpu_sample(&store->layout, entry, *sample);
    }
    return kvt_store_put(store->store, &one, KVT_PACKED(*sample, store->entry_bytes));
}

/* ---- the pages ---- */

static kvt_status store_make_views(gpu_bench_store *store)
{
    const uint32_t used = store->layout.tokens / GPU_BENCH_BLOCK;
    const uint64_t blocks = (uint64_t)used * store->entries;
    kvt_view view;
    kvt_status status = kvt_view_make(&store->layout, "lsbth", GPU_BENCH_BLOCK, blocks, &view);
    store->blocks = malloc(blocks * sizeof *store->blocks);
    store->views = calloc(store->entries, sizeof *store->views);
    store->pointers = calloc(store->entries, sizeof *store->pointers);
    store->keys = calloc(store->entries, sizeof *store->keys);
    store->statuses = calloc(store->entries, sizeof *store->statuses);
    if (store->blocks == NULL || store->views == NULL || store->pointers == NULL ||
        store->keys == NULL || store->statuses == NULL)
        return KVT_E_MEMORY;
    if (status != KVT_OK) return status;
    store->page_bytes = view.base_bytes[0];
    status = bench_gpu_memory(store->bench, store->page_bytes, &store->pages);
    for (uint64_t i = 0; i < blocks; i++)
        store->blocks[i] = bench_gpu_block(i, blocks);
    for (uint32_t i = 0; i < store->entries; i++) {
        store->views[i] = view;
        store->views[i].memory = KVT_MEMORY_GPU;
        store->views[i].base[0] = (void *)(uintptr_t)store->pages;
        store->views[i].blocks = store->blocks + (uint64_t)i * used;
        store->views[i].block_count = used;
        store->pointers[i] = &store->views[i];
        store->keys[i] = (kvt_key){{'g', 'p', 'u'}};
        memcpy(store->keys[i].bytes + 8, &i, sizeof i);
    }
    return status;
}

kvt_status bench_gpu_store_open(gpu_bench *bench, const kvt_layout *layout, uint32_t entries,
                                const char *variant, const kvt_device_config *devices,
                                uint32_t device_count, kvt_tier tier, gpu_bench_store *store)
{
    *store = (gpu_bench_store){.bench = bench, .layout = *layout, .entries = entries};
    kvt_status status = kvt_layout_bytes(layout, &store->entry_bytes);
    if (status == KVT_OK) status = store_make_views(store);
    if (status == KVT_OK) status = store_open(store, variant, devices, device_count, tier);
    if (status == KVT_OK)
        status = bench_gpu_call(
            bench, bench->site->driver.stream_create(&store->stream, GPU_STREAM_NON_BLOCKING),
            "a stream");
    for (uint32_t i = 0; i < entries && status == KVT_OK; i++)
        status = bench_blame(bench->report, bench_gpu_store_put(store, i), "a put", "");
    if (status == KVT_OK) status = kvt_store_flush(store->store);
    for (uint32_t i = 0; i < entries && status == KVT_OK; i++) {
        kvt_description said = {.struct_size = sizeof said};
        status = kvt_store_describe(store->store, &store->keys[i], &said);
        store->stored_bytes += said.stored_bytes;
    }
    return status;
}

void bench_gpu_store_close(gpu_bench_store *store)
{
    gpu_bench *bench = store->bench;
    kvt_queue_close(store->queue);
    kvt_store_close(store->store);
    if (store->stream != NULL) (void)bench->site->driver.stream_destroy(store->stream);
    bench_gpu_free(bench, &store->pages);
    if (store->profile[0] != '\0') (void)unlink(store->profile);
    for (uint32_t i = 0; i < GPU_BENCH_SAMPLES; i++)
        free(store->samples[i]);
    free(store->blocks);
    free(store->views);
    free(store->pointers);
    free(store->keys);
    free(store->statuses);
}

/* ---- loads ---- */

/* Waits for an event of the engine's without a nap. */
static kvt_status load_spin(gpu_bench *bench, void *event)
{
    int error = GPU_NOT_READY;
    while (error == GPU_NOT_READY)
        error = bench->site->driver.event_query(event);
    return bench_gpu_call(bench, error, "the engine's event");
}

kvt_status bench_gpu_store_load(gpu_bench_store *store, gpu_bench_load *load)
{
    gpu_bench *bench = store->bench;
    const gpu_driver *driver = &bench->site->driver;
    const uint32_t layers = store->layout.layers;
    const uint64_t from_ns = base_clock_ns();
    kvt_load *handle = NULL;
    kvt_status status =
        kvt_load_begin(store->queue, store->keys, store->pointers, store->entries, NULL, &handle);
    if (status != KVT_OK) return bench_blame(bench->report, status, "a load", "");
    for (uint32_t layer = 0; layer < layers && status == KVT_OK; layer++) {
        status = kvt_load_wait_layer(handle, layer, store->stream);
        if (status == KVT_OK && load->turns != 0)
            status = bench_gpu_spin(bench, load->turns, load->blocks, load->threads, store->stream);
        kvt_load_release(handle, layer + 1);
    }
    if (status == KVT_OK)
        status = bench_gpu_call(bench, driver->event_record(bench->events[0], store->stream),
                                "an event");
    if (status == KVT_OK) status = load_spin(bench, bench->events[0]);
    const uint64_t last_ns = base_clock_ns();
    const kvt_status ended = kvt_load_end(handle, store->statuses, NULL);
    load->end_ns = base_clock_ns() - last_ns;
    load->seconds = (double)(last_ns - from_ns) / 1e9;
    if (status == KVT_OK) status = ended;
    for (uint32_t i = 0; i < store->entries && status == KVT_OK; i++)
        status = store->statuses[i];
    return bench_blame(bench->report, status, "a load", "");
}

kvt_status bench_gpu_store_same(gpu_bench_store *store, uint32_t entry, uint8_t *packed,
                                bool *same_out)
{
    uint8_t *pages = malloc(store->page_bytes);
    if (pages == NULL) return KVT_E_MEMORY;
    kvt_view view = store->views[entry];
    kvt_status status = bench_gpu_read(store->bench, pages, store->pages, store->page_bytes);
    view.base[0] = pages;
    if (status == KVT_OK) {
        view_gather_entry(&view, &store->layout, packed);
        status = kvt_store_get(store->store, &store->keys[entry],
                               KVT_PACKED(packed + store->entry_bytes, store->entry_bytes),
                               KVT_NO_DEADLINE, NULL);
    }
    *same_out =
        status == KVT_OK && memcmp(packed, packed + store->entry_bytes, store->entry_bytes) == 0;
    free(pages);
    return status;
}
