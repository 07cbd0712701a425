/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish.c - the worth of a copy in the shared tier, its price, and what is learned of both.
 *
 *     loads   = blend(class, blend(all classes of as many uses, prior))
 *     blend   = (hit + prior * weight) / (published + weight)             bytes
 *     offered   bytes by gain per byte, which fade in two minutes: the demand for copies. Walked
 *               from the dearest down, it passes the write rate at the rate's shadow price
 *
 * Only sums and powers of two, so that every build decides alike. Not done here: queues, whether a
 * copy exists, and what becomes of a decision. Pure; one thread per state.
 */
#include "policy/publish.h"

#include "policy/number.h"

#include <assert.h>

#define PUBLISH_HALF_LIFE      1200.0
#define PUBLISH_RIPE           240.0 /* half-life of what is fresh: how soon conversations go on */
#define PUBLISH_BUSY_HALF_LIFE 120.0 /* of the loads that publishing delays */
#define PUBLISH_RATE_HALF_LIFE 120.0 /* of the demand */
#define PUBLISH_LN2            0x1.62e42fefa39efp-1
/* Loads of a copy before anything is known of its class, with the weight of so many bytes: at a
 * first use; 3 and 5 times that at a second and a later one, as what came back comes back again. */
#define PUBLISH_PRIOR_LOADS 0.3
#define PUBLISH_PRIOR_BYTES 1073741824.0
#define PUBLISH_LOG2_LEAST  (-60.0) /* of a gain per byte, in the first bucket */

/* A class is uses x found part x length of the request. */
enum { CLASS_USES = 3, CLASS_FOUND = 4, CLASS_LENGTH = 5 };
_Static_assert(CLASS_USES *CLASS_FOUND *CLASS_LENGTH <= PUBLISH_CLASSES, "classes are a byte");

/* A sum after so many seconds. */
static double faded(double sum, double seconds, double half_life_s)
{
    return seconds > 0.0 ? sum * number_exp2(-seconds / half_life_s) : sum;
}

void publish_open(publish_state *state, const publish_config *config)
{
    assert(config->link_s_per_byte >= 0.0 && config->write_s_per_byte >= 0.0);
    assert(config->write_bytes_per_s >= 0.0 && config->half_life_s >= 0.0);
    *state = (publish_state){.config = *config, .first_s = -1.0};
    if (state->config.half_life_s <= 0.0) state->config.half_life_s = PUBLISH_HALF_LIFE;
}

/* Numbers of tokens in steps of four times, from `first` on. */
static uint8_t publish_step(uint32_t tokens, uint32_t first, uint8_t steps)
{
    uint8_t step = 0;
    for (uint64_t edge = first; step + 1 < steps && tokens >= edge; edge *= 4)
        step++;
    return step;
}

uint8_t publish_class(const publish_candidate *candidate)
{
    uint32_t uses = candidate->uses > CLASS_USES ? CLASS_USES : candidate->uses;
    uint8_t found = 0;
    assert(candidate->uses >= 1);
    if (candidate->found_tokens > 0)
        found = (uint8_t)(1 + publish_step(candidate->found_tokens, 1024, CLASS_FOUND - 1));
    uint8_t length = publish_step(candidate->request_tokens, 1024, CLASS_LENGTH);
    return (uint8_t)(((uses - 1) * CLASS_FOUND + found) * CLASS_LENGTH + length);
}

/* The sums of a class as of now. */
static publish_sums publish_look(const publish_state *state, double now_s, uint8_t class_id)
{
    publish_sums sums = state->classes[class_id];
    double passed = now_s - sums.at_s;
    if (!(passed > 0.0)) return sums;
    double fresh = faded(sums.fresh_bytes, passed, PUBLISH_RIPE);
    sums.published_bytes += sums.fresh_bytes - fresh;
    sums.fresh_bytes = fresh;
    sums.published_bytes = faded(sums.published_bytes, passed, state->config.half_life_s);
    sums.hit_bytes = faded(sums.hit_bytes, passed, state->config.half_life_s);
    sums.at_s = now_s;
    return sums;
}

