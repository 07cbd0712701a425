/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_page_speed.c - the page's sections on this machine: devices, loading against computing,
 * codecs. One thread.
 */
#include "command.h"
#include "profile_document.h"
#include "profile_page_part.h"
#include "profile_plot.h"
#include "replay/report_page.h"

#include <math.h>
#include <string.h>

/* ---- devices ---- */

static void show_direction(const json_t *device, const char *key, FILE *file)
{
    kvt_affine affine;
    if (!view_affine(device, key, &affine)) {
        fprintf(file, "<td>-</td><td>-</td><td>-</td>");
        return;
    }
    show_rate(file, affine.bytes_per_s);
    show_seconds(file, affine.request_seconds);
    fprintf(file, "<td>%.0f %%</td>", affine.residual * 100);
}

static void show_mixed(const json_t *device, FILE *file)
{
    const json_t *mixed;
    char text[128] = "";
    size_t i;
    json_array_foreach(json_object_get(device, "mixed"), i, mixed)
    {
        char size[32];
        size_t used = strlen(text);
        double unmixed = view_number(mixed, "unmixed_bytes_per_s", 0);
        if (unmixed <= 0) continue;
        (void)snprintf(text + used, sizeof text - used, "%s%.0f %% at %s", used ? ", " : "",
                       100 * view_number(mixed, "bytes_per_s", 0) / unmixed,
                       format_bytes(size, (uint64_t)view_number(mixed, "request_bytes", 0)));
    }
    show_text(file, "", text[0] ? text : "-");
}

static void show_points(const json_t *document, FILE *file)
{
    const json_t *device, *point;
    size_t i, j;
    fprintf(file, "<details><summary>All points, with what the model says at depth 1</summary>\n");
    SHOW_TABLE(file, 2, "device", "direction", "request", "in flight", "bandwidth", "slowest",
               "fastest", "median latency", "p99", "model", "off by");
    json_array_foreach(json_object_get(document, "devices"), i, device)
    {
        json_array_foreach(json_object_get(device, "points"), j, point)
        {
            fprintf(file, "<tr>");
            show_text(file, "", view_text(device, "device"));
            show_text(file, "left", view_text(point, "kind"));
            show_size(file, view_number(point, "request_bytes", 0));
            show_number(file, point, "depth", 0, 1, "");
            show_rate(file, view_number(point, "bytes_per_s", 0));
            show_rate(file, view_number(point, "bytes_per_s_min", 0));
            show_rate(file, view_number(point, "bytes_per_s_max", 0));
            show_seconds(file, view_number(point, "latency_seconds_p50", NAN));
            show_seconds(file, view_number(point, "latency_seconds_p99", NAN));
            show_seconds(file, view_number(point, "fit_seconds", NAN));
            show_number(file, point, "fit_error", 1, 100, " %");
            fprintf(file, "</tr>\n");
        }
    }
    show_table_end(file);
    fprintf(file, "</details>\n");
}

static void show_mixtures(const json_t *document, FILE *file)
{
    const json_t *device, *mixed;
    size_t i, j;
    fprintf(file, "<details><summary>Reads and writes at once</summary>\n");
    SHOW_TABLE(file, 1, "device", "request", "in flight", "reads", "together", "without each other",
               "left", "median read latency", "p99");
    json_array_foreach(json_object_get(document, "devices"), i, device)
    {
        json_array_foreach(json_object_get(device, "mixed"), j, mixed)
        {
            const double together = view_number(mixed, "bytes_per_s", 0);
            const double unmixed = view_number(mixed, "unmixed_bytes_per_s", 1);
            fprintf(file, "<tr>");
            show_text(file, "", view_text(device, "device"));
            show_size(file, view_number(mixed, "request_bytes", 0));
            show_number(file, mixed, "depth", 0, 1, "");
            show_number(file, mixed, "read_share", 0, 100, " %");
            show_rate(file, together);
            show_rate(file, unmixed);
            fprintf(file, "<td>%.0f %%</td>", 100 * together / unmixed);
            show_seconds(file, view_number(mixed, "read_latency_seconds_p50", NAN));
            show_seconds(file, view_number(mixed, "read_latency_seconds_p99", NAN));
            fprintf(file, "</tr>\n");
        }
    }
    show_table_end(file);
    fprintf(file, "</details>\n");
}

