/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_requests.c - a host's servers: each takes a request, gets blocks, computes the rest and puts
 * what it computed.
 *
 *     prefix    [b0 b1 b2 b3 | b4 b5 ...]      run = 4: the first hole ends it
 *     chosen    [b0 b1 b2]                     the head that makes the first token earliest
 *     prefill             [b3 b4 b5 ...]       at least one token is always computed
 *
 * The head is chosen as the run stands when the service begins, and its blocks are all asked for
 * at once, as kvt_prefix_get does. A block is put when it has been computed, beside the computing
 * of the next ones, as an engine saves each step of a chunked prefill: until then nobody finds it.
 * One thread.
 */
#include "sim_host.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is found ---- */

/* The option that a get of the block would read, KVT_OPTION_NONE where there is nothing to read;
 * a staged block has none, but can be read. */
static uint8_t host_option_of(const sim_host *host, uint32_t block)
{
    if ((host->state[block] & (SIM_LEAVING | SIM_STAGED)) != 0) return KVT_OPTION_NONE;
    return host->sim.stored[block];
}

/* Whether the block waits in the put's staging. */
static bool host_is_staged(const sim_host *host, uint32_t block)
{
    return (host->state[block] & SIM_STAGED) != 0;
}

/* Whether a get of the block would find it in the host's own tiers. */
static bool host_finds(const sim_host *host, uint32_t block)
{
    return host_is_staged(host, block) || host_option_of(host, block) != KVT_OPTION_NONE;
}

/* Seconds that a put holds its caller: a fixed part and the copy into the staging. */
static double host_copy_s(const sim_host *host, const sim_visit *visit, uint32_t position)
{
    const replay_options *options = host->sim.options;
    uint32_t tokens = sim_block_tokens(&host->sim, visit->request, position);
    return options->put_fixed_seconds +
           (double)tokens * (double)options->bytes_per_token / options->copy_bytes_per_s;
}

/* Counts what the request finds in the host's own tiers: each block, and the tokens of the leading
 * run. */
static void host_count_found(sim_host *host, const sim_visit *visit)
{
    sim_state *sim = &host->sim;
    bool leading = true;
    for (uint32_t i = 0; i < visit->request->block_count && sim->counting; i++) {
        uint32_t block = visit->prefix[i];
        uint8_t option = host_option_of(host, block);
        bool staged = host_is_staged(host, block);
        int tier = staged ? KVT_TIER_DRAM : option != KVT_OPTION_NONE ? sim->tier_of[option] : 0;
        leading = leading && tier != 0;
        if (tier == 0) continue;
        sim->result->hit_block_ratio[tier] += 1.0;
        sim->result->hit_block_ratio[0] += 1.0;
        if (!leading) continue;
        uint32_t tokens = sim_block_tokens(sim, visit->request, i);
        sim->result->hit_token_ratio[tier] += tokens;
        sim->result->hit_token_ratio[0] += tokens;
    }
}

/* ---- choosing the head ---- */

/* The loading of a head, which grows block by block: all of its reads begin now, and what has been
 * read is decoded, or copied from staging, by one thread. */
typedef struct host_head {
    uint64_t read_free_ns[KVT_TIER_COUNT];
    uint64_t read_ns;  /* when the last block has been read */
    uint64_t other_ns; /* the same but for SSD, and SSD's bytes: where its drives are modelled */
    uint64_t drive_bytes;
    double decode_s;
    uint64_t ahead; /* bytes on their way to the host from the shared tier, with the head's own */
} host_head;

/* A head of no block. */
static host_head host_no_head(const sim_host *host)
{
    const sim_state *sim = &host->sim;
    host_head head = {.read_ns = host->run->now_ns, .other_ns = host->run->now_ns};
    memcpy(head.read_free_ns, sim->read_free_ns, sizeof head.read_free_ns);
    if (host->drive != NULL) head.read_free_ns[KVT_TIER_SSD] = sim_drive_free_ns(host);
    if (sim->remote != NULL) head.ahead = sim_remote_ahead(sim, host->run->now_ns);
    return head;
}

