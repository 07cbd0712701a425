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

static const char *const json_tier_keys[KVT_TIER_COUNT] = {"total", "hbm", "dram", "ssd"};

static json_t *json_count(uint64_t value)
{
    return json_integer((json_int_t)(value > INT64_MAX ? INT64_MAX : value));
}

static json_t *json_ratios(const double by_tier[KVT_TIER_COUNT], bool *sound)
{
    json_t *object = json_object();
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        document_put(object, json_tier_keys[tier], document_number(by_tier[tier]), sound);
    }
    return object;
}

static json_t *json_bytes(const uint64_t by_tier[KVT_TIER_COUNT], bool *sound)
{
    json_t *object = json_object();
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        document_put(object, json_tier_keys[tier], json_count(by_tier[tier]), sound);
    }
    return object;
}

static void json_put_times(json_t *object, const replay_result *result, bool *sound)
{
    const replay_times *times = &result->times;
    bool stable = results_has_mean(result);
    document_put(object, "ttft_s_mean", stable ? document_number(times->ttft_mean) : json_null(),
                 sound);
    document_put(object, "ttft_s_p50", document_number(times->ttft_p50), sound);
    document_put(object, "ttft_s_p90", document_number(times->ttft_p90), sound);
    document_put(object, "ttft_s_p99", document_number(times->ttft_p99), sound);
    document_put(object, "ttft_s_max", document_number(times->ttft_max), sound);
    document_put(object, "wait_s_mean", stable ? document_number(times->wait_mean) : json_null(),
                 sound);
    document_put(object, "service_ttft_s_mean", document_number(times->service_mean), sound);
    document_put(object, "compute_s_mean", document_number(times->compute_mean), sound);
    document_put(object, "blocked_io_s_mean", document_number(times->blocked_mean), sound);
    document_put(object, "rho", document_number(result->rho), sound);
    document_put(object, "rho_peak", document_number(result->rho_peak), sound);
    document_put(object, "span_s", document_number(result->span_s), sound);
    json_t *cdf = json_array();
    for (uint32_t i = 0; i < REPLAY_CDF_POINTS; i++) {
        document_add(cdf, document_number(times->ttft_cdf[i]), sound);
    }
    document_put(object, "ttft_s_percentiles", cdf, sound);
}

static void json_put_traffic(json_t *object, const replay_result *result, bool *sound)
{
    document_put(object, "hit_block_ratio", json_ratios(result->hit_block_ratio, sound), sound);
    document_put(object, "hit_token_ratio", json_ratios(result->hit_token_ratio, sound), sound);
    document_put(object, "used_token_ratio", document_number(result->used_token_ratio), sound);
    document_put(object, "quality_mean", document_number(result->quality_mean), sound);
    document_put(object, "quality_p10", document_number(result->quality_p10), sound);
    document_put(object, "ideal_block_ratio", document_number(result->ideal_block_ratio), sound);
    document_put(object, "prefetch_offered", json_count(result->prefetch_offered), sound);
    document_put(object, "prefetch_moved", json_count(result->prefetch_moved), sound);
    document_put(object, "bytes_read", json_bytes(result->bytes_read, sound), sound);
    document_put(object, "bytes_written", json_bytes(result->bytes_written, sound), sound);
    document_put(object, "moved_bytes_read", json_bytes(result->moved_bytes_read, sound), sound);
    document_put(object, "capacity_bytes", json_bytes(result->capacity_bytes, sound), sound);
    document_put(object, "peak_bytes", json_bytes(result->peak_bytes, sound), sound);
    json_t *lag = json_object();
    double capacity = 0.0;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        document_put(lag, json_tier_keys[tier], document_number(result->write_lag_s_max[tier]),
                     sound);
        capacity += (double)result->capacity_bytes[tier];
    }
    document_put(object, "write_lag_s_max", lag, sound);
    document_put(object, "footprint_bytes", document_number(result->footprint_bytes), sound);
    bool known = result->footprint_bytes > 0.0;
    document_put(object, "capacity_over_footprint",
                 known ? document_number(capacity / result->footprint_bytes) : json_null(), sound);
}

