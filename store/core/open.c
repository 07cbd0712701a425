/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open.c - opening a store: devices, labels, catalog, recovery, policy, background.
 *
 * Order, and what each step needs:
 *     profile -> catalog -> devices -> preflight -> labels checked -> costs of the profile
 *     -> devices measured -> rows read, stale ones dropped -> epoch announced
 *     -> labels written (superblock.h protocol) -> staging -> pools -> policy -> recovery
 *     -> the engine's client -> the watch file -> the store's threads. A thread touches the
 *     staging meanwhile. With serve_early all of it runs on a thread, which hands the store out
 *     once the costs of the profile are known (early.h).
 * Every member of the store is made before the first of the store's threads starts (open_start):
 * a thread reads any member without asking whether the open has come that far.
 * Nothing is written before preflight, labels and profile have passed, and a measurement writes
 * only to a device that nobody can want back. A failure closes what was opened.
 *
 * Thread rule: open is not concurrent with anything. close.c closes.
 */
#include "base/kill_point.h"
#include "base/thread.h"
#include "base/wait.h"
#include "codecs/codec_table.h"
#include "store/background/lifetime.h"
#include "store/background/maintain.h"
#include "store/catalog/recovery.h"
#include "store/core/given_options.h"
#include "store/core/handover.h"
#include "store/core/open_internal.h"
#include "store/core/options.h"
#include "store/follow/early.h"
#include "store/follow/follow.h"
#include "store/hosts/remote_tier.h"
#include "store/learn/costs.h"
#include "store/learn/ladder.h"
#include "store/learn/slot_sizes.h"
#include "store/learn/uses.h"
#include "store/watch/watching.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* A crash forgets at most so much of a device's wear. */
#define OPEN_WEAR_STEP (UINT64_C(64) << 20)

/* Slots laid out under one hold of a pool's lock. */
#define OPEN_SLOTS 4096u

_Static_assert((int)KVT_PLACE_PROPORTIONAL == (int)TIERS_STRIPE_PROPORTIONAL &&
                   (int)KVT_PLACE_EQUAL == (int)TIERS_STRIPE_EQUAL &&
                   (int)KVT_PLACE_ROUND_ROBIN == (int)TIERS_STRIPE_ROUND_ROBIN &&
                   (int)KVT_PLACE_TENSOR == (int)TIERS_STRIPE_TENSOR &&
                   (int)KVT_PLACE_ENTRY == (int)TIERS_STRIPE_ENTRY,
               "a placement is a striping");

/* ---- devices ---- */

/* A member must not be one of the store's databases: opening and closing it would drop the locks
 * that SQLite holds on it, and a label would destroy it. */
static kvt_status open_refuse_database(const open_state *state, const kvt_device_config *config)
{
    struct stat member, profile;
    const char *found = NULL;
    const char *path = config->path;
    if (path == NULL || stat(path, &member) != 0) return KVT_OK;
    if (state->store->catalog != NULL && catalog_is_file(state->store->catalog, path))
        found = "catalog";
    if (state->options->learning.profile_path != NULL &&
        stat(state->options->learning.profile_path, &profile) == 0 &&
        profile.st_dev == member.st_dev && profile.st_ino == member.st_ino)
        found = "profile";
    if (found == NULL) return KVT_OK;
    snprintf(state->message, state->message_size, "device %s: %s is the store's %s",
             config->name != NULL ? config->name : "", path, found);
    return KVT_E_ARGUMENT;
}

/* Opens one device of a tier and adds it to the state. A device without a label is blank. */
static kvt_status open_one_device(open_state *state, kvt_tier tier, uint32_t member,
                                  const kvt_device_config *config)
{
    open_device *device = &state->devices[state->device_count];
    kvt_status status = open_refuse_database(state, config);
    if (status != KVT_OK) return status;
    kvt_device_config own = *config;
    own.follow_symlinks = config->follow_symlinks || state->options->follow_symlinks;
    status = bringup_open(&own, &device->device, state->message, state->message_size);
    if (status != KVT_OK) return status;
    if (state->note[0] == '\0') snprintf(state->note, sizeof state->note, "%s", state->message);
    state->message[0] = '\0';
    state->device_count++;
    device->tier = tier;
    device->member = member;
    device->config = *config;
    if (state->store->catalog != NULL && tier == KVT_TIER_SSD) {
        status = catalog_read_wear(state->store->catalog, config->name, &device->wear);
        if (status != KVT_OK) return status;
    }
    if ((device->device->facts.flags & KVT_DEVICE_NO_DATA) != 0) {
        snprintf(state->message, state->message_size, "device %s (%s) keeps no bytes", config->name,
                 config->backend);
        return KVT_E_ARGUMENT;
    }
    device->labelled = (device->device->facts.flags & KVT_DEVICE_DURABLE) != 0;
    device->blank = device->given_up = !device->labelled;
    for (uint32_t i = 0; i + 1 < state->device_count; i++) {
        if (strcmp(state->devices[i].device->name, device->device->name) != 0) continue;
        snprintf(state->message, state->message_size, "device %s is named twice",
                 device->device->name);
        return KVT_E_ARGUMENT;
    }
    return KVT_OK;
}

