/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_sequence.c - decode steps of one layer on drives: what a layout, a window, copies and
 * precision save of the time that the drives take, beside published methods.
 *
 * One layer of Llama-3.1-8B's shape (8 KV heads of 128, 4 queries each), K, V and queries of the
 * generator of lab/decode. Rows of the library are stores of their own on the same drives; the full
 * load gives the exact output that the errors are against. Rows of a method (lab/decode's indexes,
 * 16 bits) plan in memory and carry their reads out on the drives, each item a read, in one batch a
 * step: what an index costs to score is not counted for them. Rows of equal error have the least
 * budget whose error is that of OURS.
 *
 *     open_seconds   clustering, coding and writing; reopen_seconds: opening it again, once kept
 *     kept           of KEPT: seconds of opening it first and from what is kept, SSD bytes that it
 *                    borrowed each time, those of the tier that were in use after the second, and
 *                    pages that it reads where they lie. Its steps are those of the second
 *     io_seconds     of a step: from the first read's start to the last one's end, mean
 *     device_share   bytes read over io_seconds, over the drives' sum (as the store measured them)
 *     byte_seconds   of a step: bytes over bandwidth of the drive that takes longest, without its
 *                    latency and without the processor: what the layout alone decides
 *     byte_share     as device_share, of byte_seconds
 *
 * Thread rule: one case at a time.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <kvterrace/kvterrace.h>
#include <kvterrace/sparse.h>

#include "bench.h"
#include "bench_parts.h"
#include "bench_reads.h"
#include "lab/private.h"

#define MIB ((uint64_t)1 << 20)

enum {
    HEADS = 8,
    GROUP = 4,
    DIM = 128,
    QUERY = HEADS * GROUP * DIM,
    JUDGED = 12, /* steps whose error is taken */
    STEPS = 64,
    OBSERVED = 32, /* the prompt's last queries */
    OWN_DRIVE_MIB = 512,
    SEED = 1
};

/* Of one layer: budgets are shares of its bytes, whole ones. */
#define RAW_SHARE    16
#define CODED_SHARE  64
#define WINDOW_SHARE 8

typedef struct sequence_case {
    const char *name;
    tiers_striping striping;
    uint32_t variants;
    uint32_t share;  /* the budget is 1/share of the layer; 0: all of it */
    uint32_t window; /* as share; 0: none */
    float replica_share;
    bool estimate;
    bool equal_error;            /* the budget is the least whose error is that of OURS */
    bool kept;                   /* it was kept, left memory, and was opened again */
    const decode_method *method; /* of lab/decode; NULL: the library's */
} sequence_case;

#define ROUND_ROBIN  TIERS_STRIPE_ROUND_ROBIN
#define EQUAL        TIERS_STRIPE_EQUAL
#define PROPORTIONAL TIERS_STRIPE_PROPORTIONAL
#define RAW          (1u << KVT_SPARSE_RAW)
#define CODED        (1u << KVT_SPARSE_BITS_4 | 1u << KVT_SPARSE_BITS_8)

static const decode_method infllm = {.name = "InfLLM",
                                     .index = DECODE_REPRESENTATIVE,
                                     .layout = DECODE_RUNS,
                                     .run = 128,
                                     .rule = WINDOWS_LRU};
static const decode_method pqcache = {
    .name = "PQCache", .index = DECODE_CENTROID, .layout = DECODE_CLUSTERS, .rule = WINDOWS_LRU};
static const decode_method swarm = {.name = "SWARM", .index = DECODE_COACTIVE, .rule = WINDOWS_LRU};
static const decode_method packed = {.name = "packed",
                                     .index = DECODE_CLUSTER,
                                     .layout = DECODE_PAGES,
                                     .estimate = true,
                                     .rule = WINDOWS_DECAYED};
static const decode_method by_position = {.name = "by position",
                                          .index = DECODE_CLUSTER,
                                          .layout = DECODE_RUNS,
                                          .run = 32,
                                          .estimate = true,
                                          .rule = WINDOWS_DECAYED};