/* Seconds until a head is loaded. */
static double host_head_s(const sim_host *host, const host_head *head)
{
    return (double)(head->read_ns - host->run->now_ns) * 1e-9 + head->decode_s;
}

/* Adds a block of the host's own tiers; counted in the result if it is really read. */
static void host_add_local(sim_host *host, const sim_visit *visit, uint32_t position, bool counted,
                           host_head *head)
{
    sim_state *sim = &host->sim;
    uint32_t block = visit->prefix[position];
    if (host_is_staged(host, block)) {
        head->decode_s += host_copy_s(host, visit, position);
        return;
    }
    uint32_t tokens = sim_block_tokens(sim, visit->request, position);
    const kvt_option *option = &sim_options(sim, tokens)[host_option_of(host, block)];
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        uint64_t bytes = option->read_bytes[tier], *free_ns = &head->read_free_ns[tier];
        if (bytes == 0) continue;
        const kvt_affine *read = &sim->options->model.read[tier];
        if (*free_ns < host->run->now_ns) *free_ns = host->run->now_ns;
        *free_ns += sim_to_ns(read->request_seconds + (double)bytes / read->bytes_per_s);
        if (*free_ns > head->read_ns) head->read_ns = *free_ns;
        if (tier == KVT_TIER_SSD)
            head->drive_bytes += bytes;
        else if (*free_ns > head->other_ns)
            head->other_ns = *free_ns;
        if (counted) sim->result->bytes_read[tier] += bytes;
    }
    head->decode_s += option->decode_seconds;
}

/* Adds a block of the shared tier. Its queues the host does not know: the end is what it has
 * learned to expect, or the real one if the block is read now. */
static void host_add_shared(sim_host *host, const sim_visit *visit, uint32_t position, bool reads,
                            host_head *head)
{
    sim_state *sim = &host->sim;
    uint32_t block = visit->prefix[position];
    uint32_t tokens = sim_block_tokens(sim, visit->request, position);
    uint64_t bytes = sim_remote_bytes(sim, tokens), now_ns = host->run->now_ns;
    uint64_t there_ns = reads
                            ? sim_remote_read(sim, block, bytes, head->ahead, now_ns)
                            : now_ns + sim_to_ns(sim_remote_expect(sim, block, bytes, head->ahead));
    head->ahead += bytes;
    if (there_ns > head->read_ns) head->read_ns = there_ns;
    if (there_ns > head->other_ns) head->other_ns = there_ns;
    head->decode_s += sim_remote_decode_s(sim, tokens);
}

/* Whether the block belongs to the leading run. The first one that the host itself has not makes it
 * ask the shared tier, once for all of the request. */
static bool host_leads_on(sim_host *host, sim_visit *visit, uint32_t position)
{
    sim_state *sim = &host->sim;
    uint32_t block = visit->prefix[position];
    if (host_finds(host, block)) {
        if (sim->counting && host->link.row != NULL) host->link.row->local_blocks++;
        return true;
    }
    if (sim->remote == NULL) return false;
    if (!visit->probed) visit->local = position;
    visit->probed = true;
    if (!sim_remote_has(sim->remote, block, host->run->now_ns)) return false;
    host->link.row->remote_blocks += sim->counting;
    return true;
}

/* Finds the leading run and the head of it that makes the first token earliest. */
static void host_choose(sim_host *host, sim_server *server)
{
    sim_state *sim = &host->sim;
    sim_visit *visit = &server->visit;
    const replay_request *request = visit->request;
    host_head head = host_no_head(host);
    double best_s = server->whole_s;
    server->chosen = 0;
    for (visit->run = 0; visit->run < request->block_count; visit->run++) {
        if (!host_leads_on(host, visit, visit->run)) break;
        if (host_finds(host, visit->prefix[visit->run]))
            host_add_local(host, visit, visit->run, false, &head);
        else
            host_add_shared(host, visit, visit->run, false, &head);
        double compute_s = sim_prefill_after(sim, request, visit->run + 1, server->whole_s);
        double total_s = sim_together(sim->options, host_head_s(host, &head), compute_s);
        if (total_s > best_s) continue;
        best_s = total_s;
        server->chosen = visit->run + 1;
    }
}

