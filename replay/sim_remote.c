/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_remote.c - the shared tier: who has which copy, how long a load takes, what is published.
 * Failures of nodes are not modelled. One thread.
 */
#include "sim_remote.h"

#include "base/order.h"

#include <assert.h>
#include <stdlib.h>

#define REMOTE_UNIT 4096u

/* ---- the list ---- */

kvt_status sim_remote_open(sim_remote *remote, const replay_options *options, uint64_t blocks,
                           replay_hosts *hosts)
{
    *remote = (sim_remote){.options = options, .hosts = hosts, .end = (uint32_t)blocks};
    remote->copies = calloc((size_t)blocks + 1, sizeof *remote->copies);
    remote->uses = calloc((size_t)blocks + 1, sizeof *remote->uses);
    remote->errors = malloc(SIM_ERRORS_MAX * sizeof *remote->errors);
    if (remote->copies == NULL || remote->uses == NULL || remote->errors == NULL)
        return KVT_E_MEMORY;
    for (uint64_t i = 0; i < blocks; i++)
        remote->copies[i].since_ns = UINT64_MAX;
    remote->copies[blocks].older = remote->copies[blocks].newer = (uint32_t)blocks;
    return KVT_OK;
}

void sim_remote_close(sim_remote *remote)
{
    free(remote->copies);
    free(remote->uses);
    free(remote->errors);
}

void sim_remote_finish(sim_remote *remote)
{
    size_t count =
        (size_t)(remote->error_count < SIM_ERRORS_MAX ? remote->error_count : SIM_ERRORS_MAX);
    if (count == 0) return;
    qsort(remote->errors, count, sizeof *remote->errors, base_order_floats);
    remote->hosts->load_error = (double)remote->errors[count / 2];
}

bool sim_remote_has(const sim_remote *remote, uint32_t block, uint64_t now_ns)
{
    return remote->copies[block].since_ns <= now_ns;
}

/* Whether a copy is there, or on its way. */
static bool remote_holds(const sim_remote *remote, uint32_t block)
{
    return remote->copies[block].since_ns != UINT64_MAX;
}

static void remote_unlink(sim_remote *remote, uint32_t block)
{
    sim_copy *copy = &remote->copies[block];
    remote->copies[copy->older].newer = copy->newer;
    remote->copies[copy->newer].older = copy->older;
}

/* The end's `older` is the newest block, and its `newer` the oldest. */
static void remote_link(sim_remote *remote, uint32_t block)
{
    sim_copy *copy = &remote->copies[block], *end = &remote->copies[remote->end];
    copy->older = end->older;
    copy->newer = remote->end;
    remote->copies[end->older].newer = block;
    end->older = block;
}

static void remote_touch(sim_remote *remote, uint32_t block)
{
    remote_unlink(remote, block);
    remote_link(remote, block);
}

static void remote_evict_oldest(sim_remote *remote)
{
    uint32_t block = remote->copies[remote->end].newer;
    sim_copy *copy = &remote->copies[block];
    assert(block != remote->end && remote_holds(remote, block));
    remote_unlink(remote, block);
    remote->used_bytes -= (uint64_t)copy->bytes_4k * REMOTE_UNIT;
    copy->since_ns = UINT64_MAX;
    remote->hosts->evicted++;
}

/* Puts a block that is being written into the list; what was used least recently leaves. */
static void remote_insert(sim_remote *remote, uint32_t block)
{
    uint64_t capacity = remote->options->remote.capacity_bytes;
    uint64_t bytes = (uint64_t)remote->copies[block].bytes_4k * REMOTE_UNIT;
    assert(bytes <= capacity);
    while (remote->used_bytes > capacity - bytes)
        remote_evict_oldest(remote);
    remote_link(remote, block);
    remote->used_bytes += bytes;
    if (remote->used_bytes > remote->hosts->peak_bytes)
        remote->hosts->peak_bytes = remote->used_bytes;
}

/* ---- a host's link ---- */

void sim_link_restart(sim_link *link, const replay_options *options)
{
    const replay_remote *remote = &options->remote;
    double slower =
        (double)(remote->node_bytes_per_s < remote->host_bytes_per_s ? remote->node_bytes_per_s
                                                                     : remote->host_bytes_per_s);
    for (uint32_t i = 0; i < remote->nodes; i++)
        online_device_init(&link->nodes[i], remote->latency_seconds / 2, slower);
}