enum { FULL_LOAD, IN_TURN, EQUAL_SHARES, PROPORTIONAL_SHARES, COPIES, OURS, KEPT };
static const sequence_case sequence_cases[] = {
    [FULL_LOAD] = {"full load", PROPORTIONAL, RAW, 0, 0, 0, false, false, false, NULL},
    [IN_TURN] = {"16 bits, round robin", ROUND_ROBIN, RAW, RAW_SHARE, WINDOW_SHARE, 0, false, false,
                 false, NULL},
    [EQUAL_SHARES] = {"16 bits, equal shares", EQUAL, RAW, RAW_SHARE, WINDOW_SHARE, 0, false, false,
                      false, NULL},
    [PROPORTIONAL_SHARES] = {"16 bits, proportional", PROPORTIONAL, RAW, RAW_SHARE, WINDOW_SHARE, 0,
                             false, false, false, NULL},
    [COPIES] = {"16 bits, copies", PROPORTIONAL, RAW, RAW_SHARE, WINDOW_SHARE, 0.25f, false, false,
                false, NULL},
    [OURS] = {"ours", PROPORTIONAL, CODED, CODED_SHARE, WINDOW_SHARE, 0.25f, true, false, false,
              NULL},
    [KEPT] = {"ours, kept", PROPORTIONAL, CODED, CODED_SHARE, WINDOW_SHARE, 0.25f, true, false,
              true, NULL},
    {"ours, equal shares", EQUAL, CODED, CODED_SHARE, WINDOW_SHARE, 0.25f, true, false, false,
     NULL},
    {"ours, no copies", PROPORTIONAL, CODED, CODED_SHARE, WINDOW_SHARE, 0, true, false, false,
     NULL},
    {"ours, no window", PROPORTIONAL, CODED, CODED_SHARE, 0, 0.25f, true, true, false, NULL},
    {"ours, no estimate", PROPORTIONAL, CODED, CODED_SHARE, WINDOW_SHARE, 0.25f, false, true, false,
     NULL},
    {"ours, 16 bits", PROPORTIONAL, RAW, CODED_SHARE, WINDOW_SHARE, 0.25f, true, true, false, NULL},
    {"16 bits, packed", PROPORTIONAL, RAW, 0, WINDOW_SHARE, 0, true, true, false, &packed},
    {"16 bits, not packed", PROPORTIONAL, RAW, 0, WINDOW_SHARE, 0, true, true, false, &by_position},
    {"InfLLM", ROUND_ROBIN, RAW, 0, WINDOW_SHARE, 0, false, true, false, &infllm},
    {"PQCache", ROUND_ROBIN, RAW, 0, WINDOW_SHARE, 0, false, true, false, &pqcache},
    {"SWARM", ROUND_ROBIN, RAW, 0, WINDOW_SHARE, 0, false, true, false, &swarm},
};
enum { CASES = sizeof sequence_cases / sizeof sequence_cases[0] };

typedef struct sequence_row {
    uint64_t budget_bytes;
    double open_seconds, reopen_seconds, read_bytes, io_seconds, device_share, hit_ratio, error;
    double byte_seconds, byte_share;     /* as io_seconds and device_share, by the bytes alone */
    double select_seconds, step_seconds; /* medians; of a step all but attention */
    uint64_t first_lent, kept_lent, kept_used; /* bytes of SSD: open first, and from what is kept */
    uint64_t pages, in_place_pages;            /* of the latter */
    uint64_t lost;
} sequence_row;

/* Everything that the cases share. */
typedef struct sequence_site {
    const bench_options *options;
    bench_report *report;
    decode_layer layer;
    uint32_t tokens, steps, observed;
    decode_data data;
    double drives_bytes_per_s;
    float *exact; /* [JUDGED][QUERY] */
    sequence_row rows[CASES];
} sequence_site;

static kvt_status make_data(sequence_site *site)
{
    kvt_status status =
        decode_layer_open(site->tokens, site->observed, site->steps, JUDGED, SEED, &site->layer);
    if (status == KVT_OK) status = decode_data_make(&site->layer, &site->data);
    site->exact = malloc((size_t)JUDGED * QUERY * sizeof(float));
    return site->exact != NULL ? status : KVT_E_MEMORY;
}

static const float *step_queries(const sequence_site *site, uint32_t step)
{
    return site->data.queries + (size_t)(site->observed + step) * QUERY;
}

static uint64_t budget_of(const sequence_site *site, const sequence_case *one)
{
    return one->share == 0 ? KVT_SPARSE_ALL : site->data.bytes / one->share;
}

