/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_power.c - a store after a power cut at every sync of a scripted run.
 *
 *     torture_store_power [--variants N] [--seed S] [--jobs J] [--cut EVENT]
 *                         [--encrypted 0|1]
 *
 * The run is recorded (power.h). For every sync point images are made of what a cut just before the
 * next sync can leave: nothing unsynced, everything, or a drawn part of it in whole or torn. A
 * store opens each: the open succeeds, every entry that was flushed before and not deleted since is
 * there with its bytes, nothing else than what was put comes back, and the store works.
 */
#include "expected.h"
#include "power.h"

#include <kvterrace/watch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { POWER_KEYS = 24, POWER_MEMBERS = 2 };

/* Marks in the log. */
enum {
    MARK_PUT = 1,  /* a put of that version begins */
    MARK_DELETE,   /* a delete begins */
    MARK_FLUSHED,  /* the version is flushed and on SSD */
    MARK_DEAD,     /* by a flush: versions below are gone */
    MARK_GIVES_WAY /* the store says that it may go */
};

typedef struct power_site {
    char folder[200];
    char catalog[240];
    char paths[POWER_MEMBERS][240];
    kvt_device_config devices[POWER_MEMBERS];
    kvt_store_options options;
} power_site;

typedef struct power_totals {
    atomic_uint images, checks, wrong_bytes, lost_flushed, came_back, failed_opens, broken;
} power_totals;

/* What the script knows of a key. */
typedef struct power_key {
    uint32_t version; /* last one put */
    uint32_t stored;  /* 0 = deleted */
    uint32_t floor;
    bool on_ssd;
    bool leaving;
} power_key;

static power_key power_keys[POWER_KEYS];
static bool power_scripted;

/* ---- the store's notes ---- */

void kvt_kill_point(const char *const *point)
{
    (void)point;
}

void kvt_kill_note(kill_note note, const kvt_key *name, kvt_tier tier)
{
    uint32_t number;
    memcpy(&number, name->bytes, sizeof number);
    if (!power_scripted || number >= POWER_KEYS) return;
    power_key *key = &power_keys[number];
    if (note != KILL_NOTE_DROPPED) key->leaving = note == KILL_NOTE_EVICTS;
    if (note == KILL_NOTE_EVICTS || note == KILL_NOTE_GIVES_WAY)
        power_mark(MARK_GIVES_WAY, number, 0);
    if (note == KILL_NOTE_GIVES_WAY) key->on_ssd = false;
    if (note == KILL_NOTE_PLACED || note == KILL_NOTE_MOVED || note == KILL_NOTE_COPIED)
        key->on_ssd = tier == KVT_TIER_SSD;
}

/* ---- the script ---- */

static bool power_encrypted; /* the devices */

static void power_fill_site(power_site *site, const char *folder)
{
    static const char *const names[POWER_MEMBERS] = {"m0", "m1"};
    memset(site, 0, sizeof *site);
    snprintf(site->folder, sizeof site->folder, "%s", folder);
    snprintf(site->catalog, sizeof site->catalog, "%s/catalog.db", folder);
    kvt_store_options_init(&site->options);
    site->options.limits.put_staging_bytes = 0; /* a put says how its write went */
    site->options.durability.catalog_path = site->catalog;
    site->options.policy = "lru";
    site->options.lossless = false;
    site->options.limits.tick_seconds = 0;
    site->options.limits.staging_bytes = 4 << 20;
    for (uint32_t i = 0; i < POWER_MEMBERS; i++) {
        snprintf(site->paths[i], sizeof site->paths[i], "%s/m%u", folder, i);
        site->devices[i] = (kvt_device_config){.struct_size = sizeof site->devices[i],
                                               .name = names[i],
                                               .backend = "file",
                                               .path = site->paths[i],
                                               .capacity_bytes = 512 << 10,
                                               .synchronous = true,
                                               .sparse = i == 1,
                                               .timeout_ns = UINT64_MAX};
        if (!power_encrypted) continue;
        site->devices[i].key_command = EXPECTED_SEAL_KEY;
        site->devices[i].capacity_bytes += EXPECTED_SEAL_BYTES;
    }
    site->options.tiers[KVT_TIER_SSD] = (kvt_tier_options){
        .devices = site->devices, .device_count = POWER_MEMBERS, .unit_bytes = 4096};
    site->options.tiers[KVT_TIER_DRAM].capacity_bytes = 96 << 10;
    site->options.tiers[KVT_TIER_DRAM].unit_bytes = 4096;
}

