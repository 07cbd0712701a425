/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adaptcache_experiment.c - see adaptcache_experiment.h: the systems, and one run of one of them.
 *
 * Systems: prefill; each row of the ladders in LRU order, raw among them ("without compression");
 * AdaptCache's policy and ours with all rows to choose from, and ours with nested variants in place
 * of KIVI's, at four values of alpha. The policies know each task's losses and each context's uses
 * so far, as AdaptCache's profiler and counters do, and nothing of what comes.
 */
#include "adaptcache_experiment.h"

#include "lab/replay/random.h"

#include <kvterrace/codec.h>

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EXPERIMENT_MOVES  256u
#define EXPERIMENT_TICK   20u /* requests between two ticks */
#define EXPERIMENT_MEMORY 5.0 /* half-life of the counters, in requests per context */
#define EXPERIMENT_WARM   0.4
#define QUESTION_TOKENS   64u
#define BYTES_PER_TOKEN   131072.0 /* Llama-3.1-8B in 16 bits */

const double experiment_alphas[EXPERIMENT_ALPHAS] = {0.1, 1.0, 5.0, 50.0};
/* Of what prefill alone can bear; beyond the last its queue grows without end. */
const double experiment_rate_shares[EXPERIMENT_RATES] = {0.2, 0.4, 0.6, 0.8};
const experiment_engine experiment_engines[EXPERIMENT_ENGINES] = {
    {"adaptcache", "adaptcache", 0}, {"utility", "utility", 0}, {"nested", "utility", 1}};
static const char *const experiment_menus[EXPERIMENT_MENUS] = {"adaptcache", "nested"};

void experiment_options_init(experiment_options *options)
{
    *options = (experiment_options){
        .ladders = "profiles", .contexts = 1100, .uses = 10, .seeds = 5, .out = stdout};
}

static kvt_status experiment_read_ladder(experiment *run, uint32_t menu, uint32_t task,
                                         char *message, size_t message_size)
{
    char path[1024];
    kvt_cost_model *model = &run->models[menu][task];
    snprintf(path, sizeof path, "%s/ladder-%s-%s.csv", run->options->ladders,
             experiment_menus[menu], experiment_tasks[task]);
    memset(model, 0, sizeof *model);
    model->parallel_codecs = 1;
    model->present[KVT_TIER_DRAM] = model->present[KVT_TIER_SSD] = true;
    model->read[KVT_TIER_DRAM] = model->write[KVT_TIER_DRAM] =
        (kvt_affine){.request_seconds = 1e-5, .bytes_per_s = 25e9};
    model->read[KVT_TIER_SSD] = model->write[KVT_TIER_SSD] =
        (kvt_affine){.request_seconds = 1e-4, .bytes_per_s = 1e9};
    kvt_status status = kvt_prefill_preset("llama-3.1-8b:a100", &model->prefill);
    if (status == KVT_OK) {
        status = kvt_ladder_read_csv(path, model->variants, EXPERIMENT_VARIANTS,
                                     &model->variant_count, message, message_size);
    }
    bool alike = status == KVT_OK && model->variant_count == EXPERIMENT_VARIANTS;
    for (uint32_t i = 0; alike && i < EXPERIMENT_VARIANTS; i++)
        alike = memcmp(&model->variants[i].variant, &run->models[menu][0].variants[i].variant,
                       sizeof model->variants[i].variant) == 0;
    if (status == KVT_OK && !alike) {
        snprintf(message, message_size, "%s: not the %u forms of the other tasks", path,
                 EXPERIMENT_VARIANTS);
        status = KVT_E_PARSE;
    }
    return status;
}

kvt_status experiment_open(experiment *run, const experiment_options *options, char *message,
                           size_t message_size)
{
    memset(run, 0, sizeof *run);
    run->options = options;
    run->contexts = calloc(options->contexts, sizeof *run->contexts);
    snprintf(message, message_size, "out of memory");
    kvt_status status = run->contexts != NULL ? KVT_OK : KVT_E_MEMORY;
    for (uint32_t at = 0; status == KVT_OK && at < EXPERIMENT_MENUS * EXPERIMENT_TASKS; at++)
        status = experiment_read_ladder(run, at / EXPERIMENT_TASKS, at % EXPERIMENT_TASKS, message,
                                        message_size);
    return status;
}

void experiment_close(experiment *run)
{
    free(run->contexts);
    run->contexts = NULL;
}

