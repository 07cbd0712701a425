/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_store.c - see schedule_store.h.
 *
 * A run has two lives of a store. In each, callers put, get, delete and persist while an operator
 * lets disks fail, fall silent, drain, go and come back. A key has one caller that puts and deletes
 * it; all get. Each put has a version of its own, which the bytes tell. What is judged:
 *
 *     a get gives the bytes of one put of that key, which had been accepted or was under way, and
 *     which no delete had removed that returned before the get began; else it is a miss
 *     nothing fails to load while no disk was told to fail
 *     what is read when persist has said that all is on SSD is there in the next life, unless an
 *     entry moved in between
 *     when all keys are deleted no tier, ledger or staging holds a byte
 *     everything ends (schedule.h)
 */
#include "schedule_run.h"

#include "base/clock.h"
#include "codecs/codecs.h"
#include "expected.h"
#include "schedule.h"
#include "store/core/store.h"
#include "store/learn/costs.h"

#include <kvterrace/lookup.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- figures in place of measurements at open ---- */

extern __typeof__(costs_probe_device) __wrap_costs_probe_device;
extern __typeof__(costs_measure_variant) __wrap_costs_measure_variant;
extern __typeof__(kvt_record_encode_parallel) __real_kvt_record_encode_parallel,
    __wrap_kvt_record_encode_parallel;
extern __typeof__(kvt_record_decode_parallel) __real_kvt_record_decode_parallel,
    __wrap_kvt_record_decode_parallel;

extern __typeof__(codecs_arriving_steps) __real_codecs_arriving_steps, __wrap_codecs_arriving_steps;
extern __typeof__(tiers_piece_bytes) __wrap_tiers_piece_bytes;

/* Records of the runs are small: they are decoded as they come all the same, in small pieces. */
uint32_t __wrap_codecs_arriving_steps(const kvt_layout *of, kvt_variant variant,
                                      uint64_t record_bytes)
{
    kvt_layout large = *of;
    large.tokens += 1 << 16;
    return __real_codecs_arriving_steps(&large, variant, record_bytes << 8);
}

uint64_t __wrap_tiers_piece_bytes(uint64_t bytes)
{
    return (bytes / 4 + 4095) / 4096 * 4096;
}

kvt_status __wrap_costs_probe_device(kvt_device *device, bool blank, uint64_t head_bytes,
                                     cost_device *out)
{
    (void)blank;
    (void)head_bytes;
    bool durable = (device->facts.flags & KVT_DEVICE_DURABLE) != 0;
    kvt_affine affine = {.request_seconds = durable ? 1e-3 : 1e-5,
                         .bytes_per_s = durable ? 5e7 : 5e9};
    *out = (cost_device){.read = affine, .write = affine, .probed = true};
    return KVT_OK;
}

kvt_status __wrap_costs_measure_variant(const cost_profile *profile, kvt_variant variant,
                                        kvt_codec_curve *out)
{
    (void)profile;
    bool raw = variant.codec == KVT_CODEC_RAW;
    *out = (kvt_codec_curve){.variant = variant,
                             .stored_share = raw ? 1.01 : 0.8,
                             .encode_bytes_per_s = raw ? 4e9 : 4e8,
                             .decode_bytes_per_s = raw ? 8e9 : 8e8};
    return KVT_OK;
}

kvt_status __wrap_kvt_record_encode_parallel(const kvt_record_spec *spec,
                                             const kvt_codec_extras *extras,
                                             const kvt_codec_workers *workers, const void *source,
                                             uint64_t source_bytes, void *record, uint64_t capacity,
                                             void *scratch, uint64_t scratch_bytes,
                                             uint64_t *record_bytes_out)
{
    schedule_step(source_bytes);
    kvt_status status =
        __real_kvt_record_encode_parallel(spec, extras, workers, source, source_bytes, record,
                                          capacity, scratch, scratch_bytes, record_bytes_out);
    schedule_step(0);
    return status;
}

kvt_status __wrap_kvt_record_decode_parallel(const void *record, uint64_t bytes,
                                             const kvt_record_spec *expected,
                                             const kvt_codec_workers *workers, void *target,
                                             uint64_t target_bytes, void *scratch,
                                             uint64_t scratch_bytes)
{
    schedule_step(target_bytes);
    kvt_status status = __real_kvt_record_decode_parallel(record, bytes, expected, workers, target,
                                                          target_bytes, scratch, scratch_bytes);
    schedule_step(0);
    return status;
}

