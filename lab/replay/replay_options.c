/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_options.c - what a replay runs with: from the settings, from a profile's curves, or from
 * stated defaults of the simulated host. One thread.
 */
#include "base/config_values.h"
#include "replay.h"
#include "tiers/devices/device_ops.h"

#include "base/settings_fields.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* The simulated host where neither a setting nor a profile says otherwise: device memory of an
 * A100, a PCIe 4.0 x16 link to host memory, and the SSD of AdaptCache's evaluation. */
static const replay_tier options_default_tier[KVT_TIER_COUNT] = {
    [KVT_TIER_HBM] = {.read = {5e-6, 2039e9, 0.0}, .write = {5e-6, 2039e9, 0.0}},
    [KVT_TIER_DRAM] = {.read = {20e-6, 25e9, 0.0}, .write = {20e-6, 25e9, 0.0}},
    [KVT_TIER_SSD] = {.read = {100e-6, 1e9, 0.0}, .write = {100e-6, 1e9, 0.0}},
};

#define OPTIONS_ADAPTCACHE_DRAM UINT64_C(100000000000)
#define OPTIONS_ADAPTCACHE_SSD  UINT64_C(400000000000)
#define OPTIONS_TICK_SECONDS    1.0

/* How far a tier's writes may fall behind. Writes of a burst are spread over the prefill that makes
 * them, so they get the seconds of a long one. */
#define OPTIONS_WRITE_LAG_SECONDS 10.0

/* One core's copy. */
#define OPTIONS_COPY_BYTES_PER_S 5e9

static const char *const tier_keys[KVT_TIER_COUNT][5] = {
    [KVT_TIER_HBM] = {"tier.hbm.capacity", "tier.hbm.read_bandwidth", "tier.hbm.write_bandwidth",
                      "tier.hbm.latency", "tier.hbm.devices"},
    [KVT_TIER_DRAM] = {"tier.dram.capacity", "tier.dram.read_bandwidth",
                       "tier.dram.write_bandwidth", "tier.dram.latency", "tier.dram.devices"},
    [KVT_TIER_SSD] = {"tier.ssd.capacity", "tier.ssd.read_bandwidth", "tier.ssd.write_bandwidth",
                      "tier.ssd.latency", "tier.ssd.devices"},
};