void experiment_name(const experiment *run, uint32_t system, char *name, size_t size,
                     double *alpha_out)
{
    char variant[128];
    *alpha_out = 0.0;
    if (system == 0) {
        snprintf(name, size, "prefill");
    } else if (system < EXPERIMENT_FIXED) {
        kvt_variant_format(run->models[0][0].variants[system - 1].variant, variant, sizeof variant);
        snprintf(name, size, "lru %s", variant);
    } else {
        uint32_t engine = (system - EXPERIMENT_FIXED) / EXPERIMENT_ALPHAS;
        snprintf(name, size, "%s", experiment_engines[engine].name);
        *alpha_out = experiment_alphas[(system - EXPERIMENT_FIXED) % EXPERIMENT_ALPHAS];
    }
}

/* ---- one run ---- */

typedef struct server {
    const experiment *run;
    kvt_policy *policy;
    uint32_t menu;
    double *carried; /* by context: losses of lossy variants that its present one was coded from */
    kvt_move moves[EXPERIMENT_MOVES];
    kvt_plan plan;
    uint64_t counts[EXPERIMENT_TASKS]; /* counted requests */
} server;

static kvt_status server_open(server *s, uint32_t system, double rate, char *message,
                              size_t message_size)
{
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.name = "none";
    if (system > 0) config.name = "lru";
    if (system > 0 && system < EXPERIMENT_FIXED)
        config.variant = s->run->models[0][0].variants[system - 1].variant;
    if (system >= EXPERIMENT_FIXED) {
        uint32_t at = system - EXPERIMENT_FIXED;
        config.name = experiment_engines[at / EXPERIMENT_ALPHAS].policy;
        s->menu = experiment_engines[at / EXPERIMENT_ALPHAS].menu;
        config.alpha_seconds = experiment_alphas[at % EXPERIMENT_ALPHAS];
    }
    config.half_life_seconds = EXPERIMENT_MEMORY * s->run->options->contexts / rate;
    config.holes = KVT_HOLES_MIXED;
    /* Moves are at once here, so no room has to be ready for them. */
    config.high_watermark = config.low_watermark = 1.0;
    config.tiers[KVT_TIER_DRAM] =
        (kvt_tier_facts){.capacity_bytes = UINT64_C(100000000000), .read_bytes_per_s = 25e9};
    config.tiers[KVT_TIER_SSD] =
        (kvt_tier_facts){.capacity_bytes = UINT64_C(400000000000), .read_bytes_per_s = 1e9};
    config.entries_expected = s->run->options->contexts;
    config.allocator.resize = kvt_memory_resize;
    return kvt_policy_open(&config, &s->policy, message, message_size);
}

static void server_options(const server *s, uint32_t number, kvt_option options[KVT_OPTIONS_MAX],
                           uint32_t *count)
{
    const experiment_context *context = &s->run->contexts[number];
    const kvt_cost_model *model = &s->run->models[s->menu][context->task];
    double bytes = BYTES_PER_TOKEN * context->tokens;
    kvt_policy_entry entry = {.struct_size = sizeof entry};
    const kvt_offer offer = {.layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = (uint64_t)bytes},
                             .recompute_seconds =
                                 kvt_prefill_seconds(&model->prefill, 0, context->tokens)};
    kvt_status status = kvt_offer_build(model, KVT_HOLES_MIXED, &offer, options, &entry);
    assert(status == KVT_OK); /* the ladders were read and 2 * 7 + 1 options fit */
    (void)status;
    *count = entry.option_count;
}

/* Losses add up where a lossy variant is coded from another (see sim_quality.c). */
static void server_note(server *s, const kvt_move *move)
{
    kvt_option options[KVT_OPTIONS_MAX];
    uint32_t count, number = (uint32_t)(move->handle - 1);
    if (move->kind != KVT_MOVE_CHANGE) {
        s->carried[number] = 0.0;
        return;
    }
    server_options(s, number, options, &count);
    const kvt_option *from = &options[move->from], *to = &options[move->to];
    bool same = memcmp(&from->variant, &to->variant, sizeof from->variant) == 0;
    if (!same && (to->made_from >> move->from & 1) == 0) s->carried[number] += from->loss;
}

static kvt_status server_carry_out(server *s)
{
    for (uint32_t i = 0; i < s->plan.count; i++) {
        const kvt_move *move = &s->moves[i];
        kvt_option options[KVT_OPTIONS_MAX];
        uint32_t count;
        server_options(s, (uint32_t)(move->handle - 1), options, &count);
        const uint64_t *record_bytes =
            move->to != KVT_OPTION_NONE ? options[move->to].read_bytes : NULL;
        kvt_status status = kvt_policy_commit(s->policy, move->id, record_bytes);
        if (status != KVT_OK) return status;
        server_note(s, &s->moves[i]);
    }
    s->plan.count = 0;
    return KVT_OK;
}

