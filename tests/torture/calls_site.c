/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls_site.c - the store of the torture of the calls: its profile with a calibrated ladder, its
 * drives, the operator who disturbs them, and what a violation prints.
 */
#include "calls.h"

#include "estimator/profile/profile.h"
#include "expected.h"

#include <inttypes.h>
#include <kvterrace/connect.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SITE_TRIES = 3000 };

void calls_thread_make(calls_thread *self, calls_site *site, uint32_t number, kvt_store *region)
{
    uint64_t seed = site->seed * 1000 + number;
    void *pool = NULL;
    if (region == NULL || kvt_region_make(region, CALLS_POOL_BYTES, &pool) != KVT_OK)
        pool = malloc(CALLS_POOL_BYTES);
    *self = (calls_thread){.site = site,
                           .number = number,
                           .random = expected_random(&seed),
                           .bytes = malloc(CALLS_BYTES_MAX),
                           .wanted = malloc(CALLS_BYTES_MAX),
                           .pool = pool};
    if (self->bytes == NULL || self->wanted == NULL || pool == NULL) abort();
    memset(self->pool, CALLS_UNTOUCHED, CALLS_POOL_BYTES);
}

uint32_t calls_draw(calls_thread *self, uint32_t below)
{
    return (uint32_t)((expected_random(&self->random) >> 32) * below >> 32);
}

_Noreturn void calls_violate(calls_site *site, uint32_t number, const char *what, int64_t value)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&said)) /* one violation is told */
        for (;;)
            pause();
    fprintf(stderr, "violation: key %" PRIu32 ": %s (%lld, 0x%llx)\n", number, what,
            (long long)value, (unsigned long long)value);
    if (number < CALLS_KEYS) history_print(site->history, number);
    fprintf(stderr, "again: %s --seed %llu --seconds %u --threads %u\n", site->program,
            (unsigned long long)site->seed, site->seconds, site->thread_count);
    fflush(NULL);
    _exit(1);
}

/* ---- the profile ---- */

static void site_sql(sqlite3 *database, const char *sql)
{
    char *error = NULL;
    if (sqlite3_exec(database, sql, NULL, NULL, &error) == SQLITE_OK) return;
    fprintf(stderr, "%s: %s\n", sql, error);
    exit(2);
}

static bool site_make_profile(const calls_site *site)
{
    kvt_profile *profile = NULL;
    sqlite3 *database = NULL;
    char message[256] = "", sql[512];
    if (kvt_profile_open(site->profile, KVT_PROFILE_WRITE, &profile, message, sizeof message) !=
        KVT_OK) {
        fprintf(stderr, "profile: %s\n", message);
        return false;
    }
    kvt_profile_close(profile);
    if (sqlite3_open(site->profile, &database) != SQLITE_OK) return false;
    site_sql(database, "INSERT INTO run (id, kind, complete, host_identity, host_name, kernel, "
                       "cpu_model, cpu_count, memory_bytes, started_utc, library_version, "
                       "sqlite_version, zstd_version, seed) VALUES (1, 'calibration', 1, '', '', "
                       "'', '', 1, 1, '', '0', '', '', 1)");
    site_sql(database, "INSERT INTO model VALUES (1, 'tiny', '', 0, 4, 4, 2, 64, 0)");
    site_sql(database, "INSERT INTO calibration VALUES (1, 1, 1, 'noise')");
    for (int i = 0; i < CALLS_RUNGS; i++) {
        const calls_rung *rung = &calls_rungs[i];
        kvt_variant variant;
        if (kvt_variant_parse(rung->name, &variant) != KVT_OK) return false;
        snprintf(sql, sizeof sql,
                 "INSERT INTO calibration_rung (calibration_id, position, codec, mode, rate, name, "
                 "bits_per_element, loss, loss_upper, accepted, evidence) VALUES (1, %d, %d, %d, "
                 "%u, '%s', %f, %f, %f, 1, 'made up')",
                 i, variant.codec, variant.mode, (unsigned)variant.rate, rung->name, rung->bits,
                 rung->loss, rung->upper);
        site_sql(database, sql);
    }
    return sqlite3_close(database) == SQLITE_OK;
}

/* ---- the store ---- */

/* A memory_drive's chance; the context is its own random state. */
static uint32_t site_drive_draw(void *context, uint32_t below)
{
    return (uint32_t)(expected_random(context) % below);
}