/* Opens the memory of a tier that has a capacity and no device: a GPU's, or the host's. */
static kvt_status open_plain_device(open_state *state, kvt_tier tier)
{
    kvt_device_config config = {.struct_size = sizeof config,
                                .name = kvt_tier_name((int)tier),
                                .backend = tier == KVT_TIER_HBM ? "hbm" : "memory",
                                .emulated = state->options->tiers[tier].emulated,
                                .capacity_bytes = state->options->tiers[tier].capacity_bytes};
    if (tier == KVT_TIER_SSD) {
        snprintf(state->message, state->message_size, "tier ssd has a capacity but no device");
        return KVT_E_ARGUMENT;
    }
    uint64_t odd = config.capacity_bytes % TIERS_GRAIN_BYTES;
    if (odd != 0 && odd < config.capacity_bytes && state->note[0] == '\0') {
        snprintf(
            state->note, sizeof state->note,
            "tier %s: its capacity of %llu bytes was rounded down to %llu, a multiple of 4 KiB",
            kvt_tier_name((int)tier), (unsigned long long)config.capacity_bytes,
            (unsigned long long)(config.capacity_bytes - odd));
    }
    return open_one_device(state, tier, 0, &config);
}

/* Opens the devices of all tiers, in the order of the options. */
static kvt_status open_devices(open_state *state)
{
    uint32_t count = 0;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        count += state->options->tiers[tier].device_count + 1;
    }
    state->devices = calloc(count, sizeof *state->devices);
    if (state->devices == NULL) return KVT_E_MEMORY;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        const kvt_tier_options *options = &state->options->tiers[tier];
        kvt_status status = KVT_OK;
        if (options->device_count == 0 && options->capacity_bytes != 0) {
            status = open_plain_device(state, (kvt_tier)tier);
        }
        for (uint32_t i = 0; i < options->device_count && status == KVT_OK; i++) {
            status = open_one_device(state, (kvt_tier)tier, i, &options->devices[i]);
        }
        if (status != KVT_OK) return status;
    }
    if (state->device_count == 0) {
        snprintf(state->message, state->message_size, "no tier has a capacity or a device");
        return KVT_E_ARGUMENT;
    }
    return KVT_OK;
}

/* Sets the first serial of this life. The epoch in the upper half puts it above the serials of all
 * earlier lives. The random start in the lower half keeps it unlike serials of a life with the same
 * epoch, as after a catalog was brought back from a copy. */
static kvt_status open_serials(open_state *state)
{
    uint32_t start;
    memcpy(state->store->pool_id, state->pool_id, sizeof state->pool_id);
    state->store->epoch = state->epoch + 1;
    if (getrandom(&start, sizeof start, 0) != (ssize_t)sizeof start) return KVT_E_IO;
    state->store->next_serial = ((state->epoch + 1) << 32) + (start >> 2) + 1;
    return KVT_OK;
}

/* Opens the catalog and takes its identity; without a catalog both are drawn for this life. */
static kvt_status open_catalog(open_state *state)
{
    const char *path = state->options->durability.catalog_path;
    if (path == NULL) {
        ssize_t got = getrandom(state->pool_id, sizeof state->pool_id, 0);
        uint32_t life;
        if (getrandom(&life, sizeof life, 0) != (ssize_t)sizeof life) got = -1;
        state->epoch = life >> 2; /* lives without a catalog have no order, only a difference */
        return got == (ssize_t)sizeof state->pool_id ? KVT_OK : KVT_E_IO;
    }
    uint32_t flags = state->options->follow_symlinks ? CATALOG_FOLLOW : 0;
    if (state->early != NULL) flags |= CATALOG_UNCHECKED;
    kvt_status status =
        catalog_open(path, flags, &state->store->catalog, state->message, state->message_size);
    if (status != KVT_OK) return status;
    catalog_identity(state->store->catalog, state->pool_id, &state->epoch);
    return KVT_OK;
}

