/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_slack.c - a store whose drives begin writes by the slack of passes that never end,
 * with slots: killed at random moments, and on drives that are pulled and come back. Bytes are
 * right or a miss, what was flushed is there, and no slot is lost.
 *
 *     torture_store_slack [--seconds N | --cycles N] [--seed N]
 *
 * Either part has half of the time, or so many cycles, each of them a kill and a pulled drive.
 *
 * A pass that never ends has announced a layer that is never computed, so that its load stops with
 * layers unread. Before the layer is due writes fit; after it, all that begins is the share of what
 * has waited for the patience. The pulled drives need root; without them the kills have all of the
 * time.
 */
#include "drive_scratch.h"
#include "store/core/store.h"
#include "store_support.h"

#include "base/clock.h"
#include "base/wait.h"
#include "tiers/pool/pool_internal.h"

#include <kvterrace/load.h>
#include <pthread.h>

enum { ENTRIES = 96, LOADED = 4, PASSES = 24, DRIVES = 2 };

#define PULL_NS UINT64_C(60000000000) /* scratch drives end by themselves after five times that */

typedef struct torture {
    char folder[64];
    char catalog[96];
    char paths[DRIVES][96];
    kvt_device_config devices[DRIVES];
    kvt_store_options options;
    uint64_t random, cycles; /* 0: by time */
    uint64_t runs, pulls, flushed, hits, misses, wrong, lost, leaked, held;
} torture;

static uint32_t torture_draw(torture *t, uint32_t count)
{
    t->random = t->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(t->random >> 33) % count;
}

static void torture_prepare(torture *t, const char *first, const char *second)
{
    static const char *const names[DRIVES] = {"d0", "d1"};
    snprintf(t->catalog, sizeof t->catalog, "%s/catalog.db", t->folder);
    snprintf(t->paths[0], sizeof t->paths[0], "%s", first);
    snprintf(t->paths[1], sizeof t->paths[1], "%s", second);
    kvt_store_options_init(&t->options);
    t->options.limits.put_staging_bytes = 0; /* a put says how its write went */
    t->options.limits.staging_bytes = 8 << 20;
    t->options.policy = "lru";
    t->options.durability.catalog_path = t->catalog;
    t->options.io.order = KVT_IO_SLACK;
    t->options.io.write_patience_seconds = 0.02;
    t->options.loss.ladder_layout = support_layout;
    for (uint32_t i = 0; i < DRIVES; i++) {
        t->devices[i] = support_file_config(names[i], t->paths[i], 16 << 20);
        t->devices[i].timeout_ns = UINT64_MAX;
    }
    support_tier(&t->options, KVT_TIER_SSD, t->devices, DRIVES);
    t->options.tiers[KVT_TIER_SSD].unit_bytes = 16384;
    t->options.tiers[KVT_TIER_SSD].slots = "raw@32, 64KiB";
}

/* ---- passes that never end ---- */

typedef struct stuck_passes {
    kvt_store *store;
    kvt_queue *queue;
    kvt_load *loads[PASSES];
    kvt_view views[PASSES][LOADED];
    char *targets;
    uint32_t count;
} stuck_passes;

static void stuck_open(stuck_passes *stuck, kvt_store *store)
{
    const kvt_queue_options options = {.struct_size = sizeof options, .threads = 1};
    *stuck = (stuck_passes){.store = store};
    stuck->targets = malloc((size_t)PASSES * LOADED * SUPPORT_ENTRY_BYTES);
    if (stuck->targets == NULL || kvt_queue_open(store, &options, &stuck->queue) != KVT_OK) abort();
}

/* Begins a pass and a load of it, neither of which goes on. Sixteen passes count at a time; a
 * further one takes the place of one whose patience is over, or loads without a pass. */
