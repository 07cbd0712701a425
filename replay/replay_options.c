/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_options.c - what a replay runs with: from the settings, from a profile's curves, or from
 * stated defaults of the simulated host. One thread.
 */
#include "base/config_values.h"
#include "codecs/codec_table.h"
#include "estimator/exchange/exchange.h"
#include "options_parts.h"
#include "policy/trial.h"
#include "replay.h"
#include "store/core/options.h"
#include "tiers/devices/device_ops.h"

#include "base/settings_fields.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS_TICK_SECONDS 1.0

/* One core's copy. */
#define OPTIONS_COPY_BYTES_PER_S 5e9

static kvt_variant options_raw(void)
{
    return (kvt_variant){.codec = KVT_CODEC_RAW};
}

/* Raw entries are copied by the read itself: nothing is left to decode. */
static void options_add_raw(replay_options *options)
{
    options->model.variants[0] = (kvt_codec_curve){.variant = options_raw(),
                                                   .stored_share = 1.0,
                                                   .encode_bytes_per_s = 1e15,
                                                   .decode_bytes_per_s = 1e15};
    options->model.variant_count = 1;
    options->model.parallel_codecs = 1;
}

/* ---- what each setting fills ---- */

/* A live replay drives a store, which reads its own settings; a simulation stands for one. */
enum { OPTIONS_LIVE = 1, OPTIONS_SIMULATED = 2 };

#define OPTIONS_FIELD(name, member, mode)                                                          \
    SETTINGS_FIELD(replay_options, name, member, .modes = (mode))

_Static_assert(REPLAY_HOSTS_MAX == 256 && REPLAY_NODES_MAX == 64 && REPLAY_EXPLAIN_MAX == 32,
               "as the table of settings has their ranges");

static const settings_field options_fields[] = {
    OPTIONS_FIELD("replay.servers", servers, 0),
    OPTIONS_FIELD("replay.bytes_per_token", bytes_per_token, 0),
    OPTIONS_FIELD("replay.block_tokens", block_tokens, 0),
    OPTIONS_FIELD("replay.scale", scale, OPTIONS_LIVE),
    OPTIONS_FIELD("replay.warmup", warmup, 0),
    OPTIONS_FIELD("replay.explain", explain, OPTIONS_SIMULATED),
    OPTIONS_FIELD("replay.seeds", seeds, 0),
    OPTIONS_FIELD("replay.sensitivity", sensitivity, OPTIONS_SIMULATED),
    OPTIONS_FIELD("replay.repeatability", repeatability, OPTIONS_SIMULATED),
    OPTIONS_FIELD("store.loss_limit", loss_limit, OPTIONS_SIMULATED),
    OPTIONS_FIELD("replay.seed", seed, 0),
    OPTIONS_FIELD("replay.overlap", overlap, 0),
    OPTIONS_FIELD("replay.layers", layers, OPTIONS_SIMULATED),
    OPTIONS_FIELD("replay.layered", layered, OPTIONS_SIMULATED),
    OPTIONS_FIELD("replay.prefetch", prefetch, OPTIONS_SIMULATED),
    OPTIONS_FIELD("replay.limit", limit, 0),
    OPTIONS_FIELD("replay.partial_blocks", partial_exact, OPTIONS_SIMULATED),
    OPTIONS_FIELD("replay.hosts", hosts, OPTIONS_SIMULATED),
    OPTIONS_FIELD("replay.restart", restart, OPTIONS_SIMULATED),
    OPTIONS_FIELD("tier.remote.capacity", remote.capacity_bytes, OPTIONS_SIMULATED),
    OPTIONS_FIELD("tier.remote.nodes", remote.nodes, OPTIONS_SIMULATED),
    OPTIONS_FIELD("tier.remote.node_bandwidth", remote.node_bytes_per_s, OPTIONS_SIMULATED),
    OPTIONS_FIELD("tier.remote.host_bandwidth", remote.host_bytes_per_s, OPTIONS_SIMULATED),
    OPTIONS_FIELD("tier.remote.latency", remote.latency_seconds, OPTIONS_SIMULATED),
    OPTIONS_FIELD("tier.remote.publish", remote.publish, OPTIONS_SIMULATED),
    OPTIONS_FIELD("tier.remote.write_rate", remote.write_bytes_per_s, OPTIONS_SIMULATED),
    OPTIONS_FIELD("replay.bounds", bounds, OPTIONS_SIMULATED),
    OPTIONS_FIELD("replay.hints", hints, OPTIONS_SIMULATED),
    OPTIONS_FIELD("store.put_staging", put_staging_bytes, OPTIONS_SIMULATED),
    OPTIONS_FIELD("store.put_backlog", put_backlog_seconds, OPTIONS_SIMULATED),
    OPTIONS_FIELD("store.copies", copies, OPTIONS_SIMULATED),
    OPTIONS_FIELD("store.seed", policy_seed, 0),
    OPTIONS_FIELD("store.alpha", alpha_seconds, 0),
    OPTIONS_FIELD("store.alpha_prefills", alpha_prefills, 0),
    OPTIONS_FIELD("store.hysteresis", hysteresis, 0),
    OPTIONS_FIELD("store.holes", holes, 0),
    OPTIONS_FIELD("store.high_watermark", high_watermark, 0),
    OPTIONS_FIELD("store.low_watermark", low_watermark, 0),
    OPTIONS_FIELD("store.moves_per_tick", moves_per_tick, 0),
    OPTIONS_FIELD("store.move_rate", move_bytes_per_s, 0),
};

