/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adaptcache_run.c - see adaptcache_experiment.h: one run of one system.
 *
 * The policies know each task's losses and each context's uses so far, as AdaptCache's profiler and
 * counters do, and nothing of what comes; an engine that is told so also knows the predictable part
 * of each context's own losses.
 */
#include "adaptcache_experiment.h"
#include "lab/private.h"

#include "replay/random.h"

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

const experiment_engine experiment_engines[EXPERIMENT_ENGINES] = {
    {"adaptcache", "adaptcache", EXPERIMENT_MENU_PAPER, false},
    {"utility", "utility", EXPERIMENT_MENU_PAPER, false},
    {"adaptcache, our variants", "adaptcache", EXPERIMENT_MENU_OURS, false},
    {"utility, our variants", "utility", EXPERIMENT_MENU_OURS, false},
    {"utility, per entry", "utility", EXPERIMENT_MENU_OURS, true}};

double experiment_compute_seconds(const kvt_prefill *prefill, uint32_t tokens)
{
    return prefill->fixed_seconds + kvt_prefill_seconds(prefill, 0, tokens + QUESTION_TOKENS);
}

/* ---- the options of one context ---- */

typedef struct server {
    const experiment *run;
    const experiment_draw *draw;
    const experiment_system *system;
    kvt_policy *policy;
    double *carried; /* by context: losses of lossy variants that its present one was coded from */
    kvt_move moves[EXPERIMENT_MOVES];
    kvt_plan plan;
    uint64_t seed;
} server;

/* Which rung a mix gives a context in a tier: between two rungs half of them get each. */
static uint32_t server_rung(const server *s, uint32_t number, int tier)
{
    const uint32_t halves = tier == KVT_TIER_DRAM ? s->system->half_dram : s->system->half_ssd;
    const uint64_t drawn = replay_mix(s->seed ^ replay_mix(number * 4u + (uint32_t)tier));
    return (halves + (uint32_t)(drawn & 1)) / 2;
}

static bool server_offers(const server *s, uint32_t number, const kvt_option *option)
{
    const kvt_cost_model *model = &s->run->models[s->system->menu][s->draw->contexts[number].task];
    if (s->system->kind != EXPERIMENT_MIX) return true;
    const int tier = option->bytes[KVT_TIER_DRAM] > 0 ? KVT_TIER_DRAM : KVT_TIER_SSD;
    const kvt_variant wanted = model->variants[server_rung(s, number, tier)].variant;
    return memcmp(&option->variant, &wanted, sizeof wanted) == 0;
}

/* Takes the options away that a mix does not offer, and their places in the masks. */
static void server_restrict(const server *s, uint32_t number, kvt_option *options, uint32_t *count)
{
    uint8_t place[KVT_OPTIONS_MAX];
    uint32_t kept = 1, all = *count;
    for (uint32_t i = 1; i < all; i++) {
        place[i] = 0;
        if (!server_offers(s, number, &options[i])) continue;
        place[i] = (uint8_t)kept;
        options[kept++] = options[i];
    }
    for (uint32_t i = 1; i < kept && kept < all; i++) {
        uint32_t made = 0;
        for (uint32_t from = 1; from < all; from++)
            if ((options[i].made_from >> from & 1) != 0 && place[from] != 0)
                made |= UINT32_C(1) << place[from];
        options[i].made_from = made;
        options[i].loss = options[i].loss_upper = 0.0; /* a mix is blind to losses */
    }
    *count = kept;
}

static void server_options(const server *s, uint32_t number, kvt_option options[KVT_OPTIONS_MAX],
                           kvt_policy_entry *entry)
{
    const experiment_context *context = &s->draw->contexts[number];
    const kvt_cost_model *model = &s->run->models[s->system->menu][context->task];
    const bool told =
        s->system->kind == EXPERIMENT_ENGINE && experiment_engines[s->system->engine].per_entry;
    const kvt_offer offer = {
        .handle = number + UINT64_C(1),
        .layout = {.dtype = KVT_DTYPE_OPAQUE,
                   .opaque_bytes = (uint64_t)(BYTES_PER_TOKEN * context->tokens)},
        .sensitivity = told ? context->known : 1.0,
        .recompute_seconds = kvt_prefill_seconds(&model->prefill, 0, context->tokens)};
    *entry = (kvt_policy_entry){.struct_size = sizeof *entry};
    kvt_status status = kvt_offer_build(model, KVT_HOLES_MIXED, &offer, options, entry);
    assert(status == KVT_OK); /* the menus were read, and 2 * KVT_VARIANTS_MAX + 1 options fit */
    (void)status;
    entry->tokens = context->tokens;
    server_restrict(s, number, options, &entry->option_count);
}

