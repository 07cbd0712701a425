/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_objects.c - contexts that are read layer by layer, by the layout of their entries on the
 * drives (Tutti 3.1); what taking a slot costs, and what is written into slots after many puts and
 * deletes, extents beside both.
 *
 * An entry has 256 tokens: a head of 12 KiB, and K and V of 16 layers in 32 KiB each. Two layers
 * are in flight. The drives' sum is that of the drives alone, in the same run.
 *
 * Thread rule: one case at a time.
 */
#include "bench.h"
#include "bench_parts.h"

#include "lab/private.h"

#include <stdlib.h>
#include <string.h>

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

enum {
    ITERATIONS_DEFAULT = 5,
    LAYERS = 16,
    ENTRY_TOKENS = 256,
    LAYOUTS = 5,
    LENGTHS = 8,
    FLIGHT = 2, /* layers at once */
    TAKES = 20000,
    CHURN = 100000,
    CHURN_HELD = 4096,
    WRITES = 64
};

#define HEAD_BYTES        (12 * KIB)
#define TENSOR_BYTES      (32 * KIB)
#define TENSOR_LONG_BYTES (128 * KIB) /* of entries that are written, too */
#define ENTRY_BYTES       (HEAD_BYTES + 2 * LAYERS * TENSOR_BYTES)
#define ALONE_BYTES       (48 * MIB)
#define OWN_BYTES         (640 * MIB)

static const char *const layout_names[LAYOUTS] = {
    [TIERS_STRIPE_PROPORTIONAL] = "proportional",
    [TIERS_STRIPE_EQUAL] = "equal",
    [TIERS_STRIPE_ROUND_ROBIN] = "round_robin",
    [TIERS_STRIPE_TENSOR] = "tensor",
    [TIERS_STRIPE_ENTRY] = "entry",
};

typedef struct objects_bench {
    const bench_options *options;
    bench_report *report;
    uint32_t iterations, entries_most;
    double read[TIERS_MEMBERS_MAX], write[TIERS_MEMBERS_MAX]; /* of the drives alone */
    double read_sum, write_sum;
    char *buffer;
    double best[LENGTHS]; /* and its layout */
    const char *best_layout[LENGTHS];
} objects_bench;

static kvt_status objects_open(objects_bench *bench, uint32_t first, uint32_t count,
                               tiers_striping layout, const tiers_slot_size *slots,
                               uint32_t slot_count, tiers_pool **pool_out)
{
    tiers_member_options members[TIERS_MEMBERS_MAX] = {{0}};
    const tiers_pool_options options = {
        .striping = layout, .slots = slots, .slot_count = slot_count};
    char message[256] = "";
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        const kvt_device_config *config = &bench->options->devices[first + i];
        const double read = bench->read[first + i], write = bench->write[first + i];
        kvt_device *device = NULL;
        status = kvt_device_open(config, &device, message, sizeof message);
        members[i] = tiers_member_options_of(config, device, read > 0 ? read : 1,
                                             write > 0 ? write : 1, NULL);
    }
    if (status == KVT_OK)
        status = tiers_pool_open(members, count, &options, pool_out, message, sizeof message);
    for (uint32_t i = 0; i < count && status != KVT_OK; i++)
        kvt_device_close(members[i].device);
    while (status == KVT_OK && tiers_pool_lay_slots(*pool_out, 1024))
        ;
    return bench_blame(bench->report, status, layout_names[layout], message);
}

static double objects_median(double *values, uint32_t count)
{
    return bench_rate_of(values, count).median;
}

/* What each drive gives alone. */
static kvt_status objects_alone(objects_bench *bench, uint32_t index)
{
    static double reads[BENCH_ITERATIONS_MAX], writes[BENCH_ITERATIONS_MAX];
    tiers_pool *pool = NULL;
    tiers_location *location = NULL;
    kvt_status status = objects_open(bench, index, 1, TIERS_STRIPE_PROPORTIONAL, NULL, 0, &pool);
    if (status != KVT_OK) return status;
    status = tiers_pool_reserve(pool, bench->options->quick ? MIB : ALONE_BYTES, &location);
    for (uint32_t i = 0; i < bench->iterations && status == KVT_OK; i++) {
        status = bench_move(pool, KVT_IO_WRITE, location, bench->buffer, &writes[i], NULL);
        if (status == KVT_OK)
            status = bench_move(pool, KVT_IO_READ, location, bench->buffer, &reads[i], NULL);
    }
    if (status == KVT_OK) {
        bench->read_sum += bench->read[index] = objects_median(reads, bench->iterations);
        bench->write_sum += bench->write[index] = objects_median(writes, bench->iterations);
    }
    tiers_pool_release(pool, location);
    tiers_pool_close(pool);
    return status;
}

