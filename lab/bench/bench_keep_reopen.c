/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_keep_reopen.c - what an open of a store with many entries takes, plain and serving early:
 * until it returns, until a first get has come back, until all entries are known, and in processor
 * seconds of all threads until then, the gets' included.
 *
 * The entries are of 8 tokens, on a sparse file that takes 8 KiB of an entry; the catalog is a
 * file beside it. Both lie in a folder of the case's own in the working folder, and go with it. A
 * churned store has put all entries three times more than a fresh one, in another order each time,
 * and deleted one for each.
 *
 * Thread rule: one case at a time.
 */
#include "bench_keep.h"
#include "bench_parts.h"

#include "lab/private.h"

#include <kvterrace/watch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    REOPEN_GETS = 100,
    REOPEN_TIMES = 3,
    REOPEN_CHURNS = 3,
    REOPEN_FEW = 100000,
    REOPEN_MANY = 1000000,
    REOPEN_QUICK = 1000
};
#define REOPEN_RECORD_BYTES (UINT64_C(16) << 10)

static const kvt_layout reopen_layout = {
    .layers = 1, .kv_heads = 1, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 8};
#define REOPEN_ENTRY_BYTES (UINT64_C(2) * 64 * 2 * 8)

typedef struct reopen_site {
    char folder[32], catalog[48], tier[48];
    kvt_device_config device;
    kvt_store_options options;
    kvt_store *store;
    uint32_t first; /* of the numbers of entries that are there */
    char message[BENCH_MESSAGE_BYTES];
} reopen_site;

typedef struct reopen_times {
    double open_seconds, hit_seconds, known_seconds, processor_seconds;
    uint64_t known;
    uint32_t wrong;
} reopen_times;

/* Keys in no order, as hashes of tokens are. */
static kvt_key reopen_key(uint32_t number)
{
    uint64_t words[4], word = number;
    kvt_key key;
    for (int i = 0; i < 4; i++) {
        word = (word + UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xbf58476d1ce4e5b9);
        word ^= word >> 29;
        words[i] = word;
    }
    memcpy(&key, words, sizeof key);
    return key;
}

static kvt_status reopen_open(reopen_site *site)
{
    return kvt_store_open(&site->options, &site->store, site->message, sizeof site->message);
}

static kvt_status reopen_put(reopen_site *site, uint32_t number)
{
    char bytes[REOPEN_ENTRY_BYTES] = {0};
    const kvt_entry entry = {.struct_size = sizeof entry,
                             .key = reopen_key(number),
                             .layout = reopen_layout,
                             .recompute_seconds = 1};
    memcpy(bytes, &number, sizeof number);
    kvt_status status = kvt_store_put(site->store, &entry, KVT_PACKED(bytes, sizeof bytes));
    while (status == KVT_BUSY) {
        status = kvt_store_flush(site->store);
        if (status == KVT_OK)
            status = kvt_store_put(site->store, &entry, KVT_PACKED(bytes, sizeof bytes));
    }
    return status;
}

/* Makes a store of so many entries, and closes it. */
static kvt_status reopen_make(reopen_site *site, uint32_t entries, bool churned)
{
    snprintf(site->folder, sizeof site->folder, "kvlab-keep-XXXXXX");
    if (mkdtemp(site->folder) == NULL) return KVT_E_IO;
    snprintf(site->catalog, sizeof site->catalog, "%s/catalog", site->folder);
    snprintf(site->tier, sizeof site->tier, "%s/tier", site->folder);
    site->device = (kvt_device_config){.struct_size = sizeof site->device,
                                       .name = "ssd0",
                                       .backend = "file",
                                       .path = site->tier,
                                       .capacity_bytes = entries * REOPEN_RECORD_BYTES + (64 << 20),
                                       .read_bytes_per_s = UINT64_C(3000000000),
                                       .write_bytes_per_s = UINT64_C(2000000000),
                                       .timeout_ns = UINT64_MAX};
    kvt_store_options_init(&site->options);
    site->options.policy = "lru";
    site->options.lossless = false;
    site->options.tiers[KVT_TIER_SSD] =
        (kvt_tier_options){.devices = &site->device, .device_count = 1, .unit_bytes = 4096};
    site->options.durability.catalog_path = site->catalog;
    kvt_status status = reopen_open(site);
    for (uint32_t i = 0; i < entries && status == KVT_OK; i++)
        status = reopen_put(site, i);
    for (uint32_t lap = 1; churned && lap <= REOPEN_CHURNS && status == KVT_OK; lap++) {
        site->first = lap * entries;
        for (uint32_t i = 0; i < entries && status == KVT_OK; i++) {
            const uint32_t at = (uint32_t)(((uint64_t)i * 7919 + lap * 31) % entries);
            const kvt_key key = reopen_key(site->first - entries + at);
            status = kvt_store_delete(site->store, &key);
            if (status == KVT_OK) status = reopen_put(site, site->first + at);
        }
    }
    if (status == KVT_OK) status = kvt_store_flush(site->store);
    kvt_store_close(site->store);
    site->store = NULL;
    return status;
}

