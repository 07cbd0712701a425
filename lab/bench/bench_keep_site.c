/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_keep_site.c - drives with delays, a store on them, and readers; see bench_keep_site.h.
 *
 * Gets come at random instants that do not wait for the get before: a get that the thread begins
 * late has been waiting since it was due.
 *
 * Thread rule: as bench_keep_site.h.
 */
#include "bench_keep_site.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define KEEP_BACKEND    "keep-drive"
#define KEEP_GRACE_NS   UINT64_C(20000000)    /* beyond its deadline a get may return so late */
#define KEEP_TIMEOUT_NS UINT64_C(60000000000) /* a process that stands still blames no drive */

enum { KEEP_DEPTH = 32, KEEP_SAMPLES = 1 << 20 };

/* ---- drives ---- */

static keep_site *keep_opening; /* whose drives are being opened */

static kvt_status drive_open(const kvt_device_config *config, kvt_device **device_out,
                             char *message, size_t message_size);

static void drive_close(kvt_device *device)
{
    kvt_device_close(((keep_drive *)device)->layer.inner);
    free(device);
}

static kvt_status drive_submit(kvt_device *device, kvt_io *io)
{
    keep_drive *drive = (keep_drive *)device;
    const uint64_t delay_ns = atomic_load(&drive->delay_ns);
    kvt_io inner = {
        .kind = io->kind, .bytes = io->bytes, .offset = io->offset, .buffer = io->buffer};
    const kvt_status status = kvt_device_submit(drive->layer.inner, &inner);
    assert(status == KVT_OK && "memory is done at once");
    atomic_fetch_add(&drive->bytes[io->kind], io->bytes);
    io->status = inner.status;
    io->submitted_ns = inner.submitted_ns;
    io->finished_ns = inner.finished_ns + delay_ns;
    if (delay_ns == 0) return status;
    io->next = drive->held;
    drive->held = io;
    return KVT_QUEUED;
}

static size_t drive_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                         uint64_t timeout_ns)
{
    keep_drive *drive = (keep_drive *)device;
    const uint64_t began_ns = base_clock_ns();
    const uint64_t end_ns = timeout_ns > UINT64_MAX - began_ns ? UINT64_MAX : began_ns + timeout_ns;
    size_t count = 0;
    for (;;) {
        const uint64_t now_ns = base_clock_ns();
        uint64_t next_ns = end_ns;
        for (kvt_io **at = &drive->held; *at != NULL;) {
            if ((*at)->finished_ns <= now_ns && count < max) {
                done[count++] = *at;
                *at = (*at)->next;
                continue;
            }
            if ((*at)->finished_ns < next_ns) next_ns = (*at)->finished_ns;
            at = &(*at)->next;
        }
        if (count >= min || now_ns >= end_ns) return count;
        base_sleep_until(next_ns);
    }
}

static const kvt_device_ops drive_ops = {.struct_size = sizeof drive_ops,
                                         .abi_version = KVT_DEVICE_ABI,
                                         .name = KEEP_BACKEND,
                                         .open = drive_open,
                                         .close = drive_close,
                                         .submit = drive_submit,
                                         .reap = drive_reap,
                                         .attach = tiers_layer_attach,
                                         .detach = tiers_layer_detach};

static const kvt_device_ops *drive_find(const char *backend)
{
    return strcmp(backend, drive_ops.name) == 0 ? &drive_ops : NULL;
}

static kvt_status drive_open(const kvt_device_config *config, kvt_device **device_out,
                             char *message, size_t message_size)
{
    const kvt_device_config memory = {.struct_size = sizeof memory,
                                      .name = config->name,
                                      .backend = "memory",
                                      .capacity_bytes = config->capacity_bytes,
                                      .emulated = true};
    kvt_device *inner = NULL;
    keep_drive *drive = calloc(1, sizeof *drive);
    if (drive == NULL) return KVT_E_MEMORY;
    const kvt_status status = kvt_device_open(&memory, &inner, message, message_size);
    if (status != KVT_OK) {
        free(drive);
        return status;
    }
    tiers_layer_init(&drive->layer, &drive_ops, inner);
    drive->layer.base.facts.depth_max = KEEP_DEPTH;
    for (uint32_t i = 0; i < BENCH_OWN_DRIVES; i++)
        if (strcmp(keep_opening->configs[i].name, config->name) == 0)
            keep_opening->drives[i] = drive;
    *device_out = &drive->layer.base;
    return KVT_OK;
}