/* What the request costs and loses; counted into sums. */
static double server_serve(server *s, uint32_t number, bool counted, experiment_outcome *sum)
{
    const experiment_context *context = &s->run->contexts[number];
    const kvt_prefill *prefill = &s->run->models[0][context->task].prefill;
    uint32_t all = context->tokens + QUESTION_TOKENS;
    double seconds = kvt_prefill_seconds(prefill, 0, all);
    double loss = 0.0;
    uint8_t option = kvt_policy_option(s->policy, number + UINT64_C(1));
    int tier = KVT_TIER_NONE;
    if (option != KVT_OPTION_NONE) {
        kvt_option options[KVT_OPTIONS_MAX];
        uint32_t count;
        server_options(s, number, options, &count);
        const kvt_option *o = &options[option];
        double load = o->load_seconds + o->decode_seconds;
        tier = o->bytes[KVT_TIER_DRAM] > 0 ? KVT_TIER_DRAM : KVT_TIER_SSD;
        load += kvt_prefill_seconds(prefill, context->tokens, all);
        if (load < seconds) {
            seconds = load;
            loss = fmin(1.0, o->loss + s->carried[number]);
        }
    }
    seconds += prefill->fixed_seconds;
    if (!counted) return seconds;
    s->counts[context->task]++;
    sum->service += seconds;
    sum->quality += 1.0 - loss;
    sum->task_quality[context->task] += 1.0 - loss;
    sum->dram_hits += tier == KVT_TIER_DRAM;
    sum->ssd_hits += tier == KVT_TIER_SSD;
    sum->task_dram_hits[context->task] += tier == KVT_TIER_DRAM;
    return seconds;
}

static kvt_status server_refer(server *s, uint32_t number, uint64_t now_ns, bool ticks)
{
    s->plan.count = 0;
    kvt_status status = kvt_policy_access(s->policy, now_ns, number + UINT64_C(1), &s->plan);
    if (status == KVT_MISS) {
        kvt_option options[KVT_OPTIONS_MAX];
        kvt_policy_entry offer = {.struct_size = sizeof offer,
                                  .handle = number + UINT64_C(1),
                                  .options = options,
                                  .tokens = s->run->contexts[number].tokens};
        server_options(s, number, options, &offer.option_count);
        status = kvt_policy_admit(s->policy, now_ns, &offer, &s->plan);
    }
    if (status != KVT_OK && status != KVT_REFUSED) return status;
    status = server_carry_out(s);
    if (status != KVT_OK || !ticks) return status;
    status = kvt_policy_tick(s->policy, now_ns, EXPERIMENT_MOVES, UINT64_MAX, &s->plan);
    return status == KVT_OK ? server_carry_out(s) : status;
}

