/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adaptcache_sweep.c - the systems of AdaptCache's experiment, and all runs of all settings.
 *
 * Thread rule: a run is one job of a list that is made before the threads start; a thread writes
 * the one outcome of the job that it took. The list's head, the first error and the progress are
 * behind the lock.
 */
#include "adaptcache_experiment.h"

#include <kvterrace/codec.h>

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { SWEEP_THREADS_MAX = 64 };

/* Prices of a request's quality, in seconds: from waiting that matters alone to a price at which no
 * engine stores anything but exact variants. */
const double experiment_alphas[EXPERIMENT_ALPHAS] = {0.03, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0,  3.0,
                                                     4.0,  6.0, 8.0, 12., 20., 45., 200., 1e6};
/* Of what prefill alone can bear; from 1 on its queue grows without end. */
const double experiment_rate_shares[EXPERIMENT_RATES] = {0.3, 0.6, 0.9, 1.5, 2.5, 4.0};

void experiment_options_init(experiment_options *options)
{
    *options = (experiment_options){.ladders = "profiles",
                                    .classes = {"qa", "summarisation", "agent"},
                                    .contexts = 1100,
                                    .uses = 10,
                                    .seeds = 6,
                                    .threads = 1,
                                    .dram_bytes = 100e9,
                                    .ssd_bytes = 400e9,
                                    .ssd_bytes_per_s = 1e9,
                                    .prefill_speed = 1.0};
}

bool experiment_has_setting(const experiment_options *options, uint32_t setting)
{
    return options->settings == 0 || (options->settings >> setting & 1) != 0;
}

bool experiment_has_rate(const experiment_options *options, uint32_t rate)
{
    return options->rates == 0 || (options->rates >> rate & 1) != 0;
}

/* ---- systems ---- */

static experiment_system *system_add(experiment *run, experiment_kind kind, experiment_menu menu)
{
    assert(run->system_count < EXPERIMENT_SYSTEMS_MAX);
    experiment_system *added = &run->systems[run->system_count++];
    *added = (experiment_system){.kind = kind, .menu = menu};
    return added;
}

static void system_add_fixed(experiment *run, experiment_menu menu, uint8_t variant, bool always)
{
    char name[64];
    experiment_system *added = system_add(run, EXPERIMENT_FIXED, menu);
    added->variant = variant;
    added->always = always;
    (void)kvt_variant_format(run->models[menu][0].variants[variant].variant, name, sizeof name);
    (void)snprintf(added->name, sizeof added->name, "lru %s%s", name,
                   always ? ", always loads" : "");
}

/* "k6v4/k4v4": rungs by tier; with two in a tier both are named. */
static void system_name_mix(const experiment *run, experiment_system *mix)
{
    const kvt_cost_model *model = &run->models[mix->menu][0];
    const uint8_t halves[2] = {mix->half_dram, mix->half_ssd};
    size_t at = (size_t)snprintf(mix->name, sizeof mix->name, "mix ");
    for (int tier = 0; tier < 2; tier++) {
        char first[48], second[48];
        (void)kvt_variant_format(model->variants[halves[tier] / 2].variant, first, sizeof first);
        (void)kvt_variant_format(model->variants[(halves[tier] + 1) / 2].variant, second,
                                 sizeof second);
        at += (size_t)snprintf(mix->name + at, at < sizeof mix->name ? sizeof mix->name - at : 0,
                               "%s%s%s%s", tier == 0 ? "" : " | ", first,
                               halves[tier] % 2 != 0 ? " & " : "",
                               halves[tier] % 2 != 0 ? second : "");
        if (at >= sizeof mix->name) return;
    }
}

