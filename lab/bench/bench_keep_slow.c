/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_keep_slow.c - one drive of four that answers late: how soon its share of new writes and of
 * reads goes, and comes back when it is well, what the others do meanwhile, and what gets pay.
 *
 *     before -> each answer comes 50 ms or 2 s later -> well again
 *
 * Entries are put and got all along, each for a third of what the drives can do; gets are of random
 * ones of those that were put lately and lie on the drives. A share is that of the bytes that a
 * window of a quarter of a second took to the drives.
 *
 * Thread rule: one case at a time.
 */
#include "bench_keep_site.h"

#include <math.h>
#include <stdlib.h>

#define SLOW_ENTRY_BYTES (UINT64_C(256) << 10)
#define SLOW_UNIT_BYTES  (16u << 10)
#define SLOW_TICK_NS     UINT64_C(25000000)
#define SLOW_GONE        0.25 /* of its share before */
#define SLOW_BACK        0.75
#define SLOW_USED        0.33                 /* of the drives' bandwidth, by puts and by gets */
#define SLOW_WAIT_NS     UINT64_C(1000000000) /* the deadline of a get */

enum {
    SLOW_DRIVE = 2,
    SLOW_PUTTERS = 2,
    SLOW_READERS = 4,
    SLOW_WINDOW = 10, /* ticks */
    SLOW_RECENT = 64, /* entries that are read, */
    SLOW_BEHIND = 48, /* behind those whose puts may be under way */
    SLOW_TIER_MIB = 1024
};

/* Seconds of each phase. */
typedef struct slow_size {
    double before, slow, well;
    uint64_t bytes_per_s;
} slow_size;

static const slow_size slow_full = {.before = 5, .slow = 10, .well = 15, .bytes_per_s = 400000000};
static const slow_size slow_quick = {.before = 2, .slow = 3, .well = 3, .bytes_per_s = 32000000};

/* Bytes that the drives had taken at an instant. */
typedef struct slow_tick {
    uint64_t at_ns;
    uint64_t bytes[BENCH_OWN_DRIVES][2];
    double weight; /* of the slow drive */
} slow_tick;

typedef struct slow_run {
    keep_site site;
    const slow_size *size;
    _Atomic uint32_t put;
    atomic_bool stops;
    _Atomic uint32_t put_failures;
    slow_tick *ticks;
    uint32_t tick_count, tick_room;
    uint64_t slow_ns, well_ns, end_ns; /* instants at which phases begin */
} slow_run;

static void *slow_put(void *context)
{
    slow_run *run = context;
    void *buffer = bench_buffer(SLOW_ENTRY_BYTES);
    const double per_s =
        SLOW_USED * (double)run->size->bytes_per_s / (double)SLOW_ENTRY_BYTES / SLOW_PUTTERS;
    uint64_t due_ns = base_clock_ns(), random = (uint64_t)(uintptr_t)buffer;
    while (buffer != NULL && !atomic_load(&run->stops)) {
        due_ns = keep_pace(due_ns, per_s, &random);
        const uint32_t number = atomic_fetch_add(&run->put, 1);
        if (keep_put(&run->site, buffer, number) != KVT_OK) atomic_fetch_add(&run->put_failures, 1);
        if (number > SLOW_RECENT + SLOW_BEHIND)
            atomic_store(&run->site.first, number - SLOW_RECENT - SLOW_BEHIND);
    }
    if (buffer == NULL) atomic_fetch_add(&run->put_failures, 1);
    free(buffer);
    return NULL;
}

/* Samples the drives until an instant. */
static void slow_sample(slow_run *run, double seconds)
{
    const uint64_t end_ns = base_clock_ns() + (uint64_t)(seconds * 1e9);
    for (;;) {
        kvt_device_stats stats = {.struct_size = sizeof stats};
        slow_tick tick = {.at_ns = base_clock_ns()};
        for (int i = 0; i < BENCH_OWN_DRIVES; i++)
            for (int kind = 0; kind < 2; kind++)
                tick.bytes[i][kind] = atomic_load(&run->site.drives[i]->bytes[kind]);
        if (kvt_device_stats_get(run->site.store, SLOW_DRIVE, &stats) == KVT_OK)
            tick.weight = stats.weight_bytes_per_s;
        if (run->tick_count < run->tick_room) run->ticks[run->tick_count++] = tick;
        if (tick.at_ns >= end_ns) return;
        base_sleep_until(tick.at_ns + SLOW_TICK_NS);
    }
}

static uint32_t slow_tick_at(const slow_run *run, uint64_t at_ns)
{
    uint32_t i = 0;
    while (i + 1 < run->tick_count && run->ticks[i].at_ns < at_ns)
        i++;
    return i;
}

