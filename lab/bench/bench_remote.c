/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_remote.c - objects and entries on servers of Valkey or Redis that somebody started
 * (lab/servers.py does): puts and gets of our client, and gets of a store that keeps nothing.
 *
 * The samples of a row are taken in turn with those of the others; its figure is their median.
 * Where clients and servers share a machine's processors, ratios and processor seconds count, not
 * rates.
 *
 * Thread rule: one case at a time.
 */
#include "bench.h"

#include "bench_parts.h"
#include "lab/private.h"

#include <kvterrace/kvterrace.h>
#include <kvterrace/queue.h>
#include <kvterrace/remote.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

enum { SIZES = 2, DEPTHS = 3, REPEATS = 3, DEPTH_MOST = 32, OBJECTS_QUICK = 16 };
#define OBJECT_BYTES_ALL (64 * MIB) /* of one size */
#define REMOTE_WAIT_NS   UINT64_C(20000000000)

static const uint64_t remote_sizes[SIZES] = {256u << 10, 2u << 20};
static const uint32_t remote_depths[DEPTHS] = {1, 8, DEPTH_MOST};

enum { CLIENT_RESP, CLIENT_STORE, CLIENTS };
static const char *const client_names[CLIENTS] = {"resp", "kvt_store_get"};
enum { ROWS_MOST = CLIENTS * 2 * SIZES * DEPTHS };

typedef struct remote_site {
    const bench_options *options;
    bench_report *report;
    remote_client *client;
    kvt_store *writer, *reader; /* the reader keeps nothing of what it gets */
} remote_site;

typedef struct remote_row {
    int client;
    bool put;
    uint64_t bytes;
    uint32_t depth;
    double bytes_per_s[REPEATS], p50_s[REPEATS], p99_s[REPEATS], cpu_s_per_gb[REPEATS];
} remote_row;

/* The needs of a run of requests. */
typedef struct remote_run {
    const remote_site *site;
    uint64_t bytes;
    uint32_t depth, objects, requests;
    bool put;
    double *latencies; /* of the requests */
    char *memory;      /* depth buffers */
    uint64_t wrong;
} remote_run;

static uint32_t remote_objects(const remote_site *site, uint64_t bytes)
{
    return site->options->quick ? OBJECTS_QUICK : (uint32_t)(OBJECT_BYTES_ALL / bytes);
}

/* An object's key and the begin of its value. */
static uint32_t remote_key(uint64_t bytes, uint32_t number, char key[64])
{
    return (uint32_t)snprintf(key, 64, "bench:{%u}:%llu", number, (unsigned long long)bytes);
}

static void remote_check(remote_run *run, const void *value, uint32_t number)
{
    uint32_t stamp;
    memcpy(&stamp, value, sizeof stamp);
    run->wrong += stamp != number;
}

/* ---- clients ---- */

static bool remote_run_resp(remote_run *run)
{
    remote_client *client = run->site->client;
    remote_request requests[DEPTH_MOST], *done[DEPTH_MOST];
    char keys[DEPTH_MOST][64];
    struct iovec parts[DEPTH_MOST];
    uint32_t numbers[DEPTH_MOST], places[DEPTH_MOST];
    uint32_t begun = 0, ended = 0, spare_count = run->depth;
    for (uint32_t i = 0; i < run->depth; i++)
        places[i] = i;
    while (ended < run->requests) {
        while (spare_count > 0 && begun < run->requests) {
            const uint32_t at = places[--spare_count], number = begun++ % run->objects;
            parts[at] = (struct iovec){run->memory + at * run->bytes, run->bytes};
            if (run->put) memcpy(parts[at].iov_base, &number, sizeof number);
            numbers[at] = number;
            requests[at] = (remote_request){.kind = run->put ? REMOTE_PUT : REMOTE_GET,
                                            .key = keys[at],
                                            .key_bytes = remote_key(run->bytes, number, keys[at]),
                                            .parts = &parts[at],
                                            .part_count = 1,
                                            .deadline_ns = base_clock_ns() + REMOTE_WAIT_NS};
            remote_submit(client, &requests[at]);
        }
        const size_t count = remote_reap(client, done, 1, DEPTH_MOST, REMOTE_WAIT_NS);
        for (size_t i = 0; i < count; i++) {
            const uint32_t at = (uint32_t)(done[i] - requests);
            if (done[i]->status != KVT_OK || (!run->put && done[i]->value_bytes != run->bytes))
                run->wrong++;
            else if (!run->put)
                remote_check(run, parts[at].iov_base, numbers[at]);
            run->latencies[ended++] = (double)(done[i]->finished_ns - done[i]->submitted_ns) * 1e-9;
            places[spare_count++] = at;
        }
    }
    return true;
}

/* ---- stores ---- */

static kvt_layout remote_layout(uint64_t bytes)
{
    return (kvt_layout){.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = bytes};
}

static kvt_key store_key(uint64_t bytes, uint32_t number)
{
    kvt_key key = {{0}};
    memcpy(key.bytes, &number, sizeof number);
    memcpy(key.bytes + 8, &bytes, sizeof bytes);
    key.bytes[31] = 0x42;
    return key;
}

