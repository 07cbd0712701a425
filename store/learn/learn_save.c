/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn_save.c - learned figures in the profile: read at open, written now and then in the
 * background and at close, in one transaction each time. A process that is killed leaves the rows
 * of the last write.
 *
 * A store whose profile may not be written, is another host's, or came without a path learns for
 * itself alone. The profile is open only while it is written, so other processes may write it
 * meanwhile; two stores with one profile each write runs of their own, and the later run is read.
 *
 * Thread rule: the opener's thread; then the background round, then the closer's thread.
 */
#include "store/core/store.h"

#include "estimator/profile/profile.h"

#include <kvterrace/codec.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAVE_FEW ONLINE_SURE /* observations that are worth a row */

/* A row that is off by more than these is no figure of this machine and is left out whole; the
 * estimator's own bounds limit smaller errors. */
#define LOAD_OFF          1e3
#define LOAD_SECONDS_MOST 60.0 /* of a request */

/* Rows in the making. */
typedef struct save_rows {
    profile_learned *rows;
    size_t count, capacity;
    bool failed; /* no memory */
} save_rows;

/* Adds a row and returns it to be filled. Without memory the rows are marked as failed and the
 * caller fills a row that is never written. */
static profile_learned *save_add(save_rows *rows, const char *kind, const char *name,
                                 const char *part)
{
    static profile_learned nowhere;
    if (rows->count == rows->capacity) {
        size_t capacity = rows->capacity == 0 ? 64 : 2 * rows->capacity;
        profile_learned *grown = realloc(rows->rows, capacity * sizeof *grown);
        if (grown == NULL) {
            rows->failed = true;
            return &nowhere;
        }
        rows->rows = grown;
        rows->capacity = capacity;
    }
    profile_learned *row = &rows->rows[rows->count++];
    memset(row, 0, sizeof *row);
    (void)snprintf(row->kind, sizeof row->kind, "%s", kind);
    (void)snprintf(row->name, sizeof row->name, "%s", name);
    (void)snprintf(row->part, sizeof row->part, "%s", part);
    row->error_p50 = row->error_p90 = row->log_likelihood = (double)NAN;
    return row;
}

/* ---- rows from figures ---- */

/* Adds the three rows of one direction of a device that was observed often enough. learn.lock held.
 */
static void save_device(save_rows *rows, const learn_member *member, kvt_io_kind kind)
{
    const online_device *device = &member->kinds[kind];
    const char *const parts[2][3] = {
        {"read_request_s", "read_bytes_per_s", "read_drift"},
        {"write_request_s", "write_bytes_per_s", "write_drift"},
    };
    if (device->observations < SAVE_FEW || member->identity[0] == '\0') return;
    kvt_affine figures = online_device_affine(device);
    double values[3] = {figures.request_seconds, figures.bytes_per_s,
                        online_device_drift(device, ONLINE_LOAD_BYTES)};
    for (int i = 0; i < 3; i++) {
        profile_learned *row = save_add(rows, "device", member->identity, parts[kind][i]);
        row->value = values[i];
        row->weight = (double)(i == 2 ? device->reopened : device->observations);
        row->observations = device->observations;
    }
}

/* Adds a tier's devices and the error of its predictions. learn.lock held. */
static void save_tier(save_rows *rows, const learn_tier *tier, const char *name)
{
    const online_error *loads = &tier->loads;
    for (uint32_t i = 0; i < TIERS_MEMBERS_MAX; i++) {
        if (!tier->members[i].known) continue;
        save_device(rows, &tier->members[i], KVT_IO_READ);
        save_device(rows, &tier->members[i], KVT_IO_WRITE);
    }
    if (loads->observations < SAVE_FEW) return;
    profile_learned *row = save_add(rows, "device", name, "load");
    row->value = loads->achieved_seconds / fmax(loads->predicted_seconds, 1e-12);
    row->weight = (double)loads->total;
    row->observations = loads->observations;
    row->error_p50 = online_error_quantile(loads, 0.5);
    row->error_p90 = online_error_quantile(loads, 0.9);
}

/* Adds the factor between a codec's observed and measured seconds. learn.lock held. */
static void save_factor(save_rows *rows, const char *name, const char *part,
                        const online_factor *factor)
{
    if (factor->average.observations < SAVE_FEW) return;
    profile_learned *row = save_add(rows, "codec", name, part);
    row->value = online_factor_value(factor);
    row->observations = factor->average.observations;
    row->weight = (double)row->observations;
}