static void stuck_begin(stuck_passes *stuck, uint32_t draw, uint32_t entries)
{
    static const double seconds[] = {0.00005, 0.002, 0.05, 100};
    const kvt_pass pass = {.struct_size = sizeof pass,
                           .new_tokens = 64,
                           .layers = support_layout.layers,
                           .layer_seconds = seconds[draw % 4]};
    kvt_load_options options = {
        .struct_size = sizeof options, .deadline_ns = KVT_NO_DEADLINE, .layers_ahead = 1};
    const kvt_view *views[LOADED];
    kvt_key keys[LOADED];
    if (stuck->count == PASSES || entries < LOADED) return;
    if (kvt_pass_begin(stuck->store, &pass, &options.pass) != KVT_OK) options.pass = 0;
    for (uint32_t i = 0; i < LOADED; i++) {
        kvt_view *view = &stuck->views[stuck->count][i];
        const size_t place = (size_t)stuck->count * LOADED + i;
        keys[i] = support_key((draw + i) % entries);
        *view = *KVT_PACKED(stuck->targets + place * SUPPORT_ENTRY_BYTES, SUPPORT_ENTRY_BYTES);
        views[i] = view;
    }
    if (kvt_load_begin(stuck->queue, keys, views, LOADED, &options, &stuck->loads[stuck->count]) ==
        KVT_OK)
        stuck->count++;
}

static void stuck_end(stuck_passes *stuck)
{
    kvt_status statuses[LOADED];
    for (uint32_t i = 0; i < stuck->count; i++)
        (void)kvt_load_end(stuck->loads[i], statuses, NULL);
    stuck->count = 0;
}

static void stuck_close(stuck_passes *stuck)
{
    stuck_end(stuck);
    kvt_queue_close(stuck->queue);
    free(stuck->targets);
}

/* ---- what is there ---- */

/* Gets all entries. The first `flushed` of them have to be there. */
static void torture_check(torture *t, kvt_store *store, uint32_t flushed)
{
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_status status = support_get(store, i, NULL);
        t->hits += status == KVT_OK;
        t->misses += status == KVT_MISS;
        t->wrong += status != KVT_OK && status != KVT_MISS;
        t->lost += i < flushed && status != KVT_OK;
    }
    t->flushed += flushed;
}

/* Deletes all entries: no slot is taken then, and each byte of the drives is free or a free slot's,
 * which can be taken. A slot may have gone back to the allocator, where a plan of now is read
 * faster. */
static void torture_check_slots(torture *t, kvt_store *store)
{
    tiers_pool *pool = store->pools[KVT_TIER_SSD];
    uint64_t listed = 0; /* bytes of the slots that can be taken */
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_key key = support_key(i);
        const kvt_status status = kvt_store_delete(store, &key);
        t->wrong += status != KVT_OK && status != KVT_MISS;
    }
    pthread_mutex_lock(&store->lock);
    while (store->draining[KVT_TIER_SSD] != 0) /* the scrub may read one of them still */
        base_condition_wait_until(&store->changed, &store->lock, base_clock_ns() + 10000000);
    pthread_mutex_unlock(&store->lock);
    t->wrong += kvt_store_flush(store) != KVT_OK;
    tiers_slot_stats class[2], again[2];
    uint64_t held;
    do { /* the background may lay slots out meanwhile */
        held = 0;
        for (uint32_t i = 0; i < 2; i++)
            if (tiers_pool_slot_class(pool, i, &class[i]) != KVT_OK) abort();
        pthread_mutex_lock(&pool->mutex);
        for (uint32_t i = 0; i < pool->member_count; i++)
            held += pool->members[i].slot_bytes;
        pthread_mutex_unlock(&pool->mutex);
        for (uint32_t i = 0; i < 2; i++)
            if (tiers_pool_slot_class(pool, i, &again[i]) != KVT_OK) abort();
    } while (memcmp(class, again, sizeof class) != 0);
    for (uint32_t i = 0; i < 2; i++) {
        listed += class[i].free * class[i].bytes;
        t->leaked += class[i].taken;
    }
    t->leaked += held != listed;
    pthread_mutex_lock(&pool->mutex);
    for (uint32_t i = 0; i < pool->member_count; i++) {
        const pool_member *member = &pool->members[i];
        tiers_space_facts facts;
        tiers_space_facts_get(member->space, &facts);
        t->leaked += member->used_bytes != 0;
        t->leaked += facts.free_bytes + member->slot_bytes != member->capacity_bytes;
    }
    pthread_mutex_unlock(&pool->mutex);
    kvt_device_stats stats = {.struct_size = sizeof stats};
    for (size_t i = 0; i < DRIVES; i++)
        if (kvt_device_stats_get(store, i, &stats) == KVT_OK)
            t->held +=
                stats.decisions.waits_layers + stats.decisions.waits_reads + stats.decisions.share;
}

