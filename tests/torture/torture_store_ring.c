/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_ring.c - rings under kill -9, drives that are pulled and producers that die, cycle
 * after cycle: no wrong byte, no flushed entry lost, no slot leaked, and no block that never
 * completes.
 *
 *     killed    a process puts, flushes and reads through a ring, and is killed; its successor has
 *               every flushed entry, by ring and by get
 *     pulled    the drive goes while blocks are under way; each completes, right or as a miss, and
 *               after the drive is back everything is there
 *     died      another process posts blocks by the mapped words alone, and is killed anywhere;
 *               what it has posted completes
 *
 * It runs for 20 seconds, or for KVT_RING_CYCLES cycles of each kind, in processes side by side,
 * because a cycle waits for the kernel and for disks more than it computes.
 */
#include "steady_costs.h"
#include "store_support.h"

#include "base/clock.h"
#include "base/ring_words.h"
#include "store/core/store.h"
#include "store/ring/ring_contexts.h"

#include <kvterrace/load.h>
#include <kvterrace/ring.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

enum { LANES = 4, ENTRIES = 48, DEPTH = 8, MATRIX = SUPPORT_ENTRY_BYTES / 4, MATRICES = 4 };

#define SECOND_NS   UINT64_C(1000000000)
#define PATIENCE_NS (300 * SECOND_NS) /* a whole process may be stopped for a while */
#define REGION      ((uint64_t)DEPTH * ENTRIES * MATRIX)

typedef struct site {
    char folder[64], catalog[96], path[96];
    support_fault fault;
    kvt_device_config device;
    kvt_store_options options;
    kvt_store *store;
    kvt_ring *ring;
    kvt_ring_memory memory;
    ring_head head;
    uint64_t objects[ENTRIES];
    uint32_t region, count; /* of objects that are there */
    char *target;
    uint64_t draws;
    uint64_t pass;
} site;

/* What a run may not have. */
static uint64_t wrong_bytes, lost_entries, leaked_slots, never_completed, blocks_done;

static uint32_t draw(site *s, uint32_t most)
{
    s->draws = s->draws * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(s->draws >> 33) % most;
}

static void site_make(site *s, uint64_t seed)
{
    memset(s, 0, sizeof *s);
    s->draws = seed;
    support_make_folder(s->folder, sizeof s->folder);
    snprintf(s->catalog, sizeof s->catalog, "%s/catalog.db", s->folder);
    snprintf(s->path, sizeof s->path, "%s/ssd", s->folder);
    s->options = support_options(4 << 20, "lru");
    s->options.durability.catalog_path = s->catalog;
    s->options.loss.ladder_layout = support_layout;
    s->options.lossless = false;
}

/* Opens the store. fault: its drive can be pulled. */
static void site_open(site *s, bool fault)
{
    char message[256] = "";
    kvt_status status = KVT_E_LOCKED;
    s->fault = (support_fault){.capacity_bytes = 8 << 20, .path = s->path, .fast = true};
    s->device = fault ? support_fault_config(&s->fault, "ssd")
                      : support_file_config("ssd", s->path, 8 << 20);
    support_tier(&s->options, KVT_TIER_SSD, &s->device, 1);
    s->options.tiers[KVT_TIER_SSD].unit_bytes = 16384;
    s->options.tiers[KVT_TIER_SSD].placement = KVT_PLACE_TENSOR;
    s->options.tiers[KVT_TIER_SSD].slots = "raw@32";
    /* The kernel takes down what a killed process held in its own time. */
    while (status == KVT_E_LOCKED)
        status = kvt_store_open(&s->options, &s->store, message, sizeof message);
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_name(status), message);
}

static void ring_open(site *s)
{
    const kvt_ring_options options = {
        .struct_size = sizeof options, .contexts = 256, .poll_us = 200, .lost_ms = 30};
    kvt_key keys[ENTRIES];
    s->target = malloc(REGION);
    for (uint32_t i = 0; i < ENTRIES; i++)
        keys[i] = support_key(i);
    s->memory.struct_size = sizeof s->memory;
    assert_non_null(s->target);
    assert_ok(kvt_ring_open(s->store, DEPTH, &options, &s->ring));
    assert_ok(kvt_ring_describe(s->ring, &s->memory));
    memcpy(&s->head, s->memory.memory, sizeof s->head);
    assert_ok(kvt_ring_region_add(s->ring, s->target, REGION, &s->region));
    const kvt_pass pass = {
        .struct_size = sizeof pass, .new_tokens = 1, .layers = 2, .layer_seconds = 1e-4};
    if (kvt_pass_begin(s->store, &pass, &s->pass) != KVT_OK) s->pass = 0;
    const kvt_status status = kvt_ring_object_open(s->ring, keys, ENTRIES, s->objects);
    assert_true(status == KVT_OK || status == KVT_MISS);
}