static uint64_t objects_entry_bytes(uint32_t tensor)
{
    return HEAD_BYTES + 2 * LAYERS * (uint64_t)tensor;
}

static kvt_status objects_reserve(tiers_pool *pool, uint32_t tensor, tiers_location **location)
{
    return tiers_pool_reserve_tensors(pool, objects_entry_bytes(tensor), tensor, location);
}

/* ---- contexts, layer by layer ---- */

typedef struct context {
    tiers_pool *pool;
    tiers_location **entries;
    uint32_t count;
    tiers_transfer *transfers; /* of FLIGHT layers */
    tiers_transfer **list;
    tiers_part *parts; /* TIERS_MEMBERS_MAX a transfer */
    char *buffer;      /* a layer of all entries, FLIGHT times */
} context;

static void context_start(context *c, uint32_t layer)
{
    const uint32_t first = layer % FLIGHT * c->count;
    for (uint32_t i = 0; i < c->count; i++) {
        tiers_transfer *transfer = &c->transfers[first + i];
        *transfer = (tiers_transfer){.kind = KVT_IO_READ,
                                     .waited = true,
                                     .location = c->entries[i],
                                     .buffer = c->buffer + (first + i) * 2 * TENSOR_BYTES,
                                     .bytes = 2 * TENSOR_BYTES,
                                     .offset = HEAD_BYTES + layer * 2 * TENSOR_BYTES,
                                     .parts = &c->parts[(first + i) * TIERS_MEMBERS_MAX]};
        c->list[i] = transfer;
    }
    tiers_transfers_start(c->pool, c->list, c->count);
}

/* Waits for a layer. *spread: how much later the last member was done than the first. */
static kvt_status context_wait(context *c, uint32_t layer, uint64_t began_ns, double *spread)
{
    uint64_t done[TIERS_MEMBERS_MAX] = {0}, first = UINT64_MAX, last = 0;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < c->count; i++) {
        tiers_transfer *transfer = &c->transfers[layer % FLIGHT * c->count + i];
        const kvt_status one = tiers_transfer_wait(c->pool, transfer);
        if (status == KVT_OK) status = one;
        for (uint32_t part = 0; part < transfer->part_count; part++) {
            const tiers_part *of = &transfer->parts[part];
            if (of->finished_ns > done[of->member]) done[of->member] = of->finished_ns;
        }
    }
    for (uint32_t i = 0; i < TIERS_MEMBERS_MAX; i++) {
        if (done[i] == 0) continue;
        if (done[i] < first) first = done[i];
        if (done[i] > last) last = done[i];
    }
    *spread = first > began_ns && first != UINT64_MAX
                  ? (double)(last - first) / (double)(first - began_ns)
                  : 0;
    return status;
}

typedef struct context_times {
    double bytes_per_s, spread, first_layer_ms;
} context_times;

static kvt_status context_read(context *c, context_times *out)
{
    const uint64_t began_ns = base_clock_ns();
    uint64_t layer_ns = began_ns;
    double spread, spreads = 0;
    kvt_status status = KVT_OK;
    for (uint32_t layer = 0; layer < FLIGHT; layer++)
        context_start(c, layer);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const kvt_status one = context_wait(c, layer, layer_ns, &spread);
        if (status == KVT_OK) status = one;
        layer_ns = base_clock_ns();
        spreads += spread / LAYERS;
        if (layer == 0) out->first_layer_ms = (double)(layer_ns - began_ns) * 1e-6;
        if (layer + FLIGHT < LAYERS) context_start(c, layer + FLIGHT);
    }
    const uint64_t bytes = c->count * (uint64_t)LAYERS * 2 * TENSOR_BYTES;
    out->bytes_per_s = bench_bytes_per_s(bytes, base_clock_ns() - began_ns);
    out->spread = spreads;
    return status;
}

static uint64_t context_requests(tiers_pool *pool)
{
    tiers_member_stats member;
    uint64_t sum = 0;
    for (uint32_t i = 0; tiers_pool_member(pool, i, &member) == KVT_OK; i++)
        sum += member.requests;
    return sum;
}