/* The slow drive's share of the bytes between two ticks; 0 without any. */
static double slow_share(const slow_run *run, kvt_io_kind kind, uint32_t from, uint32_t to)
{
    double own = 0, all = 0;
    for (int i = 0; i < BENCH_OWN_DRIVES; i++) {
        const double bytes =
            (double)(run->ticks[to].bytes[i][kind] - run->ticks[from].bytes[i][kind]);
        all += bytes;
        own += i == SLOW_DRIVE ? bytes : 0;
    }
    return all > 0 ? own / all : 0;
}

/* Bytes a second that the other drives took between two instants. */
static double slow_others(const slow_run *run, kvt_io_kind kind, uint64_t from_ns, uint64_t to_ns)
{
    const slow_tick *first = &run->ticks[slow_tick_at(run, from_ns)];
    const slow_tick *last = &run->ticks[slow_tick_at(run, to_ns)];
    double bytes = 0;
    for (int i = 0; i < BENCH_OWN_DRIVES; i++)
        if (i != SLOW_DRIVE) bytes += (double)(last->bytes[i][kind] - first->bytes[i][kind]);
    return last->at_ns > first->at_ns ? bytes / (1e-9 * (double)(last->at_ns - first->at_ns)) : 0;
}

/* Seconds from an instant until the first window from which on the share stays below a bound until
 * another one; beyond that: it never does. */
static double slow_gone(const slow_run *run, kvt_io_kind kind, double bound)
{
    const uint32_t first = slow_tick_at(run, run->slow_ns), end = slow_tick_at(run, run->well_ns);
    uint32_t last = first;
    for (uint32_t i = first; i + SLOW_WINDOW <= end; i++)
        if (slow_share(run, kind, i, i + SLOW_WINDOW) > bound) last = i + 1;
    return 1e-9 * (double)(run->ticks[last].at_ns - run->slow_ns);
}

/* Seconds from the end of the delay until the first window whose share is above a bound; -1: there
 * was none. */
static double slow_back(const slow_run *run, kvt_io_kind kind, double bound)
{
    for (uint32_t i = slow_tick_at(run, run->well_ns); i + SLOW_WINDOW < run->tick_count; i++)
        if (slow_share(run, kind, i, i + SLOW_WINDOW) > bound)
            return 1e-9 * (double)(run->ticks[i + SLOW_WINDOW].at_ns - run->well_ns);
    return -1;
}

/* Seconds from the delay on until the placement's weight of the drive is below a share of it. */
static double slow_weighed(const slow_run *run)
{
    const uint32_t first = slow_tick_at(run, run->slow_ns);
    for (uint32_t i = first; i < run->tick_count; i++)
        if (run->ticks[i].weight < SLOW_GONE * run->ticks[first].weight)
            return 1e-9 * (double)(run->ticks[i].at_ns - run->slow_ns);
    return -1;
}

static void slow_rows(const slow_run *run, uint32_t delay_ms, bench_report *report)
{
    static const char *const kinds[2] = {"reads", "writes"};
    const uint64_t second = UINT64_C(1000000000);
    const uint64_t from_ns = run->slow_ns - (uint64_t)(run->size->before * 0.8e9);
    const uint64_t settled_ns = run->slow_ns + second;
    for (int kind = 0; kind < 2; kind++) {
        const double before = slow_share(run, (kvt_io_kind)kind, slow_tick_at(run, from_ns),
                                         slow_tick_at(run, run->slow_ns));
        const double others = slow_others(run, (kvt_io_kind)kind, from_ns, run->slow_ns);
        const double first = slow_others(run, (kvt_io_kind)kind, run->slow_ns, settled_ns);
        const double settled = slow_others(run, (kvt_io_kind)kind, settled_ns, run->well_ns);
        bench_report_row(
            report, "slow",
            json_pack("{s:I, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "delay_ms",
                      (json_int_t)delay_ms, "kind", kinds[kind], "share_before", before,
                      "gone_seconds", slow_gone(run, (kvt_io_kind)kind, SLOW_GONE * before),
                      "gone_seconds_asked", 1.0, "back_seconds",
                      slow_back(run, (kvt_io_kind)kind, SLOW_BACK * before), "back_seconds_asked",
                      10.0, "others_bytes_per_s", others, "others_first_second", first / others,
                      "others_then", settled / others, "others_asked", 0.95));
    }
    bench_report_row(
        report, "slow_gets",
        json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "delay_ms", (json_int_t)delay_ms,
                  "weight_gone_seconds", slow_weighed(run), "p99_before_seconds",
                  keep_quantile(&run->site, from_ns, run->slow_ns, 0.99), "p99_first_second",
                  keep_quantile(&run->site, run->slow_ns, settled_ns, 0.99), "p99_then_seconds",
                  keep_quantile(&run->site, settled_ns, run->well_ns, 0.99), "p50_then_seconds",
                  keep_quantile(&run->site, settled_ns, run->well_ns, 0.5), "p99_back_seconds",
                  keep_quantile(&run->site, run->well_ns, run->well_ns + 10 * second, 0.99),
                  "p99_end_seconds",
                  keep_quantile(&run->site, run->end_ns - 2 * second, run->end_ns, 0.99)));
}

