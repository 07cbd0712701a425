/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_map.c - from attention error to loss. One profile belongs to one thread at a time;
 * maps are plain data.
 */
#include "codecs/codec_table.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/quality/quality.h"
#include "estimator/quality/quality_round_trip.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Curves with losses of one metric that are of one of our variants. */
typedef struct map_scores {
    char metric[32];
    uint32_t found;
} map_scores;

enum { MAP_METRICS_MAX = 8 };

static bool map_is_score(const kvt_quality_curve *score, const char *name, const char *class_name)
{
    return strcmp(score->model, name) == 0 && strcmp(score->method, "attention") != 0 &&
           isfinite(score->loss_mean) &&
           (class_name == NULL || strcmp(score->class_name, class_name) == 0);
}

static uint32_t map_find(const quality_variant *variants, const quality_curve *curves,
                         uint32_t count, kvt_variant wanted)
{
    for (uint32_t i = 0; i < count; i++) {
        kvt_variant key = quality_variant_key(&variants[i]);
        if (curves[i].entries > 0 && isfinite(curves[i].attention_error) &&
            key.codec == wanted.codec && key.mode == wanted.mode && key.rate == wanted.rate)
            return i;
    }
    return UINT32_MAX;
}

static quality_family *map_family(quality_map *map, const char *name)
{
    for (uint32_t i = 0; i < map->family_count; i++)
        if (strcmp(map->families[i].name, name) == 0) return &map->families[i];
    if (map->family_count == QUALITY_FAMILIES_MAX) return NULL;
    quality_family *family = &map->families[map->family_count++];
    *family = (quality_family){.count = 0};
    (void)snprintf(family->name, sizeof family->name, "%s", name);
    return family;
}

static void map_add(quality_map *map, const quality_variant *variant, const quality_curve *curve,
                    const kvt_quality_curve *score)
{
    if (kvt_codec_is_exact(variant->variant)) return;
    quality_family *family = map_family(map, quality_variant_codec(variant->variant));
    if (family == NULL || family->count == QUALITY_MAP_STEPS_MAX) return;
    family->steps[family->count++] = (isotonic_point){
        .x = curve->attention_error,
        .y = score->loss_mean,
        .upper = fmax(score->loss_mean, isfinite(score->loss_high) ? score->loss_high : 0.0),
        .weight = score->entries > 0 ? score->entries : 1.0};
}

static void map_count(map_scores *metrics, const char *metric)
{
    uint32_t i = 0;
    while (i < MAP_METRICS_MAX && metrics[i].found > 0 && strcmp(metrics[i].metric, metric) != 0)
        i++;
    if (i == MAP_METRICS_MAX) return;
    (void)snprintf(metrics[i].metric, sizeof metrics[i].metric, "%s", metric);
    metrics[i].found++;
}

/* Walks the profile's curves twice: to choose the metric, then to take its losses. */
static kvt_status map_collect(kvt_profile *profile, const char *name, const char *class_name,
                              const quality_variant *variants, const quality_curve *curves,
                              uint32_t count, quality_map *map)
{
    map_scores metrics[MAP_METRICS_MAX] = {{.found = 0}};
    kvt_quality_curve score;
    for (int pass = 0; pass < 2; pass++) {
        kvt_status status = KVT_OK;
        for (size_t i = 0; status == KVT_OK; i++) {
            status = kvt_profile_quality_at(profile, i, &score);
            if (status != KVT_OK || !map_is_score(&score, name, class_name)) continue;
            uint32_t at = map_find(variants, curves, count, score.variant);
            if (at == UINT32_MAX) continue;
            if (pass == 0) map_count(metrics, score.metric);
            if (pass == 1 && strcmp(score.metric, map->metric) == 0)
                map_add(map, &variants[at], &curves[at], &score);
        }
        if (status != KVT_END) return status;
        uint32_t best = 0;
        for (uint32_t i = 1; i < MAP_METRICS_MAX; i++)
            if (metrics[i].found > metrics[best].found) best = i;
        if (metrics[best].found == 0) return KVT_OK;
        (void)snprintf(map->metric, sizeof map->metric, "%s", metrics[best].metric);
    }
    return KVT_OK;
}

