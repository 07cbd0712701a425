/* SPDX-License-Identifier: Apache-2.0 */
/*
 * promise.c - see promise.h. Losses are positive and spread over orders of magnitude, so classes
 * differ by factors: their means are compared in logarithms. How far a new class may lie from the
 * known ones follows from how far these lie from each other, by Student's distribution, so that the
 * bound holds whatever the true spread is. A least spread keeps a few classes that happen to agree
 * from a narrow bound (docs/decisions/0055-a-widening-by-students-point.md).
 */
#include "estimator/quality/promise.h"

#include "base/order.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PROMISE_LEAST_SPREAD  0.8 /* over sqrt(classes - 1): of log means, times Student's point */
#define PROMISE_MOST_SPREAD   1.0 /* of log means, where one class says nothing of it */
#define PROMISE_MOST_WIDENING 1e3
#define PROMISE_HALF          0.5 /* losses near 1 cannot differ by much */
#define PROMISE_NORMAL        1.645
#define PROMISE_SKEWED        1.96 /* what keeps 95 % of skewed means, see sample_mean_distance */

/* The losses of one variant over the entries of one class. */
typedef struct promise_sample {
    double *losses;      /* [entries] */
    uint32_t *documents; /* [entries], from 0 on */
    uint32_t entries, document_count;
    double *sums, *counts; /* [entries] */
    uint64_t *names;       /* [entries] */
    void *memory;
} promise_sample;

static kvt_status sample_make(const promise_rows *rows, promise_sample *sample)
{
    const size_t count = rows->entry_count + 1u;
    double *at = malloc(3 * count * sizeof *at + count * (sizeof(uint64_t) + sizeof(uint32_t)));
    *sample = (promise_sample){.memory = at};
    if (at == NULL) return KVT_E_MEMORY;
    sample->losses = at;
    sample->sums = at + count;
    sample->counts = at + 2 * count;
    sample->names = (uint64_t *)(void *)(at + 3 * count);
    sample->documents = (uint32_t *)(void *)(sample->names + count);
    return KVT_OK;
}

static void sample_take(const promise_rows *rows, uint32_t class_index, uint32_t variant,
                        promise_sample *sample)
{
    sample->entries = 0;
    for (uint32_t e = 0; e < rows->entry_count; e++) {
        const quality_row *row = &rows->rows[(size_t)e * rows->variant_count + variant];
        if (rows->classes[e] != class_index || !row->present || !isfinite(row->loss)) continue;
        sample->names[sample->entries] = rows->documents != NULL ? rows->documents[e] : 0;
        sample->losses[sample->entries++] = row->loss;
    }
    sample->document_count =
        quality_number_documents(sample->names, sample->entries, sample->documents);
}

static double sample_sum(const promise_sample *sample)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < sample->entries; i++)
        sum += sample->losses[i];
    return sum;
}

/* A lossy variant that lost nothing here is still lossy: half of the least that could have shown.
 */
static double sample_mean(const promise_rows *rows, const promise_sample *sample)
{
    return fmax(sample_sum(sample), 0.5 / rows->trials) / sample->entries;
}

double quality_student(double z, double freedom)
{
    /* One degree of freedom is Cauchy's distribution, which the series is too far from. */
    if (freedom <= 1.0) return tan(0.5 * acos(-1.0) * erf(z / sqrt(2.0)));
    const double z3 = z * z * z, z5 = z3 * z * z;
    return z + (z3 + z) / (4.0 * freedom) +
           (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * freedom * freedom) +
           (3.0 * z5 * z * z + 19.0 * z5 + 17.0 * z3 - 15.0 * z) /
               (384.0 * freedom * freedom * freedom);
}

/* How far the mean of documents like these may lie above theirs, at PROMISE_CONFIDENCE: Student's
 * distance with Johnson's correction for skewed values (1978), as losses are: most documents lose
 * little, a few a lot. Of lognormal losses whose deviation is their mean it keeps 92 % with 30
 * documents at 95 % points, and 94 % at 97.5 % points, which are taken. */
