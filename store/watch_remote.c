/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch_remote.c - the metrics of an engine that other hosts share.
 *
 * Thread rule: any thread.
 */
#include "store/remote_tier.h"
#include "store/watch_text.h"
#include "store/watching.h"

#include <string.h>

static const watch_label remote_none = {0};

/* One family of a number in kvt_remote_stats. */
typedef struct remote_row {
    const char *name;
    const char *help;
    size_t offset; /* of a uint64_t */
    bool gauge;
} remote_row;

#define ROW(member, name, help)                                                                    \
    {                                                                                              \
        name, help, offsetof(kvt_remote_stats, member), false                                      \
    }

static const remote_row remote_rows[] = {
    ROW(hits, "remote_hits_total", "Gets served from entries of other hosts."),
    ROW(hit_bytes, "remote_hit_bytes_total", "Their bytes, as stored."),
    ROW(misses, "remote_misses_total", "Gets that asked the engine and found nothing."),
    ROW(known_misses, "remote_known_misses_total", "Gets that a hint spared the question."),
    ROW(timeouts, "remote_timeouts_total", "Gets from the engine that ended at their deadline."),
    ROW(node_failures, "remote_node_failures_total", "Gets whose node was out of service."),
    ROW(bad_records, "remote_bad_records_total", "Objects whose bytes were wrong."),
    ROW(not_worth, "remote_not_worth_total", "Gets that recomputing was expected to beat."),
    ROW(prefetched, "remote_prefetched_total", "Entries that have come by a prefetch."),
    ROW(copies_told, "remote_copies_told_total", "Times that the policy has heard of a copy."),
    ROW(unfit, "remote_unfit_total", "Objects of another size or layout."),
    ROW(probes, "remote_probes_total", "Keys that the engine was asked for."),
    ROW(probe_batches, "remote_probe_batches_total", "Writes to a node that they took."),
    ROW(known_probes, "remote_known_probes_total", "Keys of prefixes that a hint answered."),
    ROW(published, "remote_published_total", "Entries published."),
    ROW(published_bytes, "remote_published_bytes_total", "Their bytes, as stored."),
    ROW(deduplicated, "remote_deduplicated_total", "Entries that another host had published."),
    ROW(declined, "remote_declined_total", "Entries that were not worth it, or not exact."),
    ROW(dropped_queue, "remote_dropped_queue_total", "Entries dropped by a full queue."),
    ROW(dropped_node, "remote_dropped_node_total", "Entries dropped because a node failed."),
    ROW(dropped_deletes, "remote_dropped_deletes_total", "Deletions dropped by a full queue."),
    ROW(deleted, "remote_deleted_total", "Objects deleted."),
    ROW(invalidations, "remote_invalidations_total", "Keys that the feed has named."),
    ROW(bytes_in, "remote_received_bytes_total", "Bytes received from nodes."),
    ROW(bytes_out, "remote_sent_bytes_total", "Bytes sent to nodes."),
    {"remote_owed_deletes", "Deletions that a node has not taken yet.",
     offsetof(kvt_remote_stats, owed_deletes), true},
    {"remote_owed_clears", "Clears that the engine has not taken yet.",
     offsetof(kvt_remote_stats, owed_clears), true},
    {"remote_waiting", "Entries that wait to be published.", offsetof(kvt_remote_stats, waiting),
     true},
};

/* Writes the state of each node. */
static void remote_write_nodes(kvt_store *store, watch_text *out)
{
    kvt_remote_node node = {.struct_size = sizeof node};
    watch_family(out, "remote_node_up", "gauge", "1: the node is asked; 0: its breaker is open.");
    for (uint32_t i = 0; kvt_remote_node_get(store, i, &node) == KVT_OK; i++)
        watch_sample(out, "remote_node_up", (watch_label){"node", node.address}, remote_none,
                     node.breaker == 0);
    watch_family(out, "remote_node_timeouts_total", "counter", "Requests that it did not answer.");
    for (uint32_t i = 0; kvt_remote_node_get(store, i, &node) == KVT_OK; i++)
        watch_sample(out, "remote_node_timeouts_total", (watch_label){"node", node.address},
                     remote_none, node.timeouts);
    watch_family(out, "remote_node_load_seconds", "gauge", "Expected seconds of 1 MiB from it.");
    for (uint32_t i = 0; kvt_remote_node_get(store, i, &node) == KVT_OK; i++)
        watch_sample_seconds(out, "remote_node_load_seconds", (watch_label){"node", node.address},
                             remote_none, node.load_seconds);
}

void watch_remote_write(kvt_store *store, struct watch_text *out)
{
    kvt_remote_stats stats;
    if (store->remote == NULL) return;
    remote_tier_stats(store, &stats);
    for (size_t i = 0; i < sizeof remote_rows / sizeof remote_rows[0]; i++) {
        const remote_row *row = &remote_rows[i];
        uint64_t value;
        memcpy(&value, (const char *)&stats + row->offset, sizeof value);
        watch_single(out, row->name, row->gauge ? "gauge" : "counter", row->help, value);
    }
    watch_family(out, "remote_saved_seconds", "gauge", "Recomputing that the hits have spared.");
    watch_sample_seconds(out, "remote_saved_seconds", remote_none, remote_none,
                         stats.saved_seconds);
    watch_family(out, "remote_survival", "gauge", "Share of copies known to be there and found.");
    watch_sample_seconds(out, "remote_survival", remote_none, remote_none, stats.survival);
    watch_family(out, "remote_load_error", "gauge", "Median error of predicted loads.");
    watch_sample_seconds(out, "remote_load_error", remote_none, remote_none, stats.load_error);
    remote_write_nodes(store, out);
}