kvt_status show_devices(const json_t *document, unsigned *number, FILE *file)
{
    const json_t *device;
    size_t i;
    if (show_count(document, "devices") == 0) return KVT_OK;
    fprintf(file,
            "<h2>Devices</h2>\n<p class=\"note\">A load costs the seconds of a request plus "
            "bytes over bandwidth; fit is the model's largest error at one request at a time. "
            "Mixed is what is left of the bandwidth when reads and writes meet.</p>\n");
    SHOW_TABLE(file, 3, "device", "tier", "engine", "capacity", "read", "+ each", "fit", "write",
               "+ each", "fit", "mixed", "notes");
    json_array_foreach(json_object_get(document, "devices"), i, device)
    {
        bool direct = json_is_true(json_object_get(device, "direct"));
        bool emulated = json_is_true(json_object_get(device, "emulated"));
        bool imported = json_is_true(json_object_get(device, "imported"));
        fprintf(file, "<tr>");
        show_text(file, "", view_text(device, "device"));
        show_text(file, "left", view_text(device, "tier"));
        show_text(file, "left", view_text(device, "engine"));
        if (view_number(device, "capacity_bytes", 0) > 0) {
            show_size(file, view_number(device, "capacity_bytes", 0));
        } else {
            show_text(file, "", "-");
        }
        show_direction(device, "read", file);
        show_direction(device, "write", file);
        show_mixed(device, file);
        show_text(file, "",
                  imported             ? "imported"
                  : direct && emulated ? "direct, emulated"
                  : direct             ? "direct"
                  : emulated           ? "emulated"
                                       : "");
        fprintf(file, "</tr>\n");
    }
    show_table_end(file);
    kvt_status status = profile_plot_inline(document, PROFILE_PLOT_DEVICES, number, file);
    show_points(document, file);
    show_mixtures(document, file);
    return status;
}

/* ---- loading and computing ---- */

static void show_seconds_row(const json_t *row, const char *name, const char *class, FILE *file)
{
    const json_t *value;
    size_t i;
    fprintf(file, "<tr>");
    show_text(file, class, name);
    json_array_foreach(json_object_get(row, "seconds"), i, value)
    {
        show_seconds(file, json_number_value(value));
    }
    fprintf(file, "</tr>\n");
}

static void show_load(const json_t *table, FILE *file)
{
    const json_t *row;
    size_t i;
    char size[32];
    fprintf(file, "<h3>Seconds to load and to compute a context, %s a token</h3>\n",
            format_bytes(size, (uint64_t)view_number(table, "token_bytes", 0)));
    fprintf(file, "<div class=\"wide\"><table><thead><tr><th class=\"left\">tokens</th>");
    json_array_foreach(json_object_get(table, "tokens"), i, row)
    {
        fprintf(file, "<th>%.0f</th>", json_number_value(row));
    }
    fprintf(file, "</tr></thead><tbody>\n");
    json_array_foreach(json_object_get(table, "loads"), i, row)
    {
        show_seconds_row(row, view_text(row, "device"), "", file);
    }
    json_array_foreach(json_object_get(table, "prefills"), i, row)
    {
        char name[128];
        (void)snprintf(name, sizeof name, "compute, %s", view_text(row, "prefill"));
        show_seconds_row(row, name, "left", file);
    }
    show_table_end(file);
}

/* Rows of one device and prefill follow each other, forms in the same order everywhere. */
static void show_break_even(const json_t *document, FILE *file)
{
    const json_t *rows = json_object_get(json_object_get(document, "break_even"), "devices"), *row;
    const json_t *first = json_array_get(rows, 0);
    size_t i, forms = 0;
    if (first == NULL) return;
    fprintf(file,
            "<h3>Break-even context: tokens below which computing is faster than loading</h3>\n"
            "<p class=\"note\">Forms are decoded by %.0f thread%s after the load. "
            "<span class=\"yes\">always</span>: loading wins at every length.</p>\n"
            "<div class=\"wide\"><table><thead><tr><th class=\"left\">device</th>"
            "<th class=\"left\">prefill</th>",
            view_number(first, "threads", 1), view_number(first, "threads", 1) > 1 ? "s" : "");
    json_array_foreach(rows, i, row)
    {
        if (!json_equal(json_object_get(row, "device"), json_object_get(first, "device")) ||
            !json_equal(json_object_get(row, "prefill"), json_object_get(first, "prefill"))) {
            break;
        }
        fprintf(file, "<th>");
        page_text(file, view_text(row, "codec"));
        fprintf(file, "</th>");
        forms++;
    }
    fprintf(file, "</tr></thead><tbody>\n");
    json_array_foreach(rows, i, row)
    {
        const char *wins = view_text(row, "loading_wins");
        if (i % forms == 0) {
            fprintf(file, "<tr>");
            show_text(file, "", view_text(row, "device"));
            show_text(file, "left", view_text(row, "prefill"));
        }
        if (strcmp(wins, "always") == 0) {
            fprintf(file, "<td class=\"yes\">always</td>");
        } else if (strcmp(wins, "never") == 0) {
            fprintf(file, "<td class=\"no\">never</td>");
        } else {
            fprintf(file, "<td>%.0f</td>", ceil(view_number(row, "tokens", 0)));
        }
        if (i % forms == forms - 1) fprintf(file, "</tr>\n");
    }
    show_table_end(file);
}

kvt_status show_loads(const json_t *document, unsigned *number, FILE *file)
{
    const json_t *table;
    size_t i;
    if (show_count(document, "devices") == 0) return KVT_OK;
    fprintf(file, "<h2>Loading against recomputing</h2>\n");
    kvt_status status = profile_plot_inline(document, PROFILE_PLOT_LOADS, number, file);
    json_array_foreach(json_object_get(document, "load"), i, table)
    {
        show_load(table, file);
    }
    show_break_even(document, file);
    return status;
}