static void site_close(site *s)
{
    kvt_ring_close(s->ring);
    kvt_store_close(s->store);
    free(s->target);
    s->ring = NULL;
    s->store = NULL;
    s->target = NULL;
}

/* ---- blocks ---- */

/* A block at an index reads one matrix of each entry, which follows from the index, into the part
 * of the region that its place has. */
static uint32_t matrix_of(uint64_t index, uint32_t entry)
{
    return (uint32_t)(index * 7 + entry) % MATRICES;
}

static uint32_t fill(const site *s, uint64_t index, kvt_ring_context *contexts)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        if (s->objects[i] == 0) continue;
        const uint32_t matrix = matrix_of(index, i);
        contexts[count++] = (kvt_ring_context){.object = s->objects[i],
                                               .layer = matrix / 2,
                                               .side = matrix % 2,
                                               .bytes = MATRIX,
                                               .region = s->region,
                                               .target = (index % DEPTH * ENTRIES + i) * MATRIX};
    }
    return count;
}

/* Compares what a block has brought. */
static void check(const site *s, uint64_t index, const signed char *statuses)
{
    static char wanted[SUPPORT_ENTRY_BYTES];
    uint32_t at = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        if (s->objects[i] == 0 || statuses[at++] != KVT_OK) continue;
        const uint32_t matrix = matrix_of(index, i);
        support_fill(i, wanted);
        wrong_bytes += memcmp(s->target + (index % DEPTH * ENTRIES + i) * MATRIX,
                              wanted + (uint64_t)matrix * MATRIX, MATRIX) != 0;
    }
}

/* Waits for a block, and says whether it was carried out. */
static bool await(site *s, uint64_t index, kvt_ring_result *result)
{
    signed char statuses[256];
    const kvt_status status =
        kvt_ring_wait(s->ring, index, 1, base_clock_ns() + PATIENCE_NS, result, statuses);
    never_completed += status != KVT_OK;
    if (status != KVT_OK) return false;
    blocks_done++;
    const bool whole = result->status == KVT_OK || result->status == KVT_MISS;
    if (whole && result->bytes != 0) check(s, index, statuses);
    return result->status == KVT_OK;
}

/* Posts blocks without waiting for them. */
static uint32_t post(site *s, kvt_ring_iocb *iocbs, uint32_t count)
{
    const kvt_status status = kvt_ring_get_iocb(s->ring, count, iocbs);
    if (status != KVT_OK) return 0;
    for (uint32_t i = 0; i < count; i++) {
        iocbs[i].block.count = fill(s, iocbs[i].index, iocbs[i].contexts);
        if (i > 0 && draw(s, 3) == 0) iocbs[i].block.after = iocbs[i - 1].index + 1;
        /* Blocks of a pass that never ends, of one that is none, and of none. */
        if (draw(s, 2) == 0) iocbs[i].block.pass = s->pass + draw(s, 3) / 2;
    }
    (void)!kvt_ring_submit(s->ring, iocbs, count);
    return count;
}

/* Every entry from `from` to `to` is there, by the ring and by gets. */
static void check_all(site *s, uint32_t from, uint32_t to)
{
    kvt_ring_iocb iocb;
    kvt_ring_result result;
    ring_open(s);
    for (uint32_t i = from; i < to; i++)
        lost_entries += s->objects[i] == 0;
    if (post(s, &iocb, 1) != 0) {
        const bool all = await(s, iocb.index, &result);
        lost_entries += !all;
    }
    for (uint32_t i = from; i < to; i++)
        lost_entries += support_get(s->store, i, NULL) != KVT_OK;
}

/* What is deleted frees its slots. */
static void check_slots(site *s)
{
    tiers_slot_stats slots;
    tiers_pool_facts facts;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_key key = support_key(i);
        (void)!kvt_store_delete(s->store, &key);
    }
    (void)!kvt_store_flush(s->store);
    tiers_pool_facts_get(s->store->pools[KVT_TIER_SSD], &facts);
    leaked_slots += facts.used_bytes + facts.padding_bytes != 0;
    if (tiers_pool_slot_class(s->store->pools[KVT_TIER_SSD], 0, &slots) == KVT_OK)
        leaked_slots += slots.taken != 0;
}

