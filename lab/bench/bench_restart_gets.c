/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_restart_gets.c - gets beside the background's write-back.
 *
 * Two threads read entries, of which most lie on SSD; memory is full of entries that have no record
 * there when they begin. The rates take turns, so that what else the machine does falls on all of
 * them; a store is filled anew for each run.
 *
 * Thread rule: as bench_restart.h; the readers share nothing but the store.
 */
#include "base/clock.h"
#include "bench_restart.h"

#include "bench_scratch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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

static int gets_compare(const void *left, const void *right)
{
    float a = *(const float *)left, b = *(const float *)right;
    return (a > b) - (a < b);
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
    qsort(seconds, count, sizeof *seconds, gets_compare);
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
