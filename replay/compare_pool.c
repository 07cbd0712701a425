/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare_pool.c - trials and the threads that run them.
 *
 * Trials, samples and workloads are made before the threads start; a thread writes the one sample
 * that it took from the list. The list's head, the first error and the progress are behind the
 * lock.
 */
#include "base/clock.h"
#include "compare.h"
#include "results.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct pool_job {
    size_t trial;
    uint32_t seed;
} pool_job;

typedef struct pool {
    compare_state *state;
    pool_job *jobs;
    size_t job_count;
    const char *what;
    pthread_mutex_t lock;
    size_t next;
    kvt_status status;
} pool;

kvt_status compare_add(compare_state *state, const compare_setup *setup, size_t *index_out)
{
    for (size_t i = 0; i < state->trial_count; i++) {
        if (memcmp(&state->trials[i].setup, setup, sizeof *setup) != 0) continue;
        *index_out = i;
        return KVT_OK;
    }
    if (state->trial_count == state->trial_room) {
        size_t room = state->trial_room == 0 ? 256 : state->trial_room * 2;
        compare_trial *grown = realloc(state->trials, room * sizeof *grown);
        if (grown == NULL) return KVT_E_MEMORY;
        state->trials = grown;
        state->trial_room = room;
    }
    compare_sample *samples = calloc(state->seed_count, sizeof *samples);
    if (samples == NULL) return KVT_E_MEMORY;
    *index_out = state->trial_count++;
    state->trials[*index_out] = (compare_trial){.samples = samples};
    memcpy(&state->trials[*index_out].setup, setup, sizeof *setup);
    return KVT_OK;
}

void compare_pool_free(compare_state *state)
{
    for (size_t i = 0; i < state->trial_count; i++)
        free(state->trials[i].samples);
    free(state->trials);
    state->trials = NULL;
    state->trial_count = 0;
}

static void pool_options(const compare_state *state, const compare_setup *setup, uint32_t seed,
                         replay_options *options)
{
    *options = *state->plan->base;
    options->plan_log = NULL;
    options->bounds = false;
    options->seed = state->plan->base->seed + seed;
    options->variant = options->model.variants[setup->variant].variant;
    options->alpha_seconds = setup->alpha_s;
    options->loss_limit = setup->loss_limit;
    options->sensitivity = setup->spread.sigma;
    options->repeatability = setup->spread.repeatability;
    options->normals = &state->normals[seed];
    options->blend = setup->blend;
    replay_tier *ssd = &options->tiers[KVT_TIER_SSD];
    if (setup->ssd_bytes_per_s > 0.0) {
        ssd->read.bytes_per_s = setup->ssd_bytes_per_s;
        if (state->plan->write_follows) ssd->write.bytes_per_s = setup->ssd_bytes_per_s;
    }
    if (setup->ssd_capacity_bytes > 0) ssd->capacity_bytes = setup->ssd_capacity_bytes;
}

static kvt_status pool_sample(compare_state *state, const pool_job *job, char *message,
                              size_t message_size)
{
    const compare_trial *trial = &state->trials[job->trial];
    replay_options options;
    replay_result result;
    pool_options(state, &trial->setup, job->seed, &options);
    options.bounds = false;
    kvt_status status = replay_options_check(&options, message, message_size);
    if (status != KVT_OK) return status;
    const double begin_s = base_clock_seconds();
    status = replay_run_sim(&options, &state->workloads[job->seed], trial->setup.policy, &result,
                            message, message_size);
    const double end_s = base_clock_seconds();
    if (status != KVT_OK) return status;
    trial->samples[job->seed] = (compare_sample){.done = true,
                                                 .stable = results_has_mean(&result),
                                                 .ttft_s = result.times.ttft_mean,
                                                 .quality = result.quality_mean,
                                                 .rho = result.rho,
                                                 .rho_peak = result.rho_peak,
                                                 .seconds = end_s - begin_s};
    return KVT_OK;
}

static void *pool_work(void *context)
{
    pool *p = context;
    char message[512];
    for (;;) {
        (void)pthread_mutex_lock(&p->lock);
        bool (*interrupted)(void) = p->state->plan->interrupted;
        if (p->status == KVT_OK && interrupted != NULL && interrupted())
            p->status = KVT_E_CANCELLED;
        bool more = p->status == KVT_OK && p->next < p->job_count;
        const pool_job *job = more ? &p->jobs[p->next++] : NULL;
        (void)pthread_mutex_unlock(&p->lock);
        if (job == NULL) return NULL;
        kvt_status status = pool_sample(p->state, job, message, sizeof message);
        (void)pthread_mutex_lock(&p->lock);
        compare_state *state = p->state;
        if (status != KVT_OK && p->status == KVT_OK) {
            p->status = status;
            snprintf(state->message, state->message_size, "%s", message);
        }
        state->runs_done++;
        if (state->plan->progress != NULL && state->runs_planned > 0) {
            if (state->runs_planned < state->runs_done) state->runs_planned = state->runs_done;
            state->plan->progress(state->plan->context, state->runs_done, state->runs_planned,
                                  p->what);
        }
        (void)pthread_mutex_unlock(&p->lock);
    }
}

/* The caller's thread works too, so a machine that starts no thread still finishes. */
static void pool_start(pool *p, uint32_t threads)
{
    pthread_t ids[64];
    uint32_t started = 0;
    while (started < 63 && started + 1 < threads && started + 1 < p->job_count &&
           pthread_create(&ids[started], NULL, pool_work, p) == 0) {
        started++;
    }
    (void)pool_work(p);
    for (uint32_t i = 0; i < started; i++)
        (void)pthread_join(ids[i], NULL);
}

/* Seed by seed, so that threads share a workload while it is in the cache. */
kvt_status compare_run_trials(compare_state *state, const size_t *trials, size_t count, bool tuning,
                              const char *what)
{
    uint32_t first = tuning ? state->plan->seeds : 0;
    uint32_t last = tuning ? state->seed_count : state->plan->seeds;
    pool p = {.state = state, .what = what, .status = KVT_OK};
    if (count == 0) return KVT_OK;
    p.jobs = malloc(count * (last - first) * sizeof *p.jobs);
    if (p.jobs == NULL || pthread_mutex_init(&p.lock, NULL) != 0) {
        free(p.jobs);
        return KVT_E_MEMORY;
    }
    for (uint32_t seed = first; seed < last; seed++) {
        for (size_t i = 0; i < count; i++) {
            bool twice = false;
            for (size_t j = 0; j < i && !twice; j++)
                twice = trials[j] == trials[i];
            if (twice || state->trials[trials[i]].samples[seed].done) continue;
            p.jobs[p.job_count++] = (pool_job){.trial = trials[i], .seed = seed};
        }
    }
    pool_start(&p, state->plan->threads);
    (void)pthread_mutex_destroy(&p.lock);
    free(p.jobs);
    return p.status;
}