static uint64_t window_of(const sequence_site *site, const sequence_case *one)
{
    return one->window == 0 ? 0 : site->data.bytes / one->window;
}

/* ---- one case ---- */

static kvt_status open_store(const sequence_site *site, const sequence_case *one,
                             kvt_store **store_out)
{
    return bench_reads_store(site->options, one->striping,
                             2 * site->data.bytes / WINDOW_SHARE + 16 * MIB, store_out,
                             site->report);
}

static kvt_sparse_options sequence_options(const sequence_site *site, const sequence_case *one,
                                           uint64_t budget_bytes)
{
    kvt_sparse_options options;
    const kvt_layout layout = {.layers = 1,
                               .kv_heads = HEADS,
                               .head_dim = DIM,
                               .dtype = KVT_DTYPE_FP16,
                               .tokens = site->tokens};
    kvt_sparse_options_init(&options, &layout);
    options.query_heads = HEADS * GROUP;
    options.variants = one->variants;
    options.budget_bytes = budget_bytes;
    options.window_bytes[KVT_TIER_DRAM] = window_of(site, one);
    options.replica_share = one->replica_share;
    options.estimate = one->estimate;
    return options;
}

static kvt_status open_sequence(sequence_site *site, const sequence_case *one,
                                uint64_t budget_bytes, kvt_store *store, sequence_row *row,
                                kvt_sparse **sequence_out)
{
    const kvt_sparse_options options = sequence_options(site, one, budget_bytes);
    const uint64_t begin_ns = base_clock_ns();
    kvt_status status = kvt_sparse_open_live(store, &options, sequence_out, site->report->message,
                                             BENCH_MESSAGE_BYTES);
    if (status != KVT_OK) return status;
    status = kvt_sparse_give(*sequence_out, 0, site->data.k, site->data.v);
    row->open_seconds = (double)(base_clock_ns() - begin_ns) * 1e-9;
    if (status == KVT_OK && budget_bytes != KVT_SPARSE_ALL)
        status = kvt_sparse_observe(*sequence_out, 0, site->data.queries, site->observed);
    return status;
}

static void count_room(kvt_store *store, uint64_t *lent_out, uint64_t *used_out)
{
    kvt_store_stats stats = {.struct_size = sizeof stats};
    if (kvt_store_stats_get(store, &stats) != KVT_OK) return;
    *lent_out = stats.lent_bytes[KVT_TIER_SSD];
    *used_out = stats.tiers[KVT_TIER_SSD].used_bytes;
}

static kvt_key passing_key(uint64_t number)
{
    return (kvt_key){.bytes = {2, (uint8_t)number, (uint8_t)(number >> 8)}};
}

/* Puts other entries, which go afterwards, until what is kept has left memory for the drives. */
static kvt_status push_down(kvt_store *store)
{
    static uint8_t bytes[MIB];
    kvt_store_stats stats = {.struct_size = sizeof stats};
    kvt_status status = kvt_store_stats_get(store, &stats);
    const uint64_t count = stats.tiers[KVT_TIER_DRAM].capacity_bytes / MIB + 1;
    for (uint64_t i = 0; i < count && status == KVT_OK; i++) {
        const kvt_entry entry = {
            .struct_size = sizeof entry,
            .key = passing_key(i),
            .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = sizeof bytes},
            .recompute_seconds = 1};
        status = kvt_store_put(store, &entry, KVT_PACKED(bytes, sizeof bytes));
    }
    for (uint64_t i = 0; i < count; i++) {
        const kvt_key key = passing_key(i);
        (void)!kvt_store_delete(store, &key);
    }
    return status;
}

/* Keeps a sequence, ends it and opens it again. */
static kvt_status reopen_sequence(const sequence_site *site, const sequence_case *one,
                                  kvt_store *store, sequence_row *row, kvt_sparse **sequence)
{
    const kvt_sparse_options options = sequence_options(site, one, budget_of(site, one));
    const kvt_key key = {.bytes = {1}};
    kvt_sparse_stats stats = {.struct_size = sizeof stats};
    uint64_t used;
    count_room(store, &row->first_lent, &used);
    kvt_status status = kvt_sparse_keep(*sequence, &key);
    kvt_sparse_close(*sequence);
    *sequence = NULL;
    if (status == KVT_OK) status = push_down(store);
    if (status != KVT_OK) return status;
    const uint64_t begin_ns = base_clock_ns();
    status = kvt_sparse_open_kept(store, &options, &key, sequence, site->report->message,
                                  BENCH_MESSAGE_BYTES);
    row->reopen_seconds = (double)(base_clock_ns() - begin_ns) * 1e-9;
    if (status == KVT_OK) status = kvt_sparse_stats_get(*sequence, &stats);
    count_room(store, &row->kept_lent, &row->kept_used);
    row->pages = stats.pages;
    row->in_place_pages = stats.in_place_pages;
    if (status != KVT_OK) return status;
    return kvt_sparse_observe(*sequence, 0, site->data.queries, site->observed);
}

