/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_keep_scrub.c - the scrub: whether it finds every planted fault within its period, what it
 * reads of each drive meanwhile, and what gets beside it pay.
 *
 * A bit is flipped in records that nobody reads, anywhere in each, on all drives. Other records are
 * read all along, in pairs of blocks: the scrub has its share of the bandwidth in one of them, and
 * none in the other. A pair counts as long as the scrub has something to read.
 *
 * Thread rule: one case at a time.
 */
#include "bench_keep_site.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The size of a run: its entries, its drives, its seconds. */
typedef struct scrub_size {
    uint32_t kept, faults; /* entries that nobody reads, and how many of them are damaged */
    uint32_t read;         /* entries that are */
    uint64_t bytes_per_s;  /* of all drives */
    double share, period_seconds, block_seconds;
} scrub_size;

static const scrub_size scrub_full = {.kept = 4000,
                                      .faults = 1000,
                                      .read = 400,
                                      .bytes_per_s = 800000000,
                                      .share = 0.01,
                                      .period_seconds = 300,
                                      .block_seconds = 5};
static const scrub_size scrub_quick = {.kept = 80,
                                       .faults = 40,
                                       .read = 20,
                                       .bytes_per_s = 160000000,
                                       .share = 0.2,
                                       .period_seconds = 30,
                                       .block_seconds = 0.25};

#define MIB               (UINT64_C(1) << 20)
#define SCRUB_ENTRY_BYTES (UINT64_C(128) << 10)
#define SCRUB_UNIT_BYTES  (16u << 10)
#define SCRUB_USED        0.2 /* of the drives' bandwidth, by gets */

enum { SCRUB_READERS = 2, SCRUB_PAIRS_MAX = 64 };

/* Quantiles of the gets in a pair of blocks. */
typedef struct scrub_pair {
    double p50[2], p99[2]; /* without the scrub, with it */
} scrub_pair;

typedef struct scrub_run {
    keep_site site;
    const scrub_size *size;
    void *buffer;
    uint32_t faults_by_drive[BENCH_OWN_DRIVES];
    double share_most[BENCH_OWN_DRIVES]; /* of its bandwidth, that the scrub had in a block */
    double scrubbed[BENCH_OWN_DRIVES];   /* bytes, in all blocks with it */
    double with_seconds;
    double found_seconds; /* from the last fault on, the blocks without the scrub included */
    scrub_pair pairs[SCRUB_PAIRS_MAX];
    uint32_t pair_count;
} scrub_run;

static void scrub_share_set(keep_site *site, double share)
{
    kvt_store *store = site->store;
    pthread_mutex_lock(&store->lock);
    store->scrub.share = share;
    pthread_mutex_unlock(&store->lock);
}

/* Begins the next lap now: the one of the open has ended on the empty table. */
static void scrub_begin_lap(keep_site *site)
{
    kvt_store *store = site->store;
    pthread_mutex_lock(&store->lock);
    store->scrub.lap_began_ns = store_now_ns(store) - store->scrub.lap_ns;
    pthread_mutex_unlock(&store->lock);
}

static uint64_t scrub_found(keep_site *site)
{
    pthread_mutex_lock(&site->store->lock);
    const uint64_t damaged = site->store->scrub.damaged;
    pthread_mutex_unlock(&site->store->lock);
    return damaged;
}

/* The entries that are damaged lie among the others. */
static bool scrub_is_planted(const scrub_size *size, uint32_t number)
{
    return number < size->kept && number % (size->kept / size->faults) == 0;
}

/* Flips a bit of a record on its drive. */
static void scrub_plant(scrub_run *run, uint32_t number, uint64_t random)
{
    const tiers_location *location = keep_location(&run->site, number);
    const uint64_t offset = random % location->bytes;
    for (uint32_t i = 0; i < location->share_count; i++) {
        tiers_walk walk;
        tiers_piece piece;
        tiers_walk_init(&walk, location, i, offset / TIERS_GRAIN_BYTES * TIERS_GRAIN_BYTES,
                        TIERS_GRAIN_BYTES);
        if (!tiers_walk_next(&walk, TIERS_GRAIN_BYTES, &piece)) continue;
        const uint32_t drive = location->shares[i].member;
        unsigned char *bytes = kvt_device_memory(run->site.drives[drive]->layer.inner);
        bytes[piece.device_offset + offset % TIERS_GRAIN_BYTES] ^=
            (unsigned char)(1u << random % 8);
        run->faults_by_drive[drive]++;
    }
}