bool calls_site_make(calls_site *site)
{
    static const char *const names[CALLS_DRIVES] = {"disk0", "disk1", "disk2"};
    snprintf(site->folder, sizeof site->folder, "%s",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm/kvt-calls-XXXXXX" : "kvt-calls-XXXXXX");
    if (mkdtemp(site->folder) == NULL) return false;
    snprintf(site->catalog, sizeof site->catalog, "%s/catalog.db", site->folder);
    snprintf(site->profile, sizeof site->profile, "%s/profile.db", site->folder);
    if (!site_make_profile(site)) return false;
    for (int i = 0; i < CALLS_DRIVES; i++) {
        memory_drive *drive = &site->drives[i];
        site->drive_random[i] = site->seed + (uint64_t)i;
        *drive = (memory_drive){.name = names[i],
                                .capacity_bytes = 896 << 10,
                                .bytes = calloc(1, 896 << 10),
                                .depth = 8,
                                .request_bytes = 65536,
                                .spread = 4,
                                .timeout_ns = 2 * CALLS_SECOND,
                                .look_ns = 5 * CALLS_MS,
                                .durable = true,
                                .wakes = true,
                                .draw = site_drive_draw,
                                .draw_context = &site->drive_random[i],
                                .latency_ns = 40000,
                                .fail_left = UINT32_MAX};
        if (drive->bytes == NULL) return false;
        site->configs[i] = memory_drive_config(drive);
    }
    kvt_store_options *options = &site->options;
    kvt_store_options_init(options);
    options->durability.catalog_path = site->catalog;
    options->learning.profile_path = site->profile;
    options->loss.ladder = true;
    options->loss.ladder_layout = *calls_layout_of(2);
    options->loss.loss_limit = 0.05;
    options->loss.alpha_seconds = 1;
    options->learning.learn = false;
    options->seed = site->seed;
    options->limits.tick_seconds = 0.01;
    options->limits.staging_bytes = 6 << 20;
    options->limits.put_staging_bytes = 512 << 10;
    options->durability.close_deadline_seconds = 2;
    options->tiers[KVT_TIER_HBM].capacity_bytes = 512 << 10;
    options->tiers[KVT_TIER_HBM].emulated = true;
    options->tiers[KVT_TIER_DRAM].capacity_bytes = 1 << 20;
    options->tiers[KVT_TIER_SSD] = (kvt_tier_options){.devices = site->configs,
                                                      .device_count = CALLS_DRIVES,
                                                      .unit_bytes = 8192,
                                                      .rebalance_bytes_per_s = 32000000};
    site->history = history_make(CALLS_KEYS);
    return site->history != NULL;
}

void calls_site_open(calls_site *site)
{
    char message[256] = "";
    kvt_status status = kvt_store_open(&site->options, &site->store, message, sizeof message);
    if (status != KVT_OK) {
        fprintf(stderr, "open: %s\n", message);
        calls_violate(site, CALLS_KEYS, "an open failed", status);
    }
    for (int i = 0; i < CALLS_SHARED_QUEUES; i++)
        if (kvt_queue_open(site->store, NULL, &site->shared[i]) != KVT_OK)
            calls_violate(site, CALLS_KEYS, "a queue cannot be opened", i);
    atomic_fetch_add(&site->counts.lives, 1);
}

void calls_site_count(calls_site *site)
{
    kvt_store_stats stats = {.struct_size = sizeof stats};
    calls_counts *counts = &site->counts;
    if (kvt_store_stats_get(site->store, &stats) != KVT_OK)
        calls_violate(site, CALLS_KEYS, "no statistics", 0);
    atomic_fetch_add(&counts->quarantined, stats.quarantined);
    atomic_fetch_add(&counts->readmitted, stats.readmitted);
    atomic_fetch_add(&counts->promotions, stats.promotions);
    atomic_fetch_add(&counts->demotions, stats.demotions);
    atomic_fetch_add(&counts->evictions, stats.evictions);
    atomic_fetch_add(&counts->aborted, stats.moves.aborted);
    atomic_fetch_add(&counts->shared_reads, stats.shared_reads);
    atomic_fetch_add(&counts->load_failures, stats.load_failures);
    atomic_fetch_add(&counts->expired, stats.expired);
}

/* What is held now; 0: nothing. Says what, when it is asked to. */
static uint64_t site_held(calls_site *site, bool says)
{
    kvt_store_stats stats = {.struct_size = sizeof stats};
    if (kvt_store_stats_get(site->store, &stats) != KVT_OK) return UINT64_MAX;
    const uint64_t held[] = {stats.policy.moves_in_flight,
                             stats.staging_bytes,
                             stats.puts_waiting,
                             stats.put_staging_bytes,
                             stats.copies.count,
                             stats.tiers[KVT_TIER_HBM].used_bytes,
                             stats.tiers[KVT_TIER_DRAM].used_bytes,
                             stats.tiers[KVT_TIER_SSD].used_bytes,
                             stats.policy.used_bytes[KVT_TIER_HBM],
                             stats.policy.used_bytes[KVT_TIER_DRAM],
                             stats.policy.used_bytes[KVT_TIER_SSD],
                             stats.leases.leases,
                             stats.leases.entries};
    static const char *const names[] = {
        "moves in flight", "staging",       "puts waiting", "put staging",
        "copies",          "HBM",           "DRAM",         "SSD",
        "policy's HBM",    "policy's DRAM", "policy's SSD", "leases",
        "leased entries"};
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++) {
        sum += held[i];
        if (says && held[i] != 0)
            fprintf(stderr, "held: %s %llu\n", names[i], (unsigned long long)held[i]);
    }
    return sum;
}

