/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop_run.c - one contender serves all requests, on a store of its own.
 *
 * One thread computes, loads and waits; the store's executors encode and write behind puts. The
 * background's rounds are called from here, in the time in which nothing is computed, and the
 * library's clock leaps over what is left of that time (docs/LOOP.md, Clocks).
 */
#include "base/clock.h"
#include "codecs/codec_table.h"
#include "codecs/kernels/checksum.h"
#include "codecs/record.h"
#include "replay/loop/loop_sample.h"
#include "replay/random.h"

#include <kvterrace/codec.h>
#include <kvterrace/lookup.h>

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOOP_NAP_NS UINT64_C(200000) /* between two looks at moves that are under way */

typedef struct loop_state {
    loop_site *site;
    const loop_run_options *options;
    loop_result *result;
    loop_samples samples;
    kvt_store *store;
    live_profile profile;
    uint64_t begin_ns;  /* the library's clock at run time 0 */
    uint64_t paused_ns; /* for so long the run clock stood still */
    uint64_t leapt_ns;
    uint8_t *got;        /* what a get brings */
    uint32_t *positions; /* of kept tokens, a set a layer at most */
    uint64_t positions_room;
} loop_state;

/* The first token of an answer, and the seconds that it took; 0: they were known before. */
typedef struct loop_asked {
    uint32_t first;
    double seconds;
} loop_asked;

/* Nanoseconds of the run clock. */
static uint64_t loop_now(const loop_state *state)
{
    return base_clock_ns() - state->begin_ns - state->paused_ns;
}

/* Whether a thread of the store is at work. */
static bool loop_has_puts(const loop_state *state)
{
    kvt_store_stats stats = {.struct_size = sizeof stats};
    return kvt_store_stats_get(state->store, &stats) == KVT_OK && stats.puts_waiting != 0;
}

/* What this thread computed since then counts by the model's clock: seconds that other processes
 * took meanwhile are none of the model's, unless a host computes. */
static void loop_count_computing(loop_state *state, uint64_t begin_ns, double begin_s)
{
    const uint64_t took_ns = base_clock_ns() - begin_ns;
    const uint64_t cpu_ns =
        (uint64_t)((model_clock_seconds(state->site->measured.weights) - begin_s) * 1e9);
    if (took_ns > cpu_ns) state->paused_ns += took_ns - cpu_ns;
}

/* Nothing is computed until then: the background works, and the clock leaps over the rest. */
static void loop_idle_until(loop_state *state, uint64_t until_ns)
{
    while (loop_now(state) < until_ns) {
        uint32_t moves = 0;
        (void)!kvt_store_flush(state->store);
        (void)!kvt_store_maintain(state->store, &moves);
        if (moves == 0 && !loop_has_puts(state)) break;
        if (moves == 0) base_sleep(LOOP_NAP_NS);
    }
    const uint64_t now_ns = loop_now(state);
    if (now_ns >= until_ns) return;
    base_clock_leap(until_ns - now_ns);
    state->leapt_ns += until_ns - now_ns;
}

/* ---- one request ---- */

/* Whether a load is predicted to be worth it. seconds_out: NAN for what is not stored. */
static bool loop_wants_load(const loop_state *state, const loop_context *context,
                            double *seconds_out)
{
    *seconds_out = (double)NAN;
    if (kvt_store_match(state->store, &context->key, 1, KVT_MATCH(.load_seconds = seconds_out),
                        NULL) != KVT_OK)
        return false;
    if (isnan(*seconds_out)) return false;
    return state->options->load_all ||
           *seconds_out <
               kvt_prefill_seconds(&state->site->prefill, 0, context->entry->context_tokens);
}

/* Whether the sets of kept tokens ascend, lie within the entry and hold its sinks. */
static bool loop_positions_are_sound(const kvt_kept_tokens *given, uint32_t tokens)
{
    const uint32_t kept = given->count;
    for (uint32_t set = 0; set < given->sets; set++) {
        const uint32_t *at = given->positions + (size_t)set * kept;
        for (uint32_t i = 0; i < kept; i++) {
            if (at[i] >= tokens || (i > 0 && at[i] <= at[i - 1])) return false;
            if (i < KVT_SINK_TOKENS && at[i] != i) return false;
        }
    }
    return given->sets > 0 && kept > 0 && kept < tokens;
}