/* Grows what a server notes by position to so many of them. */
static kvt_status host_reserve(sim_server *server, uint32_t count)
{
    if (count <= server->room) return KVT_OK;
    uint8_t *found = realloc(server->found, count);
    if (found == NULL) return KVT_E_MEMORY;
    server->found = found;
    server->room = count;
    return KVT_OK;
}

kvt_status sim_begin(sim_host *host, uint32_t index)
{
    sim_run *run = host->run;
    sim_state *sim = &host->sim;
    sim_server *server = &host->servers[index];
    assert(host->waiting > 0 && server->phase == SIM_FREE);
    server->request = host->first;
    host->first = run->next[server->request];
    host->waiting--;
    const replay_request *request = &sim->workload->requests[server->request];
    server->visit = (sim_visit){.request = request,
                                .prefix = &sim->workload->blocks[request->first_block],
                                .start_ns = run->now_ns};
    server->phase = SIM_ASKING;
    sim->counting = server->request >= run->collector.skip;
    kvt_status status = sim_oracle_refresh(sim, server->request, run->now_ns);
    if (status == KVT_OK) status = sim_regret_look(sim, server->request, run->now_ns);
    if (status == KVT_OK) status = host_reserve(server, request->block_count);
    if (status != KVT_OK) return status;
    server->visit.found = server->found;
    server->whole_s = kvt_prefill_seconds(&sim->options->model.prefill, 0, request->input_tokens);
    host_count_found(host, &server->visit);
    host_choose(host, server);
    double asked_s = server->visit.probed ? sim->options->remote.latency_seconds : 0.0;
    sim_schedule(host, run->now_ns + sim_to_ns(asked_s), index);
    return KVT_OK;
}

/* ---- loading ---- */

/* Counts a use of a block, also of one that is not stored. plan: for a promotion, or NULL. */
static kvt_status host_use(sim_host *host, const sim_server *server, uint32_t block, kvt_plan *plan)
{
    sim_state *sim = &host->sim;
    uint32_t uses = sim_oracle_uses(sim, block, server->request);
    kvt_status status = sim_oracle_tell(sim, block, uses > 0 ? (double)(uses - 1) : 0.0);
    if (status != KVT_OK) return status;
    status = kvt_policy_access(sim->policy, host->run->now_ns, sim_handle(block), plan);
    if (status != KVT_OK && status != KVT_MISS) return status;
    return sim_oracle_tell(sim, block, (double)uses);
}

/* Counts the use of a block that is read. The background carries out the promotion that the policy
 * plans then. */
static kvt_status host_access(sim_host *host, const sim_server *server, uint32_t block, bool staged)
{
    sim_state *sim = &host->sim;
    bool room = !staged && host->promotions.count < SIM_PLANS_QUEUED;
    uint64_t begin = sim_call_begin(sim);
    kvt_status status = host_use(host, server, block, room ? &sim->plan : NULL);
    sim_call_end(sim, begin);
    if (status == KVT_OK && sim->plan.count > 0) status = sim_queue_promotion(host);
    return status;
}

/* The source of a block of a head: an option, KVT_OPTION_NONE for a put's staging, or
 * SIM_FOUND_SHARED. False when it is gone. */
static bool host_source(sim_host *host, uint32_t block, uint8_t *source_out)
{
    const sim_remote *remote = host->sim.remote;
    *source_out = host_option_of(host, block);
    if (host_finds(host, block)) return true;
    *source_out = SIM_FOUND_SHARED;
    return remote != NULL && sim_remote_has(remote, block, host->run->now_ns);
}