/* Fits what has enough points, drops the rest. */
static void map_fit(quality_map *map)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < map->family_count; i++) {
        quality_family *family = &map->families[i];
        if (family->count < QUALITY_MAP_LEAST) continue;
        family->count = isotonic_map_fit(family->steps, family->count);
        if (kept != i) map->families[kept] = *family;
        kept++;
    }
    map->family_count = kept;
    if (kept == 0) map->metric[0] = '\0';
}

static kvt_status map_read(kvt_profile *profile, const char *name, quality_map *map)
{
    profile_row row = profile_row_begin(
        profile, "SELECT q.family, q.attention_error, q.loss, q.loss_upper FROM quality_map q "
                 "JOIN model m ON m.id = q.model_id WHERE m.name = ?1 AND q.run_id = (SELECT "
                 "p.run_id FROM quality_map p JOIN model n ON n.id = p.model_id JOIN run r ON "
                 "r.id = p.run_id WHERE n.name = ?1 AND r.complete = 1 ORDER BY " PROFILE_ORDER
                 " LIMIT 1) ORDER BY q.family, q.position");
    profile_row_text(&row, name);
    if (row.result == SQLITE_OK) row.result = sqlite3_step(row.statement);
    while (row.result == SQLITE_ROW) {
        quality_family *family =
            map_family(map, (const char *)sqlite3_column_text(row.statement, 0));
        if (family != NULL && family->count < QUALITY_MAP_STEPS_MAX)
            family->steps[family->count++] =
                (isotonic_point){.x = sqlite3_column_double(row.statement, 1),
                                 .y = sqlite3_column_double(row.statement, 2),
                                 .upper = sqlite3_column_double(row.statement, 3),
                                 .weight = 1.0};
        row.result = sqlite3_step(row.statement);
    }
    int result = row.result;
    sqlite3_finalize(row.statement);
    map->stored = map->family_count > 0;
    if (map->stored) (void)snprintf(map->metric, sizeof map->metric, "stored");
    return result == SQLITE_DONE ? KVT_OK : profile_status(result);
}

kvt_status quality_map_make(kvt_profile *profile, const char *name, const char *class_name,
                            const quality_variant *variants, const quality_curve *curves,
                            uint32_t count, quality_map *map_out)
{
    *map_out = (quality_map){.family_count = 0};
    kvt_status status = map_collect(profile, name, class_name, variants, curves, count, map_out);
    map_fit(map_out);
    if (status == KVT_OK && map_out->family_count == 0) {
        *map_out = (quality_map){.family_count = 0};
        status = map_collect(profile, name, NULL, variants, curves, count, map_out);
        map_fit(map_out);
    }
    if (status != KVT_OK || map_out->family_count > 0) return status;
    return map_read(profile, name, map_out);
}

kvt_status quality_map_put(kvt_profile *profile, int64_t run, int64_t model_row,
                           const quality_map *map)
{
    kvt_status status = KVT_OK;
    if (map->stored) return KVT_OK;
    for (uint32_t f = 0; f < map->family_count; f++) {
        const quality_family *family = &map->families[f];
        for (uint32_t i = 0; status == KVT_OK && i < family->count; i++) {
            profile_row row = profile_row_begin(
                profile, "INSERT OR REPLACE INTO quality_map (run_id, model_id, family, position, "
                         "attention_error, loss, loss_upper) VALUES (?, ?, ?, ?, ?, ?, ?)");
            profile_row_integer(&row, (uint64_t)run);
            profile_row_integer(&row, (uint64_t)model_row);
            profile_row_text(&row, family->name);
            profile_row_integer(&row, i);
            profile_row_real(&row, family->steps[i].x);
            profile_row_real(&row, family->steps[i].y);
            profile_row_real(&row, fmin(family->steps[i].upper, 1.0));
            status = profile_status(profile_row_end(&row));
        }
    }
    return status;
}