/* Absent without hints. */
static void json_put_hints(json_t *object, const kvt_hint_stats *hints, bool *sound)
{
    static const char *const kinds[KVT_HINT_KINDS] = {"retain", "next_use", "demote",
                                                      "session_end"};
    json_t *all = json_object();
    uint64_t given = 0;
    for (int kind = 0; kind < KVT_HINT_KINDS; kind++) {
        if (hints->given[kind] == 0) continue;
        given += hints->given[kind];
        json_t *one = json_object();
        document_put(one, "given", json_count(hints->given[kind]), sound);
        document_put(one, "came_true", json_count(hints->came_true[kind]), sound);
        document_put(one, "failed", json_count(hints->failed[kind]), sound);
        document_put(one, "open", json_count(hints->open[kind]), sound);
        document_put(one, "dropped", json_count(hints->dropped[kind]), sound);
        document_put(all, kinds[kind], one, sound);
    }
    if (given > 0)
        document_put(object, "hints", all, sound);
    else
        json_decref(all);
}

static void json_put_work(json_t *object, const replay_result *result, bool *sound)
{
    document_put(object, "decisions", json_count(result->decisions), sound);
    json_put_hints(object, &result->hints, sound);
    document_put(object, "decision_ns_p50", json_count(result->decision_ns_p50), sound);
    document_put(object, "decision_ns_p99", json_count(result->decision_ns_p99), sound);
    document_put(object, "puts", json_count(result->puts), sound);
    document_put(object, "refused", json_count(result->refused), sound);
    document_put(object, "puts_busy", json_count(result->puts_busy), sound);
    document_put(object, "promotions", json_count(result->promotions), sound);
    document_put(object, "demotions", json_count(result->demotions), sound);
    document_put(object, "evictions", json_count(result->evictions), sound);
    document_put(object, "moves_planned", json_count(result->moves), sound);
    document_put(object, "moves_committed", json_count(result->moves_committed), sound);
    document_put(object, "moves_aborted", json_count(result->moves_aborted), sound);
    document_put(object, "requests", json_count(result->requests), sound);
    document_put(object, "requests_skipped", json_count(result->requests_skipped), sound);
    document_put(object, "block_refs", json_count(result->block_refs), sound);
    document_put(object, "distinct_blocks", json_count(result->distinct_blocks), sound);
    document_put(object, "block_refs_per_s", document_number(result->block_refs_per_s), sound);
    document_put(object, "loop_s", document_number(result->loop_s), sound);
    document_put(object, "seed", json_count(result->seed), sound);
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)result->plan_hash);
    /* The plans of a live run follow from wall-clock times: no hash could repeat. */
    bool live = strcmp(result->mode, "live") == 0;
    document_put(object, "plan_hash", live ? json_null() : json_string(hash), sound);
    if (result->plan_log[0] != '\0') {
        document_put(object, "plan_log", json_string(result->plan_log), sound);
    }
}

/* A regret beside what capacity costs whatever the policy: ideal less bound. */
static void json_put_regret(json_t *object, const char *name, double seconds, double limits_s,
                            bool *sound)
{
    char key[64];
    bool known = isfinite(seconds);
    snprintf(key, sizeof key, "regret_%s_s", name);
    document_put(object, key, known ? json_real(seconds) : json_null(), sound);
    snprintf(key, sizeof key, "regret_%s_relative", name);
    known = known && limits_s > 0.0;
    document_put(object, key, known ? json_real(seconds / limits_s) : json_null(), sound);
}

static void json_put_regrets(json_t *object, const replay_result *result, bool *sound)
{
    const replay_bound *bound = &result->bound;
    document_put(object, "achieved_saved_s_per_request", document_number(result->saved_s), sound);
    if (!bound->known) return;
    double limits_s = bound->ideal_s - bound->interval_s;
    document_put(object, "recompute_s_per_request", document_number(bound->recompute_s), sound);
    document_put(object, "ideal_saved_s_per_request", document_number(bound->ideal_s), sound);
    document_put(object, "bound_saved_s_per_request", document_number(bound->interval_s), sound);
    document_put(object, "bound_cost_s_per_request",
                 document_number(bound->recompute_s - bound->interval_s), sound);
    document_put(object, "bound_moving_saved_s_per_request", document_number(bound->moving_s),
                 sound);
    json_put_regret(object, "solver", result->regret_solver_s, limits_s, sound);
    json_put_regret(object, "counters", result->regret_counters_s, limits_s, sound);
    json_put_regret(object, "foresight", result->regret_foresight_s, limits_s, sound);
    json_put_regret(object, "online", bound->interval_s - result->saved_s, limits_s, sound);
    /* Over what is at stake in each regret's own instance. */
    document_put(object, "gap_solver", document_number(result->gap_solver), sound);
    document_put(object, "gap_counters", document_number(result->gap_counters), sound);
    document_put(object, "gap_foresight", document_number(result->gap_foresight), sound);
    document_put(object, "bound_price", json_ratios(bound->price, sound), sound);
    document_put(object, "bound_intervals", json_count(bound->intervals), sound);
    document_put(object, "bound_found_s", document_number(bound->seconds), sound);
    document_put(object, "belady_block_ratio", document_number(bound->belady_block_ratio), sound);
}

