/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expected_life.c - one life of a store: open, look at every key, work with many threads, close.
 * The process may be killed at any instant; what it may say to the parent is in the model alone.
 */
#include "expected.h"
#include "stand_in.h"

#include "fault_device.h"
#include "store/core/store.h"

#include <kvterrace/lookup.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* One SSD member: its file, and the wrapper that injects faults while there is one. */
typedef struct life_member {
    char name[16];
    char path[240];
    kvt_device_config plain;
    kvt_device *faulty;
    stand_in stand_in;
} life_member;

typedef struct life_site {
    const expected_series *series;
    const expected_life *life;
    expected_model *model;
    expected_totals *totals;
    life_member members[EXPECTED_MEMBERS_MAX];
    kvt_device_config devices[EXPECTED_MEMBERS_MAX];
    kvt_device_config dram;
    kvt_store_options options;
    char catalog[240];
    kvt_store *store;
    atomic_bool go;
} life_site;

typedef struct life_thread {
    life_site *site;
    uint32_t number;
    uint64_t random;
    pthread_t thread;
} life_thread;

/* ---- devices ---- */

static kvt_status life_open_faulty(const kvt_device_config *config, kvt_device **device_out,
                                   char *message, size_t message_size)
{
    life_member *member = stand_in_context(config);
    kvt_device *inner;
    kvt_status status = kvt_device_open(&member->plain, &inner, message, message_size);
    if (status != KVT_OK) return status;
    status = tiers_fault_open(inner, device_out);
    if (status == KVT_OK) member->faulty = *device_out;
    return status;
}

static const kvt_device_ops life_faulty_ops = {.struct_size = sizeof life_faulty_ops,
                                               .abi_version = KVT_DEVICE_ABI,
                                               .name = "torture-faulty",
                                               .open = life_open_faulty};

/* Opens as above, with one fault ahead in every member. */
static kvt_status life_open_failing(const kvt_device_config *config, kvt_device **device_out,
                                    char *message, size_t message_size);

static const kvt_device_ops life_failing_ops = {.struct_size = sizeof life_failing_ops,
                                                .abi_version = KVT_DEVICE_ABI,
                                                .name = "torture-failing",
                                                .open = life_open_failing};

static uint32_t life_open_skip;

static kvt_status life_open_failing(const kvt_device_config *config, kvt_device **device_out,
                                    char *message, size_t message_size)
{
    kvt_status status = life_open_faulty(config, device_out, message, message_size);
    const tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                                   .kinds = TIERS_FAULT_WRITES | TIERS_FAULT_SYNCS,
                                   .skip = life_open_skip,
                                   .hits = 1,
                                   .status = KVT_E_IO,
                                   .os_error = EIO};
    if (status == KVT_OK) (void)!tiers_fault_add(*device_out, &rule);
    return status;
}

static void life_fill_member(life_site *site, uint32_t index)
{
    const expected_series *series = site->series;
    life_member *member = &site->members[index];
    snprintf(member->name, sizeof member->name, "m%u", index);
    snprintf(member->path, sizeof member->path, "%s/m%u", series->folder, index);
    member->plain = (kvt_device_config){.struct_size = sizeof member->plain,
                                        .name = member->name,
                                        .backend = "file",
                                        .path = member->path,
                                        .capacity_bytes = series->member_bytes,
                                        .sparse = series->sparse,
                                        .synchronous = (series->synchronous_members >> index & 1),
                                        .timeout_ns = UINT64_MAX};
    if (series->encrypted) member->plain.key_command = EXPECTED_SEAL_KEY;
    site->devices[index] = member->plain;
    if (!site->life->faults && !site->life->open_fault) return;
    site->devices[index].key_command = NULL; /* the device behind the stand-in has it */
    const kvt_device_ops *ops = site->life->faults ? &life_faulty_ops : &life_failing_ops;
    site->devices[index].backend = stand_in_set(&member->stand_in, ops, member);
}