/* Rows behind the kept ones were not written: zeroed, so that equal KV has equal checksums. Where
 * the kept rows are exact (a drop without a further codec), each is compared. */
static bool loop_take_dropped(loop_state *state, const loop_context *context,
                              const kvt_get_info *info, const uint8_t *exact)
{
    const model_config *c = state->site->generator.config;
    const uint32_t tokens = context->entry->context_tokens, kept = info->kept->count;
    const size_t row = (size_t)c->kv_heads * c->head_dim * sizeof(uint16_t);
    char name[QUALITY_NAME_BYTES];
    (void)kvt_variant_format(info->variant, name, sizeof name);
    const bool compare = exact != NULL && strchr(name, '+') == NULL;
    bool same = loop_positions_are_sound(info->kept, tokens);
    for (uint32_t m = 0; m < 2 * c->layers; m++) {
        uint8_t *matrix = state->got + m * tokens * row;
        const size_t set = info->kept->sets > 1 ? (size_t)(m / 2) * kept : 0;
        for (uint32_t i = 0; same && compare && i < kept; i++)
            same = memcmp(matrix + i * row,
                          exact + (m * (size_t)tokens + info->kept->positions[set + i]) * row,
                          row) == 0;
        memset(matrix + kept * row, 0, (tokens - kept) * row);
    }
    return same;
}

/* What a get that dropped tokens brought, looked at while the run clock stands still. */
static kvt_status loop_check_dropped(loop_state *state, const loop_context *context,
                                     const kvt_get_info *info)
{
    const uint64_t begin_ns = base_clock_ns();
    const uint8_t *exact = NULL;
    kvt_status status = loop_kv_map(state->site, context, &exact);
    if (status == KVT_OK) {
        state->result->positions_checked++;
        state->result->positions_wrong += !loop_take_dropped(state, context, info, exact);
    }
    loop_kv_unmap(context, exact);
    state->paused_ns += base_clock_ns() - begin_ns;
    return status;
}

/* Reads the context's KV into state->got. KVT_OK; KVT_MISS. */
static kvt_status loop_load(loop_state *state, const loop_context *context, loop_sample *sample)
{
    kvt_kept_tokens kept = {.struct_size = sizeof kept,
                            .positions = state->positions,
                            .capacity = state->positions_room};
    kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
    double predicted_s;
    if (!loop_wants_load(state, context, &predicted_s)) {
        sample->declined = !isnan(predicted_s);
        /* The policy learns of the use, as from a get that misses. */
        if (!sample->declined)
            (void)!kvt_store_get(state->store, &context->key,
                                 KVT_PACKED(state->got, context->kv_bytes), KVT_STORE_DEADLINE,
                                 &info);
        return KVT_MISS;
    }
    kvt_status status =
        kvt_store_get(state->store, &context->key, KVT_PACKED(state->got, context->kv_bytes),
                      KVT_STORE_DEADLINE, &info);
    if (status != KVT_OK) return status;
    sample->hit = true;
    sample->tier = info.tier;
    sample->variant = info.variant;
    sample->tokens_kept = kept.count;
    sample->staged = info.stored_bytes == 0;
    sample->decode_s = 1e-9 * (double)info.decode_ns;
    sample->get_s = 1e-9 * (double)info.elapsed_ns;
    sample->predicted_s = 1e-9 * (double)info.predicted_ns;
    return kept.sets > 0 ? loop_check_dropped(state, context, &info) : KVT_OK;
}

/* The context's KV is computed, or the seconds that this took pass. kv_out gets exact KV, mapped:
 * loop_kv_unmap it. */
static kvt_status loop_compute(loop_state *state, const loop_context *context,
                               const uint8_t **kv_out)
{
    loop_site *site = state->site;
    kvt_status status = KVT_OK;
    if (site->options.prefill_each) {
        const uint64_t begin_ns = base_clock_ns();
        const double begin_s = model_clock_seconds(site->measured.weights);
        status = loop_prefill(site, context, site->scratch);
        loop_count_computing(state, begin_ns, begin_s);
    } else {
        loop_idle_until(state, loop_now(state) + (uint64_t)(context->prefill_seconds * 1e9));
    }
    return status == KVT_OK ? loop_kv_map(site, context, kv_out) : status;
}

