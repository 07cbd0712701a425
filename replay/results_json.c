/* SPDX-License-Identifier: Apache-2.0 */
/*
 * results_json.c - the JSON document of a replay, schema "kvterrace-replay-1".
 *
 * Times are seconds, sizes bytes, ratios shares of 1. A mean that does not exist (the queue grows
 * at rho or rho_peak >= 1) is null. The configuration is echoed whole, so that a document says
 * how to make it again. One thread.
 */
#include "document.h"
#include "replay.h"
#include "results.h"
#include "store/core/options.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static const char *const json_reuse_keys[KVT_REUSE_KINDS] = {"count", "age"};

static json_t *json_hash(uint64_t hash)
{
    return json_sprintf("%016llx", (unsigned long long)hash);
}

static json_t *json_variant(kvt_variant variant)
{
    char name[96];
    (void)kvt_variant_format(variant, name, sizeof name);
    return json_string(name);
}

/* ---- results ---- */

#define NAMED(key, member) DOCUMENT_FIELD(replay_result, key, member)
#define FIELD(member)      NAMED(#member, member)

static void json_put_times(json_t *object, const replay_result *result, bool *sound)
{
    const replay_times *times = &result->times;
    const double none = NAN;
    bool stable = results_has_mean(result);
    document_put(object, "ttft_s_mean", document_number(stable ? times->ttft_mean : none), sound);
    document_put(object, "wait_s_mean", document_number(stable ? times->wait_mean : none), sound);
    DOCUMENT_PUT_FIELDS(
        object, result, sound, NAMED("ttft_s_p50", times.ttft_p50),
        NAMED("ttft_s_p90", times.ttft_p90), NAMED("ttft_s_p99", times.ttft_p99),
        NAMED("ttft_s_max", times.ttft_max), NAMED("service_ttft_s_mean", times.service_mean),
        NAMED("compute_s_mean", times.compute_mean), NAMED("blocked_io_s_mean", times.blocked_mean),
        FIELD(rho), FIELD(rho_peak), FIELD(span_s));
    json_t *cdf = json_array();
    for (uint32_t i = 0; i < REPLAY_CDF_POINTS; i++)
        document_add(cdf, document_number(times->ttft_cdf[i]), sound);
    document_put(object, "ttft_s_percentiles", cdf, sound);
}