static kvt_status context_measure(objects_bench *bench, context *c, tiers_striping layout,
                                  bool slots, uint32_t length)
{
    static double rates[BENCH_ITERATIONS_MAX], spreads[BENCH_ITERATIONS_MAX],
        firsts[BENCH_ITERATIONS_MAX];
    context_times times;
    c->count = 4u << length;
    kvt_status status = context_read(c, &times); /* not counted */
    const uint64_t before = context_requests(c->pool);
    for (uint32_t i = 0; i < bench->iterations && status == KVT_OK; i++) {
        status = context_read(c, &times);
        rates[i] = times.bytes_per_s;
        spreads[i] = times.spread;
        firsts[i] = times.first_layer_ms;
    }
    if (status != KVT_OK) return status;
    const double requests = (double)(context_requests(c->pool) - before);
    const bench_rate rate = bench_rate_of(rates, bench->iterations);
    const uint32_t tokens = c->count * ENTRY_TOKENS;
    if (rate.median > bench->best[length]) {
        bench->best[length] = rate.median;
        bench->best_layout[length] = layout_names[layout];
    }
    json_t *row =
        json_pack("{s:s, s:b, s:I, s:f, s:f, s:f, s:f}", "layout", layout_names[layout], "slots",
                  slots, "tokens", (json_int_t)tokens, "requests_per_layer",
                  requests / bench->iterations / LAYERS, "ratio", rate.median / bench->read_sum,
                  "spread", objects_median(spreads, bench->iterations), "first_layer_ms",
                  objects_median(firsts, bench->iterations));
    bench_report_row(bench->report, "results", bench_with_rate(row, "read_bytes_per_s", &rate));
    return KVT_OK;
}

static kvt_status objects_contexts(objects_bench *bench, tiers_striping layout, bool slots)
{
    const tiers_slot_size size = {
        .bytes = ENTRY_BYTES, .unit_bytes = TENSOR_BYTES, .odd_first = true};
    const uint32_t most = bench->entries_most;
    context c = {.entries = calloc(most, sizeof *c.entries),
                 .transfers = calloc(FLIGHT * most, sizeof *c.transfers),
                 .list = calloc(most, sizeof *c.list),
                 .parts = calloc((size_t)FLIGHT * most * TIERS_MEMBERS_MAX, sizeof *c.parts),
                 .buffer = bench->buffer};
    kvt_status status = KVT_E_MEMORY;
    if (c.entries != NULL && c.transfers != NULL && c.list != NULL && c.parts != NULL)
        status =
            objects_open(bench, 0, bench->options->device_count, layout, &size, slots, &c.pool);
    uint32_t made = 0;
    for (; made < most && status == KVT_OK; made++) {
        status = objects_reserve(c.pool, TENSOR_BYTES, &c.entries[made]);
        if (status == KVT_OK)
            status =
                tiers_pool_transfer(c.pool, KVT_IO_WRITE, c.entries[made], c.buffer, ENTRY_BYTES);
    }
    for (uint32_t length = 0; length < LENGTHS && 4u << length <= most && status == KVT_OK;
         length++)
        status = context_measure(bench, &c, layout, slots, length);
    for (uint32_t i = 0; i < made; i++)
        tiers_pool_release(c.pool, c.entries[i]);
    tiers_pool_close(c.pool);
    free(c.entries);
    free(c.transfers);
    free(c.list);
    free(c.parts);
    return bench_blame(bench->report, status, layout_names[layout], "");
}

/* ---- slots beside extents ---- */