/* How far predicted load seconds were off, relatively; requests: all loads of one. */
static json_t *json_prediction(const replay_result *result, bool *sound)
{
    json_t *object = json_object();
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        const kvt_load_stats *loads = &result->loads[tier];
        if (loads->loads == 0) continue;
        json_t *one = json_object();
        document_put(one, "loads", json_count(loads->loads), sound);
        document_put(one, "predicted_s", document_number(loads->predicted_seconds), sound);
        document_put(one, "achieved_s", document_number(loads->achieved_seconds), sound);
        document_put(one, "error_p50", document_number(loads->error_p50), sound);
        document_put(one, "error_p90", document_number(loads->error_p90), sound);
        document_put(object, tier == 0 ? "requests" : json_tier_keys[tier], one, sound);
    }
    return object;
}

/* Gets by form and tier, in runs over a store with a ladder. */
static json_t *json_forms(const replay_result *result, bool *sound)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < result->form_count; i++) {
        const replay_form *form = &result->forms[i];
        char name[96];
        json_t *one = json_object();
        (void)kvt_variant_format(form->variant, name, sizeof name);
        document_put(one, "form", json_string(name), sound);
        for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
            document_put(one, json_tier_keys[tier], json_count(form->gets[tier]), sound);
        document_put(one, "tokens", json_count(form->tokens), sound);
        document_put(one, "tokens_kept", json_count(form->tokens_kept), sound);
        document_add(list, one, sound);
    }
    return list;
}

static void json_put_live(json_t *object, const replay_result *result, bool *sound)
{
    document_put(object, "scale", document_number(result->scale), sound);
    document_put(object, "wall_s", document_number(result->wall_s), sound);
    document_put(object, "verified_gets", json_count(result->verified_gets), sound);
    document_put(object, "wrong_bytes", json_count(result->wrong_bytes), sound);
    document_put(object, "failed_puts", json_count(result->failed_puts), sound);
    document_put(object, "load_failures", json_count(result->load_failures), sound);
    document_put(object, "moves_match", json_boolean(result->moves_match), sound);
    document_put(object, "put_s_mean", document_number(result->put_mean_s), sound);
    json_t *emulated = json_object();
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        document_put(emulated, json_tier_keys[tier], json_boolean(result->emulated[tier]), sound);
    }
    document_put(object, "emulated", emulated, sound);
    document_put(object, "load_prediction", json_prediction(result, sound), sound);
    if (result->form_count != 0) document_put(object, "forms", json_forms(result, sound), sound);
    document_put(object, "curves_reopened", json_count(result->reopened), sound);
}

static const char *const reuse_keys[KVT_REUSE_KINDS] = {"count", "last", "again"};

static json_t *json_numbers(const double numbers[KVT_REUSE_HALF_LIVES], bool *sound)
{
    json_t *list = json_array();
    for (int k = 0; k < KVT_REUSE_HALF_LIVES; k++)
        document_add(list, json_real(numbers[k]), sound);
    return list;
}

/* {"uses", "half_life_s": [6], "count": [6], "last": [6], "again": [6]}; null when the policy has
 * learned nothing. */
static json_t *json_learned(const kvt_reuse_weights *reuse, bool *sound)
{
    if (reuse->uses == 0) return json_null();
    json_t *object = json_object();
    document_put(object, "uses", json_integer((json_int_t)reuse->uses), sound);
    document_put(object, "half_life_s", json_numbers(reuse->half_life_seconds, sound), sound);
    for (int kind = 0; kind < KVT_REUSE_KINDS; kind++)
        document_put(object, reuse_keys[kind], json_numbers(reuse->weight[kind], sound), sound);
    return object;
}