/* ---- the model ---- */

uint32_t run_draw(run_site *site, uint32_t below)
{
    return (uint32_t)((expected_random(&site->random) >> 32) * below >> 32);
}

_Noreturn void run_complain(const char *what, uint64_t a, uint64_t b)
{
    char text[160];
    snprintf(text, sizeof text, "%s (%llu, %llu)", what, (unsigned long long)a,
             (unsigned long long)b);
    schedule_fail(text);
}

kvt_entry run_entry(uint32_t number)
{
    return (kvt_entry){.struct_size = sizeof(kvt_entry),
                       .key = expected_key_of(number),
                       .layout = expected_layout_of(number),
                       .recompute_seconds = 0.5 + number % 5};
}

/* Begins a version of a key; 0: it has had all of them. */
uint32_t run_begin_version(run_site *site, uint32_t number)
{
    run_key *key = &site->keys[number];
    if (key->begun + 1 == RUN_VERSIONS) return 0;
    uint32_t version = ++key->begun;
    key->states[version] = VERSION_BEGUN;
    return version;
}

void run_end_version(run_site *site, uint32_t number, uint32_t version, kvt_status status)
{
    run_key *key = &site->keys[number];
    key->states[version] = status == KVT_OK ? VERSION_KEPT : VERSION_REJECTED;
    site->counts.puts++;
    if (status == KVT_REFUSED) site->counts.refused++;
    if (status == KVT_BUSY) site->counts.busy++;
    if (status < 0 && status != KVT_E_SPACE && !site->faulty)
        run_complain("a put failed without a fault", number, (uint64_t)-status);
    schedule_note("put", (uint64_t)number << 32 | version, (uint64_t)(int64_t)status);
}

static void run_put(run_caller *caller, uint32_t number)
{
    run_site *site = caller->site;
    uint32_t version = run_begin_version(site, number);
    if (version == 0) return;
    expected_fill(number, version, caller->data);
    const kvt_entry entry = run_entry(number);
    kvt_status status =
        kvt_store_put(site->store, &entry, KVT_PACKED(caller->data, expected_bytes_of(number)));
    memset(caller->data, 0xdd, expected_bytes_of(number));
    run_end_version(site, number, version, status);
}

void run_check_value(const run_caller *caller, uint32_t number, const run_key *before)
{
    const run_key *key = &caller->site->keys[number];
    uint32_t version = expected_version_of(caller->data);
    if (version == 0 || version > key->begun)
        run_complain("a get gave bytes of no version", number, version);
    if (memcmp(caller->data, caller->expected, expected_bytes_of(number)) != 0)
        run_complain("a get gave wrong bytes", number, version);
    if (version <= before->deleted)
        run_complain("a get gave what had been deleted", number, version);
    if (before->states[version] == VERSION_REJECTED)
        run_complain("a get gave what a put had not kept", number, version);
}

/* The version that it gave; 0: a miss. */
static uint32_t run_get(run_caller *caller, uint32_t number, uint64_t patience_ns)
{
    run_site *site = caller->site;
    const run_key before = site->keys[number];
    const kvt_key key = expected_key_of(number);
    kvt_get_info info = {.struct_size = sizeof info};
    uint64_t bytes = expected_bytes_of(number);
    kvt_status status = patience_ns == 0
                            ? kvt_store_get(site->store, &key, KVT_PACKED(caller->data, bytes),
                                            KVT_STORE_DEADLINE, &info)
                            : kvt_store_get(site->store, &key, KVT_PACKED(caller->data, bytes),
                                            base_clock_ns() + patience_ns, &info);
    if (status == KVT_OK) {
        expected_fill(number, expected_version_of(caller->data), caller->expected);
        run_check_value(caller, number, &before);
    } else if (status != KVT_MISS && (status != KVT_E_MEMORY || !site->faulty)) {
        run_complain("a get ended with", number, (uint64_t)-status);
    }
    schedule_note("get", number, (uint64_t)(int64_t)status);
    return status == KVT_OK ? expected_version_of(caller->data) : 0;
}

