/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slack.c - the gate's arithmetic. The contract and the formula are in slack.h; the worker asks
 * (worker.c), and needs.c knows what passes need.
 *
 * Every rule has an end, so that no operation waits for ever: a need ends `patience` after its last
 * layer was due; a write that waited for `patience` gets a twentieth of the time, whatever passes
 * need; and where the clock stands still, every SLACK_STILL_MAX-th question is answered with yes.
 *
 * Thread rule: as slack.h.
 */
#include "slack.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>

#define SLACK_SHARE_OF     20u   /* one part of so many belongs to what has waited for too long */
#define SLACK_STILL_MAX    1024u /* questions at one instant, until the clock counts as still */
#define SLACK_MIX_FREE     0.05  /* a smaller loss is not worth waiting for a turn */
#define SLACK_GRAIN_UNIT   4096u
#define SLACK_GRAIN_PIECES 4   /* under way at once, so that latency is hidden */
#define SLACK_BATCH_MAX    8u  /* grains */
#define SLACK_BATCH_FALLS  64u /* by one part of so many with each write that it need not hold */

const char *slack_reason_name(slack_reason reason)
{
    static const char *const names[SLACK_REASONS] = {
        [SLACK_ORDERED] = "ordered", [SLACK_IDLE] = "idle",          [SLACK_FITS] = "fits",
        [SLACK_SHARE] = "share",     [SLACK_BEHIND_READS] = "reads", [SLACK_LATE] = "late",
        [SLACK_GRAIN] = "grain",     [SLACK_TURN] = "turn"};
    assert((uint32_t)reason < SLACK_REASONS);
    return names[reason];
}

/* ---- instants ---- */

/* An instant later by so many seconds, which are no number or endless where a rate is wrong. */
static uint64_t slack_after(uint64_t from_ns, double seconds)
{
    if (!(seconds > 0)) return from_ns;
    const double sum = (double)from_ns + seconds * 1e9;
    return sum < 1e19 ? from_ns + (uint64_t)(seconds * 1e9) : UINT64_MAX;
}

/* Seconds from one instant to another, below 0 when the second comes first. */
static double slack_between(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns >= from_ns ? (double)(to_ns - from_ns) * 1e-9 : -(double)(from_ns - to_ns) * 1e-9;
}

/* The instant of a need's k-th layer. It stops at the end of time. */
static uint64_t slack_due(const slack_need *need, uint32_t k)
{
    uint64_t span, due;
    if (__builtin_mul_overflow(need->step_ns, (uint64_t)k, &span)) return UINT64_MAX;
    return __builtin_add_overflow(need->due_ns, span, &due) ? UINT64_MAX : due;
}

uint64_t slack_need_ends(const slack_need *need, uint64_t patience_ns)
{
    const uint64_t last = slack_due(need, need->layers > 0 ? need->layers - 1 : 0);
    return last > UINT64_MAX - patience_ns ? UINT64_MAX : last + patience_ns;
}

uint64_t slack_step(uint64_t step_ns, uint64_t spent_ns, uint32_t layers, bool alone)
{
    assert(layers > 0);
    const uint64_t seen_ns = spent_ns / layers;
    return (alone && layers == 1) || seen_ns < step_ns ? seen_ns : step_ns;
}

/* ---- what layers leave ---- */

/* The instant at which the window of a load lets a layer be asked for. */
static uint64_t slack_opens(const slack_need *need, uint64_t due_ns)
{
    uint64_t before;
    if (__builtin_mul_overflow(need->step_ns, (uint64_t)need->ahead, &before)) return 0;
    return due_ns > before ? due_ns - before : 0;
}

double slack_least(const slack_need *needs, uint32_t count, uint64_t start_ns, double bytes_per_s)
{
    uint32_t next[SLACK_NEEDS_MAX] = {0};
    uint64_t landed[SLACK_NEEDS_MAX];
    double least = INFINITY;
    uint64_t free_ns = start_ns;
    assert(count <= SLACK_NEEDS_MAX && bytes_per_s > 0);
    for (uint32_t i = 0; i < count; i++)
        landed[i] = needs[i].landed_bytes;
    for (;;) {
        uint32_t first = count;
        for (uint32_t i = 0; i < count; i++) {
            if (next[i] == needs[i].layers) continue;
            if (first == count ||
                slack_due(&needs[i], next[i]) < slack_due(&needs[first], next[first]))
                first = i;
        }
        if (first == count) return least;
        const slack_need *need = &needs[first];
        const uint64_t due_ns = slack_due(need, next[first]++);
        const uint64_t here = landed[first] < need->layer_bytes ? landed[first] : need->layer_bytes;
        const uint64_t opens_ns = slack_opens(need, due_ns);
        landed[first] -= here;
        if (here == need->layer_bytes) continue;
        if (opens_ns > free_ns) free_ns = opens_ns;
        free_ns = slack_after(free_ns, (double)(need->layer_bytes - here) / bytes_per_s);
        const double left = slack_between(free_ns, due_ns);
        if (left < least) least = left;
    }
}