/* ---- codecs ---- */

static const json_t *show_even(const json_t *document, const json_t *codec)
{
    const json_t *row;
    size_t i;
    if (!json_is_true(json_object_get(codec, "best"))) return NULL;
    json_array_foreach(json_object_get(json_object_get(document, "break_even"), "codecs"), i, row)
    {
        if (json_equal(json_object_get(row, "source"), json_object_get(codec, "source")) &&
            json_equal(json_object_get(row, "codec"), json_object_get(codec, "name")) &&
            json_equal(json_object_get(row, "threads"), json_object_get(codec, "threads"))) {
            return row;
        }
    }
    return NULL;
}

/* Whether a device has a column: those that were measured, or all when none was. */
static bool show_is_column(const json_t *document, const json_t *device)
{
    const json_t *other;
    size_t i;
    kvt_affine read;
    if (!view_affine(device, "read", &read)) return false;
    if (!json_is_true(json_object_get(device, "imported"))) return true;
    json_array_foreach(json_object_get(document, "devices"), i, other)
    {
        if (!json_is_true(json_object_get(other, "imported"))) return false;
    }
    return true;
}

static void show_codec(const json_t *document, const json_t *codec, FILE *file)
{
    const json_t *even = show_even(document, codec), *device;
    const char *pays = view_text(even, "pays");
    size_t i;
    fprintf(file, "<tr>");
    show_text(file, "", view_text(codec, "name"));
    show_number(file, codec, "stored_share", 1, 100, " %");
    show_rate(file, view_number(codec, "encode_bytes_per_s", 0));
    show_rate(file, view_number(codec, "decode_bytes_per_s", 0));
    if (even == NULL) {
        fprintf(file, "<td>-</td>");
    } else if (strcmp(pays, "below") != 0) {
        fprintf(file, "<td class=\"%s\">%s</td>", strcmp(pays, "always") == 0 ? "yes" : "no", pays);
    } else {
        show_rate(file, view_number(even, "bytes_per_s", 0));
    }
    json_array_foreach(json_object_get(document, "devices"), i, device)
    {
        kvt_affine read;
        if (!show_is_column(document, device) || !view_affine(device, "read", &read)) continue;
        bool yes =
            strcmp(pays, "always") == 0 ||
            (strcmp(pays, "below") == 0 && read.bytes_per_s < view_number(even, "bytes_per_s", 0));
        fprintf(file, even == NULL ? "<td>-</td>"
                      : yes        ? "<td class=\"yes\">yes</td>"
                                   : "<td class=\"no\">no</td>");
    }
    fprintf(file, "</tr>\n");
}

static void show_codec_table(const json_t *document, bool best, FILE *file)
{
    const json_t *codec, *device;
    const char *source = "", *isa = "";
    double threads = -1;
    size_t i, columns = 5;
    fprintf(file, "<div class=\"wide\"><table><thead><tr><th class=\"left\">form</th>"
                  "<th>stored</th><th>encode</th><th>decode</th><th>pays below</th>");
    json_array_foreach(json_object_get(document, "devices"), i, device)
    {
        if (!show_is_column(document, device)) continue;
        fprintf(file, "<th>on ");
        page_text(file, view_text(device, "device"));
        fprintf(file, "</th>");
        columns++;
    }
    fprintf(file, "</tr></thead><tbody>\n");
    json_array_foreach(json_object_get(document, "codecs"), i, codec)
    {
        if (json_is_true(json_object_get(codec, "best")) != best) continue;
        if (strcmp(source, view_text(codec, "source")) != 0 ||
            strcmp(isa, view_text(codec, "isa")) != 0 ||
            threads != view_number(codec, "threads", 0)) {
            source = view_text(codec, "source");
            isa = view_text(codec, "isa");
            threads = view_number(codec, "threads", 0);
            fprintf(file, "<tr class=\"group\"><td class=\"left\" colspan=\"%zu\">", columns);
            page_text(file, view_number(codec, "imported", 0) > 0
                                ? view_text(codec, "import_source")
                            : strcmp(source, "sample") == 0 ? "generated KV"
                                                            : source);
            fprintf(file, ", %s, %.0f thread%s</td></tr>\n", isa, threads, threads > 1 ? "s" : "");
        }
        show_codec(document, codec, file);
    }
    show_table_end(file);
}

kvt_status show_codecs(const json_t *document, unsigned *number, FILE *file)
{
    if (show_count(document, "codecs") == 0) return KVT_OK;
    fprintf(file,
            "<h2>Codecs</h2>\n<p class=\"note\">Speeds are of decoded KV through a whole record, "
            "checksums included. A form pays below the bandwidth at which raw bytes are there as "
            "soon: (share of raw - share of the form) / (1 / its decode - 1 / raw's).</p>\n");
    kvt_status status = profile_plot_inline(document, PROFILE_PLOT_CODECS, number, file);
    show_codec_table(document, true, file);
    fprintf(file, "<details><summary>Lesser instruction sets</summary>\n");
    show_codec_table(document, false, file);
    fprintf(file, "</details>\n");
    return status;
}