kvt_status sim_link_open(sim_link *link, const replay_options *options)
{
    *link = (sim_link){.nodes = calloc(options->remote.nodes, sizeof *link->nodes)};
    if (link->nodes == NULL) return KVT_E_MEMORY;
    sim_link_restart(link, options);
    return KVT_OK;
}

void sim_link_close(sim_link *link)
{
    free(link->nodes);
}

/* ---- loads ---- */

/* The exact option whose record is the smallest; option 0 is NONE. */
static uint32_t remote_option(const sim_state *sim)
{
    uint32_t best = 0;
    uint64_t least = UINT64_MAX;
    for (uint32_t o = 1; o < sim->option_count; o++) {
        const kvt_option *option = &sim->whole[o];
        uint64_t bytes = option->read_bytes[sim->tier_of[o]];
        if (option->loss > 0.0 || bytes >= least) continue;
        least = bytes;
        best = o;
    }
    assert(best > 0); /* each tier has the raw form */
    return best;
}

uint64_t sim_remote_bytes(sim_state *sim, uint32_t tokens)
{
    uint32_t option = remote_option(sim);
    return sim_options(sim, tokens)[option].read_bytes[sim->tier_of[option]];
}

/* A copy of another host is decoded when all of it is there, so the seconds are those of the
 * curve. */
double sim_remote_decode_s(sim_state *sim, uint32_t tokens)
{
    const kvt_cost_model *model = &sim->options->model;
    const uint32_t variant = (remote_option(sim) - 1) % model->variant_count;
    if (!sim->options->partial_exact) tokens = sim->workload->block_tokens;
    return (double)(tokens * sim->options->bytes_per_token) / (double)model->parallel_codecs /
           model->variants[variant].decode_bytes_per_s;
}

uint32_t sim_remote_node(const sim_remote *remote, uint32_t block)
{
    return (uint32_t)(replay_mix(block) % remote->options->remote.nodes);
}

/* Occupies one of a node's two queues. What waits in the other one gets every second turn. */
static uint64_t node_pass(uint64_t *own_free_ns, uint64_t *other_free_ns, uint64_t now_ns,
                          uint64_t cost_ns)
{
    uint64_t begin_ns = *own_free_ns > now_ns ? *own_free_ns : now_ns;
    uint64_t waiting_ns = *other_free_ns > begin_ns ? *other_free_ns - begin_ns : 0;
    uint64_t between_ns = waiting_ns < cost_ns ? waiting_ns : cost_ns;
    if (waiting_ns > 0) *other_free_ns += cost_ns;
    *own_free_ns = begin_ns + cost_ns + between_ns;
    return *own_free_ns;
}

static uint64_t remote_cost_ns(uint64_t bytes, uint64_t bytes_per_s)
{
    return sim_to_ns((double)bytes / (double)bytes_per_s);
}

uint64_t sim_remote_ahead(const sim_state *sim, uint64_t now_ns)
{
    uint64_t free_ns = sim->link->in_free_ns;
    if (free_ns <= now_ns) return 0;
    double bytes_per_s = (double)sim->options->remote.host_bytes_per_s;
    return (uint64_t)((double)(free_ns - now_ns) * 1e-9 * bytes_per_s);
}

double sim_remote_expect(const sim_state *sim, uint32_t block, uint64_t bytes, uint64_t ahead)
{
    uint32_t node = sim_remote_node(sim->remote, block);
    const online_work work = {.bytes = (double)bytes, .ahead_bytes = (double)ahead};
    return online_device_predict(&sim->link->nodes[node], &work);
}

/* Takes an achieved time into what the host knows of the node. */
static void remote_learn(sim_state *sim, uint32_t block, uint64_t bytes, uint64_t ahead,
                         double seconds)
{
    sim_remote *remote = sim->remote;
    double expected = sim_remote_expect(sim, block, bytes, ahead);
    const online_work work = {.bytes = (double)bytes, .ahead_bytes = (double)ahead};
    if (seconds > 0.0) {
        double error = (expected > seconds ? expected - seconds : seconds - expected) / seconds;
        remote->errors[remote->error_count++ % SIM_ERRORS_MAX] = (float)error;
    }
    (void)online_device_observe(&sim->link->nodes[sim_remote_node(remote, block)], &work,
                                online_timed(seconds));
}

