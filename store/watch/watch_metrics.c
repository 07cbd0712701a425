/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch_metrics.c - kvt_metrics_write: tables of what is shown, and what fills them. The names are
 * listed in docs/STORE.md, Watching.
 *
 * Thread rule: any thread; the control lock and the parts' locks are taken one after the other, for
 * as long as copying numbers takes.
 */
#include "store/hosts/remote_tier.h"
#include "store/learn/uses.h"
#include "store/watch/watch_text.h"
#include "store/watch/watching.h"

#include <kvterrace/lookup.h>
#include <string.h>

/* The decision times' buckets, from 128 ns to 17 ms. */
static const watch_scale metrics_decision_scale = {.first = 7, .step = 1, .count = 18};

/* The figures of one call, except those of devices, which are read one device at a time. */
typedef struct metrics_view {
    kvt_store *store;
    kvt_store_stats stats;
    watch_counts counts;
    watch_histogram decisions;
    uint64_t checksum_failures;
    kvt_record_counts scrubbed;
    uint64_t scrub_faults;
    uint64_t refusals[STORE_REFUSAL_COUNT];
    uint64_t moves[STORE_MOVE_COUNT][2];
    uint64_t ssd_written[STORE_WRITE_COUNT];
    uint64_t put_tokens[2];
} metrics_view;

static const watch_label metrics_none = {0};

/* ---- families of one sample ---- */

/* One family: its name without the prefix, its help, and where its number is. */
typedef struct metrics_row {
    const char *name;
    const char *help;
    size_t offset; /* of a uint64_t in the statistics */
    bool gauge;
} metrics_row;

/* Writes the families whose only sample is a member of some statistics. */
static void metrics_write_rows(watch_text *out, const metrics_row *rows, size_t count,
                               const void *stats)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t value;
        memcpy(&value, (const char *)stats + rows[i].offset, sizeof value);
        watch_single(out, rows[i].name, rows[i].gauge ? "gauge" : "counter", rows[i].help, value);
    }
}

/* Writes a family with a sample for each value of a label. */
static void metrics_write_family(watch_text *out, const char *name, const char *type,
                                 const char *help, const char *label, const char *const *values,
                                 const uint64_t *numbers, uint32_t count)
{
    watch_family(out, name, type, help);
    for (uint32_t i = 0; i < count; i++)
        watch_sample(out, name, (watch_label){label, values[i]}, metrics_none, numbers[i]);
}

/* ---- an engine that other hosts share ---- */

#define ROW(member, name, help)                                                                    \
    {                                                                                              \
        name, help, offsetof(kvt_remote_stats, member), false                                      \
    }

static const metrics_row metrics_remote[] = {
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
    ROW(declined, "remote_declined_total", "Entries that are lossy, of groups, or end."),
    ROW(dropped_queue, "remote_dropped_queue_total", "Entries dropped by a full queue."),
    ROW(dropped_node, "remote_dropped_node_total", "Entries dropped because a node failed."),
    ROW(dropped_deletes, "remote_dropped_deletes_total", "Deletions dropped by a full queue."),
    ROW(deleted, "remote_deleted_total", "Objects deleted."),
    ROW(invalidations, "remote_invalidations_total", "Keys that the feed has named."),
    ROW(bytes_in, "remote_received_bytes_total", "Bytes received from nodes."),
    ROW(bytes_out, "remote_sent_bytes_total", "Bytes sent to nodes."),
    ROW(repeated_clears, "remote_repeated_clears_total", "Clears that it had lost, made anew."),
    {"remote_owed_deletes", "Deletions that a node has not taken yet.",
     offsetof(kvt_remote_stats, owed_deletes), true},
    {"remote_owed_clears", "Clears that the engine has not taken yet.",
     offsetof(kvt_remote_stats, owed_clears), true},
    {"remote_waiting", "Entries that wait to be published.", offsetof(kvt_remote_stats, waiting),
     true},
};

