/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reuse_fit.c - half-lives of classes by maximum likelihood, from a sample of the entries.
 *
 * An entry's uses are a point process whose rate is `branching` times a decayed count. For a given
 * half-life its likelihood needs three sums over intervals between uses: their number N, the sum of
 * the logarithms of the counts at their ends, and the exposure E, the integral of the counts with
 * (ln 2 / h). Then branching = N / E is the best, and
 *
 *     log L = N (ln (N / E) - 1) + sum ln (ln 2 / h * count)
 *
 * so every half-life of a grid is followed side by side; between the grid's best and its neighbours
 * a parabola over log h finds the top. Intervals that have not ended yet count with their exposure.
 *
 * The sample is of handles below a bound, which falls when the table is full: what leaves is a
 * random half, with all that it showed kept, and its last interval cut there.
 *
 * Thread rule: one thread at a time.
 */
#include "predict.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#define REUSE_GRID       23u  /* 10 s to 5.7 h, by the square root of 2 */
#define REUSE_LEAST      10.0 /* seconds */
#define REUSE_ENTRIES    4096u
#define REUSE_LN2        0.69314718055994530942
#define REUSE_REMEMBERED 65536.0 /* uses of a class; then all of its sums are halved */

typedef struct reuse_slot {
    uint64_t handle; /* 0 = free */
    uint64_t last_ns;
    float counts[REUSE_GRID]; /* as of last_ns */
    uint32_t uses;
    uint8_t class_id;
} reuse_slot;

typedef struct reuse_class {
    uint64_t entries;
    uint64_t uses;
    double intervals; /* as `uses`, but halved with the sums */
    double firsts;    /* of these, from a first use to the second */
    double log_sum[REUSE_GRID];
    double exposure[REUSE_GRID];
    double first_exposure[REUSE_GRID];
    double watched_seconds; /* for the constant rate */
} reuse_class;

struct kvt_reuse {
    uint64_t bound; /* handles whose mix is below are watched */
    uint64_t now_ns;
    uint32_t capacity; /* a power of two */
    uint32_t used;
    double half_lives[REUSE_GRID];
    double log_rates[REUSE_GRID]; /* ln (ln 2 / half-life) */
    reuse_class classes[KVT_REUSE_CLASSES];
    reuse_slot slots[];
};

kvt_status kvt_reuse_open(uint32_t entries, kvt_reuse **reuse_out)
{
    uint32_t capacity = 128;
    *reuse_out = NULL;
    if (entries == 0) entries = REUSE_ENTRIES;
    if (entries < 64 || entries > 1u << 20) return KVT_E_ARGUMENT;
    while (capacity < entries + entries / 2)
        capacity *= 2;
    kvt_reuse *reuse = calloc(1, sizeof *reuse + capacity * sizeof reuse->slots[0]);
    if (reuse == NULL) return KVT_E_MEMORY;
    reuse->bound = UINT64_MAX;
    reuse->capacity = capacity;
    for (uint32_t k = 0; k < REUSE_GRID; k++)
        reuse->half_lives[k] = REUSE_LEAST * exp2(0.5 * k);
    for (uint32_t k = 0; k < REUSE_GRID; k++)
        reuse->log_rates[k] = log(REUSE_LN2 / reuse->half_lives[k]);
    *reuse_out = reuse;
    return KVT_OK;
}

void kvt_reuse_close(kvt_reuse *reuse)
{
    free(reuse);
}

/* ---- the table: open addressing, linear probes ---- */

static uint64_t reuse_mix(uint64_t handle)
{
    handle ^= handle >> 32;
    handle *= UINT64_C(0xd6e8feb86659fd93);
    return handle ^ handle >> 32;
}

static reuse_slot *reuse_find(kvt_reuse *reuse, uint64_t handle)
{
    uint32_t at = (uint32_t)reuse_mix(handle) & (reuse->capacity - 1);
    while (reuse->slots[at].handle != 0 && reuse->slots[at].handle != handle)
        at = (at + 1) & (reuse->capacity - 1);
    return &reuse->slots[at];
}

