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

#include "bench_store_entries.h"

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
    STORE_ROWS_MAX = 32,
    STORE_PREFIX_ROUNDS = 20 /* of a repeat */
};

static const uint64_t store_sizes[] = {MIB / 32, MIB / 4, 4 * MIB, 32 * MIB};
enum { STORE_SIZES = sizeof store_sizes / sizeof store_sizes[0] };

/* Nanoseconds of one call by where they go; 0 = no part of the call. */
typedef struct store_parts {
    double lookup;   /* lock and table, as a lookup takes */
    double copy;     /* memcpy of as many bytes */
    double checksum; /* verifying and decoding, less the copy */
    double wake;     /* the device's thread: the way there, its work, the way back */
    double rest;     /* decision, reference, accounts */
} store_parts;

typedef struct store_row {
    const char *name;
    uint64_t bytes;
    uint32_t batch, threads;
    uint32_t calls;
    bench_rate bytes_per_s, ratio, per_s;
    bench_rate codec_ratio; /* of a lossy form: to the codec's own decoding */
    bench_rate speedup;     /* of two threads: to one, by the median call */
    uint64_t ns_p50, ns_p99;
    store_parts parts;
    bool has_parts;
} store_row;

typedef struct store_bench {
    const bench_options *options;
    uint32_t repeats;
    store_row rows[STORE_ROWS_MAX];
    uint32_t row_count;
    uint32_t failed;
    store_memory memory;
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

static int store_compare_ns(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static uint64_t store_quantile(uint64_t *ns, uint32_t count, double share)
{
    qsort(ns, count, sizeof *ns, store_compare_ns);
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

/* Turns the samples into a row. */
static store_row *store_add_row(store_bench *bench, const store_bench_site *site, const char *name,
                                uint32_t threads, store_samples *samples)
{
    store_row *row = &bench->rows[bench->row_count++];
    *row = (store_row){.name = name,
                       .bytes = site->bytes,
                       .batch = 1,
                       .threads = threads,
                       .calls = samples->ns_count,
                       .bytes_per_s = bench_rate_of(samples->rate, bench->repeats),
                       .ratio = bench_rate_of(samples->ratio, bench->repeats),
                       .per_s = bench_rate_of(samples->per_s, bench->repeats),
                       .ns_p50 = store_quantile(samples->ns, samples->ns_count, 0.5),
                       .ns_p99 = store_quantile(samples->ns, samples->ns_count, 0.99)};
    return row;
}

/* Where a get's time goes, by medians: what gets say of themselves, and what memcpy and lookups
 * take. */
static void store_split(store_row *get, const store_samples *samples, double copy_ns,
                        double lookup_ns)
{
    double part[STORE_BENCH_PARTS];
    for (int i = 0; i < STORE_BENCH_PARTS; i++)
        part[i] = (double)store_quantile(samples->parts[i], samples->ns_count, 0.5);
    double decode_ns = part[STORE_BENCH_DECODE], wake_ns = part[STORE_BENCH_READ];
    get->has_parts = true;
    get->parts = (store_parts){.lookup = lookup_ns,
                               .copy = copy_ns,
                               .checksum = decode_ns - copy_ns,
                               .wake = wake_ns,
                               .rest = (double)get->ns_p50 - decode_ns - wake_ns - lookup_ns};
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
        if (!store_turn_counts(turn, site->bytes)) continue;
        store_row *row = store_add_row(bench, site, store_turns[turn].name,
                                       store_turns[turn].threads, &samples[turn]);
        if (store_turns[turn].batch) row->batch = store_batch_of(row->calls / bench->repeats);
        if (store_turns[turn].threads > 1)
            row->speedup = bench_rate_of(samples[turn].speedup, bench->repeats);
        if (turn != TURN_GET) continue;
        store_samples *copy = &samples[TURN_COPY], *lookup = &samples[TURN_EXISTS];
        store_split(row, &samples[turn], (double)store_quantile(copy->ns, copy->ns_count, 0.5),
                    (double)store_quantile(lookup->ns, lookup->ns_count, 0.5));
    }
}

/* All calls of one size of entry. */
static int store_run_size(store_bench *bench, uint64_t bytes)
{
    store_bench_site site;
    store_samples samples[TURNS];
    uint32_t firsts[TURNS] = {0};
    const uint64_t total = (bench->options->quick ? 160 : 512) * MIB;
    const uint32_t entries = (uint32_t)(total / bytes);
    uint32_t calls = (uint32_t)((bench->options->quick ? 32 : 64) * MIB / bytes);
    if (calls < 2) calls = 2;
    int code = store_bench_open(&site, bytes, entries, calls, false);
    if (code != 0) return code;
    bool made = true;
    for (uint32_t turn = 0; turn < TURNS; turn++)
        made &= store_samples_make(&samples[turn], bench->repeats, calls);
    for (uint32_t repeat = 0; repeat < bench->repeats && made; repeat++)
        store_repeat(bench, &site, repeat, calls, firsts, samples);
    if (made) store_add_rows(bench, &site, samples);
    for (uint32_t turn = 0; turn < TURNS; turn++)
        store_samples_free(&samples[turn]);
    store_bench_close(&site);
    return made ? 0 : 1;
}

/* One row of kvt_match_worth. */
static void store_add_match_row(store_bench *bench, const store_bench_site *site, bool scattered,
                                store_samples *samples)
{
    bench->failed += store_match_run(site, scattered, samples->ns, samples->ns_count);
    double per_s = 0;
    for (uint32_t i = 0; i < samples->ns_count; i++)
        per_s += (double)samples->ns[i] * 1e-9;
    for (uint32_t i = 0; i < bench->repeats; i++)
        samples->per_s[i] = samples->ns_count / per_s;
    store_add_row(bench, site, scattered ? "scattered" : "match", 1, samples)->batch =
        STORE_MATCH_KEYS;
}

/* A lookup in a table of many entries, which lie on a device that keeps no bytes. */
static int store_run_lookup(store_bench *bench)
{
    store_bench_site site;
    store_samples samples;
    const bench_options *options = bench->options;
    uint32_t entries = options->quick ? STORE_ENTRIES_QUICK : STORE_ENTRIES;
    if (options->iterations != 0) entries = options->iterations;
    int code = store_bench_open(&site, STORE_EXISTS_BYTES, entries, 0, true);
    if (code != 0) return code;
    store_memory_split(&site, &bench->memory);
    uint32_t first = 0, calls = entries < STORE_EXISTS_CALLS ? entries : STORE_EXISTS_CALLS;
    bool made = store_samples_make(&samples, bench->repeats, calls);
    for (uint32_t repeat = 0; repeat < bench->repeats && made; repeat++) {
        store_measure(bench, &site, STORE_BENCH_EXISTS, 1, calls, &first, repeat, &samples);
        samples.ratio[repeat] = 0;
    }
    if (made) store_add_row(bench, &site, "exists", 1, &samples);
    samples.ns_count = calls < STORE_MATCH_CALLS ? calls : STORE_MATCH_CALLS;
    if (made) store_add_match_row(bench, &site, false, &samples);
    if (made) store_add_match_row(bench, &site, true, &samples);
    store_samples_free(&samples);
    store_bench_close(&site);
    return made ? 0 : 1;
}

/* What a prefix of many tiny entries costs. A row's times are of the whole prefix. */
static int store_run_prefix(store_bench *bench)
{
    static const char *const names[STORE_BENCH_PREFIX_CASES] = {
        [STORE_BENCH_LOAD_ENDS] = "load_begin_end", [STORE_BENCH_LOAD_WHOLE] = "load_layers"};
    store_samples samples;
    uint64_t *ns[STORE_BENCH_PREFIX_CASES];
    const uint32_t rounds = bench->repeats * STORE_PREFIX_ROUNDS;
    uint64_t bytes = 0;
    if (!store_samples_make(&samples, STORE_BENCH_PREFIX_CASES, rounds)) return 1;
    for (uint32_t i = 0; i < STORE_BENCH_PREFIX_CASES; i++)
        ns[i] = samples.ns + (size_t)i * rounds;
    bool done = store_bench_prefix(rounds, ns, &bytes, &bench->failed);
    for (uint32_t i = 0; i < STORE_BENCH_PREFIX_CASES && done; i++) {
        uint64_t p50 = store_quantile(ns[i], rounds, 0.5),
                 p99 = store_quantile(ns[i], rounds, 0.99);
        bench->rows[bench->row_count++] = (store_row){.name = names[i],
                                                      .bytes = bytes,
                                                      .batch = STORE_BENCH_PREFIX_ENTRIES,
                                                      .threads = 1,
                                                      .calls = rounds,
                                                      .per_s = {.median = 1e9 / (double)(p50 + 1)},
                                                      .ns_p50 = p50,
                                                      .ns_p99 = p99};
    }
    store_samples_free(&samples);
    return done ? 0 : 1;
}

/* Gets of one lossy form beside the codec. */
static int store_run_form(store_bench *bench, const char *variant)
{
    store_samples samples;
    const uint32_t rounds = bench->repeats * STORE_PREFIX_ROUNDS;
    double ratios[STORE_BENCH_REPEATS_MAX];
    uint64_t bytes = 0;
    if (!store_samples_make(&samples, 2, rounds)) return 1;
    uint64_t *get_ns = samples.ns, *codec_ns = samples.ns + rounds;
    bool done = store_bench_form(variant, rounds, get_ns, codec_ns, &bytes, &bench->failed);
    for (uint32_t i = 0; i < bench->repeats && done; i++) {
        size_t at = (size_t)i * STORE_PREFIX_ROUNDS;
        ratios[i] = (double)store_quantile(codec_ns + at, STORE_PREFIX_ROUNDS, 0.5) /
                    (double)(store_quantile(get_ns + at, STORE_PREFIX_ROUNDS, 0.5) + 1);
    }
    if (done) {
        uint64_t p50 = store_quantile(get_ns, rounds, 0.5);
        bench->rows[bench->row_count++] =
            (store_row){.name = variant,
                        .bytes = bytes,
                        .batch = 1,
                        .threads = 1,
                        .calls = rounds,
                        .per_s = {.median = 1e9 / (double)(p50 + 1)},
                        .codec_ratio = bench_rate_of(ratios, bench->repeats),
                        .ns_p50 = p50,
                        .ns_p99 = store_quantile(get_ns, rounds, 0.99)};
    }
    store_samples_free(&samples);
    return done ? 0 : 1;
}

/* ---- the report ---- */

static json_t *store_json_row(const store_row *row)
{
    json_t *object = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "case", row->name,
                               "bytes", (json_int_t)row->bytes, "batch", (json_int_t)row->batch,
                               "threads", (json_int_t)row->threads, "calls", (json_int_t)row->calls,
                               "ns_p50", (json_int_t)row->ns_p50, "ns_p99", (json_int_t)row->ns_p99,
                               "per_s", row->per_s.median);
    int failed = object == NULL;
    if (!failed && row->ratio.median > 0) {
        failed = bench_put_rate(object, "bytes_per_s", &row->bytes_per_s);
        failed |= bench_put_rate(object, "memcpy_ratio", &row->ratio);
    }
    if (!failed && row->codec_ratio.median > 0)
        failed = bench_put_rate(object, "codec_ratio", &row->codec_ratio);
    if (!failed && row->threads > 1)
        failed = bench_put_rate(object, "one_thread_ratio", &row->speedup);
    const store_parts *parts = &row->parts;
    if (!failed && row->has_parts)
        failed = json_object_set_new(object, "parts",
                                     json_pack("{s:f, s:f, s:f, s:f, s:f}", "lookup", parts->lookup,
                                               "copy", parts->copy, "checksum", parts->checksum,
                                               "wake", parts->wake, "rest", parts->rest));
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

static int store_print_json(const store_bench *bench)
{
    json_t *root = bench_report_head("kvterrace-bench-store-1", bench->repeats);
    json_t *list = json_array();
    int failed = root == NULL || list == NULL;
    for (uint32_t i = 0; i < bench->row_count && !failed; i++)
        failed = json_array_append_new(list, store_json_row(&bench->rows[i]));
    if (!failed) failed = json_object_set_new(root, "rows", list);
    if (!failed)
        failed =
            json_object_set_new(root, "memory_bytes_per_entry", json_real(bench->memory.resident));
    if (!failed) failed = json_object_set_new(root, "memory", store_memory_json(&bench->memory));
    if (!failed)
        failed = json_object_set_new(root, "wrong", json_integer((json_int_t)bench->failed));
    return bench_report_print(bench->options->out, failed ? NULL : root);
}

static int store_print_text(const store_bench *bench)
{
    FILE *out = bench->options->out;
    fprintf(out, "%-14s %10s %5s %7s %10s %7s %11s %11s %11s\n", "call", "bytes", "batch",
            "threads", "MB/s", "memcpy", "ns p50", "ns p99", "calls/s");
    for (uint32_t i = 0; i < bench->row_count; i++) {
        const store_row *row = &bench->rows[i];
        const store_parts *parts = &row->parts;
        fprintf(out, "%-14s %10llu %5u %7u %10.0f %7.2f %11llu %11llu %11.0f\n", row->name,
                (unsigned long long)row->bytes, row->batch, row->threads,
                row->ratio.median > 0 ? row->bytes_per_s.median / 1e6 : 0, row->ratio.median,
                (unsigned long long)row->ns_p50, (unsigned long long)row->ns_p99,
                row->per_s.median);
        if (row->threads > 1) fprintf(out, "         of one thread's: %.2f\n", row->speedup.median);
        if (row->has_parts)
            fprintf(out,
                    "         of it, in ns: lookup %.0f, copy %.0f, checksum %.0f, wake %.0f, "
                    "rest %.0f\n",
                    parts->lookup, parts->copy, parts->checksum, parts->wake, parts->rest);
    }
    store_memory_print(out, &bench->memory);
    fprintf(out, "wrong or failed: %u\n", bench->failed);
    return ferror(out) != 0;
}

int bench_store_run(const bench_options *options)
{
    static const char *const names[STORE_SIZES] = {"32 KiB", "256 KiB", "4 MiB", "32 MiB"};
    store_bench bench = {.options = options,
                         .repeats = options->quick ? STORE_REPEATS_QUICK : STORE_REPEATS};
    int code = 0;
    for (uint32_t i = 0; i < STORE_SIZES && code == 0; i++) {
        bench_tell(options, i, STORE_SIZES + 1, names[i]);
        code = store_run_size(&bench, store_sizes[i]);
    }
    bench_tell(options, STORE_SIZES, STORE_SIZES + 1, "looking entries up");
    if (code == 0) code = store_run_lookup(&bench);
    if (code == 0) code = store_run_prefix(&bench);
    if (code == 0) code = store_run_form(&bench, "kivi:k4v4");
    if (code == 0) code = store_run_form(&bench, "planes:k4v4");
    bench_tell(options, 1, 1, NULL);
    if (code != 0) return code;
    code = options->json ? store_print_json(&bench) : store_print_text(&bench);
    if (bench.failed == 0) return code;
    fprintf(stderr, "kvterrace bench store: calls failed or gave other bytes\n");
    return 1;
}