/* Checks the structure of a catalog that was opened without. */
static kvt_status open_check_catalog(open_state *state)
{
    const kvt_status status = catalog_check_structure(state->store->catalog);
    if (status == KVT_E_CORRUPT)
        snprintf(state->message, state->message_size,
                 "catalog %s: it is damaged; kvterrace recover makes a new one from the devices",
                 state->options->durability.catalog_path);
    else if (status != KVT_OK)
        open_say_catalog(state, status);
    return status;
}

/* Sets the secret of handles: from handle_seed, so that runs repeat; else the catalog's; else one
 * drawn for this life. */
static kvt_status open_secret(open_state *state)
{
    entry_secret *secret = &state->store->secret;
    uint8_t bytes[sizeof secret->words];
    uint64_t seed = state->options->handle_seed;
    if (seed != 0) {
        *secret = (entry_secret){{seed, ~seed}};
        return KVT_OK;
    }
    if (state->store->catalog != NULL) {
        catalog_secret(state->store->catalog, bytes);
    } else if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        return KVT_E_IO;
    }
    memcpy(secret->words, bytes, sizeof bytes);
    return KVT_OK;
}

/* ---- costs ---- */

/* The message for a device that cannot be measured. */
static void open_say_measured(const open_state *state, const char *name, kvt_status status)
{
    snprintf(state->message, state->message_size, "device %s: cannot be measured: %s", name,
             kvt_status_text(status));
}

/* A probe moves some MiB. A cap at which that takes more than seconds is the figure itself; where
 * one direction alone is capped so, its figure stands for both. */
#define OPEN_PROBE_LEAST UINT64_C(2000000) /* bytes per second */

/* Takes the caps of a device that is too slow to be probed as its figures. False: it is probed. */
static bool open_take_caps(open_device *device)
{
    const kvt_device_config *config = &device->config;
    const uint64_t read = config->read_bytes_per_s, write = config->write_bytes_per_s;
    const bool slow_read = read > 0 && read < OPEN_PROBE_LEAST;
    const bool slow_write = write > 0 && write < OPEN_PROBE_LEAST;
    if (!slow_read && !slow_write) return false;
    device->cost = (cost_device){.probed = true};
    device->cost.read.request_seconds = (double)config->latency_ns * 1e-9;
    device->cost.write.request_seconds = device->cost.read.request_seconds;
    device->cost.read.bytes_per_s = (double)(read > 0 ? read : write);
    device->cost.write.bytes_per_s = (double)(write > 0 ? write : read);
    return true;
}

/* Probes the devices that the profile has no figures of. A device whose content is given up is
 * written, any other is only read. */
static kvt_status open_measure(open_state *state)
{
    for (uint32_t i = 0; i < state->device_count; i++) {
        open_device *device = &state->devices[i];
        uint64_t head = device->labelled ? TIERS_SUPERBLOCK_BYTES : 0;
        char name[32];
        if (!device->measure || open_take_caps(device)) continue;
        snprintf(name, sizeof name, "%s", device->device->name);
        kvt_status status = bringup_measure(&device->device, device->config.timeout_ns,
                                            device->given_up, head, &device->cost);
        if (status == KVT_OK) continue;
        open_say_measured(state, name, status);
        return status;
    }
    return KVT_OK;
}

kvt_status open_variants(kvt_store *store, const kvt_store_options *options,
                         const cost_profile *profile)
{
    kvt_cost_model *costs = &store->costs;
    kvt_variant raw = {.codec = KVT_CODEC_RAW};
    kvt_variant lossless = {.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE};
    kvt_status status = costs_measure_variant(profile, raw, &costs->variants[0]);
    costs->variant_count = 1;
    if (status == KVT_OK && (options->lossless || options->variant.codec == KVT_CODEC_LOSSLESS)) {
        status = costs_measure_variant(profile, lossless, &costs->variants[1]);
        costs->variant_count = 2;
    }
    if (status == KVT_OK) status = ladder_add_costs(store, profile);
    if (status == KVT_OK) status = learn_profiled_gpu(profile, costs);
    if (status != KVT_OK) return status;
    /* The variant of the fixed policies is among those that the store keeps, and does not wait. */
    for (uint32_t i = 0; i < costs->variant_count; i++)
        if (memcmp(&costs->variants[i].variant, &options->variant, sizeof options->variant) == 0 &&
            costs->variants[i].loss_upper <= options->loss.loss_limit)
            return KVT_OK;
    (void)snprintf(profile->message, profile->message_size,
                   "the fixed policies' variant is not in the ladder within loss_limit");
    return KVT_E_ARGUMENT;
}