/* What a simulation with replay.layered takes besides. */
static const settings_field options_layered[] = {
    OPTIONS_FIELD("tier.ssd.mix", mix, 0),
    OPTIONS_FIELD("store.io_order", io.order, 0),
    OPTIONS_FIELD("store.write_grain", io.write_grain_seconds, 0),
    OPTIONS_FIELD("store.write_patience", io.write_patience_seconds, 0),
};

static void options_read_layered(kvt_config *config, replay_options *options)
{
    const size_t count = sizeof options_layered / sizeof options_layered[0];
    settings_read(config, NULL, options_layered, count, 0, options);
}

static void options_read_fields(kvt_config *config, uint32_t modes, replay_options *options)
{
    const size_t count = sizeof options_fields / sizeof options_fields[0];
    settings_read(config, NULL, options_fields, count, modes, options);
}

void replay_options_init(replay_options *options)
{
    memset(options, 0, sizeof *options);
    options->put_staging_bytes = KVT_PUT_STAGING_AUTO;
    options_read_fields(NULL, SETTINGS_ALL_MODES, options);
    options_read_layered(NULL, options);
    options->loss_limit = 1.0; /* who has a ladder says which; read from settings it is a store's */
    options->variant = options_raw();
    options->half_life_seconds = TRIAL_HALF_LIFE;
    options->clock_scale = 1.0;
    options->tick_seconds = OPTIONS_TICK_SECONDS;
    options->copy_bytes_per_s = OPTIONS_COPY_BYTES_PER_S;
    options_add_raw(options);
    kvt_status status = kvt_prefill_preset_get("llama-3.1-8b:a100", &options->model.prefill);
    assert(status == KVT_OK); /* a name that the estimator's table holds */
    (void)status;
    snprintf(options->prefill_name, sizeof options->prefill_name, "llama-3.1-8b:a100");
    options_default_tiers(options);
}

void replay_options_free(replay_options *options)
{
    if (options == NULL) return;
    free(options->pass_rows);
    memset(options, 0, sizeof *options);
}

/* The parts of the simulator that are of one host. */
static const char *options_hosts_fault(const replay_options *options)
{
    if (options->route == REPLAY_ROUTE_SPILL &&
        !(options->spill_share >= 0.0 && options->spill_share <= 1.0))
        return "replay.route: sticky, random, least_loaded or spill:SHARE, a share of 0 to 1";
    if (!replay_has_hosts(options)) return NULL;
    if (options->hints != REPLAY_HINTS_NONE) return "replay.hints: of one host alone";
    if (options->explain > 0) return "replay.explain: of one host alone";
    if (options->plan_log != NULL) return "replay.plan_log: of one host alone";
    return NULL;
}