double tiers_slack_margin(const slack_state *state, double seconds)
{
    const double writing = (double)state->writing_bytes / state->write_bytes_per_s;
    const uint64_t start_ns = slack_after(state->now_ns, writing + seconds);
    return slack_least(state->needs, state->need_count, start_ns, state->read_bytes_per_s);
}

/* ---- the batch ---- */

uint64_t slack_batch_ns(const slack_settings *settings, const slack_account *account)
{
    return account->batch_ns > settings->grain_ns ? account->batch_ns : settings->grain_ns;
}

/* Learns from a question for a write, with so many seconds of writes under way, how long the batch
 * has to last until the worker asks again. */
static void slack_fit_batch(const slack_settings *settings, slack_account *account, double writing)
{
    const uint64_t batch_ns = slack_batch_ns(settings, account);
    const uint64_t most_ns = settings->grain_ns > UINT64_MAX / SLACK_BATCH_MAX
                                 ? UINT64_MAX
                                 : settings->grain_ns * SLACK_BATCH_MAX;
    if (!account->filled) return;
    if (writing == 0)
        account->batch_ns = batch_ns > most_ns / 2 ? most_ns : 2 * batch_ns;
    else if (writing > (double)batch_ns * 0.5e-9)
        account->batch_ns = batch_ns - batch_ns / SLACK_BATCH_FALLS;
    account->filled = false;
}

/* ---- permission ---- */

bool slack_may_overlap(const slack_settings *settings)
{
    return settings->mix_loss <= SLACK_MIX_FREE; /* never so of NAN */
}

double slack_write_rate(double measured_bytes_per_s, double nominal_bytes_per_s)
{
    return fmax(measured_bytes_per_s, nominal_bytes_per_s / 2);
}

uint64_t slack_write_bytes(const slack_settings *settings, const slack_account *account,
                           double write_bytes_per_s)
{
    const double batch = (double)slack_batch_ns(settings, account) * 1e-9;
    const double most = write_bytes_per_s * batch / SLACK_GRAIN_PIECES;
    if (!(most > SLACK_GRAIN_UNIT)) return SLACK_GRAIN_UNIT;
    if (most >= 1e15) return (uint64_t)1e15 / SLACK_GRAIN_UNIT * SLACK_GRAIN_UNIT;
    return (uint64_t)most / SLACK_GRAIN_UNIT * SLACK_GRAIN_UNIT;
}

/* Whether the clock stands still: it has shown one instant for too many questions. */
static bool slack_stands_still(slack_account *account, uint64_t now_ns)
{
    account->still = now_ns == account->still_ns ? account->still + 1 : 0;
    account->still_ns = now_ns;
    if (account->still < SLACK_STILL_MAX) return false;
    account->still = 0;
    return true;
}

bool tiers_slack_share_is_due(const slack_settings *settings, const slack_account *account,
                              const slack_state *state)
{
    const bool due = state->waited_ns >= settings->patience_ns || state->short_of_staging;
    return due && state->now_ns >= account->share_ns;
}

/* The share of what has waited for too long: a write of so many seconds begins if the last such
 * write began 20 of its lengths ago. */
static bool slack_takes_share(const slack_settings *settings, slack_account *account,
                              const slack_state *state, double seconds)
{
    if (slack_stands_still(account, state->now_ns)) return true;
    if (!tiers_slack_share_is_due(settings, account, state)) return false;
    account->share_ns = slack_after(state->now_ns, SLACK_SHARE_OF * seconds);
    return true;
}

/* The rule of the order table: a layer's window, less what its reads take, belongs to writes, once
 * no read of it is queued. The paper counts per window, so what was used counts until the next
 * layer is due. */