/* Runs one step; output is NULL when nobody wants it. */
static kvt_status run_step(kvt_sparse *sequence, const float *queries, float *output,
                           double *select_seconds, double *step_seconds)
{
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    const uint64_t begin_ns = base_clock_ns();
    kvt_status status = kvt_sparse_select(sequence, 0, queries, &step);
    const uint64_t selected_ns = base_clock_ns();
    if (status != KVT_OK) return status;
    status = kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages);
    uint64_t spent_ns = base_clock_ns() - begin_ns;
    if (status == KVT_OK && output != NULL)
        status = kvt_sparse_attend(pages, queries, output, NULL);
    const uint64_t done_ns = base_clock_ns();
    kvt_sparse_done(sequence, step);
    spent_ns += base_clock_ns() - done_ns;
    *select_seconds = (double)(selected_ns - begin_ns) * 1e-9;
    *step_seconds = (double)spent_ns * 1e-9;
    return status;
}

/* Runs all steps, or those alone that are judged. */
static kvt_status run_steps(sequence_site *site, const sequence_case *one, bool judged_alone,
                            kvt_store *store, kvt_sparse *sequence, sequence_row *row)
{
    static double select_seconds[STEPS], step_seconds[STEPS];
    const bool exact = one->share == 0;
    float output[QUERY];
    double difference = 0, norm = 0;
    kvt_sparse_stats before = {.struct_size = sizeof before}, after = before;
    kvt_status status = kvt_sparse_stats_get(sequence, &before);
    bench_reads_drives drives[2];
    uint32_t count = 0;
    bench_reads_count(store, &drives[0]);
    for (uint32_t i = 0; i < site->steps && status == KVT_OK; i++) {
        const int place = decode_layer_judged(&site->layer, i);
        const float *queries = step_queries(site, i);
        float *target = place < 0 ? NULL : exact ? site->exact + (size_t)place * QUERY : output;
        if (judged_alone && place < 0) continue;
        status = run_step(sequence, queries, target, &select_seconds[count], &step_seconds[count]);
        count++;
        bench_reads_count(store, &drives[count & 1]);
        row->byte_seconds += bench_reads_busiest(&drives[1 - (count & 1)], &drives[count & 1]);
        for (uint32_t q = 0; place >= 0 && !exact && q < QUERY; q++) {
            const double wanted = (double)site->exact[(size_t)place * QUERY + q];
            difference += ((double)output[q] - wanted) * ((double)output[q] - wanted);
            norm += wanted * wanted;
        }
    }
    if (status == KVT_OK) status = kvt_sparse_stats_get(sequence, &after);
    if (status != KVT_OK) return status;
    const double hits = (double)(after.hit_bytes - before.hit_bytes);
    const double missed = (double)(after.missed_bytes - before.missed_bytes);
    const double io = (double)(after.io_ns - before.io_ns) * 1e-9;
    const double bytes = (double)(after.read_bytes - before.read_bytes);
    row->byte_share =
        row->byte_seconds > 0 ? bytes / row->byte_seconds / site->drives_bytes_per_s : 0;
    row->byte_seconds /= count;
    row->read_bytes = bytes / count;
    row->io_seconds = io / count;
    row->device_share = io > 0 ? bytes / io / site->drives_bytes_per_s : 0;
    row->hit_ratio = hits + missed > 0 ? hits / (hits + missed) : 0;
    row->error = norm > 0 ? sqrt(difference / norm) : 0;
    row->select_seconds = bench_rate_of(select_seconds, count).median;
    row->step_seconds = bench_rate_of(step_seconds, count).median;
    row->lost = after.lost_pages - before.lost_pages;
    return KVT_OK;
}