void run_end_delete(run_site *site, uint32_t number, uint32_t newest, kvt_status status)
{
    if (status == KVT_OK || status == KVT_MISS)
        site->keys[number].deleted = newest;
    else if (!site->faulty)
        run_complain("a delete failed without a fault", number, (uint64_t)-status);
    schedule_note("delete", number, (uint64_t)(int64_t)status);
}

static void run_delete(run_site *site, uint32_t number)
{
    const kvt_key key = expected_key_of(number);
    uint32_t newest = site->keys[number].begun;
    run_end_delete(site, number, newest, kvt_store_delete(site->store, &key));
}

/* ---- callers ---- */

static void run_look(run_caller *caller, uint32_t number)
{
    run_site *site = caller->site;
    kvt_key keys[3];
    double seconds[3];
    size_t matched;
    kvt_explanation explanation = {.struct_size = sizeof explanation};
    kvt_store_stats stats = {.struct_size = sizeof stats};
    for (uint32_t i = 0; i < 3; i++)
        keys[i] = expected_key_of((number + i) % RUN_KEYS);
    (void)!kvt_store_exists(site->store, &keys[0]);
    (void)!kvt_store_match(site->store, keys, 3, NULL, &matched);
    (void)!kvt_store_match(site->store, keys, 3, KVT_MATCH(.load_seconds = seconds), NULL);
    (void)!kvt_store_explain(site->store, &keys[0], &explanation);
    (void)!kvt_store_stats_get(site->store, &stats);
}

/* Deletions that had returned before a flush are durable after it. */
static kvt_status run_flush(run_site *site)
{
    uint32_t deleted[RUN_KEYS];
    for (uint32_t i = 0; i < RUN_KEYS; i++)
        deleted[i] = site->keys[i].deleted;
    kvt_status status = kvt_store_flush(site->store);
    for (uint32_t i = 0; status == KVT_OK && i < RUN_KEYS; i++)
        if (deleted[i] > site->keys[i].flushed) site->keys[i].flushed = deleted[i];
    return status;
}

static void run_keep(run_site *site, uint32_t kind)
{
    kvt_status status = KVT_OK;
    if (kind == 0) status = run_flush(site);
    if (kind == 1)
        status =
            kvt_store_persist(site->store, base_clock_ns() + run_draw(site, 200) * RUN_MS, NULL);
    if (kind == 2) status = kvt_store_maintain(site->store, NULL);
    bool usual = status >= 0 || status == KVT_E_TIMEOUT || status == KVT_E_UNSUPPORTED ||
                 status == KVT_E_SPACE;
    if (!usual && !site->faulty)
        run_complain("flush, persist or maintain failed without a fault", kind, (uint64_t)-status);
    schedule_note("keep", kind, (uint64_t)(int64_t)status);
}

static void run_call(run_caller *caller)
{
    run_site *site = caller->site;
    uint32_t number = run_draw(site, run_draw(site, 2) == 0 ? RUN_HOT_KEYS : RUN_KEYS);
    uint32_t kind = run_draw(site, 100);
    uint32_t own = number - number % RUN_CALLERS + caller->number;
    if (caller->queue != NULL && kind % 2 == 0)
        run_batch(caller, own);
    else if (kind < 25)
        run_put(caller, own);
    else if (kind < 65)
        (void)run_get(caller, number, 0);
    else if (kind < 77)
        (void)run_get(caller, number, 1 + run_draw(site, 6000000));
    else if (kind < 82)
        run_delete(site, own);
    else if (kind < 86)
        run_look(caller, number);
    else
        run_keep(site, kind % 3);
}

static void *run_caller_main(void *argument)
{
    run_caller *caller = argument;
    const kvt_queue_options options = {.struct_size = sizeof options, .threads = 1, .depth = 8};
    if (run_draw(caller->site, 2) == 0 &&
        kvt_queue_open(caller->site->store, &options, &caller->queue) != KVT_OK)
        run_complain("a queue cannot be opened", caller->number, 0);
    for (uint32_t i = 0; i < RUN_CALLS; i++) {
        if (run_draw(caller->site, 3) == 0) base_sleep(run_draw(caller->site, 30) * RUN_MS);
        run_call(caller);
    }
    kvt_queue_close(caller->queue);
    caller->queue = NULL;
    return NULL;
}

/* ---- the operator ---- */

static kvt_tier run_tier(const run_site *site, uint32_t disk)
{
    if (disk == 0) return KVT_TIER_DRAM;
    return site->disks[disk].durable ? KVT_TIER_SSD : KVT_TIER_HBM;
}

