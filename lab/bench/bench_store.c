/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_store.c - what the store's calls cost beside memcpy: gets and puts of entries in DRAM, gets
 * on two threads, and a lookup among many entries.
 *
 * Every repeat runs memcpy and each call once, one after the other, over memory that is equally
 * cold (bench_store.h). A ratio is made within one repeat, and its median counts.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_store.h"

#include "lab/private.h"

#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

enum {
    STORE_REPEATS = 9,
    STORE_REPEATS_QUICK = 5,
    STORE_ENTRIES = 1000000,
    STORE_ENTRIES_QUICK = 20000,
    STORE_EXISTS_BYTES = 4096,
    STORE_EXISTS_CALLS = 100000,
    STORE_MATCH_CALLS = 2000,
    STORE_PREFIX_ROUNDS = 20 /* of a repeat */
};

static const uint64_t store_sizes[] = {MIB / 32, MIB / 4, 4 * MIB, 32 * MIB};
enum { STORE_SIZES = sizeof store_sizes / sizeof store_sizes[0] };

typedef struct store_bench {
    const bench_options *options;
    bench_report *report;
    uint32_t repeats;
    uint32_t failed;
} store_bench;

/* Samples of one row over all repeats. */
typedef struct store_samples {
    double rate[STORE_BENCH_REPEATS_MAX];    /* bytes per second of the median call */
    double ratio[STORE_BENCH_REPEATS_MAX];   /* to memcpy */
    double per_s[STORE_BENCH_REPEATS_MAX];   /* calls, of all threads */
    double speedup[STORE_BENCH_REPEATS_MAX]; /* of two threads, to one */
    uint64_t *ns;
    uint64_t *parts[STORE_BENCH_PARTS];
    uint32_t ns_count;
} store_samples;

static uint64_t store_quantile(uint64_t *ns, uint32_t count, double share)
{
    qsort(ns, count, sizeof *ns, base_order_u64);
    return count == 0 ? 0 : ns[(uint32_t)(share * (count - 1))];
}

/* Calls of one batch. */
static uint32_t store_batch_of(uint32_t calls)
{
    return calls < STORE_BENCH_BATCH_OF ? calls : STORE_BENCH_BATCH_OF;
}

/* Runs one loop on so many threads and books it as one repeat. */
static void store_measure(store_bench *bench, store_bench_site *site, store_bench_call call,
                          uint32_t threads, uint32_t calls, uint32_t *first, uint32_t repeat,
                          store_samples *samples)
{
    store_bench_loop loops[STORE_BENCH_THREADS_MAX];
    uint32_t each = calls / threads;
    for (uint32_t i = 0; i < threads; i++) {
        size_t at = samples->ns_count + (size_t)i * each;
        loops[i] = (store_bench_loop){.site = site,
                                      .call = call,
                                      .thread = i,
                                      .threads = threads,
                                      .calls = each,
                                      .batch = store_batch_of(each),
                                      .first = *first + i,
                                      .ns = samples->ns + at};
        for (int part = 0; part < STORE_BENCH_PARTS; part++)
            loops[i].parts[part] = samples->parts[part] + at;
    }
    uint64_t wall_ns = store_bench_run(loops, threads);
    uint64_t sum_ns = 0;
    for (uint32_t i = 0; i < threads; i++) {
        bench->failed += loops[i].failed;
        sum_ns += loops[i].sum_ns;
    }
    *first = loops[0].first;
    uint64_t *ns = samples->ns + samples->ns_count;
    samples->ns_count += each * threads;
    samples->rate[repeat] =
        bench_bytes_per_s(site->bytes * threads, store_quantile(ns, each * threads, 0.5));
    /* With one thread the time between the calls is not theirs. */
    samples->per_s[repeat] =
        bench_bytes_per_s((uint64_t)each * threads, threads == 1 ? sum_ns : wall_ns);
}

static bool store_samples_make(store_samples *samples, uint32_t repeats, uint32_t calls)
{
    const size_t bytes = (size_t)repeats * calls * sizeof(uint64_t);
    *samples = (store_samples){.ns = malloc(bytes)};
    bool made = samples->ns != NULL;
    for (int part = 0; part < STORE_BENCH_PARTS; part++) {
        samples->parts[part] = malloc(bytes);
        made &= samples->parts[part] != NULL;
    }
    return made;
}

