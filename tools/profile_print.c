/*
 * profile_print.c - a profile's curves for a person or for a program. One thread.
 */
#include "profile_print.h"

#include "command.h"

#include <kvterrace/codec.h>
#include <kvterrace/kvterrace.h>

#include <jansson.h>

static json_t *print_affine(const kvt_affine *affine)
{
    if (affine->bytes_per_s <= 0) return json_null();
    return json_pack("{s:f, s:f, s:f}", "request_seconds", affine->request_seconds, "bytes_per_s",
                     affine->bytes_per_s, "residual", affine->residual);
}

static kvt_status print_points(kvt_profile *profile, const char *device, json_t *rows)
{
    kvt_device_point point;
    kvt_status status = KVT_OK;
    for (size_t i = 0; status == KVT_OK; i++) {
        status = kvt_profile_point_at(profile, device, i, &point);
        if (status != KVT_OK) break;
        json_t *row = json_pack(
            "{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "kind",
            point.kind == KVT_IO_READ ? "read" : "write", "request_bytes",
            (json_int_t)point.request_bytes, "depth", (json_int_t)point.depth, "repetitions",
            (json_int_t)point.repetitions, "bytes_per_s", point.bytes_per_s, "bytes_per_s_min",
            point.bytes_per_s_min, "bytes_per_s_max", point.bytes_per_s_max, "latency_seconds_p50",
            point.latency_seconds_p50, "latency_seconds_p99", point.latency_seconds_p99);
        if (json_array_append_new(rows, row) != 0) status = KVT_E_MEMORY;
    }
    return status == KVT_END ? KVT_OK : status;
}

static kvt_status print_device_json(kvt_profile *profile, const kvt_device_curve *curve,
                                    json_t *devices)
{
    json_t *points = json_array();
    kvt_status status = points ? print_points(profile, curve->device, points) : KVT_E_MEMORY;
    json_t *row = json_pack(
        "{s:s, s:s, s:s, s:s, s:b, s:b, s:I, s:I, s:o, s:o, s:o}", "device", curve->device, "tier",
        kvt_tier_name(curve->tier), "engine", curve->engine, "identity", curve->identity, "direct",
        curve->direct, "emulated", curve->emulated, "capacity_bytes",
        (json_int_t)curve->capacity_bytes, "depth_achieved", (json_int_t)curve->depth_achieved,
        "read", print_affine(&curve->read), "write", print_affine(&curve->write), "points", points);
    if (status == KVT_OK && json_array_append_new(devices, row) != 0) return KVT_E_MEMORY;
    return status;
}

static void print_direction(const kvt_affine *affine)
{
    char rate[32] = "-", wait[32] = "-", residual[32] = "-";
    if (affine->bytes_per_s > 0) {
        format_rate(rate, affine->bytes_per_s);
        format_seconds(wait, affine->request_seconds);
        (void)snprintf(residual, sizeof residual, "%.0f %%", affine->residual * 100);
    }
    printf(" %11s %9s %6s", rate, wait, residual);
}

static void print_device_text(const kvt_device_curve *curve)
{
    printf("%-14s %-5s %-17s", curve->device, kvt_tier_name(curve->tier), curve->engine);
    print_direction(&curve->read);
    print_direction(&curve->write);
    printf("%s%s\n", curve->direct ? "  direct" : "", curve->emulated ? "  emulated" : "");
}

static kvt_status print_devices(kvt_profile *profile, json_t *devices)
{
    kvt_device_curve curve;
    kvt_status status = KVT_OK;
    if (!devices) {
        printf("%-14s %-5s %-17s %11s %9s %6s %11s %9s %6s\n", "device", "tier", "engine", "read",
               "+ each", "fit", "write", "+ each", "fit");
    }
    for (size_t i = 0; status == KVT_OK; i++) {
        status = kvt_profile_device_at(profile, i, &curve);
        if (status != KVT_OK) break;
        if (devices) {
            status = print_device_json(profile, &curve, devices);
        } else {
            print_device_text(&curve);
        }
    }
    return status == KVT_END ? KVT_OK : status;
}

static kvt_status print_codecs(kvt_profile *profile, json_t *codecs)
{
    const kvt_codec *codec;
    bool headed = false;
    for (size_t i = 0; (codec = kvt_codec_at(i)) != NULL; i++) {
        kvt_variant variant;
        kvt_codec_curve curve;
        kvt_status status = kvt_variant_parse(codec->name, &variant);
        if (status == KVT_OK) status = kvt_profile_codec(profile, variant, &curve);
        if (status == KVT_MISS) continue;
        if (status != KVT_OK) return status;
        if (codecs) {
            json_t *row =
                json_pack("{s:s, s:f, s:f, s:f}", "codec", codec->name, "stored_share",
                          curve.stored_share, "encode_bytes_per_s", curve.encode_bytes_per_s,
                          "decode_bytes_per_s", curve.decode_bytes_per_s);
            if (json_array_append_new(codecs, row) != 0) return KVT_E_MEMORY;
            continue;
        }
        char encode[32], decode[32];
        if (!headed) printf("\n%-14s %7s %11s %11s\n", "codec", "stored", "encode", "decode");
        headed = true;
        printf("%-14s %6.1f%% %11s %11s\n", codec->name, curve.stored_share * 100,
               format_rate(encode, curve.encode_bytes_per_s),
               format_rate(decode, curve.decode_bytes_per_s));
    }
    return KVT_OK;
}

kvt_status profile_print(kvt_profile *profile, const char *path, bool as_json)
{
    json_t *devices = as_json ? json_array() : NULL;
    json_t *codecs = as_json ? json_array() : NULL;
    json_t *document = NULL;
    kvt_status status = as_json && (!devices || !codecs) ? KVT_E_MEMORY : KVT_OK;
    if (status == KVT_OK) status = print_devices(profile, devices);
    if (status == KVT_OK) status = print_codecs(profile, codecs);
    if (status == KVT_OK && as_json) {
        document =
            json_pack("{s:s, s:s, s:s, s:O, s:O}", "schema", "kvterrace-profile-1", "version",
                      kvt_version(), "database", path, "devices", devices, "codecs", codecs);
        if (!document || json_dumpf(document, stdout, JSON_INDENT(2)) != 0) status = KVT_E_MEMORY;
        putchar('\n');
    }
    json_decref(document);
    json_decref(devices);
    json_decref(codecs);
    return status;
}