/* The loss of a hit, as the profile makes one of the same figures. */
static double loop_loss(const loop_site *site, const loop_sample *sample)
{
    const quality_row row = {.present = true,
                             .kl = (double)NAN,
                             .recall_kl = (double)NAN,
                             .top1 = sample->top1,
                             .recall_top1 = sample->recall,
                             .rouge_l = sample->rouge_l,
                             .f1 = sample->f1};
    return quality_row_loss_used(site->options.use, site->options.metric, &row, (double)NAN);
}

/* What came back, followed along the entry's own text: once for equal bytes. */
static kvt_status loop_follow(loop_site *site, const loop_context *context, const uint8_t *kv,
                              uint32_t kept, loop_sample *sample)
{
    loop_answer *known = loop_answer_find(site, context, &context->text, sample->kv_checksum);
    kvt_status status = KVT_OK;
    if (known == NULL) {
        uint32_t *ids = calloc(context->text.answer_tokens + 1, sizeof *ids);
        if (ids == NULL) return KVT_E_MEMORY;
        loop_generator_load(&site->generator, kv, context->entry->context_tokens, kept);
        status = loop_generator_follow(&site->generator, context, ids);
        if (status == KVT_OK)
            status = loop_answer_add(site, context, &context->text, sample->kv_checksum, ids, 0.0,
                                     &known);
        free(ids);
    }
    if (status == KVT_OK) {
        sample->top1 = known->top1;
        sample->recall = known->recall;
    }
    return status;
}

static void loop_take_answer(loop_state *state, const loop_context *context,
                             const loop_answer *answer, uint32_t first, loop_sample *sample)
{
    loop_result *result = state->result;
    result->tokens_wrong += answer->ids[0] != first;
    sample->rouge_l = answer->rouge_l;
    sample->f1 = answer->f1;
    sample->same = answer->same;
    for (uint32_t i = 0; i < answer->answer_tokens; i++)
        result->answers_fingerprint = replay_mix(result->answers_fingerprint ^ answer->ids[i]);
    if (!sample->hit || !kvt_codec_is_exact(sample->variant)) return;
    result->exact_checked++;
    result->exact_wrong += sample->kv_checksum != context->kv_checksum;
}

/* The whole answer from what came back, and what is expected along the entry's own text: generated
 * once for equal bytes while the run clock stands still. The generator is as loop_ask left it. */
static kvt_status loop_answer_from(loop_state *state, const loop_context *context,
                                   const loop_question *question, const uint8_t *kv, uint32_t kept,
                                   const loop_asked *asked, loop_sample *sample)
{
    loop_site *site = state->site;
    const uint64_t begin_ns = base_clock_ns();
    kvt_status status = KVT_OK;
    loop_answer *answer = loop_answer_find(site, context, question, sample->kv_checksum);
    if (answer == NULL) {
        uint32_t *ids = calloc(question->answer_tokens + 1, sizeof *ids);
        if (ids == NULL) return KVT_E_MEMORY;
        ids[0] = asked->first;
        status =
            loop_generator_answer(&site->generator, question->exact, question->answer_tokens, ids);
        if (status == KVT_OK)
            status = loop_answer_add(site, context, question, sample->kv_checksum, ids,
                                     asked->seconds, &answer);
        free(ids);
    } else if (asked->seconds > 0.0 && !(answer->ask_seconds > 0.0)) {
        status = loop_answer_time(site, answer, asked->seconds);
    }
    if (status == KVT_OK) loop_take_answer(state, context, answer, asked->first, sample);
    if (status == KVT_OK) status = loop_follow(site, context, kv, kept, sample);
    if (status == KVT_OK) sample->loss = loop_loss(site, sample);
    state->paused_ns += base_clock_ns() - begin_ns;
    return status;
}

static kvt_status loop_put(loop_state *state, const loop_context *context, const uint8_t *kv)
{
    const kvt_entry entry = {.struct_size = sizeof entry,
                             .key = context->key,
                             .layout = loop_layout(state->site, context->entry->context_tokens),
                             .class_id = context->class_index + 1};
    kvt_status status = kvt_store_put(state->store, &entry, KVT_PACKED(kv, context->kv_bytes));
    loop_result *result = state->result;
    result->failed_puts += status < 0;
    return KVT_OK;
}