static void json_put_traffic(json_t *object, const replay_result *result, bool *sound)
{
    DOCUMENT_PUT_FIELDS(object, result, sound, FIELD(used_token_ratio), FIELD(quality_mean),
                        FIELD(quality_p10), FIELD(ideal_block_ratio), FIELD(prefetch_offered),
                        FIELD(prefetch_moved), FIELD(footprint_bytes));
#define TIERS(key, first)                                                                          \
    document_put(object, #key, DOCUMENT_TIERS(result->key, first, sound), sound)
    TIERS(hit_block_ratio, 0);
    TIERS(hit_token_ratio, 0);
    TIERS(bytes_read, 1);
    TIERS(bytes_written, 1);
    TIERS(moved_bytes_read, 1);
    TIERS(capacity_bytes, 1);
    TIERS(peak_bytes, 1);
    TIERS(write_lag_s_max, 1);
    double capacity = 0.0;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
        capacity += (double)result->capacity_bytes[tier];
    const double share = result->footprint_bytes > 0.0 ? capacity / result->footprint_bytes : NAN;
    document_put(object, "capacity_over_footprint", document_number(share), sound);
}

/* Absent without hints. */
static void json_put_hints(json_t *object, const kvt_hint_stats *hints, bool *sound)
{
    static const char *const kinds[KVT_HINT_KINDS] = {"retain", "next_use", "demote",
                                                      "session_end"};
    json_t *all = json_object();
    for (int kind = 0; kind < KVT_HINT_KINDS; kind++) {
        if (hints->given[kind] == 0) continue;
        document_put(all, kinds[kind],
                     json_pack("{s:I, s:I, s:I, s:I, s:I}", "given", (json_int_t)hints->given[kind],
                               "came_true", (json_int_t)hints->came_true[kind], "failed",
                               (json_int_t)hints->failed[kind], "open",
                               (json_int_t)hints->open[kind], "dropped",
                               (json_int_t)hints->dropped[kind]),
                     sound);
    }
    if (json_object_size(all) > 0)
        document_put(object, "hints", all, sound);
    else
        json_decref(all);
}

/* The engine's refusals by reason; those of a full write backlog are puts_busy. */
static void json_put_refusals(json_t *object, const replay_result *result, bool *sound)
{
    static const char *const reasons[KVT_REFUSALS] = {"prefix", "price", "cost", "room", "plan"};
    json_t *all = json_object();
    for (int reason = 0; reason < KVT_REFUSALS; reason++)
        document_put(all, reasons[reason], json_integer((json_int_t)result->refused_for[reason]),
                     sound);
    document_put(object, "refused_for", all, sound);
}

static void json_put_work(json_t *object, const replay_result *result, bool *sound)
{
    DOCUMENT_PUT_FIELDS(
        object, result, sound, FIELD(decisions), FIELD(decision_ns_p50), FIELD(decision_ns_p99),
        FIELD(puts), FIELD(refused), FIELD(puts_busy), FIELD(promotions), FIELD(demotions),
        FIELD(evictions), NAMED("moves_planned", moves), FIELD(moves_committed),
        FIELD(moves_aborted), FIELD(requests), FIELD(requests_skipped), FIELD(block_refs),
        FIELD(distinct_blocks), FIELD(block_refs_per_s), FIELD(loop_s), FIELD(seed));
    json_put_hints(object, &result->hints, sound);
    json_put_refusals(object, result, sound);
    /* The plans of a live run follow from wall-clock times: no hash could repeat. */
    bool live = strcmp(result->mode, "live") == 0;
    document_put(object, "plan_hash", live ? json_null() : json_hash(result->plan_hash), sound);
    if (result->plan_log[0] != '\0')
        document_put(object, "plan_log", json_string(result->plan_log), sound);
}

/* A regret beside what capacity costs whatever the policy: ideal less bound. */
static void json_put_regret(json_t *object, const char *name, double seconds, double limits_s,
                            bool *sound)
{
    char key[64];
    snprintf(key, sizeof key, "regret_%s_s", name);
    document_put(object, key, document_number(seconds), sound);
    snprintf(key, sizeof key, "regret_%s_relative", name);
    document_put(object, key, document_number(limits_s > 0.0 ? seconds / limits_s : NAN), sound);
}

static void json_put_regrets(json_t *object, const replay_result *result, bool *sound)
{
    const replay_bound *bound = &result->bound;
    document_put(object, "achieved_saved_s_per_request", document_number(result->saved_s), sound);
    if (!bound->known) return;
    DOCUMENT_PUT_FIELDS(object, result, sound, NAMED("recompute_s_per_request", bound.recompute_s),
                        NAMED("ideal_saved_s_per_request", bound.ideal_s),
                        NAMED("bound_saved_s_per_request", bound.interval_s),
                        NAMED("bound_moving_saved_s_per_request", bound.moving_s),
                        FIELD(gap_solver), FIELD(gap_counters), FIELD(gap_foresight),
                        NAMED("bound_intervals", bound.intervals),
                        NAMED("bound_found_s", bound.seconds),
                        NAMED("belady_block_ratio", bound.belady_block_ratio));
    document_put(object, "bound_cost_s_per_request",
                 document_number(bound->recompute_s - bound->interval_s), sound);
    document_put(object, "bound_price", DOCUMENT_TIERS(bound->price, 0, sound), sound);
    double limits_s = bound->ideal_s - bound->interval_s;
    json_put_regret(object, "solver", result->regret_solver_s, limits_s, sound);
    json_put_regret(object, "counters", result->regret_counters_s, limits_s, sound);
    json_put_regret(object, "foresight", result->regret_foresight_s, limits_s, sound);
    json_put_regret(object, "online", bound->interval_s - result->saved_s, limits_s, sound);
}

/* How far predicted load seconds were off, relatively; requests: all loads of one. */
static json_t *json_prediction(const replay_result *result, bool *sound)
{
    json_t *object = json_object();
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        if (result->loads[tier].loads == 0) continue;
        json_t *one = json_object();
        DOCUMENT_PUT_FIELDS(one, &result->loads[tier], sound,
                            DOCUMENT_FIELD(kvt_load_stats, "loads", loads),
                            DOCUMENT_FIELD(kvt_load_stats, "predicted_s", predicted_seconds),
                            DOCUMENT_FIELD(kvt_load_stats, "achieved_s", achieved_seconds),
                            DOCUMENT_FIELD(kvt_load_stats, "error_p50", error_p50),
                            DOCUMENT_FIELD(kvt_load_stats, "error_p90", error_p90));
        document_put(object, tier == 0 ? "requests" : document_tier_keys[tier], one, sound);
    }
    return object;
}

