/*
 * sim_moves.c - plans carried out in virtual time: committed at once, while their bytes occupy the
 * read path of the source tier and the write path of the target tier. One thread.
 */
#include "sim_state.h"

#include "random.h"

static void sim_occupy(uint64_t *free_ns, uint64_t now_ns, const kvt_affine *path, uint64_t bytes)
{
    uint64_t begin_ns = *free_ns > now_ns ? *free_ns : now_ns;
    *free_ns = begin_ns + sim_to_ns(path->request_seconds + (double)bytes / path->bytes_per_s);
}

static void sim_move_bytes(sim_state *sim, uint64_t now_ns, const kvt_move *move, bool in_memory)
{
    replay_result *result = sim->result;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (move->kind == KVT_MOVE_CHANGE && !in_memory && move->from_bytes[tier] > 0) {
            sim_occupy(&sim->read_free_ns[tier], now_ns, &sim->options->model.read[tier],
                       move->from_bytes[tier]);
            if (sim->counting) {
                result->bytes_read[tier] += move->from_bytes[tier];
                result->moved_bytes_read[tier] += move->from_bytes[tier];
            }
        }
        if (move->kind == KVT_MOVE_EVICT || move->to_bytes[tier] == 0) continue;
        sim_occupy(&sim->write_free_ns[tier], now_ns, &sim->options->model.write[tier],
                   move->to_bytes[tier]);
        if (!sim->counting) continue;
        result->bytes_written[tier] += move->to_bytes[tier];
        double lag_s = (double)(sim->write_free_ns[tier] - now_ns) * 1e-9;
        if (lag_s > result->write_lag_s_max[tier]) result->write_lag_s_max[tier] = lag_s;
    }
}

static void sim_log_move(sim_state *sim, uint64_t now_ns, const kvt_move *move)
{
    uint64_t hash = sim->result->plan_hash;
    hash = replay_mix(hash ^ move->handle);
    sim->result->plan_hash = replay_mix(hash ^ (uint64_t)move->kind ^ ((uint64_t)move->from << 8) ^
                                        ((uint64_t)move->to << 16));
    sim->result->moves++;
    if (sim->plan_log == NULL) return;
    char text[256];
    kvt_move_format(move, text, sizeof text);
    if (fprintf(sim->plan_log, "%llu %s\n", (unsigned long long)now_ns, text) < 0) {
        sim->plan_log_failed = true;
    }
}

kvt_status sim_carry_out(sim_state *sim, uint64_t now_ns, uint64_t loaded)
{
    for (uint32_t i = 0; i < sim->plan.count; i++) {
        const kvt_move *move = &sim->plan.moves[i];
        kvt_status status = kvt_policy_commit(sim->policy, move->id, NULL);
        if (status != KVT_OK) return status;
        sim_move_bytes(sim, now_ns, move, move->handle == loaded);
        sim_log_move(sim, now_ns, move);
    }
    sim->plan.count = 0;
    return KVT_OK;
}