/* Asks for all blocks of the chosen head, up to the first that is gone meanwhile. */
static host_head host_read_head(sim_host *host, sim_server *server)
{
    sim_state *sim = &host->sim;
    sim_visit *visit = &server->visit;
    host_head head = host_no_head(host);
    for (; visit->loaded < server->chosen; visit->loaded++) {
        uint32_t at = visit->loaded;
        if (!host_source(host, visit->prefix[at], &visit->found[at])) break;
        if (visit->found[at] == SIM_FOUND_SHARED)
            host_add_shared(host, visit, at, true, &head);
        else
            host_add_local(host, visit, at, sim->counting, &head);
        if (sim->counting)
            sim->result->used_token_ratio += sim_block_tokens(sim, visit->request, at);
    }
    memcpy(sim->read_free_ns, head.read_free_ns, sizeof sim->read_free_ns);
    visit->load_s = host_head_s(host, &head);
    return head;
}

/* Seconds of computing what the loaded blocks do not give, without the fixed part. */
static double host_compute_s(const sim_host *host, const sim_server *server)
{
    const sim_visit *visit = &server->visit;
    if (visit->loaded == 0) return server->whole_s;
    return sim_prefill_after(&host->sim, visit->request, visit->loaded, server->whole_s);
}

/* Loads the head; its blocks' uses are counted now. */
static kvt_status host_load(sim_host *host, uint32_t index)
{
    sim_server *server = &host->servers[index];
    const sim_visit *visit = &server->visit;
    kvt_status status = KVT_OK;
    const host_head head = host_read_head(host, server);
    for (uint32_t i = 0; i < visit->loaded && status == KVT_OK; i++) {
        uint32_t at = host->sim.backwards ? visit->loaded - 1 - i : i;
        if (visit->found[at] != SIM_FOUND_SHARED)
            status =
                host_access(host, server, visit->prefix[at], visit->found[at] == KVT_OPTION_NONE);
    }
    server->phase = SIM_LOADED;
    server->by_drive = host->drive != NULL && head.drive_bytes > 0;
    if (status != KVT_OK) return status;
    if (server->by_drive)
        return sim_drive_load(host, index, head.drive_bytes,
                              (double)(head.other_ns - host->run->now_ns) * 1e-9, head.decode_s,
                              host_compute_s(host, server));
    sim_schedule(host, host->run->now_ns + sim_to_ns(visit->load_s), index);
    return KVT_OK;
}

/* ---- putting ---- */

/* Hands the request's sample to the collector. */
static void host_report(sim_host *host, const sim_server *server)
{
    sim_state *sim = &host->sim;
    const sim_visit *visit = &server->visit;
    const results_sample sample = {
        .wait_s = (double)(visit->start_ns - visit->request->arrival_ns) * 1e-9,
        .service_s = visit->service_s,
        .compute_s = visit->prefill_s,
        .loss = visit->loss};
    if (sim->counting) {
        sim->saved_s +=
            visit->saved_s - replay_alpha(sim->options, visit->request->input_tokens) * visit->loss;
        host->ttft_sum += sample.wait_s + sample.service_s;
    }
    if (sim->counting && host->link.row != NULL) {
        host->link.row->requests++;
        host->link.row->block_refs += visit->request->block_count;
        sim->result->hosts.probes += visit->probed;
    }
    results_add(&host->run->collector, server->request, &sample);
}

/* A put without room in the staging: counted as busy, and the block as used. */
static kvt_status host_refuse(sim_host *host, const sim_server *server, uint32_t block)
{
    host->sim.result->puts_busy += host->sim.counting;
    return host_use(host, server, block, NULL);
}

kvt_status sim_ask(sim_host *host, const sim_visit *visit, uint32_t position)
{
    sim_state *sim = &host->sim;
    uint32_t block = visit->prefix[position];
    uint64_t request = (uint64_t)(visit->request - sim->workload->requests);
    uint32_t uses = sim_oracle_uses(sim, block, request);
    if (sim->oracle.on && uses == 0) return KVT_REFUSED;
    kvt_status status = sim_oracle_tell(sim, block, uses > 0 ? (double)(uses - 1) : 0.0);
    if (status != KVT_OK) return status;
    kvt_status answer = sim_offer(sim, visit, position, host->run->now_ns);
    status = sim_oracle_tell(sim, block, (double)uses);
    return status == KVT_OK ? answer : status;
}