static kvt_status store_open(const remote_site *site, uint64_t dram_bytes, uint32_t publish,
                             kvt_store **store_out)
{
    kvt_store_options options;
    kvt_remote_options remote;
    kvt_store_options_init(&options);
    kvt_remote_options_init(&remote);
    remote.address = site->options->address;
    remote.cluster = strchr(site->options->address, ',') != NULL;
    remote.namespace_text = "bench";
    remote.publish = publish;
    remote.deadline_seconds = 20;
    options.policy = "lru";
    options.tiers[KVT_TIER_DRAM].capacity_bytes = dram_bytes;
    options.remote = &remote;
    return kvt_store_open(&options, store_out, site->report->message, BENCH_MESSAGE_BYTES);
}

/* Puts entries of a size, and waits until they are published. */
static kvt_status store_publish(kvt_store *store, uint64_t bytes, uint32_t count)
{
    char *data = bench_buffer(bytes);
    kvt_status status = data != NULL ? KVT_OK : KVT_E_MEMORY;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        memcpy(data, &i, sizeof i);
        const kvt_entry entry = {.struct_size = sizeof entry,
                                 .key = store_key(bytes, i),
                                 .layout = remote_layout(bytes),
                                 .recompute_seconds = 1};
        while ((status = kvt_store_put(store, &entry, KVT_PACKED(data, bytes))) == KVT_BUSY)
            base_sleep(1000000);
        /* What is published before it is evicted is published. */
        if (status != KVT_OK || (i % 8 != 7 && i + 1 < count)) continue;
        status = kvt_store_flush(store);
        if (status == KVT_OK) status = kvt_remote_flush(store, KVT_NO_DEADLINE);
    }
    free(data);
    return status;
}

/* One get after the other, as a caller of kvt_store_get has it. */
static bool remote_run_gets(remote_run *run)
{
    for (uint32_t i = 0; i < run->requests; i++) {
        const uint32_t number = i % run->objects;
        const kvt_key key = store_key(run->bytes, number);
        const uint64_t began_ns = base_clock_ns();
        if (kvt_store_get(run->site->reader, &key, KVT_PACKED(run->memory, run->bytes),
                          KVT_STORE_DEADLINE, NULL) == KVT_OK)
            remote_check(run, run->memory, number);
        else
            run->wrong++;
        run->latencies[i] = (double)(base_clock_ns() - began_ns) * 1e-9;
    }
    return true;
}

/* Gets of a queue, a batch at a time. */
static bool remote_run_store(remote_run *run)
{
    if (run->depth == 1) return remote_run_gets(run);
    kvt_queue_options options = {.struct_size = sizeof options};
    kvt_queue *queue = NULL;
    kvt_request requests[DEPTH_MOST];
    kvt_completion done[DEPTH_MOST];
    kvt_view views[DEPTH_MOST];
    bool good = kvt_queue_open(run->site->reader, &options, &queue) == KVT_OK;
    for (uint32_t i = 0; i < run->depth; i++)
        views[i] = kvt_view_packed(run->memory + i * run->bytes, run->bytes);
    for (uint32_t from = 0; good && from < run->requests; from += run->depth) {
        const uint64_t began_ns = base_clock_ns();
        memset(requests, 0, sizeof requests);
        for (uint32_t i = 0; i < run->depth; i++) {
            requests[i].struct_size = sizeof requests[i];
            requests[i].kind = KVT_REQUEST_GET;
            requests[i].key = store_key(run->bytes, (from + i) % run->objects);
            requests[i].view = &views[i];
            requests[i].deadline_ns = KVT_NO_DEADLINE;
        }
        good = kvt_queue_submit(queue, requests, run->depth, NULL) == KVT_OK;
        for (uint32_t ended = 0; good && ended < run->depth;) {
            done[0].struct_size = sizeof done[0];
            good = kvt_queue_wait(queue, KVT_NO_DEADLINE) == KVT_OK;
            const size_t count = good ? kvt_queue_drain(queue, done, run->depth) : 0;
            for (size_t i = 0; i < count; i++) {
                if (done[i].status == KVT_OK)
                    remote_check(run, run->memory + done[i].index * run->bytes,
                                 (from + done[i].index) % run->objects);
                else
                    run->wrong++;
                run->latencies[from + ended + i] = (double)(base_clock_ns() - began_ns) * 1e-9;
            }
            ended += (uint32_t)count;
        }
    }
    if (queue != NULL) kvt_queue_close(queue);
    return good;
}

/* ---- rows ---- */