/* Adds the fitted reuse of each class. No lock held: a fit may hold reuse_lock for long. */
static void save_reuse(save_rows *rows, kvt_store *store)
{
    for (uint32_t i = 0; i < KVT_REUSE_CLASSES; i++) {
        char name[32];
        kvt_reuse_class found;
        pthread_mutex_lock(&store->learn->reuse_lock);
        kvt_status status = kvt_reuse_read(store->learn->reuse, store_now_ns(store), i, &found);
        pthread_mutex_unlock(&store->learn->reuse_lock);
        if (status != KVT_OK || found.uses < SAVE_FEW) continue;
        (void)snprintf(name, sizeof name, "class %u", (unsigned)i);
        static const char *const parts[] = {"half_life_s", "branching", "prior_uses"};
        const double values[] = {found.half_life_seconds, found.branching, found.prior_uses};
        for (int k = 0; k < 3; k++) {
            profile_learned *row = save_add(rows, "reuse", name, parts[k]);
            row->value = values[k];
            row->observations = found.uses;
            row->weight = (double)found.uses;
            if (k == 0) row->log_likelihood = found.log_likelihood;
        }
    }
}

void learn_save(kvt_store *store)
{
    store_learn *learn = store->learn;
    kvt_profile *profile = NULL;
    char message[256];
    if (learn == NULL || learn->profile_path == NULL) return;
    learn->saved_ns = store_now_ns(store);
    /* Gather all rows, each group under its own lock, so nothing is written under a lock. */
    save_rows rows = {NULL, 0, 0, false};
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < KVT_REUSE_CLASSES; i++) {
        char name[32];
        const online_loss_class *of_class = &learn->losses[i];
        if (of_class->observations == 0) continue;
        (void)snprintf(name, sizeof name, "class %u", (unsigned)i);
        profile_learned *row = save_add(&rows, "loss", name, "factor");
        row->value = online_loss_class_factor(&learn->loss_prior, of_class, &row->weight);
        row->observations = of_class->observations;
    }
    pthread_mutex_unlock(&store->lock);
    pthread_mutex_lock(&learn->lock);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        char name[32];
        (void)snprintf(name, sizeof name, "tier %s", kvt_tier_name(tier));
        save_tier(&rows, &learn->tiers[tier], name);
    }
    for (uint32_t i = 0; i < store->costs.variant_count; i++) {
        char name[96];
        kvt_variant_format(store->costs.variants[i].variant, name, sizeof name);
        save_factor(&rows, name, "decode", &learn->codecs[i].decode);
        save_factor(&rows, name, "encode", &learn->codecs[i].encode);
    }
    pthread_mutex_unlock(&learn->lock);
    save_reuse(&rows, store);
    /* Opening for writing makes a file that is absent; this one was there. */
    bool may = rows.count > 0 && !rows.failed && access(learn->profile_path, W_OK) == 0 &&
               kvt_profile_open(learn->profile_path, KVT_PROFILE_WRITE, &profile, message,
                                sizeof message) == KVT_OK;
    if (may && profile_learned_write(profile, "a running store", rows.rows, rows.count,
                                     &learn->run) == KVT_OK)
        learn->saves++;
    kvt_profile_close(profile);
    free(rows.rows);
}

/* ---- figures from rows ---- */

/* Whether a figure is within LOAD_OFF of a measured one. */
static bool load_is_near(double value, double from)
{
    return value >= from / LOAD_OFF && value <= from * LOAD_OFF;
}