static kvt_store *script_open(power_site *site)
{
    char message[256];
    kvt_store *store = NULL;
    kvt_status status = kvt_store_open(&site->options, &store, message, sizeof message);
    if (status == KVT_OK) return store;
    fprintf(stderr, "the script's open: %s: %s\n", kvt_status_name(status), message);
    exit(2);
}

static kvt_status power_put(kvt_store *store, uint32_t number, uint32_t version)
{
    static char data[EXPECTED_BYTES_MAX];
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = expected_key_of(number),
                       .layout = expected_layout_of(number),
                       .recompute_seconds = 1};
    expected_fill(number, version, data);
    return kvt_store_put(store, &entry, KVT_PACKED(data, expected_bytes_of(number)));
}

static void script_put(kvt_store *store, uint32_t number)
{
    power_key *key = &power_keys[number];
    power_mark(MARK_PUT, number, ++key->version);
    if (power_put(store, number, key->version) != KVT_OK) return;
    key->stored = key->floor = key->version;
}

static void script_delete(kvt_store *store, uint32_t number)
{
    power_key *key = &power_keys[number];
    kvt_key name = expected_key_of(number);
    power_mark(MARK_DELETE, number, 0);
    (void)!kvt_store_delete(store, &name);
    key->stored = 0;
    key->floor = key->version + 1;
}

static void script_get(kvt_store *store, uint32_t number)
{
    static char data[EXPECTED_BYTES_MAX];
    kvt_key name = expected_key_of(number);
    if (kvt_store_get(store, &name, KVT_PACKED(data, expected_bytes_of(number)), KVT_STORE_DEADLINE,
                      NULL) == KVT_MISS)
        power_keys[number].stored = 0;
}

/* One thread and no background: nothing changes between the look and the flush. */
static void script_flush(kvt_store *store)
{
    if (kvt_store_flush(store) != KVT_OK) exit(2);
    for (uint32_t i = 0; i < POWER_KEYS; i++) {
        const power_key *key = &power_keys[i];
        if (key->stored != 0 && key->on_ssd && !key->leaving)
            power_mark(MARK_FLUSHED, i, key->stored);
        power_mark(MARK_DEAD, i, key->floor);
    }
}

static void script_maintain(kvt_store *store)
{
    for (int i = 0; i < 4; i++)
        (void)!kvt_store_maintain(store, NULL);
}

static void script_first_life(power_site *site)
{
    char message[256];
    kvt_store *store = script_open(site);
    for (uint32_t i = 0; i < POWER_KEYS; i++) {
        script_put(store, i);
        if (i % 3 == 2) script_flush(store);
        if (i % 8 == 7) script_maintain(store);
    }
    for (uint32_t i = 0; i < POWER_KEYS; i += 5) {
        script_delete(store, i);
        if (i % 2 == 0) script_put(store, i);
        script_get(store, i + 1);
        script_get(store, i + 1);
        script_maintain(store);
        script_flush(store);
    }
    (void)!kvt_device_change(store, "m1", KVT_DEVICE_DRAIN);
    script_maintain(store);
    (void)!kvt_device_change(store, "m1", KVT_DEVICE_SERVE);
    script_flush(store);
    (void)!kvt_device_change(store, "m0", KVT_DEVICE_RETIRE);
    (void)!kvt_device_add(store, KVT_TIER_SSD, &site->devices[0], message, sizeof message);
    script_put(store, 3);
    script_flush(store);
    kvt_store_close(store);
}

/* ---- judging an image ---- */

typedef struct power_expected {
    uint32_t required, dead, attempted;
} power_expected;

static void power_say(atomic_uint *counter, uint32_t cut, uint32_t variant, const char *what,
                      uint32_t number, uint32_t expected, uint32_t found)
{
    if (atomic_fetch_add(counter, 1) >= 20) return;
    fprintf(stderr, "%s: key %u, expected %u, found %u; cut at event %u, variant %u\n", what,
            number, expected, found, cut, variant);
}