static json_t *json_explained(const replay_explained *row)
{
    const kvt_explanation *why = &row->why;
    char variant[64];
    kvt_variant_format(why->options[why->current].option.variant, variant, sizeof variant);
    json_t *expert = json_null();
    if (why->reuse_expert != NULL) {
        expert = json_pack("{s:s, s:s, s:f, s:f, s:f}", "kind", reuse_keys[why->reuse_kind], "says",
                           why->reuse_expert, "half_life_s", why->reuse_half_life_seconds, "weight",
                           why->reuse_weight, "share_of_rate", why->reuse_share);
    }
    return json_pack("{s:I, s:s, s:s, s:f, s:f, s:s, s:o}", "block", (json_int_t)row->block, "tier",
                     kvt_tier_name(row->tier), "variant", variant, "uses_per_s",
                     why->accesses_per_s, "last_use_s_ago", why->last_access_age_seconds, "reason",
                     why->reason != NULL ? why->reason : "", "reuse_expert", expert);
}

/* The counts of one host, or of all of them. */
static json_t *json_host(const replay_host *host, bool *sound)
{
    json_t *object = json_object();
    document_put(object, "requests", json_count(host->requests), sound);
    document_put(object, "block_refs", json_count(host->block_refs), sound);
    document_put(object, "local_blocks", json_count(host->local_blocks), sound);
    document_put(object, "remote_blocks", json_count(host->remote_blocks), sound);
    document_put(object, "fetched_blocks", json_count(host->fetched_blocks), sound);
    document_put(object, "fetched_bytes", json_count(host->fetched_bytes), sound);
    document_put(object, "published_blocks", json_count(host->published_blocks), sound);
    document_put(object, "published_bytes", json_count(host->published_bytes), sound);
    document_put(object, "ttft_s_mean", document_number(host->ttft_mean), sound);
    return object;
}

/* What several hosts did, together and by host. */
static json_t *json_hosts(const replay_hosts *hosts, bool *sound)
{
    json_t *object = json_object(), *rows = json_array();
    document_put(object, "count", json_count(hosts->count), sound);
    document_put(object, "found_block_ratio", json_real(hosts->found_ratio), sound);
    document_put(object, "local_block_ratio", json_real(hosts->local_ratio), sound);
    document_put(object, "remote_block_ratio", json_real(hosts->remote_ratio), sound);
    document_put(object, "written_blocks_per_use", json_real(hosts->written_per_use), sound);
    document_put(object, "probes", json_count(hosts->probes), sound);
    document_put(object, "offered", json_count(hosts->offered), sound);
    document_put(object, "deduplicated", json_count(hosts->deduplicated), sound);
    document_put(object, "declined", json_count(hosts->declined), sound);
    document_put(object, "dropped", json_count(hosts->dropped), sound);
    document_put(object, "written_twice", json_count(hosts->twice), sound);
    document_put(object, "evicted", json_count(hosts->evicted), sound);
    document_put(object, "peak_bytes", json_count(hosts->peak_bytes), sound);
    document_put(object, "load_error_p50", json_real(hosts->load_error), sound);
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
    if (result->hosts.count > 0)
        document_put(object, "hosts", json_hosts(&result->hosts, sound), sound);
    if (strcmp(result->mode, "live") == 0)
        json_put_live(object, result, sound);
    else
        json_put_regrets(object, result, sound);
    return object;
}

static json_t *json_variant(kvt_variant variant)
{
    char name[64];
    kvt_variant_format(variant, name, sizeof name);
    return json_string(name);
}

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
        document_put(object, "capacity_bytes", json_count(row->capacity_bytes), sound);
        document_put(object, "unit_bytes", json_count(row->unit_bytes), sound);
        document_put(object, "striping", json_string(kvt_striping_name(row->striping)), sound);
        document_put(object, "devices", devices, sound);
        document_put(tiers, json_tier_keys[tier], object, sound);
    }
    return tiers;
}