/* The seconds of a question that was computed before pass. Puts that the store writes have them as
 * well; where there are none the clock leaps: what is queued waits for the next idle time. */
static void loop_let_pass(loop_state *state, double seconds)
{
    const uint64_t ns = (uint64_t)(seconds * 1e9);
    if (loop_has_puts(state)) {
        base_sleep(ns);
        return;
    }
    base_clock_leap(ns);
    state->leapt_ns += ns;
}

/* The first token, on the KV that is there, and what the run's clock says of it. With --prefill
 * once the same question on the same bytes is computed once. */
static kvt_status loop_ask(loop_state *state, const loop_context *context,
                           const loop_question *question, const uint8_t *kv, uint32_t kept,
                           const loop_sample *sample, loop_asked *asked)
{
    loop_site *site = state->site;
    loop_generator *generator = &site->generator;
    const quality_entry *entry = context->entry;
    const loop_answer *known = loop_answer_find(site, context, question, sample->kv_checksum);
    *asked = (loop_asked){.seconds = 0.0};
    if (!site->options.prefill_each && known != NULL && known->ask_seconds > 0.0) {
        asked->first = known->ids[0];
        loop_let_pass(state, known->ask_seconds);
        return KVT_OK;
    }
    const uint64_t begin_ns = base_clock_ns();
    const double begin_s = model_clock_seconds(site->measured.weights);
    loop_generator_load(generator, kv, entry->context_tokens, kept);
    kvt_status status = loop_generator_ask(generator, entry->tokens + question->first,
                                           question->count, &asked->first);
    asked->seconds = model_clock_seconds(site->measured.weights) - begin_s;
    loop_count_computing(state, begin_ns, begin_s);
    return status;
}

/* The checksum of what the answer comes from, while the run clock stands still. */
static void loop_identify(loop_state *state, const loop_context *context, const uint8_t *kv,
                          loop_sample *sample)
{
    const uint64_t begin_ns = base_clock_ns();
    sample->kv_checksum = checksum_of(kv, context->kv_bytes);
    state->paused_ns += base_clock_ns() - begin_ns;
}

/* A loss observed on one question of a few. */
static void loop_observe(loop_state *state, const loop_context *context, const loop_sample *sample)
{
    if (state->site->options.observe && sample->hit && !kvt_codec_is_exact(sample->variant))
        (void)!kvt_quality_observe(state->store, &context->key, sample->variant,
                                   fmin(fmax(sample->loss, 0.0), 1.0), 1.0 / LOOP_QUESTIONS_MAX);
}

static kvt_status loop_serve(loop_state *state, const loop_request *request, loop_sample *sample)
{
    const loop_context *context = &state->site->contexts[request->context];
    const loop_question *question = &context->questions[request->question];
    const uint8_t *kv = NULL;
    loop_asked asked;
    *sample = (loop_sample){.context = request->context, .class_index = context->class_index};
    loop_idle_until(state, request->arrival_ns);
    const uint64_t start_ns = loop_now(state);
    kvt_status status = loop_load(state, context, sample);
    const uint64_t loaded_ns = loop_now(state);
    if (status == KVT_MISS) status = loop_compute(state, context, &kv);
    const uint64_t computed_ns = loop_now(state);
    const uint8_t *used = sample->hit ? state->got : kv;
    const uint32_t kept = sample->hit ? sample->tokens_kept : context->entry->context_tokens;
    if (status == KVT_OK) loop_identify(state, context, used, sample);
    if (status == KVT_OK) status = loop_ask(state, context, question, used, kept, sample, &asked);
    const uint64_t first_ns = loop_now(state);
    if (status == KVT_OK && !sample->hit && !sample->declined)
        status = loop_put(state, context, kv);
    const uint64_t put_ns = loop_now(state);
    sample->wait_s = 1e-9 * (double)(start_ns - request->arrival_ns);
    sample->load_s = 1e-9 * (double)(loaded_ns - start_ns);
    sample->prefill_s = 1e-9 * (double)(computed_ns - loaded_ns);
    sample->question_s = 1e-9 * (double)(first_ns - computed_ns);
    sample->put_s = 1e-9 * (double)(put_ns - first_ns);
    if (status == KVT_OK)
        status = loop_answer_from(state, context, question, used, kept, &asked, sample);
    if (status == KVT_OK) loop_observe(state, context, sample);
    loop_kv_unmap(context, kv);
    return status;
}