static void options_note(replay_options *options, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void options_note(replay_options *options, const char *format, ...)
{
    size_t used = strlen(options->note);
    if (used > 0 && used + 1 < sizeof options->note) {
        options->note[used++] = ' ';
        options->note[used] = '\0';
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(options->note + used, sizeof options->note - used, format, arguments);
    va_end(arguments);
}

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
enum {
    OPTIONS_LIVE = 1,
    OPTIONS_SIMULATED = 2,
    OPTIONS_STORE_MODEL = 4,
    OPTIONS_WITH_LADDER = 8,
    OPTIONS_WITH_OVERLAP = 16,
    OPTIONS_WITH_REMOTE = 32
};

#define OPTIONS_FIELD(name, member, mode)                                                          \
    SETTINGS_FIELD(replay_options, name, member, .modes = (mode))
#define OPTIONS_RANGE(name, member, mode, from, to, words)                                         \
    SETTINGS_FIELD(replay_options, name, member, .modes = (mode), .least = (from), .most = (to),   \
                   .range = (words))

static const settings_field options_fields[] = {
    OPTIONS_RANGE("replay.servers", servers, 0, 1, 65536, "1 to 65536"),
    OPTIONS_RANGE("replay.bytes_per_token", bytes_per_token, 0, 1, 1 << 28, "1 byte to 256 MiB"),
    OPTIONS_RANGE("replay.block_tokens", block_tokens, 0, 1, 65536, "1 to 65536"),
    OPTIONS_RANGE("replay.scale", scale, OPTIONS_LIVE, DBL_MIN, 1, "above 0, up to 1"),
    OPTIONS_RANGE("replay.warmup", warmup, 0, 0, 1 - DBL_EPSILON / 2, "0 up to below 1"),
    OPTIONS_RANGE("replay.explain", explain, OPTIONS_SIMULATED, 0, REPLAY_EXPLAIN_MAX,
                  "at most 32"),
    OPTIONS_RANGE("replay.seeds", seeds, 0, 1, 1000, "1 to 1000"),
    OPTIONS_RANGE("replay.sensitivity", sensitivity, OPTIONS_WITH_LADDER, 0, 4, "0 to 4"),
    OPTIONS_RANGE("replay.repeatability", repeatability, OPTIONS_WITH_LADDER, 0, 1, "0 to 1"),
    OPTIONS_RANGE("replay.loss_limit", loss_limit, OPTIONS_WITH_LADDER, 0, 1, "0 to 1"),
    OPTIONS_FIELD("replay.seed", seed, 0),
    OPTIONS_FIELD("replay.overlap", overlap, 0),
    OPTIONS_RANGE("replay.layers", layers, OPTIONS_WITH_OVERLAP, 0, 65536, "0 to 65536"),
    OPTIONS_FIELD("replay.prefetch", prefetch, OPTIONS_SIMULATED),
    OPTIONS_FIELD("replay.limit", limit, 0),
    OPTIONS_FIELD("replay.partial_blocks", partial_exact, OPTIONS_SIMULATED),
    OPTIONS_RANGE("replay.hosts", hosts, OPTIONS_SIMULATED, 1, REPLAY_HOSTS_MAX, "1 to 256"),
    OPTIONS_FIELD("replay.restart", restart, OPTIONS_SIMULATED),
    OPTIONS_FIELD("tier.remote.capacity", remote.capacity_bytes, OPTIONS_SIMULATED),
    OPTIONS_RANGE("tier.remote.nodes", remote.nodes, OPTIONS_WITH_REMOTE, 1, REPLAY_NODES_MAX,
                  "1 to 64"),
    OPTIONS_RANGE("tier.remote.node_bandwidth", remote.node_bytes_per_s, OPTIONS_WITH_REMOTE, 1,
                  1e15, "1 byte/s and more"),
    OPTIONS_RANGE("tier.remote.host_bandwidth", remote.host_bytes_per_s, OPTIONS_WITH_REMOTE, 1,
                  1e15, "1 byte/s and more"),
    OPTIONS_RANGE("tier.remote.latency", remote.latency_seconds, OPTIONS_WITH_REMOTE, 0, 3600,
                  "0 to 3600 s"),
    OPTIONS_FIELD("tier.remote.publish", remote.publish, OPTIONS_WITH_REMOTE),
    OPTIONS_FIELD("tier.remote.write_rate", remote.write_bytes_per_s, OPTIONS_WITH_REMOTE),
    OPTIONS_FIELD("replay.bounds", bounds, OPTIONS_SIMULATED),
    OPTIONS_FIELD("replay.hints", hints, OPTIONS_SIMULATED),
    OPTIONS_FIELD("replay.store_model", store_model, OPTIONS_SIMULATED),
    OPTIONS_FIELD("store.put_staging", put_staging_bytes, OPTIONS_STORE_MODEL),
    OPTIONS_FIELD("store.put_backlog", put_backlog_seconds, OPTIONS_STORE_MODEL),
    OPTIONS_FIELD("store.seed", policy_seed, 0),
    OPTIONS_FIELD("store.alpha", alpha_seconds, 0),
    OPTIONS_FIELD("store.half_life", half_life_seconds, 0),
    OPTIONS_FIELD("store.hysteresis", hysteresis, 0),
    OPTIONS_FIELD("store.holes", holes, 0),
    OPTIONS_FIELD("store.high_watermark", high_watermark, 0),
    OPTIONS_FIELD("store.low_watermark", low_watermark, 0),
    OPTIONS_FIELD("store.moves_per_tick", moves_per_tick, 0),
    OPTIONS_FIELD("store.move_rate", move_bytes_per_s, 0),
};

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
    options->variant = options_raw();
    options->tick_seconds = OPTIONS_TICK_SECONDS;
    options->write_lag_seconds = OPTIONS_WRITE_LAG_SECONDS;
    options->copy_bytes_per_s = OPTIONS_COPY_BYTES_PER_S;
    options_add_raw(options);
    kvt_status status = kvt_prefill_preset("llama-3.1-8b:a100", &options->model.prefill);
    assert(status == KVT_OK); /* a name that the estimator's table holds */
    (void)status;
    snprintf(options->prefill_name, sizeof options->prefill_name, "llama-3.1-8b:a100");
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        options->tiers[tier] = options_default_tier[tier];
    }
}