static void run_add(run_site *site, uint32_t disk)
{
    char message[256];
    kvt_status status = kvt_device_add(site->store, run_tier(site, disk), &site->configs[disk],
                                       message, sizeof message);
    if (status == KVT_OK) site->counts.device_changes++;
    schedule_note("add", disk, (uint64_t)(int64_t)status);
}

static void run_change(run_site *site, uint32_t disk, kvt_device_action action)
{
    kvt_status status = kvt_device_change(site->store, site->disks[disk].name, action);
    if (status == KVT_OK) site->counts.device_changes++;
    schedule_note("change", (uint64_t)disk << 8 | action, (uint64_t)(int64_t)status);
}

static void run_operate(run_site *site)
{
    uint32_t at = run_draw(site, site->disk_count);
    memory_drive *disk = &site->disks[at];
    uint64_t pause_ns = (5 + run_draw(site, 60)) * RUN_MS;
    switch (run_draw(site, 6)) {
    case 0:
    case 1:
        disk->fail_one_in = 1 + run_draw(site, 12);
        disk->fail_left = 1 + run_draw(site, 5);
        break;
    case 2: /* falls silent; half of the time for longer than its limit */
        pause_ns += run_draw(site, 2) * 4000 * RUN_MS;
        disk->silent_until_ns = base_clock_ns() + pause_ns;
        base_sleep(pause_ns);
        run_add(site, at);
        break;
    case 3:
        disk->gone = true;
        base_sleep(pause_ns);
        disk->gone = false;
        run_add(site, at);
        break;
    case 4:
        run_change(site, at, KVT_DEVICE_DRAIN);
        base_sleep(pause_ns);
        run_change(site, at, run_draw(site, 2) == 0 ? KVT_DEVICE_SERVE : KVT_DEVICE_REMOVE);
        run_add(site, at);
        break;
    default:
        run_change(site, at, KVT_DEVICE_RETIRE);
        base_sleep(pause_ns);
        run_add(site, at);
        break;
    }
    base_sleep(pause_ns);
}

static void *run_operator_main(void *argument)
{
    run_site *site = argument;
    uint32_t rounds = 1 + run_draw(site, 5);
    base_sleep(run_draw(site, 60) * RUN_MS);
    for (uint32_t i = 0; i < rounds; i++)
        run_operate(site);
    return NULL;
}

static bool run_serves(run_site *site, uint32_t disk)
{
    kvt_device_stats stats = {.struct_size = sizeof stats};
    for (size_t i = 0; kvt_device_stats_get(site->store, i, &stats) == KVT_OK; i++)
        if (strcmp(stats.name, site->disks[disk].name) == 0)
            return stats.state == KVT_DEVICE_SERVING;
    return false;
}

/* All disks work again. */
static void run_mend(run_site *site)
{
    for (uint32_t i = 0; i < site->disk_count; i++) {
        memory_drive *disk = &site->disks[i];
        disk->fail_one_in = 0;
        disk->gone = false;
        while (base_clock_ns() < disk->silent_until_ns)
            base_sleep(10 * RUN_MS);
        for (uint32_t tries = 0; !run_serves(site, i) && tries < RUN_TRIES; tries++) {
            (void)!kvt_device_change(site->store, disk->name, KVT_DEVICE_SERVE);
            if (!run_serves(site, i)) run_add(site, i);
            (void)!kvt_store_maintain(site->store,
                                      NULL); /* entries in motion on the disk hold it */
            base_sleep(10 * RUN_MS);
        }
        if (!run_serves(site, i)) run_complain("a disk cannot be brought back", i, 0);
    }
}

/* ---- one life ---- */

static void run_open(run_site *site)
{
    char message[256];
    site->faulty = site->faults;
    kvt_status status = kvt_store_open(&site->options, &site->store, message, sizeof message);
    schedule_note("open", 0, (uint64_t)(int64_t)status);
    if (status != KVT_OK) {
        fprintf(stderr, "open: %s\n", message);
        run_complain("open failed", (uint64_t)-status, 0);
    }
    tiers_pool_set_striping(site->store->pools[KVT_TIER_SSD], site->striping);
}