/* Writes the families of the engine that other hosts share; none without one. */
static void metrics_write_remote(kvt_store *store, struct watch_text *out)
{
    kvt_remote_stats stats;
    if (store->remote == NULL) return;
    remote_tier_stats(store, &stats);
    metrics_write_rows(out, metrics_remote, sizeof metrics_remote / sizeof metrics_remote[0],
                       &stats);
    watch_family(out, "remote_saved_seconds", "gauge", "Recomputing that the hits have spared.");
    watch_sample_seconds(out, "remote_saved_seconds", metrics_none, metrics_none,
                         stats.saved_seconds);
    watch_family(out, "remote_survival", "gauge", "Share of copies known to be there and found.");
    watch_sample_seconds(out, "remote_survival", metrics_none, metrics_none, stats.survival);
    watch_family(out, "remote_load_error", "gauge", "Median error of predicted loads.");
    watch_sample_seconds(out, "remote_load_error", metrics_none, metrics_none, stats.load_error);
    kvt_remote_node node = {.struct_size = sizeof node};
    watch_family(out, "remote_node_up", "gauge", "1: the node is asked; 0: its breaker is open.");
    for (uint32_t i = 0; kvt_remote_node_get(store, i, &node) == KVT_OK; i++)
        watch_sample(out, "remote_node_up", (watch_label){"node", node.address}, metrics_none,
                     node.breaker == 0);
    watch_family(out, "remote_node_timeouts_total", "counter", "Requests that it did not answer.");
    for (uint32_t i = 0; kvt_remote_node_get(store, i, &node) == KVT_OK; i++)
        watch_sample(out, "remote_node_timeouts_total", (watch_label){"node", node.address},
                     metrics_none, node.timeouts);
    watch_family(out, "remote_node_load_seconds", "gauge", "Expected seconds of 1 MiB from it.");
    for (uint32_t i = 0; kvt_remote_node_get(store, i, &node) == KVT_OK; i++)
        watch_sample_seconds(out, "remote_node_load_seconds", (watch_label){"node", node.address},
                             metrics_none, node.load_seconds);
    watch_family(out, "remote_node_memory_bytes", "gauge", "Memory that it uses, of all it holds.");
    for (uint32_t i = 0; kvt_remote_node_get(store, i, &node) == KVT_OK; i++)
        if (node.eviction[0] != '\0')
            watch_sample(out, "remote_node_memory_bytes", (watch_label){"node", node.address},
                         metrics_none, node.memory_bytes);
    watch_family(out, "remote_node_memory_limit_bytes", "gauge",
                 "What it may use, by the policy that says what goes first then; 0: no bound.");
    for (uint32_t i = 0; kvt_remote_node_get(store, i, &node) == KVT_OK; i++)
        if (node.eviction[0] != '\0')
            watch_sample(out, "remote_node_memory_limit_bytes", (watch_label){"node", node.address},
                         (watch_label){"eviction", node.eviction}, node.memory_bytes_max);
}

/* ---- the store ---- */

/* The label of a tier, which most families have. */
static watch_label metrics_tier(int tier)
{
    return (watch_label){"tier", kvt_tier_name(tier)};
}

#define COUNTER(member, name, help)                                                                \
    {                                                                                              \
        name, help, offsetof(kvt_store_stats, member), false                                       \
    }
#define GAUGE(member, name, help)                                                                  \
    {                                                                                              \
        name, help, offsetof(kvt_store_stats, member), true                                        \
    }

static const metrics_row metrics_rows[] = {
    COUNTER(gets, "gets_total", "Gets."),
    COUNTER(shared_reads, "shared_reads_total", "Gets that waited on another get's read."),
    COUNTER(staged_hits, "staged_hits_total", "Gets copied from the staging of a put."),
    COUNTER(load_failures, "load_failures_total",
            "Loads, of gets and of moves, that failed verification or input and output."),
    COUNTER(puts, "puts_total", "Puts."),
    COUNTER(puts_existing, "puts_existing_total", "Puts of what was stored already."),
    COUNTER(learned.puts_tried, "puts_tried_total",
            "Puts stored against the figures, to time a tier."),
    COUNTER(puts_lost, "puts_lost_total", "Puts that were accepted and could not be stored."),
    COUNTER(expired, "expired_total", "Entries removed after the end of their lifetime."),
    GAUGE(puts_waiting, "puts_waiting", "Puts that have returned and are not written yet."),
    GAUGE(put_staging_bytes, "put_staging_bytes", "Memory of the entries of these puts."),
    GAUGE(staging_bytes, "staging_bytes", "Memory of records in motion."),
    COUNTER(moves.deferred, "moves_deferred_total",
            "Background moves put off for a round because of waited reads."),
    COUNTER(evictions, "evictions_total", "Entries that left for room."),
    COUNTER(given_up, "given_up_total", "Entries dropped for the room of a put."),
    GAUGE(backing_off, "backing_off", "Entries that no plan moves for a while."),
    COUNTER(relayouts.records, "relayouts_total", "Records laid out anew in their tier."),
    COUNTER(relayouts.bytes, "relayout_bytes_total", "Bytes of these."),
    GAUGE(copies.count, "copies", "Records on SSD beside entries above."),
    GAUGE(copies.bytes, "copy_bytes", "Bytes of these."),
    COUNTER(copies.kept, "copies_kept_total", "Copies that promotions left behind."),
    COUNTER(copies.dropped, "copies_dropped_total", "Copies that made way."),
    COUNTER(copies.demotions, "copy_demotions_total", "Demotions that found their record on SSD."),
    COUNTER(copies.evictions, "copy_evictions_total", "Evictions that left the record on SSD."),
    COUNTER(copies.fallbacks, "copy_fallbacks_total", "Failed loads that the copy stood in for."),
    COUNTER(persisted.records, "persisted_total", "Records written back to SSD."),
    COUNTER(persisted.bytes, "persisted_bytes_total", "Bytes of these."),
    COUNTER(quarantined, "quarantined_total", "Entries set aside because a device went."),
    COUNTER(readmitted, "readmitted_total", "Entries that came back with their device."),
    COUNTER(recovered, "recovered_total", "Entries taken over from the catalog at open."),
    GAUGE(catalog_log_bytes, "catalog_log_bytes", "Bytes of the log beside the catalog."),
    COUNTER(recovery_drops, "recovery_drops_total", "Rows of the catalog dropped at open."),
};

