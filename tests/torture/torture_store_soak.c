/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_soak.c - a store under 16 threads, all calls, device changes and load from outside,
 * for as long as asked: memory, descriptors and room must be flat, and every byte right.
 *
 *     torture_store_soak [--seconds N] [--seed S] [--load N]
 *
 * The first quarter is warm-up. Of the rest the last third is held against the first: resident
 * memory, open descriptors. After the last call every key is deleted: then no tier, no device and
 * no policy may hold a byte, and the free room of each device is one range again. Latency is told
 * and judges nothing. Prints one line of key=value pairs; exit 1 when something is not flat.
 */
#include "expected.h"

#include "base/clock.h"

#include <kvterrace/lookup.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    SOAK_THREADS = 16,
    SOAK_KEYS = 3000,
    SOAK_MEMBERS = 3,
    SOAK_BUCKETS = 256,
    SOAK_SAMPLES = 1 << 16,
    SOAK_LOADS_MAX = 8,
    SOAK_JUDGED_SECONDS = 300 /* memory is judged from so long a run on */
};

typedef struct soak_options {
    uint32_t seconds;
    uint64_t seed;
    uint32_t loads; /* processes that burn processor time, and as many that write */
} soak_options;

typedef struct soak_sample {
    uint64_t rss_bytes;
    uint32_t descriptors;
} soak_sample;

typedef struct soak_site {
    char folder[64];
    char fast[64]; /* a folder in memory, where there is one */
    char catalog[96];
    char paths[SOAK_MEMBERS][96];
    kvt_device_config devices[SOAK_MEMBERS];
    kvt_store *store;
    atomic_bool stop;
    atomic_uint versions[SOAK_KEYS];
    atomic_ullong calls, wrong, odd, device_changes, hits;
    atomic_ullong times[SOAK_BUCKETS]; /* of gets, ever */
} soak_site;

typedef struct soak_thread {
    soak_site *site;
    uint32_t number;
    uint64_t random;
    pthread_t thread;
} soak_thread;

static soak_sample soak_samples[SOAK_SAMPLES];

/* ---- latency: four buckets an octave ---- */

static void soak_note_time(soak_site *site, uint64_t ns)
{
    uint32_t octave = ns < 16 ? 4 : 63u - (uint32_t)__builtin_clzll(ns);
    uint32_t bucket = octave * 4 + (uint32_t)((ns >> (octave - 2)) & 3);
    atomic_fetch_add(&site->times[bucket < SOAK_BUCKETS ? bucket : SOAK_BUCKETS - 1], 1);
}

static double soak_quantile_us(const uint64_t *from, const uint64_t *to, double share)
{
    uint64_t total = 0, seen = 0;
    for (uint32_t i = 0; i < SOAK_BUCKETS; i++)
        total += to[i] - from[i];
    for (uint32_t i = 0; i < SOAK_BUCKETS; i++) {
        seen += to[i] - from[i];
        if (total != 0 && (double)seen >= share * (double)total)
            return (double)(4 + i % 4) / 4 * (double)(UINT64_C(1) << i / 4) * 1e-3;
    }
    return 0;
}

static void soak_copy_times(soak_site *site, uint64_t *times)
{
    for (uint32_t i = 0; i < SOAK_BUCKETS; i++)
        times[i] = atomic_load(&site->times[i]);
}

/* ---- calls ---- */

static void soak_say(atomic_ullong *counter, const char *what, uint32_t number, int status)
{
    if (atomic_fetch_add(counter, 1) < 20)
        fprintf(stderr, "%s: key %u: %s\n", what, number, kvt_status_name((kvt_status)status));
}

