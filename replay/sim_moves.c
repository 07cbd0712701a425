/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_moves.c - plans carried out in virtual time. One thread.
 *
 * A move is committed at once; its bytes occupy the read queue of the source tier and the write
 * queue of the target tier, and the entry can be read again when they are there. A queue that has
 * fallen behind by more than the options allow takes no further move: a store's staging memory is
 * bounded too. Then this move and the rest of its plan are aborted, as the contract of plans says.
 */
#include "sim_remote.h"

#include "random.h"

#include <stdlib.h>

/* When the bytes are there, if they are handed over now but exist only from exist_ns on. The queue
 * does not stand still until then: other bytes go first. */
static uint64_t sim_occupy(uint64_t *free_ns, uint64_t now_ns, uint64_t exist_ns,
                           const kvt_affine *queue, uint64_t bytes)
{
    uint64_t cost_ns = sim_to_ns(queue->request_seconds + (double)bytes / queue->bytes_per_s);
    *free_ns = (*free_ns > now_ns ? *free_ns : now_ns) + cost_ns;
    return *free_ns > exist_ns + cost_ns ? *free_ns : exist_ns + cost_ns;
}

/* Whether a queue has fallen behind by more than the bound; 0 is no bound. */
static bool sim_lags(uint64_t free_ns, uint64_t now_ns, double bound_s)
{
    return bound_s > 0.0 && free_ns > now_ns && free_ns - now_ns > sim_to_ns(bound_s);
}

/* Whether the source's bytes must be read: a change of an entry that no request holds now. */
static bool sim_reads_source(const kvt_move *move, const sim_hand *hand)
{
    return move->kind == KVT_MOVE_CHANGE && move->handle != hand->handle;
}

/* Planes or a copy given up in place: nothing is read or written. */
static bool sim_is_dropped(const kvt_move *move)
{
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
        if (move->to_bytes[tier] != move->kept_bytes[tier]) return false;
    return true;
}

/* Whether every queue that the move writes to may take it now. */
static bool sim_has_room(const sim_state *sim, const kvt_move *move, const sim_hand *hand)
{
    const replay_options *options = sim->options;
    if (move->kind == KVT_MOVE_EVICT || sim_is_dropped(move)) return true;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (move->to_bytes[tier] > move->kept_bytes[tier] &&
            sim_lags(sim->write_free_ns[tier], hand->now_ns, options->write_lag_seconds)) {
            return false;
        }
    }
    return true;
}

const uint64_t *sim_record_bytes(sim_state *sim, const kvt_move *move)
{
    uint32_t block = (uint32_t)(move->handle - 1), tokens = sim->workload->block_tokens;
    if (move->to == KVT_OPTION_NONE) return NULL;
    if (sim->held_tokens != NULL) tokens = sim->held_tokens[block];
    uint8_t option = move->to;
    if (sim->options->blend.set) option = sim->blend_option[sim_blend_mask(sim, block)][option];
    return sim_options(sim, tokens)[option].read_bytes;
}

/* Occupies the source's read queues and the target's write queues, and notes when the entry can
 * be read. */
static void sim_move_bytes(sim_state *sim, const kvt_move *move, const uint64_t *record_bytes,
                           const sim_hand *hand)
{
    replay_result *result = sim->result;
    if (move->kind == KVT_MOVE_EVICT || sim_is_dropped(move)) return;
    uint64_t exist_ns = move->handle == hand->handle ? hand->exist_ns : hand->now_ns;
    uint64_t there_ns = exist_ns;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        uint64_t bytes = move->from_bytes[tier] - move->kept_bytes[tier];
        if (!sim_reads_source(move, hand) || bytes == 0) continue;
        uint64_t end_ns = sim_occupy(&sim->read_free_ns[tier], hand->now_ns, hand->now_ns,
                                     &sim->options->model.read[tier], bytes);
        if (end_ns > exist_ns) exist_ns = end_ns;
        if (sim->counting) {
            result->bytes_read[tier] += bytes;
            result->moved_bytes_read[tier] += bytes;
        }
    }
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        uint64_t bytes = record_bytes[tier] - move->kept_bytes[tier];
        if (bytes == 0) continue;
        uint64_t end_ns = sim_occupy(&sim->write_free_ns[tier], hand->now_ns, exist_ns,
                                     &sim->options->model.write[tier], bytes);
        if (end_ns > there_ns) there_ns = end_ns;
        if (!sim->counting) continue;
        result->bytes_written[tier] += bytes;
        double lag_s = (double)(sim->write_free_ns[tier] - hand->now_ns) * 1e-9;
        if (lag_s > result->write_lag_s_max[tier]) result->write_lag_s_max[tier] = lag_s;
    }
    sim->ready_ns[move->handle - 1] = there_ns;
}