static void store_samples_free(store_samples *samples)
{
    free(samples->ns);
    for (int part = 0; part < STORE_BENCH_PARTS; part++)
        free(samples->parts[part]);
}

/* A row of calls, of which so many are made at once. */
static json_t *store_row(const char *name, uint64_t bytes, uint32_t batch, uint32_t threads,
                         uint64_t *ns, uint32_t calls, double per_s)
{
    const uint64_t p50 = store_quantile(ns, calls, 0.5), p99 = store_quantile(ns, calls, 0.99);
    if (!(per_s > 0)) per_s = 1e9 / (double)(p50 + 1);
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "case", name, "bytes",
                     (json_int_t)bytes, "batch", (json_int_t)batch, "threads", (json_int_t)threads,
                     "calls", (json_int_t)calls, "ns_p50", (json_int_t)p50, "ns_p99",
                     (json_int_t)p99, "per_s", per_s);
}

/* Where a get's time goes, in nanoseconds, by medians: what gets say of themselves, and what memcpy
 * and lookups take. lookup: lock and table; checksum: verifying and decoding, less the copy; wake:
 * the device's thread, the way there, its work, the way back; rest: decision, reference, accounts.
 */
static json_t *store_split(const store_samples *get, double copy_ns, double lookup_ns)
{
    double part[STORE_BENCH_PARTS];
    for (int i = 0; i < STORE_BENCH_PARTS; i++)
        part[i] = (double)store_quantile(get->parts[i], get->ns_count, 0.5);
    const double decode_ns = part[STORE_BENCH_DECODE], wake_ns = part[STORE_BENCH_READ];
    const double all_ns = (double)store_quantile(get->ns, get->ns_count, 0.5);
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "lookup", lookup_ns, "copy", copy_ns, "checksum",
                     decode_ns - copy_ns, "wake", wake_ns, "rest",
                     all_ns - decode_ns - wake_ns - lookup_ns);
}

/* The loops of one size, in the order of their turns. */
enum {
    TURN_COPY,
    TURN_GET,
    TURN_PUT,
    TURN_BATCH,
    TURN_PREFIX,
    TURN_COPY_TWO,
    TURN_GET_TWO,
    TURN_EXISTS,
    TURNS
};
static const struct {
    const char *name;
    store_bench_call call;
    uint32_t threads;
    uint32_t beside; /* whose rate the ratio is made with */
    uint32_t alone;  /* of two threads: the turn of one */
    bool batch;      /* not one by one */
} store_turns[TURNS] = {
    [TURN_COPY] = {"memcpy", STORE_BENCH_COPY, 1, TURN_COPY},
    [TURN_GET] = {"get", STORE_BENCH_GET, 1, TURN_COPY},
    [TURN_PUT] = {"put", STORE_BENCH_PUT, 1, TURN_COPY},
    [TURN_BATCH] = {"queue", STORE_BENCH_BATCH, 1, TURN_COPY, .batch = true},
    [TURN_PREFIX] = {"prefix", STORE_BENCH_PREFIX, 1, TURN_COPY, .batch = true},
    [TURN_COPY_TWO] = {"memcpy", STORE_BENCH_COPY, 2, TURN_COPY_TWO, .alone = TURN_COPY},
    [TURN_GET_TWO] = {"get", STORE_BENCH_GET, 2, TURN_COPY_TWO, .alone = TURN_GET},
    [TURN_EXISTS] = {"exists", STORE_BENCH_EXISTS, 1, TURN_EXISTS},
};

/* Prefixes and two threads are of interest where calls are many. */
static bool store_turn_counts(uint32_t turn, uint64_t bytes)
{
    return turn <= TURN_BATCH || turn == TURN_EXISTS || bytes == store_sizes[0];
}

