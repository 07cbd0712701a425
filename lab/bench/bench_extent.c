/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_extent.c - the extent allocator under random operations, each checked against a bitmap of
 * grains, with the time of every single call.
 *
 * The bitmap decides what is right: a range that is given out must have been free, one that comes
 * back must have been held, an adopted range is refused exactly when it is not wholly free. Now and
 * then the whole bitmap is walked to compare the best fit, the number of free ranges, the largest
 * one and the sum. Only the allocator's calls are timed.
 *
 * Thread rule: one bench at a time.
 */
#include "bench.h"
#include "bench_parts.h"

#include <stdlib.h>

#include "base/clock.h"
#include "tiers/pool/extent.h"
#include "tiers/pool/pool.h"

#define GRAIN  ((uint64_t)TIERS_GRAIN_BYTES)
#define GRAINS ((uint64_t)4 << 20) /* 16 GiB */
#define BEGIN  (2 * GRAIN)

enum {
    OPERATIONS_DEFAULT = 10000000,
    OPERATIONS_QUICK = 200000,
    HELD_MAX = 1 << 20,
    PHASE = 400000,      /* operations between a space nearly full and one with room */
    AUDIT_EVERY = 20011, /* prime, so that audits fall on all kinds of operations */
    TIMES_MAX = 1 << 16  /* ns; slower calls are counted at this bound */
};

typedef struct extent_bench {
    tiers_space *space;
    uint64_t seed;
    uint64_t *used; /* one bit per grain */
    uint64_t used_grains;
    tiers_range *held;
    uint32_t held_count;
    uint64_t mismatches;
    uint64_t refused; /* takes that found the space full */
    uint64_t takes;
    uint64_t pieces; /* takes that got less than they asked for: nothing larger was free */
    uint64_t operations;
    uint64_t *times; /* calls by their nanoseconds */
    uint32_t fragments_peak;
    tiers_space_facts facts; /* at the last audit */
} extent_bench;

typedef struct extent_results {
    uint32_t p50_ns;
    uint32_t p99_ns;
    double mean_ns;
    double clock_ns; /* of reading the clock, included in every time */
} extent_results;

static uint64_t extent_random(extent_bench *bench)
{
    bench->seed ^= bench->seed << 13;
    bench->seed ^= bench->seed >> 7;
    bench->seed ^= bench->seed << 17;
    return bench->seed;
}

static void extent_record(extent_bench *bench, uint64_t started_ns)
{
    uint64_t took = base_clock_ns() - started_ns;
    bench->times[took < TIMES_MAX ? took : TIMES_MAX - 1]++;
    bench->operations++;
}

/* ---- the bitmap ---- */

/* The bits of word `word` that belong to the grains [first, end). */
static uint64_t extent_mask(uint64_t word, uint64_t first, uint64_t end)
{
    uint64_t mask = UINT64_MAX;
    if (word == first / 64) mask &= UINT64_MAX << (first % 64);
    if (word == (end - 1) / 64) mask &= UINT64_MAX >> (63 - (end - 1) % 64);
    return mask;
}

static bool extent_in_space(tiers_range range)
{
    return range.bytes > 0 && range.bytes % GRAIN == 0 && range.offset % GRAIN == 0 &&
           range.offset >= BEGIN && range.offset - BEGIN <= GRAINS * GRAIN &&
           range.bytes <= GRAINS * GRAIN - (range.offset - BEGIN);
}

/* True when every grain of the range is used, or when every one is free. */
static bool extent_all(const extent_bench *bench, tiers_range range, bool used)
{
    uint64_t first = (range.offset - BEGIN) / GRAIN;
    uint64_t end = first + range.bytes / GRAIN;
    for (uint64_t word = first / 64; word <= (end - 1) / 64; word++) {
        uint64_t mask = extent_mask(word, first, end);
        if ((bench->used[word] & mask) != (used ? mask : 0)) return false;
    }
    return true;
}