void replay_options_free(replay_options *options)
{
    if (options == NULL) return;
    kvt_prefill_free(&options->model.prefill);
    memset(options, 0, sizeof *options);
}

static const char *options_tick_fault(double seconds)
{
    if (!(seconds >= 0.0 && seconds <= 1e6)) return "store.tick: 0 to 1e6 s";
    return seconds > 0.0 && seconds < 1e-3 ? "store.tick: 0, or 1 ms and more" : NULL;
}

/* The parts of the simulator that are of one host. */
static const char *options_hosts_fault(const replay_options *options)
{
    if (options->route == REPLAY_ROUTE_SPILL &&
        !(options->spill_share >= 0.0 && options->spill_share <= 1.0))
        return "replay.route: sticky, random, least_loaded or spill:SHARE, a share of 0 to 1";
    if (!replay_has_hosts(options)) return NULL;
    if (options->store_model) return "replay.store_model: a store of one host is modelled";
    if (options->prefetch) return "replay.prefetch: of one host alone";
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
    const settings_field *outside = settings_out_of_range(options_fields, count, options);
    if (outside != NULL) {
        snprintf(message, message_size, "%s: %s", outside->setting, outside->range);
        return KVT_E_CONFIG;
    }
    const char *fault = options_tick_fault(options->tick_seconds);
    if (fault == NULL) fault = options_hosts_fault(options);
    for (int tier = 1; tier < KVT_TIER_COUNT && fault == NULL; tier++) {
        const replay_tier *model = &options->tiers[tier];
        options->model.present[tier] = model->capacity_bytes > 0;
        if (model->capacity_bytes == 0) continue;
        options->model.read[tier] = model->read;
        options->model.write[tier] = model->write;
        if (!options_affine_is_sound(&model->read)) {
            fault = tier_keys[tier][1];
        } else if (!options_affine_is_sound(&model->write)) {
            fault = tier_keys[tier][2];
        }
    }
    if (fault == NULL) return KVT_OK;
    snprintf(message, message_size, "%s%s", fault,
             strchr(fault, ':') != NULL ? "" : ": a bandwidth of at least 1 byte/s is needed");
    return KVT_E_CONFIG;
}

/* Devices striped together: bandwidths add up, the slowest request counts. */
typedef struct options_stripe {
    kvt_affine read, write;
    uint32_t unwritten;
} options_stripe;

static void options_add_device(options_stripe *stripe, const kvt_device_curve *curve)
{
    kvt_affine *read = &stripe->read, *write = &stripe->write;
    read->bytes_per_s += curve->read.bytes_per_s;
    write->bytes_per_s += curve->write.bytes_per_s;
    stripe->unwritten += curve->write.bytes_per_s <= 0.0;
    read->request_seconds = fmax(read->request_seconds, curve->read.request_seconds);
    write->request_seconds = fmax(write->request_seconds, curve->write.request_seconds);
}

static void options_take_stripe(replay_options *options, int tier, const options_stripe *stripe,
                                bool measured_out[2])
{
    measured_out[KVT_IO_READ] = stripe->read.bytes_per_s > 0.0;
    /* One member without a write curve leaves the whole tier without one. */
    measured_out[KVT_IO_WRITE] = stripe->write.bytes_per_s > 0.0 && stripe->unwritten == 0;
    if (measured_out[KVT_IO_READ]) options->tiers[tier].read = stripe->read;
    if (measured_out[KVT_IO_WRITE]) options->tiers[tier].write = stripe->write;
}

/* All devices of a tier that were measured; imported ones stand for hardware of somebody's. */
static kvt_status options_tier_from_profile(replay_options *options, kvt_profile *profile, int tier,
                                            bool measured_out[2])
{
    kvt_device_curve curve;
    options_stripe stripe = {.unwritten = 0};
    kvt_status status;
    for (size_t i = 0; (status = kvt_profile_device_at(profile, i, &curve)) == KVT_OK; i++)
        if (curve.tier == tier && !curve.imported) options_add_device(&stripe, &curve);
    if (status != KVT_END) return status;
    options_take_stripe(options, tier, &stripe, measured_out);
    return KVT_OK;
}