static uint32_t server_draw(const experiment *run, replay_random *random)
{
    uint32_t low = 0, high = run->options->contexts - 1;
    double wanted = replay_random_unit(random) * run->contexts[high].upto;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (run->contexts[middle].upto <= wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The same arrivals and contexts for every system; the rate only stretches time. */
static kvt_status server_requests(server *s, double rate, uint64_t seed, experiment_outcome *sum)
{
    const experiment *run = s->run;
    uint64_t total = (uint64_t)run->options->contexts * run->options->uses, counted = 0;
    uint64_t warm = (uint64_t)(EXPERIMENT_WARM * (double)total);
    replay_random random;
    double now = 1.0, from = 0.0, ready = 0.0;
    kvt_status status = KVT_OK;
    replay_random_seed(&random, replay_mix(seed) ^ 0x51ed);
    for (uint64_t i = 0; status == KVT_OK && i < total; i++) {
        now += replay_random_exponential(&random, 1.0 / rate);
        uint32_t number = server_draw(run, &random);
        if (i == warm) from = now;
        if (ready < now) ready = now;
        uint64_t start_ns = (uint64_t)(ready * 1e9);
        ready += server_serve(s, number, i >= warm, sum);
        if (i >= warm) {
            sum->ttft += ready - now;
            counted++;
        }
        status = server_refer(s, number, start_ns, i % EXPERIMENT_TICK == 0);
    }
    double n = (double)counted;
    sum->busy = sum->service / (now - from);
    sum->ttft /= n;
    sum->service /= n;
    sum->quality /= n;
    sum->dram_hits /= n;
    sum->ssd_hits /= n;
    for (uint32_t task = 0; task < EXPERIMENT_TASKS; task++) {
        double own = s->counts[task] > 0 ? (double)s->counts[task] : 1.0;
        sum->task_quality[task] /= own;
        sum->task_dram_hits[task] /= own;
    }
    return status;
}

kvt_status experiment_measure(experiment *run, uint32_t system, double rate, uint64_t seed,
                              experiment_outcome *out, char *message, size_t message_size)
{
    server *s = calloc(1, sizeof *s);
    memset(out, 0, sizeof *out);
    snprintf(message, message_size, "out of memory");
    if (s == NULL) return KVT_E_MEMORY;
    s->run = run;
    s->plan = (kvt_plan){.moves = s->moves, .capacity = EXPERIMENT_MOVES};
    s->carried = calloc(run->options->contexts, sizeof *s->carried);
    kvt_status status = KVT_E_MEMORY;
    if (s->carried != NULL) status = server_open(s, system, rate, message, message_size);
    if (status == KVT_OK) status = server_requests(s, rate, seed, out);
    kvt_policy_close(s->policy);
    free(s->carried);
    free(s);
    return status;
}

/* Seconds that prefill alone takes for a request, by popularity. */
static double experiment_prefill_mean(const experiment *run)
{
    double sum = 0.0, before = 0.0;
    for (uint32_t i = 0; i < run->options->contexts; i++) {
        const experiment_context *context = &run->contexts[i];
        const kvt_prefill *prefill = &run->models[0][context->task].prefill;
        double seconds = prefill->fixed_seconds +
                         kvt_prefill_seconds(prefill, 0, context->tokens + QUESTION_TOKENS);
        sum += seconds * (context->upto - before);
        before = context->upto;
    }
    return sum / before;
}

/* Says how many of the runs are behind: `before` of this seed. False: it is to end. */
static bool experiment_tell(const experiment *run, uint32_t seed, uint32_t before)
{
    const experiment_options *options = run->options;
    const double runs = EXPERIMENT_RATES * EXPERIMENT_SYSTEMS;
    char what[32];
    if (options->progress == NULL) return true;
    (void)snprintf(what, sizeof what, "seed %u", seed + 1);
    return options->progress(options->progress_context, (seed + before / runs) / options->seeds,
                             what);
}

static kvt_status experiment_measure_seed(experiment *run, uint32_t seed, char *message,
                                          size_t message_size)
{
    kvt_status status = experiment_draw(run, seed + 1, message, message_size);
    if (status != KVT_OK) return status;
    if (seed == 0) {
        run->prefill_mean_s = experiment_prefill_mean(run);
        for (uint32_t i = 0; i < EXPERIMENT_RATES; i++)
            run->rates[i] = experiment_rate_shares[i] / run->prefill_mean_s;
    }
    for (uint32_t i = 0; i < EXPERIMENT_RATES; i++) {
        for (uint32_t system = 0; status == KVT_OK && system < EXPERIMENT_SYSTEMS; system++) {
            if (!experiment_tell(run, seed, i * EXPERIMENT_SYSTEMS + system))
                return KVT_E_CANCELLED;
            status = experiment_measure(run, system, run->rates[i], seed + 1,
                                        &run->outcomes[i][system][seed], message, message_size);
        }
    }
    return status;
}

kvt_status experiment_run(const experiment_options *options, char *message, size_t message_size)
{
    assert(options->seeds >= 1 && options->seeds <= EXPERIMENT_SEEDS && options->contexts >= 3);
    experiment *run = calloc(1, sizeof *run);
    snprintf(message, message_size, "out of memory");
    if (run == NULL) return KVT_E_MEMORY;
    experiment_options finished = *options; /* with fewer seeds where it is interrupted */
    kvt_status status = experiment_open(run, options, message, message_size);
    for (finished.seeds = 0; status == KVT_OK && finished.seeds < options->seeds;) {
        status = experiment_measure_seed(run, finished.seeds, message, message_size);
        finished.seeds += status == KVT_OK;
    }
    run->options = &finished;
    if (status == KVT_OK || (status == KVT_E_CANCELLED && finished.seeds > 0)) {
        kvt_status printed = experiment_print(run);
        if (printed != KVT_OK) status = printed;
    }
    experiment_close(run);
    free(run);
    return status;
}