/* Reads the profile's figures of devices and codecs. Devices without figures are marked, to be
 * measured after everything that can refuse the open has passed. */
static kvt_status open_costs(open_state *state)
{
    kvt_cost_model *costs = &state->store->costs;
    const cost_profile profile = {.profile = state->profile,
                                  .foreign = state->options->learning.profile_foreign,
                                  .message = state->message,
                                  .message_size = state->message_size,
                                  .bases = bases_at_open(state->store)};
    for (uint32_t i = 0; i < state->device_count; i++) {
        open_device *device = &state->devices[i];
        kvt_status status = costs_profiled_device(&profile, device->device, &device->cost);
        device->measure = status == KVT_MISS;
        if (status == KVT_OK || status == KVT_MISS) continue;
        if (status != KVT_E_MISMATCH) open_say_measured(state, device->device->name, status);
        return status;
    }
    kvt_status status = open_variants(state->store, state->options, &profile);
    costs->prefill = state->options->prefill;
    state->store->holes = state->options->holes;
    costs->parallel_codecs = 1;
    costs->loss_limit = state->options->loss.ladder ? state->options->loss.loss_limit : 0.0;
    return status;
}

/* ---- pools ---- */

/* Makes the pool of a tier, which owns the tier's devices from then on, and folds their figures
 * into the tier's costs. A tier without devices has no pool. */
static kvt_status open_pool(open_state *state, kvt_tier tier)
{
    tiers_member_options members[TIERS_MEMBERS_MAX];
    cost_device costs[TIERS_MEMBERS_MAX];
    uint32_t count = 0;
    uint64_t room = 0;
    for (uint32_t i = 0; i < state->device_count; i++) {
        const open_device *device = &state->devices[i];
        if (device->tier != tier) continue;
        uint64_t head = device->labelled ? TIERS_SUPERBLOCK_BYTES : 0;
        uint64_t bytes = device->device->facts.capacity_bytes;
        room += bytes > head ? (bytes - head) / TIERS_GRAIN_BYTES * TIERS_GRAIN_BYTES : 0;
        costs[count] = device->cost;
        members[count] =
            tiers_member_options_of(&device->config, device->device, device->cost.read.bytes_per_s,
                                    device->cost.write.bytes_per_s, &device->wear);
        members[count].request_seconds = device->cost.read.request_seconds;
        if (members[count].mix_kept == 0) members[count].mix_kept = device->cost.mix_kept;
        if (device->cost.begins_at != 0) members[count].align_bytes = device->cost.begins_at;
        members[count].reserved_head_bytes = head;
        count++;
    }
    if (count == 0) return KVT_OK;
    const kvt_tier_options *options = &state->options->tiers[tier];
    const kvt_io_options *io = &state->options->io;
    /* A tier as large as its devices means all of them; their labels need a few blocks. */
    bool all = options->capacity_bytes > room;
    tiers_slot_size slots[TIERS_SLOT_CLASSES_MAX];
    tiers_pool_options pool = {.capacity_bytes = all ? 0 : options->capacity_bytes,
                               .unit_bytes = options->unit_bytes,
                               .striping = (tiers_striping)options->placement,
                               .reweigh = !options->weights_fixed,
                               .order = (tiers_order)io->order,
                               .write_grain_ns = (uint64_t)(io->write_grain_seconds * 1e9),
                               .write_patience_ns = (uint64_t)(io->write_patience_seconds * 1e9),
                               .slots = slots};
    kvt_store *store = state->store;
    store->placement[tier] = options->placement;
    store->unit_bytes[tier] =
        options->unit_bytes != 0 ? options->unit_bytes : TIERS_UNIT_BYTES_DEFAULT;
    kvt_status status = learn_slot_sizes(options->slots, &state->options->loss.ladder_layout, slots,
                                         &pool.slot_count, state->message, state->message_size);
    if (status == KVT_OK)
        status = tiers_pool_open(members, count, &pool, &store->pools[tier], state->message,
                                 state->message_size);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < state->device_count; i++) {
        if (state->devices[i].tier == tier) state->devices[i].device = NULL;
    }
    store->costs.present[tier] = true;
    store->costs.read[tier] = costs_combine(costs, count, KVT_IO_READ);
    store->costs.write[tier] = costs_combine(costs, count, KVT_IO_WRITE);
    store->costs.arriving[tier] = !tiers_pool_in_memory(store->pools[tier]);
    for (uint32_t i = 0; i < count; i++)
        learn_set_member(store, tier, i, &members[i].device->facts, &costs[i].read, &costs[i].write,
                         members[i].in_flight_bytes_max);
    return KVT_OK;
}