/* Gets by form and tier, in runs over a store with a ladder. */
static json_t *json_forms(const replay_result *result, bool *sound)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < result->form_count; i++) {
        const replay_form *form = &result->forms[i];
        json_t *one = DOCUMENT_TIERS(form->gets, 1, sound);
        document_put(one, "form", json_variant(form->variant), sound);
        DOCUMENT_PUT_FIELDS(one, form, sound, DOCUMENT_FIELD(replay_form, "tokens", tokens),
                            DOCUMENT_FIELD(replay_form, "tokens_kept", tokens_kept));
        document_add(list, one, sound);
    }
    return list;
}

static void json_put_live(json_t *object, const replay_result *result, bool *sound)
{
    DOCUMENT_PUT_FIELDS(object, result, sound, FIELD(scale), FIELD(wall_s), FIELD(verified_gets),
                        FIELD(wrong_bytes), FIELD(failed_puts), FIELD(load_failures),
                        FIELD(moves_match), NAMED("put_s_mean", put_mean_s),
                        NAMED("curves_reopened", reopened));
    TIERS(emulated, 1);
    document_put(object, "load_prediction", json_prediction(result, sound), sound);
    if (result->form_count != 0) document_put(object, "forms", json_forms(result, sound), sound);
}
#undef TIERS
#undef FIELD
#undef NAMED

static json_t *json_numbers(const double *numbers, int count, bool *sound)
{
    json_t *list = json_array();
    for (int k = 0; k < count; k++)
        document_add(list, json_real(numbers[k]), sound);
    return list;
}

/* {"uses", "half_life_s": [6], "count": [6], "age_s": [33], "hazard": [4][32]}; null when the
 * policy has learned nothing. */
static json_t *json_learned(const kvt_reuse_weights *reuse, bool *sound)
{
    if (reuse->uses == 0) return json_null();
    json_t *object = json_object();
    document_put(object, "uses", json_integer((json_int_t)reuse->uses), sound);
    document_put(object, "half_life_s",
                 json_numbers(reuse->half_life_seconds, KVT_REUSE_HALF_LIVES, sound), sound);
    document_put(object, "count", json_numbers(reuse->weight, KVT_REUSE_HALF_LIVES, sound), sound);
    document_put(object, "age_s", json_numbers(reuse->age_seconds, KVT_REUSE_AGES + 1, sound),
                 sound);
    json_t *rows = json_array();
    for (int turn = 0; turn < KVT_REUSE_TURNS; turn++)
        document_add(rows, json_numbers(reuse->hazard[turn], KVT_REUSE_AGES, sound), sound);
    document_put(object, "hazard", rows, sound);
    return object;
}