/* The sum of what the drives read: their caps, or what the store measured. */
static double drives_sum(kvt_store *store)
{
    double sum = 0;
    for (uint32_t i = 0;; i++) {
        kvt_device_stats stats = {.struct_size = sizeof stats};
        if (kvt_device_stats_get(store, i, &stats) != KVT_OK) return sum;
        if (stats.tier == KVT_TIER_SSD) sum += stats.read_bytes_per_s;
    }
}

/* The least budget whose error in the judged steps is that of OURS, to a fifth. The sequence takes
 * any budget, so it is not opened again for each. */
static kvt_status find_budget(sequence_site *site, const sequence_case *one, kvt_store *store,
                              kvt_sparse *sequence, uint64_t *budget_bytes)
{
    double low = (double)site->data.bytes / 2048, high = (double)site->data.bytes;
    while (high / low > 1.2) {
        sequence_row row = {.budget_bytes = (uint64_t)sqrt(low * high)};
        sequence->options.budget_bytes = row.budget_bytes;
        const kvt_status status = run_steps(site, one, true, store, sequence, &row);
        if (status != KVT_OK) return status;
        *(row.error <= site->rows[OURS].error ? &high : &low) = (double)row.budget_bytes;
    }
    *budget_bytes = (uint64_t)high;
    return KVT_OK;
}

/* A row of the library, on a store of its own. */
static kvt_status run_library(sequence_site *site, const sequence_case *one, sequence_row *row)
{
    kvt_store *store = NULL;
    kvt_sparse *sequence = NULL;
    const bool exact = one->share == 0;
    *row = (sequence_row){.budget_bytes = budget_of(site, one)};
    kvt_status status = open_store(site, one, &store);
    if (status != KVT_OK) return status;
    if (!(site->drives_bytes_per_s > 0)) site->drives_bytes_per_s = drives_sum(store);
    status = open_sequence(site, one, row->budget_bytes, store, row, &sequence);
    if (status == KVT_OK && one->equal_error) {
        status = find_budget(site, one, store, sequence, &row->budget_bytes);
        sequence->options.budget_bytes = row->budget_bytes;
        if (status == KVT_OK)
            status = kvt_sparse_observe(sequence, 0, site->data.queries, site->observed);
    }
    if (status == KVT_OK && one->kept) status = reopen_sequence(site, one, store, row, &sequence);
    if (status == KVT_OK) status = run_steps(site, one, exact, store, sequence, row);
    kvt_sparse_close(sequence);
    kvt_store_close(store);
    return status;
}

/* The reads of all steps, on the drives. */
static kvt_status run_reads(sequence_site *site, kvt_store *store, bench_slots *slots,
                            const decode_reads *reads, sequence_row *row)
{
    kvt_status status = KVT_OK;
    bench_reads_drives drives[2];
    double bytes = 0, io = 0;
    bench_reads_count(store, &drives[0]);
    for (uint32_t i = 0; i < site->steps && status == KVT_OK; i++) {
        uint64_t read_bytes, io_ns = 0;
        status = bench_slots_start(slots, reads, i, &read_bytes);
        if (status == KVT_OK) status = bench_slots_wait(slots, &io_ns);
        bench_reads_count(store, &drives[(i + 1) & 1]);
        row->byte_seconds += bench_reads_busiest(&drives[i & 1], &drives[(i + 1) & 1]);
        bytes += (double)read_bytes;
        io += (double)io_ns * 1e-9;
    }
    row->byte_share =
        row->byte_seconds > 0 ? bytes / row->byte_seconds / site->drives_bytes_per_s : 0;
    row->byte_seconds /= site->steps;
    row->read_bytes = bytes / site->steps;
    row->io_seconds = io / site->steps;
    row->device_share = io > 0 ? bytes / io / site->drives_bytes_per_s : 0;
    return status;
}