/* ---- families by reason, kind and outcome ---- */

/* Writes moves by purpose and outcome, then why some failed; the order of the names is
 * store_move_purpose's. */
static void metrics_write_moves(watch_text *out, const metrics_view *view)
{
    static const char *const kinds[STORE_MOVE_COUNT] = {"put", "promotion", "demotion", "recode",
                                                        "eviction"};
    static const char *const outcomes[2] = {"committed", "aborted"};
    watch_family(out, "moves_total", "counter", "Moves of plans.");
    for (int i = 0; i < STORE_MOVE_COUNT; i++)
        for (int j = 0; j < 2; j++)
            watch_sample(out, "moves_total", (watch_label){"kind", kinds[i]},
                         (watch_label){"outcome", outcomes[j]}, view->moves[i][j]);
    static const char *const causes[STORE_WRITE_COUNT] = {"put", "demotion", "recode", "copy",
                                                          "relayout"};
    metrics_write_family(out, "ssd_written_bytes_total", "counter",
                         "Bytes of records that were written to SSD and kept.", "cause", causes,
                         view->ssd_written, STORE_WRITE_COUNT);
    const kvt_store_stats *stats = &view->stats;
    static const char *const reasons[] = {"device", "space", "memory", "larger"};
    const uint64_t failures[] = {stats->moves.failed_io, stats->moves.failed_space,
                                 stats->moves.failed_memory, stats->moves.failed_larger};
    metrics_write_family(out, "move_failures_total", "counter",
                         "Moves that failed; the other aborted ones were planned behind them.",
                         "reason", reasons, failures, 4);
}

/* Writes leases that are open, what they hold, and how the others ended. */
static void metrics_write_leases(watch_text *out, const metrics_view *view)
{
    const kvt_lease_stats *leases = &view->stats.leases;
    watch_single(out, "leases", "gauge", "Leases that are open.", leases->leases);
    watch_single(out, "leased_entries", "gauge", "Entries that they hold.", leases->entries);
    watch_family(out, "leased_bytes", "gauge", "Bytes of these.");
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        if (view->store->pools[tier] != NULL)
            watch_sample(out, "leased_bytes", metrics_tier(tier), metrics_none,
                         leases->bytes[tier]);
    watch_single(out, "leases_granted_total", "counter", "Leases.", leases->granted);
    static const char *const ends[] = {"release", "time"};
    const uint64_t ended[] = {leases->released, leases->ran_out};
    metrics_write_family(out, "leases_ended_total", "counter", "Leases that have ended.", "by",
                         ends, ended, 2);
    watch_single(out, "lease_refusals_total", "counter",
                 "Entries that no lease could hold: the bound was reached.", leases->refused_bound);
    watch_single(out, "leased_entries_lost_total", "counter",
                 "Entries that were lost while a lease held them.", leases->lost);
}