uint64_t sim_remote_read(sim_state *sim, uint32_t block, uint64_t bytes, uint64_t ahead,
                         uint64_t now_ns)
{
    const replay_remote *options = &sim->options->remote;
    sim_link *link = sim->link;
    sim_node *node = &sim->remote->nodes[sim_remote_node(sim->remote, block)];
    uint64_t end_ns = node_pass(&node->read_free_ns, &node->write_free_ns, now_ns,
                                remote_cost_ns(bytes, options->node_bytes_per_s));
    link->in_free_ns = (link->in_free_ns > now_ns ? link->in_free_ns : now_ns) +
                       remote_cost_ns(bytes, options->host_bytes_per_s);
    if (link->in_free_ns > end_ns) end_ns = link->in_free_ns;
    end_ns += sim_to_ns(options->latency_seconds / 2);
    remote_learn(sim, block, bytes, ahead, (double)(end_ns - now_ns) * 1e-9);
    if (sim->counting) {
        link->row->fetched_blocks++;
        link->row->fetched_bytes += bytes;
    }
    return end_ns;
}

double sim_remote_copy_s(sim_state *sim, const sim_visit *visit, uint32_t position, uint64_t now_ns)
{
    uint32_t block = visit->prefix[position];
    if (!sim_remote_has(sim->remote, block, now_ns)) return 0.0;
    uint64_t bytes = sim_remote_bytes(sim, sim_block_tokens(sim, visit->request, position));
    return sim_remote_expect(sim, block, bytes, 0);
}

kvt_status sim_remote_tell(sim_state *sim, const sim_visit *visit, uint64_t now_ns)
{
    uint32_t local = visit->probed ? visit->local : visit->run;
    for (uint32_t i = 0; i < visit->request->block_count; i++) {
        uint32_t block = visit->prefix[i];
        bool published = sim_was_published(visit, i);
        /* Of what lay in its own tiers the host has heard nothing. */
        if (i < local && !published) continue;
        uint64_t bytes = sim_remote_bytes(sim, sim_block_tokens(sim, visit->request, i));
        double load_s = published || remote_holds(sim->remote, block)
                            ? sim_remote_expect(sim, block, bytes, 0)
                            : 0.0;
        kvt_status status = kvt_policy_copy_set(sim->policy, now_ns, sim_handle(block), load_s);
        if (status != KVT_OK && status != KVT_MISS) return status;
    }
    return KVT_OK;
}

/* ---- publishing ---- */

/* When bytes have passed the link and the node. */
static uint64_t remote_write_ns(sim_state *sim, uint32_t block, uint64_t bytes, uint64_t now_ns)
{
    const replay_remote *options = &sim->options->remote;
    sim_link *link = sim->link;
    sim_node *node = &sim->remote->nodes[sim_remote_node(sim->remote, block)];
    link->out_free_ns = (link->out_free_ns > now_ns ? link->out_free_ns : now_ns) +
                        remote_cost_ns(bytes, options->host_bytes_per_s);
    uint64_t end_ns = node_pass(&node->write_free_ns, &node->read_free_ns, now_ns,
                                remote_cost_ns(bytes, options->node_bytes_per_s));
    if (link->out_free_ns > end_ns) end_ns = link->out_free_ns;
    return end_ns + sim_to_ns(options->latency_seconds / 2);
}

/* Bytes that wait for the write rate, over what may wait. */
static double publish_queue_share(sim_state *sim, uint64_t now_ns)
{
    uint64_t rate = sim->options->remote.write_bytes_per_s, free_ns = sim->link->publish_free_ns;
    if (rate == 0 || free_ns <= now_ns) return 0.0;
    double room = (double)sim_remote_bytes(sim, sim->workload->block_tokens) * SIM_PUBLISH_QUEUE;
    double share = (double)(free_ns - now_ns) * 1e-9 * (double)rate / room;
    return share < 1.0 ? share : 1.0;
}

/* Whether the queue takes so many bytes; then they hold the next ones up. */
static bool publish_takes(sim_state *sim, uint64_t bytes, uint64_t now_ns)
{
    uint64_t rate = sim->options->remote.write_bytes_per_s, *free_ns = &sim->link->publish_free_ns;
    if (rate == 0) return true;
    if (publish_queue_share(sim, now_ns) >= 1.0) return false;
    *free_ns = (*free_ns > now_ns ? *free_ns : now_ns) + remote_cost_ns(bytes, rate);
    return true;
}

