/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_remote.c - a cluster of Valkey or Redis on this machine: our client, and gets of a store
 * through it; and what a batch of questions and the engine's
 * memory take.
 *
 * The samples of a row are taken in turn with those of the others; its figure is their median.
 * Client and servers share this machine's processors: ratios and processor seconds count, not
 * rates.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_remote.h"

#include "base/clock.h"
#include "bench_parts.h"
#include "remote/client.h"

#include <kvterrace/queue.h>
#include <kvterrace/remote.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define REMOTE_SIZES_COUNT 2
#define REMOTE_DEPTHS      3
#define REMOTE_REPEATS     3
#define REMOTE_DEPTH_MOST  32
#define REMOTE_KEYS_MOST   512
#define REMOTE_WAIT_NS     UINT64_C(20000000000)

static const uint64_t remote_sizes[REMOTE_SIZES_COUNT] = {256u << 10, 2u << 20};
static const uint32_t remote_depths[REMOTE_DEPTHS] = {1, 8, 32};

enum { CLIENT_RESP, CLIENT_STORE, CLIENTS };
static const char *const client_names[CLIENTS] = {"resp", "kvt_get"};

/* One measurement, and the median of several. */
typedef struct remote_sample {
    double bytes_per_s, p50_s, p99_s, client_cpu, server_cpu; /* processor seconds per GB */
} remote_sample;

typedef struct remote_row {
    int client;
    bool put;
    uint64_t bytes;
    uint32_t depth;
    uint32_t count;
    remote_sample samples[REMOTE_REPEATS];
} remote_row;

/* The needs of a run of requests. */
typedef struct remote_run {
    const bench_remote_site *site;
    uint64_t bytes;
    uint32_t depth, objects, requests;
    bool put;
    double *latencies; /* of the requests */
    char *memory;      /* depth buffers */
    uint64_t wrong;
} remote_run;

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