static void extent_mark(extent_bench *bench, tiers_range range, bool used)
{
    if (!extent_in_space(range) || !extent_all(bench, range, !used)) {
        bench->mismatches++;
        return;
    }
    uint64_t first = (range.offset - BEGIN) / GRAIN;
    uint64_t end = first + range.bytes / GRAIN;
    for (uint64_t word = first / 64; word <= (end - 1) / 64; word++)
        bench->used[word] ^= extent_mask(word, first, end);
    uint64_t grains = range.bytes / GRAIN;
    bench->used_grains = used ? bench->used_grains + grains : bench->used_grains - grains;
}

typedef struct extent_scan {
    uint64_t fit_offset; /* of the smallest, then lowest, free run that fits; UINT64_MAX = none */
    uint64_t largest;    /* grains */
    uint32_t runs;
} extent_scan;

/* The end of the run of grains, all free or all used, that starts at `at`. */
static uint64_t extent_run_end(const extent_bench *bench, uint64_t at)
{
    uint64_t flip = (bench->used[at / 64] >> (at % 64) & 1) != 0 ? UINT64_MAX : 0;
    uint64_t word = at / 64;
    uint64_t changed = (bench->used[word] ^ flip) & UINT64_MAX << (at % 64);
    while (changed == 0 && ++word < GRAINS / 64)
        changed = bench->used[word] ^ flip;
    return changed == 0 ? GRAINS : word * 64 + (uint64_t)__builtin_ctzll(changed);
}

static extent_scan extent_walk(const extent_bench *bench, uint64_t fit)
{
    extent_scan scan = {.fit_offset = UINT64_MAX};
    uint64_t best = UINT64_MAX;
    for (uint64_t at = 0, end; at < GRAINS; at = end) {
        end = extent_run_end(bench, at);
        if ((bench->used[at / 64] >> (at % 64) & 1) != 0) continue;
        scan.runs++;
        if (end - at > scan.largest) scan.largest = end - at;
        if (end - at >= fit && end - at < best) {
            best = end - at;
            scan.fit_offset = BEGIN + at * GRAIN;
        }
    }
    return scan;
}

static void extent_audit(extent_bench *bench)
{
    extent_scan scan = extent_walk(bench, 1);
    tiers_space_facts *facts = &bench->facts;
    tiers_space_facts_get(bench->space, facts);
    if (facts->capacity_bytes != GRAINS * GRAIN || facts->fragments != scan.runs ||
        facts->free_bytes != (GRAINS - bench->used_grains) * GRAIN ||
        facts->largest_bytes != scan.largest * GRAIN || facts->held != bench->held_count)
        bench->mismatches++;
    if (facts->fragments > bench->fragments_peak) bench->fragments_peak = facts->fragments;
}

/* ---- operations ---- */

static void extent_take(extent_bench *bench, uint64_t grains, bool audit)
{
    extent_scan scan = {.fit_offset = UINT64_MAX};
    tiers_range range = {0};
    if (bench->held_count == HELD_MAX) return;
    if (audit) scan = extent_walk(bench, grains);
    uint64_t started = base_clock_ns();
    kvt_status status = tiers_space_acquire(bench->space, grains * GRAIN, &range);
    extent_record(bench, started);
    bool full = bench->used_grains == GRAINS;
    if (status != (full ? KVT_E_SPACE : KVT_OK)) bench->mismatches++;
    if (full) bench->refused++;
    if (status != KVT_OK) return;
    extent_mark(bench, range, true);
    bench->held[bench->held_count++] = range;
    if (range.bytes > grains * GRAIN) bench->mismatches++;
    bench->takes++;
    if (range.bytes < grains * GRAIN) bench->pieces++;
    if (!audit) return;
    bool fits = scan.fit_offset != UINT64_MAX;
    if (range.bytes != (fits ? grains : scan.largest) * GRAIN) bench->mismatches++;
    if (fits && range.offset != scan.fit_offset) bench->mismatches++;
}

