/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_hosts.c - the replay loop over several hosts: routing, queues, restarts, results by host.
 *
 *     arrival -> route -> the host's FIFO queue -> service -> references, publishing
 *
 * Two things happen next at any moment: the first arrival that has no host yet, and the earliest
 * service that some host can begin. The earlier one is taken, so everything that hosts share is
 * seen in the order of time. Each host is a sim_state of its own; all add to one result. One
 * thread.
 */
#include "base/clock.h"
#include "results.h"
#include "sim_remote.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define HOSTS_NOBODY UINT32_MAX

typedef struct hosts_host {
    sim_state sim;
    sim_link link;
    uint32_t first, last; /* waiting requests; HOSTS_NOBODY = none */
    uint32_t waiting;
    double ttft_sum;
    uint64_t restart_ns; /* UINT64_MAX = none to come */
} hosts_host;

typedef struct hosts_run {
    const replay_options *options;
    const replay_workload *workload;
    const char *policy;
    replay_result *result;
    hosts_host *hosts;
    uint32_t *next; /* by request: the one behind it in its host's queue */
    sim_remote remote;
    replay_random random;
    uint32_t turn; /* least_loaded looks at this host first */
    char *message;
    size_t message_size;
} hosts_run;

/* ---- routing ---- */

/* The host of a session: its requests share the second block, the first may be a system prompt. */
static uint32_t hosts_home(const hosts_run *run, const replay_request *request)
{
    const uint32_t *prefix = &run->workload->blocks[request->first_block];
    uint64_t key = request->block_count > 1    ? prefix[1]
                   : request->block_count == 1 ? prefix[0]
                                               : request->session;
    return (uint32_t)(replay_mix(key) % run->options->hosts);
}

/* Requests that wait and servers that are busy. */
static uint32_t hosts_load(const hosts_run *run, const hosts_host *host, uint64_t now_ns)
{
    uint32_t load = host->waiting;
    for (uint32_t i = 0; i < run->options->servers; i++)
        load += host->sim.free_ns[i] > now_ns;
    return load;
}

/* The host with the least load; of equal ones, the next in turn. */
static uint32_t hosts_least_loaded(hosts_run *run, uint64_t now_ns)
{
    uint32_t count = run->options->hosts, best = run->turn, least = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t host = (run->turn + i) % count;
        uint32_t load = hosts_load(run, &run->hosts[host], now_ns);
        if (load >= least) continue;
        least = load;
        best = host;
    }
    run->turn = (best + 1) % count;
    return best;
}

static uint32_t hosts_route(hosts_run *run, const replay_request *request)
{
    const replay_options *options = run->options;
    switch (options->route) {
    case REPLAY_ROUTE_RANDOM: return (uint32_t)replay_random_below(&run->random, options->hosts);
    case REPLAY_ROUTE_LEAST_LOADED: return hosts_least_loaded(run, request->arrival_ns);
    case REPLAY_ROUTE_SPILL:
        if (replay_random_unit(&run->random) < options->spill_share)
            return (uint32_t)replay_random_below(&run->random, options->hosts);
        return hosts_home(run, request);
    default: return hosts_home(run, request);
    }
}

/* ---- hosts ---- */

/* Policies with a prefix tree need a parent before its children; the others would see a prefix end
 * from the front. */
static bool hosts_touch_backwards(const char *policy)
{
    return strcmp(policy, "utility") != 0 && strcmp(policy, "lru-leaf") != 0 &&
           strcmp(policy, REPLAY_ORACLE) != 0;
}

static kvt_status hosts_open_host(hosts_run *run, uint32_t index)
{
    const replay_workload *workload = run->workload;
    hosts_host *host = &run->hosts[index];
    sim_state *sim = &host->sim;
    sim->options = run->options;
    sim->workload = workload;
    sim->result = run->result;
    sim->backwards = hosts_touch_backwards(run->policy);
    host->first = host->last = HOSTS_NOBODY;
    host->restart_ns = UINT64_MAX;
    if (run->options->restart && workload->request_count > 0)
        host->restart_ns = workload->requests[workload->request_count - 1].arrival_ns /
                           (run->options->hosts + 1) * (index + 1);
    kvt_status status = sim_link_open(&host->link, run->options);
    host->link.row = &run->result->hosts.rows[index];
    sim->link = &host->link;
    if (run->options->remote.capacity_bytes > 0) sim->remote = &run->remote;
    if (status == KVT_OK) status = sim_open(sim, run->policy, run->message, run->message_size);
    return status;
}