/* Whether an entry comes back right. */
static bool reopen_hits(reopen_site *site, uint32_t number)
{
    number += site->first;
    const kvt_key key = reopen_key(number);
    char bytes[REOPEN_ENTRY_BYTES];
    return kvt_store_get(site->store, &key, KVT_PACKED(bytes, sizeof bytes), KVT_NO_DEADLINE,
                         NULL) == KVT_OK &&
           memcmp(bytes, &number, sizeof number) == 0;
}

/* Opens once, gets entries from all parts before and after all are known, and closes. */
static kvt_status reopen_once(reopen_site *site, uint32_t entries, bool early, reopen_times *times)
{
    kvt_store_stats stats = {.struct_size = sizeof stats};
    const uint64_t began_ns = base_clock_ns();
    const double began = bench_process_seconds();
    site->options.serve_early = early;
    kvt_status status = reopen_open(site);
    if (status != KVT_OK) return status;
    times->open_seconds = 1e-9 * (double)(base_clock_ns() - began_ns);
    times->wrong = 0;
    for (uint32_t i = 0; i < REOPEN_GETS; i++) {
        times->wrong += !reopen_hits(site, (uint32_t)((uint64_t)i * entries / REOPEN_GETS));
        if (i == 0) times->hit_seconds = 1e-9 * (double)(base_clock_ns() - began_ns);
    }
    status = kvt_store_wait(site->store, KVT_NO_DEADLINE, site->message, sizeof site->message);
    times->known_seconds = 1e-9 * (double)(base_clock_ns() - began_ns);
    times->processor_seconds = bench_process_seconds() - began;
    for (uint32_t i = 0; i < REOPEN_GETS; i++)
        times->wrong += !reopen_hits(site, (uint32_t)((uint64_t)i * entries / REOPEN_GETS));
    (void)!kvt_store_stats_get(site->store, &stats);
    times->known = stats.recovered;
    kvt_store_close(site->store);
    site->store = NULL;
    return status;
}

/* Removes what the site made; what lies beside the catalog, too. */
static void reopen_clear(reopen_site *site)
{
    static const char *const ends[] = {"", "-lock", "-rows"};
    char path[64];
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        snprintf(path, sizeof path, "%s%s", site->catalog, ends[i]);
        (void)unlink(path);
    }
    (void)unlink(site->tier);
    (void)rmdir(site->folder);
}

static kvt_status reopen_size(const bench_options *options, bench_report *report, uint32_t entries,
                              bool churned, uint32_t *wrong)
{
    reopen_site site = {.folder = ""};
    kvt_status status = reopen_make(&site, entries, churned);
    const uint32_t times = 2 * (options->quick ? 1 : REOPEN_TIMES);
    for (uint32_t i = 0; i < times && status == KVT_OK; i++) {
        const bool early = i % 2 == 1;
        reopen_times one = {0};
        status = reopen_once(&site, entries, early, &one);
        if (status != KVT_OK) break;
        *wrong += one.wrong + (uint32_t)(one.known != entries);
        bench_report_row(report, "reopen",
                         json_pack("{s:b, s:b, s:I, s:I, s:f, s:f, s:f, s:f, s:I}", "early", early,
                                   "churned", churned, "entries", (json_int_t)entries, "known",
                                   (json_int_t)one.known, "open_seconds", one.open_seconds,
                                   "first_hit_seconds", one.hit_seconds, "known_seconds",
                                   one.known_seconds, "processor_seconds", one.processor_seconds,
                                   "wrong", (json_int_t)one.wrong));
    }
    reopen_clear(&site);
    return status == KVT_OK ? status : bench_blame(report, status, "store", site.message);
}

kvt_status bench_keep_reopen(const bench_options *options, bench_report *report)
{
    static const struct {
        uint32_t entries;
        bool churned;
    } stores[] = {{REOPEN_FEW, false}, {REOPEN_FEW, true}, {REOPEN_MANY, false}};
    uint32_t wrong = 0, count = sizeof stores / sizeof stores[0];
    kvt_status status = KVT_OK;
    const uint32_t own = options->iterations != 0 ? options->iterations
                         : options->quick         ? REOPEN_QUICK
                                                  : 0;
    if (own != 0) count = 2;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        (void)bench_tell(options, i, count, "reopening");
        status = reopen_size(options, report, own != 0 ? own : stores[i].entries, stores[i].churned,
                             &wrong);
    }
    bench_report_add(report, json_pack("{s:I}", "wrong", (json_int_t)wrong));
    if (status != KVT_OK || wrong == 0) return status;
    return bench_blame(report, KVT_E_CORRUPT, "store",
                       "entries were not known, or gave other bytes");
}