static double sample_mean_distance(const promise_sample *sample)
{
    const double documents = sample->document_count;
    double sum = 0.0, count = 0.0, squares = 0.0, cubes = 0.0;
    for (uint32_t d = 0; d < sample->document_count; d++) {
        sum += sample->sums[d];
        count += sample->counts[d];
    }
    for (uint32_t d = 0; d < sample->document_count; d++) {
        const double off = (sample->sums[d] - sample->counts[d] * sum / count) * documents / count;
        squares += off * off;
        cubes += off * off * off;
    }
    if (!(squares > 0.0)) return 0.0;
    const double variance = squares / (documents - 1.0),
                 t = quality_student(PROMISE_SKEWED, documents - 1.0);
    const double skewed = cubes / documents * (1.0 + 2.0 * t * t) / (6.0 * variance * documents);
    return t * sqrt(variance / documents) + fmax(skewed, 0.0);
}

/* The upper end of the mean at PROMISE_CONFIDENCE, by documents; 1 where one is all there is. */
static double sample_mean_upper(const promise_rows *rows, promise_sample *sample)
{
    const uint32_t documents = sample->document_count;
    const double mean = sample_mean(rows, sample);
    if (documents < 2) return 1.0;
    memset(sample->sums, 0, documents * sizeof *sample->sums);
    memset(sample->counts, 0, documents * sizeof *sample->counts);
    for (uint32_t i = 0; i < sample->entries; i++) {
        sample->sums[sample->documents[i]] += sample->losses[i];
        sample->counts[sample->documents[i]] += 1.0;
    }
    /* The rule of three: when none of n documents loses, one in n / 3 still may. */
    const double unseen = 3.0 / documents / rows->trials;
    return fmin(fmax(mean + sample_mean_distance(sample), unseen), 1.0);
}

/* The loss that 90 % of entries do not pass: the quantile, so much higher that as many documents
 * could show another one. */
static double sample_entry_upper(promise_sample *sample, double mean_upper)
{
    const double room = sqrt(PROMISE_ENTRIES * (1.0 - PROMISE_ENTRIES) / sample->document_count);
    const double share = fmin(PROMISE_ENTRIES + PROMISE_NORMAL * room, 1.0);
    /* Of a few documents even the largest loss is none that bounds the rest. */
    const double few = pow(share, sample->document_count) > 1.0 - PROMISE_CONFIDENCE &&
                               PROMISE_ENTRIES + PROMISE_NORMAL * room >= 1.0
                           ? 2.0
                           : 1.0;
    const double loss = quality_quantile(sample->losses, sample->entries, share);
    return fmin(fmax(few * loss, mean_upper), 1.0);
}

kvt_status promise_of_class(const promise_rows *rows, uint32_t class_index, promise_bound *bounds)
{
    promise_sample sample;
    kvt_status status = sample_make(rows, &sample);
    if (status != KVT_OK) return status;
    for (uint32_t v = 0; v < rows->variant_count; v++) {
        const double nan = (double)NAN;
        bounds[v] = (promise_bound){nan, nan, nan, 1.0, .lost = false};
        sample_take(rows, class_index, v, &sample);
        if (sample.entries == 0) continue;
        bounds[v].loss = sample_mean(rows, &sample);
        bounds[v].lost = sample_sum(&sample) > 0.0;
        bounds[v].mean = sample_mean_upper(rows, &sample);
        bounds[v].entry = sample_entry_upper(&sample, bounds[v].mean);
    }
    free(sample.memory);
    return KVT_OK;
}

static bool promise_counts(uint64_t left_out, uint32_t class_index)
{
    return (left_out >> class_index & 1u) == 0;
}

/* Squares of the logs of a variant's class means around their mean, summed; NAN where they do not
 * show how classes differ: some class has no loss of the variant, or half of its answers are lost.
 */