static bool options_affine_is_sound(const kvt_affine *affine)
{
    return isfinite(affine->request_seconds) && affine->request_seconds >= 0.0 &&
           affine->request_seconds <= 3600.0 && isfinite(affine->bytes_per_s) &&
           affine->bytes_per_s >= 1.0;
}

kvt_status replay_options_check(replay_options *options, char *message, size_t message_size)
{
    const size_t count = sizeof options_fields / sizeof options_fields[0];
    if (!settings_hold(options_fields, count, options, message, message_size)) return KVT_E_CONFIG;
    if (!settings_hold(options_layered, sizeof options_layered / sizeof options_layered[0], options,
                       message, message_size))
        return KVT_E_CONFIG;
    const bool ticks = options->tick_seconds == 0.0 || options->tick_seconds >= 1e-3;
    const char *fault = ticks ? NULL : "store.tick: 0, or 1 ms and more";
    if (fault == NULL) fault = options_hosts_fault(options);
    for (int tier = 1; tier < KVT_TIER_COUNT && fault == NULL; tier++) {
        const replay_tier *model = &options->tiers[tier];
        options->model.present[tier] = model->capacity_bytes > 0;
        if (model->capacity_bytes == 0) continue;
        options->model.read[tier] = model->read;
        options->model.write[tier] = model->write;
        options->model.arriving[tier] = tier != KVT_TIER_DRAM; /* which is decoded where it lies */
        if (!options_affine_is_sound(&model->read)) {
            fault = options_speed_keys[tier][0];
        } else if (!options_affine_is_sound(&model->write)) {
            fault = options_speed_keys[tier][1];
        }
    }
    if (fault == NULL) return KVT_OK;
    snprintf(message, message_size, "%s%s", fault,
             strchr(fault, ':') != NULL ? "" : ": a bandwidth of at least 1 byte/s is needed");
    return KVT_E_CONFIG;
}

/* The blocks of a replay have the layout of the store's ladder, or there is none for them. */
static kvt_status options_fit_layout(kvt_config *config, const kvt_layout *layout,
                                     replay_options *options, char *message, size_t message_size)
{
    kvt_layout one = *layout;
    uint64_t bytes = 0;
    one.tokens = 1;
    kvt_status status = kvt_layout_bytes(&one, &bytes);
    if (status != KVT_OK) return status;
    if (kvt_config_has(config, "replay.bytes_per_token") && options->bytes_per_token != bytes) {
        snprintf(message, message_size,
                 "replay.bytes_per_token: %llu bytes, but store.ladder_layout has %llu: no block "
                 "would be of the ladder",
                 (unsigned long long)options->bytes_per_token, (unsigned long long)bytes);
        return KVT_E_CONFIG;
    }
    options->bytes_per_token = bytes;
    return KVT_OK;
}

/* The variants that the store would offer, with its limits of loss. */
static kvt_status options_store_variants(kvt_config *config, const kvt_store_options *store,
                                         kvt_profile *profile, replay_options *options,
                                         char *message, size_t message_size)
{
    uint32_t whole = 0;
    kvt_status status = KVT_OK;
    if (store->loss.ladder)
        status =
            options_fit_layout(config, &store->loss.ladder_layout, options, message, message_size);
    if (status == KVT_OK)
        status = kvt_store_variants(store, profile, &options->model, &whole, message, message_size);
    if (status == KVT_E_MISMATCH) status = KVT_E_CONFIG;
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < options->model.variant_count; i++) {
        const kvt_codec_curve *variant = &options->model.variants[i];
        kvt_codec_curve curve;
        char name[64];
        if (!kvt_codec_is_exact(variant->variant)) break;
        if (profile != NULL && kvt_profile_codec(profile, variant->variant, &curve) == KVT_OK)
            continue;
        kvt_variant_format(variant->variant, name, sizeof name);
        options_note(options,
                     "%s decodes at %.3g GB/s as measured just now (kvterrace profile codecs keeps "
                     "the figure).",
                     name, variant->decode_bytes_per_s * 1e-9);
    }
    if (whole < options->model.variant_count)
        options_note(options, "%u variants that drop tokens are left out: blocks count theirs.",
                     options->model.variant_count - whole);
    options->model.variant_count = whole;
    if (store->loss.ladder) snprintf(options->ladder, sizeof options->ladder, "store.ladder");
    return KVT_OK;
}