static kvt_store *torture_open(const torture *t)
{
    char message[256] = "";
    kvt_store *store = NULL;
    kvt_status status = KVT_E_LOCKED; /* the kernel lets go of who was killed in its own time */
    while (status == KVT_E_LOCKED)
        status = kvt_store_open(&t->options, &store, message, sizeof message);
    if (status != KVT_OK) {
        fprintf(stderr, "open: %s: %s\n", kvt_status_name(status), message);
        abort();
    }
    return store;
}

/* ---- kill -9 ---- */

/* The child: puts entries in order beside passes that never end, deletes and puts late ones again,
 * and says how far it has flushed. */
static void kill_child(const torture *t, uint64_t random, int pipe_end)
{
    stuck_passes stuck;
    kvt_store *store = torture_open(t);
    torture own = {.random = random};
    stuck_open(&stuck, store);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_key late = support_key(ENTRIES + i % 7);
        if (support_put(store, i) != KVT_OK) _exit(3);
        (void)!support_put(store, ENTRIES + i % 7);
        stuck_begin(&stuck, torture_draw(&own, 1000), i);
        if (torture_draw(&own, 3) == 0) (void)!kvt_store_delete(store, &late);
        if (stuck.count == PASSES) stuck_end(&stuck);
        if (i % 3 != 2) continue;
        if (kvt_store_flush(store) != KVT_OK) _exit(4);
        if (write(pipe_end, &i, sizeof i) != sizeof i) _exit(5);
    }
    for (;;)
        pause();
}

/* One life that ends at a random moment. */
static void kill_once(torture *t)
{
    int ends[2];
    uint32_t reported = 0, number;
    const uint32_t stop = torture_draw(t, ENTRIES - 3);
    const uint64_t random = t->random;
    if (pipe(ends) != 0) abort();
    const pid_t child = fork();
    if (child < 0) abort();
    if (child == 0) {
        close(ends[0]);
        kill_child(t, random, ends[1]);
    }
    close(ends[1]);
    while (reported < stop && read(ends[0], &number, sizeof number) == sizeof number)
        reported = number + 1;
    base_sleep(torture_draw(t, 20) * UINT64_C(1000000));
    if (kill(child, SIGKILL) != 0) abort();
    int status;
    if (waitpid(child, &status, 0) != child) abort();
    t->wrong += !WIFSIGNALED(status); /* it failed before */
    while (read(ends[0], &number, sizeof number) == sizeof number)
        reported = number + 1;
    close(ends[0]);
    kvt_store *store = torture_open(t);
    torture_check(t, store, reported);
    for (uint32_t i = 0; i < 7; i++) {
        const kvt_key late = support_key(ENTRIES + i);
        (void)!support_get(store, ENTRIES + i, NULL);
        (void)!kvt_store_delete(store, &late);
    }
    torture_check_slots(t, store);
    kvt_store_close(store);
    t->runs++;
}

static void kill_until(torture *t, uint64_t end_ns)
{
    char paths[DRIVES][96];
    support_make_folder(t->folder, sizeof t->folder);
    for (uint32_t i = 0; i < DRIVES; i++)
        snprintf(paths[i], sizeof paths[i], "%s/drive%u", t->folder, i);
    torture_prepare(t, paths[0], paths[1]);
    do
        kill_once(t);
    while (t->cycles != 0 ? t->runs < t->cycles : base_clock_ns() < end_ns);
    support_remove_folder(t->folder);
}

/* ---- pulled drives ---- */

/* Takes a drive back that has returned, with what it held. */
static void pull_add(torture *t, kvt_store *store, uint32_t drive)
{
    char message[256] = "";
    kvt_status status = KVT_BUSY;
    while (status == KVT_BUSY || status == KVT_E_LOCKED)
        status = kvt_device_add(store, KVT_TIER_SSD, &t->devices[drive], message, sizeof message);
    if (status == KVT_OK) return;
    fprintf(stderr, "add: %s: %s\n", kvt_status_name(status), message);
    abort();
}