/* ---- policy ---- */

/* Opens the policy with the pools' capacities and the costs of the tiers. */
static kvt_status open_policy(open_state *state)
{
    kvt_policy_config config;
    store_options_policy(state->options, &config);
    config.entries_reserved = state->row_count;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        if (state->store->pools[tier] == NULL) continue;
        uint64_t capacity = store_policy_capacity(state->store, (kvt_tier)tier);
        if (capacity == 0) {
            snprintf(state->message, state->message_size,
                     "tier %s is smaller than one stripe unit of %u bytes on each of its devices",
                     kvt_tier_name(tier), state->store->unit_bytes[tier]);
            return KVT_E_SPACE;
        }
        config.tiers[tier] =
            (kvt_tier_facts){.capacity_bytes = capacity,
                             .read_bytes_per_s = state->store->costs.read[tier].bytes_per_s,
                             .write_bytes_per_s = state->store->costs.write[tier].bytes_per_s,
                             .request_seconds = state->store->costs.read[tier].request_seconds};
    }
    kvt_status status =
        kvt_policy_open(&config, &state->store->policy, state->message, state->message_size);
    state->store->loss_limit = state->options->loss.ladder ? state->options->loss.loss_limit : 1.0;
    /* The limit once more, for what an entry's own sensitivity makes of a variant's loss. */
    const kvt_tenant limits = {.struct_size = sizeof limits,
                               .alpha_seconds = state->options->loss.alpha_seconds,
                               .alpha_prefills = state->options->loss.alpha_prefills,
                               .loss_limit = state->options->loss.loss_limit};
    if (status == KVT_OK && state->options->loss.ladder)
        status = kvt_policy_tenant_set(state->store->policy, 0, &limits);
    return status;
}

/* Refuses capacities and policy settings before a byte is written to a device: a failed open must
 * not have taken a device over. The policy's settings are checked by opening a trial policy. */
static kvt_status open_preflight(open_state *state)
{
    const kvt_store_options *options = state->options;
    uint64_t sums[KVT_TIER_COUNT] = {0};
    /* A device rounds its capacity down to whole blocks, so a tier may ask for that much more. */
    uint64_t odd[KVT_TIER_COUNT] = {0};
    for (uint32_t i = 0; i < state->device_count; i++) {
        sums[state->devices[i].tier] += state->devices[i].device->facts.capacity_bytes;
        odd[state->devices[i].tier] += TIERS_GRAIN_BYTES - 1;
    }
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        if (options->tiers[tier].capacity_bytes <= sums[tier] + odd[tier]) continue;
        snprintf(state->message, state->message_size,
                 "tier %s: a capacity of %llu bytes, but its devices hold %llu",
                 kvt_tier_name(tier), (unsigned long long)options->tiers[tier].capacity_bytes,
                 (unsigned long long)sums[tier]);
        return KVT_E_SPACE;
    }
    return store_options_try_policy(options, state->message, state->message_size);
}

/* ---- catalog writer and recovery ---- */

/* Syncs the SSD pool before a batch of the catalog, and queues wear that is due. */
static kvt_status open_sync(void *context)
{
    kvt_store *store = context;
    members_note_wear(store, OPEN_WEAR_STEP);
    return store->pools[KVT_TIER_SSD] == NULL ? KVT_OK
                                              : tiers_pool_sync(store->pools[KVT_TIER_SSD]);
}

/* A deleted row has been committed: its extents may be used again. */
static void open_release(void *context, tiers_location *location)
{
    kvt_store *store = context;
    tiers_pool_release(store->pools[KVT_TIER_SSD], location);
}