static void power_check_key(kvt_store *store, uint32_t number, const power_expected *key,
                            uint32_t cut, uint32_t variant, power_totals *totals)
{
    static char data[EXPECTED_BYTES_MAX], right[EXPECTED_BYTES_MAX];
    kvt_key name = expected_key_of(number);
    uint64_t bytes = expected_bytes_of(number);
    kvt_status status =
        kvt_store_get(store, &name, KVT_PACKED(data, bytes), KVT_STORE_DEADLINE, NULL);
    uint32_t found = status == KVT_OK ? expected_version_of(data) : 0;
    atomic_fetch_add(&totals->checks, 1);
    if (status != KVT_OK && status != KVT_MISS)
        power_say(&totals->wrong_bytes, cut, variant, kvt_status_name(status), number, 0, 0);
    if (found != 0) {
        expected_fill(number, found, right);
        if (memcmp(data, right, bytes) != 0 || found > key->attempted)
            power_say(&totals->wrong_bytes, cut, variant, "wrong bytes", number, key->attempted,
                      found);
        else if (found < key->dead)
            power_say(&totals->came_back, cut, variant, "came back", number, key->dead, found);
    }
    if (key->required != 0 && found != key->required)
        power_say(&totals->lost_flushed, cut, variant, "lost", number, key->required, found);
}

/* ---- the run ---- */

static void power_remove(const char *folder)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0) fprintf(stderr, "cannot remove %s\n", folder);
}

typedef struct power_options {
    uint32_t variants, jobs;
    uint64_t seed;
    long cut;
} power_options;

static void power_one(const power_options *options, const char *folder, uint32_t cut,
                      uint32_t variant, power_totals *totals)
{
    power_site site;
    uint64_t state = options->seed * 1000003 + cut * 64 + variant;
    power_remove(folder);
    if (mkdir(folder, 0700) != 0) abort();
    power_write_image(folder, cut, expected_random(&state), variant);
    power_fill_site(&site, folder);
    power_expected keys[POWER_KEYS];
    char message[256] = "";
    kvt_store *store = NULL;
    atomic_fetch_add(&totals->images, 1);
    /* Half of them are asked while the store is being opened, and once more afterwards. */
    site.options.serve_early = variant % 2 == 1;
    kvt_status status = kvt_store_open(&site.options, &store, message, sizeof message);
    if (status != KVT_OK) {
        if (atomic_fetch_add(&totals->failed_opens, 1) < 20)
            fprintf(stderr, "open: %s: %s; cut at event %u, variant %u\n", kvt_status_name(status),
                    message, cut, variant);
        return;
    }
    uint32_t count;
    const power_event *events = power_log(&count);
    memset(keys, 0, POWER_KEYS * sizeof *keys);
    for (uint32_t i = 0; i < cut; i++) {
        power_expected *key = &keys[events[i].number];
        if (events[i].kind != POWER_MARK) continue;
        switch (events[i].mark) {
        case MARK_PUT: key->attempted = events[i].version; break;
        case MARK_FLUSHED: key->required = events[i].version; break;
        case MARK_DEAD: key->dead = events[i].version; break;
        default: key->required = 0; break;
        }
    }
    for (uint32_t i = 0; i < POWER_KEYS; i++)
        power_check_key(store, i, &keys[i], cut, variant, totals);
    status = kvt_store_wait(store, KVT_NO_DEADLINE, message, sizeof message);
    if (status != KVT_OK && atomic_fetch_add(&totals->failed_opens, 1) < 20)
        fprintf(stderr, "early open: %s: %s; cut at event %u, variant %u\n",
                kvt_status_name(status), message, cut, variant);
    for (uint32_t i = 0; i < POWER_KEYS && status == KVT_OK && site.options.serve_early; i++)
        power_check_key(store, i, &keys[i], cut, variant, totals);
    if (power_put(store, POWER_KEYS, 1) < 0 || kvt_store_flush(store) != KVT_OK)
        power_say(&totals->broken, cut, variant, "the store takes nothing", POWER_KEYS, 1, 0);
    kvt_store_close(store);
}