static void soak_get(soak_thread *self, uint32_t number, bool until)
{
    static _Thread_local char data[EXPECTED_BYTES_MAX], right[EXPECTED_BYTES_MAX];
    soak_site *site = self->site;
    kvt_key key = expected_key_of(number);
    uint64_t bytes = expected_bytes_of(number), begun = base_clock_ns();
    kvt_get_info info = {.struct_size = sizeof info};
    kvt_status status =
        until
            ? kvt_store_get(site->store, &key, KVT_PACKED(data, bytes), begun + 200000, &info)
            : kvt_store_get(site->store, &key, KVT_PACKED(data, bytes), KVT_STORE_DEADLINE, &info);
    soak_note_time(site, base_clock_ns() - begun);
    if (status == KVT_MISS) return;
    if (status != KVT_OK) {
        soak_say(&site->odd, "get", number, status);
        return;
    }
    atomic_fetch_add(&site->hits, 1);
    uint32_t version = expected_version_of(data);
    expected_fill(number, version, right);
    if (memcmp(data, right, bytes) != 0 || version == 0 ||
        version > atomic_load(&site->versions[number]))
        soak_say(&site->wrong, "wrong bytes", number, status);
    (void)!kvt_quality_observe(site->store, &key, info.variant, 0.001, 1);
}

static void soak_put(soak_thread *self, uint32_t number)
{
    static _Thread_local char data[EXPECTED_BYTES_MAX];
    soak_site *site = self->site;
    kvt_key parent = expected_key_of(number - 1);
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = expected_key_of(number),
                       .parent = number % 4 == 0 ? NULL : &parent,
                       .layout = expected_layout_of(number),
                       .first_position = number % 4 * 32,
                       .recompute_seconds = 1,
                       .class_id = number % 5,
                       .tenant = number % 3};
    expected_fill(number, atomic_fetch_add(&site->versions[number], 1) + 1, data);
    kvt_status status =
        kvt_store_put(site->store, &entry, KVT_PACKED(data, expected_bytes_of(number)));
    if (status == KVT_E_ARGUMENT || status == KVT_E_MEMORY)
        soak_say(&site->odd, "put", number, status);
}

static void soak_look(soak_thread *self, uint32_t number)
{
    soak_site *site = self->site;
    kvt_key keys[8];
    double seconds[8];
    size_t matched;
    kvt_explanation explanation = {.struct_size = sizeof explanation};
    kvt_class_stats class_stats = {.struct_size = sizeof class_stats};
    kvt_device_stats device = {.struct_size = sizeof device};
    kvt_store_stats stats = {.struct_size = sizeof stats};
    const kvt_tenant limits = {
        .struct_size = sizeof limits, .alpha_seconds = 10, .loss_limit = 0.01};
    for (uint32_t i = 0; i < 8; i++)
        keys[i] = expected_key_of(number / 4 * 4 + i);
    switch (expected_random(&self->random) % 8) {
    case 0: (void)!kvt_store_exists(site->store, &keys[0]); break;
    case 1: (void)!kvt_store_match(site->store, keys, 8, NULL, &matched); break;
    case 2:
        (void)!kvt_store_match(site->store, keys, 8, KVT_MATCH(.load_seconds = seconds), NULL);
        break;
    case 3: (void)!kvt_store_explain(site->store, &keys[0], &explanation); break;
    case 4: (void)!kvt_class_stats_get(site->store, number % 5, &class_stats); break;
    case 5: (void)!kvt_device_stats_get(site->store, number % 4, &device); break;
    case 6: (void)!kvt_tenant_set(site->store, 1 + number % 2, &limits); break;
    default: (void)!kvt_store_stats_get(site->store, &stats);
    }
}