static json_t *json_explained(const replay_explained *row)
{
    const kvt_explanation *why = &row->why;
    json_t *expert = json_null();
    if (why->reuse_expert != NULL) {
        expert = json_pack("{s:s, s:s, s:f, s:f, s:f}", "kind", json_reuse_keys[why->reuse_kind],
                           "says", why->reuse_expert, "half_life_s", why->reuse_half_life_seconds,
                           "weight", why->reuse_weight, "share_of_rate", why->reuse_share);
    }
    return json_pack("{s:I, s:s, s:o, s:f, s:f, s:s, s:o}", "block", (json_int_t)row->block, "tier",
                     kvt_tier_name(row->tier), "variant",
                     json_variant(why->options[why->current].option.variant), "uses_per_s",
                     why->accesses_per_s, "last_use_s_ago", why->last_access_age_seconds, "reason",
                     why->reason != NULL ? why->reason : "", "reuse_expert", expert);
}

/* The counts of one host, or of all of them. */
static json_t *json_host(const replay_host *host, bool *sound)
{
#define FIELD(member) DOCUMENT_FIELD(replay_host, #member, member)
    json_t *object = json_object();
    DOCUMENT_PUT_FIELDS(object, host, sound, FIELD(requests), FIELD(block_refs),
                        FIELD(local_blocks), FIELD(remote_blocks), FIELD(fetched_blocks),
                        FIELD(fetched_bytes), FIELD(published_blocks), FIELD(published_bytes),
                        DOCUMENT_FIELD(replay_host, "ttft_s_mean", ttft_mean));
#undef FIELD
    return object;
}

/* What the writes of layered loads' drives did. */
static json_t *json_drive(const replay_drive *drive, bool *sound)
{
#define FIELD(member) DOCUMENT_FIELD(replay_drive, #member, member)
#define WHY(member)   DOCUMENT_FIELD(kvt_io_decisions, #member, member)
    json_t *object = json_object(), *decisions = json_object();
    DOCUMENT_PUT_FIELDS(object, drive, sound, FIELD(writes), FIELD(writes_deferred),
                        FIELD(bytes_deferred), FIELD(write_wait_s_mean), FIELD(write_wait_s_max));
    DOCUMENT_PUT_FIELDS(decisions, &drive->decisions, sound, WHY(idle), WHY(fits), WHY(share),
                        WHY(waits_reads), WHY(waits_layers), WHY(waits_grain), WHY(waits_turn));
    document_put(object, "decisions", decisions, sound);
    return object;
#undef FIELD
#undef WHY
}

/* What several hosts did, together and by host. */
static json_t *json_hosts(const replay_hosts *hosts, bool *sound)
{
#define NAMED(key, member) DOCUMENT_FIELD(replay_hosts, key, member)
    json_t *object = json_object(), *rows = json_array();
    DOCUMENT_PUT_FIELDS(
        object, hosts, sound, NAMED("count", count), NAMED("found_block_ratio", found_ratio),
        NAMED("local_block_ratio", local_ratio), NAMED("remote_block_ratio", remote_ratio),
        NAMED("written_blocks_per_use", written_per_use), NAMED("probes", probes),
        NAMED("offered", offered), NAMED("deduplicated", deduplicated), NAMED("declined", declined),
        NAMED("dropped", dropped), NAMED("written_twice", twice), NAMED("evicted", evicted),
        NAMED("peak_bytes", peak_bytes), NAMED("load_error_p50", load_error));
#undef NAMED
    document_put(object, "all", json_host(&hosts->all, sound), sound);
    for (uint32_t i = 0; i < hosts->count; i++)
        document_add(rows, json_host(&hosts->rows[i], sound), sound);
    document_put(object, "rows", rows, sound);
    return object;
}

static json_t *json_result(const replay_result *result, bool *sound)
{
    json_t *object = json_object();
    document_put(object, "policy", json_string(result->policy), sound);
    document_put(object, "mode", json_string(result->mode), sound);
    json_put_times(object, result, sound);
    json_put_traffic(object, result, sound);
    json_put_work(object, result, sound);
    document_put(object, "reuse", json_learned(&result->reuse, sound), sound);
    json_t *explained = result->explained_count > 0 ? json_array() : NULL;
    for (uint32_t i = 0; i < result->explained_count; i++)
        document_add(explained, json_explained(&result->explained[i]), sound);
    if (explained != NULL) document_put(object, "explained", explained, sound);
    if (result->drive.known)
        document_put(object, "drive", json_drive(&result->drive, sound), sound);
    if (result->hosts.count > 0)
        document_put(object, "hosts", json_hosts(&result->hosts, sound), sound);
    if (strcmp(result->mode, "live") == 0)
        json_put_live(object, result, sound);
    else
        json_put_regrets(object, result, sound);
    return object;
}