static void run_count(run_site *site)
{
    kvt_store_stats stats = {.struct_size = sizeof stats};
    schedule_counts *counts = &site->counts;
    if (kvt_store_stats_get(site->store, &stats) != KVT_OK) run_complain("no statistics", 0, 0);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        counts->hits += stats.tiers[tier].hits;
    counts->staged_hits += stats.staged_hits;
    counts->shared_reads += stats.shared_reads;
    counts->misses += stats.misses;
    counts->timeouts += stats.timeouts;
    counts->promotions += stats.promotions;
    counts->demotions += stats.demotions;
    counts->evictions += stats.evictions;
    counts->aborted += stats.moves.aborted;
    counts->copies += stats.copies.kept;
    counts->persisted += stats.persisted.records;
    counts->recovered += stats.recovered;
    counts->load_failures += stats.load_failures;
    counts->quarantined += stats.quarantined;
    counts->readmitted += stats.readmitted;
    if (site->faulty) return;
    if (stats.load_failures != 0)
        run_complain("loads failed without a fault", stats.load_failures, 0);
    if (stats.moves.failed_io != 0)
        run_complain("moves failed without a fault", stats.moves.failed_io, 0);
    if (stats.recovery_drops != 0)
        run_complain("rows were dropped at open", stats.recovery_drops, 0);
}

/* Whether anything is still held; says what when it is asked to. */
static bool run_holds(run_site *site, bool says)
{
    kvt_store_stats stats = {.struct_size = sizeof stats};
    if (kvt_store_stats_get(site->store, &stats) != KVT_OK) return true;
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
                             stats.policy.used_bytes[KVT_TIER_SSD]};
    static const char *const names[] = {"moves in flight",
                                        "staging",
                                        "puts waiting",
                                        "put staging",
                                        "copies",
                                        "HBM",
                                        "DRAM",
                                        "SSD",
                                        "HBM of the policy",
                                        "DRAM of the policy",
                                        "SSD of the policy"};
    bool any = false;
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++) {
        any = any || held[i] != 0;
        if (says && held[i] != 0)
            fprintf(stderr, "held: %s %llu\n", names[i], (unsigned long long)held[i]);
    }
    return any;
}

/* Deletes everything; then nothing may be held, once what is under way has ended. */
static void run_check_empty(run_site *site)
{
    for (uint32_t number = 0; number < RUN_KEYS; number++)
        run_delete(site, number);
    /* What is being trimmed counts as held for a while. */
    for (uint32_t tries = 0; run_holds(site, tries == RUN_TRIES); tries++) {
        if (tries == RUN_TRIES) run_complain("all is deleted, and something is held", 0, 0);
        (void)!kvt_store_flush(site->store);
        base_sleep(20 * RUN_MS);
    }
}

static void run_observe(void *context, const kvt_move *move, kvt_status outcome)
{
    run_site *site = context;
    site->moves++;
    schedule_note("move", move->id, (uint64_t)(int64_t)outcome);
}

/* Notes what the next life has to have. */
static void run_note_kept(run_site *site, run_caller *caller)
{
    kvt_persist_info info = {.struct_size = sizeof info};
    memset(site->kept, 0, sizeof site->kept);
    site->durable = false;
    if (site->options.durability.close_deadline_seconds < 1)
        return; /* a copy that made way is not renewed */
    if (kvt_store_persist(site->store, BASE_CLOCK_NEVER, &info) != KVT_OK) return;
    if (info.left != 0 || info.without_room != 0) return;
    uint64_t moves = site->moves;
    for (uint32_t number = 0; number < RUN_KEYS; number++)
        site->kept[number] = run_get(caller, number, 0);
    site->durable = kvt_store_flush(site->store) == KVT_OK && site->moves == moves;
}

static void run_check_kept(run_site *site, run_caller *caller)
{
    for (uint32_t number = 0; site->durable && number < RUN_KEYS; number++) {
        if (site->kept[number] == 0) continue;
        site->counts.outlived++;
        if (run_get(caller, number, 0) != site->kept[number])
            run_complain("an entry is lost between two lives", number, site->kept[number]);
    }
}