static double remote_cpu(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* ---- clients ---- */

static bool remote_run_resp(remote_run *run)
{
    remote_client *client = run->site->client;
    remote_request requests[REMOTE_DEPTH_MOST], *done[REMOTE_DEPTH_MOST];
    char keys[REMOTE_DEPTH_MOST][64];
    struct iovec parts[REMOTE_DEPTH_MOST];
    uint32_t numbers[REMOTE_DEPTH_MOST], places[REMOTE_DEPTH_MOST];
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
        const size_t count = remote_reap(client, done, 1, REMOTE_DEPTH_MOST, REMOTE_WAIT_NS);
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

static kvt_layout remote_layout(uint64_t bytes)
{
    return (kvt_layout){.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = bytes};
}

kvt_key bench_remote_key(uint64_t bytes, uint32_t number)
{
    kvt_key key = {{0}};
    memcpy(key.bytes, &number, sizeof number);
    memcpy(key.bytes + 8, &bytes, sizeof bytes);
    key.bytes[31] = 0x42;
    return key;
}

/* One get after the other, as a caller of kvt_get has it. */
static bool remote_run_gets(remote_run *run)
{
    for (uint32_t i = 0; i < run->requests; i++) {
        const uint32_t number = i % run->objects;
        const kvt_key key = bench_remote_key(run->bytes, number);
        const uint64_t began_ns = base_clock_ns();
        if (kvt_get(run->site->reader, &key, run->memory, run->bytes, NULL) == KVT_OK)
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
    kvt_request requests[REMOTE_DEPTH_MOST];
    kvt_completion done[REMOTE_DEPTH_MOST];
    kvt_view views[REMOTE_DEPTH_MOST];
    const kvt_layout layout = remote_layout(run->bytes);
    bool good = kvt_queue_open(run->site->reader, &options, &queue) == KVT_OK;
    for (uint32_t i = 0; i < run->depth; i++)
        views[i] = kvt_view_packed(&layout, run->memory + i * run->bytes);
    for (uint32_t from = 0; good && from < run->requests; from += run->depth) {
        const uint64_t began_ns = base_clock_ns();
        memset(requests, 0, sizeof requests);
        for (uint32_t i = 0; i < run->depth; i++) {
            requests[i].struct_size = sizeof requests[i];
            requests[i].kind = KVT_REQUEST_GET;
            requests[i].key = bench_remote_key(run->bytes, (from + i) % run->objects);
            requests[i].view = &views[i];
            requests[i].deadline_ns = KVT_NO_DEADLINE;
        }
        good = kvt_submit(queue, requests, run->depth, NULL) == KVT_OK;
        for (uint32_t ended = 0; good && ended < run->depth;) {
            done[0].struct_size = sizeof done[0];
            good = kvt_queue_wait(queue, KVT_NO_DEADLINE) == KVT_OK;
            const size_t count = good ? kvt_drain(queue, done, run->depth) : 0;
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

static int remote_order(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static bool remote_measure(const bench_remote_site *site, const remote_row *row,
                           uint64_t total_bytes, remote_sample *out)
{
    remote_run run = {.site = site, .bytes = row->bytes, .depth = row->depth, .put = row->put};
    run.objects = bench_remote_objects(site, row->bytes);
    run.requests = (uint32_t)(total_bytes / row->bytes) / row->depth * row->depth;
    if (run.requests < row->depth) run.requests = row->depth;
    run.latencies = calloc(run.requests, sizeof *run.latencies);
    run.memory = bench_buffer(row->bytes * row->depth);
    bool good = run.latencies != NULL && run.memory != NULL;
    const double cpu = remote_cpu(), server = bench_cluster_cpu_seconds(&site->cluster);
    const uint64_t began_ns = base_clock_ns();
    if (good) good = row->client == CLIENT_RESP ? remote_run_resp(&run) : remote_run_store(&run);
    const double seconds = (double)(base_clock_ns() - began_ns) * 1e-9;
    const double gigabytes = (double)run.requests * (double)row->bytes * 1e-9;
    if (good) {
        qsort(run.latencies, run.requests, sizeof *run.latencies, remote_order);
        *out = (remote_sample){.bytes_per_s = gigabytes * 1e9 / seconds,
                               .p50_s = run.latencies[run.requests / 2],
                               .p99_s = run.latencies[(uint64_t)run.requests * 99 / 100],
                               .client_cpu = (remote_cpu() - cpu) / gigabytes,
                               .server_cpu = (bench_cluster_cpu_seconds(&site->cluster) - server) /
                                             gigabytes};
    }
    if (run.wrong != 0)
        fprintf(stderr, "bench remote: %s: %llu of %u answers were wrong or missing\n",
                client_names[row->client], (unsigned long long)run.wrong, run.requests);
    free(run.latencies);
    free(run.memory);
    return good && run.wrong == 0;
}

/* The median of one figure over a row's samples. */
static double remote_median(const remote_row *row, size_t offset)
{
    double values[REMOTE_REPEATS];
    for (uint32_t i = 0; i < row->count; i++)
        memcpy(&values[i], (const char *)&row->samples[i] + offset, sizeof values[i]);
    qsort(values, row->count, sizeof *values, remote_order);
    return row->count > 0 ? values[row->count / 2] : 0;
}
#define MEDIAN(row, member) remote_median(row, offsetof(remote_sample, member))

static uint32_t remote_make_rows(remote_row *rows)
{
    uint32_t count = 0;
    for (int size = 0; size < REMOTE_SIZES_COUNT; size++)
        for (int depth = 0; depth < REMOTE_DEPTHS; depth++)
            for (int put = 0; put < 2; put++)
                for (int client = 0; client < CLIENTS; client++) {
                    if (client == CLIENT_STORE && put) continue;
                    rows[count++] = (remote_row){.client = client,
                                                 .put = put,
                                                 .bytes = remote_sizes[size],
                                                 .depth = remote_depths[depth]};
                }
    return count;
}

static json_t *remote_report_rows(const remote_row *rows, uint32_t count)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++) {
        const remote_row *row = &rows[i];
        json_t *one = json_pack(
            "{s:s, s:s, s:I, s:i, s:f, s:f, s:f, s:f, s:f}", "client", client_names[row->client],
            "op", row->put ? "put" : "get", "object_bytes", (json_int_t)row->bytes, "depth",
            (int)row->depth, "bytes_per_s", MEDIAN(row, bytes_per_s), "p50_s", MEDIAN(row, p50_s),
            "p99_s", MEDIAN(row, p99_s), "client_cpu_s_per_gb", MEDIAN(row, client_cpu),
            "server_cpu_s_per_gb", MEDIAN(row, server_cpu));
        json_array_append_new(list, one);
    }
    return list;
}

static void remote_print_rows(FILE *out, const remote_row *rows, uint32_t count)
{
    fprintf(out, "%-10s %-4s %9s %6s %9s %9s %9s %10s %10s\n", "client", "op", "bytes", "depth",
            "MB/s", "p50 ms", "p99 ms", "cpu s/GB", "server");
    for (uint32_t i = 0; i < count; i++) {
        const remote_row *row = &rows[i];
        fprintf(out, "%-10s %-4s %9llu %6u %9.0f %9.2f %9.2f %10.2f %10.2f\n",
                client_names[row->client], row->put ? "put" : "get", (unsigned long long)row->bytes,
                row->depth, MEDIAN(row, bytes_per_s) * 1e-6, MEDIAN(row, p50_s) * 1e3,
                MEDIAN(row, p99_s) * 1e3, MEDIAN(row, client_cpu), MEDIAN(row, server_cpu));
    }
}

/* Writes the objects that gets read, by our client. */
static bool remote_fill(const bench_remote_site *site)
{
    remote_sample ignored;
    for (int size = 0; size < REMOTE_SIZES_COUNT; size++) {
        const remote_row row = {
            .client = CLIENT_RESP, .put = true, .bytes = remote_sizes[size], .depth = 8};
        const uint64_t all = remote_sizes[size] * bench_remote_objects(site, remote_sizes[size]);
        if (!remote_measure(site, &row, all, &ignored)) return false;
    }
    return true;
}

int bench_remote_run(const bench_options *options)
{
    static remote_row rows[CLIENTS * 2 * REMOTE_SIZES_COUNT * REMOTE_DEPTHS];
    static bench_remote_site site;
    signal(SIGPIPE, SIG_IGN);
    if (options->faults) return bench_remote_faults(options);
    int result = bench_remote_open(options, &site);
    if (result != 0) return result;
    const uint64_t total = options->quick ? UINT64_C(16) << 20 : UINT64_C(192) << 20;
    const uint32_t repeats = options->quick ? 1 : REMOTE_REPEATS;
    const uint32_t count = remote_make_rows(rows);
    bool good = remote_fill(&site);
    for (uint32_t repeat = 0; repeat < repeats && good; repeat++)
        for (uint32_t i = 0; i < count && good; i++) {
            bench_tell(options, repeat * count + i, repeats * count, client_names[rows[i].client]);
            good = remote_measure(&site, &rows[i], total, &rows[i].samples[rows[i].count++]);
        }
    bench_remote_probe probe = {0};
    bench_remote_memory memory[REMOTE_SIZES_COUNT];
    if (good) good = bench_remote_ask(&site, &probe);
    for (int size = 0; size < REMOTE_SIZES_COUNT && good; size++)
        good = bench_remote_weigh(remote_sizes[size], &memory[size]);
    bench_tell(options, 1, 1, "");
    if (good && !options->json) {
        remote_print_rows(options->out, rows, count);
        fprintf(options->out,
                "\n512 keys on 3 nodes: %.0f requests, %.3f ms; an empty round trip %.3f ms\n",
                probe.requests, probe.seconds * 1e3, probe.round_trip_s * 1e3);
        for (int size = 0; size < REMOTE_SIZES_COUNT; size++)
            fprintf(options->out, "entries of %llu bytes: %.4f engine bytes per record byte\n",
                    (unsigned long long)remote_sizes[size], memory[size].ratio);
    } else if (good) {
        json_t *root = bench_report_head("kvterrace-bench-remote-1", repeats);
        json_object_set_new(root, "rows", remote_report_rows(rows, count));
        json_object_set_new(root, "probe",
                            json_pack("{s:i, s:i, s:f, s:f, s:f, s:i}", "keys", 512, "nodes", 3,
                                      "requests", probe.requests, "seconds", probe.seconds,
                                      "round_trip_s", probe.round_trip_s, "rounds", 1));
        json_t *list = json_array();
        for (int size = 0; size < REMOTE_SIZES_COUNT; size++)
            json_array_append_new(
                list, json_pack("{s:I, s:f, s:f}", "entry_bytes", (json_int_t)remote_sizes[size],
                                "record_bytes", memory[size].record_bytes,
                                "engine_bytes_per_record_byte", memory[size].ratio));
        json_object_set_new(root, "memory", list);
        result = bench_report_print(options->out, root);
    }
    bench_remote_close(&site);
    return good ? result : 1;
}