/* Brings a device in; true when it serves. */
static bool soak_add(soak_site *site, uint32_t index)
{
    char message[256];
    kvt_status status = KVT_BUSY;
    for (int i = 0; i < 500 && status == KVT_BUSY; i++) {
        status = kvt_device_add(site->store, KVT_TIER_SSD, &site->devices[index], message,
                                sizeof message);
        if (status == KVT_BUSY) nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return status == KVT_OK || status == KVT_E_STATE;
}

static void soak_change_device(soak_thread *self)
{
    soak_site *site = self->site;
    uint32_t index = (uint32_t)(expected_random(&self->random) % SOAK_MEMBERS);
    const char *name = site->devices[index].name;
    uint64_t choice = expected_random(&self->random) % 3;
    atomic_fetch_add(&site->device_changes, 1);
    if (choice == 0) {
        (void)!kvt_device_change(site->store, name, KVT_DEVICE_DRAIN);
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        (void)!kvt_device_change(site->store, name, KVT_DEVICE_SERVE);
        return;
    }
    (void)!kvt_device_change(site->store, name, KVT_DEVICE_RETIRE);
    if (choice == 2) (void)!kvt_device_change(site->store, name, KVT_DEVICE_REMOVE);
    if (!soak_add(site, index)) soak_say(&site->odd, "device add", index, KVT_E_STATE);
}

static void soak_step(soak_thread *self)
{
    soak_site *site = self->site;
    uint64_t choice = expected_random(&self->random) % 1000;
    uint32_t number = (uint32_t)(expected_random(&self->random) % SOAK_KEYS);
    if (expected_random(&self->random) % 2) number %= SOAK_KEYS / 8; /* some are used more */
    kvt_key key = expected_key_of(number);
    atomic_fetch_add(&site->calls, 1);
    if (choice < 500) {
        soak_get(self, number, choice < 25);
    } else if (choice < 750) {
        soak_put(self, number);
    } else if (choice < 830) {
        (void)!kvt_store_delete(site->store, &key);
    } else if (choice < 960) {
        soak_look(self, number);
    } else if (choice < 980) {
        (void)!kvt_store_flush(site->store);
    } else if (choice < 990) {
        (void)!kvt_store_maintain(site->store, NULL);
    } else if (choice == 990 && self->number == 1) {
        (void)!kvt_store_persist(site->store, base_clock_ns() + 20000000, NULL);
    } else if (choice > 990 && choice < 996 && self->number == 0) {
        soak_change_device(self);
    }
}

static void *soak_run_thread(void *argument)
{
    soak_thread *self = argument;
    while (!atomic_load(&self->site->stop))
        soak_step(self);
    return NULL;
}

/* ---- load from outside ---- */

static _Noreturn void soak_burn(void)
{
    volatile uint64_t sum = 0;
    for (;;)
        sum = sum * 31 + 7;
}

/* Writes and syncs a file of 64 MiB round and round. */
static _Noreturn void soak_write(const char *folder)
{
    static char block[1 << 20];
    char path[96];
    snprintf(path, sizeof path, "%s/load-%d", folder, (int)getpid());
    int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
    for (uint32_t i = 0;; i++) {
        if (fd < 0 || pwrite(fd, block, sizeof block, (off_t)(i % 64) << 20) < 0) pause();
        if (i % 16 == 15) (void)!fdatasync(fd);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

/* The children end with this process, whatever ends it. */
static uint32_t soak_start_loads(const soak_site *site, uint32_t count, pid_t *loads)
{
    uint32_t started = 0;
    for (uint32_t i = 0; i < count * 2 && started < SOAK_LOADS_MAX; i++) {
        pid_t child = fork();
        if (child < 0) break;
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (i % 2 == 0) soak_burn();
            soak_write(site->folder);
        }
        loads[started++] = child;
    }
    return started;
}

/* ---- the store ---- */

static void soak_open(soak_site *site, uint64_t seed)
{
    static const char *const names[SOAK_MEMBERS] = {"m0", "m1", "m2"};
    kvt_store_options options;
    char message[256];
    kvt_store_options_init(&options);
    snprintf(site->catalog, sizeof site->catalog, "%s/catalog.db", site->folder);
    options.durability.catalog_path = site->catalog;
    options.seed = seed;
    options.limits.staging_bytes = 16 << 20;
    options.limits.tick_seconds = 0.02;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 8 << 20;
    for (uint32_t i = 0; i < SOAK_MEMBERS; i++) {
        snprintf(site->paths[i], sizeof site->paths[i], "%s/m%u",
                 i == 0 ? site->fast : site->folder, i);
        site->devices[i] = (kvt_device_config){.struct_size = sizeof site->devices[i],
                                               .name = names[i],
                                               .backend = "file",
                                               .path = site->paths[i],
                                               .capacity_bytes = 12 << 20,
                                               .synchronous = i == 1,
                                               .timeout_ns = UINT64_MAX};
    }
    options.tiers[KVT_TIER_SSD] = (kvt_tier_options){.devices = site->devices,
                                                     .device_count = SOAK_MEMBERS,
                                                     .unit_bytes = 16384,
                                                     .rebalance_bytes_per_s = 32000000};
    kvt_status status = kvt_store_open(&options, &site->store, message, sizeof message);
    if (status == KVT_OK) return;
    fprintf(stderr, "open: %s: %s\n", kvt_status_name(status), message);
    exit(2);
}

/* ---- what must be flat ---- */

static uint64_t soak_rss(void)
{
    unsigned long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%lu %lu", &pages, &resident) != 2) resident = 0;
    if (file != NULL) fclose(file);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint32_t soak_descriptors(void)
{
    uint32_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL) closedir(folder);
    return count;
}

/* The means, or for descriptors the largest, of the first and the last third after the warm-up. */
typedef struct soak_flat {
    uint64_t rss_first, rss_last;
    uint32_t descriptors_first, descriptors_last;
} soak_flat;

static soak_flat soak_compare(uint32_t count)
{
    soak_flat flat = {0};
    uint32_t warm = count / 4, third = (count - warm) / 3;
    for (uint32_t i = 0; i < third; i++) {
        const soak_sample *first = &soak_samples[warm + i];
        const soak_sample *last = &soak_samples[count - third + i];
        flat.rss_first += first->rss_bytes / third;
        flat.rss_last += last->rss_bytes / third;
        if (first->descriptors > flat.descriptors_first)
            flat.descriptors_first = first->descriptors;
        if (last->descriptors > flat.descriptors_last) flat.descriptors_last = last->descriptors;
    }
    return flat;
}

static bool soak_is_flat(const soak_flat *flat, uint32_t seconds)
{
    (void)seconds;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return flat->descriptors_last <= flat->descriptors_first + 2; /* its own memory grows */
#else
    bool filled = seconds >= SOAK_JUDGED_SECONDS; /* what is touched once has been touched */
    return (!filled || flat->rss_last <= flat->rss_first + flat->rss_first / 20 + (4 << 20)) &&
           flat->descriptors_last <= flat->descriptors_first + 2;
#endif
}

/* Deletes everything and says how many bytes and ranges are out of place. */
static uint64_t soak_count_left(soak_site *site)
{
    kvt_store_stats stats = {.struct_size = sizeof stats};
    kvt_device_stats device = {.struct_size = sizeof device};
    uint64_t left = 0;
    for (uint32_t i = 0; i < SOAK_MEMBERS; i++)
        left += !soak_add(site, i);
    for (uint32_t i = 0; i < SOAK_KEYS; i++) {
        kvt_key key = expected_key_of(i);
        (void)!kvt_store_delete(site->store, &key);
    }
    left += kvt_store_flush(site->store) != KVT_OK;
    (void)!kvt_store_maintain(site->store, NULL);
    left += kvt_store_flush(site->store) != KVT_OK;
    if (kvt_store_stats_get(site->store, &stats) != KVT_OK) return UINT64_MAX;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        left += stats.tiers[tier].used_bytes + stats.tiers[tier].entries +
                stats.policy.used_bytes[tier];
    left += stats.policy.moves_in_flight + stats.staging_bytes;
    for (size_t i = 0; kvt_device_stats_get(site->store, i, &device) == KVT_OK; i++)
        left += device.used_bytes + (device.free_bytes - device.free_bytes_largest);
    return left;
}

/* ---- the run ---- */

/* Samples until the time is over; says the latency of every thirtieth part of it. */
static uint32_t soak_watch(soak_site *site, uint32_t seconds, double *first_out, double *last_out)
{
    uint64_t begun = base_clock_ns(), end = begun + seconds * UINT64_C(1000000000);
    uint64_t part = (end - begun) / (seconds < 300 ? 5 : 30), next = begun + part;
    uint64_t step = (end - begun) / SOAK_SAMPLES + 100000000;
    uint64_t from[SOAK_BUCKETS] = {0}, to[SOAK_BUCKETS];
    uint32_t count = 0, parts = 0;
    while (base_clock_ns() < end) {
        nanosleep(&(struct timespec){.tv_nsec = (long)step}, NULL);
        soak_samples[count] =
            (soak_sample){.rss_bytes = soak_rss(), .descriptors = soak_descriptors()};
        if (count + 1 < SOAK_SAMPLES) count++;
        if (base_clock_ns() < next) continue;
        soak_copy_times(site, to);
        *last_out = soak_quantile_us(from, to, 0.99);
        if (++parts == 2) *first_out = *last_out; /* after the warm-up */
        fprintf(stderr, "%4.0f s: get p50 %.0f us, p99 %.0f us; rss %llu KiB, %u descriptors\n",
                (double)(base_clock_ns() - begun) * 1e-9, soak_quantile_us(from, to, 0.5),
                *last_out, (unsigned long long)soak_rss() >> 10, soak_descriptors());
        memcpy(from, to, sizeof from);
        next += part;
    }
    return count;
}

static void soak_make_folders(soak_site *site)
{
    snprintf(site->folder, sizeof site->folder, "kvt-test-soak-%d", (int)getpid());
    snprintf(site->fast, sizeof site->fast, "%s",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm/kvt-test-soak-XXXXXX"
                                           : "kvt-test-soak-XXXXXX");
    if (mkdir(site->folder, 0700) != 0 || mkdtemp(site->fast) == NULL) abort();
}

static void soak_remove(const char *folder)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0) fprintf(stderr, "cannot remove %s\n", folder);
}