static int objects_compare(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Nanoseconds of single reservations and releases, the clock's own included. */
static kvt_status objects_take(tiers_pool *pool, uint32_t tensor, uint32_t *take_ns,
                               uint32_t *give_ns, uint32_t *clock_ns)
{
    for (uint32_t i = 0; i < TAKES; i++) {
        tiers_location *location = NULL;
        const uint64_t a = base_clock_ns(), b = base_clock_ns();
        const kvt_status status = objects_reserve(pool, tensor, &location);
        const uint64_t c = base_clock_ns();
        if (status != KVT_OK) return status;
        tiers_pool_release(pool, location);
        const uint64_t d = base_clock_ns();
        clock_ns[i] = (uint32_t)(b - a);
        take_ns[i] = (uint32_t)(c - b);
        give_ns[i] = (uint32_t)(d - c);
    }
    qsort(take_ns, TAKES, sizeof *take_ns, objects_compare);
    qsort(give_ns, TAKES, sizeof *give_ns, objects_compare);
    qsort(clock_ns, TAKES, sizeof *clock_ns, objects_compare);
    return KVT_OK;
}

/* Puts and deletes at random of entries and of records of other sizes. At most 0.4 of the room is
 * held: a fast drive that is as large as a slow one is full long before it. */
static void objects_churn(tiers_pool *pool, uint32_t tensor, tiers_location **held, uint32_t rounds)
{
    uint64_t random = 1;
    tiers_pool_facts facts;
    for (uint32_t i = 0; i < rounds; i++) {
        random = lab_mix(random + i);
        tiers_location **at = &held[random % CHURN_HELD];
        if (*at != NULL) {
            tiers_pool_release(pool, *at);
            *at = NULL;
            continue;
        }
        tiers_pool_facts_get(pool, &facts);
        if (facts.used_bytes > facts.capacity_bytes / 10 * 4) continue;
        const uint64_t draw = random >> 32;
        const uint64_t other = (120 + draw / 4 % 160) * TIERS_GRAIN_BYTES;
        const kvt_status status =
            draw % 4 == 0 ? tiers_pool_reserve(pool, other, at) : objects_reserve(pool, tensor, at);
        if (status != KVT_OK) *at = NULL;
        if (i % 64 == 0) (void)tiers_pool_lay_slots(pool, 16);
    }
}

/* The most that the drives could write, whose bytes lie on the members as they do: a share of the
 * drives' sum. */
static double objects_bound(const objects_bench *bench, tiers_location *const *locations,
                            uint32_t count)
{
    double bytes[TIERS_MEMBERS_MAX] = {0}, sum = 0, slowest = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < locations[i]->extent_count; k++)
            bytes[locations[i]->extents[k].member] += (double)locations[i]->extents[k].bytes;
    for (uint32_t i = 0; i < bench->options->device_count; i++) {
        sum += bytes[i];
        if (bytes[i] / bench->write[i] > slowest) slowest = bytes[i] / bench->write[i];
    }
    return slowest > 0 ? sum / slowest / bench->write_sum : 0;
}

/* Writes entries, all at once, and says how many extents they have. */
static kvt_status objects_write(const objects_bench *bench, tiers_pool *pool, uint32_t tensor,
                                double *bytes_per_s, double *bound, double *extents)
{
    const uint64_t bytes = objects_entry_bytes(tensor);
    static tiers_transfer transfers[WRITES];
    tiers_transfer *list[WRITES];
    tiers_location *locations[WRITES] = {NULL};
    const uint32_t most = WRITES * TENSOR_BYTES / tensor;
    kvt_status status = KVT_OK;
    uint32_t count = 0;
    *extents = 0;
    for (; count < most && status == KVT_OK; count++) {
        status = objects_reserve(pool, tensor, &locations[count]);
        if (status != KVT_OK) break;
        transfers[count] = (tiers_transfer){.kind = KVT_IO_WRITE,
                                            .location = locations[count],
                                            .buffer = bench->buffer,
                                            .bytes = bytes};
        list[count] = &transfers[count];
        *extents += locations[count]->extent_count / (double)most;
    }
    *bound = objects_bound(bench, locations, count);
    const uint64_t began_ns = base_clock_ns();
    if (status == KVT_OK) tiers_transfers_start(pool, list, count);
    for (uint32_t i = 0; i < count && status == KVT_OK; i++)
        status = tiers_transfer_wait(pool, list[i]);
    *bytes_per_s = bench_bytes_per_s(most * bytes, base_clock_ns() - began_ns);
    for (uint32_t i = 0; i < count; i++)
        tiers_pool_release(pool, locations[i]);
    return status;
}

static kvt_status objects_slots(objects_bench *bench, tiers_striping layout, uint32_t tensor,
                                bool slots)
{
    const tiers_slot_size size = {
        .bytes = objects_entry_bytes(tensor), .unit_bytes = tensor, .odd_first = true};
    static uint32_t take_ns[TAKES], give_ns[TAKES], clock_ns[TAKES];
    static double rates[BENCH_ITERATIONS_MAX], bounds[BENCH_ITERATIONS_MAX];
    tiers_pool *pool = NULL;
    tiers_location **held = calloc(CHURN_HELD, sizeof(tiers_location *));
    kvt_status status = KVT_E_MEMORY;
    double extents = 0;
    tiers_pool_facts facts = {0};
    if (held != NULL)
        status = objects_open(bench, 0, bench->options->device_count, layout, &size, slots, &pool);
    if (status == KVT_OK) status = objects_take(pool, tensor, take_ns, give_ns, clock_ns);
    if (status == KVT_OK) objects_churn(pool, tensor, held, bench->options->quick ? 2000 : CHURN);
    for (uint32_t i = 0; i < bench->iterations && status == KVT_OK; i++)
        status = objects_write(bench, pool, tensor, &rates[i], &bounds[i], &extents);
    if (status == KVT_OK) {
        tiers_pool_facts_get(pool, &facts);
        const bench_rate rate = bench_rate_of(rates, bench->iterations);
        json_t *row = json_pack("{s:s, s:i, s:b, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f}", "layout",
                                layout_names[layout], "tensor_bytes", (int)tensor, "slots", slots,
                                "take_ns_p50", (int)take_ns[TAKES / 2], "take_ns_p99",
                                (int)take_ns[TAKES / 100 * 99], "give_ns_p50",
                                (int)give_ns[TAKES / 2], "clock_ns_p50", (int)clock_ns[TAKES / 2],
                                "extents", extents, "write_ratio", rate.median / bench->write_sum,
                                "write_bound", objects_median(bounds, bench->iterations), "padding",
                                (double)facts.padding_bytes / (double)facts.capacity_bytes);
        bench_report_row(bench->report, "slots", bench_with_rate(row, "write_bytes_per_s", &rate));
    }
    for (uint32_t i = 0; held != NULL && i < CHURN_HELD; i++)
        tiers_pool_release(pool, held[i]);
    free(held);
    tiers_pool_close(pool);
    return bench_blame(bench->report, status, layout_names[layout], "");
}