static void run_life(run_site *site, bool last)
{
    pthread_t threads[RUN_CALLERS + 1];
    uint32_t count = 0;
    run_caller *callers = calloc(RUN_CALLERS, sizeof *callers);
    if (callers == NULL) run_complain("no memory", 0, 0);
    run_open(site);
    callers[0].site = site;
    if (last) run_check_kept(site, &callers[0]);
    for (; count < RUN_CALLERS; count++) {
        callers[count] = (run_caller){.site = site, .number = count};
        if (pthread_create(&threads[count], NULL, run_caller_main, &callers[count]) != 0)
            run_complain("no thread", count, 0);
    }
    if (site->faults && pthread_create(&threads[count++], NULL, run_operator_main, site) != 0)
        run_complain("no thread", count, 0);
    while (count > 0)
        (void)pthread_join(threads[--count], NULL);
    if (site->faults) run_mend(site);
    bool settled = run_flush(site) == KVT_OK || run_flush(site) == KVT_OK;
    if (last)
        run_check_empty(site);
    else
        run_note_kept(site, &callers[0]);
    run_count(site);
    uint64_t moves = site->moves;
    kvt_store_close(site->store);
    if (site->moves != moves) site->durable = false;
    schedule_note("closed", last, settled);
    free(callers);
    for (uint32_t i = 0; i < RUN_KEYS && !settled; i++)
        site->keys[i].deleted = site->keys[i].flushed; /* the others may come back */
}

/* ---- one run ---- */

/* Memory that outlives the process of a life. */
static void *run_share(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    return memory;
}

/* The disks take their chance and their steps from the scheduler. */
static uint32_t run_disk_draw(void *context, uint32_t below)
{
    (void)context;
    return schedule_draw(below);
}

static void run_disk_submitted(void)
{
    schedule_step(0);
}

static void run_make_disk(run_site *site, uint32_t at, const char *name, uint64_t bytes,
                          bool durable)
{
    memory_drive *disk = &site->disks[at];
    *disk = (memory_drive){.name = name,
                           .capacity_bytes = bytes,
                           .bytes = run_share(bytes),
                           .depth = 4,
                           .request_bytes = 8192,
                           .spread = 9,
                           .timeout_ns = UINT64_C(2000000000),
                           .durable = durable,
                           .wakes = run_draw(site, 2) == 0,
                           .trims = run_draw(site, 2) == 0,
                           .draw = run_disk_draw,
                           .submitted = run_disk_submitted,
                           .latency_ns = durable ? 100000 : 2000};
    site->configs[at] = memory_drive_config(disk);
    site->configs[at].trim = disk->trims;
    if (run_draw(site, 4) == 0) site->configs[at].in_flight_bytes_max = 8192;
}

static kvt_tier_options run_tier_options(run_site *site, uint32_t first, uint32_t count)
{
    const tiers_striping striping = (tiers_striping)run_draw(site, 3);
    if (count > 1) site->striping = striping;
    return (kvt_tier_options){.devices = &site->configs[first],
                              .device_count = count,
                              .unit_bytes = 8192,
                              .rebalance_bytes_per_s = 32000000};
}

static void run_make_site(run_site *site, const schedule_try *options)
{
    site->random = options->seed ^ UINT64_C(0x5c4ed01e);
    uint32_t ssds = 1 + run_draw(site, 2), dram_kib = 96 + run_draw(site, 160);
    uint32_t ssd_kib = 192 + run_draw(site, 200);
    bool hbm = run_draw(site, 3) == 0;
    run_make_disk(site, 0, "dram", dram_kib / 4 * 4096, false);
    run_make_disk(site, 1, "ssd1", ssd_kib / 4 * 4096, true);
    if (ssds > 1) run_make_disk(site, 2, "ssd2", 200 * 1024, true);
    if (hbm) run_make_disk(site, 1 + ssds, "hbm", 80 * 1024, false);
    site->disk_count = 1 + ssds + (hbm ? 1 : 0);
    kvt_store_options *store = &site->options;
    kvt_store_options_init(store);
    bool catalog = run_draw(site, 4) != 0;
    if (catalog) store->durability.catalog_path = site->catalog;
    store->format = !catalog; /* the second life takes over what the first one labelled */
    store->policy = run_draw(site, 3) == 0 ? "lru" : "utility";
    store->limits.tick_seconds = run_draw(site, 4) == 0 ? 0 : 0.02;
    store->limits.staging_bytes = (1 + run_draw(site, 2)) * 1024 * 1024;
    store->limits.put_staging_bytes = run_draw(site, 4) == 0 ? 0 : 128 * 1024;
    store->durability.copies = run_draw(site, 4) != 0;
    store->durability.close_deadline_seconds = run_draw(site, 3) == 0 ? 0.005 : 5;
    store->observer.call = run_observe;
    store->observer.context = site;
    store->tiers[KVT_TIER_DRAM] = run_tier_options(site, 0, 1);
    store->tiers[KVT_TIER_SSD] = run_tier_options(site, 1, ssds);
    if (hbm) store->tiers[KVT_TIER_HBM] = run_tier_options(site, 1 + ssds, 1);
    site->faults = !options->faultless && run_draw(site, 2) == 0;
    if (!options->faultless && run_draw(site, 3) == 0)
        site->stop_step = 1 + run_draw(site, 200 << run_draw(site, 8));
}

