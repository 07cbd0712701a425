/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_restart_site.c - the restart bench's store: members, options, entries.
 *
 * Thread rule: as bench_restart.h.
 */
#include "base/clock.h"
#include "bench_restart.h"
#include "codecs/record.h"

#include "bench_scratch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HOLLOW_KEPT_BYTES (UINT64_C(1) << 20) /* labels lie in front */

/* ---- a member that keeps its label alone ----
 *
 * It answers at once, and says that it took as long as a drive of 1 GB/s: memory that is no faster
 * than the drives would hold nothing. */

#define HOLLOW_REQUEST_NS 100000

typedef struct hollow_device {
    kvt_device base;
    kvt_device *inner;
} hollow_device;

static void hollow_close(kvt_device *device)
{
    kvt_device_close(((hollow_device *)device)->inner);
    free(device);
}

static kvt_status hollow_submit(kvt_device *device, kvt_io *io)
{
    hollow_device *hollow = (hollow_device *)device;
    io->submitted_ns = base_clock_ns();
    io->status = KVT_OK;
    if (io->offset + io->bytes <= HOLLOW_KEPT_BYTES)
        io->status =
            kvt_device_transfer(hollow->inner, io->kind, io->offset, io->buffer, io->bytes);
    else if (io->kind == KVT_IO_READ)
        memset(io->buffer, 0, io->bytes);
    io->finished_ns = io->submitted_ns + HOLLOW_REQUEST_NS + io->bytes;
    return KVT_OK;
}

static kvt_status hollow_sync(kvt_device *device)
{
    return kvt_device_sync(((hollow_device *)device)->inner);
}

static void hollow_attach(kvt_device *device)
{
    kvt_device_attach(((hollow_device *)device)->inner);
}

static void hollow_detach(kvt_device *device)
{
    kvt_device_detach(((hollow_device *)device)->inner);
}

static kvt_status hollow_open(const kvt_device_config *config, kvt_device **device_out,
                              char *message, size_t message_size);

static const kvt_device_ops hollow_ops = {.struct_size = sizeof hollow_ops,
                                          .abi_version = KVT_DEVICE_ABI,
                                          .name = "bench-hollow",
                                          .open = hollow_open,
                                          .close = hollow_close,
                                          .submit = hollow_submit,
                                          .sync = hollow_sync,
                                          .attach = hollow_attach,
                                          .detach = hollow_detach};

static kvt_status hollow_open(const kvt_device_config *config, kvt_device **device_out,
                              char *message, size_t message_size)
{
    const kvt_device_config kept = {.struct_size = sizeof kept,
                                    .name = config->name,
                                    .backend = "file",
                                    .path = config->path,
                                    .sparse = true,
                                    .synchronous = true,
                                    .capacity_bytes = HOLLOW_KEPT_BYTES};
    hollow_device *hollow = calloc(1, sizeof *hollow);
    if (hollow == NULL) return KVT_E_MEMORY;
    kvt_status status = kvt_device_open(&kept, &hollow->inner, message, message_size);
    if (status != KVT_OK) {
        free(hollow);
        return status;
    }
    hollow->base = (kvt_device){.ops = &hollow_ops, .facts = hollow->inner->facts};
    hollow->base.facts.capacity_bytes = config->capacity_bytes;
    memcpy(hollow->base.name, hollow->inner->name, sizeof hollow->base.name);
    *device_out = &hollow->base;
    return KVT_OK;
}

/* ---- the site ---- */

int restart_site_make(restart_site *site, const bench_options *bench, bool hollow)
{
    memset(site, 0, sizeof *site);
    site->hollow = hollow;
    if (bench_scratch_make(bench->scratch_folder, "restart", site->folder, sizeof site->folder) !=
        0) {
        fprintf(stderr, "kvterrace bench restart: %s: %s\n", site->folder, strerror(errno));
        return 1;
    }
    snprintf(site->catalog, sizeof site->catalog, "%s/catalog.db", site->folder);
    for (uint32_t i = 0; i < RESTART_MEMBERS; i++) {
        snprintf(site->names[i], sizeof site->names[i], "m%u", i);
        snprintf(site->paths[i], sizeof site->paths[i], "%s/%s", site->folder, site->names[i]);
        site->members[i] = (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                                               .name = site->names[i],
                                               .backend = hollow ? "bench-hollow" : "file",
                                               .ops = hollow ? &hollow_ops : NULL,
                                               .path = site->paths[i],
                                               .sparse = true};
    }
    return 0;
}