static double promise_squares(const promise_rows *rows, const promise_bound *of_class,
                              uint64_t left_out, uint32_t classes, uint32_t variant)
{
    double sum = 0.0, around = 0.0;
    for (uint32_t c = 0; c < rows->class_count; c++) {
        const promise_bound *one = &of_class[(size_t)c * rows->variant_count + variant];
        if (!promise_counts(left_out, c)) continue;
        if (!one->lost || one->loss > PROMISE_HALF) return (double)NAN;
        sum += log(one->loss);
    }
    for (uint32_t c = 0; c < rows->class_count; c++) {
        const double loss = of_class[(size_t)c * rows->variant_count + variant].loss;
        if (promise_counts(left_out, c)) around += pow(log(loss) - sum / classes, 2.0);
    }
    return around;
}

/*
 * The factor that a new class is within, of the mean over classes. One spread is estimated from all
 * variants: a class that loses more does so in most of them, and the spread of one variant over a
 * few classes is mostly chance. Variants that follow each other add no degree of freedom, so
 * Student's point is that of the classes.
 */
static double promise_widening(const promise_rows *rows, const promise_bound *of_class,
                               uint64_t left_out, uint32_t classes)
{
    double squares = 0.0, distance = PROMISE_NORMAL * PROMISE_MOST_SPREAD;
    uint32_t used = 0;
    for (uint32_t v = 0; classes > 1 && v < rows->variant_count; v++) {
        const double around = promise_squares(rows, of_class, left_out, classes, v);
        if (isnan(around)) continue;
        squares += around;
        used++;
    }
    if (used > 0) {
        const double freedom = classes - 1.0, spread = sqrt(squares / used / freedom);
        distance = fmax(PROMISE_LEAST_SPREAD / sqrt(freedom),
                        quality_student(PROMISE_NORMAL, freedom) * spread);
    }
    return fmin(exp(distance * sqrt(1.0 + 1.0 / classes)), PROMISE_MOST_WIDENING);
}

kvt_status promise_of_others(const promise_rows *rows, uint64_t left_out, promise_bound *bounds)
{
    uint32_t classes = 0;
    promise_bound *of_class =
        calloc((size_t)rows->class_count * rows->variant_count, sizeof *of_class);
    kvt_status status = of_class != NULL ? KVT_OK : KVT_E_MEMORY;
    assert(rows->class_count <= 64);
    for (uint32_t c = 0; status == KVT_OK && c < rows->class_count; c++) {
        classes += promise_counts(left_out, c);
        status = promise_of_class(rows, c, of_class + (size_t)c * rows->variant_count);
    }
    const double widening =
        status == KVT_OK ? promise_widening(rows, of_class, left_out, classes) : 1.0;
    for (uint32_t v = 0; status == KVT_OK && v < rows->variant_count; v++) {
        double loss = 0.0, mean = 0.0, ratio = 1.0;
        uint32_t seen = 0;
        for (uint32_t c = 0; c < rows->class_count; c++) {
            const promise_bound *one = &of_class[(size_t)c * rows->variant_count + v];
            if (!promise_counts(left_out, c) || isnan(one->loss)) continue;
            loss += one->loss;
            mean += log(one->loss);
            ratio = fmax(ratio, one->entry / one->loss);
            seen++;
        }
        const double nan = (double)NAN;
        bounds[v] = (promise_bound){nan, nan, nan, widening, .lost = false};
        if (seen == 0) continue;
        /* Entries lie around their class's mean as in the class where they lie the farthest. */
        bounds[v].loss = loss / seen;
        bounds[v].mean = fmin(fmax(exp(mean / seen) * widening, loss / seen), 1.0);
        bounds[v].entry = fmin(bounds[v].mean * ratio, 1.0);
    }
    free(of_class);
    return status;
}