/* A cut is tried just before each next sync: what was synced is durable by then, and all that came
 * after it hangs in the air. */
static uint32_t power_lane(const power_options *options, uint32_t lane, const char *base,
                           power_totals *totals)
{
    char folder[240];
    uint32_t count, points = 0;
    const power_event *events = power_log(&count);
    snprintf(folder, sizeof folder, "%s-%u", base, lane);
    for (uint32_t i = 0; i <= count; i++) {
        bool sync =
            i == count || events[i].kind == POWER_SYNC || events[i].kind == POWER_SYNC_NAMES;
        if (!sync || (options->cut >= 0 && (uint32_t)options->cut != i)) continue;
        if (points++ % options->jobs != lane || totals == NULL) continue;
        for (uint32_t variant = 0; variant < options->variants; variant++)
            power_one(options, folder, i, variant, totals);
    }
    if (totals != NULL) power_remove(folder);
    return points;
}

static bool power_parse(power_options *options, int count, char **words)
{
    for (int i = 1; i + 1 < count; i += 2) {
        unsigned long long value = strtoull(words[i + 1], NULL, 0);
        if (strcmp(words[i], "--variants") == 0) {
            options->variants = (uint32_t)value;
        } else if (strcmp(words[i], "--seed") == 0) {
            options->seed = value;
        } else if (strcmp(words[i], "--jobs") == 0 && value > 0) {
            options->jobs = (uint32_t)value;
        } else if (strcmp(words[i], "--encrypted") == 0 && value <= 1) {
            power_encrypted = value == 1;
        } else if (strcmp(words[i], "--cut") == 0) {
            options->cut = (long)value;
        } else {
            return false;
        }
    }
    return count % 2 == 1;
}

int main(int count, char **words)
{
    power_options options = {.variants = 3, .jobs = 2, .seed = 1, .cut = -1};
    char base[200];
    power_site site;
    if (!power_parse(&options, count, words)) {
        fprintf(stderr,
                "usage: %s [--variants N] [--seed S] [--jobs J] [--cut EVENT] [--encrypted 0|1]\n",
                words[0]);
        return 2;
    }
    power_totals *totals =
        mmap(NULL, sizeof *totals, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (totals == MAP_FAILED) abort();
    snprintf(base, sizeof base, "%s/kvt-test-power-%d",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ".", (int)getpid());
    if (mkdir(base, 0700) != 0) abort();
    power_fill_site(&site, base);
    power_record_begin(site.folder);
    power_scripted = true;
    script_first_life(&site);
    for (uint32_t i = 0; i < POWER_KEYS; i++)
        power_keys[i].on_ssd = true; /* what a get finds; all others are forgotten by it */
    kvt_store *store = script_open(&site);
    for (uint32_t i = 0; i < POWER_KEYS; i++)
        script_get(store, i);
    script_maintain(store);
    for (uint32_t i = 1; i < POWER_KEYS; i += 4) {
        script_delete(store, i);
        script_put(store, i);
        script_flush(store);
    }
    script_delete(store, 2);
    script_flush(store);
    script_delete(store, 7);
    kvt_store_close(store);
    power_scripted = false;
    power_record_end();
    for (uint32_t i = 0; i < options.jobs; i++) {
        pid_t lane = fork();
        if (lane < 0) abort();
        if (lane == 0) {
            (void)power_lane(&options, i, base, totals);
            _exit(0);
        }
    }
    bool died = false;
    for (uint32_t i = 0; i < options.jobs; i++) {
        int status = 0;
        if (wait(&status) < 0) abort();
        died |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    power_remove(base);
    printf("seed=%llu sync_points=%u images=%u checks=%u lost_flushed=%u wrong_bytes=%u "
           "failed_opens=%u came_back=%u broken=%u\n",
           (unsigned long long)options.seed, (power_lane(&options, 0, base, NULL)), totals->images,
           totals->checks, totals->lost_flushed, totals->wrong_bytes, totals->failed_opens,
           totals->came_back, totals->broken);
    int result = totals->lost_flushed + totals->wrong_bytes + totals->failed_opens +
                             totals->came_back + totals->broken + (totals->images == 0) ==
                         0
                     ? 0
                     : 1;
    return died ? 1 : result;
}