/* One block that was computed or fetched; the caller's time. */
static kvt_status host_put(sim_host *host, const sim_server *server, uint32_t position,
                           double *busy_s)
{
    sim_state *sim = &host->sim;
    uint32_t block = server->visit.prefix[position];
    uint64_t bytes = (uint64_t)sim_block_tokens(sim, server->visit.request, position) *
                     sim->options->bytes_per_token;
    if ((host->state[block] & SIM_LEAVING) != 0) return KVT_OK;
    if (host_finds(host, block)) return host_use(host, server, block, NULL);
    if (!sim_staging_takes(host->staged_bytes, bytes, host->staging_bound_bytes))
        return host_refuse(host, server, block);
    if (sim_lags_unplanned(host, bytes)) return host_refuse(host, server, block);
    kvt_status status = sim_hand_over(host, &server->visit, position, bytes);
    if (status == KVT_OK) *busy_s = host_copy_s(host, &server->visit, position);
    sim->result->puts_busy += status == KVT_BUSY && sim->counting;
    return status > KVT_OK ? KVT_OK : status;
}

/* All is put: what is known of the request's blocks is told, and the server is free. */
static kvt_status host_end_request(sim_host *host, sim_server *server)
{
    sim_state *sim = &host->sim;
    kvt_status status = KVT_OK;
    server->phase = SIM_FREE;
    if (sim->remote != NULL) status = sim_remote_tell(sim, &server->visit, host->run->now_ns);
    if (status == KVT_OK) status = sim_hints_give(sim, &server->visit, host->run->now_ns);
    return status;
}

/* When the put of a block begins: it has been computed, and the put before has ended. A policy that
 * is told of blocks last to first hears of all of them at the first token. */
static uint64_t host_put_ns(const sim_host *host, const sim_server *server, uint32_t position)
{
    const sim_visit *visit = &server->visit;
    const sim_state *sim = &host->sim;
    uint64_t ready_ns = server->first_ns, now_ns = host->run->now_ns;
    if (position < visit->loaded) {
        ready_ns = now_ns;
    } else if (!sim->backwards && position + 1 < visit->request->block_count) {
        uint64_t rest_ns = sim_to_ns(server->whole_s - sim->prefill_s[position + 1]);
        ready_ns = rest_ns < ready_ns ? ready_ns - rest_ns : 0;
    }
    if (ready_ns < server->put_free_ns) ready_ns = server->put_free_ns;
    return ready_ns > now_ns ? ready_ns : now_ns;
}

/* The position of the next block to be put, or the count of them. */
static uint32_t host_next_position(const sim_host *host, sim_server *server)
{
    const sim_visit *visit = &server->visit;
    uint32_t count = visit->request->block_count;
    for (; server->put_at < count; server->put_at++) {
        uint32_t at = host->sim.backwards ? count - 1 - server->put_at : server->put_at;
        if (at >= visit->loaded || sim_was_fetched(visit, at)) return at;
    }
    return count;
}

/* Puts what it is time for. Ends the computing when the first token comes before the next put, and
 * the request when all is put. */
static kvt_status host_put_next(sim_host *host, uint32_t index)
{
    sim_server *server = &host->servers[index];
    uint32_t count = server->visit.request->block_count, position;
    uint64_t now_ns = host->run->now_ns, at_ns = server->put_free_ns;
    while ((position = host_next_position(host, server)) < count) {
        double busy_s = 0.0;
        at_ns = host_put_ns(host, server, position);
        if (at_ns > now_ns || (server->phase == SIM_COMPUTING && at_ns >= server->first_ns)) break;
        server->put_at++;
        kvt_status status = host_put(host, server, position, &busy_s);
        if (status != KVT_OK) return status;
        at_ns = server->put_free_ns = now_ns + sim_to_ns(busy_s);
    }
    if (server->phase == SIM_COMPUTING) {
        if (position == count || at_ns >= server->first_ns) {
            server->phase = SIM_COMPUTED;
            at_ns = server->first_ns;
        }
    } else if (position == count) {
        kvt_status status = host_end_request(host, server);
        if (status != KVT_OK) return status;
    }
    sim_schedule(host, at_ns > now_ns ? at_ns : now_ns, index);
    return KVT_OK;
}

