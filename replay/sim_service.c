/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_service.c - one request's service: which blocks it finds, loads and recomputes, and how long
 * that takes on the modelled tiers. One thread.
 *
 *     prefix    [b0 b1 b2 b3 | b4 b5 ...]      run = 4: the first hole ends it
 *     loaded    [b0 b1 b2]                     the head that makes the first token earliest
 *     prefill             [b3 b4 b5 ...]       at least one token is always computed
 */
#include "live.h"
#include "sim_remote.h"

#include <assert.h>

const kvt_option *sim_options(sim_state *sim, uint32_t tokens)
{
    if (tokens == sim->workload->block_tokens || !sim->options->partial_exact) return sim->whole;
    uint32_t count;
    kvt_status status = block_options(sim->options, tokens, sim->exact, &count);
    assert(status == KVT_OK && count == sim->option_count); /* whole blocks were built before */
    (void)status;
    return sim->exact;
}

/* Whether the shared tier has the block behind the run, which the host has not. To ask takes a
 * round trip. */
static bool sim_is_shared(const sim_state *sim, sim_visit *visit)
{
    if (sim->remote == NULL) return false;
    if (!visit->probed) visit->local = visit->run;
    visit->probed = true;
    return sim_remote_has(sim->remote, visit->prefix[visit->run], visit->start_ns);
}

/* The count of a host's blocks that are found where this option says. */
static uint64_t *sim_found(sim_state *sim, uint8_t option)
{
    replay_host *row = sim->link->row;
    return option == KVT_OPTION_NONE ? &row->remote_blocks : &row->local_blocks;
}

static void sim_find_run(sim_state *sim, sim_visit *visit)
{
    const replay_request *request = visit->request;
    replay_result *result = sim->result;
    for (visit->run = 0; visit->run < request->block_count; visit->run++) {
        uint8_t option = sim_option_of(sim, visit->prefix[visit->run]);
        if (option == KVT_OPTION_NONE && !sim_is_shared(sim, visit)) return;
        sim->run[visit->run] = option != KVT_OPTION_NONE ? option : SIM_RUN_REMOTE;
        if (!sim->counting) continue;
        if (sim->link != NULL) *sim_found(sim, option) += 1;
        if (option == KVT_OPTION_NONE) continue;
        /* Sums for now; divided by all tokens at the end. */
        uint32_t tokens = sim_block_tokens(sim, request, visit->run);
        result->hit_token_ratio[sim->tier_of[option]] += tokens;
        result->hit_token_ratio[0] += tokens;
    }
}

double sim_prefill_after(const sim_state *sim, const replay_request *request, uint32_t blocks,
                         double whole_s)
{
    uint64_t held = (uint64_t)blocks * sim->workload->block_tokens;
    if (held < request->input_tokens) return whole_s - sim->prefill_s[blocks];
    return kvt_prefill_seconds(&sim->options->model.prefill, request->input_tokens - 1,
                               request->input_tokens);
}

/* The cost of loading a head of the run; grows block by block. */
typedef struct sim_head {
    uint64_t read_free_ns[KVT_TIER_COUNT];
    uint64_t ahead;  /* bytes on their way to the host before this head */
    uint64_t asked;  /* and of it, from the shared tier */
    uint64_t end_ns; /* when the last byte has been read */
    double decode_s;
    bool delayed;
} sim_head;

/* The same of a block of the shared tier, whose queues the host does not know: the end is what it
 * expects, or the real one where the block is read now. */
static void sim_extend_shared(sim_state *sim, const sim_visit *visit, uint32_t position, bool reads,
                              sim_head *head)
{
    uint32_t block = visit->prefix[position];
    uint32_t tokens = sim_block_tokens(sim, visit->request, position);
    uint64_t bytes = sim_remote_bytes(sim, tokens), end_ns = visit->start_ns;
    if (reads)
        end_ns = sim_remote_read(sim, block, bytes, head->ahead + head->asked, visit->start_ns);
    else
        end_ns += sim_to_ns(sim_remote_expect(sim, block, bytes, head->ahead + head->asked));
    head->asked += bytes;
    if (end_ns > head->end_ns) head->end_ns = end_ns;
    head->decode_s += sim_remote_decode_s(sim, tokens);
}