/* One of the names in tier.*.devices; the same one twice is two of its kind. */
static kvt_status options_add_named(options_stripe *stripe, kvt_profile *profile, int tier,
                                    const char *name, char *message, size_t message_size)
{
    kvt_device_curve curve;
    kvt_status status = kvt_profile_device(profile, name, &curve);
    if (status == KVT_OK && curve.tier == tier) {
        options_add_device(stripe, &curve);
        return KVT_OK;
    }
    if (status < 0) {
        snprintf(message, message_size, "%s", kvt_status_text(status));
        return status;
    }
    if (status == KVT_OK) {
        snprintf(message, message_size, "%s: the profile's %s is of tier %s", tier_keys[tier][4],
                 name, kvt_tier_name(curve.tier));
    } else {
        snprintf(message, message_size, "%s: the profile knows no device \"%s\"",
                 tier_keys[tier][4], name);
    }
    return KVT_E_CONFIG;
}

/* The devices that a setting names, imported ones among them. Without a profile at hand nothing is
 * looked up. */
static kvt_status options_tier_by_names(replay_options *options, kvt_config *config,
                                        kvt_profile *profile, int tier, bool measured_out[2],
                                        char *message, size_t message_size)
{
    options_stripe stripe = {.unwritten = 0};
    char name[64];
    const char *at = kvt_config_text(config, tier_keys[tier][4]);
    kvt_status status = KVT_OK;
    if (kvt_config_text(config, "store.profile") == NULL) {
        snprintf(message, message_size, "%s: needs store.profile", tier_keys[tier][4]);
        return KVT_E_CONFIG;
    }
    while (profile != NULL && status == KVT_OK) {
        at += strspn(at, ", ");
        size_t length = strcspn(at, ", ");
        if (length == 0) break;
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        status = options_add_named(&stripe, profile, tier, name, message, message_size);
        at += length;
    }
    if (profile == NULL) {
        measured_out[KVT_IO_READ] = measured_out[KVT_IO_WRITE] = true;
    } else if (status == KVT_OK) {
        options_take_stripe(options, tier, &stripe, measured_out);
        options_note(options, "%s is made of %s, from the profile.", kvt_tier_name(tier),
                     kvt_config_text(config, tier_keys[tier][4]));
    }
    return status;
}

/* Says which of a tier's speeds are neither set nor measured. */
static void options_note_defaults(replay_options *options, int tier, bool read, bool write)
{
    const replay_tier *model = &options->tiers[tier];
    if (read && write && model->read.bytes_per_s == model->write.bytes_per_s) {
        options_note(options, "%s at the default %.4g GB/s, not measured.", kvt_tier_name(tier),
                     model->read.bytes_per_s * 1e-9);
        return;
    }
    if (read) {
        options_note(options, "%s reads at the default %.4g GB/s, not measured.",
                     kvt_tier_name(tier), model->read.bytes_per_s * 1e-9);
    }
    if (write) {
        options_note(options, "%s writes at the default %.4g GB/s, not measured.",
                     kvt_tier_name(tier), model->write.bytes_per_s * 1e-9);
    }
}

/* No tier is set: the capacities of a published host, and what the profile measured. Speeds that
 * are set for a tier without a capacity stay unread, and are reported as without effect. */
static kvt_status options_take_standard(kvt_profile *profile, replay_options *options)
{
    static const int tiers[] = {KVT_TIER_DRAM, KVT_TIER_SSD};
    options->tiers[KVT_TIER_DRAM].capacity_bytes = OPTIONS_ADAPTCACHE_DRAM;
    options->tiers[KVT_TIER_SSD].capacity_bytes = OPTIONS_ADAPTCACHE_SSD;
    options_note(options, "No tier is set: the host of AdaptCache's evaluation is simulated, "
                          "100 GB of DRAM at 25 GB/s and 400 GB of SSD at 1 GB/s.");
    for (size_t i = 0; profile != NULL && i < sizeof tiers / sizeof tiers[0]; i++) {
        bool measured[2] = {false, false};
        kvt_status status = options_tier_from_profile(options, profile, tiers[i], measured);
        if (status != KVT_OK) return status;
        if (!measured[KVT_IO_READ]) continue;
        options_note(options, "But %s as the profile measured it: reads at %.4g GB/s.",
                     kvt_tier_name(tiers[i]), options->tiers[tiers[i]].read.bytes_per_s * 1e-9);
        options_note_defaults(options, tiers[i], false, !measured[KVT_IO_WRITE]);
    }
    return KVT_OK;
}