/* A row of a published method: planned in memory, read from the drives. */
static kvt_status run_method(sequence_site *site, const sequence_case *one, sequence_row *row)
{
    decode_method method = *one->method;
    decode_trial trial;
    decode_reads reads = {.room = 0};
    decode_figures figures;
    bench_slots slots = {.layer = NULL};
    kvt_store *store = NULL;
    double budget = 1;
    method.window_bytes = window_of(site, one);
    kvt_status status = decode_trial_open(&site->layer, &method, &trial);
    if (status != KVT_OK) return status;
    status = decode_trial_find(&site->layer, &trial, site->rows[OURS].error, &budget);
    if (status == KVT_OK) status = decode_trial_run(&site->layer, &trial, budget, &reads, &figures);
    if (status == KVT_OK) status = open_store(site, one, &store);
    if (status == KVT_OK) status = bench_slots_open(store, &site->layer, &trial, &slots);
    if (status == KVT_OK) {
        *row = (sequence_row){.budget_bytes = (uint64_t)(budget * (double)site->data.bytes),
                              .hit_ratio = figures.hit_ratio,
                              .error = figures.error};
        status = run_reads(site, store, &slots, &reads, row);
    }
    bench_slots_close(&slots);
    kvt_store_close(store);
    decode_reads_close(&reads);
    decode_trial_close(&trial);
    return status;
}

static kvt_status run_case(sequence_site *site, uint32_t number)
{
    const sequence_case *one = &sequence_cases[number];
    sequence_row *row = &site->rows[number];
    const kvt_status status =
        one->method != NULL ? run_method(site, one, row) : run_library(site, one, row);
    if (status != KVT_OK) return status;
    bench_report_row(
        site->report, "results",
        json_pack(
            "{s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "case",
            one->name, "budget_bytes",
            row->budget_bytes == KVT_SPARSE_ALL ? (json_int_t)-1 : (json_int_t)row->budget_bytes,
            "open_seconds", row->open_seconds, "reopen_seconds", row->reopen_seconds,
            "bytes_per_step", row->read_bytes, "io_seconds", row->io_seconds, "device_share",
            row->device_share, "byte_seconds", row->byte_seconds, "byte_share", row->byte_share,
            "hit_ratio", row->hit_ratio, "error", row->error, "select_seconds", row->select_seconds,
            "step_seconds", row->step_seconds, "lost_pages", (json_int_t)row->lost));
    if (one->kept)
        bench_report_set(site->report, "kept",
                         json_pack("{s:f, s:f, s:I, s:I, s:I, s:I, s:I}", "open_seconds",
                                   row->open_seconds, "reopen_seconds", row->reopen_seconds,
                                   "first_lent_bytes", (json_int_t)row->first_lent, "lent_bytes",
                                   (json_int_t)row->kept_lent, "used_bytes",
                                   (json_int_t)row->kept_used, "pages", (json_int_t)row->pages,
                                   "in_place_pages", (json_int_t)row->in_place_pages));
    return KVT_OK;
}

static kvt_status sequence_run(const bench_options *given, bench_report *report)
{
    static kvt_device_config own[BENCH_OWN_DRIVES];
    bench_options options = *given;
    kvt_status status =
        bench_take_drives(&options, (options.quick ? 96 : OWN_DRIVE_MIB) * MIB, 80000, own, report);
    if (status != KVT_OK) return status;
    sequence_site site = {.options = &options,
                          .report = report,
                          .tokens = options.quick ? 8192 : 65536,
                          .steps = options.quick ? 24 : STEPS,
                          .observed = options.quick ? 16 : OBSERVED};
    (void)bench_tell(&options, 0, 1, "context");
    status = make_data(&site);
    for (uint32_t i = 0; i < CASES && status == KVT_OK; i++) {
        (void)bench_tell(&options, i, CASES, sequence_cases[i].name);
        status = run_case(&site, i);
    }
    bench_report_add(report,
                     json_pack("{s:i, s:i, s:f}", "repetitions", 1, "tokens", (int)site.tokens,
                               "drives_bytes_per_s", site.drives_bytes_per_s));
    decode_data_free(&site.data);
    decode_layer_close(&site.layer);
    free(site.exact);
    return status;
}

const bench_case bench_sequence_case = {
    .name = "sequence",
    .schema = "kvterrace-bench-sequence-2",
    .tables =
        (const document_table[]){{"", "tokens drives_bytes_per_s"},
                                 {"results",
                                  "case open_seconds bytes_per_step io_seconds device_share "
                                  "byte_seconds byte_share hit_ratio error select_seconds "
                                  "step_seconds"},
                                 {"kept", "open_seconds reopen_seconds first_lent_bytes lent_bytes "
                                          "pages in_place_pages"},
                                 {0}},
    .run = sequence_run,
};