/* 2^(-seconds / h) for every half-life: twice the half-life is the root, so squares give the rest.
 */
static void reuse_decays(const kvt_reuse *reuse, double seconds, double decays[REUSE_GRID])
{
    for (uint32_t k = REUSE_GRID; k-- > 0;) {
        decays[k] = k + 2 < REUSE_GRID ? decays[k + 2] * decays[k + 2]
                                       : exp(-REUSE_LN2 * seconds / reuse->half_lives[k]);
    }
}

static double reuse_seconds(const reuse_slot *slot, uint64_t now_ns)
{
    return (double)(now_ns - slot->last_ns) * 1e-9;
}

/* The part up to now of an interval that has not ended. */
static void reuse_expose(const reuse_slot *slot, double seconds, const double decays[REUSE_GRID],
                         reuse_class *sums)
{
    sums->watched_seconds += seconds;
    for (uint32_t k = 0; k < REUSE_GRID; k++) {
        double due = (double)slot->counts[k] * (1.0 - decays[k]);
        sums->exposure[k] += due;
        if (slot->uses == 1) sums->first_exposure[k] += due;
    }
}

static void reuse_expose_open(const kvt_reuse *reuse, const reuse_slot *slot, uint64_t now_ns,
                              reuse_class *sums)
{
    double decays[REUSE_GRID], seconds = reuse_seconds(slot, now_ns);
    reuse_decays(reuse, seconds, decays);
    reuse_expose(slot, seconds, decays, sums);
}

/* Halves the sample. The slots that stay are put in again, because probes must find them. */
static void reuse_thin(kvt_reuse *reuse)
{
    uint32_t from = 0;
    reuse->bound /= 2;
    /* Begin behind a free slot, so that no run of probes is cut. */
    while (reuse->slots[from].handle != 0)
        from++;
    for (uint32_t i = 1; i <= reuse->capacity; i++) {
        reuse_slot *slot = &reuse->slots[(from + i) & (reuse->capacity - 1)];
        if (slot->handle == 0) continue;
        reuse_slot kept = *slot;
        slot->handle = 0;
        if (reuse_mix(kept.handle ^ UINT64_C(0x9e3779b97f4a7c15)) <= reuse->bound) {
            *reuse_find(reuse, kept.handle) = kept;
            continue;
        }
        reuse_expose_open(reuse, &kept, reuse->now_ns, &reuse->classes[kept.class_id]);
        reuse->used--;
    }
}

static void reuse_halve(reuse_class *sums)
{
    sums->intervals *= 0.5;
    sums->firsts *= 0.5;
    sums->watched_seconds *= 0.5;
    for (uint32_t k = 0; k < REUSE_GRID; k++) {
        sums->log_sum[k] *= 0.5;
        sums->exposure[k] *= 0.5;
        sums->first_exposure[k] *= 0.5;
    }
}

static void reuse_end_interval(kvt_reuse *reuse, reuse_slot *slot)
{
    reuse_class *sums = &reuse->classes[slot->class_id];
    double decays[REUSE_GRID], seconds = reuse_seconds(slot, reuse->now_ns);
    reuse_decays(reuse, seconds, decays);
    reuse_expose(slot, seconds, decays, sums);
    sums->uses++;
    sums->intervals += 1;
    if (slot->uses == 1) sums->firsts += 1;
    for (uint32_t k = 0; k < REUSE_GRID; k++) {
        double age = REUSE_LN2 * seconds / reuse->half_lives[k];
        sums->log_sum[k] += log(fmax((double)slot->counts[k], 1e-30)) - age + reuse->log_rates[k];
        slot->counts[k] = (float)((double)slot->counts[k] * decays[k] + 1.0);
    }
    if (sums->intervals >= REUSE_REMEMBERED) reuse_halve(sums);
}