/* ---- killed ---- */

static void run_to_be_killed(site *s, int flushed)
{
    kvt_ring_iocb iocbs[DEPTH];
    kvt_ring_result result;
    site_open(s, false);
    support_puts(s->store, 0, ENTRIES / 2);
    if (kvt_store_flush(s->store) != KVT_OK) _exit(2);
    const uint32_t half = ENTRIES / 2;
    if (write(flushed, &half, sizeof half) != sizeof half) _exit(3);
    ring_open(s);
    for (uint32_t round = 0;; round++) {
        const uint32_t posted = post(s, iocbs, 1 + draw(s, DEPTH));
        const uint32_t next = ENTRIES / 2 + round;
        if (next < ENTRIES) (void)support_put(s->store, next);
        for (uint32_t i = 0; i < posted; i++)
            (void)await(s, iocbs[i].index, &result);
        if (wrong_bytes != 0) _exit(4);
    }
}

static void cycle_killed(uint64_t seed)
{
    site s;
    int ends[2], ended;
    uint32_t flushed = 0;
    site_make(&s, seed);
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) run_to_be_killed(&s, ends[1]);
    close(ends[1]);
    assert_int_equal(read(ends[0], &flushed, sizeof flushed), sizeof flushed);
    nanosleep(&(struct timespec){.tv_nsec = draw(&s, 30000000)}, NULL);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &ended, 0), child);
    if (WIFEXITED(ended)) fail_msg("the killed process had ended with %d", WEXITSTATUS(ended));
    close(ends[0]);
    site_open(&s, false);
    check_all(&s, 0, flushed);
    check_slots(&s);
    site_close(&s);
    support_remove_folder(s.folder);
}

/* ---- pulled ---- */

static void cycle_pulled(uint64_t seed)
{
    site s;
    kvt_ring_iocb iocbs[DEPTH];
    kvt_ring_result result;
    site_make(&s, seed);
    site_open(&s, true);
    support_puts(s.store, 0, ENTRIES);
    assert_ok(kvt_store_flush(s.store));
    ring_open(&s);
    if (draw(&s, 2) == 0) { /* heads are known */
        (void)post(&s, iocbs, 1);
        assert_true(await(&s, iocbs[0].index, &result));
    }
    const uint32_t posted = post(&s, iocbs, DEPTH);
    nanosleep(&(struct timespec){.tv_nsec = draw(&s, 2000000)}, NULL);
    tiers_fault_set_gone(s.fault.device, true);
    for (uint32_t i = 0; i < posted; i++)
        (void)await(&s, iocbs[i].index, &result);
    /* Later blocks complete as well. */
    if (post(&s, iocbs, 2) == 2) {
        (void)await(&s, iocbs[0].index, &result);
        (void)await(&s, iocbs[1].index, &result);
    }
    site_close(&s);
    site_open(&s, true);
    check_all(&s, 0, ENTRIES);
    check_slots(&s);
    site_close(&s);
    support_remove_folder(s.folder);
}

/* ---- died ---- */

/* Another process: nothing of the library's but the words. */
static void produce(const site *s)
{
    char *memory = s->memory.memory;
    base_ring submissions, completions;
    if (base_ring_attach(&submissions, memory + s->head.submissions_at, s->head.bytes, DEPTH) !=
            KVT_OK ||
        base_ring_attach(&completions, memory + s->head.completions_at, s->head.bytes, DEPTH) !=
            KVT_OK)
        _exit(1);
    for (;;) {
        const uint64_t next = atomic_load(&submissions.words->claimed);
        if (atomic_load(base_ring_word(&completions, next)) != next) {
            base_sleep(20000); /* the ring looks as often */
            continue;
        }
        uint64_t claimed;
        if (base_ring_claim(&submissions, &submissions.words->claimed, 1, &claimed) != KVT_OK)
            continue;
        const uint32_t table = (uint32_t)claimed % DEPTH;
        kvt_ring_context *contexts =
            (kvt_ring_context *)(void *)(memory + s->head.tables_at) + table * s->head.contexts;
        const kvt_ring_block block = {
            .table = table, .count = fill(s, claimed, contexts), .deadline_ns = KVT_NO_DEADLINE};
        base_ring_body body;
        memcpy(&body, &block, sizeof body);
        if (base_ring_post(&submissions, claimed, &body) != KVT_OK) _exit(2);
    }
}