static int soak_run(soak_site *site, const soak_options *options)
{
    soak_thread threads[SOAK_THREADS];
    uint64_t random = options->seed;
    double p99_first = 0, p99_last = 0;
    soak_open(site, options->seed);
    for (uint32_t i = 0; i < SOAK_THREADS; i++) {
        threads[i] = (soak_thread){.site = site, .number = i, .random = expected_random(&random)};
        if (pthread_create(&threads[i].thread, NULL, soak_run_thread, &threads[i]) != 0) abort();
    }
    uint32_t count = soak_watch(site, options->seconds, &p99_first, &p99_last);
    atomic_store(&site->stop, true);
    for (uint32_t i = 0; i < SOAK_THREADS; i++)
        pthread_join(threads[i].thread, NULL);
    uint64_t left = soak_count_left(site);
    kvt_store_close(site->store);
    soak_flat flat = soak_compare(count);
    printf("seed=%llu seconds=%u threads=%d calls=%llu hits=%llu device_changes=%llu "
           "wrong_bytes=%llu odd=%llu left_after_deletes=%llu rss_first_kib=%llu "
           "rss_last_kib=%llu descriptors_first=%u descriptors_last=%u get_p99_us_first=%.0f "
           "get_p99_us_last=%.0f\n",
           (unsigned long long)options->seed, options->seconds, SOAK_THREADS,
           (unsigned long long)site->calls, (unsigned long long)site->hits,
           (unsigned long long)site->device_changes, (unsigned long long)site->wrong,
           (unsigned long long)site->odd, (unsigned long long)left,
           (unsigned long long)flat.rss_first >> 10, (unsigned long long)flat.rss_last >> 10,
           flat.descriptors_first, flat.descriptors_last, p99_first, p99_last);
    return site->wrong == 0 && site->odd == 0 && left == 0 && soak_is_flat(&flat, options->seconds)
               ? 0
               : 1;
}

