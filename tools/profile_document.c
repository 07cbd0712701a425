/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_document.c - see profile_document.h. One thread.
 */
#include "profile_document.h"
#include "base/order.h"
#include "estimator/exchange/exchange.h"
#include "tiers/devices/device_ops.h"

#include <kvterrace/kvterrace.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Llama-3.1-8B in bf16: 2 sides x 32 layers x 8 heads x 128 x 2 bytes. For prefills whose model the
 * profile does not hold. */
#define DOCUMENT_TOKEN_BYTES 131072.0

bool view_affine(const json_t *device, const char *key, kvt_affine *out)
{
    const json_t *affine = json_object_get(device, key);
    *out = (kvt_affine){.request_seconds = view_number(affine, "request_seconds", 0),
                        .bytes_per_s = view_number(affine, "bytes_per_s", 0),
                        .residual = view_number(affine, "residual", 0)};
    return out->bytes_per_s > 0;
}

/* Moves the rows of one array into the rows of another that have the same key: rungs into their
 * calibrations, curves into their sets. */
static kvt_status document_nest(json_t *document, const char *from, const char *into,
                                const char *key, const char *name)
{
    json_t *parents = json_object_get(document, into);
    json_t *rows = json_object_get(document, from), *row;
    size_t i, j;
    json_t *parent;
    json_array_foreach(parents, i, parent)
    {
        json_t *nested = json_array();
        if (json_object_set_new(parent, name, nested) != 0) return KVT_E_MEMORY;
        json_array_foreach(rows, j, row)
        {
            if (!json_equal(json_object_get(row, key), json_object_get(parent, key))) continue;
            if (json_array_append(nested, row) != 0) return KVT_E_MEMORY;
        }
    }
    return json_object_del(document, from) == 0 ? KVT_OK : KVT_E_MEMORY;
}

/* ---- quality from elsewhere ---- */

/* Puts a curve where its bits belong, from the most to the fewest. */
static int document_insert_curve(json_t *curves, json_t *curve)
{
    const double bits = view_number(curve, "bits_per_element", 0);
    size_t at = 0;
    while (at < json_array_size(curves) &&
           view_number(json_array_get(curves, at), "bits_per_element", 0) >= bits)
        at++;
    return json_array_insert(curves, at, curve);
}

/* A published table is a set per row when every row names its own source: they become one set of
 * their model and class, whose curves say where they are from. */
static kvt_status document_merge_imports(json_t *document)
{
    json_t *sets = json_object_get(document, "quality_sets"), *curve;
    for (size_t i = 0; i < json_array_size(sets); i++) {
        json_t *set = json_array_get(sets, i), *into = NULL;
        size_t j;
        if (strcmp(view_text(set, "method"), "import") != 0) continue;
        json_array_foreach(json_object_get(set, "curves"), j, curve)
        {
            json_t *source = json_object_get(set, "source");
            if (json_object_set(curve, "source", source) != 0) return KVT_E_MEMORY;
        }
        for (j = 0; j < i && into == NULL; j++) {
            json_t *other = json_array_get(sets, j);
            if (json_equal(json_object_get(other, "model"), json_object_get(set, "model")) &&
                json_equal(json_object_get(other, "class"), json_object_get(set, "class")) &&
                strcmp(view_text(other, "method"), "import") == 0) {
                into = other;
            }
        }
        if (into == NULL) continue;
        json_array_foreach(json_object_get(set, "curves"), j, curve)
        {
            if (document_insert_curve(json_object_get(into, "curves"), curve) != 0) {
                return KVT_E_MEMORY;
            }
        }
        if (!json_equal(json_object_get(into, "source"), json_object_get(set, "source")) &&
            json_object_set_new(into, "source", json_string("several")) != 0) {
            return KVT_E_MEMORY;
        }
        (void)json_array_remove(sets, i--);
    }
    return KVT_OK;
}

/* ---- devices ---- */

static json_t *document_affine(const kvt_affine *affine)
{
    if (affine->bytes_per_s <= 0) return json_null();
    return json_pack("{s:f, s:f, s:f}", "request_seconds", affine->request_seconds, "bytes_per_s",
                     affine->bytes_per_s, "residual", affine->residual);
}

/* Seconds of a request by the affine model, and the model's error. */
static int document_point_fit(json_t *row, const kvt_device_point *point, const kvt_affine *fit)
{
    if (point->depth != 1 || fit->bytes_per_s <= 0 || point->latency_seconds_p50 <= 0) return 0;
    double seconds = fit->request_seconds + (double)point->request_bytes / fit->bytes_per_s;
    return json_object_set_new(row, "fit_seconds", json_real(seconds)) |
           json_object_set_new(row, "fit_error",
                               view_real(seconds / point->latency_seconds_p50 - 1.0));
}