static void systems_add_mixes(experiment *run)
{
    const uint8_t last = (uint8_t)(2 * (run->models[EXPERIMENT_MENU_OURS][0].variant_count - 1));
    const uint8_t step = run->options->coarse ? 2 : 1;
    for (uint8_t dram = 0; dram <= last; dram = (uint8_t)(dram + step)) {
        for (uint8_t ssd = dram; ssd <= last; ssd = (uint8_t)(ssd + step)) {
            experiment_system *mix = system_add(run, EXPERIMENT_MIX, EXPERIMENT_MENU_OURS);
            mix->half_dram = dram;
            mix->half_ssd = ssd;
            system_name_mix(run, mix);
        }
    }
}

static void systems_make(experiment *run)
{
    run->system_count = 0;
    (void)snprintf(system_add(run, EXPERIMENT_PREFILL, EXPERIMENT_MENU_PAPER)->name,
                   EXPERIMENT_NAME_BYTES, "prefill");
    for (uint32_t menu = 0; menu < EXPERIMENT_MENUS; menu++) {
        const uint32_t count = run->models[menu][0].variant_count;
        for (uint8_t i = menu == EXPERIMENT_MENU_PAPER ? 0 : 1; i < count; i++) {
            system_add_fixed(run, (experiment_menu)menu, i, false);
            if (menu == EXPERIMENT_MENU_PAPER)
                system_add_fixed(run, (experiment_menu)menu, i, true);
        }
    }
    for (uint8_t engine = 0; engine < EXPERIMENT_ENGINES; engine++) {
        for (uint32_t i = 0; i < EXPERIMENT_ALPHAS; i++) {
            experiment_system *added =
                system_add(run, EXPERIMENT_ENGINE, experiment_engines[engine].menu);
            added->engine = engine;
            added->alpha = experiment_alphas[i];
            (void)snprintf(added->name, sizeof added->name, "%s", experiment_engines[engine].name);
        }
    }
    systems_add_mixes(run);
}

/* ---- open, close, places ---- */

kvt_status experiment_open(experiment *run, const experiment_options *options, char *message,
                           size_t message_size)
{
    memset(run, 0, sizeof *run);
    run->options = options;
    kvt_status status = experiment_menus_read(run, message, message_size);
    if (status != KVT_OK) return status;
    systems_make(run);
    const size_t runs = (size_t)EXPERIMENT_SETTINGS * EXPERIMENT_RATES * run->system_count;
    run->draws = calloc((size_t)EXPERIMENT_SETTINGS * options->seeds, sizeof *run->draws);
    run->outcomes = calloc(runs * options->seeds, sizeof *run->outcomes);
    (void)snprintf(message, message_size, "out of memory");
    if (run->draws == NULL || run->outcomes == NULL) return KVT_E_MEMORY;
    return experiment_draw_all(run, message, message_size);
}

void experiment_close(experiment *run)
{
    const uint32_t draws = run->draws != NULL ? EXPERIMENT_SETTINGS * run->options->seeds : 0;
    for (uint32_t i = 0; i < draws; i++)
        free(run->draws[i].contexts);
    free(run->draws);
    free(run->outcomes);
    run->draws = NULL;
    run->outcomes = NULL;
}

double experiment_rate(const experiment *run, uint32_t setting, uint32_t rate)
{
    const experiment_draw *first = &run->draws[setting * run->options->seeds];
    return experiment_rate_shares[rate] / first->prefill_mean_s;
}

static size_t outcome_place(const experiment *run, uint32_t setting, uint32_t rate, uint32_t system,
                            uint32_t seed)
{
    const size_t row = ((size_t)setting * EXPERIMENT_RATES + rate) * run->system_count + system;
    return row * run->options->seeds + seed;
}

const experiment_outcome *experiment_outcome_at(const experiment *run, uint32_t setting,
                                                uint32_t rate, uint32_t system, uint32_t seed)
{
    return &run->outcomes[outcome_place(run, setting, rate, system, seed)];
}

/* ---- all runs ---- */

typedef struct sweep {
    experiment *run;
    pthread_mutex_t lock;
    size_t next, jobs, done; /* a job is one run; settings that are left out have none */
    uint8_t settings[EXPERIMENT_SETTINGS], rates[EXPERIMENT_RATES];
    uint32_t setting_count, rate_count;
    kvt_status status;
    char *message;
    size_t message_size;
} sweep;