void restart_site_size(restart_site *site, const restart_behaviour *behaviour, uint64_t ssd_bytes,
                       uint64_t dram_bytes)
{
    const uint64_t grain = UINT64_C(1) << 20;
    kvt_store_options *options = &site->options;
    kvt_store_options_init(options);
    options->put_staging_bytes = 0; /* each put is timed until its entry is stored */
    for (uint32_t i = 0; i < RESTART_MEMBERS; i++)
        site->members[i].capacity_bytes = (ssd_bytes / RESTART_MEMBERS / grain + 1) * grain;
    options->catalog_path = site->catalog;
    options->lossless = false;
    options->learn = false;
    options->copies = behaviour->copies;
    options->close_deadline_seconds = behaviour->close_deadline_seconds;
    options->persist_bytes_per_s = behaviour->persist_bytes_per_s;
    options->tiers[KVT_TIER_DRAM].capacity_bytes = (dram_bytes / grain + 1) * grain;
    options->tiers[KVT_TIER_DRAM].unit_bytes = 4096;
    options->tiers[KVT_TIER_SSD] =
        (kvt_tier_options){.devices = site->members, .device_count = RESTART_MEMBERS};
}

kvt_store *restart_site_open(restart_site *site)
{
    char message[256] = "";
    kvt_store *store = NULL;
    kvt_status status = kvt_open(&site->options, &store, message, sizeof message);
    if (status == KVT_OK) return store;
    fprintf(stderr, "kvterrace bench restart: %s: %s\n", kvt_status_name(status), message);
    return NULL;
}

/* ---- entries ---- */

static kvt_key restart_key(uint32_t number)
{
    kvt_key key = {{'r', 'e', 's', 't', 'a', 'r', 't'}};
    memcpy(key.bytes + 8, &number, sizeof number);
    return key;
}

static void restart_fill(uint32_t number, uint64_t *words)
{
    for (uint64_t i = 0; i < RESTART_ENTRY_BYTES / 8; i++)
        words[i] = ((uint64_t)number << 32 ^ i) * UINT64_C(0x9E3779B97F4A7C15);
}

static kvt_entry restart_entry(uint32_t number)
{
    return (kvt_entry){
        .key = restart_key(number),
        .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = RESTART_ENTRY_BYTES, .tokens = 16},
        .recompute_seconds = 1};
}

kvt_status restart_put(kvt_store *store, uint32_t number)
{
    uint64_t words[RESTART_ENTRY_BYTES / 8];
    kvt_entry entry = restart_entry(number);
    restart_fill(number, words);
    return kvt_put(store, &entry, words, sizeof words);
}

kvt_status restart_get(kvt_store *store, uint32_t number)
{
    uint64_t words[RESTART_ENTRY_BYTES / 8], expected[RESTART_ENTRY_BYTES / 8];
    kvt_key key = restart_key(number);
    kvt_status status = kvt_get(store, &key, words, sizeof words, NULL);
    if (status != KVT_OK) return status;
    restart_fill(number, expected);
    return memcmp(words, expected, sizeof words) == 0 ? KVT_OK : KVT_E_CORRUPT;
}

kvt_status restart_exists(kvt_store *store, uint32_t number)
{
    kvt_key key = restart_key(number);
    return kvt_exists(store, &key);
}

uint64_t restart_record_bytes(void)
{
    kvt_record_spec spec = {
        .generation = 1, .layout = restart_entry(0).layout, .variant = {.codec = KVT_CODEC_RAW}};
    uint64_t bytes = 0, scratch;
    return kvt_record_bound(&spec, &bytes, &scratch) == KVT_OK ? bytes : 0;
}