/* Loads per byte published, with what was believed before weighing as PUBLISH_PRIOR_BYTES. */
static double publish_blend(const publish_sums *sums, double prior)
{
    return (sums->hit_bytes + prior * PUBLISH_PRIOR_BYTES) /
           (sums->published_bytes + PUBLISH_PRIOR_BYTES);
}

double publish_loads(const publish_state *state, double now_s, uint8_t class_id)
{
    assert(class_id < PUBLISH_CLASSES);
    const uint8_t group = CLASS_FOUND * CLASS_LENGTH, first = (uint8_t)(class_id / group * group);
    publish_sums all = {0};
    for (uint8_t c = first; c < first + group && c < PUBLISH_CLASSES; c++) {
        publish_sums sums = publish_look(state, now_s, c);
        all.published_bytes += sums.published_bytes;
        all.hit_bytes += sums.hit_bytes;
    }
    publish_sums own = publish_look(state, now_s, class_id);
    double prior = PUBLISH_PRIOR_LOADS * (double)(2 * (class_id / group) + 1);
    double loads = publish_blend(&own, publish_blend(&all, prior));
    return loads < PUBLISH_LOADS_MOST ? loads : PUBLISH_LOADS_MOST;
}

void publish_written(publish_state *state, double now_s, uint8_t class_id, uint64_t bytes)
{
    if (class_id >= PUBLISH_CLASSES) return;
    state->classes[class_id] = publish_look(state, now_s, class_id);
    state->classes[class_id].fresh_bytes += (double)bytes;
}

void publish_hit(publish_state *state, double now_s, uint8_t class_id, uint64_t bytes)
{
    state->loaded = faded(state->loaded, now_s - state->loaded_at_s, PUBLISH_BUSY_HALF_LIFE);
    state->loaded += (double)bytes;
    if (now_s > state->loaded_at_s) state->loaded_at_s = now_s;
    if (class_id >= PUBLISH_CLASSES) return;
    state->classes[class_id] = publish_look(state, now_s, class_id);
    state->classes[class_id].hit_bytes += (double)bytes;
}

/* ---- prices ---- */

/* The share of the time that loads keep a part of the path busy: what a request waits for a second
 * of writing there. */
static double publish_delay(double bytes_per_s, double s_per_byte)
{
    double busy = bytes_per_s * s_per_byte;
    if (busy < PUBLISH_DELAY_LEAST) return PUBLISH_DELAY_LEAST;
    return busy < 1.0 ? busy : 1.0;
}

/* Seconds that requests lose by a byte on its way. */
static double publish_path_price(const publish_state *state, double now_s)
{
    const publish_config *config = &state->config;
    double loaded = faded(state->loaded, now_s - state->loaded_at_s, PUBLISH_BUSY_HALF_LIFE);
    double bytes_per_s = loaded * PUBLISH_LN2 / PUBLISH_BUSY_HALF_LIFE;
    double hosts = config->sharing_hosts > 1.0 ? config->sharing_hosts : 1.0;
    return config->link_s_per_byte * publish_delay(bytes_per_s, config->link_s_per_byte) +
           config->write_s_per_byte * publish_delay(bytes_per_s * hosts, config->write_s_per_byte);
}

static uint32_t publish_density(double gain_per_byte)
{
    double place = (number_log2(gain_per_byte) - PUBLISH_LOG2_LEAST) * 2.0;
    if (!(place > 0.0)) return 0;
    return place < PUBLISH_DENSITIES - 1 ? (uint32_t)place : PUBLISH_DENSITIES - 1;
}

/* Gain per byte at a place among the buckets. */
static double publish_gain_at(double place)
{
    return number_exp2(place * 0.5 + PUBLISH_LOG2_LEAST);
}

/* Counts a candidate in the demand. */
static void publish_offer(publish_state *state, double now_s, double gain_per_byte, uint64_t bytes)
{
    if (state->first_s < 0.0) state->first_s = state->offered_at_s = now_s;
    double kept = faded(1.0, now_s - state->offered_at_s, PUBLISH_RATE_HALF_LIFE);
    for (uint32_t i = 0; kept < 1.0 && i < PUBLISH_DENSITIES; i++)
        state->offered[i] *= kept;
    if (now_s > state->offered_at_s) state->offered_at_s = now_s;
    state->offered[publish_density(gain_per_byte)] += (double)bytes;
}