/* Empties a host whose restart is due. */
static kvt_status hosts_restart(hosts_run *run, hosts_host *host, uint64_t now_ns)
{
    sim_state *sim = &host->sim;
    uint64_t blocks = run->workload->distinct_blocks;
    if (host->restart_ns > now_ns) return KVT_OK;
    host->restart_ns = UINT64_MAX;
    sim_add_policy(sim);
    kvt_policy_close(sim->policy);
    sim->policy = NULL;
    memset(sim->ready_ns, 0, (size_t)blocks * sizeof *sim->ready_ns);
    memset(sim->inherited, 0, (size_t)blocks * sizeof *sim->inherited);
    memset(sim->carried, 0, (size_t)blocks * sizeof *sim->carried);
    sim_link_restart(&host->link, run->options);
    return sim_open_policy(sim, run->policy, run->message, run->message_size);
}

static void hosts_append(hosts_run *run, uint32_t index, uint32_t request)
{
    hosts_host *host = &run->hosts[index];
    run->next[request] = HOSTS_NOBODY;
    if (host->waiting++ == 0)
        host->first = request;
    else
        run->next[host->last] = request;
    host->last = request;
}

/* ---- the loop ---- */

/* The host whose next service begins first; HOSTS_NOBODY when nobody waits. */
static uint32_t hosts_next_service(const hosts_run *run, uint64_t *start_ns_out)
{
    uint32_t best = HOSTS_NOBODY;
    *start_ns_out = UINT64_MAX;
    for (uint32_t i = 0; i < run->options->hosts; i++) {
        const hosts_host *host = &run->hosts[i];
        if (host->waiting == 0) continue;
        uint64_t start_ns = run->workload->requests[host->first].arrival_ns;
        if (host->sim.free_ns[0] > start_ns) start_ns = host->sim.free_ns[0];
        if (start_ns >= *start_ns_out) continue;
        *start_ns_out = start_ns;
        best = i;
    }
    return best;
}

static void hosts_count(hosts_host *host, const sim_visit *visit, const results_sample *sample)
{
    replay_host *row = host->link.row;
    sim_state *sim = &host->sim;
    if (!sim->counting) return;
    row->requests++;
    row->block_refs += visit->request->block_count;
    host->ttft_sum += sample->wait_s + sample->service_s;
    sim->result->delay_hits += visit->delayed;
    sim->result->hosts.probes += visit->probed;
    sim->saved_s += visit->saved_s - sim->options->alpha_seconds * visit->loss;
}

/* Serves the first request of a host's queue. */
static kvt_status hosts_serve(hosts_run *run, uint32_t index, uint64_t start_ns,
                              results_collector *collector)
{
    hosts_host *host = &run->hosts[index];
    sim_state *sim = &host->sim;
    uint32_t number = host->first;
    const replay_request *request = &run->workload->requests[number];
    sim_visit visit = {.request = request,
                       .prefix = &run->workload->blocks[request->first_block],
                       .start_ns = start_ns};
    host->first = run->next[number];
    host->waiting--;
    kvt_status status = hosts_restart(run, host, start_ns);
    sim->counting = number >= collector->skip;
    if (status == KVT_OK) status = sim_tick_until(sim, start_ns);
    if (status == KVT_OK) status = sim_oracle_refresh(sim, number, start_ns);
    if (status != KVT_OK) return status;
    sim_serve(sim, &visit);
    sim_take_server(sim, start_ns + sim_to_ns(visit.service_s));
    status = sim_refer(sim, &visit);
    if (status != KVT_OK) return status;
    if (sim->remote != NULL) {
        sim_remote_publish(sim, &visit);
        status = sim_remote_tell(sim, &visit);
        if (status != KVT_OK) return status;
    }
    const results_sample sample = {.wait_s = (double)(start_ns - request->arrival_ns) * 1e-9,
                                   .service_s = visit.service_s,
                                   .compute_s = visit.prefill_s,
                                   .loss = visit.loss};
    hosts_count(host, &visit, &sample);
    results_add(collector, number, &sample);
    return KVT_OK;
}

static kvt_status hosts_loop(hosts_run *run, results_collector *collector)
{
    const replay_workload *workload = run->workload;
    uint64_t arrived = 0, start_ns;
    for (;;) {
        uint32_t host = hosts_next_service(run, &start_ns);
        if (arrived < workload->request_count &&
            workload->requests[arrived].arrival_ns <= start_ns) {
            if (!sim_may_proceed(run->options, arrived, workload->request_count))
                return KVT_E_CANCELLED;
            hosts_append(run, hosts_route(run, &workload->requests[arrived]), (uint32_t)arrived);
            arrived++;
            continue;
        }
        if (host == HOSTS_NOBODY) return KVT_OK;
        kvt_status status = hosts_serve(run, host, start_ns, collector);
        if (status != KVT_OK) return status;
    }
}