static bool soak_parse(soak_options *options, int count, char **words)
{
    for (int i = 1; i + 1 < count; i += 2) {
        unsigned long long value = strtoull(words[i + 1], NULL, 0);
        if (strcmp(words[i], "--seconds") == 0 && value > 0) {
            options->seconds = (uint32_t)value;
        } else if (strcmp(words[i], "--seed") == 0) {
            options->seed = value;
        } else if (strcmp(words[i], "--load") == 0) {
            options->loads = (uint32_t)value;
        } else {
            return false;
        }
    }
    return count % 2 == 1;
}

int main(int count, char **words)
{
    static soak_site site;
    soak_options options = {.seconds = 12, .seed = 1, .loads = 1};
    pid_t loads[SOAK_LOADS_MAX];
    if (!soak_parse(&options, count, words)) {
        fprintf(stderr, "usage: %s [--seconds N] [--seed S] [--load N]\n", words[0]);
        return 2;
    }
    soak_make_folders(&site);
    uint32_t started = soak_start_loads(&site, options.loads, loads);
    int result = soak_run(&site, &options);
    for (uint32_t i = 0; i < started; i++) {
        kill(loads[i], SIGKILL);
        while (waitpid(loads[i], NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    soak_remove(site.folder);
    soak_remove(site.fast);
    return result;
}