static void sim_extend_head(sim_state *sim, const sim_visit *visit, uint32_t position, bool reads,
                            sim_head *head)
{
    if (sim->run[position] == SIM_RUN_REMOTE) {
        sim_extend_shared(sim, visit, position, reads, head);
        return;
    }
    uint32_t tokens = sim_block_tokens(sim, visit->request, position);
    const kvt_option *option = &sim_options(sim, tokens)[sim->run[position]];
    uint64_t ready_ns = sim->ready_ns[visit->prefix[position]];
    if (ready_ns > visit->start_ns) head->delayed = true;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (option->read_bytes[tier] == 0) continue;
        const kvt_affine *read = &sim->options->model.read[tier];
        uint64_t cost_ns =
            sim_to_ns(read->request_seconds + (double)option->read_bytes[tier] / read->bytes_per_s);
        uint64_t begin_ns = head->read_free_ns[tier];
        if (begin_ns < visit->start_ns) begin_ns = visit->start_ns;
        head->read_free_ns[tier] = begin_ns + cost_ns;
        /* A block that is still being computed is read when it is there; the queue does not stand
         * still for it, other reads go first. */
        uint64_t end_ns = ready_ns + cost_ns;
        if (end_ns < begin_ns + cost_ns) end_ns = begin_ns + cost_ns;
        if (end_ns > head->end_ns) head->end_ns = end_ns;
    }
    head->decode_s += option->decode_seconds;
}

/* Occupies the read queues with the head that was chosen. What comes from the shared tier takes the
 * time that it takes. */
static void sim_read_head(sim_state *sim, sim_visit *visit)
{
    sim_head head = {.end_ns = visit->start_ns};
    if (sim->remote != NULL) head.ahead = sim_remote_ahead(sim, visit->start_ns);
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        head.read_free_ns[tier] = sim->read_free_ns[tier];
    }
    for (uint32_t i = 0; i < visit->loaded; i++) {
        sim_extend_head(sim, visit, i, true, &head);
        if (!sim->counting) continue;
        uint32_t tokens = sim_block_tokens(sim, visit->request, i);
        if (sim->run[i] == SIM_RUN_REMOTE) {
            sim->result->used_token_ratio += tokens;
            continue;
        }
        const kvt_option *option = &sim_options(sim, tokens)[sim->run[i]];
        sim->result->used_token_ratio += tokens;
        for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
            sim->result->bytes_read[tier] += option->read_bytes[tier];
        }
    }
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        sim->read_free_ns[tier] = head.read_free_ns[tier];
    }
    if (head.asked == 0) return;
    visit->load_s = (double)(head.end_ns - visit->start_ns) * 1e-9 + head.decode_s;
    visit->service_s = sim_together(sim->options, visit->load_s, visit->prefill_s);
}

void sim_serve(sim_state *sim, sim_visit *visit)
{
    const replay_request *request = visit->request;
    const kvt_prefill *prefill = &sim->options->model.prefill;
    sim_find_run(sim, visit);

    double whole_s = kvt_prefill_seconds(prefill, 0, request->input_tokens);
    sim_head head = {.end_ns = visit->start_ns};
    if (sim->remote != NULL) head.ahead = sim_remote_ahead(sim, visit->start_ns);
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        head.read_free_ns[tier] = sim->read_free_ns[tier];
    }
    visit->loaded = 0;
    visit->load_s = 0.0;
    visit->prefill_s = whole_s;
    visit->service_s = whole_s;
    visit->delayed = false;
    for (uint32_t blocks = 1; blocks <= visit->run; blocks++) {
        sim_extend_head(sim, visit, blocks - 1, false, &head);
        double load_s = (double)(head.end_ns - visit->start_ns) * 1e-9 + head.decode_s;
        double compute_s = sim_prefill_after(sim, request, blocks, whole_s);
        double service_s = sim_together(sim->options, load_s, compute_s);
        if (service_s > visit->service_s) continue;
        visit->loaded = blocks;
        visit->load_s = load_s;
        visit->prefill_s = compute_s;
        visit->service_s = service_s;
        visit->delayed = head.delayed;
    }
    if (visit->loaded > 0) sim_read_head(sim, visit);
    visit->prefill_s += prefill->fixed_seconds;
    visit->service_s += prefill->fixed_seconds;
    if (visit->probed) visit->service_s += sim->options->remote.latency_seconds;
    visit->saved_s = whole_s + prefill->fixed_seconds - visit->service_s;
    sim_quality_sum(sim, visit);
}