/* Counts what a bound would have offered at each limit, and how the sample kept it. */
static void trials_add(const promise_rows *rows, const promise_sample *sample,
                       const promise_bound *bound, promise_trial *trials, uint32_t count)
{
    const double mean = sample_mean(rows, sample);
    for (uint32_t t = 0; t < count; t++) {
        promise_trial *trial = &trials[t];
        uint32_t within = 0;
        for (uint32_t i = 0; i < sample->entries; i++)
            within += sample->losses[i] <= trial->limit;
        trial->mean_offered += bound->mean <= trial->limit;
        trial->mean_kept += bound->mean <= trial->limit && mean <= trial->limit;
        if (!(bound->entry <= trial->limit)) continue;
        trial->entry_offered++;
        trial->entry_kept += within >= PROMISE_ENTRIES * sample->entries;
        trial->entry_seen += sample->entries;
        trial->entry_within += within;
    }
}

static void trials_begin(promise_trial *trials, uint32_t count)
{
    for (uint32_t t = 0; t < count; t++)
        trials[t] = (promise_trial){.limit = trials[t].limit};
}

kvt_status promise_try(const promise_rows *rows, promise_trial *trials, uint32_t count)
{
    promise_sample sample;
    promise_bound *bounds = calloc(rows->variant_count + 1u, sizeof *bounds);
    kvt_status status = sample_make(rows, &sample);
    if (bounds == NULL) status = KVT_E_MEMORY;
    trials_begin(trials, count);
    for (uint32_t c = 0; status == KVT_OK && rows->class_count > 1 && c < rows->class_count; c++) {
        status = promise_of_others(rows, UINT64_C(1) << c, bounds);
        for (uint32_t v = 0; status == KVT_OK && v < rows->variant_count; v++) {
            sample_take(rows, c, v, &sample);
            if (sample.entries == 0 || isnan(bounds[v].mean)) continue;
            trials_add(rows, &sample, &bounds[v], trials, count);
        }
    }
    free(sample.memory);
    free(bounds);
    return status;
}

/* Classes of the halves of one class: 0 and 1 in turns of its documents, 2 for all else. Returns
 * how many documents it has. */
static uint32_t promise_halve(const promise_rows *rows, uint32_t class_index,
                              promise_sample *sample, uint32_t *halves)
{
    uint32_t count = 0;
    for (uint32_t e = 0; e < rows->entry_count; e++)
        if (rows->classes[e] == class_index)
            sample->names[count++] = rows->documents != NULL ? rows->documents[e] : 0;
    const uint32_t documents = quality_number_documents(sample->names, count, sample->documents);
    count = 0;
    for (uint32_t e = 0; e < rows->entry_count; e++)
        halves[e] = rows->classes[e] == class_index ? sample->documents[count++] % 2 : 2;
    return documents;
}

kvt_status promise_try_documents(const promise_rows *rows, promise_trial *trials, uint32_t count)
{
    promise_sample sample;
    promise_rows halved = *rows;
    promise_bound *bounds = calloc(rows->variant_count + 1u, sizeof *bounds);
    uint32_t *halves = calloc(rows->entry_count + 1u, sizeof *halves);
    kvt_status status = sample_make(rows, &sample);
    if (bounds == NULL || halves == NULL) status = KVT_E_MEMORY;
    trials_begin(trials, count);
    halved.classes = halves;
    halved.class_count = 2;
    for (uint32_t c = 0; status == KVT_OK && c < rows->class_count; c++) {
        if (promise_halve(rows, c, &sample, halves) < 4) continue;
        for (uint32_t half = 0; status == KVT_OK && half < 2; half++) {
            status = promise_of_class(&halved, half, bounds);
            for (uint32_t v = 0; status == KVT_OK && v < rows->variant_count; v++) {
                sample_take(&halved, 1 - half, v, &sample);
                if (sample.entries == 0 || isnan(bounds[v].mean)) continue;
                trials_add(&halved, &sample, &bounds[v], trials, count);
            }
        }
    }
    free(sample.memory);
    free(bounds);
    free(halves);
    return status;
}
