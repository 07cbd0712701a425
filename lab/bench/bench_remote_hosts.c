/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_remote_hosts.c - two hosts, each a process in a network namespace of its own, and an engine
 * in a third one: what the first has put the second gets, bit for bit; and what both publish at a
 * time is written once.
 *
 * Thread rule: one bench at a time. A host's process is told what to do by a pipe, and answers.
 */
#include "bench_remote.h"

#include "base/clock.h"
#include "bench_hosts.h"
#include "bench_parts.h"
#include "codecs/kv_sample.h"

#include <kvterrace/remote.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOSTS_ENTRY_TOKENS 64u
#define HOSTS_SHARED       200u   /* entries that one host puts and the other gets */
#define HOSTS_BOTH         1000u  /* entries that both put */
#define HOSTS_BOTH_FROM    100000 /* number of the first of these */

/* 4 layers x 2 sides x 64 tokens x 4 heads x 64 x bf16 = 256 KiB. */
static const kvt_layout hosts_layout = {.layers = 4,
                                        .kv_heads = 4,
                                        .head_dim = 64,
                                        .dtype = KVT_DTYPE_BF16,
                                        .tokens = HOSTS_ENTRY_TOKENS};
#define HOSTS_ENTRY_BYTES (UINT64_C(4) * 2 * HOSTS_ENTRY_TOKENS * 4 * 64 * 2)

enum { HOSTS_PUT = 'p', HOSTS_GET = 'g', HOSTS_END = 'e' };

typedef struct hosts_order {
    uint32_t what, from, count;
} hosts_order;

typedef struct hosts_answer {
    uint64_t done, remote, missed, wrong;
    uint64_t published, published_bytes, deduplicated, dropped;
    double seconds;
} hosts_answer;

typedef struct hosts_process {
    pid_t pid;
    int orders, answers;
} hosts_process;

static bool hosts_put(kvt_store *store, uint32_t number, void *data)
{
    codecs_kv_sample_fill(&hosts_layout, number, data);
    const kvt_entry entry = {.struct_size = sizeof entry,
                             .key = bench_remote_key(HOSTS_ENTRY_BYTES, number),
                             .layout = hosts_layout,
                             .recompute_seconds = 1};
    kvt_status status = kvt_put(store, &entry, data, HOSTS_ENTRY_BYTES);
    while (status == KVT_BUSY) {
        base_sleep(1000000);
        status = kvt_put(store, &entry, data, HOSTS_ENTRY_BYTES);
    }
    return status == KVT_OK;
}

static void hosts_get(kvt_store *store, uint32_t number, void *data, void *expected,
                      hosts_answer *answer)
{
    const kvt_key key = bench_remote_key(HOSTS_ENTRY_BYTES, number);
    kvt_get_info info = {.struct_size = sizeof info};
    const kvt_status status = kvt_get(store, &key, data, HOSTS_ENTRY_BYTES, &info);
    codecs_kv_sample_fill(&hosts_layout, number, expected);
    answer->done++;
    answer->remote += status == KVT_OK && info.tier == KVT_TIER_REMOTE;
    answer->missed += status != KVT_OK;
    answer->wrong += status == KVT_OK && memcmp(data, expected, HOSTS_ENTRY_BYTES) != 0;
}

/* Carries an order out. */
static hosts_answer hosts_obey(kvt_store *store, const hosts_order *order, void *data,
                               void *expected)
{
    hosts_answer answer = {.done = 0};
    kvt_remote_stats stats = {.struct_size = sizeof stats};
    const uint64_t began_ns = base_clock_ns();
    for (uint32_t i = 0; i < order->count; i++) {
        const uint32_t number = order->from + i;
        if (order->what == HOSTS_GET)
            hosts_get(store, number, data, expected, &answer);
        else
            answer.done += hosts_put(store, number, data);
    }
    if (order->what == HOSTS_PUT) {
        (void)!kvt_flush(store);
        (void)!kvt_remote_flush(store, KVT_NO_DEADLINE);
    }
    answer.seconds = (double)(base_clock_ns() - began_ns) * 1e-9;
    if (kvt_remote_stats_get(store, &stats) == KVT_OK) {
        answer.published = stats.published;
        answer.published_bytes = stats.published_bytes;
        answer.deduplicated = stats.deduplicated;
        answer.dropped = stats.dropped_queue + stats.dropped_node;
    }
    return answer;
}

/* A host's process: obeys until it is told to end. */
static void hosts_serve(const bench_cluster *cluster, pid_t space, int orders, int answers)
{
    hosts_order order;
    if (!bench_cluster_enter(space)) return;
    kvt_store *store = bench_remote_store(cluster, UINT64_C(512) << 20, KVT_PUBLISH_ALL, 5, 10);
    char *data = bench_buffer(HOSTS_ENTRY_BYTES), *expected = bench_buffer(HOSTS_ENTRY_BYTES);
    while (store != NULL && data != NULL && expected != NULL &&
           read(orders, &order, sizeof order) == (ssize_t)sizeof order && order.what != HOSTS_END) {
        const hosts_answer answer = hosts_obey(store, &order, data, expected);
        if (write(answers, &answer, sizeof answer) != (ssize_t)sizeof answer) break;
    }
    kvt_close(store);
    free(data);
    free(expected);
}