static void life_fill_options(life_site *site)
{
    const expected_series *series = site->series;
    kvt_store_options *options = &site->options;
    kvt_store_options_init(options);
    options->limits.put_staging_bytes = 0; /* a put says how its write went */
    snprintf(site->catalog, sizeof site->catalog, "%s/catalog.db", series->folder);
    options->durability.catalog_path = site->catalog;
    options->policy = series->policy;
    options->variant = series->variant;
    if (series->lossy) expected_use_ladder(series, site->life->seed, options);
    options->holes = series->holes;
    options->limits.staging_bytes = 8 << 20;
    options->limits.tick_seconds = series->tick_seconds;
    options->seed = series->seed;
    options->learning.learn_seconds = 0.02;
    life_open_skip = site->life->skip;
    for (uint32_t i = 0; i < EXPECTED_MEMBERS_MAX; i++)
        life_fill_member(site, i);
    options->tiers[KVT_TIER_SSD] =
        (kvt_tier_options){.devices = site->devices,
                           .device_count = atomic_load(&site->model->members),
                           .unit_bytes = series->unit_bytes,
                           .rebalance_bytes_per_s = 32000000};
    options->tiers[KVT_TIER_DRAM].capacity_bytes = series->dram_bytes;
    options->tiers[KVT_TIER_DRAM].unit_bytes = series->unit_bytes;
}

/* ---- what threads do ---- */

static void life_match(life_thread *self, kvt_store *store)
{
    kvt_key keys[4];
    size_t matched = 0;
    uint32_t root = (uint32_t)(expected_random(&self->random) % (EXPECTED_KEYS / 4)) * 4;
    for (uint32_t i = 0; i < 4; i++)
        keys[i] = expected_key_of(root + i);
    if (kvt_store_match(store, keys, 4, NULL, &matched) != KVT_OK || matched > 4)
        expected_report(&self->site->totals->odd, "ODD: match_prefix: %zu", matched);
}

/* Another open of the same store is refused, and costs nothing. */
static void life_open_again(life_thread *self)
{
    life_site *site = self->site;
    kvt_store_options options = site->options;
    kvt_device_config devices[EXPECTED_MEMBERS_MAX];
    kvt_store *second = NULL;
    char message[256];
    for (uint32_t i = 0; i < EXPECTED_MEMBERS_MAX; i++)
        devices[i] = site->members[i].plain;
    options.tiers[KVT_TIER_SSD].devices = devices;
    kvt_status status = kvt_store_open(&options, &second, message, sizeof message);
    atomic_fetch_add(&site->totals->opens_refused, 1);
    if (status == KVT_OK) {
        expected_report(&site->totals->odd, "ODD: one catalog is open twice");
        kvt_store_close(second);
    }
}

/* Out and in again, or drained and served again, or one device more. */
static void life_change_device(life_thread *self, kvt_store *store)
{
    life_site *site = self->site;
    uint32_t count = atomic_load(&site->model->members);
    uint32_t index = (uint32_t)(expected_random(&self->random) % count);
    const char *name = site->members[index].name;
    char message[256];
    uint64_t choice = expected_random(&self->random) % 8;
    atomic_fetch_add(&site->totals->device_changes, 1);
    if (choice < 3) {
        (void)!kvt_device_change(store, name, KVT_DEVICE_DRAIN);
        for (int i = 0; i < 3; i++)
            (void)!kvt_store_maintain(store, NULL);
        (void)!kvt_device_change(store, name, KVT_DEVICE_SERVE);
    } else if (choice < 7) {
        atomic_fetch_add(&site->model->devices_out, 1);
        atomic_fetch_add(&site->model->retirements, 1);
        kvt_status status = kvt_device_change(store, name, KVT_DEVICE_RETIRE);
        if (choice == 6 && status == KVT_OK)
            (void)!kvt_device_change(store, name, KVT_DEVICE_REMOVE);
        for (int i = 0; i < 20; i++) {
            status =
                kvt_device_add(store, KVT_TIER_SSD, &site->devices[index], message, sizeof message);
            if (status != KVT_BUSY) break;
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        }
        if (status == KVT_OK || status == KVT_E_STATE) {
            atomic_fetch_sub(&site->model->devices_out, 1);
        } else if (status != KVT_BUSY && !site->life->faults && !site->life->open_fault) {
            /* A device that is added is opened, too, and may meet the fault of an open. */
            expected_report(&site->totals->odd, "ODD: device add of %s: %s: %s", name,
                            kvt_status_name(status), message);
        }
    } else if (count < EXPECTED_MEMBERS_MAX) {
        /* From now on an open names it: it is in the catalog as soon as the call has come so far.
         */
        atomic_store(&site->model->members, count + 1);
        (void)!kvt_device_add(store, KVT_TIER_SSD, &site->devices[count], message, sizeof message);
    }
}