static void cycle_died(uint64_t seed)
{
    site s;
    kvt_ring_result result;
    kvt_ring_iocb iocbs[DEPTH];
    int ended;
    site_make(&s, seed);
    site_open(&s, false);
    support_puts(s.store, 0, ENTRIES);
    ring_open(&s);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) produce(&s);
    const uint32_t blocks = 1 + draw(&s, 3 * DEPTH);
    const base_ring_words *words =
        (const base_ring_words *)(const void *)((char *)s.memory.memory + s.head.submissions_at);
    uint64_t index = 0;
    for (; index < blocks; index++) {
        while (atomic_load(&words->claimed) <= index)
            base_sleep(10000);
        (void)await(&s, index, &result);
    }
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &ended, 0), child);
    /* A last block of ours lies behind the hole, if there is one, and is not kept for ever. */
    const uint64_t claimed = atomic_load(&words->claimed);
    const bool behind = post(&s, iocbs, 1) == 1;
    while (index < claimed) {
        const kvt_status status =
            kvt_ring_wait(s.ring, index, 1, base_clock_ns() + SECOND_NS / 4, &result, NULL);
        /* A hole with nothing behind it, in a ring that is full: nobody waits for more. */
        if (status == KVT_E_TIMEOUT && !behind) break;
        never_completed += status != KVT_OK;
        blocks_done += status == KVT_OK;
        index++;
    }
    if (behind) (void)await(&s, iocbs[0].index, &result);
    site_close(&s);
    support_remove_folder(s.folder);
}

/* ---- lanes ---- */

/* The findings of a lane, in memory that it shares with the test and the other lanes. */
typedef struct lane_result {
    uint64_t cycles, blocks, wrong, lost, leaked, never;
    _Atomic bool stop; /* of the first lane, for all */
} lane_result;

/* Runs each LANES-th cycle. */
static void lane_run(uint64_t lane, uint64_t cycles, uint64_t end_ns, lane_result *results)
{
    lane_result *out = &results[lane];
    for (uint64_t i = lane; i < cycles && base_clock_ns() < end_ns; i += LANES) {
        if (atomic_load(&results->stop)) break;
        cycle_killed(3 * i + 1);
        cycle_pulled(3 * i + 2);
        cycle_died(3 * i + 3);
        out->cycles++;
        out->blocks = blocks_done;
        out->wrong = wrong_bytes;
        out->lost = lost_entries;
        out->leaked = leaked_slots;
        out->never = never_completed;
        if (out->wrong + out->lost + out->leaked + out->never != 0)
            atomic_store(&results->stop, true);
    }
}

TEST(kills_pulled_drives_and_dead_producers)
{
    const char *wanted = getenv("KVT_RING_CYCLES");
    const uint64_t cycles = wanted != NULL ? strtoull(wanted, NULL, 10) : UINT64_MAX;
    const uint64_t end_ns = wanted != NULL ? UINT64_MAX : base_clock_ns() + 20 * SECOND_NS;
    lane_result *results = mmap(NULL, LANES * sizeof *results, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    lane_result sum = {0};
    assert_true(results != MAP_FAILED);
    for (uint64_t i = 0; i < LANES; i++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child != 0) continue;
        lane_run(i, cycles, end_ns, results);
        _exit(0);
    }
    uint32_t sound = 0;
    for (uint32_t left = LANES; left > 0; left--) {
        int ended;
        assert_true(waitpid(-1, &ended, 0) > 0);
        if (WIFEXITED(ended) && WEXITSTATUS(ended) == 0)
            sound++;
        else
            atomic_store(&results->stop, true); /* a failed assertion ended it */
    }
    assert_int_equal(sound, LANES);
    for (uint32_t i = 0; i < LANES; i++) {
        sum.cycles += results[i].cycles;
        sum.blocks += results[i].blocks;
        sum.wrong += results[i].wrong;
        sum.lost += results[i].lost;
        sum.leaked += results[i].leaked;
        sum.never += results[i].never;
    }
    fprintf(stderr, "%llu cycles, %llu blocks: %llu wrong, %llu lost, %llu leaked, %llu never\n",
            (unsigned long long)sum.cycles, (unsigned long long)sum.blocks,
            (unsigned long long)sum.wrong, (unsigned long long)sum.lost,
            (unsigned long long)sum.leaked, (unsigned long long)sum.never);
    assert_true(sum.cycles > 0 && sum.blocks > 0);
    assert_int_equal(sum.wrong + sum.lost + sum.leaked + sum.never, 0);
    munmap(results, LANES * sizeof *results);
}