/* "profile:MODEL:CLASS", and the class behind the last colon, as names of models may hold one. */
static kvt_status options_profile_ladder(kvt_profile *profile, const char *names,
                                         replay_options *options, char *message,
                                         size_t message_size)
{
    char model[96];
    const char *colon = strrchr(names, ':');
    size_t length = colon != NULL ? (size_t)(colon - names) : 0;
    if (profile == NULL || length == 0 || length >= sizeof model || colon[1] == '\0') {
        snprintf(message, message_size,
                 profile == NULL ? "replay.ladder: a ladder of a profile needs store.profile"
                                 : "replay.ladder: of a profile it is profile:MODEL:CLASS");
        return KVT_E_CONFIG;
    }
    snprintf(model, sizeof model, "%.*s", (int)length, names);
    kvt_status status =
        exchange_ladder(profile, model, colon + 1, NULL, options->model.variants, KVT_VARIANTS_MAX,
                        &options->model.variant_count, message, message_size);
    /* Blocks of a trace are counted by their tokens: variants that drop some are none for them. */
    uint32_t kept = 0;
    for (uint32_t i = 0; i < options->model.variant_count; i++)
        if (options->model.variants[i].variant.mode >> 8 == 0)
            options->model.variants[kept++] = options->model.variants[i];
    options->model.variant_count = kept;
    return status == KVT_MISS ? KVT_E_CONFIG : status;
}

/* A ladder replaces what a profile knows of variants; the fixed policies must find theirs in it. */
static kvt_status options_read_ladder(kvt_profile *profile, const char *path,
                                      double entry_loss_limit, replay_options *options,
                                      char *message, size_t message_size)
{
    static const char of_profile[] = "profile:";
    kvt_status status;
    if (strncmp(path, of_profile, sizeof of_profile - 1) == 0) {
        status = options_profile_ladder(profile, path + sizeof of_profile - 1, options, message,
                                        message_size);
    } else {
        status = exchange_ladder_read(path, options->model.variants, KVT_VARIANTS_MAX,
                                      &options->model.variant_count, message, message_size);
    }
    if (status != KVT_OK) return status;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < options->model.variant_count; i++) {
        const kvt_codec_curve *one = &options->model.variants[i];
        const bool exact = one->loss == 0 && one->loss_upper == 0;
        if (exact || entry_loss_limit >= 1 ||
            (one->loss_entry > 0 && one->loss_entry <= entry_loss_limit))
            options->model.variants[kept++] = *one;
    }
    if (kept < options->model.variant_count)
        options_note(options, "store.entry_loss_limit leaves %u variants out.",
                     options->model.variant_count - kept);
    options->model.variant_count = kept;
    snprintf(options->ladder, sizeof options->ladder, "%s", path);
    options_note(options, "Variants, sizes and losses come from %s.", path);
    return KVT_OK;
}

/* The lossless variant is offered only with a measured curve; a guessed one would decide. */
static kvt_status options_read_variants(kvt_config *config, const kvt_store_options *store,
                                        kvt_profile *profile, bool live, replay_options *options,
                                        char *message, size_t message_size)
{
    const char *name = kvt_config_text(config, "store.variant");
    bool offered = kvt_config_switch(config, "store.lossless");
    kvt_variant lossless;
    if (kvt_variant_parse(name, &options->variant) != KVT_OK ||
        kvt_variant_parse("lossless", &lossless) != KVT_OK) {
        snprintf(message, message_size, "store.variant: \"%s\" is no variant", name);
        return KVT_E_CONFIG;
    }
    if (live) return KVT_OK;
    const char *ladder = kvt_config_text(config, "replay.ladder");
    if (ladder != NULL)
        return options_read_ladder(profile, ladder, store->loss.entry_loss_limit, options, message,
                                   message_size);
    if (store->loss.ladder || kvt_config_has_file(config))
        return options_store_variants(config, store, profile, options, message, message_size);
    bool needed = options->variant.codec != KVT_CODEC_RAW;
    kvt_status status = KVT_MISS;
    if ((needed || offered) && profile != NULL) {
        status = kvt_profile_codec(profile, lossless, &options->model.variants[1]);
    }
    if (status == KVT_OK) {
        options->model.variant_count = 2;
        return KVT_OK;
    }
    if (status != KVT_MISS) {
        snprintf(message, message_size, "%s: %s", options->profile, kvt_status_text(status));
        return status;
    }
    if (needed) {
        snprintf(message, message_size,
                 "store.variant: simulating \"%s\" needs a profile with its curve "
                 "(store.profile)",
                 name);
        return KVT_E_CONFIG;
    }
    if (offered) {
        options_note(options, "Lossless is not offered: no profile holds its curve.");
    }
    return KVT_OK;
}