/* ---- one run ---- */

static kvt_status server_open(server *s, double rate, char *message, size_t message_size)
{
    const experiment_system *system = s->system;
    const experiment_options *options = s->run->options;
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.name = system->kind == EXPERIMENT_PREFILL ? "none" : "lru";
    if (system->kind == EXPERIMENT_FIXED)
        config.variant = s->run->models[system->menu][0].variants[system->variant].variant;
    if (system->kind == EXPERIMENT_ENGINE) {
        config.name = experiment_engines[system->engine].policy;
        config.alpha_seconds = system->alpha;
    }
    if (system->kind == EXPERIMENT_MIX) {
        config.name = "utility";
        config.alpha_prefills = 0.0;
    }
    config.holes = KVT_HOLES_MIXED;
    /* Moves are at once here, so no room has to be ready for them. */
    config.high_watermark = config.low_watermark = 1.0;
    config.tiers[KVT_TIER_DRAM] =
        (kvt_tier_facts){.capacity_bytes = (uint64_t)options->dram_bytes, .read_bytes_per_s = 25e9};
    config.tiers[KVT_TIER_SSD] = (kvt_tier_facts){.capacity_bytes = (uint64_t)options->ssd_bytes,
                                                  .read_bytes_per_s = options->ssd_bytes_per_s};
    config.entries_expected = options->contexts;
    config.allocator.resize = kvt_memory_resize;
    kvt_status status = kvt_policy_open(&config, &s->policy, message, message_size);
    if (status == KVT_OK)
        policy_try_half_life(s->policy, EXPERIMENT_MEMORY * options->contexts / rate);
    return status;
}

/* What a context really loses in a variant, coded from exact bytes. */
static double server_loss(const server *s, uint32_t number, kvt_variant variant)
{
    const experiment_context *context = &s->draw->contexts[number];
    const kvt_cost_model *model = &s->run->models[s->system->menu][context->task];
    for (uint32_t i = 0; i < model->variant_count; i++)
        if (memcmp(&model->variants[i].variant, &variant, sizeof variant) == 0)
            return fmin(1.0, model->variants[i].loss * context->sensitivity);
    return 0.0;
}

/* Losses add up where a lossy variant is coded from another (see sim_quality.c). */
static void server_note(server *s, const kvt_move *move, const kvt_option *options)
{
    const uint32_t number = (uint32_t)(move->handle - 1);
    if (move->kind != KVT_MOVE_CHANGE) {
        s->carried[number] = 0.0;
        return;
    }
    const kvt_option *from = &options[move->from], *to = &options[move->to];
    const bool same = memcmp(&from->variant, &to->variant, sizeof from->variant) == 0;
    const codecs_way way = codecs_made_from(from->variant, to->variant);
    if (!same && way != CODECS_WAY_DROP && way != CODECS_WAY_DERIVE)
        s->carried[number] += server_loss(s, number, from->variant);
}

static kvt_status server_carry_out(server *s)
{
    for (uint32_t i = 0; i < s->plan.count; i++) {
        const kvt_move *move = &s->moves[i];
        kvt_option options[KVT_OPTIONS_MAX];
        kvt_policy_entry entry;
        server_options(s, (uint32_t)(move->handle - 1), options, &entry);
        const uint64_t *record_bytes =
            move->to != KVT_OPTION_NONE ? options[move->to].read_bytes : NULL;
        kvt_status status = kvt_policy_commit(s->policy, move->id, record_bytes);
        if (status != KVT_OK) return status;
        server_note(s, move, options);
    }
    s->plan.count = 0;
    return KVT_OK;
}