/* Writes hints by kind and by what became of them; the order of the names is kvt_hint_kind's. */
static void metrics_write_hints(watch_text *out, const kvt_store_stats *stats)
{
    const kvt_hint_stats *hints = &stats->policy.hints;
    static const char *const kinds[KVT_HINT_KINDS] = {"retain", "next_use", "demote",
                                                      "session_end"};
    watch_family(out, "hints_total", "counter", "Hints that were judged, or dropped before that.");
    for (int kind = 0; kind < KVT_HINT_KINDS; kind++) {
        const watch_label label = {"kind", kinds[kind]};
        watch_sample(out, "hints_total", label, (watch_label){"outcome", "came_true"},
                     hints->came_true[kind]);
        watch_sample(out, "hints_total", label, (watch_label){"outcome", "failed"},
                     hints->failed[kind]);
        watch_sample(out, "hints_total", label, (watch_label){"outcome", "dropped"},
                     hints->dropped[kind]);
    }
    metrics_write_family(out, "hints_open", "gauge", "Hints that nothing is known of yet.", "kind",
                         kinds, hints->open, KVT_HINT_KINDS);
    watch_single(out, "hints_skipped_total", "counter", "Hints of keys that were not stored.",
                 stats->hints_skipped);
}

/* ---- families by tier ---- */

/* Families by tier, of members of kvt_tier_stats. */
static const metrics_row metrics_tier_rows[] = {
    {"entries", "Entries.", offsetof(kvt_tier_stats, entries), true},
    {"used_bytes", "Extents held, reservations included.", offsetof(kvt_tier_stats, used_bytes),
     true},
    {"capacity_bytes", "Room of the tier.", offsetof(kvt_tier_stats, capacity_bytes), true},
    {"read_bytes_total", "Bytes read from the tier's devices.",
     offsetof(kvt_tier_stats, bytes_read), false},
    {"written_bytes_total", "Bytes written to the tier's devices.",
     offsetof(kvt_tier_stats, bytes_written), false},
    {"loads_total", "Gets that read for themselves.", offsetof(kvt_tier_stats, loads.loads), false},
};

/* Whether the store has devices in a tier; others have no samples. */
static bool metrics_has_tier(const metrics_view *view, int tier)
{
    return tier < KVT_TIER_COUNT && view->store->pools[tier] != NULL;
}

/* Writes the families with one sample for each tier. A tier without devices has hits all the same
 * when gets were copied from a put's staging, which counts as DRAM. */
static void metrics_write_tiers(watch_text *out, const metrics_view *view)
{
    for (size_t i = 0; i < sizeof metrics_tier_rows / sizeof metrics_tier_rows[0]; i++) {
        const metrics_row *row = &metrics_tier_rows[i];
        watch_family(out, row->name, row->gauge ? "gauge" : "counter", row->help);
        for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
            uint64_t value;
            if (!metrics_has_tier(view, tier)) continue;
            memcpy(&value, (const char *)&view->stats.tiers[tier] + row->offset, sizeof value);
            watch_sample(out, row->name, metrics_tier(tier), metrics_none, value);
        }
    }
    const uint64_t *values[2] = {view->counts.hit_tokens, view->counts.hit_bytes};
    static const char *const names[2] = {"hit_tokens_total", "hit_bytes_total"};
    static const char *const helps[2] = {"Tokens of the entries that gets were served.",
                                         "Bytes that gets were served, decoded."};
    for (int family = 0; family < 2; family++) {
        watch_family(out, names[family], "counter", helps[family]);
        for (int tier = KVT_TIER_HBM; tier < WATCH_TIERS; tier++)
            if (metrics_has_tier(view, tier) || values[family][tier] != 0)
                watch_sample(out, names[family], metrics_tier(tier), metrics_none,
                             values[family][tier]);
    }
}

/* Predicted against achieved. */
static void metrics_write_predictions(watch_text *out, const metrics_view *view)
{
    static const char *const names[2] = {"load_predicted_seconds_total",
                                         "load_achieved_seconds_total"};
    static const char *const helps[2] = {"What loads were expected to take.", "What they took."};
    for (int family = 0; family < 2; family++) {
        watch_family(out, names[family], "counter", helps[family]);
        for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
            const kvt_load_stats *loads = &view->stats.tiers[tier].loads;
            if (metrics_has_tier(view, tier))
                watch_sample_seconds(out, names[family], metrics_tier(tier), metrics_none,
                                     family == 0 ? loads->predicted_seconds
                                                 : loads->achieved_seconds);
        }
    }
    watch_family(out, "load_error_ratio", "gauge",
                 "|predicted - achieved| / achieved of loads lately; so large a share is within.");
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        const kvt_load_stats *loads = &view->stats.tiers[tier].loads;
        if (!metrics_has_tier(view, tier) || loads->loads == 0) continue;
        watch_sample_seconds(out, "load_error_ratio", metrics_tier(tier),
                             (watch_label){"share", "0.5"}, loads->error_p50);
        watch_sample_seconds(out, "load_error_ratio", metrics_tier(tier),
                             (watch_label){"share", "0.9"}, loads->error_p90);
    }
}