/* An upper confidence loss without any scores: the error of the worst heads itself, at most 1. On
 * the models that were looked at, top-1 loss stayed below it for every variant (docs/PROFILE.md).
 */
static double quality_loss_bound(double attention_error_high)
{
    return fmin(attention_error_high, 1.0);
}

/* At x by a family's fit: within it as it says; a little beyond, up to twice the last error that
 * was seen, in proportion (the bound by the square, as KL grows). */
static bool map_reaches(const quality_family *family, double x, double *loss_out, double *upper_out)
{
    if (isotonic_map_at(family->steps, family->count, x, loss_out, upper_out)) return true;
    const isotonic_point *last = &family->steps[family->count - 1];
    if (!(last->x > 0.0) || x > 2.0 * last->x) return false;
    double more = x / last->x;
    *loss_out = fmin(last->y * more, 1.0);
    *upper_out = fmin(last->upper * more * more, 1.0);
    return true;
}

void quality_map_loss(const quality_map *map, kvt_variant variant, double error, double high,
                      double *loss_out, double *upper_out)
{
    *loss_out = *upper_out = 0.0;
    if (kvt_codec_is_exact(variant)) return;
    const char *name = quality_variant_codec(variant);
    for (uint32_t i = 0; i < map->family_count; i++) {
        const quality_family *family = &map->families[i];
        if (strcmp(family->name, name) == 0 && map_reaches(family, error, loss_out, upper_out))
            return;
    }
    *loss_out = *upper_out = quality_loss_bound(fmax(error, high));
}

/* ---- isotonic fits ---- */

/*
 * Pool adjacent violators: a block of equal fit swallows the one before it as long as that one is
 * not lower. Blocks are told by their equal values, so the fit needs no memory of its own; it is
 * made for a few dozen points.
 */

void isotonic_fit(isotonic_point *points, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        double sum = points[i].y * points[i].weight, mass = points[i].weight, mean = points[i].y;
        uint32_t first = i;
        while (first > 0 && points[first - 1].y >= mean) {
            double before = points[first - 1].y;
            while (first > 0 && !(points[first - 1].y < before)) {
                first--;
                sum += before * points[first].weight;
                mass += points[first].weight;
            }
            mean = sum / mass;
        }
        for (uint32_t j = first; j <= i; j++)
            points[j].y = mean;
    }
}

static int isotonic_order(const void *left, const void *right)
{
    double a = ((const isotonic_point *)left)->x, b = ((const isotonic_point *)right)->x;
    return (a > b) - (a < b);
}

/* Weighted means of y where x is equal. */
static uint32_t isotonic_merge(isotonic_point *points, uint32_t count)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        isotonic_point *last = &points[kept > 0 ? kept - 1 : 0];
        if (kept == 0 || last->x < points[i].x) {
            points[kept++] = points[i];
            continue;
        }
        double weight = last->weight + points[i].weight;
        last->y = (last->y * last->weight + points[i].y * points[i].weight) / weight;
        if (points[i].upper > last->upper) last->upper = points[i].upper;
        last->weight = weight;
    }
    return kept;
}

uint32_t isotonic_map_fit(isotonic_point *points, uint32_t count)
{
    if (count == 0) return 0;
    qsort(points, count, sizeof *points, isotonic_order);
    count = isotonic_merge(points, count);
    isotonic_fit(points, count);
    double upper = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        if (points[i].upper > upper) upper = points[i].upper;
        if (points[i].y > upper) upper = points[i].y;
        points[i].upper = upper;
    }
    return count;
}

bool isotonic_map_at(const isotonic_point *steps, uint32_t count, double x, double *y_out,
                     double *upper_out)
{
    double x0 = 0.0, y0 = 0.0;
    assert(x >= 0.0);
    for (uint32_t i = 0; i < count; i++) {
        if (x <= steps[i].x) {
            double width = steps[i].x - x0;
            *y_out = width > 0.0 ? y0 + (steps[i].y - y0) * (x - x0) / width : steps[i].y;
            *upper_out = steps[i].upper;
            return true;
        }
        x0 = steps[i].x;
        y0 = steps[i].y;
    }
    return false;
}
