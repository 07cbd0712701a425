/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_store.c - the replay loop over a modelled store: servers, gets one after the other, puts that
 * hand over, all in the order of virtual time.
 *
 * A request takes the first server that is free. It chooses the head of its leading run as it
 * stands when its service begins, gets block after block, computes the rest, and puts what it
 * computed, block after block, when its first token is there: until then nobody else finds those
 * blocks. One thread.
 */
#include "sim_store.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- events ---- */

/* The order of events: by time, of equals by the order in which they were scheduled. */
static bool store_is_before(const store_event *a, const store_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

/* Puts an event in at a free place of the heap, or above it. */
static void store_lift(store_model *model, store_event event, uint32_t at)
{
    while (at > 0 && store_is_before(&event, &model->heap[(at - 1) / 2])) {
        model->heap[at] = model->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    model->heap[at] = event;
}

void store_schedule(store_model *model, uint64_t at_ns, uint32_t actor)
{
    assert(at_ns >= model->now_ns);
    store_lift(model, (store_event){at_ns, model->events++, actor}, model->heap_count++);
}

void store_hasten(store_model *model, uint32_t actor)
{
    for (uint32_t at = 0; at < model->heap_count; at++) {
        if (model->heap[at].actor != actor) continue;
        store_lift(model, (store_event){model->now_ns, model->events++, actor}, at);
        return;
    }
}

/* Takes the earliest event from the heap, which is not empty. */
static store_event store_take_event(store_model *model)
{
    store_event first = model->heap[0], moved = model->heap[--model->heap_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = at * 2 + 1;
        if (child >= model->heap_count) break;
        if (child + 1 < model->heap_count &&
            store_is_before(&model->heap[child + 1], &model->heap[child]))
            child++;
        if (!store_is_before(&model->heap[child], &moved)) break;
        model->heap[at] = model->heap[child];
        at = child;
    }
    model->heap[at] = moved;
    return first;
}

/* ---- what is found ---- */

/* The option that a get of the block would read, KVT_OPTION_NONE where there is nothing to read;
 * a staged block has none, but can be read. */
static uint8_t store_option_of(const store_model *model, uint32_t block)
{
    if ((model->state[block] & (STORE_LEAVING | STORE_STAGED)) != 0) return KVT_OPTION_NONE;
    return sim_option_of(model->sim, block);
}

/* Whether the block waits in the put's staging. */
static bool store_is_staged(const store_model *model, uint32_t block)
{
    return (model->state[block] & STORE_STAGED) != 0;
}

/* Whether a get of the block would find it. */
static bool store_finds(const store_model *model, uint32_t block)
{
    return store_is_staged(model, block) || store_option_of(model, block) != KVT_OPTION_NONE;
}

/* Seconds that a put holds its caller: a fixed part and the copy into the staging. */
static double store_copy_s(const store_model *model, const store_server *server, uint32_t position)
{
    uint32_t tokens = sim_block_tokens(model->sim, server->visit.request, position);
    const replay_options *options = model->sim->options;
    return options->put_fixed_seconds +
           (double)tokens * (double)options->bytes_per_token / options->copy_bytes_per_s;
}

/* Counts what the request finds: each block, and the tokens of the leading run. */
static void store_count_found(store_model *model, const store_server *server)
{
    sim_state *sim = model->sim;
    const sim_visit *visit = &server->visit;
    bool leading = true;
    for (uint32_t i = 0; i < visit->request->block_count && sim->counting; i++) {
        uint32_t block = visit->prefix[i];
        uint8_t option = store_option_of(model, block);
        bool staged = store_is_staged(model, block);
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

/* ---- a request ---- */

/* Seconds that a get of the block takes by itself; the queues count once each. */
static double store_get_s(store_model *model, const store_server *server, uint32_t position,
                          bool waited[KVT_TIER_COUNT])
{
    sim_state *sim = model->sim;
    const sim_visit *visit = &server->visit;
    uint32_t block = visit->prefix[position];
    if (store_is_staged(model, block)) return store_copy_s(model, server, position);
    uint32_t tokens = sim_block_tokens(sim, visit->request, position);
    const kvt_option *option = &sim_options(sim, tokens)[store_option_of(model, block)];
    double slowest_s = 0.0;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (option->read_bytes[tier] == 0) continue;
        const kvt_affine *read = &sim->options->model.read[tier];
        double seconds =
            read->request_seconds + (double)option->read_bytes[tier] / read->bytes_per_s;
        if (!waited[tier] && sim->read_free_ns[tier] > model->now_ns)
            seconds += (double)(sim->read_free_ns[tier] - model->now_ns) * 1e-9;
        waited[tier] = true;
        if (seconds > slowest_s) slowest_s = seconds;
    }
    return slowest_s + option->decode_seconds;
}

/* The head that makes the first token earliest. */
static void store_choose(store_model *model, store_server *server)
{
    sim_state *sim = model->sim;
    sim_visit *visit = &server->visit;
    const replay_request *request = visit->request;
    bool waited[KVT_TIER_COUNT] = {false};
    double whole_s = kvt_prefill_seconds(&sim->options->model.prefill, 0, request->input_tokens);
    double load_s = 0.0, best_s = whole_s;
    server->chosen = 0;
    for (visit->run = 0; visit->run < request->block_count; visit->run++) {
        if (!store_finds(model, visit->prefix[visit->run])) break;
        load_s += store_get_s(model, server, visit->run, waited);
        double compute_s = sim_prefill_after(sim, request, visit->run + 1, whole_s);
        double total_s = sim_together(sim->options, load_s, compute_s);
        if (total_s > best_s) continue;
        best_s = total_s;
        server->chosen = visit->run + 1;
    }
}

/* Grows the server's list of options to so many blocks. */
static kvt_status store_reserve_run(store_server *server, uint32_t count)
{
    if (count <= server->run_room) return KVT_OK;
    uint8_t *grown = realloc(server->run, count);
    if (grown == NULL) return KVT_E_MEMORY;
    server->run = grown;
    server->run_room = count;
    return KVT_OK;
}

/* An idle server takes the next request and chooses what to load. */
static kvt_status store_begin(store_model *model, uint32_t index)
{
    sim_state *sim = model->sim;
    store_server *server = &model->servers[index];
    server->request = model->taken++;
    const replay_request *request = &sim->workload->requests[server->request];
    server->visit = (sim_visit){.request = request,
                                .prefix = &sim->workload->blocks[request->first_block],
                                .start_ns = model->now_ns};
    server->phase = STORE_LOADING;
    sim->counting = server->request >= model->collector->skip;
    kvt_status status = sim_oracle_refresh(sim, server->request, model->now_ns);
    if (status == KVT_OK) status = sim_regret_look(sim, server->request, model->now_ns);
    if (status == KVT_OK) status = store_reserve_run(server, request->block_count);
    if (status != KVT_OK) return status;
    store_count_found(model, server);
    store_choose(model, server);
    store_schedule(model, model->now_ns, index);
    return KVT_OK;
}

/* Counts the use of a block that is read. The background carries out the promotion that the policy
 * plans then. */
static kvt_status store_access(store_model *model, const store_server *server, uint32_t block,
                               bool staged)
{
    sim_state *sim = model->sim;
    bool room = !staged && model->promotions.count < STORE_PLANS_QUEUED;
    uint32_t uses = sim_oracle_uses(sim, block, server->request);
    kvt_status status = sim_oracle_tell(sim, block, uses > 0 ? (double)(uses - 1) : 0.0);
    if (status != KVT_OK) return status;
    uint64_t begin = sim_call_begin(sim);
    status =
        kvt_policy_access(sim->policy, model->now_ns, sim_handle(block), room ? &sim->plan : NULL);
    sim_call_end(sim, begin);
    if (status == KVT_MISS && staged) status = KVT_OK; /* it is counted still */
    if (status == KVT_OK) status = sim_oracle_tell(sim, block, (double)uses);
    if (status == KVT_OK && sim->plan.count > 0) status = store_queue_promotion(model);
    return status;
}

/* When the block's bytes are decoded, if they are read from now on. */
static uint64_t store_load(store_model *model, const store_server *server, uint32_t position,
                           uint8_t index)
{
    sim_state *sim = model->sim;
    uint32_t tokens = sim_block_tokens(sim, server->visit.request, position);
    const kvt_option *option = &sim_options(sim, tokens)[index];
    uint64_t end_ns = model->now_ns;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (option->read_bytes[tier] == 0) continue;
        uint64_t there_ns = store_occupy(&sim->read_free_ns[tier], model->now_ns,
                                         &sim->options->model.read[tier], option->read_bytes[tier]);
        if (there_ns > end_ns) end_ns = there_ns;
        if (sim->counting) sim->result->bytes_read[tier] += option->read_bytes[tier];
    }
    return end_ns + sim_to_ns(option->decode_seconds);
}

/* Begins the get of the next chosen block; the loading ends at the first one that is not there. */
static kvt_status store_get_next(store_model *model, uint32_t index)
{
    sim_state *sim = model->sim;
    store_server *server = &model->servers[index];
    sim_visit *visit = &server->visit;
    uint32_t position = visit->loaded;
    bool more = position < server->chosen && store_finds(model, visit->prefix[position]);
    if (!more) {
        server->phase = STORE_LOADED;
        server->loaded_ns = model->now_ns;
        store_schedule(model, model->now_ns, index);
        return KVT_OK;
    }
    uint32_t block = visit->prefix[position];
    bool staged = store_is_staged(model, block);
    uint8_t option = staged ? KVT_OPTION_NONE : store_option_of(model, block);
    uint64_t end_ns = staged ? model->now_ns + sim_to_ns(store_copy_s(model, server, position))
                             : store_load(model, server, position, option);
    server->run[position] = option;
    visit->loaded++;
    if (sim->counting)
        sim->result->used_token_ratio += sim_block_tokens(sim, visit->request, position);
    store_schedule(model, end_ns, index);
    return store_access(model, server, block, staged);
}

/* The rest is computed; layer by layer that began with the service. */
static void store_begin_prefill(store_model *model, uint32_t index)
{
    sim_state *sim = model->sim;
    store_server *server = &model->servers[index];
    sim_visit *visit = &server->visit;
    const kvt_prefill *prefill = &sim->options->model.prefill;
    double whole_s = kvt_prefill_seconds(prefill, 0, visit->request->input_tokens);
    double compute_s = visit->loaded == 0
                           ? whole_s
                           : sim_prefill_after(sim, visit->request, visit->loaded, whole_s);
    visit->load_s = (double)(server->loaded_ns - visit->start_ns) * 1e-9;
    visit->prefill_s = compute_s + prefill->fixed_seconds;
    visit->service_s = sim_together(sim->options, visit->load_s, visit->prefill_s);
    visit->saved_s = whole_s + prefill->fixed_seconds - visit->service_s;
    memcpy(sim->run, server->run, visit->loaded);
    sim_quality_sum(sim, visit);
    server->phase = STORE_COMPUTED;
    store_schedule(model, visit->start_ns + sim_to_ns(visit->service_s), index);
}

/* Hands the request's sample to the collector. */
static void store_report(store_model *model, const store_server *server)
{
    sim_state *sim = model->sim;
    const sim_visit *visit = &server->visit;
    if (server->request >= model->collector->skip)
        sim->saved_s += visit->saved_s - sim->options->alpha_seconds * visit->loss;
    results_add(
        model->collector, server->request,
        &(results_sample){.wait_s = (double)(visit->start_ns - visit->request->arrival_ns) * 1e-9,
                          .service_s = visit->service_s,
                          .compute_s = visit->prefill_s,
                          .loss = visit->loss});
}

/* A put that stores nothing counts as a use all the same. */
static kvt_status store_count_use(store_model *model, const store_server *server, uint32_t block)
{
    sim_state *sim = model->sim;
    uint32_t uses = sim_oracle_uses(sim, block, server->request);
    kvt_status status = sim_oracle_tell(sim, block, uses > 0 ? (double)(uses - 1) : 0.0);
    if (status != KVT_OK) return status;
    status = kvt_policy_access(sim->policy, model->now_ns, sim_handle(block), NULL);
    if (status != KVT_OK && status != KVT_MISS) return status;
    return sim_oracle_tell(sim, block, (double)uses);
}

/* A put without room in the staging: counted as busy, and the block as used. */
static kvt_status store_refuse(store_model *model, const store_server *server, uint32_t block)
{
    model->sim->result->puts_busy += model->sim->counting;
    return store_count_use(model, server, block);
}

kvt_status store_ask(store_model *model, const sim_visit *visit, uint32_t position)
{
    sim_state *sim = model->sim;
    uint32_t block = visit->prefix[position];
    uint64_t request = (uint64_t)(visit->request - sim->workload->requests);
    uint32_t uses = sim_oracle_uses(sim, block, request);
    if (sim->oracle.on && uses == 0) return KVT_REFUSED;
    kvt_status status = sim_oracle_tell(sim, block, uses > 0 ? (double)(uses - 1) : 0.0);
    if (status != KVT_OK) return status;
    kvt_status answer = sim_offer(sim, visit, position, model->now_ns);
    status = sim_oracle_tell(sim, block, (double)uses);
    return status == KVT_OK ? answer : status;
}

/* One block that was computed; the caller's time. */
static kvt_status store_put(store_model *model, const store_server *server, uint32_t position,
                            double *busy_s)
{
    sim_state *sim = model->sim;
    uint32_t block = server->visit.prefix[position];
    uint64_t bytes = (uint64_t)sim_block_tokens(sim, server->visit.request, position) *
                     sim->options->bytes_per_token;
    if ((model->state[block] & STORE_LEAVING) != 0) return KVT_OK;
    if (store_finds(model, block)) return store_count_use(model, server, block);
    if (!store_staging_takes(model->staged_bytes, bytes, model->staging_bound_bytes))
        return store_refuse(model, server, block);
    if (store_lags_unplanned(model, bytes)) return store_refuse(model, server, block);
    kvt_status status = store_hand_over(model, &server->visit, position, bytes);
    if (status == KVT_OK) *busy_s = store_copy_s(model, server, position);
    sim->result->puts_busy += status == KVT_BUSY && sim->counting;
    return status > KVT_OK ? KVT_OK : status;
}

/* Puts as far as that takes no time: one put begins when the copy of the one before has ended. */
static kvt_status store_put_next(store_model *model, uint32_t index)
{
    store_server *server = &model->servers[index];
    double busy_s = 0.0;
    while (server->put_at < server->visit.request->block_count && !(busy_s > 0.0)) {
        kvt_status status = store_put(model, server, server->put_at++, &busy_s);
        if (status != KVT_OK) return status;
    }
    if (server->put_at == server->visit.request->block_count) {
        sim_note_peak(model->sim);
        server->phase = STORE_FREE;
        kvt_status status = sim_hints_give(model->sim, &server->visit, model->now_ns);
        if (status != KVT_OK) return status;
    }
    store_schedule(model, model->now_ns + sim_to_ns(busy_s), index);
    return KVT_OK;
}

/* The first token is there; what was computed is put. */
static kvt_status store_finish(store_model *model, uint32_t index)
{
    store_server *server = &model->servers[index];
    store_report(model, server);
    server->put_at = server->visit.loaded;
    server->phase = STORE_PUTTING;
    return store_put_next(model, index);
}

/* ---- the loop ---- */

/* Continues a server at its next event. */
static kvt_status store_serve(store_model *model, uint32_t index)
{
    const store_server *server = &model->servers[index];
    model->sim->counting = server->request >= model->collector->skip;
    switch (server->phase) {
    case STORE_LOADING: return store_get_next(model, index);
    case STORE_LOADED: store_begin_prefill(model, index); return KVT_OK;
    case STORE_COMPUTED: return store_finish(model, index);
    case STORE_PUTTING: return store_put_next(model, index);
    case STORE_FREE: break;
    }
    if (model->taken < model->arrived) return store_begin(model, index);
    model->idle[model->idle_count++] = index;
    return KVT_OK;
}

/* A request has to wait: the background brings up what lies below DRAM of its leading run, as far
 * as it takes plans. */
static kvt_status store_prefetch(store_model *model, uint64_t number)
{
    sim_state *sim = model->sim;
    const replay_request *request = &sim->workload->requests[number];
    const uint32_t *prefix = &sim->workload->blocks[request->first_block];
    sim->counting = number >= model->collector->skip;
    for (uint32_t i = 0; i < request->block_count && store_finds(model, prefix[i]); i++) {
        if (store_is_staged(model, prefix[i])) continue; /* in DRAM */
        if (model->promotions.count >= STORE_PLANS_QUEUED) break;
        uint8_t option = store_option_of(model, prefix[i]);
        kvt_status status = sim_prefetch_offer(sim, prefix[i], option, model->now_ns);
        if (status == KVT_OK && sim->plan.count > 0) status = store_queue_promotion(model);
        if (status != KVT_OK) return status;
    }
    store_wake_background(model);
    return KVT_OK;
}

/* The next request arrives; an idle server begins with it. */
static kvt_status store_arrive(store_model *model)
{
    const replay_workload *workload = model->sim->workload;
    model->arrived++;
    if (model->arrived < workload->request_count)
        store_schedule(model, workload->requests[model->arrived].arrival_ns,
                       store_actor_of_arrivals(model));
    if (model->idle_count != 0) return store_begin(model, model->idle[--model->idle_count]);
    return model->sim->options->prefetch ? store_prefetch(model, model->arrived - 1) : KVT_OK;
}

static kvt_status store_open(store_model *model)
{
    sim_state *sim = model->sim;
    uint32_t servers = sim->options->servers;
    model->heap = malloc((servers + STORE_EXECUTORS + 2) * sizeof *model->heap);
    model->servers = calloc(servers, sizeof *model->servers);
    model->idle = malloc(servers * sizeof *model->idle);
    model->state = calloc((size_t)sim->workload->distinct_blocks + 1, 1);
    if (model->heap == NULL || model->servers == NULL || model->idle == NULL ||
        model->state == NULL)
        return KVT_E_MEMORY;
    model->staging_bound_bytes = store_staging_bound(sim->options);
    while (model->idle_count < servers) {
        model->idle[model->idle_count] = servers - 1 - model->idle_count;
        model->idle_count++;
    }
    if (sim->workload->request_count > 0)
        store_schedule(model, sim->workload->requests[0].arrival_ns,
                       store_actor_of_arrivals(model));
    model->round_ns = sim_to_ns(sim->options->tick_seconds);
    if (sim->options->tick_seconds > 0.0)
        store_schedule(model, model->round_ns, store_actor_of_worker(model, STORE_EXECUTORS));
    return KVT_OK;
}

static void store_close(store_model *model)
{
    for (uint32_t i = 0; model->servers != NULL && i < model->sim->options->servers; i++)
        free(model->servers[i].run);
    store_release_plans(model);
    free(model->heap);
    free(model->servers);
    free(model->idle);
    free(model->state);
    free(model);
}

/* Whether requests are still on their way. */
static bool store_is_serving(const store_model *model)
{
    return model->arrived < model->sim->workload->request_count ||
           model->idle_count < model->sim->options->servers;
}

kvt_status sim_store_run(sim_state *sim, results_collector *collector)
{
    store_model *model = calloc(1, sizeof *model);
    if (model == NULL) return KVT_E_MEMORY;
    model->sim = sim;
    model->collector = collector;
    kvt_status status = store_open(model);
    uint32_t servers = sim->options->servers;
    while (status == KVT_OK && model->heap_count > 0 && store_is_serving(model)) {
        store_event event = store_take_event(model);
        model->now_ns = event.at_ns;
        sim->counting = model->taken > collector->skip;
        if (event.actor < servers)
            status = store_serve(model, event.actor);
        else if (event.actor == store_actor_of_arrivals(model))
            status = store_arrive(model);
        else
            status = store_work(model, event.actor - servers);
    }
    store_close(model);
    return status;
}