static json_t *json_tiers(const replay_options *options, bool *sound)
{
    json_t *tiers = json_object();
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        const replay_tier *model = &options->tiers[tier];
        if (model->capacity_bytes == 0) continue;
        json_t *object = json_object();
        document_put(object, "capacity_bytes", json_count(model->capacity_bytes), sound);
        document_put(object, "read_bytes_per_s", document_number(model->read.bytes_per_s), sound);
        document_put(object, "read_request_s", document_number(model->read.request_seconds), sound);
        document_put(object, "write_bytes_per_s", document_number(model->write.bytes_per_s), sound);
        document_put(object, "write_request_s", document_number(model->write.request_seconds),
                     sound);
        document_put(tiers, json_tier_keys[tier], object, sound);
    }
    return tiers;
}

/* Hosts, routing and the shared tier, of a simulation that has several hosts or that tier. */
static void json_put_hosts(json_t *object, const replay_options *options, bool *sound)
{
    static const char *const publish[] = {"all", "second_use", "leaving"};
    const replay_remote *remote = &options->remote;
    if (!replay_has_hosts(options)) return;
    char route[RESULTS_TEXT_BYTES];
    document_put(object, "hosts", json_count(options->hosts), sound);
    document_put(object, "route", json_string(results_format_route(options, route)), sound);
    document_put(object, "restart", json_boolean(options->restart), sound);
    if (remote->capacity_bytes == 0) return;
    json_t *one = json_object();
    document_put(one, "capacity_bytes", json_count(remote->capacity_bytes), sound);
    document_put(one, "nodes", json_count(remote->nodes), sound);
    document_put(one, "node_bytes_per_s", json_count(remote->node_bytes_per_s), sound);
    document_put(one, "host_bytes_per_s", json_count(remote->host_bytes_per_s), sound);
    document_put(one, "latency_s", document_number(remote->latency_seconds), sound);
    document_put(one, "publish", json_string(publish[remote->publish]), sound);
    document_put(one, "write_bytes_per_s", json_count(remote->write_bytes_per_s), sound);
    document_put(object, "remote", one, sound);
}

static json_t *json_variants(const replay_options *options, bool *sound)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < options->model.variant_count; i++) {
        const kvt_codec_curve *curve = &options->model.variants[i];
        json_t *object = json_object();
        document_put(object, "name", json_variant(curve->variant), sound);
        document_put(object, "stored_share", document_number(curve->stored_share), sound);
        document_put(object, "decode_bytes_per_s", document_number(curve->decode_bytes_per_s),
                     sound);
        document_add(list, object, sound);
    }
    return list;
}

static json_t *json_configuration(const replay_report *report, bool *sound)
{
    const replay_options *options = report->options;
    json_t *object = json_object();
    const kvt_prefill *prefill = &options->model.prefill;
    document_put(object, "servers", json_count(options->servers), sound);
    document_put(object, "bytes_per_token", json_count(options->bytes_per_token), sound);
    document_put(object, "seed", json_count(options->seed), sound);
    document_put(object, "policy_seed", json_count(options->policy_seed), sound);
    document_put(object, "warmup", document_number(options->warmup), sound);
    document_put(object, "limit", json_count(options->limit), sound);
    document_put(object, "partial_blocks", json_string(options->partial_exact ? "exact" : "whole"),
                 sound);
    document_put(object, "overlap", json_boolean(options->overlap), sound);
    document_put(object, "layers", json_count(options->layers), sound);
    document_put(object, "prefetch", json_boolean(options->prefetch), sound);
    document_put(object, "prefill", json_string(options->prefill_name), sound);
    document_put(object, "prefill_s_per_token", document_number(prefill->linear_seconds_per_token),
                 sound);
    document_put(object, "prefill_s_per_token2",
                 document_number(prefill->square_seconds_per_token2), sound);
    document_put(object, "prefill_s_fixed", document_number(prefill->fixed_seconds), sound);
    document_put(object, "prefill_table_rows", json_count(prefill->table_count), sound);
    document_put(object, "tiers",
                 report->store != NULL ? json_store_tiers(report->store, sound)
                                       : json_tiers(options, sound),
                 sound);
    document_put(object, "variant", json_variant(options->variant), sound);
    document_put(object, "variants", json_variants(options, sound), sound);
    document_put(object, "ladder", document_text(options->ladder), sound);
    document_put(object, "loss_limit", document_number(options->loss_limit), sound);
    document_put(object, "alpha_s", document_number(options->alpha_seconds), sound);
    document_put(object, "half_life_s", document_number(options->half_life_seconds), sound);
    document_put(object, "hysteresis", document_number(options->hysteresis), sound);
    document_put(object, "holes",
                 json_string(options->holes == KVT_HOLES_MIXED ? "mixed" : "contiguous"), sound);
    document_put(object, "high_watermark", document_number(options->high_watermark), sound);
    document_put(object, "low_watermark", document_number(options->low_watermark), sound);
    document_put(object, "tick_s", document_number(options->tick_seconds), sound);
    document_put(object, "moves_per_tick", json_count(options->moves_per_tick), sound);
    document_put(object, "move_bytes_per_s", json_count(options->move_bytes_per_s), sound);
    json_put_hosts(object, options, sound);
    document_put(object, "copies", json_boolean(options->copies), sound);
    document_put(object, "profile",
                 options->profile[0] != '\0' ? json_string(options->profile) : json_null(), sound);
    return object;
}