static slack_reason slack_in_window(slack_account *account, const slack_state *state,
                                    double seconds)
{
    const slack_need *need = &state->needs[0];
    for (uint32_t i = 1; i < state->need_count; i++)
        if (state->needs[i].due_ns < need->due_ns) need = &state->needs[i];
    if (need->due_ns != account->window_ns) {
        account->window_ns = need->due_ns;
        account->window_seconds = 0;
    }
    const double window = (double)need->step_ns * 1e-9;
    const double reads = (double)need->layer_bytes / state->read_bytes_per_s;
    if (account->window_seconds + seconds > window - reads) return SLACK_LATE;
    account->window_seconds += seconds;
    return SLACK_FITS;
}

/* What the passes say to an operation of so many seconds, behind what is under way. A worker that
 * comes late begins the reads behind it late, too, by about what the batch has grown by. */
static slack_reason slack_in_needs(const slack_settings *settings, const slack_account *account,
                                   const slack_state *state, double seconds)
{
    const double late = (double)(slack_batch_ns(settings, account) - settings->grain_ns);
    const double least = tiers_slack_margin(state, seconds);
    return least >= ((double)settings->guard_ns + late) * 1e-9 ? SLACK_FITS : SLACK_LATE;
}

/* The rules of the orders table and slack for a write, but for the share. */
static slack_reason slack_judge_write(const slack_settings *settings, slack_account *account,
                                      const slack_state *state, double seconds)
{
    const bool passes = state->need_count != 0;
    if (settings->order == TIERS_TABLE) {
        if (state->reads_queued) return SLACK_BEHIND_READS;
        return passes ? slack_in_window(account, state, seconds) : SLACK_IDLE;
    }
    if (!passes) {
        const bool reads = state->reads_queued || state->reading_bytes != 0;
        return reads ? SLACK_BEHIND_READS : SLACK_IDLE;
    }
    const slack_reason reason = slack_in_needs(settings, account, state, seconds);
    if (reason != SLACK_FITS || slack_may_overlap(settings)) return reason;
    return state->reading_bytes != 0 ? SLACK_TURN : SLACK_FITS;
}

slack_reason slack_may_write(const slack_settings *settings, slack_account *account,
                             const slack_state *state, uint64_t bytes)
{
    assert(state->read_bytes_per_s > 0 && state->write_bytes_per_s > 0);
    if (settings->order < TIERS_TABLE) return SLACK_ORDERED;
    const double seconds = (double)bytes / state->write_bytes_per_s;
    const double writing = (double)state->writing_bytes / state->write_bytes_per_s;
    const bool alone = state->writing_bytes == 0;
    /* One write is always allowed beside none, however small the grain. */
    const bool bounded = settings->order == TIERS_SLACK && !alone;
    if (settings->order == TIERS_SLACK) slack_fit_batch(settings, account, writing);
    account->filled =
        bounded && writing + seconds > (double)slack_batch_ns(settings, account) * 1e-9;
    if (account->filled) return SLACK_GRAIN;
    const slack_reason reason = slack_judge_write(settings, account, state, seconds);
    if (slack_begins(reason)) {
        account->still = 0;
        /* Before reads that wait it has its share, and no more. */
        if (state->reads_queued && tiers_slack_share_is_due(settings, account, state))
            account->share_ns = slack_after(state->now_ns, SLACK_SHARE_OF * seconds);
        return reason;
    }
    return slack_takes_share(settings, account, state, seconds) ? SLACK_SHARE : reason;
}

slack_reason slack_may_read(const slack_settings *settings, slack_account *account,
                            const slack_state *state, bool waited, uint64_t bytes)
{
    assert(state->read_bytes_per_s > 0 && state->write_bytes_per_s > 0);
    account->filled = false; /* writes that end now have the read as their reason */
    if (settings->order != TIERS_SLACK || state->need_count == 0) return SLACK_ORDERED;
    slack_reason reason = SLACK_FITS;
    if (!waited)
        reason = slack_in_needs(settings, account, state, (double)bytes / state->read_bytes_per_s);
    /* Writes under way are a grain at most, so the turn comes soon; nothing is to be remembered. */
    if (reason == SLACK_FITS && !slack_may_overlap(settings) && state->writing_bytes != 0)
        return SLACK_TURN;
    if (reason == SLACK_FITS) return SLACK_FITS;
    return slack_stands_still(account, state->now_ns) ? SLACK_SHARE : reason;
}