/* Counts what went wrong, and judges it. */
static kvt_status slow_judge(const slow_run *run, uint32_t delay_ms, bench_report *report)
{
    uint64_t wrong = 0, missed = 0, timed_out = 0, late = 0, gets = 0;
    for (uint32_t i = 0; i < run->site.reader_count; i++) {
        const keep_reader *reader = &run->site.readers[i];
        wrong += reader->wrong;
        missed += reader->missed;
        timed_out += reader->timed_out;
        late += reader->late;
        gets += reader->count;
    }
    missed += atomic_load(&run->put_failures);
    bench_report_row(report, "keep_faults",
                     json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "part", "slow", "delay_ms",
                               (json_int_t)delay_ms, "gets", (json_int_t)gets, "wrong",
                               (json_int_t)wrong, "lost", (json_int_t)missed, "timed_out",
                               (json_int_t)timed_out, "late", (json_int_t)late));
    if (wrong + missed > 0)
        return bench_blame(report, KVT_E_CORRUPT, "a slow drive", "bytes are wrong or lost");
    return KVT_OK;
}

static kvt_status slow_phases(const bench_options *options, slow_run *run, uint32_t delay_ms)
{
    pthread_t putters[SLOW_PUTTERS];
    uint32_t started = 0;
    keep_site *site = &run->site;
    const slow_size *size = run->size;
    _Atomic uint64_t *delay_ns = &site->drives[SLOW_DRIVE]->delay_ns;
    kvt_status status = KVT_OK;
    for (; started < SLOW_PUTTERS; started++)
        if (pthread_create(&putters[started], NULL, slow_put, run) != 0) break;
    if (started < SLOW_PUTTERS) status = KVT_E_MEMORY;
    while (status == KVT_OK && atomic_load(&run->put_failures) == 0 &&
           atomic_load(&run->put) < 2 * (SLOW_RECENT + SLOW_BEHIND))
        base_sleep(1000000);
    if (status == KVT_OK) status = keep_read(site, SLOW_READERS);
    (void)bench_tell(options, delay_ms > 100, 2, "a slow drive");
    if (status == KVT_OK) {
        slow_sample(run, size->before);
        run->slow_ns = base_clock_ns();
        atomic_store(delay_ns, delay_ms * UINT64_C(1000000));
        slow_sample(run, size->slow);
        run->well_ns = base_clock_ns();
        atomic_store(delay_ns, 0);
        slow_sample(run, size->well);
        run->end_ns = base_clock_ns();
        keep_read_end(site);
    }
    atomic_store(&run->stops, true);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(putters[i], NULL);
    return status;
}

static kvt_status slow_once(const bench_options *options, uint32_t delay_ms, bench_report *report)
{
    slow_run *run = calloc(1, sizeof *run);
    if (run == NULL) return KVT_E_MEMORY;
    const slow_size *size = run->size = options->quick ? &slow_quick : &slow_full;
    run->tick_room = (uint32_t)((size->before + size->slow + size->well) * 1e9 / SLOW_TICK_NS) + 8;
    run->ticks = calloc(run->tick_room, sizeof *run->ticks);
    keep_site *site = &run->site;
    site->entry_bytes = SLOW_ENTRY_BYTES;
    site->span = SLOW_RECENT;
    site->wait_ns = SLOW_WAIT_NS;
    site->gets_per_s =
        SLOW_USED * (double)size->bytes_per_s / (double)SLOW_ENTRY_BYTES / SLOW_READERS;
    kvt_store_options_init(&site->options);
    site->options.limits.put_staging_bytes = 16 * SLOW_ENTRY_BYTES;
    site->options.scrub.period_seconds = 0;
    kvt_status status = run->ticks == NULL ? KVT_E_MEMORY : KVT_OK;
    if (status == KVT_OK)
        status = keep_site_open(site, UINT64_C(1048576) * SLOW_TIER_MIB, size->bytes_per_s,
                                SLOW_UNIT_BYTES);
    if (status == KVT_OK) status = slow_phases(options, run, delay_ms);
    if (status == KVT_OK) {
        slow_rows(run, delay_ms, report);
        status = slow_judge(run, delay_ms, report);
    } else {
        status = bench_blame(report, status, "a slow drive", site->message);
    }
    keep_site_close(site);
    free(run->ticks);
    free(run);
    return status;
}

kvt_status bench_keep_slow(const bench_options *options, bench_report *report)
{
    const kvt_status status = slow_once(options, 50, report);
    return status == KVT_OK ? slow_once(options, 2000, report) : status;
}
