/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_run.c - a run of one policy in virtual time: events, routing, restarts, results.
 *
 *     arrival -> route -> the host's FIFO queue -> a server (sim_requests.c)
 *
 * Servers, workers and arrivals of all hosts are woken in the order of time, so everything that
 * hosts share is seen in that order. Each host has a policy of its own; all add to one result. One
 * thread.
 */
#include "base/clock.h"
#include "live.h"
#include "sim_host.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- events ---- */

/* A host's actors: its servers, its workers, its drives, and its restart. */
static uint32_t run_actors(const sim_run *run)
{
    return run->options->servers + SIM_EXECUTORS + 3;
}

/* The order of events: by time, of equals by the order in which they were scheduled. */
static bool run_is_before(const sim_event *a, const sim_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

/* Puts an event in at a free place of the heap, or above it. */
static void run_lift(sim_run *run, sim_event event, uint32_t at)
{
    while (at > 0 && run_is_before(&event, &run->heap[(at - 1) / 2])) {
        run->heap[at] = run->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    run->heap[at] = event;
}

static void run_schedule(sim_run *run, uint64_t at_ns, uint32_t actor)
{
    assert(at_ns >= run->now_ns);
    run_lift(run, (sim_event){at_ns, run->events++, actor}, run->heap_count++);
}

void sim_schedule(sim_host *host, uint64_t at_ns, uint32_t actor)
{
    run_schedule(host->run, at_ns, host->first_actor + actor);
}

void sim_hasten(sim_host *host, uint32_t actor)
{
    sim_run *run = host->run;
    for (uint32_t at = 0; at < run->heap_count; at++) {
        if (run->heap[at].actor != host->first_actor + actor) continue;
        run_lift(run, (sim_event){run->now_ns, run->events++, host->first_actor + actor}, at);
        return;
    }
}

/* Takes the event at a place of the heap. */
static sim_event run_take_at(sim_run *run, uint32_t at)
{
    const sim_event taken = run->heap[at];
    assert(at < run->heap_count);
    const sim_event moved = run->heap[--run->heap_count];
    if (at == run->heap_count) return taken;
    for (;;) {
        uint32_t child = at * 2 + 1;
        if (child >= run->heap_count) break;
        if (child + 1 < run->heap_count && run_is_before(&run->heap[child + 1], &run->heap[child]))
            child++;
        if (!run_is_before(&run->heap[child], &moved)) break;
        run->heap[at] = run->heap[child];
        at = child;
    }
    run_lift(run, moved, at);
    return taken;
}

void sim_reschedule(sim_host *host, uint64_t at_ns, uint32_t actor)
{
    sim_run *run = host->run;
    for (uint32_t at = 0; at < run->heap_count; at++) {
        if (run->heap[at].actor != host->first_actor + actor) continue;
        if (run->heap[at].at_ns == at_ns) return;
        (void)run_take_at(run, at);
        break;
    }
    sim_schedule(host, at_ns > run->now_ns ? at_ns : run->now_ns, actor);
}

/* Takes the events of a host's workers from the heap. */
static void run_silence_workers(sim_host *host)
{
    sim_run *run = host->run;
    uint32_t first = host->first_actor + sim_actor_of_worker(host, 0), kept = run->heap_count;
    run->heap_count = 0;
    for (uint32_t i = 0; i < kept; i++) {
        sim_event event = run->heap[i];
        if (event.actor < first || event.actor > first + SIM_EXECUTORS)
            run_lift(run, event, run->heap_count++);
    }
}

/* ---- routing ---- */

/* The host of a session: its requests share the second block, the first may be a system prompt. */
static uint32_t hosts_home(const sim_run *run, const replay_request *request)
{
    const uint32_t *prefix = &run->workload->blocks[request->first_block];
    uint64_t key = request->block_count > 1    ? prefix[1]
                   : request->block_count == 1 ? prefix[0]
                                               : request->session;
    return (uint32_t)(replay_mix(key) % run->options->hosts);
}

/* The host with the fewest requests waiting and in service; of equal ones, the next in turn. */
static uint32_t hosts_least_loaded(sim_run *run)
{
    uint32_t count = run->options->hosts, best = run->turn, least = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t host = (run->turn + i) % count;
        const sim_host *one = &run->hosts[host];
        uint32_t load = one->waiting + run->options->servers - one->idle_count;
        if (load >= least) continue;
        least = load;
        best = host;
    }
    run->turn = (best + 1) % count;
    return best;
}

static uint32_t hosts_route(sim_run *run, const replay_request *request)
{
    const replay_options *options = run->options;
    switch (options->route) {
    case REPLAY_ROUTE_RANDOM: return (uint32_t)replay_random_below(&run->random, options->hosts);
    case REPLAY_ROUTE_LEAST_LOADED: return hosts_least_loaded(run);
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

/* The background's first round, after open or a restart. */
static void hosts_begin_rounds(sim_host *host)
{
    double tick_s = host->sim.options->tick_seconds;
    if (!(tick_s > 0.0)) return;
    host->round_ns = host->run->now_ns + sim_to_ns(tick_s);
    sim_schedule(host, host->round_ns, sim_actor_of_worker(host, SIM_EXECUTORS));
}

static kvt_status hosts_open_host(sim_run *run, uint32_t index)
{
    const replay_workload *workload = run->workload;
    const replay_options *options = run->options;
    sim_host *host = &run->hosts[index];
    sim_state *sim = &host->sim;
    host->run = run;
    host->first_actor = index * run_actors(run);
    sim->options = options;
    sim->workload = workload;
    sim->result = run->result;
    sim->backwards = replay_has_hosts(options) && hosts_touch_backwards(run->policy);
    host->state = calloc((size_t)workload->distinct_blocks + 1, 1);
    if (host->state == NULL) return KVT_E_MEMORY;
    host->staging_bound_bytes = sim_staging_bound(options);
    kvt_status status = sim_link_open(&host->link, options);
    if (replay_has_hosts(options)) host->link.row = &run->result->hosts.rows[index];
    sim->link = &host->link;
    if (options->remote.capacity_bytes > 0) sim->remote = &run->remote;
    if (status == KVT_OK) status = sim_servers_open(host);
    if (status == KVT_OK) status = sim_copies_open(host);
    if (status == KVT_OK) status = sim_open(sim, run->policy, run->message, run->message_size);
    if (status == KVT_OK) status = sim_drive_open(host);
    if (status != KVT_OK) return status;
    hosts_begin_rounds(host);
    if (options->restart && workload->request_count > 0)
        sim_schedule(host,
                     workload->requests[workload->request_count - 1].arrival_ns /
                         (options->hosts + 1) * (index + 1),
                     run_actors(run) - 1);
    return KVT_OK;
}

static void hosts_close_host(sim_host *host)
{
    sim_release_plans(host);
    sim_drive_close(host);
    sim_copies_close(host);
    sim_servers_close(host);
    sim_link_close(&host->link);
    sim_release(&host->sim);
    free(host->state);
}

/* Empties a host; requests in service go on. */
static kvt_status hosts_restart(sim_host *host)
{
    sim_run *run = host->run;
    sim_state *sim = &host->sim;
    size_t blocks = (size_t)run->workload->distinct_blocks;
    run_silence_workers(host);
    sim_forget_plans(host);
    sim_copies_forget(host);
    sim_add_policy(sim);
    kvt_policy_close(sim->policy);
    sim->policy = NULL;
    memset(host->state, 0, blocks);
    memset(sim->stored, 0, blocks);
    memset(sim->used_bytes, 0, sizeof sim->used_bytes);
    memset(sim->inherited, 0, blocks * sizeof *sim->inherited);
    memset(sim->carried, 0, blocks * sizeof *sim->carried);
    sim_link_restart(&host->link, run->options);
    hosts_begin_rounds(host);
    return sim_open_policy(sim, run->policy, run->message, run->message_size);
}

/* ---- the loop ---- */

static void run_wait_for_arrival(sim_run *run)
{
    if (run->arrived < run->workload->request_count)
        run_schedule(run, run->workload->requests[run->arrived].arrival_ns,
                     run->options->hosts * run_actors(run));
}

/* The next request arrives at a host, where an idle server begins with it, or it waits. */
static kvt_status run_arrive(sim_run *run)
{
    uint32_t number = (uint32_t)run->arrived++;
    const replay_request *request = &run->workload->requests[number];
    /* Every 16 requests: the answer may cost more than a request. */
    if (run->options->proceed != NULL && number % 16 == 0 &&
        !run->options->proceed(run->options->proceed_context,
                               (double)number / (double)run->workload->request_count))
        return KVT_E_CANCELLED;
    run_wait_for_arrival(run);
    sim_host *host = &run->hosts[run->options->hosts > 1 ? hosts_route(run, request) : 0];
    run->under_way++;
    run->next[number] = SIM_NOBODY;
    if (host->waiting++ == 0)
        host->first = number;
    else
        run->next[host->last] = number;
    host->last = number;
    if (host->idle_count > 0) return sim_begin(host, host->idle[--host->idle_count]);
    return run->options->prefetch ? sim_prefetch(host, number) : KVT_OK;
}

static kvt_status run_wake(sim_run *run, uint32_t actor)
{
    uint32_t servers = run->options->servers;
    if (actor == run->options->hosts * run_actors(run)) return run_arrive(run);
    sim_host *host = &run->hosts[actor / run_actors(run)];
    actor %= run_actors(run);
    if (actor < servers) return sim_serve(host, actor);
    if (actor == run_actors(run) - 1) return hosts_restart(host);
    if (actor == sim_actor_of_drive(host)) return sim_drive_serve(host);
    return sim_work(host, actor - servers);
}

static kvt_status run_loop(sim_run *run)
{
    kvt_status status = KVT_OK;
    run_wait_for_arrival(run);
    while (status == KVT_OK &&
           (run->arrived < run->workload->request_count || run->under_way > 0)) {
        sim_event event = run_take_at(run, 0);
        run->now_ns = event.at_ns;
        status = run_wake(run, event.actor);
    }
    return status;
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

/* Sums up the rows of the hosts. */
static void hosts_finish(sim_run *run)
{
    replay_result *result = run->result;
    replay_hosts *out = &result->hosts;
    for (uint32_t i = 0; i < out->count; i++) {
        replay_host *row = &out->rows[i];
        if (row->requests > 0) row->ttft_mean = run->hosts[i].ttft_sum / (double)row->requests;
        hosts_sum(&out->all, row);
    }
    out->all.ttft_mean = result->times.ttft_mean;
    if (out->all.block_refs > 0) {
        double refs = (double)out->all.block_refs;
        out->local_ratio = (double)out->all.local_blocks / refs;
        out->remote_ratio = (double)out->all.remote_blocks / refs;
        out->found_ratio = out->local_ratio + out->remote_ratio;
        out->written_per_use = (double)out->all.published_blocks / refs;
    }
    sim_remote_finish(&run->remote);
}

static kvt_status run_finish(sim_run *run)
{
    replay_result *result = run->result;
    sim_state *first = &run->hosts[0].sim;
    double saved_s = 0.0;
    for (uint32_t i = 0; i < run->options->hosts; i++) {
        sim_add_policy(&run->hosts[i].sim);
        sim_drive_finish(&run->hosts[i]);
        saved_s += run->hosts[i].sim.saved_s;
    }
    kvt_policy_stats stats;
    kvt_policy_stats_get(first->policy, &stats);
    result->hints = stats.hints;
    first->saved_s = saved_s;
    results_finish(&run->collector, run->options->servers * run->options->hosts);
    sim_regret_finish(first);
    results_percentiles(first->samples_ns, first->sample_room, &result->decision_ns_p50,
                        &result->decision_ns_p99);
    if (replay_has_hosts(run->options)) hosts_finish(run);
    return sim_explain(first);
}

static kvt_status run_open(sim_run *run)
{
    const replay_options *options = run->options;
    replay_hosts *out = &run->result->hosts;
    snprintf(run->message, run->message_size, "out of memory");
    if (run->workload->request_count >= SIM_NOBODY) return KVT_E_SPACE;
    run->hosts = calloc(options->hosts, sizeof *run->hosts);
    run->next = malloc(((size_t)run->workload->request_count + 1) * sizeof *run->next);
    run->heap = malloc(((size_t)options->hosts * run_actors(run) + 1) * sizeof *run->heap);
    if (run->hosts == NULL || run->next == NULL || run->heap == NULL) return KVT_E_MEMORY;
    kvt_status status = KVT_OK;
    if (replay_has_hosts(options)) {
        out->rows = calloc(options->hosts, sizeof *out->rows);
        if (out->rows == NULL) return KVT_E_MEMORY;
        out->count = options->hosts;
        replay_random_seed(&run->random, replay_mix(options->seed) ^ options->hosts);
        status = sim_remote_open(&run->remote, options, run->workload->distinct_blocks, out);
    }
    if (status == KVT_OK)
        status =
            results_collector_open(&run->collector, run->result, run->workload, options->warmup);
    for (uint32_t i = 0; i < options->hosts && status == KVT_OK; i++)
        status = hosts_open_host(run, i);
    return status;
}

static void run_release(sim_run *run)
{
    for (uint32_t i = 0; run->hosts != NULL && i < run->options->hosts; i++)
        hosts_close_host(&run->hosts[i]);
    sim_remote_close(&run->remote);
    results_collector_close(&run->collector);
    free(run->hosts);
    free(run->next);
    free(run->heap);
}

kvt_status replay_run_sim(const replay_options *options, const replay_workload *workload,
                          const char *policy, replay_result *result, char *message,
                          size_t message_size)
{
    assert(options != NULL && workload != NULL && policy != NULL && result != NULL);
    replay_options own = *options;
    if (replay_has_hosts(options)) own.bounds = false; /* they are those of one host's tiers */
    sim_run run = {.options = &own,
                   .workload = workload,
                   .policy = policy,
                   .result = result,
                   .message = message,
                   .message_size = message_size};
    results_start(result, "sim", policy, &own, workload);
    kvt_status status = run_open(&run);
    if (status == KVT_OK) {
        uint64_t begin = base_clock_ns();
        status = run_loop(&run);
        result->loop_s = (double)(base_clock_ns() - begin) * 1e-9;
        if (status != KVT_OK)
            snprintf(message, message_size, "policy %s: %s", policy, kvt_status_text(status));
    }
    if (status == KVT_OK) {
        result->loop_s -= run.hosts[0].sim.regret.spent_s;
        status = run_finish(&run);
    }
    bool log_failed = run.hosts != NULL && !sim_close_log(&run.hosts[0].sim);
    run_release(&run);
    if (status == KVT_OK && log_failed) {
        snprintf(message, message_size, "%s: write failed", options->plan_log);
        status = KVT_E_IO;
    }
    if (status != KVT_OK) replay_result_free(result);
    return status;
}