static void extent_release(extent_bench *bench, uint64_t pick)
{
    if (bench->held_count == 0) return;
    uint32_t at = (uint32_t)(pick % bench->held_count);
    tiers_range range = bench->held[at];
    extent_mark(bench, range, false);
    uint64_t started = base_clock_ns();
    tiers_space_release(bench->space, range);
    extent_record(bench, started);
    bench->held[at] = bench->held[--bench->held_count];
}

static void extent_trim(extent_bench *bench, uint64_t pick, uint64_t amount)
{
    if (bench->held_count == 0) return;
    tiers_range *held = &bench->held[pick % bench->held_count];
    if (held->bytes == GRAIN) return;
    uint64_t keep = (1 + amount % (held->bytes / GRAIN - 1)) * GRAIN;
    tiers_range tail = {.offset = held->offset + keep, .bytes = held->bytes - keep};
    extent_mark(bench, tail, false);
    uint64_t started = base_clock_ns();
    tiers_space_trim(bench->space, tail);
    extent_record(bench, started);
    held->bytes = keep;
}

static void extent_adopt(extent_bench *bench, uint64_t first, uint64_t grains)
{
    tiers_range range = {.offset = BEGIN + first * GRAIN, .bytes = grains * GRAIN};
    if (bench->held_count == HELD_MAX) return;
    bool expect = extent_in_space(range) && extent_all(bench, range, false);
    uint64_t started = base_clock_ns();
    kvt_status status = tiers_space_adopt(bench->space, range);
    extent_record(bench, started);
    if (status != (expect ? KVT_OK : KVT_E_CORRUPT)) bench->mismatches++;
    if (status != KVT_OK) return;
    extent_mark(bench, range, true);
    bench->held[bench->held_count++] = range;
}

/* 4 KiB to 2 MiB, as many small ones as large ones: the parts that objects of a tier leave on one
 * of its members. */
static uint64_t extent_size(extent_bench *bench)
{
    uint64_t bits = extent_random(bench) % 10;
    return ((uint64_t)1 << bits) + extent_random(bench) % ((uint64_t)1 << bits);
}

static void extent_work(extent_bench *bench, const bench_options *options, uint32_t operations)
{
    for (uint32_t i = 0; bench->operations < operations; i++) {
        uint64_t what = extent_random(bench) % 100;
        uint64_t target = i / PHASE % 2 == 0 ? GRAINS / 100 * 97 : GRAINS / 100 * 70;
        uint64_t takes = bench->used_grains < target ? 60 : 30;
        if (what < takes)
            extent_take(bench, extent_size(bench), i % AUDIT_EVERY == 0);
        else if (what < 90)
            extent_release(bench, extent_random(bench));
        else if (what < 95)
            extent_trim(bench, extent_random(bench), extent_random(bench));
        else
            extent_adopt(bench, extent_random(bench) % (GRAINS + 8), extent_random(bench) % 12);
        if (i % AUDIT_EVERY != AUDIT_EVERY / 2) continue;
        extent_audit(bench);
        bench_tell(options, (double)bench->operations, operations, "operations");
    }
    extent_audit(bench);
}

/* ---- results ---- */

static uint32_t extent_percentile(const extent_bench *bench, double share)
{
    uint64_t left = (uint64_t)(share * (double)bench->operations);
    uint32_t at = 0;
    while (at < TIMES_MAX - 1 && bench->times[at] <= left)
        left -= bench->times[at++];
    return at;
}

static extent_results extent_summary(const extent_bench *bench)
{
    enum { CLOCKS = 100000 };
    extent_results results = {.p50_ns = extent_percentile(bench, 0.5),
                              .p99_ns = extent_percentile(bench, 0.99)};
    double sum = 0;
    for (uint32_t i = 0; i < TIMES_MAX; i++)
        sum += (double)bench->times[i] * i;
    results.mean_ns = sum / (double)bench->operations;
    uint64_t started = base_clock_ns();
    for (int i = 0; i < CLOCKS; i++)
        (void)base_clock_ns();
    results.clock_ns = (double)(base_clock_ns() - started) / CLOCKS;
    return results;
}