static void store_repeat(store_bench *bench, store_bench_site *site, uint32_t repeat,
                         uint32_t calls, uint32_t firsts[TURNS], store_samples samples[TURNS])
{
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        if (!store_turn_counts(turn, site->bytes)) continue;
        store_measure(bench, site, store_turns[turn].call, store_turns[turn].threads, calls,
                      &firsts[turn], repeat, &samples[turn]);
        if (turn == TURN_PUT) store_bench_unput(site, calls);
    }
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        double beside = samples[store_turns[turn].beside].rate[repeat];
        double alone = samples[store_turns[turn].alone].rate[repeat];
        samples[turn].ratio[repeat] = beside > 0 ? samples[turn].rate[repeat] / beside : 0;
        samples[turn].speedup[repeat] = alone > 0 ? samples[turn].rate[repeat] / alone : 0;
    }
}

/* The rows of one size. The lookup has a row of its own elsewhere, of more entries. */
static void store_add_rows(store_bench *bench, const store_bench_site *site,
                           store_samples samples[TURNS])
{
    for (uint32_t turn = 0; turn < TURN_EXISTS; turn++) {
        store_samples *own = &samples[turn], *copy = &samples[TURN_COPY];
        store_samples *lookup = &samples[TURN_EXISTS];
        if (!store_turn_counts(turn, site->bytes)) continue;
        const bench_rate rate = bench_rate_of(own->rate, bench->repeats);
        const bench_rate ratio = bench_rate_of(own->ratio, bench->repeats);
        const bench_rate speedup = bench_rate_of(own->speedup, bench->repeats);
        json_t *row =
            store_row(store_turns[turn].name, site->bytes,
                      store_turns[turn].batch ? store_batch_of(own->ns_count / bench->repeats) : 1,
                      store_turns[turn].threads, own->ns, own->ns_count,
                      bench_rate_of(own->per_s, bench->repeats).median);
        row = bench_with_rate(row, "bytes_per_s", &rate);
        row = bench_with_rate(row, "memcpy_ratio", &ratio);
        if (store_turns[turn].threads > 1) row = bench_with_rate(row, "one_thread_ratio", &speedup);
        if (turn == TURN_GET)
            (void)json_object_set_new(
                row, "parts",
                store_split(own, (double)store_quantile(copy->ns, copy->ns_count, 0.5),
                            (double)store_quantile(lookup->ns, lookup->ns_count, 0.5)));
        bench_report_row(bench->report, "rows", row);
    }
}

/* All calls of one size of entry. */
static kvt_status store_run_size(store_bench *bench, uint64_t bytes)
{
    store_bench_site site;
    store_samples samples[TURNS];
    uint32_t firsts[TURNS] = {0};
    const uint64_t total = (bench->options->quick ? 160 : 512) * MIB;
    const uint32_t entries = (uint32_t)(total / bytes);
    uint32_t calls = (uint32_t)((bench->options->quick ? 32 : 64) * MIB / bytes);
    if (calls < 2) calls = 2;
    kvt_status status = store_bench_open(&site, bytes, entries, calls, false, bench->report);
    if (status != KVT_OK) return status;
    bool made = true;
    for (uint32_t turn = 0; turn < TURNS; turn++)
        made &= store_samples_make(&samples[turn], bench->repeats, calls);
    for (uint32_t repeat = 0; repeat < bench->repeats && made; repeat++)
        store_repeat(bench, &site, repeat, calls, firsts, samples);
    if (made) store_add_rows(bench, &site, samples);
    for (uint32_t turn = 0; turn < TURNS; turn++)
        store_samples_free(&samples[turn]);
    store_bench_close(&site);
    return made ? KVT_OK : KVT_E_MEMORY;
}

/* A lookup in a table of many entries, which lie on a device that keeps no bytes; then
 * kvt_store_match, of keys in the order of the puts and of scattered ones. */