/* ---- the store of a run ---- */

/* Raw where the contender stores raw; else its variants, or the model's ladder. */
static kvt_status loop_fill_store(loop_state *state, kvt_store_options *store, char *message,
                                  size_t size)
{
    const loop_contender *contender = state->options->contender;
    const loop_ladder *ladder = state->options->ladder;
    const bool whole = contender->forms == LOOP_FORMS_LADDER;
    *store = *state->options->store;
    store->policy = contender->policy;
    store->durability.catalog_path = NULL;
    store->watch.path = NULL;
    store->limits.tick_seconds = 0.0; /* rounds are called from here */
    store->prefill = state->site->prefill;
    store->seed = state->options->seed;
    if (store->handle_seed == 0) store->handle_seed = 1; /* runs repeat */
    if (state->profile.path[0] != '\0') store->learning.profile_path = state->profile.path;
    store->variant = contender->variant;
    const bool mixed = contender->other_share > 0;
    store->lossless =
        (whole && store->lossless) || (mixed && contender->other.codec == KVT_CODEC_LOSSLESS);
    store->loss.ladder = whole || !kvt_codec_is_exact(contender->variant) ||
                         (mixed && !kvt_codec_is_exact(contender->other));
    if (!store->loss.ladder) return KVT_OK;
    store->loss.ladder_layout = loop_layout(state->site, 256);
    store->loss.ladder_layout.tokens = 0;
    store->loss.ladder_model = state->site->measured.facts.name;
    store->learning.profile_foreign = true; /* a calibration may be of another host */
    if (whole) {
        store->loss.ladder_class = ladder->class_name[0] != '\0' ? ladder->class_name : NULL;
        return KVT_OK;
    }
    store->loss.ladder_class = LOOP_CLASS_OWN;
    store->loss.loss_limit = 1.0;
    return loop_ladder_write(state->site, ladder, contender, state->profile.path, message, size);
}

static void loop_describe(const loop_contender *contender, char *text, size_t size)
{
    char first[QUALITY_NAME_BYTES], other[QUALITY_NAME_BYTES];
    (void)kvt_variant_format(contender->variant, first, sizeof first);
    (void)kvt_variant_format(contender->other, other, sizeof other);
    if (contender->forms == LOOP_FORMS_LADDER) {
        (void)snprintf(text, size, "the ladder");
    } else if (contender->other_share > 0.0) {
        (void)snprintf(text, size, "%s, %.0f %% %s", first, 100.0 * contender->other_share, other);
    } else {
        (void)snprintf(text, size, "%s", first);
    }
}

static void loop_take_stats(loop_state *state)
{
    loop_result *result = state->result;
    kvt_store_stats stats = {.struct_size = sizeof stats};
    if (kvt_store_stats_get(state->store, &stats) != KVT_OK) return;
    result->puts = stats.puts;
    result->refused = stats.puts_refused;
    result->busy = stats.puts_busy;
    result->load_failures = stats.load_failures;
    result->failed_puts += stats.puts_lost;
    result->promotions = stats.promotions;
    result->demotions = stats.demotions;
    result->evictions = stats.evictions;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        result->bytes_read[tier] = stats.tiers[tier].bytes_read;
        result->bytes_written[tier] = stats.tiers[tier].bytes_written;
        result->capacity_bytes[tier] = stats.tiers[tier].capacity_bytes;
        result->used_bytes[tier] = stats.tiers[tier].used_bytes;
        result->emulated[tier] = stats.tiers[tier].emulated;
    }
}