static kvt_status sweep_job(const sweep *all, size_t job, char *message, size_t message_size)
{
    experiment *run = all->run;
    const uint32_t seeds = run->options->seeds;
    const uint32_t seed = (uint32_t)(job % seeds);
    const uint32_t system = (uint32_t)(job / seeds % run->system_count);
    const uint32_t rate = all->rates[job / seeds / run->system_count % all->rate_count];
    const uint32_t setting = all->settings[job / seeds / run->system_count / all->rate_count];
    return experiment_measure(run, &run->draws[setting * seeds + seed], &run->systems[system],
                              experiment_rate(run, setting, rate), seed + 1,
                              &run->outcomes[outcome_place(run, setting, rate, system, seed)],
                              message, message_size);
}

/* Counts a job that is done. False: the threads are to end. Lock held. */
static bool sweep_tell(sweep *all, kvt_status status, const char *message)
{
    all->done++;
    if (status != KVT_OK && all->status == KVT_OK) {
        all->status = status;
        (void)snprintf(all->message, all->message_size, "%s", message);
    }
    if (all->status == KVT_OK &&
        !bench_tell(all->run->common, (double)all->done, (double)all->jobs, "runs"))
        all->status = KVT_E_CANCELLED;
    return all->status == KVT_OK;
}

static void *sweep_thread(void *context)
{
    sweep *all = context;
    char message[256];
    pthread_mutex_lock(&all->lock);
    while (all->status == KVT_OK && all->next < all->jobs) {
        const size_t job = all->next++;
        pthread_mutex_unlock(&all->lock);
        message[0] = '\0';
        const kvt_status status = sweep_job(all, job, message, sizeof message);
        pthread_mutex_lock(&all->lock);
        if (!sweep_tell(all, status, message)) break;
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

static kvt_status sweep_run(experiment *run, char *message, size_t message_size)
{
    sweep all = {.run = run, .message = message, .message_size = message_size};
    pthread_t threads[SWEEP_THREADS_MAX];
    uint32_t started = 0;
    for (uint8_t i = 0; i < EXPERIMENT_SETTINGS; i++)
        if (experiment_has_setting(run->options, i)) all.settings[all.setting_count++] = i;
    for (uint8_t i = 0; i < EXPERIMENT_RATES; i++)
        if (experiment_has_rate(run->options, i)) all.rates[all.rate_count++] = i;
    all.jobs = (size_t)all.setting_count * all.rate_count * run->system_count * run->options->seeds;
    pthread_mutex_init(&all.lock, NULL);
    while (started + 1 < run->options->threads && started < SWEEP_THREADS_MAX &&
           pthread_create(&threads[started], NULL, sweep_thread, &all) == 0)
        started++;
    (void)sweep_thread(&all);
    while (started > 0)
        pthread_join(threads[--started], NULL);
    pthread_mutex_destroy(&all.lock);
    return all.status;
}

static kvt_status experiment_run(const bench_options *common, bench_report *report)
{
    const experiment_options *options = common->own;
    assert(options->seeds >= 1 && options->seeds <= EXPERIMENT_SEEDS && options->contexts >= 3);
    experiment *run = calloc(1, sizeof *run);
    if (run == NULL) return KVT_E_MEMORY;
    kvt_status status = experiment_open(run, options, report->message, BENCH_MESSAGE_BYTES);
    run->common = common;
    if (status == KVT_OK) status = sweep_run(run, report->message, BENCH_MESSAGE_BYTES);
    if (status == KVT_OK) experiment_report(run, report);
    experiment_close(run);
    free(run);
    return status;
}

const bench_case bench_adaptcache_case = {
    .name = "adaptcache",
    .schema = "kvterrace-bench-adaptcache-2",
    .tables = experiment_tables,
    .run = experiment_run,
};