/* ---- results ---- */

static void hosts_sum(replay_host *all, const replay_host *row)
{
    all->requests += row->requests;
    all->block_refs += row->block_refs;
    all->local_blocks += row->local_blocks;
    all->remote_blocks += row->remote_blocks;
    all->fetched_blocks += row->fetched_blocks;
    all->fetched_bytes += row->fetched_bytes;
    all->published_blocks += row->published_blocks;
    all->published_bytes += row->published_bytes;
}

static void hosts_finish(hosts_run *run, results_collector *collector)
{
    replay_result *result = run->result;
    replay_hosts *out = &result->hosts;
    double saved_s = 0.0;
    for (uint32_t i = 0; i < out->count; i++) {
        hosts_host *host = &run->hosts[i];
        replay_host *row = &out->rows[i];
        sim_note_peak(&host->sim);
        sim_add_policy(&host->sim);
        saved_s += host->sim.saved_s;
        if (row->requests > 0) row->ttft_mean = host->ttft_sum / (double)row->requests;
        hosts_sum(&out->all, row);
    }
    results_finish(collector, run->options->servers * out->count);
    out->all.ttft_mean = result->times.ttft_mean;
    if (out->all.block_refs > 0) {
        double refs = (double)out->all.block_refs;
        out->local_ratio = (double)out->all.local_blocks / refs;
        out->remote_ratio = (double)out->all.remote_blocks / refs;
        out->found_ratio = out->local_ratio + out->remote_ratio;
        out->written_per_use = (double)out->all.published_blocks / refs;
    }
    if (result->requests > 0) result->saved_s = saved_s / (double)result->requests;
    sim_remote_finish(&run->remote);
    const sim_state *first = &run->hosts[0].sim;
    results_percentiles(first->samples_ns, first->sample_room, &result->decision_ns_p50,
                        &result->decision_ns_p99);
}

static kvt_status hosts_open(hosts_run *run)
{
    const replay_options *options = run->options;
    replay_hosts *out = &run->result->hosts;
    snprintf(run->message, run->message_size, "out of memory");
    if (run->workload->request_count >= HOSTS_NOBODY) return KVT_E_SPACE;
    run->hosts = calloc(options->hosts, sizeof *run->hosts);
    run->next = malloc(((size_t)run->workload->request_count + 1) * sizeof *run->next);
    out->rows = calloc(options->hosts, sizeof *out->rows);
    if (run->hosts == NULL || run->next == NULL || out->rows == NULL) return KVT_E_MEMORY;
    out->count = options->hosts;
    replay_random_seed(&run->random, replay_mix(options->seed) ^ options->hosts);
    kvt_status status = sim_remote_open(&run->remote, options, run->workload->distinct_blocks, out);
    for (uint32_t i = 0; i < options->hosts && status == KVT_OK; i++)
        status = hosts_open_host(run, i);
    return status;
}

static void hosts_release(hosts_run *run)
{
    for (uint32_t i = 0; run->hosts != NULL && i < run->options->hosts; i++) {
        sim_link_close(&run->hosts[i].link);
        sim_release(&run->hosts[i].sim);
    }
    sim_remote_close(&run->remote);
    free(run->hosts);
    free(run->next);
}

kvt_status sim_hosts_run(const replay_options *options, const replay_workload *workload,
                         const char *policy, replay_result *result, char *message,
                         size_t message_size)
{
    results_collector collector = {0};
    replay_options own = *options;
    own.bounds = false; /* they are those of one host's tiers */
    hosts_run run = {.options = &own,
                     .workload = workload,
                     .policy = policy,
                     .result = result,
                     .message = message,
                     .message_size = message_size};
    results_start(result, "sim", policy, &own, workload);
    kvt_status status = hosts_open(&run);
    if (status == KVT_OK) status = results_collector_open(&collector, result, workload, own.warmup);
    if (status == KVT_OK) {
        uint64_t begin = base_clock_ns();
        status = hosts_loop(&run, &collector);
        result->loop_s = (double)(base_clock_ns() - begin) * 1e-9;
        if (status != KVT_OK)
            snprintf(message, message_size, "policy %s: %s", policy, kvt_status_text(status));
    }
    if (status == KVT_OK) hosts_finish(&run, &collector);
    results_collector_close(&collector);
    hosts_release(&run);
    if (status != KVT_OK) replay_result_free(result);
    return status;
}