static kvt_status remote_measure(const remote_site *site, remote_row *row, uint64_t total_bytes,
                                 uint32_t repeat)
{
    remote_run run = {.site = site,
                      .bytes = row->bytes,
                      .depth = row->depth,
                      .put = row->put,
                      .objects = remote_objects(site, row->bytes)};
    run.requests = (uint32_t)(total_bytes / row->bytes) / row->depth * row->depth;
    if (run.requests < row->depth) run.requests = row->depth;
    run.latencies = calloc(run.requests, sizeof *run.latencies);
    run.memory = bench_buffer(row->bytes * row->depth);
    bool good = run.latencies != NULL && run.memory != NULL;
    const double cpu = bench_process_seconds(), began = base_clock_seconds();
    if (good) good = row->client == CLIENT_RESP ? remote_run_resp(&run) : remote_run_store(&run);
    const double seconds = base_clock_seconds() - began;
    const double gigabytes = (double)run.requests * (double)row->bytes * 1e-9;
    if (good) {
        row->bytes_per_s[repeat] = gigabytes * 1e9 / seconds;
        row->p50_s[repeat] = bench_quantile(run.latencies, run.requests, 0.5);
        row->p99_s[repeat] = bench_quantile(run.latencies, run.requests, 0.99);
        row->cpu_s_per_gb[repeat] = (bench_process_seconds() - cpu) / gigabytes;
    }
    free(run.latencies);
    free(run.memory);
    if (good && run.wrong == 0) return KVT_OK;
    return bench_blame(site->report, run.wrong != 0 ? KVT_E_CORRUPT : KVT_E_MEMORY,
                       client_names[row->client],
                       run.wrong != 0 ? "answers were wrong or missing" : "");
}

static uint32_t remote_make_rows(remote_row *rows)
{
    uint32_t count = 0;
    for (int i = 0; i < ROWS_MOST; i++) {
        const int client = i % CLIENTS, put = i / CLIENTS % 2;
        if (client == CLIENT_STORE && put) continue;
        rows[count++] = (remote_row){.client = client,
                                     .put = put,
                                     .bytes = remote_sizes[i / CLIENTS / 2 / DEPTHS],
                                     .depth = remote_depths[i / CLIENTS / 2 % DEPTHS]};
    }
    return count;
}

/* Opens clients and stores, and writes what gets read. */
static kvt_status remote_open_site(remote_site *site)
{
    const remote_config config = {.backend = "valkey",
                                  .addresses = site->options->address,
                                  .cluster = strchr(site->options->address, ',') != NULL};
    kvt_status status =
        remote_open(&config, &site->client, site->report->message, BENCH_MESSAGE_BYTES);
    for (int i = 0; status == KVT_OK && i < 20; i++) { /* until the map is there */
        remote_request *done[1];
        (void)remote_reap(site->client, done, 0, 1, 10000000);
        base_sleep(2000000);
    }
    if (status == KVT_OK) status = store_open(site, 192 * MIB, KVT_PUBLISH_ALL, &site->writer);
    /* So little memory that no entry stays: each get comes from the engine. */
    if (status == KVT_OK)
        status = store_open(site, UINT64_C(64) << 10, KVT_PUBLISH_NONE, &site->reader);
    for (int size = 0; size < SIZES && status == KVT_OK; size++) {
        const uint64_t bytes = remote_sizes[size];
        remote_row row = {.client = CLIENT_RESP, .put = true, .bytes = bytes, .depth = 8};
        status = store_publish(site->writer, bytes, remote_objects(site, bytes));
        if (status == KVT_OK)
            status = remote_measure(site, &row, bytes * remote_objects(site, bytes), 0);
    }
    return status;
}

static kvt_status remote_case_run(const bench_options *options, bench_report *report)
{
    static remote_row rows[ROWS_MOST];
    remote_site site = {.options = options, .report = report};
    if (options->address == NULL)
        return bench_blame(report, KVT_E_ARGUMENT, "--address",
                           "which servers? see lab/servers.py");
    signal(SIGPIPE, SIG_IGN);
    const uint64_t total = (options->quick ? 16 : 192) * MIB;
    const uint32_t repeats = options->quick ? 1 : REPEATS, count = remote_make_rows(rows);
    kvt_status status = remote_open_site(&site);
    for (uint32_t i = 0; i < repeats * count && status == KVT_OK; i++) {
        (void)bench_tell(options, i, repeats * count, client_names[rows[i % count].client]);
        status = remote_measure(&site, &rows[i % count], total, i / count);
    }
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        remote_row *row = &rows[i];
        bench_report_row(report, "rows",
                         json_pack("{s:s, s:s, s:I, s:i, s:f, s:f, s:f, s:f}", "client",
                                   client_names[row->client], "op", row->put ? "put" : "get",
                                   "object_bytes", (json_int_t)row->bytes, "depth", (int)row->depth,
                                   "bytes_per_s", bench_rate_of(row->bytes_per_s, repeats).median,
                                   "p50_s", bench_rate_of(row->p50_s, repeats).median, "p99_s",
                                   bench_rate_of(row->p99_s, repeats).median, "client_cpu_s_per_gb",
                                   bench_rate_of(row->cpu_s_per_gb, repeats).median));
    }
    if (status == KVT_OK) bench_report_set(report, "repetitions", json_integer(repeats));
    kvt_store_close(site.writer);
    kvt_store_close(site.reader);
    remote_close(site.client);
    return status;
}

const bench_case bench_remote_case = {
    .name = "remote",
    .schema = "kvterrace-bench-remote-1",
    .tables = (const bench_table[]){{"rows", "client op object_bytes depth bytes_per_s p50_s p99_s "
                                             "client_cpu_s_per_gb"},
                                    {0}},
    .run = remote_case_run,
};