/* Writes a copy. It is not in the list yet. */
static void publish_write(sim_state *sim, uint32_t block, uint64_t bytes, uint64_t now_ns)
{
    sim_copy *copy = &sim->remote->copies[block];
    uint64_t end_ns = remote_write_ns(sim, block, bytes, now_ns);
    if (sim->link->publish_free_ns > end_ns && sim->options->remote.write_bytes_per_s > 0)
        end_ns = sim->link->publish_free_ns;
    if (!remote_holds(sim->remote, block)) {
        copy->since_ns = end_ns;
        copy->bytes_4k = (uint32_t)((bytes + REMOTE_UNIT - 1) / REMOTE_UNIT);
    }
    if (!sim->counting) return;
    sim->link->row->published_blocks++;
    sim->link->row->published_bytes += bytes;
}

/* Whether a host wants a copy of a block that has none. */
static bool publish_wants(const sim_state *sim, uint32_t block)
{
    switch (sim->options->remote.publish) {
    case REPLAY_PUBLISH_ALL: return true;
    case REPLAY_PUBLISH_SECOND_USE: return sim->remote->uses[block] > 0;
    default: return false;
    }
}

/* Publishes one block, if it is wanted and the rate takes it. Returns whether it has been written
 * and belongs into the list. */
static bool publish_one(sim_state *sim, const sim_visit *visit, uint32_t position, uint64_t now_ns)
{
    sim_remote *remote = sim->remote;
    uint32_t block = visit->prefix[position];
    uint64_t bytes = sim_remote_bytes(sim, sim_block_tokens(sim, visit->request, position));
    bool held = remote_holds(remote, block), computed = position >= visit->loaded;
    if (held && !computed) return false;
    if (held && sim_remote_has(remote, block, now_ns)) {
        remote->hosts->deduplicated += sim->counting;
        return false;
    }
    if (bytes > sim->options->remote.capacity_bytes) return false;
    if (!computed && sim->options->remote.publish == REPLAY_PUBLISH_ALL) return false;
    if (!held) {
        remote->hosts->offered += sim->counting;
        if (!publish_wants(sim, block)) {
            remote->hosts->declined += sim->counting;
            return false;
        }
    }
    if (!publish_takes(sim, bytes, now_ns)) {
        remote->hosts->dropped += sim->counting;
        return false;
    }
    publish_write(sim, block, bytes, now_ns);
    remote->hosts->twice += held && sim->counting;
    return !held;
}

void sim_remote_publish(sim_state *sim, const sim_visit *visit, uint64_t now_ns)
{
    sim_remote *remote = sim->remote;
    /* Copies are exact: what was computed on a lossy prefix has none. */
    bool exact = !(visit->loss > 0.0);
    for (uint32_t i = 0; i < visit->request->block_count; i++) {
        bool fetched = i < visit->loaded && visit->found[i] == SIM_FOUND_SHARED;
        bool written = exact && publish_one(sim, visit, i, now_ns);
        visit->found[i] = written   ? fetched ? SIM_FOUND_AGAIN : SIM_FOUND_PUBLISHED
                          : fetched ? SIM_FOUND_SHARED
                                    : KVT_OPTION_NONE;
    }
    for (uint32_t i = visit->request->block_count; i-- > 0;) {
        uint32_t block = visit->prefix[i];
        if (sim_was_published(visit, i)) remote_insert(remote, block);
        if (visit->found[i] == SIM_FOUND_SHARED && remote_holds(remote, block))
            remote_touch(remote, block);
        if (remote->uses[block] < UINT8_MAX) remote->uses[block]++;
    }
}

void sim_remote_leave(sim_state *sim, uint32_t block, uint64_t now_ns)
{
    if (sim->options->remote.publish != REPLAY_PUBLISH_LEAVING) return;
    uint64_t bytes = sim_remote_bytes(sim, sim->workload->block_tokens);
    if (remote_holds(sim->remote, block) || bytes > sim->options->remote.capacity_bytes) return;
    if (!publish_takes(sim, bytes, now_ns)) {
        sim->remote->hosts->dropped += sim->counting;
        return;
    }
    publish_write(sim, block, bytes, now_ns);
    remote_insert(sim->remote, block);
}