/* What the request costs and loses; counted into sums. */
static double server_serve(server *s, uint32_t number, bool counted, experiment_outcome *sum)
{
    const experiment_context *context = &s->draw->contexts[number];
    const kvt_prefill *prefill = &s->run->models[0][context->task].prefill;
    const uint32_t all = context->tokens + QUESTION_TOKENS;
    const uint8_t option = kvt_policy_option_get(s->policy, number + UINT64_C(1));
    double seconds = experiment_compute_seconds(prefill, context->tokens), loss = 0.0;
    int tier = KVT_TIER_NONE;
    if (option != KVT_OPTION_NONE) {
        kvt_option options[KVT_OPTIONS_MAX];
        kvt_policy_entry entry;
        server_options(s, number, options, &entry);
        const kvt_option *o = &options[option];
        const double load = prefill->fixed_seconds + o->load_seconds + o->decode_seconds +
                            kvt_prefill_seconds(prefill, context->tokens, all);
        if (load < seconds || s->system->always) {
            tier = o->bytes[KVT_TIER_DRAM] > 0 ? KVT_TIER_DRAM : KVT_TIER_SSD;
            loss = fmin(1.0, server_loss(s, number, o->variant) + s->carried[number]);
            seconds = load;
        }
    }
    if (!counted) return seconds;
    sum->service += seconds;
    sum->quality += 1.0 - loss;
    sum->dram_hits += tier == KVT_TIER_DRAM;
    sum->ssd_hits += tier == KVT_TIER_SSD;
    return seconds;
}

static kvt_status server_refer(server *s, uint32_t number, uint64_t now_ns, bool ticks)
{
    s->plan.count = 0;
    kvt_status status = kvt_policy_access(s->policy, now_ns, number + UINT64_C(1), &s->plan);
    if (status == KVT_MISS) {
        kvt_option options[KVT_OPTIONS_MAX];
        kvt_policy_entry offer;
        server_options(s, number, options, &offer);
        status = kvt_policy_admit(s->policy, now_ns, &offer, &s->plan);
    }
    if (status != KVT_OK && status != KVT_REFUSED) return status;
    status = server_carry_out(s);
    if (status != KVT_OK || !ticks) return status;
    status = kvt_policy_tick(s->policy, now_ns, EXPERIMENT_MOVES, UINT64_MAX, &s->plan);
    return status == KVT_OK ? server_carry_out(s) : status;
}

static uint32_t server_draw(const server *s, replay_random *random)
{
    const experiment_context *contexts = s->draw->contexts;
    uint32_t low = 0, high = s->run->options->contexts - 1;
    const double wanted = replay_random_unit(random) * contexts[high].upto;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (contexts[middle].upto <= wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The same arrivals and contexts for every system; the rate only stretches time. */
static kvt_status server_requests(server *s, double rate, experiment_outcome *sum)
{
    const experiment_options *options = s->run->options;
    const uint64_t total = (uint64_t)options->contexts * options->uses;
    const uint64_t warm = (uint64_t)(EXPERIMENT_WARM * (double)total);
    replay_random random;
    double now = 1.0, from = 0.0, ready = 0.0;
    kvt_status status = KVT_OK;
    replay_random_seed(&random, replay_mix(s->seed) ^ 0x51ed);
    for (uint64_t i = 0; status == KVT_OK && i < total; i++) {
        now += replay_random_exponential(&random, 1.0 / rate);
        const uint32_t number = server_draw(s, &random);
        if (i == warm) from = now;
        if (ready < now) ready = now;
        const uint64_t start_ns = (uint64_t)(ready * 1e9);
        ready += server_serve(s, number, i >= warm, sum);
        if (i >= warm) sum->ttft += ready - now;
        status = server_refer(s, number, start_ns, i % EXPERIMENT_TICK == 0);
    }
    const double n = (double)(total - warm);
    sum->busy = sum->service / (now - from);
    sum->ttft /= n;
    sum->service /= n;
    sum->quality /= n;
    sum->dram_hits /= n;
    sum->ssd_hits /= n;
    return status;
}

kvt_status experiment_measure(const experiment *run, const experiment_draw *draw,
                              const experiment_system *system, double rate, uint64_t seed,
                              experiment_outcome *out, char *message, size_t message_size)
{
    server *s = calloc(1, sizeof *s);
    memset(out, 0, sizeof *out);
    (void)snprintf(message, message_size, "out of memory");
    if (s == NULL) return KVT_E_MEMORY;
    s->run = run;
    s->draw = draw;
    s->system = system;
    s->seed = seed;
    s->plan = (kvt_plan){.moves = s->moves, .capacity = EXPERIMENT_MOVES};
    s->carried = calloc(run->options->contexts, sizeof *s->carried);
    kvt_status status = KVT_E_MEMORY;
    if (s->carried != NULL) status = server_open(s, rate, message, message_size);
    if (status == KVT_OK) status = server_requests(s, rate, out);
    kvt_policy_close(s->policy);
    free(s->carried);
    free(s);
    return status;
}