/* A prefill model of the profile. Of a live replay the store has looked it up, and its name is all
 * that is needed here; the same when settings are only checked. */
static kvt_status options_named_prefill(kvt_profile *profile, const char *name,
                                        replay_options *options, char *message, size_t message_size)
{
    snprintf(options->prefill_name, sizeof options->prefill_name, "%.63s", name);
    if (profile == NULL) return KVT_OK;
    kvt_status status = kvt_profile_prefill(profile, name, &options->model.prefill);
    if (status == KVT_MISS) {
        snprintf(message, message_size, "prefill.profile: the profile has no prefill model \"%s\"",
                 name);
        return KVT_E_CONFIG;
    }
    if (status != KVT_OK)
        snprintf(message, message_size, "%s: %s", options->profile, kvt_status_text(status));
    return status;
}

static kvt_status options_read_prefill(kvt_config *config, kvt_profile *profile,
                                       replay_options *options, char *message, size_t message_size)
{
    const char *named = kvt_config_text(config, "prefill.profile");
    if (named != NULL) return options_named_prefill(profile, named, options, message, message_size);
    snprintf(options->prefill_name, sizeof options->prefill_name, "llama-3.1-8b:%s",
             kvt_config_text(config, "prefill.gpu"));
    if (kvt_prefill_preset_get(options->prefill_name, &options->model.prefill) == KVT_OK)
        return KVT_OK;
    snprintf(message, message_size, "prefill.gpu: no preset %s", options->prefill_name);
    return KVT_E_CONFIG;
}

/* "sticky", "random", "least_loaded" or "spill:SHARE"; anything else leaves the share out of range.
 */
static void options_read_route(kvt_config *config, replay_options *options)
{
    static const char spill[] = "spill:";
    const char *text = kvt_config_text(config, "replay.route");
    options->route = REPLAY_ROUTE_SPILL;
    options->spill_share = -1.0;
    if (strcmp(text, "sticky") == 0) options->route = REPLAY_ROUTE_STICKY;
    if (strcmp(text, "random") == 0) options->route = REPLAY_ROUTE_RANDOM;
    if (strcmp(text, "least_loaded") == 0) options->route = REPLAY_ROUTE_LEAST_LOADED;
    if (strncmp(text, spill, sizeof spill - 1) != 0) return;
    char *end = NULL;
    double share = strtod(text + sizeof spill - 1, &end);
    if (end != text + sizeof spill - 1 && *end == '\0') options->spill_share = share;
}

static void options_read_plain(kvt_config *config, bool live, replay_options *options)
{
    options_read_fields(config, live ? OPTIONS_LIVE : OPTIONS_SIMULATED, options);
    if (!live) options_read_route(config, options);
    if (!live && options->layered) options_read_layered(config, options);
    /* The bound is that of one host's tiers. */
    if (!live && replay_has_hosts(options)) options->bounds = false;
    options->plan_log = kvt_config_text(config, "replay.plan_log");
    /* A simulation's rounds are further apart unless they are set, or a store's file is taken. */
    if (live || kvt_config_has(config, "store.tick") || kvt_config_has_file(config))
        options->tick_seconds = kvt_config_number(config, "store.tick");
}

/* What a simulation takes from a store's settings beside those that its own tables name. The others
 * of a file are named in the note. */