/* ---- configuration and workload ---- */

/* The tiers of a live run: what its store was opened with, before scaling. */
static json_t *json_store_tiers(const kvt_store_options *store, bool *sound)
{
    json_t *tiers = json_object();
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        const kvt_tier_options *row = &store->tiers[tier];
        if (row->capacity_bytes == 0 && row->device_count == 0) continue;
        json_t *object = json_object(), *devices = json_array();
        for (uint32_t i = 0; i < row->device_count; i++) {
            const kvt_device_config *device = &row->devices[i];
            json_t *one = json_pack("{s:s, s:s, s:s?, s:I, s:I, s:I, s:f}", "name", device->name,
                                    "backend", device->backend, "path", device->path,
                                    "capacity_bytes", (json_int_t)device->capacity_bytes,
                                    "read_cap_bytes_per_s", (json_int_t)device->read_bytes_per_s,
                                    "write_cap_bytes_per_s", (json_int_t)device->write_bytes_per_s,
                                    "added_latency_s", (double)device->latency_ns * 1e-9);
            document_add(devices, one, sound);
        }
        DOCUMENT_PUT_FIELDS(object, row, sound,
                            DOCUMENT_FIELD(kvt_tier_options, "capacity_bytes", capacity_bytes),
                            DOCUMENT_FIELD(kvt_tier_options, "unit_bytes", unit_bytes));
        document_put(object, "devices", devices, sound);
        document_put(tiers, document_tier_keys[tier], object, sound);
    }
    return tiers;
}

static json_t *json_tiers(const replay_options *options, bool *sound)
{
#define NAMED(key, member) DOCUMENT_FIELD(replay_tier, key, member)
    json_t *tiers = json_object();
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        const replay_tier *model = &options->tiers[tier];
        if (model->capacity_bytes == 0) continue;
        json_t *object = json_object();
        DOCUMENT_PUT_FIELDS(object, model, sound, NAMED("capacity_bytes", capacity_bytes),
                            NAMED("read_bytes_per_s", read.bytes_per_s),
                            NAMED("read_request_s", read.request_seconds),
                            NAMED("write_bytes_per_s", write.bytes_per_s),
                            NAMED("write_request_s", write.request_seconds));
        document_put(tiers, document_tier_keys[tier], object, sound);
    }
    return tiers;
#undef NAMED
}

#define NAMED(key, member) DOCUMENT_FIELD(replay_options, key, member)
#define FIELD(member)      NAMED(#member, member)

/* Hosts, routing and the shared tier, of a simulation that has several hosts or that tier. */
static void json_put_hosts(json_t *object, const replay_options *options, bool *sound)
{
    static const char *const publish[] = {"all", "second_use", "leaving"};
    const replay_remote *remote = &options->remote;
    if (!replay_has_hosts(options)) return;
    char route[RESULTS_TEXT_BYTES];
    DOCUMENT_PUT_FIELDS(object, options, sound, FIELD(hosts), FIELD(restart));
    document_put(object, "route", json_string(results_format_route(options, route)), sound);
    if (remote->capacity_bytes == 0) return;
    json_t *one = json_object();
    DOCUMENT_PUT_FIELDS(one, options, sound, NAMED("capacity_bytes", remote.capacity_bytes),
                        NAMED("nodes", remote.nodes),
                        NAMED("node_bytes_per_s", remote.node_bytes_per_s),
                        NAMED("host_bytes_per_s", remote.host_bytes_per_s),
                        NAMED("latency_s", remote.latency_seconds),
                        NAMED("write_bytes_per_s", remote.write_bytes_per_s));
    document_put(one, "publish", json_string(publish[remote->publish]), sound);
    document_put(object, "remote", one, sound);
}