/* The forms that the entries have at the end, by the tier that holds them. */
static void loop_take_stored(loop_state *state)
{
    for (uint32_t i = 0; i < state->site->context_count; i++) {
        kvt_explanation why = {.struct_size = sizeof why};
        if (kvt_store_explain(state->store, &state->site->contexts[i].key, &why) != KVT_OK ||
            why.current == KVT_OPTION_NONE)
            continue;
        const kvt_option *option = &why.options[why.current].option;
        for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
            if (option->bytes[tier] == 0) continue;
            loop_samples_stored(&state->samples, option->variant, tier);
            break;
        }
    }
}

static kvt_status loop_serve_all(loop_state *state, char *message, size_t size)
{
    const loop_requests *requests = state->options->requests;
    const uint64_t skip = (uint64_t)(state->options->warmup * (double)requests->count);
    kvt_status status = KVT_OK;
    state->begin_ns = base_clock_ns();
    for (uint64_t i = 0; status == KVT_OK && i < requests->count; i++) {
        loop_sample sample;
        if (state->options->interrupted != NULL && state->options->interrupted()) {
            (void)snprintf(message, size, "interrupted");
            return KVT_E_CANCELLED;
        }
        if (state->site->options.proceed != NULL)
            (void)state->site->options.proceed(state->site->options.proceed_context,
                                               (double)i / (double)requests->count,
                                               state->options->contender->name);
        status = loop_serve(state, &requests->requests[i], &sample);
        if (status == KVT_OK && i >= skip) loop_samples_add(&state->samples, &sample);
        if (i == skip) state->samples.first_arrival_ns = requests->requests[i].arrival_ns;
        state->samples.last_arrival_ns = requests->requests[i].arrival_ns;
    }
    if (status != KVT_OK) (void)snprintf(message, size, "a request: %s", kvt_status_text(status));
    return status;
}

kvt_status loop_run(loop_site *site, const loop_run_options *options, loop_result *result,
                    char *message, size_t size)
{
    assert(site != NULL && options->store != NULL && options->requests != NULL);
    loop_state state = {.site = site, .options = options, .result = result};
    live_devices devices = {.blank = NULL};
    kvt_store_options store;
    uint64_t most = 0;
    const uint64_t wall_ns = base_clock_ns();
    *result = (loop_result){.seed = options->seed};
    (void)snprintf(result->contender, sizeof result->contender, "%s", options->contender->name);
    loop_describe(options->contender, result->forms_text, sizeof result->forms_text);
    (void)snprintf(message, size, "out of memory");
    for (uint32_t i = 0; i < site->context_count; i++)
        if (site->contexts[i].kv_bytes > most) most = site->contexts[i].kv_bytes;
    state.got = malloc(most);
    state.positions_room = (uint64_t)site->tokens_max * site->generator.config->layers;
    state.positions = malloc(state.positions_room * sizeof *state.positions);
    kvt_status status = state.got != NULL && state.positions != NULL ? KVT_OK : KVT_E_MEMORY;
    if (status == KVT_OK) status = loop_samples_open(&state.samples, options->requests->count);
    if (status == KVT_OK) status = live_devices_note(&devices, options->store);
    if (status == KVT_OK)
        status =
            live_profile_make(&state.profile, options->store->learning.profile_path, message, size);
    if (status == KVT_OK) status = loop_fill_store(&state, &store, message, size);
    if (status == KVT_OK) status = kvt_store_open(&store, &state.store, message, size);
    if (status == KVT_OK) {
        const policy_trial trial = {.half_life_seconds = TRIAL_HALF_LIFE,
                                    .other_share = options->contender->other_share,
                                    .other_variant = options->contender->other};
        live_try(state.store, &trial);
    }
    if (status == KVT_OK) status = loop_serve_all(&state, message, size);
    if (status == KVT_OK) {
        (void)!kvt_store_flush(state.store);
        loop_take_stats(&state);
        loop_take_stored(&state);
        loop_samples_finish(&state.samples, options->ladder, result);
        result->paused_s = 1e-9 * (double)state.paused_ns;
        result->leapt_s = 1e-9 * (double)state.leapt_ns;
        result->wall_s = 1e-9 * (double)(base_clock_ns() - wall_ns - state.leapt_ns);
    }
    kvt_store_close(state.store);
    status = live_site_end(&devices, &state.profile, status, message, size);
    loop_samples_close(&state.samples);
    free(state.got);
    free(state.positions);
    return status;
}