static const char *const options_taken[] = {
    "store.profile",
    "store.profile_foreign",
    "store.policy",
    "store.ladder",
    "store.ladder_layout",
    "store.ladder_model",
    "store.ladder_class",
    "store.loss_limit",
    "store.entry_loss_limit",
    "store.variant",
    "store.lossless",
    "tier.hbm.unit",
    "tier.dram.unit",
    "tier.ssd.unit",
    "tier.hbm.capacity",
    "tier.dram.capacity",
    "tier.ssd.capacity",
    "device.*.tier",
    "device.*.backend",
    "device.*.path",
    "device.*.capacity",
    "device.*.read_bandwidth",
    "device.*.write_bandwidth",
    "device.*.latency",
};

/* The settings of a store that a simulation has no part for. On the command line they are errors,
 * which the caller reports. */
static void options_note_not_simulated(const kvt_config *config, replay_options *options)
{
    static const char *const sections[] = {"store.", "tier.", "device.", "remote."};
    char list[REPLAY_NOTE_BYTES] = "";
    size_t used = 0;
    const char *key;
    for (size_t i = 0; (key = kvt_config_unused_get(config, i)) != NULL; i++) {
        bool listed = false;
        for (size_t s = 0; s < sizeof sections / sizeof sections[0]; s++)
            listed |= strncmp(key, sections[s], strlen(sections[s])) == 0;
        if (listed && used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used > 0 ? ", " : "",
                                     key);
    }
    if (used > 0) options_note(options, "Not simulated: %s.", list);
}

/* What a simulation of the store is made of: all but the plain fields. */
static kvt_status options_read_simulated(kvt_config *config, const kvt_store_options *store,
                                         replay_options *options, char *message,
                                         size_t message_size)
{
    kvt_profile *profile = NULL;
    kvt_status status = KVT_OK;
    if (store->learning.profile_path != NULL) {
        snprintf(options->profile, sizeof options->profile, "%s", store->learning.profile_path);
        const uint32_t flags = store->learning.profile_foreign ? KVT_PROFILE_FOREIGN : 0u;
        status = kvt_profile_open(store->learning.profile_path, KVT_PROFILE_READ | flags, &profile,
                                  message, message_size);
        if (status == KVT_MISS) {
            snprintf(message, message_size, "%s: no such profile", store->learning.profile_path);
            status = KVT_E_GONE;
        }
    }
    if (status == KVT_OK)
        status =
            options_read_variants(config, store, profile, false, options, message, message_size);
    if (status == KVT_OK)
        status = options_read_tiers(config, store, profile, false, options, message, message_size);
    if (status == KVT_OK)
        status = options_read_prefill(config, profile, options, message, message_size);
    if (profile != NULL) kvt_profile_close(profile);
    return status;
}

/* Takes the seconds that passes of the store would announce. */
static kvt_status options_take_passes(kvt_config *config, const kvt_store_options *store,
                                      replay_options *options)
{
    if (!options->layered) return KVT_OK;
    kvt_config_use(config, "prefill.slack");
    if (store->pass_row_count == 0) return KVT_OK;
    options->pass_rows = malloc(store->pass_row_count * sizeof *options->pass_rows);
    if (options->pass_rows == NULL) return KVT_E_MEMORY;
    options->pass_row_count = store->pass_row_count;
    memcpy(options->pass_rows, store->pass_rows, store->pass_row_count * sizeof *store->pass_rows);
    return KVT_OK;
}

/* A simulation is of the store that the settings describe, so they are read as the store reads
 * them, which also refuses what has no effect. */
static kvt_status options_simulate(kvt_config *config, replay_options *options, char *message,
                                   size_t message_size)
{
    kvt_store_options store = {.struct_size = sizeof store};
    void *owner = NULL;
    kvt_status status = kvt_store_options_read(config, &store, &owner, message, message_size);
    kvt_config_forget_uses(config);
    for (size_t i = 0; i < sizeof options_taken / sizeof options_taken[0]; i++)
        kvt_config_use(config, options_taken[i]);
    if (status != KVT_OK) return status;
    options_read_plain(config, false, options);
    if (kvt_config_has_file(config) && store.durability.catalog_path == NULL)
        options->copies = false;
    status = options_take_passes(config, &store, options);
    if (status == KVT_OK)
        status = options_read_simulated(config, &store, options, message, message_size);
    if (status == KVT_OK) options_note_not_simulated(config, options);
    kvt_store_options_free(owner);
    return status;
}