double publish_rate_price(const publish_state *state, double now_s)
{
    double rate = state->config.write_bytes_per_s;
    double seen_s = now_s - state->first_s, all = 0.0;
    if (rate <= 0.0 || state->first_s < 0.0 || seen_s <= 0.0) return 0.0;
    /* The fading sums stand for so many seconds of demand, fewer at the beginning. */
    double seconds =
        (1.0 - faded(1.0, seen_s, PUBLISH_RATE_HALF_LIFE)) * PUBLISH_RATE_HALF_LIFE / PUBLISH_LN2;
    double room = rate * seconds;
    double kept = faded(1.0, now_s - state->offered_at_s, PUBLISH_RATE_HALF_LIFE);
    for (uint32_t i = PUBLISH_DENSITIES; i-- > 0;) {
        double here = state->offered[i] * kept;
        if (here > 0.0 && all + here > room) return publish_gain_at(i + 1 - (room - all) / here);
        all += here;
    }
    return 0.0;
}

/* ---- the decision ---- */

publish_decision publish_decide(publish_state *state, double now_s,
                                const publish_candidate *candidate)
{
    assert(candidate->bytes > 0 && candidate->saved_s == candidate->saved_s);
    publish_decision decision = {.class_id = publish_class(candidate)};
    double bytes = (double)candidate->bytes;
    decision.loads = publish_loads(state, now_s, decision.class_id);
    decision.gain_s = candidate->saved_s > 0.0 ? decision.loads * candidate->saved_s : 0.0;
    decision.reason = PUBLISH_NO_PARENT;
    if (!candidate->parent_shared) return decision;
    decision.reason = PUBLISH_NO_GAIN;
    if (!(decision.gain_s > 0.0)) return decision;
    decision.rate_price_s = bytes * publish_rate_price(state, now_s) * 2.0 * candidate->queue_share;
    decision.price_s = bytes * publish_path_price(state, now_s) + decision.rate_price_s;
    publish_offer(state, now_s, decision.gain_s / bytes, candidate->bytes);
    decision.reason = PUBLISH_WORTH;
    if (decision.gain_s < decision.price_s)
        decision.reason =
            number_mix(candidate->handle) % PUBLISH_EXPLORE == 0 ? PUBLISH_EXPLORED : PUBLISH_PRICE;
    decision.publish = decision.reason <= PUBLISH_EXPLORED;
    return decision;
}

/* Milliseconds with three places. */
static void publish_add_ms(text *out, double seconds)
{
    uint64_t micro = seconds < 1e9 ? (uint64_t)(seconds * 1e6 + 0.5) : UINT64_C(1000000000000000);
    text_add_number(out, micro / 1000);
    text_add(out, ".");
    text_add_number(out, micro / 100 % 10);
    text_add_number(out, micro / 10 % 10);
    text_add_number(out, micro % 10);
    text_add(out, " ms");
}

const char *publish_explain(const publish_decision *decision, char *to, size_t size)
{
    static const char *const leads[] = {
        "published", "published to learn of its class", "not published: its parent has no copy",
        "not published: loading it saves nothing", "not published: it costs more than it saves"};
    uint64_t hundredths = (uint64_t)(decision->loads * 100.0 + 0.5);
    text out;
    text_start(&out, to, size);
    text_add(&out, leads[decision->reason <= PUBLISH_PRICE ? decision->reason : PUBLISH_PRICE]);
    text_add(&out, "; class ");
    text_add_number(&out, decision->class_id);
    text_add(&out, ", ");
    text_add_number(&out, hundredths / 100);
    text_add(&out, ".");
    text_add_number(&out, hundredths / 10 % 10);
    text_add_number(&out, hundredths % 10);
    text_add(&out, " loads by others expected, saving ");
    publish_add_ms(&out, decision->gain_s);
    text_add(&out, " for ");
    publish_add_ms(&out, decision->price_s);
    return to;
}