/* Takes up one row by its kind. Rows of unknown kinds are ignored. */
static void load_row(void *context, const profile_learned *row)
{
    kvt_store *store = context;
    if (strcmp(row->kind, "device") == 0) {
        /* Take up one row of a device. Each figure has a row of its own; the row of bytes_per_s
         * comes first and proves that the device was observed often enough. Rows of other figures
         * are ignored. */
        bool write = strncmp(row->part, "write_", 6) == 0;
        const char *what = strchr(row->part, '_');
        bool bandwidth = what != NULL && strcmp(what, "_bytes_per_s") == 0 && row->value > 0;
        bool fixed = what != NULL && strcmp(what, "_request_s") == 0;
        for (int at = 0; at < KVT_TIER_COUNT * (int)TIERS_MEMBERS_MAX && (bandwidth || fixed);
             at++) {
            learn_member *member = &store->learn->tiers[at / (int)TIERS_MEMBERS_MAX]
                                        .members[at % (int)TIERS_MEMBERS_MAX];
            if (!member->known || strcmp(member->identity, row->name) != 0) continue;
            online_device *device = &member->kinds[write ? KVT_IO_WRITE : KVT_IO_READ];
            if (bandwidth && !load_is_near(row->value, 1.0 / device->curve[1])) continue;
            if (fixed && !(row->value >= 0 && row->value <= LOAD_SECONDS_MOST)) continue;
            online_device_resume(device, fixed ? row->value : device->value[0],
                                 bandwidth ? row->value : 1.0 / device->value[1],
                                 row->observations);
            member->age_seconds[write ? KVT_IO_WRITE : KVT_IO_READ] = row->age_seconds;
        }
    }
    if (strcmp(row->kind, "codec") == 0) {
        /* Take up a codec's factor, decayed by its age. */
        for (uint32_t i = 0; i < store->costs.variant_count; i++) {
            char name[96];
            kvt_variant_format(store->costs.variants[i].variant, name, sizeof name);
            if (strcmp(name, row->name) != 0 || !load_is_near(row->value, 1.0)) continue;
            learn_codec *codec = &store->learn->codecs[i];
            online_factor *factor =
                strcmp(row->part, "decode") == 0 ? &codec->decode : &codec->encode;
            online_factor_resume(factor, row->value, row->observations);
            online_factor_decay(factor, learn_kept(row->age_seconds));
        }
    }
    /* Take up a class's loss factor or prior of uses. */
    store_learn *learn = store->learn;
    unsigned number;
    char *end = NULL;
    if (strncmp(row->name, "class ", 6) != 0) return;
    number = (unsigned)strtoul(row->name + 6, &end, 10);
    if (end == row->name + 6 || *end != '\0' || number >= KVT_REUSE_CLASSES) return;
    if (strcmp(row->kind, "loss") == 0 && strcmp(row->part, "factor") == 0) {
        online_loss_class_resume(&learn->losses[number], &learn->loss_prior, row->value,
                                 row->weight, row->observations);
        learn->factors[number] = online_loss_expect(&learn->loss_prior, &learn->losses[number],
                                                    &(online_loss_entry){0, 0})
                                     .upper;
    }
    bool prior = strcmp(row->kind, "reuse") == 0 && strcmp(row->part, "prior_uses") == 0;
    if (prior && number != 0 && row->observations >= LEARN_PRIOR_USES)
        learn->priors[number] = fmin(row->value, LEARN_PRIOR_MOST);
}

void learn_load(kvt_store *store, const kvt_store_options *options, kvt_profile *profile)
{
    store_learn *learn = store->learn;
    double sd = 0, repeatability = 0;
    bool has = profile != NULL && options->loss.ladder &&
               profile_sensitivity_read(profile, &store->ladder_layout, options->loss.ladder_model,
                                        options->loss.ladder_class, &sd, &repeatability) == KVT_OK;
    learn->loss_prior = online_loss_prior_of(
        has ? sd : 0, repeatability, store->ladder_count != 0 ? store->ladder[0].loss_widening : 0);
    for (uint32_t i = 0; i < KVT_REUSE_CLASSES; i++) {
        online_loss_class_init(&learn->losses[i], &learn->loss_prior);
        learn->factors[i] = 1;
    }
    learn->save_interval_ns = (uint64_t)(options->learning.learn_seconds * 1e9);
    learn->saved_ns = learn->decayed_ns = learn->priors_updated_ns = store_now_ns(store);
    if (profile != NULL && options->learning.learn) {
        learn->profile_path = strdup(options->learning.profile_path);
        /* Figures that cannot be read are learned again. */
        (void)!profile_learned_read(profile, load_row, store);
        /* Decay the loaded figures of devices towards their curves, by the age of their rows. */
        for (int at = 0; at < KVT_TIER_COUNT * (int)TIERS_MEMBERS_MAX; at++) {
            learn_member *member =
                &learn->tiers[at / (int)TIERS_MEMBERS_MAX].members[at % (int)TIERS_MEMBERS_MAX];
            for (int kind = 0; kind < 2 && member->known; kind++)
                online_device_decay(&member->kinds[kind], learn_kept(member->age_seconds[kind]));
        }
    }
    learn_cost_all(store);
}

void learn_update_loaded_priors(kvt_store *store)
{
    for (uint32_t i = 1; i < KVT_REUSE_CLASSES; i++)
        if (store->learn->priors[i] > 0)
            (void)!kvt_policy_prior_set(store->policy, i, store->learn->priors[i]);
}