static int extent_print_json(FILE *out, const extent_bench *bench, const extent_results *results)
{
    const tiers_space_facts *facts = &bench->facts;
    json_t *root = bench_report_head("kvterrace-bench-extent-1", 1);
    json_t *rest = json_pack(
        "{s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "operations",
        (json_int_t)bench->operations, "p50_ns", (json_int_t)results->p50_ns, "p99_ns",
        (json_int_t)results->p99_ns, "mean_ns", results->mean_ns, "clock_ns", results->clock_ns,
        "fragments", (json_int_t)facts->fragments, "fragments_peak",
        (json_int_t)bench->fragments_peak, "largest_free", (json_int_t)facts->largest_bytes,
        "free_bytes", (json_int_t)facts->free_bytes, "held", (json_int_t)facts->held, "takes",
        (json_int_t)bench->takes, "takes_in_part", (json_int_t)bench->pieces, "takes_when_full",
        (json_int_t)bench->refused, "mismatches", (json_int_t)bench->mismatches);
    if (root == NULL || rest == NULL || json_object_update(root, rest) != 0) {
        json_decref(root);
        root = NULL;
    }
    json_decref(rest);
    return bench_report_print(out, root);
}

static int extent_print(FILE *out, const extent_bench *bench, const extent_results *results)
{
    const tiers_space_facts *facts = &bench->facts;
    fprintf(
        out,
        "extent allocator: %llu random operations on %llu MiB, each checked against a bitmap\n"
        "  per operation  p50 %u ns, p99 %u ns, mean %.0f ns (of which %.0f ns is the clock)\n"
        "  at the end     %u extents held, %llu MiB free in %u ranges (peak %u), largest %llu "
        "KiB\n"
        "  takes          %llu, of which %llu got a part of what they asked for; %llu met a full "
        "space\n"
        "  mismatches     %llu\n",
        (unsigned long long)bench->operations, (unsigned long long)(facts->capacity_bytes >> 20),
        results->p50_ns, results->p99_ns, results->mean_ns, results->clock_ns, facts->held,
        (unsigned long long)(facts->free_bytes >> 20), facts->fragments, bench->fragments_peak,
        (unsigned long long)(facts->largest_bytes >> 10), (unsigned long long)bench->takes,
        (unsigned long long)bench->pieces, (unsigned long long)bench->refused,
        (unsigned long long)bench->mismatches);
    return ferror(out) != 0;
}

int bench_extent_run(const bench_options *options)
{
    extent_bench bench = {.seed = 0x243f6a8885a308d3u};
    uint32_t operations = options->quick ? OPERATIONS_QUICK : OPERATIONS_DEFAULT;
    if (options->iterations > 0) operations = options->iterations;
    int code = 1;
    bench.used = calloc(GRAINS / 64, sizeof *bench.used);
    bench.held = calloc(HELD_MAX, sizeof *bench.held);
    bench.times = calloc(TIMES_MAX, sizeof *bench.times);
    if (bench.used == NULL || bench.held == NULL || bench.times == NULL ||
        tiers_space_open(BEGIN, BEGIN + GRAINS * GRAIN, &bench.space) != KVT_OK) {
        fprintf(stderr, "kvterrace bench extent: out of memory\n");
        goto out;
    }
    extent_work(&bench, options, operations);
    extent_results results = extent_summary(&bench);
    bench_tell(options, 1, 1, NULL);
    code = options->json ? extent_print_json(options->out, &bench, &results)
                         : extent_print(options->out, &bench, &results);
    if (bench.mismatches > 0) {
        fprintf(stderr, "kvterrace bench extent: the allocator and the bitmap disagree\n");
        code = 1;
    }
out:
    tiers_space_close(bench.space);
    free(bench.times);
    free(bench.held);
    free(bench.used);
    return code;
}