/* The tier's speeds as the profile has them, where it has. */
static kvt_status options_profile_tier(kvt_config *config, kvt_profile *profile, int tier,
                                       replay_options *options, bool measured_out[2], char *message,
                                       size_t message_size)
{
    if (kvt_config_text(config, tier_keys[tier][4]) != NULL) {
        return options_tier_by_names(options, config, profile, tier, measured_out, message,
                                     message_size);
    }
    if (profile == NULL) return KVT_OK;
    kvt_status status = options_tier_from_profile(options, profile, tier, measured_out);
    if (status != KVT_OK)
        snprintf(message, message_size, "%s: %s", options->profile, kvt_status_text(status));
    return status;
}

static kvt_status options_read_tiers(kvt_config *config, kvt_profile *profile,
                                     replay_options *options, char *message, size_t message_size)
{
    bool any = false, named = false;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        replay_tier *model = &options->tiers[tier];
        bool measured[2] = {false, false};
        named |= kvt_config_has(config, tier_keys[tier][0]);
        model->capacity_bytes = kvt_config_bytes(config, tier_keys[tier][0]);
        if (model->capacity_bytes == 0) continue;
        any = true;
        kvt_status status =
            options_profile_tier(config, profile, tier, options, measured, message, message_size);
        if (status != KVT_OK) return status;
        bool set = kvt_config_has(config, tier_keys[tier][1]);
        bool set_write = set || kvt_config_has(config, tier_keys[tier][2]);
        if (set) {
            model->read.bytes_per_s = (double)kvt_config_bytes(config, tier_keys[tier][1]);
            /* One figure for a tier means both directions until the other one is set. */
            model->write.bytes_per_s = model->read.bytes_per_s;
        }
        if (kvt_config_has(config, tier_keys[tier][2])) {
            model->write.bytes_per_s = (double)kvt_config_bytes(config, tier_keys[tier][2]);
        }
        if (kvt_config_has(config, tier_keys[tier][3])) {
            model->read.request_seconds = kvt_config_number(config, tier_keys[tier][3]);
            model->write.request_seconds = model->read.request_seconds;
        }
        options_note_defaults(options, tier, !set && !measured[KVT_IO_READ],
                              !set_write && !measured[KVT_IO_WRITE]);
    }
    if (any) return KVT_OK;
    if (named) {
        snprintf(message, message_size,
                 "every tier that is set has a capacity of 0: give one of "
                 "them room; the policy none shows what no cache costs");
        return KVT_E_CONFIG;
    }
    kvt_status status = options_take_standard(profile, options);
    if (status != KVT_OK)
        snprintf(message, message_size, "%s: %s", options->profile, kvt_status_text(status));
    return status;
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
        kvt_profile_ladder(profile, model, colon + 1, NULL, options->model.variants,
                           KVT_VARIANTS_MAX, &options->model.variant_count, message, message_size);
    /* Blocks of a trace are counted by their tokens: variants that drop some are none for them. */
    uint32_t kept = 0;
    for (uint32_t i = 0; i < options->model.variant_count; i++)
        if (options->model.variants[i].variant.mode >> 8 == 0)
            options->model.variants[kept++] = options->model.variants[i];
    options->model.variant_count = kept;
    return status == KVT_MISS ? KVT_E_CONFIG : status;
}

/* A ladder replaces what a profile knows of variants; the fixed policies must find theirs in it. */
static kvt_status options_read_ladder(kvt_config *config, kvt_profile *profile, const char *path,
                                      replay_options *options, char *message, size_t message_size)
{
    static const char of_profile[] = "profile:";
    kvt_status status;
    if (strncmp(path, of_profile, sizeof of_profile - 1) == 0) {
        status = options_profile_ladder(profile, path + sizeof of_profile - 1, options, message,
                                        message_size);
    } else {
        status = kvt_ladder_read_csv(path, options->model.variants, KVT_VARIANTS_MAX,
                                     &options->model.variant_count, message, message_size);
    }
    if (status != KVT_OK) return status;
    snprintf(options->ladder, sizeof options->ladder, "%s", path);
    options_read_fields(config, OPTIONS_WITH_LADDER, options);
    options_note(options, "Forms, sizes and losses come from %s.", path);
    return KVT_OK;
}