/* One of the drives vanishes while entries are put and passes hold the writes, and comes back. */
static void pull_once(torture *t, const drive_scratch *drives)
{
    stuck_passes stuck;
    bool there[ENTRIES] = {false};
    kvt_store *store = torture_open(t);
    const uint32_t drive = torture_draw(t, DRIVES), at = torture_draw(t, ENTRIES);
    stuck_open(&stuck, store);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        if (i == at && !drive_scratch_kill(&drives[drive])) abort();
        there[i] = support_put(store, i) == KVT_OK;
        stuck_begin(&stuck, torture_draw(t, 1000), i);
        if (torture_draw(t, 5) == 0) stuck_end(&stuck);
    }
    (void)!kvt_store_flush(store); /* the drive that is gone cannot */
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_status status = support_get(store, i, NULL);
        t->wrong += status != KVT_OK && status != KVT_MISS;
    }
    stuck_close(&stuck);
    if (!drive_scratch_back(&drives[drive])) abort();
    kvt_device_stats stats = {.struct_size = sizeof stats};
    if (kvt_device_stats_get(store, drive, &stats) == KVT_OK && stats.state == KVT_DEVICE_SERVING)
        (void)!kvt_device_change(store, t->devices[drive].name, KVT_DEVICE_RETIRE);
    pull_add(t, store, drive);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_status status = support_get(store, i, NULL);
        t->wrong += status != KVT_OK && status != KVT_MISS;
        t->lost += there[i] && status != KVT_OK;
        t->flushed += there[i];
        t->hits += status == KVT_OK;
        t->misses += status == KVT_MISS;
    }
    torture_check_slots(t, store);
    kvt_store_close(store);
    t->pulls++;
}

static bool pull_goes_on(const torture *t, uint64_t end_ns)
{
    return t->cycles != 0 ? t->pulls < t->cycles : base_clock_ns() < end_ns;
}

/* Pulls drives that were made for it, for a while. False: this machine makes none. */
static bool pull_drives(torture *t, uint64_t end_ns)
{
    const uint64_t until_ns = base_clock_ns() + PULL_NS;
    drive_scratch drives[DRIVES] = {{.keeper = 0}, {.keeper = 0}};
    bool made = geteuid() == 0;
    for (uint32_t i = 0; i < DRIVES && made; i++)
        made = drive_scratch_make(&drives[i], "16Mi", "latency_us=0");
    if (made) {
        support_make_folder(t->folder, sizeof t->folder);
        torture_prepare(t, drives[0].path, drives[1].path);
        do
            pull_once(t, drives);
        while (pull_goes_on(t, end_ns) && base_clock_ns() < until_ns);
        support_remove_folder(t->folder);
    }
    for (uint32_t i = 0; i < DRIVES; i++)
        drive_scratch_remove(&drives[i]);
    return made;
}

static bool pull_until(torture *t, uint64_t end_ns)
{
    bool made;
    do
        made = pull_drives(t, end_ns);
    while (made && pull_goes_on(t, end_ns));
    return made;
}

int main(int count, char **words)
{
    static torture t;
    uint64_t seconds = 16, seed = 1;
    for (int i = 1; i < count; i += 2) {
        uint64_t *given = NULL;
        char *end = NULL;
        if (strcmp(words[i], "--seconds") == 0) given = &seconds;
        if (strcmp(words[i], "--cycles") == 0) given = &t.cycles;
        if (strcmp(words[i], "--seed") == 0) given = &seed;
        const unsigned long long value = i + 1 < count ? strtoull(words[i + 1], &end, 10) : 0;
        if (given == NULL || end == NULL || *end != '\0' || value == 0 || value > 86400) {
            fprintf(stderr, "usage: %s [--seconds N | --cycles N] [--seed S]\n", words[0]);
            return 2;
        }
        *given = value;
    }
    t.random = seed;
    const uint64_t began_ns = base_clock_ns(), whole_ns = seconds * UINT64_C(1000000000);
    const bool pulled = pull_until(&t, began_ns + whole_ns / 2);
    kill_until(&t, began_ns + whole_ns);
    printf("seed=%llu kills=%llu pulls=%llu hits=%llu misses=%llu flushed=%llu held=%llu "
           "wrong_bytes=%llu lost_flushed=%llu slots_leaked=%llu%s\n",
           (unsigned long long)seed, (unsigned long long)t.runs, (unsigned long long)t.pulls,
           (unsigned long long)t.hits, (unsigned long long)t.misses, (unsigned long long)t.flushed,
           (unsigned long long)t.held, (unsigned long long)t.wrong, (unsigned long long)t.lost,
           (unsigned long long)t.leaked, pulled ? "" : " (no drives to pull)");
    return t.wrong == 0 && t.lost == 0 && t.leaked == 0 && t.runs > 0 ? 0 : 1;
}