/* Threads that a silent disk has kept end once it answers. */
static void run_await_threads(void)
{
    for (uint32_t tries = 0; tries < RUN_TRIES; tries++)
        base_sleep(10 * RUN_MS);
}

/* After a kill: what no flush had made durable may come back, and disks are as good as new. */
static void run_survive(run_site *site)
{
    for (uint32_t i = 0; i < RUN_KEYS; i++)
        site->keys[i].deleted = site->keys[i].flushed;
    for (uint32_t i = 0; i < site->disk_count; i++) {
        memory_drive *disk = &site->disks[i];
        disk->fail_one_in = 0;
        disk->silent_until_ns = 0;
        disk->gone = false;
    }
    site->durable = false;
    site->stop_step = 0;
    site->counts.kills++;
}

/* Both lives, or the one after a kill. */
static void run_seed(run_site *site, const schedule_try *options, bool killed)
{
    const schedule_options schedule = {.seed = options->seed,
                                       .keep_log = options->print_log,
                                       .signals_narrow = options->signals_narrow,
                                       .stop_step = site->stop_step,
                                       .stop_hash = &site->stop_hash};
    if (options->quiet && freopen("/dev/null", "w", stderr) == NULL) abort();
    schedule_begin(&schedule);
    schedule_note("killed", killed, site->stop_hash);
    if (!killed) run_life(site, false);
    run_life(site, true);
    run_await_threads();
    for (uint32_t i = 0; i < site->disk_count; i++) {
        site->counts.failed_operations += site->disks[i].failed;
        site->counts.trims += site->disks[i].trims_done;
    }
    schedule_end(&site->outcome.steps, &site->outcome.hash);
    site->outcome.counts = site->counts;
    site->outcome.passed = true;
    if (options->print_log) schedule_print_log();
    fflush(NULL);
    _exit(0);
}

static void run_make_folder(char *folder, size_t size)
{
    snprintf(folder, size, "/dev/shm/kvt-schedule-XXXXXX");
    if (mkdtemp(folder) != NULL) return;
    snprintf(folder, size, "kvt-schedule-XXXXXX");
    if (mkdtemp(folder) == NULL) abort();
}

static int run_in_child(run_site *site, const schedule_try *options, bool killed)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) run_seed(site, options, killed);
    if (waitpid(child, &status, 0) != child) abort();
    return status;
}

schedule_outcome schedule_store_try(const schedule_try *options)
{
    char command[128];
    run_site *site = run_share(sizeof *site);
    run_make_folder(site->folder, sizeof site->folder);
    snprintf(site->catalog, sizeof site->catalog, "%s/catalog", site->folder);
    run_make_site(site, options);
    int status = run_in_child(site, options, false);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SCHEDULE_EXIT_STOPPED) {
        run_survive(site);
        status = run_in_child(site, options, true);
    }
    schedule_outcome outcome = site->outcome;
    outcome.passed = outcome.passed && status == 0;
    if (!outcome.passed && !options->quiet)
        fprintf(stderr, "seed %llu failed, status %d; again: --seed %llu\n",
                (unsigned long long)options->seed, status, (unsigned long long)options->seed);
    snprintf(command, sizeof command, "rm -rf '%s'", site->folder);
    if (system(command) != 0) abort();
    for (uint32_t i = 0; i < site->disk_count; i++)
        (void)munmap(site->disks[i].bytes, site->disks[i].capacity_bytes);
    (void)munmap(site, sizeof *site);
    return outcome;
}

void schedule_counts_add(schedule_counts *sum, const schedule_counts *more)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)more;
    for (size_t i = 0; i < sizeof *sum / sizeof *to; i++)
        to[i] += from[i];
}