static bool hosts_start(const bench_cluster *cluster, pid_t space, hosts_process *out)
{
    int orders[2], answers[2];
    const pid_t parent = getpid();
    if (pipe(orders) != 0) return false;
    if (pipe(answers) != 0) {
        close(orders[0]);
        close(orders[1]);
        return false;
    }
    *out = (hosts_process){.pid = fork(), .orders = orders[1], .answers = answers[0]};
    if (out->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(orders[1]);
        close(answers[0]);
        if (getppid() == parent) hosts_serve(cluster, space, orders[0], answers[1]);
        _exit(0);
    }
    close(orders[0]);
    close(answers[1]);
    return out->pid > 0;
}

static bool hosts_tell(const hosts_process *host, uint32_t what, uint32_t from, uint32_t count)
{
    const hosts_order order = {what, from, count};
    return write(host->orders, &order, sizeof order) == (ssize_t)sizeof order;
}

static bool hosts_hear(const hosts_process *host, hosts_answer *out)
{
    return read(host->answers, out, sizeof *out) == (ssize_t)sizeof *out;
}

static void hosts_stop(hosts_process *host)
{
    if (host->pid <= 0) return;
    (void)!hosts_tell(host, HOSTS_END, 0, 0);
    close(host->orders);
    close(host->answers);
    (void)waitpid(host->pid, NULL, 0);
}

/* The orders of the bench, and what came of them: the get of the second host, and both hosts'
 * publishing. */
static bool hosts_run(const hosts_process hosts[2], uint32_t both, hosts_answer *got,
                      hosts_answer published[2], double *written_bytes)
{
    hosts_answer first;
    if (!hosts_tell(&hosts[0], HOSTS_PUT, 0, HOSTS_SHARED) || !hosts_hear(&hosts[0], &first) ||
        !hosts_tell(&hosts[1], HOSTS_GET, 0, HOSTS_SHARED) || !hosts_hear(&hosts[1], got))
        return false;
    for (int i = 0; i < 2; i++)
        if (!hosts_tell(&hosts[i], HOSTS_PUT, HOSTS_BOTH_FROM, both)) return false;
    for (int i = 0; i < 2; i++)
        if (!hosts_hear(&hosts[i], &published[i])) return false;
    *written_bytes = (double)(published[0].published_bytes + published[1].published_bytes -
                              first.published_bytes - got->published_bytes);
    published[0].published -= first.published;
    published[1].published -= got->published;
    return first.published == HOSTS_SHARED;
}

static int hosts_report(const bench_options *options, uint32_t both, const hosts_answer *got,
                        const hosts_answer published[2], double written_bytes)
{
    const double written = (double)(published[0].published + published[1].published);
    const double each = written > 0 ? written_bytes / written : 0;
    const double share = each > 0 ? written_bytes / (each * both) : 0;
    if (options->json) {
        json_t *root = bench_report_head("kvterrace-bench-remote-hosts-1", 1);
        json_object_set_new(root, "get",
                            json_pack("{s:I, s:I, s:I, s:I, s:f}", "gets", (json_int_t)got->done,
                                      "remote_hits", (json_int_t)got->remote, "misses",
                                      (json_int_t)got->missed, "wrong_bytes",
                                      (json_int_t)got->wrong, "bytes_per_s",
                                      (double)got->done * HOSTS_ENTRY_BYTES / got->seconds));
        json_object_set_new(root, "both",
                            json_pack("{s:i, s:I, s:I, s:I, s:f}", "entries", (int)both,
                                      "written_by_first", (json_int_t)published[0].published,
                                      "written_by_second", (json_int_t)published[1].published,
                                      "dropped",
                                      (json_int_t)(published[0].dropped + published[1].dropped),
                                      "written_bytes_per_unique_byte", share));
        return bench_report_print(options->out, root);
    }
    fprintf(options->out,
            "%llu gets on the second host: %llu from the first one, %llu missed, %llu wrong; "
            "%.0f MB/s\n",
            (unsigned long long)got->done, (unsigned long long)got->remote,
            (unsigned long long)got->missed, (unsigned long long)got->wrong,
            (double)got->done * HOSTS_ENTRY_BYTES / got->seconds * 1e-6);
    fprintf(options->out,
            "%u entries that both publish: %llu written by the first, %llu by the second: %.4f of "
            "their bytes\n",
            both, (unsigned long long)published[0].published,
            (unsigned long long)published[1].published, share);
    return 0;
}

int bench_remote_hosts(const bench_options *options)
{
    bench_hosts spaces;
    static bench_cluster cluster;
    hosts_process hosts[2] = {{.pid = 0}, {.pid = 0}};
    hosts_answer got = {0}, published[2] = {{0}};
    double written_bytes = 0;
    const uint32_t both = options->quick ? HOSTS_BOTH / 5 : HOSTS_BOTH;
    int result = bench_hosts_open(2, &spaces);
    if (result != 0) {
        fprintf(stderr, "kvterrace bench remote: no network namespaces can be made here\n");
        return result;
    }
    result = bench_cluster_start(&(bench_cluster_options){.nodes = 3,
                                                          .memory_bytes = UINT64_C(700) << 20,
                                                          .address = spaces.address,
                                                          .space = spaces.nodes},
                                 &cluster);
    bool good = result == 0;
    for (int i = 0; i < 2 && good; i++)
        good = hosts_start(&cluster, spaces.hosts[i], &hosts[i]);
    if (good) good = hosts_run(hosts, both, &got, published, &written_bytes);
    for (int i = 0; i < 2; i++)
        hosts_stop(&hosts[i]);
    if (good) result = hosts_report(options, both, &got, published, written_bytes);
    bench_cluster_stop(&cluster);
    bench_hosts_close(&spaces);
    return good && got.wrong == 0 ? result : result != 0 ? result : 1;
}