static json_t *json_variants(const replay_options *options, bool *sound)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < options->model.variant_count; i++) {
        const kvt_codec_curve *curve = &options->model.variants[i];
        json_t *object = json_object();
        document_put(object, "name", json_variant(curve->variant), sound);
        DOCUMENT_PUT_FIELDS(
            object, curve, sound, DOCUMENT_FIELD(kvt_codec_curve, "stored_share", stored_share),
            DOCUMENT_FIELD(kvt_codec_curve, "decode_bytes_per_s", decode_bytes_per_s),
            DOCUMENT_FIELD(kvt_codec_curve, "loss", loss),
            DOCUMENT_FIELD(kvt_codec_curve, "loss_upper", loss_upper));
        document_add(list, object, sound);
    }
    return list;
}

static json_t *json_configuration(const replay_report *report, bool *sound)
{
    const replay_options *options = report->options;
    json_t *object = json_object();
    DOCUMENT_PUT_FIELDS(object, options, sound, FIELD(servers), FIELD(bytes_per_token), FIELD(seed),
                        FIELD(policy_seed), FIELD(warmup), FIELD(limit), FIELD(overlap),
                        FIELD(layers), FIELD(prefetch), NAMED("prefill", prefill_name),
                        NAMED("prefill_s_per_token", model.prefill.linear_seconds_per_token),
                        NAMED("prefill_s_per_token2", model.prefill.square_seconds_per_token2),
                        NAMED("prefill_s_fixed", model.prefill.fixed_seconds), FIELD(ladder),
                        FIELD(loss_limit), NAMED("alpha_s", alpha_seconds), FIELD(alpha_prefills),
                        NAMED("half_life_s", half_life_seconds), FIELD(hysteresis),
                        FIELD(high_watermark), FIELD(low_watermark), NAMED("tick_s", tick_seconds),
                        FIELD(moves_per_tick), FIELD(move_bytes_per_s), FIELD(copies),
                        FIELD(profile));
    document_put(object, "partial_blocks", json_string(options->partial_exact ? "exact" : "whole"),
                 sound);
    document_put(object, "tiers",
                 report->store != NULL ? json_store_tiers(report->store, sound)
                                       : json_tiers(options, sound),
                 sound);
    document_put(object, "variant", json_variant(options->variant), sound);
    document_put(object, "variants", json_variants(options, sound), sound);
    document_put(object, "holes",
                 json_string(options->holes == KVT_HOLES_MIXED ? "mixed" : "contiguous"), sound);
    if (options->layered) {
        static const char *const orders[] = {"reads_first", "fifo", "round_robin", "table",
                                             "slack"};
        json_t *layered = json_object();
        document_put(layered, "io_order", json_string(orders[options->io.order]), sound);
        DOCUMENT_PUT_FIELDS(layered, options, sound, FIELD(mix), FIELD(pass_row_count));
        document_put(object, "layered", layered, sound);
    }
    json_put_hosts(object, options, sound);
    return object;
}
#undef FIELD
#undef NAMED

/* Half-lives of the workload's classes of blocks; empty without memory for it, or without reuse. */
static json_t *json_reuse(const replay_workload *workload, bool *sound)
{
#define NAMED(key, member) DOCUMENT_FIELD(kvt_reuse_class, key, member)
    json_t *list = json_array();
    replay_reuse_row rows[REPLAY_REUSE_CLASSES];
    if (replay_workload_reuse(workload, rows) != KVT_OK) return list;
    for (uint32_t i = 0; i < REPLAY_REUSE_CLASSES; i++) {
        const kvt_reuse_class *found = &rows[i].found;
        if (found->uses == 0) continue;
        json_t *one = json_object();
        document_put(one, "class", json_string(rows[i].name), sound);
        DOCUMENT_PUT_FIELDS(one, found, sound, NAMED("entries", entries), NAMED("reuses", uses),
                            NAMED("half_life_s", half_life_seconds), NAMED("branching", branching),
                            NAMED("log_likelihood", log_likelihood),
                            NAMED("log_likelihood_constant_rate", log_likelihood_exponential),
                            NAMED("prior_uses", prior_uses));
        document_add(list, one, sound);
    }
    return list;
#undef NAMED
}