/* A device counts as measured on a busy machine when half of its points differed between
 * repetitions by more than this share of their median, or when its model is off by more than that
 * share: bandwidth is of all the time that passed, which others took their part of, while the
 * median latency of single requests is not. */
#define DOCUMENT_REPEAT_BUSY 0.5
#define DOCUMENT_FIT_BUSY    1.0
#define DOCUMENT_POINTS_MAX  1024u /* of a device that are looked at for that */

/* Median over the points of how far their repetitions lie apart; 0 without repetitions. */
static double document_repeat_error(const json_t *points)
{
    double spreads[DOCUMENT_POINTS_MAX];
    size_t count = 0, i;
    const json_t *point;
    json_array_foreach(points, i, point)
    {
        double median = view_number(point, "bytes_per_s", 0);
        double most = view_number(point, "bytes_per_s_max", 0);
        double least = view_number(point, "bytes_per_s_min", 0);
        if (view_number(point, "repetitions", 0) < 2 || median <= 0) continue;
        if (count < DOCUMENT_POINTS_MAX) spreads[count++] = (most - least) / median;
    }
    if (count == 0) return 0;
    qsort(spreads, count, sizeof spreads[0], base_order_doubles);
    return spreads[count / 2];
}

static void document_judge(json_t *row, const kvt_device_curve *curve, const json_t *points)
{
    double fit = fmax(curve->read.residual, curve->write.residual);
    double repeat = document_repeat_error(points);
    bool busy = !curve->imported && (fit > DOCUMENT_FIT_BUSY || repeat > DOCUMENT_REPEAT_BUSY);
    (void)json_object_set_new(row, "repeat_error", json_real(repeat));
    (void)json_object_set_new(row, "busy", json_boolean(busy));
}

static kvt_status document_points(kvt_profile *profile, const kvt_device_curve *curve, json_t *rows)
{
    kvt_device_point point;
    kvt_status status = KVT_OK;
    for (size_t i = 0; status == KVT_OK; i++) {
        status = kvt_profile_point_at(profile, curve->device, i, &point);
        if (status != KVT_OK) break;
        bool read = point.kind == KVT_IO_READ;
        json_t *row = json_pack(
            "{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "kind", read ? "read" : "write",
            "request_bytes", (json_int_t)point.request_bytes, "depth", (json_int_t)point.depth,
            "repetitions", (json_int_t)point.repetitions, "bytes_per_s", point.bytes_per_s,
            "bytes_per_s_min", point.bytes_per_s_min, "bytes_per_s_max", point.bytes_per_s_max,
            "latency_seconds_p50", point.latency_seconds_p50, "latency_seconds_p99",
            point.latency_seconds_p99);
        if (row == NULL ||
            document_point_fit(row, &point, read ? &curve->read : &curve->write) != 0 ||
            json_array_append(rows, row) != 0) {
            status = KVT_E_MEMORY;
        }
        json_decref(row);
    }
    return status == KVT_END ? KVT_OK : status;
}

static kvt_status document_device(kvt_profile *profile, const kvt_device_curve *curve,
                                  json_t *devices)
{
    json_t *points = json_array();
    kvt_status status = points ? document_points(profile, curve, points) : KVT_E_MEMORY;
    json_t *row = json_pack(
        "{s:s, s:s, s:s, s:s, s:b, s:b, s:b, s:I, s:I, s:o, s:o, s:o}", "device", curve->device,
        "tier", kvt_tier_name(curve->tier), "engine", curve->engine, "identity", curve->identity,
        "direct", curve->direct, "emulated", curve->emulated, "imported", curve->imported,
        "capacity_bytes", (json_int_t)curve->capacity_bytes, "depth_achieved",
        (json_int_t)curve->depth_achieved, "read", document_affine(&curve->read), "write",
        document_affine(&curve->write), "points", points);
    document_judge(row, curve, points);
    uint64_t begins_at;
    const kvt_status begins = kvt_profile_begins_at(profile, curve->device, &begins_at);
    if (status == KVT_OK && begins != KVT_MISS) status = begins;
    if (begins == KVT_OK)
        (void)json_object_set_new(row, "begins_at", json_integer((json_int_t)begins_at));
    if (json_array_append_new(devices, row) != 0) return KVT_E_MEMORY;
    return status;
}