void sim_log_move(sim_state *sim, uint64_t now_ns, const kvt_move *move, bool committed)
{
    uint64_t hash = sim->result->plan_hash;
    hash = replay_mix(hash ^ move->handle ^ ((uint64_t)committed << 63));
    sim->result->plan_hash = replay_mix(hash ^ (uint64_t)move->kind ^ ((uint64_t)move->from << 8) ^
                                        ((uint64_t)move->to << 16));
    sim->result->moves++;
    if (committed) {
        sim->result->moves_committed++;
    } else {
        sim->result->moves_aborted++;
    }
    if (sim->plan_log == NULL) return;
    char text[256];
    kvt_move_format(move, text, sizeof text);
    if (fprintf(sim->plan_log, "%llu %s %s\n", (unsigned long long)now_ns,
                committed ? "committed" : "aborted", text) < 0) {
        sim->plan_log_failed = true;
    }
}

kvt_status sim_carry_out(sim_state *sim, const sim_hand *hand)
{
    bool room = true;
    for (uint32_t i = 0; i < sim->plan.count; i++) {
        const kvt_move *move = &sim->plan.moves[i];
        room = room && sim_has_room(sim, move, hand);
        const uint64_t *record_bytes = sim_record_bytes(sim, move);
        kvt_status status = room ? kvt_policy_commit(sim->policy, move->id, record_bytes)
                                 : kvt_policy_abort(sim->policy, move->id);
        if (status != KVT_OK) return status;
        if (room) {
            sim_move_bytes(sim, move, record_bytes, hand);
            sim_quality_move(sim, move);
            if (sim->remote != NULL && move->kind == KVT_MOVE_EVICT)
                sim_remote_leave(sim, (uint32_t)(move->handle - 1), hand->now_ns);
        }
        sim_log_move(sim, hand->now_ns, move, room);
    }
    sim->plan.count = 0;
    return KVT_OK;
}

/* ---- explanations of some entries at the end of a simulation ---- */

/*
 * The stored blocks that the engine expects to be used soonest are explained.
 */

typedef struct explain_choice {
    uint64_t handle;
    double uses_per_s;
} explain_choice;

/* Keeps the entries with the highest rates, best first; equal ones in the order of blocks. */
static void explain_keep(explain_choice *choice, uint32_t most, uint32_t *count,
                         explain_choice found)
{
    uint32_t at = *count;
    if (at == most && choice[at - 1].uses_per_s >= found.uses_per_s) return;
    if (at == most)
        at--;
    else
        ++*count;
    for (; at > 0 && choice[at - 1].uses_per_s < found.uses_per_s; at--)
        choice[at] = choice[at - 1];
    choice[at] = found;
}

/* As of the last time that the engine was told. */
static void explain_entry(const sim_state *sim, uint64_t handle, replay_explained *out)
{
    kvt_explanation *why = &out->why;
    why->struct_size = sizeof *why;
    out->block = (uint32_t)(handle - 1);
    if (kvt_policy_explain(sim->policy, 0, handle, why) != KVT_OK) return;
    const uint64_t *bytes = why->options[why->current].option.bytes;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT && out->tier == KVT_TIER_NONE; tier++)
        if (bytes[tier] > 0) out->tier = (kvt_tier)tier;
}

kvt_status sim_explain(sim_state *sim)
{
    explain_choice choice[REPLAY_EXPLAIN_MAX];
    uint32_t count = 0, most = sim->options->explain;
    replay_result *result = sim->result;
    if (most == 0) return KVT_OK;
    for (uint32_t block = 0; block < sim->workload->distinct_blocks; block++) {
        kvt_policy_worth worth = {.struct_size = sizeof worth};
        explain_choice found = {.handle = sim_handle(block)};
        if (kvt_policy_worth_get(sim->policy, found.handle, KVT_TIER_DRAM, &worth) != KVT_OK)
            continue;
        found.uses_per_s = worth.uses_per_s;
        explain_keep(choice, most, &count, found);
    }
    result->explained = calloc(count > 0 ? count : 1, sizeof *result->explained);
    if (result->explained == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < count; i++)
        explain_entry(sim, choice[i].handle, &result->explained[i]);
    result->explained_count = count;
    return KVT_OK;
}
