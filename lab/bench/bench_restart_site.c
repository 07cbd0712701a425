/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_restart_site.c - the restart bench's store (members, options, entries) and the gets that
 * are timed on it beside the background's write-back.
 *
 * Thread rule: as bench_restart.h.
 */
#include "base/clock.h"
#include "base/order.h"
#include "bench_restart.h"
#include "codecs/record.h"

#include "bench_parts.h"

#include <errno.h>
#include <pthread.h>
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
        .struct_size = sizeof(kvt_entry),
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

/* ---- gets beside the background's write-back ---- */

/*
 * Two threads read entries, of which most lie on SSD; memory is full of entries that have no
 * record there when they begin. The readers share nothing but the store. The rates take turns, so
 * that what else the machine does falls on all of them; a store is filled anew for each run.
 */

enum {
    GETS_READERS = 2,
    GETS_ENTRIES = 20000,
    GETS_ENTRIES_QUICK = 1000,
    GETS_RUNS = 5,
    GETS_SAMPLES_MAX = 400000,
    GETS_ROUND_NS = 50000000 /* between two background rounds, as store.tick */
};

static const uint64_t gets_rates[RESTART_RATES] = {0, 32000000, 256000000};

typedef struct gets_reader {
    kvt_store *store;
    uint32_t entries;
    uint32_t number;
    uint64_t until_ns;
    float *seconds;
    uint32_t count;
    bool wrong;
    pthread_t thread;
} gets_reader;

static void *gets_read(void *argument)
{
    gets_reader *reader = argument;
    uint64_t drawn = reader->number + 1;
    while (base_clock_ns() < reader->until_ns && reader->count < GETS_SAMPLES_MAX) {
        drawn = drawn * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint32_t entry = (uint32_t)((drawn >> 33) % reader->entries);
        uint64_t began_ns = base_clock_ns();
        kvt_status status = restart_get(reader->store, entry);
        reader->seconds[reader->count++] = (float)(base_clock_ns() - began_ns) * 1e-9F;
        if (status != KVT_OK && status != KVT_MISS) reader->wrong = true;
    }
    return NULL;
}

/* The background: the store has none of its own, so that nothing was written back before. */
static void *gets_maintain(void *argument)
{
    gets_reader *background = argument;
    while (base_clock_ns() < background->until_ns) {
        (void)!kvt_maintain(background->store, NULL);
        base_sleep(GETS_ROUND_NS);
    }
    return NULL;
}

/* Reads and puts for a while; the readers' samples are one after the other then. */
static int gets_measure(kvt_store *store, uint32_t entries, bool quick, float *seconds,
                        restart_gets *out)
{
    gets_reader threads[GETS_READERS + 1];
    kvt_store_stats before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    uint64_t began_ns = base_clock_ns();
    uint64_t until_ns = began_ns + (quick ? 200 : 2000) * UINT64_C(1000000);
    uint32_t started = 0, count = 0;
    int code = kvt_stats(store, &before) != KVT_OK;
    while (code == 0 && started <= GETS_READERS) {
        gets_reader *one = &threads[started];
        *one = (gets_reader){
            .store = store, .entries = entries, .number = started, .until_ns = until_ns};
        if (started < GETS_READERS) one->seconds = seconds + (size_t)started * GETS_SAMPLES_MAX;
        code = pthread_create(&one->thread, NULL,
                              started < GETS_READERS ? gets_read : gets_maintain, one) != 0;
        if (code == 0) started++;
    }
    for (uint32_t i = 0; i < started; i++) {
        pthread_join(threads[i].thread, NULL);
        if (threads[i].wrong) code = 1;
        if (i == GETS_READERS) break;
        memmove(seconds + count, threads[i].seconds, threads[i].count * sizeof *seconds);
        count += threads[i].count;
    }
    if (kvt_stats(store, &after) != KVT_OK || code != 0 || count == 0) return 1;
    qsort(seconds, count, sizeof *seconds, base_order_floats);
    out->gets = count;
    out->p50_seconds = (double)seconds[count / 2];
    out->p99_seconds = (double)seconds[(uint64_t)count * 99 / 100];
    out->written_bytes_per_s = bench_bytes_per_s(after.persisted_bytes - before.persisted_bytes,
                                                 base_clock_ns() - began_ns);
    return 0;
}

/* One run at one rate. */
static int gets_run(const bench_options *options, uint64_t rate, restart_gets *out)
{
    const restart_behaviour behaviour = {"", true, 0, rate};
    restart_site site;
    uint32_t entries = options->quick ? GETS_ENTRIES_QUICK : GETS_ENTRIES;
    uint64_t bytes = restart_record_bytes() * entries;
    float *seconds = malloc((size_t)GETS_READERS * GETS_SAMPLES_MAX * sizeof *seconds);
    if (seconds == NULL) return 1;
    if (restart_site_make(&site, options, false) != 0) {
        free(seconds);
        return 1;
    }
    restart_site_size(&site, &behaviour, 2 * bytes, bytes / 4);
    site.options.tick_seconds = 0;
    kvt_store *store = restart_site_open(&site);
    int code = store == NULL;
    for (uint32_t i = 0; i < entries && code == 0; i++) {
        kvt_status status = restart_put(store, i);
        if (status != KVT_OK && status != KVT_REFUSED) code = 1;
    }
    if (code == 0) code = gets_measure(store, entries, options->quick, seconds, out);
    kvt_close(store);
    bench_scratch_remove();
    free(seconds);
    return code;
}

int bench_restart_gets(const bench_options *options, restart_gets rows[RESTART_RATES])
{
    double p50[RESTART_RATES][GETS_RUNS], p99[RESTART_RATES][GETS_RUNS];
    double written[RESTART_RATES][GETS_RUNS];
    const uint32_t runs = options->quick ? 1 : GETS_RUNS;
    int code = 0;
    for (uint32_t run = 0; run < runs; run++) {
        for (uint32_t i = 0; i < RESTART_RATES && code == 0; i++) {
            uint32_t turn = (i + run) % RESTART_RATES;
            restart_gets one = {0};
            code = gets_run(options, gets_rates[turn], &one);
            rows[turn].gets += one.gets;
            p50[turn][run] = one.p50_seconds;
            p99[turn][run] = one.p99_seconds;
            written[turn][run] = one.written_bytes_per_s;
        }
    }
    for (uint32_t i = 0; i < RESTART_RATES && code == 0; i++) {
        const bench_rate tail = bench_rate_of(p99[i], runs);
        rows[i].persist_bytes_per_s = gets_rates[i];
        rows[i].p50_seconds = bench_rate_of(p50[i], runs).median;
        rows[i].p99_seconds = tail.median;
        rows[i].p99_min_seconds = tail.min;
        rows[i].p99_max_seconds = tail.max;
        rows[i].written_bytes_per_s = bench_rate_of(written[i], runs).median;
    }
    return code;
}