static void life_count_faults(life_site *site)
{
    for (uint32_t i = 0; i < atomic_load(&site->model->members); i++) {
        tiers_fault_counts counts;
        if (site->members[i].faulty == NULL) continue;
        tiers_fault_counts_get(site->members[i].faulty, &counts);
        static uint64_t seen[EXPECTED_MEMBERS_MAX];
        if (counts.hits > seen[i])
            atomic_fetch_add(&site->totals->faults, (unsigned)(counts.hits - seen[i]));
        seen[i] = counts.hits;
    }
}

/* No fault here touches a stored byte: writes and syncs fail, are cut short, wait, find no room. */
static void life_change_faults(life_thread *self)
{
    life_site *site = self->site;
    uint32_t index =
        (uint32_t)(expected_random(&self->random) % atomic_load(&site->model->members));
    kvt_device *device = site->members[index].faulty;
    if (device == NULL) return;
    uint64_t choice = expected_random(&self->random) % 8;
    tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                             .kinds = TIERS_FAULT_WRITES,
                             .skip = expected_random(&self->random) % 8,
                             .hits = 1 + expected_random(&self->random) % 6,
                             .status = KVT_E_IO,
                             .os_error = EIO};
    if (choice == 0 || choice == 1) {
        rule.status = KVT_E_SPACE;
        rule.os_error = ENOSPC;
        rule.hits = 20;
    } else if (choice == 2) {
        rule.action = TIERS_FAULT_TEAR;
        rule.torn_bytes = 4096;
    } else if (choice == 3) {
        rule.action = TIERS_FAULT_BUSY;
        rule.kinds = TIERS_FAULT_WRITES | TIERS_FAULT_READS;
    } else if (choice == 4 && expected_random(&self->random) % 4 == 0) {
        rule.kinds = TIERS_FAULT_SYNCS;
        rule.hits = 1;
    }
    life_count_faults(site);
    tiers_fault_clear(device);
    if (choice != 7) (void)!tiers_fault_add(device, &rule);
}

static void life_step(life_thread *self, kvt_store *store)
{
    life_site *site = self->site;
    uint32_t threads = site->series->threads;
    uint64_t choice = expected_random(&self->random) % 1000;
    if (self->number == 0 && site->life->change_devices && choice % 8 == 0) choice = 990;
    if (self->number == 2 && site->life->change_basis && choice % 8 < 2) choice = 990 + choice % 2;
    uint32_t any = (uint32_t)(expected_random(&self->random) % EXPECTED_KEYS);
    uint32_t own = any - any % threads + self->number;
    if (own >= EXPECTED_KEYS) own = self->number;
    kvt_key key = expected_key_of(any);
    if (choice < 400) {
        (void)expected_get(store, any);
    } else if (choice < 650) {
        expected_put(store, own);
    } else if (choice < 720) {
        expected_delete(store, own);
        if (choice < 690) expected_put(store, own);
    } else if (choice < 800) {
        (void)!kvt_store_exists(store, &key);
    } else if (choice < 860) {
        life_match(self, store);
    } else if (choice < 920 || (choice < 960 && self->number % 4 < 2)) {
        expected_flush(store);
    } else if (choice < 960) {
        expected_persist(store);
    } else if (choice < 975) {
        (void)!kvt_store_maintain(store, NULL);
    } else if (choice < 985) {
        kvt_store_stats stats = {.struct_size = sizeof stats};
        kvt_explanation explanation = {.struct_size = sizeof explanation};
        (void)!kvt_store_stats_get(store, &stats);
        (void)!kvt_store_explain(store, &key, &explanation);
    } else if (self->number == 0 && choice < 995) {
        life_change_device(self, store);
    } else if (self->number == 1 && choice == 995) {
        life_open_again(self);
    } else if (self->number == 2) {
        expected_change_basis(site->model, site->totals, store, choice % 2 == 0);
    }
    if (self->number == 0 && site->life->faults && choice % 8 == 0) life_change_faults(self);
}