kvt_status replay_options_read(kvt_config *config, bool live, replay_options *options,
                               char *message, size_t message_size)
{
    assert(config != NULL && options != NULL && message_size > 0);
    kvt_status status = KVT_OK;
    replay_options_init(options);
    if (strcmp(kvt_config_text(config, "store.holes"), "mixed") == 0) {
        /* The engine would plan for requests that load behind a hole; none of these does. */
        snprintf(message, message_size,
                 "store.holes: a replay's requests use a path up to its first hole; mixed would "
                 "have the engine plan for others");
        status = KVT_E_CONFIG;
    } else if (live) {
        options_read_plain(config, true, options);
        status = options_read_variants(config, NULL, NULL, true, options, message, message_size);
        if (status == KVT_OK)
            status = options_read_prefill(config, NULL, options, message, message_size);
    } else {
        status = options_simulate(config, options, message, message_size);
    }
    if (status == KVT_OK) status = replay_options_check(options, message, message_size);
    if (status != KVT_OK) replay_options_free(options);
    return status;
}

/* "0", or "1/3@0.4"; returns the character behind it, NULL: a place is not on the ladder. */
static const char *options_read_mix(const char *text, replay_options *options, int tier)
{
    char *end;
    const unsigned long first = strtoul(text, &end, 10);
    unsigned long second = first;
    double share = 0.0;
    bool sound = end != text;
    if (sound && *end == '/') {
        text = end + 1;
        second = strtoul(text, &end, 10);
        sound = end != text && *end == '@';
        if (sound) share = strtod(text = end + 1, &end);
        sound = sound && end != text;
    }
    const uint32_t count = options->model.variant_count;
    if (!sound || first >= count || second >= count || !(share >= 0.0 && share <= 1.0)) return NULL;
    options->blend.rung[tier][0] = (uint8_t)first;
    options->blend.rung[tier][1] = (uint8_t)second;
    options->blend.share[tier] = share;
    return end;
}

kvt_status replay_mix_read(const char *text, replay_options *options, char *message,
                           size_t message_size)
{
    const char *at = text;
    options->blend.set = true;
    while (at != NULL) {
        const size_t length = strcspn(at, "=");
        int tier = KVT_TIER_COUNT - 1;
        while (tier > 0 && (strncmp(kvt_tier_name(tier), at, length) != 0 ||
                            kvt_tier_name(tier)[length] != '\0'))
            tier--;
        at =
            tier > 0 && at[length] == '=' ? options_read_mix(at + length + 1, options, tier) : NULL;
        if (at != NULL && *at == '\0') return KVT_OK;
        at = at != NULL && *at == ',' ? at + 1 : NULL;
    }
    snprintf(message, message_size,
             "--mix %.100s: not of the form dram=0,ssd=1/3@0.4, with places on a ladder of %u",
             text, (unsigned)options->model.variant_count);
    return KVT_E_CONFIG;
}

kvt_status replay_settings_check(kvt_config *config, const kvt_store_options *store, char *message,
                                 size_t message_size)
{
    replay_options options;
    replay_generator generator;
    replay_options_init(&options);
    for (int live = 0; live < 2; live++)
        options_read_plain(config, live != 0, &options);
    kvt_status status =
        options_read_variants(config, store, NULL, true, &options, message, message_size);
    if (status == KVT_OK)
        status = options_read_tiers(config, store, NULL, true, &options, message, message_size);
    if (status == KVT_OK)
        status = options_read_prefill(config, NULL, &options, message, message_size);
    if (status == KVT_OK) status = replay_options_check(&options, message, message_size);
    replay_options_free(&options);
    if (status != KVT_OK) return status;
    replay_generator_read(config, &generator);
    return replay_generator_check(&generator, message, message_size);
}