/* The lossless variant is offered only with a measured curve; a guessed one would decide. */
static kvt_status options_read_variants(kvt_config *config, kvt_profile *profile, bool live,
                                        replay_options *options, char *message, size_t message_size)
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
        return options_read_ladder(config, profile, ladder, options, message, message_size);
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
        options_note(options, "The lossless form is not offered: no profile holds its curve.");
    }
    return KVT_OK;
}

/* A prefill model of the profile. Of a live replay the store has looked it up, and its name is all
 * that is needed here; the same when settings are only checked. */
static kvt_status options_named_prefill(kvt_config *config, kvt_profile *profile, const char *name,
                                        replay_options *options, char *message, size_t message_size)
{
    snprintf(options->prefill_name, sizeof options->prefill_name, "%.63s", name);
    if (kvt_config_text(config, "store.profile") == NULL) {
        snprintf(message, message_size, "prefill.profile: needs store.profile");
        return KVT_E_CONFIG;
    }
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
    const char *csv = kvt_config_text(config, "prefill.csv");
    const char *named = kvt_config_text(config, "prefill.profile");
    if (csv != NULL && named != NULL) {
        snprintf(message, message_size, "prefill.csv and prefill.profile exclude each other");
        return KVT_E_CONFIG;
    }
    if (named != NULL)
        return options_named_prefill(config, profile, named, options, message, message_size);
    if (csv == NULL) {
        snprintf(options->prefill_name, sizeof options->prefill_name, "llama-3.1-8b:%s",
                 kvt_config_text(config, "prefill.gpu"));
        kvt_status status = kvt_prefill_preset(options->prefill_name, &options->model.prefill);
        if (status != KVT_OK) {
            snprintf(message, message_size, "prefill.gpu: no preset %s", options->prefill_name);
            return KVT_E_CONFIG;
        }
        return KVT_OK;
    }
    uint64_t layers = kvt_config_bytes(config, "prefill.layers");
    if (layers < 1 || layers > 65535) {
        snprintf(message, message_size, "prefill.layers: 1 to 65535");
        return KVT_E_CONFIG;
    }
    const char *slash = strrchr(csv, '/');
    snprintf(options->prefill_name, sizeof options->prefill_name, "%.62s",
             slash != NULL ? slash + 1 : csv);
    return kvt_prefill_read_csv(csv, (uint32_t)layers, &options->model.prefill, message,
                                message_size);
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

static void options_read_hosts(kvt_config *config, replay_options *options)
{
    if (options->hosts > 1) options_read_route(config, options);
    if (options->remote.capacity_bytes > 0)
        options_read_fields(config, OPTIONS_WITH_REMOTE, options);
    /* The bound is that of one host's tiers. */
    if (replay_has_hosts(options)) options->bounds = false;
}

static void options_read_plain(kvt_config *config, bool live, replay_options *options)
{
    options_read_fields(config, live ? OPTIONS_LIVE : OPTIONS_SIMULATED, options);
    if (!live) options_read_hosts(config, options);
    if (!live && options->overlap) options_read_fields(config, OPTIONS_WITH_OVERLAP, options);
    /* The bounds of puts are a store's settings; a plain simulation has none. */
    if (!live && options->store_model) options_read_fields(config, OPTIONS_STORE_MODEL, options);
    options->plan_log = kvt_config_text(config, "replay.plan_log");
    /* A simulation's rounds are further apart unless they are set. */
    if (live || kvt_config_has(config, "store.tick"))
        options->tick_seconds = kvt_config_number(config, "store.tick");
}

kvt_status replay_options_read(kvt_config *config, bool live, replay_options *options,
                               char *message, size_t message_size)
{
    assert(config != NULL && options != NULL && message_size > 0);
    kvt_profile *profile = NULL;
    replay_options_init(options);
    options_read_plain(config, live, options);
    if (options->holes == KVT_HOLES_MIXED) {
        /* The engine would plan for requests that load behind a hole; none of these does. */
        snprintf(message, message_size,
                 "store.holes: a replay's requests use a path up to its first hole; mixed would "
                 "have the engine plan for others");
        return KVT_E_CONFIG;
    }
    const char *path = kvt_config_text(config, "store.profile");
    bool foreign = kvt_config_switch(config, "store.profile_foreign");
    kvt_status status = KVT_OK;
    if (path != NULL && !live) {
        snprintf(options->profile, sizeof options->profile, "%s", path);
        uint32_t flags = foreign ? KVT_PROFILE_FOREIGN : 0u;
        status = kvt_profile_open(path, KVT_PROFILE_READ | flags, &profile, message, message_size);
        if (status == KVT_MISS) {
            snprintf(message, message_size, "%s: no such profile", path);
            status = KVT_E_GONE;
        }
    }
    if (status == KVT_OK) {
        status = options_read_variants(config, profile, live, options, message, message_size);
    }
    if (status == KVT_OK && !live) {
        status = options_read_tiers(config, profile, options, message, message_size);
    }
    if (status == KVT_OK) {
        status = options_read_prefill(config, profile, options, message, message_size);
    }
    if (status == KVT_OK) status = replay_options_check(options, message, message_size);
    if (profile != NULL) kvt_profile_close(profile);
    if (status != KVT_OK) replay_options_free(options);
    return status;
}

kvt_status replay_settings_check(kvt_config *config, char *message, size_t message_size)
{
    replay_options options;
    replay_generator generator;
    replay_options_init(&options);
    for (int live = 0; live < 2; live++)
        options_read_plain(config, live != 0, &options);
    kvt_status status = options_read_variants(config, NULL, true, &options, message, message_size);
    if (status == KVT_OK)
        status = options_read_tiers(config, NULL, &options, message, message_size);
    if (status == KVT_OK)
        status = options_read_prefill(config, NULL, &options, message, message_size);
    if (status == KVT_OK) status = replay_options_check(&options, message, message_size);
    replay_options_free(&options);
    if (status != KVT_OK) return status;
    replay_generator_read(config, &generator);
    return replay_generator_check(&generator, message, message_size);
}

#define GENERATOR_FIELD(name, member) SETTINGS_FIELD(replay_generator, name, member, .modes = 0)

static const settings_field generator_fields[] = {
    GENERATOR_FIELD("workload.rate", requests_per_s),
    GENERATOR_FIELD("workload.requests", requests),
    GENERATOR_FIELD("workload.contexts", contexts),
    GENERATOR_FIELD("workload.zipf", zipf),
    GENERATOR_FIELD("workload.tokens_median", tokens_median),
    GENERATOR_FIELD("workload.tokens_sigma", tokens_sigma),
    GENERATOR_FIELD("workload.tokens_max", tokens_max),
    GENERATOR_FIELD("workload.turns_mean", turns_mean),
    GENERATOR_FIELD("workload.turn_tokens", turn_tokens),
    GENERATOR_FIELD("workload.system_tokens", system_tokens),
    GENERATOR_FIELD("workload.think_time", think_seconds),
    GENERATOR_FIELD("replay.block_tokens", block_tokens),
    GENERATOR_FIELD("replay.seed", seed),
    GENERATOR_FIELD("workload.drift", drift_per_s),
    GENERATOR_FIELD("workload.scan_rate", scan.per_s),
    GENERATOR_FIELD("workload.scan_time", scan.window_seconds),
    GENERATOR_FIELD("workload.scan_period", scan.period_seconds),
    GENERATOR_FIELD("workload.crowd_rate", crowd.per_s),
    GENERATOR_FIELD("workload.crowd_time", crowd.window_seconds),
    GENERATOR_FIELD("workload.crowd_period", crowd.period_seconds),
};

void replay_generator_read(kvt_config *config, replay_generator *generator)
{
    memset(generator, 0, sizeof *generator);
    settings_read(config, NULL, generator_fields,
                  sizeof generator_fields / sizeof generator_fields[0], 0, generator);
    uint64_t limit = kvt_config_bytes(config, "replay.limit");
    if (limit > 0 && limit < generator->requests) generator->requests = limit;
}