static kvt_status store_run_lookup(store_bench *bench)
{
    store_bench_site site;
    store_samples samples;
    const bench_options *options = bench->options;
    uint32_t entries = options->quick ? STORE_ENTRIES_QUICK : STORE_ENTRIES;
    if (options->iterations != 0) entries = options->iterations;
    kvt_status status =
        store_bench_open(&site, STORE_EXISTS_BYTES, entries, 0, true, bench->report);
    if (status != KVT_OK) return status;
    uint32_t first = 0, calls = entries < STORE_EXISTS_CALLS ? entries : STORE_EXISTS_CALLS;
    const bool made = store_samples_make(&samples, bench->repeats, calls);
    for (uint32_t repeat = 0; repeat < bench->repeats && made; repeat++)
        store_measure(bench, &site, STORE_BENCH_EXISTS, 1, calls, &first, repeat, &samples);
    if (made)
        bench_report_row(bench->report, "rows",
                         store_row("exists", site.bytes, 1, 1, samples.ns, samples.ns_count,
                                   bench_rate_of(samples.per_s, bench->repeats).median));
    if (calls > STORE_MATCH_CALLS) calls = STORE_MATCH_CALLS;
    for (int scattered = 0; scattered < 2 && made; scattered++) {
        bench->failed += store_match_run(&site, scattered != 0, samples.ns, calls);
        bench_report_row(bench->report, "rows",
                         store_row(scattered != 0 ? "scattered" : "match", site.bytes,
                                   STORE_MATCH_KEYS, 1, samples.ns, calls, 0));
    }
    bench_report_set(bench->report, "memory_bytes_per_entry", json_real(site.memory_per_entry));
    store_samples_free(&samples);
    store_bench_close(&site);
    return made ? KVT_OK : KVT_E_MEMORY;
}

/* What a prefix of many tiny entries costs. A row's times are of the whole prefix. */
static kvt_status store_run_prefix(store_bench *bench)
{
    static const char *const names[STORE_BENCH_PREFIX_CASES] = {
        [STORE_BENCH_LOAD_ENDS] = "load_begin_end", [STORE_BENCH_LOAD_WHOLE] = "load_layers"};
    uint64_t *ns[STORE_BENCH_PREFIX_CASES];
    const uint32_t rounds = bench->repeats * STORE_PREFIX_ROUNDS;
    uint64_t bytes = 0;
    uint64_t *all = malloc(STORE_BENCH_PREFIX_CASES * rounds * sizeof *all);
    if (all == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < STORE_BENCH_PREFIX_CASES; i++)
        ns[i] = all + (size_t)i * rounds;
    const bool done = store_bench_prefix(rounds, ns, &bytes, &bench->failed);
    for (uint32_t i = 0; i < STORE_BENCH_PREFIX_CASES && done; i++)
        bench_report_row(
            bench->report, "rows",
            store_row(names[i], bytes, STORE_BENCH_PREFIX_ENTRIES, 1, ns[i], rounds, 0));
    free(all);
    return done ? KVT_OK : KVT_E_MEMORY;
}

static kvt_status store_run(const bench_options *options, bench_report *report)
{
    static const char *const names[STORE_SIZES] = {"32 KiB", "256 KiB", "4 MiB", "32 MiB"};
    store_bench bench = {.options = options,
                         .report = report,
                         .repeats = options->quick ? STORE_REPEATS_QUICK : STORE_REPEATS};
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < STORE_SIZES && status == KVT_OK; i++) {
        (void)bench_tell(options, i, STORE_SIZES + 1, names[i]);
        status = store_run_size(&bench, store_sizes[i]);
    }
    (void)bench_tell(options, STORE_SIZES, STORE_SIZES + 1, "looking entries up");
    if (status == KVT_OK) status = store_run_lookup(&bench);
    if (status == KVT_OK) status = store_run_prefix(&bench);
    if (status != KVT_OK) return status;
    bench_report_add(report, json_pack("{s:I, s:I}", "repetitions", (json_int_t)bench.repeats,
                                       "wrong", (json_int_t)bench.failed));
    if (bench.failed == 0) return KVT_OK;
    return bench_blame(report, KVT_E_CORRUPT, "store", "calls failed or gave other bytes");
}

const bench_case bench_store_case = {
    .name = "store",
    .schema = "kvterrace-bench-store-1",
    .tables = (const document_table[]){{"rows",
                                        "case bytes batch threads bytes_per_s memcpy_ratio ns_p50 "
                                        "ns_p99 per_s one_thread_ratio parts.lookup parts.copy "
                                        "parts.checksum parts.wake parts.rest"},
                                       {"", "memory_bytes_per_entry wrong repetitions"},
                                       {0}},
    .run = store_run,
};
