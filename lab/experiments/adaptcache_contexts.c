/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adaptcache_contexts.c - the contexts of AdaptCache's experiment: lengths drawn from a table, and
 * each context's own factor on its task's losses. One thread.
 */
#include "adaptcache_experiment.h"

#include "replay/random.h"

#include <math.h>
#include <stdlib.h>

#define TOKENS_MIN 64u
#define TOKENS_MAX 131072u
#define DECILES    11u

/*
 * The tasks in the order of experiment_task: question answering, summarisation, and code or agents,
 * which no text here stands for.
 *
 * Tokens at 0 %, 10 %, ... 100 % of the contexts. The first two rows are of real texts: six files
 * each of L-Eval, LongBench and QMSum, a file drawn first, then a text, with 4.2 characters a token
 * (English prose with the Llama-3 tokenizer, a rule of thumb). Code: LongBench's mean lengths of
 * LCC and RepoBench-P, 1,235 and 4,206 words, in equal parts; 3 tokens a word and a lognormal
 * spread of 0.5 are assumed.
 */
static const uint32_t deciles[EXPERIMENT_TASKS][DECILES] = {
    {2932, 3405, 4632, 5415, 6278, 6531, 7439, 9925, 16814, 26005, 64766},
    {144, 2555, 3535, 4401, 5435, 7926, 11970, 14517, 18795, 20252, 34160},
    {1035, 2128, 2879, 3635, 4625, 6047, 7852, 10080, 12734, 17068, 35168},
};

static uint32_t table_tokens(uint32_t task, double share)
{
    double at = share * (DECILES - 1);
    uint32_t below = (uint32_t)at;
    double rest = at - (double)below;
    double low = (double)deciles[task][below], high = (double)deciles[task][below + 1];
    return (uint32_t)(low + rest * (high - low));
}

double experiment_setting_zipf(uint32_t setting)
{
    return setting < EXPERIMENT_SETTINGS / 2 ? 0.0 : 0.9;
}

uint32_t experiment_setting_task(uint32_t setting)
{
    return setting % (EXPERIMENT_SETTINGS / 2); /* EXPERIMENT_TASKS: all of them */
}

void experiment_setting_name(const experiment *run, uint32_t setting, char *name, size_t size)
{
    const uint32_t task = experiment_setting_task(setting);
    const double zipf = experiment_setting_zipf(setting);
    (void)snprintf(name, size, "%s, %s popularity",
                   task < EXPERIMENT_TASKS ? run->tasks[task].name : "all three tasks",
                   zipf > 0.0 ? "Zipf 0.9" : "even");
}

/*
 * A context's factor is lognormal with mean 1; what can be known of it beforehand has the measured
 * correlation with its logarithm, and mean 1 too (as replay/sim_quality.c).
 */
static void context_draw_losses(experiment_context *context, const experiment_task *task,
                                replay_random *random)
{
    const double sigma = task->sigma, r = task->repeatability;
    const double z = replay_random_normal(random), other = replay_random_normal(random);
    const double y = r * z + sqrt(fmax(0.0, 1.0 - r * r)) * other;
    context->sensitivity = exp(sigma * z - 0.5 * sigma * sigma);
    context->known = exp(sigma * r * y - 0.5 * sigma * r * sigma * r);
}

/* With all tasks a third of the contexts each, in turn, so that popularity is the same in all. */
static void contexts_fill(const experiment *run, uint32_t setting, uint64_t seed,
                          experiment_context *contexts)
{
    const uint32_t only = experiment_setting_task(setting);
    const double zipf = experiment_setting_zipf(setting);
    replay_random random;
    double sum = 0.0;
    replay_random_seed(&random, replay_mix(seed));
    for (uint32_t i = 0; i < run->options->contexts; i++) {
        experiment_context *context = &contexts[i];
        context->task = only < EXPERIMENT_TASKS ? only : i % EXPERIMENT_TASKS;
        double share = replay_random_unit(&random);
        context->tokens = table_tokens(context->task, share);
        if (context->tokens < TOKENS_MIN) context->tokens = TOKENS_MIN;
        if (context->tokens > TOKENS_MAX) context->tokens = TOKENS_MAX;
        const uint32_t rank = only < EXPERIMENT_TASKS ? i : i / EXPERIMENT_TASKS;
        context->upto = sum += pow((double)(rank + 1), -zipf);
        context_draw_losses(context, &run->tasks[context->task], &random);
    }
}

/* Seconds that prefill alone takes for a request, by popularity. */
static double contexts_prefill_mean(const experiment *run, const experiment_context *contexts)
{
    double sum = 0.0, before = 0.0;
    for (uint32_t i = 0; i < run->options->contexts; i++) {
        const kvt_prefill *prefill = &run->models[0][contexts[i].task].prefill;
        sum +=
            experiment_compute_seconds(prefill, contexts[i].tokens) * (contexts[i].upto - before);
        before = contexts[i].upto;
    }
    return sum / before;
}

kvt_status experiment_draw_all(experiment *run, char *message, size_t message_size)
{
    const experiment_options *options = run->options;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < EXPERIMENT_SETTINGS * options->seeds; i++) {
        experiment_draw *draw = &run->draws[i];
        draw->contexts = calloc(options->contexts, sizeof *draw->contexts);
        if (draw->contexts == NULL) {
            (void)snprintf(message, message_size, "out of memory");
            status = KVT_E_MEMORY;
            break;
        }
        contexts_fill(run, i / options->seeds, i % options->seeds + 1, draw->contexts);
        draw->prefill_mean_s = contexts_prefill_mean(run, draw->contexts);
    }
    return status;
}