static void *life_run_thread(void *argument)
{
    life_thread *self = argument;
    kvt_queue *queue = NULL;
    /* Every other thread uses the queue's door; who is killed has requests in flight there. */
    if (self->number % 2 == 1 && kvt_queue_open(self->site->store, NULL, &queue) != KVT_OK)
        expected_report(&self->site->totals->odd, "ODD: a queue cannot be opened");
    expected_use_queue(queue);
    while (!atomic_load(&self->site->model->stop))
        life_step(self, self->site->store);
    kvt_queue_close(queue);
    return NULL;
}

/* ---- the life ---- */

static uint32_t life_clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint32_t)((uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000);
}

static void life_open(life_site *site)
{
    expected_model *model = site->model;
    expected_totals *totals = site->totals;
    uint32_t started = life_clock_us();
    kvt_status status =
        kvt_store_open(&site->options, &site->store, model->message, sizeof model->message);
    atomic_store(&model->status, status);
    if (status != KVT_OK)
        _exit(site->life->open_fault ? EXPECTED_EXIT_REFUSED : EXPECTED_EXIT_OPEN);
    tiers_pool_set_striping(site->store->pools[KVT_TIER_SSD], site->series->striping);
    uint32_t index = atomic_fetch_add(&totals->time_count, 1);
    if (index < EXPECTED_TIMES) totals->reopen_us[index] = life_clock_us() - started;
}

/* A thread of the store must not be left when the process ends itself. */
static void life_work(life_site *site)
{
    life_thread threads[EXPECTED_THREADS_MAX];
    uint64_t random = site->life->seed;
    for (uint32_t i = 0; i < site->series->threads; i++) {
        threads[i] = (life_thread){.site = site, .number = i, .random = expected_random(&random)};
        if (pthread_create(&threads[i].thread, NULL, life_run_thread, &threads[i]) != 0) abort();
    }
    for (uint32_t i = 0; i < site->series->threads; i++)
        pthread_join(threads[i].thread, NULL);
}

_Noreturn void expected_run_life(const expected_series *series, const expected_life *life,
                                 expected_model *model, expected_totals *totals, int say, int hear)
{
    static life_site site;
    char answer = 0;
    site = (life_site){.series = series, .life = life, .model = model, .totals = totals};
    expected_attach(model, totals);
    expected_lossy = series->lossy;
    expected_begin_life(model);
    life_fill_options(&site);
    life_open(&site);
    kvt_store_stats stats = {.struct_size = sizeof stats};
    if (kvt_store_stats_get(site.store, &stats) == KVT_OK && stats.recovery_drops != 0)
        expected_report(&totals->odd, "ODD: the open dropped %llu rows, took over %llu",
                        (unsigned long long)stats.recovery_drops,
                        (unsigned long long)stats.recovered);
    /* A fault that the open did not come to has no place in what follows. */
    for (uint32_t i = 0; i < EXPECTED_MEMBERS_MAX && life->open_fault; i++) {
        life_count_faults(&site);
        if (site.members[i].faulty != NULL) tiers_fault_clear(site.members[i].faulty);
    }
    for (uint32_t i = 0; i < EXPECTED_KEYS; i++)
        expected_look(site.store, i);
    expected_look_at_basis(model, site.store);
    if (write(say, "V", 1) != 1 || read(hear, &answer, 1) != 1) _exit(12);
    life_work(&site);
    if (life->faults) life_count_faults(&site);
    kvt_store_close(site.store);
    expected_note_close();
    _exit(0);
}