enum { JSON_TENTHS = 10 };

/* Servers that are busy in the busiest tenth of the span, were everything computed. */
static double json_computed_load(const replay_workload *workload, const kvt_prefill *prefill)
{
    const replay_request *requests = workload->requests;
    const uint64_t count = workload->request_count;
    if (count == 0) return 0.0;
    const uint64_t first_ns = requests[0].arrival_ns;
    const uint64_t tenth_ns = (requests[count - 1].arrival_ns - first_ns) / JSON_TENTHS + 1;
    double busy_s[JSON_TENTHS] = {0.0}, most_s = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        double *busy = &busy_s[(requests[i].arrival_ns - first_ns) / tenth_ns];
        *busy += kvt_prefill_seconds(prefill, 0, requests[i].input_tokens) + prefill->fixed_seconds;
        if (*busy > most_s) most_s = *busy;
    }
    return most_s / ((double)tenth_ns * 1e-9);
}

static json_t *json_workload(const replay_workload *workload, const kvt_prefill *prefill,
                             bool *sound)
{
#define FIELD(member) DOCUMENT_FIELD(replay_workload, #member, member)
    json_t *object = json_object();
    const double per_s = workload->conversations_per_s;
    document_put(object, "name", json_string(workload->name), sound);
    document_put(object, "note", document_text(workload->note), sound);
    document_put(object, "requests", json_integer((json_int_t)workload->request_count), sound);
    DOCUMENT_PUT_FIELDS(object, workload, sound, FIELD(block_tokens), FIELD(block_refs),
                        FIELD(distinct_blocks), FIELD(input_tokens));
    document_put(object, "arrival_step_s", document_number((double)workload->grid_ns * 1e-9),
                 sound);
    document_put(object, "conversations_per_s", document_number(per_s > 0.0 ? per_s : NAN), sound);
    document_put(object, "fingerprint", json_hash(replay_workload_fingerprint(workload)), sound);
    document_put(object, "computed_load_peak",
                 document_number(json_computed_load(workload, prefill)), sound);
    document_put(object, "reuse", json_reuse(workload, sound), sound);
    return object;
#undef FIELD
}

json_t *results_document(const replay_report *report, bool *sound)
{
    json_t *root = json_object();
    document_put(root, "schema", json_string("kvterrace-replay-1"), sound);
    document_put(root, "version", json_string(report->version), sound);
    document_put(root, "command", document_text(report->command), sound);
    document_put(root, "machine", document_text(report->machine), sound);
    if (report->date != NULL) document_put(root, "date", json_string(report->date), sound);
    document_put(root, "profile_busy", json_boolean(report->profile_busy), sound);
    if (report->store != NULL)
        document_put(root, "others_share", document_number(report->others_share), sound);
    document_put(root, "configuration", json_configuration(report, sound), sound);
    document_put(root, "workload",
                 json_workload(report->workload, &report->options->model.prefill, sound), sound);
    char machine[RESULTS_MACHINE_BYTES];
    results_describe(report->options, machine, sizeof machine);
    document_put(root, "simulated", report->store == NULL ? json_string(machine) : json_null(),
                 sound);
    document_put(root, "note", document_text(report->options->note), sound);
    json_t *results = json_array();
    for (size_t i = 0; i < report->result_count; i++)
        document_add(results, json_result(&report->results[i], sound), sound);
    document_put(root, "results", results, sound);
    return root;
}

kvt_status replay_print_json(const replay_report *report, FILE *file)
{
    bool sound = true;
    json_t *root = results_document(report, &sound);
    return document_print(root, sound, 12, file);
}