static kvt_status objects_run(const bench_options *options, bench_report *report)
{
    kvt_device_config own[BENCH_OWN_DRIVES];
    bench_options given = *options;
    kvt_status status = bench_take_drives(&given, OWN_BYTES, 0, own, report);
    if (status != KVT_OK) return status;
    const uint32_t drives = given.device_count;
    if (drives < 2 || drives > TIERS_MEMBERS_MAX)
        return bench_blame(report, KVT_E_ARGUMENT, "devices", "objects lie on 2 to 64 drives");
    objects_bench bench = {.options = &given,
                           .report = report,
                           .iterations =
                               bench_repetitions(given.iterations, ITERATIONS_DEFAULT, given.quick),
                           .entries_most = given.quick ? 4 : 4u << (LENGTHS - 1)};
    const uint64_t layer_bytes = (uint64_t)bench.entries_most * 2 * TENSOR_BYTES;
    const uint64_t bytes = FLIGHT * layer_bytes > ALONE_BYTES ? FLIGHT * layer_bytes : ALONE_BYTES;
    bench.buffer = bench_buffer(bytes);
    if (bench.buffer == NULL) status = KVT_E_MEMORY;
    const uint32_t steps = drives + 3 * LAYOUTS;
    for (uint32_t i = 0; i < drives && status == KVT_OK; i++) {
        (void)bench_tell(options, i, steps, "drives alone");
        status = objects_alone(&bench, i);
    }
    for (uint32_t i = 0; i < 2 * LAYOUTS && status == KVT_OK; i++) {
        (void)bench_tell(options, drives + i, steps, "contexts");
        status = objects_contexts(&bench, (tiers_striping)(i / 2), i % 2 != 0);
    }
    for (uint32_t i = 0; i < 4 * LAYOUTS && status == KVT_OK; i++) {
        const uint32_t tensor = i < 2 * LAYOUTS ? TENSOR_BYTES : TENSOR_LONG_BYTES;
        (void)bench_tell(options, drives + 2 * LAYOUTS + i / 4, steps, "slots");
        status = objects_slots(&bench, (tiers_striping)(i / 2 % LAYOUTS), tensor, i % 2 != 0);
    }
    for (uint32_t i = 0; i < LENGTHS && status == KVT_OK; i++) {
        if (bench.best_layout[i] == NULL) continue;
        bench_report_row(report, "best",
                         json_pack("{s:I, s:s, s:f}", "tokens",
                                   (json_int_t)(4u << i) * ENTRY_TOKENS, "layout",
                                   bench.best_layout[i], "ratio", bench.best[i] / bench.read_sum));
    }
    bench_report_set(report, "repetitions", json_integer(bench.iterations));
    bench_report_set(report, "device_sum_bytes_per_s", json_real(bench.read_sum));
    bench_report_set(report, "device_write_sum_bytes_per_s", json_real(bench.write_sum));
    free(bench.buffer);
    return status;
}

const bench_case bench_objects_case = {
    .name = "objects",
    .schema = "kvterrace-bench-objects-1",
    .tables =
        (const document_table[]){
            {"results", "layout slots tokens requests_per_layer read_bytes_per_s ratio spread "
                        "first_layer_ms"},
            {"slots",
             "layout tensor_bytes slots take_ns_p50 take_ns_p99 give_ns_p50 clock_ns_p50 extents "
             "write_bytes_per_s write_ratio write_bound padding"},
            {"best", "tokens layout ratio"},
            {0}},
    .run = objects_run,
};