static kvt_status document_devices(kvt_profile *profile, json_t *document)
{
    json_t *devices = json_array();
    if (json_object_set_new(document, "devices", devices) != 0) return KVT_E_MEMORY;
    kvt_device_curve curve;
    kvt_status status = KVT_OK;
    for (size_t i = 0; status == KVT_OK; i++) {
        status = kvt_profile_device_at(profile, i, &curve);
        if (status == KVT_OK) status = document_device(profile, &curve, devices);
    }
    if (status != KVT_END) return status;
    status = exchange_view(profile, "mixed", document);
    if (status == KVT_OK) status = document_nest(document, "mixed", "devices", "device", "mixed");
    if (status == KVT_OK) status = exchange_view(profile, "starts", document);
    return status != KVT_OK ? status
                            : document_nest(document, "starts", "devices", "device", "starts");
}

/* ---- prefill ---- */

/* A prefill's name is that of its model, a colon, and the machine. */
static double document_token_bytes(const json_t *document, const char *prefill)
{
    const size_t length = strcspn(prefill, ":");
    const json_t *model;
    size_t i;
    json_array_foreach(json_object_get(document, "models"), i, model)
    {
        const char *name = view_text(model, "name");
        double bytes = 4.0 * view_number(model, "layers", 0) * view_number(model, "kv_heads", 0) *
                       view_number(model, "head_dim", 0);
        if (strlen(name) == length && strncasecmp(name, prefill, length) == 0 && bytes > 0) {
            return bytes;
        }
    }
    return DOCUMENT_TOKEN_BYTES;
}

/* Whether the profile has a prefill of this name, which then stands for the preset. */
static bool document_has_prefill(const json_t *rows, const char *name)
{
    const json_t *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        if (strcmp(view_text(row, "name"), name) == 0) return true;
    }
    return false;
}

static kvt_status document_prefill(kvt_profile *profile, json_t *document, double token_bytes)
{
    kvt_status status = exchange_view(profile, "prefill", document);
    json_t *rows = json_object_get(document, "prefill"), *row;
    const char *name;
    size_t i;
    if (status != KVT_OK) return status;
    for (i = 0; (name = kvt_prefill_preset_name(i)) != NULL; i++) {
        kvt_prefill preset;
        if (document_has_prefill(rows, name)) continue;
        status = kvt_prefill_preset_get(name, &preset);
        if (status != KVT_OK) return status;
        row = json_pack("{s:s, s:f, s:f, s:f, s:s}", "name", name, "linear_seconds_per_token",
                        preset.linear_seconds_per_token, "square_seconds_per_token2",
                        preset.square_seconds_per_token2, "fixed_seconds", preset.fixed_seconds,
                        "source", "preset");
        if (json_array_append_new(rows, row) != 0) return KVT_E_MEMORY;
    }
    json_array_foreach(rows, i, row)
    {
        double bytes =
            token_bytes > 0 ? token_bytes : document_token_bytes(document, view_text(row, "name"));
        if (json_object_set_new(row, "token_bytes", json_real(bytes)) != 0) return KVT_E_MEMORY;
    }
    return KVT_OK;
}

/* ---- all ---- */

/* A view that is not nested under another name keeps its own. */
static kvt_status document_fill(kvt_profile *profile, const profile_view *view, json_t *document)
{
    static const char *const views[] = {"runs",    "codecs",       "models",  "quality_sets",
                                        "quality", "rungs",        "choices", "learned",
                                        "bases",   "calibrations", "passes",  NULL};
    kvt_status status = document_devices(profile, document);
    for (size_t i = 0; status == KVT_OK && views[i] != NULL; i++) {
        status = exchange_view(profile, views[i], document);
    }
    if (status == KVT_OK) {
        status = document_nest(document, "quality", "quality_sets", "set_id", "curves");
    }
    if (status == KVT_OK) status = document_merge_imports(document);
    if (status == KVT_OK) {
        status = document_nest(document, "rungs", "calibrations", "calibration_id", "rungs");
    }
    if (status == KVT_OK) {
        status = document_nest(document, "choices", "calibrations", "calibration_id", "choices");
    }
    if (status == KVT_OK) status = document_prefill(profile, document, view->token_bytes);
    return status == KVT_OK ? profile_break_even_add(document) : status;
}

kvt_status profile_document_make(kvt_profile *profile, const profile_view *view,
                                 json_t **document_out)
{
    json_t *document = json_pack("{s:s, s:s, s:s}", "schema", "kvterrace-profile-2", "version",
                                 kvt_version(), "database", view->path);
    kvt_status status = document ? document_fill(profile, view, document) : KVT_E_MEMORY;
    if (status != KVT_OK) {
        json_decref(document);
        document = NULL;
    }
    *document_out = document;
    return status;
}

bool profile_document_is_busy(const json_t *document)
{
    const json_t *device;
    size_t i;
    json_array_foreach(json_object_get(document, "devices"), i, device)
    {
        if (json_is_true(json_object_get(device, "busy"))) return true;
    }
    return false;
}
