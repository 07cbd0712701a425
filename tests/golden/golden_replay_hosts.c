/* SPDX-License-Identifier: Apache-2.0 */
/*
 * golden_replay_hosts.c - external truth: what sharing is worth on Mooncake's conversation trace.
 *
 * An independent simulator without time (16 hosts with 4,000 blocks each under LRU, 64,000 blocks
 * shared, copies at once) found the shares of blocks below. Ours has queues, prefill and copies
 * that take their time, so links, nodes and servers are made fast here. Needs the trace below the
 * folder that KVT_DATA_DIR names.
 */
#include "replay/replay.h"

#include "cases.h"
#include "conversation_support.h"
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define BLOCK_BYTES (UINT64_C(64) << 20)
#define PRIVATE     (-1)

typedef struct hosts_trial {
    replay_route route;
    double spill_share;
    bool restart;
    int publish; /* replay_publish, or PRIVATE */
} hosts_trial;

static replay_hosts hosts_run(const hosts_trial *trial)
{
    char message[256];
    replay_options options;
    replay_result result;
    replay_options_init(&options);
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 4000 * BLOCK_BYTES;
    options.hosts = 16;
    options.route = trial->route;
    options.spill_share = trial->spill_share;
    options.restart = trial->restart;
    if (trial->publish != PRIVATE) {
        options.remote.capacity_bytes = 64000 * BLOCK_BYTES;
        options.remote.publish = (uint32_t)trial->publish;
        options.remote.node_bytes_per_s = options.remote.host_bytes_per_s = UINT64_C(1) << 45;
        options.remote.latency_seconds = 0.0;
    }
    assert_ok(replay_options_check(&options, message, sizeof message));
    kvt_status status =
        replay_run_sim(&options, &conversation, "lru", &result, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s", message);
    replay_hosts hosts = result.hosts;
    replay_result_free(&result);
    hosts.rows = NULL;
    return hosts;
}

static void expect_found(const hosts_trial *trial, double found, double writes)
{
    replay_hosts hosts = hosts_run(trial);
    print_message("route %d:%g restart %d publish %d: found %.4f (%.3f), writes %.4f (%.3f)\n",
                  trial->route, trial->spill_share, trial->restart, trial->publish,
                  hosts.found_ratio, found, hosts.written_per_use, writes);
    if (fabs(hosts.found_ratio - found) > 0.01)
        fail_msg("%.4f found, wanted %.3f", hosts.found_ratio, found);
    if (fabs(hosts.written_per_use - writes) > 0.01)
        fail_msg("%.4f written, wanted %.3f", hosts.written_per_use, writes);
}

TEST_ALL(conversation_load, conversation_release);

TEST(random_routing_gains_most)
{
    expect_found(&(hosts_trial){REPLAY_ROUTE_RANDOM, 0, false, PRIVATE}, 0.083, 0);
    expect_found(&(hosts_trial){REPLAY_ROUTE_RANDOM, 0, false, REPLAY_PUBLISH_ALL}, 0.359, 0.64);
}

TEST(spilled_requests_find_what_is_shared)
{
    expect_found(&(hosts_trial){REPLAY_ROUTE_SPILL, 0.2, false, PRIVATE}, 0.273, 0);
    expect_found(&(hosts_trial){REPLAY_ROUTE_SPILL, 0.2, false, REPLAY_PUBLISH_ALL}, 0.359, 0.64);
}

TEST(sticky_routing_gains_nothing)
{
    expect_found(&(hosts_trial){REPLAY_ROUTE_STICKY, 0, false, PRIVATE}, 0.359, 0);
    expect_found(&(hosts_trial){REPLAY_ROUTE_STICKY, 0, false, REPLAY_PUBLISH_ALL}, 0.360, 0.64);
}

TEST(a_second_use_publishes_a_quarter)
{
    expect_found(&(hosts_trial){REPLAY_ROUTE_SPILL, 0.2, false, REPLAY_PUBLISH_SECOND_USE}, 0.309,
                 0.23 * 0.64);
    expect_found(&(hosts_trial){REPLAY_ROUTE_RANDOM, 0, false, REPLAY_PUBLISH_SECOND_USE}, 0.224,
                 0.153);
}

TEST(what_leaves_a_host_comes_too_late)
{
    expect_found(&(hosts_trial){REPLAY_ROUTE_SPILL, 0.2, false, REPLAY_PUBLISH_LEAVING}, 0.283,
                 0.449);
}

TEST(restarts_lose_what_is_not_shared)
{
    expect_found(&(hosts_trial){REPLAY_ROUTE_STICKY, 0, true, PRIVATE}, 0.339, 0);
    expect_found(&(hosts_trial){REPLAY_ROUTE_STICKY, 0, true, REPLAY_PUBLISH_ALL}, 0.360, 0.64);
}