/* ---- open and close ---- */

/* Refuses options that are out of range, with the first fault in the message. */
static kvt_status open_check_options(const kvt_store_options *options, char *message,
                                     size_t message_size)
{
    const char *fault = NULL;
    if (options->policy == NULL) {
        fault = "policy is not named";
    } else if (!options->loss.ladder && !kvt_codec_is_exact(options->variant)) {
        fault = "variant is not one that a store keeps: raw, lossless, or with a ladder one of it";
    } else if (options->codec_workers != NULL &&
               (options->codec_workers->count == 0 || options->codec_workers->run == NULL)) {
        fault = "codec_workers are not filled";
    } else if ((unsigned)options->holes > KVT_HOLES_MIXED) {
        fault = "holes is not a kvt_hole_mode";
    }
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT && fault == NULL; tier++) {
        if (options->tiers[tier].unit_bytes % TIERS_GRAIN_BYTES != 0)
            fault = "a tier's unit_bytes is not a multiple of 4096";
        if (options->tiers[tier].placement > KVT_PLACE_ENTRY)
            fault = "a tier's placement is not a kvt_placement";
    }
    if (fault == NULL)
        return store_options_hold(options, message, message_size) ? KVT_OK : KVT_E_ARGUMENT;
    snprintf(message, message_size, "%s", fault);
    return KVT_E_ARGUMENT;
}

/* Touches the staging arena, which may take as long as the rest of an open. */
static void *open_touch(void *argument)
{
    staging_make_arena(argument, true);
    return NULL;
}

/* Begins to touch the arena on a thread of its own. */
static void open_begin_staging(open_state *state)
{
    state->touches =
        base_thread_start(&state->touching, open_touch, state->store->staging) == KVT_OK;
}

/* Waits until the arena is made; without a thread it is made here. */
static void open_end_staging(open_state *state)
{
    if (state->touches)
        pthread_join(state->touching, NULL);
    else
        open_touch(state->store->staging);
    state->touches = false;
}

/* Lets the caller have an early store, whose catalog has not been checked before. */
static kvt_status open_serve(open_state *state)
{
    early_begin(state);
    open_begin_staging(state);
    return state->early != NULL ? open_check_catalog(state) : KVT_OK;
}

/* Makes the staging arena and registers it with the devices. A device that cannot use it, or may
 * not lock so much memory, transfers all the same; the name of its engine says so. */
static void open_staging(open_state *state)
{
    store_staging *staging = state->store->staging;
    open_end_staging(state);
    if (staging->arena == NULL) return;
    const kvt_device_region region = {staging->arena, staging->arena_bytes};
    for (uint32_t i = 0; i < state->device_count; i++) {
        kvt_status ignored = kvt_device_register_buffers(state->devices[i].device, &region, 1);
        (void)ignored;
    }
}

/* Writes the watch file (store.watch_path) once, so that a wrong path fails the open. */
static kvt_status open_watch_file(open_state *state)
{
    const char *path = state->options->watch.path;
    const kvt_status status = watch_file_open(state->store, path, state->options->watch.seconds);
    if (status != KVT_OK)
        snprintf(state->message, state->message_size, "watch_path %s: %s", path,
                 kvt_status_text(status));
    return status;
}

/* Starts the threads that know the store, as its last step: nothing is made or filled behind this
 * but what the threads themselves share under locks. The executors come before the others, which
 * may put. A thread that cannot be started fails the open, and the close ends the others. */
static kvt_status open_start(open_state *state)
{
    kvt_store *store = state->store;
    assert(store->policy != NULL && store->watch != NULL && store->handover.made);
    assert((store->remote != NULL) == (state->options->remote != NULL));
    store->shared = true; /* who holds the lock matters from here on */
    kvt_status status = KVT_OK;
    if (store->catalog != NULL) {
        status = catalog_start(store->catalog, open_sync, open_release, store);
        if (status != KVT_OK) open_say_catalog(state, status);
    }
    if (status == KVT_OK) status = handover_start(store);
    if (status == KVT_OK) status = maintain_start(store);
    if (status == KVT_OK) status = remote_tier_start(store);
    if (status == KVT_OK) status = watch_file_start(store);
    return status;
}

/* The steps of an open, in the order of the file's head. The first failure ends them; the caller
 * closes what was opened. */