static kvt_status scrub_fill(scrub_run *run)
{
    const scrub_size *size = run->size;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < size->kept + size->read && status == KVT_OK; i++)
        status = keep_put(&run->site, run->buffer, i);
    if (status == KVT_OK) status = kvt_store_flush(run->site.store);
    for (uint32_t i = 0; i < size->kept + size->read && status == KVT_OK; i++)
        if (keep_location(&run->site, i) == NULL) status = KVT_E_STATE;
    for (uint32_t i = 0; i < size->kept && status == KVT_OK; i++)
        if (scrub_is_planted(size, i)) scrub_plant(run, i, lab_mix(i + 1));
    return status;
}

/* The bytes that drives have read beside the gets. */
static void scrub_bytes(const scrub_run *run, double bytes[BENCH_OWN_DRIVES])
{
    for (int i = 0; i < BENCH_OWN_DRIVES; i++)
        bytes[i] = (double)atomic_load(&run->site.drives[i]->bytes[KVT_IO_READ]) -
                   (double)atomic_load(&run->site.bytes_got[i]);
}

/* One block; the instants of its gets. */
static void scrub_block(scrub_run *run, bool with, uint64_t *from_ns, uint64_t *to_ns)
{
    keep_site *site = &run->site;
    double before[BENCH_OWN_DRIVES], after[BENCH_OWN_DRIVES];
    scrub_share_set(site, with ? run->size->share : 0);
    base_sleep(100000000); /* what is under way ends, and what is saved up is spent */
    scrub_bytes(run, before);
    *from_ns = base_clock_ns();
    *to_ns = *from_ns + (uint64_t)(run->size->block_seconds * 1e9);
    base_sleep_until(*to_ns);
    scrub_bytes(run, after);
    const double seconds = 1e-9 * (double)(base_clock_ns() - *from_ns);
    for (int i = 0; with && i < BENCH_OWN_DRIVES; i++) {
        const double rate = (after[i] - before[i]) / seconds;
        run->share_most[i] =
            fmax(run->share_most[i], rate / (double)site->configs[i].read_bytes_per_s);
        run->scrubbed[i] += after[i] - before[i];
    }
    if (with) run->with_seconds += seconds;
}

/* Pairs of blocks until all is found, or the period has passed. */
static kvt_status scrub_blocks(const bench_options *options, scrub_run *run)
{
    const scrub_size *size = run->size;
    uint64_t bounds[SCRUB_PAIRS_MAX][2][2];
    const uint64_t began_ns = base_clock_ns();
    kvt_status status = keep_read(&run->site, SCRUB_READERS);
    if (status != KVT_OK) return status;
    while (run->pair_count < SCRUB_PAIRS_MAX && run->found_seconds == 0) {
        const double seconds = 1e-9 * (double)(base_clock_ns() - began_ns);
        if (seconds > size->period_seconds) break;
        const bool first = run->pair_count % 2 == 1; /* which goes first changes */
        for (int i = 0; i < 2; i++) {
            const bool with = (i == 1) != first;
            uint64_t(*bound)[2] = &bounds[run->pair_count][with];
            scrub_block(run, with, &(*bound)[0], &(*bound)[1]);
        }
        run->pair_count++;
        const uint64_t found = scrub_found(&run->site);
        if (found >= size->faults) run->found_seconds = 1e-9 * (double)(base_clock_ns() - began_ns);
        if (!bench_tell(options, (double)found, size->faults, "scrubbing"))
            status = KVT_E_CANCELLED;
        if (status != KVT_OK) break;
    }
    keep_read_end(&run->site);
    for (uint32_t i = 0; i < run->pair_count; i++)
        for (int with = 0; with < 2; with++) {
            const uint64_t *bound = bounds[i][with];
            run->pairs[i].p50[with] = keep_quantile(&run->site, bound[0], bound[1], 0.5);
            run->pairs[i].p99[with] = keep_quantile(&run->site, bound[0], bound[1], 0.99);
        }
    return status;
}

/* The median of a figure's ratio, with the scrub to without it, over the pairs. */
static bench_rate scrub_ratio(const scrub_run *run, bool p99)
{
    double ratios[SCRUB_PAIRS_MAX];
    uint32_t count = 0; /* of pairs in which gets came on time */
    for (uint32_t i = 0; i < run->pair_count; i++) {
        const double *figure = p99 ? run->pairs[i].p99 : run->pairs[i].p50;
        if (figure[0] > 0 && figure[1] > 0) ratios[count++] = figure[1] / figure[0];
    }
    return count > 0 ? bench_rate_of(ratios, count) : (bench_rate){0};
}

static double scrub_p99(const scrub_run *run, bool with)
{
    double seconds[SCRUB_PAIRS_MAX];
    for (uint32_t i = 0; i < run->pair_count; i++)
        seconds[i] = run->pairs[i].p99[with];
    return bench_rate_of(seconds, run->pair_count).median;
}

/* Looks every entry up, behind the last block: none that is damaged may be there, every other one
 * has its bytes. */