/* ---- the store ---- */

kvt_status keep_site_open(keep_site *site, uint64_t bytes, uint64_t bytes_per_s,
                          uint32_t unit_bytes)
{
    static const char *const names[BENCH_OWN_DRIVES] = {"drive0", "drive1", "drive2", "drive3"};
    static const uint64_t eighths[BENCH_OWN_DRIVES] = {1, 1, 2, 4};
    for (int i = 0; i < BENCH_OWN_DRIVES; i++)
        site->configs[i] = (kvt_device_config){.struct_size = sizeof site->configs[i],
                                               .name = names[i],
                                               .backend = KEEP_BACKEND,
                                               .capacity_bytes = bytes / 8 * eighths[i],
                                               .emulated = true,
                                               .read_bytes_per_s = bytes_per_s / 8 * eighths[i],
                                               .write_bytes_per_s = bytes_per_s / 8 * eighths[i],
                                               .latency_ns = 80000,
                                               .timeout_ns = KEEP_TIMEOUT_NS};
    site->options.policy = "lru";
    site->options.lossless = false;
    site->options.learning.learn = false;
    site->options.tiers[KVT_TIER_SSD] = (kvt_tier_options){
        .devices = site->configs, .device_count = BENCH_OWN_DRIVES, .unit_bytes = unit_bytes};
    keep_opening = site;
    tiers_stand_in = drive_find;
    const kvt_status status =
        kvt_store_open(&site->options, &site->store, site->message, sizeof site->message);
    tiers_stand_in = NULL;
    return status;
}

void keep_site_close(keep_site *site)
{
    for (int i = 0; i < BENCH_OWN_DRIVES && site->store != NULL; i++)
        atomic_store(&site->drives[i]->delay_ns, 0);
    kvt_store_close(site->store);
    site->store = NULL;
    keep_read_free(site);
}

/* ---- entries ---- */

static kvt_key keep_key(uint32_t number)
{
    const uint64_t words[4] = {lab_mix(number), lab_mix(~(uint64_t)number), number, 40};
    kvt_key key;
    memcpy(&key, words, sizeof key);
    return key;
}

static uint64_t keep_word(uint32_t number, uint64_t at)
{
    return (at + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ number;
}

kvt_status keep_put(keep_site *site, void *buffer, uint32_t number)
{
    uint64_t *words = buffer;
    const kvt_entry entry = {
        .struct_size = sizeof entry,
        .key = keep_key(number),
        .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = site->entry_bytes, .tokens = 1},
        .recompute_seconds = 1};
    for (uint64_t i = 0; i < site->entry_bytes / sizeof *words; i++)
        words[i] = keep_word(number, i);
    kvt_status status = kvt_store_put(site->store, &entry, KVT_PACKED(buffer, site->entry_bytes));
    while (status == KVT_BUSY) {
        base_sleep(500000);
        status = kvt_store_put(site->store, &entry, KVT_PACKED(buffer, site->entry_bytes));
    }
    return status;
}

kvt_status keep_get(keep_site *site, void *buffer, uint32_t number, uint64_t deadline_ns,
                    kvt_get_info *info)
{
    const kvt_key key = keep_key(number);
    const uint64_t *words = buffer;
    uint64_t differs = 0;
    memset(buffer, 0xff, sizeof *words);
    const kvt_status status =
        kvt_store_get(site->store, &key, KVT_PACKED(buffer, site->entry_bytes), deadline_ns, info);
    if (status != KVT_OK) return status;
    for (uint64_t i = 0; i < site->entry_bytes / sizeof *words; i++)
        differs |= words[i] ^ keep_word(number, i);
    return differs == 0 ? KVT_OK : KVT_E_CORRUPT;
}

const tiers_location *keep_location(keep_site *site, uint32_t number)
{
    const kvt_key key = keep_key(number);
    pthread_mutex_lock(&site->store->lock);
    const store_entry *entry = entry_find_key(&site->store->table, &key);
    const bool there = entry != NULL && entry->state == ENTRY_RESIDENT;
    const tiers_location *location = there ? entry->place->location : NULL;
    pthread_mutex_unlock(&site->store->lock);
    return location;
}

/* ---- readers ---- */

/* Books what a get has read of each drive. */
static void reader_count_bytes(keep_site *site, uint32_t number)
{
    const tiers_location *location = keep_location(site, number);
    if (location == NULL) return;
    const uint32_t odd = tiers_stripe_odd(location);
    for (uint32_t i = 0; i < location->share_count; i++)
        atomic_fetch_add(&site->bytes_got[location->shares[i].member],
                         tiers_stripe_share_bytes(location, i, odd));
}