void kvt_reuse_use(kvt_reuse *reuse, uint64_t now_ns, uint64_t handle, uint32_t class_id)
{
    assert(reuse != NULL && handle != 0);
    if (now_ns > reuse->now_ns) reuse->now_ns = now_ns;
    if (reuse_mix(handle ^ UINT64_C(0x9e3779b97f4a7c15)) > reuse->bound) return;
    reuse_slot *slot = reuse_find(reuse, handle);
    if (slot->handle != 0) {
        reuse_end_interval(reuse, slot);
        slot->last_ns = reuse->now_ns;
        slot->uses++;
        return;
    }
    *slot = (reuse_slot){.handle = handle,
                         .last_ns = reuse->now_ns,
                         .uses = 1,
                         .class_id = (uint8_t)(class_id < KVT_REUSE_CLASSES ? class_id : 0)};
    for (uint32_t k = 0; k < REUSE_GRID; k++)
        slot->counts[k] = 1.0f;
    reuse->classes[slot->class_id].entries++;
    if (++reuse->used > reuse->capacity / 3 * 2) reuse_thin(reuse);
}

/* ---- the fit ---- */

static double reuse_likelihood(const reuse_class *sums, uint32_t k)
{
    double n = sums->intervals;
    return n * (log(n / fmax(sums->exposure[k], 1e-300)) - 1.0) + sums->log_sum[k];
}

/* Where between the grid's points the top is, in steps from the best: -0.5 to 0.5. */
static double reuse_top(const reuse_class *sums, uint32_t best, double *gain_out)
{
    *gain_out = 0;
    if (best == 0 || best == REUSE_GRID - 1) return 0;
    double left = reuse_likelihood(sums, best - 1), middle = reuse_likelihood(sums, best);
    double right = reuse_likelihood(sums, best + 1);
    double curvature = left - 2 * middle + right;
    if (!(curvature < 0)) return 0;
    double at = 0.5 * (left - right) / curvature;
    *gain_out = -0.125 * (left - right) * (left - right) / curvature;
    return at;
}

kvt_status kvt_reuse_read(kvt_reuse *reuse, uint64_t now_ns, uint32_t class_id,
                          kvt_reuse_class *out)
{
    if (reuse == NULL || out == NULL || class_id >= KVT_REUSE_CLASSES) return KVT_E_ARGUMENT;
    reuse_class sums = reuse->classes[class_id];
    *out = (kvt_reuse_class){.entries = sums.entries, .uses = sums.uses};
    if (now_ns < reuse->now_ns) now_ns = reuse->now_ns;
    for (uint32_t i = 0; i < reuse->capacity; i++) {
        const reuse_slot *slot = &reuse->slots[i];
        if (slot->handle != 0 && slot->class_id == class_id)
            reuse_expose_open(reuse, slot, now_ns, &sums);
    }
    if (sums.intervals < 1 || !(sums.watched_seconds > 0)) return KVT_OK;
    uint32_t best = 0;
    for (uint32_t k = 1; k < REUSE_GRID; k++)
        if (reuse_likelihood(&sums, k) > reuse_likelihood(&sums, best)) best = k;
    double gain, top = reuse_top(&sums, best, &gain), n = sums.intervals;
    out->half_life_seconds = reuse->half_lives[best] * exp2(0.5 * top);
    out->branching = n / sums.exposure[best];
    out->log_likelihood = (reuse_likelihood(&sums, best) + gain) / n;
    out->log_likelihood_exponential = log(n / sums.watched_seconds) - 1.0;
    /* Of what a use brings about, the first one's part beside a later one's. */
    double first = sums.firsts / fmax(sums.first_exposure[best], 1e-300);
    double later_exposure = sums.exposure[best] - sums.first_exposure[best];
    double later = later_exposure > 0 ? (n - sums.firsts) / later_exposure : 0;
    if (later > 0 && first > later) out->prior_uses = first / later - 1.0;
    return KVT_OK;
}