static void scrub_judge(scrub_run *run, uint32_t *left, uint32_t *lost, uint32_t *wrong)
{
    const scrub_size *size = run->size;
    for (uint32_t i = 0; i < size->kept + size->read; i++) {
        const bool planted = scrub_is_planted(size, i);
        const bool there = !planted || keep_location(&run->site, i) != NULL;
        const kvt_status status =
            there ? keep_get(&run->site, run->buffer, i, KVT_NO_DEADLINE, NULL) : KVT_MISS;
        *left += planted && there;
        *lost += !planted && status != KVT_OK && status != KVT_E_CORRUPT;
        *wrong += status == KVT_E_CORRUPT;
    }
}

static kvt_status scrub_report(scrub_run *run, bench_report *report)
{
    const scrub_size *size = run->size;
    uint32_t left = 0, lost = 0, wrong = 0;
    const uint64_t found = scrub_found(&run->site);
    for (uint32_t i = 0; i < run->site.reader_count; i++) {
        wrong += (uint32_t)run->site.readers[i].wrong;
        lost += (uint32_t)run->site.readers[i].missed;
    }
    scrub_judge(run, &left, &lost, &wrong);
    for (int i = 0; i < BENCH_OWN_DRIVES; i++) {
        const double bytes_per_s = (double)run->site.configs[i].read_bytes_per_s;
        bench_report_row(report, "scrub_drives",
                         json_pack("{s:s, s:f, s:I, s:f, s:f, s:f}", "drive",
                                   run->site.configs[i].name, "bytes_per_s", bytes_per_s, "faults",
                                   (json_int_t)run->faults_by_drive[i], "share",
                                   run->scrubbed[i] / run->with_seconds / bytes_per_s, "share_most",
                                   run->share_most[i], "share_asked", size->share));
    }
    const bench_rate p50 = scrub_ratio(run, false), p99 = scrub_ratio(run, true);
    json_t *row = json_pack("{s:I, s:I, s:I, s:f, s:f, s:I, s:f, s:f, s:f}", "planted",
                            (json_int_t)size->faults, "found", (json_int_t)found, "left",
                            (json_int_t)left, "found_seconds", run->found_seconds, "period_seconds",
                            size->period_seconds, "pairs", (json_int_t)run->pair_count,
                            "p99_without_seconds", scrub_p99(run, false), "p99_with_seconds",
                            scrub_p99(run, true), "p99_ratio_asked", 1.02);
    row = bench_with_rate(row, "p50_ratio", &p50);
    bench_report_row(report, "scrub", bench_with_rate(row, "p99_ratio", &p99));
    bench_report_row(report, "keep_faults",
                     json_pack("{s:s, s:I, s:I, s:I}", "part", "scrub", "wrong", (json_int_t)wrong,
                               "lost", (json_int_t)lost, "late", (json_int_t)0));
    if (wrong + lost > 0)
        return bench_blame(report, KVT_E_CORRUPT, "scrub", "bytes are wrong or lost");
    if (found != size->faults || left > 0)
        return bench_blame(report, KVT_E_CORRUPT, "scrub", "planted faults were not found");
    return KVT_OK;
}

kvt_status bench_keep_scrub(const bench_options *options, bench_report *report)
{
    scrub_run *run = calloc(1, sizeof *run);
    if (run == NULL) return KVT_E_MEMORY;
    run->size = options->quick ? &scrub_quick : &scrub_full;
    keep_site *site = &run->site;
    site->entry_bytes = SCRUB_ENTRY_BYTES;
    kvt_store_options_init(&site->options);
    site->options.scrub = (kvt_scrub_options){
        .period_seconds = run->size->period_seconds, .share = run->size->share, .faults = 0};
    site->first = run->size->kept;
    site->span = run->size->read;
    site->gets_per_s =
        SCRUB_USED * (double)run->size->bytes_per_s / (double)SCRUB_ENTRY_BYTES / SCRUB_READERS;
    site->counted = true;
    run->buffer = bench_buffer(SCRUB_ENTRY_BYTES);
    const uint64_t bytes = (run->size->kept + run->size->read) * (SCRUB_ENTRY_BYTES + (16 << 10));
    kvt_status status = run->buffer == NULL ? KVT_E_MEMORY : KVT_OK;
    if (status == KVT_OK)
        status = keep_site_open(site, (bytes / MIB + 64) * MIB / 4 * 5, run->size->bytes_per_s,
                                SCRUB_UNIT_BYTES);
    if (status == KVT_OK) scrub_share_set(site, 0);
    if (status == KVT_OK) status = scrub_fill(run);
    if (status == KVT_OK) scrub_begin_lap(site);
    if (status == KVT_OK) status = scrub_blocks(options, run);
    if (status == KVT_OK)
        status = scrub_report(run, report);
    else
        status = bench_blame(report, status, "scrub", site->message);
    keep_site_close(site);
    free(run->buffer);
    free(run);
    return status;
}