static kvt_status open_steps(open_state *state)
{
    const kvt_store_options *options = state->options;
    kvt_store *store = state->store;
    lifetime_open(store);
    kvt_status status = watch_open(store);
    if (status == KVT_OK) status = entry_memory_open(&store->memory);
    if (status == KVT_OK) status = entry_table_init(&store->table, &store->secret, &store->memory);
    if (status == KVT_OK)
        status = entry_table_init(&store->quarantined, &store->secret, &store->memory);
    if (status == KVT_OK && options->learning.profile_path != NULL) {
        uint32_t flags = options->learning.profile_foreign ? KVT_PROFILE_FOREIGN : KVT_PROFILE_READ;
        status = kvt_profile_open(options->learning.profile_path, flags, &state->profile,
                                  state->message, state->message_size);
        if (status == KVT_MISS) status = KVT_E_GONE;
    }
    if (status == KVT_OK)
        status = ladder_open(store, options, state->profile, state->note, sizeof state->note,
                             state->message, state->message_size);
    if (status == KVT_OK) status = open_catalog(state);
    if (status == KVT_OK) status = bases_open(store, state->note, sizeof state->note);
    if (status == KVT_OK) status = open_secret(state);
    if (status == KVT_OK) status = open_check_missing(state);
    KILL_POINT("open: catalog opened");
    if (status == KVT_OK) status = open_devices(state);
    KILL_POINT("open: devices opened");
    if (status == KVT_OK) status = open_preflight(state);
    if (status == KVT_OK) status = open_check_labels(state);
    if (status == KVT_OK) status = open_check_new(state);
    KILL_POINT("open: labels checked");
    if (status == KVT_OK) status = open_serials(state);
    if (status == KVT_OK)
        status = ladder_take_bases(store, state->profile, state->note, sizeof state->note);
    if (status == KVT_OK) status = open_costs(state);
    if (status == KVT_OK) status = open_serve(state);
    if (status == KVT_OK) status = open_measure(state);
    KILL_POINT("open: costs known");
    if (status == KVT_OK) status = open_read_rows(state);
    KILL_POINT("open: stale rows dropped");
    if (status == KVT_OK) open_note_undone(state);
    if (status == KVT_OK) status = open_announce(state);
    KILL_POINT("open: epoch announced");
    if (status == KVT_OK) status = open_write_labels(state);
    KILL_POINT("open: labels written");
    if (status == KVT_OK) status = open_write_epoch(state);
    KILL_POINT("open: epoch written");
    if (status == KVT_OK) open_staging(state);
    if (status == KVT_OK) status = learn_open(store);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT && status == KVT_OK; tier++) {
        status = open_pool(state, (kvt_tier)tier);
    }
    if (status == KVT_OK) learn_load(store, options, state->profile);
    if (status == KVT_OK) status = open_policy(state);
    if (status == KVT_OK) learn_update_loaded_priors(store);
    KILL_POINT("open: policy opened");
    if (status == KVT_OK) trust_open(store);
    if (status == KVT_OK && store->catalog != NULL) {
        status = recover_entries(state->rows);
        if (status != KVT_OK) open_say_catalog(state, status);
    }
    KILL_POINT("open: entries recovered");
    /* Once recovery has its extents, so that no slot lies where an entry is. */
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT && status == KVT_OK; tier++)
        while (store->pools[tier] != NULL && tiers_pool_lay_slots(store->pools[tier], OPEN_SLOTS))
            ;
    if (status == KVT_OK) status = handover_open(store, options);
    if (status == KVT_OK && options->remote != NULL)
        status = remote_tier_open(store, options->remote, state->message, state->message_size);
    if (status == KVT_OK) status = open_watch_file(state);
    if (status == KVT_OK) status = open_start(state);
    return status;
}