uint64_t keep_pace(uint64_t due_ns, double per_s, uint64_t *random)
{
    *random = lab_mix(*random + UINT64_C(0x9e3779b97f4a7c15));
    const double drawn = ((double)(*random >> 11) + 0.5) * 0x1p-53;
    due_ns += (uint64_t)(-log(drawn) / per_s * 1e9);
    base_sleep_until(due_ns);
    return due_ns;
}

static void *reader_run(void *context)
{
    keep_reader *reader = context;
    keep_site *site = reader->site;
    uint64_t due_ns = base_clock_ns();
    while (!atomic_load(&site->stops) && reader->count < KEEP_SAMPLES) {
        kvt_get_info info = {.struct_size = sizeof info};
        due_ns = keep_pace(due_ns, site->gets_per_s, &reader->random);
        const uint32_t number =
            atomic_load(&site->first) + (uint32_t)(lab_mix(reader->random) % site->span);
        const uint64_t end_ns =
            site->wait_ns != 0 ? base_clock_ns() + site->wait_ns : KVT_NO_DEADLINE;
        const kvt_status status = keep_get(site, reader->buffer, number, end_ns, &info);
        const uint64_t ended_ns = base_clock_ns();
        reader->samples[reader->count++] = (keep_sample){due_ns, ended_ns - due_ns};
        reader->wrong += status == KVT_E_CORRUPT;
        reader->timed_out += status == KVT_MISS && info.timed_out;
        reader->missed += status != KVT_OK && status != KVT_E_CORRUPT && !info.timed_out;
        reader->late += site->wait_ns != 0 && ended_ns > end_ns + KEEP_GRACE_NS;
        if (site->counted) reader_count_bytes(site, number);
    }
    return NULL;
}

kvt_status keep_read(keep_site *site, uint32_t readers)
{
    kvt_status status = KVT_OK;
    assert(readers <= KEEP_READERS_MAX && site->reader_count == 0 && site->span > 0);
    assert(site->gets_per_s > 0);
    atomic_store(&site->stops, false);
    for (uint32_t i = 0; i < readers && status == KVT_OK; i++) {
        keep_reader *reader = &site->readers[i];
        *reader = (keep_reader){.site = site, .random = i + 1};
        reader->buffer = bench_buffer(site->entry_bytes);
        reader->samples = malloc(KEEP_SAMPLES * sizeof *reader->samples);
        site->reader_count++;
        if (reader->buffer == NULL || reader->samples == NULL)
            status = KVT_E_MEMORY;
        else if (pthread_create(&reader->thread, NULL, reader_run, reader) != 0)
            status = KVT_E_MEMORY;
        else
            reader->runs = true;
    }
    if (status != KVT_OK) keep_read_end(site);
    return status;
}

void keep_read_end(keep_site *site)
{
    atomic_store(&site->stops, true);
    for (uint32_t i = 0; i < site->reader_count; i++) {
        if (site->readers[i].runs) pthread_join(site->readers[i].thread, NULL);
        site->readers[i].runs = false;
    }
}

void keep_read_free(keep_site *site)
{
    for (uint32_t i = 0; i < site->reader_count; i++) {
        free(site->readers[i].buffer);
        free(site->readers[i].samples);
    }
    site->reader_count = 0;
}

double keep_quantile(const keep_site *site, uint64_t from_ns, uint64_t to_ns, double share)
{
    uint64_t total = 0, count = 0;
    for (uint32_t i = 0; i < site->reader_count; i++)
        total += site->readers[i].count;
    uint64_t *ns = malloc((total + 1) * sizeof *ns);
    if (ns == NULL) return 0;
    for (uint32_t i = 0; i < site->reader_count; i++) {
        const keep_reader *reader = &site->readers[i];
        for (uint32_t k = 0; k < reader->count; k++)
            if (reader->samples[k].due_ns >= from_ns && reader->samples[k].due_ns < to_ns)
                ns[count++] = reader->samples[k].elapsed_ns;
    }
    qsort(ns, count, sizeof *ns, base_order_u64);
    const double seconds =
        count == 0 ? 0 : 1e-9 * (double)ns[(uint64_t)(share * (double)(count - 1))];
    free(ns);
    return seconds;
}