void calls_site_empty(calls_site *site)
{
    for (uint32_t tries = 0;; tries++) {
        for (uint32_t number = 0; number < CALLS_KEYS; number++) {
            kvt_key key = calls_key_of(number);
            uint64_t call = base_clock_ns();
            kvt_status status = kvt_store_delete(site->store, &key);
            if (status == KVT_OK || status == KVT_MISS)
                history_removed(site->history, number, call, base_clock_ns());
        }
        (void)!kvt_store_flush(site->store);
        if (site_held(site, false) == 0) return;
        if (tries == SITE_TRIES) break;
        base_sleep(10 * CALLS_MS);
    }
    uint64_t held = site_held(site, true);
    calls_violate(site, CALLS_KEYS, "all is deleted, and something is held", (int64_t)held);
}

void calls_site_remove(calls_site *site)
{
    char command[128];
    for (int i = 0; i < CALLS_DRIVES; i++)
        free(site->drives[i].bytes);
    history_free(site->history);
    snprintf(command, sizeof command, "rm -rf '%s'", site->folder);
    if (system(command) != 0) fprintf(stderr, "cannot remove %s\n", site->folder);
}

/* ---- the operator ---- */

static bool site_serves(calls_site *site, uint32_t index)
{
    kvt_device_stats stats = {.struct_size = sizeof stats};
    for (size_t i = 0; kvt_device_stats_get(site->store, i, &stats) == KVT_OK; i++)
        if (strcmp(stats.name, site->drives[index].name) == 0)
            return stats.state == KVT_DEVICE_SERVING;
    return false;
}

/* Ends all orders of a drive, and brings it back. */
static void site_mend_drive(calls_site *site, uint32_t index)
{
    memory_drive *drive = &site->drives[index];
    char message[256] = "";
    kvt_status status = KVT_OK;
    drive->gone = false;
    drive->full = false;
    drive->fail_one_in = 0;
    drive->silent_until_ns = 0;
    for (uint32_t tries = 0; !site_serves(site, index); tries++) {
        if (tries == SITE_TRIES) {
            fprintf(stderr, "%s: %s\n", drive->name, message);
            calls_violate(site, CALLS_KEYS, "a drive cannot be brought back", status);
        }
        (void)!kvt_device_change(site->store, drive->name, KVT_DEVICE_SERVE);
        if (site_serves(site, index)) break;
        status = kvt_device_add(site->store, KVT_TIER_SSD, &site->configs[index], message,
                                sizeof message);
        if (status != KVT_OK) base_sleep(10 * CALLS_MS);
    }
}

void calls_site_mend(calls_site *site)
{
    for (uint32_t i = 0; i < CALLS_DRIVES; i++)
        site_mend_drive(site, i);
}

static void site_change(calls_site *site, uint32_t index, kvt_device_action action)
{
    (void)!kvt_device_change(site->store, site->drives[index].name, action);
}

static void site_disturb(calls_thread *self, uint32_t index)
{
    calls_site *site = self->site;
    memory_drive *drive = &site->drives[index];
    uint64_t pause_ns = (5 + calls_draw(self, 80)) * CALLS_MS;
    switch (calls_draw(self, 16)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4: drive->gone = true; break;
    case 5:
    case 6:
    case 7: drive->fail_one_in = 2 + calls_draw(self, 12); break;
    case 8:
    case 9: drive->silent_until_ns = base_clock_ns() + pause_ns; break;
    case 10:
        pause_ns += drive->timeout_ns;
        drive->silent_until_ns = base_clock_ns() + pause_ns;
        break;
    case 11: drive->full = true; break;
    case 12:
    case 13: site_change(site, index, KVT_DEVICE_DRAIN); break;
    case 14: site_change(site, index, KVT_DEVICE_RETIRE); break;
    default:
        site_change(site, index, KVT_DEVICE_RETIRE);
        base_sleep(pause_ns);
        site_change(site, index, KVT_DEVICE_REMOVE);
    }
    base_sleep(pause_ns);
}

void *calls_operator_main(void *argument)
{
    calls_site *site = argument;
    calls_thread self = {.site = site, .random = site->seed ^ (site->counts.lives << 32)};
    while (!site->stop) {
        uint32_t index = calls_draw(&self, CALLS_DRIVES);
        atomic_fetch_add(&site->faults, 1);
        site_disturb(&self, index);
        site_mend_drive(site, index);
        atomic_fetch_add(&site->faults, 1);
        atomic_fetch_add(&site->counts.device_changes, 1);
        base_sleep((10 + calls_draw(&self, 100)) * CALLS_MS);
    }
    return NULL;
}