/* ---- families by device ---- */

#define METRICS_DEVICE_FIELDS 14

static const struct {
    const char *name;
    const char *help;
    bool gauge;
} metrics_devices[METRICS_DEVICE_FIELDS] = {
    {"device_up", "1: it serves; 0: it is out of service or absent.", true},
    {"device_read_bytes_total", "Bytes read.", false},
    {"device_written_bytes_total", "Bytes written.", false},
    {"device_requests_total", "Requests.", false},
    {"device_used_bytes", "Extents held.", true},
    {"device_capacity_bytes", "Size of the device.", true},
    {"device_pending_bytes", "Bytes queued and not finished.", true},
    {"device_depth_achieved", "The most operations that were in flight at once.", true},
    {"device_depth_max", "Operations in flight at once, at most.", true},
    {"device_read_bytes_per_second", "As achieved while busy.", true},
    {"device_write_bytes_per_second", "As achieved while busy.", true},
    {"device_scrub_faults_total", "Damaged segments that lay on it alone.", false},
    {"device_write_budget_beyond_bytes_total", "Written although a budget in shadow was spent.",
     false},
    {"device_tag_faults_total", "Encrypted units that were not what was written.", false},
};

/* Writes family by family, as the format demands: devices are asked anew for each, so figures of
 * one device may be of slightly different moments. */
static void metrics_write_devices(watch_text *out, const metrics_view *view)
{
    for (int field = 0; field < METRICS_DEVICE_FIELDS; field++) {
        const char *name = metrics_devices[field].name;
        watch_family(out, name, metrics_devices[field].gauge ? "gauge" : "counter",
                     metrics_devices[field].help);
        kvt_device_stats device = {.struct_size = sizeof device};
        for (size_t i = 0; kvt_device_stats_get(view->store, i, &device) == KVT_OK; i++) {
            const uint64_t values[METRICS_DEVICE_FIELDS] = {!device.retired,
                                                            device.bytes_read,
                                                            device.bytes_written,
                                                            device.requests,
                                                            device.used_bytes,
                                                            device.facts.capacity_bytes,
                                                            device.pending_bytes,
                                                            device.facts.depth_achieved,
                                                            device.facts.depth_max,
                                                            (uint64_t)device.read_bytes_per_s,
                                                            (uint64_t)device.write_bytes_per_s,
                                                            device.scrub_faults,
                                                            device.write_budget_beyond_bytes,
                                                            device.tag_faults};
            watch_sample(out, name, metrics_tier((int)device.tier),
                         (watch_label){"device", device.name}, values[field]);
        }
    }
}

/* ---- all of it ---- */

/* Counters before and after the store's own may differ by what happens in between. */
static kvt_status metrics_gather(kvt_store *store, metrics_view *view)
{
    memset(view, 0, sizeof *view);
    view->store = store;
    view->stats.struct_size = sizeof view->stats;
    kvt_status status = kvt_store_stats_get(store, &view->stats);
    if (status != KVT_OK) return status;
    pthread_mutex_lock(&store->lock);
    const store_tallies *tallies = &store->tallies;
    /* The buckets of the store's decision times, of which 16 make one octave, as octaves. Lock
     * held. */
    memset(&view->decisions, 0, sizeof view->decisions);
    const watch_scale *scale = &metrics_decision_scale;
    for (uint32_t i = 0; i < STORE_TIMES; i++) {
        const uint32_t octave = i < 16 ? 0 : i / 16 + 3; /* from 2^octave to twice that */
        uint32_t bucket = octave < scale->first ? 0 : octave + 1 - scale->first;
        if (bucket > scale->count) bucket = scale->count;
        view->decisions.buckets[bucket] += tallies->decision_times[i];
    }
    view->decisions.sum = tallies->decision_ns;
    view->checksum_failures = tallies->checksum_failures;
    view->scrubbed = store->scrub.read;
    view->scrub_faults = store->scrub.damaged;
    memcpy(view->refusals, tallies->refusals, sizeof view->refusals);
    memcpy(view->moves, tallies->outcomes, sizeof view->moves);
    memcpy(view->ssd_written, tallies->ssd_written, sizeof view->ssd_written);
    memcpy(view->put_tokens, tallies->put_tokens, sizeof view->put_tokens);
    pthread_mutex_unlock(&store->lock);
    watch_sum(store, &view->counts);
    return KVT_OK;
}