/* Fills the members that follow from the options alone, and makes the locks. */
static void open_fill_store(kvt_store *store, const kvt_store_options *options)
{
    store->forks = base_fork_guard_start();
    store->zero_ns = base_clock_ns() - STORE_PAST_NS;
    base_brief_lock_init(&store->lock);
    pthread_mutex_init(&store->observer_lock, NULL);
    pthread_mutex_init(&store->members_lock, NULL);
    pthread_mutex_init(&store->kept_lock, NULL);
    gpu_sites_init(&store->gpus, options->gpu.scratch_bytes, options->gpu.pinned_bytes);
    pthread_mutex_init(&store->reads_lock, NULL);
    passes_init(&store->passes, options->io.write_patience_seconds);
    base_condition_init(&store->read_ended);
    pthread_mutex_init(&store->wear_lock, NULL);
    pthread_mutex_init(&store->bases.lock, NULL);
    store->format = options->format;
    if (options->codec_workers != NULL) {
        store->workers_given = *options->codec_workers;
        store->workers = &store->workers_given;
    }
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        store->relayouts[tier].bytes_per_s = options->tiers[tier].rebalance_bytes_per_s;
        store->relayouts[tier].earned_ns = STORE_PAST_NS;
    }
    base_condition_init(&store->changed);
    base_condition_init(&store->background_due);
    store->tick_seconds = options->limits.tick_seconds;
    store->get_deadline_ns = KVT_NO_DEADLINE;
    if (options->limits.get_deadline_seconds > 0)
        store->get_deadline_ns = (uint64_t)(options->limits.get_deadline_seconds * 1e9);
    store->high_watermark = options->limits.high_watermark;
    store->copies.kept = options->durability.copies && options->durability.catalog_path != NULL;
    store->persist.bytes_per_s = options->durability.persist_bytes_per_s;
    store->persist.earned_ns = STORE_PAST_NS;
    store->scrub.lap_ns = (uint64_t)(options->scrub.period_seconds * 1e9 / SCRUB_LAPS);
    store->scrub.share = options->scrub.share;
    store->scrub.faults_most = options->scrub.faults;
    store->scrub.earned_ns = STORE_PAST_NS;
    store->close_deadline_seconds = options->durability.close_deadline_seconds;
    store->move_bytes_per_s = options->limits.move_bytes_per_s;
    store->moves_per_tick = options->limits.moves_per_tick;
    store->observer = options->observer;
}

kvt_status open_store(const kvt_store_options *options, store_early *early, kvt_store **store_out,
                      char *message, size_t message_size)
{
    kvt_status status = open_check_options(options, message, message_size);
    if (status != KVT_OK) return status;
    kvt_store *store = calloc(1, sizeof *store);
    status =
        store == NULL ? KVT_E_MEMORY : staging_open(options->limits.staging_bytes, &store->staging);
    if (status != KVT_OK) {
        snprintf(message, message_size, "the store itself: %s", kvt_status_text(status));
        free(store);
        return status;
    }
    open_fill_store(store, options);
    open_state state = {.options = options,
                        .early = early,
                        .store = store,
                        .message = message,
                        .message_size = message_size};
    status = passes_set_rows(&store->passes, options->pass_rows, options->pass_row_count);
    if (status == KVT_E_ARGUMENT) snprintf(message, message_size, "pass_rows are no table");
    if (status == KVT_OK) status = open_steps(&state);
    if (state.touches) open_end_staging(&state);
    recover_close(state.rows);
    kvt_profile_close(state.profile);
    for (uint32_t i = 0; i < state.device_count; i++) {
        kvt_device_close(state.devices[i].device); /* those that no pool has taken over */
    }
    free(state.devices);
    if (status != KVT_OK) {
        if (message[0] == '\0') snprintf(message, message_size, "%s", kvt_status_text(status));
        if (store->catalog != NULL && !state.labelling) catalog_discard_new(store->catalog);
        const bool given = early_retire(early);
        store_close_parts(store);
        if (!given) free(store);
        return status;
    }
    snprintf(message, message_size, "%s", state.note);
    store->opened = true;
    *store_out = store;
    return KVT_OK;
}

kvt_status kvt_store_open(const kvt_store_options *options, kvt_store **store_out, char *message,
                          size_t message_size)
{
    char unused[1];
    if (message == NULL || message_size == 0) {
        message = unused;
        message_size = sizeof unused;
    }
    snprintf(message, message_size, "no options, or nowhere to put the store");
    if (options == NULL || store_out == NULL) return KVT_E_ARGUMENT;
    *store_out = NULL;
    message[0] = '\0';
    given_options given;
    kvt_status status = given_options_take(options, &given, message, message_size);
    if (status != KVT_OK) return status;
    if (given.options.follow)
        status = follow_open(&given.options, false, store_out, message, message_size);
    else if (early_is_wanted(&given.options))
        status = early_open(options, store_out, message, message_size);
    else
        status = open_store(&given.options, NULL, store_out, message, message_size);
    given_options_release(&given);
    return status;
}