/* Half-lives of the workload's classes of blocks; empty without memory for it, or without reuse. */
static json_t *json_reuse(const replay_workload *workload, bool *sound)
{
    json_t *list = json_array();
    replay_reuse_row rows[REPLAY_REUSE_CLASSES];
    if (replay_workload_reuse(workload, rows) != KVT_OK) return list;
    for (uint32_t i = 0; i < REPLAY_REUSE_CLASSES; i++) {
        const kvt_reuse_class *found = &rows[i].found;
        if (found->uses == 0) continue;
        json_t *one = json_object();
        document_put(one, "class", json_string(rows[i].name), sound);
        document_put(one, "entries", json_count(found->entries), sound);
        document_put(one, "reuses", json_count(found->uses), sound);
        document_put(one, "half_life_s", document_number(found->half_life_seconds), sound);
        document_put(one, "branching", document_number(found->branching), sound);
        document_put(one, "log_likelihood", document_number(found->log_likelihood), sound);
        document_put(one, "log_likelihood_constant_rate",
                     document_number(found->log_likelihood_exponential), sound);
        document_put(one, "prior_uses", document_number(found->prior_uses), sound);
        document_add(list, one, sound);
    }
    return list;
}

static json_t *json_workload(const replay_workload *workload, bool *sound)
{
    json_t *object = json_object();
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx",
             (unsigned long long)replay_workload_fingerprint(workload));
    document_put(object, "name", json_string(workload->name), sound);
    document_put(object, "requests", json_count(workload->request_count), sound);
    document_put(object, "block_tokens", json_count(workload->block_tokens), sound);
    document_put(object, "block_refs", json_count(workload->block_refs), sound);
    document_put(object, "distinct_blocks", json_count(workload->distinct_blocks), sound);
    document_put(object, "input_tokens", json_count(workload->input_tokens), sound);
    document_put(object, "arrival_step_s", document_number((double)workload->grid_ns * 1e-9),
                 sound);
    bool drawn = workload->conversations_per_s > 0.0;
    document_put(object, "conversations_per_s",
                 drawn ? json_real(workload->conversations_per_s) : json_null(), sound);
    document_put(object, "fingerprint", json_string(hash), sound);
    document_put(object, "reuse", json_reuse(workload, sound), sound);
    return object;
}

kvt_status replay_print_json(const replay_report *report, FILE *file)
{
    bool sound = true;
    json_t *root = json_object();
    document_put(root, "schema", json_string("kvterrace-replay-1"), &sound);
    document_put(root, "version", json_string(report->version), &sound);
    document_put(root, "command", document_text(report->command), &sound);
    document_put(root, "machine", document_text(report->machine), &sound);
    if (report->date != NULL) document_put(root, "date", json_string(report->date), &sound);
    document_put(root, "profile_busy", json_boolean(report->profile_busy), &sound);
    document_put(root, "configuration", json_configuration(report, &sound), &sound);
    document_put(root, "workload", json_workload(report->workload, &sound), &sound);
    char machine[RESULTS_MACHINE_BYTES];
    results_describe(report->options, machine, sizeof machine);
    document_put(root, "simulated", report->store == NULL ? json_string(machine) : json_null(),
                 &sound);
    document_put(root, "note", document_text(report->options->note), &sound);
    json_t *results = json_array();
    for (size_t i = 0; i < report->result_count; i++)
        document_add(results, json_result(&report->results[i], &sound), &sound);
    document_put(root, "results", results, &sound);
    return document_print(root, sound, 12, file);
}