/* The rest is computed; layer by layer that began with the service. */
static kvt_status host_begin_prefill(sim_host *host, uint32_t index)
{
    sim_state *sim = &host->sim;
    sim_server *server = &host->servers[index];
    sim_visit *visit = &server->visit;
    double fixed_s = sim->options->model.prefill.fixed_seconds;
    double compute_s = host_compute_s(host, server);
    double asked_s = visit->probed ? sim->options->remote.latency_seconds : 0.0;
    visit->prefill_s = compute_s + fixed_s;
    visit->service_s = asked_s + sim_together(sim->options, visit->load_s, compute_s) + fixed_s;
    if (server->by_drive) {
        visit->load_s = (double)(host->run->now_ns - visit->start_ns) * 1e-9 - asked_s;
        visit->service_s = (double)(server->loaded.computed_ns - visit->start_ns) * 1e-9 + fixed_s;
    }
    visit->saved_s = server->whole_s + fixed_s - visit->service_s;
    sim_quality_sum(sim, visit);
    server->first_ns = visit->start_ns + sim_to_ns(visit->service_s);
    server->put_free_ns = host->run->now_ns;
    server->put_at = 0;
    server->phase = SIM_COMPUTING;
    return host_put_next(host, index);
}

/* The first token is there: the rest is put, and what was computed is published. */
static kvt_status host_finish(sim_host *host, uint32_t index)
{
    sim_server *server = &host->servers[index];
    host_report(host, server);
    if (host->sim.remote != NULL) sim_remote_publish(&host->sim, &server->visit, host->run->now_ns);
    server->phase = SIM_PUTTING;
    return host_put_next(host, index);
}

/* ---- events ---- */

kvt_status sim_serve(sim_host *host, uint32_t index)
{
    const sim_server *server = &host->servers[index];
    host->sim.counting = server->request >= host->run->collector.skip;
    switch (server->phase) {
    case SIM_ASKING: return host_load(host, index);
    case SIM_LOADED: return host_begin_prefill(host, index);
    case SIM_COMPUTING: return host_put_next(host, index);
    case SIM_COMPUTED: return host_finish(host, index);
    case SIM_PUTTING: return host_put_next(host, index);
    case SIM_FREE: break;
    }
    host->run->under_way--;
    if (host->waiting > 0) return sim_begin(host, index);
    host->idle[host->idle_count++] = index;
    return KVT_OK;
}

kvt_status sim_prefetch(sim_host *host, uint64_t number)
{
    sim_state *sim = &host->sim;
    const replay_request *request = &sim->workload->requests[number];
    const uint32_t *prefix = &sim->workload->blocks[request->first_block];
    sim->counting = number >= host->run->collector.skip;
    for (uint32_t i = 0; i < request->block_count && host_finds(host, prefix[i]); i++) {
        if (host_is_staged(host, prefix[i])) continue; /* in DRAM */
        if (host->promotions.count >= SIM_PLANS_QUEUED) break;
        uint8_t option = host_option_of(host, prefix[i]);
        kvt_status status = sim_prefetch_offer(sim, prefix[i], option, host->run->now_ns);
        if (status == KVT_OK && sim->plan.count > 0) status = sim_queue_promotion(host);
        if (status != KVT_OK) return status;
    }
    sim_wake_background(host);
    return KVT_OK;
}

kvt_status sim_servers_open(sim_host *host)
{
    uint32_t servers = host->sim.options->servers;
    host->first = host->last = SIM_NOBODY;
    host->servers = calloc(servers, sizeof *host->servers);
    host->idle = malloc(servers * sizeof *host->idle);
    if (host->servers == NULL || host->idle == NULL) return KVT_E_MEMORY;
    while (host->idle_count < servers) {
        host->idle[host->idle_count] = servers - 1 - host->idle_count;
        host->idle_count++;
    }
    return KVT_OK;
}

void sim_servers_close(sim_host *host)
{
    for (uint32_t i = 0; host->servers != NULL && i < host->sim.options->servers; i++)
        free(host->servers[i].found);
    free(host->servers);
    free(host->idle);
}