size_t kvt_metrics_write(kvt_store *store, char *text, size_t size)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return other->metrics != NULL ? other->metrics(store, text, size) : 0;
    if (store == NULL || !fork_guard_is_ours(store)) return 0;
    watch_text out = {.text = text, .size = text != NULL ? size : 0};
    metrics_view view;
    if (metrics_gather(store, &view) != KVT_OK) return 0;
    watch_family(&out, "build_info", "gauge", "1, with the version of the library that runs.");
    watch_sample(&out, "build_info", (watch_label){"version", kvt_version()}, metrics_none, 1);
    watch_family(&out, "open_seconds", "gauge", "Seconds since the store was opened.");
    watch_sample_seconds(&out, "open_seconds", metrics_none, metrics_none,
                         (double)(store_now_ns(store) - STORE_PAST_NS) * 1e-9);
    /* Write hits by tier and form. A form that was never read has no sample: the product of tiers
     * and forms is large, and nearly all of it stays 0. */
    watch_family(&out, "hits_total", "counter", "Gets that were served, by the variant read.");
    for (int tier = KVT_TIER_HBM; tier < WATCH_TIERS; tier++) {
        for (uint32_t form = 0; form < WATCH_FORMS; form++) {
            char name[64] = "other";
            const uint64_t hits = view.counts.hits[tier][form];
            if (hits == 0) continue;
            if (form < view.store->costs.variant_count)
                (void)kvt_variant_format(view.store->costs.variants[form].variant, name,
                                         sizeof name);
            watch_sample(&out, "hits_total", metrics_tier(tier), (watch_label){"form", name}, hits);
        }
    }
    static const char *const misses[WATCH_MISS_COUNT] = {
        "absent", "corrupt", "device", "deadline", "refused_tokens", "refused_loss", "lacks_basis"};
    metrics_write_family(&out, "misses_total", "counter", "Gets that were misses.", "reason",
                         misses, view.counts.misses, WATCH_MISS_COUNT);
    metrics_write_family(&out, "missed_bytes_total", "counter", "Bytes that they asked for.",
                         "reason", misses, view.counts.missed_bytes, WATCH_MISS_COUNT);
    metrics_write_tiers(&out, &view);
    metrics_write_predictions(&out, &view);
    static const char *const entries[] = {"existing", "new"};
    metrics_write_family(&out, "put_tokens_total", "counter",
                         "Tokens of puts; those of new entries were computed.", "entry", entries,
                         view.put_tokens, 2);
    static const char *const reasons[STORE_REFUSAL_COUNT] = {
        "policy", "learned", "no_device", "staging", "backlog", "in_motion", "parent"};
    metrics_write_family(&out, "put_refusals_total", "counter", "Puts that were refused.", "reason",
                         reasons, view.refusals, STORE_REFUSAL_COUNT);
    metrics_write_moves(&out, &view);
    metrics_write_leases(&out, &view);
    metrics_write_hints(&out, &view.stats);
    metrics_write_rows(&out, metrics_rows, sizeof metrics_rows / sizeof metrics_rows[0],
                       &view.stats);
    watch_single(&out, "checksum_failures_total", "counter",
                 "Loads whose checksum or format was wrong.", view.checksum_failures);
    watch_single(&out, "scrubbed_total", "counter", "Records on SSD that the scrub has read.",
                 view.scrubbed.records);
    watch_single(&out, "scrubbed_bytes_total", "counter", "Bytes of these.", view.scrubbed.bytes);
    watch_single(&out, "scrub_faults_total", "counter", "Of these, the damaged records.",
                 view.scrub_faults);
    metrics_write_devices(&out, &view);
    watch_family(&out, "get_seconds", "histogram", "Seconds of gets that were served.");
    watch_histogram_print(&out, "get_seconds", &watch_get_scale, &view.counts.get_ns, true);
    watch_family(&out, "load_bytes", "histogram", "Bytes that gets read, as stored.");
    watch_histogram_print(&out, "load_bytes", &watch_load_scale, &view.counts.load_bytes, false);
    watch_family(&out, "decision_seconds", "histogram", "Seconds of the policy's decisions.");
    watch_histogram_print(&out, "decision_seconds", &metrics_decision_scale, &view.decisions, true);
    metrics_write_remote(store, &out);
    return out.used + 1;
}
